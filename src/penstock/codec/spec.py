"""The methods of AMQP 0-9-1, with RabbitMQ's extensions and Penstock's own, as one table.

One class for each method, with its class and method id. Its fields are in the order of the wire,
with the type that AMQP gives them (method.py) and their default. A ClassVar is a reserved field: it
is written as zeros and skipped when read. has_content: a content header and body frames follow.
pamqp is the oracle in the tests.
"""

from dataclasses import field
from typing import ClassVar, Final

from penstock.codec.method import (
    Bit,
    FieldTable,
    Long,
    LongLong,
    LongStr,
    Method,
    Octet,
    RawTable,
    Short,
    ShortStr,
)
from penstock.errors import COMMAND_INVALID, FRAME_ERROR, AMQPConnectionError

# ---- connection


class ConnectionStart(Method, ids=(10, 10)):
    """The server's version, properties, and the mechanisms that it accepts."""

    version_major: Octet = 0
    version_minor: Octet = 9
    server_properties: FieldTable = field(default_factory=dict)
    mechanisms: LongStr = b"PLAIN"
    locales: LongStr = b"en_US"


class ConnectionStartOk(Method, ids=(10, 11)):
    """The client's properties, and its choice of mechanism with the response to it."""

    client_properties: RawTable = b"\0\0\0\0"
    mechanism: ShortStr = "PLAIN"
    response: LongStr = b""
    locale: ShortStr = "en_US"


class ConnectionSecure(Method, ids=(10, 20)):
    """A further challenge of the mechanism."""

    challenge: LongStr = b""


class ConnectionSecureOk(Method, ids=(10, 21)):
    """The response to a challenge."""

    response: LongStr = b""


class ConnectionTune(Method, ids=(10, 30)):
    """The limits that the server offers; 0 is no limit. heartbeat: seconds."""

    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


class ConnectionTuneOk(Method, ids=(10, 31)):
    """The limits that the client chose; 0 is no limit. heartbeat: seconds."""

    channel_max: Short = 0
    frame_max: Long = 0
    heartbeat: Short = 0


class ConnectionOpen(Method, ids=(10, 40)):
    """Ask for a virtual host."""

    virtual_host: ShortStr = "/"
    reserved_1: ClassVar[ShortStr]
    reserved_2: ClassVar[Bit]


class ConnectionOpenOk(Method, ids=(10, 41)):
    """The connection is open."""

    reserved_1: ClassVar[ShortStr]


class ConnectionClose(Method, ids=(10, 50)):
    """End the connection. class_id, method_id: of the method at fault, or 0."""

    reply_code: Short = 0
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


class ConnectionCloseOk(Method, ids=(10, 51)):
    """The answer to close."""


class ConnectionBlocked(Method, ids=(10, 60)):
    """The server does not read publishes for the time being."""

    reason: ShortStr = ""


class ConnectionUnblocked(Method, ids=(10, 61)):
    """The server reads publishes again."""


class ConnectionUpdateSecret(Method, ids=(10, 70)):
    """A new secret for the rest of the connection."""

    new_secret: LongStr = b""
    reason: ShortStr = ""


class ConnectionUpdateSecretOk(Method, ids=(10, 71)):
    """The new secret is in use."""


# ---- channel


class ChannelOpen(Method, ids=(20, 10)):
    """Open a channel."""

    reserved_1: ClassVar[ShortStr]


class ChannelOpenOk(Method, ids=(20, 11)):
    """The channel is open."""

    reserved_1: ClassVar[LongStr]


class ChannelFlow(Method, ids=(20, 20)):
    """Ask the peer to stop or to continue sending content."""

    active: Bit = False


class ChannelFlowOk(Method, ids=(20, 21)):
    """The answer to flow."""

    active: Bit = False


class ChannelClose(Method, ids=(20, 40)):
    """End the channel. class_id, method_id: of the method at fault, or 0."""

    reply_code: Short = 0
    reply_text: ShortStr = ""
    class_id: Short = 0
    method_id: Short = 0


class ChannelCloseOk(Method, ids=(20, 41)):
    """The answer to close."""


# ---- access: of AMQP 0-8. Some clients still ask, and RabbitMQ answers.


class AccessRequest(Method, ids=(30, 10)):
    """Ask for an access ticket, which nothing needs any more."""

    realm: ShortStr = "/data"
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


class AccessRequestOk(Method, ids=(30, 11)):
    """A ticket."""

    ticket: Short = 1


