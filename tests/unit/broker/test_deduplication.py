"""Deduplication: what a queue or an exchange has seen is not taken again, also after a crash."""

from typing import Any

import pytest

from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.operation_rig import OperationRig

DEDUPLICATED = {"x-message-deduplication": True}


def queue(c: RigClient, name: str = "q", *, durable: bool = True, **arguments: object) -> None:
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    c.call(1, QueueDeclare(queue=name, durable=durable, arguments=named), QueueDeclareOk)


def exchange(
    c: RigClient, *queues: str, kind: str = "x-message-deduplication", **more: Any
) -> None:
    arguments = {"x-cache-size": 100, **{key.replace("_", "-"): v for key, v in more.items()}}
    c.call(
        1, ExchangeDeclare(exchange="x", type=kind, durable=True, arguments=arguments),
        ExchangeDeclareOk,
    )  # fmt: skip
    for name in queues:
        queue(c, name)
        c.call(1, QueueBind(queue=name, exchange="x", routing_key="k"), QueueBindOk)


def publish(
    c: RigClient, key: object, *, to: str = "", name: str = "q", ttl: object = None, mode: int = 2,
    mandatory: bool = False, body: bytes = b"m",
) -> None:  # fmt: skip
    headers = {"x-deduplication-header": key}
    if ttl is not None:
        headers["x-cache-ttl"] = ttl
    c.publish(1, to, name, body, headers=headers, delivery_mode=mode, mandatory=mandatory)
    c.rig.turn()


def depth(rig: BrokerRig, name: str = "q") -> int:
    rig.turn()
    found = rig.vhost.table.usable(name)
    assert found is not None
    return found.len()


def get(c: RigClient, name: str = "q") -> bytes:
    c.send(1, BasicGet(queue=name, no_ack=True))
    c.rig.turn()
    return c.bodies()[0]


def client(rig: BrokerRig) -> RigClient:
    c = rig.client().open()
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    return c


# ---- queues --------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("mode", [1, 2])
def test_a_queue_takes_each_key_once(durable: bool, mode: int) -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, durable=durable, **DEDUPLICATED)
    for key in ("a", "b", "a", 1, 1, "1", True, b"a"):
        publish(c, key, mode=mode)
    assert depth(rig) == 5  # a, b, 1, "1", true
    assert sum(1 for _ in c.methods(BasicAck)) > 0


def test_each_duplicate_is_confirmed() -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, **DEDUPLICATED)
    for _ in range(3):
        publish(c, "a")
    assert [(ack.delivery_tag, ack.multiple) for ack in c.methods(BasicAck)][-1][0] == 3


def test_without_the_header_or_the_argument_all_are_taken() -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, **DEDUPLICATED)
    queue(c, "plain")
    for _ in range(2):
        c.publish(1, "", "q", b"m", headers={"other": 1}, message_id="same")
        publish(c, None)
        publish(c, "a", name="plain")
    assert (depth(rig), depth(rig, "plain")) == (4, 2)


def test_a_key_counts_after_its_message_was_consumed() -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, **DEDUPLICATED)
    publish(c, "a")
    assert get(c) == b"m"
    publish(c, "a")
    assert depth(rig) == 0


def test_the_window_is_bounded_in_count_and_in_time() -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, x_cache_size=2, x_cache_ttl=1000, **DEDUPLICATED)
    for key in ("a", "b", "c", "a"):
        publish(c, key)
    assert depth(rig) == 4
    publish(c, "c")
    assert depth(rig) == 4
    rig.tick(1.1)
    publish(c, "c")
    assert depth(rig) == 5


def test_a_message_has_its_own_time() -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, x_cache_ttl=1000, **DEDUPLICATED)
    publish(c, "long", ttl=5000)
    publish(c, "short", ttl=10)
    rig.tick(1.1)
    publish(c, "long")
    publish(c, "short")
    assert depth(rig) == 3


@pytest.mark.parametrize("is_restart", [True, False])
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_it_is_true_after_a_crash(is_restart: bool, has_checkpoint: bool) -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, **DEDUPLICATED)
    exchange(c, "of.x")
    publish(c, "a")
    publish(c, "e", to="x")
    if has_checkpoint:
        rig.vhost.engine.checkpoint()
        for _ in range(50):
            rig.tick(0.1)
    publish(c, "b")
    publish(c, "gone", mode=1)
    if is_restart:
        rig.restart()
    else:
        rig.vhost.abandon()
        assert rig.data is not None
        rig.data.close()
        rig.clients = []
        rig.start()
    c = client(rig)
    for key in ("a", "b", "gone"):
        publish(c, key)
    publish(c, "e", to="x")
    assert (depth(rig), depth(rig, "of.x")) == (3, 1)  # the transient one is not there


def test_a_queue_that_refuses_has_not_seen_the_key() -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, x_max_length=1, x_overflow="reject-publish", **DEDUPLICATED)
    publish(c, "a")
    publish(c, "b")
    assert len(c.methods(BasicNack)) == 1
    get(c)
    publish(c, "b")
    assert depth(rig) == 1


