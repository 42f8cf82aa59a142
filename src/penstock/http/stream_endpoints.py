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

Not here: ranges of a place (range_answers), what the operations do (the vhost).
"""

from starlette.requests import Request
from starlette.responses import Response

from penstock.http.answers import JsonAnswer
from penstock.http.basic_auth import BasicAuth
from penstock.http.http_errors import HttpError
from penstock.http.node_link import NodeLink
from penstock.http.places import StreamPlace
from penstock.http.queue_kinds import ask_stream
from penstock.http.range_answers import RangeAnswers
from penstock.http.range_query import PARTITION_MAX, RANGE_NAMES, given, time_us, whole
from penstock.http.requests import Routes, identity_in, json_body, name_in, readable


class StreamEndpoints:
    """ranges: reads them."""

    def __init__(self, node: NodeLink, auth: BasicAuth, ranges: RangeAnswers) -> None:
        self._node = node
        self._auth = auth
        self._ranges = ranges

    def routes(self) -> Routes:
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

    # ---- what is read from the files -----------------------------------------------------------

    async def _offset(self, request: Request) -> Response:
        place = self._place(request, "partition", "time_us")
        query = request.query_params
        if "time_us" not in query:
            raise HttpError(400, "parameter 'time_us' is missing")
        return await self._ranges.offset(place, time_us("time_us", query["time_us"]))

    async def _page_table(self, request: Request) -> Response:
        return await self._ranges.page_table(self._place(request, "partition"))

    async def _frames(self, request: Request) -> Response:
        return await self._ranges.frames(request, self._place(request, *RANGE_NAMES), RANGE_NAMES)

    async def _arrow(self, request: Request) -> Response:
        place = self._place(request, *RANGE_NAMES, "columns")
        return await self._ranges.arrow(request, place, RANGE_NAMES)

    # ---- who, and what -------------------------------------------------------------------------

    def _readable(self, request: Request) -> tuple[str, str]:
        """(vhost, stream) of the address. HttpError 403, 404."""
        return readable(request, self._auth, "stream")

    def _place(self, request: Request, *names: str) -> StreamPlace:
        """The partition that is asked for. names: of all parameters that the request may have.
        HttpError 400, 403, 404."""
        vhost, stream = self._readable(request)
        query = given(request.query_params, names)
        return StreamPlace(vhost, stream, whole(query, "partition", PARTITION_MAX) or 0)


def _offsets(name: str, value: object) -> dict[str, int]:
    """HttpError 400 unless it is partition -> offset."""
    if isinstance(value, dict) and all(
        key.isascii() and key.isdigit() and type(offset) is int and offset >= 0
        for key, offset in value.items()
    ):
        return value
    raise HttpError(400, f'{name}: expected an object, partition: offset, such as {{"0": 1000}}')
