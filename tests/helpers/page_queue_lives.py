"""Lives of a PersistentQueue on a disk that crashes: what was done, what was promised, and a judge.

`Alone` drives a queue that forces its own pages, `Logged` one whose log (a list here) is the truth.
Both keep every record that was ever appended in the present life by its offset, and note in the
journal what was promised when: so that for any operation of the disk it is known what must be there
after a crash at that point, and what may be.
"""

import random
from typing import NamedTuple

from penstock.clock import ManualClock
from penstock.storage.files.filesystem import sync_closed
from penstock.storage.pages.persistent_queue import PersistentQueue
from penstock.storage.pages.stream_meta import Position, ReaderOffset
from penstock.storage.pages.stream_view import StreamView
from penstock.storage.tools.verify import check_stream, verify_stream
from tests.helpers.faulty_filesystem import FaultyFileSystem, Journal

PATH = "/q"
MODES = ("lost", "kept", "subset", "torn", "zeros", "killed")
Record = tuple[bytes, bytes, int]


class Violation(AssertionError):
    """A promise was broken."""


def expect(is_true: bool, text: str) -> None:
    if not is_true:
        raise Violation(text)


class Known(NamedTuple):
    """What was promised at one moment. forced: all below is durable; first: retention had come so
    far for good; position: of the last checkpoint that was finished (Logged)."""

    forced: int
    first: int
    position: Position = Position(0, 0, 0, 0, 0)


class Note(NamedTuple):
    """What is entered in a journal. appended: how many records; readers: what each may be."""

    known: Known
    appended: int
    readers: dict[str, set[ReaderOffset | None]]


class Life:
    """What both have: the model and its records."""

    def __init__(self, fs: FaultyFileSystem, seed: int, page_bytes: int) -> None:
        self.fs = fs
        self.rng = random.Random(seed)
        self.page_bytes = page_bytes
        self.records: list[Record] = []
        self.time_us = 1000
        self.events: list[tuple[str, str]] = []
        self.clock = ManualClock()

    def open(self, *, forces: bool) -> PersistentQueue:
        return PersistentQueue(
            self.fs, PATH, page_bytes=self.page_bytes, forces=forces, number=0 if forces else 7,
            clock=self.clock, rng=random.Random(5), on_event=self.note_event,
        )  # fmt: skip

    def note_event(self, kind: str, text: str) -> None:
        self.events.append((kind, text))

    def new_record(self) -> Record:
        rng = self.rng
        self.time_us += rng.choice((0, 0, 0, 1, 3))
        roll = rng.random()
        size = rng.randrange(40) if roll < 0.8 else rng.randrange(3 * self.page_bytes)
        return rng.randbytes(size), rng.randbytes(rng.randrange(9)), self.time_us

    def check_reads(self, queue: PersistentQueue | StreamView, first: int, end: int) -> None:
        """Everything in [first, end) is readable, in one piece and in many, and found by time."""
        offset = first
        while offset < end:
            found = queue.read(offset, self.rng.randint(1, 40), self.rng.randint(1, 2000))
            expect(bool(found), f"nothing at {offset} of {first}..{end}")
            for record in found:
                expect(record.offset == offset, f"offset {record.offset}, expected {offset}")
                what = (record.payload, record.meta, record.time_us)
                expect(what == self.records[offset], f"record {offset} is {what!r}")
                offset += 1
        expect(offset == end, f"read to {offset}, the end is {end}")
        expect(not queue.read(end, 9, 999), "something behind the end")
        times = {record[2] for record in self.records[first:end]}
        for time_us in sorted(times | {time + 1 for time in times} | {0}):
            wanted = min(
                (i for i in range(first, end) if self.records[i][2] >= time_us), default=end
            )
            found_at = queue.find(time_us)
            expect(found_at == wanted, f"time {time_us} found at {found_at}, it is at {wanted}")


