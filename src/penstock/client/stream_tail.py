"""StreamTail: the records of a stream over AMQP, from a position on, for tools that show them.

A tail asks the broker where each partition begins and ends (describe_stream), decides where to
start, and has a consumer for each partition, from an offset of its own. So it ends when it has seen
everything that was there when it began; with `is_following` it goes on instead.

    start     the first record that is left; last: the last so many of each partition; since_us: the
              first of this time or later, in microseconds since 1970
    records   in the order of arrival; those of one partition in order

Consumers acknowledge what they were given, which for a stream only makes room for more. The stream
is not changed, and no reader's offset is stored.
"""

import queue
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from penstock.client.connection import ClientConnection, Received
from penstock.clock import moment_of
from penstock.codec.spec import BasicQos

PREFETCH: Final = 500
ANSWER_S: Final = 30.0
OFFSET: Final = "x-stream-offset"
PARTITION: Final = "x-stream-partition"
TIME: Final = "x-stream-timestamp"


@dataclass(frozen=True, slots=True)
class TailRecord:
    """A record of a stream. time_us: microseconds since 1970; None if the broker does not send it.
    key: the routing key."""

    partition: int
    offset: int
    time_us: int | None
    key: str
    body: bytes
    message: Received

    @property
    def time(self) -> datetime | None:
        """Return when the record was appended, None if the broker does not say."""
        return None if self.time_us is None else moment_of(self.time_us)


@dataclass(frozen=True, slots=True)
class TailPart:
    """A partition as it was found: its records are [start, head), of which [first, head) exist."""

    partition: int
    first: int
    head: int
    start: int


class StreamTail:
    """See the head of this module. parts: the partitions as they were found. ChannelError: it is
    not a stream, or the user may not read it."""

    def __init__(
        self, connection: ClientConnection, stream: str, *, last: int | None = None,
        since_us: int = 0, is_following: bool = False,
    ) -> None:  # fmt: skip
        self._channel = connection.channel()
        self._stream = stream
        self._is_following = is_following
        self._found: queue.SimpleQueue[Received | Exception] = queue.SimpleQueue()
        described: Any = self._call("describe_stream", queue=stream, without_readers=True)
        self.parts: list[TailPart] = [
            self._part(one, last, since_us) for one in described["partitions"]
        ]

    def records(self) -> Iterator[TailRecord]:
        """Yield records until all that were there have come; with is_following without an end."""
        open_parts = {one.partition: one.head for one in self.parts if one.start < one.head}
        wanted = self.parts if self._is_following else [p for p in self.parts if p.start < p.head]
        if not wanted:
            return
        self._channel.ask(BasicQos(prefetch_count=PREFETCH)).result(ANSWER_S)
        for part in wanted:
            self._consume(part)
        while open_parts or self._is_following:
            found = self._found.get()
            if isinstance(found, Exception):
                raise found
            record = record_of(found)
            if not self._is_following:
                head = open_parts.get(record.partition, 0)
                if record.offset >= head - 1:
                    open_parts.pop(record.partition, None)
                if record.offset >= head:
                    continue
            yield record
            if found.delivery_tag % (PREFETCH // 2) == 0:
                self._channel.ack(found.delivery_tag, multiple=True)

    @property
    def is_idle(self) -> bool:
        """Whether no record is waiting: the moment to flush what was printed."""
        return self._found.empty()

    def close(self) -> None:
        """End the consumers."""
        self._channel.close()

    def _part(self, described: Any, last: int | None, since_us: int) -> TailPart:
        number, first, head = (int(described[name]) for name in ("partition", "first", "head"))
        begin = first
        if last is not None:
            begin = max(first, head - last)
        elif since_us:
            found: Any = self._call(
                "find_stream_offset", queue=self._stream, partition=number, time_us=since_us
            )
            begin = max(first, int(found["offset"] if isinstance(found, dict) else found))
        return TailPart(number, first, head, begin)

    def _consume(self, part: TailPart) -> None:
        arguments: dict[str, object] = {OFFSET: part.start}
        if len(self.parts) > 1:
            arguments[PARTITION] = part.partition
        _, begun = self._channel.consume(
            self._stream, self._found.put, self._found.put, arguments=arguments
        )
        begun.result(ANSWER_S)

    def _call(self, op: str, **arguments: object) -> object:
        return self._channel.call(op, arguments).result(ANSWER_S)


def record_of(message: Received) -> TailRecord:
    """Return the record of a delivery."""
    headers = message.headers
    time_us, offset = headers.get(TIME), headers.get(OFFSET)
    partition = headers.get(PARTITION)
    return TailRecord(
        partition=partition if isinstance(partition, int) else 0,
        offset=offset if isinstance(offset, int) else 0,
        time_us=time_us if isinstance(time_us, int) else None,
        key=message.routing_key,
        body=message.body,
        message=message,
    )
