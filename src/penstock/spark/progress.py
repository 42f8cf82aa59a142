"""StreamProgress: where a streaming query begins, how far a batch of it goes, what it reads.

This is the driver's side of a stream, without Spark: the thin reader of source.py calls it. What
Spark does with it, and what follows from that:

* the first offset is asked for twice, and again after a restart when no batch was committed: so
  words (earliest, latest) stay words until a batch has an end (offsets.py);
* the latest offset is asked for fifty times a second when nothing happens: heads are believed for a
  moment, and nothing new gives back the very offset that was given;
* after a failure the same start and end come again, without a question for the latest offset:
  `batch` is a function of the two;
* `commit(end)` comes when the next batch is built, and in a run with AvailableNow not at all for
  the last one. But the latest offset is asked for only when the batch before is done, so its start
  says the same, and sooner;
* retention must not take what may be replayed, so the reader's kept_from at the broker stands at
  the start of the oldest batch that was not committed, and is said again every RENEW_S, by a
  thread, for a batch may take hours and Spark asks nothing meanwhile. Ten minutes after it was last
  said the broker lets go: a job that was killed holds nothing for ever.

A query without a readerId holds under a name of its own, which is deleted when it ends.

Classic queues go the same way, with messages leased where heads are looked up (query_leases.py).

The least that a batch should have (minOffsetsPerTrigger) waits for maxTriggerDelay at most, does
not count for AvailableNow, and never holds up the batch that pins down where "latest" was.

QueryLeases: the classic queues of a query: whose lease, what is acknowledged, what is leased.

A batch of a stream is a range that is there anyway. A batch of a classic queue has to be taken: the
question for the latest offset leases as much as the batch may have, and Spark writes the end down
before the batch runs. So

* what was leased and never got into a batch (a crash between the two) is the next batch, before
  anything more is leased: no message is left in between;
* a batch that is run again finds its ordinals in the lease, and they are the same messages;
* a lease belongs to a reader, whose name must outlive the process. With a readerId that is its
  name. Without one it is drawn, and written down by a first batch that is empty: only what the
  checkpoint names is ever leased to, and nothing is left behind under a name that nobody knows;
* a question for the next batch says that the one before is done, in Spark's checkpoint too: then
  its messages are acknowledged. Spark's own `commit` says so later, and for a last batch never.

A query owns its readers while it runs, so that a second one with the same readerId fails before it
leases or reads anything (reader_owner.py).

With AvailableNow as many are leased as were ready when the run began.

Not here: what the broker is asked (classic_queues.py), what of all that there is belongs to a batch
(plan.py).
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.errors import OptionError, PenstockError
from penstock.spark import offsets, plan
from penstock.spark.access import Source
from penstock.spark.catalog import Catalog
from penstock.spark.offsets import Heads, Key, PartitionHead, Positions, ids_of
from penstock.spark.options import LATEST, SourceOptions
from penstock.spark.plan import Loss, Range

PARTITION: Final = 0  # the one that a classic queue has


class QueryLeases:
    """See the head of this module. own_name: of a reader, if neither options nor checkpoint name
    one."""

    def __init__(self, catalog: Catalog, options: SourceOptions, own_name: str) -> None:
        self._catalog = catalog
        self._options = options
        self._reader = options.reader_id or own_name
        self._ready: dict[Key, int] | None = None  # with AvailableNow: how many it may still lease
        self._target: Positions | None = None
        catalog.named(self._reader)

    def recognise(self, positions: Positions) -> None:
        """Go on as the reader that an offset of this query names. OptionError: as another one."""
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
        """No other query uses the readers of these queues from here on. ReaderTakenError."""
        for name, _ in _leases(heads):
            self._catalog.own(name)

    def end(self) -> None:
        """The query ends."""
        self._catalog.disown()

    def readers(self, heads: Heads) -> dict[str, str]:
        """Of each classic queue, for the offset."""
        return {name: self._reader for name in heads if _is_lease((name, PARTITION), heads)}

    def until_now(self, heads: Heads) -> None:
        """AvailableNow: what is ready now is read, and not what comes later."""
        self._ready = {(n, PARTITION): p[PARTITION].ready for n, p in _leases(heads)}
        self._target = None

    def target(self, of_streams: Positions | None, heads: Heads) -> Positions | None:
        """How far a run with AvailableNow goes, as far as queues are concerned at its first batch:
        only then the checkpoint has told whose leases these are. None for any other run."""
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
        """Acknowledge all before these ordinals."""
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
        """Queues that are not leased yet, for the checkpoint does not name the reader. OptionError:
        it never will, for there is one batch only."""
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

    def take(
        self, backlog: Mapping[Key, Range], ends: Mapping[Key, int], heads: Heads,
        max_bytes: int | None,
    ) -> dict[Key, int]:  # fmt: skip
        """Lease what a batch is to read; where it ends then. heads has it afterwards."""
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


RENEW_S: Final = 60.0

logger = logging.getLogger(__name__)
Json = Mapping[str, Any]


class DataLossError(PenstockError):
    """Records that a query should have read are not there."""

    def __init__(self, losses: Sequence[Loss]) -> None:
        told = "; ".join(str(loss) for loss in losses)
        super().__init__(f"{told}. With failOnDataLoss=false a query goes on with what there is")
        self.losses = losses


class Losses:
    """What becomes of losses: an error, or a warning, once for each."""

    def __init__(self, *, is_error: bool) -> None:
        self._is_error = is_error
        self._told: set[Loss] = set()

    def __call__(self, losses: Sequence[Loss]) -> None:
        if losses and self._is_error:
            raise DataLossError(losses)
        for loss in losses:
            if loss not in self._told:
                self._told.add(loss)
                logger.warning("%s", loss)


class ReaderHold:
    """What a query holds at the broker under its reader's name; see the head of this module."""

    def __init__(self, catalog: Catalog, reader_id: str | None) -> None:
        self._catalog = catalog
        self._is_own = reader_id is None
        self.name = reader_id or f"spark-{secrets.token_hex(6)}"
        self._held: dict[Key, int] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, found: Sequence[Range]) -> None:
        """A batch reads these of streams: partitions that are not held yet are, from there on."""
        new = {(one.stream, one.partition): one.start for one in found}
        new = {key: at for key, at in new.items() if key not in self._held}
        if new:
            with self._lock:
                self._held.update(new)
            self._say()

    def move(self, end: Positions) -> None:
        """All before `end` is committed. What is not held is not, and no hold goes back."""
        with self._lock:
            at_streams = {k: at for k, at in end.offsets.items() if k[0] not in end.readers}
            later = {key: at for key, at in at_streams.items() if at > self._held.get(key, at)}
            self._held.update(later)
        if later:
            self._say()

    def end(self) -> None:
        """Nothing is held any more; a named reader's offsets stay."""
        self._ended.set()
        if self._is_own and self._held:
            try:
                self._catalog.release(self.name)
            except PenstockError as error:
                logger.warning("reader %s could not be deleted: %s", self.name, error)

    def _say(self) -> None:
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
                self._say()
            except PenstockError as error:  # the next time, or Spark's own question, may go better
                logger.warning("reader %s could not be renewed: %s", self.name, error)


