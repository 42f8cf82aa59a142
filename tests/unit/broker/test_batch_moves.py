"""Rolling a batch forward: into queues, by exchanges, into streams; waiting, crashing, going on."""

import errno
import random
from typing import Any

import pytest

from penstock.access.permissions import everything
from penstock.broker import background_tasks
from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.exactly_once import batch_moves
from penstock.broker.exactly_once.batch_moves import BatchRouter, BatchTarget
from penstock.broker.exactly_once.batches import batch_manager
from penstock.queues.stream_options import partition_of
from penstock.storage.files.filesystem import FileSystem
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import Asked
from tests.helpers.staged_rig import QUERY, StagedRig, header, plain
from tests.helpers.steps import cost_of

STREAM = {"x-queue-type": "stream"}


@pytest.fixture(autouse=True)
def one_slice_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still; with a real one it is about as many."""
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)


@pytest.fixture
def rig() -> StagedRig:
    rig = StagedRig()
    rig.result("declare_queue", queue="q")
    return rig


def told(rig: StagedRig, kind: str) -> list[str]:
    return [text for k, text in rig.events if k == kind]


def numbered(n: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + n)]


def records(rig: StagedRig, name: str = "s", partition: int = 0) -> list[Any]:
    """What a reader is given."""
    stream = rig.vhost.table.usable(name)
    assert isinstance(stream, BrokerStream)
    part = stream.parts[partition]
    found = part.queue.read(part.first_offset, 100_000, 1 << 30)
    return [one for one in found if one.offset < part.head_offset]


def payloads(rig: StagedRig, name: str = "s", partition: int = 0) -> list[bytes]:
    return [one.payload for one in records(rig, name, partition)]


# ---- into queues ---------------------------------------------------------------------------------


def test_many_messages_go_in_slices_and_in_order(rig: StagedRig) -> None:
    pages = [plain("q", *numbered(700, 700 * i)) for i in range(3)]
    asked = rig.commit(0, rig.stage(0, *pages))
    turns = 0
    while not asked.has_come or not next(batch_manager(rig.vhost).all())["is_done"]:
        rig.vhost.turn()
        rig.vhost.completed()
        turns += 1
        assert turns < 500
    assert turns > 1  # 2100 messages, 1024 at most in a slice, for some milliseconds in a turn
    found: list[bytes] = []
    while messages := rig.result("get", queue="q", count=1000, session="x")["messages"]:
        found += [m["body"] for m in messages]
        rig.result("settle", queue="q", session="x", tags=[m["tag"] for m in messages])
    assert found == numbered(2100)


def test_runs_and_what_is_between_them_keep_their_order(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="full", arguments={"x-max-length": 4})
    large = b"L" * 70_000  # into the store, and those that are with it one by one
    frames = [
        *plain("q", *numbered(50)),
        *plain("q", *numbered(50, 50), message_id="another"),
        *plain("q", b"100", large, b"101"),
        *plain("q", *numbered(50, 102)),
    ]
    rig.committed(0, rig.stage(0, frames))
    assert rig.bodies() == [*numbered(101), large, *numbered(51, 101)]
    rig.committed(1, rig.stage(1, plain("full", *numbered(600))), target={"queue": "full"})
    rig.tick(1)
    assert rig.bodies("full") == numbered(4, 596)


def test_a_run_that_is_delayed_is_due_as_a_whole(rig: StagedRig) -> None:
    rig.committed(0, rig.stage(0, plain("q", *numbered(9), headers={"x-delay": 5000})))
    assert rig.bodies() == []
    rig.restart()
    rig.tick(7)
    assert rig.bodies() == numbered(9)


def test_a_run_is_held_until_its_record_is_settled(rig: StagedRig) -> None:
    queue = rig.vhost.table.usable("q")
    assert isinstance(queue, BrokerQueue)
    slices = BatchRouter(rig.vhost, BatchTarget("q", (), ""), everything("me"))
    part = slices.begin()
    part.put_run(header("q"), [b"1", b"2"])
    lsn = part.commit()
    assert queue.amq.held() == (lsn, rig.vhost.mode)
    assert (queue.amq.len(), queue.published, part.bytes) == (2, 2, 2 + 2 * len(header("q")))


def test_headers_are_those_that_were_staged(rig: StagedRig) -> None:
    meta = header("key", message_id="m-1", headers={"n": 1}, delivery_mode=1)
    rig.committed(0, rig.stage(0, [(meta, b"a")]))
    rig.restart()  # it is persistent all the same
    (found,) = rig.result("peek", queue="q", count=1)["messages"]
    assert (found["routing_key"], found["exchange"]) == ("key", "")
    assert found["properties"] == {"message_id": "m-1", "headers": {"n": 1}, "delivery_mode": 1}


def test_priorities_and_expirations_count(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="p", arguments={"x-max-priority": 3})
    rig.result("declare_queue", queue="dead")
    frames = plain("p", b"low") + plain("p", b"high", priority=2)
    rig.committed(0, rig.stage(0, frames), target={"queue": "p"})
    assert rig.bodies("p") == [b"high", b"low"]
    rig.result(
        "declare_queue", queue="e",
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    )  # fmt: skip
    frames = plain("e", b"short", expiration="1000") + plain("e", b"long")
    rig.committed(1, rig.stage(1, frames), target={"queue": "e"})
    rig.tick(2)
    assert (rig.bodies("e"), rig.bodies("dead")) == ([b"long"], [b"short"])


def test_no_queue_refuses(rig: StagedRig) -> None:
    for name, overflow in (("h", "drop-head"), ("r", "reject-publish")):
        rig.result(
            "declare_queue", queue=name,
            arguments={
                "x-max-length": 2, "x-overflow": overflow, "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": "q",
            },
        )  # fmt: skip
    for batch, name in enumerate(("h", "r")):
        rig.committed(
            batch, rig.stage(batch, plain(name, b"1", b"2", b"3")), target={"queue": name}
        )
        assert rig.bodies(name) == [b"2", b"3"]
    assert rig.bodies() == [b"1", b"1"]


def test_chance_sends_the_messages_of_a_batch_to_several_queues(rig: StagedRig) -> None:
    rig.result("declare_exchange", exchange="x", type="x-random")
    for queue in ("a", "b"):
        rig.result("declare_queue", queue=queue)
        rig.result("bind_queue", queue=queue, exchange="x")
    frames = [frame for i in range(60) for frame in plain("k", b"%d" % i, exchange="x")]
    rig.commit(0, rig.stage(0, frames), target={"exchanges": ["x"]})
    rig.turn()
    assert min(rig.vhost.table.served[name].len() for name in ("a", "b")) > 15


def test_a_batch_is_kept_in_a_history(rig: StagedRig) -> None:
    rig.result("declare_exchange", exchange="x", type="x-recent-history")
    rig.result("bind_queue", queue="q", exchange="x")
    frames = [frame for i in range(3) for frame in plain("k", b"%d" % i, exchange="x")]
    rig.commit(0, rig.stage(0, frames), target={"exchanges": ["x"]})
    rig.turn()
    rig.result("declare_queue", queue="late")
    rig.result("bind_queue", queue="late", exchange="x")
    rig.turn()
    assert rig.vhost.table.served["late"].len() == rig.vhost.table.served["q"].len() == 3


def test_by_exchanges(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="other")
    rig.result("declare_queue", queue="t", durable=False)
    rig.result("declare_queue", queue="s", arguments=STREAM)
    for queue, key in (("q", "a.*"), ("other", "a.b"), ("s", "a.b"), ("t", "a.b"), ("q", "c")):
        rig.result("bind_queue", queue=queue, exchange="amq.topic", routing_key=key)
    frames = [
        *plain("a.b", b"1", exchange="amq.topic"),
        *plain("a.c", b"2", exchange="amq.topic"),
        *plain("nowhere", b"3", exchange="amq.topic"),
        *plain("other", b"4", exchange=""),
        *plain("x", b"5", exchange="amq.topic", headers={"CC": ["c"]}),
    ]
    target = {"exchanges": ["amq.topic", ""]}
    rig.committed(0, rig.stage(0, frames), target=target)
    assert rig.bodies() == [b"1", b"2", b"5"]
    assert rig.bodies("other") == [b"1", b"4"]
    assert rig.bodies("t") == [b"1"]
    assert payloads(rig) == [b"1"]
    (text,) = told(rig, "batch_unroutable")
    assert text.startswith("1 messages of batch 0")


@pytest.mark.parametrize("target", ["t", "r"])
@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EIO])
def test_a_disk_takes_nothing_from_a_slice_that_is_committed(
    rig: StagedRig, target: str, fault: int
) -> None:
    rig.result("declare_queue", queue="dead")
    rig.result("declare_queue", queue="t", durable=False)
    rig.result(
        "declare_queue", queue="r", durable=False,
        arguments={
            "x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )  # fmt: skip
    for queue in ("q", target):
        rig.result("bind_queue", queue=queue, exchange="amq.fanout")
    large = [bytes([i]) * 70_000 for i in range(6)]
    asked = rig.commit(
        0, rig.stage(0, plain("", *large, exchange="amq.fanout")),
        target={"exchanges": ["amq.fanout"]},
    )  # fmt: skip
    rig.fs.fail(fault, kinds={"create", "pwrite"}, path="msg_store_transient", times=2)
    rig.roll()
    for _ in range(5):
        rig.tick(2)
        rig.roll()
    assert asked.result["status"] == "committed"
    assert rig.bodies() == large
    assert rig.bodies(target) == (large if target == "t" else large[:1])


def test_consumers_are_served_when_a_slice_is_durable(rig: StagedRig) -> None:
    got: list[Any] = []
    waiting = rig.ask("get", queue="q", count=10, session="x", wait_ms=1000)
    rig.committed(0, rig.stage(0, plain("q", b"a")))
    got += waiting.result["messages"]
    assert [m["body"] for m in got] == [b"a"]


# ---- into streams --------------------------------------------------------------------------------


def test_into_a_stream_all_at_once_with_the_batchs_time(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="s", arguments=STREAM)
    asked = rig.commit(0, rig.stage(0, plain("s", *numbered(3000))), target={"queue": "s"})
    seen = set()
    for _ in range(200):
        rig.vhost.turn()
        rig.vhost.completed()
        seen.add(len(records(rig)))
    assert asked.result["status"] == "committed"
    assert seen == {0, 3000}
    assert payloads(rig) == numbered(3000)
    assert {one.time_us for one in records(rig)} == {rig.row()["time_us"]}


def test_partitions_by_routing_key(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="s", arguments={**STREAM, "x-partitions": 3})
    frames = [(header(f"k{i % 7}"), b"%d" % i) for i in range(70)]
    rig.committed(0, rig.stage(0, frames), target={"queue": "s"})
    found = [payloads(rig, "s", partition) for partition in range(3)]
    assert sorted(body for bodies in found for body in bodies) == sorted(numbered(70))
    assert all(found)
    for partition, bodies in enumerate(found):
        for other in range(3):
            keys = {int(body) % 7 for body in bodies}
            assert other == partition or not keys & {int(body) % 7 for body in found[other]}


def test_a_large_page_is_adopted(rig: StagedRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.result("declare_queue", queue="s", arguments=STREAM)
    large = [(header("s"), b"%d" % i + b"x" * 100_000) for i in range(60)]
    tokens = rig.stage(0, plain("s", b"before"), large, plain("s", b"after"))
    assert int(str(tokens[1]["bytes"])) > 4 << 20
    rig.committed(0, tokens, target={"queue": "s"})
    assert payloads(rig) == [b"before", *[body for _, body in large], b"after"]
    rig.restart()
    assert payloads(rig) == [b"before", *[body for _, body in large], b"after"]


def keyed(rig: StagedRig, partitions: int) -> list[list[tuple[bytes, bytes]]]:
    """Large frames of each partition of a new stream "s"."""
    arguments = {**STREAM, "x-partitions": partitions}
    rig.result("declare_queue", queue="s", arguments=arguments)
    keys: dict[int, str] = {}
    for n in range(100):
        keys.setdefault(partition_of(b"k%d" % n, partitions), f"k{n}")
    return [
        [(header(keys[p]), b"%d.%d" % (p, i) + b"x" * 100_000) for i in range(50)]
        for p in range(partitions)
    ]


def test_a_large_page_of_one_partition_is_adopted_by_it(rig: StagedRig) -> None:
    groups = keyed(rig, 3)
    mixed = [group[0] for group in groups] * 20
    tokens = [
        *rig.stage(0, groups[2], name="_2of3"), *rig.stage(0, groups[0], name="_0of3"),
        *rig.stage(0, mixed), *rig.stage(0, groups[0], name="_0of3"),
    ]  # fmt: skip
    claimed = rig.result("claim_query", query=QUERY, target={"queue": "s"})
    assert claimed["partitions"] == 3
    rig.committed(0, tokens, target={"queue": "s"})
    bodies = [[body for _, body in group] for group in groups]
    firsts = [[group[0]] * 20 for group in bodies]
    wanted = [
        [*bodies[0], *firsts[0], *bodies[0]], firsts[1], [*bodies[2], *firsts[2]]
    ]  # fmt: skip
    assert [payloads(rig, "s", p) for p in range(3)] == wanted
    assert {one.time_us for p in range(3) for one in records(rig, "s", p)} == {rig.row()["time_us"]}
    assert rig.vhost.table.usable("s").published == 210  # type: ignore[union-attr]
    rig.restart()
    assert [payloads(rig, "s", p) for p in range(3)] == wanted


@pytest.mark.parametrize("name", ["", "_1of2", "_1of4", "_3of3", "_1of3x", "_of3"])
def test_a_page_of_an_unknown_partition_goes_row_by_row(rig: StagedRig, name: str) -> None:
    """Its name says nothing, or it was staged for a stream of as many partitions as it had then."""
    groups = keyed(rig, 3)
    rig.committed(0, rig.stage(0, groups[1], name=name), target={"queue": "s"})
    bodies = [[body for _, body in group] for group in groups]
    assert [payloads(rig, "s", p) for p in range(3)] == [[], bodies[1], []]


def test_two_queries_write_into_one_stream_one_after_the_other(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="s", arguments=STREAM)
    asked = [
        rig.commit(
            0, rig.stage(0, plain("s", *[b"%d" % i] * 3000), query=f"query-{i}"), f"query-{i}",
            target={"queue": "s"},
        )
        for i in range(2)
    ]  # fmt: skip
    seen = set()
    while not all(one.has_come for one in asked):
        rig.vhost.turn()
        rig.vhost.completed()
        seen.add(len(records(rig)))
    assert [one.result["status"] for one in asked] == ["committed"] * 2
    assert seen == {0, 3000, 6000}
    assert payloads(rig) == [b"0"] * 3000 + [b"1"] * 3000


# ---- waiting -------------------------------------------------------------------------------------


def decided(rig: StagedRig, *pages: Any, target: object) -> None:
    """A batch is decided, and not a message of it moved."""
    rig.commit(0, rig.stage(0, *pages), target=target)
    for _ in range(100):
        if list(batch_manager(rig.vhost).all()):
            break
        rig.vhost.turn()
        rig.vhost.completed()
    assert not next(batch_manager(rig.vhost).all())["is_done"]


def test_a_target_that_was_deleted_makes_it_wait(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="gone")
    decided(rig, plain("gone", b"a"), target={"queue": "gone"})
    rig.vhost.delete_queue(rig.vhost.table.find_queue("gone"))
    rig.roll()
    assert (
        rig.row()["waits_for"] == "its target, queue 'gone' in vhost '/', does not exist any more"
    )
    assert len(told(rig, "batch_waits")) == 1
    rig.restart()
    rig.tick(2)
    assert "does not exist any more" in rig.row()["waits_for"]
    rig.tick(3700)
    rig.tick(2)
    assert len(told(rig, "batch_waits")) == 3
    rig.result("declare_queue", queue="gone")
    rig.tick(2)
    rig.roll()
    assert rig.bodies("gone") == [b"a"]
    assert (rig.row()["is_done"], rig.row()["waits_for"]) == (True, "")
    assert told(rig, "batch_goes_on") == [f"batch 0 of query {QUERY!r} goes on"]


def test_or_go_where_dead_letters_go(rig: StagedRig) -> None:
    rig.result("declare_queue", queue="gone")
    frames = plain("gone", b"a", headers={"n": 1})
    decided(rig, frames, target={"queue": "gone", "dead_letter_to": "q"})
    rig.vhost.delete_queue(rig.vhost.table.find_queue("gone"))
    rig.roll()
    (found,) = rig.result("peek", queue="q", count=5)["messages"]
    assert (found["body"], found["routing_key"]) == (b"a", "q")
    (death,) = found["properties"]["headers"]["x-death"]
    assert (death["queue"], death["reason"]) == ("gone", "rejected")
    assert rig.row()["is_done"]


def test_what_the_commit_did_not_name_waits_or_is_buried(rig: StagedRig) -> None:
    frames = plain("q", b"a", exchange="") + plain("q", b"b", exchange="amq.direct")
    rig.commit(0, rig.stage(0, frames), target={"exchanges": [""]})
    rig.roll()
    assert rig.bodies() == [b"a"]
    assert "exchange 'amq.direct' is not among those of the commit" in rig.row()["waits_for"]
    rig.result("declare_queue", queue="dead")
    target = {"exchanges": [""], "dead_letter_to": "dead"}
    damaged = (b"\x02\x00\x01q\xff\xff\xff", b"c")
    rig.committed(0, rig.stage(0, [*frames, damaged], query="x"), query="x", target=target)
    assert rig.bodies("dead") == [b"b", b"c"]


def test_a_damaged_page_makes_it_wait(rig: StagedRig) -> None:
    tokens = rig.stage(0, plain("q", *numbered(10)))
    decided_path = None
    rig.commit(0, tokens)
    fs: FileSystem = rig.fs
    for directory in fs.list(f"{rig.vhost.path}/staging"):
        for name in fs.list(f"{rig.vhost.path}/staging/{directory}"):
            if name.endswith(".page"):
                decided_path = f"{rig.vhost.path}/staging/{directory}/{name}"
    assert decided_path is not None
    for _ in range(100):
        if list(batch_manager(rig.vhost).all()):
            break
        rig.vhost.turn()
        rig.vhost.completed()
    with_fault = fs.open(decided_path)
    before = with_fault.pread(1, 200)
    with_fault.pwrite(bytes((before[0] ^ 1,)), 200)
    rig.roll()
    if not rig.row()["is_done"]:  # it was not read before
        assert decided_path in rig.row()["waits_for"]
        with_fault.pwrite(before, 200)
        rig.tick(2)
        rig.roll()
    with_fault.close()
    assert rig.bodies() == numbered(10)


def test_publishers_that_are_blocked_have_company(rig: StagedRig) -> None:
    rig.vhost.monitor.disk_alarm(True)
    rig.vhost.update_alarms()
    asked = rig.commit(0, rig.stage(0, plain("q", b"a")))
    rig.roll()
    assert not asked.has_come
    assert rig.row()["waits_for"] == "publishing is blocked, short of disk"
    rig.vhost.monitor.disk_alarm(False)
    rig.vhost.update_alarms()
    rig.tick(2)
    rig.roll()
    assert asked.result["status"] == "committed"
    assert rig.bodies() == [b"a"]


@pure_only
def test_a_mistake_is_told_and_tried_again(rig: StagedRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(batch_moves.BatchMove, "_fill", broken)
    rig.commit(0, rig.stage(0, plain("q", b"a")))
    rig.roll()
    assert "KeyError" in rig.row()["waits_for"]
    assert "broken" in told(rig, "internal_error")[0]
    monkeypatch.undo()
    rig.tick(2)
    rig.roll()
    assert rig.bodies() == [b"a"]


# ---- crashes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["lost", "kept"])
@pytest.mark.parametrize("queue", ["q", "s"])
def test_a_crash_at_any_turn_neither_loses_nor_repeats(queue: str, mode: str) -> None:
    wanted = numbered(600)
    for turns in range(0, 24, 2):
        rig = StagedRig()
        rig.result("declare_queue", queue="q")
        rig.result("declare_queue", queue="s", arguments=STREAM)
        rng = random.Random(turns)
        pages = [plain(queue, *wanted[:400]), plain(queue, *wanted[400:])]
        asked = rig.commit(0, rig.stage(0, *pages), target={"queue": queue})
        for _ in range(turns):
            rig.vhost.turn()
            rig.vhost.completed()
        has_answer = asked.has_come
        for client in rig.clients:
            client.handler.lost()
        rig.fs = rig.fs.crash(mode, rng)
        rig.start()
        rig.roll()
        rows = rig.result("list_batches")
        assert rows or not has_answer, turns
        if queue == "s":
            found = payloads(rig)
        else:
            found = []
            while messages := rig.result("get", queue="q", count=1000, session="x")["messages"]:
                found += [m["body"] for m in messages]
                rig.result("settle", queue="q", session="x", tags=[m["tag"] for m in messages])
        assert found == (wanted if rows else []), (turns, len(found))


# ---- what a slice takes --------------------------------------------------------------------------

LINES_MAX = 150_000  # of one step: some 10 ms uncompiled


def dearest_turn(rig: StagedRig, asked: Asked) -> int:
    """Turns until the batch is there; the lines of the dearest."""
    dearest = 0
    for _ in range(5000):
        dearest = max(dearest, cost_of(rig.vhost.turn).lines)
        rig.vhost.completed()
        if asked.has_come:
            return dearest
    raise AssertionError("it never arrives")


@pure_only
def test_rows_whose_way_is_long_are_few_in_a_slice(rig: StagedRig) -> None:
    """All patterns are active at each word of such a key, so each takes some 9,000 steps."""
    for i in range(1, 1 << 7):
        pattern = ".".join("#" if bit == "1" else "*" for bit in format(i, "07b"))
        rig.vhost.bind_queue("q", "amq.topic", pattern)
    rows = [
        row
        for n in range(12)
        for row in plain(".".join([str(n), *["w"] * 30]), b"%d" % n, exchange="amq.topic")
    ]
    asked = rig.commit(0, rig.stage(0, rows), target={"exchanges": ["amq.topic"]})
    assert dearest_turn(rig, asked) < LINES_MAX
    assert rig.bodies() == numbered(12)


@pure_only
@pytest.mark.parametrize("is_durable", [True, False])
def test_rows_to_many_queues_are_few_in_a_slice(rig: StagedRig, *, is_durable: bool) -> None:
    for n in range(100):
        rig.vhost.declare_queue(f"q{n}", durable=is_durable)
        rig.vhost.bind_queue(f"q{n}", "amq.fanout", "")
    rows = plain("", *numbered(40), exchange="amq.fanout")
    asked = rig.commit(0, rig.stage(0, rows), target={"exchanges": ["amq.fanout"]})
    assert dearest_turn(rig, asked) < 10 * LINES_MAX
    assert rig.bodies("q0") == rig.bodies("q99") == numbered(40)
