"""PersistentQueue: an append-only queue in pages, read any number of times and deleted by age.

The design is the PersistentQueue of rxjava2-extras: messages are written in order into pages of a
fixed size, each with an index. Any number of readers read them, from an offset or from a time on,
at least once. Reading removes nothing; space is freed by whole pages. Where that design leaves a
question open, this module answers it:

    torn writes         each record has a checksum (page.py)
    equal times         `find` takes the last page that begins strictly before the time, so it finds
                        all records of one time on both sides of a page border
    clocks              times never decrease: an earlier time becomes that of the record before
    large records       a record larger than a page gets a page of its own
    page size           allMeta has it; a different option is ignored, with an event
    deleting            `retain`: readMeta moves and is synced, then the pages are deleted

Offsets count records from 0 without gaps and are never reused. Readers stop at `head_offset`;
everything below it is settled.

A queue has one of two owners, and both use the same append path. With forces=True it stands alone:
it holds a lock on its directory, and `force` syncs the page and then writes writeMeta. With
forces=False it belongs to a vhost, whose log has every record. Then only creating and deleting sync
anything here: `write` puts frames into the page file, `publish_head` moves the head to what the log
has settled, and a checkpoint keeps `position` and syncs `take_dirty`. Recovery calls `restore` with
that position, appends the records of the log again, which writes the same bytes to the same places,
and calls `finish_restore`, which cuts what is beyond the log.

RAM: the frames since the last `write`, a few hundred index rows, and a small object per page.

Creating. The directory and allMeta are synced, with the directories that hold them, before an empty
writeMeta is written. Without allMeta nothing in the directory counts.

Starting alone. The pages must be whole up to the head in writeMeta, because they were synced before
it was written. There may be more after it: frames that were synced before writeMeta reached the
disk, frames that were only written, a torn frame. A page is synced before the next one begins, so
only the last page can be torn. Frames there are kept as long as they verify; the rest is cut and
reported. Damage below the head is not a torn tail: such a page keeps its place and length, and
reading the bad record raises. Without a good writeMeta the last page is scanned from its beginning,
and writeMeta is written again. All files that are trusted are synced first and read from the disk
[8]. A writeMeta without a page, or with a page below readMeta, means that a crash interrupted the
deletion of the last page; the start completes it.

Retention. Pages are deleted from the oldest on. A page that takes no more records is deleted

    max_age_s     when its last record is older
    max_bytes     while all pages together have more bytes
    max_records   while the pages after it have at least that many records

but never a page with a record that must be kept. The page of the head is always kept: the head must
lead somewhere, and unsettled records must not be lost. A named reader can ask to keep more with a
`Hold`, within bounds of age and bytes, so that a reader cannot fill the disk. So at least
`max_records` records stay, and at most one page more; and at most `max_bytes`, plus the last page.

Age alone deletes the last page: when everything is settled and its newest record is older than
max_age_s, an idle stream is deleted whole. The next record begins a new page, although the page
before had room. A replay of the log finds that border in readMeta: a page begins where it says, and
pages below it are not written again. If a crash comes before readMeta is durable, the page is still
there and takes the records that follow in the log. If a checkpoint without any page is durable
before readMeta is, the next start moves readMeta.

Deleting in this order survives a crash: first readMeta names the first page that stays, durably;
then the pages are unlinked, without a sync, because a start deletes what it finds below readMeta.

Adoption. A staged page can become the next page of a vhost's stream (adoption.py). The page before
it is full from then on, whatever its size; the adopted page takes no record, and the next record
begins a new page. Its records have their offsets at once. Until its files are placed none of it
counts as written, so neither the head nor the sealing of later pages passes it.

Failure: an OSError of a write changes nothing, and the next write tries again. A failed sync stops
the queue: it raises StoppedError from then on [10]. Damage is a CorruptionError with file and
position.
"""

import contextlib
import random
from bisect import bisect_left
from collections.abc import Callable
from contextlib import closing
from typing import Final, NamedTuple

from penstock.clock import Clock
from penstock.errors import (
    CorruptionError,
    NetworkFileSystemError,
    NotAStoreError,
    StoppedError,
    SyncFailedError,
)
from penstock.fast_crc import BodyPieces
from penstock.storage.files.data_directory import QUEUE_NAME, delete_tree, not_of_volume, sync_dir
from penstock.storage.files.filesystem import NETWORK_KINDS, File, FileSystem, Lock
from penstock.storage.pages import stream_meta
from penstock.storage.pages.page import (
    FRAME_BYTES,
    PAGE_BYTES_MAX,
    PAGE_HEADER_BYTES,
    UNLIMITED,
    PageRecord,
    page_name,
)
from penstock.storage.pages.page_reading import PagedReading, PageTable, list_bases
from penstock.storage.pages.page_writer import PageWriter
from penstock.storage.pages.stream_meta import (
    ALL_META,
    NEW,
    READ_META,
    READERS,
    WRITE_META,
    AllMeta,
    Position,
    ReaderOffset,
    StreamHead,
)
from penstock.storage.store.store_file import StoredBody

PAGE_BYTES: Final = 64 << 20
PAGE_BYTES_MIN: Final = 128

LOCK: Final = "LOCK"

