"""Plans: how far a batch goes, what is lost, and which tasks it is cut into."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.offsets import Heads, PartitionHead, Positions, all_heads, ids_of
from penstock.spark.options import EARLIEST, LATEST
from penstock.spark.plan import (
    PageSpan,
    PartitionPages,
    Range,
    backlog,
    behind,
    limited,
    packed,
    ranges,
    shares,
    table_of_average,
    tasks,
)

HEADS: Heads = {
    "s": {
        0: PartitionHead(100, 1100, 0, 100_000, "a"),
        1: PartitionHead(0, 500, 0, 50_000, "b"),
    }
}
IDS = ids_of(HEADS)
TABLES = {
    ("s", 0): PartitionPages([PageSpan(100, 500, 50_000), PageSpan(600, 500, 50_000)]),
    ("s", 1): PartitionPages([PageSpan(0, 500, 50_000)]),
}


def pages(stream: str, partition: int) -> PartitionPages:
    return TABLES[stream, partition]


def at(first: int, second: int, ids: dict[str, str] | None = None) -> Positions:
    return Positions({("s", 0): first, ("s", 1): second}, IDS if ids is None else ids)


# ---- tables of pages -----------------------------------------------------------------------------


def test_bytes_and_offsets_of_pages() -> None:
    table = PartitionPages([PageSpan(10, 10, 1000), PageSpan(20, 40, 1000)])
    assert [table.bytes_before(n) for n in (0, 10, 15, 20, 40, 60, 99)] == [
        0, 0, 500, 1000, 1500, 2000, 2000,
    ]  # fmt: skip
    assert [table.offset_at(n) for n in (0, 999, 1000, 1500, 2000, 9000)] == [
        10,
        19,
        20,
        40,
        60,
        60,
    ]
    assert [table.border_near(n) for n in (11, 14, 16, 20, 39, 45)] == [10, 10, 20, 20, 20, 60]


def test_a_partition_without_records() -> None:
    table = table_of_average(5, 5, 0)
    assert (table.bytes_before(5), table.offset_at(0)) == (0, 5)


# ---- what is there -------------------------------------------------------------------------------


def test_ranges_without_a_loss() -> None:
    assert ranges(at(200, 500), at(300, 500), HEADS) == ([Range("s", 0, 200, 300)], [])
    assert ranges(at(EARLIEST, LATEST), at(300, 500), HEADS) == ([Range("s", 0, 100, 300)], [])
    new = Positions({("s", 0): 300}, IDS)
    assert ranges(new, at(300, 20), HEADS) == ([Range("s", 1, 0, 20)], [])


def test_records_that_were_reclaimed() -> None:
    found, losses = ranges(at(40, 0), at(300, 10), HEADS)
    assert found == [Range("s", 0, 100, 300), Range("s", 1, 0, 10)]
    assert [str(loss) for loss in losses] == [
        "stream 's', partition 0: records 40 to 99 were reclaimed by retention"
    ]
    found, losses = ranges(at(40, 0), at(60, 0), HEADS)
    assert found == []
    assert "records 40 to 59" in str(losses[0])


def test_a_head_that_went_back() -> None:
    found, losses = ranges(at(1000, 0), at(1200, 0), HEADS)
    assert found == [Range("s", 0, 1000, 1100)]
    assert "it ends at offset 1100, expected at least 1200" in str(losses[0])
    assert ranges(at(1150, 0), at(1200, 0), HEADS)[0] == []
    assert "ends at offset 1100, expected at least 1150" in str(behind(at(1150, 0), HEADS)[0])


def test_another_stream_of_that_name() -> None:
    found, losses = ranges(at(500, 0, {"s": "old"}), at(600, 0), HEADS)
    assert found == [Range("s", 0, 100, 600)]
    assert "deleted and declared again" in str(losses[0])
    assert ranges(at(500, 0, {"s": "old"}), at(600, 0, {"s": "old"}), HEADS)[0] == []
    assert "deleted and declared again" in str(behind(at(500, 0, {"s": "old"}), HEADS)[0])


def test_a_stream_that_is_gone() -> None:
    found, losses = ranges(at(200, 0), at(300, 0), {})
    assert (found, len(losses)) == ([], 1)
    assert "no longer exists" in str(losses[0])
    assert len(behind(at(200, 0), {})) == 2


def test_nothing_is_behind() -> None:
    assert behind(at(EARLIEST, LATEST), HEADS) == behind(at(1100, 500), HEADS) == []


# ---- how far -------------------------------------------------------------------------------------


def rows_of(ends: dict[tuple[str, int], int], start: Positions) -> int:
    there = backlog(start, all_heads(HEADS), HEADS)
    return sum(end - there[key].start for key, end in ends.items())


def test_the_backlog_sees_words_losses_and_other_streams() -> None:
    there = backlog(at(EARLIEST, LATEST), all_heads(HEADS), HEADS)
    assert there == {("s", 0): Range("s", 0, 100, 1100), ("s", 1): Range("s", 1, 500, 500)}
    there = backlog(at(50, 600), all_heads(HEADS), HEADS)
    assert there == {("s", 0): Range("s", 0, 100, 1100), ("s", 1): Range("s", 1, 500, 500)}
    there = backlog(at(1100, 500, {"s": "old"}), all_heads(HEADS), HEADS)
    assert there["s", 1] == Range("s", 1, 0, 500)


@pytest.mark.parametrize("max_rows", [1, 2, 3, 10, 299, 1499, 1500, 2000])
def test_rows_are_shared_by_what_each_has(max_rows: int) -> None:
    start = at(100, 0)
    there = backlog(start, all_heads(HEADS), HEADS)
    ends = limited(there, HEADS, pages, max_rows=max_rows, max_bytes=None)
    rows = rows_of(ends, start)
    assert rows <= max(max_rows, 2)  # one of each partition at least, as with Kafka
    assert rows >= min(max_rows, 1500) - 1
    if 10 <= max_rows < 1500:
        assert abs((ends["s", 0] - 100) - 2 * ends["s", 1]) <= 2


def test_bytes_limit_what_rows_allow() -> None:
    start = at(100, 0)
    there = backlog(start, all_heads(HEADS), HEADS)
    ends = limited(there, HEADS, pages, max_rows=None, max_bytes=30_000)
    assert ends == {("s", 0): 300, ("s", 1): 100}
    assert limited(there, HEADS, pages, max_rows=None, max_bytes=150_000) == {
        ("s", 0): 1100, ("s", 1): 500,
    }  # fmt: skip
    both = limited(there, HEADS, pages, max_rows=60, max_bytes=30_000)
    assert both == {("s", 0): 140, ("s", 1): 20}


def test_a_limit_below_one_record_reads_one() -> None:
    there = backlog(at(100, 0), all_heads(HEADS), HEADS)
    ends = limited(there, HEADS, pages, max_rows=None, max_bytes=1)
    assert rows_of(ends, at(100, 0)) == 1


def test_pages_are_not_asked_for_when_little_is_there() -> None:
    def never(stream: str, partition: int) -> PartitionPages:
        raise AssertionError((stream, partition))

    there = backlog(at(1090, 490), all_heads(HEADS), HEADS)
    ends = limited(there, HEADS, never, max_rows=None, max_bytes=1 << 20)
    assert ends == {("s", 0): 1100, ("s", 1): 500}
    assert len(tasks(list(there.values()), HEADS, never, max_bytes=1 << 20)) == 2


# ---- tasks ---------------------------------------------------------------------------------------


WHOLE = [Range("s", 0, 100, 1100), Range("s", 1, 0, 500)]


def joined(cut: list[Range]) -> list[Range]:
    """Ranges that follow one another, made one again."""
    found: list[Range] = []
    for one in cut:
        if found and found[-1][:2] == one[:2] and found[-1].end == one.start:
            found[-1] = found[-1]._replace(end=one.end)
        else:
            found.append(one)
    return found


def test_one_task_for_each_range_that_is_small() -> None:
    assert tasks(WHOLE, HEADS, pages, max_bytes=1 << 20) == WHOLE
    assert tasks([], HEADS, pages, max_bytes=1) == []


def test_large_ranges_are_cut_at_borders_of_pages_where_one_is_near() -> None:
    cut = tasks(WHOLE, HEADS, pages, max_bytes=60_000)
    assert cut == [Range("s", 0, 100, 600), Range("s", 0, 600, 1100), Range("s", 1, 0, 500)]
    uneven = {("s", 0): PartitionPages([PageSpan(100, 560, 56_000), PageSpan(660, 440, 44_000)])}
    cut = tasks(WHOLE[:1], HEADS, lambda s, p: uneven[s, p], max_bytes=60_000)
    assert cut == [Range("s", 0, 100, 660), Range("s", 0, 660, 1100)]


def test_min_partitions() -> None:
    cut = tasks(WHOLE, HEADS, pages, max_bytes=1 << 20, min_count=6)
    assert len(cut) == 6
    assert joined(cut) == WHOLE
    assert max(one.end - one.start for one in cut) <= 251
    few = [Range("s", 0, 100, 102)]
    assert tasks(few, HEADS, pages, max_bytes=1 << 20, min_count=6) == [
        Range("s", 0, 100, 101), Range("s", 0, 101, 102),
    ]  # fmt: skip


def test_max_records_of_a_task() -> None:
    cut = tasks(WHOLE, HEADS, pages, max_bytes=1 << 20, max_rows=300)
    assert joined(cut) == WHOLE
    assert max(one.end - one.start for one in cut) <= 300


@given(
    first=st.integers(0, 50),
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5000)), min_size=1, max_size=8),
    part=st.tuples(st.integers(0, 100), st.integers(0, 100)),
    max_bytes=st.integers(1, 10_000),
    min_count=st.none() | st.integers(1, 20),
    max_rows=st.none() | st.integers(1, 50),
)
def test_tasks_are_the_range_again(
    first: int,
    sizes: list[tuple[int, int]],
    part: tuple[int, int],
    max_bytes: int,
    min_count: int | None,
    max_rows: int | None,
) -> None:
    spans = []
    base = first
    for records, size in sizes:
        spans.append(PageSpan(base, records, size))
        base += records
    head = PartitionHead(first, base, 0, sum(size for _, size in sizes), "x")
    low, high = sorted(first + p * (base - first) // 100 for p in part)
    if low == high:
        return
    one = Range("t", 0, low, high)
    cut = tasks(
        [one], {"t": {0: head}}, lambda s, p: PartitionPages(spans), max_bytes=max_bytes,
        max_rows=max_rows, min_count=min_count,
    )  # fmt: skip
    assert joined(cut) == [one]
    assert all(piece.start < piece.end for piece in cut)
    if max_rows is not None:
        assert len(cut) >= min(ceil((high - low) / max_rows), high - low)


@given(
    backlogs=st.lists(st.integers(0, 1000), min_size=1, max_size=6),
    max_rows=st.none() | st.integers(1, 500),
    max_bytes=st.none() | st.integers(1, 20_000),
)
def test_limits_make_progress_and_keep_to_what_is_there(
    backlogs: list[int], max_rows: int | None, max_bytes: int | None
) -> None:
    heads: Heads = {
        "t": {
            n: PartitionHead(5, 5 + rows, 0, rows * 10, str(n)) for n, rows in enumerate(backlogs)
        }
    }
    start = Positions({("t", n): 5 for n in heads["t"]}, ids_of(heads))
    there = backlog(start, all_heads(heads), heads)

    def table(stream: str, partition: int) -> PartitionPages:
        head = heads[stream][partition]
        return table_of_average(head.first, head.head, head.bytes)

    ends = limited(there, heads, table, max_rows=max_rows, max_bytes=max_bytes)
    rows = [ends[key] - one.start for key, one in there.items()]
    assert all(0 <= n <= most for n, most in zip(rows, backlogs, strict=True))
    assert (sum(rows) > 0) == (sum(backlogs) > 0)
    if max_rows is not None:
        assert sum(rows) <= max(max_rows, 0) + len(backlogs)
    if max_bytes is not None and sum(rows) > 1:
        assert sum(rows) * 10 <= max_bytes


def test_a_head_knows_the_size_of_a_record() -> None:
    head = HEADS["s"][0]
    assert head.record_bytes == 100
    assert replace(head, bytes=0).record_bytes == 1


# ---- classic queues ------------------------------------------------------------------------------

READER = {"q": "job"}


def lease(first: int, head: int, ready: int = 0) -> Heads:
    """Of bodies of 100 B."""
    size = (head - first) * 100
    return {"q": {0: PartitionHead(first, head, 0, size, "a", "", "job", ready, ready * 100)}}


def leased_from(start: int, heads: Heads, target: int) -> tuple[int, int]:
    at = Positions({("q", 0): start}, ids_of(heads), READER)
    found = backlog(at, Positions({("q", 0): target}, ids_of(heads)), heads)["q", 0]
    return found.start, found.end


def test_what_is_leased_comes_before_what_is_ready() -> None:
    assert leased_from(40, lease(40, 100, 50), 150) == (40, 100)
    assert leased_from(100, lease(40, 100, 50), 150) == (100, 150)
    assert leased_from(100, lease(40, 100, 50), 130) == (100, 130)
    assert leased_from(100, lease(40, 100, 10), 150) == (100, 110)
    assert leased_from(500, lease(40, 100, 10), 110) == (100, 110)


def test_messages_to_be_leased_are_limited_by_their_average() -> None:
    heads = lease(0, 0, 1000)
    there = {("q", 0): Range("q", 0, 0, 1000)}
    assert limited(there, heads, pages, max_rows=None, max_bytes=5000) == {("q", 0): 50}
    assert limited(there, heads, pages, max_rows=30, max_bytes=5000) == {("q", 0): 30}
    assert limited(there, heads, pages, max_rows=None, max_bytes=10) == {("q", 0): 1}


def test_bytes_are_shared_by_what_is_read() -> None:
    heads = lease(0, 0, 300) | {"s": {0: PartitionHead(0, 100, 0, 10_000)}}
    there = {("q", 0): Range("q", 0, 0, 300), ("s", 0): Range("s", 0, 0, 100)}
    ends = {("q", 0): 300, ("s", 0): 100}
    assert shares(there, ends, heads, 8000) == {("q", 0): 6000, ("s", 0): 2000}
    assert shares(there, {("q", 0): 0, ("s", 0): 100}, heads, 8000)["q", 0] == 1


def test_losses_of_a_lease_name_queue_and_reader() -> None:
    heads = lease(40, 100)
    told = "queue 'q', leased by reader 'job': "

    def losses(first: int, last: int, id: str | None = None) -> list[str]:
        ids = ids_of(heads) if id is None else {"q": id}
        start = Positions({("q", 0): first}, ids, READER)
        _, found = ranges(start, Positions({("q", 0): last}, ids, READER), heads)
        return [str(one) for one in found]

    assert losses(40, 100) == []
    assert losses(30, 100) == [
        f"{told}messages 30 to 39 were committed, so the queue no longer has them"
    ]
    assert losses(40, 120)[0].startswith(f"{told}it ends at message 100, expected at least 120")
    assert losses(40, 100, "other")[0].startswith(f"{told}its lease is gone")
    start = Positions({("q", 0): 120}, ids_of(heads), READER)
    assert "it ends at message 100, expected at least 120" in str(behind(start, heads)[0])
    assert str(behind(start, {})[0]) == f"{told}it no longer exists"


# ---- several ranges in a task --------------------------------------------------------------------


def many(count: int, rows: int, record_bytes: int = 100) -> tuple[list[Range], Heads]:
    """So many partitions of a stream, with as many rows each."""
    heads: Heads = {
        "s": {n: PartitionHead(0, rows, 0, rows * record_bytes, f"{n}") for n in range(count)}
    }
    return [Range("s", n, 0, rows) for n in range(count)], heads


def test_small_ranges_share_a_task_until_it_has_enough() -> None:
    found, heads = many(10, 100)  # of 12,800 bytes each, as 100 is taken for 128
    assert [len(task) for task in packed(found, heads, max_bytes=40_000)] == [3, 3, 3, 1]
    assert [len(task) for task in packed(found, heads, max_bytes=1 << 20)] == [10]
    assert packed(found, heads, max_bytes=0) == [(one,) for one in found]
    assert packed(found, heads, max_bytes=12_799) == [(one,) for one in found]
    assert packed([], heads, max_bytes=1 << 20) == []


def test_no_more_rows_than_a_task_may_have() -> None:
    found, heads = many(10, 100)
    made = packed(found, heads, max_bytes=1 << 20, max_rows=450)
    assert [len(task) for task in made] == [4, 4, 2]


def test_as_many_tasks_as_are_asked_for() -> None:
    found, heads = many(10, 100)
    for least in range(1, 12):
        tasks_of = packed(found, heads, max_bytes=1 << 20, min_count=least)
        assert len(tasks_of) == max(least, len(tasks_of)) or len(tasks_of) == 10
        assert len(tasks_of) >= min(least, 10)


def test_growing_streams_do_not_change_the_tasks_of_a_batch() -> None:
    found, heads = many(10, 100, 70)
    later = {"s": {n: replace(at, head=900, bytes=900 * 120) for n, at in heads["s"].items()}}
    assert packed(found, heads, max_bytes=40_000) == packed(found, later, max_bytes=40_000)


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 400), st.integers(0, 3000)),
        max_size=12, unique_by=lambda part: part[:2],
    ),
    max_bytes=st.integers(1, 200_000),
    shared=st.integers(0, 200_000),
    min_count=st.none() | st.integers(1, 20),
    max_rows=st.none() | st.integers(1, 500),
)  # fmt: skip
def test_any_packing_reads_each_offset_once_and_in_order(
    parts: list[tuple[int, int, int, int]], max_bytes: int, shared: int, min_count: int | None,
    max_rows: int | None,
) -> None:  # fmt: skip
    heads: Heads = {}
    there: dict[tuple[str, int], PartitionPages] = {}
    found = []
    for stream, partition, rows, size in sorted(parts):
        name = f"s{stream}"
        heads.setdefault(name, {})[partition] = PartitionHead(0, rows, 0, rows * size, "x")
        there[name, partition] = PartitionPages([PageSpan(0, rows, rows * size)])
        found.append(Range(name, partition, rows // 3, rows))
    cut = tasks(
        found, heads, lambda s, p: there[s, p], max_bytes=max_bytes, max_rows=max_rows,
        min_count=min_count,
    )  # fmt: skip
    made = packed(cut, heads, max_bytes=shared, max_rows=max_rows, min_count=min_count)
    assert [one for task in made for one in task] == cut
    assert joined(cut) == found
    assert len(made) >= min(min_count or 0, len(cut))
    for task in made:
        rows = sum(one.end - one.start for one in task)
        size = sum(
            (one.end - one.start) * heads[one.stream][one.partition].record_bytes for one in task
        )
        assert len(task) == 1 or (size <= shared and (max_rows is None or rows <= max_rows))
