"""AMQP methods that few clients send: what the broker answers to each.

The answers of exchange.bind, exchange.unbind and exchange.delete, channel.flow, access.request,
basic.recover-async and connection.update-secret.
"""

import pytest

from penstock.codec.spec import (
    AccessRequest,
    AccessRequestOk,
    BasicConsume,
    BasicConsumeOk,
    BasicRecoverAsync,
    ChannelClose,
    ChannelFlow,
    ChannelFlowOk,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient


@pytest.fixture
def client() -> RigClient:
    return BrokerRig().client().open()


def test_exchanges_are_bound_unbound_and_deleted(client: RigClient) -> None:
    for name in ("from", "to"):
        client.call(1, ExchangeDeclare(exchange=name, type="fanout"), ExchangeDeclareOk)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    client.call(1, ExchangeBind(destination="to", source="from"), ExchangeBindOk)
    assert len(client.rig.vhost.router.bindings_of("from")) == 1
    client.call(1, ExchangeUnbind(destination="to", source="from"), ExchangeUnbindOk)
    assert client.rig.vhost.router.bindings_of("from") == []
    client.call(1, ExchangeDelete(exchange="to"), ExchangeDeleteOk)
    assert not client.rig.vhost.router.has("to")


def test_channel_flow_can_only_be_switched_on(client: RigClient) -> None:
    assert client.call(1, ChannelFlow(active=True), ChannelFlowOk).active


def test_access_request_is_answered_with_a_ticket(client: RigClient) -> None:
    assert client.call(1, AccessRequest(realm="/data"), AccessRequestOk).ticket == 1


def test_recover_async_requeues_and_has_no_answer(client: RigClient) -> None:
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    client.call(1, BasicConsume(queue="q", consumer_tag="t"), BasicConsumeOk)
    client.publish(1, "", "q", b"again")
    client.rig.turn()
    assert client.bodies() == [b"again"]
    client.send(1, BasicRecoverAsync(requeue=True))
    client.rig.turn()
    (message,) = client.messages()
    assert (message.body, message.method.redelivered) == (b"again", True)  # type: ignore[attr-defined]
    assert client.methods(ChannelClose) == []


def test_a_new_secret_is_accepted(client: RigClient) -> None:
    secret = ConnectionUpdateSecret(new_secret=b"new", reason="expires")
    client.call(0, secret, ConnectionUpdateSecretOk)
