"""What a vhost tells people: the same of a queue whether it is open or not."""

import json
import re

import pytest
from click.testing import CliRunner

from penstock.broker.operations import listings
from penstock.broker.operations.kinds import RowAsked
from penstock.broker.operations.pages import LISTS
from penstock.broker.operations.queue_rows import LISTED_MORE, LISTED_SAME, Queues
from penstock.broker.publish import PublishFacts, fan_out
from penstock.broker.topology import SYSTEM
from penstock.cli.main import cli
from penstock.members import Columns
from tests.helpers.columns import COLUMNS
from tests.helpers.list_rows import rows_of_list
from tests.helpers.vhost_rig import TakingChannel, VHostRig


@pytest.fixture
def rig() -> VHostRig:
    return VHostRig()


def info_of(rig: VHostRig, name: str) -> listings.Info:
    (found,) = [one for one in rows_of_list(rig.vhost, "list_queues") if one["name"] == name]
    return found


def filled(rig: VHostRig) -> None:
    """A queue with something of everything."""
    queue = rig.queue(arguments={"x-max-priority": 2, "x-queue-type": "classic"}, auto_delete=False)
    rig.put(queue, b"12345", b"678", priority=1)
    rig.put(queue, b"later", delay_ms=60_000)
    assert queue.amq.fetch() is not None


def test_the_columns_of_list_queues_are_what_there_is(rig: VHostRig) -> None:
    filled(rig)
    rig.queue("stored")
    rig.vhost.declare_queue("stream", durable=True, arguments={"x-queue-type": "stream"})
    told = set[str]().union(*rows_of_list(rig.vhost, "list_queues"))
    told |= set[str]().union(*rows_of_list(rig.restart(), "list_queues"))
    first, others = COLUMNS["list_queues"]
    assert sorted(told) == sorted((*first, *others))
    done = CliRunner().invoke(cli, ["list_queues", "--help"])
    words = set(re.findall(r"\w+", done.output.partition("Columns:")[2]))
    assert told <= words


def of_all_kinds(rig: VHostRig) -> None:
    """A queue of each kind and state, with messages and consumers."""
    filled(rig)
    rig.consume(rig.vhost.table.find_queue("q"), TakingChannel(), no_ack=False)
    rig.queue("stored")
    rig.put(rig.queue("quorum", arguments={"x-queue-type": "quorum"}), b"12", b"3")
    rig.vhost.declare_queue("stream", durable=True, arguments={"x-queue-type": "stream"})
    rig.vhost.declare_queue("passing")
    rig.put(rig.queue("failed"), b"abc")
    for _ in range(5):
        rig.vhost.restarts.failed(rig.vhost.queues["failed"], RuntimeError("a bug"))


def test_cheap_columns_are_the_same_alone(rig: VHostRig) -> None:
    of_all_kinds(rig)
    kind, names = LISTS["list_queues"], [*LISTED_SAME]
    for vhost in (rig.vhost, rig.restart()):
        for name in kind.all(vhost, {}):
            whole = kind.row(vhost, name, RowAsked(Columns()))
            alone = kind.row(vhost, name, RowAsked(Columns(names)))
            assert whole is not None
            assert alone is not None
            assert {one: alone[one] for one in names} == {one: whole[one] for one in names}


def test_columns_that_rabbitmqctl_has_are_those_of_http(rig: VHostRig) -> None:
    of_all_kinds(rig)
    names = LISTED_MORE - {"pid", "slave_pids", "synchronised_slave_pids"}
    for vhost in (rig.vhost, rig.restart()):
        for name in vhost.table.names():
            listed = LISTS["list_queues"].row(vhost, name, RowAsked(Columns()))
            asked = LISTS["list_queues"].row(vhost, name, RowAsked(Columns(LISTED_MORE)))
            http = Queues().row(vhost, name, RowAsked(Columns()))
            assert listed is not None
            assert asked is not None
            assert http is not None
            assert {one: listed[one] for one in names} == {one: http.get(one) for one in names}
            assert {one: asked[one] for one in names} == {one: listed[one] for one in names}


