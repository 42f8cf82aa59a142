"""The n-th call fails, for every n: once and for ever, as EIO, ENOSPC or a short write.

A mixed workload runs on a file system on which one operation fails, then again with the next one,
until it runs through without meeting a fault. Whatever fails:

  * a call that raises has happened or not, whole; what was confirmed before stays confirmed;
  * after a failed sync, of any file, nothing more is confirmed, every call raises StoppedError, and
    only opening from disk goes on [10]; a failed or short write to the log counts as one;
  * a full disk is no failure: calls are refused, what is confirmed stays, and with space again the
    same engine goes on;
  * a crash after the fault, of any kind, leaves what the ledger allows.

A sync that lies once makes nothing durable and says it did: then nothing can be promised but that
no body is wrong and nothing is invented.
"""

import errno
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from penstock.errors import (
    CorruptionError,
    DiskFullError,
    PenstockError,
    StoppedError,
    StorageError,
    SyncFailedError,
)
from penstock.storage.transaction_log import DISK, OS
from tests.conftest import CRASH_IMAGES
from tests.crash.images import Counts, Explorer, Image
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Ledger, Violation
from tests.helpers.tiny_engine import OPTIONS, PATH
from tests.helpers.vhost_driver import Driver

pytestmark = pytest.mark.crash

WORKLOAD = (
    "publish", "publish", "publish", "sync", "publish", "spool", "tx", "prepare_ahead", "page_out",
    "begin_checkpoint", "publish", "ack", "move", "roll", "publish", "flush", "requeue", "deliver",
    "finish_checkpoint", "purge", "publish", "combine", "publish", "sync", "reap", "delete",
    "declare_missing", "roll", "publish", "begin", "ack", "checkpoint", "commit", "sync", "reap",
    "idle",
)  # fmt: skip
SYNCS = ("sync", "sync_dir")
WRITES = ("pwrite", "allocate", "truncate")
NAMES = ("create", "rename", "unlink", "mkdir", "rmdir", "link")
CASES: list[tuple[int | str, tuple[str, ...], int | None]] = [
    (effect, kinds, times)
    for effect, kinds in (
        (errno.EIO, SYNCS), (errno.EIO, WRITES), (errno.ENOSPC, WRITES), ("short", WRITES),
        (errno.EIO, NAMES), (errno.ENOSPC, NAMES),
    )
    for times in (1, None)
]  # fmt: skip
SEED = 11
CRASHES = ("lost", "subset", "kept")
ALL_FROM = 100_000  # images wanted from which on every n has its turn


class Run:
    """The workload once, with a fault; goes on after calls that were refused."""

    def __init__(
        self, effect: int | str, *, kinds: tuple[str, ...], path: str = "", nth: int = 1,
        times: int | None = 1,
    ) -> None:  # fmt: skip
        self.fs = FaultyFileSystem(seed=SEED)
        self.driver = Driver(self.fs, SEED, options=OPTIONS)
        for queue in (b"a", b"b", b"c"):
            self.driver.declare(queue)
        self.driver.sync()
        self.driver.look()
        self.fault = self.fs.fail(effect, kinds=kinds, path=path, nth=nth, times=times)
        self.refused = 0
        self.stopped: BaseException | None = None
        for name in WORKLOAD:
            try:
                self.driver.step(name)
            except (SyncFailedError, StoppedError) as error:
                self.stopped = error
                break
            except (DiskFullError, OSError):
                self.refused += 1
        self.driver.look()

    def confirmed(self) -> int:
        """The LSN up to which clients were told `durable`."""
        return self.driver.ledger.last_known()[0]


