"""Rates: how fast messages come into a queue and leave it, and for how long its RAM lasts at that.

The memory monitor does not tell a queue how many bytes it may hold but *for how long* what it holds
shall last; so a busy queue keeps more in RAM than an idle one, and a flooded queue is not made to
write to disk what it will deliver in a moment. That needs four rates: messages in, messages out,
messages that become pending, messages that are acked. Ingress counts on purpose: it keeps a flooded
queue responsive (the essay at the head of rabbit_variable_queue).

* A rate is an exponential moving average with a half-life of 5 s: after dt seconds in which `n`
  events were seen, `rate = n / dt * (1 - w) + rate * w` with `w = 0.5 ** (dt / 5)`. So the result
  does not depend on how often it is updated, as long as events come evenly.
* The hot path adds one to a plain integer and nothing else: `rates.n_in += 1`. `update` folds the
  integers in and sets them to zero. It ignores a dt below 1 ms (a clock that stands still, two
  reports in a row): the events stay counted for the next time.
* `duration` is (counts now + counts before) / (4 x sum of the rates), as RabbitMQ has it: half of
  the average count by the sum of the rates. A queue that is told the very duration that it reported
  thus halves itself, which is wanted: the monitor tells queues to shrink before there is no more
  room. RabbitMQ lost the "before" of the formula in 3.3.0 (it is always zero there); here the
  caller keeps the counts of its last report.
* `target` is duration x sum of the rates: how many messages last for that long.

Below 0.01 events a second in all four, a queue is idle and what it holds lasts for ever.

Not here: when a report is due and what becomes of it (memory_monitor), what a queue does with a
target (paging).
"""

from typing import Final

HALF_LIFE_S: Final = 5.0
IDLE_PER_S: Final = 0.01
UPDATE_S_MIN: Final = 0.001
INFINITY: Final = float("inf")


class Rates:
    """Four moving averages, in events per second: `in_`, `out`, `ack_in`, `ack_out`.

    now_s: seconds of a monotonic clock at which the first sampling period begins.
    """

    def __init__(self, now_s: float) -> None:
        self.n_in: int = 0  # messages published or requeued since the last update
        self.n_out: int = 0  # messages fetched or dropped since the last update
        self.n_ack_in: int = 0  # messages that became pending since the last update
        self.n_ack_out: int = 0  # messages that were acked or requeued since the last update
        self.in_: float = 0.0
        self.out: float = 0.0
        self.ack_in: float = 0.0
        self.ack_out: float = 0.0
        self._updated_s: float = now_s

    def update(self, now_s: float) -> None:
        """Fold in what was counted since the last time; nothing if that was less than 1 ms ago."""
        dt_s = now_s - self._updated_s
        if dt_s < UPDATE_S_MIN:
            return
        w = _weight(dt_s)
        fresh = (1.0 - w) / dt_s
        self.in_ = self.n_in * fresh + self.in_ * w
        self.out = self.n_out * fresh + self.out * w
        self.ack_in = self.n_ack_in * fresh + self.ack_in * w
        self.ack_out = self.n_ack_out * fresh + self.ack_out * w
        self.n_in = self.n_out = self.n_ack_in = self.n_ack_out = 0
        self._updated_s = now_s

    def sum(self) -> float:
        """All four rates together, in events per second."""
        return self.in_ + self.out + self.ack_in + self.ack_out

    def is_idle(self) -> bool:
        """No rate is above 0.01 events per second."""
        return (
            self.in_ < IDLE_PER_S
            and self.out < IDLE_PER_S
            and self.ack_in < IDLE_PER_S
            and self.ack_out < IDLE_PER_S
        )

    def duration(self, ram_now: int, ram_prev: int, ack_now: int, ack_prev: int) -> float:
        """For how many seconds what is in RAM lasts; infinity for an idle queue.

        ram_now, ram_prev: ready messages in RAM now and at the last report. ack_now, ack_prev:
        pending messages in RAM, likewise.
        """
        if self.is_idle():
            return INFINITY
        return (ram_now + ram_prev + ack_now + ack_prev) / (4.0 * self.sum())

    def target(self, duration_s: float) -> float:
        """How many messages last for that long: a whole number, or infinity for an infinite
        duration."""
        if duration_s == INFINITY:
            return INFINITY
        return float(int(duration_s * self.sum()))


def _weight(dt_s: float) -> float:
    """What of an old rate is left after dt_s seconds: 1 at once, 0.5 after a half-life."""
    weight: float = 0.5 ** (dt_s / HALF_LIFE_S)
    return weight
