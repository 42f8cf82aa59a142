"""Heap: returns freed memory to the operating system.

The C library keeps freed memory for later use, and returns only the end of the main heap: after a
backlog of a gigabyte was consumed the process still occupied a gigabyte, with one empty queue.
`malloc_trim` returns every whole page that is free. It takes some 50 us for each MiB and holds the
lock of the heap meanwhile, so it is called in a worker's thread, after each STEP_BYTES that were
freed (1 ms) while there is work, and once after work has ended:

    counted memory has fallen    `look`, called at each tick of a vhost, compares the highest with
                                 the most that was counted within the last STEADY_S. So memory that
                                 a busy queue frees and takes again is kept, and so is that of work
                                 in bursts (measured: returning it after each burst makes a message
                                 of 16 KiB a quarter more expensive)
    a purge is freed in slices   `freed` is called for each slice
    the process has grown        `grown`: for STEADY_S it has occupied STEP_BYTES more beyond what
                                 is counted than at its best since the last trim. What was never
                                 counted (requests, tables, answers) leaves that in a process that
                                 is never idle
    anything else                `rest`, once a second, each IDLE_EVERY_S of a process that does
                                 next to nothing: it was started or busy, and is idle for STEADY_S

Small objects are in Python's own arenas, each of which is returned when all of it is free. Python's
free lists are scattered over the arenas and keep them: a third of what a purge of 120,000 messages
had left. A full collection empties these lists, so `rest` does one if less than SMALL_BYTES are
counted. It walks over all objects but those of the start, which `freeze_start` has excluded: 34,000
objects, for which the loop would wait 8 ms. With 10,000 queues there are 260,000 more (130 ms), of
which hardly any are in cycles: beyond SMALL_BLOCKS all are excluded for the moment, so that the
collection walks over nothing, and empties the free lists.

Libraries are files that are mapped. Half of what a process has of them is code that makes modules,
and runs once: `freeze_start` takes it out of the process, and what runs again comes back.

`returned_bytes` adds up how much smaller the process was after each trim. `penstock status` shows
it beside the bytes that are counted and those that the process occupies.

In processes of the broker only: the allocator of a program that embeds the library is its own.
Where the C library has no `malloc_trim` (musl, macOS) nothing is done.
"""

import asyncio
import ctypes
import gc
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.clock import until_next

STEP_BYTES: Final = 16 << 20
STEADY_S: Final = 5.0  # what is not needed for so long is given back; up to twice as long
EVERY_S: Final = 1.0  # a look at whether the process was busy
IDLE_EVERY_S: Final = 5.0  # the same while it does next to nothing
IDLE_USED_S: Final = 0.01  # of CPU since the last look: it does next to nothing
BUSY_PART: Final = 0.1  # of a core: the process is at work
SMALL_BYTES: Final = 8 << 20
SMALL_BLOCKS: Final = 20_000  # of Python's since the start: 5 ms if all are objects with others
MADV_DONTNEED: Final = 4  # linux/mman.h
BUSY_S: Final = 0.02  # of CPU since the last trim: there may be something to give back


def no_count() -> int:
    """Return 0: the default for a process that does not count its memory."""
    return 0


def find_trim() -> Callable[[], object] | None:
    """Return the C library's `malloc_trim`, None if it does not have it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes = [ctypes.c_size_t]
    return lambda: trim(0)


def unmap_code(maps: str = "/proc/self/maps") -> None:
    """Take the code of libraries out of this process: most of it has made modules and runs no more.
    What runs again is mapped again, from the file's pages in RAM. Linux only; nothing is done
    without this file of mappings."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with suppress(OSError), Path(maps).open() as lines:  # as a whole it would take new memory
        for line in lines:
            span, access, _, _, _, *file = line.split(maxsplit=5)
            if access == "r-xp" and file and ".so" in file[0]:
                begin, end = (int(at, 16) for at in span.split("-"))
                madvise(begin, end - begin, MADV_DONTNEED)


