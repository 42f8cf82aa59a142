"""BackingQueue: the contract of what holds a queue's messages, after RabbitMQ's of that name.

The owner (the embedded library, the broker's queue) decides what happens to messages; a
BackingQueue decides where they are: in RAM, on disk, in several parts. There are two:
VariableQueue, and PriorityQueue, which is made of several.

Every implementation promises (tests/contracts/backing_queue.py tests each):

* **Order.** Messages leave in the order of their seqs. A requeued message keeps its seq and so its
  place; priorities order before seqs.
* **Ready or pending.** A message that was fetched (or dropped) with `ack_required` is *pending*
  until `ack`, `requeue`, `move` or `forget`. `len` counts the ready, `depth` both.
* **A tag is a place**: the seq, with the number of the part in the byte above 56 bits.
* **Leased** messages belong to a reader, by a record of the log: neither ready nor pending, not
  purged, and counted in `depth` only.
* **Bounded RAM.** `ram_bytes` counts all that a queue holds in RAM, pending included, and stays
  below the smallest of its limits as far as paging in steps allows: a publish pages out 4 to 32
  messages at most besides its own bytes and stops after the one that passes 64 KiB; `resume` does
  the rest.
* **Nothing is confirmed here.** Every change is a record of the engine's log; the caller confirms
  it once `engine.log.settled(mode)` has reached `engine.log.last_lsn` as it was then.
* **Held messages.** What a transaction or a move brought is delivered only once its record is
  settled, and so is a first delivery beyond the settled delivered mark: `fetch` returns None while
  the head is held, and `held` returns what to wait for.

RabbitMQ's contract has more callbacks. start, stop and recovery are the engine's here (one log for
all queues); needs_timeout and timeout are its group commit; invoke and handle_info are `resume` and
`inhale`, which the owner calls when there is time; is_duplicate, discard and zip_msgs_and_acks were
for mirrors. Messages for several queues are published once, by `engine.publish` to the `index` of
each: the engine passes them to the queue (its Holder).

Errors are the engine's (DiskFullError, StoppedError, CorruptionError ...). A paging write that
fails leaves its messages in RAM and is an event, never an error of the caller.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.message import Entry, QueuedMessage
from penstock.native import mypyc_attr
from penstock.queues.rows import Row
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.parts.lease_engine import Taken

PART_SHIFT: Final = 56
UNLIMITED: Final = 1 << 62  # bytes: no limit

A = TypeVar("A")


@mypyc_attr(acyclic=True)
class Delivery:
    """A message for a consumer. attempts: how often it was delivered before and came back, by
    REQUEUE records; the owner adds those in its header."""

    __slots__ = ("attempts", "is_redelivered", "message", "tag")

    def __init__(
        self, tag: int, message: QueuedMessage, is_redelivered: bool, attempts: int
    ) -> None:
        self.tag: int = tag
        self.message: QueuedMessage = message
        self.is_redelivered: bool = is_redelivered
        self.attempts: int = attempts


@mypyc_attr(acyclic=True)
class ReadyHead:
    """A ready message without its body: size in bytes, expiry_ms (0: never), time when it came in
    seconds since 1970."""

    __slots__ = ("expiry_ms", "id", "size", "tag", "time")

    def __init__(self, tag: int, id: int, size: int, expiry_ms: int, time: int) -> None:
        self.tag: int = tag
        self.id: int = id
        self.size: int = size
        self.expiry_ms: int = expiry_ms
        self.time: int = time


@mypyc_attr(acyclic=True)
class NewMessage:
    """A message of a batch to be published. expiry_ms: since 1970, 0 for never."""

    __slots__ = ("body", "expiry_ms", "header", "priority")

    def __init__(self, header: bytes, body: bytes, expiry_ms: int = 0, priority: int = 0) -> None:
        self.header: bytes = header
        self.body: bytes = body
        self.expiry_ms: int = expiry_ms
        self.priority: int = priority


class QueueStates:
    """How many messages all queues have in each state, and bytes: of the bodies of ready and of
    unacknowledged ones, of RAM if all ready ones were alphas. A row of a queue that has had
    transient messages counts as a beta, of any other as a gamma. over_target: queues that count
    more than their target. oldest_s: when the oldest head came that is known in RAM, in seconds
    since 1970; 0 without one."""

    def __init__(self) -> None:
        self.alphas: int = 0
        self.betas: int = 0
        self.gammas: int = 0
        self.deltas: int = 0
        self.unacked: int = 0
        self.ready_bytes: int = 0
        self.unacked_bytes: int = 0
        self.as_alphas_bytes: int = 0
        self.over_target: int = 0
        self.oldest_s: int = 0

    @property
    def ready(self) -> int:
        """Return the number of ready messages."""
        return self.alphas + self.betas + self.gammas + self.deltas


@mypyc_attr(allow_interpreted_subclasses=True)
class BackingQueue(ABC):
    """See the head of this module. `mode` is a durability mode of storage/files/durability.py."""

    # ---- arrival -------------------------------------------------------------------------------

    @abstractmethod
    def index(self, priority: int = 0) -> QueueIndex:
        """Return the QueueIndex that a message of this priority is published to; a priority above
        the highest counts as the highest."""

    @abstractmethod
    def indexes(self) -> list[QueueIndex]:
        """Return the indexes of all parts, the lowest priority first, without opening any."""

    @abstractmethod
    def publish(
        self, header: bytes, body: bytes, mode: int, *, expiry_ms: int = 0, priority: int = 0
    ) -> int:
        """Publish to this queue alone and return the tag. The message is transient if the mode is
        NONE or the queue is not durable."""

    @abstractmethod
    def batch_publish(self, messages: list[NewMessage], mode: int) -> list[int]:
        """Publish several messages and return their tags. Paging is done once, at the end."""

    @abstractmethod
    def hold(self, tag: int, lsn: int, mode: int) -> None:
        """Deliver the message of this tag, which has just arrived, and all after it only once
        `engine.log.settled(mode)` has reached `lsn`."""

    @abstractmethod
    def held(self) -> tuple[int, int] | None:
        """Return (lsn, mode) that the head waits for; None if it may be delivered, or the queue is
        empty."""

    # ---- delivery ------------------------------------------------------------------------------

    @abstractmethod
    def fetch(self, *, ack_required: bool = True, in_pieces: bool = False) -> Delivery | None:
        """Return the head, which becomes pending, or is dequeued at once without `ack_required`
        (after its body is in RAM). None if the queue is empty or the head is held. in_pieces, with
        `ack_required`: the body of a large message (message.is_large) stays in the store and
        `message.body` is None; the caller opens it (engine.bodies.open) before the message is
        settled."""

    @abstractmethod
    def count_crashes(self) -> None:
        """From now on, count a delivery of what may have been delivered before the last crash as an
        attempt when it is made, not when it comes back, so that a message that kills the process is
        found. An implementation may do nothing."""

    @abstractmethod
    def drop(self, *, ack_required: bool = True) -> ReadyHead | None:
        """Remove the head as `fetch` does, held or not, without reading the body."""

    @abstractmethod
    def head(self) -> ReadyHead | None:
        """Return the head as it is known in RAM, without reading anything."""

    @abstractmethod
    def dropwhile(self, predicate: Callable[[ReadyHead], bool], mode: int) -> ReadyHead | None:
        """Dequeue heads while the predicate is true. Return the first that it refused, which stays
        the head; None if the queue is empty."""

    # ---- settling ------------------------------------------------------------------------------

    @abstractmethod
    def ack(self, tags: list[int], mode: int) -> list[int]:
        """Acknowledge pending messages. Return their ids, in the order of the tags; unknown tags
        are ignored."""

    @abstractmethod
    def requeue(self, tags: list[int], mode: int, *, attempted: bool = True) -> list[int]:
        """Make pending messages ready at their old places. attempted: the delivery counts, and a
        record (REQUEUE) keeps the count. Return their ids, ascending by tag; unknown tags are
        ignored."""

    @abstractmethod
    def move(
        self, tag: int, targets: list[QueueIndex], header: bytes, mode: int, expiry_ms: int = 0
    ) -> int:
        """Move a pending message to the end of the targets, with a new header, in one record;
        without targets it is dropped. Return the LSN. The new message's places are the targets'
        last seqs, which the caller must hold. Raises KeyError if the message is not pending."""

    def move_run(
        self, deliveries: list[Delivery], target: QueueIndex, headers: list[bytes], mode: int,
        expiry_ms: int,
    ) -> int:  # fmt: skip
        """Move pending messages with bodies to the end of one queue, as `move` does each. If they
        are persistent and the target is durable, they may share a record. Return the LSN."""
        lsn = 0
        for i in range(len(deliveries)):
            lsn = self.move(deliveries[i].tag, [target], headers[i], mode, expiry_ms)
        return lsn

    @abstractmethod
    def pending(
        self, tag: int, *, with_header: bool = False, with_body: bool = False
    ) -> Delivery | None:
        """Return a pending message, or None. with_header: read the header if it left RAM, and with
        it a body that is not large. with_body: read any body that left RAM."""

    def pending_headers(self, tags: list[int]) -> list[Delivery]:
        """Return those of these messages that are pending, with their headers, in any order; a body
        that is not in RAM may be left out."""
        found = [self.pending(tag, with_header=True) for tag in tags]
        return [delivery for delivery in found if delivery is not None]

    @abstractmethod
    def entries(self, tags: list[int]) -> list[tuple[QueueIndex, list[Entry]]]:
        """Return the persistent ones of these pending messages, per part and ascending, for a
        transaction's `dequeue`. They stay pending. Raises KeyError for an unknown tag."""

    @abstractmethod
    def forget(self, tags: list[int]) -> None:
        """Remove pending messages that a transaction has dequeued."""

    @abstractmethod
    def fold(self, fun: Callable[[Delivery, bool, A], tuple[bool, A]], acc: A) -> A:
        """Fold over all messages, ready and pending, in order: `fun(delivery, is_pending, acc)`
        returns whether to continue, and the next acc. Nothing changes, and no body stays in RAM for
        it."""

    @abstractmethod
    def browse(self, after: int | None, n: int, *, in_pieces: bool = False) -> list[Delivery]:
        """Return the next n ready messages after the one of tag `after` (None: from the head), in
        the order of delivery, with their bodies. in_pieces: large bodies stay in the store, as for
        `fetch`. Nothing changes. Messages may come and go between calls; no message is returned
        twice."""

    @abstractmethod
    def before_last(self, n: int) -> int | None:
        """Return the tag after which `browse` returns the last n ready messages; None: there are no
        more than n. No file is read."""

    def state_of(self, tag: int) -> str:
        """Return in which state a ready message is: alpha, beta, gamma, delta."""
        return "delta"

    @abstractmethod
    def purge(self, mode: int) -> int:
        """Delete all ready messages. Return how many."""

    @abstractmethod
    def purge_acks(self, mode: int) -> int:
        """Delete all pending messages. Return how many."""

    # ---- leases --------------------------------------------------------------------------------

    @abstractmethod
    def take(self, messages_max: int, bytes_max: int, now_ms: int) -> list[Taken]:
        """Remove heads to be leased, with their bodies, but for those of large messages: at most so
        many messages, and so many bytes or one message; none that is held, or expired at `now_ms`.
        They are neither ready nor pending: the caller must call `leased` or `untake` next."""

    @abstractmethod
    def may_take(self) -> bool:
        """Return whether there is a head that is not held. (The delivered mark does not hold it:
        the record of a lease raises the mark.)"""

    @abstractmethod
    def leased_count(self) -> int:
        """Return how many messages are leased, by all readers."""

    @abstractmethod
    def untake(self, taken: list[Taken]) -> None:
        """Return taken messages to their places, because they were not leased."""

    @abstractmethod
    def leased(self, taken: list[Taken], lsn: int) -> None:
        """Forget taken messages, because the record with this LSN leased them."""

    @abstractmethod
    def returning(self, index: QueueIndex, seqs: list[int]) -> list[Row]:
        """Return the rows of leased messages of one segment, ascending, that are about to be
        released, without damaged ones. Raises OSError."""

    @abstractmethod
    def readmit(self, index: QueueIndex, seqs: list[int], rows: list[Row]) -> None:
        """Make messages, ascending, that are not leased any more ready at their old places. rows:
        what `returning` returned. All messages of an index that one record released must come in
        one call."""

    # ---- counts --------------------------------------------------------------------------------

    @abstractmethod
    def len(self) -> int:
        """Return the number of ready messages."""

    @abstractmethod
    def depth(self) -> int:
        """Return the number of ready, pending and leased messages."""

    @abstractmethod
    def body_bytes(self) -> int:
        """Return the bytes of the bodies of all ready messages."""

    @abstractmethod
    def info(self) -> dict[str, int | float | str]:
        """Return counters, as docs/how-it-works/memory.md lists them: len, depth, bytes,
        unacked_bytes, ram_bytes, ram_messages, alphas, betas, gammas, delta, pending,
        paged_pending, leased, leased_bytes, q1 ... q4, is_flowed, target_bytes, disk_reads,
        disk_writes, four rates per second, mode. unacked_bytes: of pending and leased messages.
        elsewhere_bytes: see the method."""

    def add_states(self, into: "QueueStates") -> None:
        """Add this queue's messages to the sums of all. By default all that is ready is on disk
        only."""
        ready = self.len()
        into.deltas += ready
        into.unacked += self.depth() - ready
        into.ready_bytes += self.body_bytes()

    # ---- memory --------------------------------------------------------------------------------

    @abstractmethod
    def ram_bytes(self) -> int:
        """Return the bytes counted in RAM: alphas with header, body and object, packed rows,
        pending messages; a part of each body that other queues hold, too."""

    @abstractmethod
    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        """Set the queue's own limits: above max messages are paged out, below min read ahead.
        UNLIMITED for none. Raises ValueError unless 0 <= min <= max."""

    @abstractmethod
    def set_share(self, share_bytes: int) -> None:
        """Set the queue's share of the whole budget. For the memory monitor."""

    @abstractmethod
    def set_ram_duration_target(self, seconds: float) -> None:
        """Set for how many seconds the messages in RAM should last at the present rates
        (float("inf"): no limit). For the memory monitor."""

    @abstractmethod
    def ram_duration(self) -> float:
        """Return for how many seconds the messages in RAM last, float("inf") for an idle queue.
        Updates the rates; to be called every few seconds."""

    @abstractmethod
    def out_bytes_per_s(self) -> float:
        """Return the bytes of RAM that are fetched in a second, at the rate of the last
        `ram_duration` and with the average size of ready messages; 0.0 for an empty queue."""

    @abstractmethod
    def elsewhere_bytes(self) -> int:
        """Return the bytes of shared bodies that other queues count; `ram_bytes` does not contain
        them."""

    @abstractmethod
    def unshare(self) -> None:
        """Stop sharing bodies: the queue is about to disappear without an orderly end."""

    @abstractmethod
    def set_queue_mode(self, mode: str) -> None:
        """Set "default" or "lazy" (everything goes to disk at once). Raises ValueError."""

    @abstractmethod
    def resume(self) -> bool:
        """Page out a slice of at most 256 messages. Return True if there is more to do."""

    @abstractmethod
    def inhale(self, *, at_rest: bool = False) -> bool:
        """Start to read the next messages, if less than the minimum is in RAM or all would fit.
        Return True if a read is under way; further reads follow by themselves up to the maximum.
        at_rest: nobody consumes now, so only queues that are or were over their limit read."""

    # ---- life ----------------------------------------------------------------------------------

    @abstractmethod
    def terminate(self) -> None:
        """Stop in order, right before the engine's `close`: pending messages will be ready
        again."""

    @abstractmethod
    def delete_and_terminate(self, mode: int) -> int:
        """Delete the queue with all its messages. Return the LSN."""

    def unlink(self) -> None:  # noqa: B027 - most have no parts that refer to them
        """Drop the parts' references to the queue, which was deleted: in a cycle it would stay in
        memory until a full collection."""
