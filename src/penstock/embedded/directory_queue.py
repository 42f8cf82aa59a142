"""DirectoryQueue: what the methods of a queue in a directory do, for threads and for asyncio.

Each call does its steps under the lock of the box and yields, without the lock, the Waiter that it
waits with. `Driver.run` waits in the caller's thread, `penstock.aio` in a task.

    put        publish; full: wait for room and try again; not settled: wait for that
    get        fetch; the head is held: wait until its record is settled; none: wait for a change
    join       wait until nothing is ready, unacknowledged or delayed

`put_plain`, `take` and `ack_one` do the simplest case of put, get and ack in one function, for they
are called for each message. They handle an interrupt themselves instead of entering the guard.

A call that is interrupted while it waits leaves the lists that it stands in, and passes on a
wake-up that it may have got. An interrupted put may or may not have happened, as one whose process
died.
"""

from typing import Final

from penstock.embedded.core import QueueState
from penstock.embedded.driver import Driver
from penstock.embedded.option_parsing import NewBody, check_count, mode_of
from penstock.embedded.sources import SLOW, Call, QueueCounts, QueueSource, SlowCase
from penstock.embedded.waiting import Waiter
from penstock.errors import (
    PenstockError,
    QueueEmptyError,
    QueueFullError,
    SettledError,
    UnknownQueueError,
)
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.backing_queue import Delivery, NewMessage
from penstock.queues.queue_options import REJECT_PUBLISH
from penstock.storage.files.durability import DISK, OS

BROWSE_MESSAGES: Final = 64  # that `browse` returns at once


