"""Box: durable queues and streams, in a directory of this process or on a broker; `penstock.open`.

    with penstock.open("jobs.d") as box:          # or "amqp://guest:guest@localhost/"
        box.queue("resize").put(b"picture 7")
        box.stream("events", max_age="7d").append(b"picture 7 was asked for")

This is the box for threads; what differs between a directory and a broker is in the BoxSource
behind it (`sources`), and in docs/guides/client.md. `penstock.aio` has the same box for asyncio.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from penstock.embedded.option_parsing import QueueGiven, StreamGiven
from penstock.embedded.queue import Queue
from penstock.embedded.sources import BoxSource, Call, QueueSource, Runner
from penstock.embedded.stream import Stream
from penstock.errors import MissingPackageError, TransactionError, install_advice

if TYPE_CHECKING:
    from penstock.embedded.tracing import Tracing


def tracing_of(given: object) -> "Tracing | None":
    """Return what makes the spans of a box; None if it is to have none.

    given: True or False, or a TracerProvider. OptionError. MissingPackageError."""
    if given is False or given is None:
        return None
    try:
        from penstock.embedded.tracing import Tracing  # OpenTelemetry; loading it takes 100 ms
    except ModuleNotFoundError as error:
        advice = install_advice("otel")
        reason = f"tracing needs the package opentelemetry-api ({error}): {advice}"
        raise MissingPackageError(reason) from error
    return Tracing(given)


class BoxBase:
    """What the boxes for threads and for asyncio have in common. On a broker each of these is a
    short question, for whose answer the thread, or the whole loop, waits. tracing: None for no
    spans."""

    def __init__(self, driver: Runner, source: BoxSource, tracing: "Tracing | None" = None) -> None:
        self._driver = driver
        self._source = source
        self._tracing = tracing

    def _queue(self, name: str, given: Mapping[str, object]) -> Call[QueueSource]:
        """Open a queue."""
        source = yield from self._source.queue(name, given)
        return source if self._tracing is None else self._tracing.queue(source)

    @property
    def path(self) -> str:
        """The directory, or the URL without its password."""
        return self._source.path

    def queues(self) -> list[str]:
        """Return the names of all queues, sorted. On a broker: of the durable queues that the user
        may use."""
        return self._driver.run(self._source.queues())

    def streams(self) -> list[str]:
        """Return the names of all streams, sorted. On a broker: of those that the user may read."""
        return self._driver.run(self._source.streams())

    def __contains__(self, name: object) -> bool:
        """Return whether there is a queue of this name."""
        return isinstance(name, str) and self._driver.run(self._source.has(name))

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the queues."""
        return iter(self.queues())

    def info(self) -> dict[str, int | float | str]:
        """Return counters: queues, lsn and lsn_settled (on disk), syncs, checkpoints, memory of the
        budget (memory_bytes, counted_bytes, is_alarmed, is_disk_full), durability."""
        return self._driver.run(self._source.info())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}>"


class ScopeBase:
    """What `box.transaction()` returns, before it is entered."""

    def __init__(self, source: BoxSource, durability: str | None) -> None:
        self._source = source
        self._durability = durability
        self._transaction: Any = None
        self._is_entered: bool = False

    def _begin(self) -> Call[None]:
        """Open the transaction."""
        if self._is_entered:
            raise TransactionError("a transaction is entered once: make another one")
        self._is_entered = True
        self._transaction = yield from self._source.begin(self._durability)

    def _end(self, *, is_failed: bool) -> Call[None]:
        """Commit the transaction, or roll it back."""
        transaction = self._transaction
        assert transaction is not None, "it was entered"
        source = self._source
        return source.rollback(transaction) if is_failed else source.commit(transaction)


class TransactionScope(ScopeBase):
    """What `with box.transaction():` enters. The end of the block commits; an exception rolls back,
    and is raised."""

    def __init__(self, driver: Runner, source: BoxSource, durability: str | None) -> None:
        super().__init__(source, durability)
        self._driver = driver

    def __enter__(self) -> None:
        self._driver.run(self._begin())

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        self._driver.run(self._end(is_failed=error is not None))


class Box(BoxBase):
    """A box of queues and streams; `penstock.open` returns it. Use it from any number of threads,
    but not from a forked child (ForkedError). Errors of all methods after `close`: BoxClosedError.
    """

    def queue(self, name: str, **options: Unpack[QueueGiven]) -> Queue:
        """Return the queue of this name, made if it is missing.

        docs/start/library.md lists the options. In a directory, options that are given are stored
        as the queue's own, also for a queue that exists; those that are not given stay as they are.
        On a broker an option must be as the queue has it, because other clients use the queue too.
        Raises OptionError for an unknown option, a value out of range, or one that cannot be
        changed.
        """
        driver = self._driver
        return Queue(driver, driver.run(self._queue(name, options)))

    def stream(self, name: str, **options: Unpack[StreamGiven]) -> Stream:
        """Return the stream of this name, made if it is missing.

        max_age, max_bytes, max_records: retention, for each partition. docs/guides/streams.md
        describes them, and partitions and page_bytes. Raises OptionError for an option that is
        unknown, out of range or not as the stream was made with, and if a queue has the name.
        """
        driver = self._driver
        return Stream(driver, driver.run(self._source.stream(name, options)))

    def delete(self, name: str) -> None:
        """Delete a queue or a stream with all that it holds. UnknownQueueError."""
        self._driver.run(self._source.delete(name))

    def transaction(self, *, durability: str | None = None) -> TransactionScope:
        """Return a transaction for a `with` block: what this thread puts, appends and acknowledges
        in the block happens together, or not at all. Entering it raises TransactionError if this
        thread has one open already."""
        return TransactionScope(self._driver, self._source, durability)

    def sync(self) -> None:
        """Wait until everything so far is on disk, whatever its durability, acknowledgements too.
        On a broker: everything of its vhost."""
        self._driver.run(self._source.sync())

    def checkpoint(self) -> bool:
        """Make a checkpoint now, so that the next start reads no log. Returns False if there is no
        room for it. On a broker: ChannelError 403, for its operators make checkpoints."""
        return self._source.checkpoint()

    def backup(self, path: str | Path) -> None:
        """Copy the box as it is now into a new directory, while it is in use. NotAStoreError: the
        path is not free. OSError, DiskFullError. On a broker: ChannelError 403: the files would
        be written on its machine; its operators run `penstock backup`."""
        self._source.backup(path)

    def close(self) -> None:
        """Close the box; a second time does nothing. In a directory: write what is outstanding and
        release the directory. On a broker: end the connection. Jobs that are not settled are
        delivered again later. Errors of the disk are raised, and the box is closed all the same."""
        self._source.close()

    def __enter__(self) -> "Box":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
