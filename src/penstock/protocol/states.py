"""Every transition of the connection and channel machines of AMQP 0-9-1, as tables.

Each machine has two tables, by who sends: (state, method) -> next state. One side reads the one as
what it may receive and the other as what it may send, the other side the other way round: so the
two roles cannot disagree. What is not in a table is an error: received, one with a reply code,
504 CHANNEL_ERROR or 503 COMMAND_INVALID, as connection.py says; sent, a ProtocolMistake of ours.

    connection   HEADER -> START -> STARTED <-> SECURE
                 STARTED -> TUNE -> TUNED -> OPENING -> OPEN -> closing -> CLOSED
    channel      CLOSED -> OPENING -> OPEN -> closing -> CLOSED
                              OPEN -> FAULTED -> closing                 (a body that is too large)
    closing      CLIENT_CLOSING, SERVER_CLOSING: that side has sent close and waits for close-ok
                 BOTH_CLOSING: both have, their closes crossed

A side reads ahead: `receive` takes a chunk of bytes whole before its events are handled, so a
peer's close may be read before the answers to earlier methods are sent. Therefore a side may still
send whatever it may on an open channel (or connection) after the *other* one's close, until it
sends close-ok. After its *own* close it sends nothing but close-ok, and discards what it receives.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

from penstock.codec import spec
from penstock.codec.method import Method


class ProtocolMistake(AssertionError):
    """We were about to send what the protocol does not allow: a defect of Penstock."""


class Role(Enum):
    """Which end of the connection this is."""

    SERVER = "server"
    CLIENT = "client"


class ConnectionState(Enum):
    """Where a connection is. The values are what error texts call them."""

    HEADER = "waiting for the protocol header"
    START = "starting"
    STARTED = "authenticating"
    SECURE = "securing"
    TUNE = "tuning"
    TUNED = "tuned"
    OPENING = "opening"
    OPEN = "running"
    CLIENT_CLOSING = "closed by the client"
    SERVER_CLOSING = "closed by the server"
    BOTH_CLOSING = "closed by both"
    CLOSED = "closed"


class ChannelState(Enum):
    """Where a channel is."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    FAULTED = "faulted"
    CLIENT_CLOSING = "closed by the client"
    SERVER_CLOSING = "closed by the server"
    BOTH_CLOSING = "closed by both"


ConnectionTable = dict[tuple[ConnectionState, int], ConnectionState]
ChannelTable = dict[tuple[ChannelState, int], ChannelState]


def _indexes(methods: Iterable[type[Method]]) -> list[int]:
    return [method.INDEX for method in methods]


# Before it is open, a connection is in one of these.
_HANDSHAKE: Final = (
    ConnectionState.START,
    ConnectionState.STARTED,
    ConnectionState.SECURE,
    ConnectionState.TUNE,
    ConnectionState.TUNED,
    ConnectionState.OPENING,
)

CONNECTION_FROM_CLIENT: Final[ConnectionTable] = {
    (ConnectionState.START, spec.ConnectionStartOk.INDEX): ConnectionState.STARTED,
    (ConnectionState.SECURE, spec.ConnectionSecureOk.INDEX): ConnectionState.STARTED,
    (ConnectionState.TUNE, spec.ConnectionTuneOk.INDEX): ConnectionState.TUNED,
    (ConnectionState.TUNED, spec.ConnectionOpen.INDEX): ConnectionState.OPENING,
    (ConnectionState.OPEN, spec.ConnectionUpdateSecret.INDEX): ConnectionState.OPEN,
    **{
        (state, spec.ConnectionClose.INDEX): ConnectionState.CLIENT_CLOSING
        for state in (*_HANDSHAKE, ConnectionState.OPEN)
    },
    (ConnectionState.SERVER_CLOSING, spec.ConnectionClose.INDEX): ConnectionState.BOTH_CLOSING,
    (ConnectionState.SERVER_CLOSING, spec.ConnectionCloseOk.INDEX): ConnectionState.CLOSED,
    (ConnectionState.SERVER_CLOSING, spec.ConnectionUpdateSecret.INDEX): (
        ConnectionState.SERVER_CLOSING
    ),
    (ConnectionState.BOTH_CLOSING, spec.ConnectionCloseOk.INDEX): ConnectionState.CLIENT_CLOSING,
}

