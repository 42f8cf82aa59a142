"""Lives of queues, scripted and random, crashed at every operation of the file system.

    python -m tests.crash.queue_lives [--images N] [--seed S] [--jobs J] [--only NAME:ROUND]

A *script* is a short life about one thing: paging, requeue, reading ahead, expiry, delays, dead
letters, transactions, priorities, marks, purging. It begins on a prepared store and runs with a
journal; then it is crashed at operations of that journal and judged (queue_images.py): with few
images at drawn ones, with many at all of them in every mode. Between the scripts come *random*
lives, of any operation, each a few lives long: every one begins with what a crash of the last has
left.

The same images and seed give the same. A violation prints what makes it again.
"""

import argparse
import itertools
import multiprocessing
import random
import sys
import traceback
from collections.abc import Iterable, Iterator

from penstock.queues.queue_ram import CHECKS
from tests.crash.images import MODES, Counts
from tests.crash.queue_images import QueueExplorer
from tests.helpers.faulty_filesystem import FaultyFileSystem, Journal
from tests.helpers.ledger import Violation
from tests.helpers.queue_driver import QueueDriver
from tests.helpers.queue_ledger import QueueLedger
from tests.helpers.queue_owner import NAMES, SETS
from tests.helpers.tiny_engine import VARIANTS

ALL_POINTS_FROM = 400  # images of a life from which on every point is taken
IMAGES_PER_LIFE_MAX = 4000
POINTS = 5  # images of a random life
LIVES = 3
STEPS_MAX = 100
BATCH = 200  # lives that are shared out among processes at once
RANDOM = "random"

