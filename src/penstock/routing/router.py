"""Router: from an exchange, a key and headers to the names of queues, each once.

Messages are routed as in RabbitMQ: the type of an exchange selects destinations among its bindings.
A queue is added to the result; an exchange (exchange-to-exchange binding) routes the message in
turn, at most once per message, so cycles end. An exchange that selects nothing passes the message
to its alternate exchange, if it has one that exists. The default exchange "" has no bindings: it
selects the queues whose names are the keys.

Everything is in memory. The vhost decides what is durable, who may change it, auto-delete, internal
exchanges and refusals. It checks that sources and destinations exist before it calls `bind`.

`version` grows with every change that may change a result of `route`; callers that cache results
discard them then. The result of the default exchange depends on which queues exist, so the vhost
calls `queue_added` and `remove_queue`.

Invariants: a binding is in three places, its exchange's type, `_by_source` and `_by_target`, or in
none; the source of every binding exists; no binding leads from or to "".
"""

from collections.abc import Callable, Iterator

from penstock.routing.exchange_types import DELAYED, Binding, ExchangeType, make_exchange_type


class RoutedExchange:
    """An exchange in the router. alternate: its alternate exchange; has_alternate: whether it has
    one, because "" may be the default exchange.
    """

    __slots__ = ("alternate", "has_alternate", "is_delayed", "name", "type")

    def __init__(self, name: str, type_name: str, arguments: dict[str, object]) -> None:
        alternate = arguments.get("alternate-exchange")
        self.name: str = name
        self.type: ExchangeType = make_exchange_type(type_name, arguments)
        self.is_delayed: bool = type_name == DELAYED
        self.has_alternate: bool = isinstance(alternate, str)
        self.alternate: str = alternate if isinstance(alternate, str) else ""


