"""The format of pages, byte by byte, and what does not verify."""

import hashlib
import struct
from zlib import crc32

import pytest

from penstock.errors import CorruptionError
from penstock.storage.pages.page import (
    FRAME_BYTES,
    PAGE_HEADER_BYTES,
    PageRecord,
    block_crc,
    check_header,
    decode_frames,
    decode_header,
    encode_header,
    page_id,
    page_name,
    page_seed,
    scan_frames,
)
from tests.helpers.inside import encode_frame

STREAM_ID = bytes(range(16))
ID = page_id(STREAM_ID, 7)
SEED = page_seed(ID)
RECORDS = [(b"first", b"m1", 10), (b"", b"", 10), (b"x" * 50, b"meta", 12)]


def frames(rel: int = 0) -> bytes:
    return b"".join(
        encode_frame(SEED, rel + i, time, payload, meta)
        for i, (payload, meta, time) in enumerate(RECORDS)
    )


def test_the_id_of_a_page_is_of_its_stream_and_its_base() -> None:
    digest = hashlib.blake2b(STREAM_ID + struct.pack("<Q", 7)).digest()
    assert struct.unpack("<Q", digest[:8])[0] == ID
    assert page_seed(ID) == crc32(digest[:8])
    assert len({page_id(STREAM_ID, 7), page_id(STREAM_ID, 8), page_id(b"x" * 16, 7)}) == 3


def test_a_header_is_64_bytes_as_the_format_says() -> None:
    data = encode_header(3, ID, 7, 1234)
    fields = struct.pack("<8sHHIQQq", b"PNSTPAGE", 1, 1, 3, ID, 7, 1234)
    assert data == fields + bytes(20) + struct.pack("<I", crc32(fields + bytes(20)))
    header = decode_header("p", data)
    assert (header.number, header.id, header.base, header.base_time_us) == (3, ID, 7, 1234)


def test_a_header_that_is_not_of_this_page_is_refused_by_name() -> None:
    data = encode_header(3, ID, 7, 1234)
    with pytest.raises(CorruptionError, match="begins with offset 7, not 8"):
        check_header("p", data, ID, 8)
    with pytest.raises(CorruptionError, match="of another stream"):
        check_header("p", data, ID + 1, 7)
    with pytest.raises(CorruptionError, match="cut off"):
        decode_header("p", data[:63])
    for position in range(64):
        spoilt = bytearray(data)
        spoilt[position] ^= 4
        with pytest.raises(CorruptionError):
            decode_header("p", bytes(spoilt))


@pytest.mark.parametrize(("at", "value"), [(8, 2), (10, 3)])
def test_another_version_or_kind_is_refused(at: int, value: int) -> None:
    data = bytearray(encode_header(3, ID, 7, 1234))
    data[at] = value
    data[60:] = struct.pack("<I", crc32(data[:60]))
    with pytest.raises(CorruptionError, match="expected b'PNSTPAGE' version 1 kind 1"):
        decode_header("p", bytes(data))


def test_a_frame_is_as_the_format_says() -> None:
    frame = encode_frame(SEED, 5, -3, b"payload", b"meta")
    behind = struct.pack("<IIIq", 7, 4, 0, -3) + b"payload" + b"meta"
    assert frame == struct.pack("<I", crc32(behind, SEED ^ 5)) + behind
    assert len(frame) == FRAME_BYTES + 11


def test_scanning_gives_a_row_for_each_frame() -> None:
    data = frames()
    scan = scan_frames(data, PAGE_HEADER_BYTES, SEED, 0, 0, PAGE_HEADER_BYTES + len(data))
    assert (scan.end, scan.fault, scan.need) == (PAGE_HEADER_BYTES + len(data), "", 0)
    assert scan.last_time_us == 12
    rows = [struct.unpack("<IIq", row) for row in scan.rows]
    assert rows == [(64, 5, 10), (64 + 31, 0, 10), (64 + 31 + 24, 50, 12)]


def test_scanning_stops_where_the_data_ends_and_says_what_it_needs() -> None:
    data = frames()
    limit = PAGE_HEADER_BYTES + len(data)
    for length in range(len(data)):
        scan = scan_frames(data[:length], PAGE_HEADER_BYTES, SEED, 0, 0, limit)
        assert scan.fault == ""
        done = scan.end - PAGE_HEADER_BYTES
        assert done <= length < done + scan.need
        assert scan.need in (24, 31, 78)


def test_scanning_tells_a_frame_that_reaches_beyond_the_end() -> None:
    data = frames()
    scan = scan_frames(data, 64, SEED, 0, 0, 64 + len(data) - 1)
    assert len(scan.rows) == 2
    assert "reaches beyond" in scan.fault
    scan = scan_frames(data[:40], 64, SEED, 0, 0, 64 + 40)
    assert scan.fault == "a frame's header is cut off"


def test_every_flipped_bit_of_a_frame_is_noticed() -> None:
    data = frames()
    for position in range(len(data)):
        spoilt = bytearray(data)
        spoilt[position] ^= 1 << position % 8
        scan = scan_frames(bytes(spoilt), 64, SEED, 0, 0, 64 + len(data))
        assert scan.fault
        assert scan.end <= 64 + position
        out: list[PageRecord] = []
        end, need, fault = decode_frames(bytes(spoilt), 0, SEED, 0, 0, 3, 1000, out)
        assert fault or need
        assert end <= position


def test_a_frame_of_another_place_does_not_verify() -> None:
    data = frames()
    assert scan_frames(data, 64, SEED, 1, 0, 64 + len(data)).fault
    assert scan_frames(data, 64, SEED ^ 1 << 20, 0, 0, 64 + len(data)).fault


def test_flags_of_a_later_version_are_refused() -> None:
    behind = struct.pack("<IIIq", 1, 0, 2, 5) + b"x"
    frame = struct.pack("<I", crc32(behind, SEED)) + behind
    assert "flags 0x2" in scan_frames(frame, 64, SEED, 0, 0, 64 + len(frame)).fault
    assert "flags 0x2" in decode_frames(frame, 0, SEED, 0, 0, 1, 9, [])[2]


@pytest.mark.parametrize(
    ("count", "budget", "expected"), [(9, 1000, 3), (2, 1000, 2), (3, 1, 1), (3, 7, 1), (3, 8, 2)]
)
def test_decoding_stops_at_count_and_budget(count: int, budget: int, expected: int) -> None:
    out: list[PageRecord] = []
    end, _, fault = decode_frames(frames(), 0, SEED, 100, 0, count, budget, out)
    assert not fault
    assert [(r.payload, r.meta, r.time_us) for r in out] == RECORDS[:expected]
    assert [r.offset for r in out] == list(range(100, 100 + expected))
    assert end == sum(24 + len(r.payload) + len(r.meta) for r in out)


def test_a_record_larger_than_the_budget_is_given_alone() -> None:
    out: list[PageRecord] = []
    decode_frames(frames()[31 + 24 :], 0, SEED, 0, 2, 5, 10, out)
    assert [len(r.payload) for r in out] == [50]
    assert repr(out[0]).startswith("PageRecord(2, 12, b'xxx")
    decode_frames(frames()[31 + 24 :], 0, SEED, 0, 2, 5, 10, out)
    assert len(out) == 1  # not behind others


def test_names_sort_as_offsets_do() -> None:
    assert page_name(17) == "00000000000000000017"
    assert page_name(9) < page_name(10) < page_name(1 << 63)


def test_a_block_has_its_own_seed() -> None:
    assert block_crc(SEED, 3, b"data") == crc32(b"data", SEED ^ 3)
