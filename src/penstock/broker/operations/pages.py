"""list_rows, describe_row and names: every list that HTTP shows of a vhost, cut and sorted here. So
are the commands' lists (list_queues ...): of the same things, with rows of listings.py.

One way for all kinds of things (kinds.py). What is asked for is chosen in this order, each step in
slices between turns, and only then are rows made and written as JSON, one by one:

    all things       the kind's, of the selector `of`, and of one user
    filter           a part of the name, in any case, or a regular expression (RE2's language)
    sort             by one column: a number or a text of each thing, not its row. Runs of
                     SORT_SLICE are sorted in one step each, and merged as far as rows are wanted
    page             page_size of them
    rows, columns    only these rows, and of each only the columns that were asked for

Without a page the answer is the list; with one it is RabbitMQ's object with counts beside `items`.
"""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, filterfalse, islice
from typing import Any, Final

from penstock.access.permissions import name_filter
from penstock.broker.dispatch import LOOK_STEPS
from penstock.broker.operations.call import (
    ROW_STEPS,
    Call,
    Functions,
    Slices,
    add_rows,
    first_names,
    in_budget,
    listed,
)
from penstock.broker.operations.connections import (
    ChannelRows,
    ClosedConnectionRows,
    ConnectionRows,
    ConsumerRows,
)
from penstock.broker.operations.kinds import STATS, RowAsked, RowKind
from penstock.broker.operations.listings import (
    END_KINDS,
    binding_info,
    channel_info,
    consumer_info,
    declared_binding,
    declared_exchange,
    exchange_info,
    object_totals,
)
from penstock.broker.operations.queue_rows import PublisherRows, Queues, UnackedRows, list_row
from penstock.broker.policies import EXCHANGE as EXCHANGE_KIND
from penstock.broker.rates import VHOST as TOTALS
from penstock.broker.rates import WATCHED_MAX, Info
from penstock.broker.refusals import called, not_found
from penstock.broker.topology import EXCHANGE, QUEUE, binding_called
from penstock.broker.vhost import EXCHANGES, VHost
from penstock.members import Columns, sort_key
from penstock.operation_json import JsonParts
from penstock.operation_table import PAGE_SIZE, WATCHERS
from penstock.routing.exchange_types import Binding

# ---- exchanges and bindings ----------------------------------------------------------------------


SYSTEM_USER: Final = "rmq-internal"  # who declares what every vhost has, in RabbitMQ
UNKNOWN_USER: Final = "unknown"
BINDING_COLUMNS: Final[Mapping[str, Callable[[Binding], object]]] = {
    "source": lambda binding: binding.source,
    "destination": lambda binding: binding.destination,
    "destination_type": lambda binding: END_KINDS[binding.kind],
    "routing_key": lambda binding: binding.key,
}


class ExchangeRows(RowKind):
    """The exchanges; the default one is "". A thing is its name. RabbitMQ counts what is published
    to an exchange by name, also if another exchange passes it on; so does this."""

    called = "exchange"
    rates = EXCHANGES

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[str]:
        return sorted(vhost.exchanges)

    def find(self, vhost: VHost, name: str, of: Mapping[str, str]) -> str | None:
        return name if name in vhost.exchanges else None

    def row(self, vhost: VHost, thing: str, asked: RowAsked) -> Info | None:
        exchange = vhost.exchanges.get(thing)
        if exchange is None:
            return None
        unknown = SYSTEM_USER if exchange.is_system else UNKNOWN_USER
        row: Info = {
            **declared_exchange(exchange),
            "vhost": vhost.name,
            "user_who_performed_action": exchange.creator or unknown,
        }
        policies = vhost.policies.of(thing, EXCHANGE_KIND).names()
        row |= {name: value for name, value in policies.items() if value}
        counts = exchange.counts
        if asked.has_stats and counts.publish_in:
            key = (EXCHANGES, thing)
            row[STATS] = asked.with_rates(vhost, key, counts.stats(), "msg_rates")
            row["penstock"] = {"unroutable": counts.unroutable}
        return row

    def details(
        self, vhost: VHost, thing: str, asked: RowAsked
    ) -> Generator[None, None, Info | None]:
        yield from ()
        row = self.row(vhost, thing, asked)
        return None if row is None else row | {"incoming": [], "outgoing": []}


