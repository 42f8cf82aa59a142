"""crc32: the CRC-32 of everything that is written, from zlib-ng.

Most checksums are of short pieces: a frame, a slot, a record. zlib-ng is four times as fast as zlib
for 256 B, and fifteen times for long ones. It is installed with Penstock; where only the source is
(executors of Spark, say), zlib's is used. Both give the same values.
"""

from collections.abc import Callable
from typing import Final

try:
    from zlib_ng.zlib_ng import crc32 as _crc32
except ImportError:  # the same values, in more time
    from zlib import crc32 as _crc32

crc32: Final[Callable[..., int]] = _crc32

__all__ = ["BodyPieces", "crc32", "crc_library", "joined", "pieces_of"]

# A polynomial over GF(2) modulo that of CRC-32, its lowest power in the highest bit.
_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31


def joined(first: int, second: int, size: int) -> int:
    """Return the checksum of some bytes and then `size` others. first, second: their checksums."""
    power = _ONE  # x to the number of bits of the second
    square = _ONE >> 8
    while size:
        if size & 1:
            power = _times(square, power)
        square = _times(square, square)
        size >>= 1
    return _times(power, first) ^ second


def _times(a: int, b: int) -> int:
    """Return the product of two polynomials."""
    product = 0
    bit = _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


class BodyPieces:
    """Bytes in pieces, because there are too many to copy or to sum up at once. size: of all; crc:
    their checksum, which `joined` makes part of others."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size: int = 0
        self.crc: int = 0

    def add(self, piece: bytes) -> None:
        """Add a piece at the end."""
        self.pieces.append(piece)
        self.size += len(piece)
        self.crc = crc32(piece, self.crc)


def pieces_of(data: bytes) -> BodyPieces:
    """Return bytes as one piece."""
    found = BodyPieces()
    found.add(data)
    return found


def crc_library() -> str:
    """Return the library in use: "zlib-ng" or "zlib"."""
    return "zlib-ng" if "zlib_ng" in (getattr(crc32, "__module__", "") or "") else "zlib"
