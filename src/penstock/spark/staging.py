"""Staging: a task's rows become pages at the broker, and the driver publishes them as one batch.

    task     rows -> frames -> pages, each a POST -> tokens              `Stager.stage`
    driver   the tokens of all tasks -> one PUT decides the batch        `commit_batch`

**Once.** No row is visible before the PUT, and all rows are after it. In the record that decides
the batch, the broker writes the query, the batch's number, and the number and checksum of its rows;
the same batch again is "already done". So it does not matter how often a task ran (retries,
speculation: only the tokens of the attempts that Spark accepted are sent), nor how often the driver
commits the same batch. Another batch with that number, or an older number, is a BatchConflictError:
two jobs share a queryId, or a checkpoint was deleted, copied or restored. With sameRows=false any
batch with the last number counts as the same: for queries whose rows differ when Spark repeats a
batch.

A streaming query reports every batch, empty ones too, with the number of the batch before. So the
broker notices that it was restored from a backup older than the query's checkpoint, and that
batches are missing. A write with queryId does the same. failOnDataLoss=false continues without
them. beginsLate=true accepts a query that the broker does not know at any batch, for a target that
was added to a running query.

    delivery=exactly-once    Spark's query and batch, committed by the driver
    delivery=idempotent      each task commits its partition as query "<query>/<partition>": no step
                             at the driver, and rows are visible earlier, partition by partition.
                             Exactly once only if a replay gives each partition the same rows
    a batch write            query "job-<random>", batch 0; or as queryId and batchId say

**Pages.** Pages are made here, where the rows are; the broker checks, writes and syncs them, and
does not parse messages. The formats are those of penstock.page_frames. A staged page does not
belong to a stream yet:

    page id       random; a chunk whose id differs from that of the chunk before begins a page
    base offset   0. First offset of a chunk: the number of frames before it in the page
    time          0: the broker sets the time of the commit
    data start    the position in the page, after the page's header of 64 bytes

A page ends before 64 MiB and a chunk before 1 MiB of frames, unless one row is larger; a row must
fit in a page.

**Partitions.** A stream adopts a page of 4 MiB or more without a look at its rows, if all of them
belong to one partition. So the rows of a task for a stream with partitions are grouped by the
partition of their keys, and each page but the last has the rows of one; its attempt's name ends in
_<partition>of<partitions>. Groups are held until there are 64 MiB of them; then the largest one
becomes a page. Groups below 4 MiB share a page, whose rows the broker reads and appends one by one.
In each partition rows keep their order. A task asks for the number of partitions when it has 8 MiB
of rows: with fewer, grouping gains nothing. If the number changes before the batch is moved, the
rows are appended one by one.

The only Python object per row is the bytes object that its checksum is computed of. A chunk is two
joins in C++: heads, bodies and headers into what a CRC covers, then CRCs and that into frames. The
offsets of the second join are the rows of the index. Between them `map` calls crc32 for each frame,
which takes about 0.15 us and is most of the cost.

**Upload.** Each page is a POST of its own:

    POST   /api/staging/<vhost>                      target: checked when a query starts
    POST   /api/staging/<vhost>/<query>              target: the number of its partitions
    POST   /api/staging/<vhost>/<query>/<batch>/<partition>/<attempt>   chunks of one page -> token
    PUT    /api/staging/<vhost>/<query>/<batch>      target, tokens: publish them, all or nothing
    DELETE /api/staging/<vhost>/<query>/<batch>      drop what is staged, unless it is published

Chunks are sent as they are made, so the broker writes while Spark still computes. They are kept
until the page's token arrives: if the connection breaks before that, the whole page is sent again
under another attempt name, because nothing is staged twice under one name. So a task holds one page
at most, and 64 MiB of groups, and a broker that is killed and restarted fails no task.

    no connection, one that breaks, no answer     retried
    503, 507 (not ready; staging is full)         retried, because it may pass
    409 for a POST (the attempt exists)           retried under another name
    409 `batch_conflict` for a PUT                BatchConflictError: the broker has another batch
                                                  of that number, and a retry cannot change that
    any other refusal                             SinkError with the broker's reason, at once

Retries end with a SinkError after `timeout_s` without success. A commit waits for the batch before
it; while the broker reports progress there (its reason changes), the time starts again. A PUT may
be repeated whatever happened to the first: the broker answers "already done".
"""

