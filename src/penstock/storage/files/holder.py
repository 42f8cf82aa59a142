"""Holder: what has the messages of a queue that are in RAM, as seen by the queue's index.

The index reports new and removed messages to the holder. A checkpoint asks the holder for what is
only in RAM and log, to write it to slots. The VariableQueue has a holder for its alphas. DictHolder
is a dict of seq -> Entry, which every queue has until it gets another one: recovery collects
messages in it while it replays the log.

A queue may have a million such entries, and to list them all takes longer than the owner's thread
may be busy. So a holder lists those that stand in line in pieces, from the newest on
(`candidates`), and a checkpoint decides about each when it writes it (`unwritten`). Anything may
happen between two pieces. A message that is delivered stays in RAM and comes back to its place in
line, so `unsettled`, called before the first piece and after the last, returns those that the
pieces may have missed. A message that leaves RAM is in the queue's `departed`. `materialise` does
all of it in one call.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from penstock.message import Entry, seq_of
from penstock.native import mypyc_attr

ALL: Final = 1 << 60


def unwritten(entries: Iterable[Entry], below: int) -> list[Entry]:
    """Return those that need a slot: persistent, with a seq < below, and on none yet."""
    return [e for e in entries if not e.on_slot and e.seq < below and e.message.persistent]


@mypyc_attr(allow_interpreted_subclasses=True)
class Holder(ABC):
    """The messages of one queue that are in RAM."""

    @abstractmethod
    def add(self, entry: Entry) -> None:
        """Add a new entry, persistent or transient, with the highest seq so far and on no slot."""

    @abstractmethod
    def drop(self, first: int, n: int) -> None:
        """Remove the persistent entries with seqs first to first + n - 1, as far as they are in
        RAM."""

    def wants_drops(self) -> bool:
        """Return whether `drop` does anything."""
        return True

    @abstractmethod
    def get(self, seq: int) -> Entry | None:
        """Return the entry, None if it is not in RAM."""

    @abstractmethod
    def candidates(self, below: int, n: int) -> list[Entry]:
        """Return the next n entries in line with seq < below, descending, or fewer if that is all,
        in a new list. Every live persistent one that is not on its slot is among them, and perhaps
        others."""

    @abstractmethod
    def unsettled(self) -> list[Entry]:
        """As `candidates`, in any order: entries that are not in line because they are delivered
        and not settled."""

    def materialise(self, below: int) -> list[Entry]:
        """Return every live persistent entry in RAM with seq < below that is not on its slot,
        ascending, in a new list."""
        found = unwritten(self.unsettled(), below)
        found += unwritten(self.candidates(below, ALL), below)
        found.sort(key=seq_of)
        return found

    @abstractmethod
    def materialised(self, entries: list[Entry]) -> None:
        """Note that these are on their slots now (on_slot is set): their bodies may leave RAM."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DictHolder(Holder):
    """A dict of seq -> Entry of persistent messages; transient ones are ignored. keeps: entries
    stay in RAM when they are on their slots."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.entries: dict[int, Entry] = {}
        self._keeps = keeps

    def add(self, entry: Entry) -> None:
        if entry.message.persistent:
            self.entries[entry.seq] = entry

    def drop(self, first: int, n: int) -> None:
        for seq in range(first, first + n):
            self.entries.pop(seq, None)

    def get(self, seq: int) -> Entry | None:
        return self.entries.get(seq)

    def pop(self, seq: int) -> Entry | None:
        """Remove and return the entry, None if it is not in RAM."""
        return self.entries.pop(seq, None)

    def candidates(self, below: int, n: int) -> list[Entry]:
        """Return all at once: a dict has no order."""
        found = unwritten(self.entries.values(), below)
        found.sort(key=seq_of, reverse=True)
        return found

    def unsettled(self) -> list[Entry]:
        """Return nothing: no message is delivered from a dict."""
        return []

    def materialised(self, entries: list[Entry]) -> None:
        if not self._keeps:
            for entry in entries:
                self.entries.pop(entry.seq, None)
