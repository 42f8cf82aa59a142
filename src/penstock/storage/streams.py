"""Stream and StreamTable: the streams of a vhost, as its log and its checkpoints know them.

A stream is a log that is read, not consumed: records with offsets from 0, in pages, taken away from
its oldest end only. Its file is the PersistentQueue of rxjava2-extras; RabbitMQ's streams gave it
offsets, times, named readers and retention. Alone, a PersistentQueue forces its own pages. In a
vhost it does not: each record of it is a STREAM record in the vhost's log, atomic with whatever is
done to queues in the same record, and the log is what is synced.

    log record first -> PersistentQueue.append: the frame, in RAM
    flush of the turn -> one pwrite of all frames of a stream (stream_turns.py)
    settled -> the head (writeMeta) moves, and only what is below it is read
    checkpoint -> pages synced; the section has the position at the cut, and the readers
    recovery -> restore(position), then the log's STREAM records again: the same bytes, in the same
                places, for page ids come from stream id and base offset, times from the record

So pages are data and never evidence [1]: what the stream has is what checkpoint and log say.
Nothing of a message stays in RAM once its frame is written.

    streams/<hash(name)>.<number>/    .queue_name (for people, and for readers by path), allMeta,
                                      readMeta, writeMeta, <base>.page, <base>.idx
    declared      directory and allMeta are made and synced *before* the TOPOLOGY record (flag
                  STREAM_FLAG) is appended, so a record never names what is not there; what no
                  record came to name is an orphan, deleted at the next start. In a worker where
                  nobody may wait for these syncs (stream_making.py)
    deleted       DELETE_QUEUE; the directory goes after the next checkpoint [6]

readMeta, the first page, is the one thing that is believed besides checkpoint and log: it only
rises, and is durable before a page below it is unlinked, so it wins over a checkpoint that is
older. That makes retention safe under rule [6] although a checkpoint, or records after its cut,
name what is in such a page: a recovery asks readMeta first, looks for no page below it, and counts
the records that the log has of one without writing them. And a page goes only once its last record
is durable, in the log or below the checkpoint's position: else a power cut might take records of
mode `os` with it whose page is gone, and the offsets behind them would have no place.

Failure: a stream whose directory or allMeta is missing or damaged is a CorruptionError. Not here:
what is done at flush, heads and retention (stream_turns.py), names and partitions (the broker's).
"""

import random
from collections import deque
from collections.abc import Iterable
from typing import Final

from penstock.clock import Clock, ManualClock
from penstock.errors import CorruptionError, StoppedError
from penstock.storage import record
from penstock.storage.adoption import Adoption
from penstock.storage.batches import Batch, StagedPage
from penstock.storage.data_directory import hash_name, write_small
from penstock.storage.durability import DISK
from penstock.storage.filesystem import FileSystem
from penstock.storage.persistent_queue import PersistentQueue
from penstock.storage.queue_name import QUEUE_NAME, text_of
from penstock.storage.stream_meta import Position

STREAM_FLAG: Final = 128  # in DurableQueue.flags
PAGE_BYTES: Final = 64 << 20
OPEN_MAX: Final = 64  # streams whose files stay open
RELEASED_AT_ONCE: Final = 512
START: Final = Position(0, 0, 0, 0, 0)
# Never asked: in a vhost every record brings its time, and what is there has its id.
_CLOCK: Final = ManualClock()
_RNG: Final = random.Random(0)


class ReaderOffset:
    """Where a named reader is: it has read all below `offset`, and what it said at `time_ms` (since
    1970). kept_from: retention keeps all from there on, None: it asks for nothing."""

    __slots__ = ("kept_from", "offset", "time_ms")

    def __init__(self, offset: int, kept_from: int | None, time_ms: int) -> None:
        self.offset: int = offset
        self.kept_from: int | None = kept_from
        self.time_ms: int = time_ms

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReaderOffset):
            return NotImplemented
        mine = (self.offset, self.kept_from, self.time_ms)
        return mine == (other.offset, other.kept_from, other.time_ms)

    def __hash__(self) -> int:
        return hash((self.offset, self.kept_from, self.time_ms))

    def __repr__(self) -> str:
        return f"ReaderOffset({self.offset}, {self.kept_from}, {self.time_ms})"


