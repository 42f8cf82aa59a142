"""Places: where the pages of what is read are: a partition of a stream, or what a reader leased.

A vhost is asked where they lie, and for nothing else: heads, times and records are read from the
files beside it, as any reader may who has them (storage.stream_view). What it said is believed for
PLACE_S, so that a reader in small steps does not cost it a question each.

The pages of a lease are derived data: gone when the vhost starts, and made again when it is asked
where they are. So what is missing at a place that was known is asked for once more.

Not here: what is read there (stream_pages, range_answers).
"""

from abc import ABC, abstractmethod
from typing import Final

from penstock.clock import Clock
from penstock.http.http_errors import HttpError
from penstock.http.node_link import NodeLink
from penstock.http.queue_kinds import ask_classic, ask_stream

PLACE_S: Final = 1.0
PLACES_MAX: Final = 4096


class Place(ABC):
    """queue: its name, as the column of Arrow has it. partition: of it. what: for the log. gone:
    what is answered when it is no more. is_derived: its files may be made again."""

    is_derived = False

    def __init__(self, vhost: str, queue: str, partition: int, what: str, gone: str) -> None:
        self.vhost = vhost
        self.queue = queue
        self.partition = partition
        self.what = f"{vhost}: {queue}: {what}"
        self.gone = gone

    @property
    @abstractmethod
    def key(self) -> tuple[str, ...]:
        """What is asked for together."""

    @abstractmethod
    async def ask(self, node: NodeLink) -> dict[int, str]:
        """The directories that the vhost tells, by partition. HttpError 409; ControlError."""

    @abstractmethod
    def missing(self, count: int) -> str:
        """What is said of one that is not among the `count` that were told."""


class StreamPlace(Place):
    """A partition of a stream."""

    def __init__(self, vhost: str, stream: str, partition: int) -> None:
        super().__init__(vhost, stream, partition, str(partition), f"stream '{stream}' has gone")

    @property
    def key(self) -> tuple[str, ...]:
        return (self.vhost, self.queue)

    async def ask(self, node: NodeLink) -> dict[int, str]:
        told = await ask_stream(node, "describe_stream", self.vhost, self.queue)
        return {int(row["partition"]): str(row["path"]) for row in told["partitions"]}

    def missing(self, count: int) -> str:
        return f"stream '{self.queue}' has no partition {self.partition}, it has {count}"


class LeasePlace(Place):
    """What a reader has leased of a queue."""

    is_derived = True

    def __init__(self, vhost: str, queue: str, reader: str) -> None:
        self.reader = reader
        gone = f"reader '{reader}' has nothing leased of queue '{queue}'"
        super().__init__(vhost, queue, 0, f"leased by '{reader}'", gone)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.vhost, self.queue, self.reader)

    async def ask(self, node: NodeLink) -> dict[int, str]:
        told = await ask_classic(
            node, "describe_lease", self.vhost, self.queue, reader=self.reader
        )  # fmt: skip
        path = told.get("path")
        return {0: str(path)} if path else {}

    def missing(self, count: int) -> str:
        return self.gone


class Places:
    """Of one broker; on the loop."""

    def __init__(self, node: NodeLink, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        # key -> (path of each partition, believed until)
        self._known: dict[tuple[str, ...], tuple[dict[int, str], float]] = {}

    async def path(self, place: Place) -> tuple[str, bool]:
        """(its directory, whether the vhost has said so just now). HttpError 404, 409;
        ControlError."""
        known = self._known.get(place.key)
        is_new = known is None or self._clock.monotonic() >= known[1]
        if known is None or is_new:
            paths = await place.ask(self._node)
            if len(self._known) >= PLACES_MAX:
                self._known.clear()
            known = self._known[place.key] = (paths, self._clock.monotonic() + PLACE_S)
        path = known[0].get(place.partition)
        if path is None:
            self.forget(place)
            raise HttpError(404, place.missing(len(known[0])))
        return path, is_new

    def forget(self, place: Place) -> None:
        """What is known of it is wrong."""
        self._known.pop(place.key, None)
