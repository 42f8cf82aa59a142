"""Operations of the remote box: what the library's queues can do and AMQP has no method for.

`penstock.open("amqp://...")` is a box on a vhost. It puts, gets, acknowledges and commits by AMQP,
and calls these operations by penstock.call for the rest. The user needs the permissions of the
similar methods of AMQP.

A message is returned as its tag, its properties and its body in base64; the last two are null if it
is too large for one answer, and `box.read` returns it in pieces.
"""

import base64
import json
from collections.abc import Generator
from typing import Final

from penstock.access.permissions import Identity
from penstock.broker.arguments import decode_arguments, encode_arguments
from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.channel import Channel, Delivered
from penstock.broker.dispatch import STEP_BYTES
from penstock.broker.operations.call import (
    PIECE_BYTES,
    PIECE_STEPS,
    Call,
    Functions,
    Slices,
    first_names,
)
from penstock.broker.permissions import READ, one_line, queue_to_declare
from penstock.codec.fields import ARGUMENTS_BYTES_MAX
from penstock.errors import NOT_FOUND, AMQPError, ChannelError, CorruptionError, QueueFullError
from penstock.message import QueuedMessage
from penstock.operation_table import NAME_BYTES_MAX
from penstock.queues.backing_queue import Delivery
from penstock.storage.files.durability import DISK, MODE_NAMES, OS

BROWSE_SLICE: Final = 8
ADOPT_STEPS: Final = 4
MESSAGE_BYTES: Final = 200  # of an answer, for each message besides its properties and body
FRAME_MAX: Final = 131_072  # where the connection has no limit


def _find(call: Call) -> BrokerQueue:
    """Return the queue `name`. ChannelError 404, 405; AMQPConnectionError 540: it is a stream."""
    return call.vhost.table.find_messages(call.args.text("name"), call.owner, call.args.op)


def _room_bytes(call: Call) -> int:
    """Return how many bytes of messages an answer may have: base64 makes four bytes of three."""
    return (call.channel.output.frame_max or FRAME_MAX) // 2


def _may_use(identity: Identity, name: str) -> bool:
    """Return whether the user has any permission on the queue of this name."""
    return identity.may_read(name) or identity.may_write(name) or identity.may_configure(name)


def _check_use(call: Call) -> None:
    """Raise ChannelError 403 unless the user has any permission on the queue `name`."""
    name = call.args.text("name")
    if not _may_use(call.identity, name):
        call.check(READ, "queue", name)


# ---- queues --------------------------------------------------------------------------------------


def _queue(call: Call) -> None:
    _check_use(call)
    name = call.args.text("name")
    arguments: object = None
    exists = call.vhost.table.has(name)
    if exists:
        queue = call.vhost.table.find_queue(name, call.owner)
        arguments = json.loads(encode_arguments(queue.arguments) or b"{}")
    whole_bytes = call.vhost.monitor.budget_bytes
    call.reply({"exists": exists, "arguments": arguments, "whole_bytes": whole_bytes})


def _declare(call: Call) -> None:
    name = call.args.text("name")
    given = call.args.table("arguments")
    vhost = call.vhost
    if not name:
        raise call.args.wrong("name", f"expected a text of 1 to {NAME_BYTES_MAX} bytes")
    if name != one_line(name) and not vhost.table.has(name):
        raise call.args.wrong("name", "expected no line feeds: AMQP could not delete the queue")
    data = json.dumps(given).encode()
    if len(data) > ARGUMENTS_BYTES_MAX:
        text = f"{len(data)} bytes of JSON, expected at most {ARGUMENTS_BYTES_MAX}"
        raise call.args.wrong("arguments", text)
    try:
        arguments = decode_arguments(data)
    except (ValueError, TypeError, RecursionError, AMQPError) as error:
        raise call.args.wrong("arguments", str(error)) from None

    def declare() -> None:
        queue_to_declare(vhost, call.identity, name, arguments)
        if vhost.prepare_queue(
            name, durable=True, arguments=arguments,
            again=lambda: call.answer_errors(declare), failed=call.fail, by=call.identity,
        ):  # fmt: skip
            return
        _, lsn = vhost.declare_queue(
            name, durable=True, arguments=arguments, owner=call.owner, by=call.identity
        )
        call.settled(lsn, None)

    declare()


