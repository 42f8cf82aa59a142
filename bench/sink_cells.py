"""What bench/spark_bench.py measures of the sink: rows into a broker, and what others feel of it.

`sink` is Spark with two cores: rows of 256 B go into a stream or a queue of a broker on the same
two cores. They come from Parquet, so that it is the sink that is measured, and once more out of a
stream in files, which is Penstock at both ends. The time is from the start of the write until the
last row can be read.

`commit` is without Spark. Rows are staged as a task stages them, so much that the commit is one of
512 MiB; then it is committed, and until the last row has arrived two other clients of the vhost ask
again and again: one whether a queue is there, which costs the vhost's loop nothing, so that what it
waits is the loop's; the other publishes, and waits for the confirm, which a sync is part of. Both
share two cores with all that they measure, and so does the loop itself: it is told what the loop's
thread has worked from each of the first one's questions to the answer (the kernel's count, which is
up to a tick of 4 ms late), and a third client asks a process that does nothing but answer: what
that one waits is the machine's and the client's own. What the broker's processes hold of
memory is told before, with everything staged, and afterwards.
"""

import gc
import json
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from spark_cells import SIZE, noise, spark_session, use_memory, write

import penstock
from penstock import build_kind
from penstock.client import connect
from penstock.codec.spec import QueueDeclare
from penstock.fast_crc import crc_library

COLUMNS = "`value` binary"
META = b"\x02\x00\x05bench\x10\x00\x02"
ARROW_ROWS = 10_000
ECHO = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as asked:
    while asked.recv(1):
        asked.sendall(b"!")