class DirectoryQueue(QueueSource):
    """See the head of this module."""

    def __init__(self, driver: Driver, state: QueueState) -> None:
        self.name: str = state.name
        self.key: object = state
        self._driver = driver
        self._state = state

    # ---- called for each message -----------------------------------------------------------------

    def put_plain(self, body: bytes) -> Waiter | SlowCase | None:
        driver, state = self._driver, self._state
        with driver.gate:
            try:
                if driver.transactions or state.is_deleted:
                    return SLOW
                mode = state.mode
                lsn = state.amq.publish(b"", body, mode)
                if state.is_crowded or not state.is_touched or driver.is_idle:
                    driver.changed(state)
                return driver.settle(lsn, mode) if lsn else None
            except QueueFullError:
                if state.amq.options.overflow != REJECT_PUBLISH:
                    raise  # it is dead-lettered already
                return SLOW
            except Exception:
                raise
            except BaseException as error:
                driver.interrupted(error)
                raise

    def take(self) -> Delivery | None:
        driver, state = self._driver, self._state
        with driver.gate:
            try:
                delivery = None if state.is_deleted else state.amq.fetch()
                if delivery is not None:
                    state.is_consumed = True
                    if state.is_crowded or not state.is_touched or driver.is_idle:
                        driver.changed(state)
            except Exception:
                raise
            except BaseException as error:
                driver.interrupted(error)
                raise
        return delivery

    def ack_one(self, delivery: Delivery) -> bool | SlowCase:
        driver, state = self._driver, self._state
        with driver.gate:
            try:
                if driver.transactions or state.is_deleted:
                    return SLOW
                count = state.amq.ack([delivery.tag], OS)
                if state.is_crowded or not state.is_touched or driver.is_idle:
                    driver.changed(state)
                driver.acked()
            except Exception:
                raise
            except BaseException as error:
                driver.interrupted(error)
                raise
        return count == 1

    # ---- under the lock --------------------------------------------------------------------------

    def _amq(self) -> AMQQueue:
        """Return the queue. UnknownQueueError if it was deleted."""
        state = self._state
        if state.is_deleted:
            raise UnknownQueueError(f"{state.name} (deleted)")
        return state.amq

    def _mode(self, durability: object) -> int:
        return self._state.mode if durability is None else mode_of("durability", durability)

    def _fetch(self) -> Delivery | None:
        """Fetch the next message; None if none is ready or the first is held."""
        state = self._state
        amq = state.amq
        delivery = amq.fetch()
        while delivery is None and amq.has_more_expired:
            delivery = amq.fetch()
        if delivery is not None:
            state.is_consumed = True
            self._driver.changed(state)
        return delivery

    def _leave(self, waiter: Waiter | None) -> None:
        """End a wait with an error: pass on a wake-up that the waiter may have got."""
        driver, state = self._driver, self._state
        if waiter is not None:
            with driver.lock:
                state.leave(waiter)
                if not state.is_deleted and not driver.is_closed:
                    state.changed()

    # ---- put -------------------------------------------------------------------------------------

    def put(
        self, new: NewBody, durability: object, *, block: bool, timeout_s: float | None
    ) -> Call[None]:
        driver, state = self._driver, self._state
        mode = self._mode(durability)
        deadline = driver.deadline(timeout_s)
        waiter: Waiter | None = None
        try:
            while True:
                with driver.gate, driver.guard:
                    self._amq()
                    if waiter is not None:
                        state.leave(waiter)
                        waiter = None
                    confirm, error = self._try_put(new, mode)
                    if error is not None:
                        is_last = not block or driver.is_over(deadline)
                        if is_last or not self._can_fit(new, error):
                            raise error
                        waiter = driver.new_waiter(deadline=deadline)
                        state.enqueue(state.putters, waiter)
                if waiter is None:
                    if confirm is not None:
                        yield confirm
                    return
                yield waiter
        except BaseException:
            self._leave(waiter)
            raise

    def _try_put(self, new: NewBody, mode: int) -> tuple[Waiter | None, QueueFullError | None]:
        """Put a message if there is room. Returns what to wait for, and why there is no room."""
        driver, state = self._driver, self._state
        try:
            transaction = driver.transaction()
            if transaction is not None:
                transaction.put(state, new)
                return None, None
            lsn = state.amq.publish(
                new.header, new.body, mode, priority=new.priority, ttl_ms=new.ttl_ms,
                delay_ms=new.delay_ms,
            )  # fmt: skip
        except QueueFullError as error:
            return None, error
        driver.changed(state)
        if new.ttl_ms is not None or new.delay_ms is not None:
            driver.note_due(state)
        return driver.settle(lsn, mode) if lsn else None, None

    def _can_fit(self, new: NewBody, error: QueueFullError) -> bool:
        """Return whether there may be room later, without this call itself doing something."""
        is_waiting_useful = self._state.amq.options.overflow == REJECT_PUBLISH
        if self._driver.transaction() is not None or not is_waiting_useful:
            return False
        needed = len(new.body) if error.limit == "max_length_bytes" else 1
        return needed <= error.allowed

    def put_many(
        self, news: list[NewBody] | list[bytes], durability: object, *, block: bool,
        timeout_s: float | None,
    ) -> Call[None]:  # fmt: skip
        driver, state = self._driver, self._state
        mode = self._mode(durability)
        deadline = driver.deadline(timeout_s)
        confirm: Waiter | None = None
        is_full = False
        with driver.gate, driver.guard:
            self._amq()
            transaction = driver.transaction()
            try:
                if transaction is not None:
                    for new in news:
                        transaction.put(state, _whole(new))
                elif lsn := self._publish_many(news, mode):
                    confirm = driver.settle(lsn, mode)
            except QueueFullError:
                if transaction is not None or not block:
                    raise
                is_full = True
        if confirm is not None:
            yield confirm
        if is_full:
            for new in news:
                left_s = driver.seconds_left(deadline)
                yield from self.put(_whole(new), durability, block=True, timeout_s=left_s)

    def _publish_many(self, news: list[NewBody] | list[bytes], mode: int) -> int:
        """Publish a batch. Returns its LSN, 0 if there is nothing to wait for. QueueFullError:
        nothing was put."""
        driver, state = self._driver, self._state
        amq = state.amq
        now_ms = driver.core.clock.wall_ms()
        messages: list[NewMessage] = []
        singles: list[NewBody] = []
        for new in news:
            if isinstance(new, bytes):
                messages.append(NewMessage(b"", new))
            elif new.delay_ms is not None or new.ttl_ms == 0:
                singles.append(new)
            else:
                expiry_ms = 0 if new.ttl_ms is None else now_ms + new.ttl_ms
                messages.append(NewMessage(new.header, new.body, expiry_ms, new.priority))
        if singles:
            size = sum(len(m.body) for m in messages) + sum(len(new.body) for new in singles)
            amq.before_publish(size, len(news))
        lsn = amq.publish_many(messages, mode)
        for new in singles:
            one = amq.publish(
                new.header, new.body, mode, priority=new.priority, ttl_ms=new.ttl_ms,
                delay_ms=new.delay_ms,
            )  # fmt: skip
            lsn = max(lsn, one)
        driver.changed(state)
        driver.note_due(state)
        return lsn

    # ---- get -------------------------------------------------------------------------------------

    def get(self, *, block: bool, timeout_s: float | None) -> Call[Delivery]:
        """Return the next delivery. QueueEmptyError if none came in time; with block=False the call
        still waits for the sync that a message which is there may need first."""
        driver, state = self._driver, self._state
        deadline = driver.deadline(timeout_s)
        waiter: Waiter | None = None
        try:
            while True:
                with driver.gate, driver.guard:
                    self._amq()
                    if waiter is not None:
                        state.leave(waiter)
                        waiter = None
                    delivery = self._fetch()
                    if delivery is not None:
                        return delivery
                    held = state.amq.held()
                    if held is not None:
                        confirm = driver.settle_held(*held)
                        if confirm is None:
                            continue
                    elif not block or driver.is_over(deadline):
                        raise QueueEmptyError(state.name, timeout_s or 0.0)
                    else:
                        confirm = None
                        waiter = driver.new_waiter(deadline=deadline)
                        state.enqueue(state.getters, waiter)
                waits_for = waiter or confirm
                assert waits_for is not None
                yield waits_for
        except BaseException:
            self._leave(waiter)
            raise

    def get_many(self, n: int, *, timeout_s: float | None) -> Call[list[Delivery]]:
        driver, state = self._driver, self._state
        check_count(n)
        try:
            deliveries = [(yield from self.get(block=True, timeout_s=timeout_s))]
        except QueueEmptyError:
            return []
        confirm: Waiter | None = None
        while len(deliveries) < n:
            with driver.gate, driver.guard:
                confirm = None
                try:
                    while len(deliveries) < n and (delivery := self._fetch()) is not None:
                        deliveries.append(delivery)
                except (OSError, PenstockError):
                    break  # the next call meets it, too; these are the caller's
                if len(deliveries) < n:
                    held = state.amq.held()
                    if held is None:
                        break
                    confirm = driver.settle_held(*held)
            if confirm is not None:
                try:
                    yield confirm
                except BaseException:
                    self._release(deliveries)
                    raise
        return deliveries

    def _release(self, deliveries: list[Delivery]) -> None:
        """Return deliveries that no caller has, without counting an attempt."""
        driver, state = self._driver, self._state
        try:
            with driver.gate, driver.guard:
                self._amq().release([delivery.tag for delivery in deliveries])
                driver.changed(state)
        except (OSError, PenstockError):
            pass  # the box was closed, for example: they are delivered again anyway

    # ---- settle ----------------------------------------------------------------------------------

    def ack(self, deliveries: list[Delivery]) -> Call[None]:
        """Acknowledge all, without waiting for a sync. SettledError if one is not pending."""
        yield from ()
        driver, state = self._driver, self._state
        tags = [delivery.tag for delivery in deliveries]
        with driver.gate, driver.guard:
            amq = self._amq()
            transaction = driver.transaction()
            if transaction is not None:
                transaction.ack(state, tags)
                return
            count = amq.ack(tags, OS)
            driver.changed(state)
            driver.acked()
        if count != len(tags):
            raise SettledError(state.name, tags[0])

    def nack(self, delivery: Delivery, delay_ms: int | None) -> Call[None]:
        yield from ()
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            self._check_pending(delivery)
            state.amq.nack(delivery.tag, delay_ms=delay_ms, mode=OS)
            driver.changed(state)
            driver.note_due(state)
            driver.core.engine.flush()

    def nack_soon(self, delivery: Delivery) -> None:
        try:
            for _ in self.nack(delivery, None):
                raise AssertionError("nack waits for nothing")
        except (OSError, PenstockError):
            self._release([delivery])  # as if it had not been tried: nobody settles it any more

    def reject(self, delivery: Delivery) -> Call[None]:
        yield from ()
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            self._check_pending(delivery)
            state.amq.reject(delivery.tag, OS)
            driver.changed(state)
            driver.core.engine.flush()

    def _check_pending(self, delivery: Delivery) -> None:
        state = self._state
        if state.is_deleted or state.amq.backing.pending(delivery.tag) is None:
            raise SettledError(state.name, delivery.tag)

    # ---- look ------------------------------------------------------------------------------------

    def peek(self) -> Call[Delivery | None]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._amq().peek()

    def browse(self, after: int | None) -> Call[tuple[list[Delivery], int | None]]:
        """Return some ready messages after this tag in order, and the tag of the last."""
        yield from ()
        with self._driver.gate, self._driver.guard:
            found = self._amq().browse(after, BROWSE_MESSAGES)
        return found, (found[-1].tag if found else after)

    def counts(self) -> Call[QueueCounts]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            amq = self._amq()
            ready = amq.len()
            return QueueCounts(ready, amq.depth() - ready, amq.delayed())

    def has_room(self) -> Call[bool]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            try:
                self._amq().before_publish(0, 1)
            except QueueFullError:
                return False
            return True

    def info(self) -> Call[dict[str, int | float | str]]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._amq().info()

    # ---- the whole -------------------------------------------------------------------------------

    def purge(self, *, with_delayed: bool) -> Call[int]:
        driver, state = self._driver, self._state
        with driver.gate, driver.guard:
            amq = self._amq()
            count = amq.purge(DISK)
            if with_delayed:
                count += amq.purge_delayed(DISK)
            driver.changed(state)
            confirm = driver.settle(driver.core.engine.log.last_lsn, DISK)
        if confirm is not None:
            yield confirm
        return count

    def delete(self) -> Call[None]:
        driver = self._driver
        with driver.gate, driver.guard:
            self._amq()
            lsn = driver.core.delete(self.name)
            confirm = driver.settle(lsn, DISK) if lsn else None
        if confirm is not None:
            yield confirm

    def join(self, *, timeout_s: float | None) -> Call[bool]:
        driver, state = self._driver, self._state
        deadline = driver.deadline(timeout_s)
        waiter: Waiter | None = None
        try:
            while True:
                with driver.gate, driver.guard:
                    if waiter is not None:
                        state.leave(waiter)
                        waiter = None
                    if state.is_deleted or not state.unfinished():
                        return True
                    if driver.is_over(deadline):
                        return False
                    waiter = driver.new_waiter(deadline=deadline)
                    state.enqueue(state.joiners, waiter)
                yield waiter
        except BaseException:
            self._leave(waiter)
            raise


def _whole(new: NewBody | bytes) -> NewBody:
    return NewBody(new) if isinstance(new, bytes) else new
