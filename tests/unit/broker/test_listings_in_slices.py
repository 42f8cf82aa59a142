"""Listings of a vhost in which a user has much: nobody waits for one, and its text is its RAM."""

import json

import pytest

from penstock.broker.dispatch import LATER_S, STEP_BYTES
from penstock.clock import ManualClock
from penstock.codec.spec import (
    BasicConsume,
    BasicGet,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from penstock.operation_json import PART_BYTES, JsonParts, dumps, from_json
from tests.helpers.operation_rig import Asked, OperationRig
from tests.helpers.staged_rig import StagedRig, plain

pytestmark = pytest.mark.large

BINDINGS = 400
LARGE = {"x": [{"a": [1, {"b": "c"}]}] * 70}


@pytest.fixture
def rig() -> OperationRig:
    rig = OperationRig()
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for n in range(BINDINGS):
        bind = QueueBind(
            queue="q", exchange="amq.headers", routing_key=f"{n:03}", arguments={**LARGE, "n": n}
        )
        client.call(1, bind, QueueBindOk)
    return rig


class Passing(ManualClock):
    """Time passes at each look."""

    def __init__(self, step_s: float = 0.001) -> None:
        super().__init__()
        self.step_s = step_s

    def monotonic(self) -> float:
        self.advance(self.step_s)
        return super().monotonic()


def turns_until(rig: OperationRig, asked: Asked) -> int:
    """How many turns of the vhost it takes until the answer comes."""
    turns = 0
    while not asked.has_come:
        rig.vhost.turn()
        turns += 1
    return turns


def test_a_listing_goes_in_slices_between_turns(rig: OperationRig) -> None:
    rig.vhost.budget.clock = Passing()
    asked = rig.ask("list_bindings")
    rig.vhost.background._clock = Passing()
    assert turns_until(rig, asked) > 4
    (reply,) = asked.replies
    assert isinstance(reply, JsonParts)
    assert reply.bytes > 2 * PART_BYTES
    rows = asked.result
    assert [row["routing_key"] for row in rows] == ["q", *[f"{n:03}" for n in range(BINDINGS)]]
    assert rows[1]["arguments"] == {**LARGE, "n": 0}


def test_the_first_slice_of_an_operator_is_as_short_as_the_others(rig: OperationRig) -> None:
    clock = rig.vhost.budget.clock = Passing()
    began_s = clock.monotonic()
    asked = rig.ask("list_bindings")
    assert not asked.has_come
    assert clock.monotonic() - began_s < 2 * LATER_S + clock.step_s


def test_the_topology_goes_in_slices_between_turns(rig: OperationRig) -> None:
    rig.vhost.budget.clock = Passing()
    rig.result("declare_queue", queue="stored")
    asked = rig.ask("list_topology")
    rig.vhost.background._clock = Passing()
    assert turns_until(rig, asked) > 4
    found = asked.result
    assert [row["name"] for row in found["queues"]] == ["q", "stored"]
    assert {"amq.headers", ""} <= {row["name"] for row in found["exchanges"]}
    assert found["bindings"][7] == {
        "source": "amq.headers", "destination": "q", "destination_type": "queue",
        "routing_key": "007", "arguments": {**LARGE, "n": 7},
    }  # fmt: skip


def test_many_leases_of_a_queue_are_described_in_slices() -> None:
    rig = OperationRig()
    rig.client().open(1).call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    rig.put("q", *[b"x"] * 100)
    for n in range(100):
        rig.result("lease_queue", queue="q", reader=f"{n:03}", messages=1)
    rig.vhost.budget.clock = Passing(0.02)
    asked = rig.ask("describe_queue", queue="q")
    rig.vhost.background._clock = Passing(0.02)
    assert turns_until(rig, asked) > 4
    assert [row["reader"] for row in asked.result["leases"]] == [f"{n:03}" for n in range(100)]
    assert asked.result["type"] == "classic"


def test_many_batches_are_listed_in_slices() -> None:
    rig = StagedRig()
    rig.result("declare_queue", queue="q")
    for n in range(100):
        name = f"{n:03}"
        rig.commit(0, rig.stage(0, plain("q", b"a"), query=name), query=name)
    rig.roll()
    rig.vhost.budget.clock = Passing(0.02)
    asked = rig.ask("list_batches")
    rig.vhost.background._clock = Passing(0.02)
    assert turns_until(rig, asked) > 4
    assert [row["query"] for row in asked.result] == [f"{n:03}" for n in range(100)]


def test_publishers_of_a_queue_are_found_in_slices(rig: OperationRig) -> None:
    """Each key that a channel has published with is looked at."""
    client = rig.client().open(1)
    client.call(1, QueueBind(queue="q", exchange="amq.topic", routing_key="#"), QueueBindOk)
    for n in range(600):
        client.publish(1, "amq.topic", f"{n:04}", b"x")
    rig.vhost.budget.clock = Passing(0.02)
    asked = rig.ask("list_rows", kind="publishers", of={"queue": "q"})
    rig.vhost.background._clock = Passing(0.02)
    assert turns_until(rig, asked) > 0
    (row,) = asked.result
    assert row["routing_key_count"] == 600


def test_who_has_unacked_messages_and_why_is_found_in_slices() -> None:
    rig = OperationRig()
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    rig.put("q", *[b"x"] * 300)
    for number in range(2, 302):
        client.open(number)
        client.send(number, BasicConsume(queue="q", nowait=True))
        client.send(number, BasicGet(queue="q"))
    rig.vhost.turn()
    questions: list[tuple[str, dict[str, object]]] = [
        ("list_rows", {"kind": "unacked", "of": {"queue": "q"}}),
        ("describe_row", {"kind": "queues", "name": "q"}),
        ("why", {"queue": "q"}),
        ("why", {"connection": client.handler.name}),
    ]
    for op, args in questions:
        rig.vhost.budget.clock = Passing(0.02)
        asked = rig.ask(op, **args)
        rig.vhost.background._clock = Passing(0.02)
        assert turns_until(rig, asked) > 0, (op, args)
        assert isinstance(asked.replies[0], JsonParts | dict | list), asked.replies


def test_what_is_deleted_meanwhile_is_left_out() -> None:
    rig = OperationRig()
    client = rig.client().open(1)
    for n in range(800):
        client.call(1, QueueDeclare(queue=f"r{n:03}"), QueueDeclareOk)
    rig.vhost.budget.clock = Passing()
    asked = rig.ask("list_queues")
    assert not asked.has_come
    client.call(1, QueueDelete(queue="r799"), QueueDeleteOk)
    turns_until(rig, asked)
    names = [row["name"] for row in asked.result]
    assert names == [f"r{n:03}" for n in range(799)]


def test_one_that_does_not_fit_into_a_frame_is_not_built(rig: OperationRig) -> None:
    channel = rig.client().open().handler.channels[1]
    steps = rig.vhost.budget.left
    assert rig.refusal("list_bindings", channel).code == 311
    assert steps - rig.vhost.budget.left < 2 * channel.output.frame_max // STEP_BYTES


def test_the_text_is_that_of_the_whole() -> None:
    rows = [{"n": n, "text": "x" * 1000, "bytes": b"\xff", "name": "\udcff"} for n in range(1000)]
    for is_exact in (True, False):
        found = JsonParts(is_exact=is_exact)
        found.begin(b"[")
        assert sum(found.add(row) for row in rows) + 1 == found.bytes
        found.end(b"]")
        parts = found.take()
        assert len(parts) > 3
        text = b"".join(parts)
        assert from_json(json.loads(text), is_exact=True) == [
            row if is_exact else {**row, "name": "\ufffd"} for row in rows
        ]
    nested = JsonParts(is_exact=False)
    nested.begin(b"{")
    nested.add(1, "a")
    nested.begin(b"{", "none")
    nested.end(b"}")
    nested.begin(b"[", "b")
    nested.end(b"]")
    nested.add(None, "\udcff")
    nested.end(b"}")
    assert json.loads(dumps(nested)) == {"a": 1, "none": {}, "b": [], "\ufffd": None}
