"""Lives of a vhost with streams: triples of what it does, crashed at the operations of the disk.

    python -m tests.crash.stream_lives [--images N] [--seed S] [--only TRIPLE:ROUND]

Each of the 8^3 triples of OPERATIONS runs on a small prepared store with queues and streams, with a
journal; then the store is crashed at operations of that journal, in every mode, recovered from,
judged and crashed again, also inside recovery (images.py): one LSN decides what there is of queues
and streams alike. A crash that leaves the kernel alive leaves the readers alive too: they have the
pages mapped, and no byte below a head that they saw may ever change (stream_judge.py).

The same N and S give the same images; a violation prints what makes it again, and the exit code is
then 1.
"""

import argparse
import itertools
import random
import sys
import traceback

from tests.crash.enumerate import crash_points, finish
from tests.crash.images import Counts, Explorer, Image
from tests.helpers.faulty_filesystem import FaultyFileSystem, Journal
from tests.helpers.ledger import Ledger, Violation
from tests.helpers.stream_driver import StreamDriver
from tests.helpers.tiny_engine import VARIANTS

OPERATIONS = (
    "append", "fill", "mixed", "retain", "set_reader", "delete_stream", "checkpoint", "publish",
)  # fmt: skip
TRIPLES = tuple(itertools.product(OPERATIONS, repeat=3))
SECOND_LIFE = (
    "append", "append", "fill", "mixed", "one_record", "retain", "set_reader", "checkpoint",
    "begin_checkpoint", "delete_stream", "declare_stream", "publish", "ack", "sync", "roll",
    "read_streams",
)  # fmt: skip
READERS_LIVE = frozenset({"killed", "kept"})  # modes after which the pages are as readers saw them

Prepared = tuple[FaultyFileSystem, Ledger, int]
_PREPARED: dict[int, Prepared] = {}


class StreamExplorer(Explorer):
    """An Explorer of stores with streams, whose readers may outlive a crash."""

    def __init__(self, variant: int, seed: int, counts: Counts, *, follow: float = 0.5) -> None:
        super().__init__(VARIANTS[variant], seed, counts, follow=follow)
        self.driver = StreamDriver
        self.second_life = SECOND_LIFE

    def crash(
        self, fs: FaultyFileSystem, mode: str, ledger: Ledger, known: tuple[int, int, int]
    ) -> Image:
        image = super().crash(fs, mode, ledger, known)
        image.fs.has_readers = mode in READERS_LIVE
        return image


def prepare(variant: int) -> Prepared:
    """A store with queues and two streams of several pages, named readers, some of it gone."""
    found = _PREPARED.get(variant)
    if found is None:
        driver = StreamDriver(FaultyFileSystem(seed=variant), variant, options=VARIANTS[variant])
        driver.declare(b"a")
        driver.declare(b"b")
        while len(driver.engine.streams) < 2:
            driver.step("declare_stream")
        for name in ("fill", "append", "publish", "set_reader", "mixed", "fill", "publish"):
            driver.step(name)
        driver.checkpoint()
        for name in ("append", "retain", "fill", "set_reader", "ack", "append"):
            driver.step(name)
        driver.checkpoint()
        driver.sync()
        driver.fs.completed(True)
        driver.fs.sync_all()
        model = driver.ledger.fold(driver.engine.last_lsn)
        ledger = driver.ledger.restarted(driver.engine.last_lsn, model)
        found = _PREPARED[variant] = (driver.fs.fork(), ledger, driver.uid)
    return found


