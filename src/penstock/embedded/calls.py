"""Calls: what the methods of boxes and queues do, written once for threads and for loops.

A call that may wait is a generator: it does a step under the lock, yields the Waiter that it waits
with, and goes on when it is woken. `Driver.run` sleeps on a Waiter in the caller's thread, `aio`
awaits it. No step yields under the lock.

    put        publish; full: wait for room and try again; not settled: wait for that
    get        fetch; the head is held: wait until its record is settled; none: wait for a change
    join       wait until nothing is ready, unacknowledged or delayed

What is interrupted while it waits leaves the lists that it stands in, and passes on a wake-up that
it may have got. An interrupted put may or may not have happened, as one whose process died.

Not here: transactions (`box_transaction`), how a Waiter is woken (`driver`, `queue_state`).
"""

from collections.abc import Callable, Generator
from typing import TypeVar

from penstock import errors
from penstock.embedded.box_errors import QueueEmptyError, QueueFullError
from penstock.embedded.box_transaction import BoxTransaction
from penstock.embedded.driver import Driver
from penstock.embedded.new_body import NewBody
from penstock.embedded.queue_state import QueueState
from penstock.embedded.waiting import Waiter
from penstock.errors import SettledError, StoppedError, StorageError, UnknownQueueError
from penstock.queues.backing_queue import Delivery, NewMessage
from penstock.queues.queue_options import REJECT_PUBLISH
from penstock.storage.durability import DISK, OS

T = TypeVar("T")
Call = Generator[Waiter, None, T]

# ---- under the lock ------------------------------------------------------------------------------


def publish(driver: Driver, state: QueueState, new: NewBody, mode: int) -> Waiter | None:
    """Publish one message; what to wait for, None if it is confirmed."""
    lsn = state.amq.publish(
        new.header, new.body, mode, priority=new.priority, ttl_ms=new.ttl_ms, delay_ms=new.delay_ms
    )
    changed(driver, state)
    if new.ttl_ms is not None or new.delay_ms is not None:
        note_due(driver, state)
    return driver.settle(lsn, mode) if lsn else None


def changed(driver: Driver, state: QueueState) -> None:
    """Wake who waits for a change of this queue, and see that the thread looks at it soon."""
    if state.is_crowded:
        state.changed()
    if not state.is_touched:
        driver.core.touch(state)
    if driver.is_idle:
        driver.nudge()


def note_due(driver: Driver, state: QueueState) -> None:
    """Something may be due earlier than the thread knows."""
    core = driver.core
    before = core.next_due_ms
    when = core.note_due(state)
    if when and (not before or when < before):
        driver.nudge()


def fetch(driver: Driver, state: QueueState) -> Delivery | None:
    """The next message, None if there is none now or it is held."""
    amq = state.amq
    delivery = amq.fetch()
    while delivery is None and amq.has_more_expired:
        delivery = amq.fetch()
    if delivery is not None:
        state.is_consumed = True
        changed(driver, state)
    return delivery


def open_state(state: QueueState) -> QueueState:
    """UnknownQueueError if the queue was deleted."""
    if state.is_deleted:
        raise UnknownQueueError(f"{state.name} (deleted)")
    return state


def current(driver: Driver) -> BoxTransaction | None:
    """The transaction that the caller is in. StoppedError: the box was interrupted meanwhile."""
    if not driver.transactions:
        return None
    transaction = driver.transactions.get(driver.caller())
    if transaction is not None and transaction.core is not driver.core:
        raise StoppedError("a call was interrupted, and the transaction is lost")
    return transaction


def deadline_of(driver: Driver, timeout_s: float | None) -> float | None:
    """Monotonic seconds; None: never. ValueError for a negative time-out."""
    if timeout_s is None:
        return None
    if timeout_s < 0:
        raise ValueError(f"timeout must not be negative, not {timeout_s}")
    return driver.core.clock.monotonic() + timeout_s


def is_over(driver: Driver, deadline: float | None) -> bool:
    """Whether the time is up."""
    return deadline is not None and driver.core.clock.monotonic() >= deadline


def leave(driver: Driver, state: QueueState, waiter: Waiter | None) -> None:
    """A call ends with an error while it waits: a wake-up that it may have got is passed on."""
    if waiter is not None:
        with driver.lock:
            state.leave(waiter)
            if not state.is_deleted and not driver.is_closed:
                state.changed()


# ---- put -----------------------------------------------------------------------------------------


def put(
    driver: Driver, state: QueueState, new: NewBody, mode: int, *, block: bool,
    timeout_s: float | None,
) -> Call[None]:  # fmt: skip
    """Put one message, and return when it is confirmed in this mode."""
    deadline = deadline_of(driver, timeout_s)
    waiter: Waiter | None = None
    try:
        while True:
            with driver.gate, driver.guard:
                open_state(state)
                if waiter is not None:
                    state.leave(waiter)
                    waiter = None
                confirm, error = _try_put(driver, state, new, mode)
                if error is not None:
                    is_last = not block or is_over(driver, deadline)
                    if is_last or not _can_fit(driver, state, new, error):
                        raise full(error)
                    waiter = driver.new_waiter(deadline=deadline)
                    state.enqueue(state.putters, waiter)
            if waiter is None:
                if confirm is not None:
                    yield confirm
                return
            yield waiter
    except BaseException:
        leave(driver, state, waiter)
        raise


