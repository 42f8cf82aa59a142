"""SqliteQueue: a BackingQueue whose messages are rows of an SQLite database, to be looked at.

RabbitMQ's queue process takes the module that holds a queue's messages from its configuration, so
that others than rabbit_variable_queue can do it. `[queues] backing_queue` does the same here
(queue_set.py), and this is the second implementation of the contract: small, slow, and open to any
tool that reads SQLite.

    sqlite3 -readonly penstock-data/vhosts/*/queues/*.12/messages.sqlite \\
        "SELECT seq, state, size, CAST(body AS TEXT) FROM messages LIMIT 10"

**What is safe where.** As for every queue, the log and the QueueIndex decide which messages live.
The database is a copy for this process: it is made when the queue is opened, from the index, and
deleted when the queue is closed. It is never synced, and a crash loses nothing with it. So it is
the one file that does not go through the FileSystem, which SQLite cannot use; tests give
``database=":memory:"``.

**A message arrives** in RAM (`SqliteHolder`, at most 64 of them), because the engine calls while it
publishes. `_write` moves what has arrived to its slots, like a page-out, and into the database. If
that fails, messages stay in RAM, and an event reports it. Everything else first calls `_write`, so
that only the database is asked. Bodies in the MessageStore stay there.

    CREATE TABLE messages(
        seq INTEGER PRIMARY KEY, state TEXT, size INTEGER, header BLOB, body BLOB, id INTEGER,
        time INTEGER, expiry_ms INTEGER, store_file INTEGER, is_persistent INTEGER,
        attempts INTEGER, crc INTEGER)
    state     'ready', 'pending' (delivered, not acknowledged) or 'damaged' (set aside)
    body      NULL: it is in the store
    attempts  of a transient message; the index has those of the others
    crc       CRC-32 of header and body, because SQLite has no checksums

A row whose CRC is wrong is read again from the slot of the message; a transient one, which has
none, is set aside, as one whose slot or body in the store is damaged.

Errors of SQLite are OSErrors: ENOSPC if it had no room, else EIO. The queue is opened again then,
as after any error in its own code, and the database made anew.

Limits, shares and modes change nothing here: RAM holds the messages that have just arrived and
SQLite's cache. Opening reads all messages in one step, so it is for queues of up to some 100,000
messages. A queue with priorities, and the parts for delayed messages, are VariableQueues.
"""

import errno
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from penstock.errors import CorruptionError, SyncFailedError
from penstock.message import Entry, QueuedMessage, is_large, seq_of
from penstock.queues.backing_queue import UNLIMITED, BackingQueue, Delivery, NewMessage, ReadyHead
from penstock.queues.queue_options import QUEUE_MODES
from penstock.queues.queue_ram import alpha_bytes
from penstock.queues.rows import Row
from penstock.queues.variable_queue import DeliveredMark
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import queue_title
from penstock.storage.files.durability import DISK, NONE
from penstock.storage.index.queue_index import DictHolder, Holder, QueueIndex
from penstock.storage.parts.lease_engine import Taken

FILE: Final = "messages.sqlite"
ARRIVED_MAX: Final = 64  # messages in RAM before they are written
ARRIVED_BYTES_MAX: Final = 256 << 10
CACHE_KIB: Final = 256  # of SQLite; counted as RAM
SLICE: Final = 256  # messages of one statement, or that one call reads
COLUMNS: Final = (
    "seq, state, size, header, body, id, time, expiry_ms, store_file, is_persistent, attempts, crc"
)
SELECT: Final = f"SELECT {COLUMNS} FROM messages WHERE "  # noqa: S608 - only texts of this module
INSERT: Final = "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
SCHEMA: Final = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = OFF;
    CREATE TABLE messages(
        seq INTEGER PRIMARY KEY, state TEXT, size INTEGER, header BLOB, body BLOB, id INTEGER,
        time INTEGER, expiry_ms INTEGER, store_file INTEGER, is_persistent INTEGER,
        attempts INTEGER, crc INTEGER);
    CREATE INDEX by_state ON messages(state, seq);
