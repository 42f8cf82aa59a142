"""StorageState: one answer to what a record means, for live work and for replay."""

import pytest

from penstock.errors import CorruptionError
from penstock.message import MessageFactory
from penstock.storage.files.durability import DISK, OS
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.index.routing_table import DurableQueue
from penstock.storage.journal.state import Replay, StorageState
from penstock.storage.log import record
from penstock.storage.log.log_file import LogReader
from tests.helpers.engine_rig import NUMBER, PATH, STORED, EngineRig
from tests.helpers.inside import live_seqs

BIG = b"B" * STORED
TOPOLOGY = record.TOPOLOGY


def fingerprint(state: StorageState) -> dict[str, object]:
    """What a checkpoint would hold, in a form that compares."""
    return {
        "topology": state.routing.snapshot(),
        "queues": {
            number: (
                q.name, q.next_seq, q.mark, q.count, q.bytes, live_seqs(q), dict(q.attempts),
                {n: (s.count, s.bytes, s.stores) for n, s in q.segments.items() if s.count},
            )
            for number, q in state.queues.items()
        },
        "next queue": state.next_queue,
        "live": (state.store.live_count, state.store.live_bytes),
    }  # fmt: skip


def busy(rig: EngineRig) -> None:
    """A bit of everything that the log can hold."""
    engine = rig.engine
    a, b, c = rig.declare(b"a", b"b", b"c")
    for n in range(10):
        body = b"%d" % n + (BIG if n % 2 else b"")
        engine.publish([a, b] if n % 3 == 0 else [a], b"h", body, DISK)
    rig.ack(a, 0, 1, 5)
    engine.move(a, rig.entries(a, 3)[0], [b, c], b"moved", DISK)
    engine.move(a, rig.entries(a, 4)[0], [c], b"moved", DISK)
    engine.requeue(a, [(6, 2), (7, 1)], DISK)
    engine.mark(b, 7, DISK)
    tx = engine.begin()
    tx.publish([b, c], b"", b"tx" + BIG)
    tx.dequeue(a, rig.entries(a, 6))
    tx.commit(DISK)
    engine.purge(b, rig.entries(b, 1), DISK)
    engine.publish([b], b"", b"after the purge", OS)
    engine.delete_queue(c)
    engine.sync()


@pytest.mark.parametrize("ram_bytes", [0, 300])
@pytest.mark.parametrize("sections", [False, True])
@pytest.mark.parametrize("is_cut", [False, True])
def test_replay_comes_to_what_live_work_came_to(
    ram_bytes: int, sections: bool, is_cut: bool
) -> None:
    rig = EngineRig(sections=sections, replay_ram_bytes=ram_bytes)
    rig.put(rig.queue(b"old"), b"old", BIG)
    if is_cut:
        rig.engine.checkpoint()
    busy(rig)
    live = fingerprint(rig.engine.state)
    fs = rig.fs.crash("lost")
    after = EngineRig(fs, sections=sections, replay_ram_bytes=ram_bytes)
    after.settle()  # what was spilled before it was purged is reaped now
    found = fingerprint(after.engine.state)
    # Seqs and queue numbers jump, and bodies of sections are in the store too.
    assert found["topology"] == live["topology"]
    queues, others = live["queues"], found["queues"]
    assert isinstance(queues, dict)
    assert isinstance(others, dict)
    assert {n: (q[0], *q[2:]) for n, q in queues.items()} == {
        n: (q[0], *q[2:]) for n, q in others.items()
    }
    for name in (b"a", b"b", b"old"):
        assert rig.bodies(rig.queue(name)) == after.bodies(after.queue(name))
    if not sections:
        assert found["live"] == live["live"]


def test_spilled_messages_are_on_slots_and_acks_find_them() -> None:
    rig = EngineRig(replay_ram_bytes=400)
    queue = rig.queue()
    rig.put(queue, *[b"%d" % n for n in range(20)])
    rig.put(queue, b"20" + BIG)
    rig.ack(queue, *range(15), 20)
    rig.engine.sync()
    rig.crash("lost")
    queue = rig.queue()
    assert rig.bodies(queue) == {n: b"%d" % n for n in range(15, 20)}
    assert rig.engine.state.store.live_count == 0
    assert sorted(rig.files_of(queue)) == ["3.qi", "3.qs", "4.qi", "4.qs"]


