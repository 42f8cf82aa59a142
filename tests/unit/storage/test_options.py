"""StorageOptions: whoever has them has good ones, and a misspelt name suggests the right one."""

from dataclasses import FrozenInstanceError

import pytest

from penstock.errors import OptionError
from penstock.storage.files.options import STORAGE_OPTIONS, StorageOptions

LOWEST = {one.name: int(one.kind.low) for one in STORAGE_OPTIONS if one.kind.low is not None}


def test_the_defaults_are_good_and_as_documented() -> None:
    options = StorageOptions()
    assert options.segment_slots == 4096
    assert options.queue_index_embed_msgs_below == 4096
    assert options.wal_inline_below == 32 * 1024
    assert options.transient_inline_below == 512 * 1024
    assert options.checkpoint_log_bytes == 64 << 20
    assert options.checkpoint_store_bytes == 256 << 20
    assert (options.checkpoint_seconds, options.checkpoint_records) == (30.0, 1_000_000)
    assert (options.small_queue_entries, options.small_queue_bytes) == (64, 64 << 10)


def test_of_takes_names_and_values() -> None:
    options = StorageOptions.of({"segment_slots": 64, "slice_ms": 0.5})
    assert (options.segment_slots, options.slice_ms) == (64, 0.5)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("segment_slot", "segment_slots"),
        ("msg_store_file_size_limt", "msg_store_file_size_limit"),
        ("checkpoint_second", "checkpoint_seconds"),
    ],
)
def test_an_unknown_name_suggests_the_right_one(wrong: str, right: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option '{wrong}', did you mean '{right}'"):
        StorageOptions.of({wrong: 1})


def test_a_name_like_no_other_is_refused_without_a_guess() -> None:
    with pytest.raises(OptionError, match="unknown option 'zzz'") as caught:
        StorageOptions.of({"zzz": 1})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("slots", [0, 2, 3, 5, 100, 8192, -4])
def test_segment_slots_is_a_power_of_two_from_4_to_4096(slots: int) -> None:
    with pytest.raises(OptionError, match="segment_slots"):
        StorageOptions(segment_slots=slots)


@pytest.mark.parametrize("slots", [4, 8, 1024, 4096])
def test_good_segment_slots(slots: int) -> None:
    assert StorageOptions(segment_slots=slots).segment_slots == slots


@pytest.mark.parametrize("name", sorted(LOWEST))
def test_each_size_has_a_lowest_value(name: str) -> None:
    with pytest.raises(OptionError, match=name) as caught:
        StorageOptions.of({name: LOWEST[name] - 1})
    assert caught.value.name == name
    if not name.startswith("wal_segment_bytes_"):
        StorageOptions.of({name: LOWEST[name]})


@pytest.mark.parametrize("name", ["slice_ms", "checkpoint_seconds"])
def test_a_time_is_not_negative(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        StorageOptions.of({name: -1.0})


@pytest.mark.parametrize("value", ["4096", None, 1.5, True])
def test_a_value_of_the_wrong_type_is_refused_by_name(value: object) -> None:
    with pytest.raises(OptionError, match="wal_inline_below"):
        StorageOptions.of({"wal_inline_below": value})


def test_the_largest_log_segment_is_not_below_the_smallest() -> None:
    with pytest.raises(OptionError, match="wal_segment_bytes_max"):
        StorageOptions(wal_segment_bytes_min=4096, wal_segment_bytes_max=2048)


def test_options_never_change() -> None:
    with pytest.raises(FrozenInstanceError):
        StorageOptions().segment_slots = 8  # type: ignore[misc]


def test_transient_bodies_fit_their_segment() -> None:
    with pytest.raises(OptionError, match=r"transient_inline_below.*at most 524288"):
        StorageOptions(transient_inline_below=(512 << 10) + 1)
