"""Exchanges and bindings: their rows in RabbitMQ's HTTP shape, for list_rows and describe_row.

RabbitMQ counts what is published to an exchange by name, also if another exchange passes it on; so
does this. Who has declared an exchange that every vhost has is called as RabbitMQ calls it.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final

from penstock.broker.operations.kinds import STATS, RowAsked, RowKind
from penstock.broker.policies import EXCHANGE as EXCHANGE_KIND
from penstock.broker.rates import Info
from penstock.broker.refusals import not_found
from penstock.broker.topology import EXCHANGE, QUEUE, binding_called
from penstock.broker.vhost import EXCHANGES, VHost
from penstock.routing.exchange_types import Binding

SYSTEM_USER: Final = "rmq-internal"  # who declares what every vhost has, in RabbitMQ
UNKNOWN_USER: Final = "unknown"


_KINDS: Final = {QUEUE: "queue", EXCHANGE: "exchange"}
COLUMNS: Final[Mapping[str, Callable[[Binding], object]]] = {
    "source": lambda binding: binding.source,
    "destination": lambda binding: binding.destination,
    "destination_type": lambda binding: _KINDS[binding.kind],
    "routing_key": lambda binding: binding.key,
}


class ExchangeRows(RowKind):
    """The exchanges; the default one is "". A thing is its name."""

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
            "name": exchange.name,
            "vhost": vhost.name,
            "type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": exchange.arguments,
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
        of_binding = COLUMNS.get(column)
        if of_binding is None:
            return super().key(vhost, column)
        return lambda thing: of_binding(named_binding(thing))

    def row(self, vhost: VHost, thing: Binding | str, asked: RowAsked) -> Info:
        binding = named_binding(thing)
        return {
            "source": binding.source,
            "vhost": vhost.name,
            "destination": binding.destination,
            "destination_type": _KINDS[binding.kind],
            "routing_key": binding.key,
            "arguments": binding.arguments,
            "properties_key": binding.properties_key,
        }


def _source_of(thing: Binding | str) -> str:
    return "" if isinstance(thing, str) else thing.source


def named_binding(thing: Binding | str) -> Binding:
    """Return the binding; that of the default exchange to the queue of this name."""
    return Binding("", QUEUE, thing, thing, {}) if isinstance(thing, str) else thing
