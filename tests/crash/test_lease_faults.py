"""The n-th call fails, for every n, in a vhost whose queues are leased.

As test_fail_nth.py, whose rules hold for leases too: a call that raises has happened or not, whole;
after a failed sync nothing is leased, committed or released any more; on a full disk nothing is
leased, and commits go on; and a crash after the fault leaves what the ledger allows.
"""

from collections.abc import Callable

import pytest

from penstock.storage.files.durability import DISK
from tests.crash import failing_calls
from tests.crash.failing_calls import CASES, SEED, Case, check_nth, check_refused
from tests.crash.images import Counts
from tests.crash.lease_lives import LeaseExplorer
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.lease_driver import LeaseDriver
from tests.helpers.tiny_engine import OPTIONS
from tests.helpers.vhost_driver import QUEUES

pytestmark = pytest.mark.crash

WORKLOAD = (
    "publish", "lease", "sync", "publish", "lease_transient", "commit_lease", "begin_checkpoint",
    "lease", "flush", "commit_lease", "finish_checkpoint", "publish", "sync", "purge", "lease",
    "release_lease", "poll", "delete", "declare_missing", "publish", "lease", "roll", "ack",
    "checkpoint", "commit_lease", "release_lease", "sync", "idle",
)  # fmt: skip

Run = failing_calls.Run[LeaseDriver]


def begin(effect: int | str, *, kinds: tuple[str, ...], nth: int, times: int | None) -> Run:
    """The workload once, with a fault."""
    driver = LeaseDriver(FaultyFileSystem(seed=SEED), SEED, options=OPTIONS)
    for queue in QUEUES[:2]:
        driver.declare(queue)
    for name in ("publish", "publish", "publish", "publish", "lease"):
        driver.step(name)
    driver.sync()
    driver.look()
    fault = driver.fs.fail(effect, kinds=kinds, nth=nth, times=times)
    return failing_calls.Run(driver, WORKLOAD, fault)


def check_stopped(run: Run) -> None:
    """Every call says so."""
    engine = run.driver.engine
    calls: list[Callable[[], object]] = [engine.flush]
    for queue in run.driver.queues():
        calls.append(lambda queue=queue: engine.leases.lease(queue, "late", [], DISK))  # type: ignore[misc]
        for reader in engine.leases.of(queue):
            calls += [
                lambda queue=queue, reader=reader: engine.leases.commit(queue, reader, 1, DISK),  # type: ignore[misc]
                lambda queue=queue, reader=reader: engine.leases.release(queue, reader, DISK),  # type: ignore[misc]
            ]
    check_refused(run, calls)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_any_call_may_fail(case: Case, crash_images: int) -> None:
    explorer = LeaseExplorer(OPTIONS, SEED, Counts())
    check_nth(begin, case, crash_images, check_stopped, lambda: explorer)
