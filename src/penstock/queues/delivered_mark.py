"""DeliveredMark: which messages were delivered before, and which must not be delivered yet.

RabbitMQ once wrote a record for each delivery; here a queue has one number. What is below the mark
was delivered, or may have been, so it is redelivered when it comes again; messages leave in the
order of their seqs, so one number is enough. It is reserved ahead in the log, in blocks of 1,024 or
of the deliveries of the last second if they are more: the next block once half of one is used. A
first delivery beyond what is settled of it waits. So after a crash nothing that was delivered is
ever called fresh, and at most a block that was not is called redelivered; after an orderly stop,
which writes the exact number, it is exact.

Only persistent messages of durable queues have this; what is transient does not come back.

Besides the mark, messages can be held on their own account: what a transaction or a move brought is
delivered once its record is settled, and holds back what is behind it.
"""

from collections import deque
from typing import Final

from penstock.storage.engine import StorageEngine
from penstock.storage.queue_index import QueueIndex

BLOCK: Final = 1024
# Of all queues that have held nothing yet: an empty deque takes 700 bytes. It is never changed.
NO_HOLDS: Final[deque[tuple[int, int, int]]] = deque()


class DeliveredMark:
    """Of one queue. `delivered`: the exact mark of this run. mode: of the records of the mark."""

    def __init__(self, engine: StorageEngine, index: QueueIndex, mode: int) -> None:
        self._engine = engine
        self._index = index
        self._mode = mode
        self.delivered: int = min(index.mark, index.next_seq)
        self._settled: int = index.mark  # of the reserved mark
        self._next: int = index.mark
        self._lsn: int = 0
        self.half: int = index.mark - BLOCK // 2  # a delivery from here on reserves more
        self.holds: deque[tuple[int, int, int]] = NO_HOLDS  # (seq, lsn, mode)
        # Ahead of the head, and not of a whole backlog, all of which would then come redelivered
        # after the next crash. What is below the mark needs no more of it.
        head = min([s.lo for s in index.segments.values()], default=index.next_seq)
        if index.is_durable and index.mark < head + BLOCK // 2:
            self.reserve(max(self.delivered, head), 0.0)

    def reserve(self, seq: int, out_per_s: float) -> None:
        """Log a mark a block beyond `seq` and what is reserved already."""
        block = max(BLOCK, int(out_per_s))
        self._next = max(seq + 1, self._next) + block
        self.half = self._next - block // 2
        self._lsn = self._engine.mark(self._index, self._next, self._mode)

    def beyond(self, seq: int, out_per_s: float) -> int:
        """The mark that a record which delivers up to `seq` has to raise; 0 if there is enough.
        Nothing is changed: see `logged`."""
        if seq < self.half or not self._index.is_durable:
            return 0
        return max(seq + 1, self._next) + max(BLOCK, int(out_per_s))

    def logged(self, mark: int, lsn: int) -> None:
        """Another record has raised the mark."""
        self.half = mark - BLOCK // 2
        self._next = mark
        self._lsn = lsn

    def hold(self, seq: int, lsn: int, mode: int) -> None:
        """This message, and what is behind it, waits until the LSN is settled."""
        if self._engine.settled(mode) < lsn:
            if self.holds is NO_HOLDS:
                self.holds = deque()
            self.holds.append((seq, lsn, mode))
            while self._engine.settled(self.holds[0][2]) >= self.holds[0][1]:
                self.holds.popleft()

    def waits_for(self, seq: int, *, has_mark: bool, out_per_s: float) -> tuple[int, int] | None:
        """(lsn, mode) that a delivery of `seq` waits for. has_mark: it is a persistent one."""
        if self.holds:
            engine = self._engine
            while self.holds and engine.settled(self.holds[0][2]) >= self.holds[0][1]:
                self.holds.popleft()
            for held, lsn, mode in self.holds:
                if held <= seq and engine.settled(mode) < lsn:
                    return lsn, mode
        if not has_mark or seq < self._settled:
            return None
        if self._engine.settled(self._mode) >= self._lsn:
            self._settled = self._next
            if seq < self._settled:
                return None
            self.reserve(seq, out_per_s)
        return self._lsn, self._mode

    def terminate(self) -> None:
        """An orderly stop: the exact mark goes into its checkpoint."""
        if self._index.is_durable:
            self._index.lower_mark(self.delivered)
