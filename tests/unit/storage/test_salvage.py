"""salvage: the new store has all that verifies, the old one is as it was, and losses are told."""

import errno
import random
from zlib import crc32

import pytest

from penstock.clock import ManualClock
from penstock.errors import DiskFullError, LockedError, NotAStoreError
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory, hash_name
from penstock.storage.files.durability import DISK
from penstock.storage.tools.salvage import DEFAULT_SLOTS, SalvageReport, guess_slots, salvage
from penstock.storage.tools.salvage_files import unwind
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import SECTOR_BYTES, CrashNow, FaultyFileSystem
from tests.helpers.tool_stores import (
    DATA,
    OPTIONS,
    content,
    image,
    make,
    open_vhost,
    vhost_path,
)

NEW = "/new"
SLOTS_AT = 24  # of the number of slots in the header of a .qi


@pytest.fixture(scope="module", params=[True, False], ids=["clean", "killed"])
def whole(request: pytest.FixtureRequest) -> FaultyFileSystem:
    return make(is_clean=request.param)


@pytest.fixture(scope="module")
def killed() -> FaultyFileSystem:
    return make()


def run(fs: FaultyFileSystem, path: str = DATA, into: str = NEW) -> SalvageReport:
    """Salvage; the old store must be as it was, the new one verify."""
    before = image(fs, DATA)
    report = salvage(fs, path, into, clock=ManualClock(), rng=random.Random(9))
    assert image(fs, DATA) == before
    assert verify(fs, into).is_fine
    return report


def queue_file(fs: FaultyFileSystem, number: int, name: str) -> str:
    queues = vhost_path(fs) + "/queues"
    return f"{queues}/{next(d for d in fs.list(queues) if d.endswith(f'.{number}'))}/{name}"


