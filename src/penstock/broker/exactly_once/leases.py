"""Leases: messages of classic queues that a reader takes, and commits or releases later.

A reader (a Spark query) leases messages of a durable queue. They are set aside for it, numbered by
ordinals 0, 1, 2 ... in the order of delivery, until it commits or releases them. A lease may be of
a million messages, so each request is a background task, done in slices between turns:

    DescribeLease    writes the pages of the lease that are missing, from the queue (materialise)
    LeaseMessages    the same; then leases slices of the queue's head until there are enough or the
                     queue has no more: as many as were ready when it began, unless fewer are asked
                     for
    CommitLease      acknowledges all messages below an ordinal
    ReleaseLease     makes all leased messages ready again, at their old places; forgets the reader

An answer is sent when its records are durable. LeaseManager runs the requests of one reader one
after the other; different readers do not wait for each other, and take turns. A LeaseMessages that
arrives while another of that reader waits is the same request and gets the same answer.

**Owners.** Two programs that use one reader's name would both read what is leased to it. So a
program owns the reader while it runs. It chooses a token at random, asks to own the reader, and
sends the token with every call. Each call renews the ownership for some seconds.

    no owner, or one that did not call in time   whoever asks owns the reader
    an owner that calls                          others are refused
    an owner that lost the reader to another     is refused from then on (fenced): it slept, or was
                                                 cut off, for longer than its seconds

Calls without a token are refused only while there is an owner, so a program that owns nothing works
as long as it is alone. Operators release without a token. Owners are in RAM. After a start of the
vhost a reader that has something leased is given to a program that has held it before (`is_held`)
or sends its token; to a new one only when the seconds that it asks for have passed since the start.

**Deleting.** A queue of which messages are leased is deleted only by force, does not expire, and
does not go with its last consumer (QueueTable). After a forced deletion the next request of each
reader that had messages is refused, also if there is another queue of that name by then: so a query
does not read on in a queue that is not its own. This is remembered until the vhost restarts.

**Old leases.** A lease has no time-out, because giving its messages to others would deliver them
twice. A lease whose oldest message is not committed after `alert_s` is reported as an event,
`lease_old`, once per reader and hour, and `list_leases` shows is_old. `penstock release lease`
makes its messages ready again.

The pages of a lease are read by whoever may open the files (penstock.http).
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final

from penstock.broker import refusals
from penstock.broker.background_tasks import (
    AGAIN,
    ASLEEP,
    DONE,
    BackgroundTask,
    BackgroundTasks,
    Pace,
    SliceSize,
)
from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.dispatch import Reply
from penstock.broker.queue_table import QueueRestarts, QueueTable
from penstock.broker.vhost import VHost
from penstock.errors import (
    INTERNAL_ERROR,
    RESOURCE_ERROR,
    RESOURCE_LOCKED,
    AMQPError,
    ChannelError,
    PenstockError,
)
from penstock.queues.amq_queue import SLICE_MESSAGES, AMQQueue, LargeHead, LeaseInfo
from penstock.storage.files.durability import DISK

OWNERS_MAX: Final = 10_000
USER_OWNERS_MAX: Final = 2_500
READERS_MAX: Final = 4_000  # with a lease, which takes some 14 KiB
USER_READERS_MAX: Final = 1_000
LOST_MAX: Final = 1000  # readers whose queue was deleted, remembered until their next request
LOOK_S: Final = 10.0  # between two looks at the age of leases
REPEAT_S: Final = 3600.0  # between two events of one reader

Info = dict[str, object]
Key = tuple[str, str]  # queue, reader


class LeaseManager:
    """The leases of one vhost. Reports `lease_old`."""

    def __init__(self, vhost: VHost) -> None:
        self.table: QueueTable = vhost.table
        self.restarts: QueueRestarts = vhost.restarts
        self.background: BackgroundTasks = vhost.background
        self.alert_s: float = vhost.settings.lease_alert_s
        table = self.table
        self.owners: LeaseOwners = LeaseOwners(table)
        self.readers: LeaseReaders = LeaseReaders(table)
        self._on_event = vhost.event
        self._clock = table.clock
        self._lines: dict[Key, deque[LeaseRequest]] = {}
        self._lost: dict[Key, int] = {}  # how many messages readers of deleted queues had
        self._reported_s: dict[Key, float] = {}
        self._looked_s: float = -LOOK_S
        self.commits: int = 0  # that acknowledged messages
        self.released: int = 0  # messages that became ready again
        table.on_leased_deleted = self._deleted
        vhost.on_tick.append(self.tick)
        for name in table.leased_names():
            for reader, lease in table.leases(name).items():
                if lease.is_releasing:  # the vhost ended during the release
                    self.request(ReleaseLease(self, name, reader, _ignore))

    # ---- requests ------------------------------------------------------------------------------

    def request(self, request: "LeaseRequest") -> None:
        """Queue a request; it begins when those before it for that reader have ended."""
        line = self._lines.setdefault((request.queue, request.reader), deque())
        if line and isinstance(request, LeaseMessages) and isinstance(line[-1], LeaseMessages):
            line[-1].replies += request.replies
            return
        line.append(request)
        if len(line) == 1:
            self.background.wake(request)

    def wake(self, request: "LeaseRequest") -> None:
        """Continue a request that sleeps."""
        if not request.is_over:
            self.background.wake(request)

    def over(self, request: "LeaseRequest") -> None:
        """Begin the next request after this one has ended."""
        key = request.queue, request.reader
        line = self._lines[key]
        assert line[0] is request, "requests of one reader end in order"
        line.popleft()
        if line:
            self.background.wake(line[0])
        else:
            del self._lines[key]

    def find(self, name: str, reader: str) -> BrokerQueue:
        """Return the queue to lease from. ChannelError: 404 (none, crashed, or the queue that the
        reader had leased from was deleted), 406 (nothing can be leased of it)."""
        what = self.table.called(name)
        lost = self._lost.pop((name, reader), 0)
        if lost:
            raise refusals.not_found(
                f"{what}: it was deleted while reader '{reader}' had {lost} messages leased"
            )
        queue = self.table.find_queue(name)
        if not isinstance(queue, BrokerQueue):
            raise refusals.precondition_failed(
                f"{what} is a stream: it is read by offsets, and nothing of it is leased"
            )
        if not queue.is_durable or queue.is_exclusive:
            kind = "exclusive" if queue.is_exclusive else "not durable"
            raise refusals.precondition_failed(
                f"{what} is {kind}: messages are leased of durable queues only, because a lease "
                "outlives connections and restarts"
            )
        return queue

    def ended(self, queue: BrokerQueue) -> None:
        """Note that a lease has ended, or a part of it: an auto-delete queue may be deleted now."""
        queue.used_at_s = self._clock.monotonic()
        if queue.had_consumer:
            self.table.consumer_gone(queue)

    def _deleted(self, name: str, leases: dict[str, int]) -> None:
        """Remember that the queue was deleted by force. leases: reader -> messages it had."""
        for reader, count in leases.items():
            self._lost.pop((name, reader), None)
            while len(self._lost) >= LOST_MAX:
                del self._lost[next(iter(self._lost))]
            self._lost[name, reader] = count
            self._reported_s.pop((name, reader), None)

    # ---- descriptions --------------------------------------------------------------------------

    def queues(self) -> list[str]:
        """Return the names of the queues with leases, sorted."""
        return sorted(self.table.leased_names())

    def of(self, name: str) -> Iterator[Info]:
        """Describe the leases of the queue of this name, by reader. Opens it if it is not open."""
        queue = self.table.usable(name)
        if isinstance(queue, BrokerQueue):
            yield from self.of_queue(queue)

    def of_queue(self, queue: BrokerQueue) -> Iterator[Info]:
        """Describe the leases of one queue, by reader."""
        for one in sorted(queue.amq.leases(), key=_reader_of):
            yield self._description(queue, one.reader, one)

    def describe(self, queue: BrokerQueue, reader: str) -> Info:
        """Describe a reader's lease; numbers are 0 if the reader is not known."""
        return self._description(queue, reader, queue.amq.lease_info(reader))

    def _description(self, queue: BrokerQueue, reader: str, known: LeaseInfo | None) -> Info:
        """first: all below is committed; head: after the last that is leased; ready: messages of
        the queue now; since_ms: when the oldest uncommitted one was leased, 0 for none."""
        since_ms = 0 if known is None else known.since_ms
        return {
            "name": queue.name,
            "reader": reader,
            "first": 0 if known is None else known.committed,
            "head": 0 if known is None else known.next,
            "ready": queue.len(),
            "ready_bytes": queue.amq.body_bytes(),
            "bytes": 0 if known is None else known.bytes,
            "since_ms": since_ms,
            "path": "" if known is None else known.path,
            "stream_id": "" if known is None else known.stream_id.hex(),
            "last_time_us": 0 if known is None else known.last_time_us,
            "is_old": self._is_old(since_ms),
        }

    def _is_old(self, since_ms: int) -> bool:
        return since_ms > 0 and self._clock.wall_ms() - since_ms >= self.alert_s * 1000

    # ---- time ----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Report old leases; look at them every LOOK_S."""
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        still: dict[Key, float] = {}
        for name in self.table.leased_names():
            for reader, lease in self.table.leases(name).items():
                if not self._is_old(lease.since_ms):
                    continue
                key = name, reader
                reported_s = self._reported_s.get(key)
                if reported_s is None or now_s - reported_s >= REPEAT_S:
                    reported_s = now_s
                    self._report(name, reader, lease.count, lease.since_ms)
                still[key] = reported_s
        self._reported_s = still
        self.readers.forget_gone(self._lines)

    def _report(self, name: str, reader: str, count: int, since_ms: int) -> None:
        age_s = (self._clock.wall_ms() - since_ms) // 1000
        self._on_event(
            "lease_old",
            f"{self.table.called(name)}: reader '{reader}' has {count} messages leased, the "
            f"oldest for {age_s} s; if it is gone for good: penstock release lease",
            name, reader,
        )  # fmt: skip


