"""Asking a broker: one question and its answer, as a call; and the operations of Penstock's own.

What AMQP has no word for is a `penstock.call` with a name and JSON (broker/operations/box.py has
the other side). Each is made on a channel that nothing else is waiting on.

    box.queue  box.declare  box.queues  box.delete  box.purge  box.queue_info  box.room
    box.browse  box.read  box.nack  box.release  box.adopt
    box.info  box.sync
    box.append_to  box.appended  box.streams  box.stream_info  find_stream_offset ... (streams)

A refusal with 404 is an UnknownQueueError, as the library has it; others stay as they are, errors
of AMQP with the broker's words.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from penstock.client.remote_driver import Call, RemoteDriver, RemoteState, Wait
from penstock.errors import AMQPError, ChannelError, UnknownQueueError

T = TypeVar("T")

NOT_FOUND = 404
NAMES_AT_ONCE = 200  # 255 bytes each, escaped, still fit into a frame


def answer(future: "Future[T]") -> Call[T]:
    """What the future comes to."""
    if not future.done():
        yield Wait(future)
    return future.result()


def operate(driver: RemoteDriver, op: str, arguments: dict[str, object]) -> Call[Any]:
    """An operation; what it gives is as JSON has it."""
    link = yield from driver.linked()
    channel = link.take_caller()
    future = channel.call(op, arguments)
    try:
        yield Wait(future)
    except BaseException:
        future.add_done_callback(lambda _: link.give_caller(channel))
        raise
    link.give_caller(channel)
    return future.result()


def names(driver: RemoteDriver, op: str) -> Call[list[str]]:
    """All that an operation gives some at a time, as box.queues: sorted names."""
    found: list[str] = []
    while True:
        arguments: dict[str, object] = {"after": found[-1] if found else "", "n": NAMES_AT_ONCE}
        some = yield from operate(driver, op, arguments)
        found += some
        if len(some) < NAMES_AT_ONCE:
            return found


def operate_on(driver: RemoteDriver, state: RemoteState, op: str, **arguments: object) -> Call[Any]:
    """An operation on a queue. UnknownQueueError."""
    state.check()
    try:
        return (yield from operate(driver, op, {"name": state.name, **arguments}))
    except ChannelError as error:
        raise unknown(state, error) from None


def unknown(state: RemoteState, error: AMQPError) -> Exception:
    """What an error of AMQP on a queue is for the library."""
    if error.code != NOT_FOUND:
        return error
    return UnknownQueueError(f"{state.name} (deleted)")


@dataclass(frozen=True, slots=True)
class Full:
    """Why a queue has no room: which limit, what it would be, what is allowed; and whether room
    may come (overflow "reject-publish") or the message is a dead letter already."""

    limit: str
    given: int
    allowed: int
    overflow: str


def room_of(
    driver: RemoteDriver, state: RemoteState, size_bytes: int, count: int
) -> Call[Full | None]:
    """Whether a queue has room for so many bytes in so many messages: None, or why not."""
    found = yield from operate_on(driver, state, "box.room", bytes=size_bytes, count=count)
    return None if found is None else Full(**found)
