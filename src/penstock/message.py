"""QueuedMessage and MessageFactory: what travels through queues, and the ids of messages.

A `QueuedMessage` is shared by all queues that it was routed to; the queue keeps what differs from
queue to queue (the seq, whether it is on a slot yet). A *header* is the opaque content header; the
empty header means the default, so most messages need no bytes for it on disk. `size` stays when the
body leaves RAM: no limit, count or expiry ever reads the body (in Qpid's Flow to Disk Design
counting read the bodies, which undid the effort).

Placement is decided once, when a message is published: `store_file` is 0 for a body in the queue's
own segment, else the file of the MessageStore that holds it (with the id, that is its address).

`MessageFactory` is named after the part in Qpid's design: it alone creates ids, and refuses to
while recovery is still reporting the ids that exist. The upper 24 bits of an id are the number of
the start and the lower 40 bits count within it. Every start raises and syncs the start number [9],
so no id ever means two bodies, even if the last ids before a crash left no trace on disk.
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
