"""Pages for readers over HTTP: the records of a range, verified, and the chunks that carry them.

A page that is sent over a network must not have a byte that the disk got wrong, and must not be
held in memory as a whole. So a range is read as spans: runs of records of one page, of about a MiB.
The bytes of a span are checked in the same copy that is sent:

    sealed page     its index has a CRC of its own, and one for each MiB of the page: a span is the
                    frames that begin in one of these blocks, cut out of the blocks by the rows
    active page,    each frame has a CRC, which proves that it is this frame of this page: a span is
    index lost      a MiB of frames. A row of the index is used only if the frame confirms it
    large record    a span of its own, longer than PIECES_BYTES. It is read twice: first to check
                    all of it, then piece by piece to send it, each piece compared with the first
                    read

A page that retention deletes while a span is read stays readable, because its file is open; opening
it later raises FileNotFoundError. Damage raises CorruptionError with file and position, after the
spans before it.

**Frame chunks.** The media type application/x-penstock-frames has one chunk for each span, one
after the other. A chunk is of one page and never holds a part of a record:

    header, 64 B  magic "PNSTFRMS" 8 | version u16 | zeros u16 | count u32 | page id u64 |
                  base offset u64 (of the page) | first offset u64 (of the chunk) |
                  data start u32 (the position in the page of data's first byte) | data bytes u32 |
                  rows bytes u32 | crc u32 of rows and data, unseeded | zeros to 64
    rows          16 B each, as in the index of the page: frame start in the page u32 |
                  payload bytes u32 | time i64
    data          the bytes of the page from the first frame's start to the last one's end

Little-endian. The offsets of a chunk continue those of the chunk before it; the end of a page is
the end of a chunk. storage.page defines the frame. So code that reads a page and its index can read
a chunk as well. The crc lets the receiver check again what network and proxies delivered. A body
that ends within a chunk, or without the end that HTTP sends, was cut: the chunks before are good,
and the next request continues after them.
"""

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import closing
from typing import Final

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.pages.page import (
    BLOCK_BYTES,
    FRAME_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    ChunkHead,
    IndexHeader,
    check_header,
    check_index,
    decode_blocks,
    decode_index_header,
    decode_row,
    encode_chunk_head,
    page_id,
    page_name,
    page_seed,
    scan_frames,
)

SPAN_BYTES: Final = 1 << 20
PIECES_BYTES: Final = 4 << 20  # a longer span is never held whole
BACKWARDS: Final = (0, 256, 4096, 65536)  # records to go back from a row that is wrong
_CRC_OF_FRAME: Final = 4


