"""What tests of the log share: a log on a FaultyFileSystem, and what was read back from it."""

import random
from collections.abc import Callable

from penstock.clock import ManualClock
from penstock.storage.files.durability import DISK
from penstock.storage.log import record
from penstock.storage.log.log_file import LogEnd, LogReader
from penstock.storage.log.record import Record
from penstock.storage.log.transaction_log import StoreSync, TransactionLog
from tests.helpers.faulty_filesystem import FaultyFileSystem

WAL = "/wal"
VHOST = 0x7AB1E
KIB = 1024


class FakeStore:
    """A store of which only is known how many bodies were written, and how many are synced."""

    def __init__(self) -> None:
        self.written = 0
        self.durable = 0
        self.taken = 0  # operations
        self.error: OSError | None = None

    def has_unsynced(self) -> bool:
        return self.durable < self.written

    def take_unsynced(self) -> Callable[[], object]:
        self.taken += 1
        upto = self.written

        def op() -> object:
            if self.error is not None:
                raise self.error
            return upto

        return op

    def synced(self, result: object) -> None:
        assert isinstance(result, int)
        self.durable = max(self.durable, result)


class Rig:
    """A file system, a clock and a started log. `fs` may be one that a crash has left."""

    def __init__(
        self,
        fs: FaultyFileSystem | None = None,
        *,
        seed: int = 1,
        bytes_min: int = 4 * KIB,
        bytes_max: int = 16 * KIB,
        group_bytes_max: int = 8 << 20,
        store: StoreSync | None = None,
        prev: LogEnd | None = None,
    ) -> None:
        self.fs = FaultyFileSystem(seed=seed) if fs is None else fs
        if fs is None:
            self.fs.mkdir(WAL)
            self.fs.sync_dir("/")
        self.clock = ManualClock()
        self.log = TransactionLog(
            self.fs, WAL, VHOST, self.clock, random.Random(seed),
            segment_bytes_min=bytes_min, segment_bytes_max=bytes_max,
            group_bytes_max=group_bytes_max, store=store,
        )  # fmt: skip
        self.first = 1 if prev is None else prev.next_number
        self.log.start(prev, self.first)
        self.sent: dict[int, bytes] = {}  # lsn -> data

    def put(self, size: int = 100, mode: int = DISK, *, names_store: bool = False) -> int:
        """Append a record of `size` bytes of data; returns its LSN."""
        data = (b"%d." % (self.log.last_lsn + 1)).ljust(size, b"x")
        lsn = self.log.append(record.TOPOLOGY, 0, 0, data, mode, names_store)
        self.sent[lsn] = data
        return lsn

    def group(self, *sizes: int, mode: int = DISK) -> int:
        """A group of records, written and, in mode DISK, synced; returns the last LSN."""
        for size in sizes:
            self.put(size, mode)
        self.log.flush()
        self.settle()
        return self.log.last_lsn

    def settle(self) -> None:
        """Complete all that is outstanding."""
        while done := self.fs.completed(True):
            for token, result in done:
                assert self.log.complete(token, result)

    def idle(self) -> None:
        """Let the log notice that it is idle."""
        self.log.tick()
        self.clock.advance(0.06)
        self.log.tick()

    def path(self, number: int = 1) -> str:
        return f"{WAL}/{number:010d}.wal"


def survey(
    fs: FaultyFileSystem, first: tuple[int, int, int] = (1, 128, 1)
) -> tuple[LogEnd, list[Record]]:
    """Read the log from (segment, position, LSN) on, as recovery does."""
    found: list[Record] = []
    reader = LogReader(fs, WAL, VHOST)
    try:
        return reader.survey(*first, found.append), found
    finally:
        reader.close()


def assert_prefix(rig: Rig, end: LogEnd, found: list[Record], first_lsn: int = 1) -> None:
    """The records found are those sent, from `first_lsn` to the end that was found."""
    assert [r.lsn for r in found] == list(range(first_lsn, end.last_lsn + 1))
    for r in found:
        assert r.data == rig.sent[r.lsn]
