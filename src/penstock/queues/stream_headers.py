"""Stream headers: what a delivery from a stream says of its place, among its headers.

    x-stream-offset      l   its offset in its partition, as RabbitMQ has it
    x-stream-partition   I   which partition, 0 for a stream without any (ours)
    x-stream-timestamp   l   when it came, microseconds since 1970 (ours)
    x-stream-gap         l   only where there is one: how many records before it the reader never
                             saw, because retention had reclaimed them (ours)

A record keeps the message's header as it was published (amqp_headers.py), so these are put in when
it is delivered: behind the headers that it has, which keep their bytes. Headers of these names that
a publisher sent, or that an earlier delivery left in the message, are replaced.

Messages of one publisher mostly have the same header, so `Placer` keeps the last one cut in two,
with a hole where these entries go: a delivery is then one comparison, one pack and one join.
"""

import struct
from typing import Final

from penstock.queues import raw_fields
from penstock.queues.amqp_headers import FORMAT_BYTE, AmqpHeaders
from penstock.queues.raw_fields import HEADERS, PropertiesError, RawProperties

OFFSET: Final = b"x-stream-offset"
PARTITION: Final = b"x-stream-partition"
TIMESTAMP: Final = b"x-stream-timestamp"
GAP: Final = b"x-stream-gap"
NAMES: Final = (OFFSET, PARTITION, TIMESTAMP, GAP)
PREFIX: Final = b"x-stream-"

_OFFSET: Final = b"\x0f" + OFFSET + b"l"
_PARTITION: Final = b"\x12" + PARTITION + b"I"
_TIMESTAMP: Final = b"\x12" + TIMESTAMP + b"l"
_GAP: Final = b"\x0c" + GAP + b"l"
_PLACE: Final = struct.Struct(">17sq20si20sq")
PLACE_BYTES: Final = 17 + 8 + 20 + 4 + 20 + 8

_CODEC: Final = AmqpHeaders()


class Placer:
    """Of one reader of the stream `queue` (its name, for what the embedded library published)."""

    def __init__(self, queue: str) -> None:
        self._queue: str = queue
        self._meta: bytes = b""
        self._front: bytes = (
            b""  # of the last header, up to the length of the table and its entries
        )
        self._back: bytes = b""

    def header(self, meta: bytes, offset: int, partition: int, time_us: int, gap: int) -> bytes:
        """The stored header with its place among the headers. gap: 0 for none. HeaderError: it is
        no header."""
        place = _PLACE.pack(_OFFSET, offset, _PARTITION, partition, _TIMESTAMP, time_us)
        if gap:
            place += _GAP + gap.to_bytes(8, "big")
            front, back = _cut(meta, self._queue, len(place))
            return front + place + back
        if meta != self._meta or not self._front:
            self._front, self._back = _cut(meta, self._queue, PLACE_BYTES)
            self._meta = meta
        return self._front + place + self._back


def _cut(meta: bytes, queue: str, place_bytes: int) -> tuple[bytes, bytes]:
    """A header in two, between which so many bytes of further entries belong."""
    address, props = _CODEC.parts(meta, queue)
    try:
        raw = RawProperties(props)
    except PropertiesError:  # no headers can be put in; nothing of what there is makes sense
        raw = RawProperties(b"\0\0")
        props = raw.data
    table = b""
    if raw.headers_end > raw.headers_at:
        table = props[raw.headers_at + 4 : raw.headers_end]
        if PREFIX in table:
            table = raw_fields.join([one for one in raw.headers() if one[0] not in NAMES])
    front = b"".join((
        FORMAT_BYTE, address, (raw.flags | HEADERS).to_bytes(2, "big"), props[2 : raw.headers_at],
        (len(table) + place_bytes).to_bytes(4, "big"), table,
    ))  # fmt: skip
    return front, props[raw.headers_end :]
