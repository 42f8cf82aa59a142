"""Dead letters: where a message goes that expired, was rejected, did not fit, or failed too often.

It moves: one record takes it out of its queue and appends it to the target, so no crash loses or
doubles it. (RabbitMQ publishes first and acknowledges then, and promises neither.) Several targets
are one record as well. Its header is told where, why and when it died, and forgets what belonged to
the life before: attempts and expiry. RabbitMQ removes the expiry for the same reason: it would
expire again at once.

Where to is asked of a `DeadLetterRoute` at the moment of death. The embedded library has one queue
by name (`QueueRoute`); the broker asks its exchanges.

A message may come back to a queue that it died in, if somebody rejected it on the way: a decision
was made each time. A cycle of nothing but automatic deaths would turn for ever, so it ends where
RabbitMQ ends it: the message is dropped. `is_cycle` is its rule. A chain of queues without a cycle
ends, too: after HOPS_MAX deaths in a row that nobody decided the message is dropped. RabbitMQ has
no such limit; its queues are processes, while here one chain would hold up all clients of a vhost.

A queue that gets dead letters keeps its limits, so a message may at once die there, too, and move
on. NESTED_HOPS_MAX of these steps are done in one call, so that a chain needs no stack of its
length; the queue where it stops goes on at its next tick.

Without a target, or when the target does not exist, the message is dropped too. What is dropped is
counted, and the first of a row is an event: dead_letter_missing, dead_letter_cycle,
dead_letter_hops.

What is not durable gets its copy in RAM. If some targets are durable and others not, the durable
ones share the record, and the others get theirs then: a crash in between takes nothing from them
that it would have left. A stream gets a record of its own, in the same record of the log.

Not here: the target's limits (it keeps them itself, and never refuses a dead letter), exchanges.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from penstock.message import Message, is_large
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import PART_SHIFT, BackingQueue, Delivery
from penstock.queues.headers import REASONS, REJECTED, Death, HeaderCodec
from penstock.storage.durability import DISK, NONE, OS
from penstock.storage.engine import StorageEngine
from penstock.storage.queue_index import QueueIndex
from penstock.storage.sharing import Sharing
from penstock.storage.transaction import Transaction

SEQ_MASK: Final = (1 << PART_SHIFT) - 1
MISSING: Final = "dead_letter_missing"
CYCLE: Final = "dead_letter_cycle"
HOPS: Final = "dead_letter_hops"
HOPS_MAX: Final = 128  # queues that a message dies in without a reject on the way
NESTED_HOPS_MAX: Final = 8  # that one call makes


class Landing:
    """Where a message that moves comes to lie: in a part of a queue, with this header; expiry_ms:
    since 1970, 0 for never."""

    __slots__ = ("backing", "expiry_ms", "header", "part")

    def __init__(self, backing: BackingQueue, part: int, header: bytes, expiry_ms: int) -> None:
        self.backing: BackingQueue = backing
        self.part: int = part
        self.header: bytes = header
        self.expiry_ms: int = expiry_ms


@mypyc_attr(allow_interpreted_subclasses=True)
class Target(ABC):
    """What messages of other queues may move to."""

    @abstractmethod
    def accept(self, header: bytes, body: bytes, priority: int, mode: int) -> int:
        """Publish here what another queue refused. Returns the LSN (0: transient)."""

    @abstractmethod
    def after_dead_letters(self, hops: int = 0) -> None:
        """Dead letters have come: keep the limits, wake who waits. hops: how many times messages
        have moved on in this call already; from NESTED_HOPS_MAX on the limits wait for a tick."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Taker(Target):
    """A queue: the message itself moves there."""

    @abstractmethod
    def landing(self, header: bytes, priority: int) -> Landing:
        """Where a message of this header and priority would come to lie, now. It is delivered once
        the record of its move is settled."""


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamTaker(Target):
    """A stream: it gets a record of the message."""

    @abstractmethod
    def enter(self, transaction: Transaction, header: bytes, body: bytes) -> None:
        """Have the transaction append the record."""


class Routed:
    """Where a dead message goes, and with which header. kind, text: of an event to tell, if it goes
    to fewer queues than somebody may think; "" for none."""

    __slots__ = ("header", "kind", "takers", "text")

    def __init__(self, header: bytes, takers: list[Target], kind: str = "", text: str = "") -> None:
        self.header: bytes = header
        self.takers: list[Target] = takers
        self.kind: str = kind
        self.text: str = text


@mypyc_attr(allow_interpreted_subclasses=True)
class DeadLetterRoute(ABC):
    """Where the dead letters of one queue go."""

    @abstractmethod
    def route(self, header: bytes, reason: str) -> Routed:
        """For a message that has just died; the header says so already. Each taker is there once.
        Never raises for what the message says."""


def is_cycle(target: str, deaths: list[Death]) -> bool:
    """Whether the message, whose deaths these are (the last first), would come back to a queue that
    it died in, and nobody rejected it since."""
    for death in deaths:
        if death.reason == REJECTED:
            return False
        if death.queue == target:
            return True
    return False


