"""FreshDirectory: a data directory in the making, for a backup or for what was salvaged.

Nobody may take a half-written copy for a store, so while it is being made there is a file
`UNFINISHED` in it and no `VERSION`:

    UNFINISHED synced -> everything else, each file and directory synced -> VERSION -> no UNFINISHED

Without VERSION a server refuses the directory and names UNFINISHED as what is not its own; the next
backup or salvage to the same place deletes what it finds and begins anew. With VERSION it is whole.
The path must be free: missing, empty, unfinished, or with nothing in it but what a volume brings
(`lost+found`). Anything else is a PathNotFreeError, and is left as it is.

Failure: OSErrors as they come. `abandon` leaves it unfinished and gives its lock back.
"""

from penstock.errors import NetworkFileSystemError, NotAStoreError, PathNotFreeError
from penstock.storage.data_directory import FORMAT, hash_name, not_of_volume, write_small
from penstock.storage.filesystem import NETWORK_KINDS, FileSystem, Lock

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
