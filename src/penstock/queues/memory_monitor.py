"""MemoryMonitor: divides one budget of RAM among all queues, after RabbitMQ and Qpid.

Every 2.5 s a round visits all queues. Each reports what it needs, how fast it is consumed and for
how long its messages in RAM last, and gets two limits. It obeys the smaller, or its own maximum if
that is smaller still.

1. **A share**, in bytes, of 0.9 of the budget. The rest is for what is not counted: the
   allocator's own, buffers of the log, the message that passes a limit.

       floor    an equal part of a quarter of it, if the queue needs that, so that short queues
                stay in RAM beside long ones; else what it needs, or what one publish needs (64 KiB,
                for all queues together at most a sixteenth)
       need     what all messages of a queue would take in RAM, so that it is not flowed, beyond
                its floor; nobody gets more than that before all have it
       first    of what the floors leave, half in proportion to need, half to the bytes that
                consumers take in a second, each up to its need
       then     what is left of it, in proportion to the need that is not met; or, if all is met,
                equally

   So queues that need RAM get what others do not need, long queues get more than short ones, and of
   two equally long queues the one with faster consumers gets more.
2. **A duration**, RabbitMQ's rule, for when shares do not suffice. With ratio = counted bytes /
   budget, and sum and count over the queues whose duration is finite:

       ratio infinite (no budget)     0
       ratio < 0.95, or count = 0     infinity: shares are enough
       else                           sum / count / ratio; a sum below 1e-6 is zero

* **Difference from RabbitMQ**: it sends durations from a ratio of 0.5 on, and has no shares. Its
  queues report half the time that their RAM lasts, so its rule settles at half of the budget; with
  two busy queues it used 16 % of it here. Shares achieve its purpose: a busy queue holds more than
  an idle one, and all together stay below the limit.
* **Shrinking before growing.** A round first sends the shares that became smaller, then the larger
  ones, and these only as far as there is room when each queue is counted with its share or what it
  still holds, whichever is more. Later rounds send the rest. So shares never promise more than
  there is while other queues have yet to page out.
* Changes of less than a tenth are not sent, except above the watermark.
* **A full disk**: paging out onto it cannot succeed, so after `disk_alarm(True)` no queue gets a
  duration, or a share below what it has in RAM or had as its share. It has one all the same: else
  it would read all of its backlog into RAM. The round after it is over sets them again.
* **The alarm** is on *counted* bytes, not on the process's RSS: the interpreter does not return
  memory, and publishers would be blocked for ever. It begins at the watermark and ends at 0.95 of
  it, which the shares alone reach, as they add up to 0.9 of the budget. `is_alarmed`: publishers
  are to be blocked; consumers and acks never wait for it. (With a watermark below 0.95 it ends only
  when messages leave the queues.) Queues may hold all that the other bytes leave, so when those
  grow between two rounds, the queues are to page out first, and nobody has to wait: rounds follow
  one another in a tenth of the interval, and the fourth one above the watermark is the alarm. One
  that found an eighth less of what is too much than the one before does not count: the queues page
  out faster than others fill them, and a process that gets little CPU needs time for it. It comes
  at once if the other bytes alone reach the watermark, or all bytes one and a half times it. While
  what is counted falls, rounds follow as soon, so that publishers go on as soon as they may.
* A round goes in slices: `step(until)` returns when the time is over, and the next call continues.
  With 10,000 queues no call takes more than a few ms.

**Own limits.** Queues may have memory limits of their own, which should fit the budget together. A
declare checks one more (`check_limits`). A start checks all (`queue_set.limits_beyond`), because
the budget may be smaller than before: in the order of declaration, a queue that does not fit beside
those before it does not fit at all, and smaller ones after it still may.
"""

from collections.abc import Callable
from typing import Final

from penstock.clock import Clock, until_next
from penstock.errors import OptionError
from penstock.options import format_bytes
from penstock.queues.backing_queue import UNLIMITED, BackingQueue, QueueStates
from penstock.queues.queue_ram import ALPHA_BYTES, INFINITY

