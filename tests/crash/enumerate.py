"""All triples of what an engine does, crashed at every operation of the file system.

    python -m tests.crash.enumerate [--images N] [--seed S] [--jobs J]

Each of the 9^3 triples of OPERATIONS runs on a small prepared store, once per round and variant of
the options, with a journal; then the store is crashed at operations of that journal, in every mode,
recovered from and judged (images.py). With few images the points and modes are drawn by the seed,
so that all triples are touched; with many every point is taken in every mode, and further rounds
run the triples with other seeds. The same N and S give the same images.

One line of counts is printed at the end. A violation prints what makes it again: seed, triple,
round, operation, mode, and what the engine did; the exit code is then 1.
"""

import argparse
import itertools
import multiprocessing
import random
import sys
import traceback
from collections.abc import Iterable, Iterator

from tests.crash.images import MODES, Counts, Explorer
from tests.helpers.faulty_filesystem import FaultyFileSystem, Journal
from tests.helpers.ledger import Ledger, Violation
from tests.helpers.tiny_engine import STORED, VARIANTS
from tests.helpers.vhost_driver import QUEUES, Driver

OPERATIONS = (
    "publish", "ack", "tx", "move", "roll", "checkpoint", "combine", "purge", "delete",
)  # fmt: skip
TRIPLES = tuple(itertools.product(OPERATIONS, repeat=3))
ALL_POINTS_FROM = 200  # images of a triple from which on every point is taken
IMAGES_PER_UNIT_MAX = 600

Prepared = tuple[FaultyFileSystem, Ledger, int]  # a store, the ledger of its state, the next uid
_PREPARED: dict[int, Prepared] = {}


def prepare(variant: int) -> Prepared:
    """A store with some of everything: entries in slots, sections and log, live and dead; store
    files worth combining; shared bodies; a queue that was purged and not yet reaped."""
    found = _PREPARED.get(variant)
    if found is None:
        driver = Driver(FaultyFileSystem(seed=variant), variant, options=VARIANTS[variant])
        for name in QUEUES:
            driver.declare(name)
        for _ in range(9):
            driver.publish(driver.rng.randint(*STORED))
        for _ in range(8):
            driver.step("publish")
        driver.checkpoint()
        for _ in range(7):
            driver.step("ack")
        for _ in range(3):
            driver.step("publish")
        driver.step("requeue")
        driver.step("deliver")
        driver.checkpoint()
        driver.sync()
        driver.fs.sync_all()
        model = driver.ledger.fold(driver.engine.last_lsn)
        ledger = driver.ledger.restarted(driver.engine.last_lsn, model)
        found = _PREPARED[variant] = (driver.fs.fork(), ledger, driver.uid)
    return found


class Unit:
    """One triple in one round: a workload and its images."""

    def __init__(self, seed: int, triple: int, turn: int, images: int) -> None:
        self.seed = seed
        self.triple = triple
        self.turn = turn
        self.images = images

    def __repr__(self) -> str:
        return f"--seed {self.seed} --only {self.triple}:{self.turn} --images-each {self.images}"


def run_unit(unit: Unit) -> tuple[Counts, str]:
    """(counts, "" or the story of a violation)."""
    counts = Counts()
    rng = random.Random(unit.seed * 1_000_003 + unit.triple * 1009 + unit.turn)
    variant = (unit.triple + unit.turn) % len(VARIANTS)
    explorer = Explorer(VARIANTS[variant], rng.getrandbits(32), counts)
    driver: Driver | None = None
    where = "the workload itself"
    try:
        driver, journal = run_workload(unit, variant, rng)
        counts.workloads += 1
        for at, mode, fs in crash_points(journal, unit.images, rng, counts):
            where = f"operation {at} of {journal.first}..{journal.last}, {mode}"
            explorer.path.clear()
            image = explorer.crash(fs, mode, driver.ledger, driver.ledger.known(at))
            explorer.explore(image)
            if counts.images >= unit.images:
                break
    except Exception as error:
        kind = "violation" if isinstance(error, Violation) else "unexpected error"
        story = [f"{kind}: {type(error).__name__}: {error}", f"  {unit!r}"]
        story.append(f"  triple {' '.join(TRIPLES[unit.triple])}, variant {variant}")
        story.append(f"  {where} {'; '.join(explorer.path)}")
        if driver is not None:
            story.append(f"  did {' '.join(driver.trace)}")
        story.append(traceback.format_exc())
        return counts, "\n".join(story)
    return counts, ""


