"""StreamCursor: a consumer's position in the partitions of a stream; and its delivery headers.

    partition 0   . . . . . a a u a u u [ chunk: delivered | to be delivered ]      head
                          ^         ^                        ^                       ^
                     position()   unacked                 place.offset          end of reading

**Reading.** At most one chunk, 256 KiB or a single larger record, is in RAM, whatever the distance
to the head. When it is used up the next chunk is read from the next partition in turn that has
records: each partition is read in its own order, and none waits for another.

**Gaps.** If retention has deleted the records at the position, reading continues at the first
record there is, and `gap` is the number of records that were skipped.

**Position.** Per partition, the smallest unacked offset, or the next one to be delivered. Acks may
come in any order. A record that was given back (`hold`) stays unacked for good: this cursor does
not deliver it again, but the position stays at it, so that a later reader gets it again. Acks after
it need not be remembered then, so a cursor's RAM does not grow with what it reads. A cursor whose
position nobody keeps (`is_named` False) remembers nothing.

A tag is offset and partition in one number, so that an ack needs no table.

**Headers.** A delivery has these in addition to the headers of the message:

    x-stream-offset      l   the offset in its partition, as in RabbitMQ
    x-stream-partition   I   the partition, 0 for a stream without partitions (Penstock only)
    x-stream-timestamp   l   when the record was appended, microseconds since 1970 (Penstock only)
    x-stream-gap         l   only after a gap: how many records before it the reader never saw,
                             because retention had deleted them (Penstock only)

A record has the message's header as it was published (amqp_headers.py). These headers are appended
to it at delivery; its other headers keep their bytes. Headers of these names that a publisher sent,
or that an earlier delivery left in the message, are replaced. Messages of one publisher mostly have
the same header, so `Placer` keeps the last one split in two, with a gap for these entries: a
delivery then costs one comparison, one pack and one join.
"""

import struct
from collections import deque
from typing import Final

from penstock.message import LARGE_FROM
from penstock.queues import raw_fields
from penstock.queues.amqp_headers import FORMAT_BYTE, AmqpHeaders
from penstock.queues.raw_fields import HEADERS, PropertiesError, RawProperties
from penstock.storage.pages.page import UNLIMITED, PageRecord
from penstock.storage.pages.streams import StoredStream
from penstock.storage.store.store_file import StoredBody

CHUNK_BYTES: Final = 256 << 10
CHUNK_RECORDS_MAX: Final = 1024
PARTITION_BITS: Final = 8
PARTITION_MASK: Final = (1 << PARTITION_BITS) - 1
NOWHERE: Final = -1


class CursorPlace:
    """A cursor's place in one partition. offset: the next to be delivered. saved: the position that
    was saved."""

    def __init__(self, stream: StoredStream, partition: int, offset: int) -> None:
        self.stream: StoredStream = stream
        self.partition: int = partition
        self.offset: int = offset
        self.saved: int = NOWHERE
        self._unacked: deque[int] = deque()  # ascending
        self._done: set[int] = set()  # acked before an older one was
        self._held: int = NOWHERE

    def position(self) -> int:
        """Return the offset below which everything is settled."""
        if self._unacked:
            return self._unacked[0]
        return self.offset if self._held == NOWHERE else self._held

    def delivered(self, offset: int) -> None:
        """Note that a record is unacked."""
        if self._held == NOWHERE:
            self._unacked.append(offset)

    def ack(self, offset: int) -> None:
        """Note that a record is settled. A second time, or below the position, does nothing."""
        unacked = self._unacked
        if not unacked or offset < unacked[0] or offset > unacked[-1]:
            return
        if offset != unacked[0]:
            self._done.add(offset)
            return
        unacked.popleft()
        done = self._done
        while done and unacked and unacked[0] in done:
            done.remove(unacked.popleft())

    def hold(self, offset: int) -> None:
        """Note that a record will not be settled: the position stays here."""
        unacked = self._unacked
        if not unacked or offset < unacked[0] or offset > unacked[-1] or offset in self._done:
            return
        self._held = offset
        while unacked and unacked[-1] >= offset:
            self._done.discard(unacked.pop())


