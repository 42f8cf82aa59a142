"""Stats: what is in a store that is not running, and what it costs, without reading any message.

Bytes by kind of file, live and dead bytes of the MessageStore, messages and bytes of each queue,
how much log a start would read, and about how much RAM the engine would need. All of it comes from
the checkpoint, the log after it and the sizes of files. The RAM is an estimate from the sizes of
what the engine keeps per queue, segment, row, store file and stored body (constants below), without
the interpreter and caches.

Writes nothing. Failure: that of `recovery.load` (CorruptionError, VersionError ...) and of the
locks (offline.py).
"""

from dataclasses import dataclass, field
from typing import Final

from penstock.storage.files.data_directory import queue_title
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.files.offline import Offline, ReadOnlyFileSystem, Vhost
from penstock.storage.files.options import StorageOptions
from penstock.storage.journal import recovery
from penstock.storage.journal.state import StorageState

QUEUE_RAM: Final = 1800
SEGMENT_RAM: Final = 250
STREAM_RAM: Final = 4000
ROW_RAM: Final = 400
FILE_RAM: Final = 700

KINDS: Final = {
    ".wal": "log", ".new": "log", ".qi": "slots", ".qs": "small bodies", ".rdq": "store",
    ".hint": "store tables", ".msg": "large bodies", "reserve": "reserve",
    "spill_reserve": "reserve", ".page": "stream pages", ".idx": "stream indexes",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue. count, bytes: live persistent messages and their bodies. rows: messages in the
    checkpoint itself. leased: messages that readers have leased."""

    vhost: str
    name: str
    number: int
    count: int
    bytes: int
    segments: int
    rows: int
    leased: int


@dataclass(frozen=True, slots=True)
class StreamStats:
    """One stream, or one partition of it: the offset of its oldest record and of its next one, the
    bytes of its pages, and how many named readers it has."""

    vhost: str
    name: str
    number: int
    first: int
    next: int
    bytes: int
    readers: int


@dataclass(frozen=True, slots=True)
class BatchStats:
    """The last batch of a query: how many of its pages are moved, of how many, and the rows and
    bytes of all of them."""

    vhost: str
    query: str
    number: int
    page: int
    pages: int
    rows: int
    bytes: int
    is_done: bool


@dataclass(slots=True)
class Stats:
    """All sizes in bytes."""

    path: str
    files: dict[str, tuple[int, int]] = field(default_factory=dict)  # kind -> number, bytes
    queues: list[QueueStats] = field(default_factory=list)
    streams: list[StreamStats] = field(default_factory=list)
    batches: list[BatchStats] = field(default_factory=list)
    vhosts: int = 0
    store_live_bytes: int = 0
    store_dead_bytes: int = 0
    store_bodies: int = 0
    log_records: int = 0  # since the last checkpoint
    ram_bytes: int = 0  # estimate
    clean_vhosts: int = 0  # stopped in order

    @property
    def messages(self) -> int:
        """Live persistent messages of all queues."""
        return sum(queue.count for queue in self.queues)


def stats(fs: FileSystem, path: str) -> Stats:
    """Return the figures of a data directory or one vhost's directory. Raises as the head says."""
    found = Stats(path)
    with Offline(fs, path) as store:
        for fault in store.faults:
            raise fault
        for vhost in store.vhosts:
            found.vhosts += 1
            _count_files(store.fs, vhost.path, found.files)
            _count_state(ReadOnlyFileSystem(store.fs), vhost, found)
    return found


def _count_files(fs: FileSystem, path: str, into: dict[str, tuple[int, int]]) -> None:
    for name in fs.list(path):
        inner = f"{path}/{name}"
        if fs.is_dir(inner):
            _count_files(fs, inner, into)
            continue
        kind = KINDS.get(name) or KINDS.get(name[name.rfind(".") :], "other")
        kind = "staged pages" if "/staging/" in inner and kind.startswith("stream") else kind
        kind = "checkpoints" if name.startswith("checkpoint-") else kind
        number, size = into.get(kind, (0, 0))
        into[kind] = (number + 1, size + fs.size(inner))


def _count_state(fs: FileSystem, vhost: Vhost, found: Stats) -> None:
    recovery.make_directories(fs, vhost.path)
    loaded = recovery.load(
        fs, vhost.path, vhost.number, StorageOptions(), lambda kind, text: None, ram_bytes=0
    )
    state = loaded.state
    for queue in sorted(state.queues.values(), key=lambda q: q.name):
        found.queues.append(
            QueueStats(
                vhost.title(), queue_title(queue.name), queue.number, queue.count,
                queue.bytes, len([s for s in queue.segments.values() if s.count]),
                len(queue.section), queue.leased.count,
            )
        )  # fmt: skip
    for stream in sorted(state.streams.by_number.values(), key=lambda s: s.name):
        found.streams.append(
            StreamStats(
                vhost.title(), queue_title(stream.name), stream.number, stream.first_offset,
                stream.next_offset, stream.queue.bytes, len(stream.readers),
            )
        )  # fmt: skip
    for batch in sorted(state.batches.by_query.values(), key=lambda b: b.query):
        found.batches.append(
            BatchStats(
                vhost.title(), batch.query, batch.number, batch.page, batch.page_count,
                batch.rows, batch.bytes, batch.is_done,
            )
        )  # fmt: skip
    store = state.store
    found.store_live_bytes += store.live_bytes
    found.store_dead_bytes += max(store.total_bytes - store.live_bytes, 0)
    found.store_bodies += store.live_count
    found.log_records += loaded.records
    found.clean_vhosts += 1 if loaded.is_clean else 0
    found.ram_bytes += _ram_bytes(state)
    state.close()


def _ram_bytes(state: StorageState) -> int:
    ram = 0
    for queue in state.queues.values():
        ram += QUEUE_RAM + ROW_RAM * len(queue.section)
        for segment in queue.segments.values():
            ram += SEGMENT_RAM + (len(segment.bitmap) if segment.bitmap is not None else 0)
            if queue.leased.in_segment(segment.number):
                ram += SEGMENT_RAM + (queue.slots >> 3)
    ram += STREAM_RAM * len(state.streams.by_number)
    for file in state.store.files:
        counts = file.counts
        ram += FILE_RAM + len(counts.live) + (len(counts.extra) if counts.extra else 0)
    own = state.store.own_files.capture()
    return ram + len(own.live) + 100 * len(own.shared)
