"""A store on three disks, crashed at every operation: of the engine, of its making, of a move.

    python -m tests.crash.two_disks [--images N] [--seed S] [--jobs J]

The log is on one disk, what leaves RAM on another, the data directory on a third. At a power cut
each of them keeps something else of what was not synced: one all of it, the other nothing.

`Unit` is the crash enumeration of enumerate.py on such a store. `attempt` makes a store, in one
directory or several, with some traffic, moves it, and crashes that move at operations drawn by the
seed, in every mode. Each image must

    open                 with all that was confirmed, wherever PLACES says that it is
    be moved again       by the same call; then everything is where it was to be, `verify` finds
                         nothing wrong, no file is left anywhere else, and it opens once more
"""

import random
import sys

from penstock.clock import ManualClock
from penstock.errors import OptionError
from penstock.server import vhost_directories
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import LOG, SPILL, DataDirectory, hash_name, kind_of
from penstock.storage.files.durability import DISK
from penstock.storage.files.move import move
from penstock.storage.tools.verify import verify
from tests.crash import enumerate as queues
from tests.crash import triple_unit
from tests.crash.images import ALL_LANDED, MODES, Counts, Explorer, Image
from tests.helpers.faulty_filesystem import FaultyFileSystem, Journal
from tests.helpers.ledger import Ledger, Violation
from tests.helpers.tiny_engine import OPTIONS, VARIANTS, VHOST
from tests.helpers.vhost_driver import Driver

DATA = "/data"
ROOTS = {LOG: "/fast/log", SPILL: "/big/spill"}
OTHER_ROOTS = {LOG: "/big/log", SPILL: "/third"}
DISKS = ("data", "fast", "big", "third")
HASH = hash_name(VHOST)
APART = ("lost", "kept", "subset", "zeros")  # what a power cut may leave of one disk
PLACINGS: tuple[dict[str, str], ...] = (
    {}, ROOTS, {LOG: ROOTS[LOG]}, {SPILL: ROOTS[SPILL]}, OTHER_ROOTS,
)  # fmt: skip
TRAFFIC = (
    "publish", "publish", "publish", "ack", "tx", "move", "roll", "checkpoint", "page_out", "spool",
    "publish_transient", "purge", "sync", "combine",
)  # fmt: skip
STEPS = 25
DELETED = "v"  # a vhost that is deleted


def make(fs: FaultyFileSystem, roots: dict[str, str]) -> None:
    """A store with the vhost of the driver, durable; its parts are in these directories."""
    for directory in ("/fast", "/big"):
        fs.mkdir(directory)
    fs.sync_all()
    open_data(fs, roots).close()


def open_data(fs: FaultyFileSystem, roots: dict[str, str]) -> DataDirectory:
    data = DataDirectory(
        fs, DATA, log_directory=roots.get(LOG, ""), spill_directory=roots.get(SPILL, ""),
        rng=random.Random(1),
    )  # fmt: skip
    data.vhost_path(VHOST)
    return data


class PlacedDriver(Driver):
    """On a store with its parts in ROOTS, unless the file system has a store already."""

    path = f"{DATA}/vhosts/{HASH}"

    def make(self, fs: FaultyFileSystem) -> None:
        if not fs.exists(DATA):
            make(fs, ROOTS)
            fs.sync_all()
        self.data = DataDirectory(fs, DATA)

    def close(self) -> None:
        super().close()
        self.data.close()


class PlacedExplorer(Explorer):
    """At a power cut each disk keeps something else."""

    driver = PlacedDriver

    def crash(
        self, fs: FaultyFileSystem, mode: str, ledger: Ledger, known: tuple[int, int, int]
    ) -> Image:
        image = super().crash(fs, mode, ledger, known)
        if mode not in ALL_LANDED and self.rng.random() < 0.5:
            image.fs = fs.crash(mode, self.rng, apart=apart(self.rng))
        return image


def apart(rng: random.Random) -> dict[str, str]:
    """A mode for each disk."""
    return {disk: rng.choice(APART) for disk in DISKS}


class Unit(queues.Unit):
    """A triple of operations on a store on three disks."""

    TITLE = "crash enumeration on three disks"
    EXPLORER = PlacedExplorer


# ---- moves ---------------------------------------------------------------------------------------


def attempt(seed: int, counts: Counts, points: int = 12) -> str:
    """A move of some store, crashed at so many operations: "" or the story of a violation."""
    rng = random.Random(seed)
    before, after = rng.choice(PLACINGS), rng.choice(PLACINGS)
    variant = rng.randrange(len(VARIANTS))
    where = "the workload"
    try:
        fs, ledger, need, last = lived(seed, before, variant)
        journal = fs.start_journal()
        move_to(fs, before, after)
        counts.workloads += 1
        check_moved(fs.fork(), after)
        for at in points_of(journal, rng, points):
            mode = rng.choice(MODES)
            where = f"operation {at} of {journal.first}..{journal.last}, {mode}"
            image = journal.image(at)
            apart_or_none = None if mode in ALL_LANDED or rng.random() < 0.5 else apart(rng)
            image = image.crash(mode, rng, apart=apart_or_none)
            counts.points += 1
            explorer = PlacedExplorer(VARIANTS[variant], rng.getrandbits(32), counts, follow=0)
            found = Image(image, ledger, need, need, last)
            if rng.random() < 0.5:
                explorer.recover(Image(image.fork(), ledger, need, need, last))
            else:
                found = lived_on(explorer.recover(found), rng)
            notes = verify(found.fs, DATA).notes
            move_to(found.fs, before, after)
            if check_moved(found.fs.fork(), after) != notes:
                raise Violation("files of the unfinished copy are in the finished one")
            explorer.recover(found)
    except (Violation, AssertionError, OSError, OptionError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}\n  seed {seed}: {before} -> {after}, {where}"
    except Exception as error:
        return (
            f"unexpected {type(error).__name__}: {error}\n  seed {seed}, {before} {after} {where}"
        )
    return ""


