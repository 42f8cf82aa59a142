"""Whoever is refused leaves a line: connection, vhost, user, channel, method, text."""

import pytest

from penstock.access.permissions import Identity
from penstock.codec.frames import method_frame
from penstock.codec.method import Method
from penstock.codec.spec import (
    BasicAck,
    ChannelClose,
    ChannelOpen,
    ConnectionClose,
    ExchangeDeclare,
    QueueDeclare,
    QueueDelete,
)
from tests.helpers.broker_rig import BrokerRig

WHO = "error on connection c0 (vhost '/', user 'ann'), "


@pytest.mark.parametrize(
    ("method", "line"),
    [
        (QueueDeclare(queue="a", passive=True), "queue.declare: NOT_FOUND - no queue 'a' in vhost"),
        (
            QueueDelete(queue="secret"),
            "queue.delete: ACCESS_REFUSED - configure access to queue 'secret' in vhost '/'",
        ),
        (BasicAck(delivery_tag=9), "basic.ack: PRECONDITION_FAILED - unknown delivery tag 9"),
        (
            ExchangeDeclare(exchange="a", type="odd"),
            "exchange.declare: ",
        ),
    ],
)  # fmt: skip
def test_a_refused_method(method: Method, line: str) -> None:
    rig = BrokerRig()
    client = rig.client(Identity("ann", frozenset(), "^a", "^a", "^a")).open(1)
    client.send(1, method)
    rig.turn()
    assert len(client.methods(ChannelClose) + client.methods(ConnectionClose)) == 1
    ((address, text),) = rig.refused
    assert address == "127.0.0.1"
    assert text.startswith(WHO)
    assert line in text


def test_a_refused_connection() -> None:
    rig = BrokerRig()
    client = rig.client(Identity("ann", frozenset(), "", "", "")).open(1)
    client.raw(method_frame(1, ChannelOpen().encode()))
    rig.turn()
    ((_, text),) = rig.refused
    assert text.startswith(WHO + "the connection is closed: channel.open: CHANNEL_ERROR - second")


def test_an_orderly_end_is_no_refusal() -> None:
    rig = BrokerRig()
    client = rig.client().open(1)
    client.handler.shutdown()
    rig.turn()
    assert client.methods(ConnectionClose)
    assert rig.refused == []
