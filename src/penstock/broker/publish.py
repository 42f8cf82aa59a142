"""Publish: from a publish on the wire to its queues.

    run          for each publish of a run: its route, its properties' few facts, then
    _publish     one queue: AMQQueue.publish, which appends the record
                 several: one record and one body for all of them (`_fan_out`)
                 none: back to the publisher if it is mandatory

**Routes are cached by bytes.** Exchange, key and bits of a basic.publish are one slice of the
frame; the same slice goes the same way until topology or permissions change (`router.version`). So
permission, exchange and bindings are looked at once per slice and channel. Not cached are messages
that headers route, and those with CC, BCC or x-delay headers.

**Properties are looked at, not decoded**: `scan` validates the list and gives delivery mode,
priority and which properties there are; only expiration, user-id, reply-to and some headers need
more.

A message is persistent if its delivery mode is 2 and its queue is durable; else it is in RAM, or
paged to what is wiped at start, and confirmed at once.

A queue that refuses (reject-publish) makes the publish a basic.nack; other queues that it went to
have it. A full disk stops the run at the message that did not fit: `run` says how many were taken,
the rest is kept by the connection until there is room.

Not here: bodies that are spooled (spooled.py), transactions (transactions.py).
"""

from abc import ABC, abstractmethod
from typing import Final

from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.broker.confirms import Confirms
from penstock.broker.copies import copies, has_copies
from penstock.broker.deliver import HEADERS, write_return
from penstock.broker.dispatch import Dispatch
from penstock.broker.output import Output
from penstock.broker.publish_facts import (
    Facts,
    check_user,
    delay_of,
    expiration_of,
    with_reply_to,
)
from penstock.broker.served_queue import ServedQueue
from penstock.broker.vhost import VHost
from penstock.codec.properties import BasicProperties, scan
from penstock.codec.spec import NO_ROUTE, NOT_IMPLEMENTED
from penstock.errors import AMQPConnectionError, DiskFullError, QueueFullError
from penstock.message import Message
from penstock.native import mypyc_attr
from penstock.queues.arrivals import Plan
from penstock.queues.queue_options import DROP_HEAD
from penstock.storage.durability import NONE

MANDATORY: Final = 1
IMMEDIATE: Final = 2
ROUTES_MAX: Final = 4096  # per channel; random keys must not grow it for ever
PERSISTENT: Final = 2
# Property flags that say that more than the scan is needed.
HAS_HEADERS: Final = 0x2000
HAS_REPLY_TO: Final = 0x0200
HAS_EXPIRATION: Final = 0x0100
HAS_USER_ID: Final = 0x0010
SPECIAL: Final = HAS_HEADERS | HAS_REPLY_TO | HAS_EXPIRATION | HAS_USER_ID
REPLY_TO: Final = b"amq.rabbitmq.reply-to"


class Route:
    """Where one slice of a publish frame leads. front: of the stored header."""

    def __init__(self, raw: bytes, exchange: str, key: str) -> None:
        self.exchange: str = exchange
        self.key: str = key
        self.address: bytes = raw[:-1]
        self.front: bytes = b"\x02" + raw[:-1]
        self.is_mandatory: bool = raw[-1] & MANDATORY != 0
        self.by_headers: bool = False
        self.is_delayed: bool = False
        self.queues: list[ServedQueue] = []


@mypyc_attr(allow_interpreted_subclasses=True)
class Collecting(ABC):
    """A transaction: what is published in it is published when it commits."""

    @abstractmethod
    def put(
        self, route: Route, queues: list[ServedQueue], header: bytes, props: bytes, body: bytes,
        facts: Facts,
    ) -> None:  # fmt: skip
        """One publish."""