def is_too_far(deaths: list[Death]) -> bool:
    """Whether the message died in HOPS_MAX queues (the last death first), and nobody rejected it
    since."""
    if len(deaths) < HOPS_MAX:
        return False
    return not [death for death in deaths[:HOPS_MAX] if death.reason == REJECTED]


def far_text(queue: str) -> str:
    """The text of the event."""
    return f"a dead letter died in {HOPS_MAX} queues, last in {queue!r}: dropped"


class QueueRoute(DeadLetterRoute):
    """To the queue named `target`, which `find` finds if it exists."""

    def __init__(
        self, target: str, headers: HeaderCodec, find: Callable[[bytes], Taker | None]
    ) -> None:
        self._target = target
        self._headers = headers
        self._find = find

    def route(self, header: bytes, reason: str) -> Routed:
        target = self._target
        if reason != REJECTED:
            deaths = self._headers.deaths(header)
            if is_cycle(target, deaths):
                text = f"its dead letters come back from {target!r}: dropped"
                return Routed(header, [], CYCLE, text)
            if is_too_far(deaths):
                return Routed(header, [], HOPS, far_text(deaths[0].queue))
        taker = self._find(target.encode("utf-8", "surrogateescape"))
        if taker is None:
            return Routed(header, [], MISSING, f"no queue {target!r} for dead letters: dropped")
        return Routed(header, [taker])


