"""Operations of the remote box: what the library's own queues can do and AMQP has no word for.

`penstock.open("amqp://...")` is a box on a vhost. It puts, gets, acknowledges and commits by AMQP;
the rest it asks for by penstock.call, and here is what it may ask. The user's permissions are those
of the like methods of AMQP. Every operation is answered at once, or when the log has settled it.

    box.queue       name                        exists, arguments, whole_bytes (of memory sizes)
    box.declare     name, arguments             a durable queue, as queue.declare of AMQP
    box.queues      after, n                    names behind `after`, sorted: those the user may use
    box.queue_info  name                        ready, unacked, delayed, info (counters)
    box.room        name, bytes, count          null: there is room; or limit, given, allowed
    box.browse      name, after, n              ready messages behind the tag `after`
    box.read        name, after, tag, at, n     n bytes of one that is too large for box.browse
    box.purge       name, with_delayed          how many there were
    box.delete      name
    box.nack        tag, delay_ms               an unacked delivery of this channel comes back
    box.release     tag                         it comes back at once, and no attempt is counted
    box.adopt       channel, tags               unacked deliveries of a sibling become this one's
    box.info, box.sync                          counters of the vhost; wait for the disk

A message is its tag, its properties and its body in base64, or neither of these two if it is large.

Not here: operators' operations (operations.py), the other side (penstock.client).
"""

import base64
import difflib
import json
from collections.abc import Callable
from typing import Final

from penstock.broker import operations_streams
from penstock.broker.arguments import decode_arguments, encode_arguments
from penstock.broker.channel import Channel
from penstock.broker.channel_access import (
    check_configure,
    check_read,
    check_write,
    queue_to_declare,
)
from penstock.broker.operation_args import NAME_BYTES_MAX, OperationArgs, Reply
from penstock.broker.operation_args import refused as wrong
from penstock.broker.operations_messages import (
    answer_error,
    answer_errors,
    answer_when_settled,
    error_of,
)
from penstock.broker.served_queue import Served, ServedQueue
from penstock.broker.served_stream import ServedStream
from penstock.broker.unacked import Delivered
from penstock.broker.vhost import VHost
from penstock.codec.fields import ARGUMENTS_BYTES_MAX
from penstock.errors import NOT_FOUND, AMQPError, ChannelError, QueueFullError
from penstock.queues.backing_queue import Delivery
from penstock.storage.durability import DISK, MODE_NAMES, OS

NAMES_MAX: Final = 1000
BROWSE_MAX: Final = 1000
BROWSE_SLICE: Final = 8
MESSAGE_BYTES: Final = 200  # of an answer, for each message besides its properties and body
FRAME_MAX: Final = 131_072  # where the connection has no limit
TAG_MAX: Final = (1 << 63) - 1
DELAY_MS_MAX: Final = 1 << 53


class BoxCall:
    """One call. channel: whose user asks."""

    def __init__(self, vhost: VHost, channel: Channel, args: OperationArgs, reply: Reply) -> None:
        self.vhost: VHost = vhost
        self.channel: Channel = channel
        self.args: OperationArgs = args
        self.reply: Reply = reply

    def queue(self, check: Callable[[Channel, str, str], None] | None) -> ServedQueue:
        """The queue `name`, if the user may do this to it, or has any right to it (None). 540 if it
        is a stream."""
        return self.vhost.table.of_messages(self.queue_or_stream(check), self.args.op)

    def queue_or_stream(self, check: Callable[[Channel, str, str], None] | None) -> Served:
        """The same, a stream too."""
        name = self.args.name("name")
        if check is None:
            if not is_of_user(self.channel, name):
                check_read(self.channel, "queue", name)
        else:
            check(self.channel, "queue", name)
        return self.vhost.find_queue(name, self.channel.handler)

    def check_read(self, name: str) -> None:
        """ChannelError 403 unless the user may read the queue of this name."""
        check_read(self.channel, "queue", name)

    def check_write(self, name: str) -> None:
        """ChannelError 403 unless the user may write to the queue of this name."""
        check_write(self.channel, "queue", name)

    def settled(self, lsn: int, answer: object) -> None:
        """Answer when it is as safe as the vhost's durability says."""
        answer_when_settled(self.vhost, lsn, answer, self.reply)

    @property
    def room_bytes(self) -> int:
        """How many bytes of messages an answer may have: base64 makes four of three."""
        return (self.channel.output.frame_max or FRAME_MAX) // 2


