"""Creates and deletes vhosts: a row of the node's database and a directory each.

Both cannot change at one instant, so the row has a state, and a start finishes what a crash
interrupted:

    add       row `creating` | directory made, synced | row `ready`
    delete    row `deleting` | process stopped | directory emptied and removed, synced | row gone

A directory without a row is also a vhost: the library has made it (a box is a vhost), or the
database was lost. It gets a row, and no permissions.

Whoever may write in the data directory can replace its files. So before any of them is read
`secure` removes that right from everybody but the owner, or refuses to start.

CURRENT is deleted first from a directory, so that the rest is not a store any more, and the vhost's
name last, so that an operator can see whose files these are.
"""

import errno
import logging
from collections.abc import Iterable
from typing import Final

from penstock.access.users import Users
from penstock.config import FIX, IGNORE
from penstock.errors import AMQPError, CorruptionError, PenstockError
from penstock.storage.files.data_directory import DataDirectory, hash_name, sync_dir
from penstock.storage.files.filesystem import FileSystem, OsFileSystem
from penstock.storage.files.user_store import CREATING, DELETING

USERS_FILE: Final = "node.db"
OTHERS_WRITE: Final = 0o022
OTHERS: Final = 0o077
FIRST: Final = "CURRENT"
LAST: Final = ".vhost"

logger = logging.getLogger(__name__)


def name_bytes(name: str) -> bytes:
    """Return a vhost's name as the storage has it."""
    return name.encode("utf-8", "surrogateescape")


def secure(fs: OsFileSystem, path: str, what: str, others: Iterable[str] = ()) -> None:
    """Check that nobody but the owner may use the data directory, the log and spill directories
    (`others`) and the file of users, or write into the directories of vhosts.

    what: FIX (penstock.config) removes those rights. REFUSE raises PermissionError if others may
    write, as FIX does where it may not change that. IGNORE changes nothing. What is changed, and
    what stays, is a warning in the log."""
    vhosts = f"{path}/vhosts"
    inside = [f"{vhosts}/{name}" for name in fs.list(vhosts)] if fs.is_dir(vhosts) else []
    roots = list(others)
    for root in roots:
        inside += [f"{root}/{name}" for name in fs.list(root) if fs.is_dir(f"{root}/{name}")]
    closed = (path, f"{path}/{USERS_FILE}", *roots)
    for one in (*closed, vhosts, *inside):
        bits = fs.permissions(one)
        wrong = bits & (OTHERS if one in closed else OTHERS_WRITE)
        if not wrong:
            continue
        may = "write in it" if wrong & OTHERS_WRITE else "read it"
        text = f"others than its owner may {may} (mode {bits:04o})"
        if what == FIX:
            try:
                fs.set_permissions(one, bits & ~wrong)
            except OSError as error:
                text = f"{text}, and that cannot be changed: {error.strerror}"
            else:
                logger.warning("%s: %s, which is changed to %04o", one, text, bits & ~wrong)
                continue
        if what == IGNORE or not wrong & OTHERS_WRITE:
            logger.warning("%s: %s", one, text)
            continue
        advice = 'expected chmod go-w, or data_permissions = "ignore"'
        raise PermissionError(errno.EACCES, f"{text}; {advice}", one)


def finish(data: DataDirectory, users: Users) -> None:
    """Finish what a crash interrupted, and add rows for directories that have none; at the start.
    PenstockError, OSError: a vhost could not be created or deleted."""
    for name, state in users.vhosts().items():
        if state == CREATING:
            make(data, users, name)
        elif state == DELETING:
            remove(data, name)
            users.vhost_gone(name)
        elif (mended := data.mend_name(name_bytes(name))) is not None:
            logger.warning("vhost %r: %s: it is written again", name, mended)
    faults: list[CorruptionError] = []
    names = data.vhost_names(faults)
    for fault in faults:
        logger.error("a vhost has no name, and is not served: %s", fault)
    for raw in names:
        name = raw.decode("utf-8", "surrogateescape")
        if name not in users.vhosts():
            try:
                users.add_vhost(name)
                users.vhost_made(name)
            except (AMQPError, PenstockError) as error:
                logger.error("vhost %r could not be added to the database: %s", name, error)


def make(data: DataDirectory, users: Users, name: str) -> None:
    """Make the directory of a vhost that is `creating`; it is `ready` then."""
    data.vhost_path(name_bytes(name))
    users.vhost_made(name)


def remove(data: DataDirectory, name: str) -> None:
    """Delete the directory of a vhost that is `deleting` and whose process has ended. The caller
    calls `users.vhost_gone` afterwards. This may take long, and may run in any thread."""
    vhosts = data.path + "/vhosts"
    path = f"{vhosts}/{hash_name(name_bytes(name))}"
    if data.fs.exists(path):
        _empty(data.fs, path)
        data.fs.rmdir(path)
        sync_dir(data.fs, vhosts)


def _empty(fs: FileSystem, path: str) -> None:
    names = fs.list(path)
    names.sort(key=lambda name: (name != FIRST, name == LAST, name))
    for name in names:
        inner = f"{path}/{name}"
        if fs.is_dir(inner):
            _empty(fs, inner)
            fs.rmdir(inner)
        else:
            fs.unlink(inner)
            if name == FIRST:
                sync_dir(fs, path)
