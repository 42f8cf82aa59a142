"""NodeLink: the broker as the HTTP process sees it: its users, and calls of operations.

Over the link to the supervisor come the users, again after each change, and the results of calls of
the node. Operations of a vhost are called on a link to its process, which the supervisor hands over
when one is first called, and again after the process has ended; it waits for a vhost that is being
started. So this process opens no database and holds no lock, and what it asks a vhost passes two
processes. After the link to the supervisor has ended every call fails with 503.

**Streams and queues.** A client may know only the name of a queue, not its type. A request for a
stream under /api/streams that names another queue is answered 409 `not_a_stream`, and one under
/api/leases that names a stream 409 `is_a_stream`: the client then knows which address to use. A
vhost may refuse an operation for many reasons, so it is asked for the type only after a refusal;
requests that are right cost nothing more.
"""

import asyncio
import socket
from typing import Any, Final

from penstock.access.users import KnownUsers
from penstock.errors import INTERNAL_ERROR, PRECONDITION_FAILED
from penstock.http.requests import HttpError
from penstock.operation_json import JsonText, dumps, read
from penstock.operation_table import is_of_node
from penstock.server.control import OPEN, ControlError, Facts
from penstock.server.process_link import CALL_S, LinkEndedError, ProcessLink

STREAM: Final = "stream"
IMPORT: Final = "import_definitions"
IMPORT_S: Final = 600.0  # a document of 20 MB declares 80,000 queues and bindings
STATUS_S: Final = 0.25
AGAIN_S: Final = 0.05  # after a link that the vhost's process has not taken


