"""The simulated disk keeps its promises, or every crash test above it is worth nothing."""

import errno
import random
from collections.abc import Callable

import pytest

from penstock.storage.files.filesystem import File
from tests.contracts.filesystem import FileSystemContract, fails_with, put
from tests.helpers.faulty_filesystem import DAMAGES, CrashNow, FaultyFileSystem

SECTOR = 512


@pytest.fixture
def root() -> str:
    return "/data"


@pytest.fixture
def fs(root: str) -> FaultyFileSystem:
    system = FaultyFileSystem(seed=1, journal=True)
    system.mkdir(root)
    return system


class TestFaultyFileSystem(FileSystemContract):
    pass


@pytest.fixture
def file(fs: FaultyFileSystem, root: str) -> File:
    """A durable file of three sectors of "a"."""
    handle = fs.open(f"{root}/f", create=True)
    handle.pwrite(b"a" * 3 * SECTOR, 0)
    fs.sync_all()
    return handle


def rng() -> random.Random:
    return random.Random(7)


# ---- Planned faults ---------------------------------------------------------------------


def test_every_operation_can_fail_and_then_does_nothing(fs: FaultyFileSystem, file: File) -> None:
    put(fs, "/data/other", b"x")
    fs.mkdir("/data/dir")
    fs.sync_all()
    calls: list[Callable[[], object]] = [
        lambda: fs.open("/data/new", create=True),
        lambda: file.pwrite(b"z", 0),
        lambda: file.allocate(9),
        lambda: file.truncate(0),
        lambda: file.sync(),
        lambda: fs.sync_dir("/data"),
        lambda: fs.rename("/data/f", "/data/g"),
        lambda: fs.link("/data/f", "/data/g"),
        lambda: fs.unlink("/data/f"),
        lambda: fs.mkdir("/data/new"),
        lambda: fs.rmdir("/data/dir"),
    ]
    before = fs.names(), fs.read("/data/f")
    for number, call in enumerate(calls, fs.operations + 1):
        fs.fail(errno.EIO, at=number)
        with fails_with(errno.EIO):
            call()
        assert fs.operations == number
        assert (fs.names(), fs.read("/data/f")) == before
    fs.rmdir("/data/dir")


def test_what_has_no_effect_is_no_operation(fs: FaultyFileSystem, file: File) -> None:
    before = fs.operations
    fs.mkdir("/data")
    fs.open("/data/f", create=True).close()
    fs.rename("/data/f", "/data/f")
    with fails_with(errno.ENOENT):
        fs.unlink("/data/none")
    file.drop_cache()
    fs.list("/data")
    assert fs.operations == before


def test_nth_at_times_kinds_and_path_choose_the_operation(fs: FaultyFileSystem) -> None:
    one, two = fs.open("/data/1.wal", create=True), fs.open("/data/2.qi", create=True)

    def outcome(file: File) -> str:
        try:
            file.pwrite(b"x", 0)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "ok"

    fs.fail(errno.EIO, kinds={"pwrite"}, path=".wal", nth=2, times=2)
    assert [outcome(f) for f in (one, two, one, two, one, one)] == [
        "ok", "ok", "EIO", "ok", "EIO", "ok",
    ]  # fmt: skip
    fs.clear_faults()
    fs.fail(errno.ENOSPC, at=fs.operations + 2, times=None, path=lambda path: path.endswith("qi"))
    assert [outcome(f) for f in (two, two, one, two)] == ["ok", "ENOSPC", "ok", "ENOSPC"]
    with pytest.raises(ValueError, match="wirte"):
        fs.fail(errno.EIO, kinds={"wirte"})


def test_a_short_write_lands_by_half(fs: FaultyFileSystem, file: File) -> None:
    fs.fail("short", kinds={"pwrite", "allocate"}, times=2)
    with fails_with(errno.ENOSPC):
        file.pwrite(b"bbbb", 0)
    assert file.pread(4, 0) == b"bbaa"
    with fails_with(errno.ENOSPC):
        file.allocate(1000)
    assert file.size() == 3 * SECTOR
    assert file.pread(501, 0) == bytes(500) + b"a"


def test_faulty_reads(fs: FaultyFileSystem, file: File) -> None:
    file.pwrite(b"b" * SECTOR, SECTOR)
    for effect in (errno.EIO, "short", "flip", "misdirect"):
        fs.fail(effect, kinds={"read"})
    with fails_with(errno.EIO):
        file.pread(8, 0)
    assert file.pread(8, 0) == b"aaaa"
    flipped = fs.read("/data/f")
    assert flipped.count(b"a") + flipped.count(b"b") >= 3 * SECTOR - 1
    assert flipped != fs.read("/data/f")[: 3 * SECTOR]  # misdirected: one sector further
    assert fs.read("/data/f") == b"a" * SECTOR + b"b" * SECTOR + b"a" * SECTOR


