"""fast_crc: the same values, whoever makes them."""

import random
import zlib

from penstock.fast_crc import crc32


def test_its_checksum_is_zlibs() -> None:
    for size in (0, 1, 15, 63, 64, 290, 1199, 1 << 20):
        data = random.Random(size).randbytes(size)
        assert crc32(data, 7) == zlib.crc32(data, 7)
        assert crc32(memoryview(data)[size // 2 :], 7) == zlib.crc32(data[size // 2 :], 7)
