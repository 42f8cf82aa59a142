"""The corruption matrix: every kind of place in every file, damaged in every way.

The table says what may come of it, for a store that was stopped in order / for one that was not:

    R  right: everything is there. The place was not needed, or there is a second one
    L  a named loss: messages whose reading says which file is damaged where; all others are right
    X  refused: file and position are named, and not a byte was changed

A wrong body, or a confirmed message that is gone without a word, is in no cell; `judge` fails on
it, also in the state *busy*, where the last group was confirmed an instant before the kill: what is
confirmed is vouched for in two files.

Why the lines are what they are. Of a stopped store the log is not read. Queue segments and sealed
store files hold bodies, which are checked when they are read: L, unless the log after the
checkpoint names one of them, for then recovery looks: X. Tables of store files are made again from
the files. `.queue_name` is for people and for salvage. By `.vhost` a server finds its vhosts: that
is below, with the other files around them.
"""

import random
from collections import defaultdict
from functools import cache

import pytest

from penstock.clock import ManualClock
from penstock.errors import CorruptionError, NotAStoreError, VersionError
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory, hash_name
from penstock.storage.files.durability import DISK
from penstock.storage.tools.salvage import salvage
from penstock.storage.tools.verify import verify
from tests.crash.drawn import IS_WHOLE
from tests.helpers.damage_matrix import (
    DAMAGES,
    WHOLE_FILE,
    Spot,
    Store,
    contents,
    judge,
    make,
    stranger,
)
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.ledger import body_of
from tests.helpers.tiny_engine import OPTIONS, PATH

SPOTS_PER_KIND = 4 if IS_WHOLE else 2
POSITIONS_PER_SPOT = 2 if IS_WHOLE else 1
STATES = ("clean", "idle", "busy")
COLUMNS = (
    "flip", "truncate", "zero tail", "duplicated sector", "garbage", "swap", "stranger", "missing",
)  # fmt: skip
TABLE = """
                    flip      truncate  zero_tail duplicate garbage   swap      stranger  missing
wal_header          R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX
wal_chain           R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX
wal_vouch           -/R       -/RX      -/R       -/RX      -/R       -/RX      -/RX      -/R
wal_group           R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX
wal_record          R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX
wal_idle            R/R       R/X       R/R       R/RX      R/R       R/X       R/RX      R/X
wal_rest            R/R       R/X       R/R       R/RX      R/R       R/X       R/RX      R/RX
wal                 R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX      R/RX
qi_header           RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL
qi_slot             RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL
qi_rest             R/R       RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL
qs_header           RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL
qs_entry            RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL     RL/RL
sealed_rdq_header   RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX    RLX/RLX   RL/RLX    RX/RX
sealed_rdq_record   RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX    RLX/RLX   RL/RLX    RX/RX
open_rdq_header     X/X       X/X       X/X       X/X       X/X       X/X       X/X       X/X
open_rdq_record     L/X       L/X       L/X       LX/X      L/X       X/X       LX/X      X/X
hint_header         R/R       R/R       R/R       R/R       R/R       R/R       R/R       R/R
hint_entry          R/R       R/R       R/R       R/R       R/R       R/R       R/R       R/R
hint_index          R/R       R/R       R/R       R/R       R/R       R/R       R/R       R/R
msg_header          RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX
msg_body            RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX    RL/RLX
checkpoint_header   X/X       X/X       X/X       X/X       X/X       -         X/X       X/X
checkpoint_section  X/X       X/X       X/X       RX/RX     X/X       -         X/X       X/X
CURRENT             X/X       RX/RX     X/X       -         X/X       -         RX/RX     X/X
.queue_name         R/R       R/R       R/R       -         R/R       R/R       R/R       R/R
.vhost              R/R       R/R       R/R       -         R/R       -         R/R       R/R
LOCK                R/R       R/R       R/R       -         R/R       -         R/R       R/R
"""
# Whether there is a place of the kind to hit depends on the state; these are always there.
ALWAYS = {
    "wal_header", "wal_group", "wal_record", "qi_header", "qi_slot", "qs_header", "qs_entry",
    "sealed_rdq_header", "sealed_rdq_record", "open_rdq_header", "open_rdq_record", "hint_header",
    "hint_entry", "hint_index", "msg_header", "msg_body", "checkpoint_header",
    "checkpoint_section", "CURRENT", ".queue_name",
}  # fmt: skip


