"""What crashes and failed syncs leave on the simulated disk, through FaultyFileSystem."""

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.files.filesystem import File
from tests.contracts.filesystem import fails_with, put
from tests.helpers.faulty_filesystem import FaultyFileSystem

SECTOR = 512


@pytest.fixture
def fs() -> FaultyFileSystem:
    system = FaultyFileSystem(seed=1)
    system.mkdir("/data")
    return system


@pytest.fixture
def file(fs: FaultyFileSystem) -> File:
    """A durable file of three sectors of "a"."""
    handle = fs.open("/data/f", create=True)
    handle.pwrite(b"a" * 3 * SECTOR, 0)
    fs.sync_all()
    return handle


def rng() -> random.Random:
    return random.Random(7)


def images(
    fs: FaultyFileSystem, mode: str, read: Callable[[FaultyFileSystem], object]
) -> set[object]:
    """What ``read`` finds after 200 crashes."""
    return {read(fs.crash(mode, random.Random(seed))) for seed in range(200)}


# ---- What a crash leaves ----------------------------------------------------------------


def test_lost_content_needs_sync_and_name_needs_sync_dir(fs: FaultyFileSystem) -> None:
    fs.sync_dir("/")
    one = fs.open("/data/synced", create=True)
    one.pwrite(b"x", 0)
    one.sync()
    assert fs.crash("lost").list("/data") == []
    fs.open("/data/empty", create=True).pwrite(b"y", 0)
    fs.sync_dir("/data")
    after = fs.crash("lost")
    assert after.read("/data/synced") == b"x"
    assert after.read("/data/empty") == b""


def test_lost_a_directory_needs_its_parent(fs: FaultyFileSystem) -> None:
    put(fs, "/data/f", b"x")
    fs.sync_dir("/data")
    assert fs.crash("lost").list("/") == []
    assert fs.crash("kept").read("/data/f") == b"x"


def test_lost_undoes_every_change_of_names(fs: FaultyFileSystem) -> None:
    for name in ("old", "gone", "linked"):
        put(fs, f"/data/{name}", name.encode())
    fs.mkdir("/data/dir")
    fs.sync_all()
    fs.rename("/data/old", "/data/new")
    fs.unlink("/data/gone")
    fs.rmdir("/data/dir")
    fs.link("/data/linked", "/data/second")
    assert fs.crash("lost").names() == [
        "/data/", "/data/dir/", "/data/gone", "/data/linked", "/data/old",
    ]  # fmt: skip
    assert fs.crash("kept").names() == ["/data/", "/data/linked", "/data/new", "/data/second"]
    assert fs.crash("lost").read("/data/gone") == b"gone"


def test_a_synced_link_shares_its_content_after_the_crash(fs: FaultyFileSystem) -> None:
    put(fs, "/data/a", b"x")
    fs.link("/data/a", "/data/b")
    after = fs.crash("kept")
    after.open("/data/a").pwrite(b"y", 0)
    assert after.read("/data/b") == b"y"


def test_subset_names_have_their_old_or_new_inode(fs: FaultyFileSystem) -> None:
    put(fs, "/data/CURRENT", b"old")
    fs.sync_all()
    put(fs, "/data/tmp", b"new")
    fs.open("/data/tmp").sync()
    fs.rename("/data/tmp", "/data/CURRENT")
    assert images(fs, "subset", lambda after: after.read("/data/CURRENT")) == {b"old", b"new"}


def test_subset_a_renamed_directory_never_has_two_names(fs: FaultyFileSystem) -> None:
    fs.mkdir("/data/a")
    put(fs, "/data/a/f", b"x")
    fs.sync_all()
    fs.rename("/data/a", "/data/b")
    seen = images(fs, "subset", lambda after: tuple(after.list("/data")))
    assert seen == {(), ("a",), ("b",)}
    assert images(fs, "kept", lambda after: after.read("/data/b/f")) == {b"x"}


def test_subset_mixes_sectors_and_only_sectors(fs: FaultyFileSystem, file: File) -> None:
    file.pwrite(b"b" * (2 * SECTOR + 100), 100)

    def sectors(after: FaultyFileSystem) -> str:
        content = after.read("/data/f")
        assert len(content) == 3 * SECTOR
        assert content[:100] == b"a" * 100
        assert content[2 * SECTOR + 200 :] == b"a" * (SECTOR - 200)
        pieces = [content[100:SECTOR], content[SECTOR : 2 * SECTOR], content[2 * SECTOR :][:200]]
        assert all(len(set(piece)) == 1 for piece in pieces)
        return "".join(chr(piece[0]) for piece in pieces)

    assert images(fs, "subset", sectors) == {f"{a}{b}{c}" for a in "ab" for b in "ab" for c in "ab"}


def test_subset_keeps_what_was_synced_and_loses_writes_one_by_one(
    fs: FaultyFileSystem, file: File
) -> None:
    file.truncate(0)
    file.pwrite(b"s", 0)
    file.sync()
    for offset in range(1, 4):
        file.pwrite(b"u", offset)
    seen = images(fs, "subset", lambda after: after.read("/data/f"))
    assert {b"s", b"su", b"s\0u", b"s\0\0u", b"suuu", b"s\0\0\0"} <= seen
    assert all(isinstance(content, bytes) and content[:1] == b"s" for content in seen)


