"""A stream alone, turn by turn: what is on disk when, what is told when the disk fails."""

import errno

import pytest

from penstock.embedded import alone_stream
from penstock.embedded.alone_stream import DELETE, FORCE_S, SAVE
from penstock.embedded.waiting import WAITING, WOKEN, Waiter
from penstock.errors import DiskFullError, StoppedError, SyncFailedError, UnknownQueueError
from tests.helpers.alone_rig import PATH, AloneRig, is_done, settings


def test_many_appends_are_one_sync() -> None:
    rig = AloneRig()
    rig.put(b"first")
    before = rig.fs.start_journal()
    wants = [rig.append(b"%d" % n) for n in range(5)]
    assert rig.bodies() == [b"first"], "what is not on disk is not read"
    rig.core.turn()
    for want in wants:
        assert want is not None
        assert is_done(want)
        assert want.take() == 0
    assert [entry.kind for entry in before.entries].count("sync") == 1
    assert rig.bodies() == [b"first", *(b"%d" % n for n in range(5))]


@pytest.mark.parametrize(("every_s", "after_s"), [(None, FORCE_S), (0.25, 0.25), (7.0, 7.0)])
def test_what_nobody_waits_for_is_forced_in_time(every_s: float | None, after_s: float) -> None:
    rig = AloneRig(settings(100 if every_s is None else None, every_s))
    for n in range(3):
        assert rig.append(b"%d" % n) is None
        rig.core.turn()
    assert rig.core.next_s() == pytest.approx(min(after_s, alone_stream.IDLE_S))
    rig.clock.advance(after_s - 0.01)
    rig.core.turn()
    assert (rig.core.unforced, rig.bodies()) == (3, [])
    rig.clock.advance(0.01)
    rig.core.turn()
    assert (rig.core.unforced, len(rig.bodies())) == (0, 3)
    assert rig.core.next_s() == alone_stream.IDLE_S


def test_after_so_many_records() -> None:
    rig = AloneRig(settings(3))
    for n in range(8):
        rig.append(b"%d" % n)
        rig.core.turn()
        assert len(rig.bodies()) == (n + 1) // 3 * 3


def test_the_head_wakes_who_follows() -> None:
    rig = AloneRig()
    waiter = Waiter()
    rig.core.followers.append(waiter)
    rig.append(b"a")
    assert waiter.state == WAITING
    rig.core.turn()
    assert waiter.state == WOKEN
    assert not rig.core.is_ended
    rig.core.end()
    assert rig.core.is_ended


# ---- readers -------------------------------------------------------------------------------------


def test_commits_are_saved_soon_and_many_as_one() -> None:
    rig = AloneRig()
    rig.put(b"a", b"b", b"c")
    rig.core.turn()
    for offset in range(3):
        rig.core.commit("r", offset)
    rig.core.turn()  # nothing was saved for a while
    journal = rig.fs.start_journal()
    rig.core.commit("r", 3)
    rig.core.turn()
    assert not journal.entries
    assert 0 < rig.core.next_s() <= alone_stream.COMMITS_S
    rig.clock.advance(alone_stream.COMMITS_S)
    rig.core.turn()
    assert journal.entries
    again = AloneRig(fs=rig.fs.crash("lost"))
    assert again.core.info("r").offsets == {0: 3}


def test_a_commit_that_is_waited_for_is_saved_at_once() -> None:
    rig = AloneRig()
    rig.put(b"a")
    for name in ("r", "s"):
        rig.core.commit(name, 1)
    rig.save()
    rig.core.delete_reader("s")
    rig.core.delete_reader("none")
    rig.save()
    again = AloneRig(fs=rig.fs.crash("lost"))
    assert (again.core.info("r").readers, again.core.info("r").offsets) == (["r"], {0: 1})
    want = again.core.want(SAVE, Waiter())  # with nothing to save
    again.core.turn()
    assert is_done(want)


def test_closing_saves_them_too() -> None:
    rig = AloneRig(settings(100))
    rig.append(b"a")
    rig.core.commit("r", 0)
    rig.core.close()
    again = AloneRig(fs=rig.fs)
    assert (again.bodies(), again.core.info("r").offsets) == ([b"a"], {0: 0})


# ---- retention -----------------------------------------------------------------------------------


def test_retention_is_looked_at_each_second() -> None:
    rig = AloneRig(settings(max_age_s=10))
    rig.put(*[b"%d" % n for n in range(30)])
    assert rig.core.next_s() == pytest.approx(1.0)
    for _ in range(10):
        rig.clock.advance(1)
        rig.core.turn()
    assert rig.core.queue.first_offset == 0
    rig.clock.advance(1)
    rig.core.turn()
    assert (rig.core.queue.first_offset, rig.bodies()) == (30, [])
    rig.put(b"30")
    assert rig.core.queue.read(0, 1, 1)[0].offset == 30


