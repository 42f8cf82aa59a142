"""Remote calls: what the methods of a box on a broker do, written once for threads and for loops.

    put        basic.publish to the default exchange, mandatory; returns with its confirm. Refused:
               the queue is full; ask for room, wait for it, publish again
    put_many   all of them are published before the first confirm is waited for
    get        basic.get; nothing there: a consumer that may have one message, until one comes
    nack       box.nack, for AMQP knows no delay and no attempts
    join       ask, with pauses, until nothing is left

Two things a broker has no message for: that a full queue has room again, and that a queue has
nothing left. Both are asked for, at first often, then every 50 ms.

An interrupted call leaves nothing behind: a message that comes too late is given back.

Not here: transactions (remote_transaction.py), jobs and what people see of queues.
"""

import base64
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final

from penstock.client.client_channel import ClientChannel, settle
from penstock.client.received import Received
from penstock.client.remote_asking import (
    NOT_FOUND,
    Full,
    answer,
    operate,
    operate_on,
    room_of,
    unknown,
)
from penstock.client.remote_driver import Call, RemoteDriver, RemoteState, Wait
from penstock.client.remote_message import RemoteMessage, properties_of
from penstock.client.remote_stream import is_stream
from penstock.client.taken import Taken
from penstock.codec.spec import BasicCancel
from penstock.embedded import spellings
from penstock.embedded.box_errors import QueueEmptyError, QueueFullError
from penstock.embedded.new_body import NewBody
from penstock.errors import (
    ACCESS_REFUSED,
    AMQPError,
    ChannelError,
    OptionError,
    PenstockError,
    SettledError,
    UnknownQueueError,
)
from penstock.queues.queue_options import DROP_HEAD, REJECT_PUBLISH, QueueOptions

BROWSE_MESSAGES: Final = 64
CHUNK_BYTES: Final = 64 << 10  # of a body too large for one answer
GETS_AT_ONCE: Final = 64
PAUSE_S_MIN: Final = 0.002
PAUSE_S_MAX: Final = 0.05
REFUSALS_MAX: Final = 100  # of a message by a queue that says it has room

New = NewBody | bytes


def deadline_of(timeout_s: float | None) -> float | None:
    """Of time.monotonic(); ValueError for a negative time-out."""
    if timeout_s is None:
        return None
    if timeout_s < 0:
        raise ValueError(f"timeout must not be negative, not {timeout_s}")
    return time.monotonic() + timeout_s


def is_over(deadline: float | None) -> bool:
    """Whether the time is up."""
    return deadline is not None and time.monotonic() >= deadline


def pause(driver: RemoteDriver, pause_s: float, deadline: float | None) -> Call[float]:
    """Wait a little; how long to wait the next time. BoxClosedError."""
    until = time.monotonic() + pause_s
    yield Wait(driver.closed, until if deadline is None else min(until, deadline))
    driver.check()
    return min(pause_s * 2, PAUSE_S_MAX)


# ---- queues --------------------------------------------------------------------------------------


def declare(driver: RemoteDriver, name: object, given: Mapping[str, object]) -> Call[RemoteState]:
    """The queue of this name, made with the given options when it is missing. One that is there is
    taken as it is; OptionError if a given option differs from it: other clients declare it, too."""
    name = spellings.check_name(name)
    found = yield from operate(driver, "box.queue", {"name": name})
    if found["exists"] and is_stream(found["arguments"]):
        raise OptionError("name", name, "a name that no stream has")
    current = QueueOptions.from_arguments(found["arguments"]) if found["exists"] else None
    options = current
    if current is None:
        options = spellings.queue_options(given, None, found["whole_bytes"])
        arguments = options.arguments()
        yield from operate(driver, "box.declare", {"name": name, "arguments": arguments})
    else:
        _check_same(name, given, current, found["whole_bytes"])
    assert options is not None
    state = driver.states.get(name)
    if state is None or state.is_deleted:
        state = driver.states[name] = RemoteState(name, options)
    state.options = options
    state.mode = spellings.own_mode(options)
    return state


