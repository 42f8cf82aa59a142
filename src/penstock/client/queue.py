"""RemoteQueue: what the methods of a queue on a broker do, for threads and for asyncio.

    put        basic.publish to the default exchange, mandatory; returns with its confirm. Refused:
               the queue is full; ask for room, wait for it, publish again
    put_many   publish in batches, a few under way at a time (publish_window.py)
    get        basic.get; nothing there: a consumer that may have one message, until one comes
    nack       box.nack, for AMQP knows no delay and no attempts
    join       ask, with pauses, until nothing is left

A broker does not report that a full queue has room again, or that a queue has nothing left. The
calls ask for both, at first often, then every 50 ms.

An interrupted call leaves nothing behind: a message that arrives too late is given back.
"""

import base64
import time
from collections import deque
from concurrent.futures import Future
from typing import Any, Final

from penstock.client.connection import ClientChannel, Received, ReplyFuture, settle
from penstock.client.driver import BoxLink, Full, RemoteDriver, RemoteState, Wait, answer
from penstock.client.message import RemoteDelivery, messages_of
from penstock.client.publish_window import Window, batches
from penstock.codec.spec import BasicCancel
from penstock.embedded.option_parsing import NewBody, check_count, check_timeout, mode_of
from penstock.embedded.sources import Call, QueueCounts, QueueSource
from penstock.errors import (
    ChannelError,
    PenstockError,
    QueueEmptyError,
    QueueFullError,
    SettledError,
    UnknownQueueError,
)
from penstock.queues.queue_options import DROP_HEAD, REJECT_PUBLISH

BROWSE_MESSAGES: Final = 64
CHUNK_BYTES: Final = 64 << 10  # of a body too large for one answer
GETS_AT_ONCE: Final = 64
PAUSE_S_MIN: Final = 0.002
PAUSE_S_MAX: Final = 0.05
REFUSALS_MAX: Final = 100  # of a message by a queue that says it has room

New = NewBody | bytes