class BindingRows(RowKind):
    """The bindings: first those of the default exchange, one for each queue, which are things by
    their queue's name. of: {"exchange": from this one, "queue": to this one, "destination": to this
    exchange}. ChannelError 404: there is no such queue or exchange."""

    called = "binding"
    selectors = ("exchange", "queue", "destination")

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[Binding | str]:
        source, queue, exchange = (of.get(name) for name in self.selectors)
        router, table = vhost.router, vhost.table
        if queue is not None and not table.has(queue):
            raise not_found(table.called(queue))
        for name in (source, exchange):
            if name is not None and name not in vhost.exchanges:
                raise not_found(vhost.topology.called(name))
        found: list[Binding | str] = []
        if queue is not None:
            found.append(queue)
            found += router.bindings_to(QUEUE, queue)
        elif exchange is not None:
            found += router.bindings_to(EXCHANGE, exchange)
        elif source is not None:
            found += router.bindings_of(source) if source else table.names()
        else:
            found += table.names()
            found += router.bindings()
        if source is not None and (queue is not None or exchange is not None):
            return [one for one in found if _source_of(one) == source]
        return found

    def name(self, thing: Binding | str) -> str:
        return named_binding(thing).properties_key

    def find(self, vhost: VHost, name: str, of: Mapping[str, str]) -> Binding | None:
        return binding_called([named_binding(thing) for thing in self.all(vhost, of)], name)

    def key(self, vhost: VHost, column: str) -> Callable[[Binding | str], object]:
        of_binding = BINDING_COLUMNS.get(column)
        if of_binding is None:
            return super().key(vhost, column)
        return lambda thing: of_binding(named_binding(thing))

    def row(self, vhost: VHost, thing: Binding | str, asked: RowAsked) -> Info:
        binding = named_binding(thing)
        own = {"vhost": vhost.name, "properties_key": binding.properties_key}
        return declared_binding(binding) | own


def _source_of(thing: Binding | str) -> str:
    return "" if isinstance(thing, str) else thing.source


def named_binding(thing: Binding | str) -> Binding:
    """Return the binding; that of the default exchange to the queue of this name."""
    return Binding("", QUEUE, thing, thing, {}) if isinstance(thing, str) else thing


# ---- all kinds -----------------------------------------------------------------------------------

KINDS: Final[Mapping[str, RowKind]] = {
    "queues": Queues(),
    "unacked": UnackedRows(),
    "publishers": PublisherRows(),
    "exchanges": ExchangeRows(),
    "bindings": BindingRows(),
    "connections": ConnectionRows(),
    "closed_connections": ClosedConnectionRows(),
    "channels": ChannelRows(),
    "consumers": ConsumerRows(),
}

FILTER_SLICE: Final = 256
FILTERS_MAX: Final = 4  # of which it is known which names they take
VERDICTS_MAX: Final = 50_000  # names of each
SORT_SLICE: Final = 2048
SORT_STEPS: Final = SORT_SLICE  # to sort one run

Key = tuple[int, Any, int]  # of one thing: the rank of its type, the value, its place in the list
Chosen = Generator[None, None, Sequence[Any]]


# ---- what is asked for ---------------------------------------------------------------------------


def _kind(call: Call) -> RowKind:
    name = call.args.text("kind")
    if name not in KINDS:
        raise call.args.wrong("kind", f"given {name!r}, expected one of {', '.join(KINDS)}")
    return KINDS[name]


def _of(call: Call, kind: RowKind) -> dict[str, str]:
    given = call.args.table("of")
    for name, value in given.items():
        if name not in kind.selectors or not isinstance(value, str):
            expected = "texts by " + (", ".join(kind.selectors) or "no name: this kind has none")
            raise call.args.wrong("of", f"given {name!r}: {value!r}, expected {expected}")
    return {name: str(value) for name, value in given.items()}


def _asked(call: Call) -> RowAsked:
    return RowAsked(
        Columns(call.args.texts("columns")),
        has_stats=call.args.flag("rates"),
        has_totals=call.args.flag("totals"),
        samples=_samples(call),
    )


def _samples(call: Call) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in call.args.table("samples").items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise call.args.wrong("samples", f"given {name!r}: {value!r}, expected seconds")
        found[name] = value
    return found


