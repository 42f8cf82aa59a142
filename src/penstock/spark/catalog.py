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

**Leases.** A classic queue gives each message to one consumer. A query takes its messages durably:
the broker leases them to a named reader, numbers them in the order of delivery, and keeps them for
the reader across crashes until they are committed, which acknowledges them
(docs/guides/classic-queue-sources.md). So planning and reading treat a lease as a stream with one
partition: `first` is what is committed, `head` what is leased, and ready messages can be leased
beyond that.

    described   returns what the reader has, and leases nothing
    leased      leases up to so many messages more, and returns the same
    commit      acknowledges all messages before an ordinal

The broker decides which queues are classic: it refuses to describe them as streams (409,
not_a_stream). That also finds a queue that was deleted and declared as the other kind.

Leasing must not be done twice because an answer was lost, so `leased` looks at what the reader has
before it asks again.

**Owners.** Two queries with one readerId would read the same leased messages and write them twice.
So a query owns its reader at the broker, by a random token, which a thread renews: a batch may take
hours, and Spark asks nothing meanwhile. A second query finds another owner:

    the owner renewed since                     it runs: ReaderTakenError
    it did not, until its seconds were over     it is gone (killed, say): this query owns the reader

A query that was cut off for longer than those seconds and lost its reader fails at its next request
to the broker.

How much of a batch is leased, and to which reader: QueryLeases in progress.py.
"""

import logging
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from penstock.errors import (
    NotAStoreError,
    OptionError,
    PenstockError,
    ReaderTakenError,
    StorageError,
)
from penstock.queues.stream_options import SEPARATOR
from penstock.spark.access import why_not_here
from penstock.spark.error_text import explained
from penstock.spark.http_link import (
    CONFLICT,
    LEASES,
    NOT_FOUND,
    STREAMS,
    BrokerWait,
    HttpLink,
    LinkError,
    RefusedError,
    kept_link,
)
from penstock.spark.offsets import Heads, PartitionHead
from penstock.spark.options import SourceOptions
from penstock.spark.plan import PageSpan, PartitionPages, table_of_average
from penstock.storage.files.data_directory import QUEUE_NAME, hash_name, name_in, placed
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.pages.stream_view import StreamView

NOT_A_STREAM: Final = "not_a_stream"
IS_A_STREAM: Final = "is_a_stream"
READER_TAKEN: Final = "reader_taken"
OWNER: Final = "owner"
MESSAGES_MAX: Final = 1 << 18  # of one question: the broker answers within a second or two

# method, names below /api/leases/<vhost>/, query, body -> the answer
Ask = Callable[[str, tuple[str, ...], dict[str, Any] | None, object], Any]
# a call -> its result; repeated, as the options say, while the broker is away
Retry = Callable[[Callable[[], Any]], Any]
QueueReader = tuple[str, str]  # queue, reader

logger = logging.getLogger(__name__)


def is_classic_refusal(error: RefusedError) -> bool:
    """Return whether the broker refused because the queue is classic, not a stream."""
    return error.status == CONFLICT and error.answer.get("error") == NOT_A_STREAM


def is_stream_refusal(error: RefusedError) -> bool:
    """Return whether the broker refused because the queue is a stream, not classic."""
    return error.status == CONFLICT and error.answer.get("error") == IS_A_STREAM


def refuse_batch(queue: str) -> OptionError:
    """Return the error for reading a classic queue with spark.read."""
    return OptionError(
        "subscribe", queue,
        "a stream: a classic queue delivers each message once, and a batch read would not know "
        "when to acknowledge it. Use spark.readStream with trigger(availableNow=True), which "
        "acknowledges what its sink has committed; or box.browse, which removes nothing",
    )  # fmt: skip


class ClassicQueues:
    """The leases of a query. `ask` sends one request; `retry` repeats a call until the broker
    answers. owner: the token that owns the readers, "" for none."""

    def __init__(self, ask: Ask, retry: Retry) -> None:
        self._ask = ask
        self._retry = retry
        self.owner = ""

    def described(self, queue: str, reader: str) -> PartitionHead:
        """Return what that reader has of the queue, if anything. Raises RefusedError and
        LinkError."""
        return _head(self._retry(lambda: self._row(queue, reader)), reader)

    def leased(
        self, queue: str, reader: str, head: int, messages: int, size_bytes: int | None
    ) -> PartitionHead:
        """Lease up to so many messages and bytes, and return what the reader has then. head: how
        many messages it had. Raises RefusedError, LinkError and ReaderTakenError."""
        goal = head + messages
        most = size_bytes
        found: PartitionHead | None = None
        while head < goal and (most is None or most > 0):
            row = self._lease_once(queue, reader, head, min(goal - head, MESSAGES_MAX), most)
            before = 0 if found is None else found.bytes
            found = _head(row, reader)
            if found.head == head:
                break
            if most is not None:
                most -= found.bytes - before
            head = found.head
            if not found.ready:
                break
        return self.described(queue, reader) if found is None else found

    def commit(self, queue: str, reader: str, offset: int) -> None:
        """Acknowledge all messages before `offset`. Raises RefusedError, LinkError,
        ReaderTakenError."""
        body = self._owned({"committed": offset})
        try:
            self._retry(lambda: self._ask("PUT", (queue, reader), None, body))
        except RefusedError as error:
            raise taken_error(error) or error from None

    def _owned(self, body: dict[str, Any]) -> dict[str, Any]:
        return body | {"owner": self.owner} if self.owner else body

    def _row(self, queue: str, reader: str) -> Any:
        return self._ask("GET", (queue, reader), None, None)

    def _lease_once(
        self, queue: str, reader: str, head: int, messages: int, size_bytes: int | None
    ) -> Any:
        """Send one request to lease. If its answer was lost, return what the request did."""
        is_asked = False

        def lease() -> Any:
            nonlocal is_asked
            if is_asked:
                row = self._row(queue, reader)
                if row["head"] > head:
                    return row
            is_asked = True
            body = self._owned({"messages": messages, "bytes": size_bytes})
            return self._ask("POST", (queue, reader), None, body)

        try:
            return self._retry(lease)
        except RefusedError as error:
            raise taken_error(error) or error from None


def _head(row: dict[str, Any], reader: str) -> PartitionHead:
    """Return the broker's description of a reader as a PartitionHead."""
    return PartitionHead(
        first=row["first"],
        head=row["head"],
        last_time_us=row.get("last_time_us") or 0,
        bytes=row["bytes"],
        stream_id=str(row.get("stream_id") or ""),
        path=str(row.get("path") or ""),
        reader=reader,
        ready=row["ready"],
        ready_bytes=row.get("ready_bytes") or 0,
    )


