"""Connection: one end of an AMQP connection without I/O. Bytes in, events out, and bytes to send.

One parser reads everything. It looks three frames ahead: a publish whose method, header and body
lie whole in the chunk is taken in one pass, as three slices, and added to the PublishRun before it.
basic.ack has such a short way, too. Every other frame goes the long way: envelope, tables of
states.py, decoded method or content, event. The events of a chunk are in the order of the wire.

A message that is not whole in one chunk is assembled in the ChannelInput of its channel, because
other channels' frames may come between its own. Its pieces are joined once, at the end: `tail +
data` on every chunk would be quadratic for a large body. A server does not assemble a body that is
larger than spool_bytes, or larger than 64 KiB when `room` is full: it reports the parts as they
arrive, so that they can be written to disk.

Untrusted sizes. The size of a frame is checked against frame_max before anything else, the size of
a body against body_bytes_max, a field against its frame. So a connection holds at most one frame
that is not whole, and `unfinished_bytes` of bodies; the owner limits those by not reading. If the
owner sets `steps_max`, `receive` stops after so many steps of frames that go the long way, a few
microseconds each, and `go_on` continues: 1 MiB of small methods would take a quarter of a second.

Errors. A mistake of the peer is raised as AMQPConnectionError:

    501 FRAME_ERROR       unknown frame type, frame or header of a wrong size, fields that do not
                          fill their method
    503 COMMAND_INVALID   a method that is unknown, or not for this side, or not for a channel
    504 CHANNEL_ERROR     a channel that is not open, or opened twice; channel 0 out of order
    505 UNEXPECTED_FRAME  content without method, method within content, frames before open
    530 NOT_ALLOWED       tune-ok asks for more than tune offered

The codes are RabbitMQ's, and the texts where clients show them. Where RabbitMQ fails without a code
(an unknown method, a body longer than its header says) they are the specification's. The events of
the same bytes before the mistake are in `events_before_error`. The owner then sends
connection.close; `receive` returns nothing more but the peer's close or close-ok, if the frames can
still be told apart. A body larger than body_bytes_max, or a table larger than ARGUMENTS_BYTES_MAX
in the arguments of a method, closes only the channel: ChannelFault.

Sending what the protocol does not allow raises LocalProtocolError. Messages in bulk are written by
their senders with codec.frames; the owner keeps the times of heartbeats.

Events are plain values. The events of a channel are in the order of the wire. Publishes of one
channel that follow each other in the bytes of one `receive` are one event, with a list for each
part; so are acks: the cost of an event is paid once for many messages. A publish in a run is three
slices of the received bytes, not decoded: its reader must check PublishRun.headers with
codec.properties.scan. Those that come for each message have a constructor of their own, which is
compiled; the one of a dataclass is not.
"""

from dataclasses import dataclass, field
from typing import Final

from penstock.codec.fields import ARGUMENTS_BYTES_MAX
from penstock.codec.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_MAX_MIN,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
    PROTOCOL_HEADER,
    content_frames,
    method_frame,
)
from penstock.codec.method import Method
from penstock.codec.spec import (
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionTuneOk,
    decode_method,
)
from penstock.errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    UNEXPECTED_FRAME,
    AMQPConnectionError,
    ChannelError,
)
from penstock.protocol.states import (
    ChannelState,
    ConnectionState,
    LocalProtocolError,
    Machines,
    Role,
)

SERVER: Final = Role.SERVER
CLIENT: Final = Role.CLIENT
# The states as constants of this module: compiled code has these at hand, and looks for a member of
# an Enum by its name.
HEADER: Final = ConnectionState.HEADER
START: Final = ConnectionState.START
OPENING: Final = ConnectionState.OPENING
OPEN: Final = ConnectionState.OPEN
BOTH_CLOSING: Final = ConnectionState.BOTH_CLOSING
CLOSED: Final = ConnectionState.CLOSED
CHANNEL_CLOSED: Final = ChannelState.CLOSED
CHANNEL_OPENING: Final = ChannelState.OPENING
CHANNEL_OPEN: Final = ChannelState.OPEN
CHANNEL_FAULTED: Final = ChannelState.FAULTED

CHANNEL_MAX: Final = 65535
FRAME_HEADER_BYTES: Final = FRAME_OVERHEAD_BYTES - 1  # type, channel, size
ROOMLESS_BYTES: Final = 64 << 10  # a smaller body is always assembled in RAM

_MACHINES_OF_SERVERS: Final = Machines(SERVER)
_MACHINES_OF_CLIENTS: Final = Machines(CLIENT)

