"""What a QueueIndex is made of: its segments, and what a checkpoint in progress keeps of them.

An `IndexSegment` has a bitmap only if it is partly dead: while its persistent entries are all of
[lo, hi), two numbers say so, and a queue that is consumed in order never needs more. A backlog of
ten million messages is 2,442 such objects.

`Section` is what a manifest says of one queue, with a `Row` for each entry of a small queue;
`Limbo` is an entry that left RAM while a checkpoint still owes the queue its slice; `Ticks` is what
all parts of one engine share about checkpoints. Not here: how they change (queue_index.py).
"""

from penstock.message import Entry, Message
from penstock.storage.queue_segment import Handles, SegmentFiles


class Ticks:
    """What all parts of one engine share about checkpoints: the epoch of the last cut, and dead
    segment files that wait for the next one; and what the vhost is called, for people."""

    def __init__(self) -> None:
        self.vhost_name: bytes = b""
        self.epoch: int = 0
        self.dead: list[tuple[int, int]] = []  # (queue, segment)
        self.dirty: dict[str, SegmentFiles] = {}  # written since their last sync began
        self.dirty_names: list[str] = []  # paths of .queue_name files
        self.dirty_directories: dict[str, None] = {}
        self.handles: Handles = Handles()


class Row:
    """An entry in a checkpoint's section of a small queue: the message without its body, and the
    store file that has the body on behalf of the section (0: none, or the message's own)."""

    __slots__ = ("body_file", "message")

    def __init__(self, message: Message, body_file: int) -> None:
        self.message: Message = message
        self.body_file: int = body_file


class Limbo:
    """An entry that left RAM after the cut, at `lsn`, and whether a purge took it: only a durable
    dequeue lets a checkpoint leave an entry out [4]."""

    __slots__ = ("entry", "is_purged", "lsn")

    def __init__(self, lsn: int, entry: Entry, is_purged: bool) -> None:
        self.lsn: int = lsn
        self.entry: Entry = entry
        self.is_purged: bool = is_purged


class IndexSegment:
    """Liveness of the persistent entries of one segment. lo, hi: seqs; bitmap: bit rel of byte
    rel >> 3, or None while exactly [lo, hi) is alive. stores: entries placed in the store."""

    __slots__ = ("bitmap", "bytes", "count", "epoch", "expiry_ms", "hi", "lo", "number", "stores")

    def __init__(self, number: int, lo: int, hi: int, epoch: int) -> None:
        self.number: int = number
        self.lo: int = lo
        self.hi: int = hi
        self.epoch: int = epoch
        self.count: int = 0
        self.bytes: int = 0
        self.stores: int = 0
        self.expiry_ms: int = 0
        self.bitmap: bytearray | None = None

    def copy(self, epoch: int) -> "IndexSegment":
        other = IndexSegment(self.number, self.lo, self.hi, epoch)
        other.count = self.count
        other.bytes = self.bytes
        other.stores = self.stores
        other.expiry_ms = self.expiry_ms
        if self.bitmap is not None:
            other.bitmap = bytearray(self.bitmap)
        return other

    def has(self, seq: int, slots: int) -> bool:
        if not self.lo <= seq < self.hi:
            return False
        if self.bitmap is None:
            return True
        rel = seq % slots
        return self.bitmap[rel >> 3] >> (rel & 7) & 1 == 1

    def seqs(self, slots: int) -> list[int]:
        """All live seqs, ascending."""
        if not self.count:
            return []
        if self.bitmap is None:
            return list(range(self.lo, self.hi))
        return [seq for seq in range(self.lo, self.hi) if self.has(seq, slots)]

    def make_bitmap(self, slots: int) -> bytearray:
        bits = bytearray((slots + 7) >> 3)
        if self.count:
            for seq in range(self.lo, self.hi):
                rel = seq % slots
                bits[rel >> 3] |= 1 << (rel & 7)
        self.bitmap = bits
        return bits


class Section:
    """What the manifest says of one queue, as of the cut."""

    __slots__ = ("attempts", "bytes", "count", "mark", "next_seq", "rows", "segments")

    def __init__(
        self,
        next_seq: int,
        mark: int,
        count: int,
        body_bytes: int,
        segments: dict[int, IndexSegment],
        rows: dict[int, Row],
        attempts: dict[int, int],
    ) -> None:
        self.next_seq: int = next_seq
        self.mark: int = mark
        self.count: int = count
        self.bytes: int = body_bytes
        self.segments: dict[int, IndexSegment] = segments
        self.rows: dict[int, Row] = rows
        self.attempts: dict[int, int] = attempts
