"""The figures: measured, held against their goals, kept, rendered.

    make bench                      all of it, one and a half to two hours
    make bench ARGS=--quick         the same with smaller numbers, about four minutes
    make bench ARGS='--part queues --only flat'          one scenario
    make bench ARGS='--part broker'                      the broker, about nine minutes
    python bench/run.py --render    docs/reference/performance.md again, from the last full runs

Eight parts: the storage engine (here), the queues with the embedded library (queue_bench.py), the
broker beside RabbitMQ (broker_bench.py), single messages (single_bench.py) beside RabbitMQ and,
where LAVINMQ_NODE names a script that starts it, LavinMQ, with publishing from Python beside pika,
messages over TLS (tls_bench.py) on the same brokers, Redis streams where redis-server is installed
(redis_bench.py), what the brokers write to the disk (writes.py), and the management API with many
queues beside RabbitMQ's (management.py).
A full run of a part is appended to bench/results with commit, machine and date, and rendered to
docs/reference/performance.md; a quick one only with --save.
Every scenario is a process of its own, or several. The kill -9 is a real one, of a process that has
just written that log.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import page
from broker_bench import BrokerBench
from management import ManagementBench
from measure import measure
from queue_bench import QueueBench
from redis_bench import RedisBench
from runner import ROOT, Result, Runner, spread
from single_bench import SingleBench
from tls_bench import TlsBench
from writes import WritesBench

SMALL = 256  # bytes of body, unless something else is said
TRIGGER = 64 << 20  # bytes of log after which a checkpoint begins


class StorageBench(Runner):
    """Scenarios of the storage engine; `figures` by what they measure."""

    script = "storage.py"

    def scenarios(self) -> dict[str, Callable[[], None]]:
        return {
            "cpu": self.cpu, "bytes": self.bytes_and_syncs, "opening": self.opening,
            "ram": self.ram,
        }  # fmt: skip

    def cpu(self) -> None:
        """CPU per message appended and dequeued, compiled and pure, `os` and `disk`."""
        groups, runs = self.pick((100, 3), (400, 9))
        common: Result = {"runs": runs, "size": SMALL, "group": 100}
        for build, is_pure in (("compiled", False), ("pure", True)):
            self.say(f"CPU per message, os, {build}")
            found = self.child("cpu_os", "cpu", is_pure=is_pure, groups=groups, **common)
            self.figures[f"os_{build}"] = found
            self.say(f"CPU per message, disk, {build}")
            found = self.child("cpu_disk", "cpu", is_pure=is_pure, groups=groups // 2, **common)
            found["sync_wall"] = spread(found["sync_wall"])
            found["sync_cpu"] = spread(found["sync_cpu"])
            self.figures[f"disk_{build}"] = found

    def bytes_and_syncs(self) -> None:
        """Bytes per message and syncs per confirm."""
        rows = []
        for size in (100, 1 << 10, 64 << 10):
            for group in (1, 10, 100, 1000):
                self.say(f"bytes and syncs, disk, {size} B, groups of {group}")
                if group * size > 16 << 20:
                    groups = 1
                else:
                    groups = self.pick(5, max(4, min(100, (16 << 20) // (group * size))))
                found = self.child(
                    "bytes_and_syncs", "bytes", size=size, group=group, groups=groups
                )
                rows.append({"size": size, "group": group, **found})
        self.figures["bytes"] = rows

    def opening(self) -> None:
        """Opening with backlogs: after an orderly stop, and after a kill -9 with the same tail."""
        runs = self.pick(2, 3)
        records = self.pick(5_000, 50_000)
        rows = []
        for count in self.pick((5_000, 50_000), (10_000, 100_000, 1_000_000)):
            self.say(f"a backlog of {count:,} is made")
            self.child("fill", "backlog", keep=True, count=count, size=SMALL)
            clean, clean_cpu, dirty, replayed = [], [], [], 0
            for run in range(runs):
                self.say(f"backlog of {count:,}: open after a clean stop, run {run + 1}")
                found = self.child("open_store", "backlog", keep=True)
                clean.append(found["ms"])
                clean_cpu.append(found["cpu_ms"])
                self.say(f"backlog of {count:,}: kill -9, {records:,} records, run {run + 1}")
                self.kill("publish", records, 0)
                found = self.child("open_store", "backlog", keep=True)
                dirty.append(found["ms"])
                replayed = found["replayed"]
            found = self.child("open_store", "backlog", keep=True, traced=True)
            rows.append(
                {"count": count, "clean_ms": clean, "clean_cpu_ms": clean_cpu, "kill_ms": dirty,
                 "replayed": replayed, "ram": found["ram"], "messages": found["count"]}
            )  # fmt: skip
        self.figures["opening"] = rows
        self.worst()

    def worst(self) -> None:
        """The log just below the size at which a checkpoint begins, and other hard tails, with the
        largest backlog."""
        limit = self.pick(8 << 20, TRIGGER) - (64 << 10)
        many = self.pick(20_000, 1_000_000)
        acks = self.pick(4_000, 200_000)
        rows = []
        for name, kind, records, size, log_bytes in (
            ("publishes of 256 B up to the trigger", "publish", 1 << 40, SMALL, limit),
            ("publishes of 4 KiB up to the trigger", "publish", 1 << 40, 4095, limit),
            ("publishes of 16 B up to the trigger", "publish", many, 16, limit),
            ("acks one by one", "ack", acks, SMALL, 0),
        ):
            times, cpu, found = [], [], {}
            for run in range(self.pick(1, 3)):
                self.say(f"kill -9 behind {name}, run {run + 1}")
                told = self.kill(kind, records, log_bytes, size)
                found = self.child("open_store", "backlog", keep=True)
                times.append(found["ms"])
                cpu.append(found["cpu_ms"])
            replayed = found["replayed"]
            rows.append(
                {"name": name, "replayed": replayed, "ms": times, "cpu_ms": cpu,
                 "cpu_us": [ms * 1e3 / replayed for ms in cpu], "log_bytes": told["log_bytes"]}
            )  # fmt: skip
        self.figures["worst"] = rows
        shutil.rmtree(self.data / "backlog")

    def kill(self, kind: str, records: int, log_bytes: int, size: int = SMALL) -> Result:
        return self.child(
            "tail", "backlog", is_killed=True, keep=True, kind=kind, records=records, size=size,
            log_bytes=log_bytes,
        )  # fmt: skip

    def ram(self) -> None:
        """RAM per message that is wholly on disk."""
        small = self.pick([4_000, 24_000], [20_000, 100_000])
        large = self.pick([2_000, 6_000], [4_000, 40_000])
        rows = []
        for name, size, own, is_hollow, steps in (
            ("256 B, in its queue's segment", SMALL, 0, False, small),
            ("32 KiB, in a file of the store", 32 << 10, 0, True, large),
            ("in a file of its own (here from 32 KiB on)", 32 << 10, 1, True, large),
        ):
            self.say(f"RAM per message on disk: {name}")
            found = self.child(
                "ram", "ram", size=size, steps=steps, own_file_from=own, is_hollow=is_hollow
            )
            rows.append({"name": name, "steps": steps, **found})
        self.figures["ram"] = rows


PARTS: dict[str, type[Runner]] = {
    "storage": StorageBench,
    "queues": QueueBench,
    "broker": BrokerBench,
    "single": SingleBench,
    "tls": TlsBench,
    "redis": RedisBench,
    "writes": WritesBench,
    "management": ManagementBench,
}


def main() -> int:
    names = [
        name
        for part in PARTS.values()
        for name in part(Path(), is_quick=True, say=print).scenarios()
    ]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller numbers, about four minutes")
    parser.add_argument("--data", type=Path, default=ROOT / "run-data" / "bench",
                        help="on the disk to measure; deleted afterwards")  # fmt: skip
    parser.add_argument("--part", action="append", default=[], choices=PARTS)
    parser.add_argument("--only", action="append", default=[], choices=names)
    parser.add_argument("--save", action="store_true", help="keep the result of a quick run too")
    parser.add_argument("--no-save", action="store_true", help="do not keep that of a full run")
    parser.add_argument("--json", action="store_true", help="print the result as JSON at the end")
    parser.add_argument(
        "--render", action="store_true", help="only docs/reference/performance.md anew"
    )
    given = parser.parse_args()
    if given.render:
        page.render()
        return 0
    is_full = not given.quick and not given.only
    for part in given.part or PARTS:
        found = measure(PARTS[part], given.data, is_quick=given.quick, only=given.only)
        if not found["figures"]:
            continue
        if given.save or (is_full and not given.no_save):
            page.save(part, found)
        print("\n\n".join(["", *page.sections(part, found)]))
        if given.json:
            print(json.dumps(found))
    if is_full and not given.no_save:
        print()
        page.render()
    return 0


if __name__ == "__main__":
    sys.exit(main())