_PUBLISH: Final = 0x003C0028
_ANY_PUBLISH: Final = BasicPublish()
_ACK: Final = 0x003C0050

# Received chunks that do not make a frame yet are joined when there are this many of them, and so
# are the pieces of a body: 33 bytes of Python for each piece of one byte become a few.
_TAILS_MAX: Final = 64
STEP_BYTES: Final = 128  # of a method, for one step more: its tables are built
_PIECES_MAX: Final = 256

# What a channel waits for.
AWAITS_METHOD: Final = 0
AWAITS_HEADER: Final = 1
AWAITS_BODY: Final = 2

# The methods of the peer that count after a close.
_CLOSES: Final = (
    ConnectionClose.INDEX,
    ConnectionCloseOk.INDEX,
    ChannelClose.INDEX,
    ChannelCloseOk.INDEX,
)
_CLOSING: Final = (
    ConnectionState.CLIENT_CLOSING,
    ConnectionState.SERVER_CLOSING,
    ConnectionState.BOTH_CLOSING,
    ConnectionState.CLOSED,
)


# ---- events ------------------------------------------------------------------------------------


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


# ---- the connection ----------------------------------------------------------------------------


class BodyRoom:
    """RAM for the bodies that several connections are assembling. A body that does not fit is
    reported in parts, so that it can be written to disk. bytes_max: the owner may change it."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve this many bytes. Returns False, and reserves nothing, if there is less room."""
        if self.taken_bytes + size_bytes > self.bytes_max:
            return False
        self.taken_bytes += size_bytes
        return True