def _check_same(
    name: str, given: Mapping[str, object], current: QueueOptions, whole_bytes: int
) -> None:
    """OptionError that names the first given option that is not what the queue has."""
    spellings.queue_options(
        given, current, whole_bytes
    )  # all of them, for those that are no options
    before = current.arguments()
    for option, value in given.items():
        after = spellings.queue_options({option: value}, current, whole_bytes).arguments()
        for argument in sorted({*before, *after}):
            if before.get(argument) != after.get(argument):
                expected = (
                    f"what the queue '{name}' was declared with: {argument} is "
                    f"{before.get(argument, 'not set')}, not {after.get(argument, 'not set')} "
                    "(leave the option out to take the queue as it is, or delete the queue first)"
                )
                raise OptionError(option, value, expected)


def has(driver: RemoteDriver, name: str) -> Call[bool]:
    """Whether there is a queue of this name."""
    found = yield from operate(driver, "box.queue", {"name": name})
    return bool(found["exists"]) and not is_stream(found["arguments"])


def delete(driver: RemoteDriver, name: str) -> Call[None]:
    """A queue with all that it holds. UnknownQueueError."""
    try:
        yield from operate(driver, "box.delete", {"name": name})
    except ChannelError as error:
        raise (UnknownQueueError(name) if error.code == NOT_FOUND else error) from None
    state = driver.states.pop(name, None)
    if state is not None:
        state.is_deleted = True


def delete_state(driver: RemoteDriver, state: RemoteState) -> Call[None]:
    """As delete, by somebody who has the queue in hand."""
    driver.check()
    state.check()
    yield from delete(driver, state.name)


def join(driver: RemoteDriver, state: RemoteState, *, timeout_s: float | None) -> Call[bool]:
    """Until nothing is ready, unacknowledged or delayed. False: the time was up."""
    deadline = deadline_of(timeout_s)
    pause_s = PAUSE_S_MIN
    while not state.is_deleted:
        try:
            info = yield from operate_on(driver, state, "box.queue_info")
        except UnknownQueueError:
            return True
        if not info["ready"] + info["unacked"] + info["delayed"]:
            return True
        if is_over(deadline):
            return False
        pause_s = yield from pause(driver, pause_s, deadline)
    return True


# ---- put -----------------------------------------------------------------------------------------


def put(
    driver: RemoteDriver, state: RemoteState, new: New, mode: int, *, block: bool,
    timeout_s: float | None,
) -> Call[None]:  # fmt: skip
    """One message; it returns with its confirm."""
    deadline = deadline_of(timeout_s)
    transaction = driver.transaction()
    if transaction is not None:
        state.check()
        yield from transaction.put(state, new)
        return
    body = new if isinstance(new, bytes) else new.body
    for _ in range(REFUSALS_MAX):
        refused = yield from publish(driver, state, [new], mode)
        if not refused:
            return
        yield from wait_for_room(driver, state, len(body), block=block, deadline=deadline)
    raise PenstockError(f"queue {state.name!r}: the broker refused a message, and does not say why")


def wait_for_room(
    driver: RemoteDriver, state: RemoteState, size_bytes: int, *, block: bool,
    deadline: float | None,
) -> Call[None]:  # fmt: skip
    """Until there is room for a message, as far as one can see. QueueFullError."""
    pause_s = PAUSE_S_MIN
    while True:
        full = yield from room_of(driver, state, size_bytes, 1)
        if full is None:
            return
        needed = size_bytes if full.limit == "max_length_bytes" else 1
        can_come = full.overflow == REJECT_PUBLISH and needed <= full.allowed
        if not block or not can_come or is_over(deadline):
            raise no_room(state, full)
        pause_s = yield from pause(driver, pause_s, deadline)


def no_room(state: RemoteState, full: Full) -> QueueFullError:
    """The error that says it."""
    return QueueFullError(state.name, full.limit, full.given, full.allowed)


def publish(
    driver: RemoteDriver, state: RemoteState, news: list[New], mode: int
) -> Call[list[New]]:
    """Publish, and wait for the confirms: those that were refused. UnknownQueueError."""
    state.check()
    link = yield from driver.linked()
    while (unblocked := link.unblocked()) is not None:
        yield Wait(unblocked)
        link = yield from driver.linked()
    channel = link.puts()
    now_s = int(time.time())
    sent = []
    for new in news:
        message_id = driver.message_id()
        body = new if isinstance(new, bytes) else new.body
        header = properties_of(new, mode, message_id, now_s)
        confirm = channel.publish("", state.name, body, header, mandatory=True)
        assert confirm is not None, "the channel is in confirm mode"
        sent.append((new, message_id, confirm))
    refused: list[New] = []
    is_lost = False
    for new, message_id, confirm in sent:
        if not (yield from answer(confirm)):
            refused.append(new)
        if link.was_returned(message_id):
            is_lost = True
    if is_lost:
        state.is_deleted = True
        state.check()
    return refused