def call(
    vhost: VHost, channel: Channel | None, op: str, args: dict[str, object], reply: Reply
) -> None:
    """Do it; `reply` is called once, from here or later."""
    try:
        operation = OPERATIONS.get(op)
        if operation is None:
            near = difflib.get_close_matches(op, OPERATIONS, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ChannelError(NOT_FOUND, f"no operation {op!r}{hint}")
        if channel is None:
            raise wrong(f"{op}: is for channels of AMQP connections")
        operation(BoxCall(vhost, channel, OperationArgs(op, args), reply))
    except Exception as error:
        told = error_of(error)
        if told is None or vhost.engine.failed is not None:
            raise
        reply(told)


def is_of_user(channel: Channel, name: str) -> bool:
    """Whether the user may do anything at all to this queue."""
    identity = channel.identity
    return identity.may_read(name) or identity.may_write(name) or identity.may_configure(name)


# ---- queues --------------------------------------------------------------------------------------


def _queue(call: BoxCall) -> None:
    name = call.args.name("name")
    call.args.done()
    if not is_of_user(call.channel, name):
        check_read(call.channel, "queue", name)
    arguments: object = None
    exists = call.vhost.has_queue(name)
    if exists:
        queue = call.vhost.find_queue(name, call.channel.handler)
        arguments = json.loads(encode_arguments(queue.arguments) or b"{}")
    whole_bytes = call.vhost.monitor.budget_bytes
    call.reply({"exists": exists, "arguments": arguments, "whole_bytes": whole_bytes})


def _declare(call: BoxCall) -> None:
    name = call.args.name("name")
    given = call.args.table("arguments")
    call.args.done()
    channel, vhost = call.channel, call.vhost
    if not name:
        raise wrong(f"box.declare: argument 'name': expected a text of 1 to {NAME_BYTES_MAX} bytes")
    data = json.dumps(given).encode()
    if len(data) > ARGUMENTS_BYTES_MAX:
        expected = f"at most {ARGUMENTS_BYTES_MAX}"
        raise wrong(f"box.declare: argument 'arguments': {len(data)} bytes of JSON, {expected}")
    try:
        arguments = decode_arguments(data)
    except (ValueError, TypeError, RecursionError, AMQPError) as error:
        raise wrong(f"box.declare: argument 'arguments': {error}") from None

    def declare() -> None:
        queue_to_declare(vhost, channel.identity, name, arguments)
        if vhost.prepare_queue(
            name, durable=True, arguments=arguments,
            again=lambda: answer_errors(vhost, declare, call.reply),
            failed=lambda error: answer_error(vhost, error, call.reply),
        ):  # fmt: skip
            return
        _, lsn = vhost.declare_queue(name, durable=True, arguments=arguments, owner=channel.handler)
        call.settled(lsn, None)

    declare()


def _queues(call: BoxCall) -> None:
    after = call.args.text("after", "")
    n = call.args.whole("n", None, 1, NAMES_MAX)
    call.args.done()
    table = call.vhost.table
    open_names = (
        name for name, queue in table.served.items()
        if not (queue.is_exclusive and queue.owner is not call.channel.handler)
        and not isinstance(queue, ServedStream)
    )  # fmt: skip
    names = sorted(
        name for name in (*open_names, *table.stored)
        if name > after and is_of_user(call.channel, name)
    )  # fmt: skip
    call.reply(names[:n])


def _queue_info(call: BoxCall) -> None:
    queue = call.queue(None)
    call.args.done()
    amq = queue.amq
    info = amq.info()
    info["takers"] = queue.consumers.count
    ready = amq.len()
    found = {
        "ready": ready, "unacked": amq.depth() - ready, "delayed": amq.delayed(), "info": info,
    }  # fmt: skip
    call.reply(found)


def _room(call: BoxCall) -> None:
    queue = call.queue(check_write_by_default)
    size_bytes = call.args.whole("bytes", None, 0, TAG_MAX)
    count = call.args.whole("count", None, 0, TAG_MAX)
    call.args.done()
    try:
        if count:
            queue.amq.before_publish(size_bytes, count)
    except QueueFullError as error:
        overflow = queue.amq.options.overflow
        full = {"limit": error.limit, "given": error.given, "allowed": error.allowed}
        call.reply({**full, "overflow": overflow})
        return
    call.reply(None)


def check_write_by_default(channel: Channel, kind: str, name: str) -> None:
    """As a publish to the default exchange is checked."""
    check_write(channel, "exchange", "")


def _purge(call: BoxCall) -> None:
    queue = call.queue(check_read)
    with_delayed = call.args.flag("with_delayed")
    call.args.done()
    count, lsn = call.vhost.purge_queue(queue)
    if with_delayed:
        n = queue.amq.purge_delayed(DISK)
        if n:
            count, lsn = count + n, call.vhost.engine.last_lsn
    call.settled(lsn, count)


def _delete(call: BoxCall) -> None:
    queue = call.queue_or_stream(check_configure)
    call.args.done()
    call.settled(call.vhost.delete_queue(queue)[1], None)


# ---- messages ------------------------------------------------------------------------------------


def _parts(call: BoxCall, queue: ServedQueue, delivery: Delivery) -> tuple[bytes, bytes]:
    """Properties as they would be delivered, and the body."""
    headers = call.vhost.headers
    message = delivery.message
    props = headers.told_props(message.header, headers.parts(message.header, queue.name)[1])
    if delivery.attempts:
        props = headers.delivered_props(props, delivery.attempts)
    body = message.body
    assert body is not None, "what is browsed has its body"
    return props, body


def _after(call: BoxCall) -> int | None:
    after = call.args.whole_or_none("after")
    if after is not None and not 0 <= after <= TAG_MAX:
        raise wrong(f"{call.args.op}: argument 'after': given {after}, expected a tag, or null")
    return after


def _browse(call: BoxCall) -> None:
    queue = call.queue(check_read)
    after = _after(call)
    n = call.args.whole("n", None, 1, BROWSE_MAX)
    call.args.done()
    left_bytes = call.room_bytes
    found: list[dict[str, object]] = []
    if after is None:
        queue.amq.peek()  # so that what has expired is not shown
    is_more = True
    while is_more and len(found) < n:
        deliveries = queue.amq.browse(after, min(n - len(found), BROWSE_SLICE))
        is_more = bool(deliveries)
        for delivery in deliveries:
            props, body = _parts(call, queue, delivery)
            size = len(props) + len(body) + MESSAGE_BYTES
            is_large = size > call.room_bytes
            if (MESSAGE_BYTES if is_large else size) > left_bytes:
                is_more = False
                break
            after = delivery.tag
            left_bytes -= MESSAGE_BYTES if is_large else size
            found.append({
                "tag": after,
                "is_redelivered": delivery.is_redelivered,
                "header": None if is_large else base64.b64encode(props).decode(),
                "body": None if is_large else base64.b64encode(body).decode(),
            })  # fmt: skip
    call.reply(found)


def _read(call: BoxCall) -> None:
    queue = call.queue(check_read)
    after = _after(call)
    tag = call.args.whole("tag", None, 0, TAG_MAX)
    at = call.args.whole("at", None, 0, TAG_MAX)
    n = min(call.args.whole("n", None, 1, TAG_MAX), call.room_bytes)
    call.args.done()
    found = queue.amq.browse(after, 1)
    if found and found[0].tag != tag:  # others came back in front of it meanwhile
        found = [one for one in queue.amq.browse(after, BROWSE_SLICE) if one.tag == tag]
    if not found:
        call.reply(None)
        return
    props, body = _parts(call, queue, found[0])
    data = props[at : at + n]
    begin = max(at - len(props), 0)
    data += body[begin : begin + n - len(data)]
    answer = {"size": len(props) + len(body), "header_size": len(props)}
    call.reply({**answer, "data": base64.b64encode(data).decode()})


# ---- settling ------------------------------------------------------------------------------------


def _nack(call: BoxCall) -> None:
    tag = call.args.whole("tag", None, 1, TAG_MAX)
    delay_ms = call.args.whole_or_none("delay_ms")
    call.args.done()
    if delay_ms is not None and not 0 <= delay_ms <= DELAY_MS_MAX:
        raise wrong(f"box.nack: argument 'delay_ms': given {delay_ms}, expected 0 or more")
    delivered = _forget(call.channel, tag)
    call.channel.update()
    source = delivered.source
    if not source.is_deleted:
        if isinstance(source, ServedQueue):
            source.amq.nack(delivered.tag, delay_ms=delay_ms, mode=OS)
        else:
            source.requeue([delivered.tag])
        call.vhost.dispatch.mark(source)
    call.reply(None)


def _release(call: BoxCall) -> None:
    tag = call.args.whole("tag", None, 1, TAG_MAX)
    call.args.done()
    delivered = _forget(call.channel, tag)
    call.channel.update()
    source = delivered.source
    if not source.is_deleted:
        source.release([delivered.tag])
        call.vhost.dispatch.mark(source)
    call.reply(None)


def _adopt(call: BoxCall) -> None:
    number = call.args.whole("channel", None, 1, 65535)
    tags = call.args.numbers("tags")
    call.args.done()
    source = call.channel.handler.channels.get(number)
    if source is None or source.is_closed:
        raise ChannelError(NOT_FOUND, f"no channel {number}")
    for tag in tags:
        _pending(source, tag)
    adopted = [call.channel.adopt(_forget(source, tag)) for tag in tags]
    source.update()
    call.reply(adopted)


def _pending(channel: Channel, tag: int) -> Delivered:
    delivered = channel.pending(tag)
    if delivered is None:
        raise ChannelError(NOT_FOUND, f"unknown delivery tag {tag}")
    return delivered


def _forget(channel: Channel, tag: int) -> Delivered:
    delivered = _pending(channel, tag)
    channel.forget(tag)
    return delivered


# ---- the vhost -----------------------------------------------------------------------------------


def _info(call: BoxCall) -> None:
    call.args.done()
    vhost = call.vhost
    engine = vhost.engine
    memory = vhost.monitor.info()
    call.reply({
        "queues": len(vhost.table.served) + len(vhost.table.stored),
        "queues_open": len(vhost.table.served),
        "lsn": engine.last_lsn,
        "lsn_settled": engine.settled(DISK),
        "syncs": engine.log.syncs,
        "checkpoints": engine.checkpoints.count,
        "durability": MODE_NAMES[vhost.mode],
        "memory_bytes": memory["budget_bytes"],
        "counted_bytes": memory["counted_bytes"],
        "is_alarmed": memory["is_alarmed"],
        "is_disk_full": memory["is_disk_full"],
    })  # fmt: skip


def _sync(call: BoxCall) -> None:
    call.args.done()
    vhost = call.vhost
    lsn = vhost.engine.last_lsn
    if vhost.engine.settled(DISK) >= lsn:
        call.reply(None)
        return
    vhost.engine.log.request_sync()
    vhost.when_settled(lsn, DISK, lambda: call.reply(None))


OPERATIONS: Final[dict[str, Callable[[BoxCall], None]]] = {
    "box.queue": _queue,
    "box.declare": _declare,
    "box.queues": _queues,
    "box.queue_info": _queue_info,
    "box.room": _room,
    "box.browse": _browse,
    "box.read": _read,
    "box.purge": _purge,
    "box.delete": _delete,
    "box.nack": _nack,
    "box.release": _release,
    "box.adopt": _adopt,
    "box.info": _info,
    "box.sync": _sync,
    "box.append_to": operations_streams.append_to,
    "box.appended": operations_streams.appended,
    "box.streams": operations_streams.streams,
    "box.stream_info": operations_streams.stream_info,
}
