"""What MessageStore and FileQueueBacking must do. A test class inherits ``QueueBackingContract``
and gives the fixtures ``backing`` and ``fs``, a FaultyFileSystem below it."""

import errno

import pytest

from penstock.errors import CorruptionError, StorageError
from penstock.storage.store.file_queue_backing import FileQueueBacking
from penstock.storage.store.message_store import MessageStore
from tests.helpers.faulty_filesystem import FaultyFileSystem

Backing = MessageStore | FileQueueBacking
Address = tuple[int, int]  # file number, message id

BODIES = [b"", b"x", b"\0" * 100, bytes(range(256)) * 5, b"body " * 2000]


def unload(backing: Backing, id: int, body: bytes) -> Address:
    """Write a body with one reference."""
    return (backing.write(id, body, 1), id)


def load(backing: Backing, address: Address) -> bytes:
    """Return the body at the address, CorruptionError if none is alive there."""
    if not backing.refs(*address):
        raise CorruptionError(backing.file_path(address[0]), 0, f"no body {address[1]} is alive")
    return backing.read(*address)


def delete(backing: Backing, address: Address) -> None:
    """Remove one reference."""
    backing.unref(*address)


class QueueBackingContract:
    """Bodies leave RAM and come back, one address each."""

    @pytest.mark.parametrize("body", BODIES, ids=len)
    def test_what_was_unloaded_is_loaded(self, backing: Backing, body: bytes) -> None:
        address = unload(backing, 7, body)
        assert load(backing, address) == body
        assert load(backing, address) == body, "loading does not delete"

    def test_an_address_is_two_numbers(self, backing: Backing) -> None:
        file, id = unload(backing, (1 << 64) - 1, b"body")
        assert id == (1 << 64) - 1
        assert 0 <= file < 1 << 32

    def test_many_bodies_do_not_mix(self, backing: Backing) -> None:
        bodies = {id: b"%d " % id * (id % 97) for id in range(1, 301)}
        addresses = {id: unload(backing, id, body) for id, body in bodies.items()}
        for id in sorted(bodies, key=lambda id: id * 7919 % 311):
            assert load(backing, addresses[id]) == bodies[id]

    def test_ids_may_come_in_any_order(self, backing: Backing) -> None:
        ids = [id * 7919 % 311 + 1 for id in range(200)]
        addresses = [unload(backing, id, b"%d" % id * 50) for id in ids]
        for id, address in zip(ids, addresses, strict=True):
            assert load(backing, address) == b"%d" % id * 50

    def test_a_deleted_body_is_refused(self, backing: Backing) -> None:
        address = unload(backing, 7, b"body")
        other = unload(backing, 8, b"other")
        delete(backing, address)
        with pytest.raises(CorruptionError):
            load(backing, address)
        assert load(backing, other) == b"other"

    def test_deleting_twice_is_refused(self, backing: Backing) -> None:
        address = unload(backing, 7, b"body")
        delete(backing, address)
        with pytest.raises(StorageError):
            delete(backing, address)

    def test_an_unknown_address_is_refused(self, backing: Backing) -> None:
        file, _ = unload(backing, 7, b"body")
        for address in ((file, 8), (file + 1, 7), (file ^ 0x80000000, 7)):
            with pytest.raises(CorruptionError):
                load(backing, address)

    def test_the_same_body_leaves_again(self, backing: Backing) -> None:
        first = unload(backing, 7, b"body")
        delete(backing, first)
        second = unload(backing, 7, b"body")
        assert load(backing, second) == b"body"
        third = unload(backing, 7, b"body")
        delete(backing, second)
        assert load(backing, third) == b"body"
        delete(backing, third)
        with pytest.raises(CorruptionError):
            load(backing, third)

    @pytest.mark.parametrize("effect", [errno.ENOSPC, errno.EIO, "short"])
    def test_a_failed_unload_leaves_nothing(
        self, backing: Backing, fs: FaultyFileSystem, effect: int | str
    ) -> None:
        kept = unload(backing, 1, b"kept" * 100)
        fs.fail(effect, kinds=["pwrite"])
        with pytest.raises(OSError):  # noqa: PT011 - any, and then nothing is left
            unload(backing, 2, b"lost" * 100)
        address = unload(backing, 2, b"lost" * 100)
        assert load(backing, address) == b"lost" * 100
        assert load(backing, kept) == b"kept" * 100

    def test_a_flipped_bit_is_never_a_body(self, backing: Backing, fs: FaultyFileSystem) -> None:
        address = unload(backing, 7, b"body" * 100)
        path = next(
            path for path in fs.names() if path.endswith((".rdq", ".msg")) and fs.size(path) > 400
        )
        for position in range(fs.size(path) - 400, fs.size(path), 13):
            fs.damage_flip(path, position, position % 8)
            with pytest.raises(CorruptionError) as caught:
                load(backing, address)
            assert caught.value.path == path
            fs.damage_flip(path, position, position % 8)
        assert load(backing, address) == b"body" * 100
