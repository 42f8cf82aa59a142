"""A MessageStore, its checkpoints, and a second process that finds what the first one left.

``Saved`` is what a manifest holds of a store; ``checkpoint`` makes one in the order of the
real one, with a place for traffic between the cut and the capture.
"""

import random
from collections.abc import Callable, Iterable

from penstock.storage.files.filesystem import FileSystem
from penstock.storage.store.message_store import MessageStore
from tests.helpers.inside import sync_now

PATH = "/store"
VHOST = 0x0123456789ABCDEF


class Saved:
    """The store's part of a manifest."""

    def __init__(self, states: list[bytes], next_file: int, next_own_file: int) -> None:
        self.states = states
        self.next_file = next_file
        self.next_own_file = next_own_file


def new_store(
    fs: FileSystem,
    *,
    persistent: bool = True,
    file_bytes_max: int = 4096,
    own_file_from: int = 4 << 20,
    cache_bytes: int = 16 << 10,
    vhost: int = VHOST,
) -> MessageStore:
    """A store with small files, so that they roll."""
    return MessageStore(
        fs,
        PATH,
        vhost,
        persistent=persistent,
        file_bytes_max=file_bytes_max,
        own_file_from=own_file_from,
        cache_bytes=cache_bytes,
    )


def checkpoint(
    store: MessageStore,
    epoch: int,
    traffic: Callable[[], None] | None = None,
    *,
    unlink: bool = True,
) -> Saved:
    """A checkpoint of the store alone; dead files go, as CURRENT would allow it."""
    store.cut(epoch)
    next_file, next_own_file = store.next_file, store.next_own_file
    dead = store.take_dead()
    if traffic is not None:
        traffic()
    states = [state.encode() for state in store.capture()]
    sync_now(store)
    if unlink:
        for path in dead:
            store.fs.unlink(path)
    return Saved(states, next_file, next_own_file)


def reopened(fs: FileSystem, saved: Saved | None, *, file_bytes_max: int = 4096) -> MessageStore:
    """The store that the next process makes of what is on the disk."""
    store = new_store(fs, file_bytes_max=file_bytes_max)
    if saved is None:
        store.restore([], 1, 0)
    else:
        store.restore(saved.states, saved.next_file, saved.next_own_file)
    return store


def check(store: MessageStore) -> None:
    """The invariants of counts and ranges."""
    last = 0
    for file in store.files:
        assert file.lo <= file.hi
        assert file.lo > last, "ranges are disjoint and sorted"
        last = file.hi
        counts = file.counts
        alive = [i for i in range(counts.count) if counts.refs(i)]
        assert len(alive) == counts.live_count
        assert len(counts.live) == (counts.count + 7) // 8
        assert 0 <= counts.valid_bytes <= file.total_bytes
        if len(alive) == counts.count:
            assert counts.valid_bytes == file.total_bytes
        if not alive:
            assert counts.valid_bytes == 0
    assert store.live_bytes <= store.total_bytes


def garbage_ratio(store: MessageStore) -> float:
    """Return the share of dead bytes in the append files, 0.0 to 1.0."""
    total = sum(file.total_bytes for file in store.files)
    valid = sum(file.counts.valid_bytes for file in store.files)
    return 1.0 - valid / total if total else 0.0


def body(id: int, size: int = 300) -> bytes:
    """The body of that id: the same bytes in every process."""
    return random.Random(id).randbytes(size)


def fill(store: MessageStore, ids: Iterable[int], refs: int = 1) -> dict[int, int]:
    """Bodies of 300 bytes, 12 to a file; id -> file."""
    return {id: store.write(id, body(id), refs) for id in ids}


def counts_of(store: MessageStore, files: dict[int, int]) -> dict[int, int]:
    """id -> references."""
    return {id: store.refs(file, id) for id, file in files.items()}
