"""Dump: any file of a store as text, a line for each thing in it, damaged or not.

For people who look at a store, and for the golden tests, which pin every format: a change of a byte
shows as a changed line. A line is the position in decimal, then what is there. What does not verify
is never passed over; its line begins with DAMAGED. Bodies are shown by size, checksum and their
first bytes.

    <n>.wal, <n>.new      header, chain or vouch, groups and their records; what lies behind the end
    <n>.qi                header, slots (runs of empty ones in one line)
    <n>.qs                header, entries; their seqs come from the .qi beside it
    <n>.rdq, <n>.hint     header, records; header, blocks and entries
    <n>.msg               header, body
    *.page *.idx *Meta    of streams: dump_stream.py
    checkpoint-<n>        header, sections and all that is in them
    CURRENT VERSION PLACES OWNER .vhost .queue_name .query_name .owner LOCK reserve spill_reserve

Which kind a file is, its name says; its numbers are taken from its own header, so a file that was
moved can be dumped, and what its name promises is not checked: that is verify's business.

Failure: a name that is none of these is a NotAStoreError. Whatever the bytes are, there is a dump.
"""

import struct
from collections.abc import Callable, Iterator

from penstock.errors import NotAStoreError, StorageError
from penstock.fast_crc import crc32
from penstock.storage import dump_checkpoint, dump_log, dump_stream, store_file
from penstock.storage.dump_text import at, body_text, is_zero
from penstock.storage.file_queue_backing import HEADER_BYTES as OWN_HEADER_BYTES
from penstock.storage.file_queue_backing import MAGIC as OWN_MAGIC
from penstock.storage.filesystem import FileSystem
from penstock.storage.queue_segment import (
    HAS_ENTRY,
    HEADER_BYTES,
    IN_STORE,
    PREFIX_BYTES,
    SLOT_BYTES,
    Slot,
    decode_slot,
    queue_seed,
)
from penstock.storage.store_scan import StoreScan
from penstock.storage.store_state import RECORD_BYTES

TEXTS = (
    ".owner", ".query_name", ".queue_name", ".vhost", "CURRENT", "LOCK", "OWNER", "PLACES",
    "VERSION",
)  # fmt: skip
_SEGMENT = struct.Struct(">4sHHQIIII")
_PREFIX = struct.Struct(">III")
_RDQ = struct.Struct(">4sHHQIIII")
_HINT = struct.Struct(">4sHHQIIIIQI")
_ENTRY = struct.Struct(">QII")
_OWN = struct.Struct(">4sHHQIQQII")
_OWN_SEED = struct.Struct(">QIQ")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")

SLOTS_MAX = 4096  # of a segment; a damaged header may say anything
SEQ_TRIES_BYTES_MAX = 4096  # an entry of .qs without slot is tried as every seq up to this size


def dump(fs: FileSystem, path: str) -> Iterator[str]:
    """The lines of one file. NotAStoreError for a name that says nothing, OSError."""
    name = path.rpartition("/")[2]
    stem, _, ending = name.rpartition(".")
    kinds: dict[str, Callable[[FileSystem, str], Iterator[str]]] = {
        "qi": _slots, "qs": _entries, "rdq": _records, "hint": _hint, "msg": _own,
    }  # fmt: skip
    if ending in ("wal", "new") and stem.isdecimal():
        return dump_log.dump(fs.read(path))
    if ending in kinds and stem.isdecimal():
        return kinds[ending](fs, path)
    if dump_stream.is_of_stream(path):
        return dump_stream.dump(fs, path)
    if name.startswith("checkpoint-"):
        return dump_checkpoint.dump(fs.read(path))
    if name in TEXTS:
        return iter([at(0, repr(fs.read(path)))])
    if name in ("reserve", "spill_reserve"):
        return _reserve(fs, path)
    raise NotAStoreError(path, "its name is not that of a file of a store")


def dump_tree(fs: FileSystem, path: str) -> Iterator[str]:
    """A file, or every file below a directory, each after a line with its path; files with names
    that say nothing are named only."""
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
    """Its line, and (vhost, queue, segment, slots)."""
    if len(data) < HEADER_BYTES:
        return at(0, f"DAMAGED header, cut off at {len(data)}"), (0, 0, 0, 0)
    found, version, flags, vhost, queue, segment, slots, crc = _SEGMENT.unpack_from(data)
    text = (
        f"header {found!r} version {version} flags {flags} vhost {vhost:016x} queue {queue} "
        f"segment {segment} slots {slots}"
    )
    if crc32(data[:28]) != crc or found != magic or not is_zero(data[32:HEADER_BYTES]):
        text = "DAMAGED " + text
    return at(0, text), (vhost, queue, segment, slots)


def _slots(fs: FileSystem, path: str) -> Iterator[str]:
    data = fs.read(path)
    line, (vhost, queue, segment, slots) = _segment_header(data, b"PSQI")
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
    line, (vhost, queue, segment, slots) = _segment_header(data, b"PSQS")
    yield line
    seed = queue_seed(vhost, queue)
    places = _places(fs, path.removesuffix("qs") + "qi", seed, segment, slots)
    position = HEADER_BYTES
    while position + PREFIX_BYTES <= len(data):
        length, _, header_len = _PREFIX.unpack_from(data, position)
        end = position + PREFIX_BYTES + length
        slot = places.get(position)
        first = segment * slots
        seqs = range(first, first + min(slots, SLOTS_MAX)) if slot is None else [slot.seq]
        found = -1
        if end <= len(data) and (slot is not None or length <= SEQ_TRIES_BYTES_MAX):
            found = next((s for s in seqs if _is_entry(seed, s, data[position:end])), -1)
        if found < 0:
            known = [place for place in places if place > position]
            end = min(known, default=len(data))
            yield at(position, f"DAMAGED entry, {end - position} bytes up to the next known one")
        else:
            content = data[position + PREFIX_BYTES : end]
            yield at(position, _entry_text(found, slot, content, header_len))
        position = end
    if position < len(data):
        yield at(position, f"DAMAGED {len(data) - position} bytes that are no entry")