class Publisher:
    """Of one channel. `confirms`: in confirm mode; `transaction`: in a transaction's."""

    def __init__(self, vhost: VHost, identity: Identity, number: int, output: Output) -> None:
        self.vhost: VHost = vhost
        self._dispatch: Dispatch = vhost.dispatch
        self._mode: int = vhost.mode
        self.identity: Identity = identity
        self.number: int = number
        self.output: Output = output
        self.confirms: Confirms | None = None
        self.transaction: Collecting | None = None
        self.reply_queue: str = ""  # what stands for REPLY_TO in messages of this channel
        self._routes: dict[bytes, Route] = {}
        self._version: int = -1
        self._facts: Facts = Facts()

    def forget_routes(self) -> None:
        """Permissions have changed."""
        self._version = -1

    # ---- a run ---------------------------------------------------------------------------------

    def run(self, routes: list[bytes], headers: list[bytes], bodies: list[bytes]) -> int:
        """Publish them in order; how many were dealt with. Fewer than all: the disk is full.
        ChannelError, AMQPConnectionError: of the one behind those before it, which are in."""
        raw = b""
        route: Route | None = None
        props = b""
        info = 0
        n = len(routes)
        for i in range(n):
            if route is None or routes[i] != raw:
                raw = routes[i]
                route = self.route(raw)
            if headers[i] != props or not info:
                props = headers[i]
                info = scan(props)
            try:
                if info >> 16 & SPECIAL or route.by_headers or route.is_delayed:
                    self._publish_special(route, props, info, bodies[i])
                else:
                    self._publish(route, route.queues, props, info, bodies[i])
            except DiskFullError:
                return i
        return n

    def route(self, raw: bytes) -> Route:
        """The way of a publish with this slice. ChannelError 403, 404."""
        vhost = self.vhost
        if vhost.router.version != self._version or len(self._routes) >= ROUTES_MAX:
            self._version = vhost.router.version
            self._routes = {}
        known = self._routes.get(raw)
        if known is None:
            known = self._resolve(raw)
            self._routes[raw] = known
        return known

    def _resolve(self, raw: bytes) -> Route:
        vhost = self.vhost
        end = 1 + raw[0]
        exchange = raw[1:end].decode("utf-8", "surrogateescape")
        key = raw[end + 1 : -1].decode("utf-8", "surrogateescape")
        route = Route(raw, exchange, key)
        if raw[-1] & IMMEDIATE:
            raise AMQPConnectionError(NOT_IMPLEMENTED, "immediate=true", 60, 40)
        what = refusals.called("exchange", exchange, vhost.name)
        if not vhost.router.has(exchange):
            raise refusals.not_found(what)
        if not self.identity.may_write(exchange or refusals.DEFAULT):
            raise refusals.no_access("write", "exchange", exchange, vhost.name, self.identity.name)
        if vhost.is_internal(exchange):
            raise refusals.access_refused(f"cannot publish to internal {what}")
        route.by_headers = vhost.router.depends_on_headers(exchange)
        route.is_delayed = vhost.router.delayed(exchange)
        if not route.by_headers:
            route.queues = self.queues(vhost.router.route(exchange, key, None))
        return route

    def queues(self, names: list[str]) -> list[ServedQueue]:
        """The queues of these names that can be published to."""
        found: list[ServedQueue] = []
        for name in names:
            queue = self.vhost.served(name)
            if queue is not None and not queue.is_crashed:
                found.append(queue)
        return found

    # ---- one message ---------------------------------------------------------------------------

    def _publish(
        self, route: Route, queues: list[ServedQueue], props: bytes, info: int, body: bytes
    ) -> None:
        """A message that is no more than its delivery mode and priority."""
        if self.transaction is not None or len(queues) != 1:
            facts = self._facts
            facts.set_plain(info)
            self.publish_with(route, queues, props, body, facts)
            return
        queue = queues[0]
        mode = self._mode if info & 0xFF == PERSISTENT and queue.is_durable else NONE
        priority = info >> 8 & 0xFF
        if priority > queue.priorities:
            priority = queue.priorities
        if queue.is_immediate:
            queue.amq.takers = queue.consumers.room()
        try:
            lsn = queue.amq.publish(route.front + props, body, mode, priority=priority)
        except QueueFullError:
            self._refused(queue)
            return
        queue.published += 1
        self._dispatch.mark(queue)
        if self.confirms is not None:
            self.confirms.published(lsn)

    def _refused(self, queue: ServedQueue) -> None:
        self._dispatch.mark(queue)
        if self.confirms is not None:
            self.confirms.refused()

    def _publish_special(self, route: Route, props: bytes, info: int, body: bytes) -> None:
        """One of whose properties more must be known."""
        facts, queues, props = self.facts_of(route, props, info)
        self.publish_with(route, queues, props, body, facts)

    def facts_of(
        self, route: Route, props: bytes, info: int
    ) -> tuple[Facts, list[ServedQueue], bytes]:
        """What must be known of a message, its queues, and its properties as they are stored."""
        facts = Facts()
        facts.set_plain(info)
        flags = info >> 16
        queues = route.queues
        if flags & HAS_EXPIRATION:
            facts.ttl_ms = expiration_of(props)
        if flags & HAS_USER_ID:
            check_user(props, self.identity.name)
        if flags & HAS_REPLY_TO and REPLY_TO in props:
            props = self._with_reply_queue(props)
        has_headers = flags & HAS_HEADERS != 0
        if has_headers and (route.is_delayed or b"\x07x-delay" in props):
            facts.delay_ms = delay_of(props, is_exchange=route.is_delayed)
        keys: list[str] = []
        if has_headers and has_copies(props):
            found = copies(props)
            props = found.props
            facts.hidden = found.bcc
            keys = [key.decode("utf-8", "surrogateescape") for key in found.cc + found.bcc]
        if route.by_headers or keys:
            headers = BasicProperties.decode(props).headers
            router = self.vhost.router
            queues = self.queues(router.route(route.exchange, route.key, headers, keys))
        return facts, queues, props

    def _with_reply_queue(self, props: bytes) -> bytes:
        if not self.reply_queue:
            raise refusals.precondition_failed("fast reply consumer does not exist")
        return with_reply_to(props, self.reply_queue)

    def publish_with(
        self, route: Route, queues: list[ServedQueue], props: bytes, body: bytes, facts: Facts,
        spooled: Message | None = None,
    ) -> None:  # fmt: skip
        """Any message: to a transaction, to several queues, to none. spooled: its body is in the
        store, and `body` is empty."""
        header = route.front + props
        if facts.hidden:
            header = HEADERS.with_hidden(header, facts.hidden)
        if self.transaction is not None:
            self.transaction.put(route, queues, header, props, body, facts)
            return
        if not queues:
            if route.is_mandatory:
                self.give_back(route, props, body)
            if self.confirms is not None:
                self.confirms.published(0)
            return
        lsn, is_refused = fan_out(self.vhost, queues, header, body, facts, spooled)
        if self.confirms is not None:
            if is_refused:
                self.confirms.refused()
            else:
                self.confirms.published(lsn)

    def give_back(self, route: Route, props: bytes, body: bytes) -> None:
        """A mandatory message that no queue gets."""
        write_return(self.output, self.number, NO_ROUTE, "NO_ROUTE", route.address, props, body)