def state_of(rig: EngineRig) -> tuple[StorageState, Replay]:
    """A bare state with one queue, number 1, and what replays into it."""
    state = rig.engine.state
    state.factory = MessageFactory()  # as it is in recovery
    return state, Replay(state, LogReader(rig.fs, PATH + "/wal", NUMBER))


def apply(replay: Replay, kind: int, data: bytes, count: int = 0, flags: int = 0) -> None:
    replay.apply(record.Record(1, kind, flags, count, data, 0, 0))


def test_operations_on_a_queue_that_is_gone_mean_nothing_any_more() -> None:
    rig = EngineRig()
    state, replay = state_of(rig)
    before = fingerprint(state)
    publish = record.publish_data(0, 1, 0, 0, 0, [(99, 0)], b"", b"x", 1)
    apply(replay, record.PUBLISH, publish, 1)
    apply(replay, record.DEQUEUE, record.dequeue_data(99, [(0, 1, 1, 0)], []), 1)
    apply(replay, record.PURGE, record.purge_data(99, 5, []))
    apply(replay, record.DELETE_QUEUE, record.delete_queue_data(99))
    apply(replay, record.MARK, record.mark_data(99, 5))
    apply(replay, record.REQUEUE, record.requeue_data(99, [(0, 1)]), 1)
    apply(replay, record.RELEASE, record.release_data(99, 0))
    apply(replay, record.NOP, b"")
    assert fingerprint(state) == before


def test_a_record_that_this_version_does_not_know_is_refused() -> None:
    _, replay = state_of(EngineRig())
    with pytest.raises(ValueError, match="is not known to this version"):
        apply(replay, 200, b"")


def test_a_declared_queue_comes_to_life_once_and_moves_the_next_number_on() -> None:
    rig = EngineRig()
    state, replay = state_of(rig)
    data = DurableQueue(b"new", 40).record()
    for _ in range(2):
        apply(replay, TOPOLOGY, data)
    assert state.queues[40].name == b"new"
    assert state.next_queue == 41
    assert state.index_of(40) is state.queues[40]
    assert state.index_of(41) is None


def test_a_release_of_what_is_not_to_be_reaped_changes_nothing() -> None:
    rig = EngineRig()
    queue = rig.queue()
    message = rig.put(queue, BIG)[0]
    rig.engine.state.apply_release(queue.number, 0, [(message.id, message.store_file, STORED)])
    assert rig.engine.state.store.live_count == 1


# ---- bodies ------------------------------------------------------------------------------------


def cold(rig: EngineRig, body: bytes) -> QueueIndex:
    rig.put(rig.queue(), body)
    rig.restart()
    return rig.queue()


@pytest.mark.parametrize("sections", [False, True])
@pytest.mark.parametrize("body", [b"", b"inline", BIG])
def test_a_body_is_loaded_from_wherever_it_is(sections: bool, body: bytes) -> None:
    rig = EngineRig(sections=sections)
    queue = cold(rig, body)
    (message,) = queue.read([0])
    assert rig.engine.load_body(queue, 0, message) == body


def test_a_body_that_is_nowhere_is_damage() -> None:
    rig = EngineRig(sections=True)
    queue = cold(rig, b"inline")
    (message,) = queue.read([0])
    queue.section[0].body_file = 0
    with pytest.raises(CorruptionError, match="the body of seq 0 of queue 1 is in no file"):
        rig.engine.load_body(queue, 0, message)


def test_a_body_of_another_length_than_its_slot_says_is_damage() -> None:
    rig = EngineRig()
    queue = cold(rig, BIG)
    (message,) = queue.read([0])
    message.size += 1
    with pytest.raises(CorruptionError, match=f"has {STORED} bytes, its slot says {STORED + 1}"):
        rig.engine.load_body(queue, 0, message)
