"""crc32: the CRC-32 of everything that is written, from zlib-ng.

Whoever writes bodies, sends pages over a network, or hands them to Spark, sums every byte of them,
and most of these pieces are short: a frame, a slot, a record. zlib-ng's is four times as fast as
zlib's for 256 B, and fifteen times for long ones. It comes with Penstock; where only the source was
sent (executors of Spark, say) zlib's does the same. Both give the same values for the same bytes,
so it does not matter which of them made the one that the other checks.

Not here: which bytes have a CRC, and its seed (each format says it).
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
    """Whose it is: zlib-ng or zlib."""
    return "zlib-ng" if "zlib_ng" in (getattr(crc32, "__module__", "") or "") else "zlib"
