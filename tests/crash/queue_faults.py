"""Lives of queues in which reads and writes of their files fail, and files that have rotted.

    python -m tests.crash.queue_faults [--runs N] [--seed S] [--rot] [--nth]

A failing page-out or page-in is nobody's loss: the messages stay in RAM, or on disk; a call may end
in OSError or DiskFullError, and what it was to do has happened or not, as a whole. So a *fault* run
lets one or a few operations on files of queues or of the store fail in the middle of a life; the
engine must go on; then everything that is alive comes out in the same life, or after an orderly
stop, or after a crash.

An *nth* run does it to a script of queue_lives.py at one given operation: all of them in turn make
the page-out and page-in of that script fail everywhere once.

A *rot* run spoils bits of .qi, .qs and .rdq between two lives. Each message comes out right or does
not come out, and then it was told as an event, and `verify` sees it too.
"""

import argparse
import errno
import random
import sys
import traceback
from collections.abc import Iterator

from penstock.errors import StoppedError
from penstock.queues.backing_queue import PART_SHIFT
from penstock.queues.queue_ram import CHECKS
from penstock.storage.tools.verify import verify
from tests.crash.images import MODES, Counts
from tests.crash.queue_images import QueueExplorer, QueueImage
from tests.crash.queue_lives import SCRIPTS, WEIGHTS, begin, new_driver
from tests.helpers.ledger import Violation
from tests.helpers.queue_driver import QueueDriver
from tests.helpers.queue_judge import drain
from tests.helpers.queue_owner import FAILURES, parts_of
from tests.helpers.tiny_engine import PATH, VARIANTS

CALM = {name: n for name, n in WEIGHTS.items() if name not in ("delete", "purge", "purge_later")}
NAMES, COUNTS = tuple(CALM), tuple(CALM.values())
# Of the store the bodies alone: a .hint that cannot be read while a record is applied, which is
# logged by then, stops the engine (test_engine.py), and these lives are of one that goes on.
QUEUE_FILES, STORE_FILES = "/queues/", ".rdq"
ROTTING = (".qi", ".qs", ".rdq")
WRITES = frozenset({"pwrite", "create", "allocate"})
NTH_SCRIPTS = (
    "paging",
    "flowing",
    "requeue",
    "read ahead",
    "delays",
    "dead letters",
    "priorities",
    "purging",
)
NTH_MAX = 40
FAULTS: tuple[tuple[str, frozenset[str], int | str], ...] = (
    (QUEUE_FILES, WRITES, errno.ENOSPC), (QUEUE_FILES, WRITES, errno.EIO),
    (QUEUE_FILES, frozenset({"pwrite"}), "short"), (QUEUE_FILES, frozenset({"read"}), errno.EIO),
    (STORE_FILES, WRITES, errno.ENOSPC), (STORE_FILES, frozenset({"read"}), errno.EIO),
)  # fmt: skip


class Faults:
    """Counts, for the line that is printed."""

    def __init__(self) -> None:
        self.runs = 0
        self.hits = 0
        self.failed_calls = 0
        self.set_aside = 0


def step(driver: QueueDriver, name: str, counts: Faults) -> None:
    """One step, which may fail."""
    try:
        driver.step(name)
    except FAILURES:
        if driver.engine.failed is not None:
            raise
        counts.failed_calls += 1
        resync(driver)


def resync(driver: QueueDriver) -> None:
    """After a failed call: whatever is pending is pending, and no transaction is open."""
    fs, faults = driver.fs, driver.fs._faults
    fs._faults = []
    driver.focus = ""
    driver.abort()
    driver.pending = []
    for name, amq in driver.amq.items():
        for number, part in enumerate(parts_of(amq.backing)):
            state = part.state
            for seq in sorted({*state.ram_pending, *state.disk_pending.seqs()}):
                found = amq.backing.pending(number << PART_SHIFT | seq)
                assert found is not None
                driver.pending.append((name, found))
    fs._faults = faults


def run_fault(seed: int, counts: Faults) -> str:
    """One life with a fault; what was done."""
    rng = random.Random(seed)
    variant = rng.randrange(len(VARIANTS))
    driver = new_driver(rng.getrandbits(16), variant)
    for _ in range(rng.randint(5, 30)):
        driver.step(rng.choices(NAMES, COUNTS)[0])
    driver.is_strict = False
    journal = begin(driver)
    path, kinds, effect = rng.choice(FAULTS)
    fault = driver.fs.fail(
        effect, kinds=kinds, path=path, nth=rng.randint(1, 25), times=rng.choice((1, 1, 2, 5))
    )
    try:
        for _ in range(rng.randint(10, 50)):
            step(driver, rng.choices(NAMES, COUNTS)[0], counts)
        for name in ("squeeze_out", "get", "squeeze_out", "get"):
            step(driver, name, counts)
    except (*FAILURES, StoppedError):
        if kinds != WRITES or effect != errno.EIO:
            raise  # only a checkpoint that cannot write stops the engine
    counts.runs += 1
    counts.hits += fault.hits
    driver.fs.clear_faults()
    if driver.engine.failed is None:
        driver.clock.advance(5.0)
        resync(driver)
    how = rng.choice(("drained", "closed", "crashed"))
    if driver.engine.failed is not None:
        how = "stopped"
    explorer = QueueExplorer(VARIANTS[variant], rng.getrandbits(32), Counts(), follow=0.5)
    if how == "drained":
        for name, delivery in driver.pending:
            driver.amq[name].release([delivery.tag])
        driver.pending = []
        drain(driver)
    elif how == "closed":
        explorer._close(driver)
    else:
        driver.look()
        driver.fs.before_operation = None
        for _ in range(3):  # "stopped" too: whatever it left, it can be recovered from
            at = rng.randint(journal.first, journal.last)
            explorer.explore(explorer.crash(driver, journal, at, rng.choice(MODES)))
    return f"{path} {sorted(kinds)} {effect}: {how}, did {' '.join(driver.trace)}"