def _only_user(call: Call) -> str | None:
    """Return whose things the caller may see; None: everybody's."""
    if call.is_operator or call.identity.tags.intersection(WATCHERS):
        return None
    return call.identity.name


# ---- which things, in which order ----------------------------------------------------------------


def _filtered(
    call: Call, kind: RowKind, things: Sequence[Any], names: str, *, is_regex: bool
) -> Chosen:
    """Return the things with such a name."""
    try:
        verdicts = _verdicts(names, is_regex=is_regex)
    except ValueError as error:
        text = f"given {names!r}, expected a regular expression of RE2: {error}"
        raise call.args.wrong("name", text) from error
    if verdicts.things is things:
        return verdicts.found
    found: list[Any] = []
    for at in range(0, len(things), FILTER_SLICE):
        if len(verdicts) > VERDICTS_MAX:
            verdicts.clear()
        known = len(verdicts)
        some = things[at : at + FILTER_SLICE]
        found += [
            one for one, name in zip(some, kind.names(some), strict=True) if verdicts[name]
        ]  # fmt: skip
        call.vhost.budget.left -= FILTER_SLICE // 8 + len(verdicts) - known
        yield
    verdicts.things, verdicts.found = things, found
    return found


class _Verdicts(dict[str, bool]):
    """Whether a filter takes a name, once that was asked. found: of the last things."""

    def __init__(self, is_in: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_in = is_in
        self.things: Sequence[Any] | None = None
        self.found: list[Any] = []

    def __missing__(self, name: str) -> bool:
        found = self[name] = self._is_in(name)
        return found


@lru_cache(FILTERS_MAX)
def _verdicts(names: str, *, is_regex: bool) -> _Verdicts:
    """Return what is known of a filter: who looks at a page asks for it again and again, and RE2
    takes 2 us for a name. ValueError: as name_filter."""
    return _Verdicts(name_filter(names, is_regex=is_regex))


def _owned(call: Call, kind: RowKind, things: Sequence[Any], users: Sequence[str]) -> Chosen:
    """Return the things that are everybody's or of all these users."""
    found: list[Any] = []
    for at in range(0, len(things), FILTER_SLICE):
        for one in things[at : at + FILTER_SLICE]:
            owner = kind.owner(one)
            if owner is None or all(owner == user for user in users):
                found.append(one)
        call.vhost.budget.left -= FILTER_SLICE // 4
        yield
    return found


def _sorted(
    call: Call, kind: RowKind, things: Sequence[Any], column: str, wanted: int
) -> Generator[None, None, Iterable[Any]]:
    """Return the things in the order of a column, or reversed; what has no value is lowest. wanted:
    so many of them are enough."""
    vhost = call.vhost
    is_reversed = call.args.flag("reverse")
    if column == kind.order:
        return reversed(things) if is_reversed else things
    numbers = yield from in_budget(call.vhost.budget, kind.numbers(vhost, column), LOOK_STEPS)
    if numbers is not None:
        return (yield from _by_numbers(call, things, numbers, wanted, is_reversed=is_reversed))
    key = kind.key(vhost, column)
    runs: list[list[Key]] = []
    run: list[Key] = []
    for n, thing in enumerate(things):
        run.append((*sort_key(key(thing)), n))
        if len(run) == SORT_SLICE or n + 1 == len(things):
            run.sort(reverse=is_reversed)
            runs.append(run)
            run = []
            vhost.budget.left -= SORT_STEPS
            yield
        vhost.budget.left -= ROW_STEPS  # a key may take a whole row
        if vhost.budget.left <= 0:
            yield
    return (things[key[2]] for key in heapq.merge(*runs, reverse=is_reversed))


def _by_numbers(
    call: Call, things: Sequence[Any], numbers: Mapping[Any, float], wanted: int, *,
    is_reversed: bool,
) -> Generator[None, None, Iterable[Any]]:  # fmt: skip
    """Return the things in the order of these numbers, 0 of what has none: `wanted` of them at
    least. Those that have none are looked for only as far as they are wanted."""
    budget = call.vhost.budget
    number = (lambda thing: -numbers[thing]) if is_reversed else numbers.__getitem__
    first: list[list[Any]] = []
    zeros: list[Any] = []
    last: list[list[Any]] = []
    for at in range(0, len(things), SORT_SLICE):
        run = [*filter(numbers.__contains__, things[at : at + SORT_SLICE])]
        run.sort(key=number)
        middle = bisect_left(run, 0.0, key=number)
        first.append(run[:middle])
        last.append(run[middle:])
        wanted -= middle
        budget.left -= LOOK_STEPS + len(run)
        yield
    for at in range(0, len(things), SORT_SLICE):
        if len(zeros) >= wanted:
            last = []
            break
        zeros += filterfalse(numbers.__contains__, things[at : at + SORT_SLICE])
        budget.left -= LOOK_STEPS
        yield
    return chain(heapq.merge(*first, key=number), zeros, heapq.merge(*last, key=number))


# ---- the operations ------------------------------------------------------------------------------


def _rows(
    call: Call, kind: RowKind, things: Iterable[Any], asked: RowAsked
) -> Iterator[Info | None]:
    for thing in things:
        row = kind.row(call.vhost, thing, asked)
        if row is not None:
            yield asked.columns.cut(row)


def _listed(call: Call, kind: RowKind, asked: RowAsked) -> Slices:
    args = call.args
    things = yield from kind.gathered(call.vhost, _of(call, kind))
    users = [user for user in (args.text_or_none("user"), _only_user(call)) if user is not None]
    if users:
        things = yield from _owned(call, kind, things, users)
    total = len(things)
    if names := args.text("name"):
        is_regex = args.flag("use_regex")
        things = yield from _filtered(call, kind, things, names, is_regex=is_regex)
    count = len(things)
    page, size = args.whole_or_none("page"), args.whole_or_none("page_size") or PAGE_SIZE
    pages = -(-count // size)
    if page is not None and page > max(pages, 1):
        text = f"given {page}, expected at most {max(pages, 1)}"
        raise args.wrong("page", text)
    ordered: Iterable[Any] = things
    if column := args.text("sort"):
        last = count if page is None else page * size
        ordered = yield from _sorted(call, kind, things, column, last)
    elif args.flag("reverse"):
        ordered = reversed(things)
    if (count if page is None else min(size, count)) > WATCHED_MAX:
        asked = replace(asked, samples={})
    if page is None:
        return (yield from listed(call, _rows(call, kind, ordered, asked)))
    chosen = islice(ordered, (page - 1) * size, page * size)
    found = JsonParts(is_exact=call.is_operator)
    found.begin(b"{")
    items = yield from add_rows(call, found, _rows(call, kind, chosen, asked), "items")
    for key, value in (
        ("filtered_count", count), ("item_count", items), ("page", page), ("page_count", pages),
        ("page_size", size), ("total_count", total),
    ):  # fmt: skip
        found.add(value, key)
    found.end(b"}")
    return found


class _Listed(RowKind):
    """What a list of the commands shows: the things of a kind, by the first column of the list,
    with rows of listings.py."""

    called = "row"

    def __init__(
        self, kind: RowKind, name: Callable[[Any], str],
        row: Callable[[VHost, Any, RowAsked], Info | None],
    ) -> None:  # fmt: skip
        self._kind = kind
        self._name = name
        self._row = row

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[Any]:
        return self._kind.all(vhost, of)

    def name(self, thing: Any) -> str:
        return self._name(thing)

    def owner(self, thing: Any) -> str | None:
        return self._kind.owner(thing)

    def numbers(
        self, vhost: VHost, column: str
    ) -> Generator[None, None, Mapping[str, float] | None]:
        return self._kind.numbers(vhost, column)

    def row(self, vhost: VHost, thing: Any, asked: RowAsked) -> Info | None:
        return self._row(vhost, thing, asked)


def _binding_row(vhost: VHost, thing: Any, _asked: RowAsked) -> Info:
    return binding_info(vhost, named_binding(thing))


def _channel_row(vhost: VHost, thing: Any, _asked: RowAsked) -> Info | None:
    return None if thing.is_closed else {**channel_info(vhost, thing), "pid": thing.name}


def _consumer_row(vhost: VHost, thing: Any, _asked: RowAsked) -> Info | None:
    return None if thing.is_cancelled else consumer_info(vhost, thing.queue, thing)


def _exchange_row(vhost: VHost, thing: Any, _asked: RowAsked) -> Info | None:
    exchange = vhost.exchanges.get(thing)
    return None if exchange is None else exchange_info(vhost, exchange)


LISTS: Final[Mapping[str, _Listed]] = {
    "list_queues": _Listed(KINDS["queues"], str, list_row),
    "list_exchanges": _Listed(KINDS["exchanges"], str, _exchange_row),
    "list_bindings": _Listed(
        KINDS["bindings"], lambda thing: named_binding(thing).source, _binding_row
    ),
    "list_channels": _Listed(KINDS["channels"], KINDS["channels"].name, _channel_row),
    "list_consumers": _Listed(
        KINDS["consumers"], lambda thing: str(thing.queue.name), _consumer_row
    ),
}  # fmt: skip


def _list(kind: _Listed) -> Callable[[Call], None]:
    return lambda call: call.in_slices(_chosen(call, kind))


def _chosen(call: Call, kind: _Listed) -> Slices:
    """Return the rows that a command wants: with such a name, in an order, the first of them."""
    args = call.args
    things = kind.all(call.vhost, {})
    user = _only_user(call)
    if user is not None:
        things = yield from _owned(call, kind, things, [user])
    if names := args.text("name"):
        things = yield from _filtered(call, kind, things, names, is_regex=True)
    ordered: Iterable[Any] = things
    limit = args.whole_or_none("limit")
    if column := args.text("sort"):
        ordered = yield from _sorted(call, kind, things, column, limit or len(things))
    chosen = islice(ordered, limit)
    asked = RowAsked(Columns(args.texts("columns")))
    return (yield from listed(call, _rows(call, kind, chosen, asked)))


def _describe_row(call: Call) -> None:
    call.in_slices(_described(call, _kind(call), _asked(call)))


def _described(call: Call, kind: RowKind, asked: RowAsked) -> Slices:
    vhost, name = call.vhost, call.args.text("name")
    thing = kind.find(vhost, name, _of(call, kind))
    row = None
    if thing is not None and kind.owner(thing) in (None, _only_user(call) or kind.owner(thing)):
        row = yield from kind.details(vhost, thing, asked)
    if row is None:
        raise not_found(called(kind.called, name, vhost.name))
    vhost.budget.left -= ROW_STEPS
    found = JsonParts(is_exact=call.is_operator)
    found.begin(b"{")
    for key, value in asked.columns.cut(row).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield from add_rows(call, found, iter(value), key)
        else:
            found.add(value, key)
    found.end(b"}")
    return found


def totals(call: Call) -> Slices:
    """Return the counters of the vhost since it was opened, with rates, and how much there is."""
    vhost = call.vhost
    counts = vhost.counts
    asked = RowAsked(Columns(), samples=_samples(call))
    lengths = yield from in_budget(call.vhost.budget, vhost.table.lengths(), LOOK_STEPS)
    return {
        "message_stats": asked.with_rates(vhost, TOTALS, counts.messages.stats(), "msg_rates"),
        "churn_rates": asked.with_rates(vhost, TOTALS, counts.churn(), "msg_rates"),
        "queue_totals": asked.with_rates(vhost, TOTALS, lengths, "lengths"),
        **asked.with_rates(vhost, TOTALS, counts.octets(), "data_rates"),
        "object_totals": object_totals(vhost),
        "dead_lettered": dict(vhost.queue_set.deaths.of),
        "dead_letters_dropped": vhost.queue_set.deaths.dropped,
        "tracing": vhost.firehose.is_on,
    }


def _names(call: Call) -> None:
    kind = _kind(call)
    prefix = call.args.text("prefix")
    things = kind.all(call.vhost, {})
    user = _only_user(call)
    names = [kind.name(one) for one in things if user is None or kind.owner(one) in (None, user)]
    call.in_slices(
        first_names(call, names, call.args.whole("limit"), "", lambda name: name.startswith(prefix))
    )


FUNCTIONS: Final[Functions] = {
    **{name: _list(kind) for name, kind in LISTS.items()},
    "list_rows": lambda call: call.in_slices(_listed(call, _kind(call), _asked(call))),
    "describe_row": _describe_row,
    "names": _names,
    "vhost_totals": lambda call: call.in_slices(totals(call)),
}
