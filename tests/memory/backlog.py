"""Backlog: a process in which messages pile up in a VariableQueue, and that looks at itself.

Run as `python -m tests.memory.backlog JSON`, in a process of its own so that nothing else is in its
RSS; prints one line of JSON. The JSON says `what` (a function here), `directory` and the function's
other arguments. A StorageEngine on a real directory, one VariableQueue, and a MemoryMonitor with a
budget for it, driven as their owner drives them: a turn after each batch.

Bodies carry their number, so that it is noticed if one is lost, doubled, out of turn or damaged.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.clock import SystemClock
from penstock.queues.backing_queue import NewMessage
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.priority_queue import open_backing
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import OS
from penstock.storage.files.filesystem import OsFileSystem

MIB = 1 << 20
BATCH = 200
TICK_S = 0.1
FIRST = 100_000  # the backlog that a longer one is compared with

Result = dict[str, Any]


class Backlog:
    """The queue, its publisher and its consumer. body_bytes: of each message, at least 12."""

    def __init__(self, directory: str, body_bytes: int, budget_bytes: int) -> None:
        self._fs = OsFileSystem()
        self._data = DataDirectory(self._fs, directory)
        self._clock = SystemClock()
        self.engine = StorageEngine(
            self._fs, self._data.vhost_path(b"/"), b"/", clock=self._clock, rng=random.Random()
        )
        self.queue = open_backing(self.engine, b"backlog", mode=OS)
        self._monitor = MemoryMonitor(budget_bytes, self._clock)
        self._monitor.register(self.queue)
        self._filling = b"." * (body_bytes - 12)
        self._ticked = 0.0
        self.published = 0
        self.consumed = 0
        self.rss_most = 0
        self.ram_most = 0

    def publish(self, n: int) -> None:
        """n messages more, in one batch."""
        first = self.published
        self.queue.batch_publish(
            [NewMessage(b"", b"%012d" % i + self._filling) for i in range(first, first + n)], OS
        )
        self.published += n
        self._turn()

    def consume(self, n: int) -> None:
        """The next n messages, or what there is, which are acknowledged together."""
        tags: list[int] = []
        queue = self.queue
        for _ in range(min(n, queue.len())):
            while (delivery := queue.fetch()) is None:
                held = queue.held()
                assert held is not None, "nothing is there, and nothing to wait for"
                self.engine.wait(*held)
            expected = b"%012d" % (self.consumed + len(tags)) + self._filling
            assert delivery.message.body == expected, f"after {self.consumed + len(tags)}"
            assert not delivery.is_redelivered
            tags.append(delivery.tag)
        assert len(queue.ack(tags, OS)) == len(tags)
        self.consumed += len(tags)
        queue.inhale()
        self._turn()

    def _turn(self) -> None:
        self.queue.resume()
        self.engine.wait(self.engine.log.last_lsn, OS)  # as a publisher waits for its confirm
        self.engine.poll()
        now = time.monotonic()
        if now - self._ticked >= TICK_S:
            self._ticked = now
            self.engine.tick()
            self._monitor.tick(now)
            self.look()

    def look(self) -> int:
        """RSS in bytes, now."""
        rss = rss_bytes()
        self.rss_most = max(self.rss_most, rss)
        self.ram_most = max(self.ram_most, self.queue.ram_bytes())
        return rss

    def drain(self) -> None:
        """All that is left, in order."""
        while self.queue.len():
            self.consume(BATCH)
        assert self.consumed == self.published
        assert self.queue.depth() == 0

    def close(self) -> Result:
        """Stop in order; the counters."""
        info = dict(self.queue.info())
        self.queue.terminate()
        self.engine.close()
        self._data.close()
        self._fs.close()
        return {
            "messages": self.consumed,
            "rss_most": self.rss_most,
            "ram_most": self.ram_most,
            "disk_reads": info["disk_reads"],
            "disk_writes": info["disk_writes"],
        }


def rss_bytes() -> int:
    """VmRSS of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("this system has no VmRSS")


def pile_up(directory: str, count: int, body_bytes: int, budget_bytes: int) -> Result:
    """`count` messages in, then all of them out. rss_first, rss_full: with 100,000 of them waiting,
    and with all."""
    started = time.monotonic()
    backlog = Backlog(directory, body_bytes, budget_bytes)
    rss_empty = backlog.look()
    while backlog.published < min(FIRST, count):
        backlog.publish(BATCH)
    rss_first = backlog.look()
    while backlog.published < count:
        backlog.publish(BATCH)
    rss_full = backlog.look()
    in_s = time.monotonic() - started
    info = backlog.queue.info()
    started = time.monotonic()
    backlog.drain()
    out_s = time.monotonic() - started
    return {
        "rss_empty": rss_empty,
        "rss_first": rss_first,
        "rss_full": rss_full,
        "ram_full": info["ram_bytes"],
        "delta_full": info["delta"],
        "in_s": round(in_s, 2),
        "out_s": round(out_s, 2),
        **backlog.close(),
    }


def speeds(
    directory: str, count: int, body_bytes: int, budget_bytes: int, steps: list[list[int]]
) -> Result:
    """Publisher and consumer at different speeds: the steps (in, out) over and over until `count`
    are in, then until all are out. rss_first: when the backlog was FIRST messages for the first
    time, or the longest that it was. waiting_most: the longest backlog."""
    backlog = Backlog(directory, body_bytes, budget_bytes)
    rss_first = waiting_most = step = 0
    while backlog.published < count:
        in_n, out_n = steps[step % len(steps)]
        for _ in range(0, in_n, BATCH):
            backlog.publish(min(BATCH, in_n))
        waiting = backlog.queue.len()
        if waiting > waiting_most and waiting_most < FIRST:
            rss_first = backlog.look()
        waiting_most = max(waiting_most, waiting)
        for _ in range(0, out_n, BATCH):
            backlog.consume(min(BATCH, out_n))
        step += 1
    backlog.drain()
    return {"rss_first": rss_first, "waiting_most": waiting_most, **backlog.close()}


SCENARIOS: dict[str, Callable[..., Result]] = {"pile_up": pile_up, "speeds": speeds}


def main() -> int:
    given = json.loads(sys.argv[1])
    print(json.dumps(SCENARIOS[given.pop("what")](**given)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
