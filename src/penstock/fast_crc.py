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

__all__ = ["crc32", "crc_library"]


def crc_library() -> str:
    """Return the library in use: "zlib-ng" or "zlib"."""
    return "zlib-ng" if "zlib_ng" in (getattr(crc32, "__module__", "") or "") else "zlib"
