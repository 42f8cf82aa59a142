"""LargeContent: the body of one content on its way to a client, read as the client takes it.

A large body is not in RAM because it is delivered: its method and header frames go out like others,
and its body frames are made here, at most PIECE_BYTES at a time, from the open body in the store.
What stands open can be read to its end, whatever becomes of the message (storage/stored_body.py).

A consumer that need not acknowledge has its message when all of it was handed to the transport:
until then the message is pending in its source, and goes back there if the client goes.

Not here: whose turn it is to be sent (output.py), when there is room (connection_handler.py).
"""

from typing import TYPE_CHECKING, Final

from penstock.storage.stored_body import StoredBody

if TYPE_CHECKING:
    from penstock.broker.roles import Source

PIECE_BYTES: Final = 256 << 10
FRAME_EXTRA_BYTES: Final = 8  # type, channel, length, end
END: Final = b"\xce"


class LargeContent:
    """On this channel, in frames of `frame_max` bytes at most. source and tag: what is to be
    settled when it was sent; None if nothing is."""

    def __init__(
        self, channel: int, frame_max: int, body: StoredBody, source: "Source | None" = None,
        tag: int = 0,
    ) -> None:  # fmt: skip
        self.channel: int = channel
        self._body: StoredBody = body
        self._payload_bytes: int = min(frame_max - FRAME_EXTRA_BYTES, PIECE_BYTES)
        self._source: Source | None = source
        self._tag: int = tag

    def is_whole(self) -> bool:
        """Whether all frames were made."""
        return not self._body.left

    def next_frames(self) -> list[bytes]:
        """The next body frames, PIECE_BYTES or a little more of them, in parts that follow one
        another. CorruptionError, OSError: the rest cannot be read, and `abandon` is due."""
        parts: list[bytes] = []
        made = 0
        front = b"\x03" + self.channel.to_bytes(2, "big")
        while made < PIECE_BYTES and self._body.left:
            data = self._body.read(self._payload_bytes)
            made += len(data) + FRAME_EXTRA_BYTES
            parts += (front + len(data).to_bytes(4, "big"), data, END)
        return parts

    def sent(self) -> None:
        """The client has all of it."""
        self._body.close()
        source, self._source = self._source, None
        if source is not None and not source.is_deleted:
            source.sent([self._tag])

    def abandon(self, *, is_tried: bool) -> None:
        """The client will not get the rest. is_tried: it may be the message that ended it."""
        self._body.close()
        source, self._source = self._source, None
        if source is not None and not source.is_deleted:
            if is_tried:
                source.give_back([self._tag])
            else:
                source.release([self._tag])
