"""Dispatch: the end of a turn of a vhost: deliver what was marked, write the log, send answers.

What clients send in one turn of the vhost's loop is first only handled and noted: this queue has
work, this channel has unconfirmed publishes, this connection has output. Then comes one `run`:

    each marked source      a queue, or one consumer's reading of a stream, delivers
    engine.flush            one write for all records of the turn; a sync starts if one is wanted
    settle                  confirms, tx.commit-ok, declare-ok: what the log says is durable
    flush of connections    one write per client
    background tasks        a few milliseconds of long work, if there is any (background_tasks.py)

So all that happens in a turn shares the cost of a write, a sync and a send, and under load turns
grow by themselves. A turn delivers at most TURN_SLICE messages, and for DELIVER_S at most, as one
that is read from disk takes many times what one in RAM does; then other events are handled. Only
after LOOK_MESSAGES is the clock looked at, so a turn of a few messages does without.

Queues whose consumers share the prefetch of one channel take turns within the turn, a message each
(`again`): otherwise the first of them would take all places.

Errors. If the engine has failed, so has the vhost: the error is raised and nothing is confirmed any
more. A source that meets a full disk is tried again every second. Any other error in a queue's own
code goes to `on_queue_error`. Any other error (of an answer, a connection, a background task)
concerns one client: `on_internal_error` reports it, and the turn continues.

**How much of a turn one connection may take** (TurnBudget). The one rule of fairness between
clients. Whatever one read of one connection asks for is done in slices. A slice ends when its
budget is used up; the rest is done in later turns, while the connection is not read, and the others
have their turns in between. Nothing else limits how much one client's requests may cost at once, so
whatever a client can ask for has to fit in:

    what runs for a client         takes its steps from `left`: about one for each microsecond or
                                   two, such as a message put into a queue, a binding looked at, a
                                   kilobyte built. Per run, not per message, where runs are short
    what can be cut at any place   asks `is_over` where `left` is not positive, and stops there: a
                                   run of publishes or acks, SlicedWork
    what cannot be cut             is small (a method), or stops itself when it becomes too large
                                   (an answer); `may_begin` says whether it fits into this slice

    connection_handler.py          begins slices, keeps the rest (`_held`), goes on with it as a
                                   background task; output that is full ends a slice too
    protocol.Connection            decodes few methods at once (`_read_steps`)
    Poller                         leaves sockets for the next turn when this one took PASS_S
    Dispatch.run                   ends the turn (`turned`)

The clock is looked at every LOOK_STEPS steps, and before a method that changes what is bound, each
of which may take a millisecond. A slice at once, of what was just read, lasts SLICE_S at most: what
came before the first look counts with STEP_S for each step. All of them in one turn last TURN_S
together, after which every other client has SHORT_STEPS only: a few single messages. A slice of
what was left (`begin_later`) lasts LATER_S. STEPS_MAX bounds a slice whatever the clock says.

The abstract classes at the top are what dispatch and vhost know of the modules above them. mypyc
allows one base class, so a class that has several of these roles inherits from a chain.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock
from penstock.counts import CONFIRM_S, WAIT_S, Histogram, VHostCounts
from penstock.errors import is_shortage
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import Delivery
from penstock.storage.engine import StorageEngine
from penstock.storage.store.store_file import StoredBody

LOOK_STEPS: Final = 256
SHORT_STEPS: Final = 32
STEPS_MAX: Final = 1 << 15
SLICE_S: Final = 0.010
LATER_S: Final = 0.0015
TURN_S: Final = 0.020
STEP_S: Final = 0.000_002  # about what one takes, where the clock was not looked at
# What is taken for what has no better measure.
METHOD_STEPS: Final = 16
ARGUMENT_BYTES: Final = 32  # of a method with arguments, for one step: those of 8 KiB take 5 ms
CALL_STEPS: Final = LOOK_STEPS  # an operation: the clock is looked at after each
STEP_BYTES: Final = 64  # of an answer as JSON, or of properties whose keys are read, for one step
HEADER_BYTES: Final = 16  # of headers that an exchange looks at, for one step: 80 KiB take 10 ms


class TurnBudget:
    """The budget of the slice that runs now; one for a vhost, whose slices follow one another.
    left: steps until the next look at the clock; what is done is subtracted from it."""

    def __init__(self, clock: Clock) -> None:
        self.left: int = LOOK_STEPS
        self.clock: Clock = clock
        self._granted: int = LOOK_STEPS
        self._used: int = 0
        self._most: int = 0  # steps of this slice; 0: STEPS_MAX
        self._until_s: float = 0.0  # 0.0: the clock was not looked at in this slice
        self._turn_until_s: float = 0.0  # 0.0: not in this turn
        self._is_turn_over: bool = False

    def begin(self) -> None:
        """Begin the slice of what was just read of a client."""
        self._used = self._most = 0
        self._until_s = 0.0
        self._grant(SHORT_STEPS if self._is_turn_over else LOOK_STEPS)

    def begin_short(self) -> None:
        """Begin a slice of LOOK_STEPS, of what may go on in the same turn."""
        self._used = self._most = 0
        self._until_s = self.clock.monotonic()
        self._grant(LOOK_STEPS)

    def begin_later(self, most: int = 0) -> None:
        """Begin a slice of what was left of an earlier one. most: its steps; 0: STEPS_MAX."""
        self._used = 0
        self._most = most
        self._until_s = self.clock.monotonic() + LATER_S
        self._grant(LOOK_STEPS)

    def is_over(self) -> bool:
        """Return whether the slice is to end here."""
        return self.left <= 0 and not self._look()

    def may_begin(self, steps: int) -> bool:
        """Return whether something that takes so many steps, LOOK_STEPS at most, may begin."""
        return self.left >= steps or self._look()

    def turned(self) -> None:
        """End the turn."""
        self._turn_until_s = 0.0
        self._is_turn_over = False

    def _grant(self, steps: int) -> None:
        self.left = steps
        self._granted = steps

    def _look(self) -> bool:
        """Look at the clock. Returns whether the slice goes on, with more steps."""
        self._used += self._granted - self.left
        self._granted = self.left
        if self._used >= (self._most or STEPS_MAX):
            return False
        now_s = self.clock.monotonic()
        began_s = now_s - self._used * STEP_S
        if self._turn_until_s == 0.0:
            self._turn_until_s = began_s + TURN_S
        if self._until_s == 0.0:
            self._is_turn_over = now_s > self._turn_until_s
            self._until_s = min(began_s + SLICE_S, self._turn_until_s)
        if now_s > self._until_s:
            return False
        self._grant(LOOK_STEPS)
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class SlicedWork(ABC):
    """Work for a channel that may take longer than a slice (ChannelOwner.do_in_slices)."""

    @abstractmethod
    def step(self) -> bool:
        """Work until the budget is over; return whether all is done. An error is that of the method
        that began it."""

    def abandon(self) -> None:  # noqa: B027 - most work leaves nothing behind
        """End it early: its channel is closed."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Unconfirmed(ABC):
    """A channel in confirm mode, which has publishes that are not confirmed yet."""

    @abstractmethod
    def settle(self, settled: int) -> bool:
        """Confirm what is durable: LSNs up to `settled`. Returns True if more is unconfirmed."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Peer(ABC):
    """A client's connection, as dispatch and vhost see it."""

    name: str

    @abstractmethod
    def flush(self) -> None:
        """Hand the output to the transport, at the end of the turn."""

    @abstractmethod
    def blocked(self, reason: str) -> None:
        """Note that the vhost is short of `reason` ("memory", "disk"), or no longer ("")."""

    @abstractmethod
    def held(self) -> tuple[int, str]:
        """Return how many bytes of RAM its unfinished messages take, and its name for messages."""

    @abstractmethod
    def free_memory(self, reason: str) -> None:
        """End the connection to free what it holds; the client gets the reason."""

    @abstractmethod
    def check_stalled(self, now_s: float, most_s: float) -> None:
        """End the connection if a message in progress has not advanced for more than `most_s`."""

    @abstractmethod
    def look_at_room(self, user: str) -> None:
        """Deliver to the connections of this user again, or no more: `full` or `stuffed` of Usage
        has changed."""

    @abstractmethod
    def check_timeouts(self, now_s: float) -> None:
        """Put back deliveries that consumers have had for longer than their timeout."""

    def forget_asked_routes(self) -> None:  # noqa: B027 - nothing, for those that ask nobody
        """Find the routes of publishes again if a server of auth_http must allow them."""

    @abstractmethod
    def octets(self) -> dict[str, int]:
        """Return how many bytes were received and sent, by RabbitMQ's names."""

    @abstractmethod
    def changed_channels(self, now_s: float) -> list[tuple[str, dict[str, int]]]:
        """Return name and counters of the channels that have done something since the last call."""


