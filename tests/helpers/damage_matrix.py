"""The corruption matrix: stores to damage, where each of their files can be hit, and the judge.

A *store* is made once by a scripted workload of a Driver, in three states:

    clean   stopped in order
    idle    not stopped: everything confirmed, and the log had time for its idle header
    busy    not stopped: the last group was confirmed just now, and nothing was done since

A *spot* is a place in a file that means something: a header, a record, a slot. The dump of each
file says where they are. A *damage* hits one spot. `judge` opens what is left and says how it went:

    R  right: the whole state, every body
    L  a named loss: some messages raise a CorruptionError when they are read, all others are right
    X  refused: CorruptionError or VersionError with file and position, and no byte was changed
    C  as after a power cut: the end of the log is gone, with all that vouched for it

Anything else, a wrong body above all, or a confirmed message that is gone without a word, is a
Violation.
"""

import random
from collections.abc import Callable, Iterator

from penstock.errors import CorruptionError, VersionError
from penstock.storage.tools.dump import dump
from penstock.storage.tools.verify import verify
from tests.helpers.faulty_filesystem import SECTOR_BYTES, FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.ledger import Judge, Ledger, Model, Violation, body_of
from tests.helpers.tiny_engine import OPTIONS, PATH, open_engine
from tests.helpers.vhost_driver import Driver

SEED = 7
SCRIPT = (
    "declare", "declare", "declare", "publish", "publish", "spool", "publish", "publish",
    "publish", "deliver", "publish", "tx", "publish", "move", "publish", "publish", "ack",
    "publish", "publish", "publish", "tx", "checkpoint", "publish", "publish", "ack", "publish",
    "publish", "purge", "publish", "publish", "publish", "requeue", "publish", "publish", "tx",
    "checkpoint", "publish", "publish", "publish", "roll", "publish", "spool", "tx", "publish",
    "ack", "publish", "roll", "publish", "move", "publish", "publish", "ack", "tx", "publish",
    "publish",
)  # fmt: skip

Damage = Callable[[FaultyFileSystem, "Spot", random.Random], bool]


class Spot:
    """A place that means something: bytes start to end of a file. kind: a row of the table."""

    def __init__(self, kind: str, path: str, start: int, end: int) -> None:
        self.kind = kind
        self.path = path
        self.start = start
        self.end = end

    def __repr__(self) -> str:
        return f"{self.kind} at {self.path}:{self.start}..{self.end}"


class Store:
    """A store in one state; `fs` is never changed, forks of it are."""

    def __init__(
        self, state: str, fs: FaultyFileSystem, ledger: Ledger, need: int, last: int
    ) -> None:
        self.state = state
        self.fs = fs
        self.ledger = ledger
        self.need = need
        self.last = last
        self.spots = list(spots(fs, PATH))

    def model(self, lsn: int) -> Model:
        return self.ledger.fold(lsn)


def make(state: str, *, seed: int = SEED) -> Store:
    """The store in that state; another seed gives another one with the same names."""
    fs = FaultyFileSystem(seed=seed)
    driver = Driver(fs, seed, options=OPTIONS)
    for name in SCRIPT:
        if name == "declare":
            driver.declare_missing()
        else:
            driver.step(name)
    while driver.transactions:
        driver.rollback(driver.transactions[0])
    driver.finish_checkpoint()
    engine = driver.engine
    if state == "clean":
        driver.close()
    elif state == "idle":
        driver.idle()
        driver.idle()
    else:
        engine.log.prepare_ahead()  # as every engine has it that has been told the time once
        engine.sync()
        engine.poll(wait=True)
        driver.publish(30, 1)
        engine.sync()
    fs.completed(True)
    lsn = engine.log.last_lsn
    return Store(state, fs.crash("lost" if state == "clean" else "killed"), driver.ledger, lsn, lsn)


# ---- spots -------------------------------------------------------------------------------------


