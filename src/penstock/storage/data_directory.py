"""The data directory: lock, version, and where a vhost or a queue has its files.

    data/
      LOCK                  held by the one process that works here; says which
      VERSION               "penstock <format>"
      PLACES                which parts are in other directories; not there: none
      vhosts/<hash>/        one directory per vhost, itself locked
        .vhost LOCK         the vhost's name; an empty file to lock
        CURRENT checkpoint-<n>
        wal/ msg_store_persistent/ msg_store_transient/ queues/<hash>.<queue number>/
        streams/<hash>.<queue number>/

Names never become paths: a directory is named by the first 16 hex digits of the name's SHA-256,
and `.vhost` / `.queue_name` say for people what stands behind it. The first 8 bytes of a vhost's
hash are its number, which seeds the checksums of all its files, so that a file of another vhost
never verifies.

A file is there for good only once its directory is synced, so everything made here is synced from
the inside out, VERSION last: a directory with VERSION is whole, one with nothing but our own
beginnings is begun again, and one with anything else is not ours and is left alone. What a mounted
volume brings (`lost+found`) is neither: it stays, and does not count.

Two kinds of files may be in directories of their own, on other disks (placed_filesystem.py has
which files these are): the log, and what leaves RAM. PLACES says where, and which store this is:

    penstock places 1
    id <32 hex digits>                    of this store, random
    log <absolute path>                   the log directory; no such line: the data directory
    spill <absolute path>                 the spill directory
    left <log|spill> <absolute path>      a move has left it, and has not deleted all files there

and each other directory has, beside a directory <hash> for each vhost,

    LOCK                                  held as long as that of the data directory
    OWNER                                 penstock <log|spill> 1
                                          id <that of the store>
                                          data <absolute path of the data directory>

PLACES is replaced as a whole. It is durable, with the store's id, before anything is made in the
other directories, and names them once they have their OWNER. It alone decides where a file is:
whatever else an interrupted move has left is not seen [13]. A directory
that PLACES names must have the OWNER of this store. If it does not, its disk is not mounted, or it
was replaced, and then the store is not opened: it would begin without its messages.

VERSION is "penstock 2" while anything is elsewhere: earlier versions of Penstock would not look at
PLACES and take the store for a new one. So PLACES must be there if VERSION is 2.

A copy of a data directory names the same other directories. The one that does not have the path in
OWNER is refused while the other one exists; a data directory that was moved gets its new path
written into OWNER.

PlacedFileSystem: one data directory to look at, whose files lie in up to three directories.

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

FreshDirectory: a data directory in the making, for a backup or for what was salvaged.

Nobody may take a half-written copy for a store, so while it is being made there is a file
`UNFINISHED` in it and no `VERSION`:

    UNFINISHED synced -> everything else, each file and directory synced -> VERSION -> no UNFINISHED

Without VERSION a server refuses the directory and names UNFINISHED as what is not its own; the next
backup or salvage to the same place deletes what it finds and begins anew. With VERSION it is whole.
The path must be free: missing, empty, unfinished, or with nothing in it but what a volume brings
(`lost+found`). Anything else is a PathNotFreeError, and is left as it is.

Failure: OSErrors as they come. `abandon` leaves it unfinished and gives its lock back.

`.queue_name`: whose directory this is, for people, for salvage and for readers by path.

A directory is named by a hash, so what stands behind it is written into it, as RabbitMQ does:

    VHOST: <name of the vhost>\\n
    QUEUE: <name of the queue>\\n

Each name as `escaping.escaped` writes it: UTF-8, with what is not printable as `\\xNN` and each
backslash twice, so a name has no line feed. A part of a queue with priorities or delays, and a
partition of a stream, is a queue of its own here; what distinguishes it stands behind a zero byte.

Earlier versions wrote the queue's name as it is and a line feed. Both are read, and told apart by
the hash in the directory's name; the next write into the queue's files writes the new form.

It is no evidence: nothing that lives depends on it [1], a crash may have cut it off, and a name
that does not have its directory's hash is no name.

Not here: writing the file (queue_index, streams), what hashes names (data_directory).
"""

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock import escaping
from penstock.errors import (
    CorruptionError,
    NetworkFileSystemError,
    NotAStoreError,
    OptionError,
    PathNotFreeError,
    SyncFailedError,
    VersionError,
)
from penstock.storage.filesystem import (
    NETWORK_KINDS,
    Completions,
    File,
    FileSystem,
    Lock,
    Names,
    whole_path,
)

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


