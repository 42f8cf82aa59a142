"""Salvage: writes everything of a damaged store that verifies into a new one.

A store that refuses to start has lost something that it had confirmed, and only its owner can judge
what that means. Salvage reads the damaged store without changing it, writes a new data directory
with everything that can be read, and reports what is lost, by file and position.

    checkpoint sections, log records, store bodies: whatever verifies (salvage_files.py)
    -> SalvagedVhost: records applied over the checkpoint; queues, streams, batches
    -> a new StorageEngine: topology, then each queue's messages in their order, streams, batches

Kept are names and arguments, the order within each queue, headers, bodies, publish and expiry
times, attempts and the delivered mark. Message ids, seqs and queue numbers are new. A body that
several queues shared is one body in the new store too. Leases are not kept, because a reader cannot
continue with new seqs and ordinals: leased messages are ready, at their places, and reported.

Messages that were acknowledged may come back where the acknowledgement is lost; that is reported.

State. SalvagedVhost is a LogState like StorageState, so it applies the record types' table over the
checkpoint. It expects missing pieces: an operation on an unknown queue creates the queue or is
skipped, and nothing is counted, because the new store counts again. A queue that

    has a section in the checkpoint       has the live messages of the section
    has none (lost with the checkpoint)   has every slot that verifies, until a record removes it:
                                          a message twice is better than none, and it is reported
    is only known from its directory      gets the name in `.queue_name`, else "salvaged-<number>"

A message is searched in the log after the cut, in the section, in its slot, and then in what the
log still has from before the cut: a slot may be damaged while the record that it came from is
there.

Streams keep the order, times and headers of their records. A record is in its page and for some
time in the log, and either may replace the other. Of a page everything is taken that verifies at
its own place, up to the end that checkpoint, log or writeMeta state. After a damaged frame the
index gives the next one; without an index it is searched byte by byte.

    page, frame verifies          taken
    page damaged, log has it      taken from the log
    neither                       lost, reported with the page's file and position

Offsets start at 0 again, and a named reader moves to the number of records taken below its offset.
A stream whose allMeta is lost gets pages of the default size, if its pages' headers state their
stream.

Batches. A batch that was done stays known, so that a repeated commit does not write again. One that
was not done is decided again in the new store, with copies of the pages that are left, and
continues where it was. A missing or damaged page is reported; the new store waits for it as the old
one would. A page that a stream adopted after the last checkpoint may have its records only in the
staged file (adoption.py), so streams get its path.

RAM: a bit for each seq of segments with live messages; messages and stream records that the log
holds; one page; about 150 bytes for each body in the store. Failure: the new directory stays
unfinished (see `fresh_directory.py`), and the next salvage starts again.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from penstock.clock import Clock
from penstock.errors import CorruptionError, NotAStoreError
from penstock.message import Entry, QueuedMessage
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import (
    FreshDirectory,
    check_version,
    queue_name,
    queue_title,
    sync_dir,
    write_small,
)
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.files.offline import Offline, ReadOnlyFileSystem, Vhost
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.key_windows import KeyWindows
from penstock.storage.index.leases import LeaseTable
from penstock.storage.index.queue_index import QueueIndex, SectionRow, Ticks
from penstock.storage.index.queue_segment import (
    HEADER_BYTES,
    MAGIC_QI,
    MAGIC_QS,
    SLOT_BYTES,
    Handles,
    SegmentFiles,
    decode_slot,
    encode_header,
    queue_seed,
)
from penstock.storage.index.routing_table import (
    DELETE_EXCHANGE,
    DurableQueue,
    RoutingTable,
    name_of,
)
from penstock.storage.journal.checkpoint import Manifest
from penstock.storage.journal.record_types import (
    AppliedRecord,
    LogState,
    Publish,
    TxPart,
    apply_all,
    operation_of,
    targets_of,
)
from penstock.storage.log import record
from penstock.storage.log.record import (
    LeaseData,
    Op,
    Place,
    ReaderData,
    Record,
    Run,
    StoreRef,
    StreamData,
)
from penstock.storage.pages import batches, stream_meta
from penstock.storage.pages.batches import Batch, BatchRecord, BatchTable, StagedPage
from penstock.storage.pages.page import (
    FRAME_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    PageRecord,
    decode_frames,
    decode_header,
    decode_row,
    page_id,
    page_seed,
)
from penstock.storage.pages.staging import query_directory, query_path, staging_path
from penstock.storage.pages.stream_meta import ReaderOffset
from penstock.storage.pages.streams import PAGE_BYTES, STREAM_FLAG, StoredStream
from penstock.storage.tools.salvage_files import (
    BodyFinder,
    FoundCheckpoint,
    FoundLog,
    FoundRecord,
    cut_torn_tail,
    gaps,
    read_checkpoint,
    read_log,
)
from penstock.storage.tools.verify import Problem, Progress

COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdoptedPage:
    """A page that a stream adopted. path: of the staged file."""

    stream: int
    base: int
    time_us: int
    path: str
    page: StagedPage


class SalvagedBatches:
    """The batches of one damaged vhost, whose directory is `path`."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs = fs
        self.path = path
        self.table = BatchTable()

    def restore(self, sections: list[bytes]) -> None:
        """Take the batches of the checkpoint. Raises ValueError."""
        for data in sections:
            batch = batches.decode_section(data)
            self.table.by_query[batch.query] = batch

    def apply(self, flags: int, found: BatchRecord) -> AdoptedPage | None:
        """Apply a BATCH record. Return the page if one is adopted. Raises ValueError if the record
        cannot be applied."""
        adopted = self._adopted(found) if flags == batches.ADOPTED else None
        self.table.apply(flags, found)
        return adopted

    def _adopted(self, found: BatchRecord) -> AdoptedPage | None:
        batch = self.table.by_query.get(found.query)
        if batch is None or not batch.page <= found.page < len(batch.pages):
            return None
        page = batch.pages[found.page]
        path = f"{query_path(self.path, found.query)}/{page.name}"
        return AdoptedPage(found.stream, found.base, found.time_us, path, page)

    def copy_into(self, new: StorageEngine) -> tuple[list[str], list[str]]:
        """Decide them in the new store. Return (paths of missing pages, notes)."""
        missing: list[str] = []
        notes: list[str] = []
        for batch in sorted(self.table.by_query.values(), key=lambda b: b.time_us):
            pages = list(batch.pages[batch.page :])
            for page in pages:
                path = f"{query_path(self.path, batch.query)}/{page.name}"
                if self.fs.exists(path):
                    self._copy(path, page, batch, new)
                else:
                    missing.append(path)
            new.batches.decide(
                batch.query, batch.number, batch.target, pages, facts=batch.facts, is_checked=True
            )
            if pages:
                title = f"batch {batch.number} of query {batch.query!r}"
                notes.append(f"{title} is not done: the new store goes on with {len(pages)} pages")
            if pages and batch.frame:
                transaction = new.begin()
                transaction.progress(batch.query, 0, batch.frame)
                transaction.commit(DISK)
        return missing, notes

    def _copy(self, path: str, page: StagedPage, batch: Batch, new: StorageEngine) -> None:
        directory = query_directory(new.fs, staging_path(new.path), batch.query)
        stem = page.name.removesuffix(".page")
        source = path.removesuffix(".page")
        target = new.fs.open(f"{directory}/{page.name}", create=True)
        file = self.fs.open(path)
        try:
            for at in range(0, file.size(), COPY_BYTES):
                target.pwrite(file.pread(COPY_BYTES, at), at)
            target.sync()
        finally:
            file.close()
            target.close()
        if self.fs.exists(source + ".idx"):
            write_small(new.fs, f"{directory}/{stem}.idx", self.fs.read(source + ".idx"))
        sync_dir(new.fs, directory)


