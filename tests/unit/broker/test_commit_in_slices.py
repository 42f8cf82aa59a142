"""A commit of many messages is written in slices, others are served in between, and it is one
decision all the same: all of it happens, or nothing."""

import pytest

from penstock.broker import background_tasks, dispatch
from penstock.broker import channel as channel_module
from penstock.broker.broker_queue import BrokerQueue
from penstock.codec.spec import (
    BasicAck,
    BasicGet,
    BasicGetEmpty,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ConnectionClose,
    ConnectionCloseOk,
    QueueBind,
    QueueBindOk,
    QueueDelete,
    QueueDeleteOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.errors import ChannelError, DiskFullError, StoppedError
from penstock.storage.parts import transaction
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import consuming, declared, deliveries
from tests.helpers.builds import pure_only

pytestmark = pure_only  # constants are replaced
N = 60


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still: a slice ends after a part of four messages."""
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)
    monkeypatch.setattr(dispatch, "LOOK_STEPS", 4)
    monkeypatch.setattr(dispatch, "STEPS_MAX", 4)
    monkeypatch.setattr(transaction, "PART_PLACES", 4)
    monkeypatch.setattr(channel_module, "LONG_PLACES", 8)
    monkeypatch.setattr(channel_module, "SETTLE_SLICE", 4)


def queue_of(rig: BrokerRig, name: str) -> BrokerQueue:
    found = rig.vhost.table.usable(name)
    assert isinstance(found, BrokerQueue)
    return found


def depths(rig: BrokerRig, *names: str) -> list[int]:
    return [queue_of(rig, name).amq.depth() for name in names]


def filled(rig: BrokerRig, *queues: str, n: int = N, delivery_mode: int = 2) -> RigClient:
    """A client whose transaction has n messages for each of these queues."""
    c = rig.client().open()
    for name in queues:
        declared(c, name)
        c.call(1, QueueBind(queue=name, exchange="amq.topic", routing_key=name), QueueBindOk)
    c.call(1, TxSelect(), TxSelectOk)
    for i in range(n):
        for name in queues:
            c.publish(1, "amq.topic", name, b"%d" % i, delivery_mode=delivery_mode)
    rig.turn()
    return c


def begun(c: RigClient, turns: int = 3) -> None:
    """Commit, and run a few turns of many."""
    c.send(1, TxCommit())
    for _ in range(turns):
        c.rig.vhost.turn()
        c.rig.vhost.completed()
    assert c.rig.vhost.engine.journal.is_committing
    assert c.methods(TxCommitOk) == []


def at_rest(rig: BrokerRig) -> bool:
    """Whether a checkpoint can be made."""
    before = rig.vhost.engine.checkpoints.count
    return rig.vhost.engine.checkpoint() and rig.vhost.engine.checkpoints.count == before + 1


def killed(rig: BrokerRig) -> None:
    """The process ends and starts again."""
    rig.clients = []
    rig.fs = rig.fs.crash("kept")
    rig.start()


def numbers(rig: BrokerRig, name: str) -> list[int]:
    found = queue_of(rig, name).amq.browse(None, 1000)
    return [int(one.message.body or b"") for one in found]


def test_others_are_served_in_between(rig: BrokerRig) -> None:
    c = filled(rig, "a", "b")
    other = rig.client().open()
    begun(c)
    other.publish(1, "", "a", b"1000", delivery_mode=2)
    other.send(1, BasicGet(queue="a", no_ack=True))
    rig.vhost.turn()
    rig.vhost.completed()
    rig.vhost.turn()
    other.pump()
    assert rig.vhost.engine.journal.is_committing
    assert depths(rig, "a", "b") == [0, 0]  # the other's message came and went
    assert other.bodies() == [b"1000"]
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 1
    assert numbers(rig, "a") == numbers(rig, "b") == list(range(N))
    assert at_rest(rig)


def test_the_channel_waits_and_its_order_stays(rig: BrokerRig) -> None:
    c = filled(rig, "a")
    c.send(1, TxCommit())
    c.publish(1, "", "a", b"100", delivery_mode=2)
    c.send(1, TxCommit())
    c.publish(1, "", "a", b"200", delivery_mode=2)
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 2
    assert numbers(rig, "a") == [*range(N), 100]
    c.call(1, TxRollback(), TxRollbackOk)


def half_applied(c: RigClient, name: str) -> None:
    """Run turns until some of the commit is in this queue."""
    rig = c.rig
    for _ in range(1000):
        rig.vhost.turn()
        rig.vhost.completed()
        if 0 < depths(rig, name)[0] < N:
            break
    assert 0 < depths(rig, name)[0] < N
    assert c.methods(TxCommitOk) == []


def test_others_are_served_while_what_is_decided_takes_effect(rig: BrokerRig) -> None:
    c = filled(rig, "a", "b")
    other = rig.client().open()
    c.send(1, TxCommit())
    half_applied(c, "a")
    other.publish(1, "", "a", b"1000", delivery_mode=2)
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 1
    found = numbers(rig, "a")
    assert sorted(found) == [*range(N), 1000]
    assert [n for n in found if n != 1000] == list(range(N)) == numbers(rig, "b")
    assert found[-1] != 1000  # what came in between stands in between
    assert [queue_of(rig, name).published for name in ("a", "b")] == [N + 1, N]
    assert at_rest(rig)
    killed(rig)
    assert numbers(rig, "a") == found


def acked(rig: BrokerRig, **arguments: object) -> RigClient:
    """A client whose transaction has acknowledged N messages of "a", some of them transient."""
    c = rig.client().open()
    declared(c, "a", **arguments)
    for i in range(N):
        c.publish(1, "", "a", b"%d" % i, delivery_mode=1 if i % 10 == 7 else 2)
    consuming(c, "a")
    rig.turn()
    c.call(1, TxSelect(), TxSelectOk)
    c.send(1, BasicAck(delivery_tag=0, multiple=True))
    rig.turn()
    assert depths(rig, "a") == [N]
    return c


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 3}])
@pytest.mark.parametrize("how", ["", "closed", "lost", "killed"])
def test_acknowledgements_take_effect_in_slices(
    rig: BrokerRig, how: str, arguments: dict[str, object]
) -> None:
    c = acked(rig, **arguments)
    other = rig.client().open()
    c.send(1, TxCommit())
    half_applied(c, "a")
    other.publish(1, "", "a", b"1000", delivery_mode=2)
    rig.vhost.turn()
    rig.vhost.completed()
    assert 1 < depths(rig, "a")[0] < N
    if how == "closed":
        c.handler.close_channel(1, ChannelError(506, "it holds too much"))
    elif how == "lost":
        c.lose()
    elif how == "killed":
        killed(rig)
    rig.turn()
    if not how:
        assert len(c.methods(TxCommitOk)) == 1
        assert queue_of(rig, "a").counts.ack == N
        assert c.bodies()[N:] == [b"1000"]
        c.lose()
    assert numbers(rig, "a") == [1000]
    assert at_rest(rig)
    killed(rig)
    assert numbers(rig, "a") == [1000]


@pytest.mark.parametrize("mode", ["kept", "lost"])
@pytest.mark.parametrize("is_decided", [False, True])
def test_a_queue_that_fails_between_two_parts_ends_the_vhost(
    rig: BrokerRig, is_decided: bool, mode: str
) -> None:
    """What it had ready would be taken by the parts; recovery knows what was decided."""
    c = acked(rig)
    if is_decided:
        c.send(1, TxCommit())
        half_applied(c, "a")
    else:
        begun(c)
    rig.vhost.engine.sync()
    with pytest.raises(StoppedError, match="a large transaction is being committed"):
        rig.vhost.restarts.failed(queue_of(rig, "a"), RuntimeError("a bug"))
    rig.clients = []
    rig.fs = rig.fs.crash(mode)
    rig.start()
    persistent = [n for n in range(N) if n % 10 != 7]
    assert numbers(rig, "a") == ([] if is_decided else persistent)
    assert at_rest(rig)


@pytest.mark.parametrize("is_decided", [False, True])
def test_a_queue_that_is_deleted_while_its_acknowledgements_take_effect(
    rig: BrokerRig, is_decided: bool
) -> None:
    c = acked(rig)
    other = rig.client().open()
    c.publish(1, "amq.topic", "nobody", b"x", mandatory=True)
    c.send(1, TxCommit())
    if is_decided:
        half_applied(c, "a")
    else:
        rig.vhost.turn()
        assert rig.vhost.engine.journal.is_committing
    other.call(1, QueueDelete(queue="a"), QueueDeleteOk)
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 1
    assert at_rest(rig)
    killed(rig)
    assert rig.vhost.table.find("a") is None


@pytest.mark.parametrize("how", ["closed", "lost", "killed"])
def test_what_is_decided_happens_whatever_becomes_of_the_channel(rig: BrokerRig, how: str) -> None:
    c = filled(rig, "a", "b")
    c.publish(1, "amq.topic", "nobody", b"x", mandatory=True)
    c.send(1, TxCommit())
    half_applied(c, "a")
    if how == "closed":
        c.handler.close_channel(1, ChannelError(506, "it holds too much"))
    elif how == "lost":
        c.lose()
    else:
        killed(rig)
    rig.turn()
    assert numbers(rig, "a") == numbers(rig, "b") == list(range(N))
    assert at_rest(rig)


def test_there_is_room_for_all_that_was_decided(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, "full", x_max_length=N, x_overflow="reject-publish")
    c.call(1, TxSelect(), TxSelectOk)
    for i in range(N):
        c.publish(1, "", "full", b"%d" % i, delivery_mode=i % 2 + 1)
    rig.turn()
    other = rig.client().open()
    c.send(1, TxCommit())
    half_applied(c, "full")
    other.publish(1, "", "full", b"77", delivery_mode=2)
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 1
    assert sorted(numbers(rig, "full")) == list(range(N))
    other.send(1, BasicGet(queue="full", no_ack=True))
    other.publish(1, "", "full", b"78", delivery_mode=2)
    rig.turn()
    assert depths(rig, "full") == [N]  # nothing is reserved any more


def test_a_queue_that_is_deleted_while_it_takes_effect_leaves_it(rig: BrokerRig) -> None:
    c = filled(rig, "a", "b")
    other = rig.client().open()
    c.send(1, TxCommit())
    half_applied(c, "a")
    other.call(1, QueueDelete(queue="b"), QueueDeleteOk)
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 1
    assert numbers(rig, "a") == list(range(N))
    assert queue_of(rig, "a").published == N
    killed(rig)
    assert numbers(rig, "a") == list(range(N))


def test_a_log_without_room_delays_the_rest_of_what_is_decided(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = filled(rig, "a")
    c.send(1, TxCommit())
    half_applied(c, "a")

    def full(*_: object) -> int:
        raise DiskFullError("log", 0, 1)

    with monkeypatch.context() as patch:
        patch.setattr(rig.vhost.engine.log, "append", full)
        before = depths(rig, "a")
        for _ in range(20):
            rig.vhost.turn()
        assert depths(rig, "a") == before
    rig.clock.advance(1)
    rig.tick()
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 1
    assert numbers(rig, "a") == list(range(N))


def test_returns_come_before_the_answer_of_a_commit_in_slices(rig: BrokerRig) -> None:
    c = filled(rig, "a")
    for _ in range(20):
        c.publish(1, "amq.topic", "nobody", b"x", mandatory=True)
    c.send(1, TxCommit())
    rig.turn()
    c.pump()
    methods = [getattr(event, "method", None) for event in c.events]
    kinds = [type(one) for one in methods if isinstance(one, BasicReturn | TxCommitOk)]
    assert kinds == [BasicReturn] * 20 + [TxCommitOk]


def test_what_it_brings_is_delivered_after_the_decision(rig: BrokerRig) -> None:
    c = filled(rig, "a")
    other = rig.client().open()
    consuming(other, "a")
    begun(c)
    assert other.messages() == []
    rig.turn()
    assert [int(body) for _, _, body in deliveries(other)] == list(range(N))


@pytest.mark.parametrize("how", ["closed", "lost", "killed"])
def test_a_commit_that_ends_before_its_decision_brings_nothing(rig: BrokerRig, how: str) -> None:
    declared(rig.client().open(), "work")
    c = filled(rig, "a", "b")
    c.publish(1, "", "work", b"7", delivery_mode=2)
    c.call(1, TxCommit(), TxCommitOk)
    c.send(1, BasicGet(queue="work"))
    rig.turn()
    c.send(1, BasicAck(delivery_tag=1))
    for _ in range(N):
        c.publish(1, "", "a", b"1", delivery_mode=2)
    rig.turn()
    begun(c)
    if how == "closed":
        c.handler.close_channel(1, ChannelError(506, "it holds too much"))
        rig.turn()
    elif how == "lost":
        c.lose()
    else:
        killed(rig)
    rig.turn()
    assert depths(rig, "a", "b", "work") == [N, N, 1]
    assert len(numbers(rig, "work")) == 1  # it went back
    assert at_rest(rig)


def test_two_at_once_are_both_there_after_a_kill(rig: BrokerRig) -> None:
    one, two = filled(rig, "a", "b"), filled(rig, "b", "c")
    begun(one)
    begun(two, 1)
    rig.turn()
    assert len(one.methods(TxCommitOk)) == len(two.methods(TxCommitOk)) == 1
    before = {name: numbers(rig, name) for name in ("a", "b", "c")}
    assert [len(found) for found in before.values()] == [N, 2 * N, N]
    killed(rig)
    assert {name: numbers(rig, name) for name in ("a", "b", "c")} == before


def test_a_queue_that_others_fill_meanwhile_refuses_all_of_it(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, "full", x_max_length=N, x_overflow="reject-publish")
    c.call(1, QueueBind(queue="full", exchange="amq.topic", routing_key="full"), QueueBindOk)
    c.call(1, TxSelect(), TxSelectOk)
    for i in range(N):
        c.publish(1, "", "full", b"%d" % i, delivery_mode=2)
    rig.turn()
    other = rig.client().open()
    begun(c)
    other.publish(1, "", "full", b"7", delivery_mode=2)
    rig.turn()
    (close,) = c.methods(ChannelClose)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 90, 20)
    c.send(1, ChannelCloseOk())
    assert numbers(rig, "full") == [7]
    assert at_rest(rig)
    killed(rig)
    assert numbers(rig, "full") == [7]


def test_a_queue_that_is_deleted_meanwhile_leaves_it(rig: BrokerRig) -> None:
    c = filled(rig, "a", "b", "c")
    for _ in range(3):
        c.publish(1, "amq.topic", "nobody", b"x")
    other = rig.client().open()
    begun(c)
    other.send(1, QueueDelete(queue="b"))
    assert rig.vhost.engine.journal.is_committing
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 1
    assert depths(rig, "a", "c") == [N, N]
    killed(rig)
    assert numbers(rig, "a") == numbers(rig, "c") == list(range(N))


def test_a_full_disk_in_the_middle_rolls_it_back(rig: BrokerRig) -> None:
    c = filled(rig, "a")
    begun(c)
    rig.vhost.engine.journal.block("no space")
    rig.turn()
    (close,) = c.methods(ChannelClose)
    assert close.reply_code == 506
    rig.vhost.engine.journal.unblock("space")
    assert depths(rig, "a") == [0]
    assert at_rest(rig)


def test_commits_wait_for_a_checkpoint_that_waits_for_them(rig: BrokerRig) -> None:
    one, two = filled(rig, "a"), filled(rig, "b")
    begun(one)
    engine = rig.vhost.engine
    engine.upkeep.begin_checkpoint()
    assert engine.journal.cut_waits
    two.send(1, TxCommit())
    for _ in range(200):
        rig.vhost.turn()
        rig.vhost.completed()
    assert len(one.methods(TxCommitOk)) == 1
    assert two.methods(TxCommitOk) == []
    assert not engine.journal.is_committing
    rig.tick()
    rig.turn()
    assert len(two.methods(TxCommitOk)) == 1
    assert numbers(rig, "b") == list(range(N))


def test_transient_messages_have_the_room_that_was_decided(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, "full", x_max_length=N, x_overflow="reject-publish")
    c.call(1, TxSelect(), TxSelectOk)
    for i in range(N):
        c.publish(1, "", "full", b"%d" % i)
    rig.turn()
    other = rig.client().open()
    c.send(1, TxCommit())
    assert depths(rig, "full")[0] < N
    other.publish(1, "", "full", b"77")
    rig.turn()
    assert len(c.methods(TxCommitOk)) == 1
    assert numbers(rig, "full") == list(range(N))


def test_a_channel_that_closes_after_the_decision_takes_nothing_back(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, "a")
    c.call(1, TxSelect(), TxSelectOk)
    for i in range(N):
        c.publish(1, "", "a", b"%d" % i)
    rig.turn()
    c.send(1, TxCommit())
    assert depths(rig, "a")[0] < N
    c.lose()
    assert numbers(rig, "a") == list(range(N))


def test_a_close_of_the_channel_comes_after_the_commit(rig: BrokerRig) -> None:
    c = filled(rig, "a")
    begun(c)
    c.send(1, ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))
    rig.turn()
    assert len(c.methods(ChannelCloseOk)) == 1
    assert numbers(rig, "a") == list(range(N))


def test_a_close_of_the_connection_comes_after_the_commits(rig: BrokerRig) -> None:
    c = filled(rig, "a")
    c.open(2)
    c.call(2, TxSelect(), TxSelectOk)
    for i in range(2 * N):
        c.publish(2, "", "a", b"%d" % (100 + i), delivery_mode=2)
    rig.turn()
    begun(c)
    c.send(2, TxCommit())
    c.send(0, ConnectionClose(reply_code=200, reply_text="", class_id=0, method_id=0))
    rig.turn()
    assert len(c.methods(ConnectionCloseOk)) == 1
    assert numbers(rig, "a") == [*range(N), *range(100, 100 + 2 * N)]


# ---- rollback ------------------------------------------------------------------------------------


def rolling_back(rig: BrokerRig, n: int = N) -> RigClient:
    """A client that has acknowledged half of n deliveries in a transaction, rejected the others,
    published n messages, and rolls back: some of it is done."""
    c = filled(rig, "a", n=0)
    for i in range(n):
        c.publish(1, "", "a", b"%d" % i, delivery_mode=2)
    c.call(1, TxCommit(), TxCommitOk)
    consuming(c, "a")
    rig.turn()
    assert len(deliveries(c)) == n
    c.send(1, BasicAck(delivery_tag=n // 2, multiple=True))
    c.send(1, BasicNack(delivery_tag=n, multiple=True, requeue=True))
    for _ in range(n):
        c.publish(1, "", "a", b"no", delivery_mode=2)
    rig.turn()
    c.send(1, TxRollback())
    for _ in range(N // 4):
        rig.vhost.turn()
    assert c.methods(TxRollbackOk) == []
    return c


def test_a_rollback_is_done_in_slices(rig: BrokerRig) -> None:
    c = rolling_back(rig)
    other = rig.client().open()
    other.send(1, BasicGet(queue="a", no_ack=True))
    rig.vhost.turn()
    other.pump()
    assert len(other.methods(BasicGetEmpty)) == 1  # served in between
    c.send(1, BasicAck(delivery_tag=2 * (N // 3), multiple=True))
    c.send(1, TxCommit())
    rig.turn()
    assert len(c.methods(TxRollbackOk)) == 1
    assert depths(rig, "a") == [N - 2 * (N // 3)]
    c.lose()
    rig.turn()
    assert numbers(rig, "a") == list(range(2 * (N // 3), N))


def test_a_client_that_leaves_during_its_rollback_gives_all_back(rig: BrokerRig) -> None:
    c = rolling_back(rig)
    c.lose()
    rig.turn()
    assert numbers(rig, "a") == list(range(N))
    assert rig.vhost.usage.transactions.total == 0
    assert at_rest(rig)
