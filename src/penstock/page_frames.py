"""Frames: the records of a range of one page, as one array of rows and one run of bytes, verified.

Code that reads a stream by columns (the Spark source, the Arrow endpoint) should not make an object
per record. It needs to know where each record begins, how long its payload is and its time, as
NumPy columns, and the bytes of the page. A page's index is such a table, and the page is mapped.
Over the network they arrive as chunks of the same parts. So there is one class, Frames, with two
ways to get it, and the same code uses both (arrow_batches.py).

Damaged bytes are never returned:

* a sealed page is checked by the CRCs of its MiB blocks, which are in its index; only the blocks of
  the range, each once as long as the page stays mapped;
* an active page, and one whose index is lost or wrong, by the CRC of each frame of the range;
* a chunk by its own CRC; its sender has checked the page.

The index is trusted as far as its own CRC reaches. A missing or torn index, or one of another page,
is not an error: the rows are found again by walking the frames. A page that fails is a
CorruptionError with the file and the position of the frame, or of the block if no frame can be
named.

storage/pages/page.py defines the formats. penstock.storage.pages.stream_view knows which pages a
stream has and where its head is.
"""

import mmap
from dataclasses import dataclass
from io import SEEK_END
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.storage.pages.page import (
    BLOCK_BYTES,
    FRAME,
    FRAME_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    ChunkHead,
    decode_header,
    decode_index_header,
    page_seed,
)

ROW: Final = np.dtype([("start", "<u4"), ("size", "<u4"), ("time", "<i8")])

_WRONG: Final = "the CRC of the record at offset {} is wrong"

Rows = Any  # a NumPy array of ROW


@dataclass(frozen=True, slots=True)
class Frames:
    """Consecutive records of one page, verified.

    rows: a row for each record, positions in the page. data: bytes of the page from position
    `data_start` on. end: the position where the last frame ends. first_offset: of the first record.
    """

    rows: Rows
    data: Any
    data_start: int
    end: int
    first_offset: int

    @property
    def count(self) -> int:
        """Return how many records there are."""
        return len(self.rows)


# ---- from a file ---------------------------------------------------------------------------------


