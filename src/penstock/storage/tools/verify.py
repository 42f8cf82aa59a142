"""Verify: checks that everything that a store promises is on its disk. It changes nothing.

Recovery trusts checkpoint and log and reads no slot, so its time does not depend on the backlog
[1]. Verify loads the state with recovery's own code and then reads every place that the state
names.

    what                                      is compared with
    ----------------------------------------  --------------------------------------------------
    checkpoint, log chain, hints              their checksums, by recovery.load
    each live entry                           its slot and .qs entry, section row, or log record
    each body, wherever it is                 its checksum, and the size in its entry
    counts, bytes, store entries of segments  their live entries
    references of stored bodies               what live entries, sections and purged slots name
    ids                                       two bodies of one id must be the same [9]
    rows of batches that are decided but not  the staged page with the id that the decision names,
    moved                                     frame by frame; headers prove nothing (adoption.py)
    pages of a stream                         each is there from the first to the last, has the
                                              records that the names promise, and every frame's
                                              checksum, up to the checkpoint's position (the log has
                                              the records after it) or, for a stream without a
                                              vhost, up to writeMeta
    allMeta, readMeta, readers/ of a stream   their checksums
    names in the directories                  the state; an orphan is a note, not an error

A *problem* has a file and a position: something is lost or wrong. A *note* is a leftover of a
crash, a torn tail, or a bad writeMeta or page index, which a start makes again. A damaged slot does
not show which body it named, so bodies with too many references are not reported one by one then.
Staged rows without a decision are not promised and not read.

RAM: the log since the last checkpoint; 12 bytes for each reference into the store and 12 for each
live message, for the comparison of ids; one chunk of messages, one MiB or one record of a stream
and the index of one page at a time.

Failure: errors of locks and of reading, see `offline.py`. Damage is not raised; the report has it.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import (
    CorruptionError,
    NotAStoreError,
    OptionError,
    StorageError,
    SyncFailedError,
    VersionError,
)
from penstock.fast_crc import crc32
from penstock.message import QueuedMessage
from penstock.storage.files.data_directory import (
    QUEUE_NAME,
    old_text_of,
    queue_name,
    queue_title,
    text_of,
)
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.files.offline import Offline, ReadOnlyFileSystem, Vhost
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.queue_index import DictHolder, IndexSegment, QueueIndex
from penstock.storage.journal import recovery
from penstock.storage.journal.state import StorageState
from penstock.storage.pages import stream_meta
from penstock.storage.pages.batches import Batch, StagedPage
from penstock.storage.pages.page import (
    BLOCK_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    block_crc,
    check_header,
    check_index,
    decode_blocks,
    decode_index_header,
    decode_row,
    page_id,
    page_name,
    page_seed,
    scan_frames,
)
from penstock.storage.pages.page_reading import list_bases
from penstock.storage.pages.staging import StagedReader, query_path
from penstock.storage.pages.stream_meta import (
    ALL_META,
    WRITE_META,
    AllMeta,
    Position,
    StreamHead,
)
from penstock.storage.store.message_store import MessageStore, read_table
from penstock.storage.store.store_file import ENTRY_BYTES, OWN_FILE, StoreFile

READ_RECORDS: Final = 1024
READ_BYTES: Final = 1 << 20
CHUNK_ENTRIES: Final = 64  # messages read at a time; a body in .qs has less than 32 KiB
BUCKETS: Final = 256
KNOWN: Final = frozenset({"allMeta", "readMeta", "writeMeta", "readers", "LOCK", QUEUE_NAME})

Progress = Callable[[str, int, int], None]  # what, how much is done, how much there is


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong, with file and byte."""

    path: str
    position: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}: at byte {self.position}: {self.text}"


@dataclass(slots=True)
class QueueReport:
    """What was found in one queue. damaged: live entries that cannot be read."""

    vhost: str
    name: str
    number: int
    count: int = 0
    bytes: int = 0
    segments: int = 0
    damaged: int = 0


@dataclass(slots=True)
class StreamReport:
    """What was found in one stream or partition, up to its checkpoint. damaged: lost records."""

    vhost: str
    name: str
    number: int
    records: int = 0
    bytes: int = 0
    pages: int = 0
    damaged: int = 0


