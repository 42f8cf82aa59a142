"""Connection: one end of an AMQP connection without I/O. Bytes in, events out, and bytes to send.

One parser for everything that comes. It looks three frames ahead: a publish whose method, header
and body lie whole in the chunk is taken in one pass, into the run of publishes it belongs to. All
else goes the long way, frame by frame: machine.py, where the states and the reply codes are.

Untrusted sizes. A frame's size is checked against frame_max before anything else, a body's against
body_bytes_max, a field's against its frame. So at most one frame is held that is not whole, and
`unfinished_bytes` of bodies, which the owner bounds by not reading any more. A body beyond
spool_bytes is handed on in parts, and one beyond 64 KiB that finds no place in `room`.

Errors. What the peer did wrong is raised as AMQPConnectionError, with RabbitMQ's reply codes and,
where clients show them, its words; `events_before_error` has what the same bytes told before. The
owner then sends connection.close; `receive` gives nothing more but the peer's close or close-ok,
if the frames can still be told apart. Sending what the protocol does not allow is a
ProtocolMistake.

What methods mean is not here; nor heartbeats' times, nor writing: messages in bulk are written by
their senders with codec.frames.
"""

from typing import Final

from penstock.codec.frames import (
    FRAME_OVERHEAD_BYTES,
    PROTOCOL_HEADER,
    content_frames,
    method_frame,
)
from penstock.codec.method import Method
from penstock.codec.spec import ConnectionTuneOk
from penstock.errors import AMQPConnectionError
from penstock.protocol.content import (
    AWAITS_HEADER,
    AWAITS_METHOD,
    ChannelInput,
    is_route,
    whole_publish,
)
from penstock.protocol.events import AckRun, Event, ProtocolHeaderReceived, PublishRun
from penstock.protocol.machine import CHANNEL_MAX, ConnectionMachine
from penstock.protocol.states import ChannelState, ConnectionState, ProtocolMistake, Role

SERVER: Final = Role.SERVER
CLIENT: Final = Role.CLIENT

_PUBLISH: Final = 0x003C0028
_ACK: Final = 0x003C0050

FRAME_HEADER_BYTES: Final = FRAME_OVERHEAD_BYTES - 1  # type, channel, size

# Tails that are not yet a frame are joined when there are so many: a peer that sends byte by byte
# costs neither a copy per byte nor an object per byte.
_TAILS_MAX: Final = 64


