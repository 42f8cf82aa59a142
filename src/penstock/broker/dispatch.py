"""Dispatch: the end of a turn: what was marked is delivered, the log is written, answers go out.

Whatever reaches a vhost in one turn of its loop, from any number of clients, is first handled and
only marked: this queue has work, this channel is owed confirms, this connection has output. Then
comes one `run`:

    for each marked queue   consumers take turns until none is ready or nothing is left
    engine.flush            one write for all records of the turn; a sync starts if one is wanted
    settle                  confirms, tx.commit-ok, declare-ok: what the log says is safe by now
    flush of connections    one write per client

So the costs of a write, a sync and a send are shared by all that happened in the turn, and under
load turns grow by themselves. A turn delivers at most so many messages; then others get in.

A queue whose head is held (a transaction's message that is not durable yet, or a first delivery
beyond the settled delivered mark) is marked again when that is settled.

Errors. If the engine has failed, so has the vhost: the error goes up, nothing is confirmed any
more. An error in one queue's own code is that queue's: `on_queue_error` is told.

Not here: who is ready (consumers.py), bytes (deliver.py), time (vhost.py).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.roles import Owing, Peer
from penstock.broker.served_queue import ServedQueue
from penstock.storage.durability import OS
from penstock.storage.engine import StorageEngine

QUEUE_SLICE: Final = 1024  # messages that one queue delivers before the others have their turn
TURN_SLICE: Final = 4096  # messages that one turn delivers


def nothing() -> None:
    """Nobody has asked to be woken."""


class Dispatch:
    """Of one vhost. mode: the durability that publishers wait for.

    wake: called when there is work and no run is due yet. on_queue_error(queue, error): an error in
    a queue's own code. touched: queues that a tick is to look at.
    """

    def __init__(self, engine: StorageEngine, mode: int) -> None:
        self.engine: StorageEngine = engine
        self.mode: int = mode
        self.wake: Callable[[], None] = nothing
        self.on_queue_error: Callable[[ServedQueue, Exception], None] | None = None
        self.touched: list[ServedQueue] = []
        self._is_due: bool = False
        self._marked: deque[ServedQueue] = deque()
        self._owing: list[Owing] = []
        self._owing_since: int = -1  # the LSN up to which those that owe were asked
        self._has_new_owing: bool = False
        self._sending: list[Peer] = []
        self._waiting: deque[tuple[int, int, Callable[[], None]]] = deque()

    # ---- marking -------------------------------------------------------------------------------

    def mark(self, queue: ServedQueue) -> None:
        """There may be something to deliver, or somebody to deliver it to."""
        if not queue.is_marked:
            queue.is_marked = True
            self._marked.append(queue)
            if not self._is_due:
                self.be_due()
        if not queue.is_touched:
            queue.is_touched = True
            self.touched.append(queue)

    def be_due(self) -> None:
        """A run is wanted."""
        if not self._is_due:
            self._is_due = True
            self.wake()

    def take_touched(self, n: int) -> list[ServedQueue]:
        """Up to n of the queues that a tick is to look at; they are not touched any more."""
        taken, self.touched = self.touched[:n], self.touched[n:]
        for queue in taken:
            queue.is_touched = False
        return taken

    def owes(self, who: Owing) -> None:
        """This one owes confirms from now on, until its `settle` says that it does not."""
        self._owing.append(who)
        self._has_new_owing = True
        self.be_due()

    def owes_more(self) -> None:
        """One that owes has something new in this turn."""
        self._has_new_owing = True
        self.be_due()

    def sends(self, who: Peer) -> None:
        """This one has output; it is asked for it, once, at the end of the turn."""
        self._sending.append(who)
        self.be_due()

    def when_settled(self, lsn: int, mode: int, call: Callable[[], None]) -> None:
        """Call it once `engine.settled(mode)` has reached lsn: at the end of a turn."""
        self._waiting.append((lsn, mode, call))
        self.be_due()

    def waits_for(self) -> int:
        """The highest LSN that somebody waits for; 0 if nobody does."""
        waiting = max([lsn for lsn, _, _ in self._waiting], default=0)
        return max(waiting, self.engine.last_lsn) if self._owing else waiting

    # ---- a turn --------------------------------------------------------------------------------

    def run(self) -> bool:
        """One turn; True if there is more to do at once (call it again, others first)."""
        self._is_due = False
        budget = TURN_SLICE
        marked = self._marked
        for _ in range(len(marked)):
            queue = marked.popleft()
            queue.is_marked = False
            budget -= self._deliver(queue)
            if budget <= 0:
                break
        self.engine.flush()
        self._settle()
        while self._sending:
            sending, self._sending = self._sending, []
            for who in sending:
                who.flush()
        if marked and not self._is_due:
            self._is_due = True
            return True
        return False

    def _deliver(self, queue: ServedQueue) -> int:
        """What this queue has for whoever is ready; how many messages."""
        if queue.is_deleted or queue.is_crashed:
            return 0
        try:
            return self._deliver_run(queue)
        except Exception as error:
            if self.engine.failed is not None or self.on_queue_error is None:
                raise
            self.on_queue_error(queue, error)
            return 0

    def _deliver_run(self, queue: ServedQueue) -> int:
        amq = queue.amq
        consumers = queue.consumers
        n = 0
        done: list[int] = []
        try:
            while consumers.count and amq.backing.len():
                if n >= QUEUE_SLICE:
                    self.mark(queue)
                    break
                consumer = consumers.next_ready()
                if consumer is None:
                    break
                delivery = amq.fetch()
                if delivery is None:
                    if amq.has_more_expired:
                        self.mark(queue)
                    else:
                        self._wait_for_head(queue)
                    break
                n += 1
                if delivery.is_redelivered:
                    queue.redelivered += 1
                consumer.channel.deliver(consumer, delivery)
                if consumer.no_ack:
                    done.append(delivery.tag)
        finally:
            if done:
                amq.ack(done, OS)
                queue.acked += len(done)
        if n:
            queue.delivered += n
            amq.backing.inhale()
        if queue.waiters and amq.backing.len():
            queue.wake_waiters()
        return n

    def _wait_for_head(self, queue: ServedQueue) -> None:
        held = queue.amq.held()
        if held is None or queue.is_waiting:
            return
        queue.is_waiting = True

        def settled() -> None:
            queue.is_waiting = False
            self.mark(queue)

        lsn, mode = held
        self.when_settled(lsn, mode, settled)

    def _settle(self) -> None:
        """Answer what is safe by now."""
        engine = self.engine
        settled = engine.settled(self.mode)
        if self._owing and (settled != self._owing_since or self._has_new_owing):
            self._owing_since = settled
            self._has_new_owing = False
            self._owing = [who for who in self._owing if who.settle(settled)]
        if self._waiting:
            for _ in range(len(self._waiting)):
                lsn, mode, call = self._waiting.popleft()
                if engine.settled(mode) >= lsn:
                    call()
                else:
                    self._waiting.append((lsn, mode, call))
                    if mode > self.mode:
                        engine.log.request_sync()
