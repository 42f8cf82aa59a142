"""docs/how-it-works/memory.png: RAM and throughput while ten million messages go in, and out again.

    make plot                                    ten million of 100 B, a budget of 64 MiB
    make plot ARGS='--count 200000 --out /tmp/memory.png'

A box in mode `os`: messages are put in batches until all are there, then got and acked in batches
until none is. Twice a second it is noted how many wait and in which state, what the process
occupies (RSS) and what the box counts in RAM. The bodies carry their number, and each is looked at
when it comes out.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import penstock
from penstock.options import format_bytes, parse_bytes

ROOT = Path(__file__).parent.parent
BATCH = 100
EVERY_S = 0.5
MIB = 1 << 20


class Sample(NamedTuple):
    """One look: seconds since the start, messages waiting, RSS and counted bytes, messages per
    second since the last look, and ready messages in each state."""

    at_s: float
    waiting: int
    rss: int
    counted: int
    per_s: float
    alphas: int
    rows: int
    delta: int


class Watch:
    """Takes a sample twice a second, between two batches; tells of it now and then."""

    def __init__(self, queue: Any, count: int) -> None:
        self._queue = queue
        self._count = count
        self._started = self._last_at = time.monotonic()
        self._last_done = 0
        self.samples: list[Sample] = []
        self.turn_s = 0.0  # when all were in

    def look(self, done: int, *, is_last: bool = False) -> None:
        """`done`: messages that were put or got so far."""
        now = time.monotonic()
        if now - self._last_at < EVERY_S and not is_last:
            return
        per_s = (done - self._last_done) / max(now - self._last_at, 1e-9)
        info = self._queue.info()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        sample = Sample(
            now - self._started, len(self._queue), pages * 4096, int(info["ram_bytes"]), per_s,
            int(info["alphas"]), int(info["betas"]) + int(info["gammas"]), int(info["delta"]),
        )  # fmt: skip
        self.samples.append(sample)
        self._last_at, self._last_done = now, done
        if len(self.samples) % 4 == 1 or is_last:
            print(
                f"{sample.at_s:6.1f} s  {sample.waiting:>10,} waiting  "
                f"{per_s:>9,.0f} per s  RSS {sample.rss / MIB:6.1f} MiB  "
                f"counted {sample.counted / MIB:5.1f} MiB",
                flush=True,
            )

    def turn(self) -> None:
        """All are in."""
        self.turn_s = time.monotonic() - self._started


def run(data: Path, count: int, size: int, memory: str) -> Watch:
    """Put `count` messages, get them all in order."""
    with penstock.open(data, durability="os", memory=memory) as box:
        queue = box.queue("plot")
        watch = Watch(queue, count)
        for first in range(0, count, BATCH):
            batch = [i.to_bytes(8, "big").ljust(size, b"b") for i in range(first, first + BATCH)]
            queue.put_many(batch)
            watch.look(first + BATCH)
        watch.turn()
        got = 0
        while got < count:
            jobs = queue.get_many(BATCH, timeout=0)
            for job in jobs:
                if int.from_bytes(job.body[:8], "big") != got:
                    sys.exit(f"message {got} did not come in its turn")
                got += 1
            queue.ack(jobs)
            watch.look(count + got)
        watch.look(2 * count, is_last=True)
    return watch


def draw(watch: Watch, out: Path, count: int, size: int, memory: int) -> None:
    """Three panels over one time: what waits and what it takes; in which state it is; how fast it
    goes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    samples = watch.samples
    at = [s.at_s for s in samples]
    figure, (upper, middle, lower) = pyplot.subplots(
        3, 1, figsize=(9, 8), sharex=True, height_ratios=[3, 2, 2], layout="constrained"
    )
    upper.fill_between(at, [s.waiting / 1e6 for s in samples], color="#d7dee8", lw=0)
    upper.set_ylabel("waiting, million messages (grey)")
    upper.set_ylim(bottom=0)
    ram = upper.twinx()
    ram.plot(
        at, [s.rss / MIB for s in samples], color="#b3362c", lw=1.6, label="RSS of the process"
    )
    ram.plot(at, [s.counted / MIB for s in samples], color="#1f5fa8", lw=1.6,
             label="counted by the queue")  # fmt: skip
    ram.axhline(memory / MIB, color="#1f5fa8", lw=0.8, ls="--", label="memory budget")
    ram.set_ylim(0, 2 * max(s.rss for s in samples) / MIB)
    ram.set_ylabel("RAM, MiB")
    ram.legend(loc="upper left", frameon=False)
    bytes_ = format_bytes(count * size)
    upper.set_title(f"{count:,} messages of {size} B ({bytes_}) in and out, mode os", loc="left")
    middle.plot(at, [s.alphas / 1e3 for s in samples], color="#3a7d44", lw=1.6, label="alphas")
    middle.plot(
        at, [s.rows / 1e3 for s in samples], color="#8a5a00", lw=1.6, label="betas and gammas"
    )
    middle.set_ylim(bottom=0)
    middle.set_ylabel("in RAM, thousand messages")
    middle.legend(loc="upper left", frameon=False)
    below = middle.twinx()
    below.plot(at, [s.delta / 1e6 for s in samples], color="#7b8794", lw=1.6, label="delta")
    below.set_ylim(bottom=0)
    below.set_ylabel("delta, million messages")
    below.legend(loc="upper right", frameon=False)
    for name, color, part in (
        ("in", "#3a7d44", [s for s in samples if s.at_s <= watch.turn_s]),
        ("out", "#8a5a00", [s for s in samples if s.at_s > watch.turn_s]),
    ):
        lower.plot([s.at_s for s in part], [s.per_s / 1e3 for s in part], color=color, lw=1.6,
                   label=name)  # fmt: skip
    lower.set_ylim(bottom=0)
    lower.set_xlim(0, at[-1])
    lower.set_ylabel("thousand messages per s")
    lower.set_xlabel("seconds")
    lower.legend(loc="lower left", frameon=False)
    figure.savefig(out, dpi=110, metadata={"Software": None})
    print(f"drawn to {out}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000_000, help="a multiple of 100")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body, at least 8")
    parser.add_argument("--memory", default="64 MiB", help="the box's budget")
    parser.add_argument("--data", type=Path, default=ROOT / "run-data" / "plot")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "how-it-works" / "memory.png")
    given = parser.parse_args()
    if given.count < BATCH or given.count % BATCH or given.size < 8:
        parser.error("--count is a multiple of 100, --size at least 8")
    shutil.rmtree(given.data, ignore_errors=True)
    given.data.parent.mkdir(parents=True, exist_ok=True)
    try:
        watch = run(given.data, given.count, given.size, given.memory)
    finally:
        shutil.rmtree(given.data, ignore_errors=True)
    draw(watch, given.out, given.count, given.size, parse_bytes("memory", given.memory, 1 << 40))
    return 0


if __name__ == "__main__":
    sys.exit(main())
