"""UserStore: users, vhosts and permissions of the whole broker, in one small SQLite file.

They belong to no vhost and are read before any is opened, and there are tens of them, so they have
a database of their own, node.db, and not a log. It is the only one, and this the only module that
speaks SQL. Each change is one transaction, on disk when the call returns: rollback journal and
synchronous=EXTRA, which syncs the directory too. Schema, version 1 (PRAGMA user_version; 0 until
the first user is in, so that a crash in the first start leaves a file that is still new):

    users        name PRIMARY KEY | hash (text of access.users) | tags (space between)
    vhosts       name PRIMARY KEY | state | meta (JSON: stopped_ms, if an operator has stopped it)
    permissions  user, vhost PRIMARY KEY | configure | write | read
    limits       kind ("user" or "vhost"), name PRIMARY KEY | limits (JSON)

The table of limits came later: it is made in an older file when that is opened, and a program that
does not know it does not look at it.

A vhost is a row here and a directory there, which cannot change at one moment. So the row tells how
far it came: `creating` before its directory is made, `ready` once it is, `deleting` before the
directory is removed, and no row when it is gone. Whoever starts finishes what a crash cut short:
makes what is creating, removes what is deleting. Permissions go with their user or vhost (foreign
keys, ON DELETE CASCADE).

The file is made readable to its owner only: it holds hashes. One process opens it, that which holds
the data directory's lock; one thread uses it. What a name or a hash may be is not here.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import CorruptionError, DiskFullError, StorageError, VersionError

VERSION: Final = 1
CREATING: Final = "creating"
READY: Final = "ready"
DELETING: Final = "deleting"

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS users"
    " (name TEXT PRIMARY KEY, hash TEXT NOT NULL, tags TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS vhosts (name TEXT PRIMARY KEY, state TEXT NOT NULL"
    " CHECK (state IN ('creating', 'ready', 'deleting')), meta TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS permissions ("
    " user TEXT NOT NULL REFERENCES users ON DELETE CASCADE,"
    " vhost TEXT NOT NULL REFERENCES vhosts ON DELETE CASCADE,"
    " configure TEXT NOT NULL, write TEXT NOT NULL, read TEXT NOT NULL,"
    " PRIMARY KEY (user, vhost))",
)
_LIMITS_SCHEMA: Final = (
    "CREATE TABLE limits (kind TEXT NOT NULL CHECK (kind IN ('user', 'vhost')),"
    " name TEXT NOT NULL, limits TEXT NOT NULL, PRIMARY KEY (kind, name))"
)


def vhosts_in(path: str) -> list[str]:
    """The names of the vhosts in a node.db that nobody uses, for whoever has lost them elsewhere;
    none if it cannot be read. Changes nothing."""
    try:
        db = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
        try:
            return [str(name) for (name,) in db.execute("SELECT name FROM vhosts")]
        finally:
            db.close()
    except (OSError, sqlite3.Error):
        return []


class UserStore:
    """The file at `path` (":memory:": none). is_new: nobody has called `begin` yet.

    StorageError: it cannot be opened or written (CorruptionError: it is no such file or damaged;
    VersionError: a newer Penstock's; DiskFullError).
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_new = False
        try:
            if path != ":memory:":
                Path(path).touch(mode=0o600)
            self._db = sqlite3.connect(path, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"{path}: cannot be opened: {error}") from error
        try:
            with self._errors():
                self._open()
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        self._db.execute("PRAGMA synchronous = EXTRA")
        self._db.execute("PRAGMA foreign_keys = ON")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise VersionError(self.path, VERSION, version)
        self.is_new = version == 0
        if self.is_new:
            with self.transaction():
                for statement in _SCHEMA:
                    self._db.execute(statement)
        damage = self._db.execute("PRAGMA quick_check").fetchone()[0]
        if damage != "ok":
            raise CorruptionError(self.path, 0, damage)
        known = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'limits'").fetchone()
        if known is None:
            self._db.execute(_LIMITS_SCHEMA)

    def close(self) -> None:
        """Nothing is left to write: every call has written what it did."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes made inside become one: all are on disk after it, or none."""
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def begin(self) -> None:
        """It is new no more: called in the transaction that puts the first user in."""
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    # --- users ---

    def users(self) -> dict[str, tuple[str, frozenset[str]]]:
        """name -> (hash, tags)."""
        rows = self._rows("SELECT name, hash, tags FROM users ORDER BY name")
        return {name: (hashed, frozenset(tags.split())) for name, hashed, tags in rows}

    def put_user(self, name: str, hashed: str, tags: frozenset[str]) -> None:
        """A new user, or another hash and tags for a known one. A tag holds no white space."""
        self._change(
            "INSERT INTO users VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, tags = excluded.tags",
            (name, hashed, " ".join(sorted(tags))),
        )

    def delete_user(self, name: str) -> None:
        """With its permissions and limits. Nothing happens if there is none."""
        with self.transaction():
            self._db.execute("DELETE FROM users WHERE name = ?", (name,))
            self._db.execute("DELETE FROM limits WHERE kind = 'user' AND name = ?", (name,))

    # --- vhosts ---

    def vhosts(self) -> dict[str, tuple[str, str]]:
        """name -> (state, meta)."""
        rows = self._rows("SELECT name, state, meta FROM vhosts ORDER BY name")
        return {name: (state, meta) for name, state, meta in rows}

    def put_vhost(self, name: str, state: str, meta: str = "{}") -> None:
        """A new vhost, or another state and meta for a known one."""
        self._change(
            "INSERT INTO vhosts VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET state = excluded.state, meta = excluded.meta",
            (name, state, meta),
        )

    def delete_vhost(self, name: str) -> None:
        """With its permissions and limits. Nothing happens if there is none."""
        with self.transaction():
            self._db.execute("DELETE FROM vhosts WHERE name = ?", (name,))
            self._db.execute("DELETE FROM limits WHERE kind = 'vhost' AND name = ?", (name,))

    # --- permissions ---

    def permissions(self) -> dict[tuple[str, str], tuple[str, str, str]]:
        """(user, vhost) -> (configure, write, read)."""
        rows = self._rows("SELECT * FROM permissions ORDER BY user, vhost")
        return {(user, vhost): (conf, write, read) for user, vhost, conf, write, read in rows}

    def put_permission(self, user: str, vhost: str, patterns: tuple[str, str, str]) -> None:
        """What a known user may in a known vhost; replaces what it might."""
        self._change(
            "INSERT OR REPLACE INTO permissions VALUES (?, ?, ?, ?, ?)", (user, vhost, *patterns)
        )

    def delete_permission(self, user: str, vhost: str) -> None:
        """Nothing happens if there is none."""
        self._change("DELETE FROM permissions WHERE user = ? AND vhost = ?", (user, vhost))

    # --- limits ---

    def limits(self, kind: str) -> dict[str, str]:
        """name -> JSON of the limits that were set; kind: "user" or "vhost"."""
        with self._errors():
            select = "SELECT name, limits FROM limits WHERE kind = ? ORDER BY name"
            return dict(self._db.execute(select, (kind,)).fetchall())

    def put_limits(self, kind: str, name: str, text: str) -> None:
        """The limits of a user or vhost; they replace those it had. "": it has none."""
        if text:
            self._change("INSERT OR REPLACE INTO limits VALUES (?, ?, ?)", (kind, name, text))
        else:
            self._change("DELETE FROM limits WHERE kind = ? AND name = ?", (kind, name))

    # --- inside ---

    def _rows(self, statement: str) -> list[tuple[str, ...]]:
        with self._errors():
            return self._db.execute(statement).fetchall()

    def _change(self, statement: str, values: tuple[str, ...]) -> None:
        with self._errors():
            self._db.execute(statement, values)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """SQLite's errors as Penstock's. One of a statement of ours stays what it is: a mistake."""
        try:
            yield
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
            raise
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise DiskFullError(self.path, 0, 1) from error
            raise StorageError(f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise CorruptionError(self.path, 0, str(error)) from error
