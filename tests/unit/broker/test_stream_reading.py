"""Consumers of streams: what they get, how they settle, how they end."""

import pytest

from penstock.codec.method import Method
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicNack,
    BasicRecover,
    BasicRecoverOk,
    BasicReject,
    ChannelClose,
    QueueDelete,
    QueueDeleteOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.broker_steps import declared
from tests.helpers.stream_steps import (
    ack,
    bind_all,
    bodies,
    consume,
    declare,
    numbers,
    publish,
    records,
)

KIB = b"x" * 1024


# ---- what it gets --------------------------------------------------------------------------------


def test_a_delivery_says_where_it_is_from(rig: BrokerRig, c: RigClient) -> None:
    before = rig.clock.wall_ms() * 1000
    publish(c, b"1", headers={"a": 1}, content_type="text/plain")
    consume(c, offset="first")
    (found,) = records(c)
    assert (found.offset, found.partition, found.gap, found.key) == (0, 0, 0, "s")
    assert before <= found.time_us <= rig.clock.wall_ms() * 1000 + 1000
    assert found.headers["a"] == 1
    assert found.props.content_type == "text/plain"
    assert not found.is_redelivered


def test_consumers_read_everything_each_by_itself(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(5))
    consume(c, tag="a", offset="first")
    consume(c, tag="b", offset=3)
    other = rig.client().open()
    consume(other, offset="first")
    publish(c, *numbers(2, 5))
    found = records(c)
    by_tag = {tag: [r.body for r in found if r.consumer == tag] for tag in ("a", "b")}
    assert by_tag == {"a": numbers(7), "b": numbers(4, 3)}
    assert bodies(other) == numbers(7)
    again = rig.client().open()
    consume(again, offset="first")
    assert bodies(again) == numbers(7)


def test_prefetch_is_the_limit_and_acks_give_room(c: RigClient) -> None:
    publish(c, *numbers(10))
    consume(c, offset="first", prefetch=3)
    first = records(c)
    assert [r.body for r in first] == numbers(3)
    assert records(c) == []
    ack(c, first[1])
    assert bodies(c) == [b"3"]
    c.send(1, BasicAck(delivery_tag=4, multiple=True))
    assert bodies(c) == numbers(3, 4)


@pytest.mark.parametrize(
    "settle",
    [
        BasicAck(delivery_tag=0, multiple=True),
        BasicNack(delivery_tag=0, multiple=True, requeue=True),
        BasicNack(delivery_tag=0, multiple=True, requeue=False),
        BasicReject(delivery_tag=1, requeue=True),
        BasicReject(delivery_tag=1, requeue=False),
    ],
)
def test_every_way_to_settle_gives_room_and_brings_nothing_back(
    c: RigClient, settle: Method
) -> None:
    publish(c, *numbers(3))
    consume(c, offset="first", prefetch=1)
    assert bodies(c) == [b"0"]
    c.send(1, settle)
    found = records(c)
    assert [(r.body, r.is_redelivered) for r in found] == [(b"1", False)]


def test_recover_gives_room(c: RigClient) -> None:
    publish(c, *numbers(3))
    consume(c, offset="first", prefetch=1)
    assert bodies(c) == [b"0"]
    c.call(1, BasicRecover(requeue=True), BasicRecoverOk)
    assert bodies(c) == [b"1"]


def test_an_unknown_tag_is_the_channels_error(c: RigClient) -> None:
    consume(c)
    c.send(1, BasicAck(delivery_tag=9))
    c.rig.turn()
    assert c.methods(ChannelClose)[0].reply_code == 406


def test_a_client_that_does_not_read_is_not_written_to(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *[KIB] * 600)
    consume(c, offset="first", prefetch=1000)
    c.outlet.is_writable = False
    c.handler.writable(False)
    records(c)
    publish(c, *[KIB] * 5)
    assert records(c) == []
    c.outlet.is_writable = True
    c.handler.writable(True)
    got = 0
    for _ in range(20):
        got += len(records(c))
    assert got <= 605


