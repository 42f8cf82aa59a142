"""Turns: whatever one read of one connection asks for is done in slices, with others in between.

No single step runs more than so many lines of Penstock (tests.helpers.steps), however much was
asked for at once; what comes out is what would have come without slices, in the same order.
"""

import json
from typing import Any

import pytest

from penstock.access.permissions import everything
from penstock.broker import background_tasks, dispatch, operations, queue_table
from penstock.broker import channel as channel_module
from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.connection_handler import HeldEvents
from penstock.broker.dispatch import TurnBudget
from penstock.broker.operations import messages
from penstock.clock import ManualClock
from penstock.codec.frames import content_frames, method_frame
from penstock.codec.method import Method
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicRecover,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    ConnectionCloseOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    PenstockCall,
    PenstockCallError,
    PenstockCallOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxSelect,
    TxSelectOk,
)
from penstock.operation_table import EVENTS
from penstock.queues.queue_ram import CHECKS
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import Asked, OperationRig
from tests.helpers.steps import cost_of

pytestmark = pure_only  # a constant is replaced, and lines are counted
LINES_MAX = 150_000  # of one step: some 10 ms uncompiled


@pytest.fixture(autouse=True)
def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still, so that time does not end a turn."""
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)


def frame(channel: int, method: Method) -> bytes:
    return method_frame(channel, method.encode())


def called(channel: int, op: str, **args: object) -> bytes:
    return frame(channel, PenstockCall(op=op, arguments=json.dumps(args).encode()))


def published(channel: int, exchange: str, key: str = "", body: bytes = b"x") -> bytes:
    head = frame(channel, BasicPublish(exchange=exchange, routing_key=key))
    return head + content_frames(channel, b"\0\0", body, 131_072)


def dearest_turn(rig: BrokerRig, turns: int = 300) -> int:
    """Turns until there is nothing to do; the lines of the dearest."""
    dearest = 0
    for _ in range(turns):
        rig.is_due = False
        found: list[bool] = []
        dearest = max(dearest, cost_of(lambda: found.append(rig.vhost.turn())).lines)  # noqa: B023
        rig.vhost.completed()
        if not (found[0] or rig.is_due):
            return dearest
    raise AssertionError("it never comes to rest")


def ready(rig: BrokerRig, queue: str = "q") -> list[bytes | None]:
    """The bodies of a queue's ready messages."""
    found = rig.vhost.table.usable(queue)
    assert isinstance(found, BrokerQueue)
    return [one.message.body for one in found.amq.browse(None, 10_000)]


def is_paused(client: RigClient) -> bool:
    return client.outlet.is_paused


def answers(client: RigClient) -> list[Any]:
    return [json.loads(one.result) for one in client.methods(PenstockCallOk)]


# --- the budget ---


class TickingClock(ManualClock):
    """So many seconds pass with each question for the time."""

    step_s = 0.004

    def monotonic(self) -> float:
        self.advance(self.step_s)
        return super().monotonic()


def test_a_slice_ends_when_its_time_is_over() -> None:
    budget = TurnBudget(TickingClock())
    budget.begin()
    looks = 0
    while not budget.is_over():
        budget.left -= dispatch.LOOK_STEPS
        looks += 1
    assert looks == 4  # 10 ms from the first look, one every 4 ms


def test_what_came_before_the_first_look_counts() -> None:
    """One message whose headers an exchange reads may take as long as a slice."""
    budget = TurnBudget(ManualClock())
    budget.begin()
    budget.left -= int(dispatch.SLICE_S / dispatch.STEP_S) + 100
    assert budget.is_over()


def test_a_slice_ends_after_so_many_steps_if_the_clock_stands_still() -> None:
    budget = TurnBudget(ManualClock())
    budget.begin()
    steps = 0
    while not budget.is_over():
        budget.left -= 10
        steps += 10
    assert dispatch.STEPS_MAX <= steps < dispatch.STEPS_MAX + dispatch.LOOK_STEPS


def test_all_slices_of_a_turn_have_one_time_and_then_a_little_each() -> None:
    budget = TurnBudget(TickingClock())

    def slice_steps() -> int:
        budget.begin()
        steps = 0
        while not budget.is_over():
            budget.left -= 1
            steps += 1
        return steps

    found = [slice_steps() for _ in range(6)]
    assert found[0] > found[1] > dispatch.SHORT_STEPS
    assert found[-1] == dispatch.SHORT_STEPS
    budget.begin()
    assert budget.may_begin(dispatch.METHOD_STEPS)
    assert not budget.may_begin(dispatch.CALL_STEPS)
    budget.turned()
    budget.begin()
    assert budget.may_begin(dispatch.CALL_STEPS)


# --- operations ---


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


# --- deliveries ---


def delivered_a_turn(rig: OperationRig, client: RigClient) -> list[int]:
    """How many messages come in each turn until nothing is left to do."""
    rig.vhost.engine.clock = TickingClock()
    found = []
    while True:
        rig.is_due = False
        has_more = rig.vhost.turn()
        found.append(len(client.messages()))
        if not (has_more or rig.is_due):
            return found


