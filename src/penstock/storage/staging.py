"""Staging: rows that tasks of a sink have written and nobody has committed yet, as page files.

    staging/<hash of the query>/    .query_name (for people)
                                    .owner: {"user": ..., "target": ...}, whose the query is
                                    <batch>.<partition>.<attempt>.<k>.page, and .idx beside it

A staged page is a whole page of kind 2 (page.py) with a sealed index: random page id, base offset
0, time 0 in every frame. So a stream can adopt it as it is, and a queue's rows can be read from it
from any frame on, each verified by its own checksum. The index' header has, as its first and last
time, when the page was begun (microseconds since 1970): that is the age of a file for whoever
sweeps, and it is written before the page, so that files of a task that died have an age too.

Staged by the process that serves HTTP, which verifies every frame before it is given to
`StagedPageWriter`, and synced with their names before a token is given; read and deleted by the
vhost's process. Two writers never meet: the attempt in a name is random, and a name that is taken
is refused.

Who stages first owns the query (`claim`): the vhost asks before it lets anybody stage, commit or
abort. The decision of a batch takes the owner over; the file goes with the directory.

Deleting: pages of a batch that is done go after the checkpoint that says so [6]. What no decision
names goes by age (`Sweep`), or when its batch is aborted.

Failure: StagingError says what a commit names that is not there or not so; OSError from the disk.

StagedReader: the records of one staged page, from any frame on, each proved by its checksum.

Rows that are moved into queues, or through the log into streams, are read from their page slice by
slice. What the page is, its decision says: id, records, length. Its header is not asked, and its
index only for where a frame begins, which the frame proves (page_reader.py).

One reader may be used by one thread at a time; where it stopped is kept, so that the next slice
asks no index.

Frames that a client sends to be staged: verified, each by its own checksum, and summed.

The process that serves HTTP does this for every frame of every upload, before anything of it is
written. It makes no objects for rows: it compares them where they are.

**The checksum of a batch.** Two commits with one number are the same batch if they have the same
rows, in whatever order and pages: a task that runs again stages its rows in other pages, and a
replay may have other partitions. So the checksum is a sum over rows, modulo 2^61. Of each row it
adds a mix of the CRC-32 of its frame behind the frame's own CRC: lengths, body and header. The mix
(two multiplications, as in MurmurHash's finalizer, by constants of 29 bits so that nothing exceeds
61 bits) is there because CRC-32 is linear: without it, rows that exchange parts with one another
would often have the same sum. Another row has the same CRC-32 by chance once in 2^32.

Beside page.py, because whoever only reads pages (an executor of Spark that was sent the package)
has that one, and no librt.
"""

import contextlib
import json
from collections.abc import Callable
from typing import Final

from librt.strings import read_i32_le, read_i64_le

from penstock.errors import CorruptionError, StorageError
from penstock.fast_crc import crc32
from penstock.storage.batches import BatchTable, NameParts, QueryOwner, StagedPage, parse_name
from penstock.storage.data_directory import hash_name, sync_dir, write_small
from penstock.storage.filesystem import File, FileSystem
from penstock.storage.page import (
    BLOCK_BYTES,
    FRAME_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    KIND_STAGED,
    PAGE_HEADER_BYTES,
    IndexHeader,
    StreamRecord,
    blocks,
    decode_header,
    decode_index_header,
    encode_header,
    page_seed,
)
from penstock.storage.page_reading import PageReader

STAGING: Final = "staging"
STAGED_PAGE_BYTES_MAX: Final = 64 << 20
ZOMBIE_AGE_S: Final = 60.0  # of what can no longer be committed


class StagingError(StorageError):
    """What a commit names is not there, or not what it says."""


def staging_path(path: str) -> str:
    """Where a vhost, whose directory is `path`, has its staged pages."""
    return f"{path}/{STAGING}"


def query_path(path: str, query: str) -> str:
    """The directory of a query's staged pages in the vhost directory `path`."""
    return f"{path}/{STAGING}/{hash_name(query.encode())}"


