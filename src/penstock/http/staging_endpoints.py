"""Staging over HTTP: the rows of a sink that writes exactly once, and the commits of their batches.

A StagedUpload is one upload of rows, from the request's body to synced files. The body is frame
chunks (pages.py) of pages that the client makes, parsed while it arrives. Nothing is written that
has not been verified, so a chunk is whole in memory first. What clients can hold is limited:

    a chunk         has at most CHUNK_BYTES_MAX of frames, or is one record of RECORD_BYTES_MAX
    BodyMemory      bytes of chunks at a time, of all clients; a client whose chunk has no room is
                    not read until there is some, so TCP makes it wait
    time            a client that stops within a chunk is cut off after CHUNK_S, or after what PACE
                    gives a large chunk; between two chunks it may pause for IDLE_S
    StagingRoom     bytes on the disk, of a vhost and of a user

Staged pages become a part of a stream unchanged, or are read frame by frame into queues. So each
frame is checked before it is written: its place in the page, its checksum, no time of its own (the
batch sets it), and a row that agrees with it. What is invalid is a 400 that names the chunk and the
position in the page. An upload has three calls:

    append     one chunk: one write to the page, one to its index. Where it begins a new page, the
               one before is sealed and synced
    finish     syncs everything, then the directory. Only now may the token be answered
    discard    deletes all files of the upload

They block, so they run in threads, one after the other, except `discard`: it waits for a running
call, and later calls do nothing. storage.staging defines the format of the files.

**Room on the disk.** Staged files stay in the directory of the vhost until their rows have moved to
the target, or they are swept; storage deletes them then. Only the HTTP process makes them, so the
bytes staged are those that the last scan of the directory found (every RESCAN_S, or when it seems
full) and those written since. A chunk reserves its room before it is written. Each user has a
limit, so that nobody can take all the room; rows count for the owner of the query. A file counts as
4 KiB at least, as on the disk. With less than FREE_BYTES_MIN free nothing is staged: the broker
needs that for its log and checkpoints.

StagingEndpoints answers the requests below /api/staging.

    GET     /{vhost}                    the last batch of each query
    POST    /{vhost}?target=            check the user and the target before anything is staged:
                                        403, 404 or 406 as a commit would answer
    POST    /{vhost}/{query}?target=    claim the query, as the first staging does: its owner, and
                                        the partitions of the target, if that is a stream
    POST    /{vhost}/{query}/{batch}/{partition}/{attempt}
                                        rows, as frame chunks: 201 with their token
                                        after they are synced
    PUT     /{vhost}/{query}/{batch}    commit, see below
    DELETE  /{vhost}/{query}/{batch}    abort: delete rows of the batch that are not committed
    DELETE  /{vhost}/{query}?force=     end the query: forget its last batch; one that is not done
                                        only with force=true

Tasks stage rows, the driver commits them. Staged rows are files that nobody reads; a commit is one
record of the vhost's log, and from then on the rows belong to the target. Both may be repeated: an
attempt is never staged twice (409 `attempt_exists`), and a batch that was committed is answered
"already done"; one that differs from what was committed is a 409 `batch_conflict`.

An upload is written by threads, one chunk while the next one arrives. When it breaks, is refused or
is cut off, its files are deleted before the answer. At most UPLOADS_MAX go on at a time, and
USER_UPLOADS_MAX of one user; one more is a 503.

A commit's body:

    {"target": {"queue": name} or {"exchanges": [names]}, and "dead_letter_to": name or null,
     "tokens": [answers of staging, in the order of the rows],
     "mandatory_keys": [[exchange, routing key], ...] or null,
     "previous": number of the batch before, -1 or null, "keep_first": true or false,
     "begins_late": true or false}

A token is sent back unchanged. A token of another batch is refused here; the vhost checks that the
pages of the tokens exist.

**Permissions.** A commit needs write on the target, on each of its exchanges, and on the queue for
dead letters. Staging and aborting need write on something, and on the target if the address names
it (?target=, as in the commit, or a queue's name). A query belongs to the user who stages for it
first: this user, users who may write to the target of its first batch, and administrators may
stage, commit, abort and release. The vhost knows the owner, and each request asks it with the
user's permissions (`as_user`) before anything is written. Permissions are checked again with each
chunk of an upload, so revoking them takes effect at once.
"""