# ---- exchange


class ExchangeDeclare(Method, ids=(40, 10)):
    """Make an exchange, or with passive check that it exists."""

    reserved_1: ClassVar[Short]
    exchange: ShortStr = ""
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


class ExchangeDeclareOk(Method, ids=(40, 11)):
    """The exchange exists."""


class ExchangeDelete(Method, ids=(40, 20)):
    """Delete an exchange."""

    reserved_1: ClassVar[Short]
    exchange: ShortStr = ""
    if_unused: Bit = False
    nowait: Bit = False


class ExchangeDeleteOk(Method, ids=(40, 21)):
    """The exchange does not exist."""


class ExchangeBind(Method, ids=(40, 30)):
    """Bind the exchange `destination` to the exchange `source`."""

    reserved_1: ClassVar[Short]
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


class ExchangeBindOk(Method, ids=(40, 31)):
    """The binding exists."""


class ExchangeUnbind(Method, ids=(40, 40)):
    """Delete a binding between exchanges."""

    reserved_1: ClassVar[Short]
    destination: ShortStr = ""
    source: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


class ExchangeUnbindOk(Method, ids=(40, 51)):
    """The binding does not exist."""


# ---- queue


class QueueDeclare(Method, ids=(50, 10)):
    """Make a queue, or with passive check that it exists. An empty name asks for a new one."""

    reserved_1: ClassVar[Short]
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


class QueueDeclareOk(Method, ids=(50, 11)):
    """The queue exists. message_count: ready messages."""

    queue: ShortStr = ""
    message_count: Long = 0
    consumer_count: Long = 0


class QueueBind(Method, ids=(50, 20)):
    """Bind a queue to an exchange."""

    reserved_1: ClassVar[Short]
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


class QueueBindOk(Method, ids=(50, 21)):
    """The binding exists."""


class QueuePurge(Method, ids=(50, 30)):
    """Drop all ready messages of a queue."""

    reserved_1: ClassVar[Short]
    queue: ShortStr = ""
    nowait: Bit = False


class QueuePurgeOk(Method, ids=(50, 31)):
    """The number of messages that were dropped."""

    message_count: Long = 0


class QueueDelete(Method, ids=(50, 40)):
    """Delete a queue."""

    reserved_1: ClassVar[Short]
    queue: ShortStr = ""
    if_unused: Bit = False
    if_empty: Bit = False
    nowait: Bit = False


class QueueDeleteOk(Method, ids=(50, 41)):
    """The number of messages that were deleted with the queue."""

    message_count: Long = 0


class QueueUnbind(Method, ids=(50, 50)):
    """Delete a binding of a queue."""

    reserved_1: ClassVar[Short]
    queue: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    arguments: FieldTable = field(default_factory=dict)


class QueueUnbindOk(Method, ids=(50, 51)):
    """The binding does not exist."""


# ---- basic


class BasicQos(Method, ids=(60, 10)):
    """Limit the unacknowledged messages of each consumer, or with global_ of the channel."""

    prefetch_size: Long = 0
    prefetch_count: Short = 0
    global_: Bit = False


class BasicQosOk(Method, ids=(60, 11)):
    """The limit is in use."""


class BasicConsume(Method, ids=(60, 20)):
    """Start a consumer. An empty tag asks for a new one."""

    reserved_1: ClassVar[Short]
    queue: ShortStr = ""
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    nowait: Bit = False
    arguments: FieldTable = field(default_factory=dict)


class BasicConsumeOk(Method, ids=(60, 21)):
    """The consumer exists."""

    consumer_tag: ShortStr = ""


class BasicCancel(Method, ids=(60, 30)):
    """End a consumer. The server sends it when the queue has gone."""

    consumer_tag: ShortStr = ""
    nowait: Bit = False


class BasicCancelOk(Method, ids=(60, 31)):
    """The consumer has ended."""

    consumer_tag: ShortStr = ""


class BasicPublish(Method, ids=(60, 40), has_content=True):
    """Publish a message."""

    reserved_1: ClassVar[Short]
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


class BasicReturn(Method, ids=(60, 50), has_content=True):
    """A message that was published and could not be routed."""

    reply_code: Short = 0
    reply_text: ShortStr = ""
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


class BasicDeliver(Method, ids=(60, 60), has_content=True):
    """A message for a consumer."""

    consumer_tag: ShortStr = ""
    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""


class BasicGet(Method, ids=(60, 70)):
    """Ask for one message."""

    reserved_1: ClassVar[Short]
    queue: ShortStr = ""
    no_ack: Bit = False