SCRIPTS = {
    "paging": (
        "put_now:jobs", "put_many:jobs", "put_many:jobs", "resume:jobs", "put_transient:jobs",
        "squeeze:jobs", "get:jobs", "get:jobs", "inhale:jobs", "poll", "put_many:jobs",
        "checkpoint", "squeeze:jobs", "get:jobs", "ack:jobs", "put_now:jobs", "sync",
    ),
    "requeue": (
        "put_many:loose", "put_many:loose", *["get:loose"] * 3, "requeue:loose", "requeue:loose",
        "get:loose", "release:loose", *["put_many:jobs"] * 4, "squeeze_out:jobs",
        *["get:jobs"] * 9, "requeue:jobs", "release:jobs", "resume:jobs", "put_many:jobs",
        "get:jobs", "release:jobs", "resume:jobs", "get:jobs", "begin_checkpoint", "requeue:jobs",
        "finish_checkpoint", *["get:jobs"] * 3, "nack:jobs", "sync",
    ),
    "read ahead": (
        *["put_many:jobs"] * 4, "squeeze_out:jobs", "widen:jobs", "inhale:jobs", "get:jobs",
        "inhale:jobs", "get:jobs", "inhale:jobs", "requeue:jobs", "inhale:jobs", "poll",
        "put_many:jobs", "squeeze_out:jobs", "widen:jobs", *["get:jobs", "inhale:jobs"] * 3,
        "release:jobs", "inhale:jobs", "checkpoint", "get:jobs", "inhale:jobs", "poll", "get:jobs",
        "ack:jobs", "inhale:jobs", "purge:jobs", "poll", "put_now:jobs", "sync",
    ),
    "flowing": (
        *["put_many:jobs"] * 3, "squeeze_out:jobs", *["put_transient:jobs"] * 6, "put_many:jobs",
        *["put_transient:jobs"] * 4, *["get:jobs"] * 6, "resume:jobs", "put_many:jobs",
        "widen:jobs", "inhale:jobs", "poll", *["get:jobs"] * 4, "ack:jobs", "checkpoint",
        "put_transient:jobs", "squeeze_out:jobs", "put_many:jobs", *["get:jobs"] * 4, "sync",
    ),
    "expiry": (
        "put_now:loose", "put_now:ranked", "put_many:ranked", "put_now:loose", "put_many:loose",
        "resume:loose", "get:ranked", "pass_time", "pass_time", "put_now:ranked", "sync",
        "pass_time", "tick_queues", "checkpoint", "pass_time", "pass_time",
    ),
    "delays": (
        "put_later:jobs", "put_later:jobs", "put_later:ranked", "put_later:loose", "sync",
        "pass_time", "put_later:jobs", "pass_time", "get:jobs", "nack_later:jobs", "pass_time",
        "checkpoint", "pass_time", "get:jobs", "nack_later:jobs", "pass_time", "pass_time", "sync",
        "purge_later:jobs", "pass_time",
    ),
    "dead letters": (
        "put_many:jobs", "put_many:ranked", "put_many:ranked", "get:jobs", "reject:jobs",
        "get:ranked", "reject:ranked", "put_many:ranked", "get:dead", "get:jobs", "requeue:jobs",
        "get:jobs", "requeue:jobs", "get:jobs", "requeue:jobs", "checkpoint", "get:dead",
        "ack:dead", "delete:dead", "get:jobs", "reject:jobs", "declare_missing:dead",
    ),
    "transactions": (
        "put_many:jobs", "put_twice", "put_twice", "get:jobs", "get:jobs", "begin",
        "put_now:jobs", "commit", "get:jobs", "get:ranked", "begin:ranked", "get:jobs",
        "begin_checkpoint", "commit", "tx", "get:dead", "tx:dead", "abort", "tx", "begin",
        "pass_time", "pass_time", "commit", "sync", "begin:jobs", "abort", "pass_time",
    ),
    "priorities": (
        "put_many:ranked", "put_now:ranked", "get:ranked", "put_many:ranked", "get:ranked",
        "requeue:ranked", "get:ranked", "resume:ranked", "ack:ranked", "squeeze:ranked",
        "get:ranked", "get:ranked", "release:ranked", "checkpoint", "purge:ranked",
        "put_many:ranked", "delete:ranked", "declare_missing:ranked", "put_now:ranked",
    ),
    "purging": (
        "put_many:jobs", "put_many:dead", "put_later:jobs", "get:jobs", "get:jobs",
        "squeeze_out:jobs", "checkpoint", "put_many:jobs", "purge:jobs", "ack:jobs", "reap",
        "purge:dead", "begin_checkpoint", "put_now:dead", "purge_later:jobs", "reap",
        "finish_checkpoint", "delete:jobs", "reap", "combine", "declare_missing:jobs",
        "put_now:jobs", "sync",
    ),
    "slices": (
        "widen:jobs", *["put_many:jobs"] * 4, *["get:jobs"] * 20, *["release:jobs"] * 5, "sync",
        "begin_checkpoint", *["release:jobs", "get:jobs", "ack:jobs"] * 6, "finish_checkpoint",
        "ack:jobs", "get:jobs",
    ),
    "marks": (
        "run_ahead:dead", "get:dead", "get:dead", "put_now:dead", "run_ahead:dead", "get:dead",
        "get:dead", "get:dead", "nack:dead", "get:dead", "begin_checkpoint", "ack:dead",
        "run_ahead:dead", "get:dead", "get:dead", "get:dead", "flush", "get:dead",
    ),
}  # fmt: skip

WEIGHTS = {
    "put": 30, "put_many": 6, "put_twice": 4, "put_transient": 4, "get": 26, "ack": 11, "nack": 8,
    "reject": 4, "release": 3, "browse": 1, "purge": 1, "purge_later": 1, "delete": 1,
    "declare_missing": 4, "begin": 3, "commit": 4, "abort": 1, "tx": 3, "tick_queues": 4,
    "pass_time": 6, "resume": 4, "inhale": 3, "squeeze": 3, "widen": 2, "squeeze_out": 1,
    "roll": 2, "checkpoint": 2, "begin_checkpoint": 5, "finish_checkpoint": 2, "combine": 4,
    "reap": 4, "flush": 3, "poll": 3, "sync": 5, "tick": 3,
}  # fmt: skip
_NAMES = tuple(WEIGHTS)
_CUMULATED = tuple(itertools.accumulate(WEIGHTS.values()))


