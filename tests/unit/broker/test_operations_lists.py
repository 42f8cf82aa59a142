"""Channels and consumers, as operators see them."""

from penstock.access.permissions import everything
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