def put_many(
    driver: RemoteDriver, state: RemoteState, news: list[NewBody] | list[bytes], mode: int, *,
    block: bool, timeout_s: float | None,
) -> Call[None]:  # fmt: skip
    """All of them, with one wait; in a queue without room for all, each when there is room."""
    deadline = deadline_of(timeout_s)
    left: list[New] = list(news)
    if not left:
        return
    transaction = driver.transaction()
    is_limited = state.options.overflow != DROP_HEAD
    if transaction is None:
        full = None
        if is_limited:
            size = sum(len(new if isinstance(new, bytes) else new.body) for new in left)
            full = yield from room_of(driver, state, size, len(left))
        if full is None:
            left = yield from publish(driver, state, left, mode)
        elif not block:
            raise no_room(state, full)
    for new in left:
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        yield from put(driver, state, new, mode, block=block, timeout_s=left_s)


# ---- get -----------------------------------------------------------------------------------------


def get(
    driver: RemoteDriver, state: RemoteState, *, block: bool, timeout_s: float | None
) -> Call[Taken]:
    """The next message; QueueEmptyError if none came in time."""
    deadline = deadline_of(timeout_s)
    state.check()
    link = yield from driver.linked()
    channel = link.getter(state.name)
    try:
        found = channel.get(state.name)
        try:
            yield Wait(found)
        except BaseException:
            give_back(channel, found)
            raise
        message = found.result()
        if message is None and block and not is_over(deadline):
            message = yield from consume_one(channel, state.name, deadline)
    except ChannelError as error:
        raise unknown(state, error) from None
    if message is None:
        raise QueueEmptyError(state.name, timeout_s or 0.0)
    return Taken(channel, message)


def consume_one(
    channel: ClientChannel, queue: str, deadline: float | None
) -> Call[Received | None]:
    """Wait as a consumer for one message; None if the time was up."""
    arrived: Future[Received] = Future()
    tag, begun = channel.consume(
        queue, lambda message: settle(arrived, message), lambda e: settle(arrived, None, e)
    )
    try:
        yield from answer(begun)
        yield Wait(arrived, deadline)
        if not arrived.done():
            yield from answer(channel.cancel(tag))
        elif arrived.exception() is None:
            channel.tell(BasicCancel(consumer_tag=tag, nowait=True))
    except BaseException:
        give_back(channel, arrived)
        channel.cancel(tag).add_done_callback(lambda _: channel.forget_consumer(tag))
        raise
    channel.forget_consumer(tag)
    return arrived.result() if arrived.done() else None


def give_back(channel: ClientChannel, arriving: "Future[Any]") -> None:
    """A message that nobody waits for any more, whenever it comes: no attempt is counted."""

    def came(_: object) -> None:
        message = None if arriving.exception() is not None else arriving.result()
        if message is not None:
            channel.call("box.release", {"tag": message.delivery_tag})

    arriving.add_done_callback(came)


def get_many(
    driver: RemoteDriver, state: RemoteState, n: int, *, timeout_s: float | None
) -> Call[list[Taken]]:
    """Up to n messages: the first is waited for, more are taken if they are there."""
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    try:
        taken = [(yield from get(driver, state, block=True, timeout_s=timeout_s))]
    except QueueEmptyError:
        return []
    channel = taken[0].channel
    is_more = True
    while is_more and len(taken) < n:
        wanted = min(n - len(taken), GETS_AT_ONCE)
        for found in [channel.get(state.name) for _ in range(wanted)]:
            message = yield from answer(found)
            if message is None:
                is_more = False
            else:
                taken.append(Taken(channel, message))
    return taken


# ---- settling ------------------------------------------------------------------------------------