FORMAT: Final = 1
PLACED_FORMAT: Final = 2  # of a store of which something is elsewhere
PLACES: Final = "PLACES"
OWNER: Final = "OWNER"
OPTIONS: Final = {LOG: "log_directory", SPILL: "spill_directory"}
MOVE: Final = "penstock store move"
_PREFIX: Final = "penstock "
_PLACES_HEAD: Final = "penstock places 1"
_OURS: Final = frozenset({"LOCK", "VERSION", "VERSION.new", "vhosts", PLACES, PLACES + ".new"})
_OURS_ELSEWHERE: Final = frozenset({"LOCK", OWNER, OWNER + ".new"})
# What a fresh volume brings: of ext4, of snapshots (NetApp, ZFS, Btrfs), of quotas, and the names
# with which Kubernetes and desktops begin.
_OF_VOLUMES: Final = frozenset(
    {"lost+found", ".snapshot", ".snapshots", ".zfs", "aquota.group", "aquota.user"}
)
_OF_VOLUMES_BEGIN: Final = ("..", ".Trash-")


def not_of_volume(names: Sequence[str]) -> list[str]:
    """The names in a directory without those that a freshly mounted volume brings."""
    return [
        name for name in names if name not in _OF_VOLUMES and not name.startswith(_OF_VOLUMES_BEGIN)
    ]


def hash_name(name: bytes) -> str:
    """The directory name that stands for a vhost's or queue's name."""
    return hashlib.sha256(name).hexdigest()[:16]


def vhost_number(name: bytes) -> int:
    """64 bits of the name's hash; seeds the checksums of every file of the vhost."""
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big")


def write_small(fs: FileSystem, path: str, data: bytes) -> None:
    """A small file, written whole and synced; its directory is the caller's to sync.

    OSError: it could not be written. SyncFailedError: it was, and nobody knows how much [10]."""
    file = fs.open(path, create=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
        try:
            file.sync()
        except OSError as error:
            raise SyncFailedError(path, error) from error
    finally:
        file.close()


def sync_dir(fs: FileSystem, path: str) -> None:
    """Make the names in a directory durable; SyncFailedError [10]."""
    try:
        fs.sync_dir(path)
    except OSError as error:
        raise SyncFailedError(path, error) from error


def replace_small(fs: FileSystem, directory: str, name: str, data: bytes) -> None:
    """A small file in `directory`, durable: after a crash its old or its new content is there."""
    write_small(fs, f"{directory}/{name}.new", data)
    fs.rename(f"{directory}/{name}.new", f"{directory}/{name}")
    sync_dir(fs, directory)


def write_version(fs: FileSystem, path: str, number: int) -> None:
    """VERSION of the data directory, durable."""
    replace_small(fs, path, "VERSION", f"{_PREFIX}{number}\n".encode())


def check_version(fs: FileSystem, path: str) -> int:
    """The format of the data directory `path`: FORMAT or PLACED_FORMAT. NotAStoreError,
    VersionError or CorruptionError unless it is one of ours."""
    if not fs.exists(path):
        raise NotAStoreError(path, "there is no such directory")
    if not fs.is_dir(path):
        raise NotAStoreError(path, "it is a file, expected a data directory")
    version = path + "/VERSION"
    if not fs.exists(version):
        raise NotAStoreError(path, "it has no VERSION file, so it is no data directory of penstock")
    text = fs.read(version)
    expected = f"{_PREFIX}{FORMAT}"
    found = text.decode("ascii", "replace").strip()
    if found == expected:
        return FORMAT
    if found == f"{_PREFIX}{PLACED_FORMAT}":
        if not fs.exists(f"{path}/{PLACES}"):
            what = "it is missing, and VERSION says that log or messages are in other directories"
            raise CorruptionError(f"{path}/{PLACES}", 0, what)
        return PLACED_FORMAT
    if found.startswith(_PREFIX) and found[len(_PREFIX) :].isdigit():
        raise VersionError(version, f"{expected} or {PLACED_FORMAT}", found)
    raise CorruptionError(version, 0, f"expected {expected!r}, found {found[:40]!r}")


# ---- other directories ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """What PLACES says. roots: kind -> directory, of the kinds that are elsewhere. left: (kind,
    directory) of those that a move has left and whose old files are not all deleted."""

    id: str
    roots: dict[str, str] = field(default_factory=dict)
    left: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """The file's content."""
        lines = [_PLACES_HEAD, f"id {self.id}"]
        lines += [f"{kind} {self.roots[kind]}" for kind in KINDS if kind in self.roots]
        lines += [f"left {kind} {path}" for kind, path in self.left]
        return "".join([line + "\n" for line in lines])

    def owner(self, kind: str, data: str) -> bytes:
        """The content of OWNER in the directory of that kind."""
        text = f"{_PREFIX}{kind} 1\nid {self.id}\ndata {data}\n"
        return text.encode("utf-8", "surrogateescape")


