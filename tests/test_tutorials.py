"""The programs of the tutorials run, on one broker, and the pages show them as they are.

PENSTOCK_TEST_URL=amqp://... runs them on another broker, such as RabbitMQ.

tests/spark/test_tutorial.py runs the last one.
"""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.live_broker import Broker, broker_for_tests

pytest.importorskip("pika")

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "examples" / "tutorials"
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
WAITING = "waiting, Ctrl-C ends it\n"


def test_the_pages_show_the_programs_as_they_are() -> None:
    shown = {
        name: text
        for page in PAGES
        for name, text in re.findall(
            r"tutorials/(\w+\.py)\):\n\n```py\n(.*?)^```$",
            page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL,
        )
    }  # fmt: skip
    assert shown == {one.name: one.read_text(encoding="utf-8") for one in PROGRAMS.glob("*.py")}


class Tutorial:
    """Runs programs of the tutorials on a broker, in a directory of its own."""

    def __init__(self, live: Broker, directory: Path) -> None:
        self.live = live
        self.directory = directory

    def start(self, name: str, *words: str) -> "subprocess.Popen[str]":
        """Start a program."""
        text = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
        program = self.directory / f"{name}.py"
        program.write_text(text.replace("localhost:5672", f"localhost:{self.live.port}"))
        return subprocess.Popen(
            [sys.executable, "-W", "error", str(program), *words],
            cwd=self.directory, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, name: str, *words: str) -> str:
        """What a program prints; it must end well."""
        with self.start(name, *words) as process:
            output, _ = process.communicate()
        assert process.returncode == 0, name
        return output

    @contextlib.contextmanager
    def receiver(self, name: str, *words: str) -> Iterator[Iterator[str]]:
        """The lines that a program prints once it waits for messages. It is ended as its user does
        it."""
        with self.start(name, *words) as process:
            assert process.stdout is not None
            try:
                assert process.stdout.readline() == WAITING
                yield process.stdout
            finally:
                process.send_signal(signal.SIGINT)
            assert process.wait() == 0, name


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_for_tests(tmp_path_factory.mktemp("tutorials") / "data") as broker:
        yield broker


@pytest.fixture
def tutorial(live: Broker, tmp_path: Path) -> Tutorial:
    return Tutorial(live, tmp_path)


def test_hello_world(tutorial: Tutorial) -> None:
    with tutorial.receiver("receive") as lines:
        tutorial.run("send")
        assert next(lines) == "received Hello World!\n"


def test_work_queues(tutorial: Tutorial) -> None:
    tasks = ["1000", "200000", "1000", "3000"]
    with tutorial.receiver("worker") as first, tutorial.receiver("worker") as second:
        tutorial.run("new_task", *tasks)
        # The task that takes long is with one of them, so the other one has the rest.
        found = sorted([next(first), next(second)])
    assert "task 1000 has 168 primes\n" in found
    tutorial.run("new_task", "10")
    with tutorial.receiver("worker") as lines:  # what was not acknowledged came back
        assert "task 10 has 4 primes\n" in lines


def test_publish_and_subscribe(tutorial: Tutorial) -> None:
    with tutorial.receiver("receive_logs") as first, tutorial.receiver("receive_logs") as second:
        tutorial.run("emit_log", "the disk", "is full")
        assert next(first) == next(second) == "line the disk is full\n"


def test_routing(tutorial: Tutorial) -> None:
    with tutorial.receiver("receive_logs_direct", "warning", "error") as lines:
        tutorial.run("emit_log_direct", "info", "all is well")
        tutorial.run("emit_log_direct", "error", "the disk is full")
        assert next(lines) == "error the disk is full\n"


def test_topics(tutorial: Tutorial) -> None:
    with tutorial.receiver("receive_logs_topic", "kernel.*", "*.critical") as lines:
        tutorial.run("emit_log_topic", "cron.info", "a job has ended")
        tutorial.run("emit_log_topic", "kernel.critical", "the disk is full")
        tutorial.run("emit_log_topic", "cron.critical", "no job has ended")
        assert next(lines) == "kernel.critical the disk is full\n"
        assert next(lines) == "cron.critical no job has ended\n"


def test_remote_procedure_calls(tutorial: Tutorial) -> None:
    with tutorial.receiver("rpc_server"), tutorial.receiver("rpc_server"):
        answers = tutorial.run("rpc_client", "30", "90").splitlines()
    assert sorted(answers) == ["fibonacci(30) = 832040", "fibonacci(90) = 2880067194370816120"]


def test_publisher_confirms(tutorial: Tutorial) -> None:
    if not tutorial.live.is_penstock:
        pytest.skip("half of it is Penstock's own client")
    printed = tutorial.run("publisher_confirms")
    assert re.fullmatch(
        r"one_at_a_time: 1000 confirmed in .* s\nall_at_once: 1000 confirmed in .* s\n"
        r"returned: no queue is called no-such-queue\n",
        printed,
    )


def test_streams(tutorial: Tutorial) -> None:
    if not tutorial.live.is_penstock:
        pytest.skip("RabbitMQ before 3.12 refuses the nack of a stream's record, which pika sends")
    tutorial.run("stream_send")
    with tutorial.receiver("stream_receive", "first") as lines:
        assert [next(lines)[0] for _ in range(5)] == ["0", "1", "2", "3", "4"]
    with tutorial.receiver("stream_receive", "3") as lines:
        assert next(lines) == '3 {"day": 3, "carrier": "UA", "delay": 21}\n'
