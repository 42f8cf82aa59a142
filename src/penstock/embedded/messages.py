"""Messages as users of the library see them: Message, and Job, a message that is to be settled.

A queue in a directory delivers `penstock.queues.backing_queue.Delivery`, a queue on a broker a
`DeliveredMessage`. A Message is made of either. Facts that few users ask for, as the headers, are
read from the delivery when they are asked for.

A Job is settled once: acknowledged (the message is deleted), returned (`nack`: it is delivered
again later, counted as an attempt) or rejected (it goes to the dead-letter queue). Nobody else gets
the message meanwhile. A job that was never settled is delivered again: by a directory when its box
is opened again, by a broker when the connection ends.

As a context manager a job settles itself:

    with q.get() as job:      # acknowledged at the end of the block; on an exception returned, with
        work(job.body)        # back-off, and after `max_attempts` dead-lettered

The job for asyncio is in `penstock.aio`.
"""

from abc import abstractmethod

from penstock.codec.properties import BasicProperties
from penstock.embedded.box_headers import BoxHeaders
from penstock.embedded.option_parsing import Time, time_ms
from penstock.embedded.sources import Call, QueueSource, Runner, SlowCase
from penstock.errors import PenstockError, SettledError
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import PART_SHIFT, Delivery
from penstock.queues.headers import Death, HeaderValue

HEADERS = BoxHeaders()


@mypyc_attr(allow_interpreted_subclasses=True)
class MessageFacts:
    """What is known of a message besides its body; abstract. `Message` says what each fact is."""

    __slots__ = ()

    @property
    @abstractmethod
    def id(self) -> int:
        """See Message."""

    @property
    @abstractmethod
    def attempts(self) -> int:
        """See Message."""

    @property
    @abstractmethod
    def headers(self) -> dict[str, HeaderValue]:
        """See Message."""

    @property
    @abstractmethod
    def priority(self) -> int:
        """See Message."""

    @property
    @abstractmethod
    def time(self) -> int:
        """See Message."""

    @property
    @abstractmethod
    def deaths(self) -> list[Death]:
        """See Message."""

    @property
    @abstractmethod
    def properties(self) -> BasicProperties:
        """See Message."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DeliveredMessage(MessageFacts):
    """A delivery of another source than a directory. tag: by which the source settles it."""

    __slots__ = ("body", "is_redelivered", "tag")

    def __init__(self, tag: int, body: bytes, is_redelivered: bool) -> None:
        self.tag: int = tag
        self.body: bytes = body
        self.is_redelivered: bool = is_redelivered


@mypyc_attr(allow_interpreted_subclasses=True)
class SpanDelivery(DeliveredMessage):
    """A delivery of a box with tracing; abstract, see `penstock.embedded.tracing`."""

    __slots__ = ()

    @abstractmethod
    def enter(self) -> None:
        """Make the span of this delivery the current one, until `leave`."""

    @abstractmethod
    def leave(self, error: BaseException | None) -> None:
        """Make what was current before current again. error: with which the work has failed."""


class DirectoryFacts(MessageFacts):
    """The facts about a delivery of a directory's queue."""

    __slots__ = ("_delivery",)

    def __init__(self, delivery: Delivery) -> None:
        self._delivery: Delivery = delivery

    @property
    def id(self) -> int:
        return self._delivery.message.id

    @property
    def attempts(self) -> int:
        return self._delivery.attempts

    @property
    def headers(self) -> dict[str, HeaderValue]:
        return HEADERS.values(self._delivery.message.header)

    @property
    def priority(self) -> int:
        delivery = self._delivery
        return HEADERS.priority(delivery.message.header) or delivery.tag >> PART_SHIFT

    @property
    def time(self) -> int:
        return self._delivery.message.time

    @property
    def deaths(self) -> list[Death]:
        return HEADERS.deaths(self._delivery.message.header)

    @property
    def properties(self) -> BasicProperties:
        message = self._delivery.message
        return HEADERS.properties(message.header, self.priority, message.time)


@mypyc_attr(allow_interpreted_subclasses=True)
class Message:
    """A message as `peek` and iteration return it; a Job is one as well.

    body: bytes. is_redelivered: whether the message may have been delivered before.
    """

    __slots__ = ("_delivery", "body", "is_redelivered")

    def __init__(self, delivery: Delivery | DeliveredMessage) -> None:
        self._delivery: Delivery | DeliveredMessage = delivery
        if isinstance(delivery, Delivery):
            body = delivery.message.body
            assert body is not None, "a delivery has its body"
            self.body: bytes = body
            self.is_redelivered: bool = delivery.is_redelivered
        else:
            self.body = delivery.body
            self.is_redelivered = delivery.is_redelivered

    def _facts(self) -> MessageFacts:
        delivery = self._delivery
        return DirectoryFacts(delivery) if isinstance(delivery, Delivery) else delivery

    @property
    def id(self) -> int:
        """The message's identity. A box never uses one twice, and the message keeps it in other
        queues. On a broker: a number made from the message id; 0 if the publisher set none."""
        return self._facts().id

    @property
    def attempts(self) -> int:
        """How often the message was delivered before and returned; 0 the first time."""
        return self._facts().attempts

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """The headers as they were put, without those that queues write themselves. Other clients
        of a broker may put values of other types, as lists."""
        return self._facts().headers

    @property
    def priority(self) -> int:
        """The priority as it was put."""
        return self._facts().priority

    @property
    def time(self) -> int:
        """When the message was put, in seconds since 1970; 0 if unknown."""
        return self._facts().time

    @property
    def deaths(self) -> list[Death]:
        """Where, why and how often the message was dead-lettered, the last first."""
        return self._facts().deaths

    @property
    def properties(self) -> BasicProperties:
        """The message's properties as AMQP writes them, for programs that share queues with other
        clients of a broker."""
        return self._facts().properties

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"<{kind} {self.id:#x} of {len(self.body)} bytes, attempts {self.attempts}>"


