"""Catalog: what the driver asks about streams, of a broker or of a store beside its owner.

    heads     first and next offset of every subscribed stream and partition
    find      the offset of a time
    pages     the pages of a partition, for limits and for cutting a batch into tasks
    hold      sets a named reader's offsets, and what retention must keep for it; `release` ends it
    own       owns the reader set by `named`, for a classic queue; `disown` ends it with the query
    lease     leases messages of a classic queue to that reader; `commit` acknowledges them

A subscribed name is a stream or a classic queue, as the broker reports. A pattern matches streams
only, because reading a queue takes its messages from its other consumers.

Spark asks for the latest offset about fifty times a second while nothing happens, so heads are
cached: answers of a broker, which cost it a millisecond or two, for a tenth of a second; those of a
store just long enough for one round of Spark's questions.

By path nothing is held or leased, because a reader of a store does not write into it.

A path is the directory of a stream (it has allMeta), of a vhost or box (streams/), or of a broker's
whole store (vhosts/). A stream's directory holds its name (.queue_name); a stream that stands alone
is named after its directory.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.errors import NotAStoreError, OptionError, StorageError
from penstock.queues.stream_options import SEPARATOR
from penstock.spark.access import why_not_here
from penstock.spark.classic_queues import (
    ClassicQueues,
    ReaderOwner,
    is_classic_refusal,
    is_stream_refusal,
    refuse_batch,
)
from penstock.spark.http_link import (
    LEASES,
    NOT_FOUND,
    STREAMS,
    HttpLink,
    RefusedError,
    kept_link,
    retried,
)
from penstock.spark.offsets import Heads, PartitionHead
from penstock.spark.options import SourceOptions
from penstock.spark.plan import PageSpan, PageTable, table_of_average
from penstock.storage.data_directory import QUEUE_NAME, hash_name, name_in, placed
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.stream_view import StreamView

FRESH_BROKER_S: Final = 0.1
FRESH_STORE_S: Final = 0.005  # less than Spark waits between two questions
ALL_META: Final = "allMeta"

Clock = Callable[[], float]


class Catalog(ABC):
    """The streams that the options name. See the head of this module."""

    fresh_s: float

    def __init__(self, options: SourceOptions, now: Clock = time.monotonic) -> None:
        self.options = options
        self._now = now
        self._heads: Heads = {}
        self._until = -1.0
        self._reader = ""
        self._known: set[str] = set()

    def named(self, reader: str) -> None:
        """Set the reader to which classic queues are leased. Before that, none is read."""
        if reader != self._reader:
            self._reader = reader
            self._until = -1.0

    def known(self, names: Iterable[str]) -> None:
        """Note that the query has read these streams: if one is missing, that is a loss."""
        self._known.update(names)

    def heads(self, *, is_fresh: bool = False) -> Heads:
        """Return the heads of all subscribed streams, cached ones unless is_fresh. Raises
        OptionError if a named stream or an assigned partition does not exist."""
        if is_fresh or self._now() >= self._until:
            self._heads = self._chosen(self._found())
            self._until = self._now() + self.fresh_s
        return self._heads

    @abstractmethod
    def find(self, stream: str, partition: int, time_us: int) -> int:
        """Return the first offset at that time or later, or the head if there is none."""

    @abstractmethod
    def pages(self, stream: str, partition: int) -> PageTable:
        """Return the pages of a partition."""

    @abstractmethod
    def hold(
        self, reader: str, offsets: dict[str, dict[str, int]], kept: dict[str, dict[str, int]]
    ) -> None:
        """Set a reader's offsets and the offsets from which retention must keep all records for it,
        both by stream and partition."""

    @abstractmethod
    def release(self, reader: str) -> None:
        """Delete that reader from all streams."""

    def own(self, queue: str) -> None:  # noqa: B027
        """Own the reader of this classic queue from now on. Raises ReaderTakenError."""

    def disown(self) -> None:  # noqa: B027
        """Release the readers that were owned."""

    def lease(self, queue: str, head: int, messages: int, size_bytes: int | None) -> PartitionHead:
        """Lease up to so many messages and bytes beyond `head` ones; at least one if one is ready.
        Return what the reader has then."""
        raise OptionError("path", self.options.place.path, "'url' of a broker, to lease messages")

    def commit(self, queue: str, offset: int) -> None:
        """Acknowledge the leased messages before that ordinal."""
        raise OptionError("path", self.options.place.path, "'url' of a broker, to lease messages")

    @abstractmethod
    def _found(self) -> Heads:
        """Return the heads of all streams that the names or the pattern may mean."""

    def _chosen(self, found: Heads) -> Heads:
        options = self.options
        if options.assign is None:
            return {name: found[name] for name in sorted(found)}
        heads: Heads = {}
        for name, numbers in sorted(options.assign.items()):
            for number in numbers if name in found else ():
                if number not in found[name]:
                    there = f"partitions of {name!r}: {sorted(found[name])}"
                    raise OptionError("assign", {name: number}, there)
                heads.setdefault(name, {})[number] = found[name][number]
        return heads

    def _names(self) -> tuple[str, ...]:
        """Return the streams that the options name; none for a pattern."""
        options = self.options
        return options.subscribe if options.assign is None else tuple(options.assign)

    def _is_meant(self, name: str) -> bool:
        pattern = self.options.subscribe_pattern
        return pattern is None or re.fullmatch(pattern, name) is not None


def catalog_of(options: SourceOptions) -> Catalog:
    """Return the catalog of the broker or of the store."""
    return StoreCatalog(options) if options.place.path else BrokerCatalog(options)


# ---- a broker ------------------------------------------------------------------------------------


class BrokerCatalog(Catalog):
    """Asks the broker over HTTP, and repeats questions while it is away (fetchOffset.numRetries).

    Pages are read from the broker's files if those are on this machine. Otherwise the broker is
    asked; if it does not answer, all records count as equally large.
    """

    fresh_s = FRESH_BROKER_S

    def __init__(self, options: SourceOptions, now: Clock = time.monotonic) -> None:
        super().__init__(options, now)
        self._classic: set[str] = set()  # names that turned out to be classic queues
        self._queues = ClassicQueues(self._ask_lease_once, self._retried)
        self._owner = ReaderOwner(self._ask_lease, options.reader_timeout_s)

    def find(self, stream: str, partition: int, time_us: int) -> int:
        query = {"partition": partition, "time_us": time_us}
        return int(self._ask("GET", (stream, "offset"), query)["offset"])

    def pages(self, stream: str, partition: int) -> PageTable:
        head = self.heads()[stream][partition]
        if why_not_here(head.path, head.stream_id) is None and not head.reader:
            return PageTable(_spans(StreamView(OsFileSystem(), head.path)))
        try:
            if head.reader:
                row = self._ask("GET", (stream, head.reader, "pages"), api=LEASES)
            else:
                row = self._ask("GET", (stream, "pages"), {"partition": partition})
            found = row["pages"]
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
            found = []
        if not found:
            return table_of_average(head.first, head.head, head.bytes)
        return PageTable([PageSpan(page["base"], page["records"], page["bytes"]) for page in found])

    def hold(
        self, reader: str, offsets: dict[str, dict[str, int]], kept: dict[str, dict[str, int]]
    ) -> None:
        for stream, of_it in offsets.items():
            body: dict[str, Any] = {"offsets": of_it}
            if stream in kept:
                body["kept_from"] = kept[stream]
            self._ask("PUT", (stream, "readers", reader), None, body)

    def release(self, reader: str) -> None:
        for stream in self._heads:
            if stream not in self._classic:
                self._ask("DELETE", (stream, "readers", reader))

    def own(self, queue: str) -> None:
        self._owner.own(queue, self._reader)
        self._queues.owner = self._owner.token

    def disown(self) -> None:
        self._owner.end()

    def lease(self, queue: str, head: int, messages: int, size_bytes: int | None) -> PartitionHead:
        found = self._queues.leased(queue, self._reader, head, messages, size_bytes)
        self._heads[queue] = {0: found}
        return found

    def commit(self, queue: str, offset: int) -> None:
        self._queues.commit(queue, self._reader, offset)
        head = self._heads.get(queue, {}).get(0)
        if head is not None:
            left = (head.head - offset) / max(head.head - head.first, 1)
            self._heads[queue] = {0: replace(head, first=offset, bytes=int(head.bytes * left))}

    def _found(self) -> Heads:
        if self.options.subscribe_pattern is not None:
            rows = self._ask("GET", ())
            return {row["name"]: _heads_of(row) for row in rows if self._is_meant(row["name"])}
        found: Heads = {}
        for name in self._names():
            try:
                found[name] = self._described(name)
            except RefusedError as error:
                is_loss = name in self._known and not self.options.fail_on_data_loss
                if error.status != NOT_FOUND or not is_loss:
                    raise
        return found

    def _described(self, name: str) -> dict[int, PartitionHead]:
        """Describe a name as a stream or as a classic queue, whichever it is now."""
        if name not in self._classic:
            try:
                return _heads_of(self._ask("GET", (name,)))
            except RefusedError as error:
                if not is_classic_refusal(error):
                    raise
            if not self._reader:
                raise refuse_batch(name)
            self._classic.add(name)
        try:
            return {0: self._queues.described(name, self._reader)}
        except RefusedError as error:
            if not is_stream_refusal(error):
                raise
        self._classic.discard(name)
        return _heads_of(self._ask("GET", (name,)))

    def _ask(
        self, method: str, parts: tuple[str, ...], query: dict[str, Any] | None = None,
        body: object = None, api: str = STREAMS,
    ) -> Any:  # fmt: skip
        return self._retried(lambda: self._link().json(method, parts, query, body, api))

    def _ask_lease(
        self, method: str, parts: tuple[str, ...], query: dict[str, Any] | None, body: object
    ) -> Any:
        return self._ask(method, parts, query, body, LEASES)

    def _ask_lease_once(
        self, method: str, parts: tuple[str, ...], query: dict[str, Any] | None, body: object
    ) -> Any:
        return self._link().json(method, parts, query, body, LEASES)

    def _retried(self, call: Callable[[], Any]) -> Any:
        return retried(call, self.options.retries, self.options.retry_interval_s)

    def _link(self) -> HttpLink:
        return kept_link(self.options.place, self.options.timeout_s)


def _heads_of(row: dict[str, Any]) -> dict[int, PartitionHead]:
    """Return the heads in the broker's description of a stream."""
    return {
        int(one["partition"]): PartitionHead(
            first=one["first"],
            head=one["head"],
            last_time_us=one["last_time_us"],
            bytes=one["bytes"],
            stream_id=one["stream_id"],
            path=str(one.get("path") or ""),
        )
        for one in row["partitions"]
    }


