"""Queues, exchanges, bindings: what is asked of the broker, and what is said of the answer."""

import pytest

from penstock.cli.main import CommandRefusedError
from tests.helpers.fake_control import FakeControl


def test_the_type_of_a_declared_queue() -> None:
    broker = FakeControl()
    assert broker.run("declare_queue", "jobs", "--type", "quorum") == 0
    assert broker.run("declare_queue", "jobs", "--type", "stream", "-a", "x-queue-type=stream") == 0
    given = [arguments["arguments"] for _, _, arguments in broker.asked]
    assert given == [{"x-queue-type": "quorum"}, {"x-queue-type": "stream"}]
    assert (
        broker.run("declare_queue", "jobs", "--type", "quorum", "-a", "x-queue-type=stream") == 64
    )
    assert broker.run("declare_queue", "jobs", "--type", "other") == 64


def test_declare_queue() -> None:
    broker = FakeControl()
    words = ["-a", "x-max-length=5", "-a", "x-overflow=reject-publish", "-a", "x-s=true"]
    assert broker.run("declare_queue", "jobs", *words) == 0
    assert broker.run("declare_queue", "jobs", "--transient", "--auto-delete", "-p", "/x") == 0
    assert broker.asked == [
        (
            "declare_queue",
            "/",
            {
                "queue": "jobs", "durable": True, "auto_delete": False,
                "arguments": {"x-max-length": 5, "x-overflow": "reject-publish", "x-s": True},
            },
        ),
        (
            "declare_queue",
            "/x",
            {"queue": "jobs", "durable": False, "auto_delete": True, "arguments": {}},
        ),
    ]  # fmt: skip


def test_delete_and_purge_say_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(delete_queue={"messages": 3}, purge_queue={"messages": 2})
    assert broker.run("delete_queue", "jobs", "--if-empty") == 0
    assert broker.run("delete", "queue", "jobs", "--force") == 0
    assert broker.run("purge_queue", "jobs") == 0
    assert broker.asked == [
        (
            "delete_queue",
            "/",
            {"queue": "jobs", "if_unused": False, "if_empty": True, "force": False},
        ),
        (
            "delete_queue",
            "/",
            {"queue": "jobs", "if_unused": False, "if_empty": False, "force": True},
        ),
        ("purge_queue", "/", {"queue": "jobs"}),
    ]
    assert capsys.readouterr().out == (
        "queue 'jobs' deleted, with 3 messages\n" * 2 + "2 messages purged from queue 'jobs'\n"
    )


def test_exchanges_and_bindings() -> None:
    broker = FakeControl()
    assert broker.run("declare_exchange", "x", "--type", "topic", "--internal") == 0
    assert broker.run("bind_queue", "jobs", "x", "a.*", "-a", "n=1") == 0
    assert broker.run("unbind_queue", "jobs", "x") == 0
    assert broker.run("delete_exchange", "x", "--if-unused") == 0
    assert [(op, args) for op, _, args in broker.asked] == [
        (
            "declare_exchange",
            {
                "exchange": "x", "type": "topic", "durable": True, "auto_delete": False,
                "internal": True, "arguments": {},
            },
        ),
        (
            "bind_queue",
            {"queue": "jobs", "exchange": "x", "routing_key": "a.*", "arguments": {"n": 1}},
        ),
        (
            "unbind_queue",
            {"queue": "jobs", "exchange": "x", "routing_key": "", "arguments": {}},
        ),
        ("delete_exchange", {"exchange": "x", "if_unused": True}),
    ]  # fmt: skip


def test_what_is_no_argument_is_64(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl()
    assert broker.run("declare_queue", "jobs", "-a", "x-max-length") == 64
    assert "expected NAME=VALUE" in capsys.readouterr().err
    assert not broker.asked


def test_what_exists_otherwise_is_64(capsys: pytest.CaptureFixture[str]) -> None:
    text = "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'jobs' in vhost '/'"
    broker = FakeControl(declare_queue=CommandRefusedError(406, text))
    assert broker.run("declare_queue", "jobs") == 64
    assert capsys.readouterr().err == f"penstock: {text}\n"
