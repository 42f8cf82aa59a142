"""What cannot be settled now, because a disk cannot be read or is full, is settled later: nothing
stays unacknowledged that no client can settle any more."""

import errno
from collections.abc import Callable

import pytest

from penstock.broker import channel as channel_module
from penstock.broker.dispatch import RETRY_S
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicGet,
    BasicNack,
    BasicRecover,
    BasicReject,
    ChannelClose,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from penstock.errors import DiskFullError
from penstock.queues.variable_queue import VariableQueue
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import consuming, declared
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import OperationRig
from tests.helpers.vhost_rig import classic

N = 100
DEAD: dict[str, object] = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"}


def holding(rig: BrokerRig, client: RigClient, **arguments: object) -> None:
    """The client has N messages of "q", whose places are on the disk alone."""
    declared(client, "dead")
    declared(client, **arguments)
    for n in range(N):
        client.publish(1, "", "q", b"%d" % n, delivery_mode=2, headers={"n": n})
    rig.turn()
    consuming(client)
    rig.turn()
    assert len(client.messages()) == N
    client.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
    backing = classic(rig.vhost.queues["q"]).amq.backing
    assert isinstance(backing, VariableQueue)
    backing.set_limits(1, 0)
    while backing.resume():
        pass
    assert backing.state.disk_pending.far_count > N // 2


def counts(rig: BrokerRig) -> tuple[int, int, int]:
    """How many are ready in "q", how many there are, and how many are dead letters."""
    amq = classic(rig.vhost.queues["q"]).amq
    return amq.len(), amq.depth(), classic(rig.vhost.queues["dead"]).amq.len()


def unreadable(rig: BrokerRig) -> None:
    """No file of a queue can be read."""
    rig.fs.fail(errno.EIO, kinds=["read"], path="/queues/", times=None)


def reject(client: RigClient) -> None:
    client.send(1, BasicNack(delivery_tag=0, multiple=True, requeue=False))


def reject_each(client: RigClient) -> None:
    for tag in range(1, N + 1):
        client.send(1, BasicReject(delivery_tag=tag, requeue=False))


def requeue(client: RigClient) -> None:
    client.send(1, BasicNack(delivery_tag=0, multiple=True, requeue=True))


def recover(client: RigClient) -> None:
    client.send(1, BasicRecover(requeue=True))


def close(client: RigClient) -> None:
    client.send(1, ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))


def lose(client: RigClient) -> None:
    client.lose()


def ack(client: RigClient) -> None:
    client.send(1, BasicAck(delivery_tag=0, multiple=True))


def ack_each(client: RigClient) -> None:
    for tag in range(1, N + 1):
        client.send(1, BasicAck(delivery_tag=tag))


@pytest.mark.parametrize("end", [reject, reject_each, requeue, recover, close, lose])
def test_dead_letters_that_cannot_be_read_now_are_read_later(
    rig: BrokerRig, end: Callable[[RigClient], None]
) -> None:
    client = rig.client().open()
    holding(rig, client, x_queue_type="quorum", x_delivery_limit=0, **DEAD)
    unreadable(rig)
    end(client)
    rig.turn()
    assert counts(rig) == (0, N, 0)
    for _ in range(3):
        rig.tick(RETRY_S)
    assert counts(rig) == (0, N, 0)
    assert len([text for kind, text in rig.events if kind == "warning"]) in (1, N)
    rig.fs.clear_faults()
    rig.tick(RETRY_S)
    assert counts(rig) == (0, 0, N)
    assert not client.outlet.must_close


@pytest.mark.parametrize("end", [ack, ack_each])
def test_acknowledgements_that_cannot_be_logged_now_are_logged_later(
    rig: BrokerRig, end: Callable[[RigClient], None]
) -> None:
    client = rig.client().open()
    holding(rig, client)
    unreadable(rig)
    end(client)
    rig.turn()
    assert counts(rig)[:2] != (0, 0)
    rig.fs.clear_faults()
    for _ in range(2):
        rig.tick(RETRY_S)
    assert counts(rig)[:2] == (0, 0)
    assert not client.outlet.must_close
    assert rig.vhost.counts.messages.ack == classic(rig.vhost.queues["q"]).counts.ack == N


@pytest.mark.parametrize("end", [requeue, close, lose])
def test_what_comes_back_and_cannot_be_read_now_comes_back_later(
    rig: BrokerRig, end: Callable[[RigClient], None]
) -> None:
    client, other = rig.client().open(), rig.client().open()
    holding(rig, client)
    unreadable(rig)
    end(client)
    rig.turn()
    client.lose()
    rig.fs.clear_faults()
    rig.tick(RETRY_S)
    assert counts(rig)[:2] == (N, N)
    consuming(other)
    rig.turn()
    assert other.bodies() == [b"%d" % n for n in range(N)]