class Heap:
    """Of one process, on the running loop. counted: bytes that it counts as in use. trim: gives
    memory back, called in a worker's thread, one at a time; None: nothing is ever done.
    rss: bytes of RAM that the process occupies, called in the worker's thread, too; 0 if that is
    not known. cpu_s: seconds of CPU that the process has used. monotonic: seconds. `trims`: how
    many there were. `returned_bytes`: how many bytes they gave back to the system in all."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, trim: Callable[[], object] | None, *,
        counted: Callable[[], int] = no_count, rss: Callable[[], int] = no_count,
        cpu_s: Callable[[], float] = time.process_time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._trim = trim
        self._counted = counted
        self._rss = rss
        self._cpu_s = cpu_s
        self._monotonic = monotonic
        self._highest: int = 0  # counted since the last trim
        self._window_s: float = monotonic()  # when the present window of STEADY_S began
        self._window_most: int = 0  # counted in it
        self._before_most: int = 0  # counted in the window before
        self._freed: int = 0  # told since the last trim
        self._least_bytes: int = -1  # RSS beyond what is counted since the last trim; -1: not known
        self._small_s: float = self._window_s  # when it was last less than a step above that
        self._cpu_then: float = cpu_s()  # at the last look of `rest`
        self.pause_s: float = EVERY_S  # until its next
        self._busy_until: float = self._window_s  # when it was last found busy
        self._cpu_trimmed: float = self._cpu_then
        self._is_trimming: bool = False
        self._has_more: bool = True  # of the start; or a step was given back, and there is a rest
        self._must_collect: bool = False  # once what is counted is little
        self._blocks_at_start: int = sys.getallocatedblocks()
        self._is_frozen: bool = gc.get_freeze_count() > 0  # which walks over all that is frozen
        self._timer: asyncio.TimerHandle | None = None
        self.trims: int = 0
        self.returned_bytes: int = 0

    def freeze_start(self) -> None:
        """Exclude all present objects from later collections, and give back code. Called when the
        process has started."""
        if self._trim is not None:
            unmap_code()
        gc.collect()
        gc.freeze()
        self._is_frozen = True
        self._blocks_at_start = sys.getallocatedblocks()

    def start(self) -> None:
        """Start to look, once a second while the process does something."""
        if self._trim is not None:
            self._timer = self._loop.call_later(EVERY_S, self._tick)

    def stop(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def freed(self, n_bytes: int) -> None:
        """Note that bytes were freed which are not counted any more."""
        self._freed += n_bytes
        if self._freed >= STEP_BYTES:
            self.give_back()

    def look(self) -> None:
        """Return memory if the counted bytes have fallen far enough."""
        counted = self._counted()
        now = self._monotonic()
        if now - self._window_s >= STEADY_S:
            self._window_s, self._before_most, self._window_most = now, self._window_most, counted
        else:
            self._window_most = max(self._window_most, counted)
        if counted > self._highest:
            self._highest = counted
        elif self._highest - max(self._before_most, self._window_most) >= STEP_BYTES:
            self.give_back()

    def grown(self) -> None:
        """Return memory if the process has grown by more than what is counted."""
        beyond = self._rss() - self._counted()
        now = self._monotonic()
        if self._least_bytes < 0 or beyond < self._least_bytes:
            self._least_bytes = max(beyond, 0)
        if beyond - self._least_bytes < STEP_BYTES:
            self._small_s = now
        elif now - self._small_s >= STEADY_S:
            self.give_back()

    def rest(self) -> None:
        """Return memory if the process has worked, and has been idle for STEADY_S."""
        cpu = self._cpu_s()
        now = self._monotonic()
        used_s, self._cpu_then = cpu - self._cpu_then, cpu
        if used_s > EVERY_S * BUSY_PART:
            self._busy_until = now
        is_steady = now - self._busy_until >= STEADY_S
        self.pause_s = IDLE_EVERY_S if is_steady and used_s < IDLE_USED_S else EVERY_S
        if not is_steady or self._is_trimming:
            return
        has_worked = self._has_more or cpu - self._cpu_trimmed >= BUSY_S
        if has_worked:
            self._must_collect = True
        collects = self._must_collect and self._counted() <= SMALL_BYTES
        if collects:
            self._collect()
            self._must_collect = False
        if has_worked or collects:
            self.give_back()
            self._has_more = False

    def _collect(self) -> None:
        """Empty Python's free lists; delete what is in cycles, unless the loop would wait long."""
        if sys.getallocatedblocks() - self._blocks_at_start > SMALL_BLOCKS:
            gc.freeze()
            gc.collect()
            gc.unfreeze()
            self._is_frozen = False
        else:
            gc.collect()
            if not self._is_frozen:  # there were many, and the start was excluded no more
                gc.freeze()
                self._is_frozen = True

    def give_back(self) -> None:
        """Call `trim` in a thread, unless it is running."""
        if self._trim is None or self._is_trimming:
            return
        self._is_trimming = self._has_more = True
        self._highest = self._counted()
        self._freed = 0
        self.trims += 1
        work = self._loop.run_in_executor(None, self._measured_trim, self._trim)
        work.add_done_callback(self._trimmed)

    def _measured_trim(self, trim: Callable[[], object]) -> int:
        """In a worker's thread: trim, and return how many bytes smaller the process is after it."""
        before = self._rss()
        trim()
        return max(0, before - self._rss())

    def _trimmed(self, future: "asyncio.Future[int]") -> None:
        self._is_trimming = False
        self._least_bytes = -1
        self._cpu_trimmed = self._cpu_s()
        if not future.cancelled() and future.exception() is None:
            self.returned_bytes += future.result()

    def _tick(self) -> None:
        self.look()
        self.grown()
        self.rest()
        pause_s = until_next(self._monotonic(), self.pause_s)
        self._timer = self._loop.call_later(pause_s, self._tick)
