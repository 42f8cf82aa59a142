"""What one user can have of a vhost, and what happens beyond that: limits, transactions, bodies."""

from dataclasses import replace

import pytest

from penstock.access.limits import Limits
from penstock.access.permissions import everything
from penstock.broker.broker_queue import QUEUE_SLICE
from penstock.broker.channel import UNACKED_BYTES
from penstock.broker.dispatch import TURN_SLICE
from penstock.broker.usage import CHANNEL_BYTES, CONNECTION_BYTES
from penstock.clock import ManualClock, date
from penstock.codec.frames import content_frames, method_frame
from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    TxCommit,
    TxCommitOk,
    TxSelect,
    TxSelectOk,
)
from penstock.errors import RESOURCE_ERROR, ChannelError
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.list_rows import rows_of_list

MIB = 1 << 20


def rig_of(memory_bytes: int = 64 * MIB, **limits: int) -> BrokerRig:
    return BrokerRig(memory_bytes=memory_bytes, limits=replace(Limits(), **limits))


def opened_tx(rig: BrokerRig, user: str = "guest") -> RigClient:
    client = rig.client(everything(user)).open(1)
    client.call(1, TxSelect(), TxSelectOk)
    return client


def begun(client: RigClient, channel: int, size: int, frames: int) -> None:
    """The beginning of a message of `size` bytes: so many frames of 8,184 of them."""
    method = method_frame(channel, BasicPublish(routing_key="q").encode())
    content = content_frames(channel, b"\0\0", bytes(size), 8192)
    client.raw(method + content[: 8 + 14 + frames * 8192])


# --- limits by number ---


def test_a_user_opens_no_more_channels_than_the_limit() -> None:
    rig = rig_of(user_channels=3)
    first, other = rig.client(everything("u")), rig.client(everything("u"))
    stranger = rig.client(everything("v"))
    first.open(1).open(2)
    other.open(1)
    other.send(2, ChannelOpen())
    rig.turn()
    (close,) = other.methods(ConnectionClose)
    assert close.reply_code == 530
    assert "number of channels opened for user 'u' has reached the maximum allowed user limit" in (
        close.reply_text
    )
    stranger.open(1)
    other.lose()
    first.call(2, ChannelClose(), ChannelCloseOk)
    first.open(2).open(3)


def test_an_operator_sets_another_limit_for_one_user() -> None:
    rig = rig_of(user_channels=1)
    rig.vhost.limits.set({}, {"u": {"max-channels": 2}, "w": {"max-channels": -1}})
    rig.client(everything("u")).open(1).open(2)
    many = rig.client(everything("w"))
    for number in range(1, 20):
        many.open(number)
    client = rig.client(everything("v")).open(1)
    client.send(2, ChannelOpen())
    rig.turn()
    assert [close.reply_code for close in client.methods(ConnectionClose)] == [530]


def test_queues_of_a_vhost_have_a_limit() -> None:
    rig = rig_of(vhost_queues=2)
    client = rig.client().open(1)
    for name in ("a", "b"):
        client.call(1, QueueDeclare(queue=name, durable=name == "a"), QueueDeclareOk)
    client.call(1, QueueDeclare(queue="a", durable=True), QueueDeclareOk)  # it is there
    close = client.call(1, QueueDeclare(queue="c"), ChannelClose)
    assert close.reply_code == 406
    assert close.reply_text == (
        "PRECONDITION_FAILED - cannot declare queue 'c': queue limit in vhost '/' (2) is reached"
    )


def test_exchanges_and_bindings_of_a_vhost_have_a_limit() -> None:
    rig = rig_of(vhost_exchanges=10, vhost_bindings=1)  # nine are always there
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    client.call(1, ExchangeDeclare(exchange="x", type="direct"), ExchangeDeclareOk)
    close = client.call(1, ExchangeDeclare(exchange="y", type="direct"), ChannelClose)
    assert "cannot declare exchange 'y': exchange limit in vhost '/' (10) is reached" in (
        close.reply_text
    )
    client.send(1, ChannelCloseOk())
    client.open(1)
    for _ in range(2):
        client.call(1, QueueBind(queue="q", exchange="x", routing_key="k"), QueueBindOk)
    close = client.call(1, QueueBind(queue="q", exchange="x", routing_key="l"), ChannelClose)
    assert "binding limit in vhost '/' (1) is reached" in close.reply_text
    assert rig.vhost.router.binding_count == 1


