"""Outlet: what the broker sees of a connection's transport: a way out, and the reins.

The broker's core knows no sockets. What it has to say to a client goes into an Outlet, in whole
frames; the server's session puts it onto a transport, a test keeps it in a list.

Back-pressure is two flags. `is_writable` is False while more is waiting to leave than the client
takes; the core delivers nothing more then, and is told when it may go on
(`ConnectionHandler.writable`). `pause` and `resume` say whether the client is to be read: one that
publishes while memory or disk are short is not, nor one that has more work waiting here than is
good. What was read already is handled or kept by the core.

Not here: how bytes get onto the wire (server/session.py).
"""

from abc import ABC, abstractmethod

from penstock.native import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Outlet(ABC):
    """Of one connection. `is_writable`: more may be sent; kept by the implementation."""

    is_writable: bool = True

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Frames for the client, or pieces of them, in order; they go together at the end of the
        turn. Never blocks; after `close` nothing happens."""

    @abstractmethod
    def pause(self) -> None:
        """Read nothing more from the client; again: nothing."""

    @abstractmethod
    def resume(self) -> None:
        """Read on; again: nothing."""

    def closing(self) -> None:  # noqa: B027 - where nothing can be dropped there is nothing to do
        """The client is being told to close. One that does not answer in time is to be dropped."""

    @abstractmethod
    def close(self, *, client_first: bool) -> None:
        """What was sent goes out, then the transport is closed. client_first: by the client, which
        said goodbye and waits for close-ok; by us only if it takes too long."""
