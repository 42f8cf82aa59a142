"""RemoteQueue: a queue on a broker, with the names and manners of `penstock.Queue`.

Any number of threads may use one, or several of the same name; all use the one connection of their
box. What is counted is asked of the broker, each time.

Not here: what is said to the broker (remote_calls.py), jobs, asyncio (remote_aio.py).
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Any

from penstock import errors
from penstock.client import remote_calls
from penstock.client.remote_asking import operate_on, room_of
from penstock.client.remote_driver import RemoteDriver, RemoteState
from penstock.client.remote_job import RemoteJob, RemoteJobView
from penstock.client.remote_message import RemoteMessage
from penstock.embedded.new_body import Body, Headers, NewBody, bodies_of
from penstock.embedded.spellings import Time, mode_of, time_ms
from penstock.errors import PenstockError, SettledError

Bodies = Body | tuple[Body, Any]  # one of put_many


class RemoteQueueView:
    """What can be asked of a queue in one short question; the same for threads and asyncio, where
    it holds up the loop until the broker has answered."""

    def __init__(self, driver: RemoteDriver, state: RemoteState) -> None:
        self._driver = driver
        self._state = state

    @property
    def name(self) -> str:
        """The name that it was opened by."""
        return self._state.name

    def _info(self) -> dict[str, Any]:
        found: dict[str, Any] = self._driver.run(
            operate_on(self._driver, self._state, "box.queue_info")
        )
        return found

    def __len__(self) -> int:
        """Messages that are ready: neither unacknowledged nor delayed."""
        return int(self._info()["ready"])

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
        return self._driver.run(room_of(self._driver, self._state, 0, 1)) is not None

    @property
    def unacked(self) -> int:
        """Messages that were got, by anybody, and are not settled."""
        return int(self._info()["unacked"])

    @property
    def delayed(self) -> int:
        """Messages that wait for their delay, or for their next attempt."""
        return int(self._info()["delayed"])

    def info(self) -> dict[str, int | float | str]:
        """Counters: docs/memory.md says which. takers: who waits for a message."""
        return dict(self._info()["info"])

    def _mode(self, durability: object) -> int:
        if durability is not None:
            return mode_of("durability", durability)
        own = self._state.mode
        return self._driver.mode if own is None else own

    def _check(self, job: RemoteJobView, state: RemoteState) -> None:
        """SettledError unless it is a job of this queue, and not settled."""
        if job.is_settled or state is not self._state:
            raise SettledError(self.name, job.tag)

    def _give_back(self, job: RemoteJobView) -> None:
        """The loop over `consume` is left while it is at this job."""
        if not job.is_settled:
            job.is_settled = True
            try:
                remote_calls.nack_soon(job.taken)
            except PenstockError:
                pass  # the box was closed, say: then it comes back anyway

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._driver.path}>"


class RemoteQueue(RemoteQueueView):
    """See the head of this module. Errors of all methods: BoxClosedError, UnknownQueueError (it was
    deleted), ConnectionLostError (nobody knows whether it happened), UnreachableError, ForkedError,
    and AMQPError with the broker's words, as 403 for what the user may not do."""

    # ---- put -----------------------------------------------------------------------------------

    def put(
        self, body: Body, *, priority: int = 0, ttl: Time | None = None, delay: Time | None = None,
        headers: Headers | None = None, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Put one message; it returns when the broker has confirmed it. As penstock.Queue.put;
        durability: "none" for a transient message, all others are as safe as the broker's mode
        says. While the broker takes no messages (`on_event` says "blocked"), it waits."""
        new = NewBody(body, priority, ttl, delay, headers)
        mode = self._mode(durability)
        driver = self._driver
        driver.run(remote_calls.put(driver, self._state, new, mode, block=block, timeout_s=timeout))

    def put_nowait(self, body: Body, **options: Any) -> None:
        """As put with block=False: QueueFullError at once."""
        self.put(body, block=False, **options)

    def put_many(
        self, bodies: Iterable[Bodies], *, durability: str | None = None, block: bool = True,
        timeout: float | None = None,
    ) -> None:  # fmt: skip
        """Put many messages with one wait; as penstock.Queue.put_many."""
        news = bodies_of(bodies)
        driver = self._driver
        mode = self._mode(durability)
        driver.run(
            remote_calls.put_many(driver, self._state, news, mode, block=block, timeout_s=timeout)
        )

    # ---- get -----------------------------------------------------------------------------------

    def get(self, timeout: float | None = None, block: bool = True) -> RemoteJob:
        """The next message, as a job to be settled. timeout: seconds to wait for one, None: for
        ever; QueueEmptyError. block=False: as timeout=0."""
        driver = self._driver
        call = remote_calls.get(driver, self._state, block=block, timeout_s=timeout)
        return RemoteJob(self, driver.run(call))

    def get_nowait(self) -> RemoteJob:
        """A message that is there; QueueEmptyError."""
        return self.get(block=False)

    def get_many(self, n: int, timeout: float | None = None) -> list[RemoteJob]:
        """Up to n messages: waits for the first, as get, and takes what else is there. An empty
        list: none came in time."""
        driver = self._driver
        found = driver.run(remote_calls.get_many(driver, self._state, n, timeout_s=timeout))
        return [RemoteJob(self, taken) for taken in found]

    def consume(self, timeout: float | None = None) -> Generator[RemoteJob, None, None]:
        """Jobs, one after the other, each acknowledged when the loop goes on to the next; as
        penstock.Queue.consume."""
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

    def ack(self, job: RemoteJob | Iterable[RemoteJob]) -> None:
        """Acknowledge one job or many: they are done, and gone. It is sent, and not waited for."""
        jobs = [job] if isinstance(job, RemoteJob) else list(job)
        for one in jobs:
            self._check(one, one._queue._state)
        driver = self._driver
        driver.run(remote_calls.ack(driver, self._state, [one.taken for one in jobs]))
        for one in jobs:
            one.is_settled = True

    def nack(self, job: RemoteJob, delay: Time | None = None) -> None:
        """Return a job: see RemoteJob.nack."""
        self._check(job, job._queue._state)
        delay_ms = None if delay is None else time_ms("delay", delay)
        job.is_settled = True
        driver = self._driver
        driver.run(remote_calls.nack(driver, self._state, job.taken, delay_ms))

    def reject(self, job: RemoteJob) -> None:
        """Reject a job: see RemoteJob.reject."""
        self._check(job, job._queue._state)
        job.is_settled = True
        self._driver.run(remote_calls.reject(self._driver, self._state, job.taken))

    # ---- look ----------------------------------------------------------------------------------

    def peek(self) -> RemoteMessage | None:
        """The message that would be next, and stays; None if none is ready."""
        return self._driver.run(remote_calls.peek(self._driver, self._state))

    def __iter__(self) -> Iterator[RemoteMessage]:
        """Look at all messages that are ready, in order; they stay. What comes and goes meanwhile
        may be seen or not, nothing is seen twice."""
        for call in remote_calls.pages(self._driver, self._state):
            messages = self._driver.run(call)
            if not messages:
                return
            yield from messages

    # ---- the whole -----------------------------------------------------------------------------

    def purge(self, *, delayed: bool = False) -> int:
        """Drop all messages that are ready, and those that are delayed if asked; how many. Not what
        is unacknowledged. No dead letters."""
        call = operate_on(self._driver, self._state, "box.purge", with_delayed=delayed)
        return int(self._driver.run(call))

    def delete(self) -> None:
        """Delete the queue with all that it holds."""
        self._driver.run(remote_calls.delete_state(self._driver, self._state))

    def join(self, timeout: float | None = None) -> bool:
        """Wait until every message is settled: none ready, unacknowledged or delayed. False when
        that did not happen in `timeout` seconds. It asks the broker every 50 ms."""
        return self._driver.run(remote_calls.join(self._driver, self._state, timeout_s=timeout))
