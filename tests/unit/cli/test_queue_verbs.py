"""Queues, exchanges, bindings: what is asked of the broker, and what is said of the answer."""

import pytest

from penstock.cli.main import CommandRefusedError
from tests.helpers.fake_control import FakeControl, Terminal

DONE = {"messages": 3}


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


def test_an_argument_that_is_nearly_one_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-a", "x-max-lenght=5", "-a", "x-max-length=5", "-a", "x-something=else"]
    assert FakeControl().run("declare_queue", "jobs", *words) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "'x-max-lenght' is unknown" in line
    assert "did you mean 'x-max-length'?" in line


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


def test_pause_and_resume_a_queue() -> None:
    done: dict[str, object] = {"was_paused": False}
    broker = FakeControl(pause_queue=done, resume_queue=done)
    assert broker.run("pause_queue", "jobs", "-p", "shop") == 0
    assert broker.run("resume_queue", "jobs") == 0
    jobs = {"queue": "jobs"}
    assert broker.asked == [("pause_queue", "shop", jobs), ("resume_queue", "/", jobs)]


def test_delete_and_purge_say_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(
        delete_queue={"messages": 3}, purge_queue={"messages": 2}, describe_queue={"ready": 2}
    )
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
        ("describe_queue", "/", {"queue": "jobs"}),
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


