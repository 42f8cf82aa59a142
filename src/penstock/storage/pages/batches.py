"""Batches: the decisions on Spark's micro-batches, and how far each has been rolled forward.

A sink that writes exactly once takes two steps. Its tasks stage their rows as page files
(staging.py), which nobody reads; then the driver commits, and that is one record of the log: BATCH
DECIDED. From then on the rows belong to the target, whatever happens. They are moved there in
slices. Each slice is one record with what it published and how far it came, so that a crash neither
loses nor repeats a row. The idea is Spark's own: because of the batch's number a repeated commit
gets an answer and is not a second write.

    BATCH      batch 8 | length of the query 2 | query | by the record's flags:
      DECIDED    time (us) 8 | length of the target 2 | target (JSON) |
                 n x (length of the name 2 | name | page id 8 | rows 4 | bytes 4)
      DECIDED_BY time (us) 8 | length of the target 2 | target (JSON) | facts | n x (as above)
      PROGRESS   page 4 | frame 4                    the next frame is `frame` of page `page`
      ADOPTED    page 4 | stream 4 | base offset 8 | time (us) 8
                                                     the page is a page of the stream now, at base
      FORGOTTEN  -                                   the query is over and forgotten

    in a checkpoint, one section for each query:
                 batch 8 | time 8 | page 4 | frame 4 | pages 4 | rows 8 | bytes 8 | names 4 |
                 holds 4 | length of the query 2 | query | length of the target 2 | target |
                 names x (as above) | holds x (stream 4, offset 8) | facts, if the decision had them

    facts        rows 8 | checksum 8 | bits 1 (1: is_gapless) | length of the user 2 | user |
                 length of the first target 2 | first target (JSON)

    in a commit, from the HTTP process to the vhost:
                 pages: n x (as above | checksum of its rows 8), keys that must lead to a queue:
                 n x (length of the exchange's name 1 | name | length of the key 1 | key)

All big-endian. The last batch of each query is kept until the query is forgotten. A commit with the
same number is the same batch if its facts say so (`BatchFacts`). DECIDED has no facts: older
versions wrote it, and salvage of their stores does. A batch is done when its progress is after its
last page; then its pages are no longer listed, only counted.

A PROGRESS is in a TX before the operations of its slice, so that replay knows for which batch a
stream is appended to. The first time that a batch touches a stream it *holds* it: the head of that
stream waits at this offset until the batch is done, so that readers see all of a batch or none of
it. That follows from the records alone; checkpoints have it for when the records are deleted.

Names of staged files, <batch>.<partition>.<attempt>.<k>.page, are checked here, because they become
paths. An attempt that ends in _<p>of<n> says that all its rows belong to partition p of a stream of
n partitions, so that this partition can adopt their pages. Nobody checks it: as with any publish,
the client decides the key of a row, and by it the partition.
"""

import re
import struct
from typing import Final, NamedTuple

from penstock.storage.log.record import RecordError

DECIDED: Final = 0
PROGRESS: Final = 1
ADOPTED: Final = 2
FORGOTTEN: Final = 3
DECIDED_BY: Final = 4
TEXT_BYTES_MAX: Final = 0xFFFF
SHORT_BYTES_MAX: Final = 0xFF
NUMBER_MAX: Final = (1 << 64) - 1

_HEAD: Final = struct.Struct(">QH")
_TIME_LENGTH: Final = struct.Struct(">QH")
_PAGE: Final = struct.Struct(">QII")
_PLACE: Final = struct.Struct(">II")
_ADOPTED: Final = struct.Struct(">IIQQ")
_SECTION: Final = struct.Struct(">QQIIIQQII")
_HOLD: Final = struct.Struct(">IQ")
_FACTS: Final = struct.Struct(">QQB")
_IS_GAPLESS: Final = 1
_U16: Final = struct.Struct(">H")
_CHECKSUM: Final = struct.Struct(">Q")
_PARTITION: Final = re.compile(r".*_(\d{1,6})of(\d{1,6})")
_NAME: Final = re.compile(r"(\d{1,20})\.(\d{1,10})\.([A-Za-z0-9_-]{1,64})\.(\d{1,10})\.page")


