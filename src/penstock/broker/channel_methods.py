"""The methods of a channel: one function each, in one table.

Each checks what the user may do, does it, and answers: at once, or, for what is durable, when it is
as safe as the vhost's mode says (`Channel.answer`). Errors are raised: ChannelError and
AMQPConnectionError, with RabbitMQ's texts; the caller adds the method's ids. basic.publish and
basic.ack come in runs and are elsewhere (publish.py, Channel.ack_run).

Permissions are RabbitMQ's (permissions.py); binding needs write access to what is bound and read
access to the source. Passive declares need none.

Where RabbitMQ differs from the specification, so does this: basic.qos with a prefetch size and
basic.recover without requeue are not implemented (540), nor is channel.flow off; an unknown
delivery tag is 406, and a consumer tag used twice 530.
"""

from collections.abc import Callable
from typing import Final

from penstock.broker import refusals
from penstock.broker.arguments import check_value
from penstock.broker.background_tasks import (
    AGAIN,
    ASLEEP,
    DONE,
    BackgroundTask,
    FinishingWork,
    Pace,
)
from penstock.broker.broker_queue import (
    ALL_COUNTS,
    COUNTS_OF_BOXES,
    COUNTS_OF_RETURNS,
    NO_COUNTS,
    BrokerQueue,
    Consumer,
    QueueOrStream,
)
from penstock.broker.broker_stream import BrokerStream, reader_of
from penstock.broker.channel import (
    SETTLE_SLICE,
    Channel,
    ChannelTransaction,
    Releasing,
    SettleFailed,
)
from penstock.broker.dispatch import DISCARD, REQUEUE, SlicedWork
from penstock.broker.output import address_of, write_get_ok
from penstock.broker.permissions import (
    CONFIGURE,
    READ,
    WRITE,
    check_exchange_to_declare,
    check_topic,
    one_line,
    queue_to_declare,
)
from penstock.broker.publish import SendingHistory, history_for
from penstock.broker.refusals import not_found
from penstock.broker.topology import EXCHANGE, QUEUE
from penstock.codec.method import Method
from penstock.codec.spec import (
    AccessRequest,
    AccessRequestOk,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.errors import (
    ACCESS_REFUSED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    AMQPConnectionError,
    ChannelError,
    DiskFullError,
    QueueFullError,
    TransactionTooLargeError,
)
from penstock.queues.backing_queue import Delivery
from penstock.queues.queue_options import CONSUMER_TIMEOUT
from penstock.storage.store.store_file import StoredBody

DELIVERY_COUNT: Final = "penstock.delivery_count"  # a capability of clients that want it
REPLY_TO: Final = "amq.rabbitmq.reply-to"
TAG_BYTES: Final = 16  # of chance in a consumer tag that the server makes
TX_COMMIT: Final = (90, 20)
ROOM_RETRY_S: Final = 0.1  # a commit that is decided asks again whether the log has room
PLACE_LOG_BYTES: Final = 128  # of the log, about, for one message in one queue


# ---- consuming -----------------------------------------------------------------------------------


def on_qos(channel: Channel, method: Method) -> None:
    """basic.qos. global: a limit for the whole channel. Otherwise one for each consumer started
    from now on; a limit of the whole channel ends then, as in RabbitMQ."""
    assert isinstance(method, BasicQos)
    if method.prefetch_size:
        text = f"prefetch_size!=0 ({method.prefetch_size})"
        raise AMQPConnectionError(NOT_IMPLEMENTED, text)
    if method.global_:
        channel.prefetch = method.prefetch_count
    else:
        channel.prefetch = 0
        channel.consumer_prefetch = method.prefetch_count
    channel.update_sharing()
    channel.update()
    channel.send(BasicQosOk())


def queue_named(channel: Channel, name: str) -> str:
    """Return the name of the queue: "" stands for the queue declared last."""
    if name:
        return name
    if not channel.queue_name:
        raise ChannelError(NOT_FOUND, "no previously declared queue")
    return channel.queue_name


def on_consume(channel: Channel, method: Method) -> None:
    """basic.consume."""
    assert isinstance(method, BasicConsume)
    vhost = channel.vhost
    tag = method.consumer_tag or f"amq.ctag-{vhost.token(TAG_BYTES)}"
    if tag in channel.consumers:
        raise AMQPConnectionError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if method.queue == REPLY_TO:
        queue = _reply_queue(channel, method)
    else:
        name = queue_named(channel, method.queue)
        channel.check(READ, "queue", name)
        queue = vhost.table.find_queue(name, channel.handler)
    queue.check_consume(
        prefetch=channel.consumer_prefetch, no_ack=method.no_ack, is_global=channel.prefetch > 0
    )
    consumers = queue.consumers
    is_refused = method.exclusive and (consumers.count > 0 or consumers.is_single_active)
    # As in RabbitMQ: on a quorum queue `exclusive` has no effect.
    is_quorum = isinstance(queue, BrokerQueue) and queue.is_quorum
    if not is_quorum and (consumers.has_exclusive() or is_refused):
        text = f"queue '{queue.name}' in vhost '{vhost.name}' in exclusive use"
        raise ChannelError(ACCESS_REFUSED, text)
    priority = method.arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        text = f"consumer '{tag}' gave {priority!r}, expected an integer"
        what = refusals.called("queue", queue.name, vhost.name)
        raise ChannelError(PRECONDITION_FAILED, f"invalid arg 'x-priority' for {what}: {text}")
    timeout_ms = method.arguments.get(CONSUMER_TIMEOUT)
    if timeout_ms is not None:
        check_value(refusals.called("queue", queue.name, vhost.name), CONSUMER_TIMEOUT, timeout_ms)
    vhost.usage.check_consumer(channel.identity, len(channel.consumers))
    consumer = Consumer(
        tag, channel, queue, no_ack=method.no_ack, is_exclusive=method.exclusive,
        priority=priority, prefetch=0 if method.no_ack else channel.consumer_prefetch,
        arguments=method.arguments,
    )  # fmt: skip
    if isinstance(timeout_ms, int):
        consumer.timeout_s = timeout_ms / 1000
    if consumer.timeout_or(0.0):
        vhost.has_timeouts = True
    if channel.handler.has_capability(DELIVERY_COUNT):
        consumer.counts = COUNTS_OF_BOXES
    elif is_quorum:
        consumer.counts = COUNTS_OF_RETURNS
    if isinstance(queue, BrokerStream):
        reader = reader_of(queue.what, method.arguments)
        vhost.check_reader(queue, reader, channel.identity)
        queue.attach(consumer)
        queue.reader_made(reader, channel.identity.name)
    else:
        queue.attach(consumer)
    channel.add_consumer(consumer)
    vhost.usage.clients.add(channel.identity.name, consumer.held_bytes)
    queue.used_at_s = vhost.clock.monotonic()
    if not method.nowait:
        channel.send(BasicConsumeOk(consumer_tag=tag))
    vhost.dispatch.mark(consumer.source)


def _reply_queue(channel: Channel, method: BasicConsume) -> QueueOrStream:
    """Declare the queue of direct reply-to: the channel's own, which its messages name as
    reply-to."""
    if not method.no_ack:
        raise ChannelError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.publisher.reply_queue:
        raise ChannelError(PRECONDITION_FAILED, "reply consumer already set")
    name = f"{REPLY_TO}.{channel.vhost.token(TAG_BYTES)}"
    queue, _ = channel.vhost.declare_queue(
        name, durable=False, exclusive=True, auto_delete=True, arguments={},
        owner=channel.handler, is_reserved_allowed=True, by=channel.identity,
    )  # fmt: skip
    channel.publisher.reply_queue = name
    return queue


def on_cancel(channel: Channel, method: Method) -> None:
    """basic.cancel: an unknown tag is not an error. What the consumer has unacked stays unacked."""
    assert isinstance(method, BasicCancel)
    consumer = channel.consumers.get(method.consumer_tag)
    if consumer is not None:
        consumer.queue.serve()  # what it had room for when this came
        channel.take_away(consumer)
        if consumer.queue.name == channel.publisher.reply_queue:
            channel.publisher.reply_queue = ""
    if not method.nowait:
        channel.send(BasicCancelOk(consumer_tag=method.consumer_tag))
    if consumer is not None:
        channel.vhost.table.consumer_gone(consumer.queue)


def on_get(channel: Channel, method: Method) -> None:
    """basic.get: one message, or none. A message that is held is waited for."""
    assert isinstance(method, BasicGet)
    name = queue_named(channel, method.queue)
    channel.check(READ, "queue", name)
    queue = channel.vhost.table.find_messages(name, channel.handler, "basic.get")
    handler, usage = channel.handler, channel.vhost.usage
    if not handler.has_output_room:
        raise _no_room(name, usage.stuffed_text(channel.identity.name))
    if not method.no_ack and not handler.has_unacked_room:
        raise _no_room(name, usage.full_text(channel.identity.name))
    queue.used_at_s = channel.vhost.clock.monotonic()
    queue.serve()
    _get(channel, queue, no_ack=method.no_ack)


def _no_room(name: str, why: str) -> ChannelError:
    return ChannelError(RESOURCE_ERROR, f"cannot get from queue '{name}': {why}", 60, 70)


def _get(channel: Channel, queue: BrokerQueue, *, no_ack: bool) -> None:
    amq = queue.amq

    def again() -> None:
        _get(channel, queue, no_ack=no_ack)

    if channel.output.is_busy(channel.number):  # a large body keeps a file open: one at a time
        channel.when_free(again)
        return
    if queue.consumers.is_paused:
        _send_get_empty(channel, queue)
        return
    delivery = None if queue.is_deleted else amq.fetch(in_pieces=True)
    while delivery is None and amq.has_more_expired and not queue.is_deleted:
        delivery = amq.fetch(in_pieces=True)
    if delivery is not None:
        _send_get_ok(channel, queue, delivery, no_ack=no_ack)
        return
    held = None if queue.is_deleted else amq.held()
    if held is None:
        _send_get_empty(channel, queue)
        return
    lsn, mode = held
    channel.wait_for(lsn, mode, again)


def _send_get_empty(channel: Channel, queue: BrokerQueue) -> None:
    for counts in (channel.counts, queue.counts, channel.vhost.counts.messages):
        counts.get_empty += 1
    channel.vhost.queue_set.touch(queue)
    channel.send(BasicGetEmpty())


def _send_get_ok(channel: Channel, queue: BrokerQueue, delivery: Delivery, *, no_ack: bool) -> None:
    stored: StoredBody | None = None
    if delivery.message.body is None:
        stored = channel.open_body(queue, delivery)
    if no_ack:
        tag = channel.unacked.skip()
        if stored is None:
            queue.sent([delivery.tag])
    else:
        tag = channel.add_pending(queue, delivery)
    queue.amq.forget_expired()  # what has expired behind it does not count
    for got in (channel.counts, queue.counts, channel.vhost.counts.messages):
        got.got(1, int(delivery.is_redelivered), no_ack=no_ack)
    counts = ALL_COUNTS if queue.is_quorum else NO_COUNTS
    if channel.handler.has_capability(DELIVERY_COUNT):
        counts |= COUNTS_OF_BOXES
    if channel.vhost.firehose.is_on:
        address, props = address_of(delivery.message.header, queue.name)
        channel.vhost.firehose.sent(channel.facts(), queue.name, address, props, delivery)
    write_get_ok(channel.output, channel.number, queue.name, tag, delivery, queue.amq.len(), counts)
    if stored is not None:
        channel.send_body(stored, queue if no_ack else None, delivery.tag)
    channel.vhost.dispatch.mark(queue)


# ---- settling ------------------------------------------------------------------------------------


def on_reject(channel: Channel, method: Method) -> None:
    """basic.reject."""
    assert isinstance(method, BasicReject)
    channel.reject(method.delivery_tag, is_multiple=False, requeue=method.requeue, method_id=90)


def on_nack(channel: Channel, method: Method) -> None:
    """basic.nack."""
    assert isinstance(method, BasicNack)
    channel.reject(
        method.delivery_tag, is_multiple=method.multiple, requeue=method.requeue, method_id=120
    )


def on_recover(channel: Channel, method: Method) -> None:
    """basic.recover: everything unacked goes back and is redelivered."""
    assert isinstance(method, BasicRecover | BasicRecoverAsync)
    if not method.requeue:
        raise AMQPConnectionError(NOT_IMPLEMENTED, "requeue=false")
    unacked = channel.unacked
    channel.unacked = unacked.successor()
    Releasing(channel, unacked).finish_later()
    channel.update()
    if isinstance(method, BasicRecover):
        channel.send(BasicRecoverOk())


def on_flow(channel: Channel, method: Method) -> None:
    """channel.flow: only on, as in RabbitMQ; use prefetch instead of off."""
    assert isinstance(method, ChannelFlow)
    if not method.active:
        raise AMQPConnectionError(NOT_IMPLEMENTED, "active=false")
    channel.send(ChannelFlowOk(active=True))


def on_access_request(channel: Channel, method: Method) -> None:
    """access.request: a ticket without meaning, because permissions are checked at each method."""
    assert isinstance(method, AccessRequest)
    channel.send(AccessRequestOk())


# ---- confirms and transactions -------------------------------------------------------------------


def on_confirm_select(channel: Channel, method: Method) -> None:
    """confirm.select."""
    assert isinstance(method, ConfirmSelect)
    channel.select_confirms()
    if not method.nowait:
        channel.send(ConfirmSelectOk())


def on_tx_select(channel: Channel, method: Method) -> None:
    """tx.select: from now on a transaction is always open."""
    assert isinstance(method, TxSelect)
    if channel.publisher.confirms is not None:
        raise ChannelError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        _begin(channel)
    channel.send(TxSelectOk())


def _begin(channel: Channel) -> None:
    def end(error: ChannelError) -> None:
        channel.handler.close_channel(channel.number, error)

    transaction = ChannelTransaction(channel.vhost, channel.identity.name, end)
    channel.transaction = channel.publisher.transaction = transaction


def _open(channel: Channel) -> ChannelTransaction:
    if channel.transaction is None:
        raise ChannelError(PRECONDITION_FAILED, "channel is not transactional")
    return channel.transaction


def on_tx_commit(channel: Channel, method: Method) -> None:
    """tx.commit: answered once it is as safe as the vhost's mode says."""
    assert isinstance(method, TxCommit)
    transaction = _open(channel)
    if transaction.is_long():
        LongCommit(channel, transaction).begin()
    else:
        channel.handler.do_in_slices(channel, _commit(channel, transaction))


def _commit(channel: Channel, transaction: ChannelTransaction) -> "AfterCommit":
    """Commit; return what is left to do then. ChannelError: it is to be rolled back."""
    try:
        transaction.commit()
    except (TransactionTooLargeError, QueueFullError, DiskFullError) as error:
        raise _refused(error) from None
    _begin(channel)
    transaction.count(channel.counts, channel.vhost.counts.messages)
    return AfterCommit(channel, transaction)


def _refused(error: Exception) -> ChannelError:
    """Return the error that ends the channel, which rolls its transaction back."""
    code = PRECONDITION_FAILED if isinstance(error, QueueFullError) else RESOURCE_ERROR
    return ChannelError(code, str(error), *TX_COMMIT)


class LongCommit(BackgroundTask):
    """The commit of a transaction of many messages. Its records are written in slices, and the
    channel waits; until the decision, which is one step, it can still be rolled back. What was
    decided takes effect in slices too, to its end, whatever becomes of the channel."""

    def __init__(self, channel: Channel, transaction: ChannelTransaction) -> None:
        self._channel: Channel = channel
        self._transaction: ChannelTransaction = transaction
        self._after: AfterCommit | None = None
        vhost = channel.vhost
        self._pace: Pace = Pace(vhost.dispatch, vhost.mode)
        self._has_begun: bool = False

    def begin(self) -> None:
        """Begin; the channel waits."""
        self._channel.is_waiting = self._channel.is_committing = True
        self._wake()

    def _wake(self) -> None:
        self._channel.vhost.background.wake(self)

    def step(self) -> int:
        channel = self._channel
        vhost = channel.vhost
        if self._after is None:
            if channel.is_closed:
                return DONE  # it was rolled back
            if self._must_wait():
                return ASLEEP
        vhost.budget.begin_later()
        vhost.in_flight.begin(channel.identity.name, TxCommit.NAME)
        try:
            return self._step()
        finally:
            vhost.in_flight.end()

    def _must_wait(self) -> bool:
        """Return whether the log must come first, or a checkpoint, which waits until no commit is
        under way."""
        vhost = self._channel.vhost
        if not self._has_begun and vhost.engine.journal.cut_waits:
            vhost.timers.call_at(vhost.clock.monotonic(), self._wake)  # after the next tick
            return True
        return self._pace.is_ahead(self._wake)

    def _step(self) -> int:
        channel, transaction = self._channel, self._transaction
        after = self._after
        if after is not None:
            return self._finish(after)
        self._has_begun = True
        budget = channel.vhost.budget
        try:
            while places := transaction.write_part():
                self._pace.logged(channel.vhost.engine.log.last_lsn, PLACE_LOG_BYTES * places)
                budget.left -= places
                if budget.left <= 0 and budget.is_over():
                    return AGAIN
        except (TransactionTooLargeError, DiskFullError) as error:
            raise _refused(error) from None
        self._after = _commit(channel, transaction)
        return AGAIN

    def _finish(self, after: "AfterCommit") -> int:
        try:
            if not after.rest.step():
                return AGAIN
        except DiskFullError:  # it is decided: it goes on when the log has room
            vhost = self._channel.vhost
            vhost.timers.call_at(vhost.clock.monotonic() + ROOM_RETRY_S, self._wake)
            return ASLEEP
        self._answer(self._transaction.lsn)
        return DONE

    def _answer(self, lsn: int) -> None:
        """Answer once the LSN is settled; nobody is answered if the channel is closed."""
        channel = self._channel

        def then() -> None:
            channel.send(TxCommitOk())

        if lsn:
            channel.wait_for(lsn, channel.vhost.mode, then)
        else:
            channel.go_on(then)

    def failed(self, error: Exception) -> None:
        """Answer with the error; what is decided goes on."""
        if self._after is not None:
            self._after.abandon()
        if self._channel.is_closed:
            raise error

        def then() -> None:
            raise error

        self._channel.go_on(then)


class RestOfCommit(SlicedWork):
    """What is left to do of a commit that is in the log, but the answer: what waited for it, and
    rejects."""

    def __init__(self, channel: Channel, transaction: ChannelTransaction) -> None:
        self._channel: Channel = channel
        self._transaction: ChannelTransaction = transaction
        self._hows: list[int] = [DISCARD, REQUEUE]  # the last is done first
        self._at: int = 0  # of what is rejected
        self._settling: SettleFailed | None = None

    def step(self) -> bool:
        transaction, channel = self._transaction, self._channel
        if not (channel.committed(transaction) and transaction.finish() and self._settle()):
            return False
        if not channel.is_closed:
            for counts in (channel.counts, channel.vhost.counts.messages):
                counts.return_unroutable += len(transaction.returned)
            for route, props, body in transaction.returned:
                channel.publisher.return_message(route, props, body)
        channel.update()
        return True

    def _settle(self) -> bool:
        """Settle what is rejected, as far as the turn's budget goes; return whether that is all."""
        vhost, rejected = self._channel.vhost, self._transaction.rejected
        budget = vhost.budget
        while self._hows:
            if self._settling is not None and not self._settling.step():
                return False
            self._settling = None
            if budget.left <= 0 and budget.is_over():
                return False
            some = rejected[self._at : self._at + SETTLE_SLICE]
            self._at += len(some)
            if some:
                how = self._hows[-1]
                failed = [one for _, one, is_back in some if is_back is (how == REQUEUE)]
                self._settling = SettleFailed(vhost, failed, how)
                budget.left -= len(some) >> 2
            else:
                self._hows.pop()
                self._at = 0
        return True


class AfterCommit(SlicedWork):
    """The rest of a commit, and the answer, once it is settled."""

    def __init__(self, channel: Channel, transaction: ChannelTransaction) -> None:
        self._channel: Channel = channel
        self._transaction: ChannelTransaction = transaction
        self.rest: RestOfCommit = RestOfCommit(channel, transaction)

    def step(self) -> bool:
        if not self.rest.step():
            return False
        self._channel.answer(self._transaction.lsn, TxCommitOk())
        return True

    def abandon(self) -> None:
        """Go on without the channel: it is decided."""
        vhost = self._channel.vhost
        vhost.background.wake(FinishingWork(self.rest, vhost.budget))


def on_tx_rollback(channel: Channel, method: Method) -> None:
    """tx.rollback: publishes are dropped, what was acknowledged is unacked again."""
    assert isinstance(method, TxRollback)
    channel.handler.do_in_slices(channel, Rollback(channel, _open(channel)))


class Rollback(SlicedWork):
    """A tx.rollback. Closing the channel finishes one that has begun."""

    def __init__(self, channel: Channel, transaction: ChannelTransaction) -> None:
        self._channel: Channel = channel
        self._transaction: ChannelTransaction = transaction

    def step(self) -> bool:
        channel = self._channel
        if not self._transaction.rollback(channel.unacked, channel.vhost.budget):
            return False
        _begin(channel)
        channel.send(TxRollbackOk())
        return True


Handler = Callable[[Channel, Method], None]

BASIC_METHODS: Final[dict[int, Handler]] = {
    BasicQos.INDEX: on_qos,
    BasicConsume.INDEX: on_consume,
    BasicCancel.INDEX: on_cancel,
    BasicGet.INDEX: on_get,
    BasicReject.INDEX: on_reject,
    BasicNack.INDEX: on_nack,
    BasicRecover.INDEX: on_recover,
    BasicRecoverAsync.INDEX: on_recover,
    ChannelFlow.INDEX: on_flow,
    AccessRequest.INDEX: on_access_request,
    ConfirmSelect.INDEX: on_confirm_select,
    TxSelect.INDEX: on_tx_select,
    TxCommit.INDEX: on_tx_commit,
    TxRollback.INDEX: on_tx_rollback,
}


# ---- exchanges -----------------------------------------------------------------------------------


def on_exchange_declare(channel: Channel, method: Method) -> None:
    """exchange.declare."""
    assert isinstance(method, ExchangeDeclare)
    vhost = channel.vhost
    name = one_line(method.exchange)
    lsn = 0
    if method.passive:
        vhost.topology.check_exchange(name)
    else:
        check_exchange_to_declare(vhost, channel.identity, name, method.arguments)
        lsn = vhost.topology.declare_exchange(
            name, method.type, durable=method.durable, auto_delete=method.auto_delete,
            internal=method.internal, arguments=method.arguments, by=channel.identity,
        )  # fmt: skip
    channel.answer(lsn, None if method.nowait else ExchangeDeclareOk())


def on_exchange_delete(channel: Channel, method: Method) -> None:
    """exchange.delete: nothing happens if there is none."""
    assert isinstance(method, ExchangeDelete)
    name = one_line(method.exchange)
    channel.check(CONFIGURE, "exchange", name)
    is_later = False

    def deleted(lsn: int) -> None:
        answer = None if method.nowait else ExchangeDeleteOk()
        if is_later:
            channel.go_on(lambda: channel.answer(lsn, answer))
        else:
            channel.answer(lsn, answer)

    is_later = channel.vhost.delete_exchange_then(
        name, deleted, _later_failure(channel), if_unused=method.if_unused
    )
    channel.is_waiting = channel.is_waiting or is_later


def _later_failure(channel: Channel) -> Callable[[Exception], None]:
    """Return what is called with the error of a method for which its channel waits."""

    def failed(error: Exception) -> None:
        def tell() -> None:
            raise error

        channel.go_on(tell)

    return failed


def on_exchange_bind(channel: Channel, method: Method) -> None:
    """exchange.bind."""
    assert isinstance(method, ExchangeBind)
    destination, source = one_line(method.destination), one_line(method.source)
    channel.check(WRITE, "exchange", destination)
    channel.check(READ, "exchange", source)
    check_topic(channel.vhost, channel.identity, READ, source, method.routing_key)
    before = channel.vhost.router.binding_count
    lsn = channel.vhost.topology.bind_exchange(
        destination, source, method.routing_key, method.arguments, channel.identity
    )
    answer = None if method.nowait else ExchangeBindOk()
    _send_history(channel, before, source, EXCHANGE, destination, lsn, answer)


def _send_history(
    channel: Channel, bindings: int, source: str, kind: str, destination: str, lsn: int,
    answer: Method | None,
) -> None:  # fmt: skip
    """Answer a bind, once what the exchange has kept is sent to a new binding."""
    sending = history_for(channel.vhost, bindings, source, kind, destination)
    if sending is None:
        channel.answer(lsn, answer)
    else:
        channel.handler.do_in_slices(channel, _BoundToHistory(channel, sending, lsn, answer))


class _BoundToHistory(SlicedWork):
    """A bind that waits until the history is sent."""

    def __init__(
        self, channel: Channel, sending: SendingHistory, lsn: int, answer: Method | None
    ) -> None:
        self._channel: Channel = channel
        self._sending: SendingHistory = sending
        self._lsn: int = lsn
        self._answer: Method | None = answer

    def step(self) -> bool:
        if not self._sending.step():
            return False
        self._channel.answer(self._lsn, self._answer)
        return True

    def abandon(self) -> None:
        """Go on without the channel: it is bound."""
        self._sending.abandon()


def on_exchange_unbind(channel: Channel, method: Method) -> None:
    """exchange.unbind."""
    assert isinstance(method, ExchangeUnbind)
    destination, source = one_line(method.destination), one_line(method.source)
    channel.check(WRITE, "exchange", destination)
    channel.check(READ, "exchange", source)
    check_topic(channel.vhost, channel.identity, READ, source, method.routing_key)
    lsn = channel.vhost.topology.unbind_exchange(
        destination, source, method.routing_key, method.arguments
    )
    channel.answer(lsn, None if method.nowait else ExchangeUnbindOk())


# ---- queues --------------------------------------------------------------------------------------


def on_queue_declare(channel: Channel, method: Method) -> None:
    """queue.declare; the answer has the queue's counts."""
    assert isinstance(method, QueueDeclare)
    vhost = channel.vhost
    name = one_line(method.queue)
    lsn = 0
    if method.queue.startswith(REPLY_TO):
        _declare_reply_queue(channel, method)
        return
    if method.passive:
        queue = vhost.table.find_queue(name, channel.handler)
        vhost.counts.queue_declared += 1
    else:
        is_named_here = not name
        name = queue_to_declare(vhost, channel.identity, name, method.arguments)
        if _waits_for_files(channel, method, name):
            return
        queue, lsn = vhost.declare_queue(
            name, durable=method.durable, exclusive=method.exclusive,
            auto_delete=method.auto_delete, arguments=method.arguments, owner=channel.handler,
            is_reserved_allowed=is_named_here, by=channel.identity,
        )  # fmt: skip
    channel.queue_name = queue.name
    queue.serve()  # what it has delivered is not ready any more
    queue.used_at_s = vhost.clock.monotonic()
    answer = QueueDeclareOk(
        queue=queue.name,
        message_count=min(queue.len(), 0xFFFFFFFF),
        consumer_count=queue.consumers.count,
    )
    channel.answer(lsn, None if method.nowait else answer)


def _waits_for_files(channel: Channel, method: QueueDeclare, name: str) -> bool:
    """Return whether the files of a new stream are made first: the channel waits, and the method is
    handled again when they exist. ChannelError: the declare is refused."""

    def again() -> None:
        channel.go_on(lambda: on_queue_declare(channel, method))

    waits = channel.vhost.prepare_queue(
        name, durable=method.durable, exclusive=method.exclusive,
        auto_delete=method.auto_delete, arguments=method.arguments, again=again,
        failed=_later_failure(channel),
        by=channel.identity,
    )  # fmt: skip
    if waits:
        channel.is_waiting = True
    return waits


def _declare_reply_queue(channel: Channel, method: QueueDeclare) -> None:
    """Answer whether the requester of a direct reply-to still exists, or whether there is direct
    reply-to at all. Any user may ask; nothing is declared. ChannelError 404: it does not exist."""
    name = method.queue
    if name != REPLY_TO and not channel.vhost.table.has(name):
        raise not_found(channel.vhost.table.called(name))
    channel.queue_name = name
    answer = QueueDeclareOk(queue=name, message_count=0, consumer_count=1)
    channel.answer(0, None if method.nowait else answer)


def on_queue_bind(channel: Channel, method: Method) -> None:
    """queue.bind: without queue and key both are those of the queue declared last."""
    assert isinstance(method, QueueBind)
    name = one_line(queue_named(channel, method.queue))
    source = one_line(method.exchange)
    key = method.routing_key if method.queue or method.routing_key else name
    channel.check(WRITE, "queue", name)
    channel.check(READ, "exchange", source)
    check_topic(channel.vhost, channel.identity, READ, source, key)
    before = channel.vhost.router.binding_count
    lsn = channel.vhost.bind_queue(
        name, source, key, method.arguments, channel.handler, channel.identity
    )
    answer = None if method.nowait else QueueBindOk()
    _send_history(channel, before, source, QUEUE, name, lsn, answer)


def on_queue_unbind(channel: Channel, method: Method) -> None:
    """queue.unbind."""
    assert isinstance(method, QueueUnbind)
    name = one_line(queue_named(channel, method.queue))
    source = one_line(method.exchange)
    key = method.routing_key if method.queue or method.routing_key else name
    channel.check(WRITE, "queue", name)
    channel.check(READ, "exchange", source)
    check_topic(channel.vhost, channel.identity, READ, source, key)
    lsn = channel.vhost.unbind_queue(name, source, key, method.arguments, channel.handler)
    channel.answer(lsn, QueueUnbindOk())


def on_queue_purge(channel: Channel, method: Method) -> None:
    """queue.purge: deletes the ready messages."""
    assert isinstance(method, QueuePurge)
    name = queue_named(channel, method.queue)
    channel.check(READ, "queue", name)
    queue = channel.vhost.table.find_queue(name, channel.handler)
    count, lsn = channel.vhost.purge_queue(queue)
    answer = QueuePurgeOk(message_count=min(count, 0xFFFFFFFF))
    channel.answer(lsn, None if method.nowait else answer)


def on_queue_delete(channel: Channel, method: Method, *, sends_first: bool = True) -> None:
    """queue.delete: nothing happens if there is none. The answer is sent before the connection's
    own consumers of the queue are cancelled. sends_first: large dead letters are sent before."""
    assert isinstance(method, QueueDelete)
    vhost = channel.vhost
    name = one_line(queue_named(channel, method.queue))
    channel.check(CONFIGURE, "queue", name)
    if not vhost.table.has(name):
        channel.answer(0, None if method.nowait else QueueDeleteOk())
        return
    queue = vhost.table.find_queue(name, channel.handler, is_crashed_allowed=True)

    def again() -> None:
        channel.go_on(lambda: on_queue_delete(channel, method, sends_first=False))

    if sends_first and vhost.table.sends_first(queue, again):
        channel.is_waiting = channel.is_committing = True  # a close waits for it
        return
    handler = channel.handler
    is_later = False

    def deleted(count: int, lsn: int) -> None:
        def then() -> None:
            if not method.nowait:
                channel.send(QueueDeleteOk(message_count=min(count, 0xFFFFFFFF)))
            handler.send_cancels()

        if is_later and not lsn:
            channel.go_on(then)
        else:
            channel.wait_for(lsn, vhost.mode, then)

    def failed(error: Exception) -> None:
        handler.send_cancels()
        _later_failure(channel)(error)

    handler.hold_cancels()
    try:
        is_later = vhost.delete_queue_then(
            queue, deleted, failed, if_unused=method.if_unused, if_empty=method.if_empty
        )
    except BaseException:
        handler.send_cancels()
        raise
    channel.is_waiting = channel.is_waiting or is_later


PURGE: Final = "purge_queue"


def audited_method(channel: Channel, method: Method) -> tuple[str, dict[str, object]]:
    """Return (operation, arguments) of a method of TOPOLOGY_METHODS that was done, as the operation
    that does the same has them."""
    kind, _, verb = method.NAME.partition(".")
    found: dict[str, object] = {}
    for name in ("queue", "exchange", "type", "destination", "source", "routing_key", "arguments"):
        value = getattr(method, name, None)
        if value:
            found[name] = value
    if kind == "queue" and not found.get("queue"):
        found["queue"] = channel.queue_name  # the last one, or the one that the server has named
    return f"{verb}_{kind}", found


TOPOLOGY_METHODS: Final[dict[int, Callable[[Channel, Method], None]]] = {
    ExchangeDeclare.INDEX: on_exchange_declare,
    ExchangeDelete.INDEX: on_exchange_delete,
    ExchangeBind.INDEX: on_exchange_bind,
    ExchangeUnbind.INDEX: on_exchange_unbind,
    QueueDeclare.INDEX: on_queue_declare,
    QueueBind.INDEX: on_queue_bind,
    QueueUnbind.INDEX: on_queue_unbind,
    QueuePurge.INDEX: on_queue_purge,
    QueueDelete.INDEX: on_queue_delete,
}
