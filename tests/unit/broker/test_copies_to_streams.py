"""A large message that goes to several streams: its copies are appended in slices, each once."""

import pytest

from penstock.broker.broker_queue import BrokerQueue
from penstock.codec.spec import BasicAck, ConfirmSelect, ConfirmSelectOk
from tests.helpers.broker_rig import RigClient
from tests.helpers.operation_rig import OperationRig
from tests.unit.broker.test_turns import TickingClock

STREAMS = 8
SPOOLED = (1 << 20) + 1
SIZES = [300 << 10, SPOOLED]


@pytest.fixture
def rig() -> OperationRig:
    rig = OperationRig()
    for n in range(STREAMS):
        name = f"s{n}"
        rig.result("declare_queue", queue=name, arguments={"x-queue-type": "stream"})
        rig.result("bind_queue", queue=name, exchange="amq.fanout", routing_key="")
    rig.result("declare_queue", queue="q")
    rig.result("bind_queue", queue="q", exchange="amq.fanout", routing_key="")
    return rig


def confirming(rig: OperationRig) -> RigClient:
    client = rig.client().open(1)
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    return client


def records(rig: OperationRig) -> list[int]:
    return [stream.len() for stream in rig.vhost.streams.all()]


def sizes(rig: OperationRig) -> list[int]:
    queue = rig.vhost.table.usable("q")
    assert isinstance(queue, BrokerQueue)
    return [one.message.size for one in queue.amq.browse(None, 10)]


@pytest.mark.parametrize("size", SIZES)
def test_others_are_served_between_the_copies(rig: OperationRig, size: int) -> None:
    client, other = confirming(rig), rig.client().open(1)
    rig.vhost.budget.clock = TickingClock()
    client.publish(1, "amq.fanout", "", bytes(size), delivery_mode=2)
    client.publish(1, "", "q", b"next")
    assert sum(records(rig)) < STREAMS
    other.publish(1, "", "q", b"other")
    rig.turn()
    assert records(rig) == [1] * STREAMS
    assert sorted(sizes(rig)) == [4, 5, size]
    assert [one for one in sizes(rig) if one != 5] == [size, 4], "the next of its own is behind"
    assert client.methods(BasicAck)[-1].delivery_tag == 2
    assert rig.vhost.counts.messages.stats()["publish"] == 3
    rig.restart()
    assert records(rig) == [1] * STREAMS


@pytest.mark.parametrize("size", SIZES)
def test_a_client_that_goes_in_between_leaves_no_body(rig: OperationRig, size: int) -> None:
    client = confirming(rig)
    rig.vhost.budget.clock = TickingClock()
    client.publish(1, "amq.fanout", "", bytes(size), delivery_mode=2)
    client.lose()
    rig.turn()
    assert sizes(rig) in ([], [size])
    rig.restart()  # which verifies the store


def test_a_stream_that_is_deleted_in_between_is_left_out(rig: OperationRig) -> None:
    client = confirming(rig)
    rig.vhost.budget.clock = TickingClock()
    client.publish(1, "amq.fanout", "", bytes(SIZES[0]), delivery_mode=2)
    rig.result("delete_queue", queue=f"s{STREAMS - 1}")
    rig.turn()
    assert client.methods(BasicAck)[-1].delivery_tag == 1
    assert records(rig) == [1] * (STREAMS - 1)