def _try_put(
    driver: Driver, state: QueueState, new: NewBody, mode: int
) -> tuple[Waiter | None, errors.QueueFullError | None]:
    """What to wait for, or that there is no room."""
    try:
        transaction = current(driver)
        if transaction is None:
            return publish(driver, state, new, mode), None
        transaction.put(state, new)
        return None, None
    except errors.QueueFullError as error:
        return None, error


def _can_fit(driver: Driver, state: QueueState, new: NewBody, error: errors.QueueFullError) -> bool:
    """Whether waiting for room makes sense: it can come, and not only by what this call would
    do."""
    if current(driver) is not None or state.amq.options.overflow != REJECT_PUBLISH:
        return False
    needed = len(new.body) if error.limit == "max_length_bytes" else 1
    return needed <= error.allowed


def full(error: errors.QueueFullError) -> QueueFullError:
    """The same as one that is also a `queue.Full`."""
    return QueueFullError(error.queue, error.limit, error.given, error.allowed)


def put_many(
    driver: Driver, state: QueueState, news: list[NewBody] | list[bytes], mode: int, *,
    block: bool, timeout_s: float | None,
) -> Call[None]:  # fmt: skip
    """Put all of them with one sync; if they do not fit together, each when there is room."""
    deadline = deadline_of(driver, timeout_s)
    confirm: Waiter | None = None
    is_full = False
    with driver.gate, driver.guard:
        open_state(state)
        transaction = current(driver)
        try:
            if transaction is not None:
                for new in news:
                    transaction.put(state, _whole(new))
            elif lsn := _publish_many(driver, state, news, mode):
                confirm = driver.settle(lsn, mode)
        except errors.QueueFullError as error:
            if transaction is not None or not block:
                raise full(error) from None
            is_full = True
    if confirm is not None:
        yield confirm
    if is_full:
        for new in news:
            left_s = (
                None if deadline is None else max(0.0, deadline - driver.core.clock.monotonic())
            )
            yield from put(driver, state, _whole(new), mode, block=True, timeout_s=left_s)


def _whole(new: NewBody | bytes) -> NewBody:
    return NewBody(new) if isinstance(new, bytes) else new


def _publish_many(
    driver: Driver, state: QueueState, news: list[NewBody] | list[bytes], mode: int
) -> int:
    """One batch; the LSN, 0 if nothing is to be waited for. QueueFullError: nothing was put."""
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
    changed(driver, state)
    note_due(driver, state)
    return lsn


# ---- get -----------------------------------------------------------------------------------------


def get(
    driver: Driver, state: QueueState, *, block: bool, timeout_s: float | None
) -> Call[Delivery]:
    """The next message; QueueEmptyError if none came in time. Not blocking, it still waits for the
    sync that a message which is there may need first."""
    deadline = deadline_of(driver, timeout_s)
    waiter: Waiter | None = None
    try:
        while True:
            with driver.gate, driver.guard:
                open_state(state)
                if waiter is not None:
                    state.leave(waiter)
                    waiter = None
                delivery = fetch(driver, state)
                if delivery is not None:
                    return delivery
                held = state.amq.held()
                if held is not None:
                    confirm = settle_held(driver, *held)
                    if confirm is None:
                        continue
                elif not block or is_over(driver, deadline):
                    raise QueueEmptyError(state.name, timeout_s or 0.0)
                else:
                    confirm = None
                    waiter = driver.new_waiter(deadline=deadline)
                    state.enqueue(state.getters, waiter)
            waits_for = waiter or confirm
            assert waits_for is not None
            yield waits_for
    except BaseException:
        leave(driver, state, waiter)
        raise


def settle_held(driver: Driver, lsn: int, mode: int) -> Waiter | None:
    """What to wait for until this record, which may be weaker than the mode, is settled in it."""
    if mode == DISK:
        driver.core.engine.request_sync()
    return driver.settle(lsn, mode)


def get_many(
    driver: Driver, state: QueueState, n: int, *, timeout_s: float | None
) -> Call[list[Delivery]]:
    """Up to n messages: the first is waited for, more are taken if they are there."""
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    try:
        deliveries = [(yield from get(driver, state, block=True, timeout_s=timeout_s))]
    except QueueEmptyError:
        return []
    confirm: Waiter | None = None
    while len(deliveries) < n:
        with driver.gate, driver.guard:
            confirm = None
            while len(deliveries) < n and (delivery := fetch(driver, state)) is not None:
                deliveries.append(delivery)
            if len(deliveries) < n:
                held = state.amq.held()
                if held is None:
                    break
                confirm = settle_held(driver, *held)
        if confirm is not None:
            yield confirm
    return deliveries


# ---- settling ------------------------------------------------------------------------------------


