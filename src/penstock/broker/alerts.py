"""Alerts of a vhost: the list for operators, lines of the log, and messages for clients.

    event            -> AlertList, at once
      there is room  -> a line of the log, at once -> _outbox
      there is none  -> _waiting: the newest of its kind, with the number of those before it
    a later turn     -> what waited and has room; _outbox -> the exchange amq.penstock.alert

**The list.** An alert is reported once (a size, damage), or it begins and ends:

    begins            ends              of
    flowed            recovered         a queue, or a part of it: RAM is not enough for it
    count_up          count_down        a queue: more messages than its alert threshold
    depth_up          depth_down        the same, bytes
    age_up            age_down          the same, ms
    blocked           unblocked         the vhost: publishers wait
    memory_alarm      memory_free       the vhost: what is counted, or (part "rss") the process
    disk_full         disk_free         the vhost
    batch_waits       batch_goes_on     a query (part)

    once: size_up, page_out_failed, page_in_failed, lease_old, corruption

The same alert of the same queue and part again is the same row, with its last time and a count; so
a queue that swings around its limit has two rows and does not push out all others. The list is in
RAM alone: a vhost that starts has an empty one.

    _on     queue -> (kind, part) -> row    what has begun and not ended: never forgotten, at most
                                            a few for each queue that there is
    _past   key -> row                      all others, the oldest first, PAST_MAX at most

**The exchange** is a topic exchange that every vhost has, internal as amq.rabbitmq.event is in
RabbitMQ. Clients bind to it as to any other. A message is transient:

    routing key   <kind>.<queue>, or <kind> alone if it is of the whole vhost; cut to 255 bytes
    headers       vhost, queue, kind, timestamp_in_ms; the property timestamp, in seconds
    body          JSON in UTF-8, the row of the list as it was then

No message is made while nothing is bound to the exchange. While the disk is full nothing is
published; the last OUTBOX_MAX alerts of that time are published when there is space. If one queue
refuses an alert, the others get it.

**Rates.** A pair of kinds of one queue (flowed and recovered) is reported KEY_BURST times at once
and then once in ten seconds: when there is room the newest is reported, so the reader knows the
present state. All queues together have ALL_BURST and then ten in a second; alerts of memory, disk
and blocking do not wait for those of queues. WAITING_MAX wait; the oldest beyond that are left out,
and the next line says how many.

**Damage.** A damaged file is one line and one message for each start of the vhost, written in the
next turn with the number of places found by then; the list counts on.

**No circles.** An alert about a queue is not published to that queue. An alert that is caused by
publishing an alert is published too (a queue of alerts may have an alert); one that is caused by
that is only in the log and in the list.

The path of a message does nothing of this but call `event`, which does not fail. Publishing is done
between turns, in slices, because clients may have bound very many queues. An error in it is
reported as an internal error.
"""

import json
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.broker.background_tasks import AGAIN, ASLEEP, BackgroundTask, BackgroundTasks
from penstock.broker.broker_queue import QueueOrStream
from penstock.broker.dispatch import Dispatch
from penstock.broker.outbox import put
from penstock.broker.topology import ALERTS
from penstock.clock import Clock, TokenBucket, date
from penstock.codec.properties import BasicProperties
from penstock.errors import damaged_at, valid_text
from penstock.queues.amqp_headers import short_string
from penstock.queues.thresholds import Alert
from penstock.routing.router import Router, Walk, Way
from penstock.storage.files.durability import NONE

PAST_MAX: Final = 1000

