"""The methods of the classes basic, confirm, tx and channel: one function each, in a table.

Each takes the channel and the method, and answers. Errors are raised: ChannelError and
AMQPConnectionError, with RabbitMQ's texts; who called adds the method's ids. basic.publish and
basic.ack are not here: they come in runs (publish.py, Channel.ack_run).

Where RabbitMQ differs from the specification, so does this: basic.qos with a prefetch size and
basic.recover without requeue are not implemented (540), nor is channel.flow off; an unknown
delivery tag is 406, and a consumer tag used twice 530.
"""

from collections.abc import Callable
from typing import Final

from penstock.broker import refusals
from penstock.broker.channel import Channel, unknown_tag
from penstock.broker.channel_access import check_read
from penstock.broker.consumers import (
    ALL_COUNTS,
    COUNTS_OF_BOXES,
    COUNTS_OF_RETURNS,
    NO_COUNTS,
    Consumer,
)
from penstock.broker.deliver import write_get_ok
from penstock.broker.served_queue import Served, ServedQueue
from penstock.broker.transactions import ChannelTransaction
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
from penstock.storage.durability import OS
from penstock.storage.stored_body import StoredBody

DELIVERY_COUNT: Final = "penstock.delivery_count"  # a capability of clients that want it
REPLY_TO: Final = "amq.rabbitmq.reply-to"
TAG_BYTES: Final = 16  # of chance in a consumer tag that the server makes


# ---- consuming -----------------------------------------------------------------------------------


def on_qos(channel: Channel, method: Method) -> None:
    """basic.qos. global: a limit for the whole channel. Else one for each consumer that is started
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
    channel.look_at_sharing()
    channel.update()
    channel.send(BasicQosOk())


def queue_named(channel: Channel, name: str) -> str:
    """The name meant by this one: "" is the queue that was declared last."""
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
        check_read(channel, "queue", name)
        queue = vhost.find_queue(name, channel.handler)
    queue.check_consume(
        prefetch=channel.consumer_prefetch, no_ack=method.no_ack, is_global=channel.prefetch > 0
    )
    consumers = queue.consumers
    is_refused = method.exclusive and (consumers.count > 0 or consumers.is_single_active)
    if consumers.has_exclusive() or is_refused:
        text = f"queue '{queue.name}' in vhost '{vhost.name}' in exclusive use"
        raise ChannelError(ACCESS_REFUSED, text)
    priority = method.arguments.get("x-priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int):
        text = f"consumer '{tag}' gave {priority!r}, expected an integer"
        what = refusals.called("queue", queue.name, vhost.name)
        raise ChannelError(PRECONDITION_FAILED, f"invalid arg 'x-priority' for {what}: {text}")
    vhost.usage.check_consumers(len(channel.consumers))
    consumer = Consumer(
        tag, channel, queue, no_ack=method.no_ack, is_exclusive=method.exclusive,
        priority=priority, prefetch=0 if method.no_ack else channel.consumer_prefetch,
        arguments=method.arguments,
    )  # fmt: skip
    if channel.handler.has_capability(DELIVERY_COUNT):
        consumer.counts = COUNTS_OF_BOXES
    elif is_quorum(queue):
        consumer.counts = COUNTS_OF_RETURNS
    queue.attach(consumer)
    channel.add_consumer(consumer)
    vhost.usage.consumer_bytes += consumer.held_bytes
    queue.used_at_ms = vhost.clock.wall_ms()
    if not method.nowait:
        channel.send(BasicConsumeOk(consumer_tag=tag))
    vhost.dispatch.mark(consumer.source)


def is_quorum(queue: Served) -> bool:
    """Whether its deliveries say x-delivery-count: as in RabbitMQ 3.10 those of basic.get from 0,
    those to consumers once they came back."""
    return queue.arguments.get("x-queue-type") == "quorum"


def _reply_queue(channel: Channel, method: BasicConsume) -> Served:
    """Direct reply-to: a queue of this channel's own, which its messages name as reply-to."""
    if not method.no_ack:
        raise ChannelError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.publisher.reply_queue:
        raise ChannelError(PRECONDITION_FAILED, "reply consumer already set")
    name = f"{REPLY_TO}.{channel.vhost.token(TAG_BYTES)}"
    queue, _ = channel.vhost.declare_queue(
        name, durable=False, exclusive=True, auto_delete=True, arguments={},
        owner=channel.handler, is_reserved_allowed=True,
    )  # fmt: skip
    channel.publisher.reply_queue = name
    return queue


def on_cancel(channel: Channel, method: Method) -> None:
    """basic.cancel: an unknown tag is no error. What it has unacked stays unacked."""
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
        channel.vhost.consumer_gone(consumer.queue)


def on_get(channel: Channel, method: Method) -> None:
    """basic.get: one message, or none. One that is held is waited for."""
    assert isinstance(method, BasicGet)
    name = queue_named(channel, method.queue)
    check_read(channel, "queue", name)
    queue = channel.vhost.find_messages(name, channel.handler, "basic.get")
    queue.used_at_ms = channel.vhost.clock.wall_ms()
    queue.serve()
    _get(channel, queue, no_ack=method.no_ack)