import http.client
import itertools
import json
import logging
import random
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BatchConflictError, OptionError, PenstockError
from penstock.fast_crc import crc32
from penstock.page_frames import ROW
from penstock.spark.error_text import explained
from penstock.spark.http_link import (
    CONFLICT,
    NOT_ALLOWED,
    NOT_FOUND,
    PASSING,
    STAGING,
    BrokerWait,
    HttpLink,
    LinkError,
    RefusedError,
    api_path,
    authorization,
    new_connection,
    reason_of,
    refused,
)
from penstock.spark.options import EXACTLY_ONCE, Place, SinkOptions
from penstock.spark.sink_columns import SinkColumns, check_keys
from penstock.storage.pages.page import (
    CHUNK_MEDIA_TYPE,
    FRAME_BYTES,
    PAGE_HEADER_BYTES,
    ChunkHead,
    encode_chunk_head,
    page_seed,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

T = TypeVar("T")
Token = dict[str, Any]

PAGE_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 1 << 20
HELD_BYTES: Final = 64 << 20
ADOPTED_BYTES_MIN: Final = 4 << 20  # as in penstock.storage.parts.batch_engine
GROUPED_BYTES_MIN: Final = 2 * ADOPTED_BYTES_MIN
BATCH_CONFLICT: Final = "batch_conflict"
CONFLICTS_MAX: Final = 8
ABORT_TIMEOUT_S: Final = 5.0
COMMIT_TIMEOUT_S: Final = 65.0  # a broker that has to wait says so after at most 60 s

# Of a frame, after its CRC: payload bytes, meta bytes, flags, time.
HEAD: Final = np.dtype([("payload", "<u4"), ("meta", "<u4"), ("flags", "<u4"), ("time", "<i8")])
_NOTHING: Final = pa.scalar(b"", pa.binary())

logger = logging.getLogger(__name__)


class SinkError(PenstockError):
    """Rows were not accepted: what was done where, and why it failed."""


@dataclass(frozen=True)
class StagedRows:
    """What a task staged: the broker's tokens, and the exchanges and keys of its rows."""

    query: str
    batch: int
    tokens: tuple[Token, ...] = ()
    rows: int = 0
    exchanges: frozenset[str] = field(default_factory=frozenset)
    keys: frozenset[tuple[str, str]] = field(default_factory=frozenset)


@dataclass(frozen=True)
class StagedSizes:
    """Bytes of a page and a chunk at most; of groups that are held; that a page must have to be
    adopted; from which on rows are grouped."""

    page: int = PAGE_BYTES
    chunk: int = CHUNK_BYTES
    held: int = HELD_BYTES
    adopted_min: int = ADOPTED_BYTES_MIN
    grouped_min: int = GROUPED_BYTES_MIN


class Stager:
    """Stages the rows of one task. partition, attempt: numbers of Spark's task. sizes: others only
    in tests."""

    def __init__(
        self, options: SinkOptions, columns: SinkColumns, query: str, batch: int, partition: int,
        attempt: int, *, link: "StagingLink | None" = None, sizes: StagedSizes | None = None,
    ) -> None:  # fmt: skip
        self._options = options
        self._columns = columns
        self._key = (query, batch, partition, attempt)
        self._link = link_of(options) if link is None else link
        self._target = parameters_of(options)
        self._rng = random.SystemRandom()
        self._sizes = sizes or StagedSizes()
        self._upload: PageUpload | None = None
        self._tokens: list[Token] = []
        self._rows = 0

    def stage(self, batches: "Iterable[RecordBatch]") -> StagedRows:
        """Stage all rows; return when they are on the broker's disk. Raises SinkError and
        OptionError."""
        try:
            self._stage_all(iter(batches))
        finally:
            if self._upload is not None:
                self._upload.close()
        query, number, _, _ = self._key
        exchanges, keys = frozenset(self._columns.exchanges), frozenset(self._columns.keys)
        return StagedRows(query, number, tuple(self._tokens), self._rows, exchanges, keys)

    def _stage_all(self, batches: "Iterator[RecordBatch]") -> None:
        first: list[RecordBatch] = []
        size = 0
        while size < self._sizes.grouped_min and (batch := next(batches, None)) is not None:
            first.append(batch)
            size += batch.nbytes
        partitions = 1
        if size >= self._sizes.grouped_min and self._options.queue is not None:
            partitions = self._link.partitions(self._key[0], self._target)
        groups, name = None, ""
        if partitions > 1:
            shared = self._columns.shared_partition(partitions)
            groups = RowGroups(partitions, self._sizes) if shared is None else None
            name = "" if shared is None else end_of_name(shared, partitions)
        frames = FrameMaker(self._sizes.page, self._sizes.chunk)
        for batch in itertools.chain(first, batches):
            if not batch.num_rows:
                continue
            bodies, metas = self._columns.bodies(batch), self._columns.metas(batch)
            if groups is None:
                self._send(frames, bodies, metas, name)
                continue
            _checked(frames.check, bodies, metas)
            groups.add(bodies, metas, self._columns.partitions(batch, partitions))
            while groups.is_full:
                self._send_groups(groups.largest())
        while groups is not None and groups.size:
            self._send_groups(groups.largest())
        self._end_page()

    def _send_groups(self, groups: "Sequence[RowGroup]") -> None:
        """Send groups as a page, or several ones if they are too large for one."""
        name = groups[0].name if len(groups) == 1 else ""
        frames = FrameMaker(self._sizes.page, self._sizes.chunk)
        for group in groups:
            for bodies, metas in group.runs(self._sizes.chunk):
                self._send(frames, bodies, metas, name)
        self._end_page()

    def _send(self, frames: "FrameMaker", bodies: Any, metas: Any, name: str = "") -> None:
        """Send rows. name: the end of the attempt's name."""
        chunks = frames.chunks(bodies, metas)
        while (chunk := _checked(next, chunks, None)) is not None:
            if chunk.has_new_page:
                self._end_page()
                self._upload = PageUpload(self._link, self._key, self._target, self._rng, name)
            assert self._upload is not None
            self._upload.send(chunk.data)
            self._rows += chunk.rows

    def _end_page(self) -> None:
        if self._upload is not None:
            self._tokens.append(self._upload.finish())
            self._upload = None


def _checked(call: Callable[..., T], *args: Any) -> T:
    """Return the call's result. Raises OptionError if a row is too large."""
    try:
        return call(*args)
    except ValueError as error:
        raise OptionError("column value", "too long", str(error)) from None


def commit_batch(
    options: SinkOptions, parts: Sequence[StagedRows], *, previous: int | None = None,
    link: "StagingLink | None" = None,
) -> str:  # fmt: skip
    """Publish what the tasks of one batch staged, in the order of the partitions.

    Returns "committed" or "already done", or "" if there are no rows and nothing to report.
    previous: the number of the batch before, if the broker is to notice missing batches. Raises
    SinkError and BatchConflictError.
    """
    tokens = [token for part in parts for token in part.tokens]
    if not tokens and (previous is None or not parts):
        return ""
    keys = {(part.query, part.batch) for part in parts}
    if len(keys) != 1:
        raise SinkError(f"parts of {len(keys)} batches in one: {sorted(keys)}")
    ((query, batch),) = keys
    exchanges = set[str]().union(*[part.exchanges for part in parts])
    if not tokens and options.exchange:
        exchanges.add(options.exchange)
    target = target_of(options, exchanges)
    pairs: list[tuple[str, str]] | None = None
    if options.queue is None and options.is_mandatory:
        pairs = sorted(set[tuple[str, str]]().union(*[part.keys for part in parts]))
        check_keys(len(pairs))
    link = link_of(options) if link is None else link
    return link.commit(
        query, batch, target if tokens or target.get("exchanges") != [] else None, tokens, pairs,
        previous=previous, is_first_kept=not options.has_same_rows,
        begins_late=options.begins_late,
    )  # fmt: skip


def report_batch(given: Mapping[str, str]) -> None:
    """Report a batch without rows, as a write of no rows would, without a job of Spark. given:
    options of the sink, with queryId and batchId. Raises SinkError and BatchConflictError."""
    options = SinkOptions.of(given)
    if options.delivery == EXACTLY_ONCE and options.fails_on_loss:
        assert options.query_id is not None
        assert options.batch_id is not None
        part = StagedRows(options.query_id, options.batch_id)
        commit_batch(options, [part], previous=part.batch - 1)


def target_of(options: SinkOptions, exchanges: Iterable[str]) -> dict[str, Any]:
    """Return the target of a batch as the broker expects it."""
    target: dict[str, Any] = {"queue": options.queue}
    if options.queue is None:
        target = {"exchanges": sorted(exchanges)}
    if options.dead_letter_to is not None:
        target["dead_letter_to"] = options.dead_letter_to
    return target


def parameters_of(options: SinkOptions) -> dict[str, str]:
    """Return the parameter with the target, none if each row names its exchange."""
    target = target_of(options, [] if options.exchange is None else [options.exchange])
    return {} if target.get("exchanges") == [] else {"target": json.dumps(target)}


_checked_sinks: set[tuple[Place, str]] = set()


def check_sink(options: SinkOptions, *, link: "StagingLink | None" = None) -> None:
    """Check at the driver, before tasks are started, that the broker is there, knows the user, and
    lets them write to an existing target. Asks once in a process. With queryId a target may be
    missing: the batch may have been decided before it was deleted, and is then done already. Raises
    OptionError for what an option can mend, SinkError and RefusedError."""
    assert options.place is not None
    target = parameters_of(options)
    key = options.place, target.get("target", "")
    if key in _checked_sinks:
        return
    option = "queue" if options.queue is not None else "exchange"
    given = options.queue if options.queue is not None else options.exchange
    try:
        (link_of(options) if link is None else link).check(target)
    except (LinkError, RefusedError) as error:
        reason = explained(error, option, given, "write permission")
        is_missing = isinstance(error, RefusedError) and error.status == NOT_FOUND
        names_target = isinstance(reason, OptionError) and reason.name == option
        if options.query_id is not None and is_missing and names_target:
            return
        if isinstance(reason, LinkError):
            reason = SinkError(f"{reason}; tried for {options.timeout_s:g} s")
        raise reason from error
    _checked_sinks.add(key)


def abort_batch(
    options: SinkOptions, query: str, batch: int, *, link: "StagingLink | None" = None
) -> None:
    """Drop what tasks staged of a batch, unless it is decided. Never raises."""
    link = link_of(options) if link is None else link
    link.abort(query, batch)


def link_of(options: SinkOptions) -> "StagingLink":
    """Return a link to the broker that the options name."""
    assert options.place is not None
    return StagingLink(options.place, options.target, options.timeout_s)


# ---- groups --------------------------------------------------------------------------------------


def end_of_name(partition: int, partitions: int) -> str:
    """Return what an attempt's name ends in, if all its rows are of this partition of so many."""
    return f"_{partition}of{partitions}"


class RowGroup:
    """Rows of one partition. name: the end of their attempt's name. size: bytes of the rows."""

    def __init__(self, partition: int, partitions: int) -> None:
        self.name = end_of_name(partition, partitions)
        self.size = 0
        self._pieces: deque[tuple[Any, Any, int]] = deque()

    def add(self, bodies: Any, metas: Any) -> int:
        """Add rows; return their bytes."""
        size: int = bodies.nbytes + (
            len(bodies) * len(metas) if _is_shared(metas) else metas.nbytes
        )
        self._pieces.append((bodies, metas, size))
        self.size += size
        return size

    def runs(self, run_bytes: int) -> Iterator[tuple[Any, Any]]:
        """Return all rows, about so many bytes at a time; none of them is kept here."""
        while self._pieces:
            bodies, metas, size = self._pieces.popleft()
            run = [(bodies, metas)]
            while self._pieces and size + self._pieces[0][2] <= run_bytes:
                bodies, metas, more = self._pieces.popleft()
                run.append((bodies, metas))
                size += more
            all_bodies = pa.concat_arrays([bodies for bodies, _ in run])
            if not _is_shared(metas):
                metas = pa.concat_arrays([metas for _, metas in run])
            yield all_bodies, metas


class RowGroups:
    """Rows of a task by partition. size: bytes of all of them."""

    def __init__(self, partitions: int, sizes: StagedSizes) -> None:
        self._partitions = partitions
        self._sizes = sizes
        self._groups: dict[int, RowGroup] = {}
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether some must be sent before more are added."""
        return self.size >= self._sizes.held

    def add(self, bodies: Any, metas: Any, partitions: Any) -> None:
        """Add rows. bodies, metas: see `FrameMaker.chunks`. partitions: an array of numbers."""
        order = np.argsort(partitions, kind="stable")
        bounds = np.searchsorted(partitions[order], np.arange(self._partitions + 1))
        for partition in range(self._partitions):
            rows = order[bounds[partition] : bounds[partition + 1]]
            if len(rows):
                some = metas if _is_shared(metas) else metas.take(rows)
                self.size += self._group(partition).add(bodies.take(rows), some)

    def _group(self, partition: int) -> RowGroup:
        found = self._groups.get(partition)
        if found is None:
            found = self._groups[partition] = RowGroup(partition, self._partitions)
        return found

    def largest(self) -> list[RowGroup]:
        """Remove and return the largest group, or all if none is large enough for a page of its
        own."""
        partition = max(self._groups, key=lambda partition: self._groups[partition].size)
        if self._groups[partition].size >= self._sizes.adopted_min:
            found = [self._groups.pop(partition)]
        else:
            found = [self._groups.pop(partition) for partition in sorted(self._groups)]
        self.size -= sum([group.size for group in found])
        return found


def _is_shared(metas: Any) -> bool:
    """Return whether all rows have the same meta."""
    return isinstance(metas, bytes)


# ---- frames --------------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """data: header, rows and frames, as they are sent. has_new_page: the chunk begins a page."""

    data: bytes
    rows: int
    has_new_page: bool


def random_page_id() -> int:
    """Return a page id of 64 random bits."""
    return random.SystemRandom().getrandbits(64)


class FrameMaker:
    """Makes the chunks of one task. row_bytes_max: limit of body and header of one row."""

    def __init__(
        self, page_bytes: int = PAGE_BYTES, chunk_bytes: int = CHUNK_BYTES,
        new_page_id: Callable[[], int] = random_page_id,
    ) -> None:  # fmt: skip
        self._page_bytes = page_bytes
        self._chunk_bytes = chunk_bytes
        self._new_page_id = new_page_id
        self._page_id = 0
        self._seed = 0
        self._position = page_bytes  # where the next frame begins; no page is begun yet
        self._index = 0  # of the next frame in its page
        self.row_bytes_max = page_bytes - PAGE_HEADER_BYTES - FRAME_BYTES

    def chunks(self, bodies: Any, metas: Any) -> Iterator[Chunk]:
        """Return the frames of these rows, in chunks. bodies: a binary array without nulls. metas:
        another one, or bytes that all rows share. Raises ValueError if a row is larger than
        row_bytes_max."""
        is_constant = _is_shared(metas)
        body_sizes = _sizes(bodies)
        meta_sizes: Any = np.int64(len(metas)) if is_constant else _sizes(metas)
        constant = pa.scalar(metas, pa.binary()) if is_constant else None
        sizes = body_sizes + meta_sizes + FRAME_BYTES
        ends = np.cumsum(sizes)
        at, done, count = 0, 0, len(bodies)
        while at < count:
            room = self._page_bytes - self._position
            to = int(np.searchsorted(ends, done + min(room, self._chunk_bytes), "right"))
            if to == at and sizes[at] > room:
                self._check_size(int(sizes[at]), at)
                self._begin_page()
                continue
            to = max(to, at + 1)  # a row that is larger than a chunk has one of its own
            meta = constant if is_constant else metas.slice(at, to - at)
            metas_of = meta_sizes if is_constant else meta_sizes[at:to]
            yield self._chunk(bodies.slice(at, to - at), meta, body_sizes[at:to], metas_of)
            at, done = to, int(ends[to - 1])

    def check(self, bodies: Any, metas: Any) -> None:
        """Raise ValueError as `chunks` would for these rows."""
        sizes = _sizes(bodies) + (len(metas) if _is_shared(metas) else _sizes(metas))
        row = int(np.argmax(sizes))
        self._check_size(int(sizes[row]) + FRAME_BYTES, row)

    def _check_size(self, frame_bytes: int, row: int) -> None:
        if frame_bytes - FRAME_BYTES > self.row_bytes_max:
            raise ValueError(
                f"row {row} of its batch: body and header of {frame_bytes - FRAME_BYTES:,} bytes, "
                f"expected at most {self.row_bytes_max:,}"
            )

    def _begin_page(self) -> None:
        self._page_id = self._new_page_id()
        self._seed = page_seed(self._page_id)
        self._position = PAGE_HEADER_BYTES
        self._index = 0

    def _chunk(self, bodies: Any, meta: Any, body_sizes: Any, meta_sizes: Any) -> Chunk:
        n = len(bodies)
        heads = np.zeros(n, HEAD)
        heads["payload"] = body_sizes
        heads["meta"] = meta_sizes
        checked = pc.binary_join_element_wise(_fixed(heads), bodies, meta, _NOTHING)
        seeds = np.arange(self._index, self._index + n) ^ self._seed
        crcs = np.fromiter(map(crc32, checked.to_pylist(), seeds.tolist()), "<u4", n)
        frames = pc.binary_join_element_wise(_fixed(crcs), checked, _NOTHING)
        offsets = np.frombuffer(frames.buffers()[1], "<i4", n + 1)
        size = int(offsets[n])
        rows = np.zeros(n, ROW)
        rows["start"] = offsets[:n] + self._position
        rows["size"] = body_sizes
        data = memoryview(frames.buffers()[2])[:size]
        raw_rows: bytes = rows.tobytes()
        crc = crc32(data, crc32(raw_rows, 0))
        head = ChunkHead(n, self._page_id, 0, self._index, self._position, size, len(raw_rows), crc)
        header = encode_chunk_head(head)
        is_first = self._index == 0
        self._position += size
        self._index += n
        return Chunk(b"".join((header, raw_rows, data)), n, is_first)


def _sizes(values: Any) -> Any:
    """Return the bytes of each value."""
    return pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64)


def _fixed(values: Any) -> Any:
    """Return a binary array of the bytes of each element, without a copy."""
    width = values.dtype.itemsize
    bounds = np.arange(0, width * (len(values) + 1), width, dtype=np.int32)
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


# ---- upload --------------------------------------------------------------------------------------


class StagingLink:
    """Commits and aborts batches, and decides on retries. target: for messages. sleep, monotonic:
    those of `time`, except in tests."""

    def __init__(
        self, place: Place, target: str, timeout_s: float, *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.place = place
        self.target = target
        self.timeout_s = timeout_s
        self._sleep = sleep
        self._now = monotonic
        self._wait = BrokerWait(timeout_s, sleep=sleep, monotonic=monotonic)

    def commit(
        self, query: str, batch: int, target: Mapping[str, Any] | None, tokens: Sequence[Token],
        mandatory_keys: Sequence[tuple[str, str]] | None, *, previous: int | None = None,
        is_first_kept: bool = False, begins_late: bool = False,
    ) -> str:  # fmt: skip
        """Publish what the tokens name. Return "committed" or "already done".

        previous: the number of the batch before, if the sink reports all batches. is_first_kept: a
        batch of this number that was decided counts, whatever its rows. begins_late: a query that
        the broker does not know may begin here. Raises SinkError and BatchConflictError.
        """
        body: dict[str, Any] = {
            "target": target, "tokens": list(tokens), "mandatory_keys": mandatory_keys,
        }  # fmt: skip
        if previous is not None:
            body["previous"] = previous
        if is_first_kept:
            body["keep_first"] = True
        if begins_late:
            body["begins_late"] = True
        what = f"committing batch {batch} of query {query!r} to {self.target}"
        wait_s = max(self.timeout_s, COMMIT_TIMEOUT_S)
        answer = self.retry(what, lambda: self._ask("PUT", (query, str(batch)), body, wait_s))
        return str(answer["status"])

    def check(self, target: Mapping[str, str]) -> None:
        """Check user and target at the start of a query. Raises RefusedError and LinkError."""
        wait = BrokerWait(self.timeout_s, is_start=True, sleep=self._sleep, monotonic=self._now)
        try:
            wait.retry(lambda: self._ask("POST", (), None, parameters=target))
        except RefusedError as error:
            if error.status != NOT_ALLOWED:  # a broker that does not check
                raise

    def partitions(self, query: str, target: Mapping[str, str]) -> int:
        """Return how many partitions the target has; 1 if it is no stream. Raises SinkError."""
        what = f"asking for the partitions of {self.target}"
        try:
            answer = self.retry(what, lambda: self._ask("POST", (query,), None, parameters=target))
        except SinkError as error:
            if getattr(error.__context__, "status", 0) == NOT_ALLOWED:
                return 1  # a broker that adopts no pages of partitions
            raise
        return int(answer["partitions"])

    def abort(self, query: str, batch: int) -> None:
        """Drop what is staged of a batch, in one attempt: the broker drops it by itself after a
        day."""
        try:
            self._ask("DELETE", (query, str(batch)), None, min(self.timeout_s, ABORT_TIMEOUT_S))
        except (LinkError, RefusedError) as error:
            logger.warning("dropping batch %d of query %s: %s", batch, query, error)

    def retry(self, what: str, call: Callable[[], T]) -> T:
        """Return the call's result, repeating the call while that may help. Raises SinkError."""
        while True:
            try:
                found = call()
            except (LinkError, RefusedError) as error:
                self.wait_or_raise(what, error)
            else:
                self.succeeded()
                return found

    def succeeded(self) -> None:
        """End the current series of failures."""
        self._wait.succeeded()

    def wait_or_raise(self, what: str, error: LinkError | RefusedError) -> None:
        """Wait a little after a failure. Raises SinkError or BatchConflictError if a retry is
        pointless or the time is over."""
        if isinstance(error, RefusedError) and error.answer.get("error") == BATCH_CONFLICT:
            raise BatchConflictError(f"{what}: {error}") from None
        if isinstance(error, RefusedError) and error.status not in PASSING:
            raise SinkError(f"{what}: {error}") from None
        if not self._wait.waited(error):
            raise SinkError(f"{what}: {error}; tried for {self.timeout_s:g} s") from None

    def _ask(
        self, method: str, parts: tuple[str, ...], body: object, timeout_s: float | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> Any:  # fmt: skip
        """Return the answer to one request on a connection of its own.

        Raises RefusedError and LinkError.
        """
        with closing(HttpLink(self.place, timeout_s or self.timeout_s)) as link:
            return link.json(method, parts, parameters, body, STAGING)


class PageUpload:
    """One page of a task on its way to the broker. key: query, batch, partition, number of Spark's
    attempt. target: query parameters with the target, so that the broker can refuse at once a user
    who may not write there. name: the end of the attempt's name."""

    def __init__(
        self, link: StagingLink, key: tuple[str, int, int, int], target: Mapping[str, str],
        rng: random.Random, name: str = "",
    ) -> None:  # fmt: skip
        self._link = link
        self._key = key
        self._target = target
        self._rng = rng
        self._name = name
        self._chunks: list[bytes] = []
        self._connection: http.client.HTTPConnection | None = None
        self._address = ""
        self._conflicts = 0
        query, batch, partition, _ = key
        self._what = (
            f"staging batch {batch}, partition {partition} of query {query!r} for {link.target}"
        )

    def send(self, chunk: bytes) -> None:
        """Send the next chunk; on a new connection all earlier ones first. Raises SinkError."""
        self._chunks.append(chunk)
        while True:
            try:
                if self._connection is not None:
                    self._put(chunk)
                else:
                    self._begin()
                return
            except (LinkError, RefusedError) as error:
                self._failed(error)

    def finish(self) -> Token:
        """Return the broker's token: the page is on its disk. Raises SinkError."""
        while True:
            try:
                if self._connection is None:
                    self._begin()
                token: Token = self._end()
            except (LinkError, RefusedError) as error:
                self._failed(error)
                continue
            self._link.succeeded()
            return token

    def close(self) -> None:
        """Close the connection. The broker drops a page without an end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _failed(self, error: LinkError | RefusedError) -> None:
        self.close()
        is_name = isinstance(error, RefusedError) and error.status == CONFLICT
        if is_name and self._conflicts < CONFLICTS_MAX:
            self._conflicts += 1
            return
        self._link.wait_or_raise(self._what, error)

    def _begin(self) -> None:
        """Begin a new attempt, with all chunks so far."""
        query, batch, partition, number = self._key
        attempt = f"{number}-{self._rng.getrandbits(32):08x}{self._name}"
        self._address = api_path(
            self._link.place, STAGING, (query, str(batch), str(partition), attempt)
        )
        connection = new_connection(self._link.place, self._link.timeout_s)
        self._connection = connection
        try:
            connection.putrequest("POST", f"{self._address}?{urlencode(self._target)}")
            headers = {"Content-Type": CHUNK_MEDIA_TYPE, "Transfer-Encoding": "chunked"}
            for name, text in (authorization(self._link.place) | headers).items():
                connection.putheader(name, text)
            connection.endheaders()
        except (OSError, http.client.HTTPException) as error:
            raise LinkError(self._link.place, reason_of(error)) from error
        for chunk in self._chunks:
            self._put(chunk)

    def _put(self, chunk: bytes) -> None:
        """Send a chunk of HTTP. A broker that answers before the end has refused."""
        assert self._connection is not None
        try:
            if self._has_answer():
                self._refused_early(None)
            self._connection.send(b"%x\r\n" % len(chunk))
            self._connection.send(chunk)
            self._connection.send(b"\r\n")
        except (OSError, http.client.HTTPException) as error:
            self._refused_early(error)

    def _has_answer(self) -> bool:
        """Return whether an answer has arrived. Always False with TLS, which cannot be asked."""
        assert self._connection is not None
        if isinstance(self._connection, http.client.HTTPSConnection):
            return False
        return bool(select.select([self._connection.sock], [], [], 0)[0])

    def _refused_early(self, error: Exception | None) -> None:
        """Raise the error for a request that the broker ended early."""
        assert self._connection is not None
        try:
            self._answer()
        except (OSError, http.client.HTTPException) as second:
            raise LinkError(self._link.place, reason_of(error or second)) from second
        raise LinkError(self._link.place, "it answered before the end of the page")

    def _end(self) -> Token:
        assert self._connection is not None
        try:
            self._connection.send(b"0\r\n\r\n")
            token: Token = self._answer()
        except (OSError, http.client.HTTPException) as error:
            raise LinkError(self._link.place, reason_of(error)) from error
        self.close()
        return token

    def _answer(self) -> Token:
        assert self._connection is not None
        response = self._connection.getresponse()
        token: Token = answer_of(self._link.place, f"POST {self._address}", response)
        return token


def answer_of(place: Place, what: str, response: http.client.HTTPResponse) -> Any:
    """Return the JSON answer to a request.

    Raises RefusedError; OSError and HTTPException if the answer did not arrive whole.
    """
    raw = response.read()
    if response.status >= 400:
        raise refused(place, what, response.status, raw)
    try:
        return json.loads(raw) if raw else {}
    except ValueError:
        return {}
