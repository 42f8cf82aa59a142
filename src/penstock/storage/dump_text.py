"""What all dumps share: how a line, and how a body, is written.

A line is the position in decimal, in a column of ten, two blanks, and a text. Bodies may be large
and may be anybody's, so of a body the size, the plain CRC-32 and the first bytes are shown: enough
to tell two bodies apart, and to see what it is.
"""

from typing import Final

from penstock.fast_crc import crc32

SHOWN_BYTES: Final = 24


def at(position: int, text: str) -> str:
    """One line."""
    return f"{position:10}  {text}"


def body_text(body: bytes) -> str:
    """A body, in short."""
    more = " ..." if len(body) > SHOWN_BYTES else ""
    return f"body of {len(body)} bytes, crc {crc32(body):08x}, {body[:SHOWN_BYTES]!r}{more}"


def is_zero(data: bytes) -> bool:
    """Whether all bytes are zeros."""
    return not data.strip(b"\0")


def queue_title(name: bytes) -> str:
    """A queue's name for people. A part of a queue with priorities or delays is a queue of its own
    on disk; what distinguishes it stands behind a zero byte in its name."""
    whole, _, part = name.decode("utf-8", "replace").partition("\0")
    return f"{whole} (part {part})" if part else whole