class Router:
    """The exchanges and bindings of a vhost. has_queue(name): whether there is such a queue.
    count(creator, bytes): called with the RAM that a binding takes, and with what it frees."""

    def __init__(
        self, has_queue: Callable[[str], bool], count: Callable[[str, int], None] | None = None
    ) -> None:
        self.version: int = 0
        self.binding_count: int = 0
        self.held_bytes: int = 0  # of all bindings, about
        self._has_queue = has_queue
        self._count = count
        self._exchanges: dict[str, RoutedExchange] = {}
        self._by_source: dict[str, dict[object, Binding]] = {}
        self._by_target: dict[str, dict[object, Binding]] = {}
        self._on_headers: dict[str, bool] = {}

    # --- exchanges ---

    def has(self, name: str) -> bool:
        """Return whether there is such an exchange. The default exchange always exists."""
        return name == "" or name in self._exchanges

    def declare(self, name: str, type_name: str, arguments: dict[str, object]) -> None:
        """Add an exchange. Raises ChannelError and AMQPConnectionError as `make_exchange_type`."""
        assert not self.has(name), name
        self._exchanges[name] = RoutedExchange(name, type_name, arguments)
        self._by_source[name] = {}
        self._changed()

    def delete(self, name: str) -> list[str]:
        """Delete an exchange, its bindings and those to it. Returns the same as `remove_queue`."""
        for binding in list(self._by_source.pop(name).values()):
            self._counted(binding, -1)
            self._forget_target(binding)
        del self._exchanges[name]
        emptied = self._remove_target("e" + name)
        self._changed()
        return emptied

    def delayed(self, exchange: str) -> bool:
        """Return whether messages wait in this exchange before routing (x-delayed-message)."""
        found = self._exchanges.get(exchange)
        return found is not None and found.is_delayed

    def depends_on_headers(self, exchange: str) -> bool:
        """Return whether headers may change the result of `route` for this exchange."""
        known = self._on_headers.get(exchange)
        if known is None:
            known = self._find_headers(exchange)
            self._on_headers[exchange] = known
        return known

    # --- bindings ---

    def bind(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object],
        creator: str = "",
    ) -> bool:  # fmt: skip
        """Add a binding, which this user has asked for. Returns False if it exists. Raises
        ChannelError 406 for bad arguments."""
        binding = Binding(source, kind, destination, key, arguments, creator)
        if binding.identity in self._by_source[source]:
            return False
        self._exchanges[source].type.bind(binding)
        self._by_source[source][binding.identity] = binding
        self._by_target.setdefault(binding.target, {})[binding.identity] = binding
        self._counted(binding, 1)
        self._changed()
        return True

    def has_binding(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> bool:
        """Return whether there is such a binding."""
        identity = Binding(source, kind, destination, key, arguments).identity
        return identity in self._by_source.get(source, {})

    def unbind(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> bool:
        """Remove a binding. Returns False if there is none. `has_bindings` reports if it was the
        last one of its source."""
        identity = Binding(source, kind, destination, key, arguments).identity
        binding = self._by_source.get(source, {}).pop(identity, None)
        if binding is None:
            return False
        self._exchanges[source].type.unbind(binding)
        self._counted(binding, -1)
        self._forget_target(binding)
        self._changed()
        return True

    def queue_added(self) -> None:
        """Note a new queue: results of the default exchange may change."""
        self._changed()

    def remove_queue(self, name: str) -> list[str]:
        """Remove a queue's bindings. Returns the exchanges that lost their last binding by it."""
        emptied = self._remove_target("q" + name)
        self._changed()
        return emptied

    def has_bindings(self, exchange: str) -> bool:
        """Return whether the exchange has bindings."""
        return bool(self._by_source.get(exchange))

    def count_from(self, exchange: str) -> int:
        """Return how many bindings an exchange has."""
        return len(self._by_source.get(exchange, {}))

    def bindings_of(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange, the oldest first."""
        return list(self._by_source.get(exchange, {}).values())

    def bindings_to(self, kind: str, destination: str) -> list[Binding]:
        """Return the bindings to a queue ("q") or an exchange ("e"), the oldest first."""
        return list(self._by_target.get(kind + destination, {}).values())

    def bindings(self) -> Iterator[Binding]:
        """Yield all bindings, exchange by exchange. Nothing may change meanwhile."""
        for one in self._by_source.values():
            yield from one.values()

    # --- routing ---

    def route(
        self,
        exchange: str,
        key: str,
        headers: dict[str, object] | None = None,
        cc: list[str] | None = None,
    ) -> list[str]:
        """Return the queues for a message. cc: more keys. headers: None if the message has none, or
        if `depends_on_headers` is False. Raises KeyError if there is no such exchange."""
        keys = [key] if not cc else [key, *cc]
        if exchange == "":
            return self._queues_named(keys)
        queues: dict[str, int] = {}
        seen: dict[str, int] = {exchange: 1}
        waiting: list[RoutedExchange] = [self._exchanges[exchange]]
        while waiting:
            passed = waiting.pop()
            found: dict[str, int] = {}
            passed.type.select(keys, headers, found)
            if not found and passed.has_alternate:
                found["e" + passed.alternate] = 1
            for target in found:
                name = target[1:]
                if target[0] == "q":
                    queues[name] = 1
                elif name not in seen:
                    seen[name] = 1
                    following = self._exchanges.get(name)
                    if following is not None:
                        waiting.append(following)
                    elif name == "":
                        for queue in self._queues_named(keys):
                            queues[queue] = 1
        return list(queues)

    # --- inside ---

    def _queues_named(self, keys: list[str]) -> list[str]:
        if len(keys) == 1:
            return keys if self._has_queue(keys[0]) else []
        return list(dict.fromkeys(key for key in keys if self._has_queue(key)))

    def _changed(self) -> None:
        self.version += 1
        if self._on_headers:
            self._on_headers = {}

    def _counted(self, binding: Binding, change: int) -> None:
        """Count one more (1) or one less (-1)."""
        self.binding_count += change
        self.held_bytes += change * binding.held_bytes
        if self._count is not None:
            self._count(binding.creator, change * binding.held_bytes)

    def _forget_target(self, binding: Binding) -> None:
        there = self._by_target[binding.target]
        del there[binding.identity]
        if not there:
            del self._by_target[binding.target]

    def _remove_target(self, target: str) -> list[str]:
        """Remove all bindings to a target. Returns the exchanges that have none left."""
        emptied: list[str] = []
        for identity, binding in self._by_target.pop(target, {}).items():
            self._exchanges[binding.source].type.unbind(binding)
            self._counted(binding, -1)
            left = self._by_source[binding.source]
            del left[identity]
            if not left:
                emptied.append(binding.source)
        return emptied

    def _find_headers(self, exchange: str) -> bool:
        """Search bindings and alternates for a type that reads headers."""
        seen: set[str] = {exchange}
        waiting: list[str] = [exchange]
        while waiting:
            name = waiting.pop()
            passed = self._exchanges.get(name)
            if passed is None:
                continue
            if passed.type.reads_headers:
                return True
            below = [b.destination for b in self._by_source[name].values() if b.kind == "e"]
            if passed.has_alternate:
                below.append(passed.alternate)
            for one in below:
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
        return False
