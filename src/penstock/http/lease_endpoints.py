"""LeaseEndpoints: classic queues for readers that read ranges, under /api/leases.

    GET     /{vhost}                        all leases of queues that the user may read
    GET     /{vhost}/{queue}                the queue: its type, ready, unacknowledged, leases
    GET     /{vhost}/{queue}/{reader}       one lease: first (committed), head, ready, bytes
    POST    /{vhost}/{queue}/{reader}       lease more: {"messages": n or null, "bytes": n or null}
    PUT     /{vhost}/{queue}/{reader}       ack what is below: {"committed": ordinal}
    DELETE  /{vhost}/{queue}/{reader}       give back what is not committed; the reader is forgotten
    PUT     .../{reader}/owner              own the reader: {"owner": token, "seconds": 15,
                                            "is_held": false}
    DELETE  .../{reader}/owner?owner=       own it no more
    GET     .../{reader}/frames?from=&to=   what is leased, as pages have it (frame_chunks)
    GET     .../{reader}/arrow?from=&to=    the same for Arrow (arrow_stream)
    GET     .../{reader}/pages              its pages: bases, records, bytes, times

A reader leases messages of a durable queue; they are numbered 0, 1, 2 ... in the order of their
delivery, and stay as they are, under these numbers, until it commits them. So to whoever reads
them a lease is a stream whose first offset is `first` and whose head is `head`, and is read as one.

A program owns the reader while it runs, so that a second one is told. POST and PUT have the token
as "owner" in their bodies, DELETE behind the "?"; while another program owns the reader they are a
409 `reader_taken`.

Whoever may read the queue may do all of it, as it might consume. A stream is no queue of this kind:
409 `is_a_stream`. Leasing is not asked for twice, for it would lease twice as much: a vhost that
ends meanwhile is a 503, and whoever asks again looks first at what it has.

Not here: ranges of a place (range_answers), what leasing is (penstock.storage).
"""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from penstock.errors import RESOURCE_LOCKED
from penstock.http.answers import JsonAnswer
from penstock.http.basic_auth import BasicAuth
from penstock.http.http_errors import HttpError
from penstock.http.node_link import NodeLink
from penstock.http.places import LeasePlace
from penstock.http.queue_kinds import STREAM, ask_classic, is_a_stream
from penstock.http.range_answers import RangeAnswers
from penstock.http.range_query import OFFSET_MAX, RANGE_NAMES, given
from penstock.http.requests import Routes, identity_in, json_body, name_in, readable
from penstock.server.control import ControlError

OWNER_S_MAX: Final = 3600
OWNER_BYTES_MAX: Final = 255
LEASE_RANGE_NAMES: Final = tuple(name for name in RANGE_NAMES if name != "partition")


class LeaseEndpoints:
    """ranges: reads them."""

    def __init__(self, node: NodeLink, auth: BasicAuth, ranges: RangeAnswers) -> None:
        self._node = node
        self._auth = auth
        self._ranges = ranges

    def routes(self) -> Routes:
        """(address below /api/leases, methods, what answers)."""
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

    # ---- what the vhost answers ----------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        vhost, identity = identity_in(request, self._auth)
        found = await self._node.call("list_leases", vhost)
        return JsonAnswer([row for row in found if identity.may_read(row["name"])])

    async def _describe_queue(self, request: Request) -> Response:
        vhost, queue = readable(request, self._auth, "queue")
        told = await self._node.call("describe_queue", vhost, queue=queue)
        if told["type"] == STREAM:
            raise is_a_stream(vhost, queue)
        return JsonAnswer(told)

    async def _describe(self, request: Request) -> Response:
        return await self._asked(request, "describe_lease")

    async def _lease(self, request: Request) -> Response:
        readable(request, self._auth, "queue")
        expected = 'expected {"messages": 1000, "bytes": 1000000}, null or nothing: no limit'
        body = await json_body(request)
        most = {name: _limit(body.pop(name, None), expected) for name in ("messages", "bytes")}
        owner = _owner(body.pop("owner", None))
        if body:
            raise HttpError(400, f"{expected}; unknown: {next(iter(body))!r}")
        return await self._asked(request, "lease_queue", is_once=True, owner=owner, **most)

    async def _commit(self, request: Request) -> Response:
        readable(request, self._auth, "queue")
        body = await json_body(request)
        committed = body.pop("committed", None)
        owner = _owner(body.pop("owner", None))
        if body or type(committed) is not int or not 0 <= committed <= OFFSET_MAX:
            raise HttpError(400, 'expected {"committed": ordinal}: all below it is done')
        return await self._asked(request, "commit_lease", offset=committed, owner=owner)

    async def _release(self, request: Request) -> Response:
        owner = _owner(given(request.query_params, ("owner",)).get("owner"))
        return await self._asked(request, "release_lease", owner=owner)

    async def _own(self, request: Request) -> Response:
        readable(request, self._auth, "queue")
        body = await json_body(request)
        owner, seconds = _owner(body.pop("owner", None)), body.pop("seconds", None)
        is_held = body.pop("is_held", False)
        is_right = type(seconds) is int and isinstance(is_held, bool)
        if body or not owner or not is_right or not 1 <= seconds <= OWNER_S_MAX:
            raise HttpError(
                400, 'expected {"owner": token, "seconds": 15, "is_held": false}, seconds from 1 '
                f"to {OWNER_S_MAX}",
            )  # fmt: skip
        return await self._asked(
            request, "own_lease", owner=owner, seconds=seconds, is_held=is_held
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

    # ---- what is read from the files -----------------------------------------------------------

    async def _frames(self, request: Request) -> Response:
        return await self._ranges.frames(request, self._place(request), LEASE_RANGE_NAMES)

    async def _arrow(self, request: Request) -> Response:
        return await self._ranges.arrow(request, self._place(request), LEASE_RANGE_NAMES)

    async def _page_table(self, request: Request) -> Response:
        given(request.query_params, ())
        return await self._ranges.page_table(self._place(request))

    def _place(self, request: Request) -> LeasePlace:
        """HttpError 403, 404."""
        vhost, queue = readable(request, self._auth, "queue")
        return LeasePlace(vhost, queue, name_in(request, "reader"))


def _limit(value: object, expected: str) -> int | None:
    """HttpError 400 unless it is a number from 1 on, or None."""
    if value is None or (type(value) is int and 0 < value <= OFFSET_MAX):
        return value
    raise HttpError(400, f"{expected}; given {value!r}")


def _owner(value: object) -> str:
    """The token of a program, "" for none. HttpError 400."""
    if value is None:
        return ""
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) <= OWNER_BYTES_MAX:
        return value
    raise HttpError(400, f"owner: expected a text of up to {OWNER_BYTES_MAX} bytes")
