"""PersistentQueue: an append-only queue in pages, read as often as one likes and reclaimed by age.

After the PersistentQueue design of rxjava2-extras: messages are written in order into pages of a
fixed size, with an index beside each; they are read from an offset or *since a time*, by any number
of readers, at least once; reading takes nothing away, and space comes back by whole pages. Where
that design is silent or loses something this one decides:

    torn or true        a checksum with each record (page.py), not a length that is written last
    equal times         `find` takes the page whose first time is strictly less, so that records of
                        one time on both sides of a page border are all found
    clocks              times never decrease: an earlier one becomes that of the record before
    large records       have a page of their own, of their size
    page size           allMeta says it; another option is ignored, with an event
    who deletes         `retain`: readMeta moves and is synced, then the pages go

Offsets count records from 0, densely, and are never used twice. `head_offset` is where readers
stop: what is below it is settled.

Two owners, one append path. `forces=True`: the queue stands alone, holds a lock on its directory,
and `force` makes everything appended durable: page synced, then writeMeta. `forces=False`: it
lives in a vhost, whose log is the truth. Then nothing here is synced but what makes a stream or
deletes of it; `write` puts frames into the page file, `publish_head` tells readers what the log has
settled, and a checkpoint keeps a `position` and syncs `take_dirty`. Recovery calls `restore` with
that position, appends again what the log has, which writes the same bytes at the same place, and
`finish_restore` cuts what is beyond.

RAM: the frames since the last `write`, a few hundred rows, and a small object per page.

Failure: an OSError of a write changes nothing, the next one tries again. A failed sync stops the
queue: StoppedError from then on [10]. Damage is a CorruptionError with file and position.

Not here: starting alone (stream_start.py), deleting (stream_retention.py), readers that are not
the owner (stream_view.py), names of streams, partitions, delivery.
"""

import random
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock
from penstock.errors import StoppedError, SyncFailedError
from penstock.storage import stream_adoption, stream_meta, stream_start
from penstock.storage.data_directory import sync_dir
from penstock.storage.filesystem import File, FileSystem, Lock
from penstock.storage.fresh_directory import delete_tree
from penstock.storage.page import (
    FRAME_BYTES,
    PAGE_BYTES_MAX,
    PAGE_HEADER_BYTES,
    StreamRecord,
)
from penstock.storage.page_reading import PageTable
from penstock.storage.page_writer import PageWriter
from penstock.storage.page_reading import PagedReading
from penstock.storage.stream_meta import AllMeta, Head, Position, ReaderOffset
from penstock.storage.stream_retention import Hold, Limits, Retention, choose, takes_last

PAGE_BYTES: Final = 64 << 20
PAGE_BYTES_MIN: Final = 128

__all__ = ["PAGE_BYTES", "PersistentQueue", "Position", "Retention"]

Event = Callable[[str, str], None]
Bytes = bytes  # named because inside a PersistentQueue "bytes" is how many it has


