"""Dead letters: moves messages that expired, were rejected, did not fit, or failed too often.

One record of the log takes the message out of its queue and appends it to all its targets, so no
crash loses or doubles it. (RabbitMQ publishes first and then acknowledges, and promises neither.)
The header gets where, why and when it died, and loses attempts and expiry, which belonged to the
old queue; RabbitMQ removes the expiry too, or the message would expire again at once.

Messages that expire, or do not fit, together and go to one queue by the same address share a
record, and the router is asked once for them (`send_run`).

A `DeadLetterRoute` finds the targets at the moment of death: one queue by name in the embedded
library (`QueueRoute`), through an exchange in the broker (`ExchangeRoute` in broker/topology.py).

A message may return to a queue in which it died if somebody rejected it on the way. A cycle of
automatic deaths would never end, so the message is dropped, as in RabbitMQ (`is_cycle`). It is also
dropped after HOPS_MAX automatic deaths in a row. RabbitMQ has no such limit: its queues are
processes, but here one long chain would delay all clients of a vhost.

A target keeps its own limits, so a dead letter may die there at once and move on. A full target
with reject-publish refuses it, as in RabbitMQ: that target does not get it, which is an event and,
if no other does, a drop. With reject-publish-dlx the target dead-letters what it refuses: it is
published there first and leaves its queue then, so a crash in between may double it. Each stream
has the body in the record, so streams for which it has no room (`tx_bytes_max`) refuse it, too. One
call makes NESTED_HOPS_MAX of the other steps, so that the stack stays small; the queue where it
stops continues at its next tick.

A large message that goes to streams is sent in steps (LargeLetter), if the route says when, because
each stream writes all of it: one of 20 MiB to six streams was a turn of 250 ms. It is pending in
its queue until then, and what the queue dead-letters after it waits for it. The record is one
transaction in parts (transaction.py), so a crash still leaves it in its queue or with all its
targets.

Without a target, or if the target does not exist, the message is dropped. Dropped messages are
counted, cycles also by themselves (other queues may get such a message). The first of a row is an
event, which is logged as a warning: dead_letter_missing, dead_letter_cycle, dead_letter_hops,
dead_letter_full.

Targets that are not durable get a copy in RAM. If some targets are durable and others are not, the
durable ones share the record, and the others get their copies then; a crash in between loses
nothing that it would have kept. A stream gets a record of the message, in the same record of the
log.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from penstock.errors import CorruptionError, DiskFullError
from penstock.fast_crc import BodyPieces, pieces_of
from penstock.message import QueuedMessage, is_large
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import PART_SHIFT, BackingQueue, Delivery
from penstock.queues.headers import MAXLEN, REASONS, REJECTED, Death, HeaderCodec
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import NONE, OS
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.parts.transaction import Published, Transaction
from penstock.storage.store.message_store import CopyingBody
from penstock.storage.store.store_file import StoredBody

SEQ_MASK: Final = (1 << PART_SHIFT) - 1
MISSING: Final = "dead_letter_missing"
CYCLE: Final = "dead_letter_cycle"
HOPS: Final = "dead_letter_hops"
FULL: Final = "dead_letter_full"
HOPS_MAX: Final = 128  # queues that a message dies in without a reject on the way
NESTED_HOPS_MAX: Final = 8  # that one call makes
TARGET_BYTES: Final = 64
RUN_BYTES: Final = 1 << 20
DEATH_BYTES_MIN: Final = 16  # in a header, of any codec
STREAMS_PERCENT: Final = 75  # of `tx_bytes_max` may be a dead letter in streams; the rest: queues
RECORD_BYTES: Final = 64  # of a message in the log, besides header and body
AT_ONCE_BYTES: Final = 1 << 20  # in all streams; a message that takes more is sent in steps
READ_BYTES: Final = 1 << 20
READ_PIECES: Final = 4  # in a step: some ms


class Destination:
    """Where a moved message is appended: a part of a queue. header: the message's there. expiry_ms:
    since 1970, 0 for never."""

    __slots__ = ("backing", "expiry_ms", "header", "part")

    def __init__(self, backing: BackingQueue, part: int, header: bytes, expiry_ms: int) -> None:
        self.backing: BackingQueue = backing
        self.part: int = part
        self.header: bytes = header
        self.expiry_ms: int = expiry_ms


@mypyc_attr(allow_interpreted_subclasses=True)
class Target(ABC):
    """A queue or stream that dead letters can move to."""

    @abstractmethod
    def accept(
        self, header: bytes, body: bytes, priority: int, mode: int,
        stored: QueuedMessage | None = None,
    ) -> int:  # fmt: skip
        """Publish a message that another queue refused. stored: a message with this body in a
        store, which a queue takes from there; only streams need `body` then. Return the LSN (0:
        transient)."""

    def refuses(self, body_bytes: int) -> bool:
        """Return whether it is full and refuses a message with such a body."""
        return False

    def passes_on(self) -> bool:
        """Return whether it dead-letters what it refuses."""
        return False

    def pass_on(
        self, header: bytes, body: bytes, priority: int, mode: int,
        stored: QueuedMessage | None = None,
    ) -> int:  # fmt: skip
        """Dead-letter a message that it refuses. stored: as for `accept`. Return the LSN (0:
        transient, or dropped)."""
        return 0

    @abstractmethod
    def after_dead_letters(self, hops: int = 0) -> None:
        """Apply the limits and wake consumers after dead letters arrived. hops: moves so far in
        this call; from NESTED_HOPS_MAX on the limits wait for a tick."""


@mypyc_attr(allow_interpreted_subclasses=True)
class QueueTarget(Target):
    """A queue: the message itself moves there."""

    @abstractmethod
    def destination(self, header: bytes, priority: int) -> Destination:
        """Return where a message of this header and priority would be appended now. It is delivered
        once the record of its move is settled."""

    def keeps_persistent(self) -> bool:
        """Return whether it is durable."""
        return True

    def takes_runs(self) -> bool:
        """Return whether each of many messages arrives as if it were the only one: no limit and no
        waiting consumer decides."""
        return False


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamTarget(Target):
    """A stream: it gets a record of the message."""

    @abstractmethod
    def append(
        self, transaction: Transaction, header: bytes, body: bytes, large: BodyPieces | None = None
    ) -> None:
        """Add the record to the transaction. large: its body, if that is in pieces."""


class Routed:
    """The targets of a dead message and its new header. kind, text: of the event to report if a
    target is missing or the message went too far; "" for none."""

    __slots__ = ("header", "kind", "targets", "text")

    def __init__(
        self, header: bytes, targets: list[Target], kind: str = "", text: str = ""
    ) -> None:
        self.header: bytes = header
        self.targets: list[Target] = targets
        self.kind: str = kind
        self.text: str = text


@mypyc_attr(allow_interpreted_subclasses=True)
class DeadLetterRoute(ABC):
    """Finds where the dead letters of one queue go."""

    def __init__(self, headers: HeaderCodec) -> None:
        self.headers: HeaderCodec = headers

    @abstractmethod
    def find(self, header: bytes) -> tuple[bytes, list[str], str]:
        """Return the header that a dead message has at its targets, their names, each once, and the
        text of an event if some are missing, else "". Never raises because of the content."""

    @abstractmethod
    def target(self, name: str) -> Target | None:
        """Return the target of this name; None if it is not there, or takes nothing now."""

    def later(self, letter: "LargeLetter") -> bool:
        """Have the letter sent in steps, after those of before; False: it is to be sent at
        once."""
        return False

    def only_target(self, header: bytes) -> str | None:
        """Return the name of the one queue that messages of this header's address go to; None if
        there are others, or none, or more than the address decides."""
        return None

    def address(self, header: bytes) -> bytes | None:
        """Return the part of the header that decides where it goes, None if it is all of it."""
        return b""

    def readdressed(self, header: bytes) -> bytes:
        """Return the header that the message has at its targets."""
        return header

    def may_return(self, header: bytes, names: list[str]) -> bool:
        """Return False if it is plain without reading the deaths that the message neither died in
        one of these queues nor went too far."""
        return True

    def route(self, header: bytes, reason: str) -> Routed:
        """Return the targets of a message that has just died; its header contains the death."""
        header, names, text = self.find(header)
        kind = MISSING if text else ""
        if reason != REJECTED and self.may_return(header, names):
            deaths = self.headers.deaths(header)
            if is_too_far(deaths):
                queue = deaths[0].queue
                text = f"a dead letter died in {HOPS_MAX} queues, last in {queue!r}: dropped"
                return Routed(header, [], HOPS, text)
            cycling = [name for name in names if is_cycle(name, deaths)]
            if cycling:
                names = [name for name in names if name not in cycling]
                there = ", ".join([repr(name) for name in cycling])
                kind, text = CYCLE, f"its dead letters come back from {there}: dropped"
        targets: list[Target] = []
        for name in names:
            target = self.target(name)
            if target is not None:
                targets.append(target)
        return Routed(header, targets, kind, text)


class QueueRoute(DeadLetterRoute):
    """Routes to the queue `to`, if `find` finds it. The header does not matter."""

    def __init__(
        self, to: str, headers: HeaderCodec, find: Callable[[bytes], QueueTarget | None]
    ) -> None:
        super().__init__(headers)
        self._to = to
        self._raw: bytes = to.encode("utf-8", "surrogateescape")
        self._find = find

    def find(self, header: bytes) -> tuple[bytes, list[str], str]:
        is_there = self.target(self._to) is not None
        text = "" if is_there else f"no queue {self._to!r} for dead letters: dropped"
        return header, [self._to], text

    def only_target(self, header: bytes) -> str | None:
        return self._to

    def target(self, name: str) -> Target | None:
        return self._find(self._raw)

    def may_return(self, header: bytes, names: list[str]) -> bool:
        return header.find(self._raw) >= 0 or len(header) >= HOPS_MAX * DEATH_BYTES_MIN


def is_cycle(target: str, deaths: list[Death]) -> bool:
    """Return whether the message, whose deaths these are (the last first), would return to a queue
    in which it died, and nobody rejected it since."""
    for death in deaths:
        if death.reason == REJECTED:
            return False
        if death.queue == target:
            return True
    return False


def is_too_far(deaths: list[Death]) -> bool:
    """Return whether the message died in HOPS_MAX queues (the last first), and nobody rejected it
    since."""
    if len(deaths) < HOPS_MAX:
        return False
    return not [death for death in deaths[:HOPS_MAX] if death.reason == REJECTED]


class DeathCounts:
    """How many messages of all queues of a set died. of: for each reason; dropped: how many of them
    had a route and no target; over_limit: those of maxlen that went nowhere."""

    def __init__(self) -> None:
        self.of: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.dropped: int = 0
        self.over_limit: int = 0


class DeadLetters:
    """The dead letters of one queue. `route`: finds their targets, or None. `counts`: how many died
    for each reason; `dropped`: how many of them had no target; `total`: of all queues; `cycles`:
    how many were kept from a queue in which they died; `sent_bytes`: of headers that were
    written, and TARGET_BYTES for each target, a measure of what it has cost; `places`: to how many
    targets the last one went."""

    def __init__(
        self, queue: str, headers: HeaderCodec, engine: StorageEngine,
        on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self.route: DeadLetterRoute | None = None
        self.counts: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.dropped: int = 0
        self.total: DeathCounts | None = None
        self.cycles: int = 0
        self.sent_bytes: int = 0
        self.places: int = 1
        self.hops: int = 0  # moves before this one in the call; set by the queue
        self.waiting: deque[LargeLetter] = deque()  # being sent in steps
        self.on_sent: Callable[[], None] = nothing  # after the last of them
        self._when_sent: list[Callable[[], None]] = []  # the same, once
        self._queue = queue
        self._headers = headers
        self.engine: StorageEngine = engine
        self._on_event = on_event
        self._last_event: str = ""

    def send(
        self, source: BackingQueue, delivery: Delivery, priority: int, reason: str, attempts: int,
        mode: int,
    ) -> int:  # fmt: skip
        """Move a pending message of `source` to its targets, or drop it. attempts: how often it was
        delivered. Return the LSN of the record."""
        routed = self._routed(delivery.message.header, reason, attempts)
        route = self.route
        if route is not None and (self.waiting or is_long(routed, delivery.message)):
            letter = LargeLetter(self, route, source, delivery.tag, routed.header, priority, reason)
            letter.mode = max(mode, OS)
            if route.later(letter):
                self.waiting.append(letter)
                return 0
        return self.send_routed(source, delivery, priority, reason, mode, routed)

    def send_routed(
        self, source: BackingQueue, delivery: Delivery, priority: int, reason: str, mode: int,
        routed: Routed,
    ) -> int:  # fmt: skip
        """Send a message to these targets, as `send`."""
        message = delivery.message
        passing = self.refusing(routed, message.size)
        for target in passing:
            stored = message if message.body is None and is_large(message) else None
            body = b"" if stored is not None else _body_of(source, delivery)
            own_mode = mode if message.persistent else NONE
            target.pass_on(routed.header, body, priority, own_mode, stored)
        if not routed.targets:
            source.ack([delivery.tag], mode)
            self.count(reason, 1, 0 if passing else 1)
            return 0
        destinations, streams = _landing(routed, priority)
        lsn = move_to(
            destinations, source, delivery, max(mode, OS), self.engine, streams, routed.header
        )
        self.count_taken(reason, routed)
        return lsn

    def send_run(self, source: BackingQueue, tags: list[int], reason: str, mode: int) -> int:
        """Move the first of these pending messages of `source`, as many as go the same way, to
        their target in one record of RUN_BYTES at most. Return how many; 0: the first needs
        `send`."""
        route = self.route
        first = source.pending(tags[0])
        if route is None or first is None or self.waiting:
            return 0
        address = route.address(first.message.header)
        name = route.only_target(first.message.header)
        target = None if name is None else route.target(name)
        if name is None or not isinstance(target, QueueTarget) or not target.takes_runs():
            return 0
        to = target.destination(b"", 0)
        index = _index(to)
        is_persistent = first.message.persistent
        if is_persistent and not index.is_durable:
            return 0
        death = Death(self._queue, reason, self.engine.clock.wall_ms())
        run: list[Delivery] = []
        headers: list[bytes] = []
        size = 0
        dying = DyingTogether(self, route, death, address, name)
        for tag in tags:
            delivery = source.pending(tag)
            if delivery is None or size > RUN_BYTES:
                break
            message = delivery.message
            if message.body is None or message.persistent != is_persistent:
                break
            header = dying.header_of(delivery)
            if header is None:
                break
            priority = dying.priority or tag >> PART_SHIFT
            if priority:
                own = target.destination(header, priority)
                if own.part != to.part:
                    break
                header = own.header
            size += message.size + len(header)
            run.append(delivery)
            headers.append(header)
        if run:
            mode = max(mode, OS)
            landed = to.part << PART_SHIFT | index.next_seq
            lsn = source.move_run(run, index, headers, mode, to.expiry_ms)
            if is_persistent:
                to.backing.hold(landed, lsn, mode)
            self.sent_bytes += sum([len(header) + TARGET_BYTES for header in headers])
            self.count_taken(reason, Routed(b"", [target]), len(run))
        return len(run)

    def died(self, delivery: Delivery, death: Death) -> bytes:
        """Return the header with this death, and the attempts of the delivery."""
        header = delivery.message.header
        attempts = delivery.attempts + self._headers.attempts(header)
        return self._with_death(header, replace(death, attempts=attempts) if attempts else death)

    def _with_death(self, header: bytes, death: Death) -> bytes:
        codec = self._headers
        return codec.with_death(codec.with_(header, attempts=0, expiry_ms=0), death)

    def send_new(
        self, header: bytes, body: bytes, priority: int, reason: str, mode: int,
        stored: QueuedMessage | None = None, *, may_wait: bool = False,
    ) -> int:  # fmt: skip
        """Publish a message that the queue refused to its targets, or drop it. stored: as for
        `Target.accept`. may_wait: nobody waits for the record, so that it may be sent in steps.
        Return the LSN."""
        routed = self._routed(header, reason, 0)
        lsn = 0
        route = self.route
        if may_wait and route is not None and stored is not None and is_long(routed, stored):
            letter = LargeLetter(self, route, None, 0, routed.header, priority, reason)
            if route.later(letter):
                letter.mode = max(mode, OS)
                letter.take_over(stored)
                self.waiting.append(letter)
                return 0
        passing = self.refusing(routed, len(body) if stored is None else stored.size)
        for target in passing:
            lsn = max(lsn, target.pass_on(routed.header, body, priority, mode, stored))
        if not routed.targets:
            self.count(reason, 1, 0 if passing else 1)
            return lsn
        engine = self.engine
        if stored is not None and not body and has_streams(routed):
            body = engine.bodies.read(stored)
        with engine.share(engine.placement.share_of(body, len(routed.targets))):
            if len(routed.targets) == 1:
                own_lsn = routed.targets[0].accept(routed.header, body, priority, mode, stored)
            else:
                own_lsn = _publish_to_all(routed, body, priority, mode, engine, stored)
        self.count_taken(reason, routed)
        return max(lsn, own_lsn)

    def count(self, reason: str, n: int, dropped: int = 0) -> None:
        """Count n messages that died; dropped: of them, that had a route and no target."""
        self.counts[reason] += n
        self.dropped += dropped
        if self.total is not None:
            self.total.of[reason] += n
            self.total.dropped += dropped
            if reason == MAXLEN:
                self.total.over_limit += n if self.route is None else dropped

    def count_taken(self, reason: str, routed: Routed, n: int = 1) -> None:
        """Count n messages that died and went to these targets, which apply their limits now."""
        self.count(reason, n)
        self.places = len(routed.targets)
        if not routed.kind:
            self._last_event = ""
        for target in routed.targets:
            target.after_dead_letters(self.hops + 1)

    def finish(self) -> None:
        """Send at once what is being sent in steps: the queue ends, or is deleted. What is decided
        and has no room on the disk happens later, or at the next start."""
        self.on_sent = nothing
        while self.waiting:
            letter = self.waiting[0]
            while not letter.step():
                if letter.has_no_room:
                    return

    def abandon(self) -> None:
        """Leave what is being sent in steps in the queue, which is opened again, unless its record
        is in the log."""
        self.on_sent = nothing
        while self.waiting:
            self.waiting[0].abandon()

    def when_sent(self, call: Callable[[], None]) -> None:
        """Call `call` once, after the last of those that wait: there is one. It must not change the
        queue."""
        self._when_sent.append(call)

    def ended(self) -> None:
        """Note that the first of those that wait was sent, or will not be."""
        self.waiting.popleft()
        if not self.waiting:
            calls, self._when_sent = self._when_sent, []
            for call in calls:
                call()
            self.on_sent()

    def report_damage(self, error: Exception) -> None:
        """Report that a message cannot be read, or copied."""
        self._on_event("corruption", f"queue {self._queue!r}: {error}")

    def refusing(self, routed: Routed, body_bytes: int) -> list[Target]:
        """Take the targets that are full and refuse the message out of `routed`, and the streams
        for which a record of the log has no room. Return those that pass it on."""
        taking: list[Target] = []
        passing: list[Target] = []
        text = ""
        room = self.engine.options.tx_bytes_max * STREAMS_PERCENT // 100
        for target in routed.targets:
            if isinstance(target, StreamTarget):
                room -= len(routed.header) + body_bytes + RECORD_BYTES
                if room < 0:
                    text = "a dead letter is too large for so many streams: some do not get it"
                else:
                    taking.append(target)
            elif not target.refuses(body_bytes):
                taking.append(target)
            elif target.passes_on():
                passing.append(target)
            else:
                text = "a queue for its dead letters is full and refuses them: dropped"
        if text:
            routed.kind = FULL
            self._report(FULL, text)
        routed.targets = taking
        return passing

    def _report(self, kind: str, text: str) -> None:
        """Report an event, the first of a row."""
        if self._last_event != kind:
            self._last_event = kind
            self._on_event(kind, f"queue {self._queue!r}: {text}")

    def _routed(self, header: bytes, reason: str, attempts: int) -> Routed:
        if self.route is None:
            return Routed(header, [])
        death = Death(self._queue, reason, self.engine.clock.wall_ms(), attempts)
        header = self._with_death(header, death)
        routed = self.route.route(header, reason)
        self.cycles += routed.kind == CYCLE
        self.sent_bytes += len(header) + TARGET_BYTES * len(routed.targets)
        if routed.kind:
            self._report(routed.kind, routed.text)
        return routed


def is_long(routed: Routed, message: QueuedMessage) -> bool:
    """Return whether a message is so large for the streams that it goes to, or for the copy that
    queues need which are not durable, that it is sent in steps."""
    streams = [target for target in routed.targets if isinstance(target, StreamTarget)]
    return len(streams) * message.size > AT_ONCE_BYTES or wants_copy(routed, message)


def has_streams(routed: Routed) -> bool:
    """Return whether a stream is among the targets."""
    return any(isinstance(target, StreamTarget) for target in routed.targets)


def wants_copy(routed: Routed, message: QueuedMessage) -> bool:
    """Return whether a large body must be copied to the store of transient messages."""
    if message.body is not None or not message.persistent or not is_large(message):
        return False
    for target in routed.targets:
        if isinstance(target, QueueTarget) and not target.keeps_persistent():
            return True
    return False


class LargeLetter:
    """The sending of one dead letter in steps: its body is read, then logged for each stream in a
    part of one transaction, which then take effect one by one; before, it is copied for queues that
    are not durable. One that only waits for such a one is sent in one step. source: where its
    message is pending; None: in no queue, as it was refused (`take_over`). next_bytes: what the
    next step logs. is_over: there is none. has_no_room: a step that must happen found the disk
    full."""

    def __init__(
        self, letters: DeadLetters, route: DeadLetterRoute, source: BackingQueue | None, tag: int,
        header: bytes, priority: int, reason: str,
    ) -> None:  # fmt: skip
        self.mode: int = OS
        self.next_bytes: int = 0
        self.is_over: bool = False
        self.has_no_room: bool = False
        self._letters: DeadLetters = letters
        self._route: DeadLetterRoute = route
        self._source: BackingQueue | None = source
        self._tag: int = tag
        self._refused: QueuedMessage | None = None
        self._header: bytes = header
        self._priority: int = priority
        self._reason: str = reason
        self._body: BodyPieces = BodyPieces()
        self._reading: StoredBody | None = None
        self._routed: Routed = Routed(header, [])
        self._transaction: Transaction | None = None
        self._is_decided: bool = False  # it is committed: its message leaves the queue
        self._landing: list[tuple[Published, list[Destination]]] = []
        self._copied: list[Destination] = []
        self._message: QueuedMessage | None = None  # whose body is kept until the end
        self._copying: CopyingBody | None = None
        self._copy: QueuedMessage | None = None  # in the store of transient messages; the same

    def step(self) -> bool:
        """Do a step. Returns whether it was the last one: the letter is sent, or its message is
        back in the queue because the disk is full, or cannot be read and stays pending."""
        if self.is_over:
            return True
        try:
            transaction = self._transaction
            if transaction is None:
                return self._begin()
            if not transaction.is_open:
                transaction.apply_part(self.mode)
                return self._applied(transaction)
            if transaction.write_part(self.mode):
                return False
            self.next_bytes = 0
            transaction.commit(self.mode)
            self._is_decided = True
            return self._applied(transaction)
        except DiskFullError:
            if self._is_decided:
                self.has_no_room = True
                return False  # the next step tries again
            if self._source is not None:
                self._source.requeue([self._tag], OS, attempted=False)
            else:
                self._letters.count(self._reason, 1, 1)
        except (CorruptionError, OSError) as error:
            self._letters.report_damage(error)
        return self._end()

    def take_over(self, message: QueuedMessage) -> None:
        """Keep the body of a message that was refused until the letter is sent."""
        self._refused = message
        self._letters.engine.bodies.own(message)

    def abandon(self) -> None:
        """End it: its message stays in the queue, unless it is decided that it leaves."""
        transaction = self._transaction
        if transaction is not None and self._is_decided:
            while transaction.has_parts:
                transaction.apply_part(self.mode)
        elif transaction is not None and transaction.is_open:
            transaction.rollback()
        self._end()

    def _end(self) -> bool:
        self.is_over = True
        if self._reading is not None:
            self._reading.close()
        message, self._message = self._message, None
        if message is not None and message.store_file:
            self._letters.engine.bodies.disown(message)
        if self._refused is not None:
            self._letters.engine.bodies.disown(self._refused)
        if self._copy is not None:
            self._letters.engine.bodies.disown(self._copy)
        elif self._copying is not None:
            self._copying.abandon()
        self._letters.ended()
        return True

    def _begin(self) -> bool:
        source, message = self._source, self._refused
        delivery = None if source is None else source.pending(self._tag)
        if delivery is not None:
            message = delivery.message
        if message is None:
            return self._end()
        routed = self._routed = self._route.route(self._header, self._reason)
        if source is not None and delivery is not None and not is_long(routed, message):
            self._letters.send_routed(
                source, delivery, self._priority, self._reason, self.mode, routed
            )
            return self._end()
        if has_streams(routed) and not self._read(message):
            return False
        if wants_copy(routed, message) and not self._is_copied(message):
            return False
        stored = message if message.body is None and message.store_file else None
        for target in self._letters.refusing(routed, message.size):
            body = b"" if stored is not None else b"".join(self._body.pieces)
            mode = self.mode if message.persistent else NONE
            target.pass_on(routed.header, body, self._priority, mode, stored)
        transaction = self._begin_transaction(message)
        if not (transaction.publishes or transaction.appends or transaction.dequeues):
            transaction.rollback()
            return self._applied(transaction)
        if has_streams(routed):
            self.next_bytes = message.size
        return False

    def _is_copied(self, message: QueuedMessage) -> bool:
        """Copy some of the body for queues that are not durable; return whether that is all."""
        bodies = self._letters.engine.bodies
        if self._copy is None:
            if self._copying is None:
                self._copying = CopyingBody(bodies, message)
            if not self._copying.step(READ_PIECES * READ_BYTES):
                return False
            bodies.own(self._copying.copy)
            self._copy = self._copying.copy
        return True

    def _read(self, message: QueuedMessage) -> bool:
        """Read some of the body; return whether that is all."""
        if message.body is not None:
            self._body = pieces_of(message.body)
            return True
        reading = self._reading
        if reading is None:
            reading = self._reading = self._letters.engine.bodies.open(message)
        for _ in range(READ_PIECES):
            if reading.left:
                self._body.add(reading.read(READ_BYTES))
        return not reading.left

    def _begin_transaction(self, message: QueuedMessage) -> Transaction:
        """Collect what the record says. Targets that were deleted meanwhile leave it."""
        header = self._routed.header
        engine = self._letters.engine
        transaction = self._transaction = engine.begin()
        transaction.dequeues_last = True
        self._message = message
        if message.store_file:
            engine.bodies.own(message)
        groups: dict[tuple[bytes, int], list[Destination]] = {}
        for target in self._routed.targets:
            if isinstance(target, StreamTarget):
                target.append(transaction, header, b"", self._body)
                continue
            assert isinstance(target, QueueTarget)
            each = target.destination(header, self._priority)
            if message.persistent and message.store_file and _index(each).is_durable:
                groups.setdefault((each.header, each.expiry_ms), []).append(each)
            else:
                self._copied.append(each)
        for (own, expiry_ms), landing in groups.items():
            targets = [_index(each) for each in landing]
            published = transaction.publish_stored(targets, own, message, expiry_ms)
            self._landing.append((published, landing))
        if self._source is not None:
            for index, entries in self._source.entries([self._tag]):
                transaction.dequeue(index, entries)
        return transaction

    def _applied(self, transaction: Transaction) -> bool:
        """Go on after a part has taken effect; return whether it was the last one."""
        engine = self._letters.engine
        while self._landing and self._landing[0][0].is_applied:
            published, landing = self._landing.pop(0)
            self._hold(published, landing, engine.log.last_lsn)
        if transaction.has_parts:
            return False
        if self._source is not None:
            self._source.forget([self._tag])
        try:
            self._publish_copies()
        except (DiskFullError, CorruptionError, OSError) as error:
            self._letters.report_damage(error)
        self._letters.count_taken(self._reason, self._routed)
        return self._end()

    def _publish_copies(self) -> None:
        """Publish it to queues that are not durable. DiskFullError, CorruptionError, OSError."""
        engine = self._letters.engine
        message = self._message
        assert message is not None
        stored = self._copy or message
        for each in self._copied:
            if message.body is not None:
                engine.publish_transient(
                    [_index(each)], each.header, message.body, each.expiry_ms, has_left=True
                )
                continue
            stored = engine.bodies.placed(stored, is_persistent=False)
            engine.publish_stored([_index(each)], each.header, stored, each.expiry_ms)

    def _hold(self, published: Published, landing: list[Destination], lsn: int) -> None:
        """Hold a message in its queues until the record that brought it is settled."""
        seqs = {
            index.number: entry.seq
            for index, entry in zip(published.queues, published.born, strict=True)
        }
        for each in landing:
            seq = seqs.get(_index(each).number)
            if seq is not None:
                each.backing.hold(each.part << PART_SHIFT | seq, lsn, self.mode)


def nothing() -> None:
    """Do nothing."""


class DyingTogether:
    """The headers of messages that die together and go by one address to the queue `name`. Many are
    alike, so what was found for the last one is kept. priority: of the last one's header."""

    def __init__(
        self, letters: DeadLetters, route: DeadLetterRoute, death: Death, address: bytes | None,
        name: str,
    ) -> None:  # fmt: skip
        self.priority: int = 0
        self._letters: DeadLetters = letters
        self._route: DeadLetterRoute = route
        self._death: Death = death
        self._address: bytes | None = address
        self._names: list[str] = [name]
        self._before: bytes | None = None
        self._attempts: int = 0
        self._after: bytes | None = None

    def header_of(self, delivery: Delivery) -> bytes | None:
        """Return the header that the message has there, None if it needs `send`."""
        before = delivery.message.header
        if before == self._before and delivery.attempts == self._attempts:
            return self._after
        self._before, self._attempts, self._after = before, delivery.attempts, None
        self.priority = self._route.headers.priority(before)
        if self._route.address(before) == self._address:
            after = self._route.readdressed(self._letters.died(delivery, self._death))
            if self._death.reason == REJECTED or not self._route.may_return(after, self._names):
                self._after = after
        return self._after


