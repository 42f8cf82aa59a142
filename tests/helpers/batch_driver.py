"""BatchDriver: the traffic of `StreamDriver`, with batches of Spark that are staged and moved.

Pages of a few rows are staged, decided, aborted, and moved in slices: into queues, into streams
through the log, as whole pages that a stream adopts, whatever the dice say; a batch goes on where
the log says that it is, also one of an earlier life. Each slice is one record, so the ledger has it
as one LSN with what it published and appended and how far it came: no row is ever lost, twice, or
out of its order, and a head waits where the batch began.

Staging is another process's work: what fails there never reaches the engine.
"""

import json

from penstock.errors import SyncFailedError
from penstock.storage.files.durability import DISK
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.pages.batches import BatchFacts, QueryOwner, StagedPage
from penstock.storage.pages.streams import StoredStream
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Change, Ledger, ModelBatch, ModelPage, Violation, body_of
from tests.helpers.stream_driver import StreamDriver
from tests.helpers.tiny_batches import read_batch, stage
from tests.helpers.tiny_engine import OPTIONS, PATH
from tests.helpers.uids import Content

QUERIES = ("q", "another/0")
TARGET = json.dumps({"queue": "a"})


class BatchDriver(StreamDriver):
    """See the head of this module. is_staging: whoever works just now is not the engine."""

    def __init__(
        self, fs: FaultyFileSystem, seed: int, *, options: StorageOptions = OPTIONS,
        ledger: Ledger | None = None, first_uid: int = 1,
    ) -> None:  # fmt: skip
        self.is_staging = False
        self.staged: dict[str, tuple[int, tuple[ModelPage, ...]]] = {}
        self.attempt = first_uid
        self.spans: list[tuple[int, int, int]] = []  # (stream, first, end) of batches that are done
        super().__init__(fs, seed, options=options, ledger=ledger, first_uid=first_uid)

    def batch(self, query: str) -> ModelBatch | None:
        """A query's last batch as the ledger has it now."""
        return self.ledger.fold(self.engine.log.last_lsn).batches.get(query)

    def _on_head(self, stream: StoredStream) -> None:
        """Readers see all of a batch or nothing of it."""
        super()._on_head(stream)
        head = stream.head_offset
        rolling = self.engine.batches.rolling()
        held = min([batch.holds.get(stream.number, head) for batch in rolling], default=head)
        inside = [s for s in self.spans if s[0] == stream.number and s[1] < head < s[2]]
        if head > held or inside:
            raise Violation(f"the head of stream {stream.number} is {head}: in a batch {inside}")

    def _note_end(self, query: str) -> None:
        """If a batch is done by now: where it begins and ends in the streams that it held."""
        batch = self.batch(query)
        if batch is None or not batch.is_done:
            return
        for number, first in batch.holds.items():
            stream = self.engine.streams.by_number.get(number)
            if stream is not None:
                self.spans.append((number, first, stream.next_offset))

    # ---- staged, decided -----------------------------------------------------------------------

    def stage(self) -> None:
        """A task stages a page or several for the next batch of a query."""
        query = self.rng.choice(QUERIES)
        number = self.engine.state.batches.last_number(query) + 1
        self.attempt += 1
        self.is_staging = True
        try:
            partitions = range(self.rng.choice((1, 1, 2, 3)))
            pages = [self._stage(query, number, partition) for partition in partitions]
        except (OSError, SyncFailedError):
            return
        finally:
            self.is_staging = False
        if number > self.engine.state.batches.last_number(query):
            self.staged[query] = (number, tuple(pages))

    def _stage(self, query: str, number: int, partition: int) -> ModelPage:
        contents: list[Content] = []
        for _ in range(self.rng.randint(1, 6)):
            contents.append((self.uid, self._size((0, 40), (60, 130), (100, 300)), self._header()))
            self.uid += 1
        rows = [(body_of(uid, size), header) for uid, size, header in contents]
        name = f"{self.rng.randrange(3)}-{self.attempt:08x}"
        page = stage(
            self.fs, PATH, query, number, rows, partition=partition, attempt=name, chunk=4,
            time_us=self.clock.wall_us(),
        )  # fmt: skip
        return page, tuple(contents)

    def decide(self) -> None:
        """The driver of Spark commits a batch that is staged, or commits the last one again."""
        query = self.rng.choice(sorted(self.staged) or QUERIES)
        batch = self.engine.batches.batch(query)
        if batch is not None and self.rng.random() < 0.2:
            if self.engine.batches.decide(query, batch.number, TARGET, []):
                raise Violation(f"batch {batch.number} of {query} is decided twice")
            return
        if query not in self.staged or (batch is not None and not batch.is_done):
            return
        number, contents = self.staged[query]
        pages: list[StagedPage] = [page for page, _ in contents]
        if batch is not None and number <= batch.number:
            return
        # As versions without facts decided, too.
        facts = self._facts(query, number, contents) if self.rng.random() < 0.7 else None
        self._do(
            lambda: self.engine.batches.decide(query, number, TARGET, pages, facts=facts),
            ("decide", query, number, contents, facts),
        )
        del self.staged[query]

    def _facts(self, query: str, number: int, pages: tuple[ModelPage, ...]) -> BatchFacts:
        rows = sum(page.rows for page, _ in pages)
        owner = QueryOwner(f"user of {query}", TARGET)
        return BatchFacts(owner, rows, number << 40 | self.uid, number % 2 == 0)

    def abort(self) -> None:
        """A batch that is staged is not to be, after all."""
        query = self.rng.choice(QUERIES)
        number, _ = self.staged.pop(query, (self.engine.state.batches.last_number(query), ()))
        if number >= 0:
            self.engine.batches.abort(query, number)

    def sweep(self) -> None:
        """What nobody decides goes."""
        self.clock.advance(100.0)
        self.staged.clear()
        self.engine.batches.sweep(0.0)

    def forget(self) -> None:
        """A query is over, if its batch is done."""
        done = [b.query for b in self.engine.batches.all() if b.is_done]
        if done:
            query = self.rng.choice(sorted(done))
            self.staged.pop(query, None)
            self._do(lambda: self.engine.batches.forget(query), ("forget", query))

    def batch_whole(self) -> None:
        """One batch from its staging to its last row."""
        self.stage()
        self.decide()
        self.finish_batches()

    def adopt_last(self) -> None:
        """A page that a stream adopts is the last thing before a checkpoint."""
        self.finish_batches()
        self.stage()
        self.decide()
        rolling = self.engine.batches.rolling()
        stream = self.some_stream()
        if rolling and stream is not None:
            self._adopt_page(rolling[0].query, stream, rolling[0].current.rows)
        self.engine.sync()
        self.checkpoint()

    # ---- moved ---------------------------------------------------------------------------------

    def move_slice(self) -> None:
        """One slice of a batch, into whatever there is."""
        rolling = self.engine.batches.rolling()
        if not rolling:
            return
        query = rolling[0].query
        stream, queue = self.some_stream(), self.some_queue()
        page = rolling[0].current
        if stream is not None and not rolling[0].frame and self.rng.random() < 0.6:
            self._adopt_page(query, stream, page.rows)
        elif stream is not None or queue is not None:
            self._move(query, stream, queue)

    def finish_batches(self) -> None:
        """All that is decided is moved."""
        if self.some_stream() is None and self.some_queue() is None:
            return
        while self.engine.batches.rolling():
            self.move_slice()

    def _contents(self, query: str, page: int) -> tuple[Content, ...]:
        batch = self.batch(query)
        if batch is None:
            raise Violation(f"a batch of query {query} is rolled forward, and was not decided")
        return batch.pages[page][1]

    def _adopt_page(self, query: str, stream: StoredStream, rows: int) -> None:
        batch = self.engine.batches.batch(query)
        assert batch is not None
        contents, base = self._contents(query, batch.page), stream.next_offset
        number = stream.number
        changes: list[Change] = [("slice", query, batch.page + 1, 0, (number,))]
        changes += [("append", number, content) for content in contents]
        logged = self.logged.setdefault(number, {})
        for offset in range(base, base + rows):
            logged[offset] = (self.engine.log.last_lsn + 1, DISK)
        found: list[int] = []
        self._do(lambda: found.append(self.engine.batches.adopt(query, stream)), *changes)
        if found != [base]:
            raise Violation(f"adopted at {found}, should be {base}")
        self._note_end(query)

    def _move(self, query: str, stream: StoredStream | None, queue: QueueIndex | None) -> None:
        batch = self.engine.batches.batch(query)
        assert batch is not None
        page, frame = batch.page, batch.frame
        records = read_batch(self.engine, query, self.rng.randint(1, 4), self.rng.choice((1, 400)))
        contents = self._contents(query, page)[frame : frame + len(records)]
        tx = self.engine.begin()
        tx.progress(query, page, frame + len(records))
        seq = queue.next_seq if queue is not None else 0
        moved: list[Change] = []
        streams: tuple[int, ...] = ()
        for record, content in zip(records, contents, strict=True):
            if (record.payload, record.meta) != (body_of(*content[:2]), content[2]):
                raise Violation(f"frame {record.offset} of query {query} is {record!r}")
            if stream is None or (queue is not None and self.rng.random() < 0.5):
                assert queue is not None
                published = tx.publish([queue], record.meta, record.payload)
                self.ledger.give_id(published.message.id, content[0])
                moved.append(("put", content, ((queue.number, seq),)))
                seq += 1
            else:
                tx.append_stream(stream, record.meta, record.payload)
                moved.append(("append", stream.number, content))
                streams = (stream.number,)
        before = self.engine.log.last_lsn
        changes: list[Change] = [("slice", query, page, frame + len(records), streams), *moved]
        try:
            lsn = tx.commit(DISK)
        except BaseException:
            if self.engine.log.last_lsn > before:
                self.ledger.doubt(self.engine.log.last_lsn, *changes)
            raise
        self.ledger.note(lsn, *changes)
        self._note_end(query)
