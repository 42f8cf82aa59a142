"""Events: what a Connection reports of the bytes that it received, as plain values.

The events of a channel are in the order of the wire. Publishes of one channel that follow each
other in the bytes of one `receive` are one event, with a list for each part; so are acks. The cost
of an event is then paid once for many messages. A publish in a run is three slices of the received
bytes, not decoded: its reader must check PublishRun.headers with codec.properties.scan. The
Connection has checked that each event may come at this time (states.py). The events that come for
each message have a constructor of their own: it is compiled, and the one of a dataclass is not.
"""

from dataclasses import dataclass, field

from penstock.codec.method import Method
from penstock.errors import ChannelError


class Event:
    """Base of all events."""


@dataclass
class ProtocolHeaderReceived(Event):
    """The first eight bytes of the peer.

    is_supported: they ask for AMQP 0-9-1, and the server sends connection.start. Otherwise the
    server answers with its own protocol header and closes. A client receives such an answer only.
    """

    is_supported: bool
    header: bytes


@dataclass
class HeartbeatReceived(Event):
    """A heartbeat frame. Any other bytes show as well that the peer is alive."""


@dataclass(init=False)
class MethodReceived(Event):
    """A method without content, on channel 0 or an open channel. bytes: of its payload, if it is
    on a channel."""

    channel: int
    method: Method
    bytes: int = field(default=0, compare=False)

    def __init__(self, channel: int, method: Method, size_bytes: int = 0) -> None:
        self.channel = channel
        self.method = method
        self.bytes = size_bytes


@dataclass(init=False)
class PublishRun(Event):
    """Whole messages published on one channel. The three lists have the same length.

    routes: exchange shortstr | routing key shortstr | bits 1 (1 is mandatory, 2 immediate).
    headers: property flags and list. bodies: bytes.
    """

    channel: int
    routes: list[bytes]
    headers: list[bytes]
    bodies: list[bytes]

    def __init__(
        self, channel: int, routes: list[bytes], headers: list[bytes], bodies: list[bytes]
    ) -> None:
        self.channel = channel
        self.routes = routes
        self.headers = headers
        self.bodies = bodies


@dataclass(init=False)
class AckRun(Event):
    """One or more basic.ack on one channel: their delivery tags and `multiple` bits."""

    channel: int
    tags: list[int]
    multiples: list[bool]

    def __init__(self, channel: int, tags: list[int], multiples: list[bool]) -> None:
        self.channel = channel
        self.tags = tags
        self.multiples = multiples


@dataclass
class PublishBegan(Event):
    """The begin of a message whose body is reported in parts. route, header: as in a PublishRun.

    PublishParts follow, then PublishEnded; events of other channels may come between them. If the
    channel is closed first, the rest of them never comes.
    """

    channel: int
    route: bytes
    header: bytes
    size: int  # bytes of the whole body


@dataclass
class PublishPart(Event):
    """The next bytes of the body of PublishBegan."""

    channel: int
    data: bytes


@dataclass
class PublishEnded(Event):
    """The end of the body of PublishBegan: all its parts were reported."""

    channel: int


@dataclass
class MessageReceived(Event):
    """A whole message as a client receives it: basic.deliver, get-ok or return with content."""

    channel: int
    method: Method
    header: bytes
    body: bytes


@dataclass
class ChannelFault(Event):
    """A mistake of the peer that closes only a channel, such as a body that is too large.

    The owner of the connection answers with channel.close. Until then the Connection discards
    everything else on the channel.
    """

    channel: int
    error: ChannelError
