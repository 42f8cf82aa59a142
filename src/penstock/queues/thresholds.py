"""Alerts: events for a queue that is too long, too deep or too old, after Qpid's of that name.

Four kinds, each with its own threshold, off unless it is set:

    count   ready messages in the queue
    depth   bytes of their bodies
    age     how long ago the oldest of them arrived, in ms
    size    bytes of a single message, when it arrives

**When one fires.** Once when the value reaches `up`, then again whenever the repeat gap has passed
and it is still there. At `down` or below the kind is armed again, which `on_over` reports (except
for size). So a queue that swings around its threshold does not fire each time. `down` is half of
`up` by default.

A size belongs to one message, so without a `down` of its own that kind is armed again only by the
repeat gap; with one, also by a message of `down` bytes or less.

**What it costs.** `is_set` is False while no threshold is set, and the owner then calls nothing.
Otherwise `check` compares three integers for each message that arrives, and does more only from a
threshold upwards. The owner's ticks call it, too, and `check_age`, because an age grows by itself.

A depth threshold at or above the queue's memory limit fires too late to be of use: messages go to
disk already. `warning` reports that.
"""

from collections.abc import Callable
from typing import Final

from penstock.errors import OptionError
from penstock.options import format_bytes
from penstock.queues.queue_options import QueueOptions

KINDS: Final = ("count", "size", "depth", "age")
COUNT: Final = 0
SIZE: Final = 1
DEPTH: Final = 2
AGE: Final = 3

REPEAT_GAP_S: Final = 60.0
OFF: Final = 1 << 62  # a threshold that nothing reaches


class Alert:
    """A threshold was reached, or with is_over the value has fallen to the lower one again. kind:
    "count" (messages), "size", "depth" (bytes) or "age" (ms)."""

    __slots__ = ("is_over", "kind", "queue", "threshold", "value")

    def __init__(
        self, queue: str, kind: str, value: int, threshold: int, *, is_over: bool = False
    ) -> None:
        self.queue: str = queue
        self.kind: str = kind
        self.value: int = value
        self.threshold: int = threshold
        self.is_over: bool = is_over

    def text(self) -> str:
        """Return one line, such as: queue 'orders': depth is 12 MiB, the alert threshold is
        10 MiB."""
        value, threshold = _as_text(self.kind, self.value), _as_text(self.kind, self.threshold)
        if self.is_over:
            end = f"below the alert threshold of {threshold} again"
            return f"queue {self.queue!r}: {self.kind} is {value}, {end}"
        return f"queue {self.queue!r}: {self.kind} is {value}, the alert threshold is {threshold}"


class Thresholds:
    """The thresholds of a queue per kind: `up` (0: off) and `down` (-1: half of up).

    count in messages, size and depth in bytes, age in ms; repeat_gap_s in seconds, 0 to repeat at
    every check. Raises OptionError, with the name of the argument, if a number is negative or a
    `down` is not below its `up`, or is set without one.
    """

    def __init__(
        self,
        *,
        count_up: int = 0,
        count_down: int = -1,
        size_up: int = 0,
        size_down: int = -1,
        depth_up: int = 0,
        depth_down: int = -1,
        age_up: int = 0,
        age_down: int = -1,
        repeat_gap_s: float = REPEAT_GAP_S,
    ) -> None:
        if not 0 <= repeat_gap_s < float("inf"):
            raise OptionError("alert_repeat_gap", repeat_gap_s, "0 seconds or more")
        self.repeat_gap_s: float = repeat_gap_s
        self.ups: list[int] = [count_up, size_up, depth_up, age_up]
        self.downs: list[int] = [count_down, size_down, depth_down, age_down]
        for i, kind in enumerate(KINDS):
            up, down = self.ups[i], self.downs[i]
            if up < 0:
                raise OptionError(f"alert_{kind}_up", up, "at least 1, or 0 for no alert")
            if down >= 0 and up == 0:
                raise OptionError(f"alert_{kind}_down", down, f"alert_{kind}_up to be set too")
            if down < -1 or down >= max(up, 1):
                raise OptionError(f"alert_{kind}_down", down, f"from 0 to below the {up} of its up")

    def all(self) -> tuple[list[int], list[int], float]:
        """Return all of them, to be compared."""
        return self.ups, self.downs, self.repeat_gap_s

    def warning(self, max_memory_bytes: int) -> str | None:
        """Return why the depth threshold is of little use with this memory limit, or None."""
        up = self.ups[DEPTH]
        if up == 0 or up < max_memory_bytes:
            return None
        return (
            f"the alert threshold for depth, {format_bytes(up)}, is not below the memory limit of"
            f" {format_bytes(max_memory_bytes)}: messages will go to disk before it fires"
        )


