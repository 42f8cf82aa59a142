"""A large message that goes to streams: it is read back and appended in slices, to each once."""

import pytest

from penstock.broker import background_tasks
from penstock.broker.broker_queue import BrokerQueue
from penstock.codec.spec import (
    BasicAck,
    ConfirmSelect,
    ConfirmSelectOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.broker_rig import RigClient
from tests.helpers.builds import pure_only
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


@pure_only  # a constant is replaced
@pytest.mark.parametrize("is_deleted", [False, True])
def test_others_are_served_between_the_copies_of_an_operation(
    rig: OperationRig, is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = rig.client().open(1)
    rig.vhost.budget.clock = TickingClock()
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)
    body = bytes(SIZES[0])
    asked = rig.ask("publish", exchange="amq.fanout", routing_key="", bodies=[body, body])
    rig.vhost.turn()
    assert 0 < sum(records(rig)) < STREAMS
    other.publish(1, "", "q", b"other")
    if is_deleted:
        rig.result("delete_queue", queue=f"s{STREAMS - 1}")
    rig.turn()
    assert asked.result == {"published": 2}
    assert records(rig) == [2] * (STREAMS - is_deleted)
    assert sizes(rig) == [5, SIZES[0], SIZES[0]]


def to_one_stream(client: RigClient, size: int) -> None:
    client.publish(1, "", "s0", bytes(size), delivery_mode=2)


@pytest.mark.parametrize("is_transaction", [False, True])
def test_others_are_served_while_a_large_body_is_read_back(
    rig: OperationRig, is_transaction: bool
) -> None:
    other = rig.client().open(1)
    client = rig.client().open(1) if is_transaction else confirming(rig)
    if is_transaction:
        client.call(1, TxSelect(), TxSelectOk)
    rig.vhost.budget.clock = TickingClock()
    to_one_stream(client, 9 << 20)
    other.publish(1, "", "q", b"other")
    assert (sum(records(rig)), sizes(rig)) == (0, [5])
    rig.turn()
    if is_transaction:
        client.call(1, TxCommit(), TxCommitOk)
    else:
        assert client.methods(BasicAck)[-1].delivery_tag == 1
    assert sum(records(rig)) == 1
    rig.restart()
    assert sum(records(rig)) == 1


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_stream_that_is_deleted_while_a_body_is_read_back(
    rig: OperationRig, is_lost: bool
) -> None:
    client = confirming(rig)
    rig.vhost.budget.clock = TickingClock()
    to_one_stream(client, 9 << 20)
    rig.result("delete_queue", queue="s0") if not is_lost else client.lose()
    rig.turn()
    if not is_lost:
        assert client.methods(BasicAck)[-1].delivery_tag == 1
    assert sum(records(rig)) == 0
    rig.restart()  # which verifies the store


@pytest.mark.parametrize("to_queue", [False, True])
def test_a_large_message_with_a_key_of_duplicates_is_in_one_record_with_it(
    rig: OperationRig, to_queue: bool
) -> None:
    client = confirming(rig)
    arguments = {"x-message-deduplication": True, "x-cache-size": 10}
    rig.result("declare_exchange", exchange="once", type="fanout", arguments=arguments)
    for name in ["q"] if to_queue else ["s0", "s1", "q"]:
        rig.result("bind_queue", queue=name, exchange="once", routing_key="")
    for _ in range(2):
        headers = {"x-deduplication-header": "k"}
        client.publish(1, "once", "", bytes(SPOOLED), headers=headers, delivery_mode=2)
        rig.turn()
    assert client.methods(BasicAck)[-1].delivery_tag == 2
    for _ in range(2):
        assert sizes(rig) == [SPOOLED]
        assert sum(records(rig)) == (0 if to_queue else 2)
        rig.restart()


@pytest.mark.parametrize("is_rolled_back", [False, True])
@pytest.mark.parametrize("exchange", ["", "amq.fanout"])
def test_a_transaction_publishes_large_messages_to_streams(
    rig: OperationRig, exchange: str, is_rolled_back: bool
) -> None:
    client = rig.client().open(1)
    client.call(1, TxSelect(), TxSelectOk)
    client.publish(1, exchange, "s0", bytes(SPOOLED), delivery_mode=2)
    rig.turn()
    if is_rolled_back:
        client.lose()
    else:
        client.call(1, TxCommit(), TxCommitOk)
    n = 0 if is_rolled_back else STREAMS if exchange else 1
    for _ in range(2):
        assert sum(records(rig)) == n
        assert sizes(rig) == ([SPOOLED] if n > 1 else [])
        rig.restart()
