"""Dead letters: where a message goes that expired, was rejected, did not fit, or failed too often.

It moves: one record takes it out of its queue and appends it to the target, so no crash loses or
doubles it. (RabbitMQ publishes first and acknowledges then, and promises neither.) Its header is
told where, why and when it died, and forgets what belonged to the life before: attempts and expiry.
RabbitMQ removes the expiry for the same reason: it would expire again at once.

A message may come back to a queue that it died in, if somebody rejected it on the way: a decision
was made each time. A cycle of nothing but automatic deaths would turn for ever, so it ends where
RabbitMQ ends it: the message is dropped. `is_cycle` is its rule.

Without a target, or when the target does not exist, the message is dropped too. What is dropped is
counted, and the first of a row is an event: dead_letter_missing, dead_letter_cycle.

Not here: the target's limits (it keeps them itself, and never refuses a dead letter), exchanges.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from penstock.clock import Clock
from penstock.native import mypyc_attr
from penstock.queues.backing_queue import PART_SHIFT, BackingQueue, Delivery
from penstock.queues.headers import REASONS, REJECTED, Death, HeaderCodec
from penstock.storage.durability import DISK

SEQ_MASK: Final = (1 << PART_SHIFT) - 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Taker(ABC):
    """A queue that messages of other queues may move to."""

    @abstractmethod
    def take(
        self, source: BackingQueue, delivery: Delivery, header: bytes, priority: int, mode: int,
        expiry_ms: int,
    ) -> int:  # fmt: skip
        """Move a pending message of `source` here, with a new header. expiry_ms: its own, 0 for
        never; this queue's time to live is added to that. It is delivered once its record is
        settled. Returns the LSN of the record (0: transient)."""

    @abstractmethod
    def accept(self, header: bytes, body: bytes, priority: int, mode: int) -> int:
        """Publish here what another queue refused. Returns the LSN (0: transient)."""

    @abstractmethod
    def after_dead_letters(self) -> None:
        """Dead letters have come: keep the limits, wake who waits."""


def is_cycle(target: str, deaths: list[Death]) -> bool:
    """Whether the message, whose deaths these are (the last first), would come back to a queue that
    it died in, and nobody rejected it since."""
    for death in deaths:
        if death.reason == REJECTED:
            return False
        if death.queue == target:
            return True
    return False


class DeadLetters:
    """The dead letters of one queue. `target`: name of the queue that gets them, or None. `counts`:
    how many died for each reason; `dropped`: how many of them nobody got."""

    def __init__(
        self, queue: str, headers: HeaderCodec, clock: Clock,
        find: Callable[[bytes], Taker | None], on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self.target: str | None = None
        self.counts: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.dropped: int = 0
        self._queue = queue
        self._headers = headers
        self._clock = clock
        self._find = find
        self._on_event = on_event
        self._last_event: str = ""

    def bury(
        self, source: BackingQueue, delivery: Delivery, priority: int, reason: str, attempts: int,
        mode: int,
    ) -> int:  # fmt: skip
        """A pending message of `source`, with its header, dies for this reason after so many
        deliveries: it moves to the target, or is dropped. Returns the LSN of its record."""
        header = self._header(delivery.message.header, reason, attempts)
        taker = self._taker(header, reason)
        if taker is None:
            source.ack([delivery.tag], mode)
            self._count_dropped(reason)
            return 0
        lsn = taker.take(source, delivery, header, priority, mode, 0)
        self._count_taken(reason)
        taker.after_dead_letters()
        return lsn

    def bury_new(self, header: bytes, body: bytes, priority: int, reason: str, mode: int) -> int:
        """A message that did not get into the queue goes to the target, or nowhere. Its LSN."""
        header = self._header(header, reason, 0)
        taker = self._taker(header, reason)
        if taker is None:
            self._count_dropped(reason)
            return 0
        lsn = taker.accept(header, body, priority, mode)
        self._count_taken(reason)
        taker.after_dead_letters()
        return lsn

    def count(self, reason: str, n: int) -> None:
        """So many died that nobody was to get."""
        self.counts[reason] += n

    def _count_dropped(self, reason: str) -> None:
        self.counts[reason] += 1
        self.dropped += 1

    def _count_taken(self, reason: str) -> None:
        self.counts[reason] += 1
        self._last_event = ""

    def _header(self, header: bytes, reason: str, attempts: int) -> bytes:
        death = Death(self._queue, reason, self._clock.wall_ms(), attempts)
        return self._headers.with_death(self._headers.with_(header, attempts=0, expiry_ms=0), death)

    def _taker(self, header: bytes, reason: str) -> Taker | None:
        target = self.target
        if target is None:
            return None
        if reason != REJECTED and is_cycle(target, self._headers.deaths(header)):
            self._event("dead_letter_cycle", f"its dead letters come back from {target!r}: dropped")
            return None
        taker = self._find(target.encode("utf-8", "surrogateescape"))
        if taker is None:
            self._event("dead_letter_missing", f"no queue {target!r} for dead letters: dropped")
        return taker

    def _event(self, kind: str, text: str) -> None:
        if self._last_event != kind:
            self._last_event = kind
            self._on_event(kind, f"queue {self._queue!r}: {text}")


def move_to(
    target: BackingQueue, part: int, source: BackingQueue, delivery: Delivery, header: bytes,
    mode: int, expiry_ms: int,
) -> int:  # fmt: skip
    """Move a pending message of `source` to the end of a part of `target`, and hold it there until
    its record is settled. A persistent message for a queue that is not durable is published there
    and then acknowledged: a crash may leave it in the source, never in neither. The LSN, or 0."""
    index = target.index(part)
    message = delivery.message
    if not index.is_durable and message.persistent:
        if message.body is None:
            loaded = source.pending(delivery.tag, with_body=True)
            assert loaded is not None
            message = loaded.message
        target.publish(header, message.body or b"", DISK, expiry_ms=expiry_ms, priority=part)
        source.ack([delivery.tag], mode)
        return 0
    lsn = source.move(delivery.tag, [index], header, mode, expiry_ms)
    if message.persistent:
        target.hold(part << PART_SHIFT | (index.next_seq - 1), lsn, mode)
    return lsn
