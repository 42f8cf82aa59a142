"""StoreFile: one append file of bodies, its hint, and how both are written and scanned.

The message store of RabbitMQ appends the bodies of all queues to shared files and keeps an
index row per body in RAM; the row is what makes a long backlog expensive. Here, as in
Bitcask, a full file is *sealed*: its table (id -> place) is written beside it as a hint and
leaves RAM. All integers big-endian::

    <n>.rdq   magic "PRDQ" 4 | version 2 | flags 2 | vhost 8 | number 4 | lo 4 | hi 4 | crc 4
              record: length of body 4 | id 8 | crc 4 | body          ... back to back, no padding

    <n>.hint  magic "PHNT" 4 | version 2 | flags 2 | vhost 8 | number 4 | lo 4 | hi 4 |
              count 4 | total bytes 8 | crc 4
              block: up to 256 x (id 8 | offset 4 | size of body 4), ascending by id | crc 4   ...
              ids: first id 8 of each block | crc 4

``lo..hi`` are the file numbers it answers for: n..n, but of a file that combining made
those of the files that it replaces. Its own number, a name and nothing else, is higher.

Checksums are CRC-32 seeded with what the bytes are: a record's with vhost, length and id, and
*not* with the file, because combining moves records; a file in the place of another is caught
by its header. A hint's blocks are seeded with vhost, file number and number of the block.

Invariants: a record is written before anything names it; a sealed file and its hint are
never changed; *total bytes* ends at a record's end. A hint can always be made again from its
file, entry by entry the same, because a damaged record keeps its entry in the table (bits of
a checkpoint are in the order of that table). Entries of one file differ in their ids.

Failure: a write that fails raises its OSError and changes nothing that counts: the next one
goes to the same place. A hint appears by rename, so a torn one is only ever one that was not
synced. Reading is ``store_tables.py``; what a checkpoint keeps of a file is ``store_state.py``.
"""

import struct
from array import array
from bisect import bisect_left
from typing import Final

from penstock.errors import CorruptionError, NotAStoreError, VersionError
from penstock.fast_crc import crc32
from penstock.native import mypyc_attr
from penstock.storage.filesystem import File, FileSystem
from penstock.storage.store_state import RECORD_BYTES, BodyCounts, FileState
from penstock.storage.store_sync import Unsynced, UnsyncedFile

VERSION: Final = 1
HEADER_BYTES: Final = 32
HINT_HEADER_BYTES: Final = 44
ENTRY_BYTES: Final = 16
BLOCK_ENTRIES: Final = 256
BLOCK_BYTES: Final = BLOCK_ENTRIES * ENTRY_BYTES
BODY_BYTES_MAX: Final = (16 << 20) - 1  # in an append file: the first byte of a record is 0
WRITE_BYTES: Final = 1 << 20

MAGIC_RDQ: Final = b"PRDQ"
MAGIC_HINT: Final = b"PHNT"

_RDQ: Final = struct.Struct(">4sHHQIII")
_HINT: Final = struct.Struct(">4sHHQIIIIQ")
_RECORD_HEAD: Final = struct.Struct(">IQ")
_ENTRY: Final = struct.Struct(">QII")
_U32: Final = struct.Struct(">I")
_BLOCK_SEED: Final = struct.Struct(">QII")
INDEX_BLOCK: Final = 0xFFFFFFFF  # what the list of first ids has for the number of a block

# Of every sealed file; never changed.
_NO_IDS: "Final[array[int]]" = array("Q")
_NO_ENTRIES: Final = bytearray()


