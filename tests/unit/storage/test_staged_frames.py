"""Proving frames that are to be staged: what scanning finds, and every damage."""

import struct

import pytest

from penstock.fast_crc import crc32
from penstock.storage.page import encode_frame, page_seed, scan_frames
from penstock.storage.staged_frames import are_staged_frames

SEED = page_seed(0x1234)


def staged(count: int = 3) -> tuple[bytes, bytes]:
    """(frames, rows) of records as they are staged, the first being number 2."""
    bodies = [(b"x" * (7 * n), b"meta" * (n % 2)) for n in range(count)]
    data = b"".join(encode_frame(SEED, 2 + n, 0, *body) for n, body in enumerate(bodies))
    return data, b"".join(scan_frames(data, 1000, SEED, 2, 0, 1000 + len(data)).rows)


def test_staged_frames_are_those_that_scanning_finds() -> None:
    data, rows = staged()
    assert are_staged_frames(data, rows, 1000, SEED, 2)
    assert are_staged_frames(b"", b"", 1000, SEED, 2)
    assert not are_staged_frames(data, rows, 1001, SEED, 2)
    assert not are_staged_frames(data, rows, 1000, SEED, 3)
    assert not are_staged_frames(data, rows, 1000, SEED ^ 4, 2)
    assert not are_staged_frames(data + b"\0", rows, 1000, SEED, 2)
    for length in range(len(data)):
        assert not are_staged_frames(data[:length], rows, 1000, SEED, 2)
    for length in range(len(rows)):
        assert not are_staged_frames(data, rows[:length], 1000, SEED, 2)


def test_every_flipped_bit_of_staged_frames_and_their_rows_is_noticed() -> None:
    data, rows = staged()
    for bit in range(8 * len(data)):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert not are_staged_frames(bytes(spoilt), rows, 1000, SEED, 2)
    for bit in range(8 * len(rows)):
        spoilt = bytearray(rows)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert not are_staged_frames(data, bytes(spoilt), 1000, SEED, 2)


@pytest.mark.parametrize(("flags", "time_us"), [(1, 0), (1 << 31, 0), (0, 1), (0, -1)])
def test_staged_frames_have_no_flags_and_no_time(flags: int, time_us: int) -> None:
    behind = struct.pack("<IIIq", 1, 0, flags, time_us) + b"x"
    frame = struct.pack("<I", crc32(behind, SEED)) + behind
    assert not are_staged_frames(frame, struct.pack("<IIq", 64, 1, time_us), 64, SEED, 0)
