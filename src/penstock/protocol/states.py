"""All state transitions of AMQP 0-9-1 connections and channels, as tables.

Each machine has two tables, one per sender: (state, method) -> next state. A server may receive
what CONNECTION_FROM_CLIENT lists and send what CONNECTION_FROM_SERVER lists; a client the other way
round. So the two roles cannot disagree. Any other method is an error: when received, 504
CHANNEL_ERROR or 503 COMMAND_INVALID (connection.py); when sent, LocalProtocolError.

    connection   HEADER -> START -> STARTED <-> SECURE
                 STARTED -> TUNE -> TUNED -> OPENING -> OPEN -> closing -> CLOSED
    channel      CLOSED -> OPENING -> OPEN -> closing -> CLOSED
                              OPEN -> FAULTED -> closing                 (a body that is too large)
    closing      CLIENT_CLOSING, SERVER_CLOSING: that side has sent close and waits for close-ok
                 BOTH_CLOSING: both have sent close; the closes crossed on the wire

A side reads ahead: `receive` parses a whole chunk before its events are handled, so it may read the
peer's close before it has answered earlier methods. Therefore a side may send anything that an open
channel (or connection) allows after the *other* side's close, until it sends close-ok. After its
*own* close it sends nothing but close-ok, and discards what it receives.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

from penstock.codec import spec
from penstock.codec.method import Method


class LocalProtocolError(AssertionError):
    """A method was to be sent that the protocol does not allow now: a defect of Penstock."""


class Role(Enum):
    """Which end of the connection this is."""

    SERVER = "server"
    CLIENT = "client"


class ConnectionState(Enum):
    """The states of a connection. Error texts show the values."""

    __hash__ = object.__hash__  # Enum's is a function of Python, and these are keys of the tables

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
    """The states of a channel."""

    __hash__ = object.__hash__

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


# The states before OPEN in which connection.close is allowed.
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

# Methods on an open channel that leave it open.
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
    """The tables as one role uses them, and the states in which it discards frames."""

    def __init__(self, role: Role) -> None:
        is_server = role is Role.SERVER
        self.connection_in = CONNECTION_FROM_CLIENT if is_server else CONNECTION_FROM_SERVER
        self.connection_out = CONNECTION_FROM_SERVER if is_server else CONNECTION_FROM_CLIENT
        self.channel_in = CHANNEL_FROM_CLIENT if is_server else CHANNEL_FROM_SERVER
        self.channel_out = CHANNEL_FROM_SERVER if is_server else CHANNEL_FROM_CLIENT
        # After our own close, everything is discarded that the table does not list.
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