def test_consumers_of_a_channel_have_a_limit() -> None:
    rig = rig_of(channel_consumers=2)
    client = rig.client().open(1).open(2)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for number in (1, 1, 2):
        client.call(number, BasicConsume(queue="q"), BasicConsumeOk)
    client.send(1, BasicConsume(queue="q"))
    rig.turn()
    (close,) = client.methods(ConnectionClose)
    assert (close.reply_code, close.reply_text) == (
        530, "NOT_ALLOWED - reached maximum (2) of consumers per channel"
    )  # fmt: skip


# --- limits by memory ---


def test_topology_takes_half_of_the_memory_at_most() -> None:
    rig = rig_of(memory_bytes=MIB)
    client = rig.client().open(1)
    for _ in range(100):
        client.send(1, QueueDeclare())
        rig.turn()
        if client.methods(ChannelClose):
            break
        assert client.methods(QueueDeclareOk)
    else:
        raise AssertionError("nothing was refused")
    assert MIB // 2 <= rig.vhost.topology_bytes < MIB // 2 + (64 << 10)
    rig.vhost.tick()
    assert rig.vhost.blocked_reason == ""


def test_what_lasts_is_counted_and_given_back() -> None:
    rig = rig_of()
    rig.vhost.tick()
    before = rig.vhost.monitor.other_bytes
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q", exclusive=True), QueueDeclareOk)
    client.call(1, ExchangeDeclare(exchange="x", type="fanout"), ExchangeDeclareOk)
    client.call(1, QueueBind(queue="q", exchange="x"), QueueBindOk)
    client.call(1, BasicConsume(queue="q"), BasicConsumeOk)
    rig.vhost.tick()
    held = rig.vhost.monitor.other_bytes - before
    assert CONNECTION_BYTES + CHANNEL_BYTES + 10_000 < held < 64 << 10
    client.lose()
    rig.vhost.topology.delete_exchange("x")
    rig.vhost.tick()
    assert rig.vhost.monitor.other_bytes == before
    assert rig.vhost.usage.client_bytes == 0


def test_many_small_transactions_of_one_user_end_none_of_others() -> None:
    rig = rig_of(memory_bytes=4 * MIB)
    eve, ada = rig.client(everything("eve")), rig.client(everything("ada")).open(1)
    ada.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    ada.call(1, TxSelect(), TxSelectOk)
    ada.publish(1, "", "q", bytes(100_000))
    for number in range(1, 100):
        eve.open(number)
        eve.call(number, TxSelect(), TxSelectOk)
        eve.publish(number, "", "q", bytes(20_000))
        rig.turn()
        closed = eve.methods(ChannelClose)
        if closed:
            break
    assert "other of user 'eve'" in closed[0].reply_text
    assert ada.methods(ChannelClose) == []
    ada.call(1, TxCommit(), TxCommitOk)
    assert rig.vhost.table.served["q"].len() == 1


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_an_open_transaction_is_bounded(delivery_mode: int) -> None:
    rig = rig_of(memory_bytes=4 * MIB)
    client = opened_tx(rig)
    client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    sent = 0
    while not (closed := client.methods(ChannelClose)):
        client.publish(1, "", "q", bytes(1000), delivery_mode=delivery_mode)
        sent += 1
        rig.turn()
        assert sent < 5000
    assert closed[0].reply_code == 506
    assert "the transaction holds" in closed[0].reply_text
    assert rig.vhost.usage.transactions.total == 0
    assert sent >= MIB // 1600
    client.send(1, ChannelCloseOk())
    client.open(1)
    assert client.call(1, QueueDeclare(queue="q", passive=True), QueueDeclareOk).message_count == 0


def test_the_largest_transaction_is_ended_first() -> None:
    rig = rig_of(memory_bytes=4 * MIB)
    large, small = opened_tx(rig, "u"), opened_tx(rig, "v")
    small.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    for _ in range(500):
        large.publish(1, "", "q", bytes(1000))
    for _ in range(450):
        small.publish(1, "", "q", bytes(1000))
    rig.turn()
    assert [close.reply_code for close in large.methods(ChannelClose)] == [506]
    small.call(1, TxCommit(), TxCommitOk)
    assert rig.vhost.usage.transactions.total == 0
    assert rig.vhost.table.usable("q").len() == 450  # type: ignore[union-attr]


