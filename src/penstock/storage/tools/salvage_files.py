"""Reading the damaged files of a store for salvage: log, bodies and checkpoint. Writes nothing.

The log. Recovery stops at the first bad record; salvage reads every record that verifies. In each
segment groups are searched at every multiple of 64; in a group with a bad record the next good one
is found by its LSN, which is known. Records are ordered by LSN. A gap between them is reported, and
so are missing records after the last one if a header states that more was on the disk.

A segment whose header is damaged has lost its salt, which seeds every checksum in it. But CRC-32
can be run backwards: the first group header and its checksum give the seed, which is accepted if a
record of that group verifies with it.

Records that a chain places after the end of the log were cut by a recovery and never confirmed;
their LSNs were given again. They are left out, as in recovery. So is a torn tail: everything after
a gap that no header covers.

Bodies. The checksum of a body is seeded with vhost and id, so a body that verifies is the right one
in whatever file it is. `BodyFinder` asks the files that answer for the file number of an address.
It reads hints that verify and scans the other files; a file that has lost its header is asked for
every body. A scan follows the lengths of records, and damage to one may hide those after it, so a
body that the scan does not find is searched by the bytes of its id.

A checkpoint is a sequence of sections, each with a checksum. `read_checkpoint` takes those that
verify; after a section with a damaged length it searches the next one byte by byte.

RAM: one log segment and all records after the cut; the tables of a few store files and one file;
one checkpoint.
"""

import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from penstock.errors import CorruptionError, StorageError
from penstock.fast_crc import crc32
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.journal import checkpoint
from penstock.storage.journal.checkpoint import FILE, SECTION, Manifest
from penstock.storage.journal.record_types import stored_bodies
from penstock.storage.log import record
from penstock.storage.log.log_file import (
    ALIGN_BYTES,
    CHAIN_OFFSET,
    FIRST_GROUP_OFFSET,
    GROUP_HEADER_BYTES,
    SEGMENT_SUFFIX,
    Chain,
    GroupHeader,
    decode_chain,
    decode_group_header,
    decode_segment_header,
    segment_number,
)
from penstock.storage.log.record import RECORD_HEADER_BYTES, Record
from penstock.storage.store.file_queue_backing import FileQueueBacking
from penstock.storage.store.message_store import read_table
from penstock.storage.store.store_file import (
    BODY_BYTES_MAX,
    ENTRY,
    HEADER_BYTES,
    HINT_HEADER_BYTES,
    OWN_FILE,
    RECORD_BYTES,
    StoreFile,
    StoreScan,
    decode_header,
    decode_hint_header,
    find_entry,
    record_fault,
    record_seed,
)
from penstock.storage.tools.verify import Problem

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_GROUP_FIXED: Final = GROUP_HEADER_BYTES - 4


@dataclass(slots=True, eq=False)
class FoundRecord:
    """A record and the file that it is in."""

    path: str
    record: Record


class FoundLog:
    """The records, by LSN. claim: the highest LSN that a header states was on the disk, and
    where."""

    def __init__(self) -> None:
        self.records: list[FoundRecord] = []
        self.claim: int = -1
        self.claim_path: str = ""
        self.claim_position: int = 0


def read_log(fs: FileSystem, directory: str, vhost: int, losses: list[Problem]) -> FoundLog:
    """Return all records that verify; add damage to `losses`. Raises OSError."""
    log = FoundLog()
    by_lsn: dict[int, FoundRecord] = {}
    names = fs.list(directory) if fs.is_dir(directory) else []
    for name in sorted(names):
        if not name.endswith(SEGMENT_SUFFIX) or not segment_number(name):
            continue
        path = f"{directory}/{name}"
        segment = _Segment(path, fs.read(path), vhost, segment_number(name))
        records = segment.records()
        losses += segment.losses
        if segment.chain is not None and not segment.chain.is_end_marker:
            # Segments are in the order of their numbers; the chain says where this one continues.
            for lsn in [lsn for lsn in by_lsn if lsn > segment.chain.prev_lsn]:
                del by_lsn[lsn]
        for found in records:
            by_lsn[found.lsn] = FoundRecord(path, found)
        if segment.claim > log.claim:
            log.claim, log.claim_path = segment.claim, path
            log.claim_position = segment.claim_position
    log.records = [by_lsn[lsn] for lsn in sorted(by_lsn)]
    return log


