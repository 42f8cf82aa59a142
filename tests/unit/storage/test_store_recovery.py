"""What the next process makes of the files: crashes, torn tails, the cache, and damage."""

import errno
import zlib

import pytest

from penstock.errors import (
    CorruptionError,
    SyncFailedError,
    VersionError,
)
from penstock.storage.store.message_store import MessageStore
from penstock.storage.store.store_file import HEADER_BYTES
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import sync_now
from tests.helpers.stores import (
    PATH,
    VHOST,
    Saved,
    body,
    check,
    checkpoint,
    counts_of,
    fill,
    new_store,
    reopened,
)


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem(seed=1)


@pytest.fixture
def store(fs: FaultyFileSystem) -> MessageStore:
    found = new_store(fs)
    fs.sync_dir("/")
    return found


# ---- recovery ----------------------------------------------------------------------------------


def test_a_fresh_directory(fs: FaultyFileSystem) -> None:
    store = reopened(fs, None)
    assert not store.files
    assert store.forget_unknown() == []
    assert store.write(1, b"x", 1) == 1


@pytest.mark.parametrize("mode", ["lost", "kept", "killed"])
def test_after_a_crash_all_that_was_synced_is_there(mode: str) -> None:
    fs = FaultyFileSystem(seed=1)
    store = new_store(fs, own_file_from=900)
    fs.sync_dir("/")
    sizes = [100, 300, 950]
    files = {id: store.write(id, body(id, sizes[id % 3]), 1 + id % 2) for id in range(1, 60)}
    for id in range(1, 60, 5):
        store.unref(files[id], id)
    before = counts_of(store, files)
    saved = checkpoint(store, 1, unlink=False)
    later = {id: store.write(id, body(id, sizes[id % 3]), 1) for id in range(60, 120)}
    sync_now(store)
    store.write(200, body(200), 1)  # never synced

    after = reopened(fs.crash(mode), saved)
    assert after.take_damage() == []
    assert counts_of(after, files) == before
    for id, file in later.items():
        assert after.has(file, id)
        after.ref(file, id)
    for id, file in (files | later).items():
        assert after.read(file, id) == body(id, sizes[id % 3])
    check(after)
    assert after.next_file >= store.next_file or mode == "lost"
    young = after.write(300, b"new", 1)
    assert young not in set(files.values()) | set(later.values()), "never behind an old tail"
    saved = checkpoint(after, 1)
    third = reopened(after.fs.crash("lost"), saved)  # type: ignore[attr-defined]
    assert counts_of(third, files) == before
    assert all(third.refs(file, id) == 1 for id, file in later.items())


def test_bodies_after_the_cut_are_dead_until_a_record_names_them(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    saved = checkpoint(store, 1)
    files = fill(store, range(1, 40))
    after = reopened(fs, saved)
    assert after.live_count == 0
    after.ref(files[1], 1)
    after.cut(1)
    dead = after.take_dead()
    assert f"{PATH}/1.rdq" not in dead
    assert f"{PATH}/2.rdq" in dead
    assert after.read(files[1], 1) == body(1)


def test_leftovers_are_found(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 40))
    for id in range(1, 13):
        store.unref(files[id], id)
    saved = checkpoint(store, 1, unlink=False)  # crashed before they were unlinked
    for name in ("99.hint", "2.hint.new", "foreign.txt", "notes"):
        fs.open(f"{PATH}/{name}", create=True).close()
    after = reopened(fs, saved)
    orphans = after.forget_unknown()
    assert sorted(orphans) == [f"{PATH}/{x}" for x in ("1.hint", "1.rdq", "2.hint.new", "99.hint")]
    assert after.next_file == 100
    assert after.forget_unknown() == []


def test_restoring_writes_nothing(store: MessageStore, fs: FaultyFileSystem) -> None:
    fill(store, range(1, 40))
    saved = checkpoint(store, 1)
    fill(store, range(40, 80))
    fs.damage_flip(f"{PATH}/2.hint", 60)
    names, operations = fs.names(), fs.operations
    after = reopened(fs, saved)
    assert all(after.has(number, id) for number, id in ((2, 13), (4, 40)))
    assert fs.names() == names
    changed = fs.operations - operations
    assert changed == 4, "the syncs of the files that may be unsynced [8]"


