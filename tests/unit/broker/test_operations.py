"""Operations by name: topology, permissions, what is told of a wrong one."""

import random
from typing import Any

import pytest

from penstock.access.permissions import Identity
from penstock.broker.operations import FUNCTIONS
from penstock.errors import AMQPError
from penstock.operation_json import dumps
from penstock.operation_table import ALL, OPERATIONS, POLICYMAKERS
from penstock.storage.files.durability import DISK
from tests.helpers.operation_rig import OperationRig


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


def channel_of(rig: OperationRig, identity: Identity) -> Any:
    client = rig.client(identity)
    client.pump()
    client.open()
    return client.handler.channels[1]


def names(rig: OperationRig, op: str, field: str = "name") -> list[str]:
    return [row[field] for row in rig.result(op)]


# ---- topology ------------------------------------------------------------------------------------


def test_a_queue_is_answered_when_it_is_durable(rig: OperationRig) -> None:
    asked = rig.ask("declare_queue", queue="q", arguments={"x-max-length": 5})
    assert not asked.has_come
    rig.turn()
    assert asked.result == {"queue": "q", "messages": 0, "consumers": 0, "is_new": True}
    assert rig.vhost.engine.log.settled(DISK) == rig.vhost.engine.log.last_lsn
    rig.restart()
    (row,) = rig.result("list_queues")
    assert (row["name"], row["durable"], row["arguments"]) == ("q", True, {"x-max-length": 5})


