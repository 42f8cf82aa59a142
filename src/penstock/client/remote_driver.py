"""RemoteDriver: runs the calls of a box on a broker, and has the connection that they use.

A call is a generator, as those of the box in a directory: it asks something, yields what it waits
for, a future and perhaps a deadline, and goes on when it is done. `run` waits in the caller's
thread, `remote_aio` awaits. So what calls do is written once.

The connection is made when the box is opened, and again, by the next call, when it was lost: in a
thread of its own, so that a loop need not wait for it. Calls that were under way raise
ConnectionLostError and are not repeated: nobody knows what became of them.

After `close` all calls raise BoxClosedError, those that are waiting too.

A forked child may not use its parent's connection: two processes would read each other's answers.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from penstock.client.amqp_url import AmqpUrl
from penstock.client.client_errors import ConnectionLostError
from penstock.client.link import Link
from penstock.embedded.box_errors import BoxClosedError
from penstock.errors import AMQPError, ForkedError, UnknownQueueError
from penstock.queues.queue_options import QueueOptions

if TYPE_CHECKING:
    from penstock.client.remote_transaction import RemoteTransaction

T = TypeVar("T")


class Wait:
    """What a call waits for. deadline: of time.monotonic(), None for none."""

    __slots__ = ("deadline", "future")

    def __init__(self, future: "Future[Any]", deadline: float | None = None) -> None:
        self.future = future
        self.deadline = deadline


Call: TypeAlias = Generator[Wait, None, T]


class RemoteState:
    """A queue as this box knows it. options: as they were when it was last declared here. mode: of
    its own, None for the box's."""

    __slots__ = ("is_deleted", "mode", "name", "options")

    def __init__(self, name: str, options: QueueOptions) -> None:
        self.name: str = name
        self.options: QueueOptions = options
        self.mode: int | None = None
        self.is_deleted: bool = False

    def check(self) -> None:
        """UnknownQueueError if it was deleted."""
        if self.is_deleted:
            raise UnknownQueueError(f"{self.name} (deleted)")


class RemoteDriver:
    """See the head of this module. path: the URL, without the password. mode: of puts that say
    nothing else. on_event(kind, text): "blocked", "unblocked", "connected"; in another thread."""

    def __init__(self, url: AmqpUrl, mode: int, on_event: Callable[[str, str], None]) -> None:
        self.path: str = str(url)
        self.mode: int = mode
        self.closed: Future[None] = Future()
        self.states: dict[str, RemoteState] = {}
        self.transactions: dict[object, RemoteTransaction] = {}
        self._url = url
        self._on_event = on_event
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._connecting: Future[Link] | None = None
        self._last_id = secrets.randbits(63)

    # ---- who calls -----------------------------------------------------------------------------

    def caller(self) -> object:
        """To whom a transaction belongs."""
        return threading.get_ident()

    def transaction(self) -> "RemoteTransaction | None":
        """The one that the caller is in."""
        return self.transactions.get(self.caller()) if self.transactions else None

    def message_id(self) -> str:
        """Another one each time."""
        with self._lock:
            self._last_id = (self._last_id + 1) & ((1 << 63) - 1) or 1
            return f"{self._last_id:016x}"

    # ---- the connection ------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self.closed.done()

    def check(self) -> None:
        """BoxClosedError, ForkedError."""
        if self._pid != os.getpid():
            raise ForkedError(self.path, self._pid, os.getpid())
        if self.closed.done():
            raise BoxClosedError(self.path)

    def linked(self) -> Call[Link]:
        """The connection, made anew if need be. UnreachableError, AMQPConnectionError,
        MissingCapabilityError: it could not be made; the next call tries again."""
        self.check()
        with self._lock:
            link = self._link
            if link is not None and link.is_open:
                return link
            future = self._connecting
            if future is None:
                future = self._connecting = Future()
                name = f"penstock connecting to {self._url.host}"
                threading.Thread(
                    target=self._connect, args=(future,), name=name, daemon=True
                ).start()
        yield Wait(future)
        return future.result()

    def link_now(self) -> Link | None:
        """The connection, if there is one: for what is not worth waiting for."""
        link = self._link
        return link if link is not None and link.is_open else None

    def _connect(self, future: "Future[Link]") -> None:
        link: Link | None = None
        error: Exception | None = None
        try:
            link = Link(self._url, self._on_event)
        except Exception as found:  # noqa: BLE001  # whoever waits for it raises it
            error = found
        with self._lock:
            self._connecting = None
            self._link = link
            is_closed = self.closed.done()
        if link is not None and is_closed:
            link.close()
            error = BoxClosedError(self.path)
        if error is not None or link is None:
            future.set_exception(error)
            return
        self._on_event("connected", self.path)
        future.set_result(link)

    def close(self) -> None:
        """End the connection; whoever waits raises BoxClosedError. Again: nothing."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self.closed.done():
                return
            self.closed.set_result(None)
            link = self._link
        if link is not None:
            link.close()

    # ---- running -------------------------------------------------------------------------------

    def run(self, call: Call[T]) -> T:
        """Run a call in this thread."""
        try:
            wait = next(call)
            while True:
                try:
                    self._wait(wait)
                except BaseException as error:  # noqa: BLE001  # the call cleans up, and raises it
                    wait = call.throw(error)
                else:
                    wait = next(call)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except (ConnectionLostError, AMQPError):
            self.check()
            raise

    def _wait(self, wait: Wait) -> None:
        deadline = wait.deadline
        timeout_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            wait.future.exception(timeout_s)
        except (TimeoutError, CancelledError):
            pass
