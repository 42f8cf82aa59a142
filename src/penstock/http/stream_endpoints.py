"""StreamEndpoints: what can be asked of streams under /api/streams.

    GET          /{vhost}                             all that the user may read, described
    GET          /{vhost}/{stream}                    its partitions: first, head, paths; readers
    GET          /{vhost}/{stream}/offset?time_us=    where what came then or later begins
    GET          /{vhost}/{stream}/pages              its pages: bases, records, bytes, times
    PUT, DELETE  /{vhost}/{stream}/readers/{reader}   a reader's offsets, and that it is no more
    GET          /{vhost}/{stream}/frames?from=&to=   records as pages have them (frame_chunks)
    GET          /{vhost}/{stream}/arrow?from=&to=    the same for Arrow (arrow_stream)

Whoever may read the queue of that name may do all of it: a reader's offsets are its own business,
and change no record. Ranges: range_query.

Long answers are made by threads, ANSWERS_MAX at a time; one more waits for its turn.
"""

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import NotAStoreError
from penstock.http import arrow_stream
from penstock.http.answers import JsonAnswer, LongAnswer
from penstock.http.basic_auth import BasicAuth
from penstock.http.frame_chunks import MEDIA_TYPE, encode_chunk
from penstock.http.http_errors import HttpError
from penstock.http.node_link import NodeLink
from penstock.http.range_query import (
    PARTITION_MAX,
    RANGE_NAMES,
    given,
    range_query,
    time_us,
    whole,
)
from penstock.http.stream_pages import Range, StreamPages

ANSWERS_MAX: Final = 32
BODY_BYTES_MAX: Final = 1 << 20
USER: Final = "penstock.user"

Endpoint = Callable[[Request], Awaitable[Response]]
Maker = Callable[[Range, dict[str, str]], Iterator[bytes]]


