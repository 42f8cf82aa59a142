"""Rows: messages whose bodies are not in RAM, as 32 bytes each, without objects.

RabbitMQ keeps a record per message in RAM whatever is paged out, and its users' oldest complaint is
the hundreds of bytes that this costs. Here a beta, a gamma, and a pending message that was paged
out are each a row in a block of bytes; a `Row` object exists only while it is used.

    seq and flags 8 (flags in the upper byte) | id 8 | size 4 | place 4 | expiry and header length 8

All little-endian; nothing of it is written to disk. flags: PERSISTENT; IN_STORE (the body is in a
message store); HAS_ENTRY (there is an entry in .qs: a header, a body, or both); ON_SLOT (the
position is on disk, too: a gamma); AT_ENTRY, AT_STORE: `place` is the position of the .qs entry, or
the number of the store file; neither: it is in the slot. expiry: ms since 1970 in the upper 7
bytes; header length: 255 is 255 or more. A transient row has only the lower 40 bits of its id, and
above them its time in seconds since `base_s`, for a slot that is still to be written; the upper
bits of all transient ids are those of this start.

Rows ascend by seq, in blocks of at most 512, so every insertion or removal moves a bounded number
of bytes. A search bisects the blocks and then guesses: without holes, a seq's place in its block is
arithmetic.

**PagedPending** has the messages that were fetched, are not settled, and were paged out. A consumer
without a prefetch limit may hold a million messages. A row for each would take 32 MB, whatever the
limit of the queue is. But all that a row says is on the message's slot, too. So only some messages
have rows; of the others, the *far* ones, one bit is left that says that they are pending, and a
second one that says that they are transient, which no slot does.

    near      rows, mostly of the smallest seqs, which are settled first; paging.py bounds them
    far       segment -> bits, a 256th of the rows' bytes, and the bytes of the bodies
    window    rows of what was far and was read again. The next read replaces it, and what is left
              of it becomes far again

Messages are settled mostly near each other, upwards or downwards, so a read brings an aligned block
of neighbours: 16 at first, and twice as many each time that the next one wanted is in a block
beside the last, up to half of the rows that may stay. So settling in order costs a few reads per
segment, and settling at random 512 bytes each time.

A segment with so few rows that bits would take more than they do keeps its rows (`sparse`).

Only the sets are kept here. paging.py decides, writes slots, and reads.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from penstock.native import mypyc_attr

ROW_BYTES: Final = 32
BLOCK_ROWS: Final = 512
TRIM_ROWS: Final = 64  # free rows at the front of a block, if more than it holds, are trimmed
BLOCK_BYTES: Final = BLOCK_ROWS * ROW_BYTES

PERSISTENT: Final = 1
IN_STORE: Final = 2
HAS_ENTRY: Final = 4
ON_SLOT: Final = 8
AT_ENTRY: Final = 16
AT_STORE: Final = 32

SEQ_MASK: Final = (1 << 56) - 1
ID_BITS: Final = 40
ID_MASK: Final = (1 << ID_BITS) - 1
TIME_MAX: Final = (1 << 24) - 1

_ROW: Final = struct.Struct("<QQIIQ")
_pack: Final = _ROW.pack
_unpack_from: Final = _ROW.unpack_from
_U64: Final = struct.Struct("<Q")
_seq_from: Final = _U64.unpack_from


@mypyc_attr(acyclic=True)
class Row:
    """One row, unpacked."""

    __slots__ = ("expiry_ms", "flags", "header_len", "id", "place", "seq", "size", "time")

    def __init__(
        self, seq: int, flags: int, id: int, size: int, place: int, expiry_ms: int,
        header_len: int, time: int,
    ) -> None:  # fmt: skip
        self.seq: int = seq
        self.flags: int = flags
        self.id: int = id
        self.size: int = size
        self.place: int = place
        self.expiry_ms: int = expiry_ms
        self.header_len: int = header_len
        self.time: int = time


def seq_of_row(row: Row) -> int:
    """Return the key by which rows are sorted."""
    return row.seq


@mypyc_attr(acyclic=True)
class Block:
    """Rows lo to hi - 1 of `data`, which may have room at both ends."""

    __slots__ = ("data", "hi", "lo")

    def __init__(self, data: bytearray, lo: int, hi: int) -> None:
        self.data: bytearray = data
        self.lo: int = lo
        self.hi: int = hi


class Rows:
    """Rows, ascending by seq. start: the start number of the message ids of this run of the engine;
    base_s: its time in seconds since 1970. `count`: the number of rows."""

    def __init__(self, start: int, base_s: int) -> None:
        self.count: int = 0
        self._id_base: int = start << ID_BITS
        self._base_s: int = base_s
        self._blocks: list[Block] = []

    # ---- one row -------------------------------------------------------------------------------

    def _encode(self, row: Row) -> bytes:
        id = row.id
        if not row.flags & PERSISTENT:
            age = min(max(row.time - self._base_s, 0), TIME_MAX)
            id = (id & ID_MASK) | age << ID_BITS
        packed: bytes = _pack(
            row.seq | row.flags << 56, id, row.size, row.place, row.expiry_ms << 8 | row.header_len
        )
        return packed

    def _decode(self, data: bytearray, at: int) -> Row:
        seq, id, size, place, last = _unpack_from(data, at * ROW_BYTES)
        flags = seq >> 56
        time = 0
        if not flags & PERSISTENT:
            time = self._base_s + (id >> ID_BITS)
            id = self._id_base | (id & ID_MASK)
        return Row(seq & SEQ_MASK, flags, id, size, place, last >> 8, last & 255, time)

    # ---- both ends -----------------------------------------------------------------------------

    def append(self, row: Row) -> None:
        """Append a row."""
        blocks = self._blocks
        packed = self._encode(row)
        if blocks:
            block = blocks[-1]
            if block.hi - block.lo < BLOCK_ROWS:
                if block.hi * ROW_BYTES < len(block.data):
                    block.data[block.hi * ROW_BYTES : (block.hi + 1) * ROW_BYTES] = packed
                else:
                    if block.lo > BLOCK_ROWS >> 1:
                        del block.data[: block.lo * ROW_BYTES]
                        block.hi -= block.lo
                        block.lo = 0
                    block.data += packed
                block.hi += 1
                self.count += 1
                return
        blocks.append(Block(bytearray(packed), 0, 1))
        self.count += 1

    def append_left(self, row: Row) -> None:
        """Insert a row before all others."""
        blocks = self._blocks
        packed = self._encode(row)
        if not blocks or blocks[0].hi - blocks[0].lo >= BLOCK_ROWS:
            blocks.insert(0, Block(bytearray(BLOCK_BYTES), BLOCK_ROWS, BLOCK_ROWS))
        block = blocks[0]
        if not block.lo:
            room = BLOCK_ROWS - (block.hi - block.lo)
            block.data[0:0] = bytearray(room * ROW_BYTES)
            block.lo += room
            block.hi += room
        block.lo -= 1
        block.data[block.lo * ROW_BYTES : (block.lo + 1) * ROW_BYTES] = packed
        self.count += 1

    def first(self) -> Row:
        """Return the first row. There must be one."""
        block = self._blocks[0]
        return self._decode(block.data, block.lo)

    def last(self) -> Row:
        """Return the last row. There must be one."""
        block = self._blocks[-1]
        return self._decode(block.data, block.hi - 1)

    def drop_first(self) -> None:
        """Remove the first row. There must be one."""
        self._drop_front(0)

    def pop_first(self) -> Row:
        """Remove and return the first row. There must be one."""
        row = self.first()
        self.drop_first()
        return row

    def pop_last(self) -> Row:
        """Remove and return the last row. There must be one."""
        block = self._blocks[-1]
        block.hi -= 1
        row = self._decode(block.data, block.hi)
        self.count -= 1
        if block.lo == block.hi:
            del self._blocks[-1]
        return row

    def first_seq(self) -> int:
        """Return the seq of the first row, or -1."""
        return self._seq(self._blocks[0], self._blocks[0].lo) if self._blocks else -1

    def last_seq(self) -> int:
        """Return the seq of the last row, or -1."""
        return self._seq(self._blocks[-1], self._blocks[-1].hi - 1) if self._blocks else -1

    # ---- in the middle -------------------------------------------------------------------------

    def find(self, seq: int) -> Row | None:
        """Return the row of this seq, or None."""
        at = self._block_of(seq)
        i = self._index_in(at, seq)
        return None if i < 0 else self._decode(self._blocks[at].data, i)

    def remove(self, seq: int) -> Row | None:
        """Remove and return the row of this seq, or return None."""
        at = self._block_of(seq)
        i = self._index_in(at, seq)
        if i < 0:
            return None
        block = self._blocks[at]
        row = self._decode(block.data, i)
        if i == block.lo:
            self._drop_front(at)
        else:
            del block.data[i * ROW_BYTES : (i + 1) * ROW_BYTES]
            block.hi -= 1
            self.count -= 1
        return row

    def insert(self, row: Row) -> None:
        """Insert a row whose seq is not there yet."""
        blocks = self._blocks
        at = self._block_of(row.seq)
        if at < 0:
            self.append_left(row)
            return
        if at == len(blocks) - 1 and row.seq > self.last_seq():
            self.append(row)
            return
        block = blocks[at]
        if block.hi - block.lo >= BLOCK_ROWS:
            half = (block.lo + block.hi) >> 1
            upper = block.data[half * ROW_BYTES : block.hi * ROW_BYTES]
            blocks.insert(at + 1, Block(upper, 0, block.hi - half))
            block.hi = half
            if row.seq >= self._seq(blocks[at + 1], 0):
                block = blocks[at + 1]
        i = self._place(block, row.seq)
        block.data[i * ROW_BYTES : i * ROW_BYTES] = self._encode(row)
        block.hi += 1
        self.count += 1

    def insert_all(self, rows: list[Row]) -> None:
        """Insert rows, ascending, whose seqs are not there yet."""
        for row in reversed(rows):  # mostly they come before all others
            self.insert(row)

    def rows(self, after: int = -1) -> Iterator[Row]:
        """Return the rows above a seq, ascending; nothing may change meanwhile."""
        for at in range(max(self._block_of(after + 1), 0), len(self._blocks)):
            block = self._blocks[at]
            for i in range(self._place(block, after + 1), block.hi):
                yield self._decode(block.data, i)

    def count_without(self, flag: int) -> int:
        """Return how many rows do not have this flag."""
        n = 0
        for block in self._blocks:
            for at in range(block.lo * ROW_BYTES + 7, block.hi * ROW_BYTES, ROW_BYTES):
                n += not block.data[at] & flag
        return n

    def seqs(self) -> list[int]:
        """Return all seqs, ascending."""
        return [self._seq(b, i) for b in self._blocks for i in range(b.lo, b.hi)]

    def seqs_between(self, start: int, stop: int) -> list[int]:
        """Return the seqs from start to stop - 1, ascending."""
        found: list[int] = []
        for at in range(max(self._block_of(start), 0), len(self._blocks)):
            block = self._blocks[at]
            for i in range(self._place(block, start), block.hi):
                seq = self._seq(block, i)
                if seq >= stop:
                    return found
                found.append(seq)
        return found

    def seq_from_end(self, n: int) -> int:
        """Return the seq of the row that n others follow."""
        for block in reversed(self._blocks):
            if n < block.hi - block.lo:
                return self._seq(block, block.hi - 1 - n)
            n -= block.hi - block.lo
        raise IndexError(n)

    def extend(self, other: "Rows") -> None:
        """Move here all rows of another, which come after all of these."""
        self._blocks += other._blocks
        self.count += other.count
        other.clear()

    def extend_left(self, other: "Rows") -> None:
        """Move here all rows of another, which come before all of these."""
        self._blocks[0:0] = other._blocks
        self.count += other.count
        other.clear()

    def move_above(self, seq: int, to: "Rows") -> None:
        """Move the rows above a seq to another, whose rows all come after them: whole blocks, and a
        part of one."""
        blocks = self._blocks
        at = self._block_of(seq + 1)
        tail = blocks[at + 1 :]
        if at >= 0:
            block = blocks[at]
            i = self._place(block, seq + 1)
            if i < block.hi:
                upper = block.data[i * ROW_BYTES : block.hi * ROW_BYTES]
                tail.insert(0, Block(upper, 0, block.hi - i))
                block.hi = i
            del blocks[at if block.lo == block.hi else at + 1 :]
        else:
            blocks.clear()
        n = sum([block.hi - block.lo for block in tail])
        self.count -= n
        to._blocks[0:0] = tail
        to.count += n

    def clear(self) -> None:
        """Remove all rows."""
        self._blocks = []
        self.count = 0

    def taken(self) -> "Rows":
        """Remove all rows; return others that contain them."""
        taken = Rows(self._id_base >> ID_BITS, self._base_s)
        taken.count, taken._blocks = self.count, self._blocks
        self.clear()
        return taken

    def ram_bytes(self) -> int:
        """Return the bytes of the blocks."""
        return sum(len(block.data) for block in self._blocks)

    def _seq(self, block: Block, i: int) -> int:
        seq: int = _seq_from(block.data, i * ROW_BYTES)[0]
        return seq & SEQ_MASK

    def _drop_front(self, at: int) -> None:
        """Remove the first row of a block, and trim the block if it has much free space in
        front."""
        block = self._blocks[at]
        block.lo += 1
        self.count -= 1
        if block.lo == block.hi:
            del self._blocks[at]
        elif block.lo >= TRIM_ROWS and block.lo > block.hi - block.lo:
            del block.data[: block.lo * ROW_BYTES]
            block.hi -= block.lo
            block.lo = 0

    def _index_in(self, at: int, seq: int) -> int:
        """Return the index of this seq's row in block `at`, or -1."""
        if at < 0:
            return -1
        block = self._blocks[at]
        i = self._place(block, seq)
        return i if i < block.hi and self._seq(block, i) == seq else -1

    def _block_of(self, seq: int) -> int:
        """Return the last block that begins at or before seq, or -1."""
        blocks = self._blocks
        if not blocks or seq < self._seq(blocks[0], blocks[0].lo):
            return -1
        if len(blocks) == 1:
            return 0
        return bisect_right(blocks, seq, key=lambda block: self._seq(block, block.lo)) - 1

    def _place(self, block: Block, seq: int) -> int:
        """Return the index of seq in the block, or where it would be."""
        first = self._seq(block, block.lo)
        if seq <= first:
            return block.lo
        guess = block.lo + seq - first
        if guess < block.hi and self._seq(block, guess) == seq:
            return guess
        lo, hi = block.lo, min(guess, block.hi)
        while lo < hi:
            mid = (lo + hi) >> 1
            if self._seq(block, mid) < seq:
                lo = mid + 1
            else:
                hi = mid
        return lo