SEARCH_BYTES: Final = 1 << 20  # how far after a damaged frame the next one is searched


@dataclass(slots=True)
class SalvagedStream:
    """One stream of the damaged store. end: the offset after the last record that anything states;
    logged: the log's records, by offset."""

    number: int
    name: bytes
    path: str  # "" if it has no directory
    first: int = 0
    end: int = 0
    page_bytes: int = PAGE_BYTES
    stream_id: bytes = b""  # b"": unknown
    logged: dict[int, PageRecord] = field(default_factory=dict)
    adopted: dict[int, AdoptedPage] = field(default_factory=dict)  # by base
    readers: dict[str, ReaderOffset] = field(default_factory=dict)


def _numbered(fs: FileSystem, parent: str) -> dict[int, str]:
    """Return number -> path of the directories of queues or streams below `parent`."""
    found: dict[int, str] = {}
    for name in fs.list(parent) if fs.is_dir(parent) else []:
        digits = name.rpartition(".")[2]
        if digits.isdecimal():
            found[int(digits)] = f"{parent}/{name}"
    return found


class SalvagedStreams:
    """The streams of one damaged vhost. SalvagedVhost adds checkpoint and log."""

    def __init__(self, fs: FileSystem, path: str, losses: list[Problem]) -> None:
        self.fs = fs
        self.losses = losses
        self.streams: dict[int, SalvagedStream] = {}
        self._deleted: set[int] = set()
        self._directories = _numbered(fs, path + "/streams")

    # ---- the state -----------------------------------------------------------------------------

    def add(self, number: int, name: bytes) -> None:
        """Add a stream, unless it is known or deleted."""
        if number in self.streams or number in self._deleted:
            return
        path = self._directories.get(number, "")
        name = name or (queue_name(self.fs, path) if path else b"")
        found = SalvagedStream(number, name or f"salvaged-{number}".encode(), path)
        self.streams[number] = found
        if not path:
            return
        for file, read in (
            (stream_meta.ALL_META, self._all), (stream_meta.READ_META, self._tail),
            (stream_meta.WRITE_META, self._head),
        ):  # fmt: skip
            at = f"{path}/{file}"
            if not self.fs.exists(at):
                continue
            try:
                read(found, at, self.fs.read(at))
            except CorruptionError as error:
                self.losses.append(Problem(error.path, error.position, error.reason))

    def _all(self, found: SalvagedStream, at: str, data: bytes) -> None:
        meta = stream_meta.decode_all(at, data)
        if meta.number != found.number:
            raise CorruptionError(at, 12, f"it is of stream {meta.number}, not {found.number}")
        found.page_bytes, found.stream_id = meta.page_bytes, meta.id

    def _tail(self, found: SalvagedStream, at: str, data: bytes) -> None:
        found.first = stream_meta.decode_tail(at, data)

    def _head(self, found: SalvagedStream, at: str, data: bytes) -> None:
        found.end = stream_meta.decode_head(at, data).next_offset

    def add_all(self) -> None:
        """Add every stream that has a directory, deleted or not: the topology is lost."""
        for number in self._directories:
            self.add(number, b"")

    def load(self, manifest: Manifest) -> None:
        """Take the streams of the checkpoint."""
        for number, section in manifest.streams.items():
            self.add(number, b"")
            found = self.streams[number]
            found.end = max(found.end, section.position.next_offset)
            found.first = max(found.first, section.position.first_offset)
            found.readers = dict(section.readers)
            found.stream_id = section.stream_id

    def delete(self, number: int) -> None:
        """Remove a stream, because of a DELETE_QUEUE record."""
        self.streams.pop(number, None)
        self._deleted.add(number)

    def append(self, found: record.StreamData) -> None:
        """Add the record of a STREAM record."""
        if found.stream in self._deleted:
            return
        self.add(found.stream, b"")
        stream = self.streams[found.stream]
        offset = found.offset
        stream.logged[offset] = PageRecord(offset, found.time_us, found.payload, found.meta)
        stream.end = max(stream.end, offset + 1)

    def adopt(self, page: AdoptedPage) -> None:
        """Add a staged page that became one of a stream."""
        if page.stream in self._deleted:
            return
        self.add(page.stream, b"")
        stream = self.streams[page.stream]
        stream.adopted[page.base] = page
        stream.end = max(stream.end, page.base + page.page.rows)

    def set_reader(self, found: record.ReaderData, flags: int) -> None:
        """Set or delete a named reader's offset, as a READER_OFFSET record says."""
        stream = self.streams.get(found.stream)
        if stream is None:
            return
        name = found.reader.decode("utf-8", "replace")
        if flags & record.READER_DELETED:
            stream.readers.pop(name, None)
        else:
            kept = None if found.kept_from == record.NOT_KEPT else found.kept_from
            stream.readers[name] = ReaderOffset(found.offset, kept, found.time_ms)

    # ---- records -------------------------------------------------------------------------------

    def records(self, stream: SalvagedStream) -> Iterator[PageRecord | Problem]:
        """Return all records that can be read, by offset, and a Problem for each gap."""
        wanted = stream.first
        end = stream.end or (1 << 63)
        bases = self._bases(stream)
        for i, base in enumerate(bases):
            page_end = min(bases[i + 1], end) if i + 1 < len(bases) else end
            for found in self._page(stream, base, page_end):
                if isinstance(found, PageRecord) and found.offset >= wanted:
                    yield from self._logged(stream, wanted, found.offset)
                    yield found
                    wanted = found.offset + 1
                elif isinstance(found, Problem):
                    self.losses.append(found)
        if stream.end:
            yield from self._logged(stream, wanted, stream.end)

    def _bases(self, stream: SalvagedStream) -> list[int]:
        names = self.fs.list(stream.path) if stream.path else []
        found = [name.removesuffix(".page") for name in names if name.endswith(".page")]
        staged = {base for base, page in stream.adopted.items() if self.fs.exists(page.path)}
        bases = sorted(staged | {int(stem) for stem in found if stem.isdecimal()})
        return [base for base in bases if base >= stream.first and base < (stream.end or 1 << 63)]

    def _logged(
        self, stream: SalvagedStream, wanted: int, end: int
    ) -> Iterator[PageRecord | Problem]:
        """Return the log's records from `wanted` to `end`, which no page has, and the gaps."""
        for offset in sorted(o for o in stream.logged if wanted <= o < end):
            if offset > wanted:
                yield self._gap(stream, wanted, offset)
            yield stream.logged[offset]
            wanted = offset + 1
        if wanted < end:
            yield self._gap(stream, wanted, end)

    def _gap(self, stream: SalvagedStream, first: int, end: int) -> Problem:
        return Problem(
            stream.path or self._directories.get(stream.number, "streams"), 0,
            f"records {first} to {end - 1} of stream {stream.name!r} are lost",
        )  # fmt: skip

    def _page(self, stream: SalvagedStream, base: int, end: int) -> Iterator[PageRecord | Problem]:
        """Return what verifies in the page that begins at `base`, below offset `end`."""
        path = f"{stream.path}/{base:020}.page"
        adopted = stream.adopted.get(base)
        if adopted is not None and self.fs.exists(adopted.path):
            path = adopted.path
        data = self.fs.read(path)
        id = page_id(stream.stream_id, base) if stream.stream_id else -1
        time_us: int | None = None  # of all records, if it was staged
        if adopted is not None:
            id, time_us = adopted.page.page_id, adopted.time_us
        else:
            try:
                header = decode_header(path, data)
                is_known = header.is_staged or id in (-1, header.id)
                if (header.base, header.number) != (base, stream.number) or not is_known:
                    text = f"the page is of offset {header.base} of stream {header.number}"
                    raise CorruptionError(path, 0, text)
                id = header.id
                time_us = header.base_time_us if header.is_staged else None
            except CorruptionError as error:
                yield Problem(error.path, error.position, error.reason)
                if id < 0:
                    return
        seed = page_seed(id)
        rows = self._rows(path[:-4] + "idx")
        at, rel = PAGE_HEADER_BYTES, 0
        while base + rel < end and at < len(data):
            out: list[PageRecord] = []
            stop, _, fault = decode_frames(
                data, at, seed, base, rel, end - base - rel, len(data), out
            )
            for one in out:
                one.time_us = one.time_us if time_us is None else time_us
            yield from out
            rel += len(out)
            at = stop
            if base + rel >= end or at >= len(data):
                return
            yield Problem(path, at, fault or "a frame is cut off")
            at, rel = _next_frame(data, at, seed, base, rel, end, rows)

    def _rows(self, path: str) -> list[int]:
        """Return where frames begin according to the index; each frame is verified."""
        data = self.fs.read(path) if self.fs.exists(path) else b""
        places = range(INDEX_HEADER_BYTES, len(data) - INDEX_ROW_BYTES + 1, INDEX_ROW_BYTES)
        return [decode_row(data, at)[0] for at in places]


