"""What a Connection reports of the bytes it was given: one plain value for each thing.

The order of events on a channel is that of the wire. Publishes come in runs, and so do acks: those
of one channel that follow each other in the bytes of one `receive` are one event with a list for
each part, so what is per event is paid once for many messages. In a run nothing is decoded: a
publish is three slices of what came.

Their properties and fields have not been looked at: PublishRun.headers must pass
codec.properties.scan. What may come when has been checked: connection.py, states.py.
"""

from dataclasses import dataclass

from penstock.codec.method import Method
from penstock.errors import ChannelError


class Event:
    """One thing that happened on a connection."""


@dataclass
class ProtocolHeaderReceived(Event):
    """The peer's first eight bytes (or fewer, if those before can be of no AMQP).

    is_supported: it is AMQP 0-9-1; the server sends connection.start. If not, the server answers
    with its own protocol header and closes; to a client it is that answer.
    """

    is_supported: bool
    header: bytes


@dataclass
class HeartbeatReceived(Event):
    """A heartbeat. Any other bytes say as much: the peer lives."""


@dataclass
class MethodReceived(Event):
    """A method without content, of channel 0 or an open channel."""

    channel: int
    method: Method


@dataclass
class PublishRun(Event):
    """Messages published on one channel, whole. The three lists have the same length.

    routes: exchange shortstr | routing key shortstr | bits 1 (1 is mandatory, 2 immediate).
    headers: property flags and list. bodies: bytes.
    """

    channel: int
    routes: list[bytes]
    headers: list[bytes]
    bodies: list[bytes]


@dataclass
class AckRun(Event):
    """basic.ack on one channel, one or more: delivery tags, and whether each is multiple."""

    channel: int
    tags: list[int]
    multiples: list[bool]


@dataclass
class PublishBegan(Event):
    """A message whose body is larger than spool_bytes begins; route and header as in a run.

    PublishParts follow, then PublishEnded; other channels' events may stand between. If the
    channel is closed before its end, no more of them come.
    """

    channel: int
    route: bytes
    header: bytes
    size: int  # bytes of the whole body


@dataclass
class PublishPart(Event):
    """The next bytes of the body that began on this channel."""

    channel: int
    data: bytes


@dataclass
class PublishEnded(Event):
    """The body that began on this channel is whole."""

    channel: int


@dataclass
class MessageReceived(Event):
    """A client's message: basic.deliver, basic.get-ok or basic.return with its content, whole."""

    channel: int
    method: Method
    header: bytes
    body: bytes


@dataclass
class ChannelFault(Event):
    """The peer did what closes a channel, but not the connection: a body beyond body_bytes_max.

    Whoever owns the connection answers with channel.close; until then all else on the channel is
    discarded.
    """

    channel: int
    error: ChannelError
