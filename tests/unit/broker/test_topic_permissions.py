"""Topic permissions at a vhost: publishes and bindings with routing keys, and cached routes."""

import pytest

from penstock.access.permissions import Identity
from penstock.codec.method import Method
from penstock.codec.spec import (
    ChannelClose,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueUnbind,
)
from tests.helpers.broker_rig import BrokerRig, RigClient

TEXT = "ACCESS_REFUSED - {} access to topic '{}' in exchange 'x' in vhost '/' refused for "
TEXT += "user 'ada'"


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig()
    client = rig.client(identity()).open()
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    client.call(1, ExchangeDeclare(exchange="x", type="topic"), ExchangeDeclareOk)
    client.call(1, ExchangeDeclare(exchange="y", type="topic"), ExchangeDeclareOk)
    client.send(1, QueueBind(queue="q", exchange="x", routing_key="#"))
    return rig


def identity(write: str = ".*", read: str = ".*") -> Identity:
    return Identity("ada", frozenset(), ".*", ".*", ".*", {"x": (write, read)})


def depth(rig: BrokerRig) -> int:
    queue = rig.vhost.table.usable("q")
    assert queue is not None
    return queue.len()


def refusal(rig: BrokerRig, client: RigClient) -> str:
    rig.turn()
    (closed,) = client.methods(ChannelClose)
    assert closed.reply_code == 403
    return closed.reply_text


def test_a_publish_is_checked_by_its_key(rig: BrokerRig) -> None:
    client = rig.client(identity(write="^a[.]")).open()
    client.publish(1, "x", "a.b", b"1")
    rig.turn()
    assert depth(rig) == 1
    client.publish(1, "x", "b", b"2")
    assert refusal(rig, client) == TEXT.format("write", "b")
    assert depth(rig) == 1


def test_a_key_in_cc_is_checked_too(rig: BrokerRig) -> None:
    client = rig.client(identity(write="^a$")).open()
    client.publish(1, "x", "a", b"1", headers={"CC": ["b"]})
    assert refusal(rig, client) == TEXT.format("write", "b")
    assert depth(rig) == 0


@pytest.mark.parametrize("kind", ["direct", "fanout", "headers"])
def test_exchanges_of_other_types_are_not_checked(rig: BrokerRig, kind: str) -> None:
    client = rig.client(identity(write="", read="")).open()
    client.call(1, ExchangeDelete(exchange="x"), ExchangeDeleteOk)
    client.call(1, ExchangeDeclare(exchange="x", type=kind), ExchangeDeclareOk)
    client.send(1, QueueBind(queue="q", exchange="x", routing_key="k"))
    client.publish(1, "x", "k", b"1")
    rig.turn()
    assert depth(rig) == 1
    assert not client.methods(ChannelClose)
    # Redeclared as a topic exchange: the cached route is not right any more.
    client.call(1, ExchangeDelete(exchange="x"), ExchangeDeleteOk)
    client.call(1, ExchangeDeclare(exchange="x", type="topic"), ExchangeDeclareOk)
    client.publish(1, "x", "k", b"2")
    assert refusal(rig, client) == TEXT.format("write", "k")


def test_a_change_applies_to_cached_routes_of_this_user_alone(rig: BrokerRig) -> None:
    client, other = rig.client(identity()).open(), rig.client(identity()).open()
    for one in (client, other):
        one.publish(1, "x", "k", b"1")
    rig.turn()
    client.handler.set_identity(identity(write="^a$"))
    other.publish(1, "x", "k", b"2")
    client.publish(1, "x", "a", b"2")
    rig.turn()
    assert depth(rig) == 4
    client.publish(1, "x", "k", b"2")
    assert refusal(rig, client) == TEXT.format("write", "k")
    assert depth(rig) == 4


@pytest.mark.parametrize(
    "method",
    [
        QueueBind(queue="q", exchange="x", routing_key="b"),
        QueueUnbind(queue="q", exchange="x", routing_key="b"),
        ExchangeBind(destination="y", source="x", routing_key="b"),
        ExchangeUnbind(destination="y", source="x", routing_key="b"),
    ],
    ids=lambda method: type(method).__name__,
)
def test_bindings_are_checked_by_their_key(rig: BrokerRig, method: Method) -> None:
    client = rig.client(identity(read="^a$", write="")).open()
    client.send(1, QueueBind(queue="q", exchange="x", routing_key="a"))
    rig.turn()
    assert not client.methods(ChannelClose)
    client.send(1, method)
    assert refusal(rig, client) == TEXT.format("read", "b")


def test_who_may_not_write_to_the_exchange_hears_that_first(rig: BrokerRig) -> None:
    who = Identity("ada", frozenset(), "", "", "", {"x": ("", "")})
    client = rig.client(who).open()
    client.publish(1, "x", "k", b"")
    assert refusal(rig, client) == (
        "ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused for user 'ada'"
    )
