"""Rates: how fast counters and lengths have changed in the last 5 s, and samples of them.

A tick each INTERVAL_S asks the sources for what may have changed since the tick before, in slices,
and keeps the values; nobody computes anything per message. A rate is the difference of two ticks by
the time between them, and 0 for what did not change: RabbitMQ's `*_details.rate`. A queue is
noticed once per tick of its QueueSet (Dispatch.changed), however many messages passed.

    RateSource  what may have changed of one kind: names and values, which are counters, which only
                grow, and lengths
    samples     the values at the last ticks. Of the vhost's totals always; of another thing from
                when somebody asks for them, for WATCHED_MAX things at most, and until nobody has
                asked for FORGET_S
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.broker.background_tasks import AGAIN, ASLEEP, BackgroundTask
from penstock.clock import Clock

INTERVAL_S: Final = 5.0
SLICE: Final = 128  # things in one step
SWEEP_TICKS: Final = 12  # between two looks for things that are gone
SAMPLES: Final = 720  # an hour
WATCHED_MAX: Final = 100
FORGET_S: Final = 120.0
LENGTHS: Final = frozenset({"messages", "messages_ready", "messages_unacknowledged"})

QUEUE: Final = "queue"
TOTALS: Final = "totals"

Key = tuple[str, str]  # kind and name
VHOST: Final[Key] = (TOTALS, "")
Values = Mapping[str, int]
Info = dict[str, object]


class RateSource(ABC):
    """Where the values of one kind of things come from."""

    kind: str

    @abstractmethod
    def changed(self) -> Iterable[tuple[str, Values] | None]:
        """Yield names and values of what may have changed since the last call. None: others may
        have their turn."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Return whether there is the thing still."""


@dataclass(slots=True, eq=False)
class _Known:
    """The values of one thing at the tick at `time_s`, and its rates then, those that are not 0.
    changed_s: the last tick that had such rates, 0 if none had."""

    values: Values
    rates: Mapping[str, float]
    time_s: float
    changed_s: float


class _Watched:
    """The samples of one thing, the oldest first: (ms since 1970, values)."""

    __slots__ = ("asked_s", "samples")

    def __init__(self) -> None:
        self.asked_s: float = 0.0
        self.samples: deque[tuple[int, Values]] = deque(maxlen=SAMPLES)