def run_unit(seed: int, triple: int, turn: int, images: int) -> tuple[Counts, str]:
    """(counts, "" or the story of a violation) of one triple in one round."""
    counts = Counts()
    rng = random.Random(seed * 1_000_003 + triple * 1009 + turn)
    variant = (triple + turn) % len(VARIANTS)
    explorer = StreamExplorer(variant, rng.getrandbits(32), counts)
    driver: StreamDriver | None = None
    where = "the workload itself"
    try:
        driver = begin(variant, rng)
        journal = work(driver, triple, rng)
        counts.workloads += 1
        for at, mode, fs in crash_points(journal, images, rng, counts):
            where = f"operation {at} of {journal.first}..{journal.last}, {mode}"
            explorer.path.clear()
            explorer.explore(explorer.crash(fs, mode, driver.ledger, driver.ledger.known(at)))
            if counts.images >= images:
                break
    except Exception as error:
        kind = "violation" if isinstance(error, Violation) else "unexpected error"
        story = [f"{kind}: {type(error).__name__}: {error}"]
        story.append(f"  --seed {seed} --only {triple}:{turn} --images-each {images}")
        story.append(f"  triple {' '.join(TRIPLES[triple])}, variant {variant}")
        story.append(f"  {where} {'; '.join(explorer.path)}")
        if driver is not None:
            story.append(f"  did {' '.join(driver.trace)}")
        story.append(traceback.format_exc())
        return counts, "\n".join(story)
    return counts, ""


def begin(variant: int, rng: random.Random) -> StreamDriver:
    """A driver of a copy of the prepared store, with some traffic behind it."""
    prepared, ledger, uid = prepare(variant)
    fs = prepared.fork()
    if rng.random() < 0.5:
        fs.completion_rng = random.Random(rng.getrandbits(32))
    life = Ledger()
    life.ids, life.numbers = dict(ledger.ids), set(ledger.numbers)
    driver = StreamDriver(
        fs, rng.getrandbits(32), options=VARIANTS[variant], ledger=life, first_uid=uid
    )
    driver.ledger = ledger.restarted(driver.engine.last_lsn, ledger.base)
    driver.ledger.ids, driver.ledger.numbers = life.ids, life.numbers
    if rng.random() < 0.5:
        driver.prepare_ahead()
    for _ in range(rng.randint(0, 4)):
        driver.step(rng.choice(("append", "append", "fill", "publish", "begin_mixed")))
    return driver


def work(driver: StreamDriver, triple: int, rng: random.Random) -> Journal:
    """The triple, with a journal from its first operation on."""
    driver.watch()
    driver.look()
    journal = driver.fs.start_journal()
    for name in TRIPLES[triple]:
        if name == "checkpoint":
            name = rng.choice(("checkpoint", "begin_checkpoint", "begin_checkpoint"))
        elif name == "delete_stream":
            driver.step(name)
            name = "declare_stream"
        driver.step(name)
    finish(driver, rng)
    driver.look()
    driver.fs.before_operation = None
    if not driver.engine.is_closed:
        driver.read_streams()
    return journal


def run(images: int, seed: int) -> tuple[Counts, list[str]]:
    """At least this many images, of every triple; the story of a violation if there is one."""
    counts = Counts()
    each = max(1, -(-images // len(TRIPLES)))
    for turn in itertools.count():
        for triple in range(len(TRIPLES)):
            found, story = run_unit(seed, triple, turn, each)
            counts.add(found)
            if story:
                return counts, [story]
        if counts.images >= images:
            return counts, []
    raise AssertionError("it has no end")


def line(counts: Counts, seed: int) -> str:
    """The counts, for people."""
    return (
        f"streams, seed {seed}: {counts.workloads} runs of {len(TRIPLES)} triples, {counts.points} "
        f"crash points, {counts.images} images recovered from ({counts.in_recovery} of crashes "
        f"inside recovery), {counts.replayed} records replayed, {counts.cut_records} cut"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="triple:round, as a violation prints it")
    parser.add_argument("--images-each", type=int, default=10)
    options = parser.parse_args()
    if options.only:
        triple, _, turn = options.only.partition(":")
        counts, story = run_unit(options.seed, int(triple), int(turn), options.images_each)
        stories = [story] if story else []
    else:
        counts, stories = run(options.images, options.seed)
    print(line(counts, options.seed))
    for story in stories:
        print(story)
    return 1 if stories else 0


if __name__ == "__main__":
    sys.exit(main())