def query_directory(fs: FileSystem, staging: str, query: str) -> str:
    """The directory of a query in `staging`, made when missing, its name durable. OSError,
    SyncFailedError."""
    directory = f"{staging}/{hash_name(query.encode())}"
    if not fs.exists(staging):
        fs.mkdir(staging)
        sync_dir(fs, staging.rpartition("/")[0])
    if not fs.exists(directory):
        fs.mkdir(directory)
        write_small(fs, directory + "/.query_name", query.encode() + b"\n")
        sync_dir(fs, directory)
    sync_dir(fs, staging)  # whoever made it may have died before
    return directory


OWNER: Final = ".owner"
FILE_BYTES_MIN: Final = 4096  # what a file costs on the disk
_NAMES: Final = frozenset((".query_name", OWNER))  # what an empty directory may still have


def read_owner(fs: FileSystem, path: str, query: str) -> QueryOwner | None:
    """Who staged first for this query in the vhost directory `path`, as long as the directory is
    there; None: nobody, or a power cut left no whole file, and so no token. OSError."""
    return _owner_in(fs, query_path(path, query))


def _owner_in(fs: FileSystem, directory: str) -> QueryOwner | None:
    try:
        found = json.loads(fs.read(f"{directory}/{OWNER}"))
        return QueryOwner(str(found["user"]), str(found["target"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def claim(fs: FileSystem, path: str, query: str, owner: QueryOwner) -> QueryOwner:
    """The owner of the query: this one if there is none yet, which is durable then. One thread at a
    time. OSError, SyncFailedError."""
    found = read_owner(fs, path, query)
    if found is not None:
        return found
    directory = query_directory(fs, staging_path(path), query)
    write_small(fs, f"{directory}/{OWNER}", json.dumps(owner._asdict()).encode())
    sync_dir(fs, directory)
    return owner


class StagedPageWriter:
    """One page that is being staged: <stem>.page and <stem>.idx in `directory`.

    page_id: random, 64 bits. time_us: now, microseconds since 1970. count, position: records and
    bytes of the page so far. FileExistsError if it is there; ValueError for a stem that is none.
    """

    def __init__(
        self, fs: FileSystem, directory: str, stem: str, page_id: int, time_us: int
    ) -> None:
        parse_name(stem + ".page")
        self._fs: FileSystem = fs
        self._stem: str = f"{directory}/{stem}"
        self._name: str = stem + ".page"
        self.page_id: int = page_id
        self.count: int = 0
        self.position: int = 0
        self._time_us: int = time_us
        self._seed: int = page_seed(page_id)
        self._block: int = self._seed
        self._blocks: list[int] = []
        self._rows_crc: int = 0
        self._page: File | None = None
        self._index: File | None = None
        if fs.exists(self._stem + ".page") or fs.exists(self._stem + ".idx"):
            raise FileExistsError(self._stem + ".page")
        try:
            self._index = fs.open(self._stem + ".idx", create=True)
            self._index.pwrite(self._header(is_sealed=False), 0)
            self._page = fs.open(self._stem + ".page", create=True)
            self._write(encode_header(0, page_id, 0, 0, KIND_STAGED))
        except BaseException:
            self.close()
            raise

    def _header(self, *, is_sealed: bool) -> bytes:
        time_us = self._time_us
        return IndexHeader(
            self.page_id, 0, is_sealed, self.count, self.position, self._rows_crc, time_us, time_us
        ).encode()

    def append(self, rows: bytes, data: bytes) -> None:
        """Frames that follow those that are there, and their rows: verified, of time 0, and within
        STAGED_PAGE_BYTES_MAX as long as there is more than one. OSError: discard it."""
        assert self._index is not None
        self._write(data)
        self._index.pwrite(rows, INDEX_HEADER_BYTES + self.count * INDEX_ROW_BYTES)
        self._rows_crc = crc32(rows, self._rows_crc)
        self.count += len(rows) // INDEX_ROW_BYTES

    def _write(self, data: bytes) -> None:
        """Give bytes to the page, and sum them into the CRCs of their blocks."""
        assert self._page is not None
        self._page.pwrite(data, self.position)
        view = memoryview(data)
        at = 0
        while at < len(data):
            piece = view[at : at + BLOCK_BYTES - (self.position & (BLOCK_BYTES - 1))]
            self._block = crc32(piece, self._block)
            at += len(piece)
            self.position += len(piece)
            if not self.position & (BLOCK_BYTES - 1):
                self._blocks.append(self._block)
                self._block = self._seed ^ len(self._blocks)

    def seal(self) -> StagedPage:
        """The page is whole: complete its index. OSError: discard it."""
        assert self._index is not None
        crcs = list(self._blocks)
        if len(crcs) < blocks(self.position):
            crcs.append(self._block)
        data = b"".join([crc.to_bytes(4, "little") for crc in crcs])
        self._index.pwrite(data, INDEX_HEADER_BYTES + self.count * INDEX_ROW_BYTES)
        self._rows_crc = crc32(data, self._rows_crc)
        self._index.pwrite(self._header(is_sealed=True), 0)
        return StagedPage(self._name, self.page_id, self.count, self.position)

    def sync(self) -> None:
        """Make both files durable; their names need a sync of the directory. OSError: no token may
        be given any more [10]."""
        for file in (self._page, self._index):
            assert file is not None
            file.sync()

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for file in (self._page, self._index):
            if file is not None:
                file.close()
        self._page = self._index = None

    def discard(self) -> None:
        """Close, and delete what it made. OSError."""
        self.close()
        _unlink(self._fs, self._stem + ".page")


# ---- what is there -------------------------------------------------------------------------------


def check_pages(fs: FileSystem, path: str, query: str, batch: int, pages: list[StagedPage]) -> None:
    """That the staged pages of a commit are there, as their tokens say: names of this batch, each
    once, headers and lengths. What is in them is verified as it is read.
    StagingError says what is wrong; OSError. Changes nothing: it may run in any thread."""
    directory = query_path(path, query)
    seen: set[str] = set()
    for page in pages:
        try:
            parts = parse_name(page.name)
        except ValueError as error:
            raise StagingError(str(error)) from error
        if parts.batch != batch:
            raise StagingError(f"staged page {page.name!r} is of another batch than {batch}")
        if page.name in seen:
            raise StagingError(f"staged page {page.name!r} is named twice")
        seen.add(page.name)
        _check_page(fs, f"{directory}/{page.name}", page)


def _check_page(fs: FileSystem, path: str, page: StagedPage) -> None:
    try:
        file = fs.open(path)
    except FileNotFoundError:
        text = "it is not there: never staged, aborted, or swept because of its age"
        raise StagingError(f"staged page {page.name!r}: {text}") from None
    with contextlib.closing(file):
        size = file.size()
        head = file.pread(PAGE_HEADER_BYTES, 0)
    try:
        header = decode_header(path, head)
        index_path = path.removesuffix(".page") + ".idx"
        with contextlib.closing(fs.open(index_path)) as index:
            found = decode_index_header(index_path, index.pread(INDEX_HEADER_BYTES, 0))
    except FileNotFoundError:
        raise StagingError(f"staged page {page.name!r} has no index") from None
    except CorruptionError as error:
        raise StagingError(f"staged page {page.name!r}: {error}") from error
    there = (found.id, found.count, found.page_bytes, size)
    if there != (page.page_id, page.rows, page.bytes, page.bytes) or not found.is_sealed:
        raise StagingError(
            f"staged page {page.name!r} is page {found.id:016x} of {found.count} rows and {size} "
            f"bytes, its token says {page.page_id:016x}, {page.rows} and {page.bytes}"
        )
    if not header.is_staged or header.id != page.page_id:
        raise StagingError(f"staged page {page.name!r} is page {header.id:016x} of a stream")


def staged_bytes(fs: FileSystem, path: str) -> dict[str, int]:
    """Bytes of all staged files of the vhost directory `path`, by the user whose query they are of;
    "" for nobody's. A file counts FILE_BYTES_MIN at least. OSError."""
    found: dict[str, int] = {}
    for directory in _directories(fs, path):
        with contextlib.suppress(FileNotFoundError):  # swept meanwhile
            owner = _owner_in(fs, directory)
            user = "" if owner is None else owner.user
            for name in fs.list(directory):
                with contextlib.suppress(FileNotFoundError):
                    size = max(fs.size(f"{directory}/{name}"), FILE_BYTES_MIN)
                    found[user] = found.get(user, 0) + size
    return found


def _directories(fs: FileSystem, path: str) -> list[str]:
    parent = f"{path}/{STAGING}"
    try:
        return [f"{parent}/{name}" for name in fs.list(parent)]
    except FileNotFoundError:
        return []


# ---- deleting ------------------------------------------------------------------------------------


def staged_files(path: str, names: list[tuple[str, str]]) -> list[str]:
    """The files of staged pages (query, name)."""
    stems = [f"{query_path(path, query)}/{name.removesuffix('.page')}" for query, name in names]
    return [stem + ending for stem in stems for ending in (".page", ".idx")]


def delete_batch(fs: FileSystem, path: str, query: str, batch: int) -> int:
    """Delete all that is staged of a batch that was never decided; how many pages. OSError."""
    return delete_staged(fs, query_path(path, query), lambda parts: parts.batch == batch)


def delete_staged(fs: FileSystem, directory: str, goes: Callable[[NameParts], bool]) -> int:
    """Delete those pages of a query's directory that `goes` says; how many. OSError."""
    count = 0
    for page in _pages_in(fs, directory):
        if goes(parse_name(page)):
            _unlink(fs, f"{directory}/{page}")
            count += 1
    return count


def disown(fs: FileSystem, path: str, query: str, kept: set[str]) -> None:
    """The query is over: delete what is staged of it, but for the pages with these names, and whose
    it was. OSError."""
    directory = query_path(path, query)
    for page in _pages_in(fs, directory):
        if page not in kept:
            _unlink(fs, f"{directory}/{page}")
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(f"{directory}/{OWNER}")
    if not kept:
        _remove_empty(fs, directory)


class Sweep:
    """What a sweep must know, taken by the owner of the batches: by the name of a query's
    directory the number of its last batch, and the pages that are still to be moved, or that wait
    for a checkpoint. dead: those (query, name) that wait for the one in progress."""

    def __init__(self, table: BatchTable, dead: list[tuple[str, str]]) -> None:
        self.last: dict[str, int] = {}
        self.kept: set[tuple[str, str]] = set()
        for query, page in (*table.dead, *dead):
            self.kept.add((hash_name(query.encode()), page))
        for batch in table.by_query.values():
            directory = hash_name(batch.query.encode())
            self.last[directory] = batch.number
            self.kept.update([(directory, page.name) for page in batch.pages])

    def run(self, fs: FileSystem, path: str, older_than_s: float, now_us: int) -> list[str]:
        """Delete what was staged longer ago than that and never decided, and, after a minute, what
        can no longer be: its batch was. The paths of the pages. In any thread. OSError."""
        gone: list[str] = []
        for directory in _directories(fs, path):
            name = directory.rpartition("/")[2]
            last = self.last.get(name, -1)
            for page in _pages_in(fs, directory):
                if (name, page) in self.kept:
                    continue
                age_s = older_than_s
                if parse_name(page).batch <= last:
                    age_s = min(ZOMBIE_AGE_S, older_than_s)
                if _begun_us(fs, f"{directory}/{page}") < now_us - age_s * 1_000_000:
                    _unlink(fs, f"{directory}/{page}")
                    gone.append(f"{directory}/{page}")
            _remove_empty(fs, directory)
        return gone


def _pages_in(fs: FileSystem, directory: str) -> list[str]:
    """The names of staged pages, also of those of which there is only the index. OSError."""
    found: dict[str, None] = {}
    try:
        names = fs.list(directory)
    except FileNotFoundError:
        return []
    for name in names:
        stem, _, ending = name.rpartition(".")
        if ending in ("page", "idx"):
            with contextlib.suppress(ValueError):
                parse_name(stem + ".page")
                found[stem + ".page"] = None
    return list(found)


def _begun_us(fs: FileSystem, path: str) -> int:
    """When a page was begun; 0, long ago, if its index does not say: a power cut took it."""
    index_path = path.removesuffix(".page") + ".idx"
    try:
        with contextlib.closing(fs.open(index_path)) as file:
            return decode_index_header(index_path, file.pread(INDEX_HEADER_BYTES, 0)).first_time_us
    except (FileNotFoundError, CorruptionError):
        return 0


def _unlink(fs: FileSystem, path: str) -> None:
    """The page first: an index without one is swept, a page without one has no age."""
    for name in (path, path.removesuffix(".page") + ".idx"):
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(name)


def _remove_empty(fs: FileSystem, directory: str) -> None:
    with contextlib.suppress(OSError):
        names = fs.list(directory)
        if _NAMES.issuperset(names):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    fs.unlink(f"{directory}/{name}")
            fs.rmdir(directory)  # not empty, if somebody begins in it just now


class StagedReader:
    """The staged page at `path`."""

    def __init__(self, fs: FileSystem, path: str, page: StagedPage) -> None:
        self._page: StagedPage = page
        self._reader: PageReader = PageReader.staged(fs, path, page.page_id)
        self._next: tuple[int, int] = (0, PAGE_HEADER_BYTES)  # frame, and where it begins

    def read(self, frame: int, max_records: int, max_bytes: int) -> list[StreamRecord]:
        """Up to so many records from `frame` on, at least one; max_bytes: of payloads and meta.
        Their offset is the frame. CorruptionError (also: the page is missing), OSError."""
        page = self._page
        count = min(max_records, page.rows - frame)
        hint = self._next[1] if self._next[0] == frame else 0
        out: list[StreamRecord] = []
        try:
            place = self._reader.read(frame, count, page.bytes, hint, max_bytes, out)
        except FileNotFoundError:
            raise CorruptionError(self._reader.path, 0, "the staged page is missing") from None
        self._next = frame + len(out), place
        return out

    def close(self) -> None:
        """Close the files; they are opened again when they are needed."""
        self._reader.close()


CHECKSUM_MASK: Final = (1 << 61) - 1
_U32_MASK: Final = 0xFFFFFFFF
_MIX_1: Final = 0x1B873593
_MIX_2: Final = 0x19D699A5


def staged_checksum(data: bytes, rows: bytes, position: int, seed: int, rel: int) -> int:
    """The checksum of `data` if these are whole frames of time 0, each verified, which begin at
    `position` of the page with frame `rel`, and `rows` exactly theirs; else -1. Why not: call
    `scan_frames`, which takes longer because it makes the rows. data: below 2^31 bytes."""
    at = 0
    size = len(data)
    row = 0
    end_of_rows = len(rows)
    total = 0
    while row < end_of_rows:
        if size - at < FRAME_BYTES or end_of_rows - row < INDEX_ROW_BYTES:
            return -1
        payload_bytes: int = read_i32_le(data, at + 4)
        meta_bytes: int = read_i32_le(data, at + 8)
        end: int = at + FRAME_BYTES + payload_bytes + meta_bytes
        if payload_bytes < 0 or meta_bytes < 0 or end > size:
            return -1
        if read_i32_le(data, at + 12) != 0 or read_i64_le(data, at + 16) != 0:
            return -1  # flags, time
        said: int = read_i64_le(rows, row)
        if said != position + at + (payload_bytes << 32) or read_i64_le(rows, row + 8) != 0:
            return -1
        crc: int = read_i32_le(data, at)
        content = data[at + 4 : end]
        if crc32(content, seed ^ (rel & _U32_MASK)) != crc & _U32_MASK:
            return -1
        total = (total + mixed(crc32(content))) & CHECKSUM_MASK
        at = end
        row += INDEX_ROW_BYTES
        rel += 1
    return total if at == size else -1


def mixed(crc: int) -> int:
    """What a row whose content has this CRC-32 adds to the checksum."""
    one = crc * _MIX_1
    one ^= one >> 29
    return (one & _U32_MASK) * _MIX_2
