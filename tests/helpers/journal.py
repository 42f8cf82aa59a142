"""Every operation of a ``FaultyFileSystem``, so that all its crash points are had from one run.

The changes are kept with their numbers and replayed on a copy of the disk as it was at the
beginning; chance (which sectors a failed sync let through) was drawn when they were entered,
so the replay is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.helpers.simulated_disk import Change

if TYPE_CHECKING:
    from tests.helpers.faulty_filesystem import FaultyFileSystem


class Entry:
    """One operation in a journal. ``drop_cache`` is entered too, with the number before it."""

    __slots__ = ("change", "kind", "number", "path")

    def __init__(self, number: int, kind: str, path: str, change: Change) -> None:
        self.number = number
        self.kind = kind
        self.path = path
        self.change = change

    def __repr__(self) -> str:
        return f"{self.number}: {self.kind} {self.path}"


class Journal:
    """All operations since it was begun, and notes of what its user knew when.

    Numbers are those of the file system: operation ``first`` + 1 is the first one entered.
    """

    def __init__(self, fs: FaultyFileSystem) -> None:
        self.entries: list[Entry] = []
        self.notes: list[tuple[int, object]] = []
        self.first = fs.operations
        self._fs = fs
        self._start = fs.disk.copy()

    @property
    def last(self) -> int:
        """Number of the last operation entered."""
        return self.entries[-1].number if self.entries else self.first

    def note(self, value: object) -> None:
        """Remember that ``value`` (a confirm, say) was known after the operations so far."""
        self.notes.append((self._fs.operations, value))

    def noted(self, number: int) -> list[object]:
        """What was known when operation ``number`` was done and the next one was not."""
        return [value for at, value in self.notes if at <= number]

    def images(
        self, first: int | None = None, last: int | None = None
    ) -> Iterator[tuple[int, FaultyFileSystem]]:
        """(k, the file system after operation k) for each k from first to last, both included.

        By default from the journal's beginning (before its first operation) to its end. Each
        is a fork of its own, in flight: nothing in it has crashed yet. It may be kept.
        """
        low = self.first if first is None else first
        high = self.last if last is None else last
        disk = self._start.copy()
        reached = self.first
        for entry in self.entries:
            if entry.number > reached and low <= reached <= high:
                yield reached, self._fs.with_disk(disk.copy())
            if entry.number > high:
                return
            if entry.kind == "drop_cache":
                disk.drop_cache(*entry.change[1:])
            else:
                disk.apply(entry.change)
            reached = entry.number
        if low <= reached <= high:
            yield reached, self._fs.with_disk(disk)

    def image(self, number: int) -> FaultyFileSystem:
        """The file system after operation ``number``."""
        for _, fs in self.images(number, number):
            return fs
        raise ValueError(f"no operation {number}: the journal has {self.first} to {self.last}")
