"""Stores for the tests of the tools: a data directory with a bit of everything, always the same.

`fill` is a script, not chance: queues of each size, bodies of each placement, every record type,
an exchange, a binding and a policy. `content` is what a consumer of every queue would see.
"""

import random
from collections.abc import Callable

from penstock.clock import ManualClock
from penstock.message import Entry
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import DISK
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.index.routing_table import DurableBinding, DurableExchange, set_parameter
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs

DATA = "/data"
VHOST = b"/"
OPTIONS = StorageOptions(
    segment_slots=4,
    queue_index_embed_msgs_below=64,
    wal_inline_below=128,
    transient_inline_below=128,
    wal_segment_bytes_min=8192,
    wal_segment_bytes_max=8192,
    msg_store_file_size_limit=600,
    own_file_from=900,
    small_queue_entries=3,
    disk_free_limit=0,
    tx_record_bytes=300,
    tx_part_bytes=150,
    checkpoint_seconds=1e9,
)

Content = dict[bytes, list[tuple[bytes, bytes, int, int, int]]]


def open_vhost(
    fs: FileSystem, path: str, name: bytes = VHOST, *, seed: int = 1,
    on_event: Callable[[str, str], None] | None = None,
) -> StorageEngine:  # fmt: skip
    return StorageEngine(
        fs, path, name, clock=ManualClock(), rng=random.Random(seed), options=OPTIONS,
        on_event=on_event,
    )  # fmt: skip


def running(fill: Callable[[StorageEngine], None]) -> StorageEngine:
    """A vhost of its own, filled, on a disk that can be crashed."""
    fs = FaultyFileSystem()
    engine = open_vhost(fs, DataDirectory(fs, DATA).vhost_path(VHOST))
    fill(engine)
    return engine


def stopped(fill: Callable[[StorageEngine], None], *, is_clean: bool) -> FaultyFileSystem:
    """What is on the disk of such a vhost that was closed, or killed."""
    engine = running(fill)
    fs = engine.fs
    assert isinstance(fs, FaultyFileSystem)
    if is_clean:
        engine.close()
    return fs.crash("kept" if is_clean else "killed")


def entries(engine: StorageEngine, queue: QueueIndex, *seqs: int) -> list[Entry]:
    return [engine.entry(queue, seq) for seq in seqs]


def fill(engine: StorageEngine) -> None:
    """Everything once; half of it before a checkpoint."""
    big, small, pair = (engine.declare_queue(name) for name in (b"big", b"small", b"pair"))
    engine.apply_topology(DurableExchange(b"logs", b"topic").record())
    engine.apply_topology(DurableBinding(b"logs", b"q", b"big", b"a.#").record())
    engine.apply_topology(set_parameter(b"policy", b"limit", b"{}"))
    for i in range(9):
        header = b"" if i % 3 else b"header %d" % i
        engine.publish([big], header, b"body %d " % i * (i + 1), DISK, 0 if i % 4 else 2 << 40)
    engine.publish([big, pair], b"shared", b"shared body " * 20, DISK)
    engine.publish([big], b"own", b"own file " * 150, DISK)
    engine.publish([small], b"", b"tiny", DISK)
    engine.publish([pair], b"H" * 300, b"stored " * 40, DISK)
    engine.publish([big], b"", b"stored too " * 30, DISK)
    engine.sync()
    engine.dequeue(big, entries(engine, big, 1, 2, 6), DISK)
    engine.mark(big, 4, DISK)
    engine.requeue(big, [(0, 2), (4, 1)], DISK)
    engine.checkpoint()
    _after(engine, big, small, pair)


def _after(engine: StorageEngine, big: QueueIndex, small: QueueIndex, pair: QueueIndex) -> None:
    engine.publish([small], b"after", b"after the cut", DISK)
    engine.publish([big, small], b"", b"shared later " * 15, DISK, 2 << 40)
    engine.move(big, entries(engine, big, 0)[0], [pair], b"moved", DISK)
    engine.dequeue(big, entries(engine, big, 3, 9), DISK)
    tx = engine.begin()
    tx.publish([big], b"tx", b"in a transaction")
    tx.dequeue(small, entries(engine, small, 0))
    tx.commit(DISK)
    tx = engine.begin()
    for i in range(6):
        tx.publish([big], b"part %d" % i, b"of a large transaction " * 3)
    tx.commit(DISK)
    engine.purge(pair, entries(engine, pair, 2), DISK)
    gone = engine.declare_queue(b"gone")
    engine.publish([gone], b"", b"to be deleted", DISK)
    engine.delete_queue(gone)
    engine.sync()


def make(*, is_clean: bool = False) -> FaultyFileSystem:
    """The data directory, stopped in order or killed after an idle moment."""
    fs = FaultyFileSystem()
    data = DataDirectory(fs, DATA)
    engine = open_vhost(fs, data.vhost_path(VHOST))
    fill(engine)
    if is_clean:
        engine.close()
        data.close()
        return fs.fork()
    clock = engine.clock
    assert isinstance(clock, ManualClock)
    engine.log.prepare_ahead()
    for _ in range(3):
        engine.poll()
        clock.advance(0.06)
        engine.log.tick()
        engine.poll()
    return fs.crash("killed")


def vhost_path(fs: FileSystem, data: str = DATA) -> str:
    """The directory of the only vhost."""
    (name,) = fs.list(data + "/vhosts")
    return f"{data}/vhosts/{name}"


def content(fs: FaultyFileSystem, data: str = DATA) -> Content:
    """queue -> (header, body, time, expiry, attempts) in order; opens a copy."""
    copy = fs.crash("killed")
    path = vhost_path(copy, data)
    engine = open_vhost(copy, path, copy.read(path + "/.vhost").removesuffix(b"\n"), seed=5)
    return engine_content(engine)


def engine_content(engine: StorageEngine) -> Content:
    """The same of a running engine."""
    found: Content = {}
    for queue in engine.state.queues.values():
        found[queue.name] = []
        for seq in live_seqs(queue):
            message = engine.entry(queue, seq).message
            body = message.body
            if body is None:
                body = engine.load_body(queue, seq, message)
            found[queue.name].append(
                (message.header, body, message.time, message.expiry_ms,
                 queue.attempts.get(seq, 0))
            )  # fmt: skip
    return found


def image(fs: FaultyFileSystem, below: str = "") -> dict[str, bytes]:
    """Every file and its bytes, but locks."""
    found: dict[str, bytes] = {}
    for name in fs.names():
        path = name if name.startswith("/") else "/" + name
        if not path.endswith("/") and not path.endswith("/LOCK") and path.startswith(below):
            found[path] = fs.read(path)
    return found
