"""RemoteStream: what the methods of a stream on a broker do, for threads and for asyncio.

    open       box.queue says whether it is there; queue.declare with x-queue-type=stream makes it
    append     basic.publish on a channel that box.append_to has given to the stream: the routing
               key is the record's key; returns with the confirms; box.appended returns the offsets
    feed       a channel with a consumer of one partition (x-stream-offset), with credit for about
               a MiB; what was taken is acknowledged, for more credit
    others     box.stream_info, find_stream_offset, set_stream_reader, retain_stream ...

In a transaction records are published on its own channel, which box.append_to gives to the stream
meanwhile.

The thread that reads the connection fills a feed. When the connection is lost, reading raises a
ConnectionLostError. Reading in order, gaps and limits are in penstock.embedded.stream_reading.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from penstock.client.connection import ClientChannel, Received, settle
from penstock.client.driver import BoxLink, RemoteDriver, Wait, answer
from penstock.client.publish_window import Window, batches
from penstock.codec.spec import BasicQos, QueueDeclare
from penstock.embedded import option_parsing
from penstock.embedded.option_parsing import check_name, mode_of
from penstock.embedded.sources import Call, Feed, PartitionInfo, StreamInfo, StreamSource
from penstock.embedded.stream_record import NewRecord, StreamRecord, meta_of
from penstock.errors import (
    NOT_FOUND,
    AMQPError,
    ChannelError,
    ConnectionLostError,
    OptionError,
    PenstockError,
    UnknownQueueError,
)
from penstock.queues.stream_options import QUEUE_TYPE, STREAM, StreamOptions

CREDIT_BYTES: Final = 1 << 20
CREDIT_MIN: Final = 4
CREDIT_MAX: Final = 500
RECORD_BYTES: Final = 16 << 10  # where nothing is known of a stream's records


def open_stream(
    driver: RemoteDriver, name: str, given: Mapping[str, object]
) -> Call["RemoteStream"]:
    """Open the stream of this name, made if it is missing. OptionError."""
    check_name(name)
    found = yield from driver.operate("box.queue", {"name": name})
    if found["exists"]:
        if not is_stream(found["arguments"]):
            raise OptionError("name", name, "a name that no queue has")
        options = StreamOptions.from_arguments(found["arguments"])
        option_parsing.check_same(given, options)
        return RemoteStream(driver, name, options)
    options = option_parsing.stream_options(given)
    link = yield from driver.linked()
    channel = link.take_caller()
    method = QueueDeclare(queue=name, durable=True, arguments=options.arguments())
    yield from answer(channel.ask(method))
    link.give_caller(channel)
    return RemoteStream(driver, name, options)


def is_stream(arguments: Mapping[str, object]) -> bool:
    """Return whether a queue with these arguments is a stream."""
    return arguments.get(QUEUE_TYPE) == STREAM


class RemoteStream(StreamSource):
    """See the head of this module. Errors besides those of every stream: ConnectionLostError (the
    call may or may not have taken effect), UnreachableError, AMQPError with the broker's words."""

    def __init__(self, driver: RemoteDriver, name: str, options: StreamOptions) -> None:
        self.name: str = name
        self.options: StreamOptions = options
        self._driver = driver
        self._is_deleted = False
        self._record_bytes: dict[int, int] = {}  # on average, by partition, when last asked

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def _operate(self, op: str, **arguments: object) -> Call[Any]:
        self.check()
        try:
            return (yield from self._driver.operate(op, {"queue": self.name, **arguments}))
        except ChannelError as error:
            raise self.error_of(error) from None

    def check(self) -> None:
        """Raise BoxClosedError, or UnknownQueueError if the stream was deleted here."""
        self._driver.check()
        if self._is_deleted:
            raise UnknownQueueError(f"{self.name} (deleted)")

    def error_of(self, error: Exception) -> Exception:
        """Return what the library raises for an error of the stream's channels. BoxClosedError."""
        self._driver.check()
        if isinstance(error, AMQPError) and error.code == NOT_FOUND:
            return UnknownQueueError(f"{self.name} (deleted)")
        return error

    # ---- looking -------------------------------------------------------------------------------

    def info(self, reader: str = "") -> Call[StreamInfo]:
        self.check()
        asked: dict[str, object] = {"name": self.name, "reader": reader}
        try:
            found = yield from self._driver.operate("box.stream_info", asked)
        except ChannelError as error:
            raise self.error_of(error) from None
        infos = [PartitionInfo(i, *values) for i, values in enumerate(found["partitions"])]
        for info in infos:
            if info.records:
                self._record_bytes[info.partition] = info.bytes // info.records
        offsets = {int(partition): at for partition, at in found["offsets"].items()}
        return StreamInfo(infos, found["readers"], offsets)

    def find(self, partition: int, time_us: int) -> Call[int]:
        asked: dict[str, object] = {"partition": partition, "time_us": max(time_us, 0)}
        return int((yield from self._operate("find_stream_offset", **asked)))

    # ---- appending -----------------------------------------------------------------------------

    def append(self, news: list[NewRecord], durability: object) -> Call[list[int]]:
        if durability is not None:
            mode_of("durability", durability)
        self.check()
        transaction = self._driver.transaction()
        if transaction is not None:
            yield from self._in_transaction(transaction.channel, news)
            return [-1] * len(news)
        return (yield from self._append(news))

    def _append(self, news: list[NewRecord]) -> Call[list[int]]:
        driver = self._driver
        link = yield from driver.linked()
        while (unblocked := link.unblocked()) is not None:
            yield Wait(unblocked)
            link = yield from driver.linked()
        channel, given = link.appender(self.name)
        try:
            yield from answer(given)
            offsets: list[int] = []
            window = Window[Future[object]]()
            for start, end, size_bytes in batches([len(new.body) for new in news]):
                while not window.has_room(end - start, size_bytes):
                    offsets += yield from self._appended(window)
                messages = [(key_of(new), new.props, new.body) for new in news[start:end]]
                with link.connection.lock:  # so that the offsets are of these records
                    published = channel.publish_many("", messages)
                    noted = channel.call("box.appended", {"n": len(messages)})
                window.add(published, size_bytes, noted)
            while window:
                offsets += yield from self._appended(window)
        except (ConnectionLostError, AMQPError) as error:
            link.forget_appender(self.name)
            raise self.error_of(error) from None
        return offsets

    def _appended(self, window: Window[Future[object]]) -> Call[list[int]]:
        """Wait for the oldest batch under way and return its offsets."""
        published, noted = window.take_oldest()
        yield from answer(published.future)
        if published.refused:
            raise PenstockError(f"stream {self.name!r}: the broker refused a record")
        runs: Any = yield from answer(noted)
        return [offset for _, first, count in runs for offset in range(first, first + count)]

    def _in_transaction(self, channel: ClientChannel, news: list[NewRecord]) -> Call[None]:
        try:
            yield from answer(channel.call("box.append_to", {"name": self.name}))
            for new in news:
                publish(channel, new)
            yield from answer(channel.call("box.append_to", {"name": None}))
        except ChannelError as error:
            raise self.error_of(error) from None

    # ---- reading -------------------------------------------------------------------------------

    def feed(self, partition: int, offset: int) -> "RemoteFeed":
        credit = CREDIT_BYTES // max(self._record_bytes.get(partition, RECORD_BYTES), 1)
        credit = min(max(credit, CREDIT_MIN), CREDIT_MAX)
        return RemoteFeed(self, self._driver, partition, offset, credit)

    def wait(self, feeds: Sequence[Feed], deadline: float | None) -> Call[None]:
        self.check()
        bell: Future[None] = Future()
        for feed in feeds:
            assert isinstance(feed, RemoteFeed)
            feed.ring_when_ready(bell)
        yield Wait(bell, deadline)

    # ---- readers and the whole -----------------------------------------------------------------

    def commit(self, reader: str, offsets: dict[int, int], *, is_safe: bool) -> Call[None]:
        if not offsets:  # make the earlier ones safe
            yield from self.info()
            yield from self._driver.operate("box.sync", {})
            return
        given = {str(partition): offset for partition, offset in offsets.items()}
        yield from self._operate("set_stream_reader", reader=reader, offsets=given, wait=is_safe)

    def commit_soon(self, reader: str, offsets: dict[int, int]) -> None:
        link = self._driver.link_now()
        if link is not None and not self._is_deleted:
            given = {str(partition): offset for partition, offset in offsets.items()}
            arguments: dict[str, object] = {
                "queue": self.name, "reader": reader, "offsets": given,
            }  # fmt: skip
            try:
                channel = link.take_caller()
                sent = channel.call("set_stream_reader", arguments)
                sent.add_done_callback(lambda _: link.give_caller(channel))
            except PenstockError:
                pass  # the connection was lost: the records are read again

    def delete_reader(self, reader: str) -> Call[None]:
        yield from self._operate("delete_stream_reader", reader=reader)

    def retain(self) -> Call[int]:
        found = yield from self._operate("retain_stream")
        return int(found["pages"])

    def delete(self) -> Call[None]:
        self.check()
        try:
            yield from self._driver.operate("box.delete", {"name": self.name})
        except ChannelError as error:
            raise self.error_of(error) from None
        self._is_deleted = True