@dataclass(slots=True)
class Report:
    """What verify found. bodies, body_bytes: stored bodies (each once), bodies in .qs and log."""

    path: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    queues: list[QueueReport] = field(default_factory=list)
    streams: list[StreamReport] = field(default_factory=list)
    vhosts: int = 0
    records: int = 0
    bodies: int = 0
    body_bytes: int = 0
    store_files: int = 0

    @property
    def is_fine(self) -> bool:
        """Whether nothing is lost and nothing is wrong."""
        return not self.problems

    def add(self, error: BaseException) -> None:
        """Add an error as a problem."""
        if isinstance(error, CorruptionError):
            self.problems.append(Problem(error.path, error.position, error.reason))
        elif isinstance(error, VersionError):
            text = f"expected version {error.expected}, found {error.found}"
            self.problems.append(Problem(error.path, 0, text))
        else:
            self.problems.append(Problem(self.path, 0, str(error)))


def verify(
    fs: FileSystem, path: str, *, progress: Progress | None = None, has_streams: bool = True
) -> Report:
    """Verify a data directory or one vhost's directory that nobody uses. has_streams: verify the
    pages of streams too; a caller may verify several streams at a time with `check_stream`.

    Writes only the text in the lock files. Raises NotAStoreError, LockedError, VersionError (of the
    whole directory), SyncFailedError, OSError.
    """
    report = Report(path)
    with Offline(fs, path) as store:
        for fault in store.faults:
            report.add(fault)
        for vhost in store.vhosts:
            report.vhosts += 1
            check = _VhostCheck(ReadOnlyFileSystem(store.fs), vhost, report, progress or _silent)
            check.run(has_streams=has_streams)
    return report


def _silent(what: str, done: int, total: int) -> None:
    pass


class Bodies:
    """Checksums of bodies by id, 12 bytes each; finds ids with two different bodies."""

    def __init__(self) -> None:
        self._ids = [array("Q") for _ in range(BUCKETS)]
        self._crcs = [array("I") for _ in range(BUCKETS)]

    def add(self, id: int, body: bytes) -> None:
        bucket = id % BUCKETS
        self._ids[bucket].append(id)
        self._crcs[bucket].append(crc32(body))

    def with_two(self) -> list[int]:
        """Return the ids with two different bodies."""
        found: list[int] = []
        for ids, crcs in zip(self._ids, self._crcs, strict=True):
            seen: dict[int, int] = {}
            for id, crc in zip(ids, crcs, strict=True):
                if seen.setdefault(id, crc) != crc:
                    found.append(id)
        return sorted(set(found))


class References:
    """The references into the store, by file number of the address: 12 bytes each."""

    def __init__(self) -> None:
        self._ids: dict[int, array[int]] = {}
        self._sizes: dict[int, array[int]] = {}

    def add(self, file: int, id: int, size: int) -> None:
        if file not in self._ids:
            self._ids[file] = array("Q")
            self._sizes[file] = array("I")
        self._ids[file].append(id)
        self._sizes[file].append(size)

    def take(self, lo: int, hi: int) -> dict[int, tuple[int, int]]:
        """Return and remove id -> (references, size) of the addresses with files lo..hi."""
        found: dict[int, tuple[int, int]] = {}
        for file in [file for file in self._ids if lo <= file <= hi]:
            for id, size in zip(self._ids.pop(file), self._sizes.pop(file), strict=True):
                refs, _ = found.get(id, (0, size))
                found[id] = (refs + 1, size)
        return found

    def files(self) -> list[int]:
        """Return the file numbers that were not taken."""
        return sorted(self._ids)


def _is_torn(text: bytes, wanted: bytes) -> bool:
    """Return whether part of `wanted` is missing in a text, or zeros stand for it."""
    text = text.rstrip(b"\0")
    return len(text) <= len(wanted) and all(
        found in (0, right) for found, right in zip(text, wanted, strict=False)
    )


