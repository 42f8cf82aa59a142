"""Channel: the state of an AMQP channel: consumers, unacked deliveries, its transaction.

A channel is the unit of order: its methods are handled one after the other. A method that must wait
for the disk (a durable declare, tx.commit, a basic.get whose message is held) makes the channel
wait: what follows is kept (`backlog`) until it is answered; other channels continue. Confirms and
deliveries are not answers and are sent meanwhile.

**Prefetch.** basic.qos with global=false is the limit of each consumer that is started after it,
with global=true one limit for all consumers of the channel, as in RabbitMQ 3.x. `can_deliver` is
whether another message may be given to the channel; what changes that calls `update`.

With one limit for several consumers, a place is for the consumer that has waited longest of those
whose queues have messages (`before`): the queues get the same share, however full they are.

**Unacked deliveries.** Delivery tags count up from 1 and are settled roughly in that order, so the
deliveries are in a ring (Unacked): a list whose length is a power of two, at the place
`tag & mask`, from the oldest open one (`base`) to the next tag. When old deliveries stay open while
many others are settled, the old ones are moved aside into a dict, so the ring does not grow with
the distance. Of a pending message only its place is kept; its body may have left RAM.

**Settling.** Acks of one queue that follow one another are one record. What is unacked when the
channel ends goes back to its queues at once, to its old places, redelivered.

**Transactions.** AMQP promises atomicity for one queue at most, and RabbitMQ not even that; here a
commit is one decision in the log. What is published and acknowledged between tx.select and
tx.commit is collected by the engine's Transaction; bodies after the first MiB wait on disk.

    publish       persistent, durable queue: in the transaction. Others: kept, and published right
                  after the commit; they would not survive a crash anyway.
    ack           in the transaction
    reject, nack  kept, and done right after the commit: a crash between leaves the message in its
                  queue, to be redelivered
    mandatory     a message that no queue gets is returned at the commit, also if its queues were
                  deleted after it was published
    prefetch      what is settled in it keeps its place until the commit, as in RabbitMQ
    rollback      publishes are dropped; what was acknowledged is unacked again, with its delivery
                  tag, as in RabbitMQ

**Consumer timeout.** A delivery has no time of its own. A look each second, or each 5 s without
timeouts, notes the next tag (Unacked.mark_time), so a delivery is as old as the first look after
it; older looks are thinned out, so it may count as younger by a thirtieth of its age. Consumers,
their queues and the broker may have a timeout; what is older goes back with one attempt more, and
settling it later is no error. The same look finds how long consumers take (Consumer.look).

What the open transactions of a vhost hold in RAM is bounded (usage.py): the largest is ended with
506 when all of them together hold too much.

What was published is delivered once the commit is settled, and tx.commit-ok is sent then. A commit
that a queue refuses (reject-publish) or that is too large (506) is rolled back as a whole. Whether
the queues have room is decided at the commit, in one step with its record, because others publish
to them until then.

The methods are in channel_methods.py, frames and errors in connection_handler.py.
"""

from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from penstock.access.permissions import Identity
from penstock.broker import permissions
from penstock.broker.background_tasks import FinishingWork
from penstock.broker.broker_queue import (
    NO_LIMIT,
    BrokerQueue,
    Consumer,
    ConsumerChannel,
    QueueOrStream,
)
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.connection_facts import ConnectionFacts
from penstock.broker.dispatch import (
    ACK,
    DISCARD,
    GIVE_BACK,
    RELEASE,
    REQUEUE,
    RETRY_S,
    Peer,
    SlicedWork,
    Source,
    TurnBudget,
)
from penstock.broker.output import LargeContent, Output, write_delivery
from penstock.broker.publish import (
    Confirms,
    Planned,
    PublishCollector,
    Publisher,
    PublishFacts,
    Route,
    SpooledPublish,
    Targets,
    by_durability,
    fan_out,
    keep_in_histories,
    kept_of,
    plan_all,
)
from penstock.broker.usage import TransactionUsage
from penstock.broker.vhost import VHost
from penstock.codec.method import Method
from penstock.codec.spec import BasicCancel
from penstock.counts import ExchangeCounts, MessageCounts
from penstock.errors import (
    CONNECTION_FORCED,
    PRECONDITION_FAILED,
    AMQPError,
    ChannelError,
    CorruptionError,
    DiskFullError,
)
from penstock.message import QueuedMessage, SharedBody
from penstock.native import mypyc_attr
from penstock.queues.amq_queue import Plan
from penstock.queues.backing_queue import Delivery
from penstock.routing.exchange_types import Kept
from penstock.storage.store.store_file import StoredBody

SHARING_MIN: Final = 2
TURNS_LOOKED_AT: Final = 16  # of consumers, for each delivery
RING_MIN: Final = 16
ASIDE_FROM: Final = 1024  # smaller rings are not worth it
UNACKED_BYTES: Final = 120  # what one costs in RAM, for the count: the object and its place
PUBLISH_BYTES: Final = 500  # measured: a publish to one queue, without its header and body
PLACE_BYTES: Final = 160  # measured: each other queue of it
ACK_BYTES: Final = 200
LONG_PLACES: Final = 4096  # of messages in queues and streams: more are committed in slices
KEPT_STEPS: Final = 4  # of one message to one queue
# Deliveries that are taken or settled before the turn's budget is looked at.
ACK_SLICE: Final = 1024
SETTLE_SLICE: Final = 256
TAKE_SLICE: Final = 256
CONSUMER_SLICE: Final = 1024  # of a channel that ends; the others end in slices
CONSUMER_STEPS: Final = 4
ACK_STEPS: Final = 2  # of one in a transaction
EXPIRED_SLICE: Final = 1024  # unacked deliveries of a channel that one look compares
TIMES_MAX: Final = 512
AGE_PARTS: Final = 32  # ages are known to a part
LATE_MAX: Final = 10_000
NO_TIMEOUT_S: Final = 1e12


# ---- unacked deliveries --------------------------------------------------------------------------


@mypyc_attr(acyclic=True)
class Delivered:
    """A message that was delivered: the source it is pending in, its tag there, and the consumer,
    or None after a basic.get."""

    __slots__ = ("consumer", "source", "tag")

    def __init__(self, source: Source, tag: int, consumer: Consumer | None) -> None:
        self.source: Source = source
        self.tag: int = tag
        self.consumer: Consumer | None = consumer

    def timeout_s(self, default_s: float) -> float:
        """Return the seconds after which it goes back, 0 for none. default_s: the broker's."""
        return 0.0 if self.consumer is None else self.consumer.timeout_or(default_s)