class PersistentQueue:
    """One stream at `path`, made when missing. In a vhost (forces=False) a stream that was there
    is being restored until `finish_restore`.

    page_bytes: 128 to 2^31 - 1. create=False: CorruptionError if it is not there. on_event is told
    (kind, text) of what should be known and is no error. CorruptionError, LockedError and
    NotAStoreError (alone), SyncFailedError, OSError.
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
        self._lock: Lock | None = stream_start.lock(fs, path, create) if forces else None
        try:
            meta, self.is_new = stream_start.open_all(fs, path, number, page_bytes, rng, create)
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
            self.event(
                "page_bytes", f"{path}: pages have {meta.page_bytes} bytes, not {page_bytes}"
            )
        self.next_offset: int = 0
        self.head_offset: int = 0
        self.last_time_us: int = 0
        self.is_restoring: bool = not self.is_new and not self.forces
        self.is_tail_due: bool = False  # readMeta says less than the checkpoint does
        self.pages: PageTable = PageTable(fs, path, self.stream_id, can_heal=True)
        self.pages.number = meta.number
        self.pages.first_base = stream_meta.read_tail(fs, path)
        self.writer: PageWriter | None = None  # of the last page
        self._forcing: PageWriter | None = None  # of the page that is being forced
        self._page_end: int = meta.page_bytes  # where it is full
        self._full: list[PageWriter] = []  # pages before it that are not written and sealed yet
        self._published: Head = Head(0, 0, 0, 0)
        self._head_file: File | None = None
        self.dirty: dict[str, None] = {}  # files and directories for the next checkpoint
        self.dirty_directories: dict[str, None] = {}
        self._reading: PagedReading = PagedReading(self.pages)
        self.is_closed: bool = False
        self.readers: dict[str, ReaderOffset] = {}
        if self.forces:
            stream_start.start_alone(self)
        elif self.is_new:
            self.publish(Head(0, 0, 0, 0), False)

    # ---- what there is -------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """The first offset that there is; next_offset if there is none."""
        bases = self.pages.bases
        return bases[0] if bases else self.next_offset

    @property
    def bytes(self) -> int:
        """Bytes of all its pages, those included that are not written yet."""
        writer = self.writer
        return self.pages.bytes_before_last() + (writer.position if writer is not None else 0)

    @property
    def written_offset(self) -> int:
        """Everything below it is in the page files."""
        for full in self._full:
            if full.written_count < full.count:
                return full.base + full.written_count
        writer = self.writer
        return writer.base + writer.written_count if writer is not None else self.next_offset

    def unsealed(self) -> list[PageWriter]:
        """The pages at the end that are not done with."""
        return self._full if self.writer is None else [*self._full, self.writer]

    def position(self) -> Position:
        """Where the stream is, as of the last `append`, written or not."""
        writer, end, time_us = self.writer, self.next_offset, self.last_time_us
        if writer is None:
            return Position(end, 0, end, time_us, end)
        return Position(writer.base, writer.position, end, time_us, self.first_offset)

    # ---- appending -----------------------------------------------------------------------------

    def check(self, payload: Bytes, meta: Bytes) -> None:
        """ValueError if no page can take such a record."""
        need = PAGE_HEADER_BYTES + FRAME_BYTES + len(payload) + len(meta)
        if need > PAGE_BYTES_MAX:
            raise ValueError(f"a page with the record has {need} bytes, at most {PAGE_BYTES_MAX}")

    def append(self, payload: Bytes, meta: Bytes, time_us: int = -1) -> int:
        """The record's offset. It is in RAM until `write`. time_us: microseconds since 1970, by
        default now. ValueError (see `check`), StoppedError."""
        if self.failed is not None:
            self._check_runs()
        if time_us < 0:
            time_us = self.clock.wall_us()
        if time_us < self.last_time_us:
            time_us = self.last_time_us
        writer = self.writer
        if (
            writer is None
            or writer.position + FRAME_BYTES + len(payload) + len(meta) > self._page_end
            or (self.is_restoring and self.next_offset == self.pages.first_base)
        ):
            self.check(payload, meta)
            writer = self._roll()
        offset = self.next_offset
        writer.append(time_us, payload, meta)
        self.last_time_us = time_us
        self.next_offset = offset + 1
        return offset

    def append_many(self, records: list[tuple[Bytes, Bytes]], time_us: int = -1) -> int:
        """Append (payload, meta) pairs, all of one time; the offset of the first. Alone, they are
        durable when this returns. As `append` and `force`."""
        first = self.next_offset
        time_us = time_us if time_us >= 0 else self.clock.wall_us()
        for payload, meta in records:
            self.append(payload, meta, time_us)
        if self.forces:
            self.force()
        return first

    def _roll(self) -> PageWriter:
        """The page of the next record: a new one, unless this one is empty. No file is touched.
        Where readMeta says that the first page begins, one begins, also in a replay: retention had
        taken the page before it although there was room in it (stream_retention.py)."""
        writer = self.writer
        if writer is not None:
            if not writer.count:
                return writer
            self.set_aside(writer)
        writer = PageWriter(self.fs, self.path, self.stream_id, self.number, self.next_offset)
        self.take_writer(writer)
        return writer

    def set_aside(self, writer: PageWriter) -> None:
        """This page takes no more records."""
        self._full.append(writer)
        if not self._is_gone(writer):
            self.pages.complete(writer)

    def take_writer(self, writer: PageWriter) -> None:
        """This is the last page from now on."""
        self.writer = writer
        self._page_end = 0 if writer.is_adopted else self.page_bytes
        if not self._is_gone(writer):
            self.pages.writer = writer
            self.pages.add(writer.base)

    def write(self) -> None:
        """Put what was appended into the page files; nothing is synced. OSError: nothing is lost,
        the next `write` tries again."""
        self._check_runs()
        for full in self._full:
            self._write(full)
            if self.forces:
                self._sync(full)  # before anything of the next page is on the disk
        while self._full and self._full[0].is_caught_up():
            full = self._full[0]
            self._seal(full)
            del self._full[0]
        if self.writer is not None:
            self._write(self.writer)

    def _seal(self, full: PageWriter) -> None:
        """A page is full and written: complete its index, and be done with it."""
        if not self._is_gone(full):
            full.seal()
            if self.forces:
                self._sync(full)
            else:
                self.dirty[full.stem + ".idx"] = None
        self.pages.forget(full.base)
        full.close()

    def _write(self, writer: PageWriter) -> None:
        if writer.written == writer.position and not writer.has_rows_due():
            return
        if self._is_gone(writer):
            writer.drop()
            return
        if not self.forces:
            self.dirty[writer.stem + ".page"] = None
            if writer.is_new:
                self.dirty_directories[self.path] = None
                writer.is_new = False
        writer.write()
        if writer.damage is not None and not writer.is_told:
            writer.is_told = True
            self.event("corruption", str(writer.damage))

    def _is_gone(self, writer: PageWriter) -> bool:
        """While restoring: retention took the page since the checkpoint, and readMeta says so."""
        return writer.base < self.pages.first_base

    def _sync(self, writer: PageWriter) -> None:
        """Alone: what is written of a page is durable."""
        try:
            if not self._is_gone(writer):
                writer.sync()
        except OSError as error:
            raise self._stopped(SyncFailedError(writer.stem, error)) from error
        if writer.is_new:
            self._guarded(lambda: sync_dir(self.fs, self.path))
            writer.is_new = False

    # ---- settling ------------------------------------------------------------------------------

    def force(self) -> None:
        """Alone: everything appended is durable, and below the head. SyncFailedError stops the
        queue; OSError of a write leaves all as it was."""
        head = self.begin_force()
        if head is not None:
            self.sync_force()
            self.finish_force(head)

    def begin_force(self) -> Head | None:
        """Alone: `force` in three steps, for an owner whose threads append under a lock. This one
        and the last are made under the lock, `sync_force` between them is not: meanwhile records
        may be appended and read, and nothing else. The head that will be, None: it is there. Fails
        as `force`."""
        assert self.forces, "in a vhost the log is forced, not the page"
        self.write()
        if self.head_offset == self.next_offset:
            return None
        writer = self.writer
        assert writer is not None
        self._forcing = writer  # the next record may begin another page
        return Head(self.next_offset, writer.base, writer.written, self.last_time_us)

    def sync_force(self) -> None:
        """What was written is durable. SyncFailedError stops the queue."""
        writer = self._forcing
        assert writer is not None, "begin_force comes first"
        self._sync(writer)

    def finish_force(self, head: Head) -> None:
        """Readers may have it. SyncFailedError, OSError."""
        before = self._published
        self._forcing = None
        is_next_page = head.page_base != before.page_base or not before.page_bytes
        self.publish(head, is_next_page)

    def publish_head(self, offset: int) -> None:
        """In a vhost: everything below `offset` is settled, readers may have it. OSError."""
        if offset <= self.head_offset:
            return
        assert offset <= self.next_offset, "a head beyond the end"
        if offset > self.written_offset or self._full:
            self.write()
        writer = self.writer
        if writer is None:
            self.publish(Head(offset, offset, 0, self.last_time_us), False)
        elif offset == self.next_offset:
            self.publish(Head(offset, writer.base, writer.position, self.last_time_us), False)
        else:
            self.publish_at(offset)

    def publish_at(self, offset: int) -> None:
        """The head is before a record that is in a page already. CorruptionError, OSError."""
        self.publish(self._reading.head_at(offset), False)

    def publish(self, head: Head, is_synced: bool) -> None:
        """Write writeMeta, and take it for the head."""
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

    def _check_runs(self) -> None:
        if self.failed is not None:
            raise StoppedError(f"{self.path}: {self.failed}")

    def event(self, kind: str, text: str) -> None:
        """Tell the owner."""
        if self.on_event is not None:
            self.on_event(kind, text)

    # ---- reading -------------------------------------------------------------------------------

    def read(self, offset: int, max_records: int, max_bytes: int) -> list[StreamRecord]:
        """Up to so many records below the head, from `offset` on, and at least one if there is
        one; max_bytes: of payloads and meta. Below the first offset: from the first one, which the
        caller sees by the offsets. CorruptionError, OSError, StoppedError."""
        self._check_runs()
        first = self.first_offset
        return self._reading.read(
            offset if offset > first else first, self.head_offset, max_records, max_bytes
        )

    def find(self, time_us: int) -> int:
        """The first offset whose time is at least `time_us` (microseconds since 1970); next_offset
        if there is none. Alone: of what is forced. CorruptionError, OSError, StoppedError."""
        if self.forces:
            return self._find_forced(time_us)
        if time_us > self.last_time_us:
            return self.next_offset
        self.write()
        return self._reading.find(time_us, *stream_adoption.pages_for_find(self))

    def _find_forced(self, time_us: int) -> int:
        """Below the head, and nothing is written for it."""
        self._check_runs()
        head = self._published
        if time_us > head.last_time_us:
            return head.next_offset
        pages = bisect_left(self.pages.bases, head.next_offset)
        return self._reading.find(time_us, pages, head.next_offset)

    # ---- readers, retention --------------------------------------------------------------------

    def set_reader(self, name: str, offset: int, kept_from: int | None = None) -> None:
        """Alone: keep how far a reader is, durably; and what `retain` must leave for it."""
        assert self.forces, "in a vhost the log keeps the readers"
        reader = ReaderOffset(offset, kept_from)
        self._guarded(lambda: stream_meta.save_reader(self.fs, self.path, name, reader))
        self.readers[name] = reader

    def delete_reader(self, name: str) -> bool:
        """Alone: forget a reader; False if there is none of that name."""
        if name not in self.readers:
            return False
        self._guarded(lambda: stream_meta.remove_reader(self.fs, self.path, name))
        del self.readers[name]
        return True

    def _guarded(self, op: Callable[[], None]) -> None:
        """Run what may meet a failed sync, which stops the queue [10]."""
        self._check_runs()
        try:
            op()
        except SyncFailedError as error:
            raise self._stopped(error) from error

    def plan_retain(
        self, max_age_s: float | None = None, max_bytes: int | None = None,
        max_records: int | None = None, *, now_us: int, keep_from: int | None = None,
        hold: Hold | None = None,
    ) -> Retention | None:  # fmt: skip
        """Choose the pages that retention takes (stream_retention.py): None, or what deletes them,
        in any thread; for readers they are gone at once. hold: what readers ask to keep, within its
        bounds. The caller sees to it that one deletion is over before the next begins. OSError."""
        if self.is_restoring:
            return None
        kept = [keep_from, *[r.kept_from for r in self.readers.values()]]
        limit = min([offset for offset in kept if offset is not None], default=self.next_offset)
        active = self.writer.position if self.writer is not None else 0
        limits = Limits(max_age_s, max_bytes, max_records)
        # The page of the head stays: it is the last one of which anything is sure.
        limit_before = min(limit, self._published.page_base)
        count = choose(self.pages, limits, now_us, limit_before, self.next_offset, active, hold)
        if count == len(self.pages) - 1 and limit == self.next_offset == self.head_offset:
            writer = self.writer
            if writer is not None and takes_last(writer, limits, now_us, hold):
                self._set_down(writer)
                count += 1
        if not count:
            return None
        gone = self.pages.take_first(count)
        bases = self.pages.bases
        first = self.pages.first_base = bases[0] if bases else self.next_offset
        # They stay dirty: if they cannot be deleted, the next start finds them, and needs them.
        return Retention(self.fs, self.path, gone, first)

    def _set_down(self, writer: PageWriter) -> None:
        """The last page is about to go: readers are told that there is none, and the next record
        begins one. OSError: nothing has changed."""
        end = self.next_offset
        self.publish(Head(end, end, 0, self.last_time_us), False)
        self.pages.complete(writer)
        self.pages.writer = self.writer = None
        writer.close()

    def retain(
        self, max_age_s: float | None = None, max_bytes: int | None = None,
        max_records: int | None = None, *, now_us: int, keep_from: int | None = None,
    ) -> int:  # fmt: skip
        """Delete the pages that retention takes, now; how many went. max_age_s, max_bytes,
        max_records: None is no limit. now_us: microseconds since 1970. keep_from: the offset from
        which on all must stay, as for named readers. SyncFailedError stops the queue; OSError."""
        self._check_runs()
        found = self.plan_retain(
            max_age_s, max_bytes, max_records, now_us=now_us, keep_from=keep_from
        )
        if found is not None:
            self._guarded(found.run)
        return 0 if found is None else found.pages

    # ---- in a vhost ----------------------------------------------------------------------------

    def restore(self, position: Position) -> None:
        """Begin recovery: the state as a checkpoint kept it. Then `append` what the log has after
        it, with the times of then. Nothing is written. CorruptionError, OSError."""
        stream_start.restore(self, position)

    def finish_restore(self, held_at: int = -1) -> None:
        """Everything that the log has is appended: write it, publish the head (`held_at`, if it is
        not -1), cut what is beyond. Nothing is synced; `take_dirty` has it. OSError."""
        stream_start.finish_restore(self, held_at)

    def leftovers(self) -> list[str]:
        """Files of pages below the first one: a deletion that a crash cut short. OSError."""
        return stream_start.leftovers(self.fs, self.path, self.pages.first_base)

    def take_dirty(self) -> tuple[list[str], list[str]]:
        """(files, directories) written since the last call: what a checkpoint must sync for the
        `position` that it keeps, with `closed_file.sync_closed`; files may be gone by then."""
        found = list(self.dirty), list(self.dirty_directories)
        self.dirty, self.dirty_directories = {}, {}
        return found

    # ---- the end -------------------------------------------------------------------------------

    def release_handles(self) -> None:
        """Close all files; they are opened again when they are needed."""
        self.pages.close()
        if self.writer is not None:
            self.writer.close()
        if self._head_file is not None:
            self._head_file.close()
            self._head_file = None

    def close(self) -> None:
        """Alone: force, and let go of the lock. In a vhost: close the files, nothing is
        written. A second call does nothing. OSError, SyncFailedError: what was not forced may be
        lost."""
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
            self._let_go()

    def delete(self) -> None:
        """Close without writing, and delete the directory with all that is in it. OSError."""
        if not self.is_closed:
            self.is_closed = True
            self._let_go()
        self.failed = self.failed or StoppedError("it is deleted")
        delete_tree(self.fs, self.path)

    def release_lock(self) -> None:
        """In a forked child, which must not use it: let go of the copy of the lock."""
        if self._lock is not None:
            self._lock.release()

    def _let_go(self) -> None:
        self.release_handles()
        for full in self._full:
            full.close()
        if self._lock is not None:
            self._lock.release()