def test_a_tail_may_be_torn_anywhere(store: MessageStore, fs: FaultyFileSystem) -> None:
    store.write(1, b"one" * 20, 1)
    saved = checkpoint(store, 1)
    store.write(2, b"two" * 20, 1)
    store.write(3, b"three" * 20, 1)
    size = fs.size(f"{PATH}/1.rdq")
    for length in range(size - 116 - 76, size):
        cut = fs.fork()
        cut.damage_cut(f"{PATH}/1.rdq", length)
        after = reopened(cut, saved)
        assert after.take_damage() == []
        assert after.read(1, 1) == b"one" * 20
        assert after.has(1, 2) == (length >= size - 116)
        assert not after.has(1, 3)
        zeros = fs.fork()
        zeros.damage_zero_tail(f"{PATH}/1.rdq", size - length)
        assert reopened(zeros, saved).has(1, 2) == (length >= size - 116)


def test_a_torn_new_file_is_an_orphan(store: MessageStore, fs: FaultyFileSystem) -> None:
    saved = checkpoint(store, 1)
    store.write(1, b"one", 1)
    fs.damage_cut(f"{PATH}/1.rdq", 20)
    after = reopened(fs, saved)
    assert not after.has(1, 1)
    assert after.forget_unknown() == [f"{PATH}/1.rdq"]
    assert after.next_file == 2


def test_recovery_drops_what_the_cache_alone_has() -> None:
    outcomes = set()
    for seed in range(30):
        fs = FaultyFileSystem(seed=seed)
        store = new_store(fs, file_bytes_max=1 << 20)
        fs.sync_dir("/")
        store.write(1, b"one" * 300, 1)
        saved = checkpoint(store, 1)
        file = store.write(2, b"two" * 300, 1)
        op = store.take_unsynced()
        fs.fail(errno.EIO, kinds=["sync"])
        with pytest.raises(SyncFailedError):
            op()
        assert store.has(file, 2)
        killed = fs.crash("killed")
        after = reopened(killed, saved)
        found = after.has(file, 2)
        assert reopened(killed.crash("lost"), saved).has(file, 2) == found
        assert after.has(file, 1)
        outcomes.add(found)
    assert outcomes == {True, False}


def test_a_sync_that_fails_in_recovery_stops_it(store: MessageStore, fs: FaultyFileSystem) -> None:
    saved = checkpoint(store, 1)
    store.write(1, b"one", 1)
    fs.fail(errno.EIO, kinds=["sync"])
    with pytest.raises(SyncFailedError):
        reopened(fs, saved)


def test_states_that_are_none_are_refused(fs: FaultyFileSystem) -> None:
    with pytest.raises(CorruptionError, match="not a file state"):
        reopened(fs, Saved([b"junk"], 1, 0))


# ---- damage ------------------------------------------------------------------------------------


@pytest.fixture
def sealed(store: MessageStore, fs: FaultyFileSystem) -> tuple[Saved, dict[int, int]]:
    """Three sealed files, every third body dead, some shared; all of it in a checkpoint."""
    files = fill(store, range(1, 40))
    for id in files:
        if id % 3 == 0:
            store.unref(files[id], id)
        elif id % 5 == 0:
            store.ref(files[id], id, id)
    return checkpoint(store, 1), files


def expected(files: dict[int, int]) -> dict[int, int]:
    return {id: 0 if id % 3 == 0 else 1 + (id if id % 5 == 0 else 0) for id in files}


