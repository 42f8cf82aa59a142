"""Recovery: which file is believed, what is cut, what is damage, and what is deleted afterwards."""

import pytest

from penstock.errors import CorruptionError, SyncFailedError
from penstock.storage.files.durability import DISK, OS
from penstock.storage.files.offline import ReadOnlyFileSystem
from penstock.storage.journal import checkpoint, recovery
from tests.helpers.engine_rig import NUMBER, OPTIONS, PATH, STORED, EngineRig
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs

BIG = b"B" * STORED


def touch(fs: FaultyFileSystem, path: str, data: bytes = b"x") -> None:
    file = fs.open(path, create=True)
    file.pwrite(data, 0)
    file.close()


def load(fs: FaultyFileSystem) -> recovery.Recovered:
    """As verify does it: nothing is changed."""
    view = ReadOnlyFileSystem(fs)
    return recovery.load(view, PATH, NUMBER, OPTIONS, lambda kind, text: None)


def running() -> EngineRig:
    """A store with a checkpoint and something in the log behind it."""
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", BIG)
    rig.engine.checkpoint()
    rig.put(queue, b"2", b"3" + BIG)
    return rig


def test_a_new_directory_gets_its_parts_and_a_first_checkpoint() -> None:
    rig = EngineRig()
    assert set(recovery.PARTS) <= set(rig.fs.list(PATH))
    assert checkpoint.current(rig.fs, PATH) == 1
    after = rig.fs.crash("lost")
    assert set(recovery.PARTS) <= set(after.list(PATH))
    assert load(after).records == 0


def test_what_is_loaded_is_what_the_log_and_the_checkpoint_say() -> None:
    rig = running()
    found = load(rig.fs.crash("lost"))
    assert (found.is_clean, found.records, found.cut_records) == (False, 2, 0)
    (queue,) = found.state.queues.values()
    assert live_seqs(queue) == [0, 1, 2, 3]


def test_loading_to_look_changes_nothing() -> None:
    fs = running().fs.crash("kept")
    before = {path: fs.read(path) for path in fs.names() if not path.endswith("/")}
    operations = fs.operations
    load(fs)
    assert {path: fs.read(path) for path in fs.names() if not path.endswith("/")} == before
    assert fs.operations - operations <= len(before), "syncs alone"


def test_a_missing_current_is_damage_once_the_log_has_records() -> None:
    rig = running()
    rig.fs.damage_delete(PATH + "/CURRENT")
    with pytest.raises(CorruptionError, match="it is missing, and") as caught:
        EngineRig(rig.fs.crash("kept"))
    assert caught.value.path == PATH + "/CURRENT"


def test_a_crash_in_the_first_start_is_begun_again() -> None:
    fs = FaultyFileSystem()
    fs.mkdir(PATH)
    fs.sync_all()
    journal = fs.start_journal()
    EngineRig(fs)
    for _, image in journal.images():
        for mode in ("lost", "kept"):
            again = EngineRig(image.crash(mode))
            again.put(again.queue(), b"x")
            assert again.queue().count == 1


