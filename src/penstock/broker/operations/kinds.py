"""RowKind: what list_rows and describe_row (pages.py) ask of one kind of thing, such as queues.

A row is an object of RabbitMQ's HTTP API: its names, its types, and absent or null where RabbitMQ
has that; what only Penstock has is in `penstock`. Rows are made one by one, after filter, sort and
page have chosen them, and of each only what was asked for if that is cheaper. So a page of 50 of
100,000 queues costs 50 rows, and one number of each queue if it is sorted by one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from penstock.broker.rates import INTERVAL_S, Info, Key
from penstock.broker.vhost import VHost
from penstock.members import Columns, dug

STATS: Final = "message_stats"
RATE: Final = "_details.rate"


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


T = TypeVar("T")


def in_one(slices: Generator[None, None, T]) -> T:
    """Return what the generator returns, without pauses."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: T = end.value
            return found


class RowKind(ABC):
    """One kind of thing of a vhost. A thing may be anything that stands for it, such as its name;
    it may be gone when its row is made."""

    called: str  # one of them, for errors
    rates: str = ""  # the kind of their rates, "" if they have none
    order: str = ""  # the column by which `all` is sorted
    # What `of` may have, which chooses among the things: the things of a queue, a connection ...
    selectors: Sequence[str] = ()

    @abstractmethod
    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[Any]:
        """Return the things, in the order in which a list has them. Nobody changes the sequence."""

    def gathered(self, vhost: VHost, of: Mapping[str, str]) -> Generator[None, None, Sequence[Any]]:
        """Return what `all` returns, in slices: a turn of the vhost may end at each yield."""
        yield from ()
        return self.all(vhost, of)

    def name(self, thing: Any) -> str:
        """Return the name that a filter compares."""
        return str(thing)

    def names(self, things: Sequence[Any]) -> Sequence[str]:
        """Return the name of each."""
        return [self.name(thing) for thing in things]

    def owner(self, thing: Any) -> str | None:
        """Return the user to whom it belongs; None: whoever may open the vhost sees it."""
        return None

    def numbers(
        self, vhost: VHost, column: str
    ) -> Generator[None, None, Mapping[str, float] | None]:
        """Return the numbers of a column by things, without those that are 0; None if they are not
        kept, and `key` is to be called."""
        yield from ()
        return None

    def key(self, vhost: VHost, column: str) -> Callable[[Any], object]:
        """Return a function that returns the value of this column of a thing, for sorting. Make it
        cheap for columns of numbers, as rates are: it is called for every thing."""
        if self.rates and column.endswith(RATE):
            rate = column.removeprefix(f"{STATS}.").removesuffix(RATE)
            return lambda thing: vhost.rates.of((self.rates, self.name(thing))).get(rate, 0.0)
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

    def details(
        self, vhost: VHost, thing: Any, asked: RowAsked
    ) -> Generator[None, None, Info | None]:
        """Return the row of the only one that is asked for, with what is too long for a list, in
        slices."""
        yield from ()
        return self.row(vhost, thing, asked)