def test_a_long_stream_comes_in_slices_and_other_work_in_between(
    rig: BrokerRig, c: RigClient
) -> None:
    declared(c, "q")
    for _ in range(3):
        publish(c, *[b"x"] * 500)
    consume(c, offset="first", prefetch=5000)
    found: list[int] = []
    for _ in range(10):
        found += [r.offset for r in records(c)]
    assert found == list(range(1500))
    reading = rig.vhost.table.find_queue("s").consumers.all()[0].source
    assert reading.cursor.chunk_bytes <= 256 << 10  # type: ignore[attr-defined]


def test_what_is_read_is_counted_while_it_is_in_ram(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *[KIB] * 200)
    before = rig.vhost.monitor.other_bytes
    other = rig.client().open()
    consume(other, offset="first", prefetch=1)
    assert len(records(other)) == 1
    held = rig.vhost.monitor.other_bytes - before
    assert 64 << 10 <= held <= 300 << 10
    other.lose()
    assert rig.vhost.monitor.other_bytes <= before


# ---- ends ----------------------------------------------------------------------------------------


def test_a_cancelled_consumer_gets_nothing_more(rig: BrokerRig, c: RigClient) -> None:
    consume(c, offset="first")
    c.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
    publish(c, b"1")
    assert records(c) == []
    assert rig.vhost.table.find_queue("s").consumers.count == 0


def test_consumers_of_a_deleted_stream_are_told(rig: BrokerRig, c: RigClient) -> None:
    consume(c, offset="first")
    publish(c, *numbers(3))
    other = rig.client().open()
    other.call(1, QueueDelete(queue="s"), QueueDeleteOk)
    c.pump()
    (told,) = c.methods(BasicCancel)
    assert told.consumer_tag == "t"


def test_a_page_that_cannot_be_read_ends_its_readers_alone(rig: BrokerRig, c: RigClient) -> None:
    declare(c, "other")
    publish(c, *[b"%d" % i * 100 for i in range(50)])
    publish(c, b"fine", to="other")
    rig.restart()
    (page,) = [
        name for name in rig.fs.names() if name.endswith(".page")
        and rig.vhost.engine.streams.get(b"s").path in name
    ]  # fmt: skip
    file = rig.fs.open(page)
    file.pwrite(b"\xff" * 8, 1000)
    file.close()
    c = rig.client(consumer_cancel_notify=True).open()
    consume(c, offset="first")
    consume(c, "other", tag="o", offset="first")
    assert b"fine" in bodies(c)
    assert [told.consumer_tag for told in c.methods(BasicCancel)] == ["t"]
    assert [kind for kind, _ in rig.events if kind == "stream_failed"] == ["stream_failed"]
    publish(c, b"1")
    consume(c, tag="new", offset="last")
    assert bodies(c) == [b"1"]


# ---- partitions ----------------------------------------------------------------------------------


def test_partitions_by_routing_key(rig: BrokerRig, c: RigClient) -> None:
    declare(c, "p", x_partitions=4)
    bind_all(c, "p")
    for i in range(40):
        c.publish(1, "amq.topic", f"k{i % 8}", b"%d" % i)
    rig.turn()
    consume(c, "p", offset="first")
    found = records(c)
    assert len(found) == 40
    assert {r.partition for r in found} == {0, 1, 2, 3}
    by_key: dict[str, set[int]] = {}
    for record in found:
        by_key.setdefault(record.key, set()).add(record.partition)
    assert all(len(partitions) == 1 for partitions in by_key.values())
    for partition in range(4):
        mine = [r.offset for r in found if r.partition == partition]
        assert mine == list(range(len(mine)))
        consume(c, "p", tag=f"p{partition}", offset="first", partition=partition)
        assert [r.offset for r in records(c)] == mine
