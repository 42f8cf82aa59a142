"""What goes wrong on a ``FaultyFileSystem``: the crash, the planned fault, the rotten file.

``CrashNow`` is how a process dies in a test. A ``Fault`` is planned by
``FaultyFileSystem.fail``, which tells the effects. ``Damage`` is the part of the file
system that spoils stored bytes, for tests of what a reader notices: in the volatile and
the durable image alike, with nothing of the file pending afterwards.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from tests.helpers.simulated_disk import SECTOR_BYTES, DirectoryNode, Disk, FileNode

# fmt: off
OPERATION_KINDS = frozenset({
    "create", "pwrite", "allocate", "truncate", "sync", "sync_dir",
    "rename", "link", "unlink", "mkdir", "rmdir",
})
# fmt: on
OWN_NUMBERS = frozenset({"read", "open"})


class CrashNow(BaseException):
    """The process dies here: a BaseException, so that no ``except Exception`` survives it."""

    def __init__(self, number: int, kind: str, path: str) -> None:
        super().__init__(f"crash before operation {number}: {kind} {path}")
        self.number = number
        self.kind = kind
        self.path = path


class Fault:
    """Something that will go wrong. Made by ``FaultyFileSystem.fail``; ``hits`` tells how often."""

    def __init__(
        self,
        effect: int | str,
        kinds: Iterable[str] | None,
        path: str | Callable[[str], bool] | None,
        at: int | None,
        nth: int,
        times: int | None,
    ) -> None:
        if unknown := set(kinds or ()) - OPERATION_KINDS - OWN_NUMBERS:
            raise ValueError(f"no such kind of operation: {sorted(unknown)}")
        self.effect = effect
        self.kinds = None if kinds is None else frozenset(kinds)
        self.path = path
        self.at = at
        self.nth = nth
        self.times = times
        self.seen = 0
        self.hits = 0

    def strikes(self, kind: str, path: str, number: int) -> bool:
        if kind in OWN_NUMBERS if self.kinds is None else kind not in self.kinds:
            return False
        if isinstance(self.path, str):
            if self.path not in path:
                return False
        elif self.path is not None and not self.path(path):
            return False
        self.seen += 1
        due = self.seen >= self.nth if self.at is None else number >= self.at
        if not due or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        return True


class Damage(ABC):
    """The ``damage_...`` methods of a FaultyFileSystem; none of them is an operation."""

    disk: Disk

    @abstractmethod
    def _find(self, path: str) -> int:
        """Number of the node of that name."""

    def damage(self, path: str, change: Callable[[bytes], bytes]) -> None:
        """Replace the file's bytes by what ``change`` makes of them."""
        number = self._find(path)
        content = bytes(self.disk.file(number).settled())
        self.disk.nodes[number] = FileNode(bytearray(change(content)), True)

    def damage_flip(self, path: str, position: int, bit: int = 0) -> None:
        """Flip bit ``bit`` (0 to 7) of the byte at ``position``."""
        self.damage(path, lambda content: flipped(content, position * 8 + bit))

    def damage_cut(self, path: str, size: int) -> None:
        """The file ends after ``size`` bytes."""
        self.damage(path, lambda content: content[:size])

    def damage_zero_tail(self, path: str, length: int) -> None:
        """The last ``length`` bytes are zeros."""
        self.damage(
            path,
            lambda content: content[: max(len(content) - length, 0)].ljust(len(content), bytes(1)),
        )

    def damage_garbage(
        self, path: str, position: int, length: int, rng: random.Random | None = None
    ) -> None:
        """``length`` random bytes at ``position``; may make the file longer."""
        garbage = (rng or random.Random(length)).randbytes(length)
        self.damage(
            path,
            lambda content: (
                content[:position].ljust(position, bytes(1))
                + garbage
                + content[position + length :]
            ),
        )

    def damage_duplicate_sector(self, path: str, source: int, target: int) -> None:
        """A misdirected write: sector number ``target`` holds what ``source`` holds."""
        at = target * SECTOR_BYTES

        def change(content: bytes) -> bytes:
            sector = content[source * SECTOR_BYTES : (source + 1) * SECTOR_BYTES]
            return content[:at] + sector + content[at + len(sector) :]

        self.damage(path, change)

    def damage_swap(self, path: str, other: str) -> None:
        """Each of two files holds what the other held."""
        a, b = self._find(path), self._find(other)
        nodes = self.disk.nodes
        nodes[a], nodes[b] = nodes[b], nodes[a]

    def damage_delete(self, path: str) -> None:
        """The name is gone, on disk as well."""
        parent, _, name = path.rstrip("/").rpartition("/")
        node = self.disk.nodes[self._find(parent)]
        assert isinstance(node, DirectoryNode)
        del node.volatile[name]
        node.durable.pop(name, None)


# What a corruption matrix needs: name -> a random damage of that sort to a file that is
# not empty. "swap" needs a second file and "delete" no chance: they are not here.
DAMAGES: dict[str, Callable[[Damage, str, random.Random], None]] = {
    "flip": lambda fs, path, rng: fs.damage(
        path, lambda content: flipped(content, rng.randrange(len(content) * 8))
    ),
    "cut": lambda fs, path, rng: fs.damage(
        path, lambda content: content[: rng.randrange(len(content))]
    ),
    "zero tail": lambda fs, path, rng: fs.damage(path, lambda content: _zeroed(content, rng)),
    "garbage": lambda fs, path, rng: fs.damage(path, lambda content: _garbled(content, rng)),
    "duplicate sector": lambda fs, path, rng: fs.damage(
        path, lambda content: _duplicated(content, rng)
    ),
}


def flipped(data: bytes, bit: int) -> bytes:
    """``data`` with one bit wrong: bit ``bit % 8`` of byte ``bit // 8``."""
    spoilt = bytearray(data)
    spoilt[bit // 8] ^= 1 << bit % 8
    return bytes(spoilt)


def _zeroed(content: bytes, rng: random.Random) -> bytes:
    kept = rng.randrange(len(content))
    return content[:kept] + bytes(len(content) - kept)


def _garbled(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content))
    length = min(rng.randrange(1, SECTOR_BYTES + 1), len(content) - at)
    return content[:at] + rng.randbytes(length) + content[at + length :]


def _duplicated(content: bytes, rng: random.Random) -> bytes:
    """One sector over another; over itself in a file of one, which is no damage."""
    sectors = (len(content) - 1) // SECTOR_BYTES + 1
    source, target = rng.randrange(sectors), rng.randrange(sectors)
    if source == target:
        target = (target + 1) % sectors
    sector = content[source * SECTOR_BYTES : (source + 1) * SECTOR_BYTES]
    at = target * SECTOR_BYTES
    sector = sector[: len(content) - at]
    return content[:at] + sector + content[at + len(sector) :]
