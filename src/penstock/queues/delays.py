"""Delays: messages that must not be delivered before a given moment, any number, in bounded RAM.

This is a hashed and hierarchical timing wheel with queues as slots. Each *bucket* is a BackingQueue
of its own that holds what is due within one second, one minute or one hour; it is declared when the
first message comes and deleted when the last has gone. So a delayed message is on disk like any
other and pages like any other, and a million of them need no timers.

    name of a bucket: the queue's name | NUL | "d" | level, s m or h | number, decimal
    number: the due time in ms since 1970, divided by 1000, 60,000 or 3,600,000

A message due within a minute goes to a second's bucket, within an hour to a minute's, else to an
hour's. Shortly before an hour begins its bucket is distributed to minutes, and a minute's to
seconds, each time by a MOVE: one record takes the message out here and appends it there. A message
that becomes due moves into the queue in the same way. So no crash loses or doubles a message on its
way; after a restart the buckets are found by their names and continue.

While a message waits, the expiry of its entry is its due time, which is in the row, so nothing is
read to find the next one. Its own expiry is in its header meanwhile (headers.py).

A message never moves into the queue before its due time by the wall clock. Within the current
second, messages are delivered to the ms and in the order of their due times, as far as HEAP_MAX of
them are known at a time; overdue messages (a busy owner, a restart) follow in slices: SLICE of them
at a time, and for SLICE_S, because each may be read from disk and paged out again.

Memory: a second's bucket may hold a fixed part of the queue's memory, and at most 63 exist; minutes
and hours are lazy and keep nothing in RAM.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from penstock.clock import Clock
from penstock.errors import CorruptionError
from penstock.queues.backing_queue import BackingQueue, Delivery
from penstock.queues.headers import HeaderCodec
from penstock.storage.files.durability import OS

SECOND: Final = 0
MINUTE: Final = 1
HOUR: Final = 2
SPAN_MS: Final = (1000, 60_000, 3_600_000)
LEAD_MS: Final = (0, 2_000, 60_000)  # how long before it begins a bucket is distributed
LETTERS: Final = b"smh"
MARK: Final = b"\0d"

SLICE: Final = 256  # messages that one call may move
SLICE_S: Final = 0.003  # after which it ends
LOOK_MESSAGES: Final = 16  # between two looks at the clock
HEAP_MAX: Final = 1024  # messages of the current second that are ordered together
MEMORY_BYTES: Final = 16 << 20  # of a queue that has no limit of its own
SHARE: Final = 128  # a second's bucket may hold one part in so many of the queue's memory
SHARE_BYTES_MIN: Final = 32 << 10

# Moves a pending message of a bucket into the queue: (bucket's part, message, header, expiry_ms).
Arrive = Callable[[BackingQueue, Delivery, bytes, int], None]


class Bucket:
    """The messages due in one second, minute or hour. heap: (due, tag) of messages fetched from the
    part, pending there. pins: planned publishes that are still to come. stuck: pending messages
    that cannot be read."""

    __slots__ = ("acts_ms", "end_ms", "heap", "level", "name", "number", "part", "pins", "stuck")

    def __init__(self, name: bytes, level: int, number: int, part: BackingQueue) -> None:
        self.name: bytes = name
        self.level: int = level
        self.number: int = number
        self.part: BackingQueue = part
        self.acts_ms: int = number * SPAN_MS[level] - LEAD_MS[level]
        self.end_ms: int = (number + 1) * SPAN_MS[level]
        self.heap: list[tuple[int, int]] = []
        self.pins: int = 0
        self.stuck: int = 0


class Delays:
    """The wheel of one queue. open_part(name, is_durable): returns the BackingQueue of a bucket,
    declared or recovered. close_part(part): called before a part is deleted or terminated.
    on_event(kind, text): corruption."""

    def __init__(
        self, queue: bytes, headers: HeaderCodec, *, is_durable: bool,
        open_part: Callable[[bytes, bool], BackingQueue],
        close_part: Callable[[BackingQueue], None] | None,
        arrive: Arrive, on_event: Callable[[str, str], None], clock: Clock,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._clock = clock
        self._headers = headers
        self._is_durable = is_durable
        self._open_part = open_part
        self._close_part = close_part
        self.arrive = arrive
        self._on_event = on_event
        self._buckets: dict[bytes, Bucket] = {}
        self._fresh: dict[bytes, Bucket] = {}  # those with messages that may have to be paged out
        self._next_ms: int = 0  # see next_ms; -1: to be computed
        self._memory_bytes: int = MEMORY_BYTES

    # ---- arrival -------------------------------------------------------------------------------

    def publish(
        self, header: bytes, body: bytes, mode: int, due_ms: int, now_ms: int, expiry_ms: int = 0
    ) -> None:
        """Publish a message that is due at `due_ms` and then expires at `expiry_ms` (0: never)."""
        bucket = self.bucket(due_ms, now_ms)
        bucket.part.publish(self.header(header, expiry_ms), body, mode, expiry_ms=due_ms)
        self.touched(bucket, now_ms)

    def postpone(
        self, source: BackingQueue, delivery: Delivery, header: bytes, mode: int, due_ms: int,
        now_ms: int, expiry_ms: int,
    ) -> int:  # fmt: skip
        """Move a pending message of the queue here. Return the LSN of the record, 0 if it is
        transient."""
        bucket = self.bucket(due_ms, now_ms)
        target = bucket.part.index()
        lsn = source.move(delivery.tag, [target], self.header(header, expiry_ms), mode, due_ms)
        self.touched(bucket, now_ms)
        return lsn

    def header(self, header: bytes, expiry_ms: int) -> bytes:
        """Return the header of a message while it waits."""
        return self._headers.with_(header, expiry_ms=expiry_ms) if expiry_ms else header

    def bucket(self, due_ms: int, now_ms: int) -> Bucket:
        """Return the bucket for this due time, which is declared if necessary."""
        level, number = place(due_ms, now_ms)
        name = b"%s%s%c%d" % (self._queue, MARK, LETTERS[level], number)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._add(name, level, number)
        return bucket

    def _add(self, name: bytes, level: int, number: int) -> Bucket:
        part = self._open_part(name, self._is_durable)
        bucket = Bucket(name, level, number, part)
        if level == SECOND:
            self._set_limits(bucket)
        else:
            part.set_queue_mode("lazy")
        self._buckets[name] = bucket
        self._next_ms = -1
        return bucket

    def touched(self, bucket: Bucket, now_ms: int) -> None:
        """Note that messages have arrived in the bucket."""
        self._fresh[bucket.name] = bucket
        if bucket.level == SECOND and bucket.acts_ms <= now_ms:
            self._fill(bucket)
        due_ms = _due(bucket)
        if due_ms and self._next_ms >= 0 and (due_ms < self._next_ms or not self._next_ms):
            self._next_ms = due_ms

    def recover(self, names: Iterable[bytes]) -> None:
        """Open the buckets of these names (see `find_parts`), after a restart."""
        for name in sorted(names):
            _, _, rest = name.rpartition(MARK)
            self._add(name, LETTERS.index(rest[0]), int(rest[1:]))

    # ---- becoming due --------------------------------------------------------------------------

    def next_ms(self) -> int:
        """Return when `step` has something to do: ms since 1970, in the past if at once, 0 for
        never."""
        if self._next_ms < 0:
            times = [_due(bucket) for bucket in self._buckets.values()]
            self._next_ms = min((time for time in times if time), default=0)
        return self._next_ms

    def step(self, now_ms: int, quota: int = SLICE) -> bool:
        """Move what is due, at most `quota` messages, for SLICE_S. True if there is more to do at
        once."""
        next_ms = self.next_ms()
        if not next_ms or now_ms < next_ms:
            return False
        self._next_ms = -1
        due = [bucket for bucket in self._buckets.values() if bucket.acts_ms <= now_ms]
        due.sort(key=lambda bucket: bucket.end_ms)
        until_s = self._clock.monotonic() + SLICE_S
        for bucket in due:
            quota = self._run(bucket, now_ms, quota, until_s)
            if not quota:
                break
        return 0 < self.next_ms() <= now_ms

    def _run(self, bucket: Bucket, now_ms: int, quota: int, until_s: float) -> int:
        """Move messages of one bucket that has begun. Return what is left of the quota, 0 if the
        time is over."""
        heap = bucket.heap
        looked = 0
        while quota:
            if looked >= LOOK_MESSAGES:
                if self._clock.monotonic() > until_s:
                    return 0
                looked = 0
            looked += 1
            if not _is_ordered(bucket) and self._fill(bucket):
                looked = LOOK_MESSAGES
                continue
            if not heap or (bucket.level == SECOND and heap[0][0] > now_ms):
                break
            due_ms, tag = heapq.heappop(heap)
            is_done = False
            try:
                self._move_on(bucket, tag, due_ms, now_ms)
                is_done = True
            except CorruptionError as error:
                is_done = True  # it stays pending; a salvage may still find it
                bucket.stuck += 1
                self._on_event("corruption", f"a delayed message cannot be read: {error}")
            finally:
                if not is_done:
                    heapq.heappush(heap, (due_ms, tag))
            quota -= 1
        is_over = bucket.level != SECOND or bucket.end_ms <= now_ms
        is_empty = not bucket.part.depth() and not bucket.part.index().count  # none set aside
        if is_over and not bucket.pins and is_empty:
            self._close(bucket)
            bucket.part.delete_and_terminate(OS)
            bucket.part.unlink()
        return quota

    def _fill(self, bucket: Bucket) -> bool:
        """Find out when the next messages are due, LOOK_MESSAGES of them. Returns whether there
        were any."""
        heap = bucket.heap
        for n in range(min(LOOK_MESSAGES, HEAP_MAX - len(heap))):
            head = bucket.part.drop(ack_required=True)  # nothing is read
            if head is None:
                return n > 0
            heapq.heappush(heap, (head.expiry_ms, head.tag))
        return True

    def _move_on(self, bucket: Bucket, tag: int, due_ms: int, now_ms: int) -> None:
        delivery = bucket.part.pending(tag, with_header=True)
        if delivery is None:
            return
        header = delivery.message.header
        if due_ms > now_ms:
            lower = self.bucket(due_ms, now_ms)
            assert lower.level < bucket.level, (lower.name, bucket.name)
            bucket.part.move(tag, [lower.part.index()], header, OS, due_ms)
            self.touched(lower, now_ms)
            return
        expiry_ms = self._headers.expiry_ms(header)
        if expiry_ms:
            header = self._headers.with_(header, expiry_ms=0)
        self.arrive(bucket.part, delivery, header, expiry_ms)

    # ---- memory, counts, life ------------------------------------------------------------------

    def set_memory(self, max_bytes: int | None) -> None:
        """Set the queue's own memory limit, None if it has none; each second's bucket gets a part
        of it."""
        self._memory_bytes = MEMORY_BYTES if max_bytes is None else max_bytes
        for bucket in self._buckets.values():
            if bucket.level == SECOND:
                self._set_limits(bucket)

    def _set_limits(self, bucket: Bucket) -> None:
        most = max(self._memory_bytes // SHARE, SHARE_BYTES_MIN)
        bucket.part.set_limits(most, most // 2)

    def resume(self) -> bool:
        """Page out a slice in each bucket that has new messages. Return True if there is more."""
        for name, bucket in list(self._fresh.items()):
            if not bucket.part.resume():
                self._fresh.pop(name, None)
        return bool(self._fresh)

    def parts(self) -> list[BackingQueue]:
        """Return the backing queue of each bucket."""
        return [bucket.part for bucket in self._buckets.values()]

    def count(self) -> int:
        """Return how many messages wait, with those that cannot be read."""
        return sum(bucket.part.depth() for bucket in self._buckets.values())

    def purge(self, mode: int) -> int:
        """Delete all waiting messages. Return how many."""
        n = 0
        for bucket in self._buckets.values():
            n += bucket.part.purge(mode) + bucket.part.purge_acks(mode)
            bucket.heap.clear()
            bucket.stuck = 0
        self._next_ms = -1
        return n

    def delete(self, mode: int) -> None:
        """Delete all buckets with their messages."""
        for bucket in list(self._buckets.values()):
            self._close(bucket)
            bucket.part.delete_and_terminate(mode)
            bucket.part.unlink()

    def terminate(self) -> None:
        """Stop in order; messages wait on disk."""
        for bucket in list(self._buckets.values()):
            self._close(bucket)
            bucket.part.terminate()

    def _close(self, bucket: Bucket) -> None:
        if self._close_part is not None:
            self._close_part(bucket.part)
        del self._buckets[bucket.name]
        self._fresh.pop(bucket.name, None)
        self._next_ms = -1


def place(due_ms: int, now_ms: int) -> tuple[int, int]:
    """Return level and number of the bucket for this due time. A bucket is always distributed to
    buckets of a lower level."""
    wait_ms = due_ms - now_ms
    level = SECOND if wait_ms <= SPAN_MS[MINUTE] else MINUTE if wait_ms <= SPAN_MS[HOUR] else HOUR
    while level and due_ms // SPAN_MS[level] * SPAN_MS[level] - LEAD_MS[level] <= now_ms:
        level -= 1
    return level, due_ms // SPAN_MS[level]


def find_parts(names: Iterable[bytes]) -> dict[bytes, list[bytes]]:
    """Return the names of buckets among all queues' names, by the queue that they belong to."""
    found: dict[bytes, list[bytes]] = {}
    for name in names:
        queue, mark, rest = name.rpartition(MARK)
        if mark and rest[:1] in (b"s", b"m", b"h") and rest[1:].isdigit():
            found.setdefault(queue, []).append(name)
    return found


def _is_ordered(bucket: Bucket) -> bool:
    """Return whether as many messages as possible are in the heap."""
    return len(bucket.heap) >= HEAP_MAX or not bucket.part.len()


def _due(bucket: Bucket) -> int:
    """Return when the bucket needs work, 0 for never."""
    if bucket.heap and bucket.level == SECOND and _is_ordered(bucket):
        return bucket.heap[0][0] or bucket.acts_ms
    if bucket.heap or bucket.part.len():
        return bucket.acts_ms
    if bucket.pins or bucket.stuck or bucket.part.index().count:
        return 0  # all that is left cannot be read
    return bucket.end_ms if bucket.level == SECOND else max(bucket.acts_ms, 1)
