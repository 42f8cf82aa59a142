"""The plan of a batch: how far it reads, what of that is lost, and into which tasks it is cut.

All functions are pure, of offsets, heads, tables of pages and options: Spark asks for the
partitions of the same range again after a failure, and must get the same records.

**How far.** `limited` takes the whole backlog, or as much as the limits allow.
maxOffsetsPerTrigger is shared among partitions in proportion to their backlogs, as in Kafka's
source; what still exceeds maxBytesPerTrigger is cut in proportion to bytes. A batch with a backlog
reads at least one record. For a classic queue, `limited` says how many messages to lease, by the
average size of ready ones, and `shares` how many bytes, which the broker enforces. Messages that
are leased already are read alone, before more are leased.

**What is lost.** `ranges` compares start and end with what exists. A Loss is: records that
retention deleted, a head before the start (a power cut in `os` mode, a restored backup), another
stream of the same name, a missing stream. The caller raises it or warns; the ranges are what can
still be read.

**Which tasks.** A task reads at most maxBytesPerPartition, and there are at least minPartitions
tasks if there are enough records. Cuts are at a border of pages if one is near, so that a page is
opened and mapped once; otherwise within a page, where the index finds any offset.

**Packing.** A task costs tens of ms of CPU, whatever it reads. So `packed` gives small pieces that
follow one another to one task, up to TOGETHER records, or maxBytesPerTask if that is given. What is
larger has a task of its own. Records of a partition stay in order, within a task and from task to
task. A batch that runs again must have the same tasks (`delivery=idempotent`), so records are
counted: the average size of records changes with what is appended. Where bytes count, at
maxBytesPerPartition and maxBytesPerTask, it is rounded up to a power of two, which nearly always
gives the same tasks again.

The bytes of a range are those of its pages; within a page, by the average of its records.

Nothing here is Spark's.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from penstock.spark.offsets import Heads, Key, PartitionHead, Positions, ids_of
from penstock.spark.options import EARLIEST, LATEST

TOGETHER = 4096  # records of several ranges in one task
NEAR = 0.25  # of a task's bytes: a cut moves to a border of pages that is this near


class PageSpan(NamedTuple):
    """A page: offsets [base, base + records), and its bytes."""

    base: int
    records: int
    bytes: int


class Range(NamedTuple):
    """Offsets [start, end) of a partition."""

    stream: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that a query should have read and that do not exist. why: a sentence. reader: the
    lease's, for a classic queue."""

    stream: str
    partition: int
    why: str
    reader: str = ""

    def __str__(self) -> str:
        if self.reader:
            return f"queue {self.stream!r}, leased by reader {self.reader!r}: {self.why}"
        return f"stream {self.stream!r}, partition {self.partition}: {self.why}"


class PartitionPages:
    """Bytes and offsets of a partition by its pages, oldest first; at least one page."""

    def __init__(self, pages: Sequence[PageSpan]) -> None:
        self._pages = pages
        self._bases = [page.base for page in pages]
        self._bytes_at = [0]
        for page in pages:
            self._bytes_at.append(self._bytes_at[-1] + page.bytes)

    def bytes_before(self, offset: int) -> float:
        """Return the bytes of pages before that offset."""
        at = max(bisect_right(self._bases, offset) - 1, 0)
        page = self._pages[at]
        part = min(max(offset - page.base, 0), page.records) / max(page.records, 1)
        return self._bytes_at[at] + part * page.bytes

    def offset_at(self, position: float) -> int:
        """Return the offset that has so many bytes before it, rounded down."""
        at = min(max(bisect_right(self._bytes_at, position) - 1, 0), len(self._pages) - 1)
        page = self._pages[at]
        part = (position - self._bytes_at[at]) / max(page.bytes, 1)
        return page.base + min(int(part * page.records), page.records)

    def border_near(self, offset: int) -> int:
        """Return the border of pages nearest to that offset, in bytes; the first page has none
        before it."""
        at = max(bisect_right(self._bases, offset) - 1, 0)
        page = self._pages[at]
        is_later = offset - page.base > page.records / 2
        return page.base + page.records if is_later else page.base


Pages = Callable[[str, int], PartitionPages]


def table_of_average(first: int, head: int, size_bytes: int) -> PartitionPages:
    """Return a table of one page, for a partition whose pages are unknown."""
    return PartitionPages([PageSpan(first, max(head - first, 1), max(size_bytes, 1))])


# ---- what is lost --------------------------------------------------------------------------------


def _gone(key: Key, reader: str) -> Loss:
    """Return the loss of a partition that no longer exists."""
    return Loss(*key, "it no longer exists", reader)


def _replaced(key: Key, reader: str) -> Loss:
    """Return the loss of a stream that now has another id."""
    if reader:
        why = "its lease is gone: it was released, or the queue was deleted and declared again"
        return Loss(*key, why, reader)
    return Loss(*key, "it was deleted and declared again")