@pytest.mark.parametrize("part", ["wal", "msg_store_persistent"])
def test_damage_to_what_was_durable_is_named_and_nothing_is_changed(part: str) -> None:
    rig = running()
    rig.clock.advance(1)
    rig.settle()  # an idle log says that all of it is durable
    rig.clock.advance(1)
    rig.settle()
    fs = rig.fs.crash("kept")
    directory = f"{PATH}/{part}"
    body = b"2" if part == "wal" else b"3" + BIG
    path = next(
        f"{directory}/{n}" for n in fs.list(directory) if body in fs.read(f"{directory}/{n}")
    )
    position = fs.read(path).rindex(body)
    fs.damage_flip(path, position)
    if part == "wal":
        fs.damage(path, lambda data: data[: 4096 // 4] + data[1024:])
    before = {p: fs.read(p) for p in fs.names() if not p.endswith(("/", "LOCK"))}
    if part == "wal":
        with pytest.raises(CorruptionError) as caught:
            EngineRig(fs)
        assert caught.value.path.startswith(directory)
        assert {p: fs.read(p) for p in fs.names() if not p.endswith(("/", "LOCK"))} == before
    else:
        with pytest.raises(CorruptionError, match="the log says that it was durable") as caught:
            EngineRig(fs)
        assert caught.value.path == path


def test_a_missing_body_of_a_message_that_is_dead_again_is_no_damage() -> None:
    rig = running()
    queue = rig.queue()
    rig.ack(queue, 3)
    rig.engine.sync()
    rig.clock.advance(1)
    rig.settle()
    fs = rig.fs.crash("kept")
    directory = PATH + "/msg_store_persistent"
    for name in fs.list(directory):
        path = f"{directory}/{name}"
        data = fs.read(path)
        if b"3" + BIG in data:
            fs.damage_flip(path, data.index(b"3" + BIG))
    again = EngineRig(fs)
    assert live_seqs(again.queue()) == [0, 1, 2]


def test_what_it_reads_is_synced_before_it_is_believed() -> None:
    fs = running().fs.crash("killed")
    journal = fs.start_journal()
    EngineRig(fs)
    kinds = [(entry.kind, entry.path) for entry in journal.entries]
    current = next(i for i, (k, p) in enumerate(kinds) if k == "rename" and "CURRENT" in p)
    synced = {p.rpartition(".")[2] for k, p in kinds[:current] if k == "sync"}
    assert {"wal", "rdq"} <= synced


def test_a_sync_that_fails_in_recovery_stops_it() -> None:
    fs = running().fs.crash("killed")
    fs.fail(5, kinds={"sync"}, path="/wal/")
    with pytest.raises(SyncFailedError):
        EngineRig(fs)
    assert EngineRig(fs.crash("kept")).queue().count >= 2


def test_nothing_is_deleted_before_its_checkpoint_is_current() -> None:
    fs = running().fs.crash("kept")
    touch(fs, PATH + "/checkpoint-77")
    journal = fs.start_journal()
    EngineRig(fs)
    kinds = [(entry.kind, entry.path) for entry in journal.entries]
    current = next(i for i, (k, p) in enumerate(kinds) if k == "rename" and "CURRENT" in p)
    assert not [p for k, p in kinds[:current] if k == "unlink"]
    assert (PATH + "/checkpoint-77") in [p for k, p in kinds[current:] if k == "unlink"]


def test_a_crash_anywhere_in_recovery_is_recovered_from() -> None:
    fs = running().fs.crash("lost")
    fork = fs.fork()
    journal = fork.start_journal()
    EngineRig(fork)
    for _, image in journal.images():
        for mode in ("lost", "kept"):
            rig = EngineRig(image.crash(mode))
            assert rig.bodies(rig.queue()) == {0: b"0", 1: BIG, 2: b"2", 3: b"3" + BIG}
            rig.put(rig.queue(), b"more")


def test_leftovers_that_nothing_knows_are_deleted_and_all_else_stays() -> None:
    rig = running()
    queue = rig.queue()
    rig.stop()
    fs = rig.fs
    fs.mkdir(PATH + "/queues/0123456789abcdef.999")
    leftovers = [
        PATH + "/checkpoint-1", PATH + "/CURRENT.new", queue.path + "/7.qi", queue.path + "/7.qs",
        PATH + "/queues/0123456789abcdef.999/0.qi", PATH + "/msg_store_transient/5.rdq",
        PATH + "/msg_store_persistent/99.rdq",
    ]  # fmt: skip
    for path in leftovers:
        touch(fs, path)
    again = EngineRig(fs)
    assert not [path for path in leftovers if fs.exists(path)]
    assert not fs.exists(PATH + "/queues/0123456789abcdef.999")
    assert again.bodies(again.queue()) == {0: b"0", 1: BIG, 2: b"2", 3: b"3" + BIG}


def test_a_section_of_a_queue_that_the_topology_does_not_know_is_damage() -> None:
    rig = EngineRig()
    rig.put(rig.queue(), b"x")
    rig.engine.checkpoint()
    fs = rig.fs
    number = checkpoint.current(fs, PATH)
    manifest = checkpoint.read(fs, PATH, number, NUMBER)
    sections = [
        (checkpoint.HEAD, manifest.head.encode()),
        (checkpoint.QUEUE, checkpoint.encode_queue(5, manifest.queues[1], 4)),
    ]
    data = checkpoint.encode_file(NUMBER, number + 1, sections, is_clean=True)
    checkpoint.write(fs, PATH, number + 1, data)
    with pytest.raises(CorruptionError, match="section of queue 5, and no such queue"):
        EngineRig(fs.crash("lost"))


def test_the_slots_of_a_segment_belong_to_the_directory() -> None:
    rig = running()
    again = EngineRig(rig.fs.crash("lost"), segment_slots=64)
    assert again.engine.state.slots == 4
    assert again.bodies(again.queue()) == {0: b"0", 1: BIG, 2: b"2", 3: b"3" + BIG}


def test_a_backlog_costs_nothing_to_open_but_its_segments() -> None:
    rig = EngineRig()
    queue = rig.queue()
    for _ in range(200):
        rig.engine.publish([queue], b"", b"x", DISK)
    rig.restart()
    rig.stop()
    reads = rig.fs.reads
    again = EngineRig(rig.fs)
    assert again.queue().count == 200
    assert rig.fs.reads - reads < 40


def test_wipe_deletes_one_level_of_directories() -> None:
    fs = FaultyFileSystem()
    fs.mkdir("/t")
    fs.mkdir("/t/bin")
    for path in ("/t/a", "/t/bin/b"):
        touch(fs, path)
    recovery.wipe(fs, "/t")
    assert fs.list("/t") == []


@pytest.mark.parametrize("effect", ["flip", "misdirect", "short"])
def test_a_read_that_is_wrong_once_loses_nothing(effect: str) -> None:
    """The start is refused, or it reads again: what no sync covers, which a killed process has
    confirmed in mode os, must not pass for a torn tail."""
    rig = EngineRig()
    queue = rig.queue()
    rig.put(queue, b"0", BIG)
    rig.engine.checkpoint()
    for n in range(2, 14):
        rig.engine.publish([queue], b"", b"%d" % n + (BIG if n % 3 else b""), OS)
        rig.engine.flush()
    expected = rig.bodies(queue)
    killed = rig.fs.crash("killed")
    nth = refused = 0
    while True:
        nth += 1
        rig.fs = killed.crash("killed")
        fault = rig.fs.fail(effect, kinds=["read"], nth=nth)
        try:
            rig.engine = rig._open()
        except CorruptionError:
            refused += 1
            continue
        rig.fs.clear_faults()
        assert rig.bodies(rig.queue()) == expected, f"read {nth}"
        if not fault.hits:
            break
    assert refused < nth // 2
