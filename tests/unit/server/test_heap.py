"""Heap: when memory is given back: after each step that counted memory fell, and at rest."""

import asyncio
import gc
import json
import zlib
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from penstock.server import heap as heap_module
from penstock.server.heap import (
    BUSY_S,
    EVERY_S,
    IDLE_EVERY_S,
    SMALL_BLOCKS,
    SMALL_BYTES,
    STEADY_S,
    STEP_BYTES,
    Heap,
    find_trim,
    unmap_code,
)


class Process:
    """What a Heap sees of one."""

    def __init__(self) -> None:
        self.counted = 0
        self.cpu_s = 1.0
        self.now_s = 100.0
        self.trims = 0
        self.rss = 100
        self.returns = 0  # bytes that a trim gives back
        self.heap = Heap(
            asyncio.get_running_loop(), self.trim, counted=lambda: self.counted,
            rss=lambda: self.rss,
            cpu_s=lambda: self.cpu_s, monotonic=lambda: self.now_s,
        )  # fmt: skip

    def trim(self) -> None:
        self.trims += 1
        self.rss -= self.returns

    async def look(self, counted: int) -> int:
        """Look while so much is counted for two windows; how many trims there were so far."""
        for _ in range(3):
            await self.glance(counted, STEADY_S)
        return self.trims

    async def glance(self, counted: int, seconds: float) -> int:
        """Look once, so many seconds after the last time."""
        self.counted = counted
        self.now_s += seconds
        self.heap.look()
        return await self.done()

    async def done(self) -> int:
        """How many trims there were, all of them over."""
        while self.heap._is_trimming:
            await asyncio.sleep(0)
        return self.trims


