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
from dataclasses import replace

import pytest

from penstock.errors import (
    CorruptionError,
    DiskFullError,
    StoppedError,
    StorageError,
    SyncFailedError,
)
from penstock.storage.files.durability import DISK
from tests.crash import failing_calls
from tests.crash.failing_calls import CASES, SEED, SYNCS, check_nth, check_refused, stride_of
from tests.crash.images import Counts, Explorer, Image
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Ledger
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

Run = failing_calls.Run[Driver]


def begin(
    effect: int | str, *, kinds: tuple[str, ...], path: str = "", nth: int = 1,
    times: int | None = 1,
) -> Run:  # fmt: skip
    """The workload once, with a fault."""
    driver = Driver(FaultyFileSystem(seed=SEED), SEED, options=OPTIONS)
    for queue in (b"a", b"b", b"c"):
        driver.declare(queue)
    driver.sync()
    driver.look()
    fault = driver.fs.fail(effect, kinds=kinds, path=path, nth=nth, times=times)
    return failing_calls.Run(driver, WORKLOAD, fault)


def check_stopped(run: Run) -> None:
    """Nothing is confirmed any more, and every call says so."""
    engine = run.driver.engine
    queue = next(iter(engine.state.queues.values()))
    calls = (
        engine.flush, engine.sync, engine.tick, engine.checkpoint, engine.begin,
        lambda: engine.publish([queue], b"", b"x", DISK),
        lambda: engine.mark(queue, 1 << 30, DISK),
        lambda: engine.purge(queue, [], DISK),
        lambda: engine.declare_queue(b"new"),
        lambda: engine.delete_queue(queue),
    )  # fmt: skip
    check_refused(run, calls)


def explorer() -> Explorer:
    return Explorer(OPTIONS, SEED, Counts(), follow=0.0)


@pytest.mark.parametrize(("effect", "kinds", "times"), CASES)
def test_the_nth_call_fails(
    effect: int | str, kinds: tuple[str, ...], times: int | None, crash_images: int
) -> None:
    check_nth(begin, (effect, kinds, times), crash_images, check_stopped, explorer)


def test_a_failed_sync_is_reported_once_and_then_refused() -> None:
    run = begin(errno.EIO, kinds=("sync",), path="/wal/")
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
    before = driver.engine.log.settled(DISK)
    for i in range(30):
        driver.ack()
        driver.sync()
        if i % 5 == 4:
            assert driver.engine.checkpoint(), "no checkpoint on a full disk"
    assert driver.engine.log.settled(DISK) > before
    fs.capacity = None
    for _ in range(40):
        driver.tick()
        driver.poll()
    driver.publish(size=50)
    driver.sync()
    driver.look()
    lsn = driver.engine.log.last_lsn
    explorer().recover(Image(fs.crash("lost"), driver.ledger, lsn, lsn, lsn))


@pytest.mark.parametrize("path", ["/wal/", "/msg_store_persistent/", "/queues/", "checkpoint-"])
def test_a_sync_that_lies_never_gives_a_wrong_body(path: str, crash_images: int) -> None:
    """Lost, or refused by name; never a wrong body, nothing invented."""
    stride = stride_of(crash_images)
    nth = 1
    while True:
        run = begin("lie", kinds=SYNCS, path=path, nth=nth)
        if not run.fault.hits:
            break
        ledger: Ledger = run.driver.ledger
        for mode in ("lost", "subset"):
            fs = run.fs.crash(mode, random.Random(nth))
            last = ledger.last_known()[2]
            try:
                explorer().recover(Image(fs, ledger, 0, 0, last))
            except CorruptionError:
                pass  # refused, with file and position
            except StorageError as error:
                error.add_note(f"sync {nth} of {path} lied, {mode}")
                raise
        nth += stride
    assert nth > 1, f"no sync in {PATH}{path}"
