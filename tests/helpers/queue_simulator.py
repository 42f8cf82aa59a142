"""Simulator: real queues under one memory budget, with publishers and consumers of given speeds.

Time is a ManualClock, a tenth of a second a step. In each, every queue is given the messages that
its publisher's rate makes and gives up those that its consumer's rate takes; then its owner does
what it does in a tick: the memory monitor, paging out, reading back. After each second `judge`
asserts what must hold then (see its docstring), and keeps what it saw in `history`.

Queues whose loads name the same `fan` get the same messages, each of them one object, at the rate
of the first of them. Bodies are small enough for the files of the queues.

Rates are functions of the time in seconds. Messages carry their number, so that one that is lost,
doubled or out of turn is found when it is consumed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from penstock.queues import paging
from penstock.queues.memory_monitor import MemoryMonitor
from penstock.queues.queue_ram import ALPHA_BYTES
from penstock.queues.variable_queue import VariableQueue
from penstock.storage.files.durability import OS
from tests.helpers.engine_rig import EngineRig
from tests.helpers.ram_count import counted_bytes, held_bytes

STEP_S: Final = 0.1
STEPS: Final = 10  # to the second
READS_MAX: Final = 1000  # in one step: more is a hang
SETTLE_S: Final = 3.0  # after its target changed a queue has so long to use what it was given

Rate = Callable[[float], float]


@dataclass
class Load:
    """What one queue has to bear. per second: messages published and consumed."""

    published: Rate
    consumed: Rate
    body_bytes: int = 100
    mode: int = OS
    policy: str = "eager"
    fan: str = ""  # loads of one fan have the same body_bytes and mode


@dataclass
class Second:
    """What a queue was like at the end of a second."""

    time_s: float
    len: int
    alphas: int
    rows: int
    delta: int
    ram_bytes: int
    target_bytes: int
    writes: int
    is_flowed: bool


@dataclass
class Simulated:
    """A queue and how far its publisher and its consumer are."""

    name: str
    queue: VariableQueue
    load: Load
    events: list[str]
    published: int = 0
    consumed: int = 0
    owed_in: float = 0.0
    owed_out: float = 0.0
    has_consumer: bool = False
    target_bytes: int = 0
    target_since_s: float = 0.0
    permitted: int = 0  # rows, the most since it was flowed
    history: list[Second] = field(default_factory=list)

    def body(self, number: int) -> bytes:
        """Of one message."""
        return (b"%d;" % number).ljust(self.load.body_bytes, b".")


def _note(events: list[str], kind: str, _: str) -> None:
    events.append(kind)


class Simulator:
    """budget_bytes: of all queues; it may be changed between two runs by `budget`."""

    def __init__(self, budget_bytes: int, loads: Sequence[Load]) -> None:
        self.rig = EngineRig(
            segment_slots=512, queue_index_embed_msgs_below=1 << 16, wal_inline_below=8192,
            transient_inline_below=8192, wal_segment_bytes_min=1 << 20,
            wal_segment_bytes_max=1 << 20,
        )  # fmt: skip
        self.monitor = MemoryMonitor(budget_bytes, self.rig.clock)
        self.queues: list[Simulated] = []
        for n, load in enumerate(loads):
            name = f"q{n}"
            events: list[str] = []
            queue = VariableQueue(
                self.rig.engine, self.rig.queue(name.encode()), mode=OS, policy=load.policy,
                on_event=partial(_note, events),
            )  # fmt: skip
            self.monitor.register(queue)
            self.queues.append(Simulated(name, queue, load, events))

    def budget(self, budget_bytes: int) -> None:
        """Another budget from now on, as when vhosts come and go."""
        self.monitor.budget_bytes = budget_bytes
        self.monitor.watermark_bytes = budget_bytes

    def run(self, seconds: int, judge: bool = True) -> None:
        """So many seconds; each is judged unless said otherwise."""
        for _ in range(seconds):
            for _ in range(STEPS):
                self._step()
            for one in self.queues:
                self._look(one)
                if judge:
                    self.judge(one)
            queues = [one.queue for one in self.queues]
            ram = counted_bytes(queues)
            assert ram == held_bytes(queues), "each body counts once, whoever holds it"
            if judge:
                assert ram <= self.monitor.budget_bytes, f"{ram} bytes of all queues"

    def drain(self) -> None:
        """Consume all that is left."""
        for one in self.queues:
            self._consume(one, one.queue.len())
            assert one.consumed == one.published, f"{one.name}: all of it was there"

    # ---- a step --------------------------------------------------------------------------------

    def _step(self) -> None:
        clock = self.rig.clock
        clock.advance(STEP_S)
        now_s = clock.monotonic()
        for one in self.queues:
            one.owed_in += one.load.published(now_s) * STEP_S
            fan = self._fan(one)
            while fan[0] is one and one.owed_in >= 1.0:
                one.owed_in -= 1.0
                targets = [each.queue.index() for each in fan]
                self.rig.engine.publish(targets, b"", one.body(one.published), one.load.mode)
                for each in fan:
                    each.published += 1
        self.rig.engine.flush()
        for one in self.queues:
            one.has_consumer = one.load.consumed(now_s) > 0
            one.owed_out += one.load.consumed(now_s) * STEP_S
            n = min(int(one.owed_out), one.queue.len())
            one.owed_out = min(one.owed_out - n, 1.0)
            if n:
                self._consume(one, n)
                one.queue.inhale()
        self.monitor.tick(now_s)
        for _ in range(READS_MAX):  # what one pages out and others hold, these count then
            before = [one.queue.ram_bytes() for one in self.queues]
            has_more = [one for one in self.queues if one.queue.resume()]
            if not has_more and before == [one.queue.ram_bytes() for one in self.queues]:
                break
        for one in self.queues:
            for _ in range(READS_MAX):
                if not one.queue.inhale(at_rest=True):
                    break
                self.rig.engine.poll(wait=True)

    def _fan(self, one: Simulated) -> list[Simulated]:
        """The queues that get what is published to this one."""
        name = one.load.fan
        return [each for each in self.queues if each.load.fan == name] if name else [one]

    def _consume(self, one: Simulated, n: int) -> None:
        for _ in range(n):
            delivery = one.queue.fetch(ack_required=False)
            while delivery is None:
                held = one.queue.held()
                assert held is not None, f"{one.name}: nothing is there, and nothing to wait for"
                self.rig.engine.wait(*held)
                delivery = one.queue.fetch(ack_required=False)
            assert delivery.message.body == one.body(one.consumed), f"{one.name}: out of turn"
            one.consumed += 1

    # ---- a second ------------------------------------------------------------------------------

    def _look(self, one: Simulated) -> None:
        info: dict[str, Any] = one.queue.info()
        now_s = self.rig.clock.monotonic()
        if info["target_bytes"] != one.target_bytes:
            one.target_bytes, one.target_since_s = info["target_bytes"], now_s
        one.history.append(
            Second(
                now_s, info["len"], info["alphas"], info["q2"] + info["q3"], info["delta"],
                info["ram_bytes"], info["target_bytes"], info["disk_writes"], info["is_flowed"],
            )
        )  # fmt: skip

    def judge(self, one: Simulated) -> None:
        """AssertionError that says what does not hold: RAM is used, where anything is on disk, to
        80 % of what is allowed, once the target has stood for SETTLE_S; no more than the target is
        used; the head is in RAM while somebody consumes; rows are no more than the ratio permits;
        nothing was written twice, nor at all if it always fitted."""
        at = one.history[-1]
        where = f"{one.name} at {at.time_s:.0f} s: {at}"
        assert at.ram_bytes <= at.target_bytes, f"too much: {where}"
        is_settled = at.time_s - one.target_since_s >= SETTLE_S
        average = ALPHA_BYTES + one.load.body_bytes
        if (at.rows or at.delta) and is_settled:  # one message more might not fit
            assert at.ram_bytes + average >= 0.8 * at.target_bytes, f"too little: {where}"
        if at.len and one.has_consumer:
            assert at.alphas, f"no head: {where}"
        state = one.queue.state
        permitted = paging.permitted_betas(
            state, at.target_bytes // average, paging.segment_rows(state)
        )
        # Rows become more by paging out alone; while a queue drains those that it has are kept.
        one.permitted = max(one.permitted, permitted) if at.is_flowed else permitted
        # That came for the runs that are read at once.
        read = paging.READS_MAX * (paging.RUN_BYTES_MAX // average + paging.FEW_ROWS)
        assert at.rows <= one.permitted + read, f"more rows than {one.permitted}: {where}"
        times = 1 if one.load.mode == OS else 2  # a transient one: its body, then its slot
        assert at.writes <= times * one.published, f"written twice: {where}"
        if "flowed" not in one.events:
            assert not at.writes, f"written for nothing: {where}"
