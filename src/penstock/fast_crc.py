"""crc32: the CRC-32 that pages are checked with, from isal where that is installed.

Whoever sends pages over a network, or hands them to Spark, checks every byte of them: the checksum
is most of that work. isal's is ten times as fast as zlib's, and comes with penstock[spark]; without
it zlib's does the same. Both give the same values for the same bytes, so it does not matter which
of them made the one that the other checks.

Not here: which bytes have a CRC, and its seed (page_frames, storage.page, storage.page_index).
"""

try:
    from isal.isal_zlib import crc32
except ImportError:  # the same values, in more time
    from zlib import crc32

__all__ = ["crc32", "has_isal"]


def has_isal() -> bool:
    """Whether the fast one is here."""
    return "isal" in (getattr(crc32, "__module__", "") or "")
