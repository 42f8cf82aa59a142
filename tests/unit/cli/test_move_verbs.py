"""`penstock move` and `replay`: what is asked, in which steps, and what is said of the answers."""

from typing import Any

import pytest

from penstock.cli.main import CommandRefusedError
from penstock.embedded.waiting import ThreadWaiter
from tests.helpers.fake_control import FakeControl, Terminal


def answer(moved: int, stays: int = 0, why: str = "", queue: str = "to") -> dict[str, Any]:
    by_queue = {queue: moved} if moved else {}
    return {"moved": moved, "by_queue": by_queue, "stays": stays, "why": why}


def asked(broker: FakeControl) -> list[dict[str, object]]:
    return [args for op, _, args in broker.asked if op == "move_messages"]


def test_move_takes_what_is_ready_now(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(
        describe_queue={"ready": 12_000},
        move_messages=lambda count, **_: answer(count),
    )
    assert broker.run("move", "from", r"t\xff", "-p", "/x") == 0
    assert capsys.readouterr().out == "12,000 messages moved to queue 'to'\n"
    one = {"queue": "from", "to": "t\udcff", "dry_run": False}
    assert asked(broker) == [one | {"count": 10_000}, one | {"count": 2000}]
    assert broker.run("move", "from", "to", "-n", "5", "--dry-run") == 0
    assert capsys.readouterr().out == "5 messages would move to queue 'to'\n"
    assert broker.run("move", "from", "to", "-n", "1") == 0
    assert capsys.readouterr().out == "1 message moved to queue 'to'\n"
    assert [args["dry_run"] for args in asked(broker)[-2:]] == [True, False]


def test_what_stays_is_75_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    answers = [answer(3), answer(2, queue="two"), answer(0, 4, "queue 'two' is full")]
    broker = FakeControl(
        describe_queue={"ready": 9}, move_messages=lambda **_: answers.pop(0)
    )  # fmt: skip
    assert broker.run("replay", "dead") == 75
    captured = capsys.readouterr()
    assert captured.out == "3 messages moved to queue 'to'\n2 messages moved to queue 'two'\n"
    assert captured.err == (
        "penstock: 4 or more messages stay in queue 'dead': queue 'two' is full\n"
    )
    assert asked(broker)[0]["to"] is None
    nothing = FakeControl(describe_queue={"ready": 0})
    assert nothing.run("replay", "dead") == 0
    assert capsys.readouterr().out == "no message moved\n"


def test_a_target_that_is_not_there_is_told_of_an_empty_queue_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = CommandRefusedError(404, "NOT_FOUND - no queue 'away' in vhost '/'")
    broker = FakeControl(describe_queue={"ready": 0}, move_messages=away)
    assert broker.run("move", "from", "away") == 66
    assert capsys.readouterr().err.startswith("penstock: NOT_FOUND - no queue 'away'")
    assert [args["dry_run"] for args in asked(broker)] == [True]


def test_only_what_matches(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(
        describe_queue={"ready": 9}, move_messages=lambda **_: answer(0)
    )  # fmt: skip
    words = ["--match", "key=a=b", "--match", "header=x:1", "--match", "header=y"]
    words += ["--match", "older=1h30m"]
    assert broker.run("replay", "dead", *words, "--match", "body=c") == 0
    assert asked(broker) == [
        {
            "queue": "dead", "to": None, "count": 9, "dry_run": False, "key": "a=b", "body": "c",
            "headers": {"x": "1", "y": None}, "older": 5400,
        }
    ]  # fmt: skip
    for wrong in ("key", "name=x", "=x", "older=soon", "older=1ms"):
        assert broker.run("move", "a", "b", "--match", wrong) == 64
        expected = "header=NAME:VALUE, header=NAME, tag=NUMBER or older=TIME"
        assert expected in capsys.readouterr().err


def test_only_these_by_their_tags(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(move_messages=lambda **_: answer(2))
    assert broker.run("move", "a", "b", "--match", "tag=7", "--match", "tag=9") == 0
    assert [(one["count"], one["tags"]) for one in asked(broker)] == [(2, [7, 9])]
    assert broker.run("move", "a", "b", "--match", "tag=x") == 64
    assert "given 'tag=x'" in capsys.readouterr().err


def test_messages_are_deleted_after_a_question(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = 3

    def delete(count: int = 1_000_000, **_: object) -> dict[str, Any]:
        return {"deleted": min(ready, count), "stays": 0, "why": ""}

    broker = FakeControl(delete_messages=delete)
    assert broker.run("delete_messages", "q", "-n", "2", "--match", "key=a") == 0
    assert capsys.readouterr().out == "2 messages of queue 'q' deleted\n"
    asked = [args for op, _, args in broker.asked if op == "delete_messages"]
    one = {"queue": "q", "count": 2, "key": "a"}
    assert asked == [one | {"dry_run": True}, one]
    assert broker.run("delete_messages", "q", "--dry-run") == 0
    assert capsys.readouterr().out == "3 messages of queue 'q' would be deleted\n"
    ready = 10_001
    assert broker.run("delete_messages", "q") == 64
    assert "would delete 10,001 messages of queue 'q': give --yes" in capsys.readouterr().err
    assert broker.run("delete_messages", "q", "--yes") == 0
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert broker.run("delete_messages", "q") == 130
    assert "Delete 10,001 messages of queue 'q'?" in capsys.readouterr().err


def test_a_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(ThreadWaiter, "sleep", lambda _self, seconds: slept.append(seconds))
    broker = FakeControl(
        describe_queue={"ready": 25}, move_messages=lambda count, **_: answer(count)
    )
    assert broker.run("replay", "dead", "--rate", "10") == 0
    assert [args["count"] for args in asked(broker)] == [10, 10, 5]
    assert slept == [1.0, 1.0]