def cut_torn_tail(log: FoundLog, after_lsn: int, is_there: Callable[[int, int], bool]) -> int:
    """Remove what recovery would remove, because it was never confirmed: after the last LSN that a
    header states was on the disk, everything from the first record on that is missing or names a
    stored body (file, id) that is missing. Return how many records were removed."""
    last = after_lsn
    for i, one in enumerate(log.records):
        lsn = one.record.lsn
        if lsn <= after_lsn:
            continue
        is_torn = last >= 0 and lsn != last + 1 and last >= log.claim
        if is_torn or (lsn > log.claim and not _has_bodies(one.record, is_there)):
            left_out = len(log.records) - i
            del log.records[i:]
            return left_out
        last = lsn
    return 0


def _has_bodies(one: Record, is_there: Callable[[int, int], bool]) -> bool:
    """Return whether the stored bodies that the record publishes are there."""
    try:
        return all(is_there(file, id) for file, id in stored_bodies(one))
    except ValueError:
        return False


def gaps(log: FoundLog, after_lsn: int) -> list[Problem]:
    """Return the gaps above `after_lsn`; -1: nothing is missing before the first record."""
    missing: list[Problem] = []
    last = after_lsn
    for one in log.records:
        lsn = one.record.lsn
        if lsn <= after_lsn:
            continue
        if 0 <= last < lsn - 1:
            text = f"records {last + 1} to {lsn - 1}, which belong before this one, are lost"
            missing.append(Problem(one.path, one.record.offset, text))
        last = lsn
    if log.claim > max(last, 0):
        text = f"record {log.claim} was on the disk; all after {last} are lost"
        missing.append(Problem(log.claim_path, log.claim_position, text))
    return missing


def unwind(data: bytes, crc: int) -> int:
    """Return the seed with which crc32(data, seed) is `crc`."""
    register = crc ^ 0xFFFFFFFF
    for byte in reversed(data):
        entry = _BY_TOP[register >> 24]
        register = ((register ^ _TABLE[entry]) << 8 & 0xFFFFFFFF) | (entry ^ byte)
    return register ^ 0xFFFFFFFF


def _table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ 0xEDB88320 if byte & 1 else byte >> 1
        table.append(byte)
    return table


_TABLE: Final = _table()
_BY_TOP: Final = {value >> 24: i for i, value in enumerate(_TABLE)}


