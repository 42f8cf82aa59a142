"""LeaseDesk: where readers of classic queues stand in line, and what becomes of their leases.

Calls for one reader of one queue are done one after the other; a lease that is asked for while
another of that reader is under way, or waits, is the same one, and gets the same answer. Different
readers do not wait for each other.

**Deleting.** A queue of which messages are leased is not deleted unless by force, does not expire
and does not go with its last consumer: what is leased is in somebody's hands (all of that is asked
of the QueueTable). When it was forced, the next call of each reader that had something is refused
by name, also when another queue of that name is there by then (`find`); so a query notices, and
does not read on in what is not its queue. That is remembered until the vhost restarts.

**Old leases.** A lease has no time-out: handing its messages to others would have them twice. What
is not committed after lease_alert_s is told as an event, `lease_old`, once per reader and hour, and
`list_leases` says is_old; `penstock release lease` gives the messages back.

Not here: what a call does (lease_calls.py).
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.broker import refusals
from penstock.broker.lease_calls import Info, Lease, ReaderCall, Release, told
from penstock.broker.lease_owners import LeaseOwners
from penstock.broker.served_queue import ServedQueue

if TYPE_CHECKING:
    from penstock.broker.vhost import VHost
    from penstock.queues.leasing import LeaseInfo

LOST_MAX: Final = 1000  # readers of which it is remembered that their queue was deleted
LOOK_S: Final = 10.0  # between two looks at the age of leases
REPEAT_S: Final = 3600.0  # between two events of one reader

Key = tuple[str, str]  # queue, reader


class LeaseDesk:
    """Of one vhost. alert_s: from when on a lease is old, in seconds."""

    def __init__(self, vhost: "VHost", alert_s: float) -> None:
        self.vhost: VHost = vhost
        self.alert_s: float = alert_s
        self.owners = LeaseOwners(vhost)
        self._lines: dict[Key, deque[ReaderCall]] = {}
        self._lost: dict[Key, int] = {}  # how many messages readers of deleted queues had
        self._told_s: dict[Key, float] = {}
        self._looked_s: float = -LOOK_S
        for name in vhost.table.leased_names():
            for reader, lease in vhost.table.leases(name).items():
                if lease.is_releasing:  # it ended in the middle of that
                    self.ask(Release(self, name, reader, _nobody))

    # ---- calls ---------------------------------------------------------------------------------

    def ask(self, call: ReaderCall) -> None:
        """A call: it begins when those before it for that reader have ended."""
        line = self._lines.setdefault((call.queue, call.reader), deque())
        if line and isinstance(call, Lease) and isinstance(line[-1], Lease):
            line[-1].replies += call.replies
            return
        line.append(call)
        if len(line) == 1:
            self.vhost.chores.wake(call)

    def wake(self, call: ReaderCall) -> None:
        """It may go on."""
        if not call.is_over:
            self.vhost.chores.wake(call)

    def over(self, call: ReaderCall) -> None:
        """It has ended: the next one."""
        key = call.queue, call.reader
        line = self._lines[key]
        assert line[0] is call, "calls of one reader end in order"
        line.popleft()
        if line:
            self.vhost.chores.wake(line[0])
        else:
            del self._lines[key]

    def find(self, name: str, reader: str) -> ServedQueue:
        """The queue that is to be leased of. ChannelError: 404 (none, crashed, or another one than
        that which the reader had leased of), 406 (nothing can be leased of it)."""
        vhost = self.vhost
        what = vhost.table.called(name)
        lost = self._lost.pop((name, reader), 0)
        if lost:
            raise refusals.not_found(
                f"{what}: it was deleted while reader '{reader}' had {lost} messages leased"
            )
        queue = vhost.find_queue(name)
        if not isinstance(queue, ServedQueue):
            raise refusals.precondition_failed(
                f"{what} is a stream: it is read by offsets, and nothing of it is leased"
            )
        if not queue.is_durable or queue.is_exclusive:
            kind = "exclusive" if queue.is_exclusive else "not durable"
            raise refusals.precondition_failed(
                f"{what} is {kind}: messages are leased of durable queues only, for a lease "
                "outlives connections and restarts"
            )
        return queue

    # ---- deleting ------------------------------------------------------------------------------

    def deleted(self, name: str, leases: dict[str, int]) -> None:
        """The queue was deleted by force while its readers had so many messages leased."""
        for reader, count in leases.items():
            self._lost.pop((name, reader), None)
            while len(self._lost) >= LOST_MAX:
                del self._lost[next(iter(self._lost))]
            self._lost[name, reader] = count
            self._told_s.pop((name, reader), None)

    def ended(self, queue: ServedQueue) -> None:
        """A lease has ended, or a part of it: a queue that waited for that to go, goes."""
        queue.used_at_ms = self.vhost.clock.wall_ms()
        if queue.had_consumer:
            self.vhost.consumer_gone(queue)

    # ---- telling -------------------------------------------------------------------------------

    def all(self) -> list[Info]:
        """Of all leases, by queue and reader; their queues are opened if they were not."""
        vhost = self.vhost
        found: list[Info] = []
        for name in sorted(vhost.table.leased_names()):
            queue = vhost.served(name)
            if isinstance(queue, ServedQueue):
                found += self.of_queue(queue)
        return found

    def of_queue(self, queue: ServedQueue) -> list[Info]:
        """Of the leases of one queue, by reader."""
        known = sorted(queue.amq.leases(), key=_reader_of)
        return [self.told(queue, told(queue, one)) for one in known]

    def told(self, queue: ServedQueue, found: Info) -> Info:
        """The description of a lease with what only the desk knows."""
        since_ms = found["since_ms"]
        assert isinstance(since_ms, int)
        return found | {"is_old": self._is_old(since_ms)}

    def _is_old(self, since_ms: int) -> bool:
        return since_ms > 0 and self.vhost.clock.wall_ms() - since_ms >= self.alert_s * 1000

    # ---- time ----------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Look at the age of leases, now and then."""
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        table = self.vhost.table
        still: dict[Key, float] = {}
        for name in table.leased_names():
            for reader, lease in table.leases(name).items():
                if not self._is_old(lease.since_ms):
                    continue
                key = name, reader
                told_s = self._told_s.get(key)
                if told_s is None or now_s - told_s >= REPEAT_S:
                    told_s = now_s
                    self._tell(name, reader, lease.count, lease.since_ms)
                still[key] = told_s
        self._told_s = still

    def _tell(self, name: str, reader: str, count: int, since_ms: int) -> None:
        age_s = (self.vhost.clock.wall_ms() - since_ms) // 1000
        self.vhost.event(
            "lease_old",
            f"{self.vhost.table.called(name)}: reader '{reader}' has {count} messages leased, the "
            f"oldest for {age_s} s; if it is gone for good: penstock release lease",
            name, reader,
        )  # fmt: skip


def _reader_of(known: "LeaseInfo") -> str:
    return known.reader


def _nobody(_answer: object) -> None:
    """Who asked is gone."""
