"""SalvagedVhost: what a damaged store held, as far as checkpoint, log and slots still say.

It is a LogState as StorageState is: the records of the log are applied over the checkpoint. But it
expects that pieces are missing: an operation on an unknown queue creates that queue, or is passed
over, and nothing is counted, because the new store counts again.

    has a section in the checkpoint       lives as the section says
    has none (lost with the checkpoint)   every slot that verifies lives, until a record says no:
                                          a message twice is better than none, and it is reported
    is only known from its directory      gets the name in `.queue_name`, else "salvaged-<number>"

A message is looked for in the log after the cut, in the section, in its slot, and at last in what
the log still has from before the cut: a slot may be damaged while the record that it was made from
is still there.

RAM: a bit for each seq of segments with live messages; messages that the log holds.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Final

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.message import Entry, Message
from penstock.storage.batches import BatchRecord
from penstock.storage.checkpoint import Manifest
from penstock.storage.data_directory import queue_name
from penstock.storage.durability import NONE
from penstock.storage.filesystem import FileSystem
from penstock.storage.leases import LeaseTable
from penstock.storage.queue_index import Row, Ticks
from penstock.storage.queue_segment import (
    HEADER_BYTES,
    MAGIC_QI,
    MAGIC_QS,
    SLOT_BYTES,
    VERSION,
    SegmentFiles,
    decode_slot,
    queue_seed,
)
from penstock.storage.record import (
    LeaseData,
    Op,
    Place,
    ReaderData,
    Record,
    Run,
    StoreRef,
    StreamData,
)
from penstock.storage.record_types import (
    AppliedRecord,
    LogState,
    Publish,
    TxPart,
    apply_all,
    operation_of,
)
from penstock.storage.routing_table import DurableQueue, RoutingTable
from penstock.storage.salvage_batches import SalvagedBatches
from penstock.storage.salvage_log import FoundLog, FoundRecord
from penstock.storage.salvage_store import FoundCheckpoint
from penstock.storage.salvage_streams import SalvagedStreams
from penstock.storage.streams import STREAM_FLAG
from penstock.storage.verify import Problem

DEFAULT_SLOTS: Final = 4096
_SLOTS_AT: Final = 24  # in the header of a .qi

_HEADER: Final = struct.Struct(">4sHHQIII")
_U32: Final = struct.Struct(">I")


class SalvagedQueue:
    """One queue of the damaged store."""

    def __init__(self, number: int, name: bytes, path: str) -> None:
        self.number = number
        self.name = name
        self.path = path  # "" if it has no directory
        self.next_seq = 0  # what the checkpoint says; older records are applied already
        self.mark = 0
        self.live: dict[int, bytearray] = {}  # segment -> bitmap
        self.held: dict[int, Message] = {}  # from the log after the cut
        self.older: dict[int, Message] = {}  # from the log before it
        self.rows: dict[int, Row] = {}
        self.attempts: dict[int, int] = {}
        self.has_section = False

    def set(self, seq: int, slots: int) -> None:
        bits = self.live.setdefault(seq // slots, bytearray((slots + 7) >> 3))
        rel = seq % slots
        bits[rel >> 3] |= 1 << (rel & 7)

    def clear(self, seq: int, slots: int) -> None:
        bits = self.live.get(seq // slots)
        if bits is not None:
            rel = seq % slots
            bits[rel >> 3] &= 0xFF ^ (1 << (rel & 7))
        self.held.pop(seq, None)
        self.rows.pop(seq, None)
        self.attempts.pop(seq, None)

    def seqs(self, slots: int) -> Iterator[int]:
        """All live seqs, ascending."""
        for number in sorted(self.live):
            bits = self.live[number]
            for rel in range(slots):
                if bits[rel >> 3] >> (rel & 7) & 1:
                    yield number * slots + rel


class SalvagedVhost(LogState):
    """One vhost of it; `load` first, then `message` for each live seq."""

    def __init__(self, fs: FileSystem, path: str, vhost: int, losses: list[Problem]) -> None:
        self.fs = fs
        self.path = path
        self.vhost = vhost
        self.losses = losses
        self.routing = RoutingTable(Ticks())
        self.queues: dict[int, SalvagedQueue] = {}
        self.slots = guess_slots(fs, path)
        self.streams = SalvagedStreams(fs, path, losses)
        self.leases = LeaseTable()
        self.batches = SalvagedBatches(fs, path)
        self._directories: dict[int, str] = {}  # queue number -> path
        self._parts: dict[int, list[Op]] = {}
        self._deleted: set[int] = set()
        for name in fs.list(path + "/queues") if fs.is_dir(path + "/queues") else []:
            digits = name.rpartition(".")[2]
            if digits.isdecimal():
                self._directories[int(digits)] = f"{path}/queues/{name}"

    # ---- the state -----------------------------------------------------------------------------

    def load(self, found: FoundCheckpoint | None, log: FoundLog) -> None:
        """Fold the log over the checkpoint."""
        cut = -1
        if found is not None:
            cut = found.manifest.head.cut_lsn
            self._load_manifest(found.manifest)
        if found is None or not found.has_topology:
            for number in self._directories:
                self.queue(number)
            self.streams.add_all()
        for queue in self.queues.values():
            if not queue.has_section:
                self._take_all_slots(queue)
        for one in log.records:
            if one.record.lsn > cut:
                self._apply(one)
            else:
                self._keep_older(one.record)
        for transaction in self._parts:
            text = f"the parts of transaction {transaction} have no commit"
            self.losses.append(Problem(self.path + "/wal", 0, text))

    def _load_manifest(self, manifest: Manifest) -> None:
        self.slots = manifest.head.segment_slots
        for data in manifest.topology:
            self.apply_topology(data)
        self.streams.load(manifest)
        for data in manifest.leases:
            self.leases.restore(data)
        self.batches.restore(manifest.batches)
        for number, section in manifest.queues.items():
            queue = self.queue(number)
            queue.has_section = True
            queue.next_seq, queue.mark = section.next_seq, section.mark
            queue.rows, queue.attempts = dict(section.rows), dict(section.attempts)
            for segment in section.segments.values():
                for seq in segment.seqs(self.slots):
                    queue.set(seq, self.slots)

    def queue(self, number: int) -> SalvagedQueue:
        """The queue of this number, known or not."""
        queue = self.queues.get(number)
        if queue is None:
            path = self._directories.get(number, "")
            name = next((q.name for q in self.routing.queues.values() if q.number == number), b"")
            name = name or (queue_name(self.fs, path) if path else b"")
            queue = SalvagedQueue(number, name or f"salvaged-{number}".encode(), path)
            self.queues[number] = queue
        return queue

    def _take_all_slots(self, queue: SalvagedQueue) -> None:
        """Nobody says what lives in this queue: everything that verifies."""
        names = self.fs.list(queue.path) if queue.path else []
        for name in names:
            stem, _, ending = name.rpartition(".")
            if ending != "qi" or not stem.isdecimal():
                continue
            data = self.fs.read(f"{queue.path}/{name}")
            seed = queue_seed(self.vhost, queue.number)
            base = int(stem) * self.slots
            for rel in range(self.slots):
                place = HEADER_BYTES + rel * SLOT_BYTES
                if decode_slot(seed, base + rel, data, place) is not None:
                    queue.set(base + rel, self.slots)
        if names:
            text = f"what of queue {queue.name!r} is acknowledged is lost: all of it is taken"
            self.losses.append(Problem(queue.path, 0, text))

    def _apply(self, found: FoundRecord) -> None:
        one = found.record
        at = AppliedRecord(one.lsn, NONE, {}, one.segment, one.offset)
        try:
            operation_of(one).apply(self, at)
        except (ValueError, KeyError, IndexError) as error:
            text = f"record {one.lsn} cannot be applied: {error}"
            self.losses.append(Problem(found.path, one.offset, text))

    # ---- what records do -----------------------------------------------------------------------

    def apply_publish(
        self, message: Message, places: list[Place], born: list[Entry] | None, is_held: bool
    ) -> None:
        for number, seq in places:
            if number in self._deleted:
                continue
            queue = self.queue(number)
            if seq >= queue.next_seq:
                queue.set(seq, self.slots)
                queue.held[seq] = message
            else:
                queue.older[seq] = message

    def apply_dequeue(
        self, lsn: int, number: int, runs: list[Run], stores: list[StoreRef], entries: list[Entry]
    ) -> None:
        queue = self.queue(number)
        for first, n, _, _ in runs:
            for seq in range(first, first + n):
                queue.clear(seq, self.slots)

    def apply_requeue(self, number: int, attempts: list[tuple[int, int]]) -> None:
        self.queue(number).attempts.update(attempts)

    def apply_mark(self, number: int, mark: int) -> None:
        queue = self.queue(number)
        queue.mark = max(queue.mark, mark)

    def apply_purge(self, lsn: int, number: int, upper: int, kept: list[Run]) -> None:
        runs = kept + self.leases.runs_of(number)
        stay = {seq for first, n, _, _ in runs for seq in range(first, first + n)}
        queue = self.queue(number)
        for seq in [s for s in queue.seqs(self.slots) if s < upper and s not in stay]:
            queue.clear(seq, self.slots)

    def apply_delete(self, lsn: int, number: int) -> None:
        self.routing.delete_queue(number)
        self.queues.pop(number, None)
        self.leases.delete(number)
        self._deleted.add(number)
        self.streams.delete(number)

    def apply_topology(self, data: bytes) -> None:
        self.routing.apply(data)
        for declared in self.routing.queues.values():
            if declared.flags & STREAM_FLAG:
                self.streams.add(declared.number, declared.name)
            elif declared.number not in self.queues:
                self.queue(declared.number)

    def apply_release(self, number: int, segment: int, refs: list[StoreRef] | None) -> None:
        """Nothing: the new store counts references anew."""

    def apply_stream(self, lsn: int, mode: int, found: StreamData) -> None:
        self.streams.append(found)

    def apply_reader(self, found: ReaderData, flags: int) -> None:
        self.streams.set_reader(found, flags)

    def apply_lease(self, lsn: int, found: LeaseData, flags: int) -> None:
        """Leases matter here only for what a purge leaves; what is missing makes no difference."""
        try:
            self.leases.apply(found, flags, 0)
        except ValueError:
            self.losses.append(Problem(self.path, 0, f"a lease of reader {found.reader!r}"))

    def apply_batch(self, lsn: int, flags: int, found: BatchRecord) -> None:
        adopted = self.batches.apply(flags, found)
        if adopted is not None:
            self.streams.adopt(adopted)

    def apply_part(self, at: AppliedRecord, transaction: int, ops: list[Op]) -> None:
        self._parts.setdefault(transaction, []).extend(ops)

    def apply_commit(self, at: AppliedRecord, transaction: int, first_seqs: dict[int, int]) -> None:
        at.first_seqs = first_seqs
        apply_all(self._parts.pop(transaction, []), self, at)

    def _keep_older(self, one: Record) -> None:
        """Keep what a record before the cut brought: it may be needed in place of a damaged slot.
        A part of a transaction does not say where its messages are."""
        try:
            operation = operation_of(one)
            found = [] if isinstance(operation, TxPart) else operation.contents()
            for x in found:
                if isinstance(x, Publish):
                    for number, seq in x.places:
                        if number in self.queues:
                            self.queues[number].older[seq] = x.message
                elif x.found.stream in self.streams.streams:
                    self.streams.append(x.found)
        except ValueError:
            return

    # ---- messages ------------------------------------------------------------------------------

    def mend_headers(self, queue: SalvagedQueue, segment: int) -> None:
        """Slots and entries verify by themselves: where only the header of their file is damaged
        it is written anew, in the read-only view of it."""
        for ending, magic in ((".qi", MAGIC_QI), (".qs", MAGIC_QS)):
            path = f"{queue.path}/{segment}{ending}"
            if not self.fs.exists(path):
                continue
            wanted = _HEADER.pack(magic, VERSION, 0, self.vhost, queue.number, segment, self.slots)
            wanted = (wanted + _U32.pack(crc32(wanted))).ljust(HEADER_BYTES, b"\0")
            file = self.fs.open(path)
            try:
                if file.pread(HEADER_BYTES, 0) != wanted:
                    self.losses.append(Problem(path, 0, "the segment's header is damaged"))
                    file.pwrite(wanted, 0)
            finally:
                file.close()

    def message(
        self, queue: SalvagedQueue, files: SegmentFiles | None, seq: int,
        read_body: Callable[[int, int], bytes],
    ) -> Message:  # fmt: skip
        """A live message with its body, from wherever it can be read. files: of its segment.
        CorruptionError: it is lost, and why."""
        fault: CorruptionError | None = None
        for place in ("held", "rows", "slot", "older"):
            try:
                found = self._look(queue, files, seq, place, read_body)
            except CorruptionError as error:
                fault = fault or error
                continue
            if found is not None:
                return found
        raise fault or CorruptionError(queue.path, 0, f"seq {seq} is nowhere")

    def _look(
        self, queue: SalvagedQueue, files: SegmentFiles | None, seq: int, place: str,
        read_body: Callable[[int, int], bytes],
    ) -> Message | None:  # fmt: skip
        file = 0
        found: Message | None = None
        if place == "held":
            found = queue.held.get(seq)
        elif place == "rows":
            row = queue.rows.get(seq)
            if row is not None:
                found, file = row.message, row.body_file
        elif place == "slot":
            if files is not None:
                (found,) = files.messages([seq])
        else:
            found = queue.older.get(seq)
        if found is None:
            return None
        file = found.store_file or file
        body = found.body
        if file:
            body = read_body(file, found.id)
        elif body is None:
            if found.size:
                raise CorruptionError(self.path, 0, f"the body of seq {seq} is nowhere")
            body = b""
        if len(body) != found.size:
            text = f"the body of seq {seq} has {len(body)} bytes, expected {found.size}"
            raise CorruptionError(queue.path, 0, text)
        return Message(
            found.id, found.header, body, found.size, found.time, found.expiry_ms, found.store_file
        )

    def declaration(self, queue: SalvagedQueue) -> DurableQueue | None:
        """What the topology says of the queue."""
        known = self.routing.queues.get(queue.name)
        return known if known is not None and known.number == queue.number else None


def guess_slots(fs: FileSystem, path: str) -> int:
    """Slots of a segment, as most headers of slot files have it."""
    votes: dict[int, int] = {}
    parent = path + "/queues"
    for directory in fs.list(parent) if fs.is_dir(parent) else []:
        for name in fs.list(f"{parent}/{directory}"):
            if not name.endswith((".qi", ".qs")):
                continue
            file = fs.open(f"{parent}/{directory}/{name}")
            try:
                slots = int.from_bytes(file.pread(4, _SLOTS_AT), "big")
            finally:
                file.close()
            if 4 <= slots <= DEFAULT_SLOTS and not slots & (slots - 1):
                votes[slots] = votes.get(slots, 0) + 1
    return max(votes, key=lambda slots: votes[slots]) if votes else DEFAULT_SLOTS
