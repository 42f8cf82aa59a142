"""A disk in memory that knows what was synced: the images behind ``FaultyFileSystem``.

Every node (file or directory) has two images. The *volatile* one is what a running
process sees: the page cache. The *durable* one is what a power cut is sure to leave.
Between them, for a file, stands the list of *pending* writes and changes of size since
its last sync, oldest first; a directory's pending changes are where its two dicts of
names differ. A directory entry holds the number of a node, so hard links share it.

Rules, each at least as harsh as Linux, save where said:

* ``sync`` of a file makes its content and size durable, not its name; ``sync_dir`` makes
  the names in one directory durable, not the content behind them.
* A **failed sync** leaves a random part of the pending writes durable and *none* pending:
  the pages are clean. The volatile image still shows all (the node has ``diverged``), until
  ``drop_cache`` or a crash. The file's size is no page and stays pending, so that a second,
  successful sync makes zeros or old bytes of the right length durable, as it does on ext4.
* A sync that **lies** changes nothing: what was pending stays so until an honest sync, as
  in a drive that forgets a flush of its cache.
* A failed ``sync_dir`` makes a random part of the names durable; the rest stays pending.
* Names survive one by one. That is harsher than a journal, where a rename's two names
  change together: here a crash may keep both or neither (but a name that was replaced
  holds its old or its new inode, never nothing).
* A crash may show a file's sectors of 512 bytes old or new in any mixture. Bytes within
  one sector survive together, save in the mode "torn".

A change is a tuple (method name, arguments...) of ints, strings and bytes, given to
``apply``: so it can be journalled and replayed on a copy. ``copy`` shares all content and
copies a file's bytes only when either side writes to them. No change validates anything:
that is the business of ``FaultyFileSystem``.
"""

import random
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

SECTOR_BYTES: Final = 512
ROOT: Final = 0

# Ways in which a crash can end, for Disk.crashed().
CRASH_MODES: Final = ("lost", "kept", "subset", "torn", "zeros", "killed")
TORN_VARIANTS: Final = ("prefix", "suffix", "zeros")

Change: TypeAlias = tuple[Any, ...]
# (number of the change, offset, data), or with data None: (number, new size, None).
Pending: TypeAlias = tuple[int, int, bytes | None]

_ZEROS: Final[dict[int, bytes]] = {}


def zeros(length: int) -> bytes:
    """Zero bytes; the same object each time, for the journal keeps every write."""
    found = _ZEROS.get(length)
    if found is None:
        if len(_ZEROS) > 64:
            _ZEROS.clear()
        found = _ZEROS[length] = bytes(length)
    return found


class FileNode:
    """A file's two images and what lies between. A shared image is copied before a change."""

    __slots__ = ("diverged", "durable", "durable_shared", "pending", "volatile", "volatile_shared")

    def __init__(self, content: bytearray, is_shared: bool) -> None:
        self.volatile = content
        self.durable = content if is_shared else bytearray(content)
        self.volatile_shared = self.durable_shared = is_shared
        self.pending: list[Pending] = []
        self.diverged = False  # volatile is not durable + pending: a sync failed

    def copy(self) -> "FileNode":
        self.volatile_shared = self.durable_shared = True
        node = FileNode.__new__(FileNode)
        node.volatile, node.durable = self.volatile, self.durable
        node.volatile_shared = node.durable_shared = True
        node.pending = self.pending[:]
        node.diverged = self.diverged
        return node

    def writable(self) -> bytearray:
        """The volatile image, for change."""
        if self.volatile_shared:
            self.volatile = bytearray(self.volatile)
            self.volatile_shared = False
        return self.volatile

    def land(self, writes: list[Pending]) -> None:
        """These writes reach the disk."""
        if not writes:
            return
        if self.durable_shared:
            self.durable = bytearray(self.durable)
            self.durable_shared = False
        apply_writes(self.durable, writes)

    def settled(self) -> bytearray:
        """Content if all that is pending lands. May be an image itself: not for change."""
        if not self.diverged:
            return self.volatile
        return apply_writes(bytearray(self.durable), self.pending)


