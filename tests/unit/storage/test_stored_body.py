"""StoredBody: a body of either size class, read in pieces; never whole if it is damaged."""

import errno

import pytest

from penstock.errors import CorruptionError
from penstock.storage.store.message_store import MessageStore
from penstock.storage.store.store_file import OWN_FILE
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.stores import checkpoint, new_store

BODY = bytes(range(256)) * 8
ID = 7
APPENDED, OWN = 1 << 20, 1  # own_file_from


@pytest.fixture
def fs() -> FaultyFileSystem:
    return FaultyFileSystem(seed=1)


@pytest.fixture(params=[APPENDED, OWN], ids=["append file", "own file"])
def store(fs: FaultyFileSystem, request: pytest.FixtureRequest) -> MessageStore:
    return new_store(fs, own_file_from=request.param)


def read_all(store: MessageStore, file: int, length: int) -> bytes:
    """The body, in pieces of this length."""
    body = store.open_body(file, ID)
    pieces: list[bytes] = []
    try:
        assert (body.size, body.left) == (len(BODY), len(BODY))
        while body.left:
            pieces.append(body.read(length))
        assert body.read(length) == b""
    finally:
        body.close()
        body.close()
    assert {len(piece) for piece in pieces[:-1]} <= {length}
    return b"".join(pieces)


def open_handles(fs: FaultyFileSystem) -> int:
    return sum(fs.handles.values())


@pytest.mark.parametrize("length", [1, 7, 256, len(BODY) - 1, len(BODY), 1 << 20])
def test_pieces_of_any_length_are_the_body(
    store: MessageStore, fs: FaultyFileSystem, length: int
) -> None:
    file = store.write(ID, BODY, 1)
    store.write(8, b"another", 1)
    before = open_handles(fs)
    assert read_all(store, file, length) == BODY
    assert open_handles(fs) == before
    store.write(9, b"x" * 4096, 1)  # the file is sealed now
    assert read_all(store, file, length) == BODY


def test_it_can_be_read_to_its_end_when_its_file_is_deleted(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    file = store.write(ID, BODY, 1)
    path = store.file_path(file)
    body = store.open_body(file, ID)
    found = body.read(1000)
    store.unref(file, ID)
    store.retire_dead()
    checkpoint(store, 1)
    assert not fs.exists(path)
    while body.left:
        found += body.read(1000)
    body.close()
    assert found == BODY
    with pytest.raises(CorruptionError):
        store.open_body(file, ID)


def test_any_flipped_bit_is_found_before_the_last_bytes(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    file = store.write(ID, BODY, 1)
    path = store.file_path(file)
    saved = checkpoint(store, 1)
    data = fs.read(path)
    start = data.index(BODY)
    head = 44 if file & OWN_FILE else 16
    for position in [*range(start - head, start), *range(start, len(data), 97), len(data) - 1]:
        spoiled = fs.crash("kept")
        spoiled.damage_flip(path, position, position % 8)
        again = new_store(spoiled, own_file_from=store.own_file_from)
        again.restore(saved.states, saved.next_file, saved.next_own_file)
        with pytest.raises(CorruptionError) as raised:
            read_all(again, file, 500)
        assert raised.value.path == path
        assert open_of(spoiled, path) <= 1, "the store's own"


def open_of(fs: FaultyFileSystem, path: str) -> int:
    return fs.handles.get(fs._find(path), 0)


def test_what_was_unreadable_once_is_refused_at_once(
    store: MessageStore, fs: FaultyFileSystem
) -> None:
    """Until a restart: whoever would get it next is told before it has begun."""
    file = store.write(ID, BODY, 1)
    body = store.open_body(file, ID)
    body.read(100)
    fs.fail(errno.EIO, kinds=["read"], times=1)
    with pytest.raises(OSError, match="Input/output error"):
        body.read(100)
    body.close()
    with pytest.raises(CorruptionError, match="was not readable"):
        store.open_body(file, ID)
    assert store.read(file, ID) == BODY, "whole it is verified by itself"


def test_a_file_that_is_cut_off(store: MessageStore, fs: FaultyFileSystem) -> None:
    file = store.write(ID, BODY, 1)
    body = store.open_body(file, ID)
    fs.damage_cut(store.file_path(file), len(fs.read(store.file_path(file))) - 1)
    body.read(len(BODY) - 10)
    with pytest.raises(CorruptionError, match="cut off"):
        body.read(10)
    body.close()


def test_another_ones_body_is_not_answered(store: MessageStore) -> None:
    file = store.write(ID, BODY, 1)
    with pytest.raises(CorruptionError):
        store.open_body(file, ID + 1)
    with pytest.raises(CorruptionError):
        store.open_body(file + 1, ID)
