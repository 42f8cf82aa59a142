"""The dump of a log segment: header, chain, groups and records, and what is after their end.

Groups are looked for at every multiple of 64, as recovery does, so damage hides nothing after it.
What verifies is decoded. Bytes of the file's earlier life do not verify, because the salt of the
header seeds every checksum; the dump says so. See `dump.py` for the lines, `log_segment.py` and
`record.py` for the formats, `record_types.py` for what a record says in words.
"""

import struct
from collections.abc import Iterator

from penstock.fast_crc import crc32
from penstock.storage import record, record_types
from penstock.storage.dump_text import at, is_zero
from penstock.storage.log_file import (
    ALIGN_BYTES,
    CHAIN_OFFSET,
    FIRST_GROUP_OFFSET,
    GROUP_HEADER_BYTES,
    GroupHeader,
    aligned,
    decode_chain,
    decode_group_header,
    segment_seed,
)

_HEADER = struct.Struct(">4sHHQQQQI")


def dump(data: bytes) -> Iterator[str]:
    """The lines of a segment."""
    if len(data) < FIRST_GROUP_OFFSET:
        yield at(0, f"DAMAGED header, cut off at {len(data)}")
        return
    magic, version, flags, vhost, number, size, salt, crc = _HEADER.unpack_from(data)
    seed = segment_seed(vhost, number, salt)
    text = (
        f"header {magic!r} version {version} flags {flags} vhost {vhost:016x} number {number} "
        f"size {size} salt {salt:016x}"
    )
    if magic != b"PWAL" or crc32(data[: _HEADER.size - 4], seed) != crc:
        text = "DAMAGED " + text
    yield at(0, text)
    if len(data) < size:
        yield at(len(data), "DAMAGED: the file ends here")
    yield at(CHAIN_OFFSET, _chain_text(data, seed))
    yield from _groups(data, seed)


def _chain_text(data: bytes, seed: int) -> str:
    block = data[CHAIN_OFFSET:FIRST_GROUP_OFFSET]
    chain = decode_chain(block, seed)
    if chain is None:
        return "no chain" if is_zero(block) else "DAMAGED chain"
    return (
        f"{'vouch' if chain.is_end_marker else 'chain'} previous segment {chain.prev_segment} end "
        f"{chain.prev_end} last LSN {chain.prev_lsn} durable LSN {chain.durable_lsn}"
    )


def _groups(data: bytes, seed: int) -> Iterator[str]:
    position = FIRST_GROUP_OFFSET
    while position < len(data):
        group = decode_group_header(data, position, seed)
        if group is None:
            end = _next_group(data, position, seed)
            yield at(position, _gap_text(data[position:end]))
            position = end
            continue
        kind = "group" if group.count else "idle header"
        yield at(
            position,
            f"{kind} of {group.count} records, {group.length} bytes, first LSN "
            f"{group.first_lsn} durable LSN {group.durable_lsn}",
        )
        yield from _records(data, position, group, seed)
        position = aligned(position + GROUP_HEADER_BYTES + group.length)


def _next_group(data: bytes, position: int, seed: int) -> int:
    found = data.find(b"PGRP", position)
    while found >= 0:
        if found % ALIGN_BYTES == 0 and decode_group_header(data, found, seed) is not None:
            return found
        found = data.find(b"PGRP", found + 1)
    return len(data)


def _gap_text(gap: bytes) -> str:
    if is_zero(gap):
        return f"{len(gap)} bytes of zeros"
    return f"{len(gap)} bytes that do not verify: damaged, torn or of an earlier life"


def _records(data: bytes, start: int, group: GroupHeader, seed: int) -> Iterator[str]:
    position = start + GROUP_HEADER_BYTES
    end = position + group.length
    for lsn in range(group.first_lsn, group.first_lsn + group.count):
        if position + record.RECORD_HEADER_BYTES > min(end, len(data)):
            yield at(position, f"  DAMAGED: no record {lsn}")
            return
        length, _, found, kind, flags, count = record.decode_header(data, position)
        whole = data[position : position + length]
        if not record.RECORD_HEADER_BYTES <= length <= end - position or not record.verifies(
            whole, seed
        ):
            yield at(position, f"  DAMAGED record {lsn}")
            if not record.RECORD_HEADER_BYTES <= length <= end - position:
                return
        else:
            op = record.Op(kind, flags, count, whole[record.RECORD_HEADER_BYTES :])
            yield at(position, f"  {found} {op_text(op)}")
            for line in _parts(op):
                yield at(position, "    " + line)
        position += length


def _parts(op: record.Op) -> Iterator[str]:
    """The operations of a transaction."""
    if op.type not in (record.TX, record.TX_PART):
        return
    try:
        for one in record.decode_ops(op.data, op.count, 8 if op.type == record.TX_PART else 0):
            yield op_text(one)
    except ValueError as error:
        yield f"DAMAGED: {error}"


def op_text(op: record.Op) -> str:
    """One operation, decoded."""
    name = record.type_name(op.type)
    if not record.is_known(op.type):
        return f"{name} {len(op.data)} bytes"
    try:
        return f"{name} {record_types.decode(op).text()}"
    except ValueError as error:
        return f"DAMAGED {name}: {error}"
