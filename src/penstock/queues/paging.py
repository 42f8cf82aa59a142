"""Paging: when a VariableQueue pages, and how much: its limits, its target, and what it tells.

The target in bytes is the smallest of three: the queue's own maximum (Qpid's queueMaxMemory), its
share of the whole budget, and the bytes of the messages that last for the duration target at the
present rates (RabbitMQ's memory monitor). Counts of messages appear nowhere.

A queue that passes its target is *flowed* until all of it is back in RAM; both are told, as events
"flowed" and "recovered". The Inhaler begins when less than the minimum is in RAM (of a queue that
has no limits of its own: the low mark, seven eighths of its target), or when all of the queue would
fit below the low mark; it goes on, read after read, up to the high mark (fifteen sixteenths) or
until nothing is out. It begins when somebody consumes, and in each tick of a flowed queue, so a
queue comes back without consumers too. Between the low mark and the target nothing happens in
either direction: a load that goes up and down within that costs nothing, and one that goes beyond
it moves what is beyond it. What was read back is on disk still and is not written again.

While the engine refuses publishers for want of space nothing is paged out, nor for a second after a
page-out failed: what should go stays in RAM, and that is told once.
"""

from collections.abc import Callable
from typing import Final

from penstock.errors import SyncFailedError
from penstock.queues import inhaler, purger
from penstock.queues.backing_queue import UNLIMITED
from penstock.queues.inhaler import Inhaler
from penstock.queues.rows import ROW_BYTES
from penstock.queues.vq_state import ALPHA_BYTES, VQState, high_mark, low_mark
from penstock.storage.dump_text import queue_title

RETRY_S: Final = 1.0  # after a page-out failed
READ_AHEAD_BYTES: Final = 1 << 20  # of a queue without limits
AT_ONCE_MESSAGES: Final = 64  # read in one tick without a worker
INFINITY: Final = float("inf")


