"""Messages: what travels through queues, how queues share a body, and who makes new messages.

A `QueuedMessage` is shared by all queues that it was routed to; the queue keeps what differs from
queue to queue (the seq, whether it is on a slot yet). A *header* is the opaque content header; the
empty header means the default, so most messages need no bytes for it on disk. `size` stays when the
body leaves RAM: no limit, count or expiry ever reads the body (in Qpid's Flow to Disk Design
counting read the bodies, which undid the effort).

**Placement** is decided once, when a message is published: `store_file` is 0 for a body in the
queue's own segment, else the file of the MessageStore that holds it (with the id, that is its
address). A small body for one queue goes into that queue's own segment, in queue order. A large
body, or one that several queues share, goes to the MessageStore, once. The limits are options of
the storage.

**Ids.** `MessageFactory` is named after the part in Qpid's design: it alone creates ids, and
refuses to while recovery is still reporting the ids that exist. The upper 24 bits of an id are the
number of the start and the lower 40 bits count within it. Every start raises and syncs the start
number [9], so no id ever means two bodies, even if the last ids before a crash left no trace on
disk.

**Shared bodies.** A message that goes to ten queues is one bytes object. So that all queues
together count it once, each of them counts a part of its SharedBody:

    part     len(body) // weight: what each holder counts
    first    the first in the list also counts what the parts do not cover

So the counts always add up to exactly len(body) while any queue holds it in RAM, and to 0 after
that. A holder that leaves (its message was acknowledged, paged out, purged ...) gives its part to
the first, so the last one counts the whole body. `weight` is the number of holders when the parts
were made. They are made again once an eighth of these have left, or when there are too many for
them: up to eight holders the parts are always equal, above that within an eighth, and the cost for
each holder that comes or goes is bounded.

    make     Placement.new_message, for several queues: no queue holds it yet
    join     a queue takes the message into RAM and counts its part
    complete all queues for which it was published have had it: the first counts the rest, too.
             Otherwise the first of ten queues would count the whole body for a moment and page out
    leave    the message leaves RAM in that queue

A queue counts messages in RAM in full (queue_ram.py) and subtracts what others count for it:
`SharedBodies.elsewhere_bytes`, one for each queue. A message without a SharedBody costs only the
check of its class.

Bodies that were read back from disk are separate objects and not shared. Headers are counted by
each queue.

One message for several queues may become several QueuedMessages: queues with a ttl of their own,
and transient queues, get a record and a QueuedMessage of their own. In RAM the body is still one
object and counts once. So a caller that publishes a body in several calls does that inside

    with engine.share(engine.placement.share_of(body, len(queues))):
        ...

and every message that is published inside with this very object shares it. What goes to the store
goes there once: the messages have one id, that of the body. This may be nested, because a publish
may push out another message, which moves to other queues.
"""

from typing import Final

from penstock.errors import StorageError
from penstock.native import mypyc_attr

LARGE_FROM: Final = 1 << 20  # bytes of a body that a broker sends in pieces, from the store
START_SHIFT: Final = 40
START_MAX: Final = (1 << 24) - 1


# QueuedMessage and Entry are never part of a cycle, so they are not tracked by the garbage
# collector, which would otherwise walk over a million of them again and again.


@mypyc_attr(acyclic=True)
class QueuedMessage:
    """One message: opaque header, and body, or None when the body is not in RAM.

    size: bytes of the body. time: seconds since 1970 at publish. expiry_ms: milliseconds since 1970
    after which it is dead, 0 for never. store_file: see the head of this module.
    """

    __slots__ = ("body", "expiry_ms", "header", "id", "persistent", "size", "store_file", "time")

    def __init__(
        self,
        id: int,
        header: bytes,
        body: bytes | None,
        size: int,
        time: int,
        expiry_ms: int = 0,
        store_file: int = 0,
        persistent: bool = True,
    ) -> None:
        self.id: int = id
        self.header: bytes = header
        self.body: bytes | None = body
        self.size: int = size
        self.time: int = time
        self.expiry_ms: int = expiry_ms
        self.store_file: int = store_file
        self.persistent: bool = persistent

    def copy(self) -> "QueuedMessage":
        """Return a copy, for loading a body that does not stay in RAM."""
        return QueuedMessage(
            self.id, self.header, self.body, self.size, self.time, self.expiry_ms, self.store_file,
            self.persistent,
        )  # fmt: skip


