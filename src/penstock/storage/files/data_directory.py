"""The data directory: its locks, its version, and where a vhost or a queue has its files.

    data/
      LOCK                  held by the one process that works here; says which
      VERSION               "penstock <format>"
      PLACES                which parts are in other directories; missing: none
      vhosts/<hash>/        one directory per vhost, itself locked
        .vhost LOCK         the vhost's name; an empty file to lock
        CURRENT checkpoint-<n>
        wal/ msg_store_persistent/ msg_store_transient/ queues/<hash>.<queue number>/
        streams/<hash>.<queue number>/

Names never become paths: a directory is named by the first 16 hex digits of the name's SHA-256. The
first 8 bytes of a vhost's hash are its number, which seeds the checksums of all its files, so that
a file of another vhost never verifies.

`.vhost`, and `.queue_name` in the directory of a queue or stream, have the name for people, for
salvage and for readers by path, as in RabbitMQ. `.queue_name` is

    VHOST: <name of the vhost>\\n
    QUEUE: <name of the queue>\\n

with each name as `escaping.escaped` writes it: UTF-8, unprintable bytes as `\\xNN`, backslashes
twice, so that a name has no line feed. A part of a queue with priorities or delays, and a partition
of a stream, has a directory of its own; in its name a zero byte and the part follow. Earlier
versions wrote the queue's name as it is and a line feed. Both are read: the hash in the directory's
name says which it is, and the next write into the queue's files writes the new form. Nothing that
lives depends on this file [1]: a crash may have cut it, and a name that does not have its
directory's hash is ignored.

A file is durable only once its directory is synced, so everything made here is synced from the
inside out, VERSION last. A directory with VERSION is whole. One with only our own beginnings is
made again. One with anything else is not ours and is refused. What a mounted volume brings
(`lost+found`) stays and does not count.

Other directories. Two kinds of files may be on other disks: the log (`log_directory`), and the
messages that leave RAM (`spill_directory`). PlacedFileSystem maps the usual paths to them:

    below <data>/vhosts/<hash>/                        is in
    -------------------------------------------------  --------------------------------------
    wal  CURRENT  checkpoint-<n>  reserve              <log_directory>/<hash>/
    queues  msg_store_persistent  msg_store_transient  <spill_directory>/<hash>/
    streams  leases  staging  spill_reserve
    .vhost  LOCK  and any other name                   the data directory itself

Checkpoints are with the log because each says where the log continues, and the reserve because it
is room for both. No file is renamed or linked from one directory to another. PLACES says where the
directories are, and which store this is:

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
other directories, and names them once they have their OWNER. It alone decides where a file is: what
else an interrupted move has left is not seen [13]. A directory that PLACES names must have the
OWNER of this store. If it does not, its disk is not mounted or was replaced, and the store is not
opened, because it would begin without its messages. VERSION is "penstock 2" while anything is
elsewhere: earlier versions of Penstock would ignore PLACES and take the store for a new one.

A copy of a data directory names the same other directories. The one whose path is not in OWNER is
refused while the other one exists; if a data directory was moved, its new path is written into
OWNER.

A new copy. FreshDirectory makes a data directory for a backup or a salvage. Nobody may take a
half-written copy for a store, so until it is whole it has a file UNFINISHED and no VERSION:

    UNFINISHED synced -> everything else, each file and directory synced -> VERSION -> no UNFINISHED

Without VERSION a server refuses the directory and names UNFINISHED as foreign. The next backup or
salvage to the same path deletes what it finds and begins again.
"""

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from contextlib import closing
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
    has_no_descriptor,
)
from penstock.storage.files.filesystem import (
    NETWORK_KINDS,
    Completions,
    File,
    FileSystem,
    Lock,
    Names,
    whole_path,
)

# ---- files and names ----------------------------------------------------------------------------


def hash_name(name: bytes) -> str:
    """Return the directory name for a vhost's or queue's name."""
    return hashlib.sha256(name).hexdigest()[:16]


def vhost_number(name: bytes) -> int:
    """Return 64 bits of the name's hash, which seed the checksums of all files of the vhost."""
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big")


def write_small(fs: FileSystem, path: str, data: bytes) -> None:
    """Write a small file whole and sync it; the caller syncs its directory. OSError: it could not
    be written. SyncFailedError: the content is unknown [10]."""
    with closing(fs.open(path, create=True)) as file:
        file.truncate(0)
        file.pwrite(data, 0)
        try:
            file.sync()
        except OSError as error:
            raise SyncFailedError(path, error) from error


