"""StreamOptions: what a stream is told when it is declared, and how its partitions are found.

The spellings are RabbitMQ's arguments, which its streams guide has; two are our own:

    x-max-age                        "7D", "24h": how long records are kept, in Y M D h m s
    x-max-length-bytes               how many bytes of pages
    x-max-length                     how many records (RabbitMQ knows it for queues alone)
    x-stream-max-segment-size-bytes  bytes of a page; what is out of range counts as its end
    x-partitions                     1 to 256 partitions, each a log of its own (ours)

A month is 30 days and a year 365, as in RabbitMQ. Retention takes whole pages, the oldest first, as
soon as one of the limits is passed without them; each limit is for every partition by itself.

**Partitions.** A stream with x-partitions=N is N streams to the storage, named

    orders NUL p0 | orders NUL p1 | ... | orders NUL p<N-1>

so NUL is what no name of people may hold (priority_queue.py: so are priorities). One without the
argument is of its own name, and has one partition, 0. A record goes to the partition that the
CRC-32 of its routing key says, so equal keys are in one partition and in order. How many there are
is fixed for the life of a stream: keys would change their places.

Stored form: a JSON object of the arguments, sorted, as all queues have theirs; either of broker and
library reads what the other wrote.

Not here: which arguments a broker refuses for streams (penstock.broker.arguments), the streams
themselves (penstock.storage).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import OptionError
from penstock.fast_crc import crc32

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
KEPT_S: Final = 600  # what a reader asked to keep is kept so long after it was heard of last
AGE_S: Final[dict[str, int]] = {
    "Y": 365 * 86_400, "M": 30 * 86_400, "D": 86_400, "h": 3600, "m": 60, "s": 1,
}  # fmt: skip
AGE_EXPECTED: Final = 'a whole number from 1 and one of Y M D h m s, such as "7D"'

_AGE: Final = re.compile(r"([0-9]{1,12})([YMDhms])")


def age_s(text: str) -> int | None:
    """Seconds of "7D", "24h" and so on, 1 at least; None if it is no age."""
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
        """The options that these arguments say; those of others are passed over. OptionError."""
        max_age_s: int | None = None
        given = arguments.get(MAX_AGE)
        if given is not None:
            max_age_s = age_s(given) if isinstance(given, str) else None
            if max_age_s is None:
                raise OptionError(MAX_AGE, given, AGE_EXPECTED)
        page_bytes = _whole(arguments, PAGE_BYTES, 0, SEGMENT_BYTES_MAX)
        if page_bytes is None:
            page_bytes = PAGE_BYTES_DEFAULT
        return cls(
            partitions=_whole(arguments, PARTITIONS, 1, PARTITIONS_MAX) or 0,
            page_bytes=min(max(page_bytes, PAGE_BYTES_MIN), PAGE_BYTES_MAX),
            max_age_s=max_age_s,
            max_bytes=_whole(arguments, MAX_BYTES, 0, COUNT_MAX),
            max_records=_whole(arguments, MAX_RECORDS, 0, COUNT_MAX),
        )

    def arguments(self) -> dict[str, object]:
        """As they would be declared; ages in seconds."""
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
        """Whether anything is ever reclaimed."""
        limits = (self.max_age_s, self.max_bytes, self.max_records)
        return any(limit is not None for limit in limits)

    def encode(self) -> bytes:
        """The stored form."""
        return json.dumps(self.arguments(), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "StreamOptions":
        """From the stored form, also one that a broker wrote with more in it. ValueError,
        OptionError: it is none."""
        found = json.loads(data or b"{}")
        if not isinstance(found, dict):
            raise ValueError(f"a stream's arguments are a JSON object, not {type(found).__name__}")
        return cls.from_arguments(found)


def _whole(arguments: Mapping[str, object], name: str, low: int, high: int) -> int | None:
    given = arguments.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
        raise OptionError(name, given, f"a whole number from {low} to {high}")
    return given


def partition_names(name: bytes, partitions: int) -> list[bytes]:
    """The names that the storage has the partitions by; 0: of one that is not partitioned."""
    if not partitions:
        return [name]
    return [b"%b%bp%d" % (name, SEPARATOR, number) for number in range(partitions)]


def base_name(name: bytes) -> bytes:
    """The name that people know, of that of a partition."""
    return name.partition(SEPARATOR)[0]


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that a record with this routing key belongs into."""
    return crc32(key) % partitions if partitions > 1 else 0
