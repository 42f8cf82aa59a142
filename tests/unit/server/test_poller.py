"""The poller below asyncio's loop: what it runs, when it returns, and that nobody starves."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from penstock.server import poller
from penstock.server.poller import READ, WRITE, PolledSource, Poller, Turns
from tests.helpers.builds import pure_only
from tests.unit.server.test_session import poller_here, run_polling

pytestmark = pure_only  # classes of the tests stand for compiled ones


class Reader(PolledSource):
    """Notes what is read of a descriptor, and calls `on_ready`."""

    def __init__(self, descriptor: int, on_ready: Callable[[], None] | None = None) -> None:
        self.descriptor = descriptor
        self.masks: list[int] = []
        self.on_ready = on_ready

    def ready(self, mask: int) -> None:
        self.masks.append(mask)
        if self.on_ready is not None:
            self.on_ready()


class Counting(Turns):
    """Counts what a poller runs."""

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.more = more
        self.log: list[str] = []

    def turn(self) -> None:
        self.is_awake = False
        self.log.append("turn")
        if self.more:
            self.more -= 1
            self.is_awake = True

    def tick(self) -> None:
        self.tick_at = -1.0
        self.log.append("tick")

    def completed(self) -> None:
        self.log.append("completed")


class Rig:
    """A poller whose asyncio is a socket."""

    def __init__(self) -> None:
        self.inner, self.asyncio = socket.socketpair()
        self.near, self.far = socket.socketpair()
        self.poller = Poller(self.inner.fileno())
        self.turns = Counting()
        self.poller.turns = self.turns

    def close(self) -> None:
        self.poller.close()
        for sock in (self.inner, self.asyncio, self.near, self.far):
            sock.close()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(poller, "PASS_S", 3600.0)  # a busy machine cuts no pass short
    made = Rig()
    yield made
    made.close()


def test_it_returns_for_asyncio_and_says_so(rig: Rig) -> None:
    assert rig.poller.poll(0.0) is False
    rig.asyncio.send(b"x")
    assert rig.poller.poll(-1.0) is True
    assert rig.poller.poll(60.0) is True


def test_all_that_is_ready_is_handled_before_one_turn(rig: Rig) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    order: list[str] = []

    def handled() -> None:
        order.append("source")
        rig.turns.is_awake = True

    readers = [Reader(near.fileno(), handled) for near, _ in pairs]
    rig.turns.log = order
    for (near, far), reader in zip(pairs, readers, strict=True):
        rig.poller.watch(near.fileno(), reader, READ)
        far.send(b"x")
    rig.poller.poll(0.0)
    assert order == ["source", "source", "source", "turn"]
    for near, far in pairs:
        rig.poller.watch(near.fileno(), readers[0], 0)
        near.close()
        far.close()


def test_a_turn_with_more_to_do_runs_again_and_waits_for_nothing(rig: Rig) -> None:
    rig.turns.more = 3
    rig.turns.is_awake = True

    def handled() -> None:
        rig.near.recv(9)
        rig.poller.must_return = True

    rig.poller.watch(rig.near.fileno(), Reader(rig.near.fileno(), handled), READ)
    while rig.turns.is_awake:
        rig.poller.poll(0.0)
    assert rig.turns.log == ["turn"] * 4


def test_what_calls_the_loop_ends_the_wait_of_asyncio(rig: Rig) -> None:
    def handled() -> None:
        rig.near.recv(9)
        rig.poller.must_return = True

    rig.poller.watch(rig.near.fileno(), Reader(rig.near.fileno(), handled), READ)
    rig.far.send(b"x")
    assert rig.poller.poll(-1.0) is False


def test_a_tick_runs_when_it_is_time_and_not_before(rig: Rig) -> None:
    due = time.monotonic() + 0.02
    rig.turns.tick_at = due
    while not rig.turns.log:
        rig.poller.poll(0.0)
    assert time.monotonic() >= due
    assert rig.turns.log == ["tick"]


def test_each_pass_is_measured_and_how_late_each_tick_was(rig: Rig) -> None:
    rig.turns.tick_at = time.monotonic() - 0.3
    rig.poller.poll(0.0)
    rig.poller.poll(0.0)
    assert sum(rig.poller.pass_seconds.counts) == 2
    late = rig.poller.late_seconds
    assert sum(late.counts) == 1
    assert late.total >= 0.3


def test_a_wait_ends_when_asyncio_has_something_to_do_by_time(rig: Rig) -> None:
    since = time.monotonic()
    assert rig.poller.poll(0.02) is False
    assert time.monotonic() - since >= 0.02


def test_signals_of_workers_are_taken_together_and_none_is_lost(rig: Rig) -> None:
    for _ in range(3):
        rig.poller.wake_from_thread()
    rig.poller.poll(0.0)
    assert rig.turns.log == ["completed"]
    rig.poller.poll(0.0)
    assert rig.turns.log == ["completed"]
    rig.poller.wake_from_thread()
    rig.poller.poll(0.0)
    assert rig.turns.log == ["completed"] * 2


def test_a_signal_within_completed_is_not_lost(rig: Rig) -> None:
    class Again(Counting):
        def completed(self) -> None:
            super().completed()
            if len(self.log) == 1:
                rig.poller.wake_from_thread()

    rig.poller.turns = again = Again()
    rig.poller.wake_from_thread()
    rig.poller.poll(0.0)
    rig.poller.poll(0.0)
    assert again.log == ["completed"] * 2


def test_what_is_not_watched_is_not_reported_and_one_gone_in_this_pass_neither(rig: Rig) -> None:
    other_near, other_far = socket.socketpair()
    readers: list[Reader] = []

    def drop_all() -> None:
        for reader in readers:
            rig.poller.watch(reader.descriptor, reader, 0)

    readers += [Reader(near.fileno(), drop_all) for near in (rig.near, other_near)]
    for reader in readers:
        rig.poller.watch(reader.descriptor, reader, READ)
    rig.far.send(b"x")
    other_far.send(b"x")
    rig.poller.poll(0.0)
    rig.poller.poll(0.0)
    assert sum(len(reader.masks) for reader in readers) == 1
    other_near.close()
    other_far.close()


def test_the_events_that_are_watched_change(rig: Rig) -> None:
    reader = Reader(rig.near.fileno())
    rig.poller.watch(rig.near.fileno(), reader, READ | WRITE)
    rig.poller.poll(0.0)
    assert reader.masks == [WRITE]
    rig.poller.watch(rig.near.fileno(), reader, READ)
    rig.poller.poll(0.0)
    assert reader.masks == [WRITE]
    rig.far.send(b"x")
    rig.poller.watch(rig.near.fileno(), reader, READ | WRITE)
    rig.poller.poll(0.0)
    assert reader.masks == [WRITE, READ | WRITE]


def test_a_socket_that_is_always_ready_does_not_keep_asyncio_waiting() -> None:
    async def main() -> None:
        poller = poller_here()
        near, far = socket.socketpair()
        far.send(b"x")
        reader = Reader(near.fileno())
        poller.watch(near.fileno(), reader, READ)
        await asyncio.sleep(0.01)
        descriptor, end = os.pipe()
        os.write(end, b"x")
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(descriptor, readable.set)
        await readable.wait()
        loop.remove_reader(descriptor)
        assert len(reader.masks) > 1
        poller.watch(near.fileno(), reader, 0)
        for number in (descriptor, end):
            os.close(number)
        near.close()
        far.close()

    run_polling(main())


def test_what_a_source_asks_of_the_loop_is_done_at_once() -> None:
    async def main() -> None:
        poller, loop = poller_here(), asyncio.get_running_loop()
        near, far = socket.socketpair()
        done: asyncio.Future[str] = loop.create_future()

        def handled() -> None:
            near.recv(9)
            loop.call_soon(done.set_result, "soon")

        poller.watch(near.fileno(), Reader(near.fileno(), handled), READ)
        loop.call_soon(far.send, b"x")
        assert await done == "soon"
        poller.watch(near.fileno(), Reader(near.fileno()), 0)
        near.close()
        far.close()

    run_polling(main())


def test_only_a_timer_that_is_due_before_the_others_makes_the_loop_look_again() -> None:
    async def main() -> None:
        poller, loop = poller_here(), asyncio.get_running_loop()
        near, far = socket.socketpair()
        done: asyncio.Future[str] = loop.create_future()
        timers = [loop.call_later(1000.0, done.cancel)]
        seen = []

        def handled() -> None:
            near.recv(9)
            for delay_s in (2000.0, 500.0):
                timers.append(loop.call_later(delay_s, done.cancel))
                seen.append(poller.must_return)
            done.set_result("done")

        poller.watch(near.fileno(), Reader(near.fileno(), handled), READ)
        try:
            far.send(b"x")
            assert await done == "done"
            assert seen == [False, True]
        finally:
            poller.watch(near.fileno(), Reader(near.fileno()), 0)
            for timer in timers:
                timer.cancel()
            near.close()
            far.close()

    run_polling(main())


def test_sources_that_a_pass_has_no_time_for_are_first_in_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is over after each source: one a pass, and none is called twice before the others."""
    monkeypatch.setattr(poller, "PASS_S", -1.0)
    served: list[int] = []
    pairs = [socket.socketpair() for _ in range(3)]
    for near, far in pairs:
        descriptor = near.fileno()
        reader = Reader(descriptor, lambda n=descriptor: served.append(n))  # type: ignore[misc]
        rig.poller.watch(descriptor, reader, READ)
        far.send(b"x")
    for _ in range(6):
        rig.turns.is_awake = True
        rig.poller.poll(0.0)
    assert served[:3] == served[3:]
    assert len(set(served)) == 3
    assert rig.turns.log == ["turn"] * 6
    for near, far in pairs:
        near.close()
        far.close()


def test_a_source_that_is_not_watched_any_more_is_not_served_later(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "PASS_S", -1.0)
    other, far = socket.socketpair()
    readers = {sock.fileno(): Reader(sock.fileno()) for sock in (rig.near, other)}
    for descriptor, reader in readers.items():
        rig.poller.watch(descriptor, reader, READ)
    rig.far.send(b"x")
    far.send(b"x")
    rig.poller.poll(0.0)
    for descriptor in readers:
        rig.poller.watch(descriptor, readers[descriptor], 0)
    rig.poller.poll(0.0)
    assert sum(len(reader.masks) for reader in readers.values()) == 1
    other.close()
    far.close()
