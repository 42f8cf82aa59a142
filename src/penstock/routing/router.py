"""Router: from an exchange, a key and headers to the names of queues, each once.

Messages are routed as in RabbitMQ: the type of an exchange selects destinations among its bindings.
A queue is added to the result; an exchange (exchange-to-exchange binding) routes the message in
turn, at most once per message, so cycles end. An exchange that selects nothing passes the message
to its alternate exchange, if it has one that exists. The default exchange "" has no bindings: it
selects the queues whose names are the keys.

Everything is in memory. The vhost decides what is durable, who may change it, auto-delete, internal
exchanges and refusals. It checks that sources and destinations exist before it calls `bind`.

**A Way** is where keys lead from an exchange as far as keys alone decide: the queues, and the
exchanges where it ends for now, because headers, properties or chance decide there, or messages
are kept. It is the same for every message with these keys, so publishers cache it with their routes
(broker/publish.py); nothing is cached here. **A Walk** is the way of one message: its Way, and from
each of these exchanges on what it selects. Behind one it passes Ways again, and the cached Way
keeps WAYS_MAX of these: of a graph of thousands of exchanges behind one headers exchange, only that
one is asked for each message. Those who cache a Way count its `held_bytes`, which grow by these.

**In slices.** A message may have hundreds of keys and pass thousands of exchanges. `advance` of
both classes takes steps (exchange_types.Asked) and stops when they are used up; the caller
continues in a later turn. What changes in between may count or not.

**What changed.** `version` grows with every change that may change a result. A change concerns the
exchange at which it is made, so a result that was cached stays valid while no exchange that it
passed has changed: `is_current`. The default exchange changes whenever a queue comes or goes; and
results name queues that the caller has looked up, so the vhost calls `queue_added` and
`remove_queue`.

Invariants: a binding is in three places, its exchange's type, `_by_source` and `_by_target`, or in
none; the source of every binding exists; no binding leads from or to "".
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from penstock.codec.properties import BasicProperties
from penstock.routing.exchange_types import (
    DELAYED,
    DIRECT,
    TARGETS_PER_STEP,
    Asked,
    Binding,
    DeduplicatedExchange,
    ExchangeType,
    RecentHistoryExchange,
    Rest,
    TopicExchange,
    make_exchange_type,
)
from penstock.storage.index.key_windows import KeyWindow

WAYS_MAX: Final = 64  # behind headers exchanges, kept with one Way
EXCHANGE_STEPS: Final = 2  # of passing an exchange, beside what its type does
WAY_BYTES: Final = 900  # measured: without the names
ROUTE_STEPS_MAX: Final = 1 << 18  # of what cannot be done in slices: a tenth of a second
NAME_BYTES: Final = 100  # measured: a queue in a Way


class RoutedExchange:
    """An exchange in the router. alternate: its alternate exchange; has_alternate: whether it has
    one, because "" may be the default exchange. changed_at: the router's version when it changed
    last.
    """

    __slots__ = ("alternate", "changed_at", "has_alternate", "is_delayed", "name", "type")

    def __init__(
        self, name: str, type_name: str, arguments: dict[str, object], chance: Random | None = None
    ) -> None:
        alternate = arguments.get("alternate-exchange")
        self.name: str = name
        self.type: ExchangeType = make_exchange_type(type_name, arguments, chance)
        self.is_delayed: bool = type_name == DELAYED
        self.has_alternate: bool = isinstance(alternate, str)
        self.alternate: str = alternate if isinstance(alternate, str) else ""
        self.changed_at: int = 0


class Selecting:
    """The selecting of one exchange, and the handling of what it selected, that was interrupted."""

    __slots__ = ("_at", "_found", "_rest", "_targets", "exchange")

    def __init__(self, exchange: RoutedExchange, found: dict[str, int], rest: Rest | None) -> None:
        self.exchange: RoutedExchange = exchange
        self._found: dict[str, int] = found
        self._rest: Rest | None = rest
        self._targets: list[str] | None = None
        self._at: int = 0

    def advance(self, asked: Asked, queues: dict[str, int], exchanges: list[str]) -> bool:
        """Add what it selects to `queues` and `exchanges`. Returns whether that is all."""
        if self._rest is not None:
            if asked.steps > 0:
                self._rest = self._rest.go_on(asked, self._found)
            if self._rest is not None:
                return False
        targets = self._targets
        if targets is None:
            targets = self._targets = _targets_of(self.exchange, self._found)
        if asked.steps <= 0:
            return False
        start = self._at
        end = self._at = min(len(targets), start + asked.steps)
        for i in range(start, end):
            _divide(targets[i], queues, exchanges)
        asked.steps -= end - start
        return end == len(targets)


def select(
    exchange: RoutedExchange, asked: Asked, queues: dict[str, int], exchanges: list[str]
) -> Selecting | None:
    """Add what an exchange selects to `queues` and `exchanges`. Returns what is left to do when the
    steps are used up."""
    asked.steps -= EXCHANGE_STEPS
    found: dict[str, int] = {}
    rest = exchange.type.select(asked, found)
    if rest is not None or len(found) > asked.steps:
        return Selecting(exchange, found, rest)
    asked.steps -= len(found)
    for target in _targets_of(exchange, found):
        _divide(target, queues, exchanges)
    return None


def _targets_of(exchange: RoutedExchange, found: dict[str, int]) -> list[str]:
    if not found and exchange.has_alternate:
        return ["e" + exchange.alternate]
    return list(found)


def _divide(target: str, queues: dict[str, int], exchanges: list[str]) -> None:
    if target[0] == "q":
        queues[target[1:]] = 1
    else:
        exchanges.append(target[1:])


class Way:
    """Where keys lead from an exchange, as far as keys alone decide. queues: their names, as
    keys. per_message: the headers exchanges where it ends. passed: by name, these and all others.
    as_of: the router's version when it was begun. is_done: all of it is known. kept_bytes: of the
    Ways in `below` that are done."""

    __slots__ = ("_now", "_router", "_waiting", "as_of", "below", "is_done", "kept_bytes",
                 "passed", "per_message", "queues", "start")  # fmt: skip

    def __init__(self, router: "Router", exchange: str | None) -> None:
        """exchange: None for a Way that leads nowhere."""
        self.start: str = exchange or ""
        self.queues: dict[str, int] = {}
        self.per_message: list[RoutedExchange] = []
        self.is_done: bool = False
        self.passed: dict[str, RoutedExchange] = {}
        self.as_of: int = router.version
        self.below: dict[str, Way] | None = None  # from those that headers selected, by their names
        self.kept_bytes: int = 0
        self._router: Router = router
        self._waiting: list[str] = [] if exchange is None else [exchange]
        self._now: Selecting | None = None

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes of RAM it takes."""
        return self.kept_bytes + WAY_BYTES + NAME_BYTES * (len(self.queues) + len(self.passed))

    def advance(self, asked: Asked) -> bool:
        """Go on while there are steps. Returns `is_done`."""
        waiting = self._waiting
        router = self._router
        now = self._now
        if now is not None:
            if not now.advance(asked, self.queues, waiting):
                return False
            self._now = None
        while waiting:
            if asked.steps <= 0:
                return False
            asked.steps -= 1
            name = waiting.pop()
            exchange = router.find(name)
            if exchange is None or name in self.passed:
                continue
            self.passed[exchange.name] = exchange
            if name == "":
                asked.steps -= len(asked.keys)
                for queue in router.queues_named(asked.keys):
                    self.queues[queue] = 1
            elif exchange.type.is_per_message:
                self.per_message.append(exchange)
            else:
                self._now = select(exchange, asked, self.queues, waiting)
                if self._now is not None:
                    return False
        self.is_done = True
        return True


