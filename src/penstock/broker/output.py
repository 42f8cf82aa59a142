"""Output: what a connection has to say, gathered until the end of the turn.

Frames of all channels of a connection go into one buffer in the order they are made; the end of the
turn hands it to the transport in one piece. A buffer of more than 128 KiB counts as full: nothing
more is delivered to that client in this turn. (Much larger buffers cost more per delivery, in page
faults, than the writes that they save.) Answers, confirms and returns still get in; a client that
does not read them is not read either.
"""

from typing import Final

from librt.strings import BytesWriter

from penstock.broker.dispatch import Dispatch
from penstock.broker.roles import Peer
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
        self._is_due: bool = False

    def writer(self) -> BytesWriter:
        """Where whole frames are written to, now."""
        if not self._is_due and self.sender is not None:
            self._is_due = True
            self._dispatch.sends(self.sender)
        return self._writer

    def send(self, channel: int, method: Method) -> None:
        """A method without content."""
        self.writer().write(method_frame(channel, method.encode()))

    def is_full(self) -> bool:
        """Whether nothing more should be delivered in this turn."""
        return len(self._writer) >= FULL_BYTES

    def take(self) -> bytes:
        """All there is; the buffer is empty then."""
        data = self._writer.getvalue()
        self._writer = BytesWriter()
        self._is_due = False
        return data
