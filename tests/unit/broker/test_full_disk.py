"""A disk that gets full in the middle of a message for several queues doubles it in none."""

import errno

import pytest

from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicReject,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from penstock.errors import ChannelError
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import declared
from tests.helpers.vhost_rig import classic

SIZE = 300


def bound(c: RigClient, name: str, *, durable: bool = True, **arguments: object) -> None:
    declared(c, name, durable=durable, **arguments)
    c.call(1, QueueBind(queue=name, exchange="amq.fanout"), QueueBindOk)


def depths(rig: BrokerRig) -> list[int]:
    return [classic(queue).amq.depth() for queue in rig.vhost.queues.values()]


def publish(rig: BrokerRig, c: RigClient, size: int = SIZE) -> None:
    c.publish(1, "amq.fanout", "", bytes(size), delivery_mode=2)
    rig.turn()


def has_room(rig: BrokerRig) -> None:
    rig.fs.capacity = None
    for _ in range(30):
        rig.tick(1)


@pytest.mark.parametrize("room", [44_000, 46_000, 48_000, 50_000, 52_000])
@pytest.mark.parametrize("size", [SIZE, 3000])
def test_queues_in_which_it_expires_at_other_times(rig: BrokerRig, room: int, size: int) -> None:
    c = rig.client().open()
    for i in range(3):
        bound(c, f"q{i}", x_message_ttl=10**8 + 10**5 * i)
    rig.turn()
    rig.fs.capacity = rig.fs.used_bytes() + room
    n = 0
    while not rig.vhost.engine.journal.blocked:
        publish(rig, c, size)
        n += 1
    has_room(rig)
    assert depths(rig) == [n] * 3
    rig.restart()
    assert depths(rig) == [n] * 3


@pytest.mark.parametrize("others", [1, 2])
def test_durable_queues_and_others(rig: BrokerRig, others: int) -> None:
    c = rig.client().open()
    bound(c, "q")
    for i in range(others):
        bound(c, f"t{i}", durable=False, x_message_ttl=10**8 + 10**5 * i)
    rig.turn()
    rig.fs.fail(errno.ENOSPC, kinds={"create", "pwrite"}, path="msg_store_transient")
    publish(rig, c, 20_000)
    has_room(rig)
    assert depths(rig) == [1] * (1 + others)


def test_durable_queues_and_others_in_a_transaction(rig: BrokerRig) -> None:
    c = rig.client().open()
    bound(c, "q")
    bound(c, "t", durable=False)
    bound(c, "u", durable=False)
    c.call(1, TxSelect(), TxSelectOk)
    rig.turn()
    rig.fs.fail(errno.ENOSPC, kinds={"create", "pwrite"}, path="msg_store_transient")
    publish(rig, c, 20_000)
    c.call(1, TxCommit(), TxCommitOk)
    has_room(rig)
    assert depths(rig) == [1, 1, 1]


def test_a_stream_and_queues_that_are_not_durable(rig: BrokerRig) -> None:
    c = rig.client().open()
    bound(c, "s", x_queue_type="stream")
    for i in range(2):
        bound(c, f"t{i}", durable=False)
    rig.turn()
    rig.fs.fail(errno.ENOSPC, kinds={"create", "pwrite"}, path="msg_store_transient")
    publish(rig, c, 20_000)
    has_room(rig)
    assert [queue.len() for queue in rig.vhost.table.served.values()] == [1, 1, 1]


def test_dead_letters_of_a_queue_that_refuses_it(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, "dead", durable=False)
    declared(c, "dead2", durable=False)
    bound(c, "q")
    bound(
        c, "full", durable=False, x_max_length=1, x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="amq.direct",
    )  # fmt: skip
    for name in ("dead", "dead2"):
        c.call(1, QueueBind(queue=name, exchange="amq.direct"), QueueBindOk)
    publish(rig, c, 20_000)
    rig.fs.fail(errno.ENOSPC, kinds={"create", "pwrite"}, path="msg_store_transient")
    publish(rig, c, 20_000)
    has_room(rig)
    assert classic(rig.vhost.queues["q"]).amq.depth() == 2


@pytest.mark.parametrize("how", ["expired", "rejected", "pushed-out"])
@pytest.mark.parametrize("others", [1, 2])
def test_a_dead_letter_for_durable_queues_and_others(rig: BrokerRig, how: str, others: int) -> None:
    c = rig.client().open()
    bound(c, "dead")
    for i in range(others):
        bound(c, f"t{i}", durable=False, x_message_ttl=10**8 + 10**5 * i)
    arguments: dict[str, object] = {"x_dead_letter_exchange": "amq.fanout"}
    if how == "expired":
        arguments["x_message_ttl"] = 1000
    if how == "pushed-out":
        arguments["x_max_length"] = 1
    declared(c, "q", **arguments)
    c.publish(1, "", "q", bytes(20_000), delivery_mode=2)
    rig.turn()
    rig.fs.fail(errno.ENOSPC, kinds={"create", "pwrite"}, path="msg_store_transient")
    if how == "rejected":
        c.send(1, BasicGet(queue="q"))
        rig.turn()
        c.send(1, BasicReject(delivery_tag=1, requeue=False))
    if how == "pushed-out":
        c.publish(1, "", "q", b"next", delivery_mode=2)
    rig.turn()
    has_room(rig)
    left = 1 if how == "pushed-out" else 0
    assert depths(rig) == [1] * (1 + others) + [left]


