"""RemoteBox: the box of the library on a broker; `penstock.open("amqp://...")`.

The vhost of the URL is the box: its durable queues and streams, made and used by the same calls as
those of a directory. Other clients of the broker see ordinary queues and messages, and a box sees
theirs.

    with penstock.open("amqp://guest:guest@localhost/") as box:
        box.queue("resize").put(b"picture 7")

What differs from a directory is in docs/client.md: several boxes may use one vhost at a time, jobs
come back when their connection is lost, and memory and disk are the broker's affair.

Not here: what calls say to the broker (remote_calls.py), connections (remote_driver.py), asyncio.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Unpack

from penstock.client import remote_calls
from penstock.client.amqp_url import AmqpUrl
from penstock.client.remote_asking import names, operate
from penstock.client.remote_driver import Call, RemoteDriver
from penstock.client.remote_queue import RemoteQueue
from penstock.client.remote_stream import open_stream
from penstock.client.remote_transaction import RemoteTransaction, begin
from penstock.embedded.box_errors import TransactionError
from penstock.embedded.spellings import Given, box_durability, mode_of
from penstock.embedded.stream import Stream
from penstock.embedded.stream_spellings import StreamGiven
from penstock.errors import OptionError

OnEvent = Callable[[str, str], None]

LOG: Final = logging.getLogger("penstock")
LEVELS: Final = {"blocked": logging.WARNING}  # others: INFO
OF_A_BROKER: Final = "nothing: on a broker it is the broker's own setting"


def driver_of(
    url: str, durability: object, on_event: OnEvent | None, others: Mapping[str, object],
    make: Callable[[AmqpUrl, int, OnEvent], RemoteDriver] = RemoteDriver,
) -> RemoteDriver:  # fmt: skip
    """What a box is made of; no connection yet. OptionError."""
    for name, value in others.items():
        raise OptionError(name, value, OF_A_BROKER)
    mode = box_durability(durability).mode
    where = AmqpUrl.parse(url)
    path = str(where)

    def tell(kind: str, text: str) -> None:
        LOG.log(LEVELS.get(kind, logging.INFO), "%s: %s: %s", path, kind, text)
        if on_event is not None:
            try:
                on_event(kind, text)
            except BaseException:  # not even sys.exit may end the connection's thread
                LOG.exception("%s: on_event has failed", path)

    return make(where, mode, tell)


class RemoteBoxView:
    """What a box has in common for threads and asyncio: what is asked in one short question."""

    def __init__(self, driver: RemoteDriver) -> None:
        self._driver = driver

    @property
    def path(self) -> str:
        """The URL, without the password."""
        return self._driver.path

    def queues(self) -> list[str]:
        """The names of all queues, sorted; those of other connections alone are not among them."""
        return self._driver.run(names(self._driver, "box.queues"))

    def streams(self) -> list[str]:
        """The names of all streams that the user may read, sorted."""
        return self._driver.run(names(self._driver, "box.streams"))

    def __contains__(self, name: object) -> bool:
        """Whether there is a queue of this name."""
        return isinstance(name, str) and self._driver.run(remote_calls.has(self._driver, name))

    def __iter__(self) -> Iterator[str]:
        """The names of the queues."""
        return iter(self.queues())

    def info(self) -> dict[str, int | float | str]:
        """Counters of the vhost: queues, lsn and lsn_settled (on disk), syncs, checkpoints, memory
        of the budget (memory_bytes, counted_bytes, is_alarmed, is_disk_full), durability."""
        found: dict[str, int | float | str] = self._driver.run(
            operate(self._driver, "box.info", {})
        )
        return found

    def _begin(self, durability: str | None) -> Call[None]:
        """Open a transaction for the caller."""
        driver = self._driver
        mode = driver.mode if durability is None else mode_of("durability", durability)
        owner = driver.caller()
        if owner in driver.transactions:
            raise TransactionError("a transaction is open here already: they do not nest")
        driver.transactions[owner] = yield from begin(driver, mode)

    def _end(self, transaction: RemoteTransaction, *, is_failed: bool) -> Call[None]:
        """Commit it, or roll it back."""
        driver = self._driver
        for owner, one in list(driver.transactions.items()):
            if one is transaction:
                del driver.transactions[owner]
        if is_failed:
            yield from transaction.rollback()
        else:
            yield from transaction.commit()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}>"


class RemoteScopeView:
    """What `box.transaction()` gives, before it is entered."""

    def __init__(self, box: RemoteBoxView, durability: str | None) -> None:
        self._box = box
        self._durability = durability
        self._transaction: RemoteTransaction | None = None
        self._is_entered = False

    def _enter(self) -> Call[None]:
        if self._is_entered:
            raise TransactionError("a transaction is entered once: make another one")
        self._is_entered = True
        yield from self._box._begin(self._durability)
        self._transaction = self._box._driver.transaction()

    def _leave(self, *, is_failed: bool) -> Call[None]:
        assert self._transaction is not None, "it was entered"
        yield from self._box._end(self._transaction, is_failed=is_failed)


class RemoteScope(RemoteScopeView):
    """What `with box.transaction():` enters. The block's exception rolls back, and goes on."""

    def __enter__(self) -> None:
        self._box._driver.run(self._enter())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._box._driver.run(self._leave(is_failed=error is not None))