class StreamCursor:
    """See the head of this module. chunk_bytes: of bodies in RAM. gap: how many records before the
    last one that `fetch` returned were deleted by retention. read_records, read_bytes: that chunks
    had; the owner counts them and sets them to 0."""

    def __init__(self, places: list[CursorPlace], *, is_named: bool, chunk_records: int) -> None:
        self.places: list[CursorPlace] = places
        self.is_named: bool = is_named
        self.chunk_bytes: int = 0
        self.gap: int = 0
        self.read_records: int = 0
        self.read_bytes: int = 0
        self.partition: int = 0  # of the record that `fetch` gave last
        self.large: StoredBody | None = None  # its payload, if that is large; the owner takes it
        self._by_partition: dict[int, CursorPlace] = {place.partition: place for place in places}
        self._chunk_records: int = min(max(chunk_records, 1), CHUNK_RECORDS_MAX)
        self._chunk: list[PageRecord] = []
        self._at: int = 0
        self._turn: int = 0  # which of the places the chunk is from

    def fetch(self) -> PageRecord | None:
        """Return the next record, which is unacked from then on; None if there is none below the
        heads. CorruptionError (file and position), OSError: it cannot be read."""
        if self._at >= len(self._chunk) and not self._read():
            return None
        record = self._chunk[self._at]
        self._at += 1
        if self._at >= len(self._chunk):
            self._chunk = []
            self._at = 0
        place = self.places[self._turn]
        offset = record.offset
        self.gap = offset - place.offset
        self.partition = place.partition
        place.offset = offset + 1
        if self.is_named:
            place.delivered(offset)
        return record

    def _read(self) -> bool:
        """Read the next chunk, from the next partition that has one."""
        self.chunk_bytes = 0
        count = len(self.places)
        for step in range(1, count + 1):
            turn = (self._turn + step) % count
            place = self.places[turn]
            stream = place.stream
            if place.offset >= stream.head_offset:
                continue
            is_bad = place.offset in stream.faults
            most = UNLIMITED if is_bad else LARGE_FROM  # it is verified before it is delivered
            found = stream.queue.read(place.offset, self._chunk_records, CHUNK_BYTES, most)
            if not found and not is_bad:
                found = self._open_large(place)
            if not found:
                continue
            self._chunk = found
            self._at = 0
            self._turn = turn
            self.chunk_bytes = sum([len(record.payload) for record in found])
            self.read_records += len(found)
            self.read_bytes += self.chunk_bytes
            return True
        return False

    def _open_large(self, place: CursorPlace) -> list[PageRecord]:
        """Open the next record, which is large: it is the chunk."""
        opened = place.stream.queue.open_large(place.offset)
        if opened is None:
            return []
        record, self.large = opened
        self.large.faults = place.stream.faults
        return [record]

    def take_large(self) -> StoredBody | None:
        """Return `large`, which the caller closes."""
        large, self.large = self.large, None
        return large

    def drop_large(self) -> None:
        """Close `large`: its record is not delivered."""
        if self.large is not None:
            self.large.close()
            self.large = None

    def drop_chunk(self) -> None:
        """Drop the chunk in RAM; the next `fetch` reads again."""
        self.drop_large()
        self._chunk = []
        self._at = 0
        self.chunk_bytes = 0

    # ---- what became of them -------------------------------------------------------------------

    def tag(self, offset: int, partition: int) -> int:
        """Return the tag with which a record is settled."""
        return offset << PARTITION_BITS | partition

    def ack(self, tags: list[int]) -> None:
        """Settle the records of these tags."""
        if self.is_named:
            for tag in tags:
                place = self._by_partition.get(tag & PARTITION_MASK)
                if place is not None:
                    place.ack(tag >> PARTITION_BITS)

    def hold(self, tags: list[int]) -> None:
        """Keep the records of these tags unsettled: the next reader from the position gets them."""
        if self.is_named:
            for tag in tags:
                place = self._by_partition.get(tag & PARTITION_MASK)
                if place is not None:
                    place.hold(tag >> PARTITION_BITS)

    def moved(self) -> list[CursorPlace]:
        """Return the places whose position differs from the saved one."""
        return [place for place in self.places if place.position() != place.saved]


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
    """Adds the headers of deliveries to one reader. queue: the stream's name, the routing key of
    records that the embedded library wrote."""

    def __init__(self, queue: str) -> None:
        self._queue: str = queue
        self._meta: bytes = b""
        self._front: bytes = (
            b""  # of the last header, up to the length of the table and its entries
        )
        self._back: bytes = b""

    def header(self, meta: bytes, offset: int, partition: int, time_us: int, gap: int) -> bytes:
        """Return the stored header with the stream's headers added. gap: 0 for none. HeaderError:
        it is not a header."""
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
    """A header in two parts, between which so many bytes of entries are inserted."""
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
