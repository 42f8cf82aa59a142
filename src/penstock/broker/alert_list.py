"""AlertList: the alerts of a vhost that an operator sees: what is on, and the last of what was.

An alert is told once (a size, damage), or it begins and ends:

    begins            ends              of
    flowed            recovered         a queue, or a part of it: RAM is not enough for it
    count_up          count_down        a queue: more messages than its alert threshold
    depth_up          depth_down        the same, bytes
    age_up            age_down          the same, ms
    blocked           unblocked         the vhost: publishers wait
    memory_alarm      memory_free       the vhost: what is counted, or (part "rss") the process
    disk_full         disk_free         the vhost
    batch_waits       batch_goes_on     a query (part)

    told once: size_up, page_out_failed, page_in_failed, lease_old, corruption

The same alert of the same queue and part again is the same row, with its last time and a count; so
a queue that swings around its limit has two rows and does not push out all others.

    _on     queue -> (kind, part) -> row    what has begun and not ended: never forgotten, at most
                                            a few for each queue that there is
    _past   key -> row                      all others, the oldest first, PAST_MAX at most

A queue that is deleted or restarted ends what is on of it (`queue_gone`).

In RAM alone: a vhost that starts has an empty list. Not here: what is logged and published of
alerts, and how often (alert_desk.py).
"""

from collections import OrderedDict
from typing import Final

from penstock.clock import date

PAST_MAX: Final = 1000

# kind that begins -> kind that ends it
ENDS: Final[dict[str, str]] = {
    "flowed": "recovered",
    "count_up": "count_down",
    "depth_up": "depth_down",
    "age_up": "age_down",
    "blocked": "unblocked",
    "memory_alarm": "memory_free",
    "disk_full": "disk_free",
    "batch_waits": "batch_goes_on",
}
BEGINS: Final[dict[str, str]] = {end: begin for begin, end in ENDS.items()}
DAMAGE: Final = "corruption"
ONCE: Final = ("size_up", "page_out_failed", "page_in_failed", "lease_old", DAMAGE)
KINDS: Final = frozenset((*ENDS, *BEGINS, *ONCE))

Key = tuple[str, str, str]  # queue, kind, part
Info = dict[str, object]


class ListedAlert:
    """A row. part: which of several, where a queue or the vhost has more than one. is_on: None for
    what neither begins nor ends. count: how often since first_ms; times are ms since 1970."""

    __slots__ = (
        "count", "first_ms", "is_on", "kind", "number", "part", "queue", "text", "threshold",
        "time_ms", "value",
    )  # fmt: skip

    def __init__(self, kind: str, queue: str, part: str, now_ms: int) -> None:
        self.kind: str = kind
        self.queue: str = queue
        self.part: str = part
        self.first_ms: int = now_ms
        self.time_ms: int = now_ms
        self.number: int = 0  # rows are in the order of these
        self.count: int = 0
        self.text: str = ""
        self.is_on: bool | None = None
        self.value: int | None = None
        self.threshold: int | None = None

    def info(self, vhost: str) -> Info:
        """As people, operations and clients get it."""
        return {
            "time": date(self.time_ms),
            "first_time": date(self.first_ms),
            "vhost": vhost,
            "queue": self.queue,
            "kind": self.kind,
            "is_on": self.is_on,
            "count": self.count,
            "text": self.text,
            "value": self.value,
            "threshold": self.threshold,
        }


class AlertList:
    """Of one vhost, whose name its rows say."""

    def __init__(self, vhost: str) -> None:
        self._vhost = vhost
        self._on: dict[str, dict[tuple[str, str], ListedAlert]] = {}
        self._past: OrderedDict[Key, ListedAlert] = OrderedDict()
        self._numbers = 0

    def take(
        self, kind: str, text: str, now_ms: int, *, queue: str = "", part: str = "",
        value: int | None = None, threshold: int | None = None,
    ) -> ListedAlert:  # fmt: skip
        """An alert, one of KINDS; its row. value, threshold: of a queue's threshold
        that was crossed."""
        assert kind in KINDS, kind
        begin = BEGINS.get(kind)
        if begin is not None:
            self._end(queue, begin, part)
        row = self._taken_out(queue, kind, part)
        if row is None:
            row = ListedAlert(kind, queue, part, now_ms)
        self._numbers += 1
        row.number = self._numbers
        row.time_ms = now_ms
        row.count += 1
        row.text = text
        row.value, row.threshold = value, threshold
        if kind in ENDS:
            row.is_on = True
            self._on.setdefault(queue, {})[kind, part] = row
        else:
            self._add_past(row)
        return row

    def queue_gone(self, queue: str) -> None:
        """What is on of this queue has ended, without a word: it was deleted, or is another one."""
        for row in self._on.pop(queue, {}).values():
            row.is_on = False
            self._add_past(row)

    def rows(self) -> list[Info]:
        """What is on and what was, the oldest first."""
        found = list(self._past.values())
        for of_queue in self._on.values():
            found += of_queue.values()
        return [row.info(self._vhost) for row in sorted(found, key=_number)]

    def _end(self, queue: str, begin: str, part: str) -> None:
        of_queue = self._on.get(queue, {})
        row = of_queue.pop((begin, part), None)
        if row is None:
            return
        if not of_queue:
            del self._on[queue]
        row.is_on = False
        self._add_past(row)

    def _taken_out(self, queue: str, kind: str, part: str) -> ListedAlert | None:
        row = self._past.pop((queue, kind, part), None)
        return row or self._on.get(queue, {}).get((kind, part))

    def _add_past(self, row: ListedAlert) -> None:
        key = row.queue, row.kind, row.part
        self._past[key] = row
        self._past.move_to_end(key)
        if len(self._past) > PAST_MAX:
            self._past.popitem(last=False)


def _number(row: ListedAlert) -> int:
    return row.number