@pytest.mark.parametrize("kind", ["refused", "dies-at-once"])
@pytest.mark.parametrize("ttl", [None, 10**8])
def test_dead_letters_of_a_message_that_enters_no_queue(
    rig: BrokerRig, kind: str, ttl: int | None
) -> None:
    c = rig.client().open()
    bound(c, "dead")
    bound(c, "t", durable=False, **({} if ttl is None else {"x_message_ttl": ttl}))
    arguments: dict[str, object] = {"x_dead_letter_exchange": "amq.fanout"}
    if kind == "refused":
        arguments |= {"x_max_length": 1, "x_overflow": "reject-publish-dlx"}
    else:
        arguments |= {"x_message_ttl": 0}
    declared(c, "q", **arguments)
    if kind == "refused":
        c.publish(1, "", "q", b"first")
    rig.turn()
    rig.fs.fail(errno.ENOSPC, kinds={"create", "pwrite"}, path="msg_store_transient")
    c.publish(1, "", "q", bytes(20_000), delivery_mode=2)
    rig.turn()
    has_room(rig)
    assert depths(rig) == [1, 1, 1 if kind == "refused" else 0]


@pytest.mark.parametrize("room", [44_000, 46_000, 48_000, 50_000, 52_000])
def test_dead_letters_that_expire_at_other_times(rig: BrokerRig, room: int) -> None:
    c = rig.client().open()
    bound(c, "a")
    bound(c, "b", x_message_ttl=10**8)
    declared(c, "q", x_message_ttl=0, x_dead_letter_exchange="amq.fanout")
    rig.turn()
    rig.fs.capacity = rig.fs.used_bytes() + room
    n = 0
    while not rig.vhost.engine.journal.blocked:
        c.publish(1, "", "q", bytes(SIZE), delivery_mode=2)
        rig.turn()
        n += 1
    has_room(rig)
    assert depths(rig) == [n, n, 0]


def use_up_log(rig: BrokerRig) -> None:
    """Bind a queue until the log has no room left."""
    for n in range(1000):
        rig.vhost.bind_queue("q", "amq.topic", f"{n}")
        rig.turn()


def fill(rig: BrokerRig, c: RigClient) -> None:
    """Leave no room on the disk, nor in the log."""
    rig.fs.capacity = rig.fs.used_bytes() + 44_000
    while not rig.vhost.engine.journal.blocked:
        publish(rig, c)
    rig.fs.capacity = rig.fs.used_bytes()
    with pytest.raises(ChannelError, match="no space"):
        use_up_log(rig)


@pytest.mark.parametrize("bindings", [0, 600])
def test_a_queue_that_ends_meanwhile_is_deleted_when_there_is_room(
    rig: BrokerRig, bindings: int
) -> None:
    """Nobody finds it from its end on, and another one of its name has to wait for the room."""
    c, other = rig.client().open(), rig.client().open()
    c.call(1, QueueDeclare(queue="mine", durable=True, auto_delete=True), QueueDeclareOk)
    c.call(1, BasicConsume(queue="mine"), BasicConsumeOk)
    for n in range(bindings):
        rig.vhost.bind_queue("mine", "amq.topic", f"{n}")
    bound(other, "q")
    rig.turn()
    fill(rig, other)
    c.handler.lost()
    for _ in range(3):
        rig.tick(1)
    assert not rig.vhost.table.has("mine")
    before = rig.vhost.queues["mine"]
    assert not [text for kind, text in rig.events if kind in ("internal_error", "stopped")]
    again = rig.client().open()
    again.send(1, QueueDeclare(queue="mine", durable=True))
    rig.turn()
    assert again.methods(QueueDeclareOk) == []
    has_room(rig)
    assert rig.vhost.queues.get("mine") is not before
    assert rig.vhost.router.count_at("q", "mine") == 0
    assert before.is_deleted
    rig.restart()
    assert rig.vhost.table.has("mine") == (len(again.methods(QueueDeclareOk)) == 1)


def test_an_unused_queue_is_deleted_when_there_is_room(rig: BrokerRig) -> None:
    c = rig.client().open()
    declared(c, "unused", x_expires=1000)
    bound(c, "q")
    rig.turn()
    fill(rig, c)
    for _ in range(5):
        rig.tick(1)
    assert not rig.vhost.table.has("unused")
    assert not [text for kind, text in rig.events if kind in ("internal_error", "stopped")]
    has_room(rig)
    assert "unused" not in rig.vhost.queues