def is_large(message: QueuedMessage) -> bool:
    """Return whether the body is in the store, and so large that it is sent from there in
    pieces."""
    return message.store_file != 0 and message.size >= LARGE_FROM


@mypyc_attr(acyclic=True)
class Entry:
    """A message in one queue: its seq there, and whether it is on its slot yet (until then it is in
    RAM and log)."""

    __slots__ = ("message", "on_slot", "seq")

    def __init__(self, seq: int, message: QueuedMessage, on_slot: bool = False) -> None:
        self.seq: int = seq
        self.message: QueuedMessage = message
        self.on_slot: bool = on_slot


def seq_of(entry: Entry) -> int:
    """Return the key by which entries are sorted."""
    return entry.seq


class MessageFactory:
    """Creates message ids. RECOVERING until `open` is called, as in Qpid's design."""

    def __init__(self) -> None:
        self.is_open: bool = False
        self.start: int = 0
        self._highest: int = 0
        self._next: int = 0

    def seen(self, id: int) -> None:
        """Note an id that recovery found. Raises StorageError once the factory is open."""
        if self.is_open:
            raise StorageError(f"message id {id:#x} is recovered after ids were handed out")
        if id > self._highest:
            self._highest = id

    def open(self, start: int) -> None:
        """Begin to create ids with this start number. Raises StorageError unless it is above all
        ids seen."""
        if self.is_open:
            raise StorageError("the MessageFactory is open already")
        if not self._highest >> START_SHIFT < start <= START_MAX:
            raise StorageError(
                f"start number {start} is not above that of the highest id seen, "
                f"{self._highest >> START_SHIFT}, and at most {START_MAX}"
            )
        self.start = start
        self._next = start << START_SHIFT
        self.is_open = True

    def create(self) -> int:
        """Return the next id. Raises StorageError during recovery."""
        if not self.is_open:
            raise StorageError("no message id before recovery has ended")
        self._next += 1
        return self._next


# ---- bodies that several queues share -----------------------------------------------------------


@mypyc_attr(acyclic=True)
class SharedBodies:
    """The shared bodies of one queue. count: how many it holds in RAM, one that it holds twice
    counted twice. elsewhere_bytes: what the other holders count of these bodies."""

    __slots__ = ("count", "elsewhere_bytes")

    def __init__(self) -> None:
        self.count: int = 0
        self.elsewhere_bytes: int = 0


NOBODY: Final = SharedBodies()