def publish(channel: ClientChannel, new: NewRecord) -> "Future[bool] | None":
    """Publish a record on a channel that was given to its stream."""
    return channel.publish("", key_of(new), new.body, new.props)


def key_of(new: NewRecord) -> str:
    """Return the routing key that a record is published with."""
    return new.key.decode("utf-8", "surrogateescape")


class RemoteFeed(Feed):
    """A consumer of one partition. The thread that reads the connection adds its messages."""

    def __init__(
        self, stream: RemoteStream, driver: RemoteDriver, partition: int, offset: int, credit: int
    ) -> None:
        self._stream = stream
        self._driver = driver
        self._partition = partition
        self._offset = offset
        self._credit = credit
        self._channel: ClientChannel | None = None
        self._lock = threading.Lock()
        self._messages: deque[Received] = deque()
        self._error: Exception | None = None
        self._bell: Future[None] | None = None

    def chunk(self) -> Call[list[StreamRecord]]:
        stream = self._stream
        stream.check()
        try:
            if self._channel is None:
                self._channel = yield from self._begin()
            with self._lock:
                messages, self._messages = self._messages, deque()
                error = self._error
            if messages:
                self._channel.ack(messages[-1].delivery_tag, multiple=True)
            elif error is not None:
                raise error
        except (ConnectionLostError, AMQPError) as error:
            raise stream.error_of(error) from None
        return [self._record(message) for message in messages]

    def _begin(self) -> Call[ClientChannel]:
        link: BoxLink = yield from self._driver.linked()
        channel = link.connection.channel()
        try:
            yield from answer(channel.ask(BasicQos(prefetch_count=self._credit)))
            arguments: dict[str, object] = {
                "x-stream-offset": self._offset,
                "x-stream-partition": self._partition,
            }
            _, begun = channel.consume(
                self._stream.name, self._received, self._ended, arguments=arguments
            )
            yield from answer(begun)
        except BaseException:
            channel.close()
            raise
        return channel

    def _record(self, message: Received) -> StreamRecord:
        headers = message.headers
        meta = meta_of(
            message.exchange.encode("utf-8", "surrogateescape"),
            message.routing_key.encode("utf-8", "surrogateescape"),
            message.header,
        )
        offset, time_us = headers.get("x-stream-offset"), headers.get("x-stream-timestamp")
        assert isinstance(offset, int), "a record of a stream has an offset"
        assert isinstance(time_us, int), "and a time"
        return StreamRecord(message.body, offset, self._partition, time_us, meta)

    def ring_when_ready(self, bell: "Future[None]") -> None:
        """Complete this future when a message or an error has arrived, or now if one has."""
        with self._lock:
            self._bell = bell
            is_now = bool(self._messages) or self._error is not None
        if is_now:
            settle(bell, None)

    def _received(self, message: Received) -> None:
        with self._lock:
            self._messages.append(message)
            bell, self._bell = self._bell, None
        if bell is not None:
            settle(bell, None)

    def _ended(self, error: Exception) -> None:
        with self._lock:
            self._error = error
            bell, self._bell = self._bell, None
        if bell is not None:
            settle(bell, None)

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