class Paging:
    """Of one queue. on_event(kind, text): flowed, recovered, page_out_failed, corruption."""

    def __init__(self, state: VQState, on_event: Callable[[str, str], None] | None) -> None:
        self._state = state
        self._on_event = on_event
        self._inhaler: Inhaler = Inhaler(state)
        self._max_bytes: int = UNLIMITED
        self._min_bytes: int = UNLIMITED
        self._share_bytes: int = UNLIMITED
        self._duration_s: float = INFINITY
        self._ram_before: int = 0
        self._pending_before: int = 0
        self._retry_at: float = -1.0
        self._has_failed: bool = False
        self._is_inhaling: bool = False  # begun, and the high mark is not reached

    # ---- limits --------------------------------------------------------------------------------

    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        """The queue's own limits."""
        if not 0 <= min_bytes <= max_bytes:
            raise ValueError(f"min {min_bytes} and max {max_bytes}: expected 0 <= min <= max")
        self._max_bytes, self._min_bytes = max_bytes, min_bytes
        self._set_target()

    def set_share(self, share_bytes: int) -> None:
        """Its share of the whole budget."""
        self._share_bytes = max(share_bytes, 0)
        self._set_target()

    def set_duration(self, seconds: float) -> None:
        """For how long what is in RAM shall last."""
        self._duration_s = seconds
        self._set_target()

    def duration(self) -> float:
        """For how long it does last; the rates are updated, and the target with them."""
        state = self._state
        state.rates.update(state.engine.clock.monotonic())
        ram, pending = state.ram_messages(), len(state.ram_pending)
        result = state.rates.duration(ram, self._ram_before, pending, self._pending_before)
        self._ram_before, self._pending_before = ram, pending
        if self._duration_s != INFINITY:
            self._set_target()
        return result

    def _set_target(self) -> None:
        state = self._state
        target = min(self._max_bytes, self._share_bytes)
        if self._duration_s != INFINITY:
            target = min(target, self._bytes_for(int(state.rates.target(self._duration_s))))
        if target < UNLIMITED and (state.q3.count or state.delta.count):
            state.is_flowed = True  # opened with a backlog
        shrinks = target < state.target_bytes
        state.target_bytes = target
        if shrinks:
            self.step(purger.SLICE_MESSAGES, purger.SLICE_BYTES)
        else:
            self.note_recovered()

    def info(self) -> dict[str, int | float | str]:
        """Its limits, UNLIMITED and infinity for none, and which of them makes it page (`paged_by`:
        "max_memory", "share", "duration", "lazy", or "" while it is not flowed)."""
        return {
            "max_bytes": self._max_bytes,
            "min_bytes": self._lowest(),
            "share_bytes": self._share_bytes,
            "duration_target_s": self._duration_s,
            "paged_by": self._reason(),
        }

    def _reason(self) -> str:
        state = self._state
        if state.is_lazy or state.becomes_lazy:
            return "lazy"
        if not state.is_flowed:
            return ""
        if state.target_bytes == self._max_bytes:
            return "max_memory"
        return "share" if state.target_bytes == self._share_bytes else "duration"

    def _bytes_for(self, messages: int) -> int:
        """What so many alphas of the queue's average take, and the rows that may stay with them."""
        state = self._state
        average = state.average_bytes()
        alphas = state.ram_messages()
        if alphas:
            average = max(average, state.alpha_bytes // alphas)
        needed = messages * average
        return needed + min(state.index.slots * ROW_BYTES, needed // 3)

    # ---- out -----------------------------------------------------------------------------------

    def step(self, messages: int, bytes_max: int) -> bool:
        """Page out so much at most, if there is a reason; True if there is more to do."""
        state = self._state
        if not purger.is_over(state):
            return False
        if self._is_resting():
            return False
        if not state.is_flowed and not state.becomes_lazy:
            state.is_flowed = True
            self.tell("flowed", f"{state.ram_bytes()} bytes in RAM, {state.target_bytes} allowed")
        try:
            more = purger.step(state, messages, bytes_max)
        except (OSError, SyncFailedError) as error:
            self.failed(error)
            return False
        self._retry_at = -1.0
        self._has_failed = False
        inhaler.settle(state, purger.load_rows(state))
        return more

    def failed(self, error: OSError | SyncFailedError) -> None:
        """A page-out failed: what should have gone stays in RAM for now; a sync in it: the engine
        stops [10]."""
        if isinstance(error, SyncFailedError):
            self._state.engine.stop(error)
            return
        self._retry_at = self._state.engine.clock.monotonic() + RETRY_S
        if not self._has_failed:
            self._has_failed = True
            self.tell("page_out_failed", f"messages stay in RAM: {error}")

    def note_recovered(self) -> None:
        """The queue is not flowed any more once nothing of it is out."""
        state = self._state
        if (
            state.is_flowed
            and not state.q3.count
            and not state.delta.count
            and not state.disk_pending.count
            and not state.back_rows.count
            and state.ram_bytes() <= state.target_bytes
        ):
            state.is_flowed = False
            self.tell("recovered", f"{state.len} messages, all in RAM")

    def room_for(self, run_bytes: int) -> int:
        """Bytes free below the target, for a read of that many; pending messages make room."""
        state = self._state
        room = state.target_bytes - state.ram_bytes()
        if room < run_bytes and state.ram_pending and not self._is_resting():
            try:
                purger.make_room(state, run_bytes)
            except (OSError, SyncFailedError) as error:
                self.failed(error)
            room = state.target_bytes - state.ram_bytes()
        return max(room, 0)

    def _is_resting(self) -> bool:
        """Nothing is paged out while the disk is full, nor right after it failed."""
        engine = self._state.engine
        return engine.blocked or (
            self._retry_at >= 0.0 and engine.clock.monotonic() < self._retry_at
        )

    # ---- in ------------------------------------------------------------------------------------

    def inhale(self, *, at_rest: bool = False) -> bool:
        """Submit a read if there is a reason; True while one is under way. at_rest: nobody has
        consumed just now, so only a flowed queue reads."""
        state = self._state
        if self._inhaler.is_reading:
            return True
        if not state.q3.count or (at_rest and not state.is_flowed):
            self._is_inhaling = False
            return False
        if not self._is_inhaling:
            is_low = state.ram_bytes() < self._lowest()
            self._is_inhaling = is_low or (state.is_flowed and state.fits())
        if self._is_inhaling:
            self._is_inhaling = self._read_on()
        return self._is_inhaling

    def _read_on(self) -> bool:
        """Submit the next read, if there is room and anything to read."""
        state = self._state
        if state.is_lazy or state.becomes_lazy or state.engine.failed is not None:
            return False
        target = state.target_bytes
        highest = READ_AHEAD_BYTES if target >= UNLIMITED else high_mark(target)
        room = highest - state.ram_bytes()
        if room <= 0:
            return False
        rows_max = purger.segment_rows(state)
        try:
            if self._inhaler.begin(room, rows_max, self._arrived, self._not_read):
                return True
            self._read_at_once(room)
        except OSError as problem:
            self._not_read(f"reading ahead failed: {problem}")
        return False

    def _read_at_once(self, room: int) -> None:
        """A run of what no worker reads, bodies in the store and sections of the checkpoint, as a
        fetch would; once in a tick, and only of a queue that comes back whole."""
        state = self._state
        if not state.is_flowed or not state.q3.count or not state.fits():
            return
        if state.q3.first().size + ALPHA_BYTES > room:
            return
        inhaler.betas_to_alphas(state, min(room, inhaler.RUN_BYTES_MAX), AT_ONCE_MESSAGES)
        inhaler.settle(state, purger.load_rows(state))
        self.tell_set_aside()
        self.note_recovered()

    def _arrived(self) -> None:
        self.note_recovered()
        if self._is_inhaling:
            self._is_inhaling = self._read_on()

    def _not_read(self, text: str) -> None:
        self._is_inhaling = False
        self.tell("page_in_failed", text)

    def _lowest(self) -> int:
        target = self._state.target_bytes
        if target >= UNLIMITED:
            return READ_AHEAD_BYTES
        return min(self._min_bytes, low_mark(target))

    # ---- telling -------------------------------------------------------------------------------

    def tell(self, kind: str, text: str) -> None:
        """An event, for people; the text begins with the queue."""
        if self._on_event is not None:
            index = self._state.index
            self._on_event(kind, f"queue {queue_title(index.name)!r}: {text}")

    def tell_set_aside(self) -> None:
        """Messages were found damaged since the last time."""
        events = self._state.set_aside_events
        if events:
            self._state.set_aside_events = []
            for text in events:
                self.tell("corruption", text)
            self.note_recovered()  # they may have been the last that were out