def attempt_vhosts(seed: int, counts: Counts) -> str:
    """A vhost is made in a store on three disks, and deleted, crashed at every operation; it can
    be opened then, and one of the same name is empty."""
    rng = random.Random(seed)
    fs = FaultyFileSystem(seed=seed)
    make(fs, ROOTS)
    data = DataDirectory(fs, DATA)
    made = fs.start_journal()
    data.vhost_path(DELETED.encode())
    for at, image in made.images():
        left = image.crash("kept", apart=apart(rng))
        try:
            again = DataDirectory(left, DATA)
            opened(left, again).close()
        except OSError as error:
            return f"{type(error).__name__}: {error}\n  seed {seed}: vhost made, operation {at}"
    engine = opened(fs, data)
    queue = engine.declare_queue(b"q")
    for _ in range(20):
        engine.publish([queue], b"", rng.randbytes(200), DISK)
    engine.sync()
    engine.close()
    journal = fs.start_journal()
    vhost_directories.remove(data, DELETED)
    data.close()
    for at, image in journal.images():
        mode = rng.choice(APART)
        where = f"  seed {seed}: vhost deleted, operation {at} of {journal.last}, {mode}"
        counts.images += 1
        try:
            left = image.crash(mode, rng, apart=apart(rng))
            again = DataDirectory(left, DATA)
            vhost_directories.remove(again, DELETED)
            new = opened(left, again)
            if new.state.queues:
                return f"Violation: a new vhost has a queue of the one that was deleted\n{where}"
            new.close()
            again.close()
        except Exception as error:
            return f"{type(error).__name__}: {error}\n{where}"
    return ""


def opened(fs: FaultyFileSystem, data: DataDirectory) -> StorageEngine:
    name = DELETED.encode()
    return StorageEngine(
        fs, data.vhost_path(name), name, clock=ManualClock(), rng=random.Random(1), options=OPTIONS
    )


def lived(
    seed: int, roots: dict[str, str], variant: int
) -> tuple[FaultyFileSystem, Ledger, int, int]:
    """A store that nobody has open, after some traffic: with its ledger, the LSN up to which all of
    it must be there, and the last that may be. Closed in order, or its process has died."""
    fs = FaultyFileSystem(seed=seed)
    make(fs, roots)
    driver = PlacedDriver(fs, seed, options=VARIANTS[variant])
    rng = random.Random(seed)
    for name in (b"a", b"b"):
        driver.declare(name)
    for _ in range(STEPS):
        driver.step(rng.choice(TRAFFIC))
    driver.sync()
    lsn = driver.engine.log.last_lsn
    if rng.random() < 0.5:
        driver.close()
        fs = fs.crash("kept")
    else:
        fs = fs.crash("killed", rng)
    return fs, driver.ledger, lsn, driver.engine.log.last_lsn


def lived_on(driver: Driver, rng: random.Random) -> Image:
    """The store after some more traffic, closed in order."""
    for name in ("purge", "checkpoint", *rng.choices(TRAFFIC, k=STEPS)):
        driver.step(name)
    driver.sync()
    lsn = driver.engine.log.last_lsn
    driver.close()
    return Image(driver.fs, driver.ledger, lsn, lsn, driver.engine.log.last_lsn)


def points_of(journal: Journal, rng: random.Random, points: int) -> list[int]:
    every = list(range(journal.first, journal.last + 1))
    return every if points >= len(every) else sorted(rng.sample(every, points))


def move_to(fs: FaultyFileSystem, before: dict[str, str], after: dict[str, str]) -> None:
    """The call of a move: a kind that comes back is moved to the data directory."""
    given = {kind: after.get(kind, DATA if kind in before else "") for kind in (LOG, SPILL)}
    move(
        fs, DATA, log_directory=given[LOG], spill_directory=given[SPILL], rng=random.Random(2)
    )  # fmt: skip


def check_moved(fs: FaultyFileSystem, roots: dict[str, str]) -> list[str]:
    """Violation unless everything is in these directories, and nothing is anywhere else. Returns
    what `verify` notes, as files that nobody needs."""
    with_places = DataDirectory(fs, DATA)
    if with_places.places != roots:
        raise Violation(f"it is in {with_places.places}, expected {roots}")
    with_places.close()
    report = verify(fs, DATA)
    if not report.is_fine:
        raise Violation(f"verify after the move: {report.problems[0]}")
    for name in fs.names():
        parts = name.strip("/").split("/")
        if HASH in parts and parts[-1] != HASH:
            root = "/" + "/".join(parts[: parts.index(HASH)])
            kind = kind_of(parts[parts.index(HASH) + 1])
            wanted = roots.get(kind, f"{DATA}/vhosts")
            if root != wanted:
                raise Violation(f"{name} is left, files of kind {kind!r} are in {wanted}")
    for root in {*ROOTS.values(), *OTHER_ROOTS.values()} - {*roots.values()}:
        if fs.exists(root) and fs.list(root):
            raise Violation(f"{root} is left with {fs.list(root)}")
    return report.notes


def line(counts: Counts) -> str:
    """For people."""
    return f"moves: {counts.workloads} moves, {counts.points} crash points, {counts.images} images"


if __name__ == "__main__":
    sys.exit(triple_unit.main(Unit, __doc__))
