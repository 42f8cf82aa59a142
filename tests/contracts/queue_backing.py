"""What every QueueBacking must do. A test class inherits ``QueueBackingContract`` and gives the
fixtures ``backing`` and ``fs``, a FaultyFileSystem below it."""

import errno

import pytest

from penstock.errors import CorruptionError, StorageError
from penstock.storage.store.file_queue_backing import QueueBacking
from tests.helpers.faulty_filesystem import FaultyFileSystem

BODIES = [b"", b"x", b"\0" * 100, bytes(range(256)) * 5, b"body " * 2000]


class QueueBackingContract:
    """Bodies leave RAM and come back, one address each."""

    def test_it_is_one(self, backing: QueueBacking) -> None:
        assert isinstance(backing, QueueBacking)

    @pytest.mark.parametrize("body", BODIES, ids=len)
    def test_what_was_unloaded_is_loaded(self, backing: QueueBacking, body: bytes) -> None:
        address = backing.unload(7, body)
        assert backing.load(address) == body
        assert backing.load(address) == body, "loading does not delete"

    def test_an_address_is_two_numbers(self, backing: QueueBacking) -> None:
        file, id = backing.unload((1 << 64) - 1, b"body")
        assert id == (1 << 64) - 1
        assert 0 <= file < 1 << 32

    def test_many_bodies_do_not_mix(self, backing: QueueBacking) -> None:
        bodies = {id: b"%d " % id * (id % 97) for id in range(1, 301)}
        addresses = {id: backing.unload(id, body) for id, body in bodies.items()}
        for id in sorted(bodies, key=lambda id: id * 7919 % 311):
            assert backing.load(addresses[id]) == bodies[id]

    def test_ids_may_come_in_any_order(self, backing: QueueBacking) -> None:
        ids = [id * 7919 % 311 + 1 for id in range(200)]
        addresses = [backing.unload(id, b"%d" % id * 50) for id in ids]
        for id, address in zip(ids, addresses, strict=True):
            assert backing.load(address) == b"%d" % id * 50

    def test_a_deleted_body_is_refused(self, backing: QueueBacking) -> None:
        address = backing.unload(7, b"body")
        other = backing.unload(8, b"other")
        backing.delete(address)
        with pytest.raises(CorruptionError):
            backing.load(address)
        assert backing.load(other) == b"other"

    def test_deleting_twice_is_refused(self, backing: QueueBacking) -> None:
        address = backing.unload(7, b"body")
        backing.delete(address)
        with pytest.raises(StorageError):
            backing.delete(address)

    def test_an_unknown_address_is_refused(self, backing: QueueBacking) -> None:
        file, _ = backing.unload(7, b"body")
        for address in ((file, 8), (file + 1, 7), (file ^ 0x80000000, 7)):
            with pytest.raises(CorruptionError):
                backing.load(address)

    def test_the_same_body_leaves_again(self, backing: QueueBacking) -> None:
        first = backing.unload(7, b"body")
        backing.delete(first)
        second = backing.unload(7, b"body")
        assert backing.load(second) == b"body"
        third = backing.unload(7, b"body")
        backing.delete(second)
        assert backing.load(third) == b"body"
        backing.delete(third)
        with pytest.raises(CorruptionError):
            backing.load(third)

    @pytest.mark.parametrize("effect", [errno.ENOSPC, errno.EIO, "short"])
    def test_a_failed_unload_leaves_nothing(
        self, backing: QueueBacking, fs: FaultyFileSystem, effect: int | str
    ) -> None:
        kept = backing.unload(1, b"kept" * 100)
        fs.fail(effect, kinds=["pwrite"])
        with pytest.raises(OSError):  # noqa: PT011 - any, and then nothing is left
            backing.unload(2, b"lost" * 100)
        address = backing.unload(2, b"lost" * 100)
        assert backing.load(address) == b"lost" * 100
        assert backing.load(kept) == b"kept" * 100

    def test_a_flipped_bit_is_never_a_body(
        self, backing: QueueBacking, fs: FaultyFileSystem
    ) -> None:
        address = backing.unload(7, b"body" * 100)
        path = next(
            path for path in fs.names() if path.endswith((".rdq", ".msg")) and fs.size(path) > 400
        )
        for position in range(fs.size(path) - 400, fs.size(path), 13):
            fs.damage_flip(path, position, position % 8)
            with pytest.raises(CorruptionError) as caught:
                backing.load(address)
            assert caught.value.path == path
            fs.damage_flip(path, position, position % 8)
        assert backing.load(address) == b"body" * 100