CONNECTION_FROM_SERVER: Final[ConnectionTable] = {
    (ConnectionState.HEADER, spec.ConnectionStart.INDEX): ConnectionState.START,
    # The server's own state is START as soon as it has read the protocol header.
    (ConnectionState.START, spec.ConnectionStart.INDEX): ConnectionState.START,
    (ConnectionState.STARTED, spec.ConnectionSecure.INDEX): ConnectionState.SECURE,
    (ConnectionState.STARTED, spec.ConnectionTune.INDEX): ConnectionState.TUNE,
    (ConnectionState.OPENING, spec.ConnectionOpenOk.INDEX): ConnectionState.OPEN,
    **{
        (state, index): state
        for state in (ConnectionState.OPEN, ConnectionState.CLIENT_CLOSING)
        for index in _indexes(
            (
                spec.ConnectionBlocked,
                spec.ConnectionUnblocked,
                spec.ConnectionUpdateSecretOk,
            )
        )
    },
    (ConnectionState.CLIENT_CLOSING, spec.ConnectionOpenOk.INDEX): ConnectionState.CLIENT_CLOSING,
    **{
        (state, spec.ConnectionClose.INDEX): ConnectionState.SERVER_CLOSING
        for state in (*_HANDSHAKE, ConnectionState.OPEN)
    },
    (ConnectionState.CLIENT_CLOSING, spec.ConnectionClose.INDEX): ConnectionState.BOTH_CLOSING,
    (ConnectionState.CLIENT_CLOSING, spec.ConnectionCloseOk.INDEX): ConnectionState.CLOSED,
    (ConnectionState.BOTH_CLOSING, spec.ConnectionCloseOk.INDEX): ConnectionState.SERVER_CLOSING,
}

# What goes over an open channel and leaves it open.
CLIENT_METHODS: Final = _indexes(
    (
        spec.ChannelFlow,
        spec.ChannelFlowOk,
        spec.AccessRequest,
        spec.ExchangeDeclare,
        spec.ExchangeDelete,
        spec.ExchangeBind,
        spec.ExchangeUnbind,
        spec.QueueDeclare,
        spec.QueueBind,
        spec.QueuePurge,
        spec.QueueDelete,
        spec.QueueUnbind,
        spec.BasicQos,
        spec.BasicConsume,
        spec.BasicCancel,
        spec.BasicCancelOk,
        spec.BasicPublish,
        spec.BasicGet,
        spec.BasicAck,
        spec.BasicReject,
        spec.BasicRecoverAsync,
        spec.BasicRecover,
        spec.BasicNack,
        spec.ConfirmSelect,
        spec.TxSelect,
        spec.TxCommit,
        spec.TxRollback,
        spec.PenstockCall,
    )
)
SERVER_METHODS: Final = _indexes(
    (
        spec.ChannelFlow,
        spec.ChannelFlowOk,
        spec.AccessRequestOk,
        spec.ExchangeDeclareOk,
        spec.ExchangeDeleteOk,
        spec.ExchangeBindOk,
        spec.ExchangeUnbindOk,
        spec.QueueDeclareOk,
        spec.QueueBindOk,
        spec.QueuePurgeOk,
        spec.QueueDeleteOk,
        spec.QueueUnbindOk,
        spec.BasicQosOk,
        spec.BasicConsumeOk,
        spec.BasicCancel,
        spec.BasicCancelOk,
        spec.BasicReturn,
        spec.BasicDeliver,
        spec.BasicGetOk,
        spec.BasicGetEmpty,
        spec.BasicAck,
        spec.BasicRecoverOk,
        spec.BasicNack,
        spec.ConfirmSelectOk,
        spec.TxSelectOk,
        spec.TxCommitOk,
        spec.TxRollbackOk,
        spec.PenstockCallOk,
        spec.PenstockCallError,
    )
)