def taken_error(error: RefusedError) -> ReaderTakenError | None:
    """Return a ReaderTakenError if the broker refused because another query owns the reader."""
    return ReaderTakenError(str(error)) if error.answer.get("error") == READER_TAKEN else None


# ---- owners --------------------------------------------------------------------------------------


OWNER_PAUSE_S: Final = 0.5  # the query that ended may still be about to say so


class ReaderOwner:
    """Owns the readers of a query. seconds: how long an owner that does not renew stays the owner.
    ask_once: asks without waiting for a broker that is away. sleep, now: those of `time`, except in
    tests."""

    def __init__(
        self, ask: Ask, seconds: int, *, ask_once: Ask,
        sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.token = secrets.token_hex(16)
        self._ask = ask
        self._ask_once = ask_once
        self._seconds = seconds
        self._sleep = sleep
        self._now = now
        self._owned: set[QueueReader] = set()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def own(self, queue: str, reader: str) -> None:
        """Own the reader from now on. Raises ReaderTakenError if a running query owns it;
        RefusedError and LinkError."""
        key = queue, reader
        if key in self._owned:
            return
        until = self._now() + 1.5 * self._seconds + 1
        renewals_seen: int | None = None
        while True:
            row = self._ask("PUT", *self._said(key, is_held=False))
            if row["is_owner"]:
                break
            if renewals_seen is None:
                renewals_seen = row["renewals"]
            if row["renewals"] != renewals_seen or self._now() >= until:
                raise ReaderTakenError(
                    f"reader {reader!r} of queue {queue!r} belongs to another running query: "
                    "give each query a readerId of its own, or stop the other one"
                )
            self._sleep(min(row["expires_s"], self._seconds / 4, OWNER_PAUSE_S) + 0.05)
        self._owned.add(key)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="penstock-owner", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Release all readers when the query ends. Never raises."""
        self._ended.set()
        owned, self._owned = self._owned, set()
        for queue, reader in owned:
            try:
                self._ask_once("DELETE", (queue, reader, OWNER), {OWNER: self.token}, None)
            except PenstockError as error:
                logger.warning("reader %s of queue %s is still owned: %s", reader, queue, error)

    def renew(self) -> None:
        """Renew all readers once."""
        for key in sorted(self._owned):
            try:
                row = self._ask_once("PUT", *self._said(key, is_held=True))
            except PenstockError as error:  # the next attempt may succeed
                logger.warning("reader %s of queue %s was not renewed: %s", key[1], key[0], error)
                continue
            if not row["is_owner"] and key in self._owned:
                logger.error("reader %s of queue %s was lost to another query", key[1], key[0])

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / 3):
            self.renew()

    def _said(
        self, key: QueueReader, *, is_held: bool
    ) -> tuple[tuple[str, ...], None, dict[str, Any]]:
        """Return what is asked after PUT."""
        return (
            (*key, OWNER),
            None,
            {OWNER: self.token, "seconds": self._seconds, "is_held": is_held},
        )


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
    def pages(self, stream: str, partition: int) -> PartitionPages:
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
    """Asks the broker over HTTP, and waits while it is away (http_link.py), but for what is asked
    when the query stops: the broker drops that by itself after a time. sleep: that of `time`,
    except in tests.

    Pages are read from the broker's files if those are on this machine. Otherwise the broker is
    asked; if it does not answer, all records count as equally large.
    """

    fresh_s = FRESH_BROKER_S

    def __init__(
        self, options: SourceOptions, now: Clock = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        super().__init__(options, now)
        self._sleep = sleep
        self._has_answered = False
        self._classic: set[str] = set()  # names that turned out to be classic queues
        self._queues = ClassicQueues(self._ask_lease_once, self._retried)
        self._owner = ReaderOwner(
            self._ask_lease, int(options.reader_timeout_s), ask_once=self._ask_lease_once
        )

    def heads(self, *, is_fresh: bool = False) -> Heads:
        """Return the heads. At the start of a query a wrong address, login or right raises
        OptionError, too."""
        try:
            found = super().heads(is_fresh=is_fresh)
        except (LinkError, RefusedError) as error:
            if self._has_answered:
                raise
            raise explained(error, *self._named_by(), "read permission") from error
        self._has_answered = True
        return found

    def _named_by(self) -> tuple[str, str]:
        """Return the option that names the streams, and its value."""
        options = self.options
        if options.subscribe_pattern is not None:
            return "subscribePattern", options.subscribe_pattern
        return "subscribe" if options.assign is None else "assign", ",".join(self._names())

    def find(self, stream: str, partition: int, time_us: int) -> int:
        query = {"partition": partition, "time_us": time_us}
        return int(self._ask("GET", (stream, "offset"), query)["offset"])

    def pages(self, stream: str, partition: int) -> PartitionPages:
        head = self.heads()[stream][partition]
        if why_not_here(head.path, head.stream_id) is None and not head.reader:
            return PartitionPages(_spans(StreamView(OsFileSystem(), head.path)))
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
        return PartitionPages(
            [PageSpan(page["base"], page["records"], page["bytes"]) for page in found]
        )

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
                self._link().json("DELETE", (stream, "readers", reader))

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
        is_start = not self._has_answered
        wait = BrokerWait.of(self.options, self._sleep, self._now, is_start=is_start)
        return wait.retry(call)

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

    def pages(self, stream: str, partition: int) -> PartitionPages:
        view = self._view(self.heads()[stream][partition].path)
        return PartitionPages(_spans(view))

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
