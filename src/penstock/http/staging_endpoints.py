"""StagingEndpoints: rows of a sink that writes exactly once, under /api/staging.

    GET     /{vhost}                    the last batch of each query
    POST    /{vhost}/{query}/{batch}/{partition}/{attempt}
                                        rows, as frame chunks (chunk_upload): 201 with their token
                                        when they are synced
    PUT     /{vhost}/{query}/{batch}    commit (batch_body)
    DELETE  /{vhost}/{query}/{batch}    abort: undecided rows of it go
    DELETE  /{vhost}/{query}?force=     the query is over: forget its last batch; one that is not
                                        done only with force=true

Tasks stage, the driver commits. Staged rows are files that nobody reads; a commit is one record of
the vhost's log, and from then on they are the target's. Both may be repeated: an attempt is never
staged twice (409 `attempt_exists`), and a batch that was committed is answered "already done"; one
that is another than what was committed is a 409 `batch_conflict`.

An upload is written by threads, a chunk at a time, while the next one comes. When it breaks, is
refused or cut off, its files are deleted before the answer. UPLOADS_MAX go on at a time, and
USER_UPLOADS_MAX of one user, one more is a 503; what they hold of memory is chunk_upload's affair,
of the disk staging_room's.

Who may: a commit needs write on the target, on each of its exchanges, and on where dead letters go.
Staging and aborting needs write on something, and on the target if the address names it
(?target=, as in the commit, or a queue's name). A query belongs to whoever stages for it first:
staging, committing, aborting and releasing is for this user, for users who may write to the target
of its first batch, and for administrators. The vhost knows the owner, and is asked with the user's
permissions (`as_user`) before anything is written, for each request; and permissions are looked at
again with each chunk of an upload. So what was revoked meanwhile counts at once.

Not here: staged files (penstock.storage.staging), commits (the vhost).
"""

import asyncio
import errno
import functools
import json
import logging
import re
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.access.permissions import Identity
from penstock.clock import Clock
from penstock.errors import SyncFailedError
from penstock.http.answers import JsonAnswer
from penstock.http.basic_auth import BasicAuth
from penstock.http.batch_body import checked_target, commit_args, may_write_to
from penstock.http.chunk_upload import MEMORY_BYTES, ChunkUpload, Memory
from penstock.http.http_errors import HttpError
from penstock.http.node_link import NodeLink
from penstock.http.range_query import given
from penstock.http.requests import Routes, identity_in, json_body, name_in
from penstock.http.staged_upload import StagedUpload
from penstock.http.staging_room import StagingRoom
from penstock.storage.filesystem import FileSystem

UPLOADS_MAX: Final = 256
USER_UPLOADS_MAX: Final = 192
COMMIT_BYTES_MAX: Final = 16 << 20
QUERY_BYTES_MAX: Final = 255
BATCH_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1
ATTEMPT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
NOBODY: Final = ("", "^$")  # permissions that are none
DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

logger = logging.getLogger(__name__)