class ChannelInput:
    """The state of one channel that is not closed, and the message that is being assembled on it.

    Pieces of a body may be as small as the peer likes, so they are joined now and then: the memory
    they take is never much more than the bytes received. held_bytes: of route, header and body,
    part of Connection.unfinished_bytes.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = CHANNEL_CLOSED
        # A new method may come: the channel is open, and no message is being assembled.
        self.is_ready = False
        self.awaits = AWAITS_METHOD
        # The message that is being assembled: its method, its properties, its body.
        self.route = b""
        self.method: Method | None = None
        self.header = b""
        self.is_spooling = False
        self.remaining_bytes = 0
        self.held_bytes = 0
        self.room_bytes = 0  # reserved for its body in the BodyRoom
        self._pieces: list[bytes] = []
        self._small: list[bytes] = []

    def begin(self, route: bytes, method: Method | None) -> None:
        """Begin a message. route: of a publish, with method None; method: any other, decoded."""
        self.route = route
        self.method = method
        self.held_bytes = len(route)
        self.awaits = AWAITS_HEADER
        self.is_ready = False

    def begin_body(self, header: bytes, size_bytes: int, is_spooling: bool) -> None:
        """Note the content header: the body of size_bytes follows."""
        self.header = header
        self.held_bytes += len(header)
        self.remaining_bytes = size_bytes
        self.is_spooling = is_spooling
        self.awaits = AWAITS_BODY

    def add(self, piece: bytes) -> None:
        """Keep the next piece of the body."""
        self.held_bytes += len(piece)
        self._small.append(piece)
        if len(self._small) >= _PIECES_MAX:
            self._pieces.append(b"".join(self._small))
            self._small.clear()

    def body(self) -> bytes:
        """Return the whole body."""
        return b"".join(self._pieces + self._small)

    def reset(self, is_ready: bool) -> None:
        """Discard the message that was being assembled. is_ready: another one may follow."""
        self.awaits = AWAITS_METHOD
        self.is_ready = is_ready
        self.route = b""
        self.method = None
        self.header = b""
        self.is_spooling = False
        self.remaining_bytes = 0
        self.held_bytes = 0
        self.room_bytes = 0
        self._pieces.clear()
        self._small.clear()


class Connection:
    """One end of a connection. `receive` turns bytes into events, `send` methods into bytes.

    frame_max: bytes of the longest frame, 0 for no limit; lowered by tune-ok. channel_max: the
    highest channel. spool_bytes: a published body larger than this is reported in parts.
    body_bytes_max: a larger body is a ChannelFault. pause_after_open: stop after connection.open;
    all later bytes are `leftover`, for the process that takes over the connection.
    """

    def __init__(
        self,
        role: Role = Role.SERVER,
        *,
        frame_max: int = 131072,
        channel_max: int = 2047,
        spool_bytes: int = 1 << 20,
        body_bytes_max: int = 128 << 20,
        pause_after_open: bool = False,
    ) -> None:
        self.role = role
        self.state = HEADER
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.heartbeat_s = 0
        self.spool_bytes = spool_bytes
        self.body_bytes_max = body_bytes_max
        self.pause_after_open = pause_after_open
        self.is_broken = False
        self.events_before_error: list[Event] = []
        self.steps_max = 0  # of one `receive`; 0: no limit
        self.has_more = False  # `receive` stopped there: `go_on`
        self.room: BodyRoom | None = None  # for bodies above ROOMLESS_BYTES; None: no limit
        self.unfinished_bytes = 0  # of messages that are being assembled, on all channels
        self._is_server = role is Role.SERVER
        self._machines = _MACHINES_OF_SERVERS if self._is_server else _MACHINES_OF_CLIENTS
        self._channels: dict[int, ChannelInput] = {}
        self._events: list[Event] = []
        self._is_paused = False
        self._steps = 0  # of this `receive`
        self._is_in_step = True  # where the next frame begins is known
        self._frame_end = 0  # in the bytes being read: where the frame being handled ends
        # Received bytes that are not a whole frame yet, their size, and the size needed to go on.
        self._tails: list[bytes] = []
        self._tail_bytes = 0
        self._needed_bytes = FRAME_OVERHEAD_BYTES

    @classmethod
    def resumed(
        cls,
        frame_max: int,
        channel_max: int,
        *,
        spool_bytes: int = 1 << 20,
        body_bytes_max: int = 128 << 20,
    ) -> "Connection":
        """Return a server's connection whose connection.open was read in another process. The first
        method to send is open-ok."""
        connection = Connection(
            SERVER,
            frame_max=frame_max,
            channel_max=channel_max,
            spool_bytes=spool_bytes,
            body_bytes_max=body_bytes_max,
        )
        connection.state = OPENING
        return connection

    # ----------------------------------------------------------------------------------- receiving

    def receive(self, data: bytes) -> list[Event]:
        """Return the events in the next bytes from the peer, and in those kept from before.

        Raises AMQPConnectionError as listed above. Bytes after an error or the close are ignored.
        """
        if self.is_broken and not self._is_closing_in_step():
            return []
        if self.has_more:
            self._tails.append(data)
            self._tail_bytes += len(data)
            return []
        frame = b""
        start = 0
        if self._tail_bytes or self._is_paused:
            missing = self._needed_bytes - self._tail_bytes
            self._tails.append(data)
            self._tail_bytes += len(data)
            if len(data) < missing or self._is_paused:
                if len(self._tails) >= _TAILS_MAX:
                    self._tails = [b"".join(self._tails)]
                return []
            if missing > 0 and self._needed_bytes > FRAME_HEADER_BYTES and len(data) > 2 * missing:
                # Parse the frame that was begun by itself, so that the rest need not be copied.
                start = missing
                self._tails[-1] = data[:start]
                frame = b"".join(self._tails)
            else:
                data = b"".join(self._tails)
            self._tails = []
            self._tail_bytes = 0
        self._events = []
        self._steps = 0
        try:
            if frame:
                self._parse(frame, 0)
                frame = b""
            used = self._parse(data, start)
        except AMQPConnectionError:
            is_raised = not self._is_closing()
            self._break(frame + data[start:] if frame else data)
            if is_raised:
                raise
            return self.events_before_error
        if used < len(data):
            self._tails = [data[used:]]
            self._tail_bytes = len(data) - used
        events = self._events
        self._events = []
        return events

    def go_on(self) -> list[Event]:
        """Return more events of what was received, as `receive` does, which stopped there."""
        self.has_more = False
        data = b"".join(self._tails)
        self._tails = []
        self._tail_bytes = 0
        return self.receive(data)

    @property
    def tail_bytes(self) -> int:
        """Return how many bytes were received that made no event yet."""
        return self._tail_bytes

    def leftover(self) -> bytes:
        """Return the bytes that made no event: a part of a frame, or all bytes after the pause."""
        return b"".join(self._tails)

    def channels(self) -> list[int]:
        """Return the numbers of the channels that are not closed."""
        return list(self._channels)

    def unfinished(self) -> dict[int, int]:
        """Return how many bytes of each channel's unfinished message are missing, -1 if its header
        is missing too; under 0 the bytes received of an unfinished frame, if there is one."""
        found = {
            number: -1 if channel.awaits == AWAITS_HEADER else channel.remaining_bytes
            for number, channel in self._channels.items()
            if channel.awaits != AWAITS_METHOD
        }
        if self._tail_bytes:
            found[0] = self._tail_bytes
        return found

    def forget_unfinished(self) -> None:
        """Discard unfinished messages and frames: the peer has gone."""
        for channel in self._channels.values():
            self._reset(channel, is_ready=False)
        self._tails = []
        self._tail_bytes = 0
        self.has_more = False

    # ------------------------------------------------------------------------------------- sending

    def send(self, channel: int, method: Method) -> bytes:
        """Return the frame of a method without content, and make its transition of state.

        A client's tune-ok sets frame_max, channel_max and heartbeat_s. Raises LocalProtocolError if
        the method may not be sent now.
        """
        if method.HAS_CONTENT:
            raise LocalProtocolError(f"{method.NAME} is sent with its content: send_content")
        self._check_out(channel, method)
        return method_frame(channel, method.encode())

    def send_content(self, channel: int, method: Method, properties: bytes, body: bytes) -> bytes:
        """Return the frames of a method with content. properties: flags and list, encoded."""
        if not method.HAS_CONTENT:
            raise LocalProtocolError(f"{method.NAME} has no content")
        self._check_out(channel, method)
        frame = method_frame(channel, method.encode())
        return frame + content_frames(channel, properties, body, self.frame_max)

    def send_publishes(self, channel: int, contents: list[tuple[bytes, bytes, bytes]]) -> bytes:
        """Return the frames of many basic.publish, in order. contents: of each its encoded method,
        the properties as for `send_content`, and the body."""
        self._check_out(channel, _ANY_PUBLISH)
        parts: list[bytes] = []
        for payload, properties, body in contents:
            parts.append(method_frame(channel, payload))
            parts.append(content_frames(channel, properties, body, self.frame_max))
        return b"".join(parts)

    def _check_out(self, number: int, method: Method) -> None:
        if number == 0:
            after = self._machines.connection_out.get((self.state, method.INDEX))
            if after is None:
                raise LocalProtocolError(
                    f"{method.NAME} while the connection is {self.state.value}"
                )
            if isinstance(method, ConnectionTuneOk):
                self._tuned(method)
            self._enter(after)
            return
        if self.state not in (OPEN, self._machines.peer_close):
            raise LocalProtocolError(f"{method.NAME} while the connection is {self.state.value}")
        channel = self._channels.get(number)
        state = CHANNEL_CLOSED if channel is None else channel.state
        next_state = self._machines.channel_out.get((state, method.INDEX))
        highest = CHANNEL_MAX if self._is_server else self.channel_max or CHANNEL_MAX
        if next_state is None or not 0 < number <= highest:
            raise LocalProtocolError(f"{method.NAME} while channel {number} is {state.value}")
        if channel is None:
            channel = ChannelInput(number)
            self._channels[number] = channel
        if next_state is not state:
            self._enter_channel(channel, next_state)

    # -------------------------------------------------------------------------------- the one pass

    def _parse(self, data: bytes, start: int) -> int:  # noqa: C901, PLR0915  # the one loop
        """Append the events of all whole frames from `start` on. Returns where the frames end."""
        at = start
        self._needed_bytes = FRAME_HEADER_BYTES
        if self.state is HEADER:
            at = self._take_protocol_header(data)
        end = len(data)
        payload_max = self._payload_max()
        body_max = min(self.spool_bytes, self.body_bytes_max)
        number = -1
        channel: ChannelInput | None = None
        # The run being filled, and the method frame of its last publish: most often the next one is
        # the same bytes, which need no second check.
        run: PublishRun | None = None
        same = b""
        route = b""
        while end - at >= 8 and not self._is_paused:
            if run is not None and data[at : at + len(same)] == same:
                whole = whole_publish(data, at + len(same), number, payload_max, body_max)
                if whole:
                    _add_publish(run, route, data, at + len(same), whole)
                    at = whole
                    continue
            size = (data[at + 3] << 24) | (data[at + 4] << 16) | (data[at + 5] << 8) | data[at + 6]
            if size > payload_max:
                raise self._too_large(size)
            frame_end = at + 8 + size
            if frame_end > end:
                self._needed_bytes = frame_end - at
                break
            if data[frame_end - 1] != 0xCE:
                raise self._out_of_step(f"a frame ends with octet {data[frame_end - 1]}, not 206")
            if (data[at + 1] << 8) | data[at + 2] != number:
                number = (data[at + 1] << 8) | data[at + 2]
                channel = self._channels.get(number)
                run = None
            if channel is not None and channel.is_ready and data[at] == 1 and size >= 9:
                index = (data[at + 7] << 24) | (data[at + 8] << 16) | (data[at + 9] << 8)
                index |= data[at + 10]
                if index == _PUBLISH and self._is_server:
                    whole = whole_publish(data, frame_end, number, payload_max, body_max)
                    if whole and is_route(data, at + 13, frame_end - 1):
                        if run is None:
                            run = self._publish_run(number)
                        same = data[at:frame_end]
                        route = data[at + 13 : frame_end - 1]
                        _add_publish(run, route, data, frame_end, whole)
                        at = whole
                        continue
                elif index == _ACK and size == 13:
                    run = None
                    self._add_ack(number, data, at + 11)
                    at = frame_end
                    continue
            if self._steps >= self.steps_max > 0:
                self.has_more = True
                break
            self._steps += 1 + size // STEP_BYTES if data[at] == FRAME_METHOD else 1
            self._frame_end = frame_end
            self._take_frame(data, at, frame_end)
            at = frame_end
            payload_max = self._payload_max()
            number = -1
            run = None
        is_header = self.state is HEADER
        if end - at == FRAME_HEADER_BYTES and not (is_header or self._is_paused):
            size = (data[at + 3] << 24) | (data[at + 4] << 16) | (data[at + 5] << 8) | data[at + 6]
            if size > payload_max:  # refuse it at once, not when its first byte arrives
                raise self._too_large(size)
        return at

    def _take_protocol_header(self, data: bytes) -> int:
        """Take the first eight bytes. A client gets a header only if the server refuses its own."""
        if len(data) < len(PROTOCOL_HEADER):
            return 0
        header = data[: len(PROTOCOL_HEADER)]
        if not self._is_server and not header.startswith(b"AMQP"):
            return 0
        is_supported = self._is_server and header == PROTOCOL_HEADER
        self._events.append(ProtocolHeaderReceived(is_supported, header))
        if not is_supported:
            self.is_broken = True
            self._is_in_step = False
            return len(data)
        self.state = START
        return len(header)

    def _publish_run(self, number: int) -> PublishRun:
        """Return the run for a publish on this channel: the last event, or a new one."""
        last = self._events[-1] if self._events else None
        if isinstance(last, PublishRun) and last.channel == number:
            return last
        run = PublishRun(number, [], [], [])
        self._events.append(run)
        return run

    def _add_ack(self, number: int, data: bytes, at: int) -> None:
        """Add the basic.ack whose fields begin at `at`."""
        last = self._events[-1] if self._events else None
        if not isinstance(last, AckRun) or last.channel != number:
            last = AckRun(number, [], [])
            self._events.append(last)
        tag = (data[at + 4] << 24) | (data[at + 5] << 16) | (data[at + 6] << 8) | data[at + 7]
        if data[at : at + 4] != b"\0\0\0\0":
            tag = int.from_bytes(data[at : at + 8], "big")
        last.tags.append(tag)
        last.multiples.append(data[at + 8] & 1 != 0)

    def _payload_max(self) -> int:
        """Return the most bytes that a frame of the peer may carry. By the specification frame_max
        includes the frame's own 8 bytes; many clients forget them, and RabbitMQ allows that."""
        return self.frame_max or self.body_bytes_max

    # -------------------------------------------------------------------------------------- frames

    def _take_frame(self, data: bytes, at: int, end: int) -> None:
        """Take one frame whose envelope is right."""
        kind = data[at]
        number = (data[at + 1] << 8) | data[at + 2]
        payload = data[at + 7 : end - 1]
        if self._is_closing():
            if number == 0 and kind == FRAME_METHOD:
                self._take_closing(payload)
        elif kind == FRAME_HEARTBEAT:
            if number != 0:
                raise _unexpected(f"a heartbeat on channel {number}")
            if payload:
                raise self._out_of_step("a heartbeat with a payload")
            self._events.append(HeartbeatReceived())
        elif kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY):
            raise self._out_of_step(f"a frame of the unknown type {kind}")
        elif number == 0:
            if kind != FRAME_METHOD:
                raise _unexpected("expected method frame, got non method frame instead")
            self._take_connection_method(payload)
        elif self.state is OPEN or self.state is OPENING:
            self._take_channel_frame(kind, number, payload)
        else:
            raise _unexpected(f"a frame on channel {number} in connection state {self.state.value}")

    def _take_channel_frame(self, kind: int, number: int, payload: bytes) -> None:
        channel = self._channels.get(number)
        if channel is None or channel.state is self._machines.channel_peer_close:
            self._take_unopened(kind, number, payload, channel)
        elif channel.state in self._machines.channel_discards:
            if kind == FRAME_METHOD and int.from_bytes(payload[:4], "big") in _CLOSES:
                self._take_channel_method(channel, payload)
        elif kind == FRAME_METHOD:
            if channel.awaits != AWAITS_METHOD:
                raise _unfinished(channel)
            self._take_channel_method(channel, payload)
        elif kind == FRAME_HEADER:
            self._take_header(channel, payload)
        else:
            self._take_body(channel, payload)

    def _take_unopened(
        self, kind: int, number: int, payload: bytes, channel: ChannelInput | None
    ) -> None:
        """Take a frame on a channel that is not open: only channel.open is allowed."""
        if kind != FRAME_METHOD:
            raise _unexpected("expected method frame, got non method frame instead")
        if channel is None:
            channel = ChannelInput(number)
        method = decode_method(payload)
        after = self._machines.channel_in.get((channel.state, method.INDEX))
        if after is None or channel.state is not CHANNEL_CLOSED:
            raise _of(method, CHANNEL_ERROR, "expected 'channel.open'")
        limit = self.channel_max or CHANNEL_MAX
        if len(self._channels) >= limit:  # as in RabbitMQ: how many, not which numbers
            text = f"number of channels opened ({len(self._channels)}) has reached the negotiated"
            raise _of(method, NOT_ALLOWED, f"{text} channel_max ({limit})")
        self._channels[number] = channel
        self._enter_channel(channel, after)
        self._events.append(MethodReceived(number, method))

    # ------------------------------------------------------------------------------------- methods

    def _take_connection_method(self, payload: bytes) -> None:
        method = decode_method(payload)
        after = self._machines.connection_in.get((self.state, method.INDEX))
        if after is None:
            text = f"unexpected method in connection state {self.state.value}"
            raise _of(method, CHANNEL_ERROR, text)
        if isinstance(method, ConnectionTuneOk):
            self._check_tune(method)
            self._tuned(method)
        self._enter(after)
        self._events.append(MethodReceived(0, method))
        if isinstance(method, ConnectionOpen):
            self._is_paused = self.pause_after_open

    def _take_closing(self, payload: bytes) -> None:
        """Take a method on channel 0 after a close: only the peer's close and close-ok count."""
        index = int.from_bytes(payload[:4], "big")
        after = self._machines.connection_in.get((self.state, index))
        if after is not None and index in _CLOSES:
            self._events.append(MethodReceived(0, decode_method(payload)))
            self._enter(after)

    def _take_channel_method(self, channel: ChannelInput, payload: bytes) -> None:
        number = channel.number
        if self._is_server and payload[:4] == b"\x00\x3c\x00\x28" and len(payload) > 6:
            if not is_route(payload, 6, len(payload)):
                decode_method(payload)  # raises the error
            channel.begin(payload[6:], None)
            self.unfinished_bytes += channel.held_bytes
            return
        try:
            method = decode_method(payload, ARGUMENTS_BYTES_MAX if self._is_server else 0)
        except ChannelError as error:
            self._fault(channel, error)
            return
        after = self._machines.channel_in.get((channel.state, method.INDEX))
        if after is None:
            if isinstance(method, ChannelOpen):
                raise _of(method, CHANNEL_ERROR, "second 'channel.open' seen")
            raise _of(method, COMMAND_INVALID, "unimplemented method")
        if method.HAS_CONTENT:
            channel.begin(payload, method)
            self.unfinished_bytes += channel.held_bytes
            return
        if after is not channel.state:
            self._enter_channel(channel, after)
        self._events.append(MethodReceived(number, method, len(payload)))

    # ------------------------------------------------------------------------------------- content

    def _take_header(self, channel: ChannelInput, payload: bytes) -> None:
        if channel.awaits != AWAITS_HEADER:
            raise _unfinished(channel)
        if len(payload) < 14:
            raise AMQPConnectionError(FRAME_ERROR, f"a content header of {len(payload)} bytes")
        if payload[:4] != b"\x00\x3c\x00\x00":
            class_id = int.from_bytes(payload[:2], "big")
            if class_id == _PUBLISH >> 16:  # its weight is not 0
                raise _unfinished(channel)
            text = f"expected content header for class 60, got one for class {class_id} instead"
            raise AMQPConnectionError(UNEXPECTED_FRAME, text, *_content_ids(channel))
        size = int.from_bytes(payload[4:12], "big")
        if size > self.body_bytes_max:
            text = f"message size {size} is larger than configured max size {self.body_bytes_max}"
            self._fault(
                channel,
                ChannelError(PRECONDITION_FAILED, text, _PUBLISH >> 16, _PUBLISH & 0xFFFF),
            )
            return
        header = payload[12:]
        is_spooling = self._is_server and size > self.spool_bytes
        room = self.room
        if room is not None and size > ROOMLESS_BYTES and not is_spooling:
            if room.take(size):
                channel.room_bytes = size
            else:
                is_spooling = True
        channel.begin_body(header, size, is_spooling)
        self.unfinished_bytes += len(header)
        if is_spooling:
            self._events.append(PublishBegan(channel.number, channel.route, header, size))
        elif size == 0:
            self._take_whole(channel)

    def _take_body(self, channel: ChannelInput, payload: bytes) -> None:
        if channel.awaits != AWAITS_BODY:
            raise _unfinished(channel)
        size = len(payload)
        if size > channel.remaining_bytes:
            more = size - channel.remaining_bytes
            raise _unexpected(f"a content body of {more} bytes more than its header says")
        if size == 0:
            return
        channel.remaining_bytes -= size
        if channel.is_spooling:
            self._events.append(PublishPart(channel.number, payload))
        else:
            channel.add(payload)
            self.unfinished_bytes += size
        if channel.remaining_bytes == 0:
            self._take_whole(channel)

    def _take_whole(self, channel: ChannelInput) -> None:
        """Report the message that was being assembled, which is whole now."""
        method = channel.method
        if channel.is_spooling:
            self._events.append(PublishEnded(channel.number))
        elif method is not None:
            body = channel.body()
            self._events.append(MessageReceived(channel.number, method, channel.header, body))
        else:
            run = self._publish_run(channel.number)
            run.routes.append(channel.route)
            run.headers.append(channel.header)
            run.bodies.append(channel.body())
        self._reset(channel, is_ready=True)

    def _fault(self, channel: ChannelInput, error: ChannelError) -> None:
        """Ignore the channel from now on; the owner has to close it with this error."""
        channel.state = CHANNEL_FAULTED
        self._reset(channel, is_ready=False)
        self._events.append(ChannelFault(channel.number, error))

    def _reset(self, channel: ChannelInput, *, is_ready: bool) -> None:
        self.unfinished_bytes -= channel.held_bytes
        if self.room is not None:
            self.room.taken_bytes -= channel.room_bytes
        channel.reset(is_ready)

    # -------------------------------------------------------------------------------------- states

    def _enter(self, state: ConnectionState) -> None:
        """Set the state of the connection. A closing connection takes nothing on any channel."""
        self.state = state
        if self._is_closing():
            for channel in self._channels.values():
                self._reset(channel, is_ready=False)
        if state is CLOSED:
            self._channels.clear()

    def _enter_channel(self, channel: ChannelInput, state: ChannelState) -> None:
        channel.state = state
        if state is CHANNEL_CLOSED:
            self._reset(channel, is_ready=False)
            del self._channels[channel.number]
        elif state not in (CHANNEL_OPEN, CHANNEL_OPENING):
            self._reset(channel, is_ready=False)
        elif channel.awaits == AWAITS_METHOD:
            channel.is_ready = not self._is_closing()

    def _is_closing(self) -> bool:
        return self.state in _CLOSING

    def _is_closing_in_step(self) -> bool:
        """Return whether we have sent close, and the peer's frames can still be told apart."""
        ours = (self._machines.own_close, BOTH_CLOSING)
        return self._is_in_step and self.state in ours

    def _tuned(self, tune_ok: ConnectionTuneOk) -> None:
        self.frame_max = tune_ok.frame_max
        self.channel_max = tune_ok.channel_max
        self.heartbeat_s = tune_ok.heartbeat

    def _check_tune(self, tune_ok: ConnectionTuneOk) -> None:
        """Check that the client asks for no more than was offered; 0 means no limit."""
        if 0 < tune_ok.frame_max < FRAME_MAX_MIN:
            given = f"negotiated frame_max = {tune_ok.frame_max} is lower than the minimum allowed"
            raise _of(tune_ok, NOT_ALLOWED, f"{given} value ({FRAME_MAX_MIN})")
        for name, asked, offered in (
            ("frame_max", tune_ok.frame_max, self.frame_max),
            ("channel_max", tune_ok.channel_max, self.channel_max),
        ):
            if offered and (asked == 0 or asked > offered):
                given = f"negotiated {name} = {asked} is higher than the maximum allowed"
                raise _of(tune_ok, NOT_ALLOWED, f"{given} value ({offered})")

    # -------------------------------------------------------------------------------------- errors

    def _break(self, data: bytes) -> None:
        """Stop after an error. Keeps the events before it, and the bytes after its frame if frames
        can still be told apart."""
        self.is_broken = True
        self.events_before_error = self._events
        self._events = []
        for channel in self._channels.values():
            self._reset(channel, is_ready=False)
        if self._is_in_step and self._frame_end < len(data):
            self._tails = [data[self._frame_end :]]
            self._tail_bytes = len(data) - self._frame_end
            self._needed_bytes = FRAME_OVERHEAD_BYTES

    def _out_of_step(self, text: str) -> AMQPConnectionError:
        self._is_in_step = False
        return AMQPConnectionError(FRAME_ERROR, text)

    def _too_large(self, size: int) -> AMQPConnectionError:
        limit = self._payload_max()
        return self._out_of_step(f"frame of {size} bytes of payload, more than frame_max: {limit}")


