"""What is measured of the storage engine: one scenario per process, so that none warms another.

    python bench/storage.py SCENARIO '{"data": DIR, ...}'      prints one line of JSON

Called by run.py, which has the parameters, the goals and the tables. CPU is that of the thread that
owns the engine, and, apart from it, that of the worker thread, which syncs and prepares segments.
Nothing is measured before something like it has run (page cache, allocator, recycled segments).
"""

import gc
import json
import random
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

from seams import LOG, QUEUE, STORE, CountingFileSystem

from penstock import build_kind
from penstock.clock import SystemClock
from penstock.message import Entry, QueuedMessage
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import DISK, OS
from penstock.storage.files.filesystem import FileSystem, OsFileSystem
from penstock.storage.files.options import StorageOptions
from penstock.storage.index.queue_index import QueueIndex

Result = dict[str, Any]
NEVER = {"checkpoint_seconds": 1e9, "checkpoint_log_bytes": 1 << 40, "checkpoint_records": 1 << 40}


class Store:
    """The engine on `data`, one queue, and how long opening took (wall and CPU, seconds)."""

    def __init__(self, data: str, fs: FileSystem | None = None, **options: Any) -> None:
        self.fs = fs or OsFileSystem()
        wall, cpu = time.perf_counter(), time.process_time()
        self.directory = DataDirectory(self.fs, data)
        self.engine = StorageEngine(
            self.fs, self.directory.vhost_path(b"/"), b"/", clock=SystemClock(),
            rng=random.Random(1), options=StorageOptions(**options),
        )  # fmt: skip
        self.open_s = time.perf_counter() - wall
        self.open_cpu_s = time.process_time() - cpu
        known = self.engine.state.routing.queues
        name = b"bench"
        self.queue: QueueIndex = (
            self.engine.queue(name) if name in known else self.engine.declare_queue(name)
        )
        self.engine.sync()

    def publish(self, count: int, body: bytes, mode: int, group: int = 100) -> None:
        """Publish in groups, at their ends flushed; nothing is waited for."""
        engine, queues = self.engine, [self.queue]
        for _ in range(count // group):
            for _ in range(group):
                engine.publish(queues, b"", body, mode)
            engine.flush()

    def in_ram(self) -> list[Entry]:
        """The entries that are in RAM, ascending."""
        return list(self.queue.holder.materialise(self.queue.next_seq))

    def close(self) -> None:
        self.engine.close()
        self.directory.close()
        self.fs.close()


# ---- CPU per message -----------------------------------------------------------------------------


def cpu_os(data: str, groups: int, runs: int, size: int, group: int) -> Result:
    """µs of the owner's CPU per message appended, and dequeued, in mode `os`."""
    store = Store(data, **NEVER)
    store.engine.log.prepare_ahead()
    engine, queue, body = store.engine, store.queue, b"b" * size
    appended: list[float] = []
    dequeued: list[float] = []
    worker: list[float] = []
    messages = groups * group
    for _ in range(runs + 1):
        all_cpu, cpu = time.process_time(), time.thread_time()
        store.publish(messages, body, OS, group)
        mine = time.thread_time() - cpu
        appended.append(mine / messages * 1e6)
        engine.poll()
        worker.append(max(time.process_time() - all_cpu - mine, 0) / messages * 1e6)
        entries = store.in_ram()
        cpu = time.thread_time()
        for at in range(0, messages, group):
            engine.dequeue(queue, entries[at : at + group], OS)
            engine.flush()
        dequeued.append((time.thread_time() - cpu) / messages * 1e6)
        del entries
        engine.checkpoint()  # so that the next run writes into recycled segments
    store.close()
    return {"append": appended[1:], "dequeue": dequeued[1:], "worker": worker[1:]}


def cpu_disk(data: str, groups: int, runs: int, size: int, group: int) -> Result:
    """The same in mode `disk`, every group waiting for its sync; what a sync costs, apart."""
    fs = CountingFileSystem()
    store = Store(data, fs, **NEVER)
    store.engine.log.prepare_ahead()
    engine, body = store.engine, b"b" * size
    appended: list[float] = []
    waited: list[float] = []
    for run in range(runs + 1):
        if run == 1:
            fs.counts.reset()
        mine = waiting = 0.0
        for _ in range(groups):
            cpu = time.thread_time()
            store.publish(group, body, DISK, group)
            mine += time.thread_time() - cpu
            cpu = time.thread_time()
            while engine.log.settled(DISK) < engine.log.last_lsn:
                engine.poll(wait=True)
            waiting += time.thread_time() - cpu
        appended.append(mine / groups / group * 1e6)
        waited.append(waiting / groups * 1e6)
        entries = store.in_ram()
        for at in range(0, len(entries), group):
            engine.dequeue(store.queue, entries[at : at + group], OS)
        syncs = len(fs.counts.sync_wall)
        engine.checkpoint()
        del fs.counts.sync_wall[syncs:], fs.counts.sync_cpu[syncs:]
    store.close()
    return {
        "append": appended[1:],
        "wait": waited[1:],
        "sync_wall": [s * 1e6 for s in fs.counts.sync_wall],
        "sync_cpu": [s * 1e6 for s in fs.counts.sync_cpu],
    }


# ---- bytes and syncs -----------------------------------------------------------------------------


def bytes_and_syncs(data: str, size: int, group: int, groups: int) -> Result:
    """Bytes written per message up to its confirm, and by the checkpoint if it is still there
    then; syncs per confirm, each group confirmed before the next is sent."""
    fs = CountingFileSystem()
    store = Store(data, fs, **NEVER)
    engine, body = store.engine, b"b" * size
    store.publish(group, body, DISK, group)
    engine.sync()
    engine.checkpoint()
    fs.counts.reset()
    for _ in range(groups):
        store.publish(group, body, DISK, group)
        engine.wait(engine.log.last_lsn, DISK)
    messages = groups * group
    written, syncs = dict(fs.counts.written), dict(fs.counts.syncs)
    fs.counts.reset()
    engine.checkpoint()
    later = fs.counts.written[QUEUE] + fs.counts.written[STORE]
    store.close()
    return {
        "log": written.get(LOG, 0) / messages,
        "store": written.get(STORE, 0) / messages,
        "checkpoint": later / messages,
        "log_syncs": syncs.get(LOG, 0) / messages,
        "store_syncs": syncs.get(STORE, 0) / messages,
    }


# ---- opening -------------------------------------------------------------------------------------


def fill(data: str, count: int, size: int) -> Result:
    """A backlog, wholly on disk, and an orderly stop."""
    store = Store(data)
    there = store.queue.count
    for _ in range(0, count - there, 1000):
        store.publish(1000, b"b" * size, OS)
        store.engine.tick()
    store.close()
    return {"count": store.queue.count}


def tail(data: str, kind: str, records: int, size: int, log_bytes: int) -> Result:
    """A log behind the last checkpoint, to be killed with: publishes, or acks one by one of what
    was published before the cut. Stops at so many records or, if it is not 0, bytes of log."""
    store = Store(data, **NEVER)
    engine, queue, body = store.engine, store.queue, b"b" * size
    segments = sorted(queue.segments.items()) if kind == "ack" else []
    live = [seq for _, segment in segments for seq in segment.seqs(queue.slots)]
    done = 0
    while done < records and (not log_bytes or engine.log.appended_bytes < log_bytes):
        if kind == "publish":
            store.publish(100, body, OS)
        else:
            for seq in live[done : done + 100]:
                entry = Entry(seq, QueuedMessage(1, b"", None, size, 0), on_slot=True)
                engine.dequeue(queue, [entry], OS)
            engine.flush()
        done += 100
    engine.sync()
    print(json.dumps({"records": done, "log_bytes": engine.log.appended_bytes}), flush=True)
    time.sleep(3600)  # until the SIGKILL
    return {}


def open_store(data: str, traced: bool = False) -> Result:
    """Open, and stop in an orderly way."""
    if traced:
        tracemalloc.start()
    store = Store(data)
    found = store.engine.recovered
    gc.collect()
    result = {
        "ms": store.open_s * 1e3,
        "cpu_ms": store.open_cpu_s * 1e3,
        "replayed": found.records,
        "clean": found.is_clean,
        "count": store.queue.count,
        "ram": tracemalloc.get_traced_memory()[0] if traced else 0,
    }
    store.close()
    return result


# ---- RAM -----------------------------------------------------------------------------------------


def ram(data: str, size: int, steps: list[int], own_file_from: int, is_hollow: bool) -> Result:
    """Bytes of RAM per message that is wholly on disk: between two sizes of backlog, each after a
    checkpoint, what the allocators of Python hand out; and with every second message gone. As many
    are in RAM at a time at the beginning as at the end: a dict never shrinks."""
    options: dict[str, Any] = {"own_file_from": own_file_from} if own_file_from else {}
    tracemalloc.start()
    store = Store(data, CountingFileSystem(is_hollow=is_hollow), **NEVER, **options)
    engine, queue, body = store.engine, store.queue, b"b" * size
    held: list[int] = []
    for step in steps:
        while queue.count < step:
            store.publish(1000, body, OS)
            if queue.count % 2_000 == 0:
                engine.checkpoint()
        engine.checkpoint()
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    assert not store.in_ram(), "everything is on disk"
    result = {"per_message": (held[1] - held[0]) / (steps[1] - steps[0]), "held": held}
    if not is_hollow:
        for seq in range(0, queue.next_seq, 2):
            message = QueuedMessage(1, b"", None, size, 0)
            engine.dequeue(queue, [Entry(seq, message, on_slot=True)], OS)
            if seq % 1000 == 0:
                engine.flush()
        engine.checkpoint()
        gc.collect()
        result["per_message_half"] = (tracemalloc.get_traced_memory()[0] - held[0]) / queue.count
    store.close()
    return result


SCENARIOS = {
    f.__name__: f for f in (cpu_os, cpu_disk, bytes_and_syncs, fill, tail, open_store, ram)
}


def main() -> None:
    scenario, given = sys.argv[1], json.loads(sys.argv[2])
    Path(given["data"]).parent.mkdir(parents=True, exist_ok=True)
    result: Result = SCENARIOS[scenario](**given)
    print(json.dumps({"build": build_kind(), **result}), flush=True)


if __name__ == "__main__":
    main()
