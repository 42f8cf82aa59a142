"""Stream arguments: what a consumer of a stream asks for, and from where it reads.

    x-stream-offset      "first", "last", "next"; an offset; a time (AMQP's timestamp, seconds); an
                         interval before now, "1h"; without it "next", or where the reader is
    x-stream-reader      the name of a reader, whose position the server keeps (ours)
    x-stream-partition   read this partition alone (ours)

As RabbitMQ's streams guide has them, with two differences: "last" is the last record, not the last
chunk, and a time is met to the record. An offset holds for every partition that is read. What makes
no sense is 406; RabbitMQ 3.10 ends the connection with an internal error for some of it.

x-stream-filter and what else is not known here is passed over.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from penstock.broker.arguments import shown
from penstock.broker.refusals import precondition_failed
from penstock.queues.stream_options import age_s
from penstock.storage.streams import Stream

OFFSET: Final = "x-stream-offset"
READER: Final = "x-stream-reader"
PARTITION: Final = "x-stream-partition"

FIRST: Final = "first"
LAST: Final = "last"
NEXT: Final = "next"
WORDS: Final = (FIRST, LAST, NEXT)
OFFSET_MAX: Final = (1 << 53) - 1
READER_BYTES_MAX: Final = 255
EXPECTED: Final = (
    '"first", "last", "next", an offset from 0, a timestamp, or an interval such as "1h"'
)


class Start:
    """Where to begin: a word, or an offset (not negative), or a time in us since 1970."""

    __slots__ = ("offset", "time_us", "word")

    def __init__(self, word: str = "", offset: int = -1, time_us: int = 0) -> None:
        self.word: str = word
        self.offset: int = offset
        self.time_us: int = time_us

    def offset_in(self, stream: Stream) -> int:
        """The offset to begin at in this partition, which may be below the first or above the head.
        CorruptionError, OSError: its index cannot be read."""
        if self.offset >= 0:
            return self.offset
        if self.word == FIRST:
            return stream.first_offset
        if self.word == LAST:
            return max(stream.head_offset - 1, stream.first_offset)
        if self.word == NEXT:
            return stream.next_offset
        return stream.queue.find(self.time_us)


def start_of(what: str, arguments: Mapping[str, object], now_ms: int) -> Start | None:
    """Where a consumer asks to begin; None: it does not say. what: the stream, as `refusals.called`
    has it. ChannelError 406."""
    if OFFSET not in arguments:
        return None
    given = arguments[OFFSET]
    if isinstance(given, str):
        if given in WORDS:
            return Start(given)
        seconds = age_s(given)
        if seconds is not None:
            return Start(time_us=max(now_ms - seconds * 1000, 0) * 1000)
    elif isinstance(given, datetime):
        whole = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return Start(time_us=max(int(whole.timestamp()), 0) * 1_000_000)
    elif isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= OFFSET_MAX:
        return Start(offset=given)
    raise invalid(OFFSET, what, given, EXPECTED)


def reader_of(what: str, arguments: Mapping[str, object]) -> str:
    """The name of the reader, "" for none. ChannelError 406."""
    given = arguments.get(READER)
    if given is None:
        return ""
    if not isinstance(given, str) or not is_reader(given):
        raise invalid(READER, what, given, f"a text of 1 to {READER_BYTES_MAX} bytes of UTF-8")
    return given


def is_reader(name: str) -> bool:
    """Whether a reader may be called so."""
    try:
        return 0 < len(name.encode()) <= READER_BYTES_MAX
    except UnicodeEncodeError:
        return False


def partition_of(what: str, arguments: Mapping[str, object], count: int) -> int | None:
    """The partition that is asked for, of so many; None for all of them. ChannelError 406."""
    given = arguments.get(PARTITION)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < count:
        raise invalid(PARTITION, what, given, f"a partition from 0 to {count - 1}")
    return given


def invalid(name: str, what: str, given: object, expected: str) -> Exception:
    """406 for a consumer's argument."""
    return precondition_failed(
        f"invalid arg '{name}' for {what}: received {shown(given)}, expected {expected}"
    )