def name_fault(stub: str, hashed: str, found: bytes | None) -> CorruptionError:
    """Return the error for a file with a vhost's name that has another one; None: is missing.
    hashed: the hash of the right one."""
    given = "it is missing" if found is None else f"found {found[:60]!r}"
    advice = (
        "write the name into it if you know it; a broker that knows the vhost does at its start"
    )
    return CorruptionError(stub, 0, f"expected the name with hash {hashed}, {given}; {advice}")


def sync_dir(fs: FileSystem, path: str) -> None:
    """Make the names in a directory durable. SyncFailedError [10]; OSError if no descriptor is left
    to open it with, so that no sync was tried."""
    try:
        fs.sync_dir(path)
    except OSError as error:
        if has_no_descriptor(error):
            raise
        raise SyncFailedError(path, error) from error


def replace_small(fs: FileSystem, directory: str, name: str, data: bytes) -> None:
    """Replace a small file in `directory`, durably: a crash leaves its old or its new content."""
    write_small(fs, f"{directory}/{name}.new", data)
    fs.rename(f"{directory}/{name}.new", f"{directory}/{name}")
    sync_dir(fs, directory)


def delete_tree(fs: FileSystem, path: str) -> None:
    """Delete a directory with everything in it, if it exists."""
    if not fs.exists(path):
        return
    for name in fs.list(path):
        inner = f"{path}/{name}"
        if fs.is_dir(inner):
            delete_tree(fs, inner)
        else:
            fs.unlink(inner)
    fs.rmdir(path)


# ---- names of queues ----------------------------------------------------------------------------

QUEUE_NAME: Final = ".queue_name"
PART: Final = b"\0"  # in a name, before what distinguishes parts of one queue
_FORM: Final = re.compile(rb"VHOST: [^\n]*\nQUEUE: ([^\n]*)\n?")


def text_of(vhost: bytes, queue: bytes) -> bytes:
    """Encode `.queue_name`."""
    return b"VHOST: %b\nQUEUE: %b\n" % (_escaped(vhost), _escaped(queue))


def old_text_of(queue: bytes) -> bytes:
    """Encode `.queue_name` as older versions did."""
    return queue + b"\n"


def name_in(text: bytes, directory: str) -> bytes:
    """Decode `.queue_name`, in either form."""
    old = text.removesuffix(b"\n")
    found = _FORM.fullmatch(text)
    if found is None or _is_named_after(directory, old):
        return old
    name = escaping.unescaped(found[1].decode("utf-8", "surrogateescape"))
    return name.encode("utf-8", "surrogateescape")


def queue_title(name: bytes) -> str:
    """Return a queue's name for people. A part of a queue with priorities or delays is a queue of
    its own on disk; the text after a zero byte in its name is the part."""
    whole, _, part = name.decode("utf-8", "replace").partition("\0")
    return f"{whole} (part {part})" if part else whole


def queue_name(fs: FileSystem, directory: str) -> bytes:
    """Read the name in a queue's directory. Returns b"" if the directory has another hash."""
    path = f"{directory}/{QUEUE_NAME}"
    if not fs.exists(path):
        return b""
    name = name_in(fs.read(path), directory)
    return name if _is_named_after(directory, name) else b""


def directories_of(fs: FileSystem, vhost_path: str, queue: bytes) -> list[str]:
    """Return the directories of a queue or stream of this name and of all its parts, sorted. A
    deleted one keeps its directory until the next checkpoint. Takes no lock."""
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


# ---- other directories --------------------------------------------------------------------------

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
    """Return LOG or SPILL for a name in a vhost's directory, "" for one that stays in the data
    directory."""
    for kind, parts in PARTS.items():
        for part in parts:
            if name == part or (part.endswith("*") and name.startswith(part[:-1])):
                return kind
    return ""


