"""Options of streams: ages, limits, stored form, partitions."""

from zlib import crc32

import pytest

from penstock.errors import OptionError
from penstock.queues.stream_options import (
    PAGE_BYTES_DEFAULT,
    StreamOptions,
    age_s,
    base_name,
    partition_names,
    partition_of,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1), ("90m", 5400), ("24h", 86_400), ("7D", 604_800), ("1M", 2_592_000),
        ("2Y", 63_072_000), ("0s", None), ("7", None), ("D", None), ("7d", None), ("-1D", None),
        ("1 h", None), ("1h\n", None), ("", None), ("9" * 13 + "s", None),
    ],
)  # fmt: skip
def test_ages(text: str, seconds: int | None) -> None:
    assert age_s(text) == seconds


def test_without_arguments_nothing_is_ever_reclaimed() -> None:
    options = StreamOptions.from_arguments({"x-queue-type": "stream", "x-mine": [1]})
    assert options == StreamOptions()
    assert not options.has_limits
    assert options.page_bytes == PAGE_BYTES_DEFAULT
    assert options.arguments() == {"x-queue-type": "stream"}


def test_options_are_the_same_after_they_were_stored() -> None:
    options = StreamOptions(
        partitions=3, page_bytes=1 << 20, max_age_s=90, max_bytes=5, max_records=0
    )
    assert options.has_limits
    assert StreamOptions.decode(options.encode()) == options
    assert StreamOptions.decode(b"") == StreamOptions()


@pytest.mark.parametrize(
    ("name", "value"),
    [("x-partitions", 0), ("x-partitions", 257), ("x-partitions", True), ("x-max-age", "soon"),
     ("x-max-age", 5), ("x-max-length", -1), ("x-max-length-bytes", "1")],
)  # fmt: skip
def test_a_wrong_value_is_named(name: str, value: object) -> None:
    with pytest.raises(OptionError) as caught:
        StreamOptions.from_arguments({name: value})
    assert caught.value.name == name


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="not list"):
        StreamOptions.decode(b"[]")


def test_names_of_partitions() -> None:
    assert partition_names(b"q", 0) == [b"q"]
    assert partition_names(b"q", 1) == [b"q\0p0"]
    assert partition_names(b"q", 3) == [b"q\0p0", b"q\0p1", b"q\0p2"]
    assert [base_name(name) for name in (b"q", b"q\0p12")] == [b"q", b"q"]


def test_a_key_has_one_partition() -> None:
    assert partition_of(b"k", 0) == partition_of(b"k", 1) == 0
    assert {partition_of(b"%d" % i, 4) for i in range(50)} == {0, 1, 2, 3}
    assert partition_of(b"k", 4) == crc32(b"k") % 4
