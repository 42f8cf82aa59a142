"""StreamDriver: the traffic of `Driver`, with streams among the queues of the same vhost.

Records are appended singly and by transactions that publish to queues as well; pages are as small
as they may be, so that a few records fill one; named readers move, and ask to keep; pages are taken
away; streams come and go. All of it is entered in the same ledger: one LSN decides what there is of
queues and of streams. Beside it all sits a reader who has the pages mapped (`Mapped`).
"""

from penstock.storage.files.durability import DISK
from penstock.storage.files.options import StorageOptions
from penstock.storage.pages.streams import StoredStream
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Change, Ledger, Violation, body_of
from tests.helpers.stream_judge import Mapped, check_records
from tests.helpers.tiny_engine import OPTIONS, PATH
from tests.helpers.vhost_driver import MODES, Driver

STREAMS = (b"s", b"t\0p0")
READERS = ("reader", "another")
PAGE_BYTES = 512


class StreamDriver(Driver):
    """See the head of this module. With `fs.has_readers` the reader lived through the crash."""

    def __init__(
        self, fs: FaultyFileSystem, seed: int, *, options: StorageOptions = OPTIONS,
        ledger: Ledger | None = None, first_uid: int = 1,
    ) -> None:  # fmt: skip
        self.mapped = Mapped(fs)
        if fs.has_readers:
            self.mapped.map_all(PATH + "/streams")
        self.heads: dict[int, int] = {}
        self.logged: dict[int, dict[int, tuple[int, int]]] = {}  # offset -> (LSN, mode)
        super().__init__(fs, seed, options=options, ledger=ledger, first_uid=first_uid)
        self.engine.streams.on_head = self._on_head

    def _on_head(self, stream: StoredStream) -> None:
        """Every record below the head is settled in its own mode, and stays there."""
        before, head = self.heads.get(stream.number, 0), stream.head_offset
        if head < before:
            raise Violation(f"the head of stream {stream.number} went back from {before} to {head}")
        self.heads[stream.number] = head
        logged = self.logged.get(stream.number, {})
        for offset in [offset for offset in logged if offset < head]:
            lsn, mode = logged.pop(offset)
            if lsn > self.engine.log.settled(mode):
                raise Violation(f"offset {offset} is below the head, its record is not settled")

    # ---- streams -------------------------------------------------------------------------------

    def some_stream(self) -> StoredStream | None:
        streams = [s for _, s in sorted(self.engine.streams.by_number.items())]
        return self.rng.choice(streams) if streams else None

    def declare_stream(self) -> None:
        """Streams that are not there: one, or both in one record."""
        names = [name for name in STREAMS if name not in self.engine.state.routing.queues]
        if not names:
            return
        if self.rng.random() < 0.5:
            names = names[:1]
        first = self.engine.state.next_queue
        self.ledger.numbers.update(range(first, first + len(names)))
        self._do(
            lambda: self.engine.streams.declare(
                [(name, b"", 0) for name in names], page_bytes=PAGE_BYTES
            ),
            *(("declare_stream", name, first + i) for i, name in enumerate(names)),
        )

    def delete_stream(self) -> None:
        """A stream goes, with all it has."""
        stream = self.some_stream()
        if stream is None:
            return
        for change in [
            c for c in self.transactions if any(a.stream is stream for a in c[0].appends)
        ]:
            self.rollback(change)
        mode = self.rng.choice(MODES)
        number = stream.number
        self._do(lambda: self.engine.streams.delete([stream], mode), ("delete", number))

    def append(self, size: int | None = None) -> None:
        """One record, or a few in one turn."""
        stream = self.some_stream()
        if stream is None:
            return
        for _ in range(self.rng.choice((1, 1, 3))):
            self._append(stream, size)

    def _append(self, stream: StoredStream, size: int | None) -> None:
        uid, header, mode = self.uid, self._header(), self.rng.choice(MODES)
        self.uid += 1
        if size is None:
            size = self._size((0, 40), (60, 130), (60, 130), (400, 900))
        body = body_of(uid, size)
        at = (stream.next_offset, self.engine.log.last_lsn + 1, mode)
        self.logged.setdefault(stream.number, {})[at[0]] = at[1:]
        self._do(
            lambda: self.engine.streams.append(stream, header, body, mode),
            ("append", stream.number, (uid, size, header)),
        )

    def fill(self) -> None:
        """So many that pages roll."""
        for _ in range(4):
            self.append(self.rng.randint(150, 300))

    def begin_mixed(self) -> None:
        """A transaction over queues and streams; it stays open."""
        self.begin()
        if not self.transactions:
            return
        tx, changes = self.transactions[-1]
        for _ in range(self.rng.randint(1, 4)):
            stream = self.some_stream()
            if stream is None:
                return
            uid, header, size = self.uid, self._header(), self._size((0, 40), (100, 300))
            self.uid += 1
            tx.append_stream(stream, header, body_of(uid, size))
            changes.append(("append", stream.number, (uid, size, header)))

    def mixed(self) -> None:
        """A whole transaction over queues and streams."""
        self.begin_mixed()
        self.commit()

    def one_record(self) -> None:
        """Appends and a reader's offset gathered in one record."""
        stream = self.some_stream()
        if stream is None:
            return
        uid, name = self.uid, self.rng.choice(READERS)
        self.uid += 2
        at = (stream.next_offset, None)

        def call() -> None:
            with self.engine.journal.one_record(DISK):
                self.engine.streams.append(stream, b"", body_of(uid, 20), DISK)
                self.engine.streams.set_reader(stream, name, at[0], DISK, at[1])
                self.engine.streams.append(stream, b"h", body_of(uid + 1, 30), DISK)

        changes: list[Change] = [
            ("append", stream.number, (uid, 20, b"")), ("reader", stream.number, name, at),
            ("append", stream.number, (uid + 1, 30, b"h")),
        ]  # fmt: skip
        self._do(call, *changes)

    def set_reader(self) -> None:
        """A named reader moves on, or asks to keep something, or is forgotten."""
        stream = self.some_stream()
        if stream is None:
            return
        name, mode = self.rng.choice(READERS), self.rng.choice(MODES)
        if name in stream.readers and self.rng.random() < 0.2:
            self._do(
                lambda: self.engine.streams.delete_reader(stream, name, mode),
                ("reader", stream.number, name, None),
            )
            return
        offset = self.rng.randint(0, stream.next_offset)
        kept = offset if self.rng.random() < 0.3 else None
        self._do(
            lambda: self.engine.streams.set_reader(stream, name, offset, mode, kept),
            ("reader", stream.number, name, (offset, kept)),
        )

    def retain(self) -> None:
        """The oldest pages go, of all but a few records."""
        stream = self.some_stream()
        if stream is None:
            return
        self._retain(stream, max_records=self.rng.choice((0, 2, 5)))

    def expire(self) -> None:
        """All of a stream has become too old: its last page goes too, if all of it is durable."""
        stream = self.some_stream()
        if stream is None:
            return
        if self.rng.random() < 0.4:
            self.sync()
        self.clock.advance(2)
        self._retain(stream, max_age_s=1)

    def _retain(self, stream: StoredStream, **limits: int) -> None:
        kept, before = stream.kept_from(), stream.first_offset
        self.engine.streams.retain(stream, **limits)
        if kept is not None and stream.first_offset > max(kept, before):
            raise Violation(f"a reader asked to keep {kept}, {stream.first_offset} is the first")

    def read_streams(self) -> None:
        """What readers get now is what was appended."""
        model = self.ledger.fold(self.engine.log.last_lsn)
        for number, stream in self.engine.streams.by_number.items():
            check_records(stream, model.streams[number])
