"""Lists of a vhost as HTTP shows them: filtered, sorted and cut into pages where they are."""

import json
from typing import Any

import pytest

from penstock.access.permissions import Identity, everything
from penstock.broker.dispatch import LOOK_STEPS
from penstock.broker.operations.call import ROW_STEPS
from penstock.broker.operations.kinds import Columns
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    QueueDeclare,
    QueueDeclareOk,
)
from penstock.operation_json import JsonParts
from tests.helpers.operation_rig import OperationRig
from tests.helpers.recorded import check_like, recorded_answer
from tests.unit.broker.test_listings_in_slices import Passing, turns_until


@pytest.fixture
def rig() -> OperationRig:
    rig = OperationRig()
    for n, name in enumerate(("b", "a", "Orders.new", "orders.old", "c")):
        rig.result("declare_queue", queue=name)
        if n:
            rig.put(name, *[b"x"] * n)
    return rig


def names(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["name"] for row in rows]


def queues(rig: OperationRig, **args: object) -> Any:
    return rig.result("list_rows", kind="queues", **args)


def test_without_a_page_the_answer_is_the_list(rig: OperationRig) -> None:
    assert names(queues(rig)) == ["Orders.new", "a", "b", "c", "orders.old"]
    assert names(queues(rig, reverse=True)) == ["orders.old", "c", "b", "a", "Orders.new"]


def test_a_page(rig: OperationRig) -> None:
    found = queues(rig, page=2, page_size=2, columns=["name", "messages"])
    assert found == {
        "filtered_count": 5, "item_count": 2, "page": 2, "page_count": 3, "page_size": 2,
        "total_count": 5,
        "items": [{"name": "b", "messages": 0}, {"name": "c", "messages": 4}],
    }  # fmt: skip


def test_pages_that_are_not_there(rig: OperationRig) -> None:
    error = rig.refusal("list_rows", kind="queues", page=4, page_size=2)
    assert error.code == 406
    assert "'page': given 4, expected at most 3" in error.text
    nothing = queues(rig, page=1, name="nobody")
    assert (nothing["items"], nothing["page_count"], nothing["total_count"]) == ([], 0, 5)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"name": "ORD"}, ["Orders.new", "orders.old"]),
        ({"name": "^o.*d$", "use_regex": True}, ["orders.old"]),
        ({"name": "^[ab]$", "use_regex": True}, ["a", "b"]),
        ({"name": "."}, ["Orders.new", "orders.old"]),
    ],
)
def test_a_filter_of_names(rig: OperationRig, args: dict[str, Any], expected: list[str]) -> None:
    found = queues(rig, page=1, **args)
    assert names(found["items"]) == expected
    assert found["filtered_count"] == found["item_count"] == len(expected)


@pytest.mark.parametrize("pattern", ["(", "(a+)+$|(?=b)", "x{2000}{2000}"])
def test_a_regular_expression_that_is_broken_or_without_bounds(
    rig: OperationRig, pattern: str
) -> None:
    error = rig.refusal("list_rows", kind="queues", name=pattern, use_regex=True)
    assert error.code == 406
    assert "'name': given" in error.text


def test_sorted_by_a_number_and_by_a_text(rig: OperationRig) -> None:
    by_length = ["b", "a", "Orders.new", "orders.old", "c"]
    assert names(queues(rig, sort="messages")) == by_length
    assert names(queues(rig, sort="messages", reverse=True)) == by_length[::-1]
    first = queues(rig, sort="messages", reverse=True, page=1, page_size=2)
    assert names(first["items"]) == ["c", "orders.old"]
    second = queues(rig, sort="messages", reverse=True, page=2, page_size=2)
    assert names(second["items"]) == ["Orders.new", "a"]
    assert names(queues(rig, sort="message_stats.publish")) == by_length
    assert names(queues(rig, sort="name", reverse=True)) == sorted(by_length)[::-1]
    assert names(queues(rig, sort="penstock.alphas")) == by_length
    assert names(queues(rig, sort="memory")) == by_length


