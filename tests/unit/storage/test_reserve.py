"""Reserve: room that is really taken, given back at once, and no error when there is none."""

import errno
from collections.abc import Callable

import pytest

from penstock.storage.journal.journal import RESERVE_STEP_BYTES as STEP
from penstock.storage.journal.journal import Reserve
from tests.helpers.faulty_filesystem import FaultyFileSystem

MANY = 1 << 40


def wanted(reserve: Reserve, want: int, available: int) -> Callable[[], object] | None:
    """The growth to so many bytes."""
    reserve.want(want)
    return reserve.take_growth(available)


def reserve(capacity: int | None = None) -> tuple[FaultyFileSystem, Reserve]:
    fs = FaultyFileSystem(capacity=capacity)
    fs.mkdir("/v")
    return fs, Reserve(fs, "/v")


def grow(r: Reserve, want: int, available: int = MANY) -> bool:
    """Whether there was anything to do."""
    op = wanted(r, want, available)
    if op is not None:
        r.grown(op())
    return op is not None


def test_there_is_no_file_until_it_is_wanted() -> None:
    fs, r = reserve()
    assert (r.bytes, r.missing(), r.release(), fs.exists("/v/reserve")) == (0, 0, False, False)


def test_it_is_made_of_written_bytes_in_whole_steps() -> None:
    fs, r = reserve()
    assert grow(r, 10)
    assert (r.bytes, r.missing(), fs.size("/v/reserve")) == (
        STEP,
        0,
        STEP,
    )
    assert fs.used_bytes() == STEP


def test_it_grows_by_doubling_and_does_not_shrink_when_less_is_wanted() -> None:
    fs, r = reserve()
    grow(r, 2 * STEP)
    grow(r, 3 * STEP)
    assert r.bytes == 4 * STEP
    assert not grow(r, 1)
    assert (r.bytes, fs.size("/v/reserve"), r.missing()) == (
        4 * STEP,
        4 * STEP,
        0,
    )


def test_release_gives_all_of_it_back() -> None:
    fs, r = reserve()
    grow(r, STEP)
    assert r.release()
    assert (r.bytes, fs.size("/v/reserve"), r.missing()) == (0, 0, STEP)
    assert not r.release()


def test_it_grows_once_at_a_time_and_is_not_released_meanwhile() -> None:
    _, r = reserve()
    grow(r, STEP)
    op = wanted(r, 2 * STEP, MANY)
    assert op is not None
    assert wanted(r, 3 * STEP, MANY) is None
    assert not r.release()
    r.grown(op())
    assert r.bytes == 2 * STEP
    assert r.release()


def test_it_leaves_what_is_not_available() -> None:
    _, r = reserve()
    assert not grow(r, STEP, STEP - 1)
    assert (r.bytes, r.missing()) == (0, STEP)


def test_a_full_disk_is_no_error_and_leaves_nothing_behind() -> None:
    fs, r = reserve(capacity=STEP // 2)
    assert grow(r, STEP)
    assert (r.bytes, r.missing(), fs.used_bytes()) == (0, STEP, 0)


def test_a_file_that_cannot_even_be_made_is_the_callers_to_hear_of() -> None:
    fs, r = reserve()
    fs.fail(errno.ENOSPC, kinds={"create"})
    op = wanted(r, STEP, MANY)
    assert op is not None
    with pytest.raises(OSError, match="No space"):
        op()
    r.grown(0)
    assert (r.bytes, r.missing()) == (0, STEP)


def test_it_is_found_again_after_a_restart() -> None:
    fs, r = reserve()
    grow(r, STEP)
    assert Reserve(fs, "/v").bytes == STEP


def test_where_twice_as_much_does_not_fit_it_grows_to_what_is_wanted() -> None:
    _, r = reserve()
    grow(r, 2 * STEP)
    assert grow(r, 3 * STEP, STEP)
    assert r.bytes == 3 * STEP


def test_a_file_that_could_not_grow_can_still_be_given_back() -> None:
    fs, r = reserve()
    grow(r, 2 * STEP)
    fs.fail(errno.EIO, kinds={"allocate"})
    fs.fail(errno.EIO, kinds={"truncate"})
    op = wanted(r, 5 * STEP, MANY)
    assert op is not None
    with pytest.raises(OSError, match="error"):
        op()
    r.not_grown()
    assert r.bytes == fs.size("/v/reserve") == 2 * STEP
    assert r.release()
    assert fs.used_bytes() == 0


def test_it_is_trimmed_in_whole_steps_and_not_while_it_grows() -> None:
    fs, r = reserve()
    grow(r, 8 * STEP)
    r.trim(2 * STEP - 1)
    assert r.bytes == fs.size("/v/reserve") == 2 * STEP
    r.trim(5 * STEP)
    assert r.bytes == 2 * STEP
    op = wanted(r, 4 * STEP, MANY)
    assert op is not None
    r.trim(0)
    assert r.bytes == 2 * STEP
    r.grown(op())
    fs.fail(errno.EIO, kinds={"truncate"})
    r.trim(0)
    assert r.bytes == 4 * STEP, "a disk that does not let us keeps it"