Event = Callable[[str, str], None]
Bytes = bytes  # named because inside a PersistentQueue "bytes" is how many it has


class RetentionLimits(NamedTuple):
    """How much of a stream retention keeps; None: no limit."""

    max_age_s: float | None = None
    max_bytes: int | None = None
    max_records: int | None = None


class Hold(NamedTuple):
    """A reader's request to keep the records from `offset` on. max_age_s: how much longer than the
    limits' max_age_s (or than 0, without one) it keeps a record. max_bytes: how many bytes of pages
    it keeps that the limits do not. None: no bound."""

    offset: int
    max_age_s: float | None = None
    max_bytes: int | None = None


class Retention:
    """Pages that are to be deleted. bases: their base offsets; pages: how many; first_base: the
    base of the first page that stays. is_done: `run` has come to its end."""

    def __init__(self, fs: FileSystem, path: str, bases: list[int], first_base: int) -> None:
        self.fs = fs
        self.path = path
        self.bases = bases
        self.pages = len(bases)
        self.first_base = first_base
        self.is_done: bool = False

    @property
    def paths(self) -> list[str]:
        """The files that `run` deletes."""
        stems = [f"{self.path}/{page_name(base)}" for base in self.bases]
        return [stem + ending for stem in stems for ending in (".page", ".idx")]

    def run(self, unlink: bool = True) -> None:
        """Move readMeta durably, then unlink the pages, unless unlink=False because a backup copies
        them. Raises SyncFailedError, and OSError: the next plan, or the next start, has the pages
        that are left."""
        tail = stream_meta.encode_tail(self.first_base)
        stream_meta.replace_small(self.fs, self.path, stream_meta.READ_META, tail)
        for base in self.bases if unlink else ():
            unlink_page(self.fs, self.path, base)
        self.is_done = True