class Connection(ConnectionMachine):
    """One end of a connection: receive what came, send what is to go.

    frame_max: bytes of the longest frame, 0 for no limit; lowered by tune-ok. channel_max: the
    highest channel. spool_bytes: a published body larger than this comes in parts.
    body_bytes_max: a larger body is a ChannelFault. pause_after_open: stop behind connection.open;
    all later bytes are `leftover`, for the process that the connection is handed to.
    """

    @classmethod
    def resumed(
        cls,
        frame_max: int,
        channel_max: int,
        *,
        spool_bytes: int = 1 << 20,
        body_bytes_max: int = 128 << 20,
    ) -> "Connection":
        """A server's connection whose connection.open was read elsewhere: it owes open-ok."""
        connection = Connection(
            SERVER,
            frame_max=frame_max,
            channel_max=channel_max,
            spool_bytes=spool_bytes,
            body_bytes_max=body_bytes_max,
        )
        connection.state = ConnectionState.OPENING
        return connection

    # ---------------------------------------------------------------------------- receiving

    def receive(self, data: bytes) -> list[Event]:
        """The events in the next bytes from the peer, and in those kept from before.

        AMQPConnectionError: see above. Bytes after an error, or after the close, tell nothing.
        """
        if self.is_broken and not self._is_closing_in_step():
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
                # The frame that was begun goes by itself, so that the rest need not be copied.
                start = missing
                self._tails[-1] = data[:start]
                frame = b"".join(self._tails)
            else:
                data = b"".join(self._tails)
            self._tails = []
            self._tail_bytes = 0
        self._events = []
        try:
            if frame:
                self._parse(frame, 0)
                frame = b""
            used = self._parse(data, start)
        except AMQPConnectionError:
            is_told = not self._is_closing()
            self._break(frame + data[start:] if frame else data)
            if is_told:
                raise
            return self.events_before_error
        if used < len(data):
            self._tails = [data[used:]]
            self._tail_bytes = len(data) - used
        events = self._events
        self._events = []
        return events

    def leftover(self) -> bytes:
        """The bytes that came and told nothing yet: a part of a frame, or all since the pause."""
        return b"".join(self._tails)

    def is_channel_open(self, channel: int) -> bool:
        """Whether the peer may use the channel and we have not closed it."""
        known = self._channels.get(channel)
        return known is not None and known.state in (ChannelState.OPENING, ChannelState.OPEN)

    def channel_state(self, channel: int) -> ChannelState:
        """The state of a channel's machine."""
        known = self._channels.get(channel)
        return ChannelState.CLOSED if known is None else known.state

    def channels(self) -> list[int]:
        """The channels that are not closed."""
        return list(self._channels)

    def unfinished(self) -> dict[int, int]:
        """Channel -> bytes of its unfinished message that are still to come, -1 if even its header
        is; 0 -> bytes of a frame that has begun, if there is one."""
        found = {
            number: -1 if channel.awaits == AWAITS_HEADER else channel.remaining_bytes
            for number, channel in self._channels.items()
            if channel.awaits != AWAITS_METHOD
        }
        if self._tail_bytes:
            found[0] = self._tail_bytes
        return found

    def forget_unfinished(self) -> None:
        """The peer has gone: what it has begun will not end."""
        for channel in self._channels.values():
            self._reset(channel, is_ready=False)
        self._tails = []
        self._tail_bytes = 0

    # ------------------------------------------------------------------------------ sending

    def send(self, channel: int, method: Method) -> bytes:
        """The frame of a method without content, after which the machines are where it leads.

        ProtocolMistake if it may not be sent now. A client's tune-ok sets frame_max, channel_max
        and heartbeat_s.
        """
        if method.HAS_CONTENT:
            raise ProtocolMistake(f"{method.NAME} is sent with its content: send_content")
        self._check_out(channel, method)
        return method_frame(channel, method.encode())

    def send_content(self, channel: int, method: Method, properties: bytes, body: bytes) -> bytes:
        """The frames of a method with content. properties: flags and list."""
        if not method.HAS_CONTENT:
            raise ProtocolMistake(f"{method.NAME} has no content")
        self._check_out(channel, method)
        frame = method_frame(channel, method.encode())
        return frame + content_frames(channel, properties, body, self.frame_max)

    def protocol_header(self) -> bytes:
        """What a client sends first, and a server to a client whose header it does not support."""
        return PROTOCOL_HEADER

    def _check_out(self, number: int, method: Method) -> None:
        if number == 0:
            after = self._machines.connection_out.get((self.state, method.INDEX))
            if after is None:
                raise ProtocolMistake(f"{method.NAME} while the connection is {self.state.value}")
            if isinstance(method, ConnectionTuneOk):
                self._tuned(method)
            self._enter(after)
            return
        if self.state not in (ConnectionState.OPEN, self._machines.peer_close):
            raise ProtocolMistake(f"{method.NAME} while the connection is {self.state.value}")
        channel = self._channels.get(number)
        state = ChannelState.CLOSED if channel is None else channel.state
        next_state = self._machines.channel_out.get((state, method.INDEX))
        highest = CHANNEL_MAX if self._is_server else self.channel_max or CHANNEL_MAX
        if next_state is None or not 0 < number <= highest:
            raise ProtocolMistake(f"{method.NAME} while channel {number} is {state.value}")
        if channel is None:
            channel = ChannelInput(number)
            self._channels[number] = channel
        if next_state is not state:
            self._enter_channel(channel, next_state)

    # -------------------------------------------------------------------------------- parse

    def _parse(self, data: bytes, start: int) -> int:  # noqa: C901, PLR0915  # the one loop
        """Take all whole frames from `start` on into `_events`; returns where they end."""
        at = start
        self._needed_bytes = FRAME_HEADER_BYTES
        if self.state is ConnectionState.HEADER:
            at = self._take_protocol_header(data)
        end = len(data)
        payload_max = self._payload_max()
        body_max = min(self.spool_bytes, self.body_bytes_max)
        number = -1
        channel: ChannelInput | None = None
        # The run of publishes that is going on, and the last one's method frame: most often the
        # next is the same bytes, which then need no second look.
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
            self._frame_end = frame_end
            self._take_frame(data, at, frame_end)
            at = frame_end
            payload_max = self._payload_max()
            number = -1
            run = None
        is_header = self.state is ConnectionState.HEADER
        if end - at == FRAME_HEADER_BYTES and not (is_header or self._is_paused):
            size = (data[at + 3] << 24) | (data[at + 4] << 16) | (data[at + 5] << 8) | data[at + 6]
            if size > payload_max:  # it is told at once, not when a first byte follows
                raise self._too_large(size)
        return at

    def _take_protocol_header(self, data: bytes) -> int:
        """The first eight bytes: a header for the server; for a client only if it is refused."""
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
        self.state = ConnectionState.START
        return len(header)

    def _add_ack(self, number: int, data: bytes, at: int) -> None:
        """A basic.ack, its fields at `at`."""
        last = self._events[-1] if self._events else None
        if not isinstance(last, AckRun) or last.channel != number:
            last = AckRun(number, [], [])
            self._events.append(last)
        last.tags.append(int.from_bytes(data[at : at + 8], "big"))
        last.multiples.append(data[at + 8] & 1 != 0)

    # ------------------------------------------------------------------------------- errors

    def _break(self, data: bytes) -> None:
        """After an error: keep what it told before, and, in step, what is behind its frame."""
        self.is_broken = True
        self.events_before_error = self._events
        self._events = []
        for channel in self._channels.values():
            self._reset(channel, is_ready=False)
        if self._is_in_step and self._frame_end < len(data):
            self._tails = [data[self._frame_end :]]
            self._tail_bytes = len(data) - self._frame_end
            self._needed_bytes = FRAME_OVERHEAD_BYTES


def _add_publish(run: PublishRun, route: bytes, data: bytes, at: int, end: int) -> None:
    """A publish that is whole: its content header frame at `at`, the end of its body."""
    size = (data[at + 3] << 24) | (data[at + 4] << 16) | (data[at + 5] << 8) | data[at + 6]
    body_at = at + 8 + size
    header = data[at + 19 : body_at - 1]
    # Equal properties are one object, so what looks at them can remember the last.
    if run.headers and run.headers[-1] == header:
        header = run.headers[-1]
    run.routes.append(route)
    run.headers.append(header)
    run.bodies.append(data[body_at + 7 : end - 1] if end > body_at else b"")
