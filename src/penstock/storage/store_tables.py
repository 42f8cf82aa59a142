"""StoreTables: from (file, id) to a body, for files whose table is on disk.

A sealed file's table is its hint. RAM holds of it only the first id of each block of 256
entries (8 bytes per block, read at the first look into a file), so a look is a bisection in
RAM, one pread of a block, and a bisection in that. Blocks lately used are kept, at most
``cache_bytes`` of them; so are the handles of files lately read, at most ``HANDLES_MAX``.

Whatever is read is verified before it is used: the header of a file when it is opened, a
block's checksum when it is read, a record's with the body. A body is answered only if
length, id and checksum are those asked for; a file that was swapped for another fails at its
header, a misdirected block at its checksum, which is seeded with its own number.

Failure: a record or header that does not verify is a CorruptionError with path and position.
For a *hint* that does not verify the table comes from a scan of its file (``store_scan.py``)
and stays in RAM until the store seals the file anew; ``damage`` says so. Reading never writes.
If the file does not yield the same number of entries, places of entries cannot be trusted,
and that is a CorruptionError too.
"""

import struct
from array import array
from bisect import bisect_right
from typing import Final

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.storage.filesystem import File, FileSystem
from penstock.storage.store_file import (
    BLOCK_BYTES,
    BLOCK_ENTRIES,
    ENTRY_BYTES,
    HEADER_BYTES,
    HINT_HEADER_BYTES,
    INDEX_BLOCK,
    StoreFile,
    begin_record,
    block_offset,
    block_seed,
    decode_header,
    decode_hint_header,
    encode_hint,
    hint_bytes,
    record_fault,
    record_seed,
    write_hint,
)
from penstock.storage.store_scan import StoreScan
from penstock.storage.store_state import RECORD_BYTES
from penstock.storage.store_sync import Unsynced
from penstock.storage.stored_body import StoredBody

HANDLES_MAX: Final = 64

_ENTRY: Final = struct.Struct(">QII")
_U32: Final = struct.Struct(">I")

Place = tuple[int, int, int]
"""(place in the table, position of the record, size of the body); the place is -1 for none."""


