"""Random lives of a vhost: long seeded traffic, crashes, recoveries, and on with what is left.

    python -m tests.crash.random_lives [--runs N] [--seed S] [--plan P]

Where enumerate.py goes through everything that is near, this finds what is rare: state that took
fifty operations and two crashes to build. One *run* is a few lives of one store. Each life is
traffic with a journal, sometimes with a failing sync; then images of some of its points are judged
(images.py), and one of them is what the next life begins with. At the end of a life that synced
everything one bit of its log is spoiled, and recovery must refuse or be right all the same [11].

`run(seed)` is the same for the same seed; a violation names it.
"""

import argparse
import errno
import itertools
import random
import sys
import traceback

from penstock.errors import CorruptionError, DiskFullError, StoppedError, SyncFailedError
from penstock.storage.log.log_file import ALIGN_BYTES
from tests.crash.images import ALL_LANDED, MODES, Counts, Explorer, Image
from tests.helpers.faulty_filesystem import FaultyFileSystem, Journal
from tests.helpers.ledger import Ledger, Violation
from tests.helpers.stream_driver import StreamDriver
from tests.helpers.tiny_engine import VARIANTS
from tests.helpers.vhost_driver import Driver

WEIGHTS = {
    "publish": 30, "ack": 14, "tx": 5, "begin": 3, "commit": 3, "rollback": 1, "move": 6,
    "deliver": 6, "requeue": 3, "purge": 2, "delete": 1, "declare_missing": 4, "roll": 3,
    "spool": 3, "publish_transient": 2, "page_out": 5, "checkpoint": 2, "begin_checkpoint": 6,
    "finish_checkpoint": 2, "combine": 5, "reap": 5, "flush": 4, "poll": 4, "sync": 6, "tick": 3,
    "idle": 1, "prepare_ahead": 1, "trim": 2,
}  # fmt: skip
LIVES = 3
POINTS = 4  # images of one life
STEPS_MAX = 120
SYNCS = frozenset({"sync", "sync_dir"})
WRITES = frozenset({"pwrite", "allocate"})
FAULTS: tuple[tuple[frozenset[str], int | str], ...] = (
    (SYNCS, errno.EIO), (SYNCS, errno.EIO), (WRITES, errno.EIO), (WRITES, errno.ENOSPC),
    (WRITES, "short"),
)  # fmt: skip
EXPECTED = (SyncFailedError, StoppedError, DiskFullError, OSError)  # of a call after a fault


class Plan:
    """What the lives of a run are like. faults: the share of lives with a fault, on paths that
    contain fault_path, of fault_kinds; modes: of the crashes; steps: at most so many; aim: crash
    only next to operations on such paths; variant: of the options, else each run has its own;
    follow: see Explorer; driver: of the traffic."""

    def __init__(
        self, weights: dict[str, int] | None = None, *, faults: float = 0.2, fault_path: str = "",
        fault_kinds: frozenset[str] = SYNCS | WRITES, modes: tuple[str, ...] = MODES,
        steps: int = STEPS_MAX, follow: float = 0.3,
        variant: int | None = None, aim: str = "", driver: type[Driver] = Driver,
    ) -> None:  # fmt: skip
        chosen = weights or WEIGHTS
        self.names = tuple(chosen)
        self.cumulated = tuple(itertools.accumulate(chosen.values()))
        self.faults = faults
        self.fault_path = fault_path
        self.fault_kinds = fault_kinds
        self.modes = modes
        self.steps = steps
        self.follow = follow
        self.variant = variant
        self.driver = driver
        self.aim = aim