import asyncio
import errno
import functools
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.access.permissions import Identity
from penstock.clock import Clock
from penstock.counts import UserSums
from penstock.errors import CorruptionError, SyncFailedError
from penstock.fast_crc import crc32
from penstock.http.bodies import BodyMemory, JsonBodies, JsonMembers, from_json
from penstock.http.node_link import NodeLink
from penstock.http.requests import (
    BasicAuth,
    HttpError,
    JsonAnswer,
    Routes,
    check_asks_nobody,
    given,
    identity_in,
    name_in,
    no_access,
)
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.pages.batches import StagedPage, is_name, pack_key, pack_page
from penstock.storage.pages.page import (
    CHUNK_HEADER_BYTES,
    CHUNK_MAGIC,
    CHUNK_VERSION,
    FRAME_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    decode_chunk_head,
    page_seed,
    scan_frames,
)
from penstock.storage.pages.staging import (
    CHECKSUM_MASK,
    STAGED_PAGE_BYTES_MAX,
    StagedPageWriter,
    query_directory,
    staged_bytes,
    staged_checksum,
    staging_path,
)

CHUNK_BYTES_MAX: Final = 4 << 20
RECORD_BYTES_MAX: Final = 64 << 20
MEMORY_BYTES: Final = 128 << 20
CHUNK_S: Final = 60.0
PACE: Final = 256 << 10  # bytes in a second
IDLE_S: Final = 600.0
RESCAN_S: Final = 5.0
FULL_RESCAN_S: Final = 0.5
FREE_BYTES_MIN: Final = 128 << 20
_TIME_BYTES: Final = range(8, INDEX_ROW_BYTES)  # of a row

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class StagedChunkHead:
    """The header of a chunk. number: of the chunk in its body."""

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
        """Bytes after the header."""
        return self.rows_bytes + self.data_bytes

    def wrong(self, what: str) -> HttpError:
        """Return a 400 about this chunk."""
        return HttpError(400, f"chunk {self.number}: {what}")


