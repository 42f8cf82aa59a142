"""StreamProgress: where a streaming query begins, how far each batch goes, and what its tasks read.

This is the driver's side of a stream, without Spark; the reader in source.py calls it. Its methods
are named after Spark's. What Spark does, and what follows from it:

* Spark asks for the initial offset twice, and again after a restart without a committed batch. So
  words (earliest, latest) stay words until a batch has an end (offsets.py).
* Spark asks for the latest offset fifty times a second while nothing happens. So heads are cached
  briefly, and with no new data `latest_offset` returns its argument unchanged.
* After a failure the same start and end come again, without a question for the latest offset. So
  `partitions` is a function of the two.
* `commit(end)` comes when the next batch is built, and for the last batch of an AvailableNow run
  not at all. But Spark asks for the latest offset only when the batch before is done, so the start
  in that question says the same, and sooner.
* Retention must keep what may be replayed. So the reader's kept_from at the broker is the start of
  the oldest uncommitted batch. A thread renews it every RENEW_S, because a batch may take hours.
  The broker drops it ten minutes after the last renewal, so a killed job holds nothing for ever.

A query without a readerId holds under a random name, which is deleted when the query stops.

minOffsetsPerTrigger waits at most maxTriggerDelay. It does not apply to AvailableNow, and never
delays the batch that turns "latest" into a number.

**Classic queues.** A batch of a stream is a range that exists anyway; a batch of a classic queue
must be leased. `latest_offset` leases as much as the batch may have, and Spark writes the end down
before the batch runs. So

* messages that were leased but are in no batch (after a crash between the two) are the next batch,
  before anything more is leased;
* a batch that runs again finds its ordinals in the lease, and they are the same messages;
* a lease belongs to a reader, whose name must outlive the process: the readerId, or a random name
  that a first, empty batch writes into the checkpoint. Nothing is leased under another name, so
  nothing is left under a name that nobody knows;
* a question for the next batch means that the one before is in Spark's checkpoint: its messages are
  acknowledged then.

A query owns its readers while it runs, so a second one with the same readerId fails before it
leases or reads anything (catalog.py). With AvailableNow it leases as many messages as were
ready when the run began.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.errors import OptionError, PenstockError
from penstock.spark import offsets, plan
from penstock.spark.access import RangeSource
from penstock.spark.catalog import Catalog
from penstock.spark.offsets import Heads, Key, PartitionHead, Positions, ids_of
from penstock.spark.options import LATEST, SourceOptions
from penstock.spark.plan import Loss, Range
from penstock.spark.spark_version import LIMITS, SparkVersionError

RENEW_S: Final = 60.0
PARTITION: Final = 0  # the one that a classic queue has

logger = logging.getLogger(__name__)
Json = Mapping[str, Any]


class DataLossError(PenstockError):
    """Records that a query should have read no longer exist."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        texts = "; ".join(str(loss) for loss in losses)
        super().__init__(f"{texts}. With failOnDataLoss=false the query continues with the rest")
        self.losses = losses


class Losses:
    """Handles losses: raises DataLossError, or logs a warning once for each."""

    def __init__(self, *, is_error: bool) -> None:
        self._is_error = is_error
        self._reported: set[Loss] = set()

    def __call__(self, losses: Sequence[Loss]) -> None:
        if losses and self._is_error:
            raise DataLossError(losses)
        for loss in losses:
            if loss not in self._reported:
                self._reported.add(loss)
                logger.warning("%s", loss)


