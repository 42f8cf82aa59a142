"""What an engine does with its streams: writing at the end of a turn, heads, retention, creation.

StreamWriter writes what a turn of the vhost appended to its streams:

    turn      for each stream that was appended to: one pwrite of its frames, no sync; then a Turn
              (LSN, mode, position) waits for the log
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

    numbers are taken -> directories, one by one -> their names synced -> done -> declare_streams

Nothing names the directories until `StorageEngine.declare_streams` appends a TOPOLOGY record. A
crash before that leaves orphans, which the next start deletes.

Failure. A failed write of frames loses nothing, because the log has them: they stay in RAM, the
head stays, the failure is reported once (event `stream_write`; a full disk also blocks publishers),
and the next turn tries again. A checkpoint needs the frames, and handles the error like that of any
other file. A failed sync of readMeta stops the engine [10]. After that nothing is written.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import SyncFailedError, is_shortage
from penstock.storage.files.data_directory import sync_dir
from penstock.storage.journal.journal import Journal, Pins
from penstock.storage.pages.persistent_queue import Hold
from penstock.storage.pages.stream_meta import StreamHead
from penstock.storage.pages.streams import StoredStream, StreamTable, Turn, remove_tree


class StreamLimits(NamedTuple):
    """What retention keeps of a stream: seconds, bytes and records, None for no limit. since_ms:
    the time (ms since 1970) from which on a reader must have reported to hold records, by at most
    hold_age_s and hold_bytes more than the limits; None for no bound."""

    max_age_s: float | None
    max_bytes: int | None
    max_records: int | None
    since_ms: int
    hold_age_s: float | None = None
    hold_bytes: int | None = None


class StreamWriter:
    """Writes and trims the streams of one engine. on_head: called when a head has moved; None for
    no call."""

    def __init__(self, journal: Journal, pins: Pins) -> None:
        self._journal = journal
        self._pins = pins
        self._table: StreamTable = journal.state.streams
        self.on_head: Callable[[StoredStream], None] | None = None
        self._waiting: dict[int, StoredStream] = {}  # with turns that are not settled

    def turn(self) -> None:
        """End a turn: write what was appended, move the heads of what is settled. Cheap if there is
        nothing to do, as in most turns."""
        table = self._table
        if table.dirty and self._journal.failed is None:
            dirty, table.dirty = table.dirty, []
            for stream in dirty:
                if stream.queue.is_closed:
                    continue
                if stream.lsn and not stream.is_deleted:
                    position = stream.queue.position()
                    stream.turns.append(Turn(stream.lsn, stream.mode, position))
                    stream.lsn = stream.mode = 0
                self._waiting[stream.number] = stream
                try:
                    stream.queue.write()
                    table.used(stream)
                    stream.is_dirty = stream.is_failing = False
                except OSError as error:
                    table.dirty.append(stream)
                    self._report_write(stream, error)
        if self._waiting:
            self.settle()

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
        moved = [stream for stream in self._waiting.values() if self._move_head(stream)]
        for stream in moved:
            if not stream.turns:
                del self._waiting[stream.number]
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

    def retain(self, stream: StoredStream, limits: StreamLimits) -> int:
        """Begin to delete the oldest pages that neither limits, readers nor durability require;
        return how many. Readers no longer see them when this returns."""
        journal = self._journal
        if stream.is_retaining or stream.is_deleted:
            return 0
        is_durable = journal.log.durable_lsn >= stream.last_lsn
        keep_from = stream.head_offset if is_durable else stream.base_kept
        kept = stream.kept_from(limits.since_ms)
        hold = None if kept is None else Hold(kept, limits.hold_age_s, limits.hold_bytes)
        try:
            plan = stream.queue.plan_retain(
                limits.max_age_s, limits.max_bytes, limits.max_records,
                now_us=journal.clock.wall_us(), keep_from=keep_from, hold=hold,
            )  # fmt: skip
        except OSError as error:  # of writeMeta, for example: the next call tries again
            self._report_kept(stream, error)
            return 0
        if plan is None:
            return 0
        stream.section = None
        is_pinned = self._pins.count > 0  # a backup copies: nothing is deleted until it is done
        if is_pinned:
            self._pins.paths += plan.paths

        def done(_: object) -> None:
            stream.is_retaining = False

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
