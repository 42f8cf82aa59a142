"""What the remote box asks of a vhost: answers, permissions, adopted deliveries, mistakes."""

import base64
import json
from typing import Any

import pytest

from penstock.access.permissions import Identity
from penstock.broker import operations
from penstock.broker.channel import Channel
from penstock.broker.operations.box import FUNCTIONS
from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    PenstockCall,
    PenstockCallError,
    PenstockCallOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.operation_table import OPERATIONS
from tests.helpers.broker_rig import RigClient
from tests.helpers.operation_rig import OperationRig
from tests.helpers.vhost_rig import classic

SECOND_MS = 1000


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


def channel_of(client: RigClient, number: int = 1) -> Channel:
    return client.handler.channels[number]


@pytest.fixture
def client(rig: OperationRig) -> RigClient:
    return rig.client().open(1)


@pytest.fixture
def channel(client: RigClient) -> Channel:
    return channel_of(client)


def got(rig: OperationRig, client: RigClient, number: int, queue: str) -> int:
    """The delivery tag of a message got from this queue."""
    client.send(number, BasicGet(queue=queue))
    rig.turn()
    (message,) = client.messages()
    tag: int = message.method.delivery_tag  # type: ignore[attr-defined]
    return tag


# ---- queues --------------------------------------------------------------------------------------


def test_a_queue_is_made_and_never_changed(rig: OperationRig, channel: Channel) -> None:
    asked = rig.result("box.queue", channel, name="q")
    assert asked == {"exists": False, "arguments": None, "whole_bytes": 64 << 20}
    arguments = {"x-max-priority": 3, "x-max-length": 5, "x-durability": "os"}
    for _ in range(2):
        rig.result("box.declare", channel, name="q", arguments=arguments)
    queue = rig.vhost.queues["q"]
    assert (queue.is_durable, classic(queue).amq.options.priorities) == (True, 3)
    assert rig.result("box.queue", channel, name="q")["arguments"] == arguments
    error = rig.refusal(
        "box.declare", channel, name="q", arguments={**arguments, "x-max-length": 4}
    )
    assert error.code == 406
    assert "inequivalent arg 'x-max-length'" in error.text
    assert classic(queue).amq.options.max_length == 5
    rig.restart()
    arguments_after = rig.result("box.queue", channel_of(rig.client().open(1)), name="q")
    assert arguments_after["arguments"] == arguments


def test_arguments_that_json_has_no_word_for(
    rig: OperationRig, client: RigClient, channel: Channel
) -> None:
    declare = QueueDeclare(queue="q", durable=True, arguments={"x-bytes": b"\0\xff"})
    client.call(1, declare, QueueDeclareOk)
    arguments = rig.result("box.queue", channel, name="q")["arguments"]
    again = json.loads(json.dumps(arguments))
    rig.result("box.declare", channel, name="q", arguments=again)
    rig.result("box.declare", channel, name="r", arguments={**again, "x-max-length": 5})
    assert rig.vhost.queues["r"].arguments == {"x-bytes": b"\0\xff", "x-max-length": 5}


def test_names_come_in_order_some_at_a_time(rig: OperationRig, channel: Channel) -> None:
    for name in ("b", "a", "c"):
        rig.result("box.declare", channel, name=name, arguments={})
    assert rig.result("box.queues", channel, after="", n=2) == ["a", "b"]
    assert rig.result("box.queues", channel, after="b", n=2) == ["c"]
    rig.result("box.delete", channel, name="b")
    assert rig.result("box.queues", channel, n=9) == ["a", "c"]
    assert rig.refusal("box.delete", channel, name="b").code == 404


def test_another_connections_exclusive_queue_is_not_seen(
    rig: OperationRig, client: RigClient, channel: Channel
) -> None:
    other = rig.client().open(1)
    other.call(1, QueueDeclare(queue="its", exclusive=True), QueueDeclareOk)
    client.call(1, QueueDeclare(queue="mine", exclusive=True), QueueDeclareOk)
    assert rig.result("box.queues", channel, n=9) == ["mine"]
    assert rig.refusal("box.queue_info", channel, name="its").code == 405


def test_counters(rig: OperationRig, client: RigClient, channel: Channel) -> None:
    rig.result("box.declare", channel, name="q", arguments={})
    rig.put("q", b"a", b"b", b"c")
    got(rig, client, 1, "q")
    info = rig.result("box.queue_info", channel, name="q")
    assert (info["ready"], info["unacked"], info["delayed"]) == (2, 1, 0)
    assert info["info"]["takers"] == 0
    whole = rig.result("box.info", channel)
    assert (whole["queues"], whole["durability"], whole["is_alarmed"]) == (1, "disk", 0)
    rig.result("box.sync", channel)
    assert rig.result("box.info", channel)["lsn_settled"] >= whole["lsn"]