def _get(channel: Channel, queue: ServedQueue, *, no_ack: bool) -> None:
    amq = queue.amq

    def again() -> None:
        _get(channel, queue, no_ack=no_ack)

    if channel.output.is_busy(channel.number):  # a large body keeps a file open: one at a time
        channel.when_free(again)
        return
    delivery = None if queue.is_deleted else amq.fetch(in_pieces=True)
    while delivery is None and amq.has_more_expired and not queue.is_deleted:
        delivery = amq.fetch(in_pieces=True)
    if delivery is not None:
        _send_get_ok(channel, queue, delivery, no_ack=no_ack)
        return
    held = None if queue.is_deleted else amq.held()
    if held is None:
        channel.send(BasicGetEmpty())
        return
    lsn, mode = held
    channel.wait_for(lsn, mode, again)


def _send_get_ok(channel: Channel, queue: ServedQueue, delivery: Delivery, *, no_ack: bool) -> None:
    stored: StoredBody | None = None
    if delivery.message.body is None:
        stored = channel.open_body(queue, delivery)
    if no_ack:
        tag = channel.unacked.skip()
        if stored is None:
            queue.amq.ack([delivery.tag], OS)
            queue.acked += 1
    else:
        tag = channel.add_pending(queue, delivery)
    queue.got += 1
    counts = ALL_COUNTS if is_quorum(queue) else NO_COUNTS
    if channel.handler.has_capability(DELIVERY_COUNT):
        counts |= COUNTS_OF_BOXES
    write_get_ok(channel.output, channel.number, queue.name, tag, delivery, queue.amq.len(), counts)
    if stored is not None:
        channel.send_body(stored, queue if no_ack else None, delivery.tag)
    channel.vhost.dispatch.mark(queue)


# ---- settling ------------------------------------------------------------------------------------


def on_reject(channel: Channel, method: Method) -> None:
    """basic.reject."""
    assert isinstance(method, BasicReject)
    _reject(channel, method.delivery_tag, is_multiple=False, requeue=method.requeue, method_id=90)


def on_nack(channel: Channel, method: Method) -> None:
    """basic.nack."""
    assert isinstance(method, BasicNack)
    _reject(
        channel, method.delivery_tag, is_multiple=method.multiple, requeue=method.requeue,
        method_id=120,
    )  # fmt: skip


def _reject(
    channel: Channel, tag: int, *, is_multiple: bool, requeue: bool, method_id: int
) -> None:
    if not tag and not is_multiple:
        raise unknown_tag(tag, method_id)
    taken = channel.take(tag, is_multiple=is_multiple, method_id=method_id)
    transaction = channel.transaction
    if transaction is not None:
        for one, delivered in taken:
            transaction.reject(one, delivered, requeue=requeue)
        transaction.count_settled(len(taken))
    else:
        channel.reject([delivered for _, delivered in taken], requeue=requeue)
    channel.update()


def on_recover(channel: Channel, method: Method) -> None:
    """basic.recover: everything unacked goes back, and comes again, redelivered."""
    assert isinstance(method, BasicRecover | BasicRecoverAsync)
    if not method.requeue:
        raise AMQPConnectionError(NOT_IMPLEMENTED, "requeue=false")
    channel.release_all()
    channel.update()
    if isinstance(method, BasicRecover):
        channel.send(BasicRecoverOk())


def on_flow(channel: Channel, method: Method) -> None:
    """channel.flow: RabbitMQ knows no other flow than on; prefetch is for what off was."""
    assert isinstance(method, ChannelFlow)
    if not method.active:
        raise AMQPConnectionError(NOT_IMPLEMENTED, "active=false")
    channel.send(ChannelFlowOk(active=True))


def on_access_request(channel: Channel, method: Method) -> None:
    """access.request: a ticket, which means nothing: permissions are asked at each method."""
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
    """tx.select: a transaction is open from now on, always."""
    assert isinstance(method, TxSelect)
    if channel.confirms is not None:
        raise ChannelError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        _begin(channel)
    channel.send(TxSelectOk())


def _begin(channel: Channel) -> None:
    def end(error: ChannelError) -> None:
        channel.handler.close_channel(channel.number, error)

    transaction = ChannelTransaction(channel.vhost, end)
    channel.transaction = channel.publisher.transaction = transaction


def _open(channel: Channel) -> ChannelTransaction:
    if channel.transaction is None:
        raise ChannelError(PRECONDITION_FAILED, "channel is not transactional")
    return channel.transaction


def on_tx_commit(channel: Channel, method: Method) -> None:
    """tx.commit: answered once it is as safe as the vhost's mode says."""
    assert isinstance(method, TxCommit)
    transaction = _open(channel)
    try:
        lsn = transaction.commit()
    except (TransactionTooLargeError, QueueFullError, DiskFullError) as error:
        transaction.rollback()
        channel.undo(transaction)
        _begin(channel)
        is_full = isinstance(error, QueueFullError)
        raise ChannelError(PRECONDITION_FAILED if is_full else RESOURCE_ERROR, str(error)) from None
    _begin(channel)
    channel.committed(transaction)
    if channel.publisher.appended is not None:
        channel.publisher.appended.extend(transaction.places)
    for route, props, body in transaction.returned:
        channel.publisher.give_back(route, props, body)
    for requeue in (True, False):
        rejected = [one for _, one, is_requeue in transaction.rejected if is_requeue is requeue]
        channel.reject(rejected, requeue=requeue)
    channel.give_back()
    channel.update()
    channel.answer(lsn, TxCommitOk())


def on_tx_rollback(channel: Channel, method: Method) -> None:
    """tx.rollback: publishes are forgotten, what was acknowledged is unacked again."""
    assert isinstance(method, TxRollback)
    transaction = _open(channel)
    transaction.rollback()
    channel.undo(transaction)
    _begin(channel)
    channel.send(TxRollbackOk())


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
