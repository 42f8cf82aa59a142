"""fast_crc: the same values, whoever makes them."""

import random
import zlib

from penstock.fast_crc import BodyPieces, crc32, joined


def test_its_checksum_is_zlibs() -> None:
    for size in (0, 1, 15, 63, 64, 290, 1199, 1 << 20):
        data = random.Random(size).randbytes(size)
        assert crc32(data, 7) == zlib.crc32(data, 7)
        assert crc32(memoryview(data)[size // 2 :], 7) == zlib.crc32(data[size // 2 :], 7)


def test_checksums_of_parts_are_joined_to_that_of_the_whole() -> None:
    for size in (0, 1, 2, 255, 256, 65_537, (1 << 20) + 3):
        first, second = random.Random(size).randbytes(100), random.Random(-size).randbytes(size)
        for seed in (0, 7, 0xFFFFFFFF):
            whole = crc32(first + second, seed)
            assert joined(crc32(first, seed), crc32(second), size) == whole
    assert joined(0, 0, 1 << 40) == 0


def test_pieces_are_summed_up_as_they_come() -> None:
    found = BodyPieces()
    for piece in (b"one", b"", b"two" * 1000):
        found.add(piece)
    assert (b"".join(found.pieces), found.size) == (b"one" + b"two" * 1000, 3003)
    assert found.crc == crc32(b"one" + b"two" * 1000)
