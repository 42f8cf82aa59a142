"""How calls wait for the disk: group commit, its leader, failures."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.embedded import driver
from penstock.errors import StoppedError, SyncFailedError
from penstock.storage.files import filesystem
from tests.contracts.box import LONG_S, Aside, bodies, until


class Disk:
    """Stands before fdatasync: counts, holds back, fails."""

    def __init__(self, sync: Callable[[int], None]) -> None:
        self._sync = sync
        self.count = 0
        self.may_pass = threading.Event()
        self.may_pass.set()
        self.error: OSError | None = None

    def __call__(self, descriptor: int) -> None:
        self.count += 1
        assert self.may_pass.wait(LONG_S)
        if self.error is not None:
            raise self.error
        self._sync(descriptor)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk(filesystem._sync_content)
    monkeypatch.setattr(filesystem, "_sync_content", disk)
    return disk


@pytest.fixture(autouse=True)
def _no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is saved by the look that a waiting call takes each second."""
    monkeypatch.setattr(driver, "RECHECK_S", 2 * LONG_S)


@pytest.fixture
def box(tmp_path: Path, disk: Disk) -> Iterator[penstock.Box]:
    with penstock.open(tmp_path / "box.d") as box:
        yield box
        disk.may_pass.set()


def test_one_put_is_one_sync(box: penstock.Box, disk: Disk) -> None:
    q = box.queue("q")
    before = disk.count
    for _ in range(20):
        q.put(b"x")
    assert 20 <= disk.count - before <= 30  # and a preparing of the next file of the log
    before = disk.count
    q.put_many([b"x"] * 1000)
    assert disk.count - before <= 8


def test_acknowledging_waits_for_no_sync(box: penstock.Box, disk: Disk) -> None:
    q = box.queue("q")
    q.put(b"x")
    disk.may_pass.clear()
    q.get().ack()
    assert len(q) == 0


def test_a_put_without_a_sync_does_not_wait_for_one(box: penstock.Box, disk: Disk) -> None:
    q = box.queue("q")
    disk.may_pass.clear()
    putter = Aside(lambda: q.put(b"slow"))
    until(lambda: len(q) == 1)
    q.put(b"written", durability="os")
    q.put(b"nowhere", durability="none")
    assert putter.is_running
    disk.may_pass.set()
    putter.result()


def test_those_who_wait_together_share_a_sync(box: penstock.Box, disk: Disk) -> None:
    q = box.queue("q")
    before = disk.count
    disk.may_pass.clear()
    putters = [Aside(lambda: q.put(b"first"))]
    until(lambda: len(q) == 1)
    putters += [Aside(lambda: q.put(b"x")) for _ in range(40)]
    until(lambda: len(q) == 41)
    assert all(putter.is_running for putter in putters)
    disk.may_pass.set()
    for putter in putters:
        putter.result()
    # That of the first and that of the forty, and those that prepare the next file of the log.
    assert disk.count - before <= 8


def test_nobody_is_held_up_by_those_who_do_not_come_back(box: penstock.Box, disk: Disk) -> None:
    """Forty put once, while others put on and on."""
    q = box.queue("q")
    stop = threading.Event()

    def put_on() -> None:
        while not stop.is_set():
            q.put(b"x")

    others = [Aside(put_on) for _ in range(3)]
    for _ in range(5):
        disk.may_pass.clear()
        before = len(q)
        putters = [Aside(lambda: q.put(b"once")) for _ in range(40)]
        until(lambda n=before + 40: len(q) >= n)  # type: ignore[misc]
        disk.may_pass.set()
        for putter in putters:
            putter.result()
    stop.set()
    for other in others:
        other.result()


def test_many_threads_put_and_get_everything_once(box: penstock.Box) -> None:
    q = box.queue("q")
    seen: list[bytes] = []

    def put(n: int) -> None:
        for i in range(30):
            q.put(b"%d.%d" % (n, i))

    def get() -> None:
        while True:
            with q.get(timeout=LONG_S) as job:
                if job.body == b"end":
                    return
                seen.append(job.body)

    putters = [Aside(lambda n=n: put(n)) for n in range(16)]  # type: ignore[misc]
    getters = [Aside(get) for _ in range(4)]
    for putter in putters:
        putter.result()
    q.put_many([b"end"] * 4)
    for getter in getters:
        getter.result()
    assert sorted(seen) == sorted(b"%d.%d" % (n, i) for n in range(16) for i in range(30))
    assert q.join(timeout=LONG_S)


def test_a_failed_sync_is_told_to_all_and_stops_the_box(
    box: penstock.Box, disk: Disk, tmp_path: Path
) -> None:
    q = box.queue("q")
    q.put(b"safe")
    disk.may_pass.clear()
    putters = [Aside(lambda: q.put(b"x")) for _ in range(8)]
    until(lambda: len(q) == 9)
    disk.error = OSError(5, "Input/output error")
    disk.may_pass.set()
    for putter in putters:
        with pytest.raises((SyncFailedError, StoppedError), match="sync failed"):
            putter.result()
    with pytest.raises(StoppedError, match="sync failed"):
        q.put(b"y")
    with pytest.raises(StoppedError):
        q.get().ack()
    disk.error = None
    box.close()
    with penstock.open(tmp_path / "box.d") as again:
        assert bodies(again.queue("q"))[:1] == [b"safe"]


def test_closing_settles_those_who_wait(box: penstock.Box, disk: Disk, tmp_path: Path) -> None:
    q = box.queue("q")
    disk.may_pass.clear()
    putters = [Aside(lambda: q.put(b"x")) for _ in range(8)]
    until(lambda: len(q) == 8)
    closer = Aside(box.close)
    disk.may_pass.set()
    closer.result()
    for putter in putters:
        putter.result()
    with penstock.open(tmp_path / "box.d") as again:
        assert len(again.queue("q")) == 8


class Interrupt(BaseException):
    """As KeyboardInterrupt."""


class Interruptible:
    """Stands before a waiter's sleep: interrupts the first call that comes."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self.is_armed = True

    def __call__(self, *args: Any) -> Any:
        if self.is_armed:
            self.is_armed = False
            raise Interrupt
        return self._original(*args)


def test_a_leader_that_is_interrupted_hands_over(
    box: penstock.Box, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = box.queue("q")
    disk.may_pass.clear()
    lead = Interruptible(box._driver._lead)
    monkeypatch.setattr(box._driver, "_lead", lead)
    with pytest.raises(Interrupt):
        q.put(b"first")  # it leads, and is gone
    putters = [Aside(lambda: q.put(b"x")) for _ in range(3)]
    until(lambda: len(q) == 4)
    disk.may_pass.set()
    for putter in putters:
        putter.result()
    q.put(b"last")
    assert len(q) == 5


def test_a_getter_that_is_interrupted_leaves_nothing_behind(
    box: penstock.Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = box.queue("q")
    wait = Interruptible(box._driver.wait)
    monkeypatch.setattr(box._driver, "wait", wait)
    with pytest.raises(Interrupt):
        q.get(timeout=LONG_S)
    assert q.info()["takers"] == 0
    q.put(b"x")
    assert q.get(timeout=LONG_S).body == b"x"
