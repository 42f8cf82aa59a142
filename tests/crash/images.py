"""Images: what one crash may leave on the disk, recovered from and judged, and what may follow.

One run of a workload with a journal gives every crash point; each point gives an image per mode of
crash (`FaultyFileSystem.crash`). An image is recovered, judged (`Ledger.check`), and by chance

    crashed again  the recovery's own journal gives images, recovered from and judged like any other
    second life    some more traffic on what was recovered, and a crash of that
    abandoned      the process dies at once, all that was not synced is lost: the same state again
    closed         an orderly stop and start: the same state again

What must have survived depends on the crash: after a power cut what was confirmed in mode `disk`;
when the kernel lived (`killed`), or everything landed (`kept`), whatever was confirmed in any mode.
"""

import random

from penstock.storage.files.options import StorageOptions
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Ledger, Violation
from tests.helpers.vhost_driver import Driver

MODES = ("lost", "kept", "subset", "torn", "zeros", "killed")
ALL_LANDED = frozenset({"kept", "killed"})
SECOND_LIFE = (
    "publish", "publish", "publish", "ack", "tx", "move", "roll", "checkpoint", "begin_checkpoint",
    "purge", "sync", "page_out", "declare_missing", "reap", "combine",
)  # fmt: skip


class Counts:
    """What was done, for the line that is printed."""

    def __init__(self) -> None:
        self.workloads = 0
        self.points = 0
        self.images = 0
        self.in_recovery = 0  # of the images: crashes inside recovery
        self.cut_records = 0
        self.replayed = 0

    def add(self, other: "Counts") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Explorer:
    """Makes images and judges them; all chance comes from one seed.

    follow: how often (0.0 to 1.0) something follows a recovery. A subclass says what its stores
    hold: who drives them, and what a second life does.
    """

    driver: type[Driver] = Driver
    second_life: tuple[str, ...] = SECOND_LIFE

    def __init__(
        self, options: StorageOptions, seed: int, counts: Counts, *, follow: float = 0.5
    ) -> None:
        self.options = options
        self.rng = random.Random(seed)
        self.counts = counts
        self.follow = follow
        self.path: list[str] = []  # how the present image came about
        self._uid = 1_000_000

    def crash(
        self, fs: FaultyFileSystem, mode: str, ledger: Ledger, known: tuple[int, int, int]
    ) -> "Image":
        """What the crash leaves. known: (settled in mode disk, in mode os, last LSN)."""
        disk, os, last = known
        need = os if mode in ALL_LANDED else disk
        floor = disk if mode == "killed" else need
        return Image(fs.crash(mode, self.rng), ledger, need, floor, last)

    def recover(self, image: "Image") -> Driver:
        """Open the image and judge what is found; a driver of the new life."""
        self.counts.images += 1
        life = Ledger()
        life.ids, life.numbers = image.ledger.ids, image.ledger.numbers
        self._uid += 1000
        driver = self.driver(
            image.fs, self.rng.getrandbits(32), options=self.options, ledger=life,
            first_uid=self._uid,
        )  # fmt: skip
        lsn, model = image.ledger.check(driver.engine, image.need, image.last)
        self.counts.cut_records += driver.engine.recovered.cut_records
        self.counts.replayed += driver.engine.recovered.records
        driver.ledger = image.ledger.restarted(lsn, model)
        return driver

    def explore(self, image: "Image") -> None:
        """Recover from an image, judge it, and see what may follow."""
        roll = self.rng.random()
        if roll >= self.follow:
            self.recover(image)
        elif roll < 0.4 * self.follow:
            self._crash_in_recovery(image)
        elif roll < 0.75 * self.follow:
            self._second_life(self.recover(image))
        elif roll < 0.9 * self.follow:
            self._abandon(self.recover(image))
        else:
            self._close(self.recover(image))

    def _crash_in_recovery(self, image: "Image") -> None:
        journal = image.fs.start_journal()
        self.recover(image)
        image.fs.journal = None
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            at = self.rng.randint(journal.first, journal.last)
            mode = self.rng.choice(MODES)
            self.path.append(f"operation {at} of {journal.last} of recovery, {mode}")
            need = image.need if mode in ALL_LANDED else image.floor
            fs = journal.image(at).crash(mode, self.rng)
            self.counts.in_recovery += 1
            self.recover(Image(fs, image.ledger, need, need, image.last))
            self.path.pop()

    def _second_life(self, driver: Driver) -> None:
        journal = driver.fs.start_journal()
        driver.watch()
        for _ in range(self.rng.randint(1, 5)):
            driver.step(self.rng.choice(self.second_life))
        driver.fs.before_operation = None
        at = self.rng.randint(journal.first, journal.last)
        mode = self.rng.choice(MODES)
        self.path.append(f"then {' '.join(driver.trace)}; operation {at} of {journal.last}, {mode}")
        self.recover(self.crash(journal.image(at), mode, driver.ledger, driver.ledger.known(at)))
        self.path.pop()

    def _abandon(self, driver: Driver) -> None:
        self.path.append("then abandoned, the rest is lost")
        lsn = driver.engine.log.last_lsn
        self.recover(Image(driver.fs.crash("lost", self.rng), driver.ledger, lsn, lsn, lsn))
        self.path.pop()

    def _close(self, driver: Driver) -> None:
        self.path.append("then closed, the rest is lost")
        lsn = driver.engine.log.last_lsn
        driver.close()
        last = driver.engine.log.last_lsn
        fs = driver.fs.crash("lost", self.rng)
        report = verify(fs, self.driver.path)
        if not report.is_fine:
            raise Violation(f"verify after an orderly stop: {report.problems[0]}")
        again = self.recover(Image(fs, driver.ledger, lsn, lsn, last))
        if again.engine.state.reaping:
            raise Violation(f"an orderly stop left {len(again.engine.state.reaping)} to be reaped")
        if not again.engine.recovered.is_clean:
            raise Violation("an orderly stop was not found clean")
        self.path.pop()


class Image:
    """A disk after a crash, and what its ledger demands: the LSN that must be there, that which
    must be there if a power cut follows, and the last that may be there."""

    def __init__(
        self, fs: FaultyFileSystem, ledger: Ledger, need: int, floor: int, last: int
    ) -> None:
        self.fs = fs
        self.ledger = ledger
        self.need = need
        self.floor = floor
        self.last = last