def ack(driver: RemoteDriver, state: RemoteState, jobs: list[Taken]) -> Call[None]:
    """Acknowledge: waits for nothing, but in a transaction for the broker to adopt the jobs."""
    transaction = driver.transaction()
    check_pending(driver, state, jobs)
    if transaction is not None:
        yield from transaction.ack(jobs)
        return
    for job in jobs:
        job.channel.ack(job.delivery_tag)


def nack(driver: RemoteDriver, state: RemoteState, job: Taken, delay_ms: int | None) -> Call[None]:
    """Back into the queue, now or later, counted as an attempt."""
    check_pending(driver, state, [job])
    yield from answer(job.channel.call("box.nack", {"tag": job.delivery_tag, "delay_ms": delay_ms}))


def nack_soon(job: Taken) -> None:
    """As nack, without waiting and without errors."""
    if job.channel.is_open:
        job.channel.call("box.nack", {"tag": job.delivery_tag, "delay_ms": None})


def reject(driver: RemoteDriver, state: RemoteState, job: Taken) -> Call[None]:
    """To the dead-letter queue, or away. It is sent, and not waited for."""
    check_pending(driver, state, [job])
    job.channel.reject(job.delivery_tag, requeue=False)
    yield from ()


def check_pending(driver: RemoteDriver, state: RemoteState, jobs: list[Taken]) -> None:
    """SettledError if the broker has given one of them to its queue again."""
    driver.check()
    for job in jobs:
        if not job.channel.is_open or state.is_deleted:
            raise SettledError(state.name, job.delivery_tag)


# ---- looking -------------------------------------------------------------------------------------


def browse(
    driver: RemoteDriver, state: RemoteState, after: int | None, n: int
) -> Call[tuple[list[RemoteMessage], int | None]]:
    """Up to n messages behind this place, and the place of the last; None if there are none."""
    found = yield from operate_on(driver, state, "box.browse", after=after, n=n)
    messages: list[RemoteMessage] = []
    for one in found:
        if one["body"] is None:
            parts = yield from read_parts(driver, state, after, one["tag"])
        else:
            parts = base64.b64decode(one["header"]), base64.b64decode(one["body"])
        after = one["tag"]
        if parts is not None:  # None: it has gone meanwhile
            header, body = parts
            messages.append(RemoteMessage(header, body, is_redelivered=one["is_redelivered"]))
    return messages, (after if found else None)


def read_parts(
    driver: RemoteDriver, state: RemoteState, after: int | None, tag: int
) -> Call[tuple[bytes, bytes] | None]:
    """Properties and body of a message that was too large for one answer; None: it has gone."""
    pieces: list[bytes] = []
    size_bytes = 0
    while True:
        found = yield from operate_on(
            driver, state, "box.read", after=after, tag=tag, at=size_bytes, n=CHUNK_BYTES
        )
        if found is None:
            return None
        pieces.append(base64.b64decode(found["data"]))
        size_bytes += len(pieces[-1])
        if size_bytes >= found["size"]:
            whole = b"".join(pieces)
            return whole[: found["header_size"]], whole[found["header_size"] :]


def peek(driver: RemoteDriver, state: RemoteState) -> Call[RemoteMessage | None]:
    """The first message, which stays."""
    after: int | None = None
    while True:
        messages, after = yield from browse(driver, state, after, 1)
        if messages or after is None:
            return messages[0] if messages else None


def pages(driver: RemoteDriver, state: RemoteState) -> Iterator[Call[list[RemoteMessage]]]:
    """Calls that give all messages, some at a time; an empty list at the end."""
    after: int | None = None

    def page() -> Call[list[RemoteMessage]]:
        nonlocal after
        while True:
            messages, last = yield from browse(driver, state, after, BROWSE_MESSAGES)
            if last is None or messages:
                after = last
                return messages
            after = last

    while True:
        yield page()


# ---- the vhost -----------------------------------------------------------------------------------


def operators_only(driver: RemoteDriver, what: str) -> AMQPError:
    """The error for what a box in a directory can do, and no client of a broker: it writes files on
    the broker's machine. BoxClosedError."""
    driver.check()
    text = (
        f"{what} of a vhost is for the broker's operators: `penstock {what}` on its machine, over "
        "the control socket"
    )
    return ChannelError(ACCESS_REFUSED, text)