def _places(fs: FileSystem, path: str, seed: int, segment: int, slots: int) -> dict[int, Slot]:
    """Position in .qs -> the slot that names it."""
    found: dict[int, Slot] = {}
    data = fs.read(path) if fs.exists(path) else b""
    for rel in range(min(slots, SLOTS_MAX)):
        slot = decode_slot(seed, segment * slots + rel, data, HEADER_BYTES + rel * SLOT_BYTES)
        if slot is not None and slot.flags & HAS_ENTRY:
            found[slot.where] = slot
    return found


def _is_entry(seed: int, seq: int, entry: bytes) -> bool:
    _, crc, header_len = _PREFIX.unpack_from(entry)
    start = seed ^ (seq & 0xFFFFFFFF) ^ (seq >> 32)
    return bool(crc32(entry[PREFIX_BYTES:], crc32(_U32.pack(header_len), start)) == crc)


def _entry_text(seq: int, slot: Slot | None, content: bytes, header_len: int) -> str:
    if slot is not None and slot.flags & IN_STORE:
        (file,) = _U32.unpack_from(content)
        return f"entry seq {seq} header {content[4:]!r} body in store file {file}"
    lost = "" if slot is not None else " (no slot names it)"
    body = content[header_len:]
    return f"entry seq {seq} header {content[:header_len]!r} {body_text(body)}{lost}"


# ---- the store ---------------------------------------------------------------------------------


def _records(fs: FileSystem, path: str) -> Iterator[str]:
    file = fs.open(path)
    try:
        head = file.pread(store_file.HEADER_BYTES, 0)
        if len(head) < store_file.HEADER_BYTES:
            yield at(0, f"DAMAGED header, cut off at {len(head)}")
            return
        magic, version, flags, vhost, number, lo, hi, _ = _RDQ.unpack(head)
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
        for start in range(0, len(table.entries), _ENTRY.size):
            id, offset, size = _ENTRY.unpack_from(table.entries, start)
            body = file.pread(size, offset + RECORD_BYTES)
            if offset in faults:
                yield at(offset, f"DAMAGED record: {faults[offset]}")
            else:
                yield at(offset, f"record id {id:#x} {body_text(body)}")
    finally:
        file.close()


def _hint(fs: FileSystem, path: str) -> Iterator[str]:
    data = fs.read(path)
    if len(data) < store_file.HINT_HEADER_BYTES:
        yield at(0, f"DAMAGED header, cut off at {len(data)}")
        return
    magic, version, flags, vhost, number, lo, hi, count, total, _ = _HINT.unpack_from(data)
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
    blocks = -(-count // store_file.BLOCK_ENTRIES)
    for block in range(blocks):
        start = store_file.block_offset(block)
        length = min(count - block * store_file.BLOCK_ENTRIES, store_file.BLOCK_ENTRIES)
        piece = data[start : start + length * _ENTRY.size]
        yield at(start, _block_text(data, start, piece, vhost, number, block))
        for i in range(0, len(piece) // _ENTRY.size * _ENTRY.size, _ENTRY.size):
            id, offset, size = _ENTRY.unpack_from(piece, i)
            yield at(start + i, f"entry id {id:#x} at {offset} size {size}")
    start = store_file.hint_bytes(count) - 4 - 8 * blocks
    index = data[start : start + 8 * blocks]
    yield at(start, _block_text(data, start, index, vhost, number, store_file.INDEX_BLOCK))
    for i in range(0, len(index) // 8 * 8, 8):
        yield at(start + i, f"first id {_U64.unpack_from(index, i)[0]:#x}")
    if len(data) != store_file.hint_bytes(count):
        yield at(len(data), f"DAMAGED: ends here, expected {store_file.hint_bytes(count)} bytes")


def _block_text(data: bytes, start: int, piece: bytes, vhost: int, number: int, block: int) -> str:
    name = "index" if block == store_file.INDEX_BLOCK else f"block {block}"
    crc = data[start + len(piece) : start + len(piece) + 4]
    seed = store_file.block_seed(vhost, number, block)
    is_good = len(crc) == 4 and crc32(piece, seed) == _U32.unpack(crc)[0]
    return name if is_good else f"DAMAGED {name}"


def _own(fs: FileSystem, path: str) -> Iterator[str]:
    data = fs.read(path)
    if len(data) < OWN_HEADER_BYTES:
        yield at(0, f"DAMAGED header, cut off at {len(data)}")
        return
    magic, version, flags, vhost, number, id, size, crc, header_crc = _OWN.unpack_from(data)
    text = (
        f"header {magic!r} version {version} flags {flags} vhost {vhost:016x} number {number} "
        f"id {id:#x} size {size}"
    )
    if magic != OWN_MAGIC or crc32(data[: OWN_HEADER_BYTES - 4]) != header_crc:
        text = "DAMAGED " + text
    yield at(0, text)
    body = data[OWN_HEADER_BYTES : OWN_HEADER_BYTES + size]
    seed = crc32(_OWN_SEED.pack(vhost, number, id))
    if len(body) != size or crc32(_U64.pack(size), crc32(body, seed)) != crc:
        yield at(OWN_HEADER_BYTES, "DAMAGED body")
    else:
        yield at(OWN_HEADER_BYTES, body_text(body))