class StagedPage(NamedTuple):
    """A staged page file as its token names it. name: of the .page file, in the query's directory;
    bytes: of the whole file."""

    name: str
    page_id: int
    rows: int
    bytes: int


class NameParts(NamedTuple):
    """The parts of the name of a staged page."""

    batch: int
    partition: int
    attempt: str
    k: int


class QueryOwner(NamedTuple):
    """The owner of a query: the user who staged or committed first, and the target (JSON) of that;
    "" for an unknown target or user."""

    user: str
    target: str


class BatchFacts(NamedTuple):
    """What a decision has besides the pages, to tell a repeated commit from another batch. owner:
    of the query. rows, checksum: of all rows of the batch in any order (staging.py). is_gapless:
    the sink reports every batch of the query, also those without rows, so a missing number is a
    missing batch."""

    owner: QueryOwner
    rows: int
    checksum: int
    is_gapless: bool = False


class BatchRecord(NamedTuple):
    """A BATCH record; fields that its flags do not have are 0, empty or None."""

    query: str
    number: int
    time_us: int = 0
    target: str = ""
    pages: tuple[StagedPage, ...] = ()
    page: int = 0
    frame: int = 0
    stream: int = 0
    base: int = 0
    facts: BatchFacts | None = None


def parse_name(name: str) -> NameParts:
    """Return the parts of a staged page's file name. ValueError for another name."""
    found = _NAME.fullmatch(name)
    if found is None:
        text = "expected <batch>.<partition>.<attempt>.<k>.page, the attempt of [A-Za-z0-9_-]"
        raise ValueError(f"the name of a staged page is {name!r}, {text}")
    batch, partition, attempt, k = found.groups()
    return NameParts(int(batch), int(partition), attempt, int(k))


def is_name(name: str) -> bool:
    """Return whether it is the name of a staged page."""
    return _NAME.fullmatch(name) is not None


def partition_of_rows(name: str, partitions: int) -> int:
    """Return the partition, of a stream of so many, that all rows of this staged page belong to; -1
    if its name does not say that. ValueError for a name that is none."""
    if partitions == 1:
        return 0
    found = _PARTITION.fullmatch(parse_name(name).attempt)
    if found is None or int(found.group(2)) != partitions:
        return -1
    partition = int(found.group(1))
    return partition if partition < partitions else -1


class Batch:
    """The last decided batch of a query. target: JSON. page, frame: the next to be moved. rows,
    bytes, page_count: of all its pages. holds: stream number -> the offset where its head waits
    until the batch is done. facts: None if its decision has none. encoded: its section, until it
    changes."""

    __slots__ = (
        "bytes", "encoded", "facts", "frame", "holds", "number", "page", "page_count", "pages",
        "query", "rows", "target", "time_us",
    )  # fmt: skip

    def __init__(
        self, query: str, number: int, time_us: int, target: str, pages: tuple[StagedPage, ...],
        facts: BatchFacts | None = None,
    ) -> None:  # fmt: skip
        self.query: str = query
        self.number: int = number
        self.time_us: int = time_us
        self.target: str = target
        self.pages: tuple[StagedPage, ...] = pages
        self.page: int = 0
        self.frame: int = 0
        self.page_count: int = len(pages)
        self.rows: int = sum([page.rows for page in pages])
        self.bytes: int = sum([page.bytes for page in pages])
        self.holds: dict[int, int] = {}
        self.facts: BatchFacts | None = facts
        self.encoded: bytes = b""

    @property
    def is_done(self) -> bool:
        """Whether all of it has reached the target."""
        return self.page >= self.page_count

    @property
    def current(self) -> StagedPage:
        """The next page to be moved. IndexError if the batch is done."""
        return self.pages[self.page]


