"""Holder: the seam between a queue's index and whoever has its messages in RAM; DictHolder, one.

The engine tells it what comes to life and what dies, and at a checkpoint asks for what is only in
RAM and log, to write it to slots. The VariableQueue answers with its alphas. `DictHolder` is the
plain answer, a dict of seq -> Entry, and what every queue has until it is given another: recovery
collects messages in it while it replays the log, tests and benchmarks use it.
"""

from abc import ABC, abstractmethod

from penstock.message import Entry
from penstock.native import mypyc_attr


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

    @abstractmethod
    def get(self, seq: int) -> Entry | None:
        """The entry, or None if it is not in RAM."""

    @abstractmethod
    def materialise(self, below: int) -> list[Entry]:
        """Every live persistent entry with seq < below that is not on its slot, ascending; the list
        is the caller's."""

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

    def materialise(self, below: int) -> list[Entry]:
        found = [e for e in self.entries.values() if not e.on_slot and e.seq < below]
        found.sort(key=lambda entry: entry.seq)
        return found

    def materialised(self, entries: list[Entry]) -> None:
        if not self._keeps:
            for entry in entries:
                self.entries.pop(entry.seq, None)
