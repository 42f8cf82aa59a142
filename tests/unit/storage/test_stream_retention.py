"""Which pages retention takes: whole ones, the oldest, and never too many."""

import errno
import random

import pytest

from penstock.errors import StoppedError, SyncFailedError
from penstock.storage.pages.persistent_queue import Hold, PersistentQueue
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.page_queue_rig import PATH, alone, fill, offsets

SECOND_US = 1_000_000


def queue_of(count: int, fs: FaultyFileSystem | None = None) -> PersistentQueue:
    """Record n came at n seconds."""
    queue = alone(fs or FaultyFileSystem(), 300)
    for n in range(count):
        queue.append(b"x" * 20, b"", n * SECOND_US)
    queue.force()
    return queue


def test_no_limit_takes_nothing() -> None:
    queue = queue_of(30)
    assert queue.retain(now_us=10**15) == 0


@pytest.mark.parametrize("records", range(0, 35, 3))
def test_records_at_least_so_many_stay_and_at_most_a_page_more(records: int) -> None:
    queue = queue_of(30)
    per_page = queue.pages.bases[1]
    queue.retain(max_records=records, now_us=0)
    stay = queue.next_offset - queue.first_offset
    assert min(records, 30) <= stay
    assert stay < records + per_page or queue.first_offset == 0 or len(queue.pages) == 1


@pytest.mark.parametrize("limit", [0, 100, 300, 600, 601, 1000, 5000])
def test_bytes_at_most_so_many_stay(limit: int) -> None:
    queue = queue_of(30)
    before = queue.bytes
    gone = queue.retain(max_bytes=limit, now_us=0)
    assert queue.bytes <= limit or len(queue.pages) == 1
    assert (gone == 0) == (before <= limit)
    fs = queue.fs
    assert queue.bytes == sum(fs.size(f"{PATH}/{base:020}.page") for base in queue.pages.bases)
    if gone:
        assert queue.bytes + 300 > limit  # none too many


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("age_s", [0, 4.5, 5, 10, 29, 100])
def test_age_takes_pages_whose_last_record_is_older(age_s: float, reopened: bool) -> None:
    fs = FaultyFileSystem()
    queue = queue_of(30, fs)
    bases = list(queue.pages.bases)
    if reopened:
        queue.close()
        queue = alone(fs, 300)
    queue.retain(max_age_s=age_s, now_us=29 * SECOND_US)
    expected = [
        base
        for base, end in zip(bases, [*bases[1:], 0], strict=True)
        if not end or (end - 1) >= 29 - age_s
    ]
    assert queue.pages.bases == expected


def test_the_first_limit_that_is_passed_decides() -> None:
    queue = queue_of(30)
    queue.retain(max_age_s=1e9, max_records=10**9, max_bytes=0, now_us=30 * SECOND_US)
    assert len(queue.pages) == 1


@pytest.mark.parametrize("keep", range(0, 31, 4))
def test_what_must_be_kept_is_kept(keep: int) -> None:
    queue = queue_of(30)
    queue.retain(max_records=0, now_us=0, keep_from=keep)
    assert queue.first_offset <= keep
    assert queue.pages.end_of(queue.first_offset, 30) > keep or len(queue.pages) == 1


def test_what_is_not_forced_is_kept() -> None:
    queue = queue_of(5)
    for _ in range(30):
        queue.append(b"x" * 20, b"", 10 * SECOND_US)
    queue.retain(max_records=0, now_us=0)
    assert queue.first_offset < 5
    queue.force()
    queue.retain(max_records=0, now_us=0)
    assert len(queue.pages) == 1


def test_readmeta_is_durable_before_a_page_goes() -> None:
    fs = FaultyFileSystem()
    queue = queue_of(30, fs)
    journal = fs.start_journal()
    queue.retain(max_records=9, now_us=0)
    kinds = [entry.kind for entry in journal.entries]
    assert kinds[: kinds.index("unlink")][-3:] == ["sync", "rename", "sync_dir"]
    assert kinds.count("unlink") == len([k for k in kinds if k == "unlink"]) > 2


