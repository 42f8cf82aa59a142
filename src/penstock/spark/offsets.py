"""Offsets of a query: what Spark keeps in its checkpoint, and what options of start and end mean.

Spark asks for an offset as a dictionary, writes it as JSON into the checkpoint, and compares two by
their text. So the keys stand in one fixed order, streams by name, partitions by number:

    {"flights": {"0": 5000, "1": 4711, "id": "9f31c2d4e5a60718"}, "orders": {"0": 12, "id": "..."}}

An offset is the next one to be read. "id" tells a stream from another one of that name: it is made
of the ids of its partitions, which are drawn when it is declared. A query whose stream was deleted
and declared again finds another id, and is told of the loss instead of reading from the middle of
something else.

The offsets of a classic queue are the ordinals of the messages that its reader has leased, and its
entry says whose they are; its id is that of the lease, so one that was released and begun again is
another one:

    {"tasks": {"0": 812, "id": "77aa03b1c2d4e5f6", "reader": "spark-9b1c7f0e2a44"}}

Two offsets are words, as in Kafka's JSON: -2, the earliest, and -1, the latest. A query begins with
them as such, and they are turned into numbers by the first batch, whose end Spark writes down
before it runs: asking for the first offset twice, or again after a crash, gives the same answer,
and nothing can come in between two answers and be lost. The first batch of a query that begins at
the latest is empty: what it says is where the next one begins. Classic queues have no words: theirs
begin at what their reader has committed, and a place that it could not have is refused.

Not here: how much a batch may read (plan.py), where heads come from (access.py). Nothing of Spark.
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
    """Text that is no offset of this source, or one that a stream does not have."""


@dataclass(frozen=True, slots=True)
class PartitionHead:
    """What one partition holds: offsets [first, head), so many bytes of pages; the time of its last
    record. stream_id: hex. path: of its directory at the broker.

    Of a classic queue: what its reader, who is named here only, has leased and not committed; ready
    messages, and bytes of them, can be leased beyond that."""

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
        """How far a query can get now."""
        return self.head + self.ready

    @property
    def record_bytes(self) -> float:
        """Of a record, on average; 1 at least."""
        return max((self.bytes + self.ready_bytes) / max(self.end - self.first, 1), 1.0)


Heads = dict[str, dict[int, PartitionHead]]


@dataclass(frozen=True, slots=True)
class Positions:
    """Offsets of partitions of streams, and the ids of the streams; readers: of classic queues."""

    offsets: dict[Key, int]
    ids: dict[str, str] = field(default_factory=dict)
    readers: dict[str, str] = field(default_factory=dict)


def stream_id_of(partitions: Mapping[int, PartitionHead]) -> str:
    """One id for all partitions of a stream."""
    ids = ",".join(f"{number}:{partitions[number].stream_id}" for number in sorted(partitions))
    return hashlib.blake2b(ids.encode(), digest_size=8).hexdigest()


def is_classic(partitions: Mapping[int, PartitionHead]) -> bool:
    """Whether they are those of a classic queue."""
    return any(head.reader for head in partitions.values())


def ids_of(heads: Heads) -> dict[str, str]:
    """The id of each of these streams; a classic queue that nothing was leased of has none."""
    return {
        name: stream_id_of(partitions)
        for name, partitions in heads.items()
        if not any(head.reader and not head.stream_id for head in partitions.values())
    }


def encode(positions: Positions) -> dict[str, dict[str, Any]]:
    """As Spark keeps it; equal positions give equal text."""
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
    """Back from what Spark kept. OffsetError: this source did not write it."""
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
    """{(stream, partition): offset} of an offset in a checkpoint or a progress report, as JSON has
    it. OffsetError."""
    return decode(found).offsets


def lag(end: Positions, latest: Positions) -> dict[Key, int]:
    """How many records each partition is behind its head, 0 at least; a word counts as an end."""
    found: dict[Key, int] = {}
    for key, head in latest.offsets.items():
        at = end.offsets.get(key, 0)
        found[key] = 0 if at == LATEST else max(head - max(at, 0), 0)
    return found


# ---- what options come to ------------------------------------------------------------------------


def starting(
    bound: Bound, heads: Heads, find: Find, *, is_strict: bool, is_streaming: bool
) -> Positions:
    """Where a query begins. In a stream the earliest and the latest stay words; see the head of
    this module. OptionError: a partition is named that there is not; or no record is as late as a
    time that was given, and is_strict."""
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
    """OptionError for a classic queue that is to begin elsewhere than at its first message."""
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
    """Where a batch ends; a time later than all records means their end, as Kafka's source has
    it. OptionError."""
    offsets = {}
    for key, head in _partitions(heads, bound, "endingOffsets"):
        offset = _asked(bound, key, LATEST)
        time_us = _time_asked(bound, key)
        if time_us is not None:
            offset = find(*key, time_us)
        offsets[key] = head.head if offset == LATEST else offset
    return Positions(offsets, ids_of(heads))


def all_heads(heads: Heads) -> Positions:
    """The end of everything there is, ready messages of classic queues included."""
    offsets = {
        (name, number): head.end
        for name, partitions in heads.items()
        for number, head in partitions.items()
    }
    return Positions(offsets, ids_of(heads))


def _partitions(heads: Heads, bound: Bound, option: str) -> Iterable[tuple[Key, PartitionHead]]:
    """All partitions, after those that were named have been found among them."""
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
