"""CoreStreams: the streams of a box below its threads: by name, with retention, and who waits.

To the engine each partition is a stream of its own (`penstock.queues.stream_options` has their
names); to people they are one, a StreamState. One is found when somebody first names it. Its
options are what was declared with its first partition, by a box or a broker.

Retention is looked at by the box's ticks, each second at most, for every stream that has limits,
opened or not. What holds it back is the engine's to know: records that are not on disk yet, and
what a reader asked to keep, a query of Spark say, as long as it is heard of.

Followers wait for a head to move, any number of them; each is woken, for each reads all.

Everything is called under the lock of the box.
"""

from collections import deque
from typing import Final

from penstock.clock import Clock
from penstock.embedded.waiting import WOKEN, Waiter
from penstock.errors import UnknownQueueError
from penstock.queues.stream_options import KEPT_S, StreamOptions, base_name, partition_names
from penstock.storage.durability import DISK
from penstock.storage.engine import StorageEngine
from penstock.storage.streams import Stream

RETAIN_EVERY_S: Final = 1.0


class StreamState:
    """One stream. parts: the engine's, one for each partition. It outlives the core: when that is
    opened anew after an interrupt, the parts are others."""

    __slots__ = ("followers", "is_deleted", "name", "options", "parts")

    def __init__(self, name: str, options: StreamOptions, parts: list[Stream]) -> None:
        self.name: str = name
        self.options: StreamOptions = options
        self.parts: list[Stream] = parts
        self.followers: deque[Waiter] = deque()
        self.is_deleted: bool = False

    def check(self) -> None:
        """UnknownQueueError if it was deleted."""
        if self.is_deleted:
            raise UnknownQueueError(f"{self.name} (deleted)")

    def wake_all(self) -> None:
        """A head has moved, or there is no more to wait for."""
        followers = self.followers
        while followers:
            followers[0].wake(WOKEN)  # first, for an interrupt may come in between
            followers.popleft()


class CoreStreams:
    """See the head of this module."""

    def __init__(self, engine: StorageEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._states: dict[str, StreamState] = {}
        self._by_number: dict[int, StreamState] = {}
        self._limited: dict[str, StreamState] = {}  # those that have limits
        self._retained_at: float = clock.monotonic()
        engine.on_head = self._head_moved
        for name in self.names():
            self.find(name)

    # ---- by name -------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all streams, sorted."""
        names = {base_name(stream.name) for stream in self._engine.streams.values()}
        return sorted(name.decode("utf-8", "surrogateescape") for name in names)

    def has(self, name: str) -> bool:
        """Whether there is a stream of this name."""
        return name in self._states

    def find(self, name: str) -> StreamState | None:
        """The stream of this name; None if there is none."""
        state = self._states.get(name)
        if state is None:
            state = self._load(name.encode("utf-8", "surrogateescape"), name)
        return state

    def declare(self, name: str, options: StreamOptions) -> StreamState:
        """A new one, which is there for good once the engine's `last_lsn` is settled."""
        names = partition_names(name.encode(), options.partitions)
        arguments = options.encode()
        declared = [(one, b"" if i else arguments, 0) for i, one in enumerate(names)]
        parts = self._engine.declare_streams(declared, page_bytes=options.page_bytes)
        state = StreamState(name, options, parts)
        self._add(state)
        return state

    def delete(self, state: StreamState) -> int:
        """With all that it holds; the LSN of that."""
        lsn = self._engine.delete_streams(state.parts, DISK)
        for part in state.parts:
            self._by_number.pop(part.number, None)
        self._states.pop(state.name, None)
        self._limited.pop(state.name, None)
        state.is_deleted = True
        state.wake_all()
        return lsn

    def reopen(self, others: "CoreStreams") -> None:
        """Take on the states of a core that was abandoned, as they are now."""
        for name, state in others._states.items():
            now = self._states.get(name)
            if now is None:
                state.is_deleted = True
            else:
                state.parts, state.options = now.parts, now.options
                self._add(state)
            state.wake_all()

    def wake_all(self) -> None:
        """The box is no more."""
        for state in self._states.values():
            state.wake_all()

    def _load(self, at: bytes, name: str) -> StreamState | None:
        engine = self._engine
        first = engine.find_stream(at) or engine.find_stream(partition_names(at, 1)[0])
        if first is None:
            return None
        options = StreamOptions.decode(engine.routing.queues[first.name].arguments)
        parts = [engine.stream(one) for one in partition_names(at, options.partitions)]
        state = StreamState(name, options, parts)
        self._add(state)
        return state

    def _add(self, state: StreamState) -> None:
        self._states[state.name] = state
        if state.options.has_limits:
            self._limited[state.name] = state
        for part in state.parts:
            self._by_number[part.number] = state

    # ---- what happens to them ------------------------------------------------------------------

    def _head_moved(self, part: Stream) -> None:
        state = self._by_number.get(part.number)
        if state is not None and state.followers:
            state.wake_all()

    def tick(self) -> None:
        """Retention, when it is due."""
        now = self._clock.monotonic()
        if not self._limited or now - self._retained_at < RETAIN_EVERY_S:
            return
        self._retained_at = now
        for state in self._limited.values():
            self.retain(state)

    def retain(self, state: StreamState) -> int:
        """Apply retention to one: how many pages went."""
        options = state.options
        since_ms = self._clock.wall_ms() - KEPT_S * 1000
        return sum(
            self._engine.retain(
                part, max_age_s=options.max_age_s, max_bytes=options.max_bytes,
                max_records=options.max_records, since_ms=since_ms,
            )
            for part in state.parts
        )  # fmt: skip
