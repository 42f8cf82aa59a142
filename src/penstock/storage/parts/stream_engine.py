"""StreamEngine declares the streams of an engine, appends to them, moves their heads, trims them.

    append    logs a record as StorageEngine.publish does, and gives it an offset
    turn      for each stream that was appended to: one pwrite of its frames, no sync; then a Turn
              (LSN, mode, position) waits for the log. If `is_sliced`, large records are written
              over several turns
    settle    finds the newest Turn whose LSN is settled in its mode and whose frames are written,
              moves writeMeta there, and calls `on_head`: once per stream, whatever the number of
              records
    retain    deletes whole pages from the oldest: readMeta durable, then unlinked, in a worker

While a batch is rolled forward into a stream, the stream's head waits where the batch began, so
that readers see the whole batch or nothing of it.

A head is never beyond what is settled, nor beyond what is in the page file. Readers map the file up
to the head, so no byte below it ever changes: recovery writes the same bytes there.

StreamCreation creates the directories of streams before they are declared. A stream of 256
partitions has 256 directories, with three syncs each. The file system's worker makes them, one
directory per call, so that other work for the disk (the sync of the log) can run in between:

    numbers are taken -> directories, one by one -> their names synced -> done -> declare

Nothing names the directories until `StreamEngine.declare` appends a TOPOLOGY record. A
crash before that leaves orphans, which the next start deletes.

Failure. A failed write of frames loses nothing, because the log has them: they stay in RAM, the
head stays, the failure is reported once (event `stream_write`; a full disk also blocks publishers),
and the next turn tries again. A checkpoint needs the frames, and handles the error like that of any
other file. A failed sync of readMeta stops the engine [10]. After that nothing is written.
"""

import random
from collections.abc import Callable
from typing import Final

from penstock.errors import (
    DiskFullError,
    SyncFailedError,
    UnknownQueueError,
    deleted_error,
    is_shortage,
)
from penstock.fast_crc import BodyPieces
from penstock.storage.files.data_directory import sync_dir
from penstock.storage.files.durability import DISK, NONE, OS
from penstock.storage.index.routing_table import DurableQueue
from penstock.storage.journal.journal import Journal, Pins
from penstock.storage.journal.record_types import (
    Append,
    Delete,
    LogOperation,
    ReaderOffsetChange,
    TopologyChange,
)
from penstock.storage.log import record
from penstock.storage.pages.page import UNLIMITED
from penstock.storage.pages.persistent_queue import Hold
from penstock.storage.pages.stream_meta import StreamHead
from penstock.storage.pages.streams import STREAM_FLAG, StoredStream, StreamTable, Turn, remove_tree

SLICE_BYTES: Final = 4 << 20  # of large records that one turn writes: some ms


