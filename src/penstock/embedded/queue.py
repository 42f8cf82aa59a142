"""Queue: what a program puts messages into and gets jobs out of; names and manners of
`queue.Queue`.

Any number of threads may use one Queue, or several of the same name. What waits, waits outside of
the box's lock. The two methods that are called for each message are written out here, because a
call more would be felt: they do under the lock what `calls` does, in its simplest case, and leave
all other cases to it.

    put    returns when the message is confirmed in its durability mode
    get    gives a Job; until it is settled nobody else gets it

Not here: what happens to messages (`penstock.queues`), how calls wait (`driver`), asyncio (`aio`).
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from penstock import errors
from penstock.embedded import calls
from penstock.embedded.driver import Driver
from penstock.embedded.job import Job, JobView, Message
from penstock.embedded.new_body import Body, Headers, NewBody, bodies_of
from penstock.embedded.queue_state import QueueState
from penstock.embedded.spellings import Time, mode_of, time_ms
from penstock.embedded.waiting import Waiter
from penstock.errors import PenstockError, SettledError
from penstock.queues.backing_queue import Delivery
from penstock.queues.queue_options import REJECT_PUBLISH
from penstock.storage.durability import OS

Bodies: TypeAlias = Body | tuple[Body, Mapping[str, object]]  # one of put_many

BROWSE_MESSAGES: Final = 64  # that an iteration reads at once


class SlowWay:
    """What a short way answers when the case is not so simple."""


_SLOW: Final = SlowWay()


class QueueView:
    """What can be asked of a queue without waiting; the same for threads and asyncio."""

    def __init__(self, driver: Driver, state: QueueState) -> None:
        self._driver = driver
        self._state = state

    @property
    def name(self) -> str:
        """The name that it was opened by."""
        return self._state.name

    def __len__(self) -> int:
        """Messages that are ready: neither unacknowledged nor delayed."""
        with self._driver.gate:
            return calls.open_state(self._state).amq.len()

    def __bool__(self) -> bool:
        """A queue is true, empty or not."""
        return True

    def qsize(self) -> int:
        """As len."""
        return len(self)

    def empty(self) -> bool:
        """Whether nothing is ready, at this moment."""
        return not len(self)

    def full(self) -> bool:
        """Whether a put of an empty body would have to wait or be refused, at this moment."""
        with self._driver.gate:
            try:
                calls.open_state(self._state).amq.before_publish(0, 1)
            except errors.QueueFullError:
                return True
            return False

    @property
    def unacked(self) -> int:
        """Messages that were got and are not settled."""
        with self._driver.gate:
            amq = calls.open_state(self._state).amq
            return amq.depth() - amq.len()

    @property
    def delayed(self) -> int:
        """Messages that wait for their delay, or for their next attempt."""
        with self._driver.gate:
            return calls.open_state(self._state).amq.delayed()

    def info(self) -> dict[str, int | float | str]:
        """Counters: docs/memory.md says which."""
        with self._driver.gate, self._driver.guard:
            return calls.open_state(self._state).amq.info()

    # ---- what is called for each message -------------------------------------------------------

    def _put_plain(self, body: bytes) -> Waiter | SlowWay | None:
        """A body and nothing else: what to wait for, None; _SLOW: the case is not so simple."""
        driver, state = self._driver, self._state
        with driver.gate:
            try:
                if driver.transactions or state.is_deleted:
                    return _SLOW
                mode = state.mode
                lsn = state.amq.publish(b"", body, mode)
                if state.is_crowded or not state.is_touched or driver.is_idle:
                    calls.changed(driver, state)
                return driver.settle(lsn, mode) if lsn else None
            except errors.QueueFullError as error:
                if state.amq.options.overflow != REJECT_PUBLISH:
                    raise calls.full(error) from None  # it is a dead letter already
                return _SLOW
            except Exception:
                raise
            except BaseException as error:
                driver.interrupted(error)
                raise

    def _take(self) -> Delivery | None:
        """The next message, if it is to be had at once."""
        driver, state = self._driver, self._state
        with driver.gate:
            try:
                delivery = None if state.is_deleted else state.amq.fetch()
                if delivery is not None:
                    state.is_consumed = True
                    if state.is_crowded or not state.is_touched or driver.is_idle:
                        calls.changed(driver, state)
            except Exception:
                raise
            except BaseException as error:
                driver.interrupted(error)
                raise
        return delivery

    def _ack_one(self, job: JobView) -> None:
        """Acknowledge a job that is not settled."""
        driver, state = self._driver, self._state
        with driver.gate:
            try:
                if driver.transactions or state.is_deleted:
                    count = -1
                else:
                    count = state.amq.ack([job._delivery.tag], OS)
                    if state.is_crowded or not state.is_touched or driver.is_idle:
                        calls.changed(driver, state)
                    driver.acked()
            except Exception:
                raise
            except BaseException as error:
                driver.interrupted(error)
                raise
        if count < 0:
            calls.ack(driver, state, [job.tag])
        job.is_settled = True
        if count == 0:
            raise SettledError(self.name, job.tag)

    def _nack(self, job: JobView, delay: Time | None) -> None:
        delay_ms = None if delay is None else time_ms("delay", delay)
        job.is_settled = True
        calls.nack(self._driver, self._state, job.tag, delay_ms)

    def _reject(self, job: JobView) -> None:
        job.is_settled = True
        calls.reject(self._driver, self._state, job.tag)

    def _give_back(self, job: JobView) -> None:
        """The loop over `consume` is left while it is at this job."""
        if not job.is_settled:
            try:
                self._nack(job, None)
            except PenstockError:
                pass  # the box was closed, say: then it comes back anyway

    # ---- what both give in their own way -------------------------------------------------------

    def _peek(self) -> Message | None:
        with self._driver.gate, self._driver.guard:
            delivery = calls.open_state(self._state).amq.peek()
        return None if delivery is None else Message(delivery)

    def _browse(self) -> Iterator[list[Message]]:
        after: int | None = None
        while True:
            with self._driver.gate, self._driver.guard:
                found = calls.open_state(self._state).amq.browse(after, BROWSE_MESSAGES)
            if not found:
                return
            after = found[-1].tag
            yield [Message(delivery) for delivery in found]

    def _mode(self, durability: object) -> int:
        return self._state.mode if durability is None else mode_of("durability", durability)

    def _check(self, job: JobView, state: QueueState) -> None:
        """SettledError unless it is a job of this queue, and not settled."""
        if job.is_settled or state is not self._state:
            raise SettledError(self.name, job.tag)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._driver.path}>"


class Queue(QueueView):
    """See the head of this module. Errors of all methods: BoxClosedError, UnknownQueueError (it was
    deleted), StoppedError (the disk failed: open the box again), ForkedError."""

    # ---- put -----------------------------------------------------------------------------------

    def put(
        self, body: Body, *, priority: int = 0, ttl: Time | None = None, delay: Time | None = None,
        headers: Headers | None = None, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Put one message; it returns when that is confirmed: on disk, in mode "disk".

        body: bytes, or what has their buffer. priority: 0 to the queue's highest. ttl: it expires
        when nobody got it for so long; delay: nobody gets it earlier; seconds, or texts as "1h".
        headers: a dict of names to str, bytes, int, float or bool. durability: of this put.
        block, timeout (seconds): whether and how long to wait while the queue is full.

        QueueFullError, DiskFullError: it was not put. An interrupt (Ctrl-C) while it waits for the
        disk: it may be there or not.
        """
        if (
            type(body) is bytes and priority == 0 and ttl is None and delay is None
            and headers is None and durability is None
        ):  # fmt: skip
            waiter = self._put_plain(body)
            if not isinstance(waiter, SlowWay):
                if waiter is not None:
                    self._driver.wait(waiter)
                return
        new = NewBody(body, priority, ttl, delay, headers)
        driver = self._driver
        mode = self._mode(durability)
        driver.run(calls.put(driver, self._state, new, mode, block=block, timeout_s=timeout))

    def put_nowait(self, body: Body, **options: object) -> None:
        """As put with block=False: QueueFullError at once."""
        self.put(body, block=False, **options)  # type: ignore[arg-type]

    def put_many(
        self, bodies: Iterable[Bodies], *, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Put many messages with one sync: bodies, or pairs (body, options) with the options
        priority, ttl, delay and headers. They are not a transaction: a crash may leave the first
        ones. In a queue without room for all, each waits for room, for `timeout` seconds in all;
        QueueFullError: the first ones may be there; with block=False none is."""
        news = bodies_of(bodies)
        driver = self._driver
        mode = self._mode(durability)
        driver.run(calls.put_many(driver, self._state, news, mode, block=block, timeout_s=timeout))

    # ---- get -----------------------------------------------------------------------------------

    def get(self, timeout: float | None = None, block: bool = True) -> Job:
        """The next message, as a Job to be settled. timeout: seconds to wait for one, None: for
        ever; QueueEmptyError. block=False: as timeout=0."""
        delivery = self._take()
        if delivery is None:
            driver = self._driver
            call = calls.get(driver, self._state, block=block, timeout_s=timeout)
            delivery = driver.run(call)
        return Job(self, delivery)

    def get_nowait(self) -> Job:
        """A message that is there; QueueEmptyError. It waits for no other, at most for a sync."""
        return self.get(block=False)

    def get_many(self, n: int, timeout: float | None = None) -> list[Job]:
        """Up to n messages: waits for the first, as get, and takes what else is there. An empty
        list: none came in time."""
        driver = self._driver
        found = driver.run(calls.get_many(driver, self._state, n, timeout_s=timeout))
        return [Job(self, delivery) for delivery in found]

    def consume(self, timeout: float | None = None) -> Generator[Job, None, None]:
        """Jobs, one after the other, each acknowledged when the loop goes on to the next. It ends
        when none came for `timeout` seconds. A loop that is left, by `break` or by an exception,
        returns the job it was at, as a failed one: settle it first if it is done."""
        while True:
            try:
                job = self.get(timeout)
            except errors.QueueEmptyError:
                return
            try:
                yield job
            except BaseException:
                self._give_back(job)
                raise
            if not job.is_settled:
                job.ack()

    # ---- settle --------------------------------------------------------------------------------

    def ack(self, job: Job | Iterable[Job]) -> None:
        """Acknowledge one job or many: they are done, and gone. Waits for no sync: after kill -9
        those of the last few ms may come back, after a loss of power those of the last second."""
        if not isinstance(job, Job):
            self._ack_many(list(job))
            return
        if job.is_settled or job._queue._state is not self._state:
            raise SettledError(self.name, job.tag)
        self._ack_one(job)

    def _ack_many(self, jobs: list[Job]) -> None:
        for job in jobs:
            self._check(job, job._queue._state)
        if jobs:
            calls.ack(self._driver, self._state, [job.tag for job in jobs])
        for job in jobs:
            job.is_settled = True

    def nack(self, job: Job, delay: Time | None = None) -> None:
        """Return a job: see Job.nack."""
        self._check(job, job._queue._state)
        self._nack(job, delay)

    def reject(self, job: Job) -> None:
        """Reject a job: see Job.reject."""
        self._check(job, job._queue._state)
        self._reject(job)

    # ---- look ----------------------------------------------------------------------------------

    def peek(self) -> Message | None:
        """The message that would be next, and stays; None if none is ready."""
        return self._peek()

    def __iter__(self) -> Iterator[Message]:
        """Look at all messages that are ready, in order; they stay. RAM is bounded; what comes and
        goes meanwhile may be seen or not, nothing is seen twice."""
        for some in self._browse():
            yield from some

    # ---- the whole -----------------------------------------------------------------------------

    def purge(self, *, delayed: bool = False) -> int:
        """Drop all messages that are ready, and those that are delayed if asked; how many. Not what
        is unacknowledged. No dead letters."""
        driver = self._driver
        return driver.run(calls.purge(driver, self._state, with_delayed=delayed))

    def delete(self) -> None:
        """Delete the queue with all that it holds."""
        calls.locked(self._driver, lambda: calls.open_state(self._state))
        self._driver.run(calls.delete(self._driver, self.name))

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every message is settled: none ready, unacknowledged or delayed. False when
        that did not happen in `timeout` seconds."""
        driver = self._driver
        return driver.run(calls.join(driver, self._state, timeout_s=timeout))