def table() -> dict[tuple[str, str, str], str]:
    """(kind, damage, state) -> the outcomes that are allowed, as letters."""
    cells: dict[tuple[str, str, str], str] = {}
    for line in TABLE.strip().splitlines()[1:]:
        kind, *columns = line.split()
        for damage, column in zip(COLUMNS, columns, strict=True):
            clean, _, unclean = column.partition("/")
            cells[kind, damage, "clean"] = clean
            cells[kind, damage, "idle"] = cells[kind, damage, "busy"] = unclean
    return cells


@cache
def store(state: str) -> Store:
    return make(state)


@cache
def twin(state: str) -> Store:
    """A store with the same names and another history."""
    return make(state, seed=8)


def cases(state: str) -> list[tuple[str, str, Spot, int]]:
    """(kind, damage, spot, seed): some spots of each kind, several positions in each."""
    kinds: dict[str, list[Spot]] = defaultdict(list)
    for spot in store(state).spots:
        kinds[spot.kind.replace(" ", "_")].append(spot)
    found: list[tuple[str, str, Spot, int]] = []
    for kind, spots in kinds.items():
        for damage in COLUMNS:
            rng = random.Random(f"{state} {kind} {damage}")
            for spot in rng.sample(spots, min(SPOTS_PER_KIND, len(spots))):
                many = 1 if damage in WHOLE_FILE else POSITIONS_PER_SPOT
                found += [(kind, damage, spot, rng.getrandbits(32)) for _ in range(many)]
    return found


@pytest.mark.crash
@pytest.mark.parametrize("state", STATES)
def test_every_damage_has_one_of_its_outcomes(state: str) -> None:
    damages = {**DAMAGES, "stranger": stranger(twin(state).fs)}
    allowed = table()
    seen: dict[tuple[str, str], set[str]] = defaultdict(set)
    for kind, damage, spot, seed in cases(state):
        fs = store(state).fs.fork()
        if not damages[damage](fs, spot, random.Random(seed)):
            continue
        outcome = judge(store(state), fs)
        assert outcome in allowed[kind, damage, state], f"{damage}, {spot}: {outcome}, {seed}"
        seen[kind, damage].add(outcome)
    missing = {kind for kind in ALWAYS if not any(at == kind for at, _ in seen)}
    assert not missing, f"no place of these kinds was hit: {missing}"


@pytest.mark.parametrize("state", STATES)
def test_the_undamaged_store_is_right(state: str) -> None:
    assert verify(store(state).fs.fork(), PATH).is_fine
    assert judge(store(state), store(state).fs.fork()) == "R"


# ---- the files around the vhosts ---------------------------------------------------------------

VHOSTS = (b"one", b"two")
AROUND = {"VERSION": "RX", "LOCK": "R", ".vhost": "RX", "reserve": "R"}


@cache
def data_directory() -> FaultyFileSystem:
    """A data directory of two vhosts with a message each, not stopped."""
    fs = FaultyFileSystem()
    data = DataDirectory(fs, "/data")
    for name in VHOSTS:
        engine = open_vhost(fs, data.vhost_path(name), name)
        engine.publish([engine.declare_queue(b"q")], b"", b"of " + name, DISK)
        engine.sync()
    return fs.crash("killed")


def open_vhost(fs: FaultyFileSystem, path: str, name: bytes) -> StorageEngine:
    return StorageEngine(fs, path, name, clock=ManualClock(), rng=random.Random(3), options=OPTIONS)