class ChunkUpload:
    """Reads the chunks of one request. `receive`: of ASGI."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._piece = memoryview(b"")
        self._has_more = True
        self._number = -1

    async def head(self) -> StagedChunkHead | None:
        """Return the header of the next chunk, None at the end of the body. Raises HttpError."""
        self._number += 1
        data = await self._take(CHUNK_HEADER_BYTES, IDLE_S)
        if not data:
            return None
        if len(data) < CHUNK_HEADER_BYTES:
            raise self._cut(f"{len(data)} bytes of its header", CHUNK_HEADER_BYTES)
        try:
            count, page_id, base, first, start, size, rows, crc = decode_chunk_head("", data)
        except CorruptionError as error:
            raise HttpError(400, f"chunk {self._number}: {error.reason}") from None
        head = StagedChunkHead(self._number, count, page_id, first, start, size, rows, crc)
        if any(data[10:12] + data[56:]):
            raise head.wrong(f"expected {CHUNK_MAGIC!r} version {CHUNK_VERSION} and zeros")
        if base:
            raise head.wrong(
                f"base offset {base}, expected 0: a staged page has no place in a stream yet"
            )
        if not count or size < count * FRAME_BYTES:
            raise head.wrong(
                f"{count} records with {size} bytes of frames, expected at least one, and "
                f"{FRAME_BYTES} or more for each"
            )
        if size > (CHUNK_BYTES_MAX if count > 1 else RECORD_BYTES_MAX):
            raise HttpError(
                413, f"chunk {self._number}: {size} bytes of frames, expected at most "
                f"{CHUNK_BYTES_MAX}, or one record of at most {RECORD_BYTES_MAX}",
            )  # fmt: skip
        return head

    async def body(self, head: StagedChunkHead) -> tuple[bytes, bytes]:
        """Return (rows, frames) of the chunk after checking its checksum. Raises HttpError."""
        seconds = CHUNK_S + head.body_bytes / PACE
        rows = await self._take(head.rows_bytes, seconds)
        data = await self._take(head.data_bytes, seconds)
        if len(rows) + len(data) < head.body_bytes:
            raise self._cut(f"{len(rows) + len(data)} bytes of it", head.body_bytes)
        if crc32(data, crc32(rows)) != head.crc:
            raise head.wrong("its checksum is wrong: it was damaged on the way")
        return rows, data

    async def _take(self, size: int, seconds: float) -> bytes:
        """Return this many bytes, fewer at the end of the body. Raises HttpError 400 if the client
        has gone, 408 if it is too slow."""
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
            late = HttpError(408, f"chunk {self._number}: not complete after {seconds:.0f} s")
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


class StagingRoom:
    """Limits what is staged in a vhost. path: the vhost's directory. limit_bytes: of all users,
    user_limit_bytes: of one. Any thread may call."""

    def __init__(
        self, fs: FileSystem, path: str, limit_bytes: int, user_limit_bytes: int, clock: Clock
    ) -> None:
        self.path = path
        self._fs = fs
        self._limit_bytes = limit_bytes
        self._user_limit_bytes = user_limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._found: dict[str, int] = {}  # bytes by user, at the last scan
        self._written = UserSums()  # since then
        self._reserved = UserSums()  # being written
        self._looked_s = float("-inf")

    @contextmanager
    def taken(self, user: str, size: int) -> Iterator[None]:
        """Reserve room for bytes that the with block writes. user: the owner of the query. Raises
        HttpError 507 if there is no room."""
        with self._lock:
            self._check(user, size)
            self._reserved.add(user, size)
        try:
            yield
        finally:
            with self._lock:
                self._reserved.add(user, -size)
                self._written.add(user, size)

    def used_bytes(self) -> int:
        """Return how many bytes are staged, or being written."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._looked_s >= RESCAN_S:
                self._look(now)
            return self._used()

    def _used(self) -> int:
        return sum(self._found.values()) + self._written.total + self._reserved.total

    def _check(self, user: str, size: int) -> None:
        now = self._clock.monotonic()
        if now - self._looked_s >= RESCAN_S:
            self._look(now)
        if self._why_not(user, size) and now - self._looked_s >= FULL_RESCAN_S:
            self._look(now)
        why_not = self._why_not(user, size)
        if why_not:
            raise HttpError(507, why_not, error="staging_full")
        free = self._fs.free_bytes(self.path)
        if free - size < FREE_BYTES_MIN:
            raise HttpError(
                507, f"the disk has {free} bytes left, nothing is staged below {FREE_BYTES_MIN}",
                error="disk_full",
            )  # fmt: skip

    def _why_not(self, user: str, size: int) -> str:
        """Return why there is no room for this many bytes more, "" if there is."""
        used = self._used()
        if used + size > self._limit_bytes:
            return (
                f"{used} bytes are staged in this vhost, at most {self._limit_bytes} may be "
                "(staging_bytes_max)"
            )
        used = self._found.get(user, 0) + self._written.of(user) + self._reserved.of(user)
        if used + size > self._user_limit_bytes:
            return (
                f"{used} bytes are staged in this vhost for queries of user '{user}', at most "
                f"{self._user_limit_bytes} may be (staging_user_bytes_max)"
            )
        return ""

    def _look(self, now: float) -> None:
        try:
            self._found = staged_bytes(self._fs, self.path)
        except FileNotFoundError:
            return  # a query's directory was deleted just now: what is known is at most too much
        self._written = UserSums()
        self._looked_s = now