INTERVAL_S: Final = 2.5
DURATION_RATIO: Final = 0.95  # from it on durations are sent
SUM_S_MIN: Final = 1e-6
SHARED_PART: Final = 0.9  # of the budget, that is divided into shares
EQUAL_SHIFT: Final = 2  # all floors take at most a quarter of what is divided
EMPTY_SHIFT: Final = 4  # those of empty queues a sixteenth
LEAST_SHIFT: Final = 3  # of the shares, that is divided whatever the process takes
SPARE_BYTES: Final = 64 << 10  # what one publish needs, and a queue besides what it holds
CALM_PART: Final = 0.95  # of the watermark, at which an alarm ends
CHANGE_PART: Final = 0.1  # smaller changes are not sent
WARN_PART: Final = 0.8  # of the budget, that the queues' own maxima may take without a warning
SLICE_S: Final = 0.001
ROUNDS_OVER: Final = 4  # above the watermark, one after the other: the queues do not page out
FALLS_SHIFT: Final = 3  # what is too much falls by an eighth: the queues do page out
SOON_SHIFT: Final = 1  # half as much again as the watermark is too much to wait for that
LOOK_EVERY: Final = 16  # queues between two looks at the clock

# Where a round is.
RESTING: Final = 0
COLLECTING: Final = 1
LEVELLING: Final = 2
SHRINKING: Final = 3
GROWING: Final = 4


class ManagedQueue:
    """A queue and the monitor's numbers about it. All bytes are of the current or last round."""

    def __init__(self, queue: BackingQueue, own_max_bytes: int, *, is_delayed: bool) -> None:
        self.queue: BackingQueue = queue
        self.is_delayed: bool = is_delayed  # its messages are not due yet
        self.own_max_bytes: int = own_max_bytes  # UNLIMITED: it has none
        self.is_registered: bool = True
        self.ram_bytes: int = 0
        self.floor_bytes: int = 0  # that it gets in any case
        self.need_bytes: int = 0  # beyond its floor, so that all its messages would be in RAM
        self.out_bytes_per_s: float = 0.0  # that its consumers take
        self.first_bytes: int = 0  # of its need, what the first dealing gave
        self.duration_sent: float = INFINITY
        self.share_sent: int = UNLIMITED
        self.share_wanted: int = 0