class _VhostCheck:
    """Checks one vhost. The other methods are in the order in which `run` calls them."""

    def __init__(self, fs: FileSystem, vhost: Vhost, report: Report, progress: Progress) -> None:
        self._fs = fs
        self._vhost = vhost
        self._report = report
        self._progress = progress
        self._bodies = Bodies()
        self._references = References()
        self._is_damaged = False  # some references are not known, because slots are damaged
        self._checkpoint = vhost.path

    def run(self, *, has_streams: bool) -> None:
        fs, path, report = self._fs, self._vhost.path, self._report
        self._progress("checkpoint and log", 0, 1)
        try:
            recovery.make_directories(fs, path)
            found = recovery.load(
                fs, path, self._vhost.number, StorageOptions(), self._event, ram_bytes=0
            )
        except SyncFailedError:
            raise
        except (StorageError, NotAStoreError, OptionError) as error:
            report.add(error)
            return
        state = found.state
        self._checkpoint = f"{path}/checkpoint-{found.manifest.number}"
        report.records += found.records
        for at in [] if found.is_clean else found.end.aside:
            report.notes.append(f"{at}: a log segment that nothing leads to")
        self._check_queues(state)
        self._check_leases(state)
        check_batches(fs, state, report.add, report.notes)
        self._check_purged(state)
        self._check_store(state.store)
        if has_streams:
            self._check_streams(state)
        for id in self._bodies.with_two():
            self._wrong(f"message id {id:#x} has two different bodies")
        self._check_names(state, found.manifest.number)
        state.close()

    def _event(self, kind: str, text: str) -> None:
        if kind == "corruption":
            path, _, rest = text.partition(": at byte ")
            position, _, reason = rest.partition(": ")
            self._report.problems.append(Problem(path, int(position), reason))
        else:
            self._report.notes.append(f"{self._vhost.path}: {text}")

    def _wrong(self, text: str) -> None:
        """Report that checkpoint and log are wrong."""
        self._report.problems.append(Problem(self._checkpoint, 0, text))

    # ---- queues --------------------------------------------------------------------------------

    def _check_queues(self, state: StorageState) -> None:
        total = sum(queue.count for queue in state.queues.values())
        done = 0
        for queue in sorted(state.queues.values(), key=lambda q: q.number):
            name = queue_title(queue.name)
            found = QueueReport(self._vhost.title(), name, queue.number)
            self._report.queues.append(found)
            for number in sorted(queue.segments):
                self._progress("messages", done, total)
                done += self._check_segment(queue, queue.segments[number], found)
            if not found.damaged and (found.count, found.bytes) != (queue.count, queue.bytes):
                self._wrong(
                    f"queue {name!r} counts {queue.count} messages of {queue.bytes} bytes, "
                    f"it has {found.count} of {found.bytes}"
                )
            stray = [seq for seq in queue.section if not queue.is_live(seq)]
            if stray:
                self._wrong(f"queue {name!r} has a row for seq {stray[0]}, which is not alive")
            self._check_stub(queue)
        self._progress("messages", total, total)

    def _check_stub(self, queue: QueueIndex) -> None:
        """Check `.queue_name`. A power cut may tear it; the next start repairs it."""
        stub = f"{queue.path}/{QUEUE_NAME}"
        wanted, old = text_of(self._vhost.name, queue.name), old_text_of(queue.name)
        text = self._fs.read(stub) if self._fs.exists(stub) else b""
        if not self._fs.exists(queue.path) or text in (wanted, old):
            return
        if not self._vhost.name and queue_name(self._fs, queue.path) == queue.name:
            return  # the vhost's name is lost, which is reported
        if _is_torn(text, wanted) or _is_torn(text, old):
            self._report.notes.append(f"{stub}: torn")
        else:
            problem = Problem(stub, 0, f"expected {wanted!r}, found {text[:60]!r}")
            self._report.problems.append(problem)

    def _check_segment(self, queue: QueueIndex, segment: IndexSegment, found: QueueReport) -> int:
        seqs = segment.seqs(queue.slots)
        size = stores = damaged = 0
        for start in range(0, len(seqs), CHUNK_ENTRIES):
            chunk = seqs[start : start + CHUNK_ENTRIES]
            for seq, message in self._read(queue, chunk):
                if message is None:
                    damaged += 1
                    continue
                size += message.size
                stores += 1 if message.store_file else 0
                damaged += 0 if self._check_entry(queue, seq, message) else 1
        found.count += len(seqs)
        found.bytes += size
        found.segments += 1 if seqs else 0
        found.damaged += damaged
        if damaged:
            self._is_damaged = True
        elif (len(seqs), size, stores) != (segment.count, segment.bytes, segment.stores):
            self._wrong(
                f"segment {segment.number} of queue {queue.number} counts {segment.count} "
                f"messages, {segment.bytes} bytes and {segment.stores} in the store; it has "
                f"{len(seqs)}, {size} and {stores}"
            )
        if seqs and seqs[-1] >= queue.next_seq:
            self._wrong(f"seq {seqs[-1]} of queue {queue.number} is alive, the next is lower")
        return len(seqs)

    def _read(self, queue: QueueIndex, seqs: list[int]) -> list[tuple[int, QueuedMessage | None]]:
        """Return the messages of these seqs, from RAM (the log has them), section or slots."""
        holder = queue.holder
        held = holder.entries if isinstance(holder, DictHolder) else {}
        found: list[tuple[int, QueuedMessage | None]] = [
            (seq, held[seq].message) for seq in seqs if seq in held
        ]
        rest = [seq for seq in seqs if seq not in held]
        try:
            found += list(zip(rest, queue.read(rest), strict=True))
        except CorruptionError:
            for seq in rest:
                try:
                    found += [(seq, message) for message in queue.read([seq])]
                except CorruptionError as error:
                    self._report.add(error)
                    found.append((seq, None))
        return found

    def _check_entry(self, queue: QueueIndex, seq: int, message: QueuedMessage) -> bool:
        """Check the body of a live entry, or note its address in the store. False if it is lost."""
        row = queue.section.get(seq)
        if message.store_file:
            self._references.add(message.store_file, message.id, message.size)
        elif row is not None and row.body_file:
            self._references.add(row.body_file, message.id, message.size)
        elif message.body is None and message.size:
            self._wrong(f"the body of seq {seq} of queue {queue.number} is nowhere")
            return False
        else:
            body = message.body or b""
            if len(body) != message.size:
                self._wrong(
                    f"the body of seq {seq} of queue {queue.number} has {len(body)} bytes, "
                    f"its entry says {message.size}"
                )
                return False
            self._bodies.add(message.id, body)
            self._report.bodies += 1
            self._report.body_bytes += len(body)
        return True

    def _check_leases(self, state: StorageState) -> None:
        """Check that leased messages are alive. Reading the leases checked that nothing is leased
        twice and that ordinals follow one another."""
        for queue, leases in state.leases.by_queue.items():
            for lease in leases.values():
                title = f"reader {lease.reader!r} of queue {queue}"
                self._report.notes.append(f"{title} has leased {lease.count} messages")
                for run in [run for one in lease.slices for run in one.runs()]:
                    number, first, n, size, stores, _ = run
                    if not state.queues[number].is_live_run((first, n, size, stores)):
                        last = first + n - 1
                        self._wrong(
                            f"{title} has seqs {first} to {last} of {number}, some are dead"
                        )

    def _check_purged(self, state: StorageState) -> None:
        """Count the references in slots of purged segments, which last until they are released."""
        for (number, segment), bits in state.reaping.items():
            queue = state.index_of(number)
            if queue is None:
                self._wrong(f"segment {segment} of queue {number} is to be read, it has no files")
                continue
            refs, faults = state.purged_refs(queue, segment, bits)
            for id, file, size in refs:
                self._references.add(file, id, size)
            for fault in faults:
                self._is_damaged = True
                self._report.notes.append(f"references of a purged slot are lost: {fault}")

    # ---- the store -----------------------------------------------------------------------------

    def _check_store(self, store: MessageStore) -> None:
        files = store.files
        own_numbers = store.own_files.capture().numbers()
        total = len(files) + len(own_numbers)
        self._report.store_files += total
        for done, file in enumerate(files):
            self._progress("bodies", done, total)
            named = self._references.take(file.lo, file.hi)
            for id, (refs, size) in sorted(named.items()):
                # Its own number is not in its range if it was combined.
                self._check_body(store, file.lo, id, refs, size)
            self._check_unnamed(store, file, named)
        own = set(own_numbers)
        for number in self._references.files():
            named = self._references.take(number, number)
            own.discard(number & ~OWN_FILE)
            for id, (refs, size) in sorted(named.items()):
                self._check_body(store, number, id, refs, size)
        for number in sorted(own):
            if not self._is_damaged:
                path = store.file_path(number | OWN_FILE)
                self._report.problems.append(
                    Problem(path, 0, "its body has references, and nothing names it")
                )
        self._progress("bodies", total, total)

    def _check_body(self, store: MessageStore, file: int, id: int, refs: int, size: int) -> None:
        report = self._report
        try:
            body = store.read(file, id)
            counted = store.refs(file, id)
        except CorruptionError as error:
            report.add(error)
            return
        self._bodies.add(id, body)
        report.bodies += 1
        report.body_bytes += len(body)
        if len(body) != size:
            text = f"body {id:#x} has {len(body)} bytes, its entry says {size}"
            report.problems.append(Problem(store.file_path(file), 0, text))
        if counted < refs or (counted > refs and not self._is_damaged):
            text = f"body {id:#x} is named {refs} times and counted {counted} times"
            report.problems.append(Problem(store.file_path(file), 0, text))

    def _check_unnamed(
        self, store: MessageStore, file: StoreFile, named: dict[int, tuple[int, int]]
    ) -> None:
        """Report bodies that count as alive and that nothing names: their room is never freed."""
        counts = file.counts
        if self._is_damaged or counts.live_count <= len(named):
            return
        if file.is_sealed:
            hint = store.tables.hint_path(file.number)
            try:
                table = read_table(self._fs, hint, self._vhost.number, file.number)
            except (StorageError, FileNotFoundError):
                return  # a lost hint is reported already
            starts = range(0, len(table), ENTRY_BYTES)
            ids = [int.from_bytes(table[at : at + 8], "big") for at in starts]
        else:
            ids = list(file.ids)
        for place, id in enumerate(ids):
            if counts.refs(place) and id not in named:
                text = f"body {id:#x} counts {counts.refs(place)} times, and nothing names it"
                path = store.file_path(file.number)
                self._report.problems.append(Problem(path, 0, text))

    # ---- streams -------------------------------------------------------------------------------

    def _check_streams(self, state: StorageState) -> None:
        """Check pages up to the checkpoint's position; recovery read the log's records after it."""
        streams = sorted(state.streams.by_number.values(), key=lambda s: s.number)
        for done, stream in enumerate(streams):
            self._progress("streams", done, len(streams))
            found = StreamReport(self._vhost.title(), queue_title(stream.name), stream.number)
            self._report.streams.append(found)
            checked = check_stream(
                self._fs, stream.path, stream.queue.stream_id, stream.number,
                stream.queue.pages.first_base, stream.restored,
            )  # fmt: skip
            for problem in checked.problems:
                self._report.add(problem)
            self._report.notes += checked.notes
            found.records, found.bytes = checked.records, checked.bytes
            found.pages, found.damaged = checked.pages, checked.damaged

    # ---- names ---------------------------------------------------------------------------------

    def _check_names(self, state: StorageState, number: int) -> None:
        unknown = state.store.forget_unknown()
        files, trees = recovery.orphans(self._fs, state, number, unknown)
        for path in (*files, *trees):
            self._report.notes.append(f"{path}: an orphan; the next start deletes it")


