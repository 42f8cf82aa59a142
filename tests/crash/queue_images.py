"""Images of crashes of queues: recovered from, opened, judged, and what may follow.

As images.py, one layer up. The storage is judged by the ledger first; then its queues are opened as
their owner would, and every message is looked for (queue_judge.py). Opening them writes to the log
already, so it is part of the next life; a crash inside recovery is one of the storage alone.

What may follow an image, by chance: a crash inside recovery; a second life, of the opening and some
traffic, and its crash; that everything is taken out and nothing is left; an orderly stop, `verify`,
and a start that finds everything as it was.
"""

import random

from penstock.storage.files.options import StorageOptions
from penstock.storage.tools.verify import verify
from tests.crash.images import ALL_LANDED, MODES, Counts
from tests.helpers.faulty_filesystem import FaultyFileSystem, Journal
from tests.helpers.ledger import Violation
from tests.helpers.queue_driver import QueueDriver
from tests.helpers.queue_judge import drain, judge_queues
from tests.helpers.queue_ledger import Place, QueueLedger, is_bucket
from tests.helpers.tiny_engine import PATH

SECOND_LIFE = (
    "put", "put", "put", "get", "get", "ack", "nack", "reject", "tx", "pass_time", "purge",
    "declare_missing", "resume", "squeeze", "checkpoint", "begin_checkpoint", "sync", "reap",
    "combine", "roll", "delete", "inhale", "release",
)  # fmt: skip


class QueueImage:
    """A disk after a crash and what its ledger demands; see Image. seen: places of messages that
    had been delivered by then."""

    def __init__(
        self, fs: FaultyFileSystem, ledger: QueueLedger, seen: set[Place], need: int, floor: int,
        last: int,
    ) -> None:  # fmt: skip
        self.fs = fs
        self.ledger = ledger
        self.seen = seen
        self.need = need
        self.floor = floor
        self.last = last


class QueueExplorer:
    """Makes images and judges them; all chance comes from one seed.

    follow: how often (0.0 to 1.0) something follows a recovery.
    """

    def __init__(
        self, options: StorageOptions, seed: int, counts: Counts, *, follow: float = 0.5
    ) -> None:
        self.options = options
        self.rng = random.Random(seed)
        self.counts = counts
        self.follow = follow
        self.path: list[str] = []  # how the present image came about
        self._uid = 1_000_000

    def crash(self, driver: QueueDriver, journal: Journal, at: int, mode: str) -> QueueImage:
        """What a crash after this operation leaves."""
        return self.image(driver.life, journal.image(at), at, mode)

    def image(self, life: QueueLedger, fs: FaultyFileSystem, at: int, mode: str) -> QueueImage:
        """The same, of a file system as it was then."""
        disk, os, last = life.known(at)
        need = os if mode in ALL_LANDED else disk
        floor = disk if mode == "killed" else need
        crashed = fs.crash(mode, self.rng)
        return QueueImage(crashed, life, life.seen_at(at), need, floor, last)

    def recover(self, image: QueueImage) -> QueueDriver:
        """Open the storage of the image and judge it; the queues are not open yet."""
        self.counts.images += 1
        self._uid += 1000
        life = QueueLedger()
        life.ids, life.numbers = image.ledger.ids, image.ledger.numbers
        life.wall_s, life.options = image.ledger.wall_s, image.ledger.options
        driver = QueueDriver(
            image.fs, self.rng.getrandbits(32), options=self.options, ledger=life,
            first_uid=self._uid,
        )  # fmt: skip
        lsn, model = image.ledger.check(driver.engine, image.need, image.last)
        self.counts.cut_records += driver.engine.recovered.cut_records
        self.counts.replayed += driver.engine.recovered.records
        driver.ledger = image.ledger.restarted(lsn, model)
        driver.life.seen = image.seen
        return driver

    def revive(self, image: QueueImage) -> QueueDriver:
        """The same, with its queues open and judged."""
        driver = self.recover(image)
        driver.open_queues()
        judge_queues(driver)
        return driver

    def explore(self, image: QueueImage) -> None:
        """Recover from an image, judge it, and see what may follow."""
        roll = self.rng.random()
        if roll >= self.follow:
            self.revive(image)
        elif roll < 0.25 * self.follow:
            self._crash_in_recovery(image)
        elif roll < 0.6 * self.follow:
            self._second_life(image)
        elif roll < 0.8 * self.follow:
            self.path.append("then drained")
            driver = self.revive(image)
            drain(driver)
            self._close(driver)
            self.path.pop()
        else:
            self._close(self.revive(image))

    def _crash_in_recovery(self, image: QueueImage) -> None:
        journal = image.fs.start_journal()
        self.revive_journal(image)
        for _ in range(self.rng.choice((1, 1, 2))):
            at = self.rng.randint(journal.first, journal.last)
            mode = self.rng.choice(MODES)
            self.path.append(f"operation {at} of {journal.last} of recovery, {mode}")
            need = image.need if mode in ALL_LANDED else image.floor
            fs = journal.image(at).crash(mode, self.rng)
            self.counts.in_recovery += 1
            self.revive(QueueImage(fs, image.ledger, image.seen, need, need, image.last))
            self.path.pop()

    def revive_journal(self, image: QueueImage) -> None:
        """Recover, with the journal of the storage's part of that, then open and judge."""
        driver = self.recover(image)
        image.fs.journal = None
        driver.open_queues()
        judge_queues(driver)

    def _second_life(self, image: QueueImage) -> None:
        driver = self.recover(image)
        journal = driver.fs.start_journal()
        driver.watch()
        driver.open_queues()
        judge_queues(driver)
        driver.turn()
        for _ in range(self.rng.randint(0, 6)):
            driver.step(self.rng.choice(SECOND_LIFE))
        driver.fs.before_operation = None
        at = self.rng.randint(journal.first, journal.last)
        mode = self.rng.choice(MODES)
        self.path.append(f"then {' '.join(driver.trace)}; operation {at} of {journal.last}, {mode}")
        self.revive(self.crash(driver, journal, at, mode))
        self.path.pop()

    def _close(self, driver: QueueDriver) -> None:
        self.path.append("then closed, the rest is lost")
        driver.close()
        last = driver.engine.log.last_lsn
        fs = driver.fs.crash("lost", self.rng)
        report = verify(fs, PATH)
        if not report.is_fine:
            raise Violation(f"verify after an orderly stop: {report.problems[0]}")
        seen = driver.life.seen_at(fs.operations + driver.fs.operations)
        again = self.revive(QueueImage(fs, driver.life, seen, last, last, last))
        if again.engine.state.reaping:
            raise Violation(f"an orderly stop left {len(again.engine.state.reaping)} to be reaped")
        if not again.engine.recovered.is_clean:
            raise Violation("an orderly stop was not found clean")
        self._judge_marks(driver)
        self.path.pop()

    def _judge_marks(self, driver: QueueDriver) -> None:
        """After an orderly stop the mark is exact: above what was delivered or died, and no more
        (a transient message that died may have moved it too, and what is due moves a bucket's)."""
        for number, mark in driver.life.lowered.items():
            least = driver.most[number]
            most = max(least, driver.books.died.get(number, 0))
            is_vague = driver.transients or not driver.is_strict
            is_vague = is_vague or is_bucket(driver.books.names[number])
            if mark < least or (mark > most and not is_vague):
                raise Violation(f"queue {number}: mark {mark}, should be {least} to {most}")
