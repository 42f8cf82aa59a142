"""Asking the vhost about a queue, where streams are asked for at one address and others at another.

A client that knows a name only does not know what it is. So whoever asks for a stream under
/api/streams and names a queue of another type is answered 409 `not_a_stream`, and 409 `is_a_stream`
under /api/leases: what to ask next. The vhost refuses such a question for one of many reasons, so
it is asked what the queue is only when it has refused one: that costs the right question nothing.
"""

from typing import Any, Final

from penstock.errors import PRECONDITION_FAILED
from penstock.http.http_errors import HttpError
from penstock.http.node_link import NodeLink
from penstock.server.control import ControlError

STREAM: Final = "stream"


async def ask_stream(node: NodeLink, op: str, vhost: str, queue: str, **args: object) -> Any:
    """The result of an operation on a stream. HttpError 409, 503; ControlError."""
    try:
        return await node.call(op, vhost, queue=queue, **args)
    except ControlError as error:
        kind = await _kind(node, error, vhost, queue)
        if kind is not None and kind != STREAM:
            reason = f"queue '{queue}' in vhost '{vhost}' is no stream, its type is {kind}"
            raise HttpError(409, reason, error="not_a_stream") from error
        raise


async def ask_classic(
    node: NodeLink, op: str, vhost: str, queue: str, *, is_once: bool = False, **args: object
) -> Any:
    """The result of an operation on a queue that is no stream. is_once: it is not asked of the next
    life of a vhost that ended meanwhile. HttpError 409, 503; ControlError."""
    try:
        call = node.call_once if is_once else node.call
        return await call(op, vhost, queue=queue, **args)
    except ControlError as error:
        if await _kind(node, error, vhost, queue) == STREAM:
            raise is_a_stream(vhost, queue) from error
        raise


def is_a_stream(vhost: str, queue: str) -> HttpError:
    """409."""
    reason = f"queue '{queue}' in vhost '{vhost}' is a stream: it is read, not leased"
    return HttpError(409, reason, error="is_a_stream")


async def _kind(node: NodeLink, error: ControlError, vhost: str, queue: str) -> str | None:
    """Of the queue, if that may be why the vhost refused; None if it does not say."""
    if error.code != PRECONDITION_FAILED:
        return None
    try:
        return str((await node.call("describe_queue", vhost, queue=queue))["type"])
    except ControlError:
        return None
