"""The thread of a box: interrupts, callbacks, forks, other processes, how it ends."""

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock.embedded import driver, waiting
from penstock.errors import ForkedError, LockedError
from penstock.storage.files import filesystem
from tests.contracts.box import LONG_S, Aside, bodies, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "box.d"


@pytest.fixture
def box(path: Path) -> Iterator[penstock.Box]:
    with penstock.open(path) as box:
        yield box


def python(text: str, *args: object) -> subprocess.Popen[str]:
    """A process that runs this program."""
    command = [sys.executable, "-c", textwrap.dedent(text), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: "subprocess.Popen[str]") -> int:
    with process:
        try:
            process.communicate(timeout=2 * LONG_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode


# ---- interrupts ----------------------------------------------------------------------------------


class InterruptedWrite:
    """Stands before a write of the log: does it, and is interrupted."""

    def __init__(self, original: Callable[..., None]) -> None:
        self._original = original
        self.is_armed = False

    def __call__(self, *args: Any) -> None:
        self._original(*args)
        if self.is_armed and threading.current_thread() is threading.main_thread():
            self.is_armed = False
            raise KeyboardInterrupt


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> InterruptedWrite:
    write = InterruptedWrite(filesystem.OsFile.pwrite)
    monkeypatch.setattr(filesystem.OsFile, "pwrite", lambda *args: write(*args))
    return write


def test_an_interrupt_in_the_middle_of_the_core_is_mended(
    box: penstock.Box, write: InterruptedWrite
) -> None:
    q = box.queue("q", retry_delay=0)
    q.put_many([b"a", b"b"])
    job = q.get()
    q.put(b"transient", durability="none")
    write.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        q.put(b"perhaps")
    assert bodies(q)[:2] == [b"a", b"b"]  # a was unacknowledged, and is ready again
    assert set(bodies(q)[2:]) <= {b"perhaps"}
    assert q.unacked == 0
    q.put(b"c")
    again = q.get()
    assert (again.body, again.is_redelivered) == (b"a", True)
    job.ack()  # the same message
    assert bodies(q)[0] == b"b"


def test_an_interrupt_ends_a_transaction(box: penstock.Box, write: InterruptedWrite) -> None:
    q = box.queue("q")
    with pytest.raises(KeyboardInterrupt), box.transaction():  # noqa: PT012
        q.put(b"never")
        write.is_armed = True
        box.queue("other")
    assert len(q) == 0
    with box.transaction():
        q.put(b"a")
    assert bodies(q) == [b"a"]


def test_those_who_wait_are_told_of_an_interrupt(
    box: penstock.Box, write: InterruptedWrite
) -> None:
    q = box.queue("q")
    getter = Aside(lambda: q.get(timeout=LONG_S).body)
    until(lambda: q.info()["takers"] == 1)
    write.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        box.queue("other")
    q.put(b"a")
    assert getter.result() == b"a"


def test_an_interrupted_box_closes(path: Path, write: InterruptedWrite) -> None:
    box = penstock.open(path)
    q = box.queue("q")
    q.put(b"a")
    write.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        q.put(b"perhaps")
    box.close()
    with penstock.open(path) as again:
        assert bodies(again.queue("q"))[:1] == [b"a"]


def interrupted_at(n: int, call: Callable[[], object]) -> bool:
    """Make a call that is interrupted where the n-th function of its locking begins, as the
    interpreter itself may do it; False: it has not so many."""
    places = {driver.__file__, waiting.__file__}
    count = 0

    def profile(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename in places:
            count += 1
            if count == n:
                raise KeyboardInterrupt  # which ends the profiling, too

    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_the_lock_is_given_back_wherever_an_interrupt_comes(
    box: penstock.Box, write: InterruptedWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a call that is handed it, having waited for the box to be mended."""
    mend = driver.Driver._hand_out_lock

    def mend_for_somebody(thread: driver.Driver) -> None:
        until(lambda: bool(thread.gate_waiters) or thread._is_closing)
        mend(thread)

    monkeypatch.setattr(driver.Driver, "_hand_out_lock", mend_for_somebody)
    q = box.queue("q", durability="os")
    n = 1
    while True:
        write.is_armed = True
        with pytest.raises(KeyboardInterrupt):
            q.put(b"to be mended")
        if not interrupted_at(n, lambda: q.put(b"a")):
            break
        lock = box._driver.lock
        assert lock.acquire(timeout=LONG_S), f"function {n} left it taken"
        lock.release()
        q.put(b"b")
        n += 1
    assert n > 5


@pytest.mark.real
@pytest.mark.parametrize("durability", ["os", "disk"])
def test_a_storm_of_interrupts_loses_nothing(path: Path, durability: str) -> None:
    """A timer interrupts the main thread every millisecond or two, wherever it is."""
    program = """
        import random, signal, sys, time, penstock

        class Interrupt(BaseException):
            pass

        def interrupt(*_):
            raise Interrupt

        rng = random.Random(7)
        signal.signal(signal.SIGALRM, interrupt)
        box = penstock.open(sys.argv[1], durability=sys.argv[2])
        q = box.queue("q", retry_delay=0)
        put, acked, trying, n, interrupts = set(), set(), set(), 0, 0
        end = time.monotonic() + 2
        while time.monotonic() < end or interrupts <= 50:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, 0.003))
                until = time.monotonic() + 0.05  # one may be raised where nobody can catch it
                while time.monotonic() < until:
                    n += 1
                    q.put(b"%d" % n)
                    put.add(n)
                    if n % 3 == 0:
                        job = q.get(timeout=120)
                        trying.add(int(job.body))
                        job.ack()
                        acked.add(int(job.body))
            except Interrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        box.close()
        with penstock.open(sys.argv[1]) as box:
            left = [int(message.body) for message in box.queue("q")]
        assert left == sorted(set(left)), "doubled or out of order"
        assert put - trying <= set(left), "lost"
        # What was acknowledged in the last ms before an interrupt may not have been written.
        assert len(acked & set(left)) <= 64, "came back"
        assert set(left) <= set(range(n + 1))
    """
    assert end(python(program, path, durability)) == 0


# ---- callbacks -----------------------------------------------------------------------------------


def test_a_callback_may_use_the_box(path: Path) -> None:
    seen: list[int] = []
    box = penstock.open(path, on_alert=lambda alert: seen.append(len(box.queue(alert.queue))))
    with box:
        box.queue("q", alerts={"count": 2}).put_many([b"a", b"b"])
        until(lambda: seen == [2])


def test_a_callback_that_fails_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def on_alert(_: object) -> None:
        sys.exit("no")

    with penstock.open(path, on_alert=on_alert) as box:
        box.queue("q", alerts={"count": 1}).put(b"a")
        until(lambda: any("on_alert has failed" in r.message for r in caplog.records))
    assert any("queue 'q': count is 1" in r.message for r in caplog.records)


def test_a_callback_may_close_the_box(path: Path) -> None:
    box = penstock.open(path, on_alert=lambda _: box.close())
    box.queue("q", alerts={"count": 1}).put(b"a")
    until(lambda: box._driver.is_closed)
    box.close()
    with penstock.open(path) as again:
        assert len(again.queue("q")) == 1


# ---- processes -----------------------------------------------------------------------------------


@pytest.mark.real
def test_a_second_process_is_told_of_the_first(path: Path) -> None:
    program = """
        import sys, penstock
        box = penstock.open(sys.argv[1])
        box.queue("q").put(b"from there")
        print("open", flush=True)
        sys.stdin.read()
        box.close()
    """
    other = python(program, path)
    assert line_of(other) == "open"
    with pytest.raises(LockedError, match=f"locked by pid {other.pid} host {os.uname().nodename}"):
        penstock.open(path)
    assert end(other) == 0
    with penstock.open(path) as box:
        assert bodies(box.queue("q")) == [b"from there"]


@pytest.mark.real
def test_a_box_that_is_left_open_is_closed_at_the_end(path: Path) -> None:
    program = """
        import sys, penstock
        box = penstock.open(sys.argv[1], durability="os")
        box.queue("q").put(b"a")
        box.queue("q").put(b"b", delay="1h")
    """
    assert end(python(program, path)) == 0
    events: list[tuple[str, str]] = []
    with penstock.open(path, on_event=lambda *event: events.append(event)) as box:
        assert (len(box.queue("q")), box.queue("q").delayed) == (1, 1)
    assert not [text for _, text in events if "torn" in text]


@pytest.mark.real
@pytest.mark.parametrize("durability", ["disk", "os"])
def test_what_was_confirmed_survives_kill_9(path: Path, durability: str) -> None:
    """Three lives, each killed in the middle of puts, gets and acks by several threads. The parent
    keeps the ledger: a line for each put that returned and each ack that did."""
    program = """
        import os, sys, threading, penstock
        box = penstock.open(sys.argv[1], durability=sys.argv[2])
        q = box.queue("q")

        def say(text):
            os.write(1, text)

        def put(name):
            n = 0
            while True:
                n += 1
                body = b"%s.%d" % (name, n)
                say(b"put %s ?\\n" % body)
                q.put(body)
                say(b"put %s .\\n" % body)

        def get():
            for job in q.consume():
                say(b"ack %s ?\\n" % job.body)
                job.ack()
                say(b"ack %s .\\n" % job.body)

        for i in range(3):
            threading.Thread(target=put, args=(b"%s%d" % (sys.argv[3].encode(), i),)).start()
        threading.Thread(target=get).start()
    """
    said: dict[tuple[str, str], set[str]] = {}
    for life in "abc":
        process = python(program, path, durability, life)
        assert process.stdout is not None
        for n, line in enumerate(process.stdout):
            if n == 1500:
                process.send_signal(signal.SIGKILL)  # what it said before is still in the pipe
            if line.endswith((".\n", "?\n")):
                verb, body, certain = line.split()
                said.setdefault((verb, certain), set()).add(body)
        process.wait()
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()
    with penstock.open(path) as box:
        left = [body.decode() for body in bodies(box.queue("q"))]
    assert len(left) == len(set(left))
    assert not said.get(("put", "."), set()) - said.get(("ack", "?"), set()) - set(left)
    assert box._driver.is_closed


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_does_no_harm(box: penstock.Box) -> None:
    q = box.queue("q")
    q.put(b"a")
    job = q.get()
    read, wrote = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = []
        for call in (lambda: q.put(b"b"), q.get, job.ack, box.queues, lambda: len(q), box.sync):
            try:
                call()
                told.append("nothing")
            except ForkedError as error:
                told.append(f"{error.opened_by == os.getppid()} {error.used_by == os.getpid()}")
            except BaseException as error:
                told.append(repr(error))
        box.close()
        os.write(wrote, ",".join(told).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1000).decode() == ",".join(["True True"] * 6)
    os.close(read)
    os.close(wrote)
    q.put(b"c")
    job.ack()
    assert bodies(q) == [b"c"]


@pytest.mark.real
def test_a_child_that_ends_in_order_leaves_the_parent_alone(path: Path) -> None:
    program = """
        import os, sys, penstock
        box = penstock.open(sys.argv[1])
        q = box.queue("q")
        q.put(b"a")
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        os.waitpid(pid, 0)
        try:
            penstock.open(sys.argv[1])
        except penstock.PenstockError as error:
            assert f"locked by pid {os.getpid()}" in str(error), error
        else:
            sys.exit("the lock is gone")
        q.put(b"b")
        assert len(q) == 2
    """
    assert end(python(program, path)) == 0
    with penstock.open(path) as box:
        assert len(box.queue("q")) == 2


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_lives_longer_does_not_keep_the_directory(path: Path) -> None:
    box = penstock.open(path)
    context = multiprocessing.get_context("fork")
    go_on = context.Event()
    child = context.Process(target=go_on.wait, args=(LONG_S,))
    child.start()
    box.close()
    penstock.open(path).close()
    go_on.set()
    child.join()


# ---- opening and closing -------------------------------------------------------------------------


def test_what_cannot_be_opened_leaves_nothing_open(path: Path) -> None:
    path.mkdir()
    (path / "letter.txt").write_text("not ours")
    before = set(threading.enumerate())
    with pytest.raises(penstock.PenstockError, match=r"not ours \(it has 'letter.txt'\)"):
        penstock.open(path)
    until(lambda: set(threading.enumerate()) <= before)
    (path / "letter.txt").unlink()
    penstock.open(path).close()
    assert set(threading.enumerate()) <= before


@pytest.mark.large
def test_importing_penstock_loads_nothing_of_it() -> None:
    program = """
        import sys, penstock
        loaded = {name for name in sys.modules if name.startswith("penstock.")}
        assert loaded == {"penstock.native"}  # the version, and nothing that it imports
        assert "asyncio" not in sys.modules and "threading" not in sys.modules
        assert "open" in dir(penstock) and "aio" in dir(penstock)
        penstock.open
        assert "asyncio" not in sys.modules
        penstock.aio.open
        import penstock.aio
        from penstock.aio import open
    """
    assert end(python(program)) == 0
    assert end(python("import penstock.aio; penstock.aio.open")) == 0
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        _ = penstock.opne
