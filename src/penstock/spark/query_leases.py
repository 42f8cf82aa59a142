"""QueryLeases: the classic queues of a query: whose lease, what is acknowledged, what is leased.

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

from collections.abc import Mapping
from typing import Final

from penstock.errors import OptionError
from penstock.spark import plan
from penstock.spark.catalog import Catalog
from penstock.spark.offsets import Heads, Key, PartitionHead, Positions, ids_of
from penstock.spark.plan import Range
from penstock.spark.source_options import SourceOptions

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