@pytest.mark.parametrize("answer", ["y", "n"])
def test_on_a_terminal_it_is_asked_with_the_count(
    answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = {"ready": 3_120_441, "unacknowledged": 2}
    broker = FakeControl(describe_queue=count, purge_queue={"messages": 1}, delete_queue=DONE)
    for op, told in (
        ("purge_queue", "Delete 3,120,441 messages of queue 'orders'? [y/N]"),
        ("delete_queue", "Delete queue 'orders' with 3,120,443 messages? [y/N]"),
        ("delete_vhost", "Delete vhost 'orders' with all its queues and messages? [y/N]"),
    ):
        monkeypatch.setattr("sys.stdin", Terminal(answer + "\n"))
        assert broker.run(op, "orders") == (0 if answer == "y" else 130)
        assert told in capsys.readouterr().err
    done = [op for op, _, _ in broker.asked if op != "describe_queue"]
    assert done == (["purge_queue", "delete_queue", "delete_vhost"] if answer == "y" else [])


def test_without_a_terminal_much_is_deleted_with_yes_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    many = {"ready": 10_001, "unacknowledged": 0}
    broker = FakeControl(describe_queue=many, purge_queue={"messages": 10_001}, delete_queue=DONE)
    assert broker.run("purge_queue", "orders") == 64
    assert "10,001 messages of queue 'orders': give --yes" in capsys.readouterr().err
    assert broker.run("delete_vhost", "v") == 64
    assert "vhost 'v' with all its queues and messages: give --yes" in capsys.readouterr().err
    assert broker.run("purge_queue", "orders", "--yes") == 0
    assert broker.run("delete_vhost", "v", "-y") == 0
    assert broker.run("delete_queue", "orders") == 0
    assert [op for op, _, _ in broker.asked] == [
        "describe_queue", "purge_queue", "delete_vhost", "delete_queue"
    ]  # fmt: skip
    assert broker.run("-q", "delete_queue", "orders") == 0
    capsys.readouterr()
    assert broker.run("delete_queue", "-q", "orders") == 0
    assert capsys.readouterr().out == ""


def test_a_binding_of_a_queue_or_an_exchange() -> None:
    broker = FakeControl()
    assert broker.run("declare_binding", "x", "jobs", "a.*", "-a", "n=1") == 0
    assert broker.run("declare", "binding", "x", "y", "--to", "exchange", "-p", "/x") == 0
    assert broker.asked == [
        (
            "bind_queue", "/",
            {"queue": "jobs", "exchange": "x", "routing_key": "a.*", "arguments": {"n": 1}},
        ),
        (
            "bind_exchange", "/x",
            {"destination": "y", "source": "x", "routing_key": "", "arguments": {}},
        ),
    ]  # fmt: skip


def test_arguments_of_rabbitmqadmin(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of its guide, as they stand there."""
    message = {"tag": 1, "body": b"b", "routing_key": "k"}
    broker = FakeControl(
        get=[{"messages": [message]}], describe_queue={"ready": 0}, purge_queue={"messages": 0},
        set_policy={"queues": 1, "exchanges": 0}, delete_queue=DONE,
    )  # fmt: skip
    broker.answers["get"] = lambda **_: {"messages": [message]}
    for line in (
        "declare exchange name=my-exchange type=fanout",
        "declare queue name=my-queue durable=false",
        """declare queue --vhost=/x name=q arguments={"x-max-length":5,"x-queue-type":"quorum"}""",
        "declare binding source=e destination=q routing_key=k destination_type=queue vhost=/x",
        "publish exchange=amq.default routing_key=test payload=a=b",
        "get queue=test ackmode=ack_requeue_false",
        "get queue=test count=1",
        "purge queue name=test",
        "delete queue name=test",
        "declare user name=ann password=s3=t tags=monitoring",
        "declare permission vhost=/ user=ann configure=.* write= read=a",
        'declare policy name=p pattern=^q definition={"max-length":5} apply-to=queues priority=2',
    ):
        assert broker.run(*line.split()) == 0, (line, capsys.readouterr().err)
    lasting = {"durable": True, "auto_delete": False}
    queue_arguments = {"x-max-length": 5, "x-queue-type": "quorum"}
    exchange = {"exchange": "my-exchange", "type": "fanout", "internal": False, "arguments": {}}
    permission = {"user": "ann", "configure": ".*", "write": "", "read": "a"}
    policy = {"name": "p", "pattern": "^q", "definition": {"max-length": 5}}
    (first, second) = [args.pop("session") for op, _, args in broker.asked if op == "settle"]
    assert first != second
    settled = {"queue": "test", "tags": [1]}
    assert [one for one in broker.asked if one[0] not in ("describe_queue", "publish", "get")] == [
        ("declare_exchange", "/", exchange | lasting),
        (
            "declare_queue", "/",
            {"queue": "my-queue", "durable": False, "auto_delete": False, "arguments": {}},
        ),
        ("declare_queue", "/x", {"queue": "q", "arguments": queue_arguments} | lasting),
        (
            "bind_queue", "/x",
            {"queue": "q", "exchange": "e", "routing_key": "k", "arguments": {}},
        ),
        ("settle", "/", settled | {"requeue": False}),
        ("settle", "/", settled | {"requeue": True}),
        ("purge_queue", "/", {"queue": "test"}),
        (
            "delete_queue", "/",
            {"queue": "test", "if_unused": False, "if_empty": False, "force": False},
        ),
        ("add_user", None, {"name": "ann", "password": "s3=t", "tags": ["monitoring"]}),
        ("set_permissions", "/", permission),
        ("set_policy", "/", policy | {"priority": 2, "apply_to": "queues"}),
    ]  # fmt: skip
    (published,) = [args for op, _, args in broker.asked if op == "publish"]
    assert (published["exchange"], published["routing_key"]) == ("", "test")
    assert published["bodies"] == [b"a=b"]


@pytest.mark.parametrize("told", ["declare binding destination=q", "get count=1"])
def test_what_is_missing_is_named_as_there(told: str, capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl()
    assert broker.run(*told.split()) == 64
    assert ("source=" if "binding" in told else "QUEUE") in capsys.readouterr().err
    assert broker.run("declare", "queue", "name=q", "arguments={x") == 64
    assert "expected a JSON object" in capsys.readouterr().err
    assert not broker.asked


def test_a_name_with_an_equals_sign_stays_a_name() -> None:
    broker = FakeControl(declare_queue={})
    assert broker.run("declare_queue", "a=b") == 0
    assert broker.run("declare_queue", "name=q", "other") == 64
    assert [args["queue"] for _, _, args in broker.asked] == ["a=b"]
