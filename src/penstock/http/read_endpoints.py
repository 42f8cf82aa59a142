"""Endpoints for readers of ranges: streams, under /api/streams, and leases, under /api/leases.

StreamEndpoints:

    GET          /{vhost}                             all streams that the user may read, described
    GET          /{vhost}/{stream}                    its partitions: first, head, paths; readers
    GET          /{vhost}/{stream}/offset?time_us=    where records of this time or later begin
    GET          /{vhost}/{stream}/pages              its pages: bases, records, bytes, times
    PUT, DELETE  /{vhost}/{stream}/readers/{reader}   set a reader's offsets; forget the reader
    GET          /{vhost}/{stream}/records?from=      some records as JSON, for people
    GET          /{vhost}/{stream}/frames?from=&to=   records as frame chunks (pages.py)
    GET          /{vhost}/{stream}/arrow?from=&to=    the same for Arrow

A user who may read the stream may do all of this: a reader's offsets change no record. ranges.py
has the parameters of ranges.

LeaseEndpoints, for classic queues:

    GET     /{vhost}                        all leases of queues that the user may read
    GET     /{vhost}/{queue}                the queue: its type, ready, unacknowledged, leases
    GET     /{vhost}/{queue}/{reader}       one lease: first (committed), head, ready, bytes
    POST    /{vhost}/{queue}/{reader}       lease more: {"messages": n or null, "bytes": n or null}
    PUT     /{vhost}/{queue}/{reader}       ack all below: {"committed": ordinal}
    DELETE  /{vhost}/{queue}/{reader}       release what is not committed, and forget the reader
    PUT     .../{reader}/owner              own the reader: {"owner": token, "seconds": 15,
                                            "is_held": false}
    DELETE  .../{reader}/owner?owner=       stop owning it
    GET     .../{reader}/frames?from=&to=   leased messages as frame chunks (pages.py)
    GET     .../{reader}/arrow?from=&to=    the same for Arrow
    GET     .../{reader}/pages              its pages: bases, records, bytes, times

A reader leases messages of a durable queue. They get the numbers 0, 1, 2 ... in the order of
delivery, and keep them until the reader commits. So a lease is read like a stream whose first
offset is `first` and whose head is `head` (ranges.py).

A program owns the reader while it runs, so that a second program gets an error. POST and PUT have
the token as "owner" in their bodies, DELETE as a parameter; while another program owns the reader
they are a 409 `reader_taken`.

A user who may read the queue may do all of this, because they may consume it as well. A stream
cannot be leased: 409 `is_a_stream`. A lease is not repeated when the vhost ends meanwhile, because
it would lease twice as much: the answer is 503, and the client looks at its lease before it asks
again.
"""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import RESOURCE_LOCKED
from penstock.http.bodies import JsonBodies
from penstock.http.node_link import STREAM, NodeLink, ask_classic, ask_stream, is_a_stream
from penstock.http.ranges import (
    OFFSET_MAX,
    PARTITION_MAX,
    RANGE_NAMES,
    RECORD_NAMES,
    LeaseDirectory,
    PartitionDirectory,
    RangeAnswers,
)
from penstock.http.requests import (
    BasicAuth,
    HttpError,
    JsonAnswer,
    Routes,
    given,
    identity_in,
    name_in,
    readable,
    time_us,
    whole,
)
from penstock.server.control import ControlError


class RangeEndpoints:
    """The base of both. ranges: reads the pages. bodies: reads bodies."""

    def __init__(
        self, node: NodeLink, auth: BasicAuth, ranges: RangeAnswers, bodies: JsonBodies
    ) -> None:
        self._node = node
        self._auth = auth
        self._ranges = ranges
        self._bodies = bodies


