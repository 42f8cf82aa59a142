"""`penstock why`: what it asks, and the lines that it prints."""

import json

import pytest

from tests.helpers.fake_control import FakeControl

FOUND = [
    {"about": "queue 'q'", "text": "no consumer", "do": "start one", "since": "2026-11-27T18:00Z"},
    {"about": "vhost '/'", "text": "a sync is slow", "do": "", "since": None},
]


def test_each_finding_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(why=FOUND)
    assert broker.run("why") == 0
    assert capsys.readouterr().out == (
        "queue 'q': no consumer, since 2026-11-27T18:00Z - start one\nvhost '/': a sync is slow\n"
    )
    assert broker.run("why", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == FOUND


def test_a_name_is_of_a_queue_or_of_a_connection(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(why=[])
    assert broker.run("why", "orders", "-p", "shop") == 0
    assert broker.run("why", "127.0.0.1:5000 -> 127.0.0.1:5672") == 0
    assert capsys.readouterr().out == "nothing is wrong that the broker can see\n" * 2
    assert broker.asked == [
        ("why", "shop", {"queue": "orders"}),
        ("why", "/", {"connection": "127.0.0.1:5000 -> 127.0.0.1:5672"}),
    ]
