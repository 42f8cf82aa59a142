"""TransactionLog: the one write-ahead log of a vhost, and the only file synced for a confirm.

RabbitMQ syncs a journal per queue and the message store, Qpid a log and a database; a publish to
many places then waits for many disks. Here publish, ack and transaction of all queues are written
to one log in the order in which they happen. One fdatasync confirms all that came before it, and
while it runs the next batch collects (group commit).

    append -> open group -> [close] -> pending groups -> [write] -> file -> [sync] -> durable
                                           |  a group in mode DISK waits for its store bodies [2],
                                           |  the first of a segment for a sync of the last [11]

Three LSNs only ever grow: `last_lsn` was appended, `written_lsn` is in the file (survives the
death of the process), `durable_lsn` is covered by an fdatasync that returned, before which every
store body named at or below it was synced. `settled(mode)` is what may be confirmed in that mode.

* A group is bound to its segment and position when it opens, because its records' checksums are
  seeded with the segment. Groups are written in order, neighbours in one write.
* [2] The caller writes a store body before it appends the record that names it. So a sync of the
  store that began when `last_lsn` was L covers every record up to L (`_store_lsn`). A DISK group
  that names a later body waits, and so do all after it, while the sync of the groups before it may
  run. Weaker groups are written at once; the next sync of the log first syncs the store.
* While a sync is in flight, groups that only DISK waits for are held, up to 1 MiB: the next sync is
  for them anyway, so one write takes them all when it begins, and their headers say what the sync
  before made durable. Nothing is held if one of them has a weaker mode, because it is confirmed
  when it is written, or names a body, because it may want a sync of the store meanwhile.
* At most one fdatasync of the log is in flight. It claims what was written when it was submitted.
  When it returns and more is wanted, the next one starts at once.
* [11] The first group of a segment is written only once all of the segment before is durable, in
  every mode. Group headers contain `durable_lsn` as it is then. When a sync has returned and no
  group waits to be written, an end marker in the next segment says what the sync made durable,
  before anything of it is confirmed. So damage to a confirmed record is never taken for a torn
  tail, and because the end marker is in another file, damage to the log's end does not affect it.
  While no next segment is prepared, an idle header after the last group says the same, and `tick`
  writes the end marker once there is one. Neither is synced: they survive the death of the process,
  and after a power cut the headers of later groups say it.
* If the owner runs further turns while `has_unwritten` (`is_sliced`), groups of more than
  WRITE_BYTES_MAX are written over several: SLICE_BYTES with each call, and the first block last. It
  has the header, so until then nothing there verifies; what is confirmed meanwhile may write an
  idle header in its place.
* Acks force no sync: `tick` syncs what was written a second ago at the latest, in mode INTERVAL
  after the interval.
* [10] A failed write or sync of the log, or of the store for it, is final: `failed` is set, the
  three LSNs stay, every call raises StoppedError, and only a recovery from disk can continue. The
  one exception: no room for the next segment, or no descriptor to open it with, raises
  DiskFullError or DescriptorsError, and nothing has changed.

Segments of the log (log_file.py has their format) are kept by a SegmentPool:

    prepared ahead -> in use, oldest first -> [release_before] -> spare -> prepared ahead
    prepared small ->                                          -> deleted

* [7] A segment is used only once its content and its name are durable. The next one is prepared
  ahead by a worker, or in place when it is late or too small for a record.
* Numbers only grow. A segment that is late or too small for its turn is deleted, never renumbered:
  after a crash it could have its old name with the header of its new life, which is damage.
* A released segment may become a spare, because its old name is below the first segment of the
  checkpoint that released it [6], where no recovery looks.
* Sizes double from `bytes_min` to `bytes_max`, but a segment is at most an eighth of what the disk
  has beyond its limit (`bytes_min` at the least), so a small disk has a small log. A spare that is
  smaller than what is wanted, or larger than that eighth, is deleted. No directory is synced for a
  deletion: a name that comes back only takes room.
* `shrink` is for a log that nobody writes to, or a disk without room: the log continues in a
  segment of `bytes_min`, prepared as any other [7], and the one ahead is deleted. What came before
  is deleted only by `release_before`, because records may be in it.
* While `is_lean` there are no spares. They are deleted once a segment is prepared ahead; until then
  a spare is what makes the next segment without any room.

Calls that may block: an append that needs a segment which is not ready, `start`, `wait`. All others
only submit. Before a large record `make_ready` says whether its append would block, and prepares
what is missing. One thread owns the log; tokens that `complete` does not know are those of other
operations.
"""

import errno
import random
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from penstock.clock import Clock
from penstock.counts import DISK_S, RECORDS, Histogram
from penstock.errors import (
    DescriptorsError,
    DiskFullError,
    StoppedError,
    SyncFailedError,
    has_no_descriptor,
    is_shortage,
)
from penstock.fast_crc import BodyPieces, pieces_of
from penstock.storage.files.durability import (
    DISK,
    INTERVAL,
    NONE,
    OS,
)
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.log.log_file import (
    ALIGN_BYTES,
    CHAIN_OFFSET,
    FIRST_GROUP_OFFSET,
    GROUP_HEADER_BYTES,
    NEW_SUFFIX,
    SEGMENT_SUFFIX,
    LogEnd,
    aligned,
    encode_chain,
    encode_group_header,
    encode_segment_header,
    segment_path,
    segment_seed,
)
from penstock.storage.log.record import (
    DEQUEUE,
    HAS_EXPIRY,
    IN_STORE,
    LARGE_BYTES,
    MOVE,
    PUBLISH,
    RECORD_HEADER_BYTES,
    STREAM,
    STREAM_FIXED_BYTES,
    TYPE_NAMES,
    Run,
    StoreRef,
    encode,
    encode_front,
    encode_stream,
    encode_stream_front,
)
from penstock.storage.log.record_writer import encode_dequeue, encode_publish_one

WRITE_BYTES_MAX: Final = 1 << 20  # larger runs of groups are written in several calls
SLICE_BYTES: Final = 4 << 20  # of such a run, at once, if the owner runs further turns: 2 ms
HOLD_BYTES_MAX: Final = 1 << 20  # of groups that wait for the sync in flight to return
# What is stated is one second; `tick` comes at least ten times in one.
SOFT_SYNC_S: Final = 0.9
SPARES_MAX: Final = 2
FREE_SHARE: Final = 8  # a segment takes at most that part of the room that there is
RETRY_S: Final = 1.0
NO_TOKEN: Final = -1
SYNCS_MEANT: Final = 8
RECENT_S: Final = 60.0


class StoreSync(Protocol):
    """What the log needs from the store whose bodies its records name [2]."""

    def has_unsynced(self) -> bool:
        """Return whether any file has changed since a sync of it that `synced` reported."""

    def take_unsynced(self) -> Callable[[], object]:
        """Return an operation that syncs all that is unsynced now, names included.

        It runs later, in another thread, perhaps beside another one. It raises OSError or
        SyncFailedError.
        """

    def synced(self, result: object) -> None:
        """Take the operation's result. What changed since `take_unsynced` stays unsynced."""


