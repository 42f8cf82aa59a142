"""`penstock tail`: what --since means, what a line says, and what it asks the broker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.cli.queues import since_us
from penstock.codec import spec
from penstock.codec.properties import BasicProperties
from penstock.errors import OptionError
from tests.helpers.scripted_broker import ScriptedBroker

NOW_MS = 1_700_000_000_000
FIRST_US = 1_600_000_000_000_000


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("30s", 30), ("5min", 300), ("5m", 300), ("1h", 3600), ("2d", 172_800), ("1w", 604_800)],
)
def test_a_span_is_counted_from_now(given: str, seconds: int) -> None:
    assert since_us(given, NOW_MS) == (NOW_MS - seconds * 1000) * 1000


def test_a_time_is_a_time() -> None:
    assert since_us("2026-01-31T08:00:00.000001Z", NOW_MS) == 1_769_846_400_000_001
    assert since_us("2026-01-31T09:00+01:00", NOW_MS) == 1_769_846_400_000_000
    assert since_us("99999w", NOW_MS) == 0


@pytest.mark.parametrize("given", ["", "yesterday", "5", "1y", "2026-13-01"])
def test_what_is_neither_is_an_error(given: str) -> None:
    with pytest.raises(OptionError, match="first, a span such as 30s"):
        since_us(given, NOW_MS)


class Stream:
    """Partitions of a stream at a scripted broker: the bodies of each, its first offset 2."""

    first = 2

    def __init__(self, broker: ScriptedBroker, *parts: list[bytes]) -> None:
        self.broker = broker
        self.parts = parts
        self.asked: list[tuple[str, Any]] = []
        self.consumed: list[dict[str, object]] = []
        broker.on(spec.PenstockCall, self._call)
        broker.on(spec.BasicConsume, self._consume)

    def _call(self, channel: int, method: Any) -> list[Any]:
        given = json.loads(method.arguments)
        self.asked.append((method.op, given))
        if method.op == "find_stream_offset":
            return [spec.PenstockCallOk(result=b"3")]
        told = [
            {"partition": i, "first": self.first, "head": self.first + len(bodies)}
            for i, bodies in enumerate(self.parts)
        ]
        return [spec.PenstockCallOk(result=json.dumps({"partitions": told}).encode())]

    def _consume(self, channel: int, method: Any) -> list[Any]:
        self.consumed.append(method.arguments)
        sock, machine = self.broker._socket, self.broker._machine
        assert sock is not None
        sock.sendall(machine.send(channel, spec.BasicConsumeOk(consumer_tag=method.consumer_tag)))
        partition = method.arguments.get("x-stream-partition", 0)
        start = method.arguments["x-stream-offset"]
        for i, body in enumerate(self.parts[partition]):
            offset = self.first + i
            if offset < start:
                continue
            headers: dict[str, object] = {
                "x-stream-offset": offset, "x-stream-partition": partition, "mine": 1,
                "x-stream-timestamp": FIRST_US + offset * 1_000_000,
            }  # fmt: skip
            deliver = spec.BasicDeliver(
                consumer_tag=method.consumer_tag, delivery_tag=offset, redelivered=False,
                exchange="x", routing_key=f"k{i}",
            )  # fmt: skip
            header = BasicProperties(headers=headers, message_id="m").encode()
            sock.sendall(machine.send_content(channel, deliver, header, body))
        return []


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker()
    yield broker
    broker.close()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_the_last_ones_with_tabs(
    broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(broker, [b"a", b"b\tb", b"c\nc"])
    assert main(["tail", "s", "-n", "2", "--url", broker.url]) == 0
    assert lines(capsys) == [
        "2020-09-13T12:26:43.000000+00:00\t3\tk1\tb\\tb",
        "2020-09-13T12:26:44.000000+00:00\t4\tk2\tc\\nc",
    ]
    assert stream.consumed == [{"x-stream-offset": 3}]


def test_all_of_them_as_json(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    Stream(broker, [b"a", b"\xff"])
    assert main(["tail", "s", "--since", "first", "--format", "json", "--url", broker.url]) == 0
    first, second = (json.loads(line) for line in lines(capsys))
    assert first == {
        "partition": 0, "offset": 2, "time": "2020-09-13T12:26:42.000000+00:00", "exchange": "x",
        "routing_key": "k0", "headers": {"mine": 1}, "message_id": "m", "body": "a",
    }  # fmt: skip
    assert second["body"] == {"b64": "/w=="}


def test_since_a_time_the_broker_finds_the_offset(
    broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(broker, [b"a", b"b", b"c"])
    assert main(["tail", "s", "--since", "2026-01-31", "-n", "1", "--url", broker.url]) == 0
    assert [line.split("\t")[1] for line in lines(capsys)] == ["3"]
    op, given = stream.asked[1]
    assert (op, given["queue"], given["partition"]) == ("find_stream_offset", "s", 0)


def test_partitions_have_consumers_of_their_own(
    broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(broker, [b"a"], [], [b"b", b"c"])
    assert main(["tail", "s", "--url", broker.url]) == 0
    assert sorted(line.split("\t")[1] for line in lines(capsys)) == ["0:2", "2:2", "2:3"]
    assert [one["x-stream-partition"] for one in stream.consumed] == [0, 2]


def test_an_empty_stream_has_nothing(
    broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Stream(broker, [])
    assert main(["tail", "s", "--url", broker.url]) == 0
    assert lines(capsys) == []
    assert stream.consumed == []


def test_following_goes_on(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """With -n it ends after so many; here the second comes behind the head."""
    stream = Stream(broker, [b"a"])
    stream.parts = ([b"a", b"b"],)
    described = [{"partition": 0, "first": 2, "head": 3}]
    result = json.dumps({"partitions": described}).encode()
    broker.on(spec.PenstockCall, lambda channel, method: [spec.PenstockCallOk(result=result)])
    words = ["tail", "s", "--since", "first", "-f", "-n", "2", "--url", broker.url]
    assert main(words) == 0
    assert [line.split("\t")[1] for line in lines(capsys)] == ["2", "3"]


def test_what_is_no_stream_is_told(
    broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    error = spec.PenstockCallError(code=406, text=b"PRECONDITION_FAILED - queue 'q' is no stream")
    broker.on(spec.PenstockCall, lambda channel, method: [error])
    assert main(["tail", "q", "--url", broker.url]) == 64
    told = capsys.readouterr().err
    assert "queue 'q' is no stream; `penstock peek q` shows the messages of a queue" in told


def test_no_broker_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tail", "q", "--url", "amqp://127.0.0.1:1"]) == 69
    assert "is the broker running? --url sets the broker" in capsys.readouterr().err