class Life:
    """A life to be crashed. name: of a script, or "random"."""

    def __init__(self, seed: int, name: str, turn: int, images: int) -> None:
        self.seed = seed
        self.name = name
        self.turn = turn
        self.images = images

    def __repr__(self) -> str:
        return f"--seed {self.seed} --only '{self.name}:{self.turn}' --images-each {self.images}"


def new_driver(seed: int, variant: int) -> QueueDriver:
    """An empty store with all queues declared."""
    ledger = QueueLedger()
    ledger.options = seed % len(SETS)
    driver = QueueDriver(
        FaultyFileSystem(seed=seed), seed, options=VARIANTS[variant], ledger=ledger
    )
    driver.open_queues()
    for name in NAMES:
        driver.step("declare_missing:" + name)
    return driver


def begin(driver: QueueDriver) -> Journal:
    """From here on everything is in the journal and the ledger."""
    journal = driver.fs.start_journal()
    driver.watch()
    driver.look()
    return journal


def run_script(life: Life, rng: random.Random, variant: int) -> tuple[QueueDriver, Journal]:
    """A script, on a store with some of everything, some of it not yet durable."""
    driver = new_driver(rng.getrandbits(16), variant)
    if rng.random() < 0.5:
        driver.fs.completion_rng = random.Random(rng.getrandbits(32))
    for _ in range(rng.randint(0, 12)):
        driver.step(rng.choice(("put", "put", "get", "nack", "checkpoint", "sync", "pass_time")))
    journal = begin(driver)
    for name in SCRIPTS[life.name]:
        driver.step(name)
    if rng.random() < 0.4:
        driver.trace.append("close")
        driver.look()
        driver.close()
    driver.look()
    driver.fs.before_operation = None
    return driver, journal


def run_life(life: Life) -> tuple[Counts, str]:
    """(counts, "" or the story of a violation)."""
    CHECKS.is_on = True
    counts = Counts()
    rng = random.Random(f"{life.seed} {life.name} {life.turn}")
    variant = rng.randrange(len(VARIANTS))
    explorer = QueueExplorer(VARIANTS[variant], rng.getrandbits(32), counts)
    where: list[str] = ["the life itself"]
    driver: QueueDriver | None = None
    try:
        if life.name == RANDOM:
            run_random(explorer, rng, variant, where)
        else:
            driver, journal = run_script(life, rng, variant)
            counts.workloads += 1
            where[0] = "did " + " ".join(driver.trace)
            for at, mode, fs in points(journal, life.images, rng):
                counts.points += 1
                where[1:] = [f"operation {at} of {journal.first}..{journal.last}, {mode}"]
                explorer.path.clear()
                explorer.explore(explorer.image(driver.life, fs, at, mode))
                if counts.images >= life.images:
                    break
    except Exception as error:
        kind = "violation" if isinstance(error, Violation) else "unexpected error"
        story = [f"{kind}: {type(error).__name__}: {error}", f"  {life!r}, variant {variant}"]
        story += [f"  {text}" for text in (*where, "; ".join(explorer.path))]
        return counts, "\n".join([*story, traceback.format_exc()])
    return counts, ""


def points(
    journal: Journal, images: int, rng: random.Random
) -> Iterator[tuple[int, str, FaultyFileSystem]]:
    """(operation, mode, the file system just after it, in flight)."""
    every = range(journal.first, journal.last + 1)
    chosen: dict[int, list[str]] = {}
    if images >= ALL_POINTS_FROM:
        chosen = {at: [*MODES, "subset", "torn"] for at in every}
    else:
        for _ in range(images):
            chosen.setdefault(rng.choice(every), []).append(rng.choice(MODES))
    for at, fs in journal.images(min(chosen), max(chosen)):
        for mode in chosen.get(at, ()):
            yield at, mode, fs


