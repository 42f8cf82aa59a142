"""Dispatch: the end of a turn: what was marked is delivered, the log is written, answers go out.

Whatever reaches a vhost in one turn of its loop, from any number of clients, is first handled and
only marked: this queue has work, this channel is owed confirms, this connection has output. Then
comes one `run`:

    for each marked source  a queue, or a reading of a stream: its consumers get what there is
    engine.flush            one write for all records of the turn; a sync starts if one is wanted
    settle                  confirms, tx.commit-ok, declare-ok: what the log says is safe by now
    flush of connections    one write per client
    chores                  a few milliseconds of long work, if there is any (chores.py)

So the costs of a write, a sync and a send are shared by all that happened in the turn, and under
load turns grow by themselves. A turn delivers at most so many messages; then others get in.

Queues whose consumers share the prefetch of one channel take turns within the turn, a message each
(`again`): else the first of them would take all places.

Errors. If the engine has failed, so has the vhost: the error goes up, nothing is confirmed any
more. A source that meets a full disk is tried again every second; that is no failure. Any other
error in one queue's own code is that queue's: `on_queue_error` is called. Any other error
(of an answer, a connection, a chore) concerns one client: `on_mistake` reports it, and the turn
goes on with the others.

Not here: what a source delivers (served_queue.py, stream_reading.py), who is ready (consumers.py),
bytes (deliver.py), time (vhost.py).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.broker.roles import Owing, Peer, Source
from penstock.errors import is_disk_full
from penstock.storage.engine import StorageEngine

TURN_SLICE: Final = 4096  # messages that one turn delivers
RETRY_S: Final = 1.0  # after which a source that had no space is tried again


def nothing() -> None:
    """Nobody has asked to be woken."""


def no_chores() -> bool:
    """Nobody has long work."""
    return False


class Dispatch:
    """Of one vhost. mode: the durability that publishers wait for.

    wake: called when there is work and no run is due yet. on_queue_error(source, error): an error
    in a source's own code. on_mistake(where, error): any other error, of which the turn goes on.
    touched: those that a tick is to look at. chores(): a turn's share of
    long work, True if there is more; has_chores: it is to be called.
    """

    def __init__(self, engine: StorageEngine, mode: int) -> None:
        self.engine: StorageEngine = engine
        self.mode: int = mode
        self.wake: Callable[[], None] = nothing
        self.on_queue_error: Callable[[Source, Exception], None] | None = None
        self.on_mistake: Callable[[str, Exception], None] | None = None
        self.touched: list[Source] = []
        self.chores: Callable[[], bool] = no_chores
        self.has_chores: bool = False
        self.is_serving: bool = False  # a queue delivers before the turn ends (ServedQueue.serve)
        self._is_due: bool = False
        self.is_taking_turns: bool = False
        self._marked: deque[Source] = deque()
        self._again: deque[Source] = deque()
        self._owing: list[Owing] = []
        self._owing_since: int = -1  # the LSN up to which those that owe were asked
        self._has_new_owing: bool = False
        self._sending: list[Peer] = []
        self._without_space: list[Source] = []
        self._retried_at_s: float = 0.0
        self._waiting: deque[tuple[int, int, Callable[[], None]]] = deque()

    def woken_by(self, wake: Callable[[], None]) -> None:
        """What `wake` is from now on; it is called if a run is wanted already."""
        self.wake = wake
        if self._is_due:
            wake()

    # ---- marking -------------------------------------------------------------------------------

    def mark(self, source: Source) -> None:
        """There may be something to deliver, or somebody to deliver it to."""
        if not source.is_marked:
            source.is_marked = True
            self._marked.append(source)
            if not self._is_due:
                self.be_due()
        if not source.is_touched:
            source.is_touched = True
            self.touched.append(source)

    def again(self, source: Source) -> None:
        """It has more to deliver in this turn, after others of the same channel."""
        self._again.append(source)

    def be_due(self) -> None:
        """A run is wanted."""
        if not self._is_due:
            self._is_due = True
            self.wake()

    def take_touched(self, n: int) -> list[Source]:
        """Up to n of those that a tick is to look at; they are not touched any more."""
        taken, self.touched = self.touched[:n], self.touched[n:]
        for source in taken:
            source.is_touched = False
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

    def run(self, *, is_between: bool = False) -> bool:
        """One turn; True if there is more to do at once (call it again, others first). is_between:
        it is one beside that of this iteration of the loop, and has no time for chores."""
        self._is_due = False
        budget = TURN_SLICE
        marked = self._marked
        for _ in range(len(marked)):
            source = marked.popleft()
            source.is_marked = False
            budget -= self._deliver(source)
            if budget <= 0:
                break
        if self._again:
            self._take_turns(budget)
        self.engine.flush()
        self._settle()
        while self._sending:
            sending, self._sending = self._sending, []
            for who in sending:
                try:
                    who.flush()
                except Exception as error:  # noqa: BLE001 - it is reported
                    self.mistake("sending to a client", error)
        has_more = self.has_chores and (is_between or self.chores())
        if (marked or has_more) and not self._is_due:
            self._is_due = True
            return True
        return has_more

    def _take_turns(self, budget: int) -> None:
        """Visit those that share places, round and round, until nobody of them delivers any more.
        What is left beyond the budget is for the next turn."""
        again = self._again
        self.is_taking_turns = True
        try:
            while again and budget > 0:
                budget -= self._deliver(again.popleft())
        finally:
            self.is_taking_turns = False
            while again:
                self.mark(again.popleft())

    def _deliver(self, source: Source) -> int:
        """What this one has for whoever is ready; how many messages."""
        if source.is_deleted or source.is_crashed:
            return 0
        try:
            return source.deliver(self)
        except Exception as error:
            if self.engine.failed is not None or self.on_queue_error is None:
                raise
            if is_disk_full(error):
                self.without_space(source)
            else:
                self.on_queue_error(source, error)
            return 0

    def without_space(self, source: Source) -> None:
        """This one had no space for what it had to log or to write: it is tried again a second
        later. The engine has reported the full disk."""
        self._without_space.append(source)

    def retry(self, now_s: float) -> None:
        """Mark again those that had no space, once a second."""
        if self._without_space and now_s - self._retried_at_s >= RETRY_S:
            self._retried_at_s = now_s
            waiting, self._without_space = self._without_space, []
            for source in waiting:
                self.mark(source)

    def mistake(self, where: str, error: Exception) -> None:
        """An error that nobody expected was raised: report it. A failure of the engine, and any
        error while nobody listens, is raised again."""
        if self.engine.failed is not None or self.on_mistake is None:
            raise error
        self.on_mistake(where, error)

    def _settle(self) -> None:
        """Answer what is safe by now."""
        engine = self.engine
        settled = engine.settled(self.mode)
        if self._owing and (settled != self._owing_since or self._has_new_owing):
            self._owing_since = settled
            self._has_new_owing = False
            self._owing = [who for who in self._owing if self._owes_after(who, settled)]
        if self._waiting:
            for _ in range(len(self._waiting)):
                lsn, mode, call = self._waiting.popleft()
                if engine.settled(mode) >= lsn:
                    try:
                        call()
                    except Exception as error:  # noqa: BLE001 - it is reported
                        self.mistake("an answer", error)
                else:
                    self._waiting.append((lsn, mode, call))
                    if mode > self.mode:
                        engine.request_sync()

    def _owes_after(self, who: Owing, settled: int) -> bool:
        """Have it confirm what is settled; whether it owes more."""
        try:
            return who.settle(settled)
        except Exception as error:  # noqa: BLE001 - it is reported
            self.mistake("confirms", error)
            return False