class PlacedFileSystem(FileSystem):
    """The file system `below`, with the parts of the store at `data` in several directories.

    roots: LOG and SPILL -> directory, of those that are elsewhere. `data` has no symbolic links.
    path: a path in it as the caller spells it, so that other paths spelled like it are recognised.

    A vhost's directory is up to three. `list` returns the names of each that belong there. `mkdir`,
    `rmdir` and `sync_dir` of it are done in all three, and `sync_dir` of `<data>/vhosts` in both
    other directories too. The others are made and removed first, and durably, so that a vhost in
    the data directory always has them and a deleted one has none [13]. `free_bytes` of the data
    directory or a vhost's is that of the disk with the least. Errors have the path where the file
    really is.
    """

    def __init__(self, below: FileSystem, path: str, data: str, roots: dict[str, str]) -> None:
        self.below = below
        self.roots = dict(roots)
        self._vhosts = f"{data.rstrip('/')}/{VHOSTS}"
        self._data = data
        self._spelled = whole_path(path)
        self._real = below.real_path(path)

    @property
    def on_complete(self) -> Callable[[], None] | None:
        """Callback of the file system below."""
        return self.below.on_complete

    @on_complete.setter
    def on_complete(self, wake: Callable[[], None] | None) -> None:
        self.below.on_complete = wake

    # ---- paths ---------------------------------------------------------------------------------

    def _inside(self, path: str) -> str:
        """Return the path without symbolic links, if it is below the one that was spelled."""
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
        """Return (kind, directory) of the other directories of a vhost, or of all vhosts; empty for
        any other path."""
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
        # Not the data directory itself, whose free_bytes is the least of all.
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
            # It is made before `.vhost`. If it is missing the vhost is half made or half deleted.
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
                # Durable before `.vhost` says that the vhost is whole.
                self.below.sync_dir(self.roots[kind])
        self.below.mkdir(self.place(path))

    def rmdir(self, path: str) -> None:
        if self._inside(path) != self._vhosts:
            for kind, directory in self._others(path):
                if self.below.exists(directory):
                    self.below.rmdir(directory)
                    # Durable before the vhost is deleted: one of the same name would find it.
                    self.below.sync_dir(self.roots[kind])
        self.below.rmdir(self.place(path))

    def sync_dir(self, path: str) -> None:
        for _, directory in self._others(path):
            self.below.sync_dir(directory)
        self.below.sync_dir(self.place(path))

    # ---- the rest ------------------------------------------------------------------------------

    def kind(self, path: str) -> str:
        return self.below.kind(self.place(path))

    @property
    def is_short(self) -> bool:
        """Of the file system below."""
        return self.below.is_short

    @is_short.setter
    def is_short(self, is_short: bool) -> None:
        self.below.is_short = is_short

    def restore_reserve(self) -> bool:
        return self.below.restore_reserve()

    def lock(self, path: str) -> Lock:
        return self.below.lock(self.place(path))

    def submit(self, op: Callable[[], object]) -> int:
        return self.below.submit(op)

    def completed(self, wait: bool) -> Completions:
        return self.below.completed(wait)

    def close(self) -> None:
        self.below.close()


FORMAT: Final = 1
PLACED_FORMAT: Final = 2  # of a store with other directories
PLACES: Final = "PLACES"
OWNER: Final = "OWNER"
OPTIONS: Final = {LOG: "log_directory", SPILL: "spill_directory"}
MOVE: Final = "penstock store move"
_PREFIX: Final = "penstock "
_PLACES_HEAD: Final = "penstock places 1"
_OURS: Final = frozenset({"LOCK", "VERSION", "VERSION.new", "vhosts", PLACES, PLACES + ".new"})
_OURS_ELSEWHERE: Final = frozenset({"LOCK", OWNER, OWNER + ".new"})


@dataclass(frozen=True, slots=True)
class Places:
    """The content of PLACES. roots: kind -> directory, of the kinds that are elsewhere. left:
    (kind, directory) of those that a move has left and whose old files are not all deleted."""

    id: str
    roots: dict[str, str] = field(default_factory=dict)
    left: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """Encode the file."""
        lines = [_PLACES_HEAD, f"id {self.id}"]
        lines += [f"{kind} {self.roots[kind]}" for kind in KINDS if kind in self.roots]
        lines += [f"left {kind} {path}" for kind, path in self.left]
        return "".join([line + "\n" for line in lines])

    def owner(self, kind: str, data: str) -> bytes:
        """Encode OWNER of the directory of that kind."""
        text = f"{_PREFIX}{kind} 1\nid {self.id}\ndata {data}\n"
        return text.encode("utf-8", "surrogateescape")


