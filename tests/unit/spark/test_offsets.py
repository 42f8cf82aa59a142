"""Offsets in a checkpoint, and where queries begin and end."""

import json

import pytest

from penstock.errors import OptionError
from penstock.spark.offsets import (
    Heads,
    OffsetError,
    PartitionHead,
    Positions,
    all_heads,
    decode,
    encode,
    ending,
    ids_of,
    lag,
    parse_offsets,
    starting,
    stream_id_of,
)
from penstock.spark.options import EARLIEST, LATEST, Bound

HEADS: Heads = {
    "b": {n: PartitionHead(n * 10, n * 10 + 100, 5_000_000, 3000, f"id{n}") for n in range(12)},
    "a": {0: PartitionHead(3, 7, 6_000_000, 100, "other")},
}


def find(stream: str, partition: int, time_us: int) -> int:
    """Record i of a partition came at i ms."""
    head = HEADS[stream][partition]
    return min(max(time_us // 1000, head.first), head.head)


def test_equal_positions_are_equal_text() -> None:
    positions = all_heads(HEADS)
    shuffled = Positions(dict(reversed(positions.offsets.items())), dict(positions.ids))
    assert json.dumps(encode(positions)) == json.dumps(encode(shuffled))
    text = json.dumps(encode(positions))
    assert text.startswith('{"a": {"0": 7, "id": "')
    assert list(json.loads(text)["b"]) == [*[str(n) for n in range(12)], "id"]
    assert decode(json.loads(text)) == positions
    assert json.dumps(encode(decode(json.loads(text)))) == text


def test_offsets_of_64_bits_survive() -> None:
    positions = Positions({("s", 0): (1 << 63) - 1})
    assert decode(json.loads(json.dumps(encode(positions)))) == positions


def test_an_offset_that_this_source_did_not_write() -> None:
    for wrong in ({"s": 5}, {"s": {"a": 1}}, {"s": {"0": "1"}}):
        with pytest.raises(OffsetError, match="an offset of stream 's'"):
            decode(wrong)
    assert parse_offsets({"s": {"0": 5, "id": "x"}}) == {("s", 0): 5}


def test_another_stream_of_that_name_has_another_id() -> None:
    one = {0: PartitionHead(0, 1, stream_id="aa"), 1: PartitionHead(0, 1, stream_id="bb")}
    two = {0: PartitionHead(0, 9, stream_id="aa"), 1: PartitionHead(5, 9, stream_id="bb")}
    other = {0: PartitionHead(0, 1, stream_id="aa"), 1: PartitionHead(0, 1, stream_id="cc")}
    assert stream_id_of(one) == stream_id_of(two) != stream_id_of(other)


def test_a_stream_keeps_words_and_a_batch_resolves_them() -> None:
    for offset in (EARLIEST, LATEST):
        begun = starting(Bound(offset=offset), HEADS, find, is_strict=True, is_streaming=True)
        assert set(begun.offsets.values()) == {offset}
        assert begun.ids == ids_of(HEADS)
    batch = starting(Bound(offset=EARLIEST), HEADS, find, is_strict=True, is_streaming=False)
    assert batch.offsets["a", 0] == 3
    assert batch.offsets["b", 11] == 110
    batch = starting(Bound(offset=LATEST), HEADS, find, is_strict=True, is_streaming=False)
    assert batch == all_heads(HEADS)


def test_offsets_that_were_named_and_the_rest() -> None:
    bound = Bound(offsets={"b": {0: 42, 1: LATEST}}, ids={"b": "said"})
    begun = starting(bound, HEADS, find, is_strict=True, is_streaming=True)
    assert begun.offsets["b", 0] == 42
    assert begun.offsets["b", 1] == LATEST
    assert begun.offsets["b", 2] == begun.offsets["a", 0] == EARLIEST
    assert begun.ids["b"] == "said"
    until = ending(Bound(offsets={"b": {0: 42}}), HEADS, find)
    assert (until.offsets["b", 0], until.offsets["b", 1]) == (42, 110)


def test_a_partition_that_there_is_not_is_refused() -> None:
    for bound in (Bound(offsets={"b": {12: 1}}), Bound(times_us={"c": {0: 1}})):
        with pytest.raises(OptionError, match="expected partitions of"):
            starting(bound, HEADS, find, is_strict=True, is_streaming=True)
        with pytest.raises(OptionError, match="endingOffsets"):
            ending(bound, HEADS, find)


def test_times() -> None:
    bound = Bound(time_us=5_000)
    begun = starting(bound, HEADS, find, is_strict=True, is_streaming=True)
    assert begun.offsets["a", 0] == 5
    assert begun.offsets["b", 11] == 110
    late = Bound(times_us={"a": {0: 7_000}})
    with pytest.raises(OptionError, match="startingOffsetsByTimestampStrategy=latest"):
        starting(late, HEADS, find, is_strict=True, is_streaming=True)
    begun = starting(late, HEADS, find, is_strict=False, is_streaming=True)
    assert (begun.offsets["a", 0], begun.offsets["b", 0]) == (LATEST, EARLIEST)
    assert ending(Bound(time_us=4_000), HEADS, find).offsets["a", 0] == 4
    assert ending(Bound(time_us=9_000), HEADS, find).offsets["a", 0] == 7


def test_lag() -> None:
    end = Positions({("a", 0): 5, ("b", 0): LATEST, ("b", 1): EARLIEST})
    latest = Positions({("a", 0): 7, ("b", 0): 9, ("b", 1): 4, ("c", 0): 6})
    assert lag(end, latest) == {("a", 0): 2, ("b", 0): 0, ("b", 1): 4, ("c", 0): 6}
    assert lag(Positions({("a", 0): 8}), Positions({("a", 0): 7})) == {("a", 0): 0}


# ---- classic queues ------------------------------------------------------------------------------


def test_an_offset_of_a_classic_queue_names_its_reader() -> None:
    heads = {"q": {0: PartitionHead(5, 9, stream_id="ab", reader="job", ready=4)}}
    positions = Positions({("q", 0): 9}, ids_of(heads), {"q": "job"})
    text = encode(positions)
    assert list(text["q"]) == ["0", "id", "reader"]
    assert decode(text) == positions
    assert parse_offsets(text) == {("q", 0): 9}
    assert all_heads(heads).offsets == {("q", 0): 13}
    assert lag(positions, all_heads(heads)) == {("q", 0): 4}


def test_a_queue_that_nothing_was_leased_of_has_no_id() -> None:
    assert ids_of({"q": {0: PartitionHead(0, 0, reader="job")}}) == {}
    assert list(ids_of({"s": {0: PartitionHead(0, 0)}})) == ["s"]
