"""Lives of a vhost with batches: triples of what it does, crashed at the operations of the disk.

    python -m tests.crash.batch_lives [--images N] [--seed S] [--jobs J] [--only TRIPLE:ROUND]

As stream_lives.py, with rows that tasks stage, decisions, adoptions, slices into queues and
streams, aborts and sweeps (batch_driver.py) among checkpoints and other traffic. What is demanded
of batches is in the ledger: a row is where the log says that it was moved, and in no other place; a
batch is as far as the log says, and what it has still to move is there. Of one image in two the
batches are moved to their ends, and all of it is read.
"""

import itertools
import sys
from typing import ClassVar

from tests.crash import stream_lives, triple_unit
from tests.crash.images import Image
from tests.crash.stream_lives import StreamExplorer
from tests.helpers.batch_driver import BatchDriver
from tests.helpers.vhost_driver import Driver

OPERATIONS = (
    "stage", "decide", "move_slice", "finish_batches", "adopt_last", "checkpoint", "sweep",
    "append",
)  # fmt: skip
SECOND_LIFE = (
    "stage", "decide", "move_slice", "move_slice", "move_slice", "batch_whole", "finish_batches",
    "append", "fill", "mixed", "publish", "ack", "retain", "expire", "checkpoint",
    "begin_checkpoint",
    "delete_stream", "declare_stream", "abort", "sweep", "forget", "sync", "roll", "read_streams",
)  # fmt: skip


class BatchExplorer(StreamExplorer):
    """An Explorer that moves the batches of some images to their ends."""

    driver = BatchDriver
    second_life = SECOND_LIFE

    def explore(self, image: Image) -> None:
        if self.rng.random() < 0.5:
            super().explore(image)
            return
        self.path.append("then all batches are moved")
        driver = self.recover(image)
        assert isinstance(driver, BatchDriver)
        driver.finish_batches()
        driver.idle()
        driver.read_streams()
        lsn = driver.engine.log.last_lsn
        self.recover(Image(driver.fs.crash("lost", self.rng), driver.ledger, lsn, lsn, lsn))
        self.path.pop()


class Unit(stream_lives.Unit):
    """A triple of what is done with batches, and with queues and streams beside them."""

    TITLE = "batches"
    TRIPLES = tuple(itertools.product(OPERATIONS, repeat=3))
    BEFORE = ("stage", "decide", "move_slice", "batch_whole", "append", "publish")
    BEFORE_MAX = 5
    AND_THEN: ClassVar = {"stage": "decide", "decide": "move_slice"}
    EXPLORER = BatchExplorer

    def fill(self, driver: Driver) -> None:
        """Queues and two streams, a batch that is done, one that is under way."""
        super().fill(driver)
        for name in ("batch_whole", "stage", "decide", "move_slice", "checkpoint", "move_slice"):
            driver.step(name)
        driver.sync()
        driver.fs.completed(True)


if __name__ == "__main__":
    sys.exit(triple_unit.main(Unit, __doc__))