def fan_out(
    vhost: VHost, queues: list[ServedQueue], header: bytes, body: bytes, facts: Facts,
    spooled: Message | None = None,
) -> tuple[int, bool]:  # fmt: skip
    """Publish to all these queues, body and record once for those that take it alike. The LSN to
    wait for, and whether a queue refused. DiskFullError: none that shares a record has it."""
    shared: list[ServedQueue] = []
    lsn = 0
    is_refused = False
    size = len(body) if spooled is None else spooled.size
    for queue in queues:
        mode = vhost.mode if facts.is_persistent and queue.is_durable else NONE
        options = queue.amq.options
        if facts.ttl_ms != 0 and options.ttl_ms != 0 and options.overflow == DROP_HEAD:
            shared.append(queue)
            continue
        # It may refuse, or it is for whoever waits now: the queue decides by itself.
        queue.amq.takers = queue.consumers.room()
        whole = body if spooled is None else whole_body(vhost, spooled)
        try:
            one = queue.amq.publish(
                header, whole, mode, priority=min(facts.priority, queue.priorities),
                ttl_ms=facts.ttl_ms, delay_ms=facts.delay_ms,
            )  # fmt: skip
        except QueueFullError:
            is_refused = True
        else:
            lsn = max(lsn, one)
            queue.published += 1
        vhost.dispatch.mark(queue)
    if shared:
        lsn = max(lsn, _publish_shared(vhost, shared, header, body, size, facts, spooled))
    return lsn, is_refused


def _publish_shared(
    vhost: VHost, queues: list[ServedQueue], header: bytes, body: bytes, size: int, facts: Facts,
    spooled: Message | None,
) -> int:  # fmt: skip
    """One record for all queues to which the message is the same. The LSN, 0 if none is durable."""
    engine = vhost.engine
    plans: list[tuple[ServedQueue, Plan]] = []
    done = 0
    lsn = 0
    try:
        for queue in queues:
            plan = queue.amq.plan(
                header, priority=min(facts.priority, queue.priorities), ttl_ms=facts.ttl_ms,
                delay_ms=facts.delay_ms,
            )  # fmt: skip
            plans.append((queue, plan))
        plans.sort(key=_by_kind)
        while done < len(plans):
            first, like = plans[done]
            group = [plans[done]]
            for other, plan in plans[done + 1 :]:
                if (
                    plan.expiry_ms != like.expiry_ms
                    or plan.header != like.header
                    or other.is_durable != first.is_durable
                ):
                    break
                group.append((other, plan))
            mode = vhost.mode if facts.is_persistent and first.is_durable else NONE
            targets = [plan.index for _, plan in group]
            if spooled is not None and mode != NONE and not done:
                spooled.expiry_ms = like.expiry_ms
                engine.publish_spooled(targets, like.header, spooled, mode)
            else:
                whole = body if spooled is None else whole_body(vhost, spooled)
                engine.publish(targets, like.header, whole, mode, like.expiry_ms)
            if mode != NONE:
                lsn = engine.last_lsn
            for queue, plan in group:
                done += 1
                queue.amq.planned(plan, plan.index.next_seq - 1, size)
                queue.published += 1
                vhost.dispatch.mark(queue)
    except BaseException:
        for queue, plan in plans[done:]:
            queue.amq.unplan(plan)
        raise
    return lsn


def whole_body(vhost: VHost, spooled: Message) -> bytes:
    """A spooled body, read back, for a queue that cannot share it."""
    return vhost.engine.state.store.read(spooled.store_file, spooled.id)


def _by_kind(planned: tuple[ServedQueue, Plan]) -> tuple[bool, int, bytes]:
    """Durable ones first, those that are alike together."""
    queue, plan = planned
    return (not queue.is_durable, plan.expiry_ms, plan.header)
