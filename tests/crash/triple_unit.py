"""What crashes of triples of operations share: a store, a workload, images of it, a story.

A Unit is one triple in one round. Its workload runs on a copy of a small prepared store, with a
journal; then the store is crashed at operations of that journal, recovered from and judged
(images.py). A subclass says what the store holds, and what the operations are: enumerate.py has
queues, lease_lives.py leased ones, stream_lives.py streams too, batch_lives.py batches.

With few images the points and modes are drawn by the seed, so that all triples are touched, or
as many as there are images, drawn evenly; with
many every point is taken in every mode, and further rounds run the triples with other seeds. The
same number of images and seed give the same images.

What the tests of all kinds ask stands at the end: every triple survives, a store that is new
survives a script, and the same seed gives the same images.
"""

import argparse
import itertools
import multiprocessing
import random
import traceback
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

from tests.crash.images import MODES, Counts, Explorer
from tests.helpers.faulty_filesystem import FaultyFileSystem, Journal
from tests.helpers.ledger import Ledger, Violation
from tests.helpers.tiny_engine import VARIANTS, make_vhost
from tests.helpers.vhost_driver import Driver

if TYPE_CHECKING:
    import pytest

ALL_POINTS_FROM = 200  # images of a triple from which on every point is taken
IMAGES_PER_UNIT_MAX = 600

Prepared = tuple[FaultyFileSystem, Ledger, int]  # a store, the ledger of its state, the next uid


class Unit:
    """One triple in one round: a workload and its images."""

    TITLE: ClassVar[str]
    TRIPLES: ClassVar[tuple[tuple[str, ...], ...]]
    BEFORE: ClassVar[tuple[str, ...]]  # steps drawn from before the triple, so that it meets some
    BEFORE_MAX: ClassVar[int]
    AND_THEN: ClassVar[dict[str, str]]  # an operation -> the step that makes up for it
    IMAGES: ClassVar[int] = 5000  # of a run from the command line, by default
    IMAGES_EACH: ClassVar[int] = 10  # of one unit from the command line, by default
    EXPLORER: ClassVar[type[Explorer]] = Explorer  # makes the images and judges them; its driver
    _prepared: ClassVar[dict[tuple[str, int], Prepared]] = {}

    def __init__(self, seed: int, triple: int, turn: int, images: int) -> None:
        self.seed = seed
        self.triple = triple
        self.turn = turn
        self.images = images
        self.variant = (triple + turn) % len(VARIANTS)

    def __repr__(self) -> str:
        return f"--seed {self.seed} --only {self.triple}:{self.turn} --images-each {self.images}"

    # ---- of each kind --------------------------------------------------------------------------

    def fill(self, driver: Driver) -> None:
        """What the prepared store holds, up to its last checkpoint and sync."""
        raise NotImplementedError

    def look_back(self, driver: Driver) -> None:
        """At the end of the workload; the journal still runs."""

    # ---- the workload --------------------------------------------------------------------------

    def prepare(self) -> Prepared:
        """The store of this variant; made once."""
        key = (self.TITLE, self.variant)
        found = self._prepared.get(key)
        if found is None:
            fs = FaultyFileSystem(seed=self.variant)
            driver = self.EXPLORER.driver(fs, self.variant, options=VARIANTS[self.variant])
            self.fill(driver)
            driver.fs.sync_all()
            model = driver.ledger.fold(driver.engine.log.last_lsn)
            ledger = driver.ledger.restarted(driver.engine.log.last_lsn, model)
            found = self._prepared[key] = (driver.fs.fork(), ledger, driver.uid)
        return found

    def begin(self, rng: random.Random) -> Driver:
        """A driver of a copy of the prepared store, with some traffic behind it."""
        prepared, ledger, uid = self.prepare()
        fs = prepared.fork()
        if rng.random() < 0.5:
            fs.completion_rng = random.Random(rng.getrandbits(32))
        life = Ledger()
        life.ids, life.numbers = dict(ledger.ids), set(ledger.numbers)
        driver = self.EXPLORER.driver(
            fs, rng.getrandbits(32), options=VARIANTS[self.variant], ledger=life, first_uid=uid
        )
        driver.ledger = ledger.restarted(driver.engine.log.last_lsn, ledger.base)
        driver.ledger.ids, driver.ledger.numbers = life.ids, life.numbers
        if rng.random() < 0.5:
            driver.prepare_ahead()
        for _ in range(rng.randint(0, self.BEFORE_MAX)):
            driver.step(rng.choice(self.BEFORE))
        return driver

    def work(self, driver: Driver, rng: random.Random) -> Journal:
        """The triple, with a journal from its first operation on."""
        driver.watch()
        driver.look()
        journal = driver.fs.start_journal()
        for name in self.TRIPLES[self.triple]:
            if name == "checkpoint":
                name = rng.choice(("checkpoint", "begin_checkpoint", "begin_checkpoint"))
            driver.step(name)
            if name in self.AND_THEN:
                driver.step(self.AND_THEN[name])
        finish(driver, rng)
        driver.look()
        driver.fs.before_operation = None
        self.look_back(driver)
        return journal

    # ---- its images ----------------------------------------------------------------------------

    def run(self) -> tuple[Counts, str]:
        """(counts, "" or the story of a violation)."""
        counts = Counts()
        rng = random.Random(self.seed * 1_000_003 + self.triple * 1009 + self.turn)
        explorer = self.EXPLORER(VARIANTS[self.variant], rng.getrandbits(32), counts)
        driver: Driver | None = None
        where = "the workload itself"
        try:
            driver = self.begin(rng)
            journal = self.work(driver, rng)
            counts.workloads += 1
            for at, mode, fs in crash_points(journal, self.images, rng, counts):
                where = f"operation {at} of {journal.first}..{journal.last}, {mode}"
                explorer.path.clear()
                explorer.explore(explorer.crash(fs, mode, driver.ledger, driver.ledger.known(at)))
                if counts.images >= self.images:
                    break
        except Exception as error:
            kind = "violation" if isinstance(error, Violation) else "unexpected error"
            story = [f"{kind}: {type(error).__name__}: {error}", f"  {self!r}"]
            story.append(f"  triple {' '.join(self.TRIPLES[self.triple])}, variant {self.variant}")
            story.append(f"  {where} {'; '.join(explorer.path)}")
            if driver is not None:
                story.append(f"  did {' '.join(driver.trace)}")
            story.append(traceback.format_exc())
            return counts, "\n".join(story)
        return counts, ""


