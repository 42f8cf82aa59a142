"""What one user has of topology, channels and consumers leaves room for the others."""

import json
import tracemalloc

import pytest

from penstock.access.limits import Limits
from penstock.access.permissions import Identity, everything
from penstock.broker.usage import CLIENTS_PART, TOPOLOGY_PART
from penstock.codec.spec import (
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ConnectionClose,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    PenstockCall,
    PenstockCallError,
    PenstockCallOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient

MIB = 1 << 20
MEMORY_BYTES = 4 * MIB
TOPOLOGY_BYTES = MEMORY_BYTES // TOPOLOGY_PART
CLIENT_BYTES = MEMORY_BYTES // CLIENTS_PART
LARGE = {"s": "x" * 8000}


def plain(name: str) -> Identity:
    """A user without a tag who may do everything in the vhost."""
    return Identity(name, frozenset(), ".*", ".*", ".*")


def declared_until_refused(client: RigClient, count: int = 2000, **options: bool) -> ChannelClose:
    """Declare queues until that is refused; return the refusal."""
    for number in range(count):
        name = f"{client.handler.identity.name}.{number}"
        client.send(1, QueueDeclare(queue=name, nowait=True, **options))
        client.rig.turn()
        if closed := client.methods(ChannelClose):
            client.send(1, ChannelCloseOk())
            client.open(1)
            return closed[0]
    raise AssertionError("nothing was refused")


def consumed_until_refused(client: RigClient, count: int = 2000) -> ChannelClose:
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for number in range(count):
        client.send(
            1, BasicConsume(queue="q", consumer_tag=str(number), arguments=LARGE, nowait=True)
        )
        client.rig.turn()
        if closed := client.methods(ChannelClose):
            return closed[0]
    raise AssertionError("nothing was refused")


def test_a_user_has_no_more_topology_than_is_left_for_the_others() -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    greedy, modest = rig.client(plain("greedy")).open(1), rig.client(plain("modest")).open(1)
    close = declared_until_refused(greedy)
    assert close.reply_code == 406
    assert "cannot declare queue 'greedy." in close.reply_text
    assert "queues, exchanges and bindings of user 'greedy' take 1020 KiB of memory" in (
        close.reply_text
    )
    own = rig.vhost.usage.topology.of("greedy")
    assert TOPOLOGY_BYTES // 2 - (64 << 10) < own < TOPOLOGY_BYTES // 2 + (64 << 10)
    declared_until_refused(modest)
    assert rig.vhost.usage.topology.of("modest") > TOPOLOGY_BYTES // 4 - (64 << 10)
    assert rig.vhost.topology_bytes < TOPOLOGY_BYTES * 7 // 8


@pytest.mark.parametrize("kind", ["exchange", "queue binding", "exchange binding"])
def test_exchanges_and_bindings_count_for_their_user(kind: str) -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    client = rig.client(plain("u")).open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    client.call(1, ExchangeDeclare(exchange="x", type="fanout"), ExchangeDeclareOk)
    before = rig.vhost.usage.topology.of("u")
    for number in range(1000):
        key = str(number)
        if kind == "exchange":
            client.send(1, ExchangeDeclare(exchange=key, type="direct", arguments=LARGE))
        elif kind == "queue binding":
            client.send(1, QueueBind(queue="q", exchange="x", routing_key=key, arguments=LARGE))
        else:
            client.send(
                1,
                ExchangeBind(destination="x", source="x", routing_key=key, arguments=LARGE),
            )
        client.rig.turn()
        if client.methods(ChannelClose):
            break
        assert client.methods(ExchangeDeclareOk) or client.methods(
            QueueBindOk if kind == "queue binding" else ExchangeBindOk
        )
    else:
        raise AssertionError("nothing was refused")
    held = rig.vhost.usage.topology.of("u") - before
    assert TOPOLOGY_BYTES * 3 // 8 < held < TOPOLOGY_BYTES // 2 + (32 << 10)  # one more at most


def test_what_is_deleted_counts_no_more() -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    client = rig.client(plain("u")).open(1)
    for _ in range(2):
        declared_until_refused(client, exclusive=True)
        client.lose()
        assert rig.vhost.usage.topology.of("u") == 0
        client = rig.client(plain("u")).open(1)
    client.call(
        1, ExchangeDeclare(exchange="x", type="direct", auto_delete=True), ExchangeDeclareOk
    )
    client.call(1, QueueDeclare(queue="q", arguments={"x-max-priority": 9}), QueueDeclareOk)
    client.call(1, QueueBind(queue="q", exchange="x", routing_key="a"), QueueBindOk)
    client.publish(1, "x", "a", b"", priority=9)  # opens a part of the queue
    rig.turn()
    client.call(1, QueueDelete(queue="q"), QueueDeleteOk)
    assert rig.vhost.usage.topology.of("u") == 0


def test_an_administrator_may_take_all_room_of_the_topology() -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    close = declared_until_refused(rig.client(everything("root")).open(1))
    assert "half of the vhost's memory" in close.reply_text
    assert rig.vhost.topology_bytes >= TOPOLOGY_BYTES


def test_what_an_older_penstock_has_stored_counts_for_nobody() -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    client = rig.client(plain("u")).open(1)
    for number in range(60):
        client.call(1, QueueDeclare(queue=f"d{number}", durable=True), QueueDeclareOk)
    rig.vhost.engine.routing.creators.clear()  # it did not store them
    rig.restart()
    assert rig.vhost.usage.topology.of("u") == 0
    declared_until_refused(rig.client(plain("u")).open(1))
    assert rig.vhost.topology_bytes < TOPOLOGY_BYTES


def test_a_user_has_no_more_consumers_than_are_left_for_the_others() -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    greedy, modest = rig.client(plain("greedy")).open(1), rig.client(plain("modest")).open(1)
    close = consumed_until_refused(greedy)
    assert close.reply_code == 406
    assert "cannot add a consumer: channels and consumers of user 'greedy' take" in (
        close.reply_text
    )
    assert rig.vhost.usage.clients.of("greedy") < CLIENT_BYTES // 10  # they ended with the channel
    greedy.send(1, ChannelCloseOk())
    greedy.open(1)
    for _ in range(40):
        greedy.call(1, BasicConsume(queue="q", arguments=LARGE), BasicConsumeOk)
    assert CLIENT_BYTES // 3 < rig.vhost.usage.clients.of("greedy") < CLIENT_BYTES // 2
    modest.call(1, BasicConsume(queue="q", arguments=LARGE), BasicConsumeOk)
    greedy.lose()
    modest.lose()
    assert rig.vhost.usage.client_bytes == 0


def test_a_user_has_no_more_channels_than_are_left_for_the_others() -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    client = rig.client(plain("u"))
    for number in range(1, 400):
        client.send(number, ChannelOpen())
        rig.turn()
        if closed := client.methods(ConnectionClose):
            break
    assert closed[0].reply_code == 530
    assert "cannot open a channel: channels and consumers of user 'u' take" in (
        closed[0].reply_text
    )
    assert 100 < number < 200
    rig.client(plain("v")).open(1)


def test_what_lasts_counts_as_three_quarters_of_the_memory_at_most() -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    rig.vhost.tick()
    before = rig.vhost.monitor.other_bytes
    rig.vhost.usage.topology.add("u", 0)
    rig.vhost.usage.clients.add("u", 8 * MEMORY_BYTES)
    rig.vhost.tick()
    assert rig.vhost.monitor.other_bytes - before <= MEMORY_BYTES * 3 // 4
    assert rig.vhost.blocked_reason == ""


@pytest.mark.parametrize(
    ("tag_chars", "table", "key"),
    [(5, {}, "k"), (5, LARGE, "k"), (250, {}, "k"), (5, {}, "k" * 250), (5, {}, "k" * 100)],
    ids=["plain", "arguments", "tag", "long key", "key"],
)
def test_consumers_are_counted_as_what_they_take(
    tag_chars: int, table: dict[str, object], key: str
) -> None:
    rig = BrokerRig(memory_bytes=1024 * MIB)
    client = rig.client(plain("u")).open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    rig.vhost.bind_queue("q", "amq.fanout", "")

    def add(count: int, prefix: str) -> None:
        for number in range(count):
            tag = f"{prefix}{number}".ljust(tag_chars, "t")
            client.send(1, BasicConsume(
                queue="q", consumer_tag=tag, arguments=table, no_ack=True, nowait=True
            ))  # fmt: skip
        for _ in range(2 * count):
            client.publish(1, "amq.fanout", key, b"")
        rig.turn()
        client.outlet.sent.clear()

    add(10, "w")
    before = rig.vhost.usage.client_bytes
    tracemalloc.start()
    try:
        add(100, "")
        real = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    counted = rig.vhost.usage.client_bytes - before
    assert real * 0.9 <= counted <= real * 3


def test_bindings_between_exchanges_of_a_user_have_a_limit() -> None:
    """Each may cost every message that others publish to an exchange before it."""
    rig = BrokerRig(limits=Limits(user_exchange_bindings=3))
    plain_user, other, admin = (
        rig.client(who).open() for who in (plain("u"), plain("v"), everything("root"))
    )
    for number in range(5):
        plain_user.call(1, ExchangeDeclare(exchange=f"x{number}", type="fanout"), ExchangeDeclareOk)

    def bind(client: RigClient, number: int) -> bool:
        client.send(1, ExchangeBind(destination=f"x{number}", source="amq.topic"))
        client.rig.turn()
        if closed := client.methods(ChannelClose):
            assert closed[0].reply_code == 406
            assert "'u' has as many bindings between exchanges as allowed (3)" in (
                closed[0].reply_text
            )
            client.send(1, ChannelCloseOk())
            client.open(1)
            return False
        return True

    assert [bind(plain_user, number) for number in (0, 1, 2, 3, 0)] == [True] * 3 + [False, True]
    assert bind(other, 3)
    assert all(bind(admin, number) for number in range(5))
    plain_user.call(1, ExchangeUnbind(destination="x1", source="amq.topic"), ExchangeUnbindOk)
    assert bind(plain_user, 1)
    assert rig.vhost.router.between_exchanges == {"u": 3, "v": 1, "root": 1}


def named_until_refused(
    client: RigClient, stream: str, count: int = 5000, *, consumes: bool = False
) -> tuple[int, bytes]:
    """Make named readers of a stream until that is refused; their number, and the refusal."""
    for number in range(count):
        name = f"{client.handler.identity.name}.{number}".ljust(200, ".")
        if consumes:
            found = {"x-stream-reader": name, "x-stream-offset": "next"}
            client.call(1, BasicQos(prefetch_count=5), BasicQosOk)
            client.send(1, BasicConsume(queue=stream, consumer_tag="t", arguments=found))
            client.rig.turn()
            if closed := client.methods(ChannelClose):
                return number, closed[0].reply_text.encode()
            client.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
        else:
            args = {"queue": stream, "reader": name, "offsets": {"0": 0}}
            given = json.dumps(args).encode()
            client.send(1, PenstockCall(op="set_stream_reader", arguments=given))
            client.rig.turn()
            if refusal := client.methods(PenstockCallError):
                return number, refusal[0].text
            client.methods(PenstockCallOk)
    raise AssertionError("nothing was refused")


@pytest.mark.large
@pytest.mark.parametrize("consumes", [False, True])
def test_named_readers_are_counted_for_who_made_them(*, consumes: bool) -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    u, v = rig.client(plain("u")).open(), rig.client(plain("v")).open()
    arguments = {"x-queue-type": "stream"}
    v.call(1, QueueDeclare(queue="s", durable=True, arguments=arguments), QueueDeclareOk)
    before = rig.vhost.topology_bytes
    count, text = named_until_refused(u, "s", consumes=consumes)
    assert b"cannot keep another reader of 's'" in text
    assert b"of user 'u' take" in text
    assert 100 < count < TOPOLOGY_BYTES // 2 // 700 + 10
    assert rig.vhost.usage.topology.of("u") == rig.vhost.topology_bytes - before
    if consumes:
        u.send(1, ChannelCloseOk())
        u.open(1)
    given = json.dumps({"queue": "s", "reader": "mine", "offsets": {"0": 0}}).encode()
    v.call(1, PenstockCall(op="set_stream_reader", arguments=given), PenstockCallOk)
    known = f"{'u.0'.ljust(200, '.')}"
    for op, args in (
        ("set_stream_reader", {"offsets": {"0": 1}}), ("delete_stream_reader", {}),
    ):  # fmt: skip
        data = json.dumps({"queue": "s", "reader": known, **args}).encode()
        u.call(1, PenstockCall(op=op, arguments=data), PenstockCallOk)
    assert rig.vhost.usage.topology.of("u") == (count - 1) * 700
    for how in ("killed", "stopped"):
        restarted(rig, how)
        assert rig.vhost.usage.topology.of("u") == (count - 1) * 700
    client = rig.client(plain("u")).open()
    more, _ = named_until_refused(client, "s", consumes=consumes)
    assert more <= count + 1
    client = rig.client().open()
    client.call(1, QueueDelete(queue="s"), QueueDeleteOk)
    assert rig.vhost.topology_bytes < before
    assert not [key for key in rig.vhost.engine.routing.creators if key.startswith(b"r")]


def restarted(rig: BrokerRig, how: str) -> None:
    if how == "killed":
        rig.vhost.engine.sync()
        rig.clients = []
        rig.fs = rig.fs.crash("kept")
        rig.start()
    else:
        rig.restart()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_what_a_user_has_declared_counts_after_a_restart(how: str) -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    client = rig.client(plain("u")).open(1)
    client.call(1, ExchangeDeclare(exchange="x", type="topic", durable=True), ExchangeDeclareOk)
    client.call(
        1, QueueDeclare(queue="p", durable=True, arguments={"x-max-priority": 3}), QueueDeclareOk
    )
    client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    client.send(
        1, QueueDeclare(queue="s", durable=True, arguments={"x-queue-type": "stream"})
    )  # its directories are made first
    rig.turn()
    for name in ("p", "q", "s"):
        client.call(1, QueueBind(queue=name, exchange="x", routing_key=f"a.{name}.*"), QueueBindOk)
    held = rig.vhost.usage.topology.of("u")
    restarted(rig, how)
    topology = rig.vhost.usage.topology
    assert held // 2 < topology.of("u") <= held  # queues that are not open take less
    client = rig.client(plain("u")).open(1)
    for name in ("p", "q"):
        client.call(1, QueueDeclare(queue=name, passive=True), QueueDeclareOk)
    assert topology.of("u") == held
    restarted(rig, how)  # the checkpoint has it, too
    client = rig.client(plain("other")).open(1)
    for name in ("p", "q", "s"):
        client.call(1, QueueDelete(queue=name), QueueDeleteOk)
    client.call(1, ExchangeDelete(exchange="x"), ExchangeDeleteOk)
    assert rig.vhost.usage.topology.of("u") == 0
    assert not rig.vhost.engine.routing.creators


def test_a_user_gets_no_second_share_by_a_restart() -> None:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    declared_until_refused(rig.client(plain("greedy")).open(1), durable=True)
    own = rig.vhost.usage.topology.of("greedy")
    for _ in range(3):
        restarted(rig, "killed")
        declared_until_refused(rig.client(plain("greedy")).open(1), durable=True)
        assert rig.vhost.usage.topology.of("greedy") < own * 1.1
    client = rig.client(plain("modest")).open(1)
    client.call(1, QueueDeclare(queue="mine", durable=True), QueueDeclareOk)
