"""StoredStream and StreamTable: the streams of a vhost, as its log and its checkpoints have them.

A stream is a log that is read, not consumed: records with offsets from 0, in pages, deleted from
the oldest end only. Its files are a PersistentQueue. RabbitMQ's streams are the model for offsets,
times, named readers and retention. A PersistentQueue that stands alone syncs its own pages; in a
vhost each record is a STREAM record of the vhost's log, atomic with the changes of queues in the
same record, and the log is what is synced.

    append        the log record first, then PersistentQueue.append: the frame, in RAM
    end of turn   one pwrite of all frames of a stream (stream_engine.py)
    settled       the head (writeMeta) moves; only records below it are read
    checkpoint    pages are synced; the section has the position at the cut, and the readers
    recovery      restore(position), then the STREAM records of the log again: the same bytes in the
                  same places, because page ids come from stream id and base offset, and times from
                  the record

So pages are data and never evidence [1]: checkpoint and log say what a stream has. Nothing of a
message stays in RAM once its frame is written.

    streams/<hash(name)>.<number>/    .queue_name (for people, and for readers by path), allMeta,
                                      readMeta, writeMeta, <base>.page, <base>.idx
    declared      directory and allMeta are created and synced *before* the TOPOLOGY record (flag
                  STREAM_FLAG) is appended, so a record never names a missing directory. A
                  directory that no record names is an orphan, deleted at the next start
    deleted       by DELETE_QUEUE; the directory is deleted after the next checkpoint [6]

readMeta, the first page, is trusted besides checkpoint and log: it only rises, and is durable
before a page below it is unlinked, so it wins over an older checkpoint. That makes retention safe
under rule [6] although a checkpoint, or records after its cut, name what was in such a page:
recovery reads readMeta first, looks for no page below it, and counts records of the log in one
without writing them. And a page is deleted only when its last record is durable, in the log or
below the checkpoint's position. Otherwise a power cut might lose records of mode `os` after their
page was deleted, and the offsets after them would have no place.

Failure: a stream whose directory or allMeta is missing or damaged is a CorruptionError.
"""

import random
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.clock import Clock, ManualClock
from penstock.errors import CorruptionError, StoppedError
from penstock.fast_crc import BodyPieces
from penstock.storage.files.data_directory import QUEUE_NAME, hash_name, text_of, write_small
from penstock.storage.files.durability import DISK
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.log import record
from penstock.storage.pages.adoption import Adoption
from penstock.storage.pages.batches import Batch, StagedPage
from penstock.storage.pages.page import UNLIMITED
from penstock.storage.pages.persistent_queue import PersistentQueue
from penstock.storage.pages.stream_meta import Position, ReaderOffset

STREAM_FLAG: Final = 128  # in DurableQueue.flags
PAGE_BYTES: Final = 64 << 20
OPEN_MAX: Final = 64  # streams whose files stay open
RELEASED_AT_ONCE: Final = 512
START: Final = Position(0, 0, 0, 0, 0)
# Never used: in a vhost every record has its time, and an existing stream has its id.
_CLOCK: Final = ManualClock()
_RNG: Final = random.Random(0)


class StreamSection:
    """The state of one stream in a checkpoint, as of its cut. Immutable. encoded: its bytes, once
    made, for the checkpoints until the stream changes."""

    __slots__ = ("encoded", "position", "readers", "stream_id")

    def __init__(
        self, stream_id: bytes, position: Position, readers: dict[str, ReaderOffset]
    ) -> None:
        self.stream_id: bytes = stream_id
        self.position: Position = position
        self.readers: dict[str, ReaderOffset] = readers
        self.encoded: bytes = b""


class Turn(NamedTuple):
    """What one turn appended to a stream: the head may move to `position` once `lsn` is settled in
    `mode`."""

    lsn: int
    mode: int
    position: Position