def test_a_command_has_the_rows_that_it_asks_for(rig: OperationRig) -> None:
    longest = rig.result(
        "list_queues", sort="messages", reverse=True, limit=2, columns=["messages"]
    )
    assert longest == [{"messages": 4}, {"messages": 3}]
    found = rig.result("list_queues", name="^ORDERS", sort="messages", columns=["name"])
    assert names(found) == ["Orders.new", "orders.old"]
    assert names(rig.result("list_queues", sort="message_bytes", limit=1)) == ["b"]
    exchanges = rig.result("list_exchanges", name="^amq.t", columns=["name", "type"])
    assert exchanges == [{"name": "amq.topic", "type": "topic"}]
    keys = rig.result("list_bindings", sort="routing_key", reverse=True, limit=1)
    assert keys[0]["destination_name"] == "orders.old"
    error = rig.refusal("list_queues", name="(")
    assert "'name': given '(', expected a regular expression of RE2" in error.text


def test_a_column_that_nobody_has_neither_sorts_nor_fails(rig: OperationRig) -> None:
    found = queues(rig, sort="nothing.at_all", columns=["name", "nothing.at_all"])
    assert found == [{"name": name} for name in ("Orders.new", "a", "b", "c", "orders.old")]


def test_columns_keep_their_nesting() -> None:
    row: dict[str, object] = {"a": 1, "b": {"c": 2, "d": {"e": 3, "f": 4}}, "g": [{"h": 5, "i": 6}]}
    assert Columns(["b.d.e", "a", "x.y"]).cut(row) == {"a": 1, "b": {"d": {"e": 3}}}
    assert Columns(["b.c", "b"]).cut(row) == {"b": row["b"]}
    assert Columns(["g.h", "a.z"]).cut(row) == {"g": [{"h": 5}]}
    assert Columns([]).cut(row) == row


def test_without_statistics_there_are_no_rates(rig: OperationRig) -> None:
    (row,) = queues(rig, name="c", rates=False)
    assert row == {
        "name": "c", "vhost": "/", "type": "classic", "durable": True, "exclusive": False,
        "auto_delete": False, "arguments": {}, "state": "running", "node": row["node"],
    }  # fmt: skip
    (row,) = queues(rig, name="c", rates=False, totals=True)
    assert (row["messages"], row["messages_ready"], row["messages_unacknowledged"]) == (4, 4, 0)
    assert "messages_details" not in row


def test_a_list_goes_in_slices_between_turns(rig: OperationRig) -> None:
    for n in range(300):
        rig.result("declare_queue", queue=f"many{n}")
    rig.vhost.budget.clock = Passing()
    asked = rig.ask("list_rows", kind="queues", sort="messages", page=1, page_size=200)
    rig.vhost.background._clock = Passing()
    assert turns_until(rig, asked) > 2
    assert isinstance(asked.replies[0], JsonParts)
    assert asked.result["item_count"] == 200


def test_a_sort_by_a_column_of_whole_rows_takes_as_many_steps_as_rows(rig: OperationRig) -> None:
    for n in range(100):
        rig.result("declare_queue", queue=f"many{n}")
    clock = rig.vhost.budget.clock = Passing(0.0)
    looks: list[float] = []
    clock.monotonic = lambda: looks.append(0.0) or 0.0  # type: ignore[method-assign]
    asked = rig.ask("list_queues", columns=["name"], sort="memory_target", limit=1)
    assert asked.has_come
    assert len(looks) > 100 * ROW_STEPS // LOOK_STEPS


def test_a_queue_that_is_deleted_meanwhile_is_left_out(rig: OperationRig) -> None:
    for n in range(100):
        rig.result("declare_queue", queue=f"many{n:03}")
    rig.vhost.budget.clock = Passing()
    asked = rig.ask("list_rows", kind="queues", name="many")
    rig.result("delete_queue", queue="many099")
    rig.turn()
    assert names(asked.result) == [f"many{n:03}" for n in range(99)]


def test_a_list_opens_nothing(rig: OperationRig) -> None:
    rig.restart()
    assert not rig.vhost.table.served or "c" not in rig.vhost.table.served
    (row,) = queues(rig, name="c")
    assert (row["messages"], row["state"], row["penstock"]["delta"]) == (4, "running", 4)
    assert "message_stats" not in row
    assert names(queues(rig, sort="messages", reverse=True))[0] == "c"
    (row,) = queues(rig, name="c", columns=["messages_ready", "durable"])
    assert row == {"messages_ready": 4, "durable": True}
    assert "c" not in rig.vhost.table.served