class StagedUpload:
    """One upload. stem: the names of its files without the number of the page. owner: the user who
    owns the query. pages: the sealed ones. checksums: of the rows of each page, the one being
    written included."""

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
        """Rows in the sealed pages."""
        return sum(page.rows for page in self.pages)

    @property
    def size_bytes(self) -> int:
        """Bytes of the sealed page files."""
        return sum(page.bytes for page in self.pages)

    def append(self, head: StagedChunkHead, rows: bytes, data: bytes) -> None:
        """Write a chunk. Raises HttpError 400, 413 or 507, FileExistsError if the attempt was
        staged before, OSError."""
        with self._lock:
            if not self._is_over:
                self._append(head, rows, data)

    def finish(self) -> None:
        """Sync everything. Raises OSError."""
        with self._lock:
            self._seal()
            if self._writers:
                self._fs.sync_dir(self._directory)

    def discard(self) -> None:
        """Delete all files of the upload. Raises OSError if some are left."""
        with self._lock:
            self._is_over = True
            for writer in self._writers:
                writer.discard()
            self._writers.clear()

    def _append(self, head: StagedChunkHead, rows: bytes, data: bytes) -> None:
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
        """Seal and sync the last page."""
        if len(self._writers) > len(self.pages):
            writer = self._writers[-1]
            page = writer.seal()
            writer.sync()
            writer.close()
            self.pages.append(page)


def _checked(head: StagedChunkHead, rows: bytes, data: bytes, seed: int) -> int:
    """Return the checksum of the frames. Raises HttpError 400 if they are not the frames of these
    rows in the page with that seed."""
    checksum = staged_checksum(data, rows, head.start, seed, head.first_offset)
    if checksum >= 0:
        return checksum
    end = head.start + len(data)
    scan = scan_frames(data, head.start, seed, head.first_offset, 0, end)
    if scan.end != end or len(scan.rows) != head.count:
        fault = scan.fault or f"{len(scan.rows)} records end there, expected {head.count}"
        raise head.wrong(f"byte {scan.end} of the page: {fault}")
    if b"".join(scan.rows) != rows:
        raise head.wrong("its rows differ from its frames: start, payload bytes, or time")
    if any(rows[byte::INDEX_ROW_BYTES].count(0) != head.count for byte in _TIME_BYTES):
        raise head.wrong("a record has a time, expected 0: the batch sets it")
    raise head.wrong("its frames do not verify")


UPLOADS_MAX: Final = 256
USER_UPLOADS_MAX: Final = 192
COMMIT_BYTES_MAX: Final = 16 << 20
PAGES_MAX: Final = 50_000  # of a commit: 3 TB, if they are as large as pages may be
KEYS_MAX: Final = 100_000  # of a commit; as many as our sink sends
U32_MAX: Final = (1 << 32) - 1
HEX: Final = re.compile(r"[0-9a-f]{16}")
FLAGS: Final = ("keep_first", "begins_late")
MEMBERS: Final = frozenset({"target", "tokens", "mandatory_keys", "previous", *FLAGS})
COMMIT_LISTS: Final = {"tokens": PAGES_MAX, "mandatory_keys": KEYS_MAX}
QUERY_BYTES_MAX: Final = 255
BATCH_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1
ATTEMPT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
NOBODY: Final = ("", "^$")  # patterns that match nothing
DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
EXPECTED: Final = (
    'expected {"target": {"queue": "q"} or {"exchanges": ["x"]}, "tokens": [...], '
    '"mandatory_keys": [["x", "key"]] or null}'
)
TARGET: Final = (
    'target: expected {"queue": "q"} or {"exchanges": ["x"]}, with "dead_letter_to": "q" or null'
)

KEYS: Final = "mandatory_keys: expected [[exchange, routing key], ...] or null"

logger = logging.getLogger(__name__)


