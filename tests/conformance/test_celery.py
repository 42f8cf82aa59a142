"""Celery: 2,000 tasks, acknowledged late, some retried, by a real worker that is killed midway; and
retries with a countdown on quorum queues, which go through Celery's own queues for delays.

The worker is a process of its own; its ledger file tells what was really done. With late acks every
task is done at least once whatever happens to the worker; results come back over the rpc backend.
"""

import importlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.live_broker import Broker, broker_for_tests, wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).parent.parent.parent
TASKS = 2000
RETRIED = 50
LIMIT_S = 200


class Worker:
    """`celery worker` with two processes."""

    def __init__(self, log: Path, app: str = "tests.conformance.celery_app") -> None:
        self.log = log
        command = [sys.executable, "-m", "celery", "-A", app, "worker"]
        command += ["--concurrency=2", "--loglevel=INFO", "--without-mingle", "--without-gossip"]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=ROOT, start_new_session=True
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One of its own, which does not check itself at each step: that would take minutes."""
    with broker_for_tests(tmp_path_factory.mktemp("celery") / "data") as running:
        yield running


@pytest.fixture
def tasks(
    broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The application, imported with this broker's URL."""
    monkeypatch.setenv("CONFORMANCE_URL", broker.url.replace("amqp://", "pyamqp://"))
    monkeypatch.setenv("CONFORMANCE_QUEUE", name)
    monkeypatch.setenv("CONFORMANCE_LEDGER", str(tmp_path / "ledger"))
    sys.modules.pop("tests.conformance.celery_quorum_app", None)
    sys.modules.pop("tests.conformance.celery_app", None)
    module = importlib.import_module("tests.conformance.celery_app")
    yield module
    with module.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(name)
    module.app.close()


def test_two_thousand_tasks_survive_the_death_of_their_worker(tasks: Any, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"

    def done() -> list[str]:
        return ledger.read_text().splitlines() if ledger.exists() else []

    results = [tasks.add.apply_async((i, 1), priority=i % 5) for i in range(TASKS)]
    retried = [tasks.fail_at_first.delay(i) for i in range(RETRIED)]
    first = Worker(tmp_path / "first.log")
    try:
        wait_until(lambda: len(done()) > TASKS // 4, "a quarter of the tasks", LIMIT_S)
    finally:
        first.kill()
    second = Worker(tmp_path / "second.log")
    try:
        wait_until(lambda: len(set(done())) == TASKS + RETRIED, "all the tasks", LIMIT_S)
        counts = Counter(done())
        assert set(counts) == {f"add {i}" for i in range(TASKS)} | {
            f"retried {i}" for i in range(RETRIED)
        }
        assert sum(counts.values()) - len(counts) <= 2 * 4 * 2, "more repeated than were in hand"
        assert [result.get(timeout=60) for result in results[-5:]] == [
            i + 1 for i in range(TASKS - 5, TASKS)
        ]
        assert [result.get(timeout=60) for result in retried[:5]] == list(range(5))
        answers = tasks.app.control.broadcast("ping", reply=True, timeout=120, limit=1)
        assert answers, "remote control"
    finally:
        second.stop()


def test_retries_with_a_countdown_on_quorum_queues(tasks: Any, tmp_path: Path) -> None:
    quorum = importlib.import_module("tests.conformance.celery_quorum_app")
    ledger = tmp_path / "ledger"
    worker = Worker(tmp_path / "worker.log", quorum.__name__)
    try:
        wait_until(lambda: "ready." in worker.log.read_text(), "the worker", LIMIT_S)
        for number in range(3):
            quorum.fail_twice.delay(number)
        wait_until(
            lambda: ledger.exists() and len(ledger.read_text().splitlines()) == 3,
            "three tasks, each at its third attempt", LIMIT_S,
        )  # fmt: skip
    finally:
        worker.stop()
        quorum.app.close()
    assert sorted(ledger.read_text().splitlines()) == [f"retried {n}" for n in range(3)]