def finish(driver: Driver, rng: random.Random) -> None:
    """Let what was begun come to an end, in one of several ways, or not at all."""
    roll = rng.random()
    if roll < 0.3:
        driver.step("finish_checkpoint")
        driver.step("sync")
        driver.step("reap")
        driver.step("idle")
    elif roll < 0.6:
        driver.step("sync")
        driver.step("finish_checkpoint")
    elif roll < 0.75:
        driver.trace.append("close")
        driver.look()
        driver.close()


def crash_points(
    journal: Journal, images: int, rng: random.Random, counts: Counts
) -> Iterator[tuple[int, str, FaultyFileSystem]]:
    """(operation, mode, the file system just after it, in flight)."""
    points = range(journal.first, journal.last + 1)
    chosen: dict[int, list[str]] = {}
    if images >= ALL_POINTS_FROM:
        chosen = {at: [*MODES, "subset", "torn"] for at in points}
    else:
        for _ in range(images):
            chosen.setdefault(rng.choice(points), []).append(rng.choice(MODES))
    for at, fs in journal.images(min(chosen), max(chosen)):
        if at in chosen:
            counts.points += 1
            for mode in chosen[at]:
                yield at, mode, fs


# ---- all of it ---------------------------------------------------------------------------------


def units(kind: type[Unit], images: int, seed: int) -> Iterator[Unit]:
    """So many that they make at least this many images, round by round over all triples."""
    many = least_workloads(kind, images)
    each = max(1, min(-(-images // many), IMAGES_PER_UNIT_MAX))
    for turn in itertools.count():
        for n in range(many):
            yield kind(seed, n * len(kind.TRIPLES) // many, turn, each)


def least_workloads(kind: type[Unit], images: int) -> int:
    """How many triples have their turn."""
    return min(images, len(kind.TRIPLES))


def run(kind: type[Unit], images: int, seed: int, jobs: int = 1) -> tuple[Counts, list[str]]:
    """At least this many images, of every triple; the first violations, if there are any."""
    counts = Counts()
    stories: list[str] = []
    source = units(kind, images, seed)
    least = least_workloads(kind, images)
    if jobs == 1:
        _collect(map(Unit.run, source), images, least, counts, stories)
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            while counts.images < images and not stories:
                batch = list(itertools.islice(source, least))
                _collect(pool.imap(Unit.run, batch, chunksize=8), images, least, counts, stories)
    return counts, stories


def _collect(
    results: Iterable[tuple[Counts, str]], images: int, least: int, counts: Counts,
    stories: list[str],
) -> None:  # fmt: skip
    """Add up until there are enough, and every triple had its turn, or a violation is found."""
    for found, story in results:
        counts.add(found)
        if story:
            stories.append(story)
            return
        if counts.images >= images and counts.workloads >= least:
            return


def line(kind: type[Unit], counts: Counts, seed: int) -> str:
    """The counts, for people."""
    return (
        f"{kind.TITLE}, seed {seed}: {counts.workloads} runs of {len(kind.TRIPLES)} triples, "
        f"{counts.points} crash points, {counts.images} images recovered from "
        f"({counts.in_recovery} of crashes inside recovery), {counts.replayed} records replayed, "
        f"{counts.cut_records} cut"
    )


def main(kind: type[Unit], doc: str) -> int:
    """The command line. Exit status 1: there is a violation."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--images", type=int, default=kind.IMAGES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", help="triple:round, as a violation prints it")
    parser.add_argument("--images-each", type=int, default=kind.IMAGES_EACH)
    options = parser.parse_args()
    if options.only:
        triple, _, turn = options.only.partition(":")
        unit = kind(options.seed, int(triple), int(turn), options.images_each)
        counts, story = unit.run()
        stories = [story] if story else []
    else:
        counts, stories = run(kind, options.images, options.seed, options.jobs)
    print(line(kind, counts, options.seed))
    for story in stories:
        print(story)
    return 1 if stories else 0


# ---- what tests ask ----------------------------------------------------------------------------


def check_triples(
    kind: type[Unit], images: int, seed: int, capsys: "pytest.CaptureFixture[str]", *,
    jobs: int = 1, recovery_share: int = 20,
) -> None:  # fmt: skip
    """Every triple survives; the counts are printed. recovery_share: of so many images more than
    one is of a crash inside recovery."""
    counts, stories = run(kind, images, seed, jobs)
    with capsys.disabled():
        print(f"\n{line(kind, counts, seed)}")
    assert not stories, "\n".join(stories)
    assert counts.images >= images, counts.images
    assert counts.workloads >= least_workloads(kind, images), counts.workloads
    assert counts.in_recovery > counts.images // recovery_share, counts.in_recovery


def check_script(explorer_of: type[Explorer], names: Iterable[str]) -> Counts:
    """Steps on a store with one empty queue survive a crash at every operation, in every mode and
    variant."""
    counts = Counts()
    for variant, options in enumerate(VARIANTS):
        fs = FaultyFileSystem(seed=variant)
        make_vhost(fs)
        driver = explorer_of.driver(fs, variant, options=options)
        driver.declare(b"a")
        driver.sync()
        journal = fs.start_journal()
        driver.watch()
        driver.look()
        for name in names:
            driver.step(name)
        driver.look()
        fs.before_operation = None
        explorer = explorer_of(options, variant, counts, follow=0.3)
        for at, image in journal.images():
            for mode in MODES:
                known = driver.ledger.known(at)
                explorer.explore(explorer.crash(image, mode, driver.ledger, known))
    return counts


def check_repeats(kind: type[Unit]) -> None:
    """The same seed gives the same images."""
    first, _ = kind(3, 100, 0, 20).run()
    second, _ = kind(3, 100, 0, 20).run()
    assert vars(first) == vars(second), (vars(first), vars(second))
