"""Threads for slow operations; what the contract of file systems does not ask."""

import threading
from functools import partial

import pytest

from penstock.storage.files.filesystem import WorkerPool


def nothing() -> None:
    """Nobody to wake."""


def test_one_worker_keeps_the_order() -> None:
    pool = WorkerPool(1, nothing)
    seen: list[int] = []
    for number in range(50):
        pool.submit(partial(seen.append, number))
    pool.close()
    assert seen == list(range(50))
    assert [token for token, _ in pool.completed(wait=False)] == list(range(50))


def test_completed_without_wait_does_not_wait() -> None:
    pool = WorkerPool(1, nothing)
    gate = threading.Event()
    pool.submit(gate.wait)
    assert pool.completed(wait=False) == []
    gate.set()
    assert pool.completed(wait=True) == [(0, True)]
    pool.close()


def test_workers_work_side_by_side() -> None:
    pool = WorkerPool(2, nothing)
    both = threading.Barrier(2, timeout=30)
    pool.submit(both.wait)
    pool.submit(both.wait)
    pool.close()
    assert {result for _, result in pool.completed(wait=False)} == {0, 1}


def test_even_an_exit_is_an_answer() -> None:
    def leave() -> None:
        raise SystemExit(3)

    pool = WorkerPool(1, nothing)
    pool.submit(leave)
    pool.submit(lambda: "next")
    pool.close()
    [(_, error), (_, result)] = pool.completed(wait=True)
    assert isinstance(error, SystemExit)
    assert result == "next"


@pytest.mark.parametrize("is_started", [True, False])
def test_an_interrupt_while_a_thread_starts_loses_nothing(
    is_started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        if is_started:
            start(thread)
        raise KeyboardInterrupt

    pool = WorkerPool(2, nothing)
    pool.submit(lambda: "before")
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.submit(lambda: "interrupted")
    pool.submit(lambda: "after")
    results: set[object] = set()
    while len(results) < 3:
        results.update(result for _, result in pool.completed(wait=True))
    pool.close()  # ends, whichever thread was first to be told
    assert results == {"before", "interrupted", "after"}


def test_without_workers_an_interrupt_is_the_callers() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    pool = WorkerPool(0, nothing)
    with pytest.raises(KeyboardInterrupt):
        pool.submit(interrupt)
    assert pool.completed(wait=True) == []


def test_a_wake_that_fails_is_shown_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", shown.append)

    def fail() -> None:
        raise RuntimeError("the loop is closed")

    pool = WorkerPool(1, fail)
    pool.submit(lambda: 1)
    pool.submit(lambda: 2)
    pool.close()
    assert pool.completed(wait=False) == [(0, 1), (1, 2)]
    assert [str(args.exc_value) for args in shown] == ["the loop is closed"] * 2


def test_a_negative_number_of_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more, not -1"):
        WorkerPool(-1, nothing)