@mypyc_attr(allow_interpreted_subclasses=True)
class JobBase(Message):
    """What jobs for threads and for asyncio have in common.

    is_settled: whether this job was settled, by its own methods or those of its queue.
    """

    __slots__ = ("_source", "is_settled")

    def __init__(self, source: QueueSource, delivery: Delivery | DeliveredMessage) -> None:
        super().__init__(delivery)
        self._source: QueueSource = source
        self.is_settled: bool = False

    @property
    def tag(self) -> int:
        """The number by which the queue knows this delivery: in a directory the message's place in
        the queue, on a broker the delivery tag."""
        return self._delivery.tag

    def _check(self, source: QueueSource) -> None:
        """Raise SettledError if the job is settled or of another queue than `source`."""
        if self.is_settled:
            raise SettledError(source.name, self.tag)
        if source is not self._source and source.key is not self._source.key:
            owner = self._source.name
            raise SettledError(source.name, self.tag, None if owner == source.name else owner)

    def _ack_at_once(self) -> bool:
        """Acknowledge the job if that needs no full call. Returns whether it is done. SettledError
        if the job is settled already."""
        source = self._source
        if self.is_settled:
            raise SettledError(source.name, self.tag)
        found = source.ack_one(self._delivery)
        if found is True:
            self.is_settled = True
            return True
        if isinstance(found, SlowCase):
            return False
        self.is_settled = True
        raise SettledError(source.name, self.tag)


class Job(JobBase):
    """A message to be settled: see the head of this module. Errors of settling: SettledError if the
    job is settled already, its queue was deleted or the broker's connection was lost;
    BoxClosedError."""

    __slots__ = ("_driver",)

    def __init__(
        self, driver: Runner, source: QueueSource, delivery: Delivery | DeliveredMessage
    ) -> None:
        super().__init__(source, delivery)
        self._driver: Runner = driver

    def ack(self) -> None:
        """Acknowledge the job: its message is deleted. Does not wait for the disk: after kill -9
        the messages of the last few milliseconds may be delivered again, after a power failure
        those of the last second. In a transaction the job is acknowledged with the commit."""
        if not self._ack_at_once():
            self._driver.run(self._source.ack([self._delivery]))
            self.is_settled = True

    def nack(self, delay: Time | None = None) -> None:
        """Return the job: its message is delivered again, counted as an attempt. After
        `max_attempts` it is dead-lettered.

        delay: seconds, a text such as "5m" or a timedelta; None for the queue's back-off; 0 to
        return the message at once to its old place.
        """
        self._check(self._source)
        delay_ms = None if delay is None else time_ms("delay", delay)
        self._settle(self._source.nack(self._delivery, delay_ms))

    def reject(self) -> None:
        """Reject the job: its message goes to the dead-letter queue, or is dropped if the queue has
        none."""
        self._check(self._source)
        self._settle(self._source.reject(self._delivery))

    def _settle(self, call: Call[None]) -> None:
        """Run a call that settles the job; after an error, as of a full disk, it can be settled
        again."""
        self.is_settled = True
        try:
            self._driver.run(call)
        except Exception as error:
            self.is_settled = isinstance(error, SettledError)
            raise

    def __enter__(self) -> "Job":
        self._check(self._source)
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if self.is_settled:
            return
        if error is None:
            self.ack()
            return
        try:
            self.nack()
        except PenstockError as second:  # as after closing the box, which returns the job anyway
            error.add_note(f"the job could not be returned: {second}")


class TracedJob(Job):
    """A job of a box with tracing: what its `with` block does is part of its span."""

    __slots__ = ()

    def __enter__(self) -> "Job":
        super().__enter__()
        delivery = self._delivery
        assert isinstance(delivery, SpanDelivery), "a traced source gave it"
        delivery.enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        delivery = self._delivery
        assert isinstance(delivery, SpanDelivery), "a traced source gave it"
        delivery.leave(error)
        super().__exit__(kind, error, at)


def new_traced_job(
    driver: Runner, source: QueueSource, delivery: Delivery | DeliveredMessage
) -> Job:
    """Return a TracedJob; see `new_job`."""
    return TracedJob(driver, source, delivery)


def new_job(driver: Runner, source: QueueSource, delivery: Delivery | DeliveredMessage) -> Job:
    """Return a Job. `Queue.get` calls this for each message, for calling a compiled function costs
    less than calling a compiled class."""
    return Job(driver, source, delivery)