def _queues(call: Call) -> None:
    after = call.args.text("after")
    n = call.args.whole("n")
    served = call.vhost.table.served
    names = [*served, *call.vhost.queue_set.stored]

    def is_shown(name: str) -> bool:
        queue = served.get(name)
        if queue is not None and (
            (queue.is_exclusive and queue.owner is not call.owner)
            or isinstance(queue, BrokerStream)
        ):
            return False
        return _may_use(call.identity, name)

    call.in_slices(first_names(call, names, n, after, is_shown))


def _queue_info(call: Call) -> None:
    _check_use(call)
    queue = _find(call)
    amq = queue.amq
    info = amq.info()
    info["takers"] = queue.consumers.count
    ready = amq.len()
    found = {
        "ready": ready, "unacked": amq.depth() - ready, "delayed": amq.delayed(), "info": info,
    }  # fmt: skip
    call.reply(found)


def _room(call: Call) -> None:
    queue = _find(call)
    size_bytes = call.args.whole("bytes")
    count = call.args.whole("count")
    try:
        if count:
            queue.amq.before_publish(size_bytes, count)
    except QueueFullError as error:
        overflow = queue.amq.options.overflow
        full = {"limit": error.limit, "given": error.given, "allowed": error.allowed}
        call.reply({**full, "overflow": overflow})
        return
    call.reply(None)


def _purge(call: Call) -> None:
    queue = _find(call)
    with_delayed = call.args.flag("with_delayed")
    count, lsn = call.vhost.purge_queue(queue)
    if with_delayed:
        n = queue.amq.purge_delayed(DISK)
        if n:
            count, lsn = count + n, call.vhost.engine.log.last_lsn
    call.settled(lsn, count)


def _delete(call: Call, *, sends_first: bool = True) -> None:
    queue = call.vhost.table.find_queue(call.args.text("name"), call.owner)

    def again() -> None:
        call.answer_errors(lambda: _delete(call, sends_first=False))

    if sends_first and call.vhost.table.sends_first(queue, again):
        return
    call.vhost.delete_queue_then(queue, lambda _, lsn: call.settled(lsn, None), call.fail)


# ---- messages ------------------------------------------------------------------------------------


def _parts(call: Call, queue: BrokerQueue, delivery: Delivery) -> tuple[bytes, bytes | None]:
    """Properties as they would be delivered, and the body; None: it is large and in the store."""
    headers = call.vhost.headers
    message = delivery.message
    props = headers.props_with_attempts(
        message.header, headers.parts(message.header, queue.name)[1]
    )
    if delivery.attempts:
        props = headers.delivered_props(props, delivery.attempts)
    return props, message.body


def _browsed(call: Call, queue: BrokerQueue) -> Slices:
    after = call.args.whole_or_none("after")
    n = call.args.whole("n")
    left_bytes = room_bytes = _room_bytes(call)
    found: list[dict[str, object]] = []
    if after is None:
        queue.amq.expire()  # so that it is not shown
    is_more = True
    step = 1
    while is_more and len(found) < n and not queue.is_deleted and not queue.is_crashed:
        deliveries = queue.amq.browse(after, min(n - len(found), step), in_pieces=True)
        is_more = bool(deliveries)
        step = BROWSE_SLICE
        for delivery in deliveries:
            props, body = _parts(call, queue, delivery)
            size = len(props) + delivery.message.size + MESSAGE_BYTES
            is_large = body is None or size > room_bytes
            call.vhost.budget.left -= (MESSAGE_BYTES if body is None else size) // STEP_BYTES
            if is_large:
                step = 1  # it may have been read whole
            if (MESSAGE_BYTES if is_large else size) > left_bytes:
                is_more = False
                break
            after = delivery.tag
            left_bytes -= MESSAGE_BYTES if is_large else size
            found.append({
                "tag": after,
                "is_redelivered": delivery.is_redelivered,
                "header": None if is_large else base64.b64encode(props).decode(),
                "body": None if body is None or is_large else base64.b64encode(body).decode(),
            })  # fmt: skip
        yield
    return found


def _read(call: Call) -> None:
    call.in_slices(_part_of(call, _find(call)))


def _part_of(call: Call, queue: BrokerQueue) -> Slices:
    """Return some bytes of a message, None if it is not there any more."""
    after = call.args.whole_or_none("after")
    tag = call.args.whole("tag")
    at = call.args.whole("at")
    n = min(call.args.whole("n"), _room_bytes(call))
    found = queue.amq.browse(after, 1, in_pieces=True)
    if found and found[0].tag != tag:  # others came back in front of it meanwhile
        some = queue.amq.browse(after, BROWSE_SLICE, in_pieces=True)
        found = [one for one in some if one.tag == tag]
    if not found:
        return None
    message = found[0].message
    props, body = _parts(call, queue, found[0])
    data = props[at : at + n]
    begin, left = max(at - len(props), 0), n - len(data)
    if body is not None:
        data += body[begin : begin + left]
    else:
        try:
            data += yield from _read_large(call, message, begin, left)
        except CorruptionError:
            return None
    answer = {"size": len(props) + message.size, "header_size": len(props)}
    return {**answer, "data": base64.b64encode(data).decode()}