def ack(driver: Driver, state: QueueState, tags: list[int]) -> None:
    """Acknowledge: nothing waits for a sync. SettledError if one of them is not pending."""
    with driver.gate, driver.guard:
        open_state(state)
        transaction = current(driver)
        if transaction is not None:
            transaction.ack(state, tags)
            return
        count = state.amq.ack(tags, OS)
        changed(driver, state)
        driver.acked()
    if count != len(tags):
        raise SettledError(state.name, tags[0])


def nack(driver: Driver, state: QueueState, tag: int, delay_ms: int | None) -> None:
    """Back into the queue, now or later, counted as an attempt."""
    with driver.gate, driver.guard:
        _check_pending(state, tag)
        state.amq.nack(tag, delay_ms=delay_ms, mode=OS)
        changed(driver, state)
        note_due(driver, state)
        driver.core.engine.flush()


def reject(driver: Driver, state: QueueState, tag: int) -> None:
    """To the dead-letter queue, or away."""
    with driver.gate, driver.guard:
        _check_pending(state, tag)
        state.amq.reject(tag, OS)
        changed(driver, state)
        driver.core.engine.flush()


def _check_pending(state: QueueState, tag: int) -> None:
    if state.is_deleted or state.amq.backing.pending(tag) is None:
        raise SettledError(state.name, tag)


# ---- the queue -----------------------------------------------------------------------------------


def join(driver: Driver, state: QueueState, *, timeout_s: float | None) -> Call[bool]:
    """Until nothing is ready, unacknowledged or delayed. False: the time was up."""
    deadline = deadline_of(driver, timeout_s)
    waiter: Waiter | None = None
    try:
        while True:
            with driver.gate, driver.guard:
                if waiter is not None:
                    state.leave(waiter)
                    waiter = None
                if state.is_deleted or not state.unfinished():
                    return True
                if is_over(driver, deadline):
                    return False
                waiter = driver.new_waiter(deadline=deadline)
                state.enqueue(state.joiners, waiter)
            yield waiter
    except BaseException:
        leave(driver, state, waiter)
        raise


def purge(driver: Driver, state: QueueState, *, with_delayed: bool) -> Call[int]:
    """All that is ready goes, or is delayed too; how many there were."""
    with driver.gate, driver.guard:
        open_state(state)
        count = state.amq.purge(DISK)
        if with_delayed:
            count += state.amq.purge_delayed(DISK)
        changed(driver, state)
        confirm = driver.settle(driver.core.engine.last_lsn, DISK)
    if confirm is not None:
        yield confirm
    return count


def delete(driver: Driver, name: str) -> Call[None]:
    """Delete a queue with all that it holds; UnknownQueueError."""
    with driver.gate, driver.guard:
        lsn = driver.core.delete(name)
        confirm = driver.settle(lsn, DISK) if lsn else None
    if confirm is not None:
        yield confirm


def sync(driver: Driver) -> Call[None]:
    """Until everything that was put, acknowledged or changed so far is on disk."""
    with driver.gate, driver.guard:
        engine = driver.core.engine
        confirm = None
        if engine.settled(DISK) < engine.last_lsn:
            confirm = settle_held(driver, engine.last_lsn, DISK)
    if confirm is not None:
        yield confirm


def declare(driver: Driver, make: Callable[[], T]) -> tuple[T, Waiter | None]:
    """Under the lock: what it makes, or finds, and what to wait for until it is durable so."""
    engine = driver.core.engine
    before = engine.last_lsn
    made = make()
    if driver.is_idle:
        driver.nudge()
    lsn = engine.last_lsn
    return made, settle_held(driver, lsn, DISK) if lsn > before else None


# ---- transactions --------------------------------------------------------------------------------


def commit(driver: Driver, transaction: BoxTransaction) -> Call[None]:
    """End a transaction; on disk, in its mode, at the end. An error: it is rolled back."""
    with driver.gate, driver.guard:
        driver.transactions.pop(driver.caller(), None)
        if transaction.core is not driver.core:
            raise StoppedError("a call was interrupted, and the transaction is lost")
        try:
            states = transaction.commit()
        except Exception:
            _roll_back(driver, transaction)
            raise
        for state in states:
            changed(driver, state)
            note_due(driver, state)
        confirm = driver.settle(driver.core.engine.last_lsn, transaction.mode)
    if confirm is not None:
        yield confirm


def rollback(driver: Driver, transaction: BoxTransaction) -> None:
    """Undo a transaction. What cannot be undone, because the box has stopped, is gone anyway."""
    with driver.lock, driver.guard:
        driver.transactions.pop(driver.caller(), None)
        if transaction.core is driver.core and not driver.is_closed:
            try:
                _roll_back(driver, transaction)
            except StorageError as error:
                driver.core.event("stopped", f"a transaction could not be rolled back: {error}")


def _roll_back(driver: Driver, transaction: BoxTransaction) -> None:
    for state in transaction.rollback():
        changed(driver, state)
        note_due(driver, state)


def locked(driver: Driver, step: Callable[[], T]) -> T:
    """One step under the lock."""
    with driver.gate, driver.guard:
        return step()