class PersistentQueue:
    """The stream in the directory `path`, created if it is missing. In a vhost (forces=False) an
    existing stream is being restored until `finish_restore`.

    page_bytes: 128 to 2^31 - 1. create=False: raises CorruptionError if the stream is missing.
    on_event(kind, text) reports what an operator should know and is not an error. Raises
    CorruptionError, SyncFailedError, OSError, and alone LockedError and NotAStoreError.
    """

    def __init__(
        self, fs: FileSystem, path: str, *, page_bytes: int = PAGE_BYTES, forces: bool = True,
        number: int = 0, clock: Clock, rng: random.Random, create: bool = True,
        on_event: Event | None = None,
    ) -> None:  # fmt: skip
        if not PAGE_BYTES_MIN <= page_bytes <= PAGE_BYTES_MAX:
            raise ValueError(
                f"page_bytes is {page_bytes}, expected {PAGE_BYTES_MIN} to {PAGE_BYTES_MAX}"
            )
        self.fs: FileSystem = fs
        self.path: str = path
        self.clock: Clock = clock
        self.forces: bool = forces
        self.on_event: Event | None = on_event
        self.failed: BaseException | None = None
        self._lock: Lock | None = _lock(fs, path, create) if forces else None
        try:
            meta, self.is_new = _open_all(fs, path, number, page_bytes, rng, create)
            self._set_up(meta, page_bytes)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    def _set_up(self, meta: AllMeta, page_bytes: int) -> None:
        fs, path = self.fs, self.path
        self.stream_id: bytes = meta.id
        self.number: int = meta.number
        self.page_bytes: int = meta.page_bytes
        if page_bytes != meta.page_bytes:
            self._report(
                "page_bytes", f"{path}: pages have {meta.page_bytes} bytes, not {page_bytes}"
            )
        self.next_offset: int = 0
        self.head_offset: int = 0
        self.written_bytes: int = 0  # since it was opened
        self.last_time_us: int = 0
        self.is_restoring: bool = not self.is_new and not self.forces
        self._is_tail_due: bool = False  # readMeta is behind the checkpoint
        self.pages: PageTable = PageTable(fs, path, self.stream_id, can_heal=True)
        self.pages.number = meta.number
        self.pages.first_base = stream_meta.read_tail(fs, path)
        self.writer: PageWriter | None = None  # of the last page
        self._forcing: PageWriter | None = None  # of the page that is being synced
        self._page_end: int = meta.page_bytes  # where the last page is full
        self._full: list[PageWriter] = []  # full pages that are not written and sealed yet
        self._published: StreamHead = StreamHead(0, 0, 0, 0)
        self._head_file: File | None = None
        self._retention: Retention | None = None  # the last one
        self.dirty: dict[str, None] = {}  # files and directories for the next checkpoint
        self.dirty_directories: dict[str, None] = {}
        self._reading: PagedReading = PagedReading(self.pages)
        self.is_closed: bool = False
        self.readers: dict[str, ReaderOffset] = {}
        if self.forces:
            self._start_alone()
        elif self.is_new:
            self.publish(StreamHead(0, 0, 0, 0), False)

    # ---- what there is -------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """The offset of the first record; next_offset without records."""
        bases = self.pages.bases
        return bases[0] if bases else self.next_offset

    @property
    def bytes(self) -> int:
        """Bytes of all pages, including those not written yet."""
        writer = self.writer
        return self.pages.bytes_before_last() + (writer.position if writer is not None else 0)

    @property
    def written_offset(self) -> int:
        """The first offset that is not in the page files yet."""
        for full in self._full:
            if full.written_count < full.count:
                return full.base + full.written_count
        writer = self.writer
        return writer.base + writer.written_count if writer is not None else self.next_offset

    def position(self) -> Position:
        """Return where the stream ends after the last `append`, written or not."""
        writer, end, time_us = self.writer, self.next_offset, self.last_time_us
        if writer is None:
            return Position(end, 0, end, time_us, end)
        return Position(writer.base, writer.position, end, time_us, self.first_offset)

    # ---- appending -----------------------------------------------------------------------------

    def check(self, size: int, meta: Bytes) -> None:
        """Raise ValueError if no page can hold a record with a payload of so many bytes."""
        need = PAGE_HEADER_BYTES + FRAME_BYTES + size + len(meta)
        if need > PAGE_BYTES_MAX:
            raise ValueError(f"a page with the record has {need} bytes, at most {PAGE_BYTES_MAX}")

    def append(
        self, payload: Bytes, meta: Bytes, time_us: int = -1, large: BodyPieces | None = None
    ) -> int:
        """Append a record and return its offset. The record is in RAM until `write`. time_us:
        microseconds since 1970, by default now. large: its payload, if that is in pieces. Raises
        ValueError (see `check`), StoppedError."""
        if self.failed is not None:
            self._check()
        if time_us < 0:
            time_us = self.clock.wall_us()
        if time_us < self.last_time_us:
            time_us = self.last_time_us
        writer = self.writer
        size = len(payload) if large is None else large.size
        if (
            writer is None
            or writer.position + FRAME_BYTES + size + len(meta) > self._page_end
            or (self.is_restoring and self.next_offset == self.pages.first_base)
        ):
            self.check(size, meta)
            writer = self._roll()
        offset = self.next_offset
        writer.append(time_us, payload, meta, large)
        self.last_time_us = time_us
        self.next_offset = offset + 1
        return offset

    def append_many(self, records: list[tuple[Bytes, Bytes]], time_us: int = -1) -> int:
        """Append (payload, meta) pairs with one time; return the offset of the first. Alone, they
        are durable when this returns. Raises as `append` and `force`."""
        first = self.next_offset
        time_us = time_us if time_us >= 0 else self.clock.wall_us()
        for payload, meta in records:
            self.append(payload, meta, time_us)
        if self.forces:
            self.force()
        return first

    def _roll(self) -> PageWriter:
        """Return the page for the next record: a new one unless the last is empty. Touches no
        file. In a replay too a page begins where readMeta says that the first one does: retention
        had deleted the page before it although that had room."""
        writer = self.writer
        if writer is not None:
            if not writer.count:
                return writer
            self._set_aside(writer)
        writer = PageWriter(self.fs, self.path, self.stream_id, self.number, self.next_offset)
        self._take_writer(writer)
        return writer

    def _set_aside(self, writer: PageWriter) -> None:
        """Keep a page that takes no more records until it is sealed."""
        self._full.append(writer)
        if not self._is_deleted(writer):
            self.pages.complete(writer)

    def _take_writer(self, writer: PageWriter) -> None:
        """Make this page the last one."""
        self.writer = writer
        self._page_end = 0 if writer.is_adopted else self.page_bytes
        if not self._is_deleted(writer):
            self.pages.writer = writer
            self.pages.add(writer.base)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that the next `write` has to write."""
        unwritten = 0
        for full in self._full:
            unwritten += full.position - full.written
        writer = self.writer
        return unwritten if writer is None else unwritten + writer.position - writer.written

    def write(self, most: int = UNLIMITED) -> None:
        """Write what was appended into the page files, without a sync. most: of what large records
        leave, about so many bytes; not for one that stands alone. OSError: nothing is lost, the
        next `write` tries again."""
        self._check()
        for full in self._full:
            most -= self._write(full, max(most, 0))
            if self.forces:
                self._sync(full)  # before anything of the next page is on the disk
        while self._full and self._full[0].is_caught_up():
            full = self._full[0]
            self._seal(full)
            del self._full[0]
        if self.writer is not None:
            self._write(self.writer, max(most, 0))

    def _seal(self, full: PageWriter) -> None:
        """Complete the index of a page that is full and written, and close the page."""
        if not self._is_deleted(full):
            full.seal()
            if self.forces:
                self._sync(full)
            else:
                self.dirty[full.stem + ".idx"] = None
        self.pages.forget(full.base)
        full.close()

    def _write(self, writer: PageWriter, most: int) -> int:
        """Write some of a page; return how many bytes."""
        if writer.written == writer.position and not writer.has_rows_due():
            return 0
        if self._is_deleted(writer):
            writer.drop()
            return 0
        if not self.forces:
            self.dirty[writer.stem + ".page"] = None
            if writer.is_new:
                self.dirty_directories[self.path] = None
                writer.is_new = False
        before = writer.written
        writer.write(most)
        written = writer.written - before
        self.written_bytes += written
        if writer.damage is not None and not writer.is_reported:
            writer.is_reported = True
            self._report("corruption", str(writer.damage))
        return written

    def _is_deleted(self, writer: PageWriter) -> bool:
        """Return whether retention deleted this page after the checkpoint that is restored."""
        return writer.base < self.pages.first_base

    def _sync(self, writer: PageWriter) -> None:
        """Alone: sync what is written of a page."""
        try:
            if not self._is_deleted(writer):
                writer.sync()
        except OSError as error:
            raise self._stopped(SyncFailedError(writer.stem, error)) from error
        if writer.is_new:
            self._guarded(lambda: sync_dir(self.fs, self.path))
            writer.is_new = False

    # ---- settling ------------------------------------------------------------------------------

    def force(self) -> None:
        """Alone: make everything appended durable and move the head to it. SyncFailedError stops
        the queue; OSError of a write changes nothing."""
        head = self.begin_force()
        if head is not None:
            self.sync_force()
            self.finish_force(head)

    def begin_force(self) -> StreamHead | None:
        """Alone: begin `force`, in three steps for an owner whose threads append under a lock. Call
        this and `finish_force` under the lock, `sync_force` between them without it: meanwhile
        records may be appended and read, nothing else. Return the head to be, None if it is there
        already. Raises as `force`."""
        assert self.forces, "in a vhost the log is forced, not the page"
        self.write()
        if self.head_offset == self.next_offset:
            return None
        writer = self.writer
        assert writer is not None
        self._forcing = writer  # the next record may begin another page
        return StreamHead(self.next_offset, writer.base, writer.written, self.last_time_us)

    def sync_force(self) -> None:
        """Sync what `begin_force` wrote. SyncFailedError stops the queue."""
        writer = self._forcing
        assert writer is not None, "begin_force comes first"
        self._sync(writer)

    def finish_force(self, head: StreamHead) -> None:
        """Move the head to what `sync_force` synced. SyncFailedError, OSError."""
        before = self._published
        self._forcing = None
        is_next_page = head.page_base != before.page_base or not before.page_bytes
        self.publish(head, is_next_page)

    def publish_head(self, offset: int) -> None:
        """In a vhost: move the head to `offset`, below which everything is settled. OSError."""
        if offset <= self.head_offset:
            return
        assert offset <= self.next_offset, "a head beyond the end"
        if offset > self.written_offset or self._full:
            self.write()
        writer = self.writer
        if writer is None:
            self.publish(StreamHead(offset, offset, 0, self.last_time_us), False)
        elif offset == self.next_offset:
            self.publish(StreamHead(offset, writer.base, writer.position, self.last_time_us), False)
        else:
            self._publish_at(offset)

    def _publish_at(self, offset: int) -> None:
        """Put the head before a record that is in a page already. CorruptionError, OSError."""
        self.publish(self._reading.head_at(offset), False)

    def publish(self, head: StreamHead, is_synced: bool) -> None:
        """Write writeMeta and move the head."""
        file = self._head_file
        if file is None:
            file = self._head_file = self.fs.open(
                f"{self.path}/{stream_meta.WRITE_META}", create=True
            )
        file.pwrite(stream_meta.encode_head(head), 0)
        if is_synced:
            try:
                file.sync()
            except OSError as error:
                raise self._stopped(SyncFailedError(file.path, error)) from error
        self._published = head
        self.head_offset = head.next_offset

    def _stopped(self, error: BaseException) -> BaseException:
        self.failed = error
        return error

    def _check(self) -> None:
        if self.failed is not None:
            raise StoppedError(f"{self.path}: {self.failed}")

    def _report(self, kind: str, text: str) -> None:
        """Report an event to the owner."""
        if self.on_event is not None:
            self.on_event(kind, text)

    # ---- reading -------------------------------------------------------------------------------

    def read(
        self, offset: int, max_records: int, max_bytes: int, whole_max: int = UNLIMITED
    ) -> list[PageRecord]:
        """Return up to max_records records from `offset` on and below the head, at least one if
        there is one. max_bytes: limit of payloads and meta. Starts with the first record if
        `offset` is below it. Stops before a record of more than whole_max bytes, a MiB at least,
        for which there is `open_large`. Raises CorruptionError, OSError, StoppedError."""
        self._check()
        first = self.first_offset
        return self._reading.read(
            offset if offset > first else first, self.head_offset, max_records, max_bytes, whole_max
        )

    def open_large(self, offset: int) -> tuple[PageRecord, StoredBody] | None:
        """Return the first record from `offset` on and below the head without its payload, and the
        payload, to be read in pieces, which verifies it. None: there is none. The caller closes it.
        Raises CorruptionError, OSError, StoppedError."""
        self._check()
        offset = max(offset, self.first_offset)
        return self._reading.open_large(offset) if offset < self.head_offset else None

    def find(self, time_us: int) -> int:
        """Return the first offset whose time is at least `time_us` (microseconds since 1970);
        next_offset if there is none. Alone: among records below the head. In a vhost, while frames
        cannot be written, an earlier offset. Raises CorruptionError, OSError, StoppedError."""
        bases = self.pages.bases
        if self.forces:
            self._check()
            head = self._published
            if time_us > head.last_time_us:
                return head.next_offset
            return self._reading.find(
                time_us, bisect_left(bases, head.next_offset), head.next_offset
            )
        if time_us > self.last_time_us:
            return self.next_offset
        try:
            self.write()
        except OSError:  # such as a full disk: what is in RAM alone comes after the rest
            end = self.written_offset
            return self._reading.find(time_us, bisect_left(bases, end), end)
        for page in self._full if self.writer is None else [*self._full, self.writer]:
            if not page.is_placed:  # an adopted page without files ends what can be searched
                return self._reading.find(time_us, bases.index(page.base), page.base)
        return self._reading.find(time_us, len(bases), self.next_offset)

    def indexed_time(self, offset: int) -> int:
        """Return the time of the record `offset`, which exists (microseconds since 1970), as the
        index of its page has it, unchecked; without an index the time of the page's first record.
        Reads 16 bytes, and no record. Raises CorruptionError, OSError."""
        base = self.pages.base_of(offset)
        for page in self._full if self.writer is None else [*self._full, self.writer]:
            if page.base == base and page.is_adopted:
                return page.last_time_us  # that of all its records
            if page.base == base:
                return page.row(offset - base)[2] or page.first_time_us
        return self.pages.reader(base).row(offset - base)[2] or self.pages.first_time(base)

    # ---- readers, retention --------------------------------------------------------------------

    def set_reader(self, name: str, offset: int, kept_from: int | None = None) -> None:
        """Alone: store durably how far a reader is, and from where on `retain` keeps records."""
        assert self.forces, "in a vhost the log keeps the readers"
        reader = ReaderOffset(offset, kept_from)
        self._guarded(lambda: stream_meta.save_reader(self.fs, self.path, name, reader))
        self.readers[name] = reader

    def delete_reader(self, name: str) -> bool:
        """Alone: delete a reader; return False if there is none of that name."""
        if name not in self.readers:
            return False
        self._guarded(lambda: stream_meta.remove_reader(self.fs, self.path, name))
        del self.readers[name]
        return True

    def _guarded(self, op: Callable[[], None]) -> None:
        """Run `op`; a failed sync in it stops the queue [10]."""
        self._check()
        try:
            op()
        except SyncFailedError as error:
            raise self._stopped(error) from error

    def plan_retain(
        self, max_age_s: float | None = None, max_bytes: int | None = None,
        max_records: int | None = None, *, now_us: int, keep_from: int | None = None,
        hold: Hold | None = None,
    ) -> Retention | None:  # fmt: skip
        """Choose the pages that retention deletes, and hide them from readers. Return the Retention
        that deletes them in any thread, with those that the one before could not delete; None if
        there are none. Run one before planning the next. OSError."""
        if self.is_restoring:
            return None
        kept = [keep_from, *[r.kept_from for r in self.readers.values()]]
        limit = min([offset for offset in kept if offset is not None], default=self.next_offset)
        active = self.writer.position if self.writer is not None else 0
        limits = RetentionLimits(max_age_s, max_bytes, max_records)
        limit_before = min(limit, self._published.page_base)
        count = choose(self.pages, limits, now_us, limit_before, self.next_offset, active, hold)
        if count == len(self.pages) - 1 and limit == self.next_offset == self.head_offset:
            writer = self.writer
            if writer is not None and takes_last(writer, limits, now_us, hold):
                self._end_page(writer)
                count += 1
        last = self._retention
        left = last.bases if last is not None and not last.is_done else []  # it has failed
        if not count and not left:
            return None
        gone = left + self.pages.take_first(count)
        bases = self.pages.bases
        first = self.pages.first_base = bases[0] if bases else self.next_offset
        # They stay dirty: if deleting them fails, the next start finds and needs them.
        self._retention = Retention(self.fs, self.path, gone, first)
        return self._retention

    def _end_page(self, writer: PageWriter) -> None:
        """Publish a head without a page, so that the last page can be deleted; the next record
        begins a page. OSError: nothing has changed."""
        end = self.next_offset
        self.publish(StreamHead(end, end, 0, self.last_time_us), False)
        self.pages.complete(writer)
        self.pages.writer = self.writer = None
        writer.close()

    def retain(
        self, max_age_s: float | None = None, max_bytes: int | None = None,
        max_records: int | None = None, *, now_us: int, keep_from: int | None = None,
    ) -> int:  # fmt: skip
        """Delete the pages beyond the limits; return how many. max_age_s, max_bytes, max_records:
        None is no limit. now_us: microseconds since 1970. keep_from: keep all from this offset on,
        as for named readers. SyncFailedError stops the queue; OSError."""
        self._check()
        found = self.plan_retain(
            max_age_s, max_bytes, max_records, now_us=now_us, keep_from=keep_from
        )
        if found is not None:
            self._guarded(found.run)
        return 0 if found is None else found.pages

    # ---- starting alone --------------------------------------------------------------------------

    def _start_alone(self) -> None:
        """Find everything that was forced and cut the rest; see the head of the module."""
        fs, path = self.fs, self.path
        sync_dir(fs, path)  # a listed name need not be on the disk yet
        if fs.exists(f"{path}/{READERS}"):
            sync_dir(fs, f"{path}/{READERS}")
        self.readers = stream_meta.load_readers(fs, path)
        known = None if self.is_new else self._known_head()
        was_lost = known is None
        bases = list_bases(fs, path)
        if known is not None and not known.page_bytes and known.next_offset > self.pages.first_base:
            self.pages.first_base = known.next_offset  # retention was about to delete it all
            self._replace_tail()
        first = self.pages.first_base
        if known is not None and known.page_base < first and known.next_offset <= first:
            known = StreamHead(
                first, first, 0, known.last_time_us
            )  # retention went beyond this head
        for base in bases:
            if base < first:
                unlink_page(fs, path, base)
        bases = [base for base in bases if base >= first]
        if known is not None and known.page_bytes and known.page_base not in bases:
            page = f"{path}/{page_name(known.page_base)}.page"
            raise CorruptionError(page, 0, f"the page is missing, the head is {known.next_offset}")
        if bases and bases[0] != first:
            bases.insert(0, first)  # missing: reading it raises
        if known is not None and not known.page_bytes:
            known = StreamHead(first, first, 0, known.last_time_us)  # the pages were never forced
            self.last_time_us = known.last_time_us
        self._take_pages(bases, known)
        if not self.is_new and was_lost:
            self._report("healed", f"{path}/{WRITE_META}: made again from the pages")
        self.pages.heal_all()
        writer = self.writer
        if writer is None:
            self.publish(StreamHead(self.next_offset, first, 0, self.last_time_us), True)
            sync_dir(fs, path)
            return
        self.publish(
            StreamHead(self.next_offset, writer.base, writer.written, self.last_time_us), True
        )

    def _replace_tail(self) -> None:
        """Write the base of the first page to readMeta, durably. SyncFailedError, OSError."""
        tail = stream_meta.encode_tail(self.pages.first_base)
        stream_meta.replace_small(self.fs, self.path, READ_META, tail)

    def _known_head(self) -> StreamHead | None:
        """Return the head in writeMeta, None if it cannot be read."""
        path = f"{self.path}/{WRITE_META}"
        with contextlib.suppress(FileNotFoundError, CorruptionError):
            _believe(self.fs, path)
            return stream_meta.decode_head(path, self.fs.read(path))
        return None

    def _take_pages(self, bases: list[int], known: StreamHead | None) -> None:
        """Find the page that was written last and its last good frame; delete what follows.

        A page is synced to its end before the next one is written. So pages before one with a good
        header were complete, and only the last can be torn.
        """
        fs, path = self.fs, self.path
        taken = list(bases)
        writer: PageWriter | None = None
        fault = ""
        while taken and writer is None and (known is None or taken[-1] >= known.page_base):
            base = taken[-1]
            page = f"{path}/{page_name(base)}.page"
            found = PageWriter(fs, path, self.stream_id, self.number, base)
            try:
                if known is not None and known.page_bytes and base == known.page_base:
                    _believe(fs, page)
                    found.resume(known.page_bytes, known.next_offset - base, known.last_time_us)
                    writer = found
                elif fs.exists(page):
                    _believe(fs, page)
                    found.resume(PAGE_HEADER_BYTES, 0, 0)
                    writer = found
            except CorruptionError:
                # A page after the head was not forced; without a head, a page of zeros was not.
                if known is not None and known.page_bytes and base == known.page_base:
                    raise
                if known is None and fs.read(page).strip(b"\0"):
                    raise
            if writer is not None:
                fault = writer.extend(writer.open_page().size())
            if writer is None or not writer.count:
                writer = None
                found.close()
                taken.pop()
                self._report("cut", f"{page}: it has no record")
                unlink_page(fs, path, base)
        if writer is not None:
            self._cut(writer, fault)
            self.next_offset = writer.base + writer.count
            self.last_time_us = writer.last_time_us
            self.pages.set_bases(taken[:-1])
            self._take_writer(writer)
        elif taken:
            raise CorruptionError(
                f"{path}/{page_name(taken[-1])}.page", 0, "no page can be continued"
            )
        else:
            self.next_offset = self.pages.first_base
        sync_dir(fs, path)

    def _cut(self, writer: PageWriter, fault: str) -> None:
        """Cut what follows the last good frame, durably."""
        page = writer.open_page()
        size = page.size()
        if size > writer.written:
            text = f"{size - writer.written} bytes cut at byte {writer.written}: {fault}"
            self._report("cut", f"{page.path}: {text}")
            page.truncate(writer.written)
        writer.begin_index()
        try:
            writer.sync()
        except OSError as error:
            raise SyncFailedError(writer.stem, error) from error

    # ---- in a vhost ----------------------------------------------------------------------------

    def adopt(self, page_id: int, count: int, size: int, time_us: int) -> PageWriter:
        """Make a staged page the last one: its id, records, bytes and the time of all its records,
        which is not before that of the last record. The caller places its files."""
        if self.writer is not None:
            assert self.writer.count, "a page of a vhost's stream has a record"
            self._set_aside(self.writer)
        page = PageWriter(self.fs, self.path, self.stream_id, self.number, self.next_offset)
        page.adopt(page_id, size, count, time_us)
        if page.base >= self.pages.first_base:
            page.await_files()
        self._take_writer(page)
        self.last_time_us = time_us
        self.next_offset += count
        return page

    def restore(self, position: Position) -> None:
        """Begin recovery: set the state of a checkpoint, which had synced the pages up to there.
        Then `append` the records that follow in the log, with their times. Writes nothing.
        CorruptionError, OSError.

        If retention has deleted that very page since, it is skipped: records of the log in it are
        counted and not written, until the first page that readMeta names begins.
        """
        fs, path = self.fs, self.path
        if self.is_new and position.next_offset:
            raise CorruptionError(
                f"{path}/{ALL_META}", 0, "it is missing, and the stream has records"
            )
        self.is_restoring = True
        self.next_offset = position.next_offset
        self.last_time_us = position.last_time_us
        first = self.pages.first_base
        if not position.page_bytes:
            if position.next_offset > first:  # retention had decided to delete everything
                self.pages.first_base = position.next_offset
                self._is_tail_due = True
            return
        bases = [base for base in list_bases(fs, path) if first <= base < position.page_base]
        if first < position.page_base and (not bases or bases[0] != first):
            raise CorruptionError(f"{path}/{page_name(first)}.page", 0, "the page is missing")
        self.pages.set_bases(bases)
        writer = PageWriter(fs, path, self.stream_id, self.number, position.page_base)
        count = position.next_offset - position.page_base
        if position.page_base < first:
            writer.pass_over(position.page_bytes, count, position.last_time_us)
        else:
            page = f"{writer.stem}.page"
            if fs.exists(page):
                _believe(fs, page)
            writer.resume(position.page_bytes, count, position.last_time_us)
        self._take_writer(writer)

    def finish_restore(self, held_at: int = -1) -> None:
        """End recovery after the last record of the log: write all, publish the head, cut what
        follows. held_at: the offset where the head waits, -1 for the end. Syncs nothing;
        `take_dirty` has what to sync. OSError."""
        fs, path = self.fs, self.path
        if self._is_tail_due:
            self._replace_tail()
            self._is_tail_due = False
        self.write()
        first = self.pages.first_base
        writer = self.writer
        if writer is not None and writer.base < first:
            self.writer = writer = None
        if self.next_offset < first:
            # Everything in the log was deleted, and what came after it was lost with the log.
            # Readers have seen those offsets, so they are not used again.
            self._report(
                "lost", f"{path}: the log ends at {self.next_offset}, continuing at {first}"
            )
            self.next_offset = first
        if writer is None:
            head = StreamHead(self.next_offset, self.next_offset, 0, self.last_time_us)
        else:
            head = StreamHead(self.next_offset, writer.base, writer.written, self.last_time_us)
        if self.pages.bases and first <= held_at < self.next_offset:
            self._publish_at(held_at)
        else:
            self.publish(head, False)
        known = set(self.pages.bases)
        for base in list_bases(fs, path):
            if base not in known and base >= first:
                unlink_page(fs, path, base)
        if writer is not None:
            page = writer.open_page()
            if page.size() > writer.written:
                page.truncate(writer.written)
            writer.begin_index()
            self.dirty[page.path] = None
            self.dirty[f"{writer.stem}.idx"] = None
        if fs.exists(f"{path}/{READ_META}"):
            self.dirty[f"{path}/{READ_META}"] = None
        self.dirty_directories[path] = None
        self.is_restoring = False

    def leftovers(self) -> list[str]:
        """Return the files of pages below the first one: a crash interrupted their deletion.
        OSError."""
        found: list[str] = []
        for name in self.fs.list(self.path):
            stem, _, ending = name.rpartition(".")
            is_page = ending in ("page", "idx") and len(stem) == 20 and stem.isdecimal()
            if is_page and int(stem) < self.pages.first_base:
                found.append(f"{self.path}/{name}")
        return found

    def take_dirty(self) -> tuple[list[str], list[str]]:
        """Return (files, directories) written since the last call. A checkpoint that keeps
        `position` must sync them, with `closed_file.sync_closed` because they may be deleted."""
        found = list(self.dirty), list(self.dirty_directories)
        self.dirty, self.dirty_directories = {}, {}
        return found

    # ---- the end -------------------------------------------------------------------------------

    def release_handles(self) -> None:
        """Close all files; they are opened again when needed."""
        self.pages.close()
        if self.writer is not None:
            self.writer.close()
        if self._head_file is not None:
            self._head_file.close()
            self._head_file = None

    def close(self) -> None:
        """Alone: force and release the lock. In a vhost: close the files and write nothing. A
        second call does nothing. OSError, SyncFailedError: records not yet forced may be lost."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            if self.forces and self.failed is None:
                self.force()
                while self._full:
                    self._seal(self._full.pop(0))
                if self.writer is not None:
                    self.writer.flush_rows()
                self.publish(self._published, True)
        finally:
            self._release()

    def delete(self) -> None:
        """Close without writing and delete the directory. OSError."""
        if not self.is_closed:
            self.is_closed = True
            self._release()
        self.failed = self.failed or StoppedError("it is deleted")
        delete_tree(self.fs, self.path)

    def release_lock(self) -> None:
        """Release the copy of the lock in a forked child, which must not use the queue."""
        if self._lock is not None:
            self._lock.release()

    def _release(self) -> None:
        self.release_handles()
        for full in self._full:
            full.close()
        if self._lock is not None:
            self._lock.release()


