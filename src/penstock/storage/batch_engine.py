"""BatchEngine: what an engine does for batches (batches.py): deciding them, rolling them forward.

    check_pages (a worker) -> decide            one record: the batch belongs to its target
    Transaction.progress + publishes            a slice of a page, and how far it came, in one
                                                record; reading (staged_reader.py) and routing are
                                                the caller's
    adopt                                       a whole page, one record, then files (adoption.py)

A batch that was decided is rolled forward by whoever drives the engine, one slice at a time between
other work; after a crash from where the log says. Batches of one query follow one another: a new
one is decided only when the one before is done. Who rolls several batches into one stream does it
one batch after the other: each holds the stream's head from its first record to its last.

Adoptions under way are waited for by whatever makes a checkpoint. One that fails, for want of space
as a rule, is told once and tried again with each tick.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.errors import SyncFailedError, deleted_error, is_disk_full
from penstock.storage import batches, record, staging
from penstock.storage.adoption import Adoption
from penstock.storage.batches import Batch, BatchFacts, BatchRecord, StagedPage
from penstock.storage.durability import DISK
from penstock.storage.parts import append_ops
from penstock.storage.streams import Stream

if TYPE_CHECKING:
    from penstock.storage.engine import StorageEngine

ADOPT_BYTES_MIN: Final = 4 << 20


class BatchEngine:
    """One per engine: `engine.batches`."""

    def __init__(self, engine: "StorageEngine") -> None:
        self._engine = engine
        self._running: Adoption | None = None  # in a worker
        self._is_failing: bool = False

    # ---- what there is -------------------------------------------------------------------------

    def batch(self, query: str) -> Batch | None:
        """The last batch of a query, done or not; None if there is none. Not to be changed."""
        return self._engine.state.batches.by_query.get(query)

    def all(self) -> list[Batch]:
        """The last batch of every query, in the order of their decisions."""
        found = list(self._engine.state.batches.by_query.values())
        found.sort(key=lambda batch: batch.time_us)
        return found

    def rolling(self) -> list[Batch]:
        """Those that are not done, in the order of their decisions."""
        return [batch for batch in self.all() if not batch.is_done]

    # ---- deciding ------------------------------------------------------------------------------

    def decide(
        self, query: str, number: int, target: str, pages: list[StagedPage], *,
        facts: BatchFacts | None = None, is_checked: bool = False,
    ) -> bool:  # fmt: skip
        """Decide a batch: once `last_lsn` is durable its rows belong to the target (JSON, whatever
        the caller understands). False: this batch, or a later one, was decided before; whether it
        is the same one is for the caller to find out, by its facts. is_checked:
        staging.check_pages was run already, in a worker. StagingError: a page is missing or is not
        what its token says; ValueError: the batch before is not done, or something is too long;
        DiskFullError: nothing happened."""
        engine = self._engine
        engine.check()
        table = engine.state.batches
        if number <= table.last_number(query):
            return False
        before = table.by_query.get(query)
        if before is not None and not before.is_done:
            raise ValueError(f"batch {before.number} of query {query!r} is not done yet")
        if not is_checked:
            staging.check_pages(engine.fs, engine.path, query, number, pages)
        if engine.blocked:
            engine.refuse()
        time_us = max(engine.clock.wall_us(), max([b.time_us for b in self.all()], default=0))
        flags = batches.DECIDED if facts is None else batches.DECIDED_BY
        data = batches.decided_data(query, number, time_us, target, pages, facts)
        lsn = append_ops(engine, [record.Op(record.BATCH, flags, len(pages), data)], DISK)
        found = BatchRecord(query, number, time_us, target, tuple(pages), facts=facts)
        engine.state.apply_batch(lsn, flags, found)
        engine.state.end_record(lsn)
        return True

    def forget(self, query: str, *, is_forced: bool = False) -> bool:
        """Forget a query; False if nothing is known of it. ValueError: its batch is not done, and
        is_forced, which throws away what was not rolled forward, is not set."""
        engine = self._engine
        engine.check()
        batch = self.batch(query)
        if batch is None:
            return False
        if not batch.is_done and not is_forced:
            raise ValueError(f"batch {batch.number} of query {query!r} is not done yet")
        data = batches.forgotten_data(query, batch.number)
        lsn = append_ops(engine, [record.Op(record.BATCH, batches.FORGOTTEN, 0, data)], DISK)
        engine.state.apply_batch(lsn, batches.FORGOTTEN, BatchRecord(query, batch.number))
        engine.state.end_record(lsn)
        return True

    def disown(self, query: str) -> None:
        """Begin to delete what is staged of a query that is over, and whose it was. What a batch of
        it still has to move stays until the checkpoint that forgets it."""
        engine = self._engine
        engine.check()
        fs, path = engine.fs, engine.path
        dead = (*engine.state.batches.dead, *engine.checkpoints.dead_staged)
        kept = {name for of_query, name in dead if of_query == query}
        engine.submit(lambda: staging.disown(fs, path, query, kept), _nothing, self._not_deleted)

    def abort(self, query: str, number: int) -> bool:
        """Begin to delete what is staged of a batch; False if it was decided: that stays."""
        engine = self._engine
        engine.check()
        if number <= engine.state.batches.last_number(query):
            return False
        fs, path = engine.fs, engine.path
        engine.submit(
            lambda: staging.delete_batch(fs, path, query, number), _nothing, self._not_deleted
        )
        return True

    def sweep(self, older_than_s: float, done: Callable[[list[str]], None] | None = None) -> None:
        """Begin to delete what was staged longer ago than that and never decided, and what can no
        longer be; not while a backup copies. done: told the paths."""
        engine = self._engine
        engine.check()
        if engine.pins:
            return  # a backup is copying
        fs, path, now_us = engine.fs, engine.path, engine.clock.wall_us()
        sweep = staging.Sweep(engine.state.batches, engine.checkpoints.dead_staged)

        def tell(result: object) -> None:
            assert isinstance(result, list)
            if done is not None:
                done(result)

        engine.submit(lambda: sweep.run(fs, path, older_than_s, now_us), tell, self._not_deleted)

    def _not_deleted(self, error: BaseException) -> None:
        self._engine.event("clean", f"a staged file could not be deleted: {error}")

    # ---- rolling forward -----------------------------------------------------------------------

    def _rolling(self, query: str) -> Batch:
        batch = self.batch(query)
        if batch is None or batch.is_done:
            raise ValueError(f"no batch of query {query!r} is to be rolled forward")
        return batch

    def can_adopt(self, query: str) -> bool:
        """Whether the page that comes next is large enough, and whole."""
        batch = self._rolling(query)
        return batch.frame == 0 and batch.current.bytes >= ADOPT_BYTES_MIN

    def adopt(self, query: str, stream: Stream) -> int:
        """The page that comes next becomes the stream's next one; its base offset. The record of it
        has the LSN `last_lsn`; its files are placed by a worker. UnknownQueueError (the stream was
        deleted), DiskFullError, ValueError: nothing happened."""
        engine = self._engine
        engine.check()
        batch = self._rolling(query)
        if stream.is_deleted:
            raise deleted_error(stream.name)
        if batch.frame:
            raise ValueError(f"page {batch.page} of query {query!r} has gone on to {batch.frame}")
        if engine.blocked:
            engine.refuse()
        page, base = batch.page, stream.next_offset
        time_us = max(batch.time_us, stream.queue.last_time_us)
        data = batches.adopted_data(query, batch.number, page, stream.number, base, time_us)
        lsn = append_ops(engine, [record.Op(record.BATCH, batches.ADOPTED, 0, data)], DISK)
        found = BatchRecord(
            query, batch.number, time_us, page=page, stream=stream.number, base=base
        )  # fmt: skip
        engine.state.apply_batch(lsn, batches.ADOPTED, found)
        engine.state.end_record(lsn)
        self.place()
        return base

    # ---- adoptions -----------------------------------------------------------------------------

    def place(self) -> None:
        """Begin to place the files of the next adopted page, if none is under way; also called by
        tick. One after the other: two workers would have the interpreter's lock too often."""
        engine = self._engine
        waiting = engine.state.streams.adopting
        if waiting and self._running is None and engine.failed is None:
            self._start(*waiting[0])

    def _start(self, stream: Stream, adoption: Adoption) -> None:
        engine = self._engine

        def done(_: object) -> None:
            self._running = None
            self._is_failing = False
            if adoption.damage:
                engine.event("corruption", f"an adopted page: {adoption.damage}")
            engine.state.streams.placed(stream, adoption)
            self.place()
            engine.turns.turn()

        def failed(error: BaseException) -> None:
            self._running = None
            if isinstance(error, SyncFailedError) or not isinstance(error, OSError):
                engine.stop(error)
                return
            if is_disk_full(error):
                # Checkpoints, which give room back, wait for it: the reserve is for both.
                engine.upkeep.reserve.release()
            if not self._is_failing:
                self._is_failing = True
                engine.event("stream_write", f"an adopted page is not in its place yet: {error}")
                engine.disk_full(error, adoption.writer.count * 16)

        self._running = adoption
        engine.submit(adoption.run, done, failed)

    def finish_adoptions(self) -> bool:
        """Wait for those that are under way; False if one fails, and is to be tried later."""
        engine = self._engine
        self.place()
        while self._running is not None:
            engine.log.flush()
            engine.after_log()
            engine.poll(wait=True)
            engine.check()
        return not engine.state.streams.adopting


def _nothing(_: object) -> None:
    pass
