"""RowKind: what list_rows and describe_row (pages.py) ask of one kind of thing, such as queues.

A row is an object of RabbitMQ's HTTP API: its names, its types, and absent or null where RabbitMQ
has that; what only Penstock has is in `penstock`. Rows are made one by one, after filter, sort and
page have chosen them, and of each only what was asked for if that is cheaper. So a page of 50 of
100,000 queues costs 50 rows, and one number of each queue if it is sorted by one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from penstock.broker.rates import INTERVAL_S, Info, Key
from penstock.broker.vhost import VHost


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

    def cut(self, row: Info) -> Info:
        """Return what is asked for of a row; what it does not have is left out."""
        return row if self.are_all else _cut(row, self._wanted)


def _cut(row: Info, wanted: Mapping[str, Any]) -> Info:
    found: Info = {}
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


def dug(row: Info, name: str) -> object:
    """Return the value of a name with dots, None if the row does not have it."""
    value: object = row
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


@dataclass(frozen=True, slots=True)
class RowAsked:
    """What is asked for of each row. has_stats: counters, rates and lengths, not only what a thing
    was declared as. has_totals: lengths of queues nevertheless. samples: of which series, by
    RabbitMQ's names, such as {"lengths_age": 60, "lengths_incr": 5}, in seconds."""

    columns: Columns
    has_stats: bool = True
    has_totals: bool = False
    samples: Mapping[str, int] = field(default_factory=dict)

    def with_rates(self, vhost: VHost, key: Key, values: Mapping[str, int], series: str) -> Info:
        """Return values with their rates beside them, and the samples that are asked for. series:
        lengths, msg_rates or data_rates."""
        age_s = self.samples.get(f"{series}_age")
        step_s = self.samples.get(f"{series}_incr", round(INTERVAL_S))
        rates = vhost.rates
        samples = {} if age_s is None else rates.samples_of(key, values, age_s, step_s)
        return rates.with_rates(key, values, samples)


class RowKind(ABC):
    """One kind of thing of a vhost. A thing may be anything that stands for it, such as its name;
    it may be gone when its row is made."""

    called: str  # one of them, for errors
    # What `of` may have, which chooses among the things: the things of a queue, a connection ...
    selectors: Sequence[str] = ()

    @abstractmethod
    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[Any]:
        """Return the things, in the order in which a list has them. Nobody changes the sequence."""

    def name(self, thing: Any) -> str:
        """Return the name that a filter compares."""
        return str(thing)

    def owner(self, thing: Any) -> str | None:
        """Return the user to whom it belongs; None: whoever may open the vhost sees it."""
        return None

    def key(self, vhost: VHost, column: str) -> Callable[[Any], object]:
        """Return a function that returns the value of this column of a thing, for sorting. Make it
        cheap for columns of numbers: it is called for every thing."""
        asked = RowAsked(Columns([column]))

        def value(thing: Any) -> object:
            row = self.row(vhost, thing, asked)
            return None if row is None else dug(row, column)

        return value

    @abstractmethod
    def row(self, vhost: VHost, thing: Any, asked: RowAsked) -> Info | None:
        """Return its row; None if it is gone. There may be columns that were not asked for."""

    def find(self, vhost: VHost, name: str, of: Mapping[str, str]) -> Any:
        """Return the thing of this name; None if there is none."""
        return next((one for one in self.all(vhost, of) if self.name(one) == name), None)

    def details(self, vhost: VHost, thing: Any, asked: RowAsked) -> Info | None:
        """Return the row of the only one that is asked for, with what is too long for a list."""
        return self.row(vhost, thing, asked)
