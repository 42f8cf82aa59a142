"""UserStore: users, vhosts and permissions of the whole broker, in one small SQLite file.

They belong to no vhost, are read before any vhost is opened, and there are tens of them, so they
have a database of their own, node.db, instead of a log. It is the only database, and this is the
only module with SQL. Each change is one transaction, on disk when the call returns: rollback
journal and synchronous=EXTRA, which syncs the directory too. Schema, version 1 (PRAGMA
user_version; 0 until the first user is added, so that a file from a crash in the first start is
still new):

    users        name PRIMARY KEY | hash (text of access.users) | tags (separated by spaces)
    vhosts       name PRIMARY KEY | state | meta (JSON)
    permissions  user, vhost PRIMARY KEY | configure | write | read
    limits       kind ("user" or "vhost"), name PRIMARY KEY | limits (JSON)
    topic_permissions  user, vhost, exchange PRIMARY KEY | write | read
    parameters   name PRIMARY KEY | value (JSON)
    facts        name PRIMARY KEY | value: of the broker, such as the definitions that it has loaded

meta has stopped_ms, if an operator has stopped the vhost, description, tags and default_queue_type.
The last four tables were added later: opening an older file creates them, and older programs
ignore them, also in permissions: they let a user publish and bind with every key.

A vhost is a row here and a directory, which cannot change in one step. So the row has a state:
`creating` before its directory exists, `ready` once it does, `deleting` before the directory is
removed; then the row is deleted. At its start the broker finishes what a crash interrupted: it
creates the directories of `creating` vhosts and removes those of `deleting` ones. Permissions are
deleted with their user or vhost (foreign keys, ON DELETE CASCADE).

Only the file's owner may read it, because it holds hashes. One process opens it, the one with the
data directory's lock, and one thread uses it. access.users checks names and hashes.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
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
_ADDED: Final = (
    "CREATE TABLE IF NOT EXISTS limits (kind TEXT NOT NULL CHECK (kind IN ('user', 'vhost')),"
    " name TEXT NOT NULL, limits TEXT NOT NULL, PRIMARY KEY (kind, name))",
    "CREATE TABLE IF NOT EXISTS topic_permissions ("
    " user TEXT NOT NULL REFERENCES users ON DELETE CASCADE,"
    " vhost TEXT NOT NULL REFERENCES vhosts ON DELETE CASCADE,"
    " exchange TEXT NOT NULL, write TEXT NOT NULL, read TEXT NOT NULL,"
    " PRIMARY KEY (user, vhost, exchange))",
    "CREATE TABLE IF NOT EXISTS parameters (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
)


def vhosts_in(path: str) -> list[str]:
    """Return the names of the vhosts in a node.db that no process uses; [] if it cannot be read.
    Changes nothing."""
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as db:
            return [str(name) for (name,) in db.execute("SELECT name FROM vhosts")]
    except (OSError, sqlite3.Error):
        return []


class UserStore:
    """The database at `path` (":memory:": in RAM). is_new: `begin` was not called yet.

    Calls raise StorageError if it cannot be opened or written, CorruptionError if it is damaged or
    another kind of file, VersionError if it is of a newer Penstock, DiskFullError.
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
        for statement in _ADDED:
            self._db.execute(statement)

    def close(self) -> None:
        """Close the database. Every change is written already."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the changes inside one: after it all of them are on disk, or none. One inside
        another is a part of it."""
        is_inner = self._db.in_transaction
        if is_inner:
            yield
            return
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
        """Mark the file as not new, in the transaction that adds the first user."""
        self._db.execute(f"PRAGMA user_version = {VERSION}")

    # --- users ---

    def users(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Return name -> (hash, tags)."""
        rows = self._rows("SELECT name, hash, tags FROM users ORDER BY name")
        return {name: (hashed, tuple(tags.split())) for name, hashed, tags in rows}

    def put_user(self, name: str, hashed: str, tags: tuple[str, ...]) -> None:
        """Add a user, or replace the hash and tags of one. A tag has no white space."""
        self._change(
            "INSERT INTO users VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET hash = excluded.hash, tags = excluded.tags",
            (name, hashed, " ".join(tags)),
        )

    def delete_user(self, name: str) -> None:
        """Delete a user with its permissions and limits, if it exists."""
        with self.transaction():
            self._db.execute("DELETE FROM users WHERE name = ?", (name,))
            self._db.execute("DELETE FROM limits WHERE kind = 'user' AND name = ?", (name,))

    # --- vhosts ---

    def vhosts(self) -> dict[str, tuple[str, str]]:
        """Return name -> (state, meta)."""
        rows = self._rows("SELECT name, state, meta FROM vhosts ORDER BY name")
        return {name: (state, meta) for name, state, meta in rows}

    def put_vhost(self, name: str, state: str, meta: str = "{}") -> None:
        """Add a vhost, or replace the state and meta of one."""
        self._change(
            "INSERT INTO vhosts VALUES (?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET state = excluded.state, meta = excluded.meta",
            (name, state, meta),
        )

    def delete_vhost(self, name: str) -> None:
        """Delete a vhost with its permissions and limits, if it exists."""
        with self.transaction():
            self._db.execute("DELETE FROM vhosts WHERE name = ?", (name,))
            self._db.execute("DELETE FROM limits WHERE kind = 'vhost' AND name = ?", (name,))

    # --- permissions ---

    def permissions(self) -> dict[tuple[str, str], tuple[str, str, str]]:
        """Return (user, vhost) -> (configure, write, read)."""
        rows = self._rows("SELECT * FROM permissions ORDER BY user, vhost")
        return {(user, vhost): (conf, write, read) for user, vhost, conf, write, read in rows}

    def put_permission(self, user: str, vhost: str, patterns: tuple[str, str, str]) -> None:
        """Set the permissions of a known user in a known vhost."""
        self._change(
            "INSERT OR REPLACE INTO permissions VALUES (?, ?, ?, ?, ?)", (user, vhost, *patterns)
        )

    def delete_permission(self, user: str, vhost: str) -> None:
        """Delete the permissions of a user in a vhost, if there are any."""
        self._change("DELETE FROM permissions WHERE user = ? AND vhost = ?", (user, vhost))

    def topic_permissions(self) -> dict[tuple[str, str, str], tuple[str, str]]:
        """Return (user, vhost, exchange) -> (write, read)."""
        rows = self._rows("SELECT * FROM topic_permissions ORDER BY user, vhost, exchange")
        return {(user, vhost, exchange): (w, r) for user, vhost, exchange, w, r in rows}

    def put_topic_permission(
        self, user: str, vhost: str, exchange: str, patterns: tuple[str, str]
    ) -> None:
        """Set the topic permissions of a known user on an exchange of a known vhost."""
        self._change(
            "INSERT OR REPLACE INTO topic_permissions VALUES (?, ?, ?, ?, ?)",
            (user, vhost, exchange, *patterns),
        )

    def delete_topic_permissions(self, user: str, vhost: str, exchange: str | None) -> None:
        """Delete those of a user in a vhost, if there are any; None: on all exchanges."""
        self._change(
            "DELETE FROM topic_permissions WHERE user = ? AND vhost = ?"
            " AND (? IS NULL OR exchange = ?)",
            (user, vhost, exchange, exchange),
        )

    # --- limits ---

    def limits(self, kind: str) -> dict[str, str]:
        """Return name -> JSON of the limits that were set. kind: "user" or "vhost"."""
        with self._errors():
            select = "SELECT name, limits FROM limits WHERE kind = ? ORDER BY name"
            return dict(self._db.execute(select, (kind,)).fetchall())

    def put_limits(self, kind: str, name: str, text: str) -> None:
        """Replace the limits of a user or vhost; "" removes them."""
        if text:
            self._change("INSERT OR REPLACE INTO limits VALUES (?, ?, ?)", (kind, name, text))
        else:
            self._change("DELETE FROM limits WHERE kind = ? AND name = ?", (kind, name))

    # --- global parameters ---

    def parameters(self) -> dict[str, str]:
        """Return name -> JSON."""
        with self._errors():
            return dict(self._db.execute("SELECT name, value FROM parameters").fetchall())

    def put_parameter(self, name: str, value: str) -> None:
        """Set a parameter; "" removes it."""
        if value:
            self._change("INSERT OR REPLACE INTO parameters VALUES (?, ?)", (name, value))
        else:
            self._change("DELETE FROM parameters WHERE name = ?", (name,))

    # --- facts ---

    def fact(self, name: str) -> str:
        """Return a fact of the broker, "" if it is not known."""
        with self._errors():
            found = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
            return str(found[0]) if found else ""

    def put_fact(self, name: str, value: str) -> None:
        """Store a fact of the broker, or replace it."""
        self._change("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    # --- inside ---

    def _rows(self, statement: str) -> list[tuple[str, ...]]:
        with self._errors():
            return self._db.execute(statement).fetchall()

    def _change(self, statement: str, values: tuple[str | None, ...]) -> None:
        with self._errors():
            self._db.execute(statement, values)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise SQLite's errors as Penstock's, except those that are mistakes in a statement."""
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
