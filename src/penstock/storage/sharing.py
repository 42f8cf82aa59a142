"""Sharing: what is published inside with this very body shares it, whichever way it is published.

One message for several queues may become several: queues with a ttl of their own, queues that may
refuse it and transient ones each get a record and a Message to themselves. Its body is one object
all the same, and is to be counted once:

    with Sharing(engine, engine.share_of(body, len(queues))):
        ...

It may be nested: a publish may push out another message, which moves to other queues.
"""

from types import TracebackType
from typing import TYPE_CHECKING

from penstock.shared_body import SharedBody

if TYPE_CHECKING:
    from penstock.storage.engine import StorageEngine


class Sharing:
    """shared: what its body is shared by; None: this does nothing. completes: it is published to
    the last queue inside; False: later, by a transaction."""

    def __init__(
        self, engine: "StorageEngine", shared: SharedBody | None, *, completes: bool = True
    ) -> None:
        self._engine: StorageEngine = engine
        self._shared: SharedBody | None = shared
        self._outer: SharedBody | None = None
        self._completes: bool = completes

    def __enter__(self) -> None:
        shared = self._shared
        engine = self._engine
        self._outer = engine.sharing
        if shared is not None:
            engine.sharing = shared

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        outer = self._outer
        self._engine.sharing = outer
        shared = self._shared
        if shared is not None and self._completes and shared is not outer:
            shared.complete()
