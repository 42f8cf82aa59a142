"""`penstock release lease` and `release query`: what is asked, and what is said of the answer."""

import pytest

from penstock.cli.main import CommandRefusedError
from tests.helpers.fake_control import FakeControl


def test_release_lease(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(release_lease={"messages": 7})
    assert broker.run("release", "lease", "jobs", "spark-1") == 0
    assert broker.run("release_lease", "jobs", "spark-1", "-p", "/x") == 0
    args = {"queue": "jobs", "reader": "spark-1"}
    assert broker.asked == [("release_lease", "/", args), ("release_lease", "/x", args)]
    line = "7 messages of queue 'jobs' released, reader 'spark-1' has none\n"
    assert capsys.readouterr().out == line * 2


def test_release_query(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(release_query=lambda query, force: {"batch": 4 if force else None})
    assert broker.run("release", "query", "q-1") == 0
    assert broker.run("release", "query", "q-1", "--force") == 0
    assert broker.asked == [
        ("release_query", "/", {"query": "q-1", "force": False}),
        ("release_query", "/", {"query": "q-1", "force": True}),
    ]
    assert capsys.readouterr().out == (
        "query 'q-1' is not known\nquery 'q-1' forgotten, its last batch was 4\n"
    )


def test_a_batch_that_is_on_its_way_is_64(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(release_query=CommandRefusedError(406, "PRECONDITION_FAILED - not done"))
    assert broker.run("release", "query", "q-1") == 64
    assert "not done" in capsys.readouterr().err
