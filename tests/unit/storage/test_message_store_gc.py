"""Combining store files: what is chosen, that nothing moves but bytes, and every interruption."""

import errno
import random
from contextlib import suppress

import pytest

from penstock.errors import CorruptionError, SyncFailedError
from penstock.storage.store.message_store import MessageStore
from penstock.storage.store.message_store_gc import RUN_FILES_MAX, Combine, choose
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import sync_now
from tests.helpers.stores import PATH, Saved, check, checkpoint, garbage_ratio, new_store, reopened

PER_FILE = 12  # bodies of 300 bytes in a file of 4096


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem(seed=1)


@pytest.fixture
def store(fs: FaultyFileSystem) -> MessageStore:
    found = new_store(fs)
    fs.sync_dir("/")
    return found


def body(id: int) -> bytes:
    return random.Random(id).randbytes(300)


def fill(store: MessageStore, files: int, first: int = 1) -> dict[int, int]:
    """That many sealed files, and a current one with a body; id -> file."""
    ids = range(first, first + files * PER_FILE + 1)
    return {id: store.write(id, body(id), 1 + id % 2) for id in ids}


def kill(store: MessageStore, files: dict[int, int], ids: list[int]) -> None:
    for id in ids:
        store.unref(files[id], id, store.refs(files[id], id))


def combine(store: MessageStore, numbers: list[int]) -> Combine:
    job = Combine(store, numbers)
    job.run()
    assert job.finish()
    return job


def check_bodies(store: MessageStore, files: dict[int, int], refs: dict[int, int]) -> None:
    check(store)
    for id, file in files.items():
        assert store.refs(file, id) == refs[id], id
        if refs[id]:
            assert store.read(file, id) == body(id)


def refs_of(store: MessageStore, files: dict[int, int]) -> dict[int, int]:
    return {id: store.refs(file, id) for id, file in files.items()}


# ---- choosing ----------------------------------------------------------------------------------


def test_nothing_to_do(store: MessageStore) -> None:
    assert choose(store) == []
    files = fill(store, 6)
    assert choose(store) == []
    kill(store, files, [id for id in files if id % 2 == 0])
    assert garbage_ratio(store) < 0.5
    assert choose(store) == [], "half of it is alive"


def test_neighbours_more_than_half_garbage(store: MessageStore) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3, 4) and id <= 60])
    assert garbage_ratio(store) > 0.5
    assert choose(store) == [1, 2, 3], "as many as fit into one file"


def test_a_small_store_is_left_alone(store: MessageStore) -> None:
    files = fill(store, 1)
    kill(store, files, list(range(1, 9)))
    assert choose(store) == []


def test_a_sparse_file_is_combined_alone(store: MessageStore) -> None:
    files = fill(store, 6)
    kill(store, files, list(range(25, 35)))
    assert garbage_ratio(store) < 0.5
    assert choose(store) == [3]
    combine(store, [3])
    assert choose(store) == []


def test_many_small_files_become_one(store: MessageStore) -> None:
    fill(store, 2)
    numbers = [store.write_sealed([(1000 + n, b"small", 1)]) for n in range(20)]
    assert choose(store) == numbers
    combine(store, numbers)
    assert all(store.read(number, 1000 + n) == b"small" for n, number in enumerate(numbers))
    assert choose(store) == []
    assert len(store.files) == 4


def test_small_files_are_taken_in_bounded_runs(store: MessageStore) -> None:
    for n in range(RUN_FILES_MAX + 40):
        store.write_sealed([(n, b"s", 1)])
    assert len(choose(store)) == RUN_FILES_MAX


def test_neither_owned_nor_current_nor_combining_files(store: MessageStore) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    store.own(files[13], 13)
    assert choose(store) == [3, 4, 5, 6]
    job = Combine(store, [3, 4])
    assert choose(store) == [5, 6]
    job.abandon()
    store.disown(files[13], 13)
    assert choose(store) == [1, 2, 3, 4]
    assert max(choose(store)) < 7, "7 is current"


def test_files_without_a_body_do_not_count(store: MessageStore) -> None:
    files = fill(store, 6)
    kill(store, files, list(range(1, 61)))
    assert choose(store) == [], "five dead files leave at the cut anyway"
    kill(store, files, list(range(61, 72)))
    assert choose(store) == [6]


# ---- combining ---------------------------------------------------------------------------------