class StreamEngine:
    """The streams of one engine. on_head: called when a head has moved, must not call
    the engine; None for no call. is_sliced: the owner runs another turn soon while `has_unwritten`.
    """

    def __init__(self, journal: Journal, rng: random.Random, pins: Pins) -> None:
        self._journal = journal
        self._rng = rng
        self._pins = pins
        self._table: StreamTable = journal.state.streams
        self.on_head: Callable[[StoredStream], None] | None = None
        self.is_sliced: bool = False
        self.has_unwritten: bool = False

    @property
    def by_number(self) -> dict[int, StoredStream]:
        """All streams, by number. Read-only."""
        return self._table.by_number

    def find(self, name: bytes) -> StoredStream | None:
        """Return the stream of this name (of a partition: `name NUL p<i>`), or None."""
        return self._table.by_name.get(name)

    def get(self, name: bytes) -> StoredStream:
        """Return the stream of this name (of a partition: `name NUL p<i>`). UnknownQueueError."""
        stream = self._table.by_name.get(name)
        if stream is None:
            raise UnknownQueueError(name.decode("utf-8", "replace"))
        return stream

    def create(
        self, names: list[bytes], page_bytes: int, done: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> "StreamCreation":  # fmt: skip
        """Return the work that makes the directories of streams for `declare`, in a worker;
        its `start` begins."""
        return StreamCreation(self._journal, self._rng, names, page_bytes, done, failed)

    def declare(
        self, declared: list[tuple[bytes, bytes, int]], *, page_bytes: int,
        made: list[StoredStream] | None = None,
    ) -> list[StoredStream]:  # fmt: skip
        """Declare streams (name, arguments, flags): a crash leaves all of them or none.

        All exist for good once `last_lsn` is settled. page_bytes: of a page, 4 KiB to 1 GiB as a
        rule. made: the streams of these names from a StreamCreation; without it this call makes and
        syncs their directories, and waits for the disk. ValueError (a name is taken or comes
        twice), DiskFullError: nothing happened. A failed sync stops the engine.
        """
        journal, table = self._journal, self._table
        journal.check()
        state = journal.state
        first = made[0].number if made else state.next_queue
        if len({name for name, _, _ in declared}) != len(declared):
            raise ValueError("a stream's name comes twice in one declare")
        if made and [stream.name for stream in made] != [name for name, _, _ in declared]:
            raise ValueError("the streams that were made are not those that are declared")
        records = [
            DurableQueue(name, first + i, flags | STREAM_FLAG, arguments).record()
            for i, (name, arguments, flags) in enumerate(declared)
        ]
        streams: list[StoredStream] = [] if made is None else made
        for data in records:
            state.check_topology(data, is_stream=True)
        try:
            if made is None:
                for i, (name, _, _) in enumerate(declared):
                    one = table.make(name, first + i, page_bytes, journal.clock, self._rng)
                    streams.append(one)
                    table.keep_made(one)
                sync_dir(journal.fs, table.path)
            operations: list[LogOperation] = [TopologyChange(data) for data in records]
            lsn = journal.append(operations, DISK)
        except BaseException as error:
            table.forget_made(streams)
            if isinstance(error, SyncFailedError):
                journal.stop(error)
            elif isinstance(error, OSError):
                raise journal.disk_full(error, page_bytes) from error
            raise
        journal.apply(operations, lsn, DISK)
        return [table.by_number[first + i] for i in range(len(records))]

    def append(
        self, stream: StoredStream, header: bytes, body: bytes, mode: int, time_us: int = 0
    ) -> int:
        """Append a record to a stream; return its offset. Its record in the log has the LSN
        `last_lsn`; readers see it once the head has passed it. Mode NONE counts as OS. time_us:
        microseconds since 1970, 0 for now; never less than that of the record before [12].
        DiskFullError, UnknownQueueError (it was deleted), ValueError (too long): nothing
        happened."""
        time_us = self._begin_append(stream, header, len(body), time_us)
        journal = self._journal
        if mode == NONE:
            mode = OS
        offset = stream.queue.next_offset
        if journal.gathering is not None:
            found = record.StreamData(stream.number, offset, time_us, header, body)
            journal.commit([Append(found)], mode)
            return offset
        try:
            lsn = journal.log.append_stream(stream.number, offset, time_us, header, body, mode)
        except DiskFullError as error:
            raise journal.full(error) from None
        self._logged(stream, lsn, mode, time_us, header, body)
        return offset

    def append_large(self, stream: StoredStream, header: bytes, body: BodyPieces, mode: int) -> int:
        """Append a record with a body in pieces, one at least, which are not copied: as
        `append`."""
        time_us = self._begin_append(stream, header, body.size, 0)
        journal = self._journal
        if mode == NONE:
            mode = OS
        offset = stream.queue.next_offset
        try:
            lsn = journal.log.append_large(stream.number, offset, time_us, header, body, mode)
        except DiskFullError as error:
            raise journal.full(error) from None
        self._logged(stream, lsn, mode, time_us, header, b"", body)
        return offset

    def _begin_append(self, stream: StoredStream, header: bytes, size: int, time_us: int) -> int:
        """Check that a record with a body of so many bytes can be appended; return its time."""
        journal = self._journal
        if journal.failed is not None or journal.blocked or journal.is_closed:
            journal.check_publish()
        if stream.is_deleted:
            raise deleted_error(stream.name)
        queue = stream.queue
        queue.check(size, header)
        if not time_us:
            time_us = journal.clock.wall_us()
        return max(time_us, queue.last_time_us)

    def _logged(
        self, stream: StoredStream, lsn: int, mode: int, time_us: int, header: bytes, body: bytes,
        large: BodyPieces | None = None,
    ) -> None:  # fmt: skip
        """Take a record that is in the log now. large: its body, if that is in pieces."""
        journal = self._journal
        try:
            self._table.append(stream, lsn, mode, time_us, header, body, large)
        except BaseException as error:
            journal.stop(error)  # the log is ahead of RAM: only recovery can continue
            raise
        if journal.log.is_full:
            journal.wait_for_room()

    def set_reader(
        self, stream: StoredStream, reader: str, offset: int, mode: int,
        kept_from: int | None = None,
    ) -> int:  # fmt: skip
        """Log that a named reader has read all below `offset`; retention keeps all from `kept_from`
        on, if that is given. Returns the LSN. UnknownQueueError, ValueError: nothing happened."""
        time_ms = self._journal.clock.wall_ms()
        kept = record.NOT_KEPT if kept_from is None else kept_from
        return self._log_reader(stream, reader, (offset, kept, time_ms), 0, mode)

    def delete_reader(self, stream: StoredStream, reader: str, mode: int) -> int:
        """Forget a named reader, if there is one of that name; return the LSN."""
        if reader not in stream.readers:
            return self._journal.log.last_lsn
        return self._log_reader(stream, reader, (0, 0, 0), record.READER_DELETED, mode)

    def _log_reader(
        self, stream: StoredStream, reader: str, values: tuple[int, int, int], flags: int, mode: int
    ) -> int:
        self._journal.check()
        if stream.is_deleted:
            raise deleted_error(stream.name)
        name = reader.encode()
        if not 0 < len(name) <= 0xFFFF:
            raise ValueError(f"a reader's name has 1 to 65535 bytes, not {len(name)}")
        if min(values[:2]) < 0 or max(values[:2]) > record.NOT_KEPT:
            raise ValueError(f"a reader's offset is 0 or more, not {min(values[:2])}")
        found = record.ReaderData(stream.number, *values, name)
        return self._journal.commit([ReaderOffsetChange(found, flags)], mode)

    def delete(self, streams: list[StoredStream], mode: int = DISK) -> int:
        """Delete streams with all that they hold; a crash leaves all of them or none. Returns the
        LSN. UnknownQueueError (one is deleted already): nothing happened."""
        self._journal.check()
        for stream in streams:
            if stream.is_deleted:
                raise deleted_error(stream.name)
        return self._journal.commit([Delete(stream.number) for stream in streams], mode)

    # ---- the end of a turn -----------------------------------------------------------------------

    def turn(self) -> None:
        """End a turn: write what was appended, move the heads of what is settled."""
        table = self._table
        self.has_unwritten = False
        if table.dirty and self._journal.failed is None:
            left = self._most_of_turn(table.dirty)
            behind: list[StoredStream] = []  # this turn had no room for their large records
            later: list[StoredStream] = []
            for stream in table.dirty:
                if stream.queue.is_closed:
                    continue
                if stream.lsn and not stream.is_deleted:
                    position = stream.queue.position()
                    stream.turns.append(Turn(stream.lsn, stream.mode, position))
                    stream.lsn = stream.mode = 0
                table.waiting[stream.number] = stream
                try:
                    has_room = left > 0
                    left -= table.write_one(stream, left)
                    table.used(stream)
                    stream.is_failing = False
                    if stream.queue.unwritten_bytes:
                        (later if has_room else behind).append(stream)
                        self.has_unwritten = True
                    else:
                        stream.is_dirty = False
                except OSError as error:
                    later.append(stream)
                    self._report_write(stream, error)
            table.dirty = behind + later  # all stay in it after an unexpected error
        if table.waiting:
            self.settle()

    def write_rest(self) -> None:
        """Write what turns have left of large records, and move the heads over it."""
        while self.has_unwritten:
            self.turn()

    def _most_of_turn(self, dirty: list[StoredStream]) -> int:
        """Return how many bytes of large records this turn may write: SLICE_BYTES, or an eighth of
        what is to be written, so that it never becomes more than eight turns bring."""
        if not self.is_sliced:
            return UNLIMITED
        unwritten = sum([stream.queue.unwritten_bytes for stream in dirty])
        return max(SLICE_BYTES, unwritten >> 3)

    def _report_write(self, stream: StoredStream, error: OSError) -> None:
        if not stream.is_failing:
            stream.is_failing = True
            journal = self._journal
            text = f"frames stay in RAM and in the log, to be written later: {error}"
            journal.event("stream_write", text)
            if is_shortage(error):
                journal.disk_full(error, 0)

    def settle(self) -> None:
        """Move the heads to what is settled by now."""
        if self._journal.failed is not None:
            return
        waiting = self._table.waiting
        moved = [stream for stream in waiting.values() if self._move_head(stream)]
        for stream in moved:
            if not stream.turns:
                del waiting[stream.number]
        on_head = self.on_head
        if on_head is not None:
            for stream in moved:
                if not stream.is_deleted:
                    on_head(stream)

    def _move_head(self, stream: StoredStream) -> bool:
        """Move the head to the newest turn that is settled and written. Return whether there was
        one, or the stream is deleted."""
        log = self._journal.log
        turns = stream.turns
        written = stream.queue.written_offset
        newest: Turn | None = None
        while turns:
            turn = turns[0]
            if turn.lsn > log.settled(turn.mode) or turn.position.next_offset > written:
                break
            if 0 <= stream.held_at < turn.position.next_offset:
                break
            newest = turns.popleft()
        if newest is None:
            return stream.is_deleted
        p = newest.position
        try:
            head = StreamHead(p.next_offset, p.page_base, p.page_bytes, p.last_time_us)
            stream.queue.publish(head, False)
        except OSError as error:
            turns.appendleft(newest)
            self._report_write(stream, error)
            return False
        return True

    # ---- retention -----------------------------------------------------------------------------

    def retain(
        self, stream: StoredStream, *, max_age_s: float | None = None, max_bytes: int | None = None,
        max_records: int | None = None, since_ms: int = 0, hold_age_s: float | None = None,
        hold_bytes: int | None = None,
    ) -> int:  # fmt: skip
        """Delete the oldest whole pages beyond any of these limits; return how many.

        The active page is deleted only if all of it is older than max_age_s. Pages stay that have
        records which are not durable yet, or that a reader keeps which was heard of since
        `since_ms` (ms since 1970), for at most hold_age_s and hold_bytes beyond the limits.
        """
        journal = self._journal
        journal.check()
        if stream.is_retaining or stream.is_deleted:
            return 0
        is_durable = journal.log.durable_lsn >= stream.last_lsn
        keep_from = stream.head_offset if is_durable else stream.base_kept
        kept = stream.kept_from(since_ms)
        hold = None if kept is None else Hold(kept, hold_age_s, hold_bytes)
        first = stream.first_offset
        try:
            plan = stream.queue.plan_retain(
                max_age_s, max_bytes, max_records,
                now_us=journal.clock.wall_us(), keep_from=keep_from, hold=hold,
            )  # fmt: skip
        except OSError as error:  # of writeMeta, for example: the next call tries again
            self._report_kept(stream, error)
            return 0
        if plan is None:
            return 0
        self._table.retained_records += stream.first_offset - first
        stream.section = None
        pins = self._pins
        is_pinned = pins.count > 0  # a backup copies: nothing is deleted until it is done

        def done(_: object) -> None:
            stream.is_retaining = False
            if is_pinned and pins.count:
                pins.paths += plan.paths
            elif is_pinned:
                journal.delete_files(plan.paths, [])

        def failed(error: BaseException) -> None:
            stream.is_retaining = False
            if isinstance(error, SyncFailedError):
                journal.stop(error)
            else:
                self._report_kept(stream, error)

        stream.is_retaining = True
        journal.submit(lambda: plan.run(unlink=not is_pinned), done, failed)
        return plan.pages

    def _report_kept(self, stream: StoredStream, error: BaseException) -> None:
        text = f"pages of {stream.path} could not be deleted: {error}"
        self._journal.event("stream_write", text)


class StreamCreation:
    """Creates streams of these names. rng: the engine's. `done()` or `failed(error)` is called when
    the worker's result is taken; after that `made` has all streams, or none. A failed sync stops
    the engine."""

    def __init__(
        self, journal: Journal, rng: random.Random, names: list[bytes], page_bytes: int,
        done: Callable[[], None], failed: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        journal.check()
        self.made: list[StoredStream] = []
        self._journal = journal
        self._names = names
        self._page_bytes = page_bytes
        self._done = done
        self._failed = failed
        self._is_cancelled = False
        # A generator of its own, because the engine's belongs to the engine's thread.
        self._rng = random.Random(rng.getrandbits(64))
        self._first: int = journal.state.next_queue
        journal.state.next_queue += len(names)

    def start(self) -> None:
        """Begin, or continue with the next directory."""
        op = self._make_next if len(self.made) < len(self._names) else self._sync_names
        self._journal.submit(op, self._step_done, self._step_failed)

    def discard(self) -> None:
        """Delete the directories of streams that will not be declared."""
        journal, made = self._journal, self.made
        self.made = []
        self._is_cancelled = True
        table = journal.state.streams
        table.forget_made(made)
        paths = [
            table.directory(name, self._first + i)
            for i, name in enumerate(self._names[: len(made) + 1])
        ]
        fs = journal.fs

        def delete() -> None:
            for path in paths:
                remove_tree(fs, path)

        journal.submit(delete, _nothing, self._not_deleted)

    def cancel(self) -> None:
        """Stop because the engine is about to be closed. The next start deletes the directories."""
        self._is_cancelled = True

    # ---- in the worker -------------------------------------------------------------------------

    def _make_next(self) -> StoredStream:
        i = len(self.made)
        journal = self._journal
        return journal.state.streams.make(
            self._names[i], self._first + i, self._page_bytes, journal.clock, self._rng
        )

    def _sync_names(self) -> None:
        sync_dir(self._journal.fs, self._journal.state.streams.path)

    # ---- at the engine -------------------------------------------------------------------------

    def _step_done(self, result: object) -> None:
        if isinstance(result, StoredStream):
            self._journal.state.streams.keep_made(result)
            self.made.append(result)
        if self._is_cancelled:
            return
        if isinstance(result, StoredStream):
            self.start()
        else:
            self._done()

    def _step_failed(self, error: BaseException) -> None:
        journal = self._journal
        if isinstance(error, SyncFailedError):
            journal.stop(error)
            return
        if not isinstance(error, OSError):
            raise error
        if self._is_cancelled:
            return
        self.discard()
        self._failed(journal.disk_full(error, self._page_bytes))

    def _not_deleted(self, error: BaseException) -> None:
        self._journal.event(
            "clean", f"directories of undeclared streams could not be deleted: {error}"
        )


def _nothing(_: object) -> None:
    pass