def is_route(data: bytes, at: int, end: int) -> bool:
    """Return whether data[at:end] is exactly a publish's exchange, routing key and bits."""
    if end - at < 3:
        return False
    at += 1 + data[at]
    if end - at < 2:
        return False
    return at + data[at] + 2 == end


def whole_publish(data: bytes, at: int, number: int, frame_payload_max: int, body_max: int) -> int:
    """Return where the message ends whose content header frame begins at `at`; 0 if unsure.

    It is sure if the header and the body, in one frame or none, are whole, belong to channel
    `number` and have no mistake. Otherwise the frames go the long way, which finds the mistake if
    there is one.
    """
    end = len(data)
    # The smallest header frame: envelope 8, class 2, weight 2, body size 8, flags 2.
    if end - at < 22 or data[at] != 2 or (data[at + 1] << 8) | data[at + 2] != number:
        return 0
    size = (data[at + 3] << 24) | (data[at + 4] << 16) | (data[at + 5] << 8) | data[at + 6]
    body_at = at + 8 + size
    if size < 14 or size > frame_payload_max or body_at > end or data[body_at - 1] != 0xCE:
        return 0
    # Class 60, weight 0, and a body below 4 GiB.
    if data[at + 7 : at + 15] != b"\x00\x3c\x00\x00\x00\x00\x00\x00":
        return 0
    size = (data[at + 15] << 24) | (data[at + 16] << 16) | (data[at + 17] << 8) | data[at + 18]
    if size == 0:
        return body_at
    if size > body_max or size > frame_payload_max:
        return 0
    return _whole_body(data, body_at, number, size)