def test_a_damaged_hint_is_replaced_by_a_scan(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    path = f"{PATH}/2.hint"
    for position in range(0, fs.size(path), 3):
        spoiled = fs.fork()
        spoiled.damage_flip(path, position, position % 8)
        store = reopened(spoiled, saved)
        assert counts_of(store, files) == expected(files), position
        assert all(store.read(file, id) == body(id) for id, file in files.items())
        (error,) = store.take_damage()
        assert error.path == path
        check(store)
        # The next checkpoint has a good hint again.
        again = reopened(spoiled, checkpoint(store, 1, unlink=False))
        assert counts_of(again, files) == expected(files)
        assert again.take_damage() == []


def test_a_missing_or_cut_hint_is_replaced_by_a_scan(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    path = f"{PATH}/2.hint"
    for length in range(-1, fs.size(path), 5):
        spoiled = fs.fork()
        if length < 0:
            spoiled.damage_delete(path)
        else:
            spoiled.damage_cut(path, length)
        store = reopened(spoiled, saved)
        assert counts_of(store, files) == expected(files)
        assert len(store.take_damage()) == 1


def test_a_hint_of_another_file_is_not_believed(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    fs.damage_swap(f"{PATH}/1.hint", f"{PATH}/2.hint")
    store = reopened(fs, saved)
    assert counts_of(store, files) == expected(files)
    assert all(store.read(file, id) == body(id) for id, file in files.items())
    assert len(store.take_damage()) == 2


def test_a_hint_that_rots_at_work(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 40))
    fs.damage_flip(f"{PATH}/1.hint", 100)
    for id in files:
        if id % 2:
            store.unref(files[id], id)
    assert "hint lost" in str(store.tables.damage[0])
    saved = checkpoint(store, 1, unlink=False)
    after = reopened(fs, saved)
    assert counts_of(after, files) == {id: 1 - id % 2 for id in files}
    assert after.tables.damage == []


@pytest.mark.large
def test_a_damaged_byte_is_never_delivered(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    path = f"{PATH}/2.rdq"
    in_it = [id for id, file in files.items() if file == 2]
    for position in range(fs.size(path)):
        spoiled = fs.fork()
        spoiled.damage_flip(path, position, position % 8)
        store = reopened(spoiled, saved)
        hit = (position - HEADER_BYTES) // 316
        for place, id in enumerate(in_it):
            if position < HEADER_BYTES or place == hit:
                with pytest.raises(CorruptionError) as caught:
                    store.read(2, id)
                assert caught.value.path == path
            else:
                assert store.read(2, id) == body(id)
        assert counts_of(store, files) == expected(files)


def test_a_damaged_record_and_a_lost_hint(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    """Every byte of a record damaged in turn, while the table must come from a scan."""
    saved, files = sealed
    path = f"{PATH}/2.rdq"
    in_it = [id for id, file in files.items() if file == 2]
    record = HEADER_BYTES + 4 * 316
    for position in range(record, record + 40):
        spoiled = fs.fork()
        spoiled.damage_flip(path, position, position % 8)
        spoiled.damage_delete(f"{PATH}/2.hint")
        store = reopened(spoiled, saved)
        assert counts_of(store, files) == expected(files), position
        for place, id in enumerate(in_it):
            assert store.has(2, id) == (place != 4)
        assert [error.position for error in store.take_damage()] == [0, record]


def test_a_file_that_is_cut_off_is_reported(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]]
) -> None:
    saved, files = sealed
    fs.damage_cut(f"{PATH}/2.rdq", 1000)
    store = reopened(fs, saved)
    (error,) = store.take_damage()
    assert (error.path, error.position) == (f"{PATH}/2.rdq", 1000)
    assert counts_of(store, files) == expected(files)
    assert not store.has(2, 24)


@pytest.mark.parametrize("spoil", ["missing", "swapped", "no table"])
def test_a_file_whose_table_cannot_be_known_stops_recovery(
    fs: FaultyFileSystem, sealed: tuple[Saved, dict[int, int]], spoil: str
) -> None:
    saved, _ = sealed
    if spoil == "missing":
        fs.damage_delete(f"{PATH}/2.rdq")
    else:
        fs.damage_delete(f"{PATH}/2.hint")
        if spoil == "swapped":
            fs.damage_swap(f"{PATH}/1.rdq", f"{PATH}/2.rdq")
        else:
            fs.damage_garbage(f"{PATH}/2.rdq", HEADER_BYTES, 1000)
    with pytest.raises(CorruptionError, match=r"2\.rdq"):
        reopened(fs, saved)


def test_damage_in_the_counted_part_of_an_unsealed_file(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    files = fill(store, range(1, 11))
    saved = checkpoint(store, 1)
    later = store.write(11, b"later", 1)
    for position in range(HEADER_BYTES + 2 * 316, HEADER_BYTES + 2 * 316 + 30):
        spoiled = fs.fork()
        spoiled.damage_flip(f"{PATH}/1.rdq", position, position % 8)
        after = reopened(spoiled, saved)
        assert after.take_damage()
        assert after.has(later, 11), "the tail behind it is still read"
        for id, file in files.items():
            assert after.has(file, id) == (id != 3)
        assert after.live_count >= 9


def test_a_store_of_another_version_or_vhost(store: MessageStore, fs: FaultyFileSystem) -> None:
    store.write(1, b"one", 1)
    stranger = new_store(fs, vhost=VHOST + 1)
    stranger.restore([], 1, 0)
    assert not stranger.has(1, 1)
    path = f"{PATH}/1.rdq"

    def raised(content: bytes) -> bytes:
        head = content[:4] + b"\0\2" + content[6:28]
        return head + zlib.crc32(head).to_bytes(4, "big") + content[32:]

    fs.damage(path, raised)
    with pytest.raises(VersionError, match="expected version 1, found 2"):
        reopened(fs, None)