def _behind(key: Key, head: PartitionHead, offset: int, reader: str) -> Loss:
    """Return the loss of a partition that ends before an offset that existed."""
    if reader:
        why = (
            f"it ends at message {head.head}, expected at least {offset}: it was released, or the "
            "queue was deleted and declared again"
        )
        return Loss(*key, why, reader)
    return Loss(*key, f"it ends at offset {head.head}, expected at least {offset}")


def _taken(key: Key, first: int, last: int, reader: str) -> Loss:
    """Return the loss of records at the start that no longer exist."""
    if reader:
        why = f"messages {first} to {last - 1} were committed, so the queue no longer has them"
        return Loss(*key, why, reader)
    return Loss(*key, f"records {first} to {last - 1} were reclaimed by retention")


def ranges(start: Positions, end: Positions, heads: Heads) -> tuple[list[Range], list[Loss]]:
    """Return what there is to read from start to end, without empty ranges, and what is lost.

    A partition that start does not have is new: it is read from its first record.
    """
    found: list[Range] = []
    losses: list[Loss] = []
    ids = ids_of(heads)
    for key, last in sorted(end.offsets.items()):
        stream, number = key
        first = start.offsets.get(key, EARLIEST)
        head = heads.get(stream, {}).get(number)
        reader = end.readers.get(stream, "")
        if head is None:
            if first != last:
                losses.append(_gone(key, reader))
            continue
        id_now = ids.get(stream, "")
        was = start.ids.get(stream, id_now)
        if end.ids.get(stream, id_now) != id_now:
            losses.append(_replaced(key, reader))
            continue
        if was != id_now:
            losses.append(_replaced(key, reader))
            first = EARLIEST
        if first in (LATEST, last):
            continue
        if first == EARLIEST:
            first = head.first
        elif first < head.first:
            losses.append(_taken(key, first, min(head.first, last), reader))
            first = head.first
        if last > head.head:
            losses.append(_behind(key, head, last, reader))
            last = head.head
        if first < last:
            found.append(Range(stream, number, first, last))
    return found, losses


def behind(start: Positions, heads: Heads) -> list[Loss]:
    """Return the losses of partitions that end before the query's offset, or no longer exist."""
    losses = []
    ids = ids_of(heads)
    for key, offset in sorted(start.offsets.items()):
        stream, number = key
        head = heads.get(stream, {}).get(number)
        reader = start.readers.get(stream, "")
        if head is None:
            losses.append(_gone(key, reader))
        elif start.ids.get(stream) not in (None, ids.get(stream)):
            losses.append(_replaced(key, reader))
        elif offset > head.head:
            losses.append(_behind(key, head, offset, reader))
    return losses


# ---- how far -------------------------------------------------------------------------------------


def backlog(start: Positions, target: Positions, heads: Heads) -> dict[Key, Range]:
    """Return what each partition of target has after start. Words become numbers."""
    found = {}
    ids = ids_of(heads)
    for key, end in target.offsets.items():
        head = heads[key[0]][key[1]]
        first = start.offsets.get(key, EARLIEST)
        id_now = ids.get(key[0], "")
        if start.ids.get(key[0], id_now) != id_now:
            first = EARLIEST
        if first == LATEST:
            first = end
        first = max(head.first if first == EARLIEST else first, head.first)
        if head.reader:
            first = min(first, head.head)
            end = head.head if first < head.head else min(end, head.end)
        found[key] = Range(*key, min(first, end), end)
    return found


def limited(
    there: Mapping[Key, Range], heads: Heads, pages: Pages, *, max_rows: int | None,
    max_bytes: int | None,
) -> dict[Key, int]:  # fmt: skip
    """Return where a batch ends that reads this backlog within the limits."""
    ends = {key: one.end for key, one in there.items()}
    total = sum(one.end - one.start for one in there.values())
    if max_rows is not None and total > max_rows:
        for key, one in there.items():
            share = max_rows * (one.end - one.start) / total
            rows = int(share) if share >= 1 else ceil(share)
            ends[key] = min(one.start + rows, one.end)
    if max_bytes is None:
        return ends
    guess = sum(
        (ends[key] - one.start) * heads[key[0]][key[1]].record_bytes for key, one in there.items()
    )
    if guess < max_bytes / 2:  # no need to ask for tables of pages
        return ends
    tables = {key: _table(one, heads, pages) for key, one in there.items() if ends[key] > one.start}
    sizes = {
        key: table.bytes_before(ends[key]) - table.bytes_before(there[key].start)
        for key, table in tables.items()
    }
    most = sum(sizes.values())
    if most > max_bytes:
        for key, table in tables.items():
            start = there[key].start
            position = table.bytes_before(start) + sizes[key] * max_bytes / most
            ends[key] = min(max(table.offset_at(position), start), ends[key])
        if all(ends[key] == there[key].start for key in tables):
            key = max(sizes, key=lambda one: (sizes[one], one))
            ends[key] = there[key].start + 1
    return ends