class StreamProgress:
    """The progress of one query. now: seconds of a monotonic clock."""

    def __init__(
        self, options: SourceOptions, catalog: Catalog, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._options = options
        self._catalog = catalog
        self._now = now
        self._target: Positions | None = None  # of AvailableNow: nothing later is read
        self._triggered: float | None = None  # when the last batch was begun
        self._lose = Losses(is_error=options.fail_on_data_loss)
        self.hold = ReaderHold(catalog, options.reader_id)
        self.leases = QueryLeases(catalog, options, self.hold.name)

    def initial_offset(self) -> dict[str, Any]:
        """Return where the query begins."""
        options = self._options
        begun = offsets.starting(
            options.starting, self._catalog.heads(is_fresh=True), self._catalog.find,
            is_strict=options.is_strict_time, is_streaming=True,
        )  # fmt: skip
        return offsets.encode(begun)

    def prepare_for_available_now(self) -> None:
        """Begin an AvailableNow run: only what exists now is read."""
        heads = self._catalog.heads(is_fresh=True)
        self._target = offsets.all_heads(heads)
        self.leases.until_now(heads)

    def report_latest_offset(self) -> dict[str, Any]:
        """Return the heads, whatever the limits."""
        return offsets.encode(offsets.all_heads(self._catalog.heads()))

    def newest_offset(self) -> dict[str, Any]:
        """Return where a batch without a limit ends, wherever it begins: at the heads. Raises
        SparkVersionError for a classic queue, which is leased from a start on."""
        heads = self._catalog.heads()
        for name, partitions in heads.items():
            if offsets.is_classic(partitions):
                raise SparkVersionError(f"reading classic queue {name!r} as a stream", LIMITS)
        return offsets.encode(offsets.all_heads(heads))

    def latest_offset(self, given: Json, *, is_limited: bool) -> dict[str, Any]:
        """Return where the batch ends that begins at `given`; `given` itself if there is none."""
        start = offsets.decode(given)
        self._recognise(start)
        self.hold.move(start)
        heads = self._catalog.heads()
        self.leases.own(heads)
        self._lose(plan.behind(start, heads))
        self.leases.commit(start, heads)
        target = self.leases.target(self._target, heads) or offsets.all_heads(heads)
        there = {key: at for key, at in target.offsets.items() if key[1] in heads.get(key[0], {})}
        backlog = plan.backlog(start, Positions(there, target.ids), heads)
        new = self.leases.unpinned(start, backlog, heads, is_limited=is_limited)
        backlog |= {key: backlog[key]._replace(end=backlog[key].start) for key in new}
        rows = sum(one.end - one.start for one in backlog.values())
        must = bool(new) or any(
            at == LATEST or at > heads[key[0]][key[1]].head
            for key, at in start.offsets.items()
            if key in there
        )
        if not must and (not rows or (is_limited and self._waits(rows))):
            return dict(given)
        ends = self._ends(backlog, heads, is_limited=is_limited)
        if not must and all(ends[key] == one.start for key, one in backlog.items()):
            return dict(given)  # other consumers took the messages
        self._triggered = self._now()
        return offsets.encode(Positions(ends, offsets.ids_of(heads), self.leases.readers(heads)))

    def partitions(self, given_start: Json, given_end: Json) -> list[tuple[RangeSource, ...]]:
        """Return what each task of a batch reads, in order."""
        start, end = offsets.decode(given_start), offsets.decode(given_end)
        self._recognise(start, end)
        heads = self._catalog.heads()
        if any(at > _head(heads, key) for key, at in end.offsets.items()):
            heads = self._catalog.heads(is_fresh=True)
        self.leases.own(heads)
        found, losses = plan.ranges(start, end, heads)
        self._lose(losses)
        self.hold.begin([one for one in found if one.stream not in end.readers])
        return sources(found, heads, self._options, self._catalog)

    def commit(self, given: Json) -> None:
        """Note that the sink has committed everything before `given`."""
        end = offsets.decode(given)
        self._recognise(end)
        self.hold.move(end)
        if end.readers:
            self.leases.commit(end, self._catalog.heads())

    def stop(self) -> None:
        """Release holds and readers when the query stops."""
        self.hold.end()
        self.leases.end()

    def _recognise(self, *positions: Positions) -> None:
        """Take the reader and the streams of this query from its offsets."""
        for one in positions:
            self.leases.recognise(one)
            self._catalog.known(name for name, _ in one.offsets)

    def _ends(
        self, backlog: Mapping[Key, Range], heads: Heads, *, is_limited: bool
    ) -> dict[Key, int]:
        """Lease what the limits allow of this backlog, and return where the batch ends."""
        options = self._options
        if not is_limited:
            ends = {key: one.end for key, one in backlog.items()}
            return self.leases.lease(backlog, ends, heads, None)
        ends = plan.limited(
            backlog, heads, self._catalog.pages,
            max_rows=options.max_offsets_per_trigger, max_bytes=options.max_bytes_per_trigger,
        )  # fmt: skip
        return self.leases.lease(backlog, ends, heads, options.lease_bytes_per_trigger)

    def _waits(self, rows: int) -> bool:
        """Return whether to wait for more records."""
        least = self._options.min_offsets_per_trigger
        if least is None or rows >= least or self._target is not None:
            return False
        if self._triggered is None:
            return False
        return self._now() - self._triggered < self._options.max_trigger_delay_s


def _head(heads: Heads, key: Key) -> int:
    head = heads.get(key[0], {}).get(key[1])
    return -1 if head is None else head.head


def sources(
    found: Sequence[Range], heads: Heads, options: SourceOptions, catalog: Catalog
) -> list[tuple[RangeSource, ...]]:
    """Return what each task reads, in order."""
    cut = plan.tasks(
        found, heads, catalog.pages, max_bytes=options.max_bytes_per_partition,
        max_rows=options.max_records_per_partition, min_count=options.min_partitions,
    )  # fmt: skip
    max_bytes, max_rows = options.max_bytes_per_partition, options.max_records_per_partition
    if options.max_bytes_per_task is not None:
        max_bytes = min(options.max_bytes_per_task, max_bytes)
    else:
        max_rows = min(max_rows or plan.TOGETHER, plan.TOGETHER)
    shared = plan.packed(
        cut, heads, max_bytes=max_bytes, max_rows=max_rows, min_count=options.min_partitions
    )
    return [tuple([_source(one, heads) for one in task]) for task in shared]


def _source(one: Range, heads: Heads) -> RangeSource:
    head = heads[one.stream][one.partition]
    return RangeSource(one, head.stream_id, head.path, head.reader)


# ---- what a query holds at the broker ------------------------------------------------------------


class ReaderHold:
    """What a query holds at the broker under its reader's name. See the head of this module."""

    def __init__(self, catalog: Catalog, reader_id: str | None) -> None:
        self._catalog = catalog
        self._is_own = reader_id is None
        self.name = reader_id or f"spark-{secrets.token_hex(6)}"
        self._held: dict[Key, int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, found: Sequence[Range]) -> None:
        """Hold the streams of a batch from its start on, unless they are held already."""
        new = {(one.stream, one.partition): one.start for one in found}
        new = {key: at for key, at in new.items() if key not in self._held}
        if new:
            with self._lock:
                self._held.update(new)
            self._send()

    def move(self, end: Positions) -> None:
        """Move holds to `end`, before which all is committed. Holds never move back."""
        with self._lock:
            at_streams = {k: at for k, at in end.offsets.items() if k[0] not in end.readers}
            later = {key: at for key, at in at_streams.items() if at > self._held.get(key, at)}
            self._held.update(later)
        if later:
            self._send()

    def end(self) -> None:
        """Release the hold. The offsets of a named reader stay."""
        self._ended.set()
        if self._is_own and self._held:
            try:
                self._catalog.release(self.name)
            except PenstockError as error:
                logger.warning("reader %s could not be deleted: %s", self.name, error)

    def _send(self) -> None:
        with self._lock:
            by_stream: dict[str, dict[str, int]] = {}
            for (stream, partition), at in sorted(self._held.items()):
                by_stream.setdefault(stream, {})[str(partition)] = at
        self._catalog.hold(self.name, by_stream, by_stream)
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="penstock-hold", daemon=True)
            self._thread.start()

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            try:
                self._send()
            except PenstockError as error:  # the next attempt may succeed
                logger.warning("reader %s could not be renewed: %s", self.name, error)


