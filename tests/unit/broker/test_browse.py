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


# ---- where a look begins, age, state -------------------------------------------------------------


def times(found: dict[str, Any]) -> list[int]:
    return [message["time"] for message in found["messages"]]


@pytest.mark.parametrize("memory", [None, 1])
def test_a_look_begins_at_the_end_or_at_a_time(memory: int | None) -> None:
    """memory: of a queue that keeps nothing in RAM."""
    rig = OperationRig()
    arguments = {} if memory is None else {"x-queue-max-memory-bytes": memory}
    rig.result("declare_queue", queue="q", arguments=arguments)
    for n in range(50):
        rig.put("q", b"%d" % n)
        rig.tick(1.0)
    for _ in range(5):
        rig.tick()
    assert payloads(browse(rig, count=9, last=3)) == ["47", "48", "49"]
    assert payloads(browse(rig, count=2, last=40)) == ["10", "11"]
    assert payloads(browse(rig, count=2, **{"from": 10})) == ["10", "11"]
    assert payloads(browse(rig, count=2, **{"from": 50})) == []
    assert [browse(rig, **{key: 10})["first"] for key in ("from", "last")] == [10, 40]
    assert browse(rig, last=60)["first"] == browse(rig)["first"] == 0
    assert len(payloads(browse(rig, count=99, last=50))) == 50
    assert len(payloads(browse(rig, count=99, last=1000))) == 50
    came = times(browse(rig, count=99))
    assert came == sorted(came)
    found = browse(rig, count=1, since=came[30])
    assert payloads(found) == [str(came.index(came[30]))] == [str(found["first"])]
    assert payloads(browse(rig, count=1, since=came[-1] + 1)) == []
    assert payloads(browse(rig, count=1, since=1)) == ["0"]
    old = browse(rig, count=99, older=20)
    assert 0 < len(payloads(old)) < 50
    assert max(times(old)) <= rig.vhost.engine.time_s - 20
    states = {message["state"] for message in browse(rig, count=99)["messages"]}
    assert states == ({"alpha"} if memory is None else {"beta", "gamma", "delta"} & states)


def test_a_time_does_not_find_a_place_among_priorities(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="p", arguments={"x-max-priority": 3})
    rig.put("p", b"low")
    rig.put("p", b"high", priority=3)
    error = rig.refusal("browse_messages", queue="p", since=1)
    assert "expected a queue without priorities" in error.text
    assert payloads(rig.result("browse_messages", queue="p", last=1)) == ["low"]
    assert payloads(rig.result("browse_messages", queue="p", count=9, last=2)) == ["high", "low"]


def test_attempts_are_shown(rig: OperationRig) -> None:
    rig.put("q", b"x")
    rig.result("get_messages", queue="q", ackmode="ack_requeue_true")
    (one,) = browse(rig)["messages"]
    assert (one["attempts"], one["redelivered"]) == (1, True)