def test_room(rig: OperationRig, channel: Channel) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    rig.result("box.declare", channel, name="q", arguments=arguments)
    rig.put("q", b"a", b"b")
    assert rig.result("box.room", channel, name="q", bytes=0, count=0) is None
    assert rig.result("box.room", channel, name="q", bytes=1, count=1) == {
        "limit": "max_length", "given": 3, "allowed": 2, "overflow": "reject-publish",
    }  # fmt: skip
    assert rig.result("box.purge", channel, name="q") == 2
    assert rig.result("box.room", channel, name="q", bytes=1, count=2) is None


# ---- messages ------------------------------------------------------------------------------------


def shown(found: list[dict[str, Any]]) -> list[bytes | None]:
    return [None if one["body"] is None else base64.b64decode(one["body"]) for one in found]


def test_browsing_in_pieces(rig: OperationRig, channel: Channel) -> None:
    rig.result("box.declare", channel, name="q", arguments={})
    large = bytes(100_000)
    rig.put("q", b"a", large, b"b", bytes(40_000), bytes(30_000))
    first = rig.result("box.browse", channel, name="q", after=None, n=9)
    assert shown(first) == [b"a", None, b"b", bytes(40_000)]  # as many as an answer may hold
    after = first[-1]["tag"]
    second = rig.result("box.browse", channel, name="q", after=after, n=9)
    assert shown(second) == [bytes(30_000)]
    assert rig.result("box.browse", channel, name="q", after=second[0]["tag"], n=9) == []
    data = b""
    place: dict[str, Any] = {"name": "q", "after": first[0]["tag"], "tag": first[1]["tag"]}
    while True:
        part = rig.result("box.read", channel, **place, at=len(data), n=1 << 20)
        data += base64.b64decode(part["data"])
        if len(data) == part["size"]:
            break
    assert data[part["header_size"] :] == large
    assert data[: part["header_size"]] == b"\x10\x00\x02"
    rig.result("box.purge", channel, name="q")
    assert rig.result("box.read", channel, **place, at=0, n=9) is None


def test_a_nack_comes_back_when_it_is_to(
    rig: OperationRig, client: RigClient, channel: Channel
) -> None:
    rig.result("box.declare", channel, name="q", arguments={})
    rig.put("q", b"a")
    rig.result("box.nack", channel, tag=got(rig, client, 1, "q"), delay_ms=0)
    (message,) = rig.result("box.browse", channel, name="q", after=None, n=1)
    assert message["is_redelivered"]
    rig.result("box.nack", channel, tag=got(rig, client, 1, "q"), delay_ms=5 * SECOND_MS)
    info = rig.result("box.queue_info", channel, name="q")
    assert (info["ready"], info["unacked"], info["delayed"]) == (0, 0, 1)
    rig.result("box.purge", channel, name="q", with_delayed=True)
    assert rig.result("box.queue_info", channel, name="q")["delayed"] == 0


def test_what_is_released_was_no_attempt(
    rig: OperationRig, client: RigClient, channel: Channel
) -> None:
    rig.result("box.declare", channel, name="q", arguments={"x-delivery-limit": 0})
    rig.put("q", b"a")
    for _ in range(3):
        rig.result("box.release", channel, tag=got(rig, client, 1, "q"))
    assert rig.result("box.queue_info", channel, name="q")["ready"] == 1
    assert rig.refusal("box.release", channel, tag=99).code == 404


@pytest.mark.parametrize("is_committed", [True, False])
def test_an_adopted_delivery_is_of_the_transaction(
    rig: OperationRig, client: RigClient, channel: Channel, is_committed: bool
) -> None:
    rig.result("box.declare", channel, name="q", arguments={})
    rig.put("q", b"a", b"b")
    tags = [got(rig, client, 1, "q"), got(rig, client, 1, "q")]
    client.open(2)
    client.call(2, TxSelect(), TxSelectOk)
    tx = channel_of(client, 2)
    adopted = rig.result("box.adopt", tx, channel=1, tags=tags)
    assert channel.unacked.count == 0
    for tag in adopted:
        client.send(2, BasicAck(delivery_tag=tag))
    rig.turn()
    assert rig.result("box.queue_info", channel, name="q")["unacked"] == 2
    if is_committed:
        client.call(2, TxCommit(), TxCommitOk)
    else:
        client.call(2, TxRollback(), TxRollbackOk)
        for tag in adopted:
            rig.result("box.nack", tx, tag=tag, delay_ms=0)
    info = rig.result("box.queue_info", channel, name="q")
    assert (info["unacked"], info["ready"]) == (0, 0 if is_committed else 2)


def test_what_cannot_be_adopted_stays(
    rig: OperationRig, client: RigClient, channel: Channel
) -> None:
    rig.result("box.declare", channel, name="q", arguments={})
    rig.put("q", b"a")
    tag = got(rig, client, 1, "q")
    client.open(2)
    tx = channel_of(client, 2)
    assert rig.refusal("box.adopt", tx, channel=3, tags=[tag]).code == 404
    assert rig.refusal("box.adopt", tx, channel=1, tags=[tag, tag + 1]).code == 404
    assert rig.refusal("box.nack", tx, tag=tag, delay_ms=None).code == 404
    assert (channel.unacked.count, tx.unacked.count) == (1, 0)


