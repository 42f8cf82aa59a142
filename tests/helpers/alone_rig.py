"""An AloneCore without its thread: a clock by hand, a disk that crashes, turns when a test says."""

import random
from contextlib import nullcontext

from penstock.clock import ManualClock
from penstock.embedded.alone_stream import RETAIN, SAVE, AloneCore, AloneSettings, Want
from penstock.embedded.stream_record import NewRecord
from penstock.embedded.waiting import WAITING, Waiter
from penstock.queues.stream_options import StreamOptions
from penstock.storage.files.filesystem import FileSystem
from tests.helpers.faulty_filesystem import FaultyFileSystem

PATH = "/alone"
PAGE_BYTES = 300


def settings(
    every_records: int | None = 1, every_s: float | None = None, keeps: str = "",
    **options: int,
) -> AloneSettings:  # fmt: skip
    """Small pages; options: max_age_s, max_bytes, max_records."""
    chosen = StreamOptions(page_bytes=PAGE_BYTES, **options)
    return AloneSettings(chosen, every_records, every_s, keeps)


class AloneRig:
    """See the head of this module. chosen: as `settings` makes them."""

    def __init__(
        self, chosen: AloneSettings | None = None, fs: FileSystem | None = None,
        clock: ManualClock | None = None,
    ) -> None:  # fmt: skip
        self.fs = FaultyFileSystem(seed=1) if fs is None else fs
        self.clock = clock or ManualClock()
        self.settings = chosen or settings()
        self.events: list[tuple[str, str]] = []
        self.core = self.opened()

    def opened(self) -> AloneCore:
        return AloneCore(
            self.fs, PATH, self.settings, self.clock, random.Random(5), self.tell, nullcontext()
        )

    def tell(self, kind: str, text: str) -> None:
        self.events.append((kind, text))

    def append(self, *bodies: bytes) -> Want | None:
        """As a call does it; what it would wait for."""
        offsets = self.core.append([NewRecord(body) for body in bodies])
        assert offsets == list(range(offsets[0], offsets[0] + len(bodies)))
        return self.core.want_force(Waiter()) if self.core.must_wait() else None

    def put(self, *bodies: bytes) -> None:
        """Appended, and on disk."""
        self.core.append([NewRecord(body) for body in bodies])
        self.force()

    def force(self) -> None:
        """All that was appended is on disk."""
        want = self.core.want_force(Waiter())
        self.core.turn()
        assert is_done(want)
        want.take()

    def save(self) -> None:
        """Readers' offsets on disk."""
        want = self.core.want(SAVE, Waiter())
        self.core.turn()
        want.take()

    def retain(self) -> int:
        want = self.core.want(RETAIN, Waiter())
        self.core.turn()
        return want.take()

    def bodies(self, offset: int = 0) -> list[bytes]:
        """All that may be read from there on."""
        found: list[bytes] = []
        while records := self.core.queue.read(offset, 256, 256 << 10):
            found += [record.payload for record in records]
            offset = records[-1].offset + 1
        return found


def is_done(want: Want) -> bool:
    return want.waiter.state != WAITING