class ByteCache:
    """Bytes that were read and verified, the most recently used of them. Any thread may call.

    Reading a page in chunks reads the block at a border twice, and tasks that read parts of one
    page all need its index, so a few MiB of both are kept. A key says which bytes it stands for
    (page id, block, checksum), so an entry is never stale. limit_bytes: the most that is held."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[Hashable, bytes] = OrderedDict()
        self.held_bytes = 0

    def get(self, key: Hashable) -> bytes | None:
        """Return the bytes of the key, or None if they are not held."""
        with self._lock:
            data = self._held.get(key)
            if data is not None:
                self._held.move_to_end(key)
            return data

    def put(self, key: Hashable, data: bytes) -> None:
        """Hold the bytes, unless they are too many, until others are used more recently."""
        if len(data) > self._limit_bytes:
            return
        with self._lock:
            before = self._held.pop(key, None)
            if before is not None:
                self.held_bytes -= len(before)
            self._held[key] = data
            self.held_bytes += len(data)
            while self.held_bytes > self._limit_bytes:
                _, gone = self._held.popitem(last=False)
                self.held_bytes -= len(gone)


class Span:
    """Records that follow one another in a page.

    first_offset, count: of the records. page_id, base: of the page. start, end: positions in the
    page where the first frame begins and the last one ends. rows: the rows of the index. pieces():
    the verified bytes from start to end; each call reads them again and raises CorruptionError or
    OSError.
    """

    __slots__ = ("base", "count", "end", "first_offset", "page_id", "pieces", "rows", "start")

    def __init__(
        self, page: "Page", first_rel: int, rows: bytes, end: int,
        pieces: Callable[[], Iterator[memoryview]],
    ) -> None:  # fmt: skip
        self.page_id = page.id
        self.base = page.base
        self.first_offset = page.base + first_rel
        self.count = len(rows) // INDEX_ROW_BYTES
        self.rows = rows
        self.start = decode_row(rows, 0)[0]
        self.end = end
        self.pieces = pieces


class Page(ABC):
    """An open page. Its records are counted from its base (rel)."""

    def __init__(self, file: File, id: int, base: int) -> None:
        self.id = id
        self.base = base
        self.path = file.path
        self._file = file
        self._seed = page_seed(id)

    def close(self) -> None:
        """Close the file. Spans of the page cannot be read any more."""
        self._file.close()

    @abstractmethod
    def spans(self, first: int, last: int) -> Iterator[Span]:
        """Yield the records [first, last), counted from the base. They must exist."""

    def _pread(self, length: int, position: int) -> bytes:
        data = self._file.pread(length, position)
        if len(data) < length:
            end = position + len(data)
            raise CorruptionError(
                self.path, end, f"it ends here, expected byte {position + length}"
            )
        return data


class SealedPage(Page):
    """A page with a good index. index: the whole index file, checked."""

    def __init__(self, file: File, header: IndexHeader, index: bytes, cache: ByteCache) -> None:
        super().__init__(file, header.id, header.base)
        self.count = header.count
        self._page_bytes = header.page_bytes
        self._index = index
        self._crcs = decode_blocks(index, header)
        self._cache = cache

    def _start(self, rel: int) -> int:
        """Return where a record begins; for rel == count, where the page ends."""
        if rel == self.count:
            return self._page_bytes
        return decode_row(self._index, INDEX_HEADER_BYTES + INDEX_ROW_BYTES * rel)[0]

    def spans(self, first: int, last: int) -> Iterator[Span]:
        if last > self.count:
            reason = f"the page has {self.count} records, expected {last}"
            raise CorruptionError(self.path, self._page_bytes, reason)
        while first < last:
            border = (self._start(first) // BLOCK_BYTES + 1) * BLOCK_BYTES
            low, high = first + 1, last
            while low < high:  # find the first record that begins after the border
                middle = (low + high) // 2
                if self._start(middle) < border:
                    low = middle + 1
                else:
                    high = middle
            at = INDEX_HEADER_BYTES + INDEX_ROW_BYTES * first
            rows = self._index[at : at + INDEX_ROW_BYTES * (low - first)]
            start, end = self._start(first), self._start(low)
            yield Span(self, first, rows, end, lambda start=start, end=end: self._cut(start, end))  # type: ignore[misc]
            first = low

    def _cut(self, start: int, end: int) -> Iterator[memoryview]:
        while start < end:
            block = start // BLOCK_BYTES
            begin = block * BLOCK_BYTES
            stop = min(end, begin + BLOCK_BYTES)
            yield memoryview(self._block(block))[start - begin : stop - begin]
            start = stop

    def _block(self, block: int) -> bytes:
        """Return one block of the page, a MiB; the last one is shorter."""
        key = (self.id, block, self._crcs[block])
        data = self._cache.get(key)
        if data is None:
            begin = block * BLOCK_BYTES
            data = self._pread(min(BLOCK_BYTES, self._page_bytes - begin), begin)
            if crc32(data, self._seed ^ block) != self._crcs[block]:
                raise CorruptionError(self.path, begin, f"MiB {block} of it does not verify")
            self._cache.put(key, data)
        return data


class OpenPage(Page):
    """A page without a sealed index. limit: where its frames end. index: the path of the index,
    which may be short, wrong or missing. time: the 8 bytes that all rows of a staged page have as
    their time; b"" if each frame has its own."""

    def __init__(
        self, file: File, id: int, base: int, limit: int, fs: FileSystem, index: str, time: bytes
    ) -> None:
        super().__init__(file, id, base)
        self._time = time
        self._limit = limit
        self._fs = fs
        self._index = index

    def spans(self, first: int, last: int) -> Iterator[Span]:
        rel, position, behind = self._begin(first, last)
        need = 0
        while rel < last:
            wanted = SPAN_BYTES
            if behind is not None and position < behind < position + SPAN_BYTES:
                wanted = behind - position
            wanted = min(max(wanted, need), self._limit - position)
            if wanted > PIECES_BYTES:
                span = self._large(rel, position, wanted)
                if rel >= first:
                    yield span
                rel, position, need = rel + 1, span.end, 0
                continue
            data = self._pread(wanted, position)
            scan = scan_frames(data, position, self._seed, rel, 0, self._limit)
            rows = scan.rows[: last - rel]
            if rows:
                skipped = max(0, min(first - rel, len(rows)))
                end = (
                    decode_row(scan.rows[len(rows)], 0)[0]
                    if len(scan.rows) > len(rows)
                    else scan.end
                )
                if skipped < len(rows):
                    start = decode_row(rows[skipped], 0)[0]
                    piece = memoryview(data)[start - position : end - position]
                    yield Span(
                        self, rel + skipped, self._timed(rows[skipped:]), end,
                        lambda piece=piece: iter((piece,)),  # type: ignore[misc]
                    )  # fmt: skip
                rel += len(rows)
            if rel < last and scan.fault:
                raise CorruptionError(self.path, scan.end, scan.fault)
            position, need = scan.end, scan.need
            if rel < last and position >= self._limit:
                reason = f"the page has {rel} records, expected {last}"
                raise CorruptionError(self.path, position, reason)

    def _timed(self, rows: list[bytes]) -> bytes:
        """Return the rows as bytes, with the time of the page if it has one."""
        if self._time:
            return b"".join([row[:8] + self._time for row in rows])
        return b"".join(rows)

    def _begin(self, first: int, last: int) -> tuple[int, int, int | None]:
        """Return (a record at or before `first`, where it begins, a guess where `last` begins). The
        record is the nearest one whose row the frame confirms, otherwise the first of the page."""
        try:
            file = self._fs.open(self._index)
        except FileNotFoundError:
            return 0, PAGE_HEADER_BYTES, None
        with closing(file):
            rows = (file.size() - INDEX_HEADER_BYTES) // INDEX_ROW_BYTES
            behind = _start_in(file, last) if last < rows else None
            for back in BACKWARDS:
                rel = min(first, rows - 1) - back
                if rel <= 0:
                    break
                position = _start_in(file, rel)
                if self._is_frame(rel, position):
                    return rel, position, behind
        return 0, PAGE_HEADER_BYTES, behind

    def _is_frame(self, rel: int, position: int) -> bool:
        """Return whether record `rel` begins at this position."""
        if not PAGE_HEADER_BYTES <= position <= self._limit - FRAME_BYTES:
            return False
        head = self._pread(FRAME_BYTES, position)
        size = FRAME_BYTES + int.from_bytes(head[4:8], "little")
        size += int.from_bytes(head[8:12], "little")
        if position + size > self._limit:
            return False
        crc = self._seed ^ (rel & 0xFFFFFFFF)
        for at in range(position + _CRC_OF_FRAME, position + size, SPAN_BYTES):
            crc = crc32(self._pread(min(SPAN_BYTES, position + size - at), at), crc)
        return crc == int.from_bytes(head[:_CRC_OF_FRAME], "little")

    def _large(self, rel: int, position: int, size: int) -> Span:
        """Return the span of one large record. Reads all of it once to check it."""
        head = self._pread(FRAME_BYTES, position)
        crc = self._seed ^ (rel & 0xFFFFFFFF)
        end = position + size
        crcs: list[int] = []
        for at in range(position, end, SPAN_BYTES):
            data = self._pread(min(SPAN_BYTES, end - at), at)
            crcs.append(crc32(data))
            crc = crc32(data[_CRC_OF_FRAME:] if at == position else data, crc)
        if crc != int.from_bytes(head[:_CRC_OF_FRAME], "little") or any(head[12:16]):
            raise CorruptionError(self.path, position, "the frame does not verify")
        row = position.to_bytes(4, "little") + head[4:8] + (self._time or head[16:24])

        def pieces() -> Iterator[memoryview]:
            for number, at in enumerate(range(position, end, SPAN_BYTES)):
                data = self._pread(min(SPAN_BYTES, end - at), at)
                if crc32(data) != crcs[number]:
                    raise CorruptionError(self.path, at, "the second read differs from the first")
                yield memoryview(data)

        return Span(self, rel, row, end, pieces)


def open_page(
    fs: FileSystem, directory: str, stream_id: bytes, base: int, limit: int | None,
    cache: ByteCache,
) -> Page:  # fmt: skip
    """Open the page that begins with offset `base`. limit: where its settled frames end, None for
    the end of the file. Raises FileNotFoundError if it was deleted, CorruptionError if the file is
    another page."""
    path = f"{directory}/{page_name(base)}.page"
    id = page_id(stream_id, base)
    file = fs.open(path)
    try:
        header = check_header(path, file.pread(PAGE_HEADER_BYTES, 0), id, base)
        id = header.id  # a staged page has its own, which its header says
        index_path = f"{directory}/{page_name(base)}.idx"
        sealed = _sealed(fs, index_path, id, base, cache)
        if sealed is not None:
            return SealedPage(file, sealed[0], sealed[1], cache)
        end = file.size() if limit is None else limit
        time = b""
        if header.is_staged:
            time = header.base_time_us.to_bytes(8, "little", signed=True)
        return OpenPage(file, id, base, end, fs, index_path, time)
    except BaseException:
        file.close()
        raise


def _sealed(
    fs: FileSystem, path: str, id: int, base: int, cache: ByteCache
) -> tuple[IndexHeader, bytes] | None:
    """Return the index if it is sealed and good, otherwise None. Pages of a lease may be made again
    with the same id and another end; the header tells them apart."""
    try:
        with closing(fs.open(path)) as file:
            header = decode_index_header(path, file.pread(INDEX_HEADER_BYTES, 0))
        if not header.is_sealed or header.id != id or header.base != base:
            return None
        data = cache.get(("index", id, header.count, header.rows_crc))
        if data is None:
            data = fs.read(path)
            header = check_index(path, data)
            cache.put(("index", id, header.count, header.rows_crc), data)
    except (CorruptionError, FileNotFoundError):
        return None
    return header, data


def _start_in(index: File, rel: int) -> int:
    """Return where a record begins by the index, 0 if it has no such row."""
    row = index.pread(INDEX_ROW_BYTES, INDEX_HEADER_BYTES + INDEX_ROW_BYTES * rel)
    return decode_row(row, 0)[0] if len(row) == INDEX_ROW_BYTES else 0


def encode_chunk(span: Span) -> Iterator[bytes]:
    """Yield the chunk of a span: whole, or in pieces of a MiB if it is a large record."""
    data_bytes = span.end - span.start
    is_small = data_bytes <= PIECES_BYTES
    pieces = list(span.pieces()) if is_small else []
    crc = crc32(span.rows)
    for piece in pieces if is_small else span.pieces():
        crc = crc32(piece, crc)
    head = ChunkHead(
        span.count, span.page_id, span.base, span.first_offset, span.start, data_bytes,
        len(span.rows), crc,
    )  # fmt: skip
    header = encode_chunk_head(head)
    if is_small:
        yield b"".join((header, span.rows, *pieces))
        return
    yield header + span.rows
    for piece in span.pieces():
        yield bytes(piece)
