"""Dump: prints any file of a store as text, one line for each thing in it, damaged or not.

It serves people who inspect a store, and the golden tests, which pin every format: a changed byte
shows as a changed line. A line is the position in decimal and what is there. What does not verify
is always shown; its line begins with DAMAGED. A body is shown by its size, checksum and first
bytes.

    <n>.wal, <n>.new      header, chain or end marker (`vouch`), groups and their records; bytes
                          after the end
    <n>.qi                header, slots (runs of empty ones in one line)
    <n>.qs                header, entries; their seqs come from the .qi beside it
    <n>.rdq, <n>.hint     header, records; header, blocks and entries
    <n>.msg               header, body
    <base>.page           header, frames; what does not verify up to the end of the file in one line
    <base>.idx            header, rows, block CRCs (shown, not compared)
    allMeta, readMeta, writeMeta, readers/<hash>
    checkpoint-<n>        header, sections and everything in them
    CURRENT, VERSION, PLACES, OWNER, .vhost, .queue_name, .query_name, .owner, LOCK, reserve,
    spill_reserve

The name decides which kind a file is. The numbers come from the file's own header, so a file that
was moved can be dumped; `verify` compares them with the name. Log groups are searched at every
multiple of 64, as in recovery, so damage hides nothing after it. A checkpoint section whose
checksum does not match is not decoded; the next one is searched where its length says. The modules
of the formats decode; `record_types.py` has the words for log records.

Failure: a name of another kind is a NotAStoreError. Any bytes can be dumped.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

from penstock.errors import CorruptionError, NotAStoreError, StorageError
from penstock.fast_crc import crc32
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.index import key_windows, leases
from penstock.storage.index.queue_index import IndexSegment, Section
from penstock.storage.index.queue_segment import (
    HAS_ENTRY,
    HEADER_BYTES,
    IN_STORE,
    MAGIC_QI,
    MAGIC_QS,
    PREFIX,
    PREFIX_BYTES,
    SLOT_BYTES,
    Slot,
    decode_slot,
    is_entry,
    queue_seed,
)
from penstock.storage.index.queue_segment import HEADER as SEGMENT_HEADER
from penstock.storage.index.routing_table import topology_text
from penstock.storage.journal import checkpoint, record_types
from penstock.storage.journal.checkpoint import FILE, SECTION, Manifest
from penstock.storage.journal.record_types import body_text, lease_runs_text, section_lines
from penstock.storage.log import record
from penstock.storage.log.log_file import (
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
from penstock.storage.pages import stream_meta
from penstock.storage.pages.batches import decode_section, is_name
from penstock.storage.pages.page import (
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    decode_frames,
    decode_header,
    decode_index_header,
    decode_row,
    page_seed,
)
from penstock.storage.pages.page import PageRecord as PageRecord
from penstock.storage.store import store_file
from penstock.storage.store.file_queue_backing import HEADER as OWN_HEADER
from penstock.storage.store.file_queue_backing import HEADER_BYTES as OWN_HEADER_BYTES
from penstock.storage.store.file_queue_backing import MAGIC as OWN_MAGIC
from penstock.storage.store.file_queue_backing import body_crc
from penstock.storage.store.store_file import RECORD_BYTES, FileState, StoreScan

TEXTS = (
    ".owner", ".query_name", ".queue_name", ".vhost", "CURRENT", "LOCK", "OWNER", "PLACES",
    "VERSION",
)  # fmt: skip
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_LOG_HEADER = struct.Struct(">4sHHQQQQI")

SLOTS_MAX = 4096  # in a segment; a damaged header may have any number
SEQ_TRIES_BYTES_MAX = 4096  # an entry of .qs without a slot is tried with every seq up to this size


def at(position: int, text: str) -> str:
    """Return one line."""
    return f"{position:10}  {text}"


def is_zero(data: bytes) -> bool:
    """Return whether all bytes are zeros."""
    return not data.strip(b"\0")


def dump(fs: FileSystem, path: str) -> Iterator[str]:
    """Return the lines of one file. Raises NotAStoreError for a name of another kind, OSError."""
    name = path.rpartition("/")[2]
    stem, _, ending = name.rpartition(".")
    kinds: dict[str, Callable[[FileSystem, str], Iterator[str]]] = {
        "qi": _slots, "qs": _entries, "rdq": _records, "hint": _hint, "msg": _own,
    }  # fmt: skip
    if ending in ("wal", "new") and stem.isdecimal():
        return _dump_log(fs.read(path))
    if ending in kinds and stem.isdecimal():
        return kinds[ending](fs, path)
    if is_of_stream(path):
        return _stream_file(path, fs.read(path))
    if name.startswith("checkpoint-"):
        return _dump_checkpoint(fs.read(path))
    if name in TEXTS:
        return iter([at(0, repr(fs.read(path)))])
    if name in ("reserve", "spill_reserve"):
        return _reserve(fs, path)
    raise NotAStoreError(path, "expected the name of a file of a store")


def dump_tree(fs: FileSystem, path: str) -> Iterator[str]:
    """Return the lines of a file, or of every file below a directory, each after a line with its
    path. Files of other kinds are only named."""
    if not fs.is_dir(path):
        yield from dump(fs, path)
        return
    for name in fs.list(path):
        inner = f"{path.rstrip('/')}/{name}"
        if fs.is_dir(inner):
            yield from dump_tree(fs, inner)
            continue
        yield f"== {inner}"
        try:
            yield from dump(fs, inner)
        except NotAStoreError:
            yield f"{fs.size(inner)} bytes that are not ours"


def _reserve(fs: FileSystem, path: str) -> Iterator[str]:
    data = fs.read(path)
    yield at(0, f"{len(data)} bytes, {'all' if is_zero(data) else 'not all'} of them zeros")


# ---- segments of a queue -----------------------------------------------------------------------


def _segment_header(data: bytes, magic: bytes) -> tuple[str, tuple[int, int, int, int]]:
    """Return the line of a header, and its (vhost, queue, segment, slots)."""
    if len(data) < HEADER_BYTES:
        return at(0, f"DAMAGED header, cut off at {len(data)}"), (0, 0, 0, 0)
    found, version, flags, vhost, queue, segment, slots = SEGMENT_HEADER.unpack_from(data)
    text = (
        f"header {found!r} version {version} flags {flags} vhost {vhost:016x} queue {queue} "
        f"segment {segment} slots {slots}"
    )
    crc = _U32.unpack_from(data, SEGMENT_HEADER.size)[0]
    is_good = crc32(data[: SEGMENT_HEADER.size]) == crc and is_zero(data[32:HEADER_BYTES])
    if not is_good or found != magic:
        text = "DAMAGED " + text
    return at(0, text), (vhost, queue, segment, slots)


def _slots(fs: FileSystem, path: str) -> Iterator[str]:
    data = fs.read(path)
    line, (vhost, queue, segment, slots) = _segment_header(data, MAGIC_QI)
    yield line
    seed = queue_seed(vhost, queue)
    empty = 0
    position = HEADER_BYTES
    while position < len(data):
        piece = data[position : position + SLOT_BYTES]
        if len(piece) == SLOT_BYTES and is_zero(piece):
            empty += 1
        else:
            if empty:
                yield at(position - empty * SLOT_BYTES, f"{empty} empty slots")
                empty = 0
            seq = segment * slots + (position - HEADER_BYTES) // SLOT_BYTES
            slot = decode_slot(seed, seq, data, position)
            text = f"DAMAGED slot of seq {seq}" if slot is None else _slot_text(slot)
            yield at(position, text)
        position += SLOT_BYTES
    if empty:
        yield at(position - empty * SLOT_BYTES, f"{empty} empty slots")


def _slot_text(slot: Slot) -> str:
    if slot.flags & HAS_ENTRY:
        where = f"entry at {slot.where}" + (", body in the store" if slot.flags & IN_STORE else "")
    elif slot.flags & IN_STORE:
        where = f"store file {slot.where}"
    else:
        where = "empty"
    expiry = f" expiry {slot.expiry_ms}" if slot.expiry_ms else ""
    return (
        f"slot seq {slot.seq} flags {slot.flags:#04x} id {slot.id:#x} size {slot.size} "
        f"header {slot.header_len} time {slot.time}{expiry}, {where}"
    )


def _entries(fs: FileSystem, path: str) -> Iterator[str]:
    data = fs.read(path)
    line, (vhost, queue, segment, slots) = _segment_header(data, MAGIC_QS)
    yield line
    seed = queue_seed(vhost, queue)
    places = _places(fs, path.removesuffix("qs") + "qi", seed, segment, slots)
    position = HEADER_BYTES
    while position + PREFIX_BYTES <= len(data):
        length, _, header_len = PREFIX.unpack_from(data, position)
        end = position + PREFIX_BYTES + length
        slot = places.get(position)
        first = segment * slots
        seqs = range(first, first + min(slots, SLOTS_MAX)) if slot is None else [slot.seq]
        found = -1
        if end <= len(data) and (slot is not None or length <= SEQ_TRIES_BYTES_MAX):
            found = next((s for s in seqs if is_entry(seed, s, data[position:end])), -1)
        if found < 0:
            known = [place for place in places if place > position]
            end = min(known, default=len(data))
            yield at(position, f"DAMAGED entry, {end - position} bytes up to the next known one")
        else:
            content = data[position + PREFIX_BYTES : end]
            yield at(position, _entry_text(found, slot, content, header_len))
        position = end
    if position < len(data):
        yield at(position, f"DAMAGED {len(data) - position} bytes that are not an entry")


def _places(fs: FileSystem, path: str, seed: int, segment: int, slots: int) -> dict[int, Slot]:
    """Return position in .qs -> the slot that names it."""
    found: dict[int, Slot] = {}
    data = fs.read(path) if fs.exists(path) else b""
    for rel in range(min(slots, SLOTS_MAX)):
        slot = decode_slot(seed, segment * slots + rel, data, HEADER_BYTES + rel * SLOT_BYTES)
        if slot is not None and slot.flags & HAS_ENTRY:
            found[slot.where] = slot
    return found


def _entry_text(seq: int, slot: Slot | None, content: bytes, header_len: int) -> str:
    if slot is not None and slot.flags & IN_STORE:
        (file,) = _U32.unpack_from(content)
        return f"entry seq {seq} header {content[4:]!r} body in store file {file}"
    lost = "" if slot is not None else " (no slot names it)"
    body = content[header_len:]
    return f"entry seq {seq} header {content[:header_len]!r} {body_text(body)}{lost}"


# ---- the store ---------------------------------------------------------------------------------


def _records(fs: FileSystem, path: str) -> Iterator[str]:
    with closing(fs.open(path)) as file:
        head = file.pread(store_file.HEADER_BYTES, 0)
        if len(head) < store_file.HEADER_BYTES:
            yield at(0, f"DAMAGED header, cut off at {len(head)}")
            return
        magic, version, flags, vhost, number, lo, hi = store_file.RDQ_HEADER.unpack_from(head)
        text = (
            f"header {magic!r} version {version} flags {flags} vhost {vhost:016x} "
            f"number {number} answers for {lo}..{hi}"
        )
        try:
            store_file.decode_header(path, head, vhost, number)
        except StorageError as error:
            text = f"DAMAGED {text}: {getattr(error, 'reason', error)}"
        yield at(0, text)
        scan = StoreScan(file, vhost, file.size())
        table = store_file.StoreFile(number, lo, hi)
        scan.run(table)
        faults = {fault.position: fault.reason for fault in scan.damage}
        for start in range(0, len(table.entries), store_file.ENTRY_BYTES):
            id, offset, size = store_file.ENTRY.unpack_from(table.entries, start)
            body = file.pread(size, offset + RECORD_BYTES)
            if offset in faults:
                yield at(offset, f"DAMAGED record: {faults[offset]}")
            else:
                yield at(offset, f"record id {id:#x} {body_text(body)}")


def _hint(fs: FileSystem, path: str) -> Iterator[str]:
    data = fs.read(path)
    if len(data) < store_file.HINT_HEADER_BYTES:
        yield at(0, f"DAMAGED header, cut off at {len(data)}")
        return
    fields = store_file.HINT_HEADER.unpack_from(data)
    magic, version, flags, vhost, number, lo, hi, count, total = fields
    text = (
        f"header {magic!r} version {version} flags {flags} vhost {vhost:016x} number {number} "
        f"answers for {lo}..{hi}, {count} entries, {total} bytes of records"
    )
    try:
        store_file.decode_hint_header(path, data, vhost, number)
    except StorageError as error:
        yield at(0, f"DAMAGED {text}: {getattr(error, 'reason', error)}")
        return
    yield at(0, text)
    blocks = store_file.block_count(count)
    for block in range(blocks):
        start = store_file.block_offset(block)
        length = min(count - block * store_file.BLOCK_ENTRIES, store_file.BLOCK_ENTRIES)
        length *= store_file.ENTRY_BYTES
        piece = data[start : start + length]
        yield at(start, _block_text(data, start, length, vhost, number, block))
        for i in range(0, len(piece) - store_file.ENTRY_BYTES + 1, store_file.ENTRY_BYTES):
            id, offset, size = store_file.ENTRY.unpack_from(piece, i)
            yield at(start + i, f"entry id {id:#x} at {offset} size {size}")
    start = store_file.hint_bytes(count) - 4 - 8 * blocks
    index = data[start : start + 8 * blocks]
    yield at(start, _block_text(data, start, 8 * blocks, vhost, number, store_file.INDEX_BLOCK))
    for i in range(0, len(index) // 8 * 8, 8):
        yield at(start + i, f"first id {_U64.unpack_from(index, i)[0]:#x}")
    if len(data) != store_file.hint_bytes(count):
        yield at(len(data), f"DAMAGED: ends here, expected {store_file.hint_bytes(count)} bytes")


def _block_text(data: bytes, start: int, length: int, vhost: int, number: int, block: int) -> str:
    name = "index" if block == store_file.INDEX_BLOCK else f"block {block}"
    piece = data[start : start + length + 4]
    is_good = store_file.verified_block(piece, length, vhost, number, block) is not None
    return name if is_good else f"DAMAGED {name}"


def _own(fs: FileSystem, path: str) -> Iterator[str]:
    data = fs.read(path)
    if len(data) < OWN_HEADER_BYTES:
        yield at(0, f"DAMAGED header, cut off at {len(data)}")
        return
    magic, version, flags, vhost, number, id, size, crc = OWN_HEADER.unpack_from(data)
    text = (
        f"header {magic!r} version {version} flags {flags} vhost {vhost:016x} number {number} "
        f"id {id:#x} size {size}"
    )
    header_crc = _U32.unpack_from(data, OWN_HEADER.size)[0]
    if magic != OWN_MAGIC or crc32(data[: OWN_HEADER.size]) != header_crc:
        text = "DAMAGED " + text
    yield at(0, text)
    body = data[OWN_HEADER_BYTES : OWN_HEADER_BYTES + size]
    if len(body) != size or body_crc(vhost, number, id, body) != crc:
        yield at(OWN_HEADER_BYTES, "DAMAGED body")
    else:
        yield at(OWN_HEADER_BYTES, body_text(body))


def _dump_log(data: bytes) -> Iterator[str]:
    if len(data) < FIRST_GROUP_OFFSET:
        yield at(0, f"DAMAGED header, cut off at {len(data)}")
        return
    magic, version, flags, vhost, number, size, salt, crc = _LOG_HEADER.unpack_from(data)
    seed = segment_seed(vhost, number, salt)
    text = (
        f"header {magic!r} version {version} flags {flags} vhost {vhost:016x} number {number} "
        f"size {size} salt {salt:016x}"
    )
    if magic != b"PWAL" or crc32(data[: _LOG_HEADER.size - 4], seed) != crc:
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
        yield from _log_records(data, position, group, seed)
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


def _log_records(data: bytes, start: int, group: GroupHeader, seed: int) -> Iterator[str]:
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
    """Return the operations of a transaction."""
    if op.type not in (record.TX, record.TX_PART):
        return
    try:
        for one in record.decode_ops(op.data, op.count, 8 if op.type == record.TX_PART else 0):
            yield op_text(one)
    except ValueError as error:
        yield f"DAMAGED: {error}"


def op_text(op: record.Op) -> str:
    """Return one operation in words."""
    name = record.type_name(op.type)
    if not record.is_known(op.type):
        return f"{name} {len(op.data)} bytes"
    try:
        return f"{name} {record_types.decode(op).text()}"
    except ValueError as error:
        return f"DAMAGED {name}: {error}"


def _dump_checkpoint(data: bytes) -> Iterator[str]:
    if len(data) < FILE.size:
        yield at(0, f"DAMAGED header, cut off at {len(data)}")
        return
    magic, version, flags, vhost, number, crc = FILE.unpack_from(data)
    text = (
        f"header {magic!r} version {version} flags {flags}"
        f"{' (clean)' if flags & checkpoint.CLEAN else ''} vhost {vhost:016x} number {number}"
    )
    is_good = magic == checkpoint.MAGIC and crc32(data[: FILE.size - 4]) == crc
    yield at(0, text if is_good else "DAMAGED " + text)
    head = Manifest().head
    position, place = FILE.size, 0
    while position < len(data):
        if position + SECTION.size > len(data):
            yield at(position, f"DAMAGED, cut off at {len(data)}")
            return
        kind, length, crc = SECTION.unpack_from(data, position)
        section = data[position + SECTION.size : position + SECTION.size + length]
        text = f"section {place} {_section_name(kind)}, {length} bytes"
        seed = checkpoint.section_seed(vhost, number, kind, place)
        if len(section) != length or crc32(section, seed) != crc:
            yield at(position, "DAMAGED " + text)
        else:
            yield at(position, text)
            found = Manifest(head=head)
            try:
                for line in _section_lines(found, kind, section):
                    yield at(position, "  " + line)
            except (ValueError, struct.error, IndexError) as error:
                yield at(position, f"  DAMAGED: {error}")
            head = found.head
        position += SECTION.size + length
        place += 1


def _section_name(kind: int) -> str:
    if kind == checkpoint.END:
        return "END"
    return _SECTIONS[kind][0] if kind in _SECTIONS else str(kind)


def _section_lines(found: Manifest, kind: int, data: bytes) -> Iterable[str]:
    """Decode a section into an empty Manifest. Return its lines."""
    if kind == checkpoint.END:
        return [f"{int.from_bytes(data, 'big')} sections before it"]
    checkpoint.apply_section(found, kind, data)
    return _SECTIONS[kind][1](found)


def _head(found: Manifest) -> Iterator[str]:
    head = found.head
    yield (
        f"cut {head.cut_lsn} log segment {head.log_segment} position {head.log_position} "
        f"start {head.start} next queue {head.next_queue} slots {head.segment_slots} "
        f"next store file {head.next_store_file} next own file {head.next_own_file}"
    )


def _reaping(found: Manifest) -> Iterator[str]:
    for (queue, segment), bits in found.reaping.items():
        yield f"queue {queue} segment {segment}: purged slots {bits.hex()}"


def _leases(found: Manifest) -> Iterator[str]:
    for lease in map(leases.decode, found.leases):
        yield (
            f"queue {lease.queue} reader {lease.reader!r} id {lease.id.hex()} committed "
            f"{lease.committed} next {lease.next} latest time {lease.last_s}"
            f"{', is being released' if lease.is_releasing else ''}"
        )
        for one in lease.slices:
            runs = ", ".join(lease_runs_text(one.runs()))
            yield f"  from {one.ordinal} time {one.time_ms} floor {one.floor_s}: {runs}"


def _streams(found: Manifest) -> Iterator[str]:
    for number, section in found.streams.items():
        p = section.position
        yield (
            f"stream {number} id {section.stream_id.hex()} first {p.first_offset} next "
            f"{p.next_offset} page {p.page_base} position {p.page_bytes} last time {p.last_time_us}"
        )
        for name, reader in section.readers.items():
            kept = "" if reader.kept_from is None else f" keeps from {reader.kept_from}"
            yield f"  reader {name!r} offset {reader.offset}{kept} time {reader.time_ms}"


def _queues(found: Manifest) -> Iterator[str]:
    for number, section in found.queues.items():
        yield from _queue(number, section, found.head.segment_slots)


def _queue(number: int, section: Section, slots: int) -> Iterator[str]:
    yield (
        f"queue {number} next seq {section.next_seq} mark {section.mark} "
        f"count {section.count} bytes {section.bytes}"
    )
    for segment in section.segments.values():
        yield "  " + _segment_text(segment, slots)
    for seq, row in section.rows.items():
        m = row.message
        expiry = f" expiry {m.expiry_ms}" if m.expiry_ms else ""
        yield (
            f"  row seq {seq} id {m.id:#x} size {m.size} time {m.time}{expiry} "
            f"store file {m.store_file} body file {row.body_file} header {m.header!r}"
        )
    for seq, attempts in section.attempts.items():
        yield f"  attempts seq {seq}: {attempts}"


def _segment_text(segment: IndexSegment, slots: int) -> str:
    alive = "all" if segment.bitmap is None else f"bitmap {segment.bitmap.hex()}"
    return (
        f"segment {segment.number} seqs {segment.lo}..{segment.hi} of {slots}, {alive}, count "
        f"{segment.count} bytes {segment.bytes} stores {segment.stores} "
        f"latest expiry {segment.expiry_ms}"
    )


def _states(found: Manifest) -> Iterator[str]:
    for data in found.store:
        yield from _state(FileState.decode(data))


def _state(state: FileState) -> Iterator[str]:
    own = state.own
    if own is not None:
        yield (
            f"own files: next {own.next_number} base {own.base} live {own.live_count} "
            f"bytes {own.live_bytes}"
        )
        for number in own.numbers():
            yield f"  file {number} references {own.refs(number)}"
        return
    counts = state.counts
    yield (
        f"file {state.number} answers for {state.lo}..{state.hi} "
        f"{'sealed' if state.is_sealed else 'unsealed'} entries {counts.count} live "
        f"{counts.live_count} bytes {state.total_bytes} valid {counts.valid_bytes}"
    )
    ids = state.ids
    for place in range(counts.count):
        if counts.refs(place):
            id = "" if ids is None else f" id {ids[place]:#x}"
            yield f"  entry {place}{id} references {counts.refs(place)}"


def _batches(found: Manifest) -> Iterator[str]:
    for data in found.batches:
        yield from section_lines(decode_section(data))


def _windows(found: Manifest) -> Iterator[str]:
    for data in found.windows:
        window, times = key_windows.decode(data)
        yield f"window {window.name!r} keys {len(times)}"
        for key, until_ms in times:
            yield f"  key {key.hex()} until {until_ms}"


# kind -> (name, the lines of a Manifest with one such section)
_SECTIONS: dict[int, tuple[str, Callable[[Manifest], Iterable[str]]]] = {
    checkpoint.HEAD: ("HEAD", _head),
    checkpoint.TOPOLOGY: ("TOPOLOGY", lambda found: map(topology_text, found.topology)),
    checkpoint.QUEUE: ("QUEUE", _queues),
    checkpoint.STORE: ("STORE", _states),
    checkpoint.REAPING: ("REAPING", _reaping),
    checkpoint.STREAM: ("STREAM", _streams),
    checkpoint.LEASE: ("LEASE", _leases),
    checkpoint.BATCH: ("BATCH", _batches),
    checkpoint.WINDOW: ("WINDOW", _windows),
}


METAS = ("allMeta", "readMeta", "writeMeta")


def is_of_stream(path: str) -> bool:
    """Return whether the name is that of a file of a stream."""
    directory, _, name = path.rpartition("/")
    stem, _, ending = name.rpartition(".")
    is_page = ending in ("page", "idx") and len(stem) == 20 and stem.isdecimal()
    is_staged = ending in ("page", "idx") and is_name(stem + ".page")
    return is_page or is_staged or name in METAS or directory.rpartition("/")[2] == "readers"


def _stream_file(path: str, data: bytes) -> Iterator[str]:
    if path.endswith(".page"):
        return _dump_page(path, data)
    if path.endswith(".idx"):
        return _dump_index(path, data)
    return _dump_meta(path, data)


def _dump_page(path: str, data: bytes) -> Iterator[str]:
    try:
        header = decode_header(path, data)
    except CorruptionError as error:
        yield f"DAMAGED {at(error.position, error.reason)}"
        return
    yield at(
        0,
        f"{'staged ' if header.is_staged else ''}page {header.id:016x} of stream {header.number}, "
        f"from offset {header.base}, time {header.base_time_us}",
    )
    seed = page_seed(header.id)
    position, rel = PAGE_HEADER_BYTES, 0
    while position < len(data):
        out: list[PageRecord] = []
        end, need, fault = decode_frames(data, position, seed, header.base, rel, 1, 0, out)
        if not out:
            text = fault or f"a frame of {need} bytes is cut off"
            yield f"DAMAGED {at(position, f'{text}; {len(data) - position} bytes are left')}"
            return
        found = out[0]
        time_us = header.base_time_us if header.is_staged else found.time_us
        yield at(
            position,
            f"record {found.offset}, time {time_us}, meta of {len(found.meta)} bytes, "
            f"crc {crc32(found.meta):08x}, {body_text(found.payload)}",
        )
        position, rel = end, rel + 1


def _dump_index(path: str, data: bytes) -> Iterator[str]:
    try:
        header = decode_index_header(path, data)
    except CorruptionError as error:
        yield f"DAMAGED {at(error.position, error.reason)}"
        return
    rest = data[INDEX_HEADER_BYTES:]
    text = f"index of page {header.id:016x}, from offset {header.base}"
    if not header.is_sealed:
        yield at(0, f"{text}, not sealed")
        count = len(rest) // INDEX_ROW_BYTES
    else:
        count = min(header.count, len(rest) // INDEX_ROW_BYTES)
        times = f"times {header.first_time_us} to {header.last_time_us}"
        yield at(0, f"{text}, {header.count} records, {header.page_bytes} bytes, {times}")
        if crc32(rest) != header.rows_crc or len(data) != header.file_bytes():
            yield f"DAMAGED {at(INDEX_HEADER_BYTES, 'the rows and CRCs do not verify')}"
    for i in range(count):
        start, size, time_us = decode_row(rest, i * INDEX_ROW_BYTES)
        place = INDEX_HEADER_BYTES + i * INDEX_ROW_BYTES
        yield at(place, f"record {header.base + i} at {start}, payload {size}, time {time_us}")
    position = INDEX_HEADER_BYTES + count * INDEX_ROW_BYTES
    crcs = (len(data) - position) // 4 if header.is_sealed else 0
    for block in range(crcs):
        crc = int.from_bytes(data[position : position + 4], "little")
        yield at(position, f"block {block}, crc {crc:08x}")
        position += 4
    if position < len(data):
        yield f"DAMAGED {at(position, f'{len(data) - position} bytes that are not a row')}"


def _dump_meta(path: str, data: bytes) -> Iterator[str]:
    name = path.rpartition("/")[2]
    try:
        if name == "allMeta":
            meta = stream_meta.decode_all(path, data)
            text = f"stream {meta.number}, id {meta.id.hex()}, pages of {meta.page_bytes} bytes"
        elif name == "readMeta":
            text = f"the first page begins with offset {stream_meta.decode_tail(path, data)}"
        elif name == "writeMeta":
            head = stream_meta.decode_head(path, data)
            text = (
                f"head at offset {head.next_offset}, byte {head.page_bytes} of page "
                f"{head.page_base}, time {head.last_time_us}"
            )
        else:
            reader, place = stream_meta.decode_reader(path, data)
            kept = "nothing" if place.kept_from is None else f"from {place.kept_from} on"
            text = f"reader {reader!r} at offset {place.offset}, keeps {kept}"
    except CorruptionError as error:
        yield f"DAMAGED {at(error.position, error.reason)}"
        return
    yield at(0, text)