def read_places(fs: FileSystem, path: str) -> Places | None:
    """What PLACES of the data directory says; None: there is no such file. CorruptionError."""
    file = f"{path}/{PLACES}"
    if not fs.exists(file):
        return None
    text = fs.read(file).decode("utf-8", "surrogateescape")
    head, *lines = text.split("\n")
    id, roots, left = "", dict[str, str](), list[tuple[str, str]]()
    for line in lines[:-1]:
        word, _, value = line.partition(" ")
        kind, _, at = value.partition(" ")
        if word == "id":
            id = value
        elif word in KINDS and value.startswith("/"):
            roots[word] = value
        elif word == "left" and kind in KINDS and at.startswith("/"):
            left.append((kind, at))
        else:
            raise CorruptionError(file, text.find(line), f"a line that there is not: {line[:60]!r}")
    if head != _PLACES_HEAD or not id or lines[-1]:
        what = f"expected {_PLACES_HEAD!r}, an id and whole lines, found {text[:60]!r}"
        raise CorruptionError(file, 0, what)
    return Places(id, roots, tuple(left))


def write_places(fs: FileSystem, path: str, places: Places) -> None:
    """PLACES of the data directory, durable."""
    replace_small(fs, path, PLACES, places.text().encode("utf-8", "surrogateescape"))


def owner_of(fs: FileSystem, directory: str) -> tuple[str, str, str]:
    """(kind, store id, data directory) in the OWNER of a directory, "" for what it does not say or
    if there is no OWNER."""
    file = f"{directory}/{OWNER}"
    if not fs.exists(file):
        return "", "", ""
    lines = fs.read(file).decode("utf-8", "surrogateescape").split("\n")
    found = dict([line.partition(" ")[::2] for line in lines])
    return found.get("penstock", "").partition(" ")[0], found.get("id", ""), found.get("data", "")


def placed(fs: FileSystem, path: str) -> FileSystem:
    """`fs` for a store: `path` is its data directory or anything in it. The same `fs` if all of it
    is in one directory.

    OptionError: one of the other directories is not there, or is not this store's. CorruptionError:
    PLACES cannot be read."""
    if isinstance(fs, PlacedFileSystem):
        return fs
    at = fs.real_path(path)
    while at.strip("/"):
        if fs.exists(f"{at}/{PLACES}") and fs.exists(f"{at}/{VHOSTS}"):
            places = read_places(fs, at)
            if places is None or not places.roots:
                return fs
            for kind in places.roots:
                _check_owner(fs, at, places, kind)
            return PlacedFileSystem(fs, path, at, places.roots)
        at = at.rpartition("/")[0]
    return fs


def place_locks(fs: FileSystem, path: str) -> list[Lock]:
    """The locks of the other directories of the store at `path`, taken. LockedError: none is."""
    places = read_places(fs, path)
    locks: list[Lock] = []
    try:
        for root in places.roots.values() if places is not None else ():
            locks.append(fs.lock(f"{root}/LOCK"))  # noqa: PERF401 - some, if one fails
    except BaseException:
        for lock in locks:
            lock.release()
        raise
    return locks


def _check_owner(fs: FileSystem, path: str, places: Places, kind: str) -> None:
    root = places.roots[kind]
    why = ""
    if not fs.is_dir(root):
        why = "there is no such directory"
    elif not fs.exists(f"{root}/{OWNER}"):
        why = f"it has no file {OWNER}"
    else:
        found_kind, id, data = owner_of(fs, root)
        if found_kind != kind:
            why = f"it is the {found_kind} directory of the store at {data}"
        elif id != places.id:
            why = f"it belongs to another store, that at {data}"
    if why:
        expected = f"the {kind} directory of the store at {path}, but {why}; is its disk mounted?"
        raise OptionError(OPTIONS[kind], root, expected)