# ---- opening ------------------------------------------------------------------------------------


def _make_directory(fs: FileSystem, path: str) -> None:
    """Create the directory and make its name durable, also if it exists: its creator may have died
    before that. OSError, SyncFailedError."""
    if fs.exists(path) and not fs.is_dir(path):
        raise NotAStoreError(path, "it is a file, expected a directory")
    fs.mkdir(path)
    sync_dir(fs, path.rstrip("/").rpartition("/")[0] or ("/" if path[0] == "/" else "."))


def _lock(fs: FileSystem, path: str, create: bool) -> Lock:
    """Take the lock of a queue that stands alone. LockedError, NotAStoreError,
    NetworkFileSystemError, OSError."""
    _make_directory(fs, path)
    if create and not fs.exists(f"{path}/{ALL_META}"):
        _check_free(fs, path)
    kind = fs.kind(path)
    if kind in NETWORK_KINDS:
        raise NetworkFileSystemError(path, kind)
    return fs.lock(f"{path}/{LOCK}")


def _open_all(
    fs: FileSystem, path: str, number: int, page_bytes: int, rng: random.Random, create: bool
) -> tuple[AllMeta, bool]:
    """Return (allMeta, whether the stream was created by this call)."""
    file = f"{path}/{ALL_META}"
    if fs.exists(file):
        meta = stream_meta.decode_all(file, fs.read(file))
        if meta.number and not number:
            raise NotAStoreError(path, "it is a stream of a vhost; open the vhost's data directory")
        return meta, False
    if not create:
        raise CorruptionError(file, 0, "it is missing")
    fs.mkdir(path)
    _check_free(fs, path)
    meta = AllMeta(number, rng.getrandbits(128).to_bytes(16, "little"), page_bytes)
    stream_meta.replace_small(fs, path, ALL_META, stream_meta.encode_all(meta))
    return meta, True