# ---- a store -------------------------------------------------------------------------------------


class StoreCatalog(Catalog):
    """Reads the directories of a store. Raises NotAStoreError if there is none."""

    fresh_s = FRESH_STORE_S

    def __init__(self, options: SourceOptions, now: Clock = time.monotonic) -> None:
        super().__init__(options, now)
        self._fs = OsFileSystem()
        self._views: dict[str, StreamView] = {}
        # Path -> (first offset, base of the last page), bytes of all pages before that one.
        self._sealed: dict[str, tuple[tuple[int, int], int]] = {}

    def find(self, stream: str, partition: int, time_us: int) -> int:
        return self._view(self.heads()[stream][partition].path).find(time_us)

    def pages(self, stream: str, partition: int) -> PageTable:
        view = self._view(self.heads()[stream][partition].path)
        return PageTable(_spans(view))

    def hold(
        self, reader: str, offsets: dict[str, dict[str, int]], kept: dict[str, dict[str, int]]
    ) -> None:
        return

    def release(self, reader: str) -> None:
        return

    def _found(self) -> Heads:
        place = self.options.place
        paths = stream_paths(place.path, place.vhost)
        named = self._names()
        if not named and self.options.subscribe_pattern is None and len(paths) > 1:
            raise OptionError("subscribe", None, f"one or more of {sorted(paths)}")
        for name in named:
            if name not in paths:
                if is_classic_path(place.path, place.vhost, name):
                    expected = "'url' of the broker: this is a classic queue, which it leases"
                    raise OptionError("subscribe", name, expected)
                expected = f"streams of {place}: {sorted(paths)}; classic queues need a 'url'"
                raise OptionError("subscribe", name, expected)
        return {
            name: {number: self._head(path) for number, path in sorted(partitions.items())}
            for name, partitions in paths.items()
            if (name in named if named else self._is_meant(name))
        }

    def _head(self, path: str) -> PartitionHead:
        view = self._view(path)
        head = view.head()
        first = view.first_offset()
        # Pages before the last never change, so they are measured once.
        seen = (first, head.page_base)
        known = self._sealed.get(path)
        if known is None or known[0] != seen:
            known = self._sealed[path] = (seen, sum(span.bytes for span in _spans(view)[:-1]))
        size = known[1] + head.page_bytes
        return PartitionHead(
            first, head.next_offset, head.last_time_us, size, view.stream_id.hex(), path
        )

    def _view(self, path: str) -> StreamView:
        found = self._views.get(path)
        if found is None:
            found = self._views[path] = StreamView(self._fs, path)
        return found


