"""ConnectionMachine: a connection's states, and the long way of a frame through them.

Every frame that connection.py does not take in one pass comes here with its envelope checked, and
goes through the tables of states.py; content.py holds what is being assembled. Events are appended
to `_events`, in order. What the peer did wrong is raised as AMQPConnectionError:

    501 FRAME_ERROR       type of a frame, a header too short, fields that do not fill a method
    503 COMMAND_INVALID   a method that is unknown, or not for this side, or not for a channel
    504 CHANNEL_ERROR     a channel that is not open, or opened twice; channel 0 out of order
    505 UNEXPECTED_FRAME  content without method, method within content, frames before open
    530 NOT_ALLOWED       tune-ok asks for more than tune offered

The codes are RabbitMQ's, and the texts where clients show them. Where it fails without one (an
unknown method, a body longer than its header says) they are the specification's. A body beyond
body_bytes_max, or a table of more than ARGUMENTS_BYTES_MAX in the arguments of a method, closes the
channel only: ChannelFault. Bytes, frames and sending: connection.py.
"""

from typing import Final

from penstock.codec.fields import ARGUMENTS_BYTES_MAX
from penstock.codec.frames import (
    FRAME_BODY,
    FRAME_HEADER,
    FRAME_HEARTBEAT,
    FRAME_MAX_MIN,
    FRAME_METHOD,
    FRAME_OVERHEAD_BYTES,
)
from penstock.codec.method import Method, decode_fields
from penstock.codec.spec import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    FRAME_ERROR,
    METHODS,
    NOT_ALLOWED,
    PRECONDITION_FAILED,
    UNEXPECTED_FRAME,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionTuneOk,
    decode_method,
)
from penstock.errors import AMQPConnectionError, ChannelError
from penstock.protocol.content import (
    AWAITS_BODY,
    AWAITS_HEADER,
    AWAITS_METHOD,
    BodyRoom,
    ChannelInput,
    is_route,
)
from penstock.protocol.events import (
    ChannelFault,
    Event,
    HeartbeatReceived,
    MessageReceived,
    MethodReceived,
    PublishBegan,
    PublishEnded,
    PublishPart,
    PublishRun,
)
from penstock.protocol.states import ChannelState, ConnectionState, Machines, Role

_PUBLISH: Final = 0x003C0028
CHANNEL_MAX: Final = 65535
ROOMLESS_BYTES: Final = 64 << 10  # a smaller body is always assembled in RAM

# The peer's answers that count after a close.
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


