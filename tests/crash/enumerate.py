"""All triples of what an engine does, crashed at every operation of the file system.

    python -m tests.crash.enumerate [--images N] [--seed S] [--jobs J]

Each of the 9^3 triples of OPERATIONS runs on a small prepared store, once per round and variant of
the options, with a journal; then the store is crashed at operations of that journal, in every mode,
recovered from and judged (triple_unit.py, images.py).

One line of counts is printed at the end. A violation prints what makes it again: seed, triple,
round, operation, mode, and what the engine did; the exit code is then 1.
"""

import itertools
import sys
from typing import ClassVar

from tests.crash import triple_unit
from tests.helpers.tiny_engine import STORED
from tests.helpers.vhost_driver import QUEUES, Driver

OPERATIONS = (
    "publish", "ack", "tx", "move", "roll", "checkpoint", "combine", "purge", "delete",
)  # fmt: skip


class Unit(triple_unit.Unit):
    """A triple of what is done with queues."""

    TITLE = "crash enumeration"
    TRIPLES = tuple(itertools.product(OPERATIONS, repeat=3))
    BEFORE = ("publish", "publish", "ack", "begin", "page_out", "spool", "trim")
    BEFORE_MAX = 5
    AND_THEN: ClassVar = {"delete": "declare_missing"}
    IMAGES = 20_000
    IMAGES_EACH = 28

    def fill(self, driver: Driver) -> None:
        """Some of everything: entries in slots, sections and log, live and dead; store files worth
        combining; shared bodies; a queue that was purged and not yet reaped."""
        for name in QUEUES:
            driver.declare(name)
        for _ in range(9):
            driver.publish(driver.rng.randint(*STORED))
        for _ in range(8):
            driver.step("publish")
        driver.checkpoint()
        for _ in range(7):
            driver.step("ack")
        for _ in range(3):
            driver.step("publish")
        driver.step("requeue")
        driver.step("deliver")
        driver.checkpoint()
        driver.sync()


if __name__ == "__main__":
    sys.exit(triple_unit.main(Unit, __doc__))
