"""Output: what a connection has to say, gathered until the end of the turn.

Frames of all channels of a connection go into one buffer in the order they are made; the end of the
turn hands it to the transport. A body of 8 KiB or more is not copied into it: it stands between two
pieces of the buffer as it is, and the transport sends the pieces together. A buffer of more than
128 KiB counts as full: nothing more is delivered to that client in this turn. (Much larger buffers
cost more per delivery, in page faults, than the writes that they save.) Answers, confirms and
returns still get in; a client that does not read them is not read either.

**Large bodies** (large_content.py) are no part of the buffer. The frames of one content must follow
one another on their channel, so from its header frame on, until its last body frame, what else the
channel has to say waits in a *lane*; other channels go on in the buffer. Whoever has the transport
asks for the next piece when there is room for one (`next_frames`): channels take turns, a piece
each.
"""

from collections import deque
from typing import Final

from librt.strings import BytesWriter

from penstock.broker.dispatch import Dispatch
from penstock.broker.large_content import PIECE_BYTES, LargeContent
from penstock.broker.roles import Peer
from penstock.codec.frames import method_frame
from penstock.codec.method import Method

FULL_BYTES: Final = 128 << 10


class Lane:
    """What one channel has to say: a large body that is on its way, and what is behind it."""

    def __init__(self, content: LargeContent) -> None:
        self.content: LargeContent = content
        self.writer: BytesWriter = BytesWriter()  # behind all else
        self._behind: deque[bytes | LargeContent] = deque()
        self._behind_bytes: int = 0

    def add(self, content: LargeContent) -> None:
        """Another large body, whose header frame was written last."""
        self._write(self.writer.getvalue())
        self.writer = BytesWriter()
        self._behind.append(content)

    def put(self, data: bytes) -> BytesWriter:
        """See Output.put."""
        self._write(self.writer.getvalue())
        self._write(data)
        self.writer = BytesWriter()
        return self.writer

    def _write(self, data: bytes) -> None:
        self._behind.append(data)
        self._behind_bytes += len(data)

    def go_on(self, parts: list[bytes]) -> bool:
        """The body was sent: add to `parts` what is behind it, up to the next large body. False:
        there is none, and the lane is at its end."""
        behind = self._behind
        while behind:
            item = behind.popleft()
            if isinstance(item, LargeContent):
                self.content = item
                return True
            self._behind_bytes -= len(item)
            parts.append(item)
        if len(self.writer):
            parts.append(self.writer.getvalue())
        return False

    def waiting_bytes(self) -> int:
        """Bytes of frames that wait behind the body."""
        return self._behind_bytes + len(self.writer)

    def contents(self) -> list[LargeContent]:
        """The large bodies that were not sent."""
        return [self.content, *[item for item in self._behind if isinstance(item, LargeContent)]]


class Output:
    """Of one connection. frame_max: as it was tuned. `sender` is asked to flush at the end of each
    turn in which there was something."""

    def __init__(self, dispatch: Dispatch, frame_max: int) -> None:
        self.frame_max: int = frame_max
        self.sender: Peer | None = None
        self._dispatch: Dispatch = dispatch
        self._writer: BytesWriter = BytesWriter()
        self._pieces: list[bytes] = []  # what was written before the last body that stands apart
        self._piece_bytes: int = 0
        self._is_due: bool = False
        self._lanes: dict[int, Lane] = {}  # by channel, whose turn is next first

    def writer(self, channel: int) -> BytesWriter:
        """Where whole frames of this channel are written to, now."""
        if not self._is_due and self.sender is not None:
            self._is_due = True
            self._dispatch.sends(self.sender)
        if self._lanes:
            lane = self._lanes.get(channel)
            if lane is not None:
                return lane.writer
        return self._writer

    def send(self, channel: int, method: Method) -> None:
        """A method without content."""
        self.writer(channel).write(method_frame(channel, method.encode()))

    def put(self, channel: int, data: bytes) -> BytesWriter:
        """Bytes that are large enough not to be copied. Where to write on, behind them."""
        if self._lanes:
            lane = self._lanes.get(channel)
            if lane is not None:
                return lane.put(data)
        written = self._writer.getvalue()
        self._pieces.append(written)
        self._pieces.append(data)
        self._piece_bytes += len(written) + len(data)
        self._writer = BytesWriter()
        return self._writer

    def is_full(self) -> bool:
        """Whether nothing more should be delivered in this turn."""
        return self._piece_bytes + len(self._writer) >= FULL_BYTES

    def has_frames(self) -> bool:
        """Whether there is anything to `take`."""
        return self._piece_bytes + len(self._writer) > 0

    def take(self) -> list[bytes]:
        """All there is, in order; the buffer is empty then."""
        pieces = self._pieces
        if len(self._writer):
            pieces.append(self._writer.getvalue())
            self._writer = BytesWriter()
        self._pieces = []
        self._piece_bytes = 0
        self._is_due = False
        return pieces

    # ---- large bodies --------------------------------------------------------------------------

    def put_large(self, content: LargeContent) -> None:
        """The body of a content, whose header frame was written just now."""
        lane = self._lanes.get(content.channel)
        if lane is None:
            self._lanes[content.channel] = Lane(content)
        else:
            lane.add(content)

    def has_large(self) -> bool:
        """Whether a large body is on its way."""
        return bool(self._lanes)

    def is_busy(self, channel: int) -> bool:
        """Whether a large body is on its way on this channel."""
        return channel in self._lanes

    def next_frames(self) -> tuple[int, list[bytes]]:
        """The next piece of a large body, of which there is one, in parts, and what its channel has
        to say behind it; and the number of the channel if that was all, else -1. CorruptionError,
        OSError: the body cannot be read; its content is not whole, and `abandon` is due."""
        number = next(iter(self._lanes))
        lane = self._lanes[number]
        content = lane.content
        parts = content.next_frames()
        del self._lanes[number]
        if content.is_whole():
            content.sent()
            if not lane.go_on(parts):
                return number, parts
        self._lanes[number] = lane  # the others come first now
        return -1, parts

    def abandon(self, *, is_tried: bool) -> None:
        """The client gets nothing more of the large bodies, nor of what is behind them. is_tried:
        see LargeContent.abandon."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            for content in lane.contents():
                content.abandon(is_tried=is_tried)

    def waiting_bytes(self) -> int:
        """Bytes of frames that wait behind large bodies."""
        return sum([lane.waiting_bytes() for lane in self._lanes.values()])

    def large_bytes(self) -> int:
        """What large bodies that are on their way take in RAM, with what waits behind them."""
        return len(self._lanes) * PIECE_BYTES + self.waiting_bytes() if self._lanes else 0
