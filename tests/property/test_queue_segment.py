"""Segment files: all comes back; of a damaged byte comes an error or the right message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptionError
from penstock.message import Entry, QueuedMessage
from penstock.storage.index.queue_segment import Handles, SegmentFiles
from tests.helpers.faulty_filesystem import FaultyFileSystem

SLOTS = 4
FIELDS = ("id", "header", "body", "size", "time", "expiry_ms", "store_file")

_headers = st.one_of(
    st.just(b""), st.binary(max_size=20), st.integers(250, 260).map(lambda n: b"h" * n)
)


@st.composite
def messages(draw: st.DrawFn) -> QueuedMessage:
    body = draw(st.binary(max_size=40))
    store = draw(st.one_of(st.just(0), st.integers(1, (1 << 32) - 1)))
    return QueuedMessage(
        draw(st.integers(0, (1 << 64) - 1)), draw(_headers), None if store else body, len(body),
        draw(st.integers(0, (1 << 32) - 1)), draw(st.integers(0, (1 << 48) - 1)), store,
    )  # fmt: skip


segments = st.dictionaries(st.integers(0, SLOTS - 1), messages(), min_size=1)


def files(fs: FaultyFileSystem) -> SegmentFiles:
    return SegmentFiles(fs, "/2", 99, 7, 2, SLOTS, Handles())


def write(found: dict[int, QueuedMessage], calls: int = 1) -> FaultyFileSystem:
    """All entries, in so many calls of write."""
    fs = FaultyFileSystem()
    entries = [Entry(2 * SLOTS + rel, found[rel]) for rel in sorted(found)]
    for part in range(calls):
        some = entries[part::calls]
        if some:
            files(fs).write(some)
    return fs


def is_same(found: QueuedMessage, wanted: QueuedMessage) -> bool:
    return all(getattr(found, name) == getattr(wanted, name) for name in FIELDS)


@given(segments, st.integers(1, 3), st.data())
def test_what_was_written_comes_back(
    wanted: dict[int, QueuedMessage], calls: int, data: st.DataObject
) -> None:
    fs = write(wanted, calls)
    some = data.draw(st.lists(st.sampled_from(sorted(wanted)), min_size=1, unique=True))
    seqs = sorted(2 * SLOTS + rel for rel in some)
    for seq, found in zip(seqs, files(fs).messages(seqs), strict=True):
        assert is_same(found, wanted[seq % SLOTS])


@given(segments, st.data())
def test_a_seq_that_was_not_written_is_an_error(
    wanted: dict[int, QueuedMessage], data: st.DataObject
) -> None:
    missing = sorted(set(range(SLOTS)) - set(wanted))
    if missing:
        fs = write(wanted)
        rel = data.draw(st.sampled_from(missing))
        with pytest.raises(CorruptionError):
            files(fs).messages([2 * SLOTS + rel])


@given(segments, st.sampled_from([".qi", ".qs"]), st.data())
def test_of_any_damage_comes_an_error_or_the_right_message(
    wanted: dict[int, QueuedMessage], ending: str, data: st.DataObject
) -> None:
    fs = write(wanted)
    path = "/2" + ending
    if not fs.exists(path):
        return
    size = fs.size(path)
    position = data.draw(st.integers(0, size - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "garbage", "zeros"]))
    if how == "flip":
        fs.damage_flip(path, position, data.draw(st.integers(0, 7)))
    elif how == "cut":
        fs.damage_cut(path, position)
    elif how == "zeros":
        fs.damage_zero_tail(path, size - position)
    else:
        fs.damage_garbage(path, position, min(40, size - position))
    for rel, message in wanted.items():
        try:
            (found,) = files(fs).messages([2 * SLOTS + rel])
        except CorruptionError as error:
            told = error
        else:
            assert is_same(found, message)
            continue
        assert told.path in ("/2.qi", "/2.qs")
        assert 0 <= told.position < 1 << 32


@given(segments, segments)
def test_a_later_write_of_a_seq_wins(
    first: dict[int, QueuedMessage], second: dict[int, QueuedMessage]
) -> None:
    fs = write(first)
    entries = [Entry(2 * SLOTS + rel, second[rel]) for rel in sorted(second)]
    files(fs).write(entries)
    for rel, wanted in (first | second).items():
        (found,) = files(fs).messages([2 * SLOTS + rel])
        assert is_same(found, wanted)
