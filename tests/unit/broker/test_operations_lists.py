"""Channels and consumers, as operators see them."""

import pytest

from penstock.access.permissions import Identity, everything
from penstock.codec.spec import BasicConsume, BasicConsumeOk, BasicQos, BasicQosOk
from tests.helpers.operation_rig import OperationRig


def test_channels_and_consumers() -> None:
    rig = OperationRig()
    assert rig.result("list_channels") == rig.result("list_consumers") == []
    rig.result("declare_queue", queue="b", arguments={"x-single-active-consumer": True})
    rig.result("declare_queue", queue="a")
    client = rig.client(everything("ann"))
    client.pump()
    client.open(2)
    client.open(10)
    client.call(10, BasicQos(prefetch_count=7), BasicQosOk)
    client.call(10, BasicConsume(queue="b", consumer_tag="one"), BasicConsumeOk)
    client.call(10, BasicConsume(queue="b", consumer_tag="two"), BasicConsumeOk)
    client.call(2, BasicConsume(queue="a", consumer_tag="three", no_ack=True), BasicConsumeOk)
    rig.put("b", b"1")
    rig.turn()
    channels = rig.result("list_channels")
    assert [(row["number"], row["consumer_count"]) for row in channels] == [(2, 1), (10, 2)]
    assert [row["messages_unacknowledged"] for row in channels] == [0, 1]
    assert channels[1]["name"] == "c0 (10)"
    assert {row["user"] for row in channels} == {"ann"}
    consumers = rig.result("list_consumers")
    assert [(row["queue_name"], row["consumer_tag"]) for row in consumers] == [
        ("a", "three"), ("b", "one"), ("b", "two"),
    ]  # fmt: skip
    assert [row["active"] for row in consumers] == [True, True, False]
    assert [row["ack_required"] for row in consumers] == [False, True, True]
    assert [row["prefetch_count"] for row in consumers] == [0, 7, 7]
    assert [row["unacked"] for row in consumers] == [0, 1, 0]
    assert {row["channel"] for row in consumers} == {"c0 (2)", "c0 (10)"}
    client.lose()
    assert rig.result("list_channels") == rig.result("list_consumers") == []


@pytest.mark.parametrize("tag", ["", "management", "policymaker", "monitoring", "administrator"])
def test_a_tag_says_what_a_user_may_list(tag: str) -> None:
    rig = OperationRig()
    rig.client(everything("bob")).open()
    client = rig.client(Identity("ann", frozenset({tag}), "", "", "")).open()
    channel = client.handler.channels[1]
    ops = ("list_queues", "list_exchanges", "list_bindings", "list_consumers", "list_channels")
    if not tag:
        for op in ops:
            assert "needs the tag management or policymaker or" in rig.refusal(op, channel).text
        return
    found = {op: rig.result(op, channel) for op in ops}
    users = {row["user"] for row in found["list_channels"]}
    is_monitoring = tag in ("monitoring", "administrator")
    assert users == ({"ann", "bob"} if is_monitoring else {"ann"})
    if is_monitoring:
        assert rig.result("list_alerts", channel) == []
    else:
        assert rig.refusal("list_alerts", channel).code == 403