"""
READY: Final = "ready"
PENDING: Final = "pending"

A = TypeVar("A")


class SqliteHolder(Holder):
    """The Holder of the queue's index: what has arrived and is not written yet."""

    def __init__(self, arrive: Callable[[Entry], None]) -> None:
        self.arrived: dict[int, Entry] = {}  # by seq, ascending
        self._arrive = arrive

    def add(self, entry: Entry) -> None:
        self._arrive(entry)

    def drop(self, first: int, n: int) -> None:
        """Do nothing: the queue removes messages before it reports an ack to the engine."""

    def wants_drops(self) -> bool:
        return False

    def get(self, seq: int) -> Entry | None:
        return self.arrived.get(seq)

    def candidates(self, below: int, n: int) -> list[Entry]:
        found = [entry for entry in reversed(self.arrived.values()) if entry.seq < below]
        return found[:n]

    def unsettled(self) -> list[Entry]:
        """Return nothing: what is delivered is on its slot."""
        return []

    def materialised(self, entries: list[Entry]) -> None:
        """Do nothing: they are written to the database with the others."""


class SqliteQueue(BackingQueue):
    """The queue over `index`. mode: of the records of the delivered mark. policy: ignored.
    on_event(kind, text): page_out_failed, corruption. database: "" for a file in the queue's
    directory. Raises OSError."""

    def __init__(
        self, engine: StorageEngine, index: QueueIndex, *, mode: int = DISK, policy: str = "",
        on_event: Callable[[str, str], None] | None = None, database: str = "",
    ) -> None:  # fmt: skip
        del policy
        self._engine = engine
        self._index = index
        self._mode = mode
        self._on_event = on_event
        self._len: int = 0
        self._bytes: int = 0  # bodies of the ready
        self._pending: int = 0
        self._pending_bytes: int = 0
        self._damaged: int = 0
        self._arrived_bytes: int = 0  # counted
        self._has_failed: bool = False  # the last write, and that was reported
        self._reads: int = 0
        self._writes: int = 0
        self._limits: tuple[int, int] = (UNLIMITED, UNLIMITED)
        self._queue_mode: str = QUEUE_MODES[0]
        self._mark: DeliveredMark = DeliveredMark(engine, index, mode)
        self._path = database or self._file()
        self._database = self._open_database()
        self._held: SqliteHolder = SqliteHolder(self._arrive)
        self._fill()

    # ---- the database --------------------------------------------------------------------------

    def _file(self) -> str:
        """Return the path of the database, after deleting what a crash left of an earlier one."""
        self._index.make_directory()
        self._delete_files()
        return self._engine.fs.place(f"{self._index.path}/{FILE}")

    def _delete_files(self) -> None:
        """Delete the database's files, those that there are. Raises OSError."""
        fs, path = self._engine.fs, f"{self._index.path}/{FILE}"
        for ending in ("", "-wal", "-shm"):
            if fs.exists(path + ending):
                fs.unlink(path + ending)

    def _open_database(self) -> sqlite3.Connection:
        try:
            # Threads of the library take turns, under the lock of the box.
            database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            database.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise self._as_os_error(error) from error
        return database

    def _as_os_error(self, error: sqlite3.Error) -> OSError:
        is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
        return OSError(errno.ENOSPC if is_full else errno.EIO, f"SQLite: {error}", self._path)

    def sql(self, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Execute a statement on the database and return its rows. Raises OSError."""
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._as_os_error(error) from error

    def _insert(self, messages: list["_Stored"]) -> None:
        """Insert messages, all or none. Raises OSError."""
        rows = [one.row() for one in messages]
        try:
            with self._database:
                self._database.execute("BEGIN")
                self._database.executemany(INSERT, rows)
        except sqlite3.Error as error:
            raise self._as_os_error(error) from error

    def _select(self, where: str, values: Sequence[object] = ()) -> list["_Stored"]:
        """Return the messages for which this holds."""
        found = self.sql(SELECT + where, values)
        return [_Stored(*row) for row in found]  # type: ignore[arg-type]

    def _those(self, tags: list[int], state: str) -> list["_Stored"]:
        """Return those of the tags that are in this state, each once, in the order of the tags."""
        tags = list(dict.fromkeys(tags))
        found: dict[int, _Stored] = {}
        for start in range(0, len(tags), SLICE):
            some = tags[start : start + SLICE]
            marks = ",".join("?" * len(some))
            for one in self._select(f"state = ? AND seq IN ({marks})", (state, *some)):
                found[one.seq] = one
        return [found[tag] for tag in tags if tag in found]

    def _change(self, statement: str, seqs: list[int]) -> None:
        """Execute a statement for each seq, in one transaction. Raises OSError."""
        try:
            with self._database:
                self._database.execute("BEGIN")
                self._database.executemany(statement, [(seq,) for seq in seqs])
        except sqlite3.Error as error:
            raise self._as_os_error(error) from error

    # ---- arrival -------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Take over what lives in the index, segment by segment."""
        index = self._index
        old = index.holder
        in_ram = old.materialise(index.next_seq) if isinstance(old, DictHolder) else []
        index.holder = self._held
        held = {entry.seq for entry in in_ram}
        for number in sorted(index.segments):
            start = number * index.slots
            seqs = index.ready_between(start, start + index.slots)
            self._read_in([seq for seq in seqs if seq not in held])
        for entry in in_ram:
            if not index.leased.has(entry.seq):
                self._arrive(entry)

    def _read_in(self, seqs: list[int]) -> None:
        """Insert messages of one segment that are on slots or in a section. Damaged ones are set
        aside."""
        for start in range(0, len(seqs), SLICE):
            found: list[_Stored] = []
            for seq in seqs[start : start + SLICE]:
                try:
                    message = self._read(seq)
                except CorruptionError as error:
                    self._report_damage(error)
                    continue
                found.append(_Stored.of(seq, message))
            self._insert(found)
            self._count(found, 1)

    def _arrive(self, entry: Entry) -> None:
        self._held.arrived[entry.seq] = entry
        self._arrived_bytes += alpha_bytes(entry.message)
        self._len += 1
        self._bytes += entry.message.size
        is_much = self._arrived_bytes > ARRIVED_BYTES_MAX
        if (is_much or len(self._held.arrived) >= ARRIVED_MAX) and not self._has_failed:
            self._try_to_write()

    def _try_to_write(self) -> bool:
        """Write what has arrived; report the first failure. Return whether all is written."""
        try:
            self._write()
        except (OSError, SyncFailedError) as error:
            if isinstance(error, SyncFailedError):
                self._engine.journal.stop(error)
            elif not self._has_failed:
                self._has_failed = True
                self._report("page_out_failed", f"messages stay in RAM: {error}")
            return False
        self._has_failed = False
        return True

    def _write(self) -> None:
        """Write what has arrived to slots and into the database. Raises OSError."""
        arrived, index = self._held.arrived, self._index
        while arrived:
            entries = list(arrived.values())[:SLICE]
            fresh = [
                entry
                for entry in entries
                if entry.message.persistent and not entry.on_slot and entry.seq not in index.section
            ]
            index.write(fresh)
            for entry in fresh:
                entry.on_slot = True
            self._insert([_Stored.of(entry.seq, entry.message) for entry in entries])
            self._writes += len(entries)
            for entry in entries:
                del arrived[entry.seq]
        self._arrived_bytes = 0

    def index(self, priority: int = 0) -> QueueIndex:
        return self._index

    def indexes(self) -> list[QueueIndex]:
        return [self._index]

    def publish(
        self, header: bytes, body: bytes, mode: int, *, expiry_ms: int = 0, priority: int = 0
    ) -> int:
        mode = mode if self._index.is_durable else NONE
        self._engine.publish([self._index], header, body, mode, expiry_ms)
        return self._index.next_seq - 1

    def batch_publish(self, messages: list[NewMessage], mode: int) -> list[int]:
        return [self.publish(m.header, m.body, mode, expiry_ms=m.expiry_ms) for m in messages]

    def hold(self, tag: int, lsn: int, mode: int) -> None:
        self._mark.hold(tag, lsn, mode)

    def held(self) -> tuple[int, int] | None:
        first = self._first()
        return None if first is None else self._waits_for(first)

    def _waits_for(self, one: "_Stored") -> tuple[int, int] | None:
        return self._mark.waits_for(one.seq, has_mark=one.is_persistent, out_per_s=0.0)

    def _first(self) -> "_Stored | None":
        """Return the head."""
        self._write()
        found = self._select("state = ? ORDER BY seq LIMIT 1", (READY,))
        return found[0] if found else None

    # ---- delivery ------------------------------------------------------------------------------

    def fetch(self, *, ack_required: bool = True, in_pieces: bool = False) -> Delivery | None:
        while (first := self._first()) is not None and self._waits_for(first) is None:
            try:
                message = self._message(first, in_pieces=in_pieces and ack_required)
            except CorruptionError as error:
                self._set_aside(first, error)
                continue
            attempts = self._attempts(first)
            is_redelivered = self._deliver(first, ack_required=ack_required)
            return Delivery(first.seq, message, is_redelivered or attempts > 0, attempts)
        return None

    def _deliver(self, one: "_Stored", *, ack_required: bool) -> bool:
        """Make the head pending, or dequeue it. Return whether it was delivered before."""
        is_redelivered = self._mark.deliver(one.seq, is_persistent=one.is_persistent, out_per_s=0.0)
        if ack_required:
            self._change("UPDATE messages SET state = 'pending' WHERE seq = ?", [one.seq])
            self._pending += 1
            self._pending_bytes += one.size
        else:
            self._die([one], self._mode)
        self._count([one], -1)
        return is_redelivered

    def _count(self, some: list["_Stored"], sign: int) -> None:
        """Count messages that became ready (1), or are not any more (-1)."""
        self._len += sign * len(some)
        self._bytes += sign * sum([one.size for one in some])

    def _message(self, one: "_Stored", *, in_pieces: bool = False) -> QueuedMessage:
        """Return the message with its body, or without if it is large and in_pieces. Raises
        CorruptionError, OSError."""
        message = one.message()
        if message.body is None:
            if in_pieces and is_large(message):
                self._engine.bodies.open(message).close()
            else:
                self._engine.load_body(self._index, one.seq, message)
                self._reads += 1
        elif not one.is_whole():
            if not one.is_persistent:
                raise CorruptionError(self._path, 0, f"message {one.seq}: wrong CRC-32")
            message = self._read(one.seq)
        return message

    def _read(self, seq: int) -> QueuedMessage:
        """Return a message from its slot or section, with the body unless it has a place of its own
        in the store. Raises CorruptionError, OSError."""
        (message,) = self._engine.read(self._index, [seq])
        if message.body is None and not message.store_file:
            self._engine.load_body(self._index, seq, message)
        self._reads += 1
        return message

    def _set_aside(self, one: "_Stored", error: CorruptionError) -> None:
        """Stop delivering a message that cannot be read. It stays alive."""
        self._change("UPDATE messages SET state = 'damaged' WHERE seq = ?", [one.seq])
        self._count([one], -1)
        self._report_damage(error)

    def _report_damage(self, error: CorruptionError) -> None:
        self._damaged += 1
        self._report("corruption", f"a message is set aside: {error}")

    def _report(self, kind: str, text: str) -> None:
        if self._on_event is not None:
            self._on_event(kind, f"queue {queue_title(self._index.name)!r}: {text}")

    def _attempts(self, one: "_Stored") -> int:
        return self._index.attempts.get(one.seq, 0) if one.is_persistent else one.attempts

    def count_crashes(self) -> None:
        """Do nothing: deliveries before a crash are not counted."""

    def drop(self, *, ack_required: bool = True) -> ReadyHead | None:
        first = self._first()
        if first is None:
            return None
        self._deliver(first, ack_required=ack_required)
        return first.head()

    def head(self) -> ReadyHead | None:
        first = self._first()
        return None if first is None else first.head()

    def dropwhile(self, predicate: Callable[[ReadyHead], bool], mode: int) -> ReadyHead | None:
        dead: list[int] = []
        try:
            while (head := self.head()) is not None and predicate(head):
                self.drop()
                dead.append(head.tag)
            self.ack(dead, mode)
        except BaseException:
            self.requeue(dead, mode, attempted=False)
            raise
        return head

    # ---- settling ------------------------------------------------------------------------------

    def _die(self, some: list["_Stored"], mode: int) -> None:
        """Log the death of messages, which are in the database, and remove them."""
        persistent = sorted([one.entry(self._index) for one in some if one.is_persistent],
                            key=seq_of)  # fmt: skip
        if persistent:
            self._engine.dequeue(self._index, persistent, mode)
        self._remove(some)

    def _remove(self, some: list["_Stored"]) -> None:
        """Remove dead messages from the database, and bodies of transient ones from the store."""
        self._change("DELETE FROM messages WHERE seq = ?", [one.seq for one in some])
        for one in some:
            if not one.is_persistent and one.store_file:
                self._engine.bodies.release(one.message())

    def _settled(self, some: list["_Stored"]) -> None:
        """Count messages that are not pending any more."""
        self._pending -= len(some)
        self._pending_bytes -= sum([one.size for one in some])

    def ack(self, tags: list[int], mode: int) -> list[int]:
        found = self._those(tags, PENDING)
        if found:
            self._die(found, mode)
            self._settled(found)
        return [one.id for one in found]

    def requeue(self, tags: list[int], mode: int, *, attempted: bool = True) -> list[int]:
        found = sorted(self._those(tags, PENDING), key=_seq_of)
        persistent = [one for one in found if one.is_persistent]
        if attempted and persistent:
            counted = [(one.seq, self._attempts(one) + 1) for one in persistent]
            self._engine.requeue(self._index, counted, mode)
        self._change(
            "UPDATE messages SET state = 'ready', attempts = attempts + 1 WHERE seq = ?"
            if attempted
            else "UPDATE messages SET state = 'ready' WHERE seq = ?",
            [one.seq for one in found],
        )
        self._settled(found)
        self._count(found, 1)
        return [one.id for one in found]

    def move(
        self, tag: int, targets: list[QueueIndex], header: bytes, mode: int, expiry_ms: int = 0
    ) -> int:
        found = self._those([tag], PENDING)
        if not found:
            raise KeyError(f"tag {tag} of queue {self._index.number} is not pending")
        one, engine = found[0], self._engine
        message = self._message(one, in_pieces=True)
        durable = [target for target in targets if target.is_durable and message.persistent]
        others = [target for target in targets if target not in durable]
        body = message.body
        shared = None if body is None else engine.placement.share_of(body, len(targets), message)
        with engine.share(shared):
            if durable:
                entry = Entry(tag, message, on_slot=tag not in self._index.section)
                lsn, _ = engine.move(self._index, entry, durable, header, mode, expiry_ms)
            if others and body is None:  # before it dies: both may refer to the same body
                engine.publish_stored(
                    others, header, engine.bodies.placed(message, is_persistent=False), expiry_ms
                )
            if durable:
                self._remove([one])
            else:
                self._die([one], mode)
                lsn = engine.log.last_lsn if message.persistent else 0
            self._settled([one])
            if others and body is not None:
                engine.publish_transient(others, header, body, expiry_ms)
        return lsn

    def pending(
        self, tag: int, *, with_header: bool = False, with_body: bool = False
    ) -> Delivery | None:
        found = self._those([tag], PENDING)
        if not found:
            return None
        one = found[0]
        if with_header or with_body:
            message = self._message(one, in_pieces=not with_body)
        else:
            message = one.message()
        return Delivery(tag, message, tag < self._mark.delivered, self._attempts(one))

    def entries(self, tags: list[int]) -> list[tuple[QueueIndex, list[Entry]]]:
        found = sorted(self._those(tags, PENDING), key=_seq_of)
        missing = set(tags) - {one.seq for one in found}
        if missing:
            raise KeyError(f"tag {min(missing)} of queue {self._index.number} is not pending")
        persistent = [one.entry(self._index) for one in found if one.is_persistent]
        return [(self._index, persistent)] if persistent else []

    def forget(self, tags: list[int]) -> None:
        found = self._those(tags, PENDING)
        self._remove(found)
        self._settled(found)

    def fold(self, fun: Callable[[Delivery, bool, A], tuple[bool, A]], acc: A) -> A:
        for one in self._each("state IN ('ready', 'pending')", -1, SLICE):
            delivery = self._seen(one)
            if delivery is None:
                continue
            goes_on, acc = fun(delivery, one.state == PENDING, acc)
            if not goes_on:
                break
        return acc

    def browse(self, after: int | None, n: int, *, in_pieces: bool = False) -> list[Delivery]:
        found: list[Delivery] = []
        if n <= 0:
            return found
        for one in self._each("state = 'ready'", -1 if after is None else after, n):
            delivery = self._seen(one)
            if delivery is not None:
                found.append(delivery)
                if len(found) >= n:
                    break
        return found

    def before_last(self, n: int) -> int | None:
        self._write()
        found = self._select("state = 'ready' ORDER BY seq DESC LIMIT 1 OFFSET ?", (n,))
        return found[0].seq if found else None

    def _each(self, where: str, after: int, n: int) -> Iterator["_Stored"]:
        """Yield messages above a seq, ascending, reading at most n at once."""
        self._write()
        while True:
            found = self._select(
                f"{where} AND seq > ? ORDER BY seq LIMIT ?", (after, min(n, SLICE))
            )
            if not found:
                return
            yield from found
            after = found[-1].seq

    def _seen(self, one: "_Stored") -> Delivery | None:
        """Return a message for a look, None if it is damaged (a fetch reports that)."""
        try:
            message = self._message(one)
        except CorruptionError:
            return None
        attempts = self._attempts(one)
        is_redelivered = one.seq < self._mark.delivered or attempts > 0
        return Delivery(one.seq, message, is_redelivered, attempts)

    def purge(self, mode: int) -> int:
        died = self._len
        if self._index.count:
            kept = self._select("state = 'pending' AND is_persistent ORDER BY seq")
            self._engine.purge(self._index, [one.entry(self._index) for one in kept], mode)
        self._purged()
        return died

    def _purged(self) -> None:
        """Remove all ready messages, which are dead."""
        self._release_arrived()
        self._held.arrived.clear()
        self._arrived_bytes = self._len = self._bytes = 0
        for one in self._select("state = 'ready' AND NOT is_persistent AND store_file"):
            self._engine.bodies.release(one.message())
        self.sql("DELETE FROM messages WHERE state != 'pending'")

    def _release_arrived(self) -> None:
        """Release bodies of transient messages that arrived and are not written yet."""
        for entry in self._held.arrived.values():
            if not entry.message.persistent:
                self._engine.bodies.release(entry.message)

    def purge_acks(self, mode: int) -> int:
        died = self._pending
        while self._pending:
            found = self._select("state = ? LIMIT ?", (PENDING, SLICE))
            self._die(found, mode)
            self._settled(found)
        return died

    # ---- leases --------------------------------------------------------------------------------

    def take(self, messages_max: int, bytes_max: int, now_ms: int) -> list[Taken]:
        found: list[_Stored] = []
        entries: list[Entry] = []
        bodies: list[bytes] = []
        taken = mark = 0
        for one in self._each("state = 'ready'", -1, messages_max):
            is_over = bool(found) and taken + one.size > bytes_max
            if len(found) >= messages_max or is_over or 0 < one.expiry_ms <= now_ms:
                break
            if self._mark.waits_for(one.seq, has_mark=False, out_per_s=0.0) is not None:
                break
            try:
                message = self._message(one, in_pieces=True)
            except CorruptionError as error:
                self._set_aside(one, error)
                continue
            found.append(one)
            entries.append(Entry(one.seq, message, one.is_on_slot(self._index)))
            bodies.append(message.body or b"")
            taken += one.size
            if one.is_persistent:
                mark = self._mark.beyond(one.seq, 0.0)
        if not found:
            return []
        self._change("DELETE FROM messages WHERE seq = ?", [one.seq for one in found])
        self._count(found, -1)
        return [Taken(self._index, entries, bodies, mark)]

    def may_take(self) -> bool:
        first = self._first()
        if first is None:
            return False
        return self._mark.waits_for(first.seq, has_mark=False, out_per_s=0.0) is None

    def leased_count(self) -> int:
        return self._index.leased.count

    def untake(self, taken: list[Taken]) -> None:
        for one in taken:
            found = [_Stored.of(entry.seq, entry.message) for entry in one.entries]
            self._insert(found)
            self._count(found, 1)

    def leased(self, taken: list[Taken], lsn: int) -> None:
        for one in taken:
            for entry in one.entries:
                if not entry.message.persistent:
                    self._engine.bodies.release(entry.message)
                elif entry.seq >= self._mark.delivered:
                    self._mark.delivered = entry.seq + 1
            if one.mark:
                self._mark.logged(one.mark, lsn)

    def returning(self, index: QueueIndex, seqs: list[int]) -> list[Row]:
        """Return nothing: `readmit` reads the slots."""
        return []

    def readmit(self, index: QueueIndex, seqs: list[int], rows: list[Row]) -> None:
        start = 0
        for i in range(1, len(seqs) + 1):  # a read is of one segment
            if i == len(seqs) or seqs[i] // index.slots != seqs[start] // index.slots:
                self._read_in(seqs[start:i])
                start = i

    # ---- counts --------------------------------------------------------------------------------

    def len(self) -> int:
        return self._len

    def depth(self) -> int:
        return self._len + self._pending + self._index.leased.count

    def body_bytes(self) -> int:
        return self._bytes

    def info(self) -> dict[str, int | float | str]:
        arrived = len(self._held.arrived)
        leased = self._index.leased
        return {
            "len": self._len, "depth": self.depth(), "bytes": self._bytes,
            "unacked_bytes": self._pending_bytes + leased.bytes, "ram_bytes": self.ram_bytes(),
            "ram_messages": arrived, "alphas": arrived, "betas": 0, "gammas": 0,
            "delta": self._len - arrived, "pending": self._pending, "paged_pending": self._pending,
            "leased": leased.count, "leased_bytes": leased.bytes, "set_aside": self._damaged,
            "q1": arrived, "q2": 0, "q3": 0, "q4": 0, "alpha_bytes": self._arrived_bytes,
            "elsewhere_bytes": 0, "row_bytes": 0, "is_flowed": False, "target_bytes": UNLIMITED,
            "disk_reads": self._reads, "disk_writes": self._writes, "in_per_s": 0.0,
            "out_per_s": 0.0, "ack_in_per_s": 0.0, "ack_out_per_s": 0.0, "mode": self._queue_mode,
            "max_bytes": self._limits[0], "min_bytes": self._limits[1], "share_bytes": UNLIMITED,
            "duration_target_s": float("inf"), "paged_by": "",
        }  # fmt: skip

    # ---- memory --------------------------------------------------------------------------------

    def ram_bytes(self) -> int:
        return self._arrived_bytes + (CACHE_KIB << 10)

    def elsewhere_bytes(self) -> int:
        return 0

    def unshare(self) -> None:
        """Do nothing: no body in RAM is counted as shared."""

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        if not 0 <= min_bytes <= max_bytes:
            raise ValueError(f"min {min_bytes} and max {max_bytes}: expected 0 <= min <= max")
        self._limits = max_bytes, min_bytes

    def set_share(self, share_bytes: int) -> None:
        """Do nothing; see the head of this module. So do the next two."""

    def set_ram_duration_target(self, seconds: float) -> None:
        """Do nothing."""

    def ram_duration(self) -> float:
        return float("inf")

    def out_bytes_per_s(self) -> float:
        return 0.0

    def set_queue_mode(self, mode: str) -> None:
        if mode not in QUEUE_MODES:
            raise ValueError(f"queue mode {mode!r}, expected one of {QUEUE_MODES}")
        self._queue_mode = mode

    def resume(self) -> bool:
        if self._held.arrived and not self._engine.blocked:
            self._try_to_write()
        return False

    def inhale(self, *, at_rest: bool = False) -> bool:
        return False

    # ---- life ----------------------------------------------------------------------------------

    def terminate(self) -> None:
        self._mark.terminate()
        self._close()

    def delete_and_terminate(self, mode: int) -> int:
        for one in self._select("NOT is_persistent AND store_file"):
            self._engine.bodies.release(one.message())
        self._release_arrived()
        self._len = self._bytes = self._pending = self._pending_bytes = self._arrived_bytes = 0
        self._close()
        return self._engine.delete_queue(self._index, mode)

    def _close(self) -> None:
        """Close and delete the database. What is not written yet stays with the engine, which needs
        it for a checkpoint or a delete. Raises OSError."""
        index = self._index
        holder = DictHolder()
        for entry in self._held.materialise(index.next_seq):
            holder.add(entry)
        index.holder = holder
        self._database.close()
        self._delete_files()


class _Stored:
    """A row of the database: the columns of `COLUMNS`."""

    __slots__ = ("attempts", "body", "crc", "expiry_ms", "header", "id", "is_persistent", "seq",
                 "size", "state", "store_file", "time")  # fmt: skip

    def __init__(
        self, seq: int, state: str, size: int, header: bytes, body: bytes | None, id: int,
        time: int, expiry_ms: int, store_file: int, is_persistent: int, attempts: int, crc: int,
    ) -> None:  # fmt: skip
        self.seq: int = seq
        self.state: str = state
        self.size: int = size
        self.header: bytes = header
        self.body: bytes | None = body
        self.id: int = id
        self.time: int = time
        self.expiry_ms: int = expiry_ms
        self.store_file: int = store_file
        self.is_persistent: bool = is_persistent != 0
        self.attempts: int = attempts
        self.crc: int = crc

    @classmethod
    def of(cls, seq: int, message: QueuedMessage) -> "_Stored":
        """Return the row of a ready message."""
        body = None if message.store_file else message.body or b""
        return cls(
            seq, READY, message.size, message.header, body, message.id, message.time,
            message.expiry_ms, message.store_file, message.persistent, 0,
            _crc(message.header, body),
        )  # fmt: skip

    def row(self) -> tuple[object, ...]:
        """Return the values of its columns."""
        return (
            self.seq, self.state, self.size, self.header, self.body, self.id, self.time,
            self.expiry_ms, self.store_file, int(self.is_persistent), self.attempts, self.crc,
        )  # fmt: skip

    def is_whole(self) -> bool:
        """Return whether header and body are as they were."""
        return _crc(self.header, self.body) == self.crc

    def message(self) -> QueuedMessage:
        """Return the message; its body is None if it is in the store."""
        return QueuedMessage(
            self.id, self.header, self.body, self.size, self.time, self.expiry_ms, self.store_file,
            self.is_persistent,
        )  # fmt: skip

    def head(self) -> ReadyHead:
        """Return the message as a ReadyHead."""
        return ReadyHead(self.seq, self.id, self.size, self.expiry_ms, self.time)

    def is_on_slot(self, index: QueueIndex) -> bool:
        """Return whether it has a slot, not a row in a section of the checkpoint."""
        return self.is_persistent and self.seq not in index.section

    def entry(self, index: QueueIndex) -> Entry:
        """Return its entry, for a record of the log."""
        return Entry(self.seq, self.message(), self.is_on_slot(index))


def _crc(header: bytes, body: bytes | None) -> int:
    return zlib.crc32(body or b"", zlib.crc32(header))


def _seq_of(one: _Stored) -> int:
    return one.seq
