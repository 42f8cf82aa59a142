"""`penstock why`: what it asks, and the lines that it prints."""

import json
from typing import Any

import pytest

from penstock.cli import output
from penstock.cli.why import line
from tests.helpers.fake_control import FakeControl

FOUND: list[dict[str, Any]] = [
    {"about": "queue 'q'", "text": "no consumer", "do": "start one", "since": "2026-11-27T18:00Z"},
    {"about": "vhost '/'", "text": "a sync is slow", "do": "", "since": None},
]


def test_each_finding_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(why=FOUND)
    assert broker.run("why") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("queue 'q': no consumer, for ")
    assert first.endswith(" - start one")
    assert second == "vhost '/': a sync is slow"
    assert broker.run("why", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == FOUND


def test_on_a_terminal_a_line_ends_with_a_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    found = {"about": "queue 'q'", "text": "12 messages and no consumer", "do": "start one, or "
             "delete the queue", "since": None}  # fmt: skip
    assert FakeControl(why=[found]).run("why") == 0
    assert capsys.readouterr().out.splitlines() == [
        "queue 'q': 12 messages and no consumer -", "    start one, or delete the queue"
    ]  # fmt: skip


@pytest.mark.parametrize(("seconds", "said"), [(7500, "2 h 5 min"), (9, "9 s"), (-5, "0 s")])
def test_how_long_it_is_so(seconds: int, said: str) -> None:
    since_ms = 1_795_802_400_000  # 2026-11-27T18:00Z
    found = line(FOUND[0], since_ms + seconds * 1000)
    assert found == f"queue 'q': no consumer, for {said} - start one"


def test_a_name_is_of_a_queue_or_of_a_connection(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(why=[])
    assert broker.run("why", "orders", "-p", "shop") == 0
    assert broker.run("why", "127.0.0.1:5000 -> 127.0.0.1:5672") == 0
    assert capsys.readouterr().out == "nothing is wrong that the broker can see\n" * 2
    assert broker.asked == [
        ("why", "shop", {"queue": "orders"}),
        ("why", "/", {"connection": "127.0.0.1:5000 -> 127.0.0.1:5672"}),
    ]