# How deliveries are settled that failed, or (ACK) whose acknowledgement did.
REQUEUE: Final = 0
DISCARD: Final = 1
GIVE_BACK: Final = 2
RELEASE: Final = 3
ACK: Final = 4


@mypyc_attr(allow_interpreted_subclasses=True)
class Source(ABC):
    """A place that deliveries come from and that settles them: a queue, which gives each message to
    one of its consumers, or one consumer's reading of a stream. Tags are the source's own.

    is_marked: it is in the dispatch's list of work. is_touched: it is in the list for the next
    tick, or no tick handles it. is_deleted, is_crashed: it delivers and settles nothing.
    """

    is_marked: bool = False
    is_touched: bool = False
    is_deleted: bool = False
    is_crashed: bool = False

    def open_large(self) -> StoredBody | None:
        """Return the body of the record that is delivered just now, if it is sent in pieces and not
        from a store. The caller closes it."""
        return None

    @abstractmethod
    def deliver(self, dispatch: "Dispatch") -> int:
        """Deliver a slice to the consumers that are ready; return how many messages."""

    @abstractmethod
    def ack(self, tags: list[int]) -> None:
        """Acknowledge deliveries. Unknown tags are ignored, here and in the methods below."""

    def sent(self, tags: list[int]) -> None:
        """Acknowledge deliveries to no_ack consumers that were sent completely. What the disk keeps
        from being done now is done later."""
        self.ack(tags)

    @abstractmethod
    def requeue(self, tags: list[int]) -> None:
        """Put back deliveries that failed; an attempt is counted."""

    @abstractmethod
    def discard(self, tags: list[int]) -> None:
        """Dead-letter or drop deliveries that failed."""

    @abstractmethod
    def release(self, tags: list[int]) -> None:
        """Put back deliveries that nobody has tried; no attempt is counted."""

    def pending_among(self, tags: list[int]) -> list[int]:
        """Return those of these deliveries that are not settled, as far as that is known."""
        return []

    def before_return(self) -> None:  # noqa: B027 - only queues with limits need it
        """Serve the consumers that wait, before deliveries come back: a limit may drop what comes
        back, and what is ready was theirs already."""

    def give_back(self, tags: list[int]) -> None:
        """Put back what a consumer had that is gone or wants it again. A queue with a delivery
        limit, or of type quorum, counts an attempt: the message may have ended its consumer."""
        self.release(tags)

    def settle_failed(self, tags: list[int], how: int, budget: TurnBudget) -> int:
        """Settle deliveries that failed, as far as the turn's budget goes, one at least. how:
        REQUEUE, DISCARD, GIVE_BACK, RELEASE or ACK, as the method of that name. Returns how many of
        the tags it has settled."""
        if how == ACK:
            self.ack(tags)
        elif how == DISCARD:
            self.discard(tags)
        elif how == REQUEUE:
            self.requeue(tags)
        elif how == GIVE_BACK:
            self.give_back(tags)
        else:
            self.release(tags)
        budget.left -= len(tags)
        return len(tags)


