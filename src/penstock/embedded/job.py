"""Job: a message on its way through somebody's hands, until it is settled.

Settled means acknowledged (it is done, and gone), returned (`nack`: it comes back later, counted as
an attempt) or rejected (it goes to the dead-letter queue). Nobody else gets it meanwhile. A job
that is never settled comes back when its box is opened again; while it is open nothing takes it
away, for only its holder knows how long the work takes.

As a context manager it settles itself:

    with q.get() as job:      # acknowledged at the end of the block; on an exception returned, with
        work(job.body)        # back-off, and after `max_attempts` dead-lettered

Unless the block settled it already. The exception goes on in any case.
"""

from types import TracebackType
from typing import TYPE_CHECKING

from penstock.embedded.new_body import HEADERS
from penstock.embedded.spellings import Time
from penstock.errors import PenstockError, SettledError
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import PART_SHIFT, Delivery
from penstock.queues.headers import Death, HeaderValue

if TYPE_CHECKING:
    from penstock.embedded.queue import Queue


@mypyc_attr(allow_interpreted_subclasses=True)
class Message:
    """What can be known of a message. `peek` and iteration give it, and a Job is one.

    body: bytes. id: never given twice in a box; it stays when the message moves to another queue.
    is_redelivered: it may have been delivered before.
    """

    __slots__ = ("_delivery", "body", "id", "is_redelivered")

    def __init__(self, delivery: Delivery) -> None:
        message = delivery.message
        body = message.body
        assert body is not None, "a delivery has its body"
        self._delivery: Delivery = delivery
        self.body: bytes = body
        self.id: int = message.id
        self.is_redelivered: bool = delivery.is_redelivered

    @property
    def attempts(self) -> int:
        """How often it was delivered before and came back; 0 the first time."""
        return self._delivery.attempts

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """What was attached to it when it was put."""
        return HEADERS.values(self._delivery.message.header)

    @property
    def priority(self) -> int:
        """As it was put."""
        delivery = self._delivery
        return HEADERS.priority(delivery.message.header) or delivery.tag >> PART_SHIFT

    @property
    def time(self) -> int:
        """When it was put: seconds since 1970."""
        return self._delivery.message.time

    @property
    def deaths(self) -> list[Death]:
        """Where, why and how often it was dead-lettered, the last first."""
        return HEADERS.deaths(self._delivery.message.header)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.id:#x} of {len(self.body)} bytes, attempts {self.attempts}>"


@mypyc_attr(allow_interpreted_subclasses=True)
class JobView(Message):
    """What jobs have in common for threads and asyncio. is_settled: by this job's own methods."""

    __slots__ = ("is_settled",)

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery)
        self.is_settled: bool = False

    @property
    def tag(self) -> int:
        """Its place in the queue; unique there while it is not settled."""
        return self._delivery.tag


class Job(JobView):
    """See the head of this module. Errors of settling: SettledError, when it is settled already, or
    the queue was deleted; BoxClosedError."""

    __slots__ = ("_queue",)

    def __init__(self, queue: "Queue", delivery: Delivery) -> None:
        super().__init__(delivery)
        self._queue: Queue = queue

    def ack(self) -> None:
        """It is done, and gone."""
        self._queue.ack(self)

    def nack(self, delay: Time | None = None) -> None:
        """It failed: it comes back, by default after the back-off of the queue. delay: seconds, or
        a text as "5m"; 0: at once, at its old place. After `max_attempts` it is dead-lettered."""
        self._queue.nack(self, delay)

    def reject(self) -> None:
        """It is not wanted back: it goes to the dead-letter queue, or away if there is none."""
        self._queue.reject(self)

    def __enter__(self) -> "Job":
        if self.is_settled:
            raise SettledError(self._queue.name, self.tag)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.is_settled:
            return
        if error is None:
            self.ack()
            return
        try:
            self.nack()
        except PenstockError as second:  # the box was closed, say: then it comes back anyway
            error.add_note(f"the job could not be returned: {second}")