# ---- batches -------------------------------------------------------------------------------------


def check_batches(
    fs: FileSystem, state: StorageState, add: Callable[[BaseException], None], notes: list[str]
) -> None:
    """Check the batches of a vhost. add: called with each problem. Raises OSError."""
    problems: list[CorruptionError] = []
    for batch in state.batches.by_query.values():
        if not batch.is_done:
            notes.append(_note(batch))
            first = batch.frame
            for page in batch.pages[batch.page :]:
                path = f"{query_path(state.path, batch.query)}/{page.name}"
                problems += _check_page(fs, path, page, first)
                first = 0
    for stream, adoption in state.streams.adopting:
        placed = f"{adoption.writer.stem}.page"
        path = adoption.staged if fs.exists(adoption.staged) else placed
        if not stream.is_deleted:
            problems += _check_page(fs, path, adoption.page, 0)
    for problem in problems:
        add(problem)


def _note(batch: Batch) -> str:
    return (
        f"batch {batch.number} of query {batch.query!r} is decided, and moved up to page "
        f"{batch.page} of {batch.page_count}, frame {batch.frame}"
    )


def _check_page(fs: FileSystem, path: str, page: StagedPage, frame: int) -> list[CorruptionError]:
    reader = StagedReader(fs, path, page)
    try:
        while frame < page.rows:
            frame += len(reader.read(frame, READ_RECORDS, READ_BYTES))
    except CorruptionError as error:
        return [error]
    finally:
        reader.close()
    return []


