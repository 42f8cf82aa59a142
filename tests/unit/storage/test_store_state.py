"""The bytes of the states that a checkpoint keeps."""

import pytest

from penstock.storage.store.message_store import MessageStore
from penstock.storage.store.store_file import FileState
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.stores import (
    Saved,
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


@pytest.mark.parametrize("shared", [0, 1, 30, 300])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_states_survive_their_bytes(fs: FaultyFileSystem, shared: int, is_sealed: bool) -> None:
    store = new_store(fs, file_bytes_max=1 << 20)
    ids = [id * 7 % 1009 for id in range(1, 900)]
    files = {id: store.write(id, b"%d" % id, 1) for id in ids}
    for n, id in enumerate(ids[: shared * 2]):
        store.ref(files[id], id, n if n % 2 else 1)
    for id in ids[::4]:
        store.unref(files[id], id, store.refs(files[id], id))
    if is_sealed:
        store._seal_current(store.files[0])
    (state, own) = (FileState.decode(s.encode()) for s in store_states(store))
    assert own.own is not None
    assert state.is_sealed == is_sealed
    assert FileState.decode(state.encode()).encode() == state.encode()
    after = reopened(fs, Saved([state.encode()], 2, 0), file_bytes_max=1 << 20)
    assert counts_of(after, files) == counts_of(store, files)
    data = state.encode()
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"cut off|state"):
            FileState.decode(data[:length])
    with pytest.raises(ValueError, match="bodies"):
        FileState.decode(data + b"x")


def store_states(store: MessageStore) -> list[FileState]:
    store.cut(1)
    return store.capture()


def test_a_checkpoint_of_a_sealed_file_is_a_bit_per_body(fs: FaultyFileSystem) -> None:
    store = new_store(fs, file_bytes_max=1 << 20)
    files = fill(store, range(1, 7001))
    for id in range(1, 7001, 3):
        store.unref(files[id], id)
    sealed = [state for state in store_states(store) if state.own is None and state.is_sealed]
    bodies = sum(state.counts.count for state in sealed)
    assert bodies > 6000
    assert sum(len(state.encode()) for state in sealed) < bodies / 7
