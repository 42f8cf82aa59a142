"""The n-th call fails, for every n, in a vhost with streams; and every file of a stream is damaged.

As test_fail_nth.py, whose rules hold for streams too: a call that raises has happened or not; after
a failed sync of any file nothing is confirmed and no head moves; a full disk is no failure; and a
crash after the fault leaves what the ledger allows. Readers of before the fault never see a mapped
byte change.

Damage: a store with streams is stopped in order, or killed; then one file of a stream is flipped,
cut, zeroed, swapped or deleted. What may come of it: all is right; or records that cannot be read
raise a CorruptionError with file and position, every other one being right; or the start is
refused with the file. Never a wrong record, never one too few without a word.
"""

import random
from collections.abc import Callable
from functools import cache

import pytest

from penstock.clock import ManualClock
from penstock.errors import CorruptionError, VersionError
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK
from penstock.storage.pages.streams import StoredStream
from penstock.storage.tools.salvage import salvage
from penstock.storage.tools.verify import verify
from tests.crash import failing_calls
from tests.crash.failing_calls import CASES, SEED, check_nth, check_refused, with_streams
from tests.crash.images import Counts
from tests.crash.stream_lives import StreamExplorer
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Violation, body_of
from tests.helpers.stream_driver import StreamDriver
from tests.helpers.tiny_engine import OPTIONS, PATH, open_engine
from tests.helpers.uids import Content

pytestmark = pytest.mark.crash

WORKLOAD = (
    "append", "publish", "sync", "fill", "mixed", "set_reader", "begin_checkpoint", "append",
    "flush", "one_record", "finish_checkpoint", "fill", "sync", "retain", "append", "expire",
    "append", "poll",
    "delete_stream", "declare_stream", "append", "roll", "mixed", "checkpoint", "append", "sync",
    "idle",
)  # fmt: skip
DAMAGE_SEED = 5


Run = failing_calls.Run[StreamDriver]


def begin(effect: int | str, *, kinds: tuple[str, ...], nth: int, times: int | None) -> Run:
    """The workload once, with a fault."""
    driver = with_streams(StreamDriver, SEED)
    driver.sync()
    driver.look()
    fault = driver.fs.fail(effect, kinds=kinds, nth=nth, times=times)
    return failing_calls.Run(driver, WORKLOAD, fault)


def check_stopped(run: Run) -> None:
    """Nothing is confirmed any more, no head moves, and every call says so."""
    engine = run.driver.engine
    heads = {number: stream.head_offset for number, stream in engine.streams.by_number.items()}
    calls: list[Callable[[], object]] = [engine.flush, engine.sync, engine.tick, engine.begin]
    for stream in engine.streams.by_number.values():
        calls += _calls(run, stream)
    check_refused(run, calls)
    after = {number: stream.head_offset for number, stream in engine.streams.by_number.items()}
    assert after == heads, "a head moved after a failed sync"


def _calls(run: Run, stream: StoredStream) -> list[Callable[[], object]]:
    engine = run.driver.engine
    return [
        lambda: engine.streams.append(stream, b"", b"x", DISK),
        lambda: engine.streams.set_reader(stream, "r", 0, DISK),
        lambda: engine.streams.retain(stream, max_records=0),
        lambda: engine.streams.delete([stream]),
    ]


def explorer() -> StreamExplorer:
    return StreamExplorer(OPTIONS, SEED, Counts(), follow=0.0)


@pytest.mark.parametrize(("effect", "kinds", "times"), CASES)
def test_the_nth_call_fails(
    effect: int | str, kinds: tuple[str, ...], times: int | None, crash_images: int
) -> None:
    check_nth(begin, (effect, kinds, times), crash_images, check_stopped, explorer)


# ---- damage ------------------------------------------------------------------------------------


Wanted = dict[int, tuple[int, list[Content]]]  # stream -> first offset, all records ever


@cache
def store(*, is_clean: bool) -> tuple[FaultyFileSystem, Wanted]:
    """A store with two streams, one without its first pages, and what is in them."""
    driver = with_streams(StreamDriver, DAMAGE_SEED)
    for name in ("fill", "fill", "append", "mixed", "sync"):
        driver.step(name)
    one = next(iter(driver.engine.streams.by_number.values()))
    assert driver.engine.streams.retain(one, max_records=6) > 0
    driver.engine.poll()
    for name in ("checkpoint", "fill", "append", "fill"):
        driver.step(name)
    if is_clean:
        driver.close()
    else:
        driver.idle()
        driver.idle()
    model = driver.ledger.fold(driver.engine.log.last_lsn)
    firsts = {
        number: stream.first_offset for number, stream in driver.engine.streams.by_number.items()
    }
    wanted = {number: (firsts[number], records) for number, records in model.streams.items()}
    return driver.fs.crash("kept"), wanted


def stream_files(fs: FaultyFileSystem) -> list[str]:
    parent = PATH + "/streams"
    return [f"{parent}/{d}/{name}" for d in fs.list(parent) for name in fs.list(f"{parent}/{d}")]


def _flip(fs: FaultyFileSystem, path: str, rng: random.Random) -> None:
    fs.damage_flip(path, rng.randrange(fs.size(path)), rng.randrange(8))


def _cut(fs: FaultyFileSystem, path: str, rng: random.Random) -> None:
    fs.damage_cut(path, rng.randrange(fs.size(path)))


