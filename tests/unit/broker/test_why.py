"""What `why` says of a vhost, a queue and a connection."""

import pytest

from penstock.access.permissions import Identity, everything
from penstock.broker.operations.kinds import in_one
from penstock.broker.operations.why import QUEUES_SLICE, _of_vhost
from penstock.broker.rates import INTERVAL_S
from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionBlocked,
    QueueDeclare,
    QueueDeclareOk,
)
from penstock.errors import ChannelError
from tests.helpers.broker_rig import RigClient
from tests.helpers.operation_rig import OperationRig


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


@pytest.fixture
def c(rig: OperationRig) -> RigClient:
    c = rig.client(everything("ann")).open(1)
    c.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    return c


def texts(rig: OperationRig, **args: object) -> list[str]:
    found: list[dict[str, str]] = rig.result("why", **args)
    assert all(set(one) == {"about", "text", "do", "since"} for one in found)
    return [f"{one['about']}: {one['text']}" for one in found]


def publish(rig: OperationRig, c: RigClient, count: int) -> None:
    for _ in range(count):
        c.publish(1, "", "q", b"x")
    rig.turn()


def test_nothing_is_wrong(rig: OperationRig, c: RigClient) -> None:
    assert texts(rig) == texts(rig, queue="q") == texts(rig, connection="c0") == []


def test_a_queue_without_a_consumer(rig: OperationRig, c: RigClient) -> None:
    publish(rig, c, 3)
    assert texts(rig) == ["queue 'q': 3 messages and no consumer"]
    assert texts(rig, queue="q") == ["queue 'q': 3 messages ready and no consumer"]


def test_alerts_but_not_that_a_queue_pages(rig: OperationRig, c: RigClient) -> None:
    arguments = {"x-alert-count-up": 2}
    c.call(1, QueueDeclare(queue="long", arguments=arguments), QueueDeclareOk)
    for _ in range(3):
        c.publish(1, "", "long", b"x")
    rig.vhost.alerts.event("flowed", "4096 bytes in RAM, 1024 allowed", "long")
    rig.turn()
    kinds = {row["kind"]: row["text"] for row in rig.result("list_alerts") if row["is_on"]}
    assert set(kinds) == {"flowed", "count_up"}
    about = "queue 'long': "
    said = about + kinds["count_up"].removeprefix(about)
    assert texts(rig) == [said, f"{about}3 messages and no consumer"]


def test_damage_that_was_found(rig: OperationRig, c: RigClient) -> None:
    rig.vhost.alerts.event("corruption", "0.qs: at byte 7: the entry is damaged", "q")
    rig.vhost.alerts.event("size_up", "a message of 9 bytes", "q")
    rig.turn()
    assert texts(rig) == ["queue 'q': 0.qs: at byte 7: the entry is damaged"]
    assert "penstock store verify" in rig.result("why")[0]["do"]


def test_consumers_at_their_prefetch(rig: OperationRig, c: RigClient) -> None:
    c.call(1, BasicQos(prefetch_count=2), BasicQosOk)
    c.call(1, BasicConsume(queue="q", consumer_tag="t"), BasicConsumeOk)
    publish(rig, c, 5)
    text = (
        "queue 'q': consumer 't' of connection c0, user 'ann' has 2 of 2 unacknowledged (prefetch)"
    )
    assert texts(rig, queue="q") == [text]
    assert texts(rig) == []
    assert texts(rig, connection="c0") == [
        "connection c0, channel 1: consumer 't' of queue 'q' has 2 of 2 unacknowledged (prefetch)"
    ]
    for _ in range(18):
        rig.tick(5.0)
    assert texts(rig) == [text]  # nobody has settled anything for a minute
    assert texts(rig, queue="q") == [text]  # once
    c.send(1, BasicAck(delivery_tag=2, multiple=True))
    rig.turn()
    assert text in texts(rig, queue="q")  # two more are delivered


def test_a_connection_has_the_name_that_its_client_gave(rig: OperationRig) -> None:
    c = rig.client(everything("ann"), "loader").open(1)
    c.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    c.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    c.call(1, BasicConsume(queue="q", consumer_tag="t"), BasicConsumeOk)
    publish(rig, c, 2)
    (found,) = texts(rig, queue="q")
    assert found.startswith("queue 'q': consumer 't' of connection 'loader' (c0), user 'ann' has 1")
    (row,) = rig.result("list_rows", kind="unacked", of={"queue": "q"})
    assert row["channel_details"]["user_provided_name"] == "loader"


def test_a_message_that_only_comes_back(rig: OperationRig, c: RigClient) -> None:
    c.call(1, BasicConsume(queue="q", consumer_tag="t"), BasicConsumeOk)
    publish(rig, c, 2)

    def returned(tags: range) -> None:
        """What comes has the next tag each time."""
        for tag in tags:
            c.send(1, BasicNack(delivery_tag=tag, requeue=True))
            rig.turn()
        rig.tick(0.1)
        rig.tick(INTERVAL_S)

    returned(range(2, 53))
    text = "queue 'q': 10 messages a second come back and are delivered again, none is acknowledged"
    assert texts(rig) == texts(rig, queue="q") == [text]
    c.send(1, BasicAck(delivery_tag=1))
    returned(range(53, 103))
    assert texts(rig) == texts(rig, queue="q") == []  # others are done
    returned(range(103, 107))
    assert texts(rig) == texts(rig, queue="q") == []  # less than one a second