class StreamSection:
    """What a checkpoint says of one stream, as of its cut. It never changes; `encoded`: its bytes,
    once somebody has made them, for the checkpoints until the stream changes."""

    __slots__ = ("encoded", "position", "readers", "stream_id")

    def __init__(
        self, stream_id: bytes, position: Position, readers: dict[str, ReaderOffset]
    ) -> None:
        self.stream_id: bytes = stream_id
        self.position: Position = position
        self.readers: dict[str, ReaderOffset] = readers
        self.encoded: bytes = b""


class Turn:
    """What one turn appended to a stream: the head may move to `position` once `lsn` is settled in
    `mode`."""

    __slots__ = ("lsn", "mode", "position")

    def __init__(self, lsn: int, mode: int, position: Position) -> None:
        self.lsn: int = lsn
        self.mode: int = mode
        self.position: Position = position


class Stream:
    """One stream of a vhost. `queue` is its pages; readers are given records below `head_offset`.

    base_kept: all below it is in the checkpoint that is CURRENT, pages and all.
    """

    def __init__(self, name: bytes, number: int, path: str, queue: PersistentQueue) -> None:
        self.name: bytes = name
        self.number: int = number
        self.path: str = path
        self.queue: PersistentQueue = queue
        self.readers: dict[str, ReaderOffset] = {}
        self.is_deleted: bool = False
        self.base_kept: int = 0
        self.restored: Position = START  # what the checkpoint said, for whoever verifies
        self.section: StreamSection | None = None  # as it is now; None: it has changed
        self.last_lsn: int = 0  # of its last record
        # Of the turn: appended and not yet written, by which record, in the strongest mode.
        self.is_dirty: bool = False
        self.lsn: int = 0
        self.mode: int = 0
        self.turns: deque[Turn] = deque()  # written, or to be, and not yet settled
        self.held_at: int = -1  # the head waits there until batches are done (batches.py)
        self.is_retaining: bool = False  # a deletion of pages is under way: one at a time
        self.is_failing: bool = False  # the last write of pages failed, and was told

    @property
    def first_offset(self) -> int:
        """The offset of the oldest record that is there."""
        return self.queue.first_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets."""
        return self.queue.next_offset

    @property
    def head_offset(self) -> int:
        """All below it is settled and may be read."""
        return self.queue.head_offset

    def kept_from(self, since_ms: int = 0) -> int | None:
        """The lowest offset that a reader asks to keep, of those who said so since then."""
        lowest: int | None = None
        for reader in self.readers.values():
            kept = reader.kept_from
            if (
                kept is not None
                and reader.time_ms >= since_ms
                and (lowest is None or kept < lowest)
            ):
                lowest = kept
        return lowest


class StreamTable:
    """All streams of a vhost, by number and by name."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self.fs = fs
        self.path: str = path + "/streams"
        self.vhost_name: bytes = b""  # for people
        self.by_number: dict[int, Stream] = {}
        self.by_name: dict[bytes, Stream] = {}
        self.deleted: list[Stream] = []  # their directories go at the next checkpoint
        self.dirty: list[Stream] = []  # appended to, and not yet written
        self.dirty_names: list[str] = []  # of files to be synced at the next checkpoint
        self.dirty_directories: dict[str, None] = {}
        self.adopting: list[tuple[Stream, Adoption]] = []  # whose files are not placed yet
        self._made: dict[int, Stream] = {}  # and not declared yet
        self._open: dict[int, Stream] = {}  # with open files, the latest used last
        self._touched: dict[int, Stream] = {}  # written, deleted or not, since the last sync
        self._turn: int = 0  # of those whose files are closed

    # ---- coming and going ----------------------------------------------------------------------

    def directory(self, name: bytes, number: int) -> str:
        """The path of a stream's directory."""
        return f"{self.path}/{hash_name(name)}.{number}"

    def make(
        self, name: bytes, number: int, page_bytes: int, clock: Clock, rng: random.Random
    ) -> Stream:
        """The directory of a stream that is about to be declared, with its name and allMeta, all of
        it synced but the directory's own name. May run in a worker: nothing of the table changes,
        `keep_made` is to follow. OSError, SyncFailedError."""
        fs = self.fs
        path = self.directory(name, number)
        remove_tree(fs, path)  # of a declare that failed: nothing names it
        fs.mkdir(path)
        write_small(fs, f"{path}/{QUEUE_NAME}", text_of(self.vhost_name, name))
        queue = PersistentQueue(
            fs, path, page_bytes=page_bytes, forces=False, number=number, clock=clock, rng=rng
        )
        queue.release_handles()
        return Stream(name, number, path, queue)

    def keep_made(self, stream: Stream) -> None:
        """A stream that was made: its TOPOLOGY record comes, or `forget_made`."""
        self._made[stream.number] = stream

    def is_made(self, number: int) -> bool:
        """Whether this is the number of a stream that was made and is not declared yet."""
        return number in self._made

    def forget_made(self, streams: list[Stream]) -> None:
        """They are not declared after all: what is there of them is an orphan."""
        for stream in streams:
            close(stream)
            self._made.pop(stream.number, None)

    def add(self, name: bytes, number: int) -> Stream:
        """A TOPOLOGY record declares this stream: one that was made just now, or, in recovery, one
        that is on the disk. CorruptionError if it is not."""
        stream = self._made.pop(number, None)
        if stream is None:
            path = self.directory(name, number)
            queue = PersistentQueue(
                self.fs, path, forces=False, number=number, create=False, clock=_CLOCK, rng=_RNG
            )
            stream = Stream(name, number, path, queue)
        self.by_number[number] = stream
        self.by_name[name] = stream
        return stream

    def restore(self, number: int, section: StreamSection, where: str) -> None:
        """Recovery: a stream as a checkpoint has it. CorruptionError."""
        stream = self.by_number[number]
        if stream.queue.stream_id != section.stream_id:
            raise CorruptionError(
                stream.path + "/allMeta", 0,
                f"it is of stream {stream.queue.stream_id.hex()}, {where} says "
                f"{section.stream_id.hex()}",
            )  # fmt: skip
        stream.queue.restore(section.position)
        self.used(stream)
        stream.restored = section.position
        stream.base_kept = section.position.page_base
        stream.readers = dict(section.readers)

    def finish_restore(self) -> None:
        """Recovery: the log is replayed, so files are made what it says; nothing is waited for: the
        checkpoint that follows syncs all of it, but for adopted pages. OSError."""
        for stream, adoption in list(self.adopting):
            if not stream.is_deleted:
                adoption.run(is_recovery=True)
            self.placed(stream, adoption)
        for stream in self.by_number.values():
            stream.queue.finish_restore(stream.held_at)
            stream.section = None
            self.used(stream)
        for stream in (*self.by_number.values(), *self.deleted):
            stream.is_dirty = False
        self.dirty = []

    def delete(self, stream: Stream) -> None:
        """A DELETE_QUEUE record: it is gone, its directory goes at the next checkpoint."""
        stream.is_deleted = True
        stream.turns.clear()
        self._open.pop(stream.number, None)
        del self.by_number[stream.number]
        del self.by_name[stream.name]
        self.deleted.append(stream)

    # ---- records -------------------------------------------------------------------------------

    def append(
        self, stream: Stream, lsn: int, mode: int, time_us: int, meta: bytes, payload: bytes
    ) -> int:
        """A STREAM record has been logged: its frame, in RAM. Returns its offset."""
        stream.lsn = stream.last_lsn = lsn
        stream.section = None
        if mode > stream.mode:
            stream.mode = mode
        if not stream.is_dirty:
            stream.is_dirty = True
            self.dirty.append(stream)
        return stream.queue.append(payload, meta, time_us)

    def apply(self, lsn: int, mode: int, found: record.StreamData) -> int:
        """Append what a STREAM record says, unless the stream is gone or has it already. Returns
        how many bytes of RAM that takes. ValueError: offsets are missing before it."""
        stream = self.by_number.get(found.stream)
        if stream is None:
            return 0  # it was deleted
        wanted, offset = stream.queue.next_offset, found.offset
        if offset < wanted:
            return 0  # the checkpoint has it
        if offset > wanted:
            raise ValueError(f"a record of offset {offset} in stream {found.stream} at {wanted}")
        self.append(stream, lsn, mode, found.time_us, found.meta, found.payload)
        return len(found.meta) + len(found.payload)

    def set_reader(self, found: record.ReaderData, flags: int) -> None:
        """Set how far a named reader is, or forget it, as a READER_OFFSET record says."""
        stream = self.by_number.get(found.stream)
        if stream is None:
            return
        stream.section = None
        name = found.reader.decode()
        if flags & record.READER_DELETED:
            stream.readers.pop(name, None)
            return
        kept = None if found.kept_from == record.NOT_KEPT else found.kept_from
        stream.readers[name] = ReaderOffset(found.offset, kept, found.time_ms)

    # ---- batches -------------------------------------------------------------------------------

    def adopt(
        self, stream: Stream, lsn: int, mode: int, staged: str, page: StagedPage, time_us: int
    ) -> Adoption:
        """A BATCH record says that a staged page is the next one of a stream; staged: its path,
        time_us: of its records. Its files are to be placed."""
        stream.lsn = stream.last_lsn = lsn
        stream.section = None
        stream.mode = max(stream.mode, mode)
        if not stream.is_dirty:
            stream.is_dirty = True
            self.dirty.append(stream)
        writer = stream.queue.adopt(page.page_id, page.rows, page.bytes, time_us)
        adoption = Adoption(self.fs, staged, page, writer)
        if not writer.is_placed:  # else retention took it since
            self.adopting.append((stream, adoption))
        return adoption

    def placed(self, stream: Stream, adoption: Adoption) -> None:
        """The files of an adopted page are there."""
        adoption.writer.placed()
        adoption.writer.close()  # what it had open may be the files before
        self.adopting = [(s, a) for s, a in self.adopting if a is not adoption]
        if not stream.is_dirty and not stream.is_deleted:
            stream.is_dirty = True  # pages behind it wait to be sealed
            self.dirty.append(stream)

    def touch(self, batch: Batch, stream: Stream) -> None:
        """A batch that is not done is about to append to a stream: the first time, it holds it."""
        if batch.is_done or stream.number in batch.holds:
            return
        batch.encoded = b""
        batch.holds[stream.number] = stream.queue.next_offset
        if stream.held_at < 0:
            stream.held_at = stream.queue.next_offset

    def hold(self, batch: Batch) -> None:
        """Recovery: a batch as a checkpoint has it, with what it holds."""
        for number, offset in batch.holds.items():
            stream = self.by_number.get(number)
            if stream is not None and (stream.held_at < 0 or offset < stream.held_at):
                stream.held_at = offset

    def let_go(self, batch: Batch, others: Iterable[Batch], lsn: int) -> None:
        """A batch is done with the record of this LSN: the heads that it held may move, over all of
        it at once, unless one of the others holds them."""
        for number, offset in batch.holds.items():
            stream = self.by_number.get(number)
            if stream is not None:
                _merge_turns(stream, offset, lsn)
                held = [x.holds[number] for x in others if x is not batch and number in x.holds]
                stream.held_at = min(held, default=-1)
        batch.holds = {}
        batch.encoded = b""

    # ---- checkpoints ---------------------------------------------------------------------------

    def write(self) -> None:
        """Write the frames of all streams that are in RAM, of those too that were deleted since the
        cut: a checkpoint in progress names them. OSError: those not written stay."""
        for stream in self.dirty:
            if not stream.queue.is_closed:
                stream.queue.write()  # it stays dirty: its turn is not over
                self._touched[stream.number] = stream

    def capture(self) -> list[tuple[int, StreamSection]]:
        """(number, section) of every stream, as of now; those that did not change cost nothing."""
        found: list[tuple[int, StreamSection]] = []
        for stream in self.by_number.values():
            section = stream.section
            if section is None:
                queue = stream.queue
                section = StreamSection(queue.stream_id, queue.position(), stream.readers.copy())
                stream.section = section
            found.append((stream.number, section))
        return found

    def take_dirty(self) -> tuple[list[str], list[str]]:
        """Files and directories that were changed since the last call and are to be synced."""
        files, directories = self.dirty_names, self.dirty_directories
        self.dirty_names, self.dirty_directories = [], {}
        touched, self._touched = self._touched, {}
        for stream in touched.values():
            more, inner = stream.queue.take_dirty()
            files += more
            for directory in inner:
                directories[directory] = None
        return files, list(directories)

    def checkpointed(self, sections: list[tuple[int, StreamSection]]) -> None:
        """These are in the checkpoint that is CURRENT now."""
        for number, section in sections:
            stream = self.by_number.get(number)
            if stream is not None:
                stream.base_kept = section.position.page_base

    # ---- files ---------------------------------------------------------------------------------

    def used(self, stream: Stream) -> None:
        """It was written to, and its files are open: those of the one that was not for the longest
        time are closed, if there are too many."""
        used = self._open
        self._touched[stream.number] = stream
        used.pop(stream.number, None)
        used[stream.number] = stream
        if len(used) > OPEN_MAX:
            number = next(iter(used))
            used.pop(number).queue.release_handles()

    def release_some(self) -> None:
        """Of the next few streams in turn, close files that were opened for readers and are not of
        those that are written; they are opened again when they are needed."""
        count = len(self.by_number)
        if count <= OPEN_MAX:
            return
        if self._turn >= count:
            self._turn = 0
        end = min(self._turn + RELEASED_AT_ONCE, count)
        for number in list(self.by_number)[self._turn : end]:
            if number not in self._open:
                self.by_number[number].queue.release_handles()
        self._turn = end

    def close(self) -> None:
        """Close every file; nothing is written."""
        for stream in (*self.by_number.values(), *self.deleted, *self._made.values()):
            close(stream)


def _merge_turns(stream: Stream, offset: int, lsn: int) -> None:
    """What a batch appended from `offset` on, in many turns, is one turn, settled by its last
    record: the one that comes, if there is more to write, or the last there was."""
    turns = stream.turns
    last: Turn | None = None
    while turns and turns[-1].position.next_offset > offset:
        turn = turns.pop()
        last = last or turn
    if stream.lsn:
        stream.lsn, stream.mode = max(stream.lsn, lsn), DISK
    elif last is not None:
        turns.append(Turn(max(last.lsn, lsn), DISK, last.position))


def close(stream: Stream) -> None:
    """Close a stream's files, and write nothing: what it has not written the log has."""
    queue = stream.queue
    queue.failed = queue.failed or StoppedError(f"{stream.path}: the stream is closed")
    queue.close()


def remove_tree(fs: FileSystem, path: str) -> None:
    """Delete a directory and the files in it, if it is there."""
    if fs.exists(path):
        for name in fs.list(path):
            fs.unlink(f"{path}/{name}")
        fs.rmdir(path)