def test_a_failed_sync_of_readmeta_stops_the_queue_and_deletes_nothing() -> None:
    fs = FaultyFileSystem()
    queue = queue_of(30, fs)
    pages = [name for name in fs.list(PATH) if name.endswith(".page")]
    fs.fail(5, kinds=["sync"], path="readMeta")
    with pytest.raises(SyncFailedError):
        queue.retain(max_records=9, now_us=0)
    assert [name for name in fs.list(PATH) if name.endswith(".page")] == pages
    with pytest.raises(StoppedError):
        queue.force()


def test_what_a_crash_left_of_deleted_pages_goes_at_the_next_start() -> None:
    fs = FaultyFileSystem()
    queue = queue_of(30, fs)
    plan = queue.plan_retain(max_records=9, now_us=0)
    assert plan is not None
    plan.run(unlink=False)
    again = alone(fs.crash("kept", random.Random(1)), 300)
    assert again.first_offset == plan.first_base
    assert not any(again.fs.exists(path) for path in plan.paths)


def test_appending_goes_on_after_everything_but_the_last_page_went() -> None:
    queue = queue_of(30)
    queue.retain(max_records=0, now_us=0)
    fill(queue, 40, first_us=30 * SECOND_US)
    first = queue.first_offset
    assert offsets(queue.read(0, 99, 9999)) == list(range(first, 70))


# ---- what readers hold ---------------------------------------------------------------------------


def held(queue: PersistentQueue, offset: int, **bounds: float) -> int:
    """The first offset that stays, at 30 s, of a stream that may keep nothing older than 5 s, while
    a reader asks to keep all from `offset` on."""
    hold = Hold(offset, **bounds)  # type: ignore[arg-type]
    queue.plan_retain(max_age_s=5, now_us=30 * SECOND_US, hold=hold)
    return queue.first_offset


@pytest.mark.parametrize("offset", range(0, 31, 3))
def test_a_reader_holds_its_records_and_no_older_ones(offset: int) -> None:
    without = queue_of(30)
    without.plan_retain(max_age_s=5, now_us=30 * SECOND_US)
    queue = queue_of(30)
    per_page = queue.pages.bases[1]
    assert held(queue, offset) == min(offset // per_page * per_page, without.first_offset)


@pytest.mark.parametrize("seconds", [0, 1, 7, 15, 100])
def test_a_hold_is_bounded_in_age(seconds: int) -> None:
    """A user who may only read could hold all of a stream for ever."""
    queue = queue_of(30)
    bases = list(queue.pages.bases)
    ends = dict(zip(bases, [*bases[1:], 30], strict=True))
    first = held(queue, 0, max_age_s=seconds)
    # The last record of the first page that stays is young enough, that of the one before is not.
    assert ends[first] - 1 >= 25 - seconds
    assert all(end - 1 < 25 - seconds for base, end in ends.items() if base < first)


@pytest.mark.parametrize("size", [0, 299, 300, 301, 1000, 10**6])
def test_a_hold_is_bounded_in_bytes(size: int) -> None:
    queue, without = queue_of(30), queue_of(30)
    before = without.bytes
    without.plan_retain(max_age_s=5, now_us=30 * SECOND_US)
    held(queue, 0, max_bytes=size)
    assert queue.bytes - without.bytes <= size
    assert queue.bytes == before or queue.bytes + 300 > without.bytes + size


def test_a_hold_that_is_behind_what_the_limits_keep_changes_nothing() -> None:
    queue = queue_of(30)
    assert held(queue, 29, max_age_s=0, max_bytes=0) == held(queue_of(30), 29)


def test_pages_that_could_not_be_deleted_are_deleted_by_the_next_call() -> None:
    fs = FaultyFileSystem()
    queue = queue_of(30, fs)
    fs.fail(errno.ENOSPC, kinds=["create"], path="readMeta")
    with pytest.raises(OSError, match="space"):
        queue.retain(max_records=9, now_us=0)
    first = queue.first_offset
    assert fs.exists(f"{PATH}/{0:020}.page")
    assert queue.retain(max_records=9, now_us=0)
    assert queue.first_offset == first
    names = [name for name in fs.list(PATH) if name.endswith(".page")]
    assert names == [f"{base:020}.page" for base in queue.pages.bases]
    assert queue.retain(max_records=9, now_us=0) == 0
