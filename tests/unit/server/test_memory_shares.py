from hypothesis import given
from hypothesis import strategies as st

from penstock.server.memory_shares import changes, divide, fits

DEPTHS = st.dictionaries(st.text(max_size=3), st.integers(0, 1 << 40), max_size=8)


def test_half_goes_equally_and_half_by_depth() -> None:
    assert divide(1000, {"a": 30, "b": 10}) == {"a": 250 + 375, "b": 250 + 125}
    assert divide(1000, {"a": 0, "b": 0}) == {"a": 500, "b": 500}
    assert divide(1000, {"a": 7}) == {"a": 1000}
    assert divide(1000, {}) == {}


@given(st.integers(0, 1 << 40), DEPTHS)
def test_the_parts_never_exceed_the_whole(whole: int, depths: dict[str, int]) -> None:
    parts = divide(whole, depths)
    assert parts.keys() == depths.keys()
    assert sum(parts.values()) <= whole


@given(st.integers(0, 1 << 40), DEPTHS, DEPTHS)
def test_nor_while_they_change(whole: int, before: dict[str, int], after: dict[str, int]) -> None:
    after = {name: after.get(name, 0) for name in before}
    now = divide(whole, before)
    shrinking, growing = changes(now, divide(whole, after))
    now.update(shrinking)
    assert sum(now.values()) <= whole
    now.update(fits(whole, now, growing))
    assert sum(now.values()) <= whole


def test_small_changes_are_left_out() -> None:
    assert changes({"a": 6400, "b": 6400}, {"a": 6450, "b": 6200}) == ({"b": 6200}, {})
    assert changes({}, {"a": 1}) == ({}, {"a": 1})


def test_what_does_not_fit_yet_grows_less() -> None:
    assert fits(100, {"a": 50, "b": 30}, {"a": 60, "b": 60}) == {"a": 55, "b": 45}
    assert fits(100, {"a": 70, "b": 40}, {"b": 60}) == {}
