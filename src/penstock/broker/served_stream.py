"""ServedStream: a stream as the broker has it: its partitions, and who reads them.

Streams are what RabbitMQ's streams guide says: a queue type (x-queue-type=stream) that is appended
to and read, any number of times, never consumed. Records go away from its oldest end only, by age,
bytes or number. To clients it is a queue: it is declared, bound, published to, consumed and deleted
as one, and `Served` is what the two have in common.

    publish    `append`: the partition by the routing key; one STREAM record of the log
    consume    `attach`: the arguments (stream_arguments.py), a StreamReading for the consumer
    on_head    `head_moved`: readers that have room are marked
    tick       `retain`: whole pages go (stream_table.py calls it)

What RabbitMQ refuses for streams is refused with its texts: no basic.get, no purge, no consumer
without prefetch or without acknowledgements, no limit of the whole channel, no consumer priorities.

Named readers are ours (x-stream-reader). One consumer at a time reads a partition under a name: two
would move one position against each other. Several may share the partitions.

Not here: which streams there are (stream_table.py), the bytes (penstock.storage).
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.arguments import of_type
from penstock.broker.consumers import Consumer
from penstock.broker.refusals import access_refused, called, precondition_failed
from penstock.broker.served_queue import Served
from penstock.broker.stream_arguments import NEXT, Start, partition_of, reader_of, start_of
from penstock.broker.stream_reading import StreamReading
from penstock.errors import (
    NOT_IMPLEMENTED,
    RESOURCE_ERROR,
    AMQPConnectionError,
    ChannelError,
    CorruptionError,
    DiskFullError,
)
from penstock.queues import stream_options
from penstock.queues.amqp_headers import FORMAT, AmqpHeaders, split_address
from penstock.queues.dead_letter import StreamTaker
from penstock.queues.stream_cursor import Place, StreamCursor
from penstock.queues.stream_options import KEPT_S, STREAM, StreamOptions
from penstock.storage.durability import DISK, OS
from penstock.storage.engine import StorageEngine
from penstock.storage.streams import ReaderOffset, Stream
from penstock.storage.transaction import Appended, Transaction

PARTITION_BYTES: Final = 4 << 10  # measured: one more, without records
PRIORITY: Final = "x-priority"
CHUNK_RECORDS_MIN: Final = 64  # read at once, also for a small prefetch

_CODEC: Final = AmqpHeaders()


class ServedStream(Served):
    """One stream of a vhost. parts: its partitions, one at least. add_other(bytes): so much more
    is in RAM. on_failure(what, error): a reading could not read on. hold_age_s, hold_bytes: how
    much more than the limits keep its readers may ask to keep, None for no bound."""

    def __init__(
        self, engine: StorageEngine, vhost: str, name: str, parts: list[Stream],
        arguments: dict[str, object], options: StreamOptions, *,
        add_other: Callable[[int], None], on_failure: Callable[[str, Exception], None],
    ) -> None:  # fmt: skip
        self.hold_age_s: float | None = None
        self.hold_bytes: int | None = None
        super().__init__(
            name, is_durable=True, is_exclusive=False, is_auto_delete=False, arguments=arguments,
            owner=None,
        )  # fmt: skip
        self.parts: list[Stream] = parts
        self.parts_bytes = PARTITION_BYTES * (len(parts) - 1)
        self.options: StreamOptions = options
        self.what: str = called("queue", name, vhost)
        self.add_other: Callable[[int], None] = add_other
        # Of those that are named, by reader and partition.
        self.readings: dict[tuple[str, int], StreamReading] = {}
        self._engine: StorageEngine = engine
        self._on_failure: Callable[[str, Exception], None] = on_failure
        self.last_partition: int = 0
        self.last_offset: int = -1
        self.taker: StreamTaker = DeadLetterStream(self)
        self._page_bases: list[int] = [-1] * len(parts)

    def len(self) -> int:
        return sum([part.head_offset - part.first_offset for part in self.parts])

    def size_bytes(self) -> int:
        """Of all pages."""
        return sum([part.queue.bytes for part in self.parts])

    # ---- appending -----------------------------------------------------------------------------

    def partition_for(self, header: bytes) -> int:
        """The partition that a message with this header belongs into."""
        count = len(self.parts)
        if count == 1:
            return 0
        if header and header[0] == FORMAT:
            at = 2 + header[1]
            key = header[at + 1 : at + 1 + header[at]]
        else:
            key = split_address(_CODEC.parts(header, self.name)[0])[1]
        return stream_options.partition_of(key, count)

    def append(self, header: bytes, body: bytes, mode: int) -> int:
        """A record more; its LSN. DiskFullError: nothing happened."""
        engine = self._engine
        number = self.partition_for(header)
        self.last_offset = engine.append_stream(self.parts[number], header, body, mode)
        self.last_partition = number
        self.published += 1
        return engine.last_lsn

    def begin_append(self, transaction: Transaction, header: bytes, body: bytes) -> "StreamAppend":
        """A record more when the transaction commits; the caller then calls its `done`."""
        number = self.partition_for(header)
        return StreamAppend(
            self, number, transaction.append_stream(self.parts[number], header, body)
        )

    @property
    def last_place(self) -> tuple[int, int]:
        """(partition, offset) of the last record appended here."""
        return self.last_partition, self.last_offset

    # ---- reading -------------------------------------------------------------------------------

    def deliver(self, dispatch: object) -> int:
        """Nothing: its readings deliver."""
        return 0

    def attach(self, consumer: Consumer) -> None:
        """One reader more; it begins where its arguments say. ChannelError 403, 406, 506."""
        arguments = consumer.arguments
        if PRIORITY in arguments:
            raise precondition_failed(f"invalid arg '{PRIORITY}' for {self.what} {of_type(STREAM)}")
        start = start_of(self.what, arguments, self._engine.clock.wall_ms())
        reader = reader_of(self.what, arguments)
        only = partition_of(self.what, arguments, len(self.parts))
        numbers = list(range(len(self.parts))) if only is None else [only]
        if reader:
            self._make_way(reader, numbers)
        places = [
            Place(self.parts[number], number, self._begin(self.parts[number], start, reader))
            for number in numbers
        ]
        room = max(2 * consumer.prefetch, CHUNK_RECORDS_MIN)
        cursor = StreamCursor(places, is_named=bool(reader), chunk_records=room)
        reading = StreamReading(self, consumer, cursor, reader)
        if reader:
            for number in numbers:
                self.readings[reader, number] = reading
            reading.save()  # a new reader is known from here on: it misses nothing that comes
        consumer.source = reading
        super().attach(consumer)

    def _begin(self, part: Stream, start: Start | None, reader: str) -> int:
        if start is not None:
            try:
                return start.offset_in(part)
            except (CorruptionError, OSError) as error:
                raise self.unreadable(error) from error
        known = part.readers.get(reader) if reader else None
        return Start(NEXT).offset_in(part) if known is None else known.offset

    def unreadable(self, error: Exception) -> ChannelError:
        """506: pages or indexes are damaged."""
        return ChannelError(RESOURCE_ERROR, f"{self.what} could not be read: {error}")

    def check_consume(self, *, prefetch: int, no_ack: bool, is_global: bool) -> None:
        """What RabbitMQ refuses. ChannelError 406, AMQPConnectionError 540."""
        if not prefetch:
            raise precondition_failed(f"consumer prefetch count is not set for '{self.what}'")
        if no_ack:
            text = f"automatic acknowledgement not supported by stream queues {self.what}"
            raise AMQPConnectionError(NOT_IMPLEMENTED, text)
        if is_global:
            text = f"{self.what} does not support global qos"
            raise AMQPConnectionError(NOT_IMPLEMENTED, text)

    def detach(self, consumer: Consumer) -> None:
        super().detach(consumer)
        self._ended(consumer)

    def _ended(self, consumer: Consumer) -> None:
        source = consumer.source
        if isinstance(source, StreamReading):
            source.end()

    def head_moved(self) -> list[StreamReading]:
        """Records were settled: the readings that have room for some."""
        found: list[StreamReading] = []
        for consumer in self.consumers.all():
            source = consumer.source
            if isinstance(source, StreamReading) and consumer.is_ready():
                found.append(source)
        return found

    def reading_failed(self, reading: StreamReading, error: Exception) -> None:
        """It cannot be read on: its consumer is no more."""
        consumer = reading.consumer
        if consumer.is_cancelled:
            return
        self.detach(consumer)
        consumer.is_cancelled = True
        self._on_failure(self.what, error)
        consumer.channel.cancelled(consumer)

    def cancel_all(self) -> None:
        """The stream is gone: its consumers are told."""
        consumers = self.consumers.all()
        self.consumers.cancel_all()
        for consumer in consumers:
            consumer.source.is_deleted = True
            self._ended(consumer)
        self.readings = {}

    # ---- named readers -------------------------------------------------------------------------

    def _make_way(self, reader: str, numbers: list[int]) -> None:
        """These partitions are to be read under the name. ChannelError 403: one of them is."""
        for number in numbers:
            reading = self.readings.get((reader, number))
            if reading is None:
                continue
            if not reading.consumer.is_cancelled:
                raise access_refused(f"reader '{reader}' of {self.what} in exclusive use")
            reading.save()

    def forget(self, reading: StreamReading) -> None:
        """Its consumer is no more, and nothing that it delivered is unacked."""
        for place in reading.cursor.places:
            if self.reads_as(reading, place.partition):
                del self.readings[reading.reader, place.partition]

    def reads_as(self, reading: StreamReading, partition: int) -> bool:
        """Whether this one's position is its reader's: no other has taken over."""
        return self.readings.get((reading.reader, partition)) is reading

    def set_reader(self, part: Stream, reader: str, offset: int) -> bool:
        """The reader has done with all below the offset; what it asked to keep stays kept. False:
        the disk is full, and nothing happened."""
        known = part.readers.get(reader)
        if known is None or known.offset != offset:
            kept = None if known is None else known.kept_from
            mode = DISK if known is None else OS  # a new one is to be known for good, and soon
            try:
                self._engine.set_reader(part, reader, offset, mode, kept)
            except DiskFullError:
                return False
        return True

    def save_readers(self) -> None:
        """Have every position kept."""
        for reading in dict.fromkeys(self.readings.values()):
            reading.save()

    def known_readers(self) -> dict[str, dict[int, ReaderOffset]]:
        """All named readers, each with its position by partition."""
        found: dict[str, dict[int, ReaderOffset]] = {}
        for number, part in enumerate(self.parts):
            for reader, at in part.readers.items():
                found.setdefault(reader, {})[number] = at
        return found

    # ---- settling (its readings do), time ------------------------------------------------------

    def ack(self, tags: list[int]) -> None:
        """Nothing is pending in a stream itself."""

    def requeue(self, tags: list[int]) -> None:
        """Nothing is pending in a stream itself."""

    def discard(self, tags: list[int]) -> None:
        """Nothing is pending in a stream itself."""

    def release(self, tags: list[int]) -> None:
        """Nothing is pending in a stream itself."""

    def has_rolled(self) -> bool:
        """Whether a partition has begun a new page since this was asked last."""
        bases = [part.queue.position().page_base for part in self.parts]
        has_rolled = bases != self._page_bases
        self._page_bases = bases
        return has_rolled

    def retain(self) -> int:
        """Take away what the limits do not keep, whole pages; how many went."""
        options = self.options
        if not options.has_limits:
            return 0
        since_ms = self._engine.clock.wall_ms() - KEPT_S * 1000
        n = 0
        for part in self.parts:
            n += self._engine.retain(
                part, max_age_s=options.max_age_s, max_bytes=options.max_bytes,
                max_records=options.max_records, since_ms=since_ms,
                hold_age_s=self.hold_age_s, hold_bytes=self.hold_bytes,
            )  # fmt: skip
        return n


class StreamAppend:
    """One record for a stream in a transaction."""

    __slots__ = ("_appended", "_partition", "_stream")

    def __init__(self, stream: ServedStream, partition: int, appended: Appended) -> None:
        self._stream: ServedStream = stream
        self._partition: int = partition
        self._appended: Appended = appended

    def done(self) -> tuple[int, int]:
        """It is committed; (partition, offset)."""
        stream = self._stream
        stream.published += 1
        stream.last_partition = self._partition
        stream.last_offset = self._appended.offset
        return self._partition, self._appended.offset


class DeadLetterStream(StreamTaker):
    """A stream as a target of dead letters."""

    def __init__(self, stream: ServedStream) -> None:
        self._stream: ServedStream = stream

    def enter(self, transaction: Transaction, header: bytes, body: bytes) -> None:
        self._stream.begin_append(transaction, header, body)
        self._stream.published += 1

    def accept(self, header: bytes, body: bytes, priority: int, mode: int) -> int:
        return self._stream.append(header, body, mode)

    def after_dead_letters(self, hops: int = 0) -> None:
        """Readers are woken when the head moves."""