def read_places(fs: FileSystem, path: str) -> Places | None:
    """Read PLACES of the data directory; None if there is no such file. CorruptionError."""
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
            raise CorruptionError(file, text.find(line), f"an unknown line: {line[:60]!r}")
    if head != _PLACES_HEAD or not id or lines[-1]:
        what = f"expected {_PLACES_HEAD!r}, an id and whole lines, found {text[:60]!r}"
        raise CorruptionError(file, 0, what)
    return Places(id, roots, tuple(left))


def write_places(fs: FileSystem, path: str, places: Places) -> None:
    """Write PLACES of the data directory, durably."""
    replace_small(fs, path, PLACES, places.text().encode("utf-8", "surrogateescape"))


def owner_of(fs: FileSystem, directory: str) -> tuple[str, str, str]:
    """Return (kind, store id, data directory) in the OWNER of a directory, "" for what is missing,
    also if there is no OWNER."""
    file = f"{directory}/{OWNER}"
    if not fs.exists(file):
        return "", "", ""
    lines = fs.read(file).decode("utf-8", "surrogateescape").split("\n")
    found = dict([line.partition(" ")[::2] for line in lines])
    return found.get("penstock", "").partition(" ")[0], found.get("id", ""), found.get("data", "")


def placed(fs: FileSystem, path: str) -> FileSystem:
    """Return the file system for a store: `path` is its data directory or anything in it. The same
    `fs` if all of it is in one directory.

    OptionError: one of the other directories is missing, or is not this store's. CorruptionError:
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
    """Take the locks of the other directories of the store at `path`, or none (LockedError)."""
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
    """Raise OptionError unless `root` may become the directory of that kind of the store at `path`
    with this id ("": it has none yet). It may if it is missing and its parent exists, if it is
    empty, or if this store has begun to use it. Writes nothing."""

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
    """Raise OptionError if one of the directories is in the other, or they are the same."""
    if LOG in roots and SPILL in roots:
        log, spill = (fs.real_path(roots[kind]) for kind in KINDS)
        if f"{log}/".startswith(f"{spill}/") or f"{spill}/".startswith(f"{log}/"):
            expected = f"a directory apart from log_directory, which is {roots[LOG]}"
            raise OptionError(OPTIONS[SPILL], roots[SPILL], expected)


class NewPlace:
    """A directory that becomes one of a store's: made if it is missing, locked, with its OWNER.

    OptionError: that is not possible, and nothing has changed. `undo` restores what was there."""

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
        """Delete what was made here. An OSError is ignored."""
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
            pass  # the error that is being raised matters


# What a fresh volume brings: ext4, snapshots (NetApp, ZFS, Btrfs), quotas, and the first characters
# of names from Kubernetes and desktops.
_OF_VOLUMES: Final = frozenset(
    {"lost+found", ".snapshot", ".snapshots", ".zfs", "aquota.group", "aquota.user"}
)
_OF_VOLUMES_BEGIN: Final = ("..", ".Trash-")


# ---- the directory ------------------------------------------------------------------------------


def not_of_volume(names: Sequence[str]) -> list[str]:
    """Return the names in a directory without those that a freshly mounted volume brings."""
    return [
        name for name in names if name not in _OF_VOLUMES and not name.startswith(_OF_VOLUMES_BEGIN)
    ]


def write_version(fs: FileSystem, path: str, number: int) -> None:
    """Write VERSION of the data directory, durably."""
    replace_small(fs, path, "VERSION", f"{_PREFIX}{number}\n".encode())


def check_version(fs: FileSystem, path: str) -> int:
    """Return the format of the data directory `path`, FORMAT or PLACED_FORMAT. NotAStoreError,
    VersionError or CorruptionError if it is not one of ours."""
    if not fs.exists(path):
        raise NotAStoreError(path, "there is no such directory")
    if not fs.is_dir(path):
        raise NotAStoreError(path, "it is a file, expected a data directory")
    version = path + "/VERSION"
    if not fs.exists(version):
        raise NotAStoreError(
            path, "it has no VERSION file, so it is not a data directory of penstock"
        )
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


class DataDirectory:
    """An open data directory: has its lock, and those of the other directories, until `close`.

    create: make it if it is missing or empty. log_directory, spill_directory: absolute paths where
    a new store, or one without any vhost, has its log and what leaves RAM; the data directory
    itself for there, "" for wherever they are. rng: makes the store's id. fs: the file system for
    paths in it, see `placed`.

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
        """The other directories: kind (LOG, SPILL) -> directory."""
        return dict(self.fs.roots) if isinstance(self.fs, PlacedFileSystem) else {}

    # ---- making and opening --------------------------------------------------------------------

    def _is_here(self, root: str) -> bool:
        return self._below.real_path(root) == self._below.real_path(self.path)

    def _check_free(self, wanted: dict[str, str]) -> None:
        """Raise OptionError unless all these directories may be used."""
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
        """Use exactly these directories: write PLACES with the id, then the OWNER of each, then
        PLACES with all of them. Undone as far as possible if one cannot be used."""
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
        """Raise OptionError if this is a copy of the store that `root` belongs to. Write the path
        of the data directory into OWNER if it has changed."""
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
        """Return the directory of a vhost, which is made if it is missing."""
        fs = self.fs
        path = f"{self.path}/vhosts/{hash_name(name)}"
        if not fs.exists(path + "/.vhost"):
            fs.mkdir(path)
            write_small(fs, path + "/.vhost.new", name + b"\n")
            fs.rename(path + "/.vhost.new", path + "/.vhost")
            sync_dir(fs, path)
            sync_dir(fs, self.path + "/vhosts")
        return path

    def mend_name(self, name: bytes) -> CorruptionError | None:
        """Write the file with this vhost's name again if it has another name, or none, and the
        vhost's directory is there. Return what was wrong with it."""
        fs = self.fs
        path = f"{self.path}/vhosts/{hash_name(name)}"
        if not fs.is_dir(path):
            return None
        fault = self._name_fault(path)
        if fault is not None:
            replace_small(fs, path, ".vhost", name + b"\n")
        return fault

    def vhost_names(self, faults: list[CorruptionError] | None = None) -> list[bytes]:
        """Return the names of the vhosts. One that cannot be read is added to `faults`, if they are
        given, else raised (CorruptionError): a copy without that vhost would lose it silently."""
        fs = self.fs
        names = []
        for directory in fs.list(self.path + "/vhosts"):
            at = f"{self.path}/vhosts/{directory}"
            fault = self._name_fault(at)
            if fault is None and fs.exists(at + "/.vhost"):
                names.append(fs.read(at + "/.vhost").removesuffix(b"\n"))
            elif fault is not None and faults is None:
                raise fault
            elif fault is not None and faults is not None:
                faults.append(fault)
        return names

    def _name_fault(self, path: str) -> CorruptionError | None:
        """Return what is wrong with the name of the vhost with this directory."""
        fs = self.fs
        stub = path + "/.vhost"
        directory = path.rpartition("/")[2]
        if not fs.exists(stub):
            return name_fault(stub, directory, None) if fs.exists(path + "/CURRENT") else None
        name = fs.read(stub).removesuffix(b"\n")
        return name_fault(stub, directory, name) if hash_name(name) != directory else None

    def close(self) -> None:
        """Release the locks."""
        for lock in self._locks:
            lock.release()
        self._locks = []


