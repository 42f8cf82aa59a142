"""StagingEndpoints: rows of a sink that writes exactly once, under /api/staging.

    GET     /{vhost}                    the last batch of each query
    POST    /{vhost}/{query}/{batch}/{partition}/{attempt}
                                        rows, as frame chunks (staged_upload): 201 with their token
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
USER_UPLOADS_MAX of one user; one more is a 503. staged_upload limits their memory and disk.

A commit's body:

    {"target": {"queue": name} or {"exchanges": [names]}, and "dead_letter_to": name or null,
     "tokens": [answers of staging, in the order of the rows],
     "mandatory_keys": [[exchange, routing key], ...] or null,
     "previous": number of the batch before, -1 or null, "keep_first": true or false}

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
from penstock.http.node_link import NodeLink
from penstock.http.requests import (
    BasicAuth,
    HttpError,
    JsonAnswer,
    Routes,
    given,
    identity_in,
    json_body,
    name_in,
    no_access,
)
from penstock.http.staged_upload import (
    MEMORY_BYTES,
    ChunkUpload,
    StagedUpload,
    StagingRoom,
    UploadMemory,
)
from penstock.storage.filesystem import FileSystem

UPLOADS_MAX: Final = 256
USER_UPLOADS_MAX: Final = 192
COMMIT_BYTES_MAX: Final = 16 << 20
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

logger = logging.getLogger(__name__)


class StagingEndpoints:
    """Answers requests of sinks. vhost_path(name): the directory of an existing vhost. limit_bytes:
    what may be staged in each. writing: the threads that write files."""

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
        self._memory = UploadMemory(MEMORY_BYTES)
        self._rooms: dict[str, StagingRoom] = {}
        self._uploads: dict[tuple[str, ...], str] = {}  # running upload -> its user

    def routes(self) -> Routes:
        """Return (address below /api/staging, methods, endpoint) of each route."""
        query = "{vhost}/{query}"
        batch = query + "/{batch}"
        return [
            ("{vhost}", ["GET"], self._list),
            (query, ["DELETE"], self._release),
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
            target = _target_of(request)
            claim = await self._node.call(
                "claim_query", vhost, query=query, target=target or {}, as_user=identity.facts()
            )
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
        if identity.write in NOBODY:
            raise HttpError(403, f"user '{identity.name}' may write nothing in vhost '{vhost}'")
        given(request.query_params, ("target", *names))
        target = _target_of(request)
        if target is not None:
            checked_target(target, vhost, identity)
        return vhost, query, identity


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
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"parameter 'target': expected JSON: {error}") from None


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


def commit_args(body: dict[str, Any], query: str, batch: int) -> dict[str, Any]:
    """Return the arguments of commit_batch for the body of a commit. Raises HttpError 400."""
    unknown = set(body) - {"target", "tokens", "mandatory_keys", "previous", "keep_first"}
    if unknown or not isinstance(body.get("tokens"), list):
        what = f", unknown: {sorted(unknown)}" if unknown else ""
        raise HttpError(400, EXPECTED + what)
    keys = body.get("mandatory_keys")
    if keys is not None and not (isinstance(keys, list) and all(map(_is_key, keys))):
        raise HttpError(400, "mandatory_keys: expected [[exchange, routing key], ...] or null")
    previous, is_first_kept = body.get("previous"), body.get("keep_first", False)
    if previous is not None and (type(previous) is not int or not -1 <= previous < batch):
        raise HttpError(400, f"previous: given {previous!r}, expected -1 to {batch - 1}, or null")
    if not isinstance(is_first_kept, bool):
        raise HttpError(400, f"keep_first: given {is_first_kept!r}, expected true or false")
    pages: list[dict[str, object]] = []
    for number, token in enumerate(body["tokens"]):
        pages += _pages(token, number, query, batch)
    return {
        "query": query, "batch": batch, "target": body.get("target"), "pages": pages,
        "mandatory_keys": keys, "previous": previous, "keep_first": is_first_kept,
    }  # fmt: skip


def _pages(token: object, number: int, query: str, batch: int) -> list[dict[str, object]]:
    """Return the pages of one token."""
    if not isinstance(token, dict) or not isinstance(token.get("pages"), list):
        raise HttpError(400, f"token {number}: expected the answer of POST, with its pages")
    if token.get("query") != query or token.get("batch") != batch:
        raise HttpError(
            400, f"token {number} is of query {token.get('query')!r} and batch "
            f"{token.get('batch')!r}, expected {query!r} and {batch}",
        )  # fmt: skip
    for page in token["pages"]:
        if not _is_page(page):
            raise HttpError(
                400, f"token {number}: expected pages with name, page_id, rows, bytes and "
                f"checksum, given {str(page)[:200]}",
            )  # fmt: skip
    return [{name: page[name] for name in _PAGE} for page in token["pages"]]


_PAGE: Final = {"name": str, "page_id": str, "rows": int, "bytes": int, "checksum": str}


def _is_page(page: object) -> bool:
    return isinstance(page, dict) and all(type(page.get(name)) is _PAGE[name] for name in _PAGE)


def _is_key(key: object) -> bool:
    return isinstance(key, list) and len(key) == 2 and all(isinstance(one, str) for one in key)


# ---- the target ----------------------------------------------------------------------------------


def checked_target(target: object, vhost: str, identity: Identity) -> None:
    """Raise HttpError 400 if the target is invalid, 403 if the user may not write to all of it."""
    for kind, name in _named(target):
        if not identity.may_write(name):
            raise no_access("write", kind, name, vhost, identity)


def may_write_to(identity: Identity, target: object) -> bool:
    """Return whether the user may write to all of a target. target: as the vhost reports it."""
    if isinstance(target, str):
        target = json.loads(target)
    try:
        return all(identity.may_write(name) for _, name in _named(target))
    except HttpError:
        return False


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
