"""Streams and their vhost: a full disk, faults, many streams, what a start and a stop do."""

import errno

import pytest

from penstock.codec.spec import (
    BasicAck,
    BasicConsume,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionBlocked,
)
from penstock.errors import ChannelError
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.stream_steps import (
    bodies,
    consume,
    count,
    declare,
    error_of,
    publish,
    qos,
    records,
)

KIB = b"x" * 1024


@pytest.fixture
def c(rig: BrokerRig) -> RigClient:
    client = rig.client(None, **{"connection.blocked": True}).open()
    declare(client)
    return client


def test_a_full_disk_blocks_publishers_and_loses_nothing(rig: BrokerRig, c: RigClient) -> None:
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    rig.fs.capacity = rig.fs.used_bytes() + 100_000
    sent = 0
    while not rig.vhost.blocked_reason and sent < 1000:
        c.publish(1, "", "s", b"%d " % sent + KIB)
        sent += 1
        rig.turn()
    assert rig.vhost.blocked_reason == "disk"
    assert len(c.methods(ConnectionBlocked)) == 1
    for _ in range(5):
        c.publish(1, "", "s", b"%d " % sent + KIB)
        sent += 1
    rig.turn()
    confirmed = max([told.delivery_tag for told in c.methods(BasicAck)])
    # What is in the log is confirmed, also where its page finds no room yet.
    assert confirmed <= rig.vhost.engine.streams.get(b"s").next_offset < sent
    rig.fs.capacity = None
    for _ in range(10):
        rig.tick(1)
    assert max([told.delivery_tag for told in c.methods(BasicAck)]) == sent
    reader = rig.client().open()
    consume(reader, offset="first", prefetch=sent + 1)
    found: list[bytes] = []
    while came := bodies(reader):
        found += came
    assert found == [b"%d " % i + KIB for i in range(sent)]


def test_a_write_of_pages_that_fails_holds_up_readers_alone(rig: BrokerRig, c: RigClient) -> None:
    consume(c, offset="first")
    c.call(1, ConfirmSelect(), ConfirmSelectOk)
    rig.fs.fail(errno.EIO, kinds={"pwrite"}, path=".page", times=None)
    publish(c, b"1", b"2")
    assert c.methods(BasicAck)  # the log has them
    assert records(c) == []
    rig.fs.clear_faults()
    publish(c, b"3")
    assert bodies(c) == [b"1", b"2", b"3"]


def test_a_declare_that_finds_no_room_leaves_nothing(rig: BrokerRig, c: RigClient) -> None:
    rig.fs.fail(errno.ENOSPC, kinds={"mkdir", "create", "pwrite"}, path="streams/")
    with pytest.raises(ChannelError, match="no space for queue 'full'"):
        rig.vhost.declare_queue("full", durable=True, arguments={"x-queue-type": "stream"})
    assert not rig.vhost.table.has("full")
    declare(c, "full")
    rig.tick(10)  # there is room again
    publish(c, b"1", to="full")
    assert count(rig, "full") == 1


def test_many_streams_are_there_after_a_start(rig: BrokerRig, c: RigClient) -> None:
    names = [f"s{i}" for i in range(30)]
    for i, name in enumerate(names):
        declare(c, name, **({"x_partitions": 2} if i % 3 == 0 else {}))
        publish(c, b"x", to=name)
    rig.restart()
    assert sorted(rig.vhost.table.served) == sorted(["s", *names])
    assert {count(rig, name) for name in names} == {1}
    assert [stream.name for stream in rig.vhost.streams.all()] == sorted(["s", *names])


def test_arguments_of_a_later_version_are_left_out(rig: BrokerRig, c: RigClient) -> None:
    declare(c, "p", x_partitions=2)
    publish(c, b"x", to="p")
    routing = rig.vhost.engine.state.routing
    stored = routing.queues[b"p\0p0"]
    changed = type(stored)(stored.name, stored.number, stored.flags, b'{"x-max-age":"soon"}')
    rig.vhost.engine.apply_topology(changed.record())
    rig.restart()
    assert count(rig, "p") == 1
    assert len(rig.vhost.streams.all()[0].parts) == 2
    assert [kind for kind, text in rig.events if "arguments are left out" in text] == ["warning"]


def test_a_look_at_a_damaged_page_is_refused_and_the_vhost_goes_on(
    rig: BrokerRig, c: RigClient
) -> None:
    publish(c, *[KIB] * 20)
    rig.restart()
    c = rig.client().open()
    fault = rig.fs.fail(errno.EIO, kinds={"read"}, path=rig.vhost.engine.streams.get(b"s").path)
    fault.times = None
    qos(c)
    begin: dict[str, object] = {"x-stream-offset": "1h"}
    c.send(1, BasicConsume(queue="s", consumer_tag="t", arguments=begin))
    rig.turn()
    assert error_of(c)[0] == 506
    rig.fs.clear_faults()
    c = rig.client().open()
    consume(c, offset="1h")
    assert len(records(c)) == 20
