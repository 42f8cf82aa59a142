"""penstock perf against a broker that runs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.cli.main import main
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("perf") / "data") as live:
        yield live


class Perf:
    """The command on one broker."""

    def __init__(self, broker: LiveBroker, capsys: pytest.CaptureFixture[str]) -> None:
        self.broker = broker
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        found = main(["perf", "-h", self.broker.url, *words])
        told = self._capsys.readouterr()
        assert found == code, told
        return told.err if code else told.out

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--format", "json"))

    def queues(self, column: str = "messages") -> dict[str, Any]:
        return {row["name"]: row[column] for row in self.broker.control("list_queues", "/")}


@pytest.fixture
def perf(broker: LiveBroker, capsys: pytest.CaptureFixture[str]) -> Perf:
    return Perf(broker, capsys)


def test_all_that_is_sent_is_received_and_timed(perf: Perf) -> None:
    found = perf.json(
        "-x", "2", "-y", "3", "-C", "1000", "-c", "100", "-q", "50", "-A", "7", "-s", "256",
        "-u", "work", "-f", "persistent",
    )  # fmt: skip
    assert (found["sent"], found["received"], found["refused"]) == (2000, 2000, 0)
    for times in (found["latency_us"], found["confirm_us"]):
        assert 0 < times["min"] <= times["p50"] <= times["p99"] <= times["max"]
    assert perf.queues()["work"] == 0
    assert found["sent_per_s"] == found["received_per_s"] > 0


def test_a_rate_for_a_time_with_a_line_for_each_interval(perf: Perf) -> None:
    text = perf("-r", "200", "-z", "1", "-i", "0.3", "-a")
    lines = [line for line in text.splitlines() if line.startswith("time ")]
    assert 1 <= len(lines) <= 3
    assert ", latency " in lines[-1]
    sent = int(next(line for line in text.splitlines() if line.startswith("sent\t"))[5:])
    assert 0 < sent <= 210
    assert "confirm_us" not in text


def test_publishers_alone_and_consumers_alone(perf: Perf) -> None:
    with penstock.open(perf.broker.url) as box:
        box.queue("alone")
    found = perf.json("-y", "0", "-C", "250", "-u", "alone", "-p", "-c", "1")
    assert (found["sent"], found["received"]) == (250, 0)
    assert "latency_us" not in found
    assert perf.queues()["alone"] == 250
    found = perf.json("-x", "0", "-D", "100", "-u", "alone", "-p", "-q", "10", "-A", "30")
    assert (found["sent"], found["received"]) == (0, 100)
    assert "latency_us" not in found  # they are of another run
    assert perf.queues()["alone"] == 150


def test_an_exchange_and_a_queue_that_goes(perf: Perf) -> None:
    before = perf.queues()
    found = perf.json("-e", "perf.topic", "-t", "topic", "-k", "a.b", "-C", "10", "-s", "4")
    assert (found["sent"], found["received"]) == (10, 10)
    assert "latency_us" not in found  # no room for a time
    assert perf.queues() == before


def test_a_quorum_queue(perf: Perf) -> None:
    assert perf.json("-qq", "-u", "quorum", "-C", "10")["received"] == 10
    assert perf.queues("type")["quorum"] == "quorum"


def test_what_is_wrong(perf: Perf) -> None:
    with penstock.open(perf.broker.url) as box:
        box.queue("durable")
    assert "no queue 'nowhere'" in perf("-u", "nowhere", "-p", code=66)
    assert "the queue's name, with --predeclared" in perf("-p", code=64)
    assert "inequivalent arg 'durable'" in perf("-u", "durable", code=64)
