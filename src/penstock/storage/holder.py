"""Holder: the seam between a queue's index and whoever has its messages in RAM; DictHolder, one.

The engine tells it what comes to life and what dies, and at a checkpoint asks for what is only in
RAM and log, to write it to slots. The VariableQueue answers with its alphas. `DictHolder` is the
plain answer, a dict of seq -> Entry, and what every queue has until it is given another: recovery
collects messages in it while it replays the log, tests and benchmarks use it.

There may be a million of such entries, and to list them all takes longer than the owner's thread
may be away. So a Holder lists those that stand in line piece by piece (`candidates`), from the
newest on, and a checkpoint looks at each when it comes to write it (`unwritten`). Between two
pieces anything may happen to them: what is delivered stays in RAM, and comes back to its place in
line, so `unsettled`, asked before the first piece and after the last, has what the pieces may have
missed; what leaves RAM is in the queue's limbo. Whoever is in no hurry has it all at once
(`materialise`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from penstock.message import Entry, seq_of
from penstock.native import mypyc_attr

ALL: Final = 1 << 60


def unwritten(entries: Iterable[Entry], below: int) -> list[Entry]:
    """Those that need a slot: persistent, with a seq < below, and on none yet."""
    return [e for e in entries if not e.on_slot and e.seq < below and e.message.persistent]


@mypyc_attr(allow_interpreted_subclasses=True)
class Holder(ABC):
    """Has the messages of one queue that are in RAM."""

    @abstractmethod
    def add(self, entry: Entry) -> None:
        """The entry, persistent or transient, has come to life, with the highest seq so far; it is
        on no slot yet."""

    @abstractmethod
    def drop(self, first: int, n: int) -> None:
        """Seqs first to first + n - 1, persistent, are dead; some may not be in RAM."""

    def wants_drops(self) -> bool:
        """Whether `drop` does anything."""
        return True

    @abstractmethod
    def get(self, seq: int) -> Entry | None:
        """The entry, or None if it is not in RAM."""

    @abstractmethod
    def candidates(self, below: int, n: int) -> list[Entry]:
        """The next n with seq < below of those in line, descending; less if there are no more.
        Every live persistent one that is not on its slot is among them, and maybe others. The list
        is the caller's."""

    @abstractmethod
    def unsettled(self) -> list[Entry]:
        """As candidates, in any order: those in RAM that are not in line, for they are delivered
        and not settled."""

    def materialise(self, below: int) -> list[Entry]:
        """Every live persistent entry in RAM with seq < below that is not on its slot, ascending;
        the list is the caller's."""
        found = unwritten(self.unsettled(), below)
        found += unwritten(self.candidates(below, ALL), below)
        found.sort(key=seq_of)
        return found

    @abstractmethod
    def materialised(self, entries: list[Entry]) -> None:
        """These are on their slots now (on_slot is set): their bodies may leave RAM."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DictHolder(Holder):
    """seq -> Entry, of persistent messages; transient ones it lets go. `keeps`: whether entries
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
        """Take the entry out, None if it is not in RAM."""
        return self.entries.pop(seq, None)

    def candidates(self, below: int, n: int) -> list[Entry]:
        """All at once, however many: what is in a dict has no order."""
        found = unwritten(self.entries.values(), below)
        found.sort(key=seq_of, reverse=True)
        return found

    def unsettled(self) -> list[Entry]:
        """None: nobody delivers from a dict."""
        return []

    def materialised(self, entries: list[Entry]) -> None:
        if not self._keeps:
            for entry in entries:
                self.entries.pop(entry.seq, None)
