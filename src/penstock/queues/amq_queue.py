"""AMQQueue: the queue that clients see: a BackingQueue with a name, options and their effects.

RabbitMQ has a process of that name around its backing queue, and adds the same in the same order: a
publish is refused, or enters and pushes others out; expired heads go before anything is delivered;
what is rejected, expired, pushed out or tried too often goes to the queue for dead letters
(dead_letter.py); what is to wait waits in a wheel of parts (delays.py). The embedded library calls
it under its lock, the broker from its loop.

**Publishing.** First the overflow, then the message, then drop-head. Others publish for several
queues at once, or in a transaction: they `plan`, publish themselves, and report the result.
Messages also arrive by themselves: dead letters of other queues, and delayed messages that are due.
Delayed messages are never refused: what does not fit pushes out the head. Dead letters are refused
where publishes are (`refuses`). What comes back is not refused
either, but heads are dropped before anything is delivered again, and a message of ttl 0 has had its
delivery. `_is_plain` says that the queue has no limit, ttl, delay or
alert; then a publish is one call of the backing queue.

**Limits** (`MaxLength`). As in RabbitMQ only ready messages count, and only their bodies are
measured; messages that a waiting consumer has room for count as delivered. Four ways:

    drop-head            the new message enters, heads leave until the queue is within its limits
    reject-publish       a publish that would pass a limit is refused; nothing has happened
    reject-publish-dlx   the same, and the refused message is dead-lettered
    drop-head-strict     Qpid's strict ring: as drop-head, but what is delivered and not
                         acknowledged counts too and is not passed over: while there is any, it is
                         the oldest, and a publish that would pass a limit is refused

In a queue with priorities the dropped head is of the highest one. That is RabbitMQ's rule.

**Expiry.** A message's expiry is fixed when it enters: now plus its own time to live or the
queue's, whichever is sooner, as in RabbitMQ. It is a date in ms since 1970 in the message's row, so
nothing is read to decide; 0 means never. Only the head is examined: an expired message further back
must pass the head before it could be delivered, and counts as ready until then. A queue sorted by
expiry would be a second queue.

**Leaving.** What leaves without being delivered is dead-lettered if the options name a target, else
dropped. A head that cannot be read is left pending, with an event. A retry with a delay, becoming
due and dead-lettering are moves, one record each, so a message is in exactly one of queue, delay
part and dead-letter queue whatever crashes. What a move brought is delivered once its record is
settled (`held`).

**Attempts.** A delivery's `attempts` are those before it: requeues in place (REQUEUE records) and
what the header carries from before a delay. After `max_attempts` deliveries a message that comes
back is dead-lettered, or dropped if there is no dead-letter queue. What comes back without having
been tried (`release`) counts nothing. A process that dies with a message has not reported a
failure, so that delivery counts nothing; but deliveries of messages that may have been delivered
before a crash count when they are made, so a message that kills its process each time is
dead-lettered after `max_attempts` more deliveries. Between attempts a message waits twice as long
as the time before, from the queue's least delay up to its greatest; a least delay of 0 means no
delay: the message is requeued at its old place.

**Slices.** No call handles more than 256 expired, overdue or overlong messages: `fetch` then
returns None and `has_more_expired` is True, `tick` returns True. Call again. `TickInterval` says
when: at once, but after others, if there is more to do; every 10 ms while a checkpoint has slices
left; ten times a second, or as often as syncs are due by the clock, while something is in progress;
once a second while publishers are refused for want of space; and else at the next round of the
memory monitor.

**Modes.** What nobody waits for (acks, rejects, requeues, drops) is logged in the mode given, `os`
by default, and never forces a sync. What moves into a queue by itself is logged in the queue's own
mode, because its delivery waits for that.

**Leases** (`Leasing`). Readers that must see the same messages again after any crash lease them.
Heads are taken out of the backing queue, what must not be delivered any more is dead-lettered, the
engine makes the record, the backing queue forgets the messages, and the pages get the frames. That
is one slice of at most 1,024 messages and 1 MiB, or one message. `materialise` makes pages, in
slices too: at the first lease of a reader, and after a start, which deletes them. Leases go on
meanwhile; reading waits until `materialise` returns that all is there. Pages that could not be
written (a full disk) are deleted and made again when somebody asks. `tick` continues a release that
was begun, also after a restart.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from penstock.errors import (
    CorruptionError,
    DiskFullError,
    NotLeasableError,
    OptionError,
    QueueFullError,
    QueueLeasedError,
    SettledError,
    StoppedError,
    UnknownLeaseError,
    deleted_error,
)
from penstock.message import LARGE_FROM, Entry, QueuedMessage, is_large
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import (
    PART_SHIFT,
    UNLIMITED,
    BackingQueue,
    Delivery,
    NewMessage,
    ReadyHead,
)
from penstock.queues.dead_letter import (
    NESTED_HOPS_MAX,
    DeadLetterRoute,
    DeadLetters,
    Destination,
    QueueRoute,
    QueueTarget,
    move_to,
    nothing,
)
from penstock.queues.delays import Bucket, Delays, find_parts
from penstock.queues.headers import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED, HeaderCodec
from penstock.queues.queue_options import (
    DROP_HEAD,
    DROP_HEAD_STRICT,
    REJECT_PUBLISH_DLX,
    QueueOptions,
)
from penstock.queues.rows import Row
from penstock.queues.thresholds import Alert, Alerts, thresholds_of
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.index.leases import Lease
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.journal.checkpoint import IDLE, SLICES
from penstock.storage.log.record import LeaseRun
from penstock.storage.parts.lease_engine import (
    PAGE_BYTES,
    STEP_BYTES,
    LeasePages,
    Taken,
    pages_path,
)
from penstock.storage.store.message_store import CopyingBody
from penstock.storage.store.store_file import StoredBody

SLICE: Final = 256  # messages that one call may expire
DEAD_COPIES: Final = 4  # of each, on average, if they go to several queues
DEAD_SLICE: Final = 64  # that it may dead-letter: each may be read from disk, and be its own record
DEAD_BYTES: Final = 2 << 20  # of their bodies, which may be copied: 5 ms


def expiry_at(now_ms: int, ttl_ms: int | None, queue_ttl_ms: int | None) -> int:
    """Return the expiry of a message that arrives now: ms since 1970, 0 for never. None: no ttl."""
    if ttl_ms is None:
        return 0 if queue_ttl_ms is None else now_ms + queue_ttl_ms
    if queue_ttl_ms is not None and queue_ttl_ms < ttl_ms:
        return now_ms + queue_ttl_ms
    return now_ms + ttl_ms


def sooner(expiry_ms: int, other_ms: int) -> int:
    """Return the sooner of two expiries, where 0 is never."""
    if not expiry_ms or not other_ms:
        return expiry_ms or other_ms
    return min(expiry_ms, other_ms)


def is_expired(expiry_ms: int, now_ms: int) -> bool:
    """Return whether a message of this expiry must not be delivered any more."""
    return 0 < expiry_ms <= now_ms


@mypyc_attr(acyclic=True)
class ExpiredUpTo:
    """A predicate for `dropwhile`: expired at `now_ms`, and at most `quota` messages."""

    __slots__ = ("left", "now_ms")

    def __init__(self, now_ms: int, quota: int) -> None:
        self.now_ms: int = now_ms
        self.left: int = quota

    def __call__(self, head: ReadyHead) -> bool:
        if not self.left or not is_expired(head.expiry_ms, self.now_ms):
            return False
        self.left -= 1
        return True


def expire(
    backing: BackingQueue,
    now_ms: int,
    quota: int,
    dead_letter: Callable[[list[int]], None] | None,
    mode: int,
) -> tuple[int, bool]:
    """Remove at most `quota` expired heads. Return how many, and whether the head is still expired.
    dead_letter: settles the pending messages of these tags, of about DEAD_BYTES together at most;
    None: expired messages are dropped.
    mode: of the record that drops them."""
    if dead_letter is None:
        predicate = ExpiredUpTo(now_ms, quota)
        head = backing.dropwhile(predicate, mode)
        return quota - predicate.left, head is not None and is_expired(head.expiry_ms, now_ms)
    tags: list[int] = []
    left = DEAD_BYTES
    try:
        head = backing.head()
        while head is not None and is_expired(head.expiry_ms, now_ms):
            if len(tags) >= quota or left <= 0:
                break
            left -= head.size
            backing.drop(ack_required=True)
            tags.append(head.tag)
            head = backing.head()
    finally:
        dead_letter(tags)
    return len(tags), head is not None and is_expired(head.expiry_ms, now_ms)


class MaxLength:
    """The length limits of one queue. `is_set`: whether it has any. `drops_head`, `may_refuse` (a
    strict ring does both), `dead_letters_refused`: how they are applied. `keeps_nothing`: what
    comes back is dropped."""

    def __init__(self, queue: str, options: QueueOptions) -> None:
        self._queue = queue
        self._length = UNLIMITED if options.max_length is None else options.max_length
        size = options.max_length_bytes
        self._length_bytes = UNLIMITED if size is None else size
        self.is_set: bool = options.max_length is not None or size is not None
        self._is_strict: bool = options.overflow == DROP_HEAD_STRICT
        self.drops_head: bool = self._is_strict or options.overflow == DROP_HEAD
        self.may_refuse: bool = options.overflow != DROP_HEAD
        self.dead_letters_refused: bool = options.overflow == REJECT_PUBLISH_DLX
        self.keeps_nothing: bool = self.drops_head and not (self._length and self._length_bytes)

    def check(self, backing: BackingQueue, n: int, body_bytes: int, room: int = 0) -> None:
        """Raise QueueFullError if the queue refuses n more messages of `body_bytes` together. room:
        messages that consumers would take at once."""
        if not self.may_refuse or not self.is_set:
            return
        if self._is_strict:
            self._check_strict(backing, n, body_bytes)
            return
        # They arrive one after the other; those before the last may be delivered at once.
        count = backing.len() + n
        if room:
            count = max(count - 1 - room, 0) + 1
        if count > self._length:
            raise QueueFullError(self._queue, "max_length", count, self._length)
        size = body_bytes
        if count > n:
            size += backing.body_bytes()
        elif count < n:
            size = body_bytes // n
        if size > self._length_bytes:
            raise QueueFullError(self._queue, "max_length_bytes", size, self._length_bytes)

    def _check_strict(self, backing: BackingQueue, n: int, body_bytes: int) -> None:
        """Check a strict ring: the messages must fit when all ready ones are gone, and beside all
        messages if some are unacknowledged."""
        count, size = n, body_bytes
        if backing.depth() > backing.len():
            count += backing.depth()
            if self._length_bytes < UNLIMITED:
                size += backing.body_bytes() + int(backing.info()["unacked_bytes"])
        if count > self._length:
            raise QueueFullError(self._queue, "max_length", count, self._length)
        if size > self._length_bytes:
            raise QueueFullError(self._queue, "max_length_bytes", size, self._length_bytes)

    def is_over(self, backing: BackingQueue, room: int = 0) -> bool:
        """Return whether more messages are ready than the limits allow."""
        count = backing.len()
        if room >= count:
            return False
        return count - room > self._length or backing.body_bytes() > self._length_bytes

    def trim(
        self,
        backing: BackingQueue,
        quota: int,
        dead_letter: Callable[[list[int]], None] | None,
        room: int = 0,
    ) -> int:
        """Drop heads, at most `quota`, until the queue is within its limits. Return how many.
        dead_letter: as for `expire`."""
        tags: list[int] = []
        try:
            while len(tags) < quota and self.is_over(backing, room):
                head = backing.drop(ack_required=dead_letter is not None)
                if head is None:
                    break
                tags.append(head.tag)
        finally:
            if dead_letter is not None:
                dead_letter(tags)
        return len(tags)


DOUBLINGS_MAX: Final = 62  # beyond that any delay exceeds any limit


def retry_delay_ms(attempts: int, least_ms: int, most_ms: int) -> int:
    """Return the delay in ms before the next delivery of a message that was delivered `attempts`
    times (>= 1). 0 <= least_ms <= most_ms."""
    if not least_ms:
        return 0
    doublings = min(max(attempts, 1) - 1, DOUBLINGS_MAX)
    return min(least_ms << doublings, most_ms)


BUSY_S: Final = 0.1
BLOCKED_S: Final = 1.0
IDLE_AGAIN_S: Final = 2.5
MORE_S: Final = 0.001  # between two slices of the same work, so that other work gets a turn
CHECKPOINT_S: Final = 0.01  # between two slices of a checkpoint


class TickInterval:
    """How often an engine's owner ticks. interval_ms: between two syncs by the clock, which a tick
    starts."""

    def __init__(self, interval_ms: int) -> None:
        self._busy_s: float = min(BUSY_S, interval_ms / 1000)
        self._seen_lsn: int = 0

    def next_s(self, engine: StorageEngine, due_s: float, *, has_more: bool) -> float:
        """Return the seconds until the next tick. due_s: seconds until something else is due."""
        if has_more:
            return MORE_S
        if engine.checkpoints.phase == SLICES:
            return CHECKPOINT_S
        lsn = engine.log.last_lsn
        is_busy = (
            lsn != self._seen_lsn
            or engine.log.settled(DISK) < lsn
            or engine.journal.has_pending
            or engine.checkpoints.phase != IDLE
        )
        self._seen_lsn = lsn
        if is_busy:
            return min(self._busy_s, due_s)
        return min(BLOCKED_S if engine.blocked else IDLE_AGAIN_S, due_s)


SLICE_MESSAGES: Final = 1024
SLICE_BYTES: Final = 1 << 20

Bytes = bytes  # LeaseInfo has a field "bytes"


class LeaseSlice(NamedTuple):
    """The result of one lease: messages with the ordinals [first, next), and the bytes of their
    bodies. has_more: another call would lease more at once."""

    first: int
    next: int
    bytes: int
    has_more: bool


class LeaseInfo(NamedTuple):
    """A reader's lease. It has committed all messages below `committed` and leased those below
    `next`. bytes: of the bodies that it has. since_ms: when the oldest of them was leased, ms since
    1970, 0 if it has none. path: the directory of its pages, "" before `materialise`. stream_id: 16
    bytes, fixed for the life of the lease. last_time_us: of the last record in the pages.
    is_releasing: whether it is being released."""

    reader: str
    committed: int
    next: int
    bytes: int
    since_ms: int
    path: str
    stream_id: Bytes
    last_time_us: int
    is_releasing: bool


class Leasing:
    """The leases of one queue. backing: holds its messages. on_event(kind, text): lease_pages."""

    def __init__(
        self, engine: StorageEngine, name: bytes, backing: BackingQueue,
        on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._engine = engine
        self._name: bytes = name
        self._text_name: str = name.decode("utf-8", "surrogateescape")
        self._backing: BackingQueue = backing
        self._main: QueueIndex = backing.index(0)
        self._on_event: Callable[[str, str], None] = on_event
        self._pages: dict[str, LeasePages] = {}  # by reader
        self.page_bytes: int = PAGE_BYTES

    def check(self) -> None:
        """Raise NotLeasableError if the queue is not durable, UnknownQueueError if it is
        deleted."""
        if self._main.is_deleted:
            raise deleted_error(self._name)
        if not self._main.is_durable:
            raise NotLeasableError(self._text_name, "it is not durable")

    def _all(self) -> dict[str, Lease]:
        return self._engine.leases.of(self._main)

    # ---- leasing -------------------------------------------------------------------------------

    def take(self, messages_max: int, bytes_max: int, now_ms: int) -> list[Taken]:
        """Return heads for one slice. Raises DiskFullError: nothing is leased on a full disk."""
        if messages_max < 1 or bytes_max < 1:
            raise ValueError(f"a lease of {messages_max} messages and {bytes_max} bytes at most")
        engine = self._engine
        if engine.failed is not None or engine.blocked or engine.is_closed:
            engine.journal.check_publish()
        return self._backing.take(
            min(messages_max, SLICE_MESSAGES), min(bytes_max, SLICE_BYTES), now_ms
        )

    def lease(self, reader: str, taken: list[Taken], mode: int) -> LeaseSlice:
        """Lease the taken messages to the reader. If this raises, they are ready again."""
        engine, backing = self._engine, self._backing
        if not taken:
            lease = self._all().get(reader)
            next_ = 0 if lease is None else lease.next
            return LeaseSlice(next_, next_, 0, False)
        try:
            first, next_ = engine.leases.lease(self._main, reader, taken, mode)
        except BaseException:
            if engine.failed is None:
                backing.untake(taken)
            raise
        backing.leased(taken, engine.log.last_lsn)
        size = in_ram = 0
        for one in taken:
            for entry in one.entries:
                size += entry.message.size
            for body in one.bodies:
                in_ram += len(body)
        if in_ram == size:  # else `materialise` reads a large one in steps
            self._append(reader, first, taken)
        return LeaseSlice(first, next_, size, backing.may_take())

    def find(self, reader: str) -> Lease | None:
        """Return the reader's lease, or None. Raises UnknownLeaseError while it is being
        released."""
        lease = self._all().get(reader)
        if lease is not None and lease.is_releasing:
            raise UnknownLeaseError(self._text_name, reader)
        return lease

    def commit(self, reader: str, ordinal: int, mode: int) -> bool:
        """Acknowledge a slice of the messages below `ordinal`. Return True if there are more."""
        has_more = self._engine.leases.commit(self._main, reader, ordinal, mode)
        pages = self._pages.get(reader)
        if pages is not None:
            self._drop_pages(pages, self._all()[reader].committed)
        return has_more

    # ---- releasing -----------------------------------------------------------------------------

    def release(self, reader: str, mode: int) -> bool:
        """Make a slice of the reader's messages ready again. Return True if there are more."""
        engine = self._engine
        back: dict[int, tuple[QueueIndex, list[int], list[Row]]] = {}
        for run in sorted(engine.leases.next_release(self._main, reader)):
            part = self._part(run)
            _, seqs, rows = back.setdefault(part.number, (part, [], []))
            found = list(range(run[1], run[1] + run[2]))
            seqs += found
            rows += self._backing.returning(part, found)
        has_more = engine.leases.release(self._main, reader, mode)
        for part, seqs, rows in back.values():
            self._backing.readmit(part, seqs, rows)
        self._forget_pages(reader)
        return has_more

    def has_expiring(self, reader: str) -> bool:
        """Return whether any message of the reader may expire once it is ready again."""
        lease = self._all().get(reader)
        if lease is None:
            return False
        numbers = {run[0] for one in lease.slices for run in one.runs()}
        queues = self._engine.queues
        return any(s.expiry_ms for n in numbers for s in queues[n].segments.values())

    def _part(self, run: LeaseRun) -> QueueIndex:
        return self._engine.queues[run[0]]

    # ---- pages ---------------------------------------------------------------------------------

    def _append(self, reader: str, first: int, taken: list[Taken]) -> None:
        """Write frames of the messages just leased if the pages have all before them. An error does
        not fail the lease."""
        pages = self._pages.get(reader)
        try:
            if pages is None and self._all()[reader].committed == first:
                pages = self._new_pages(reader)
            if pages is None or pages.next_ordinal != first:
                return
            for one in taken:
                append_all(pages, one.entries, one.bodies)
            pages.publish()
        except OSError as error:
            self._discard_pages(reader, error)

    def materialise(self, reader: str) -> bool:
        """Write a slice of the pages of the reader's messages, from their slots. Return True: call
        again. Raises OSError, and CorruptionError if a leased message is damaged."""
        lease = self._all().get(reader)
        if lease is None or lease.is_releasing:
            return False
        pages = self._pages.get(reader)
        if pages is None:
            pages = self._new_pages(reader)
        try:
            if pages.is_writing():
                pages.write_some()
            elif pages.next_ordinal >= lease.next:
                return False
            elif pages.next_ordinal < lease.committed:  # committed before they were made
                self._forget_pages(reader)
                return True
            else:
                self._materialise(pages, lease)
        except OSError as error:
            self._discard_pages(reader, error)
            raise
        return pages.is_writing() or pages.next_ordinal < lease.next

    def _new_pages(self, reader: str) -> LeasePages:
        path = pages_path(self._engine.path, self._name, self._main.number, reader)
        pages = LeasePages(self._engine.fs, path, self._all()[reader], self.page_bytes)
        self._pages[reader] = pages
        return pages

    def _materialise(self, pages: LeasePages, lease: Lease) -> None:
        """Continue in the slice of the lease that has the next ordinal."""
        one = lease.slice_of(pages.next_ordinal)
        skip = pages.next_ordinal - one.ordinal
        n = 0
        for run in one.runs():
            if skip >= run[2]:
                skip -= run[2]
                continue
            part = self._part(run)
            seqs = list(range(run[1] + skip, run[1] + run[2]))
            skip = 0
            messages = part.read(seqs)
            for i in range(len(seqs)):
                if is_large(messages[i]):
                    if n:
                        pages.publish()  # those before it
                    else:
                        self._materialise_large(pages, messages[i])
                    return
                pages.append(messages[i], self._body(part, seqs[i], messages[i]))
                n += 1
        pages.publish()

    def _materialise_large(self, pages: LeasePages, message: QueuedMessage) -> None:
        """Read some of a large body, which is the next record."""
        if not pages.is_reading():
            pages.begin_large(self._engine.bodies.open(message))
        pages.read_some(message)

    def _body(self, part: QueueIndex, seq: int, message: QueuedMessage) -> bytes:
        if message.body is not None:
            return message.body
        return self._engine.load_body(part, seq, message)

    def _drop_pages(self, pages: LeasePages, committed: int) -> None:
        try:
            gone = pages.drop_below(committed)
        except OSError as error:
            self._report(error)
            return
        if gone:
            self._engine.journal.submit(lambda: pages.unlink(gone), _nothing, self._report)

    def rest(self) -> None:
        """Close files of pages that nobody leases to. Called now and then."""
        for pages in self._pages.values():
            pages.rest()

    def _forget_pages(self, reader: str) -> None:
        pages = self._pages.pop(reader, None)
        if pages is not None:
            try:
                pages.delete()
            except OSError as error:
                self._report(error)

    def _discard_pages(self, reader: str, error: OSError) -> None:
        self._report(error)
        self._forget_pages(reader)

    def _report(self, error: BaseException) -> None:
        text = f"queue {self._text_name!r}: pages of a lease are made again later: {error}"
        self._on_event("lease_pages", text)

    # ---- information ---------------------------------------------------------------------------

    def infos(self) -> list[LeaseInfo]:
        """Return the leases, one per reader."""
        return [self._info(lease) for lease in self._all().values()]

    def info(self, reader: str) -> LeaseInfo | None:
        """Return the lease of a reader, None if there is none."""
        lease = self._all().get(reader)
        return None if lease is None else self._info(lease)

    def releasing(self) -> str | None:
        """Return a reader whose release was begun, None if there is none."""
        for lease in self._all().values():
            if lease.is_releasing:
                return lease.reader
        return None

    def _info(self, lease: Lease) -> LeaseInfo:
        pages = self._pages.get(lease.reader)
        path = "" if pages is None else self._engine.fs.place(pages.path)
        last_us = lease.floor_s * 1_000_000 if pages is None else pages.last_time_us
        return LeaseInfo(
            lease.reader, lease.committed, lease.next, lease.bytes, lease.since_ms, path, lease.id,
            last_us, lease.is_releasing,
        )  # fmt: skip

    def open_leases(self) -> tuple[int, list[str]]:
        """Return (number of leased messages, the readers that have them)."""
        having = [lease for lease in self._all().values() if lease.count]
        return sum([lease.count for lease in having]), [lease.reader for lease in having]

    # ---- the end -------------------------------------------------------------------------------

    def delete(self) -> None:
        """Delete the pages in another thread, because the queue is deleted: no other queue has the
        same directories."""
        trees = [pages.path for pages in self._pages.values()]
        self.close()
        if trees:
            self._engine.leases.delete_pages(trees)

    def close(self) -> None:
        """Close the files of the pages."""
        for pages in self._pages.values():
            pages.close()
        self._pages = {}


