"""Offline: a store that nobody is using, held by its locks, to be looked at or copied.

What the tools of `penstock store` share: which directory was meant (a whole data directory, or one
vhost's), the locks of it, and the vhosts in it with the numbers that seed their checksums. A tool
must get at a damaged store too, so what is wrong with `VERSION` or a `.vhost` is a *fault*, told
and not raised: a vhost's number is what its directory's name says, and if that is no such name,
what the headers of its files say. Its name, if `.vhost` is lost, is the one with that hash among
those that are handed in and `/`, which every box and every new broker has.

The locks are real, LOCK of the data directory and of each vhost: LockedError says who has them.
Apart from the text in these lock files nothing is written.

Failure: NotAStoreError when there is nothing of ours; LockedError; OSError. A VERSION that is whole
and of another version is a VersionError: other formats are not guessed at.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import CorruptionError, NotAStoreError
from penstock.storage.data_directory import check_version, place_locks, placed, vhost_number
from penstock.storage.filesystem import FileSystem, Lock

USUAL_NAMES = (b"/",)
_HEADER = struct.Struct(">4sHHQ")  # how checkpoints, log segments and store files begin


@dataclass(frozen=True, slots=True)
class Vhost:
    """One vhost's directory. name: what `.vhost` says, b"" if that is lost."""

    path: str
    name: bytes
    number: int

    def title(self) -> str:
        """For people."""
        return self.name.decode("utf-8", "replace") or f"{self.number:016x}"


class Offline:
    """The locked store at `path`; `close` (or the end of `with`) gives the locks back. names: that
    vhosts may have, for those that have lost their `.vhost`."""

    def __init__(self, fs: FileSystem, path: str, names: Sequence[bytes] = ()) -> None:
        self.fs = placed(fs, path)
        self._names = (*names, *USUAL_NAMES)
        self.path = path.rstrip("/") or "/"
        self.faults: list[CorruptionError] = []
        self.vhosts: list[Vhost] = []
        self._locks: list[Lock] = []
        self.is_data_directory = self._look()
        try:
            if self.is_data_directory:
                self._locks.append(fs.lock(self.path + "/LOCK"))
                self._locks += place_locks(fs, self.path)
                directories = [f"{self.path}/vhosts/{d}" for d in self._directories()]
            else:
                directories = [self.path]
            for directory in directories:
                self._add(directory)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Offline":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the locks back; a second call does nothing."""
        for lock in self._locks:
            lock.release()
        self._locks = []

    def _look(self) -> bool:
        """Whether it is a data directory; else it is a vhost's. NotAStoreError if neither."""
        fs, path = self.fs, self.path
        if is_vhost(fs, path):
            return False
        try:
            check_version(fs, path)
        except CorruptionError as error:
            self.faults.append(error)
        except NotAStoreError:
            if not fs.is_dir(path) or fs.exists(path + "/UNFINISHED"):
                raise
            found = [d for d in self._directories() if is_vhost(fs, f"{path}/vhosts/{d}")]
            if not found:
                raise
            self.faults.append(CorruptionError(path + "/VERSION", 0, "it is missing"))
        return True

    def _directories(self) -> list[str]:
        parent = self.path + "/vhosts"
        return self.fs.list(parent) if self.fs.is_dir(parent) else []

    def _add(self, directory: str) -> None:
        fs = self.fs
        if not is_vhost(fs, directory):
            return
        self._locks.append(fs.lock(directory + "/LOCK"))
        stub = directory + "/.vhost"
        has_stub = fs.exists(stub)
        name = fs.read(stub).removesuffix(b"\n") if has_stub else b""
        number = _number_of(directory.rpartition("/")[2])
        is_named = number >= 0
        if number < 0:
            number = _number_in_headers(fs, directory)
        if number < 0:
            number = vhost_number(name)
        if not has_stub and is_named:
            self.faults.append(CorruptionError(stub, 0, "it is missing"))
        elif has_stub and vhost_number(name) != number:
            what = f"expected the name with hash {number:016x}, found {name[:60]!r}"
            self.faults.append(CorruptionError(stub, 0, what))
            name = b""
        if vhost_number(name) != number:
            name = next((one for one in self._names if vhost_number(one) == number), b"")
        self.vhosts.append(Vhost(directory, name, number))


def is_vhost(fs: FileSystem, path: str) -> bool:
    """Whether it looks like a vhost's directory, damaged or not."""
    return any(fs.exists(f"{path}/{name}") for name in (".vhost", "CURRENT", "wal"))


def _number_of(name: str) -> int:
    """The number of a vhost whose directory has this name, or -1."""
    if len(name) != 16 or not all(digit in "0123456789abcdef" for digit in name):
        return -1
    return int(name, 16)


def _number_in_headers(fs: FileSystem, directory: str) -> int:
    """The vhost's number as most files' headers have it, or -1."""
    votes: dict[int, int] = {}
    for part in ("", "/wal", "/msg_store_persistent"):
        at = directory + part
        for name in fs.list(at) if fs.is_dir(at) else []:
            path = f"{at}/{name}"
            if fs.is_dir(path):
                continue
            file = fs.open(path)
            try:
                head = file.pread(_HEADER.size, 0)
            finally:
                file.close()
            if len(head) == _HEADER.size and head[:4] in (b"PCKP", b"PWAL", b"PRDQ", b"PHNT"):
                number: int = _HEADER.unpack(head)[3]
                votes[number] = votes.get(number, 0) + 1
    return max(votes, key=lambda number: votes[number]) if votes else -1