@mypyc_attr(acyclic=True)
class StoreFile:
    """What RAM holds of one file: measures and counts; the table only until it is sealed."""

    __slots__ = (
        "by_id", "counts", "entries", "epoch", "first_ids", "hi", "ids", "is_combining",
        "is_damaged", "is_sealed", "lo", "number", "owned", "total_bytes",
    )  # fmt: skip

    def __init__(self, number: int, lo: int, hi: int) -> None:
        self.number: int = number
        self.lo: int = lo
        self.hi: int = hi
        self.counts: BodyCounts = BodyCounts()
        self.total_bytes: int = 0  # of records, dead ones included
        self.is_sealed: bool = False  # its table is in its hint, and no longer here
        self.epoch: int = -1  # of the last cut that its present state is not part of
        self.owned: int = 0  # bodies of unfinished transactions: keeps it from combining
        self.is_combining: bool = False
        self.is_damaged: bool = False  # not combined any more: what is left stays for salvage
        # Sealed: the first id of each block of the hint, once somebody looked for a body.
        self.first_ids: array[int] | None = None
        # Until sealed: ids in the order of the file, their packed entries, and a dict if they
        # do not ascend, which is rare: ids are handed out in the order in which bodies come.
        self.ids: array[int] = array("Q")
        self.entries: bytearray = bytearray()
        self.by_id: dict[int, int] | None = None

    def find(self, id: int) -> int:
        """Place of the entry of ``id`` in a file that is not sealed, or -1."""
        ids = self.ids
        by_id = self.by_id
        if by_id is not None:
            return by_id.get(id, -1)
        if not len(ids) or id > ids[-1]:
            return -1
        i = bisect_left(ids, id)
        return i if ids[i] == id else -1

    def append(self, id: int, size: int) -> int:
        """The record of ``id`` was written at the end; the place of its entry."""
        ids = self.ids
        by_id = self.by_id
        if by_id is None and len(ids) and id <= ids[-1]:
            by_id = {old: i for i, old in enumerate(ids)}
            self.by_id = by_id
        i = self.counts.grow()
        if by_id is not None:
            by_id[id] = i
        ids.append(id)
        self.entries += _ENTRY.pack(id, HEADER_BYTES + self.total_bytes, size)
        self.total_bytes += RECORD_BYTES + size
        return i

    def sorted_table(self) -> "tuple[bytes, array[int] | None]":
        """The entries by id, and the order that sorts them (None: they are in order)."""
        if self.by_id is None:
            return bytes(self.entries), None
        return sort_entries(bytes(self.entries))

    def seal(self, order: "array[int] | None") -> None:
        """Its hint is written: the table leaves RAM."""
        if order is not None:
            self.counts = self.counts.permuted(order)
        self.forget_table()

    def forget_table(self) -> None:
        """It is sealed: what it has in RAM for a table, it shares with all that are."""
        self.is_sealed = True
        self.ids = _NO_IDS
        self.entries = _NO_ENTRIES
        self.by_id = None

    def unseal(self, scanned: "StoreFile") -> None:
        """Its hint is lost: take the table of a scan, by id, so that every place stays."""
        table, _ = scanned.sorted_table()
        self.is_sealed = False
        self.first_ids = None
        self.entries = bytearray(table)
        self.ids = array("Q", [key for key, _, _ in _ENTRY.iter_unpack(table)])

    def is_dead(self) -> bool:
        """Nothing in it can be asked for any more, unless it is still appended to."""
        return not self.counts.live_count and not self.owned and not self.is_combining

    def state(self) -> FileState:
        """A copy of what a checkpoint keeps."""
        state = FileState(self.number, self.lo, self.hi)
        state.is_sealed = self.is_sealed
        state.total_bytes = self.total_bytes
        state.counts = self.counts.copy()
        if not self.is_sealed:
            state.ids = array("Q", self.ids)
        return state


# ---- formats -----------------------------------------------------------------------------------


def record_seed(vhost: int) -> int:
    """What every record's checksum of a vhost starts from."""
    return crc32(vhost.to_bytes(8, "big"))


def encode_record(seed: int, id: int, body: bytes) -> bytes:
    """One record, whole."""
    head = _RECORD_HEAD.pack(len(body), id)
    return b"".join((head, _U32.pack(crc32(body, crc32(head, seed))), body))


def begin_record(seed: int, head: bytes, id: int, size: int) -> tuple[str, int, int]:
    """Of a record that begins with ``head`` and is to hold the body ``id`` of ``size`` bytes: what
    is wrong so far ("" if nothing), what the body's checksum starts from, and what it must be."""
    if len(head) < RECORD_BYTES:
        return f"expected the record of body {id}, found the end of the file", 0, 0
    length, found = _RECORD_HEAD.unpack_from(head)
    if found != id or length != size:
        return f"expected body {id} of {size} bytes, found {found} of {length} bytes", 0, 0
    expected: int = _U32.unpack_from(head, 12)[0]
    return "", crc32(head[:12], seed), expected


def record_fault(seed: int, record: bytes, id: int) -> str:
    """What is wrong with ``record`` (one record, whole) as that of ``id``; "" if nothing."""
    fault, crc, expected = begin_record(seed, record, id, len(record) - RECORD_BYTES)
    if not fault and crc32(memoryview(record)[RECORD_BYTES:], crc) != expected:
        fault = f"the checksum of body {id} does not match"
    return fault