class StoredStream:
    """One stream of a vhost. queue: its pages. base_kept: the records below it, with their pages,
    are in the checkpoint that is CURRENT."""

    def __init__(self, name: bytes, number: int, path: str, queue: PersistentQueue) -> None:
        self.name: bytes = name
        self.number: int = number
        self.path: str = path
        self.queue: PersistentQueue = queue
        self.readers: dict[str, ReaderOffset] = {}
        self.is_deleted: bool = False
        self.base_kept: int = 0
        self.restored: Position = START  # of the checkpoint, for `verify`
        self.section: StreamSection | None = None  # None: it has changed since the last
        self.last_lsn: int = 0  # of its last record
        # Of this turn: whether frames are not written, the last record, the strongest mode.
        self.is_dirty: bool = False
        self.lsn: int = 0
        self.mode: int = 0
        self.turns: deque[Turn] = deque()  # not settled yet
        self.held_at: int = -1  # the head waits there until batches are done (batches.py)
        self.is_retaining: bool = False  # a deletion of pages is running
        self.is_failing: bool = False  # the last write of pages failed and was reported
        self.faults: dict[int, str] = {}  # offsets of large records that could not be read

    @property
    def first_offset(self) -> int:
        """The offset of the oldest record."""
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
        """Return the lowest offset that a reader asks to keep, of those that reported since
        then."""
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
        self.vhost_name: bytes = b""  # for .queue_name
        self.by_number: dict[int, StoredStream] = {}
        self.by_name: dict[bytes, StoredStream] = {}
        self.deleted: list[
            StoredStream
        ] = []  # their directories are deleted after the next checkpoint
        self.dirty: list[StoredStream] = []  # appended to, and not yet written
        self.waiting: dict[int, StoredStream] = {}  # with turns that are not settled
        self.dirty_names: list[str] = []  # of files to be synced at the next checkpoint
        self.dirty_directories: dict[str, None] = {}
        self.adopting: list[tuple[StoredStream, Adoption]] = []  # whose files are not placed yet
        self._made: dict[int, StoredStream] = {}  # created, not declared yet
        self._open: dict[int, StoredStream] = {}  # with open files, the latest used last
        self._touched: dict[int, StoredStream] = {}  # written, deleted or not, since the last sync
        self.written_bytes: int = 0  # of frames, since the start
        self.retained_records: int = 0  # that retention deleted since then
        self._turn: int = 0  # where `release_some` continues

    # ---- creating and deleting -----------------------------------------------------------------

    def directory(self, name: bytes, number: int) -> str:
        """Return the path of a stream's directory."""
        return f"{self.path}/{hash_name(name)}.{number}"

    def make(
        self, name: bytes, number: int, page_bytes: int, clock: Clock, rng: random.Random
    ) -> StoredStream:
        """Create the directory of a stream that is about to be declared, with its name and allMeta,
        all of it synced but the directory's own name. May run in a worker: it does not change the
        table, call `keep_made` afterwards. OSError, SyncFailedError."""
        fs = self.fs
        path = self.directory(name, number)
        remove_tree(fs, path)  # left by a declare that failed
        fs.mkdir(path)
        write_small(fs, f"{path}/{QUEUE_NAME}", text_of(self.vhost_name, name))
        queue = PersistentQueue(
            fs, path, page_bytes=page_bytes, forces=False, number=number, clock=clock, rng=rng
        )
        queue.release_handles()
        return StoredStream(name, number, path, queue)

    def keep_made(self, stream: StoredStream) -> None:
        """Keep a stream that was made until its TOPOLOGY record, or `forget_made`."""
        self._made[stream.number] = stream

    def is_made(self, number: int) -> bool:
        """Return whether a stream of this number was made and is not declared yet."""
        return number in self._made

    def forget_made(self, streams: list[StoredStream]) -> None:
        """Forget streams that will not be declared; their directories are orphans."""
        for stream in streams:
            close(stream)
            self._made.pop(stream.number, None)

    def add(self, name: bytes, number: int) -> StoredStream:
        """Add the stream that a TOPOLOGY record declares: one that was made just now or, in
        recovery, one on the disk. CorruptionError if it is missing."""
        stream = self._made.pop(number, None)
        if stream is None:
            path = self.directory(name, number)
            queue = PersistentQueue(
                self.fs, path, forces=False, number=number, create=False, clock=_CLOCK, rng=_RNG
            )
            stream = StoredStream(name, number, path, queue)
        self.by_number[number] = stream
        self.by_name[name] = stream
        return stream

    def restore(self, number: int, section: StreamSection, where: str) -> None:
        """Recovery: set the state of a stream from a checkpoint. CorruptionError."""
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
        """Recovery: make the files as the log says, after its last record. Syncs only adopted
        pages; the checkpoint that follows syncs the rest. OSError."""
        for stream, adoption in list(self.adopting):
            if not stream.is_deleted:
                adoption.run(is_recovery=True)
            self.placed(stream, adoption)
        for stream in self.by_number.values():
            stream.queue.finish_restore(stream.held_at)
            stream.section = None
            self.used(stream)
        self.written_bytes = 0
        for stream in (*self.by_number.values(), *self.deleted):
            stream.is_dirty = False
            stream.lsn = stream.mode = 0  # no turn is in progress
        self.dirty = []

    def delete(self, stream: StoredStream) -> None:
        """Apply a DELETE_QUEUE record; the directory is deleted after the next checkpoint."""
        stream.is_deleted = True
        stream.turns.clear()
        self._open.pop(stream.number, None)
        del self.by_number[stream.number]
        del self.by_name[stream.name]
        self.deleted.append(stream)

    # ---- records -------------------------------------------------------------------------------

    def append(
        self, stream: StoredStream, lsn: int, mode: int, time_us: int, meta: bytes, payload: bytes,
        large: BodyPieces | None = None,
    ) -> int:  # fmt: skip
        """Append the frame of a logged STREAM record in RAM; return its offset. large: its payload,
        if that is in pieces."""
        stream.lsn = stream.last_lsn = lsn
        stream.section = None
        if mode > stream.mode:
            stream.mode = mode
        if not stream.is_dirty:
            stream.is_dirty = True
            self.dirty.append(stream)
        return stream.queue.append(payload, meta, time_us, large)

    def apply(self, lsn: int, mode: int, found: record.StreamData) -> int:
        """Append what a STREAM record has, unless the stream is deleted or has it already. Return
        how many bytes of RAM that takes. ValueError: offsets before it are missing."""
        stream = self.by_number.get(found.stream)
        if stream is None:
            return 0  # it was deleted
        wanted, offset = stream.queue.next_offset, found.offset
        if offset < wanted:
            return 0  # the checkpoint has it
        if offset > wanted:
            raise ValueError(f"a record of offset {offset} in stream {found.stream} at {wanted}")
        # Others may have appended since a part of a transaction got its time [12].
        time_us = max(found.time_us, stream.queue.last_time_us)
        self.append(stream, lsn, mode, time_us, found.meta, found.payload, found.pieces)
        return len(found.meta) + len(found.payload)

    def set_reader(self, found: record.ReaderData, flags: int) -> None:
        """Set the position of a named reader, or delete the reader, as a READER_OFFSET record
        says."""
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
        self, stream: StoredStream, lsn: int, mode: int, staged: str, page: StagedPage, time_us: int
    ) -> Adoption:
        """Make a staged page the next page of a stream, as a BATCH record says. staged: the path of
        the page; time_us: of its records. Return the work on its files that remains."""
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

    def placed(self, stream: StoredStream, adoption: Adoption) -> None:
        """Note that the files of an adopted page are in place."""
        adoption.writer.placed()
        adoption.writer.close()  # it may have the old files open
        self.adopting = [(s, a) for s, a in self.adopting if a is not adoption]
        if not stream.is_dirty and not stream.is_deleted:
            stream.is_dirty = True  # pages before it wait to be sealed
            self.dirty.append(stream)

    def touch(self, batch: Batch, stream: StoredStream) -> None:
        """Note that an unfinished batch is about to append to a stream. The first time, the batch
        holds the stream's head."""
        if batch.is_done or stream.number in batch.holds:
            return
        batch.encoded = b""
        batch.holds[stream.number] = stream.queue.next_offset
        if stream.held_at < 0:
            stream.held_at = stream.queue.next_offset

    def hold(self, batch: Batch) -> None:
        """Recovery: hold the heads that a batch of a checkpoint held."""
        for number, offset in batch.holds.items():
            stream = self.by_number.get(number)
            if stream is not None and (stream.held_at < 0 or offset < stream.held_at):
                stream.held_at = offset

    def release(self, batch: Batch, others: Iterable[Batch], lsn: int) -> None:
        """Release the heads that a batch held, after its last record, which has this LSN. They move
        over the whole batch at once, unless another batch holds them."""
        for number, offset in batch.holds.items():
            stream = self.by_number.get(number)
            if stream is not None:
                _merge_turns(stream, offset, lsn)
                if not stream.lsn and not stream.turns and offset < stream.next_offset:
                    # Recovery restored what the batch appended here, and nothing came after that.
                    stream.lsn, stream.mode = lsn, DISK
                    if not stream.is_dirty:
                        stream.is_dirty = True
                        self.dirty.append(stream)
                held = [x.holds[number] for x in others if x is not batch and number in x.holds]
                stream.held_at = min(held, default=-1)
        batch.holds = {}
        batch.encoded = b""

    # ---- checkpoints ---------------------------------------------------------------------------

    def write(self) -> None:
        """Write the frames of all streams in RAM, also of those deleted since the cut, which a
        checkpoint in progress names. OSError: what was not written stays."""
        for stream in self.dirty:
            if not stream.queue.is_closed:
                self.write_one(stream)  # stays dirty until its turn ends
                self._touched[stream.number] = stream

    def write_one(self, stream: StoredStream, most: int = UNLIMITED) -> int:
        """Write the frames of one stream. most: as PersistentQueue.write. Returns how many bytes.
        OSError: as `write`."""
        before = stream.queue.written_bytes
        try:
            stream.queue.write(most)
        finally:
            written = stream.queue.written_bytes - before
            self.written_bytes += written
        return written

    def capture(self) -> list[tuple[int, StreamSection]]:
        """Return (number, section) of every stream as of now. Unchanged sections are reused."""
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
        """Return files and directories that were changed since the last call and must be synced."""
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
        """Note that these sections are in the checkpoint that is CURRENT now."""
        for number, section in sections:
            stream = self.by_number.get(number)
            if stream is not None:
                stream.base_kept = section.position.page_base

    # ---- files ---------------------------------------------------------------------------------

    def used(self, stream: StoredStream) -> None:
        """Note that a stream was written to and has open files. If too many have, or descriptors
        are short, close those of the least recently used."""
        used = self._open
        self._touched[stream.number] = stream
        used.pop(stream.number, None)
        used[stream.number] = stream
        if len(used) > OPEN_MAX or (self.fs.is_short and len(used) > 1):
            number = next(iter(used))
            used.pop(number).queue.release_handles()

    def release_some(self) -> None:
        """Close the files of the next few streams that were opened only for readers; they are
        opened again when needed."""
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


def _merge_turns(stream: StoredStream, offset: int, lsn: int) -> None:
    """Join the turns of a batch, which appended from `offset` on, into one turn that is settled by
    the batch's last record: the turn in progress if there is one, otherwise the last."""
    turns = stream.turns
    last: Turn | None = None
    while turns and turns[-1].position.next_offset > offset:
        turn = turns.pop()
        last = last or turn
    if stream.lsn:
        stream.lsn, stream.mode = max(stream.lsn, lsn), DISK
    elif last is not None:
        turns.append(Turn(max(last.lsn, lsn), DISK, last.position))


def close(stream: StoredStream) -> None:
    """Close a stream's files and write nothing: the log has what is not written."""
    queue = stream.queue
    queue.failed = queue.failed or StoppedError(f"{stream.path}: the stream is closed")
    queue.close()


def remove_tree(fs: FileSystem, path: str) -> None:
    """Delete a directory and its files, if it exists."""
    if fs.exists(path):
        for name in fs.list(path):
            fs.unlink(f"{path}/{name}")
        fs.rmdir(path)