class Alerts:
    """The alerts of one queue. on_alert is called when one fires, on the caller's stack; on_over
    when it is armed again."""

    def __init__(
        self, queue: str, thresholds: Thresholds, on_alert: Callable[[Alert], None],
        on_over: Callable[[Alert], None] | None = None,
    ) -> None:  # fmt: skip
        self.is_set: bool = max(thresholds.ups) > 0
        self._queue: str = queue
        self._on_alert: Callable[[Alert], None] = on_alert
        self._on_over: Callable[[Alert], None] | None = on_over
        self._repeat_gap_s: float = thresholds.repeat_gap_s
        self._ups: list[int] = [up or OFF for up in thresholds.ups]
        self._downs: list[int] = []
        for kind, (up, down) in enumerate(zip(thresholds.ups, thresholds.downs, strict=True)):
            # -1 for a size: no message is that small, so only the gap arms it.
            self._downs.append(down if down >= 0 or kind == SIZE else up // 2)
        self._fired_s: list[float] = [0.0, 0.0, 0.0, 0.0]  # when each kind fired last
        self._is_armed: list[bool] = [True, True, True, True]
        self._raised: int = 0  # kinds that are not armed
        # For the comparisons of `check`.
        self._count_up: int = self._ups[COUNT]
        self._size_up: int = self._ups[SIZE]
        self._depth_up: int = self._ups[DEPTH]

    def check(self, now_s: float, count: int, depth_bytes: int, size_bytes: int = -1) -> None:
        """Check a queue of this many messages and bytes. size_bytes: of the message that has just
        arrived, -1 if none has. now_s: of a monotonic clock."""
        if (
            self._raised == 0
            and count < self._count_up
            and depth_bytes < self._depth_up
            and size_bytes < self._size_up
        ):
            return
        self._look(COUNT, now_s, count)
        self._look(DEPTH, now_s, depth_bytes)
        if size_bytes >= 0:
            self._look(SIZE, now_s, size_bytes)

    def check_age(self, now_s: float, age_ms: int) -> None:
        """Check the age of the oldest message; 0 for an empty queue."""
        self._look(AGE, now_s, age_ms)

    def raised(self) -> list[str]:
        """Return the kinds that have fired and are not armed again."""
        return [kind for i, kind in enumerate(KINDS) if not self._is_armed[i]]

    def _look(self, kind: int, now_s: float, value: int) -> None:
        if self._is_armed[kind]:
            if value >= self._ups[kind]:
                self._is_armed[kind] = False
                self._raised += 1
                self._fire(kind, now_s, value)
        elif value <= self._downs[kind]:
            self._is_armed[kind] = True
            self._raised -= 1
            if self._on_over is not None and kind != SIZE:
                over = Alert(self._queue, KINDS[kind], value, self._ups[kind], is_over=True)
                self._on_over(over)
        elif value >= self._ups[kind] and now_s - self._fired_s[kind] >= self._repeat_gap_s:
            self._fire(kind, now_s, value)

    def _fire(self, kind: int, now_s: float, value: int) -> None:
        self._fired_s[kind] = now_s
        self._on_alert(Alert(self._queue, KINDS[kind], value, self._ups[kind]))


def _as_text(kind: str, value: int) -> str:
    """Return a value as text."""
    if kind == "count":
        return str(value)
    return f"{value / 1000:.1f} s" if kind == "age" else format_bytes(value)


def thresholds_of(options: QueueOptions) -> Thresholds:
    """Return the thresholds in a queue's options."""
    return Thresholds(
        count_up=options.alert_count_up or 0, count_down=_down(options.alert_count_down),
        size_up=options.alert_size_up or 0, size_down=_down(options.alert_size_down),
        depth_up=options.alert_depth_up or 0, depth_down=_down(options.alert_depth_down),
        age_up=options.alert_age_up or 0, age_down=_down(options.alert_age_down),
        repeat_gap_s=options.alert_repeat_gap_s,
    )  # fmt: skip


def _down(value: int | None) -> int:
    return -1 if value is None else value
