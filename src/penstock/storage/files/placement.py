"""Placement: makes new messages, decides where their bodies are kept and which messages share one.

A small body for one queue goes into that queue's own segment, in queue order. A large body, or one
that several queues share, goes to the MessageStore, once. The limits are options of the storage.

**Sharing.** One message for several queues may become several Messages: queues with a ttl of their
own, and transient queues, get a record and a QueuedMessage of their own. In RAM
the body is still one object and counts once (shared_body.py). So a caller that publishes a body
in several calls does that inside

    with engine.share(engine.share_of(body, len(queues))):
        ...

and every message that is published inside with this very object shares it. What goes to the store
goes there once: the messages have one id, that of the body. This may be nested, because a publish
may push out another message, which moves to other queues.
"""

from types import TracebackType

from penstock.message import MessageFactory, QueuedMessage
from penstock.shared_body import SharedBody, SharedMessage
from penstock.storage.files.options import StorageOptions


class Placement:
    """Makes the messages of one engine.

    time_s: the time of new messages, seconds since 1970; the engine sets it at each turn. sharing:
    the SharedBody of new messages with its body; None outside of `share`. owned: a message that
    has this body in the store for as long as it is shared, or None.
    """

    def __init__(self, factory: MessageFactory, options: StorageOptions, time_s: int) -> None:
        self.time_s: int = time_s
        self.sharing: SharedBody | None = None
        self.owned: QueuedMessage | None = None
        self.stored: QueuedMessage | None = None  # the last one with this body that was written
        self._factory: MessageFactory = factory
        # The options that each publish needs.
        self._embed_below: int = options.queue_index_embed_msgs_below
        self._inline_below: int = options.wal_inline_below

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
