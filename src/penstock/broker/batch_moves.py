"""Batch moves: a batch that was decided is rolled forward to its target, in slices between turns.

From the decision on the messages of a batch belong to its target, but they are still in staged
pages. A BatchMove takes them there: a chore (chores.py), which never runs ahead of the log, and
rests while publishers are blocked.

    page of 4 MiB or more, for a stream of one partition    the stream adopts the page as it is
    else     a worker reads and verifies the next 1024 messages or 1 MiB, while those before are
             moved in slices: up to 1024 messages, or what takes a millisecond or two; each is one
             record of the log, with how far the batch has come. In a slice, messages that are
             alike but for their bodies, and go to one queue, are one step

So after a crash the move goes on where the log says, neither losing nor repeating a message. Each
query has one move at most: its batches go one after the other. Streams show a batch whole: their
heads wait until it is done, also across a crash; of several queries one at a time writes into a
stream (BatchDesk.claim), for a head waits for all that have begun.

**A batch that cannot go on** (its target was deleted and no queue for dead letters is named, the
disk is full, a staged page is damaged) loses nothing: it waits, and is tried again every second.
Why is told by `list_batches` (waits_for), and as an event, `batch_waits`, at once and every hour.

Not here: what a slice does with a message (batch_slices.py), who decides (batch_desk.py), staged
pages and adoption (penstock.storage).
"""

from typing import TYPE_CHECKING, Final

from penstock.broker.batch_slices import BatchSlice, BatchSlices, BatchWaitsError
from penstock.broker.batch_target import BatchTarget
from penstock.broker.chores import AGAIN, ASLEEP, DONE, Chore, Pace, SliceSize
from penstock.broker.served_stream import ServedStream
from penstock.errors import PenstockError
from penstock.storage.batches import Batch
from penstock.storage.page import StreamRecord
from penstock.storage.staged_reader import StagedReader
from penstock.storage.staging import query_path

if TYPE_CHECKING:
    from penstock.access.permissions import Identity
    from penstock.broker.batch_desk import BatchDesk
    from penstock.broker.vhost import VHost

READ_RECORDS: Final = 1024
READ_BYTES: Final = 1 << 20
SLICE_MESSAGES: Final = 1024
RETRY_S: Final = 1.0
REPEAT_S: Final = 3600.0  # between two events that say the same


class PageReading:
    """What is read ahead of one staged page. wake(): there is something, or an error."""

    def __init__(self, move: "BatchMove", batch: Batch) -> None:
        self.key: tuple[int, int] = batch.number, batch.page
        self._move = move
        self._engine = move.vhost.engine
        self._page = batch.current
        path = f"{query_path(self._engine.path, batch.query)}/{self._page.name}"
        self._reader = StagedReader(self._engine.fs, path, self._page)
        self._next: int = batch.frame  # to be read
        self._ahead: list[StreamRecord] = []
        self._error: BaseException | None = None
        self._is_reading: bool = False
        self._is_over: bool = False
        self.records: list[StreamRecord] = []
        self.at: int = 0  # of records, those below are moved

    def has_some(self) -> bool:
        """Whether there are records to be moved; else they are on their way. CorruptionError,
        OSError: they could not be read, and are read again when this is asked again."""
        if self.at >= len(self.records):
            self.records, self.at, self._ahead = self._ahead, 0, []
            self._read()
        if self._error is not None and not self.records:
            error, self._error = self._error, None
            raise error
        return bool(self.records)

    def _read(self) -> None:
        if self._is_reading or self._ahead or self._error is not None:
            return
        if self._next >= self._page.rows:
            return
        self._is_reading = True
        reader, first = self._reader, self._next
        self._engine.submit(
            lambda: reader.read(first, READ_RECORDS, READ_BYTES), self._done, self._failed
        )

    def _done(self, result: object) -> None:
        assert isinstance(result, list)
        self._is_reading = False
        if self._is_over:
            self._reader.close()
            return
        self._ahead = result
        self._next += len(result)
        self._move.wake()

    def _failed(self, error: BaseException) -> None:
        self._is_reading = False
        if self._is_over:
            self._reader.close()
            return
        self._error = error
        self._move.wake()

    def close(self) -> None:
        """Nobody wants the rest."""
        self._is_over = True
        if not self._is_reading:
            self._reader.close()


