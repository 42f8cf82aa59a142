"""Chunks that a client sends: the body of a request, taken apart while it comes.

The body is frame chunks, one after the other, in the format that /frames answers with, of pages
that the client makes. Nothing is kept that has not verified, so a chunk is whole in memory before
anything of it is written. So memory is what must be bounded, however many clients send:

    a chunk    has at most CHUNK_BYTES_MAX of frames, or is one record and has RECORD_BYTES_MAX
    Memory     bytes of chunks at a time, of all clients; a client whose chunk finds no room is not
               read until there is some, and TCP has it wait
    time       a client that stops within a chunk is cut off after CHUNK_S, or as long as PACE takes
               for a large one; between two chunks it may think for IDLE_S, for it holds nothing

What is wrong is an HttpError that says what was expected and where: 400, 408 (too slow), 413.

Not here: the frames in a chunk, and what becomes of them (staged_upload).
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.fast_crc import crc32
from penstock.http.frame_chunks import CHUNK_HEADER_BYTES, MAGIC, VERSION
from penstock.http.http_errors import HttpError
from penstock.storage.page import FRAME_BYTES
from penstock.storage.page_index import INDEX_ROW_BYTES

CHUNK_BYTES_MAX: Final = 4 << 20
RECORD_BYTES_MAX: Final = 64 << 20
MEMORY_BYTES: Final = 128 << 20
CHUNK_S: Final = 60.0
PACE: Final = 256 << 10  # bytes in a second
IDLE_S: Final = 600.0

_HEADER: Final = struct.Struct("<8sHHIQQQIIII8s")
_ZEROS: Final = bytes(8)

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Memory:
    """Bytes that may be held at a time, by all and, of that, by one user: three quarters; on the
    loop. Who wants more than all of it has it alone."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._user_limit_bytes = limit_bytes * 3 // 4
        self._of_users: dict[str, int] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self.held_bytes = 0

    async def take(self, user: str, size: int) -> int:
        """Waits until there is room; what is to be given back."""
        size = min(size, self._limit_bytes)
        while not self._has_room(user, size):
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(freed)
            await freed
        self.held_bytes += size
        self._of_users[user] = self._of_users.get(user, 0) + size
        return size

    def _has_room(self, user: str, size: int) -> bool:
        held = self._of_users.get(user, 0)
        is_users = not held or held + size <= self._user_limit_bytes
        return is_users and self.held_bytes + size <= self._limit_bytes

    def give_back(self, user: str, size: int) -> None:
        """What `take` said."""
        self.held_bytes -= size
        self._of_users[user] -= size
        if not self._of_users[user]:
            del self._of_users[user]
        for freed in self._waiting:
            if not freed.done():
                freed.set_result(None)
        self._waiting.clear()


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """What a chunk's header says; number: of the chunk in its body."""

    number: int
    count: int
    page_id: int
    first_offset: int
    start: int
    data_bytes: int
    rows_bytes: int
    crc: int

    @property
    def body_bytes(self) -> int:
        """What follows the header."""
        return self.rows_bytes + self.data_bytes

    def wrong(self, what: str) -> HttpError:
        """400."""
        return HttpError(400, f"chunk {self.number}: {what}")


class ChunkUpload:
    """Of one request."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._piece = memoryview(b"")
        self._has_more = True
        self._number = -1

    async def head(self) -> ChunkHead | None:
        """The header of the next chunk; None: the body ends here. HttpError."""
        self._number += 1
        data = await self._take(CHUNK_HEADER_BYTES, IDLE_S)
        if not data:
            return None
        if len(data) < CHUNK_HEADER_BYTES:
            raise self._cut(f"{len(data)} bytes of its header", CHUNK_HEADER_BYTES)
        magic, version, zeros, count, page_id, base, first, start, size, rows, crc, rest = (
            _HEADER.unpack(data)
        )
        head = ChunkHead(self._number, count, page_id, first, start, size, rows, crc)
        if magic != MAGIC or version != VERSION or zeros or rest != _ZEROS:
            raise head.wrong(
                f"expected {MAGIC!r} version {VERSION} and zeros, found {magic!r} {version}"
            )
        if base:
            raise head.wrong(f"base offset {base}, expected 0: the page is nowhere yet")
        if not count or rows != count * INDEX_ROW_BYTES or size < count * FRAME_BYTES:
            raise head.wrong(
                f"{count} records with {rows} bytes of rows and {size} of frames, expected at "
                f"least one, {INDEX_ROW_BYTES} for each and {FRAME_BYTES} or more for each"
            )
        if size > (CHUNK_BYTES_MAX if count > 1 else RECORD_BYTES_MAX):
            raise HttpError(
                413, f"chunk {self._number}: {size} bytes of frames, expected at most "
                f"{CHUNK_BYTES_MAX}, or one record of at most {RECORD_BYTES_MAX}",
            )  # fmt: skip
        return head

    async def body(self, head: ChunkHead) -> tuple[bytes, bytes]:
        """(rows, frames) of the chunk, whose checksum is right. HttpError."""
        seconds = CHUNK_S + head.body_bytes / PACE
        rows = await self._take(head.rows_bytes, seconds)
        data = await self._take(head.data_bytes, seconds)
        if len(rows) + len(data) < head.body_bytes:
            raise self._cut(f"{len(rows) + len(data)} bytes of it", head.body_bytes)
        if crc32(data, crc32(rows)) != head.crc:
            raise head.wrong("its checksum is wrong: it did not come as it was sent")
        return rows, data

    async def _take(self, size: int, seconds: float) -> bytes:
        """So many bytes; fewer where the body ends. HttpError 400: the client has gone; 408."""
        if len(self._piece) >= size:
            taken, self._piece = self._piece[:size], self._piece[size:]
            return bytes(taken)
        pieces = [self._piece] if self._piece else []
        need = size - len(self._piece)
        self._piece = memoryview(b"")
        try:
            async with asyncio.timeout(seconds):
                while need and self._has_more:
                    piece = await self._next()
                    pieces.append(piece[:need])
                    self._piece = piece[need:]
                    need -= len(pieces[-1])
        except TimeoutError:
            late = HttpError(408, f"chunk {self._number}: no more of it came for {seconds:.0f} s")
            late.headers["Connection"] = "close"
            raise late from None
        return b"".join(pieces)

    async def _next(self) -> memoryview:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise HttpError(400, f"chunk {self._number}: the client has gone")
        self._has_more = message.get("more_body", False)
        return memoryview(message.get("body", b""))

    def _cut(self, found: str, expected: int) -> HttpError:
        return HttpError(
            400, f"chunk {self._number}: the body ends after {found}, expected {expected}"
        )
