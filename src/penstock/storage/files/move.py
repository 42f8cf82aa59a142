"""Move: move the log of a store, or what leaves RAM, into another directory, on another disk.

The store is not running: its locks are held all the time, and those of the old and new directories.
All files of a kind are moved, of all vhosts (data_directory.py says which files these are):

    look           everything is checked, the room too, before anything is written
    finish         old files of a move that was interrupted are deleted
    PLACES         gets the store's id, if it has none
    take           the new directory gets its LOCK and OWNER; an unfinished copy in it is deleted
    copy           each file is synced and read from the disk [8], written to its new place and
                   synced; then the directories, from the inside out
    VERSION        is 2 from here on, if anything is to be elsewhere
    PLACES         is replaced: the files are in the new place now. It also says what was left
    delete         the old files, then the directory's LOCK, then its OWNER
    PLACES         no longer says what was left; VERSION is 1 if nothing is elsewhere

One rename decides [13], for both kinds. So after a crash at any point the store is opened from the
old place or from the new one, and the other is ignored. The same move, called again, begins the
copy again or deletes what is left.

Nothing is copied of `msg_store_transient` and `leases`, which each start empties. Files that had
two names on the old disk become two files.

Failure: OptionError (a directory cannot be taken), DiskFullError (too little room), LockedError,
what opening the data directory raises, SyncFailedError, OSError. Before the second PLACES the store
is where it was.
"""

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import DiskFullError, PenstockError, SyncFailedError
from penstock.storage.files.data_directory import (
    FORMAT,
    LOG,
    OWNER,
    PLACED_FORMAT,
    SPILL,
    VHOSTS,
    DataDirectory,
    NewPlace,
    Places,
    check_apart,
    check_free,
    check_version,
    kind_of,
    owner_of,
    read_places,
    sync_dir,
    write_places,
    write_version,
)
from penstock.storage.files.filesystem import FileSystem, Lock

COPY_BYTES: Final = 1 << 20
SPARE_BYTES: Final = 1 << 20  # of room, for what directories and names take
EMPTIED: Final = ("msg_store_transient", "leases")  # by every start

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all


@dataclass(slots=True)
class Moved:
    """What a move did. roots: kind -> directory, of what was moved. notes: old files that were not
    found and are not deleted."""

    roots: dict[str, str]
    files: int
    bytes: int
    notes: list[str]


def move(
    fs: FileSystem, path: str, *, log_directory: str = "", spill_directory: str = "",
    rng: random.Random | None = None, progress: Progress | None = None,
) -> Moved:  # fmt: skip
    """Move files of the store at `path` into these directories (absolute paths). The data directory
    itself moves them back into it; "" leaves a kind where it is. With both "" an interrupted move
    is finished, if there was one. Raises as the head of this module says."""
    given = {LOG: log_directory, SPILL: spill_directory}
    data = DataDirectory(fs, path, create=False, rng=rng)
    vhosts: list[Lock] = []
    try:
        for name in _vhosts_in(fs, f"{data.path}/{VHOSTS}"):
            vhosts.append(  # noqa: PERF401 - some, if one fails
                fs.lock(f"{data.path}/{VHOSTS}/{name}/LOCK")
            )
        work = _Move(
            fs, data, {kind: root.rstrip("/") or "/" for kind, root in given.items() if root}
        )
        work.progress = progress or _silent
        return work.run(rng or random.SystemRandom())
    finally:
        for lock in vhosts:
            lock.release()
        data.close()


