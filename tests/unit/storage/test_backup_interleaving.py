"""A backup is the store as of its cut, whatever is done after each of its steps.

Every kind of operation is done after every step of a backup. Then the copy is verified, opened, and
compared with what the store held at the cut: messages, streams, readers, leases, batches, topology.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.clock import ManualClock
from penstock.errors import CorruptionError
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory, FreshDirectory
from penstock.storage.files.durability import DISK
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.index.routing_table import DurableBinding
from penstock.storage.journal.checkpoint import IDLE
from penstock.storage.parts.lease_engine import Taken
from penstock.storage.tools.backup import Backup, backup
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.tiny_batches import TARGET, read_all, rows_of, stage, step_into_stream
from tests.helpers.tool_stores import DATA, OPTIONS, VHOST, engine_content, fill, vhost_path

COPY = "/backup"
SLOW = replace(OPTIONS, slice_ms=0, slice_entries=2)  # one piece of a checkpoint at each step
FILES = replace(SLOW, small_queue_entries=0)
Kind = Callable[[StorageEngine, int], None]


def opened(fs: FaultyFileSystem, path: str, *, is_small: bool = True) -> StorageEngine:
    return StorageEngine(
        fs, path, VHOST, clock=ManualClock(), rng=random.Random(6),
        options=SLOW if is_small else FILES,
    )  # fmt: skip


def started(*, is_small: bool) -> FaultyFileSystem:
    """The disk under a store with a bit of everything, some of it in the log only."""
    fs = FaultyFileSystem()
    engine = opened(fs, DataDirectory(fs, DATA).vhost_path(VHOST), is_small=is_small)
    fill(engine)
    leased = engine.declare_queue(b"leased")
    for i in range(8):
        engine.publish([leased], b"", b"leased %d " % i * (1 + 9 * (i % 3)), DISK)
    engine.sync()
    lease(engine, 0)
    stream, pages = engine.streams.declare([(b"s", b"", 0), (b"adopts", b"", 0)], page_bytes=400)
    for i in range(12):
        engine.streams.append(stream, b"m", b"record %d " % i * 6, DISK)
    engine.streams.set_reader(stream, "reader", 4, DISK)
    engine.streams.append(pages, b"m", b"before", DISK)
    engine.batches.decide("done", 3, TARGET, [])
    for query in ("sliced", "adopted"):
        staged = [
            stage(fs, engine.path, query, 7, rows_of(n * 10, 10), partition=n) for n in range(4)
        ]
        engine.batches.decide(query, 7, TARGET, staged)
    engine.batches.adopt("adopted", pages)
    engine.batches.finish_adoptions()
    engine.sync()
    return fs.crash("killed")


def refill(engine: StorageEngine) -> None:
    """After a start everything is in files: messages that are in RAM and log only."""
    big, small, pair = (engine.queue(name) for name in (b"big", b"small", b"pair"))
    for i, size in enumerate((5, 70, 200, 1000, 6)):
        engine.publish([big], b"h%d" % i, b"%d" % i * size, DISK)
    engine.publish([big, pair], b"", b"of both " * 3, DISK)
    engine.publish([big, pair], b"", b"of both, stored " * 20, DISK)
    engine.publish([small], b"", b"small", DISK)
    engine.publish([engine.queue(b"leased")], b"", b"to be leased", DISK)
    append(engine, 0)
    engine.sync()


def world(engine: StorageEngine) -> dict[str, object]:
    """Everything that a client could see of a store, now or later."""
    streams: dict[bytes, object] = {}
    for one in engine.streams.by_number.values():
        frames = [r for r in read_all(engine, one.name) if r[0] < one.head_offset]
        streams[one.name] = (one.first_offset, one.next_offset, frames, dict(one.readers))
    leases = {
        (queue.name, reader): (lease.committed, lease.next, [s.runs() for s in lease.slices])
        for queue in engine.state.queues.values()
        for reader, lease in engine.leases.of(queue).items()
    }
    batches = [
        (b.query, b.number, b.target, b.page, b.frame, b.is_done) for b in engine.batches.all()
    ]
    return {
        "queues": engine_content(engine),
        "streams": streams,
        "leases": leases,
        "batches": sorted(batches),
        "topology": sorted(engine.state.routing.capture()),
    }


# ---- kinds of operations -------------------------------------------------------------------------


def alive(engine: StorageEngine, name: bytes) -> tuple[QueueIndex, list[int]] | None:
    """A queue that is still there and its ready messages; None if there are none."""
    known = engine.state.routing.queues.get(name)
    queue = engine.state.queues.get(known.number) if known is not None else None
    seqs = [] if queue is None else [s for s in live_seqs(queue) if not queue.leased.has(s)]
    return None if queue is None or not seqs else (queue, seqs)


def publish(engine: StorageEngine, i: int) -> None:
    names = [n for n in (b"big", b"pair") if n in engine.state.routing.queues]
    for size in (3, 70, 200, 1000):
        engine.publish([engine.queue(n) for n in names or [b"small"]], b"h", b"x" * size, DISK)


def take_newest(engine: StorageEngine, i: int) -> None:
    """Of each queue what came last: as a rule it is in RAM and log only."""
    for name in (b"big", b"small", b"pair"):
        found = alive(engine, name)
        if found is not None:
            engine.dequeue(found[0], [engine.entry(found[0], found[1][-1])], DISK)


def take_all(engine: StorageEngine, i: int) -> None:
    for name in (b"big", b"small", b"pair"):
        found = alive(engine, name)
        if found is not None:
            entries = [engine.entry(found[0], seq) for seq in found[1]]
            engine.dequeue(found[0], entries, DISK)


def move_in_transaction(engine: StorageEngine, i: int) -> None:
    """From one queue to another, as a worker does it."""
    found = alive(engine, b"big")
    if found is not None:
        queue, seqs = found
        tx = engine.begin()
        for seq in seqs[-2:]:
            entry = engine.entry(queue, seq)
            body = engine.load_body(queue, seq, entry.message)
            tx.publish([engine.queue(b"small")], b"moved", body)
            tx.dequeue(queue, [entry])
        tx.commit(DISK)


def dead_letter(engine: StorageEngine, i: int) -> None:
    for name in (b"big", b"pair"):
        found = alive(engine, name)
        if found is not None:
            queue, seqs = found
            target = [engine.queue(b"small")] if i % 2 else []
            engine.move(queue, engine.entry(queue, seqs[-1]), target, b"dead", DISK)


def purge(engine: StorageEngine, i: int) -> None:
    for name in (b"big", b"small", b"leased"):
        found = alive(engine, name)
        if found is not None:
            engine.purge(found[0], [], DISK)


def delete_queue(engine: StorageEngine, i: int) -> None:
    for name in (b"big", b"pair"):
        if name in engine.state.routing.queues:
            engine.delete_queue(engine.queue(name))
            return


def change_queue(engine: StorageEngine, i: int) -> None:
    """Attempts, marks, and declares."""
    found = alive(engine, b"big")
    if found is not None:
        queue, seqs = found
        engine.requeue(queue, [(seqs[-1], 3 + i)], DISK)
        engine.mark(queue, queue.next_seq, DISK)
    engine.declare_queue(b"new %d" % i)
    engine.apply_topology(DurableBinding(b"logs", b"q", b"small", b"k%d" % i).record())


def append(engine: StorageEngine, i: int) -> None:
    if b"s" in engine.state.streams.by_name:
        for _ in range(4):
            engine.streams.append(engine.streams.get(b"s"), b"m", b"appended %d " % i * 9, DISK)


def retain(engine: StorageEngine, i: int) -> None:
    if b"s" in engine.state.streams.by_name:
        append(engine, i)
        engine.sync()
        engine.streams.delete_reader(engine.streams.get(b"s"), "reader", DISK)
        engine.streams.retain(engine.streams.get(b"s"), max_records=1)


def read_stream(engine: StorageEngine, i: int) -> None:
    if b"s" in engine.state.streams.by_name:
        engine.streams.set_reader(engine.streams.get(b"s"), "reader", 5 + i, DISK, 5)
        engine.streams.set_reader(engine.streams.get(b"s"), f"new {i}", i, DISK)


def delete_stream(engine: StorageEngine, i: int) -> None:
    if b"s" in engine.state.streams.by_name:
        engine.streams.delete([engine.streams.get(b"s")])


def lease(engine: StorageEngine, i: int) -> None:
    found = alive(engine, b"leased")
    if found is not None:
        queue, seqs = found
        taken = [engine.entry(queue, seq) for seq in seqs[:3]]
        engine.leases.lease(queue, "r", [Taken(queue, taken, [b""] * len(taken), 0)], DISK)


def commit_lease(engine: StorageEngine, i: int) -> None:
    queue = engine.queue(b"leased")
    lease(engine, i)
    found = engine.leases.of(queue).get("r")
    if found is not None:
        engine.leases.commit(queue, "r", found.committed + (found.next - found.committed + 1) // 2,
                            DISK)  # fmt: skip


def release_lease(engine: StorageEngine, i: int) -> None:
    queue = engine.queue(b"leased")
    if "r" in engine.leases.of(queue):
        engine.leases.release(queue, "r", DISK)


def decide(engine: StorageEngine, i: int) -> None:
    page = stage(engine.fs, engine.path, f"q{i}", 1, rows_of(0, 5))
    engine.batches.decide(f"q{i}", 1, TARGET, [page])
    batch = engine.batches.batch("done")
    if batch is not None:
        engine.batches.decide("done", batch.number + 1, TARGET, [])
        engine.batches.forget(f"q{i - 1}", is_forced=True)


def roll_slices(engine: StorageEngine, i: int) -> None:
    batch = engine.batches.batch("sliced")
    if batch is not None and not batch.is_done:
        stream = engine.streams.get(b"adopts")
        step_into_stream(engine, "sliced", [stream, stream], lambda _: stream)


def adopt_page(engine: StorageEngine, i: int) -> None:
    batch = engine.batches.batch("adopted")
    if batch is not None and not batch.is_done:
        engine.batches.adopt("adopted", engine.streams.get(b"adopts"))


def upkeep(engine: StorageEngine, i: int) -> None:
    """Checkpoints after the backup's own, combining, reaping, sweeping."""
    if b"pair" in engine.state.routing.queues:
        engine.purge(engine.queue(b"pair"), [], DISK)
    engine.sync()
    engine.upkeep.reap()
    engine.upkeep.combine()
    engine.batches.sweep(0)
    engine.tick()
    if i > 12 and engine.checkpoints.phase == IDLE and i % 3 == 0:
        engine.checkpoint()