class _Segment:
    """One log segment, whole in RAM."""

    def __init__(self, path: str, data: bytes, vhost: int, number: int) -> None:
        self.path = path
        self.losses: list[Problem] = []
        self.chain: Chain | None = None
        self.claim = -1
        self.claim_position = CHAIN_OFFSET
        self._data = data
        self._number = number
        self._seed = self._find_seed(vhost)
        if self._seed >= 0 and len(data) >= FIRST_GROUP_OFFSET:
            self.chain = decode_chain(data[CHAIN_OFFSET:], self._seed)
            if self.chain is not None:
                self.claim = max(self.chain.prev_lsn, self.chain.durable_lsn)

    def _find_seed(self, vhost: int) -> int:
        """Return the seed of the checksums, or -1."""
        try:
            return decode_segment_header(self._data, self.path, vhost, self._number)[1]
        except StorageError as error:
            reason = str(getattr(error, "reason", error))
        self._lose(0, reason)
        fixed = self._data[FIRST_GROUP_OFFSET : FIRST_GROUP_OFFSET + _GROUP_FIXED]
        crc = self._data[FIRST_GROUP_OFFSET + _GROUP_FIXED :][:4]
        if fixed[:4] == b"PGRP" and len(crc) == 4:
            seed = unwind(fixed, _U32.unpack(crc)[0])
            first = FIRST_GROUP_OFFSET + GROUP_HEADER_BYTES
            length = int.from_bytes(self._data[first : first + 4], "big")
            if record.verifies(self._data[first : first + length], seed):
                return seed
        self._lose(FIRST_GROUP_OFFSET, "without its header no record in it can be verified")
        return -1

    def _lose(self, position: int, text: str) -> None:
        self.losses.append(Problem(self.path, position, text))

    def records(self) -> list[Record]:
        """Return every record that verifies, in the order of the file."""
        found: list[Record] = []
        data, seed = self._data, self._seed
        at = data.find(b"PGRP", FIRST_GROUP_OFFSET) if seed >= 0 else -1
        end = FIRST_GROUP_OFFSET  # of the last group
        while at >= 0:
            group = decode_group_header(data, at, seed) if at % ALIGN_BYTES == 0 else None
            if group is None or at < end:
                at = data.find(b"PGRP", at + 1)
                continue
            if group.durable_lsn > self.claim:
                self.claim, self.claim_position = group.durable_lsn, at
            start = at + GROUP_HEADER_BYTES
            end = start + group.length
            self._read_group(group, start, min(end, len(data)), found)
            at = data.find(b"PGRP", at + GROUP_HEADER_BYTES)
        return found

    def _read_group(self, group: GroupHeader, start: int, end: int, found: list[Record]) -> None:
        position = start
        upper = group.first_lsn + group.count
        for lsn in range(group.first_lsn, upper):
            if position < 0:
                position = self._next_record(lsn, start, end)
                if position < 0:
                    continue
            one = self._record_at(position, end)
            if one is None or one.lsn != lsn:
                self._lose(position, f"record {lsn} cannot be read")
                position = -1
                continue
            found.append(one)
            position += RECORD_HEADER_BYTES + len(one.data)

    def _record_at(self, position: int, end: int) -> Record | None:
        if end - position < RECORD_HEADER_BYTES:
            return None
        length = int.from_bytes(self._data[position : position + 4], "big")
        if not RECORD_HEADER_BYTES <= length <= end - position:
            return None
        try:
            whole = self._data[position : position + length]
            return record.decode(whole, self._seed, self._number, position)
        except record.RecordError:
            return None

    def _next_record(self, lsn: int, start: int, end: int) -> int:
        """Return the position of record `lsn`, found by the LSN that it holds, or -1."""
        wanted = _U64.pack(lsn)
        at = self._data.find(wanted, start + 8, end)
        while at >= 0:
            one = self._record_at(at - 8, end)
            if one is not None and one.lsn == lsn:
                return at - 8
            at = self._data.find(wanted, at + 1, end)
        return -1


TABLES_MAX: Final = 8
LENGTH_BYTES: Final = 4  # before the id of a record
PREFIX_BYTES: Final = 5  # of an id: number of the start, and what changes every 16 M messages


@dataclass(slots=True, eq=False)
class FoundCheckpoint:
    """What verifies of a checkpoint, and whether its topology is part of that."""

    manifest: Manifest
    has_topology: bool = False


