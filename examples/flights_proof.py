"""What must hold when the main job is over, and how it is found out.

The ledger of the workers is held against the data, the box is opened and looked at, and `penstock
store verify` reads all of its files. None of it believes what the owner of the box said, but for
the counters that nobody else has.
"""

import subprocess
import sys
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from flights_data import DELAY_SUM, LATE_MINUTES, ROWS, cut, events, poisoned_rows, seal

import penstock
from penstock.queues.budget import format_bytes

MIB = 1 << 20
ATTEMPTS_MAX = 3
KILLS = 2
DOUBTFUL_S = 1.0  # around a kill: an ack is written to the log a tenth of a second later or so
SEAL_CHECKED = 997  # of so many seals one is checked, for that costs as much as making it


@dataclass
class Course:
    """What the job was, and what was seen of it."""

    data: Path
    rows: int
    rounds: int  # of a seal
    memory_bytes: int  # limit of the queue
    started: float  # perf_counter
    kills: list[float] = field(default_factory=list)  # when, seconds since 1970
    statuses: int = 0  # that the owner told
    most: dict[str, float] = field(default_factory=dict)  # the largest of each number in them
    recovered_ms: float = 0.0


class Ledger:
    """What the workers have written down, held against the data."""

    def __init__(self, path: Path, rows: int, rounds: int) -> None:
        self.delay_sum = self.late = self.altered = 0
        self.again: list[float] = []  # of those that were done twice: when for the first time
        self.cuts: list[bytes] = []  # the events that were put cut off
        self._done_at = [0.0] * rows
        self._crcs = [0] * rows
        self._seals: dict[int, bytes] = {}
        with path.open("rb") as lines:
            for line in lines:
                self._read(line)
        self.missing = self._done_at.count(0.0)
        poisoned = poisoned_rows(rows)
        for row, body in enumerate(events(rows)):
            self.altered += self._crcs[row] != zlib.crc32(body)
            if row in self._seals:
                self.altered += self._seals[row] != seal(body, rounds)
            if row in poisoned:
                self.cuts.append(cut(body))

    def _read(self, line: bytes) -> None:
        row_, delay_, crc, seal_, at = line.split()
        row, delay = int(row_), int(delay_)
        if self._done_at[row]:
            self.again.append(self._done_at[row])
            return
        self._done_at[row] = float(at)
        self._crcs[row] = int(crc, 16)
        if row % SEAL_CHECKED == 0:
            self._seals[row] = seal_
        self.delay_sum += delay
        self.late += delay > LATE_MINUTES


class Remains:
    """What is in the box at the end."""

    def __init__(self, path: Path) -> None:
        started = time.perf_counter()
        with penstock.open(path) as box:
            queue, dead = box.queue("flights"), box.queue("flights.dead")
            self.opened_ms = (time.perf_counter() - started) * 1000
            self.left = len(queue) + queue.delayed
            self.dead = sorted(message.body for message in dead)
            self.deaths = [message.deaths[0] for message in dead]
            with box.queue("position").get() as position:
                self.position = int(position.body)


def prove(course: Course) -> int:
    """Hold everything against everything, and say so. The exit status."""
    most, kills = course.most, course.kills
    ledger = Ledger(course.data / "ledger", course.rows, course.rounds)
    remains = Remains(course.data / "box")
    verify = [sys.executable, "-m", "penstock", "store", "verify", str(course.data / "box")]
    verified = subprocess.run(verify, capture_output=True, text=True)
    strange = [at for at in ledger.again if all(abs(kill - at) > DOUBTFUL_S for kill in kills)]
    limit = format_bytes(course.memory_bytes)
    checks = {
        f"all {course.rows:,} events were processed": ledger.missing == 0,
        "each as it was put, byte for byte": ledger.altered == 0,
        f"{len(ledger.again):,} of them twice, all within a second of a kill": not strange,
        "worker and owner were killed in the middle of work": len(kills) == KILLS,
        f"the {len(ledger.cuts)} cut ones are dead letters, after {ATTEMPTS_MAX} attempts each": (
            remains.dead == sorted(ledger.cuts)
            and all(d.reason == "delivery_limit" for d in remains.deaths)
            and all(d.attempts >= ATTEMPTS_MAX for d in remains.deaths)
        ),
        "nothing is left, and the producer was at its end": (
            remains.left == 0 and remains.position == course.rows
        ),
        f"the queue never took more than {limit} of RAM, and paged": (
            most["ram_bytes"] <= course.memory_bytes and most["delta"] > 0
        ),
        "penstock store verify finds nothing wrong": verified.returncode == 0,
    }
    if course.rows == ROWS:
        checks[f"the departure delays add up to {DELAY_SUM:,}"] = ledger.delay_sum == DELAY_SUM
    counted = f"{most['ram_bytes'] / MIB:.2f} MiB of {limit}, looked at {course.statuses:,} times"
    rss = f"{most['rss_bytes_max'] / MIB:.0f} MiB, Python and its code included"
    figures = [
        ("events", f"{course.rows:,}, {ledger.late:,} of them late"),
        ("departure delays", f"{ledger.delay_sum:,} minutes"),
        ("longest queue", f"{most['len']:,} messages; in delta up to {most['delta']:,}"),
        ("counted in RAM, at most", counted),
        ("peak RSS of an owner", rss),
        ("open after the kill", f"{course.recovered_ms:.0f} ms"),
        ("open after a clean stop", f"{remains.opened_ms:.0f} ms"),
        ("time", f"{time.perf_counter() - course.started:.1f} s, these checks included"),
    ]
    print()
    for name, value in figures:
        print(f"  {name:<28}{value}")
    print()
    for text, good in checks.items():
        print(f"  {'ok    ' if good else 'FAILED'}  {text}")
    if verified.returncode:
        print(verified.stdout + verified.stderr)
    return 0 if all(checks.values()) else 1
