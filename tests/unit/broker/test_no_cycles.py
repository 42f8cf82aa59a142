"""What has ended is freed at once: it is in no cycle of references.

Only a full collection frees what is in a cycle and has grown old, and a vhost makes one only when
it rests (server/heap.py): it would stop the loop for as long as it takes to walk over all objects.
So a connection, a channel, a queue or a call that has ended must not refer to itself.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.operations import FUNCTIONS
from penstock.codec.frames import method_frame
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    PenstockCall,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.inside import in_cycles
from tests.helpers.one_user import CALLS


def nothing(client: RigClient) -> None:
    """It has an open channel."""


def closes_channel(client: RigClient) -> None:
    client.call(1, ChannelClose(reply_code=200), ChannelCloseOk)


def closes_connection(client: RigClient) -> None:
    client.send(0, ConnectionClose(reply_code=200))
    client.rig.turn()


def consumes(client: RigClient) -> None:
    client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    client.call(1, BasicConsume(queue="q"), BasicConsumeOk)
    client.publish(1, "", "q", b"body")
    client.rig.turn()


def consumes_stream(client: RigClient) -> None:
    arguments = {"x-queue-type": "stream"}
    client.call(1, QueueDeclare(queue="s", durable=True, arguments=arguments), QueueDeclareOk)
    client.send(1, BasicConsume(queue="s"))
    client.publish(1, "", "s", b"body")
    client.rig.turn()


def publishes(client: RigClient) -> None:
    client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    client.publish(1, "", "q", b"body", delivery_mode=2)


def commits(client: RigClient) -> None:
    client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    client.call(1, TxSelect(), TxSelectOk)
    client.publish(1, "", "q", b"body", delivery_mode=2)
    client.call(1, TxCommit(), TxCommitOk)
    client.publish(1, "", "q", b"body", delivery_mode=2)


def is_refused(client: RigClient) -> None:
    client.send(1, QueueDeclare(queue="none", passive=True))
    client.rig.turn()


def begins(client: RigClient) -> None:
    client.raw(method_frame(1, BasicPublish(routing_key="q").encode()))


@pytest.mark.parametrize(
    "does",
    [
        nothing, closes_channel, closes_connection, consumes, consumes_stream, publishes, commits,
        is_refused, begins,
    ],
)  # fmt: skip
def test_a_connection_that_has_ended_is_freed(does: Callable[[RigClient], None]) -> None:
    rig = BrokerRig()
    does(rig.client().open())  # what is made once, and stays

    def connect() -> None:
        client = rig.client().open()
        does(client)
        client.lose()
        rig.clients.remove(client)

    assert in_cycles(connect) == []


def test_a_channel_that_has_ended_is_freed_while_its_connection_goes_on() -> None:
    client = BrokerRig().client().open()

    def open_and_close() -> None:
        client.open(2)
        client.publish(2, "", "none", b"body")
        client.call(2, ChannelClose(reply_code=200), ChannelCloseOk)

    open_and_close()
    assert in_cycles(open_and_close) == []


@pytest.mark.parametrize(
    ("is_durable", "arguments"),
    [
        (True, {}),
        (False, {}),
        (True, {"x-queue-mode": "lazy"}),
        (True, {"x-max-priority": 3}),
        (True, {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "l"}),
        (True, {"x-expires": 60_000, "x-message-ttl": 60_000}),
        (True, {"x-single-active-consumer": True}),
        (True, {"x-message-deduplication": True, "x-cache-size": 10}),
        (True, {"x-alert-count": 1}),
        (True, {"x-queue-type": "quorum", "x-delivery-limit": 1}),
        (True, {"x-queue-type": "stream", "x-partitions": 2}),
    ],
    ids=str,
)
def test_a_queue_that_was_deleted_is_freed(is_durable: bool, arguments: dict[str, object]) -> None:
    client = BrokerRig().client().open()
    client.call(1, QueueDeclare(queue="l", durable=True), QueueDeclareOk)

    def declare_and_delete() -> None:
        declare = QueueDeclare(queue="q", durable=is_durable, arguments=arguments)
        client.call(1, declare, QueueDeclareOk)
        for _ in range(3):
            client.publish(1, "", "q", b"body")
        client.rig.turn()
        client.rig.tick(3.0)
        client.call(1, QueueDelete(queue="q"), QueueDeleteOk)
        client.rig.tick(3.0)

    declare_and_delete()
    assert in_cycles(declare_and_delete) == []


@pytest.mark.parametrize(
    ("op", "args"),
    [(op, args) for op in FUNCTIONS for args in ({}, {"queue": "none", "name": 1})] + [*CALLS],
    ids=str,
)
def test_a_call_that_was_answered_is_freed(op: str, args: dict[str, Any]) -> None:
    """Each that was refused kept what it was given: megabytes, a hundred times a second."""
    client = BrokerRig().client().open()
    client.call(1, QueueDeclare(queue="eve.a", durable=True), QueueDeclareOk)
    given = json.dumps(args).encode("utf-8", "surrogatepass")

    def call() -> None:
        client.send(1, PenstockCall(op=op, arguments=given))
        client.rig.turn()
        client.rig.tick(3.0)
        client.outlet.sent.clear()

    call()
    assert in_cycles(call) == []