def _next_frame(
    data: bytes, at: int, seed: int, base: int, rel: int, end: int, rows: list[int]
) -> tuple[int, int]:
    """Return (position, rel) of the next frame that verifies after a damaged one, or the end."""
    for later in range(rel + 1, min(len(rows), end - base)):
        if rows[later] > at and _verifies(data, rows[later], seed, base, later):
            return rows[later], later
    limit = min(len(data) - FRAME_BYTES, at + SEARCH_BYTES)
    for position in range(at + FRAME_BYTES, limit + 1):
        # Without an index the number of lost frames is unknown; one is by far the likeliest.
        if base + rel + 1 < end and _verifies(data, position, seed, base, rel + 1):
            return position, rel + 1
    return len(data), rel


def _verifies(data: bytes, at: int, seed: int, base: int, rel: int) -> bool:
    size = int.from_bytes(data[at + 4 : at + 8], "little") + int.from_bytes(
        data[at + 8 : at + 12], "little"
    )
    if at + FRAME_BYTES + size > len(data):
        return False
    out: list[PageRecord] = []
    decode_frames(data, at, seed, base, rel, 1, len(data), out)
    return bool(out)


DEFAULT_SLOTS: Final = 4096
_SLOTS_AT: Final = 24  # in the header of a .qi