# ---- moving --------------------------------------------------------------------------------------


def move_to(
    destinations: list[Destination], source: BackingQueue, delivery: Delivery, mode: int,
    engine: StorageEngine, streams: Sequence[StreamTarget] = (), header: bytes = b"",
) -> int:  # fmt: skip
    """Move a pending message of `source` to the end of each destination, where it is held until its
    record is settled, and into streams with this header. Return the LSN, or 0.

    A persistent message for queues that are not durable is published there and then acknowledged: a
    crash may leave it in the source, never in neither."""
    message, tag = delivery.message, delivery.tag
    durable = [each for each in destinations if _index(each).is_durable]
    is_lost = message.persistent and not durable
    if message.body is None and is_large(message) and not streams and not _is_even(destinations):
        return _move_stored(destinations, source, delivery, mode, engine)
    if not streams and not is_lost and _is_even(destinations):
        first = destinations[0]
        targets = [_index(each) for each in destinations]
        lsn = source.move(tag, targets, first.header, mode, first.expiry_ms)
    else:
        logged, copied = _by_durability(destinations, is_persistent=message.persistent)
        lsn = 0
        if message.body is None and is_large(message) and not (streams or logged):
            stored = engine.bodies.placed(message, is_persistent=False)
            for each in copied:
                engine.publish_stored([_index(each)], each.header, stored, each.expiry_ms)
        else:
            body = _body_of(source, delivery)
            with engine.share(engine.placement.share_of(body, len(destinations), message)):
                if streams or logged:
                    lsn = _move_apart(logged, streams, header, body, source, tag, mode, engine)
                has_left = bool(streams or logged)
                for each in copied:
                    engine.publish_transient(
                        [_index(each)], each.header, body, each.expiry_ms, has_left=has_left
                    )
                    has_left = True
        if not (streams or logged):
            source.ack([tag], mode)
    if message.persistent:
        _hold_landed(durable, lsn, mode)
    return lsn


