"""One channel as a Connection reads it: its state, and the message that is being assembled on it.

A message arrives as a method frame, a content header frame and body frames, which other channels'
frames may interrupt. A publish that lies whole in one chunk of bytes never comes here: see
`whole_publish`, which finds its end. What does come here is collected in pieces, joined once at the
end: `tail + data` on every chunk would be quadratic for a large body. Pieces may be as small as
the peer likes, so small ones are joined as they come: what is held is never much more than what
was received. `held_bytes` is what Connection.unfinished_bytes counts.

A body beyond the spool limit is not collected; connection.py hands on its parts as they come.
"""

from typing import Final

from penstock.codec.method import Method
from penstock.protocol.states import ChannelState

# What a channel waits for.
AWAITS_METHOD: Final = 0
AWAITS_HEADER: Final = 1
AWAITS_BODY: Final = 2

# So many pieces are joined to one: 33 bytes of Python for each piece of one byte become a few.
_PIECES_MAX: Final = 256


def is_route(data: bytes, at: int, end: int) -> bool:
    """Whether exactly a basic.publish's exchange, routing key and bits stand there."""
    if end - at < 3:
        return False
    at += 1 + data[at]
    if end - at < 2:
        return False
    return at + data[at] + 2 == end


def whole_publish(data: bytes, at: int, number: int, frame_payload_max: int, body_max: int) -> int:
    """Where the message ends whose content header frame begins at `at`; 0 if that is not sure.

    Sure it is if the header and the body, in one frame or none, are there whole, are of channel
    `number`, and nothing is wrong with them. Else the frames go the long way, one by one, which
    finds what is wrong, if anything is.
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
    """Where the body frame at `at` ends if it holds a whole body of this size; 0 if not."""
    end = at + 8 + size
    if end > len(data) or data[at] != 3 or data[end - 1] != 0xCE:
        return 0
    if (data[at + 1] << 8) | data[at + 2] != number:
        return 0
    held = (data[at + 3] << 24) | (data[at + 4] << 16) | (data[at + 5] << 8) | data[at + 6]
    return end if held == size else 0


class BodyRoom:
    """RAM for the bodies that several connections are assembling. A body that finds no room in it
    is handed on in parts, so that it can go to disk. bytes_max: set by the owner, at any time."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.taken_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Take so much; False if there is not so much."""
        if self.taken_bytes + size_bytes > self.bytes_max:
            return False
        self.taken_bytes += size_bytes
        return True


class ChannelInput:
    """What a Connection knows of one channel that is not closed."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.state = ChannelState.CLOSED
        # Frames of a new method may come and are wanted: open, and nothing is being assembled.
        self.is_ready = False
        self.awaits = AWAITS_METHOD
        # The message that is being assembled: what opened it, its properties, its body.
        self.route = b""
        self.method: Method | None = None
        self.header = b""
        self.is_spooling = False
        self.remaining_bytes = 0
        self.held_bytes = 0
        self.room_bytes = 0  # that its body has taken of the BodyRoom
        self._pieces: list[bytes] = []
        self._small: list[bytes] = []

    def begin(self, route: bytes, method: Method | None) -> None:
        """A method with content has come: a publish's route, or the decoded method."""
        self.route = route
        self.method = method
        self.held_bytes = len(route)
        self.awaits = AWAITS_HEADER
        self.is_ready = False

    def begin_body(self, header: bytes, size_bytes: int, is_spooling: bool) -> None:
        """The content header has come."""
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
        """The body, whole."""
        return b"".join(self._pieces + self._small)

    def reset(self, is_ready: bool) -> None:
        """Forget the message that was being assembled. is_ready: another may follow."""
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