def run_workload(unit: Unit, variant: int, rng: random.Random) -> tuple[Driver, Journal]:
    """The triple on a copy of the prepared store, with a journal from its first operation on."""
    prepared, ledger, uid = prepare(variant)
    fs = prepared.fork()
    if rng.random() < 0.5:
        fs.completion_rng = random.Random(rng.getrandbits(32))
    life = Ledger()
    life.ids, life.numbers = dict(ledger.ids), set(ledger.numbers)
    driver = Driver(fs, rng.getrandbits(32), options=VARIANTS[variant], ledger=life, first_uid=uid)
    start = driver.engine.last_lsn
    driver.ledger = ledger.restarted(start, ledger.base)
    driver.ledger.ids, driver.ledger.numbers = life.ids, life.numbers
    if rng.random() < 0.5:
        driver.prepare_ahead()
    for _ in range(rng.randint(0, 5)):
        driver.step(rng.choice(("publish", "publish", "ack", "begin", "page_out", "spool")))
    driver.watch()
    driver.look()
    journal = fs.start_journal()
    for name in TRIPLES[unit.triple]:
        if name == "checkpoint":
            name = rng.choice(("checkpoint", "begin_checkpoint", "begin_checkpoint"))
        elif name == "delete":
            driver.step(name)
            name = "declare_missing"
        driver.step(name)
    finish(driver, rng)
    driver.look()
    fs.before_operation = None
    return driver, journal


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


def units(images: int, seed: int) -> Iterator[Unit]:
    """So many that they make at least this many images, round by round over all triples."""
    each = max(1, min(-(-images // len(TRIPLES)), IMAGES_PER_UNIT_MAX))
    for turn in itertools.count():
        for triple in range(len(TRIPLES)):
            yield Unit(seed, triple, turn, each)


def run(images: int, seed: int, jobs: int) -> tuple[Counts, list[str]]:
    """At least this many images, of every triple; the first violations, if there are any."""
    counts = Counts()
    stories: list[str] = []
    source = units(images, seed)
    if jobs == 1:
        _collect(map(run_unit, source), images, counts, stories)
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            while counts.images < images and not stories:
                batch = list(itertools.islice(source, len(TRIPLES)))
                _collect(pool.imap(run_unit, batch, chunksize=8), images, counts, stories)
    return counts, stories


def _collect(
    results: Iterable[tuple[Counts, str]], images: int, counts: Counts, stories: list[str]
) -> None:
    """Add up until there are enough, and every triple had its turn, or a violation is found."""
    for found, story in results:
        counts.add(found)
        if story:
            stories.append(story)
            return
        if counts.images >= images and counts.workloads >= len(TRIPLES):
            return


def line(counts: Counts, seed: int) -> str:
    """The counts, for people."""
    return (
        f"crash enumeration, seed {seed}: {counts.workloads} runs of {len(TRIPLES)} triples, "
        f"{counts.points} crash points, {counts.images} images recovered from "
        f"({counts.in_recovery} of crashes inside recovery), {counts.replayed} records replayed, "
        f"{counts.cut_records} cut"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", help="triple:round, as a violation prints it")
    parser.add_argument("--images-each", type=int, default=28)
    options = parser.parse_args()
    if options.only:
        triple, _, turn = options.only.partition(":")
        counts, story = run_unit(Unit(options.seed, int(triple), int(turn), options.images_each))
        stories = [story] if story else []
    else:
        counts, stories = run(options.images, options.seed, options.jobs)
    print(line(counts, options.seed))
    for story in stories:
        print(story)
    return 1 if stories else 0


if __name__ == "__main__":
    sys.exit(main())
