"""Streams as the broker has them: partitions, the consumers that read them, the vhost's table.

Streams are a queue type (x-queue-type=stream), as RabbitMQ's streams guide has them: appended to
and read any number of times, never consumed. Records are deleted at the oldest end only, by age,
bytes or number. Clients declare, bind, publish to, consume and delete a stream as a queue;
QueueOrStream is what the two have in common.

    publish    `append`: the partition by the routing key; one STREAM record of the log
    consume    `attach`: the arguments below, a StreamReading for the consumer
    on_head    `head_moved`: readings that have room are marked
    tick       `retain`: whole pages are deleted

What RabbitMQ refuses for streams is refused with its texts: no basic.get, no purge, no consumer
without prefetch or without acknowledgements, no limit of the whole channel, no consumer priorities.

**Arguments of a consumer:**

    x-stream-offset      "first", "last", "next"; an offset; -n: the last n records; a time (AMQP's
                         timestamp, seconds); an interval before now, "1h"; without it "next", or
                         where the reader is
    x-stream-filter      a text or several: records whose header x-stream-filter-value is one of
                         them, and with x-stream-match-unfiltered also those without that header
    x-stream-reader      the name of a reader, whose position the server keeps (ours)
    x-stream-partition   read this partition alone (ours)

They differ from RabbitMQ's in two points: "last" is the last record, not the last chunk, and a time
is met to the record. An offset holds for every partition that is read. A filter is exact; RabbitMQ
skips chunks by it and leaves the rest to the client. Invalid values are a 406; RabbitMQ 3.10 ends
the connection with an internal error for some. Other arguments are ignored.

**Readings.** Every consumer of a stream reads everything, by itself, so each has a StreamReading,
which is in the dispatch's list of work. It delivers as long as its consumer's prefetch and its
client's transport have room, a slice in each turn. It is marked again when a head moves (a turn's
records are settled), when its client acknowledges, and when its transport takes more.

A delivery never goes back to a stream, so every way to settle one makes room for another, and none
brings it back; so do basic.nack and basic.reject, as in RabbitMQ since 3.12. For a *named reader*
they differ: what is acknowledged, or rejected without requeue, is done; what is requeued, or
unacked when the channel ends, is not, and the reader's position stays at the first of these
(stream_cursor.py). Positions are logged at most once per turn and partition and force no sync, so
after a crash, records that were acknowledged may be delivered again. One consumer at a time reads a
partition under a name, because two would move one position. Several may share the partitions.

A page that cannot be read ends this consumer alone: it is cancelled, an event is reported, and the
stream goes on.

**BrokerStreamTable** has the streams of a vhost; their names are in the QueueTable too, as those of
queues. It knows the streams of the directory from the start: a stream that nobody reads costs an
object, and the engine opens its files when needed. A declare makes all partitions in one record of
the log, with the arguments in the first of them, as queues with priorities do it. A worker makes
their directories before that (`prepare`), because the syncs of 256 partitions would block
everybody. It does so for one declare at a time, so the log's own syncs never wait for more than one
directory.

Retention is checked when a partition begins a new page, and every few seconds, for age. Nothing
waits for it.

Hot: `StreamReading.deliver` runs for each record delivered.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from penstock.broker.arguments import decode_arguments, encode_arguments, of_type, shown
from penstock.broker.broker_queue import Consumer, QueueOrStream
from penstock.broker.dispatch import LOOK_MESSAGES, Dispatch, Source
from penstock.broker.refusals import access_refused, called, precondition_failed
from penstock.broker.topology import store_creator
from penstock.errors import (
    NOT_IMPLEMENTED,
    RESOURCE_ERROR,
    AMQPConnectionError,
    ChannelError,
    CorruptionError,
    DiskFullError,
    OptionError,
)
from penstock.fast_crc import BodyPieces
from penstock.message import QueuedMessage
from penstock.queues import raw_fields, stream_options
from penstock.queues.amqp_headers import FORMAT, AmqpHeaders, split_address
from penstock.queues.backing_queue import Delivery
from penstock.queues.dead_letter import StreamTarget
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.queue_set import text_of
from penstock.queues.stream_cursor import CursorPlace, Placer, StreamCursor
from penstock.queues.stream_options import (
    KEPT_S,
    STREAM,
    StreamOptions,
    age_s,
    base_name,
    partition_names,
)
from penstock.routing.exchange_types import not_counted
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK, OS
from penstock.storage.index import routing_table
from penstock.storage.pages.stream_meta import ReaderOffset
from penstock.storage.pages.streams import STREAM_FLAG, StoredStream
from penstock.storage.parts.stream_engine import StreamCreation
from penstock.storage.parts.transaction import Transaction
from penstock.storage.store.store_file import StoredBody

OFFSET: Final = "x-stream-offset"
READER: Final = "x-stream-reader"
PARTITION: Final = "x-stream-partition"

FIRST: Final = "first"
LAST: Final = "last"
NEXT: Final = "next"
WORDS: Final = (FIRST, LAST, NEXT)
FILTER: Final = "x-stream-filter"
MATCH_UNFILTERED: Final = "x-stream-match-unfiltered"
FILTER_VALUE: Final = b"x-stream-filter-value"
FILTERS_MAX: Final = 255
OFFSET_MAX: Final = (1 << 53) - 1
READER_BYTES_MAX: Final = 255
KNOWN_READER_BYTES: Final = 500  # measured: a named reader in one partition, without its name
EXPECTED: Final = (
    '"first", "last", "next", an offset, -n for the last n records, a timestamp, or an interval '
    'such as "1h"'
)


class Start:
    """Where a consumer begins: a word, or an offset (not negative), or `back` records before the
    head, or a time in us since 1970."""

    __slots__ = ("back", "offset", "time_us", "word")

    def __init__(self, word: str = "", offset: int = -1, time_us: int = 0, back: int = 0) -> None:
        self.word: str = word
        self.back: int = back
        self.offset: int = offset
        self.time_us: int = time_us

    def offset_in(self, stream: StoredStream) -> int:
        """Return the offset to begin at in this partition; it may be below the first or above the
        head. CorruptionError, OSError: the index cannot be read."""
        if self.offset >= 0:
            return self.offset
        if self.back:
            return max(stream.head_offset - self.back, stream.first_offset)
        if self.word == FIRST:
            return stream.first_offset
        if self.word == LAST:
            return max(stream.head_offset - 1, stream.first_offset)
        if self.word == NEXT:
            return stream.next_offset
        return stream.queue.find(self.time_us)


def start_of(what: str, arguments: Mapping[str, object], now_ms: int) -> Start | None:
    """Return where a consumer asks to begin; None if it does not say. what: the stream, as
    `refusals.called` has it. ChannelError 406."""
    if OFFSET not in arguments:
        return None
    given = arguments[OFFSET]
    if isinstance(given, str):
        if given in WORDS:
            return Start(given)
        seconds = age_s(given)
        if seconds is not None:
            return Start(time_us=max(now_ms - seconds * 1000, 0) * 1000)
    elif isinstance(given, datetime):
        whole = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return Start(time_us=max(int(whole.timestamp()), 0) * 1_000_000)
    elif isinstance(given, int) and not isinstance(given, bool) and abs(given) <= OFFSET_MAX:
        return Start(offset=given) if given >= 0 else Start(back=-given)
    raise invalid(OFFSET, what, given, EXPECTED)


class StreamFilter:
    """Which records a consumer takes: those with one of these values, and perhaps those without
    one."""

    __slots__ = ("_takes_unfiltered", "_values")

    def __init__(self, values: list[str], *, takes_unfiltered: bool) -> None:
        self._values: set[bytes] = {one.encode("utf-8", "surrogateescape") for one in values}
        self._takes_unfiltered: bool = takes_unfiltered

    def takes(self, meta: bytes) -> bool:
        """Return whether it takes a record with this header."""
        if FILTER_VALUE not in meta:
            return self._takes_unfiltered
        value = raw_fields.get(_CODEC.headers(meta), FILTER_VALUE)
        if value is None or value[:1] != b"S":
            return self._takes_unfiltered
        return value[LONG_STRING_FRONT_BYTES:] in self._values


def filter_of(what: str, arguments: Mapping[str, object]) -> StreamFilter | None:
    """Return what a consumer filters by; None: it takes all. ChannelError 406."""
    given = arguments.get(FILTER)
    takes_unfiltered = arguments.get(MATCH_UNFILTERED, False)
    if not isinstance(takes_unfiltered, bool):
        raise invalid(MATCH_UNFILTERED, what, takes_unfiltered, "a boolean")
    if given is None:
        return None
    values = [given] if isinstance(given, str) else given
    if isinstance(values, list) and 0 < len(values) <= FILTERS_MAX:
        texts = [one for one in values if isinstance(one, str)]
        if len(texts) == len(values):
            return StreamFilter(texts, takes_unfiltered=takes_unfiltered)
    raise invalid(FILTER, what, given, f"a text, or an array of 1 to {FILTERS_MAX} texts")


def reader_of(what: str, arguments: Mapping[str, object]) -> str:
    """Return the name of the reader, "" for none. ChannelError 406."""
    given = arguments.get(READER)
    if given is None:
        return ""
    if not isinstance(given, str) or not is_reader(given):
        raise invalid(READER, what, given, f"a text of 1 to {READER_BYTES_MAX} bytes of UTF-8")
    return given


def is_reader(name: str) -> bool:
    """Return whether a reader may have this name."""
    try:
        return 0 < len(name.encode()) <= READER_BYTES_MAX
    except UnicodeEncodeError:
        return False


def partition_of(what: str, arguments: Mapping[str, object], count: int) -> int | None:
    """Return the partition that is asked for, of `count`; None means all of them.
    ChannelError 406."""
    given = arguments.get(PARTITION)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < count:
        raise invalid(PARTITION, what, given, f"a partition from 0 to {count - 1}")
    return given


def invalid(name: str, what: str, given: object, expected: str) -> Exception:
    """Return a 406 for a consumer's argument."""
    return precondition_failed(
        f"invalid arg '{name}' for {what}: received {shown(given)}, expected {expected}"
    )