def start_all(fs: FaultyFileSystem) -> dict[bytes, list[bytes]]:
    """What a server does at start: the bodies of each vhost."""
    data = DataDirectory(fs, "/data", create=False)
    found: dict[bytes, list[bytes]] = {}
    for name in data.vhost_names():
        engine = open_vhost(fs, data.vhost_path(name), name)
        queue = engine.queue(b"q")
        (message,) = engine.read(queue, [0])
        found[name] = [engine.load_body(queue, 0, message)]
    return found


@pytest.mark.crash
@pytest.mark.parametrize("file", AROUND)
def test_damage_around_the_vhosts_is_refused_or_makes_no_difference(file: str) -> None:
    whole = data_directory()
    one = f"/data/vhosts/{hash_name(VHOSTS[0])}"
    path = f"{one}/{file}" if file in (".vhost", "reserve") else f"/data/{file}"
    rng = random.Random(file)
    for damage, hit in [*DAMAGES.items(), ("other", stranger(whole))]:
        for _ in range(8):
            fs = whole.fork()
            if file == "reserve":
                fs.open(path, create=True).pwrite(bytes(600), 0)
            if damage == "swap" and file == "reserve":
                continue
            if damage == "swap":
                fs.damage_swap(path, path.replace(hash_name(VHOSTS[0]), hash_name(VHOSTS[1])))
            elif not fs.size(path) or not hit(fs, Spot(file, path, 0, fs.size(path)), rng):
                continue
            before = contents(fs)
            try:
                found = start_all(fs)
                right = found == {name: [b"of " + name] for name in VHOSTS}
                outcome = "R" if right else "wrong"
            except (CorruptionError, VersionError, NotAStoreError) as error:
                named = error.path.startswith("/data") and contents(fs) == before
                outcome = "X" if named else f"refused, but {error}"
            assert outcome in AROUND[file], f"{damage} of {file}: {outcome}"
            assert verify(fs.crash("killed"), "/data").vhosts == len(VHOSTS)


@pytest.mark.crash
@pytest.mark.parametrize("state", STATES)
def test_salvage_takes_what_is_right_and_tells_what_is_lost(state: str) -> None:
    """Whatever was hit: no wrong message, and none is gone without a loss being told."""
    here = store(state)
    model = here.model(here.last)
    confirmed = {
        (name, body_of(uid, size), header)
        for name, number in model.names.items()
        for uid, size, header in model.queues[number].values()
    }
    ever: set[tuple[bytes, bytes]] = set()
    for _, (what, *values) in here.ledger.changes:
        if what == "put":
            content = values[0]
            assert isinstance(content, tuple)
            uid, size, header = content
            ever.add((body_of(uid, size), header))
    for _, damage, spot, seed in cases(state)[::3]:
        fs = here.fs.fork()
        if damage == "stranger" or not DAMAGES[damage](fs, spot, random.Random(seed)):
            continue
        report = salvage(fs, PATH, "/new", clock=ManualClock(), rng=random.Random(1))
        directory = f"/new/vhosts/{fs.list('/new/vhosts')[0]}"
        name = fs.read(directory + "/.vhost").removesuffix(b"\n")
        taken = contents_of(fs, directory, name)
        assert {item[1:] for item in taken} <= ever, f"{damage}, {spot}, {seed}"
        lost = confirmed - taken
        assert not lost or report.losses or state == "busy", f"{damage}, {spot}: {lost}, {seed}"


def contents_of(
    fs: FaultyFileSystem, directory: str, vhost: bytes
) -> set[tuple[bytes, bytes, bytes]]:
    """(queue, body, header) of every message of a store."""
    engine = StorageEngine(
        fs, directory, vhost, clock=ManualClock(), rng=random.Random(2), options=OPTIONS
    )
    found: set[tuple[bytes, bytes, bytes]] = set()
    for queue in engine.state.queues.values():
        for seq in live_seqs(queue):
            (message,) = engine.read(queue, [seq])
            found.add((queue.name, engine.load_body(queue, seq, message), message.header))
    engine.close()
    return found