DESTROYING = (take_all, purge, delete_queue, delete_stream)
KINDS: list[Kind] = [
    publish, take_newest, take_all, move_in_transaction, dead_letter, purge, delete_queue,
    change_queue, append, retain, read_stream, delete_stream, lease, commit_lease, release_lease,
    decide, roll_slices, adopt_page, upkeep,
]  # fmt: skip


# ---- the tests -----------------------------------------------------------------------------------


def drive(engine: StorageEngine, part: Backup, after_step: Callable[[int], None]) -> int:
    """All steps of a backup, with something after each; how many there were."""
    steps = 0
    while part.step():
        after_step(steps)
        engine.sync()
        engine.poll()
        steps += 1
    return steps


def backed_up(
    engine: StorageEngine, after_step: Callable[[int], None]
) -> tuple[dict[str, object], int]:
    """Make a backup with something after each step: what it has to hold, and how many steps."""
    at_cut: list[dict[str, object]] = []
    begin = engine.checkpoints.begin

    def noting(*, is_clean: bool = False, is_whole: bool = False) -> None:
        if is_whole:
            at_cut.append(world(engine))
        begin(is_clean=is_clean, is_whole=is_whole)

    engine.checkpoints.begin = noting  # type: ignore[method-assign]
    fresh = FreshDirectory(engine.fs, COPY, "a backup")
    part = Backup(engine, fresh)
    steps = drive(engine, part, after_step)
    fresh.finish()
    (wanted,) = at_cut
    return wanted, steps


