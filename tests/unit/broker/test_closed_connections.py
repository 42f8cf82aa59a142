"""Connections that are closed by operators, and the list of those that have ended."""

from typing import Any

import pytest

from penstock.access.permissions import Identity, everything
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    ChannelClose,
    ConnectionClose,
    ConnectionCloseOk,
    PenstockCall,
    PenstockCallOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.helpers.broker_rig import RigClient
from tests.helpers.operation_rig import OperationRig


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


def closed(client: RigClient) -> list[tuple[int, str]]:
    return [(one.reply_code, one.reply_text) for one in client.methods(ConnectionClose)]


def ends(rig: OperationRig, *names: str) -> list[Any]:
    return [tuple(row[name] for name in names) for row in rig.vhost.counts.closed_connections]


def test_the_client_gets_the_reason(rig: OperationRig) -> None:
    client, other = rig.client(everything("ann")).open(1), rig.client(everything("bob")).open(1)
    client.call(1, QueueDeclare(queue="mine", exclusive=True), QueueDeclareOk)
    assert rig.result("close_connections", name="c0", reason="for repairs") == {"closed": 1}
    assert closed(client) == [(320, "CONNECTION_FORCED - for repairs")]
    assert closed(other) == []
    assert not rig.vhost.table.has("mine")
    client.send(0, ConnectionCloseOk())
    client.lose()
    assert ends(rig, "name", "user", "closed_by", "code") == [("c0", "ann", "server", 320)]
    error = rig.refusal("close_connections", name="c0")
    assert (error.code, error.text) == (404, "NOT_FOUND - no connection 'c0' in vhost '/'")


def test_one_channel_is_closed_and_its_messages_go_back(rig: OperationRig) -> None:
    client = rig.client(everything("ann")).open(1).open(2)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for number in (1, 2):
        rig.put("q", b"x")
        client.send(number, BasicGet(queue="q"))
        rig.turn()
    args = {"name": "c0", "channel": 1, "reason": "for repairs"}
    assert rig.result("close_connections", **args) == {"closed": 1}
    (told,) = client.methods(ChannelClose)
    assert (told.reply_code, told.reply_text) == (406, "PRECONDITION_FAILED - for repairs")
    assert len(client.messages()) == 2
    (row,) = rig.result("list_queues")
    assert (row["messages_ready"], row["messages_unacknowledged"]) == (1, 1)
    error = rig.refusal("close_connections", **args)
    assert "no channel 1 of connection 'c0'" in error.text
    assert "given without name" in rig.refusal("close_connections", channel=1).text


def test_those_of_a_user_and_all(rig: OperationRig) -> None:
    clients = [rig.client(everything(user)).open(1) for user in ("ann", "bob", "ann", "eve")]
    assert rig.result("close_connections", user="ann") == {"closed": 2}
    assert [len(closed(client)) for client in clients] == [1, 0, 1, 0]
    assert rig.result("close_connections")["closed"] >= 2
    assert [len(closed(client)) for client in clients] == [0, 1, 0, 1]


@pytest.mark.parametrize(("tag", "count"), [("management", 1), ("monitoring", 2)])
def test_a_manager_may_close_its_own(rig: OperationRig, tag: str, count: int) -> None:
    rig.client(everything("ann")).open(1)
    identity = Identity("bob", frozenset({tag}), ".*", ".*", ".*")
    client = rig.client(identity).open(1)
    client.send(1, PenstockCall(op="close_connections", arguments=b"{}"))
    rig.turn()
    (answer,) = client.methods(PenstockCallOk)
    assert answer.result == b'{"closed":%d}' % count
    rig.tick()
    assert closed(client) == [(320, "CONNECTION_FORCED - closed by an operator")]


def test_what_was_delivered_counts_no_attempt(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q", arguments={"x-queue-type": "quorum"})
    rig.put("q", b"1")
    client = rig.client().open(1)
    client.call(1, BasicConsume(queue="q", consumer_tag="t"), BasicConsumeOk)
    rig.turn()
    assert client.bodies() == [b"1"]
    rig.result("close_connections")
    (found,) = rig.result("get", queue="q", count=1, session="s", wait_ms=0)["messages"]
    assert not (found["properties"].get("headers") or {}).get("x-delivery-count")


def test_how_connections_have_ended(rig: OperationRig) -> None:
    told, lost, wrong = (rig.client().open(1) for _ in range(3))
    told.send(0, ConnectionClose(reply_code=200, reply_text="Goodbye"))
    rig.turn()
    told.lose()
    lost.lose()
    wrong.raw(b"\1\0\1\0\0\0\4\0\0\0\0\xce")
    rig.turn()
    wrong.lose()
    assert ends(rig, "name", "closed_by", "code") == [
        ("c0", "client", 200), ("c1", "", 0), ("c2", "server", 503),
    ]  # fmt: skip
    texts = [text for (text,) in ends(rig, "text")]
    assert texts[:2] == ["Goodbye", "the socket was closed without connection.close"]
    assert ends(rig, "closed_at")[0][0] >= ends(rig, "connected_at")[0][0]


def test_the_last_hundred_are_remembered(rig: OperationRig) -> None:
    for _ in range(101):
        rig.client().lose()
    assert len(rig.vhost.counts.closed_connections) == 100
    assert ends(rig, "name")[0] == ("c1",)
