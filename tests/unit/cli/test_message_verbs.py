"""`get`, `consume`, `peek`: what is printed, and when the broker hears that it was."""

import json
import sys
from typing import Any

import pytest

from penstock.cli.main import CommandRefusedError
from tests.helpers.fake_control import FakeControl


def message(tag: int, body: bytes) -> dict[str, Any]:
    return {
        "tag": tag, "body": body, "exchange": "", "routing_key": "jobs", "redelivered": False,
        "properties": {"headers": {"n": b"\xff"}},
    }  # fmt: skip


def batches(*bodies: list[bytes]) -> Any:
    """An answer to `get`: these one after the other, then nothing."""
    left = list(bodies)
    tags = iter(range(1, 1000))

    def answer(**_: object) -> dict[str, Any]:
        found = left.pop(0) if left else []
        return {"messages": [message(next(tags), body) for body in found]}

    return answer


def test_get_prints_a_body_as_it_is_and_acknowledges_it(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    broker = FakeControl(get=batches([b"a\xff\nb"]))
    assert broker.run("get", "jobs") == 0
    assert capfdbinary.readouterr().out == b"a\xff\nb\n"
    (_, vhost, got), (settle, _, settled) = broker.asked
    assert (vhost, got["queue"], got["count"], got["wait_ms"]) == ("/", "jobs", 1, 0)
    assert settle == "settle"
    assert (settled["tags"], settled["requeue"]) == ([1], False)
    assert settled["session"] == got["session"]


def test_get_of_an_empty_queue_is_75(capsys: pytest.CaptureFixture[str]) -> None:
    assert FakeControl(get=batches()).run("get", "jobs") == 75
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "queue 'jobs' is empty" in captured.err


def test_get_waits_in_requests_of_some_seconds() -> None:
    broker = FakeControl(get=batches([], [], [b"x"]))
    assert broker.run("get", "jobs", "--wait", "25") == 0
    waits = [args["wait_ms"] for op, _, args in broker.asked if op == "get"]
    assert waits == [10_000, 10_000, 5_000]


def test_get_requeue_puts_all_of_them_back_at_the_end() -> None:
    broker = FakeControl(get=batches([b"1", b"2"], [b"3"]))
    assert broker.run("get", "jobs", "-n", "3", "--requeue") == 0
    settles = [args for op, _, args in broker.asked if op == "settle"]
    assert [(one["tags"], one["requeue"]) for one in settles] == [([1, 2, 3], True)]


def test_json_is_a_line_for_each_message(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(get=batches([b"text", b"\xff"]))
    assert broker.run("get", "jobs", "-n", "2", "--format", "json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["body"] for line in lines] == ["text", {"b64": "/w=="}]
    assert lines[0]["properties"] == {"headers": {"n": {"b64": "/w=="}}}
    assert "tag" not in lines[0]


def test_what_could_not_be_printed_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed:
        encoding = "utf-8"
        errors = "strict"

        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

        def flush(self) -> None:
            pass

        def isatty(self) -> bool:
            return False

        @property
        def buffer(self) -> "Closed":
            return self

    broker = FakeControl(get=batches([b"x"]))
    monkeypatch.setattr(sys, "stdout", Closed())
    assert broker.run("get", "jobs") == 74
    assert [op for op, _, _ in broker.asked] == ["get"]


def test_consume_stops_after_so_many(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(get=batches([b"1"], [], [b"2", b"3"]))
    assert broker.run("consume", "jobs", "-n", "3") == 0
    assert capsys.readouterr().out == "1\n2\n3\n"
    asked = [(op, args.get("count"), args.get("tags")) for op, _, args in broker.asked]
    assert asked == [
        ("get", 3, None), ("settle", None, [1]), ("get", 2, None), ("get", 2, None),
        ("settle", None, [2, 3]),
    ]  # fmt: skip


def test_consume_ends_with_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(get=KeyboardInterrupt())
    assert broker.run("consume", "jobs") == 130
    assert "interrupted" in capsys.readouterr().err


def test_peek_goes_on_behind_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*, count: int, after: int | None, **_: object) -> dict[str, Any]:
        first = (after or 0) + 1
        found = [message(tag, b"%d" % tag) for tag in range(first, min(first + count, 131))]
        return {"messages": found, "after": first + len(found) - 1}

    broker = FakeControl(peek=answer)
    assert broker.run("peek", "jobs", "-n", "200") == 0
    assert capsys.readouterr().out.split() == [str(n) for n in range(1, 131)]
    assert [(args["count"], args["after"]) for _, _, args in broker.asked] == [
        (100, None), (100, 100), (70, 130),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "status"), [(404, 66), (405, 75), (403, 77), (541, 69), (999, 70)]
)
def test_what_the_broker_refuses_has_an_exit_code(
    code: int, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "what the broker says"
    assert FakeControl(get=CommandRefusedError(code, text)).run("get", "jobs") == status
    assert capsys.readouterr().err == f"penstock: {text}\n"
