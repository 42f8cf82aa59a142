"""The methods of the classes exchange and queue: one function each, in a table.

Each checks what the user may do, has the vhost do it, and answers: at once, or, for what is
durable, when it is as safe as the vhost's mode says (`Channel.answer`). Errors and their texts are
the vhost's (topology.py).

Permissions are RabbitMQ's (permissions.py); binding needs write access to what is bound and read
access to the source. Passive declares need none.
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.channel import Channel
from penstock.broker.channel_basic import REPLY_TO, queue_named
from penstock.broker.permissions import (
    CONFIGURE,
    READ,
    WRITE,
    check_exchange_to_declare,
    queue_to_declare,
)
from penstock.broker.refusals import not_found
from penstock.codec.method import Method
from penstock.codec.spec import (
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
)


def one_line(name: str) -> str:
    """The name without carriage returns and line feeds: declare, bind, unbind and delete take them
    out as RabbitMQ does; publish, consume, get and purge do not, as there."""
    return name.replace("\r", "").replace("\n", "")


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
            internal=method.internal, arguments=method.arguments,
        )  # fmt: skip
    channel.answer(lsn, None if method.nowait else ExchangeDeclareOk())


def on_exchange_delete(channel: Channel, method: Method) -> None:
    """exchange.delete: one that is not there is deleted already."""
    assert isinstance(method, ExchangeDelete)
    name = one_line(method.exchange)
    channel.check(CONFIGURE, "exchange", name)
    lsn = channel.vhost.topology.delete_exchange(name, if_unused=method.if_unused)
    channel.answer(lsn, None if method.nowait else ExchangeDeleteOk())


def on_exchange_bind(channel: Channel, method: Method) -> None:
    """exchange.bind."""
    assert isinstance(method, ExchangeBind)
    destination, source = one_line(method.destination), one_line(method.source)
    channel.check(WRITE, "exchange", destination)
    channel.check(READ, "exchange", source)
    lsn = channel.vhost.topology.bind_exchange(
        destination, source, method.routing_key, method.arguments
    )
    channel.answer(lsn, None if method.nowait else ExchangeBindOk())


def on_exchange_unbind(channel: Channel, method: Method) -> None:
    """exchange.unbind."""
    assert isinstance(method, ExchangeUnbind)
    destination, source = one_line(method.destination), one_line(method.source)
    channel.check(WRITE, "exchange", destination)
    channel.check(READ, "exchange", source)
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
    else:
        is_named_here = not name
        name = queue_to_declare(vhost, channel.identity, name, method.arguments)
        if _waits_for_files(channel, method, name):
            return
        queue, lsn = vhost.declare_queue(
            name, durable=method.durable, exclusive=method.exclusive,
            auto_delete=method.auto_delete, arguments=method.arguments, owner=channel.handler,
            is_reserved_allowed=is_named_here,
        )  # fmt: skip
    channel.queue_name = queue.name
    queue.serve()  # what it has delivered is not ready any more
    queue.used_at_ms = vhost.clock.wall_ms()
    answer = QueueDeclareOk(
        queue=queue.name,
        message_count=min(queue.len(), 0xFFFFFFFF),
        consumer_count=queue.consumers.count,
    )
    channel.answer(lsn, None if method.nowait else answer)


def _waits_for_files(channel: Channel, method: QueueDeclare, name: str) -> bool:
    """Whether the files of a new stream are made first: the channel waits, and the method is
    handled again when they are there. ChannelError: the declare is refused."""

    def again() -> None:
        channel.go_on(lambda: on_queue_declare(channel, method))

    def failed(error: Exception) -> None:
        def tell() -> None:
            raise error

        channel.go_on(tell)

    waits = channel.vhost.prepare_queue(
        name, durable=method.durable, exclusive=method.exclusive,
        auto_delete=method.auto_delete, arguments=method.arguments, again=again, failed=failed,
    )  # fmt: skip
    if waits:
        channel.is_waiting = True
    return waits


def _declare_reply_queue(channel: Channel, method: QueueDeclare) -> None:
    """Direct reply-to: a responder asks whether the requester is still there, or whether there is
    direct reply-to at all. Anybody may; nothing is declared. ChannelError 404: it is not."""
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
    lsn = channel.vhost.bind_queue(name, source, key, method.arguments, channel.handler)
    channel.answer(lsn, None if method.nowait else QueueBindOk())


def on_queue_unbind(channel: Channel, method: Method) -> None:
    """queue.unbind."""
    assert isinstance(method, QueueUnbind)
    name = one_line(queue_named(channel, method.queue))
    source = one_line(method.exchange)
    key = method.routing_key if method.queue or method.routing_key else name
    channel.check(WRITE, "queue", name)
    channel.check(READ, "exchange", source)
    lsn = channel.vhost.unbind_queue(name, source, key, method.arguments, channel.handler)
    channel.answer(lsn, QueueUnbindOk())


def on_queue_purge(channel: Channel, method: Method) -> None:
    """queue.purge: what is ready goes."""
    assert isinstance(method, QueuePurge)
    name = queue_named(channel, method.queue)
    channel.check(READ, "queue", name)
    queue = channel.vhost.table.find_queue(name, channel.handler)
    count, lsn = channel.vhost.purge_queue(queue)
    answer = QueuePurgeOk(message_count=min(count, 0xFFFFFFFF))
    channel.answer(lsn, None if method.nowait else answer)


def on_queue_delete(channel: Channel, method: Method) -> None:
    """queue.delete: one that is not there is deleted already. The answer comes before what the
    connection's own consumers of the queue are told."""
    assert isinstance(method, QueueDelete)
    vhost = channel.vhost
    name = one_line(queue_named(channel, method.queue))
    channel.check(CONFIGURE, "queue", name)
    if not vhost.table.has(name):
        channel.answer(0, None if method.nowait else QueueDeleteOk())
        return
    queue = vhost.table.find_queue(name, channel.handler, is_crashed_allowed=True)
    handler = channel.handler
    handler.hold_cancels()
    try:
        count, lsn = vhost.delete_queue(queue, if_unused=method.if_unused, if_empty=method.if_empty)
    except BaseException:
        handler.send_cancels()
        raise
    answer = QueueDeleteOk(message_count=min(count, 0xFFFFFFFF))

    def then() -> None:
        if not method.nowait:
            channel.send(answer)
        handler.send_cancels()

    channel.wait_for(lsn, vhost.mode, then)


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