class RemoteQueue(QueueSource):
    """See the head of this module. Errors besides those of every queue: ConnectionLostError (the
    call may or may not have taken effect), UnreachableError, AMQPError with the broker's words."""

    def __init__(self, driver: RemoteDriver, state: RemoteState) -> None:
        self.name: str = state.name
        self.key: object = state
        self._driver = driver
        self._state = state

    def _mode(self, durability: object) -> int:
        if durability is not None:
            return mode_of("durability", durability)
        own = self._state.mode
        return self._driver.mode if own is None else own

    # ---- put -----------------------------------------------------------------------------------

    def put(
        self, new: New, durability: object, *, block: bool, timeout_s: float | None
    ) -> Call[None]:
        driver, state = self._driver, self._state
        mode = self._mode(durability)
        deadline = deadline_of(timeout_s)
        transaction = driver.transaction()
        if transaction is not None:
            state.check()
            yield from transaction.put(state, new)
            return
        for _ in range(REFUSALS_MAX):
            refused = yield from self._publish([new], mode)
            if not refused:
                return
            yield from self._wait_for_room(len(body_of(new)), block=block, deadline=deadline)
        raise PenstockError(
            f"queue {state.name!r}: the broker refused a message, and does not say why"
        )

    def _wait_for_room(self, size_bytes: int, *, block: bool, deadline: float | None) -> Call[None]:
        """Wait until the queue seems to have room for a message. QueueFullError."""
        pause_s = PAUSE_S_MIN
        while True:
            full = yield from self._driver.room_of(self._state, size_bytes, 1)
            if full is None:
                return
            needed = size_bytes if full.limit == "max_length_bytes" else 1
            can_come = full.overflow == REJECT_PUBLISH and needed <= full.allowed
            if not block or not can_come or is_over(deadline):
                raise self._no_room(full)
            pause_s = yield from self._pause(pause_s, deadline)

    def _no_room(self, full: Full) -> QueueFullError:
        return QueueFullError(self.name, full.limit, full.given, full.allowed)

    def _pause(self, pause_s: float, deadline: float | None) -> Call[float]:
        """Wait a little. Returns how long to wait the next time. BoxClosedError."""
        driver = self._driver
        until = time.monotonic() + pause_s
        yield Wait(driver.closed, until if deadline is None else min(until, deadline))
        driver.check()
        return min(pause_s * 2, PAUSE_S_MAX)

    def _publish(self, news: list[New], mode: int) -> Call[list[New]]:
        """Publish messages and wait for their confirms. Returns those that were refused.
        UnknownQueueError."""
        driver, state = self._driver, self._state
        state.check()
        link = yield from driver.linked()
        while (unblocked := link.unblocked()) is not None:
            yield Wait(unblocked)
            link = yield from driver.linked()
        channel = link.puts()
        now_s = int(time.time())
        refused: list[New] = []
        window = Window[tuple[list[New], list[str]]]()
        for start, end, size_bytes in batches([len(body_of(new)) for new in news]):
            while not window.has_room(end - start, size_bytes):
                refused += yield from self._confirmed(link, window)
            if state.is_deleted:
                break
            batch = news[start:end]
            ids = driver.message_ids(len(batch))
            messages = messages_of(state.name, batch, mode, ids, now_s)
            published = channel.publish_many("", messages, mandatory=True)
            window.add(published, size_bytes, (batch, ids))
        while window:
            refused += yield from self._confirmed(link, window)
        state.check()
        return refused

    def _confirmed(
        self, link: BoxLink, window: Window[tuple[list[New], list[str]]]
    ) -> Call[list[New]]:
        """Wait for the oldest batch under way. Returns what was refused; marks the queue as deleted
        if a message found none."""
        published, (batch, ids) = window.take_oldest()
        yield from answer(published.future)
        if link.were_returned(ids):
            self._state.is_deleted = True
        return [batch[index] for index in published.refused]

    def put_many(
        self, news: list[NewBody] | list[bytes], durability: object, *, block: bool,
        timeout_s: float | None,
    ) -> Call[None]:  # fmt: skip
        driver, state = self._driver, self._state
        mode = self._mode(durability)
        deadline = deadline_of(timeout_s)
        left: list[New] = list(news)
        if not left:
            return
        if driver.transaction() is None:
            full = None
            if state.options.overflow != DROP_HEAD:
                size_bytes = sum(len(body_of(new)) for new in left)
                full = yield from driver.room_of(state, size_bytes, len(left))
            if full is None:
                left = yield from self._publish(left, mode)
            elif not block:
                raise self._no_room(full)
        for new in left:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            yield from self.put(new, durability, block=block, timeout_s=left_s)

    # ---- get -----------------------------------------------------------------------------------

    def get(self, *, block: bool, timeout_s: float | None) -> Call[RemoteDelivery]:
        driver, state = self._driver, self._state
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
            raise state.error_of(error) from None
        if message is None:
            raise QueueEmptyError(state.name, timeout_s or 0.0)
        return RemoteDelivery.of(channel, message)

    def get_many(self, n: int, *, timeout_s: float | None) -> Call[list[RemoteDelivery]]:
        check_count(n)
        try:
            found = [(yield from self.get(block=True, timeout_s=timeout_s))]
        except QueueEmptyError:
            return []
        channel = found[0].used_channel
        waiting: deque[Future[Received | None]] = deque()
        is_more = True
        try:
            while is_more and len(found) < n:
                wanted = min(n - len(found), GETS_AT_ONCE)
                waiting += [channel.get(self.name) for _ in range(wanted)]
                while waiting:
                    message = yield from answer(waiting[0])
                    waiting.popleft()
                    if message is None:
                        is_more = False
                    else:
                        found.append(RemoteDelivery.of(channel, message))
        except ChannelError as error:
            raise self._state.error_of(error) from None
        except BaseException:
            for delivery in found:
                release(channel, delivery.tag)
            for arriving in waiting:
                give_back(channel, arriving)
            raise
        return found

    # ---- settle --------------------------------------------------------------------------------

    def ack(self, deliveries: list[RemoteDelivery]) -> Call[None]:
        """Acknowledge all, without waiting; in a transaction wait until the broker has moved them
        to its channel."""
        transaction = self._driver.transaction()
        self._check_pending(deliveries)
        if transaction is not None:
            yield from transaction.ack(deliveries)
            return
        for delivery in deliveries:
            delivery.used_channel.ack(delivery.tag)

    def nack(self, delivery: RemoteDelivery, delay_ms: int | None) -> Call[None]:
        self._check_pending([delivery])
        arguments: dict[str, object] = {"tag": delivery.tag, "delay_ms": delay_ms}
        yield from answer(delivery.used_channel.call("box.nack", arguments))

    def nack_soon(self, delivery: RemoteDelivery) -> None:
        channel = delivery.used_channel
        if channel.is_open:
            try:
                channel.call("box.nack", {"tag": delivery.tag, "delay_ms": None})
            except PenstockError:
                pass  # the connection was lost: the broker returns the message itself

    def reject(self, delivery: RemoteDelivery) -> Call[None]:
        """Reject a delivery, without waiting."""
        self._check_pending([delivery])
        delivery.used_channel.reject(delivery.tag, requeue=False)
        yield from ()

    def _check_pending(self, deliveries: list[RemoteDelivery]) -> None:
        """Raise SettledError if the broker has returned one of them to its queue."""
        self._driver.check()
        for delivery in deliveries:
            if not delivery.used_channel.is_open or self._state.is_deleted:
                raise SettledError(self.name, delivery.tag)

    # ---- look ----------------------------------------------------------------------------------

    def peek(self) -> Call[RemoteDelivery | None]:
        after: int | None = None
        while True:
            found, after = yield from self._page(after, 1)
            if found or after is None:
                return found[0] if found else None

    def browse(self, after: int | None) -> Call[tuple[list[RemoteDelivery], int | None]]:
        while True:
            found, last = yield from self._page(after, BROWSE_MESSAGES)
            if last is None or found:
                return found, last
            after = last

    def _page(self, after: int | None, n: int) -> Call[tuple[list[RemoteDelivery], int | None]]:
        """Return up to n messages after this place, and the place of the last, None if there were
        none. Messages that are gone meanwhile are left out."""
        answered = yield from self._driver.operate_on(self._state, "box.browse", after=after, n=n)
        found: list[RemoteDelivery] = []
        for one in answered:
            if one["body"] is None:
                parts = yield from self._read_large(after, one["tag"])
            else:
                parts = base64.b64decode(one["header"]), base64.b64decode(one["body"])
            after = one["tag"]
            if parts is not None:
                header, body = parts
                found.append(RemoteDelivery(header, body, is_redelivered=one["is_redelivered"]))
        return found, (after if answered else None)

    def _read_large(self, after: int | None, tag: int) -> Call[tuple[bytes, bytes] | None]:
        """Return the properties and the body of a message that was too large for one answer; None:
        it is gone."""
        pieces: list[bytes] = []
        size_bytes = 0
        while True:
            found = yield from self._driver.operate_on(
                self._state, "box.read", after=after, tag=tag, at=size_bytes, n=CHUNK_BYTES
            )
            if found is None:
                return None
            pieces.append(base64.b64decode(found["data"]))
            size_bytes += len(pieces[-1])
            if size_bytes >= found["size"]:
                whole = b"".join(pieces)
                return whole[: found["header_size"]], whole[found["header_size"] :]

    def _queue_info(self) -> Call[dict[str, Any]]:
        found: dict[str, Any] = yield from self._driver.operate_on(self._state, "box.queue_info")
        return found

    def counts(self) -> Call[QueueCounts]:
        found = yield from self._queue_info()
        return QueueCounts(int(found["ready"]), int(found["unacked"]), int(found["delayed"]))

    def has_room(self) -> Call[bool]:
        return (yield from self._driver.room_of(self._state, 0, 1)) is None

    def info(self) -> Call[dict[str, int | float | str]]:
        return dict((yield from self._queue_info())["info"])

    # ---- the whole -----------------------------------------------------------------------------

    def purge(self, *, with_delayed: bool) -> Call[int]:
        found = yield from self._driver.operate_on(
            self._state, "box.purge", with_delayed=with_delayed
        )
        return int(found)

    def delete(self) -> Call[None]:
        self._driver.check()
        self._state.check()
        yield from self._driver.delete(self.name)

    def join(self, *, timeout_s: float | None) -> Call[bool]:
        deadline = deadline_of(timeout_s)
        pause_s = PAUSE_S_MIN
        while not self._state.is_deleted:
            try:
                counts = yield from self.counts()
            except UnknownQueueError:
                return True
            if not counts.ready + counts.unacked + counts.delayed:
                return True
            if is_over(deadline):
                return False
            pause_s = yield from self._pause(pause_s, deadline)
        return True


