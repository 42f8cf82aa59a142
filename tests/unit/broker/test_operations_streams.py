"""Operations on streams: what is told of them, readers, retention; the box's own ways to append."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.access.permissions import Identity
from penstock.broker.channel import Channel
from penstock.operation_table import AUDIT_STREAM, OPERATIONS
from penstock.storage.files.durability import DISK
from tests.helpers.broker_rig import RigClient
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import OperationRig
from tests.helpers.stream_steps import (
    Record,
    ack,
    consume,
    count,
    declare,
    error_of,
    publish,
    records,
)

READER: dict[str, object] = {"queue": "s", "reader": "r"}


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


@pytest.fixture
def c(rig: OperationRig) -> RigClient:
    client = rig.client().open()
    declare(client)
    return client


def channel_of(client: RigClient) -> Channel:
    return client.handler.channels[1]


# ---- telling -------------------------------------------------------------------------------------


def test_a_description(rig: OperationRig, c: RigClient) -> None:
    declare(c, "p", x_partitions=2, x_max_age="1D")
    publish(c, b"123", b"4", to="p")
    consume(c, "p", offset="first", reader="r")
    ack(c, records(c)[0])
    found = rig.result("describe_stream", queue="p")
    assert found["name"] == "p"
    assert found["arguments"] == {"x-queue-type": "stream", "x-partitions": 2, "x-max-age": "1D"}
    one, two = found["partitions"]
    full, empty = (one, two) if one["records"] else (two, one)
    assert (full["first"], full["head"], full["records"]) == (0, 2, 2)
    assert (empty["first"], empty["head"], empty["records"]) == (0, 0, 0)
    assert {one["partition"], two["partition"]} == {0, 1}
    assert rig.fs.exists(full["path"] + "/allMeta")
    assert len(bytes.fromhex(full["stream_id"])) == 16
    assert full["number"] != empty["number"]
    assert full["bytes"] > 4
    assert full["last_time_us"] == rig.clock.wall_us()
    at = {str(full["partition"]): 1, str(empty["partition"]): 0}
    (reader,) = found["readers"].values()
    unread = {str(full["partition"]): 1, str(empty["partition"]): 0}
    assert reader == {
        "offsets": at, "kept_from": {}, "time_ms": rig.clock.wall_ms(), "lag_records": unread,
        "lag_ms": dict.fromkeys(unread, 0),
    }  # fmt: skip


def lag_of(rig: OperationRig, reader: str = "r") -> tuple[object, object]:
    """Records and milliseconds by which a reader of s is behind, in partition 0."""
    (row,) = [row for row in rig.result("list_streams") if row["name"] == "s"]
    found = row["readers"][reader]
    assert set(found["lag_records"]) == set(found["lag_ms"]) == {"0"}
    return found["lag_records"]["0"], found["lag_ms"]["0"]


def test_how_far_a_reader_is_behind(rig: OperationRig, c: RigClient) -> None:
    """In records, and in the age of the oldest record that it has not read."""
    rig.result("set_stream_reader", offsets={"0": 0}, **READER)
    assert lag_of(rig) == (0, 0)
    first_ms = rig.clock.wall_ms()
    publish(c, b"1")
    rig.tick(10)
    second_ms = rig.clock.wall_ms()
    publish(c, b"2")
    publish(c, b"3")
    rig.tick(5)
    now_ms = rig.clock.wall_ms()
    assert lag_of(rig) == (3, now_ms - first_ms)
    rig.result("set_stream_reader", offsets={"0": 1}, **READER)
    assert lag_of(rig) == (2, now_ms - second_ms)
    rig.result("set_stream_reader", offsets={"0": 3}, **READER)
    assert lag_of(rig) == (0, 0)
    rig.tick(60)
    assert lag_of(rig) == (0, 0)  # nothing is unread, however old it is
    rig.result("set_stream_reader", offsets={"0": 9}, **READER)  # it read what a crash took back
    assert lag_of(rig) == (0, 0)


def test_what_retention_deleted_is_no_lag(rig: OperationRig, c: RigClient) -> None:
    declare(c, "t", x_stream_max_segment_size_bytes=4096, x_max_length=10)
    rig.result("set_stream_reader", queue="t", reader="r", offsets={"0": 0})
    filled(rig, c, x_max_length=10)
    settled_down(rig)
    (row,) = [row for row in rig.result("list_streams") if row["name"] == "t"]
    (part,) = row["partitions"]
    assert part["first"] > 0
    assert row["readers"]["r"]["lag_records"] == {"0": part["records"]}
    rig.restart()  # times of records come from the index on disk now
    again = rig.result("describe_stream", queue="t")["readers"]["r"]
    assert again["lag_records"] == {"0": part["records"]}
    assert again["lag_ms"]["0"] >= row["readers"]["r"]["lag_ms"]["0"] > 0


@pure_only  # a method of a compiled class cannot be replaced
def test_a_lag_whose_page_cannot_be_read(rig: OperationRig, c: RigClient) -> None:
    rig.result("set_stream_reader", offsets={"0": 0}, **READER)
    publish(c, b"1")

    def fails(offset: int) -> int:
        raise OSError(5, "the disk is broken")

    rig.vhost.streams.all()[0].parts[0].queue.indexed_time = fails  # type: ignore[method-assign]
    assert lag_of(rig) == (1, None)


def test_lists(rig: OperationRig, c: RigClient) -> None:
    declare(c, "a")
    rig.result("declare_queue", queue="q")
    assert [row["name"] for row in rig.result("list_streams")] == ["a", "s"]
    only = rig.client(Identity("u", frozenset(), "", "", "^a$")).open()
    assert [row["name"] for row in rig.result("list_streams", channel_of(only))] == ["a"]
    queues = {row["name"]: row for row in rig.result("list_queues")}
    assert [queues[name]["type"] for name in ("a", "q", "s")] == ["stream", "classic", "stream"]
    assert rig.result("vhost_status")["streams"] == 2


def test_a_stream_among_queues(rig: OperationRig, c: RigClient) -> None:
    publish(c, b"1", b"2")
    consume(c, offset="first")
    assert len(records(c)) == 2
    (row,) = rig.result("list_queues")
    assert (row["messages"], row["messages_ready"], row["consumers"]) == (2, 2, 1)
    assert (row["messages_unacknowledged"], row["memory"], row["durable"]) == (2, 0, True)
    assert row["message_stats"]["publish"] == row["message_stats"]["deliver"] == 2
    (consumer,) = rig.result("list_consumers")
    assert (consumer["queue_name"], consumer["unacked"]) == ("s", 2)


def test_times(rig: OperationRig, c: RigClient) -> None:
    times = []
    for body in (b"1", b"2"):
        times.append(rig.clock.wall_us())
        publish(c, body)
        rig.tick(10)
    where = {"queue": "s", "partition": 0}
    for time_us, offset in ((0, 0), (times[0], 0), (times[0] + 1, 1), (times[1] + 1, 2)):
        assert rig.result("find_stream_offset", time_us=time_us, **where) == offset
    assert rig.refusal("find_stream_offset", queue="s", partition=1, time_us=0).code == 406


@pytest.mark.parametrize(
    "op",
    ["describe_stream", "find_stream_offset", "set_stream_reader", "delete_stream_reader",
     "retain_stream"],
)  # fmt: skip
def test_what_is_no_stream_or_not_for_everybody(rig: OperationRig, c: RigClient, op: str) -> None:
    rig.result("declare_queue", queue="q")
    values: dict[str, object] = {"time_us": 0, "reader": "r", "offsets": {"0": 1}}
    known = {argument.name for argument in OPERATIONS[op].arguments}
    args = {name: value for name, value in values.items() if name in known}
    assert rig.refusal(op, queue="nothing", **args).code == 404
    found = rig.refusal(op, queue="q", **args)
    assert (found.code, "is not a stream" in found.text) == (406, True)
    nobody = rig.client(Identity("u", frozenset({"monitoring"}), "", "", "")).open()
    assert rig.refusal(op, channel_of(nobody), queue="s", **args).code == 403


@pytest.mark.parametrize("op", ["purge_queue", "peek"])
def test_what_streams_have_not(rig: OperationRig, c: RigClient, op: str) -> None:
    assert rig.refusal(op, queue="s").code == 540
    assert rig.refusal("get", queue="s", session="x").code == 540


# ---- readers -------------------------------------------------------------------------------------


def test_a_reader_is_set_read_from_and_deleted(rig: OperationRig, c: RigClient) -> None:
    publish(c, *[b"%d" % i for i in range(5)])
    rig.result("set_stream_reader", offsets={"0": 3}, kept_from={"0": 1}, **READER)
    found = rig.result("describe_stream", queue="s")["readers"]["r"]
    assert (found["offsets"], found["kept_from"]) == ({"0": 3}, {"0": 1})
    consume(c, reader="r")
    first, second = records(c)
    assert [first.body, second.body] == [b"3", b"4"]
    ack(c, first)
    found = rig.result("describe_stream", queue="s")["readers"]["r"]
    assert (found["offsets"], found["kept_from"]) == ({"0": 4}, {"0": 1})
    rig.result("set_stream_reader", offsets={"0": 5}, **READER)
    assert rig.result("describe_stream", queue="s")["readers"]["r"]["kept_from"] == {}
    rig.result("delete_stream_reader", **READER)
    rig.result("delete_stream_reader", **READER)
    assert rig.result("describe_stream", queue="s")["readers"] == {}


def test_readers_are_there_after_a_restart(rig: OperationRig, c: RigClient) -> None:
    rig.result("set_stream_reader", offsets={"0": 3}, wait=True, **READER)
    assert rig.vhost.engine.log.settled(DISK) >= rig.vhost.engine.log.last_lsn
    rig.restart()
    assert rig.result("describe_stream", queue="s")["readers"]["r"]["offsets"] == {"0": 3}


def test_it_waits_for_the_disk_only_when_asked_to(rig: OperationRig, c: RigClient) -> None:
    assert rig.ask("set_stream_reader", offsets={"0": 3}, **READER).has_come
    asked = rig.ask("set_stream_reader", offsets={"0": 4}, wait=True, **READER)
    assert not asked.has_come
    rig.turn()
    assert asked.result == {}


@pytest.mark.parametrize(
    "args",
    [
        {}, {"offsets": {}}, {"offsets": {"1": 0}}, {"offsets": {"x": 0}}, {"offsets": {"0": -1}},
        {"offsets": {"0": "1"}}, {"offsets": {"0": 1 << 70}}, {"offsets": {"0": True}},
        {"offsets": {"0": 0}, "kept_from": {"0": -1}}, {"offsets": [0]},
        {"offsets": {"0": 0}, "reader": ""}, {"offsets": {"0": 0}, "reader": "\udcff"},
        {"offsets": {"0": 0}, "reader": "r" * 256}, {"offsets": {"0": 0}, "offset": 1},
    ],
)  # fmt: skip
def test_a_reader_that_makes_no_sense(
    rig: OperationRig, c: RigClient, args: dict[str, object]
) -> None:
    assert rig.refusal("set_stream_reader", **{**READER, **args}).code == 406
    assert rig.result("describe_stream", queue="s")["readers"] == {}


# ---- retention -----------------------------------------------------------------------------------


def filled(rig: OperationRig, c: RigClient, **arguments: object) -> int:
    """A stream "t" of small pages with 200 records of 200 bytes, one each second; how many pages
    there are."""
    declare(c, "t", x_stream_max_segment_size_bytes=4096, **arguments)
    for i in range(200):
        c.publish(1, "", "t", b"%d" % i * 100)
        rig.clock.advance(1)
        if i % 10 == 9:
            rig.turn()
    rig.turn()
    return pages(rig)


def pages(rig: OperationRig) -> int:
    path = rig.vhost.engine.streams.get(b"t").path
    return len([name for name in rig.fs.names() if name.startswith(path) and ".page" in name])


def settled_down(rig: OperationRig) -> None:
    """Some minutes, in which retention looks, and checkpoints let it."""
    for _ in range(30):
        rig.tick(10)


@pytest.mark.parametrize(
    ("arguments", "most"),
    [({"x_max_length": 50}, 70), ({"x_max_length_bytes": 20_000}, 100), ({"x_max_age": "6m"}, 80)],
)
def test_limits_take_whole_pages(
    rig: OperationRig, c: RigClient, arguments: dict[str, object], most: int
) -> None:
    before = filled(rig, c, **arguments)
    settled_down(rig)
    assert pages(rig) < before
    left = count(rig, "t")
    assert 0 < left <= most
    consume(c, "t", offset="first")
    found = records(c)
    assert [r.offset for r in found] == list(range(200 - left, 200))
    assert found[0].gap == 0
    rig.restart()
    assert count(rig, "t") == left


def test_without_limits_nothing_goes(rig: OperationRig, c: RigClient) -> None:
    before = filled(rig, c)
    settled_down(rig)
    assert (pages(rig), count(rig, "t")) == (before, 200)
    assert rig.result("retain_stream", queue="t") == {"pages": 0}


# ---- the audit -----------------------------------------------------------------------------------


def test_the_audit_is_appended_and_nobody_else_writes_it(rig: OperationRig, c: RigClient) -> None:
    rig.vhost.audit_stream = AUDIT_STREAM
    for n in range(2):
        lines = [f'{{"event": "add_user", "n": {n}}}', '{"event": "stop"}']
        assert rig.result("append_audit", lines=lines, bytes_max=1 << 20) == {}
    consume(c, AUDIT_STREAM, offset="first")
    found = [one.body for one in records(c)]
    assert found == [
        b'{"event": "add_user", "n": 0}', b'{"event": "stop"}', b'{"event": "add_user", "n": 1}',
        b'{"event": "stop"}',
    ]  # fmt: skip
    declared = rig.result("describe_stream", queue=AUDIT_STREAM)["arguments"]
    assert declared["x-max-length-bytes"] == 8 * declared["x-stream-max-segment-size-bytes"]
    assert rig.refusal("delete_queue", queue=AUDIT_STREAM).code == 403
    assert rig.refusal("bind_queue", queue=AUDIT_STREAM, exchange="amq.fanout").code == 403
    assert rig.refusal("box.append_to", channel_of(c), name=AUDIT_STREAM).code == 403
    published = rig.refusal("publish", exchange="", routing_key=AUDIT_STREAM, bodies=["x"])
    assert published.code == 312


def test_a_reader_keeps_what_it_asked_for_while_it_is_heard_of(
    rig: OperationRig, c: RigClient
) -> None:
    declare(c, "t", x_stream_max_segment_size_bytes=4096, x_max_length=10)
    args: dict[str, Any] = {"queue": "t", "reader": "r", "offsets": {"0": 0}}
    rig.result("set_stream_reader", kept_from={"0": 0}, **args)
    filled(rig, c, x_max_length=10)
    for _ in range(5):
        rig.result("set_stream_reader", kept_from={"0": 0}, **args)
        settled_down(rig)
        assert count(rig, "t") == 200
    settled_down(rig)
    settled_down(rig)
    assert count(rig, "t") < 200


@pytest.mark.parametrize("bound", [{"stream_hold_bytes_max": 10_000}, {"stream_hold_s_max": 1.0}])
def test_a_reader_that_is_always_heard_of_holds_so_much_and_no_more(
    rig: OperationRig, c: RigClient, bound: dict[str, Any]
) -> None:
    """A user who may only read held all of a stream for ever, by asking again and again."""
    declare(c, "t", x_stream_max_segment_size_bytes=4096, x_max_length=10)
    args: dict[str, Any] = {"queue": "t", "reader": "r", "offsets": {"0": 0}}
    rig.result("set_stream_reader", kept_from={"0": 0}, **args)
    filled(rig, c, x_max_length=10)
    settled_down(rig)
    assert count(rig, "t") == 200
    rig.settings = replace(rig.settings, **bound)
    rig.restart()
    for _ in range(3):
        rig.result("set_stream_reader", kept_from={"0": 0}, **args)
        settled_down(rig)
    (part,) = rig.vhost.streams.all()[0].parts
    left = sum(part.queue.pages.info(base).bytes for base in part.queue.pages.bases[:-1])
    assert left <= bound.get("stream_hold_bytes_max", 4096) + 4096
    assert count(rig, "t") < 200


def test_a_reader_that_was_overtaken_is_told_of_the_gap(rig: OperationRig, c: RigClient) -> None:
    filled(rig, c, x_max_length=50)
    consume(c, "t", offset=5, prefetch=1)
    (first,) = records(c)
    assert first.offset == 5
    settled_down(rig)
    left = count(rig, "t")
    consume(c, "t", tag="other", offset=20)
    other = next(record for record in records(c) if record.consumer == "other")
    assert (other.offset, other.gap) == (200 - left, 200 - left - 20)
    found: list[Record] = []
    while len(found) < 200:
        ack(c, *[r for r in [first] if not found])
        came = [r for r in records(c) if r.consumer == "t"]
        if not came:
            break
        found += came
        first = came[-1]
        ack(c, first)
    gaps = [record for record in found if record.gap]
    assert len(gaps) == 1
    offsets = [record.offset for record in found]
    at = offsets.index(gaps[0].offset)
    assert gaps[0].gap == offsets[at] - offsets[at - 1] - 1
    assert offsets[-1] == 199


def test_an_idle_stream_is_empty_once_all_of_it_is_too_old(rig: OperationRig, c: RigClient) -> None:
    """Also what is in one page, which nobody writes to any more."""
    declare(c, "t", x_max_age="1m")
    publish(c, b"0", b"1", to="t")
    consume(c, "t", offset="first")
    assert [r.offset for r in records(c)] == [0, 1]
    settled_down(rig)
    assert (count(rig, "t"), pages(rig)) == (0, 0)
    rig.restart()
    assert (count(rig, "t"), pages(rig)) == (0, 0)
    d = rig.client().open()
    consume(d, "t", offset="first")
    assert records(d) == []
    publish(d, b"2", to="t")
    (record,) = records(d)
    assert (record.offset, record.body, record.gap) == (2, b"2", 0)
    publish(d, b"3", to="t")
    rig.restart()
    assert (count(rig, "t"), pages(rig)) == (2, 1)


# ---- the box -------------------------------------------------------------------------------------


def test_a_channel_that_appends_to_one_stream(rig: OperationRig, c: RigClient) -> None:
    declare(c, "p", x_partitions=4)
    channel = channel_of(c)
    rig.result("box.append_to", channel, name="p")
    for i in range(8):
        c.publish(1, "", f"key {i}", b"%d" % i, headers={"a": i} if i % 2 else None)
    rig.turn()
    runs = rig.result("box.appended", channel, n=8)
    places = [(run[0], at) for run in runs for at in range(run[1], run[1] + run[2])]
    consume(c, "p", offset="first", tag="r")
    found = {(r.partition, r.offset): r for r in records(c)}
    assert [found[place].key for place in places] == [f"key {i}" for i in range(8)]
    assert rig.refusal("box.appended", channel, n=1).code == 406
    rig.result("box.append_to", channel, name=None)
    publish(c, b"plain")
    assert (count(rig), count(rig, "p")) == (1, 8)


def test_offsets_that_follow_each_other_are_one_run(rig: OperationRig, c: RigClient) -> None:
    channel = channel_of(c)
    rig.result("box.append_to", channel, name="s")
    for i in range(5):
        c.publish(1, "", "k", b"%d" % i, headers={"a": i} if i % 2 else None)
    rig.turn()
    assert rig.result("box.appended", channel, n=3) == [[0, 2, 3]]  # of the last three
    assert "0 are remembered, asked for 1" in rig.refusal("box.appended", channel, n=1).text


def test_appending_needs_the_right_to_write(rig: OperationRig, c: RigClient) -> None:
    reader = rig.client(Identity("u", frozenset(), ".*", "^$", ".*")).open()
    assert rig.refusal("box.append_to", channel_of(reader), name="s").code == 403
    assert rig.refusal("box.append_to", channel_of(c), name="nothing").code == 404


def test_a_right_to_append_that_is_revoked_ends(rig: OperationRig, c: RigClient) -> None:
    client = rig.client(Identity("u", frozenset(), "", "^s$", "")).open()
    rig.result("box.append_to", channel_of(client), name="s")
    client.publish(1, "", "k", b"1")
    rig.turn()
    client.handler.set_identity(Identity("u", frozenset(), "", "^other$", ""))
    client.publish(1, "", "k", b"2")
    rig.turn()
    assert error_of(client)[0] == 403
    assert count(rig) == 1


def test_a_stream_that_goes_while_it_is_appended_to(rig: OperationRig, c: RigClient) -> None:
    rig.result("box.append_to", channel_of(c), name="s")
    publish(c, b"1")
    rig.result("delete_queue", queue="s")
    c.publish(1, "", "k", b"2")
    rig.turn()
    assert error_of(c)[0] == 404


def test_the_box_knows_streams_by_name_and_does_not_list_them(
    rig: OperationRig, c: RigClient
) -> None:
    channel = channel_of(c)
    found = rig.result("box.queue", channel, name="s")
    assert (found["exists"], found["arguments"]) == (True, {"x-queue-type": "stream"})
    assert rig.result("box.queues", channel, n=10) == []
    assert rig.refusal("box.queue_info", channel, name="s").code == 540
    rig.result("box.delete", channel, name="s")
    assert not rig.vhost.table.has("s")
