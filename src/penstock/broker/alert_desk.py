r"""AlertDesk: the alerts of a vhost reach somebody: its log, the list of operators, and clients.

    event            -> AlertList, at once
      there is room  -> a line of the log, at once -> _outbox
      there is none  -> _waiting: the newest of its kind, with the number of those before it
    a later turn     -> what waited and has room; _outbox -> amq.penstock.alert

**The exchange** is a topic exchange that every vhost has, internal as amq.rabbitmq.event is there.
Clients bind to it as to any other. A message is transient:

    routing key   <kind>.<queue>, or <kind> alone if it is of the whole vhost; cut to 255 bytes
    headers       vhost, queue, kind, timestamp_in_ms; the property timestamp, in seconds
    body          JSON in UTF-8, the row of the list as it was then

While nobody has bound it nothing is made for it. While the disk is full nothing is published; the
last OUTBOX_MAX alerts of that time are when there is space. What one queue refuses the others get.

**How much.** A pair of kinds of one queue (flowed and recovered) is told KEY_BURST times at once
and then once in ten seconds: when there is room the newest is told, so whoever reads knows how it
ended. All queues together have ALL_BURST and then ten in a second; memory, disk and blocked do not
wait for those of queues. WAITING_MAX wait; the oldest beyond that are left out, which the next line
says.

**Damage.** A damaged file is one line and one message for each start of the vhost, written in the
next turn with the number of places that were found by then; the list counts on.

**No circles.** An alert about a queue is not published to that queue. One that comes about while an
alert is being published is published too (a queue of alerts may have an alert); one that comes
about by that is not: it is in the log and in the list.

Nothing of this is done on the way of a message but `event`, and nothing fails there: what is
published is published between turns, and an error of that is reported as a mistake.

Not here: when a queue alerts (penstock.queues), what a row says (alert_list.py).
"""

import json
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from penstock.broker.alert_list import BEGINS, DAMAGE, KINDS, AlertList, Info, ListedAlert
from penstock.broker.bucket import Bucket
from penstock.broker.chores import AGAIN, ASLEEP, Chore, Chores
from penstock.broker.served_queue import ServedQueue
from penstock.broker.served_stream import ServedStream
from penstock.broker.topology import ALERTS
from penstock.codec.properties import BasicProperties
from penstock.errors import DiskFullError, QueueFullError, damaged_at, valid_text
from penstock.queues.alerts import Alert
from penstock.storage.durability import NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.vhost import VHost

KEY_BURST: Final = 4
KEY_PER_S: Final = 0.1
KEYS_MAX: Final = 1024  # queues of which it is remembered how much they told
ALL_BURST: Final = 200
ALL_PER_S: Final = 10.0
WAITING_MAX: Final = 1000
OUTBOX_MAX: Final = 1000
FILES_MAX: Final = 4096  # damaged ones; those beyond are counted as one
CIRCLES_MAX: Final = 1  # alerts that come about by publishing alerts
SLICE: Final = 32  # published at once
KEY_BYTES_MAX: Final = 255
CHARACTER_BYTES_MAX: Final = 4
LOOK_S: Final = 1.0  # between two looks at those that wait
# Kinds of the whole vhost: few, and more urgent than those of queues.
URGENT: Final = frozenset(
    {"blocked", "unblocked", "memory_alarm", "memory_free", "disk_full", "disk_free"}
)

Key = tuple[str, str, str]  # queue, kind that begins, part


class Telling:
    """An alert on its way. before: how many were left out since the last that was told. depth: how
    many times over it came about by publishing an alert. info: its row when it was told."""

    __slots__ = ("before", "depth", "info", "row")

    def __init__(self, row: ListedAlert, depth: int) -> None:
        self.row: ListedAlert = row
        self.depth: int = depth
        self.before: int = 0
        self.info: Info = {}


class Damage:
    """Of one file: what was found first, and how many places since."""

    __slots__ = ("count", "first", "queue")

    def __init__(self, queue: str, first: str) -> None:
        self.queue: str = queue
        self.first: str = first
        self.count: int = 0

    @property
    def text(self) -> str:
        """For people."""
        more = self.count - 1
        return f"{self.first}; and {more} more in this file so far" if more else self.first


