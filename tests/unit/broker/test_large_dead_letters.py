"""Large dead letters for streams are sent in steps: whole or not at all, and in order."""

from dataclasses import replace

import pytest

from penstock.broker import background_tasks, queue_table
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.topology import LargeLetters
from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicNack,
    BasicReject,
    ChannelClose,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import declared
from tests.helpers.builds import pure_only
from tests.helpers.reads import Reads
from tests.helpers.tiny_engine import OPTIONS
from tests.helpers.vhost_rig import classic
from tests.unit.broker.test_large_bodies import LARGE, open_bodies, own_files, reads

__all__ = ["reads"]

STREAMS = ["s0", "s1", "s2"]


@pytest.fixture
def rig() -> BrokerRig:
    rig = BrokerRig(storage=replace(OPTIONS, tx_part_bytes=1 << 20, tx_bytes_max=64 << 20))
    client = rig.client().open()
    method = ExchangeDeclare(exchange="all", type="fanout", durable=True)
    client.call(1, method, ExchangeDeclareOk)
    for name in [*STREAMS, "t"]:
        declared(client, name, x_queue_type="classic" if name == "t" else "stream")
        client.call(1, QueueBind(queue=name, exchange="all"), QueueBindOk)
    declared(client, "q", x_dead_letter_exchange="all")
    return rig


def got(rig: BrokerRig, *bodies: bytes, queue: str = "q") -> RigClient:
    """A client that has got messages with these bodies from the queue."""
    client = rig.client().open()
    for body in bodies:
        client.publish(1, "", queue, body, delivery_mode=2)
        client.send(1, BasicGet(queue=queue))
        rig.turn()
    assert client.bodies() == list(bodies)
    return client


def records(rig: BrokerRig) -> list[list[int]]:
    """The sizes of the records that can be read in each stream."""
    found: list[list[int]] = []
    for name in STREAMS:
        stream = rig.vhost.table.usable(name)
        assert isinstance(stream, BrokerStream)
        queue = stream.parts[0].queue
        found.append([len(one.payload) for one in queue.read(queue.first_offset, 99, 1 << 30)])
    return found


def depth(rig: BrokerRig, name: str = "q") -> int:
    return classic(rig.vhost.table.usable(name)).amq.depth()


def crashed(rig: BrokerRig, mode: str) -> BrokerRig:
    """What a start after a crash finds."""
    return BrokerRig(fs=rig.fs.crash(mode), storage=rig.settings.storage)


@pytest.fixture
def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)


def test_all_targets_have_it_and_its_queue_does_not(rig: BrokerRig) -> None:
    client = got(rig, LARGE, b"small")
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    client.send(1, BasicReject(delivery_tag=2, requeue=False))
    rig.turn()
    for _ in range(2):
        assert records(rig) == [[len(LARGE), 5]] * 3, "in the order of the rejections"
        assert (depth(rig), depth(rig, "t")) == (0, 2)
        rig.restart()
    client = rig.client().open()
    client.send(1, BasicGet(queue="t", no_ack=True))
    rig.turn()
    assert client.bodies() == [LARGE]
    assert open_bodies(rig) == []


@pure_only  # a constant is replaced
@pytest.mark.usefixtures("one_step_a_turn")
@pytest.mark.parametrize("mode", ["killed", "lost", "kept"])
def test_after_a_crash_in_between_all_have_it_or_its_queue(rig: BrokerRig, mode: str) -> None:
    client = got(rig, LARGE)
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    found: set[bool] = set()
    log = rig.vhost.engine.log
    while depth(rig) or log.durable_lsn < log.last_lsn:
        rig.vhost.turn()
        if not depth(rig):
            log.request_sync()
        after = crashed(rig, mode)
        is_there = depth(after) == 1
        assert records(after) == ([[]] if is_there else [[len(LARGE)]]) * 3
        assert depth(after, "t") == (not is_there)
        found.add(is_there)
        rig.vhost.completed()
    found.add(depth(crashed(rig, mode)) == 1)
    assert found == {False, True}


