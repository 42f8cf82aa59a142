"""What an empty store takes on the disk, and what the first puts after a time of rest cost.

    python bench/disk_use.py DIRECTORY [--messages N] [--size BYTES] [--rest SECONDS]

A box in DIRECTORY, which must not exist: new; when N messages were put (durability os) and all were
acknowledged; after a rest of so many seconds; closed. Each line has the blocks that `du` counts, of
log, reserve and all. Then the first thousand durable puts of a box just opened, and those after the
rest: the median and the longest in ms.
"""

import argparse
import statistics
import time
from pathlib import Path

import penstock

MIB = 1 << 20
PUTS = 1000


def disk_bytes(path: Path) -> int:
    """Of the blocks of all files below."""
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


def line(what: str, path: Path) -> None:
    parts = {"log": 0, "reserve": 0}
    for file in path.rglob("*"):
        kind = "log" if file.parent.name == "wal" else file.name
        if kind in parts and file.is_file():
            parts[kind] += file.stat().st_blocks * 512
    told = ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in parts.items())
    print(f"{what:28} {told}, all {disk_bytes(path) / MIB:.1f} MiB", flush=True)


def puts(box: "penstock.Box", what: str) -> None:
    """The first durable puts."""
    queue = box.queue("q")
    taken_ms = []
    for _ in range(PUTS):
        began = time.perf_counter()
        queue.put(b"x" * 256)
        taken_ms.append((time.perf_counter() - began) * 1000)
    print(f"{what:28} median {statistics.median(taken_ms):.2f} ms, longest {max(taken_ms):.1f} ms")
    queue.purge()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--rest", type=float, default=75.0)
    options = parser.parse_args()
    with penstock.open(options.directory, memory="64 MiB") as box:
        time.sleep(3)
        line("new", options.directory)
        puts(box, "first puts of a new store")
        queue = box.queue("q")
        body = b"x" * options.size
        for _ in range(options.messages):
            queue.put(body, durability="os")
        for _ in range(options.messages):
            queue.get(block=False).ack()
        line("empty, just now", options.directory)
        time.sleep(options.rest)
        line(f"empty, after {options.rest:g} s", options.directory)
        puts(box, "first puts after the rest")
    line("closed", options.directory)


if __name__ == "__main__":
    main()