class DirectoryNode:
    """Names of a directory, as seen and as on disk: name -> number of a node."""

    __slots__ = ("durable", "volatile")

    def __init__(self, volatile: dict[str, int], durable: dict[str, int]) -> None:
        self.volatile = volatile
        self.durable = durable

    def copy(self) -> "DirectoryNode":
        return DirectoryNode(self.volatile.copy(), self.durable.copy())


Node: TypeAlias = FileNode | DirectoryNode


class Disk:
    """Nodes by number; ``changes`` counts what was applied."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {ROOT: DirectoryNode({}, {})}
        self.changes = 0
        self.next_node = 1

    def copy(self) -> "Disk":
        disk = Disk.__new__(Disk)
        disk.nodes = {number: node.copy() for number, node in self.nodes.items()}
        disk.changes = self.changes
        disk.next_node = self.next_node
        return disk

    def file(self, number: int) -> FileNode:
        node = self.nodes[number]
        assert isinstance(node, FileNode)
        return node

    def directory(self, number: int) -> DirectoryNode:
        node = self.nodes[number]
        assert isinstance(node, DirectoryNode)
        return node

    def names(self) -> list[str]:
        """Every path that a process sees; directories end with "/"."""
        found: list[str] = []
        left = [("/", ROOT)]
        while left:
            path, number = left.pop()
            for name, child in self.directory(number).volatile.items():
                if isinstance(self.nodes[child], DirectoryNode):
                    found.append(f"{path}{name}/")
                    left.append((f"{path}{name}/", child))
                else:
                    found.append(path + name)
        return sorted(found)

    def sync_all(self) -> None:
        """Everything that a process sees becomes durable; no change."""
        for node in self.nodes.values():
            if isinstance(node, FileNode):
                node.durable = node.volatile
                node.volatile_shared = node.durable_shared = True
                node.pending = []
                node.diverged = False
            else:
                node.durable = node.volatile.copy()

    # ---- Changes ------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        self.changes += 1
        getattr(self, change[0])(*change[1:])

    def nothing(self) -> None:
        """An operation that failed without a trace, or a sync that lied."""

    def create(self, parent: int, name: str) -> None:
        self.nodes[self.next_node] = FileNode(bytearray(), False)
        self.directory(parent).volatile[name] = self.next_node
        self.next_node += 1

    def mkdir(self, parent: int, name: str) -> None:
        self.nodes[self.next_node] = DirectoryNode({}, {})
        self.directory(parent).volatile[name] = self.next_node
        self.next_node += 1

    def pwrite(self, number: int, offset: int, data: bytes) -> None:
        node = self.file(number)
        write = (self.changes, offset, data)
        apply_writes(node.writable(), [write])
        node.pending.append(write)

    def truncate(self, number: int, size: int) -> None:
        node = self.file(number)
        write = (self.changes, size, None)
        apply_writes(node.writable(), [write])
        node.pending.append(write)

    def allocate(self, number: int, size: int) -> None:
        node = self.file(number)
        if len(node.volatile) > size:
            self.truncate(number, size)
        self.pwrite(number, 0, zeros(size))

    def sync(self, number: int, low: int, high: int) -> None:
        """All pending writes become durable, save those of changes ``low < n <= high``.

        Those were made after a sync in a worker thread had perhaps begun. If the node was
        written after ``high``, by the thread itself, order would be lost, and none is left out.
        """
        node = self.file(number)
        if low < high and node.pending and node.pending[-1][0] <= high:
            late = [write for write in node.pending if write[0] > low]
            node.land([write for write in node.pending if write[0] <= low])
            node.pending = late
            return
        node.land(node.pending)
        node.pending = []

    def sync_failed(self, number: int, landed: list[Pending]) -> None:
        node = self.file(number)
        node.land(landed)
        node.pending = []
        node.diverged = True
        if len(node.durable) != len(node.volatile):
            node.pending.append((self.changes, len(node.volatile), None))

    def drop_cache(self, number: int) -> None:
        """Clean pages are read again from the disk; dirty ones stay, and so does the size.

        No change: it is not numbered, for it changes nothing that a crash could show.
        """
        node = self.file(number)
        if node.diverged:
            node.volatile, node.volatile_shared = node.settled(), False
            node.diverged = False

    def sync_dir(self, number: int) -> None:
        node = self.directory(number)
        node.durable = node.volatile.copy()

    def sync_dir_failed(self, number: int, names: list[str]) -> None:
        node = self.directory(number)
        for name in names:
            if name in node.volatile:
                node.durable[name] = node.volatile[name]
            else:
                node.durable.pop(name, None)

    def rename(self, old_parent: int, old: str, new_parent: int, new: str) -> None:
        number = self.directory(old_parent).volatile.pop(old)
        self.directory(new_parent).volatile[new] = number

    def link(self, number: int, parent: int, name: str) -> None:
        self.directory(parent).volatile[name] = number

    def unlink(self, parent: int, name: str) -> None:
        del self.directory(parent).volatile[name]

    # ---- Crashes ------------------------------------------------------------------------

    def last_write(self) -> tuple[int, Pending] | None:
        """(node, write) of the latest pending write whose file still has a name."""
        found: tuple[int, Pending] | None = None
        for number in self.reachable():
            node = self.nodes[number]
            if isinstance(node, FileNode):
                for write in reversed(node.pending):
                    if write[2] is not None:
                        if found is None or write[0] > found[1][0]:
                            found = (number, write)
                        break
        return found

    def reachable(self) -> set[int]:
        """Nodes that a process can name."""
        seen = {ROOT}
        left = [ROOT]
        while left:
            node = self.nodes[left.pop()]
            if isinstance(node, DirectoryNode):
                fresh = [child for child in node.volatile.values() if child not in seen]
                seen.update(fresh)
                left.extend(fresh)
        return seen

    def crashed(
        self, mode: str, rng: random.Random, cut: int | None = None, variant: str | None = None,
        apart: Mapping[str, str] | None = None,
    ) -> "Disk":  # fmt: skip
        """The disk after a crash; this one is unchanged. ``FaultyFileSystem.crash`` explains."""
        if mode == "killed":
            return self.copy()
        if mode not in CRASH_MODES:
            raise ValueError(f"crash mode {mode!r} is none of {CRASH_MODES}")
        torn = self.last_write() if mode == "torn" else None
        disk = Disk.__new__(Disk)
        disk.nodes = {}
        disk.changes = 0
        disk.next_node = self.next_node
        disk.nodes[ROOT] = DirectoryNode({}, {})
        left = [(ROOT, mode)]
        while left:
            parent, mode = left.pop()
            names = surviving_names(self.directory(parent), mode, rng)
            for name, number in list(names.items()):
                node = self.nodes[number]
                of_name = (apart or {}).get(name, mode) if parent == ROOT else mode
                if isinstance(node, DirectoryNode):
                    if number in disk.nodes:
                        del names[name]  # a directory has one name, also when a rename half landed
                        continue
                    disk.nodes[number] = DirectoryNode({}, {})
                    left.append((number, of_name))
                elif number not in disk.nodes:
                    if torn is not None and torn[0] == number:
                        content = torn_content(node, torn[1], rng, cut, variant)
                    else:
                        content = surviving_content(node, of_name, rng)
                    disk.nodes[number] = FileNode(content, True)
            disk.nodes[parent] = DirectoryNode(names, names.copy())
        return disk


# ----------------------------------------------------------------------------------------
# What survives


def apply_writes(content: bytearray, writes: list[Pending]) -> bytearray:
    """Write and cut as told, in place; returns ``content``."""
    for _, offset, data in writes:
        size = len(content)
        if data is None:
            if offset <= size:
                del content[offset:]
            else:
                content.extend(bytes(offset - size))
        else:
            if offset > size:
                content.extend(bytes(offset - size))
            content[offset : offset + len(data)] = data
    return content


def some_writes(writes: list[Pending], rng: random.Random) -> list[Pending]:
    """Each write survives or not, or in any of its sectors; a change of size does or not."""
    kept: list[Pending] = []
    whole = rng.choice((0.1, 0.4, 0.7))  # so that nearly none and nearly all happen as well
    for write in writes:
        fate = rng.random()
        number, offset, data = write
        if fate < whole:
            kept.append(write)
        elif fate < whole + 0.2 and data is not None and len(data) > 1:
            for start, stop in some_runs(offset, offset + len(data), rng):
                kept.append((number, start, data[start - offset : stop - offset]))
    return kept


def some_runs(start: int, stop: int, rng: random.Random) -> list[tuple[int, int]]:
    """Random ranges of whole sectors of the file within the bytes from start to stop."""
    first = start // SECTOR_BYTES
    sectors = (stop - 1) // SECTOR_BYTES + 1 - first
    runs: list[tuple[int, int]] = []
    if sectors <= 64:
        bits = rng.getrandbits(sectors)
        picked = [(first + i, first + i + 1) for i in range(sectors) if bits >> i & 1]
    else:
        # Large writes in few pieces: a coin for each sector would always mean half of them.
        edges = sorted(rng.randrange(sectors + 1) for _ in range(2 * rng.randrange(1, 5)))
        picked = [(first + a, first + b) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    for a, b in picked:
        low, high = max(start, a * SECTOR_BYTES), min(stop, b * SECTOR_BYTES)
        if low < high:
            runs.append((low, high))
    return runs


def surviving_names(node: DirectoryNode, mode: str, rng: random.Random) -> dict[str, int]:
    if mode == "lost":
        return node.durable.copy()
    if mode != "subset" or node.volatile == node.durable:
        return node.volatile.copy()
    names: dict[str, int] = {}
    for name in sorted(node.volatile.keys() | node.durable.keys()):
        number = (node.volatile if rng.random() < 0.5 else node.durable).get(name)
        if number is not None:
            names[name] = number
    return names


def surviving_content(node: FileNode, mode: str, rng: random.Random) -> bytearray:
    """May be an image of the node itself, which is then shared."""
    if mode == "lost" or not node.pending:
        result = node.durable
    elif mode in ("kept", "torn"):
        result = node.settled()
    elif mode == "subset":
        result = apply_writes(bytearray(node.durable), some_writes(node.pending, rng))
        # The size is metadata and may come first: what did not land reads as zeros then.
        if len(result) < len(node.volatile) and rng.random() < 0.3:
            result.extend(bytes(len(node.volatile) - len(result)))
    else:
        result = zeroed_content(node)
    # The caller's new node will share it; a fresh one is shared by nobody, which is harmless.
    node.volatile_shared = node.volatile_shared or result is node.volatile
    node.durable_shared = node.durable_shared or result is node.durable
    return result


def zeroed_content(node: FileNode) -> bytearray:
    """Sizes landed, data did not: growth reads as zeros, what was there reads as it was."""
    content = bytearray(node.durable)
    for _, offset, data in node.pending:
        if data is None and offset < len(content):
            del content[offset:]
        end = offset if data is None else offset + len(data)
        if end > len(content):
            content.extend(bytes(end - len(content)))
    return content


def torn_content(
    node: FileNode, last: Pending, rng: random.Random, cut: int | None, variant: str | None
) -> bytearray:
    """All pending writes survive, but the last in part only, cut at byte ``cut`` of it."""
    number, offset, data = last
    assert data is not None
    variant = variant or rng.choice(TORN_VARIANTS)
    if variant not in TORN_VARIANTS:
        raise ValueError(f"variant {variant!r} is none of {TORN_VARIANTS}")
    at = min(rng.randrange(len(data) + 1) if cut is None else cut, len(data))
    content = bytearray(node.durable)
    for write in node.pending:
        if write is not last:
            apply_writes(content, [write])
        elif variant == "prefix":
            apply_writes(content, [(number, offset, data[:at])] if at else [])
        elif variant == "suffix":
            apply_writes(content, [(number, offset + at, data[at:])] if at < len(data) else [])
        else:
            apply_writes(content, [(number, offset, data[:at] + bytes(len(data) - at))])
    return content