def encode_header(vhost: int, number: int, lo: int, hi: int) -> bytes:
    """Header of an .rdq file."""
    head = _RDQ.pack(MAGIC_RDQ, VERSION, 0, vhost, number, lo, hi)
    return head + _U32.pack(crc32(head))


def decode_header(path: str, data: bytes, vhost: int, number: int) -> tuple[int, int]:
    """(lo, hi) of the .rdq file ``number``, whose first bytes are ``data``.

    Raises CorruptionError when it is none, or that of another file or vhost; VersionError.
    """
    _check_head(path, data, MAGIC_RDQ, HEADER_BYTES, vhost, number)
    _, _, _, _, _, lo, hi = _RDQ.unpack_from(data)
    return lo, hi


def encode_hint(vhost: int, number: int, lo: int, hi: int, table: bytes, total_bytes: int) -> bytes:
    """A hint file, whole, from a table sorted by id."""
    count = len(table) // ENTRY_BYTES
    head = _HINT.pack(MAGIC_HINT, VERSION, 0, vhost, number, lo, hi, count, total_bytes)
    parts = [head, _U32.pack(crc32(head))]
    first_ids: list[bytes] = []
    for block, at in enumerate(range(0, len(table), BLOCK_BYTES)):
        piece = table[at : at + BLOCK_BYTES]
        first_ids.append(piece[:8])
        parts.append(piece)
        parts.append(_U32.pack(crc32(piece, block_seed(vhost, number, block))))
    index = b"".join(first_ids)
    parts.append(index)
    parts.append(_U32.pack(crc32(index, block_seed(vhost, number, INDEX_BLOCK))))
    return b"".join(parts)


def decode_hint_header(
    path: str, data: bytes, vhost: int, number: int
) -> tuple[int, int, int, int]:
    """(lo, hi, count, total bytes) of the hint of file ``number``. Raises as decode_header."""
    _check_head(path, data, MAGIC_HINT, HINT_HEADER_BYTES, vhost, number)
    _, _, _, _, _, lo, hi, count, total_bytes = _HINT.unpack_from(data)
    return lo, hi, count, total_bytes


def hint_bytes(count: int) -> int:
    """Length of the hint of a file of ``count`` entries."""
    blocks = (count + BLOCK_ENTRIES - 1) // BLOCK_ENTRIES
    return HINT_HEADER_BYTES + count * ENTRY_BYTES + blocks * 12 + 4


def block_offset(block: int) -> int:
    """Where block ``block`` of a hint begins."""
    return HINT_HEADER_BYTES + block * (BLOCK_BYTES + 4)


def block_seed(vhost: int, number: int, block: int) -> int:
    return crc32(_BLOCK_SEED.pack(vhost, number, block))


def sort_entries(table: bytes) -> "tuple[bytes, array[int] | None]":
    """Entries sorted by id, stable, and the order that did it (None: they were in order)."""
    count = len(table) // ENTRY_BYTES
    keys = [table[at : at + 8] for at in range(0, len(table), ENTRY_BYTES)]
    order = array("I", sorted(range(count), key=keys.__getitem__))
    for i in range(count):
        if order[i] != i:
            break
    else:
        return table, None
    pieces = [table[i * ENTRY_BYTES : (i + 1) * ENTRY_BYTES] for i in order]
    return b"".join(pieces), order


def _check_head(path: str, data: bytes, magic: bytes, length: int, vhost: int, number: int) -> None:
    """Both files begin alike: magic, version, flags, vhost, number; a checksum ends the header."""
    if len(data) < length:
        raise CorruptionError(path, len(data), f"cut off: expected a header of {length} bytes")
    if data[:4] != magic:
        raise CorruptionError(path, 0, f"expected magic {magic!r}, found {data[:4]!r}")
    if crc32(data[: length - 4]) != _U32.unpack_from(data, length - 4)[0]:
        raise CorruptionError(path, 0, "the checksum of the header does not match")
    _, version, _, found_vhost, found = struct.unpack_from(">4sHHQI", data)
    if version != VERSION:
        raise VersionError(path, VERSION, version)
    if found_vhost != vhost or found != number:
        raise CorruptionError(
            path, 8, f"expected file {number} of vhost {vhost:016x}, "
            f"found file {found} of vhost {found_vhost:016x}"
        )  # fmt: skip


# ---- writing -----------------------------------------------------------------------------------


def make_directory(fs: FileSystem, path: str) -> None:
    """The directory of a store. Raises NotAStoreError when there is a file, OSError."""
    if fs.exists(path) and not fs.is_dir(path):
        raise NotAStoreError(path, "expected a directory, found a file")
    fs.mkdir(path)