class RemoteBox(RemoteBoxView):
    """See the head of this module. Use it from any number of threads; not from a forked child
    (ForkedError). Errors of all methods after `close`: BoxClosedError."""

    def queue(self, name: str, **options: Unpack[Given]) -> RemoteQueue:
        """The queue of this name, which is made, durable, when there is none. Options as
        penstock.Box.queue has them: those that are given become the queue's own, those that are not
        given stay as they are. OptionError."""
        driver = self._driver
        return RemoteQueue(driver, driver.run(remote_calls.declare(driver, name, options)))

    def stream(self, name: str, **options: Unpack[StreamGiven]) -> Stream:
        """The stream of this name, which is made when there is none. Options as
        penstock.Box.stream has them. OptionError."""
        driver = self._driver
        return Stream(driver, driver.run(open_stream(driver, name, options)))

    def delete(self, name: str) -> None:
        """Delete a queue or a stream with all that it holds; UnknownQueueError."""
        self._driver.run(remote_calls.delete(self._driver, name))

    def transaction(self, *, durability: str | None = None) -> RemoteScope:
        """What this thread puts and acknowledges in the `with` block happens together, or not at
        all. TransactionError: one is open already."""
        return RemoteScope(self, durability)

    def sync(self) -> None:
        """Wait until everything that the broker's vhost has so far is on disk."""
        self._driver.run(operate(self._driver, "box.sync", {}))

    def checkpoint(self) -> bool:
        """Raises ChannelError 403: only operators of the broker make checkpoints."""
        raise remote_calls.operators_only(self._driver, "checkpoint")

    def backup(self, path: str | Path) -> None:
        """Raises ChannelError 403: only operators of the broker copy a vhost, by `penstock backup`,
        for it writes files on the broker's machine."""
        raise remote_calls.operators_only(self._driver, "backup")

    def close(self) -> None:
        """End the connection. What is unacknowledged goes back to its queues. A second time:
        nothing."""
        self._driver.close()

    def __enter__(self) -> "RemoteBox":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def open_remote(
    url: str, *, durability: str = "disk", on_event: OnEvent | None = None, **others: object
) -> RemoteBox:
    """Open the box of a broker. This is `penstock.open` for a URL.

    durability: of puts that say nothing else: "none" for transient messages, all others are as safe
    as the broker's mode says. on_event(kind, text): "connected", "blocked", "unblocked", in another
    thread, which must not wait for this box.

    OptionError; UnreachableError; AMQPConnectionError (the user, the vhost);
    MissingCapabilityError: the broker is not Penstock.
    """
    driver = driver_of(url, durability, on_event, others)
    try:
        driver.run(driver.linked())
    except BaseException:
        driver.close()
        raise
    return RemoteBox(driver)