class NoStore:
    """A store without bodies."""

    def has_unsynced(self) -> bool:
        return False

    def take_unsynced(self) -> Callable[[], object]:
        raise AssertionError("there is nothing to sync")

    def synced(self, result: object) -> None:
        raise AssertionError("there was nothing to sync")


class Segment:
    """A segment open for appending. end: the position of the next group. prev_*: what its chain
    says of the log before it."""

    __slots__ = (
        "end", "file", "number", "path", "prev_end", "prev_lsn", "prev_segment", "seed", "size",
    )  # fmt: skip

    def __init__(self, number: int, path: str, size: int, seed: int, file: File) -> None:
        self.number: int = number
        self.path: str = path
        self.size: int = size
        self.seed: int = seed
        self.file: File = file
        self.end: int = FIRST_GROUP_OFFSET
        self.prev_segment: int = 0
        self.prev_end: int = 0
        self.prev_lsn: int = 0


class _SyncOp:
    """Syncs the store, if it is given, and then the log; in a worker."""

    def __init__(self, store: Callable[[], object] | None, file: File) -> None:
        self.store: Callable[[], object] | None = store
        self.file: File = file

    def __call__(self) -> object:
        result: object = None
        if self.store is not None:
            result = self.store()
        self.file.sync()
        return result


class _Group:
    """A closed group, not yet written, from where the segment ends to `end`."""

    __slots__ = (
        "count", "end", "last_lsn", "length", "mode", "names_store", "offset", "parts", "segment",
    )  # fmt: skip

    def __init__(
        self, segment: Segment, end: int, last_lsn: int, count: int, parts: list[bytes],
        length: int, mode: int, names_store: bool,
    ) -> None:  # fmt: skip
        self.segment: Segment = segment
        self.offset: int = segment.end
        self.end: int = end
        self.count: int = count
        self.last_lsn: int = last_lsn
        self.parts: list[bytes] = parts
        self.length: int = length
        self.mode: int = mode
        self.names_store: bool = names_store


class _LargeWrite:
    """Neighbouring groups that are written over several turns. pieces: what is not written yet, but
    for the first block; offset: where that belongs. head: the first records, as far as they are in
    the first block."""

    __slots__ = ("head", "offset", "pieces", "run")

    def __init__(self, run: list[_Group], pieces: list[bytes], offset: int) -> None:
        self.run: list[_Group] = run
        self.pieces: deque[bytes] = deque(pieces)
        self.offset: int = offset
        self.head: bytes = b""
        rest = ALIGN_BYTES - GROUP_HEADER_BYTES
        while len(self.head) < rest:
            piece = self.pieces.popleft()
            left = rest - len(self.head)
            self.head += piece[:left]
            if len(piece) > left:
                self.pieces.appendleft(piece[left:])


