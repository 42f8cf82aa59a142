"""`penstock why`: what it asks, and the lines that it prints."""

import json
from typing import Any

import pytest

from penstock.cli import output
from penstock.cli.node import line
from tests.helpers.fake_control import FakeControl

STATUS: dict[str, Any] = {
    "problems": [], "kinds": [], "about": [], "advice": [], "tls": None,
    "vhosts": [{"name": "/", "state": "running", "why": "", "blocked_reason": ""}],
}  # fmt: skip
FOUND: list[dict[str, Any]] = [
    {"about": "queue 'q'", "text": "no consumer", "do": "start one", "since": "2026-11-27T18:00Z"},
    {"about": "vhost '/'", "text": "a sync is slow", "do": "", "since": None},
]


def test_each_finding_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(why=FOUND, status=STATUS)
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
    assert FakeControl(why=[found], status=STATUS).run("why") == 0
    assert capsys.readouterr().out.splitlines() == [
        "queue 'q': 12 messages and no consumer -", "    start one, or delete the queue"
    ]  # fmt: skip


@pytest.mark.parametrize(("seconds", "said"), [(7500, "2 h 5 min"), (9, "9 s"), (-5, "0 s")])
def test_how_long_it_is_so(seconds: int, said: str) -> None:
    since_ms = 1_795_802_400_000  # 2026-11-27T18:00Z
    found = line(FOUND[0], since_ms + seconds * 1000)
    assert found == f"queue 'q': no consumer, for {said} - start one"


def test_a_name_is_of_a_queue_or_of_a_connection(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(why=[], status=STATUS)
    assert broker.run("why", "orders", "-p", "shop") == 0
    assert broker.run("why", "127.0.0.1:5000 -> 127.0.0.1:5672") == 0
    assert capsys.readouterr().out == "nothing is wrong that the broker can see\n" * 2
    assert [one for one in broker.asked if one[0] == "why"] == [
        ("why", "shop", {"queue": "orders"}),
        ("why", "/", {"connection": "127.0.0.1:5000 -> 127.0.0.1:5672"}),
    ]


def said(capsys: pytest.CaptureFixture[str], *words: str, **status: Any) -> list[str]:
    """The lines of `penstock why` with these words, of a broker with this status."""
    assert FakeControl(why=FOUND[1:], status=STATUS | status).run("why", *words) == 0
    return capsys.readouterr().out.splitlines()


def test_what_is_wrong_with_the_broker_comes_first_and_certificates_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = said(
        capsys, problems=["the disk of /a has 1 KiB", "vhost 'b' is down", "no descriptor"],
        kinds=["alarm", "vhost", "node"], about=[None, "b", None], advice=["make room", "", ""],
        tls={"warnings": ["the certificate a.pem expires at noon"]},
    )  # fmt: skip
    assert lines == [
        "broker: the disk of /a has 1 KiB - make room",
        "broker: no descriptor",
        "vhost '/': a sync is slow",
        "broker: the certificate a.pem expires at noon - put a new one in its place, the broker "
        "reads it by itself",
    ]


def test_why_publishers_wait_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(
        capsys, problems=["vhost '/' is low on disk", "the disk has 1 KiB"], kinds=["alarm"] * 2,
        about=["/", None], advice=["", ""],
        vhosts=[{"name": "/", "state": "running", "why": "", "blocked_reason": "disk"}],
    )  # fmt: skip
    assert lines == ["vhost '/': a sync is slow"]


@pytest.mark.parametrize("words", [(), ("q",)])
def test_a_vhost_that_does_not_serve_is_asked_nothing(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    row = {"name": "/", "state": "stopped", "why": "stopped by an operator", "blocked_reason": ""}
    assert said(capsys, *words, vhosts=[row]) == [
        "vhost '/': stopped by an operator - penstock start_vhost /"
    ]
    lines = said(
        capsys, *words, vhosts=[row | {"state": "down"}], problems=["vhost '/' is down: it fell"],
        kinds=["vhost"], about=["/"], advice=["read the broker's log, then penstock restart_vhost"],
    )  # fmt: skip
    assert lines == [
        "vhost '/': is down: it fell - read the broker's log, then penstock restart_vhost"
    ]