class SalvagedQueue:
    """One queue of the damaged store. path: "" if it has no directory. next_seq: of the checkpoint;
    records below it were applied before. held, older: messages of the log after and before the cut.
    """

    def __init__(self, number: int, name: bytes, path: str) -> None:
        self.number = number
        self.name = name
        self.path = path
        self.next_seq = 0
        self.mark = 0
        self.live: dict[int, bytearray] = {}  # segment -> bitmap
        self.held: dict[int, QueuedMessage] = {}
        self.older: dict[int, QueuedMessage] = {}
        self.rows: dict[int, SectionRow] = {}
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
        """Return all live seqs, ascending."""
        for number in sorted(self.live):
            bits = self.live[number]
            for rel in range(slots):
                if bits[rel >> 3] >> (rel & 7) & 1:
                    yield number * slots + rel


class SalvagedVhost(LogState):
    """One vhost of the damaged store: call `load`, then `message` for each live seq."""

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
        self.windows = KeyWindows()
        self.batches = SalvagedBatches(fs, path)
        self._directories = _numbered(fs, path + "/queues")
        self._parts: dict[int, dict[int, list[Op]]] = {}  # transaction -> LSN -> operations
        self._decided: set[int] = set()  # transactions that have a TX_SLICE
        self._deleted: set[int] = set()

    # ---- the state -----------------------------------------------------------------------------

    def load(self, found: FoundCheckpoint | None, log: FoundLog) -> None:
        """Apply the log over the checkpoint."""
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
        for transaction, parts in self._parts.items():
            if transaction in self._decided:
                for part_lsn, ops in parts.items():
                    self._roll_forward(part_lsn, ops)
            else:
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
        for data in manifest.windows:
            self.windows.restore(data)
        for number, section in manifest.queues.items():
            queue = self.queue(number)
            queue.has_section = True
            queue.next_seq, queue.mark = section.next_seq, section.mark
            queue.rows, queue.attempts = dict(section.rows), dict(section.attempts)
            for segment in section.segments.values():
                for seq in segment.seqs(self.slots):
                    queue.set(seq, self.slots)

    def queue(self, number: int) -> SalvagedQueue:
        """Return the queue of this number; add it if it is unknown."""
        queue = self.queues.get(number)
        if queue is None:
            path = self._directories.get(number, "")
            name = next((q.name for q in self.routing.queues.values() if q.number == number), b"")
            name = name or (queue_name(self.fs, path) if path else b"")
            queue = SalvagedQueue(number, name or f"salvaged-{number}".encode(), path)
            self.queues[number] = queue
        return queue

    def _take_all_slots(self, queue: SalvagedQueue) -> None:
        """Take every slot that verifies: no section says what lives in this queue."""
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
            name = queue_title(queue.name)
            text = f"acknowledgements of queue {name!r} are lost: all its messages are taken"
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
        self, message: QueuedMessage, places: list[Place], born: list[Entry] | None, is_held: bool
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
        for declared in self.routing.queues.values():
            if declared.number == number:
                self.windows.delete(b"q" + declared.name)
        stream = self.streams.streams.get(number)
        if stream is not None:
            for reader in stream.readers:
                self.routing.delete_reader(stream.name, reader.encode())
        self.routing.delete_queue(number)
        self.queues.pop(number, None)
        self.leases.delete(number)
        self._deleted.add(number)
        self.streams.delete(number)

    def apply_topology(self, data: bytes) -> None:
        self.routing.apply(data)
        if data[0] == DELETE_EXCHANGE:
            self.windows.delete(b"e" + name_of(data))
        for declared in self.routing.queues.values():
            if declared.flags & STREAM_FLAG:
                self.streams.add(declared.number, declared.name)
            elif declared.number not in self.queues:
                self.queue(declared.number)

    def apply_release(self, number: int, segment: int, refs: list[StoreRef] | None) -> None:
        """Do nothing: the new store counts references again."""

    def apply_stream(self, lsn: int, mode: int, found: StreamData) -> None:
        self.streams.append(found)

    def apply_reader(self, found: ReaderData, flags: int) -> None:
        self.streams.set_reader(found, flags)
        stream = self.streams.streams.get(found.stream)
        if flags & record.READER_DELETED and stream is not None:
            self.routing.delete_reader(stream.name, found.reader)

    def apply_seen(self, lsn: int, name: bytes, key: bytes, until_ms: int) -> None:
        self.windows.of(name).add(key, until_ms, lsn=lsn)

    def apply_lease(self, lsn: int, found: LeaseData, flags: int) -> None:
        """Apply a lease, for what a purge leaves. A lease that cannot be applied is reported."""
        try:
            self.leases.apply(found, flags, 0)
        except ValueError:
            self.losses.append(Problem(self.path, 0, f"a lease of reader {found.reader!r}"))

    def apply_batch(self, lsn: int, flags: int, found: BatchRecord) -> None:
        adopted = self.batches.apply(flags, found)
        if adopted is not None:
            self.streams.adopt(adopted)

    def apply_part(self, at: AppliedRecord, transaction: int, ops: list[Op]) -> None:
        self._parts.setdefault(transaction, {})[at.lsn] = ops

    def apply_commit(self, at: AppliedRecord, transaction: int, first_seqs: dict[int, int]) -> None:
        at.first_seqs = first_seqs
        for ops in self._parts.pop(transaction, {}).values():
            apply_all(ops, self, at)

    def apply_slice(
        self, at: AppliedRecord, transaction: int, part_lsn: int, first_seqs: dict[int, int]
    ) -> None:
        self._decided.add(transaction)
        ops = self._parts.get(transaction, {}).pop(part_lsn, None)
        if ops is None:
            raise ValueError(f"part {part_lsn} of transaction {transaction} is missing")
        at.first_seqs = first_seqs
        apply_all(ops, self, at)

    def _roll_forward(self, part_lsn: int, ops: list[Op]) -> None:
        """Apply a part that is decided and has no TX_SLICE, behind all that its queues have."""
        first_seqs: dict[int, int] = {}
        for number in targets_of(ops):
            stream = self.streams.streams.get(number)
            queue = self.queues.get(number)
            if stream is not None:
                first_seqs[number] = stream.end
            else:
                seqs = [] if queue is None else [queue.next_seq - 1, *queue.seqs(self.slots)]
                first_seqs[number] = max(seqs, default=-1) + 1
        apply_all(ops, self, AppliedRecord(part_lsn, NONE, first_seqs))

    def _keep_older(self, one: Record) -> None:
        """Keep the messages of a record before the cut, to replace damaged slots. A part of a
        transaction does not say where its messages are."""
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
        """Write the headers of a segment's files again, in the read-only view, if they are damaged:
        slots and entries have checksums of their own."""
        for ending, magic in ((".qi", MAGIC_QI), (".qs", MAGIC_QS)):
            path = f"{queue.path}/{segment}{ending}"
            if not self.fs.exists(path):
                continue
            wanted = encode_header(magic, self.vhost, queue.number, segment, self.slots)
            with closing(self.fs.open(path)) as file:
                if file.pread(HEADER_BYTES, 0) != wanted:
                    self.losses.append(Problem(path, 0, "the segment's header is damaged"))
                    file.pwrite(wanted, 0)

    def message(
        self, queue: SalvagedQueue, files: SegmentFiles | None, seq: int,
        read_body: Callable[[int, int], bytes],
    ) -> QueuedMessage:  # fmt: skip
        """Return a live message with its body, from wherever it can be read. files: of its segment.
        Raises CorruptionError if it is lost."""
        fault: CorruptionError | None = None
        for place in ("held", "rows", "slot", "older"):
            try:
                found = self._look(queue, files, seq, place, read_body)
            except CorruptionError as error:
                fault = fault or error
                continue
            if found is not None:
                return found
        raise fault or CorruptionError(queue.path, 0, f"seq {seq} was not found")

    def _look(
        self, queue: SalvagedQueue, files: SegmentFiles | None, seq: int, place: str,
        read_body: Callable[[int, int], bytes],
    ) -> QueuedMessage | None:  # fmt: skip
        file = 0
        found: QueuedMessage | None = None
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
                raise CorruptionError(self.path, 0, f"the body of seq {seq} was not found")
            body = b""
        if len(body) != found.size:
            text = f"the body of seq {seq} has {len(body)} bytes, expected {found.size}"
            raise CorruptionError(queue.path, 0, text)
        return QueuedMessage(
            found.id, found.header, body, found.size, found.time, found.expiry_ms, found.store_file
        )

    def declaration(self, queue: SalvagedQueue) -> DurableQueue | None:
        """Return the topology's declaration of the queue."""
        known = self.routing.queues.get(queue.name)
        return known if known is not None and known.number == queue.number else None