def test_one_queue(rig: OperationRig) -> None:
    client = rig.client(everything("ann")).open(1)
    client.call(1, QueueDeclare(queue="own", exclusive=True), QueueDeclareOk)
    client.call(1, BasicConsume(queue="own", consumer_tag="t"), BasicConsumeOk)
    rig.put("own", b"1", timestamp=1_795_373_660)
    found = rig.result("describe_row", kind="queues", name="own")
    assert found["owner_pid_details"]["name"] == "c0"
    (consumer,) = found["consumer_details"]
    assert (consumer["consumer_tag"], consumer["channel_details"]["name"]) == ("t", "c0 (1)")
    assert consumer["queue"] == {"name": "own", "vhost": "/"}
    rig.put("a", b"later")
    rig.result("declare_queue", queue="stamped")
    rig.put("stamped", b"1", timestamp=1_795_373_660)
    rig.tick(3.0)
    found = rig.result("describe_row", kind="queues", name="stamped")
    assert found["head_message_timestamp"] == 1_795_373_660
    assert found["penstock"]["oldest_ready_s"] == 3
    assert found["incoming"] == found["deliveries"] == []
    cut = rig.result("describe_row", kind="queues", name="stamped", columns=["messages"])
    assert cut == {"messages": 1}


def test_there_is_none(rig: OperationRig) -> None:
    error = rig.refusal("describe_row", kind="queues", name="nobody")
    assert error.code == 404
    assert error.text == "NOT_FOUND - no queue 'nobody' in vhost '/'"
    error = rig.refusal("list_rows", kind="things")
    assert error.code == 406
    assert "expected one of queues" in error.text
    error = rig.refusal("list_rows", kind="queues", of={"planet": "mars"})
    assert "'of': given 'planet'" in error.text


def test_names_for_completion(rig: OperationRig) -> None:
    assert rig.result("names", kind="queues", prefix="o") == ["orders.old"]
    assert rig.result("names", kind="queues", limit=2) == ["Orders.new", "a"]


def test_a_client_needs_a_tag(rig: OperationRig) -> None:
    for tag, is_allowed in (("", False), ("management", True)):
        client = rig.client(Identity("ann", frozenset({tag}), "", "", "")).open()
        channel = client.handler.channels[1]
        if is_allowed:
            assert len(rig.result("list_rows", channel, kind="queues")) == 5
        else:
            assert rig.refusal("list_rows", channel, kind="queues").code == 403


def test_the_columns_of_a_row_are_json(rig: OperationRig) -> None:
    asked = rig.ask("list_rows", kind="queues")
    rig.turn()
    (reply,) = asked.replies
    assert json.loads(b"".join(reply.take()))[0]["name"] == "Orders.new"


# ---- beside RabbitMQ's rows ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "recorded"),
    [("classic", "queue"), ("quorum", "queue-quorum"), ("stream", "queue-stream")],
)
def test_a_row_has_what_the_recorded_one_has(kind: str, recorded: str) -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="q", arguments={"x-queue-type": kind})
    client = rig.client(everything("ann")).open(1)
    if kind == "stream":
        client.call(1, BasicQos(prefetch_count=10), BasicQosOk)
    client.call(1, BasicConsume(queue="q", consumer_tag="t"), BasicConsumeOk)
    rig.put("q", b"1", timestamp=1_795_373_660)
    rig.put("q", b"1", timestamp=1_795_373_660)
    theirs = recorded_answer(recorded)
    theirs.pop("head_message_timestamp", None)  # of a queue with ready messages: another test
    check_like(rig.result("describe_row", kind="queues", name="q"), theirs)


def test_a_list_has_what_the_recorded_one_has() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="q")
    rig.put("q", b"1", timestamp=1_795_373_660)
    (ours,) = queues(rig)
    theirs = recorded_answer("queues")[0]
    check_like(ours, theirs)
    theirs = recorded_answer("queues-disable-stats")[0]
    (ours,) = queues(rig, rates=False, totals=True)
    assert set(ours) == set(theirs)
    check_like(ours, theirs)


def test_the_names_are_kept_sorted_and_a_list_keeps_its_own(rig: OperationRig) -> None:
    table = rig.vhost.table
    before = table.names()
    kept = list(before)
    rig.result("declare_queue", queue="bb")
    rig.result("delete_queue", queue="a")
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    assert before == kept
    expected = ["Orders.new", "b", "bb", "c", "orders.old", "s"]
    assert table.names() == expected
    assert table.names() is table.names()
    rig.restart()
    assert rig.vhost.table.names() == expected
    rig.result("declare_queue", queue="z")
    rig.result("delete_queue", queue="c")
    assert rig.vhost.table.names() == ["Orders.new", "b", "bb", "orders.old", "s", "z"]