def _check_free(fs: FileSystem, path: str) -> None:
    """Raise NotAStoreError if the directory has files that do not belong to a stream being created,
    CorruptionError if it has a stream's pages without allMeta."""
    names = set(not_of_volume(fs.list(path))) - {LOCK, QUEUE_NAME, ALL_META + NEW, WRITE_META}
    if any(name.endswith((".page", ".idx")) or name == READ_META for name in names):
        raise CorruptionError(f"{path}/{ALL_META}", 0, "it is missing, and the directory has pages")
    if names:
        raise NotAStoreError(
            path, f"it is not empty and not a stream (it has {sorted(names)[0]!r})"
        )


def _believe(fs: FileSystem, path: str) -> None:
    """Sync a file and drop it from the page cache, which may differ from the disk [8]."""
    with closing(fs.open(path)) as file:
        try:
            file.sync()
        except OSError as error:
            raise SyncFailedError(path, error) from error
        file.drop_cache()


# ---- retention ----------------------------------------------------------------------------------


def unlink_page(fs: FileSystem, path: str, base: int) -> None:
    """Delete a page's files that exist. OSError."""
    for ending in (".page", ".idx"):
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{path}/{page_name(base)}{ending}")


def choose(
    pages: PageTable, limits: RetentionLimits, now_us: int, keep_from: int, next_offset: int,
    active_bytes: int, hold: Hold | None = None,
) -> int:  # fmt: skip
    """Return how many of the first pages to delete. OSError."""
    count = _beyond(pages, limits, now_us, keep_from, next_offset, active_bytes)
    if hold is None:
        return count
    bases = pages.bases
    is_held = [bases[i + 1] > hold.offset for i in range(count)]
    if True not in is_held:
        return count
    first = is_held.index(True)
    infos = [pages.info(base) for base in bases[first:count]]
    left = sum([info.bytes for info in infos])
    oldest_us = 0
    if hold.max_age_s is not None:
        oldest_us = now_us - round((hold.max_age_s + (limits.max_age_s or 0)) * 1_000_000)
    for info in infos:
        if info.last_time_us >= oldest_us and (hold.max_bytes is None or left <= hold.max_bytes):
            break
        left -= info.bytes
        first += 1
    return first