def test_a_full_disk(fs: FaultyFileSystem) -> None:
    file = fs.open("/data/f", create=True)
    fs.capacity = 10
    file.pwrite(b"12345678", 0)
    assert fs.free_bytes("/") == 2
    with fails_with(errno.ENOSPC):
        file.pwrite(b"abcd", 7)
    assert fs.read("/data/f") == b"1234567abc"
    assert fs.free_bytes("/") == 0
    file.pwrite(b"over", 0)
    with fails_with(errno.ENOSPC):
        fs.open("/data/g", create=True).pwrite(b"x", 0)
    fs.unlink("/data/f")
    assert fs.free_bytes("/") == 0, "it is open"
    file.close()
    assert fs.free_bytes("/") == 10
    assert fs.fork().capacity == 10
    fs.capacity = None
    assert fs.free_bytes("/") > 1 << 40


def test_kind_can_be_set(fs: FaultyFileSystem) -> None:
    fs.kind_name = "nfs4"
    assert fs.kind("/data") == fs.crash("kept").kind("/") == "nfs4"


# ---- Crash points -----------------------------------------------------------------------


def workload(fs: FaultyFileSystem) -> None:
    """Every kind of operation."""
    fs.mkdir("/w")
    file = fs.open("/w/log", create=True)
    file.allocate(2000)
    file.sync()
    fs.sync_dir("/w")
    file.pwrite(b"record", 0)
    fs.submit(file.sync)
    file.pwrite(b"another", 600)
    fs.completed(wait=True)
    put(fs, "/w/tmp", b"manifest")
    fs.rename("/w/tmp", "/w/CURRENT")
    fs.link("/w/log", "/w/spare")
    fs.unlink("/w/log")
    file.truncate(10)
    fs.mkdir("/w/dir")
    fs.rmdir("/w/dir")
    fs.sync_dir("/w")
    fs.fail(errno.EIO, kinds={"sync"})
    try:
        file.sync()
    except OSError:
        file.drop_cache()
    file.pwrite(b"after", 3)


def state(fs: FaultyFileSystem) -> list[object]:
    """All that can be seen of it, now and after crashes."""
    found: list[object] = []
    crashed = [fs.crash(mode, rng()) for mode in ("lost", "kept", "subset", "torn", "zeros")]
    for system in [fs, *crashed]:
        names = system.names()
        found.append([(n, None if n.endswith("/") else system.read(n)) for n in names])
    return found


def test_crash_at_every_operation_equals_the_journals_image() -> None:
    whole = FaultyFileSystem(seed=5, journal=True)
    workload(whole)
    assert whole.journal is not None
    swept = [(number, state(fs)) for number, fs in whole.journal.images()]
    assert [number for number, _ in swept] == list(range(whole.operations + 1))
    for number, expected in swept:
        fs = FaultyFileSystem(seed=5)
        fs.crash_at = number + 1
        if number < whole.operations:
            with pytest.raises(CrashNow):
                workload(fs)
            assert fs.is_dead
        else:
            workload(fs)
        assert fs.operations == number
        assert state(fs) == expected


def test_the_dead_change_nothing_more(fs: FaultyFileSystem, file: File) -> None:
    fs.crash_at = fs.operations + 1
    for _ in range(2):
        with pytest.raises(CrashNow, match="pwrite /data/f"):
            file.pwrite(b"b", 0)
    fs.submit(lambda: file.truncate(0))
    with pytest.raises(CrashNow):
        fs.completed(wait=True)
    file.close()
    assert fs.read("/data/f") == b"a" * 3 * SECTOR
    after = fs.crash("kept")
    after.open("/data/f").pwrite(b"b", 0)
    assert after.read("/data/f")[:1] == b"b"


def test_the_hook_sees_operations_before_they_are_done(fs: FaultyFileSystem, file: File) -> None:
    seen: list[tuple[str, str, bytes]] = []
    fs.before_operation = lambda number, kind, path: seen.append((kind, path, fs.read(path)[:1]))
    file.pwrite(b"b", 0)
    file.sync()
    assert seen == [("pwrite", "/data/f", b"a"), ("sync", "/data/f", b"b")]


def test_images_of_a_range_and_notes(fs: FaultyFileSystem) -> None:
    journal = fs.start_journal()
    first = fs.operations
    file = fs.open("/data/f", create=True)
    for number in range(3):
        file.pwrite(b"%d" % number, number)
        journal.note(number)
    assert (journal.first, journal.last) == (first, first + 4)
    assert [k for k, _ in journal.images(first + 1, first + 2)] == [first + 1, first + 2]
    for k, image in journal.images(first + 1):
        assert len(image.read("/data/f")) == k - first - 1 == len(journal.noted(k))
        image.open("/data/f").pwrite(b"spoilt", 0)
    assert journal.image(first + 3).read("/data/f") == b"01"
    with pytest.raises(ValueError, match="no operation"):
        journal.image(first + 5)
    assert repr(journal.entries[0]) == f"{first + 1}: create /data/f"