def check_free(fs: FileSystem, path: str, kind: str, root: str, id: str) -> None:
    """OptionError unless `root` may become the directory of that kind of the store at `path`, whose
    id this is ("": it has none yet): it is missing and its parent is there, or it is empty, or this
    store has begun to use it. Writes nothing."""

    def refuse(expected: str) -> OptionError:
        return OptionError(OPTIONS[kind], root, expected)

    real, real_data = fs.real_path(root), fs.real_path(path)
    for one, other in ((real, real_data), (real_data, real)):
        if f"{one}/".startswith(f"{other.rstrip('/')}/"):
            raise refuse(f"a directory outside the data directory {path}, and not one above it")
    parent = root.rpartition("/")[0] or "/"
    is_there = fs.exists(root)
    if is_there and not fs.is_dir(root):
        raise refuse("a directory, it is a file")
    if not is_there and not fs.is_dir(parent):
        raise refuse(f"a directory whose parent exists, there is no {parent}")
    kind_of_disk = fs.kind(root if is_there else parent)
    if kind_of_disk in NETWORK_KINDS:
        raise refuse(
            f"a directory on a local disk, it is on a network file system ({kind_of_disk})"
        )
    if not is_there:
        return
    found_kind, found_id, data = owner_of(fs, root)
    if fs.exists(f"{root}/{OWNER}"):
        if found_id != id or not id:
            raise refuse(f"a directory of no other store, it belongs to the store at {data}")
        if found_kind != kind:
            raise refuse(f"another directory than the {found_kind} directory of this store")
        return
    foreign = sorted(set(not_of_volume(fs.list(root))) - _OURS_ELSEWHERE)
    if foreign:
        raise refuse(f"an empty directory, it has {foreign[0]!r} in it")


def check_apart(fs: FileSystem, roots: dict[str, str]) -> None:
    """OptionError if one of the directories is in the other, or they are one."""
    if LOG in roots and SPILL in roots:
        log, spill = (fs.real_path(roots[kind]) for kind in KINDS)
        if f"{log}/".startswith(f"{spill}/") or f"{spill}/".startswith(f"{log}/"):
            expected = f"a directory apart from log_directory, which is {roots[LOG]}"
            raise OptionError(OPTIONS[SPILL], roots[SPILL], expected)