def test_no_address_changes(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    refs = refs_of(store, files)
    chosen = choose(store)
    assert chosen == [1, 2, 3, 4]
    job = combine(store, chosen)
    check_bodies(store, files, refs)
    found = store.file_of(3)
    assert found is not None
    assert (found.number, found.lo, found.hi) == (job.number, 1, 4)
    assert found.total_bytes == found.counts.valid_bytes == 12 * 316 == job.copied_bytes
    assert store.file_path(2) == f"{PATH}/{job.number}.rdq"
    assert fs.exists(f"{PATH}/1.rdq"), "until no manifest names it [6]"
    with pytest.raises(CorruptionError):
        store.read(files[5], 5)
    # Combined files are combined again.
    kill(store, files, [id for id in files if id <= 48 and refs[id] and id not in (1, 38)])
    refs = refs_of(store, files)
    assert choose(store) == [job.number, 5, 6]
    combine(store, [job.number, 5, 6])
    check_bodies(store, files, refs)
    assert [file.lo for file in store.files] == [1, 7]


def test_ids_in_any_order_and_dead_neighbours(store: MessageStore) -> None:
    ids = list(range(1, 73))
    random.Random(5).shuffle(ids)
    files = {id: store.write(id, body(id), 1) for id in ids}
    kill(store, files, [id for id in ids if files[id] == 3 or id % 3])
    refs = refs_of(store, files)
    numbers = [file.number for file in store.files if file.is_sealed]
    combine(store, numbers)
    check_bodies(store, files, refs)


def test_a_body_that_lies_in_two_files(store: MessageStore) -> None:
    """Unloaded by two queues at different times: one copy, the references of both."""
    a = store.write_sealed([(1, body(1), 2), (2, body(2), 1)])
    b = store.write_sealed([(1, body(1), 3), (3, body(3), 1)])
    combine(store, [a, b])
    assert store.refs(a, 1) == store.refs(b, 1) == 5
    assert not store.unref(a, 1, 2)
    assert store.unref(b, 1, 3)
    check(store)


def test_what_happens_meanwhile_counts(store: MessageStore) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    job = Combine(store, choose(store))
    store.unref(files[1], 1)
    job.run()
    kill(store, files, [2, 13])
    store.ref(files[3], 3, 400)
    files[500] = store.write(500, body(500), 1)
    refs = refs_of(store, files)
    assert (refs[1], refs[2], refs[3]) == (1, 0, 402)
    assert job.finish()
    refs[500] = 1
    check_bodies(store, files, refs)


def test_a_body_that_came_back_ends_it(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    job = Combine(store, choose(store))
    job.run()
    store.ref(files[5], 5)
    refs = refs_of(store, files)
    assert not job.finish()
    check_bodies(store, files, refs)
    assert not fs.exists(f"{PATH}/{job.number}.rdq")
    assert choose(store), "it may be tried again"


def test_a_body_that_was_owned_meanwhile_ends_it(store: MessageStore) -> None:
    files = fill(store, 3)
    kill(store, files, list(range(1, 11)))
    job = Combine(store, [1])
    job.run()
    store.own(files[11], 11)
    assert not job.finish()


def test_all_members_die_meanwhile(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, 3)
    kill(store, files, list(range(1, 11)))
    job = Combine(store, [1])
    kill(store, files, [11, 12])
    store.cut(1)
    assert store.take_dead() == [], "they are being combined"
    job.run()
    assert job.finish()
    store.capture()
    store.cut(2)
    dead = store.take_dead()
    assert sorted(dead) == sorted(
        f"{PATH}/{n}.{kind}" for n in (1, job.number) for kind in ("rdq", "hint")
    )


# ---- with checkpoints and crashes --------------------------------------------------------------


def test_old_files_stay_until_no_manifest_names_them(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    refs = refs_of(store, files)
    job = Combine(store, choose(store))
    store.cut(1)
    next_file, next_own_file = store.next_file, store.next_own_file
    job.run()
    assert job.finish(), "between cut and capture"
    kill(store, files, [1])
    assert store.take_dead() == []
    saved = Saved([state.encode() for state in store.capture()], next_file, next_own_file)
    sync_now(store)
    after = reopened(fs.crash("lost"), saved)
    check_bodies(after, files, refs)
    assert f"{PATH}/{job.number}.rdq" in after.forget_unknown(), "made after the cut"

    saved = checkpoint(store, 2)
    assert not fs.exists(f"{PATH}/1.rdq")
    after = reopened(fs.crash("kept"), saved)
    refs[1] = 0
    check_bodies(after, files, refs)
    assert after.forget_unknown() == []


def test_a_crash_at_each_step(fs: FaultyFileSystem) -> None:
    """Before the next manifest the old files are believed, after it the new one."""
    fs.start_journal()
    store = new_store(fs)
    fs.sync_dir("/")
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    refs = refs_of(store, files)
    first = checkpoint(store, 1)
    begin = fs.operations
    combine(store, choose(store))
    files |= fill(store, 2, first=200)
    sync_now(store)
    second_cut = fs.operations
    second = checkpoint(store, 2)
    all_refs = refs_of(store, files)
    end = fs.operations
    journal = fs.journal
    assert journal is not None
    for n in range(begin, end + 1):
        for mode in ("lost", "kept", "subset", "killed"):
            image = journal.image(n).crash(mode, random.Random(n))
            if n <= second_cut:
                after = reopened(image, first)
                check_bodies(after, {id: files[id] for id in refs}, refs)
    after = reopened(fs.crash("lost"), second)
    check_bodies(after, files, all_refs)


def test_a_damaged_record_leaves_the_files_as_they_are(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    refs = refs_of(store, files)
    chosen = choose(store)
    fs.damage_flip(f"{PATH}/2.rdq", 32 + 316 + 50)  # body 14
    job = Combine(store, chosen)
    with pytest.raises(CorruptionError) as caught:
        job.run()
    assert (caught.value.path, caught.value.position) == (f"{PATH}/2.rdq", 32 + 316)
    job.abandon()
    assert not fs.exists(f"{PATH}/{job.number}.rdq")
    assert refs_of(store, files) == refs
    assert store.has(files[13], 13)
    assert not store.has(files[14], 14)
    assert choose(store) == [3, 4, 5, 6], "not that file again"


@pytest.mark.parametrize("spoil", ["cut", "missing"])
def test_a_damaged_hint_ends_it(store: MessageStore, fs: FaultyFileSystem, spoil: str) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    refs = refs_of(store, files)
    if spoil == "cut":
        fs.damage_cut(f"{PATH}/2.hint", 100)
    else:
        fs.damage_delete(f"{PATH}/2.hint")
    job = Combine(store, choose(store))
    with pytest.raises(CorruptionError, match=r"2\.hint"):
        job.run()
    job.abandon()
    check_bodies(store, files, refs)


@pytest.mark.parametrize("kind", ["create", "pwrite", "rename"])
def test_a_full_disk_ends_it(store: MessageStore, fs: FaultyFileSystem, kind: str) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    refs = refs_of(store, files)
    sync_now(store)
    names, handles = fs.names(), sum(fs.handles.values())
    for nth in (1, 2):
        job = Combine(store, choose(store))
        fs.fail(errno.ENOSPC, kinds=[kind], nth=nth)
        with suppress(OSError):  # of some kinds there is only one
            job.run()
        job.abandon()
        fs.clear_faults()
        assert fs.names() == names
        assert sum(fs.handles.values()) == handles
    check_bodies(store, files, refs)


@pytest.mark.parametrize("kind", ["sync", "sync_dir"])
def test_a_failed_sync_is_told_from_a_full_disk(
    store: MessageStore, fs: FaultyFileSystem, kind: str
) -> None:
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    job = Combine(store, choose(store))
    fs.fail(errno.EIO, kinds=[kind])
    with pytest.raises(SyncFailedError):
        job.run()
    job.abandon()


def test_bodies_by_thirds_the_youngest_first(fs: FaultyFileSystem) -> None:
    """RabbitMQ's msg_store test: 100 files, removed by thirds, combined on the way, end empty."""
    store = new_store(fs, file_bytes_max=16 << 10, cache_bytes=4096)
    ids = list(range(1, 2001))
    files = {id: store.write(id, body(id) + bytes(500), 1) for id in ids}
    assert len(store.files) == 100
    combined = 0
    epoch = 0
    for third in range(3):
        for n, id in enumerate(reversed(ids)):
            if n % 3 == third:
                store.unref(files[id], id)
                del files[id]
            if n % 250 == 0:
                while chosen := choose(store):
                    combine(store, chosen)
                    combined += 1
                epoch += 1
                checkpoint(store, epoch)
                check(store)
        for id, file in files.items():
            assert store.read(file, id) == body(id) + bytes(500)
    assert combined > 10
    assert store.live_count == 0
    checkpoint(store, epoch + 1)
    assert len(store.files) == 1
    left = {path for path in fs.names() if path.startswith(f"{PATH}/") and path != f"{PATH}/"}
    assert left == {store.file_path(store.files[0].number)}


def test_a_transient_store_combines_without_syncs(fs: FaultyFileSystem) -> None:
    store = new_store(fs, persistent=False)
    fs.fail(errno.EIO, kinds=["sync", "sync_dir"], times=None)
    files = fill(store, 6)
    kill(store, files, [id for id in files if id % 12 not in (1, 2, 3)])
    refs = refs_of(store, files)
    combine(store, choose(store))
    check_bodies(store, files, refs)