def _move_stored(
    destinations: list[Destination], source: BackingQueue, delivery: Delivery, mode: int,
    engine: StorageEngine,
) -> int:  # fmt: skip
    """Move a large message to queues that give it different headers or expiries: all share its body
    in the store, which is not read."""
    message, tag = delivery.message, delivery.tag
    logged, copied = _by_durability(destinations, is_persistent=message.persistent)
    # This may fail; until then nothing has changed.
    stored = engine.bodies.placed(message, is_persistent=False) if copied else message
    lsn = 0
    engine.bodies.own(message)
    try:
        if logged:
            lsn = _move_apart(logged, (), b"", b"", source, tag, mode, engine, message)
        for each in copied:
            engine.publish_stored([_index(each)], each.header, stored, each.expiry_ms)
        if not logged:
            source.ack([tag], mode)
    finally:
        engine.bodies.disown(message)
    _hold_landed(logged, lsn, mode)
    return lsn


def _landing(routed: Routed, priority: int) -> tuple[list[Destination], list[StreamTarget]]:
    """Return where in its queues a message would be appended now, and the streams."""
    destinations: list[Destination] = []
    streams: list[StreamTarget] = []
    for target in routed.targets:
        if isinstance(target, StreamTarget):
            streams.append(target)
        else:
            assert isinstance(target, QueueTarget)
            destinations.append(target.destination(routed.header, priority))
    return destinations, streams


