"""Rows: what a row remembers, both ends, and the bytes that they take.

That they are an ordered dict in all other respects, tests/property asks."""

from typing import Final

import pytest

from penstock.queues.rows import (
    AT_ENTRY,
    AT_STORE,
    BLOCK_ROWS,
    HAS_ENTRY,
    IN_STORE,
    ON_SLOT,
    PERSISTENT,
    ROW_BYTES,
    Row,
    Rows,
)

START: Final = 77  # number of this start, in the upper bits of ids
BASE_S: Final = 1_700_000_000


def row(seq: int, *, flags: int = PERSISTENT | ON_SLOT | HAS_ENTRY) -> Row:
    return Row(seq, flags, START << 40 | seq + 1, seq % 1000, seq % 500, seq * 3, seq % 256, BASE_S)


def fields(one: Row | None) -> tuple[int, ...] | None:
    if one is None:
        return None
    return one.seq, one.flags, one.id, one.size, one.place, one.expiry_ms, one.header_len


def filled(seqs: list[int]) -> Rows:
    rows = Rows(START, BASE_S)
    for seq in seqs:
        rows.append(row(seq))
    return rows


def test_a_row_comes_back_as_it_was() -> None:
    full = Row(
        (1 << 56) - 1, PERSISTENT | IN_STORE | HAS_ENTRY | ON_SLOT | AT_ENTRY, (1 << 64) - 1,
        (1 << 32) - 1, (1 << 32) - 1, (1 << 48) - 1, 255, 0,
    )  # fmt: skip
    rows = Rows(START, BASE_S)
    rows.append(full)
    assert fields(rows.first()) == fields(rows.last()) == fields(rows.find(full.seq))
    assert fields(rows.pop_first()) == fields(full)
    assert rows.count == 0


@pytest.mark.parametrize("age", [0, 1, (1 << 24) - 1])
def test_a_transient_row_remembers_its_time(age: int) -> None:
    rows = Rows(START, BASE_S)
    rows.append(Row(5, IN_STORE | AT_STORE, START << 40 | 9, 10, 3, 0, 0, BASE_S + age))
    got = rows.first()
    assert (got.time, got.id, got.place) == (BASE_S + age, START << 40 | 9, 3)


@pytest.mark.parametrize("n", [0, 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS])
def test_both_ends(n: int) -> None:
    rows = filled(list(range(0, 2 * n, 2)))
    assert (rows.count, rows.seqs()) == (n, list(range(0, 2 * n, 2)))
    assert (rows.first_seq(), rows.last_seq()) == ((0, 2 * n - 2) if n else (-1, -1))
    half = n // 2
    taken = [rows.pop_last().seq for _ in range(half)]
    assert taken == list(range(2 * n - 2, 2 * (n - half) - 2, -2))
    for seq in reversed(taken):
        rows.append(row(seq))
    taken = [rows.pop_first().seq for _ in range(half)]
    assert taken == list(range(0, 2 * half, 2))
    for seq in reversed(taken):
        rows.append_left(row(seq))
    assert (rows.count, rows.seqs()) == (n, list(range(0, 2 * n, 2)))


@pytest.mark.parametrize(("n", "m"), [(0, 5), (5, 0), (700, 900)])
def test_extend_moves_all_of_the_other(n: int, m: int) -> None:
    rows, other = filled(list(range(n))), filled(list(range(n, n + m)))
    rows.extend(other)
    assert rows.seqs() == list(range(n + m))
    assert (rows.count, other.count, other.seqs()) == (n + m, 0, [])


@pytest.mark.parametrize("way", ["queue", "stack", "holes", "last of each block"])
def test_rows_give_their_bytes_back(way: str) -> None:
    rows = filled(list(range(20 * BLOCK_ROWS)))
    assert rows.ram_bytes() <= rows.count * ROW_BYTES * 1.1
    if way in ("queue", "stack"):
        for seq in range(20 * BLOCK_ROWS, 60 * BLOCK_ROWS):
            rows.append(row(seq))
            if way == "queue":
                rows.pop_first()
            else:
                rows.pop_last()
        assert rows.ram_bytes() <= rows.count * ROW_BYTES * 2
        return
    every = 64 if way == "holes" else BLOCK_ROWS
    for seq in range(20 * BLOCK_ROWS):
        if seq % every != every - 1:
            rows.remove(seq)
    assert rows.seqs() == list(range(every - 1, 20 * BLOCK_ROWS, every))
    blocks = 20  # of each a little more than its rows may stay
    assert rows.ram_bytes() <= rows.count * ROW_BYTES * 2 + blocks * BLOCK_ROWS * ROW_BYTES // 4