# ---- streams -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Findings:
    """What was found in one stream. damaged: lost records. bytes: of pages, up to the end."""

    pages: int = 0
    records: int = 0
    bytes: int = 0
    damaged: int = 0
    problems: list[CorruptionError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify_stream(fs: FileSystem, path: str) -> Findings:
    """Verify a stream without a vhost that nobody writes to. Raises OSError."""
    found = Findings()
    known = _meta(fs, path, found)
    if known is None:
        return found
    meta, first = known
    try:
        stream_meta.load_readers(fs, path)
    except CorruptionError as error:
        found.problems.append(error)
    _check(fs, path, meta.id, first, _head(fs, path, found), found)
    return found


def check_stream(
    fs: FileSystem, path: str, stream_id: bytes, number: int, first_base: int, position: Position
) -> Findings:
    """Verify a stream of a vhost up to the checkpoint's position. Raises OSError."""
    found = Findings()
    known = _meta(fs, path, found)
    if known is not None and (known[0].number, known[0].id) != (number, stream_id):
        text = f"it is of stream {known[0].number}, {known[0].id.hex()}"
        found.problems.append(CorruptionError(f"{path}/{ALL_META}", 12, text))
    _head(fs, path, found)
    head = StreamHead(
        position.next_offset, position.page_base, position.page_bytes, position.last_time_us
    )
    _check(fs, path, stream_id, first_base, head, found)
    return found


def _meta(fs: FileSystem, path: str, found: Findings) -> tuple[AllMeta, int] | None:
    """Return allMeta and the first offset; None, and a problem, if they cannot be read."""
    file = f"{path}/{ALL_META}"
    try:
        return stream_meta.decode_all(file, fs.read(file)), stream_meta.read_tail(fs, path)
    except FileNotFoundError:
        found.problems.append(CorruptionError(file, 0, "it is missing"))
    except CorruptionError as error:
        found.problems.append(error)
    return None


def _head(fs: FileSystem, path: str, found: Findings) -> StreamHead | None:
    """Return the content of writeMeta; None, and a note, if it cannot be read."""
    file = f"{path}/{WRITE_META}"
    try:
        return stream_meta.decode_head(file, fs.read(file))
    except FileNotFoundError:
        found.notes.append(f"{file}: it is missing; a start makes it again")
    except CorruptionError as error:
        found.notes.append(f"{error}; a start makes it again")
    return None


def _check(
    fs: FileSystem, path: str, stream_id: bytes, first: int, head: StreamHead | None,
    found: Findings,
) -> None:  # fmt: skip
    """Check every page from the first one to that of the head. Without a head the end of the stream
    is unknown: all pages are checked, and each must lead to the next."""
    _check_names(fs, path, first, found)
    bases = [base for base in list_bases(fs, path) if base >= first]
    wanted = {first} if bases else set()
    if head is not None:
        if not head.page_bytes or head.page_base < first:
            return  # there is no page, or retention deleted it
        bases = [base for base in bases if base <= head.page_base]
        wanted = {first, head.page_base}
    for base in sorted(wanted.difference(bases)):
        file = f"{path}/{page_name(base)}.page"
        found.problems.append(CorruptionError(file, 0, "the page is missing"))
    for i, base in enumerate(bases):
        page = _Page(fs, path, stream_id, base, found)
        if i + 1 < len(bases):
            page.check(bases[i + 1] - base, -1)
        elif head is None:
            page.check(-1, -1)
        elif base == head.page_base:
            page.check(head.next_offset - base, head.page_bytes)
        else:
            page.check(head.page_base - base, -1)


def _check_names(fs: FileSystem, path: str, first: int, found: Findings) -> None:
    for name in fs.list(path):
        stem, _, ending = name.rpartition(".")
        if ending in ("page", "idx") and len(stem) == 20 and stem.isdecimal():
            if int(stem) < first:
                found.notes.append(f"{path}/{name}: it is below the first page, a leftover")
        elif name not in KNOWN:
            found.notes.append(f"{path}/{name}: it is not of a stream, or a leftover")


class _Page:
    """Checks one page and its index."""

    def __init__(
        self, fs: FileSystem, path: str, stream_id: bytes, base: int, found: Findings
    ) -> None:
        self.fs = fs
        self.found = found
        self.stem = f"{path}/{page_name(base)}"
        self.base = base
        self.id = page_id(stream_id, base)
        self.seed = page_seed(self.id)
        self.is_staged = False  # all records have the header's time
        self.seen = 0  # good records
        self.has_bad_row = False

    def check(self, count: int, limit: int) -> None:
        """Check the page. count: its records, -1 if unknown. limit: where its content ends, -1 for
        the end of the file."""
        path = self.stem + ".page"
        try:
            file = self.fs.open(path)
        except FileNotFoundError:
            self.found.problems.append(CorruptionError(path, 0, "the page is missing"))
            self.found.damaged += max(count, 0)
            return
        self.found.pages += 1
        try:
            header = check_header(path, file.pread(PAGE_HEADER_BYTES, 0), self.id, self.base)
            self.id, self.seed = header.id, page_seed(header.id)
            self.is_staged = header.is_staged
            size = file.size()
            if size < limit:
                raise CorruptionError(path, size, f"the page ends here, expected {limit} bytes")
            end = size if limit < 0 else limit
            index = self._index(size, count if limit < 0 else -1, is_last=limit >= 0 or count < 0)
            self._frames(file, end, header.base_time_us, index)
            if count >= 0 and self.seen != count:
                raise CorruptionError(path, end, f"{self.seen} records, expected {count}")
            self.found.bytes += end
            if index:
                self._blocks(file, index)
        except CorruptionError as error:
            self.found.problems.append(error)
            self.found.damaged += max(count - self.seen, 1)
        finally:
            file.close()
            self.found.records += self.seen

    def _index(self, size: int, count: int, *, is_last: bool) -> bytes:
        """Return the whole file of a sealed index of this page, or b""."""
        path = self.stem + ".idx"
        try:
            data = self.fs.read(path)
            header = decode_index_header(path, data)
            if is_last and not header.is_sealed:
                return b""
            header = check_index(path, data)
            fits = header.id == self.id and header.base == self.base and header.page_bytes == size
            if not fits or (count >= 0 and header.count != count):
                raise CorruptionError(path, 0, "the index is not of this page")
        except FileNotFoundError:
            if not is_last:
                self.found.notes.append(f"{path}: it is missing; it is made again from the page")
            return b""
        except CorruptionError as error:
            if not is_last:
                self.found.notes.append(f"{error}; it is made again from the page")
            return b""
        return data

    def _frames(self, file: File, end: int, last_time: int, index: bytes) -> None:
        """Verify every frame, and compare the rows of the index."""
        at = PAGE_HEADER_BYTES
        while at < end:
            data = file.pread(min(BLOCK_BYTES, end - at), at)
            scan = scan_frames(data, at, self.seed, self.seen, last_time, end)
            if scan.need and not scan.rows:
                data = file.pread(scan.need, at)
                scan = scan_frames(data, at, self.seed, self.seen, last_time, end)
            if self.is_staged:
                time = last_time.to_bytes(8, "little", signed=True)
                scan.rows = [row[:8] + time for row in scan.rows]
            for row in scan.rows:
                time_us = decode_row(row, 0)[2]
                if time_us < last_time:
                    self.found.notes.append(f"{file.path}: time goes back at byte {at}")
                last_time = time_us
            rows = b"".join(scan.rows)
            place = INDEX_HEADER_BYTES + INDEX_ROW_BYTES * self.seen
            if index and not self.has_bad_row and index[place : place + len(rows)] != rows:
                self.has_bad_row = True
                self.found.notes.append(f"{self.stem}.idx: at byte {place}: its rows are wrong")
            self.seen += len(scan.rows)
            at = scan.end
            if scan.fault or not scan.rows:
                text = scan.fault or "the page ends here"
                raise CorruptionError(file.path, at, f"record {self.base + self.seen}: {text}")

    def _blocks(self, file: File, index: bytes) -> None:
        header = decode_index_header(self.stem + ".idx", index)
        for block, crc in enumerate(decode_blocks(index, header)):
            data = file.pread(BLOCK_BYTES, block * BLOCK_BYTES)
            if block_crc(self.seed, block, data) != crc:
                self.found.notes.append(f"{self.stem}.idx: the CRC of block {block} is wrong")