def _publish_to_all(
    routed: Routed, body: bytes, priority: int, mode: int, engine: StorageEngine,
    stored: QueuedMessage | None,
) -> int:  # fmt: skip
    """Publish a message that is in no queue: in one record to streams and, if it is persistent, to
    durable queues, then to the others. stored: as for `Target.accept`. Return the LSN, or 0.
    DiskFullError: none of them has it."""
    destinations, streams = _landing(routed, priority)
    logged, copied = _by_durability(destinations, is_persistent=mode != NONE)
    bodies = engine.bodies
    copy = bodies.placed(stored, is_persistent=False) if stored is not None and copied else None
    lsn = 0
    if streams:
        if stored is not None and logged:
            stored = bodies.placed(stored, is_persistent=True)
        lsn = _move_apart(
            logged, streams, routed.header, body, None, 0, max(mode, OS), engine, stored
        )
    elif logged:
        groups = _groups(logged)
        kinds = [(groups[kind], kind[0], kind[1]) for kind in groups]
        engine.publish_kinds(kinds, body, mode, stored)
        lsn = engine.log.last_lsn
    has_left = lsn > 0
    for each in copied:
        targets = [_index(each)]
        if copy is not None:
            engine.publish_stored(targets, each.header, copy, each.expiry_ms)
        else:
            engine.publish_transient(targets, each.header, body, each.expiry_ms, has_left=has_left)
        has_left = True
    return lsn