class Unacked:
    """The unacked deliveries of one channel. `count`: how many; `next_tag`: the next delivery
    tag."""

    def __init__(self) -> None:
        self.count: int = 0
        self.next_tag: int = 1
        self._base: int = 1  # nothing below it is open, but what is aside
        self._mask: int = RING_MIN - 1
        self._ring: list[Delivered | None] = [None] * RING_MIN
        # Below the base, ascending. A dict would look at the places of all that left it.
        self._aside: OrderedDict[int, Delivered] = OrderedDict()
        self._is_sorted: bool = True  # else `sort` must follow
        self._times: list[tuple[float, int]] = []  # (monotonic seconds, the next tag then)
        self._looked: int = 0  # up to this tag, in the last look
        self.late: OrderedDict[int, None] = OrderedDict()  # that have expired, the oldest first

    def successor(self) -> "Unacked":
        """Return one without deliveries, whose tags go on, and in which these have expired."""
        found = Unacked()
        found.next_tag = found._base = self.next_tag
        found.late = self.late
        return found

    def add(self, source: Source, tag: int, consumer: Consumer | None) -> int:
        """Add a delivery that will be settled; return its delivery tag."""
        delivery_tag = self.next_tag
        if delivery_tag - self._base > self._mask:
            self._make_room()
        self._ring[delivery_tag & self._mask] = Delivered(source, tag, consumer)
        self.next_tag = delivery_tag + 1
        self.count += 1
        return delivery_tag

    def skip(self) -> int:
        """Return the delivery tag of a delivery that needs no settling (no_ack)."""
        delivery_tag = self.next_tag
        if not self.count:
            self._base = delivery_tag + 1
        elif delivery_tag - self._base > self._mask:
            self._make_room()
        self.next_tag = delivery_tag + 1
        return delivery_tag

    def get(self, delivery_tag: int) -> Delivered | None:
        """Return the open delivery of this tag, which stays open; None if there is none."""
        if self._base <= delivery_tag < self.next_tag:
            return self._ring[delivery_tag & self._mask]
        return self._aside.get(delivery_tag)

    def take(self, delivery_tag: int) -> Delivered | None:
        """Remove and return the open delivery of this tag; None if there is none."""
        if not self._base <= delivery_tag < self.next_tag:
            aside = self._aside.pop(delivery_tag, None)
            if aside is not None:
                self.count -= 1
            return aside
        at = delivery_tag & self._mask
        found = self._ring[at]
        if found is not None:
            self._ring[at] = None
            self.count -= 1
            if delivery_tag == self._base:
                self._advance()
        return found

    def _advance(self) -> None:
        base, ring, mask = self._base, self._ring, self._mask
        end = self.next_tag
        if self.count == len(self._aside):
            self._base = end
            return
        while base < end and ring[base & mask] is None:
            base += 1
        self._base = base

    def last_open(self, most: int = 0) -> int:
        """Return the highest tag that is open, up to `most` if it is given; 0 if none is."""
        for tag in range(most or self.next_tag - 1, self._base - 1, -1):
            if self._ring[tag & self._mask] is not None:
                return tag
        return next((tag for tag in reversed(self._aside) if not most or tag <= most), 0)

    def mark_time(self, now_s: float) -> None:
        """Note that what was delivered so far is at least as old as now."""
        times = self._times
        if times and times[-1][1] == self.next_tag:
            return
        times.append((now_s, self.next_tag))
        if len(times) > TIMES_MAX:  # the older they are, the fewer are enough
            kept = times[:1]
            for i in range(1, len(times) - 1):
                following_s = times[i + 1][0]
                if following_s - kept[-1][0] > (now_s - following_s) / AGE_PARTS:
                    kept.append(times[i])
            self._times = [*kept, times[-1]]

    def age_s(self, delivery_tag: int, now_s: float) -> float:
        """Return for how many seconds a delivery is open, as far as it was noted."""
        for time_s, next_tag in self._times:
            if next_tag > delivery_tag:
                return now_s - time_s
        return 0.0

    def older_than(self, time_s: float) -> int:
        """Return the highest tag that was delivered before that time, as far as it was noted."""
        at = bisect_right(self._times, (time_s, self.next_tag))
        return self._times[at - 1][1] - 1 if at else 0

    def expired(
        self, now_s: float, default_s: float, least_s: float
    ) -> list[tuple[int, Delivered]]:
        """Remove and return (tag, delivery) of those that are older than their timeout, as far as a
        slice goes. They may be settled later without an error. default_s: of consumers without a
        timeout of their own, 0 for none; least_s: of all timeouts."""
        found: list[tuple[int, Delivered]] = []
        limits: dict[float, int] = {}
        looked_at = self.open_up_to(self.older_than(now_s - least_s), EXPIRED_SLICE, self._looked)
        self._looked = looked_at[-1][0] if len(looked_at) == EXPIRED_SLICE else 0
        for tag, delivered in looked_at:
            timeout_s = delivered.timeout_s(default_s)
            if timeout_s and timeout_s not in limits:
                limits[timeout_s] = self.older_than(now_s - timeout_s)
            if timeout_s and tag <= limits[timeout_s]:
                found.append((tag, delivered))
        for tag, _ in found:
            self.take(tag)
            self.late[tag] = None
        while len(self.late) > LATE_MAX:
            self.late.popitem(last=False)
        oldest = next(iter(self._aside), self._base) if self.count else self.next_tag
        while len(self._times) > 1 and self._times[1][1] <= oldest:
            del self._times[0]
        return found

    def take_up_to(self, delivery_tag: int, most: int = 1 << 62) -> list[Delivered]:
        """Remove and return all open deliveries up to this tag (0: all), oldest first. most: stop
        after so many; there may be more then."""
        end = self.next_tag if not delivery_tag else min(delivery_tag + 1, self.next_tag)
        taken: list[Delivered] = []
        if self._aside:
            aside = [tag for tag in islice(self._aside, most) if tag < end]
            taken = [self._aside.pop(tag) for tag in aside]
        ring, mask = self._ring, self._mask
        for tag in range(self._base, end):
            if len(taken) >= most:
                end = tag
                break
            found = ring[tag & mask]
            if found is not None:
                ring[tag & mask] = None
                taken.append(found)
        self.count -= len(taken)
        self._base = max(self._base, end)
        if not self.count and len(ring) > RING_MIN:  # what a burst took is given back
            self._mask = RING_MIN - 1
            self._ring = [None] * RING_MIN
            self._base = self.next_tag
        return taken

    def open_up_to(
        self, delivery_tag: int, most: int, after: int = 0
    ) -> list[tuple[int, Delivered]]:
        """Return (tag, delivery) of those that are open after one tag and up to the other, oldest
        first, `most` at most; they stay open."""
        end = min(delivery_tag + 1, self.next_tag)
        found: list[tuple[int, Delivered]] = []
        for tag, aside in self._aside.items():
            if tag >= end or len(found) >= most:
                return found
            if tag > after:
                found.append((tag, aside))
        for tag in range(max(self._base, after + 1), end):
            delivered = self._ring[tag & self._mask]
            if delivered is not None:
                if len(found) >= most:
                    break
                found.append((tag, delivered))
        return found

    def put_back(self, taken: list[tuple[int, Delivered]]) -> None:
        """Add again what was taken: (delivery tag, delivery). `sort` follows the last of several
        such calls, before `take_up_to` or `open_up_to`."""
        self.count += len(taken)
        last = next(reversed(self._aside), 0)
        for delivery_tag, delivered in taken:
            if self._base <= delivery_tag:
                self._ring[delivery_tag & self._mask] = delivered
                continue
            self._aside[delivery_tag] = delivered
            if delivery_tag < last:
                self._is_sorted = False
            last = delivery_tag

    def sort(self) -> None:
        """Put in order what `put_back` has added."""
        if not self._is_sorted:
            self._aside = OrderedDict(sorted(self._aside.items()))
            self._is_sorted = True

    def all(self) -> list[Delivered]:
        """Return all open deliveries, oldest first; they stay open."""
        ring, mask = self._ring, self._mask
        tags = range(self._base, self.next_tag)
        found = [ring[tag & mask] for tag in tags]
        return [*self._aside.values(), *[entry for entry in found if entry is not None]]

    def _make_room(self) -> None:
        """Enlarge the ring, which reaches from the base to the next tag, or move its old half
        aside."""
        old, old_mask = self._ring, self._mask
        size = len(old)
        in_ring = self.count - len(self._aside)
        if size > ASIDE_FROM and in_ring < size // 4:
            for tag in range(self._base, self._base + size // 2):
                found = old[tag & old_mask]
                if found is not None:
                    self._aside[tag] = found
                    old[tag & old_mask] = None
            self._base += size // 2
            return
        ring: list[Delivered | None] = [None] * (size * 2)
        mask = size * 2 - 1
        for tag in range(self._base, self._base + size):
            ring[tag & mask] = old[tag & old_mask]
        self._ring = ring
        self._mask = mask


# ---- transactions --------------------------------------------------------------------------------


class DeferredPublish:
    """A publish that is done right after the commit."""

    def __init__(
        self, queues: list[BrokerQueue], header: bytes, body: bytes, facts: PublishFacts,
        shared: SharedBody | None, stored: QueuedMessage | None,
    ) -> None:  # fmt: skip
        self.queues: list[BrokerQueue] = queues
        self.header: bytes = header
        self.body: bytes = body
        self.shared: SharedBody | None = shared  # with the queues that have it by the commit
        self.stored: QueuedMessage | None = stored  # has the body in a store, which keeps it
        self.facts: PublishFacts = PublishFacts()
        self.facts.is_persistent = facts.is_persistent
        self.facts.priority = facts.priority
        self.facts.ttl_ms = facts.ttl_ms
        self.facts.delay_ms = facts.delay_ms

    def reserve(self, n: int) -> None:
        """Keep room for it in its queues, or, with -1, no longer."""
        size = len(self.body) if self.stored is None else self.stored.size
        for queue in self.queues:
            queue.amq.reserve(size * n, n)


class ChannelTransaction(PublishCollector):
    """The transaction of one channel, from one commit or rollback to the next. `lsn`:
    what settles all of it in the vhost's mode, after `finish`; 0 if nothing durable was in it.
    end(error): closes its channel with this error; called when it holds too much."""

    def __init__(self, vhost: VHost, user: str, end: Callable[[ChannelError], None]) -> None:
        self.vhost: VHost = vhost
        self._hold: TransactionUsage = TransactionUsage(user, end)
        self.returned: list[tuple[Route, bytes, bytes]] = []
        self.taken: list[tuple[int, Delivered]] = []  # (delivery tag, what was acknowledged)
        self.rejected: list[tuple[int, Delivered, bool]] = []  # (delivery tag, it, is_requeue)
        self._transaction = vhost.engine.begin()
        self._mandatory: list[tuple[Route, Targets, bytes, bytes]] = []
        self._puts: list[Planned] = []
        self.publishes: int = 0
        self._appends: list[BrokerStream] = []
        self._first_plans: dict[int, tuple[BrokerQueue, Plan]] = {}  # by the number of the index
        self._kept: list[DeferredPublish] = []
        self._histories: list[tuple[Targets, Kept]] = []
        self._acked: list[Delivered] = []  # what the engine's transaction has, in its order
        self._acked_else: list[Delivered] = []  # transient messages, and records of streams
        self._counts: dict[BrokerQueue, tuple[int, int]] = {}  # messages, bytes of bodies
        self._published: dict[ExchangeCounts, ExchangeCounts] = {}  # exchanges -> what it adds
        self._dropped: int = 0  # publishes that no queue gets, and that are not mandatory
        self.lsn: int = 0
        # What of these is done, after the commit.
        self._acked_done: int = 0
        self._else_done: int = 0
        self._mandatory_done: int = 0
        self._reserves_ended: int = 0  # of `_puts`
        self._done: int = 0  # of `_puts`
        self._appends_done: int = 0
        self._kept_done: int = 0
        self._settled_done: int = 0  # of `taken` and then `rejected`: made room for, or put back

    # ---- what is in it -------------------------------------------------------------------------

    def put(
        self, route: Route, targets: Targets, header: bytes, props: bytes, body: bytes,
        facts: PublishFacts, spooled: QueuedMessage | None = None,
    ) -> None:  # fmt: skip
        queues = targets.queues
        size = len(body) if spooled is None else spooled.size
        held = PUBLISH_BYTES + len(header) + PLACE_BYTES * max(len(queues) - 1, 0)
        if facts.large is not None or (
            spooled is None and self._is_in_ram(route, targets, size, facts)
        ):
            held += size
        self.vhost.usage.hold(self._hold, held)
        places = len(queues) + len(targets.streams)
        counts = self._published.setdefault(route.counts, ExchangeCounts())
        counts.add(1, places, int(not places))
        self.publishes += 1
        self._dropped += not (places or route.is_mandatory)
        if route.is_mandatory:
            self._mandatory.append((route, targets, props, body))
        if targets.histories:
            self._histories.append((targets, kept_of(header, body, facts)))
        durable, others = by_durability(queues, facts)
        for queue in queues:
            n, total = self._counts.get(queue, (0, 0))
            self._counts[queue] = n + 1, total + size
        engine = self.vhost.engine
        shared = engine.placement.share_of(body, len(queues))
        if others:
            stored = spooled
            if stored is not None:
                stored = engine.bodies.placed(stored, is_persistent=False)
                engine.bodies.own(stored)
            self._kept.append(DeferredPublish(others, header, body, facts, shared, stored))
        if durable:
            if spooled is not None:
                spooled = engine.bodies.placed(spooled, is_persistent=True)
            with engine.share(shared, completes=False):
                self._plan(durable, header, body, facts, spooled)
        for stream in targets.streams:
            stream.begin_append(self._transaction, header, body, facts.large)
            self._appends.append(stream)

    def _plan(
        self, queues: list[BrokerQueue], header: bytes, body: bytes, facts: PublishFacts,
        spooled: QueuedMessage | None,
    ) -> None:  # fmt: skip
        """Publish to durable queues at the commit."""
        before = len(self._puts)
        plan_all(self._transaction, queues, header, body, facts, self._puts, spooled)
        first_plans = self._first_plans
        for put in self._puts[before:]:
            for queue, plan in put.plans:
                number = plan.index.number
                if number not in first_plans:
                    first_plans[number] = queue, plan

    def needs_body(self, route: Route, targets: Targets) -> bool:
        return bool(targets.streams or targets.histories or route.is_mandatory)

    def _is_in_ram(self, route: Route, targets: Targets, size: int, facts: PublishFacts) -> bool:
        """Return whether a body is in RAM until the commit. The engine's transaction keeps bodies
        on disk, after some bytes of them; what is kept for after the commit is in RAM."""
        spool_bytes = self.vhost.engine.options.tx_spool_bytes
        if self._transaction.body_bytes + size <= spool_bytes or self.needs_body(route, targets):
            return True
        return not facts.is_persistent or not all(queue.is_durable for queue in targets.queues)

    def ack(self, delivery_tag: int, delivered: Delivered) -> None:
        """Acknowledge an unacked delivery at the commit."""
        self.taken.append((delivery_tag, delivered))
        source = delivered.source
        if source.is_deleted:
            return
        if isinstance(source, BrokerQueue):
            for index, entries in source.amq.backing.entries([delivered.tag]):
                self._transaction.dequeue(index, entries)
                self._acked.append(delivered)
                return
        self._acked_else.append(delivered)

    def reject(self, delivery_tag: int, delivered: Delivered, *, requeue: bool) -> None:
        """Reject or requeue an unacked delivery right after the commit."""
        self.rejected.append((delivery_tag, delivered, requeue))

    def count_settled(self, count: int) -> None:
        """Count deliveries that were acknowledged or rejected in it. ChannelError 506: it holds too
        much; they are in it nevertheless, so that they go back with its channel."""
        self.vhost.usage.hold(self._hold, ACK_BYTES * count)

    # ---- the end of it -------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit, all or nothing; `finish` does what is left. TransactionTooLargeError: it is
        rolled back, but for what `undo` gives. QueueFullError, DiskFullError: nothing happened."""
        vhost = self.vhost
        self._check_room()
        self._forget_restarted()
        if self._kept:  # the engine checks what it has itself
            vhost.engine.journal.check_publish()
        transaction = self._transaction
        if transaction.publishes or transaction.appends or transaction.dequeues:
            self.lsn = transaction.commit(vhost.mode)
        elif transaction.is_open:
            transaction.rollback()
        self._settle_dequeued()
        for targets, message in self._histories:
            keep_in_histories(targets, message)
        self._hold_parts()
        vhost.usage.release(self._hold)
        if transaction.has_parts:
            for queue, (n, total) in self._counts.items():
                queue.amq.reserve(total, n)
            self._end_reserves()
        else:
            for kept in self._kept:
                kept.reserve(1)

    def is_long(self) -> bool:
        """Return whether its records are to be written in slices (`write_part`)."""
        return self._transaction.place_count + len(self._appends) > LONG_PLACES

    def write_part(self) -> int:
        """Write some of its records before the commit. Returns the number of places; 0: `commit`
        may follow. TransactionTooLargeError, DiskFullError: it is rolled back, but for what `undo`
        gives."""
        self._forget_restarted()
        return self._transaction.write_part(self.vhost.mode)

    def _forget_restarted(self) -> None:
        """Drop acknowledgements in queues that were restarted: their messages are ready again."""
        if self._transaction.has_written:  # none has restarted since (QueueRestarts)
            return
        is_kept = [not delivered.source.is_deleted for delivered in self._acked]
        if not all(is_kept):
            self._transaction.keep_dequeues(is_kept)
            self._acked = [one for one, keep in zip(self._acked, is_kept, strict=True) if keep]

    @property
    def acks(self) -> int:
        """Return how many deliveries are acknowledged or rejected in it."""
        return len(self.taken) + len(self.rejected)

    def count(self, *all_counts: MessageCounts) -> None:
        """Count what it has published and acknowledged, after the commit. all_counts: of the
        channel and the vhost."""
        for exchange, own in self._published.items():
            exchange.add(own.publish_in, own.publish_out, own.unroutable)
        for counts in all_counts:
            counts.publish += self.publishes
            counts.drop_unroutable += self._dropped
            counts.ack += len(self.taken)

    def _settle_dequeued(self) -> None:
        """Remove from the queues what the engine has removed."""
        done = self._transaction.dequeued
        self._settle(self._acked[self._acked_done : done])
        self._acked_done = done

    def _settle(self, acked: list[Delivered]) -> None:
        vhost = self.vhost
        by_source: dict[Source, list[int]] = {}
        for delivered in acked:
            by_source.setdefault(delivered.source, []).append(delivered.tag)
        for source, tags in by_source.items():
            if source.is_deleted:
                continue
            if isinstance(source, BrokerQueue):
                source.amq.backing.forget(tags)
                source.counts.ack += len(tags)
            else:
                source.ack(tags)
            vhost.dispatch.mark(source)

    def _hold_parts(self) -> None:
        """Hold what has just been published until the LSN is settled."""
        vhost = self.vhost
        for number, seq in self._transaction.first_seqs.items():
            found = self._first_plans.get(number)
            if found is not None and not found[0].is_deleted:
                queue, plan = found
                queue.amq.hold(plan, seq, self.lsn, vhost.mode)
                vhost.dispatch.mark(queue)

    def finish(self) -> bool:
        """Do what is left after the commit, as far as the turn's budget goes: the rest of a commit
        in slices, count what was published for limits and alerts, find what is to be returned, and
        publish what waited. Return whether all is done. DiskFullError: call it again
        when the log has room."""
        budget = self.vhost.budget
        transaction = self._transaction
        if not self._count_puts():
            return False
        while transaction.has_parts:
            budget.left -= transaction.apply_part(self.vhost.mode)
            self.lsn = self.vhost.engine.log.last_lsn
            self._settle_dequeued()
            self._hold_parts()
            self._end_reserves()
            if not self._count_puts():
                return False
            if budget.left <= 0 and budget.is_over():
                return False
        while self._else_done < len(self._acked_else):
            some = self._acked_else[self._else_done : self._else_done + SETTLE_SLICE]
            self._settle(some)
            self._else_done += len(some)
            budget.left -= len(some)
            if budget.left <= 0 and budget.is_over():
                return False
        while self._appends_done < len(self._appends):
            self._appends[self._appends_done].published += 1
            self._appends_done += 1
            budget.left -= 1
            if budget.left <= 0 and budget.is_over():
                return False
        while self._mandatory_done < len(self._mandatory):
            route, targets, props, body = self._mandatory[self._mandatory_done]
            self._mandatory_done += 1
            if self._is_lost(targets):
                self.returned.append((route, props, body))
            budget.left -= len(targets.queues)
            if budget.left <= 0 and budget.is_over():
                return False
        return self._publish_all_kept()

    def _end_reserves(self) -> None:
        """Keep room no longer for what has just been published, of a commit in slices."""
        has_parts = self._transaction.has_parts
        while self._reserves_ended < len(self._puts):
            put = self._puts[self._reserves_ended]
            if has_parts and not put.published.is_applied:
                break
            self._reserves_ended += 1
            for queue, _ in put.plans:
                queue.amq.reserve(-put.published.message.size, -1)

    def _count_puts(self) -> bool:
        """Count what has taken effect; return whether all that has is counted."""
        budget = self.vhost.budget
        has_parts = self._transaction.has_parts
        while self._done < len(self._puts):
            put = self._puts[self._done]
            if has_parts and not put.published.is_applied:
                return True  # it comes with a later part
            self._done += 1
            size = put.published.message.size
            for queue, plan, entry in put.entered():
                if not queue.is_deleted:
                    queue.amq.planned(plan, entry.seq, size)
                    queue.published += 1
                    self.vhost.dispatch.mark(queue)
            budget.left -= len(put.plans)
            if budget.left <= 0 and budget.is_over():
                return False
        return True

    def _publish_all_kept(self) -> bool:
        """Publish what waited for the commit, as far as the budget goes; return whether that is
        all."""
        budget = self.vhost.budget
        while self._kept_done < len(self._kept):
            kept = self._kept[self._kept_done]
            self._kept_done += 1
            self._publish_kept(kept)
            budget.left -= KEPT_STEPS * len(kept.queues)
            if budget.left <= 0 and budget.is_over():
                return False
        self._puts, self._kept = [], []
        self._done = self._kept_done = 0
        return True

    def _check_room(self) -> None:
        """Raise QueueFullError if a queue refuses what the transaction brings."""
        for queue, (n, total) in self._counts.items():
            now: QueueOrStream | None = queue
            if queue.is_deleted:  # it may have been restarted
                now = self.vhost.table.served.get(queue.name)
            if isinstance(now, BrokerQueue) and now.is_usable:
                now.amq.before_publish(total, n)

    def _publish_kept(self, kept: DeferredPublish) -> None:
        """Publish what waited for the commit. Its queues have room for it; what a full disk has no
        room for stays in RAM. A body that cannot be copied loses a transient message only, and the
        commit stays."""
        kept.reserve(-1)
        queues = [queue for queue in kept.queues if not queue.is_deleted]
        try:
            fan_out(
                self.vhost, queues, [], kept.header, kept.body, kept.facts, kept.stored,
                kept.shared, may_refuse=False, has_left=True,
            )  # fmt: skip
        except (DiskFullError, OSError) as error:
            names = ", ".join(repr(queue.name) for queue in queues)
            text = f"a transient message of a transaction for {names} is lost: {error}"
            self.vhost.event("warning", text)
        finally:
            self._forget(kept)

    def begin_rollback(self) -> None:
        """Decide that it never happens, whatever it has written: `rollback` must follow."""
        self.vhost.usage.release(self._hold)
        if self._transaction.is_open:
            self._transaction.rollback(SETTLE_SLICE)

    def _forget(self, kept: DeferredPublish) -> None:
        """End keeping the body of what is published now, or never."""
        if kept.stored is not None:
            self.vhost.engine.bodies.disown(kept.stored)

    def _is_lost(self, targets: Targets) -> bool:
        """Return whether none of these exists any more. A queue that was restarted does."""
        known = self.vhost.engine.queues
        for queue in targets.queues:
            if not queue.is_deleted or queue.amq.backing.index(0).number in known:
                return False
        gone = [stream for stream in targets.streams if stream.is_deleted]
        return len(gone) == len(targets.streams)

    def settled_slice(self, size: int) -> list[tuple[int, Delivered]]:
        """Return the next of what is acknowledged or rejected in it, `size` at most."""
        at = self._settled_done
        some = self.taken[at : at + size]
        if not some:
            at -= len(self.taken)
            some = [(tag, one) for tag, one, _ in self.rejected[at : at + size]]
        self._settled_done += len(some)
        return some

    def rollback(self, unacked: Unacked, budget: TurnBudget) -> bool:
        """Undo it: what was published, then what was acknowledged or rejected, which is `unacked`
        again, as far as the turn's budget goes, a slice at least. Return whether all is undone:
        else call it again."""
        self.vhost.usage.release(self._hold)
        size = SETTLE_SLICE
        while not self._rollback_slice(size, unacked):
            budget.left -= size
            if budget.left <= 0 and budget.is_over():
                return False
        unacked.sort()
        return True

    def _rollback_slice(self, size: int, unacked: Unacked) -> bool:
        """Undo `size` of one kind; return whether that is all."""
        if self._transaction.is_open:
            self._transaction.rollback(size)
        elif self._puts:
            for put in self._puts[-size:]:
                put.undo()
            del self._puts[-size:]
        elif self._kept:
            for kept in self._kept[-size:]:
                self._forget(kept)
            del self._kept[-size:]
        else:
            unacked.put_back(self.settled_slice(size))
        is_left = self._transaction.is_open or self._puts or self._kept
        return not (is_left or self._settled_done < self.acks)


# ---- failed deliveries ---------------------------------------------------------------------------


class WorkToItsEnd(SlicedWork):
    """Work that is done whatever becomes of its channel, whose client cannot ask for it again."""

    def __init__(self, vhost: VHost) -> None:
        self._vhost: VHost = vhost

    def abandon(self) -> None:
        """Go on without the channel."""
        self.finish_later()

    def finish_later(self) -> None:
        """Do a slice now, if there is room for it, and the rest in the background."""
        if not self._vhost.budget.may_begin(SETTLE_SLICE) or not self.step():
            self._vhost.background.wake(FinishingWork(self, self._vhost.budget))


class SettleFailed(WorkToItsEnd):
    """Settles deliveries that failed, source by source. how: see Source.settle_failed. What cannot
    be settled now, because a disk is full or cannot be read, is tried again every RETRY_S."""

    def __init__(self, vhost: VHost, delivered: list[Delivered], how: int) -> None:
        super().__init__(vhost)
        self._how: int = how
        self._size: int = SETTLE_SLICE
        self._by_source: OrderedDict[Source, list[int]] = OrderedDict()
        self._later: OrderedDict[Source, list[int]] = OrderedDict()
        self._is_reported: bool = False
        for one in delivered:
            self._by_source.setdefault(one.source, []).append(one.tag)

    def step(self) -> bool:
        budget = self._vhost.budget
        while self._by_source:
            source, tags = self._by_source.popitem(last=False)
            if source.is_deleted:
                continue
            size = min(len(tags), self._size)
            try:
                left = tags[source.settle_failed(tags[:size], self._how, budget) :]
            except Exception as error:  # noqa: BLE001 - it is reported, or raised
                budget.left -= size
                left = self._left(source, tags, size, error)
            if not source.is_deleted:
                self._vhost.dispatch.mark(source)
            if left:
                self._by_source[source] = left
                self._by_source.move_to_end(source, last=False)
            if budget.left <= 0 and self._by_source and budget.is_over():
                return False
        self._try_later()
        return True

    def failed(self, source: Source, tags: list[int], error: Exception) -> None:
        """Settle these later. error: of settling them now. Raises it if the engine has failed."""
        left = self._left(source, tags, len(tags), error)
        if left:
            self._later[source] = left
        self._try_later()

    def _left(self, source: Source, tags: list[int], size: int, error: Exception) -> list[int]:
        """Return which of these tags to settle now, after an error of the first `size` of them: one
        by one, to find those that it is of. The others are for later."""
        vhost = self._vhost
        if vhost.engine.failed is not None:
            raise error
        pending = source.pending_among(tags[:size])
        if size > 1 or not pending:
            self._size = 1
            return pending + tags[size:]
        if isinstance(error, CorruptionError):  # it stays pending; a salvage may still find it
            self._report("corruption", source, error)
            return tags[1:]
        if not isinstance(error, OSError | DiskFullError):
            assert isinstance(source, BrokerQueue), "a stream logs and reads nothing for it"
            vhost.queue_failed(source, error)  # it begins again, and all of them are ready
            return []
        if not self._is_reported:
            self._is_reported = True
            self._report("warning", source, error)
        self._later[source] = [*tags[1:], tags[0]]
        return []

    def _report(self, kind: str, source: Source, error: Exception) -> None:
        name = source.name if isinstance(source, BrokerQueue) else ""
        self._vhost.event(kind, f"queue {name!r}: a delivery cannot be settled now: {error}")

    def _try_later(self) -> None:
        if self._later:
            vhost = self._vhost
            vhost.timers.call_at(vhost.clock.monotonic() + RETRY_S, self._again)

    def _again(self) -> None:
        self._by_source, self._later = self._later, OrderedDict()
        self._size = SETTLE_SLICE
        self.finish_later()


class Releasing(WorkToItsEnd):
    """Puts back what a channel had unacked, a slice after the other. transaction: is rolled back
    before; consumers: end afterwards."""

    def __init__(
        self, channel: "Channel", unacked: Unacked, transaction: ChannelTransaction | None = None,
        consumers: list[Consumer] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(channel.vhost)
        self._channel: Channel = channel
        self._transaction: ChannelTransaction | None = transaction
        self._consumers: deque[Consumer] = deque(consumers or [])
        self._unacked: Unacked = unacked
        self._how: int = give_back_how(channel.handler)
        self._settling: SettleFailed | None = channel.give_back()

    def step(self) -> bool:
        channel = self._channel
        budget = self._vhost.budget
        while True:
            settling = self._settling
            if settling is not None:
                if not settling.step():
                    return False
                self._settling = None
            if budget.left <= 0 and budget.is_over():
                return False
            transaction = self._transaction
            if transaction is not None:
                if not transaction.rollback(self._unacked, budget):
                    return False
                self._transaction = None
            taken = self._unacked.take_up_to(0, SETTLE_SLICE)
            if not taken:
                break
            for source in {delivered.source: None for delivered in taken}:
                source.before_return()
            for delivered in taken:
                channel.returned(delivered)
            self._settling = SettleFailed(self._vhost, taken, self._how)
            budget.left -= len(taken)
        while self._consumers:
            consumer = self._consumers.popleft()
            channel.end_consumer(consumer)
            channel.consumer_gone(consumer)
            budget.left -= CONSUMER_STEPS
            if budget.left <= 0 and budget.is_over():
                return False
        return True


class Rejecting(SlicedWork):
    """A basic.reject or basic.nack. tag: the last delivery that it means, of which the oldest are
    taken first, `most` at a time; what is not taken yet is unacked still."""

    def __init__(
        self, channel: "Channel", tag: int, most: int, method_id: int, *, requeue: bool
    ) -> None:
        self._channel: Channel = channel
        self._tag: int = tag
        self._most: int = most
        self._method_id: int = method_id
        self._requeue: bool = requeue
        self._settling: SettleFailed | None = None if requeue else channel.give_back()

    def step(self) -> bool:
        channel = self._channel
        budget = channel.vhost.budget
        transaction = channel.transaction
        is_more = True
        while True:
            settling = self._settling
            if settling is not None:
                if not settling.step():
                    return False
                self._settling = None
            if not is_more:
                break
            taken = channel.take(self._tag, self._most, self._method_id, returns=self._requeue)
            budget.left -= len(taken)
            if transaction is not None:
                for one, delivered in taken:
                    transaction.reject(one, delivered, requeue=self._requeue)
                transaction.count_settled(len(taken))
            else:
                failed = [delivered for _, delivered in taken]
                if not self._requeue:
                    self._settling = SettleFailed(channel.vhost, failed, DISCARD)
                else:
                    channel.returning += failed
                    if len(channel.returning) >= SETTLE_SLICE:
                        self._settling = channel.give_back()
            is_more = 1 < self._most == len(taken)
            if is_more and budget.left <= 0 and budget.is_over():
                return False
        channel.update()
        return True

    def abandon(self) -> None:
        if self._settling is not None:
            self._settling.finish_later()


# ---- the channel ---------------------------------------------------------------------------------


@mypyc_attr(allow_interpreted_subclasses=True)
class ChannelOwner(Peer):
    """A connection, as its channels see it."""

    channels: dict[int, "Channel"]
    identity: Identity
    is_open_to_output: bool  # the client takes what is sent
    has_unacked_room: bool  # its user is not one of Usage.full
    has_output_room: bool  # nor of Usage.stuffed
    is_ended_by_server: bool  # not by its client, whose consumers are not to blame
    facts: ConnectionFacts

    @abstractmethod
    def on_output_full(self) -> None:
        """Stop delivering in this turn: the output is full. While a queue serves its consumers
        before a limit acts, send it at once instead."""

    @abstractmethod
    def go_on(self, channel: "Channel") -> None:
        """Handle the backlog of a channel that waits no more."""

    @abstractmethod
    def do_in_slices(self, channel: "Channel", work: SlicedWork) -> None:
        """Do work for a channel: a slice now, the rest in later turns, before all that the client
        sends after it. Only while a method of the channel is handled."""

    @abstractmethod
    def failed(self, channel: "Channel", error: Exception) -> None:
        """Close the channel or the connection for an error of a later answer, as for an error of a
        method. Raises it if the engine has failed."""

    @abstractmethod
    def close_channel(self, number: int, error: AMQPError) -> None:
        """End a channel with an error."""

    @abstractmethod
    def hold_cancels(self) -> None:
        """Keep notifications of cancelled consumers until `send_cancels`."""

    @abstractmethod
    def cancel(self, channel: "Channel", method: BasicCancel) -> None:
        """Notify the client that a consumer of the channel is cancelled."""

    @abstractmethod
    def send_cancels(self) -> None:
        """Send the notifications that were kept."""

    @abstractmethod
    def shutdown(self, code: int = CONNECTION_FORCED, text: str = "broker forced") -> None:
        """End the connection for the server; the client gets the reason."""

    @abstractmethod
    def pieces(self) -> tuple[int, int]:
        """Return how many pieces of bytes were received and sent."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Return the connection's columns for listings."""

    @abstractmethod
    def has_capability(self, name: str) -> bool:
        """Return whether the client has this capability."""


def give_back_how(owner: ChannelOwner) -> int:
    """Return how deliveries that nobody settled go back. A delivery limit counts an attempt, unless
    the server ends the connection."""
    return RELEASE if owner.is_ended_by_server else GIVE_BACK


class Channel(ConsumerChannel):
    """See the head of this module."""

    def __init__(self, handler: ChannelOwner, vhost: VHost, number: int, output: Output) -> None:
        self.handler: ChannelOwner = handler
        self.vhost: VHost = vhost
        self._budget: TurnBudget = vhost.budget
        self.number: int = number
        self.output: Output = output
        self.publisher: Publisher = Publisher(vhost, handler.identity, number, output, self._failed)
        self.publisher.connection = handler.name
        self.counts: MessageCounts = self.publisher.counts  # but for what its consumers count
        self.transaction: ChannelTransaction | None = None
        self.spooled: SpooledPublish | None = None
        self.unacked: Unacked = Unacked()
        self.returning: list[Delivered] = []  # requeued, and not back in their queues yet
        self.consumers: dict[str, Consumer] = {}
        self.prefetch: int = 0  # for all consumers together, 0: no limit
        self.consumer_prefetch: int = 0  # of each consumer to come
        self.consumer_unacked: int = 0
        # With one prefetch for several of them: who has been given a message goes to the end.
        self._turns: OrderedDict[Consumer, None] = OrderedDict()
        self.is_closed: bool = False
        self.is_waiting: bool = False
        self.is_committing: bool = False  # a close must wait, too
        self.backlog: deque[object] = deque()
        self.calls: deque[list[Method]] = (
            deque()
        )  # of penstock.call, in order; each gets one answer
        self.waits_for_calls: bool = False  # (`is_waiting`) because too many answers wait
        self.queue_name: str = ""  # declared last: what an empty name means
        self.can_deliver: bool = handler.is_open_to_output and handler.has_output_room
        self._then: Callable[[], None] | None = None  # of `when_free`
        self._least_s: float = NO_TIMEOUT_S  # of its consumers, also of those that have ended
        self.counted_unacked: int = 0  # deliveries, as the vhost counts their bytes
        self.used_at_s: float = vhost.clock.monotonic()  # about: when it was last found busy
        self._noted: int = 0  # the sum of its counters then

    @property
    def identity(self) -> Identity:
        """Return the user of the connection."""
        return self.handler.identity

    def check(self, verb: str, kind: str, name: str) -> None:
        """Raise ChannelError 403 unless the user may do this to that queue or exchange."""
        permissions.check(self.vhost, self.identity, verb, kind, name)

    def send(self, method: Method) -> None:
        """Send a method without content to the client."""
        self.output.send(self.number, method)

    # ---- publishing ----------------------------------------------------------------------------

    def select_confirms(self) -> None:
        """Confirm publishes from now on."""
        if self.transaction is not None:
            raise ChannelError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode", 85, 10)
        if self.publisher.confirms is None:
            self.publisher.confirms = Confirms()

    def _failed(self, error: Exception) -> None:
        self.handler.failed(self, error)

    # ---- delivering ----------------------------------------------------------------------------

    def deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        unacked = self.unacked
        output = self.output
        stored: StoredBody | None = None
        if delivery.message.body is None:
            stored = self.open_body(consumer.source, delivery)
        if consumer.no_ack:
            tag = unacked.skip()
        else:
            tag = unacked.add(consumer.source, delivery.tag, consumer)
            consumer.unacked += 1
            self.consumer_unacked += 1
            if self.prefetch and self.consumer_unacked >= self.prefetch:
                self.can_deliver = False
            if self.is_shared:
                self._turns.move_to_end(consumer)
        consumer.delivered += 1
        write_delivery(output, self.number, consumer, tag, delivery)
        if stored is not None:
            self.send_body(stored, consumer.source if consumer.no_ack else None, delivery.tag)
        if output.is_full():
            self.handler.on_output_full()

    def facts(self) -> tuple[str, int, str]:
        return self.handler.name, self.number, self.identity.name

    def open_body(self, source: Source, delivery: Delivery) -> StoredBody:
        """Open the large body of a message that was fetched. CorruptionError, OSError: it cannot be
        opened now, and the message is back in its source."""
        opened = source.open_large()
        if opened is not None:
            return opened
        try:
            return self.vhost.engine.bodies.open(delivery.message)
        except (CorruptionError, OSError):
            source.release([delivery.tag])
            raise

    def send_body(self, stored: StoredBody, source: Source | None = None, tag: int = 0) -> None:
        """Send the body in pieces, after its header frame was written. Nothing more is delivered on
        this channel meanwhile. source, tag: the delivery to settle when it was sent."""
        output = self.output
        output.put_large(LargeContent(self.number, output.frame_max, stored, source, tag))
        self.can_deliver = False

    def when_free(self, then: Callable[[], None]) -> None:
        """Wait until no large body is being sent on this channel; then call `then`."""
        self.is_waiting = True
        self._then = then

    def body_sent(self) -> None:
        """Continue after the last large body, and all that waited for it, was sent."""
        self.update()
        then, self._then = self._then, None
        if then is not None:
            self.go_on(then)

    def update(self) -> None:
        """Compute `can_deliver` again after something changed that decides it."""
        can = (
            self.handler.is_open_to_output
            and self.handler.has_output_room
            and (self.handler.has_unacked_room or not self._acknowledges())
            and not self.is_closed
            and (not self.prefetch or self.consumer_unacked < self.prefetch)
            and not self.output.is_busy(self.number)
        )
        if can and not self.can_deliver:
            self.can_deliver = True
            self.mark_queues()
        self.can_deliver = can

    def _acknowledges(self) -> bool:
        """Return whether one of its consumers acknowledges what it is given."""
        return any(not consumer.no_ack for consumer in self.consumers.values())

    def add_consumer(self, consumer: Consumer) -> None:
        """Add a consumer of this tag."""
        self.consumers[consumer.tag] = consumer
        if not self.handler.has_unacked_room:
            self.update()
        self.vhost.counts.consumers += 1
        self.vhost.events.consumer(consumer, is_new=True)
        if self.vhost.firehose.is_on:
            consumer.trace(self.vhost.firehose.delivered)
        self._least_s = min(self._least_s, consumer.timeout_or(0.0) or self._least_s)
        if self.is_shared:
            self._turns[consumer] = None
        else:
            self.update_sharing()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        if self.consumers.pop(consumer.tag, None) is not None:
            self.vhost.counts.consumers -= 1
            self.vhost.events.consumer(consumer, is_new=False)
            _add_consumer(self.counts, consumer)
        self._turns.pop(consumer, None)
        if len(self.consumers) < SHARING_MIN:
            self.update_sharing()

    def update_sharing(self) -> None:
        """Compute whether several consumers share one prefetch."""
        is_shared = self.prefetch > 0 and len(self.consumers) >= SHARING_MIN
        if is_shared != self.is_shared:
            self.is_shared = is_shared
            self._turns.clear()
            if is_shared:
                for consumer in self.consumers.values():
                    self._turns[consumer] = None

    def before(self, consumer: Consumer) -> Consumer | None:
        turns = self._turns
        for _ in range(min(len(turns), TURNS_LOOKED_AT)):
            first = next(iter(turns))
            if first is consumer:
                return None
            queue = first.queue
            is_asked = first.is_ready() and not first.no_ack and not queue.consumers.is_paused
            if is_asked and queue.len():
                return first
            turns.move_to_end(first)
        return None

    def room(self) -> int:
        if self.can_deliver and self.prefetch:
            return self.prefetch - self.consumer_unacked
        return NO_LIMIT if self.can_deliver else 0

    def mark_queues(self) -> None:
        """Mark the queues of the consumers, which may be given more."""
        for consumer in self.consumers.values():
            consumer.wake()
            self.vhost.dispatch.mark(consumer.source)

    def _uncount(self, consumer: Consumer) -> None:
        self.vhost.usage.clients.add(self.identity.name, -consumer.held_bytes)

    def take_away(self, consumer: Consumer) -> None:
        """End a consumer; what it has unacked stays unacked. Call `table.consumer_gone`
        afterwards."""
        vhost = self.vhost
        self.remove_consumer(consumer)
        self._uncount(consumer)
        consumer.is_cancelled = True
        consumer.queue.detach(consumer)
        consumer.queue.used_at_s = vhost.clock.monotonic()
        vhost.dispatch.mark(consumer.source)

    def check_rights(self) -> None:
        """Cancel the consumers whose queues the user may not read any more, after the permissions
        changed. The client gets basic.cancel, and an event is reported for each consumer."""
        vhost, identity = self.vhost, self.identity
        self.publisher.identity = identity
        self.publisher.forget_routes()
        for consumer in list(self.consumers.values()):
            queue = consumer.queue
            if queue.name == self.publisher.reply_queue or identity.may_read(queue.name):
                continue
            self.take_away(consumer)
            vhost.event(
                "consumer_cancelled",
                f"connection {self.handler.name}: consumer {consumer.tag!r} of "
                f"{vhost.table.called(queue.name)}: user {identity.name!r} may not read it any "
                "more",
            )
            if self.handler.has_capability("consumer_cancel_notify"):
                self.handler.cancel(self, BasicCancel(consumer_tag=consumer.tag, nowait=True))
            vhost.table.consumer_gone(queue)

    def cancelled(self, consumer: Consumer) -> None:
        if consumer.tag not in self.consumers:
            return
        self.remove_consumer(consumer)
        if self.is_closed:
            return
        self._uncount(consumer)
        if self.handler.has_capability("consumer_cancel_notify"):
            self.handler.cancel(self, BasicCancel(consumer_tag=consumer.tag, nowait=True))

    def add_pending(self, queue: Source, delivery: Delivery) -> int:
        """Add a message that was fetched without a consumer; return its delivery tag."""
        return self.unacked.add(queue, delivery.tag, None)

    def adopt(self, delivered: Delivered) -> int:
        """Take over an unacked delivery of another channel; return its new delivery tag."""
        return self.unacked.add(delivered.source, delivered.tag, None)

    def forget(self, delivery_tag: int) -> Delivered | None:
        """Remove an unacked delivery that another takes over; None if there is none of that tag."""
        delivered = self.unacked.take(delivery_tag)
        if delivered is not None:
            self.returned(delivered)
        return delivered

    def pending(self, delivery_tag: int) -> Delivered | None:
        """Return an unacked delivery, which stays unacked; None if there is none of that tag."""
        return self.unacked.get(delivery_tag)

    # ---- settling ------------------------------------------------------------------------------

    def ack_run(self, tags: list[int], multiples: list[bool], first: int = 0) -> int:
        """Handle acknowledgements from number `first` on, in order, as far as the turn's budget
        goes; return the number of the first of which something is left. ChannelError 406: an
        unknown delivery tag."""
        if self.transaction is not None:
            return self._ack_later(tags, multiples, first)
        unacked = self.unacked
        budget = self._budget
        source: Source | None = None
        settled: list[int] = []
        n = len(tags)
        try:
            for i in range(first, n):
                if budget.left <= 0 and budget.is_over():
                    return i
                budget.left -= 1
                if multiples[i]:
                    tags[i] = self._bound(tags[i], 80)
                    taken = unacked.take_up_to(tags[i], ACK_SLICE)
                    for delivered in taken:
                        if delivered.source is not source:
                            self._ack(source, settled)
                            source, settled = delivered.source, []
                        settled.append(delivered.tag)
                        self.returned(delivered)
                    budget.left -= len(taken)
                    if len(taken) == ACK_SLICE and unacked.get(tags[i]) is not None:
                        return i
                    continue
                one = unacked.take(tags[i])
                if one is None:
                    if tags[i] in unacked.late:
                        continue
                    raise unknown_tag(tags[i], 80)
                if one.source is not source:
                    self._ack(source, settled)
                    source, settled = one.source, []
                settled.append(one.tag)
                self.returned(one)
        finally:
            self._ack(source, settled)
            if not self.can_deliver:
                self.update()
        return n

    def _bound(self, tag: int, method_id: int) -> int:
        """Return the highest tag that a `multiple` means, now: 0 means all there are, one that has
        expired those before it (-1: there is none). ChannelError 406: the tag is not open."""
        if not tag:
            return self.unacked.last_open()
        if self.unacked.get(tag) is None:
            if tag in self.unacked.late:
                return self.unacked.last_open(tag) or -1
            raise unknown_tag(tag, method_id)
        return tag

    def _ack(self, source: Source | None, tags: list[int]) -> None:
        if source is None or not tags:
            return
        for counts in (self.counts, self.vhost.counts.messages):
            counts.ack += len(tags)
        if source.is_deleted:
            return
        try:
            source.ack(tags)
        except Exception as error:  # noqa: BLE001 - it is reported, or raised
            SettleFailed(self.vhost, [], ACK).failed(source, tags, error)
            return
        self.vhost.dispatch.mark(source)

    def returned(self, delivered: Delivered) -> None:
        """Make room for another delivery after one was settled."""
        consumer = delivered.consumer
        if consumer is not None:
            consumer.unacked -= 1
            self.consumer_unacked -= 1
            if consumer.is_parked:
                consumer.wake()

    def _ack_later(self, tags: list[int], multiples: list[bool], first: int) -> int:
        """Do `ack_run` in a transaction."""
        transaction = self.transaction
        assert transaction is not None, "it is in one"
        budget = self._budget
        n = 0
        try:
            for i in range(first, len(tags)):
                if budget.left <= 0 and budget.is_over():
                    return i
                tag = tags[i]
                most = 1
                if multiples[i]:
                    tag = tags[i] = self._bound(tag, 80)
                    most = TAKE_SLICE
                taken = self.take(tag, most, 80)
                done = 0
                try:
                    for one, delivered in taken:
                        done += 1  # it is in the transaction, also if this fails
                        transaction.ack(one, delivered)
                finally:
                    n += done
                    if done < len(taken):
                        self.unacked.put_back(taken[done:])
                        self.unacked.sort()
                budget.left -= 1 + ACK_STEPS * len(taken)
                if most > 1 and len(taken) == most and self.unacked.get(tag) is not None:
                    return i
        finally:
            transaction.count_settled(n)
        return len(tags)

    def take(
        self, tag: int, most: int, method_id: int, *, returns: bool = False
    ) -> list[tuple[int, Delivered]]:
        """Remove and return (tag, delivery) of what a method settles: of one delivery, or of the
        oldest up to the tag of a `multiple`, as many as `most`. In a transaction they keep their
        places until the commit (`committed`). returns: they will go back to their queues.
        ChannelError 406 for an unknown tag."""
        if most > 1:
            taken = self.unacked.open_up_to(tag, most)
        else:
            one = self.unacked.get(tag)
            if one is None:
                if tag in self.unacked.late:
                    return []
                raise unknown_tag(tag, method_id)
            taken = [(tag, one)]
        source: Source | None = None
        for open_tag, delivered in taken:
            self.unacked.take(open_tag)
            if returns and delivered.source is not source and not self.returning:
                source = delivered.source
                source.before_return()
            if self.transaction is None:
                self.returned(delivered)
        return taken

    def committed(self, transaction: ChannelTransaction) -> bool:
        """Make room for other deliveries after a commit, as far as the turn's budget goes. Return
        whether that is all."""
        budget = self._budget
        while some := transaction.settled_slice(ACK_SLICE):
            for _, delivered in some:
                self.returned(delivered)
            budget.left -= len(some)
            if budget.left <= 0 and budget.is_over():
                return False
        return True

    def reject(self, tag: int, *, is_multiple: bool, requeue: bool, method_id: int) -> None:
        """Dead-letter a delivery that failed, or all up to it, or put them back at `give_back`: in
        slices. ChannelError 406 for an unknown tag."""
        if is_multiple:
            tag = self._bound(tag, method_id)
        elif not tag:
            raise unknown_tag(tag, method_id)
        most = TAKE_SLICE if is_multiple else 1
        self.handler.do_in_slices(self, Rejecting(self, tag, most, method_id, requeue=requeue))

    def give_back(self) -> "SettleFailed | None":
        """Return the work that puts back what was requeued; None: there is nothing. The caller that
        handles the client's methods does it before the next method that is not basic.reject or
        basic.nack, and at the end of what was read, so that requeues that arrive together are one
        record and one step of each queue."""
        if not self.returning:
            return None
        returning, self.returning = self.returning, []
        return SettleFailed(self.vhost, returning, REQUEUE)

    def check_timeouts(self, now_s: float) -> None:
        """Put back what consumers have had for longer than their timeout, or close the channel."""
        unacked = self.unacked
        if self.is_closed:
            return
        for consumer in self.consumers.values():
            consumer.look(now_s)
        if not unacked.count:
            return
        unacked.mark_time(now_s)
        settings = self.vhost.settings
        default_s = settings.consumer_timeout_s or 0.0
        least_s = min(self._least_s, default_s or self._least_s)
        for consumer in self.consumers.values():
            least_s = min(least_s, consumer.timeout_or(default_s) or least_s)
        self._least_s = least_s
        expired = unacked.expired(now_s, default_s, least_s)
        if not expired:
            return
        failed = [delivered for _, delivered in expired]
        first = failed[0].consumer
        assert first is not None, "basic.get has no timeout"
        timeout_s = failed[0].timeout_s(default_s)
        if settings.consumer_timeout_closes:
            unacked.put_back(expired)
            text = f"delivery acknowledgement on channel {self.number} timed out. Timeout value "
            text += f"used: {timeout_s * 1000:.0f} ms. This timeout value can be configured, see "
            text += "consumers doc guide to learn more"
            self.handler.failed(self, ChannelError(PRECONDITION_FAILED, text))
            return
        self.vhost.event(
            "consumer_timeout",
            f"connection {self.handler.name}: consumer {first.tag!r} of "
            f"{self.vhost.table.called(first.queue.name)} has not acknowledged for {timeout_s:g} "
            f"s: {len(failed)} deliveries of channel {self.number} go back",
        )
        for source in {delivered.source: None for delivered in failed}:
            source.before_return()
        for delivered in failed:
            self.returned(delivered)
        SettleFailed(self.vhost, failed, REQUEUE).finish_later()
        self.update()

    def count_bytes(self) -> int:
        """Return by how many bytes the RAM of unacked deliveries has changed since the last
        call."""
        now = 0 if self.is_closed else self.unacked.count
        change = now - self.counted_unacked
        self.counted_unacked = now
        return change * UNACKED_BYTES

    # ---- waiting -------------------------------------------------------------------------------

    def wait_for(self, lsn: int, mode: int, then: Callable[[], None]) -> None:
        """Call `then`, and handle the backlog, once the LSN is settled; 0: at once."""
        if not lsn:
            then()
            return
        self.is_waiting = True
        self.vhost.dispatch.when_settled(lsn, mode, lambda: self.go_on(then))

    def go_on(self, then: Callable[[], None]) -> None:
        """End the waiting (`is_waiting`): call `then`, and handle the backlog."""
        if not self.is_closed:
            self.is_waiting = self.is_committing = False
            try:
                then()
            except Exception as error:  # noqa: BLE001 - it is reported
                self.handler.failed(self, error)
            self.handler.go_on(self)

    def answer(self, lsn: int, method: Method | None) -> None:
        """Answer once the LSN is settled in the vhost's mode. None: the client wants no answer
        (nowait)."""
        if method is None:
            return
        if not lsn:
            self.send(method)
            return
        answer = method

        def then() -> None:
            self.send(answer)

        self.wait_for(lsn, self.vhost.mode, then)

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """End the channel: consumers end, and what is unacked goes back."""
        if self.is_closed:
            return
        self.is_closed = True
        self.can_deliver = False
        self._then = None
        self.publisher.confirms = None
        self.publisher.on_failed = None  # a cycle, which only a full collection would free
        self.publisher.forget_routes()
        self.backlog.clear()
        if self.is_waiting:
            self.handler.send_cancels()
        if self.spooled is not None:
            self.spooled.abort()
            self.spooled = None
        transaction, self.transaction = self.transaction, None
        self.publisher.transaction = None
        if transaction is not None:
            transaction.begin_rollback()
        consumers = list(self.consumers.values())
        self.consumers = {}
        self.vhost.counts.consumers -= len(consumers)
        first, others = consumers[:CONSUMER_SLICE], consumers[CONSUMER_SLICE:]
        for consumer in first:
            self.end_consumer(consumer)
        Releasing(self, self.unacked, transaction, others).finish_later()
        for consumer in first:
            self.consumer_gone(consumer)
        if self.publisher.reply_queue:
            queue = self.vhost.table.usable(self.publisher.reply_queue)
            if queue is not None:
                self.vhost.delete_queue(queue, if_unused=False, if_empty=False)

    def end_consumer(self, consumer: Consumer) -> None:
        """End a consumer of a channel that is closed; `consumer_gone` must follow."""
        self.vhost.events.consumer(consumer, is_new=False)
        self._uncount(consumer)
        consumer.is_cancelled = True
        consumer.queue.detach(consumer)

    def consumer_gone(self, consumer: Consumer) -> None:
        """Have the queue of a consumer that has ended go on without it."""
        self.vhost.dispatch.mark(consumer.source)
        self.vhost.table.consumer_gone(consumer.queue)

    def message_stats(self) -> dict[str, int]:
        """Return its counters by RabbitMQ's names."""
        found = MessageCounts()
        for consumer in self.consumers.values():
            _add_consumer(found, consumer)
        now = found.stats()
        return {name: n + now[name] for name, n in self.counts.stats().items()}

    def changed_stats(self, now_s: float) -> dict[str, int] | None:
        """Return its counters; None if none has changed since the last call."""
        stats = self.message_stats()
        noted, self._noted = self._noted, sum(stats.values())
        if noted == self._noted:
            return None
        self.used_at_s = now_s
        return stats

    @property
    def name(self) -> str:
        """Its name, as people see it: the connection's, and its number."""
        return f"{self.handler.name} ({self.number})"

    def info(self) -> dict[str, object]:
        """Return the channel's columns for listings."""
        confirms, transaction = self.publisher.confirms, self.transaction
        return {
            "connection": self.handler.name,
            "number": self.number,
            "consumer_count": len(self.consumers),
            "messages_unacknowledged": self.unacked.count,
            "messages_unconfirmed": (
                0 if confirms is None else confirms.last_tag - confirms.answered
            ),
            "prefetch_count": self.consumer_prefetch,
            "global_prefetch_count": self.prefetch,
            "confirm": confirms is not None,
            "transactional": transaction is not None,
            "messages_uncommitted": 0 if transaction is None else transaction.publishes,
            "acks_uncommitted": 0 if transaction is None else transaction.acks,
            "state": "waiting" if self.is_waiting else "running",
        }


def _add_consumer(counts: MessageCounts, consumer: Consumer) -> None:
    no_ack = consumer.delivered if consumer.no_ack else 0
    counts.delivered(consumer.delivered - no_ack, no_ack, consumer.came_again)


def unknown_tag(tag: int, method_id: int) -> ChannelError:
    """Return a 406 for a delivery tag that is not open."""
    return ChannelError(PRECONDITION_FAILED, f"unknown delivery tag {tag}", 60, method_id)
