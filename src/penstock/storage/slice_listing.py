"""Listing and Writing: the slice of one queue in a checkpoint, while it is being made.

First everything is listed that may have to be written, piece by piece (holder.py says why, and what
may happen between two pieces); then it is written, chunk by chunk.

Not here: when, and what becomes of a small queue (checkpointer.py).
"""

from penstock.message import Entry, seq_of
from penstock.storage.holder import unwritten
from penstock.storage.index_segment import Section
from penstock.storage.queue_index import QueueIndex


class Listing:
    """A queue whose slice has begun: its section, and what may have to be written of it, as the
    pieces of its holder come.

    pieces: of those in line, each descending, and all. owed: by seq, what is owed beside those: see
    holder.py.
    """

    __slots__ = ("below", "is_small", "owed", "pieces", "queue", "section")

    def __init__(self, queue: QueueIndex, section: Section, is_small: bool) -> None:
        self.queue: QueueIndex = queue
        self.section: Section = section
        self.is_small: bool = is_small
        self.below: int = queue.cut_seq
        self.pieces: list[list[Entry]] = []
        self.owed: dict[int, Entry] = {}

    def add(self, piece: list[Entry]) -> None:
        """The next piece. Of a small queue only what counts is kept: there may be transient ones in
        any number."""
        if piece:
            self.below = piece[-1].seq
        some = unwritten(piece, self.queue.cut_seq) if self.is_small else piece
        if some:
            self.pieces.append(some)

    def add_unsettled(self) -> None:
        """Those that are delivered at this moment."""
        for entry in unwritten(self.queue.holder.unsettled(), self.queue.cut_seq):
            self.owed[entry.seq] = entry

    def in_order(self) -> list[list[Entry]]:
        """All of it, descending, each once; and those that were in the section of the checkpoint
        before, with their bodies. Only pieces that reach down to the last of these are touched: as
        a rule the oldest one alone."""
        owed, rows, pieces = self.owed, self.section.rows, self.pieces
        last = max(max(owed, default=-1), max(rows, default=-1))
        some = {seq: Entry(seq, row.message) for seq, row in rows.items()}
        while pieces and pieces[-1][-1].seq <= last:
            some.update([(entry.seq, entry) for entry in pieces.pop() if not entry.on_slot])
        some.update(owed)
        for seq, row in rows.items():
            message = some[seq].message
            if message.body is None:
                message.body = row.message.body
        if some:
            pieces.append(sorted(some.values(), key=seq_of, reverse=True))
        return pieces


class Writing:
    """A queue whose entries are being written to slots, and those that are left, in pieces, the
    next one last. They are looked at and let go of chunk by chunk, because they may be many, and
    the queue may long be done with them."""

    __slots__ = ("pieces", "queue")

    def __init__(self, queue: QueueIndex, pieces: list[list[Entry]]) -> None:
        self.queue: QueueIndex = queue
        self.pieces: list[list[Entry]] = pieces