class LargeHead:
    """A large message at the head of a queue, which is read in steps before it is leased: one that
    is damaged is set aside instead, and a transient one is copied to the store of persistent
    ones."""

    def __init__(self, engine: StorageEngine) -> None:
        self._engine = engine
        self._tag: int = -1
        self._reading: StoredBody | None = None
        self._copying: CopyingBody | None = None
        self._copy: QueuedMessage | None = None

    def step(self, backing: BackingQueue) -> bool:
        """Read some of the head, if it is large; return whether it may be leased. DiskFullError,
        OSError."""
        head = backing.head()
        tag = -1 if head is None or head.size < LARGE_FROM else head.tag
        try:
            if tag != self._tag:
                self.end()
                self._tag = tag
                if tag >= 0:
                    self._begin(backing)
            if self._copying is not None:
                if not self._copying.step(STEP_BYTES):
                    return False
                self._copy, self._copying = self._copying.copy, None
                self._engine.bodies.keep_copy(self._copy)
            elif self._reading is not None:
                self._reading.read(STEP_BYTES)
                if self._reading.left:
                    return False
                self._close()
        except CorruptionError:
            self._close()  # it is not opened again: whoever takes it sets it aside
        return True

    def _begin(self, backing: BackingQueue) -> None:
        found = backing.browse(None, 1, in_pieces=True)
        if not found or found[0].tag != self._tag or not is_large(found[0].message):
            return
        message = found[0].message
        if message.persistent:
            self._reading = self._engine.bodies.open(message)
        else:
            self._copying = CopyingBody(self._engine.bodies, message)

    def end(self) -> None:
        """End it; a copy that was not leased is deleted."""
        self._tag = -1
        self._close()
        copy, self._copy = self._copy, None
        if copy is not None:
            self._engine.bodies.forget_copy(copy)

    def _close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.close()
        copying, self._copying = self._copying, None
        if copying is not None:
            copying.abandon()


