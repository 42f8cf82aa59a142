"""Publish: from a publish on the wire to its queues.

    run          for each publish of a run: its route, its properties' few facts, then
    _publish     one queue: AMQQueue.publish, which appends the record
    _append      one stream: ServedStream.append, which does too
                 several: one record and one body for all of them (fan_out.py)
                 none: back to the publisher if it is mandatory

**Routes are cached by bytes.** Exchange, key and bits of a basic.publish are one slice of the
frame; the same slice goes the same way until topology or permissions change (`router.version`). So
permission, exchange and bindings are looked at once per slice and channel. Not cached are messages
that headers route, and those with CC, BCC or x-delay headers.

**Properties are looked at, not decoded**: `scan` validates the list and gives delivery mode,
priority and which properties there are; only expiration, user-id, reply-to and some headers need
more.

A message is persistent if its delivery mode is 2 and its queue is durable; else it is in RAM, or
paged to what is wiped at start, and confirmed at once. In a stream it is persistent in any case.

A queue that refuses (reject-publish) makes the publish a basic.nack; other queues that it went to
have it. A full disk stops the run at the message that did not fit: `run` says how many were taken,
the rest is kept by the connection until there is room.

A channel of the library's box may send all it publishes to one stream (`send_to`), by key alone,
and ask for the offsets.

Not here: several queues (fan_out.py), bodies that are spooled (spooled.py), transactions
(transactions.py).
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import Final

from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.broker.confirms import Confirms
from penstock.broker.copies import copies, has_copies
from penstock.broker.deliver import HEADERS, write_return
from penstock.broker.dispatch import Dispatch
from penstock.broker.fan_out import fan_out
from penstock.broker.large_content import LargeContent
from penstock.broker.output import Output
from penstock.broker.publish_facts import (
    Facts,
    check_user,
    delay_of,
    expiration_of,
    with_reply_to,
)
from penstock.broker.served_queue import ServedQueue
from penstock.broker.served_stream import ServedStream
from penstock.broker.vhost import VHost
from penstock.codec.properties import BasicProperties, scan
from penstock.errors import (
    NO_ROUTE,
    NOT_IMPLEMENTED,
    AMQPConnectionError,
    DiskFullError,
    QueueFullError,
)
from penstock.message import Message
from penstock.native import mypyc_attr
from penstock.storage.durability import NONE

MANDATORY: Final = 1
IMMEDIATE: Final = 2
ROUTES_MAX: Final = 4096  # per channel; random keys must not grow it for ever
APPENDED_MAX: Final = 10_000
# A run of publishes to many queues is cut: the clock is looked at after so many places in queues.
RUN_STEPS: Final = 256
SPECIAL_STEPS: Final = 32  # of a publish that is routed by itself
RUN_S: Final = 0.01
PERSISTENT: Final = 2
# Property flags that say that more than the scan is needed.
HAS_HEADERS: Final = 0x2000
HAS_REPLY_TO: Final = 0x0200
HAS_EXPIRATION: Final = 0x0100
HAS_USER_ID: Final = 0x0010
SPECIAL: Final = HAS_HEADERS | HAS_REPLY_TO | HAS_EXPIRATION | HAS_USER_ID
REPLY_TO: Final = b"amq.rabbitmq.reply-to"


class Targets:
    """The queues and the streams that a message goes to."""

    __slots__ = ("queues", "streams")

    def __init__(self) -> None:
        self.queues: list[ServedQueue] = []
        self.streams: list[ServedStream] = []


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
        # It is no queue's alone: headers route, or delay, or it leads to streams.
        self.is_special: bool = False
        self.targets: Targets = Targets()
        self.queues: list[ServedQueue] = self.targets.queues


@mypyc_attr(allow_interpreted_subclasses=True)
class Collecting(ABC):
    """A transaction: what is published in it is published when it commits."""

    @abstractmethod
    def put(
        self, route: Route, targets: Targets, header: bytes, props: bytes, body: bytes,
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
        self.is_sliced: bool = False  # the last run ended before its time
        self.reply_queue: str = ""  # what stands for REPLY_TO in messages of this channel
        self._routes: dict[bytes, Route] = {}
        self._version: int = -1
        self._facts: Facts = Facts()
        self._stream: ServedStream | None = None  # where all publishes go
        self.appended: deque[tuple[int, int]] | None = None  # (partition, offset) of the last ones

    def send_to(self, stream: ServedStream | None) -> None:
        """From now on all publishes go to this stream, whatever they are published to; None: where
        they are published to. Their places are noted in `appended`."""
        self._stream = stream
        self.appended = None if stream is None else deque(maxlen=APPENDED_MAX)
        self._version = -1

    def forget_routes(self) -> None:
        """Permissions have changed."""
        self._version = -1

    # ---- a run ---------------------------------------------------------------------------------

    def run(self, routes: list[bytes], headers: list[bytes], bodies: list[bytes]) -> int:
        """Publish them in order; how many were dealt with. Fewer than all: `is_sliced` says that
        they took longer than RUN_S, and others are to be served before the rest; else the disk is
        full.
        ChannelError, AMQPConnectionError: of the one behind those before it, which are in."""
        raw = b""
        route: Route | None = None
        props = b""
        info = 0
        n = len(routes)
        self.is_sliced = False
        steps = 0
        until_s = 0.0
        for i in range(n):
            if steps >= RUN_STEPS:
                steps = 0
                now_s = self.vhost.clock.monotonic()
                if until_s == 0.0:
                    until_s = now_s + RUN_S
                elif now_s > until_s:
                    self.is_sliced = True
                    return i
            if route is None or routes[i] != raw:
                raw = routes[i]
                route = self.route(raw)
            if headers[i] != props or not info:
                props = headers[i]
                info = scan(props)
            try:
                if info >> 16 & SPECIAL or route.is_special:
                    self._publish_special(route, props, info, bodies[i])
                    steps += SPECIAL_STEPS
                else:
                    self._publish(route, route.queues, props, info, bodies[i])
                    steps += 1 + len(route.queues)
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
        if self._stream is not None:
            stream, identity = self._stream, self.identity
            if not identity.may_write(stream.name):  # it was revoked
                raise refusals.no_access("write", "queue", stream.name, vhost.name, identity.name)
            if stream.is_deleted:
                raise refusals.not_found(stream.what)
            route.is_special = True
            route.targets.streams.append(self._stream)
            return route
        if raw[-1] & IMMEDIATE:
            raise AMQPConnectionError(NOT_IMPLEMENTED, "immediate=true", 60, 40)
        what = refusals.called("exchange", exchange, vhost.name)
        # First, so that nobody learns what exists where they may not write.
        if not self.identity.may_write(exchange or refusals.DEFAULT):
            raise refusals.no_access("write", "exchange", exchange, vhost.name, self.identity.name)
        if not vhost.router.has(exchange):
            raise refusals.not_found(what)
        if vhost.is_internal(exchange):
            raise refusals.access_refused(f"cannot publish to internal {what}")
        route.by_headers = vhost.router.depends_on_headers(exchange)
        route.is_delayed = vhost.router.delayed(exchange)
        if not route.by_headers:
            route.targets = self.targets(vhost.router.route(exchange, key, None))
            route.queues = route.targets.queues
        route.is_special = route.by_headers or route.is_delayed or bool(route.targets.streams)
        return route

    def targets(self, names: list[str]) -> Targets:
        """The queues and streams of these names that can be published to."""
        found = Targets()
        for name in names:
            queue = self.vhost.served(name)
            if isinstance(queue, ServedStream):
                found.streams.append(queue)
            elif isinstance(queue, ServedQueue) and not queue.is_crashed:
                found.queues.append(queue)
        return found

    # ---- one message ---------------------------------------------------------------------------

    def _publish(
        self, route: Route, queues: list[ServedQueue], props: bytes, info: int, body: bytes
    ) -> None:
        """A message that is no more than its delivery mode and priority."""
        if self.transaction is not None or len(queues) != 1:
            facts = self._facts
            facts.set_plain(info)
            self.publish_with(route, route.targets, props, body, facts)
            return
        queue = queues[0]
        mode = self._mode if info & 0xFF == PERSISTENT and queue.is_durable else NONE
        priority = info >> 8 & 0xFF
        if priority > queue.priorities:
            priority = queue.priorities
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
        """One of whose properties more must be known, or that goes to a stream."""
        if not (info >> 16 & SPECIAL or route.by_headers or self.transaction is not None):
            streams = route.targets.streams
            if len(streams) == 1 and not route.queues:
                self._append(streams[0], route.front + props, body)
                return
        facts, targets, props = self.facts_of(route, props, info)
        self.publish_with(route, targets, props, body, facts)

    def _append(self, stream: ServedStream, header: bytes, body: bytes) -> None:
        """A message for one stream alone."""
        lsn = stream.append(header, body, self._mode)
        self._dispatch.be_due()
        if self.appended is not None:
            self.appended.append(stream.last_place)
        if self.confirms is not None:
            self.confirms.published(lsn)

    def facts_of(self, route: Route, props: bytes, info: int) -> tuple[Facts, Targets, bytes]:
        """What must be known of a message, where it goes, and its properties as they are stored."""
        facts = Facts()
        facts.set_plain(info)
        flags = info >> 16
        targets = route.targets
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
            if self._stream is None:
                targets = self.targets(router.route(route.exchange, route.key, headers, keys))
        return facts, targets, props

    def _with_reply_queue(self, props: bytes) -> bytes:
        if not self.reply_queue:
            raise refusals.precondition_failed("fast reply consumer does not exist")
        return with_reply_to(props, self.reply_queue)

    def publish_with(
        self, route: Route, targets: Targets, props: bytes, body: bytes, facts: Facts,
        spooled: Message | None = None,
    ) -> None:  # fmt: skip
        """Any message: to a transaction, to several queues, to none. spooled: its body is in the
        store, and `body` is empty."""
        header = route.front + props
        if facts.hidden:
            header = HEADERS.with_hidden(header, facts.hidden)
        if self.transaction is not None:
            self.transaction.put(route, targets, header, props, body, facts)
            return
        queues, streams = targets.queues, targets.streams
        if not queues and not streams:
            if route.is_mandatory and spooled is not None:
                self.give_back_stored(route, props, spooled)
            elif route.is_mandatory:
                self.give_back(route, props, body)
            if self.confirms is not None:
                self.confirms.published(0)
            return
        lsn, is_refused = fan_out(self.vhost, queues, streams, header, body, facts, spooled)
        if self.appended is not None:
            for stream in streams:
                self.appended.append(stream.last_place)
        if self.confirms is not None:
            if is_refused:
                self.confirms.refused()
            else:
                self.confirms.published(lsn)

    def give_back(self, route: Route, props: bytes, body: bytes) -> None:
        """A mandatory message that no queue gets."""
        self._return(route, props, len(body), body)

    def give_back_stored(self, route: Route, props: bytes, message: Message) -> None:
        """The same of one whose body is in the store. CorruptionError, OSError."""
        body = self.vhost.engine.open_body(message)
        self._return(route, props, message.size, None)
        self.output.put_large(LargeContent(self.number, self.output.frame_max, body))

    def _return(self, route: Route, props: bytes, size: int, body: bytes | None) -> None:
        output = self.output
        write_return(output, self.number, NO_ROUTE, "NO_ROUTE", route.address, props, size, body)
