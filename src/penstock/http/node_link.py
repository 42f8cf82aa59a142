"""NodeLink: the broker as the HTTP process sees it: its users, and calls of operations.

Over the link to the supervisor come the users, again after each change, and the results of calls:
of any operation that the control socket has (server.control). So this process opens no database and
holds no lock. The supervisor waits for a vhost that is being started again. After the link has
ended every call fails with 503.

**Streams and queues.** A client may know only the name of a queue, not its type. A request for a
stream under /api/streams that names another queue is answered 409 `not_a_stream`, and one under
/api/leases that names a stream 409 `is_a_stream`: the client then knows which address to use. A
vhost may refuse an operation for many reasons, so it is asked for the type only after a refusal;
requests that are right cost nothing more.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock.access.users import KnownUsers
from penstock.errors import INTERNAL_ERROR, PRECONDITION_FAILED
from penstock.http.requests import HttpError
from penstock.operation_json import JsonText, from_json, to_json
from penstock.server.control import ControlError
from penstock.server.process_link import Facts

CALL_S: Final = 60.0


STREAM: Final = "stream"


class NodeLink:
    """Calls operations of the broker. users: as the broker has them. send(facts): sends one message
    over the link."""

    def __init__(self, users: KnownUsers, send: Callable[[Facts], None]) -> None:
        self.users = users
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Future[object]] = {}
        self._calls_n = 0

    async def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """Return the result of an operation that may be repeated, a JsonText if it is long: if its
        vhost ends meanwhile, the operation is called once more. Raises ControlError if it is
        refused, HttpError 503 if there is no answer."""
        try:
            return await self._call(op, vhost, args)
        except ControlError as error:
            if error.code != INTERNAL_ERROR:
                raise
        return await self._call(op, vhost, args)

    async def call_once(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """Call an operation that must not be repeated. Otherwise as `call`."""
        return await self._call(op, vhost, args)

    async def _call(self, op: str, vhost: str | None, args: dict[str, object]) -> object:
        self._calls_n += 1
        number = self._calls_n
        answer = self._calls[number] = self._loop.create_future()
        self._send(
            {
                "do": "call",
                "n": number,
                "op": op,
                "vhost": vhost,
                "args": to_json(args, is_exact=True),
            }
        )
        try:
            async with asyncio.timeout(CALL_S):
                return await answer
        except TimeoutError:
            raise HttpError(503, "the broker has not answered") from None
        finally:
            self._calls.pop(number, None)

    def result(self, facts: dict[str, Any]) -> None:
        """Take the result of a call."""
        answer = self._calls.get(facts["id"])
        if answer is None or answer.done():
            return
        fault = facts.get("error")
        if fault is not None:
            answer.set_exception(ControlError(fault["code"], fault["text"]))
        else:
            answer.set_result(from_json(facts.get("result"), is_exact=True))

    def text(self, facts: dict[str, Any], data: bytes) -> None:
        """Take a result that is JSON."""
        answer = self._calls.get(facts["id"])
        if answer is not None and not answer.done():
            answer.set_result(JsonText(data))

    def gone(self) -> None:
        """Fail all calls: the link has ended."""
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(HttpError(503, "the broker stops"))


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
        return str((await node.call("describe_queue", vhost, queue=queue))["type"])
    except ControlError:
        return None
