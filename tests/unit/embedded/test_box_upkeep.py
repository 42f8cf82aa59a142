"""Checkpoints and backups of a box that is in use."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.errors import NotAStoreError, StoppedError
from tests.contracts.box import Aside, bodies, until


@pytest.fixture
def box(tmp_path: Path) -> Iterator[penstock.Box]:
    with penstock.open(tmp_path / "box.d", durability="os") as box:
        yield box


def test_a_backup_beside_the_traffic_is_one_moment(box: penstock.Box, tmp_path: Path) -> None:
    q = box.queue("q")
    stop = threading.Event()

    def put() -> int:
        n = 0
        while not stop.is_set():
            q.put(b"%d" % n)
            n += 1
        return n

    putter = Aside(put)
    until(lambda: len(q) > 100)
    at_least = len(q)
    for i in range(3):
        box.backup(str(tmp_path / f"copy{i}"))
    stop.set()
    n = putter.result()
    assert bodies(q) == [b"%d" % i for i in range(n)]
    lengths = []
    for i in range(3):
        with penstock.open(tmp_path / f"copy{i}") as copy:
            found = bodies(copy.queue("q"))
        assert found == [b"%d" % i for i in range(len(found))]
        lengths.append(len(found))
    assert at_least <= lengths[0] <= lengths[1] <= lengths[2] <= n


@pytest.fixture
def durable_box(tmp_path: Path) -> Iterator[penstock.Box]:
    with penstock.open(tmp_path / "box.d") as box:
        yield box


def test_a_backup_beside_transactions_has_every_message_on_exactly_one_side(
    durable_box: penstock.Box, tmp_path: Path
) -> None:
    """Messages that are consumed after the cut, and so never reach a file of the box, are in it."""
    box = durable_box
    engine = box._driver.core.engine
    engine.options = replace(engine.options, slice_ms=0, slice_entries=8)  # many steps
    a, b = box.queue("a"), box.queue("b")
    n = 2000
    a.put_many([b"%d" % i for i in range(n)])
    stop = threading.Event()

    def move() -> None:
        while not stop.is_set() and len(a):
            with box.transaction():
                for job in a.get_many(20):
                    b.put(job.body)
                    job.ack()

    mover = Aside(move)
    until(lambda: len(b) > 0)
    for i in range(2):
        box.backup(str(tmp_path / f"copy{i}"))
    stop.set()
    mover.result()
    for i in range(2):
        with penstock.open(tmp_path / f"copy{i}") as copy:
            left, moved = bodies(copy.queue("a")), bodies(copy.queue("b"))
        assert sorted(map(int, left + moved)) == list(range(n))


def test_a_backup_needs_a_free_path(box: penstock.Box, tmp_path: Path) -> None:
    box.queue("q").put(b"a")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "letter.txt").write_text("not ours")
    for path, text in (
        ("taken", "letter.txt"),
        ("box.d", "a store of Penstock already"),
        ("no/no", "no"),
    ):
        with pytest.raises(NotAStoreError, match=text):
            box.backup(str(tmp_path / path))
    assert bodies(box.queue("q")) == [b"a"]
    box.backup(str(tmp_path / "free"))


def test_checkpoints_of_several_threads(box: penstock.Box) -> None:
    q = box.queue("q")
    q.put_many([b"x"] * 1000)
    before = int(box.info()["checkpoints"])
    calls = [Aside(box.checkpoint) for _ in range(4)]
    q.put(b"x")
    assert all(call.result() for call in calls)
    assert int(box.info()["checkpoints"]) > before
    assert len(q) == 1001


def test_neither_goes_on_when_the_box_has_stopped(box: penstock.Box, tmp_path: Path) -> None:
    with box._driver.lock:
        box._driver.core.engine.journal.stop(OSError("broken"))
    with pytest.raises(StoppedError, match="broken"):
        box.checkpoint()
    with pytest.raises(StoppedError, match="broken"):
        box.backup(str(tmp_path / "copy"))
