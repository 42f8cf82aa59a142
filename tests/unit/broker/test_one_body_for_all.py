"""A message to many queues has one body in the store, whatever limits the queues have."""

import pytest

from penstock.codec.spec import (
    BasicNack,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from penstock.storage.store.message_store import MessageStore
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import consuming, declared, deliveries
from tests.helpers.vhost_rig import classic

LARGE = bytes(range(256)) * (3 << 12)  # 3 MiB: spooled as it comes
SMALL = b"s" * 5000  # beyond what is kept beside its place


def bound(c: RigClient, *names: str, **arguments: object) -> None:
    for name in names:
        declared(c, name, **arguments)
        c.call(1, QueueBind(queue=name, exchange="amq.fanout"), QueueBindOk)


def store_of(rig: BrokerRig, delivery_mode: int) -> MessageStore:
    engine = rig.vhost.engine
    return engine.state.store if delivery_mode == 2 else engine.transient


def publish(rig: BrokerRig, c: RigClient, body: bytes, **properties: object) -> None:
    c.publish(1, "amq.fanout", "", body, **properties)
    rig.turn()


def depths(rig: BrokerRig, *names: str) -> list[int]:
    return [classic(rig.vhost.queues[name]).amq.depth() for name in names]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx", "drop-head-strict"])
@pytest.mark.parametrize("delivery_mode", [1, 2], ids=["transient", "persistent"])
def test_queues_that_may_refuse_share_a_large_body(
    rig: BrokerRig, overflow: str, delivery_mode: int
) -> None:
    c = rig.client().open()
    names = [f"q{i}" for i in range(6)]
    bound(c, *names, x_max_length=3, x_overflow=overflow)
    publish(rig, c, LARGE, delivery_mode=delivery_mode)
    assert depths(rig, *names) == [1] * 6
    assert store_of(rig, delivery_mode).live_count == 1
    other = rig.client().open()
    consuming(other, "q3")
    rig.turn(20_000)
    assert [body for _, _, body in deliveries(other)] == [LARGE]


@pytest.mark.parametrize("delivery_mode", [1, 2], ids=["transient", "persistent"])
def test_a_large_body_is_not_read_back_for_them(rig: BrokerRig, delivery_mode: int) -> None:
    c = rig.client().open()
    bound(c, "a", "b", "c", x_max_length=1, x_overflow="reject-publish")
    before = rig.fs.reads
    publish(rig, c, LARGE, delivery_mode=delivery_mode)
    assert rig.fs.reads == before
    publish(rig, c, LARGE, delivery_mode=delivery_mode)  # all refuse
    assert rig.fs.reads == before
    assert depths(rig, "a", "b", "c") == [1, 1, 1]
    assert store_of(rig, delivery_mode).live_count == 1


def test_they_share_a_small_body_and_its_record(rig: BrokerRig) -> None:
    c = rig.client().open()
    bound(c, "a", "b", "c", x_max_length=1, x_overflow="reject-publish")
    bound(c, "free")
    before = rig.vhost.engine.log.last_lsn
    publish(rig, c, SMALL, delivery_mode=2)
    assert rig.vhost.engine.log.last_lsn == before + 1
    assert store_of(rig, 2).live_count == 1


def test_only_those_that_are_full_refuse(rig: BrokerRig) -> None:
    c = rig.client().open()
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    declared(c, "dead")
    bound(c, "two", x_max_length=2, x_overflow="reject-publish")
    bound(
        c, "one", x_max_length=1, x_overflow="reject-publish-dlx", x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )  # fmt: skip
    for _ in range(2):
        publish(rig, c, SMALL, delivery_mode=2)
    assert depths(rig, "two", "one", "dead") == [2, 1, 1]
    assert len(c.methods(BasicNack)) == 1


def test_dead_letters_of_a_refusal_come_after_the_message(rig: BrokerRig) -> None:
    """The queue for them has room for one, and gets the message itself."""
    c = rig.client().open()
    for name in ("a", "dead"):
        bound(
            c, name, x_max_length=1 if name == "dead" else 0, x_overflow="reject-publish-dlx",
            x_dead_letter_exchange="", x_dead_letter_routing_key="dead",
        )  # fmt: skip
    publish(rig, c, b"x", delivery_mode=2)
    assert depths(rig, "a", "dead") == [0, 1]
    (first,) = classic(rig.vhost.queues["dead"]).amq.browse(None, 10)
    assert b"x-death" not in first.message.header


def test_what_a_ring_pushes_out_finds_the_limit_of_a_queue_that_was_asked(rig: BrokerRig) -> None:
    c = rig.client().open()
    ring = {
        "x_max_length": 1, "x_dead_letter_exchange": "", "x_dead_letter_routing_key": "full",
    }  # fmt: skip
    bound(c, "ring", **ring)
    c.publish(1, "", "ring", b"old", delivery_mode=2)
    bound(c, "full", x_max_length=1, x_overflow="reject-publish", x_message_ttl=60_000)
    publish(rig, c, b"new", delivery_mode=2)
    assert depths(rig, "ring", "full") == [1, 1]
    (first,) = classic(rig.vhost.queues["full"]).amq.browse(None, 10)
    assert first.message.body == b"new"


def test_a_ttl_of_zero_reads_no_large_body(rig: BrokerRig) -> None:
    c = rig.client().open()
    bound(c, "a", "b", x_message_ttl=0)
    before = rig.fs.reads
    publish(rig, c, LARGE)
    assert rig.fs.reads == before
    assert depths(rig, "a", "b") == [0, 0]
    other = rig.client().open()
    consuming(other, "a")
    publish(rig, c, LARGE)
    assert depths(rig, "a", "b") == [1, 0]
    rig.turn(20_000)
    assert [body for _, _, body in deliveries(other)] == [LARGE]


def test_queues_with_a_ttl_of_their_own_share_it_too(rig: BrokerRig) -> None:
    """Messages that differ have records of their own, and still one body in the store."""
    c = rig.client().open()
    for i in range(3):
        c.call(
            1,
            QueueDeclare(queue=f"q{i}", durable=True, arguments={"x-message-ttl": 1000 * (i + 1)}),
            QueueDeclareOk,
        )
        c.call(1, QueueBind(queue=f"q{i}", exchange="amq.fanout"), QueueBindOk)
    publish(rig, c, LARGE, delivery_mode=2)
    assert store_of(rig, 2).live_count == 1
    rig.tick(1.5)
    assert depths(rig, "q0", "q1", "q2") == [0, 1, 1]


def refusing(c: RigClient, *names: str, **limits: object) -> None:
    """Queues at amq.fanout whose dead letters go to a queue of each, and to `all`."""
    for name in names:
        dead = f"dead-{name}"
        for target in (dead, "all"):
            declared(c, target)
            c.call(1, QueueBind(queue=target, exchange="amq.direct", routing_key=dead), QueueBindOk)
        bound(
            c, name, x_dead_letter_exchange="amq.direct", x_dead_letter_routing_key=dead, **limits
        )


REFUSALS = {
    "refused": {"x_max_length": 0, "x_overflow": "reject-publish-dlx"},
    "expired": {"x_message_ttl": 0},
}


@pytest.mark.parametrize("limits", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("delivery_mode", [1, 2], ids=["transient", "persistent"])
def test_a_large_body_is_not_read_for_dead_letters_either(
    rig: BrokerRig, limits: dict[str, object], delivery_mode: int
) -> None:
    c = rig.client().open()
    refusing(c, "q0", "q1", **limits)
    before = rig.fs.reads
    publish(rig, c, LARGE, delivery_mode=delivery_mode)
    assert rig.fs.reads == before
    assert depths(rig, "all", "dead-q0", "dead-q1") == [2, 1, 1]


@pytest.mark.parametrize("limits", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("has_other", [False, True], ids=["alone", "one-takes-it"])
@pytest.mark.parametrize("delivery_mode", [1, 2], ids=["transient", "persistent"])
@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
def test_dead_letters_of_a_message_share_its_body(
    rig: BrokerRig, limits: dict[str, object], has_other: bool, delivery_mode: int, body: bytes
) -> None:
    c = rig.client().open()
    names = [f"q{i}" for i in range(5)]
    refusing(c, *names, **limits)
    if has_other:
        bound(c, "takes")
    store = store_of(rig, delivery_mode)
    before = store.total_bytes
    publish(rig, c, body, delivery_mode=delivery_mode)
    assert depths(rig, "all", *[f"dead-{name}" for name in names]) == [5, 1, 1, 1, 1, 1]
    assert store.live_count <= 1
    assert store.total_bytes - before < 1.1 * len(body)
    if delivery_mode == 2:
        assert store.live_count == 1
        rig.clients = []
        rig.vhost.engine.sync()
        rig.fs = rig.fs.crash("lost")
        rig.start()
        c = rig.client().open()
        for name, n in (("all", 5), ("dead-q3", 1)):
            found = c.call(1, QueueDeclare(queue=name, passive=True), QueueDeclareOk)
            assert found.message_count == n
    consuming(c, "all")
    rig.turn(20_000)
    assert [found for _, _, found in deliveries(c)] == [body] * 5
    for name in names:
        c.call(1, QueuePurge(queue=f"dead-{name}"), QueuePurgeOk)
    c.call(1, QueueDelete(queue="all"), QueueDeleteOk)
    for _ in range(20):  # purged slots are read in slices
        rig.vhost.engine.sync()
        rig.tick()
    assert store_of(rig, delivery_mode).live_count == has_other
