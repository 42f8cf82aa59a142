"""Members of rows: which are shown, and by which rows of a list are sorted.

A row is an object as JSON has them. A member is named with dots: "message_stats.publish" is the
member `publish` of the object `message_stats`, or of each object of a list. The vhosts, HTTP and
the commands sort and cut by the same rules, so that lists of several vhosts can be merged.
"""

import json
from collections.abc import Collection, Mapping, Set
from typing import Any

Row = dict[str, object]


class Columns:
    """The columns that are asked for, by names with dots: a dot goes into an object, or into each
    one of a list. No names: all columns."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._wanted: dict[str, Any] = {}  # name -> what is wanted in it, {}: all of it
        for name in sorted(names):  # the whole of an object comes before parts of it
            at = self._wanted
            *outer, last = name.split(".")
            for part in outer:
                if at.get(part) == {}:
                    break
                at = at.setdefault(part, {})
            else:
                at[last] = {}
        self.are_all: bool = not self._wanted
        self.names: frozenset[str] = frozenset(self._wanted)  # without what is after a dot

    def has(self, name: str) -> bool:
        """Return whether anything of the column is asked for."""
        return self.are_all or name in self._wanted

    def has_any(self, names: Set[str]) -> bool:
        """Return whether anything of these columns is asked for."""
        return self.are_all or not self.names.isdisjoint(names)

    def cut(self, row: Row) -> Row:
        """Return what is asked for of a row; what it does not have is left out."""
        return row if self.are_all else _cut(row, self._wanted)


def _cut(row: Row, wanted: Mapping[str, Any]) -> Row:
    found: Row = {}
    for name, inner in wanted.items():
        if name not in row:
            continue
        value = row[name]
        if not inner:
            found[name] = value
        elif isinstance(value, dict):
            found[name] = _cut(value, inner)
        elif isinstance(value, list):
            found[name] = [_cut(one, inner) for one in value if isinstance(one, dict)]
    return found


def dug(row: object, name: str) -> object:
    """Return the member of this name with dots, None if the row does not have it."""
    for part in name.split("."):
        row = row.get(part) if isinstance(row, Mapping) else None
    return row


def sort_key(value: object) -> tuple[int, Any]:
    """Return a key by which values of any type can be sorted: nothing, numbers, texts, others."""
    if isinstance(value, int | float):
        return 1, value
    if isinstance(value, str):
        return 2, value
    if value is None:
        return 0, 0
    return 3, json.dumps(value, sort_keys=True, default=str)
