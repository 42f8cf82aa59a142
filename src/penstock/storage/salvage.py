"""Salvage: everything of a damaged store that verifies, written into a new one.

A store that refuses to start has lost something that it had confirmed; what, only its owner can
judge. Salvage is the explicit way on: it reads the damaged store without changing it, writes a new
data directory with all that can still be read, and tells what is lost, by file and position. The
damaged one stays as it is, for a second look.

    checkpoint sections, log records, slots, rows, bodies: whatever verifies (salvage_state.py)
    -> a new StorageEngine: topology, then each queue's messages in their order

Kept are names and arguments, the order within each queue, headers, bodies, publish and expiry
times, attempts and the delivered mark. Not kept are message ids, seqs and queue numbers, which mean
nothing outside. A body that several queues shared is one body in the new store again.

Leases are not kept: seqs and ordinals are new ones, so a reader cannot go on where it was. What was
leased is ready, at its place, and told.

Streams keep the order, times and headers of their records; offsets count from 0 again, and named
readers are moved along (salvage_streams.py).

Messages may come back that were acknowledged, where what said so is lost. Then that is told too.

RAM: what `salvage_state.py` says, and about 150 bytes for each body in the store. Failure: the new
directory stays unfinished (see `fresh_directory.py`), and the next salvage begins it anew.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.clock import Clock
from penstock.errors import CorruptionError, NotAStoreError
from penstock.message import Message
from penstock.storage.data_directory import FreshDirectory, check_version
from penstock.storage.dump_text import queue_title
from penstock.storage.durability import OS
from penstock.storage.engine import StorageEngine
from penstock.storage.filesystem import FileSystem
from penstock.storage.offline import Offline, ReadOnlyFileSystem, Vhost
from penstock.storage.options import StorageOptions
from penstock.storage.queue_index import QueueIndex
from penstock.storage.queue_segment import Handles, SegmentFiles
from penstock.storage.routing_table import DurableQueue
from penstock.storage.salvage_log import cut_torn_tail, gaps, read_log
from penstock.storage.salvage_state import SalvagedQueue, SalvagedVhost, guess_slots
from penstock.storage.salvage_store import BodyFinder, read_checkpoint
from penstock.storage.salvage_streams import SalvagedStream
from penstock.storage.streams import Stream
from penstock.storage.verify import Problem, Progress

CHECKPOINT_BYTES = 32 << 20  # of bodies between two checkpoints of the new store
FLUSH_ENTRIES = 256


@dataclass(slots=True)
class SalvagedCount:
    """One queue: how many messages were taken, how many could not be read."""

    vhost: str
    name: str
    taken: int = 0
    lost: int = 0
    bytes: int = 0


@dataclass(slots=True)
class SalvagedRecords:
    """One stream, or partition: how many records were taken; of those lost, `losses` tells."""

    vhost: str
    name: str
    taken: int = 0
    bytes: int = 0


@dataclass(slots=True)
class SalvageReport:
    """losses: everything that could not be read or is not certain, by file and position."""

    path: str
    into: str
    losses: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    queues: list[SalvagedCount] = field(default_factory=list)
    streams: list[SalvagedRecords] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """Messages in the new store."""
        return sum(queue.taken for queue in self.queues)

    @property
    def lost(self) -> int:
        """Messages that were known to be there and could not be read."""
        return sum(queue.lost for queue in self.queues)


def salvage(
    fs: FileSystem,
    path: str,
    into: str,
    *,
    clock: Clock,
    rng: random.Random,
    progress: Progress | None = None,
    names: Sequence[bytes] = (),
) -> SalvageReport:
    """Read the store at `path` (data directory or vhost, used by nobody), write the new data
    directory `into`. names: that vhosts may have, see Offline. NotAStoreError if `path` is none,
    PathNotFreeError, LockedError, VersionError, DiskFullError, SyncFailedError, OSError."""
    report = SalvageReport(path, into)
    target = into.rstrip("/")
    with Offline(fs, path, names) as store:
        if (target + "/").startswith(store.path + "/"):
            raise NotAStoreError(into, f"it is inside of {path}, expected a path of its own")
        report.losses += [Problem(e.path, e.position, e.reason) for e in store.faults]
        fresh = FreshDirectory(fs, target, f"salvaged from {path}")
        try:
            for vhost in store.vhosts:
                _VhostSalvage(store.fs, vhost, fresh, report, clock, rng, progress).run()
        except BaseException:
            fresh.abandon()
            raise
        fresh.finish()
    check_version(fs, target)
    return report


class _VhostSalvage:
    """One vhost, from its damaged directory into a new one."""

    def __init__(
        self, fs: FileSystem, vhost: Vhost, fresh: FreshDirectory, report: SalvageReport,
        clock: Clock, rng: random.Random, progress: Progress | None,
    ) -> None:  # fmt: skip
        self._vhost = vhost
        self._report = report
        self._progress = progress
        looked_at = ReadOnlyFileSystem(fs)
        path = vhost.path
        losses = report.losses
        self._old = SalvagedVhost(looked_at, path, vhost.number, losses)
        slots = guess_slots(looked_at, path)
        found = read_checkpoint(looked_at, path, vhost.number, slots, losses)
        log = read_log(looked_at, path + "/wal", vhost.number, losses)
        self._bodies = BodyFinder(looked_at, path + "/msg_store_persistent", vhost.number)
        cut = found.manifest.head.cut_lsn if found is not None else -1
        if found is None and log.records:
            text = "without a checkpoint, what was acknowledged before its log begins may come back"
            losses.append(Problem(path + "/CURRENT", 0, text))
        torn = cut_torn_tail(log, cut, self._bodies.has)
        if torn:
            text = f"{torn} records behind the end of the log were never confirmed and are left out"
            report.notes.append(f"{path}/wal: {text}")
        losses += gaps(log, cut)
        self._old.load(found, log)
        self._shared: dict[int, tuple[int, int]] = {}  # old id -> (new id, new store file)
        self._unflushed = 0
        self._written = 0
        name = vhost.name
        if not name:
            name = f"salvaged-{vhost.number:016x}".encode()
            text = f"nothing says what name has this hash: the vhost is {name.decode()!r} now"
            losses.append(Problem(path + "/.vhost", 0, text))
        self._new = StorageEngine(
            fs, fresh.vhost(name), name, clock=clock, rng=rng,
            options=StorageOptions(segment_slots=self._old.slots),
        )  # fmt: skip

    def run(self) -> None:
        new = self._new
        try:
            targets = self._declare()
            total = len(self._old.queues)
            for done, (queue, target) in enumerate(targets):
                if self._progress is not None:
                    self._progress("queues", done, total)
                self._copy(queue, target)
            for stream in self._old.streams.streams.values():
                self._copy_stream(stream)
            self._tell_leases()
            missing, notes = self._old.batches.copy_into(new)
            self._report.losses += [Problem(at, 0, "the staged page is missing") for at in missing]
            self._report.notes += notes
            new.sync()
        except BaseException as error:
            new.stop(error)
            new.close()
            raise
        new.close()

    def _tell_leases(self) -> None:
        for queue, leases in self._old.leases.by_queue.items():
            title = queue_title(self._old.queue(queue).name)
            for lease in leases.values():
                text = (
                    f"reader {lease.reader!r} had leased {lease.count} messages of queue {title!r}"
                )
                self._report.notes.append(f"{text}: they are ready, and the reader is forgotten")

    def _declare(self) -> list[tuple[SalvagedQueue, QueueIndex]]:
        """The topology, queues with their new numbers."""
        new, old = self._new, self._old
        targets: list[tuple[SalvagedQueue, QueueIndex]] = []
        for exchange in old.routing.exchanges.values():
            new.apply_topology(exchange.record())
        for number in sorted(old.queues):
            queue = old.queues[number]
            known = old.declaration(queue) or DurableQueue(queue.name, number)
            name = queue.name
            if name in new.routing.queues:
                name += f"-salvaged-{number}".encode()
            targets.append(
                (queue, new.declare_queue(name, arguments=known.arguments, flags=known.flags))
            )
        for binding in old.routing.bindings:
            new.apply_topology(binding.record())
        for record in old.routing.parameter_records():
            new.apply_topology(record)
        return targets

    def _copy_stream(self, found: SalvagedStream) -> None:
        """A stream with its own times; each reader goes where as many records are below it."""
        new = self._new
        report = SalvagedRecords(self._vhost.title(), queue_title(found.name))
        self._report.streams.append(report)
        known = self._old.routing.queues.get(found.name)
        arguments = known.arguments if known is not None else b""
        name = found.name
        if name in new.routing.queues:
            name += f"-salvaged-{found.number}".encode()
        (target,) = new.declare_streams([(name, arguments, 0)], page_bytes=found.page_bytes)
        below: list[tuple[int, int]] = []  # (old offset, new offset) behind each gap
        wanted = -1
        for one in self._old.streams.records(found):
            if isinstance(one, Problem):
                self._report.losses.append(one)
                continue
            if one.offset != wanted:
                below.append((one.offset, target.next_offset))
            wanted = one.offset + 1
            new.append_stream(target, one.meta, one.payload, OS, one.time_us)
            report.taken += 1
            report.bytes += len(one.payload)
            self._wrote(len(one.payload))
        for reader, at in found.readers.items():
            kept = None if at.kept_from is None else _moved(at.kept_from, below, target)
            new.set_reader(target, reader, _moved(at.offset, below, target), OS, kept)

    def _copy(self, queue: SalvagedQueue, target: QueueIndex) -> None:
        old = self._old
        count = SalvagedCount(self._vhost.title(), queue_title(target.name))
        self._report.queues.append(count)
        delivered = 0
        attempts: list[tuple[int, int]] = []
        files: SegmentFiles | None = None
        for seq in list(queue.seqs(old.slots)):
            number = seq // old.slots
            if queue.path and (files is None or files.segment != number):
                if files is not None:
                    files.close()
                old.mend_headers(queue, number)
                files = SegmentFiles(
                    old.fs, f"{queue.path}/{number}", old.vhost, queue.number, number, old.slots,
                    Handles(),
                )  # fmt: skip
            try:
                message = old.message(queue, files, seq, self._bodies.read)
            except CorruptionError as error:
                count.lost += 1
                text = f"{error.reason} (seq {seq} of queue {count.name!r})"
                self._report.losses.append(Problem(error.path, error.position, text))
                continue
            new_seq = target.next_seq
            self._publish(message, target)
            count.taken += 1
            count.bytes += message.size
            if seq < queue.mark:
                delivered = new_seq + 1
            if seq in queue.attempts:
                attempts.append((new_seq, queue.attempts[seq]))
        if files is not None:
            files.close()
        if delivered:
            self._new.mark(target, delivered, OS)
        for start in range(0, len(attempts), FLUSH_ENTRIES):
            self._new.requeue(target, attempts[start : start + FLUSH_ENTRIES], OS)

    def _publish(self, found: Message, target: QueueIndex) -> None:
        """Into the new store: what was in the old one's store goes there again, once."""
        new = self._new
        assert found.body is not None, "a salvaged message has its body"
        new.time_s = found.time  # of whatever is published next, until a flush
        if not found.store_file:
            message = new.publish([target], found.header, found.body, OS, found.expiry_ms)
        else:
            message = new.new_message(found.header, found.body, found.expiry_ms)
            shared = self._shared.get(found.id)
            if shared is None:
                new.store_body(message, found.body)
                shared = self._shared[found.id] = (message.id, message.store_file)
            message.id, message.store_file = shared
            message.body = None
            new.publish_spooled([target], found.header, message, OS)
        self._wrote(found.size)

    def _wrote(self, size: int) -> None:
        new = self._new
        self._unflushed += 1
        self._written += size
        if self._unflushed >= FLUSH_ENTRIES:
            self._unflushed = 0
            new.flush()
            new.poll()
        if self._written >= CHECKPOINT_BYTES:
            self._written = 0
            new.checkpoint()


def _moved(offset: int, below: list[tuple[int, int]], target: Stream) -> int:
    """The offset in the new stream of what had `offset` in the old one."""
    moved = 0
    for old, new in below:
        if old <= offset:
            moved = new + offset - old
        else:
            moved = min(moved, new)
            break
    return min(moved, target.next_offset)
