"""Lives of a vhost with streams: triples of what it does, crashed at the operations of the disk.

    python -m tests.crash.stream_lives [--images N] [--seed S] [--jobs J] [--only TRIPLE:ROUND]

Each of the 9^3 triples of OPERATIONS runs on a small prepared store with queues and streams, with a
journal; then the store is crashed at operations of that journal, in every mode, recovered from,
judged and crashed again, also inside recovery (triple_unit.py, images.py): one LSN decides what
there is of queues and streams alike. A crash that leaves the kernel alive leaves the readers alive
too: they have the pages mapped, and no byte below a head that they saw may ever change
(stream_judge.py).

The same N and S give the same images; a violation prints what makes it again, and the exit code is
then 1.
"""

import itertools
import sys
from typing import ClassVar

from tests.crash import triple_unit
from tests.crash.images import Explorer, Image
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.ledger import Ledger
from tests.helpers.stream_driver import StreamDriver
from tests.helpers.vhost_driver import Driver

OPERATIONS = (
    "append", "fill", "mixed", "retain", "expire", "set_reader", "delete_stream", "checkpoint",
    "publish",
)  # fmt: skip
SECOND_LIFE = (
    "append", "append", "fill", "mixed", "one_record", "retain", "expire", "set_reader",
    "checkpoint",
    "begin_checkpoint", "delete_stream", "declare_stream", "publish", "ack", "sync", "roll",
    "read_streams",
)  # fmt: skip
READERS_LIVE = frozenset({"killed", "kept"})  # modes after which the pages are as readers saw them


class StreamExplorer(Explorer):
    """An Explorer of stores with streams, whose readers may outlive a crash."""

    driver: type[StreamDriver] = StreamDriver
    second_life: tuple[str, ...] = SECOND_LIFE

    def crash(
        self, fs: FaultyFileSystem, mode: str, ledger: Ledger, known: tuple[int, int, int]
    ) -> Image:
        image = super().crash(fs, mode, ledger, known)
        image.fs.has_readers = mode in READERS_LIVE
        return image


class Unit(triple_unit.Unit):
    """A triple of what is done with streams, and with queues beside them."""

    TITLE = "streams"
    TRIPLES = tuple(itertools.product(OPERATIONS, repeat=3))
    BEFORE: ClassVar[tuple[str, ...]] = ("append", "append", "fill", "publish", "begin_mixed")
    BEFORE_MAX = 4
    AND_THEN: ClassVar = {"delete_stream": "declare_stream"}
    EXPLORER = StreamExplorer

    def fill(self, driver: Driver) -> None:
        """Queues and two streams of several pages, named readers, some of it gone."""
        driver.declare(b"a")
        driver.declare(b"b")
        while len(driver.engine.streams.by_number) < 2:
            driver.step("declare_stream")
        for name in ("fill", "append", "publish", "set_reader", "mixed", "fill", "publish"):
            driver.step(name)
        driver.checkpoint()
        for name in ("append", "retain", "fill", "set_reader", "ack", "append"):
            driver.step(name)
        driver.checkpoint()
        driver.sync()
        driver.fs.completed(True)

    def look_back(self, driver: Driver) -> None:
        assert isinstance(driver, StreamDriver)
        if not driver.engine.is_closed:
            driver.read_streams()


if __name__ == "__main__":
    sys.exit(triple_unit.main(Unit, __doc__))
