"""The exchanges and bindings of a vhost: who may change them, which of them are durable, and where
they send dead letters (`ExchangeRoute`).

Three things are kept in step. `exchanges` has what each exchange was declared as. The Router
(penstock.routing) has the same exchanges and all bindings, and finds queues. The engine's
RoutingTable has the durable part: durable exchanges, and bindings both of whose ends are durable.
Every change goes to the log first, in one record for all that belongs to it, and then into the
other two; so a crash leaves the whole of a change or nothing. The methods return the LSN of the
record, 0 if nothing durable has changed: the client is answered once it is settled. Many bindings
of what is deleted go before it, each in a record of its own (`Unbinding`).

    exchange   flags 1: bit 0 auto-delete, bit 1 internal; arguments: an encoded AMQP table
    binding    arguments: the same; b"" for none

The exchanges that every vhost has are not stored: "" and amq.*. Nobody can delete them.

An auto-delete exchange is deleted with the last binding that leaves from it; that deletes the
bindings to it, which may be the last ones of others: `doomed` finds all of them beforehand.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Final
from urllib.parse import unquote, unquote_plus

from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.broker.arguments import check_same_argument, wrong_type
from penstock.broker.background_tasks import (
    AGAIN,
    ASLEEP,
    DONE,
    BackgroundTask,
    BackgroundTasks,
)
from penstock.broker.dispatch import TurnBudget
from penstock.broker.policies import ALTERNATE, Applied, Policies
from penstock.broker.policies import EXCHANGE as EXCHANGE_KIND
from penstock.codec.fields import decode_table, encode_table
from penstock.codec.properties import BasicProperties
from penstock.counts import ExchangeCounts
from penstock.errors import AMQPError, DiskFullError
from penstock.operation_table import EVENTS, HOME
from penstock.queues.amqp_headers import AmqpHeaders
from penstock.queues.dead_letter import (
    DEATH_BYTES_MIN,
    HOPS_MAX,
    DeadLetterRoute,
    LargeLetter,
    Target,
)
from penstock.queues.queue_options import QueueOptions
from penstock.routing.exchange_types import (
    DEDUPLICATION,
    DIRECT,
    FANOUT,
    HEADERS,
    TOPIC,
    TYPES,
    Asked,
    Binding,
    DeduplicatedExchange,
    keys_bytes,
    not_counted,
)
from penstock.routing.router import ROUTE_STEPS_MAX, Router, Walk, Way
from penstock.storage.engine import StorageEngine
from penstock.storage.files.durability import DISK, OS
from penstock.storage.index import routing_table

QUEUE: Final = "q"
EXCHANGE: Final = "e"
DELAYED_TYPE: Final = "x-delayed-type"
ALERTS: Final = "amq.penstock.alert"  # alerts.py
MANY_BINDINGS: Final = 512
MANY_BYTES: Final = 64 << 10  # of their arguments
UNBIND_SLICE: Final = 64  # a millisecond or two
UNBIND_BYTES: Final = 4 << 10  # of arguments in it: each may be read for an event

AUTO_DELETE_FLAG: Final = 1
INTERNAL_FLAG: Final = 2
EXCHANGE_BYTES: Final = 1100  # measured: a durable exchange without arguments, in all its places

# name -> (type, is internal) of the exchanges that every vhost has
SYSTEM: Final[dict[str, tuple[str, bool]]] = {
    "": (DIRECT, False),
    "amq.direct": (DIRECT, False),
    "amq.fanout": (FANOUT, False),
    "amq.topic": (TOPIC, False),
    "amq.headers": (HEADERS, False),
    "amq.match": (HEADERS, False),
    "amq.rabbitmq.trace": (TOPIC, True),
    ALERTS: (TOPIC, True),
}


def system_exchanges(vhost: str) -> Mapping[str, tuple[str, bool]]:
    """Return name -> (type, is internal) of the exchanges that a vhost always has."""
    return {**SYSTEM, EVENTS: (TOPIC, True)} if vhost == HOME else SYSTEM


class Exchange:
    """What an exchange was declared as. is_system: every vhost has it. creator: the user who
    declared it, "" if that is not known. ValueError, TypeError: the arguments hold a value that
    AMQP has no type for."""

    __slots__ = ("_arguments", "_keys_bytes", "auto_delete", "counts", "creator", "durable",
                 "internal", "is_system", "name", "type")  # fmt: skip

    def __init__(
        self, name: str, type_name: str, *, durable: bool, auto_delete: bool = False,
        internal: bool = False, arguments: dict[str, object] | None = None, is_system: bool = False,
        creator: str = "",
    ) -> None:  # fmt: skip
        self.name: str = name
        self.type: str = type_name
        self.durable: bool = durable
        self.auto_delete: bool = auto_delete
        self.internal: bool = internal
        self._arguments: bytes = _encoded(arguments or {})
        self.is_system: bool = is_system
        self.creator: str = creator
        self.counts: ExchangeCounts = ExchangeCounts()
        self._keys_bytes: int = _keys_bytes(type_name, arguments or {})

    @property
    def arguments(self) -> dict[str, object]:
        """Decode and return the arguments."""
        return _decoded(self._arguments)

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes of RAM it takes."""
        return EXCHANGE_BYTES + 2 * len(self._arguments) + self._keys_bytes