FLOWED: Final = "flowed"
# kind that begins -> kind that ends it
ENDS: Final[dict[str, str]] = {
    FLOWED: "recovered",
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
    """A row of the list. part: which of several, where a queue or the vhost has more than one.
    is_on: None for an alert that neither begins nor ends. count: how often since first_ms; times
    are ms since 1970."""

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
        """Return the row as operators and clients get it."""
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
    """The alerts of one vhost, whose name its rows contain."""

    def __init__(self, vhost: str) -> None:
        self._vhost = vhost
        self._on: dict[str, dict[tuple[str, str], ListedAlert]] = {}
        self._past: OrderedDict[Key, ListedAlert] = OrderedDict()
        self._numbers = 0

    def take(
        self, kind: str, text: str, now_ms: int, *, queue: str = "", part: str = "",
        value: int | None = None, threshold: int | None = None,
    ) -> ListedAlert:  # fmt: skip
        """Add an alert, one of KINDS; return its row. value, threshold: of a queue's threshold that
        was crossed."""
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
        """End all alerts of this queue: it was deleted or restarted."""
        for row in self._on.pop(queue, {}).values():
            row.is_on = False
            self._add_past(row)

    def rows(self) -> list[Info]:
        """Return the rows of alerts that are on and past, the oldest first."""
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


KEY_BURST: Final = 4
KEY_PER_S: Final = 0.1
KEYS_MAX: Final = 1024  # queues whose rates are remembered
ALL_BURST: Final = 200
ALL_PER_S: Final = 10.0
WAITING_MAX: Final = 1000
OUTBOX_MAX: Final = 1000
FILES_MAX: Final = 4096  # damaged files; those beyond are counted as one
CIRCLES_MAX: Final = 1  # depth up to which alerts caused by alerts are published
# Of one step, as steps of routing (exchange_types.Asked).
SLICE_STEPS: Final = 2048
ALERT_STEPS: Final = 64  # to build one
PUT_STEPS: Final = 16  # to publish it to one queue
KEY_BYTES_MAX: Final = 255
CHARACTER_BYTES_MAX: Final = 4
LOOK_S: Final = 1.0  # between two looks at those that wait
# Kinds of the whole vhost: few, and more urgent than those of queues.
URGENT: Final = frozenset(
    {"blocked", "unblocked", "memory_alarm", "memory_free", "disk_full", "disk_free"}
)


class PendingAlert:
    """An alert that is to be logged and published. before: how many were left out since the last
    report. depth: how many times over it was caused by publishing an alert. info: its row at the
    report."""

    __slots__ = ("before", "depth", "info", "row")

    def __init__(self, row: ListedAlert, depth: int) -> None:
        self.row: ListedAlert = row
        self.depth: int = depth
        self.before: int = 0
        self.info: Info = {}


@dataclass(slots=True, eq=False)
class Damage:
    """The damage of one file: the first place found, and how many since."""

    queue: str
    first: str
    count: int = 0

    @property
    def text(self) -> str:
        """Return the damage in words."""
        more = self.count - 1
        return f"{self.first}; and {more} more in this file so far" if more else self.first


class AlertManager(BackgroundTask):
    """The alerts of one vhost. log(kind, text): writes a line."""

    def __init__(self, vhost: str, clock: Clock, log: Callable[[str, str], None]) -> None:
        self.list: AlertList = AlertList(vhost)
        self._name = vhost
        self._clock = clock
        self._log = log
        self._buckets: OrderedDict[Key, TokenBucket] = OrderedDict()  # the longest unused first
        self._of_all = TokenBucket(ALL_BURST, ALL_PER_S, clock.monotonic())
        self._waiting: OrderedDict[Key, PendingAlert] = OrderedDict()
        self._outbox: deque[PendingAlert] = deque(maxlen=OUTBOX_MAX)
        self.damages: dict[str, int] = {}  # how often damage was found, by the kind of file
        self._damaged: dict[str, Damage] = {}
        self._is_damage_new: bool = False  # it is reported in the next turn
        self._looked_s: float = 0.0
        self._sending: SendingAlert | None = None  # which is being published
        self._depth: int = 0  # of alerts that are caused now
        self._is_open: bool = False
        self._background: BackgroundTasks
        self._dispatch: Dispatch
        self._router: Router
        self._find: Callable[[str], QueueOrStream | None]
        self._is_disk_full: Callable[[], bool]

    def open(
        self, background: BackgroundTasks, dispatch: Dispatch, router: Router,
        find: Callable[[str], QueueOrStream | None], is_disk_full: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Begin to publish: the vhost has opened and there are turns. find(name): the queue or
        stream of that name. is_disk_full(): nothing can be published now."""
        self._background = background
        self._dispatch = dispatch
        self._router = router
        self._find = find
        self._is_disk_full = is_disk_full
        self._is_open = True
        self._wake()

    # ---- in ------------------------------------------------------------------------------------

    def event(
        self, kind: str, text: str, queue: str = "", part: str = "", value: int | None = None,
        threshold: int | None = None,
    ) -> bool:  # fmt: skip
        """Take an event; return False if it is not an alert. part: which of several, where the
        queue or the vhost has more than one."""
        if kind not in KINDS:
            return False
        if kind == DAMAGE:
            self._found_damage(text, queue)
            return True
        row = self.list.take(
            kind, text, self._clock.wall_ms(), queue=queue, part=part, value=value,
            threshold=threshold,
        )  # fmt: skip
        key = queue, BEGINS.get(kind, kind), part
        pending = PendingAlert(row, self._depth)
        if key not in self._waiting and self._take_room(key, kind):
            self._report(pending)
        else:
            self._wait(key, pending)
        return True

    def threshold(self, alert: Alert) -> None:
        """Report that a queue has reached the threshold of an alert, or is below it again."""
        kind = f"{alert.kind}_{'down' if alert.is_over else 'up'}"
        self.event(kind, alert.text(), alert.queue, "", alert.value, alert.threshold)

    def queue_event(self, queue: str, kind: str, text: str) -> None:
        """Take an event of a queue, or log it if it is not an alert. The queue's parts report
        separately: the text begins with the part's name (Paging.tell)."""
        part = text.rpartition(": ")[0] if kind in (FLOWED, ENDS[FLOWED]) else ""
        if not self.event(kind, text, queue, part):
            self._log(kind, text)

    def queue_gone(self, queue: str) -> None:
        """End all alerts of this queue: it was deleted or restarted."""
        self.list.queue_gone(queue)

    def _found_damage(self, text: str, queue: str) -> None:
        file = damaged_at(text)
        kind = _kind_of_file(file)
        self.damages[kind] = self.damages.get(kind, 0) + 1
        if file not in self._damaged and len(self._damaged) >= FILES_MAX:
            file = queue = ""
        damage = self._damaged.get(file)
        if damage is None:
            damage = self._damaged[file] = Damage(queue, text)
        damage.count += 1
        now_ms = self._clock.wall_ms()
        row = self.list.take(DAMAGE, damage.text, now_ms, queue=damage.queue, part=file)
        if damage.count == 1:
            self._wait((damage.queue, DAMAGE, file), PendingAlert(row, self._depth))
            self._is_damage_new = True
            self._wake()

    # ---- how much ------------------------------------------------------------------------------

    def _take_room(self, key: Key, kind: str) -> bool:
        """Return whether the alert may be reported now; if so, count it."""
        now_s = self._clock.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(KEY_BURST, KEY_PER_S, now_s)
            if len(self._buckets) > KEYS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        if not bucket.has_room(now_s):
            return False
        if kind not in URGENT and not self._of_all.take_room(now_s):
            return False
        bucket.take()
        return True

    def _wait(self, key: Key, pending: PendingAlert) -> None:
        before = self._waiting.pop(key, None)
        if before is not None:
            pending.before = before.before + 1
        self._waiting[key] = pending
        if len(self._waiting) > WAITING_MAX:
            _, oldest = self._waiting.popitem(last=False)
            self._of_all.left_out += 1 + oldest.before

    def tick(self, now_s: float) -> None:
        """Report alerts that waited and have room now."""
        if self._waiting and now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._report_waiting()
        if self._outbox and self._is_open and not self._is_disk_full():
            self._wake()

    def _report_waiting(self) -> None:
        for key in list(self._waiting):
            if self._take_room(key, self._waiting[key].row.kind):
                self._report(self._waiting.pop(key))

    def _report(self, pending: PendingAlert) -> None:
        row = pending.row
        text = row.text
        if pending.before:
            text += f" ({pending.before} changes before this one were left out)"
        if self._of_all.left_out:
            text += f" ({self._of_all.left_out} alerts of other queues were left out)"
            self._of_all.left_out = 0
        self._log(row.kind, text)
        if not self._is_open:  # it opens: there is no router yet, and nobody consumes
            return
        if pending.depth <= CIRCLES_MAX and self._router.has_bindings(ALERTS):
            pending.info = row.info(self._name)
            self._outbox.append(pending)
        self._wake()

    def flush(self) -> None:
        """Log the alerts that wait, because there may be no other turn: as many as the common rate
        allows, and how many others there are."""
        for key in list(self._waiting):
            pending = self._waiting[key]
            if self._of_all.take_room(self._clock.monotonic()):
                del self._waiting[key]
                self._report(pending)
        if self._waiting:
            self._log("warning", f"{len(self._waiting)} alerts were left out")
            self._waiting.clear()

    # ---- out -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._is_open and (self._outbox or self._sending is not None or self._is_damage_new):
            self._background.wake(self)

    def step(self) -> int:
        """Report alerts that have room and publish a slice of the outbox."""
        if self._is_damage_new:
            self._is_damage_new = False
            self._report_waiting()
        steps = SLICE_STEPS
        while steps > 0:
            sending = self._sending
            if sending is None:
                if not self._outbox or self._is_disk_full():
                    return ASLEEP
                sending = self._sending = self._built(self._outbox.popleft())
                steps -= ALERT_STEPS
            steps = self._publish(sending, steps)
        return AGAIN

    def failed(self, error: Exception) -> None:
        """Raise the error, so that it is reported, and continue with the other alerts."""
        self._sending = None
        self._wake()
        raise error

    def _built(self, pending: PendingAlert) -> "SendingAlert":
        about, kind = pending.row.queue, pending.row.kind
        key = routing_key(kind, about)
        headers: dict[str, object] = {
            "vhost": self._name, "queue": about, "kind": kind,
            "timestamp_in_ms": self._clock.wall_ms(),
        }  # fmt: skip
        props = BasicProperties(
            content_type="application/json", headers=headers, delivery_mode=1,
            timestamp=self._clock.wall_ms() // 1000,
        )  # fmt: skip
        raw_key = key.encode("utf-8", "surrogateescape")
        header = b"\x02" + short_string(ALERTS.encode()) + short_string(raw_key) + props.encode()
        body = valid_text(json.dumps(pending.info, ensure_ascii=False)).encode()
        router = self._router
        walk = Walk(router, Way(router, ALERTS), [key], headers)
        return SendingAlert(walk, header, body, about, pending.depth + 1)

    def _publish(self, sending: "SendingAlert", steps: int) -> int:
        """Publish to some of the queues, as far as the steps go; return how many are left."""
        names = sending.names
        if names is None:
            steps = sending.walk.advance(steps)
            if steps <= 0:
                return steps
            names = sending.names = list(sending.walk.queues)
        self._depth = sending.depth
        try:
            while names and steps > 0:
                steps -= PUT_STEPS
                name = names.pop()
                if name != sending.about:
                    # Without room the other queues get it; the list has it in any case.
                    put(self._dispatch, self._find(name), sending.header, sending.body, NONE)
        finally:
            self._depth = 0
        if not names:
            self._sending = None
        return steps


@dataclass(slots=True, eq=False)
class SendingAlert:
    """An alert that is being published. names: of the queues that are to get it still; None
    until the walk is done."""

    walk: Walk
    header: bytes
    body: bytes
    about: str
    depth: int
    names: list[str] | None = None


def routing_key(kind: str, queue: str) -> str:
    """Return <kind>.<queue>, or <kind>, cut between two characters to the length of a routing
    key."""
    if not queue:
        return kind
    data = f"{kind}.{queue}".encode("utf-8", "surrogateescape")
    end = KEY_BYTES_MAX
    if len(data) <= end:
        return f"{kind}.{queue}"
    while end > KEY_BYTES_MAX - CHARACTER_BYTES_MAX and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end].decode("utf-8", "surrogateescape")


_FILES: Final = {
    "wal": "log", "qi": "index", "qs": "index", "rdq": "store", "hint": "store", "msg": "store",
    "page": "page", "idx": "page",
}  # fmt: skip


def _kind_of_file(path: str) -> str:
    """Return what is in a file of this name: log, index, store, page, checkpoint or other."""
    name = path.rpartition("/")[2]
    if name.startswith(("checkpoint-", "CURRENT")):
        return "checkpoint"
    return _FILES.get(name.rpartition(".")[2], "other")