def append_all(pages: LeasePages, entries: list[Entry], bodies: list[bytes]) -> None:
    """Write frames of the entries, in the order of delivery."""
    for i in range(len(entries)):
        pages.append(entries[i].message, bodies[i])


def _nothing(result: object) -> None:
    if isinstance(result, StoppedError):
        raise result


GRACE_MS: Final = 1000  # for a message of ttl 0 that a consumer is waiting for


class Plan:
    """Where and how a message goes that its owner publishes itself. See `AMQQueue.plan`."""

    __slots__ = ("bucket", "expiry_ms", "header", "index", "part")

    def __init__(
        self, index: QueueIndex, header: bytes, expiry_ms: int, part: int, bucket: Bucket | None
    ) -> None:
        self.index: QueueIndex = index
        self.header: bytes = header
        self.expiry_ms: int = expiry_ms
        self.part: int = part
        self.bucket: Bucket | None = bucket


def _serve_nobody(_most: int) -> int:
    """Serve no consumers: the default."""
    return 0


def _say_nothing(_kind: str, _text: str) -> None:
    """Report no event: the default."""


def _alert_nobody(_alert: Alert) -> None:
    """Report no alert: the default."""


def _find_none(name: bytes) -> QueueTarget | None:
    """Find no other queue: the default."""
    return None


def _find_no_route(_options: QueueOptions) -> DeadLetterRoute | None:
    """Find no dead-letter route: that of a queue that was deleted."""
    return None


