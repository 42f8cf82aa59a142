"""The dump of a log segment: header, chain, groups and records, and what lies behind their end.

Groups are looked for at every multiple of 64, as recovery does, so damage hides nothing behind it.
What verifies is decoded; bytes of the file's earlier life verify no more, because the salt of the
header seeds every checksum, and are told as such. See `dump.py` for the lines, `log_segment.py` and
`record.py` for the formats.
"""

import struct
from collections.abc import Iterator

from penstock.fast_crc import crc32
from penstock.storage import record
from penstock.storage.dump_batches import batch_text
from penstock.storage.dump_checkpoint import lease_runs_text, topology_text
from penstock.storage.dump_text import at, body_text, is_zero
from penstock.storage.log_segment import (
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
LEASE_TEXTS = {record.LEASED: "leased", record.COMMITTED: "committed", record.RELEASED: "released"}


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
        f"{'vouch' if chain.is_vouch else 'chain'} previous segment {chain.prev_segment} end "
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
            body = whole[record.RECORD_HEADER_BYTES :]
            yield at(position, f"  {found} {op_text(kind, flags, count, body)}")
            for line in _parts(kind, count, body):
                yield at(position, "    " + line)
        position += length


def _parts(kind: int, count: int, data: bytes) -> Iterator[str]:
    """The operations of a transaction."""
    if kind not in (record.TX, record.TX_PART):
        return
    try:
        for op in record.decode_ops(data, count, 8 if kind == record.TX_PART else 0):
            yield op_text(op.type, op.flags, op.count, op.data)
    except ValueError as error:
        yield f"DAMAGED: {error}"


def op_text(kind: int, flags: int, count: int, data: bytes) -> str:
    """One operation, decoded."""
    name = record.type_name(kind)
    try:
        return f"{name} {_data_text(kind, flags, count, data)}"
    except ValueError as error:
        return f"DAMAGED {name}: {error}"


def _data_text(  # noqa: C901 - a case for each type
    kind: int, flags: int, count: int, data: bytes
) -> str:
    if kind == record.PUBLISH:
        return _publish_text(record.decode_publish(data, flags, count))
    if kind == record.MOVE:
        m = record.decode_move(data, flags, count)
        return f"from queue {m.queue} seq {m.seq} size {m.size}: {_publish_text(m.publish)}"
    if kind == record.DEQUEUE:
        d = record.decode_dequeue(data, count)
        return f"queue {d.queue} runs {_runs_text(d.runs)}{_stores_text(d.stores)}"
    if kind == record.REQUEUE:
        r = record.decode_requeue(data, count)
        return f"queue {r.queue} attempts {r.attempts}"
    if kind == record.MARK:
        mark = record.decode_mark(data)
        return f"queue {mark.queue} mark {mark.mark}"
    if kind == record.PURGE:
        p = record.decode_purge(data, count)
        return f"queue {p.queue} below {p.upper} but {_runs_text(p.kept)}"
    if kind == record.DELETE_QUEUE:
        return f"queue {record.decode_delete_queue(data)}"
    if kind == record.RELEASE:
        e = record.decode_release(data)
        return f"queue {e.queue} segment {e.segment}"
    if kind == record.TOPOLOGY:
        return topology_text(data)
    if kind == record.STREAM:
        s = record.decode_stream(data)
        return (
            f"stream {s.stream} offset {s.offset} time {s.time_us} meta {s.meta!r} "
            f"{body_text(s.payload)}"
        )
    if kind == record.READER_OFFSET:
        return _reader_text(record.decode_reader(data), flags)
    if kind == record.LEASE:
        return _lease_text(record.decode_lease(data, count), flags)
    if kind == record.BATCH:
        return batch_text(data, flags, count)
    if kind == record.TX_COMMIT:
        c = record.decode_tx_commit(data, count)
        return f"transaction {c.transaction} first seqs {c.first_seqs}"
    if kind == record.TX_PART:
        return f"transaction {int.from_bytes(data[:8], 'big')} of {count} operations"
    if kind == record.TX:
        return f"of {count} operations"
    return f"{len(data)} bytes"


def _reader_text(r: record.ReaderData, flags: int) -> str:
    if flags & record.READER_DELETED:
        return f"stream {r.stream} reader {r.reader!r} is forgotten"
    kept = "" if r.kept_from == record.NOT_KEPT else f" keeps from {r.kept_from}"
    return f"stream {r.stream} reader {r.reader!r} offset {r.offset}{kept} time {r.time_ms}"


def _lease_text(found: record.LeaseData, flags: int) -> str:
    what = LEASE_TEXTS.get(flags, f"flags {flags}")
    runs = ", ".join(lease_runs_text(found.runs)) or "no runs"
    return (
        f"{what} queue {found.queue} reader {found.reader!r} ordinal {found.ordinal} time "
        f"{found.time_ms}: {runs}"
    )


def _publish_text(p: record.PublishData) -> str:
    places = ", ".join(f"queue {queue} seq {seq}" for queue, seq in p.places)
    expiry = f" expiry {p.expiry_ms}" if p.expiry_ms else ""
    body = body_text(p.body)
    if p.in_store:
        body = f"body of {p.body_size} bytes in store file {p.store_file}"
    return f"id {p.id:#x} time {p.time}{expiry} to {places}, header {p.header!r} {body}"


def _runs_text(runs: list[record.Run]) -> str:
    texts = [f"{first}+{n} ({size} bytes, {stores} stored)" for first, n, size, stores in runs]
    return ", ".join(texts) or "nothing"


def _stores_text(stores: list[record.StoreRef]) -> str:
    if not stores:
        return ""
    return " store " + ", ".join(f"({id:#x}, file {file}, {size})" for id, file, size in stores)
