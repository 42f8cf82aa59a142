"""Streams of a box by S5's failure scenarios: clocks, pages, interrupts, kill -9, what it costs."""

import signal
import time
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import penstock
from penstock.clock import SystemClock
from penstock.embedded import core, driver
from penstock.embedded.waiting import Waiter
from penstock.errors import CorruptionError
from tests.contracts.box import LONG_S, Aside, until
from tests.contracts.stream import SMALL_PAGE, bodies, numbers, offsets
from tests.unit.embedded.test_box_thread import InterruptedWrite, python, write

__all__ = ["write"]  # a fixture

T0_US = 1_700_000_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "box.d"


class SetClock:
    """A clock whose calendar is set by hand."""

    now_us = T0_US

    def monotonic(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return SetClock.now_us // 1000

    def wall_us(self) -> int:
        return SetClock.now_us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[SetClock]]:
    SetClock.now_us = T0_US
    monkeypatch.setattr(core, "SystemClock", SetClock)
    assert SystemClock().wall_us() > T0_US
    return SetClock


def at(us: int) -> datetime:
    return datetime.fromtimestamp((T0_US + us) / 1_000_000, UTC)


# ---- clocks --------------------------------------------------------------------------------------


def test_equal_times_over_the_border_of_pages(path: Path, clock: type[SetClock]) -> None:
    """Read since the time that two pages share: what is at the end of the first is not lost."""
    with penstock.open(path, durability="os") as box:
        s = box.stream("s", page_bytes=SMALL_PAGE)
        times = [0] * 3 + [1000] * 12 + [2000] * 2
        for i, us in enumerate(times):
            clock.now_us = T0_US + us
            s.append(b"%d " % i + bytes(700))
        assert s.bytes > 3 * SMALL_PAGE
        assert s.find(at(1000)) == 3
        assert offsets(s.read(since=at(1000))) == list(range(3, 17))
        assert offsets(s.read(since=at(1001))) == [15, 16]
        assert offsets(s.read(since=at(999))) == list(range(3, 17))
        assert s.find(at(0)) == s.find(at(-5000)) == 0
        assert s.find(at(2001)) == 17


def test_a_clock_that_goes_back(path: Path, clock: type[SetClock]) -> None:
    """Times are clamped, so they never fall, and a search for one finds it; also over a restart."""
    with penstock.open(path, durability="os") as box:
        s = box.stream("s", page_bytes=SMALL_PAGE)
        for us in (0, 5000, 1000, 2000, 6000):
            clock.now_us = T0_US + us
            s.append(bytes(1500))
        assert [r.time_us - T0_US for r in s] == [0, 5000, 5000, 5000, 6000]
        assert s.find(at(5000)) == 1
    clock.now_us = T0_US - 3_600_000_000
    with penstock.open(path, durability="os") as box:
        s = box.stream("s")
        assert s.append(b"an hour ago, they say") == 5
        (last,) = s.read(offset="last")
        assert last.time == at(6000)
        assert offsets(s.read(since=at(6000))) == [4, 5]


def test_so_long_ago_is_by_the_clock_of_the_box(path: Path, clock: type[SetClock]) -> None:
    with penstock.open(path, durability="os") as box:
        s = box.stream("s", max_age="1h", page_bytes=SMALL_PAGE)
        for minutes in range(120):
            clock.now_us = T0_US + minutes * 60_000_000
            s.append(b"%d " % minutes + bytes(1500))
        assert offsets(s.read(since="10m")) == list(range(109, 120))
        box.sync()
        until(lambda: (s.retain() or True) and s.first >= 56)
        assert s.first <= 59
        clock.now_us += 7200 * 1_000_000
        until(lambda: (s.retain() or True) and s.first == 120)  # the last page as well
        assert offsets(s) == []


# ---- interrupts, crashes -------------------------------------------------------------------------


def test_an_interrupt_is_mended(path: Path, write: InterruptedWrite) -> None:
    with penstock.open(path) as box:
        s = box.stream("s", partitions=2)
        s.append_many([(b"%d" % i, {"key": str(i)}) for i in range(20)])
        reader = s.reader("r")
        list(reader.read(max_records=5))
        reader.commit(wait=True)
        seen: list[bytes] = []
        follower = Aside(lambda: [seen.append(r.body) for r in s.read(follow=True)])
        until(lambda: len(seen) == 20)
        write.is_armed = True
        with pytest.raises(KeyboardInterrupt):
            s.append(b"perhaps")
        s.append(b"after")
        until(lambda: b"after" in seen)
        assert sorted(seen) == sorted(bodies(s))
        assert set(seen) - set(numbers(20)) <= {b"perhaps", b"after"}
        assert sum(reader.offsets.values()) == 5
        box.close()
        follower.result()


