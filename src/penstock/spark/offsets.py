"""Offsets of a query: what Spark keeps in its checkpoint, and what the start and end options mean.

Spark gets an offset as a dictionary, writes it as JSON into the checkpoint, and compares two by
their text. So the keys are in a fixed order, streams by name and partitions by number:

    {"flights": {"0": 5000, "1": 4711, "id": "9f31c2d4e5a60718"}, "orders": {"0": 12, "id": "..."}}

An offset is the next one to be read. "id" tells streams of one name apart: it is made of the ids of
the stream's partitions, which are random and drawn when the stream is declared. A query whose
stream was deleted and declared again finds another id, and reports the loss instead of reading
another stream from the middle.

Offsets of a classic queue are the ordinals of the messages that a reader has leased. The entry
names the reader. Its id is that of the lease, so a lease that was released and begun again is
another one:

    {"tasks": {"0": 812, "id": "77aa03b1c2d4e5f6", "reader": "spark-9b1c7f0e2a44"}}

Two offsets are words, as in Kafka's JSON: -2 is the earliest, -1 the latest. A query begins with
words, and the first batch, whose end Spark writes down before it runs, turns them into numbers: the
first offset is the same when Spark asks twice, or again after a crash, and no record between two
answers is lost. The first batch of a query that begins at the latest offset is empty and says where
the next one begins. A classic queue begins at what its reader has committed, without words, and
refuses any other start.

Nothing here is Spark's.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.errors import OptionError, PenstockError
from penstock.spark.options import EARLIEST, LATEST, Bound

Key = tuple[str, int]  # stream, partition
Find = Callable[[str, int, int], int]  # stream, partition, time in us -> first offset from then on

ID: Final = "id"
READER: Final = "reader"


class OffsetError(PenstockError):
    """Text is not an offset of this source."""


@dataclass(frozen=True, slots=True)
class PartitionHead:
    """A partition with offsets [first, head). last_time_us: of its last record. bytes: of its
    pages. stream_id: hex. path: its directory at the broker.

    For a classic queue: what `reader` has leased and not committed. ready, ready_bytes: messages
    that can be leased beyond that.
    """

    first: int
    head: int
    last_time_us: int = 0
    bytes: int = 0
    stream_id: str = ""
    path: str = ""
    reader: str = ""
    ready: int = 0
    ready_bytes: int = 0

    @property
    def end(self) -> int:
        """Return the offset up to which a query can read now, leasing included."""
        return self.head + self.ready

    @property
    def record_bytes(self) -> float:
        """Return the average bytes of a record, at least 1."""
        return max((self.bytes + self.ready_bytes) / max(self.end - self.first, 1), 1.0)


Heads = dict[str, dict[int, PartitionHead]]


@dataclass(frozen=True, slots=True)
class Positions:
    """Offsets by partition, ids by stream, and readers by classic queue."""

    offsets: dict[Key, int]
    ids: dict[str, str] = field(default_factory=dict)
    readers: dict[str, str] = field(default_factory=dict)


def stream_id_of(partitions: Mapping[int, PartitionHead]) -> str:
    """Return one id for all partitions of a stream."""
    ids = ",".join(f"{number}:{partitions[number].stream_id}" for number in sorted(partitions))
    return hashlib.blake2b(ids.encode(), digest_size=8).hexdigest()


def is_classic(partitions: Mapping[int, PartitionHead]) -> bool:
    """Return whether these are partitions of a classic queue."""
    return any(head.reader for head in partitions.values())


def ids_of(heads: Heads) -> dict[str, str]:
    """Return the id of each stream. A classic queue of which nothing was leased has none."""
    return {
        name: stream_id_of(partitions)
        for name, partitions in heads.items()
        if not any(head.reader and not head.stream_id for head in partitions.values())
    }


def encode(positions: Positions) -> dict[str, dict[str, Any]]:
    """Return the offset as Spark keeps it. Equal positions give equal text."""
    found: dict[str, dict[str, Any]] = {}
    for (stream, partition), offset in sorted(positions.offsets.items()):
        found.setdefault(stream, {})[str(partition)] = offset
    for stream, partitions in found.items():
        if stream in positions.ids:
            partitions[ID] = positions.ids[stream]
        if stream in positions.readers:
            partitions[READER] = positions.readers[stream]
    return found


def decode(found: Mapping[str, Any]) -> Positions:
    """Parse what Spark kept. Raises OffsetError for the offset of another source."""
    offsets: dict[Key, int] = {}
    ids: dict[str, str] = {}
    readers: dict[str, str] = {}
    for stream, partitions in found.items():
        if not isinstance(partitions, Mapping):
            raise OffsetError(f"an offset of stream {stream!r}: {partitions!r}, expected an object")
        for key, value in partitions.items():
            if key == ID:
                ids[stream] = str(value)
            elif key == READER:
                readers[stream] = str(value)
            elif key.isdecimal() and isinstance(value, int):
                offsets[stream, int(key)] = value
            else:
                raise OffsetError(f"an offset of stream {stream!r}: {key!r}: {value!r}")
    return Positions(offsets, ids, readers)


def parse_offsets(found: Mapping[str, Any]) -> dict[Key, int]:
    """Return {(stream, partition): offset} for an offset in a checkpoint or a progress report, as
    JSON has it. Raises OffsetError."""
    return decode(found).offsets


def lag(end: Positions, latest: Positions) -> dict[Key, int]:
    """Return how many records each partition has after `end`; the word latest counts as the end."""
    found: dict[Key, int] = {}
    for key, head in latest.offsets.items():
        at = end.offsets.get(key, 0)
        found[key] = 0 if at == LATEST else max(head - max(at, 0), 0)
    return found


# ---- start and end options -----------------------------------------------------------------------


def starting(
    bound: Bound, heads: Heads, find: Find, *, is_strict: bool, is_streaming: bool
) -> Positions:
    """Return where a query begins. In a stream, earliest and latest stay words; see the head of
    this module. Raises OptionError if a named partition does not exist, or, if is_strict, no record
    is as late as a given time."""
    offsets = {}
    for key, head in _partitions(heads, bound, "startingOffsets"):
        if head.reader:
            _refuse_elsewhere(bound, key)
            offsets[key] = head.first
            continue
        offset = _asked(bound, key, EARLIEST)
        time_us = _time_asked(bound, key)
        if time_us is not None:
            offset = find(*key, time_us)
            if offset >= head.head:
                if is_strict:
                    raise OptionError(
                        "startingTimestamp", time_us // 1000,
                        f"at most {head.last_time_us // 1000}, when the last record of {key[0]!r}, "
                        f"partition {key[1]}, came; or startingOffsetsByTimestampStrategy=latest",
                    )  # fmt: skip
                offset = LATEST
        if not is_streaming:
            offset = {EARLIEST: head.first, LATEST: head.head}.get(offset, offset)
        offsets[key] = offset
    streams = {name: found for name, found in heads.items() if not is_classic(found)}
    ids = {**ids_of(streams), **bound.ids}
    return Positions(offsets, {name: ids[name] for name, _ in offsets if name in ids})


def _refuse_elsewhere(bound: Bound, key: Key) -> None:
    """Raise OptionError if a classic queue is to begin elsewhere than at its first message."""
    expected = (
        f"earliest: {key[0]!r} is a classic queue, which is read from its first message on; "
        "to begin a stream beside it elsewhere, name the stream in startingOffsets"
    )
    time_us = _time_asked(bound, key)
    if time_us is not None:
        option = "startingTimestamp" if bound.times_us is None else "startingOffsetsByTimestamp"
        raise OptionError(option, time_us // 1000, expected)
    if not bound.is_default and _asked(bound, key, EARLIEST) != EARLIEST:
        word = "latest" if bound.offset == LATEST else _asked(bound, key, EARLIEST)
        raise OptionError("startingOffsets", word, expected)


def ending(bound: Bound, heads: Heads, find: Find) -> Positions:
    """Return where a batch ends. A time after all records means their end, as in Kafka's source.
    Raises OptionError."""
    offsets = {}
    for key, head in _partitions(heads, bound, "endingOffsets"):
        offset = _asked(bound, key, LATEST)
        time_us = _time_asked(bound, key)
        if time_us is not None:
            offset = find(*key, time_us)
        offsets[key] = head.head if offset == LATEST else offset
    return Positions(offsets, ids_of(heads))


def all_heads(heads: Heads) -> Positions:
    """Return the end of everything, ready messages of classic queues included."""
    offsets = {
        (name, number): head.end
        for name, partitions in heads.items()
        for number, head in partitions.items()
    }
    return Positions(offsets, ids_of(heads))


def _partitions(heads: Heads, bound: Bound, option: str) -> Iterable[tuple[Key, PartitionHead]]:
    """Return all partitions. Raises OptionError if a named one is not among them."""
    for named in (bound.offsets, bound.times_us):
        for stream, partitions in (named or {}).items():
            for number in partitions:
                if number not in heads.get(stream, {}):
                    there = {name: sorted(found) for name, found in heads.items()}
                    raise OptionError(option, {stream: number}, f"partitions of {there}")
    for name, found in heads.items():
        for number, head in found.items():
            yield (name, number), head


def _asked(bound: Bound, key: Key, default: int) -> int:
    if bound.offsets is not None:
        return bound.offsets.get(key[0], {}).get(key[1], default)
    return default if bound.offset is None else bound.offset


def _time_asked(bound: Bound, key: Key) -> int | None:
    if bound.times_us is not None:
        return bound.times_us.get(key[0], {}).get(key[1])
    return bound.time_us