class BatchMove(Chore):
    """Of the batch of one query that is not done. waits_for: why it cannot go on."""

    def __init__(self, desk: "BatchDesk", query: str, operator: "Identity") -> None:
        self.query: str = query
        self.vhost: VHost = desk.vhost
        self.waits_for: str = ""
        self._desk = desk
        self._operator = operator
        self._pace = Pace(self.vhost.dispatch, self.vhost.mode, self.wake)
        self._size = SliceSize(self.vhost.clock, SLICE_MESSAGES)
        self._slices: BatchSlices | None = None
        self._number: int = -1
        self._reading: PageReading | None = None
        self._dropped: int = 0
        self._told: str = ""
        self._told_s: float = 0.0
        self._is_retrying: bool = False

    def wake(self) -> None:
        """It may go on."""
        self.vhost.chores.wake(self)

    def step(self) -> int:
        batch = self._desk.batch(self.query)
        if batch is None or batch.is_done:
            self._begin(None)
            self._desk.moved(self)
            return DONE
        try:
            return self._go_on(batch)
        except (PenstockError, OSError) as error:
            if self.vhost.engine.failed is not None:
                raise
            return self._wait(str(error))

    def failed(self, error: Exception) -> None:
        """A mistake of ours: it is told, and tried again."""
        self.vhost.mistake(f"the batch of query {self.query!r}", error)
        self._wait(f"{type(error).__name__}: {error}")

    # ---- a slice -------------------------------------------------------------------------------

    def _go_on(self, batch: Batch) -> int:
        slices = self._slices
        if slices is None or self._number != batch.number:
            slices = self._begin(batch)
        assert slices is not None, "there is a batch"
        goal = slices.goal()
        if isinstance(goal, ServedStream) and not self._desk.claim(goal.name, self):
            return ASLEEP  # woken when the other one is done
        if self._pace.is_ahead():
            return ASLEEP
        vhost = self.vhost
        if vhost.blocked_reason:
            raise BatchWaitsError(f"publishing is blocked, short of {vhost.blocked_reason}")
        if isinstance(goal, ServedStream) and len(goal.parts) == 1:
            batches = vhost.engine.batches
            if batches.can_adopt(self.query):
                rows = batch.current.rows
                batches.adopt(self.query, goal.parts[0])
                goal.published += rows
                self._went_on(vhost.engine.last_lsn, 0)
                return AGAIN
        reading = self._reading
        if reading is None or reading.key != (batch.number, batch.page):
            reading = self._open(batch)
        if not reading.has_some():
            return ASLEEP
        self._move(slices, reading, batch)
        return AGAIN

    def _begin(self, batch: Batch | None) -> BatchSlices | None:
        """Another batch, or none."""
        if self._dropped:
            self.vhost.event(
                "batch_unroutable",
                f"{self._dropped} messages of batch {self._number} of query {self.query!r} went to "
                "no queue: nothing is bound for them",
            )
        self._dropped = 0
        self._desk.unclaim(self)
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        if batch is None:
            self._slices = None
        else:
            target = BatchTarget.from_text(batch.target)
            self._slices = BatchSlices(self.vhost, target, self._operator)
            self._number = batch.number
        return self._slices

    def _open(self, batch: Batch) -> PageReading:
        if self._reading is not None:
            self._reading.close()
        self._reading = PageReading(self, batch)
        return self._reading

    def _move(self, slices: BatchSlices, reading: PageReading, batch: Batch) -> None:
        """The next messages, as one record."""
        part = slices.begin()
        try:
            n = self._fill(part, reading)
            part.transaction.progress(self.query, batch.page, batch.frame + n)
        except BaseException:
            part.rollback()
            raise
        lsn = part.commit()
        self._size.end()
        reading.at += n
        self._dropped += part.dropped
        self._went_on(lsn, part.bytes)

    def _fill(self, part: BatchSlice, reading: PageReading) -> int:
        """Messages into the slice, in runs of those with the same meta; how many. One that must
        wait ends it, unless it is the first."""
        records, first = reading.records, reading.at
        end = min(first + self._size.begin(), len(records))
        at = first
        while at < end:
            meta = records[at].meta
            bodies: list[bytes] = []
            behind = at
            while behind < end and records[behind].meta == meta:
                bodies.append(records[behind].payload)
                behind += 1
            try:
                part.put_run(meta, bodies)
            except BatchWaitsError:
                if at == first:
                    raise
                break
            at = behind
        return at - first

    def _went_on(self, lsn: int, size: int) -> None:
        self._pace.logged(lsn, size)
        self._told = ""
        if self.waits_for:
            self.waits_for = ""
            text = f"batch {self._number} of query {self.query!r} goes on"
            self.vhost.event("batch_goes_on", text, part=self.query)

    # ---- waiting -------------------------------------------------------------------------------

    def _wait(self, why: str) -> int:
        now_s = self.vhost.clock.monotonic()
        batch = self._desk.batch(self.query)
        if batch is not None:
            if why != self._told or now_s - self._told_s >= REPEAT_S:
                self._told, self._told_s = why, now_s
                text = f"batch {batch.number} of query {self.query!r} cannot go on: {why}"
                self.vhost.event("batch_waits", text, part=self.query)
            if not batch.holds:
                self._desk.unclaim(self)
        self.waits_for = why
        if not self._is_retrying:
            self._is_retrying = True
            self.vhost.call_at(now_s + RETRY_S, self._try_again)
        return ASLEEP

    def _try_again(self) -> None:
        self._is_retrying = False
        self.wake()
