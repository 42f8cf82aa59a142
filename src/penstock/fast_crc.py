"""crc32: the CRC-32 of everything that is written, from isal where that is installed.

Whoever writes bodies, sends pages over a network, or hands them to Spark, sums every byte of them:
of long ones the checksum is much of that work. isal's is ten times as fast as zlib's from some KiB
on, and comes with penstock[spark]; without it zlib's does the same. Both give the same values for
the same bytes, so it does not matter which of them made the one that the other checks.

Not here: which bytes have a CRC, and its seed (each format says it).
"""

from collections.abc import Callable
from typing import Final

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # the same values, in more time
    from zlib import crc32 as _crc32

crc32: Final[Callable[..., int]] = _crc32

__all__ = ["crc32", "has_isal"]


def has_isal() -> bool:
    """Whether the fast one is here."""
    return "isal" in (getattr(crc32, "__module__", "") or "")
