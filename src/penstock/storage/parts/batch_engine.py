"""BatchEngine: decides batches (batches.py) and rolls them forward.

    check_pages (a worker) -> decide            one record: the batch belongs to its target
    Transaction.progress + publishes            a slice of a page, and how far it came, in one
                                                record; the caller reads (staging.StagedReader) and
                                                routes
    adopt                                       a whole page, one record, then files (adoption.py)

The owner of the engine rolls a decided batch forward, one slice at a time between other work; after
a crash it continues where the log says. Batches of one query follow one another: a new one is
decided only when the one before is done. Several batches for one stream are rolled forward one
after the other: each holds the stream's head from its first record to its last.

Checkpoints wait for running adoptions. A failed adoption, mostly for lack of space, is reported
once and tried again with each tick.
"""

from collections.abc import Callable
from typing import Final

from penstock.errors import SyncFailedError, deleted_error, has_no_descriptor, is_shortage
from penstock.storage.files.durability import DISK
from penstock.storage.journal.checkpoint import Checkpointer
from penstock.storage.journal.journal import Journal, Pins, Reserve
from penstock.storage.journal.record_types import BatchChange
from penstock.storage.pages import batches, staging
from penstock.storage.pages.adoption import Adoption
from penstock.storage.pages.batches import Batch, BatchFacts, BatchRecord, StagedPage
from penstock.storage.pages.streams import StoredStream
from penstock.storage.parts.stream_engine import StreamEngine

ADOPT_BYTES_MIN: Final = 4 << 20