class StreamEndpoints(RangeEndpoints):
    """Answers requests about streams."""

    async def metrics(self, vhost: str) -> dict[str, dict[str, int]]:
        """Return what was read of the streams of a vhost."""
        return self._ranges.read_of(vhost)

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
            (f"{one}/records", ["GET"], self._records),
            (f"{one}/frames", ["GET"], self._frames),
            (f"{one}/arrow", ["GET"], self._arrow),
        ]

    # ---- operations of the vhost ---------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        vhost, identity = identity_in(request, self._auth)
        return JsonAnswer(await self._node.call("list_streams", vhost, as_user=identity.facts()))

    async def _describe(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        _, identity = identity_in(request, self._auth)
        facts = identity.facts()
        return JsonAnswer(
            await ask_stream(self._node, "describe_stream", vhost, stream, as_user=facts)
        )

    async def _set_reader(self, request: Request) -> Response:
        vhost, stream = self._readable(request)
        body = await self._bodies.small(request)
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
        args["reader"] = name_in(request, "reader")
        _, identity = identity_in(request, self._auth)
        facts = identity.facts()  # a reader takes memory, which counts for its user
        await ask_stream(self._node, "set_stream_reader", vhost, stream, as_user=facts, **args)
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

    async def _records(self, request: Request) -> Response:
        return await self._ranges.records(request, self._directory(request, *RECORD_NAMES))

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


OWNER_S_MAX: Final = 3600
OWNER_BYTES_MAX: Final = 255
LEASE_BODY_BYTES_MAX: Final = 4 << 10
LEASE_RANGE_NAMES: Final = tuple(name for name in RANGE_NAMES if name != "partition")


class LeaseEndpoints(RangeEndpoints):
    """Answers requests about leases."""

    async def metrics(self, vhost: str) -> dict[str, int]:
        """Return nothing: the vhost counts leases."""
        return {}

    def routes(self) -> Routes:
        """Return (address below /api/leases, methods, endpoint) of each route."""
        one = "{vhost}/{queue}/{reader}"
        return [
            ("{vhost}", ["GET"], self._list),
            ("{vhost}/{queue}", ["GET"], self._describe_queue),
            (one, ["GET"], self._describe),
            (one, ["POST"], self._lease),
            (one, ["PUT"], self._commit),
            (one, ["DELETE"], self._release),
            (f"{one}/owner", ["PUT"], self._own),
            (f"{one}/owner", ["DELETE"], self._disown),
            (f"{one}/frames", ["GET"], self._frames),
            (f"{one}/arrow", ["GET"], self._arrow),
            (f"{one}/pages", ["GET"], self._page_table),
        ]

    # ---- operations of the vhost ---------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        vhost, identity = identity_in(request, self._auth)
        return JsonAnswer(await self._node.call("list_leases", vhost, as_user=identity.facts()))

    async def _describe_queue(self, request: Request) -> Response:
        vhost, queue = readable(request, self._auth, "queue")
        described = await self._node.value("describe_queue", vhost, queue=queue)
        if described["type"] == STREAM:
            raise is_a_stream(vhost, queue)
        return JsonAnswer(described)

    async def _describe(self, request: Request) -> Response:
        return await self._asked(request, "describe_lease")

    async def _lease(self, request: Request) -> Response:
        readable(request, self._auth, "queue")
        expected = 'expected {"messages": 1000, "bytes": 1000000}, null or nothing: no limit'
        body = await self._bodies.small(request, LEASE_BODY_BYTES_MAX)
        most: dict[str, object] = {
            name: _limit(body.pop(name, None), expected) for name in ("messages", "bytes")
        }
        owner = _owner(body.pop("owner", None))
        if body:
            raise HttpError(400, f"{expected}; unknown: {next(iter(body))!r}")
        _, identity = identity_in(request, self._auth)
        most["as_user"] = identity.facts()  # each user may have leases of so many readers
        return await self._asked(request, "lease_queue", is_once=True, owner=owner, **most)

    async def _commit(self, request: Request) -> Response:
        readable(request, self._auth, "queue")
        body = await self._bodies.small(request, LEASE_BODY_BYTES_MAX)
        committed = body.pop("committed", None)
        owner = _owner(body.pop("owner", None))
        if body or type(committed) is not int or not 0 <= committed <= OFFSET_MAX:
            raise HttpError(400, 'expected {"committed": ordinal}: acks all messages below it')
        return await self._asked(request, "commit_lease", offset=committed, owner=owner)

    async def _release(self, request: Request) -> Response:
        owner = _owner(given(request.query_params, ("owner",)).get("owner"))
        return await self._asked(request, "release_lease", owner=owner)

    async def _own(self, request: Request) -> Response:
        readable(request, self._auth, "queue")
        body = await self._bodies.small(request, LEASE_BODY_BYTES_MAX)
        owner, seconds = _owner(body.pop("owner", None)), body.pop("seconds", None)
        is_held = body.pop("is_held", False)
        is_right = type(seconds) is int and isinstance(is_held, bool)
        if body or not owner or not is_right or not 1 <= seconds <= OWNER_S_MAX:
            raise HttpError(
                400, 'expected {"owner": token, "seconds": 15, "is_held": false}, seconds from 1 '
                f"to {OWNER_S_MAX}",
            )  # fmt: skip
        _, identity = identity_in(request, self._auth)
        facts = identity.facts()  # each user may own so many
        return await self._asked(
            request, "own_lease", owner=owner, seconds=seconds, is_held=is_held, as_user=facts
        )  # fmt: skip

    async def _disown(self, request: Request) -> Response:
        owner = _owner(given(request.query_params, ("owner",)).get("owner"))
        if not owner:
            raise HttpError(400, "expected ?owner=, the token that owns the reader")
        return await self._asked(request, "disown_lease", owner=owner)

    async def _asked(
        self, request: Request, op: str, *, is_once: bool = False, **args: object
    ) -> Response:
        vhost, queue = readable(request, self._auth, "queue")
        reader = name_in(request, "reader")
        try:
            found: Any = await ask_classic(
                self._node, op, vhost, queue, is_once=is_once, reader=reader, **args
            )
        except ControlError as error:
            if error.code != RESOURCE_LOCKED:
                raise
            raise HttpError(409, error.text, error="reader_taken") from error
        return JsonAnswer(found)

    # ---- read from the files -------------------------------------------------------------------

    async def _frames(self, request: Request) -> Response:
        return await self._ranges.frames(request, self._directory(request), LEASE_RANGE_NAMES)

    async def _arrow(self, request: Request) -> Response:
        return await self._ranges.arrow(request, self._directory(request), LEASE_RANGE_NAMES)

    async def _page_table(self, request: Request) -> Response:
        given(request.query_params, ())
        return await self._ranges.page_table(self._directory(request))

    def _directory(self, request: Request) -> LeaseDirectory:
        """Return the directory of the lease. Raises HttpError 403, 404."""
        vhost, queue = readable(request, self._auth, "queue")
        return LeaseDirectory(vhost, queue, name_in(request, "reader"))


def _limit(value: object, expected: str) -> int | None:
    """Return the value. Raises HttpError 400 unless it is None or a number from 1 on."""
    if value is None or (type(value) is int and 0 < value <= OFFSET_MAX):
        return value
    raise HttpError(400, f"{expected}; given {value!r}")


def _owner(value: object) -> str:
    """Return the token of a program, "" for None. Raises HttpError 400."""
    if value is None:
        return ""
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) <= OWNER_BYTES_MAX:
        return value
    raise HttpError(400, f"owner: expected a text of up to {OWNER_BYTES_MAX} bytes")