def test_subset_of_a_large_write_has_runs_of_both(fs: FaultyFileSystem) -> None:
    file = fs.open("/data/f", create=True)
    file.allocate(1 << 20)
    fs.sync_all()
    file.pwrite(b"b" * (1 << 20), 0)
    counts = images(fs, "subset", lambda after: after.read("/data/f").count(b"b"))
    assert {0, 1 << 20} < counts
    assert all(isinstance(count, int) and count % SECTOR == 0 for count in counts)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [("prefix", b"abNEef"), ("suffix", b"abcdW!"), ("zeros", b"abNE\0\0")],
)
def test_torn_cuts_the_last_write_where_it_is_told(
    fs: FaultyFileSystem, variant: str, expected: bytes
) -> None:
    put(fs, "/data/f", b"abcdef")
    fs.sync_all()
    put(fs, "/data/before", b"kept")
    fs.open("/data/f").pwrite(b"NEW!", 2)
    assert fs.last_write() == ("/data/f", 4)
    after = fs.crash("torn", cut=2, variant=variant)
    assert after.read("/data/f") == expected
    assert after.read("/data/before") == b"kept"


def test_torn_at_its_ends_is_all_or_nothing(fs: FaultyFileSystem) -> None:
    put(fs, "/data/f", b"abc")
    fs.sync_all()
    fs.open("/data/f").pwrite(b"XY", 2)
    contents = [
        fs.crash("torn", cut=cut, variant=variant).read("/data/f")
        for variant in ("prefix", "suffix")
        for cut in (0, 1, 2)
    ]
    assert contents == [b"abc", b"abX", b"abXY", b"abXY", b"abc\0"[:3] + b"Y", b"abc"]


def test_torn_without_an_unsynced_write_is_kept(fs: FaultyFileSystem, file: File) -> None:
    fs.rename("/data/f", "/data/g")
    assert fs.last_write() is None
    assert fs.crash("torn", rng()).names() == ["/data/", "/data/g"]


def test_torn_looks_at_files_that_have_a_name(fs: FaultyFileSystem, file: File) -> None:
    put(fs, "/data/g", b"first")
    file.pwrite(b"x", 0)
    fs.unlink("/data/f")
    assert fs.last_write() == ("/data/g", 5)


def test_torn_by_chance_takes_every_variant_and_cut(fs: FaultyFileSystem) -> None:
    put(fs, "/data/f", b"a")
    fs.sync_all()
    fs.open("/data/f").pwrite(b"bcd", 1)
    seen = images(fs, "torn", lambda after: after.read("/data/f"))
    assert {b"a", b"ab", b"abcd", b"ab\0\0", b"a\0cd"} <= seen


def test_zeros_keeps_sizes_and_old_bytes(fs: FaultyFileSystem) -> None:
    put(fs, "/data/f", b"abc")
    fs.sync_all()
    file = fs.open("/data/f")
    file.pwrite(b"XYZ", 2)
    put(fs, "/data/new", b"1234")
    put(fs, "/data/cut", b"12")
    after = fs.crash("zeros")
    assert after.read("/data/f") == b"abc\0\0"
    assert after.read("/data/new") == bytes(4)
    file.truncate(1)
    file.truncate(3)
    assert fs.crash("zeros").read("/data/f") == b"a\0\0"


def test_killed_leaves_the_kernel_its_dirty_pages(fs: FaultyFileSystem, file: File) -> None:
    file.pwrite(b"b", 0)
    lock = fs.lock("/data/LOCK")
    after = fs.crash("killed")
    assert after.read("/data/f")[:1] == b"b"
    assert after.crash("lost").read("/data/f")[:1] == b"a"
    after.open("/data/f").sync()
    assert after.crash("lost").read("/data/f")[:1] == b"b"
    assert fs.crash("lost").read("/data/f")[:1] == b"a"
    assert after.lock("/data/LOCK").is_held()
    assert lock.is_held()


def test_after_any_other_crash_nothing_is_pending(fs: FaultyFileSystem, file: File) -> None:
    file.pwrite(b"b" * 5000, 10)
    put(fs, "/data/g", b"x")
    for mode in ("lost", "kept", "subset", "torn", "zeros"):
        after = fs.crash(mode, rng())
        again = after.crash("lost")
        assert again.names() == after.names()
        for name in after.list("/data"):
            assert again.read(f"/data/{name}") == after.read(f"/data/{name}")
        assert after.last_write() is None
        assert after.operations == 0


def test_an_unknown_mode_is_refused(fs: FaultyFileSystem) -> None:
    with pytest.raises(ValueError, match="'gone'"):
        fs.crash("gone")
    put(fs, "/data/f", b"x")
    with pytest.raises(ValueError, match="'middle'"):
        fs.crash("torn", variant="middle")