def test_a_deleted_queue_has_seen_nothing() -> None:
    rig = BrokerRig()
    c = client(rig)
    for _ in range(2):
        queue(c, **DEDUPLICATED)
        publish(c, "a")
        assert depth(rig) == 1
        found = rig.vhost.table.usable("q")
        assert found is not None
        rig.vhost.delete_queue(found)


def test_dead_letters_are_taken_always() -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, "dead", **DEDUPLICATED)
    queue(c, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    for _ in range(2):
        publish(c, "a")
        c.send(1, BasicGet(queue="q"))
        rig.turn()
        (message,) = c.messages()
        method: Any = message.method
        c.send(1, BasicNack(delivery_tag=method.delivery_tag, requeue=False))
    assert depth(rig, "dead") == 2


def test_large_bodies() -> None:
    rig = BrokerRig()
    c = client(rig)
    queue(c, **DEDUPLICATED)
    for _ in range(2):
        publish(c, "a", body=bytes(3 << 20))
    assert depth(rig) == 1


def test_operations_publish_each_key_once() -> None:
    rig = OperationRig()
    c = client(rig)
    queue(c, **DEDUPLICATED)
    properties = {"headers": {"x-deduplication-header": "a"}, "delivery_mode": 2}
    for _ in range(2):
        rig.result("publish", routing_key="q", bodies=[b"1", b"2"], properties=properties)
    assert depth(rig) == 1


# ---- exchanges -----------------------------------------------------------------------------------


def test_an_exchange_passes_each_key_once_to_all_its_queues() -> None:
    rig = BrokerRig()
    c = client(rig)
    exchange(c, "a", "b")
    queue(c, "c", durable=False)
    c.call(1, QueueBind(queue="c", exchange="x"), QueueBindOk)
    for key in ("1", "2", "1", "2"):
        publish(c, key, to="x")
    assert [depth(rig, name) for name in "abc"] == [2, 2, 2]


def test_a_mandatory_duplicate_is_returned() -> None:
    """As by the plugin: no queue gets it."""
    rig = BrokerRig()
    c = client(rig)
    exchange(c, "a")
    publish(c, "1", to="x", mandatory=True)
    assert c.messages() == []
    publish(c, "1", to="x", mandatory=True)
    assert [type(message.method) for message in c.messages()] == [BasicReturn]


def test_an_exchange_of_another_type_with_the_argument() -> None:
    rig = BrokerRig()
    c = client(rig)
    exchange(c, "a", kind="direct", x_message_deduplication=True)
    for key in ("1", "1", "2"):
        publish(c, key, to="x", name="k")
        publish(c, "other", to="x", name="not bound")
    publish(c, "other", to="x", name="k")
    assert depth(rig, "a") == 3  # what no queue has got is no duplicate


def test_an_exchange_that_is_bound() -> None:
    rig = BrokerRig()
    c = client(rig)
    exchange(c, "a")
    c.call(1, ExchangeDeclare(exchange="in", type="fanout"), ExchangeDeclareOk)
    c.call(1, ExchangeBind(destination="x", source="in"), ExchangeBindOk)
    queue(c, "all")
    c.call(1, QueueBind(queue="all", exchange="in"), QueueBindOk)
    for _ in range(3):
        publish(c, "1", to="in")
    assert (depth(rig, "a"), depth(rig, "all")) == (1, 3)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "Invalid argument None, 'x-cache-size' must be an integer from 1 to 100000"),
        ({"x-cache-size": 0}, "'x-cache-size' must be an integer"),
        ({"x-cache-size": 100_001}, "'x-cache-size' must be an integer"),
        ({"x-cache-size": 1, "x-cache-ttl": 0}, "'x-cache-ttl' must be ms, from 1"),
    ],
)
def test_wrong_arguments_of_an_exchange(arguments: dict[str, object], text: str) -> None:
    rig = BrokerRig()
    c = client(rig)
    declare = ExchangeDeclare(exchange="x", type="x-message-deduplication", arguments=arguments)
    close = c.call(1, declare, ChannelClose)
    assert close.reply_code == 406
    assert text in close.reply_text


def test_a_transaction_is_refused() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    queue(c, **DEDUPLICATED)
    c.call(1, TxSelect(), TxSelectOk)
    publish(c, None)
    publish(c, "a")
    assert c.methods(ChannelClose)[0].reply_text == (
        "PRECONDITION_FAILED - queue 'q' drops duplicates, which a transaction (tx.select) cannot: "
        "expected no header x-deduplication-header, or confirms (confirm.select) instead"
    )


def test_publishers_at_once_have_one_message() -> None:
    rig = BrokerRig()
    queues = client(rig)
    exchange(queues, "a")
    clients = [client(rig) for _ in range(3)]
    for c in clients:
        c.publish(1, "x", "", b"m", headers={"x-deduplication-header": "1"}, delivery_mode=2)
    assert depth(rig, "a") == 1
    assert [len(c.methods(BasicAck)) for c in clients] == [1, 1, 1]