"""

Result = dict[str, Any]


def ask(http_url: str, address: str) -> Any:
    """A GET of the broker, as guest."""
    request = urllib.request.Request(f"{http_url}{address}")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def settle(http_url: str) -> None:
    """Until everything that is committed has arrived."""
    while not all(batch["is_done"] for batch in ask(http_url, "/api/staging/%2F")):
        time.sleep(0.02)


def prepare(url: str, kind: str, name: str) -> None:
    """An empty target of that name."""
    if kind == "stream":
        with penstock.open(url) as box:
            box.stream(name)
        return
    with connect(url) as connection:
        channel = connection.channel()
        channel.ask(QueueDeclare(queue=name, durable=True)).result(30)


def sink(data: str, count: int, warm: int, runs: int, url: str, http_url: str) -> Result:
    """Seconds of writing so many rows into a new stream, and into a new queue, in turn."""
    root = Path(data)
    root.mkdir()
    write(root / "s", noise(count))
    spark = spark_session()
    reading = spark.read.format("penstock").options(path=str(root / "s"), minPartitions="2")
    in_stream = reading.schema(COLUMNS).load()
    in_stream.repartition(2).write.parquet(str(root / "parquet"))
    in_files = spark.read.parquet(str(root / "parquet"))
    sources = {"stream": in_files, "queue": in_files, "stream to stream": in_stream}
    found: dict[str, list[float]] = {name: [] for name in sources}
    for round_ in range(warm + runs):
        for what, times in found.items():
            name = f"{what}.{round_}"
            prepare(url, what.rpartition(" ")[2], name)
            rows = sources[what].write.format("penstock")
            writing = rows.options(url=url, httpUrl=http_url, queue=name)
            use_memory()
            started = time.perf_counter()
            writing.mode("append").save()
            settle(http_url)
            taken = time.perf_counter() - started
            if round_ >= warm:
                times.append(taken)
            with penstock.open(url) as box:
                box.delete(name)
    spark.stop()
    return {"count": count, "size": SIZE, "seconds": found, "crc": crc_library()}


def commit(data: str, size_mib: int, url: str, http_url: str, pids: list[int]) -> Result:
    """What other clients wait while a batch of that size is committed into a stream and into a
    queue, in ms; and the memory of the processes, in MiB."""
    found: Result = {"size_mib": size_mib}
    vhost = next(p for p in pids if b"penstock vhost" in Path(f"/proc/{p}/cmdline").read_bytes())
    for kind in ("stream", "queue"):
        prepare(url, kind, f"commit.{kind}")
        before = private_mib(pids)
        part = staged(url, http_url, f"commit.{kind}", size_mib)
        while_staged = private_mib(pids)
        quiet = waits(url, vhost, lambda: time.sleep(2))

        def decide(kind: str = kind, part: Any = part) -> None:
            from penstock.spark.staging import commit_batch

            assert commit_batch(options(url, http_url, f"commit.{kind}"), [part]) == "committed"
            settle(http_url)

        started = time.perf_counter()
        busy = waits(url, vhost, decide)
        found[kind] = {
            "rows": part.rows, "quiet": quiet, "busy": busy,
            "moved_s": time.perf_counter() - started,
            "memory": [before, while_staged, private_mib(pids)],
        }  # fmt: skip
        with penstock.open(url) as box:
            box.delete(f"commit.{kind}")
    return found


def options(url: str, http_url: str, queue: str) -> Any:
    from penstock.spark.options import SinkOptions

    return SinkOptions.of({"url": url, "httpUrl": http_url, "queue": queue})


def staged(url: str, http_url: str, queue: str, size_mib: int) -> Any:
    """So many MiB of frames, staged as a task does it."""
    import pyarrow as pa
    from pyspark.sql.types import BinaryType, StructType

    from penstock.spark.sink_columns import SinkColumns
    from penstock.spark.staging import Stager

    said = options(url, http_url, queue)
    columns = SinkColumns(said, StructType().add("value", BinaryType()))
    stager = Stager(said, columns, f"bench-{queue}", 0, 0, 0)
    values = pa.array(list(noise(ARROW_ROWS)), pa.binary())
    batch = pa.RecordBatch.from_arrays([values], ["value"])
    frame_bytes = 24 + SIZE + len(META)
    times = -(-(size_mib << 20) // (frame_bytes * ARROW_ROWS))
    return stager.stage(batch for _ in range(times))


def waits(url: str, vhost: int, work: Callable[[], object]) -> dict[str, list[float]]:
    """Median, 99 % and longest wait in ms of two other clients while the work is done, and of one
    who asks an idle process (`echo`). held: what the loop worked while the first one waited."""
    told: dict[str, list[float]] = {"loop": [], "held": [], "confirm": [], "echo": []}
    gc.collect()
    gc.freeze()  # looking through all of Arrow's objects takes 30 ms, in which nobody is asked
    is_over = threading.Event()
    ours, its = socket.socketpair()
    echoing = subprocess.Popen([sys.executable, "-c", ECHO, str(its.fileno())],
                               pass_fds=[its.fileno()])  # fmt: skip
    its.close()
    with ours, connect(url) as first, connect(url) as second:
        asking, publishing = first.channel(), second.channel()
        publishing.select_confirms()
        publishing.ask(QueueDeclare(queue="others", durable=True)).result(30)
        rng = random.Random(1)

        def loop() -> None:
            asked = QueueDeclare(queue="others", durable=True, passive=True)
            with open(f"/proc/{vhost}/task/{vhost}/schedstat", "rb", buffering=0) as counted:
                while not is_over.is_set():
                    worked = worked_ms(counted)
                    started = time.perf_counter()
                    asking.ask(asked).result(60)
                    told["loop"].append((time.perf_counter() - started) * 1000)
                    told["held"].append(worked_ms(counted) - worked)
                    time.sleep(rng.uniform(0.0005, 0.0015))

        def confirm() -> None:
            while not is_over.is_set():
                started = time.perf_counter()
                future = publishing.publish("", "others", b"x" * SIZE, b"\x10\x00\x02")
                assert future is not None
                assert future.result(60)
                told["confirm"].append((time.perf_counter() - started) * 1000)
                time.sleep(rng.uniform(0.0005, 0.0015))

        def echo() -> None:
            while not is_over.is_set():
                started = time.perf_counter()
                ours.sendall(b"?")
                assert ours.recv(1)
                told["echo"].append((time.perf_counter() - started) * 1000)
                time.sleep(rng.uniform(0.0005, 0.0015))

        clients = [threading.Thread(target=one) for one in (loop, confirm, echo)]
        for client in clients:
            client.start()
        try:
            work()
        finally:
            is_over.set()
            for client in clients:
                client.join()
    echoing.wait()  # its other end is closed
    return {name: spread(times) for name, times in told.items()}


def worked_ms(schedstat: FileIO) -> float:
    """The CPU time of a thread."""
    schedstat.seek(0)
    return int(schedstat.read(64).split()[0]) / 1e6


def spread(times: list[float]) -> list[float]:
    """Median, 99 %, longest."""
    times = sorted(times)
    return [times[len(times) // 2], times[len(times) * 99 // 100], times[-1]]


def private_mib(pids: list[int]) -> float:
    """What these processes hold of memory that is no file's."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1])
    return total / 1024


SCENARIOS = {f.__name__: f for f in (sink, commit)}


def main() -> None:
    scenario, given = sys.argv[1], json.loads(sys.argv[2])
    Path(given["data"]).parent.mkdir(parents=True, exist_ok=True)
    result: Result = SCENARIOS[scenario](**given)
    print(json.dumps({"build": build_kind(), **result}), flush=True)


if __name__ == "__main__":
    main()