class TransactionLog:
    """See the head of this module. `start` is called before all other calls.

    segment_bytes_min, _max: size of the first segment and the limit of its doubling. free_limit:
    bytes of the disk that segments leave free. interval_ms: between syncs of mode INTERVAL.
    group_bytes_max: of one group (a larger record is a group of its own), and what may wait
    unwritten before `is_full` asks the caller to stop.
    """

    def __init__(
        self, fs: FileSystem, directory: str, vhost: int, clock: Clock, rng: random.Random, *,
        segment_bytes_min: int = 1 << 20, segment_bytes_max: int = 64 << 20,
        interval_ms: int = 200, group_bytes_max: int = 8 << 20, free_limit: int = 0,
        store: StoreSync | None = None,
    ) -> None:  # fmt: skip
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.last_lsn = self.written_lsn = self.durable_lsn = self._start_lsn = 0
        self.syncs: int = 0  # of the log that returned
        self.groups: int = 0  # written
        # The seconds of each sync, and how many records it made durable.
        self.sync_seconds: Histogram = Histogram(DISK_S)
        self.synced_records: Histogram = Histogram(RECORDS)
        self._sync_mean_s: float = 0.0  # of about the last SYNCS_MEANT
        self.dequeues: int = 0  # records appended by append_dequeue
        self.stream_records: int = 0  # and by append_stream
        self.others: dict[int, int] = {}  # and by append, by their kinds
        self.failed: SyncFailedError | None = None
        self._clock: Clock = clock
        self._interval_s: float = interval_ms / 1000
        self._group_bytes_max: int = group_bytes_max
        self._store: StoreSync = NoStore() if store is None else store
        # The open group: its records and the bytes that still fit. Room 0: no group is open.
        self._parts: list[bytes] = []
        self._fronts: int = 0  # of them, which are not whole: what follows belongs to them
        self._room = self._room_first = 0
        self._seed: int = 0
        self._mode: int = NONE
        self._names_store: bool = False
        # Closed groups that wait to be written, and the bytes of their records.
        self._pending: deque[_Group] = deque()
        self.queued_bytes: int = 0  # of records that are not yet written
        self.is_full: bool = False  # so much waits to be written that the caller should wait
        self._full_from: int = group_bytes_max  # more after `make_ready` of a large record
        self.is_sliced: bool = False
        self._large: _LargeWrite | None = None  # what is being written over several turns
        self.has_unwritten: bool = False  # there is such a one: the next `flush` goes on with it
        # Grows with each segment that was prepared, and each write.
        self.progress: int = 0
        self._pending_eager: int = 0  # how many of them are not held
        self._closed_bytes: int = 0  # of all groups ever closed
        self._pool: SegmentPool = SegmentPool(
            fs, directory, vhost, clock, rng, segment_bytes_min, segment_bytes_max, free_limit
        )
        self._writing: Segment | None = None  # groups are written to this one
        self._last_written: Segment | None = None  # has the last group that was written
        self._claimed_lsn: int = 0  # the highest durable LSN that is in a header
        self._marked: Segment | None = None  # the next segment, once it has an end marker
        self._marked_lsn = self._last_end = 0  # and what that says; where the last group ends
        # What must become durable, and the operations in flight for it.
        self._wanted_lsn: int = 0
        self._interval_lsn: int = 0  # last written in mode INTERVAL
        self._named_lsn: int = 0  # last written that names a store body
        self._store_lsn: int = 0  # up to here every body named is synced
        self._sync_token: int = NO_TOKEN
        self._sync_at: float = 0.0
        self._sync_has_store: bool = False
        self._sync_lsn = self._sync_store_lsn = 0
        self._store_token: int = NO_TOKEN
        self._store_token_lsn: int = 0
        self._unsynced_at: float = -1.0  # when the oldest bytes not durable were written; -1: none
        self._is_closed: bool = False

    def start(self, prev: LogEnd | None, first_number: int = 0) -> None:
        """Continue after `prev` (None: a new store) in a new segment, which is prepared here [8].

        first_number: of the segment, above all that exist; 0 takes it from `prev`. `release_before`
        deletes the files that `prev` lists. DiskFullError, SyncFailedError.
        """
        lsn = 0 if prev is None else prev.last_lsn
        number = max(first_number, 1 if prev is None else prev.next_number)
        try:
            segment = self._pool.start(number, [] if prev is None else prev.files)
        except SyncFailedError as error:
            raise self._fail(error.path, error) from error
        self.last_lsn = self.written_lsn = self.durable_lsn = self._start_lsn = lsn
        self._wanted_lsn = self._store_lsn = self._claimed_lsn = lsn
        if prev is not None:
            segment.prev_segment, segment.prev_end = prev.segment, prev.offset
        segment.prev_lsn = lsn
        self._writing = segment
        self._seed = segment.seed

    def abandon_start(self) -> None:
        """Undo `start`, because the disk is full: delete the segment, which has no record and which
        no checkpoint names. No other call follows."""
        assert self.last_lsn == self._start_lsn, "a log that has records stays"
        self._is_closed = True
        self._pool.abandon_start()

    # ---- Appending ----------------------------------------------------------------------

    def append(
        self, kind: int, flags: int, count: int, data: bytes, mode: int, names_store: bool = False
    ) -> int:
        """Append one record and return its LSN. It is in no file before `flush`.

        names_store: it names a body in the store; the flags of a PUBLISH or MOVE say it too.
        ValueError, DiskFullError: nothing has changed. StoppedError.
        """
        record = encode(self._seed, self.last_lsn + 1, kind, flags, count, data)
        if len(record) > self._room and self._make_room(len(record)):
            record = encode(self._seed, self.last_lsn + 1, kind, flags, count, data)
        if kind in (PUBLISH, MOVE):
            names_store = names_store or flags & IN_STORE != 0
        self.others[kind] = self.others.get(kind, 0) + 1
        return self._add(record, mode, names_store)

    def append_publish(
        self, message_id: int, time: int, expiry_ms: int, store_file: int, queue: int, seq: int,
        header: bytes, body: bytes, body_size: int, mode: int,
    ) -> int:  # fmt: skip
        """Append a PUBLISH to one queue: as `append`, but faster.

        time: seconds since 1970. expiry_ms: since 1970, 0 for none. store_file: the one with the
        body, 0 if the body belongs into the record.
        """
        flags = 0
        if store_file != 0:
            flags = IN_STORE
        if expiry_ms != 0:
            flags = flags | HAS_EXPIRY
        record = encode_publish_one(
            self._seed, self.last_lsn + 1, flags, message_id, time, expiry_ms, store_file, queue,
            seq, header, body, body_size,
        )  # fmt: skip
        if len(record) > self._room and self._make_room(len(record)):
            record = encode_publish_one(
                self._seed, self.last_lsn + 1, flags, message_id, time, expiry_ms, store_file,
                queue, seq, header, body, body_size,
            )  # fmt: skip
        return self._add(record, mode, store_file != 0)

    def append_dequeue(
        self, queue: int, runs: list[Run], stores: list[StoreRef], mode: int = OS
    ) -> int:
        """Append a DEQUEUE: as `append`, but faster."""
        record = encode_dequeue(self._seed, self.last_lsn + 1, queue, runs, stores)
        if len(record) > self._room and self._make_room(len(record)):
            record = encode_dequeue(self._seed, self.last_lsn + 1, queue, runs, stores)
        self.dequeues += 1
        return self._add(record, mode, False)

    def append_stream(
        self, stream: int, offset: int, time_us: int, meta: bytes, payload: bytes, mode: int
    ) -> int:
        """Append a STREAM: as `append`, but faster. time_us: microseconds since 1970."""
        if len(payload) >= LARGE_BYTES:
            return self.append_large(stream, offset, time_us, meta, pieces_of(payload), mode)
        size = STREAM_FIXED_BYTES + len(meta) + len(payload)
        if size > self._room:
            self._make_room(size)
        self.stream_records += 1
        record = encode_stream(
            self._seed, self.last_lsn + 1, stream, offset, time_us, meta, payload
        )
        return self._add(record, mode, False)

    def append_large(
        self, stream: int, offset: int, time_us: int, meta: bytes, payload: BodyPieces, mode: int
    ) -> int:
        """Append a STREAM whose payload is in pieces, one at least, which are not copied."""
        size = STREAM_FIXED_BYTES + len(meta) + payload.size
        if size > self._room:
            self._make_room(size)
        self.stream_records += 1
        self._add_front(
            encode_stream_front(
                self._seed, self.last_lsn + 1, stream, offset, time_us, meta, payload
            )
        )
        for i in range(len(payload.pieces) - 1):
            self._add_front(payload.pieces[i])
        return self._add(payload.pieces[-1], mode, False)

    def append_pieces(
        self, kind: int, count: int, pieces: list[bytes], mode: int, names_store: bool
    ) -> int:
        """Append a record without flags whose data is in pieces, one at least: as `append`, but
        they are not copied."""
        size = RECORD_HEADER_BYTES
        for piece in pieces:
            size += len(piece)
        if size > self._room:
            self._make_room(size)
        self._add_front(encode_front(self._seed, self.last_lsn + 1, kind, 0, count, pieces))
        for i in range(len(pieces) - 1):
            self._add_front(pieces[i])
        self.others[kind] = self.others.get(kind, 0) + 1
        return self._add(pieces[-1], mode, names_store)

    def _add_front(self, front: bytes) -> None:
        """Add a part of a record, which `_add` of its last part must follow."""
        self._parts.append(front)
        self._fronts += 1
        self._room -= len(front)
        self.queued_bytes += len(front)

    def _add(self, record: bytes, mode: int, names_store: bool) -> int:
        if mode > self._mode:
            self._mode = mode
        self._parts.append(record)
        size = len(record)
        self._room -= size
        self.queued_bytes += size
        self.is_full = self.queued_bytes > self._full_from
        self.last_lsn += 1
        if names_store:
            # [2] So the records after it need not wait for this body's sync.
            self._names_store = True
            self._close_group()
        return self.last_lsn

    def make_ready(self, record_bytes: int) -> bool:
        """Return whether a record of so many bytes can be appended without waiting. If not, what
        it needs is prepared in a worker: ask again when `progress` has changed. One that the disk
        has no room for can be appended, which raises the error."""
        self._check()
        if self.queued_bytes > self._group_bytes_max:
            return False
        if not self._pool.make_ready(GROUP_HEADER_BYTES + record_bytes, self._next_group_at()):
            return False
        self._full_from = self._group_bytes_max + record_bytes
        return True

    def ensure_room(self, size: int) -> None:
        """Have room for a record of so many bytes, at most an eighth of the smallest segment, in
        the segment in use or the one ahead. DiskFullError: nothing has changed."""
        self._check()
        size = min(size, self._pool.bytes_min // 8)
        need = GROUP_HEADER_BYTES + size
        if size > self._room and not self._pool.has_room(need, self._next_group_at()):
            self._make_room(size)

    def _next_group_at(self) -> int:
        """Return where in the segment in use a group would begin after the open one."""
        end = self._pool.in_use[-1].end
        if self._parts:
            end = aligned(end + GROUP_HEADER_BYTES + self._room_first - self._room)
        return end

    def _make_room(self, record_bytes: int) -> bool:
        """Open a group with room for a record. True if it is in another segment than before."""
        self._check()
        self._close_group()
        segment = self._pool.in_use[-1]
        seed = segment.seed
        need = GROUP_HEADER_BYTES + record_bytes
        if segment.end + need > segment.size:
            segment = self._roll(segment, need)
        room = min(segment.size - segment.end - GROUP_HEADER_BYTES, self._group_bytes_max)
        self._room = self._room_first = max(room, record_bytes)
        self._seed = segment.seed
        return self._seed != seed

    def _roll(self, last: Segment, need: int) -> Segment:
        """Continue in another segment, whose chain will say where this one ends."""
        try:
            segment = self._pool.next(need)
        except SyncFailedError as error:
            raise self._fail(error.path, error) from error
        segment.prev_segment, segment.prev_end = last.number, last.end
        segment.prev_lsn = self.last_lsn
        return segment

    def _close_group(self) -> None:
        """Give the open group its place; the next record opens another one."""
        if self._parts:
            segment = self._pool.in_use[-1]
            length = self._room_first - self._room
            count = len(self._parts) - self._fronts
            end = aligned(segment.end + GROUP_HEADER_BYTES + length)
            group = _Group(
                segment, end, self.last_lsn, count, self._parts, length, self._mode,
                self._names_store,
            )  # fmt: skip
            self._pending.append(group)
            segment.end = end
            self._pending_eager += self._mode < DISK or self._names_store
            self._closed_bytes += length
            self._parts = []
            self._fronts = 0
        self._room = self._room_first = 0
        self._mode = NONE
        self._names_store = False

    # ---- Writing and syncing ------------------------------------------------------------

    def flush(self) -> None:
        """Write what may be written, and start a sync if one is wanted. Waits for no disk.

        SyncFailedError if the log fails here, StoppedError if it failed before.
        """
        self._check()
        self._close_group()
        self._drive()
        if self.failed is not None:
            raise self.failed

    def request_sync(self) -> None:
        """Make everything appended so far durable, whatever its mode; calls `flush`."""
        self._wanted_lsn = max(self._wanted_lsn, self.last_lsn)
        self.flush()

    def wait(
        self, lsn: int, mode: int, on_other: Callable[[int, object], None] | None = None
    ) -> None:
        """Wait until `lsn` is settled for `mode`; DISK syncs weaker records too.

        on_other: takes completions that are not the log's. SyncFailedError.
        """
        if mode == DISK:
            self._wanted_lsn = max(self._wanted_lsn, lsn)
        self.flush()
        self._write_rest()
        while self.settled(mode) < lsn:
            done = self.fs.completed(True)
            assert done, f"record {lsn} waits, and nothing is in flight"
            for token, result in done:
                if not self.complete(token, result):
                    assert on_other is not None, "an operation that is not the log's completed"
                    on_other(token, result)
            self._write_rest()

    def complete(self, token: int, result: object) -> bool:
        """Take the end of a submitted operation; False if it is not the log's.

        Raises nothing for a failure: check `failed` afterwards.
        """
        if token == NO_TOKEN:
            return False
        if token == self._sync_token:
            self._sync_token = NO_TOKEN
            self._complete_sync(result)
        elif token == self._store_token:
            self._store_token = NO_TOKEN
            if isinstance(result, BaseException):
                self._fail(self.directory, result)
            elif self.failed is None:
                self._store.synced(result)
                self._store_lsn = max(self._store_lsn, self._store_token_lsn)
        else:
            try:
                if not self._pool.complete(token, result):
                    return False
                self.progress += 1
                if self._pool.outgrown is not None:
                    self._replace_outgrown()
                if self._pool.small is not None and self.failed is None and not self._is_closed:
                    self._go_on_in_small()
            except Exception as error:  # noqa: BLE001  # the log cannot continue
                self._fail(self.directory, error)
        if self.failed is None and not self._is_closed:
            self._drive()
        return True

    def settled(self, mode: int) -> int:
        """Return the LSN up to which all may be confirmed in that mode."""
        return self.durable_lsn if mode == DISK else self.written_lsn

    def position(self) -> tuple[int, int, int]:
        """Return (segment, position, LSN) for a cut: where the log continues, and the last LSN."""
        self._check()
        self._close_group()
        segment = self._pool.in_use[-1]
        return segment.number, segment.end, self.last_lsn

    @property
    def appended_records(self) -> int:
        """Records appended since `start`."""
        return self.last_lsn - self._start_lsn

    @property
    def appended_bytes(self) -> int:
        """Bytes of these records, without the headers of groups."""
        return self._closed_bytes + self._room_first - self._room

    @property
    def segments(self) -> int:
        """Files in use."""
        return len(self._pool.in_use)

    def record_kinds(self) -> dict[str, int]:
        """Return how many records were appended since `start`, by the names of their types.
        `append_publish` counts none, because it is called for each message: what is left over are
        its records."""
        counts = dict(self.others)
        counts[DEQUEUE] = counts.get(DEQUEUE, 0) + self.dequeues
        counts[STREAM] = counts.get(STREAM, 0) + self.stream_records
        counts.pop(PUBLISH, None)
        counts[PUBLISH] = self.appended_records - sum(counts.values())
        return {TYPE_NAMES[kind]: n for kind, n in counts.items()}

    def has_room(self, size: int) -> bool:
        """Return whether records of so many bytes can be appended without waiting for a segment to
        be prepared. For background work, which can wait better than a client."""
        if not self._pool.is_preparing:
            return True
        segment = self._pool.in_use[-1]
        return segment.end + self._room_first - self._room + size <= segment.size

    def _drive(self) -> None:
        """Write, say what is durable, start syncs of store and log: all that is possible now."""
        if self.failed is None:
            self._write_ready()
        if self.failed is None and self._claimed_lsn < self.durable_lsn:
            self._write_durable_lsn()
        if self.failed is None:
            self._start_sync()

    def _write_ready(self) -> None:
        if self._large is not None and not self._go_on_writing(SLICE_BYTES):
            return
        if (
            self._sync_token != NO_TOKEN
            and self._pending_eager == 0
            and self.queued_bytes - self._room_first + self._room < HOLD_BYTES_MAX
        ):
            return
        run: list[_Group] = []
        run_bytes = 0
        while self._pending:
            group = self._pending[0]
            if run and (group.segment is not run[0].segment or run_bytes > WRITE_BYTES_MAX):
                self._write(run)
                run, run_bytes = [], 0
                if self.failed is not None or self._large is not None:
                    return
            if not self._may_write(group, run):
                break
            self._pending.popleft()
            self._pending_eager -= group.mode < DISK or group.names_store
            run.append(group)
            run_bytes += group.length
        if run:
            self._write(run)

    def _may_write(self, group: _Group, run: list[_Group]) -> bool:
        """Apply rules [11] and [2] to the first pending group; start the sync that it waits for."""
        if not run and group.segment is not self._writing:
            if self.durable_lsn < self.written_lsn:
                self._wanted_lsn = max(self._wanted_lsn, self.written_lsn)
                return False
            self._writing = group.segment
        if group.names_store and group.mode == DISK and group.last_lsn > self._store_lsn:
            if self._store.has_unsynced():
                if self._store_token == NO_TOKEN:
                    self._store_token_lsn = self.last_lsn
                    self._store_token = self.fs.submit(self._store.take_unsynced())
                return False
            self._store_lsn = self.last_lsn
        return True

    def _write(self, run: list[_Group]) -> None:
        """Write neighbouring groups, with the chain before the first of a segment: with one call
        unless there are large records, which are not copied for it."""
        segment = run[0].segment
        pieces: list[bytes] = []
        for group in run:
            if pieces:
                pieces.append(self._header_of(group))
            pieces.extend(group.parts)
            end = group.offset + GROUP_HEADER_BYTES + group.length
            if end < group.end:
                pieces.append(bytes(group.end - end))
        is_large = run[-1].length > WRITE_BYTES_MAX
        if is_large and self.is_sliced:
            self._large = _LargeWrite(run, pieces, run[0].offset + ALIGN_BYTES)
            self.has_unwritten = True
            self._go_on_writing(SLICE_BYTES)
            return
        front, offset = self._front_of(run[0])
        pieces.insert(0, front)
        try:
            if is_large:
                _write_pieces(segment.file, pieces, offset)
            else:
                segment.file.pwrite(b"".join(pieces), offset)
        except OSError as error:
            self._fail(segment.path, error)
            return
        self._written(run)

    def _header_of(self, group: _Group) -> bytes:
        first_lsn = group.last_lsn - group.count + 1
        return encode_group_header(
            group.segment.seed, group.length, first_lsn, self.durable_lsn, group.count
        )

    def _front_of(self, group: _Group) -> tuple[bytes, int]:
        """Return a group's header, after the chain if it is the first of its segment, and where
        that begins."""
        header = self._header_of(group)
        if group.offset != FIRST_GROUP_OFFSET:
            return header, group.offset
        segment = group.segment
        chain = encode_chain(
            segment.seed, segment.prev_segment, segment.prev_end, segment.prev_lsn,
            self.durable_lsn, False,
        )  # fmt: skip
        return chain + header, CHAIN_OFFSET

    def _go_on_writing(self, most: int) -> bool:
        """Write some `most` bytes more of large groups; return whether they are written."""
        large = self._large
        assert large is not None
        segment = large.run[0].segment
        pieces = large.pieces
        try:
            while pieces and most > 0:
                piece = pieces.popleft()
                if len(piece) > most:
                    pieces.appendleft(piece[most:])
                    piece = piece[:most]
                segment.file.pwrite(piece, large.offset)
                large.offset += len(piece)
                most -= len(piece)
            if pieces:
                return False
            front, offset = self._front_of(large.run[0])
            segment.file.pwrite(front + large.head, offset)
        except OSError as error:
            self._fail(segment.path, error)
            return False
        self._large = None
        self.has_unwritten = False
        self._written(large.run)
        return True

    def _write_rest(self) -> None:
        """Write all of a large group, and what waited for it. SyncFailedError: the log failed, here
        or before."""
        while self._large is not None and self.failed is None:
            if self._go_on_writing(self._large.run[-1].length):
                self._drive()
        if self.failed is not None:
            raise self.failed

    def _written(self, run: list[_Group]) -> None:
        """Count groups as written."""
        segment = run[0].segment
        for group in run:
            self.queued_bytes -= group.length
            if group.names_store:
                self._named_lsn = group.last_lsn
            if group.mode == DISK:
                self._wanted_lsn = max(self._wanted_lsn, group.last_lsn)
            elif group.mode == INTERVAL:
                self._interval_lsn = group.last_lsn
        if self.queued_bytes <= self._group_bytes_max:
            self._full_from = self._group_bytes_max
        self.is_full = self.queued_bytes > self._full_from
        self.groups += len(run)
        self.progress += 1
        self.written_lsn = run[-1].last_lsn
        self._claimed_lsn = self.durable_lsn
        self._last_written = segment
        self._last_end = run[-1].end
        if self._unsynced_at < 0:
            self._unsynced_at = self._clock.monotonic()

    def _start_sync(self) -> None:
        """Start a sync of what is written now, unless one is in flight or none is wanted."""
        if self._sync_token != NO_TOKEN or self._writing is None:
            return
        if min(self._wanted_lsn, self.written_lsn) <= self.durable_lsn:
            return
        store: Callable[[], object] | None = None
        if self._named_lsn > self._store_lsn and self._store.has_unsynced():
            store = self._store.take_unsynced()
        self._sync_has_store = store is not None
        self._sync_store_lsn = self.last_lsn
        self._sync_lsn = self.written_lsn
        self._sync_at = self._clock.monotonic()
        self._sync_token = self.fs.submit(_SyncOp(store, self._writing.file))

    def _complete_sync(self, result: object) -> None:
        if self._is_closed:
            self._pool.close()
        if isinstance(result, BaseException):
            assert self._writing is not None
            self._fail(self._writing.path, result)
        elif self.failed is None:
            if self._sync_has_store:
                self._store.synced(result)
                self._store_lsn = max(self._store_lsn, self._sync_store_lsn)
            self.synced_records.record(self._sync_lsn - self.durable_lsn)
            took_s = self._clock.monotonic() - self._sync_at
            self.sync_seconds.record(took_s)
            self._sync_mean_s += (took_s - self._sync_mean_s) / min(self.syncs + 1, SYNCS_MEANT)
            self.durable_lsn = self._sync_lsn
            self.syncs += 1
            self._unsynced_at = self._sync_at if self.written_lsn > self.durable_lsn else -1.0

    def recent_sync_s(self) -> float:
        """Return how long a sync takes: the mean of about the last SYNCS_MEANT, or the age of the
        one that is in flight if that is more; 0 if none has begun for RECENT_S."""
        age_s = self._clock.monotonic() - self._sync_at
        if self._sync_token != NO_TOKEN:
            return max(age_s, self._sync_mean_s)
        return self._sync_mean_s if age_s <= RECENT_S else 0.0

    # ---- Time ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Start the syncs that are due by the clock. Called at least every 100 ms.

        SyncFailedError if the log fails here; does nothing once it has failed.
        """
        if self.failed is not None:
            return
        now = self._clock.monotonic()
        if self._unsynced_at >= 0:
            age = now - self._unsynced_at
            is_due = age >= self._interval_s and self._interval_lsn > self.durable_lsn
            if is_due or age >= SOFT_SYNC_S:
                self._wanted_lsn = max(self._wanted_lsn, self.written_lsn)
        self._pool.retry(now)
        self.flush()
        last = self._last_written
        if last is not None and self._claimed_lsn == self.written_lsn and last in self._pool.in_use:
            failed = self._write_end_marker(last)  # if a segment was prepared since
            if failed is not None:
                raise failed

    def _write_durable_lsn(self) -> None:
        """Write what is durable [11]: into the next segment, or, if none is prepared and there is
        room, after the last group."""
        segment, end = self._last_written, self._last_end
        self._claimed_lsn = self.durable_lsn
        if segment is None or segment not in self._pool.in_use:
            return
        if self._pool.after(segment) is not None:
            self._write_end_marker(segment)
            return
        if end + ALIGN_BYTES > segment.size:
            return
        header = encode_group_header(
            segment.seed, 0, self.written_lsn + 1, self.durable_lsn, 0
        ).ljust(ALIGN_BYTES, b"\0")
        try:
            segment.file.pwrite(header, end)
        except OSError as error:
            self._fail(segment.path, error)

    def _write_end_marker(self, segment: Segment) -> SyncFailedError | None:
        """Write the end marker into the segment after this one, which has the last group, if it is
        prepared and has no such marker yet. It counts no groups that are only written: they may be
        torn. Returns the error if the write fails; the log has failed then."""
        place = self._pool.after(segment)
        if place is None or self.durable_lsn == self._start_lsn:
            return None
        if place is self._marked and self._marked_lsn == self.durable_lsn:
            return None
        marker = encode_chain(
            place.seed, segment.number, self._last_end, self.durable_lsn, self.durable_lsn, True
        )
        try:
            place.file.pwrite(marker, CHAIN_OFFSET)
        except OSError as error:
            return self._fail(place.path, error)
        self._marked, self._marked_lsn = place, self.durable_lsn
        return None

    # ---- Segments -----------------------------------------------------------------------

    def prepare_ahead(self) -> None:
        """Prepare the next segment in a worker, and from now on always the one after it.

        Not called during a start, which it would delay. When there is no room, `ahead_error` says
        so, and `tick` tries again.
        """
        self._check()
        self._pool.prepare_ahead()

    def on_full(self, make_room: Callable[[], bool]) -> None:
        """Set what is called when a segment is needed and the disk is full. It returns whether it
        made room."""
        self._pool.make_room = make_room

    @property
    def ahead_error(self) -> DiskFullError | None:
        """Why no segment is prepared ahead, when the disk is full."""
        return self._pool.ahead_error

    def release_before(self, number: int) -> None:
        """Reuse or delete the segments below `number`, and files of before the start: the
        checkpoint that does not need them is CURRENT [6]."""
        self._check()
        self._leave_old()
        assert self._writing is not None
        self._pool.release_before(number, self._writing)

    @property
    def disk_bytes(self) -> int:
        """Bytes of the log's files, without those of before the start."""
        return self._pool.disk_bytes

    @property
    def has_old(self) -> bool:
        """Whether a checkpoint now would release segments."""
        return len(self._pool.in_use) > 1

    @property
    def is_shrinking(self) -> bool:
        """Whether the segment of `shrink` is being prepared."""
        return self._pool.is_shrinking

    def shrink(self) -> None:
        """Continue the log in a segment of the smallest size, once that is prepared, with a small
        one ahead. The next checkpoint releases what came before. Does nothing if the segment in use
        is that small, or empty."""
        self._check()
        segment = self._pool.in_use[-1]
        if segment.size > self._pool.bytes_min and self._has_records(segment):
            self._pool.shrink()

    def lean(self, is_lean: bool) -> None:
        """Keep no segments for reuse, or keep some again."""
        self._check()
        self._pool.lean(is_lean)

    def end(self) -> None:
        """Delete the log's files but for the one in use, in a worker: a checkpoint needs none of
        them, and nothing more will be logged. `close` follows once `is_ending` is False."""
        self._check()
        self._pool.end()

    @property
    def is_ending(self) -> bool:
        """Whether anything of `end` is in flight."""
        return self._pool.is_busy

    def _has_records(self, segment: Segment) -> bool:
        """Return whether a group has its place in it. To an empty segment nothing can chain."""
        return segment.end > FIRST_GROUP_OFFSET or len(self._parts) > 0

    def _go_on_in_small(self) -> None:
        """Continue in the segment of `shrink`, which is prepared now. Its end marker is written
        before the one ahead, which has one, is deleted [11]."""
        self._close_group()
        last = self._pool.in_use[-1]
        if not self._has_records(last):
            self._pool.drop_small()
            return
        segment = self._pool.take_small()
        if segment is None:
            return
        segment.prev_segment, segment.prev_end = last.number, last.end
        segment.prev_lsn = self.last_lsn
        self._seed = segment.seed
        written = self._last_written
        if written is not None and self._pool.in_use[-2] is written:
            self._write_end_marker(written)
        if self.failed is not None:
            return
        self._pool.replace_ahead()
        self._leave_old()

    def _replace_outgrown(self) -> None:
        """Delete the segment that was prepared before the one that is ahead now. The end marker
        that it may have is written to that one first [11]."""
        last = self._last_written
        if last is not None and last is self._pool.in_use[-1]:
            self._write_end_marker(last)
        if self.failed is None:
            self._pool.drop_outgrown()

    def _leave_old(self) -> None:
        """Note that nothing more is written to the segment before the one in use, if that is so: a
        checkpoint may release it then."""
        is_at_rest = (
            self._sync_token == NO_TOKEN
            and not self._pending
            and self._large is None
            and self.durable_lsn == self.written_lsn
            and len(self._parts) == 0
        )
        if is_at_rest:
            self._writing = self._pool.in_use[-1]

    def close(self) -> None:
        """Close the files, without waiting: what is not settled stays so. If a sync is in flight,
        the files are closed when it completes."""
        self._is_closed = True
        self._drop_open_group()
        if self._sync_token == NO_TOKEN:
            self._pool.close()

    def poison(self, cause: BaseException) -> None:
        """Stop the log, because something else has failed that stops the vhost [10]."""
        self._fail(self.directory, cause)

    # ---- Failure ------------------------------------------------------------------------

    def _check(self) -> None:
        if self.failed is not None:
            raise StoppedError(str(self.failed)) from self.failed
        if self._is_closed or self._writing is None:
            raise StoppedError("the log is closed" if self._is_closed else "it was never started")

    def _fail(self, path: str, cause: BaseException) -> SyncFailedError:
        """Set `failed`: nothing is settled from now on [10]. Returns the first failure."""
        if self.failed is None:
            if isinstance(cause, SyncFailedError):
                self.failed = cause
            elif isinstance(cause, OSError):
                self.failed = SyncFailedError(path, cause)
            else:
                self.failed = SyncFailedError(path, OSError(errno.EIO, repr(cause)))
            self._drop_open_group()
        return self.failed

    def _drop_open_group(self) -> None:
        self._parts = []
        self._fronts = 0
        self.queued_bytes -= self._room_first - self._room
        self._room = self._room_first = 0


def _write_pieces(file: File, pieces: list[bytes], offset: int) -> None:
    """Write pieces one after the other: small neighbours with one call, a large one as it is.
    OSError."""
    small: list[bytes] = []
    small_bytes = 0
    for piece in pieces:
        if len(piece) < LARGE_BYTES:
            small.append(piece)
            small_bytes += len(piece)
            continue
        file.pwrite(b"".join(small), offset)
        file.pwrite(piece, offset + small_bytes)
        offset += small_bytes + len(piece)
        small, small_bytes = [], 0
    if small:
        file.pwrite(b"".join(small), offset)


# ---- segments -----------------------------------------------------------------------------------


class SegmentPool:
    """The segments that a log uses, the one prepared ahead, and those kept for reuse.

    in_use: oldest first, the last one takes new groups. ahead: prepared, not yet in use.
    ahead_error: why there is none ahead, if there is no room for it. Calls raise DiskFullError if
    there is no room for a segment, or no descriptor to open it with (DescriptorsError), and nothing
    has changed, and SyncFailedError for other failures [10].
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        vhost: int,
        clock: Clock,
        rng: random.Random,
        bytes_min: int,
        bytes_max: int,
        free_limit: int = 0,
    ) -> None:
        """free_limit: bytes of the disk that stay free."""
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.vhost: int = vhost
        self.bytes_min: int = bytes_min
        self.bytes_max: int = bytes_max
        self.free_limit: int = free_limit
        self.is_lean: bool = False  # see lean
        self.small: Segment | None = None  # prepared by shrink, not yet in use
        self.outgrown: Segment | None = None  # was ahead until a larger one was prepared
        self.in_use: list[Segment] = []
        self.ahead: Segment | None = None
        self.ahead_error: DiskFullError | None = None
        # Called when a segment is needed and the disk is full; returns whether it made room.
        self.make_room: Callable[[], bool] | None = None
        self._clock: Clock = clock
        self._rng: random.Random = rng
        self._next_number: int = 1
        self._is_ahead_wanted: bool = False
        self._least_bytes: int = 0  # of the segment that is prepared for a large record
        self._has_no_room: bool = False  # for which there was no room
        self._ahead_token: int = NO_TOKEN
        self._small_token: int = NO_TOKEN
        self._retry_at: float = 0.0
        self._spares: list[Segment] = []
        self._old_files: list[tuple[int, str]] = []  # (number, path), of before the start
        self._delete_tokens: set[int] = set()
        self._is_closed: bool = False

    def start(self, first_number: int, old_files: list[tuple[int, str]]) -> Segment:
        """Prepare the first segment, in this thread. `release_before` deletes the old files."""
        assert not self.in_use, "a log is started once"
        self._next_number = first_number
        self._old_files = old_files[:]
        segment = self._prepare(self.bytes_min, self.bytes_min)
        self.in_use.append(segment)
        return segment

    def next(self, need: int) -> Segment:
        """Use a segment with room for a group of `need` bytes: the one ahead, or one made here."""
        segment = self.ahead
        if segment is None or FIRST_GROUP_OFFSET + need > segment.size:
            segment = self._prepare(self._next_size(), FIRST_GROUP_OFFSET + need)
            if self.ahead is not None:
                self._discard(self.ahead)
        self.ahead = None
        self.in_use.append(segment)
        if self._is_ahead_wanted:
            self.prepare_ahead()
        return segment

    def prepare_ahead(self) -> None:
        """Prepare the next segment in a worker, and from now on always the one after it."""
        self._is_ahead_wanted = True
        if self.ahead is None:
            self._prepare_ahead(0)

    def has_room(self, need: int, end: int) -> bool:
        """Return whether a group of `need` bytes has room in the segment in use, from `end` on, or
        in the one ahead."""
        ahead = self.ahead
        is_ahead = ahead is not None and FIRST_GROUP_OFFSET + need <= ahead.size
        return is_ahead or end + need <= self.in_use[-1].size

    def make_ready(self, need: int, end: int) -> bool:
        """Return the same as `has_room`. If there is none, prepare a segment for it in a worker,
        unless the last attempt failed for lack of room: then it is for `next` to say so."""
        if self.has_room(need, end):
            return True
        if self._has_no_room or self.ahead_error is not None:
            self._has_no_room = False
            return True
        self._prepare_ahead(FIRST_GROUP_OFFSET + need)
        return False

    def _prepare_ahead(self, least: int) -> None:
        """Prepare a segment of `least` bytes or more in a worker, unless one is being prepared."""
        if self._ahead_token != NO_TOKEN or self._is_closed:
            return
        self.ahead_error = None
        self._least_bytes = least
        size = max(self._next_size(), least)
        op = _PrepareOp(
            self, self._next_number, size, self._rng.getrandbits(64), self._take_spare(size)
        )
        self._next_number += 1
        self._ahead_token = self.fs.submit(op)

    def _next_size(self) -> int:
        return min(self.in_use[-1].size * 2, self._size_max())

    def _size_max(self) -> int:
        """Return the largest size of a segment on this disk now."""
        free = self.fs.free_bytes(self.directory)
        return min(self.bytes_max, max(self.bytes_min, (free - self.free_limit) // FREE_SHARE))

    # ---- giving room back ---------------------------------------------------------------

    @property
    def disk_bytes(self) -> int:
        """Bytes of all files but those of before the start."""
        ahead = 0 if self.ahead is None else self.ahead.size
        return sum([s.size for s in self.in_use]) + sum([s.size for s in self._spares]) + ahead

    def lean(self, is_lean: bool) -> None:
        """Keep no spares from now on, or keep some again."""
        self.is_lean = is_lean
        if is_lean and self.ahead is not None:
            self._delete([spare.path for spare in self._spares])
            self._spares = []

    def shrink(self) -> None:
        """Prepare a segment of the smallest size in a worker; it becomes `small`."""
        if self._small_token == NO_TOKEN and self.small is None and not self._is_closed:
            op = _PrepareOp(
                self, self._next_number, self.bytes_min, self._rng.getrandbits(64), None
            )
            self._next_number += 1
            self._small_token = self.fs.submit(op)

    @property
    def is_shrinking(self) -> bool:
        """Whether the small segment is being prepared."""
        return self._small_token != NO_TOKEN

    def take_small(self) -> Segment | None:
        """Use the small segment, if there is one and its number is not too low by now. The one
        ahead stays until `replace_ahead`."""
        small, self.small = self.small, None
        if small is None:
            return None
        if small.number < self.in_use[-1].number:
            self._discard(small)
            return None
        self.in_use.append(small)
        return small

    def drop_small(self) -> None:
        """Delete the small segment."""
        small, self.small = self.small, None
        if small is not None:
            self._discard(small)

    def drop_outgrown(self) -> None:
        """Delete the one that was ahead before."""
        outgrown, self.outgrown = self.outgrown, None
        if outgrown is not None:
            self._discard(outgrown)

    def replace_ahead(self) -> None:
        """Delete the one ahead, which is of before `take_small`, and prepare the next one."""
        if self.ahead is not None:
            self._discard(self.ahead)
            self.ahead = None
        if self._is_ahead_wanted:
            self.prepare_ahead()

    def end(self) -> None:
        """Delete all files but the segment in use. The caller waits while `is_busy` and then calls
        `close`."""
        self._is_ahead_wanted = False
        self.is_lean = True
        gone = [spare.path for spare in self._spares]
        self._spares = []
        for segment in (self.ahead, self.small):
            if segment is not None:
                segment.file.close()
                gone.append(segment.path)
        self.ahead = self.small = None
        self._delete(gone)

    @property
    def is_busy(self) -> bool:
        """Whether a segment is being prepared, or files are being deleted."""
        return (
            self._ahead_token != NO_TOKEN
            or self._small_token != NO_TOKEN
            or len(self._delete_tokens) > 0
        )

    def after(self, segment: Segment) -> Segment | None:
        """Return the segment after this one, in use or ahead; None if none is prepared."""
        if segment is self.in_use[-1]:
            return self.ahead
        return self.in_use[self.in_use.index(segment) + 1]

    @property
    def is_preparing(self) -> bool:
        """Whether the next segment is being prepared."""
        return self.ahead is None and self._ahead_token != NO_TOKEN

    def retry(self, now: float) -> None:
        """Prepare ahead again, if that failed for lack of room RETRY_S ago."""
        if self.ahead_error is not None and now >= self._retry_at:
            self.prepare_ahead()

    def complete(self, token: int, result: object) -> bool:
        """Take the end of a submitted operation; False if it is not the pool's.

        Raises the failure to prepare a segment, except for a full disk.
        """
        if token == self._ahead_token:
            self._ahead_token = NO_TOKEN
            self._complete_ahead(result)
            return True
        if token == self._small_token:
            self._small_token = NO_TOKEN
            self._complete_small(result)
            return True
        if token in self._delete_tokens:
            self._delete_tokens.discard(token)
            return True
        return False

    def release_before(self, number: int, writing: Segment) -> None:
        """Reuse or delete the segments below `number`, except the one that is being written."""
        gone = [path for old, path in self._old_files if old < number]
        self._old_files = [entry for entry in self._old_files if entry[0] >= number]
        size_max = 0 if self.is_lean and self.ahead is not None else self._size_max()
        while self.in_use[0].number < number and self.in_use[0] is not writing:
            segment = self.in_use.pop(0)
            segment.file.close()
            if len(self._spares) < SPARES_MAX and segment.size <= size_max:
                self._spares.append(segment)
            else:
                gone.append(segment.path)
        self._delete(gone)

    def abandon_start(self) -> None:
        """Delete the first segment, which was never written to."""
        self.close()
        for segment in self.in_use:
            try:
                self.fs.unlink(segment.path)
            except OSError:
                pass  # it only takes room

    def close(self) -> None:
        """Close all files. One that is being prepared is closed afterwards."""
        self._is_closed = True
        for segment in self.in_use:
            segment.file.close()
        for other in (self.ahead, self.small, self.outgrown):
            if other is not None:
                other.file.close()
        self.ahead = self.small = self.outgrown = None

    def _prepare(self, size: int, least: int) -> Segment:
        """Prepare a segment in this thread; of `least` bytes if there is no room for more."""
        size = max(size, least)
        number = self._next_number
        self._next_number += 1
        salt = self._rng.getrandbits(64)
        spare = self._take_spare(size)
        try:
            return prepare_segment(self.fs, self.directory, self.vhost, number, size, salt, spare)
        except DescriptorsError:
            raise  # room on the disk, or a smaller segment, would not help
        except DiskFullError:
            if (self.make_room is None or not self.make_room()) and size == least:
                raise
        return prepare_segment(self.fs, self.directory, self.vhost, number, least, salt, None)

    def _complete_ahead(self, result: object) -> None:
        if isinstance(result, DiskFullError):
            self._has_no_room = self._least_bytes > 0
            if self.ahead is None:
                self.ahead_error = result
                self._retry_at = self._clock.monotonic() + RETRY_S
        elif isinstance(result, BaseException):
            raise result
        else:
            assert isinstance(result, Segment)
            if self._is_closed:
                result.file.close()
            elif result.number < self.in_use[-1].number:
                # It is late: another one was prepared in place.
                self._discard(result)
                self.prepare_ahead()
            else:
                self.outgrown, self.ahead = self.ahead, result
                if self.is_lean:
                    self.lean(True)

    def _complete_small(self, result: object) -> None:
        """Keep the small segment. A full disk is not a failure: nothing waits for it."""
        if isinstance(result, DiskFullError):
            return
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, Segment)
        if self._is_closed:
            result.file.close()
        else:
            self.small = result

    def _take_spare(self, size: int) -> str | None:
        while self._spares:
            spare = self._spares.pop()
            if spare.size >= size:
                return spare.path
            self._delete([spare.path])
        return None

    def _discard(self, segment: Segment) -> None:
        """Delete a segment that was never used."""
        segment.file.close()
        self._delete([segment.path])

    def _delete(self, paths: list[str]) -> None:
        if paths:
            self._delete_tokens.add(self.fs.submit(_DeleteOp(self.fs, paths)))


class _PrepareOp:
    """Prepares a segment, in a worker."""

    def __init__(
        self, pool: "SegmentPool", number: int, size: int, salt: int, recycled: str | None
    ) -> None:
        self.pool: SegmentPool = pool
        self.number: int = number
        self.size: int = size
        self.salt: int = salt
        self.recycled: str | None = recycled

    def __call__(self) -> object:
        pool = self.pool
        return prepare_segment(
            pool.fs, pool.directory, pool.vhost, self.number, self.size, self.salt, self.recycled
        )


class _DeleteOp:
    """Deletes files, in a worker."""

    def __init__(self, fs: FileSystem, paths: list[str]) -> None:
        self.fs: FileSystem = fs
        self.paths: list[str] = paths

    def __call__(self) -> object:
        for path in self.paths:
            try:
                self.fs.unlink(path)
            except FileNotFoundError:
                pass
        return None


def prepare_segment(
    fs: FileSystem,
    directory: str,
    vhost: int,
    number: int,
    size: int,
    salt: int,
    recycled: str | None,
) -> Segment:
    """Make a segment of at least `size` bytes, durable in content and name [7], and open it.

    recycled: path of a released segment's file, which becomes this segment; its old bytes stay. A
    failure leaves no segment: DiskFullError if there is no room, DescriptorsError if a file or the
    directory could not be opened for that reason, else SyncFailedError [10].
    """
    size = aligned(size)
    path = segment_path(directory, number)
    new = path.removesuffix(SEGMENT_SUFFIX) + NEW_SUFFIX
    file: File | None = None
    try:
        if recycled is not None:
            fs.rename(recycled, new)
        file = fs.open(new, create=True)
        if recycled is not None and file.size() >= size:
            size = file.size() // ALIGN_BYTES * ALIGN_BYTES
        else:
            file.allocate(size)
        # The chain's place is cleared too, for the reader of a dump.
        header = encode_segment_header(vhost, number, size, salt)
        file.pwrite(header.ljust(FIRST_GROUP_OFFSET, b"\0"), 0)
    except OSError as error:
        _discard(fs, file, new)
        if has_no_descriptor(error):
            raise DescriptorsError(fs.place(new)) from error
        if is_shortage(error):
            raise DiskFullError(fs.place(new), _free_bytes(fs, directory), size) from error
        raise SyncFailedError(new, error) from error
    try:
        file.sync()
        fs.rename(new, path)
        fs.sync_dir(directory)
    except OSError as error:
        if has_no_descriptor(error):  # of the directory: no sync was tried
            _discard(fs, file, path)
            raise DescriptorsError(fs.place(path)) from error
        file.close()
        raise SyncFailedError(path, error) from error
    file.path = path
    return Segment(number, path, size, segment_seed(vhost, number, salt), file)


def _discard(fs: FileSystem, file: File | None, path: str) -> None:
    """Delete a file that could not be prepared. An OSError is ignored."""
    try:
        if file is not None:
            file.close()
        fs.unlink(path)
    except OSError:
        pass


def _free_bytes(fs: FileSystem, path: str) -> int:
    try:
        return fs.free_bytes(path)
    except OSError:
        return 0
