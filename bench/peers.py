"""Embedded queues of others beside ours: put, put in batches, get and ack, at two backlogs.

    python bench/peers.py measure '{"data": DIR, "peer": NAME, ...}'      prints one line of JSON

Each runs in a process of its own, called by queue_bench.py. What each is, and how it is brought to
the durability mode that the figure names (`os`: survives a kill -9; `disk`: synced before put
returns):

    penstock              durability="os" and "disk"; acks never wait for a sync
    persist-queue, files  a pickle per message in chunk files, and a file that is renamed per call:
                          `os` only, for what it renames is not synced
    persist-queue, SQL    SQLiteAckQueue; synchronous NORMAL for `os`, FULL for `disk`
    litequeue             SQLite, text; NORMAL is what it sets itself, FULL for `disk`
    diskcache             its Deque, SQLite; NORMAL is its own, FULL for `disk`; no acks: what is
                          taken is gone
    SQLite                a table by hand: INSERT and commit; SELECT the first, DELETE it and commit

CPU is that of the whole process, with the library's own threads. A backlog is kept at its depth:
what is taken is put back between two measured stretches.
"""

import json
import sqlite3
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import penstock

Result = dict[str, Any]

BATCH = 100
RUNS = 3


class Peer(ABC):
    """One queue, opened in a new directory in one of its modes."""

    package: str  # that is installed
    modes: tuple[str, ...] = ("os", "disk")
    has_batches = True

    def __init__(self, path: str, mode: str, size: int) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)
        self.body: Any = b"b" * size
        self.open(path, mode)

    @abstractmethod
    def open(self, path: str, mode: str) -> None: ...

    @abstractmethod
    def put(self) -> None: ...

    def put_batch(self) -> None:
        """BATCH messages in one go, as far as there is such a thing."""
        for _ in range(BATCH):
            self.put()

    @abstractmethod
    def get_and_ack(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class Penstock(Peer):
    package = "penstock"

    def open(self, path: str, mode: str) -> None:
        self._box = penstock.open(path, durability=mode)
        self._queue = self._box.queue("bench")

    def put(self) -> None:
        self._queue.put(self.body)

    def put_batch(self) -> None:
        self._queue.put_many([self.body] * BATCH)

    def get_and_ack(self) -> None:
        self._queue.get(timeout=0).ack()

    def close(self) -> None:
        self._box.close()


class PersistFiles(Peer):
    package = "persist-queue"
    modes = ("os",)
    has_batches = False

    def open(self, path: str, mode: str) -> None:
        import persistqueue

        self._queue = persistqueue.Queue(path, autosave=True)

    def put(self) -> None:
        self._queue.put(self.body)

    def get_and_ack(self) -> None:
        self._queue.get(block=False)

    def close(self) -> None:
        """It has nothing to close."""


class PersistSql(Peer):
    package = "persist-queue"
    has_batches = False

    def open(self, path: str, mode: str) -> None:
        import persistqueue

        self._queue = persistqueue.SQLiteAckQueue(path)
        level = "FULL" if mode == "disk" else "NORMAL"
        self._queue._putter.execute(f"PRAGMA synchronous={level}")

    def put(self) -> None:
        self._queue.put(self.body)

    def get_and_ack(self) -> None:
        self._queue.ack(self._queue.get(block=False))

    def close(self) -> None:
        self._queue.close()


class LiteQueue(Peer):
    package = "litequeue"

    def open(self, path: str, mode: str) -> None:
        import litequeue

        self.body = self.body.decode()
        self._queue = litequeue.LiteQueue(f"{path}/queue.db")
        if mode == "disk":
            self._queue.conn.execute("PRAGMA synchronous=FULL")

    def put(self) -> None:
        self._queue.put(self.body)

    def put_batch(self) -> None:
        with self._queue.transaction():
            for _ in range(BATCH):
                self._queue.put(self.body)

    def get_and_ack(self) -> None:
        self._queue.done(self._queue.pop().message_id)

    def close(self) -> None:
        self._queue.close()


class DiskCache(Peer):
    package = "diskcache"

    def open(self, path: str, mode: str) -> None:
        import diskcache

        level = 2 if mode == "disk" else 1
        self._cache = diskcache.Cache(path, sqlite_synchronous=level, eviction_policy="none")
        self._deque = diskcache.Deque.fromcache(self._cache)

    def put(self) -> None:
        self._deque.append(self.body)

    def put_batch(self) -> None:
        with self._deque.transact():
            for _ in range(BATCH):
                self._deque.append(self.body)

    def get_and_ack(self) -> None:
        self._deque.popleft()

    def close(self) -> None:
        self._cache.close()


class PlainTable(Peer):
    package = "SQLite"

    def open(self, path: str, mode: str) -> None:
        self._db = sqlite3.connect(f"{path}/queue.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'FULL' if mode == 'disk' else 'NORMAL'}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, body BLOB NOT NULL)"
        )

    def put(self) -> None:
        self._db.execute("INSERT INTO queue (body) VALUES (?)", (self.body,))

    def put_batch(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        rows = [(self.body,)] * BATCH
        self._db.executemany("INSERT INTO queue (body) VALUES (?)", rows)
        self._db.execute("COMMIT")

    def get_and_ack(self) -> None:
        db = self._db
        id, _ = db.execute("SELECT id, body FROM queue ORDER BY id LIMIT 1").fetchone()
        db.execute("DELETE FROM queue WHERE id = ?", (id,))

    def close(self) -> None:
        self._db.close()


PEERS: dict[str, type[Peer]] = {
    "penstock": Penstock,
    "persist-queue, files": PersistFiles,
    "persist-queue, SQL": PersistSql,
    "litequeue": LiteQueue,
    "diskcache": DiskCache,
    "SQLite": PlainTable,
}


def installed(peer: str) -> str:
    """Its version; "" if it is not installed."""
    package = PEERS[peer].package
    if package == "SQLite":
        return sqlite3.sqlite_version
    if package == "penstock":
        return penstock.__version__
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def stretches(
    op: Callable[[], None], seconds: float, calls: int, between: Callable[[], None], each: int = 1
) -> Result:
    """RUNS times, `seconds` in sum: stretches of `calls` of `op`, which does `each` messages. µs of
    CPU per message, and messages per second of wall clock, of each run; without `between`."""
    cpu_us: list[float] = []
    rates: list[float] = []
    for _ in range(RUNS):
        cpu = wall = 0.0
        n = 0
        until = time.perf_counter() + seconds / RUNS
        while not n or time.perf_counter() < until:
            between()
            started, cpu_started = time.perf_counter(), time.process_time()
            for _ in range(calls):
                op()
            cpu += time.process_time() - cpu_started
            wall += time.perf_counter() - started
            n += calls * each
        cpu_us.append(cpu / n * 1e6)
        rates.append(n / wall)
    return {"cpu_us": cpu_us, "per_s": rates}


def measure(
    data: str, peer: str, mode: str, size: int, seconds: float, depths: list[int]
) -> Result:
    """Puts, puts in batches, and gets with acks at each of the depths, hundreds of messages."""
    queue = PEERS[peer](data, mode, size)

    def nothing() -> None:
        pass

    for _ in range(10):  # page cache, allocator, the first segment of a log
        queue.put()
        queue.get_and_ack()
    result: Result = {"version": installed(peer), "put": {}, "batch": {}, "get": []}
    result["put"] = stretches(queue.put, seconds, 10 if mode == "disk" else BATCH, nothing)
    if queue.has_batches:
        result["batch"] = stretches(queue.put_batch, seconds, 1, nothing, BATCH)
    queue.close()
    for wanted in depths:
        found = gets(f"{data}-{wanted}", peer, mode, size, seconds, wanted)
        result["get"].append({"depth": wanted, **found})
    return result


def gets(path: str, peer: str, mode: str, size: int, seconds: float, wanted: int) -> Result:
    """Gets with acks at a backlog, which is made in mode `os`: some take their time in `disk`."""
    calls = 10 if mode == "disk" else BATCH
    queue = PEERS[peer](path, "os", size)
    for _ in range(wanted // BATCH):
        queue.put_batch()
    queue.close()
    queue = PEERS[peer](path, mode, size)
    depth = wanted

    def refill() -> None:
        nonlocal depth
        while depth < wanted:
            queue.put_batch()
            depth += BATCH
        depth -= calls

    found = stretches(queue.get_and_ack, seconds, calls, refill)
    queue.close()
    return found


def main() -> None:
    scenario, given = sys.argv[1], json.loads(sys.argv[2])
    assert scenario == "measure"
    print(json.dumps(measure(**given)), flush=True)


if __name__ == "__main__":
    main()
