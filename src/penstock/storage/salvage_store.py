"""Reading a damaged MessageStore, and a damaged checkpoint: what verifies, wherever it is.

A body is known by its own checksum, which is seeded with vhost and id, so a body that verifies is
the right one in whatever file it was found. `BodyFinder` asks the files that answer for the file
number of an address; it reads hints where they verify and scans files where they do not, and a file
that has lost its header is asked for everything. A scan follows the lengths of records, and damage
to one may hide those behind it; so a body that it does not find is looked for on its own, by the
bytes of its id.

A checkpoint is a row of sections with a checksum each: `read_checkpoint` takes those that verify,
and looks for the next one, byte by byte, behind one whose length is damaged.

RAM: the tables of a few store files and one file; one checkpoint. Nothing is written.
"""

import struct
from typing import Final

from penstock.errors import CorruptionError, StorageError
from penstock.fast_crc import crc32
from penstock.storage import checkpoint
from penstock.storage.checkpoint import Manifest
from penstock.storage.file_queue_backing import FileQueueBacking
from penstock.storage.filesystem import FileSystem
from penstock.storage.store_file import (
    BODY_BYTES_MAX,
    ENTRY_BYTES,
    HEADER_BYTES,
    HINT_HEADER_BYTES,
    StoreFile,
    decode_header,
    decode_hint_header,
    record_fault,
    record_seed,
)
from penstock.storage.store_scan import StoreScan
from penstock.storage.store_state import OWN_FILE, RECORD_BYTES
from penstock.storage.store_tables import read_table
from penstock.storage.verify import Problem

TABLES_MAX: Final = 8
LENGTH_BYTES: Final = 4  # before the id of a record
PREFIX_BYTES: Final = 5  # of an id: number of the start, and what changes every 16 M messages

_ENTRY: Final = struct.Struct(">QII")
_FILE: Final = struct.Struct(">4sHHQQI")
_SECTION: Final = struct.Struct(">III")


class FoundCheckpoint:
    """A checkpoint with what verifies of it, and whether its topology is part of that."""

    __slots__ = ("has_topology", "manifest")

    def __init__(self, manifest: Manifest) -> None:
        self.manifest: Manifest = manifest
        self.has_topology: bool = False


class BodyFinder:
    """Bodies of one store directory by address."""

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
        """The body. CorruptionError when it is nowhere, OSError."""
        if file & OWN_FILE:
            return self._own.read(file, id)
        fault: CorruptionError | None = None
        for number in sorted(self._ranges, reverse=True):
            lo, hi = self._ranges[number]
            if not lo <= file <= hi:
                continue
            for is_scanned in (False, True):
                offset, size = _find(self._table(number, is_scanned), id)
                if offset:
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
        """Whether `read` would find it."""
        try:
            self.read(file, id)
        except CorruptionError:
            return False
        return True

    def _body(self, number: int, id: int, offset: int, size: int) -> tuple[bytes, str]:
        handle = self._fs.open(self._path(number))
        try:
            found = handle.pread(RECORD_BYTES + size, offset)
        finally:
            handle.close()
        return found[RECORD_BYTES:], record_fault(self._seed, found, id)

    def _search(self, number: int, id: int) -> tuple[int, int]:
        """(position, size) of a body, found by its id alone; (0, 0) if it is not there, or does not
        verify. One pass finds all whose ids begin with the same bytes, as a rule all of a file."""
        prefix = id.to_bytes(8, "big")[:PREFIX_BYTES]
        found = self._found.get((number, prefix))
        if found is None:
            found = self._records_with(number, prefix)
            if len(self._found) >= TABLES_MAX:
                del self._found[next(iter(self._found))]
            self._found[number, prefix] = found
        return found.get(id, (0, 0))

    def _records_with(self, number: int, prefix: bytes) -> dict[int, tuple[int, int]]:
        """All records of a file that verify and whose ids begin so: id -> (position, size)."""
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
        """What the header says, or the hint's, or all numbers."""
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
        handle = self._fs.open(path)
        try:
            return handle.pread(length, 0)
        finally:
            handle.close()

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
        handle = self._fs.open(self._path(number))
        try:
            found = StoreFile(number, number, number)
            StoreScan(handle, self._vhost, handle.size()).run(found)
            return found.sorted_table()[0]
        finally:
            handle.close()


def _find(table: bytes, id: int) -> tuple[int, int]:
    """(position, size) of a body in sorted entries; (0, 0) if it is not there."""
    key = id.to_bytes(8, "big")
    low, high = 0, len(table) // ENTRY_BYTES
    while low < high:
        middle = (low + high) >> 1
        if table[middle * ENTRY_BYTES : middle * ENTRY_BYTES + 8] < key:
            low = middle + 1
        else:
            high = middle
    at = low * ENTRY_BYTES
    if table[at : at + 8] != key:
        return (0, 0)
    _, offset, size = _ENTRY.unpack_from(table, at)
    return (offset, size)


# ---- checkpoint --------------------------------------------------------------------------------


def read_checkpoint(
    fs: FileSystem, path: str, vhost: int, slots: int, losses: list[Problem]
) -> FoundCheckpoint | None:
    """The best checkpoint that there is, with what verifies of it; None if there is nothing.

    slots: of a segment, in case that the checkpoint does not say it any more.
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
    if len(data) >= _FILE.size:
        magic, _, flags, owner, its_number, crc = _FILE.unpack_from(data)
        if magic != checkpoint.MAGIC or crc32(data[: _FILE.size - 4]) != crc:
            losses.append(Problem(path, 0, "the checkpoint's header does not verify"))
            flags = 0
        elif (owner, its_number) != (vhost, number):
            text = f"it is checkpoint {its_number} of vhost {owner:016x}, not {number} of this one"
            losses.append(Problem(path, 0, text))
            return None
    manifest = Manifest(number, bool(flags & checkpoint.CLEAN))
    manifest.head.segment_slots = slots
    checkpoint_found = FoundCheckpoint(manifest)
    position, place, found = _FILE.size, 0, 0
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
        position += _SECTION.size + len(section)
        place += 1
    else:
        losses.append(Problem(path, len(data), "the checkpoint's end is missing"))
    return checkpoint_found if found else None


def _section_at(
    data: bytes, position: int, vhost: int, number: int, place: int
) -> tuple[int, bytes]:
    """(kind, data) of the section there, kind -1 if none verifies."""
    if position + _SECTION.size > len(data):
        return (-1, b"")
    kind, length, crc = _SECTION.unpack_from(data, position)
    start = position + _SECTION.size
    if kind > checkpoint.KINDS_MAX or start + length > len(data):
        return (-1, b"")
    section = data[start : start + length]
    if crc32(section, checkpoint.section_seed(vhost, number, kind, place)) != crc:
        return (-1, b"")
    return (kind, section)


def _next_section(
    data: bytes, position: int, vhost: int, number: int, place: int
) -> tuple[int, int]:
    """(position, place) of the next section that verifies; the end if there is none."""
    if position + _SECTION.size <= len(data):
        following = position + _SECTION.size + _SECTION.unpack_from(data, position)[1]
        if _section_at(data, following, vhost, number, place + 1)[0] >= 0:
            return following, place + 1
    for at in range(position + 1, len(data)):
        for skipped in (1, 2, 3):
            if _section_at(data, at, vhost, number, place + skipped)[0] >= 0:
                return at, place + skipped
    return len(data), place