def test_of_a_whole_store_everything_is_taken(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    report = run(fs)
    assert not report.losses
    assert content(fs, NEW) == content(fs, DATA)
    assert report.taken == 17
    assert report.lost == 0


def test_the_topology_is_taken_too(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    run(fs)
    old, new = (open_vhost(fs, vhost_path(fs, data)) for data in (DATA, NEW))
    for part in ("exchanges", "bindings", "parameters"):
        assert getattr(new.state.routing, part) == getattr(old.state.routing, part)
    assert new.options == OPTIONS


def test_the_mark_goes_with_the_messages(killed: FaultyFileSystem) -> None:
    """Seqs 4 and up were below no mark: of the new big queue nothing else is redelivered."""
    fs = killed.fork()
    run(fs)
    engine = open_vhost(fs, vhost_path(fs, NEW))
    assert engine.queue(b"big").mark == 0  # 0 to 3, which the mark covered, are dead by now
    assert engine.queue(b"big").attempts == {0: 1}  # seq 4 of the old one


def test_one_vhost_becomes_a_data_directory(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    assert run(fs, vhost_path(fs)).taken == 17
    assert content(fs, NEW) == content(fs, DATA)


def test_a_damaged_slot_is_lost_and_named() -> None:
    fs = make(is_clean=True)
    for name in fs.list(vhost_path(fs) + "/wal"):
        fs.unlink(f"{vhost_path(fs)}/wal/{name}")
    path = queue_file(fs, 1, "1.qi")
    fs.damage_flip(path, 64 + 32 + 7)
    report = run(fs)
    assert [(loss.path, loss.position) for loss in report.losses] == [(path, 96)]
    assert (report.taken, report.lost) == (16, 1)
    assert [(queue.name, queue.lost) for queue in report.queues if queue.lost] == [("big", 1)]


def test_what_the_log_still_has_is_not_lost() -> None:
    fs = make(is_clean=True)
    fs.damage_flip(queue_file(fs, 1, "1.qi"), 64 + 32 + 7)
    assert run(fs).lost == 0
    assert len(content(fs, NEW)[b"big"]) == 14


@pytest.mark.parametrize("ending", ["qi", "qs"])
def test_only_the_header_of_a_segment_is_damaged(ending: str) -> None:
    fs = make(is_clean=True)
    whole = content(fs)
    fs.damage_flip(queue_file(fs, 1, f"1.{ending}"), 20)
    report = run(fs)
    assert len(report.losses) == 1
    assert content(fs, NEW) == whole


def test_hints_and_headers_of_store_files_are_not_needed(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    store = vhost_path(fs) + "/msg_store_persistent"
    wanted = content(fs)
    for name in fs.list(store):
        if name.endswith(".hint"):
            fs.damage_garbage(f"{store}/{name}", 0, fs.size(f"{store}/{name}"))
        elif name.endswith(".rdq"):
            fs.damage_flip(f"{store}/{name}", 3)
    assert run(fs).lost == 0
    assert content(fs, NEW) == wanted


def test_without_checkpoint_slots_and_log_are_taken(killed: FaultyFileSystem) -> None:
    """Acknowledged ones may come back; none of those that live is missing."""
    fs = killed.fork()
    vhost = vhost_path(fs)
    wanted = content(fs)
    fs.damage_delete(vhost + "/CURRENT")
    fs.damage_delete(vhost + "/checkpoint-2")
    report = run(fs)
    assert any(loss.path.endswith("/CURRENT") for loss in report.losses)
    found = content(fs, NEW)
    for name, messages in wanted.items():
        assert {m[1] for m in messages} <= {m[1] for m in found[name]}


def test_without_checkpoint_and_log_the_slots_are_taken() -> None:
    fs = make(is_clean=True)
    vhost = vhost_path(fs)
    (number,) = [n for n in fs.list(vhost) if n.startswith("checkpoint")]
    fs.damage_cut(f"{vhost}/{number}", 10)
    for name in fs.list(vhost + "/wal"):
        fs.unlink(f"{vhost}/wal/{name}")
    report = run(fs)
    assert report.taken >= 14
    assert report.losses
    assert b"big" in content(fs, NEW)  # by its .queue_name


def test_the_size_of_a_segment_is_what_most_of_its_headers_say() -> None:
    """Of a store without its checkpoint; the first file and the last are of another size."""
    fs = FaultyFileSystem()
    for directory in ("/vhost", "/vhost/queues", "/vhost/queues/q.1"):
        fs.mkdir(directory)
    for name, slots in zip(
        ("0.qi", "1.qi", "2.qi", "3.qs", "4.qi", "5.qi"), (8, 16, 16, 16, 8, 3), strict=True
    ):
        file = fs.open(f"/vhost/queues/q.1/{name}", create=True)
        file.pwrite(bytes(SLOTS_AT) + slots.to_bytes(4, "big"), 0)
        file.close()
    assert guess_slots(fs, "/vhost") == 16
    assert guess_slots(fs, "/other") == DEFAULT_SLOTS
    assert not any(fs.handles.values())


def test_each_section_of_the_checkpoint_stands_for_itself(killed: FaultyFileSystem) -> None:
    path = vhost_path(killed) + "/checkpoint-2"
    wanted = {body for messages in content(killed).values() for _, body, *_ in messages}
    for position in range(0, killed.size(path), 61):
        fs = killed.fork()
        fs.damage_flip(path, position, 3)
        report = run(fs)
        assert report.losses
        taken = {body for messages in content(fs, NEW).values() for _, body, *_ in messages}
        assert wanted <= taken, f"byte {position}"


def test_a_bad_record_does_not_hide_those_behind_it(killed: FaultyFileSystem) -> None:
    fs = killed.fork()
    wanted = content(fs)
    path = vhost_path(fs) + "/wal/0000000001.wal"
    fs.damage_flip(path, fs.read(path).find(b"after the cut"))
    report = run(fs)
    assert report.losses
    found = content(fs, NEW)
    assert found[b"big"] == wanted[b"big"]
    assert {m[1] for m in wanted[b"small"]} - {m[1] for m in found[b"small"]} == {b"after the cut"}


def test_a_log_without_header_gives_its_seed_away(killed: FaultyFileSystem) -> None:
    fs = killed.fork()
    fs.damage_garbage(vhost_path(fs) + "/wal/0000000001.wal", 0, 64)
    report = run(fs)
    assert report.losses
    assert content(fs, NEW) == content(killed)


def test_a_log_that_lost_its_end_is_told(killed: FaultyFileSystem) -> None:
    fs = killed.fork()
    path = vhost_path(fs) + "/wal/0000000001.wal"
    fs.damage_zero_tail(path, fs.size(path) - 2432)
    assert any("was on the disk" in loss.text for loss in run(fs).losses)


def test_crc_backwards() -> None:
    for seed in (0, 1, 0xDEADBEEF):
        assert unwind(b"some bytes", crc32(b"some bytes", seed)) == seed


def named_vhost(name: bytes) -> FaultyFileSystem:
    """A vhost of that name with a message, its `.vhost` lost."""
    fs = FaultyFileSystem()
    path = DataDirectory(fs, DATA).vhost_path(name)
    engine = open_vhost(fs, path, name)
    engine.publish([engine.declare_queue(b"q")], b"", b"a message", DISK)
    engine.close()
    fs = fs.crash("kept")
    fs.damage_delete(path + "/.vhost")
    return fs


@pytest.mark.parametrize(
    ("name", "names", "found"),
    [
        (b"/", (), b"/"),
        (b"orders", (b"other", b"orders"), b"orders"),
        (b"orders", (b"other",), b"salvaged-" + hash_name(b"orders").encode()),
    ],
)
def test_the_hash_of_a_vhost_without_its_name_tells_which_it_is(
    name: bytes, names: tuple[bytes, ...], found: bytes
) -> None:
    fs = named_vhost(name)
    report = salvage(fs, DATA, NEW, clock=ManualClock(), rng=random.Random(9), names=names)
    assert fs.read(vhost_path(fs, NEW) + "/.vhost") == found + b"\n"
    assert (report.taken, report.lost) == (1, 0)
    assert ("name is lost" in str(report.losses[-1])) == found.startswith(b"salvaged")


@pytest.mark.parametrize("is_clean", [True, False])
def test_each_body_is_looked_for_on_its_own(is_clean: bool) -> None:
    """Every sixty-fourth sector of the store's files is zeros, heads of records and a hint among
    them: what is whole is taken, in its order."""
    rng = random.Random(4)
    fs = FaultyFileSystem()
    path = DataDirectory(fs, DATA).vhost_path(b"/")
    engine = StorageEngine(fs, path, b"/", clock=ManualClock(), rng=random.Random(1))
    queue = engine.declare_queue(b"q")
    bodies = [rng.randbytes(33_000) for _ in range(60)]
    for body in bodies:
        engine.publish([queue], b"", body, DISK)
    engine.sync()
    if is_clean:
        engine.close()
    fs = fs.crash("kept" if is_clean else "killed")
    store = path + "/msg_store_persistent"
    for name in fs.list(store):
        at = [16 * SECTOR_BYTES * i for i in range(4) if name.endswith(".hint")]
        sectors = range(0, fs.size(f"{store}/{name}"), SECTOR_BYTES)
        zeroed = {0, *(i for i in sectors if rng.random() < 1 / 64), *at}
        fs.damage(f"{store}/{name}", lambda data, zeroed=zeroed: without(data, zeroed))
    left = b"".join(fs.read(f"{store}/{name}") for name in fs.list(store))
    wanted = [body for body in bodies[1:] if body in left]
    assert len(wanted) > 10
    report = run(fs)
    assert [body for _, body, *_ in content(fs, NEW)[b"q"]] == wanted
    assert report.lost == 60 - len(wanted)


def test_a_file_that_is_missing_is_one_loss_however_many_messages_refer_to_it() -> None:
    fs = FaultyFileSystem()
    path = DataDirectory(fs, DATA).vhost_path(b"/")
    engine = StorageEngine(fs, path, b"/", clock=ManualClock(), rng=random.Random(1))
    queue = engine.declare_queue(b"q")
    for _ in range(5):
        engine.publish([queue], b"", bytes(33_000), DISK)
    engine.close()
    fs = fs.crash("kept")
    store = path + "/msg_store_persistent"
    (name,) = (one for one in fs.list(store) if one.endswith(".rdq"))
    fs.damage_delete(f"{store}/{name}")
    report = run(fs)
    assert report.lost == 5
    assert [str(one) for one in report.losses] == [
        f"{store}/{name}: at byte 0: the file is missing, with the bodies of 5 messages of queue "
        "'q' (a file whose messages are all acknowledged is deleted)"
    ]


def without(data: bytes, sectors: set[int]) -> bytes:
    """The same with zeros in the sectors that begin there."""
    changed = bytearray(data)
    for at in sectors:
        size = len(changed[at : at + SECTOR_BYTES])
        changed[at : at + size] = bytes(size)
    return bytes(changed)


def test_the_target_must_be_free(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.mkdir("/full")
    fs.open("/full/precious", create=True)
    fs.open("/file", create=True)
    before = image(fs)
    for into in ("/full", "/file", DATA, DATA + "/new", "/missing/new"):
        with pytest.raises(NotAStoreError):
            salvage(fs, DATA, into, clock=ManualClock(), rng=random.Random(1))
    assert image(fs) == before


def test_a_store_in_use_is_not_salvaged(whole: FaultyFileSystem) -> None:
    fs = whole.fork()
    fs.lock(vhost_path(fs) + "/LOCK")
    with pytest.raises(LockedError):
        salvage(fs, DATA, NEW, clock=ManualClock(), rng=random.Random(1))


def test_a_crash_leaves_no_store_and_the_next_one_begins_anew(killed: FaultyFileSystem) -> None:
    journalled = killed.fork()
    run(journalled)
    last = journalled.operations
    for at in range(killed.operations + 1, last, 17):
        fs = killed.fork()
        fs.crash_at = at
        with pytest.raises(CrashNow):
            salvage(fs, DATA, NEW, clock=ManualClock(), rng=random.Random(9))
        after = fs.crash("subset", random.Random(at))
        if after.exists(NEW) and after.list(NEW):
            with pytest.raises(NotAStoreError):
                DataDirectory(after, NEW, create=False)
        run(after)
        assert content(after, NEW) == content(killed)


def test_a_full_disk(killed: FaultyFileSystem) -> None:
    fs = killed.fork()
    fs.capacity = fs.used_bytes() + 3000
    before = image(fs, DATA)
    with pytest.raises((DiskFullError, OSError)) as caught:
        salvage(fs, DATA, NEW, clock=ManualClock(), rng=random.Random(9))
    error = caught.value
    assert isinstance(error, DiskFullError) or getattr(error, "errno", 0) == errno.ENOSPC
    assert image(fs, DATA) == before
    fs.capacity = None
    assert run(fs).lost == 0