class BodyFinder:
    """Finds the bodies of one store directory by address."""

    def __init__(self, fs: FileSystem, directory: str, vhost: int) -> None:
        self._fs = fs
        self._directory = directory
        self._vhost = vhost
        self._seed = record_seed(vhost)
        self._own = FileQueueBacking(fs, directory, vhost)
        self._ranges: dict[int, tuple[int, int]] = {}  # file -> numbers it answers for
        self._tables: dict[tuple[int, bool], bytes] = {}  # (file, scanned) -> sorted entries
        # (file, first bytes of ids) -> id -> (position, size), of records that verify
        self._found: dict[tuple[int, bytes], dict[int, tuple[int, int]]] = {}
        for name in fs.list(directory):
            stem, _, ending = name.rpartition(".")
            if ending == "rdq" and stem.isdecimal():
                self._ranges[int(stem)] = self._range(int(stem))

    def read(self, file: int, id: int) -> bytes:
        """Return the body. Raises CorruptionError if it is not found, OSError."""
        if file & OWN_FILE:
            return self._own.read(file, id)
        fault: CorruptionError | None = None
        for number in sorted(self._ranges, reverse=True):
            lo, hi = self._ranges[number]
            if not lo <= file <= hi:
                continue
            for is_scanned in (False, True):
                table = self._table(number, is_scanned)
                at = find_entry(table, id)
                if at >= 0:
                    _, offset, size = ENTRY.unpack_from(table, at)
                    body, why = self._body(number, id, offset, size)
                    if not why:
                        return body
                    fault = CorruptionError(self._path(number), offset, why)
            offset, size = self._search(number, id)
            if offset:
                return self._body(number, id, offset, size)[0]
        if fault is not None:
            raise fault
        raise CorruptionError(self._path(file), 0, f"body {id:#x} is not in it")

    def has(self, file: int, id: int) -> bool:
        """Return whether `read` finds the body."""
        try:
            self.read(file, id)
        except CorruptionError:
            return False
        return True

    def _body(self, number: int, id: int, offset: int, size: int) -> tuple[bytes, str]:
        with closing(self._fs.open(self._path(number))) as handle:
            found = handle.pread(RECORD_BYTES + size, offset)
        return found[RECORD_BYTES:], record_fault(self._seed, found, id)

    def _search(self, number: int, id: int) -> tuple[int, int]:
        """Return (position, size) of a body, found by its id alone; (0, 0) if no record verifies.
        One pass finds all bodies whose ids begin with the same bytes, mostly all of a file."""
        prefix = id.to_bytes(8, "big")[:PREFIX_BYTES]
        found = self._found.get((number, prefix))
        if found is None:
            found = self._records_with(number, prefix)
            if len(self._found) >= TABLES_MAX:
                del self._found[next(iter(self._found))]
            self._found[number, prefix] = found
        return found.get(id, (0, 0))

    def _records_with(self, number: int, prefix: bytes) -> dict[int, tuple[int, int]]:
        """Return id -> (position, size) of the records that verify and whose ids begin so."""
        data = self._fs.read(self._path(number))
        found: dict[int, tuple[int, int]] = {}
        at = data.find(prefix, HEADER_BYTES + LENGTH_BYTES)
        while at >= 0:
            start = at - LENGTH_BYTES
            size = int.from_bytes(data[start:at], "big")
            id = int.from_bytes(data[at : at + 8], "big")
            stop = start + RECORD_BYTES + size
            is_whole = size <= BODY_BYTES_MAX and stop <= len(data)
            if is_whole and not record_fault(self._seed, data[start:stop], id):
                found[id] = (start, size)
                at = data.find(prefix, stop)
            else:
                at = data.find(prefix, at + 1)
        return found

    def _path(self, number: int) -> str:
        return f"{self._directory}/{number}.rdq"

    def _range(self, number: int) -> tuple[int, int]:
        """Return the range of the header, or of the hint's header, or all numbers."""
        hint = f"{self._directory}/{number}.hint"
        try:
            head = self._head(self._path(number), HEADER_BYTES)
            return decode_header(self._path(number), head, self._vhost, number)
        except StorageError:
            pass
        try:
            head = self._head(hint, HINT_HEADER_BYTES)
            lo, hi, _, _ = decode_hint_header(hint, head, self._vhost, number)
        except (StorageError, FileNotFoundError):
            return (0, OWN_FILE - 1)
        return (lo, hi)

    def _head(self, path: str, length: int) -> bytes:
        with closing(self._fs.open(path)) as handle:
            return handle.pread(length, 0)

    def _table(self, number: int, is_scanned: bool) -> bytes:
        key = (number, is_scanned)
        table = self._tables.pop(key, None)
        if table is None:
            table = self._scan(number) if is_scanned else self._hint(number)
            if len(self._tables) >= TABLES_MAX:
                del self._tables[next(iter(self._tables))]
        self._tables[key] = table
        return table

    def _hint(self, number: int) -> bytes:
        path = f"{self._directory}/{number}.hint"
        try:
            return read_table(self._fs, path, self._vhost, number)
        except (StorageError, FileNotFoundError):
            return b""

    def _scan(self, number: int) -> bytes:
        with closing(self._fs.open(self._path(number))) as handle:
            found = StoreFile(number, number, number)
            StoreScan(handle, self._vhost, handle.size()).run(found)
            return found.sorted_table()[0]