class BasicGetOk(Method, ids=(60, 71), has_content=True):
    """The message that get asked for. message_count: ready messages left."""

    delivery_tag: LongLong = 0
    redelivered: Bit = False
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    message_count: Long = 0


class BasicGetEmpty(Method, ids=(60, 72)):
    """The queue of get has no message."""

    reserved_1: ClassVar[ShortStr]


class BasicAck(Method, ids=(60, 80)):
    """Acknowledge a delivery (client), or confirm a publish (server)."""

    delivery_tag: LongLong = 0
    multiple: Bit = False


class BasicReject(Method, ids=(60, 90)):
    """Reject a delivery."""

    delivery_tag: LongLong = 0
    requeue: Bit = True


class BasicRecoverAsync(Method, ids=(60, 100)):
    """Recover without an answer."""

    requeue: Bit = False


class BasicRecover(Method, ids=(60, 110)):
    """Deliver all unacknowledged messages of the channel again."""

    requeue: Bit = False


class BasicRecoverOk(Method, ids=(60, 111)):
    """The answer to recover."""


class BasicNack(Method, ids=(60, 120)):
    """Reject deliveries (client), or report that a publish failed (server)."""

    delivery_tag: LongLong = 0
    multiple: Bit = False
    requeue: Bit = True


# ---- confirm: an extension of RabbitMQ, as are basic.nack, exchange.bind and unbind,
# connection.blocked, unblocked and update-secret.


class ConfirmSelect(Method, ids=(85, 10)):
    """Turn on publisher confirms."""

    nowait: Bit = False


class ConfirmSelectOk(Method, ids=(85, 11)):
    """Publishes of this channel are confirmed."""


# ---- tx


class TxSelect(Method, ids=(90, 10)):
    """Make the channel transactional."""


class TxSelectOk(Method, ids=(90, 11)):
    """The channel is transactional."""


class TxCommit(Method, ids=(90, 20)):
    """Commit, and begin the next transaction."""


class TxCommitOk(Method, ids=(90, 21)):
    """The transaction is committed."""


class TxRollback(Method, ids=(90, 30)):
    """Roll back, and begin the next transaction."""


class TxRollbackOk(Method, ids=(90, 31)):
    """The transaction is rolled back."""


# ---- penstock: calls of operations.


class PenstockCall(Method, ids=(9000, 10)):
    """Call an operation. arguments: JSON."""

    op: ShortStr = ""
    arguments: LongStr = b""


class PenstockCallOk(Method, ids=(9000, 11)):
    """The operation's result, as JSON."""

    result: LongStr = b""


class PenstockCallError(Method, ids=(9000, 12)):
    """The operation failed. code: a reply code."""

    code: Short = 0
    text: LongStr = b""


METHODS: Final[dict[int, type[Method]]] = {
    method.INDEX: method for method in Method.__subclasses__()
}

DECODED_MAX: Final = 256
DECODED_BYTES_MAX: Final = 64
_decoded: Final[dict[bytes, Method]] = {}  # of whatever connection, by their payloads


def decode_method(payload: bytes, table_bytes_max: int = 0) -> Method:
    """Return the method in the payload of a method frame.

    table_bytes_max: bytes of the longest table that the method may have, 0 for no limit. A longer
    one is checked and not built, and raises ChannelError 406 if the rest of the payload is right.
    Raises AMQPConnectionError: COMMAND_INVALID for unknown ids, FRAME_ERROR for fields that do not
    fill the payload, SYNTAX_ERROR for a malformed field table.

    A short payload that comes again, such as a basic.get of one queue, gives the same object: a
    method that was decoded is not changed.
    """
    known = _decoded.get(payload)
    if known is not None:
        return known
    if len(payload) < 4:
        raise AMQPConnectionError(FRAME_ERROR, "a method frame without a class and method id")
    index = int.from_bytes(payload[:4], "big")
    method = METHODS.get(index)
    if method is None:
        class_id, method_id = index >> 16, index & 0xFFFF
        text = f"unknown method {method_id} of class {class_id}"
        raise AMQPConnectionError(COMMAND_INVALID, text, class_id, method_id)
    found = method.decode(payload, table_bytes_max)
    if method.REPEATS and len(payload) <= DECODED_BYTES_MAX:
        if len(_decoded) == DECODED_MAX:
            _decoded.clear()
        _decoded[payload] = found
    return found