@pure_only  # a method is replaced
def test_one_that_cannot_be_read_keeps_no_other_back(rig: BrokerRig) -> None:
    client = rig.client().open()
    holding(rig, client, **DEAD)
    queue = classic(rig.vhost.queues["q"])
    plain = queue.amq.backing.pending
    bad = 7

    def pending(tag: int, *, with_header: bool = False, with_body: bool = False) -> object:
        if tag == bad and with_header:
            raise OSError(errno.EIO, "Input/output error")
        return plain(tag, with_header=with_header, with_body=with_body)

    queue.amq.backing.pending = pending  # type: ignore[method-assign, assignment]
    reject(client)
    rig.turn()
    for _ in range(3):
        rig.tick(RETRY_S)
    assert counts(rig) == (0, 1, N - 1)
    queue.amq.backing.pending = plain  # type: ignore[method-assign]
    rig.tick(RETRY_S)
    assert counts(rig) == (0, 0, N)


@pure_only  # a method is replaced
def test_a_queue_whose_own_code_fails_begins_again_with_all_of_them(rig: BrokerRig) -> None:
    client = rig.client().open()
    holding(rig, client)

    def fail(*_: object, **__: object) -> list[int]:
        raise RuntimeError("a bug")

    classic(rig.vhost.queues["q"]).amq.backing.requeue = fail  # type: ignore[method-assign]
    requeue(client)
    rig.turn()
    assert counts(rig)[:2] == (N, N)
    assert not client.outlet.must_close


@pytest.mark.parametrize("how", ["rollback", "lose", "commit"])
def test_a_transaction_forgets_nothing_that_it_cannot_take(rig: BrokerRig, how: str) -> None:
    client = rig.client().open()
    holding(rig, client)
    client.call(1, TxSelect(), TxSelectOk)
    rig.fs.fail(errno.EIO, kinds=["read"], path="/queues/", nth=3, times=None)
    ack(client)
    rig.turn()
    rig.fs.clear_faults()
    if client.outlet.must_close:
        client.lose()
        rig.tick(RETRY_S)
        assert counts(rig)[:2] == (N, N)
        return
    if how == "commit":
        client.call(1, TxCommit(), TxCommitOk)
        assert counts(rig)[:2] == (0, 0)
        return
    if how == "rollback":
        client.call(1, TxRollback(), TxRollbackOk)
    client.lose()
    assert counts(rig)[:2] == (N, N)


@pure_only  # a function is replaced
@pytest.mark.parametrize("is_long", [False, True])
def test_what_a_commit_has_decided_is_done_though_one_part_of_it_fails(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    monkeypatch.setattr(channel_module, "LONG_PLACES", 4 if is_long else 4096)
    client = rig.client().open()
    holding(rig, client, **DEAD)
    declared(client, "other")
    client.call(1, TxSelect(), TxSelectOk)
    for _ in range(10):
        client.publish(1, "", "other", b"kept", delivery_mode=2)
    client.publish(1, "", "q", b"transient")
    reject(client)
    rig.turn()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(channel_module, "fan_out", fail)
    client.send(1, TxCommit())
    rig.turn()
    assert client.outlet.must_close
    assert counts(rig) == (0, 0, N)


@pure_only  # a method is replaced
def test_a_get_without_acknowledgement_is_logged_later(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.client().open()
    declared(client)
    client.publish(1, "", "q", b"x", delivery_mode=2)
    rig.turn()
    queue = classic(rig.vhost.queues["q"])

    def refuse(tags: list[int], mode: int) -> int:
        raise DiskFullError("/data", 0, 1)

    with monkeypatch.context() as patched:
        patched.setattr(queue.amq, "ack", refuse)
        client.send(1, BasicGet(queue="q", no_ack=True))
        rig.turn()
        assert client.bodies() == [b"x"]
    rig.tick(2 * RETRY_S)
    assert queue.amq.depth() == 0


@pytest.mark.parametrize("op", ["box.nack", "box.release"])
def test_what_a_box_gives_back_in_vain_stays_its_own(op: str) -> None:
    rig = OperationRig()
    client = rig.client().open()
    holding(rig, client)
    unreadable(rig)
    backing = classic(rig.vhost.queues["q"]).amq.backing
    assert isinstance(backing, VariableQueue)
    far = backing.state.disk_pending.is_far
    args: dict[str, object] = {"tag": next(tag for tag in range(1, N) if far(tag - 1))}
    if op == "box.nack":
        args["delay_ms"] = 0
    channel = client.handler.channels[1]
    with pytest.raises(OSError, match="Input/output"):
        rig.ask(op, channel, **args)
    rig.fs.clear_faults()
    assert channel.unacked.count == N
    client.lose()
    rig.tick(RETRY_S)
    assert counts(rig)[:2] == (N, N)