def test_readers_that_are_behind(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    rig.put("s", b"1", b"2", b"3")
    rig.turn()
    for reader, offset in (("far", 0), ("near", 2), ("there", 3)):
        rig.result("set_stream_reader", queue="s", reader=reader, offsets={"0": offset})
    assert texts(rig) == texts(rig, queue="s") == []
    rig.clock.advance(100.0)
    said = [
        "stream 's': reader 'far' has not read 3 records",
        "stream 's': reader 'near' has not read 1 record",
    ]
    assert sorted(texts(rig, queue="s")) == said
    assert texts(rig) == []
    rig.clock.advance(3600.0)
    assert sorted(texts(rig)) == sorted(texts(rig, queue="s")) == said
    assert all(one["since"] for one in rig.result("why"))


def test_a_single_active_consumer(rig: OperationRig, c: RigClient) -> None:
    c.call(1, QueueDeclare(queue="s", arguments={"x-single-active-consumer": True}), QueueDeclareOk)
    c.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    for tag in ("a", "b"):
        c.call(1, BasicConsume(queue="s", consumer_tag=tag), BasicConsumeOk)
    for _ in range(3):
        c.publish(1, "", "s", b"x")
    rig.turn()
    (text,) = texts(rig, queue="s")
    assert "the single active consumer 'a' of connection c0" in text
    assert "has 1 of 1 unacknowledged" in text


def test_a_full_queue_and_one_with_delayed_messages(rig: OperationRig, c: RigClient) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    c.call(1, QueueDeclare(queue="f", arguments=full), QueueDeclareOk)
    c.publish(1, "", "f", b"x")
    rig.turn()
    assert "publishers are refused" in texts(rig, queue="f")[0]


def test_publishers_that_wait(rig: OperationRig, c: RigClient) -> None:
    blocked = rig.client(everything("bob"), **{"connection.blocked": True}).open(1)
    blocked.publish(1, "", "q", b"x")
    rig.turn()
    rig.vhost.monitor.is_disk_full = True
    rig.vhost.update_alarms()
    rig.turn()
    (told,) = blocked.methods(ConnectionBlocked)
    assert told.reason.startswith("low on disk: ")
    assert "of the disk are free, the limit is" in told.reason
    (said,) = [text for text in texts(rig) if text.startswith("vhost")]  # not again by alerts
    assert said.startswith("vhost '/': publishers wait, low on disk: ")


def test_who_has_most_of_the_memory(rig: OperationRig, c: RigClient) -> None:
    publish(rig, c, 3)
    c.call(1, QueueDeclare(queue="r"), QueueDeclareOk)
    rig.vhost.monitor.tick(rig.clock.monotonic())
    rig.vhost.monitor.is_alarmed = True
    rig.vhost.update_alarms()
    text = next(text for text in texts(rig) if text.startswith("vhost"))
    assert "low on memory: queues, exchanges, bindings and readers take " in text
    assert text.endswith(" of it are user 'ann's")
    rig.vhost.monitor.counted_bytes += 30 << 20
    text = next(text for text in texts(rig) if text.startswith("vhost"))
    assert "low on memory: messages of queues take 30 MiB of 64 MiB; most have queue 'q' (" in text
    assert text.endswith("queue 'r' (0 B)")


def test_a_disk_that_is_slow(rig: OperationRig, c: RigClient) -> None:
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    for _ in range(2):
        c.publish(1, "", "q", b"x", delivery_mode=2)
    rig.vhost.turn()  # begins a sync
    rig.clock.advance(0.3)
    slow = "a sync of the log takes 300 ms"
    asked = [rig.ask("why", connection="c0"), rig.ask("why")]
    rig.vhost.turn()
    of_connection, of_vhost = [one.result for one in asked]
    assert [one["text"] for one in of_connection] == [f"2 messages not confirmed yet: {slow}"]
    assert of_vhost[0]["text"] == f"its disk is slow: {slow}, and confirms wait for one"
    rig.turn()
    slow = slow.replace("300", "150")  # the one before was quick
    assert texts(rig)[0] == f"vhost '/': its disk is slow: {slow}, and confirms wait for one"
    assert texts(rig, connection="c0") == []
    rig.clock.advance(61.0)
    assert texts(rig) == ["queue 'q': 2 messages and no consumer"]


def test_a_queue_that_nobody_has_used_since_the_start(rig: OperationRig, c: RigClient) -> None:
    c.call(1, QueueDeclare(queue="empty", durable=True), QueueDeclareOk)
    rig.put("q", b"1", b"2")
    rig.restart()
    assert texts(rig) == ["queue 'q': 2 messages and no consumer"]
    assert texts(rig, queue="q") == [
        "queue 'q': 2 messages ready, and nobody has used it since the start of its vhost"
    ]
    assert texts(rig, queue="empty") == []


def test_only_what_exists_and_only_for_watchers(rig: OperationRig, c: RigClient) -> None:
    for args in ({"queue": "none"}, {"connection": "none"}):
        with pytest.raises(ChannelError) as found:
            rig.result("why", **args)
        assert found.value.code == 404
    bob = Identity("bob", frozenset(["management"]), ".*", ".*", ".*").facts()
    with pytest.raises(ChannelError) as found:
        rig.result("why", as_user=bob)
    assert found.value.code == 403


def test_it_takes_steps_of_a_turn_for_each_queue(rig: OperationRig) -> None:
    for n in range(2 * QUEUES_SLICE):
        rig.vhost.declare_queue(f"q{n}")
    rig.turn()
    rig.vhost.budget.left = 1 << 20
    in_one(_of_vhost(rig.vhost))
    assert (1 << 20) - rig.vhost.budget.left >= 2 * QUEUES_SLICE