def _by_durability(
    destinations: list[Destination], *, is_persistent: bool
) -> tuple[list[Destination], list[Destination]]:
    """Return those where the message outlives a crash, and the others."""
    logged: list[Destination] = []
    others: list[Destination] = []
    for each in destinations:
        (logged if is_persistent and _index(each).is_durable else others).append(each)
    return logged, others


def _groups(destinations: list[Destination]) -> dict[tuple[bytes, int], list[QueueIndex]]:
    """Return (header, expiry) -> those that give these to a message."""
    groups: dict[tuple[bytes, int], list[QueueIndex]] = {}
    for each in destinations:
        groups.setdefault((each.header, each.expiry_ms), []).append(_index(each))
    return groups


def _hold_landed(durable: list[Destination], lsn: int, mode: int) -> None:
    """Hold the last message of each destination until the record that brought it is settled."""
    for each in durable:
        landed = each.part << PART_SHIFT | (_index(each).next_seq - 1)
        each.backing.hold(landed, lsn, mode)


def _body_of(source: BackingQueue, delivery: Delivery) -> bytes:
    body = delivery.message.body
    if body is None:
        loaded = source.pending(delivery.tag, with_body=True)
        assert loaded is not None
        body = loaded.message.body or b""
    return body


def _move_apart(
    destinations: list[Destination], streams: Sequence[StreamTarget], header: bytes, body: bytes,
    source: BackingQueue | None, tag: int, mode: int, engine: StorageEngine,
    stored: QueuedMessage | None = None,
) -> int:  # fmt: skip
    """Move to queues that give the message different headers or expiries, and to streams, in one
    record. Destinations that agree share a message. source: None if it is in no queue. stored: all
    share its body in the store."""
    transaction = engine.begin()
    try:
        for (own, expiry_ms), targets in _groups(destinations).items():
            if stored is None:
                transaction.publish(targets, own, body, expiry_ms)
            else:
                transaction.publish_stored(targets, own, stored, expiry_ms)
        for stream in streams:
            stream.append(transaction, header, body)
        for index, entries in source.entries([tag]) if source is not None else ():
            transaction.dequeue(index, entries)
        lsn = transaction.commit(mode)
    finally:
        if transaction.is_open:
            transaction.rollback()
    if source is not None:
        source.forget([tag])
    return lsn


def _is_even(destinations: list[Destination]) -> bool:
    """Return whether all destinations have the same header and expiry."""
    first = destinations[0]
    for each in destinations:
        if each.header != first.header or each.expiry_ms != first.expiry_ms:
            return False
    return True


def _index(destination: Destination) -> QueueIndex:
    return destination.backing.index(destination.part)
