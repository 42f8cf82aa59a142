"""Exchanges of RabbitMQ's plugins on a broker: hashes, chance and recent history."""

from penstock.codec.spec import (
    BasicGet,
    ChannelClose,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.operation_rig import OperationRig


def declare(
    c: RigClient, type_name: str, *queues: str, key: str = "1", **arguments: object
) -> None:
    """An exchange "x" of this type, and queues that are bound to it."""
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    c.call(
        1, ExchangeDeclare(exchange="x", type=type_name, durable=True, arguments=named),
        ExchangeDeclareOk,
    )  # fmt: skip
    for queue in queues:
        bound(c, queue, key)


def bound(c: RigClient, queue: str, key: str = "1") -> None:
    c.call(1, QueueDeclare(queue=queue, durable=True), QueueDeclareOk)
    c.call(1, QueueBind(queue=queue, exchange="x", routing_key=key), QueueBindOk)


def depths(rig: BrokerRig, queues: str) -> list[int]:
    rig.turn()
    return [rig.vhost.table.served[name].len() for name in queues]


def test_messages_with_one_key_and_headers_go_to_queues_by_chance() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-random", "a", "b", "c")
    for _ in range(90):
        c.publish(1, "x", "k", b"m", headers={"n": 1})
        c.publish(1, "x", "k", b"m")
    found = depths(rig, "abc")
    assert sum(found) == 180
    assert min(found) > 30


def test_a_bound_random_exchange_is_not_cached_with_the_way_to_it() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-random", "a", "b")
    c.call(1, ExchangeDeclare(exchange="in", type="fanout"), ExchangeDeclareOk)
    c.call(1, ExchangeBind(destination="x", source="in"), ExchangeBindOk)
    for _ in range(60):
        c.publish(1, "in", "k", b"m")
    assert min(depths(rig, "ab")) > 15


def test_an_operation_publishes_each_body_by_chance() -> None:
    rig = OperationRig()
    c = rig.client().open()
    declare(c, "x-random", "a", "b")
    rig.result("publish", exchange="x", routing_key="k", bodies=[b"m"] * 60)
    assert min(depths(rig, "ab")) > 15


def test_a_consistent_hash_is_the_same_after_a_restart() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-consistent-hash", "a", "b", "c")
    for i in range(60):
        c.publish(1, "x", f"k{i}", b"m", delivery_mode=2)
    before = depths(rig, "abc")
    rig.restart()
    c = rig.client().open()
    for i in range(60):
        c.publish(1, "x", f"k{i}", b"m", delivery_mode=2)
    assert depths(rig, "abc") == [2 * n for n in before]
    assert min(before) > 5


def test_a_consistent_hash_by_message_id() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-consistent-hash", "a", "b", hash_property="message_id")
    for i in range(60):
        c.publish(1, "x", "k", b"m", message_id=str(i))
    assert min(depths(rig, "ab")) > 15


def test_a_wrong_weight_is_refused_and_nothing_is_bound() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-consistent-hash")
    c.call(1, QueueDeclare(queue="a"), QueueDeclareOk)
    close = c.call(1, QueueBind(queue="a", exchange="x", routing_key="k"), ChannelClose)
    assert close.reply_code == 406
    assert close.reply_text == "PRECONDITION_FAILED - The binding key must be an integer: 'k'"
    assert not rig.vhost.router.has_bindings("x")


# --- recent history ---


def test_a_new_binding_gets_the_last_messages_in_order() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-recent-history", "a", x_recent_history_length=3)
    for i in range(5):
        c.publish(1, "x", "k", b"%d" % i)
    bound(c, "b")
    assert depths(rig, "ab") == [5, 3]
    assert [taken(rig, "b") for _ in range(3)] == [b"2", b"3", b"4"]
    bound(c, "b")  # it is bound already
    assert depths(rig, "ab") == [5, 0]


def taken(rig: BrokerRig, queue: str) -> bytes:
    c = rig.clients[-1]
    c.send(1, BasicGet(queue=queue, no_ack=True))
    rig.turn()
    (body,) = c.bodies()
    return body


def test_messages_of_no_queue_are_kept_and_others_not_if_they_say_so() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-recent-history")
    c.publish(1, "x", "k", b"kept")
    c.publish(1, "x", "k", b"not", headers={"x-recent-history-no-store": True})
    rig.turn()
    bound(c, "a")
    assert depths(rig, "a") == [1]


def test_an_exchange_that_is_bound_routes_the_history_by_its_own_type() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-recent-history")
    for key in ("k", "l"):
        c.publish(1, "x", key, key.encode())
    c.call(1, ExchangeDeclare(exchange="y", type="direct"), ExchangeDeclareOk)
    c.call(1, QueueDeclare(queue="a"), QueueDeclareOk)
    c.call(1, QueueBind(queue="a", exchange="y", routing_key="l"), QueueBindOk)
    c.call(1, ExchangeBind(destination="y", source="x"), ExchangeBindOk)
    assert depths(rig, "a") == [1]
    assert taken(rig, "a") == b"l"


def test_a_history_is_spread_by_the_properties_of_its_messages() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-recent-history", x_recent_history_length=60)
    for i in range(60):
        c.publish(1, "x", "k", b"m", message_id=str(i))
    arguments: dict[str, object] = {"hash-property": "message_id"}
    spread = ExchangeDeclare(exchange="y", type="x-consistent-hash", arguments=arguments)
    c.call(1, spread, ExchangeDeclareOk)
    for name in ("a", "b"):
        c.call(1, QueueDeclare(queue=name), QueueDeclareOk)
        c.call(1, QueueBind(queue=name, exchange="y", routing_key="1"), QueueBindOk)
    c.call(1, ExchangeBind(destination="y", source="x"), ExchangeBindOk)
    assert min(depths(rig, "ab")) > 15


def test_a_transaction_keeps_messages_when_it_commits() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-recent-history")
    c.call(1, TxSelect(), TxSelectOk)
    c.publish(1, "x", "k", b"rolled back")
    c.call(1, TxRollback(), TxRollbackOk)
    c.publish(1, "x", "k", b"committed")
    c.call(1, TxCommit(), TxCommitOk)
    bound(c, "a")
    assert depths(rig, "a") == [1]
    assert taken(rig, "a") == b"committed"


def test_a_history_is_gone_after_a_restart() -> None:
    rig = BrokerRig()
    c = rig.client().open()
    declare(c, "x-recent-history")
    c.publish(1, "x", "k", b"m", delivery_mode=2)
    rig.turn()
    rig.restart()
    c = rig.client().open()
    bound(c, "a")
    assert depths(rig, "a") == [0]