class ConnectionMachine:
    """The states of a connection and of its channels. Connection is the whole of it."""

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
        self.state = ConnectionState.HEADER
        self.frame_max = frame_max
        self.channel_max = channel_max
        self.heartbeat_s = 0
        self.spool_bytes = spool_bytes
        self.body_bytes_max = body_bytes_max
        self.pause_after_open = pause_after_open
        self.is_broken = False
        self.events_before_error: list[Event] = []
        self.room: BodyRoom | None = None  # for larger bodies; None: there is always room
        self.unfinished_bytes = 0  # of messages that are being assembled, on all channels
        self._is_server = role is Role.SERVER
        self._machines = Machines(role)
        self._channels: dict[int, ChannelInput] = {}
        self._events: list[Event] = []
        self._is_paused = False
        self._is_in_step = True  # where the next frame begins is known
        self._frame_end = 0  # in the bytes being read: behind the frame that is being handled
        # What is not yet a frame, how much that is, and how much is needed to go on.
        self._tails: list[bytes] = []
        self._tail_bytes = 0
        self._needed_bytes = FRAME_OVERHEAD_BYTES

    def _publish_run(self, number: int) -> PublishRun:
        """The run that a publish on this channel belongs to: the last event, or a new one."""
        last = self._events[-1] if self._events else None
        if isinstance(last, PublishRun) and last.channel == number:
            return last
        run = PublishRun(number, [], [], [])
        self._events.append(run)
        return run

    def _payload_max(self) -> int:
        """What a frame of the peer may carry. By the specification frame_max counts the frame's own
        8 bytes; many clients are off by them, and RabbitMQ takes what they send."""
        return self.frame_max or self.body_bytes_max

    # --------------------------------------------------------------------- the long way: frames

    def _take_frame(self, data: bytes, at: int, end: int) -> None:
        """One frame, whose envelope is right."""
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
        elif self.state is ConnectionState.OPEN or self.state is ConnectionState.OPENING:
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
        """A frame on a channel that is not open: only channel.open is right."""
        if kind != FRAME_METHOD:
            raise _unexpected("expected method frame, got non method frame instead")
        if channel is None:
            channel = ChannelInput(number)
        method = decode_method(payload)
        after = self._machines.channel_in.get((channel.state, method.INDEX))
        if after is None or channel.state is not ChannelState.CLOSED:
            raise _of(method, CHANNEL_ERROR, "expected 'channel.open'")
        limit = self.channel_max or CHANNEL_MAX
        if len(self._channels) >= limit:  # how many, as in RabbitMQ, and not which numbers
            text = f"number of channels opened ({len(self._channels)}) has reached the negotiated"
            raise _of(method, NOT_ALLOWED, f"{text} channel_max ({limit})")
        self._channels[number] = channel
        self._enter_channel(channel, after)
        self._events.append(MethodReceived(number, method))

    # ------------------------------------------------------------------- the long way: methods

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
        """A method on channel 0 after a close: only the peer's close and close-ok count."""
        index = int.from_bytes(payload[:4], "big")
        after = self._machines.connection_in.get((self.state, index))
        if after is not None and index in _CLOSES:
            self._events.append(MethodReceived(0, decode_method(payload)))
            self._enter(after)

    def _take_channel_method(self, channel: ChannelInput, payload: bytes) -> None:
        number = channel.number
        if self._is_server and payload[:4] == b"\x00\x3c\x00\x28" and len(payload) > 6:
            if not is_route(payload, 6, len(payload)):
                decode_method(payload)  # raises what is wrong
            channel.begin(payload[6:], None)
            self._count(channel.held_bytes)
            return
        try:
            method = decode_fields(METHODS, payload, ARGUMENTS_BYTES_MAX if self._is_server else 0)
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
            self._count(channel.held_bytes)
            return
        if after is not channel.state:
            self._enter_channel(channel, after)
        self._events.append(MethodReceived(number, method))

    # ------------------------------------------------------------------- the long way: content

    def _take_header(self, channel: ChannelInput, payload: bytes) -> None:
        if channel.awaits != AWAITS_HEADER:
            raise _unfinished(channel)
        if len(payload) < 14:
            raise AMQPConnectionError(FRAME_ERROR, f"a content header of {len(payload)} bytes")
        if payload[:4] != b"\x00\x3c\x00\x00":
            class_id = int.from_bytes(payload[:2], "big")
            if class_id == _PUBLISH >> 16:  # of a weight that is not 0
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
        self._count(len(header))
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
            self._count(size)
        if channel.remaining_bytes == 0:
            self._take_whole(channel)

    def _take_whole(self, channel: ChannelInput) -> None:
        """The message that was being assembled is whole."""
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
        """The channel takes nothing more: the owner is to close it with this error."""
        channel.state = ChannelState.FAULTED
        self._reset(channel, is_ready=False)
        self._events.append(ChannelFault(channel.number, error))

    def _reset(self, channel: ChannelInput, *, is_ready: bool) -> None:
        self._count(-channel.held_bytes)
        if self.room is not None:
            self.room.taken_bytes -= channel.room_bytes
        channel.reset(is_ready)

    def _count(self, change_bytes: int) -> None:
        self.unfinished_bytes += change_bytes

    # ------------------------------------------------------------------------------- states

    def _enter(self, state: ConnectionState) -> None:
        """The connection's next state. Once it is being closed no channel takes anything."""
        self.state = state
        if self._is_closing():
            for channel in self._channels.values():
                self._reset(channel, is_ready=False)
        if state is ConnectionState.CLOSED:
            self._channels.clear()

    def _enter_channel(self, channel: ChannelInput, state: ChannelState) -> None:
        channel.state = state
        if state is ChannelState.CLOSED:
            self._reset(channel, is_ready=False)
            del self._channels[channel.number]
        elif state not in (ChannelState.OPEN, ChannelState.OPENING):
            self._reset(channel, is_ready=False)
        elif channel.awaits == AWAITS_METHOD:
            channel.is_ready = not self._is_closing()

    def _is_closing(self) -> bool:
        return self.state in _CLOSING

    def _is_closing_in_step(self) -> bool:
        """Whether we have sent close, and can still tell the peer's frames apart."""
        ours = (self._machines.own_close, ConnectionState.BOTH_CLOSING)
        return self._is_in_step and self.state in ours

    def _tuned(self, tune_ok: ConnectionTuneOk) -> None:
        self.frame_max = tune_ok.frame_max
        self.channel_max = tune_ok.channel_max
        self.heartbeat_s = tune_ok.heartbeat

    def _check_tune(self, tune_ok: ConnectionTuneOk) -> None:
        """The client may ask for less than was offered, for 0 (no limit) only if that was."""
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

    # ------------------------------------------------------------------------------- errors

    def _out_of_step(self, text: str) -> AMQPConnectionError:
        self._is_in_step = False
        return AMQPConnectionError(FRAME_ERROR, text)

    def _too_large(self, size: int) -> AMQPConnectionError:
        limit = self._payload_max()
        return self._out_of_step(f"frame of {size} bytes of payload, more than frame_max: {limit}")


def _unexpected(text: str) -> AMQPConnectionError:
    return AMQPConnectionError(UNEXPECTED_FRAME, text)


def _unfinished(channel: ChannelInput) -> AMQPConnectionError:
    """Another frame came than the one that the channel's message goes on with."""
    if channel.awaits == AWAITS_METHOD:
        return _unexpected("expected method frame, got non method frame instead")
    text = "expected content body, got non content body frame instead"
    if channel.awaits == AWAITS_HEADER:
        text = "expected content header for class 60, got non content header frame instead"
    return AMQPConnectionError(UNEXPECTED_FRAME, text, *_content_ids(channel))


def _content_ids(channel: ChannelInput) -> tuple[int, int]:
    """Class and method of the message that a channel is being sent."""
    method = channel.method
    if method is None:
        return _PUBLISH >> 16, _PUBLISH & 0xFFFF
    return method.CLASS_ID, method.METHOD_ID


def _of(method: Method, code: int, text: str) -> AMQPConnectionError:
    return AMQPConnectionError(code, text, method.CLASS_ID, method.METHOD_ID)