# ---- requests ------------------------------------------------------------------------------------


class LeaseRequest(BackgroundTask):
    """A request of one reader of one queue. replies: of all that asked for the same."""

    needs_pages: bool = False

    def __init__(self, manager: LeaseManager, queue: str, reader: str, reply: Reply) -> None:
        self.manager: LeaseManager = manager
        self.engine = manager.table.engine
        self.dispatch = manager.background.dispatch
        self.queue: str = queue
        self.reader: str = reader
        self.replies: list[Reply] = [reply]
        self.is_over: bool = False
        self.lsn: int = 0  # of the last record

    def step(self) -> int:
        if self.is_over:
            return DONE
        queue = self.manager.find(self.queue, self.reader)
        if self.needs_pages and queue.amq.materialise(self.reader):
            return AGAIN
        before = self.engine.log.last_lsn
        try:
            return self.run_slice(queue, before)
        except (PenstockError, OSError):
            raise
        except Exception as error:
            if self.engine.failed is None:
                self.manager.restarts.failed(queue, error)
            raise

    @abstractmethod
    def run_slice(self, queue: BrokerQueue, before: int) -> int:
        """Do a slice; call `answer` when nothing is left. before: the last LSN before it."""

    def logged(self, before: int) -> bool:
        """Note the LSN of what was logged since `before`; return whether there is any."""
        last = self.engine.log.last_lsn
        if last == before:
            return False
        self.lsn = last
        return True

    def answer(self, answer: Info) -> int:
        """End the request; reply when its records are durable. Returns DONE."""
        self.is_over = True

        def reply_all() -> None:
            self.manager.over(self)  # not before: the next request may release what is answered
            for reply in self.replies:
                reply(answer)

        if self.lsn:
            self.dispatch.when_settled(self.lsn, DISK, reply_all)
        else:
            reply_all()
        return DONE

    def failed(self, error: Exception) -> None:
        """End the request with this error."""
        if self.is_over:
            return
        self.is_over = True
        self.manager.over(self)
        answer: AMQPError
        if isinstance(error, AMQPError):
            answer = error
        elif isinstance(error, PenstockError | OSError):
            answer = ChannelError(RESOURCE_ERROR, str(error))
        else:
            self.dispatch.internal_error(f"a lease of queue {self.queue!r}", error)
            answer = AMQPError(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        for reply in self.replies:
            reply(answer)


class DescribeLease(LeaseRequest):
    """See the head of this module."""

    needs_pages = True

    def run_slice(self, queue: BrokerQueue, before: int) -> int:
        return self.answer(self.manager.describe(queue, self.reader))


class LeaseMessages(LeaseRequest):
    """messages, size (bytes of bodies): how much is leased in addition, at most; a message larger
    than that is leased if it is the first."""

    needs_pages = True

    def __init__(
        self, manager: LeaseManager, queue: str, reader: str, reply: Reply, messages: int,
        size: int,
    ) -> None:  # fmt: skip
        super().__init__(manager, queue, reader, reply)
        self._messages = messages
        self._bytes = size
        self._has_begun = False
        self._pace = Pace(self.dispatch, DISK)
        self._size = SliceSize(manager.table.clock, SLICE_MESSAGES)
        self._head = LargeHead(self.engine)

    def _wake(self) -> None:
        self.manager.wake(self)

    def run_slice(self, queue: BrokerQueue, before: int) -> int:
        amq = queue.amq
        if not self._has_begun:
            self._has_begun = True
            queue.used_at_s = self.manager.table.clock.monotonic()
            self._messages = min(self._messages, amq.len())
        is_done = self._messages <= 0 or self._bytes <= 0 or queue.consumers.is_paused
        if is_done or self._is_full(amq):
            return self.answer(self.manager.describe(queue, self.reader))
        if self._pace.is_ahead(self._wake):
            return ASLEEP
        if not self._head.step(amq.backing):
            return AGAIN
        most = min(self._messages, self._size.begin())
        taken = amq.lease(self.reader, most, self._bytes, DISK)
        self._size.end()
        if self.logged(before):
            self._pace.logged(self.lsn, 0)
            amq.backing.inhale()
        n = taken.next - taken.first
        self._messages -= n
        self._bytes -= taken.bytes
        for counts in (queue.counts, self.dispatch.counts.messages):
            counts.get += n
        self.dispatch.mark(queue)
        if n or taken.has_more:
            return AGAIN
        held = amq.held()
        if held is None:
            return self.answer(self.manager.describe(queue, self.reader))
        self.dispatch.when_settled(held[0], held[1], self._wake)
        return ASLEEP

    def answer(self, answer: Info) -> int:
        self._head.end()
        return super().answer(answer)

    def failed(self, error: Exception) -> None:
        self._head.end()
        super().failed(error)

    def _is_full(self, amq: AMQQueue) -> bool:
        """Return whether the next message is too large."""
        head = amq.backing.head() if self.lsn else None
        return head is not None and head.size > self._bytes


class CommitLease(LeaseRequest):
    """Acknowledges all messages below `offset`."""

    def __init__(
        self, manager: LeaseManager, queue: str, reader: str, reply: Reply, offset: int
    ) -> None:
        super().__init__(manager, queue, reader, reply)
        self._offset = offset

    def run_slice(self, queue: BrokerQueue, before: int) -> int:
        known = queue.amq.lease_info(self.reader)
        head = 0 if known is None else known.next
        if self._offset > head:
            what = self.manager.table.called(self.queue)
            raise refusals.precondition_failed(
                f"reader '{self.reader}' of {what} cannot commit {self._offset}: it has leased "
                f"messages below {head}"
            )
        if known is None or self._offset <= known.committed:
            return self.answer({"first": 0 if known is None else known.committed})
        acked = known.committed
        has_more = queue.amq.commit_lease(self.reader, self._offset, self.dispatch.mode)
        self.logged(before)
        known = queue.amq.lease_info(self.reader)
        first = self._offset if known is None else known.committed
        for counts in (queue.counts, self.dispatch.counts.messages):
            counts.ack += first - acked
        self.dispatch.mark(queue)
        if has_more:
            return AGAIN
        self.manager.commits += 1
        self.manager.ended(queue)
        return self.answer({"first": first})


class ReleaseLease(LeaseRequest):
    """Makes the reader's messages ready again and forgets the reader."""

    def __init__(self, manager: LeaseManager, queue: str, reader: str, reply: Reply) -> None:
        super().__init__(manager, queue, reader, reply)
        self._count = -1

    def run_slice(self, queue: BrokerQueue, before: int) -> int:
        amq = queue.amq
        known = amq.lease_info(self.reader)
        if known is None:  # there is none; or the queue's tick has done the last slice
            self.manager.ended(queue)
            return self.answer({"messages": max(self._count, 0)})
        if self._count < 0:
            self._count = known.next - known.committed
        has_more = amq.release_lease(self.reader, DISK)
        self.logged(before)
        self.dispatch.mark(queue)
        if has_more:
            return AGAIN
        self.manager.released += self._count
        self.manager.ended(queue)
        return self.answer({"messages": self._count})


def _reader_of(known: LeaseInfo) -> str:
    return known.reader


def _ignore(_answer: object) -> None:
    """Ignore the answer: the caller has left."""


# ---- how many there are --------------------------------------------------------------------------


class LeaseReaders:
    """The readers of one vhost that have a lease, or ask for one, by who asked first: READERS_MAX
    at most, USER_READERS_MAX of one user. Each has files and some 14 KiB of RAM, however little it
    has leased. One of before the start counts for who has declared its queue."""

    def __init__(self, table: QueueTable) -> None:
        self._table: QueueTable = table
        self._users: dict[Key, str] = {}
        self._of_user: dict[str, int] = {}
        for name in table.leased_names():
            creator = table.creator_of(name)
            for reader in table.leases(name):
                self._add((name, reader), creator)

    def admit(self, key: Key, user: str) -> None:
        """Count a reader that asks for a lease. ChannelError 506: there are too many, or too many
        of this user."""
        if key in self._users:
            return
        count = self._of_user.get(user, 0)
        if count >= USER_READERS_MAX:
            raise ChannelError(
                RESOURCE_ERROR,
                f"user '{user}' has leases of {count} readers, at most {USER_READERS_MAX} are "
                "allowed: release those that are gone",
            )
        if len(self._users) >= READERS_MAX:
            raise ChannelError(RESOURCE_ERROR, f"{READERS_MAX} readers have leases, no more may")
        self._add(key, user)

    def _add(self, key: Key, user: str) -> None:
        self._users[key] = user
        self._of_user[user] = self._of_user.get(user, 0) + 1

    def forget_gone(self, asking: Container[Key]) -> None:
        """Count no longer those that have no lease and do not ask for one now."""
        for key, user in list(self._users.items()):
            if key in asking or key[1] in self._table.leases(key[0]):
                continue
            del self._users[key]
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]


