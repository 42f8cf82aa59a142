"""A PersistentQueue and a StreamView beside it, against a list.

Records of any size and time, clocks that go back, equal times over page borders, pages that go,
stops and starts, indexes that are lost. Whatever was done: offsets are those of the list, times are
those of the list clamped, `find` is the first that is late enough, and a view agrees.
"""

from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.storage.pages.persistent_queue import PersistentQueue
from penstock.storage.pages.stream_view import StreamView
from penstock.storage.tools.verify import verify_stream
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.page_queue_rig import PATH, alone

SIZES: Final = st.one_of(st.integers(0, 60), st.sampled_from((100, 300, 1500, 5000)))
TIMES: Final = st.one_of(st.integers(1, 30), st.sampled_from((1, 2, 2, 3)))


class PersistentQueueMachine(RuleBasedStateMachine):
    """One queue that stands alone; nothing fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fs = FaultyFileSystem()
        self.records: list[tuple[bytes, bytes, int]] = []
        self.first = 0
        self.forced = 0
        self.page_bytes = 0
        self.queue: PersistentQueue
        self.view: StreamView

    @initialize(page_bytes=st.sampled_from((128, 200, 500, 4000)))
    def begin(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self.queue = alone(self.fs, page_bytes)
        self.view = StreamView(self.fs, PATH)

    @rule(size=SIZES, meta=st.binary(max_size=5), time_us=TIMES, count=st.integers(1, 8))
    def append(self, size: int, meta: bytes, time_us: int, count: int) -> None:
        """The same time for all of them: they may stand on both sides of a border."""
        last = self.records[-1][2] if self.records else 0
        for _ in range(count):
            payload = bytes([len(self.records) & 255]) * size
            assert self.queue.append(payload, meta, time_us) == len(self.records)
            self.records.append((payload, meta, max(last, time_us)))

    @rule()
    def write(self) -> None:
        self.queue.write()

    @rule()
    def force(self) -> None:
        self.queue.force()
        self.forced = len(self.records)

    @rule(records=st.integers(0, 30), keep=st.one_of(st.none(), st.integers(0, 60)))
    def retain(self, records: int, keep: int | None) -> None:
        before = self.queue.pages.bases[:]
        gone = self.queue.retain(max_records=records, now_us=0, keep_from=keep)
        self.first = self.queue.first_offset
        assert self.queue.pages.bases == before[gone:]
        stay = len(self.records) - self.first
        if gone:
            assert stay >= records
            assert self.first <= self.forced
            assert keep is None or self.first <= keep

    @rule()
    def expire(self) -> None:
        """All is too old: of what is forced nothing stays, of the rest its page."""
        before = self.queue.pages.bases[:]
        gone = self.queue.retain(max_age_s=0, now_us=1_000_000)
        self.first = self.queue.first_offset
        assert self.queue.pages.bases == before[gone:]
        assert self.first <= self.forced
        if self.forced == len(self.records):
            assert self.first == self.forced
            assert self.queue.bytes == 0

    @rule()
    def reopen(self) -> None:
        self.queue.close()
        self.forced = len(self.records)
        self.queue = alone(self.fs, self.page_bytes)

    @rule()
    def release(self) -> None:
        self.queue.release_handles()
        self.view.close()

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def lose_an_index(self, data: st.DataObject) -> None:
        names = [name for name in self.fs.list(PATH) if name.endswith(".idx")]
        if names:
            self.queue.close()
            self.forced = len(self.records)
            self.fs.unlink(f"{PATH}/{data.draw(st.sampled_from(names))}")
            self.queue = alone(self.fs, self.page_bytes)

    @rule(offset=st.integers(0, 80), count=st.integers(1, 20), size=st.integers(1, 3000))
    def read(self, offset: int, count: int, size: int) -> None:
        first = min(max(offset, self.first), self.forced)
        found = self.queue.read(offset, count, size)
        assert bool(found) == (max(offset, self.first) < self.forced)
        assert len(found) <= count
        for at, record in enumerate(found, first):
            assert (record.offset, record.payload, record.meta, record.time_us) == (
                at, *self.records[at],
            )  # fmt: skip
        total = sum(len(r.payload) + len(r.meta) for r in found)
        assert total <= size or len(found) == 1
        seen = [r.offset for r in self.view.read(offset, count, size)]
        assert seen == [r.offset for r in found]

    @rule(time_us=st.integers(0, 32))
    def find(self, time_us: int) -> None:
        late = [i for i in range(self.first, len(self.records)) if self.records[i][2] >= time_us]
        wanted = late[0] if late else len(self.records)
        assert self.queue.find(time_us) == self.view.find(time_us) == min(wanted, self.forced)

    @invariant()
    def counts(self) -> None:
        if self.page_bytes:
            assert self.queue.next_offset == len(self.records)
            assert self.queue.head_offset == self.forced
            assert self.queue.first_offset == self.first
            assert self.view.head().next_offset == self.forced

    def teardown(self) -> None:
        if self.page_bytes:
            self.queue.close()
            report = verify_stream(self.fs, PATH)
            assert (report.problems, report.notes) == ([], [])
            assert report.records == len(self.records) - self.first
            assert report.bytes == self.queue.bytes


TestPersistentQueue = PersistentQueueMachine.TestCase
TestPersistentQueue.settings = settings(settings.default, stateful_step_count=40)