def _read_large(
    call: Call, message: QueuedMessage, begin: int, n: int
) -> Generator[None, None, bytes]:
    """Return n bytes of a body in the store, from `begin` on. Who reads the last ones has the
    checksum of all compared. CorruptionError."""
    stored = call.vhost.engine.bodies.open(message)
    found: list[bytes] = []
    at = 0
    try:
        while at < begin + n and (piece := stored.read(PIECE_BYTES)):
            found.append(piece[max(begin - at, 0) : max(begin + n - at, 0)])
            at += len(piece)
            call.vhost.budget.left -= PIECE_STEPS
            if call.vhost.budget.left <= 0:
                yield
    finally:
        stored.close()
    return b"".join(found)


# ---- settling ------------------------------------------------------------------------------------


def _nack(call: Call) -> None:
    tag = call.args.whole("tag")
    delay_ms = call.args.whole_or_none("delay_ms")
    delivered = _pending(call.channel, tag)
    source = delivered.source
    if not source.is_deleted:
        if isinstance(source, BrokerQueue):
            source.amq.nack(delivered.tag, delay_ms=delay_ms, mode=OS)
        else:
            source.requeue([delivered.tag])
        call.vhost.counts.messages.requeue += 1
        call.vhost.dispatch.mark(source)
    call.channel.forget(tag)
    call.channel.update()
    call.reply(None)


def _release(call: Call) -> None:
    tag = call.args.whole("tag")
    delivered = _pending(call.channel, tag)
    source = delivered.source
    if not source.is_deleted:
        source.release([delivered.tag])
        call.vhost.dispatch.mark(source)
    call.channel.forget(tag)
    call.channel.update()
    call.reply(None)


def _adopt(call: Call) -> None:
    number = call.args.whole("channel")
    tags = call.args.numbers("tags")
    source = call.channel.handler.channels.get(number)
    if source is None or source.is_closed:
        raise ChannelError(NOT_FOUND, f"no channel {number}")
    call.in_slices(_adopted(call, source, tags))


def _adopted(call: Call, source: Channel, tags: list[int]) -> Slices:
    for tag in tags:
        _pending(source, tag)
    adopted: list[int] = []
    try:
        for tag in tags:
            adopted.append(call.channel.adopt(_forget(source, tag)))
            call.vhost.budget.left -= ADOPT_STEPS
            if call.vhost.budget.left <= 0:
                yield
    finally:
        source.update()
    return adopted


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


def _info(call: Call) -> None:
    engine = call.vhost.engine
    memory = call.vhost.monitor.info()
    call.reply({
        "queues": call.vhost.table.count,
        "queues_open": len(call.vhost.table.served),
        "lsn": engine.log.last_lsn,
        "lsn_settled": engine.log.settled(DISK),
        "syncs": engine.log.syncs,
        "checkpoints": engine.checkpoints.count,
        "durability": MODE_NAMES[call.vhost.mode],
        "memory_bytes": memory["budget_bytes"],
        "counted_bytes": memory["counted_bytes"],
        "is_alarmed": memory["is_alarmed"],
        "is_disk_full": memory["is_disk_full"],
    })  # fmt: skip


def _sync(call: Call) -> None:
    lsn = call.vhost.engine.log.last_lsn
    if call.vhost.engine.log.settled(DISK) >= lsn:
        call.reply(None)
        return
    call.vhost.engine.log.request_sync()
    call.vhost.dispatch.when_settled(lsn, DISK, lambda: call.reply(None))


FUNCTIONS: Final[Functions] = {
    "box.queue": _queue,
    "box.declare": _declare,
    "box.queues": _queues,
    "box.queue_info": _queue_info,
    "box.room": _room,
    "box.browse": lambda call: call.in_slices(_browsed(call, _find(call))),
    "box.read": _read,
    "box.purge": _purge,
    "box.delete": _delete,
    "box.nack": _nack,
    "box.release": _release,
    "box.adopt": _adopt,
    "box.info": _info,
    "box.sync": _sync,
}