def test_an_interrupt_while_it_waits_leaves_nothing_behind(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.open(path) as box:
        s = box.stream("s")
        state = box._driver.core.streams.find("s")
        assert state is not None
        reading = s.read(follow=True)

        def handler(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        wait = box._driver.wait

        def interrupted(waiter: Waiter) -> None:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            wait(waiter)

        monkeypatch.setattr(box._driver, "wait", interrupted)
        before = signal.signal(signal.SIGALRM, handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                next(reading)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        monkeypatch.undo()
        assert not state.followers
        s.append(b"a")
        assert bodies(s.read(follow=True, timeout=0)) == [b"a"]


@pytest.mark.real
@pytest.mark.parametrize("durability", ["disk", "os"])
def test_what_was_appended_survives_kill_9(path: Path, durability: str) -> None:
    """Three lives, each killed while three threads append and one reads and commits. The parent
    keeps the ledger: offsets that were told, and commits that were waited for."""
    program = """
        import os, sys, threading, penstock
        box = penstock.open(sys.argv[1], durability=sys.argv[2])
        s = box.stream("s", page_bytes=4096)

        def append(name):
            n = 0
            while True:
                n += 1
                body = b"%s.%d" % (name, n)
                os.write(1, b"put %d %s .\\n" % (s.append(body), body))

        def read():
            reader = s.reader("r")
            while True:
                for record in reader.read(max_records=50):
                    pass
                reader.commit(wait=True)
                os.write(1, b"at %d - .\\n" % reader.offset)

        for i in range(3):
            threading.Thread(target=append, args=(b"%s%d" % (sys.argv[3].encode(), i),)).start()
        threading.Thread(target=read).start()
    """
    told: dict[int, str] = {}
    reached = 0
    for life in "abc":
        process = python(program, path, durability, life)
        assert process.stdout is not None
        for n, line in enumerate(process.stdout):
            if n >= 700 and reached:
                process.kill()  # what it said before is still in the pipe
            if line.endswith(".\n"):
                verb, number, body, _ = line.split()
                if verb == "put":
                    assert int(number) not in told, "an offset was given twice"
                    told[int(number)] = body
                else:
                    reached = max(reached, int(number))
        process.wait()
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()
    with penstock.open(path) as box:
        s = box.stream("s")
        found = {record.offset: record.body.decode() for record in s}
        assert s.reader("r").offset >= reached > 0
    assert list(found) == list(range(len(found)))
    assert {offset: found[offset] for offset in told} == told
    assert len(set(found.values())) == len(found)


@pytest.mark.real
def test_a_damaged_page_is_told_and_the_rest_goes_on(path: Path) -> None:
    with penstock.open(path) as box:
        s = box.stream("s", page_bytes=SMALL_PAGE)
        s.append_many([b"%d " % i + bytes(1000) for i in range(30)])
        page = sorted(path.rglob("*.page"))[3]
        data = bytearray(page.read_bytes())
        data[500] ^= 1
        page.write_bytes(data)
        first = int(page.stem)
        seen: list[int] = []
        with pytest.raises(CorruptionError, match=page.name):
            seen.extend(record.offset for record in s)
        assert seen == list(range(len(seen)))
        assert len(seen) <= first
        assert offsets(s.read(offset=first + 3)) == list(range(first + 3, 30))
        assert s.append(b"more") == 30


def test_a_loop_that_is_collected_under_the_lock(path: Path) -> None:
    """As the garbage collector may do it, in a call of this thread: it must not wait for itself."""
    with penstock.open(path) as box:
        s = box.stream("s")
        s.append_many(numbers(4))
        reading = s.read(reader="r")
        assert [next(reading).offset for _ in range(3)] == [0, 1, 2]
        with box._driver.lock:
            reading.close()
        assert offsets(s.reader("r")) == [0, 1, 2, 3]


# ---- cost ----------------------------------------------------------------------------------------


@pytest.mark.large
def test_a_reading_holds_a_chunk_and_no_more(path: Path) -> None:
    with penstock.open(path, durability="os") as box:
        s = box.stream("s", page_bytes="1 MiB")
        for _ in range(40):
            s.append_many([bytes(1000)] * 500)
        tracemalloc.start()
        try:
            count = sum(1 for _ in s)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert count == 20_000
        assert peak_bytes < 4 << 20, "20 MB were read"


def test_nobody_waits_for_what_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "RECHECK_S", 2 * LONG_S)  # nobody is saved by a second look
    with penstock.open(path) as box:
        s = box.stream("s")
        source = s._source
        feed = source.feed(0, 0)
        s.append(b"a")
        with pytest.raises(StopIteration):
            next(source.wait([feed], None))
        state = box._driver.core.streams.find("s")
        assert state is not None
        follower = Aside(lambda: next(s.read(offset="next", follow=True)).offset)
        until(lambda: len(state.followers) == 1)
        s.append(b"b")
        assert follower.result() == 1, "it was woken, and did not look by itself"


def test_followers_do_not_hold_up_others(path: Path) -> None:
    with penstock.open(path) as box:
        s = box.stream("s")
        followers = [Aside(lambda: bodies(s.read(follow=True))) for _ in range(20)]
        state = box._driver.core.streams.find("s")
        assert state is not None
        until(lambda: len(state.followers) == 20)
        q = box.queue("q")
        q.put(b"a")
        assert q.get(timeout=LONG_S).body == b"a"
        s.append(b"b")
        until(lambda: len(state.followers) == 20)
        box.close()
        assert [follower.result() for follower in followers] == [[b"b"]] * 20