class DeadLetters:
    """The dead letters of one queue. `route`: where they go, or None. `counts`: how many died for
    each reason; `dropped`: how many of them nobody got."""

    def __init__(
        self, queue: str, headers: HeaderCodec, engine: StorageEngine,
        on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self.route: DeadLetterRoute | None = None
        self.counts: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.dropped: int = 0
        self.hops: int = 0  # that led to what the queue buries now; set by the queue
        self._queue = queue
        self._headers = headers
        self._engine = engine
        self._on_event = on_event
        self._last_event: str = ""

    def bury(
        self, source: BackingQueue, delivery: Delivery, priority: int, reason: str, attempts: int,
        mode: int,
    ) -> int:  # fmt: skip
        """A pending message of `source`, with its header, dies for this reason after so many
        deliveries: it moves to its targets, or is dropped. Returns the LSN of its record."""
        routed = self._routed(delivery.message.header, reason, attempts)
        if not routed.takers:
            source.ack([delivery.tag], mode)
            self._count_dropped(reason)
            return 0
        header = routed.header
        landings: list[Landing] = []
        streams: list[StreamTaker] = []
        for taker in routed.takers:
            if isinstance(taker, StreamTaker):
                streams.append(taker)
            else:
                assert isinstance(taker, Taker), "there is no third kind"
                landings.append(taker.landing(header, priority))
        move = Move(landings, streams, header, source, delivery)
        lsn = move.run(max(mode, OS), self._engine)
        self._count_taken(reason, routed)
        return lsn

    def bury_new(self, header: bytes, body: bytes, priority: int, reason: str, mode: int) -> int:
        """A message that did not get into the queue goes to its targets, or nowhere. Its LSN."""
        routed = self._routed(header, reason, 0)
        if not routed.takers:
            self._count_dropped(reason)
            return 0
        lsn = 0
        engine = self._engine
        with Sharing(engine, engine.share_of(body, len(routed.takers))):
            for taker in routed.takers:
                lsn = max(lsn, taker.accept(routed.header, body, priority, mode))
        self._count_taken(reason, routed)
        return lsn

    def count(self, reason: str, n: int) -> None:
        """So many died that nobody was to get."""
        self.counts[reason] += n

    def _count_dropped(self, reason: str) -> None:
        self.counts[reason] += 1
        self.dropped += 1

    def _count_taken(self, reason: str, routed: Routed) -> None:
        self.counts[reason] += 1
        if not routed.kind:
            self._last_event = ""
        for taker in routed.takers:
            taker.after_dead_letters(self.hops + 1)

    def _routed(self, header: bytes, reason: str, attempts: int) -> Routed:
        if self.route is None:
            return Routed(header, [])
        death = Death(self._queue, reason, self._engine.clock.wall_ms(), attempts)
        header = self._headers.with_death(
            self._headers.with_(header, attempts=0, expiry_ms=0), death
        )
        routed = self.route.route(header, reason)
        if routed.kind and self._last_event != routed.kind:
            self._last_event = routed.kind
            self._on_event(routed.kind, f"queue {self._queue!r}: {routed.text}")
        return routed


# ---- moving --------------------------------------------------------------------------------------


class Move:
    """A pending message of `source` on its way to where it lands, at the end of each, held there
    until its record is settled; and to streams, with this header."""

    __slots__ = ("body", "delivery", "header", "landings", "source", "streams")

    def __init__(
        self, landings: list[Landing], streams: list[StreamTaker], header: bytes,
        source: BackingQueue, delivery: Delivery,
    ) -> None:  # fmt: skip
        self.landings: list[Landing] = landings
        self.streams: list[StreamTaker] = streams
        self.header: bytes = header
        self.source: BackingQueue = source
        self.delivery: Delivery = delivery
        self.body: bytes | None = delivery.message.body

    def run(self, mode: int, engine: StorageEngine) -> int:
        """Do it; the LSN, or 0. A persistent message for queues that are not durable is published
        there and then acknowledged: a crash may leave it in the source, never in neither."""
        message = self.delivery.message
        source = self.source
        landings = self.landings
        tag = self.delivery.tag
        durable = [each for each in landings if _index(each).is_durable]
        is_lost = message.persistent and not durable
        if not self.streams and not is_lost and _is_even(landings):
            targets = [_index(each) for each in landings]
            lsn = source.move(tag, targets, landings[0].header, mode, landings[0].expiry_ms)
        elif self._goes_by_reference(is_lost=is_lost):
            lsn = self._copy(durable, mode, engine)
        else:
            body = self._load_body()  # while the source still has it
            with Sharing(engine, engine.share_of(body, len(landings), message)):
                lsn = self._copy(durable, mode, engine)
        if message.persistent:
            for each in durable:
                landed = each.part << PART_SHIFT | (_index(each).next_seq - 1)
                each.backing.hold(landed, lsn, mode)
        return lsn

    def _goes_by_reference(self, *, is_lost: bool) -> bool:
        """Return whether its large body stays on disk: only transient copies of it are made."""
        message = self.delivery.message
        if self.body is not None or not is_large(message) or self.streams:
            return False
        return is_lost or not message.persistent

    def _copy(self, durable: list[Landing], mode: int, engine: StorageEngine) -> int:
        """Publish it to each where it lands, and acknowledge it. The LSN, or 0."""
        is_persistent = self.delivery.message.persistent
        if self.streams:
            lsn = self._apart(durable if is_persistent else [], mode, engine)
            self._publish_copies(engine, durable=not is_persistent)
            return lsn
        if is_persistent and durable:
            lsn = self._apart(durable, mode, engine)
            self._publish_copies(engine, durable=False)
            return lsn
        self._publish_copies(engine)
        self.source.ack([self.delivery.tag], mode)
        return 0

    def _load_body(self) -> bytes:
        body = self.body
        if body is None:
            loaded = self.source.pending(self.delivery.tag, with_body=True)
            assert loaded is not None
            body = self.body = loaded.message.body or b""
        return body

    def _publish_copies(self, engine: StorageEngine, *, durable: bool = True) -> None:
        """What lands in RAM; durable=False: without those queues that are durable."""
        message = self.delivery.message
        mode = DISK if message.persistent else NONE
        if self.body is None and is_large(message):
            self._share_copies(engine, durable=durable)
            return
        for each in self.landings:
            if durable or not _index(each).is_durable:
                each.backing.publish(
                    each.header, self._load_body(), mode, expiry_ms=each.expiry_ms,
                    priority=each.part,
                )  # fmt: skip

    def _share_copies(self, engine: StorageEngine, *, durable: bool) -> None:
        """The same, of a large message: what lands shares one body, in the transient store."""
        stored: Message | None = None
        for each in self.landings:
            index = _index(each)
            if durable or not index.is_durable:
                if stored is None:
                    stored = engine.in_transient(self.delivery.message)
                engine.publish_stored([index], each.header, stored, each.expiry_ms)

    def _apart(self, landings: list[Landing], mode: int, engine: StorageEngine) -> int:
        """Move to queues that give the message different headers or expiries, and to streams, in
        one record. Those that agree share a message."""
        body = self._load_body()
        source = self.source
        groups: dict[tuple[bytes, int], list[QueueIndex]] = {}
        for each in landings:
            groups.setdefault((each.header, each.expiry_ms), []).append(_index(each))
        transaction = engine.begin()
        try:
            for (header, expiry_ms), targets in groups.items():
                transaction.publish(targets, header, body, expiry_ms)
            for stream in self.streams:
                stream.enter(transaction, self.header, body)
            for index, entries in source.entries([self.delivery.tag]):
                transaction.dequeue(index, entries)
            lsn = transaction.commit(mode)
        finally:
            if transaction.is_open:
                transaction.rollback()
        source.forget([self.delivery.tag])
        return lsn


def move_to(
    landings: list[Landing], source: BackingQueue, delivery: Delivery, mode: int,
    engine: StorageEngine,
) -> int:  # fmt: skip
    """Move a pending message of `source` to where it lands; see Move."""
    return Move(landings, [], b"", source, delivery).run(mode, engine)


def _is_even(landings: list[Landing]) -> bool:
    """Whether one header and one expiry are for all."""
    first = landings[0]
    for each in landings:
        if each.header != first.header or each.expiry_ms != first.expiry_ms:
            return False
    return True


def _index(landing: Landing) -> QueueIndex:
    return landing.backing.index(landing.part)
