"""Channel: what one AMQP channel has going: publishes, consumers, unacked deliveries, its tx.

A channel is the unit of order: its methods are handled one after the other. One that must wait for
the disk (a durable declare, tx.commit, a basic.get whose message is held) makes the channel wait:
what comes after it is kept (`backlog`) until it is answered; other channels go on. Confirms and
deliveries are not answers and go on, too.

**Prefetch.** basic.qos with global=false is the limit of each consumer that comes after it, with
global=true one limit for all consumers of the channel, as in RabbitMQ 3.x. `can_deliver` says at
any time whether another message may be given to it; whatever changes that calls `update`.

With one limit for several consumers, a place is for the one that has waited longest of those whose
queues have something (`before`): the queues get the same share, however full they are.

**Settling.** Acks of one queue that come in a row are one record. What is unacked when the channel
ends goes back to its queues at once, to its old places, redelivered.

Not here: the methods (channel_basic.py, channel_topology.py), frames and errors
(connection_handler.py), delivery tags (unacked.py).
"""

from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

from librt.strings import write_i64_be

from penstock.access.permissions import Identity
from penstock.broker.confirms import Confirms
from penstock.broker.consumers import NO_LIMIT, Consumer, ConsumerChannel
from penstock.broker.deliver import END, METHOD, begin_frame, write_delivery
from penstock.broker.large_content import LargeContent
from penstock.broker.output import Output
from penstock.broker.publish import Publisher
from penstock.broker.roles import Peer, Source
from penstock.broker.spooled import SpooledPublish
from penstock.broker.transactions import ChannelTransaction
from penstock.broker.unacked import UNACKED_BYTES, Delivered, Unacked
from penstock.broker.vhost import VHost
from penstock.codec.method import Method
from penstock.codec.spec import BasicCancel
from penstock.errors import PRECONDITION_FAILED, AMQPError, ChannelError, CorruptionError
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import Delivery
from penstock.storage.stored_body import StoredBody

ACK: Final = b"\x00\x3c\x00\x50"  # class 60, method 80
SHARING_MIN: Final = 2
TURNS_LOOKED_AT: Final = 16  # of consumers, for each delivery
NACK: Final = b"\x00\x3c\x00\x78"  # 60, 120


@mypyc_attr(allow_interpreted_subclasses=True)
class ChannelOwner(Peer):
    """A connection, as its channels see it."""

    channels: dict[int, "Channel"]
    identity: Identity
    name: str
    is_open_to_output: bool  # the client takes what is sent
    is_ended_by_server: bool  # not by its client, whose consumers are not to blame

    @abstractmethod
    def went_full(self) -> None:
        """The output is full: nothing more is to be delivered in this turn, unless a queue serves
        its consumers before a limit acts: then it is sent at once."""

    @abstractmethod
    def go_on(self, channel: "Channel") -> None:
        """The channel waits no more: handle its backlog."""

    @abstractmethod
    def failed(self, channel: "Channel", error: Exception) -> None:
        """An answer that came later has raised this: close the channel or the connection, as an
        error of a method would. A failure of the engine is raised again."""

    @abstractmethod
    def close_channel(self, number: int, error: AMQPError) -> None:
        """End a channel with an error."""

    @abstractmethod
    def hold_cancels(self) -> None:
        """Consumers that are cancelled from here on are told at `send_cancels`, not before."""

    @abstractmethod
    def cancel(self, channel: "Channel", method: BasicCancel) -> None:
        """Tell the client that a consumer of the channel is cancelled."""

    @abstractmethod
    def send_cancels(self) -> None:
        """Tell of those that were held back."""

    @abstractmethod
    def has_capability(self, name: str) -> bool:
        """Whether the client said that it can do this."""