# ---- owners --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Owner:
    """The owner of a reader. user: whose program it is. until_s: by the monotonic clock. renewals:
    how often it called."""

    user: str
    token: str
    seconds: float
    until_s: float
    renewals: int = 0


class LeaseOwners:
    """The owners of the readers of one vhost: OWNERS_MAX at most, USER_OWNERS_MAX of one user."""

    def __init__(self, table: QueueTable) -> None:
        self._table: QueueTable = table
        self._born_s: float = table.clock.monotonic()
        self._owners: dict[Key, Owner] = {}
        self._of_user: dict[str, int] = {}  # how many of them
        self._leased_before: set[Key] = {
            (name, reader) for name in table.leased_names() for reader in table.leases(name)
        }

    def own(
        self, key: Key, user: str, token: str, seconds: float, *, is_held: bool
    ) -> dict[str, object]:
        """Own a reader, or renew it: {is_owner, renewals, expires_s}, for how long nobody else may
        have it. is_held: the caller owned it before the vhost started. ChannelError 506: there are
        too many owners, or too many of this user."""
        now_s = self._table.clock.monotonic()
        owner = self._owners.get(key)
        if owner is not None and owner.token != token and now_s < owner.until_s:
            return _answer_of(owner, now_s, is_owner=False)
        if owner is None and not is_held and key in self._leased_before:
            left_s = self._born_s + seconds - now_s
            if left_s > 0:
                return {"is_owner": False, "renewals": 0, "expires_s": left_s}
        if owner is not None and owner.token != token and is_held:
            return _answer_of(owner, now_s, is_owner=False)  # lost to another, which has left
        if owner is None or owner.token != token:
            owner = self._new_owner(key, user, token, now_s)
        self._renew(owner, seconds, now_s)
        return _answer_of(owner, now_s, is_owner=True)

    def disown(self, key: Key, token: str) -> bool:
        """Give up a reader; return whether this token owned it."""
        owner = self._owners.get(key)
        if owner is None or owner.token != token:
            return False
        self._forget(key)
        return True

    def check(self, key: Key, token: str) -> None:
        """Check a call with this token, "" for none, and renew the ownership. ChannelError 405:
        another program owns the reader."""
        owner = self._owners.get(key)
        if owner is None or owner.token == token:
            if owner is not None:
                self._renew(owner, owner.seconds, self._table.clock.monotonic())
            return
        now_s = self._table.clock.monotonic()
        if token or now_s < owner.until_s:
            raise ChannelError(
                RESOURCE_LOCKED,
                f"reader '{key[1]}' of {self._table.called(key[0])} belongs to "
                "another program that runs: a second query needs a readerId of its own. If this "
                "one had it before, it did not renew it in time, and another program took it over",
            )

    def _renew(self, owner: Owner, seconds: float, now_s: float) -> None:
        owner.seconds = seconds
        owner.until_s = now_s + seconds
        owner.renewals += 1

    def _new_owner(self, key: Key, user: str, token: str, now_s: float) -> Owner:
        """Make this token own a reader that nobody owns any more. ChannelError 506."""
        if key in self._owners:
            self._forget(key)
        if self._why_not(user):
            for late in [late for late, one in self._owners.items() if now_s >= one.until_s]:
                self._forget(late)
            why_not = self._why_not(user)
            if why_not:
                raise ChannelError(RESOURCE_ERROR, why_not)
        self._of_user[user] = self._of_user.get(user, 0) + 1
        owner = self._owners[key] = Owner(user, token, 0.0, 0.0)
        return owner

    def _why_not(self, user: str) -> str:
        """Return why the user may not own one more reader, "" if it may."""
        count = self._of_user.get(user, 0)
        if count >= USER_OWNERS_MAX:
            return f"user '{user}' owns {count} readers, at most {USER_OWNERS_MAX} are allowed"
        if len(self._owners) >= OWNERS_MAX:
            return f"{OWNERS_MAX} readers have owners, no more may"
        return ""

    def _forget(self, key: Key) -> None:
        user = self._owners.pop(key).user
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]


def _answer_of(owner: Owner, now_s: float, *, is_owner: bool) -> dict[str, object]:
    left_s = max(owner.until_s - now_s, 0.0)
    return {"is_owner": is_owner, "renewals": owner.renewals, "expires_s": left_s}


def lease_manager(vhost: VHost) -> LeaseManager:
    """Return the LeaseManager of this vhost. Whoever opens a vhost calls this once: releases that
    the vhost's end has interrupted continue then."""
    if vhost.leases is None:
        vhost.leases = LeaseManager(vhost)
    manager = vhost.leases
    assert isinstance(manager, LeaseManager)
    return manager
