"""The data directory: lock, version, and where a vhost or a queue has its files.

    data/
      LOCK                  held by the one process that works here; says which
      VERSION               "penstock <format>"
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
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from penstock.errors import (
    CorruptionError,
    NetworkFileSystemError,
    NotAStoreError,
    SyncFailedError,
    VersionError,
)
from penstock.storage.filesystem import NETWORK_KINDS, FileSystem, Lock

FORMAT: Final = 1
_PREFIX: Final = "penstock "
_OURS: Final = frozenset({"LOCK", "VERSION", "VERSION.new", "vhosts"})
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


def check_version(fs: FileSystem, path: str) -> None:
    """NotAStoreError, VersionError or CorruptionError unless `path` is a data directory of ours."""
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
        return
    if found.startswith(_PREFIX) and found[len(_PREFIX) :].isdigit():
        raise VersionError(version, expected, found)
    raise CorruptionError(version, 0, f"expected {expected!r}, found {found[:40]!r}")


class DataDirectory:
    """An open data directory: holds its lock until `close`.

    Makes it when missing or empty (create=True). Errors: NotAStoreError (a file, something else's
    directory, missing with create=False), LockedError, VersionError, CorruptionError,
    NetworkFileSystemError (locks and syncs of network file systems do not promise what we need),
    SyncFailedError and OSError while it is made.
    """

    def __init__(self, fs: FileSystem, path: str, *, create: bool = True) -> None:
        self.fs = fs
        self.path = path.rstrip("/") or "/"
        if not create or fs.exists(self.path + "/VERSION"):
            check_version(fs, self.path)
        self._check_kind()
        if not fs.exists(self.path):
            fs.mkdir(self.path)
            fs.sync_dir(self.path.rpartition("/")[0] or ("/" if self.path[0] == "/" else "."))
        elif not fs.is_dir(self.path):
            raise NotAStoreError(self.path, "it is a file, expected a directory")
        foreign = sorted(set(not_of_volume(fs.list(self.path))) - _OURS)
        if foreign and not fs.exists(self.path + "/VERSION"):
            raise NotAStoreError(self.path, f"it is not empty and not ours (it has {foreign[0]!r})")
        self._lock: Lock = fs.lock(self.path + "/LOCK")
        try:
            if not fs.exists(self.path + "/VERSION"):
                self._make()
        except BaseException:
            self._lock.release()
            raise

    def _make(self) -> None:
        fs, path = self.fs, self.path
        fs.mkdir(path + "/vhosts")
        sync_dir(fs, path)
        write_small(fs, path + "/VERSION.new", f"{_PREFIX}{FORMAT}\n".encode())
        fs.rename(path + "/VERSION.new", path + "/VERSION")
        sync_dir(fs, path)

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
        """Give the lock back."""
        self._lock.release()
