"""What must hold when the main job is over, and how it is found out.

The ledgers of the consumers are held against the data, flight by flight. Nobody's counters are
believed. A flight may stand twice in the ledgers only with an excuse:

    it came as redelivered       its consumer had it in hand when the vhost was killed
    its publisher sent it again  it was not confirmed when the vhost was killed
"""

import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from flights_data import DELAY_SUM, ORIGINS, POISONED, ROWS, Flight, flights

MIB = 1 << 20
KILLS = 2
LATE = "late"


@dataclass
class Course:
    """What the job was, and what was seen of it."""

    data: Path
    rows: int
    memory_bytes: int
    consumers: int
    kills: list[str] = field(default_factory=list)  # what was killed, when
    back_s: list[float] = field(default_factory=list)  # after each kill
    resent: set[str] = field(default_factory=set)  # ids of what was published again
    refused: int = 0  # negative confirms
    returned: int = 0  # without a queue
    redelivered: int = 0
    publish_s: float = 0.0
    drain_s: float = 0.0
    most: dict[str, int] = field(default_factory=dict)  # the largest of each number seen
    left: dict[str, int] = field(default_factory=dict)  # messages in each queue at the end
    dead: list[tuple[str, str, str]] = field(default_factory=list)  # id, reason, queue
    is_stopped_in_order: bool = False
    is_verified: bool = False


class Ledgers:
    """What the consumers have written down, held against the data."""

    def __init__(self, course: Course) -> None:
        self._resent = course.resent
        self._seen: dict[str, dict[int, int]] = {name: {} for name in (*ORIGINS, LATE)}
        self._plain: dict[str, set[int]] = {name: set() for name in self._seen}  # with no excuse
        self._last: dict[tuple[str, str], int] = {}  # row by ledger and queue
        self.twice = self.without_excuse = self.out_of_order = 0
        self.lost: Counter[str] = Counter()  # by queue
        self.altered = self.foreign = self.delay_sum = 0
        self.carriers: Counter[str] = Counter()
        self.carriers_expected: Counter[str] = Counter()
        self.late = 0
        for path in sorted(course.data.glob("ledger-*")):
            with path.open() as lines:
                for line in lines:
                    self._read(path.name, line)
        for flight in flights(course.rows):
            self._compare(flight)
        self.foreign = sum(len(seen) for seen in self._seen.values())

    def _read(self, ledger: str, line: str) -> None:
        queue, row_, delay, carrier, crc, redelivered = line.split()
        row, seen = int(row_), self._seen[queue]
        is_excused = redelivered == "1" or row_ in self._resent
        if not is_excused:
            self.without_excuse += row in self._plain[queue]
            self._plain[queue].add(row)
            self.out_of_order += row <= self._last.get((ledger, queue), -1)
            self._last[ledger, queue] = row
        if row in seen:
            self.twice += 1
            return
        seen[row] = int(crc)
        if queue != LATE:
            self.delay_sum += int(delay)
            self.carriers[carrier] += 1

    def _compare(self, flight: Flight) -> None:
        crc = zlib.crc32(flight.body)
        self.carriers_expected[flight.carrier] += 1
        self.late += flight.is_late
        for queue in (flight.origin, LATE) if flight.is_late else (flight.origin,):
            found = self._seen[queue].pop(flight.row, None)
            self.lost[queue] += found is None
            self.altered += found is not None and found != crc


def prove(course: Course) -> int:
    """Hold everything against everything, and say so. The exit status."""
    ledgers = Ledgers(course)
    most, limit = course.most, course.memory_bytes
    lost = sum(ledgers.lost.values())
    dead = {message_id for message_id, _, _ in course.dead}
    checks = {
        f"all {course.rows:,} flights arrived, each in the queue of its origin": (
            sum(ledgers.lost[name] for name in ORIGINS) == 0
        ),
        f"and the {ledgers.late:,} late ones in the queue of the late ones": (
            ledgers.lost[LATE] == 0
        ),
        "each as it was sent, byte for byte, and nothing else": (
            ledgers.altered == 0 and ledgers.foreign == 0
        ),
        f"each once; the {ledgers.twice:,} that came again marked redelivered, or sent again": (
            ledgers.without_excuse == 0
        ),
        "each queue in the order of its publisher": ledgers.out_of_order == 0,
        f"as many of each of the {len(ledgers.carriers_expected)} carriers as there are": (
            lost > 0 or ledgers.carriers == ledgers.carriers_expected
        ),
        f"the {POISONED} cut ones are dead letters, rejected": (
            len(dead) == POISONED and all(reason == "rejected" for _, reason, _ in course.dead)
        ),
        "nothing is left, was refused or had no queue": (
            not any(course.left.values()) and course.refused == course.returned == 0
        ),
        f"the vhost was killed {KILLS} times in the middle of work": len(course.kills) == KILLS,
        f"the queues never took more than {limit / MIB:.0f} MiB of RAM, and paged": (
            most["counted"] <= limit and most["delta"] > 0
        ),
        "the broker stopped in order": course.is_stopped_in_order,
        "penstock store verify finds nothing wrong": course.is_verified,
    }
    if course.rows == ROWS:
        checks[f"the departure delays add up to {DELAY_SUM:,}"] = ledgers.delay_sum == DELAY_SUM
    return tell(figures(course, ledgers), checks)


def tell(found: list[tuple[str, str]], checks: dict[str, bool]) -> int:
    """Print the figures, and each check. The exit status: 1 if one has failed."""
    print()
    for name, value in found:
        print(f"  {name:<28}{value}")
    print()
    for text, good in checks.items():
        print(f"  {'ok    ' if good else 'FAILED'}  {text}")
    return 0 if all(checks.values()) else 1


def figures(course: Course, ledgers: Ledgers) -> list[tuple[str, str]]:
    """What there is to say, beside what must hold."""
    most = course.most
    copies = course.rows + ledgers.late
    top = ", ".join(f"{name} {n:,}" for name, n in ledgers.carriers.most_common(4))
    back = " and ".join(f"{seconds * 1000:.0f} ms" for seconds in course.back_s)
    return [
        ("flights", f"{course.rows:,}; {top}, ..."),
        ("departure delays", f"{ledgers.delay_sum:,} minutes; {ledgers.late:,} flights late"),
        ("published, with confirms", f"{course.rows / course.publish_s:,.0f} a second"),
        ("consumed, with acks", f"{copies / course.drain_s:,.0f} a second, {course.consumers} "
         "consumers"),
        ("longest queues", f"{most['messages']:,} messages; in delta up to {most['delta']:,}"),
        ("counted in RAM, at most", f"{most['counted'] / MIB:.1f} of "
         f"{course.memory_bytes / MIB:.0f} MiB"),
        ("RSS, at most", f"{most['rss'] / MIB:.0f} MiB: all processes of the broker, Python and "
         "its code included"),
        ("sent again",  f"{len(course.resent):,}, not confirmed when the vhost was killed"),
        ("marked redelivered", f"{course.redelivered:,}, which may have been in hand"),
        ("serving again after a kill", back),
    ]  # fmt: skip