# Takes the result of an operation, or its AMQPError.
Reply = Callable[[object], None]

TURN_SLICE: Final = 4096  # messages that one turn delivers
LOOK_MESSAGES: Final = 8  # deliveries between two looks at the clock
DELIVER_S: Final = 0.010  # from the first look, after which a turn delivers no more
RETRY_S: Final = 1.0  # after which a source that had no space is tried again


def nothing() -> None:
    """Do nothing: the default of `wake`."""


def no_background() -> bool:
    """Return False: there are no background tasks."""
    return False


class Dispatch:
    """The turns of one vhost. mode: the durability that publishers wait for.

    wake: called when there is work and no run is due yet. on_queue_error(source, error): an error
    in a source's own code. on_internal_error(where, error): any other error; the turn continues.
    touched: queues for the next tick (QueueSet.touched). counts: of the vhost. background(): runs
    background tasks for a turn and returns True if there is more; has_background: it is to be
    called.
    """

    def __init__(self, engine: StorageEngine, mode: int, touched: list[Source]) -> None:
        self.engine: StorageEngine = engine
        self.mode: int = mode
        self.wake: Callable[[], None] = nothing
        self.on_queue_error: Callable[[Source, Exception], None] | None = None
        self.on_internal_error: Callable[[str, Exception], None] | None = None
        self.touched: list[Source] = touched
        self.counts: VHostCounts = VHostCounts()
        self.changed: dict[Source, None] = {}  # queues that were touched, for their rates
        self.budget: TurnBudget | None = None  # what clients' requests of one turn may take
        self.background: Callable[[], bool] = no_background
        self.has_background: bool = False
        self.is_serving: bool = False  # a queue delivers before the turn ends (BrokerQueue.serve)
        self._is_due: bool = False
        self._look_at: int = 0  # what is left of the turn's messages when the clock is looked at
        self._late_at_s: float = 0.0  # 0.0: the clock was not looked at in this turn
        self.is_taking_turns: bool = False
        self._marked: deque[Source] = deque()
        self._again: deque[Source] = deque()
        self._unconfirmed: list[Unconfirmed] = []
        self._settled: int = -1  # the LSN with which `settle` was called last
        self._has_new_unconfirmed: bool = False
        # The seconds from the first publish of a turn that waits for a confirm to that confirm.
        self.confirm_seconds: Histogram = Histogram(CONFIRM_S)
        # The whole seconds that the last message of each run of deliveries has waited in its queue.
        self.wait_seconds: Histogram = Histogram(WAIT_S)
        self._published_s: float = 0.0  # when the first publish of this turn was handled
        self._published: deque[tuple[int, float]] = deque()  # (last LSN, that) of earlier turns
        self._sending: list[Peer] = []
        self._without_space: list[Source] = []
        self._retried_at_s: float = 0.0
        self._waiting: deque[tuple[int, int, Callable[[], None]]] = deque()

    def set_wake(self, wake: Callable[[], None]) -> None:
        """Set `wake`; call it if a run is due already."""
        self.wake = wake
        if self._is_due:
            wake()

    # ---- marking -------------------------------------------------------------------------------

    def mark(self, source: Source) -> None:
        """Have the source deliver in the next run, and looked at in the next tick."""
        if not source.is_marked:
            source.is_marked = True
            self._marked.append(source)
            if not self._is_due:
                self.schedule()
        if not source.is_touched:
            source.is_touched = True
            self.touched.append(source)

    def again(self, source: Source) -> None:
        """Have the source deliver again in this turn, after the others of its channel."""
        self._again.append(source)

    def schedule(self) -> None:
        """Have `run` called."""
        if not self._is_due:
            self._is_due = True
            self.wake()

    def add_unconfirmed(self, who: Unconfirmed) -> None:
        """Call `who.settle` at the end of turns, until it returns False."""
        self._unconfirmed.append(who)
        self.note_unconfirmed()

    def note_unconfirmed(self) -> None:
        """Have `settle` called in this turn: a channel in the list has new publishes."""
        if not self._has_new_unconfirmed:
            self._has_new_unconfirmed = True
            self._published_s = self.engine.clock.monotonic()
        self.schedule()

    def add_output(self, who: Peer) -> None:
        """Have the connection flushed, once, at the end of the turn."""
        self._sending.append(who)
        self.schedule()

    def when_settled(self, lsn: int, mode: int, call: Callable[[], None]) -> None:
        """Call `call` at the end of the turn in which `engine.log.settled(mode)` reaches lsn."""
        self._waiting.append((lsn, mode, call))
        self.schedule()

    # ---- a turn --------------------------------------------------------------------------------

    def run(self, *, is_between: bool = False) -> bool:
        """Run one turn. Returns True if there is more to do at once: call it again, after other
        events. is_between: it is a further turn in this iteration of the loop, without background
        tasks."""
        self._is_due = False
        self._look_at = TURN_SLICE - LOOK_MESSAGES
        budget = TURN_SLICE
        marked = self._marked
        for _ in range(len(marked)):
            source = marked.popleft()
            source.is_marked = False
            budget -= self._deliver(source)
            if budget <= self._look_at and self._is_enough(budget):
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
                    self.internal_error("sending to a client", error)
        has_more = self.has_background and (is_between or self.background())
        engine = self.engine
        has_more = has_more or engine.streams.has_unwritten or engine.log.has_unwritten
        if not is_between:
            self._late_at_s = 0.0
            if self.budget is not None:
                self.budget.turned()
        if (marked or has_more) and not self._is_due:
            self._is_due = True
            return True
        return has_more

    def _is_enough(self, budget: int) -> bool:
        """Return whether this turn delivers no more. budget: messages that it still may."""
        self._look_at = budget - LOOK_MESSAGES
        return budget <= 0 or self._is_late()

    def _is_late(self) -> bool:
        """Return whether this turn has delivered for long enough. Looks at the clock; the first
        look of a turn begins its time."""
        now_s = self.engine.clock.monotonic()
        if self._late_at_s == 0.0:
            self._late_at_s = now_s + DELIVER_S
        return now_s > self._late_at_s

    def is_slice_over(self, n: int, most: int) -> bool:
        """Return whether a source that has delivered n messages, of `most` at once, stops here.
        Asked every LOOK_MESSAGES."""
        return n >= most or self._is_late()

    def _take_turns(self, budget: int) -> None:
        """Let sources that share places deliver in turn until none delivers any more. What is left
        beyond the turn's messages and time is marked for the next."""
        again = self._again
        self.is_taking_turns = True
        try:
            while again and budget > 0:
                budget -= self._deliver(again.popleft())
                if budget <= self._look_at and self._is_enough(budget):
                    break
        finally:
            self.is_taking_turns = False
            while again:
                self.mark(again.popleft())

    def _deliver(self, source: Source) -> int:
        """Let the source deliver; return how many messages."""
        if source.is_deleted or source.is_crashed:
            return 0
        try:
            return source.deliver(self)
        except Exception as error:
            if self.engine.failed is not None or self.on_queue_error is None:
                raise
            if is_shortage(error):
                self.without_space(source)
            else:
                self.on_queue_error(source, error)
            return 0

    def without_space(self, source: Source) -> None:
        """Try the source again a second later: it had no space for what it had to log or write. The
        engine has reported the full disk."""
        self._without_space.append(source)

    def retry(self, now_s: float) -> None:
        """Mark the sources that had no space, once a second."""
        if self._without_space and now_s - self._retried_at_s >= RETRY_S:
            self._retried_at_s = now_s
            waiting, self._without_space = self._without_space, []
            for source in waiting:
                self.mark(source)

    def internal_error(self, where: str, error: Exception) -> None:
        """Report an unexpected error. Raises it if the engine has failed or nothing listens."""
        if self.engine.failed is not None or self.on_internal_error is None:
            raise error
        self.on_internal_error(where, error)

    def _settle(self) -> None:
        """Send the answers to what is durable now."""
        engine = self.engine
        settled = engine.log.settled(self.mode)
        if self._unconfirmed and (settled != self._settled or self._has_new_unconfirmed):
            self._settled = settled
            self._measure(settled)
            self._has_new_unconfirmed = False
            self._unconfirmed = [who for who in self._unconfirmed if self._confirm(who, settled)]
        if self._waiting:
            for _ in range(len(self._waiting)):
                lsn, mode, call = self._waiting.popleft()
                if engine.log.settled(mode) >= lsn:
                    try:
                        call()
                    except Exception as error:  # noqa: BLE001 - it is reported
                        self.internal_error("an answer", error)
                else:
                    self._waiting.append((lsn, mode, call))
                    if mode > self.mode:
                        engine.log.request_sync()

    def _measure(self, settled: int) -> None:
        """Record how long the publishers waited whose turns are settled."""
        waiting = self._published
        if self._has_new_unconfirmed:
            waiting.append((self.engine.log.last_lsn, self._published_s))
        if waiting and waiting[0][0] <= settled:
            now_s = self.engine.clock.monotonic()
            while waiting and waiting[0][0] <= settled:
                self.confirm_seconds.record(now_s - waiting.popleft()[1])

    def note_wait(self, last: Delivery | None) -> None:
        """Count how long the last message of a run of deliveries has waited. None: unknown."""
        if last is not None:
            self.wait_seconds.record(self.engine.time_s - last.message.time)

    def _confirm(self, who: Unconfirmed, settled: int) -> bool:
        """Have the channel confirm what is durable; return whether more is unconfirmed."""
        try:
            return who.settle(settled)
        except Exception as error:  # noqa: BLE001 - it is reported
            self.internal_error("confirms", error)
            return False
