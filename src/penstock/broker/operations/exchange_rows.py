"""Exchanges and bindings: their rows in RabbitMQ's HTTP shape, for list_rows and describe_row."""

from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote

from penstock.broker.operations.kinds import RowAsked, RowKind
from penstock.broker.policies import EXCHANGE as EXCHANGE_KIND
from penstock.broker.rates import Info
from penstock.broker.topology import EXCHANGE, QUEUE
from penstock.broker.vhost import EXCHANGES, VHost
from penstock.routing.exchange_types import Binding

SYSTEM_USER: Final = "rmq-internal"  # who declares what every vhost has, in RabbitMQ
UNKNOWN_USER: Final = "unknown"
STATS: Final = "message_stats"


class Exchanges(RowKind):
    """The exchanges; the default one is "". A thing is its name."""

    called = "exchange"

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[str]:
        return sorted(vhost.exchanges)

    def find(self, vhost: VHost, name: str, of: Mapping[str, str]) -> str | None:
        return name if name in vhost.exchanges else None

    def key(self, vhost: VHost, thing: str, column: str) -> object:
        exchange = vhost.exchanges.get(thing)
        first, _, rest = column.partition(".")
        if exchange is None or first != STATS:
            return super().key(vhost, thing, column)
        if rest.endswith("_details.rate"):
            rates = vhost.rates.of((EXCHANGES, thing))
            return rates.get(rest.removesuffix("_details.rate"), 0.0)
        return exchange.counts.stats().get(rest)

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

    def details(self, vhost: VHost, thing: str, asked: RowAsked) -> Info | None:
        row = self.row(vhost, thing, asked)
        return None if row is None else row | {"incoming": [], "outgoing": []}


class Bindings(RowKind):
    """The bindings: first those of the default exchange, one for each queue, which are things by
    their queue's name. of: {"source": exchange, "queue": to this one, "exchange": to this one}."""

    called = "binding"
    selectors = ("source", "queue", "exchange")

    def all(self, vhost: VHost, of: Mapping[str, str]) -> Sequence[Binding | str]:
        source, queue, exchange = (of.get(name) for name in self.selectors)
        router, table = vhost.router, vhost.table
        found: list[Binding | str] = []
        if queue is not None:
            found += [queue] if table.has(queue) else []
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
        return _named(thing).properties_key

    def find(self, vhost: VHost, name: str, of: Mapping[str, str]) -> Binding | str | None:
        """As it is listed, or percent-decoded once more: RabbitMQ takes both."""
        for thing in self.all(vhost, of):
            listed = self.name(thing)
            if name in (listed, unquote(listed)):
                return thing
        return None

    def key(self, vhost: VHost, thing: Binding | str, column: str) -> object:
        binding = _named(thing)
        return {
            "source": binding.source,
            "destination": binding.destination,
            "destination_type": _KINDS[binding.kind],
            "routing_key": binding.key,
            "properties_key": binding.key,
        }.get(column)

    def row(self, vhost: VHost, thing: Binding | str, asked: RowAsked) -> Info:
        binding = _named(thing)
        return {
            "source": binding.source,
            "vhost": vhost.name,
            "destination": binding.destination,
            "destination_type": _KINDS[binding.kind],
            "routing_key": binding.key,
            "arguments": binding.arguments,
            "properties_key": binding.properties_key,
        }


_KINDS: Final = {QUEUE: "queue", EXCHANGE: "exchange"}


def _source_of(thing: Binding | str) -> str:
    return "" if isinstance(thing, str) else thing.source


def _named(thing: Binding | str) -> Binding:
    """Return the binding; that of the default exchange to the queue of this name."""
    return Binding("", QUEUE, thing, thing, {}) if isinstance(thing, str) else thing
