"""Proving frames that are to be staged: what scanning finds, and every damage."""

import struct

import pytest

from penstock.fast_crc import crc32
from penstock.storage.pages.page import page_seed, scan_frames
from penstock.storage.pages.staging import CHECKSUM_MASK, staged_checksum
from tests.helpers.inside import encode_frame

SEED = page_seed(0x1234)


def staged(count: int = 3) -> tuple[bytes, bytes]:
    """(frames, rows) of records as they are staged, the first being number 2."""
    bodies = [(b"x" * (7 * n), b"meta" * (n % 2)) for n in range(count)]
    data = b"".join(encode_frame(SEED, 2 + n, 0, *body) for n, body in enumerate(bodies))
    return data, b"".join(scan_frames(data, 1000, SEED, 2, 0, 1000 + len(data)).rows)


def test_staged_frames_are_those_that_scanning_finds() -> None:
    data, rows = staged()
    assert staged_checksum(data, rows, 1000, SEED, 2) >= 0
    assert staged_checksum(b"", b"", 1000, SEED, 2) == 0
    assert staged_checksum(data, rows, 1001, SEED, 2) == -1
    assert staged_checksum(data, rows, 1000, SEED, 3) == -1
    assert staged_checksum(data, rows, 1000, SEED ^ 4, 2) == -1
    assert staged_checksum(data + b"\0", rows, 1000, SEED, 2) == -1
    for length in range(len(data)):
        assert staged_checksum(data[:length], rows, 1000, SEED, 2) == -1
    for length in range(len(rows)):
        assert staged_checksum(data, rows[:length], 1000, SEED, 2) == -1


def test_every_flipped_bit_of_staged_frames_and_their_rows_is_noticed() -> None:
    data, rows = staged()
    for bit in range(8 * len(data)):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert staged_checksum(bytes(spoilt), rows, 1000, SEED, 2) == -1
    for bit in range(8 * len(rows)):
        spoilt = bytearray(rows)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert staged_checksum(data, bytes(spoilt), 1000, SEED, 2) == -1


@pytest.mark.parametrize(("flags", "time_us"), [(1, 0), (1 << 31, 0), (0, 1), (0, -1)])
def test_staged_frames_have_no_flags_and_no_time(flags: int, time_us: int) -> None:
    behind = struct.pack("<IIIq", 1, 0, flags, time_us) + b"x"
    frame = struct.pack("<I", crc32(behind, SEED)) + behind
    assert staged_checksum(frame, struct.pack("<IIq", 64, 1, time_us), 64, SEED, 0) == -1


def checksum_of(bodies: list[bytes], page_id: int = 7, rel: int = 0) -> int:
    """Of one piece of a page with these rows."""
    seed = page_seed(page_id)
    data = b"".join(encode_frame(seed, rel + n, 0, body, b"m") for n, body in enumerate(bodies))
    rows = b"".join(scan_frames(data, 1000, seed, rel, 0, 1000 + len(data)).rows)
    found = staged_checksum(data, rows, 1000, seed, rel)
    assert 0 <= found <= CHECKSUM_MASK
    return found


def test_the_checksum_is_of_the_rows_wherever_they_are() -> None:
    rows = [b"row %d" % n for n in range(40)]
    whole = checksum_of(rows)
    assert checksum_of(rows[::-1], page_id=99, rel=5) == whole
    parts = checksum_of(rows[:7], 3) + checksum_of(rows[7:30], 4, 9) + checksum_of(rows[30:], 5)
    assert parts & CHECKSUM_MASK == whole
    assert checksum_of(rows[:-1]) != whole
    assert checksum_of([*rows[:-1], rows[0]]) != whole
    assert checksum_of([*rows[:-2], rows[-2] + rows[-1]]) != whole


def test_rows_that_exchange_parts_have_another_checksum() -> None:
    # The plain sum of their CRCs is the same for one such pair in 10,000: a CRC is linear.
    found = set()
    for n in range(2000):
        a, b, c, d = (b"%s-%08d" % (name, n) for name in (b"a", b"b", b"c", b"d"))
        found.add(checksum_of([a + b, c + d]))
        found.add(checksum_of([a + d, c + b]))
    assert len(found) == 4000