class StagingEndpoints:
    """vhost_path(name): the directory of a vhost that there is. limit_bytes: what may be staged in
    each. writing: the threads that write files."""

    def __init__(
        self, node: NodeLink, auth: BasicAuth, fs: FileSystem, clock: Clock, writing: Executor,
        vhost_path: Callable[[str], str], limit_bytes: int, user_limit_bytes: int,
    ) -> None:  # fmt: skip
        self._node = node
        self._auth = auth
        self._fs = fs
        self._clock = clock
        self._writing = writing
        self._vhost_path = vhost_path
        self._limit_bytes = limit_bytes
        self._user_limit_bytes = user_limit_bytes
        self._memory = Memory(MEMORY_BYTES)
        self._rooms: dict[str, StagingRoom] = {}
        self._uploads: dict[tuple[str, ...], str] = {}  # those that are under way: whose

    def routes(self) -> Routes:
        """(address below /api/staging, methods, what answers)."""
        query = "{vhost}/{query}"
        batch = query + "/{batch}"
        return [
            ("{vhost}", ["GET"], self._list),
            (query, ["DELETE"], self._release),
            (batch, ["PUT"], self._commit),
            (batch, ["DELETE"], self._abort),
            (batch + "/{partition}/{attempt}", ["POST"], self._stage),
        ]

    # ---- rows come -----------------------------------------------------------------------------

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
            target = _target_of(request)
            told = await self._node.call(
                "claim_query", vhost, query=query, target=target or {}, as_user=identity.facts()
            )
            stem = f"{batch}.{partition}.{attempt}"
            owner = str(told["owner"]) or identity.name
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

    def _check_uploads(self, user: str) -> None:
        """HttpError 503: too many are under way."""
        count = list(self._uploads.values()).count(user)
        if len(self._uploads) < UPLOADS_MAX and count < USER_UPLOADS_MAX:
            return
        busy = HttpError(
            503, f"{len(self._uploads)} uploads are under way, {count} of them of user '{user}'; "
            f"{UPLOADS_MAX} may be at most, and {USER_UPLOADS_MAX} of one user: try again",
        )  # fmt: skip
        busy.headers["Retry-After"] = "1"
        raise busy

    async def _staged(self, upload: StagedUpload, request: Request, user: str) -> None:
        """The whole body, synced; or nothing of it. HttpError, OSError."""
        is_whole = False
        try:
            await self._write_all(upload, request, user)
            await self._in_thread(upload.finish)
            is_whole = True
        finally:
            if not is_whole:
                # Whatever becomes of this task: a process that stops cancels it, perhaps twice.
                gone = asyncio.wrap_future(self._writing.submit(upload.discard))
                gone.add_done_callback(_log_failure)
                await asyncio.wait([gone])

    async def _write_all(self, upload: StagedUpload, request: Request, user: str) -> None:
        """One chunk is written while the next one comes. Nothing is being written at the end,
        whatever end."""
        memory, chunks = self._memory, ChunkUpload(request.receive)
        writing: asyncio.Future[None] | None = None
        try:
            while (head := await chunks.head()) is not None:
                self._writer(request)  # again: what was revoked meanwhile ends it here
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

    def _in_thread(self, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        return asyncio.get_running_loop().run_in_executor(self._writing, work)

    # ---- what the vhost answers ----------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        vhost, identity = identity_in(request, self._auth)
        found = await self._node.call("list_batches", vhost)
        return JsonAnswer(
            [
                row for row in found
                if row["owner"] == identity.name or may_write_to(identity, row["target"])
            ]
        )  # fmt: skip

    async def _commit(self, request: Request) -> Response:
        vhost, query, _ = self._writer(request)
        batch = _number(request, "batch", BATCH_MAX)
        body = await json_body(request, COMMIT_BYTES_MAX)
        args = commit_args(body, query, batch)
        # Anew: it may have taken long to come.
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
        """What the vhost answers to that user."""
        return JsonAnswer(await self._node.call(op, vhost, as_user=identity.facts(), **args))

    # ---- who, and what -------------------------------------------------------------------------

    def _writer(self, request: Request, *names: str) -> tuple[str, str, Identity]:
        """(vhost, query) of the address, and the user, who may write. names: of parameters that
        there may be besides the target. HttpError 400, 403, 404."""
        vhost, identity = identity_in(request, self._auth)
        query = name_in(request, "query")
        try:
            size = len(query.encode())
        except UnicodeEncodeError:
            raise HttpError(400, "the query's name is no UTF-8") from None
        if not 1 <= size <= QUERY_BYTES_MAX or "\0" in query:
            expected = f"expected 1 to {QUERY_BYTES_MAX}, none of them 0"
            raise HttpError(400, f"the query's name has {size} bytes, {expected}")
        if identity.write in NOBODY:
            raise HttpError(403, f"user '{identity.name}' may write nothing in vhost '{vhost}'")
        given(request.query_params, ("target", *names))
        target = _target_of(request)
        if target is not None:
            checked_target(target, vhost, identity)
        return vhost, query, identity


def _log_failure(gone: "asyncio.Future[None]") -> None:
    if not gone.cancelled() and gone.exception() is not None:
        logger.error("files of an upload that broke are left: %s", gone.exception())


def _target_of(request: Request) -> object:
    """The parameter: as in a commit, or a queue's name; None: there is none. HttpError 400."""
    text = request.query_params.get("target")
    if text is None:
        return None
    if not text.startswith("{"):
        return {"queue": text}
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"parameter 'target': expected JSON: {error}") from None


def _number(request: Request, part: str, most: int) -> int:
    """A number of the address. HttpError 400."""
    text = name_in(request, part)
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise HttpError(400, f"{part}: given {text!r}, expected a whole number from 0 to {most}")
    return int(text)


def _attempt_exists(attempt: str) -> HttpError:
    return HttpError(409, f"attempt '{attempt}' was staged before", error="attempt_exists")


def _of_disk(error: OSError | SyncFailedError) -> HttpError:
    """What the client is told of a disk that does not write."""
    if isinstance(error, SyncFailedError):
        error = error.cause
    if error.errno in DISK_FULL:
        return HttpError(507, "the disk is full", error="disk_full")
    if isinstance(error, FileNotFoundError):
        return HttpError(503, "the directory went meanwhile, try again")
    logger.error("staging: %s", error)
    return HttpError(500, "the disk failed, see the broker's log")