def test_forks_do_not_touch_each_other(fs: FaultyFileSystem, file: File) -> None:
    file.pwrite(b"pending", 0)
    forks = [fs.fork(), fs.fork(), fs.crash("killed"), fs.crash("kept"), fs.crash("lost")]
    before = [state(fork) for fork in forks]
    file.pwrite(b"!" * 2000, 5)
    file.sync()
    fs.unlink("/data/f")
    fs.sync_dir("/data")
    assert [state(fork) for fork in forks] == before
    forks[0].open("/data/f").pwrite(b"?", 0)
    forks[0].open("/data/f").sync()
    forks[0].rename("/data/f", "/data/g")
    assert [state(fork) for fork in forks[1:]] == before[1:]


def test_chance_is_that_of_the_seed() -> None:
    systems = [FaultyFileSystem(seed=9), FaultyFileSystem(seed=9)]
    for fs in systems:
        workload(fs)
    assert state(systems[0]) == state(systems[1])


# ---- Submitted operations ---------------------------------------------------------------


def test_a_submitted_sync_covers_what_was_written_before_its_submit(
    fs: FaultyFileSystem, file: File
) -> None:
    file.pwrite(b"b", 0)
    fs.submit(file.sync)
    file.pwrite(b"c", 1)
    fs.completed(wait=True)
    assert fs.crash("lost").read("/data/f")[:2] == b"ba"
    assert fs.crash("kept").read("/data/f")[:2] == b"bc"
    file.sync()
    assert fs.crash("lost").read("/data/f")[:2] == b"bc"


def test_a_submitted_sync_covers_what_its_own_operation_wrote(
    fs: FaultyFileSystem, file: File
) -> None:
    def write_and_sync() -> None:
        file.pwrite(b"own", 0)
        file.sync()

    fs.submit(write_and_sync)
    file.pwrite(b"between", 10)
    fs.completed(wait=True)
    assert fs.crash("lost").read("/data/f")[:3] == b"own"


def test_without_chance_operations_run_in_order(fs: FaultyFileSystem) -> None:
    seen: list[int] = []
    tokens = [fs.submit(lambda: seen.append(len(seen))) for _ in range(4)]
    assert seen == []
    assert fs.completed(wait=False) == [(token, None) for token in tokens]


def test_with_chance_they_run_later_and_in_any_order() -> None:
    orders, waits = set(), set()
    for seed in range(100):
        fs = FaultyFileSystem()
        fs.completion_rng = random.Random(seed)
        for name in "abc":
            fs.submit(lambda name=name: name)  # type: ignore[misc]
        waits.add(len(fs.completed(wait=False)))
        done: list[object] = []
        while batch := fs.completed(wait=True):
            done.extend(result for _, result in batch)
        if len(done) == 3:
            orders.add(tuple(done))
    assert waits == {0, 1, 2, 3}
    assert len(orders) == 6


# ---- Damage -----------------------------------------------------------------------------


def spoilt(fs: FaultyFileSystem) -> bytes:
    """The file, which is the same in all images."""
    content = fs.read("/data/f")
    assert fs.crash("lost").read("/data/f") == content
    return content


def test_damage(fs: FaultyFileSystem) -> None:
    put(fs, "/data/f", b"a" * SECTOR + b"b" * SECTOR)
    fs.sync_all()
    operations = fs.operations
    fs.damage_flip("/data/f", 3, bit=1)
    assert spoilt(fs)[:5] == b"aaaca"
    fs.damage_duplicate_sector("/data/f", 1, 0)
    assert spoilt(fs) == b"b" * 2 * SECTOR
    fs.damage_zero_tail("/data/f", 3)
    assert spoilt(fs) == b"b" * (2 * SECTOR - 3) + bytes(3)
    fs.damage_cut("/data/f", 4)
    assert spoilt(fs) == b"bbbb"
    fs.damage_zero_tail("/data/f", 9)
    assert spoilt(fs) == bytes(4)
    fs.damage_garbage("/data/f", 2, 6, rng())
    assert spoilt(fs) == bytes(2) + rng().randbytes(6)
    fs.damage_garbage("/data/f", 10, 1)
    assert spoilt(fs)[8:10] == bytes(2)
    put(fs, "/data/g", b"g")
    fs.sync_all()
    fs.damage_swap("/data/f", "/data/g")
    assert spoilt(fs) == b"g"
    fs.damage_delete("/data/f")
    assert fs.list("/data") == fs.crash("lost").list("/data") == ["g"]
    assert fs.operations == operations + 2 + 1  # of put: create, (truncate, pwrite)


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_random_damage_spoils_a_file_of_any_length(name: str) -> None:
    for length in (1, 100, SECTOR, SECTOR + 1, 5000):
        changed = 0
        for seed in range(10):
            fs = FaultyFileSystem()
            fs.mkdir("/data")
            put(fs, "/data/f", random.Random(length).randbytes(length))
            fs.sync_all()
            before = fs.read("/data/f")
            DAMAGES[name](fs, "/data/f", random.Random(seed))
            changed += spoilt(fs) != before
        assert changed >= (5 if length > SECTOR or name != "duplicate sector" else 0)
