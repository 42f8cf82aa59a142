"""Lease calls: what a reader asks of a classic queue, done in slices between turns.

A reader (a Spark query) leases messages of a durable queue: they are set aside for it, numbered by
ordinals 0, 1, 2 ... in the order of delivery, until it commits or releases them (docs: classic
queues as sources). A lease may be of a million messages, so each call is a chore:

    lease      what the pages of the lease lack is made from the queue (materialise), then slices
               of the queue's head are leased until there are enough, or the queue has no more; as
               many as were ready when it began, unless fewer are asked for
    describe   the pages as well; nothing is leased
    commit     all below an ordinal is acknowledged
    release    all that is leased is ready again, at its old places; the reader is forgotten

An answer comes when the records behind it are durable. Readers take turns (chores.py).

Not here: who waits for whom (lease_desk.py), arguments and permissions (operations_leases.py), what
a lease is (penstock.queues, penstock.storage), the frames in its pages, which whoever may open the
files reads (penstock.http).
"""

from abc import abstractmethod
from typing import TYPE_CHECKING

from penstock.broker import refusals
from penstock.broker.chores import AGAIN, ASLEEP, DONE, Chore, Pace, SliceSize
from penstock.broker.operation_args import Reply
from penstock.broker.served_queue import ServedQueue
from penstock.errors import RESOURCE_ERROR, AMQPError, ChannelError, PenstockError
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.leasing import SLICE_MESSAGES
from penstock.storage.durability import DISK

if TYPE_CHECKING:
    from penstock.broker.lease_desk import LeaseDesk
    from penstock.broker.vhost import VHost
    from penstock.queues.leasing import LeaseInfo

Info = dict[str, object]


class ReaderCall(Chore):
    """One call for one reader of one queue. replies: to all that asked for the same."""

    needs_pages: bool = False

    def __init__(self, desk: "LeaseDesk", queue: str, reader: str, reply: Reply) -> None:
        self.desk: LeaseDesk = desk
        self.vhost: VHost = desk.vhost
        self.queue: str = queue
        self.reader: str = reader
        self.replies: list[Reply] = [reply]
        self.is_over: bool = False

    def step(self) -> int:
        if self.is_over:
            return DONE
        queue = self.desk.find(self.queue, self.reader)
        if self.needs_pages and queue.amq.materialise(self.reader):
            return AGAIN
        try:
            return self.go_on(queue)
        except (PenstockError, OSError):
            raise
        except Exception as error:
            if self.vhost.engine.failed is None:
                self.vhost.restarts.failed(queue, error)
            raise

    @abstractmethod
    def go_on(self, queue: ServedQueue) -> int:
        """A slice; it calls `over` when there is nothing left to do."""

    def over(self, answer: Info, lsn: int) -> int:
        """Done: answered when this is durable (0: at once)."""
        self.is_over = True

        def tell() -> None:
            self.desk.over(self)  # not before: who is next may release what is told here
            for reply in self.replies:
                reply(answer)

        if lsn:
            self.vhost.when_settled(lsn, DISK, tell)
        else:
            tell()
        return DONE

    def failed(self, error: Exception) -> None:
        """It ends with this error."""
        if self.is_over:
            return
        self.is_over = True
        self.desk.over(self)
        told: AMQPError
        if isinstance(error, AMQPError):
            told = error
        elif isinstance(error, PenstockError | OSError):
            told = ChannelError(RESOURCE_ERROR, str(error))
        else:
            self.vhost.mistake(f"a lease of queue {self.queue!r}", error)
            told = AMQPError(541, f"{type(error).__name__}: {error}")
        for reply in self.replies:
            reply(told)


class Describe(ReaderCall):
    """See the head of this module."""

    needs_pages = True

    def go_on(self, queue: ServedQueue) -> int:
        return self.over(self.desk.told(queue, description(queue, self.reader)), 0)