class BatchTable:
    """The last batch of every query of a vhost. dead: staged pages (query, name) that no record
    after the next cut names; they are deleted after the checkpoint that is made there [6]. rolling:
    in a replay, the batch whose slice is being applied."""

    def __init__(self) -> None:
        self.by_query: dict[str, Batch] = {}
        self.dead: list[tuple[str, str]] = []
        self.rolling: Batch | None = None

    def last_number(self, query: str) -> int:
        """Return the number of the last decided batch, -1 if there is none."""
        batch = self.by_query.get(query)
        return -1 if batch is None else batch.number

    def apply(self, flags: int, found: BatchRecord) -> Batch:
        """Apply a record and return its batch. ValueError for an impossible record."""
        if flags in (DECIDED, DECIDED_BY):
            return self._decide(found)
        batch = self.by_query.get(found.query)
        if batch is None or batch.number != found.number:
            known = "no batch" if batch is None else f"batch {batch.number}"
            raise ValueError(f"batch {found.number} of {found.query!r} continues, known is {known}")
        batch.encoded = b""
        if flags == FORGOTTEN:
            self._bury(batch)
            del self.by_query[found.query]
            return batch
        if flags == ADOPTED:
            self._reach(batch, found.page + 1, 0)
        else:
            self._reach(batch, found.page, found.frame)
        return batch

    def _decide(self, found: BatchRecord) -> Batch:
        before = self.by_query.get(found.query)
        if before is not None and (before.number >= found.number or not before.is_done):
            raise ValueError(
                f"batch {found.number} of {found.query!r} after batch {before.number}, which is "
                f"{'done' if before.is_done else 'not done'}"
            )
        batch = Batch(
            found.query, found.number, found.time_us, found.target, found.pages, found.facts
        )
        self.by_query[found.query] = batch
        return batch

    def _reach(self, batch: Batch, page: int, frame: int) -> None:
        if (page, frame) < (batch.page, batch.frame) or page > batch.page_count:
            raise ValueError(
                f"batch {batch.number} of {batch.query!r} is at page {batch.page} frame "
                f"{batch.frame} of {batch.page_count} pages, and continues at {page}, {frame}"
            )
        if page < batch.page_count and frame >= batch.pages[page].rows:
            page, frame = page + 1, 0
        batch.page, batch.frame = page, frame
        if batch.is_done:
            self._bury(batch)

    def _bury(self, batch: Batch) -> None:
        self.dead += [(batch.query, page.name) for page in batch.pages]
        batch.pages = ()

    def capture(self) -> list[bytes]:
        """Return the sections of all queries as of now. Unchanged sections are reused."""
        found: list[bytes] = []
        for batch in self.by_query.values():
            if not batch.encoded:
                batch.encoded = encode_section(batch)
            found.append(batch.encoded)
        return found


# ---- records -------------------------------------------------------------------------------------


def _text(what: str, text: str) -> bytes:
    data = text.encode()
    if not 0 < len(data) <= TEXT_BYTES_MAX:
        raise ValueError(f"{what} has {len(data)} bytes, expected 1 to {TEXT_BYTES_MAX}")
    return data


def _head(query: str, number: int) -> bytes:
    if not 0 <= number <= NUMBER_MAX:
        raise ValueError(f"a batch has a number from 0 to {NUMBER_MAX}, not {number}")
    name = _text("the query's name", query)
    head: bytes = _HEAD.pack(number, len(name))
    return head + name


def encode_batch(found: BatchRecord, flags: int) -> bytes:
    """Return the data of the BATCH record with these flags; its count is the number of pages.
    ValueError for what does not fit."""
    head = _head(found.query, found.number)
    if flags == PROGRESS:
        return head + _PLACE.pack(found.page, found.frame)
    if flags == ADOPTED:
        return head + _ADOPTED.pack(found.page, found.stream, found.base, found.time_us)
    if flags == FORGOTTEN:
        return head
    target = _text("the target", found.target)
    parts = [head, _TIME_LENGTH.pack(found.time_us, len(target)), target]
    if flags == DECIDED_BY:
        assert found.facts is not None
        parts.append(_facts(found.facts))
    return b"".join(parts + [_page(page) for page in found.pages])