def test_what_a_reader_is_kept_for_stays_until_it_is_saved_that_it_is_done() -> None:
    rig = AloneRig(settings(keeps="r", max_records=0, max_age_s=1))
    rig.core.commit("r", 0)
    rig.save()
    rig.put(*[b"x" * 50 for n in range(30)])
    rig.clock.advance(2)
    assert rig.retain() == 0
    rig.core.commit("r", 10)
    rig.save()
    assert rig.retain() > 0
    assert 0 < rig.core.queue.first_offset <= 10
    rig.core.commit("r", 30)
    rig.save()
    assert rig.retain() > 0
    assert rig.core.queue.first_offset == 30


# ---- failure -------------------------------------------------------------------------------------


def test_no_room_is_told_and_what_was_appended_is_written_when_there_is() -> None:
    rig = AloneRig()
    rig.put(b"a")
    rig.fs.fail(errno.ENOSPC, kinds=("pwrite",), times=None)
    want = rig.append(b"b")
    assert want is not None
    rig.core.turn()
    assert is_done(want)
    with pytest.raises(DiskFullError):
        want.take()
    assert rig.bodies() == [b"a"]
    assert [kind for kind, _ in rig.events] == ["stream_write"]
    retry = rig.core.retry(Waiter)
    assert retry is not None
    rig.core.turn()
    with pytest.raises(DiskFullError):
        retry.take()
    rig.core.turn()  # not before a second has gone
    rig.fs.clear_faults()
    assert rig.core.next_s() == pytest.approx(alone_stream.AGAIN_S)
    rig.clock.advance(alone_stream.AGAIN_S)
    rig.core.turn()
    assert rig.core.retry(Waiter) is None
    assert rig.bodies() == [b"a", b"b"]
    rig.put(b"c")
    again = AloneRig(fs=rig.fs.crash("lost"))
    assert again.bodies() == [b"a", b"b", b"c"]


def test_a_failed_sync_is_never_confirmed_and_stops_it() -> None:
    rig = AloneRig()
    rig.put(b"a")
    rig.fs.fail(errno.EIO, kinds=("sync",), path=".page")
    waiter = Waiter()
    rig.core.followers.append(waiter)
    want = rig.append(b"b")
    assert want is not None
    rig.core.turn()
    with pytest.raises(SyncFailedError):
        want.take()
    assert waiter.state == WOKEN
    assert [kind for kind, _ in rig.events] == ["stopped"]
    for call in (
        lambda: rig.append(b"c"), lambda: rig.bodies(), lambda: rig.core.info(""),
        lambda: rig.core.commit("r", 0), lambda: rig.core.find(0), lambda: rig.core.retry(Waiter),
        lambda: rig.core.want(SAVE, Waiter()),
    ):  # fmt: skip
        with pytest.raises(StoppedError, match="sync failed"):
            call()
    rig.core.turn()
    rig.core.close()
    assert AloneRig(fs=rig.fs.crash("lost")).bodies() == [b"a"]


def test_a_reader_that_cannot_be_saved_is_saved_later() -> None:
    rig = AloneRig()
    rig.put(b"a")
    rig.fs.fail(errno.ENOSPC, kinds=("pwrite",), path="/readers/")
    rig.core.commit("r", 1)
    want = rig.core.want(SAVE, Waiter())
    rig.core.turn()
    with pytest.raises(OSError, match="No space"):
        want.take()
    rig.core.turn()
    assert AloneRig(fs=rig.fs.crash("killed")).core.info("r").offsets == {}
    rig.clock.advance(2)
    rig.core.turn()
    assert AloneRig(fs=rig.fs.crash("lost")).core.info("r").offsets == {0: 1}


@pytest.mark.parametrize("path", ["/readers", "readMeta"])
def test_a_failed_sync_of_a_small_file_stops_it_too(path: str) -> None:
    rig = AloneRig(settings(max_records=0))
    rig.put(*[b"x" * 50 for n in range(30)])
    rig.fs.fail(errno.EIO, kinds=("sync", "sync_dir"), path=path)
    rig.core.commit("r", 1)
    with pytest.raises(SyncFailedError):
        (rig.retain if path == "readMeta" else rig.save)()
    with pytest.raises(StoppedError):
        rig.append(b"c")


def test_an_interrupt_stops_it_and_what_was_forced_is_there() -> None:
    rig = AloneRig(settings(100))
    rig.put(b"a")
    rig.append(b"b")
    want = rig.core.want_force(Waiter())
    rig.core.interrupted(KeyboardInterrupt())
    with pytest.raises(StoppedError, match="interrupted by KeyboardInterrupt"):
        want.take()
    with pytest.raises(StoppedError):
        rig.append(b"c")
    rig.core.close()
    assert AloneRig(fs=rig.fs).bodies() == [b"a"]


def test_deleting_takes_all_of_it() -> None:
    rig = AloneRig()
    rig.put(b"a")
    want, other = rig.core.want(DELETE, Waiter()), rig.core.want(DELETE, Waiter())
    rig.core.turn()
    assert is_done(want)
    assert is_done(other)
    assert not rig.fs.exists(PATH)
    with pytest.raises(UnknownQueueError):
        rig.append(b"b")
    rig.core.turn()
    rig.core.close()