class Channel(ConsumerChannel):
    """See the head of this module."""

    def __init__(self, handler: ChannelOwner, vhost: VHost, number: int, output: Output) -> None:
        self.handler: ChannelOwner = handler
        self.vhost: VHost = vhost
        self.number: int = number
        self.output: Output = output
        self.publisher: Publisher = Publisher(vhost, handler.identity, number, output)
        self.confirms: Confirms | None = None
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
        self.backlog: deque[object] = deque()
        self.queue_name: str = ""  # declared last: what an empty name means
        self.can_deliver: bool = handler.is_open_to_output
        self._owes: bool = False
        self._then: Callable[[], None] | None = None  # of `when_free`
        self._counted_bytes: int = 0  # of unacked deliveries, as the vhost counts them

    @property
    def identity(self) -> Identity:
        """Who is at the other end."""
        return self.handler.identity

    def send(self, method: Method) -> None:
        """A method without content, for the client."""
        self.output.send(self.number, method)

    # ---- publishing ----------------------------------------------------------------------------

    def select_confirms(self) -> None:
        """From now on publishes are confirmed."""
        if self.transaction is not None:
            raise ChannelError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode", 85, 10)
        if self.confirms is None:
            self.confirms = self.publisher.confirms = Confirms()

    def note_publishes(self) -> None:
        """Publishes were handled: answers may be owed."""
        if self.confirms is not None and self.confirms.is_owing:
            if self._owes:
                self.vhost.dispatch.owes_more()
            else:
                self._owes = True
                self.vhost.dispatch.owes(self)

    def settle(self, settled: int) -> bool:
        confirms = self.confirms
        if confirms is None or self.is_closed:
            self._owes = False
            return False
        try:
            runs = confirms.settle(settled)
        except Exception as error:  # noqa: BLE001 - it is reported
            self._owes = False
            self.handler.failed(self, error)
            return False
        for run in runs:
            out = self.output.writer(self.number)
            begin_frame(out, METHOD, self.number, 13)
            out.write(ACK if run.is_ack else NACK)
            write_i64_be(out, run.last_tag)
            out.append(1 if run.is_multiple else 0)
            out.append(END)
        self._owes = confirms.is_owing
        return self._owes

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
            self.handler.went_full()

    def open_body(self, source: Source, delivery: Delivery) -> StoredBody:
        """The large body of a message that was fetched. CorruptionError, OSError: it cannot be
        opened now, and the message is back in its source."""
        try:
            return self.vhost.engine.open_body(delivery.message)
        except (CorruptionError, OSError):
            source.release([delivery.tag])
            raise

    def send_body(self, stored: StoredBody, source: Source | None = None, tag: int = 0) -> None:
        """Its header frame was written: the body follows, in pieces. Nothing more is delivered on
        this channel meanwhile. source, tag: to be told when it was sent."""
        output = self.output
        output.put_large(LargeContent(self.number, output.frame_max, stored, source, tag))
        self.can_deliver = False

    def when_free(self, then: Callable[[], None]) -> None:
        """Wait, as for the disk, until no large body is on its way on this channel; then call."""
        self.is_waiting = True
        self._then = then

    def body_sent(self) -> None:
        """The last large body was sent, and all that was behind it."""
        self.update()
        then, self._then = self._then, None
        if then is not None:
            self.go_on(then)

    def update(self) -> None:
        """Something changed that decides whether more may be delivered."""
        can = (
            self.handler.is_open_to_output
            and not self.is_closed
            and (not self.prefetch or self.consumer_unacked < self.prefetch)
            and not self.output.is_busy(self.number)
        )
        if can and not self.can_deliver:
            self.can_deliver = True
            self.mark_queues()
        self.can_deliver = can

    def add_consumer(self, consumer: Consumer) -> None:
        """One consumer more, of this tag from now on."""
        self.consumers[consumer.tag] = consumer
        if self.is_shared:
            self._turns[consumer] = None
        else:
            self.look_at_sharing()

    def remove_consumer(self, consumer: Consumer) -> None:
        """One consumer less."""
        self.consumers.pop(consumer.tag, None)
        self._turns.pop(consumer, None)
        if len(self.consumers) < SHARING_MIN:
            self.look_at_sharing()

    def look_at_sharing(self) -> None:
        """Whether several consumers share one prefetch."""
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
            if first.is_ready() and not first.no_ack and first.queue.len():
                return first
            turns.move_to_end(first)
        return None

    def room(self) -> int:
        if self.can_deliver and self.prefetch:
            return self.prefetch - self.consumer_unacked
        return NO_LIMIT if self.can_deliver else 0

    def mark_queues(self) -> None:
        """Its consumers may be given more."""
        for consumer in self.consumers.values():
            consumer.wake()
            self.vhost.dispatch.mark(consumer.source)

    def take_away(self, consumer: Consumer) -> None:
        """A consumer ends by itself; what it has unacked stays unacked. `vhost.consumer_gone` is to
        follow."""
        vhost = self.vhost
        self.remove_consumer(consumer)
        vhost.usage.consumer_bytes -= consumer.held_bytes
        consumer.is_cancelled = True
        consumer.queue.detach(consumer)
        consumer.queue.used_at_ms = vhost.clock.wall_ms()
        vhost.dispatch.mark(consumer.source)

    def check_rights(self) -> None:
        """The user's permissions have changed: what may not be read any more is consumed no more.
        The client is told by basic.cancel, and an event is reported for each consumer."""
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
            vhost.consumer_gone(queue)

    def cancelled(self, consumer: Consumer) -> None:
        if consumer.tag not in self.consumers:
            return
        self.remove_consumer(consumer)
        if self.is_closed:
            return
        self.vhost.usage.consumer_bytes -= consumer.held_bytes
        if self.handler.has_capability("consumer_cancel_notify"):
            self.handler.cancel(self, BasicCancel(consumer_tag=consumer.tag, nowait=True))

    def add_pending(self, queue: Source, delivery: Delivery) -> int:
        """A message that was fetched for the client otherwise than by a consumer; its tag."""
        return self.unacked.add(queue, delivery.tag, None)

    def adopt(self, delivered: Delivered) -> int:
        """An unacked delivery of a sibling channel is this one's now; its new delivery tag."""
        return self.unacked.add(delivered.source, delivered.tag, None)

    def forget(self, delivery_tag: int) -> Delivered | None:
        """An unacked delivery is somebody else's now; None if there is none of that tag."""
        delivered = self.unacked.take(delivery_tag)
        if delivered is not None:
            self._returned(delivered)
        return delivered

    def pending(self, delivery_tag: int) -> Delivered | None:
        """An unacked delivery, which stays that."""
        return self.unacked.get(delivery_tag)

    # ---- settling ------------------------------------------------------------------------------

    def ack_run(self, tags: list[int], multiples: list[bool]) -> None:
        """Acknowledgements, in order. ChannelError 406: an unknown delivery tag."""
        if self.transaction is not None:
            self._ack_later(tags, multiples)
            return
        unacked = self.unacked
        source: Source | None = None
        settled: list[int] = []
        try:
            for i in range(len(tags)):
                if multiples[i]:
                    self._check_tag(tags[i], 80)
                    for delivered in unacked.take_up_to(tags[i]):
                        if delivered.source is not source:
                            self._ack(source, settled)
                            source, settled = delivered.source, []
                        settled.append(delivered.tag)
                        self._returned(delivered)
                    continue
                one = unacked.take(tags[i])
                if one is None:
                    raise unknown_tag(tags[i], 80)
                if one.source is not source:
                    self._ack(source, settled)
                    source, settled = one.source, []
                settled.append(one.tag)
                self._returned(one)
        finally:
            self._ack(source, settled)
            if not self.can_deliver:
                self.update()

    def _check_tag(self, tag: int, method_id: int) -> None:
        """With `multiple` a tag must be an open one; 0 is all there are."""
        if tag and self.unacked.get(tag) is None:
            raise unknown_tag(tag, method_id)

    def _ack(self, source: Source | None, tags: list[int]) -> None:
        if source is None or not tags or source.is_deleted:
            return
        source.ack(tags)
        self.vhost.dispatch.mark(source)

    def _returned(self, delivered: Delivered) -> None:
        """A delivery is settled: there is room for another one."""
        consumer = delivered.consumer
        if consumer is not None:
            consumer.unacked -= 1
            self.consumer_unacked -= 1
            if consumer.is_parked:
                consumer.wake()

    def _ack_later(self, tags: list[int], multiples: list[bool]) -> None:
        transaction = self.transaction
        assert transaction is not None, "it is in one"
        n = 0
        for tag, is_multiple in zip(tags, multiples, strict=True):
            for one, delivered in self.take(tag, is_multiple=is_multiple, method_id=80):
                transaction.ack(one, delivered)
                n += 1
        transaction.count_settled(n)

    def take(self, tag: int, *, is_multiple: bool, method_id: int) -> list[tuple[int, Delivered]]:
        """(tag, delivery) of what a method settles; they are not unacked any more. In a transaction
        they keep their places until the commit (`committed`). ChannelError 406 for an unknown
        tag."""
        if is_multiple:
            self._check_tag(tag, method_id)
            taken = self.unacked.open_up_to(tag)
        else:
            one = self.unacked.get(tag)
            if one is None:
                raise unknown_tag(tag, method_id)
            taken = [(tag, one)]
        for open_tag, delivered in taken:
            self.unacked.take(open_tag)
            if self.transaction is None:
                self._returned(delivered)
        return taken

    def committed(self, transaction: ChannelTransaction) -> None:
        """What was settled in it gives room for other deliveries."""
        for _, delivered in transaction.taken:
            self._returned(delivered)
        for _, delivered, _ in transaction.rejected:
            self._returned(delivered)

    def reject(self, delivered: list[Delivered], *, requeue: bool) -> None:
        """Deliveries that failed: dead-lettered, or back to their places, at `give_back`."""
        if requeue:
            self.returning += delivered
            return
        self.give_back()
        self._settle_failed(delivered, requeue=False)

    def give_back(self) -> None:
        """Put back what was requeued. Whoever handles the client's methods calls this before the
        next method that is no basic.reject or basic.nack, and at the end of what was read, so
        requeues that come together are one record and one step of each queue."""
        if self.returning:
            returning, self.returning = self.returning, []
            self._settle_failed(returning, requeue=True)

    def _settle_failed(self, delivered: list[Delivered], *, requeue: bool) -> None:
        by_source: dict[Source, list[int]] = {}
        for one in delivered:
            by_source.setdefault(one.source, []).append(one.tag)
        for source, tags in by_source.items():
            if source.is_deleted:
                continue
            if requeue:
                source.requeue(tags)
            else:
                source.discard(tags)
            self.vhost.dispatch.mark(source)

    def release_all(self) -> None:
        """All that is unacked goes back to its queues. A delivery limit counts it, unless it is the
        server that ends the connection."""
        by_source: dict[Source, list[int]] = {}
        for delivered in self.unacked.take_up_to(0):
            self._returned(delivered)
            by_source.setdefault(delivered.source, []).append(delivered.tag)
        for source, tags in by_source.items():
            if not source.is_deleted:
                if self.handler.is_ended_by_server:
                    source.release(tags)
                else:
                    source.give_back(tags)
                self.vhost.dispatch.mark(source)

    def count_bytes(self) -> int:
        """By how much what unacked deliveries take in RAM has changed since the last call."""
        now = 0 if self.is_closed else self.unacked.count * UNACKED_BYTES
        change = now - self._counted_bytes
        self._counted_bytes = now
        return change

    # ---- waiting -------------------------------------------------------------------------------

    def wait_for(self, lsn: int, mode: int, then: Callable[[], None]) -> None:
        """Go on with `then`, and the backlog behind it, once the LSN is settled; 0: at once."""
        if not lsn:
            then()
            return
        self.is_waiting = True
        self.vhost.dispatch.when_settled(lsn, mode, lambda: self.go_on(then))

    def go_on(self, then: Callable[[], None]) -> None:
        """What it waited for (`is_waiting`) has come: `then`, and the backlog behind it."""
        if not self.is_closed:
            self.is_waiting = False
            try:
                then()
            except Exception as error:  # noqa: BLE001 - it is reported
                self.handler.failed(self, error)
            self.handler.go_on(self)

    def answer(self, lsn: int, method: Method | None) -> None:
        """Answer once the LSN is settled in the vhost's mode. None: none is wanted (nowait),
        and nothing is waited for."""
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
        """The channel ends, by whoever's wish: consumers go, what is unacked goes back."""
        if self.is_closed:
            return
        self.is_closed = True
        self.can_deliver = False
        self._then = None
        self.give_back()
        self.backlog.clear()
        if self.is_waiting:
            self.handler.send_cancels()
        if self.spooled is not None:
            self.spooled.abort()
            self.spooled = None
        transaction = self.transaction
        if transaction is not None:
            transaction.rollback()
            self.undo(transaction)
            self.transaction = self.publisher.transaction = None
        consumers = list(self.consumers.values())
        self.consumers = {}
        for consumer in consumers:
            self.vhost.usage.consumer_bytes -= consumer.held_bytes
            consumer.is_cancelled = True
            consumer.queue.detach(consumer)
        self.release_all()
        for consumer in consumers:
            self.vhost.dispatch.mark(consumer.source)
            self.vhost.consumer_gone(consumer.queue)
        if self.publisher.reply_queue:
            queue = self.vhost.served(self.publisher.reply_queue)
            if queue is not None:
                self.vhost.delete_queue(queue, if_unused=False, if_empty=False)

    def undo(self, transaction: ChannelTransaction) -> None:
        """What the transaction had acknowledged is unacked again."""
        back = [*transaction.taken, *[(tag, one) for tag, one, _ in transaction.rejected]]
        self.unacked.put_back(back)

    def info(self) -> dict[str, object]:
        """What people see of it."""
        confirms = self.confirms
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
            "transactional": self.transaction is not None,
            "state": "waiting" if self.is_waiting else "running",
        }


def unknown_tag(tag: int, method_id: int) -> ChannelError:
    """406 for a delivery tag that is not open."""
    return ChannelError(PRECONDITION_FAILED, f"unknown delivery tag {tag}", 60, method_id)