class StreamProgress:
    """See the head of this module. now: seconds of a clock that only goes on."""

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

    def initial(self) -> dict[str, Any]:
        """Where the query begins."""
        options = self._options
        begun = offsets.starting(
            options.starting, self._catalog.heads(is_fresh=True), self._catalog.find,
            is_strict=options.is_strict_time, is_streaming=True,
        )  # fmt: skip
        return offsets.encode(begun)

    def until_now(self) -> None:
        """AvailableNow: what is there now is read, and nothing later."""
        heads = self._catalog.heads(is_fresh=True)
        self._target = offsets.all_heads(heads)
        self.leases.until_now(heads)

    def newest(self) -> dict[str, Any]:
        """The heads, whatever the limits."""
        return offsets.encode(offsets.all_heads(self._catalog.heads()))

    def latest(self, given: Json, *, is_limited: bool) -> dict[str, Any]:
        """Where the batch ends that begins at `given`; `given` itself if there is none."""
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
            return dict(given)  # others were faster
        self._triggered = self._now()
        return offsets.encode(Positions(ends, offsets.ids_of(heads), self.leases.readers(heads)))

    def batch(self, given_start: Json, given_end: Json) -> list[Source]:
        """What the tasks of a batch read."""
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

    def committed(self, given: Json) -> None:
        """All before `given` has been committed by the sink."""
        end = offsets.decode(given)
        self._recognise(end)
        self.hold.move(end)
        if end.readers:
            self.leases.commit(end, self._catalog.heads())

    def end(self) -> None:
        """The query ends: nothing is held for it, and others may use its readers."""
        self.hold.end()
        self.leases.end()

    def _recognise(self, *positions: Positions) -> None:
        """What an offset tells of the query that wrote it."""
        for one in positions:
            self.leases.recognise(one)
            self._catalog.known(name for name, _ in one.offsets)

    def _ends(
        self, backlog: Mapping[Key, Range], heads: Heads, *, is_limited: bool
    ) -> dict[Key, int]:
        """Where a batch ends that reads of this what the limits allow, and leases it."""
        options = self._options
        if not is_limited:
            ends = {key: one.end for key, one in backlog.items()}
            return self.leases.take(backlog, ends, heads, None)
        ends = plan.limited(
            backlog, heads, self._catalog.pages,
            max_rows=options.max_offsets_per_trigger, max_bytes=options.max_bytes_per_trigger,
        )  # fmt: skip
        return self.leases.take(backlog, ends, heads, options.lease_bytes_per_trigger)

    def _waits(self, rows: int) -> bool:
        """Whether more records are to be waited for."""
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
) -> list[Source]:
    """One for each task."""
    cut = plan.tasks(
        found, heads, catalog.pages, max_bytes=options.max_bytes_per_partition,
        max_rows=options.max_records_per_partition, min_count=options.min_partitions,
    )  # fmt: skip
    made = []
    for one in cut:
        head = heads[one.stream][one.partition]
        made.append(Source(one, head.stream_id, head.path, head.reader))
    return made
