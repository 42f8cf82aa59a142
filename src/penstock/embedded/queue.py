"""Queue: what a program puts messages into and gets jobs out of, named as in `queue.Queue`.

This is the queue for threads, in a directory or on a broker; what differs is in the QueueSource
behind it (`sources`). `penstock.aio` has the same queue for asyncio. Any number of threads may use
one Queue, or several of the same name.

`put`, `get` and `Job.ack` are called for each message. They try the source's short form first, and
run the full call only if that refuses.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from penstock.embedded.messages import Job, JobBase, Message, new_job, new_traced_job
from penstock.embedded.option_parsing import Body, Headers, NewBody, Time, bodies_of
from penstock.embedded.sources import QueueSource, Runner, SlowCase
from penstock.errors import QueueEmptyError

Bodies: TypeAlias = Body | tuple[Body, Mapping[str, object]]  # one of put_many


class QueueBase:
    """What the queues for threads and for asyncio have in common.

    The counts are those of this moment. In a directory they are returned at once; on a broker each
    is a short question, for whose answer the thread, or the whole loop, waits.
    """

    def __init__(self, driver: Runner, source: QueueSource) -> None:
        self._driver = driver
        self._source = source

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._source.name

    def __len__(self) -> int:
        """Count the messages that are ready: neither unacknowledged nor delayed."""
        return self._driver.run(self._source.counts()).ready

    def __bool__(self) -> bool:
        """Return True, also for an empty queue."""
        return True

    def qsize(self) -> int:
        """Count the messages that are ready, as len() does."""
        return len(self)

    def empty(self) -> bool:
        """Return whether no message is ready."""
        return not len(self)

    def full(self) -> bool:
        """Return whether a put of an empty body would have to wait or be refused."""
        return not self._driver.run(self._source.has_room())

    @property
    def unacked(self) -> int:
        """The number of messages that were got, by anybody, and are not settled."""
        return self._driver.run(self._source.counts()).unacked

    @property
    def delayed(self) -> int:
        """The number of messages that wait for their delay or for their next attempt."""
        return self._driver.run(self._source.counts()).delayed

    def info(self) -> dict[str, int | float | str]:
        """Return the queue's counters; docs/how-it-works/memory.md lists them."""
        return self._driver.run(self._source.info())

    def _check(self, job: object) -> JobBase:
        """Return a job. TypeError if it is something else, SettledError if it is settled or of
        another queue."""
        if not isinstance(job, JobBase):
            raise TypeError(f"expected a job that get returned, not {type(job).__name__}")
        job._check(self._source)
        return job

    def _checked(self, jobs: object) -> list[JobBase]:
        """Return the jobs as a list. TypeError and SettledError as `_check` for each."""
        found = list(jobs) if isinstance(jobs, Iterable) else [jobs]
        return [self._check(job) for job in found]

    def _give_back(self, job: JobBase) -> None:
        """Return the job of a `consume` loop that was left."""
        if not job.is_settled:
            job.is_settled = True
            self._source.nack_soon(job._delivery)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._driver.path}>"