PLANS = {
    "all": Plan(),
    "cache": Plan(
        {"publish": 30, "spool": 6, "ack": 5, "sync": 10, "flush": 10, "poll": 5},
        faults=1.0, fault_path="msg_store_persistent", modes=("killed",), steps=40, follow=0.8,
    ),
    "slices": Plan(
        {"publish": 20, "ack": 20, "begin_checkpoint": 8, "flush": 6, "poll": 10, "roll": 1},
        faults=0.0, modes=("lost",), steps=60, follow=0.0, aim="CURRENT",
    ),
    "purges": Plan(
        {"publish": 30, "page_out": 10, "purge": 6, "begin_checkpoint": 12, "poll": 10, "reap": 4,
         "deliver": 3, "ack": 3},
        faults=0.0, steps=60, follow=0.0, variant=1,
    ),
    "syncs": Plan(faults=1.0, fault_path="/wal/", fault_kinds=SYNCS, steps=40, follow=0.0),
    "writes": Plan(faults=1.0, fault_path="/wal/", steps=60),
    "streams": Plan(
        {"publish": 8, "ack": 4, "append": 20, "fill": 6, "mixed": 8, "begin_mixed": 3, "commit": 3,
         "rollback": 1, "one_record": 3, "set_reader": 5, "retain": 6, "declare_stream": 6,
         "delete_stream": 2, "declare_missing": 2, "roll": 2, "checkpoint": 2,
         "begin_checkpoint": 6, "finish_checkpoint": 2, "flush": 4, "poll": 6, "sync": 6, "tick": 3,
         "idle": 1, "read_streams": 2},
        faults=0.4, driver=StreamDriver,
    ),
    "trim": Plan(
        {"publish": 30, "ack": 15, "sync": 10, "flush": 6, "poll": 8, "page_out": 4, "trim": 10,
         "prepare_ahead": 2, "idle": 1, "finish_checkpoint": 2, "publish_transient": 1},
        faults=0.1, steps=60, variant=1,
    ),
    "parts": Plan(
        {"publish": 20, "ack_in_slices": 2, "declare_missing": 2, "sync": 4, "flush": 6, "poll": 6,
         "begin_checkpoint": 2, "finish_checkpoint": 2, "page_out": 3},
        faults=0.1, steps=40, modes=("kept", "lost"), aim="/wal/",
    ),
    "keys": Plan(
        {"publish": 8, "see": 30, "ack": 6, "delete": 1, "declare_missing": 3, "tx": 3, "roll": 2,
         "checkpoint": 2, "begin_checkpoint": 6, "finish_checkpoint": 2, "flush": 4, "poll": 6,
         "sync": 6, "tick": 3},
        faults=0.2, steps=60,
    ),
    "tail": Plan(
        {"publish": 20, "ack": 10, "sync": 10, "move": 3, "tx": 3, "prepare_ahead": 3},
        faults=0.0, steps=25, follow=0.0,
    ),
}  # fmt: skip


class Life:
    """One life: a driver with traffic behind it, and the journal of that."""

    def __init__(self, driver: Driver, rng: random.Random, plan: Plan) -> None:
        self.driver = driver
        self.journal: Journal = driver.fs.start_journal()
        self.failed_at: int | None = None  # operation of the sync that failed
        driver.watch()
        driver.look()
        fault = None
        if rng.random() < plan.faults:
            kinds, effect = rng.choice([f for f in FAULTS if f[0] <= plan.fault_kinds])
            fault = driver.fs.fail(
                effect, kinds=kinds, path=plan.fault_path, nth=rng.randint(1, 60), times=1
            )
        try:
            for _ in range(rng.randint(5, plan.steps)):
                driver.step(rng.choices(plan.names, cum_weights=plan.cumulated)[0])
            if rng.random() < 0.4:
                driver.step("idle")
        except EXPECTED:
            if fault is None or not fault.hits:
                raise
        if fault is not None and fault.hits:
            self.failed_at = self._find_failure()
        driver.look()
        driver.fs.before_operation = None
        driver.fs.clear_faults()

    def _find_failure(self) -> int | None:
        """The sync that failed, if one did: before it a kill leaves everything that was written."""
        for entry in self.journal.entries:
            if entry.change[0] in ("sync_failed", "sync_dir_failed"):
                return entry.number
        return None


def run(
    seed: int, counts: Counts | None = None, *, plan: Plan = PLANS["all"], lives: int = LIVES
) -> Counts:
    """A few lives of one store; Violation, or whatever went wrong."""
    counts = counts or Counts()
    rng = random.Random(seed)
    options = VARIANTS[rng.randrange(len(VARIANTS)) if plan.variant is None else plan.variant]
    explorer = Explorer(options, rng.getrandbits(32), counts, follow=plan.follow)
    explorer.driver = plan.driver
    driver = plan.driver(FaultyFileSystem(seed=seed), rng.getrandbits(32), options=options)
    for _ in range(lives):
        if rng.random() < 0.6:
            driver.fs.completion_rng = random.Random(rng.getrandbits(32))
        driver.declare_missing()
        life = Life(driver, rng, plan)
        counts.workloads += 1
        driver = end(life, explorer, rng, counts, plan)
    return counts


