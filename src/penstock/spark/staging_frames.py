"""Frames for staging: from columns of Arrow to pages of frames, in chunks ready to be sent.

What a task of the sink stages is pages as the broker keeps them, made here, where the rows are: the
broker checks, writes and syncs them, and touches no message. The formats are those of
penstock.page_frames; what differs is that a staged page is of no stream yet:

    page id       random, chosen here; a chunk with another one than that before it begins a page
    base offset   0, first offset of a chunk: how many frames of the page stand before it
    time          0: the broker says when the batch came
    data start    the position in the page, behind the page's header of 64 bytes

A page ends before it has `page_bytes` (64 MiB), and a chunk before a MiB of frames, but for one
row that is larger; a row has to fit in a page.

No row is an object of Python but for its checksum. A chunk is two joins in C++: heads, bodies and
headers to what a CRC is of; the CRCs and that to frames. The offsets of the second are the rows of
the index. Between them one loop in C (map) over crc32, with a bytes object for each frame, which
costs about 0.15 us, and is the most of it.

Not here: what a header is (sink_columns.py), who sends it where (staging_link.py).
"""

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.fast_crc import crc32
from penstock.page_frames import (
    CHUNK_HEADER,
    CHUNK_MAGIC,
    FRAME_BYTES,
    HEADER_BYTES,
    ROW,
    VERSION,
    page_seed,
)

PAGE_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 1 << 20

# Of a frame, behind its CRC: payload bytes, meta bytes, flags, time.
HEAD: Final = np.dtype([("payload", "<u4"), ("meta", "<u4"), ("flags", "<u4"), ("time", "<i8")])
CRC_BYTES: Final = 4
_NOTHING: Final = pa.scalar(b"", pa.binary())


class Chunk(NamedTuple):
    """data: header, rows and frames, as they are sent. has_new_page: it begins a page."""

    data: bytes
    rows: int
    has_new_page: bool


def random_page_id() -> int:
    """An id that no page has had."""
    return random.SystemRandom().getrandbits(64)


class FrameMaker:
    """Makes the chunks of one task. row_bytes_max: of body and header of one row."""

    def __init__(
        self, page_bytes: int = PAGE_BYTES, chunk_bytes: int = CHUNK_BYTES,
        new_page_id: Callable[[], int] = random_page_id,
    ) -> None:  # fmt: skip
        self._page_bytes = page_bytes
        self._chunk_bytes = chunk_bytes
        self._new_page_id = new_page_id
        self._page_id = 0
        self._seed = 0
        self._position = page_bytes  # where the next frame begins; no page is begun yet
        self._index = 0  # of the next frame in its page
        self.row_bytes_max = page_bytes - HEADER_BYTES - FRAME_BYTES

    def chunks(self, bodies: Any, metas: Any) -> Iterator[Chunk]:
        """The frames of these rows. bodies: a binary array without nulls; metas: one too, or the
        bytes that are each row's. ValueError: a row is larger than row_bytes_max."""
        is_constant = isinstance(metas, bytes)
        body_sizes = _sizes(bodies)
        meta_sizes: Any = np.int64(len(metas)) if is_constant else _sizes(metas)
        constant = pa.scalar(metas, pa.binary()) if is_constant else None
        sizes = body_sizes + meta_sizes + FRAME_BYTES
        ends = np.cumsum(sizes)
        at, done, count = 0, 0, len(bodies)
        while at < count:
            room = self._page_bytes - self._position
            to = int(np.searchsorted(ends, done + min(room, self._chunk_bytes), "right"))
            if to == at and sizes[at] > room:
                self._check_size(int(sizes[at]), at)
                self._begin_page()
                continue
            to = max(to, at + 1)  # a row that is larger than a chunk has one of its own
            meta = constant if is_constant else metas.slice(at, to - at)
            metas_of = meta_sizes if is_constant else meta_sizes[at:to]
            yield self._chunk(bodies.slice(at, to - at), meta, body_sizes[at:to], metas_of)
            at, done = to, int(ends[to - 1])

    def _check_size(self, frame_bytes: int, row: int) -> None:
        if frame_bytes - FRAME_BYTES > self.row_bytes_max:
            raise ValueError(
                f"row {row} of its batch: body and header of {frame_bytes - FRAME_BYTES:,} bytes, "
                f"expected at most {self.row_bytes_max:,}"
            )

    def _begin_page(self) -> None:
        self._page_id = self._new_page_id()
        self._seed = page_seed(self._page_id)
        self._position = HEADER_BYTES
        self._index = 0

    def _chunk(self, bodies: Any, meta: Any, body_sizes: Any, meta_sizes: Any) -> Chunk:
        n = len(bodies)
        heads = np.zeros(n, HEAD)
        heads["payload"] = body_sizes
        heads["meta"] = meta_sizes
        checked = pc.binary_join_element_wise(_fixed(heads), bodies, meta, _NOTHING)
        seeds = np.arange(self._index, self._index + n) ^ self._seed
        crcs = np.fromiter(map(crc32, checked.to_pylist(), seeds.tolist()), "<u4", n)
        frames = pc.binary_join_element_wise(_fixed(crcs), checked, _NOTHING)
        offsets = np.frombuffer(frames.buffers()[1], "<i4", n + 1)
        size = int(offsets[n])
        rows = np.zeros(n, ROW)
        rows["start"] = offsets[:n] + self._position
        rows["size"] = body_sizes
        data = memoryview(frames.buffers()[2])[:size]
        raw_rows: bytes = rows.tobytes()
        crc = crc32(data, crc32(raw_rows, 0))
        header = CHUNK_HEADER.pack(
            CHUNK_MAGIC, VERSION, 0, n, self._page_id, 0, self._index, self._position, size,
            len(raw_rows), crc,
        )  # fmt: skip
        is_first = self._index == 0
        self._position += size
        self._index += n
        return Chunk(b"".join((header, raw_rows, data)), n, is_first)


def page_id_of(chunk: bytes) -> int:
    """Of the page that a chunk is of."""
    return int(struct.unpack_from("<Q", chunk, 16)[0])


def _sizes(values: Any) -> Any:
    """Bytes of each value."""
    return pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)


def _fixed(values: Any) -> Any:
    """A binary array of the bytes of each element, without a copy."""
    width = values.dtype.itemsize
    bounds = np.arange(0, width * (len(values) + 1), width, dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