# ---- classic queues ------------------------------------------------------------------------------


class QueryLeases:
    """The leases of one query. own_name: the reader if neither options nor checkpoint name one."""

    def __init__(self, catalog: Catalog, options: SourceOptions, own_name: str) -> None:
        self._catalog = catalog
        self._options = options
        self._reader = options.reader_id or own_name
        self._ready: dict[Key, int] | None = None  # with AvailableNow: messages it may lease
        self._target: Positions | None = None
        catalog.named(self._reader)

    def recognise(self, positions: Positions) -> None:
        """Continue as the reader that an offset of this query names. Raises OptionError if readerId
        differs."""
        for queue, reader in positions.readers.items():
            asked = self._options.reader_id
            if asked not in (None, reader):
                expected = (
                    f"{reader!r}, to which the checkpoint's messages of queue {queue!r} are leased"
                )
                raise OptionError("readerId", asked, expected)
            self._reader = reader
        self._catalog.named(self._reader)

    def own(self, heads: Heads) -> None:
        """Own the readers of these queues from now on. Raises ReaderTakenError."""
        for name, _ in _leases(heads):
            self._catalog.own(name)

    def end(self) -> None:
        """Release the readers when the query stops."""
        self._catalog.disown()

    def readers(self, heads: Heads) -> dict[str, str]:
        """Return the reader of each classic queue, for the offset."""
        return {name: self._reader for name in heads if _is_lease((name, PARTITION), heads)}

    def until_now(self, heads: Heads) -> None:
        """Begin an AvailableNow run: only what is ready now is read."""
        self._ready = {(n, PARTITION): p[PARTITION].ready for n, p in _leases(heads)}
        self._target = None

    def target(self, of_streams: Positions | None, heads: Heads) -> Positions | None:
        """Return how far an AvailableNow run goes, or None for any other run. Queues are added at
        its first batch, because only then has the checkpoint named the reader."""
        if of_streams is None or self._ready is None:
            return of_streams
        if self._target is None:
            ends = dict(of_streams.offsets)
            for key, ready in self._ready.items():
                if _is_lease(key, heads):
                    ends[key] = heads[key[0]][key[1]].head + ready
            self._target = Positions(ends, of_streams.ids)
        return self._target

    def commit(self, done: Positions, heads: Heads) -> None:
        """Acknowledge all messages before these ordinals."""
        ids = ids_of(heads)
        for key, at in done.offsets.items():
            if key[0] not in done.readers or not _is_lease(key, heads):
                continue
            head = heads[key[0]][key[1]]
            is_same = done.ids.get(key[0], ids.get(key[0])) == ids.get(key[0])
            if is_same and head.first < at <= head.head:
                self._catalog.commit(key[0], at)

    def unpinned(
        self, start: Positions, backlog: Mapping[Key, Range], heads: Heads, *, is_limited: bool
    ) -> list[Key]:
        """Return the queues that cannot be leased yet, because the checkpoint does not name the
        reader. Raises OptionError if it never will, because there is only one batch."""
        if self._options.reader_id is not None:
            return []
        found = [key for key in backlog if _is_lease(key, heads) and key[0] not in start.readers]
        if found and not is_limited:
            expected = (
                f"a name: queue {found[0][0]!r} is leased to a reader, and a query with "
                "trigger(once=True) has no batch before to note the name of one in"
            )
            raise OptionError("readerId", None, expected)
        return found

    def lease(
        self, backlog: Mapping[Key, Range], ends: Mapping[Key, int], heads: Heads,
        max_bytes: int | None,
    ) -> dict[Key, int]:  # fmt: skip
        """Lease what a batch is to read, and return where it ends. Updates `heads`."""
        found = dict(ends)
        allowed = {} if max_bytes is None else plan.shares(backlog, ends, heads, max_bytes)
        for key, one in backlog.items():
            messages = ends[key] - one.start
            if not messages or not _is_lease(key, heads) or one.start < heads[key[0]][key[1]].head:
                continue
            head = self._catalog.lease(key[0], one.start, messages, allowed.get(key))
            heads[key[0]] = {key[1]: head}
            found[key] = min(head.head, ends[key])
        return found


def _leases(heads: Heads) -> list[tuple[str, Mapping[int, PartitionHead]]]:
    return [(name, found) for name, found in heads.items() if _is_lease((name, PARTITION), heads)]


def _is_lease(key: Key, heads: Heads) -> bool:
    head = heads.get(key[0], {}).get(key[1])
    return head is not None and bool(head.reader)