class Walk:
    """The way of one message through the exchanges, in slices. queues: the names of those that get
    it, as keys, once `is_done`. way: to begin with; it may be cached, and more is kept in it."""

    __slots__ = ("_asked", "_now", "_router", "_seen", "_selected", "_waiting", "_ways", "is_done",
                 "queues", "way")  # fmt: skip

    def __init__(
        self, router: "Router", way: Way, keys: list[str], headers: dict[str, object] | None,
        properties: BasicProperties | None = None,
    ) -> None:  # fmt: skip
        self.way: Way = way
        self.queues: dict[str, int] = {}
        self.is_done: bool = False
        self._router: Router = router
        self._asked: Asked = Asked(keys, headers)
        self._asked.properties = properties
        self._seen: set[str] = set()  # exchanges whose Way was taken, and those asked by headers
        self._ways: list[Way] = [way]
        self._waiting: list[RoutedExchange] = []
        self._now: Selecting | None = None
        self._selected: list[str] = []

    def look_for(self, key: bytes, now_ms: int) -> None:
        """Look for duplicates by this key, before the first `advance`."""
        self._asked.key, self._asked.now_ms = key, now_ms

    @property
    def windows(self) -> list[KeyWindow]:
        """Return those of exchanges that are to see the key."""
        return self._asked.windows

    @property
    def seen_lsn(self) -> int:
        """Return the LSN of those that have seen it before."""
        return self._asked.seen_lsn

    @property
    def histories(self) -> list[RecentHistoryExchange]:
        """Return the exchanges that are to keep the message."""
        return self._asked.histories

    @property
    def is_by_chance(self) -> bool:
        """Return whether the next message like it may go elsewhere."""
        return self._asked.is_by_chance

    def advance(self, steps: int) -> int:
        """Go on for so many steps; return how many are left, 0 or less if it is not done then."""
        asked = self._asked
        asked.steps = steps
        self._advance(asked)
        return asked.steps

    def _advance(self, asked: Asked) -> None:
        while not self.is_done:
            now = self._now
            if now is not None:
                if not now.advance(asked, self.queues, self._selected):
                    return
                self._now = None
            elif asked.steps <= 0:
                return
            elif self._ways:
                way = self._ways[-1]
                if not way.advance(asked):
                    return
                self._ways.pop()
                self._take(way, asked)
            elif self._selected:
                asked.steps -= 1
                self._enter(self._selected.pop())
            elif self._waiting:
                exchange = self._waiting.pop()
                self._now = select(exchange, asked, self.queues, self._selected)
                if self._now is not None:
                    return
            else:
                self.is_done = True

    def _take(self, way: Way, asked: Asked) -> None:
        """Add what a Way leads to."""
        if way is self.way and not way.per_message:
            self.queues = way.queues
            return
        if way is not self.way:
            self._keep(way)
        self.queues.update(way.queues)
        asked.steps -= len(way.queues) // TARGETS_PER_STEP
        for exchange in way.per_message:
            if exchange.name not in self._seen:
                self._seen.add(exchange.name)
                self._waiting.append(exchange)

    def _keep(self, way: Way) -> None:
        """Keep a Way that is done for the next messages, if there is a place."""
        below = self.way.below
        if below is None:
            below = self.way.below = {}
        if way.start not in below and len(below) < WAYS_MAX:
            below[way.start] = way
            self.way.kept_bytes += way.held_bytes

    def _enter(self, name: str) -> None:
        """Take the Way from an exchange that headers have selected."""
        if name in self._seen or name in self.way.passed:
            return
        below = self.way.below
        way = None if below is None else below.get(name)
        if way is None:
            exchange = self._router.find(name)
            if exchange is not None and exchange.type.is_per_message:
                self._seen.add(name)
                self._waiting.append(exchange)
                return
            way = Way(self._router, name)
        self._seen.add(name)
        self._ways.append(way)