def judge(engine: StorageEngine, wanted: dict[str, object], where: str) -> None:
    """The copy, as a power cut leaves it, is fine and holds what was there at the cut."""
    fs = engine.fs
    assert isinstance(fs, FaultyFileSystem)
    copy = fs.crash("lost")
    report = verify(copy, COPY)
    assert report.is_fine, f"{where}: {report.problems}"
    found = world(opened(copy, vhost_path(copy, COPY)))
    for what, there in wanted.items():
        assert found[what] == there, f"{where}: {what}"


def in_use(start: FaultyFileSystem, *, is_small: bool) -> StorageEngine:
    engine = opened(start.fork(), vhost_path(start), is_small=is_small)
    refill(engine)
    return engine


@pytest.mark.parametrize("is_small", [True, False], ids=["sections", "files"])
@pytest.mark.parametrize("destroys", [True, False], ids=["all", "kept"])
def test_every_operation_after_every_step(is_small: bool, destroys: bool) -> None:
    """One after each step, in turn; each time beginning with another, so that in the end each kind
    has been done after each step. Without those that leave nothing for the others to do, too."""
    start = started(is_small=is_small)
    kinds = [kind for kind in KINDS if destroys or kind not in DESTROYING]
    for shift in range(len(kinds)):
        engine = in_use(start, is_small=is_small)

        def one(i: int, engine: StorageEngine = engine, shift: int = shift) -> None:
            kinds[(i + shift) % len(kinds)](engine, i)

        wanted, steps = backed_up(engine, one)
        assert steps > 2 * len(kinds)
        judge(engine, wanted, f"shift {shift}")


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_one_operation_after_one_step(kind: Kind) -> None:
    """Alone, after each of the first steps, where the checkpoint is made, and then after some."""
    start = started(is_small=False)
    at, steps = 0, 1
    while at < steps:
        engine = in_use(start, is_small=False)

        def one(i: int, engine: StorageEngine = engine, at: int = at) -> None:
            if i == at:
                kind(engine, i)

        wanted, steps = backed_up(engine, one)
        judge(engine, wanted, f"{kind.__name__} after step {at}")
        at += 1 if at < 12 else 9


