"""Rows against a dict: both ends, the middle, any order, across many blocks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.queues.rows import (
    AT_ENTRY,
    BLOCK_ROWS,
    HAS_ENTRY,
    IN_STORE,
    ON_SLOT,
    PERSISTENT,
    ROW_BYTES,
    Row,
    Rows,
)

START, NOW_S = 7, 1_700_000_000
ID_BASE = START << 40


def row(seq: int, flags: int = PERSISTENT | ON_SLOT) -> Row:
    return Row(seq, flags, ID_BASE + seq, seq % 1000, seq % 97, seq * 3, seq % 256, NOW_S + 5)


def fields(r: Row) -> tuple[int, ...]:
    time = 0 if r.flags & PERSISTENT else r.time
    return (r.seq, r.flags, r.id, r.size, r.place, r.expiry_ms, r.header_len, time)


flags = st.sampled_from(
    [PERSISTENT, PERSISTENT | ON_SLOT | IN_STORE, HAS_ENTRY | AT_ENTRY, ON_SLOT, 0]
)


@given(
    seq=st.integers(0, (1 << 56) - 1), kind=flags, id=st.integers(0, (1 << 40) - 1),
    size=st.integers(0, (1 << 32) - 1), place=st.integers(0, (1 << 32) - 1),
    expiry_ms=st.integers(0, (1 << 48) - 1), header_len=st.integers(0, 255),
    age_s=st.integers(0, (1 << 24) - 1),
)  # fmt: skip
def test_a_row_comes_back_as_it_was(
    seq: int, kind: int, id: int, size: int, place: int, expiry_ms: int, header_len: int,
    age_s: int,
) -> None:  # fmt: skip
    rows = Rows(START, NOW_S)
    one = Row(seq, kind, ID_BASE + id, size, place, expiry_ms, header_len, NOW_S + age_s)
    rows.append(one)
    assert fields(rows.first()) == fields(rows.last()) == fields(one)


operations = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "left", "insert", "remove", "first", "last", "drop", "find", "between"]
        ),
        st.integers(0, 1 << 20),
    ),
    max_size=120,
)


@settings(deadline=None)
@given(many=st.sampled_from([0, 3, BLOCK_ROWS, 3 * BLOCK_ROWS + 1]), steps=operations)
def test_rows_are_a_sorted_map(many: int, steps: list[tuple[str, int]]) -> None:
    rows = Rows(START, NOW_S)
    model = {seq * 4 + (1 << 21): row(seq * 4 + (1 << 21)) for seq in range(many)}
    for seq in model:
        rows.append(model[seq])
    for what, n in steps:
        order = sorted(model)
        if what == "append":
            seq = (order[-1] if order else 1 << 21) + 1 + n % 5
            model[seq] = row(seq)
            rows.append(model[seq])
        elif what == "left":
            seq = (order[0] if order else 1 << 21) - 1 - n % 5
            model[seq] = row(seq)
            rows.append_left(model[seq])
        elif what == "insert":
            seq = (1 << 21) + n % (4 * many + 8)
            if seq not in model:
                model[seq] = row(seq)
                rows.insert(model[seq])
        elif what in ("remove", "find"):
            seq = order[n % len(order)] if order and n % 3 else (1 << 21) + n % (4 * many + 8)
            found = rows.remove(seq) if what == "remove" else rows.find(seq)
            expected = model.pop(seq, None) if what == "remove" else model.get(seq)
            assert (found is None) == (expected is None)
            assert found is None or expected is None or fields(found) == fields(expected)
        elif what == "between":
            start = (1 << 21) + n % (4 * many + 8)
            assert rows.seqs_between(start, start + 40) == [
                seq for seq in order if start <= seq < start + 40
            ]
        elif order and what == "first":
            assert fields(rows.pop_first()) == fields(model.pop(order[0]))
        elif order and what == "last":
            assert fields(rows.pop_last()) == fields(model.pop(order[-1]))
        elif order:
            rows.drop_first()
            del model[order[0]]
        assert rows.count == len(model)
        assert rows.first_seq() == min(model, default=-1)
        assert rows.last_seq() == max(model, default=-1)
    assert rows.seqs() == sorted(model)
    assert [fields(r) for r in rows.rows()] == [fields(model[seq]) for seq in sorted(model)]


def test_extend_moves_all_rows() -> None:
    first, second = Rows(START, NOW_S), Rows(START, NOW_S)
    for seq in range(5):
        first.append(row(seq))
    for seq in range(10, 2000):
        second.append(row(seq))
    first.extend(second)
    assert first.seqs() == [*range(5), *range(10, 2000)]
    assert first.count == 1995
    assert (second.count, second.seqs()) == (0, [])


def test_a_row_takes_32_bytes() -> None:
    rows = Rows(START, NOW_S)
    for seq in range(100 * BLOCK_ROWS):
        rows.append(row(seq))
    assert rows.ram_bytes() == rows.count * ROW_BYTES
    for _ in range(99 * BLOCK_ROWS):
        rows.drop_first()
    assert rows.ram_bytes() <= 2 * BLOCK_ROWS * ROW_BYTES
