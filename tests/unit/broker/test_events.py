"""Events of the broker: amq.rabbitmq.event, with the headers that a RabbitMQ sends."""

from typing import Any

from penstock.broker.connection_facts import erlang_address
from penstock.broker.events import ARGUMENTS_MAX, erlang_list
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
    QueueUnbindOk,
)
from penstock.native import node_name
from penstock.operation_table import EVENTS
from tests.helpers.broker_rig import RigClient
from tests.helpers.operation_rig import OperationRig

Event = tuple[str, dict[str, Any]]


def watched(key: str = "#") -> tuple[OperationRig, RigClient]:
    """A rig with a client whose queue "e" gets the events."""
    rig = OperationRig()
    c = rig.client().open()
    c.call(1, QueueDeclare(queue="e", durable=True), QueueDeclareOk)
    c.call(1, QueueBind(queue="e", exchange=EVENTS, routing_key=key), QueueBindOk)
    assert [name for name, _ in events(c)] == (["binding.created"] if key == "#" else [])
    return rig, c


def events(c: RigClient) -> list[Event]:
    """What is in "e", without the times, which each event has."""
    found = []
    while True:
        c.rig.turn()
        c.send(1, BasicGet(queue="e", no_ack=True))
        c.rig.turn()
        messages = c.messages()
        if not messages:
            return found
        method: Any = messages[0].method
        props = BasicProperties.decode(messages[0].header)
        headers: dict[str, Any] = dict(props.headers or {})
        assert (props.delivery_mode, messages[0].body) == (2, b"")
        assert headers.pop("timestamp_in_ms") // 1000 == props.timestamp
        found.append((method.routing_key, headers))


def test_topology_as_a_rabbitmq_says_it() -> None:
    _, c = watched()
    by = {"user_who_performed_action": "guest", "vhost": "/"}
    arguments: dict[str, object] = {"x-max-length": 5}
    c.call(1, QueueDeclare(queue="q", durable=True, arguments=arguments), QueueDeclareOk)
    c.call(1, ExchangeDeclare(exchange="x", type="topic"), ExchangeDeclareOk)
    bind = {"queue": "q", "exchange": "x", "routing_key": "k.*", "arguments": {"a": 1}}
    c.call(1, QueueBind(**bind), QueueBindOk)
    binding = {
        **by, "arguments": ['{<<"a">>,signedint,1}'], "routing_key": "k.*",
        "destination_kind": "queue", "destination_name": "q", "source_kind": "exchange",
        "source_name": "x",
    }  # fmt: skip
    assert events(c) == [
        ("queue.created", {
            **by, "name": "q", "exclusive": False, "owner_pid": "", "auto_delete": False,
            "durable": True, "arguments": ['{<<"x-max-length">>,signedint,5}'],
            "type": "rabbit_classic_queue",
        }),
        ("exchange.created", {
            **by, "name": "x", "type": "topic", "durable": False, "auto_delete": False,
            "internal": False, "policy": "", "arguments": [],
        }),
        ("binding.created", binding),
    ]  # fmt: skip
    c.call(1, QueueDeclare(queue="q", durable=True, arguments=arguments), QueueDeclareOk)
    assert events(c) == []  # it was there
    c.call(1, QueueUnbind(**bind), QueueUnbindOk)
    c.call(1, ExchangeDelete(exchange="x"), ExchangeDeleteOk)
    c.call(1, QueueDelete(queue="q"), QueueDeleteOk)
    assert events(c) == [
        ("binding.deleted", binding), ("exchange.deleted", {**by, "name": "x"}),
        ("queue.deleted", {**by, "name": "q"}),
    ]  # fmt: skip


def test_bindings_go_with_their_queue_and_their_exchange() -> None:
    _, c = watched("*.deleted")
    c.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    c.call(1, ExchangeDeclare(exchange="x", type="fanout"), ExchangeDeclareOk)
    c.call(1, QueueBind(queue="q", exchange="x"), QueueBindOk)
    c.call(1, QueueBind(queue="q", exchange="amq.fanout"), QueueBindOk)
    c.call(1, ExchangeDelete(exchange="x"), ExchangeDeleteOk)
    c.call(1, QueueDelete(queue="q"), QueueDeleteOk)
    found = [(name, headers.get("source_name", headers.get("name"))) for name, headers in events(c)]
    assert sorted(found) == [
        ("binding.deleted", "amq.fanout"), ("binding.deleted", "x"), ("exchange.deleted", "x"),
        ("queue.deleted", "q"),
    ]  # fmt: skip


