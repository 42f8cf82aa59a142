"""StagedUpload: one upload's chunks as staged pages on the disk: verified, synced, or gone.

What is staged becomes a part of a stream as it is, or is read frame by frame into queues. So each
frame is proven before anything of it is written: at its place in its page, by its own checksum,
with no time of its own (it gets that of its batch), and with a row that says what the frame says.
What is wrong is a 400 that names the chunk and the position in the page.

    append     a chunk: one write into the page, one into its index; where it begins a new page, the
               one before is sealed and synced
    finish     everything is synced, and then the directory: only now may the token be answered
    discard    whatever was made is deleted

Each blocks and belongs to a thread. They are called one after the other, but for `discard`: that
waits for what runs, and what comes behind it does nothing.

Not here: the format of staged files (penstock.storage.staging), chunks (chunk_upload).
"""

import threading
from contextlib import suppress
from typing import Final

from penstock.clock import Clock
from penstock.http.chunk_upload import ChunkHead
from penstock.http.http_errors import HttpError
from penstock.http.staging_room import StagingRoom
from penstock.storage.batches import StagedPage
from penstock.storage.filesystem import FileSystem
from penstock.storage.page import PAGE_HEADER_BYTES, page_seed, scan_frames
from penstock.storage.page_index import INDEX_ROW_BYTES
from penstock.storage.staged_frames import CHECKSUM_MASK, staged_checksum
from penstock.storage.staging import (
    STAGED_PAGE_BYTES_MAX,
    StagedPageWriter,
    query_directory,
    staging_path,
)

_TIME_BYTES: Final = range(8, INDEX_ROW_BYTES)  # of a row


class StagedUpload:
    """stem: of its files' names, without the page's number. owner: the user whose query it is.
    pages: those that are sealed. checksums: of the rows of each page, also of the one that is being
    written."""

    def __init__(
        self, fs: FileSystem, clock: Clock, room: StagingRoom, query: str, stem: str, owner: str
    ) -> None:
        self.pages: list[StagedPage] = []
        self.checksums: list[int] = []
        self._fs = fs
        self._clock = clock
        self._room = room
        self._query = query
        self._owner = owner
        self._stem = stem
        self._directory = ""
        self._writers: list[StagedPageWriter] = []
        self._page_ids: set[int] = set()
        self._page_id: int | None = None
        self._is_over = False
        self._lock = threading.Lock()

    @property
    def row_count(self) -> int:
        """Of its pages."""
        return sum(page.rows for page in self.pages)

    @property
    def size_bytes(self) -> int:
        """Of its page files."""
        return sum(page.bytes for page in self.pages)

    def append(self, head: ChunkHead, rows: bytes, data: bytes) -> None:
        """HttpError 400, 413, 507; FileExistsError: the attempt was staged before; OSError."""
        with self._lock:
            if not self._is_over:
                self._append(head, rows, data)

    def finish(self) -> None:
        """The token may be given. OSError."""
        with self._lock:
            self._seal()
            if self._writers:
                self._fs.sync_dir(self._directory)

    def discard(self) -> None:
        """Nothing is left of it. OSError: something is."""
        with self._lock:
            self._is_over = True
            for writer in self._writers:
                writer.discard()
            self._writers.clear()

    def _append(self, head: ChunkHead, rows: bytes, data: bytes) -> None:
        is_new = head.page_id != self._page_id
        count, position, seed = 0, PAGE_HEADER_BYTES, page_seed(head.page_id)
        if not is_new:
            count, position = self._writers[-1].count, self._writers[-1].position
        elif head.page_id in self._page_ids:
            raise head.wrong(f"page {head.page_id:016x} has ended, expected another one")
        if head.first_offset != count or head.start != position:
            raise head.wrong(
                f"it begins with record {head.first_offset} at byte {head.start} of its page, "
                f"expected record {count} at byte {position}"
            )
        if position + len(data) > STAGED_PAGE_BYTES_MAX:
            raise HttpError(
                413, f"chunk {head.number}: its page would have {position + len(data)} bytes, "
                f"expected at most {STAGED_PAGE_BYTES_MAX}",
            )  # fmt: skip
        checksum = _checked(head, rows, data, seed)
        with self._room.taken(self._owner, len(rows) + len(data)):
            if is_new:
                self._seal()
                self._begin(head.page_id)
            self._writers[-1].append(rows, data)
            self.checksums[-1] = (self.checksums[-1] + checksum) & CHECKSUM_MASK

    def _begin(self, page_id: int) -> None:
        fs = self._fs
        if not self._directory:
            self._directory = query_directory(fs, staging_path(self._room.path), self._query)
        name = f"{self._stem}.{len(self._writers)}"
        try:
            writer = StagedPageWriter(
                fs, self._directory, name, page_id, self._clock.wall_us()
            )  # fmt: skip
        except FileExistsError:
            raise
        except OSError:
            for ending in ("page", "idx"):
                with suppress(OSError):
                    fs.unlink(f"{self._directory}/{name}.{ending}")
            raise
        self._writers.append(writer)
        self.checksums.append(0)
        self._page_ids.add(page_id)
        self._page_id = page_id

    def _seal(self) -> None:
        """The last page is complete and synced."""
        if len(self._writers) > len(self.pages):
            writer = self._writers[-1]
            page = writer.seal()
            writer.sync()
            writer.close()
            self.pages.append(page)


def _checked(head: ChunkHead, rows: bytes, data: bytes, seed: int) -> int:
    """The checksum of the frames. HttpError 400: they are not those that the rows say, of the page
    with that seed."""
    checksum = staged_checksum(data, rows, head.start, seed, head.first_offset)
    if checksum >= 0:
        return checksum
    end = head.start + len(data)
    scan = scan_frames(data, head.start, seed, head.first_offset, 0, end)
    if scan.end != end or len(scan.rows) != head.count:
        fault = scan.fault or f"{len(scan.rows)} records end there, expected {head.count}"
        raise head.wrong(f"byte {scan.end} of the page: {fault}")
    if b"".join(scan.rows) != rows:
        raise head.wrong("its rows say otherwise than its frames: start, payload bytes, time")
    if any(rows[byte::INDEX_ROW_BYTES].count(0) != head.count for byte in _TIME_BYTES):
        raise head.wrong("a record has a time, expected 0: it gets that of its batch")
    raise head.wrong("its frames do not verify")