def create_file(fs: FileSystem, path: str, header: bytes) -> File:
    """A new file with its header. Raises OSError, after which there is none."""
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        file.pwrite(header, 0)
    except OSError:
        discard(fs, path, file)
        raise
    return file


def discard(fs: FileSystem, path: str, file: File) -> None:
    """Close and delete a file that never counted; on a disk that fails, its name may stay."""
    file.close()
    try:
        fs.unlink(path)
    except OSError:
        pass  # an orphan: the next start finds and deletes it


def write_hint(fs: FileSystem, path: str, hint: bytes) -> UnsyncedFile:
    """Write the hint at ``path`` by rename; not synced. Raises OSError, then the old one stays."""
    fresh = path + ".new"
    file = create_file(fs, fresh, hint)
    try:
        fs.rename(fresh, path)
    except OSError:
        discard(fs, fresh, file)
        raise
    return UnsyncedFile(path, file)


class SealedWriter:
    """Writes one file that is sealed from the start: a section's bodies, or combined ones.

    ``add`` or ``add_record`` for each body, then ``finish``; or ``abandon`` at any time. It
    needs nothing of the store, so that combining may run in a worker.
    """

    def __init__(
        self, fs: FileSystem, directory: str, vhost: int, number: int, lo: int, hi: int
    ) -> None:
        """Creates the file. Raises OSError."""
        self.fs: FileSystem = fs
        self.vhost: int = vhost
        self.number: int = number
        self.lo: int = lo
        self.hi: int = hi
        self.path: str = f"{directory}/{number}.rdq"
        self.hint_path: str = f"{directory}/{number}.hint"
        self.total_bytes: int = 0
        self.entries: bytearray = bytearray()
        self.order: array[int] | None = None  # set by finish: what sorted the entries
        self.rdq: UnsyncedFile
        self.hint: UnsyncedFile | None = None
        self._seed: int = record_seed(vhost)
        self._pieces: list[bytes] = [encode_header(vhost, number, lo, hi)]
        self._waiting: int = HEADER_BYTES
        self._written: int = 0
        self.rdq = UnsyncedFile(self.path, create_file(fs, self.path, b""))

    def add(self, id: int, body: bytes) -> None:
        """The next body. Raises OSError."""
        self.add_record(id, len(body), encode_record(self._seed, id, body))

    def add_record(self, id: int, size: int, record: bytes) -> None:
        """The next body, as the record it is elsewhere. Raises OSError."""
        self.entries += _ENTRY.pack(id, HEADER_BYTES + self.total_bytes, size)
        self.total_bytes += RECORD_BYTES + size
        self._pieces.append(record)
        self._waiting += len(record)
        if self._waiting >= WRITE_BYTES:
            self._flush()

    def finish(self) -> StoreFile:
        """Write what waits, and the hint. The file, all dead, its entries in id's order."""
        self._flush()
        table, self.order = sort_entries(bytes(self.entries))
        hint = encode_hint(
            self.vhost, self.number, self.lo, self.hi, table, self.total_bytes
        )  # fmt: skip
        self.hint = write_hint(self.fs, self.hint_path, hint)
        file = StoreFile(self.number, self.lo, self.hi)
        file.forget_table()
        file.total_bytes = self.total_bytes
        file.counts.set_size(len(table) // ENTRY_BYTES)
        return file

    def hand_over(self, unsynced: Unsynced) -> None:
        """Give both files to the registry: they are synced by its next op."""
        assert self.hint is not None, "not finished"
        for written in (self.rdq, self.hint):
            unsynced.mark(written)
            unsynced.finish(written)

    def sync(self) -> None:
        """Sync both files, here and now. Raises OSError."""
        for written in (self.rdq, self.hint):
            if written is not None and written.file is not None:
                written.file.sync()

    def close(self) -> None:
        for written in (self.rdq, self.hint):
            if written is not None and written.file is not None:
                written.file.close()
                written.file = None

    def abandon(self) -> None:
        """Close and delete both files; nothing names them."""
        self.close()
        for path in (self.path, self.hint_path):
            try:
                self.fs.unlink(path)
            except OSError:
                pass  # never made, or an orphan that the next start finds

    def _flush(self) -> None:
        file = self.rdq.file
        assert file is not None, "written after close"
        data = b"".join(self._pieces)
        file.pwrite(data, self._written)
        self._written += len(data)
        self._pieces = []
        self._waiting = 0