@pytest.mark.parametrize("kind", [take_newest, move_in_transaction, dead_letter])
def test_a_checkpoint_that_leaves_out_what_is_consumed_meanwhile_is_noticed(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: an ordinary checkpoint is no backup, and the copy is never finished."""
    engine = in_use(started(is_small=False), is_small=False)
    begin = engine.upkeep.begin_checkpoint
    monkeypatch.setattr(engine.upkeep, "begin_checkpoint", lambda is_whole: begin())
    work = Backup(engine, FreshDirectory(engine.fs, COPY, "a backup"))
    with pytest.raises(CorruptionError, match="the backup does not verify"):
        drive(engine, work, lambda _: kind(engine, 0))
    assert engine.journal.pins.count == 0
    assert not engine.fs.exists(COPY + "/VERSION")


def test_a_damaged_store_is_not_backed_up_without_a_word() -> None:
    """The message that is damaged in the source is damaged in the copy, which is told."""
    engine = in_use(started(is_small=False), is_small=False)
    engine.checkpoint()
    queue = engine.queue(b"big")
    file = engine.fs.open(f"{queue.path}/{live_seqs(queue)[0] // 4}.qi", create=True)
    file.pwrite(b"\xff" * 128, 0)
    file.close()
    with pytest.raises(CorruptionError, match=r"the backup does not verify.*not finished"):
        backup([engine], COPY)
    assert not engine.fs.exists(COPY + "/VERSION")
    assert engine.failed is None
