"""Cuts, captures and the death of append files."""

import errno

import pytest

from penstock.errors import (
    StorageError,
)
from penstock.storage.store.message_store import MessageStore
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import sync_now
from tests.helpers.stores import (
    PATH,
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


def test_capture_is_exactly_as_of_the_cut(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 80), refs=2)
    files |= {id: store.write(id, body(id), 0) for id in range(80, 90)}
    for id in range(80, 90):
        store.own(files[id], id)
    for id in range(1, 80, 3):
        store.unref(files[id], id)
    for id in range(2, 80, 3):
        store.unref(files[id], id, 2)
    before = counts_of(store, files)

    def traffic() -> None:
        files.update(fill(store, range(100, 140), refs=3))  # appends to the current file, seals it
        for id in range(1, 90):
            if store.refs(files[id], id):
                store.unref(files[id], id)
            else:
                store.ref(files[id], id, 7)
        for id in range(80, 90):
            store.disown(files[id], id)

    saved = checkpoint(store, 1, traffic, unlink=False)
    after = reopened(fs, saved)
    check(after)
    assert counts_of(after, {id: file for id, file in files.items() if id < 90}) == before
    assert all(after.refs(files[id], id) == 0 for id in range(100, 140))
    assert all(after.read(file, id) == body(id) for id, file in files.items())

    saved = checkpoint(store, 2, unlink=False)
    again = reopened(fs, saved)
    assert counts_of(again, files) == counts_of(store, files)
    check(again)


def test_the_cut_costs_no_copy_of_what_does_not_change(store: MessageStore) -> None:
    files = fill(store, range(1, 200))
    store.cut(1)
    store.unref(files[1], 1)
    store.unref(files[2], 2)
    assert len(store._captured) == 1
    store.capture()
    store.unref(files[150], 150)
    assert store._captured == []


def test_dead_files_leave_at_the_cut(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = fill(store, range(1, 40))
    for id in range(1, 13):
        store.unref(files[id], id)
    assert files[12] != files[13]
    assert fs.exists(f"{PATH}/1.rdq"), "named by the manifest [6]"
    store.cut(1)
    for id in range(13, 25):
        store.unref(files[id], id)  # dead since the cut, not at it
    assert store.take_dead() == [f"{PATH}/1.rdq", f"{PATH}/1.hint"]
    assert not store.has(files[1], 1)
    numbers = [state.number for state in store.capture() if state.own is None]
    assert sorted(numbers) == [2, 3, 4]
    store.cut(2)
    assert store.take_dead() == [f"{PATH}/2.rdq", f"{PATH}/2.hint"]


def test_a_checkpoint_that_was_given_up_keeps_its_dead(store: MessageStore) -> None:
    files = fill(store, range(1, 40))
    for id in range(1, 13):
        store.unref(files[id], id)
    store.cut(1)
    dead = store.take_dead()
    store.put_back_dead(dead)
    store.cut(2)
    assert store.take_dead() == dead


def test_an_owned_body_keeps_its_file(store: MessageStore, fs: FaultyFileSystem) -> None:
    files = {id: store.write(id, body(id), 0) for id in range(1, 40)}
    store.own(files[1], 1)
    assert len(set(files.values())) == 4
    saved = checkpoint(store, 1)
    assert fs.exists(f"{PATH}/1.rdq")
    assert not fs.exists(f"{PATH}/2.rdq")
    assert fs.exists(f"{PATH}/4.rdq"), "the current one is never dead"
    # Committed after the cut: the record names it, and recovery finds it.
    after = reopened(fs.crash("lost"), saved)
    assert after.has(files[1], 1)
    after.ref(files[1], 1, 2)
    assert after.refs(files[1], 1) == 2
    assert after.read(files[1], 1) == body(1)
    store.disown(files[1], 1)
    checkpoint(store, 2)
    assert not fs.exists(f"{PATH}/1.rdq")


def test_the_file_of_a_checkpoints_sections(store: MessageStore, fs: FaultyFileSystem) -> None:
    fill(store, range(1, 5))
    store.cut(1)
    next_file, next_own_file = store.next_file, store.next_own_file
    file = store.write_sealed([(70, b"seventy", 2), (60, b"sixty", 1), (80, b"", 1)])
    states = store.capture()
    assert not any(state.answers_for(file) for state in states)
    states.append(store.state_of(file))
    store.unref(file, 60)  # dequeued since the cut, told only now
    sync_now(store)
    saved = Saved([state.encode() for state in states], next_file, next_own_file)
    after = reopened(fs.crash("lost"), saved)
    assert [after.refs(file, id) for id in (60, 70, 80)] == [1, 2, 1]
    assert after.read(file, 70) == b"seventy"
    assert after.read(file, 80) == b""
    assert [store.refs(file, id) for id in (60, 70, 80)] == [0, 2, 1]
    check(after)


def test_a_failed_section_file_leaves_nothing(store: MessageStore, fs: FaultyFileSystem) -> None:
    for path in (".rdq", ".hint"):
        fs.fail(errno.ENOSPC, path=path)
        with pytest.raises(OSError):  # noqa: PT011
            store.write_sealed([(70, b"seventy", 2)])
    assert not [name for name in fs.names() if name.endswith((".rdq", ".hint", ".new"))]


def test_the_checkpoint_changes_the_state_it_writes(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    """A body that leaves a section for a slot is counted by the new manifest no more."""
    file = store.write_sealed([(id, body(id), 2) for id in range(1, 20)])
    current = store.write(50, body(50), 1)
    store.write(40, body(40), 5)
    store.cut(1)
    store.unref(file, 3)
    fill(store, range(60, 90))  # seals what was current at the cut, in another order
    states = store.capture()
    for number, id in ((file, 3), (file, 4), (current, 50)):
        state = next(state for state in states if state.answers_for(number))
        had = state.refs(id)
        assert state.unref(id) == (had == 1)
        assert state.refs(id) == had - 1
    with pytest.raises(StorageError, match="no body 99"):
        state.unref(99)
    sync_now(store)
    after = reopened(fs, Saved([state.encode() for state in states], 3, 0))
    assert [after.refs(file, id) for id in (3, 4, 5)] == [1, 1, 2]
    assert [after.refs(current, id) for id in (40, 50)] == [5, 0]
    check(after)