class PageMap:
    """A page, mapped, with its rows.

    count: how many records of it are settled. page_bytes: where they end; None for a page that is
    no longer written, which is used to its index's or its own end. FileNotFoundError: retention
    took it. CorruptionError: it is not the page that its name says.
    """

    def __init__(self, path: str, base: int, count: int, page_bytes: int | None = None) -> None:
        self.path = path
        self.base = base
        self.count = count
        with Path(path).open("rb") as file:
            head = decode_header(path, file.read(PAGE_HEADER_BYTES))
            if head.base != base:
                reason = f"the page of offset {head.base}, expected that of {base}"
                raise CorruptionError(path, 24, reason)
            self.page_id = head.id
            self._time_us = head.base_time_us if head.is_staged else None  # of all its records
            self._seed = page_seed(self.page_id)
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._limit = len(self.data) if page_bytes is None else page_bytes
        index = _sealed_index(path, self.page_id, base)
        self._index = index if index is not None and index.count >= count else None
        if self._index is not None and page_bytes is None:
            self._limit = self._index.page_bytes
        if self._limit > len(self.data):
            reason = f"the page ends, expected {self._limit} bytes"
            raise CorruptionError(path, len(self.data), reason)
        self._checked: set[int] = set()
        self._walked: list[tuple[int, int, int]] = []  # the first rows, if the index lacks them

    @property
    def is_staged(self) -> bool:
        """Whether it was staged, and adopted by its stream: then its id is random."""
        return self._time_us is not None

    def frames(self, first: int, last: int) -> Frames:
        """Return the records of the offsets [first, last), which are in this page; verified."""
        a, b = first - self.base, last - self.base
        if not 0 <= a <= b <= self.count:
            end = self.base + self.count
            raise ValueError(f"offsets {first} to {last}, expected within {self.base} to {end}")
        if a == b:
            return Frames(np.empty(0, ROW), self.data, 0, PAGE_HEADER_BYTES, first)
        index = self._index
        if index is None:
            rows, end = self._found(a, b)
        else:
            rows, end = index.rows[a:b], self._start(index, b)
            self._check_blocks(index, int(rows["start"][0]), end)
        return Frames(rows, self.data, 0, end, first)

    def close(self) -> None:
        """Unmap the page as soon as nothing uses its bytes."""
        try:
            self.data.close()
        except BufferError:
            pass  # an array still looks at it, and unmaps it when it goes

    def _start(self, index: "_Index", at: int) -> int:
        """Return where a record of a sealed page begins; of the one behind the last, where it
        ends."""
        return int(index.rows["start"][at]) if at < len(index.rows) else self._limit

    def _check_blocks(self, index: "_Index", start: int, end: int) -> None:
        """Check each block of [start, end) that was not checked yet."""
        view = memoryview(self.data)
        for block in range(start // BLOCK_BYTES, (end - 1) // BLOCK_BYTES + 1):
            if block in self._checked:
                continue
            at = block * BLOCK_BYTES
            piece = view[at : min(at + BLOCK_BYTES, index.page_bytes)]
            if crc32(piece, self._seed ^ block) != int(index.blocks[block]):
                self._blame(index, block)
            self._checked.add(block)

    def _blame(self, index: "_Index", block: int) -> None:
        """Raise CorruptionError for this block: it names the wrong frame, or the block if there is
        none."""
        starts = index.rows["start"]
        a = max(int(np.searchsorted(starts, block * BLOCK_BYTES, "right")) - 1, 0)
        b = int(np.searchsorted(starts, (block + 1) * BLOCK_BYTES))
        good = self._right(index.rows[a:b], a)
        if a + good < b:
            reason = _WRONG.format(self.base + a + good)
            raise CorruptionError(self.path, int(starts[a + good]), reason)
        reason = f"the CRC of MiB {block} of the page is wrong"
        raise CorruptionError(self.path, block * BLOCK_BYTES, reason)

    def _found(self, a: int, b: int) -> tuple[Rows, int]:
        """Return the rows [a, b) of a page that is not sealed, and where the last of them ends.
        They are from its index as far as it has them and they are right, then from the frames."""
        rows, first = _unsealed_rows(self.path, a, b)
        good = self._right(rows, first)
        if good:
            rows = rows[:good]
            more, end = self._walk([], self._end(int(rows["start"][-1])), first + good, b)
            if more:
                rows = np.concatenate([rows, np.array(more, ROW)])
            return rows[a - first :], end
        # Where each frame is hangs on the lengths of those before it.
        walked = self._walked
        self._walk(
            walked, self._end(walked[-1][0]) if walked else PAGE_HEADER_BYTES, len(walked), b
        )
        rows = np.array(walked[a:b], ROW)
        return rows, self._end(int(rows["start"][-1]))

    def _walk(
        self, walked: list[tuple[int, int, int]], at: int, index: int, last: int
    ) -> tuple[list[tuple[int, int, int]], int]:
        """Add the rows [index, last) to `walked`, from the frames at `at` on, and return it with
        where the last of them ends. Each is checked at once: what follows hangs on its lengths."""
        view = memoryview(self.data)
        for offset in range(self.base + index, self.base + last):
            if at + FRAME_BYTES > self._limit:
                reason = f"the page ends at {self._limit}, before the record at offset {offset}"
                raise CorruptionError(self.path, at, reason)
            crc, payload, meta, _, time_us = FRAME.unpack_from(self.data, at)
            end = at + FRAME_BYTES + payload + meta
            seed = self._seed ^ (offset - self.base)
            if end > self._limit or crc32(view[at + 4 : end], seed) != crc:
                raise CorruptionError(self.path, at, _WRONG.format(offset))
            walked.append((at, payload, time_us if self._time_us is None else self._time_us))
            at = end
        return walked, at

    def _end(self, start: int) -> int:
        """Return where the frame at that position ends."""
        _, payload, meta, _, _ = FRAME.unpack_from(self.data, start)
        return int(start + FRAME_BYTES + payload + meta)

    def _right(self, rows: Rows, index: int) -> int:
        """Return how many of these rows from the first on agree with frames whose CRC is right; the
        first is record `index` of the page. A frame's CRC says which record it is."""
        last = self._limit - FRAME_BYTES
        if not len(rows) or last < PAGE_HEADER_BYTES:
            return 0
        starts = rows["start"].astype(np.int64)
        at = np.minimum(starts, last)
        payload = _numbers_at(self.data, at + 4, "<u4").astype(np.int64)
        meta = _numbers_at(self.data, at + 8, "<u4").astype(np.int64)
        ends = at + FRAME_BYTES + payload + meta
        is_right = (starts == at) & (payload == rows["size"]) & (ends <= self._limit)
        is_right[1:] &= starts[1:] == ends[:-1]
        times = _numbers_at(self.data, at + 16, "<i8") if self._time_us is None else self._time_us
        is_right &= times == rows["time"]
        good = _true_from_first(is_right)
        view = memoryview(self.data)
        seeds = (np.arange(index, index + good) ^ self._seed).tolist()
        froms = (starts[:good] + 4).tolist()
        crc = crc32
        found = [crc(view[a:b], c) for a, b, c in zip(froms, ends.tolist(), seeds, strict=False)]
        expected = _numbers_at(self.data, at[:good], "<u4")
        return _true_from_first(np.array(found, np.uint32) == expected)


@dataclass(frozen=True, slots=True)
class _Index:
    """The index of a sealed page. blocks: CRCs of its MiB."""

    count: int
    page_bytes: int
    rows: Rows
    blocks: Any


def _sealed_index(page_path: str, page_id: int, base: int) -> _Index | None:
    """Return the index of a sealed page; None if it has none, or that of another page."""
    try:
        with Path(_index_path(page_path)).open("rb") as file:
            head = decode_index_header(page_path, file.read(INDEX_HEADER_BYTES))
            if (head.id, head.base) != (page_id, base) or not head.is_sealed:
                return None
            size = head.file_bytes() - INDEX_HEADER_BYTES
            body = file.read(size)
    except (CorruptionError, FileNotFoundError):
        return None
    if len(body) < size or crc32(body, 0) != head.rows_crc:
        return None
    rows = np.frombuffer(body, ROW, head.count)
    crcs = np.frombuffer(body, "<u4", offset=head.count * INDEX_ROW_BYTES)
    return _Index(head.count, head.page_bytes, rows, crcs)


def _unsealed_rows(page_path: str, a: int, b: int) -> tuple[Rows, int]:
    """Return what the index of an unsealed page has of the rows [a, b), not checked, and the number
    of the first. If it has none of them, that is its last row."""
    try:
        with Path(_index_path(page_path)).open("rb") as file:
            there = (file.seek(0, SEEK_END) - INDEX_HEADER_BYTES) // INDEX_ROW_BYTES
            first, last = min(a, there - 1), min(b, there)
            if first < 0:
                return np.empty(0, ROW), 0
            file.seek(INDEX_HEADER_BYTES + first * INDEX_ROW_BYTES)
            raw = file.read((last - first) * INDEX_ROW_BYTES)
    except FileNotFoundError:
        return np.empty(0, ROW), 0
    return np.frombuffer(raw, ROW, len(raw) // INDEX_ROW_BYTES), first


def _index_path(page_path: str) -> str:
    return page_path.removesuffix(".page") + ".idx"


def _numbers_at(data: Any, at: Any, kind: str) -> Any:
    """Return the number of that NumPy type at each of these positions, aligned or not."""
    count = len(data) - np.dtype(kind).itemsize + 1
    return np.ndarray((count,), kind, data, strides=(1,))[at]


def _true_from_first(values: Any) -> int:
    """Return how many of these are true before the first that is not."""
    wrong = np.flatnonzero(~values)
    return int(wrong[0]) if len(wrong) else len(values)


# ---- from the network ----------------------------------------------------------------------------


def decode_chunk(head: ChunkHead, body: Any, source: str) -> Frames:
    """Return the records of a chunk. body: all after its header."""
    size = head.rows_bytes + head.data_bytes
    if len(body) != size:
        reason = f"a chunk of {len(body)} bytes, expected {size}"
        raise CorruptionError(source, head.data_start, reason)
    if crc32(body, 0) != head.crc:
        reason = f"the CRC of the chunk at offset {head.first_offset} is wrong"
        raise CorruptionError(source, head.data_start, reason)
    rows = np.frombuffer(body, ROW, head.record_count)
    data = memoryview(body)[head.rows_bytes :]
    return Frames(rows, data, head.data_start, head.data_start + head.data_bytes, head.first_offset)