# Records that one reading delivers before others have their turn; a multiple of LOOK_MESSAGES.
READING_SLICE: Final = 1024
US_PER_S: Final = 1_000_000


class StreamReading(Source):
    """The reading of one consumer of `stream`. reader: its name, "" for none."""

    def __init__(
        self, stream: "BrokerStream", consumer: Consumer, cursor: StreamCursor, reader: str,
        wanted: StreamFilter | None,
    ) -> None:  # fmt: skip
        self.is_touched = True  # no tick has to do with it
        self.stream: BrokerStream = stream
        self.consumer: Consumer = consumer
        self.reader: str = reader
        self.cursor: StreamCursor = cursor
        self._placer: Placer = Placer(stream.name)
        self._filter: StreamFilter | None = wanted
        self._counted_bytes: int = 0

    # ---- delivery ------------------------------------------------------------------------------

    def deliver(self, dispatch: Dispatch) -> int:
        n = 0  # records that were looked at: what a filter skips takes time, too
        try:
            self.save()
            n = self._deliver_run(dispatch)
        except Exception as error:
            if dispatch.engine.failed is not None:
                raise
            self.stream.reading_failed(self, error)
        self._account()
        cursor = self.cursor
        if cursor.read_records:
            dispatch.counts.stream_records += cursor.read_records
            dispatch.counts.stream_bytes += cursor.read_bytes
            cursor.read_records = cursor.read_bytes = 0
        if self.consumer.is_cancelled and not self.consumer.unacked:
            self.stream.forget(self)
        return n

    def _deliver_run(self, dispatch: Dispatch) -> int:
        cursor = self.cursor
        consumer = self.consumer
        channel = consumer.channel
        placer = self._placer
        n = looked_at = 0
        while consumer.is_ready():
            if (
                looked_at
                and looked_at % LOOK_MESSAGES == 0
                and dispatch.is_slice_over(looked_at, READING_SLICE)
            ):
                dispatch.mark(self)
                break
            record = cursor.fetch()
            if record is None:
                break
            looked_at += 1
            offset = record.offset
            partition = cursor.partition
            if self._filter is not None and not self._filter.takes(record.meta):
                cursor.ack([cursor.tag(offset, partition)])
                cursor.drop_large()
                continue
            n += 1
            header = placer.header(record.meta, offset, partition, record.time_us, cursor.gap)
            body: bytes | None = record.payload
            size = len(record.payload)
            if not size and cursor.large is not None:
                body, size = None, cursor.large.size  # in pieces, see `open_large`
            message = QueuedMessage(offset, header, body, size, record.time_us // US_PER_S)
            tag = cursor.tag(offset, partition)
            channel.deliver(consumer, Delivery(tag, message, False, 0))
        if n:
            no_ack = n if consumer.no_ack else 0
            for counts in (self.stream.counts, dispatch.counts.messages):
                counts.delivered(n - no_ack, no_ack, 0)
        if looked_at > n and self.reader:
            dispatch.mark(self)  # its position has moved
        if consumer.is_cancelled:
            cursor.drop_chunk()
        return looked_at

    def open_large(self) -> StoredBody | None:
        return self.cursor.take_large()

    def _account(self) -> None:
        change = self.cursor.chunk_bytes - self._counted_bytes
        if change:
            self._counted_bytes += change
            self.stream.add_other(change)

    def end(self) -> None:
        """Release the chunk: the consumer is gone. What was acknowledged so far is kept."""
        self.cursor.drop_chunk()
        self._account()

    def save(self) -> None:
        """Log the position, if it is a named reader's and has moved."""
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
        self.stream.counts.ack += len(tags)

    def requeue(self, tags: list[int]) -> None:
        self.cursor.hold(tags)

    def discard(self, tags: list[int]) -> None:
        self.cursor.ack(tags)

    def release(self, tags: list[int]) -> None:
        self.cursor.hold(tags)


PARTITION_BYTES: Final = 4 << 10  # measured: one more, without records
PRIORITY: Final = "x-priority"
CHUNK_RECORDS_MIN: Final = 64  # read at once, also for a small prefetch
LONG_STRING_FRONT_BYTES: Final = 5  # its letter and its length

_CODEC: Final = AmqpHeaders()


class BrokerStream(QueueOrStream):
    """One stream of a vhost. parts: its partitions, at least one. add_other(bytes): counts RAM.
    on_failure(what, error): a reading failed. hold_age_s, hold_bytes: how much more than the limits
    allow its readers may ask to keep, None for no bound."""

    def __init__(
        self, engine: StorageEngine, vhost: str, name: str, parts: list[StoredStream],
        arguments: dict[str, object], options: StreamOptions, *,
        add_other: Callable[[int], None], on_failure: Callable[[str, Exception], None],
    ) -> None:  # fmt: skip
        self.hold_age_s: float | None = None
        self.hold_bytes: int | None = None
        self.is_touched = True  # ticks of the queues have nothing to do with it
        super().__init__(
            name, is_durable=True, is_exclusive=False, is_auto_delete=False, arguments=arguments,
            owner=None,
        )  # fmt: skip
        self.parts: list[StoredStream] = parts
        self.parts_bytes = PARTITION_BYTES * (len(parts) - 1)
        self.options: StreamOptions = options
        self.what: str = called("queue", name, vhost)
        self.add_other: Callable[[int], None] = add_other
        # Of those that are named, by reader and partition.
        self.readings: dict[tuple[str, int], StreamReading] = {}
        # Named readers and who made them, "" if that is not known, as far as they are counted;
        # on_reader(user, bytes): called with the RAM that one takes, and with what it frees.
        self._makers: dict[str, str] = {}
        self.on_reader: Callable[[str, int], None] = not_counted
        self._engine: StorageEngine = engine
        self._on_failure: Callable[[str, Exception], None] = on_failure
        self.last_partition: int = 0  # where `append` has put the last record
        self.last_offset: int = -1
        self._page_bases: list[int] = [-1] * len(parts)

    @property
    def generation(self) -> int:
        return self.parts[0].number

    def len(self) -> int:
        return sum([part.head_offset - part.first_offset for part in self.parts])

    def depth(self) -> int:
        return self.len()

    def size_bytes(self) -> int:
        """Return the bytes of all pages."""
        return sum([part.queue.bytes for part in self.parts])

    # ---- appending -----------------------------------------------------------------------------

    def partition_for(self, header: bytes) -> int:
        """Return the partition for a message with this header."""
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
        """Append a record; return its LSN. DiskFullError: nothing happened."""
        engine = self._engine
        number = self.partition_for(header)
        self.last_offset = engine.streams.append(self.parts[number], header, body, mode)
        self.last_partition = number
        self.published += 1
        return engine.log.last_lsn

    def append_large(self, header: bytes, body: BodyPieces, mode: int) -> int:
        """Append a record with a body in pieces; as `append`."""
        engine = self._engine
        number = self.partition_for(header)
        part = self.parts[number]
        self.last_offset = engine.streams.append_large(part, header, body, mode)
        self.last_partition = number
        self.published += 1
        return engine.log.last_lsn

    def begin_append(
        self, transaction: Transaction, header: bytes, body: bytes, large: BodyPieces | None = None
    ) -> None:
        """Append a record when the transaction commits; the caller counts it as published then.
        large: its body, if that is in pieces."""
        number = self.partition_for(header)
        transaction.append_stream(self.parts[number], header, body, large)

    # ---- reading -------------------------------------------------------------------------------

    def deliver(self, dispatch: object) -> int:
        """Return 0: its readings deliver."""
        return 0

    def attach(self, consumer: Consumer) -> None:
        """Add a reader; it begins where its arguments say. ChannelError 403, 406, 506."""
        arguments = consumer.arguments
        if PRIORITY in arguments:
            raise precondition_failed(f"invalid arg '{PRIORITY}' for {self.what} {of_type(STREAM)}")
        start = start_of(self.what, arguments, self._engine.clock.wall_ms())
        reader = reader_of(self.what, arguments)
        wanted = filter_of(self.what, arguments)
        only = partition_of(self.what, arguments, len(self.parts))
        numbers = list(range(len(self.parts))) if only is None else [only]
        if reader:
            self._make_way(reader, numbers)
        places = [
            CursorPlace(self.parts[number], number, self._begin(self.parts[number], start, reader))
            for number in numbers
        ]
        room = max(2 * consumer.prefetch, CHUNK_RECORDS_MIN)
        cursor = StreamCursor(places, is_named=bool(reader), chunk_records=room)
        reading = StreamReading(self, consumer, cursor, reader, wanted)
        if reader:
            for number in numbers:
                self.readings[reader, number] = reading
            reading.save()  # a new reader is known from here on: it misses nothing that comes
        consumer.source = reading
        super().attach(consumer)

    def _begin(self, part: StoredStream, start: Start | None, reader: str) -> int:
        if start is not None:
            try:
                return start.offset_in(part)
            except (CorruptionError, OSError) as error:
                raise self.unreadable(error) from error
        known = part.readers.get(reader) if reader else None
        return Start(NEXT).offset_in(part) if known is None else known.offset

    def unreadable(self, error: Exception) -> ChannelError:
        """Return a 506: pages or indexes are damaged."""
        return ChannelError(RESOURCE_ERROR, f"{self.what} could not be read: {error}")

    def check_consume(self, *, prefetch: int, no_ack: bool, is_global: bool) -> None:
        """Refuse what RabbitMQ refuses. ChannelError 406, AMQPConnectionError 540."""
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
        """Return the readings that have room, after records were settled."""
        found: list[StreamReading] = []
        for consumer in self.consumers.all():
            source = consumer.source
            if isinstance(source, StreamReading) and consumer.is_ready():
                found.append(source)
        return found

    def reading_failed(self, reading: StreamReading, error: Exception) -> None:
        """Cancel the consumer of a reading that cannot continue, and report it."""
        consumer = reading.consumer
        if consumer.is_cancelled:
            return
        self.detach(consumer)
        consumer.is_cancelled = True
        self._on_failure(self.what, error)
        consumer.channel.cancelled(consumer)

    def cancel_all(self) -> list[Consumer]:
        consumers = self.consumers.cancel_all()
        for consumer in consumers:
            consumer.source.is_deleted = True
            self._ended(consumer)
        self.readings = {}
        return consumers

    # ---- named readers -------------------------------------------------------------------------

    def _make_way(self, reader: str, numbers: list[int]) -> None:
        """Save the readings that read these partitions under the name and have ended. ChannelError
        403: one of them has not."""
        for number in numbers:
            reading = self.readings.get((reader, number))
            if reading is None:
                continue
            if not reading.consumer.is_cancelled:
                raise access_refused(f"reader '{reader}' of {self.what} in exclusive use")
            reading.save()

    def forget(self, reading: StreamReading) -> None:
        """Forget a reading whose consumer is gone and has nothing unacked."""
        for place in reading.cursor.places:
            if self.reads_as(reading, place.partition):
                del self.readings[reading.reader, place.partition]

    def reads_as(self, reading: StreamReading, partition: int) -> bool:
        """Return whether the reading decides its reader's position: no other has taken over."""
        return self.readings.get((reading.reader, partition)) is reading

    def has_reader(self, reader: str) -> bool:
        """Return whether a reader of this name is known in a partition."""
        return any(reader in part.readers for part in self.parts)

    def count_readers(self, on_reader: Callable[[str, int], None]) -> None:
        """Count the readers that there are, and those to come."""
        self.on_reader = on_reader
        creators = self._engine.routing.creators
        for reader, positions in self.known_readers().items():
            users = [text_of(creators.get(self._key(n, reader), b"")) for n in positions]
            self._count_reader(reader, next(filter(None, users), ""))

    def reader_made(self, reader: str, user: str) -> None:
        """Count a reader for the user who made it, and store that."""
        if reader not in self._makers:
            number = next((n for n, part in enumerate(self.parts) if reader in part.readers), None)
            if number is not None:
                self._count_reader(reader, user)
                store_creator(self._engine, self._key(number, reader), user)

    def _count_reader(self, reader: str, user: str) -> None:
        self._makers[reader] = user
        self.on_reader(user, self._reader_bytes(reader))

    def _key(self, partition: int, reader: str) -> bytes:
        return routing_table.reader_key(self.parts[partition].name, reader.encode())

    def reader_deleted(self, reader: str) -> None:
        """Count a reader no longer."""
        user = self._makers.pop(reader, None)
        if user is not None:
            self.on_reader(user, -self._reader_bytes(reader))

    def forget_readers(self) -> None:
        """Count no readers any more: the stream is deleted."""
        for reader in list(self._makers):
            self.reader_deleted(reader)
        self.on_reader = not_counted

    def _reader_bytes(self, reader: str) -> int:
        return (KNOWN_READER_BYTES + len(reader)) * len(self.parts)

    def set_reader(self, part: StoredStream, reader: str, offset: int) -> bool:
        """Set the reader's position: all below the offset is done. What it asked to keep stays
        kept. Returns False if the disk is full and nothing happened."""
        known = part.readers.get(reader)
        if known is None or known.offset != offset:
            kept = None if known is None else known.kept_from
            mode = DISK if known is None else OS  # a new one is to be known for good, and soon
            try:
                self._engine.streams.set_reader(part, reader, offset, mode, kept)
            except DiskFullError:
                return False
        return True

    def save_readers(self) -> None:
        """Log every reader's position."""
        for reading in dict.fromkeys(self.readings.values()):
            reading.save()

    def known_readers(self) -> dict[str, dict[int, ReaderOffset]]:
        """Return all named readers, each with its position by partition."""
        found: dict[str, dict[int, ReaderOffset]] = {}
        for number, part in enumerate(self.parts):
            for reader, at in part.readers.items():
                found.setdefault(reader, {})[number] = at
        return found

    # ---- settling (its readings do), time ------------------------------------------------------

    def ack(self, tags: list[int]) -> None:
        """Do nothing: nothing is pending in a stream itself."""

    def requeue(self, tags: list[int]) -> None:
        """Do nothing: nothing is pending in a stream itself."""

    def discard(self, tags: list[int]) -> None:
        """Do nothing: nothing is pending in a stream itself."""

    def release(self, tags: list[int]) -> None:
        """Do nothing: nothing is pending in a stream itself."""

    def has_rolled(self) -> bool:
        """Return whether a partition has begun a new page since the last call."""
        bases = [part.queue.position().page_base for part in self.parts]
        has_rolled = bases != self._page_bases
        self._page_bases = bases
        return has_rolled

    def retain(self) -> int:
        """Delete whole pages that the limits do not keep; return how many."""
        options = self.options
        if not options.has_limits:
            return 0
        since_ms = self._engine.clock.wall_ms() - KEPT_S * 1000
        n = 0
        for part in self.parts:
            n += self._engine.streams.retain(
                part, max_age_s=options.max_age_s, max_bytes=options.max_bytes,
                max_records=options.max_records, since_ms=since_ms,
                hold_age_s=self.hold_age_s, hold_bytes=self.hold_bytes,
            )  # fmt: skip
        return n


class DeadLetterStream(StreamTarget):
    """A stream as a target of dead letters."""

    def __init__(self, stream: BrokerStream) -> None:
        self._stream: BrokerStream = stream

    def append(
        self, transaction: Transaction, header: bytes, body: bytes, large: BodyPieces | None = None
    ) -> None:
        self._stream.begin_append(transaction, header, body, large)
        self._stream.published += 1

    def accept(
        self, header: bytes, body: bytes, priority: int, mode: int,
        stored: QueuedMessage | None = None,
    ) -> int:  # fmt: skip
        return self._stream.append(header, body, mode)

    def after_dead_letters(self, hops: int = 0) -> None:
        """Do nothing: readers are woken when the head moves."""


RETAIN_EVERY_S: Final = 5.0


class PreparedStream:
    """The directories of one stream that is about to be declared."""

    def __init__(self, names: list[bytes], page_bytes: int) -> None:
        self.names: list[bytes] = names
        self.page_bytes: int = page_bytes
        self.error: Exception | None = None  # why there are none
        self.steps: StreamCreation | None = None  # once its turn has come
        self._waiters: list[Callable[[], None]] = []

    def when_made(self, call: Callable[[], None]) -> None:
        """Call `call` in a later turn, when the directories are made, or have failed with `error`.
        The declare is then handled again from its beginning."""
        self._waiters.append(call)

    def notify(self) -> None:
        """Call the waiters."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()


class BrokerStreamTable:
    """The streams of one vhost. by_number: the stream of a partition, by the partition's number.
    hold_age_s, hold_bytes: bounds of what readers of each stream may ask to keep."""

    def __init__(
        self, engine: StorageEngine, vhost: str, dispatch: Dispatch, monitor: MemoryMonitor,
        on_event: Callable[[str, str], None], hold_age_s: float, hold_bytes: int,
    ) -> None:  # fmt: skip
        self._hold_age_s = hold_age_s
        self._hold_bytes = hold_bytes
        self.by_number: dict[int, BrokerStream] = {}
        self._engine = engine
        self._vhost = vhost
        self._dispatch = dispatch
        self._monitor = monitor
        self._on_event = on_event
        self._limited: dict[str, BrokerStream] = {}  # streams that have limits
        self._retained_s: float = engine.clock.monotonic()
        self._makings: dict[bytes, PreparedStream] = {}  # by name; the first of them is being made
        self._ready: PreparedStream | None = None  # made, while its waiters are called
        self.on_head: Callable[[], None] | None = None  # after a head has moved
        engine.streams.on_head = self.head_moved
        engine.be_sliced()

    def stored(self) -> list[BrokerStream]:
        """Open and return the streams of the directory, at the start."""
        routing = self._engine.routing
        firsts: dict[bytes, bytes] = {}  # name -> arguments, which the first partition has
        for queue in routing.queues.values():
            if queue.flags & STREAM_FLAG:
                name = base_name(queue.name)
                firsts[name] = firsts.get(name, b"") or queue.arguments
        return [self._opened(name, arguments) for name, arguments in firsts.items()]

    def _opened(self, name: bytes, data: bytes) -> BrokerStream:
        engine = self._engine
        queues = engine.routing.queues
        count = 0  # by the names there are: arguments may be of a later version
        while partition_names(name, count + 1)[-1] in queues:
            count += 1
        arguments: dict[str, object] = {}
        options = StreamOptions(partitions=count)
        try:
            arguments = decode_arguments(data)
            options = StreamOptions.from_arguments(arguments)
        except (OptionError, ValueError) as error:
            text = name.decode("utf-8", "replace")
            self._on_event("warning", f"stream {text!r}: its arguments are left out: {error}")
        parts = [engine.streams.get(part) for part in partition_names(name, count)]
        return self._added(name, parts, arguments, options)

    def prepare(self, name: bytes, options: StreamOptions) -> PreparedStream | None:
        """Begin to make the directories of a new stream. Returns None if they are there and
        `declare` takes them at once."""
        names = partition_names(name, options.partitions)
        if self._is_ready(names, options.page_bytes):
            return None
        making = self._makings.get(name)
        if making is None:
            making = PreparedStream(names, options.page_bytes)
            if not self._makings:
                self._begin(making)
            self._makings[name] = making
        return making

    def _is_ready(self, names: list[bytes], page_bytes: int) -> bool:
        ready = self._ready
        return ready is not None and ready.names == names and ready.page_bytes == page_bytes

    def _begin(self, making: PreparedStream) -> None:
        steps = self._engine.streams.create(
            making.names, making.page_bytes, self._made, self._not_made
        )
        making.steps = steps
        steps.start()

    def _not_made(self, error: Exception) -> None:
        next(iter(self._makings.values())).error = error
        self._made()

    def _made(self) -> None:
        # The engine may be in the middle of something: the waiters are called in the next turn.
        self._dispatch.when_settled(0, OS, self._end_first)

    def _end_first(self) -> None:
        """End the first preparation: its waiters declare, and the next one begins."""
        making = self._makings.pop(next(iter(self._makings)))
        self._ready = None if making.error else making
        try:
            making.notify()
        finally:
            self._ready = None
            if making.steps is not None and making.steps.made:
                making.steps.discard()
            self._begin_next()

    def _begin_next(self) -> None:
        first = next(iter(self._makings.values()), None)
        if first is not None and first.steps is None:
            self._begin(first)

    def declare(
        self, name: bytes, arguments: dict[str, object], options: StreamOptions
    ) -> BrokerStream:
        """Declare a new stream; it is durable once the log's `last_lsn` is settled. Unless it
        was prepared, this waits for the disk. DiskFullError: nothing happened."""
        names = partition_names(name, options.partitions)
        declared = [(part, b"", 0) for part in names]
        declared[0] = (names[0], encode_arguments(arguments), 0)
        made: list[StoredStream] | None = None
        ready = self._ready
        if ready is not None and ready.steps and self._is_ready(names, options.page_bytes):
            made = ready.steps.made or None
        parts = self._engine.streams.declare(declared, page_bytes=options.page_bytes, made=made)
        if made is not None:
            self._ready = None
            made.clear()  # declared, not to be discarded
        return self._added(name, parts, arguments, options)

    def _added(
        self, name: bytes, parts: list[StoredStream], arguments: dict[str, object],
        options: StreamOptions,
    ) -> BrokerStream:  # fmt: skip
        stream = BrokerStream(
            self._engine, self._vhost, name.decode("utf-8", "surrogateescape"), parts, arguments,
            options, add_other=self._add_other, on_failure=self._failed,
        )  # fmt: skip
        stream.hold_age_s, stream.hold_bytes = self._hold_age_s, self._hold_bytes
        for part in parts:
            self.by_number[part.number] = stream
        if options.has_limits:
            self._limited[stream.name] = stream
        return stream

    def set_options(self, stream: BrokerStream, options: StreamOptions) -> None:
        """Change the limits of a stream; the next tick applies them."""
        if options == stream.options:
            return
        stream.options = options
        self._limited.pop(stream.name, None)
        if options.has_limits:
            self._limited[stream.name] = stream
            self._retained_s = -RETAIN_EVERY_S

    def log_deleted(self, stream: BrokerStream) -> None:
        """Delete the stream from the engine; inside `one_record`."""
        for part in stream.parts:
            del self.by_number[part.number]
        self._limited.pop(stream.name, None)
        self._engine.streams.delete(stream.parts)

    def all(self) -> list[BrokerStream]:
        """Return all streams, by name."""
        return sorted(dict.fromkeys(self.by_number.values()), key=_name_of)

    # ---- what happens to them ------------------------------------------------------------------

    def head_moved(self, part: StoredStream) -> None:
        """Mark the readings that wait for records of this partition, which were settled."""
        stream = self.by_number.get(part.number)
        if stream is not None:
            for reading in stream.head_moved():
                self._dispatch.mark(reading)
        on_head = self.on_head
        if on_head is not None:
            on_head()

    def _add_other(self, change: int) -> None:
        self._monitor.other_bytes += change

    def _failed(self, what: str, error: Exception) -> None:
        self._on_event(
            "stream_failed", f"{what} could not be read: {error}; a consumer is cancelled"
        )

    def tick(self, now_s: float) -> None:
        """Delete what no limit keeps."""
        is_time = now_s - self._retained_s >= RETAIN_EVERY_S
        if is_time:
            self._retained_s = now_s
        for stream in self._limited.values():
            if stream.has_rolled() or is_time:
                stream.retain()

    def terminate(self) -> None:
        """Stop in order, right before the engine's `close`."""
        for making in self._makings.values():
            if making.steps is not None:
                making.steps.cancel()
        for stream in dict.fromkeys(self.by_number.values()):
            stream.save_readers()


def _name_of(stream: BrokerStream) -> str:
    return stream.name