class StagingEndpoints:
    """Answers requests of sinks. vhost_path(name): the directory of an existing vhost. limit_bytes:
    what may be staged in each. writing: the threads that write files."""

    def __init__(
        self, node: NodeLink, auth: BasicAuth, bodies: JsonBodies, fs: FileSystem, clock: Clock,
        writing: Executor, vhost_path: Callable[[str], str], limit_bytes: int,
        user_limit_bytes: int,
    ) -> None:  # fmt: skip
        self._node = node
        self._auth = auth
        self._bodies = bodies
        self._fs = fs
        self._clock = clock
        self._writing = writing
        self._vhost_path = vhost_path
        self._limit_bytes = limit_bytes
        self._user_limit_bytes = user_limit_bytes
        self._memory = BodyMemory(MEMORY_BYTES)
        self._rooms: dict[str, StagingRoom] = {}
        self._uploads: dict[tuple[str, ...], str] = {}  # running upload -> its user

    def routes(self) -> Routes:
        """Return (address below /api/staging, methods, endpoint) of each route."""
        query = "{vhost}/{query}"
        batch = query + "/{batch}"
        return [
            ("{vhost}", ["GET"], self._list),
            ("{vhost}", ["POST"], self._check),
            (query, ["DELETE"], self._release),
            (query, ["POST"], self._claim),
            (batch, ["PUT"], self._commit),
            (batch, ["DELETE"], self._abort),
            (batch + "/{partition}/{attempt}", ["POST"], self._stage),
        ]

    # ---- staging -------------------------------------------------------------------------------

    async def _stage(self, request: Request) -> Response:
        vhost, query, identity = self._writer(request)
        batch = _number(request, "batch", BATCH_MAX)
        partition = _number(request, "partition", PARTITION_MAX)
        attempt = name_in(request, "attempt")
        if not ATTEMPT.fullmatch(attempt):
            raise HttpError(400, f"attempt: given {attempt!r}, expected {ATTEMPT.pattern}")
        key = (vhost, query, str(batch), str(partition), attempt)
        if key in self._uploads:
            raise _attempt_exists(attempt)
        self._check_uploads(identity.name)
        self._uploads[key] = identity.name
        try:
            claim = await self._claimed(request, vhost, query, identity)
            stem = f"{batch}.{partition}.{attempt}"
            owner = str(claim["owner"]) or identity.name
            upload = StagedUpload(self._fs, self._clock, self._room(vhost), query, stem, owner)
            await self._staged(upload, request, identity.name)
        except FileExistsError as error:
            raise _attempt_exists(attempt) from error
        except (OSError, SyncFailedError) as error:
            raise _of_disk(error) from error
        finally:
            del self._uploads[key]
        return JsonAnswer(
            {
                "query": query, "batch": batch, "partition": partition, "attempt": attempt,
                "rows": upload.row_count, "bytes": upload.size_bytes,
                "pages": [
                    {"name": page.name, "page_id": f"{page.page_id:016x}", "rows": page.rows,
                     "bytes": page.bytes, "checksum": f"{checksum:016x}"}
                    for page, checksum in zip(upload.pages, upload.checksums, strict=True)
                ],
            },
            201,
        )  # fmt: skip

    async def _check(self, request: Request) -> Response:
        vhost, identity = identity_in(request, self._auth)
        target = self._target_for(request, vhost, identity)
        if target is None:
            return JsonAnswer({})
        facts = identity.facts()
        return JsonAnswer(
            await self._node.call("check_target", vhost, target=target, as_user=facts)
        )

    async def _claim(self, request: Request) -> Response:
        vhost, query, identity = self._writer(request)
        return JsonAnswer(await self._claimed(request, vhost, query, identity))

    async def _claimed(
        self, request: Request, vhost: str, query: str, identity: Identity
    ) -> dict[str, Any]:
        """Make the user own the query, if nobody does; return its owner, and the partitions of the
        target. Raises HttpError 403 if another user owns it."""
        target = _target_of(request) or {}
        facts = identity.facts()
        claim = await self._node.call(
            "claim_query", vhost, query=query, target=target, as_user=facts
        )
        return dict(claim)

    def _check_uploads(self, user: str) -> None:
        """Raise HttpError 503 if too many uploads are under way."""
        count = list(self._uploads.values()).count(user)
        if len(self._uploads) < UPLOADS_MAX and count < USER_UPLOADS_MAX:
            return
        busy = HttpError(
            503, f"{len(self._uploads)} uploads are under way, {count} of them of user '{user}'; "
            f"at most {UPLOADS_MAX} are allowed, {USER_UPLOADS_MAX} of one user: try again",
        )  # fmt: skip
        busy.headers["Retry-After"] = "1"
        raise busy

    async def _staged(self, upload: StagedUpload, request: Request, user: str) -> None:
        """Stage the whole body and sync it, or delete all of it. Raises HttpError, OSError."""
        is_whole = False
        try:
            await self._write_all(upload, request, user)
            await self._in_thread(upload.finish)
            is_whole = True
        finally:
            if not is_whole:
                # In any case: a process that stops cancels this task, perhaps twice.
                gone = asyncio.wrap_future(self._writing.submit(upload.discard))
                gone.add_done_callback(_log_failure)
                await asyncio.wait([gone])

    async def _write_all(self, upload: StagedUpload, request: Request, user: str) -> None:
        """Write one chunk while the next one arrives. No write is running when this returns or
        raises."""
        memory, chunks = self._memory, ChunkUpload(request.receive)
        writing: asyncio.Future[None] | None = None
        try:
            while (head := await chunks.head()) is not None:
                self._writer(request)  # permissions may have been revoked meanwhile
                held = await memory.take(user, head.body_bytes)
                try:
                    rows, data = await chunks.body(head)
                    if writing is not None:
                        await asyncio.wait([writing])
                        writing.result()
                except BaseException:
                    memory.give_back(user, held)
                    raise
                writing = self._in_thread(functools.partial(upload.append, head, rows, data))
                writing.add_done_callback(lambda _, held=held: memory.give_back(user, held))  # type: ignore[misc]
                del rows, data
        finally:
            if writing is not None:
                await asyncio.wait([writing])
        if writing is not None:
            writing.result()

    def _room(self, vhost: str) -> StagingRoom:
        room = self._rooms.get(vhost)
        if room is None:
            path = self._vhost_path(vhost)
            room = StagingRoom(
                self._fs, path, self._limit_bytes, self._user_limit_bytes, self._clock
            )
            self._rooms[vhost] = room
        return room

    async def metrics(self, vhost: str) -> dict[str, int]:
        """Return what is staged in a vhost, and may be."""
        used = await self._in_thread(self._room(vhost).used_bytes)
        return {"staging_bytes": used, "staging_limit_bytes": self._limit_bytes}

    def _in_thread(self, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().run_in_executor(self._writing, work)

    # ---- what the vhost answers ----------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        vhost, identity = identity_in(request, self._auth)
        return JsonAnswer(await self._node.call("list_batches", vhost, as_user=identity.facts()))

    async def _commit(self, request: Request) -> Response:
        vhost, query, _ = self._writer(request)
        batch = _number(request, "batch", BATCH_MAX)
        parse = functools.partial(commit_args, query=query, batch=batch)
        async with self._bodies.long(request, COMMIT_BYTES_MAX, parse) as args:
            # Again: the body may have taken long.
            _, identity = identity_in(request, self._auth)
            if args["pages"] or args["target"] is not None or args["previous"] is None:
                checked_target(args["target"], vhost, identity)
            return await self._asked("commit_batch", vhost, identity, args)

    async def _abort(self, request: Request) -> Response:
        vhost, query, identity = self._writer(request)
        batch = _number(request, "batch", BATCH_MAX)
        return await self._asked("abort_batch", vhost, identity, {"query": query, "batch": batch})

    async def _release(self, request: Request) -> Response:
        vhost, query, identity = self._writer(request, "force")
        force = request.query_params.get("force", "false")
        if force not in ("true", "false"):
            raise HttpError(400, f"parameter 'force': given {force!r}, expected true or false")
        args = {"query": query, "force": force == "true"}
        return await self._asked("release_query", vhost, identity, args)

    async def _asked(
        self, op: str, vhost: str, identity: Identity, args: dict[str, Any]
    ) -> Response:
        """Answer with the result of an operation, called with the user's permissions."""
        return JsonAnswer(await self._node.call(op, vhost, as_user=identity.facts(), **args))

    # ---- who, and what -------------------------------------------------------------------------

    def _writer(self, request: Request, *names: str) -> tuple[str, str, Identity]:
        """Return (vhost, query) of the address and the user, who may write. names: parameters that
        are allowed besides the target. Raises HttpError 400, 403, 404."""
        vhost, identity = identity_in(request, self._auth)
        query = name_in(request, "query")
        try:
            size = len(query.encode())
        except UnicodeEncodeError:
            raise HttpError(400, "the query's name is not UTF-8") from None
        if not 1 <= size <= QUERY_BYTES_MAX or "\0" in query:
            expected = f"expected 1 to {QUERY_BYTES_MAX}, none of them 0"
            raise HttpError(400, f"the query's name has {size} bytes, {expected}")
        self._target_for(request, vhost, identity, *names)
        return vhost, query, identity

    def _target_for(
        self, request: Request, vhost: str, identity: Identity, *names: str
    ) -> object:  # fmt: skip
        """Return the target of the parameter, None if it is not given. names: other parameters that
        are allowed. Raises HttpError 400, and 403 if the user may not write there."""
        if identity.write in NOBODY:
            raise HttpError(403, f"user '{identity.name}' may write nothing in vhost '{vhost}'")
        given(request.query_params, ("target", *names))
        target = _target_of(request)
        if target is not None:
            checked_target(target, vhost, identity)
        return target


def _log_failure(gone: "asyncio.Future[None]") -> None:
    if not gone.cancelled() and gone.exception() is not None:
        logger.error("files of an upload that failed were not deleted: %s", gone.exception())


def _target_of(request: Request) -> object:
    """Return the target of the parameter, a JSON object or a queue's name, None if it is not given.
    Raises HttpError 400."""
    text = request.query_params.get("target")
    if text is None:
        return None
    if not text.startswith("{"):
        return {"queue": text}
    return from_json(text.encode(), "parameter 'target': expected JSON")


def _number(request: Request, part: str, most: int) -> int:
    """Return a number of the address. Raises HttpError 400."""
    text = name_in(request, part)
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise HttpError(400, f"{part}: given {text!r}, expected a whole number from 0 to {most}")
    return int(text)


def _attempt_exists(attempt: str) -> HttpError:
    return HttpError(409, f"attempt '{attempt}' was staged before", error="attempt_exists")


def _of_disk(error: OSError | SyncFailedError) -> HttpError:
    """Return the HTTP error for a disk that does not write."""
    if isinstance(error, SyncFailedError):
        error = error.cause
    if error.errno in DISK_FULL:
        return HttpError(507, "the disk is full", error="disk_full")
    if isinstance(error, FileNotFoundError):
        return HttpError(503, "the directory was deleted meanwhile, try again")
    logger.error("staging: %s", error)
    return HttpError(500, "the disk failed, see the broker's log")


def commit_args(data: bytes, query: str, batch: int) -> dict[str, Any]:
    """Return the arguments of commit_batch for the body of a commit; its pages and keys are packed
    (storage.batches). Raises HttpError 400, 413."""
    body: dict[str, Any] = {}
    pages: list[bytes] = []
    keys: list[bytes] = []
    number = 0
    for name, value, is_element in JsonMembers(data, COMMIT_LISTS).read():
        if name not in MEMBERS:
            raise HttpError(400, f"{EXPECTED}, unknown: {name[:QUERY_BYTES_MAX]!r}")
        if not is_element:
            body[name] = value
        elif name == "tokens":
            pages += _pages(value, number, query, batch)
            number += 1
            if len(pages) > PAGES_MAX:
                raise HttpError(413, f"tokens: more than {PAGES_MAX} pages")
        else:
            keys.append(_key(value))
    if not isinstance(body.get("tokens"), list):
        raise HttpError(400, EXPECTED)
    if not isinstance(body.get("mandatory_keys"), list | None):
        raise HttpError(400, KEYS)
    previous, flags = body.get("previous"), {name: body.get(name, False) for name in FLAGS}
    if previous is not None and (type(previous) is not int or not -1 <= previous < batch):
        raise HttpError(400, f"previous: given {previous!r}, expected -1 to {batch - 1}, or null")
    for flag, asked in flags.items():
        if not isinstance(asked, bool):
            raise HttpError(400, f"{flag}: given {asked!r}, expected true or false")
    return {
        "query": query, "batch": batch, "target": body.get("target"), "pages": b"".join(pages),
        "mandatory_keys": b"".join(keys), "previous": previous, **flags,
    }  # fmt: skip


def _pages(token: object, number: int, query: str, batch: int) -> list[bytes]:
    """Return the pages of one token, each of them packed."""
    if not isinstance(token, dict) or not isinstance(token.get("pages"), list):
        raise HttpError(400, f"token {number}: expected the answer of POST, with its pages")
    if token.get("query") != query or token.get("batch") != batch:
        raise HttpError(
            400, f"token {number} is of query {str(token.get('query'))[:QUERY_BYTES_MAX]!r} and "
            f"batch {str(token.get('batch'))[:20]}, expected {query!r} and {batch}",
        )  # fmt: skip
    return [_packed_page(page, number) for page in token["pages"]]


def _packed_page(page: object, number: int) -> bytes:
    """Return a page of the token of this number, packed."""
    match page:
        case {
            "name": str(name), "page_id": str(id), "rows": int(rows), "bytes": int(size),
            "checksum": str(checksum),
        } if (
            is_name(name) and HEX.fullmatch(id) and HEX.fullmatch(checksum)
            and int(checksum, 16) <= CHECKSUM_MASK and 0 < rows <= U32_MAX and 0 < size <= U32_MAX
        ):  # fmt: skip
            return pack_page(StagedPage(name, int(id, 16), rows, size), int(checksum, 16))
    raise HttpError(
        400, f"token {number}: expected pages with name, page_id (16 hex digits), rows, bytes and "
        f"checksum (16 hex digits), given {str(page)[:200]}",
    )  # fmt: skip


def _key(key: object) -> bytes:
    """Return an exchange and a routing key, packed."""
    match key:
        case [str(exchange), str(name)]:
            try:
                return pack_key(exchange, name)
            except ValueError as error:
                raise HttpError(400, f"{KEYS}: {error}") from None
    raise HttpError(400, KEYS)


# ---- the target ----------------------------------------------------------------------------------


def checked_target(target: object, vhost: str, identity: Identity) -> None:
    """Raise HttpError 400 if the target is invalid, 403 if the user may not write to all of it."""
    check_asks_nobody(identity)
    for kind, name in _named(target):
        if not identity.may_write(name):
            raise no_access("write", kind, name, vhost, identity)


def _named(target: object) -> list[tuple[str, str]]:
    """Return (kind, name) of every queue and exchange of a target. Raises HttpError 400."""
    if not isinstance(target, dict) or set(target) - {"queue", "exchanges", "dead_letter_to"}:
        raise HttpError(400, TARGET)
    queue, exchanges = target.get("queue"), target.get("exchanges")
    dead = target.get("dead_letter_to")
    named: list[tuple[str, str]] = []
    if isinstance(queue, str) and queue and "exchanges" not in target:
        named.append(("queue", queue))
    elif isinstance(exchanges, list) and exchanges and "queue" not in target:
        if not all(isinstance(name, str) for name in exchanges):
            raise HttpError(400, TARGET)
        named += [("exchange", name) for name in exchanges]
    else:
        raise HttpError(400, TARGET)
    if isinstance(dead, str) and dead:
        named.append(("queue", dead))
    elif dead is not None:
        raise HttpError(400, TARGET)
    return named