class Topology:
    """The exchanges and bindings of one vhost. has_queue(name): there is a queue of that name.
    check_exchange(name, user), check_binding(exchange, user): raise an error for one too many.
    count(user, bytes): called with the RAM that one takes, and with what it frees. chance: what
    x-random selects by. policies: give exchanges their alternate ones. histories: the arguments of
    RecentHistoryExchange.share."""

    def __init__(
        self, engine: StorageEngine, vhost: str, has_queue: Callable[[str], bool],
        on_event: Callable[[str, str], None],
        check_exchange: Callable[[str, int, Identity | None], None] | None = None,
        check_binding: Callable[[str, Identity | None], None] | None = None,
        count: Callable[[str, int], None] | None = None,
        check_between: Callable[[str, Identity, int], None] | None = None,
        chance: Random | None = None,
        policies: Policies | None = None,
        histories: tuple[Callable[[str, int], bool], Callable[[str, int], None]] | None = None,
    ) -> None:  # fmt: skip
        self.exchanges: dict[str, Exchange] = {}
        self._count: Callable[[str, int], None] = count or not_counted
        self.router: Router = Router(has_queue, self._count, chance)
        self._exchange_bytes: int = 0
        self._engine = engine
        self._vhost = vhost
        self._has_queue = has_queue
        self._on_event = on_event
        self._check_new: Callable[[str, int, Identity | None], None] = check_exchange or _any_number
        self._check_binding: Callable[[str, Identity | None], None] = check_binding or _unlimited
        self._policies: Policies | None = policies
        self._histories: tuple[Callable[[str, int], bool], Callable[[str, int], None]] | None = (
            histories
        )
        self._check_between: Callable[[str, Identity, int], None] = check_between or _unbounded
        # on_exchange(exchange, is_new): it was declared or deleted.
        self.on_exchange: Callable[[Exchange, bool], None] | None = None
        for name, (type_name, internal) in system_exchanges(vhost).items():
            self._add(Exchange(name, type_name, durable=True, internal=internal, is_system=True))

    def _add(self, exchange: Exchange) -> None:
        if exchange.name:  # the router knows the default one by itself
            self.router.declare(exchange.name, exchange.type, exchange.arguments)
            found = self.router.find(exchange.name)
            if found is not None and isinstance(found.type, DeduplicatedExchange):
                window = found.type.window = self._engine.windows.of(b"e" + _bytes(exchange.name))
                window.is_logged = exchange.durable
                window.set_up(found.type.size, found.type.ttl_ms)
            history = self.router.history_of(exchange.name)
            if history is not None and self._histories is not None:
                history.share(exchange.creator, *self._histories)
        self.exchanges[exchange.name] = exchange
        if self._policies is not None and not self._policies.is_empty:
            self.apply_policies(exchange.name)
        self._exchange_bytes += exchange.held_bytes
        self._count(exchange.creator, exchange.held_bytes)

    def apply_policies(self, name: str) -> Applied | None:
        """Give an exchange what its policies say now, and return them; None if there is none."""
        exchange = self.exchanges.get(name)
        policies = self._policies
        if exchange is None or policies is None:
            return None
        if name:
            self.router.set_alternate(name, policies.alternate(name, exchange.arguments))
        return policies.of(name, EXCHANGE_KIND)

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes of RAM exchanges and bindings take."""
        return self._exchange_bytes + self.router.held_bytes

    def called(self, name: str) -> str:
        """Return how errors name an exchange."""
        return refusals.called("exchange", name, self._vhost)

    # ---- recovery ------------------------------------------------------------------------------

    def recover(self) -> None:
        """Load exchanges and bindings from the engine. What is not understood here (a type of a
        later version) is left out with an event, and stays stored."""
        table = self._engine.routing
        for stored in table.exchanges.values():
            creator = table.creators.get(routing_table.exchange_key(stored.name), b"")
            try:
                self._add(_exchange_of(stored, _text(creator)))
            except (AMQPError, ValueError) as error:
                text = f"{self.called(_text(stored.name))} is left out: {error}"
                self._on_event("warning", text)
        stale: list[routing_table.DurableBinding] = []
        for bound in table.bindings:
            source, destination = _text(bound.source), _text(bound.destination)
            kind = bound.kind.decode()
            if kind == QUEUE and not self._has_queue(destination):
                stale.append(bound)
                continue
            if source not in self.exchanges or (
                kind == EXCHANGE and destination not in self.exchanges
            ):
                continue
            creator = table.creators.get(routing_table.binding_key(bound), b"")
            try:
                arguments = _decoded(bound.arguments)
                self.router.bind(
                    source, kind, destination, _text(bound.key), arguments, _text(creator),
                    bound.arguments,
                )  # fmt: skip
            except AMQPError as error:
                text = f"a binding of {self.called(source)} is left out: {error}"
                self._on_event("warning", text)
        self._unbind_stale(stale)

    def _unbind_stale(self, stale: list[routing_table.DurableBinding]) -> None:
        """Delete bindings of queues that do not exist: the library deletes queues and knows of no
        bindings. A queue of that name that is declared later begins without them."""
        with self._engine.journal.one_record(OS):
            for bound in stale:
                self._engine.apply_topology(bound.record(routing_table.UNBIND), OS)

    # ---- exchanges -----------------------------------------------------------------------------

    def check_exchange(self, name: str) -> Exchange:
        """Return the exchange of this name. ChannelError: 404, and 403 for the default one."""
        if not name:
            raise refusals.default_exchange()
        return self._known(name)

    def _known(self, name: str) -> Exchange:
        found = self.exchanges.get(name)
        if found is None:
            raise refusals.not_found(self.called(name))
        return found

    def declare_exchange(
        self, name: str, type_name: str, *, durable: bool = False, auto_delete: bool = False,
        internal: bool = False, arguments: dict[str, object] | None = None,
        by: Identity | None = None,
    ) -> int:  # fmt: skip
        """Declare an exchange for this user, or find that it exists with these properties.
        ChannelError: 403 (reserved, the default one), 406 (other properties). AMQPConnectionError
        503: an unknown type."""
        arguments = arguments or {}
        if type_name not in TYPES:
            raise refusals.unknown_type(type_name)
        if not name:
            raise refusals.default_exchange()
        known = self.exchanges.get(name)
        if known is not None:
            self._check_same(
                known, type_name, durable=durable, auto_delete=auto_delete, internal=internal,
                arguments=arguments,
            )  # fmt: skip
            return 0
        if name.startswith("amq."):
            raise refusals.reserved("exchange", name)
        alternate = arguments.get(ALTERNATE)
        if ALTERNATE in arguments and not isinstance(alternate, str):
            raise wrong_type(ALTERNATE, self.called(name), alternate)
        self._check_new(name, _keys_bytes(type_name, arguments), by)
        exchange = Exchange(
            name, type_name, durable=durable, auto_delete=auto_delete, internal=internal,
            arguments=arguments, creator="" if by is None else by.name,
        )  # fmt: skip
        record = _exchange_record(exchange) if durable else b""
        self._add(exchange)  # which checks the arguments of its type
        lsn = 0
        if durable:
            try:
                lsn = self._engine.apply_topology(record)
            except BaseException as error:
                self._forget(name)
                if isinstance(error, DiskFullError):
                    raise refusals.no_space(self.called(name), error) from error
                raise
            key = routing_table.exchange_key(_bytes(name))
            lsn = max(lsn, store_creator(self._engine, key, exchange.creator))
        if self.on_exchange is not None:
            self.on_exchange(exchange, True)
        return lsn

    def _check_same(
        self, known: Exchange, type_name: str, *, durable: bool, auto_delete: bool, internal: bool,
        arguments: dict[str, object],
    ) -> None:  # fmt: skip
        what = self.called(known.name)
        refusals.check_same("type", what, type_name, known.type)
        refusals.check_same("durable", what, durable, known.durable)
        refusals.check_same("auto_delete", what, auto_delete, known.auto_delete)
        refusals.check_same("internal", what, internal, known.internal)
        for name in (ALTERNATE, DELAYED_TYPE):
            check_same_argument(name, what, arguments, known.arguments)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> int:
        """Delete an exchange with the bindings from and to it; nothing happens if there is none.
        ChannelError: 403 (amq.*, the default one), 406 (if_unused, and it has bindings)."""
        if not name:
            raise refusals.default_exchange()
        if name.startswith("amq."):
            raise refusals.access_refused(f"deletion of system {self.called(name)} not allowed")
        if name not in self.exchanges:
            return 0
        if if_unused and self.router.has_bindings(name):
            raise refusals.precondition_failed(f"{self.called(name)} in use")
        doomed = self.doomed([name], [])
        with self._engine.journal.one_record(DISK) as one:
            self.log_deleted(doomed)
        self.forget(doomed)
        return one.lsn

    # ---- what goes along -----------------------------------------------------------------------

    def doomed(self, exchanges: list[str], queues: list[str]) -> list[str]:
        """Return all exchanges that are deleted with these exchanges and queues, in that order."""
        doomed = list(exchanges)
        known = set(exchanges)
        gone: set[object] = set()
        taken: Counter[str] = Counter()
        targets = deque((QUEUE, name) for name in queues)
        targets.extend((EXCHANGE, name) for name in exchanges)
        while targets:
            kind, name = targets.popleft()
            for binding in self.router.bindings_to(kind, name):
                source = self.exchanges[binding.source]
                if not source.auto_delete or binding.identity in gone:
                    continue
                gone.add(binding.identity)
                taken[source.name] += 1
                left = self.router.count_from(source.name) - taken[source.name]
                if not left and source.name not in known:
                    known.add(source.name)
                    doomed.append(source.name)
                    targets.append((EXCHANGE, source.name))
        return doomed

    def log_deleted(self, doomed: list[str]) -> None:
        """Delete the durable ones of these exchanges from the engine; inside `one_record`."""
        for name in doomed:
            if self.exchanges[name].durable:
                self._engine.apply_topology(routing_table.delete_exchange(_bytes(name)))

    def log_unbound(self, queue: str) -> None:
        """Delete the durable bindings of a durable queue from the engine; inside `one_record`."""
        for binding in self.router.bindings_to(QUEUE, queue):
            if self.exchanges[binding.source].durable:
                record = _stored_binding(binding).record(routing_table.UNBIND)
                self._engine.apply_topology(record)

    def forget(self, doomed: list[str]) -> None:
        """Delete these exchanges here, after the log."""
        for name in doomed:
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._engine.windows.delete(b"e" + _bytes(name))
        history = self.router.history_of(name)
        if history is not None:
            history.forget_all()
        self.router.delete(name)
        exchange = self.exchanges.pop(name)
        self._exchange_bytes -= exchange.held_bytes
        self._count(exchange.creator, -exchange.held_bytes)
        if self.on_exchange is not None:
            self.on_exchange(exchange, False)

    # ---- bindings ------------------------------------------------------------------------------

    def bind(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object],
        *, is_durable: bool, by: Identity | None = None,
    ) -> int:  # fmt: skip
        """Bind a queue or an exchange that exists, for this user; is_durable: it is durable.
        Nothing happens if it is bound already. ChannelError: 403 (the default exchange), 404, 406
        (invalid arguments)."""
        exchange = self.check_exchange(source)
        if self.router.find_binding(source, kind, destination, key, arguments) is not None:
            return 0
        self._check_binding(source, by)
        if kind == EXCHANGE and by is not None:
            self._check_between(source, by, self.router.between_exchanges.get(by.name, 0))
        creator = "" if by is None else by.name
        self.router.bind(source, kind, destination, key, arguments, creator)
        if not (is_durable and exchange.durable):
            return 0
        stored = _stored_binding(Binding(source, kind, destination, key, arguments))
        try:
            lsn = self._engine.apply_topology(stored.record())
        except BaseException as error:
            self.router.unbind(source, kind, destination, key, arguments)
            if isinstance(error, DiskFullError):
                raise refusals.no_space(self.called(source), error) from error
            raise
        return max(lsn, store_creator(self._engine, routing_table.binding_key(stored), creator))

    def bind_exchange(
        self, destination: str, source: str, key: str, arguments: dict[str, object] | None = None,
        by: Identity | None = None,
    ) -> int:  # fmt: skip
        """Bind the exchange `destination` to the exchange `source`, see `bind`."""
        if not (source and destination):
            raise refusals.default_exchange()
        self.check_exchange(source)
        target = self.check_exchange(destination)
        return self.bind(
            source, EXCHANGE, destination, key, arguments or {}, is_durable=target.durable, by=by
        )

    def unbind_exchange(
        self, destination: str, source: str, key: str, arguments: dict[str, object] | None = None
    ) -> int:
        """Delete a binding between exchanges, see `unbind`."""
        return self.unbind(source, EXCHANGE, destination, key, arguments or {})

    def is_internal(self, name: str) -> bool:
        """Return whether clients may not publish to this exchange."""
        found = self.exchanges.get(name)
        return found is not None and found.internal

    def unbind(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object]
    ) -> int:
        """Delete a binding, if it exists. An auto-delete exchange is deleted with its last one.
        ChannelError 403: the default exchange."""
        if not source or (kind == EXCHANGE and not destination):
            raise refusals.default_exchange()
        binding = self.router.find_binding(source, kind, destination, key, arguments)
        return 0 if binding is None else self._unbind(binding)

    def _unbind(self, binding: Binding) -> int:
        exchange = self.exchanges[binding.source]
        doomed: list[str] = []
        if exchange.auto_delete and self.router.count_from(binding.source) == 1:
            doomed = self.doomed([binding.source], [])
        stored = _stored_binding(binding)  # its arguments are those that were stored
        with self._engine.journal.one_record(DISK) as one:
            if stored in self._engine.routing.bindings:
                self._engine.apply_topology(stored.record(routing_table.UNBIND))
            self.log_deleted(doomed)
        self.router.remove(binding)
        self.forget(doomed)
        return one.lsn

    # ---- many bindings -------------------------------------------------------------------------

    def has_many(self, kind: str, name: str) -> bool:
        """Return whether a queue or exchange has so many bindings, or such large ones, that they
        are deleted before it, in slices (Unbinding): all in one record would be a turn of a
        second."""
        if self.router.count_at(kind, name) > MANY_BINDINGS:
            return True
        n_bytes = 0
        for binding in self.bindings_at(kind, name):
            n_bytes += len(binding.encoded)
        return n_bytes > MANY_BYTES

    def bindings_at(self, kind: str, name: str) -> list[Binding]:
        """Return the bindings to a queue, or to and from an exchange."""
        found = self.router.bindings_to(kind, name)
        return found + self.router.bindings_of(name) if kind == EXCHANGE else found

    def unbind_known(self, binding: Binding) -> None:
        """Delete a binding, unless it is gone."""
        if self.router.is_bound(binding):
            self._unbind(binding)


class UnbindingJob:
    """The bindings of one queue or exchange that is to be deleted, and what is called then."""

    def __init__(
        self, bindings: list[Binding], finish: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self.bindings: list[Binding] = bindings
        self.finish: Callable[[], None] = finish
        self.failed: Callable[[Exception], None] = failed


class Unbinding(BackgroundTask):
    """Deletes the bindings of what has many of them, a slice at a time, and then itself. Each goes
    as an unbind does; after a crash a part of them may be gone, and nobody was answered."""

    def __init__(self, topology: Topology, wake: Callable[[BackgroundTask], None]) -> None:
        self._topology = topology
        self._wake = wake
        self._jobs: deque[UnbindingJob] = deque()
        self._now: UnbindingJob | None = None

    def add(
        self, kind: str, name: str, finish: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        """Delete the bindings of this queue or exchange, and call `finish`, which deletes it; or
        `failed` with an error."""
        bindings = self._topology.bindings_at(kind, name)
        self._jobs.append(UnbindingJob(bindings, finish, failed))
        self._wake(self)

    def step(self) -> int:
        job = self._now = self._jobs.popleft()
        bindings = job.bindings
        n_bytes = 0
        for _ in range(min(UNBIND_SLICE, len(bindings))):
            binding = bindings.pop()
            self._topology.unbind_known(binding)
            n_bytes += len(binding.encoded)
            if n_bytes >= UNBIND_BYTES:
                break
        if bindings:
            self._jobs.append(job)
        else:
            job.finish()
        return AGAIN if self._jobs else DONE

    def failed(self, error: Exception) -> None:
        """End the job with the error, and go on with the next."""
        job, self._now = self._now, None
        if self._jobs:
            self._wake(self)
        if job is not None:
            job.failed(error)


def binding_called(bindings: Iterable[Binding], properties_key: str) -> Binding | None:
    """Return the binding of this properties_key, None if there is none. RabbitMQ also takes a key
    that was percent-decoded once more, as it comes when an address has it as it is listed, and the
    routing key itself, which its Java client sends."""
    found: Binding | None = None
    for one in bindings:
        listed = one.properties_key
        if listed == properties_key:
            return one
        if properties_key in (unquote(listed), unquote_plus(listed)):
            found = one
    return found


def _keys_bytes(type_name: str, arguments: dict[str, object]) -> int:
    """Return the bytes of RAM that the keys of an exchange which drops duplicates may take."""
    return keys_bytes(arguments, is_type=type_name == DEDUPLICATION)


def _any_number(_name: str, _keys_bytes: int, _by: Identity | None) -> None:
    """Do nothing: there is no limit."""


def _unlimited(_name: str, _by: Identity | None) -> None:
    """Do nothing: there is no limit."""


def _unbounded(_name: str, _by: Identity, _own: int) -> None:
    """Do nothing: there is no limit."""


def store_creator(engine: StorageEngine, key: bytes, user: str) -> int:
    """Store who has declared what has this key in `RoutingTable.creators`; return the LSN, 0 if
    there is nothing to store. On a full disk nothing is stored: after a restart it counts for
    nobody."""
    if not user:
        return 0
    try:
        return engine.apply_topology(routing_table.set_creator(key, _bytes(user)))
    except DiskFullError:
        return 0


def _exchange_of(stored: routing_table.DurableExchange, creator: str) -> Exchange:
    flags = stored.flags
    return Exchange(
        _text(stored.name), _text(stored.type), durable=True,
        auto_delete=bool(flags & AUTO_DELETE_FLAG), internal=bool(flags & INTERNAL_FLAG),
        arguments=_decoded(stored.arguments), creator=creator,
    )  # fmt: skip


def _exchange_record(exchange: Exchange) -> bytes:
    flags = AUTO_DELETE_FLAG if exchange.auto_delete else 0
    flags |= INTERNAL_FLAG if exchange.internal else 0
    return routing_table.DurableExchange(
        _bytes(exchange.name), exchange.type.encode(), flags, _encoded(exchange.arguments)
    ).record()


def _stored_binding(binding: Binding) -> routing_table.DurableBinding:
    return routing_table.DurableBinding(
        _bytes(binding.source), binding.kind.encode(), _bytes(binding.destination),
        _bytes(binding.key), binding.encoded,
    )  # fmt: skip


def _encoded(arguments: dict[str, object]) -> bytes:
    return encode_table(arguments) if arguments else b""


def _decoded(data: bytes) -> dict[str, object]:
    return decode_table(data)[0] if data else {}


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


# ---- dead letters --------------------------------------------------------------------------------

SHORT_STRING_BYTES_MAX: Final = 255


class DeadLetterRoutes:
    """What the routes of one vhost's queues share. target(name): the queue of that name, opened if
    necessary; None: no queue can take anything. share(exchange): called when a dead letter goes
    there (InFlight.share)."""

    def __init__(
        self, router: Router, headers: AmqpHeaders, target: Callable[[str], Target | None],
        budget: TurnBudget, share: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        self.router: Router = router
        self.headers: AmqpHeaders = headers
        self.target: Callable[[str], Target | None] = target
        self.budget: TurnBudget = budget
        self.share: Callable[[bytes], None] = share
        self.large: LargeLetters | None = None

    def of(self, queue: bytes, options: QueueOptions) -> DeadLetterRoute | None:
        """Return the route of the queue of this name, None if its options name no exchange."""
        to = options.dead_letter_exchange
        if to is None:
            return None
        return ExchangeRoute(queue.decode("utf-8", "surrogateescape"), to[0], to[1], self)


class LargeLetters(BackgroundTask):
    """Sends the large dead letters of a vhost, one after the other."""

    def __init__(self, engine: StorageEngine, background: BackgroundTasks) -> None:
        self._engine = engine
        self._background = background
        self._letters: deque[LargeLetter] = deque()

    def send(self, letter: LargeLetter) -> None:
        """Send the letter after all others."""
        self._letters.append(letter)
        self._wake()

    def _wake(self) -> None:
        self._background.wake(self)

    def step(self) -> int:
        letters = self._letters
        while letters and letters[0].is_over:  # its queue has ended
            letters.popleft()
        if not letters:
            return DONE
        if not self._engine.is_ready(letters[0].next_bytes):
            self._engine.when_ready(self._wake)
            return ASLEEP
        letter = letters[0]
        if letter.step():
            letters.popleft()
        elif letter.has_no_room:
            letter.has_no_room = False
            self._engine.when_ready(self._wake)
            return ASLEEP
        return AGAIN if letters else DONE

    def failed(self, error: Exception) -> None:
        """Leave the message of the letter pending: it is in the queue again after a restart."""
        self._letters.popleft().abandon()
        if self._letters:
            self._wake()
        raise error


class ExchangeRoute(DeadLetterRoute):
    """A route from `queue` to an exchange, with this routing key, or (None) with those of each
    message: its own, those in CC, and those that were in BCC.

    The router is asked when the message dies, with the headers of that moment, so bindings and
    exchanges may change at any time. The exchange need not exist when the queue is declared; a
    message that dies while it does not exist is dropped, with an event. Alternate exchanges count.
    A message that no queue is bound for is dropped silently, as a publish would be. One of type
    x-delayed-message routes at once: the delay of the message is over. In its new queues the
    message has that exchange and key, in deliveries and in the next death.

    Finding the queues is taken from the turn's budget, like all that a client asks for. A message
    for which it takes more than ROUTE_STEPS_MAX steps, for which no slice has room, is dropped with
    an event. RabbitMQ and Penstock check permissions when the queue is declared (permissions.py).
    """

    def __init__(
        self, queue: str, exchange: str, key: str | None, routes: DeadLetterRoutes
    ) -> None:
        super().__init__(routes.headers)
        self._queue = queue
        self._exchange = exchange
        self._key = key
        self._raw_exchange: bytes = _raw(exchange)
        self._raw_key: bytes | None = None if key is None else _raw(key)
        self._routes: DeadLetterRoutes = routes

    def find(self, header: bytes) -> tuple[bytes, list[str], str]:
        exchange = self._exchange
        routes = self._routes
        if not routes.router.has(exchange):
            return header, [], f"no exchange {exchange!r} for dead letters: dropped"
        routes.share(self._raw_exchange)
        header = self.readdressed(header)
        names = self._names(self._keys(header), header)
        if names is None:
            text = f"exchange {exchange!r} needs more than {ROUTE_STEPS_MAX} steps for one: dropped"
            return header, [], text
        return header, names, ""

    def later(self, letter: LargeLetter) -> bool:
        large = self._routes.large
        if large is None:  # the vhost is being opened
            return False
        large.send(letter)
        return True

    def only_target(self, header: bytes) -> str | None:
        routes = self._routes
        if self.address(header) is None or not routes.router.has(self._exchange):
            return None
        routes.share(self._raw_exchange)
        names = self._names(self._keys(self.readdressed(header)), None)
        return names[0] if names is not None and len(names) == 1 else None

    def address(self, header: bytes) -> bytes | None:
        return b"" if self._key is not None else self._routes.headers.address(header)

    def readdressed(self, header: bytes) -> bytes:
        codec = self._routes.headers
        header = codec.amqp(header, self._queue)
        return codec.readdressed(header, self._raw_exchange, self._raw_key)

    def _keys(self, header: bytes) -> list[str]:
        if self._key is not None:
            return [self._key]
        keys = self._routes.headers.keys(header)
        return [key.decode("utf-8", "surrogateescape") for key in keys]

    def target(self, name: str) -> Target | None:
        return self._routes.target(name)

    def may_return(self, header: bytes, names: list[str]) -> bool:
        if len(header) >= HOPS_MAX * DEATH_BYTES_MIN:
            return True
        props = self._routes.headers.parts(header)[1]  # their names would stand there
        for name in names:
            raw = _raw(name)
            if props.find(len(raw).to_bytes(4, "big") + raw) >= 0:
                return True
        return False

    def _names(self, keys: list[str], header: bytes | None) -> list[str] | None:
        """Return the queues that the exchange selects; None: it takes too long to find them, or
        without a header, that more than the keys decides. What it takes is taken from the turn's
        budget."""
        router = self._routes.router
        way = Way(router, self._exchange)
        asked = Asked(keys, None, ROUTE_STEPS_MAX)
        is_done = way.advance(asked)
        left = asked.steps
        names = list(way.queues)
        if is_done and way.per_message and header is None:
            is_done = False
        elif is_done and way.per_message and header is not None:
            props = self._properties(header)
            walk = Walk(router, way, keys, None if props is None else props.headers, props)
            left = walk.advance(left)
            is_done = walk.is_done
            names = list(walk.queues)
        self._routes.budget.left -= ROUTE_STEPS_MAX - left + len(names)
        return names if is_done else None

    def _properties(self, header: bytes) -> BasicProperties | None:
        """Return the properties for the router; None if they are damaged."""
        try:
            return BasicProperties.decode(self._routes.headers.parts(header)[1])
        except AMQPError:
            return None


def _raw(name: str) -> bytes:
    """Return the bytes of a short string; a longer name is the name of nothing that exists."""
    return name.encode("utf-8", "surrogateescape")[:SHORT_STRING_BYTES_MAX]