def files(fs: FaultyFileSystem, path: str) -> Iterator[str]:
    """Every file below a directory."""
    for name in fs.list(path):
        inner = f"{path}/{name}"
        if fs.is_dir(inner):
            yield from files(fs, inner)
        else:
            yield inner


def spots(fs: FaultyFileSystem, path: str) -> Iterator[Spot]:
    """Every place in every file that the dump has a line for."""
    for at in files(fs, path):
        name = at.rpartition("/")[2]
        ending = name.rpartition(".")[2]
        if ending == "new" or name.startswith("."):
            ending = name
        if name.startswith("checkpoint-"):
            yield from _checkpoint_spots(fs, at)
            continue
        if ending == "rdq":
            ending = "sealed rdq" if fs.exists(at[:-3] + "hint") else "open rdq"
        size = fs.size(at)
        if not size:
            continue
        lines = [(int(line[:10]), line[12:].split()) for line in dump(fs, at)]
        for i, (start, words) in enumerate(lines):
            end = lines[i + 1][0] if i + 1 < len(lines) else size
            if start < end:
                yield Spot(f"{ending} {_word(words)}".strip(), at, start, end)


def _checkpoint_spots(fs: FaultyFileSystem, at: str) -> Iterator[Spot]:
    """Header and sections; only of the checkpoint that is CURRENT."""
    name = at.rpartition("/")[2]
    if fs.read(PATH + "/CURRENT").startswith(name.encode() + b" "):
        starts = sorted({int(line[:10]) for line in dump(fs, at)})
        for start, end in zip(starts, [*starts[1:], fs.size(at)], strict=True):
            yield Spot(f"checkpoint {'section' if start else 'header'}", at, start, end)


def _word(words: list[str]) -> str:
    """What the dump's line is about."""
    word = words[0]
    if word.isdecimal():
        return "record" if words[1] in _RECORDS else "rest"
    if words[:2] == ["no", "chain"]:
        return "vouch"  # where one would be
    return {"block": "entry", "first": "index"}.get(word, word if word in _WORDS else "")


_WORDS = {
    "header", "chain", "vouch", "group", "idle", "slot", "entry", "record", "index", "body",
}  # fmt: skip


_RECORDS = {
    "PUBLISH", "DEQUEUE", "MOVE", "REQUEUE", "MARK", "PURGE", "DELETE_QUEUE", "TOPOLOGY", "TX",
    "TX_PART", "TX_COMMIT", "TX_SLICE", "RELEASE", "LEASE",
}  # fmt: skip


# ---- damages -----------------------------------------------------------------------------------


def _flip(fs: FaultyFileSystem, spot: Spot, rng: random.Random) -> bool:
    fs.damage_flip(spot.path, rng.randrange(spot.start, spot.end), rng.randrange(8))
    return True


def _truncate(fs: FaultyFileSystem, spot: Spot, rng: random.Random) -> bool:
    fs.damage_cut(spot.path, rng.randrange(spot.start, spot.end))
    return True


def _zero_tail(fs: FaultyFileSystem, spot: Spot, rng: random.Random) -> bool:
    at = rng.randrange(spot.start, spot.end)
    fs.damage_zero_tail(spot.path, fs.size(spot.path) - at)
    return True


def _duplicate(fs: FaultyFileSystem, spot: Spot, rng: random.Random) -> bool:
    sectors = (fs.size(spot.path) - 1) // SECTOR_BYTES + 1
    target = rng.randrange(spot.start, spot.end) // SECTOR_BYTES
    sources = [sector for sector in range(sectors) if sector != target]
    if not sources:
        return False
    fs.damage_duplicate_sector(spot.path, rng.choice(sources), target)
    return True


def _garbage(fs: FaultyFileSystem, spot: Spot, rng: random.Random) -> bool:
    at = rng.randrange(spot.start, spot.end)
    length = min(rng.randint(1, 64), fs.size(spot.path) - at)
    fs.damage_garbage(spot.path, at, length, rng)
    return True