def _table(one: Range, heads: Heads, pages: Pages) -> PartitionPages:
    """Return the pages of a range; messages that are yet to be leased have none."""
    head = heads[one.stream][one.partition]
    if one.start < head.head or not head.reader:
        return pages(one.stream, one.partition)
    rows = one.end - one.start
    return table_of_average(one.start, one.end, int(rows * head.record_bytes))


def shares(
    there: Mapping[Key, Range], ends: Mapping[Key, int], heads: Heads, max_bytes: int
) -> dict[Key, int]:
    """Return how many bytes of a batch each partition may have, in proportion to what it is to
    read; at least 1."""
    sizes = {
        key: (ends[key] - one.start) * heads[key[0]][key[1]].record_bytes
        for key, one in there.items()
    }
    total = max(sum(sizes.values()), 1.0)
    return {key: max(int(max_bytes * size / total), 1) for key, size in sizes.items()}


# ---- which tasks ---------------------------------------------------------------------------------


def tasks(
    found: Sequence[Range], heads: Heads, pages: Pages, *, max_bytes: int,
    max_rows: int | None = None, min_count: int | None = None,
) -> list[Range]:  # fmt: skip
    """Return the ranges, cut into what tasks read, in order."""
    if not found:
        return []
    tables: dict[Key, PartitionPages] = {}
    sizes = []
    for one in found:
        head = heads[one.stream][one.partition]
        size = (one.end - one.start) * head.record_bytes
        if size > max_bytes / 2 or min_count is not None:
            table = tables[one.stream, one.partition] = pages(one.stream, one.partition)
            size = table.bytes_before(one.end) - table.bytes_before(one.start)
        sizes.append(max(size, 1.0))
    counts = [max(ceil(size / max_bytes), 1) for size in sizes]
    if max_rows is not None:
        counts = [
            max(n, ceil((r.end - r.start) / max_rows)) for n, r in zip(counts, found, strict=True)
        ]
    if min_count is not None and sum(counts) < min_count:
        total = sum(sizes)
        counts = [
            max(n, ceil(min_count * size / total)) for n, size in zip(counts, sizes, strict=True)
        ]
    cut: list[Range] = []
    for one, count in zip(found, counts, strict=True):
        table_of_it = tables.get((one.stream, one.partition))
        cut += _cut(one, min(count, one.end - one.start), table_of_it, max_rows)
    return cut


def packed(
    cut: Sequence[Range], heads: Heads, *, max_bytes: int, max_rows: int | None = None,
    min_count: int | None = None,
) -> list[tuple[Range, ...]]:  # fmt: skip
    """Return what each task reads: pieces as `tasks` returns them, in their order. max_bytes: of a
    task with several; 0: none has."""
    sizes = [
        (one.end - one.start) * _power_of_two(heads[one.stream][one.partition].record_bytes)
        for one in cut
    ]
    least = max(min(min_count or 1, len(cut)), 1)
    most: float = min(max_bytes, sum(sizes) / least)
    found: list[list[Range]] = []
    size, rows = 0.0, 0
    for i, (one, more) in enumerate(zip(cut, sizes, strict=True)):
        count = one.end - one.start
        fits = size + more <= most and (max_rows is None or rows + count <= max_rows)
        others = len(cut) - 1 - i  # each of which may be a task
        if found and fits and len(found) + others >= least:
            found[-1].append(one)
            size, rows = size + more, rows + count
        else:
            found.append([one])
            size, rows = more, count
    return [tuple(ranges) for ranges in found]


def _power_of_two(size: float) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << max(ceil(size) - 1, 0).bit_length()


def _cut(one: Range, count: int, table: PartitionPages | None, max_rows: int | None) -> list[Range]:
    """Cut a range into so many pieces of about equal bytes."""
    if count <= 1:
        return [one]
    starts = [one.start]
    if table is None or max_rows is not None:
        rows = one.end - one.start
        starts += [one.start + rows * i // count for i in range(1, count)]
    else:
        low = table.bytes_before(one.start)
        step = (table.bytes_before(one.end) - low) / count
        for i in range(1, count):
            offset = table.offset_at(low + i * step)
            border = table.border_near(offset)
            if abs(table.bytes_before(border) - (low + i * step)) <= NEAR * step:
                offset = border
            if starts[-1] < offset < one.end:
                starts.append(offset)
    ends = [*starts[1:], one.end]
    return [one._replace(start=a, end=b) for a, b in zip(starts, ends, strict=True)]