def guess_slots(fs: FileSystem, path: str) -> int:
    """Return the slots of a segment: the number that most headers of segment files have."""
    votes: dict[int, int] = {}
    parent = path + "/queues"
    for directory in fs.list(parent) if fs.is_dir(parent) else []:
        for name in fs.list(f"{parent}/{directory}"):
            if not name.endswith((".qi", ".qs")):
                continue
            with closing(fs.open(f"{parent}/{directory}/{name}")) as file:
                slots = int.from_bytes(file.pread(4, _SLOTS_AT), "big")
            if 4 <= slots <= DEFAULT_SLOTS and not slots & (slots - 1):
                votes[slots] = votes.get(slots, 0) + 1
    return max(votes, key=lambda slots: votes[slots]) if votes else DEFAULT_SLOTS


CHECKPOINT_BYTES = 32 << 20  # bytes of bodies between two checkpoints of the new store
FLUSH_ENTRIES = 256


@dataclass(slots=True)
class SalvagedCount:
    """One queue: how many messages were taken and how many could not be read."""

    vhost: str
    name: str
    taken: int = 0
    lost: int = 0
    bytes: int = 0


@dataclass(slots=True)
class SalvagedRecords:
    """One stream or partition: how many records were taken. `losses` has those that were not."""

    vhost: str
    name: str
    taken: int = 0
    bytes: int = 0


