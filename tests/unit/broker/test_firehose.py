"""The firehose: copies of what is published and delivered, while it is on."""

from typing import Any

from penstock.broker import outbox
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from tests.helpers.broker_rig import RigClient
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import OperationRig


def traced(key: str = "#", *, is_on: bool = True) -> tuple[OperationRig, RigClient]:
    """A rig with the firehose on and a queue "t" that is bound to it; a client with a queue "q"."""
    rig = OperationRig()
    c = rig.client().open()
    for name in ("q", "t"):
        c.call(1, QueueDeclare(queue=name, durable=True), QueueDeclareOk)
    bind = QueueBind(queue="t", exchange="amq.rabbitmq.trace", routing_key=key)
    c.call(1, bind, QueueBindOk)
    if is_on:
        rig.result("trace_on")
    return rig, c


def copies(c: RigClient) -> list[tuple[str, dict[str, Any], bytes]]:
    """(routing key, headers, body) of what is in "t"."""
    found = []
    while True:
        c.rig.turn()
        c.send(1, BasicGet(queue="t", no_ack=True))
        c.rig.turn()
        messages = c.messages()
        if not messages:
            return found
        method: Any = messages[0].method
        headers: Any = BasicProperties.decode(messages[0].header).headers or {}
        found.append((method.routing_key, headers, messages[0].body))


def test_a_publish_and_its_delivery_are_copied() -> None:
    _, c = traced()
    c.publish(1, "", "q", b"body", headers={"a": 1}, content_type="text/plain")
    c.call(1, BasicConsume(queue="q", consumer_tag="c", no_ack=True), BasicConsumeOk)
    c.messages()
    (published, delivered) = copies(c)
    properties = {"headers": {"a": 1}, "content_type": "text/plain"}
    common = {
        "exchange_name": "", "routing_keys": ["q"], "properties": properties, "node": "penstock",
        "vhost": "/", "connection": "c0", "channel": 1, "user": "guest",
    }  # fmt: skip
    assert published == ("publish.", {**common, "routed_queues": ["q"]}, b"body")
    assert delivered == ("deliver.q", {**common, "redelivered": 0}, b"body")


def test_every_message_is_copied_on_every_path() -> None:
    rig, c = traced()
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    c.call(1, BasicConsume(queue="q", consumer_tag="c", no_ack=True), BasicConsumeOk)
    arguments: dict[str, object] = {"x-queue-type": "stream"}
    c.call(1, QueueDeclare(queue="s", durable=True, arguments=arguments), QueueDeclareOk)
    for _ in range(3):
        c.publish(1, "", "q", b"plain")
        c.publish(1, "", "s", b"stream")
        c.publish(1, "", "nowhere", b"none")
    c.publish(1, "", "q", bytes(2 << 20))
    rig.turn()
    c.messages()
    c.publish(1, "", "t", b"got")
    found = [(key, headers.get("routed_queues")) for key, headers, _ in copies(c)]
    assert found.count(("publish.", ["q"])) == 4
    assert found.count(("publish.", ["s"])) == 3
    assert found.count(("publish.", [])) == 3
    assert found.count(("deliver.q", None)) == 4
    assert found.count(("deliver.t", None)) == 1  # but not those of copies


def test_off_is_off_for_those_who_published_and_consumed_before() -> None:
    rig, c = traced(is_on=False)
    c.call(1, BasicConsume(queue="q", consumer_tag="c", no_ack=True), BasicConsumeOk)
    for is_on in (False, True, False):
        rig.result("trace_on" if is_on else "trace_off")
        for _ in range(2):
            c.publish(1, "", "q", b"m")
        rig.turn()
        c.messages()
        assert len(copies(c)) == (4 if is_on else 0)


def test_bindings_choose_what_is_copied() -> None:
    _, c = traced("deliver.#")
    c.publish(1, "", "q", b"m")
    assert copies(c) == []


@pure_only
def test_what_is_too_much_is_left_out_and_told(monkeypatch: Any) -> None:
    monkeypatch.setattr(outbox, "OUTBOX_BYTES_MAX", 3 * outbox.MESSAGE_BYTES + 100)
    rig, c = traced()
    for _ in range(10):
        c.publish(1, "", "q", b"m")
    assert 0 < len(copies(c)) < 10
    assert any("amq.rabbitmq.trace" in text for kind, text in rig.events if kind == "warning")