class Router:
    """The exchanges and bindings of a vhost. has_queue(name): whether there is such a queue.
    count(creator, bytes): called with the RAM that a binding takes, and with what it frees.
    chance: what x-random selects by."""

    def __init__(
        self, has_queue: Callable[[str], bool], count: Callable[[str, int], None] | None = None,
        chance: Random | None = None,
    ) -> None:  # fmt: skip
        self.version: int = 0
        self.binding_count: int = 0
        self.held_bytes: int = 0  # of all bindings, about
        self.between_exchanges: dict[str, int] = {}  # creator -> bindings from exchange to exchange
        self._has_queue = has_queue
        # on_binding(binding, change): it was made (1) or deleted (-1).
        self.on_binding: Callable[[Binding, int], None] | None = None
        self._count = count
        self._chance: Random = chance or Random(0)
        self._exchanges: dict[str, RoutedExchange] = {}
        self._by_source: dict[str, dict[object, Binding]] = {}
        self._by_target: dict[str, dict[object, Binding]] = {}
        self._alternate_of: dict[
            str, dict[str, int]
        ] = {}  # name -> exchanges whose alternate it is
        self.default: RoutedExchange = RoutedExchange("", DIRECT, {})  # its type is not asked

    # --- exchanges ---

    def has(self, name: str) -> bool:
        """Return whether there is such an exchange. The default exchange always exists."""
        return name == "" or name in self._exchanges

    def declare(self, name: str, type_name: str, arguments: dict[str, object]) -> None:
        """Add an exchange. Raises ChannelError and AMQPConnectionError as `make_exchange_type`."""
        assert not self.has(name), name
        exchange = self._exchanges[name] = RoutedExchange(name, type_name, arguments, self._chance)
        exchange.type.count_with(self._count_bytes)
        self._by_source[name] = {}
        if exchange.has_alternate:
            self._alternate_of.setdefault(exchange.alternate, {})[name] = 1
        self.version += 1
        exchange.changed_at = self.version
        self._changed_before(name)

    def delete(self, name: str) -> list[str]:
        """Delete an exchange, its bindings and those to it. Returns the same as `remove_queue`."""
        for binding in list(self._by_source.pop(name).values()):
            self._counted(binding, -1)
            self._forget_target(binding)
        self.version += 1
        exchange = self._exchanges.pop(name)
        exchange.changed_at = self.version
        self._forget_alternate(exchange)
        for user, count in exchange.type.held().items():
            self._count_bytes(user, -count)
        emptied = self._remove_target("e" + name)
        self._changed_before(name)
        return emptied

    def is_topic(self, exchange: str) -> bool:
        """Return whether there is such an exchange, and it selects by patterns of routing keys;
        also one that delays messages first."""
        found = self._exchanges.get(exchange)
        return found is not None and isinstance(found.type, TopicExchange)

    def set_alternate(self, name: str, alternate: str | None) -> None:
        """Change the alternate exchange of an exchange; None: it has none."""
        exchange = self._exchanges[name]
        if alternate == (exchange.alternate if exchange.has_alternate else None):
            return
        self._forget_alternate(exchange)
        exchange.has_alternate = alternate is not None
        exchange.alternate = alternate or ""
        if exchange.has_alternate:
            self._alternate_of.setdefault(exchange.alternate, {})[name] = 1
        self.version += 1
        exchange.changed_at = self.version

    def _forget_alternate(self, exchange: RoutedExchange) -> None:
        if exchange.has_alternate:
            others = self._alternate_of[exchange.alternate]
            del others[exchange.name]
            if not others:
                del self._alternate_of[exchange.alternate]

    def delayed(self, exchange: str) -> bool:
        """Return whether messages wait in this exchange before routing (x-delayed-message)."""
        found = self._exchanges.get(exchange)
        return found is not None and found.is_delayed

    # --- bindings ---

    def bind(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object],
        creator: str = "", encoded: bytes | None = None,
    ) -> bool:  # fmt: skip
        """Add a binding, which this user has asked for. encoded: its arguments, if they are stored.
        Returns False if it exists. Raises ChannelError 406 for bad arguments."""
        binding = Binding(source, kind, destination, key, arguments, creator, encoded)
        if binding.identity in self._by_source[source]:
            return False
        self._exchanges[source].type.bind(binding)
        binding.forget_decoded()
        self._by_source[source][binding.identity] = binding
        self._by_target.setdefault(binding.target, {})[binding.identity] = binding
        self._counted(binding, 1)
        self._changed(source)
        return True

    def find_binding(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> Binding | None:
        """Return this binding, None if there is none."""
        identity = Binding(source, kind, destination, key, arguments).identity
        return self._by_source.get(source, {}).get(identity)

    def unbind(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> bool:
        """Remove a binding. Returns False if there is none. `has_bindings` reports if it was the
        last one of its source."""
        binding = self.find_binding(source, kind, destination, key, arguments)
        if binding is not None:
            self.remove(binding)
        return binding is not None

    def remove(self, binding: Binding) -> None:
        """Remove a binding that is bound."""
        source = binding.source
        del self._by_source[source][binding.identity]
        self._exchanges[source].type.unbind(binding)
        self._counted(binding, -1)
        self._forget_target(binding)
        self._changed(source)

    def is_bound(self, binding: Binding) -> bool:
        """Return whether this binding, and not another one like it, is bound."""
        return self._by_source.get(binding.source, {}).get(binding.identity) is binding

    def count_at(self, kind: str, name: str) -> int:
        """Return how many bindings there are to a queue ("q"), or to and from an exchange ("e")."""
        count = len(self._by_target.get(kind + name, {}))
        return count + self.count_from(name) if kind == "e" else count

    def queue_added(self, name: str) -> None:
        """Note a new queue, or another one of this name: results that lead there are looked up
        again."""
        self.version += 1
        self.default.changed_at = self.version
        for binding in self._by_target.get("q" + name, {}).values():
            self._exchanges[binding.source].changed_at = self.version

    def remove_queue(self, name: str) -> list[str]:
        """Remove a queue's bindings. Returns the exchanges that lost their last binding by it."""
        self.version += 1
        self.default.changed_at = self.version
        return self._remove_target("q" + name)

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

    def is_current(self, way: Way) -> bool:
        """Return whether nothing has changed at what a finished Way has passed. What changed behind
        its headers exchanges is forgotten."""
        as_of = way.as_of
        for exchange in way.passed.values():
            if exchange.changed_at > as_of:
                return False
        if way.below:
            for name, below in list(way.below.items()):
                if not self.is_current(below):
                    del way.below[name]
                    way.kept_bytes -= below.held_bytes
        return True

    def history_of(self, exchange: str) -> RecentHistoryExchange | None:
        """Return the messages that an exchange keeps for new bindings, if it is of that type."""
        found = self._exchanges.get(exchange)
        kind = None if found is None else found.type
        if isinstance(kind, DeduplicatedExchange):
            kind = kind.inner
        return kind if isinstance(kind, RecentHistoryExchange) else None

    def find(self, name: str) -> RoutedExchange | None:
        """Return the exchange of this name."""
        return self._exchanges.get(name) if name else self.default

    def queues_named(self, keys: list[str]) -> list[str]:
        """Return the queues that the default exchange selects."""
        if len(keys) == 1:
            return keys if self._has_queue(keys[0]) else []
        return list(dict.fromkeys(key for key in keys if self._has_queue(key)))

    # --- inside ---

    def _changed(self, name: str) -> None:
        """Note a change of an exchange's bindings. Those of a headers exchange are looked at for
        each message, so no cached result depends on them."""
        exchange = self._exchanges[name]
        if not exchange.type.is_per_message:
            self.version += 1
            exchange.changed_at = self.version

    def _changed_before(self, name: str) -> None:
        """Note that an exchange came or went, for those that lead to it."""
        for source in self._alternate_of.get(name, {}):
            self._exchanges[source].changed_at = self.version
        for binding in self._by_target.get("e" + name, {}).values():
            self._exchanges[binding.source].changed_at = self.version

    def _counted(self, binding: Binding, change: int) -> None:
        """Count one more (1) or one less (-1)."""
        self.binding_count += change
        if self.on_binding is not None:
            self.on_binding(binding, change)
        if binding.kind == "e":
            between = self.between_exchanges
            between[binding.creator] = between.get(binding.creator, 0) + change
            if not between[binding.creator]:
                del between[binding.creator]
        self._count_bytes(binding.creator, change * binding.held_bytes)

    def _count_bytes(self, user: str, change: int) -> None:
        self.held_bytes += change
        if self._count is not None:
            self._count(user, change)

    def _forget_target(self, binding: Binding) -> None:
        there = self._by_target[binding.target]
        del there[binding.identity]
        if not there:
            del self._by_target[binding.target]

    def _remove_target(self, target: str) -> list[str]:
        """Remove all bindings to a target, as of `version`. Returns the exchanges that have none
        left."""
        emptied: list[str] = []
        for identity, binding in self._by_target.pop(target, {}).items():
            source = self._exchanges[binding.source]
            source.type.unbind(binding)
            if not source.type.is_per_message:
                source.changed_at = self.version
            left = self._by_source[binding.source]
            del left[identity]
            self._counted(binding, -1)
            if not left:
                emptied.append(binding.source)
        return emptied