class AlertDesk(Chore):
    """Of one vhost. log(kind, text): writes a line."""

    def __init__(self, vhost: "VHost", log: "Callable[[str, str], None]") -> None:
        self.list: AlertList = AlertList(vhost.name)
        self._vhost = vhost
        self._log = log
        self._chores: Chores | None = None
        self._buckets: OrderedDict[Key, Bucket] = OrderedDict()  # the longest unused first
        self._of_all = Bucket(ALL_BURST, ALL_PER_S, vhost.clock.monotonic())
        self._waiting: OrderedDict[Key, Telling] = OrderedDict()
        self._outbox: deque[Telling] = deque(maxlen=OUTBOX_MAX)
        self._damaged: dict[str, Damage] = {}
        self._is_damage_new: bool = False  # it is told in the next turn
        self._looked_s: float = 0.0
        self._depth: int = 0  # of what comes about now

    def open(self, chores: Chores) -> None:
        """The vhost has opened: from now on there are turns."""
        self._chores = chores
        self._wake()

    # ---- in ------------------------------------------------------------------------------------

    def event(
        self, kind: str, text: str, queue: str = "", part: str = "", value: int | None = None,
        threshold: int | None = None,
    ) -> bool:  # fmt: skip
        """Take an event, if it is an alert; False if it is none. part: which of several, where the
        queue or the vhost has more than one."""
        if kind not in KINDS:
            return False
        if kind == DAMAGE:
            self._found_damage(text, queue)
            return True
        row = self.list.take(
            kind, text, self._vhost.clock.wall_ms(), queue=queue, part=part, value=value,
            threshold=threshold,
        )  # fmt: skip
        key = queue, BEGINS.get(kind, kind), part
        telling = Telling(row, self._depth)
        if key not in self._waiting and self._take_room(key, kind):
            self._tell(telling)
        else:
            self._wait(key, telling)
        return True

    def threshold(self, alert: Alert) -> None:
        """A queue has reached the threshold of an alert, or is below it again."""
        kind = f"{alert.kind}_{'down' if alert.is_over else 'up'}"
        self.event(kind, alert.text(), alert.queue, "", alert.value, alert.threshold)

    def of_queue(self, queue: str, kind: str, text: str) -> bool:
        """The same as `event`, of a queue whose parts tell for themselves: the text begins with
        which it is (Paging.tell)."""
        part = text.rpartition(": ")[0] if kind in ("flowed", "recovered") else ""
        return self.event(kind, text, queue, part)

    def queue_gone(self, queue: str) -> None:
        """It was deleted, or restarted: nothing of it is on."""
        self.list.queue_gone(queue)

    def _found_damage(self, text: str, queue: str) -> None:
        file = damaged_at(text)
        if file not in self._damaged and len(self._damaged) >= FILES_MAX:
            file = queue = ""
        damage = self._damaged.get(file)
        if damage is None:
            damage = self._damaged[file] = Damage(queue, text)
        damage.count += 1
        now_ms = self._vhost.clock.wall_ms()
        row = self.list.take(DAMAGE, damage.text, now_ms, queue=damage.queue, part=file)
        if damage.count == 1:
            self._wait((damage.queue, DAMAGE, file), Telling(row, self._depth))
            self._is_damage_new = True
            self._wake()

    # ---- how much ------------------------------------------------------------------------------

    def _take_room(self, key: Key, kind: str) -> bool:
        """Whether this may be told now, which counts it."""
        now_s = self._vhost.clock.monotonic()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(KEY_BURST, KEY_PER_S, now_s)
            if len(self._buckets) > KEYS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        if not bucket.has_room(now_s):
            return False
        if kind not in URGENT:
            if not self._of_all.has_room(now_s):
                return False
            self._of_all.take()
        bucket.take()
        return True

    def _wait(self, key: Key, telling: Telling) -> None:
        before = self._waiting.pop(key, None)
        if before is not None:
            telling.before = before.before + 1
        self._waiting[key] = telling
        if len(self._waiting) > WAITING_MAX:
            _, oldest = self._waiting.popitem(last=False)
            self._of_all.left_out += 1 + oldest.before

    def tick(self, now_s: float) -> None:
        """Time has passed: what waited may have room now."""
        if self._waiting and now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._tell_waiting()
        if self._outbox and not self._is_disk_full():
            self._wake()

    def _tell_waiting(self) -> None:
        for key in list(self._waiting):
            if self._take_room(key, self._waiting[key].row.kind):
                self._tell(self._waiting.pop(key))

    def _tell(self, telling: Telling) -> None:
        row = telling.row
        text = row.text
        if telling.before:
            text += f" ({telling.before} changes before this one were left out)"
        if self._of_all.left_out:
            text += f" ({self._of_all.left_out} alerts of other queues were left out)"
            self._of_all.left_out = 0
        self._log(row.kind, text)
        if self._chores is None:  # it opens: there is no router yet, and nobody consumes
            return
        if telling.depth <= CIRCLES_MAX and self._vhost.router.has_bindings(ALERTS):
            telling.info = row.info(self._vhost.name)
            self._outbox.append(telling)
        self._wake()

    def flush(self) -> None:
        """Log what waits, for there may be no other turn: as much as all together may now, and how
        many others there are."""
        for key in list(self._waiting):
            telling = self._waiting[key]
            if self._of_all.has_room(self._vhost.clock.monotonic()):
                self._of_all.take()
                del self._waiting[key]
                self._tell(telling)
        if self._waiting:
            self._log("warning", f"{len(self._waiting)} alerts were left out")
            self._waiting.clear()

    # ---- out -----------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._chores is not None and (self._outbox or self._is_damage_new):
            self._chores.wake(self)

    def step(self) -> int:
        """Between turns: tell what has room now, and publish some."""
        if self._is_damage_new:
            self._is_damage_new = False
            self._tell_waiting()
        for _ in range(SLICE):
            if not self._outbox or self._is_disk_full():
                return ASLEEP
            self._publish(self._outbox.popleft())
        return AGAIN

    def failed(self, error: Exception) -> None:
        """One could not be published, which is a mistake of ours; the others are."""
        self._wake()
        raise error

    def _is_disk_full(self) -> bool:
        return self._vhost.monitor.is_disk_full or self._vhost.engine.blocked

    def _publish(self, telling: Telling) -> None:
        vhost, about, kind = self._vhost, telling.row.queue, telling.row.kind
        key = routing_key(kind, about)
        headers: dict[str, object] = {
            "vhost": vhost.name, "queue": about, "kind": kind,
            "timestamp_in_ms": vhost.clock.wall_ms(),
        }  # fmt: skip
        names = vhost.router.route(ALERTS, key, headers)
        props = BasicProperties(
            content_type="application/json", headers=headers, delivery_mode=1,
            timestamp=vhost.clock.wall_ms() // 1000,
        )  # fmt: skip
        header = b"\x02" + _short(ALERTS) + _short(key) + props.encode()
        body = valid_text(json.dumps(telling.info, ensure_ascii=False)).encode()
        self._depth = telling.depth + 1
        try:
            for name in names:
                if name != about:
                    self._put(name, header, body)
        finally:
            self._depth = 0

    def _put(self, name: str, header: bytes, body: bytes) -> None:
        vhost = self._vhost
        queue = vhost.served(name)
        try:
            if isinstance(queue, ServedStream):
                queue.append(header, body, vhost.mode)
                vhost.dispatch.be_due()
            elif isinstance(queue, ServedQueue):
                queue.amq.publish(header, body, NONE)
                queue.published += 1
                vhost.dispatch.mark(queue)
        except (DiskFullError, QueueFullError):
            pass  # the others get it; who was refused has it in the list


def routing_key(kind: str, queue: str) -> str:
    """<kind>.<queue>, or <kind>; cut to what a routing key may have, between two characters."""
    if not queue:
        return kind
    data = f"{kind}.{queue}".encode("utf-8", "surrogateescape")
    end = KEY_BYTES_MAX
    if len(data) <= end:
        return f"{kind}.{queue}"
    while end > KEY_BYTES_MAX - CHARACTER_BYTES_MAX and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end].decode("utf-8", "surrogateescape")


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return bytes((len(data),)) + data
