"""A large body that is needed in the other store is copied there in slices: when it is published,
and when it becomes a dead letter. It arrives whole or not at all, and is confirmed only then."""

from collections.abc import Callable

import pytest

from penstock.broker import background_tasks
from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    BasicReject,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueBind,
    QueueBindOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import declared
from tests.helpers.builds import pure_only
from tests.helpers.reads import Reads, counted_reads
from tests.helpers.vhost_rig import classic
from tests.unit.broker.test_large_bodies import body_of, checkpointed, open_bodies, own_files
from tests.unit.broker.test_turns import TickingClock

pytestmark = pure_only  # constants are replaced
MIB = 1 << 20
LARGE = body_of(16)
TURN_BYTES = 5 * MIB  # at most in one turn: TickingClock ends a slice after three or four


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return counted_reads(monkeypatch, lambda path: "msg_store" in path)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> BrokerRig:
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)
    rig = BrokerRig()
    rig.vhost.budget.clock = TickingClock()
    client = rig.client().open()
    for name, durable in (("d", True), ("t", False)):
        declared(client, name, durable=durable)
        client.call(1, QueueBind(queue=name, exchange="amq.fanout"), QueueBindOk)
    declared(client, "src", x_dead_letter_exchange="amq.fanout")
    return rig


def depths(rig: BrokerRig, *names: str) -> list[int]:
    return [classic(rig.vhost.table.usable(name)).amq.depth() for name in names or ("d", "t")]


def confirming(rig: BrokerRig) -> RigClient:
    client = rig.client().open()
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    return client


def after_each_turn(rig: BrokerRig, reads: Reads, is_done: Callable[[], bool]) -> int:
    """Turns until it is done, each of which reads no more than TURN_BYTES; how many there were."""
    for n in range(100):
        assert reads.take() <= TURN_BYTES
        if is_done():
            return n
        reads.take()  # what a look at a crash has read
        rig.vhost.turn()
        rig.vhost.completed()
    raise AssertionError("it is never done")


def got(rig: BrokerRig, *names: str) -> list[bytes]:
    client = rig.client().open()
    for name in names:
        client.send(1, BasicGet(queue=name, no_ack=True))
        rig.turn()
    return client.bodies()


def test_a_publish_to_durable_and_transient_queues(rig: BrokerRig, reads: Reads) -> None:
    client, other = confirming(rig), rig.client().open()
    client.publish(1, "amq.fanout", "", LARGE, delivery_mode=2)
    client.publish(1, "", "d", b"behind", delivery_mode=2)
    other.publish(1, "", "d", b"other", delivery_mode=2)
    assert depths(rig) == [1, 0]
    assert client.methods(BasicAck) == []
    assert after_each_turn(rig, reads, lambda: depths(rig) == [3, 1]) > 2
    rig.turn()
    assert client.methods(BasicAck)[-1].delivery_tag == 2
    assert got(rig, "d", "d", "d", "t") == [b"other", LARGE, b"behind", LARGE]
    checkpointed(rig, client)
    assert own_files(rig) == open_bodies(rig) == []


@pytest.mark.parametrize("mode", ["killed", "kept"])
def test_a_crash_in_between_leaves_nothing_of_it_or_all(
    rig: BrokerRig, reads: Reads, mode: str
) -> None:
    client = confirming(rig)
    client.publish(1, "amq.fanout", "", LARGE, delivery_mode=2)
    found: list[int] = []

    def is_done() -> bool:
        after = BrokerRig(fs=rig.fs.crash(mode))
        found.append(depths(after, "d")[0])
        is_confirmed = bool(client.methods(BasicAck))
        assert found[-1] or not is_confirmed
        return is_confirmed

    after_each_turn(rig, reads, is_done)
    assert (found[0], found[-1]) == (0, 1)


def test_nothing_of_it_stays_if_the_client_goes_meanwhile(rig: BrokerRig, reads: Reads) -> None:
    client = rig.client().open()
    client.publish(1, "amq.fanout", "", LARGE, delivery_mode=2)
    rig.vhost.turn()
    client.lose()
    assert depths(rig) == [0, 0]
    checkpointed(rig, rig.client().open())
    assert own_files(rig) == open_bodies(rig) == []
    assert reads.take() < len(LARGE)


def test_without_room_for_the_copy_nothing_is_published(rig: BrokerRig) -> None:
    client = rig.client().open()
    client.publish(1, "amq.fanout", "", LARGE, delivery_mode=2)
    rig.fs.capacity = rig.fs.used_bytes()
    rig.turn()
    rig.fs.capacity = None
    rig.tick(10.0)
    assert depths(rig) == [0, 0]
    client.lose()
    checkpointed(rig, rig.client().open())
    assert own_files(rig) == open_bodies(rig) == []


@pytest.mark.parametrize("how", ["commit", "rollback", "lose"])
@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_a_transaction_for_durable_and_transient_queues(
    rig: BrokerRig, reads: Reads, how: str, delivery_mode: int
) -> None:
    client = rig.client().open()
    client.call(1, TxSelect(), TxSelectOk)
    client.publish(1, "amq.fanout", "", LARGE, delivery_mode=delivery_mode)
    after_each_turn(rig, reads, lambda: not client.outlet.is_paused)
    assert depths(rig) == [0, 0]
    if how == "commit":
        client.call(1, TxCommit(), TxCommitOk)
        assert reads.take() == 0
        assert got(rig, "d", "t") == [LARGE, LARGE]
    elif how == "rollback":
        client.call(1, TxRollback(), TxRollbackOk)
    client.lose()
    assert depths(rig) == [0, 0]
    checkpointed(rig, rig.client().open())
    assert own_files(rig) == open_bodies(rig) == []


@pytest.mark.parametrize("mode", ["killed", "kept"])
def test_a_dead_letter_for_durable_and_transient_queues(
    rig: BrokerRig, reads: Reads, mode: str
) -> None:
    client = rig.client().open()
    client.publish(1, "", "src", LARGE, delivery_mode=2)
    client.publish(1, "", "src", b"small", delivery_mode=2)
    for _ in range(2):
        client.send(1, BasicGet(queue="src"))
    rig.turn()
    reads.take()
    for tag in (1, 2):
        client.send(1, BasicReject(delivery_tag=tag, requeue=False))
    found: list[tuple[int, ...]] = []

    def is_done() -> bool:
        after = BrokerRig(fs=rig.fs.crash(mode))
        found.append(tuple(depths(after, "src", "d")))
        return depths(rig, "src", "d", "t") == [0, 2, 2]

    assert after_each_turn(rig, reads, is_done) > 2
    assert set(found) <= {(2, 0), (1, 1), (0, 2)}
    rig.turn()
    assert got(rig, "d", "d", "t", "t") == [LARGE, b"small"] * 2
    checkpointed(rig, client)
    assert own_files(rig) == open_bodies(rig) == []
