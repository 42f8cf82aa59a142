"""What people see of bodies and names."""

from penstock.storage.files.data_directory import queue_title
from penstock.storage.journal.record_types import body_text
from penstock.storage.tools.dump import at, is_zero


def test_a_line_begins_with_its_position() -> None:
    assert at(64, "slot") == "        64  slot"


def test_a_long_body_is_cut_short() -> None:
    assert body_text(b"ab") == "body of 2 bytes, crc 9e83486d, b'ab'"
    assert body_text(b"a" * 25).endswith(f"{b'a' * 24!r} ...")


def test_zeros() -> None:
    assert is_zero(bytes(3))
    assert not is_zero(b"\0\1")


def test_a_part_of_a_queue_is_called_one() -> None:
    assert queue_title(b"jobs") == "jobs"
    assert queue_title(b"jobs\x0012") == "jobs (part 12)"
    assert queue_title(b"jobs\0ds17") == "jobs (part ds17)"
    assert queue_title(b"\xff") == "\N{REPLACEMENT CHARACTER}"
