"""StreamOptions: the arguments of a declared stream, and the names of its partitions.

The arguments are RabbitMQ's, as its streams guide has them, and two of Penstock's own:

    x-max-age                        "7D", "24h": how long records are kept, in Y M D h m s
    x-max-length-bytes               how many bytes of pages
    x-max-length                     how many records (in RabbitMQ for queues only)
    x-stream-max-segment-size-bytes  bytes of a page; values out of range are moved into it
    x-partitions                     1 to 256 partitions, each a log of its own (Penstock only)

A month is 30 days and a year 365, as in RabbitMQ. Retention deletes whole pages, the oldest first,
while the rest still exceeds one of the limits; each limit applies to each partition.

**Partitions.** A stream with x-partitions=N is N streams of the storage, named

    orders NUL p0 | orders NUL p1 | ... | orders NUL p<N-1>

because no name that people give may contain NUL (priority_queue.py does the same for priorities).
A stream without the argument has its own name and one partition, 0. The CRC-32 of a record's
routing key selects its partition, so equal keys are in one partition and in order. The number of
partitions never changes: keys would move to other partitions.

Stored form: a JSON object of the arguments, sorted, as for all queues; broker and library read what
the other wrote. penstock.broker.arguments has the arguments that a broker refuses for streams.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import OptionError
from penstock.fast_crc import crc32
from penstock.options import Kind, checked, whole

QUEUE_TYPE: Final = "x-queue-type"
STREAM: Final = "stream"
MAX_AGE: Final = "x-max-age"
MAX_BYTES: Final = "x-max-length-bytes"
MAX_RECORDS: Final = "x-max-length"
PAGE_BYTES: Final = "x-stream-max-segment-size-bytes"
PARTITIONS: Final = "x-partitions"

SEPARATOR: Final = b"\0"
PARTITIONS_MAX: Final = 256
COUNT_MAX: Final = (1 << 62) - 1
PAGE_BYTES_MIN: Final = 4096
PAGE_BYTES_MAX: Final = 1 << 30
PAGE_BYTES_DEFAULT: Final = 64 << 20
SEGMENT_BYTES_MAX: Final = 3_000_000_000  # RabbitMQ refuses more
KEPT_S: Final = 600  # how long after a reader's last report the records it asked for are kept
AGE_S: Final[dict[str, int]] = {
    "Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3600, "m": 60, "s": 1,
}  # fmt: skip
AGE_EXPECTED: Final = 'a whole number from 1 and one of Y M D h m s, such as "7D"'

_AGE: Final = re.compile(r"([0-9]{1,12})([YMDhms])")


def age_s(text: str) -> int | None:
    """Return the seconds of "7D", "24h" and so on, at least 1; None if it is not an age."""
    found = _AGE.fullmatch(text)
    if found is None:
        return None
    seconds = int(found[1]) * AGE_S[found[2]]
    return seconds or None


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """See the head of this module. partitions: 0 if x-partitions is not given. None: no limit."""

    partitions: int = 0
    page_bytes: int = PAGE_BYTES_DEFAULT
    max_age_s: int | None = None
    max_bytes: int | None = None
    max_records: int | None = None

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, object]) -> "StreamOptions":
        """Return the options of these arguments; other arguments are ignored. OptionError."""
        max_age_s: int | None = None
        given = arguments.get(MAX_AGE)
        if given is not None:
            max_age_s = age_s(given) if isinstance(given, str) else None
            if max_age_s is None:
                raise OptionError(MAX_AGE, given, AGE_EXPECTED)
        page_bytes = _if_given(arguments, PAGE_BYTES, whole(0, SEGMENT_BYTES_MAX))
        if page_bytes is None:
            page_bytes = PAGE_BYTES_DEFAULT
        return cls(
            partitions=_if_given(arguments, PARTITIONS, whole(1, PARTITIONS_MAX)) or 0,
            page_bytes=min(max(page_bytes, PAGE_BYTES_MIN), PAGE_BYTES_MAX),
            max_age_s=max_age_s,
            max_bytes=_if_given(arguments, MAX_BYTES, whole(0, COUNT_MAX)),
            max_records=_if_given(arguments, MAX_RECORDS, whole(0, COUNT_MAX)),
        )

    def arguments(self) -> dict[str, object]:
        """Return the arguments that declare this; ages in seconds."""
        found: dict[str, object] = {QUEUE_TYPE: STREAM}
        if self.partitions:
            found[PARTITIONS] = self.partitions
        if self.page_bytes != PAGE_BYTES_DEFAULT:
            found[PAGE_BYTES] = self.page_bytes
        if self.max_age_s is not None:
            found[MAX_AGE] = f"{self.max_age_s}s"
        if self.max_bytes is not None:
            found[MAX_BYTES] = self.max_bytes
        if self.max_records is not None:
            found[MAX_RECORDS] = self.max_records
        return found

    @property
    def has_limits(self) -> bool:
        """Whether retention ever deletes anything."""
        limits = (self.max_age_s, self.max_bytes, self.max_records)
        return any(limit is not None for limit in limits)

    def encode(self) -> bytes:
        """Return the stored form."""
        return json.dumps(self.arguments(), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "StreamOptions":
        """Return the options of a stored form; a broker may have stored further arguments.
        ValueError, OptionError for another form."""
        found = json.loads(data or b"{}")
        if not isinstance(found, dict):
            raise ValueError(f"a stream's arguments are a JSON object, not {type(found).__name__}")
        return cls.from_arguments(found)


def _if_given(arguments: Mapping[str, object], name: str, kind: Kind) -> int | None:
    given = arguments.get(name)
    return None if given is None else checked(kind, name, given)


def partition_names(name: bytes, partitions: int) -> list[bytes]:
    """Return the names of the partitions in the storage; partitions 0: of a stream without
    partitions."""
    if not partitions:
        return [name]
    return [b"%b%bp%d" % (name, SEPARATOR, number) for number in range(partitions)]


def base_name(name: bytes) -> bytes:
    """Return the name that people know from that of a partition."""
    return name.partition(SEPARATOR)[0]


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a record with this routing key."""
    return crc32(key) % partitions if partitions > 1 else 0
