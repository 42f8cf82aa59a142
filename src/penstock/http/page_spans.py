"""Spans: the records of a range, as runs of one page's bytes, verified, a MiB at a time.

Whoever sends pages over a network must not send a byte that the disk got wrong, and must not hold a
page in memory. So a range becomes spans, one after the other, and what a span hands out was checked
in the very copy that it hands out:

    sealed page     its index has a CRC of its own, and one for each MiB of the page: a span is the
                    frames that begin in one of these blocks, cut out of the blocks by the rows
    active page,    each frame has a CRC, which proves that it is this frame of this page: a span is
    index lost      a MiB of frames. The index' row is believed only as far as the frame proves it
    large record    a span of its own, longer than PIECES_BYTES: read twice, first to check all of
                    it, then piece by piece to hand it out, each piece compared with the first time

A page that retention deletes while a span is read stays readable, for it is open; one that is
opened too late is a FileNotFoundError. Damage is a CorruptionError with file and position; the
spans before it have come.

Not here: what a span looks like on the wire (frame_chunks), where a stream ends (stream_view).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Final

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.http.byte_cache import ByteCache
from penstock.storage.filesystem import File, FileSystem
from penstock.storage.page import (
    BLOCK_BYTES,
    FRAME_BYTES,
    PAGE_HEADER_BYTES,
    check_header,
    page_id,
    page_name,
    page_seed,
    scan_frames,
)
from penstock.storage.page_index import (
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    IndexHeader,
    check_index,
    decode_blocks,
    decode_index_header,
    decode_row,
)

SPAN_BYTES: Final = 1 << 20
PIECES_BYTES: Final = 4 << 20  # a longer span is never whole in memory
BACKWARDS: Final = (0, 256, 4096, 65536)  # from a row that proves false to one that may be true
_CRC_OF_FRAME: Final = 4

__all__ = ["PIECES_BYTES", "Page", "Span", "crc32", "open_page"]


class Span:
    """Records that follow one another in a page.

    first_offset, count: which. page_id, base: of the page. start, end: positions of the first
    frame and behind the last. rows: theirs in the index. pieces(): the bytes from start to end,
    verified; again: again. CorruptionError, OSError.
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
    """One open page. Offsets are counted from its base here (rel)."""

    def __init__(self, file: File, id: int, base: int) -> None:
        self.id = id
        self.base = base
        self.path = file.path
        self._file = file
        self._seed = page_seed(id)

    def close(self) -> None:
        """Spans that were handed out cannot be read any more."""
        self._file.close()

    @abstractmethod
    def spans(self, first: int, last: int) -> Iterator[Span]:
        """The records [first, last), counted from the base; they are there."""

    def _pread(self, length: int, position: int) -> bytes:
        data = self._file.pread(length, position)
        if len(data) < length:
            end = position + len(data)
            raise CorruptionError(
                self.path, end, f"it ends here, expected byte {position + length}"
            )
        return data


class SealedPage(Page):
    """A page with a good index. index: its whole file, checked."""

    def __init__(self, file: File, header: IndexHeader, index: bytes, cache: ByteCache) -> None:
        super().__init__(file, header.id, header.base)
        self.count = header.count
        self._page_bytes = header.page_bytes
        self._index = index
        self._crcs = decode_blocks(index, header)
        self._cache = cache

    def _start(self, rel: int) -> int:
        """Where a record begins; of the one behind the last: where the page ends."""
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
            while low < high:  # the first record that begins behind the border
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
        """One MiB of the page; the last one is shorter."""
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
    """A page whose index proves nothing. limit: where its frames end. index: the file that may say
    where they begin; short, wrong or missing. time: the 8 bytes that all rows have as their time,
    of a page that was staged; b"": each frame has its own."""

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
        """The rows as bytes, with the time that they are to have."""
        if self._time:
            return b"".join([row[:8] + self._time for row in rows])
        return b"".join(rows)

    def _begin(self, first: int, last: int) -> tuple[int, int, int | None]:
        """(a record at or before `first`, where it begins, where `last` may begin: a guess). The
        record is that of the nearest row which proves true, else the very first."""
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
        """Does record `rel` begin there?"""
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
        """One record, checked, and not kept."""
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
                    raise CorruptionError(self.path, at, "it reads otherwise than before")
                yield memoryview(data)

        return Span(self, rel, row, end, pieces)


def open_page(
    fs: FileSystem, directory: str, stream_id: bytes, base: int, limit: int | None,
    cache: ByteCache,
) -> Page:  # fmt: skip
    """The page that begins with offset `base`. limit: where its settled frames end, None: where the
    file does. FileNotFoundError: it is no more. CorruptionError: it is another page."""
    path = f"{directory}/{page_name(base)}.page"
    id = page_id(stream_id, base)
    file = fs.open(path)
    try:
        header = check_header(path, file.pread(PAGE_HEADER_BYTES, 0), id, base)
        id = header.id  # of a page that was staged, the header says it
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
    """The index, if it is sealed and good; else it is done without. Pages that are derived data may
    be made again, of one id and with another end: the header tells them apart."""
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
    """Where an index says that a record begins."""
    row = index.pread(INDEX_ROW_BYTES, INDEX_HEADER_BYTES + INDEX_ROW_BYTES * rel)
    return decode_row(row, 0)[0] if len(row) == INDEX_ROW_BYTES else 0
