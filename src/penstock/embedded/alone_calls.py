"""AloneCalls: what a stream that stands alone does, as calls: steps under its lock.

    append    in RAM; then wait until it is on disk, if `force_every` says so
    chunk     up to 256 records or 256 KiB below the head
    wait      among the followers, until the head moves
    commit    in RAM, saved soon; or waited for

It has one partition and no transactions: those are of a box. Faces, readings and readers are the
same as there (`stream_source`).
"""

from collections.abc import Sequence
from typing import Final

from penstock.embedded.alone_core import DELETE, RETAIN, SAVE, AloneCore
from penstock.embedded.alone_driver import AloneDriver
from penstock.embedded.sources import Call, Feed, StreamInfo, StreamSource
from penstock.embedded.stream_record import NewRecord, StreamRecord
from penstock.embedded.waiting import ThreadWaiter
from penstock.errors import OptionError, PenstockError

SAFE: Final = "disk"
SOON_S: Final = 0.5  # that a loop which is left waits for the lock
LOOK_S: Final = 0.001


class AloneCalls(StreamSource):
    """See the head of this module."""

    def __init__(self, driver: AloneDriver) -> None:
        self.name: str = driver.core.name
        self.options = driver.core.settings.options
        self._driver = driver
        self._core: AloneCore = driver.core

    def monotonic(self) -> float:
        return self._core.clock.monotonic()

    def wall_us(self) -> int:
        return self._core.clock.wall_us()

    # ---- looking -------------------------------------------------------------------------------

    def info(self, reader: str = "") -> Call[StreamInfo]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._core.info(reader)

    def find(self, partition: int, time_us: int) -> Call[int]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            return self._core.find(time_us)

    # ---- appending -----------------------------------------------------------------------------

    def append(self, news: list[NewRecord], durability: object) -> Call[list[int]]:
        if durability not in (None, SAFE):
            raise OptionError("durability", durability, 'nothing (as force_every says), or "disk"')
        driver, core = self._driver, self._core
        with driver.gate, driver.guard:
            want = core.retry(driver.new_want_waiter)
        if want is not None:
            driver.nudge()
            yield want.waiter
            want.take()
        want = None
        with driver.gate, driver.guard:
            offsets = core.append(news)
            if offsets and (durability == SAFE or core.must_wait()):
                want = core.want_force(driver.new_want_waiter())
        driver.nudge()
        if want is not None:
            yield want.waiter
            want.take()
        return offsets

    def force(self) -> Call[None]:
        """All that was appended is on disk."""
        driver = self._driver
        with driver.gate, driver.guard:
            self._core.check()
            want = self._core.want_force(driver.new_want_waiter())
        driver.nudge()
        yield want.waiter
        want.take()

    def end(self) -> None:
        """Nobody appends any more: who follows need not wait."""
        with self._driver.lock:
            self._core.end()

    @property
    def is_ended(self) -> bool:
        """Whether `end` was called."""
        return self._core.is_ended

    # ---- reading -------------------------------------------------------------------------------

    def feed(self, partition: int, offset: int) -> "AloneFeed":
        return AloneFeed(self._driver, offset)

    def wait(self, feeds: Sequence[Feed], deadline: float | None) -> Call[None]:
        driver, core = self._driver, self._core
        with driver.gate, driver.guard:
            core.check()
            for feed in feeds:
                assert isinstance(feed, AloneFeed)
                if core.has_more(feed.offset):
                    return
            waiter = driver.new_waiter(0, deadline)
            core.followers.append(waiter)
        try:
            yield waiter
        finally:
            with driver.lock:
                if waiter in core.followers:
                    core.followers.remove(waiter)

    # ---- readers and the whole -----------------------------------------------------------------

    def commit(self, reader: str, offsets: dict[int, int], *, is_safe: bool) -> Call[None]:
        driver, core = self._driver, self._core
        want = None
        with driver.gate, driver.guard:
            core.check()
            for offset in offsets.values():
                core.commit(reader, offset)
            if is_safe:
                want = core.want(SAVE, driver.new_want_waiter())
        driver.nudge()
        if want is not None:
            yield want.waiter
            want.take()

    def commit_soon(self, reader: str, offsets: dict[int, int]) -> None:
        # directory_stream.py says why the lock is not taken to find out whether it is free.
        driver = self._driver
        until_s = self.monotonic() + SOON_S
        while driver.lock.locked():
            if self.monotonic() >= until_s:
                return
            ThreadWaiter().sleep(LOOK_S)
        try:
            for _ in self.commit(reader, offsets, is_safe=False):
                raise AssertionError("it waits for nothing")
        except PenstockError:
            pass  # it was closed, say: then it comes again

    def delete_reader(self, reader: str) -> Call[None]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            self._core.delete_reader(reader)
        self._driver.nudge()

    def retain(self) -> Call[int]:
        return (yield from self._asked(RETAIN))

    def delete(self) -> Call[None]:
        yield from self._asked(DELETE)

    def _asked(self, kind: str) -> Call[int]:
        driver = self._driver
        with driver.gate, driver.guard:
            want = self._core.want(kind, driver.new_want_waiter())
        driver.nudge()
        yield want.waiter
        return want.take()


class AloneFeed(Feed):
    """A place in the stream."""

    __slots__ = ("_driver", "offset")

    def __init__(self, driver: AloneDriver, offset: int) -> None:
        self._driver = driver
        self.offset = offset

    def chunk(self) -> Call[list[StreamRecord]]:
        yield from ()
        with self._driver.gate, self._driver.guard:
            records = self._driver.core.read(self.offset)
        if records:
            self.offset = records[-1].offset + 1
        return records

    def close(self) -> None:
        """Nothing is open."""