CHANNEL_FROM_CLIENT: Final[ChannelTable] = {
    (ChannelState.CLOSED, spec.ChannelOpen.INDEX): ChannelState.OPENING,
    **{
        (state, index): state
        for state in (ChannelState.OPENING, ChannelState.OPEN, ChannelState.SERVER_CLOSING)
        for index in CLIENT_METHODS
    },
    **{
        (state, spec.ChannelClose.INDEX): ChannelState.CLIENT_CLOSING
        for state in (ChannelState.OPENING, ChannelState.OPEN, ChannelState.FAULTED)
    },
    (ChannelState.SERVER_CLOSING, spec.ChannelClose.INDEX): ChannelState.BOTH_CLOSING,
    (ChannelState.SERVER_CLOSING, spec.ChannelCloseOk.INDEX): ChannelState.CLOSED,
    (ChannelState.BOTH_CLOSING, spec.ChannelCloseOk.INDEX): ChannelState.CLIENT_CLOSING,
}

CHANNEL_FROM_SERVER: Final[ChannelTable] = {
    (ChannelState.OPENING, spec.ChannelOpenOk.INDEX): ChannelState.OPEN,
    **{
        (state, index): state
        for state in (ChannelState.OPEN, ChannelState.FAULTED, ChannelState.CLIENT_CLOSING)
        for index in SERVER_METHODS
    },
    (ChannelState.FAULTED, spec.ChannelOpenOk.INDEX): ChannelState.FAULTED,
    (ChannelState.CLIENT_CLOSING, spec.ChannelOpenOk.INDEX): ChannelState.CLIENT_CLOSING,
    **{
        (state, spec.ChannelClose.INDEX): ChannelState.SERVER_CLOSING
        for state in (ChannelState.OPENING, ChannelState.OPEN, ChannelState.FAULTED)
    },
    (ChannelState.CLIENT_CLOSING, spec.ChannelClose.INDEX): ChannelState.BOTH_CLOSING,
    (ChannelState.CLIENT_CLOSING, spec.ChannelCloseOk.INDEX): ChannelState.CLOSED,
    (ChannelState.BOTH_CLOSING, spec.ChannelCloseOk.INDEX): ChannelState.SERVER_CLOSING,
}


class Machines:
    """The tables as one role sees them, and the states in which it does not believe its peer."""

    def __init__(self, role: Role) -> None:
        is_server = role is Role.SERVER
        self.connection_in = CONNECTION_FROM_CLIENT if is_server else CONNECTION_FROM_SERVER
        self.connection_out = CONNECTION_FROM_SERVER if is_server else CONNECTION_FROM_CLIENT
        self.channel_in = CHANNEL_FROM_CLIENT if is_server else CHANNEL_FROM_SERVER
        self.channel_out = CHANNEL_FROM_SERVER if is_server else CHANNEL_FROM_CLIENT
        # We have sent close: what comes is discarded, but for what the table has.
        own = ChannelState.SERVER_CLOSING if is_server else ChannelState.CLIENT_CLOSING
        self.channel_discards = frozenset((own, ChannelState.BOTH_CLOSING, ChannelState.FAULTED))
        self.channel_peer_close = (
            ChannelState.CLIENT_CLOSING if is_server else ChannelState.SERVER_CLOSING
        )
        self.own_close = (
            ConnectionState.SERVER_CLOSING if is_server else ConnectionState.CLIENT_CLOSING
        )
        self.peer_close = (
            ConnectionState.CLIENT_CLOSING if is_server else ConnectionState.SERVER_CLOSING
        )