def nth_runs(stride: int) -> Iterator[tuple[str, int, int]]:
    """(script, which fault, nth): every stride-th of the first operations that a fault may hit."""
    every = [
        (name, which, nth)
        for name in NTH_SCRIPTS
        for which in range(len(FAULTS))
        for nth in range(1, NTH_MAX + 1)
    ]
    yield from every[::stride]


def run_nth(script: str, which: int, nth: int, counts: Faults) -> bool:
    """A script in which the nth operation of a kind fails; then everything comes out. False if it
    has not so many operations."""
    driver = new_driver(nth, nth % len(VARIANTS))
    driver.is_strict = False
    path, kinds, effect = FAULTS[which]
    fault = driver.fs.fail(effect, kinds=kinds, path=path, nth=nth)
    try:
        for name in SCRIPTS[script]:
            step(driver, name, counts)
    except (*FAILURES, StoppedError):
        if kinds != WRITES or effect != errno.EIO:
            raise
    counts.runs += 1
    counts.hits += fault.hits
    driver.fs.clear_faults()
    if driver.engine.failed is None:
        driver.clock.advance(5.0)
        resync(driver)
        for name, delivery in driver.pending:
            driver.amq[name].release([delivery.tag])
        driver.pending = []
        drain(driver)
    return fault.hits > 0


def run_rot(seed: int, counts: Faults) -> str:
    """A life, an orderly stop, spoiled bits, and what comes out then."""
    rng = random.Random(seed)
    variant = rng.randrange(len(VARIANTS))
    driver = new_driver(rng.getrandbits(16), variant)
    for _ in range(rng.randint(20, 60)):
        driver.step(rng.choices(NAMES, COUNTS)[0])
    driver.close()
    fs, last = driver.fs.crash("lost", rng), driver.engine.log.last_lsn
    explorer = QueueExplorer(VARIANTS[variant], rng.getrandbits(32), Counts())
    image = QueueImage(fs, driver.life, driver.life.seen_at(1 << 62), last, last, last)
    again = explorer.recover(image)
    directories = [queue.path for queue in again.engine.state.queues.values()]
    files = [
        f"{path}/{name}"
        for path in (*directories, PATH + "/msg_store_persistent")
        if again.fs.exists(path)
        for name in again.fs.list(path)
        if name.endswith(ROTTING) and again.fs.size(f"{path}/{name}")
    ]
    spoiled: list[str] = []
    for path in rng.sample(files, min(len(files), 3)):
        offset = rng.randrange(again.fs.size(path))
        again.fs.damage_flip(path, offset, rng.randrange(8))
        spoiled.append(f"{path} at {offset}")
    again.is_strict = False
    again.open_queues()
    wanted = {content[0] for content in again.books.at.values()}
    found = come_out(again)
    told = [text for kind, text in again.events if kind == "corruption"]
    lost = len(again.books.at)
    if lost and not told:
        raise Violation(f"{lost} messages do not come out, and nobody is told; {spoiled}")
    if found - wanted:
        raise Violation(f"{found - wanted} were not there")
    counts.runs += 1
    counts.hits += len(spoiled)
    counts.set_aside += lost
    again.close()
    if lost and verify(again.fs, PATH).is_fine:
        raise Violation(f"verify finds nothing, {spoiled}")
    return f"{spoiled}, did {' '.join(driver.trace)}"


def come_out(driver: QueueDriver) -> set[int]:
    """Everything that does, each judged when it is delivered; what stays is set aside."""
    found: set[int] = set()
    for _ in range(10):
        driver.pass_time(90_000.0)
        for name in sorted(driver.amq):
            while (delivery := driver.fetch(name)) is not None:
                if delivery.message.persistent:
                    found.add(driver.ledger.ids[delivery.message.id])
                driver.ack_all(name)
    return found


def attempt_nth(script: str, which: int, nth: int, counts: Faults) -> str:
    """Run one of `nth_runs`; "" or the story of what went wrong."""
    try:
        run_nth(script, which, nth, counts)
    except Exception as error:
        text = f"{script}, {FAULTS[which]}, operation {nth}: {type(error).__name__}: {error}"
        return f"{text}\n{traceback.format_exc()}"
    return ""


def attempt(seed: int, counts: Faults, *, rots: bool) -> str:
    """Run one seed; "" or the story of what went wrong."""
    try:
        (run_rot if rots else run_fault)(seed, counts)
    except Exception as error:
        kind = "violation" if isinstance(error, Violation) else "unexpected error"
        text = f"{kind}: seed {seed}, {'rot' if rots else 'fault'}: {type(error).__name__}: {error}"
        return f"{text}\n{traceback.format_exc()}"
    return ""


def line(counts: Faults) -> str:
    """The counts, for people."""
    return (
        f"faults of queues: {counts.runs} runs, {counts.hits} faults, {counts.failed_calls} failed "
        f"calls, {counts.set_aside} messages set aside"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rot", action="store_true")
    parser.add_argument("--nth", action="store_true")
    options = parser.parse_args()
    CHECKS.is_on = True
    counts = Faults()
    if options.nth:
        stories = [attempt_nth(*run, counts) for run in nth_runs(1)]
    else:
        seeds = range(options.seed, options.seed + options.runs)
        stories = [attempt(seed, counts, rots=options.rot) for seed in seeds]
    bad = [story for story in stories if story]
    print("\n".join(bad))
    print(line(counts))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