def _facts(facts: BatchFacts) -> bytes:
    bits = _IS_GAPLESS if facts.is_gapless else 0
    parts = [_FACTS.pack(facts.rows, facts.checksum, bits)]
    for what, text in (("the user's name", facts.owner.user), ("the target", facts.owner.target)):
        data = text.encode("utf-8", "surrogateescape")
        if len(data) > TEXT_BYTES_MAX:
            raise ValueError(f"{what} has {len(data)} bytes, expected at most {TEXT_BYTES_MAX}")
        parts += [_U16.pack(len(data)), data]
    return b"".join(parts)


def _page(page: StagedPage) -> bytes:
    name = page.name.encode()
    fixed: bytes = _PAGE.pack(page.page_id, page.rows, page.bytes)
    return _U16.pack(len(name)) + name + fixed


def decode_batch(data: bytes, flags: int, count: int) -> BatchRecord:
    """Return a BATCH record. RecordError unless the data is exactly that long."""
    at = _fits(data, 0, _HEAD.size)
    number, length = _HEAD.unpack_from(data)
    end = _fits(data, at, length)
    query = _string(data[at:end])
    if flags in (DECIDED, DECIDED_BY):
        return _decision(data, end, flags, count, query, number)
    if flags == PROGRESS:
        _ends(data, _fits(data, end, _PLACE.size))
        page, frame = _PLACE.unpack_from(data, end)
        return BatchRecord(query, number, page=page, frame=frame)
    if flags == ADOPTED:
        _ends(data, _fits(data, end, _ADOPTED.size))
        page, stream, base, time_us = _ADOPTED.unpack_from(data, end)
        return BatchRecord(query, number, time_us, page=page, stream=stream, base=base)
    if flags != FORGOTTEN:
        raise RecordError(f"BATCH: unknown flags {flags:#04x}")
    _ends(data, end)
    return BatchRecord(query, number)


def _decision(
    data: bytes, at: int, flags: int, count: int, query: str, number: int
) -> BatchRecord:  # fmt: skip
    start = _fits(data, at, _TIME_LENGTH.size)
    time_us, length = _TIME_LENGTH.unpack_from(data, at)
    end = _fits(data, start, length)
    target = _string(data[start:end])
    facts = None
    if flags == DECIDED_BY:
        facts, end = _read_facts(data, end)
    pages, end = _pages(data, end, count)
    _ends(data, end)
    return BatchRecord(query, number, time_us, target, pages, facts=facts)


def _read_facts(data: bytes, at: int) -> tuple[BatchFacts, int]:
    end = _fits(data, at, _FACTS.size)
    rows, checksum, bits = _FACTS.unpack_from(data, at)
    texts: list[str] = []
    for _ in range(2):
        start = _fits(data, end, 2)
        end = _fits(data, start, _U16.unpack_from(data, end)[0])
        texts.append(data[start:end].decode("utf-8", "surrogateescape"))
    owner = QueryOwner(texts[0], texts[1])
    return BatchFacts(owner, rows, checksum, bool(bits & _IS_GAPLESS)), end


def _fits(data: bytes, at: int, length: int) -> int:
    """Return the position after so many bytes from `at` on. RecordError: the data is shorter."""
    if len(data) - at < length:
        raise RecordError(f"BATCH: {length} bytes expected at {at}, {len(data) - at} found")
    return at + length


def _ends(data: bytes, at: int) -> None:
    if len(data) != at:
        raise RecordError(f"BATCH: data of {at} bytes expected, {len(data)} found")