def test_an_open_queue(rig: VHostRig) -> None:
    filled(rig)
    rig.consume(rig.vhost.table.find_queue("q"), TakingChannel(), no_ack=False)
    found = info_of(rig, "q")
    expected = {
        "name": "q", "vhost": "test", "type": "classic", "durable": True, "exclusive": False,
        "auto_delete": False, "arguments": {"x-max-priority": 2, "x-queue-type": "classic"},
        "state": "running", "messages": 2, "messages_ready": 1, "messages_unacknowledged": 1,
        "delayed": 1, "message_bytes": 8, "message_bytes_ready": 3,
        "message_bytes_unacknowledged": 5, "consumers": 1, "alphas": 1, "betas": 0, "gammas": 0,
        "delta": 0, "idle_since": "2023-11-14T22:13:20.000+00:00",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    memory = found["memory"]
    assert isinstance(memory, int)
    assert memory > 0
    json.dumps(found)


def test_where_the_messages_of_a_queue_are_and_why(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-queue-max-memory-bytes": 3000})
    rig.put(queue, *[b"12345"] * 30)
    while queue.amq.backing.resume():
        pass
    assert queue.amq.fetch() is not None
    found = info_of(rig, "q")
    by_state = [found[name] for name in ("alphas", "betas", "gammas", "delta")]
    assert sum(by_state) == 29  # type: ignore[arg-type]
    assert found["messages_ram"] == found["alphas"] + 1  # type: ignore[operator]
    assert found["messages_ram"] + found["messages_paged_out"] == 30  # type: ignore[operator]
    assert found["memory"] == found["memory_alphas"] + found["memory_rows"]  # type: ignore[operator]
    assert (found["memory_max"], found["memory_min"]) == (3000, 1500)
    assert found["memory_target"] == 3000
    assert found["memory_duration"] is None
    assert (found["is_flowed"], found["paged_by"]) == (True, "max_memory")
    queue.amq.backing.set_share(1000)
    found = info_of(rig, "q")
    assert (found["memory_target"], found["memory_share"], found["paged_by"]) == (
        1000,
        1000,
        "share",
    )
    queue.amq.backing.set_ram_duration_target(0.0)
    assert info_of(rig, "q")["paged_by"] == "duration"
    queue.amq.backing.set_queue_mode("lazy")
    assert info_of(rig, "q")["paged_by"] == "lazy"


def test_what_other_queues_count_of_shared_bodies(rig: VHostRig) -> None:
    queues = [rig.queue(name) for name in ("a", "b", "c", "d")]
    fan_out(rig.vhost, queues, [], b"", b"x" * 12, PublishFacts())
    rig.put(queues[0], b"y" * 12)
    found = [info_of(rig, name) for name in "abcd"]
    assert [info["memory"] for info in found] == [2 * 256 + 12 + 3] + [256 + 3] * 3
    assert [info["memory_elsewhere"] for info in found] == [9] * 4
    assert [info["message_bytes"] for info in found] == [24, 12, 12, 12]
    for info in found:
        assert info["memory"] == info["memory_alphas"] + info["memory_rows"]  # type: ignore[operator]
    rig.tick(2.5)
    assert rig.vhost.monitor.counted_bytes - rig.vhost.monitor.other_bytes == 5 * 256 + 2 * 12


def test_the_limits_of_a_queue_with_priorities_are_of_the_whole(rig: VHostRig) -> None:
    queue = rig.queue(arguments={"x-max-priority": 3, "x-queue-max-memory-bytes": 9000})
    rig.put(queue, *[b"12345"] * 60)
    while queue.amq.backing.resume():
        pass
    found = info_of(rig, "q")
    assert (found["memory_max"], found["memory_min"]) == (9000, 4500)
    assert (found["memory_target"], found["paged_by"]) == (9000, "max_memory")
    assert found["memory_duration"] is None


def test_a_queue_that_nobody_has_named(rig: VHostRig) -> None:
    filled(rig)
    rig.put(rig.queue("idle", arguments={"x-max-priority": 1}, auto_delete=True), b"ab", b"c")
    rig.restart()
    assert "idle" not in rig.vhost.queues
    found = info_of(rig, "idle")
    assert "idle" not in rig.vhost.queues
    rig.vhost.table.find_queue("idle")
    opened = info_of(rig, "idle")
    assert found["messages"] == 2
    # All is in delta, until somebody has a look at the head.
    assert (found.pop("delta"), found.pop("gammas"), found.pop("memory")) == (2, 0, 0)
    assert found == {name: opened[name] for name in found}


def test_exclusive_and_passing_queues(rig: VHostRig) -> None:
    rig.vhost.declare_queue("mine", durable=True, exclusive=True, owner="me")
    rig.vhost.declare_queue("passing")
    rows = rows_of_list(rig.vhost, "list_queues")
    found = [(q["name"], q["durable"], q["exclusive"]) for q in rows]
    assert found == [("mine", False, True), ("passing", False, False)]


def test_a_crashed_queue_is_listed(rig: VHostRig) -> None:
    rig.put(rig.queue(), b"abc")
    for _ in range(5):
        rig.vhost.restarts.failed(rig.vhost.queues["q"], RuntimeError("a bug"))
    found = info_of(rig, "q")
    assert (found["state"], found["messages"]) == ("crashed", 1)


def test_exchanges_and_bindings(rig: VHostRig) -> None:
    rig.queue()
    rig.vhost.topology.declare_exchange("x", "topic", auto_delete=True, arguments={"a": 1})
    rig.vhost.bind_queue("q", "x", "k.#", {"b": 2})
    rig.vhost.topology.bind_exchange("x", "amq.topic", "#")
    exchanges = rows_of_list(rig.vhost, "list_exchanges")
    assert [one["name"] for one in exchanges] == sorted([*SYSTEM, "x"])
    assert exchanges[-1] == {
        "name": "x", "vhost": "test", "type": "topic", "durable": False, "auto_delete": True,
        "internal": False, "arguments": {"a": 1}, "policy": None, "operator_policy": None,
        "effective_policy_definition": {},
    }  # fmt: skip
    found = [
        (b["source_name"], b["destination_kind"], b["destination_name"], b["routing_key"])
        for b in rows_of_list(rig.vhost, "list_bindings")
    ]
    assert found == [
        ("", "queue", "q", "q"),
        ("amq.topic", "exchange", "x", "#"),
        ("x", "queue", "q", "k.#"),
    ]


def test_status(rig: VHostRig) -> None:
    rig.put(rig.queue(), b"abc")
    rig.vhost.add_other(5)
    found = listings.status(rig.vhost)
    assert (found["queues"], found["queues_open"], found["messages_persistent"]) == (1, 1, 1)
    assert (found["durability"], found["other_bytes"], found["blocked_reason"]) == ("disk", 5, "")
    json.dumps(found)
