"""StreamCursor: one reader's way through the partitions of a stream, a chunk of records at a time.

    partition 0   . . . . . a a u a u u [ chunk: delivered | to be delivered ]      head
                          ^         ^                        ^                       ^
                     position()   unacked                 place.offset          nobody reads further

**Reading.** At most one chunk, 256 KiB or a single larger record, is in RAM, whatever the distance
to the head. When it is used up the next one is read, from the next partition in turn that has
something: each is read in its own order, and none waits for another.

**Reclaimed.** A reader that retention has overtaken goes on at the first record there is, and is
told how many it did not see (`gap`).

**Position.** What a named reader has done with, partition by partition: its smallest unacked
offset, or the next one to be delivered. Acks may come in any order. What was given back (`hold`)
stays undone for good: it is not delivered again to this cursor, but the position stays at it, so
that whoever reads on from there gets it again. Nothing behind it needs to be remembered then, so a
cursor's RAM does not grow with what it reads. A cursor that nobody keeps a position of (`is_named`
False) remembers nothing at all.

Tags are offset and partition in one number, so that what comes back is found without a table.

Not here: prefetch, headers, who is told (penstock.broker.broker_stream), where the position is
kept (the engine's READER_OFFSET records).
"""

from collections import deque
from typing import Final

from penstock.storage.page import StreamRecord
from penstock.storage.streams import Stream

CHUNK_BYTES: Final = 256 << 10
CHUNK_RECORDS_MAX: Final = 1024
PARTITION_BITS: Final = 8
PARTITION_MASK: Final = (1 << PARTITION_BITS) - 1
NOWHERE: Final = -1


class Place:
    """In one partition. offset: the next to be delivered. saved: the position that is kept."""

    def __init__(self, stream: Stream, partition: int, offset: int) -> None:
        self.stream: Stream = stream
        self.partition: int = partition
        self.offset: int = offset
        self.saved: int = NOWHERE
        self._unacked: deque[int] = deque()  # ascending
        self._done: set[int] = set()  # acked before an older one was
        self._held: int = NOWHERE

    def position(self) -> int:
        """All below is done with."""
        if self._unacked:
            return self._unacked[0]
        return self.offset if self._held == NOWHERE else self._held

    def delivered(self, offset: int) -> None:
        """It is unacked now."""
        if self._held == NOWHERE:
            self._unacked.append(offset)

    def ack(self, offset: int) -> None:
        """It is done with. Twice, or one that nobody asks about any more: nothing."""
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
        """It is not done with, and will not be: the position stays here."""
        unacked = self._unacked
        if not unacked or offset < unacked[0] or offset > unacked[-1] or offset in self._done:
            return
        self._held = offset
        while unacked and unacked[-1] >= offset:
            self._done.discard(unacked.pop())


class StreamCursor:
    """See the head of this module. chunk_bytes: of bodies in RAM. gap: how many records before the
    one that `fetch` gave last were reclaimed."""

    def __init__(self, places: list[Place], *, is_named: bool, chunk_records: int) -> None:
        self.places: list[Place] = places
        self.is_named: bool = is_named
        self.chunk_bytes: int = 0
        self.gap: int = 0
        self.partition: int = 0  # of the record that `fetch` gave last
        self._by_partition: dict[int, Place] = {place.partition: place for place in places}
        self._chunk_records: int = min(max(chunk_records, 1), CHUNK_RECORDS_MAX)
        self._chunk: list[StreamRecord] = []
        self._at: int = 0
        self._turn: int = 0  # which of the places the chunk is from

    def fetch(self) -> StreamRecord | None:
        """The next record, which is unacked then; None: nothing is below the heads. CorruptionError
        (file and position), OSError: it cannot be read."""
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
        """The next chunk, from the next partition that has one."""
        self.chunk_bytes = 0
        count = len(self.places)
        for step in range(1, count + 1):
            turn = (self._turn + step) % count
            place = self.places[turn]
            stream = place.stream
            if place.offset >= stream.head_offset:
                continue
            found = stream.queue.read(place.offset, self._chunk_records, CHUNK_BYTES)
            if not found:
                continue
            self._chunk = found
            self._at = 0
            self._turn = turn
            self.chunk_bytes = sum([len(record.payload) for record in found])
            return True
        return False

    def drop_chunk(self) -> None:
        """Nothing of it is delivered any more; what is fetched next is read again."""
        self._chunk = []
        self._at = 0
        self.chunk_bytes = 0

    # ---- what became of them -------------------------------------------------------------------

    def tag(self, offset: int, partition: int) -> int:
        """Of a record, for who settles it."""
        return offset << PARTITION_BITS | partition

    def ack(self, tags: list[int]) -> None:
        """These are done with."""
        if self.is_named:
            for tag in tags:
                place = self._by_partition.get(tag & PARTITION_MASK)
                if place is not None:
                    place.ack(tag >> PARTITION_BITS)

    def hold(self, tags: list[int]) -> None:
        """These were given back: whoever reads on from the position gets them again."""
        if self.is_named:
            for tag in tags:
                place = self._by_partition.get(tag & PARTITION_MASK)
                if place is not None:
                    place.hold(tag >> PARTITION_BITS)

    def moved(self) -> list[Place]:
        """Places whose position is another one than was saved."""
        return [place for place in self.places if place.position() != place.saved]
