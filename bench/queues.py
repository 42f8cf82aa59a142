"""What is measured of the queues: one scenario per process, so that none warms another.

    python bench/queues.py SCENARIO '{"data": DIR, ...}'      prints one line of JSON

Called by queue_bench.py, which has the parameters. Most run on the embedded library, as its users
do; what needs a look inside runs on a VariableQueue over the engine. CPU is that of the whole
process: the caller's, the driver's, and the worker's that syncs and prepares segments of the log.
"""

import gc
import json
import random
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from penstock import build_kind
from penstock.clock import SystemClock
from penstock.queues import paging
from penstock.queues.backing_queue import UNLIMITED, NewMessage
from penstock.queues.queue_ram import ALPHA_BYTES
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import NONE, OS
from penstock.storage.files.filesystem import OsFileSystem

Result = dict[str, Any]

BATCH = 100
NAME = "bench"


class Rig:
    """A VariableQueue over an engine, without the library around it."""

    def __init__(self, data: str, *, mode: int = OS) -> None:
        self.fs = OsFileSystem()
        self.directory = DataDirectory(self.fs, data)
        self.engine = StorageEngine(
            self.fs, self.directory.vhost_path(b"/"), b"/", clock=SystemClock(),
            rng=random.Random(1),
        )  # fmt: skip
        self.queue = VariableQueue(self.engine, self.engine.declare_queue(b"bench"), mode=mode)
        self.engine.sync()

    def publish(self, count: int, size: int, mode: int) -> None:
        """So many messages, in batches, each followed by what its owner does in a turn."""
        body = b"b" * size
        for _ in range(0, count, BATCH):
            self.queue.batch_publish([NewMessage(b"", body)] * BATCH, mode)
            self._turn()

    def consume(self, count: int, mode: int) -> None:
        """The next so many, acked in batches, with what its owner does in a turn."""
        queue = self.queue
        for _ in range(0, count, BATCH):
            tags: list[int] = []
            while len(tags) < BATCH:
                delivery = queue.fetch()
                if delivery is not None:
                    tags.append(delivery.tag)
                elif (held := queue.held()) is not None:
                    self.engine.wait(*held)
                else:
                    break
            queue.ack(tags, mode)
            queue.inhale()
            self._turn()

    def _turn(self) -> None:
        if not self.queue.resume():
            self.queue.inhale(at_rest=True)
        self.engine.wait(self.engine.log.last_lsn, OS)
        self.engine.poll()

    def fill(self, count: int, size: int, mode: int) -> None:
        """Publish `count` bodies, each an object of its own."""
        queue, engine = self.queue, self.engine
        for i in range(count):
            queue.publish(b"", i.to_bytes(8, "big") * (size // 8) + b"b" * (size % 8), mode)
            if i % BATCH == 0:
                engine.flush()
                engine.tick()
        engine.flush()

    def close(self) -> None:
        self.queue.terminate()
        self.engine.close()
        self.directory.close()
        self.fs.close()


def rss() -> int:
    """Bytes of RAM that this process occupies."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def per_message(op: Callable[[int], None], count: int) -> float:
    """µs of the process's CPU per message, of an op that does so many."""
    cpu = time.process_time()
    op(count)
    return (time.process_time() - cpu) / count * 1e6


# ---- CPU per message -----------------------------------------------------------------------------


def cpu(data: str, size: int, runs: int, count: int) -> Result:
    """Put one by one and in batches, get with ack, in mode `os`; each run on an emptied queue."""
    box = penstock.open(data, durability="os")
    queue = box.queue(NAME)
    body, batch = b"b" * size, [b"b" * size] * BATCH

    def put(n: int) -> None:
        for _ in range(n):
            queue.put(body)

    def put_batches(n: int) -> None:
        for _ in range(n // BATCH):
            queue.put_many(batch)

    def get(n: int) -> None:
        for _ in range(n):
            queue.get(timeout=0).ack()

    def get_batches(n: int) -> None:
        for _ in range(n // BATCH):
            queue.ack(queue.get_many(BATCH, timeout=0))

    found: dict[str, list[float]] = {"put": [], "get": [], "put_batch": [], "get_batch": []}
    for _ in range(runs + 1):
        found["put"].append(per_message(put, count))
        found["get"].append(per_message(get, count))
        found["put_batch"].append(per_message(put_batches, count))
        found["get_batch"].append(per_message(get_batches, count))
    box.close()
    return {name: values[1:] for name, values in found.items()}


def flat(data: str, size: int, backlogs: list[int], sample: int, runs: int) -> Result:
    """Get with ack at each backlog, ascending; then, with all of the last one acked, once more.
    What a run takes is put back before the next."""
    box = penstock.open(data, durability="os")
    queue = box.queue(NAME)
    batch = [b"b" * size] * BATCH

    acked = 0

    def fill(wanted: int) -> None:
        while len(queue) < wanted:
            queue.put_many(batch)

    def get(n: int) -> None:
        for _ in range(n):
            queue.get(timeout=0).ack()

    def sampled(backlog: int) -> list[float]:
        nonlocal acked
        values = []
        for _ in range(runs + 1):
            fill(backlog)
            values.append(per_message(get, min(sample, backlog)))
            acked += min(sample, backlog)
        return values[1:]

    rows = [{"backlog": backlog, "cpu_us": sampled(backlog)} for backlog in backlogs]
    while len(queue):
        taken = queue.get_many(BATCH, timeout=0)
        queue.ack(taken)
        acked += len(taken)
    after = {"backlog": backlogs[0], "acked": acked, "cpu_us": sampled(backlogs[0])}
    box.close()
    return {"rows": rows, "after": after}


# ---- threads, in `disk` --------------------------------------------------------------------------


def threads(data: str, size: int, counts: list[int], seconds: float, runs: int) -> Result:
    """Puts per second in mode `disk` with so many threads, each waiting for its own confirms."""
    box = penstock.open(data, durability="disk")
    queue = box.queue(NAME)
    body = b"b" * size
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(runs):
        for count in counts:
            done = [0] * count
            until = time.perf_counter() + seconds

            def work(me: int, done: list[int] = done, until: float = until) -> None:
                while not done[me] or time.perf_counter() < until:
                    queue.put(body)
                    done[me] += 1

            started = time.perf_counter()
            workers = [threading.Thread(target=work, args=(i,)) for i in range(count)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            rates[count].append(sum(done) / (time.perf_counter() - started))
            queue.purge()
    box.close()
    return {"rows": [{"threads": count, "per_s": values} for count, values in rates.items()]}


# ---- a large backlog -----------------------------------------------------------------------------


def backlog(data: str, count: int, size: int, warm: int) -> Result:
    """`count` messages put in batches: RSS when `warm` are there and when all are; bytes on disk of
    the queue after a checkpoint; an orderly stop."""
    box = penstock.open(data, durability="os")
    queue = box.queue(NAME)
    batch = [b"b" * size] * BATCH
    while len(queue) < warm:
        queue.put_many(batch)
    gc.collect()
    first = rss()
    while len(queue) < count:
        queue.put_many(batch)
    last = rss()
    box.checkpoint()
    info = queue.info()
    box.close()
    files = [p for p in Path(data).rglob("*") if p.suffix in (".qi", ".qs")]
    return {
        "count": count, "rss_first": first, "rss_last": last, "ram_bytes": info["ram_bytes"],
        "disk_bytes": sum(path.stat().st_size for path in files),
        "disk_blocks": sum(path.stat().st_blocks * 512 for path in files),
    }  # fmt: skip


def reopen(data: str) -> Result:
    """Open a box, and its queue; an orderly stop. What is imported is imported before."""
    started = time.perf_counter()
    open_box = penstock.open
    import_s = time.perf_counter() - started
    wall, cpu_s = time.perf_counter(), time.process_time()
    box = open_box(data, durability="os")
    queue = box.queue(NAME)
    count = len(queue)
    result = {
        "import_ms": import_s * 1e3,
        "ms": (time.perf_counter() - wall) * 1e3,
        "cpu_ms": (time.process_time() - cpu_s) * 1e3,
        "count": count,
    }
    box.close()
    return result


def tail(data: str, records: int, size: int) -> Result:
    """So many more messages behind the last checkpoint, to be killed with."""
    box = penstock.open(data, durability="os")
    queue = box.queue(NAME)
    for _ in range(records // BATCH):
        queue.put_many([b"b" * size] * BATCH)
    print(json.dumps({"count": len(queue)}), flush=True)
    time.sleep(3600)  # until the SIGKILL
    return {}


# ---- RAM per message -----------------------------------------------------------------------------


def ram_states(data: str, count: int, size: int) -> Result:
    """Bytes of RAM per message in each state: what Python's allocators have given out (tracemalloc)
    for so many messages that are all in it, over what the empty queue has. Bodies are objects of
    their own, as they come from a socket. A checkpoint before each look, so that no message is
    in a buffer of the log as well."""
    tracemalloc.start()
    rig = Rig(data)
    state = rig.queue.state

    def look() -> int:
        rig.engine.sync()
        rig.engine.checkpoint()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def empty() -> int:
        rig.queue.purge(OS)
        return look()

    def page_out() -> None:
        while paging.push_alphas_to_betas(state, 256) == 0:
            pass

    # Deques, dicts and caches are as large afterwards as they ever will be.
    rig.fill(count, size, OS)
    page_out()
    base = empty()
    held: dict[str, int] = {}
    counted: dict[str, float] = {}
    for first, second, mode in (("alpha", "gamma", OS), ("transient alpha", "beta", NONE)):
        rig.fill(count, size, mode)
        assert state.ram_messages() == count
        held[first] = look() - base
        counted[first] = state.ram_bytes() / count
        page_out()
        assert state.q3.count == count
        held[second] = look() - base
        counted[second] = state.ram_bytes() / count
        if mode == OS:
            paging.push_betas_to_deltas(state, count)
            held["delta"] = look() - base
            in_delta = state.delta.count  # all but the segment of the head
        base = empty()
    rig.close()
    per = {name: value / count for name, value in held.items()}
    per["delta"] = (held["delta"] - (count - in_delta) * per["gamma"]) / in_delta
    counted["delta"] = 0.0
    return {"count": count, "size": size, "bytes": per, "counted": counted}


# ---- no cliff ------------------------------------------------------------------------------------


def cliff(data: str, policy: str, size: int, limit: int, count: int) -> Result:
    """µs of each publish, flushed one by one in mode `os`, of a queue that passes its limit after a
    part of them.

    policy "steps" is the product: each publish pages out a little. "at once" is what S4 calls the
    current behaviour of its time, modelled here and nowhere else: nothing is paged until the
    limit is passed, then all that is in RAM goes in that one publish. "unlimited" pages nothing.
    """
    rig = Rig(data)
    queue, engine = rig.queue, rig.engine
    rig.fill(1000, size, OS)
    queue.purge(OS)
    engine.checkpoint()
    if policy == "steps":
        queue.set_limits(limit, limit // 2)
    body = b"b" * size
    wall: list[int] = []
    own: list[int] = []
    most = 0
    paged = 0
    for i in range(count):
        started, cpu_started = time.perf_counter_ns(), time.thread_time_ns()
        queue.publish(b"", body, OS)
        engine.flush()
        if policy == "at once" and queue.ram_bytes() > limit:
            queue.set_limits(0, 0)
            while queue.resume():
                pass
            queue.set_limits(UNLIMITED, 0)
            queue.state.is_flowed = False  # what comes next stays in RAM again
            paged += 1
        own.append(time.thread_time_ns() - cpu_started)
        wall.append(time.perf_counter_ns() - started)
        most = max(most, queue.ram_bytes())
        if i % BATCH == 0:
            engine.tick()
    info = queue.info()
    rig.close()
    return {
        "policy": policy, "count": count, "bursts": paged, "ram_bytes_max": most,
        "wall_us": percentiles(wall), "cpu_us": percentiles(own),
        "on_disk": count - int(info["ram_messages"]),
    }  # fmt: skip


# ---- returning to memory -------------------------------------------------------------------------


def returns(data: str, mode: int, size: int, limit: int, count: int, has_flowed: bool) -> Result:
    """CPU µs per message published, fetched and acked at a steady backlog of 81 % of the limit, of
    a queue that has flowed (twice its limit was in it) or never has, once all that was written then
    has gone; and what a message costs to drain from a backlog of ten times the limit."""
    rig = Rig(data)
    queue = rig.queue
    queue.set_limits(limit, limit // 2)
    fitting = limit // (ALPHA_BYTES + size)
    backlog = fitting * 81 // 100 // BATCH * BATCH
    if has_flowed:
        rig.publish(2 * fitting // BATCH * BATCH, size, mode)
        rig.consume(queue.len() - backlog, mode)
    else:
        rig.publish(backlog, size, mode)
    for _ in range(0, 2 * backlog, BATCH):
        rig.publish(BATCH, size, mode)
        rig.consume(BATCH, mode)
    before = queue.info()
    started = time.process_time()
    for _ in range(0, count, BATCH):
        rig.publish(BATCH, size, mode)
        rig.consume(BATCH, mode)
    steady_s = time.process_time() - started
    after = queue.info()
    rig.publish(10 * fitting // BATCH * BATCH, size, mode)
    long = queue.len() - backlog
    started = time.process_time()
    rig.consume(long, mode)
    drain_s = time.process_time() - started
    rig.close()
    return {
        "steady_us": steady_s / count * 1e6, "drain_us": drain_s / long * 1e6,
        "is_flowed": bool(after["is_flowed"]),
        "writes": int(after["disk_writes"]) - int(before["disk_writes"]),
        "reads": int(after["disk_reads"]) - int(before["disk_reads"]),
    }  # fmt: skip


def percentiles(values: list[int]) -> Result:
    """p50, p99, p99.9 and the most, in µs, of values in ns."""
    values = sorted(values)
    last = len(values) - 1
    marks = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    found = {name: values[round(part * last)] / 1e3 for name, part in marks.items()}
    return {**found, "max": values[-1] / 1e3, "sum": sum(values) / 1e3}


SCENARIOS = {
    f.__name__: f for f in (cpu, flat, threads, backlog, reopen, tail, ram_states, cliff, returns)
}


def main() -> None:
    scenario, given = sys.argv[1], json.loads(sys.argv[2])
    Path(given["data"]).parent.mkdir(parents=True, exist_ok=True)
    result: Result = SCENARIOS[scenario](**given)
    print(json.dumps({"build": build_kind(), **result}), flush=True)


if __name__ == "__main__":
    main()
