"""QueueClock: what the clock demands of queues: due messages, paging, queues that nobody uses.

A tick looks at the queues that were touched since the last one, and at those of which something is
due by now: the expiry of a head, a delayed message, an alert on age. It looks at no others, so ten
thousand idle queues cost nothing. When something of a queue is due next is asked after each look at
it, and kept in a heap; what is kept may be too early, and then nothing happens.

x-expires: a queue goes once nobody has used it for so many ms: no consumer, no get, no declare, no
messages leased. The time counts from the start of the vhost for a queue that nobody has named
since. Such a queue is not opened for that: its name stands in a heap, and it is looked at when its
time may have come.

`call_at` is for operators' calls that wait; it calls once.

An error in a queue's own code is passed to `on_queue_error`, one in a call or in deleting a queue
that nobody uses to `dispatch.mistake`, and the tick goes on with the others. Such a queue is tried
again after its time. A failure of the engine is nobody's, and goes up.
"""

import heapq
from collections.abc import Callable
from typing import Final

from penstock.broker.arguments import EXPIRES
from penstock.broker.dispatch import Dispatch
from penstock.broker.queue_table import QueueTable
from penstock.broker.roles import Source
from penstock.broker.served_queue import ServedQueue
from penstock.errors import is_disk_full
from penstock.queues.amq_queue import AGE_CHECK_MS
from penstock.storage.engine import StorageEngine

SLICE: Final = 1000  # queues that one tick looks at
EXPIRIES_SLICE: Final = 100  # unused queues that one tick deletes

QueueError = Callable[[ServedQueue, Exception], None]


class QueueClock:
    """Of one vhost. on_queue_error(queue, error): see the head."""

    def __init__(
        self, engine: StorageEngine, table: QueueTable, dispatch: Dispatch,
        on_queue_error: QueueError,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._clock = engine.clock
        self._table = table
        self._dispatch = dispatch
        self._on_queue_error = on_queue_error
        self._n: int = 0  # so that heaps never compare what they hold
        self._due: list[tuple[int, int, ServedQueue]] = []  # (wall ms, n, queue)
        self._expiries: list[tuple[int, int, str, int]] = []  # (wall ms, n, name, expires ms)
        self._calls: list[tuple[float, int, Callable[[], None]]] = []  # (monotonic s, n, call)

    # ---- what is to be looked at ---------------------------------------------------------------

    def touch(self, queue: ServedQueue) -> None:
        """Something happened in this queue: the next tick looks at it."""
        if not queue.is_touched:
            queue.is_touched = True
            self._dispatch.touched.append(queue)

    def call_at(self, monotonic_s: float, call: Callable[[], None]) -> None:
        """Call it in the first tick at or after this time of the monotonic clock."""
        self._n += 1
        heapq.heappush(self._calls, (monotonic_s, self._n, call))

    def expire_unused(self, name: str, arguments: dict[str, object]) -> None:
        """The queue of this name goes when nobody uses it, if its x-expires says so."""
        expires_ms = arguments.get(EXPIRES)
        if isinstance(expires_ms, int) and expires_ms > 0:
            self._push_expiry(self._clock.wall_ms() + expires_ms, name, expires_ms)

    def _push_expiry(self, when_ms: int, name: str, expires_ms: int) -> None:
        self._n += 1
        heapq.heappush(self._expiries, (when_ms, self._n, name, expires_ms))

    def note_due(self, queue: ServedQueue) -> None:
        """Remember when something of this queue is due next."""
        amq = queue.amq
        when = amq.next_event_ms()
        if amq.options.alert_age_up is not None and amq.len():
            soon = self._clock.wall_ms() + AGE_CHECK_MS
            when = min(when, soon) if when else soon
        if when and not 0 < queue.due_ms <= when:
            self._n += 1
            queue.due_ms = when
            heapq.heappush(self._due, (when, self._n, queue))

    # ---- a tick --------------------------------------------------------------------------------

    def tick(self, wall_ms: int, now_s: float) -> bool:
        """All that is due at these times, a slice of it; True if there is more to do at once."""
        while self._calls and self._calls[0][0] <= now_s:
            call = heapq.heappop(self._calls)[2]
            try:
                call()
            except Exception as error:  # noqa: BLE001 - it is reported
                self._dispatch.mistake("a call that was due", error)
        has_more = self._tick_queues(wall_ms)
        return self._tick_expiries(wall_ms) or has_more

    def _tick_queues(self, wall_ms: int) -> bool:
        touched: list[Source] = self._dispatch.take_touched(SLICE)
        queues = [source for source in touched if isinstance(source, ServedQueue)]
        while self._due and self._due[0][0] <= wall_ms and len(queues) < 2 * SLICE:
            queue = heapq.heappop(self._due)[2]
            queue.due_ms = 0
            queues.append(queue)
        has_more = bool(self._dispatch.touched)
        for queue in queues:
            if queue.is_deleted or queue.is_crashed:
                continue
            try:
                if self._tick_queue(queue, wall_ms):
                    has_more = True
            except Exception as error:
                if self._engine.failed is not None:
                    raise
                if is_disk_full(error):
                    self._dispatch.without_space(queue)
                else:
                    self._on_queue_error(queue, error)
        return has_more

    def _tick_queue(self, queue: ServedQueue, wall_ms: int) -> bool:
        amq = queue.amq
        if amq.tick(wall_ms):
            self.touch(queue)
            return True
        self.note_due(queue)
        return False

    def _tick_expiries(self, wall_ms: int) -> bool:
        """Queues that nobody uses go."""
        heap = self._expiries
        for _ in range(EXPIRIES_SLICE):
            if not heap or heap[0][0] > wall_ms:
                return False
            _, _, name, expires_ms = heapq.heappop(heap)
            when_ms = self._expiry_of(name, expires_ms, wall_ms)
            if when_ms > wall_ms:
                self._push_expiry(when_ms, name, expires_ms)
            elif when_ms:
                self._expire(name, wall_ms + expires_ms, expires_ms)
        return bool(heap) and heap[0][0] <= wall_ms

    def _expire(self, name: str, again_ms: int, expires_ms: int) -> None:
        """Nobody has used it: it goes. again_ms: when it is tried again if it cannot."""
        try:
            queue = self._table.find(name)
            if queue is not None:
                self._table.delete(queue)
        except Exception as error:  # noqa: BLE001 - it is reported
            self._dispatch.mistake(f"queue {name!r}, which expired", error)
            self._push_expiry(again_ms, name, expires_ms)

    def _expiry_of(self, name: str, expires_ms: int, wall_ms: int) -> int:
        """When the queue goes unless it is used before; 0: it is another one, or none."""
        queue = self._table.served.get(name)
        if self._table.open_leases(name):
            return wall_ms + expires_ms
        if queue is None:
            return self._table.start_ms + expires_ms if name in self._table.stored else 0
        if queue.arguments.get(EXPIRES) != expires_ms:
            return 0
        if queue.consumers.count or queue.waiters:
            return wall_ms + expires_ms
        return queue.used_at_ms + expires_ms

    # ---- when next -----------------------------------------------------------------------------

    def next_s(self, wall_ms: int, now_s: float) -> float:
        """Seconds until something is due; infinity if nothing is."""
        seconds = float("inf")
        if self._due:
            seconds = (self._due[0][0] - wall_ms) / 1000
        if self._expiries:
            seconds = min(seconds, (self._expiries[0][0] - wall_ms) / 1000)
        if self._calls:
            seconds = min(seconds, self._calls[0][0] - now_s)
        return max(seconds, 0.0)
