"""PlacedFileSystem: one data directory to look at, whose files lie in up to three directories.

`log_directory` puts the log of each vhost into another directory than the data directory,
`spill_directory` the messages that leave RAM. The engine and all above it use paths below the data
directory as ever; this file system maps them:

    below <data>/vhosts/<hash>/                        is in
    -------------------------------------------------  --------------------------------------
    wal  CURRENT  checkpoint-<n>  reserve              <log_directory>/<hash>/
    queues  msg_store_persistent  msg_store_transient  <spill_directory>/<hash>/
    streams  leases  staging  spill_reserve
    .vhost  LOCK  and any other name                   the data directory itself

Checkpoints are with the log because each is where the log goes on from, and the reserve because it
is room for both. No file is ever renamed or linked from one column to another.

A vhost's directory is thus up to three. `list` shows the names of each directory that belong there,
so what an interrupted move has left in the wrong one is not seen. `mkdir`, `rmdir` and `sync_dir`
of it are done in all three, and `sync_dir` of `<data>/vhosts` in both other directories too. The
others are made and removed first, and durably, so that a vhost in the data directory has them and
one that is gone has not [13].
`free_bytes` of the data directory or a vhost's is that of the disk with the least; `disks` names
them, `place` says where one file is.

Files, locks and submitted work are those of the file system below. Errors have the path of the
place where the file really is.

Not here: which directories these are, and whether they are the right ones (data_directory).
"""

from collections.abc import Callable
from typing import Final

from penstock.storage.filesystem import File, FileSystem, Lock, Names, whole_path
from penstock.storage.worker_pool import Completions

LOG: Final = "log"
SPILL: Final = "spill"
KINDS: Final = (LOG, SPILL)
# By the name in a vhost's directory; a name ending with "*" stands for all that begin so.
PARTS: Final = {
    LOG: ("wal", "CURRENT*", "checkpoint-*", "reserve"),
    SPILL: (
        "queues", "msg_store_persistent", "msg_store_transient", "streams", "leases", "staging",
        "spill_reserve",
    ),
}  # fmt: skip
VHOSTS: Final = "vhosts"


def kind_of(name: str) -> str:
    """LOG or SPILL for a name in a vhost's directory, "" for one that stays in the data
    directory."""
    for kind, parts in PARTS.items():
        for part in parts:
            if name == part or (part.endswith("*") and name.startswith(part[:-1])):
                return kind
    return ""


class PlacedFileSystem(FileSystem):
    """`below` with the store at `data` in several directories. roots: LOG and SPILL -> directory,
    for those of them that are elsewhere. `data` is free of symbolic links; path: one in it as the
    caller spells it, by which other paths are recognised that are spelled alike."""

    def __init__(self, below: FileSystem, path: str, data: str, roots: dict[str, str]) -> None:
        self.below = below
        self.roots = dict(roots)
        self._vhosts = f"{data.rstrip('/')}/{VHOSTS}"
        self._data = data
        self._spelled = whole_path(path)
        self._real = below.real_path(path)

    @property
    def on_complete(self) -> Callable[[], None] | None:
        """Of the file system below."""
        return self.below.on_complete

    @on_complete.setter
    def on_complete(self, wake: Callable[[], None] | None) -> None:
        self.below.on_complete = wake

    # ---- paths ---------------------------------------------------------------------------------

    def _inside(self, path: str) -> str:
        """The path without links, as far as it is below the one that the caller spelled."""
        whole = whole_path(path)
        spelled = self._spelled
        if whole == spelled or whole.startswith(spelled.rstrip("/") + "/"):
            return self._real + whole[len(spelled) :]
        return whole

    def place(self, path: str) -> str:
        inside = self._inside(path)
        if not inside.startswith(self._vhosts + "/"):
            return path
        directory, _, rest = inside[len(self._vhosts) + 1 :].partition("/")
        root = self.roots.get(kind_of(rest.partition("/")[0]), "") if rest else ""
        return f"{root}/{directory}/{rest}" if root else path

    def _others(self, path: str) -> list[tuple[str, str]]:
        """(kind, directory) of the other directories of a vhost's, or of all of them; none for any
        other path."""
        inside = self._inside(path)
        if inside == self._vhosts:
            return list(self.roots.items())
        parent, _, name = inside.rpartition("/")
        if parent != self._vhosts:
            return []
        return [(kind, f"{root}/{name}") for kind, root in self.roots.items()]

    def disks(self, path: str) -> Names:
        inside = self._inside(path)
        if inside not in (self._data, self._vhosts) and not self._others(path):
            return [self.place(path)]
        # Not the data directory itself: free_bytes of that is the least of all.
        return [self.roots.get(kind, self._vhosts) for kind in KINDS]

    def free_bytes(self, path: str) -> int:
        inside = self._inside(path)
        if inside != self._vhosts and (inside == self._data or self._others(path)):
            return min([self.below.free_bytes(disk) for disk in self.disks(path)])
        return self.below.free_bytes(self.place(path))

    def real_path(self, path: str) -> str:
        return self.below.real_path(self.place(path))

    # ---- files ---------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> File:
        return self.below.open(self.place(path), create=create)

    def read(self, path: str) -> bytes:
        return self.below.read(self.place(path))

    def exists(self, path: str) -> bool:
        return self.below.exists(self.place(path))

    def is_dir(self, path: str) -> bool:
        return self.below.is_dir(self.place(path))

    def list(self, path: str) -> Names:
        names = self.below.list(self.place(path))
        others = self._others(path)
        if not others or self._inside(path) == self._vhosts:
            return names
        found = [name for name in names if kind_of(name) not in self.roots]
        for kind, directory in others:
            # Made before `.vhost`: if it is missing the vhost is not made yet, or half deleted.
            inner = self.below.list(directory) if self.below.exists(directory) else []
            found += [name for name in inner if kind_of(name) == kind]
        return sorted(found)

    def size(self, path: str) -> int:
        return self.below.size(self.place(path))

    def rename(self, old: str, new: str) -> None:
        self.below.rename(self.place(old), self.place(new))

    def link(self, old: str, new: str) -> None:
        self.below.link(self.place(old), self.place(new))

    def unlink(self, path: str) -> None:
        self.below.unlink(self.place(path))

    def mkdir(self, path: str) -> None:
        if self._inside(path) != self._vhosts:
            for kind, directory in self._others(path):
                self.below.mkdir(directory)
                # There for good before `.vhost` says that the vhost is whole.
                self.below.sync_dir(self.roots[kind])
        self.below.mkdir(self.place(path))

    def rmdir(self, path: str) -> None:
        if self._inside(path) != self._vhosts:
            for kind, directory in self._others(path):
                if self.below.exists(directory):
                    self.below.rmdir(directory)
                    # Gone for good before the vhost is: one of the same name would find it.
                    self.below.sync_dir(self.roots[kind])
        self.below.rmdir(self.place(path))

    def sync_dir(self, path: str) -> None:
        for _, directory in self._others(path):
            self.below.sync_dir(directory)
        self.below.sync_dir(self.place(path))

    # ---- the rest ------------------------------------------------------------------------------

    def kind(self, path: str) -> str:
        return self.below.kind(self.place(path))

    def lock(self, path: str) -> Lock:
        return self.below.lock(self.place(path))

    def submit(self, op: Callable[[], object]) -> int:
        return self.below.submit(op)

    def completed(self, wait: bool) -> Completions:
        return self.below.completed(wait)

    def close(self) -> None:
        self.below.close()
