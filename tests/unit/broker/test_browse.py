"""Messages of a queue by key, header and body, and who has unacknowledged ones since when."""

from typing import Any

import pytest

from penstock.access.permissions import everything
from penstock.broker.operations import messages
from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicQos,
    BasicQosOk,
)
from tests.helpers.operation_rig import OperationRig


@pytest.fixture
def rig() -> OperationRig:
    rig = OperationRig()
    rig.result("declare_queue", queue="q")
    return rig


def browse(rig: OperationRig, **args: object) -> dict[str, Any]:
    found: dict[str, Any] = rig.result("browse_messages", queue="q", **args)
    return found


def payloads(found: dict[str, Any]) -> list[Any]:
    return [message["payload"] for message in found["messages"]]


def test_a_part_of_the_body_a_key_and_headers(rig: OperationRig) -> None:
    rig.put("q", b"an apple", headers={"kind": "fruit", "n": 1})
    rig.put("q", b"a pear", headers={"kind": "fruit", "n": 2})
    rig.put("q", b"a nail", headers={"kind": "tool"})
    rig.put("q", b"\xff nothing")
    assert payloads(browse(rig, count=9)) == ["an apple", "a pear", "a nail", "/yBub3RoaW5n"]
    assert payloads(browse(rig, count=9, body="a ")) == ["a pear", "a nail"]
    assert payloads(browse(rig, count=9, headers={"kind": "fruit"})) == ["an apple", "a pear"]
    assert payloads(browse(rig, count=9, headers={"n": "2", "kind": None})) == ["a pear"]
    assert payloads(browse(rig, count=9, headers={"colour": None})) == []
    assert payloads(browse(rig, count=9, key="q")) == payloads(browse(rig, count=9))
    assert payloads(browse(rig, count=9, key="z")) == []
    (one,) = browse(rig, count=1, skip=1, headers={"kind": "fruit"}, truncate=3)["messages"]
    assert (one["payload"], one["payload_bytes"], one["redelivered"]) == ("a p", 6, False)
    assert rig.result("list_queues")[0]["messages_ready"] == 4


def test_it_goes_on_from_where_it_stopped(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SCANNED_MAX", 100)
    rig.put("q", *[b"%d" % n for n in range(250)])
    first = browse(rig, count=9, body="249")
    assert (payloads(first), first["is_end"]) == ([], False)
    assert 100 <= first["scanned"] <= 100 + messages.BROWSE_SLICE
    last = browse(rig, count=9, body="249", after=first["after"])
    assert payloads(last) == ["249"]
    assert browse(rig, count=9, after=last["after"])["is_end"]
    assert first["scanned"] + last["scanned"] == 250


def test_one_needs_read_and_streams_are_read_elsewhere(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    assert rig.refusal("browse_messages", queue="s").code == 540
    assert rig.refusal("browse_messages", queue="nobody").code == 404


# ---- unacknowledged ------------------------------------------------------------------------------


def unacked(rig: OperationRig, queue: str = "q") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rig.result("list_rows", kind="unacked", of={"queue": queue})
    return found


def test_who_has_unacknowledged_messages_and_since_when(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="other")
    client = rig.client(everything("ann")).open(1)
    client.call(1, BasicConsume(queue="q", consumer_tag="t"), BasicConsumeOk)
    client.call(1, BasicConsume(queue="other", consumer_tag="u"), BasicConsumeOk)
    rig.put("q", b"1")
    rig.put("other", b"1")
    rig.tick(5.0)
    rig.tick(10.0)
    rig.put("q", b"2")
    rig.tick(5.0)
    (row,) = unacked(rig)
    assert row["channel_details"]["name"] == "c0 (1)"
    assert (row["consumer_tag"], row["messages_unacknowledged"]) == ("t", 2)
    assert row["oldest_s"] == pytest.approx(15.0)
    assert [one["delivery_tag"] for one in row["deliveries"]] == [1, 3]
    assert row["deliveries"][1]["age_s"] == pytest.approx(0.0)
    found = rig.result("describe_row", kind="queues", name="q")
    assert found["penstock"]["oldest_unacked_s"] == row["oldest_s"]
    assert unacked(rig, "nobody") == []


def test_what_was_got_is_listed_too(rig: OperationRig) -> None:
    rig.put("q", b"1", b"2")
    client = rig.client(everything("ann")).open(1)
    client.send(1, BasicGet(queue="q"))
    rig.turn()
    (row,) = unacked(rig)
    assert (row["consumer_tag"], row["messages_unacknowledged"]) == (None, 1)


def test_how_long_a_consumer_takes(rig: OperationRig) -> None:
    client = rig.client(everything("ann")).open(1)
    client.call(1, BasicQos(prefetch_count=10), BasicQosOk)
    client.call(1, BasicConsume(queue="q", consumer_tag="t"), BasicConsumeOk)
    rig.tick(5.0)
    rig.put("q", *[b"x"] * 60)
    rig.tick(5.0)
    for last in (10, 20, 30, 40, 50):
        client.send(1, BasicAck(delivery_tag=last, multiple=True))
        rig.tick(5.0)  # ten are open all the time, and ten are acknowledged in 5 s
    (row,) = unacked(rig)
    assert row["ack_s"] == pytest.approx(5.0)
    (consumer,) = rig.result("describe_row", kind="queues", name="q")["consumer_details"]
    assert consumer["penstock"]["ack_s"] == row["ack_s"]


# ---- publishers ----------------------------------------------------------------------------------


def test_who_has_published_to_a_queue_lately(rig: OperationRig) -> None:
    rig.result("bind_queue", queue="q", exchange="amq.topic", routing_key="a.#")
    ann, bob = rig.client(everything("ann")).open(1), rig.client(everything("bob")).open(1)
    for key in ("a.1", "a.2", "a.2", "b"):
        ann.publish(1, "amq.topic", key, b"x")
    bob.publish(1, "", "q", b"x")
    bob.publish(1, "", "nobody", b"x")
    rig.turn()
    rows = rig.result("list_rows", kind="publishers", of={"queue": "q"})
    assert [
        (one["channel_details"]["user"], one["exchange"]["name"], one["routing_keys"])
        for one in rows
    ] == [("ann", "amq.topic", ["a.1", "a.2"]), ("bob", "", ["q"])]
    assert rows[0]["message_stats"]["publish"] == 4
    assert rig.result("list_rows", kind="publishers", of={"queue": "nobody"}) == []