def end(life: Life, explorer: Explorer, rng: random.Random, counts: Counts, plan: Plan) -> Driver:
    """Crash the life at some of its points; the driver of what recovery made of the last one."""
    journal, ledger = life.journal, life.driver.ledger
    last = rng.random() < 0.5
    near = [entry.number for entry in journal.entries if plan.aim in entry.path]
    for i in range(POINTS):
        at = journal.last if last and i == POINTS - 1 else rng.randint(journal.first, journal.last)
        if plan.aim and near:
            at = min(rng.choice(near) + rng.randint(0, 2), journal.last)
        mode = rng.choice(plan.modes)
        counts.points += 1
        fs = journal.image(at)
        image = explorer.crash(fs, mode, ledger, ledger.known(at))
        if life.failed_at is not None and at >= life.failed_at:
            image.need = image.floor = ledger.known(at)[0]
        if i < POINTS - 1:
            explorer.explore(image)
    if is_end_markered(life) and life.failed_at is None:
        damage_log(life, explorer, rng, counts)
    driver = explorer.recover(image)
    driver.uid = max(driver.uid, life.driver.uid)
    return driver


def is_end_markered(life: Life) -> bool:
    """Whether the log must have said by now, in the next segment or behind its last group, that all
    of it is durable. It cannot if its segment is full to the end and no next one is prepared."""
    log, fs = life.driver.engine.log, life.driver.fs
    if log.failed is not None or life.driver.trace[-1:] not in (["idle"], ["sync"]):
        return False
    if log.durable_lsn != log.last_lsn:
        return False
    for entry in reversed(life.journal.entries):
        if entry.change[0] == "pwrite" and entry.path.endswith(".wal"):
            data = entry.change[3]
            if data[:4] == b"PVCH" or data[:8] == b"PGRP" + bytes(4):
                continue
            end = -(-(int(entry.change[2]) + len(data)) // ALIGN_BYTES) * ALIGN_BYTES
            return end + ALIGN_BYTES <= fs.size(entry.path)
    return False


def damage_log(life: Life, explorer: Explorer, rng: random.Random, counts: Counts) -> None:
    """Spoil one bit of what was written to the log in this life: refused, or right all the same."""
    ledger = life.driver.ledger
    known = ledger.known(life.journal.last)
    writes = [
        (entry.path, int(entry.change[2]), len(entry.change[3]))
        for entry in life.journal.entries
        if entry.change[0] == "pwrite" and entry.path.endswith(".wal")
    ]
    for _ in range(3):
        if not writes:
            return
        path, offset, length = rng.choice(writes)
        fs = life.driver.fs.crash("kept")
        if not fs.exists(path):
            continue
        explorer.path.append(f"one bit of {path} near {offset} is spoiled")
        fs.damage_flip(path, offset + rng.randrange(length), rng.randrange(8))
        try:
            explorer.recover(Image(fs, ledger, known[2], known[2], known[2]))
        except CorruptionError:
            counts.images += 1
        explorer.path.pop()


def attempt(seed: int, counts: Counts, plan: str = "all") -> str:
    """Run one seed; "" or the story of what went wrong."""
    try:
        run(seed, counts, plan=PLANS[plan])
    except Exception as error:
        kind = "violation" if isinstance(error, Violation) else "unexpected error"
        text = f"{kind}: seed {seed}, plan {plan}: {type(error).__name__}: {error}"
        return f"{text}\n{traceback.format_exc()}"
    return ""


def line(counts: Counts, runs: int, seed: int) -> str:
    """The counts, for people."""
    return (
        f"random lives, seeds {seed}..{seed + runs - 1}: {counts.workloads} lives, {counts.images} "
        f"images recovered from ({counts.in_recovery} of crashes inside recovery), "
        f"{counts.replayed} records replayed, {counts.cut_records} cut"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plan", choices=PLANS, default="all")
    options = parser.parse_args()
    counts = Counts()
    for seed in range(options.seed, options.seed + options.runs):
        story = attempt(seed, counts, options.plan)
        if story:
            print(story)
            return 1
    print(line(counts, options.runs, options.seed))
    return 0


__all__ = ["ALL_LANDED", "Ledger", "Life", "run"]

if __name__ == "__main__":
    sys.exit(main())
