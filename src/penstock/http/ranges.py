"""Ranges: the records of a range over HTTP, as frames or for Arrow, and the pages that hold them.

Two kinds of things are read as a range: a partition of a stream, and what a reader has leased of a
queue. Both are a directory of pages with a head, so one code reads both. A request passes through:

    RangeQuery        the parameters: which records
    PageDirectories   where the pages are: the vhost is asked, and its answer is used for PATH_S
    StreamPages       the files: head, times, the records of the range, verified (pages.py)
    RangeAnswers      the answer, as frame chunks or Arrow, made in threads

The files are read without the vhost (storage.stream_view). The vhost is asked only where they are,
because a reader in small steps should not cost it a call each. The pages of a lease are derived
data: they are deleted when the vhost starts, and made again when it is asked for their directory.
So a file that is missing, or a lease that looks incomplete, is looked up once more before the error
is the answer.

    partition=0             default 0
    from=1000 to=2000       offsets, `to` excluded; default: the first record there is, the head
    since=...               instead of from: the first record of this time or later: ISO 8601 (in
                            UTC unless it says otherwise), or microseconds since 1970
    limit=100               at most this many records
    columns=offset,value    of the Arrow answer

A range that begins below the first record, or ends above the head, is a 416 with `first` and
`head`. Retention may delete pages while they are read: an open page stays readable, the rest ends
the answer early, and the next request gets the 416.

**Long answers.** Each step of a body reads files, so it runs in a thread, one step ahead of what is
being sent: an answer holds the bytes of two steps, however slow the client is. The first step runs
before the status is sent, so that its error can be the answer. A later error can only cut the
answer: its last HTTP chunk is not sent, so the client sees that the body is incomplete. A client
that takes nothing for STALL_S, or less than PACE in the long run, is cut, too (SendTime). At most
ANSWERS_MAX long answers are made at a time, USER_ANSWERS_MAX of one user; others wait, and the
users that wait take turns (FairTurns).

**Arrow.** The records of a range in Arrow's IPC streaming format. Columns and their types are those
of penstock.arrow_batches, the same that Spark has; pandas, Polars, DuckDB and any Arrow library can
read the answer while it arrives. It needs the package pyarrow, which is large, so it is imported
with the first request. Without it the answer is a 501.

An HTTP client notices that an answer was cut, because the last chunk is missing. Arrow's format
does not show it: a reader of a cut body that was saved as a file takes its end for the end of the
stream.
"""

import asyncio
import errno
import functools
import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.clock import Clock
from penstock.codec.properties import BasicProperties
from penstock.errors import AMQPError, CorruptionError, NotAStoreError, PenstockError
from penstock.http.node_link import NodeLink, ask_classic, ask_stream
from penstock.http.pages import ByteCache, Span, encode_chunk, open_page
from penstock.http.requests import USER, HttpError, JsonAnswer, SendTime, given, time_us, whole
from penstock.operation_json import in_seconds, payload, to_json
from penstock.queues.amqp_headers import AmqpHeaders, split_address
from penstock.queues.headers import HeaderError
from penstock.server.fair_turns import FairTurns
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.pages.page import CHUNK_MEDIA_TYPE, PageRecord
from penstock.storage.pages.page_reading import list_bases
from penstock.storage.pages.stream_meta import StreamHead
from penstock.storage.pages.stream_view import StreamView

OFFSET_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1
RANGE_NAMES: Final = ("partition", "from", "to", "since", "limit")
RECORD_NAMES: Final = ("partition", "from", "count", "truncate")
RECORDS_MAX: Final = 1000  # of one answer as JSON
RECORDS_SHOWN: Final = 50
RECORDS_BYTES: Final = 8 << 20
BODY_SHOWN: Final = 64 << 10
PATH_S: Final = 1.0
PATHS_MAX: Final = 4096
CACHE_BYTES: Final = 16 << 20
ANSWERS_MAX: Final = 32
USER_ANSWERS_MAX: Final = 24
RANGE_NOT_SATISFIABLE: Final = 416


_AMQP: Final = AmqpHeaders()

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """The parameters of a request, None if not given. since_us: since 1970."""

    partition: int
    first: int | None
    last: int | None
    since_us: int | None
    limit: int | None


