"""BackingQueue: the contract of whatever holds a queue's messages, after RabbitMQ's of that name.

Who owns one (the embedded library, the broker's queue) says what is to happen to messages; what
stands behind the contract decides where they are: in RAM, on disk, in several parts. Two exist: the
VariableQueue, and the PriorityQueue made of several.

What every implementation promises (`tests/contracts/backing_queue.py` asks each):

* **Order.** Messages leave in the order of their seqs. A message that is requeued keeps its seq and
  so its place; priorities order before seqs.
* **Ready or pending.** A message that was fetched (or dropped) with `ack_required` is *pending*
  until `ack`, `requeue`, `move` or `forget`. `len` counts the ready, `depth` both.
* **A tag is a place**: the seq, with the number of the part in the byte above 56 bits.
* **Leased** messages are a reader's, by a record of the log: neither ready nor pending, untouched
  by purges, and counted in `depth` alone.
* **Bounded RAM.** `ram_bytes` counts all that a queue holds there, pending included, and stays
  under the smallest of its limits as far as paging in steps allows: a publish pages out at most
  four messages besides its own bytes and stops after the one that passes 64 KiB; `resume` does the
  rest.
* **Nothing is confirmed here.** Every change is a record of the engine's log; who asked confirms it
  once `engine.settled(mode)` has reached `engine.last_lsn` as it was then. `drain_confirmed` does
  that bookkeeping for whoever published with `needs_confirming`.
* **Held messages.** What a transaction or a move brought is delivered only once its record is
  settled, and so is a first delivery beyond the settled delivered mark: `fetch` gives None while
  the head is held, and `held` says for what to wait.

Callbacks of RabbitMQ's contract that are not here, and where they went: start, stop and recovery
are the engine's (one log for all queues); needs_timeout and timeout are its group commit; invoke
and handle_info are `resume` and `inhale`, called by the owner when there is time; is_duplicate,
discard and zip_msgs_and_acks were for mirrors. Messages that go to several queues are published
once, by `engine.publish` to the `index` of each: the engine hands them to the queue (its Holder).

Errors: what the engine raises (DiskFullError, StoppedError, CorruptionError ...). A paging write
that fails leaves its messages in RAM and is an event, never an error of the caller.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.message import Entry, Message
from penstock.native import mypyc_attr
from penstock.queues.rows import Row
from penstock.storage.lease_engine import Taken
from penstock.storage.queue_index import QueueIndex

PART_SHIFT: Final = 56
UNLIMITED: Final = 1 << 62  # bytes: no limit

A = TypeVar("A")


@mypyc_attr(acyclic=True)
class Delivery:
    """A message on its way to a consumer. attempts: how often it was delivered before and came
    back (of REQUEUE records; what a header carries of earlier lives is its owner's to add)."""

    __slots__ = ("attempts", "is_redelivered", "message", "tag")

    def __init__(self, tag: int, message: Message, is_redelivered: bool, attempts: int) -> None:
        self.tag: int = tag
        self.message: Message = message
        self.is_redelivered: bool = is_redelivered
        self.attempts: int = attempts


@mypyc_attr(acyclic=True)
class Head:
    """What is known of a ready message without its body: size in bytes, expiry_ms (0: never)."""

    __slots__ = ("expiry_ms", "id", "size", "tag")

    def __init__(self, tag: int, id: int, size: int, expiry_ms: int) -> None:
        self.tag: int = tag
        self.id: int = id
        self.size: int = size
        self.expiry_ms: int = expiry_ms


@mypyc_attr(acyclic=True)
class NewMessage:
    """One of a batch to be published. expiry_ms: since 1970, 0 for never."""

    __slots__ = ("body", "expiry_ms", "header", "priority")

    def __init__(self, header: bytes, body: bytes, expiry_ms: int = 0, priority: int = 0) -> None:
        self.header: bytes = header
        self.body: bytes = body
        self.expiry_ms: int = expiry_ms
        self.priority: int = priority


@mypyc_attr(allow_interpreted_subclasses=True)
class BackingQueue(ABC):
    """See the head of this module. `mode` is always a durability mode of storage/durability.py."""

    # ---- arrival -------------------------------------------------------------------------------

    @abstractmethod
    def index(self, priority: int = 0) -> QueueIndex:
        """The QueueIndex that a message of this priority is published to; a priority above the
        highest counts as the highest."""

    @abstractmethod
    def indexes(self) -> list[QueueIndex]:
        """Those of all its parts, the lowest priority first; nothing is opened for it."""

    @abstractmethod
    def publish(
        self, header: bytes, body: bytes, mode: int, *, expiry_ms: int = 0, priority: int = 0,
        needs_confirming: bool = False,
    ) -> int:  # fmt: skip
        """Publish to this queue alone; returns the tag. NONE, or a queue that is not durable: the
        message is transient."""

    @abstractmethod
    def batch_publish(self, messages: list[NewMessage], mode: int) -> list[int]:
        """As many publishes; paging is done once, at the end, for all of them. Their tags."""

    @abstractmethod
    def publish_delivered(
        self, header: bytes, body: bytes, mode: int, *, expiry_ms: int = 0, priority: int = 0
    ) -> Delivery:
        """Publish to an empty queue what a consumer gets at once: it is pending. ValueError if the
        queue is not empty."""

    @abstractmethod
    def hold(self, tag: int, lsn: int, mode: int) -> None:
        """The message of this tag, which has just arrived, and all behind it are delivered only
        once `engine.settled(mode)` has reached `lsn`."""

    @abstractmethod
    def held(self) -> tuple[int, int] | None:
        """(lsn, mode) that the head waits for; None if it may be delivered, or there is none."""

    # ---- delivery ------------------------------------------------------------------------------

    @abstractmethod
    def fetch(self, *, ack_required: bool = True, in_pieces: bool = False) -> Delivery | None:
        """The head, which becomes pending, or is dequeued at once (without `ack_required`; its body
        is in RAM before that is logged). None if there is none, or it is held. in_pieces: of a
        large message (message.is_large) the body stays in the store, and `message.body` is None;
        the caller opens it (engine.open_body) before the message is settled. It needs
        `ack_required`."""

    @abstractmethod
    def count_crashes(self) -> None:
        """From now on a delivery of what may have been delivered before the last crash is counted
        as an attempt when it is made, not when it comes back: so a message that kills its consumer
        and this process with it is found out. An implementation may do nothing."""

    @abstractmethod
    def drop(self, *, ack_required: bool = True) -> Head | None:
        """As fetch, held or not, but the body is never read."""

    @abstractmethod
    def head(self) -> Head | None:
        """The head as it is known in RAM; nothing is read."""

    @abstractmethod
    def dropwhile(self, predicate: Callable[[Head], bool], mode: int) -> Head | None:
        """Dequeue heads while the predicate says so; the first that it refused stays the head and
        is returned, None if the queue has run empty."""

    @abstractmethod
    def fetchwhile(
        self, predicate: Callable[[Head], bool], fun: Callable[[Delivery, A], A], acc: A
    ) -> tuple[Head | None, A]:
        """Fetch heads (they become pending) while the predicate says so, and fold `fun` over them.
        As dropwhile, with the last `acc`."""

    # ---- settling ------------------------------------------------------------------------------

    @abstractmethod
    def ack(self, tags: list[int], mode: int) -> list[int]:
        """Pending messages die. Their ids, in the order of the tags; unknown tags are ignored."""

    @abstractmethod
    def requeue(self, tags: list[int], mode: int, *, attempted: bool = True) -> list[int]:
        """Pending messages become ready at their old places. attempted: the delivery counts, which
        is remembered durably (REQUEUE). Their ids, ascending by tag; unknown tags are ignored."""

    @abstractmethod
    def move(
        self, tag: int, targets: list[QueueIndex], header: bytes, mode: int, expiry_ms: int = 0
    ) -> int:
        """A pending message dies here and lives at the end of the targets, with a new header, in
        one record; no targets: it dies. Returns the LSN; the new message's places are the targets'
        last seqs, and the owner sees to it that they are held. KeyError: not pending."""

    @abstractmethod
    def pending(
        self, tag: int, *, with_header: bool = False, with_body: bool = False
    ) -> Delivery | None:
        """A pending message, None if the tag is unknown. with_header: read the header if it left
        RAM, and with it a body that is not large; with_body: read any body that left RAM."""

    @abstractmethod
    def entries(self, tags: list[int]) -> list[tuple[QueueIndex, list[Entry]]]:
        """The persistent ones of these pending messages, per part and ascending, as a transaction's
        `dequeue` wants them. They stay pending. KeyError names an unknown tag."""

    @abstractmethod
    def forget(self, tags: list[int]) -> None:
        """A transaction has dequeued these pending messages; transient ones are released."""

    @abstractmethod
    def ackfold(self, fun: Callable[[Delivery, A], A], acc: A, tags: list[int]) -> A:
        """Fold over pending messages, with their bodies, which stay pending."""

    @abstractmethod
    def fold(self, fun: Callable[[Delivery, bool, A], tuple[bool, A]], acc: A) -> A:
        """Fold over all messages, ready and pending, in order: `fun(delivery, is_pending, acc)`
        returns whether to go on, and the next acc. Nothing changes, no body stays in RAM for it."""

    @abstractmethod
    def browse(self, after: int | None, n: int) -> list[Delivery]:
        """The next n ready messages behind the one of tag `after` (None: from the head), in the
        order of delivery, with their bodies; nothing changes. For looking at a queue in pieces
        while it goes on: whatever came or went in between, nothing is shown twice."""

    @abstractmethod
    def purge(self, mode: int) -> int:
        """All ready messages die; how many there were."""

    @abstractmethod
    def purge_acks(self, mode: int) -> int:
        """All pending messages die; how many there were."""

    # ---- leases --------------------------------------------------------------------------------

    @abstractmethod
    def take(self, messages_max: int, bytes_max: int, now_ms: int) -> list[Taken]:
        """Heads leave the queue to be leased, with their bodies: at most so many, and as many bytes
        or one message; none that is held, or expired at `now_ms`. They are neither ready nor
        pending: the caller ends with `leased`, or with `untake`, and calls nothing in between."""

    @abstractmethod
    def may_take(self) -> bool:
        """Whether there is a head, and it is not held. (The delivered mark does not hold it: the
        record of a lease raises it.)"""

    @abstractmethod
    def leased_count(self) -> int:
        """How many messages are leased, by all readers."""

    @abstractmethod
    def untake(self, taken: list[Taken]) -> None:
        """What was taken was not leased: it is ready where it was."""

    @abstractmethod
    def leased(self, taken: list[Taken], lsn: int) -> None:
        """What was taken is leased, by the record with this LSN: the queue knows it no more."""

    @abstractmethod
    def returning(self, index: QueueIndex, seqs: list[int]) -> list[Row]:
        """Rows of leased messages of one segment, ascending, which are about to be released; those
        that are damaged are left out. OSError."""

    @abstractmethod
    def readmit(self, index: QueueIndex, seqs: list[int], rows: list[Row]) -> None:
        """These, ascending, are leased no more: they are ready at their old places. rows: what
        `returning` gave of them. All that one record released of an index comes at once."""

    @abstractmethod
    def drain_confirmed(self) -> list[int]:
        """Ids of messages published with `needs_confirming` that are confirmed since last time."""

    # ---- counts --------------------------------------------------------------------------------

    @abstractmethod
    def len(self) -> int:
        """Ready messages."""

    @abstractmethod
    def depth(self) -> int:
        """Ready, pending and leased messages."""

    @abstractmethod
    def body_bytes(self) -> int:
        """Bytes of the bodies of all ready messages."""

    @abstractmethod
    def info(self) -> dict[str, int | float | str]:
        """Counters, as docs/how-it-works/memory.md lists them: len, depth, bytes, unacked_bytes,
        ram_bytes, ram_messages, alphas, betas, gammas, delta, pending, paged_pending, leased,
        leased_bytes, q1 ... q4, is_flowed, target_bytes, disk_reads, disk_writes, four rates per
        second, mode.
        unacked_bytes: of pending and leased messages. elsewhere_bytes: see the call."""

    # ---- memory --------------------------------------------------------------------------------

    @abstractmethod
    def ram_bytes(self) -> int:
        """Bytes counted in RAM: alphas with header, body and object, packed rows, pending ones; of
        a body that other queues hold too, a part."""

    @abstractmethod
    def set_limits(self, max_bytes: int, min_bytes: int) -> None:
        """The queue's own limits: above max messages are paged out, below min read ahead.
        UNLIMITED for none. ValueError unless 0 <= min <= max."""

    @abstractmethod
    def set_share(self, share_bytes: int) -> None:
        """The queue's share of the whole budget, from the memory monitor."""

    @abstractmethod
    def set_ram_duration_target(self, seconds: float) -> None:
        """For how long the messages in RAM shall last at the present rates (float("inf"): any
        length), from the memory monitor."""

    @abstractmethod
    def ram_duration(self) -> float:
        """For how long they do last: seconds, float("inf") for an idle queue. Updates the rates;
        meant to be called every few seconds."""

    @abstractmethod
    def out_bytes_per_s(self) -> float:
        """Bytes of RAM that what is fetched in a second takes, at the rate that `ram_duration` has
        updated last and with the average size of what is ready; 0.0 for an empty queue."""

    @abstractmethod
    def elsewhere_bytes(self) -> int:
        """Of bodies that it holds in RAM and other queues do, too: what those count for them.
        `ram_bytes` is without it."""

    @abstractmethod
    def unshare(self) -> None:
        """It is about to be gone without an orderly end: what it shares with other queues is
        theirs alone."""

    @abstractmethod
    def set_queue_mode(self, mode: str) -> None:
        """ "default" or "lazy" (everything goes to disk at once). ValueError."""

    @abstractmethod
    def resume(self) -> bool:
        """A slice of paging out, at most 256 messages; True if there is more to do."""

    @abstractmethod
    def inhale(self, *, at_rest: bool = False) -> bool:
        """Submit a read of what comes next, if less than the minimum is in RAM or all of it would
        fit; True if a read is under way, which the next one follows by itself up to the maximum.
        at_rest: nobody consumes just now, so it is for queues that are over their limit or were and
        are not all back."""

    # ---- life ----------------------------------------------------------------------------------

    @abstractmethod
    def terminate(self) -> None:
        """Orderly stop, right before the engine's `close`: what is pending will be ready again."""

    @abstractmethod
    def delete_and_terminate(self, mode: int) -> int:
        """Delete the queue with all that it holds; the LSN."""