def run_random(explorer: QueueExplorer, rng: random.Random, variant: int, where: list[str]) -> None:
    """A few lives of one store."""
    driver = new_driver(rng.getrandbits(16), variant)
    journal = begin(driver)
    for _ in range(LIVES):
        explorer.counts.workloads += 1
        for _ in range(rng.randint(5, STEPS_MAX)):
            where[:] = ["did " + " ".join(driver.trace)]
            driver.step(rng.choices(_NAMES, cum_weights=_CUMULATED)[0])
        driver.look()
        driver.fs.before_operation = None
        where[:] = ["did " + " ".join(driver.trace)]
        for i in range(POINTS):
            at = rng.randint(journal.first, journal.last)
            mode = rng.choice(MODES)
            explorer.counts.points += 1
            where[1:] = [f"operation {at} of {journal.first}..{journal.last}, {mode}"]
            image = explorer.crash(driver, journal, at, mode)
            explorer.path.clear()
            if i < POINTS - 1:
                explorer.explore(image)
        uid = driver.uid
        driver = explorer.recover(image)
        driver.uid = max(driver.uid, uid)
        journal = begin(driver)
        driver.open_queues()
        driver.turn()
        for name in NAMES:
            driver.focus = name
            if name not in driver.amq and rng.random() < 0.8:
                driver.declare_missing()
            driver.focus = ""


# ---- all of it -----------------------------------------------------------------------------------


def lives(images: int, seed: int) -> Iterator[Life]:
    """Round by round all scripts, each with as many images as bring them to the sum in a few
    rounds, and random lives between them."""
    each = max(10, min(images // (4 * len(SCRIPTS)), IMAGES_PER_LIFE_MAX))
    for turn in itertools.count():
        for i, name in enumerate(SCRIPTS):
            yield Life(seed, name, turn, each)
            for k in range(max(1, each // 30)):
                yield Life(seed, RANDOM, (turn * len(SCRIPTS) + i) * 1000 + k, each)


def run(images: int, seed: int, jobs: int = 1) -> tuple[Counts, str]:
    """At least this many images, and every script; the first violation, "" if there is none."""
    counts, source = Counts(), lives(images, seed)
    least = 2 * len(SCRIPTS)  # lives: every script, and random ones between them
    if jobs == 1:
        return counts, _collect(map(run_life, source), images, least, counts)
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        while True:
            batch = list(itertools.islice(source, BATCH))
            story = _collect(pool.imap(run_life, batch), images, least, counts)
            if story or counts.images >= images:
                return counts, story


def _collect(results: Iterable[tuple[Counts, str]], images: int, least: int, counts: Counts) -> str:
    """Add up until there are enough, or a violation is found."""
    for n, (found, story) in enumerate(results):
        counts.add(found)
        if story or (counts.images >= images and n >= least):
            return story
    return ""


def line(counts: Counts, seed: int) -> str:
    """The counts, for people."""
    return (
        f"queues, seed {seed}: {counts.workloads} lives, {counts.points} crash points, "
        f"{counts.images} images recovered from ({counts.in_recovery} of crashes inside "
        f"recovery), {counts.replayed} records replayed, {counts.cut_records} cut"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", help="name:round, as a violation prints it")
    parser.add_argument("--images-each", type=int, default=50)
    options = parser.parse_args()
    if options.only:
        name, _, turn = options.only.rpartition(":")
        counts, story = run_life(Life(options.seed, name, int(turn), options.images_each))
    else:
        counts, story = run(options.images, options.seed, options.jobs)
    print(line(counts, options.seed))
    if story:
        print(story)
    return 1 if story else 0


if __name__ == "__main__":
    sys.exit(main())
