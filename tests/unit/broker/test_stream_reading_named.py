"""Named readers of streams: where they go on, and what moves their position."""

from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicNack,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
)
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.stream_steps import (
    ack,
    bind_all,
    bodies,
    consume,
    declare,
    error_of,
    numbers,
    publish,
    qos,
    records,
    refused,
)

# ---- named readers -------------------------------------------------------------------------------


def offset_of(rig: BrokerRig, reader: str = "r", name: bytes = b"s") -> int | None:
    found = rig.vhost.engine.streams.get(name).readers.get(reader)
    return None if found is None else found.offset


def test_a_reader_goes_on_where_it_was(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(3))
    consume(c, reader="r")
    assert records(c) == []
    assert offset_of(rig) == 3
    publish(c, *numbers(5, 3))
    found = records(c)
    ack(c, *found[:2])
    assert offset_of(rig) == 5
    c.lose()
    rig.restart()
    c = rig.client().open()
    consume(c, reader="r")
    assert bodies(c) == numbers(3, 5)


def test_a_new_reader_misses_nothing_that_comes_while_it_is_away(
    rig: BrokerRig, c: RigClient
) -> None:
    other = rig.client().open()
    consume(other, reader="r")
    other.lose()
    publish(c, b"1")
    rig.restart()
    c = rig.client().open()
    consume(c, reader="r")
    assert bodies(c) == [b"1"]


def test_the_position_is_the_smallest_that_is_unacked(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(6))
    consume(c, reader="r", offset="first")
    found = records(c)
    ack(c, found[2], found[1])
    assert offset_of(rig) == 0
    ack(c, found[0])
    assert offset_of(rig) == 3
    c.send(1, BasicAck(delivery_tag=found[4].tag, multiple=True))
    rig.turn()
    assert offset_of(rig) == 5


def test_what_is_given_back_comes_to_who_reads_on(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(4))
    consume(c, reader="r", offset="first")
    found = records(c)
    c.send(1, BasicReject(delivery_tag=found[0].tag, requeue=False))
    c.send(1, BasicNack(delivery_tag=found[1].tag, requeue=True))
    ack(c, found[2], found[3])
    assert offset_of(rig) == 1
    c.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
    consume(c, tag="again", reader="r")
    assert bodies(c) == numbers(3, 1)


def test_one_consumer_at_a_time_reads_under_a_name(rig: BrokerRig, c: RigClient) -> None:
    consume(c, reader="r")
    other = rig.client().open()
    consume(other, reader="other")
    qos(other)
    code, text = refused(other, arguments={"x-stream-reader": "r"})
    assert (code, "reader 'r'" in text, "in exclusive use" in text) == (403, True, True)
    c.lose()
    other = rig.client().open()
    consume(other, reader="r")


def test_consumers_share_the_partitions_under_one_name(rig: BrokerRig, c: RigClient) -> None:
    declare(c, "p", x_partitions=3)
    bind_all(c, "p")
    for i in range(30):
        c.publish(1, "amq.topic", f"k{i}", b"%d" % i)
    rig.turn()
    others = [rig.client().open() for _ in range(2)]
    got: list[bytes] = []
    for partition, other in enumerate([c, *others]):
        consume(other, "p", offset="first", reader="r", partition=partition)
        found = records(other)
        assert {record.partition for record in found} == {partition}
        ack(other, *found)
        got += [record.body for record in found]
    assert sorted(got) == sorted(numbers(30))
    ends = [part.head_offset for part in rig.vhost.streams.all()[0].parts]
    assert [offset_of(rig, name=b"p\0p%d" % n) for n in range(3)] == ends
    third = rig.client().open()
    qos(third)
    method = BasicConsume(queue="p", consumer_tag="x", arguments={"x-stream-reader": "r"})
    third.send(1, method)
    rig.turn()
    assert error_of(third)[0] == 403


def test_an_explicit_offset_moves_the_reader(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(5))
    consume(c, reader="r")
    c.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
    consume(c, tag="back", reader="r", offset=1)
    assert offset_of(rig) == 1
    assert bodies(c) == numbers(4, 1)


def test_acks_after_a_cancel_count(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(3))
    consume(c, reader="r", offset="first")
    found = records(c)
    c.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
    ack(c, *found[:2])
    assert offset_of(rig) == 2


def test_readers_that_have_gone_cost_nothing(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(3))
    stream = rig.vhost.streams.all()[0]
    for i in range(5):
        other = rig.client().open()
        consume(other, reader=f"r{i}", offset="first")
        assert len(records(other)) == 3
        other.lose()
    consume(c, reader="r", offset="first")
    found = records(c)
    c.call(1, BasicCancel(consumer_tag="t"), BasicCancelOk)
    assert list(stream.readings) == [("r", 0)]
    ack(c, *found)
    assert stream.readings == {}
    assert len(stream.known_readers()) == 6


def test_acks_of_a_turn_are_one_record(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(50))
    consume(c, reader="r", offset="first")
    found = records(c)
    before = rig.vhost.engine.log.last_lsn
    ack(c, *found)
    assert rig.vhost.engine.log.last_lsn == before + 1
    assert offset_of(rig) == 50


def test_acks_force_no_sync(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(3))
    consume(c, reader="r", offset="first")
    found = records(c)
    syncs = rig.vhost.engine.log.syncs
    for record in found:
        ack(c, record)
    assert rig.vhost.engine.log.syncs == syncs


def test_a_reader_without_acks_in_the_last_turn_is_saved_at_the_stop(
    rig: BrokerRig, c: RigClient
) -> None:
    publish(c, *numbers(3))
    consume(c, reader="r", offset="first")
    found = records(c)
    c.send(1, BasicAck(delivery_tag=found[0].tag))  # and no turn after it
    rig.vhost.close()
    assert rig.data is not None
    rig.data.close()
    rig.clients = []
    rig.start()
    assert offset_of(rig) == 1


def test_a_channel_that_is_closed_keeps_what_was_acked(rig: BrokerRig, c: RigClient) -> None:
    publish(c, *numbers(3))
    consume(c, reader="r", offset="first")
    found = records(c)
    c.send(1, BasicAck(delivery_tag=found[0].tag))
    c.send(1, ChannelClose(reply_code=200, reply_text="", class_id=0, method_id=0))
    rig.turn()
    c.methods(ChannelCloseOk)
    assert offset_of(rig) == 1
    c = rig.client().open()
    consume(c, reader="r")
    assert bodies(c) == numbers(2, 1)


def test_each_partition_has_its_reader(rig: BrokerRig, c: RigClient) -> None:
    declare(c, "p", x_partitions=2)
    bind_all(c, "p")
    for i in range(20):
        c.publish(1, "amq.topic", f"k{i}", b"%d" % i)
    rig.turn()
    consume(c, "p", reader="r", offset="first")
    found = records(c)
    ack(c, *[record for record in found if record.partition == 1])
    ends = [offset_of(rig, name=b"p\0p%d" % n) for n in range(2)]
    assert ends == [0, sum(record.partition for record in found)]