@pure_only  # a constant is replaced
@pytest.mark.usefixtures("one_step_a_turn")
def test_no_step_reads_logs_or_writes_all_of_it(
    rig: BrokerRig, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = got(rig, LARGE * 3)
    reads.longest = 0
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    log, most = rig.vhost.engine.log, 0
    while rig.vhost.turn() or depth(rig):
        rig.vhost.completed()
        before = log.appended_bytes
        if rig.vhost.turn():
            most = max(most, log.appended_bytes - before)
    assert len(LARGE) * 3 <= most < len(LARGE) * 4, "one stream in each"
    assert reads.longest <= 1 << 20
    rig.turn()
    assert records(rig) == [[len(LARGE) * 3]] * 3


@pytest.mark.parametrize("what", ["deleted", "purged", "stopped", "stream deleted"])
def test_what_becomes_of_the_queue_meanwhile(rig: BrokerRig, what: str) -> None:
    client = got(rig, LARGE, b"small")
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    client.send(1, BasicReject(delivery_tag=2, requeue=False))
    assert depth(rig) == 2
    if what == "deleted":
        client.send(1, QueueDelete(queue="q"))
        rig.turn()
        assert len(client.methods(QueueDeleteOk)) == 1
    elif what == "purged":
        client.call(1, QueuePurge(queue="q"), QueuePurgeOk)
    elif what == "stream deleted":
        client.call(1, QueueDelete(queue="s1"), QueueDeleteOk)
        assert depth(rig) == 0
        assert depth(rig, "t") == 2
        return
    else:
        rig.restart()
    assert records(rig) == [[len(LARGE), 5]] * 3
    assert depth(rig, "t") == 2


@pure_only  # a constant is replaced
@pytest.mark.usefixtures("one_step_a_turn")
@pytest.mark.parametrize("why", ["refused", "expired"])
def test_what_dies_before_it_enters_its_queue_goes_in_steps_too(
    rig: BrokerRig, reads: Reads, why: str
) -> None:
    client = rig.client().open()
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    limits = {"x_max_length": 0, "x_overflow": "reject-publish-dlx"}
    if why == "expired":
        limits = {"x_message_ttl": 0}
    declared(client, "src", x_dead_letter_exchange="all", **limits)
    client.publish(1, "", "src", LARGE, delivery_mode=2)
    log, most = rig.vhost.engine.log, 0
    assert log.appended_bytes < 1 << 20
    for _ in range(50):
        before = log.appended_bytes
        rig.vhost.turn()
        rig.vhost.completed()
        most = max(most, log.appended_bytes - before)
    assert len(LARGE) <= most < 2 * len(LARGE), "one stream in each"
    assert reads.longest <= 1 << 20
    rig.turn()
    assert records(rig) == [[len(LARGE)]] * 3
    assert (depth(rig, "src"), depth(rig, "t")) == (0, 1)
    assert len(client.methods(BasicNack)) == (why == "refused")
    assert len(client.methods(BasicAck)) == (why == "expired")
    assert open_bodies(rig) == []


@pytest.mark.parametrize("why", ["expired", "maxlen"])
def test_expired_and_surplus_messages_go_in_order_too(rig: BrokerRig, why: str) -> None:
    client = rig.client().open()
    limits = {"x_message_ttl": 1000} if why == "expired" else {"x_max_length": 1}
    declared(client, "src", x_dead_letter_exchange="all", **limits)
    for body in (LARGE, b"one", LARGE + b"x", b"three"):
        client.publish(1, "", "src", body, delivery_mode=2)
    if why == "expired":
        rig.tick(2.0)
    else:
        client.publish(1, "", "src", b"last", delivery_mode=2)
    for _ in range(8):
        rig.tick()
    assert records(rig) == [[len(LARGE), 3, len(LARGE) + 1, 5]] * 3
    assert depth(rig, "src") == (why == "maxlen")


@pure_only  # a constant is replaced
@pytest.mark.usefixtures("one_step_a_turn")
@pytest.mark.parametrize("how", ["deleted", "closed", "exclusive", "unused"])
def test_a_deletion_waits_until_they_are_sent(rig: BrokerRig, how: str) -> None:
    client = rig.client().open()
    given = {"x-expires": 5000} if how == "unused" else {}
    declare = QueueDeclare(
        queue="mine", durable=how != "exclusive", exclusive=how == "exclusive",
        arguments={"x-dead-letter-exchange": "all", **given},
    )  # fmt: skip
    client.call(1, declare, QueueDeclareOk)
    client.publish(1, "", "mine", LARGE, delivery_mode=2)
    client.send(1, BasicGet(queue="mine"))
    rig.turn()
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    if how in ("deleted", "closed"):
        client.send(1, QueueDelete(queue="mine"))
        if how == "closed":
            client.send(1, ChannelClose())
    elif how == "exclusive":
        client.handler.lost()
    else:
        rig.clock.advance(6.0)
        rig.vhost.tick()
    log, most = rig.vhost.engine.log, 0
    for _ in range(50):
        before = log.appended_bytes
        if rig.vhost.table.has("mine"):
            assert client.methods(QueueDeleteOk) == []
        rig.vhost.turn()
        rig.vhost.completed()
        most = max(most, log.appended_bytes - before)
    assert most < 2 * len(LARGE), "one stream in each"
    rig.turn()
    rig.tick(20.0)
    assert not rig.vhost.table.has("mine")
    assert records(rig) == [[len(LARGE)]] * 3
    assert len(client.methods(QueueDeleteOk)) == (how == "deleted")


@pure_only  # a constant is replaced
@pytest.mark.usefixtures("one_step_a_turn")
def test_a_deletion_does_not_wait_for_room_on_the_disk_for_ever(rig: BrokerRig) -> None:
    client = got(rig, LARGE)
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    for _ in range(8):
        rig.vhost.turn()
        rig.vhost.completed()
    assert depth(rig) == 1
    rig.fs.capacity = rig.fs.used_bytes()
    client.send(1, QueueDelete(queue="q"))
    for _ in range(20):
        rig.tick(1.0)
    assert not rig.vhost.table.has("q")
    assert len(client.methods(QueueDeleteOk)) == 1


@pure_only  # a method is replaced
@pytest.mark.parametrize("how", ["exclusive", "auto-delete"])
def test_nor_does_the_end_of_a_queue_with_its_connection(
    rig: BrokerRig, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.client().open()
    declare = QueueDeclare(
        queue="mine", durable=True, exclusive=how == "exclusive", auto_delete=how == "auto-delete",
        arguments={"x-dead-letter-exchange": "all"},
    )  # fmt: skip
    client.call(1, declare, QueueDeclareOk)
    client.call(1, BasicConsume(queue="mine"), BasicConsumeOk)
    client.publish(1, "", "mine", LARGE, delivery_mode=2)
    rig.turn()

    def waits(_letters: LargeLetters) -> int:
        return background_tasks.ASLEEP

    monkeypatch.setattr(LargeLetters, "step", waits)
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    client.handler.lost()
    for _ in range(int(queue_table.LETTERS_S) - 1):
        rig.tick(1.0)
        assert rig.vhost.table.has("mine")
    rig.tick(2.0)
    assert "mine" not in rig.vhost.queues


def test_a_message_that_cannot_be_read_stays_pending(rig: BrokerRig) -> None:
    client = got(rig, LARGE, b"small")
    (path,) = own_files(rig)
    rig.fs.damage_flip(path, len(LARGE) // 2)
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    client.send(1, BasicReject(delivery_tag=2, requeue=False))
    rig.turn()
    assert [text for kind, text in rig.events if kind == "corruption" and path in text]
    assert records(rig) == [[5]] * 3
    assert depth(rig) == 1


@pure_only  # a constant is replaced
@pytest.mark.usefixtures("one_step_a_turn")
@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.parametrize("steps", [0, 4, 8, 12])
def test_on_a_full_disk_it_stays_or_goes_on_when_there_is_room(
    rig: BrokerRig, steps: int, is_stopped: bool
) -> None:
    client = got(rig, LARGE)
    client.send(1, BasicReject(delivery_tag=1, requeue=False))
    for _ in range(steps):
        rig.vhost.turn()
        rig.vhost.completed()
    rig.fs.capacity = rig.fs.used_bytes()
    for _ in range(20):
        rig.vhost.turn()
        rig.vhost.completed()
    is_there = depth(rig) == 1
    rig.fs.capacity = None
    if is_stopped:
        rig.restart()
    for _ in range(8):
        rig.tick(1.0)
    if depth(rig):
        assert is_there
        assert records(rig) == [[]] * 3
    else:
        assert records(rig) == [[len(LARGE)]] * 3
        assert depth(rig, "t") == 1