class RateTable(BackgroundTask):
    """The rates of one vhost. wake(task): has its `step` called, as long as it returns AGAIN."""

    def __init__(self, clock: Clock, wake: Callable[[BackgroundTask], None]) -> None:
        self._sources: list[RateSource] = []
        self._clock = clock
        self._wake = wake
        self._known: dict[Key, _Known] = {}
        # What has rates that are not 0, by kind and name: of this tick; and of the tick before,
        # while this one has not come to it.
        self._moving: dict[str, dict[str, Mapping[str, float]]] = {}
        self._moving_before: dict[str, dict[str, Mapping[str, float]]] = {}
        self._watched: dict[Key, _Watched] = {VHOST: _Watched()}
        self._ticks: int = 0
        self._tick_s: float = clock.monotonic()
        self._before_s: float = self._tick_s  # the tick before
        self._left: Iterator[None] | None = None

    def add(self, source: RateSource) -> None:
        """Add a source, which is asked at each tick."""
        self._sources.append(source)

    # ---- ticks ---------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Begin to ask the sources if it is time."""
        if now_s < self._tick_s + INTERVAL_S or self._left is not None:
            return
        self._before_s, self._tick_s = self._tick_s, now_s
        self._ticks += 1
        self._moving_before, self._moving = self._moving, {}
        self._left = self._tick()
        self._wake(self)

    def step(self) -> int:
        if self._left is None:
            return ASLEEP
        for _ in self._left:
            return AGAIN
        self._left = None
        self._moving_before = {}
        return ASLEEP

    def failed(self, error: Exception) -> None:
        self._left = None
        raise error

    def _tick(self) -> Iterator[None]:
        n = 0
        for source in self._sources:
            for found in source.changed():
                if found is not None:
                    self._note((source.kind, found[0]), found[1])
                    n += 1
                if found is None or n % SLICE == 0:
                    yield
        self._sample()
        if self._ticks % SWEEP_TICKS == 0:
            yield from self._sweep()

    def _note(self, key: Key, values: Values) -> None:
        known = self._known.get(key)
        before: Values = {} if known is None else known.values
        since_s = self._before_s if known is None else max(known.time_s, self._before_s)
        rates: dict[str, float] = {}
        for name, value in values.items():
            delta = value - before.get(name, value if name in LENGTHS else 0)
            if delta < 0 and name not in LENGTHS:
                delta = value  # it has begun again from 0
            if delta and self._tick_s > since_s:
                rates[name] = delta / (self._tick_s - since_s)
        changed_s = self._tick_s if rates else 0.0 if known is None else known.changed_s
        self._known[key] = _Known(values, rates, self._tick_s, changed_s)
        kind, called = key
        if kind in self._moving_before:
            self._moving_before[kind].pop(called, None)
        if rates:
            self._moving.setdefault(kind, {})[called] = rates

    def _sample(self) -> None:
        now_ms = self._clock.wall_ms()
        for key, watched in list(self._watched.items()):
            known = self._known.get(key)
            if key != VHOST and self._tick_s - watched.asked_s > FORGET_S:
                del self._watched[key]
            elif known is not None:
                watched.samples.append((now_ms, known.values))

    def _sweep(self) -> Iterator[None]:
        """Forget what is gone."""
        sources = {source.kind: source for source in self._sources}
        for n, key in enumerate(list(self._known)):
            source = sources[key[0]]
            if not source.has(key[1]):
                del self._known[key]
                self._watched.pop(key, None)
            if n % SLICE == SLICE - 1:
                yield

    # ---- what people see -----------------------------------------------------------------------

    def of(self, key: Key) -> Mapping[str, float]:
        """Return the rates by the values' names, per second; those that are 0 are left out."""
        known = self._known.get(key)
        if known is None:
            return {}
        if self._left is None:
            return known.rates if known.time_s == self._tick_s else {}
        return known.rates if known.time_s >= self._before_s else {}

    def changed_s(self, key: Key) -> float:
        """Return when a tick last found that a thing has changed (monotonic); 0 if none has."""
        known = self._known.get(key)
        return 0.0 if known is None else known.changed_s

    def moving(self, kind: str, value: str) -> Generator[None, None, dict[str, float]]:
        """Return the rates of a value of all things of a kind by their names, in slices; those that
        are 0 are left out."""
        found: dict[str, float] = {}
        for moving in (self._moving_before.get(kind, {}), self._moving.get(kind, {})):
            names = list(moving)  # a tick may go on at each yield
            for at in range(0, len(names), SLICE):
                for name in names[at : at + SLICE]:
                    rate = moving[name].get(value) if name in moving else None
                    if rate is not None:
                        found[name] = rate
                yield
        return found

    def with_rates(self, key: Key, values: Values, samples: Mapping[str, Info]) -> Info:
        """Return the values, each with NAME_details beside it, to which `samples_of` may add."""
        rates = self.of(key)
        found: Info = {}
        for name, value in values.items():
            found[name] = value
            details: Info = {"rate": round(rates[name], 3) if name in rates else 0.0}
            if samples:
                details |= samples.get(name, {})
            found[f"{name}_details"] = details
        return found

    def samples_of(self, key: Key, values: Values, age_s: int, step_s: int) -> dict[str, Info]:
        """Return of each name {samples, avg, avg_rate}: RabbitMQ's, the newest sample first, one
        for each step_s of the last age_s. The first call begins to keep them. values: those of now,
        which are the only sample of what no tick has noticed yet."""
        watched = self._watched.get(key)
        if watched is None:
            if len(self._watched) > WATCHED_MAX:
                del self._watched[min(self._watched, key=self._asked_last)]
            watched = self._watched[key] = _Watched()
            known = self._known.get(key)
            if known is not None:
                watched.samples.append((self._clock.wall_ms(), known.values))
        watched.asked_s = self._clock.monotonic()
        chosen = _chosen(watched.samples, age_s, step_s) or [(self._clock.wall_ms(), values)]
        return {name: _series(chosen, name) for name in values}

    def _asked_last(self, key: Key) -> float:
        return float("inf") if key == VHOST else self._watched[key].asked_s


def _chosen(
    samples: deque[tuple[int, Values]], age_s: int, step_s: int
) -> list[tuple[int, Values]]:
    """Return (ms, values) for each step back from the last sample, the newest first: the values
    that were known then."""
    if not samples:
        return []
    times = [time_ms for time_ms, _ in samples]
    found: list[tuple[int, Values]] = []
    for back_s in range(0, age_s + 1, max(step_s, 1)):
        time_ms = times[-1] - back_s * 1000
        at = bisect_right(times, time_ms)
        if not at or len(found) >= SAMPLES:
            break
        found.append((time_ms, samples[at - 1][1]))
    return found


def _series(chosen: list[tuple[int, Values]], name: str) -> Info:
    values = [values.get(name, 0) for _, values in chosen]
    rows = [
        {"sample": value, "timestamp": time_ms}
        for (time_ms, _), value in zip(chosen, values, strict=True)
    ]
    past_s = (chosen[0][0] - chosen[-1][0]) / 1000
    return {
        "samples": rows,
        "avg": sum(values) / len(values),
        "avg_rate": (values[0] - values[-1]) / past_s if past_s else 0.0,
    }