def _zero_tail(fs: FaultyFileSystem, path: str, rng: random.Random) -> None:
    fs.damage_zero_tail(path, rng.randint(1, fs.size(path)))


def _garbage(fs: FaultyFileSystem, path: str, rng: random.Random) -> None:
    at = rng.randrange(fs.size(path))
    fs.damage_garbage(path, at, min(rng.randint(1, 64), fs.size(path) - at), rng)


def _swap(fs: FaultyFileSystem, path: str, rng: random.Random) -> None:
    ending = path.rpartition("/")[2].rpartition(".")[2]
    others = [at for at in stream_files(fs) if at.endswith(ending) and at != path]
    fs.damage_swap(path, rng.choice(others)) if others else fs.damage_delete(path)


def _delete(fs: FaultyFileSystem, path: str, rng: random.Random) -> None:
    fs.damage_delete(path)


DAMAGES = (_flip, _cut, _zero_tail, _garbage, _swap, _delete)


def judge(fs: FaultyFileSystem, wanted: Wanted) -> str:
    """R right, L records that say where they are damaged, X refused with the file."""
    is_fine = verify(fs.fork(), PATH).is_fine
    try:
        engine = open_engine(fs, 1, OPTIONS)
    except (CorruptionError, VersionError) as error:
        if is_fine or not error.path.startswith(PATH):
            raise Violation(f"refused without a file, or verify finds nothing: {error}") from error
        return "X"
    lost = 0
    for number, stream in engine.streams.by_number.items():
        first, records = wanted[number]
        assert stream.head_offset == len(records), "records are gone without a word"
        assert stream.first_offset == first
        for offset in range(first, len(records)):
            uid, size, header = records[offset]
            try:
                (found,) = stream.queue.read(offset, 1, 1)
            except CorruptionError as error:
                if not error.path.startswith(stream.path):
                    raise Violation(f"a loss of another file: {error}") from error
                lost += 1
                continue
            assert found.offset == offset
            assert (found.payload, found.meta) == (body_of(uid, size), header), "a wrong record"
    assert not (lost and is_fine), "records are lost, and verify finds nothing"
    return "L" if lost else "R"


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_of_a_stream_is_named_or_harmless(
    damage: Callable[[FaultyFileSystem, str, random.Random], None], is_clean: bool
) -> None:
    fs, wanted = store(is_clean=is_clean)
    outcomes: dict[str, set[str]] = {}
    for path in stream_files(fs):
        for seed in range(6):
            image = fs.fork()
            damage(image, path, random.Random(f"{path} {seed}"))
            kind = path.rpartition("/")[2].rpartition(".")[2]
            outcomes.setdefault(kind, set()).add(judge(image, wanted))
    for kind in ("idx", "writeMeta", "queue_name"):
        assert outcomes[kind] == {"R"}, f"{kind} is needed for nothing: {outcomes[kind]}"
    assert outcomes["allMeta"] | outcomes["readMeta"] <= {"R", "X"}
    assert outcomes["page"] & {"L", "X"}, "the damage was nothing"


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_salvage_takes_all_records_but_the_damaged_ones(
    damage: Callable[[FaultyFileSystem, str, random.Random], None], is_clean: bool
) -> None:
    fs, wanted = store(is_clean=is_clean)
    names = {number: name for name, number in _names(fs).items()}
    for path in stream_files(fs):
        image = fs.fork()
        damage(image, path, random.Random(path))
        before = contents(image)
        report = salvage(image, PATH, "/new", clock=ManualClock(), rng=random.Random(1))
        assert {at: data for at, data in contents(image).items() if at in before} == before
        (vhost,) = image.list("/new/vhosts")
        name = image.read(f"/new/vhosts/{vhost}/.vhost").removesuffix(b"\n")
        engine = StorageEngine(
            image, f"/new/vhosts/{vhost}", name, clock=ManualClock(), rng=random.Random(2),
            options=OPTIONS,
        )  # fmt: skip
        lost = 0
        for number, (first, all_records) in wanted.items():
            records = all_records[first:]
            taken = taken_of(engine.streams.get(names[number]))
            lost += len(records) - len(taken)
            left = iter(records)
            for one in taken:
                assert any(one == (body_of(u, s), h) for u, s, h in left), "a wrong record"
        assert (lost > 0) <= bool(report.losses), "records are lost, and nothing is told"
        if not path.endswith(".page"):
            assert not lost, f"{path} is not needed for any record"
        else:
            assert lost < 12, f"{lost} records are lost with one page"


def contents(fs: FaultyFileSystem) -> dict[str, bytes]:
    """Every file but the locks."""
    return {at: fs.read(at) for at in fs.names() if at[-1] != "/" and not at.endswith("LOCK")}


def _names(fs: FaultyFileSystem) -> dict[bytes, int]:
    engine = open_engine(fs.fork(), 1, OPTIONS)
    return {stream.name: number for number, stream in engine.streams.by_number.items()}


def taken_of(stream: StoredStream) -> list[tuple[bytes, bytes]]:
    """All records of a stream: (payload, meta)."""
    found = stream.queue.read(0, 10_000, 1 << 30)
    assert len(found) == stream.head_offset
    return [(one.payload, one.meta) for one in found]