@dataclass(slots=True)
class SalvageReport:
    """What salvage did. losses: what could not be read or is uncertain, by file and position."""

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
        """Messages that were live and could not be read."""
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
    """Read the store at `path`, a data directory or a vhost that nobody uses, and write the new
    data directory `into`. names: possible names of vhosts, see Offline. Raises NotAStoreError,
    PathNotFreeError, LockedError, VersionError, DiskFullError, SyncFailedError, OSError."""
    report = SalvageReport(path, into)
    target = into.rstrip("/")
    with Offline(fs, path, names) as store:
        if (target + "/").startswith(store.path + "/"):
            raise NotAStoreError(into, f"it is inside {path}, expected a path outside")
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
    """Copies one vhost from its damaged directory into a new one."""

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
            text = "no checkpoint: messages acknowledged before the log begins may come back"
            losses.append(Problem(path + "/CURRENT", 0, text))
        torn = cut_torn_tail(log, cut, self._bodies.has)
        if torn:
            text = f"{torn} records after the end of the log were never confirmed and are left out"
            report.notes.append(f"{path}/wal: {text}")
        losses += gaps(log, cut)
        self._old.load(found, log)
        self._shared: dict[int, tuple[int, int]] = {}  # old id -> (new id, new store file)
        self._unflushed = 0
        self._written = 0
        name = vhost.name
        if not name:
            name = f"salvaged-{vhost.number:016x}".encode()
            text = f"the vhost's name is lost: it is {name.decode()!r} now"
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
            self._report_leases()
            for window in self._old.windows.by_name.values():
                for key, until_ms in window.keys.items():
                    new.see(window.name, key, until_ms)
            missing, notes = self._old.batches.copy_into(new)
            self._report.losses += [Problem(at, 0, "the staged page is missing") for at in missing]
            self._report.notes += notes
            new.sync()
        except BaseException as error:
            new.journal.stop(error)
            new.close()
            raise
        new.close()

    def _report_leases(self) -> None:
        for queue, leases in self._old.leases.by_queue.items():
            title = queue_title(self._old.queue(queue).name)
            for lease in leases.values():
                text = (
                    f"reader {lease.reader!r} had leased {lease.count} messages of queue {title!r}"
                )
                self._report.notes.append(f"{text}: they are ready, and the reader is forgotten")

    def _declare(self) -> list[tuple[SalvagedQueue, QueueIndex]]:
        """Declare the topology. Return the queues with their new ones."""
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
        for data in old.routing.parameter_records():
            new.apply_topology(data)
        return targets

    def _copy_stream(self, found: SalvagedStream) -> None:
        """Copy a stream with its times; a reader moves to where as many records are below it."""
        new = self._new
        report = SalvagedRecords(self._vhost.title(), queue_title(found.name))
        self._report.streams.append(report)
        known = self._old.routing.queues.get(found.name)
        arguments = known.arguments if known is not None else b""
        name = found.name
        if name in new.routing.queues:
            name += f"-salvaged-{found.number}".encode()
        (target,) = new.streams.declare([(name, arguments, 0)], page_bytes=found.page_bytes)
        below: list[tuple[int, int]] = []  # (old offset, new offset) after each gap
        wanted = -1
        for one in self._old.streams.records(found):
            if isinstance(one, Problem):
                self._report.losses.append(one)
                continue
            if one.offset != wanted:
                below.append((one.offset, target.next_offset))
            wanted = one.offset + 1
            new.streams.append(target, one.meta, one.payload, OS, one.time_us)
            report.taken += 1
            report.bytes += len(one.payload)
            self._wrote(len(one.payload))
        for reader, at in found.readers.items():
            kept = None if at.kept_from is None else _moved(at.kept_from, below, target)
            new.streams.set_reader(target, reader, _moved(at.offset, below, target), OS, kept)

    def _copy(self, queue: SalvagedQueue, target: QueueIndex) -> None:
        old = self._old
        count = SalvagedCount(self._vhost.title(), queue_title(target.name))
        self._report.queues.append(count)
        delivered = 0
        attempts: list[tuple[int, int]] = []
        files: SegmentFiles | None = None
        missing: dict[str, int] = {}  # a file that is not there -> messages with bodies in it
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
                if not old.fs.exists(error.path):
                    missing[error.path] = missing.get(error.path, 0) + 1
                    continue
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
        for path, messages in missing.items():
            text = (
                f"the file is missing, with the bodies of {messages} messages of queue "
                f"{count.name!r} (a file whose messages are all acknowledged is deleted)"
            )
            self._report.losses.append(Problem(path, 0, text))
        if delivered:
            self._new.mark(target, delivered, OS)
        for start in range(0, len(attempts), FLUSH_ENTRIES):
            self._new.requeue(target, attempts[start : start + FLUSH_ENTRIES], OS)

    def _publish(self, found: QueuedMessage, target: QueueIndex) -> None:
        """Publish a message. A body that was in the old MessageStore is stored once."""
        new = self._new
        assert found.body is not None, "a salvaged message has its body"
        new.time_s = found.time  # of the messages published until the next flush
        if not found.store_file:
            message = new.publish([target], found.header, found.body, OS, found.expiry_ms)
        else:
            message = new.placement.new_message(found.header, found.body, found.expiry_ms)
            shared = self._shared.get(found.id)
            if shared is None:
                new.bodies.write(message, found.body)
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


def _moved(offset: int, below: list[tuple[int, int]], target: StoredStream) -> int:
    """Return the offset in the new stream of the record with `offset` in the old one."""
    moved = 0
    for old, new in below:
        if old <= offset:
            moved = new + offset - old
        else:
            moved = min(moved, new)
            break
    return min(moved, target.next_offset)