MARK = "UNFINISHED"


class FreshDirectory:
    """A data directory in the making. Make vhosts' directories with `vhost`, then call `finish`.

    The path must be missing, empty, unfinished, or have only what a volume brings. Anything else is
    a PathNotFreeError, and is left as it is.
    """

    def __init__(self, fs: FileSystem, path: str, why: str) -> None:
        """Make the directory. why: what is being made, written into UNFINISHED. PathNotFreeError,
        LockedError, NetworkFileSystemError, OSError."""
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
            text = f"expected a path in a directory, there is no {parent}"
            raise PathNotFreeError(self.path, text, "make it first")
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
        """Make and sync the directory of a vhost, with its `.vhost`. Returns its path."""
        fs = self.fs
        path = f"{self.path}/vhosts/{hash_name(name)}"
        fs.mkdir(path)
        write_small(fs, path + "/.vhost", name + b"\n")
        fs.sync_dir(path)
        fs.sync_dir(self.path + "/vhosts")
        return path

    def finish(self) -> None:
        """Make it a data directory. Everything in it is synced already."""
        fs = self.fs
        fs.sync_dir(self.path + "/vhosts")
        write_small(fs, self.path + "/VERSION.new", f"penstock {FORMAT}\n".encode())
        fs.rename(self.path + "/VERSION.new", self.path + "/VERSION")
        fs.sync_dir(self.path)
        fs.unlink(f"{self.path}/{MARK}")
        fs.sync_dir(self.path)
        self._lock.release()

    def abandon(self) -> None:
        """Leave it unfinished and release its lock."""
        self._lock.release()