class StreamEndpoints:
    """reading: the threads that read files."""

    def __init__(
        self, node: NodeLink, auth: BasicAuth, pages: StreamPages, reading: Executor
    ) -> None:
        self._node = node
        self._auth = auth
        self._pages = pages
        self._reading = reading
        self._places = asyncio.Semaphore(ANSWERS_MAX)

    def routes(self) -> list[tuple[str, list[str], Endpoint]]:
        """(address below /api/streams, methods, what answers)."""
        one = "{vhost}/{stream}"
        return [
            ("{vhost}", ["GET"], self._list),
            (one, ["GET"], self._describe),
            (f"{one}/offset", ["GET"], self._offset),
            (f"{one}/pages", ["GET"], self._page_table),
            (f"{one}/readers/{{reader}}", ["PUT"], self._set_reader),
            (f"{one}/readers/{{reader}}", ["DELETE"], self._delete_reader),
            (f"{one}/frames", ["GET"], self._frames),
            (f"{one}/arrow", ["GET"], self._arrow),
        ]

    # ---- what the vhost answers ----------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        vhost = _name(request, "vhost")
        identity = self._auth.identity(request.scope[USER], vhost)
        found = await self._node.call("list_streams", vhost)
        return JsonAnswer([row for row in found if identity.may_read(row["name"])])

    async def _describe(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        return JsonAnswer(await self._node.call("describe_stream", vhost, queue=stream))

    async def _set_reader(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        body = await _json_body(request)
        args: dict[str, object] = {
            name: _offsets(name, body.pop(name))
            for name in ("offsets", "kept_from")
            if name in body
        }
        if "wait" in body:
            args["wait"] = body.pop("wait") is True
        if body or "offsets" not in args:
            raise HttpError(
                400, 'expected {"offsets": {"0": 1000}, "kept_from": {"0": 900}, "wait": false}, '
                "kept_from and wait may be missing",
            )  # fmt: skip
        reader = _name(request, "reader")
        await self._node.call("set_stream_reader", vhost, queue=stream, reader=reader, **args)
        return Response(status_code=204)

    async def _delete_reader(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        reader = _name(request, "reader")
        await self._node.call("delete_stream_reader", vhost, queue=stream, reader=reader)
        return Response(status_code=204)

    # ---- what is read from the files -----------------------------------------------------------

    async def _offset(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        query = given(request.query_params, ("partition", "time_us"))
        if "time_us" not in query:
            raise HttpError(400, "parameter 'time_us' is missing")
        time = time_us("time_us", query["time_us"])
        partition = whole(query, "partition", PARTITION_MAX) or 0
        found = await self._in_files(
            vhost, stream, partition, lambda path: self._pages.find(path, time)
        )
        return JsonAnswer(found)

    async def _page_table(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        query = given(request.query_params, ("partition",))
        partition = whole(query, "partition", PARTITION_MAX) or 0
        return JsonAnswer(await self._in_files(vhost, stream, partition, self._pages.table))

    async def _frames(self, request: Request) -> Response:
        def chunks(wanted: Range, _query: dict[str, str]) -> Iterator[bytes]:
            for span in self._pages.spans(wanted):
                yield from encode_chunk(span)

        return await self._long(request, RANGE_NAMES, chunks, MEDIA_TYPE)

    async def _arrow(self, request: Request) -> Response:
        _, stream = self._readable(request)
        arrow_stream.available()

        def batches(wanted: Range, query: dict[str, str]) -> Iterator[bytes]:
            columns = query["columns"].split(",") if "columns" in query else None
            partition = whole(query, "partition", PARTITION_MAX) or 0
            spans = self._pages.spans(wanted)
            return arrow_stream.encoded(spans, stream, partition, columns)

        names = (*RANGE_NAMES, "columns")
        return await self._long(request, names, batches, arrow_stream.MEDIA_TYPE)

    async def _long(
        self, request: Request, names: tuple[str, ...], make: Maker, media_type: str
    ) -> Response:
        vhost, stream = self._readable(request)
        query = given(request.query_params, names)
        asked = range_query(query)

        def begin(path: str) -> tuple[Iterator[bytes], bytes | None, Range]:
            wanted = self._pages.range(path, asked)
            body = make(wanted, query)
            try:
                return body, next(body, None), wanted
            except FileNotFoundError as error:
                raise self._pages.missing(wanted) from error

        await self._places.acquire()
        try:
            body, first, wanted = await self._in_files(vhost, stream, asked.partition, begin)
        except BaseException:
            self._places.release()
            raise
        what = f"{vhost}: {stream}: {asked.partition}: {wanted.first} to {wanted.last}"
        headers = {"X-Penstock-First": str(wanted.first), "X-Penstock-Last": str(wanted.last)}
        return LongAnswer(body, first, media_type, what, self._reading, self._places, headers)

    async def _in_files(
        self, vhost: str, stream: str, partition: int, work: Callable[[str], Any]
    ) -> Any:
        """The result of `work` with the directory of a partition, in a thread."""
        loop = asyncio.get_running_loop()
        for is_last in (False, True):
            path = await self._pages.place(vhost, stream, partition)
            try:
                return await loop.run_in_executor(self._reading, functools.partial(work, path))
            except (NotAStoreError, FileNotFoundError) as error:
                # The stream was deleted, perhaps made again, since it was asked for.
                self._pages.forget(vhost, stream)
                if is_last:
                    raise HttpError(404, f"stream '{stream}' has gone") from error
        raise AssertionError

    # ---- who, and what -------------------------------------------------------------------------

    def _readable(self, request: Request) -> tuple[str, str]:
        """(vhost, stream) of the address. HttpError 403, 404."""
        vhost, stream = _name(request, "vhost"), _name(request, "stream")
        user = request.scope[USER]
        if not self._auth.identity(user, vhost).may_read(stream):
            raise HttpError(
                403, f"read access to queue '{stream}' in vhost '{vhost}' refused for user '{user}'"
            )
        return vhost, stream


def _name(request: Request, part: str) -> str:
    """A part of the address, decoded."""
    return unquote_to_bytes(request.path_params[part]).decode("utf-8", "surrogateescape")


async def _json_body(request: Request) -> dict[str, Any]:
    """HttpError 400: it is no object; 413."""
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > BODY_BYTES_MAX:
            raise HttpError(413, f"more than {BODY_BYTES_MAX} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"expected JSON: {error}") from None
    if not isinstance(body, dict):
        raise HttpError(400, "expected a JSON object")
    return body


def _offsets(name: str, value: object) -> dict[str, int]:
    """HttpError 400 unless it is partition -> offset."""
    if isinstance(value, dict) and all(
        key.isascii() and key.isdigit() and type(offset) is int and offset >= 0
        for key, offset in value.items()
    ):
        return value
    raise HttpError(400, f'{name}: expected an object, partition: offset, such as {{"0": 1000}}')