class BatchEngine:
    """One per engine: `engine.batches`."""

    def __init__(
        self, journal: Journal, checkpoints: Checkpointer, streams: StreamEngine, reserve: Reserve,
        pins: Pins,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._checkpoints = checkpoints
        self._streams = streams
        self._reserve = reserve
        self._pins = pins
        self._running: Adoption | None = None  # in a worker
        self._is_failing: bool = False
        self._sweep: staging.Sweep | None = None  # the last one

    # ---- what there is -------------------------------------------------------------------------

    def batch(self, query: str) -> Batch | None:
        """Return the last batch of a query, done or not; None if there is none. Not to be
        changed."""
        return self._journal.state.batches.by_query.get(query)

    def all(self) -> list[Batch]:
        """Return the last batch of every query, in the order of their decisions."""
        found = list(self._journal.state.batches.by_query.values())
        found.sort(key=lambda batch: batch.time_us)
        return found

    def rolling(self) -> list[Batch]:
        """Return the batches that are not done, in the order of their decisions."""
        return [batch for batch in self.all() if not batch.is_done]

    # ---- deciding ------------------------------------------------------------------------------

    def decide(
        self, query: str, number: int, target: str, pages: list[StagedPage], *,
        facts: BatchFacts | None = None, is_checked: bool = False,
    ) -> bool:  # fmt: skip
        """Decide a batch: once `last_lsn` is durable its rows belong to the target (JSON, not
        interpreted here). Return False if this number or a later one was decided before; the caller
        compares the facts. is_checked: a worker has run staging.check_pages. StagingError: a page
        is missing or differs from its token; ValueError: the batch before is not done, or something
        is too long; DiskFullError: nothing happened."""
        journal = self._journal
        journal.check()
        table = journal.state.batches
        if number <= table.last_number(query):
            return False
        before = table.by_query.get(query)
        if before is not None and not before.is_done:
            raise ValueError(f"batch {before.number} of query {query!r} is not done yet")
        if not is_checked:
            staging.check_pages(journal.fs, journal.path, query, number, pages)
        if journal.blocked:
            journal.check_publish()
        if self._sweep is not None:
            self._sweep.keep(query, pages)
        last_us = max([one.time_us for one in table.by_query.values()], default=0)
        time_us = max(journal.clock.wall_us(), last_us)
        flags = batches.DECIDED if facts is None else batches.DECIDED_BY
        found = BatchRecord(query, number, time_us, target, tuple(pages), facts=facts)
        journal.commit([BatchChange(found, flags)], DISK)
        return True

    def forget(self, query: str, *, is_forced: bool = False) -> bool:
        """Forget a query; return False if it is not known. is_forced: also if its batch is not
        done, which loses what was not rolled forward; otherwise ValueError."""
        journal = self._journal
        journal.check()
        batch = self.batch(query)
        if batch is None:
            return False
        if not batch.is_done and not is_forced:
            raise ValueError(f"batch {batch.number} of query {query!r} is not done yet")
        found = BatchRecord(query, batch.number)
        journal.commit([BatchChange(found, batches.FORGOTTEN)], DISK)
        return True

    def disown(self, query: str) -> None:
        """Begin to delete what is staged of a query that is over, and its owner. Pages that its
        batch still has to move stay until the checkpoint that forgets the batch, and those that a
        backup may still copy until it ends."""
        journal = self._journal
        journal.check()
        fs, path = journal.fs, journal.path
        dead = (*journal.state.batches.dead, *self._checkpoints.dead_staged)
        kept = {name for of_query, name in dead if of_query == query}
        pinned = [at.rpartition("/") for at in self._pins.paths]
        directory = staging.query_path(path, query)
        kept.update([name for parent, _, name in pinned if parent == directory])
        journal.submit(lambda: staging.disown(fs, path, query, kept), _nothing, self._not_deleted)

    def abort(self, query: str, number: int) -> bool:
        """Begin to delete what is staged of a batch; return False if the batch was decided, and
        stays."""
        journal = self._journal
        journal.check()
        if number <= journal.state.batches.last_number(query):
            return False
        fs, path = journal.fs, journal.path
        journal.submit(
            lambda: staging.delete_batch(fs, path, query, number), _nothing, self._not_deleted
        )
        return True

    def sweep(self, older_than_s: float, done: Callable[[list[str]], None] | None = None) -> None:
        """Begin to delete what was staged longer ago than that and never decided, and what can no
        longer be decided; not while a backup copies. done: called with the paths."""
        journal = self._journal
        journal.check()
        if self._pins.count:
            return  # a backup is copying
        fs, path, now_us = journal.fs, journal.path, journal.clock.wall_us()
        sweep = self._sweep = staging.Sweep(journal.state.batches, self._checkpoints.dead_staged)

        def swept(result: object) -> None:
            assert isinstance(result, list)
            if done is not None:
                done(result)

        journal.submit(lambda: sweep.run(fs, path, older_than_s, now_us), swept, self._not_deleted)

    def _not_deleted(self, error: BaseException) -> None:
        self._journal.event("clean", f"a staged file could not be deleted: {error}")

    # ---- rolling forward -----------------------------------------------------------------------

    def _rolling(self, query: str) -> Batch:
        batch = self.batch(query)
        if batch is None or batch.is_done:
            raise ValueError(f"no batch of query {query!r} is to be rolled forward")
        return batch

    def can_adopt(self, query: str) -> bool:
        """Return whether the next page is large enough and whole."""
        batch = self._rolling(query)
        return batch.frame == 0 and batch.current.bytes >= ADOPT_BYTES_MIN

    def adopt(self, query: str, stream: StoredStream) -> int:
        """Make the next page of the batch the next page of the stream; return its base offset. The
        record has the LSN `last_lsn`; a worker places the files. UnknownQueueError (the stream was
        deleted), DiskFullError, ValueError: nothing happened."""
        journal = self._journal
        journal.check()
        batch = self._rolling(query)
        if stream.is_deleted:
            raise deleted_error(stream.name)
        if batch.frame:
            raise ValueError(f"page {batch.page} of query {query!r} is at frame {batch.frame}")
        if journal.blocked:
            journal.check_publish()
        page, base = batch.page, stream.next_offset
        time_us = max(batch.time_us, stream.queue.last_time_us)
        found = BatchRecord(
            query, batch.number, time_us, page=page, stream=stream.number, base=base
        )  # fmt: skip
        journal.commit([BatchChange(found, batches.ADOPTED)], DISK)
        self.place()
        return base

    # ---- adoptions -----------------------------------------------------------------------------

    def place(self) -> None:
        """Begin to place the files of the next adopted page, if none is running; also called
        by tick. One after the other, because two workers would have the interpreter's lock
        too often."""
        journal = self._journal
        waiting = journal.state.streams.adopting
        if waiting and self._running is None and journal.failed is None:
            self._start(*waiting[0])

    def _start(self, stream: StoredStream, adoption: Adoption) -> None:
        journal = self._journal

        def done(_: object) -> None:
            self._running = None
            self._is_failing = False
            if adoption.damage:
                journal.event("corruption", f"an adopted page: {adoption.damage}")
            journal.state.streams.placed(stream, adoption)
            self.place()
            self._streams.turn()

        def failed(error: BaseException) -> None:
            self._running = None
            if isinstance(error, SyncFailedError) or not isinstance(error, OSError):
                journal.stop(error)
                return
            if is_shortage(error) and not has_no_descriptor(error):
                # Checkpoints, which free space, wait for it, so it may use the reserve.
                self._reserve.release()
            if not self._is_failing:
                self._is_failing = True
                journal.event("stream_write", f"an adopted page is not in place yet: {error}")
                journal.disk_full(error, adoption.writer.count * 16)

        self._running = adoption
        journal.submit(adoption.run, done, failed)

    def finish_adoptions(self) -> bool:
        """Wait for the running adoptions; return False if one fails, which is tried again later."""
        journal = self._journal
        self.place()
        while self._running is not None:
            journal.push()
        return not journal.state.streams.adopting


def _nothing(_: object) -> None:
    pass