class StoreTables:
    """Reads the files of one store. Belongs to the owner's thread."""

    def __init__(
        self, fs: FileSystem, directory: str, vhost: int, unsynced: Unsynced, cache_bytes: int
    ) -> None:
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.vhost: int = vhost
        self.unsynced: Unsynced = unsynced
        self.damage: list[CorruptionError] = []
        self.notes: list[str] = []
        self._seed: int = record_seed(vhost)
        self._blocks_max: int = max(cache_bytes // BLOCK_BYTES, 1)
        self._blocks: dict[int, bytes] = {}  # file number << 32 | block; the latest used last
        self._rdqs: dict[int, File] = {}  # the same, by file number
        self._hints: dict[int, File] = {}

    def rdq_path(self, number: int) -> str:
        return f"{self.directory}/{number}.rdq"

    def hint_path(self, number: int) -> str:
        return f"{self.directory}/{number}.hint"

    def find(self, file: StoreFile, id: int) -> Place:
        """Where body ``id`` lies in ``file``. Raises CorruptionError, OSError."""
        if file.is_sealed:
            try:
                return self._find_sealed(file, id)
            except (CorruptionError, FileNotFoundError) as error:
                self.rescan(file, str(error))
        i = file.find(id)
        if i < 0:
            return (-1, 0, 0)
        _, offset, size = _ENTRY.unpack_from(file.entries, i * ENTRY_BYTES)
        return (i, offset, size)

    def read(self, file: StoreFile, id: int, offset: int, size: int) -> bytes:
        """The body of the record at ``offset``, verified. Raises CorruptionError, OSError."""
        handle = self._rdqs.get(file.number)
        if handle is None:
            handle = self._open_rdq(file)
        record = handle.pread(RECORD_BYTES + size, offset)
        fault = record_fault(self._seed, record, id)
        if fault:
            raise CorruptionError(handle.path, offset, fault)
        return record[RECORD_BYTES:]

    def open_body(self, file: StoreFile, id: int, offset: int, size: int) -> StoredBody:
        """The body of the record at ``offset``, to be read in pieces from a handle of its own.
        CorruptionError: the file is missing, or its header or the record's is damaged; OSError."""
        path = self.rdq_path(file.number)
        try:
            handle = self.fs.open(path)
        except FileNotFoundError:
            raise CorruptionError(path, 0, "the store file is missing") from None
        try:
            self._check_rdq(file, path, handle.pread(HEADER_BYTES, 0))
            head = handle.pread(RECORD_BYTES, offset)
            fault, crc, expected = begin_record(self._seed, head, id, size)
            if fault:
                raise CorruptionError(path, offset, fault)
        except BaseException:
            handle.close()
            raise
        return StoredBody(
            handle, id, offset + RECORD_BYTES, size, crc=crc, suffix=b"", expected=expected
        )

    def ends(self, file: StoreFile) -> list[int]:
        """For each place of the file's table, where the record ends. Raises CorruptionError."""
        table = bytes(file.entries)
        if file.is_sealed:
            path = self.hint_path(file.number)
            table = read_table(self.fs, path, self.vhost, file.number)
        return [offset + RECORD_BYTES + size for _, offset, size in _ENTRY.iter_unpack(table)]

    def check_hint(self, file: StoreFile) -> None:
        """The header of the hint is that of ``file``, or the table comes from a scan."""
        path = self.hint_path(file.number)
        try:
            length = self.fs.size(path)
            handle = self.fs.open(path)
            try:
                head = handle.pread(HINT_HEADER_BYTES, 0)
            finally:
                handle.close()
            self._check_hint(file, path, head, length)
        except (CorruptionError, FileNotFoundError) as error:
            self.rescan(file, str(error))

    def rescan(self, file: StoreFile, reason: str) -> None:
        """The hint is lost: the table of a sealed file from a scan of it; ``damage`` says so.

        Raises CorruptionError when the file no longer yields the table that it was sealed with.
        """
        path = self.rdq_path(file.number)
        self.forget(file.number)
        self.damage.append(CorruptionError(self.hint_path(file.number), 0, f"hint lost: {reason}"))
        scanned = StoreFile(file.number, file.lo, file.hi)
        end = HEADER_BYTES + file.total_bytes
        handle = self.fs.open(path)
        try:
            head = handle.pread(HEADER_BYTES, 0)
            self._check_rdq(file, path, head)
            scan = StoreScan(handle, self.vhost, end)
            scan.run(scanned, end)
        finally:
            handle.close()
        self.damage += scan.damage
        if scan.damage:
            file.is_damaged = True
        if scanned.counts.count != file.counts.count:
            raise CorruptionError(
                path, HEADER_BYTES, f"its hint is damaged, and a scan finds "
                f"{scanned.counts.count} of {file.counts.count} records"
            )  # fmt: skip
        file.unseal(scanned)

    def seal(self, file: StoreFile) -> None:
        """Write the hint of ``file``, to be synced some time, and drop its table from RAM.

        Raises OSError, after which nothing has changed.
        """
        table, order = file.sorted_table()
        hint = encode_hint(self.vhost, file.number, file.lo, file.hi, table, file.total_bytes)
        written = write_hint(self.fs, self.hint_path(file.number), hint)
        self.unsynced.mark(written)
        self.unsynced.finish(written)
        self.unsynced.mark_directory(self.directory)
        file.seal(order)

    def forget(self, number: int) -> None:
        """The file left RAM: drop what is cached of it."""
        for handles in (self._rdqs, self._hints):
            handle = handles.pop(number, None)
            if handle is not None:
                handle.close()
        for key in [key for key in self._blocks if key >> 32 == number]:
            del self._blocks[key]

    def close(self) -> None:
        for handles in (self._rdqs, self._hints):
            for handle in handles.values():
                handle.close()
            handles.clear()
        self._blocks.clear()

    # ---- the hint --------------------------------------------------------------------------

    def _find_sealed(self, file: StoreFile, id: int) -> Place:
        first_ids = file.first_ids
        if first_ids is None:
            first_ids = self._read_first_ids(file)
            file.first_ids = first_ids
        number = bisect_right(first_ids, id) - 1
        if number < 0:
            return (-1, 0, 0)
        block = self._block(file, number)
        key = id.to_bytes(8, "big")
        low = 0
        high = len(block) // ENTRY_BYTES
        while low < high:
            middle = (low + high) >> 1
            at = middle * ENTRY_BYTES
            if block[at : at + 8] < key:
                low = middle + 1
            else:
                high = middle
        at = low * ENTRY_BYTES
        if block[at : at + 8] != key:
            return (-1, 0, 0)
        _, offset, size = _ENTRY.unpack_from(block, at)
        return (number * BLOCK_ENTRIES + low, offset, size)

    def _block(self, file: StoreFile, number: int) -> bytes:
        """Entries of block ``number``, verified, from the cache or the disk."""
        key = file.number << 32 | number
        block = self._blocks.pop(key, None)
        if block is None:
            offset = block_offset(number)
            length = min(file.counts.count - number * BLOCK_ENTRIES, BLOCK_ENTRIES) * ENTRY_BYTES
            block = self._read_checked(file, number, offset, length)
            if len(self._blocks) >= self._blocks_max:
                del self._blocks[next(iter(self._blocks))]
        self._blocks[key] = block
        return block

    def _read_first_ids(self, file: StoreFile) -> "array[int]":
        count = file.counts.count
        blocks = (count + BLOCK_ENTRIES - 1) // BLOCK_ENTRIES
        offset = hint_bytes(count) - 4 - 8 * blocks
        data = self._read_checked(file, INDEX_BLOCK, offset, 8 * blocks)
        return array("Q", struct.unpack(f">{blocks}Q", data))

    def _read_checked(self, file: StoreFile, block: int, offset: int, length: int) -> bytes:
        handle = self._hints.pop(file.number, None)
        if handle is None:
            handle = self._open_hint(file)
        self._hints[file.number] = handle
        data = handle.pread(length + 4, offset)
        piece = data[:length]
        seed = block_seed(self.vhost, file.number, block)
        if len(data) != length + 4 or crc32(piece, seed) != _U32.unpack_from(data, length)[0]:
            raise CorruptionError(handle.path, offset, f"block {block} of the hint does not verify")
        return piece

    def _open_hint(self, file: StoreFile) -> File:
        self._make_room(self._hints)
        handle = self.fs.open(self.hint_path(file.number))
        try:
            head = handle.pread(HINT_HEADER_BYTES, 0)
            self._check_hint(file, handle.path, head, handle.size())
        except CorruptionError:
            handle.close()
            raise
        return handle

    def _check_hint(self, file: StoreFile, path: str, head: bytes, length: int) -> None:
        found = decode_hint_header(path, head, self.vhost, file.number)
        want = (file.lo, file.hi, file.counts.count, file.total_bytes)
        if found != want:
            raise CorruptionError(
                path, 20, f"expected range, entries and bytes {want}, found {found}"
            )
        if length != hint_bytes(file.counts.count):
            raise CorruptionError(
                path, length, f"expected {hint_bytes(file.counts.count)} bytes, found {length}"
            )

    # ---- the file --------------------------------------------------------------------------

    def _open_rdq(self, file: StoreFile) -> File:
        path = self.rdq_path(file.number)
        self._make_room(self._rdqs)
        try:
            handle = self.fs.open(path)
        except FileNotFoundError:
            raise CorruptionError(path, 0, "the store file is missing") from None
        try:
            self._check_rdq(file, path, handle.pread(HEADER_BYTES, 0))
        except CorruptionError:
            handle.close()
            raise
        self._rdqs[file.number] = handle
        return handle

    def _check_rdq(self, file: StoreFile, path: str, head: bytes) -> None:
        found = decode_header(path, head, self.vhost, file.number)
        if found != (file.lo, file.hi):
            raise CorruptionError(
                path, 20, f"expected files {file.lo}..{file.hi}, found {found[0]}..{found[1]}"
            )

    def _make_room(self, handles: dict[int, File]) -> None:
        if len(handles) >= HANDLES_MAX:
            oldest = next(iter(handles))
            handles.pop(oldest).close()


class TableFinder:
    """``StoreTables.find`` for one file, for a state that outlives changes of the store."""

    def __init__(self, tables: StoreTables, file: StoreFile) -> None:
        self.tables: StoreTables = tables
        self.file: StoreFile = file

    def find(self, id: int) -> Place:
        """As ``StoreTables.find``."""
        return self.tables.find(self.file, id)


def read_table(fs: FileSystem, path: str, vhost: int, number: int) -> bytes:
    """All entries of the hint at ``path``, each block verified. Raises CorruptionError, OSError.

    For combining, which may run in a worker and so shares no cache and no handle.
    """
    data = fs.read(path)
    _, _, count, _ = decode_hint_header(path, data, vhost, number)
    pieces: list[bytes] = []
    for block in range((count + BLOCK_ENTRIES - 1) // BLOCK_ENTRIES):
        start = block_offset(block)
        length = min(count - block * BLOCK_ENTRIES, BLOCK_ENTRIES) * ENTRY_BYTES
        piece = data[start : start + length]
        seed = block_seed(vhost, number, block)
        crc = data[start + length : start + length + 4]
        if len(crc) != 4 or crc32(piece, seed) != _U32.unpack(crc)[0]:
            raise CorruptionError(path, start, f"block {block} of the hint does not verify")
        pieces.append(piece)
    return b"".join(pieces)
