"""Output: what a connection has to say, gathered until the end of the turn.

Frames of all channels of a connection go into one buffer in the order they are made; the end of the
turn hands it to the transport. A body of 8 KiB or more is not copied into it: it stands between two
pieces of the buffer as it is, and the transport sends the pieces together. A buffer of more than
128 KiB counts as full: nothing more is delivered to that client in this turn. (Much larger buffers
cost more per delivery, in page faults, than the writes that they save.) Answers, confirms and
returns still get in; a client that does not read them is not read either.
"""

from typing import Final

from librt.strings import BytesWriter

from penstock.broker.dispatch import Dispatch, Peer
from penstock.codec.frames import method_frame
from penstock.codec.method import Method

FULL_BYTES: Final = 128 << 10


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

    def writer(self) -> BytesWriter:
        """Where whole frames are written to, now."""
        if not self._is_due and self.sender is not None:
            self._is_due = True
            self._dispatch.add_output(self.sender)
        return self._writer

    def send(self, channel: int, method: Method) -> None:
        """A method without content."""
        self.writer().write(method_frame(channel, method.encode()))

    def put(self, data: bytes) -> BytesWriter:
        """Bytes that are large enough not to be copied. Where to write on, behind them."""
        written = self._writer.getvalue()
        self._pieces.append(written)
        self._pieces.append(data)
        self._piece_bytes += len(written) + len(data)
        self._writer = BytesWriter()
        return self._writer

    def is_full(self) -> bool:
        """Whether nothing more should be delivered in this turn."""
        return self._piece_bytes + len(self._writer) >= FULL_BYTES

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