class MemoryMonitor:
    """Divides `budget_bytes` among the queues that are registered.

    watermark: the part of the budget at which counted bytes raise the alarm, above 0 and at most 1.
    on_event(kind, text): called for "memory_alarm" and "memory_free". Raises OptionError if a value
    is out of range.
    """

    def __init__(
        self,
        budget_bytes: int,
        clock: Clock,
        *,
        watermark: float = 1.0,
        on_event: Callable[[str, str], None] | None = None,
    ) -> None:
        if budget_bytes < 0:
            raise OptionError("memory", budget_bytes, "at least 0 bytes")
        if not 0 < watermark <= 1:
            raise OptionError("memory_high_watermark", watermark, "more than 0 and at most 1.0")
        self.budget_bytes: int = budget_bytes
        self.watermark_bytes: int = int(budget_bytes * watermark)
        self.other_bytes: int = 0  # counted, but of no queue: the owner's buffers, set by the owner
        self.excess_bytes: int = 0  # that the queues are to give back beside these
        self.counted_bytes: int = 0  # of all queues and `other_bytes`, as of the last round
        self.desired_s: float = INFINITY  # the duration that was computed last
        self.is_alarmed: bool = False
        self.is_disk_full: bool = False
        self.rounds: int = 0  # rounds that were finished
        self._clock: Clock = clock
        self._on_event: Callable[[str, str], None] | None = on_event
        self._managed: dict[int, ManagedQueue] = {}  # by id() of the queue
        self._sent_sum: int = 0  # bytes of all shares that are not unlimited
        self._due_s: float = clock.monotonic()
        self._begun_s: float = self._due_s - INTERVAL_S  # when the last round began
        # That found more than the watermark and did not fall, without one below it in between.
        self._rounds_over: int = 0
        # The round under way.
        self._phase: int = RESTING
        self._order: list[ManagedQueue] = []
        self._next: int = 0
        self._ram_sum: int = 0
        self._floor_bytes_max: int = 0
        self._floor_bytes_min: int = 0
        self._rest_bytes: int = 0  # what is divided beyond the floors
        self._need_sum: int = 0
        self._out_sum: float = 0.0
        self._unmet_sum: int = 0  # of needs, after the first dealing
        self._left_bytes: int = 0  # of the rest, likewise
        self._duration_sum: float = 0.0
        self._duration_count: int = 0
        # Of all queues as of the last round, and of those in which messages are not due yet; and
        # what the present round has counted so far.
        self.states: QueueStates = QueueStates()
        self.delayed: QueueStates = QueueStates()
        self._states: QueueStates = QueueStates()
        self._delayed: QueueStates = QueueStates()
        self._committed_sum: int = 0  # of max(share, RAM) of the queues, before any grows
        self._growth_sum: int = 0  # bytes that the growing ones want in addition
        self._growth_part: float = 0.0  # of what they want, that there is room for

    # ---- queues --------------------------------------------------------------------------------

    def register(
        self, queue: BackingQueue, max_bytes: int = UNLIMITED, *, is_delayed: bool = False
    ) -> None:
        """Manage this queue, whose own limit is `max_bytes`. At once it gets an average share as
        far as there is room, and SPARE_BYTES in any case, which is too little to matter when many
        queues come at once; a round follows soon. A second call changes the limit. is_delayed:
        what it holds is not due yet."""
        known = self._managed.get(id(queue))
        if known is not None:
            known.own_max_bytes = max_bytes
            return
        managed = ManagedQueue(queue, max_bytes, is_delayed=is_delayed)
        self._managed[id(queue)] = managed
        even = self._shared_bytes() // len(self._managed)
        free = self._shared_bytes() - self._sent_sum
        self._send(managed, INFINITY, max(min(even, free), min(even, SPARE_BYTES)))
        soon_s = max(self._clock.monotonic(), self._begun_s + INTERVAL_S / 10)
        self._due_s = min(self._due_s, soon_s)

    def unregister(self, queue: BackingQueue) -> None:
        """Stop managing a queue; its limits stay as they are. Unknown queues are ignored."""
        managed = self._managed.pop(id(queue), None)
        if managed is not None:
            managed.is_registered = False
            if managed.share_sent < UNLIMITED:
                self._sent_sum -= managed.share_sent

    def check_limits(
        self, new_max_bytes: int, *, strict: bool = False, others_bytes: int = 0
    ) -> str | None:
        """Check that the queues' own limits and this one fit the budget. others_bytes: limits of
        queues that are not registered.

        Return None if they do (80 % at most; UNLIMITED is no limit), else a warning. With `strict`,
        raise OptionError if they exceed the budget.
        """
        if new_max_bytes >= UNLIMITED:
            return None
        total = new_max_bytes + others_bytes
        for managed in self._managed.values():
            if managed.own_max_bytes < UNLIMITED:
                total += managed.own_max_bytes
        if strict and total > self.budget_bytes:
            left = max(0, self.budget_bytes - total + new_max_bytes)
            expected = limit_expected(left, self.budget_bytes)
            raise OptionError("max_memory", format_bytes(new_max_bytes), expected)
        return limits_text(total, self.budget_bytes)

    # ---- rounds --------------------------------------------------------------------------------

    def tick(self, now_s: float) -> bool:
        """Begin a round if one is due, and continue it for at most 1 ms. now_s: of the monotonic
        clock. Return True while the round is not finished: call `step` when there is time, or tick
        again."""
        if self._phase == RESTING:
            if now_s < self._due_s:
                return False
            self._begun_s = now_s
            self._due_s = now_s + until_next(now_s, INTERVAL_S)
            self._begin()
        return self.step(now_s + SLICE_S)

    def step(self, until_s: float) -> bool:
        """Continue the round until the monotonic clock shows `until_s`, by at least a few queues.
        Return True if it is not finished."""
        while self._phase != RESTING:
            if self._next == len(self._order):
                self._next = 0
                self._end_phase()
                continue
            managed = self._order[self._next]
            self._next += 1
            if managed.is_registered:
                self._visit(managed)
            if self._next % LOOK_EVERY == 0 and self._clock.monotonic() >= until_s:
                return self._phase != RESTING
        return False

    def disk_alarm(self, is_full: bool) -> None:
        """Let queues keep what they have in RAM, because the disk is full; or start a round,
        because it is not."""
        if is_full == self.is_disk_full:
            return
        self.is_disk_full = is_full
        self._due_s = self._clock.monotonic()
        self._phase = RESTING
        if is_full:
            self.desired_s = INFINITY
            for managed in self._managed.values():
                self._send(managed, INFINITY, managed.share_sent)

    def set_excess(self, excess_bytes: int) -> None:
        """Share so much less, because the process takes more RAM than is counted, but an eighth of
        it at least; a round follows at once if that is more than before."""
        if excess_bytes > self.excess_bytes:
            self._due_s = self._clock.monotonic()
        self.excess_bytes = excess_bytes

    def info(self) -> dict[str, int | float]:
        """Return counters of the last round: budget_bytes, watermark_bytes, counted_bytes,
        other_bytes, ratio, desired_s (seconds, infinity for none), is_alarmed, is_disk_full,
        queues, rounds."""
        return {
            "budget_bytes": self.budget_bytes,
            "watermark_bytes": self.watermark_bytes,
            "counted_bytes": self.counted_bytes,
            "other_bytes": self.other_bytes,
            "ratio": self._ratio(),
            "desired_s": self.desired_s,
            "is_alarmed": int(self.is_alarmed),
            "is_disk_full": int(self.is_disk_full),
            "queues": len(self._managed),
            "rounds": self.rounds,
        }

    # ---- one round -----------------------------------------------------------------------------

    def _begin(self) -> None:
        self._phase = COLLECTING
        self._order = list(self._managed.values())
        self._next = 0
        self._ram_sum = self._need_sum = self._unmet_sum = 0
        self._out_sum = 0.0
        shared = self._shared_bytes()
        queues = max(len(self._order), 1)
        self._floor_bytes_max = (shared >> EQUAL_SHIFT) // queues
        self._floor_bytes_min = min((shared >> EMPTY_SHIFT) // queues, SPARE_BYTES)
        self._rest_bytes = shared
        self._duration_sum = 0.0
        self._duration_count = 0
        self._states = QueueStates()
        self._delayed = QueueStates()

    def _visit(self, managed: ManagedQueue) -> None:
        if self._phase == COLLECTING:
            self._collect(managed)
        elif self._phase == LEVELLING:
            self._level(managed)
        elif self._phase == SHRINKING:
            self._shrink(managed)
        else:
            self._grow(managed)

    def _end_phase(self) -> None:
        if self._phase == COLLECTING:
            self._judge()
            self._left_bytes = self._rest_bytes
            self._phase = LEVELLING
        elif self._phase == LEVELLING:
            self._committed_sum = self._growth_sum = 0
            self._phase = SHRINKING
        elif self._phase == SHRINKING:
            room = max(0, self._shared_bytes() - self._committed_sum)
            wanted = self._growth_sum
            self._growth_part = 1.0 if wanted <= room else room / wanted
            self._phase = GROWING
        else:
            self._phase = RESTING
            self._order = []
            self.rounds += 1

    def _collect(self, managed: ManagedQueue) -> None:
        queue = managed.queue
        queue.add_states(self._delayed if managed.is_delayed else self._states)
        duration_s = queue.ram_duration()
        if duration_s != INFINITY:
            self._duration_sum += duration_s
            self._duration_count += 1
        managed.ram_bytes = queue.ram_bytes()
        needed = min(_needed_bytes(queue, managed.ram_bytes), managed.own_max_bytes)
        floor = min(max(needed, self._floor_bytes_min), self._floor_bytes_max)
        managed.floor_bytes = floor
        managed.need_bytes = max(needed - floor, 0)
        managed.out_bytes_per_s = queue.out_bytes_per_s() if managed.need_bytes else 0.0
        self._rest_bytes -= floor
        self._ram_sum += managed.ram_bytes
        self._need_sum += managed.need_bytes
        self._out_sum += managed.out_bytes_per_s

    def _judge(self) -> None:
        """Set the duration and the alarm from what all queues reported."""
        self.states, self.delayed = self._states, self._delayed
        before = self.counted_bytes
        self.counted_bytes = self._ram_sum + self.other_bytes
        if self._duration_sum < SUM_S_MIN:
            self._duration_sum = 0.0
        self.desired_s = self._desired()
        is_over = self.counted_bytes >= self.watermark_bytes
        if not is_over:
            self._rounds_over = 0
        elif not self._rounds_over or not self._falls(before):
            self._rounds_over += 1
        if not self.is_alarmed and is_over:
            if self._must_wait():
                self.is_alarmed = True
                self._report("memory_alarm", "has reached the watermark of")
            self._due_s = min(self._due_s, self._begun_s + INTERVAL_S / 10)
        elif self.is_alarmed and self.counted_bytes <= self.watermark_bytes * CALM_PART:
            self.is_alarmed = False
            self._report("memory_free", "is below the watermark of")
        elif self.is_alarmed and self._falls(before):
            self._due_s = min(self._due_s, self._begun_s + INTERVAL_S / 10)

    def _falls(self, before: int) -> bool:
        """Return whether enough less is counted than in the round before, which found `before`."""
        over = before - self.watermark_bytes
        return before - self.counted_bytes >= max(over >> FALLS_SHIFT, 1)

    def _must_wait(self) -> bool:
        """Return whether more than the watermark is counted because the queues cannot page out, or
        not as fast as others fill the memory."""
        most = self.watermark_bytes
        return (
            self._rounds_over >= ROUNDS_OVER
            or self.other_bytes >= most
            or self.counted_bytes >= most + (most >> SOON_SHIFT)
        )

    def _desired(self) -> float:
        """Return the duration for each queue, in seconds."""
        ratio = self._ratio()
        if self.is_disk_full:
            return INFINITY
        if ratio == INFINITY:
            return 0.0
        if ratio < DURATION_RATIO or self._duration_count == 0:
            return INFINITY
        return self._duration_sum / self._duration_count / ratio

    def _level(self, managed: ManagedQueue) -> None:
        """Deal first: half by need, half by the speed of consumers."""
        need = managed.need_bytes
        half = self._rest_bytes // 2
        given = half * need // self._need_sum if need else 0
        if managed.out_bytes_per_s:
            given += int(half * (managed.out_bytes_per_s / self._out_sum))
        managed.first_bytes = min(given, need)
        self._left_bytes -= managed.first_bytes
        self._unmet_sum += need - managed.first_bytes

    def _shrink(self, managed: ManagedQueue) -> None:
        """Send limits that became smaller; add up what the other queues want."""
        wanted = self._share(managed)
        managed.share_wanted = wanted
        sent = managed.share_sent
        least = 0.0 if self._rounds_over or self.is_alarmed else CHANGE_PART
        if wanted < sent and sent - wanted >= sent * least:
            self._send(managed, managed.duration_sent, wanted)
        elif wanted - sent >= sent * CHANGE_PART:
            self._growth_sum += wanted - min(wanted, max(sent, managed.ram_bytes))
        if self.desired_s < managed.duration_sent * (1.0 - least):
            self._send(managed, self.desired_s, managed.share_sent)
        self._committed_sum += max(managed.share_sent, managed.ram_bytes)

    def _grow(self, managed: ManagedQueue) -> None:
        """Send limits that became larger, as far as there is room."""
        sent, wanted = managed.share_sent, managed.share_wanted
        share = sent
        if wanted > sent and wanted - sent >= sent * CHANGE_PART:
            share = min(wanted, max(sent, managed.ram_bytes))  # what it holds needs no room
            share += int((wanted - share) * self._growth_part)
        duration_s = managed.duration_sent
        if self.desired_s > duration_s * (1.0 + CHANGE_PART):
            duration_s = self.desired_s
        self._send(managed, duration_s, share)

    def _share(self, managed: ManagedQueue) -> int:
        """Return this queue's bytes of the budget: its floor, the first dealing, and its part of
        the rest."""
        left = max(self._left_bytes, 0)
        if self._unmet_sum <= left:
            return (
                managed.floor_bytes
                + managed.need_bytes
                + ((left - self._unmet_sum) // len(self._order))
            )
        unmet = managed.need_bytes - managed.first_bytes
        return managed.floor_bytes + managed.first_bytes + left * unmet // self._unmet_sum

    def _shared_bytes(self) -> int:
        shared = max(0, int(self.budget_bytes * SHARED_PART) - self.other_bytes)
        return max(shared - self.excess_bytes, shared >> LEAST_SHIFT)

    def _ratio(self) -> float:
        if self.budget_bytes == 0:
            return INFINITY
        return self.counted_bytes / self.budget_bytes

    def _send(self, managed: ManagedQueue, duration_s: float, share_bytes: int) -> None:
        """Send the limits that have changed; none that needs paging out while the disk is full,
        which the first of these calls may find out."""
        if self.is_disk_full:
            duration_s = INFINITY
        if duration_s != managed.duration_sent:
            managed.duration_sent = duration_s
            managed.queue.set_ram_duration_target(duration_s)
        if self.is_disk_full:
            known = managed.share_sent if managed.share_sent < UNLIMITED else 0
            share_bytes = max(share_bytes, known, managed.queue.ram_bytes())
        if share_bytes != managed.share_sent:
            if managed.share_sent < UNLIMITED:
                self._sent_sum -= managed.share_sent
            self._sent_sum += share_bytes
            managed.share_sent = share_bytes
            managed.queue.set_share(share_bytes)

    def _report(self, kind: str, verb: str) -> None:
        if self._on_event is not None:
            counted, limit = format_bytes(self.counted_bytes), format_bytes(self.watermark_bytes)
            self._on_event(kind, f"memory: {counted} counted in RAM {verb} {limit}")


def _needed_bytes(queue: BackingQueue, ram_bytes: int) -> int:
    """Return the share with which all messages would be in RAM and the queue not be flowed; 0 for
    an empty queue. Leased messages never come to RAM. Pending ones are only counted, and taken as
    large as ready ones on average. Bodies that other queues count are not needed again."""
    ready = queue.len()
    body_bytes = queue.body_bytes()
    count = queue.depth() - queue.leased_count()
    if ready:
        body_bytes = body_bytes * count // ready
    elsewhere = queue.elsewhere_bytes()
    whole = max(body_bytes + count * ALPHA_BYTES - elsewhere, ram_bytes)
    return whole * 8 // 7 + SPARE_BYTES if whole else 0


# ---- queues' own limits --------------------------------------------------------------------------


def limit_expected(left_bytes: int, budget_bytes: int) -> str:
    """Return which limit a queue may have, for an OptionError."""
    return (
        f"at most the {format_bytes(left_bytes)} that other queues leave of "
        f"{format_bytes(budget_bytes)}"
    )


def limits_text(total: int, budget_bytes: int) -> str | None:
    """Return a warning if own limits of this sum exceed 80 % of the budget, or None."""
    if total <= budget_bytes * WARN_PART:
        return None
    part = f"{100 * total / budget_bytes:.0f} % of it" if budget_bytes else "too much"
    budget = format_bytes(budget_bytes)
    return f"the queues' own memory limits come to {format_bytes(total)}, {part}: {budget}"
