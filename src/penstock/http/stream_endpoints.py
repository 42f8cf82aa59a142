"""StreamEndpoints: streams, under /api/streams.

    GET          /{vhost}                             all streams that the user may read, described
    GET          /{vhost}/{stream}                    its partitions: first, head, paths; readers
    GET          /{vhost}/{stream}/offset?time_us=    where records of this time or later begin
    GET          /{vhost}/{stream}/pages              its pages: bases, records, bytes, times
    PUT, DELETE  /{vhost}/{stream}/readers/{reader}   set a reader's offsets; forget the reader
    GET          /{vhost}/{stream}/frames?from=&to=   records as frame chunks (pages.py)
    GET          /{vhost}/{stream}/arrow?from=&to=    the same for Arrow (arrow_stream)

A user who may read the stream may do all of this: a reader's offsets change no record. ranges.py
has the parameters of ranges.
"""

from starlette.requests import Request
from starlette.responses import Response

from penstock.http.node_link import NodeLink, ask_stream
from penstock.http.ranges import PARTITION_MAX, RANGE_NAMES, PartitionDirectory, RangeAnswers
from penstock.http.requests import (
    BasicAuth,
    HttpError,
    JsonAnswer,
    Routes,
    given,
    identity_in,
    json_body,
    name_in,
    readable,
    time_us,
    whole,
)


class StreamEndpoints:
    """Answers requests about streams. ranges: reads the pages."""

    def __init__(self, node: NodeLink, auth: BasicAuth, ranges: RangeAnswers) -> None:
        self._node = node
        self._auth = auth
        self._ranges = ranges

    def routes(self) -> Routes:
        """Return (address below /api/streams, methods, endpoint) of each route."""
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

    # ---- operations of the vhost ---------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        vhost, identity = identity_in(request, self._auth)
        found = await self._node.call("list_streams", vhost)
        return JsonAnswer([row for row in found if identity.may_read(row["name"])])

    async def _describe(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        return JsonAnswer(await ask_stream(self._node, "describe_stream", vhost, stream))

    async def _set_reader(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        body = await json_body(request)
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
        reader = name_in(request, "reader")
        await ask_stream(self._node, "set_stream_reader", vhost, stream, reader=reader, **args)
        return Response(status_code=204)

    async def _delete_reader(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        reader = name_in(request, "reader")
        await ask_stream(self._node, "delete_stream_reader", vhost, stream, reader=reader)
        return Response(status_code=204)

    # ---- read from the files -------------------------------------------------------------------

    async def _offset(self, request: Request) -> Response:
        directory = self._directory(request, "partition", "time_us")
        query = request.query_params
        if "time_us" not in query:
            raise HttpError(400, "parameter 'time_us' is missing")
        return await self._ranges.offset(directory, time_us("time_us", query["time_us"]))

    async def _page_table(self, request: Request) -> Response:
        return await self._ranges.page_table(self._directory(request, "partition"))

    async def _frames(self, request: Request) -> Response:
        return await self._ranges.frames(
            request, self._directory(request, *RANGE_NAMES), RANGE_NAMES
        )

    async def _arrow(self, request: Request) -> Response:
        directory = self._directory(request, *RANGE_NAMES, "columns")
        return await self._ranges.arrow(request, directory, RANGE_NAMES)

    # ---- the address ---------------------------------------------------------------------------

    def _readable(self, request: Request) -> tuple[str, str]:
        """Return (vhost, stream) of the address. Raises HttpError 403, 404."""
        return readable(request, self._auth, "stream")

    def _directory(self, request: Request, *names: str) -> PartitionDirectory:
        """Return the directory of the partition. names: all parameters that the request may have.
        Raises HttpError 400, 403, 404."""
        vhost, stream = self._readable(request)
        query = given(request.query_params, names)
        return PartitionDirectory(vhost, stream, whole(query, "partition", PARTITION_MAX) or 0)


def _offsets(name: str, value: object) -> dict[str, int]:
    """Return partition -> offset. Raises HttpError 400 for another value."""
    if isinstance(value, dict) and all(
        key.isascii() and key.isdigit() and type(offset) is int and offset >= 0
        for key, offset in value.items()
    ):
        return value
    raise HttpError(400, f'{name}: expected an object, partition: offset, such as {{"0": 1000}}')