class Alone(Life):
    """A queue that stands alone. acted: what may have become of readers, by name."""

    def __init__(self, fs: FaultyFileSystem, seed: int, page_bytes: int) -> None:
        super().__init__(fs, seed, page_bytes)
        self.readers: dict[str, set[ReaderOffset | None]] = {}
        self.forced = 0
        self.first = 0
        self.journal: Journal | None = None
        self.queue = self.open(forces=True)

    def watch(self) -> Journal:
        """Enter what is promised, from here on."""
        self.journal = self.fs.start_journal()
        self.note()
        return self.journal

    def note(self) -> None:
        if self.journal is not None:
            readers = {name: set(values) for name, values in self.readers.items()}
            self.journal.note(Note(Known(self.forced, self.first), len(self.records), readers))

    def known(self, at: int) -> tuple[Known, dict[str, set[ReaderOffset | None]]]:
        """What was promised when operation `at` was done, and what readers may be: as they were
        then, or as what was in progress makes them."""
        assert self.journal is not None
        notes = self.journal.notes
        index = len(self.journal.noted(at)) - 1
        note = notes[index][1]
        assert isinstance(note, Note)
        may = {name: set(values) for name, values in note.readers.items()}
        for _, after in notes[index + 1 : index + 2]:
            assert isinstance(after, Note)
            for name, values in after.readers.items():
                may.setdefault(name, {None}).update(values)
        return note.known, may

    def step(self, name: str) -> None:
        rng, queue = self.rng, self.queue
        if name == "append":
            for _ in range(rng.randint(1, 6)):
                self.append(self.new_record())
        elif name == "many":
            pairs = [self.new_record()[:2] for _ in range(rng.randint(1, 5))]
            self.records += [(payload, meta, self.time_us) for payload, meta in pairs]
            queue.append_many(pairs, self.time_us)
            self.forced = queue.next_offset
        elif name == "write":
            queue.write()
        elif name == "force":
            queue.force()
            self.forced = queue.next_offset
        elif name == "roll":
            record = rng.randbytes(self.page_bytes), b"", self.time_us
            self.append(record)
        elif name == "retain":
            if rng.random() < 0.5:
                queue.force()
                self.forced = queue.next_offset
            keep = rng.choice((None, rng.randint(0, queue.next_offset)))
            queue.retain(max_records=rng.randint(0, 12), now_us=0, keep_from=keep)
            self.first = queue.first_offset
        elif name == "expire":
            if rng.random() < 0.7:
                queue.force()
                self.forced = queue.next_offset
            self.time_us += 2_000_000
            queue.retain(max_age_s=1, now_us=self.time_us)
            self.first = queue.first_offset
        elif name == "reader":
            reader = rng.choice("abc")
            if rng.random() < 0.7:
                place = ReaderOffset(rng.randint(0, queue.next_offset), None)
                queue.set_reader(reader, place.offset, place.kept_from)
                self.readers[reader] = {place}
            else:
                queue.delete_reader(reader)
                self.readers[reader] = {None}
        elif name == "read":
            self.check_reads(queue, queue.first_offset, queue.head_offset)
        elif name == "reopen":
            queue.close()
            self.forced = queue.next_offset
            self.note()
            self.queue = self.open(forces=True)
            expect(self.queue.next_offset == len(self.records), "an orderly stop lost records")
        self.note()

    def append(self, record: Record) -> None:
        offset = self.queue.append(*record)
        expect(offset == len(self.records), f"offset {offset}, expected {len(self.records)}")
        self.records.append(record)

    def recovered(
        self, fs: FaultyFileSystem, known: Known, readers: dict[str, set[ReaderOffset | None]]
    ) -> "Alone":
        """Open what a crash left, and judge it; the life that goes on from there."""
        life = Alone.__new__(Alone)
        Life.__init__(life, fs, self.rng.getrandbits(32), self.page_bytes)
        life.records, life.time_us, life.journal = list(self.records), self.time_us, None
        life.queue = queue = life.open(forces=True)
        end = queue.next_offset
        expect(end >= known.forced, f"forced up to {known.forced}, there is up to {end}")
        expect(end <= len(self.records), f"{end} records, {len(self.records)} were appended")
        expect(queue.head_offset == end, f"head {queue.head_offset}, next {end}")
        expect(queue.first_offset >= known.first, f"what was deleted is back: {known.first}")
        del life.records[end:]
        life.forced, life.first = end, queue.first_offset
        life.check_reads(queue, queue.first_offset, end)
        for name in {*readers, *queue.readers}:
            now = queue.readers.get(name)
            expect(now in readers.get(name, {None}), f"reader {name} is at {now}")
        life.readers = {name: {place} for name, place in queue.readers.items()}
        view = StreamView(fs, PATH)
        expect(view.head().next_offset == end, "the view has another head")
        life.check_reads(view, queue.first_offset, end)
        view.close()
        report = verify_stream(fs, PATH)
        expect(not report.problems, f"verify: {report.problems}")
        expect(report.records == end - queue.first_offset, f"verify counts {report.records}")
        return life


