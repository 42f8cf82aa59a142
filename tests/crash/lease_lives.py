"""Lives of a vhost with leases: triples of what it does, crashed at the operations of the disk.

    python -m tests.crash.lease_lives [--images N] [--seed S] [--jobs J] [--only TRIPLE:ROUND]

As enumerate.py, with readers that lease, commit and release (lease_driver.py) among publishes,
acks, moves, purges, deletions and checkpoints. What is demanded of leases is in the ledger: after a
crash a reader has exactly the messages, at exactly the ordinals, that the log says it has.
"""

import itertools
import sys
from typing import ClassVar

from tests.crash import triple_unit
from tests.crash.images import Explorer
from tests.helpers.lease_driver import LeaseDriver
from tests.helpers.tiny_engine import STORED
from tests.helpers.vhost_driver import QUEUES, Driver

OPERATIONS = (
    "lease", "lease_transient", "commit_lease", "release_lease", "publish", "ack", "purge",
    "delete", "checkpoint",
)  # fmt: skip
SECOND_LIFE = (
    "lease", "lease", "lease_transient", "commit_lease", "commit_lease", "release_lease",
    "publish", "publish", "ack", "tx", "move", "requeue", "purge", "delete", "declare_missing",
    "checkpoint", "begin_checkpoint", "page_out", "roll", "reap", "sync",
)  # fmt: skip


class LeaseExplorer(Explorer):
    """An Explorer of stores whose queues are leased."""

    driver = LeaseDriver
    second_life = SECOND_LIFE


class Unit(triple_unit.Unit):
    """A triple of what readers do, with everything else beside them."""

    TITLE = "leases"
    TRIPLES = tuple(itertools.product(OPERATIONS, repeat=3))
    BEFORE = ("publish", "publish", "lease", "commit_lease", "begin", "page_out", "ack")
    BEFORE_MAX = 5
    AND_THEN: ClassVar = {"delete": "declare_missing"}
    EXPLORER = LeaseExplorer

    def fill(self, driver: Driver) -> None:
        """Entries in slots, sections and log, and readers who have some of them, of all kinds."""
        for queue in QUEUES:
            driver.declare(queue)
        for _ in range(6):
            driver.publish(driver.rng.randint(*STORED))
        for _ in range(10):
            driver.step("publish")
        for name in ("lease", "lease", "lease_transient", "checkpoint", "commit_lease", "ack"):
            driver.step(name)
        for name in ("publish", "lease", "requeue", "release_lease", "lease", "commit_lease"):
            driver.step(name)
        driver.checkpoint()
        for name in ("publish", "publish", "lease", "deliver"):
            driver.step(name)
        driver.sync()
        driver.fs.completed(True)


if __name__ == "__main__":
    sys.exit(triple_unit.main(Unit, __doc__))