class _Move:
    """One move. fs: the file system of the disks, not a PlacedFileSystem."""

    def __init__(self, fs: FileSystem, data: DataDirectory, given: dict[str, str]) -> None:
        self.progress: Progress = _silent
        self._fs = fs
        self._path = data.path
        self._old = data.fs
        self._roots = data.places
        self._vhosts = _vhosts_in(fs, f"{data.path}/{VHOSTS}")
        here = fs.real_path(data.path)
        self._wanted = {  # kind -> directory, "" for the data directory
            kind: "" if fs.real_path(root) == here else root
            for kind, root in given.items()
            if fs.real_path(root) != fs.real_path(self._roots.get(kind, data.path))
        }
        self._moved = Moved({k: root or data.path for k, root in self._wanted.items()}, 0, 0, [])
        self._total_bytes = 0

    def run(self, rng: random.Random) -> Moved:
        fs, path = self._fs, self._path
        places = read_places(fs, path) or Places("")
        self._look(places)
        self._delete_left(places)
        if not self._wanted:
            return self._moved
        places = replace(places, id=places.id or f"{rng.getrandbits(128):032x}", left=())
        write_places(fs, path, places)
        taken: list[NewPlace] = []
        try:
            try:
                self._take(places, taken)
                for kind in self._wanted:
                    self._copy(kind)
            except (OSError, PenstockError):
                self._give_up(taken)
                raise
            after = {k: root for k, root in {**self._roots, **self._wanted}.items() if root}
            if after:
                write_version(fs, path, PLACED_FORMAT)
            left = [(kind, self._roots.get(kind, fs.real_path(path))) for kind in self._wanted]
            places = replace(places, roots=after, left=tuple(left))
            write_places(fs, path, places)
            self._delete_left(places)
        finally:
            for one in taken:
                if one.lock is not None:
                    one.lock.release()
        return self._moved

    # ---- before anything is written ------------------------------------------------------------

    def _look(self, places: Places) -> None:
        fs, path = self._fs, self._path
        after = {**self._roots, **self._wanted}
        check_apart(fs, {kind: root for kind, root in after.items() if root})
        needed: dict[str, int] = {}
        for kind, root in self._wanted.items():
            if root:
                check_free(fs, path, kind, root, places.id)
            size = sum([self._size(f"{at}/{name}") for at, name in self._names(kind)])
            self._total_bytes += size
            room = root or path
            if not fs.exists(room):
                room = room.rpartition("/")[0] or "/"
            needed[room] = needed.get(room, 0) + size
        for room, size in needed.items():
            free = fs.free_bytes(room)
            if free < size + SPARE_BYTES:
                raise DiskFullError(room, free, size + SPARE_BYTES)

    def _names(self, kind: str) -> list[tuple[str, str]]:
        """Return (path of a vhost in the data directory, name in it) of all files of that kind."""
        found = []
        for vhost in self._vhosts:
            at = f"{self._path}/{VHOSTS}/{vhost}"
            found += [(at, name) for name in self._old.list(at) if kind_of(name) == kind]
        return found

    def _size(self, path: str) -> int:
        """Return the bytes of a file, or of all files below a directory."""
        fs = self._old
        if not fs.is_dir(path):
            return fs.size(path)
        if path.rpartition("/")[2] in EMPTIED:
            return 0
        return sum([self._size(f"{path}/{name}") for name in fs.list(path)])

    # ---- copying -------------------------------------------------------------------------------

    def _take(self, places: Places, taken: list[NewPlace]) -> None:
        """Take the new directories, and delete what an unfinished copy has left in them."""
        fs = self._fs
        for kind, root in self._wanted.items():
            if root:
                taken.append(NewPlace(fs, fs.real_path(self._path), places, kind, root))
            self._empty(kind, root or f"{self._path}/{VHOSTS}")

    def _give_up(self, taken: list[NewPlace]) -> None:
        """Delete what was copied; the store is where it was. Errors are ignored."""
        try:
            for kind, root in self._wanted.items():
                if not root or root in [one.root for one in taken]:
                    self._empty(kind, root or f"{self._path}/{VHOSTS}")
        except (OSError, PenstockError):
            return  # the next move deletes it
        for one in taken:
            one.undo()

    def _empty(self, kind: str, root: str) -> None:
        """Delete the files of that kind in the directories of all vhosts below `root`."""
        fs = self._fs
        for vhost in _vhosts_in(fs, root):
            at = f"{root}/{vhost}"
            for name in fs.list(at):
                if kind_of(name) == kind:
                    self._delete(f"{at}/{name}")
            sync_dir(fs, at)
            if root != f"{self._path}/{VHOSTS}" and not fs.list(at):
                fs.rmdir(at)
        sync_dir(fs, root)

    def _copy(self, kind: str) -> None:
        fs = self._fs
        root = self._wanted[kind] or f"{self._path}/{VHOSTS}"
        for vhost in self._vhosts:
            fs.mkdir(f"{root}/{vhost}")
        for at, name in self._names(kind):
            vhost = at.rpartition("/")[2]
            self._copy_tree(f"{at}/{name}", f"{root}/{vhost}/{name}")
        for vhost in self._vhosts:
            sync_dir(fs, f"{root}/{vhost}")
        sync_dir(fs, root)

    def _copy_tree(self, old: str, new: str) -> None:
        fs = self._fs
        if not self._old.is_dir(old):
            self._copy_file(old, new)
            return
        fs.mkdir(new)
        if old.rpartition("/")[2] not in EMPTIED:
            for name in self._old.list(old):
                self._copy_tree(f"{old}/{name}", f"{new}/{name}")
        sync_dir(fs, new)

    def _copy_file(self, old: str, new: str) -> None:
        with closing(self._old.open(old)) as source:
            _sync(source.sync, old)
            source.drop_cache()
            with closing(self._fs.open(new, create=True)) as target:
                target.truncate(0)
                at = 0
                while piece := source.pread(COPY_BYTES, at):
                    target.pwrite(piece, at)
                    at += len(piece)
                    self._moved.bytes += len(piece)
                    self.progress("bytes", self._moved.bytes, self._total_bytes)
                _sync(target.sync, new)
        self._moved.files += 1

    # ---- deleting ------------------------------------------------------------------------------

    def _delete_left(self, places: Places) -> None:
        """Delete the old files of moves, and then remove them from PLACES."""
        fs, path = self._fs, self._path
        for kind, root in places.left:
            assert root != places.roots.get(kind, path), "it would delete what is in use"
            if fs.real_path(root) == fs.real_path(path):
                self._empty(kind, f"{path}/{VHOSTS}")
            elif owner_of(fs, root)[:2] == (kind, places.id):
                self._empty(kind, root)
                for name in ("LOCK", OWNER):  # without OWNER nothing is deleted there any more
                    if fs.exists(f"{root}/{name}"):
                        fs.unlink(f"{root}/{name}")
                        sync_dir(fs, root)
            elif not fs.is_dir(root) or fs.exists(f"{root}/{OWNER}"):
                text = "the store has left it, and it is not there or another's: nothing is deleted"
                self._moved.notes.append(f"{root}: {text}")
        if places.left:
            write_places(fs, path, replace(places, left=()))
        if not places.roots and check_version(fs, path) != FORMAT:
            write_version(fs, path, FORMAT)

    def _delete(self, path: str) -> None:
        fs = self._fs
        if not fs.is_dir(path):
            fs.unlink(path)
            return
        for name in fs.list(path):
            self._delete(f"{path}/{name}")
        fs.rmdir(path)


def _vhosts_in(fs: FileSystem, directory: str) -> list[str]:
    """Return the names of vhosts' directories in a directory."""
    return [
        name
        for name in fs.list(directory)
        if len(name) == 16
        and all(digit in "0123456789abcdef" for digit in name)
        and fs.is_dir(f"{directory}/{name}")
    ]


def _sync(sync: Callable[[], None], path: str) -> None:
    try:
        sync()
    except OSError as error:
        raise SyncFailedError(path, error) from error


def _silent(what: str, done: int, total: int) -> None:
    pass