def _swap(fs: FaultyFileSystem, spot: Spot, rng: random.Random) -> bool:
    """Another file of the same kind, of this store."""
    ending = spot.path.rpartition(".")[2]
    others = [at for at in files(fs, PATH) if at.endswith("." + ending) and at != spot.path]
    if not others:
        return False
    fs.damage_swap(spot.path, rng.choice(others))
    return True


def _delete(fs: FaultyFileSystem, spot: Spot, rng: random.Random) -> bool:
    fs.damage_delete(spot.path)
    return True


DAMAGES: dict[str, Damage] = {
    "flip": _flip,
    "truncate": _truncate,
    "zero tail": _zero_tail,
    "duplicated sector": _duplicate,
    "garbage": _garbage,
    "swap": _swap,
    "missing": _delete,
}
WHOLE_FILE = ("swap", "stranger", "missing")  # which bytes are hit makes no difference


def stranger(other: FaultyFileSystem) -> Damage:
    """The file of the same name out of another store."""

    def damage(fs: FaultyFileSystem, spot: Spot, rng: random.Random) -> bool:
        if not other.exists(spot.path):
            return False
        content = other.read(spot.path)
        fs.damage(spot.path, lambda _: content)
        return True

    return damage


# ---- judging -----------------------------------------------------------------------------------


def contents(fs: FaultyFileSystem) -> dict[str, bytes]:
    """Every file but the locks, which say who has them."""
    return {at: fs.read(at) for at in files(fs, "") if not at.endswith("/LOCK")}


def judge(store: Store, fs: FaultyFileSystem) -> str:
    """R, L, X or C; Violation. `fs` is the damaged store."""
    before = contents(fs)
    looked = fs.fork()
    report = verify(looked, PATH)
    if contents(looked) != before:
        raise Violation("verify has changed the store")
    outcome = _open_and_judge(store, fs, before)
    if outcome in "LX" and report.is_fine:
        raise Violation(f"outcome {outcome}, and verify finds nothing")
    return outcome


def _open_and_judge(store: Store, fs: FaultyFileSystem, before: dict[str, bytes]) -> str:
    events: list[tuple[str, str]] = []
    try:
        engine = open_engine(fs, 1, OPTIONS, None, events)
    except (CorruptionError, VersionError) as error:
        if not error.path.startswith(PATH):
            raise Violation(f"refused without a file: {error}") from error
        if contents(fs) != before:
            raise Violation(f"refused, and something was changed: {error}") from error
        return "X"
    recovered = engine.recovered
    lsn = recovered.end.last_lsn
    if lsn > store.last:
        raise Violation(f"recovered up to {lsn}, and {store.last} was the last record")
    model = store.model(lsn)
    state = engine.state
    names = {name: queue.number for name, queue in state.routing.queues.items()}
    if names != model.names:
        raise Violation(f"queues {names}, should be {model.names}")
    lost = 0
    for number, wanted in model.queues.items():
        queue = state.queues[number]
        if live_seqs(queue) != sorted(wanted):
            raise Violation(f"queue {number} has {live_seqs(queue)}, should have {sorted(wanted)}")
        for seq, (uid, size, header) in wanted.items():
            try:
                (message,) = engine.read(queue, [seq])
                body = engine.load_body(queue, seq, message)
            except CorruptionError as error:
                if not error.path.startswith(PATH):
                    raise Violation(f"a loss without a file: {error}") from error
                lost += 1
                continue
            if body != body_of(uid, size) or message.header != header:
                raise Violation(f"seq {seq} of queue {number}: a wrong message, {body[:20]!r}")
            if not message.store_file and queue.section.get(seq) is None:
                continue
            message.body = None
    if not lost:
        Judge(engine, store.ledger, model).check()
    if lsn < store.need:
        return "C"
    return "L" if lost else "R"
