"""Routing of one publish is work in slices: others have their turns in between.

The patterns of `alive` are all alive at each word of a key, so a message with many keys takes some
hundred thousand steps. Its connection waits; what it sent comes out in order.
"""

import pytest

from penstock.access.permissions import Identity, everything
from penstock.broker import background_tasks, dispatch, operations
from penstock.broker.broker_queue import BrokerQueue
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicNack,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.builds import pure_only
from tests.helpers.steps import cost_of

pytestmark = pure_only  # constants are replaced, and lines are counted
LINES_MAX = 150_000  # of one step: some 10 ms uncompiled
BITS = 8
KEY = ".".join("abcdefghijklm")
CC = [f"{i}.{KEY}" for i in range(12)]
LARGE = bytes((1 << 20) + 1)


@pytest.fixture(autouse=True)
def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still, so that time does not end a turn."""
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)
    monkeypatch.setattr(dispatch, "STEPS_MAX", 4096)


def alive() -> BrokerRig:
    rig = BrokerRig()
    vhost = rig.vhost
    vhost.declare_queue("q")
    vhost.declare_queue("r")
    for i in range(1, 1 << BITS):
        pattern = ".".join("#" if bit == "1" else "*" for bit in format(i, f"0{BITS}b"))
        vhost.bind_queue("q", "amq.topic", pattern)
    return rig


def bodies(rig: BrokerRig, queue: str = "q") -> list[bytes | None]:
    found = rig.vhost.table.usable(queue)
    assert isinstance(found, BrokerQueue)
    return [one.message.body for one in found.amq.browse(None, 100)]


def count(rig: BrokerRig, queue: str = "q") -> int:
    found = rig.vhost.table.usable(queue)
    assert isinstance(found, BrokerQueue)
    return found.len()


def turns(rig: BrokerRig, *, are_counted: bool = False) -> int:
    """Turns until there is nothing to do. are_counted: their lines are; none is dear."""
    for n in range(10_000):
        rig.is_due = False
        found: list[bool] = []
        if are_counted:
            assert cost_of(lambda: found.append(rig.vhost.turn())).lines < LINES_MAX  # noqa: B023
        else:
            found.append(rig.vhost.turn())
        rig.vhost.completed()
        if not (found[0] or rig.is_due):
            return n
    raise AssertionError("it never comes to rest")


def several(client: RigClient, body: bytes = b"m", **headers: object) -> None:
    """A publish with several keys."""
    client.publish(1, "amq.topic", KEY, body, headers={"CC": CC, **headers})


def test_a_message_with_many_keys_is_routed_in_slices() -> None:
    rig = alive()
    client = rig.client().open()
    other = rig.client().open()
    assert cost_of(lambda: several(client)).lines < LINES_MAX
    client.publish(1, "", "q", b"after")
    assert client.outlet.is_paused
    other.publish(1, "", "q", b"other")
    assert bodies(rig) == [b"other"]
    assert turns(rig, are_counted=True) > 5
    assert bodies(rig) == [b"other", b"m", b"after"]
    assert not client.outlet.is_paused


def test_a_key_that_was_never_seen_is_resolved_in_slices() -> None:
    rig = alive()
    client = rig.client().open()
    long = ".".join(["w"] * 120)
    for key in (long, long, "r"):
        client.publish(1, "amq.topic" if key != "r" else "", key, key[:1].encode())
    assert bodies(rig) == []
    assert turns(rig, are_counted=True) > 3
    assert bodies(rig) == [b"w", b"w"]
    assert bodies(rig, "r") == [b"r"]
    client.publish(1, "amq.topic", long, b"again")
    assert bodies(rig)[2:] == [b"again"]  # it is cached


def test_headers_exchanges_in_a_chain_are_passed_in_slices() -> None:
    rig = BrokerRig()
    vhost = rig.vhost
    vhost.declare_queue("q")
    before = "amq.headers"
    for i in range(600):
        vhost.topology.declare_exchange(f"h{i}", "headers")
        vhost.topology.bind_exchange(f"h{i}", before, "", {f"n{n}": n for n in range(10)})
        before = f"h{i}"
    vhost.bind_queue("q", before, "", {"n1": 1})
    client = rig.client().open()
    for _ in range(2):
        client.publish(1, "amq.headers", "", b"m", headers={f"n{n}": n for n in range(50)})
    assert turns(rig, are_counted=True) > 3
    assert count(rig) == 2


def test_large_bodies_are_routed_in_slices() -> None:
    rig = alive()
    client = rig.client().open()
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    several(client, LARGE)
    client.publish(1, "amq.topic", ".".join(["v"] * 120), LARGE)
    client.publish(1, "", "r", b"after")
    assert count(rig) == 0
    assert turns(rig) > 5
    assert count(rig) == 2
    assert bodies(rig, "r") == [b"after"]
    assert client.methods(BasicNack) == []


def test_a_channel_that_ends_while_its_message_is_routed() -> None:
    rig = alive()
    for body in (b"m", LARGE):
        client = rig.client().open()
        several(client, body)
        rig.vhost.turn()
        client.lose()
        turns(rig)
        assert count(rig) == 0


def test_a_permission_that_is_lost_meanwhile_counts() -> None:
    rig = alive()
    client = rig.client(everything("u")).open()
    client.publish(1, "amq.topic", ".".join(["w"] * 120), b"m")
    rig.vhost.turn()
    client.handler.set_identity(Identity("u", frozenset(), "", "", ""))
    turns(rig)
    assert [one.reply_code for one in client.methods(ChannelClose)] == [403]
    assert bodies(rig) == []


def test_changes_of_the_exchange_do_not_keep_a_message_for_ever() -> None:
    rig = alive()
    client = rig.client().open()
    several(client)
    for i in range(2000):
        if rig.vhost.table.served["q"].len():
            break
        rig.vhost.bind_queue("r", "amq.topic", f"x{i}")
        rig.vhost.turn()
    assert bodies(rig) == [b"m"]


def test_user_id_and_bcc_are_as_without_slices() -> None:
    rig = alive()
    client = rig.client().open()
    client.publish(1, "amq.topic", KEY, b"m", headers={"BCC": CC, "a": 1})
    turns(rig)
    found = rig.vhost.table.usable("q")
    assert isinstance(found, BrokerQueue)
    (one,) = found.amq.browse(None, 10)
    props = BasicProperties.decode(rig.vhost.headers.parts(one.message.header)[1])
    assert props.headers == {"a": 1}
    client.publish(1, "amq.topic", KEY, b"m", headers={"CC": CC}, user_id="somebody else")
    turns(rig)
    assert [one.reply_code for one in client.methods(ChannelClose)] == [406]


@pytest.mark.parametrize("op", ["route", "publish"])
def test_operations_find_the_queues_in_slices(op: str) -> None:
    rig = alive()
    given: dict[str, object] = {
        "exchange": "amq.topic", "routing_key": KEY, "properties": {"headers": {"CC": CC}}
    }  # fmt: skip
    if op == "publish":
        given["bodies"] = [b"1", b"2"]
    replies: list[object] = []
    asked = cost_of(lambda: operations.call(rig.vhost, None, op, given, replies.append))
    assert asked.lines < LINES_MAX
    assert not replies
    assert turns(rig, are_counted=True) > 5
    assert replies == [{"queues": ["q"]} if op == "route" else {"published": 2}]
    assert bodies(rig) == ([] if op == "route" else [b"1", b"2"])
    assert not rig.vhost.usage.routes.bytes


def test_an_operation_publishes_although_the_topology_changes_all_the_time() -> None:
    rig = alive()
    given: dict[str, object] = {
        "exchange": "amq.topic", "routing_key": KEY, "properties": {"headers": {"CC": CC}},
        "bodies": [b"1", b"2"],
    }  # fmt: skip
    replies: list[object] = []
    operations.call(rig.vhost, None, "publish", given, replies.append)
    for n in range(1000):
        rig.vhost.declare_queue(f"q{n}", durable=False)
        rig.vhost.turn()
        rig.vhost.completed()
        if replies:
            break
    assert replies == [{"published": 2}]
    assert bodies(rig) == [b"1", b"2"]