def test_one_queue_ends_a_turn_when_its_time_is_over(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    rig.put("q", *(b"%d" % n for n in range(1000)))
    client = rig.client().open(1)
    client.send(1, BasicConsume(queue="q", no_ack=True))
    found = delivered_a_turn(rig, client)
    assert max(found) <= 4 * dispatch.LOOK_MESSAGES  # 10 ms from the first look, one every 4 ms
    assert sum(found) == 1000


def test_what_has_completed_and_the_turn_after_it_have_one_time(rig: OperationRig) -> None:
    for name in ("p", "q"):
        rig.result("declare_queue", queue=name)
        rig.put(name, *(b"x" for _ in range(1000)))
    client = rig.client().open(1)
    client.send(1, BasicConsume(queue="p", no_ack=True))
    client.send(1, BasicConsume(queue="q", no_ack=True))
    rig.vhost.engine.clock = TickingClock()
    rig.vhost.dispatch.run(is_between=True)
    rig.vhost.dispatch.run()
    assert len(client.messages()) <= 6 * dispatch.LOOK_MESSAGES


def test_many_queues_end_a_turn_when_its_time_is_over(rig: OperationRig) -> None:
    for n in range(20):
        rig.result("declare_queue", queue=f"q{n}")
        rig.put(f"q{n}", *(b"x" for _ in range(100)))
    client = rig.client().open(1)
    for n in range(20):
        client.send(1, BasicConsume(queue=f"q{n}", no_ack=True))
    found = delivered_a_turn(rig, client)
    assert max(found) <= 4 * (dispatch.LOOK_MESSAGES + 100)
    assert sum(found) == 2000


def test_queues_that_share_places_end_a_turn_when_its_time_is_over(rig: OperationRig) -> None:
    for name in ("p", "q"):
        rig.result("declare_queue", queue=name)
        rig.put(name, *(b"x" for _ in range(1000)))
    client = rig.client().open(1)
    client.send(1, BasicQos(prefetch_count=2000, global_=True))
    for name in ("p", "q"):
        client.send(1, BasicConsume(queue=name))
    found = delivered_a_turn(rig, client)
    assert max(found) <= 5 * dispatch.LOOK_MESSAGES
    assert sum(found) == 2000


def test_what_is_served_at_once_ends_when_its_time_is_over(rig: OperationRig) -> None:
    """A declare counts what is left when consumers have had their part, as far as that goes."""
    rig.result("declare_queue", queue="q")
    rig.put("q", *(b"x" for _ in range(1000)))
    client, other = rig.client().open(1), rig.client().open(1)
    client.send(1, BasicConsume(queue="q", no_ack=True))
    rig.vhost.engine.clock = TickingClock()
    other.send(1, QueueDeclare(queue="q", passive=True))
    left = len(ready(rig))
    assert 1000 - 4 * dispatch.LOOK_MESSAGES <= left < 1000
    rig.vhost.engine.clock = rig.clock
    rig.turn()
    (declared,) = other.methods(QueueDeclareOk)
    assert declared.message_count == left
    assert len(client.messages()) == 1000


def test_events_whose_copies_die_at_once_are_published_in_slices(rig: OperationRig) -> None:
    """Each is a dead letter for many queues, which the event itself is not."""
    rig.result("declare_exchange", exchange="dead", type="fanout")
    for n in range(100):
        rig.result("declare_queue", queue=f"d{n}")
        rig.vhost.bind_queue(f"d{n}", "dead", "")
    arguments = {"x-message-ttl": 0, "x-dead-letter-exchange": "dead"}
    rig.result("declare_queue", queue="q", arguments=arguments)
    rig.vhost.bind_queue("q", EVENTS, "queue.created")
    rig.turn()
    client = rig.client().open(1)
    for n in range(60):
        client.send(1, QueueDeclare(queue=f"new{n}"))
    rig.vhost.budget.clock = TickingClock()
    assert dearest_turn(rig, 1000) < 2 * LINES_MAX
    assert len(ready(rig, "d99")) == 60


def test_a_stream_ends_a_turn_when_its_time_is_over(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    rig.put("s", *(b"x" for _ in range(1000)))
    client = rig.client().open(1)
    client.send(1, BasicQos(prefetch_count=2000))
    client.send(1, BasicConsume(queue="s", arguments={"x-stream-offset": "first"}))
    found = delivered_a_turn(rig, client)
    assert max(found) <= 4 * dispatch.LOOK_MESSAGES
    assert sum(found) == 1000


def filled(rig: OperationRig, count: int, size: int) -> None:
    rig.result("declare_queue", queue="q")
    rig.put("q", *[bytes([n % 256]) * size for n in range(count)])


def test_many_peeks_in_one_packet_let_others_in(rig: OperationRig) -> None:
    """Each would build an answer of 1.4 MB: it ends at what fits into a frame, and they are
    answered a few in each turn."""
    filled(rig, 1000, 1000)
    client, other = rig.client().open(1), rig.client().open(1)
    data = called(1, "peek", queue="q", count=1000) * 40
    assert cost_of(lambda: client.raw(data)).lines < LINES_MAX
    assert is_paused(client)
    other.publish(1, "", "q", b"other")
    rig.vhost.turn()
    assert rig.vhost.table.usable("q").len() == 1001  # type: ignore[union-attr]
    client.pump()
    assert 0 < len(client.methods(PenstockCallOk)) < 5
    assert dearest_turn(rig) < LINES_MAX
    found = answers(client)
    assert 30 < len(found) < 40
    first = found[0]["messages"]
    assert 80 < len(first) < 100
    assert first[-1]["tag"] == found[0]["after"]
    assert not is_paused(client)


def test_a_message_that_does_not_fit_is_not_built(rig: OperationRig) -> None:
    filled(rig, 3, 120_000)
    client = rig.client().open(1)
    client.raw(called(1, "peek", queue="q", count=3))
    rig.turn()
    (error,) = client.methods(PenstockCallError)
    assert (error.code, b"does not fit into a frame" in error.text) == (311, True)


def test_answers_are_built_while_the_client_takes_them(rig: OperationRig) -> None:
    filled(rig, 100, 1000)
    client = rig.client().open(1)
    client.outlet.is_writable = False
    client.raw(called(1, "peek", queue="q", count=100) * 50)
    for _ in range(20):
        rig.vhost.turn()
    sent = sum(len(data) for data in client.outlet.sent)
    assert sent < 400_000
    assert rig.vhost.turn() is False  # nothing is built, and nobody computes
    client.outlet.is_writable = True
    client.handler.writable(True)
    rig.turn()
    assert len(answers(client)) == 50


def test_a_tick_leaves_queues_for_the_next_when_its_time_is_over(rig: OperationRig) -> None:
    queues = rig.vhost.queue_set
    for n in range(9):
        rig.result("declare_queue", queue=f"q{n}")
        rig.put(f"q{n}", b"x")
    for queue in queues.queues.values():
        queues.touch(queue)
    queues._clock = TickingClock()
    assert queues._tick_queues(wall_ms=0)
    left = len(queues.touched)
    assert 0 < left < 9
    queues._clock = ManualClock()
    assert not queues._tick_queues(wall_ms=0)
    assert not queues.touched


def test_a_stream_with_many_readers_is_described_in_slices(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    (stream,) = rig.vhost.streams.all()
    for n in range(4000):
        rig.vhost.engine.streams.set_reader(stream.parts[0], f"r{n:05}", n, 0, None)
    rig.turn()
    client = rig.client().open(1)
    data = called(1, "box.stream_info", name="s", reader="r00007") + called(1, "list_streams")
    rig.vhost.budget.clock = TickingClock()
    assert cost_of(lambda: client.raw(data)).lines < LINES_MAX
    assert dearest_turn(rig) < LINES_MAX
    (info,) = answers(client)
    assert info["readers"] == [f"r{n:05}" for n in range(1000)]
    assert info["offsets"] == {"0": 7}
    (error,) = client.methods(PenstockCallError)
    assert error.code == 311
    asked = rig.ask("list_streams")  # an operator has no frames
    assert dearest_turn(rig, 1000) < LINES_MAX
    (described,) = asked.result
    assert len(described["readers"]) == 4000


def test_a_stream_with_readers_of_long_names_is_refused_when_it_is_too_large(
    rig: OperationRig,
) -> None:
    """Not after all of it was built: it would be 400 KB; and each is looked at in slices."""
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    (stream,) = rig.vhost.streams.all()
    for n in range(1000):
        rig.vhost.engine.streams.set_reader(stream.parts[0], f"{n:04}" + "r" * 250, 0, 0, None)
    rig.turn()
    client = rig.client().open(1)
    rig.vhost.budget.clock = TickingClock()
    for op, args in (("describe_stream", {"queue": "s"}), ("list_streams", {})):
        client.raw(called(1, op, **args))
        cost = cost_of(rig.vhost.turn)
        assert cost.lines < LINES_MAX // 2
        assert cost.bytes < 3 * client.handler.output.frame_max
        assert dearest_turn(rig) < LINES_MAX // 2
        (error,) = client.methods(PenstockCallError)
        assert error.code == 311
    client.raw(called(1, "box.stream_info", name="s"))
    client.raw(called(1, "describe_stream", queue="s", without_readers=True))
    rig.turn()
    info, described = answers(client)
    assert 400 < len(info["readers"]) < 600  # as many as fit
    assert set(described) == {"name", "partitions", "arguments"}


@pytest.mark.parametrize("who", ["client", "operator"])
def test_a_publish_of_many_bodies_is_done_in_slices(
    rig: OperationRig, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CHECKS, "is_on", False)  # they would be counted
    for name in ("q1", "q2", "q3", "q4"):
        rig.result("declare_queue", queue=name)
        rig.result("bind_queue", queue=name, exchange="amq.fanout", routing_key="")
    client, other = rig.client().open(1), rig.client().open(1)
    count = 400
    args: dict[str, object] = {"exchange": "amq.fanout", "bodies": [f"{n}" for n in range(count)]}
    args["properties"] = {"delivery_mode": 2}
    asked: list[Asked] = []

    def publish() -> None:
        if who == "client":
            client.raw(called(1, "publish", **args))
        else:
            asked.append(rig.ask("publish", **args))

    rig.vhost.budget.clock = TickingClock()
    assert cost_of(publish).lines < LINES_MAX
    other.publish(1, "", "q2", b"other")
    other.send(1, QueueDelete(queue="q3"))
    assert dearest_turn(rig) < LINES_MAX
    rig.turn()
    found = answers(client) if who == "client" else [asked[0].result]
    assert found == [{"published": count}]
    expected = [b"%d" % n for n in range(count)]
    assert ready(rig, "q1") == ready(rig, "q4") == expected
    assert b"other" in ready(rig, "q2")[:-1]  # it came between two slices
    assert rig.vhost.table.usable("q3") is None


@pytest.mark.parametrize("why", ["memory", "no route", "closed"])
def test_a_publish_of_many_bodies_that_cannot_go_on(rig: OperationRig, why: str) -> None:
    rig.result("declare_queue", queue="q")
    rig.result("declare_queue", queue="gone")
    rig.result("bind_queue", queue="q", exchange="amq.fanout", routing_key="")
    rig.result("bind_queue", queue="gone", exchange="amq.fanout", routing_key="")
    client = rig.client().open(1)
    rig.vhost.budget.clock = TickingClock()
    client.raw(called(1, "publish", exchange="amq.fanout", bodies=["x"] * 2000))
    count = len(ready(rig))
    assert 0 < count < 2000
    if why == "memory":
        rig.vhost.blocked_reason = "memory"
    elif why == "no route":
        rig.vhost.delete_queue(rig.vhost.table.find_queue("q"))
        rig.vhost.delete_queue(rig.vhost.table.find_queue("gone"))
    else:
        client.lose()
        assert len(ready(rig)) == count
        return
    rig.turn()
    (error,) = client.methods(PenstockCallError)
    assert error.code == (506 if why == "memory" else 312)
    assert b"; %d were published" % count in error.text


def test_messages_with_many_keys_in_cc_are_read_in_slices() -> None:
    """To read the keys of one takes longer than to route it, where headers do that."""
    rig = BrokerRig()
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    client.call(1, QueueBind(queue="q", exchange="amq.headers"), QueueBindOk)
    cc = BasicProperties(headers={"CC": ["k" * 40] * 480}).encode()
    head = frame(1, BasicPublish(exchange="amq.headers", routing_key=""))
    rig.vhost.budget.clock = TickingClock()
    client.raw((head + content_frames(1, cc, b"x", 131_072)) * 20)
    assert 0 < len(ready(rig)) < 20
    rig.turn()
    assert len(ready(rig)) == 20


# --- any methods, and what comes behind them ---


def declares(n: int) -> bytes:
    return b"".join(
        frame(1, ExchangeDeclare(exchange=f"x{i}", type="direct", nowait=i < n - 1))
        for i in range(n)
    )


def test_methods_in_one_packet_are_handled_in_slices_and_in_order() -> None:
    rig = BrokerRig()
    client = rig.client().open(1).open(2)
    client.call(2, QueueDeclare(queue="q"), QueueDeclareOk)
    client.call(2, ConfirmSelect(), ConfirmSelectOk)
    n = 5000
    data = declares(n) + frame(1, QueueBind(queue="q", exchange="x9", routing_key="k"))
    data += published(2, "x9", "k", b"1") + published(2, "", "q", b"2")
    client.raw(data)
    assert 100 < len(rig.vhost.exchanges) < n
    assert is_paused(client)
    client.raw(published(2, "", "q", b"3"))  # it was read before the pause
    assert ready(rig) == []
    rig.turn()
    assert not is_paused(client)
    assert len(rig.vhost.exchanges) >= n
    assert client.methods(ExchangeDeclareOk)
    assert client.methods(QueueBindOk)
    assert client.methods(BasicAck)[-1].delivery_tag == 3
    assert ready(rig) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("ending", ["channel", "connection", "error", "frame", "lost"])
def test_ends_come_behind_what_was_sent_before(ending: str) -> None:
    rig = BrokerRig()
    client = rig.client().open(1)
    n = 5000
    data = declares(n)
    if ending == "channel":
        data += frame(1, ChannelClose())
    elif ending == "connection":
        data += frame(0, ConnectionClose())
    elif ending == "error":
        data += published(1, "nowhere") + declares(1) * 10
    elif ending == "frame":
        data += b"\x01\0\0\0\0\0\x01\0\0"
    before = rig.vhost.monitor.other_bytes
    client.raw(data)
    known = len(rig.vhost.exchanges)
    assert known < n
    if ending == "lost":
        client.lose()
        assert len(rig.vhost.exchanges) == known
    else:
        rig.turn()
        assert len(rig.vhost.exchanges) >= n
        raw = b"".join(client.outlet.sent)
        assert (raw.count(frame(1, ChannelClose())[7:11]) == 1) is (ending == "error")
        assert raw.count(frame(1, ChannelCloseOk())) == (ending == "channel")
        assert raw.count(frame(0, ConnectionCloseOk())) == (ending == "connection")
        assert (raw.count(frame(0, ConnectionClose())[7:11]) == 1) is (ending == "frame")
    assert rig.vhost.monitor.other_bytes <= before
    other = rig.client().open(1)
    other.call(1, QueueDeclare(queue="q"), QueueDeclareOk)


def test_an_end_by_the_server_answers_a_goodbye_that_waits() -> None:
    rig = BrokerRig()
    client = rig.client().open(1)
    client.raw(declares(5000) + frame(0, ConnectionClose()))
    client.handler.shutdown()
    rig.turn()
    raw = b"".join(client.outlet.sent)
    assert raw.count(frame(0, ConnectionClose())[7:11]) == 1
    assert raw.count(frame(0, ConnectionCloseOk())) == 1


def test_what_a_channel_kept_comes_before_what_was_held_for_it() -> None:
    """Channel 1 waits for the disk when a publish of channel 2 is held: its own publishes keep
    their order."""
    rig = BrokerRig()
    client = rig.client().open(1).open(2)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    first = frame(1, QueueDeclare(queue="d", durable=True)) + published(1, "", "q", b"1")
    client.raw(first + declares(0))
    rig.vhost.monitor.disk_alarm(is_full=True)
    rig.vhost.update_alarms()
    client.raw(published(2, "", "q", b"held") + published(1, "", "q", b"2"))
    rig.turn()
    rig.vhost.monitor.disk_alarm(is_full=False)
    rig.vhost.update_alarms()
    rig.turn()
    bodies = ready(rig)
    assert [body for body in bodies if body != b"held"] == [b"1", b"2"]
    assert len(bodies) == 3


def test_a_slice_that_meets_a_full_disk_waits_for_it() -> None:
    rig = BrokerRig()
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    client.raw(declares(5000) + published(1, "", "q"))
    rig.vhost.monitor.disk_alarm(is_full=True)
    rig.vhost.update_alarms()
    rig.turn()
    assert len(rig.vhost.exchanges) >= 5000
    assert ready(rig) == []
    assert is_paused(client)
    assert client.handler.info()["state"] == "blocked"
    rig.vhost.monitor.disk_alarm(is_full=False)
    rig.vhost.update_alarms()
    rig.turn()
    assert ready(rig) == [b"x"]
    assert not is_paused(client)


def test_an_error_in_what_was_held_ends_that_client() -> None:
    rig = BrokerRig()
    client = rig.client().open(1)
    HeldEvents(client.handler).failed(RuntimeError("no"))
    rig.turn()
    assert client.methods(ConnectionClose)[0].reply_code == 541


# --- settlements ---


def delivered(client: RigClient, count: int) -> list[int]:
    """Take so many messages of "q" by a consumer; the tags."""
    client.send(1, BasicConsume(queue="q", consumer_tag="c", nowait=True))
    client.rig.turn()
    client.pump()
    assert len(client.events) == count
    client.events = []
    return list(range(1, count + 1))


def with_large_headers(rig: OperationRig, count: int, size: int) -> None:
    """So many messages in "q", whose dead letters go to "dead"."""
    rig.result("declare_queue", queue="dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    rig.result("declare_queue", queue="q", arguments=dead)
    headers = {f"{n:06}": n for n in range(size // 12)}
    rig.put("q", *[b"%d" % n for n in range(count)], headers=headers)


@pytest.mark.parametrize("ending", ["", "close", "lost"])
def test_a_nack_of_many_messages_with_large_headers_is_done_in_slices(
    rig: OperationRig, ending: str
) -> None:
    count = 10
    with_large_headers(rig, count, 12_000)
    client, other = rig.client().open(1), rig.client().open(1)
    tags = delivered(client, count)
    rig.vhost.budget.clock = TickingClock()
    other.publish(1, "", "q", b"new")
    data = frame(1, BasicNack(delivery_tag=tags[-1], multiple=True, requeue=False))
    if ending == "close":
        data += frame(1, ChannelClose())
    client.raw(data)
    dead = rig.vhost.table.usable("dead")
    assert dead is not None
    assert 0 < dead.len() < count
    other.publish(1, "", "dead", b"other")
    if ending == "lost":
        client.lose()
    assert dearest_turn(rig) < LINES_MAX
    expected = [b"%d" % n for n in range(count)]
    found = ready(rig, "dead")
    assert b"other" in found[:-1]
    found.remove(b"other")
    assert found == expected  # what was begun is done, also if the client goes
    if ending == "close":
        assert frame(1, ChannelCloseOk()) in b"".join(client.outlet.sent)
    if ending:
        assert ready(rig) == [b"new"]
    else:
        assert client.bodies() == [b"new"]  # it was delivered after the nack, and is not of it


def test_requeues_beyond_a_delivery_limit_are_done_in_slices(rig: OperationRig) -> None:
    count = 10
    rig.result("declare_queue", queue="dead")
    arguments = {
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
        "x-queue-type": "quorum", "x-delivery-limit": 0,
    }  # fmt: skip
    rig.result("declare_queue", queue="q", arguments=arguments)
    headers = {f"{n:06}": n for n in range(1000)}
    rig.put("q", *[b"%d" % n for n in range(count)], headers=headers)
    client = rig.client().open(1)
    tags = delivered(client, count)
    rig.vhost.budget.clock = TickingClock()
    data = b"".join(frame(1, BasicReject(delivery_tag=tag, requeue=True)) for tag in tags)
    data += published(1, "", "after")
    rig.result("declare_queue", queue="after")
    client.raw(data)
    assert ready(rig, "after") == []
    assert dearest_turn(rig) < LINES_MAX
    assert ready(rig, "dead") == [b"%d" % n for n in range(count)]
    assert ready(rig, "after") == [b"x"]


def test_what_a_lost_client_had_goes_back_in_slices(rig: OperationRig) -> None:
    """A quorum queue counts the attempt, and the limit makes dead letters of them."""
    count = 10
    rig.result("declare_queue", queue="dead")
    arguments = {
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
        "x-queue-type": "quorum", "x-delivery-limit": 0,
    }  # fmt: skip
    rig.result("declare_queue", queue="q", arguments=arguments)
    headers = {f"{n:06}": n for n in range(1000)}
    rig.put("q", *[b"%d" % n for n in range(count)], headers=headers)
    client = rig.client().open(1)
    delivered(client, count)
    rig.vhost.budget.clock = TickingClock()
    client.outlet.is_closed = True
    assert cost_of(client.handler.lost).lines < 2 * LINES_MAX  # of some 450,000
    assert dearest_turn(rig) < LINES_MAX
    assert ready(rig, "dead") == [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("how", ["ack", "ack all", "nack", "requeue"])
@pytest.mark.parametrize("is_tx", [False, True])
def test_many_deliveries_are_settled_in_slices(
    rig: OperationRig, how: str, is_tx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 300
    for name in ("ACK_SLICE", "SETTLE_SLICE", "TAKE_SLICE"):
        monkeypatch.setattr(channel_module, name, 20)
    monkeypatch.setattr(dispatch, "LOOK_STEPS", 20)
    rig.result("declare_queue", queue="q")
    rig.put("q", *[b"%d" % n for n in range(count)])
    client = rig.client().open(1)
    if is_tx:
        client.call(1, TxSelect(), TxSelectOk)
    tags = delivered(client, count)
    client.call(1, BasicCancel(consumer_tag="c"), BasicCancelOk)
    tag = 0 if how == "ack all" else tags[-1]
    if "ack" in how and how != "nack":
        data = frame(1, BasicAck(delivery_tag=tag, multiple=True))
    else:
        requeue = how == "requeue"
        data = frame(1, BasicNack(delivery_tag=tag, multiple=True, requeue=requeue))
    channel = client.handler.channels[1]
    rig.vhost.budget.clock = TickingClock()
    client.raw(data + published(1, "", "q", b"last"))
    if not is_tx or how == "ack":
        assert 0 < channel.unacked.count < count or client.handler._held
    rig.turn()
    assert channel.unacked.count == 0
    assert is_paused(client) is False
    if is_tx:
        client.call(1, TxCommit(), TxCommitOk)
    queue = rig.vhost.table.usable("q")
    assert queue is not None
    assert queue.len() == (count + 1 if how == "requeue" else 1)


ENDS = ["lost", "closed", "recover"]


@pytest.mark.parametrize(
    ("how", "is_tx"),
    [("commit", True), ("rollback", True)] + [(how, is_tx) for how in ENDS for is_tx in (0, 1)],
)
def test_what_a_channel_has_not_settled_goes_back_in_slices(
    rig: OperationRig, how: str, is_tx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 300
    for name in ("ACK_SLICE", "SETTLE_SLICE", "TAKE_SLICE"):
        monkeypatch.setattr(channel_module, name, 20)
    monkeypatch.setattr(dispatch, "LOOK_STEPS", 20)
    rig.result("declare_queue", queue="q")
    rig.put("q", *[b"%d" % n for n in range(count)])
    client = rig.client().open(1)
    tags = delivered(client, count)
    client.call(1, BasicCancel(consumer_tag="c"), BasicCancelOk)
    if is_tx:
        client.call(1, TxSelect(), TxSelectOk)
        requeue = how == "commit"
        client.send(1, BasicNack(delivery_tag=tags[-1], multiple=True, requeue=requeue))
        rig.turn()
    channel = client.handler.channels[1]
    rig.vhost.budget.clock = TickingClock()
    if how == "lost":
        client.handler.lost()
    else:
        ends = {
            "closed": ChannelClose(), "recover": BasicRecover(requeue=True), "commit": TxCommit(),
            "rollback": TxRollback(),
        }  # fmt: skip
        client.send(1, ends[how])
    queue = rig.vhost.table.usable("q")
    assert queue is not None
    assert queue.len() < count
    assert channel.unacked.count < count
    rig.turn()
    in_transaction = is_tx and how == "recover"
    is_unacked = how == "rollback"
    assert channel.unacked.count == (count if is_unacked else 0)
    assert queue.len() == (0 if is_unacked or in_transaction else count)
    if is_unacked:
        client.send(1, BasicNack(delivery_tag=tags[-2], multiple=True, requeue=True))
        client.call(1, TxCommit(), TxCommitOk)
        assert ready(rig) == [b"%d" % n for n in range(count - 1)]


@pytest.mark.parametrize("how", ["delete", "close", "lose"])
def test_many_consumers_end_in_slices(
    rig: OperationRig, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, most = 300, 20
    monkeypatch.setattr(channel_module, "CONSUMER_SLICE", most)
    monkeypatch.setattr(queue_table, "CANCEL_SLICE", most)
    monkeypatch.setattr(dispatch, "LOOK_STEPS", most)
    rig.result("declare_queue", queue="q")
    client, other = rig.client(consumer_cancel_notify=True).open(1), rig.client().open(1)
    data = [frame(1, BasicConsume(queue="q", consumer_tag=f"{n}")) for n in range(count)]
    client.raw(b"".join(data))
    rig.turn()
    client.pump()
    client.events = []
    queue = rig.vhost.table.usable("q")
    assert queue is not None
    before = rig.vhost.usage.clients.of("guest")
    rig.vhost.budget.clock = TickingClock()
    if how == "delete":
        other.send(1, QueueDelete(queue="q"))
        rig.vhost.turn()
        assert 0 < len(client.methods(BasicCancel)) < count // 2
    elif how == "close":
        client.send(1, ChannelClose())
        assert count // 2 < queue.consumers.count < count
    else:
        client.handler.lost()
        assert count // 2 < queue.consumers.count < count
    rig.turn()
    assert queue.consumers.count == rig.vhost.counts.consumers == 0
    assert rig.vhost.usage.clients.of("guest") < before - count * 500
    if how != "delete":
        rig.put("q", b"x")
        assert ready(rig) == [b"x"]


# --- what is read at once ---


def test_methods_with_large_arguments_are_handled_one_by_one() -> None:
    """Each takes some milliseconds: the clock is looked at after each of them."""
    rig = BrokerRig()
    client = rig.client().open(1)
    table = {"x": [None] * 8000}
    declare = ExchangeDeclare(exchange="x", type="fanout", arguments=table, nowait=True)
    data = b"".join(
        frame(1, ExchangeDeclare(exchange=f"x{i}", type="fanout", arguments=table, nowait=True))
        for i in range(16)
    )
    assert len(declare.encode()) > 8000
    clock = TickingClock()
    clock.step_s = dispatch.SLICE_S
    rig.vhost.budget.clock = clock
    before = len(rig.vhost.exchanges)
    client.raw(data)
    assert len(rig.vhost.exchanges) - before <= 3
    rig.turn()
    assert len(rig.vhost.exchanges) - before == 16


def test_methods_that_change_routes_are_handled_one_by_one() -> None:
    """Each may take a millisecond, however small its arguments are."""
    rig = BrokerRig()
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    clock = TickingClock()
    clock.step_s = dispatch.SLICE_S
    rig.vhost.budget.clock = clock
    bind = [QueueBind(queue="q", exchange="amq.fanout", routing_key=f"k{n}", nowait=True)
            for n in range(16)]  # fmt: skip
    client.raw(b"".join(frame(1, one) for one in bind))
    assert rig.vhost.router.binding_count <= 3
    rig.turn()
    assert rig.vhost.router.binding_count == 16


@pytest.mark.parametrize("ending", ["", "frame", "error", "lost", "closed"])
def test_many_methods_in_one_read_are_parsed_in_slices(ending: str) -> None:
    rig = BrokerRig()
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    n = 5000
    data = frame(1, BasicCancel(consumer_tag="none", nowait=True)) * n
    if ending == "error":
        data = frame(1, QueueBind(queue="q", exchange="nowhere")) + data + published(1, "", "q")
    elif ending == "frame":
        data += published(1, "", "q") + b"\x01\0\0\0\0\0\x01\0\0"
    else:
        data += published(1, "", "q", b"1")
    assert len(data) > 75_000
    rig.vhost.budget.clock = TickingClock()
    cost = cost_of(lambda: client.raw(data))
    assert cost.lines < LINES_MAX
    assert is_paused(client)
    client.raw(published(1, "", "q", b"2")[:20])  # it was read before the pause
    client.raw(published(1, "", "q", b"2")[20:])
    assert ready(rig) == []
    if ending == "lost":
        client.lose()
        assert ready(rig) == []
        assert rig.vhost.unfinished_bytes == 0
        return
    if ending == "closed":
        client.handler.shutdown()
        client.raw(frame(0, ConnectionCloseOk()))
    assert dearest_turn(rig, 1000) < LINES_MAX
    found = b"".join(client.outlet.sent)
    if ending == "closed":
        assert client.outlet.is_closed
        assert ready(rig) == []
    elif ending == "frame":
        assert ready(rig) == [b"x"]
        assert found.count(frame(0, ConnectionClose())[7:11]) == 1
    elif ending == "error":
        assert ready(rig) == []
        assert found.count(frame(1, ChannelClose())[7:11]) == 1
    else:
        assert ready(rig) == [b"1", b"2"]
        assert not is_paused(client)


@pytest.mark.parametrize("op", ["get_messages", "browse_messages", "peek"])
def test_messages_with_large_headers_are_few_in_a_slice(
    rig: OperationRig, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To decode one takes some 45,000 lines, here."""
    monkeypatch.setattr(messages, "BEYOND_STEPS", 64)
    monkeypatch.setattr(dispatch, "LOOK_STEPS", 64)
    rig.result("declare_queue", queue="q")
    rig.put("q", *[b""] * 12, headers={f"{n:x}": None for n in range(500)})
    rig.vhost.budget.clock = TickingClock()
    asked: list[Asked] = []
    assert cost_of(lambda: asked.append(rig.ask(op, queue="q", count=40))).lines < 2 * LINES_MAX
    assert dearest_turn(rig) < 2 * LINES_MAX
    found = asked[0].result
    assert len(found if op == "get_messages" else found["messages"]) == 12


@pytest.mark.parametrize("kind", ["headers", "x-consistent-hash"])
def test_an_exchange_looks_at_few_large_headers_in_a_slice(rig: OperationRig, kind: str) -> None:
    arguments = {"hash-header": "h"} if kind == "x-consistent-hash" else {}
    rig.result("declare_queue", queue="q")
    rig.result("declare_exchange", exchange="x", type=kind, arguments=arguments)
    rig.vhost.bind_queue("q", "x", "1")
    client = rig.client().open(1)
    clock = TickingClock()
    clock.step_s = dispatch.SLICE_S
    rig.vhost.budget.clock = clock
    properties = BasicProperties(headers={"h": [[n] for n in range(400)]})
    body = content_frames(1, properties.encode(), b"x", 131_072)
    head = frame(1, BasicPublish(exchange="x", routing_key="k"))
    client.raw((head + body) * 16)
    assert len(ready(rig)) <= 3
    rig.turn()
    assert len(ready(rig)) == 16


def test_a_match_looks_at_few_large_headers_in_a_slice(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    rig.put("q", *[b""] * 8, headers={f"{n:x}": None for n in range(1000)})
    rig.vhost.budget.clock = TickingClock()
    asked: list[Asked] = []
    given: Any = {"queue": "q", "dry_run": True, "headers": {"none": None}}
    assert cost_of(lambda: asked.append(rig.ask("delete_messages", **given))).lines < 6 * LINES_MAX
    assert dearest_turn(rig) < 6 * LINES_MAX
    assert asked[0].result["deleted"] == 0


def test_dead_letters_of_a_get_are_made_in_slices(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="dead")
    route = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    rig.result("declare_queue", queue="q", arguments=route)
    rig.put("q", *[b"x"] * 200)
    rig.vhost.budget.clock = TickingClock()
    asked: list[Asked] = []
    given: Any = {"queue": "q", "count": 200, "ackmode": "reject_requeue_false"}
    assert cost_of(lambda: asked.append(rig.ask("get_messages", **given))).lines < LINES_MAX
    assert dearest_turn(rig, 2000) < LINES_MAX
    assert len(asked[0].result) == 200
    assert len(ready(rig, "dead")) == 200


def test_a_binding_is_found_by_its_name_in_slices(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    for n in range(3000):
        rig.vhost.bind_queue("q", "amq.direct", f"k{n}", {"n": n})
    rig.turn()
    given = {"source": "amq.direct", "destination": "q", "destination_type": "queue"}
    last = rig.vhost.router.bindings_to("q", "q")[-1].properties_key
    client = rig.client().open(1)
    rig.vhost.budget.clock = TickingClock()
    for named in (last, "none"):
        data = called(1, "delete_binding", **given, properties_key=named)
        assert cost_of(lambda d=data: client.raw(d)).lines < LINES_MAX  # type: ignore[misc]
        assert dearest_turn(rig, 1000) < LINES_MAX
    assert answers(client) == [{}]
    (error,) = client.methods(PenstockCallError)
    assert error.code == 404
    assert len(rig.vhost.router.bindings_to("q", "q")) == 2999


def test_to_unbind_does_not_look_at_other_bindings(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    lines = []
    for count in (10, 1000):
        for n in range(count):
            rig.vhost.bind_queue("q", "amq.direct", f"k{n}")
        lines.append(cost_of(lambda: rig.vhost.unbind_queue("q", "amq.direct", "k7")).lines)
    assert lines[0] == lines[1]


@pytest.mark.parametrize("is_exclusive", [True, False])
def test_many_queues_that_end_with_a_connection_are_deleted_in_slices(
    rig: OperationRig, *, is_exclusive: bool
) -> None:
    """Nobody finds them from then on: another one of that name is a new one."""
    client, other = rig.client().open(1), rig.client().open(1)
    count = 250
    for n in range(count):
        name = f"q{n}"
        kind = "exclusive" if is_exclusive else "auto_delete"
        client.send(1, QueueDeclare(queue=name, **{kind: True}))  # type: ignore[arg-type]
        client.send(1, BasicConsume(queue=name, consumer_tag=name))
        client.publish(1, "", name, b"old")
    rig.turn()
    assert len(rig.vhost.table.served) == count
    assert cost_of(client.handler.lost).lines < LINES_MAX
    assert len(rig.vhost.table.served) > count // 3
    last = f"q{count - 1}"
    assert not rig.vhost.table.has(last)
    other.send(1, QueueDeclare(queue=last))
    other.publish(1, "", last, b"new")
    other.send(1, QueueDelete(queue=f"q{count - 2}"))
    assert dearest_turn(rig, 1000) < LINES_MAX
    assert [one.message_count for one in other.methods(QueueDeclareOk)] == [0]
    assert len(other.methods(QueueDeleteOk)) == 1
    assert list(rig.vhost.table.served) == [last]
    assert ready(rig, last) == [b"new"]
    assert not other.methods(ChannelClose)


def test_events_that_costly_exchanges_get_are_published_in_slices(rig: OperationRig) -> None:
    """Whoever may read amq.rabbitmq.event may bind to it what they like."""
    vhost = rig.vhost
    rig.result("declare_queue", queue="q")
    wanted = {"x-match": "any", **{f"n{n}": n for n in range(20)}}
    for n in range(100):
        vhost.topology.declare_exchange(f"h{n}", "headers")
        vhost.bind_queue("q", f"h{n}", "", wanted)
    vhost.bind_queue("q", EVENTS, "queue.*")
    for n in range(100):
        vhost.topology.bind_exchange(f"h{n}", EVENTS, "queue.*")
    rig.turn()
    client = rig.client().open(1)
    for n in range(100):
        client.send(1, QueueDeclare(queue=f"q{n}"))
    assert dearest_turn(rig, 1000) < LINES_MAX
    assert len(ready(rig)) == 100


def test_copies_of_messages_with_large_headers_are_made_one_by_one(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    rig.result("declare_queue", queue="t")
    rig.vhost.bind_queue("t", "amq.rabbitmq.trace", "publish.#")
    rig.result("trace_on")
    client = rig.client().open(1)
    headers = {f"{n:x}": None for n in range(1000)}

    def publish() -> None:
        for _ in range(24):
            client.publish(1, "", "q", b"", headers=headers)

    assert cost_of(publish).bytes < 1 << 20
    assert dearest_turn(rig, 1000) < 10 * LINES_MAX
    assert len(ready(rig, "t")) == 24


def bound(rig: OperationRig, count: int) -> None:
    """A durable queue with so many bindings of a durable exchange."""
    rig.result("declare_queue", queue="q", durable=True)
    rig.result("declare_exchange", exchange="x", type="topic", durable=True)
    for n in range(count):
        rig.vhost.bind_queue("q", "x", f"a.b{n}.c")
    rig.turn()


@pytest.mark.parametrize("size", ["many", "large"])
@pytest.mark.parametrize("what", ["queue", "exchange"])
def test_what_has_many_bindings_is_deleted_after_them(
    rig: OperationRig, what: str, size: str
) -> None:
    bound(rig, 1500 if size == "many" else 0)
    if size == "large":  # each is read for an event
        for n in range(500):
            rig.vhost.bind_queue("q", "x", f"a.b{n}.c", {"x": [None] * 200})
        rig.result("declare_queue", queue="events")
        rig.vhost.bind_queue("events", EVENTS, "binding.deleted")
        rig.turn()
    client, other = rig.client().open(1), rig.client().open(1)
    method = QueueDelete(queue="q") if what == "queue" else ExchangeDelete(exchange="x")
    assert cost_of(lambda: client.send(1, method)).lines < LINES_MAX
    client.send(1, QueueDeclare(queue="after"))
    rig.vhost.turn()
    client.pump()
    assert not client.events, "what follows waits"
    other.publish(1, "", "q", b"meanwhile")
    other.send(1, QueueDeclare(queue="q", durable=True))
    assert dearest_turn(rig, 1000) < (LINES_MAX if size == "many" else 4 * LINES_MAX)
    rig.turn()
    kind = QueueDeleteOk if what == "queue" else ExchangeDeleteOk
    assert len(client.methods(kind)) == 1
    assert len(client.methods(QueueDeclareOk)) == 1
    assert [one.reply_code for one in other.methods(ChannelClose)] == [405] * (what == "queue")
    for _ in range(2):
        assert rig.vhost.table.has("q") == (what != "queue")
        assert ("x" in rig.vhost.exchanges) == (what == "queue")
        assert rig.vhost.router.count_from("x") == rig.vhost.router.count_at("q", "q") == 0
        rig.restart()


def test_operations_delete_what_has_many_bindings_after_them(rig: OperationRig) -> None:
    bound(rig, 1000)
    rig.put("q", b"1")
    assert rig.refusal("delete_queue", queue="q", if_empty=True).code == 406
    assert rig.vhost.router.binding_count == 1000
    assert rig.result("delete_queue", queue="q") == {"messages": 1}
    bound(rig, 1000)
    assert rig.result("delete_exchange", exchange="x") == {}
    assert rig.vhost.router.binding_count == 0


def test_a_queue_with_many_bindings_that_ends_with_its_connection(rig: OperationRig) -> None:
    client = rig.client().open(1)
    client.call(1, QueueDeclare(queue="q", exclusive=True), QueueDeclareOk)
    for n in range(3000):
        rig.vhost.bind_queue("q", "amq.topic", f"a.b{n}.c", owner=client.handler)
    assert cost_of(client.handler.lost).lines < LINES_MAX
    assert not rig.vhost.table.has("q")
    assert dearest_turn(rig, 1000) < LINES_MAX
    assert rig.vhost.router.binding_count == 0
    assert not rig.vhost.table.served


def test_calls_that_are_not_answered_are_counted(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of leases are done in the background, which is slower than asking for them."""
    monkeypatch.setattr(operations, "USER_CALLS_MAX", 10)
    filled(rig, 5, 10)
    client, other = rig.client().open(1), rig.client(everything("ann")).open(1)
    asked = called(1, "lease_queue", queue="q", reader="r", messages=1)
    for n in range(12):
        client.raw(called(1, "lease_queue", queue="q", reader=f"r{n}", messages=1))
    other.raw(asked)
    rig.turn()
    assert len(answers(client)) == 10
    client.events = []
    client.raw(asked)
    client.lose()
    assert rig.vhost.usage.calls.total == 0
    client = rig.client().open(1)
    rig.vhost.budget.clock = TickingClock()
    client.raw(called(1, "peek", queue="q", count=1000))
    client.lose()
    assert rig.vhost.usage.calls.total == 0


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("peek", {"queue": "q", "count": 9}),
        ("browse_messages", {"queue": "q", "count": 9, "truncate": 9}),
        ("browse_messages", {"queue": "q", "count": 9, "truncate": 9, "body": "needle"}),
        ("get_messages", {"queue": "q", "count": 9, "truncate": 9}),
        ("delete_messages", {"queue": "q", "body": "needle"}),
        ("delete_messages", {"queue": "q", "body": "needle", "dry_run": True}),
        ("box.browse", {"name": "q", "n": 9}),
        ("box.read", {"name": "q", "tag": 0, "at": 6 << 20, "n": 1000}),
    ],
)
def test_a_large_body_is_not_read_whole(
    rig: OperationRig, op: str, given: dict[str, object]
) -> None:
    size = 8 << 20
    rig.result("declare_queue", queue="q", durable=True)
    rig.put("q", b"needl" + bytes(size - 11) + b"needle")
    rig.restart()
    client = rig.client().open(1)
    rig.vhost.budget.clock = TickingClock()
    assert cost_of(lambda: client.raw(called(1, op, **given))).bytes < 2 << 20
    assert cost_of(rig.turn).bytes < 2 << 20
    if op == "peek":
        assert [one.code for one in client.methods(PenstockCallError)] == [311]
        return
    (reply,) = answers(client)
    if op == "browse_messages":
        (one,) = reply["messages"]
        assert (one["payload_bytes"], len(one["payload"])) == (size, 12)  # base64, as it has NUL
    elif op == "get_messages":
        assert [one["payload_bytes"] for one in reply] == [size]
    elif op == "delete_messages":
        assert reply["deleted"] == 1
    elif op == "box.browse":
        assert [one["body"] for one in reply] == [None]
    else:
        assert (reply["size"] - reply["header_size"], len(reply["data"])) == (size, 1336)
