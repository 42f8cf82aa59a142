"""StreamReading: one consumer's own way through a stream, from chunk to delivery and back.

A queue gives each message to one of its consumers; of a stream every consumer reads everything, by
itself. So each has a reading of its own, and that is what the dispatch has on its list: it delivers
as long as its consumer's prefetch and its client's transport have room, a slice in each turn. It
is marked again when a head moves (a turn's records are settled), when its client acknowledges, and
when its transport takes more.

A delivery is never the queue's again. So all ways to settle one give the consumer room for another,
and none brings it back: basic.nack and basic.reject as well, as RabbitMQ has it since 3.12 (before,
it ended the connection). To a *named reader* they make a difference: what is acknowledged, or
rejected without requeue, is done with; what is requeued, or unacked when the channel ends, is not,
and the reader's position stays at the first of these (stream_cursor.py). Positions are logged at
most once per turn and partition, and force no sync: a crash may bring back what was acknowledged.

What cannot be read (a damaged page) ends this consumer alone: it is cancelled, people are told, the
stream goes on.

Hot: `deliver` runs for each record delivered.
"""

from typing import TYPE_CHECKING, Final

from penstock.broker.consumers import Consumer
from penstock.broker.roles import Source
from penstock.message import Message
from penstock.queues.backing_queue import Delivery
from penstock.queues.stream_cursor import StreamCursor
from penstock.queues.stream_headers import Placer

if TYPE_CHECKING:
    from penstock.broker.dispatch import Dispatch
    from penstock.broker.served_stream import ServedStream

READING_SLICE: Final = 1024  # records that one reading delivers before others have their turn
US_PER_S: Final = 1_000_000


class StreamReading(Source):
    """Of one consumer of `stream`. reader: its name, "" for none."""

    def __init__(
        self, stream: "ServedStream", consumer: Consumer, cursor: StreamCursor, reader: str
    ) -> None:
        self.is_touched = True  # no tick has to do with it
        self.stream: ServedStream = stream
        self.consumer: Consumer = consumer
        self.reader: str = reader
        self.cursor: StreamCursor = cursor
        self._placer: Placer = Placer(stream.name)
        self._counted_bytes: int = 0

    # ---- delivery ------------------------------------------------------------------------------

    def deliver(self, dispatch: "Dispatch") -> int:
        n = 0
        try:
            self.save()
            n = self._deliver_run(dispatch)
        except Exception as error:
            if dispatch.engine.failed is not None:
                raise
            self.stream.reading_failed(self, error)
        self._account()
        if self.consumer.is_cancelled and not self.consumer.unacked:
            self.stream.forget(self)
        return n

    def _deliver_run(self, dispatch: "Dispatch") -> int:
        cursor = self.cursor
        consumer = self.consumer
        channel = consumer.channel
        placer = self._placer
        n = 0
        while consumer.is_ready():
            if n >= READING_SLICE:
                dispatch.mark(self)
                break
            record = cursor.fetch()
            if record is None:
                break
            n += 1
            offset = record.offset
            partition = cursor.partition
            header = placer.header(record.meta, offset, partition, record.time_us, cursor.gap)
            body = record.payload
            message = Message(offset, header, body, len(body), record.time_us // US_PER_S)
            tag = cursor.tag(offset, partition)
            channel.deliver(consumer, Delivery(tag, message, False, 0))
        if n:
            self.stream.delivered += n
        if consumer.is_cancelled:
            cursor.drop_chunk()
        return n

    def _account(self) -> None:
        change = self.cursor.chunk_bytes - self._counted_bytes
        if change:
            self._counted_bytes += change
            self.stream.add_other(change)

    def end(self) -> None:
        """The consumer is no more: what was acknowledged so far is kept, the chunk is not."""
        self.cursor.drop_chunk()
        self._account()

    def save(self) -> None:
        """Have the position kept, if it is a named reader's and has moved."""
        if not self.reader:
            return
        stream = self.stream
        for place in self.cursor.moved():
            position = place.position()
            if stream.reads_as(self, place.partition) and stream.set_reader(
                place.stream, self.reader, position
            ):
                place.saved = position

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, tags: list[int]) -> None:
        self.cursor.ack(tags)
        self.stream.acked += len(tags)

    def requeue(self, tags: list[int]) -> None:
        self.cursor.hold(tags)

    def discard(self, tags: list[int]) -> None:
        self.cursor.ack(tags)

    def release(self, tags: list[int]) -> None:
        self.cursor.hold(tags)
