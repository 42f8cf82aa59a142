"""The index of a page, byte by byte."""

import struct
from zlib import crc32

import pytest

from penstock.errors import CorruptionError
from penstock.storage.pages.page import (
    IndexHeader,
    active_header,
    blocks,
    check_index,
    decode_blocks,
    decode_index_header,
    decode_row,
)

ROWS = struct.pack("<IIq", 64, 5, 10) + struct.pack("<IIq", 95, 0, 12)
CRCS = struct.pack("<II", 111, 222)


def sealed() -> bytes:
    page_bytes = (1 << 20) + 5
    header = IndexHeader(99, 7, True, 2, page_bytes, crc32(CRCS, crc32(ROWS)), 10, 12)
    return header.encode() + ROWS + CRCS


def test_a_sealed_index_is_as_the_format_says() -> None:
    data = sealed()
    fields = struct.pack(
        "<8sHHIQQIIqq", b"PNSTPIDX", 1, 1, 2, 99, 7, (1 << 20) + 5, crc32(ROWS + CRCS), 10, 12
    )
    assert data[:64] == fields + bytes(4) + struct.pack("<I", crc32(fields + bytes(4)))
    header = check_index("i", data)
    assert header.is_sealed
    assert header.file_bytes() == len(data)
    assert (header.first_time_us, header.last_time_us) == (10, 12)
    assert decode_row(data, 64 + 16) == (95, 0, 12)
    assert decode_blocks(data, header) == [111, 222]


def test_the_index_of_the_page_that_is_written_says_so() -> None:
    header = decode_index_header("i", active_header(99, 7))
    assert (header.is_sealed, header.count, header.id, header.base) == (False, 0, 99, 7)
    with pytest.raises(CorruptionError, match="not sealed"):
        check_index("i", active_header(99, 7))


def test_every_flipped_bit_is_noticed() -> None:
    data = sealed()
    for position in range(len(data)):
        spoilt = bytearray(data)
        spoilt[position] ^= 1 << position % 8
        with pytest.raises(CorruptionError):
            check_index("i", bytes(spoilt))


@pytest.mark.parametrize("length", [0, 10, 63, 64, 70, 103])
def test_a_short_index_is_noticed(length: int) -> None:
    with pytest.raises(CorruptionError):
        check_index("i", sealed()[:length])


def test_another_version_or_flag_is_refused_by_name() -> None:
    for at, value in ((8, 2), (10, 3), (0, 0)):
        data = bytearray(sealed())
        data[at] = value
        data[60:64] = struct.pack("<I", crc32(data[:60]))
        with pytest.raises(CorruptionError, match="expected b'PNSTPIDX' version 1"):
            decode_index_header("i", bytes(data))


@pytest.mark.parametrize(("size", "count"), [(64, 1), (1 << 20, 1), ((1 << 20) + 1, 2)])
def test_a_page_has_a_block_per_mebibyte(size: int, count: int) -> None:
    assert blocks(size) == count
