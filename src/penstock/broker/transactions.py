"""Transactions: tx.* over any number of queues, all of it or nothing, whatever crashes.

AMQP promises atomicity for one queue at most, and RabbitMQ not even that; here a commit is one
decision in the log. What is published and acknowledged between tx.select and tx.commit is collected
by the engine's Transaction; bodies beyond the first MiB wait on disk.

    publish       persistent, durable queue: in the transaction. Others: kept, and published right
                  after the commit; they would not survive a crash anyway.
    ack           in the transaction
    reject, nack  kept, and done right after the commit: a crash between leaves the message in its
                  queue, to be redelivered
    mandatory     what no queue gets is returned at the commit, also where its queues have been
                  deleted since it was published
    prefetch      what is settled in it has its place until the commit, as in RabbitMQ
    rollback      what was published was never there; what was acknowledged is unacked again, with
                  its delivery tag, as in RabbitMQ

What the open transactions of a vhost hold in RAM is bounded (usage.py): the largest is ended with
506 when all of them together hold too much.

What was published is delivered once the commit is settled, and tx.commit-ok is sent then. A commit
that a queue refuses (reject-publish) or that is too large (506) is rolled back whole.

Not here: the methods (channel_basic.py).
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.fan_out import Planned, fan_out, plan_all
from penstock.broker.publish import Collecting, Route, Targets
from penstock.broker.publish_facts import Facts
from penstock.broker.roles import Source
from penstock.broker.served_queue import ServedQueue
from penstock.broker.served_stream import StreamAppend
from penstock.broker.unacked import Delivered
from penstock.broker.usage import Hold
from penstock.broker.vhost import VHost
from penstock.errors import ChannelError, QueueFullError
from penstock.queues.queue_options import DROP_HEAD
from penstock.shared_body import SharedBody
from penstock.storage.sharing import Sharing

PUBLISH_BYTES: Final = 500  # measured: a publish without its header and body
ACK_BYTES: Final = 200


class Kept:
    """A publish that is made right after the commit."""

    def __init__(
        self, queues: list[ServedQueue], header: bytes, body: bytes, facts: Facts,
        shared: SharedBody | None,
    ) -> None:  # fmt: skip
        self.queues: list[ServedQueue] = queues
        self.header: bytes = header
        self.body: bytes = body
        self.shared: SharedBody | None = shared  # with the queues that have it by the commit
        self.facts: Facts = Facts()
        self.facts.is_persistent = facts.is_persistent
        self.facts.priority = facts.priority
        self.facts.ttl_ms = facts.ttl_ms
        self.facts.delay_ms = facts.delay_ms


class ChannelTransaction(Collecting):
    """Of one channel, from one commit or rollback to the next. `refusal`: why it cannot commit.
    `places`: (partition, offset) of what it appended to streams, once it is committed. end(error):
    close its channel with this error; called when it is the one that holds too much."""

    def __init__(self, vhost: VHost, end: Callable[[ChannelError], None]) -> None:
        self.vhost: VHost = vhost
        self._hold: Hold = Hold(end)
        self.refusal: QueueFullError | None = None
        self.returned: list[tuple[Route, bytes, bytes]] = []
        self.taken: list[tuple[int, Delivered]] = []  # (delivery tag, what was acknowledged)
        self.rejected: list[tuple[int, Delivered, bool]] = []  # (delivery tag, it, is_requeue)
        self._transaction = vhost.engine.begin()
        self.places: list[tuple[int, int]] = []
        self._mandatory: list[tuple[Route, Targets, bytes, bytes]] = []
        self._puts: list[Planned] = []
        self._appends: list[StreamAppend] = []
        self._kept: list[Kept] = []
        self._acks: dict[Source, list[int]] = {}
        self._counts: dict[ServedQueue, tuple[int, int]] = {}  # messages, bytes of bodies

    # ---- what is in it -------------------------------------------------------------------------

    def put(
        self, route: Route, targets: Targets, header: bytes, props: bytes, body: bytes,
        facts: Facts,
    ) -> None:  # fmt: skip
        queues = targets.queues
        self.vhost.usage.hold(self._hold, self._held_bytes(route, targets, header, body, facts))
        if route.is_mandatory:
            self._mandatory.append((route, targets, props, body))
        durable = [queue for queue in queues if facts.is_persistent and queue.is_durable]
        others = [queue for queue in queues if queue not in durable]
        for queue in queues:
            self._check_room(queue, len(body))
        engine = self.vhost.engine
        shared = engine.share_of(body, len(queues))
        if others:
            self._kept.append(Kept(others, header, body, facts, shared))
        if durable and self.refusal is None:
            with Sharing(engine, shared, completes=False):
                plan_all(self._transaction, durable, header, body, facts, self._puts)
        if self.refusal is None:
            for stream in targets.streams:
                self._appends.append(stream.begin_append(self._transaction, header, body))

    def _held_bytes(
        self, route: Route, targets: Targets, header: bytes, body: bytes, facts: Facts
    ) -> int:
        """What one more publish takes in RAM. The engine's transaction has its bodies on disk, from
        some bytes of them on; what is kept for after the commit is in RAM."""
        is_kept = bool(targets.streams) or not facts.is_persistent or route.is_mandatory
        for queue in targets.queues:
            is_kept = is_kept or not queue.is_durable
        spool_bytes = self.vhost.engine.options.tx_spool_bytes
        if is_kept or self._transaction.body_bytes + len(body) <= spool_bytes:
            return PUBLISH_BYTES + len(header) + len(body)
        return PUBLISH_BYTES + len(header)

    def _check_room(self, queue: ServedQueue, size: int) -> None:
        if queue.amq.options.overflow == DROP_HEAD:
            return
        n, total = self._counts.get(queue, (0, 0))
        n, total = n + 1, total + size
        self._counts[queue] = n, total
        try:
            queue.amq.before_publish(total, n)
        except QueueFullError as error:
            self.refusal = error

    def ack(self, delivery_tag: int, delivered: Delivered) -> None:
        """An unacked delivery is acknowledged when it commits."""
        self.taken.append((delivery_tag, delivered))
        source = delivered.source
        if source.is_deleted:
            return
        if isinstance(source, ServedQueue):
            for index, entries in source.amq.backing.entries([delivered.tag]):
                self._transaction.dequeue(index, entries)
        self._acks.setdefault(source, []).append(delivered.tag)

    def reject(self, delivery_tag: int, delivered: Delivered, *, requeue: bool) -> None:
        """It is rejected, or requeued, right after the commit."""
        self.rejected.append((delivery_tag, delivered, requeue))

    def count_settled(self, count: int) -> None:
        """So many deliveries were acknowledged or rejected in it. ChannelError 506: it holds too
        much; they are in it all the same, so that they go back with its channel."""
        self.vhost.usage.hold(self._hold, ACK_BYTES * count)

    # ---- the end of it -------------------------------------------------------------------------

    def commit(self) -> int:
        """Make it happen: settled, in the vhost's mode, at the LSN that is returned (0: nothing was
        durable in it). TransactionTooLargeError, QueueFullError: it is rolled back, but for what
        `undo` gives. DiskFullError: nothing happened."""
        if self.refusal is not None:
            self.rollback()
            raise self.refusal
        self._look_at_mandatory()
        vhost = self.vhost
        lsn = 0
        transaction = self._transaction
        if transaction.publishes or transaction.appends or transaction.dequeues:
            lsn = self._transaction.commit(vhost.mode)
        elif self._transaction.is_open:
            self._transaction.rollback()
        for source, tags in self._acks.items():
            if source.is_deleted:
                continue
            if isinstance(source, ServedQueue):
                source.amq.backing.forget(tags)
                source.acked += len(tags)
            else:
                source.ack(tags)
            vhost.dispatch.mark(source)
        for queue, plan, published in self._puts:
            for index, entry in published.entries:
                if index is plan.index:
                    size = entry.message.size
                    queue.amq.planned(plan, entry.seq, size, lsn, vhost.mode)
                    queue.published += 1
            vhost.dispatch.mark(queue)
        self.places = [append.done() for append in self._appends]
        vhost.usage.release(self._hold)
        for kept in self._kept:
            fan_out(vhost, [q for q in kept.queues if not q.is_deleted], [], kept.header, kept.body,
                    kept.facts, None, kept.shared)  # fmt: skip
        return lsn

    def _look_at_mandatory(self) -> None:
        for route, targets, props, body in self._mandatory:
            if self._is_lost(targets):
                self.returned.append((route, props, body))

    def _is_lost(self, targets: Targets) -> bool:
        """Whether none of these is there any more. A queue that was restarted is."""
        known = self.vhost.engine.state.queues
        for queue in targets.queues:
            if not queue.is_deleted or queue.amq.backing.index(0).number in known:
                return False
        gone = [stream for stream in targets.streams if stream.is_deleted]
        return len(gone) == len(targets.streams)

    def rollback(self) -> None:
        """Undo what was published. Its acknowledgements (`taken`, `rejected`) are the channel's to
        undo."""
        self.vhost.usage.release(self._hold)
        if self._transaction.is_open:
            self._transaction.rollback()
        for queue, plan, _ in self._puts:
            if not queue.is_deleted:
                queue.amq.unplan(plan)
        self._puts = []