def test_connections_channels_and_consumers() -> None:
    rig, c = watched()
    other = rig.client().open()
    opened = other.handler.name
    (created, (kind, channel)) = events(c)
    assert created[0] == "connection.created"
    facts = created[1]
    assert (facts["name"], facts["pid"], facts["user"]) == (opened, opened, "guest")
    assert {"peer_host", "peer_port", "ssl", "protocol", "client_properties"} <= facts.keys()
    assert kind == "channel.created"
    assert channel == {
        "pid": f"{opened} (1)", "name": f"{opened} (1)", "connection": opened, "number": 1,
        "user": "guest", "vhost": "/", "user_who_performed_action": "guest",
    }  # fmt: skip
    other.call(1, QueueDeclare(queue="ad", auto_delete=True), QueueDeclareOk)
    consume = BasicConsume(queue="ad", consumer_tag="t", arguments={"x-priority": 3})
    other.call(1, consume, BasicConsumeOk)
    other.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
    consumer = {
        "consumer_tag": "t", "channel": f"{opened} (1)", "queue": "ad", "vhost": "/",
        "user_who_performed_action": "guest",
    }  # fmt: skip
    assert events(c)[1:] == [
        ("consumer.created", {
            **consumer, "arguments": ['{<<"x-priority">>,signedint,3}'], "ack_required": True,
            "exclusive": False, "prefetch_count": 0,
        }),
        ("consumer.deleted", consumer),
        ("queue.deleted", {
            "name": "ad", "vhost": "/", "user_who_performed_action": "rmq-internal",
        }),
    ]  # fmt: skip
    other.call(2, ChannelOpen(), ChannelOpenOk)
    other.call(2, ChannelClose(), ChannelCloseOk)
    other.call(1, QueueDeclare(queue="mine", exclusive=True), QueueDeclareOk)
    assert [name for name, _ in events(c)] == ["channel.created", "channel.closed", "queue.created"]
    other.handler.lost()
    found = events(c)
    assert [name for name, _ in found] == ["channel.closed", "queue.deleted", "connection.closed"]
    assert found[2][1]["name"] == opened


def test_alarms() -> None:
    rig, c = watched("alarm.*")
    rig.vhost.event("memory_alarm", "too much")
    rig.vhost.event("memory_free", "less")
    alarm = {"source": "memory", "node": node_name(), "vhost": "/"}
    assert events(c) == [("alarm.set", alarm), ("alarm.cleared", alarm)]


def test_nothing_is_made_before_the_first_binding_and_after_the_last() -> None:
    rig, c = watched()
    wanted: list[bool] = []
    rig.vhost.events.on_wanted = wanted.append
    c.call(1, QueueUnbind(queue="e", exchange=EVENTS, routing_key="#"), QueueUnbindOk)
    c.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    assert not rig.vhost.events.is_on
    c.call(1, QueueBind(queue="e", exchange=EVENTS, routing_key="queue.*"), QueueBindOk)
    assert events(c) == []
    assert wanted == [False, True]


def test_what_other_processes_send() -> None:
    rig, c = watched("user.*")
    lines = ['{"event": "user.created", "headers": {"name": "ann"}, "time_ms": 1700000000123}']
    assert rig.result("publish_events", lines=lines) == {}
    assert events(c) == [("user.created", {"name": "ann"})]


def test_words_of_erlang() -> None:
    given: dict[str, object] = {
        "s": "x", "n": 5, "l": 1 << 40, "b": True, "d": 1.5, "v": None, "t": {"k": 1},
        "a": ["x", 1], "y": b"raw",
    }  # fmt: skip
    assert erlang_list(given) == [
        '{<<"s">>,longstr,<<"x">>}', '{<<"n">>,signedint,5}', '{<<"l">>,long,1099511627776}',
        '{<<"b">>,bool,true}', '{<<"d">>,double,1.5}', '{<<"v">>,void,undefined}',
        '{<<"t">>,table,[{<<"k">>,signedint,1}]}',
        '{<<"a">>,array,[{longstr,<<"x">>},{signedint,1}]}', '{<<"y">>,longstr,<<"raw">>}',
    ]  # fmt: skip
    assert erlang_address("127.0.0.1") == "{127,0,0,1}"
    assert erlang_address("::1") == "::1"


def test_the_text_of_large_arguments_is_cut() -> None:
    """A null of an array takes one byte, and 17 characters in Erlang's words."""
    deep: dict[str, object] = {"n": 1}
    for n in range(100):
        deep = {"x" * 30: "y" * 100, "t": deep, str(n): [None] * 50}
    for given in ({"a": [None] * 100_000, "b": 1}, deep, {"s": "x" * 100_000}, {"b": b"x" * 9000}):
        texts = [str(text) for text in erlang_list(given)]
        assert sum(map(len, texts)) < ARGUMENTS_MAX + 2000
        assert "..." in "".join(texts)
    assert erlang_list({"a": [None] * 10, "b": 1})[1] == '{<<"b">>,signedint,1}'