def test_what_a_bounded_transaction_acknowledged_goes_back() -> None:
    rig = rig_of(memory_bytes=MIB)
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    n = 1500
    for _ in range(n):
        client.publish(1, "", "q", b"")
    client.call(1, TxSelect(), TxSelectOk)
    for _ in range(2):
        for _ in range(n // 2):
            client.send(1, BasicGet(queue="q"))
        client.send(1, BasicAck(delivery_tag=0, multiple=True))
    rig.turn()
    assert [close.reply_code for close in client.methods(ChannelClose)] == [506]
    assert rig.vhost.table.usable("q").len() == n  # type: ignore[union-attr]


# --- unfinished bodies ---


def test_larger_bodies_go_to_disk_while_they_arrive() -> None:
    """A sixteenth of the memory is for them; what is more does not stay in RAM."""
    rig = rig_of(memory_bytes=16 * MIB)
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for number in range(2, 22):
        client.open(number)
        begun(client, number, 300_000, 30)
    rig.vhost.tick()
    assert client.handler.connection.unfinished_bytes <= MIB + 20 * 100
    assert rig.vhost.body_room.taken_bytes <= MIB
    assert rig.vhost.blocked_reason == ""
    client.lose()
    assert rig.vhost.body_room.taken_bytes == 0


@pytest.mark.parametrize("persistent", [False, True])
def test_a_body_that_went_to_disk_is_delivered_whole(persistent: bool) -> None:
    rig = rig_of(memory_bytes=MIB)
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q", durable=persistent), QueueDeclareOk)
    client.call(1, BasicConsume(queue="q", no_ack=True), BasicConsumeOk)
    body = bytes(range(256)) * 400
    method = method_frame(1, BasicPublish(routing_key="q").encode())
    frames = content_frames(1, b"\x10\x00\x02" if persistent else b"\0\0", body, 8192)
    data = method + frames
    for at in range(0, len(data), 5000):
        client.raw(data[at : at + 5000])
    rig.turn()
    assert client.bodies() == [body]


def test_a_message_without_progress_ends_its_connection() -> None:
    rig = rig_of(stalled_body_s=60)
    idle, slow = rig.client().open(1), rig.client().open(1)
    begun(idle, 1, 20_000, 1)
    begun(slow, 1, 20_000, 1)
    frame = content_frames(1, b"\0\0", bytes(20_000), 108)[22:130]  # a body frame of 100 bytes
    for _ in range(8):
        rig.clock.advance(15)
        rig.vhost.tick()
        slow.raw(frame)
        rig.turn()
    (close,) = idle.methods(ConnectionClose)
    assert close.reply_code == 506
    assert "made no progress for 60 s" in close.reply_text
    assert (idle.outlet.must_close, slow.outlet.must_close) == (True, False)
    assert slow.methods(ConnectionClose) == []
    assert idle.handler.connection.unfinished_bytes == 0


def test_a_frame_without_progress_ends_its_connection() -> None:
    rig = rig_of(stalled_body_s=60)
    client = rig.client().open(1)
    client.raw(b"\x01\x00\x01\x00")
    for _ in range(8):
        rig.clock.advance(15)
        rig.vhost.tick()
        rig.turn()
    assert [close.reply_code for close in client.methods(ConnectionClose)] == [506]


def test_the_memory_alarm_names_the_largest_unfinished_messages() -> None:
    rig = rig_of(memory_bytes=8 * MIB)
    greedy, modest = rig.client(everything("u")), rig.client(everything("v")).open(1)
    for number in range(1, 41):
        greedy.open(number)
        begun(greedy, number, 60_000, 7)
    begun(modest, 1, 60_000, 3)
    rig.vhost.add_other(6 * MIB)
    rig.clock.advance(3)
    rig.vhost.tick()
    assert rig.vhost.blocked_reason == "memory"
    named = [text for kind, text in rig.events if kind == "memory_holders"]
    (text,) = named
    assert text.startswith("memory: unfinished messages: 2.2 MiB; channels and consumers: ")
    assert text.endswith(
        "; the largest unfinished messages: connection c0 of user 'u': 2.2 MiB; connection "
        "c1 of user 'v': 24 KiB"
    )


def test_the_largest_unfinished_messages_go_first() -> None:
    rig = rig_of(memory_bytes=2 * MIB)
    greedy, modest = rig.client(everything("u")), rig.client(everything("v")).open(1)
    for number in range(1, 41):
        greedy.open(number)
        begun(greedy, number, 60_000, 7)
    begun(modest, 1, 60_000, 3)
    rig.vhost.tick()
    rig.turn()
    (close,) = greedy.methods(ConnectionClose)
    assert "unfinished messages hold 2.2 MiB" in close.reply_text
    assert rig.vhost.unfinished_bytes < 30_000
    assert modest.methods(ConnectionClose) == []


# --- what waits for the disk ---


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_comes_behind_a_channel_that_waits_is_bounded_and_counted(is_closed: bool) -> None:
    """A durable declare waits for the disk; publishes and tables that follow are kept."""
    rig = rig_of()
    client = rig.client().open(1).open(2)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    before = rig.vhost.monitor.other_bytes
    client.send(1, QueueDeclare(queue="d", durable=True))
    for n in range(100):
        client.publish(1, "", "q", bytes(50_000))
        table: dict[str, object] = {f"{entry:x}": None for entry in range(20)}
        client.send(
            1, QueueBind(queue="q", exchange="amq.topic", routing_key=str(n), arguments=table)
        )
        if client.outlet.is_paused:
            break
    assert client.outlet.is_paused
    assert 70 < n < 80
    assert 4 * MIB < rig.vhost.monitor.other_bytes - before < 4 * MIB + 100_000
    if is_closed:
        client.handler.close_channel(1, ChannelError(406, "enough"))
    rig.turn()
    client.send(2, QueueDeclare(queue="q", passive=True))
    rig.turn()
    assert not client.outlet.is_paused
    assert rig.vhost.monitor.other_bytes == before
    assert rig.vhost.table.usable("q").len() == (0 if is_closed else n + 1)  # type: ignore[union-attr]


# --- runs of publishes ---


class HastyClock(ManualClock):
    """A millisecond passes whenever somebody asks for the time."""

    def monotonic(self) -> float:
        self.advance(0.001)
        return super().monotonic()


def fanned_out(queues: int) -> tuple[BrokerRig, RigClient, bytes]:
    """A rig, a client, and one publish that goes to so many queues."""
    rig = rig_of()
    client = rig.client().open(1).open(2)
    for n in range(queues):
        client.call(1, QueueDeclare(queue=f"q{n}"), QueueDeclareOk)
        client.call(1, QueueBind(queue=f"q{n}", exchange="amq.fanout"), QueueBindOk)
    rig.vhost.budget.clock = HastyClock()
    publish = method_frame(2, BasicPublish(exchange="amq.fanout").encode())
    return rig, client, publish + content_frames(2, b"\0\0", b"", 8192)


@pytest.mark.parametrize("ending", ["", "channel", "connection", "both"])
def test_a_run_to_many_queues_lets_others_in(ending: str) -> None:
    """300 messages to 40 queues in one read: another client is answered in between, nothing is
    lost, whatever comes behind them."""
    rig, client, publish = fanned_out(40)
    other = rig.client().open(1)
    data = publish * 300
    if ending in ("channel", "both"):
        data += method_frame(2, ChannelClose().encode())
    if ending in ("connection", "both"):
        data += method_frame(0, ConnectionClose().encode())
    client.raw(data)
    queue = rig.vhost.table.usable("q0")
    assert queue is not None
    first = queue.len()
    assert 60 < first < 150
    if not ending:
        other.send(1, QueueDeclare(queue="q0", passive=True))
        rig.vhost.turn()
        assert other.methods(QueueDeclareOk)[0].message_count < 300
    rig.turn()
    assert [rig.vhost.table.usable(f"q{n}").len() for n in range(40)] == [300] * 40  # type: ignore[union-attr]
    raw = b"".join(client.outlet.sent)
    assert (b"\x00\x14\x00\x29" in raw) is (ending in ("channel", "both"))
    assert (b"\x00\x0a\x00\x33" in raw) is (ending in ("connection", "both"))


def test_a_channel_that_fails_behind_its_own_close_is_closed_once() -> None:
    rig, client, publish = fanned_out(40)
    wrong = method_frame(2, BasicPublish(exchange="none").encode())
    wrong += content_frames(2, b"\0\0", b"", 8192)
    client.raw(publish * 300 + wrong + method_frame(2, ChannelClose().encode()))
    rig.turn()
    raw = b"".join(client.outlet.sent)
    assert raw.count(b"\x00\x14\x00\x28") == raw.count(b"\x00\x14\x00\x29") == 1
    assert rig.vhost.table.usable("q39").len() == 300  # type: ignore[union-attr]


# --- publish rate ---


def test_a_user_that_publishes_too_fast_is_read_later() -> None:
    rig = rig_of(user_publish_rate=100)
    fast, other = rig.client(everything("u")).open(1), rig.client(everything("v")).open(1)
    other.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for _ in range(90):
        fast.publish(1, "", "q", b"x")
    assert not fast.outlet.is_paused
    for _ in range(100):
        fast.publish(1, "", "q", b"x")
    assert fast.outlet.is_paused
    other.publish(1, "", "q", b"x")
    assert not other.outlet.is_paused
    assert rig.vhost.table.usable("q").len() == 191  # type: ignore[union-attr]  # nothing is lost
    rig.clock.advance(1.1)
    rig.vhost.tick()
    assert not fast.outlet.is_paused


def test_without_a_limit_nobody_is_read_later() -> None:
    rig = rig_of()
    client = rig.client().open(1)
    for _ in range(1000):
        client.publish(1, "", "q", b"x")
    assert not client.outlet.is_paused
    assert isinstance(client.call(2, ChannelOpen(), ChannelOpenOk), ChannelOpenOk)


# --- output that clients do not read ---


def test_output_that_waits_is_shared_between_users() -> None:
    rig = rig_of(memory_bytes=64 * MIB)  # 8 MiB of it for output
    vhost = rig.vhost
    before = vhost.monitor.other_bytes
    vhost.add_output("eve", 3 * MIB)
    assert vhost.has_output_room("eve")
    vhost.add_output("eve", 1 * MIB)
    assert not vhost.has_output_room("eve")  # half is left for the others
    assert vhost.has_output_room("adam")
    vhost.add_output("adam", 2 * MIB)
    assert not vhost.has_output_room("adam")
    assert vhost.monitor.other_bytes - before == 6 * MIB
    vhost.add_output("eve", -4 * MIB)
    assert vhost.has_output_room("eve")
    assert vhost.has_output_room("adam")


def test_a_user_for_whom_far_too_much_waits_is_given_nothing_more() -> None:
    """However many connections it has: each of them would be given one turn's output."""
    rig = rig_of(memory_bytes=64 * MIB)
    vhost = rig.vhost
    eve, adam = rig.client(everything("eve")).open(1), rig.client(everything("adam")).open(1)
    for client in (eve, adam):
        client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
        client.send(1, BasicConsume(queue="q", no_ack=True))
    vhost.add_output("eve", 8 * MIB - 1)
    assert eve.handler.has_output_room
    vhost.add_output("eve", 1)
    late = rig.client(everything("eve")).open(1)
    late.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    late.send(1, BasicConsume(queue="q", no_ack=True))
    assert "what waits to be sent to user 'eve' takes 8 MiB" in rig.events[-1][1]
    for _ in range(4):
        adam.publish(1, "", "q", b"x")
    rig.turn()
    assert (eve.bodies(), late.bodies(), len(adam.bodies())) == ([], [], 4)
    vhost.add_output("eve", -5 * MIB)
    for _ in range(3):
        adam.publish(1, "", "q", b"x")
    rig.turn()
    assert len(eve.bodies()) == len(late.bodies()) == 1
    vhost.add_output("adam", 16 * MIB)  # others may have taken it all
    vhost.add_output("eve", 8 * MIB)
    assert not eve.handler.has_output_room
    vhost.add_output("eve", -11 * MIB)
    assert eve.handler.has_output_room


def test_the_end_of_many_channels_lets_others_in() -> None:
    """What 40 channels have not acknowledged goes back a slice at a time, not a slice of each."""
    rig = rig_of()
    client = rig.client()
    publisher = rig.client().open(1)
    publisher.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for number in range(1, 41):
        client.open(number)
        for _ in range(200):
            publisher.publish(1, "", "q", b"x")
        client.call(number, BasicQos(prefetch_count=200), BasicQosOk)
        client.call(number, BasicConsume(queue="q"), BasicConsumeOk)
        client.messages()
    queue = rig.vhost.table.served["q"]
    assert queue.len() == 0
    rig.vhost.budget.clock = HastyClock()
    client.handler.lost()
    assert 0 < queue.len() < 6000
    rig.turn()
    assert queue.len() == 8000


# --- deliveries that are not acknowledged ---


def consuming(rig: BrokerRig, user: str, queue: str, n_messages: int, **given: bool) -> RigClient:
    """A client that consumes without a prefetch from a queue of its own with so many messages."""
    client = rig.client(everything(user)).open(1)
    client.call(1, QueueDeclare(queue=queue), QueueDeclareOk)
    for _ in range(n_messages):
        client.publish(1, "", queue, b"x", delivery_mode=1)
    rig.turn()
    client.call(1, BasicConsume(queue=queue, **given), BasicConsumeOk)
    return client


def counted_unacked(client: RigClient) -> int:
    return client.handler.channels[1].counted_unacked


def delivered(client: RigClient) -> int:
    return sum(one.delivered for one in client.handler.channels[1].consumers.values())


def test_a_delivery_is_counted_when_it_is_delivered() -> None:
    rig = rig_of()
    consuming(rig, "eve", "q", 100)
    rig.turn()
    assert rig.vhost.usage.unacked.of("eve") == 100 * UNACKED_BYTES
    assert rig.vhost.monitor.other_bytes >= 100 * UNACKED_BYTES


@pytest.mark.large
def test_a_user_who_does_not_acknowledge_waits_and_nobody_else() -> None:
    """Of 4 MiB a quarter is for what is not acknowledged, and one user may have half of that."""
    rig = rig_of(memory_bytes=4 * MIB)
    most = 4 * MIB // 4 // 2 // UNACKED_BYTES
    eve = consuming(rig, "eve", "q", 8000)
    second = consuming(rig, "eve", "r", 8000)
    third = consuming(rig, "eve", "s", 10, no_ack=True)
    rig.turn()
    rig.vhost.tick()
    held = counted_unacked(eve) + counted_unacked(second)
    assert most <= held <= most + TURN_SLICE + QUEUE_SLICE
    assert delivered(third) == 10
    assert rig.vhost.blocked_reason == ""
    (info,) = [
        row
        for row in rows_of_list(rig.vhost, "list_channels")
        if row["connection"] == eve.handler.name
    ]
    assert "deliveries that user 'eve' has not acknowledged take" in str(info["why"])
    assert (info["state"], info["since"]) == ("flow", date(rig.clock.wall_ms()))
    assert eve.handler.info()["state"] == "flow"
    warned = [text for kind, text in rig.events if kind == "warning"]
    assert len([text for text in warned if "user 'eve' has not acknowledged" in text]) == 1

    adam = consuming(rig, "adam", "a", 100)
    rig.turn()
    assert counted_unacked(adam) == 100

    eve.send(1, BasicAck(delivery_tag=0, multiple=True))
    rig.turn()
    assert counted_unacked(second) > 0
    second.send(1, BasicAck(delivery_tag=0, multiple=True))
    for _ in range(4):
        eve.send(1, BasicAck(delivery_tag=0, multiple=True))
        second.send(1, BasicAck(delivery_tag=0, multiple=True))
        rig.turn()
    assert (delivered(eve), delivered(second)) == (8000, 8000)
    (info,) = [
        row
        for row in rows_of_list(rig.vhost, "list_channels")
        if row["connection"] == eve.handler.name
    ]
    assert (info["why"], info["since"], info["state"]) == ("", "", "running")
    for client in (eve, second, third, adam):
        client.lose()
    assert rig.vhost.usage.unacked.total == 0


def test_messages_that_are_got_and_not_acknowledged_have_a_bound() -> None:
    rig = rig_of(memory_bytes=4 * MIB)
    client = rig.client(everything("eve")).open(1).open(2)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    for _ in range(6000):
        client.publish(1, "", "q", b"x", delivery_mode=1)
    rig.turn()
    for _ in range(6000):
        client.send(1, BasicGet(queue="q"))
    rig.turn()
    (closed,) = client.methods(ChannelClose)
    assert closed.reply_code == RESOURCE_ERROR
    assert "deliveries that user 'eve' has not acknowledged take" in closed.reply_text
    assert rig.vhost.usage.unacked.total == 0
    assert rig.vhost.table.served["q"].len() == 6000
    client.call(2, QueueDeclare(queue="r"), QueueDeclareOk)
    client.call(2, BasicGet(queue="r", no_ack=True), BasicGetEmpty)


@pytest.mark.large
def test_others_who_acknowledge_make_room() -> None:
    rig = rig_of(memory_bytes=4 * MIB)
    eve = consuming(rig, "eve", "q", 8000)
    adam = consuming(rig, "adam", "a", 8000)
    rig.turn()
    before = counted_unacked(adam)
    assert "adam" in rig.vhost.usage.full
    eve.lose()
    rig.vhost.tick()
    rig.turn()
    assert counted_unacked(adam) > before