# ---- Failed syncs and lies --------------------------------------------------------------


def test_a_failed_sync_leaves_clean_pages_that_are_not_on_disk(
    fs: FaultyFileSystem, file: File
) -> None:
    fs.fail(errno.EIO, kinds={"sync"})
    file.pwrite(b"b" * 3 * SECTOR, 0)
    with fails_with(errno.EIO):
        file.sync()
    assert file.pread(1, 0) == b"b"
    assert fs.last_write() is None
    file.sync()  # succeeds, and proves nothing
    assert fs.crash("killed").read("/data/f") == b"b" * 3 * SECTOR
    durable = fs.crash("lost").read("/data/f")
    assert fs.crash("kept").read("/data/f") == durable
    file.drop_cache()
    assert file.pread(9999, 0) == durable


def test_a_failed_sync_lets_any_part_through() -> None:
    seen = set()
    for seed in range(100):
        fs = FaultyFileSystem(seed=seed)
        file = fs.open("/f", create=True)
        fs.sync_all()
        file.pwrite(b"b" * SECTOR, 0)
        file.pwrite(b"c", SECTOR)
        fs.fail(errno.EIO)
        with fails_with(errno.EIO):
            file.sync()
        seen.add(fs.crash("lost").read("/f"))
    assert seen == {b"", b"b" * SECTOR, bytes(SECTOR) + b"c", b"b" * SECTOR + b"c"}


def test_drop_cache_keeps_what_is_dirty_and_the_size() -> None:
    fs = FaultyFileSystem(seed=3)
    file = fs.open("/f", create=True)
    fs.sync_all()
    file.pwrite(b"lost", 0)
    fs.fail(errno.EIO)
    with fails_with(errno.EIO):
        file.sync()
    fs.disk.file(1).durable = bytearray()  # whatever chance let through
    file.pwrite(b"!", 1)
    file.drop_cache()
    assert file.pread(9, 0) == b"\0!\0\0"
    file.sync()
    assert fs.crash("lost").crash("lost").list("/") == ["f"]
    assert fs.crash("lost").read("/f") == b"\0!\0\0"


def test_a_lying_sync_makes_nothing_durable_until_an_honest_one(
    fs: FaultyFileSystem, file: File
) -> None:
    fault = fs.fail("lie", kinds={"sync"})
    file.pwrite(b"b", 0)
    file.sync()
    assert fault.hits == 1
    assert fs.crash("lost").read("/data/f")[:1] == b"a"
    file.sync()
    assert fs.crash("lost").read("/data/f")[:1] == b"b"


def test_sync_dir_lies_and_fails(fs: FaultyFileSystem) -> None:
    fs.sync_all()
    put(fs, "/data/f", b"x")
    fs.fail("lie", kinds={"sync_dir"})
    fs.sync_dir("/data")
    assert fs.crash("lost").list("/data") == []
    fs.fail(errno.EIO, kinds={"sync_dir"}, times=20)
    for _ in range(20):
        with fails_with(errno.EIO):
            fs.sync_dir("/data")
    assert fs.crash("lost").list("/data") == ["f"], "by chance a part, in the end all"


# ---- Against a plain model --------------------------------------------------------------

writes = st.tuples(st.just("write"), st.integers(0, 3000), st.binary(min_size=1, max_size=1200))
cuts = st.tuples(st.just("truncate"), st.integers(0, 3000), st.none())
syncs = st.tuples(st.just("sync"), st.none(), st.none())
forks = st.tuples(st.just("fork"), st.none(), st.none())


@given(st.lists(st.one_of(writes, cuts, syncs, forks), max_size=30), st.integers(0, 1 << 30))
def test_images_against_a_model(steps: list[tuple[str, int, bytes]], seed: int) -> None:
    """lost is the content at the last sync, kept the content now, subset made of bytes that
    were written there, or zeros, at every point; whatever copies were made meanwhile."""
    fs = FaultyFileSystem()
    file = fs.open("/f", create=True)
    fs.sync_all()
    now, synced = bytearray(), b""
    ever: list[set[int]] = [{0} for _ in range(4300)]
    others: list[FaultyFileSystem] = []
    for what, place, data in steps:
        if what == "write":
            file.pwrite(data, place)
            now.extend(bytes(max(place - len(now), 0)))
            now[place : place + len(data)] = data
            for at, byte in enumerate(data, place):
                ever[at].add(byte)
        elif what == "truncate":
            file.truncate(place)
            now = now[:place].ljust(place, b"\0")
        elif what == "sync":
            file.sync()
            synced = bytes(now)
        else:
            others.append(fs.fork())
        assert fs.read("/f") == now
        assert fs.crash("kept").read("/f") == now
        assert fs.crash("lost").read("/f") == synced
    subset = fs.crash("subset", random.Random(seed)).read("/f")
    assert all(byte in ever[at] for at, byte in enumerate(subset))
    assert len(fs.crash("zeros").read("/f")) == len(now)
    for other in others:
        other.open("/f").pwrite(b"x", 0)
    assert fs.read("/f") == now