BLOCK_SEQS: Final = 16  # read at first
SEQS_MAX: Final = 1 << 62


@mypyc_attr(acyclic=True)
class FarSegment:
    """The far messages of one segment. bits: bit rel & 7 of byte rel >> 3. transients: likewise,
    None for none. count: of them; bytes: of their bodies."""

    __slots__ = ("bits", "bytes", "count", "transients")

    def __init__(self, bits: bytearray) -> None:
        self.bits: bytearray = bits
        self.transients: bytearray | None = None
        self.count: int = 0
        self.bytes: int = 0


def _seqs_of(bits: bytearray, base: int, start: int, stop: int) -> list[int]:
    """Return the seqs from start to stop - 1 whose bits are set. base: the seq of the first bit."""
    rel, n = start - base, stop - start
    part = int.from_bytes(bits[rel >> 3 : (rel + n + 7) >> 3], "little") >> (rel & 7)
    part &= (1 << n) - 1
    if not part:
        return []
    if part == (1 << n) - 1:
        return list(range(start, stop))
    return [seq for seq in range(start, stop) if bits[(seq - base) >> 3] >> ((seq - base) & 7) & 1]


class PagedPending:
    """See the head of this module. start, base_s: as those of Rows. slots: of a segment.

    count: messages; far_count: those without rows; ram_bytes: rows and bits.
    """

    def __init__(self, start: int, base_s: int, slots: int) -> None:
        self.count: int = 0
        self.far_count: int = 0
        self.ram_bytes: int = 0
        self.near: Rows = Rows(start, base_s)
        self.window: Rows = Rows(start, base_s)
        self.sparse: int = 0  # rows of near, at most, that are not worth bits or have no slots
        self._slots: int = slots
        self._bitmap_bytes: int = (slots + 7) >> 3
        self._far: dict[int, FarSegment] = {}
        self._width: int = 0  # seqs of the last block that was read, and its number
        self._block: int = -2

    # ---- one message ---------------------------------------------------------------------------

    def insert(self, row: Row) -> None:
        """Add a message."""
        self.near.insert(row)
        self.count += 1
        self.ram_bytes += ROW_BYTES

    def has(self, seq: int) -> bool:
        """Return whether a message is here."""
        return self.is_far(seq) or self.find(seq) is not None

    def is_far(self, seq: int) -> bool:
        """Return whether a message is here without a row."""
        segment = self._far.get(seq // self._slots)
        if segment is None:
            return False
        rel = seq % self._slots
        return segment.bits[rel >> 3] >> (rel & 7) & 1 == 1

    def find(self, seq: int) -> Row | None:
        """Return the row of a message that is not far, or None."""
        row = self.near.find(seq) if self.near.count else None
        return self.window.find(seq) if row is None and self.window.count else row

    def remove(self, seq: int) -> Row | None:
        """Remove a message that is not far and return its row, or return None."""
        row = self.near.remove(seq) if self.near.count else None
        if row is None and self.window.count:
            row = self.window.remove(seq)
        if row is not None:
            self.count -= 1
            self.ram_bytes -= ROW_BYTES
        return row

    def remove_far(self, seq: int) -> int:
        """Remove a far message of unknown size. Return the bytes of bodies that are left over, if
        it was the last of its segment: those of all that were removed so."""
        self.count -= 1
        return self._clear(seq, 0)

    # ---- many ----------------------------------------------------------------------------------

    def seqs(self, most: int = SEQS_MAX) -> list[int]:
        """Return the first so many seqs, or a few more, ascending."""
        found: list[int] = []
        for number in self.segments():
            if len(found) >= most:
                break
            found += self.seqs_between(number * self._slots, (number + 1) * self._slots)
        return found

    def seqs_between(self, start: int, stop: int) -> list[int]:
        """Return the seqs from start to stop - 1, which are of one segment, ascending."""
        found = self.near.seqs_between(start, stop) if self.near.count else []
        if self.window.count:
            found += self.window.seqs_between(start, stop)
        if self._far:
            found += self.far_between(start, stop)
        found.sort()
        return found

    def segments(self) -> list[int]:
        """Return the numbers of the segments of all messages, ascending."""
        numbers = set(self._far)
        for rows in (self.near, self.window):
            numbers.update([seq // self._slots for seq in rows.seqs()])
        return sorted(numbers)

    def rows_between(self, start: int, stop: int) -> list[Row]:
        """Return the rows from start to stop - 1, ascending, of those that are not far."""
        found: list[Row] = []
        for rows in (self.near, self.window):
            for seq in rows.seqs_between(start, stop):
                row = rows.find(seq)
                assert row is not None
                found.append(row)
        found.sort(key=seq_of_row)
        return found

    def far_between(self, start: int, stop: int) -> list[int]:
        """Return the far seqs from start to stop - 1, which are of one segment, ascending."""
        number = start // self._slots
        segment = self._far.get(number)
        return [] if segment is None else _seqs_of(segment.bits, number * self._slots, start, stop)

    def transients_between(self, start: int, stop: int) -> list[int]:
        """Return the transient ones of `far_between`."""
        number = start // self._slots
        segment = self._far.get(number)
        if segment is None or segment.transients is None:
            return []
        return _seqs_of(segment.transients, number * self._slots, start, stop)

    def far_bytes(self, number: int) -> int:
        """Return the bytes of the bodies of the far messages of a segment."""
        segment = self._far.get(number)
        return 0 if segment is None else segment.bytes

    # ---- away and back -------------------------------------------------------------------------

    def take_surplus(self, keep: int) -> list[Row]:
        """Remove rows of near, the largest seqs first, until so many are left, and return them,
        ascending. Sparse ones and those without slots are not counted and stay. The caller calls
        `put_away`."""
        near, slots = self.near, self._slots
        taken: list[Row] = []
        stay: list[Row] = []
        while near.count > keep:
            number = near.last_seq() // slots
            some: list[Row] = []
            while near.count > keep and near.last_seq() >= number * slots:
                row = near.pop_last()
                (some if row.flags & ON_SLOT else stay).append(row)
            if number in self._far or len(some) * ROW_BYTES > self._bitmap_bytes:
                taken += some
            else:
                stay += some
        for row in stay:
            near.insert(row)
        self.sparse = len(stay)
        taken.reverse()
        return taken

    def put_away(self, rows: list[Row]) -> None:
        """Make messages far whose rows, which are on slots, `take_surplus` took."""
        slots = self._slots
        for row in rows:
            number = row.seq // slots
            segment = self._far.get(number)
            if segment is None:
                segment = FarSegment(bytearray(self._bitmap_bytes))
                self._far[number] = segment
                self.ram_bytes += self._bitmap_bytes
            rel = row.seq % slots
            segment.bits[rel >> 3] |= 1 << (rel & 7)
            if not row.flags & PERSISTENT:
                if segment.transients is None:
                    segment.transients = bytearray(self._bitmap_bytes)
                    self.ram_bytes += self._bitmap_bytes
                segment.transients[rel >> 3] |= 1 << (rel & 7)
            segment.count += 1
            segment.bytes += row.size
        self.far_count += len(rows)
        self.ram_bytes -= len(rows) * ROW_BYTES

    def close_window(self) -> None:
        """Make far what is left of the window."""
        if self.window.count:
            self.put_away(list(self.window.rows()))
            self.window.clear()

    def trim_window(self, wanted: set[int], most: int) -> None:
        """Make far the first rows of the window that are not wanted, if they are more than so
        many."""
        others = [row for row in self.window.rows() if row.seq not in wanted]
        away = others[: max(len(others) - most, 0)]
        for row in away:
            self.window.remove(row.seq)
        self.put_away(away)

    def block_of(self, seq: int, most: int) -> tuple[int, int]:
        """Return the block to read for a far seq: [start, stop), of its segment. most: seqs of a
        block."""
        width = self._width
        if width and abs(seq // width - self._block) <= 1:
            if width * 2 <= most:
                width *= 2
        else:
            width = BLOCK_SEQS
        if width > most:
            width = BLOCK_SEQS
        self._width, self._block = width, seq // width
        first = seq // self._slots * self._slots
        start = self._block * width
        return max(start, first), min(start + width, first + self._slots)

    def bring(self, rows: list[Row]) -> int:
        """Give far messages their rows, in the window. Return the same as `remove_far`."""
        left_over = 0
        for row in rows:
            left_over += self._clear(row.seq, row.size)
            self.window.insert(row)
        self.ram_bytes += len(rows) * ROW_BYTES
        return left_over

    def _clear(self, seq: int, size: int) -> int:
        number = seq // self._slots
        segment = self._far[number]
        rel = seq % self._slots
        segment.bits[rel >> 3] &= 0xFF ^ (1 << (rel & 7))
        if segment.transients is not None:
            segment.transients[rel >> 3] &= 0xFF ^ (1 << (rel & 7))
        segment.count -= 1
        segment.bytes -= size
        self.far_count -= 1
        if segment.count:
            return 0
        self.ram_bytes -= self._bitmap_bytes
        if segment.transients is not None:
            self.ram_bytes -= self._bitmap_bytes
        del self._far[number]
        return segment.bytes