def range_query(query: Mapping[str, str]) -> RangeQuery:
    """Return the range that the parameters ask for. Raises HttpError 400."""
    if "since" in query and "from" in query:
        raise HttpError(400, "parameters 'from' and 'since' exclude each other")
    since = query.get("since")
    return RangeQuery(
        partition=whole(query, "partition", PARTITION_MAX) or 0,
        first=whole(query, "from", OFFSET_MAX),
        last=whole(query, "to", OFFSET_MAX),
        since_us=None if since is None else time_us("since", since),
        limit=whole(query, "limit", OFFSET_MAX),
    )


class PageDirectory(ABC):
    """A directory of pages that can be read. queue, partition: as the columns of Arrow have them.
    what: for the log. gone: the error text when it does not exist any more. is_derived: its files
    may be made again."""

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
        """The key of the cache: one call of the vhost answers for all directories of this key."""

    @abstractmethod
    async def ask(self, node: NodeLink) -> dict[int, str]:
        """Return the directories by partition, from the vhost. Raises HttpError 409,
        ControlError."""

    @abstractmethod
    def missing(self, count: int) -> str:
        """Return the error text for a partition that does not exist. count: how many there are."""


class PartitionDirectory(PageDirectory):
    """A partition of a stream."""

    def __init__(self, vhost: str, stream: str, partition: int) -> None:
        super().__init__(vhost, stream, partition, str(partition), f"stream '{stream}' has gone")

    @property
    def key(self) -> tuple[str, ...]:
        return (self.vhost, self.queue)

    async def ask(self, node: NodeLink) -> dict[int, str]:
        answer = await ask_stream(
            node, "describe_stream", self.vhost, self.queue, without_readers=True
        )  # fmt: skip
        return {int(row["partition"]): str(row["path"]) for row in answer["partitions"]}

    def missing(self, count: int) -> str:
        return f"stream '{self.queue}' has no partition {self.partition}, it has {count}"


class LeaseDirectory(PageDirectory):
    """The pages of what a reader has leased of a queue."""

    is_derived = True

    def __init__(self, vhost: str, queue: str, reader: str) -> None:
        self.reader = reader
        gone = f"reader '{reader}' has nothing leased of queue '{queue}'"
        super().__init__(vhost, queue, 0, f"leased by '{reader}'", gone)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.vhost, self.queue, self.reader)

    async def ask(self, node: NodeLink) -> dict[int, str]:
        answer = await ask_classic(
            node, "describe_lease", self.vhost, self.queue, reader=self.reader
        )  # fmt: skip
        path = answer.get("path")
        return {0: str(path)} if path else {}

    def missing(self, count: int) -> str:
        return self.gone