class NodeLink:
    """Calls operations of the broker. users: as the broker has them. supervisor: the link to it."""

    def __init__(self, users: KnownUsers, supervisor: ProcessLink) -> None:
        self.users = users
        self._supervisor = supervisor
        self._loop = asyncio.get_running_loop()
        self._is_gone = False
        self._vhosts: dict[str, asyncio.Task[ProcessLink]] = {}
        self._asked: asyncio.Future[Any] | None = None  # the status, see `status`
        self._asked_until_s = 0.0

    async def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """Return the result of an operation that may be repeated, a JsonText if it is long: if its
        vhost ends meanwhile, the operation is called once more. Raises ControlError if it is
        refused, HttpError 503 if there is no answer."""
        try:
            return await self.call_once(op, vhost, **args)
        except ControlError as error:
            if error.code != INTERNAL_ERROR:
                raise
        return await self.call_once(op, vhost, **args)

    async def status(self) -> Any:
        """Return the broker's status, at most STATUS_S old: anybody may ask, and each call costs
        the supervisor some work. Requests meanwhile wait for the same call."""
        now_s = self._loop.time()
        asked = self._asked
        if asked is None or now_s >= self._asked_until_s:
            asked = self._asked = asyncio.ensure_future(self.call("status"))
            self._asked_until_s = now_s + STATUS_S
            asked.add_done_callback(mark_seen)
        return await asyncio.shield(asked)

    async def value(self, op: str, vhost: str, /, **args: object) -> Any:
        """Return the result as `call` does, read if it is long."""
        found = await self.call(op, vhost, **args)
        return read(found.text) if isinstance(found, JsonText) else found

    async def call_once(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """Call an operation that must not be repeated. Otherwise as `call`."""
        if self._is_gone:
            raise HttpError(503, "the broker stops")
        data = dumps(args, is_exact=True)
        try:
            if vhost is None or is_of_node(op):
                seconds = IMPORT_S if op == IMPORT else CALL_S
                found = await self._supervisor.call(op, vhost, data, seconds)
            else:
                found = await (await self._link_to(vhost)).call(op, None, data)
            return JsonText(found.data) if found.is_long else read(found.data)
        except TimeoutError:
            raise HttpError(503, "the broker has not answered") from None
        except LinkEndedError as error:
            if self._supervisor.is_closed or vhost is None:
                raise HttpError(503, "the broker stops") from error
            text = f"INTERNAL_ERROR - vhost '{vhost}' is down: its process has ended"
            raise ControlError(INTERNAL_ERROR, text) from error

    async def _link_to(self, vhost: str) -> ProcessLink:
        """Return the link to a vhost's process, a new one if there is none or it has ended. Raises
        TimeoutError after CALL_S."""
        opening = self._vhosts.get(vhost)
        if opening is None or (opening.done() and _is_of_no_use(opening)):
            opening = self._vhosts[vhost] = self._loop.create_task(self._open(vhost))
            opening.add_done_callback(_is_of_no_use)  # an error is seen, also if nobody waits now
        if opening.done():
            return opening.result()
        async with asyncio.timeout(CALL_S):
            return await asyncio.shield(opening)

    async def _open(self, vhost: str) -> ProcessLink:
        """Return a link on which the vhost's process has said that it is there: the supervisor may
        learn later than this process that it has ended."""
        while True:
            descriptors = (await self._supervisor.call(OPEN, vhost, b"")).descriptors
            if not descriptors:
                raise HttpError(503, "no descriptor is left for a link to the vhost (ulimit -n)")
            is_there: asyncio.Future[bool] = self._loop.create_future()
            link = self._new(socket.socket(fileno=descriptors[0]), is_there)
            if await is_there:
                return link
            await asyncio.sleep(AGAIN_S)

    def _new(self, sock: socket.socket, is_there: "asyncio.Future[bool]") -> ProcessLink:
        """Return a link. is_there: set to whether the other side has said anything."""

        def said(_facts: Facts, _data: bytes, _descriptors: list[int]) -> None:
            if not is_there.done():
                is_there.set_result(True)

        def closed(_why: str) -> None:
            if not is_there.done():
                is_there.set_result(False)

        sock.setblocking(False)
        return ProcessLink(sock, closed, said)

    def links(self) -> list[ProcessLink]:
        """Return the links to vhosts."""
        return [
            opening.result() for opening in self._vhosts.values()
            if opening.done() and not _is_of_no_use(opening)
        ]  # fmt: skip

    def gone(self) -> None:
        """Fail all calls of vhosts: this process ends."""
        self._is_gone = True
        for link in self.links():
            link.close()


def mark_seen(answer: "asyncio.Future[Any]") -> None:
    """Mark the error as seen; those who still wait for the call get it."""
    if not answer.cancelled():
        answer.exception()


def _is_of_no_use(opening: "asyncio.Task[ProcessLink]") -> bool:
    """Return whether a link that was opened has failed or ended."""
    return opening.cancelled() or opening.exception() is not None or opening.result().is_closed


async def ask_stream(node: NodeLink, op: str, vhost: str, queue: str, **args: object) -> Any:
    """Return the result of an operation on a stream. Raises HttpError 409 or 503, ControlError."""
    try:
        return await node.call(op, vhost, queue=queue, **args)
    except ControlError as error:
        kind = await _kind(node, error, vhost, queue)
        if kind is not None and kind != STREAM:
            reason = f"queue '{queue}' in vhost '{vhost}' is not a stream, its type is {kind}"
            raise HttpError(409, reason, error="not_a_stream") from error
        raise


async def ask_classic(
    node: NodeLink, op: str, vhost: str, queue: str, *, is_once: bool = False, **args: object
) -> Any:
    """Return the result of an operation on a queue that is not a stream. is_once: do not repeat it
    if the vhost ends meanwhile. Raises HttpError 409 or 503, ControlError."""
    try:
        call = node.call_once if is_once else node.call
        return await call(op, vhost, queue=queue, **args)
    except ControlError as error:
        if await _kind(node, error, vhost, queue) == STREAM:
            raise is_a_stream(vhost, queue) from error
        raise


def is_a_stream(vhost: str, queue: str) -> HttpError:
    """Return the 409 for a stream under /api/leases."""
    reason = f"queue '{queue}' in vhost '{vhost}' is a stream: it is read, not leased"
    return HttpError(409, reason, error="is_a_stream")


async def _kind(node: NodeLink, error: ControlError, vhost: str, queue: str) -> str | None:
    """Return the type of the queue if the vhost may have refused because of it, otherwise None."""
    if error.code != PRECONDITION_FAILED:
        return None
    try:
        return str((await node.value("describe_queue", vhost, queue=queue))["type"])
    except ControlError:
        return None