def lived(life: Callable[[Process], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        await life(Process())

    asyncio.run(run())


def test_each_step_that_counted_memory_falls() -> None:
    async def life(process: Process) -> None:
        assert await process.look(10 * STEP_BYTES) == 0
        assert await process.look(9 * STEP_BYTES + 1) == 0
        assert await process.look(9 * STEP_BYTES) == 1
        assert await process.look(9 * STEP_BYTES) == 1
        assert await process.look(8 * STEP_BYTES) == 2
        assert await process.look(20 * STEP_BYTES) == 2
        assert await process.look(0) == 3, "one, however far"
        assert await process.look(0) == 3

    lived(life)


def test_memory_that_is_freed_and_taken_again_stays() -> None:
    async def life(process: Process) -> None:
        for counted in (0, 8, 0, 8, 1, 8, 0, 8) * 3:
            assert await process.glance(counted * STEP_BYTES, STEADY_S / 2) == 0
        for _ in range(3):
            await process.glance(0, STEADY_S / 2)
        assert await process.glance(0, STEADY_S / 2) == 1

    lived(life)


def test_each_step_that_a_busy_process_has_grown_beyond_what_is_counted() -> None:
    async def life(process: Process) -> None:
        async def seconds(rss: int, counted: int = 0, n: float = 2 * STEADY_S) -> int:
            process.rss, process.counted = rss * STEP_BYTES, counted * STEP_BYTES
            for _ in range(int(n / EVERY_S)):
                process.now_s += EVERY_S
                process.heap.grown()
                await process.done()
            return process.trims

        assert await seconds(3) == 0
        assert await seconds(9, counted=6) == 0, "it is counted"
        assert await seconds(9, counted=5, n=STEADY_S - EVERY_S) == 0
        assert await seconds(9, counted=6) == 0, "it was needed again"
        assert await seconds(9, counted=5) == 1
        assert await seconds(9, counted=5) == 1, "it is not given back: no more is tried"
        assert await seconds(4, counted=1) == 1
        assert await seconds(4, counted=0) == 2

    lived(life)


def test_each_step_that_is_freed_after_it_was_counted() -> None:
    async def life(process: Process) -> None:
        for _ in range(4):
            process.heap.freed(STEP_BYTES // 2)
            await process.done()
        assert process.trims == 2

    lived(life)


def test_what_was_given_back_adds_up() -> None:
    async def life(process: Process) -> None:
        for returns, returned in ((-2, 0), (3, 3), (3, 6)):
            process.returns = returns
            process.heap.freed(STEP_BYTES)
            await process.done()
            assert process.heap.returned_bytes == returned

    lived(life)


def test_one_at_a_time() -> None:
    async def life(process: Process) -> None:
        for _ in range(5):
            process.heap.freed(STEP_BYTES)
        assert await process.done() == 1

    lived(life)


def test_once_at_rest_after_work() -> None:
    async def life(process: Process) -> None:
        for is_busy, trims in ((True, 0), (True, 0), (False, 1), (False, 1), (False, 1)):
            process.cpu_s += EVERY_S * 0.5 if is_busy else 0.001
            process.now_s += EVERY_S if is_busy else STEADY_S
            process.heap.rest()
            assert await process.done() == trims

    lived(life)


def test_work_that_comes_in_bursts_keeps_its_memory() -> None:
    async def life(process: Process) -> None:
        for is_busy in (True, False, False, True, False, False, False, True):
            process.cpu_s += EVERY_S * 0.5 if is_busy else 0.001
            process.now_s += EVERY_S
            process.heap.rest()
            assert await process.done() == 0

    lived(life)


def test_objects_are_collected_once_little_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted may be known later than that the process is at rest."""
    collected: list[int] = []
    monkeypatch.setattr(heap_module.gc, "collect", lambda: collected.append(1))

    async def life(process: Process) -> None:
        process.counted = SMALL_BYTES + 1
        process.cpu_s += 0.05
        process.now_s += STEADY_S
        for trims in (1, 1):
            process.heap.rest()
            assert await process.done() == trims
        assert not collected
        process.counted = SMALL_BYTES
        for _ in range(3):
            process.heap.rest()
            assert await process.done() == 2
        assert len(collected) == 1

    lived(life)


def test_a_little_work_adds_up() -> None:
    async def life(process: Process) -> None:
        process.now_s += STEADY_S
        process.heap.rest()
        assert await process.done() == 1, "what the start has left"
        seconds = 0
        while process.trims == 1:
            seconds += 1
            process.now_s += STEADY_S
            process.cpu_s += BUSY_S / 10
            process.heap.rest()
            await process.done()
        assert 9 <= seconds <= 11

    lived(life)


def test_without_malloc_trim_nothing_happens() -> None:
    async def run() -> None:
        heap = Heap(asyncio.get_running_loop(), None)
        heap.start()
        heap.freed(10 * STEP_BYTES)
        heap.give_back()
        heap.stop()
        assert heap.trims == 0

    asyncio.run(run())


def test_the_c_library_of_this_machine() -> None:
    trim = find_trim()
    assert trim is None or trim() in (0, 1)


def walked(process: Process) -> list[list[int]]:
    """Of each full collection at rest: by id, the objects that it walked over."""
    found: list[list[int]] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            found.append([id(one) for one in gc.get_objects()])

    process.cpu_s += BUSY_S
    process.now_s += STEADY_S
    gc.callbacks.append(note)
    try:
        process.heap.rest()
    finally:
        gc.callbacks.remove(note)
    return found


def test_a_process_that_does_next_to_nothing_is_looked_at_less_often() -> None:
    async def life(process: Process) -> None:
        pauses = []
        for used_s in (0.5, *[0.001] * 5, 0.001, 0.02, 0.001, 0.2, 0.001):
            process.cpu_s += used_s
            process.now_s += process.heap.pause_s
            process.heap.rest()
            await process.done()
            pauses.append(process.heap.pause_s)
        often, rarely = EVERY_S, IDLE_EVERY_S
        assert pauses == [*[often] * 5, rarely, rarely, often, rarely, often, often]

    lived(life)


def test_a_collection_at_rest_walks_over_nothing_of_the_start() -> None:
    async def life(process: Process) -> None:
        of_the_start: list[list[object]] = [[] for _ in range(1000)]
        process.heap.freeze_start()
        later: list[object] = []
        ids = walked(process)[0]
        await process.done()
        assert id(later) in ids
        assert not set(ids).intersection(map(id, of_the_start))

    try:
        lived(life)
    finally:
        gc.unfreeze()


def code_kib() -> int:
    """KiB of RAM that this process occupies for code of libraries."""
    found, is_code = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_code = words[1] == "r-xp" and ".so" in line
        elif words[0] == "Rss:" and is_code:
            found += int(words[1])
    return found


@pytest.mark.skipif(find_trim() is None, reason="no malloc_trim: nothing is given back")
def test_code_that_was_given_back_comes_back_when_it_runs() -> None:
    text = json.dumps({"a": [1.5, "b"]})
    before = code_kib()
    unmap_code()
    assert code_kib() < before
    assert json.loads(text) == {"a": [1.5, "b"]}
    assert zlib.decompress(zlib.compress(b"x" * 1000)) == b"x" * 1000


def test_a_process_starts_without_a_file_of_its_mappings() -> None:
    """Where /proc is not mounted, or no descriptor is left."""
    unmap_code("/nowhere/maps")


@pytest.mark.large
def test_a_collection_at_rest_walks_over_nothing_of_many() -> None:
    """And over what is left when most of them have gone, but not over the start again."""

    async def life(process: Process) -> None:
        of_the_start: list[list[object]] = [[] for _ in range(1000)]
        process.heap.freeze_start()
        many: list[list[object]] = [[] for _ in range(SMALL_BLOCKS + 1)]
        for _ in range(2):
            (ids,) = walked(process)
            assert len(ids) <= 1, "the list of them, which Python 3.13 leaves out"
            await process.done()
        many.clear()
        walked(process)
        await process.done()
        later: list[object] = []
        ids = walked(process)[0]
        await process.done()
        assert id(later) in ids
        assert not set(ids).intersection(map(id, of_the_start))

    try:
        lived(life)
    finally:
        gc.unfreeze()
