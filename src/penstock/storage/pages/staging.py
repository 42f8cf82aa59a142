"""Staging: rows that tasks of a sink have written and that are not committed yet, as page files.

    staging/<hash of the query>/    .query_name (for people)
                                    .owner: {"user": ..., "target": ...}, the owner of the query
                                    <batch>.<partition>.<attempt>.<k>.page, and .idx beside it

A staged page is a whole page of kind 2 (page.py) with a sealed index: random page id, base offset
0, time 0 in every frame. So a stream can adopt it unchanged, and rows for queues can be read from
it from any frame on, each verified by its own checksum. First and last time in the index header are
when the page was begun (microseconds since 1970). That is the age of the files for `Sweep`; the
index is written before the page, so that files of a task that died have an age too.

The process that serves HTTP stages: it verifies every frame before `StagedPageWriter` gets it, and
syncs files and names before it gives a token. The vhost's process reads and deletes. Two writers
never meet: the attempt in a name is random, and an existing name is refused.

The first to stage owns the query (`claim`). The vhost checks the owner before anybody may stage,
commit or abort. The record of a decided batch has the owner too; the file is deleted with the
directory.

Deleting: pages of a batch that is done are deleted after the checkpoint that says so [6]; pages
that no decision names by age (`Sweep`), or when their batch is aborted.

StagedReader reads a staged page slice by slice, to move its rows into queues, or through the log
into streams. Id, records and length come from the decision, not from the page's header; the index
is a hint where a frame begins, which the frame proves (page_reading.py).

**The checksum of a batch** (`staged_checksum`). Two commits with one number are the same batch if
they have the same rows, in any order and pages: a task that runs again stages its rows in other
pages, and a replay may have other partitions. So the checksum is a sum over rows, modulo 2^61. Each
row adds a mix of the CRC-32 of its frame after the frame's own CRC: lengths, body and header. The
mix (two multiplications, as in MurmurHash's finalizer, by constants of 29 bits so that nothing
exceeds 61 bits) is needed because CRC-32 is linear: without it, rows that exchange parts with one
another would often have the same sum. Another row has the same CRC-32 by chance once in 2^32. The
process that serves HTTP calls this for every frame of every upload; it makes no objects for rows.

Failure: StagingError says what is wrong with the pages of a commit; OSError from the disk.
"""

import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from librt.strings import read_i32_le, read_i64_le

from penstock.errors import CorruptionError, StorageError
from penstock.fast_crc import crc32
from penstock.storage.files.data_directory import hash_name, sync_dir, write_small
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.pages.batches import BatchTable, NameParts, QueryOwner, StagedPage, parse_name
from penstock.storage.pages.page import (
    BLOCK_BYTES,
    FRAME_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    KIND_STAGED,
    PAGE_HEADER_BYTES,
    IndexHeader,
    PageRecord,
    blocks,
    decode_header,
    decode_index_header,
    encode_header,
    page_seed,
)
from penstock.storage.pages.page_reading import PageReader

if TYPE_CHECKING:
    from mypy_extensions import i64  # for mypyc: a number of the machine, not an object

STAGING: Final = "staging"
STAGED_PAGE_BYTES_MAX: Final = 64 << 20
ZOMBIE_AGE_S: Final = 60.0  # when pages are deleted that can no longer be committed


class StagingError(StorageError):
    """A page of a commit is missing, or differs from its token."""


def staging_path(path: str) -> str:
    """Return the directory of staged pages in the vhost directory `path`."""
    return f"{path}/{STAGING}"


def query_path(path: str, query: str) -> str:
    """Return the directory of a query's staged pages in the vhost directory `path`."""
    return f"{path}/{STAGING}/{hash_name(query.encode())}"


def query_directory(fs: FileSystem, staging: str, query: str) -> str:
    """Return the directory of a query in `staging`, created if it is missing, its name durable.
    OSError, SyncFailedError."""
    directory = f"{staging}/{hash_name(query.encode())}"
    if not fs.exists(staging):
        fs.mkdir(staging)
        sync_dir(fs, staging.rpartition("/")[0])
    if not fs.exists(directory):
        fs.mkdir(directory)
        write_small(fs, directory + "/.query_name", query.encode() + b"\n")
        sync_dir(fs, directory)
    sync_dir(fs, staging)  # its creator may have died before
    return directory


OWNER: Final = ".owner"
FILE_BYTES_MIN: Final = 4096  # what a file costs on the disk
_NAMES: Final = frozenset((".query_name", OWNER))  # the files of a directory without pages