def body_of(new: New) -> bytes:
    """Return the body of a message to be put."""
    return new if isinstance(new, bytes) else new.body


def deadline_of(timeout_s: float | None) -> float | None:
    """Return when a time-out ends, by time.monotonic(); None: never. TypeError, ValueError."""
    check_timeout(timeout_s)
    return None if timeout_s is None else time.monotonic() + timeout_s


def is_over(deadline: float | None) -> bool:
    """Return whether the deadline has passed."""
    return deadline is not None and time.monotonic() >= deadline


# A job may take as long as it does in a directory: the broker's timeout is not for it.
FOR_EVER: Final[dict[str, object]] = {"x-consumer-timeout": 0}


def consume_one(
    channel: ClientChannel, queue: str, deadline: float | None
) -> Call[Received | None]:
    """Wait for one message as a consumer and return it; None if the deadline passed."""
    arrived: ReplyFuture[Received] = ReplyFuture(channel.connection)
    tag, begun = channel.consume(
        queue, lambda message: settle(arrived, message), lambda e: settle(arrived, None, e),
        arguments=FOR_EVER,
    )  # fmt: skip
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


def release(channel: ClientChannel, tag: int) -> None:
    """Return a message that nobody waits for any more. No attempt is counted."""
    channel.call("box.release", {"tag": tag})


def give_back(channel: ClientChannel, arriving: "Future[Any]") -> None:
    """Return a message that nobody waits for any more, when it arrives."""

    def came(_: object) -> None:
        message = None if arriving.exception() is not None else arriving.result()
        if message is not None:
            release(channel, message.delivery_tag)

    arriving.add_done_callback(came)