def _whole_body(data: bytes, at: int, number: int, size: int) -> int:
    """Return where the body frame at `at` ends if it holds a whole body of this size; else 0."""
    end = at + 8 + size
    if end > len(data) or data[at] != 3 or data[end - 1] != 0xCE:
        return 0
    if (data[at + 1] << 8) | data[at + 2] != number:
        return 0
    held = (data[at + 3] << 24) | (data[at + 4] << 16) | (data[at + 5] << 8) | data[at + 6]
    return end if held == size else 0


def _add_publish(run: PublishRun, route: bytes, data: bytes, at: int, end: int) -> None:
    """Add a whole publish. at: its content header frame; end: where its last frame ends."""
    size = (data[at + 3] << 24) | (data[at + 4] << 16) | (data[at + 5] << 8) | data[at + 6]
    body_at = at + 8 + size
    header = data[at + 19 : body_at - 1]
    # Equal properties are one object, so their reader can remember the last one.
    if run.headers and run.headers[-1] == header:
        header = run.headers[-1]
    run.routes.append(route)
    run.headers.append(header)
    run.bodies.append(data[body_at + 7 : end - 1] if end > body_at else b"")


def _unexpected(text: str) -> AMQPConnectionError:
    return AMQPConnectionError(UNEXPECTED_FRAME, text)


def _unfinished(channel: ChannelInput) -> AMQPConnectionError:
    """Return the error for a frame that does not continue the channel's message."""
    if channel.awaits == AWAITS_METHOD:
        return _unexpected("expected method frame, got non method frame instead")
    text = "expected content body, got non content body frame instead"
    if channel.awaits == AWAITS_HEADER:
        text = "expected content header for class 60, got non content header frame instead"
    return AMQPConnectionError(UNEXPECTED_FRAME, text, *_content_ids(channel))


def _content_ids(channel: ChannelInput) -> tuple[int, int]:
    """Return the class and method of the message that is being assembled."""
    method = channel.method
    if method is None:
        return _PUBLISH >> 16, _PUBLISH & 0xFFFF
    return method.CLASS_ID, method.METHOD_ID


def _of(method: Method, code: int, text: str) -> AMQPConnectionError:
    return AMQPConnectionError(code, text, method.CLASS_ID, method.METHOD_ID)