def test_a_queue_that_is_there_otherwise(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    rig.put("q", b"1")
    assert rig.result("declare_queue", queue="q")["messages"] == 1
    error = rig.refusal("declare_queue", queue="q", durable=False)
    assert error.code == 406
    assert "inequivalent arg 'durable' for queue 'q' in vhost '/'" in error.text


def test_a_name_of_the_brokers_choice(rig: OperationRig) -> None:
    assert rig.result("declare_queue", queue="")["queue"].startswith("amq.gen-")


@pytest.mark.parametrize("op", ["purge_queue", "delete_queue"])
def test_what_was_seen_must_be_so_still(rig: OperationRig, op: str) -> None:
    rig.result("declare_queue", queue="seen")
    rig.put("seen", b"1", b"2", b"3")
    (row,) = [row for row in rig.result("list_queues") if row["name"] == "seen"]
    seen = {"queue": "seen", "if_generation": row["generation"]}
    error = rig.refusal(op, **seen, if_messages_at_most=2)
    assert (error.code, "given 2, but queue 'seen' has 3 messages now" in error.text) == (406, True)
    error = rig.refusal(op, **{**seen, "if_generation": 0})
    assert "was deleted and declared again" in error.text
    assert rig.result(op, **seen, if_messages_at_most=3) == {"messages": 3}


def test_purge_and_delete_say_how_many(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    rig.put("q", b"1", b"2")
    assert rig.refusal("delete_queue", queue="q", if_empty=True).code == 406
    assert rig.result("purge_queue", queue="q") == {"messages": 2}
    rig.put("q", b"3")
    assert rig.result("delete_queue", queue="q") == {"messages": 1}
    assert names(rig, "list_queues") == []
    assert rig.refusal("delete_queue", queue="q").code == 404
    assert rig.refusal("purge_queue", queue="q").code == 404


def test_exchanges_and_bindings(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    rig.result("declare_exchange", exchange="x", type="fanout")
    rig.result("declare_exchange", exchange="y", type="topic", internal=True)
    rig.result("bind_queue", queue="q", exchange="y", routing_key="a.#", arguments={"n": 1})
    rig.result("bind_exchange", destination="y", source="x")
    rig.restart()
    bindings = [row for row in rig.result("list_bindings") if row["source_name"]]
    assert [(row["source_name"], row["destination_name"]) for row in bindings] in (
        [("x", "y"), ("y", "q")],
        [("y", "q"), ("x", "y")],
    )
    rig.result("unbind_exchange", destination="y", source="x")
    rig.result("unbind_queue", queue="q", exchange="y", routing_key="a.#", arguments={"n": 1})
    assert [row for row in rig.result("list_bindings") if row["source_name"]] == []
    rig.result("delete_exchange", exchange="x", if_unused=True)
    assert "x" not in names(rig, "list_exchanges")
    assert rig.refusal("delete_exchange", exchange="x").code == 404
    assert rig.refusal("bind_queue", queue="q", exchange="x").code == 404
    error = rig.refusal("declare_exchange", exchange="z", type="zigzag")
    assert error.code == 503
    assert "unknown exchange type 'zigzag', expected one of direct, fanout, topic" in error.text


@pytest.mark.parametrize(
    ("key", "arguments", "properties_key"),
    [
        ("a.#", {}, "a.%23"),
        ("", {}, "~"),
        ("~é /+", {}, "%7E%C3%A9+%2F%2B"),
        ("k", {"b": 1, "a": 2}, None),
    ],
)  # fmt: skip
def test_a_binding_is_deleted_by_its_key(
    rig: OperationRig, key: str, arguments: dict[str, object], properties_key: str | None
) -> None:
    rig.result("declare_queue", queue="q")
    between = {"queue": "q", "exchange": "amq.topic", "routing_key": key}
    named = rig.result("bind_queue", **between, arguments=arguments)["properties_key"]
    if properties_key is None:
        assert named.startswith("k~")
        turned = dict(reversed(arguments.items()))
        again = rig.result("bind_queue", **between, arguments=turned)
        assert again == {"properties_key": named}
        rig.restart()
    else:
        assert named == properties_key
    ends = {"source": "amq.topic", "destination": "q", "destination_type": "queue"}
    assert rig.refusal("delete_binding", **ends, properties_key="none").code == 404
    rig.result("delete_binding", **ends, properties_key=named)
    assert [row for row in rig.result("list_bindings") if row["source_name"]] == []
    assert rig.refusal("delete_binding", **ends, properties_key=named).code == 404
    rig.result("bind_exchange", destination="amq.fanout", source="amq.topic", routing_key="x")
    ends = {"source": "amq.topic", "destination": "amq.fanout", "destination_type": "exchange"}
    rig.result("delete_binding", **ends, properties_key="x")
    assert [row for row in rig.result("list_bindings") if row["source_name"]] == []


# ---- wrong words ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "args", "code", "told"),
    [
        ("list_queue", {}, 404, "no operation 'list_queue', did you mean 'list_queues'?"),
        ("zzz", {}, 404, "no operation 'zzz'"),
        ("purge_queue", {}, 406, "purge_queue: argument 'queue' is missing"),
        ("purge_queue", {"queue": 5}, 406, "given 5, expected a text"),
        ("purge_queue", {"queue": "q", "x": 1}, 406, "unknown argument 'x'"),
        ("list_queues", {"x": 1}, 406, "unknown argument 'x'"),
        ("get", {"queue": "q", "session": "s", "count": 0}, 406, "from 1 to 1000"),
    ],
)
def test_what_is_asked_wrongly(
    rig: OperationRig, op: str, args: dict[str, object], code: int, told: str
) -> None:
    rig.result("declare_queue", queue="q")
    error = rig.refusal(op, **args)
    assert error.code == code
    assert told in error.text


def test_a_failure_of_the_engine_goes_up(rig: OperationRig) -> None:
    rig.vhost.engine.journal.stop(OSError("the disk is gone"))
    with pytest.raises(Exception, match="the disk is gone"):
        rig.ask("declare_queue", queue="q")


# ---- permissions ---------------------------------------------------------------------------------


def test_a_client_needs_the_permissions_that_amqp_asks_for(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="other")
    ann = channel_of(rig, Identity("ann", frozenset(), "^mine", "^mine", "^mine"))
    assert rig.result("declare_queue", ann, queue="mine")["queue"] == "mine"
    refused: dict[str, dict[str, object]] = {
        "declare_queue": {"queue": "other"},
        "delete_queue": {"queue": "other"},
        "purge_queue": {"queue": "other"},
        "declare_exchange": {"exchange": "x"},
        "delete_exchange": {"exchange": "x"},
        "bind_queue": {"queue": "mine", "exchange": "amq.fanout"},
        "unbind_queue": {"queue": "mine", "exchange": "amq.fanout"},
        "delete_binding": {
            "source": "amq.fanout",
            "destination": "mine",
            "destination_type": "queue",
            "properties_key": "~",
        },
        "bind_exchange": {"destination": "mine", "source": "amq.fanout"},
        "unbind_exchange": {"destination": "amq.fanout", "source": "mine"},
        "publish": {"exchange": "amq.fanout", "bodies": []},
        "peek": {"queue": "other"},
    }
    for op, args in refused.items():
        error = rig.refusal(op, ann, **args)
        assert error.code == 403, op
        assert "refused for user 'ann'" in error.text
    dead = {"x-dead-letter-exchange": "amq.fanout"}
    assert rig.refusal("declare_queue", ann, queue="mine2", arguments=dead).code == 403


def test_listings_need_a_tag_and_the_rest_is_for_the_control_socket(rig: OperationRig) -> None:
    nobody = channel_of(rig, Identity("ann", frozenset(), ".*", ".*", ".*"))
    monitor = channel_of(rig, Identity("bob", frozenset({"monitoring"}), "", "", ""))
    root = channel_of(rig, Identity("eve", frozenset({"administrator"}), "", "", ""))
    listings = [op for op in FUNCTIONS if op.startswith("list_") or op == "vhost_status"]
    for op in ("list_streams", "list_leases", "list_batches"):  # give each what it may read
        listings.remove(op)
    listings.remove("list_rows")  # needs a kind: test_pages.py
    listings = [op for op in listings if OPERATIONS[op].audience == ALL]
    assert len(listings) == 10
    for op in listings:
        assert rig.refusal(op, nobody).code == 403
        rig.result(op, root)
        if OPERATIONS[op].tags == POLICYMAKERS:
            assert rig.refusal(op, monitor).code == 403
        else:
            rig.result(op, monitor)
    for op in ("get", "settle", "session_closed", "backup"):
        for channel in (nobody, monitor, root):
            error = rig.refusal(op, channel)
            assert error.code == 403
            assert "over the broker's control socket alone" in error.text
    assert "job" in rig.result("checkpoint")


def test_status_of_a_vhost(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    found = rig.result("vhost_status")
    assert found["name"] == "/"
    assert found["queues"] == 1


# ---- anything at all -----------------------------------------------------------------------------

ODD = [
    None, True, 0, -1, 1 << 70, 1.5, float("nan"), "", "q", "amq.x", "a\0b", "\udcff", "x" * 300,
    "ä" * 200, b"", b"\xff", [], [1], ["x"], [b"x"], {}, {"x-max-length": 1 << 70}, {"": None},
    {"x": {"y": [{"z": 1 << 70}]}}, {"x" * 300: 1}, {"x-max-priority": -1},
    {"headers": {"n": 1e400}}, {"priority": True}, {"b64": "x"}, object(), {"0": 5}, {"0": -1},
]  # fmt: skip
NAMES = [
    "queue", "exchange", "type", "durable", "arguments", "routing_key", "destination", "source",
    "bodies", "properties", "session", "count", "wait_ms", "tags", "after", "job", "requeue", "xxx",
    "reader", "offsets", "kept_from", "partition", "time_us", "wait", "messages", "bytes", "offset",
    "query", "batch", "target", "pages", "mandatory_keys", "force",
]  # fmt: skip


def test_whatever_is_asked_is_answered_once_and_breaks_nothing(rig: OperationRig) -> None:
    """A result or an AMQP error, and never another exception: that would end the vhost."""
    rng = random.Random(5)
    rig.result("declare_queue", queue="q")
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    right: dict[str, object] = {
        "queue": "q", "exchange": "amq.topic", "routing_key": "q", "destination": "amq.topic",
        "source": "amq.fanout", "bodies": [b"x"], "session": "s", "tags": [], "job": 1,
        "reader": "r", "offsets": {"0": 1}, "time_us": 0, "offset": 0, "query": "x", "batch": 0,
        "target": {"queue": "q"}, "pages": [],
    }  # fmt: skip
    for _ in range(2000):
        op = rng.choice(sorted(FUNCTIONS))
        if op == "backup" or op.startswith("box."):
            continue
        args = {name: value for name, value in right.items() if name in _words(op)}
        if "stream" in op:
            args["queue"] = "s"
        for _ in range(rng.randint(0, 2)):
            args[rng.choice([n for n in NAMES if n in _words(op)] or NAMES)] = rng.choice(ODD)
        asked = rig.ask(op, **args)
        if rng.random() < 0.05:
            rig.tick(0.2)
        rig.turn()
        assert len(asked.replies) == 1 or args.get("wait_ms"), (op, args)
        for reply in asked.replies:
            if not isinstance(reply, AMQPError):
                dumps(reply)
    rig.restart()
    rig.result("list_bindings")
    rig.result("list_queues")


def _words(op: str) -> set[str]:
    """The arguments that an operation knows."""
    return {argument.name for argument in OPERATIONS[op].arguments}


# ---- rights, operation by operation --------------------------------------------------------------

# operation -> (its arguments, (verb, name) that it needs). "new" is nothing yet, "q" a queue, "s" a
# stream, "x" and "y" are exchanges.
RIGHTS: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "declare_queue": ({"queue": "new"}, [("configure", "new")]),
    "declare_queue that dead-letters": (
        {"queue": "new", "arguments": {"x-dead-letter-exchange": "x"}},
        [("configure", "new"), ("read", "new"), ("write", "x")],
    ),
    "declare_queue that dead-letters to the default exchange": (
        {"queue": "new", "arguments": {"x-dead-letter-exchange": ""}},
        [("configure", "new"), ("read", "new"), ("write", "amq.default")],
    ),
    "declare_queue named by the server": ({"queue": ""}, [("configure", "amq.gen-.*")]),
    "declare_queue named by the server that dead-letters": (
        {"queue": "", "arguments": {"x-dead-letter-exchange": "x"}},
        [("configure", "amq.gen-.*"), ("read", "amq.gen-.*"), ("write", "x")],
    ),
    "delete_queue": ({"queue": "q"}, [("configure", "q")]),
    "purge_queue": ({"queue": "q"}, [("read", "q")]),
    "declare_exchange": ({"exchange": "new"}, [("configure", "new")]),
    "declare_exchange with an alternate": (
        {"exchange": "new", "arguments": {"alternate-exchange": "x"}},
        [("configure", "new"), ("read", "new"), ("write", "x")],
    ),
    "delete_exchange": ({"exchange": "x"}, [("configure", "x")]),
    "bind_queue": ({"queue": "q", "exchange": "x"}, [("write", "q"), ("read", "x")]),
    "unbind_queue": ({"queue": "q", "exchange": "x"}, [("write", "q"), ("read", "x")]),
    "bind_exchange": ({"destination": "x", "source": "y"}, [("write", "x"), ("read", "y")]),
    "unbind_exchange": ({"destination": "x", "source": "y"}, [("write", "x"), ("read", "y")]),
    "publish": ({"routing_key": "q", "bodies": ["1"]}, [("write", "amq.default")]),
    "publish to an exchange": (
        {"exchange": "amq.direct", "routing_key": "q", "bodies": ["1"]}, [("write", "amq.direct")],
    ),
    "peek": ({"queue": "q"}, [("read", "q")]),
    "describe_queue": ({"queue": "q"}, [("read", "q")]),
    "lease_queue": ({"queue": "q", "reader": "r", "messages": 1, "bytes": 1}, [("read", "q")]),
    "describe_lease": ({"queue": "q", "reader": "r"}, [("read", "q")]),
    "commit_batch": (
        {"query": "k", "batch": 0, "target": {"queue": "q", "dead_letter_to": "s"}, "pages": []},
        [("write", "q"), ("write", "s")],
    ),
    "commit_batch to exchanges": (
        {"query": "k", "batch": 0, "target": {"exchanges": ["x", ""]}, "pages": []},
        [("write", "x"), ("write", "amq.default")],
    ),
    "describe_stream": ({"queue": "s"}, [("read", "s")]),
    "box.declare": ({"name": "new", "arguments": {}}, [("configure", "new")]),
    "box.declare that dead-letters": (
        {"name": "new", "arguments": {"x-dead-letter-exchange": "x"}},
        [("configure", "new"), ("read", "new"), ("write", "x")],
    ),
    "box.purge": ({"name": "q"}, [("read", "q")]),
    "box.delete": ({"name": "q"}, [("configure", "q")]),
    "box.browse": ({"name": "q", "after": None, "n": 1}, [("read", "q")]),
    "box.read": ({"name": "q", "after": None, "tag": 1, "at": 0, "n": 1}, [("read", "q")]),
    "box.room": ({"name": "q", "bytes": 1, "count": 1}, [("write", "amq.default")]),
}  # fmt: skip


def with_rights(needs: list[tuple[str, str]], without: int | None) -> Identity:
    """A user with just these rights, but for one of them."""
    patterns: dict[str, list[str]] = {"configure": [], "write": [], "read": []}
    for i, (verb, name) in enumerate(needs):
        if i != without:
            patterns[verb].append(f"^{name}$")
    return Identity(
        "u", frozenset(), *["|".join(patterns[verb]) for verb in ("configure", "write", "read")]
    )


@pytest.mark.parametrize("what", RIGHTS)
def test_each_operation_needs_what_the_like_method_needs(what: str) -> None:
    op = what.split()[0]
    args, needs = RIGHTS[what]
    for without in (*range(len(needs)), None):
        rig = OperationRig()
        rig.result("declare_queue", queue="q")
        rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
        for name in ("x", "y"):
            rig.result("declare_exchange", exchange=name)
        rig.result("bind_queue", queue="q", exchange="amq.direct", routing_key="q")
        asked = rig.ask(op, channel_of(rig, with_rights(needs, without)), **args)
        rig.turn()
        (answer,) = asked.replies
        if without is None:
            is_wrong = isinstance(answer, AMQPError)
            assert not is_wrong or "page" in str(answer), answer
        else:
            verb, name = needs[without]
            assert isinstance(answer, AMQPError), (without, answer)
            assert answer.code == 403
            begin = f"ACCESS_REFUSED - {verb} access to "
            assert answer.text.startswith(begin), answer
            assert f"'{name.removesuffix('.*')}" in answer.text