class NewPlace:
    """A directory that becomes one of a store's: made when missing, locked, with its OWNER.

    OptionError: that is not possible, for the reason that it has; nothing has changed then. `undo`
    makes it what it was."""

    def __init__(self, fs: FileSystem, path: str, places: Places, kind: str, root: str) -> None:
        self._fs = fs
        self.root = root
        self.is_new: bool = not fs.exists(root)
        self._had_lock: bool = fs.exists(f"{root}/LOCK")
        self.lock: Lock | None = None
        try:
            fs.mkdir(root)
            self.lock = fs.lock(f"{root}/LOCK")
            sync_dir(fs, root.rpartition("/")[0] or "/")
            replace_small(fs, root, OWNER, places.owner(kind, path))
        except OSError as error:
            self.undo()
            expected = f"a directory that can be written and locked: {error.strerror or error}"
            raise OptionError(OPTIONS[kind], root, expected) from error
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Delete what was made here, as far as the disk lets us."""
        fs, root = self._fs, self.root
        try:
            for name in (OWNER + ".new", OWNER):
                if fs.exists(f"{root}/{name}"):
                    fs.unlink(f"{root}/{name}")
            if self.lock is not None:
                self.lock.release()
            if not self._had_lock and fs.exists(f"{root}/LOCK"):
                fs.unlink(f"{root}/LOCK")
            if self.is_new and fs.exists(root):
                fs.rmdir(root)
        except OSError:
            pass  # the error that is raised matters, not what is left


class DataDirectory:
    """An open data directory: holds its lock, and those of the other directories, until `close`.

    Makes it when missing or empty (create=True). log_directory, spill_directory: absolute paths
    where a new store, or one without any vhost, is to have its log and what leaves RAM; the data
    directory itself for there, "" for wherever they are. rng: of the store's id. `fs` is the file
    system for paths in it, see `placed`.

    Errors: NotAStoreError (a file, something else's directory, missing with create=False),
    LockedError, VersionError, CorruptionError, NetworkFileSystemError (locks and syncs of network
    file systems do not promise what we need), OptionError (one of the two directories cannot be
    used, is not this store's, or is another than the one in use; nothing was made then),
    SyncFailedError and OSError while it is made.
    """

    def __init__(
        self, fs: FileSystem, path: str, *, create: bool = True, log_directory: str = "",
        spill_directory: str = "", rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        self.fs = fs
        self.path = path.rstrip("/") or "/"
        self._below = fs
        self._rng = rng or random.SystemRandom()
        self._locks: list[Lock] = []
        given = {LOG: log_directory, SPILL: spill_directory}
        given = {kind: root.rstrip("/") or "/" for kind, root in given.items() if root}
        is_made = fs.exists(self.path + "/VERSION")
        if not create or is_made:
            check_version(fs, self.path)
        self._check_kind()
        wanted = {kind: root for kind, root in given.items() if not self._is_here(root)}
        if not is_made:
            self._check_free(wanted)
        was_there = fs.exists(self.path)
        if not was_there:
            fs.mkdir(self.path)
            fs.sync_dir(self.path.rpartition("/")[0] or ("/" if self.path[0] == "/" else "."))
        elif not fs.is_dir(self.path):
            raise NotAStoreError(self.path, "it is a file, expected a directory")
        foreign = sorted(set(not_of_volume(fs.list(self.path))) - _OURS)
        if foreign and not fs.exists(self.path + "/VERSION"):
            raise NotAStoreError(self.path, f"it is not empty and not ours (it has {foreign[0]!r})")
        self._locks.append(fs.lock(self.path + "/LOCK"))
        try:
            if not fs.exists(self.path + "/VERSION"):
                self._make(wanted)
            else:
                self._open_places(given)
            self.fs = placed(fs, self.path)
        except BaseException as error:
            self.close()
            if isinstance(error, OptionError) and not was_there:
                fs.unlink(self.path + "/LOCK")
                fs.rmdir(self.path)
            raise

    @property
    def places(self) -> dict[str, str]:
        """Kind (LOG, SPILL) -> directory, of what is not in the data directory."""
        return dict(self.fs.roots) if isinstance(self.fs, PlacedFileSystem) else {}

    # ---- making and opening --------------------------------------------------------------------

    def _is_here(self, root: str) -> bool:
        return self._below.real_path(root) == self._below.real_path(self.path)

    def _check_free(self, wanted: dict[str, str]) -> None:
        """OptionError unless all these directories may be used."""
        found = read_places(self._below, self.path) if wanted else None
        for kind, root in wanted.items():
            check_free(self._below, self.path, kind, root, "" if found is None else found.id)
        check_apart(self._below, wanted)

    def _make(self, wanted: dict[str, str]) -> None:
        fs, path = self._below, self.path
        if wanted or fs.exists(f"{path}/{PLACES}"):
            self._take(wanted)
        fs.mkdir(path + "/vhosts")
        sync_dir(fs, path)
        write_version(fs, path, PLACED_FORMAT if wanted else FORMAT)

    def _take(self, wanted: dict[str, str]) -> None:
        """Use these directories, and no others: PLACES with the id, then each with its OWNER, then
        PLACES with all of it. Undone as far as possible if one cannot be used."""
        fs, path = self._below, self.path
        known = read_places(fs, path)
        places = Places(known.id if known is not None else f"{self._rng.getrandbits(128):032x}")
        write_places(fs, path, places)
        made: list[NewPlace] = []
        try:
            for kind, root in wanted.items():
                made.append(NewPlace(fs, fs.real_path(path), places, kind, root))
        except BaseException:
            for one in made:
                one.undo()
            if known is None:
                fs.unlink(f"{path}/{PLACES}")
            raise
        self._locks += [one.lock for one in made if one.lock is not None]
        write_places(fs, path, replace(places, roots=wanted))

    def _open_places(self, given: dict[str, str]) -> None:
        fs, path = self._below, self.path
        places = read_places(fs, path) or Places("")
        wanted: dict[str, str] = {}
        for kind, root in given.items():
            now = places.roots.get(kind, path)
            if fs.real_path(root) != fs.real_path(now):
                if places.roots or places.left or fs.list(f"{path}/{VHOSTS}"):
                    option = f"--{OPTIONS[kind].replace('_', '-')}"
                    expected = (
                        f"{now}, where this store has its {kind} files; leave the option out, or "
                        f"move them: {MOVE} {path} {option} {root}"
                    )
                    raise OptionError(OPTIONS[kind], root, expected)
                wanted[kind] = root
        if wanted:
            self._check_free(wanted)
            self._take(wanted)
            write_version(fs, path, PLACED_FORMAT)
            return
        for kind in places.roots:
            _check_owner(fs, path, places, kind)
        self._locks += place_locks(fs, path)
        for kind, root in places.roots.items():
            self._check_path(places, kind, root)

    def _check_path(self, places: Places, kind: str, root: str) -> None:
        """OptionError if this is a copy of the store that `root` belongs to. If the data directory
        has another path than it had, OWNER is told."""
        fs, path = self._below, self._below.real_path(self.path)
        _, _, data = owner_of(fs, root)
        if data == path:
            return
        if data and fs.exists(f"{data}/{PLACES}"):
            other = read_places(fs, data)
            if other is not None and other.id == places.id:
                expected = (
                    f"a directory of the store at {path}, which is a copy of the one at {data}, "
                    "and that one uses it; copy a store with 'penstock store backup'"
                )
                raise OptionError(OPTIONS[kind], root, expected)
        replace_small(fs, root, OWNER, places.owner(kind, path))

    def _check_kind(self) -> None:
        at = self.path
        while not self.fs.exists(at) and "/" in at.rstrip("/"):
            at = at.rpartition("/")[0] or "/"
        kind = self.fs.kind(at if self.fs.exists(at) else ".")
        if kind in NETWORK_KINDS:
            raise NetworkFileSystemError(self.path, kind)

    def vhost_path(self, name: bytes) -> str:
        """The directory of a vhost, made when missing."""
        fs = self.fs
        path = f"{self.path}/vhosts/{hash_name(name)}"
        if not fs.exists(path + "/.vhost"):
            fs.mkdir(path)
            write_small(fs, path + "/.vhost.new", name + b"\n")
            fs.rename(path + "/.vhost.new", path + "/.vhost")
            sync_dir(fs, path)
            sync_dir(fs, self.path + "/vhosts")
        return path

    def vhost_names(self) -> list[bytes]:
        """The names of the vhosts that are here. CorruptionError if one cannot be told: to start
        without it would be to lose it without a word."""
        names = []
        for directory in self.fs.list(self.path + "/vhosts"):
            at = f"{self.path}/vhosts/{directory}"
            stub = at + "/.vhost"
            if self.fs.exists(stub):
                name = self.fs.read(stub).removesuffix(b"\n")
                if hash_name(name) != directory:
                    what = f"expected the name with hash {directory}, found {name[:60]!r}"
                    raise CorruptionError(stub, 0, what)
                names.append(name)
            elif self.fs.exists(at + "/CURRENT"):
                raise CorruptionError(stub, 0, "it is missing, and the vhost has a checkpoint")
        return names

    def close(self) -> None:
        """Give the locks back."""
        for lock in self._locks:
            lock.release()
        self._locks = []


MARK = "UNFINISHED"


class FreshDirectory:
    """Begins at once. Make vhosts' directories with `vhost`, then `finish`."""

    def __init__(self, fs: FileSystem, path: str, why: str) -> None:
        """why: what is being made, for whoever finds it unfinished. PathNotFreeError,
        NotAStoreError (no parent), LockedError, NetworkFileSystemError, OSError."""
        self.fs = fs
        self.path = path.rstrip("/")
        parent = self.path.rpartition("/")[0] or ("/" if self.path.startswith("/") else ".")
        if fs.exists(self.path):
            if not fs.is_dir(self.path):
                raise PathNotFreeError(self.path, "expected a free path, it is a file")
            names = not_of_volume(fs.list(self.path))
            if "VERSION" in names:
                text = "expected a free path, it is a store of Penstock already"
                raise PathNotFreeError(self.path, text)
            if set(names) - {"LOCK"} and MARK not in names:
                text = f"expected a free path, it has {names[-1]!r} in it"
                raise PathNotFreeError(self.path, text)
        elif not fs.is_dir(parent):
            raise NotAStoreError(parent, "there is no such directory")
        kind = fs.kind(parent)
        if kind in NETWORK_KINDS:
            raise NetworkFileSystemError(self.path, kind)
        fs.mkdir(self.path)
        fs.sync_dir(parent)
        self._lock: Lock = fs.lock(self.path + "/LOCK")
        try:
            write_small(fs, f"{self.path}/{MARK}", f"{why}\n".encode())
            fs.sync_dir(self.path)
            delete_tree(fs, self.path + "/vhosts")
            fs.mkdir(self.path + "/vhosts")
            fs.sync_dir(self.path)
        except BaseException:
            self.abandon()
            raise

    def vhost(self, name: bytes) -> str:
        """The directory of a vhost, made and synced, with its `.vhost`."""
        fs = self.fs
        path = f"{self.path}/vhosts/{hash_name(name)}"
        fs.mkdir(path)
        write_small(fs, path + "/.vhost", name + b"\n")
        fs.sync_dir(path)
        fs.sync_dir(self.path + "/vhosts")
        return path

    def finish(self) -> None:
        """Everything in it is synced: it is a data directory now."""
        fs = self.fs
        fs.sync_dir(self.path + "/vhosts")
        write_small(fs, self.path + "/VERSION.new", f"penstock {FORMAT}\n".encode())
        fs.rename(self.path + "/VERSION.new", self.path + "/VERSION")
        fs.sync_dir(self.path)
        fs.unlink(f"{self.path}/{MARK}")
        fs.sync_dir(self.path)
        self._lock.release()

    def abandon(self) -> None:
        """Leave it unfinished."""
        self._lock.release()


def delete_tree(fs: FileSystem, path: str) -> None:
    """Delete a directory with everything in it; nothing happens when there is none."""
    if not fs.exists(path):
        return
    for name in fs.list(path):
        inner = f"{path}/{name}"
        if fs.is_dir(inner):
            delete_tree(fs, inner)
        else:
            fs.unlink(inner)
    fs.rmdir(path)


QUEUE_NAME: Final = ".queue_name"
PART: Final = b"\0"  # in a name, before what distinguishes parts of one queue
_FORM: Final = re.compile(rb"VHOST: [^\n]*\nQUEUE: ([^\n]*)\n?")


def text_of(vhost: bytes, queue: bytes) -> bytes:
    """What stands in the file."""
    return b"VHOST: %b\nQUEUE: %b\n" % (_escaped(vhost), _escaped(queue))


def old_text_of(queue: bytes) -> bytes:
    """The same as older versions wrote it."""
    return queue + b"\n"


def name_in(text: bytes, directory: str) -> bytes:
    """The queue's name in the text of a directory's file, in whichever form it is."""
    old = text.removesuffix(b"\n")
    found = _FORM.fullmatch(text)
    if found is None or _is_named_after(directory, old):
        return old
    name = escaping.unescaped(found[1].decode("utf-8", "surrogateescape"))
    return name.encode("utf-8", "surrogateescape")


def queue_name(fs: FileSystem, directory: str) -> bytes:
    """The name in a queue's directory, b"" if it is not the one that the directory is named
    after."""
    path = f"{directory}/{QUEUE_NAME}"
    if not fs.exists(path):
        return b""
    name = name_in(fs.read(path), directory)
    return name if _is_named_after(directory, name) else b""


def directories_of(fs: FileSystem, vhost_path: str, queue: bytes) -> list[str]:
    """The directories of a queue or stream of this name, with those of all its parts, sorted. One
    that was deleted keeps its directory until the next checkpoint. Takes no lock."""
    found = []
    for kind in ("queues", "streams"):
        parent = f"{vhost_path}/{kind}"
        for entry in sorted(fs.list(parent)) if fs.is_dir(parent) else []:
            path = f"{parent}/{entry}"
            name = queue_name(fs, path)
            if name.partition(PART)[0] == queue or (not name and _is_named_after(path, queue)):
                found.append(path)
    return found


def _is_named_after(directory: str, name: bytes) -> bool:
    return hash_name(name) == directory.rpartition("/")[2].partition(".")[0]


def _escaped(name: bytes) -> bytes:
    return escaping.escaped(name.decode("utf-8", "surrogateescape")).encode()