def _spans(view: StreamView) -> list[PageSpan]:
    """Return the pages of a stream up to its head; at least one."""
    found = [PageSpan(page.base, page.count, page.bytes) for page in view.pages()]
    return found or [PageSpan(view.head().next_offset, 0, 0)]


def stream_paths(path: str, vhost: str) -> dict[str, dict[int, str]]:
    """Return the directories of all streams below a path, by name and partition. Raises
    NotAStoreError."""
    place = _placed(path)
    if (place / ALL_META).exists():
        name, number = _name_in(place) or (place.resolve().name, 0)
        return {name: {number: str(place)}}
    is_vhost = _placed(path, "CURRENT").exists() or _placed(path, "streams").is_dir()
    if not is_vhost and not (place / "vhosts").is_dir():
        raise NotAStoreError(
            path, "expected the directory of a stream, a vhost or a data directory"
        )
    found: dict[str, dict[int, str]] = {}
    streams = _placed(str(_vhost_path(path, vhost)), "streams")
    for directory in sorted(streams.iterdir()) if streams.is_dir() else []:
        named = _name_in(directory)
        if named is not None and (directory / ALL_META).exists():
            found.setdefault(named[0], {})[named[1]] = str(directory)
    return found


def is_classic_path(path: str, vhost: str, name: str) -> bool:
    """Return whether the store has a classic queue of that name. Raises NotAStoreError."""
    queues = _placed(str(_vhost_path(path, vhost)), "queues")
    return any(queues.glob(f"{hash_name(name.encode('utf-8', 'surrogateescape'))}.*"))