def check_stopped(run: Run) -> None:
    """Nothing is confirmed any more, and every call says so."""
    engine = run.driver.engine
    before = (engine.settled(DISK), engine.settled(OS))
    run.fs.clear_faults()
    queue = next(iter(engine.state.queues.values()))
    calls: tuple[Callable[[], object], ...] = (
        engine.flush, engine.sync, engine.tick, engine.checkpoint, engine.begin,
        lambda: engine.publish([queue], b"", b"x", DISK),
        lambda: engine.mark(queue, 1 << 30, DISK),
        lambda: engine.purge(queue, [], DISK),
        lambda: engine.declare_queue(b"new"),
        lambda: engine.delete_queue(queue),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(StoppedError):
            call()
    engine.poll()
    assert (engine.settled(DISK), engine.settled(OS)) == before, "confirmed after a failed sync"


def check_recovers(run: Run, counts: Counts) -> None:
    """Opened from the disk, after each way to die, it is what the ledger allows."""
    disk, written, last = run.driver.ledger.last_known()
    explorer = Explorer(OPTIONS, SEED, counts, follow=0.0)
    for mode in CRASHES:
        fs = run.fs.crash(mode, random.Random(SEED))
        need = written if mode == "kept" and run.stopped is None else disk
        try:
            explorer.recover(Image(fs, run.driver.ledger, need, need, last))
        except (Violation, PenstockError) as error:
            error.add_note(f"{mode} after {run.fault.effect} of {sorted(run.fault.kinds or ())}")
            error.add_note(f"fault {run.fault.nth}, {run.fault.times} times, {run.driver.trace}")
            raise


def stride_of(images: int) -> int:
    """Every n, or one in so many."""
    if images >= ALL_FROM:
        return 1
    return 2 if images >= CRASH_IMAGES else 17


def runs(
    effect: int | str, kinds: tuple[str, ...], times: int | None, stride: int
) -> Iterator[Run]:
    """The workload with the first call failing, the second, ... until none does. With a stride
    each case takes other n."""
    nth = 1 + CASES.index((effect, kinds, times)) % stride
    while True:
        run = Run(effect, kinds=kinds, nth=nth, times=times)
        if not run.fault.hits:
            return
        yield run
        nth += stride


@pytest.mark.parametrize(("effect", "kinds", "times"), CASES)
def test_the_nth_call_fails(
    effect: int | str, kinds: tuple[str, ...], times: int | None, crash_images: int
) -> None:
    counts = Counts()
    stride = stride_of(crash_images)
    done = 0
    for run in runs(effect, kinds, times, stride):
        done += 1
        if run.stopped is not None:
            check_stopped(run)
        elif kinds == SYNCS:
            pytest.fail(f"sync {run.fault.nth} failed, and the engine went on")
        check_recovers(run, counts)
    assert done


def test_a_failed_sync_is_reported_once_and_then_refused() -> None:
    run = Run(errno.EIO, kinds=("sync",), path="/wal/")
    assert isinstance(run.stopped, SyncFailedError | StoppedError)
    assert run.driver.events[-1][0] == "stopped"
    check_stopped(run)


def test_a_full_disk_refuses_and_heals() -> None:
    """With the disk full, publishing is refused; acks and checkpoints go on; it heals."""
    fs = FaultyFileSystem(seed=SEED)
    driver = Driver(fs, SEED, options=replace(OPTIONS, disk_free_limit=10_000))
    for name in (b"a", b"b"):
        driver.declare(name)
    driver.prepare_ahead()
    for _ in range(20):
        driver.tick()
    fs.capacity = fs.used_bytes() + 40_000
    refused = 0
    for _ in range(400):
        try:
            driver.publish(size=50)
            driver.tick()
        except DiskFullError:
            refused += 1
        if refused > 3:
            break
    assert refused > 3
    driver.sync()
    before = driver.engine.settled(DISK)
    for i in range(30):
        driver.ack()
        driver.sync()
        if i % 5 == 4:
            assert driver.engine.checkpoint(), "no checkpoint on a full disk"
    assert driver.engine.settled(DISK) > before
    fs.capacity = None
    for _ in range(40):
        driver.tick()
        driver.poll()
    driver.publish(size=50)
    driver.sync()
    driver.look()
    lsn = driver.engine.last_lsn
    explorer = Explorer(OPTIONS, SEED, Counts(), follow=0.0)
    explorer.recover(Image(fs.crash("lost"), driver.ledger, lsn, lsn, lsn))


@pytest.mark.parametrize("path", ["/wal/", "/msg_store_persistent/", "/queues/", "checkpoint-"])
def test_a_sync_that_lies_never_gives_a_wrong_body(path: str, crash_images: int) -> None:
    """Lost, or refused by name; never a wrong body, nothing invented."""
    stride = stride_of(crash_images)
    nth = 1
    while True:
        run = Run("lie", kinds=SYNCS, path=path, nth=nth)
        if not run.fault.hits:
            break
        ledger: Ledger = run.driver.ledger
        for mode in ("lost", "subset"):
            fs = run.fs.crash(mode, random.Random(nth))
            explorer = Explorer(OPTIONS, SEED, Counts(), follow=0.0)
            last = ledger.last_known()[2]
            try:
                explorer.recover(Image(fs, ledger, 0, 0, last))
            except CorruptionError:
                pass  # refused, with file and position
            except StorageError as error:
                error.add_note(f"sync {nth} of {path} lied, {mode}")
                raise
        nth += stride
    assert nth > 1, f"no sync in {PATH}{path}"
