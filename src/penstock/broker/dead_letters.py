"""Dead letters on a broker: from a queue's dead letter exchange to the queues that get them.

A queue names an exchange and perhaps a routing key. Without a key a message keeps its own, those in
CC, and those that were in BCC; with one it loses them. The router is asked when the message dies,
with the headers of that moment, so bindings and exchanges may change at any time. The exchange need
not exist when the queue is declared; a message that dies while it does not exist is dropped, with
an event. Alternate exchanges count. A message that no queue is bound for is dropped silently, as a
publish would be.

A queue in which the message died already does not get it again, unless a client rejected it on the
way (`is_cycle`); other queues do. RabbitMQ 3 has the same rules.

In its new queues the message has that exchange and key, in deliveries and in the next death.

Finding the queues is taken from the turn's budget, like all that a client asks for. A message for
which it takes more than ROUTE_STEPS_MAX steps, for which no slice has room, is dropped with an
event.

A dead letter exchange of type x-delayed-message routes at once: the delay of the message is over.

RabbitMQ and Penstock check permissions for this when the queue is declared (permissions.py).
"""

from collections.abc import Callable
from typing import Final

from penstock.broker.turn_budget import TurnBudget
from penstock.codec.properties import BasicProperties
from penstock.errors import AMQPError
from penstock.queues.amqp_headers import AmqpHeaders
from penstock.queues.dead_letter import (
    CYCLE,
    HOPS,
    HOPS_MAX,
    MISSING,
    DeadLetterRoute,
    Routed,
    Target,
    far_text,
    is_cycle,
    is_too_far,
)
from penstock.queues.headers import REJECTED
from penstock.queues.queue_options import QueueOptions
from penstock.routing.exchange_types import Asked
from penstock.routing.router import ROUTE_STEPS_MAX, Router, Walk, Way

SHORT_STRING_BYTES_MAX: Final = 255
DEATH_BYTES_MIN: Final = 64  # of an entry of x-death: its six names and values


class DeadLetterRoutes:
    """Makes the routes of one vhost's queues. target(name): the queue of that name, opened if
    necessary; None: no queue can take anything. share(exchange): called when a dead letter goes
    there (InFlight.share)."""

    def __init__(
        self, router: Router, headers: AmqpHeaders, target: Callable[[str], Target | None],
        budget: TurnBudget, share: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        self._router = router
        self._share: Callable[[bytes], None] = share
        self._headers = headers
        self._target = target
        self._budget: TurnBudget = budget

    def of(self, queue: bytes) -> Callable[[QueueOptions], DeadLetterRoute | None]:
        """Return a function for the queue of this name that AMQQueue calls with its options. It
        returns the route, or None if they name no exchange."""

        def route_of(options: QueueOptions) -> DeadLetterRoute | None:
            return self._route(queue.decode("utf-8", "surrogateescape"), options)

        return route_of

    def _route(self, queue: str, options: QueueOptions) -> DeadLetterRoute | None:
        target = options.dead_letter_exchange
        if target is None:
            return None
        exchange, key = target
        return ExchangeRoute(
            queue, exchange, key, self._router, self._headers, self._target, self._budget,
            self._share,
        )  # fmt: skip


class ExchangeRoute(DeadLetterRoute):
    """A route from `queue` to an exchange, with this routing key, or (None) with each message's
    own."""

    def __init__(
        self, queue: str, exchange: str, key: str | None, router: Router, headers: AmqpHeaders,
        target: Callable[[str], Target | None], budget: TurnBudget,
        share: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        self._queue = queue
        self._share: Callable[[bytes], None] = share
        self._budget: TurnBudget = budget
        self._exchange = exchange
        self._key = key
        self._raw_exchange: bytes = _raw(exchange)
        self._raw_key: bytes | None = None if key is None else _raw(key)
        self._router = router
        self._headers = headers
        self._target = target

    def route(self, header: bytes, reason: str) -> Routed:
        exchange = self._exchange
        router = self._router
        if not router.has(exchange):
            text = f"no exchange {exchange!r} for dead letters: dropped"
            return Routed(header, [], MISSING, text)
        self._share(self._raw_exchange)
        codec = self._headers
        header = codec.amqp(header, self._queue)
        header = codec.readdressed(header, self._raw_exchange, self._raw_key)
        key = self._key
        if key is None:
            keys = [found.decode("utf-8", "surrogateescape") for found in codec.keys(header)]
        else:
            keys = [key]
        found = self._names(keys, header)
        if found is None:
            text = f"exchange {exchange!r} needs more than {ROUTE_STEPS_MAX} steps for one: dropped"
            return Routed(header, [], MISSING, text)
        names = found
        if reason != REJECTED and self._is_too_far(header):
            return Routed(header, [], HOPS, far_text(self._queue))
        cycling = [] if reason == REJECTED else self._cycling(names, header)
        targets: list[Target] = []
        for name in names:
            target = None if name in cycling else self._target(name)
            if target is not None:
                targets.append(target)
        if not cycling:
            return Routed(header, targets)
        there = ", ".join(repr(name) for name in cycling)
        return Routed(header, targets, CYCLE, f"its dead letters come back from {there}: dropped")

    def _names(self, keys: list[str], header: bytes) -> list[str] | None:
        """Return the queues that the exchange selects; None: it takes too long to find them. What
        it takes is taken from the turn's budget."""
        router = self._router
        way = Way(router, self._exchange)
        asked = Asked(keys, None, ROUTE_STEPS_MAX)
        is_done = way.advance(asked)
        left = asked.steps
        names = list(way.queues)
        if is_done and way.per_message:
            props = self._properties(header)
            walk = Walk(router, way, keys, None if props is None else props.headers, props)
            left = walk.advance(left)
            is_done = walk.is_done
            names = list(walk.queues)
        self._budget.left -= ROUTE_STEPS_MAX - left
        return names if is_done else None

    def _cycling(self, names: list[str], header: bytes) -> list[str]:
        """Return those of the queues to which the message would come back by itself."""
        props = self._headers.parts(header)[1]
        # Their names would stand there: nearly always that is all there is to look at.
        if not [name for name in names if _raw(name) in props]:
            return []
        deaths = self._headers.deaths(header)
        return [name for name in names if is_cycle(name, deaths)]

    def _is_too_far(self, header: bytes) -> bool:
        """Return whether it moved through too many queues by itself."""
        if len(header) < HOPS_MAX * DEATH_BYTES_MIN:
            return False
        return is_too_far(self._headers.deaths(header))

    def _properties(self, header: bytes) -> BasicProperties | None:
        """Return the properties for the router; None if they are damaged."""
        try:
            return BasicProperties.decode(self._headers.parts(header)[1])
        except AMQPError:
            return None


def _raw(name: str) -> bytes:
    """Return the bytes of a short string; a longer name is the name of nothing that exists."""
    return name.encode("utf-8", "surrogateescape")[:SHORT_STRING_BYTES_MAX]
