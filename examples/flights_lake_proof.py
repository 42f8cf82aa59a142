"""What must hold when the main job is over: lake, ledger and dead letters against the data.

Nobody's counters are believed. The Parquet files are read with pyarrow, not with Spark, and each
flight is looked up in them; a late flight may have come twice out of its queue, for a queue is
written at least once, and only if something was killed.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.dataset
from flights_data import DELAY_SUM, POISONED, ROWS, flights
from flights_proof import MIB, tell

STREAM = "flights.events"
LATE = "flights.late"
DEAD = f"{STREAM}.dead"
RSS_MAX = 512 * MIB  # of all processes of the broker, whatever the backlog

Row = tuple[int, int, str, int]  # number, month, carrier, departure delay (0: not known)


@dataclass
class Expected:
    """What the data says."""

    rows: dict[int, Row] = field(default_factory=dict)
    late_rows: set[int] = field(default_factory=set)
    delay_sum: int = 0

    @property
    def late(self) -> int:
        return len(self.late_rows)


@dataclass
class LakeCourse:
    """What the job was, and what was seen of it."""

    data: Path
    rows: int
    memory_bytes: int
    confirmed: int = 0
    refused: int = 0  # negative confirms
    returned: int = 0  # without a queue
    publish_s: float = 0.0
    backlog_rss: int = 0  # the most while all was published and nobody read
    pipeline_s: float = 0.0
    pipeline_status: int = -1
    facts: dict[str, Any] = field(default_factory=dict)  # what the pipeline says of itself
    kills: list[str] = field(default_factory=list)
    drain_s: float = 0.0
    dead: list[tuple[int, str, int]] = field(default_factory=list)  # offset, reason, bytes
    most: dict[str, int] = field(default_factory=dict)  # the largest of each number seen
    left: dict[str, int] = field(default_factory=dict)  # messages in each queue at the end
    is_stopped_in_order: bool = False
    is_verified: bool = False

    @cached_property
    def expected(self) -> Expected:
        """Read once."""
        import json

        found = Expected()
        for flight in flights(self.rows):
            month = json.loads(flight.body)["month"]
            found.rows[flight.row] = (flight.row, month, flight.carrier, flight.delay)
            found.delay_sum += flight.delay
            if flight.is_late:
                found.late_rows.add(flight.row)
        return found


@dataclass
class Lake:
    """What the Parquet files hold."""

    files: int = 0
    bytes: int = 0
    partitions: int = 0
    rows: int = 0
    delay_sum: int = 0
    twice: int = 0
    wrong: int = 0  # rows that are not as they were sent
    missing: int = 0


def read_lake(directory: Path, expected: Expected) -> Lake:
    """Every row, held against what was sent."""
    lake = Lake()
    if not directory.exists():
        lake.missing = len(expected.rows)
        return lake
    files = [path for path in directory.rglob("*.parquet") if ".penstock" not in path.parts]
    lake.files, lake.bytes = len(files), sum(path.stat().st_size for path in files)
    lake.partitions = len({path.parent for path in files})
    data = pyarrow.dataset.dataset(directory, format="parquet", partitioning="hive")
    table = data.to_table(columns=["row", "month", "carrier", "dep_delay"])
    seen: Counter[int] = Counter()
    columns = [table.column(name).to_pylist() for name in table.column_names]
    for row, month, carrier, delay in zip(*columns, strict=True):
        seen[row] += 1
        lake.delay_sum += delay or 0
        lake.wrong += expected.rows.get(row) != (row, month, carrier, delay or 0)
    lake.rows = table.num_rows
    lake.twice = sum(count - 1 for count in seen.values())
    lake.missing = len(expected.rows.keys() - seen.keys())
    return lake


def read_ledger(path: Path) -> Counter[int]:
    """How often each row came out of the queue of the late ones."""
    if not path.exists():
        return Counter()
    return Counter(int(line.split()[1]) for line in path.read_text().splitlines())


def prove(course: LakeCourse) -> int:
    """Hold everything against everything, and say so. The exit status."""
    expected = course.expected
    lake = read_lake(course.data / "lake" / "flights", expected)
    late = read_ledger(course.data / "ledger-0")
    twice = sum(count - 1 for count in late.values())
    sent = course.rows + POISONED
    most = course.most
    offsets = {offset for offset, _, _ in course.dead}
    checks = {
        f"all {sent:,} messages were confirmed, none refused or without a queue": (
            course.confirmed == sent and course.refused == course.returned == 0
        ),
        "the pipeline came to its end": course.pipeline_status == 0,
        f"all {course.rows:,} flights are in the lake": lake.missing == 0,
        f"each once: it has {lake.rows:,} rows": lake.twice == 0 and lake.rows == course.rows,
        "each as it was sent": lake.wrong == 0,
        f"the departure delays add up to {expected.delay_sum:,}": (
            lake.delay_sum == expected.delay_sum
            and (course.rows != ROWS or lake.delay_sum == DELAY_SUM)
        ),
        f"all {expected.late:,} late flights came out of their queue; {twice:,} twice": (
            late.keys() == expected.late_rows and (twice == 0 or bool(course.kills))
        ),
        f"the {POISONED} cut ones are dead letters, with the reason": (
            len(offsets) == POISONED and all(reason for _, reason, _ in course.dead)
        ),
        "nothing is left in the queues": not any(course.left.values()),
        f"the queues took at most {course.memory_bytes // MIB} MiB of RAM": (
            most.get("counted", 0) <= course.memory_bytes
        ),
        f"all processes of the broker together at most {RSS_MAX // MIB} MiB": (
            most.get("rss", 0) <= RSS_MAX
        ),
        "the broker stopped in order": course.is_stopped_in_order,
        "penstock store verify finds nothing wrong": course.is_verified,
    }
    return tell(figures(course, lake), checks)


def figures(course: LakeCourse, lake: Lake) -> list[tuple[str, str]]:
    """What there is to say, beside what must hold."""
    facts = course.facts
    killed = f"vhost '/', {course.kills[0]}, by SIGKILL" if course.kills else "nothing"
    rate = course.confirmed / max(course.publish_s, 0.001)
    rows = [
        ("published, with confirms", f"{course.confirmed:,}, {rate:,.0f} a second"),
        ("the stream on disk", f"{int(facts.get('bytes', 0)) / MIB:.0f} MiB of bodies"),
        ("RSS of the broker", f"{course.backlog_rss / MIB:.0f} MiB at most with nobody reading, "
         f"{course.most.get('rss', 0) / MIB:.0f} MiB in all; Python itself included"),
        ("pipeline", f"{int(facts.get('rows', 0)):,} rows in {facts.get('batches')} batches, "
         f"{course.pipeline_s:.1f} s with Spark's start"),
        ("killed meanwhile", killed),
        ("the lake", f"{lake.rows:,} rows in {lake.files:,} files of {lake.partitions} partitions, "
         f"{lake.bytes / MIB:.1f} MiB"),
        ("late flights consumed", f"in {course.drain_s:.1f} s"),
    ]  # fmt: skip
    shown = sorted(course.dead)[:3]
    for number, (offset, reason, size) in enumerate(shown, start=1):
        title = f"dead letter {number} of {len(course.dead)}"
        rows.append((title, f"offset {offset:,}, {size} bytes: {reason}"))
    return rows
