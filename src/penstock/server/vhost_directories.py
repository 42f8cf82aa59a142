"""Directories of vhosts, and what the node's database says of them, brought together.

A vhost is a row in the database and a directory, which cannot change at one instant. So its row
tells how far it came, and a start finishes what a crash cut short:

    add       row `creating` | directory made, synced | row `ready`
    delete    row `deleting` | process stopped | directory emptied and removed, synced | row gone

A directory without a row is a vhost all the same: the library has made it (a box is a vhost), or
the database was lost. It is adopted, with no permissions but those that are there.

Whoever may write in the data directory can put other files in the place of ours, so before any of
them is read `secure` takes that right away from everybody but its owner, or refuses.

When a directory is emptied CURRENT goes first, so that what is left is no store any more, and the
vhost's name last, so that it can be told whose remains these are.

Not here: processes (supervisor), users (access.users).
"""

import errno
import logging
from collections.abc import Iterable
from typing import Final

from penstock.access.users import Users
from penstock.errors import AMQPError, CorruptionError, PenstockError
from penstock.server.serve_settings import FIX, IGNORE
from penstock.storage.data_directory import DataDirectory, hash_name, sync_dir
from penstock.storage.filesystem import FileSystem, OsFileSystem
from penstock.storage.user_store import CREATING, DELETING

USERS_FILE: Final = "node.db"
OTHERS_WRITE: Final = 0o022
FIRST: Final = "CURRENT"
LAST: Final = ".vhost"

logger = logging.getLogger(__name__)


def name_bytes(name: str) -> bytes:
    """A vhost's name as the storage has it."""
    return name.encode("utf-8", "surrogateescape")


def secure(fs: OsFileSystem, path: str, what: str, others: Iterable[str] = ()) -> None:
    """Look whether others than the owner may write in the data directory and those of its vhosts,
    and in its log and spill directories, which are the others.

    what: serve_settings.FIX takes that right away; REFUSE raises PermissionError, as FIX does where
    it may not change it; IGNORE says so in the log."""
    vhosts = f"{path}/vhosts"
    inside = [f"{vhosts}/{name}" for name in fs.list(vhosts)] if fs.is_dir(vhosts) else []
    for root in others:
        inside += [
            root,
            *(f"{root}/{name}" for name in fs.list(root) if fs.is_dir(f"{root}/{name}")),
        ]
    for one in (path, f"{path}/{USERS_FILE}", vhosts, *inside):
        bits = fs.permissions(one)
        if not bits & OTHERS_WRITE:
            continue
        text = f"others than its owner may write in it (mode {bits:04o})"
        if what == IGNORE:
            logger.warning("%s: %s", one, text)
            continue
        if what == FIX:
            try:
                fs.set_permissions(one, bits & ~OTHERS_WRITE)
            except OSError as error:
                text = f"{text}, and that cannot be changed: {error.strerror}"
            else:
                logger.warning("%s: %s, which is changed to %04o", one, text, bits & ~OTHERS_WRITE)
                continue
        advice = 'expected chmod go-w, or data_permissions = "ignore"'
        raise PermissionError(errno.EACCES, f"{text}; {advice}", one)


def finish(data: DataDirectory, users: Users) -> None:
    """At a start: what was cut short is done, what has no row is adopted. PenstockError, OSError:
    of what is being created or deleted."""
    for name, state in users.vhosts().items():
        if state == CREATING:
            make(data, users, name)
        elif state == DELETING:
            remove(data, name)
            users.vhost_gone(name)
    try:
        names = data.vhost_names()
    except CorruptionError as error:
        logger.error("not all vhosts can be told: %s", error)
        return
    for raw in names:
        name = raw.decode("utf-8", "surrogateescape")
        if name not in users.vhosts():
            try:
                users.add_vhost(name)
                users.vhost_made(name)
            except (AMQPError, PenstockError) as error:
                logger.error("vhost %r is left alone: %s", name, error)


def make(data: DataDirectory, users: Users, name: str) -> None:
    """The directory of one that is `creating`; it is `ready` then."""
    data.vhost_path(name_bytes(name))
    users.vhost_made(name)


def remove(data: DataDirectory, name: str) -> None:
    """The directory of one that is `deleting`, whose process has ended; `users.vhost_gone` then.
    May take long, and may run in any thread."""
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
