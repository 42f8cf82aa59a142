"""The streams of a vhost: opened, declared, deleted; woken by heads; retention.

The streams of the directory are known from the start: a stream that nobody reads costs an object,
and the engine opens its files when needed. A declare makes all partitions in one record of the log,
with the arguments in the first of them, as queues with priorities do it. A worker makes their
directories before that (`prepare`), because the syncs of 256 partitions would block everybody. It
does so for one declare at a time, so the log's own syncs never wait for more than one directory.

Retention is checked when a partition begins a new page, and every few seconds, for age. Nothing
waits for it.

Their names are in the QueueTable, as those of queues.
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.arguments import decode_arguments, encode_arguments
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.dispatch import Dispatch
from penstock.errors import OptionError
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.stream_options import StreamOptions, base_name, partition_names
from penstock.storage.durability import OS
from penstock.storage.engine import StorageEngine
from penstock.storage.stream_making import StreamMaking
from penstock.storage.streams import STREAM_FLAG, Stream

RETAIN_EVERY_S: Final = 5.0


class PreparedStream:
    """The directories of one stream that is about to be declared."""

    def __init__(self, names: list[bytes], page_bytes: int) -> None:
        self.names: list[bytes] = names
        self.page_bytes: int = page_bytes
        self.error: Exception | None = None  # why there are none
        self.steps: StreamMaking | None = None  # once its turn has come
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


class StreamTable:
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
        engine.on_head = self.head_moved

    def stored(self) -> list[BrokerStream]:
        """Open and return the streams of the directory, at the start."""
        routing = self._engine.state.routing
        firsts: dict[bytes, bytes] = {}  # name -> arguments, which the first partition has
        for queue in routing.queues.values():
            if queue.flags & STREAM_FLAG:
                name = base_name(queue.name)
                firsts[name] = firsts.get(name, b"") or queue.arguments
        return [self._opened(name, arguments) for name, arguments in firsts.items()]

    def _opened(self, name: bytes, data: bytes) -> BrokerStream:
        engine = self._engine
        queues = engine.state.routing.queues
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
        parts = [engine.stream(part) for part in partition_names(name, count)]
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
        steps = StreamMaking(
            self._engine, making.names, making.page_bytes, self._made, self._not_made
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
        """Declare a new stream; it is durable once the engine's `last_lsn` is settled. Unless it
        was prepared, this waits for the disk. DiskFullError: nothing happened."""
        names = partition_names(name, options.partitions)
        declared = [(part, b"", 0) for part in names]
        declared[0] = (names[0], encode_arguments(arguments), 0)
        made: list[Stream] | None = None
        ready = self._ready
        if ready is not None and ready.steps and self._is_ready(names, options.page_bytes):
            made = ready.steps.made or None
        parts = self._engine.declare_streams(declared, page_bytes=options.page_bytes, made=made)
        if made is not None:
            self._ready = None
            made.clear()  # declared, not to be discarded
        return self._added(name, parts, arguments, options)

    def _added(
        self, name: bytes, parts: list[Stream], arguments: dict[str, object],
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

    def log_deleted(self, stream: BrokerStream) -> None:
        """Delete the stream from the engine; inside `one_record`."""
        for part in stream.parts:
            del self.by_number[part.number]
        self._limited.pop(stream.name, None)
        self._engine.delete_streams(stream.parts)

    def all(self) -> list[BrokerStream]:
        """Return all streams, by name."""
        return sorted(dict.fromkeys(self.by_number.values()), key=_name_of)

    # ---- what happens to them ------------------------------------------------------------------

    def head_moved(self, part: Stream) -> None:
        """Mark the readings that wait for records of this partition, which were settled."""
        stream = self.by_number.get(part.number)
        if stream is not None:
            for reading in stream.head_moved():
                self._dispatch.mark(reading)

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