def _placed(path: str, name: str = "") -> Path:
    """Where a path in a store, or a name in that, lies: parts may be in a directory of their own
    (spill_directory)."""
    return Path(placed(OsFileSystem(), path).place(f"{path}/{name}" if name else path))


def _vhost_path(path: str, vhost: str) -> Path:
    """Return the vhost's directory in a broker's store; any other path is one. Raises
    NotAStoreError."""
    place = Path(path)
    if not (place / "vhosts").is_dir():
        return place
    place = place / "vhosts" / hash_name(vhost.encode("utf-8", "surrogateescape"))
    if not place.is_dir():
        raise NotAStoreError(path, f"no vhost {vhost!r} in it")
    return place


def _name_in(directory: Path) -> tuple[str, int] | None:
    """Return (stream, partition) from the name in a stream's directory, or None."""
    try:
        raw = name_in((directory / QUEUE_NAME).read_bytes(), str(directory))
    except (FileNotFoundError, NotADirectoryError):
        return None
    name, _, rest = raw.partition(SEPARATOR)
    if rest and not (rest[:1] == b"p" and rest[1:].isdigit()):
        raise StorageError(f"{directory}/{QUEUE_NAME}: {raw!r} is not the name of a partition")
    return name.decode("utf-8", "replace"), int(rest[1:]) if rest else 0