def read_owner(fs: FileSystem, path: str, query: str) -> QueryOwner | None:
    """Return who staged first for this query in the vhost directory `path`. None: nobody, or a
    power cut left no whole file, and then no token either. OSError."""
    return _owner_in(fs, query_path(path, query))


def _owner_in(fs: FileSystem, directory: str) -> QueryOwner | None:
    try:
        found = json.loads(fs.read(f"{directory}/{OWNER}"))
        return QueryOwner(str(found["user"]), str(found["target"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def claim(fs: FileSystem, path: str, query: str, owner: QueryOwner) -> QueryOwner:
    """Return the owner of the query: this one, made durable, if there is none yet. Call it in one
    thread at a time. OSError, SyncFailedError."""
    found = read_owner(fs, path, query)
    if found is not None:
        return found
    directory = query_directory(fs, staging_path(path), query)
    write_small(fs, f"{directory}/{OWNER}", json.dumps(owner._asdict()).encode())
    sync_dir(fs, directory)
    return owner


class StagedPageWriter:
    """A page that is being staged: <stem>.page and <stem>.idx in `directory`.

    page_id: random, 64 bits. time_us: now, microseconds since 1970. count, position: records and
    bytes of the page so far. FileExistsError if a file exists; ValueError for an invalid stem.
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
        """Append frames and their rows: verified, of time 0, and within STAGED_PAGE_BYTES_MAX
        unless it is a single frame. OSError: discard the page."""
        assert self._index is not None
        self._write(data)
        self._index.pwrite(rows, INDEX_HEADER_BYTES + self.count * INDEX_ROW_BYTES)
        self._rows_crc = crc32(rows, self._rows_crc)
        self.count += len(rows) // INDEX_ROW_BYTES

    def _write(self, data: bytes) -> None:
        """Write bytes to the page and add them to the CRCs of their blocks."""
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
        """Complete the index of the whole page. OSError: discard the page."""
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
        """Sync both files; their names need a sync of the directory. OSError: no token may be given
        [10]."""
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
        """Close the files and delete them. OSError."""
        self.close()
        _unlink(self._fs, self._stem + ".page")


# ---- what is there -------------------------------------------------------------------------------


def check_pages(fs: FileSystem, path: str, query: str, batch: int, pages: list[StagedPage]) -> None:
    """Check the staged pages of a commit against their tokens: names of this batch, each once,
    headers and lengths. Contents are verified when they are read. Changes nothing and may run in
    any thread. StagingError says what is wrong; OSError."""
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
        text = "it is not there: never staged, aborted, or deleted because of its age"
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
    """Return the bytes of all staged files of the vhost directory `path` by the user who owns their
    query, "" without an owner. A file counts FILE_BYTES_MIN at least. OSError."""
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
    """Return the files of staged pages (query, name)."""
    stems = [f"{query_path(path, query)}/{name.removesuffix('.page')}" for query, name in names]
    return [stem + ending for stem in stems for ending in (".page", ".idx")]


def delete_batch(fs: FileSystem, path: str, query: str, batch: int) -> int:
    """Delete all that is staged of a batch that was never decided; return how many pages.
    OSError."""
    return delete_staged(fs, query_path(path, query), lambda parts: parts.batch == batch)


def delete_staged(fs: FileSystem, directory: str, goes: Callable[[NameParts], bool]) -> int:
    """Delete the pages of a query's directory for which `goes` is true; return how many.
    OSError."""
    count = 0
    for page in _pages_in(fs, directory):
        if goes(parse_name(page)):
            _unlink(fs, f"{directory}/{page}")
            count += 1
    return count


def disown(fs: FileSystem, path: str, query: str, kept: set[str]) -> None:
    """Delete what is staged of a query that is over, except the pages with these names, and its
    owner. OSError."""
    directory = query_path(path, query)
    for page in _pages_in(fs, directory):
        if page not in kept:
            _unlink(fs, f"{directory}/{page}")
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(f"{directory}/{OWNER}")
    if not kept:
        _remove_empty(fs, directory)


class Sweep:
    """Deletes old staged pages. Holds what it must know of the batches: by the name of a query's
    directory the number of its last batch, and the pages that are still to be moved or wait for a
    checkpoint. dead: pages (query, name) that wait for the checkpoint in progress.

    A batch may be decided while `run` is in another thread, or after it, although its pages were
    checked before. So `run` notes each page in `gone` before it looks whether it is kept, and
    `keep` keeps each page before it looks whether it is gone: no page is deleted and decided.
    """

    def __init__(self, table: BatchTable, dead: list[tuple[str, str]]) -> None:
        self.last: dict[str, int] = {}
        self.kept: set[tuple[str, str]] = set()
        self.gone: set[tuple[str, str]] = set()
        for query, page in (*table.dead, *dead):
            self.kept.add((hash_name(query.encode()), page))
        for batch in table.by_query.values():
            directory = hash_name(batch.query.encode())
            self.last[directory] = batch.number
            self.kept.update([(directory, page.name) for page in batch.pages])

    def keep(self, query: str, pages: list[StagedPage]) -> None:
        """Keep the pages of a batch that is about to be decided. StagingError: one is deleted."""
        directory = hash_name(query.encode())
        self.kept.update([(directory, page.name) for page in pages])
        for page in pages:
            if (directory, page.name) in self.gone:
                raise StagingError(f"staged page {page.name!r} was deleted because of its age")

    def run(self, fs: FileSystem, path: str, older_than_s: float, now_us: int) -> list[str]:
        """Delete what was staged longer ago than that and never decided and, after a minute, pages
        of a batch number that was decided without them. Return the paths of the pages. In any
        thread. OSError."""
        gone: list[str] = []
        for directory in _directories(fs, path):
            name = directory.rpartition("/")[2]
            last = self.last.get(name, -1)
            for page in _pages_in(fs, directory):
                age_s = older_than_s
                if parse_name(page).batch <= last:
                    age_s = min(ZOMBIE_AGE_S, older_than_s)
                if _begun_us(fs, f"{directory}/{page}") >= now_us - age_s * 1_000_000:
                    continue
                place = (name, page)
                self.gone.add(place)
                if place in self.kept:
                    self.gone.discard(place)
                    continue
                _unlink(fs, f"{directory}/{page}")
                gone.append(f"{directory}/{page}")
            _remove_empty(fs, directory)
        return gone


def _pages_in(fs: FileSystem, directory: str) -> list[str]:
    """Return the names of staged pages, also of those with an index only. OSError."""
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
    """Return when a page was begun; 0 (long ago) if a power cut lost its index."""
    index_path = path.removesuffix(".page") + ".idx"
    try:
        with contextlib.closing(fs.open(index_path)) as file:
            return decode_index_header(index_path, file.pread(INDEX_HEADER_BYTES, 0)).first_time_us
    except (FileNotFoundError, CorruptionError):
        return 0


def _unlink(fs: FileSystem, path: str) -> None:
    """Delete a page, then its index: an index without a page is swept, a page without an index has
    no age."""
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
            fs.rmdir(directory)  # fails if an upload begins in it just now


class StagedReader:
    """Reads the staged page at `path`. One thread at a time. Where a read ended is kept, so that
    the next slice needs no index."""

    def __init__(self, fs: FileSystem, path: str, page: StagedPage) -> None:
        self._page: StagedPage = page
        self._reader: PageReader = PageReader.staged(fs, path, page.page_id)
        self._next: tuple[int, int] = (0, PAGE_HEADER_BYTES)  # frame, and where it begins

    def read(self, frame: int, max_records: int, max_bytes: int) -> list[PageRecord]:
        """Return up to max_records records from `frame` on, at least one; max_bytes: limit of
        payloads and meta. Their offset is the frame. CorruptionError (also for a missing page),
        OSError."""
        page = self._page
        count = min(max_records, page.rows - frame)
        hint = self._next[1] if self._next[0] == frame else 0
        out: list[PageRecord] = []
        try:
            place = self._reader.read(frame, count, page.bytes, hint, max_bytes, out)
        except FileNotFoundError:
            raise CorruptionError(self._reader.path, 0, "the staged page is missing") from None
        self._next = frame + len(out), place
        return out

    def close(self) -> None:
        """Close the files; they are opened again when needed."""
        self._reader.close()


CHECKSUM_MASK: Final = (1 << 61) - 1
_U32_MASK: Final = 0xFFFFFFFF
_MIX_1: Final = 0x1B873593
_MIX_2: Final = 0x19D699A5


def staged_checksum(data: bytes, rows: bytes, position: int, seed: int, rel: int) -> int:
    """Return the checksum of `data` if these are whole, verified frames of time 0 which begin at
    `position` of the page with frame `rel`, and `rows` are exactly theirs; otherwise -1.
    `scan_frames` tells why, more slowly. data: below 2^31 bytes."""
    at = 0
    size = len(data)
    row = 0
    end_of_rows = len(rows)
    total: i64 = 0
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


def mixed(crc: "i64") -> "i64":
    """Return what a row whose content has this CRC-32 adds to the checksum."""
    one = crc * _MIX_1
    one ^= one >> 29
    return (one & _U32_MASK) * _MIX_2
