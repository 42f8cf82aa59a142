"""Placement: makes new messages, says where their bodies belong, and which messages share one.

A small body for one queue goes into that queue's own segment, in queue order. A large body, or one
that several queues share, goes to the MessageStore, once. The limits are options of the storage.

**Sharing.** One message for several queues may become several Messages: queues with a ttl of their
own, queues that may refuse it and transient queues each get a record and a Message of their own. In
RAM the body is one object all the same, and counts once (shared_body.py). So whatever publishes it
in several calls does that inside

    with engine.share(engine.share_of(body, len(queues))):
        ...

and every message that is published inside with this very object shares it. This may be nested: a
publish may push out another message, which moves to other queues.
"""

from types import TracebackType

from penstock.message import Message, MessageFactory
from penstock.shared_body import SharedBody, SharedMessage
from penstock.storage.options import StorageOptions


class Placement:
    """One per engine.

    time_s: the time of new messages, seconds since 1970; the engine sets it at each turn. sharing:
    what new messages with this body share; None if there is nothing.
    """

    def __init__(self, factory: MessageFactory, options: StorageOptions, time_s: int) -> None:
        self.time_s: int = time_s
        self.sharing: SharedBody | None = None
        self._factory: MessageFactory = factory
        # Of the options, those that each publish asks for.
        self._embed_below: int = options.queue_index_embed_msgs_below
        self._inline_below: int = options.wal_inline_below

    def is_in_store(self, size: int, copies: int) -> bool:
        """Whether a body of `size` bytes for this many queues belongs into the MessageStore."""
        if copies * size < self._embed_below:
            return False
        return copies != 1 or size >= self._inline_below

    def new_message(
        self, header: bytes, body: bytes, expiry_ms: int = 0, copies: int = 1
    ) -> Message:
        """Make a message with a new id and its body in RAM, for so many queues."""
        id = self._factory.create()
        if copies > 1 or self.sharing is not None:
            shared = self.share_of(body, copies)
            if shared is not None:
                return SharedMessage(shared, id, header, self.time_s, expiry_ms)
        return Message(id, header, body, len(body), self.time_s, expiry_ms)

    def message_on_disk(self, header: bytes, size: int, expiry_ms: int = 0) -> Message:
        """Make a message with a new id whose body, of `size` bytes, does not stay in RAM."""
        return Message(self._factory.create(), header, None, size, self.time_s, expiry_ms)

    def moved_message(
        self, old: Message, header: bytes, body: bytes | None, expiry_ms: int, copies: int
    ) -> Message:
        """Make the same message with another header and expiry, for so many queues. body: of `old`,
        None if it is in the store."""
        if body is not None:
            shared = self.share_of(body, copies, old)
            if shared is not None:
                return SharedMessage(shared, old.id, header, old.time, expiry_ms, old.store_file)
        return Message(old.id, header, body, old.size, old.time, expiry_ms, old.store_file)

    def share_of(
        self, body: bytes, copies: int, message: Message | None = None
    ) -> SharedBody | None:
        """Return how queues share this body: as those that hold `message` do, if it has this very
        body; as what is published just now (`sharing`); as a new SharedBody if it is for several
        queues. None if it is for one queue alone, or empty."""
        if message is not None and isinstance(message, SharedMessage) and message.body is body:
            return message.shared
        sharing = self.sharing
        if sharing is not None and sharing.body is body:
            return sharing
        return SharedBody(body, copies) if copies > 1 and body else None

    def complete(self, message: Message) -> None:
        """All queues for which a message was published have it. While `sharing` is set, others with
        the same body follow."""
        if isinstance(message, SharedMessage) and message.shared is not self.sharing:
            message.shared.complete()


class Sharing:
    """shared: what its body is shared by; None: this does nothing. completes: it is published to
    the last queue inside; False: later, by a transaction."""

    def __init__(
        self, placement: Placement, shared: SharedBody | None, *, completes: bool = True
    ) -> None:
        self._placement: Placement = placement
        self._shared: SharedBody | None = shared
        self._outer: SharedBody | None = None
        self._completes: bool = completes

    def __enter__(self) -> None:
        shared = self._shared
        placement = self._placement
        self._outer = placement.sharing
        if shared is not None:
            placement.sharing = shared

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        outer = self._outer
        self._placement.sharing = outer
        shared = self._shared
        if shared is not None and self._completes and shared is not outer:
            shared.complete()