class Queue(QueueBase):
    """A queue of a box; `box.queue(name)` returns it. It is not removed by being dropped: `delete`
    does that.

    Errors of all methods: BoxClosedError, ForkedError, UnknownQueueError (the queue was deleted).
    In a directory also StoppedError (the disk failed: open the box again). On a broker also
    ConnectionLostError (the call may or may not have taken effect), UnreachableError, and AMQPError
    with the broker's words, as 403 for what the user may not do.
    """

    def __init__(self, driver: Runner, source: QueueSource) -> None:
        super().__init__(driver, source)
        self._new_job = new_traced_job if source.is_traced else new_job

    # ---- put -------------------------------------------------------------------------------------

    def put(
        self, body: Body, *, priority: int = 0, ttl: Time | None = None, delay: Time | None = None,
        headers: Headers | None = None, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Put one message, and return when it is confirmed: in mode "disk", when it is on disk.

        body: bytes, bytearray or memoryview. priority: from 0 to the queue's highest. ttl: the
        message expires if nobody got it for so long. delay: nobody gets it earlier. Both in
        seconds, or as a text such as "1h" or a timedelta. headers: a dict of names to str, bytes,
        int, float or bool. durability: of this put, "disk", "interval", "os" or "none"; on a broker
        "none" makes the message transient, and all others are as safe as the broker's own mode.
        block, timeout (seconds): whether and how long to wait while the queue is full. While a
        broker takes no messages (`on_event` reports "blocked") the put waits as well.

        Raises QueueFullError or DiskFullError if the message was not put, OptionError for a wrong
        option, TypeError for a body that is not bytes. After an interrupt (Ctrl-C) during the wait
        for the confirm the message may or may not have been put.
        """
        if (
            type(body) is bytes and priority == 0 and ttl is None and delay is None
            and headers is None and durability is None
        ):  # fmt: skip
            waiter = self._source.put_plain(body)
            if not isinstance(waiter, SlowCase):
                if waiter is not None:
                    self._driver.wait(waiter)
                return
        new = NewBody(body, priority, ttl, delay, headers)
        self._driver.run(self._source.put(new, durability, block=block, timeout_s=timeout))

    def put_nowait(self, body: Body, **options: Any) -> None:
        """Put one message as `put` does with block=False: a full queue is a QueueFullError."""
        self.put(body, block=False, **options)

    def put_many(
        self, bodies: Iterable[Bodies], *, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Put many messages with one wait, and return when all are confirmed.

        bodies: bodies, or pairs (body, options) with the options priority, ttl, delay and headers.
        The messages are not a transaction: after a crash the first of them may be there alone. In a
        queue without room for all of them, each message waits for room, for `timeout` seconds in
        all. QueueFullError: the first messages may have been put; with block=False none was.
        """
        news = bodies_of(bodies)
        self._driver.run(self._source.put_many(news, durability, block=block, timeout_s=timeout))

    # ---- get -------------------------------------------------------------------------------------

    def get(self, timeout: float | None = None, block: bool = True) -> Job:
        """Return the next message as a Job, which is to be settled.

        timeout: how many seconds to wait for a message; None for no limit. block=False means the
        same as timeout=0. Raises QueueEmptyError if no message came in time.
        """
        source = self._source
        delivery = source.take()
        if delivery is None:
            delivery = self._driver.run(source.get(block=block, timeout_s=timeout))
        return self._new_job(self._driver, source, delivery)

    def get_nowait(self) -> Job:
        """Return a message that is ready as a Job. Raises QueueEmptyError if none is. Does not wait
        for a message to come, but may wait for the sync of one that is there."""
        return self.get(block=False)

    def get_many(self, n: int, timeout: float | None = None) -> list[Job]:
        """Return up to n messages as Jobs: wait for the first as `get` does, then take what else is
        ready. Returns an empty list if none came in `timeout` seconds."""
        driver, source = self._driver, self._source
        found = driver.run(source.get_many(n, timeout_s=timeout))
        return [self._new_job(driver, source, delivery) for delivery in found]

    def consume(self, timeout: float | None = None) -> Generator[Job, None, None]:
        """Yield jobs one after the other, and acknowledge each when the loop asks for the next.

        Ends when no message came for `timeout` seconds. A loop that is left by `break` or by an
        exception returns the job it was at as a failed one: settle the job first if it is done.
        """
        while True:
            try:
                job = self.get(timeout)
            except QueueEmptyError:
                return
            try:
                yield job
            except BaseException:
                self._give_back(job)
                raise
            if not job.is_settled:
                job.ack()

    # ---- settle ----------------------------------------------------------------------------------

    def ack(self, job: Job | Iterable[Job]) -> None:
        """Acknowledge one job or many of this queue, as Job.ack does. SettledError if one of them
        is settled already: then none is acknowledged."""
        if isinstance(job, Job):
            job._check(self._source)
            job.ack()
            return
        jobs = self._checked(job)
        if jobs:
            self._driver.run(self._source.ack([one._delivery for one in jobs]))
        for one in jobs:
            one.is_settled = True

    def nack(self, job: Job, delay: Time | None = None) -> None:
        """Return a job of this queue, as Job.nack does."""
        self._check(job)
        job.nack(delay)

    def reject(self, job: Job) -> None:
        """Reject a job of this queue, as Job.reject does."""
        self._check(job)
        job.reject()

    # ---- look ------------------------------------------------------------------------------------

    def peek(self) -> Message | None:
        """Return the message that is next, and leave it in the queue; None if none is ready."""
        delivery = self._driver.run(self._source.peek())
        return None if delivery is None else Message(delivery)

    def __iter__(self) -> Iterator[Message]:
        """Yield all ready messages in order, and leave them in the queue. Only some are in RAM at a
        time. Messages that come or go meanwhile may be yielded or not; none is yielded twice."""
        after: Any = None
        while True:
            found, after = self._driver.run(self._source.browse(after))
            if not found:
                return
            for delivery in found:
                yield Message(delivery)

    # ---- the whole -------------------------------------------------------------------------------

    def purge(self, *, delayed: bool = False) -> int:
        """Drop all ready messages, and the delayed ones too if asked. Returns how many. Messages
        that are unacknowledged stay. Nothing is dead-lettered."""
        return self._driver.run(self._source.purge(with_delayed=delayed))

    def delete(self) -> None:
        """Delete the queue with all that it holds."""
        self._driver.run(self._source.delete())

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every message is settled: none ready, unacknowledged or delayed. Returns False
        if that did not happen in `timeout` seconds. A broker is asked every 50 ms."""
        return self._driver.run(self._source.join(timeout_s=timeout))