class Lease(ReaderCall):
    """messages, size (bytes of bodies): of what is leased besides, at most; a message larger than
    that is leased if it is the first."""

    needs_pages = True

    def __init__(
        self, desk: "LeaseDesk", queue: str, reader: str, reply: Reply, messages: int, size: int
    ) -> None:
        super().__init__(desk, queue, reader, reply)
        self._messages = messages
        self._bytes = size
        self._has_begun = False
        self._lsn = 0
        self._pace = Pace(self.vhost.dispatch, DISK, self._wake)
        self._size = SliceSize(self.vhost.clock, SLICE_MESSAGES)

    def _wake(self) -> None:
        self.desk.wake(self)

    def go_on(self, queue: ServedQueue) -> int:
        amq = queue.amq
        if not self._has_begun:
            self._has_begun = True
            queue.used_at_ms = self.vhost.clock.wall_ms()
            self._messages = min(self._messages, amq.len())
        if self._messages <= 0 or self._bytes <= 0 or self._is_full(amq):
            return self._answer(queue)
        if self._pace.is_ahead():
            return ASLEEP
        engine = self.vhost.engine
        before = engine.last_lsn
        most = min(self._messages, self._size.begin())
        taken = amq.lease(self.reader, most, self._bytes, DISK)
        self._size.end()
        if engine.last_lsn != before:
            self._lsn = engine.last_lsn
            self._pace.logged(self._lsn, 0)
            amq.backing.inhale()
        n = taken.next - taken.first
        self._messages -= n
        self._bytes -= taken.bytes
        self.vhost.dispatch.mark(queue)
        if n or taken.has_more:
            return AGAIN
        held = amq.held()
        if held is None:
            return self._answer(queue)
        self.vhost.when_settled(held[0], held[1], self._wake)
        return ASLEEP

    def _is_full(self, amq: AMQQueue) -> bool:
        """Whether the next message would be too much."""
        head = amq.backing.head() if self._lsn else None
        return head is not None and head.size > self._bytes

    def _answer(self, queue: ServedQueue) -> int:
        return self.over(self.desk.told(queue, description(queue, self.reader)), self._lsn)


class Commit(ReaderCall):
    """All below `offset` is done with."""

    def __init__(
        self, desk: "LeaseDesk", queue: str, reader: str, reply: Reply, offset: int
    ) -> None:
        super().__init__(desk, queue, reader, reply)
        self._offset = offset
        self._lsn = 0

    def go_on(self, queue: ServedQueue) -> int:
        known = info_of(queue.amq, self.reader)
        head = 0 if known is None else known.next
        if self._offset > head:
            what = self.vhost.table.called(self.queue)
            raise refusals.precondition_failed(
                f"reader '{self.reader}' of {what} cannot commit {self._offset}: it has leased "
                f"messages below {head}"
            )
        if known is None or self._offset <= known.committed:
            return self.over({"first": 0 if known is None else known.committed}, 0)
        engine = self.vhost.engine
        before = engine.last_lsn
        acked = known.committed
        has_more = queue.amq.commit_lease(self.reader, self._offset, self.vhost.mode)
        if engine.last_lsn != before:
            self._lsn = engine.last_lsn
        known = info_of(queue.amq, self.reader)
        first = self._offset if known is None else known.committed
        queue.acked += first - acked
        self.vhost.dispatch.mark(queue)
        if has_more:
            return AGAIN
        self.desk.ended(queue)
        return self.over({"first": first}, self._lsn)


class Release(ReaderCall):
    """The reader is forgotten, and its messages are ready again."""

    def __init__(self, desk: "LeaseDesk", queue: str, reader: str, reply: Reply) -> None:
        super().__init__(desk, queue, reader, reply)
        self._count = -1
        self._lsn = 0

    def go_on(self, queue: ServedQueue) -> int:
        amq = queue.amq
        known = info_of(amq, self.reader)
        if known is None:  # there is none; or the queue's tick has done the last slice
            self.desk.ended(queue)
            return self.over({"messages": max(self._count, 0)}, self._lsn)
        if self._count < 0:
            self._count = known.next - known.committed
        engine = self.vhost.engine
        before = engine.last_lsn
        has_more = amq.release_lease(self.reader, DISK)
        if engine.last_lsn != before:
            self._lsn = engine.last_lsn
        self.vhost.dispatch.mark(queue)
        if has_more:
            return AGAIN
        self.desk.ended(queue)
        return self.over({"messages": self._count}, self._lsn)


# ---- telling -------------------------------------------------------------------------------------


def info_of(amq: AMQQueue, reader: str) -> "LeaseInfo | None":
    """What is known of the reader; None: it has leased nothing, or was released."""
    for known in amq.leases():
        if known.reader == reader:
            return known
    return None


def description(queue: ServedQueue, reader: str) -> Info:
    """Of a reader's lease; of one that is not known too."""
    known = info_of(queue.amq, reader)
    if known is None:
        return {
            "name": queue.name, "reader": reader, "first": 0, "head": 0, "ready": queue.len(),
            "ready_bytes": queue.amq.body_bytes(), "bytes": 0, "since_ms": 0, "path": "",
            "stream_id": "", "last_time_us": 0,
        }  # fmt: skip
    return told(queue, known)


def told(queue: ServedQueue, known: "LeaseInfo") -> Info:
    """Of a lease. first: what is committed; head: behind the last that is leased; ready: messages
    of the queue now; since_ms: when the oldest that is not committed was leased, 0 for none."""
    return {
        "name": queue.name,
        "reader": known.reader,
        "first": known.committed,
        "head": known.next,
        "ready": queue.len(),
        "ready_bytes": queue.amq.body_bytes(),
        "bytes": known.bytes,
        "since_ms": known.since_ms,
        "path": known.path,
        "stream_id": known.stream_id.hex(),
        "last_time_us": known.last_time_us,
    }