# ---- who may, and what is wrong ------------------------------------------------------------------

ARGUMENTS: dict[str, dict[str, Any]] = {
    "box.queue": {}, "box.declare": {"arguments": {}}, "box.queue_info": {},
    "box.room": {"bytes": 0, "count": 1}, "box.browse": {"n": 1},
    "box.read": {"tag": 1, "at": 0, "n": 1}, "box.purge": {}, "box.delete": {},
}  # fmt: skip


@pytest.mark.parametrize("op", sorted(ARGUMENTS))
def test_permissions(rig: OperationRig, channel: Channel, op: str) -> None:
    rig.result("box.declare", channel, name="q", arguments={})
    stranger = channel_of(rig.client(Identity("worker", frozenset(), "^$", "^$", "^$")).open(1))
    error = rig.refusal(op, stranger, name="q", **ARGUMENTS[op])
    assert (error.code, "worker" in error.text) == (403, True)
    assert rig.result("box.queues", stranger, n=9) == []
    assert rig.vhost.table.has("q")


@pytest.mark.parametrize(
    ("op", "args", "text"),
    [
        ("box.brouse", {}, "NOT_FOUND - no operation 'box.brouse', did you mean 'box.browse'?"),
        ("box.nack", {"tag": 1, "delay_ms": -1}, "PRECONDITION_FAILED - box.nack: argument 'delay"),
        ("box.browse", {"name": "q", "n": 0}, "PRECONDITION_FAILED - box.browse: argument 'n'"),
        ("box.browse", {"name": "q", "after": -1, "n": 1}, "PRECONDITION_FAILED - box.browse"),
        ("box.declare", {"name": "", "arguments": {}}, "PRECONDITION_FAILED - box.declare"),
        (
            "box.declare",
            {"name": "x", "arguments": {"a": {"$amqp": "?"}}},
            "argument 'arguments': ",
        ),
        ("box.queues", {"n": 1, "aftr": ""}, "unknown argument 'aftr', did you mean 'after'?"),
    ],
)
def test_mistakes_are_told(
    rig: OperationRig, channel: Channel, op: str, args: dict[str, Any], text: str
) -> None:
    rig.result("box.declare", channel, name="q", arguments={})
    asked = rig.ask(op, channel, **args)
    rig.turn()
    assert len(asked.replies) == 1
    assert text in str(asked.replies[0])


def test_no_operator_is_a_box(rig: OperationRig) -> None:
    for operation in (OPERATIONS[name] for name in FUNCTIONS):
        assert rig.refusal(operation.name).code == 406


def test_by_the_method(rig: OperationRig, client: RigClient) -> None:
    found = client.call(1, PenstockCall(op="box.queues", arguments=b'{"n": 5}'), PenstockCallOk)
    assert json.loads(found.result) == []
    error = client.call(1, PenstockCall(op="box.queues", arguments=b"[]"), PenstockCallError)
    assert error.code == 502
    error = client.call(1, PenstockCall(op="nothing"), PenstockCallError)
    assert error.code == 404


def answers(client: RigClient) -> list[Any]:
    """What has been answered to penstock.call, in order: results, and the codes of errors."""
    client.pump()
    found: list[Any] = []
    for event in client.events:
        method = getattr(event, "method", None)
        if isinstance(method, PenstockCallOk):
            found.append(json.loads(method.result))
        elif isinstance(method, PenstockCallError):
            found.append(method.code)
    return found


def call_all(client: RigClient, *calls: tuple[str, dict[str, Any]]) -> None:
    """Make these calls on channel 1 without waiting for an answer."""
    for op, args in calls:
        client.send(1, PenstockCall(op=op, arguments=json.dumps(args).encode()))


def test_calls_of_a_channel_are_answered_in_order(rig: OperationRig, client: RigClient) -> None:
    declared = ("box.declare", {"name": "q", "arguments": {}})  # answered when it is on the disk
    call_all(
        client, declared, ("box.queues", {"n": 5}), ("nothing", {}), ("box.purge", {"name": "q"})
    )
    rig.turn()
    assert answers(client) == [None, ["q"], 404, 0]


def test_a_channel_waits_with_many_answers_behind_one_that_is_late(
    rig: OperationRig, client: RigClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "USER_ANSWERS_BYTES_MAX", 5 * operations.ANSWER_BYTES)
    declared = ("box.declare", {"name": "q", "arguments": {}})
    call_all(client, declared, *[("nothing", {})] * 20)
    (channel,) = client.handler.channels.values()
    assert (len(channel.calls), len(channel.backlog)) == (7, 14)
    other = rig.client().open(2)
    assert other.call(2, PenstockCall(op="nothing"), PenstockCallError).code == 404
    assert answers(client) == [None] + [404] * 20
    assert rig.vhost.usage.answers.total == 0
    call_all(client, declared, *[("nothing", {})] * 20)
    client.lose()
    rig.turn()
    assert (rig.vhost.usage.answers.total, rig.vhost.usage.calls.total) == (0, 0)
