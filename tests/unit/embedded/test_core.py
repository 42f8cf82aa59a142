"""What a box is made of: queues opened when they are named, and what the clock demands of them."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import DiskFullError, OptionError, StoppedError, UnknownQueueError
from penstock.storage.files.filesystem import OsFileSystem
from tests.contracts.box import LONG_S, bodies, until
from tests.helpers.live_broker import wait_until


@pytest.fixture
def box(tmp_path: Path) -> Iterator[penstock.Box]:
    with penstock.open(tmp_path / "box.d", durability="os") as box:
        yield box


def test_queues_are_opened_when_they_are_named(box: penstock.Box, tmp_path: Path) -> None:
    for i in range(20):
        box.queue(f"q{i:02}").put(b"x")
    box.close()
    with penstock.open(tmp_path / "box.d") as again:
        assert len(again.queues()) == again.info()["queues"] == 20
        assert again.info()["queues_open"] == 0
        assert len(again.queue("q07")) == 1
        assert again.info()["queues_open"] == 1


def test_a_dead_letter_opens_its_queue(box: penstock.Box, tmp_path: Path) -> None:
    box.queue("dead")
    box.queue("q", dead_letter_to="dead").put(b"x")
    box.close()
    with penstock.open(tmp_path / "box.d") as again:
        again.queue("q").get().reject()
        assert bodies(again.queue("dead")) == [b"x"]


def test_memory_is_bounded_by_the_box(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "box.d", durability="os", memory="1 MiB") as box:
        queues = [box.queue(f"q{i}") for i in range(3)]
        for i in range(20):
            for q in queues:
                q.put_many([b"%06d" % i + bytes(994)] * 100)
        ram_bytes = sum(int(q.info()["ram_bytes"]) for q in queues)
        assert ram_bytes < 2 << 20, "6 MB went in"
        for q in queues:
            assert [body[:6] for body in bodies(q)] == [
                b"%06d" % i for i in range(20) for _ in range(100)
            ]


def test_an_idle_box_looks_seldom_and_a_message_wakes_it(
    box: penstock.Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = threading.Event()

    def leave() -> float:
        left.set()
        return 2.5

    monkeypatch.setattr(box._driver, "_tick", leave)
    box._driver.nudge()
    assert left.wait(LONG_S)  # from now on its thread leaves all looks to us
    q = box.queue("q")
    core = box._driver.core
    while (seconds := _tick(box)) < 1:
        box.sync()
    assert seconds == pytest.approx(2.5)
    q.put(b"x")
    assert _tick(box) <= 0.1
    q.put(b"y", delay="1h")
    assert core.queue_set.next_due_ms > core.clock.wall_ms()


def _tick(box: penstock.Box) -> float:
    with box._driver.lock:
        return box._driver.core.queue_set.tick()


def test_a_message_that_grows_old_raises_an_alert(tmp_path: Path) -> None:
    old = threading.Event()
    with penstock.open(tmp_path / "box.d", on_alert=lambda _: old.set()) as box:
        box.queue("q", alerts={"age": "1s"}).put(b"x")
        assert old.wait(LONG_S)


def test_an_unknown_queue(box: penstock.Box) -> None:
    with pytest.raises(UnknownQueueError, match="'none'"):
        box._driver.core.known("none")
    assert box._driver.core.find("none") is None


def test_an_abandoned_core_has_written_nothing_more(box: penstock.Box, tmp_path: Path) -> None:
    q = box.queue("q")
    q.put(b"x")
    driver = box._driver
    with driver.lock:
        driver.interrupted(KeyboardInterrupt())
    assert q.get(timeout=LONG_S).body == b"x"
    with driver.lock:
        driver.core.engine.journal.stop(OSError("broken"))
    with pytest.raises(StoppedError, match="broken"):
        q.put(b"y")
    box.close()
    with penstock.open(tmp_path / "box.d") as again:
        assert bodies(again.queue("q")) == [b"x"]


def test_a_box_that_nobody_uses_notices_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [1 << 40]
    monkeypatch.setattr(OsFileSystem, "free_bytes", lambda _fs, _path: free[0])
    with penstock.open(tmp_path / "box.d", durability="os", disk_free_limit=1 << 20) as box:
        q = box.queue("q")
        q.put(b"before")
        free[0] = 0
        wait_until(lambda: box.info()["is_disk_full"], "a full disk", 60)
        with pytest.raises(DiskFullError):
            q.put(b"refused")
        assert q.get().body == b"before"
        free[0] = 1 << 40
        wait_until(lambda: not box.info()["is_disk_full"], "space", 60)
        q.put(b"goes on")


def test_a_closed_box_that_is_empty_is_small(tmp_path: Path) -> None:
    # No checkpoint for the time that has passed, however long a busy machine takes.
    with penstock.open(tmp_path / "box.d", durability="os", checkpoint_seconds=3600.0) as box:
        q = box.queue("q")
        for _ in range(40):
            q.put_many([bytes(10_000)] * 100)
        assert q.purge() == 4000
        assert disk_bytes(tmp_path) > 40 << 20
    assert disk_bytes(tmp_path) <= 16 << 20
    with penstock.open(tmp_path / "box.d") as again:
        again.queue("q").put(b"x")
        assert bodies(again.queue("q")) == [b"x"]


def disk_bytes(path: Path) -> int:
    """Of the blocks of all files below, as du counts them."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


# ---- own memory limits at a start ----------------------------------------------------------------


def test_limits_that_together_exceed_the_memory_are_told_when_a_box_is_opened(
    tmp_path: Path,
) -> None:
    with penstock.open(tmp_path / "box.d", memory="64 MiB") as box:
        box.queue("a", max_memory="5 MiB")
        box.queue("b", max_memory="6 MiB").put(b"x")
    told: list[tuple[str, str]] = []
    with penstock.open(
        tmp_path / "box.d", memory="8 MiB", on_event=lambda *event: told.append(event)
    ) as box:
        assert bodies(box.queue("b")) == [b"x"]
        text = "the queues' own memory limits come to 11 MiB, 138 % of it: 8 MiB; "
        until(lambda: ("warning", text + "'b' 6 MiB, 'a' 5 MiB") in told)
    for _ in range(2):  # nothing stays locked
        with pytest.raises(
            OptionError, match="max_memory of queue 'b': given '6 MiB', expected at most the 3 MiB"
        ):
            penstock.open(tmp_path / "box.d", memory="8 MiB", strict=True)
    with (
        penstock.open(tmp_path / "box.d", memory="11 MiB", strict=True) as box,
        pytest.raises(OptionError, match="that other queues leave"),  # nobody has opened them
    ):
        box.queue("c", max_memory=1)
