"""Placement: makes new messages, and says where their bodies belong.

A small body for one queue goes into that queue's own segment, in queue order. A large body, or one
that several queues share, goes to the MessageStore, once. The limits are options of the storage.
"""

from penstock.message import Message, MessageFactory
from penstock.storage.options import StorageOptions


class Placement:
    """One per engine. time_s: the time of new messages, seconds since 1970; the engine sets it at
    each turn."""

    def __init__(self, factory: MessageFactory, options: StorageOptions, time_s: int) -> None:
        self.time_s: int = time_s
        self._factory: MessageFactory = factory
        # Of the options, those that each publish asks for.
        self._embed_below: int = options.queue_index_embed_msgs_below
        self._inline_below: int = options.wal_inline_below

    def is_in_store(self, size: int, copies: int) -> bool:
        """Whether a body of `size` bytes for this many queues belongs into the MessageStore."""
        if copies * size < self._embed_below:
            return False
        return copies != 1 or size >= self._inline_below

    def new_message(self, header: bytes, body: bytes, expiry_ms: int = 0) -> Message:
        """Make a message with a new id and its body in RAM."""
        id = self._factory.create()
        return Message(id, header, body, len(body), self.time_s, expiry_ms)