def takes_last(writer: PageWriter, limits: RetentionLimits, now_us: int, hold: Hold | None) -> bool:
    """Return whether the last page is deleted too, if all others are and all of it is settled."""
    age_s = limits.max_age_s
    if age_s is None or not writer.count or writer.written_count < writer.count:
        return False
    age_us = now_us - writer.last_time_us
    if age_us <= round(age_s * 1_000_000):
        return False
    if hold is None or hold.offset >= writer.base + writer.count:
        return True
    if hold.max_age_s is not None and age_us > round((hold.max_age_s + age_s) * 1_000_000):
        return True
    return hold.max_bytes is not None and writer.position > hold.max_bytes


def _beyond(
    pages: PageTable, limits: RetentionLimits, now_us: int, keep_from: int, next_offset: int,
    active_bytes: int,
) -> int:  # fmt: skip
    """Return how many of the first pages the limits do not keep."""
    bases = pages.bases
    age, most, records = limits
    if age is None and most is None and records is None:
        return 0
    total = pages.bytes_before_last() + active_bytes if most is not None else 0
    count = 0
    while count < len(bases) - 1:
        base, end = bases[count], bases[count + 1]
        if end > keep_from:
            break
        goes = records is not None and next_offset - end >= records
        goes = goes or (most is not None and total > most)
        if not goes and age is not None:
            goes = pages.info(base).last_time_us < now_us - round(age * 1_000_000)
        if not goes:
            break
        if most is not None:
            total -= pages.info(base).bytes
        count += 1
    return count
