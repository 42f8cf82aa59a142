"""What tests of failing calls share: a workload in which the n-th call fails, and what must hold.

A run takes the steps of a workload on a FaultyFileSystem on which one operation fails, once or for
ever, as EIO, ENOSPC or a short write. A call that is refused is passed over; after a failed sync
the engine has stopped, and the run is over. test_fail_nth.py has queues, test_lease_faults.py
leased ones, test_stream_faults.py streams, test_batch_lives.py batches.
"""

import errno
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import pytest

from penstock.errors import DiskFullError, PenstockError, StoppedError, SyncFailedError
from penstock.storage.files.durability import DISK, OS
from tests.conftest import CRASH_IMAGES
from tests.crash.images import Explorer, Image
from tests.helpers.faults import Fault
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Violation
from tests.helpers.stream_driver import StreamDriver
from tests.helpers.tiny_engine import OPTIONS
from tests.helpers.vhost_driver import Driver

D = TypeVar("D", bound=Driver)
S = TypeVar("S", bound=StreamDriver)
Case = tuple[int | str, tuple[str, ...], int | None]  # effect, kinds of calls, how often

SYNCS = ("sync", "sync_dir")
WRITES = ("pwrite", "allocate", "truncate")
NAMES = ("create", "rename", "unlink", "mkdir", "rmdir", "link")
OPENS = ("open",)
CASES: list[Case] = [
    (effect, kinds, times)
    for effect, kinds in (
        (errno.EIO, SYNCS), (errno.EIO, WRITES), (errno.ENOSPC, WRITES), ("short", WRITES),
        (errno.EIO, NAMES), (errno.ENOSPC, NAMES), (errno.EMFILE, OPENS),
    )
    for times in (1, None)
]  # fmt: skip
SEED = 11
CRASHES = ("lost", "subset", "kept")
ALL_FROM = 100_000  # images wanted from which on every n has its turn


class Run(Generic[D]):
    """The workload once, with a fault; goes on after calls that were refused."""

    def __init__(self, driver: D, workload: Iterable[str], fault: Fault) -> None:
        self.fs = driver.fs
        self.driver = driver
        self.fault = fault
        self.stopped: BaseException | None = None
        self.has_gathered = False  # a record failed whose parts RAM has already: that is final
        for name in workload:
            try:
                driver.step(name)
            except (SyncFailedError, StoppedError) as error:
                self.stopped = error
                break
            except (DiskFullError, OSError):
                self.has_gathered = self.has_gathered or name == "one_record"
        driver.look()


def with_streams(kind: type[S], seed: int) -> S:
    """A driver of a new store with a queue and two streams."""
    driver = kind(FaultyFileSystem(seed=seed), seed, options=OPTIONS)
    driver.declare(b"a")
    while len(driver.engine.streams.by_number) < 2:
        driver.declare_stream()
    return driver


def runs(begin: Callable[..., Run[D]], case: Case, stride: int) -> Iterator[Run[D]]:
    """The workload with the first call failing, the second, ... until none does. With a stride
    each case takes other n."""
    effect, kinds, times = case
    nth = 1 + CASES.index(case) % stride
    while True:
        run = begin(effect, kinds=kinds, nth=nth, times=times)
        if not run.fault.hits:
            return
        if run.stopped is None and kinds == SYNCS:
            pytest.fail(f"sync {nth} failed, and the engine went on")
        # What the log has is applied with the help of hints: for them there is a reserve.
        is_allowed = run.has_gathered or ".hint" in str(run.stopped or ".hint")
        if kinds == OPENS and times == 1 and not is_allowed:
            pytest.fail(f"a file was not opened once ({nth}), and the engine stopped")
        yield run
        nth += stride


def stride_of(images: int) -> int:
    """Every n, or one in so many."""
    if images >= ALL_FROM:
        return 1
    return 5 if images >= CRASH_IMAGES else 17


def check_refused(run: Run[D], calls: Iterable[Callable[[], object]]) -> None:
    """Of an engine that has stopped: each of these calls says so, and nothing is confirmed."""
    engine = run.driver.engine
    before = (engine.log.settled(DISK), engine.log.settled(OS))
    run.fs.clear_faults()
    for call in calls:
        with pytest.raises(StoppedError):
            call()
    engine.poll()
    assert (engine.log.settled(DISK), engine.log.settled(OS)) == before, (
        "confirmed after a failed sync"
    )


def check_recovers(run: Run[D], explorer: Explorer) -> None:
    """Opened from the disk, after each way to die, it is what the ledger allows."""
    disk, written, last = run.driver.ledger.last_known()
    for mode in CRASHES:
        fs = run.fs.crash(mode, random.Random(SEED))
        need = written if mode == "kept" and run.stopped is None else disk
        try:
            explorer.recover(Image(fs, run.driver.ledger, need, need, last))
        except (Violation, PenstockError) as error:
            error.add_note(f"{mode} after {run.fault.effect} of {sorted(run.fault.kinds or ())}")
            error.add_note(f"fault {run.fault.nth}, {run.fault.times} times, {run.driver.trace}")
            raise


def check_nth(
    begin: Callable[..., Run[D]], case: Case, images: int,
    check_stopped: Callable[[Run[D]], None], explorer: Callable[[], Explorer],
) -> None:  # fmt: skip
    """Whichever call fails: an engine that has stopped says so, and the disk can be opened.
    explorer: who judges a run."""
    done = 0
    for run in runs(begin, case, stride_of(images)):
        done += 1
        if run.stopped is not None:
            check_stopped(run)
        check_recovers(run, explorer())
    assert done, "no call has failed"