class PageDirectories:
    """Finds directories of pages by asking the vhosts. Used on the loop only."""

    def __init__(self, node: NodeLink, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        # key -> (path of each partition, used until this time)
        self._known: dict[tuple[str, ...], tuple[dict[int, str], float]] = {}

    async def path(self, directory: PageDirectory) -> tuple[str, bool]:
        """Return (path of the directory, whether the vhost was asked just now). Raises HttpError
        404 or 409, ControlError."""
        known = self._known.get(directory.key)
        is_new = known is None or self._clock.monotonic() >= known[1]
        if known is None or is_new:
            paths = await directory.ask(self._node)
            if len(self._known) >= PATHS_MAX:
                self._known.clear()
            known = self._known[directory.key] = (paths, self._clock.monotonic() + PATH_S)
        path = known[0].get(directory.partition)
        if path is None:
            self.forget(directory)
            raise HttpError(404, directory.missing(len(known[0])))
        return path, is_new

    def forget(self, directory: PageDirectory) -> None:
        """Ask the vhost the next time: what is known is wrong."""
        self._known.pop(directory.key, None)


@dataclass(frozen=True, slots=True)
class PageRange:
    """Records [first, last) of the pages at `path`, below the `head` of one moment."""

    path: str
    stream_id: bytes
    head: StreamHead
    first: int
    last: int


class StreamPages:
    """Reads directories of pages. Any thread may call."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._cache = ByteCache(CACHE_BYTES)

    def range(self, path: str, query: RangeQuery) -> PageRange:
        """Return the range for a query. Raises HttpError 400 or 416, NotAStoreError if the stream
        was deleted, CorruptionError, OSError."""
        if query.first is not None and query.last is not None and query.last < query.first:
            text = f"parameter 'to' is {query.last}, below 'from', which is {query.first}"
            raise HttpError(400, text)
        with closing(StreamView(self._fs, path)) as view:
            head, there = view.head(), view.first_offset()
            first = query.first
            if first is None:
                first = there
                if query.since_us is not None:
                    first = min(view.find(query.since_us), head.next_offset)
        last = max(head.next_offset if query.last is None else query.last, first)
        if first < there or first > head.next_offset or last > head.next_offset:
            raise _missing(f"records {first} to {last}", there, head)
        if query.limit is not None:
            last = min(last, first + query.limit)
        return PageRange(path, view.stream_id, head, first, last)

    def find(self, path: str, time_us: int) -> dict[str, int]:
        """Return `offset` of the first record of this time or later, `first` and `head`. Errors as
        `range`."""
        with closing(StreamView(self._fs, path)) as view:
            head, there = view.head(), view.first_offset()
            found = min(view.find(time_us), head.next_offset)
        return {"offset": found, "first": there, "head": head.next_offset}

    def records(
        self, path: str, queue: str, first: int | None, count: int, truncate: int
    ) -> dict[str, object]:
        """Return up to `count` records from `first` on, or from the first one that is left; as many
        as have about RECORDS_BYTES. queue: the stream's name. truncate: bytes of each body. Errors
        as `range`."""
        with closing(StreamView(self._fs, path)) as view:
            head, there = view.head().next_offset, view.first_offset()
            begin = max(there, 0 if first is None else first)
            found = view.read(begin, count, RECORDS_BYTES) if begin < head else []
        return {
            "first": there, "head": head,
            "records": [_record_row(record, queue, truncate) for record in found],
        }  # fmt: skip

    def table(self, path: str) -> dict[str, object]:
        """Return the pages with records below the head, the oldest first. Errors as `range`."""
        with closing(StreamView(self._fs, path)) as view:
            pages = [
                {
                    "base": page.base, "records": page.count, "bytes": page.bytes,
                    "first_time_us": page.first_time_us, "last_time_us": page.last_time_us,
                    "is_sealed": page.is_sealed,
                }
                for page in view.pages()
            ]  # fmt: skip
        return {"pages": pages}

    def missing(self, wanted: PageRange) -> HttpError:
        """Return the 416 for a range that retention has deleted."""
        with closing(StreamView(self._fs, wanted.path)) as view:
            what = f"records {wanted.first} to {wanted.last}"
            return _missing(what, view.first_offset(), view.head())

    def spans(self, wanted: PageRange) -> Iterator[Span]:
        """Yield the records of a range, verified. Raises CorruptionError, FileNotFoundError if
        retention has deleted a page, OSError."""
        first, last, head = wanted.first, wanted.last, wanted.head
        if first >= last:
            return
        bases = list_bases(self._fs, wanted.path)
        for number in range(max(bisect_right(bases, first) - 1, 0), len(bases)):
            base = bases[number]
            end = bases[number + 1] if number + 1 < len(bases) else last
            if base > first or first >= last:
                break
            limit = head.page_bytes if base == head.page_base else None
            page = open_page(self._fs, wanted.path, wanted.stream_id, base, limit, self._cache)
            with closing(page):
                yield from page.spans(first - base, min(last, end) - base)
            first = min(last, end)
        if first < last:
            reason = f"no page with offset {first}"
            raise FileNotFoundError(errno.ENOENT, reason, wanted.path)


def _record_row(record: PageRecord, queue: str, truncate: int) -> dict[str, object]:
    """Return a record as messages are shown. A header that cannot be read is left out."""
    try:
        address, raw = _AMQP.parts(record.meta, queue)
        exchange, key = split_address(address)
        properties = BasicProperties.decode(raw).given()
    except (HeaderError, AMQPError, IndexError):
        exchange, key, properties = b"", b"", {}
    return {
        "offset": record.offset, "time_us": record.time_us,
        "exchange": exchange.decode("utf-8", "surrogateescape"),
        "routing_key": key.decode("utf-8", "surrogateescape"), "redelivered": False,
        "properties": in_seconds(properties), "payload_bytes": len(record.payload),
        **payload(record.payload, truncate, "auto"),
    }  # fmt: skip


def _missing(what: str, first: int, head: StreamHead) -> HttpError:
    text = f"{what} were asked for, there are {first} to {head.next_offset}"
    return HttpError(416, text, first=first, head=head.next_offset)


Maker = Callable[[PageRange, dict[str, str]], Iterator[bytes]]


class RangeAnswers:
    """Answers requests for ranges. reading: the threads that read files. Used on the loop only."""

    def __init__(self, directories: PageDirectories, pages: StreamPages, reading: Executor) -> None:
        self._directories = directories
        self._pages = pages
        self._reading = reading
        self._turns = FairTurns(ANSWERS_MAX, USER_ANSWERS_MAX)
        # Of the streams of a vhost, by it and "http" or "arrow": records and bytes of answers.
        self._records: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[tuple[str, str]] = Counter()

    def read_of(self, vhost: str) -> dict[str, dict[str, int]]:
        """Return how much of a vhost's streams was read, by the names of metric_table."""
        return {
            name: {by: of[vhost, by] for by in ("http", "arrow")}
            for name, of in (
                ("stream_read_records_total", self._records),
                ("stream_read_bytes_total", self._bytes),
            )
        }

    async def offset(self, directory: PageDirectory, time_us: int) -> Response:
        """Answer where the records of this time or later begin. Raises HttpError 404, 409,
        ControlError."""
        return JsonAnswer(
            await self._in_files(directory, lambda path: self._pages.find(path, time_us))
        )

    async def page_table(self, directory: PageDirectory) -> Response:
        """Answer with the list of pages. Raises HttpError 404, 409, ControlError."""
        return JsonAnswer(await self._in_files(directory, self._pages.table))

    async def records(self, request: Request, directory: PageDirectory) -> Response:
        """Answer with records as JSON, for people. Raises HttpError 400, 404, 409, ControlError."""
        query = given(request.query_params, RECORD_NAMES)
        count = whole(query, "count", RECORDS_MAX)
        truncate = whole(query, "truncate", RECORDS_BYTES)
        first = whole(query, "from", OFFSET_MAX)

        def read(path: str) -> dict[str, object]:
            return self._pages.records(
                path, directory.queue, first, RECORDS_SHOWN if count is None else max(count, 1),
                BODY_SHOWN if truncate is None else truncate,
            )  # fmt: skip

        return JsonAnswer(to_json(await self._in_files(directory, read)))

    async def frames(
        self, request: Request, directory: PageDirectory, names: tuple[str, ...]
    ) -> Response:
        """Answer with the range as frame chunks. names: the parameters that the request may have.
        Raises HttpError 400, 404, 409, 416, ControlError."""

        def chunks(wanted: PageRange, _query: dict[str, str]) -> Iterator[bytes]:
            for span in self._pages.spans(wanted):
                yield from encode_chunk(span)

        return await self._long(request, directory, names, chunks, CHUNK_MEDIA_TYPE)

    async def arrow(
        self, request: Request, directory: PageDirectory, names: tuple[str, ...]
    ) -> Response:
        """Answer with the range for Arrow. Raises HttpError 501, too."""
        available()

        def batches(wanted: PageRange, query: dict[str, str]) -> Iterator[bytes]:
            columns = query["columns"].split(",") if "columns" in query else None
            spans = self._pages.spans(wanted)
            return encoded(spans, directory.queue, directory.partition, columns)

        return await self._long(request, directory, (*names, "columns"), batches, ARROW_TYPE)

    async def _long(
        self,
        request: Request,
        directory: PageDirectory,
        names: tuple[str, ...],
        make: Maker,
        media_type: str,
    ) -> Response:
        query = given(request.query_params, names)
        asked = range_query(query)

        def begin(path: str) -> tuple[Iterator[bytes], bytes | None, PageRange]:
            wanted = self._pages.range(path, asked)
            body = make(wanted, query)
            try:
                return body, next(body, None), wanted
            except FileNotFoundError as error:
                raise self._pages.missing(wanted) from error

        user = request.scope[USER]
        await self._turns.take(user)
        try:
            body, first, wanted = await self._in_files(directory, begin)
        except BaseException:
            self._turns.give_back(user)
            raise
        what = f"{directory.what}: {wanted.first} to {wanted.last}"
        headers = {"X-Penstock-First": str(wanted.first), "X-Penstock-Last": str(wanted.last)}
        key = directory.vhost, "arrow" if media_type == ARROW_TYPE else "http"

        def ended(sent_bytes: int) -> None:
            self._turns.give_back(user)
            if sent_bytes and not directory.is_derived:
                self._records[key] += wanted.last - wanted.first
                self._bytes[key] += sent_bytes

        return LongAnswer(body, first, media_type, what, self._reading, ended, headers)

    async def _in_files(self, directory: PageDirectory, work: Callable[[str], Any]) -> Any:
        """Return the result of `work` with the path of the directory, run in a thread."""
        loop = asyncio.get_running_loop()
        for is_last in (False, True):
            path, is_new = await self._directories.path(directory)
            try:
                return await loop.run_in_executor(self._reading, functools.partial(work, path))
            except (NotAStoreError, FileNotFoundError) as error:
                # It was deleted, and perhaps made again, since the vhost was asked.
                if is_last:
                    raise HttpError(404, directory.gone) from error
            except (HttpError, CorruptionError) as error:
                # The pages of a lease may be made again just now, and be incomplete.
                is_half = isinstance(error, CorruptionError)
                is_half = is_half or getattr(error, "status", 0) == RANGE_NOT_SATISFIABLE
                if is_last or is_new or not (directory.is_derived and is_half):
                    raise
            self._directories.forget(directory)
        raise AssertionError


class LongAnswer(Response):
    """An answer whose body is made in threads while it is sent. body: its steps, closed at the end
    in any case. first: the bytes of its first step, None if it had none. what: names the request in
    the log. ended: called at the end with how many bytes were sent, in any case."""

    def __init__(
        self,
        body: Iterator[bytes],
        first: bytes | None,
        media_type: str,
        what: str,
        executor: Executor,
        ended: Callable[[int], None],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(None, media_type=media_type, headers=dict(headers))
        del self.headers["content-length"]
        self._body = body
        self._first = first
        self._what = what
        self._executor = executor
        self._ended = ended
        self._sent_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._send_all(send, gone)
        finally:
            gone.cancel()
            loop = asyncio.get_running_loop()
            try:
                await loop.run_in_executor(self._executor, _close, self._body)
            finally:
                self._ended(self._sent_bytes)

    async def _send_all(self, send: Send, gone: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        data = self._first
        time = SendTime()
        ahead: asyncio.Future[bytes | None] | None = None
        try:
            while data is not None and not gone.done():
                ahead = loop.run_in_executor(self._executor, next, self._body, None)
                began_s = loop.time()
                async with asyncio.timeout(time.left_s()):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                time.took(loop.time() - began_s, len(data))
                self._sent_bytes += len(data)
                data = await ahead
                ahead = None
        except TimeoutError:
            logger.warning("%s: cut, %s", self._what, time.why())
            return
        except (PenstockError, OSError) as error:
            logger.error("%s: cut: %s", self._what, error)
            return
        finally:
            if ahead is not None:
                await asyncio.wait([ahead])
                ahead.exception()
        if data is None:
            await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _close(body: Iterator[bytes]) -> None:
    close = getattr(body, "close", None)
    if close is not None:
        close()


ARROW_TYPE: Final = "application/vnd.apache.arrow.stream"
NEEDED: Final = ("pyarrow", "numpy")


def available() -> None:
    """Raise HttpError 501 if a package is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise HttpError(
            501, f"Arrow needs the package {missing[0]} where the broker runs "
            "(pip install pyarrow); /frames is answered without it",
        )  # fmt: skip


class _Pieces:
    """A file for Arrow's writer: holds what was written until `take`."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def take(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


def encoded(
    spans: Iterator[Span], stream: str, partition: int, columns: Sequence[str] | None
) -> Iterator[bytes]:
    """Yield the bytes of the Arrow stream, a batch or more at a time. Raises HttpError 400 for a
    column that is unknown or given twice, CorruptionError and OSError of reading."""
    import numpy as np
    import pyarrow as pa

    from penstock.arrow_batches import COLUMNS, TYPES, BatchMaker
    from penstock.page_frames import ROW, Frames

    wanted = COLUMNS if columns is None else tuple(columns)
    for name in wanted:
        if name not in TYPES or wanted.count(name) > 1:
            raise HttpError(
                400, f"columns: {name!r} is unknown or twice, known are {', '.join(TYPES)}"
            )
    maker = BatchMaker(stream, partition, wanted)
    pieces = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(pieces, "w"), maker.schema) as writer:
        for span in spans:
            data = b"".join(span.pieces())
            rows = np.frombuffer(span.rows, ROW)
            frames = Frames(rows, data, span.start, span.end, span.first_offset)
            for batch in maker.batches(frames):
                writer.write_batch(batch)
                yield pieces.take()
    yield pieces.take()