def _string(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RecordError(f"BATCH: {error}") from error


def _pages(data: bytes, at: int, count: int) -> tuple[tuple[StagedPage, ...], int]:
    pages: list[StagedPage] = []
    for _ in range(count):
        start = _fits(data, at, 2)
        end = _fits(data, start, _U16.unpack_from(data, at)[0])
        at = _fits(data, end, _PAGE.size)
        page_id, rows, size = _PAGE.unpack_from(data, end)
        pages.append(StagedPage(_string(data[start:end]), page_id, rows, size))
    return tuple(pages), at


# ---- pages and keys of a commit ------------------------------------------------------------------


def pack_page(page: StagedPage, checksum: int) -> bytes:
    """Return a page of a commit, with the checksum of its rows."""
    return _page(page) + _CHECKSUM.pack(checksum)


def unpack_pages(data: bytes, at: int, most: int) -> tuple[list[StagedPage], int, int]:
    """Return (at most so many pages from position `at` on, the sum of their checksums, the position
    after them). ValueError."""
    found: list[StagedPage] = []
    total = 0
    try:
        while at < len(data) and len(found) < most:
            (page,), end = _pages(data, at, 1)
            at = _fits(data, end, _CHECKSUM.size)
            total += _CHECKSUM.unpack_from(data, end)[0]
            if not page.rows or not page.bytes:
                raise ValueError(f"staged page {page.name!r} has no rows")
            found.append(page)
    except RecordError as error:
        raise ValueError(f"pages of a commit: {error}") from error
    return found, total, at


def pack_key(exchange: str, key: str) -> bytes:
    """Return a key of a commit. ValueError: a name has more than 255 bytes, or is not Unicode."""
    parts: list[bytes] = []
    for text in (exchange, key):
        name = text.encode()
        if len(name) > SHORT_BYTES_MAX:
            raise ValueError(f"{text[:40]!r}... has {len(name)} bytes, at most {SHORT_BYTES_MAX}")
        parts += [bytes((len(name),)), name]
    return b"".join(parts)


def unpack_keys(data: bytes, at: int, most: int) -> tuple[list[tuple[str, str]], int]:
    """Return (at most so many keys from position `at` on, the position after them). ValueError."""
    found: list[tuple[str, str]] = []
    try:
        while at < len(data) and len(found) < most:
            middle = _fits(data, _fits(data, at, 1), data[at])
            end = _fits(data, _fits(data, middle, 1), data[middle])
            found.append((_string(data[at + 1 : middle]), _string(data[middle + 1 : end])))
            at = end
    except RecordError as error:
        raise ValueError(f"keys of a commit: {error}") from error
    return found, at


# ---- sections ------------------------------------------------------------------------------------


def encode_section(batch: Batch) -> bytes:
    """Return the section of a query's last batch for a checkpoint."""
    query, target = batch.query.encode(), batch.target.encode()
    parts = [
        _SECTION.pack(
            batch.number, batch.time_us, batch.page, batch.frame, batch.page_count, batch.rows,
            batch.bytes, len(batch.pages), len(batch.holds),
        ),
        _U16.pack(len(query)), query, _U16.pack(len(target)), target,
    ]  # fmt: skip
    parts += [_page(page) for page in batch.pages]
    parts += [_HOLD.pack(stream, offset) for stream, offset in batch.holds.items()]
    if batch.facts is not None:
        parts.append(_facts(batch.facts))
    return b"".join(parts)


def decode_section(data: bytes) -> Batch:
    """Return the last batch of a query from its section. RecordError."""
    at = _fits(data, 0, _SECTION.size)
    number, time_us, page, frame, count, rows, size, names, holds = _SECTION.unpack_from(data)
    texts: list[str] = []
    for _ in range(2):
        start = _fits(data, at, 2)
        at = _fits(data, start, _U16.unpack_from(data, at)[0])
        texts.append(_string(data[start:at]))
    pages, at = _pages(data, at, names)
    batch = Batch(texts[0], number, time_us, texts[1], pages)
    batch.page, batch.frame, batch.page_count = page, frame, count
    batch.rows, batch.bytes = rows, size
    for _ in range(holds):
        end = _fits(data, at, _HOLD.size)
        stream, offset = _HOLD.unpack_from(data, at)
        batch.holds[stream] = offset
        at = end
    if at < len(data):
        batch.facts, at = _read_facts(data, at)
    _ends(data, at)
    return batch