class Logged(Life):
    """A queue in a vhost. The log is `records`; what of it a crash leaves, the judge chooses."""

    def __init__(self, fs: FaultyFileSystem, seed: int, page_bytes: int) -> None:
        super().__init__(fs, seed, page_bytes)
        self.known_now = Known(0, 0)
        self.journal: Journal | None = None
        self.is_strict = True  # retention leaves what a replay may write
        self.queue = self.open(forces=False)
        fs.sync_dir("/")  # as the vhost does, before a record names the queue

    def watch(self) -> Journal:
        self.journal = self.fs.start_journal()
        self.note()
        return self.journal

    def note(self) -> None:
        if self.journal is not None:
            self.journal.note(Note(self.known_now, len(self.records), {}))

    def known(self, at: int) -> tuple[Known, int]:
        """(what was promised, how many records may be in the log) when `at` was done."""
        assert self.journal is not None
        notes = self.journal.notes
        index = len(self.journal.noted(at)) - 1
        note, after = notes[index][1], notes[min(index + 1, len(notes) - 1)][1]
        assert isinstance(note, Note)
        assert isinstance(after, Note)
        return note.known, after.appended

    def step(self, name: str) -> None:
        rng, queue = self.rng, self.queue
        if name in ("append", "roll"):
            record = self.new_record()
            if name == "roll":
                record = rng.randbytes(self.page_bytes), b"", self.time_us
            for _ in range(rng.randint(1, 6)):
                self.records.append(record)
                queue.append(*record)
                record = self.new_record()
        elif name == "write":
            queue.write()
        elif name == "publish":
            head = rng.randint(queue.head_offset, queue.next_offset)
            self.known_now = self.known_now._replace(forced=max(head, self.known_now.forced))
            self.note()  # settled before readers are told
            queue.publish_head(head)
        elif name == "checkpoint":
            position = queue.position()
            queue.write()
            files, directories = queue.take_dirty()
            for file in files:
                sync_closed(self.fs, file)
            for directory in directories:
                self.fs.sync_dir(directory)
            forced = max(self.known_now.forced, position.next_offset)
            self.known_now = self.known_now._replace(position=position, forced=forced)
        elif name == "retain":
            base = self.known_now.position.page_base
            keep = base if self.is_strict else None
            queue.retain(max_records=rng.randint(0, 12), now_us=0, keep_from=keep)
            self.known_now = self.known_now._replace(first=queue.first_offset)
        elif name == "expire":
            is_all = self.known_now.position.next_offset == queue.next_offset
            keep = queue.next_offset if is_all else self.known_now.position.page_base
            self.time_us += 2_000_000
            keep_from = keep if self.is_strict else None
            queue.retain(max_age_s=1, now_us=self.time_us, keep_from=keep_from)
            self.known_now = self.known_now._replace(first=queue.first_offset)
        elif name == "handles":
            queue.release_handles()
        self.note()

    def recovered(self, fs: FaultyFileSystem, known: Known, most: int) -> "Logged":
        """Replay a log of at least what was settled on what a crash left, and judge it."""
        life = Logged.__new__(Logged)
        Life.__init__(life, fs, self.rng.getrandbits(32), self.page_bytes)
        least = known.forced if self.is_strict else known.position.next_offset
        end = self.rng.randint(least, most)
        life.records, life.time_us = self.records[:end], self.time_us
        life.journal, life.is_strict = None, self.is_strict
        life.queue = queue = life.open(forces=False)
        queue.restore(known.position)
        for record in life.records[known.position.next_offset :]:
            queue.append(*record)
            if self.rng.random() < 0.1:
                queue.write()
        queue.finish_restore()
        if queue.next_offset > end:  # deleting had come further than the log
            expect(not self.is_strict, "the log ends before the first page")
            expect(queue.first_offset == queue.next_offset, "there are pages beyond the log")
            life.records += [(b"", b"", self.time_us)] * (queue.next_offset - end)
        expect(queue.head_offset == queue.next_offset, "the head is not at the end")
        expect(queue.first_offset >= known.first, f"what was deleted is back: {known.first}")
        life.check_reads(queue, queue.first_offset, queue.next_offset)
        view = StreamView(fs, PATH)
        expect(view.head().next_offset == queue.next_offset, "the view has another head")
        life.check_reads(view, queue.first_offset, queue.next_offset)
        view.close()
        report = check_stream(
            fs, PATH, queue.stream_id, 7, queue.pages.first_base, queue.position()
        )
        expect(not report.problems, f"verify: {report.problems}")
        life.known_now = Known(queue.next_offset, queue.first_offset, known.position)
        return life