def _arrive_nowhere(
    _source: BackingQueue, _delivery: Delivery, _header: bytes, _expiry_ms: int
) -> None:
    """Move no delayed message: a queue that was deleted has none."""


AGE_CHECK_MS: Final = 1000  # between two checks of the age of the oldest message

A = TypeVar("A")


class AMQQueue(QueueTarget):
    """The queue `name`.

    backing: holds its messages (open_backing); options.priorities is its highest part.
    open_part(name, is_durable): returns a BackingQueue for a part of delayed messages, declared or
    recovered. close_part(part): called before that is deleted or terminated. find(name): returns
    the queue of that name, for dead letters, or None. route_of(options): returns the
    DeadLetterRoute instead, for owners that have exchanges; None: no dead letters. mode: of moves
    by the queue itself. is_durable: False for a queue that a restart deletes. on_event(kind, text):
    dead_letter_missing, dead_letter_cycle, dead_letter_hops, dead_letter_full, corruption, warning.
    on_alert,
    on_alert_over: an alert fired, is over. on_ready(name): messages became ready other than by the
    caller's own publish or requeue: wake consumers. delay_parts: names of its parts found at the
    start (delays.find_parts); None: looked up here.

    `takers`: how many wait for a message right now; the owner sets it, for messages of ttl 0. An
    owner with consumers sets `has_consumers`: then `serve(most)` is called before a limit or a ttl
    of 0 acts. It delivers what they have room for, and returns how many messages more they would
    take, up to `most`: that many messages are kept for them. `has_more_expired`: the last `fetch`
    stopped at its slice, and the head is expired.
    """

    has_more_expired: bool = False
    _looked_at_age_ms: int = 0
    _leasing: Leasing | None = None

    def __init__(
        self,
        engine: StorageEngine,
        name: bytes,
        options: QueueOptions,
        backing: BackingQueue,
        *,
        headers: HeaderCodec,
        open_part: Callable[[bytes, bool], BackingQueue],
        find: Callable[[bytes], QueueTarget | None] | None = None,
        route_of: Callable[[QueueOptions], DeadLetterRoute | None] | None = None,
        mode: int = DISK,
        is_durable: bool = True,
        close_part: Callable[[BackingQueue], None] | None = None,
        on_event: Callable[[str, str], None] | None = None,
        on_alert: Callable[[Alert], None] | None = None,
        on_alert_over: Callable[[Alert], None] | None = None,
        on_ready: Callable[[bytes], None] | None = None,
        delay_parts: list[bytes] | None = None,
    ) -> None:
        self.name: bytes = name
        self.text_name: str = name.decode("utf-8", "surrogateescape")
        self.backing: BackingQueue = backing
        self.headers: HeaderCodec = headers
        self._fresh_byte: int = headers.fresh_byte()
        self.is_durable: bool = is_durable
        self.takers: int = 0
        self._reserved: int = 0  # messages that will come, see `reserve`
        self._reserved_bytes: int = 0
        self.has_consumers: bool = False
        self.serve: Callable[[int], int] = _serve_nobody
        self._engine = engine
        self._clock = engine.clock
        self._mode: int = max(mode, OS)
        self._event: Callable[[str, str], None] = on_event or _say_nothing
        self._on_alert: Callable[[Alert], None] = on_alert or _alert_nobody
        self._on_alert_over = on_alert_over
        self._on_ready = on_ready
        self._priorities: int = options.priorities
        self._may_expire: bool = self._holds_expiries()
        self._has_for_now: bool = False  # messages of ttl 0 may be pending
        self._must_trim: bool = False
        self._is_trimming: bool = False
        self._known_thresholds: tuple[list[int], list[int], float] | None = None
        self._find: Callable[[bytes], QueueTarget | None] = find or _find_none
        self._route_of: Callable[[QueueOptions], DeadLetterRoute | None] = route_of or self._route
        self.dead_letters: DeadLetters = DeadLetters(self.text_name, headers, engine, self._event)
        self.dead_letters.on_sent = self._go_on_dying
        self.delays: Delays = Delays(
            name, headers, is_durable=is_durable, open_part=open_part, close_part=close_part,
            arrive=self._arrive, on_event=self._event, clock=self._clock,
        )  # fmt: skip
        self._apply_options(options, has_memory=options.memory_bytes is not None)
        if delay_parts is None and is_durable:
            delay_parts = find_parts(engine.routing.queues).get(name)
        if delay_parts:
            self.delays.recover(delay_parts)

    # ---- delivery ------------------------------------------------------------------------------

    def fetch(self, *, ack_required: bool = True, in_pieces: bool = False) -> Delivery | None:
        """Return the next message, which is pending until it is settled, or removed at once
        (without `ack_required`). None: the queue is empty, the head is held (see `held`), or more
        than a slice had expired before it (`has_more_expired`: call again). in_pieces: a large body
        stays in the store; see BackingQueue.fetch."""
        if self._may_expire:
            self.has_more_expired = self.expire()
            if self.has_more_expired:
                return None
        while True:
            delivery = self.backing.fetch(ack_required=ack_required, in_pieces=in_pieces)
            if delivery is None:
                return None
            header = delivery.message.header
            if header and header[0] != self._fresh_byte:
                delivery = self._with_attempts(delivery)
            if not ack_required or not self._is_dead(delivery):
                return delivery

    def _is_dead(self, delivery: Delivery) -> bool:
        """Return whether a message was dead-lettered instead of delivered: it was delivered too
        often by now (each time the process ended), or it had expired behind a damaged head."""
        expiry_ms = delivery.message.expiry_ms
        most = self.options.max_attempts
        if expiry_ms and expiry_ms <= self._clock.wall_ms():
            reason = EXPIRED
        elif delivery.attempts and most is not None and delivery.attempts >= most:
            reason = DELIVERY_LIMIT
        else:
            return False
        try:
            self._dead_letter(delivery, reason, delivery.attempts, self._mode)
        except BaseException:  # nobody has its tag
            self.backing.requeue([delivery.tag], OS, attempted=False)
            raise
        return True

    def held(self) -> tuple[int, int] | None:
        """Return (lsn, mode) that the head waits for: `engine.wait` for it and fetch again. None if
        it may be delivered, or the queue is empty."""
        return self.backing.held()

    def peek(self) -> Delivery | None:
        """Return the next message with its body, or None. Changes nothing except that a slice of
        expired messages is removed."""
        if self.expire():
            return None
        found = self.backing.browse(None, 1)
        return self._with_attempts(found[0]) if found else None

    def browse(self, after: int | None, n: int, *, in_pieces: bool = False) -> list[Delivery]:
        """Return the next n ready messages after the tag `after`; see BackingQueue.browse."""
        found = self.backing.browse(after, n, in_pieces=in_pieces)
        return [self._with_attempts(one) for one in found]

    def fold(self, fun: Callable[[Delivery, bool, A], tuple[bool, A]], acc: A) -> A:
        """Fold over all messages, ready and pending, in order; see BackingQueue.fold."""

        def step(delivery: Delivery, is_pending: bool, acc: A) -> tuple[bool, A]:
            return fun(self._with_attempts(delivery), is_pending, acc)

        return self.backing.fold(step, acc)

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, tags: list[int], mode: int = OS) -> int:
        """Acknowledge these. Return how many of them were pending."""
        return len(self.backing.ack(tags, mode))

    def nack(
        self, tag: int, *, requeue: bool = True, delay_ms: int | None = None, mode: int = OS
    ) -> int:
        """Return a failed delivery. The message comes back after a delay: delay_ms, or what the
        options say for its attempts (0: at once, at its old place); after `max_attempts` it is
        dead-lettered, or dropped. requeue=False: as `reject`. Return the LSN of the record (0:
        transient). Raises SettledError if it is not pending."""
        most = self.options.max_attempts
        if requeue and delay_ms == 0 and most is None and not self._has_for_now:
            found = self.backing.pending(tag)  # without a header that only a read would bring
            if found is None:
                raise SettledError(self.text_name, tag)
            return self._requeue_one(found, mode)
        delivery = self._pending(tag)
        if not requeue:
            return self._dead_letter(delivery, REJECTED, delivery.attempts + 1, mode)
        attempts = delivery.attempts + 1
        if most is not None and attempts >= most:
            return self._dead_letter(delivery, DELIVERY_LIMIT, attempts, mode)
        if delay_ms is None:
            least_ms, most_ms = self.options.retry_delay_ms
            delay_ms = retry_delay_ms(attempts, least_ms, most_ms)
        if self._has_for_now and self._is_for_now(delivery):
            return self._dead_letter(delivery, EXPIRED, attempts, mode)
        if delay_ms > 0 and not self._max_length.keeps_nothing:
            try:
                return self._postpone(delivery, attempts, delay_ms, mode)
            except DiskFullError:  # no room for a new part: requeue it without a delay
                pass
        return self._requeue_one(delivery, mode)

    def _requeue_one(self, delivery: Delivery, mode: int) -> int:
        self.backing.requeue([delivery.tag], mode, attempted=True)
        self._trim_returned(1)
        return self._engine.log.last_lsn if delivery.message.persistent else 0

    def reject(self, tag: int, mode: int = OS) -> int:
        """Dead-letter a message, or drop it. Returns and raises as `nack`."""
        return self.nack(tag, requeue=False, mode=mode)

    def requeue(self, tags: list[int], mode: int = OS) -> int:
        """Return failed deliveries to their old places: AMQP's requeue. They come back at once, or
        after the queue's `requeue_delay_ms`. Each counts as an attempt; after `max_attempts` the
        message is dead-lettered. Return how many were pending."""
        n = 0
        if self._requeue_delay_ms is not None:
            return self._requeue_later(tags, self._requeue_delay_ms, mode)
        most = self.options.max_attempts
        if most is not None:
            tags, over = self._split_over(tags, most)
            for delivery in over:
                self._dead_letter(delivery, DELIVERY_LIMIT, delivery.attempts + 1, mode)
                n += 1
        back = self._without_for_now(tags, 1, mode) if self._has_for_now else tags
        n += len(tags) - len(back)
        n += len(self.backing.requeue(back, mode, attempted=True))
        self._trim_returned(len(back))
        return n

    def _requeue_later(self, tags: list[int], delay_ms: tuple[int, int], mode: int) -> int:
        n = 0
        least_ms, most_ms = delay_ms
        for tag in tags:
            found = self.backing.pending(tag)
            if found is not None:
                n += 1
                attempts = self._pending(tag).attempts + 1
                self.nack(tag, delay_ms=min(attempts * least_ms, most_ms), mode=mode)
        return n

    def _split_over(self, tags: list[int], most: int) -> tuple[list[int], list[Delivery]]:
        """Return the tags of messages that may be delivered again, and the others."""
        back: list[int] = []
        over: list[Delivery] = []
        pending = {found.tag: found for found in self.backing.pending_headers(tags)}
        for tag in tags:
            found = pending.get(tag)
            if found is None:
                continue
            if self._with_attempts(found).attempts + 1 >= most:
                over.append(self._pending(tag))
            else:
                back.append(tag)
        return back, over

    def discard(self, tags: list[int], mode: int = OS) -> int:
        """Reject many messages; those that are not pending are skipped. Return how many were
        pending."""
        n = 0
        if self.dead_letters.route is None:
            n = len(self.backing.ack(tags, mode))
            self.dead_letters.count(REJECTED, n)
            return n
        for tag in tags:
            try:
                self.reject(tag, mode)
            except SettledError:
                continue
            n += 1
        return n

    def move(self, tag: int, target: "AMQQueue", mode: int = OS) -> int:
        """Move a pending message to the end of another queue, in one record of the log. As a dead
        letter it loses its attempts and its own expiry. Return the LSN of the record (0:
        transient). Raises SettledError if it is not pending."""
        delivery = self._pending(tag)
        header = self.headers.with_(delivery.message.header, attempts=0, expiry_ms=0)
        destination = target.destination(header, self._priority(delivery))
        lsn = move_to([destination], self.backing, delivery, mode, self._engine)
        target.after_dead_letters(1)
        return lsn

    def release(self, tags: list[int], mode: int = OS) -> int:
        """Return messages that were fetched but not delivered, to their old places, without
        counting an attempt. Return how many were pending."""
        back = self._without_for_now(tags, 0, mode) if self._has_for_now else tags
        n = len(tags) - len(back) + len(self.backing.requeue(back, mode, attempted=False))
        self._trim_returned(len(back))
        return n

    def _without_for_now(self, tags: list[int], attempts: int, mode: int) -> list[int]:
        """Dead-letter those of ttl 0: they were for a consumer that waited then. attempts: how many
        of this delivery to add. Return the tags of the others, and of those for which there is no
        room."""
        back: list[int] = []
        soon_ms = self._clock.wall_ms() + GRACE_MS
        for tag in tags:
            found = self.backing.pending(tag)
            is_gone = found is not None and 0 < found.message.expiry_ms <= soon_ms
            if is_gone:
                delivery = self._pending(tag)
                try:
                    is_gone = self._is_for_now(delivery)
                    if is_gone:
                        self._dead_letter(delivery, EXPIRED, delivery.attempts + attempts, mode)
                except DiskFullError:
                    is_gone = False
            if not is_gone:
                back.append(tag)
        return back

    def _is_for_now(self, delivery: Delivery) -> bool:
        """Return whether a delivered message had a ttl of 0, its own or the queue's."""
        message = delivery.message
        if not message.expiry_ms or message.expiry_ms > self._clock.wall_ms() + GRACE_MS:
            return False
        return self.options.ttl_ms == 0 or self.headers.is_for_now(message.header)

    def attempts(self, tag: int) -> int:
        """Return how often a pending message was delivered before. Raises SettledError."""
        return self._pending(tag).attempts

    def _postpone(self, delivery: Delivery, attempts: int, delay_ms: int, mode: int) -> int:
        now_ms = self._clock.wall_ms()
        message = delivery.message
        header = self.headers.with_(message.header, attempts=attempts)
        header = self._with_priority(header, self._priority(delivery))
        return self.delays.postpone(
            self.backing, delivery, header, mode, now_ms + delay_ms, now_ms, message.expiry_ms
        )

    # ---- for owners that publish themselves ----------------------------------------------------

    def planned_run(
        self,
        plan: Plan,
        first_seq: int,
        messages: list[QueuedMessage],
        lsn: int = 0,
        mode: int = OS,
    ) -> None:
        """Report several messages of one plan as `planned` does, from first_seq on."""
        self.planned(plan, first_seq, messages[0].size, lsn, mode)
        if plan.bucket is None and not self._is_plain:
            for message in messages[1:]:
                self.after_publish(message.size)

    # ---- leases --------------------------------------------------------------------------------

    def lease(self, reader: str, messages_max: int, bytes_max: int, mode: int = DISK) -> LeaseSlice:
        """Lease the next messages to the reader, in order of delivery, until it commits or releases
        them: one slice of at most so many messages and bytes of bodies (or one message), at most
        1,024 messages and 1 MiB. The reader may see them once `engine.log.last_lsn` is settled in
        this mode. Leased messages do not expire, are not dropped or purged, and count in `depth`.
        An empty slice: no message can be delivered now.

        Raises NotLeasableError if the queue is not durable, UnknownLeaseError while the reader's
        lease is being released, ValueError for a wrong name or number, DiskFullError. Then nothing
        has changed.
        """
        leasing = self._leases()
        leasing.check()
        leasing.find(reader)
        if self.expire():
            return leasing.lease(reader, [], mode)._replace(has_more=True)
        taken = leasing.take(messages_max, bytes_max, self._clock.wall_ms())
        is_cut = self.options.max_attempts is not None and self._is_cut_at_dead(taken)
        found = leasing.lease(reader, taken, mode)
        return found._replace(has_more=True) if is_cut else found

    def _is_cut_at_dead(self, taken: list[Taken]) -> bool:
        """Dead-letter the first message that was delivered too often, and return the messages after
        it to the queue. Return whether there was one."""
        most = self.options.max_attempts
        assert most is not None
        for i in range(len(taken)):
            one = taken[i]
            known = one.part.attempts
            for k in range(len(one.entries)):
                entry = one.entries[k]
                attempts = known.get(entry.seq, 0) if known else 0
                if entry.message.header:
                    attempts += self.headers.attempts(entry.message.header)
                if attempts < most:
                    continue
                back = [Taken(one.part, one.entries[k:], one.bodies[k:], 0), *taken[i + 1 :]]
                one.entries, one.bodies = one.entries[:k], one.bodies[:k]
                del taken[i + 1 if k else i :]
                self.backing.untake(back)
                try:
                    head = self.backing.drop()
                    if head is not None:
                        self._dead_letter_head(head.tag, DELIVERY_LIMIT)
                except BaseException:
                    self.backing.untake(taken)
                    raise
                return True
        return False

    def commit_lease(self, reader: str, ordinal: int, mode: int = DISK) -> bool:
        """Acknowledge a slice of the reader's messages below this ordinal. Return True: call again.
        Raises UnknownLeaseError, and ValueError beyond what it has leased."""
        return self._leases().commit(reader, ordinal, mode)

    def release_lease(self, reader: str, mode: int = DISK) -> bool:
        """Make a slice of the reader's messages ready again, the oldest first, each at its old
        place. Return True: call again, or leave the rest to `tick`. After the last one the reader
        is forgotten. Raises UnknownLeaseError."""
        leasing = self._leases()
        if not self._may_expire and leasing.has_expiring(reader):
            self._may_expire = True
        has_more = leasing.release(reader, mode)
        if self.drops_returned:
            self._trim()
        self._ready()
        return has_more

    def materialise(self, reader: str) -> bool:
        """Write a slice of the pages of the reader's messages, if they are not complete. Return
        True: call again, before pages are handed out. Raises OSError, CorruptionError."""
        return self._leases().materialise(reader)

    def leases(self) -> list[LeaseInfo]:
        """Return the leases, one per reader."""
        return self._leases().infos()

    def lease_info(self, reader: str) -> LeaseInfo | None:
        """Return the lease of a reader; None if it has leased nothing or was released."""
        return self._leases().info(reader)

    def _leases(self) -> Leasing:
        leasing = self._leasing
        if leasing is None:
            leasing = Leasing(self._engine, self.name, self.backing, self._event)
            self._leasing = leasing
        return leasing

    def _has_leases(self) -> bool:
        """Return whether the queue has leases. Fast, because each tick of each queue asks."""
        table = self._engine.leases.table
        return bool(table.by_queue) and bool(table.of(self.backing.index(0).number))

    def _go_on_releasing(self) -> bool:
        """Continue a release that was begun, also before a restart, by a slice. Return whether
        there is one."""
        reader = self._leases().releasing()
        if reader is not None:
            self.release_lease(reader, OS)
        return reader is not None

    # ---- time ----------------------------------------------------------------------------------

    def next_event_ms(self) -> int:
        """Return when `tick` will have something to do: ms since 1970, in the past if at once; 0:
        never (paging excepted). The expiry of the head or the next delayed message."""
        head = self.backing.head() if self._may_expire else None
        expiry_ms = 0 if head is None else head.expiry_ms
        return sooner(expiry_ms, self.delays.next_ms())

    def tick(self, now_ms: int) -> bool:
        """Do a slice of everything due at this time (ms since 1970): expired heads, delayed
        messages, lowered limits, paging, alerts. Return True if there is more to do at once."""
        has_more = False
        try:
            has_more = self.expire()
            if self._must_trim and self._trim(is_tick=True):
                has_more = True
            if self.delays.step(now_ms):
                has_more = True
            if self.backing.resume():
                has_more = True
            else:
                self.backing.inhale(at_rest=True)
            if self.delays.resume():
                has_more = True
            if self._has_leases() and self._go_on_releasing():
                has_more = True
        except DiskFullError:  # reported by the engine; the next tick tries again
            has_more = False
        if self._leasing is not None:
            self._leasing.rest()
        if self._alerts.is_set:
            self._check_alerts(now_ms)
        return has_more

    def _check_alerts(self, now_ms: int) -> None:
        backing = self.backing
        now_s = self._clock.monotonic()
        self._alerts.check(now_s, backing.len(), backing.body_bytes())
        if self.options.alert_age_up is None or now_ms - self._looked_at_age_ms < AGE_CHECK_MS:
            return
        self._looked_at_age_ms = now_ms
        self.expire()
        oldest = backing.browse(None, 1, in_pieces=True)
        came_ms = oldest[0].message.time * 1000 if oldest else 0
        age_ms = max(now_ms - came_ms, 0) if came_ms else 0
        self._alerts.check_age(now_s, age_ms)

    # ---- counts --------------------------------------------------------------------------------

    def len(self) -> int:
        """Return the number of ready messages, without delayed ones."""
        return self.backing.len()

    def depth(self) -> int:
        """Return the number of ready, pending and leased messages."""
        return self.backing.depth()

    def delayed(self) -> int:
        """Return the number of delayed messages."""
        return self.delays.count()

    def body_bytes(self) -> int:
        """Return the bytes of the bodies of all ready messages."""
        return self.backing.body_bytes()

    def ram_bytes(self) -> int:
        """Return the bytes counted in RAM, with parts for delayed messages."""
        return self.backing.ram_bytes() + sum(part.ram_bytes() for part in self.delays.parts())

    def info(self) -> dict[str, int | float | str]:
        """Return the backing queue's counters (BackingQueue.info), and name, delayed, takers, how
        many were rejected, expired, maxlen and delivery_limit, dead_letters_dropped,
        dead_letter_cycles, and alerts_raised (their kinds)."""
        found = self.backing.info()
        found["name"] = self.text_name
        found["ram_bytes"] = self.ram_bytes()
        found["delayed"] = self.delays.count()
        found["takers"] = self.takers
        for reason, n in self.dead_letters.counts.items():
            found[reason] = n
        found["dead_letters_dropped"] = self.dead_letters.dropped
        found["dead_letter_cycles"] = self.dead_letters.cycles
        found["alerts_raised"] = ",".join(self._alerts.raised())
        return found

    # ---- life ----------------------------------------------------------------------------------

    def purge(self, mode: int = OS) -> int:
        """Delete all ready messages, without dead-lettering; delayed ones stay. Return how many."""
        return self.backing.purge(mode)

    def purge_delayed(self, mode: int = OS) -> int:
        """Delete all delayed messages. Return how many."""
        return self.delays.purge(mode)

    def delete(self, mode: int = DISK, *, force: bool = False) -> int:
        """Delete the queue with all its messages, delayed or not, in one record. Return the LSN to
        wait for; 0 if it is not durable. Raises QueueLeasedError, unless forced, if readers have
        leased messages and not committed them."""
        if not force and self._has_leases():
            messages, readers = self._leases().open_leases()
            if messages:
                raise QueueLeasedError(self.text_name, messages, readers)
        with self._engine.journal.one_record(mode) as one:
            self.delays.delete(mode)
            self.backing.delete_and_terminate(mode)
        if self._leasing is not None:
            self._leasing.delete()
        return one.lsn

    def unlink(self) -> None:
        """Drop the parts' references to the queue, and those to its owner, after it was deleted: in
        a cycle it would stay in memory until a full collection."""
        self.serve = _serve_nobody
        self._route_of = _find_no_route
        self.dead_letters.on_sent = nothing
        self.delays.arrive = _arrive_nowhere
        self.backing.unlink()

    def terminate(self) -> None:
        """Stop in order, right before the engine's `close`."""
        self.dead_letters.finish()
        if self._leasing is not None:
            self._leasing.close()
        self.delays.terminate()
        self.backing.terminate()

    def _holds_expiries(self) -> bool:
        """Return whether anything recovered may expire: then each fetch examines the head."""
        for index in self.backing.indexes():
            if any(s.expiry_ms for s in index.segments.values()):
                return True
        return False

    # ---- options -------------------------------------------------------------------------------

    def set_options(self, options: QueueOptions) -> None:
        """Apply new options. Messages keep the expiry that they have; `tick` shortens a queue that
        is too long, in slices. Raises OptionError if priorities or the class change."""
        if options.priorities != self._priorities:
            expected = f"{self._priorities}, which is fixed for the life of queue {self.text_name}"
            raise OptionError("priorities", options.priorities, expected)
        if options.backing_queue != self.options.backing_queue:
            is_now = self.options.backing_queue or "the operator's choice"
            expected = f"{is_now}, which is fixed for the life of queue {self.text_name}"
            raise OptionError("backing_queue", options.backing_queue, expected)
        self._apply_options(options, has_memory=self.options.memory_bytes != options.memory_bytes)

    def _apply_options(self, options: QueueOptions, *, has_memory: bool) -> None:
        self.options: QueueOptions = options
        self._max_length: MaxLength = MaxLength(self.text_name, options)
        self._requeue_delay_ms: tuple[int, int] | None = options.requeue_delay_ms
        self._must_trim = self._max_length.is_set and self._max_length.drops_head
        self.dead_letters.route = self._route_of(options)
        thresholds = thresholds_of(options)
        known = thresholds.all()
        if known != self._known_thresholds:  # otherwise alerts that have fired stay raised
            self._known_thresholds = known
            self._alerts: Alerts = Alerts(
                self.text_name, thresholds, self._on_alert, self._on_alert_over
            )
        # Whether a publish depends only on the message.
        self._is_plain: bool = not (
            self._max_length.is_set or options.ttl_ms is not None or options.delay_ms
            or self._alerts.is_set
        )  # fmt: skip
        memory = options.memory_bytes
        if has_memory:
            most, least = (UNLIMITED, UNLIMITED) if memory is None else memory
            self.backing.set_limits(most, least)
            self.delays.set_memory(None if memory is None else most)
        if memory is not None and (warning := thresholds.warning(memory[0])) is not None:
            self._event("warning", f"queue {self.text_name!r}: {warning}")
        self.backing.set_queue_mode("lazy" if options.lazy else "default")
        if options.max_attempts is not None:
            self.backing.count_crashes()

    def _route(self, options: QueueOptions) -> DeadLetterRoute | None:
        target = options.dead_letter_to
        return None if target is None else QueueRoute(target, self.headers, self._find)

    # ---- publish -------------------------------------------------------------------------------

    def publish(
        self, header: bytes, body: bytes, mode: int, *, priority: int = 0,
        ttl_ms: int | None = None, delay_ms: int | None = None,
    ) -> int:  # fmt: skip
        """Publish to this queue alone. Return the LSN to wait for in this mode, 0 for a transient
        message. A priority above the highest counts as the highest.

        ttl_ms: it expires after that, or the queue's ttl if that is sooner, from when it is due. 0:
        a consumer that waits now (`takers`) gets it; if none waits, it expires as soon as it is the
        head. delay_ms: it is due after that; None: the queue's delay.

        Raises QueueFullError if the queue refuses it, and the engine's errors (DiskFullError ...).
        Then the message is not in the queue.
        """
        if priority > self._priorities:
            header = self._with_priority(header, priority)
        if self._is_plain and ttl_ms is None and not delay_ms:
            self.backing.publish(header, body, mode, priority=priority)
        else:
            size = len(body)
            if self._max_length.may_refuse:
                self._check_room(header, body, mode, priority)
            options = self.options
            delay = options.delay_ms if delay_ms is None else delay_ms
            now_ms = expiry_ms = 0
            if delay > 0 or ttl_ms is not None or options.ttl_ms is not None:
                now_ms = self._clock.wall_ms()
                if delay > 0:
                    self._publish_later(header, body, mode, priority, ttl_ms, now_ms, delay)
                    return self._lsn(mode)
                expiry_ms = expiry_at(now_ms, ttl_ms, options.ttl_ms)
            if expiry_ms:
                if expiry_ms == now_ms:
                    if self._wanted() > self.backing.len():
                        expiry_ms += GRACE_MS
                        self._has_for_now = True
                    elif self._is_expired_head(options.ttl_ms):
                        return self.publish_dead(header, body, mode, priority)
                self._may_expire = True
            self.backing.publish(header, body, mode, expiry_ms=expiry_ms, priority=priority)
            self.after_publish(size)
        return self._lsn(mode)

    def publish_many(
        self, messages: list[NewMessage], mode: int, *, delay_ms: int | None = None
    ) -> int:
        """Publish all messages to this queue. Their expiry_ms are dates; the queue's ttl applies,
        too. Return the LSN to wait for, 0 if they are transient. Raises QueueFullError if they do
        not all fit: none is in the queue, or dead-lettered."""
        if not messages:
            return 0
        if not self._is_plain:
            self.before_publish(sum(len(m.body) for m in messages), len(messages))
        now_ms = self._clock.wall_ms()
        delay = self.options.delay_ms if delay_ms is None else delay_ms
        ttl_ms = self.options.ttl_ms
        if ttl_ms == 0:  # each goes to a waiting consumer, or dies
            return max([
                self.publish(m.header, m.body, mode, priority=m.priority, delay_ms=delay)
                for m in messages
            ])  # fmt: skip
        for m in messages:
            if m.priority > self._priorities:
                m.header = self._with_priority(m.header, m.priority)
            if ttl_ms is not None:
                m.expiry_ms = sooner(m.expiry_ms, now_ms + max(delay, 0) + ttl_ms)
            if m.expiry_ms:
                self._may_expire = True
        if delay > 0:
            for m in messages:
                header = self._with_priority(m.header, m.priority)
                self.delays.publish(header, m.body, mode, now_ms + delay, now_ms, m.expiry_ms)
        else:
            self.backing.batch_publish(messages, mode)
            if not self._is_plain:
                for m in messages if self._alerts.is_set else messages[:1]:
                    self.after_publish(len(m.body))
        return self._lsn(mode)

    def _publish_later(
        self, header: bytes, body: bytes, mode: int, priority: int, ttl_ms: int | None,
        now_ms: int, delay_ms: int,
    ) -> None:  # fmt: skip
        due_ms = now_ms + delay_ms
        expiry_ms = expiry_at(due_ms, ttl_ms, self.options.ttl_ms)
        if expiry_ms == due_ms:
            expiry_ms += GRACE_MS
            self._has_for_now = True
        header = self._with_priority(header, priority)
        self.delays.publish(header, body, mode, due_ms, now_ms, expiry_ms)

    def publish_dead(self, header: bytes, body: bytes, mode: int, priority: int) -> int:
        """Dead-letter or drop a message of ttl 0 for which no consumer waits."""
        if self.dead_letters.route is None:
            self.dead_letters.count(EXPIRED, 1)
            return 0
        return self.dead_letters.send_new(header, body, priority, EXPIRED, mode)

    def _check_room(self, header: bytes, body: bytes, mode: int, priority: int) -> None:
        """Raise QueueFullError if the message does not fit, after dead-lettering it if the options
        say so."""
        try:
            self.before_publish(len(body))
        except QueueFullError:
            self.refuse(header, body, priority, mode)
            raise

    def _with_priority(self, header: bytes, priority: int) -> bytes:
        """Return the header with the priority, for a place whose part does not imply it."""
        if not priority or self.headers.priority(header) == priority:
            return header
        return self.headers.with_(header, priority=min(priority, 255))

    def _lsn(self, mode: int) -> int:
        return self._engine.log.last_lsn if mode != NONE and self.is_durable else 0

    # ---- for owners that publish themselves: to several queues, or in a transaction ------------

    def before_publish(self, body_bytes: int, n: int = 1) -> None:
        """Raise QueueFullError if n messages of `body_bytes` together are refused, beside those for
        which room is reserved."""
        n += self._reserved
        body_bytes += self._reserved_bytes
        try:
            self._max_length.check(self.backing, n, body_bytes)
        except QueueFullError:
            if not self.has_consumers:
                raise
            room = self.serve(self.backing.len() + n)
            self._max_length.check(self.backing, n, body_bytes, room)

    def reserve(self, body_bytes: int, n: int) -> None:
        """Keep room for n messages of `body_bytes` together, which the caller will publish whatever
        comes in between. Negative: they come now, or never."""
        self._reserved += n
        self._reserved_bytes += body_bytes

    def is_full_for(self, body_bytes: int) -> bool:
        """Return whether the queue refuses a message of so many bytes; `refuse` must follow."""
        try:
            self.before_publish(body_bytes)
        except QueueFullError:
            return True
        return False

    def refuse(
        self, header: bytes, body: bytes, priority: int, mode: int,
        stored: QueuedMessage | None = None,
    ) -> None:  # fmt: skip
        """Dead-letter a message that is refused, if the options say so. stored: as for
        `Target.accept`."""
        if self._max_length.dead_letters_refused:
            self.dead_letters.send_new(header, body, priority, MAXLEN, mode, stored, may_wait=True)

    def dies_at_once(self, delay_ms: int | None) -> bool:
        """Return whether a message of ttl 0 and this delay finds no consumer that waits now, and no
        message before it that stays: then `publish_dead` must follow."""
        delay = self.options.delay_ms if delay_ms is None else delay_ms
        return (
            delay <= 0
            and self._wanted() <= self.backing.len()
            and self._is_expired_head(self.options.ttl_ms)
        )

    def _is_expired_head(self, ttl_ms: int | None) -> bool:
        """Return whether a message of ttl 0 that nobody waits for would be the head, or all before
        it have a ttl of 0, too. ttl_ms: the queue's."""
        return ttl_ms == 0 or not self.backing.len()

    def _wanted(self) -> int:
        """Return how many ready messages consumers wait for. Consumers are served first."""
        if self.has_consumers:
            self.takers = self.serve(self.backing.len() + 1)
        return self.takers

    def plan(
        self, header: bytes, *, priority: int = 0, ttl_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> Plan:  # fmt: skip
        """Return where a message is to be published (Plan.index), with which header and expiry.
        Each plan must be ended by `planned` or `unplan`: until then its delay part stays. A message
        of ttl 0 is for a consumer that waits now, as in `publish`, or else the first to expire."""
        options = self.options
        delay = options.delay_ms if delay_ms is None else delay_ms
        due_ms = expiry_ms = 0
        if delay > 0 or ttl_ms is not None or options.ttl_ms is not None:
            due_ms = self._clock.wall_ms() + max(delay, 0)
            expiry_ms = expiry_at(due_ms, ttl_ms, options.ttl_ms)
        if expiry_ms and expiry_ms == due_ms and (delay > 0 or self._wanted() > self.backing.len()):
            expiry_ms += GRACE_MS
            self._has_for_now = True
        if expiry_ms:
            self._may_expire = True
        if delay > 0:
            bucket = self.delays.bucket(due_ms, due_ms - delay)
            bucket.pins += 1
            header = self.delays.header(self._with_priority(header, priority), expiry_ms)
            return Plan(bucket.part.index(), header, due_ms, 0, bucket)
        if priority > self._priorities:
            header = self._with_priority(header, priority)
        part = min(priority, self._priorities)
        return Plan(self.backing.index(part), header, expiry_ms, part, None)

    def hold(self, plan: Plan, seq: int, lsn: int, mode: int) -> None:
        """Deliver what was published at `seq` of the plan's index, and all after it, only once the
        LSN is settled. A delayed message is not held."""
        if plan.bucket is None:
            self.backing.hold(plan.part << PART_SHIFT | seq, lsn, mode)

    def planned(self, plan: Plan, seq: int, body_bytes: int, lsn: int = 0, mode: int = OS) -> None:
        """Report that the message of the plan was published at `seq` of its index. lsn: it is
        delivered once that is settled in this mode; 0: at once (a plain publish)."""
        bucket = plan.bucket
        if bucket is not None:
            bucket.pins -= 1
            self.delays.touched(bucket, self._clock.wall_ms())
            return
        if lsn:
            self.backing.hold(plan.part << PART_SHIFT | seq, lsn, mode)
        self.after_publish(body_bytes)

    def unplan(self, plan: Plan) -> None:
        """Report that the message of the plan will not be published."""
        if plan.bucket is not None:
            plan.bucket.pins -= 1
            self.delays.touched(plan.bucket, self._clock.wall_ms())

    def after_publish(self, body_bytes: int) -> None:
        """Apply limits and check alerts after a message of so many bytes arrived."""
        if self._max_length.is_set and self._max_length.drops_head:
            self._trim()
        if self._alerts.is_set:
            now_s = self._clock.monotonic()
            backing = self.backing
            self._alerts.check(now_s, backing.len(), backing.body_bytes(), body_bytes)

    # ---- dead letters and delayed messages that arrive -------------------------------------------

    def destination(self, header: bytes, priority: int) -> Destination:
        if priority > self._priorities:
            header = self._with_priority(header, priority)
        expiry_ms = self._own_expiry()
        return Destination(self.backing, min(priority, self._priorities), header, expiry_ms)

    def accept(
        self, header: bytes, body: bytes, priority: int, mode: int,
        stored: QueuedMessage | None = None,
    ) -> int:  # fmt: skip
        if priority > self._priorities:
            header = self._with_priority(header, priority)
        expiry_ms = self._own_expiry()
        if stored is None:
            self.backing.publish(header, body, mode, expiry_ms=expiry_ms, priority=priority)
        else:
            index = self.backing.index(min(priority, self._priorities))
            own_mode = mode if index.is_durable else NONE
            self._engine.publish_placed([index], header, stored, own_mode, expiry_ms)
        return self._lsn(mode)

    def _own_expiry(self) -> int:
        """Return the expiry of a dead letter that arrives now, by this queue's ttl; 0 for never."""
        ttl_ms = self.options.ttl_ms
        if ttl_ms is None:
            return 0
        if not ttl_ms and self._wanted() > self.backing.len():
            ttl_ms = GRACE_MS
            self._has_for_now = True
        self._may_expire = True
        return self._clock.wall_ms() + ttl_ms

    def refuses(self, body_bytes: int) -> bool:
        limits = self._max_length
        if not limits.is_set or limits.drops_head:
            return False
        try:
            self.before_publish(body_bytes)
        except QueueFullError:
            return True
        return False

    def passes_on(self) -> bool:
        return self._max_length.dead_letters_refused and self.dead_letters.route is not None

    def takes_runs(self) -> bool:
        return not self._max_length.is_set and self.options.ttl_ms != 0

    def pass_on(
        self, header: bytes, body: bytes, priority: int, mode: int,
        stored: QueuedMessage | None = None,
    ) -> int:  # fmt: skip
        return self.dead_letters.send_new(header, body, priority, MAXLEN, mode, stored)

    def keeps_persistent(self) -> bool:
        return self.is_durable

    def after_dead_letters(self, hops: int = 0) -> None:
        if self.drops_returned:
            if hops < NESTED_HOPS_MAX:
                self._trim(hops)
            elif not self._is_trimming:
                self._must_trim = True
        self._ready()

    def after_batch(self) -> None:
        """Drop heads that do not fit: rows of a batch are never refused, whatever the overflow
        is."""
        if self._max_length.is_set:
            self._trim()
        self._ready()

    def _arrive(
        self, source: BackingQueue, delivery: Delivery, header: bytes, expiry_ms: int
    ) -> None:
        """Move a delayed message that is due into the queue. Its ttl was counted when it was
        delayed."""
        priority = self.headers.priority(header)
        part = min(priority, self._priorities)
        if expiry_ms:
            self._may_expire = True
        destination = Destination(self.backing, part, header, expiry_ms)
        move_to([destination], source, delivery, self._mode, self._engine)
        self.after_publish(delivery.message.size)
        self._ready()

    # ---- messages that leave undelivered ---------------------------------------------------------

    @property
    def drops_returned(self) -> bool:
        """Whether a message that comes back may be dropped because of the limits."""
        return self._max_length.is_set and self._max_length.drops_head

    def _trim_returned(self, n: int) -> None:
        """Apply the limits after n messages came back. As in RabbitMQ they leave before anything is
        delivered again, or a queue that may hold none would deliver one for ever. The owner serves
        consumers that wait before it puts them back."""
        if self.drops_returned:
            self._trim(returned=n)

    def _trim(self, hops: int = 0, returned: int = 0, *, is_tick: bool = False) -> bool:
        """Remove a slice of heads beyond the limits. Return True if there is more to do at
        once. Not re-entrant: if a dead letter comes back to this queue, the running call
        handles it. A full disk, which the engine reports, or one that cannot be read, does not fail
        the publish; the next tick tries again, and raises the OSError (is_tick). returned: how many
        messages came back: so many may leave, and no consumer is served."""
        if self._is_trimming:
            return False
        if self.dead_letters.waiting:
            self._must_trim = True
            return False
        dead_letter = None if self.dead_letters.route is None else self._dead_letter_overlong
        self._is_trimming = True
        self._must_trim = True
        room = 0
        try:
            if self.has_consumers and not returned and self._max_length.is_over(self.backing):
                room = self.serve(self.backing.len())
            self.dead_letters.hops = hops
            most = SLICE if dead_letter is None else self._dead_slice()
            n = self._max_length.trim(self.backing, max(returned, most), dead_letter, room)
        except DiskFullError:
            return False
        except OSError:
            if is_tick:
                raise
            return False
        finally:
            self._is_trimming = False
            self.dead_letters.hops = 0
        if n and dead_letter is None:
            self.dead_letters.count(MAXLEN, n)
        self._must_trim = self._max_length.is_over(self.backing)
        return self._must_trim and self._max_length.is_over(self.backing, room)

    def _go_on_dying(self) -> None:
        """Dead-letter what has waited for large dead letters."""
        self.forget_expired()
        if self._must_trim:
            self._trim()

    def _dead_slice(self) -> int:
        """Return how many messages one slice may dead-letter: DEAD_SLICE, but only a few times as
        many copies of them."""
        copies_max = DEAD_SLICE * DEAD_COPIES
        return max(1, min(DEAD_SLICE, copies_max // max(self.dead_letters.places, 1)))

    def forget_expired(self) -> None:
        """Remove a slice of expired heads; if the disk is full or cannot be read, a later tick
        does."""
        if self._may_expire:
            with suppress(DiskFullError, OSError):
                self.expire()

    def expire(self) -> bool:
        """Remove a slice of expired heads. Return True if the head is still expired."""
        if not self._may_expire or self.dead_letters.waiting:
            return False
        dead_letter = None if self.dead_letters.route is None else self._dead_letter_expired
        most = SLICE if dead_letter is None else self._dead_slice()
        now_ms = self._clock.wall_ms()
        n, has_more = expire(self.backing, now_ms, most, dead_letter, self._mode)
        if n and dead_letter is None:
            self.dead_letters.count(EXPIRED, n)
        elif n and not has_more:  # some of them may have become ready again
            head = self.backing.head()
            return head is not None and is_expired(head.expiry_ms, now_ms)
        return has_more

    def _dead_letter(self, delivery: Delivery, reason: str, attempts: int, mode: int) -> int:
        """Dead-letter a pending message, or drop it. Return the LSN."""
        if self.dead_letters.route is None:
            self.backing.ack([delivery.tag], mode)
            self.dead_letters.count(reason, 1)
            return self._engine.log.last_lsn if delivery.message.persistent else 0
        priority = self._priority(delivery)
        return self.dead_letters.send(self.backing, delivery, priority, reason, attempts, mode)

    def _dead_letter_head(self, tag: int, reason: str) -> None:
        """Dead-letter a dropped head, which is pending."""
        is_done = False
        try:
            delivery = self._pending(tag)
            self._dead_letter(delivery, reason, delivery.attempts, self._mode)
            is_done = True
        except CorruptionError as error:
            is_done = True  # it stays pending; a salvage may still find it
            self._event("corruption", f"queue {self.text_name!r}: {error}")
        finally:
            if not is_done:
                self.backing.requeue([tag], OS, attempted=False)

    def _dead_letter_expired(self, tags: list[int]) -> None:
        self._dead_letter_heads(tags, EXPIRED)

    def _dead_letter_overlong(self, tags: list[int]) -> None:
        self._dead_letter_heads(tags, MAXLEN)

    def _dead_letter_heads(self, tags: list[int], reason: str) -> None:
        """Dead-letter dropped heads, which are pending: those that go the same way together. Those
        that are left if it fails become ready again; so do expired ones if they go to more queues
        than those before."""
        done = 0
        try:
            while done < len(tags):
                n = self.dead_letters.send_run(self.backing, tags[done:], reason, self._mode)
                if not n:
                    n = 1
                    self._dead_letter_head(tags[done], reason)
                done += n
                if reason == EXPIRED and done >= self._dead_slice():
                    break
        finally:
            if done < len(tags):
                self.backing.requeue(tags[done:], OS, attempted=False)

    # ---- of one message ------------------------------------------------------------------------

    def _with_attempts(self, delivery: Delivery) -> Delivery:
        """Return the delivery with the attempts in its header added."""
        attempts = self.headers.attempts(delivery.message.header)
        if not attempts:
            return delivery
        return Delivery(delivery.tag, delivery.message, True, delivery.attempts + attempts)

    def _pending(self, tag: int) -> Delivery:
        """Return a pending message with its header, which may have left RAM with the body, and all
        its attempts. Raises SettledError."""
        found = self.backing.pending(tag)
        if found is not None and found.message.body is None:
            found = self.backing.pending(tag, with_header=True)
        if found is None:
            raise SettledError(self.text_name, tag)
        return self._with_attempts(found) if found.message.header else found

    def _priority(self, delivery: Delivery) -> int:
        return self.headers.priority(delivery.message.header) or delivery.tag >> PART_SHIFT

    # ---- events --------------------------------------------------------------------------------

    def _ready(self) -> None:
        if self._on_ready is not None:
            self._on_ready(self.name)