@mypyc_attr(acyclic=True)
class SharedBody:
    """body: not empty. weight: how many holders are expected, at least 1."""

    __slots__ = ("_count", "_holders", "_is_complete", "_part", "_size", "_weight", "body")

    def __init__(self, body: bytes, weight: int) -> None:
        size = len(body)
        self.body: bytes = body
        self._size: int = size
        # The first _count of them hold it. Made in one piece: a list that grows to ten takes 48
        # bytes more.
        self._holders: list[SharedBodies] = [NOBODY] * weight
        self._count: int = 0
        self._weight: int = weight
        self._part: int = size // weight
        self._is_complete: bool = False

    def join(self, holder: SharedBodies) -> None:
        """Add a holder; a queue that holds it twice joins twice."""
        holder.count += 1
        if self._is_complete:
            self._join_late(holder)
            return
        holder.elsewhere_bytes += self._size - self._part
        self._add(holder)

    def _add(self, holder: SharedBodies) -> None:
        n = self._count
        if n < len(self._holders):
            self._holders[n] = holder
        else:
            self._holders.append(holder)
        self._count = n + 1

    def _join_late(self, holder: SharedBodies) -> None:
        size = self._size
        n = self._count
        if n and (n + 1) * self._part > size:
            self._share_again(n + 1 + (n + 1) // 7)
        part = self._part
        holder.elsewhere_bytes += size - part
        self._add(holder)
        # The first counts the rest: this part less, or all of the rest if it came just now.
        self._holders[0].elsewhere_bytes += part if n else part - size

    def complete(self) -> None:
        """End the publish: all queues have joined, or never will. A second call does nothing."""
        if self._is_complete:
            return
        self._is_complete = True
        n = self._count
        if n:
            self._holders[0].elsewhere_bytes -= self._size - n * self._part
            if n > self._weight:
                self._share_again(n)
            self._check_parts(n)

    def leave(self, holder: SharedBodies) -> None:
        """Remove a holder. Raises ValueError if it has not joined."""
        holders = self._holders
        n = self._count
        at = 0
        while at < n and holders[at] is not holder:
            at += 1
        if at == n:
            raise ValueError("a shared body was left by a queue that does not hold it")
        size = self._size
        part = self._part
        rest = size - n * part if self._is_complete else 0
        holder.count -= 1
        holder.elsewhere_bytes -= size - part
        n -= 1
        self._count = n
        if at < n:
            holders[at] = holders[n]
        holders[n] = NOBODY
        if not self._is_complete:
            return
        if not at:  # it counted the rest
            holder.elsewhere_bytes += rest
        if not n:
            return
        holders[0].elsewhere_bytes -= part if at else rest + part
        self._check_parts(n)

    def _check_parts(self, n: int) -> None:
        """Make the parts again if an eighth of those that they were made for have left."""
        if n * 8 <= self._weight * 7:
            self._share_again(n)

    def _share_again(self, weight: int) -> None:
        """Make parts for so many holders, at least as many as there are; the sum stays."""
        part = self._size // weight
        more = part - self._part
        self._weight = weight
        self._part = part
        if not more:
            return
        holders = self._holders
        n = self._count
        for i in range(n):
            holders[i].elsewhere_bytes -= more
        holders[0].elsewhere_bytes += more * n

    # ---- for tests -----------------------------------------------------------------------------

    def times(self, holder: SharedBodies) -> int:
        """Return how often the queue holds this body."""
        return sum([1 for each in self._holders if each is holder])

    def counted_bytes(self, holder: SharedBodies) -> int:
        """Return what the queue counts of this body, for as often as it holds it."""
        counted = self.times(holder) * self._part
        if self._is_complete and self._count and self._holders[0] is holder:
            counted += self._size - self._count * self._part
        return counted


@mypyc_attr(acyclic=True)
class SharedMessage(QueuedMessage):
    """A QueuedMessage whose body is that of `shared`, in RAM; other messages may have the same."""

    __slots__ = ("shared",)

    def __init__(
        self, shared: SharedBody, id: int, header: bytes, time: int, expiry_ms: int,
        store_file: int = 0, persistent: bool = True,
    ) -> None:  # fmt: skip
        body = shared.body
        super().__init__(id, header, body, len(body), time, expiry_ms, store_file, persistent)
        self.shared: SharedBody = shared


# ---- new messages -------------------------------------------------------------------------------


class Placement:
    """Makes the messages of one engine. embed_below, inline_below: bytes, the options
    `queue_index_embed_msgs_below` and `wal_inline_below`.

    time_s: the time of new messages, seconds since 1970; the engine sets it at each turn. sharing:
    the SharedBody of new messages with its body; None outside of `share`. owned: a message that
    has this body in the store for as long as it is shared, or None.
    """

    def __init__(
        self, factory: MessageFactory, time_s: int, *, embed_below: int, inline_below: int
    ) -> None:
        self.time_s: int = time_s
        self.sharing: SharedBody | None = None
        self.owned: QueuedMessage | None = None
        self.stored: QueuedMessage | None = None  # the last one with this body that was written
        self._factory: MessageFactory = factory
        self._embed_below: int = embed_below
        self._inline_below: int = inline_below

    def is_in_store(self, size: int, copies: int) -> bool:
        """Return whether a body of `size` bytes for this many queues goes to the MessageStore."""
        if copies * size < self._embed_below:
            return False
        return copies != 1 or size >= self._inline_below

    def new_message(
        self, header: bytes, body: bytes, expiry_ms: int = 0, copies: int = 1
    ) -> QueuedMessage:
        """Make a message with a new id and its body in RAM. copies: number of queues."""
        id = self._factory.create()
        if copies > 1 or self.sharing is not None:
            shared = self.share_of(body, copies)
            if shared is not None:
                return SharedMessage(shared, id, header, self.time_s, expiry_ms)
        return QueuedMessage(id, header, body, len(body), self.time_s, expiry_ms)

    def message_on_disk(self, header: bytes, size: int, expiry_ms: int = 0) -> QueuedMessage:
        """Make a message with a new id whose body, of `size` bytes, is not in RAM."""
        return QueuedMessage(self._factory.create(), header, None, size, self.time_s, expiry_ms)

    def moved_message(
        self, old: QueuedMessage, header: bytes, body: bytes | None, expiry_ms: int, copies: int
    ) -> QueuedMessage:
        """Make the same message with another header and expiry. body: of `old`, None if it is in
        the store. copies: number of queues."""
        if body is not None:
            shared = self.share_of(body, copies, old)
            if shared is not None:
                return SharedMessage(shared, old.id, header, old.time, expiry_ms, old.store_file)
        return QueuedMessage(old.id, header, body, old.size, old.time, expiry_ms, old.store_file)

    def share_of(
        self, body: bytes, copies: int, message: QueuedMessage | None = None
    ) -> SharedBody | None:
        """Return the SharedBody of this body: that of `message` if it has this very body, else
        `sharing` if it is of this body, else a new one. None for a single queue or an empty
        body."""
        if message is not None and isinstance(message, SharedMessage) and message.body is body:
            return message.shared
        sharing = self.sharing
        if sharing is not None and sharing.body is body:
            return sharing
        return SharedBody(body, copies) if copies > 1 and body else None

    def stored_like(self, message: QueuedMessage, body: bytes) -> QueuedMessage | None:
        """Return a message that shares this body and had it in the store of `message` when it was
        published, or None."""
        sharing = self.sharing
        if sharing is None or sharing.body is not body:
            return None
        for known in (self.owned, self.stored):
            if known is not None and known.persistent == message.persistent:
                return known
        return None

    def note_stored(self, message: QueuedMessage, body: bytes) -> None:
        """Note that the body of a new message was written to its store."""
        sharing = self.sharing
        if sharing is not None and sharing.body is body:
            self.stored = message

    def complete(self, message: QueuedMessage) -> None:
        """Note that all queues of a message have it. While `sharing` is set, messages with the same
        body follow."""
        if isinstance(message, SharedMessage) and message.shared is not self.sharing:
            message.shared.complete()


class Sharing:
    """A context manager in which new messages share a body. shared: None for no effect. completes:
    the last queue gets it inside; False if a transaction publishes it later. owned: see
    Placement."""

    def __init__(
        self, placement: Placement, shared: SharedBody | None, *, completes: bool = True,
        owned: QueuedMessage | None = None,
    ) -> None:  # fmt: skip
        self._placement: Placement = placement
        self._shared: SharedBody | None = shared
        self._outer: SharedBody | None = None
        self._completes: bool = completes
        self._owned: QueuedMessage | None = owned
        self._stored: QueuedMessage | None = None  # both of the outer one, inside

    def __enter__(self) -> None:
        shared = self._shared
        placement = self._placement
        self._outer = placement.sharing
        if shared is not None and shared is not self._outer:
            placement.sharing = shared
            self._exchange()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        outer = self._outer
        shared = self._shared
        if shared is not None and shared is not outer:
            self._placement.sharing = outer
            self._exchange()
            if self._completes:
                shared.complete()

    def _exchange(self) -> None:
        placement = self._placement
        placement.owned, self._owned = self._owned, placement.owned
        placement.stored, self._stored = self._stored, placement.stored