# ---- checkpoint --------------------------------------------------------------------------------


def read_checkpoint(
    fs: FileSystem, path: str, vhost: int, slots: int, losses: list[Problem]
) -> FoundCheckpoint | None:
    """Return what verifies of the latest usable checkpoint; None if there is none.

    slots: of a segment, if the checkpoint no longer states it.
    """
    numbers: list[int] = []
    for name in fs.list(path):
        digits = name.removeprefix("checkpoint-")
        if digits != name and digits.isdecimal():
            numbers.append(int(digits))
    numbers.sort(reverse=True)
    try:
        current = checkpoint.current(fs, path)
        if current:
            numbers = [current, *(n for n in numbers if n != current)]
        elif numbers:
            losses.append(Problem(path + "/CURRENT", 0, "it is missing"))
    except CorruptionError as error:
        losses.append(Problem(error.path, error.position, error.reason))
    for number in numbers:
        at = f"{path}/checkpoint-{number}"
        if not fs.exists(at):
            losses.append(Problem(at, 0, "CURRENT names this checkpoint, and it is missing"))
            continue
        found = _read_sections(at, fs.read(at), number, vhost, slots, losses)
        if found is not None:
            return found
    return None


def _read_sections(
    path: str, data: bytes, number: int, vhost: int, slots: int, losses: list[Problem]
) -> FoundCheckpoint | None:
    flags = 0
    if len(data) >= FILE.size:
        magic, _, flags, owner, its_number, crc = FILE.unpack_from(data)
        if magic != checkpoint.MAGIC or crc32(data[: FILE.size - 4]) != crc:
            losses.append(Problem(path, 0, "the checkpoint's header does not verify"))
            flags = 0
        elif (owner, its_number) != (vhost, number):
            text = f"it is checkpoint {its_number} of vhost {owner:016x}, not {number} of this one"
            losses.append(Problem(path, 0, text))
            return None
    manifest = Manifest(number, bool(flags & checkpoint.CLEAN))
    manifest.head.segment_slots = slots
    checkpoint_found = FoundCheckpoint(manifest)
    position, place, found = FILE.size, 0, 0
    while position < len(data):
        kind, section = _section_at(data, position, vhost, number, place)
        if kind < 0:
            losses.append(Problem(path, position, f"section {place} does not verify"))
            position, place = _next_section(data, position, vhost, number, place)
            continue
        if kind == checkpoint.END:
            break
        try:
            checkpoint.apply_section(manifest, kind, section)
            found += 1
            checkpoint_found.has_topology |= kind == checkpoint.TOPOLOGY
        except (ValueError, struct.error, IndexError) as error:
            losses.append(Problem(path, position, f"section {place}: {error}"))
        position += SECTION.size + len(section)
        place += 1
    else:
        losses.append(Problem(path, len(data), "the checkpoint's end is missing"))
    return checkpoint_found if found else None


def _section_at(
    data: bytes, position: int, vhost: int, number: int, place: int
) -> tuple[int, bytes]:
    """Return (kind, data) of the section there; kind -1 if none verifies."""
    if position + SECTION.size > len(data):
        return (-1, b"")
    kind, length, crc = SECTION.unpack_from(data, position)
    start = position + SECTION.size
    if kind > checkpoint.KINDS_MAX or start + length > len(data):
        return (-1, b"")
    section = data[start : start + length]
    if crc32(section, checkpoint.section_seed(vhost, number, kind, place)) != crc:
        return (-1, b"")
    return (kind, section)


def _next_section(
    data: bytes, position: int, vhost: int, number: int, place: int
) -> tuple[int, int]:
    """Return (position, place) of the next section that verifies, or the end."""
    if position + SECTION.size <= len(data):
        following = position + SECTION.size + SECTION.unpack_from(data, position)[1]
        if _section_at(data, following, vhost, number, place + 1)[0] >= 0:
            return following, place + 1
    for at in range(position + 1, len(data)):
        for skipped in (1, 2, 3):
            if _section_at(data, at, vhost, number, place + skipped)[0] >= 0:
                return at, place + skipped
    return len(data), place
