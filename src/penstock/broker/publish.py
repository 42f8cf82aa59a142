"""Publish: from a publish on the wire to its queues.

    Publisher.run    for each publish of a run: its route, the few facts of its properties, then
    _publish         one queue: AMQQueue.publish, which appends the record
    _append          one stream: BrokerStream.append, which does too
    fan_out          several: one record and one body for all of them
                     none: the message is returned to the publisher if it is mandatory

**Routes are cached by bytes.** Exchange, key and bits of a basic.publish are one slice of the
frame; the same slice has the same route until an exchange that it passed, or permissions, change.
So permission, exchange and bindings are looked up once per slice and channel. After any change in
the vhost (`router.version`) a cached route is checked once and mostly stays. CHANGES_MAX changes
after a channel's cache was begun, all of it is forgotten, because it may name queues that are gone.
Of messages that headers route, what their keys decide is cached (`Route.way`); nothing of messages
with CC or BCC is. The memory of all caches is bounded (usage.py).

**Routing is done in slices** (dispatch.py), because a message may have hundreds of keys, and
others may have bound thousands of patterns and exchanges. A run stops before the message whose
routing is not finished; `_resolving` and `_routing` have how far it is, and the next call of `run`
begins with that message. The same holds for large bodies, before their first and after their last
frame. Operations and batches, which are not sliced there, refuse a message that takes more than
ROUTE_STEPS_MAX.

**Properties are looked at, not decoded.** `scan` validates the list and returns delivery mode,
priority and which properties there are. Only these need more, when their flag is there:

    expiration   a number of ms as text: how long the message may wait
    user-id      must be the user's own name
    reply-to     direct reply-to is replaced by the name of the channel's reply queue
    x-delay      a header, or the exchange's: how long the message has to wait, in ms
    CC, BCC      headers: more routing keys, RabbitMQ's extension. A message is routed by its own
                 key and by each of theirs. CC stays in the headers. BCC is removed before the
                 message is stored, and its keys go into the stored header, where no consumer sees
                 them: dead-lettering without a routing key of its own needs them. One that is not
                 an array of strings closes the channel; values that are not strings are ignored

A message is persistent if its delivery mode is 2 and its queue is durable; otherwise it is in RAM,
or paged to files that are deleted at the start, and confirmed at once. In a stream it is always
persistent.

**Several queues and streams** share one record of the log where possible:

    streams, and with them every durable queue              one transaction, one record: all of
                                                            them have it after a crash, or none;
                                                            of a large one, each stream has a
                                                            record of its own before
    the other durable queues                                one record for all, and one body for
                                                            those to which the message is the same

However many records there are, the queues share one body in RAM, and it is counted once
(message.py). Queues that may refuse it (reject-publish) are asked for room first. One that
refuses makes the publish a basic.nack; the other queues have the message. A full disk is a
DiskFullError: no queue has the message, and the run stops there. `run` returns how many were
handled; the connection keeps the rest until there is room. Once a queue has the message, what the
transient store has no room for stays in RAM, and a dead letter without room is a basic.nack.

**Large bodies**, of more than a MiB, go to disk as their frames arrive (SpooledPublish), so an
unfinished body costs no RAM: each goes to a file of its own in a MessageStore, by the spool of
Qpid's Flow to Disk Design (storeHeader, storeChunk). After the last frame the publish names that
file. If the client leaves before that, the body is aborted and its file deleted. The file is in the
store where the message will be, as far as that is known when it begins: a persistent message for a
durable queue in the persistent store, any other in the transient one. All queues share it there;
for those that need it in the other store it is copied, in slices. For streams, also those that get
it as a dead letter of a queue that refuses it, and in a transaction the body is read back once.

**Confirms.** A channel in confirm mode counts its publishes from 1. Each is acknowledged once it is
as safe as its mode says: its record's LSN is settled. LSNs rise with the publishes, so a channel is
a run of (publishes up to this tag, their LSN): all publishes of one turn of the loop are one entry,
and one basic.ack with `multiple` answers them.

Publishes with nothing to wait for (transient, unroutable) have LSN 0 and are answered with the
entry that they are added to: confirms are sent in order. RabbitMQ may answer them sooner, out of
order; a publisher must accept both.

A publish that a queue refused is a basic.nack, which splits the run.

A channel of the library's box may send all it publishes to one stream (`send_to`), by key alone,
and ask for the offsets, which are kept as runs.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

from librt.strings import write_i64_be

from penstock.access.permissions import IMPERSONATOR, Identity
from penstock.broker import refusals
from penstock.broker.asked_rights import RightsUnknown
from penstock.broker.background_tasks import FinishingWork
from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.dispatch import (
    HEADER_BYTES,
    STEP_BYTES,
    Dispatch,
    SlicedWork,
    TurnBudget,
    Unconfirmed,
)
from penstock.broker.outbox import Firehose
from penstock.broker.output import (
    END,
    HEADERS,
    METHOD,
    LargeContent,
    Output,
    begin_frame,
    write_return,
)
from penstock.broker.permissions import WRITE, check, check_topic
from penstock.broker.topology import EXCHANGE
from penstock.broker.vhost import VHost
from penstock.codec.properties import BasicProperties, expiration_at, scan
from penstock.counts import ExchangeCounts, MessageCounts
from penstock.errors import (
    NO_ROUTE,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_ERROR,
    AMQPConnectionError,
    ChannelError,
    DiskFullError,
    QueueFullError,
    TransactionTooLargeError,
)
from penstock.fast_crc import BodyPieces, pieces_of
from penstock.message import Entry, QueuedMessage, SharedBody
from penstock.native import mypyc_attr
from penstock.queues import raw_fields
from penstock.queues.amq_queue import Plan
from penstock.queues.amqp_headers import CC, routing_keys_in
from penstock.queues.queue_options import DROP_HEAD, MS_MAX
from penstock.queues.raw_fields import PropertiesError, RawEntry, RawProperties
from penstock.routing.exchange_types import (
    CACHE_TTL,
    Asked,
    Kept,
    RecentHistoryExchange,
    canonical,
    header_value,
)
from penstock.routing.router import ROUTE_STEPS_MAX, RoutedExchange, Router, Walk, Way
from penstock.storage.files.durability import NONE
from penstock.storage.index.key_windows import KEY_BYTES, KeyWindow, KeyWindows
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.parts.transaction import Published, Transaction
from penstock.storage.store.file_queue_backing import Spool
from penstock.storage.store.message_store import CopyingBody
from penstock.storage.store.store_file import StoredBody

MANDATORY: Final = 1
IMMEDIATE: Final = 2
ROUTES_MAX: Final = 4096  # per channel; their bytes are bounded as well
ROUTE_BYTES: Final = 600  # measured: a route without its keys and targets
CHANGES_MAX: Final = 256
SHARED_PLACES: Final = 16  # from which on a message is not its publisher's alone (in_flight.py)
APPENDED_MAX: Final = 10_000
# Of one message in one record, for queues that get it with different headers or expiries.
KINDS_BYTES: Final = 8 << 20
KIND_BYTES: Final = 256
COPIES_BYTES: Final = 1 << 20  # of one message in all of its streams: more go in slices
READ_BYTES: Final = 1 << 20  # of a body that is read back
COPIED_STEP_BYTES: Final = 4096  # of these, for one step of the turn's budget
HISTORY_STEPS: Final = 64  # of the turn's budget: a message of a history
SPECIAL_STEPS: Final = 8  # of the turn's budget: a message whose properties are looked at
PERSISTENT: Final = 2
EXPIRATION_MS_MAX: Final = MS_MAX
DELAY_MS_MAX: Final = MS_MAX
PUBLISH: Final = (60, 40)
# Property flags that say that more than the scan is needed.
HAS_HEADERS: Final = 0x2000
HAS_REPLY_TO: Final = 0x0200
HAS_EXPIRATION: Final = 0x0100
HAS_USER_ID: Final = 0x0010
SPECIAL: Final = HAS_HEADERS | HAS_REPLY_TO | HAS_EXPIRATION | HAS_USER_ID
HEADERS_IN_FIRST_OCTET: Final = HAS_HEADERS >> 8
DUPLICATE_HEADER: Final = "x-deduplication-header"
_DUPLICATE_NAME: Final = b"\x16x-deduplication-header"
REPLY_TO: Final = b"amq.rabbitmq.reply-to"
BCC: Final = b"BCC"
ACK: Final = b"\x00\x3c\x00\x50"  # class 60, method 80
NACK: Final = b"\x00\x3c\x00\x78"  # 60, 120


@mypyc_attr(acyclic=True)
class ConfirmRun:
    """Publishes from `first_tag` to `last_tag` that are answered alike once `lsn` is settled."""

    __slots__ = ("first_tag", "is_ack", "last_tag", "lsn")

    def __init__(self, last_tag: int, lsn: int, is_ack: bool) -> None:
        self.first_tag: int = last_tag
        self.last_tag: int = last_tag
        self.lsn: int = lsn
        self.is_ack: bool = is_ack


class Confirms:
    """The confirms of one channel. last_tag: of its last publish. `answered`: the last tag that was
    answered. runs: publishes that are not confirmed yet."""

    def __init__(self) -> None:
        self.last_tag: int = 0
        self.answered: int = 0
        self.runs: deque[ConfirmRun] = deque()
        self._open: ConfirmRun | None = None  # the last run, while its turn lasts

    def published(self, lsn: int) -> None:
        """Count a publish; it is safe once lsn is settled, 0: at once."""
        self.last_tag += 1
        run = self._open
        if run is not None and run.is_ack:
            run.last_tag = self.last_tag
            if lsn:
                run.lsn = lsn
            return
        self._open = run = ConfirmRun(self.last_tag, lsn, True)
        self.runs.append(run)

    def refused(self) -> None:
        """Count a publish that a queue refused."""
        self.last_tag += 1
        self._open = run = ConfirmRun(self.last_tag, 0, False)
        self.runs.append(run)

    def settle(self, settled: int) -> list[ConfirmRun]:
        """End the turn: return the runs to answer, with LSNs up to `settled`."""
        self._open = None
        runs = self.runs
        done: list[ConfirmRun] = []
        while runs and runs[0].lsn <= settled:
            run = runs.popleft()
            last = done[-1] if done else None
            if last is not None and last.is_ack and run.is_ack:
                last.last_tag = run.last_tag
            else:
                done.append(run)
        if done:
            self.answered = done[-1].last_tag
        return done


class PublishFacts:
    """What a queue must know of a message. ttl_ms: None for no expiration; delay_ms: None for the
    queue's own. hidden: keys of BCC, which the stored header keeps. key: by which duplicates are
    known, None for none; key_ttl_ms: for how long, None: as the queue or exchange says. windows: of
    exchanges that are to see the key; seen_lsn: of those that have. large: its body, if that is in
    the store and also in RAM, for streams."""

    __slots__ = ("delay_ms", "hidden", "is_persistent", "key", "key_ttl_ms", "large", "priority",
                 "seen_lsn", "ttl_ms", "windows")  # fmt: skip

    def __init__(self) -> None:
        self.is_persistent: bool = False
        self.priority: int = 0
        self.ttl_ms: int | None = None
        self.delay_ms: int | None = None
        self.hidden: list[bytes] = []
        self.key: bytes | None = None
        self.key_ttl_ms: int | None = None
        self.windows: list[KeyWindow] = []
        self.seen_lsn: int = 0
        self.large: BodyPieces | None = None

    def set_plain(self, info: int) -> None:
        """Set the facts of a message from the result of the scan."""
        self.is_persistent = info & 0xFF == PERSISTENT
        self.priority = info >> 8 & 0xFF
        self.ttl_ms = None
        self.delay_ms = None
        self.hidden = []


class Targets:
    """The queues and streams that a message goes to, and the exchanges that keep it for those that
    are bound later. is_by_chance: the next message like it may go elsewhere."""

    __slots__ = ("histories", "is_by_chance", "queues", "streams")

    def __init__(self) -> None:
        self.queues: list[BrokerQueue] = []
        self.streams: list[BrokerStream] = []
        self.histories: list[RecentHistoryExchange] = []
        self.is_by_chance: bool = False


class Route:
    """Where one slice of a publish frame leads. front: the start of the stored header. version: the
    router's when it was last known to be right. way: set if headers decide as well. counted_bytes:
    of RAM, in the cache; 0: it is not cached. counts: of its exchange."""

    __slots__ = ("address", "counted_bytes", "counts", "exchange", "front", "is_delayed",
                 "is_mandatory", "is_per_message", "is_special", "key", "passed", "queues",
                 "targets", "version", "way")  # fmt: skip

    def __init__(self, raw: bytes, exchange: str, key: str, counts: ExchangeCounts) -> None:
        self.exchange: str = exchange
        self.key: str = key
        self.counts: ExchangeCounts = counts
        self.address: bytes = raw[:-1]
        self.front: bytes = b"\x02" + raw[:-1]
        self.is_mandatory: bool = raw[-1] & MANDATORY != 0
        self.version: int = 0
        self.passed: tuple[RoutedExchange, ...] = ()
        self.way: Way | None = None
        self.counted_bytes: int = 0
        self.is_per_message: bool = False
        self.is_delayed: bool = False
        # It does not lead to queues alone: headers route or delay, or it leads to streams.
        self.is_special: bool = False
        self.targets: Targets = Targets()
        self.queues: list[BrokerQueue] = self.targets.queues

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes of RAM it takes, with the slice that it is cached for."""
        targets = self.targets
        return (
            ROUTE_BYTES
            + 3 * len(self.address)
            + self.exchange.__sizeof__()
            + self.key.__sizeof__()
            + 8 * (len(targets.queues) + len(targets.streams) + len(self.passed))
            + (0 if self.way is None else self.way.held_bytes)
        )


class Resolving:
    """The resolving of a slice whose Way is not known to its end."""

    __slots__ = ("asked", "raw", "route", "way")

    def __init__(self, raw: bytes, route: Route, way: Way) -> None:
        self.raw: bytes = raw
        self.route: Route = route
        self.way: Way = way
        self.asked: Asked = Asked([route.key], None)


class Routing:
    """The routing of one message. given: its properties; props: as stored. keys: set if it has more
    than one. way: None if it goes where its route says; else its own or its route's. walk: once
    `way` is known to its end. copied: the streams that have a large message already.
    is_resumed: turns of others were in between."""

    __slots__ = (
        "asked", "copied", "facts", "given", "is_resumed", "keys", "props", "route", "targets",
        "walk", "way",
    )  # fmt: skip

    def __init__(self, route: Route, given: bytes) -> None:
        self.route: Route = route
        self.given: bytes = given
        self.props: bytes = given
        self.facts: PublishFacts = PublishFacts()
        self.targets: Targets = route.targets
        self.keys: list[str] | None = None
        self.asked: Asked | None = None
        self.way: Way | None = None
        self.walk: Walk | None = None
        self.copied: set[str] = set()
        self.is_resumed: bool = False


@mypyc_attr(allow_interpreted_subclasses=True)
class PublishCollector(ABC):
    """A transaction: what is published in it is published when it commits."""

    @abstractmethod
    def put(
        self, route: Route, targets: Targets, header: bytes, props: bytes, body: bytes,
        facts: PublishFacts, spooled: QueuedMessage | None = None,
    ) -> None:  # fmt: skip
        """Add one publish. spooled: its body is in the store, and `body` is empty."""

    @abstractmethod
    def needs_body(self, route: Route, targets: Targets) -> bool:
        """Return whether such a publish, if it is large, is kept in RAM until the commit."""


class Publisher(Unconfirmed):
    """The publishes of one channel. `confirms`: set in confirm mode; `transaction`: set in a
    transaction. on_failed(error): an error while confirms were sent."""

    def __init__(
        self, vhost: VHost, identity: Identity, number: int, output: Output,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> None:  # fmt: skip
        self.vhost: VHost = vhost
        self._dispatch: Dispatch = vhost.dispatch
        self._mode: int = vhost.mode
        self._budget: TurnBudget = vhost.budget
        self.identity: Identity = identity
        self.number: int = number
        self.output: Output = output
        self.confirms: Confirms | None = None
        self.counts: MessageCounts = MessageCounts()
        self._total: MessageCounts = vhost.counts.messages
        self._is_unconfirmed: bool = False  # the dispatch calls `settle`
        self.on_failed = on_failed
        self.transaction: PublishCollector | None = None
        self.connection: str = ""  # its name
        self._firehose: Firehose = vhost.firehose
        self._windows: KeyWindows = vhost.engine.windows
        self.knows_duplicates: bool = True  # False: it publishes them all
        self.is_sliced: bool = False  # the last run ended before its time
        self.unknown: RightsUnknown | None = None  # for which it ended; its taker clears it
        self.is_awaiting_log: bool = False  # it ended for `Journal.when_ready`; as `unknown`
        self.reply_queue: str = ""  # what stands for REPLY_TO in messages of this channel
        self.routes: dict[bytes, Route] = {}  # cached; bounded by the vhost's RouteCaches
        self._version: int = 0  # of the router when the cache was begun
        # How far the first message of the next run is.
        self._resolving: Resolving | None = None
        self._routing: Routing | None = None
        self._facts: PublishFacts = PublishFacts()
        self._stream: BrokerStream | None = None  # where all publishes go
        self.appended: deque[list[int]] | None = None  # [partition, first offset, count] of runs

    def send_to(self, stream: BrokerStream | None) -> None:
        """Send all publishes to this stream from now on, whatever they are published to; None:
        where they are published to. The last APPENDED_MAX runs are noted in `appended`."""
        self._stream = stream
        self.appended = None if stream is None else deque(maxlen=APPENDED_MAX)
        self.forget_routes()

    def forget_routes(self) -> None:
        """Forget the cached routes: permissions have changed, or the channel ends."""
        self._resolving = None
        self._routing = None
        self.vhost.usage.routes.drop(self)

    def clear_routes(self) -> None:
        """Empty the cache (RouteCaches calls this)."""
        self.routes = {}

    # ---- a run ---------------------------------------------------------------------------------

    def run(
        self, routes: list[bytes], headers: list[bytes], bodies: list[bytes], first: int = 0
    ) -> int:
        """Publish them in order, from number `first` on; return the number of the first that was
        not handled. If there is one: `is_sliced` means that the turn's budget is used up, and other
        clients come before the rest; otherwise the disk is full. ChannelError, AMQPConnectionError:
        of one publish, after those before it were done."""
        try:
            return self._run(routes, headers, bodies, first)
        finally:
            self.note_unconfirmed()

    def _run(
        self, routes: list[bytes], headers: list[bytes], bodies: list[bytes], first: int
    ) -> int:
        raw = b""
        route: Route | None = None
        props = b""
        info = 0
        stored = b""  # the header of messages with this route and these props: one for all of them
        n = len(routes)
        self.is_sliced = False
        budget = self._budget
        routing = self._routing
        if routing is not None:  # of the first one; its route may have changed since it began
            raw, route = routes[first], routing.route
        at = since = first  # since: all with this route that are not counted yet
        try:
            while at < n:
                if budget.left <= 0 and budget.is_over():
                    self.is_sliced = True
                    break
                if route is None or routes[at] != raw:
                    self._count_run(route, at - since)
                    since = at
                    raw = routes[at]
                    route = self.route_in_slices(raw)
                    stored = b""
                    if route is None:
                        self.is_sliced = True
                        break
                if headers[at] != props or not info:
                    props = headers[at]
                    info = scan(props)
                    stored = b""
                if info >> 16 & SPECIAL or route.is_special:
                    if not self._publish_special(route, props, info, bodies[at]):
                        self.is_sliced = True
                        break
                    at += 1
                    if routing is not None:
                        self._count_run(route, at - since)
                        since = at
                        routing = route = None
                else:
                    if not stored and len(route.queues) == 1:  # others make their own
                        stored = route.front + props
                    self._publish(route, props, stored, info, bodies[at])
                    budget.left -= 1 + len(route.queues)
                    at += 1
        except DiskFullError:
            pass
        finally:
            self._count_run(route, at - since)
        return at

    def _count_run(self, route: Route | None, n: int) -> None:
        """Count publishes with one route; a transaction counts them when it commits."""
        if route is not None and n and self.transaction is None:
            places = _places(route.targets)
            is_lost = not places and not route.is_per_message
            self.count(route, n, places * n, n if is_lost else 0)

    def _count_apart(self, route: Route, targets: Targets) -> None:
        """Correct what `_count_run` takes a message for that does not go where its route says."""
        if self.transaction is None:
            usual, places = _places(route.targets), _places(targets)
            unroutable = int(not places) - int(not usual and not route.is_per_message)
            self.count(route, 0, places - usual, unroutable)

    def count(self, route: Route, n: int, places: int, unroutable: int) -> None:
        """Count n publishes, which so many queues and streams got together; unroutable of them
        went to none."""
        exchange = route.counts
        exchange.publish_in += n
        exchange.publish_out += places
        exchange.unroutable += unroutable
        for counts in (self.counts, self._total):
            counts.publish += n
            if unroutable:
                counts.unroutable(unroutable, is_mandatory=route.is_mandatory)

    def route_in_slices(self, raw: bytes) -> Route | None:
        """Return the route of a publish with this slice; None: the turn's budget is used up, or
        `unknown` says what must be known first. Call it again in a later slice. ChannelError 403,
        404."""
        known = self.routes.get(raw)
        if known is not None and known.version == self.vhost.router.version:
            return known
        known = self._cached(raw)
        if known is not None:
            return known
        resolving = self._resolving
        if resolving is None or resolving.raw != raw:
            try:
                resolving = self._begin_to_resolve(raw)
            except RightsUnknown as unknown:
                self.unknown = unknown
                return None
        self._resolving = resolving
        if not self._follow(resolving.way, resolving.asked):
            return None
        self._resolving = None
        route = self._resolved(resolving)
        self._cache(raw, route)
        return route

    def route(self, raw: bytes) -> Route:
        """Return the route of a publish with this slice, however long it takes. ChannelError 403,
        404, 506 (beyond ROUTE_STEPS_MAX)."""
        known = self._cached(raw)
        if known is None:
            known = self.resolve(raw)
            self._cache(raw, known)
        return known

    def _cached(self, raw: bytes) -> Route | None:
        """Return the route of a slice that was cached, if it is right after changes."""
        router = self.vhost.router
        caches = self.vhost.usage.routes
        if router.version - self._version > CHANGES_MAX or len(self.routes) >= ROUTES_MAX:
            caches.drop(self)
            self._version = router.version
        known = self.routes.get(raw)
        if known is not None:
            if _is_current(known, router):
                return known
            del self.routes[raw]
            caches.remove(self, known.counted_bytes)
        return None

    def _cache(self, raw: bytes, route: Route) -> None:
        route.counted_bytes = route.held_bytes
        if self.vhost.usage.routes.add(self, self.identity.name, route.counted_bytes):
            self.routes[raw] = route
        else:
            route.counted_bytes = 0

    def resolve(self, raw: bytes) -> Route:
        """Return what `route` does, without the cache."""
        resolving = self._begin_to_resolve(raw)
        self._follow_whole(resolving.way, resolving.asked)
        return self._resolved(resolving)

    def _begin_to_resolve(self, raw: bytes) -> Resolving:
        vhost = self.vhost
        end = 1 + raw[0]
        exchange = raw[1:end].decode("utf-8", "surrogateescape")
        key = raw[end + 1 : -1].decode("utf-8", "surrogateescape")
        known = vhost.exchanges.get(exchange) or vhost.exchanges[""]
        route = Route(raw, exchange, key, known.counts)
        if self._stream is not None:
            stream = self._stream
            check(vhost, self.identity, WRITE, "queue", stream.name)  # it may be revoked
            if stream.is_deleted:
                raise refusals.not_found(stream.what)
            route.is_special = True
            route.targets.streams.append(self._stream)
            way = Way(vhost.router, None)
            way.passed[""] = vhost.router.default  # which changes when a stream is deleted
            return Resolving(raw, route, way)
        if raw[-1] & IMMEDIATE:
            raise AMQPConnectionError(NOT_IMPLEMENTED, "immediate=true", 60, 40)
        what = refusals.called("exchange", exchange, vhost.name)
        # First, so that nobody learns what exists where they may not write.
        check(vhost, self.identity, WRITE, "exchange", exchange)
        if not vhost.router.has(exchange):
            raise refusals.not_found(what)
        if vhost.topology.is_internal(exchange):
            raise refusals.access_refused(f"cannot publish to internal {what}")
        check_topic(vhost, self.identity, WRITE, exchange, key)
        route.is_delayed = vhost.router.delayed(exchange)
        return Resolving(raw, route, Way(vhost.router, exchange))

    def _resolved(self, resolving: Resolving) -> Route:
        route, way = resolving.route, resolving.way
        route.version = way.as_of
        if way.per_message:
            route.is_per_message = True
            route.way = way
        else:
            route.passed = tuple(way.passed.values())
            if self._stream is None:
                route.targets = targets_of(self.vhost, way.queues)
                route.queues = route.targets.queues
        route.is_special = route.is_per_message or route.is_delayed or bool(route.targets.streams)
        route.is_special = route.is_special or self._firehose.is_on
        return route

    def _follow(self, way: Way, asked: Asked) -> bool:
        """Follow a Way to its end, or as far as the turn's budget goes. Returns whether it is at
        its end."""
        budget = self._budget
        while True:
            asked.steps = budget.left
            is_done = way.advance(asked)
            budget.left = asked.steps
            if is_done:
                return True
            if budget.is_over():
                return False

    def _follow_whole(self, way: Way, asked: Asked) -> None:
        """Follow a Way to its end. ChannelError 506: it takes too many steps."""
        asked.steps = ROUTE_STEPS_MAX
        is_done = way.advance(asked)
        self._budget.left -= ROUTE_STEPS_MAX - asked.steps
        if not is_done:
            raise _too_far()

    # ---- confirms ------------------------------------------------------------------------------

    def note_unconfirmed(self) -> None:
        """Have `settle` called at the end of turns if publishes are unconfirmed."""
        confirms = self.confirms
        if confirms is not None and confirms.runs:
            if self._is_unconfirmed:
                self._dispatch.note_unconfirmed()
            else:
                self._is_unconfirmed = True
                self._dispatch.add_unconfirmed(self)

    def settle(self, settled: int) -> bool:
        self._is_unconfirmed = False
        confirms = self.confirms
        if confirms is None:  # the channel was closed
            return False
        try:
            runs = confirms.settle(settled)
        except Exception as error:
            if self.on_failed is None:
                raise
            self.on_failed(error)
            return False
        for run in runs:
            if run.is_ack:
                n = run.last_tag - run.first_tag + 1
                self.counts.confirm += n
                self._total.confirm += n
            out = self.output.writer(self.number)
            begin_frame(out, METHOD, self.number, 13)
            out.write(ACK if run.is_ack else NACK)
            write_i64_be(out, run.last_tag)
            out.append(1 if run.first_tag != run.last_tag else 0)
            out.append(END)
        self._is_unconfirmed = len(confirms.runs) > 0
        return self._is_unconfirmed

    # ---- one message ---------------------------------------------------------------------------

    def _publish(self, route: Route, props: bytes, stored: bytes, info: int, body: bytes) -> None:
        """Publish a message of whose properties only delivery mode and priority matter. stored: its
        header as it is stored, where the route has one queue."""
        queues = route.queues
        if self.transaction is not None or len(queues) != 1:
            facts = self._facts
            facts.set_plain(info)
            self.publish_with(route, route.targets, props, body, facts)
            return
        is_persistent = info & 0xFF == PERSISTENT
        self._publish_to(queues[0], stored, body, is_persistent, info >> 8 & 0xFF, None, None)

    def _publish_to(
        self, queue: BrokerQueue, header: bytes, body: bytes, is_persistent: bool, priority: int,
        ttl_ms: int | None, delay_ms: int | None,
    ) -> None:  # fmt: skip
        """Publish a message to one queue alone."""
        mode = self._mode if is_persistent and queue.is_durable else NONE
        if priority > queue.priorities:
            priority = queue.priorities
        try:
            lsn = queue.amq.publish(
                header, body, mode, priority=priority, ttl_ms=ttl_ms, delay_ms=delay_ms
            )
        except QueueFullError:
            self._refused(queue)
            return
        queue.published += 1
        self._dispatch.mark(queue)
        if self.confirms is not None:
            self.confirms.published(lsn)

    def _refused(self, queue: BrokerQueue) -> None:
        queue.refused += 1
        self._dispatch.mark(queue)
        if self.confirms is not None:
            self.confirms.refused()

    def _publish_special(self, route: Route, props: bytes, info: int, body: bytes) -> bool:
        """Publish a message of whose properties more must be known, or that goes to a stream.
        Returns False if the turn's budget does not suffice to find out where it goes."""
        if not (info >> 16 & SPECIAL or route.is_per_message or self.transaction is not None):
            streams = route.targets.streams
            if len(streams) == 1 and not route.queues and not self._firehose.is_on:
                self._append(streams[0], route.front + props, body)
                self._budget.left -= 2 + len(body) // COPIED_STEP_BYTES
                return True
        routing = self._routing
        if routing is None or routing.given != props:
            if (
                route.way is None
                and not (info >> 16 & HAS_HEADERS and has_copies(props))
                and not self.is_copied(route.targets, len(body))
            ):
                facts = PublishFacts()
                props = self._special_facts(facts, route, props, info)
                targets = route.targets
                self._budget.left -= SPECIAL_STEPS + len(targets.queues) + len(targets.streams)
                self.publish_with(route, targets, props, body, facts)
                if self._firehose.is_on:
                    self.trace(route, targets, props, body)
                return True
            routing = self.begin_routing(route, props, info)
        else:
            routing.is_resumed = True
        self._routing = routing
        if not self.finish_routing(routing):
            return False
        if self.wants_copies(routing, len(body)) and not self.append_copies(
            routing, pieces_of(body)
        ):
            return False
        self._routing = None
        targets = routing.targets
        self._budget.left -= SPECIAL_STEPS + len(targets.queues) + len(targets.streams)
        self.publish_left(routing, body)
        if routing.way is not None:
            self._count_apart(route, targets)
        if self._firehose.is_on:
            self.trace(route, targets, routing.props, body)
        return True

    def trace(self, route: Route, targets: Targets, props: bytes, body: bytes) -> None:
        """Give a copy of what was published to the firehose."""
        names = [queue.name for queue in targets.queues]
        names += [stream.name for stream in targets.streams]
        facts = (self.connection, self.number, self.identity.name)
        self._firehose.published(facts, route.address, props, body, names)

    def _append(self, stream: BrokerStream, header: bytes, body: bytes) -> None:
        """Publish a message to one stream alone."""
        lsn = stream.append(header, body, self._mode)
        self._dispatch.schedule()
        self._note_place()
        if self.confirms is not None:
            self.confirms.published(lsn)

    def is_copied(self, targets: Targets, size: int) -> bool:
        """Return whether a message of so many bytes is so large for the streams that it goes to
        that they get it in slices."""
        return len(targets.streams) * size > COPIES_BYTES and self.transaction is None

    def wants_copies(self, routing: Routing, size: int) -> bool:
        """Return whether `append_copies` has something to do. A message with a key of duplicates
        is in one record with the key."""
        return routing.facts.key is None and self.is_copied(routing.targets, size)

    def append_copies(self, routing: Routing, body: BodyPieces) -> bool:
        """Append a large message to its streams, with a record for each; the queues are left for
        `publish_with`. Returns False if the turn's budget does not suffice; then route it again,
        and call this again, in a later slice. DiskFullError: the same, once there is room."""
        if not self.wants_copies(routing, body.size):
            return True
        header = _stored_header(routing.route, routing.props, routing.facts)
        budget = self._budget
        for stream in _left_targets(routing).streams:
            if (budget.left <= 0 and budget.is_over()) or not self.may_log(body.size):
                return False
            routing.facts.seen_lsn = max(
                routing.facts.seen_lsn, stream.append_large(header, body, self._mode)
            )
            self._note_place()
            self._dispatch.schedule()
            routing.copied.add(stream.name)
            budget.left -= 1 + body.size // COPIED_STEP_BYTES
        return budget.left > 0 or not budget.is_over()

    def may_log(self, size: int) -> bool:
        """Return whether a record with a body of so many bytes can be logged without waiting for
        the disk. If not, `is_awaiting_log` is set."""
        self.is_awaiting_log = not self.vhost.engine.is_ready(size)
        return not self.is_awaiting_log

    def _note_place(self) -> None:
        """Note where the record is that was just appended, if all go to one stream."""
        runs, stream = self.appended, self._stream
        if runs is None or stream is None:
            return
        partition, offset = stream.last_partition, stream.last_offset
        if runs:
            last = runs[-1]
            if last[0] == partition and last[1] + last[2] == offset:
                last[2] += 1
                return
        runs.append([partition, offset, 1])

    def facts_of(
        self, route: Route, props: bytes, info: int
    ) -> tuple[PublishFacts, Targets, bytes]:
        """Return what a queue must know of a message, where it goes, and its properties as
        stored. ChannelError 506: to find out where it goes takes too many steps."""
        routing = self.begin_routing(route, props, info)
        way = routing.way
        if way is not None:
            self._follow_whole(way, _asked_by(routing))
            if way.per_message:
                walk = routing.walk = self._walk(routing, way)
                self._budget.left -= ROUTE_STEPS_MAX - walk.advance(ROUTE_STEPS_MAX)
                if not walk.is_done:
                    raise _too_far()
            self.finish_routing(routing)
        return routing.facts, routing.targets, routing.props

    def begin_routing(self, route: Route, props: bytes, info: int) -> Routing:
        """Find out what a queue must know of a message, and what decides where it goes.
        ChannelError 406."""
        routing = Routing(route, props)
        facts = routing.facts
        props = self._special_facts(facts, route, props, info)
        routing.way = route.way
        if info >> 16 & HAS_HEADERS and has_copies(props):
            found = copies(props)
            self._budget.left -= len(props) // STEP_BYTES
            props = found.props
            facts.hidden = found.bcc
            more = [key.decode("utf-8", "surrogateescape") for key in found.cc + found.bcc]
            if more and self._stream is None:
                for key in more:  # RabbitMQ checks the message's own key alone
                    check_topic(self.vhost, self.identity, WRITE, route.exchange, key)
                routing.keys = list(dict.fromkeys([route.key, *more]))
                routing.way = Way(self.vhost.router, route.exchange)
        routing.props = props
        return routing

    def _special_facts(self, facts: PublishFacts, route: Route, props: bytes, info: int) -> bytes:
        """Set what a queue must know of a message, but for CC and BCC; return its properties as
        stored. ChannelError 406."""
        facts.set_plain(info)
        flags = info >> 16
        if flags & HAS_EXPIRATION:
            facts.ttl_ms = expiration_of(props)
        if flags & HAS_USER_ID and IMPERSONATOR not in self.identity.tags:
            check_user(props, self.identity.name)
        if flags & HAS_REPLY_TO and props.find(REPLY_TO) >= 0:
            props = self._with_reply_queue(props)
        if flags & HAS_HEADERS and (route.is_delayed or props.find(b"\x07x-delay") >= 0):
            facts.delay_ms = delay_of(props, is_exchange=route.is_delayed)
        if flags & HAS_HEADERS and self._windows.is_used and self.knows_duplicates:
            facts.key, facts.key_ttl_ms = key_of(props)
        return props

    def finish_routing(self, routing: Routing) -> bool:
        """Find out where a message goes: `routing.targets`. Returns False if the turn's budget does
        not suffice; call it again in a later slice."""
        way = routing.way
        if way is None:
            if routing.is_resumed:  # they may have been deleted in a turn of others
                found = routing.targets
                names = [queue.name for queue in found.queues]
                names += [stream.name for stream in found.streams]
                routing.targets = targets_of(self.vhost, names)
            return True
        walk = routing.walk
        if walk is None:
            if not self._follow(way, _asked_by(routing)):
                return False
            if not way.per_message:
                routing.targets = targets_of(self.vhost, way.queues)
                return True
            walk = routing.walk = self._walk(routing, way)
        budget = self._budget
        while True:
            budget.left = walk.advance(budget.left)
            if walk.is_done:
                break
            if budget.is_over():
                return False
        self._count_way(routing.route)
        targets = routing.targets = targets_of(self.vhost, walk.queues)
        targets.histories, targets.is_by_chance = walk.histories, walk.is_by_chance
        routing.facts.windows, routing.facts.seen_lsn = walk.windows, walk.seen_lsn
        return True

    def _walk(self, routing: Routing, way: Way) -> Walk:
        """Begin to route a message by its headers."""
        self._budget.left -= len(routing.props) // HEADER_BYTES
        properties = BasicProperties.decode(routing.props)
        keys = _asked_by(routing).keys
        walk = Walk(self.vhost.router, way, keys, properties.headers, properties)
        if routing.facts.key is not None:
            walk.look_for(routing.facts.key, self.vhost.clock.wall_ms())
        return walk

    def _count_way(self, route: Route) -> None:
        """Count what was found behind headers exchanges and is kept in a cached route."""
        if route.counted_bytes:
            more = route.held_bytes - route.counted_bytes
            if more > 0:
                route.counted_bytes += more
                if not self.vhost.usage.routes.add(self, self.identity.name, more):
                    self.forget_routes()

    def _with_reply_queue(self, props: bytes) -> bytes:
        if not self.reply_queue:
            raise refusals.precondition_failed("fast reply consumer does not exist")
        return with_reply_to(props, self.reply_queue)

    def publish_with(
        self, route: Route, targets: Targets, props: bytes, body: bytes, facts: PublishFacts,
        spooled: QueuedMessage | None = None,
    ) -> None:  # fmt: skip
        """Publish any message: to a transaction, to several queues, to none. spooled: its body is
        in the store, and `body` is empty unless it was read for streams."""
        header = _stored_header(route, props, facts)
        if self.transaction is not None:
            share_blame(self.vhost, header, len(targets.queues) + len(targets.streams))
            if facts.key is not None:
                _check_no_window(targets, facts)
            stored = None if body else spooled
            self.transaction.put(route, targets, header, props, body, facts, stored)
            return
        if targets.histories and spooled is None:
            keep_in_histories(targets, kept_of(header, body, facts))
        queues, streams = targets.queues, targets.streams
        if not queues and not streams:
            if route.is_mandatory and spooled is not None:
                self.return_stored(route, props, spooled)
            elif route.is_mandatory:
                self.return_message(route, props, body)
            if self.confirms is not None:  # that of a duplicate waits for the first one's
                self.confirms.published(facts.seen_lsn)
            return
        is_plain = spooled is None and facts.key is None and not facts.seen_lsn
        if len(queues) == 1 and not streams and is_plain:
            self._publish_to(
                queues[0], header, body, facts.is_persistent, facts.priority, facts.ttl_ms,
                facts.delay_ms,
            )  # fmt: skip
            return
        lsn, is_refused = fan_out(self.vhost, queues, streams, header, body, facts, spooled)
        self._note_place()
        if self.confirms is not None:
            if is_refused:
                self.confirms.refused()
            else:
                self.confirms.published(lsn)

    def publish_left(
        self, routing: Routing, body: bytes, spooled: QueuedMessage | None = None
    ) -> None:
        """Publish a message, as `publish_with`, to where `append_copies` has not."""
        targets = _left_targets(routing)
        if routing.copied and not targets.queues and not targets.streams:
            if targets.histories and spooled is None:
                header = _stored_header(routing.route, routing.props, routing.facts)
                keep_in_histories(targets, kept_of(header, body, routing.facts))
            if self.confirms is not None:
                self.confirms.published(routing.facts.seen_lsn)
            return
        self.publish_with(routing.route, targets, routing.props, body, routing.facts, spooled)

    def return_message(self, route: Route, props: bytes, body: bytes) -> None:
        """Return a mandatory message that no queue gets."""
        self._return(route, props, len(body), body)

    def return_stored(self, route: Route, props: bytes, message: QueuedMessage) -> None:
        """Return a mandatory message whose body is in the store. CorruptionError, OSError."""
        body = self.vhost.engine.bodies.open(message)
        self._return(route, props, message.size, None)
        self.output.put_large(LargeContent(self.number, self.output.frame_max, body))

    def _return(self, route: Route, props: bytes, size: int, body: bytes | None) -> None:
        output = self.output
        write_return(output, self.number, NO_ROUTE, "NO_ROUTE", route.address, props, size, body)


# ---- exchanges that keep messages ----------------------------------------------------------------


def kept_of(header: bytes, body: bytes, facts: PublishFacts) -> Kept:
    """Return a message as a history keeps it."""
    return Kept(header, body, facts.is_persistent, facts.priority, facts.ttl_ms)


def keep_in_histories(targets: Targets, kept: Kept) -> None:
    """Keep a message in the exchanges of type x-recent-history that it has passed."""
    for history in targets.histories:
        history.keep(kept)


def history_for(
    vhost: VHost, bindings: int, source: str, kind: str, destination: str
) -> "SendingHistory | None":
    """Return what sends the messages that an exchange has kept to what was bound to it; None if it
    keeps none, or if there are no more bindings than these."""
    history = vhost.router.history_of(source)
    if history is None or not history.kept or vhost.router.binding_count == bindings:
        return None
    return SendingHistory(vhost, list(history.kept), source, kind, destination)


class SendingHistory(SlicedWork):
    """Publishes what the exchange `source` has kept to a destination, the oldest first. A full disk
    ends it with an event."""

    def __init__(
        self, vhost: VHost, kept: list[Kept], source: str, kind: str, destination: str
    ) -> None:
        self._vhost: VHost = vhost
        self._left: deque[Kept] = deque(kept)
        self._source: str = source
        self._kind: str = kind
        self._destination: str = destination
        self._walk: Walk | None = None

    def step(self) -> bool:
        budget = self._vhost.budget
        while self._left:
            names = self._names(self._left[0], budget)
            if names is None:
                return False
            try:
                self._publish(self._left.popleft(), names)
            except DiskFullError as error:
                self._left.clear()
                what = self._vhost.topology.called(self._source)
                text = f"{what} cannot send its history to '{self._destination}': {error}"
                self._vhost.event("warning", text)
            if self._left and budget.is_over():
                return False
        return True

    def abandon(self) -> None:
        """Go on without the channel: it is bound."""
        self._vhost.background.wake(FinishingWork(self, self._vhost.budget))

    def _names(self, kept: Kept, budget: TurnBudget) -> list[str] | None:
        """Return the queues for a message; None: the budget does not suffice."""
        if self._kind != EXCHANGE:
            return [self._destination]
        walk = self._walk
        if walk is None:
            props = BasicProperties.decode(HEADERS.parts(kept.header)[1])
            keys = [key.decode("utf-8", "surrogateescape") for key in HEADERS.keys(kept.header)]
            router = self._vhost.router
            way = Way(router, self._destination)
            walk = self._walk = Walk(router, way, keys, props.headers, props)
        while True:
            budget.left = walk.advance(budget.left)
            if walk.is_done:
                self._walk = None
                return list(walk.queues)
            if budget.is_over():
                return None

    def _publish(self, kept: Kept, names: list[str]) -> None:
        facts = PublishFacts()
        facts.is_persistent, facts.priority = kept.is_persistent, kept.priority
        facts.ttl_ms = kept.ttl_ms
        targets = targets_of(self._vhost, names)
        self._vhost.budget.left -= HISTORY_STEPS + len(names) + (len(kept.body) >> 10)
        if targets.queues or targets.streams:
            fan_out(self._vhost, targets.queues, targets.streams, kept.header, kept.body, facts)


# ---- large bodies --------------------------------------------------------------------------------


class SpooledPublish:
    """A publish whose body is arriving. ChannelError 403, 404, 406 as for other publishes.
    DiskFullError: there is no room."""

    def __init__(self, publisher: Publisher, route: Route, props: bytes) -> None:
        self._publisher: Publisher = publisher
        self._route: Route = route
        self._routing: Routing | None = None
        self._props: bytes = props
        self._info: int = scan(props)
        engine = publisher.vhost.engine
        self._message = engine.placement.new_message(b"", b"")
        self._message.body = None
        self._message.persistent = self._info & 0xFF == PERSISTENT and leads_to_durable(self._route)
        self._spool: Spool = engine.bodies.spool(self._message)
        self._is_ended = False
        # What is read back for a stream or a transaction, which have the body in RAM.
        self._reading: StoredBody | None = None
        self._pieces: BodyPieces = BodyPieces()
        self._body: bytes = b""  # whole, for what does not take it in pieces
        self._copying: CopyingBody | None = None  # for queues that need it in the other store
        self._copy: QueuedMessage | None = None  # there; the same

    def write(self, data: bytes) -> None:
        """Write the next bytes. DiskFullError: only `abort` may be called then."""
        engine = self._publisher.vhost.engine
        try:
            self._spool.write(data)
        except OSError as error:
            raise engine.journal.disk_full(error, len(data)) from error

    def find_targets(self) -> bool:
        """Find out where it goes, after the last byte, copy it for queues that need it in the other
        store, and append it to streams if it goes to several. Returns False if the turn's budget
        does not suffice; call it again in a later slice. DiskFullError. CorruptionError, OSError:
        it cannot be read."""
        publisher, routing = self._publisher, self._routing
        if routing is None:
            routing = publisher.begin_routing(self._route, self._props, self._info)
            self._routing = routing
        routing.is_resumed = True  # after the turn in which the route was found
        if not publisher.finish_routing(routing):
            return False
        transaction = publisher.transaction
        if not self._is_copied(routing):
            return False
        if not routing.targets.streams and transaction is None:
            return True
        if transaction is not None and not transaction.needs_body(self._route, routing.targets):
            return True
        self._end()
        if not self._is_read() or not publisher.append_copies(routing, self._pieces):
            return False
        size = self._pieces.size
        if transaction is None and publisher.wants_copies(routing, size):
            return True
        if self._message.persistent and (transaction is None or self._is_for_streams(routing)):
            routing.facts.large = self._pieces
        else:
            self._body = b"".join(self._pieces.pieces)
        return transaction is not None or publisher.may_log(size * len(routing.targets.streams))

    def _is_copied(self, routing: Routing) -> bool:
        """Copy the body to the other store, if a queue needs it there, as far as the turn's budget
        goes. Returns whether that is done."""
        message = self._message
        durable, others = by_durability(routing.targets.queues, routing.facts)
        if self._copy is not None or not (others if message.persistent else durable):
            return True
        self._end()
        vhost = self._publisher.vhost
        if self._copying is None:
            self._copying = CopyingBody(vhost.engine.bodies, message)
        while not self._copying.step(READ_BYTES):
            vhost.budget.left -= READ_BYTES // COPIED_STEP_BYTES
            if vhost.budget.is_over():
                return False
        self._copy = self._copying.copy
        vhost.engine.bodies.keep_copy(self._copy)
        return True

    def _is_for_streams(self, routing: Routing) -> bool:
        """Return whether nothing but streams needs the body in RAM."""
        targets = routing.targets
        if not routing.facts.is_persistent or targets.histories or self._route.is_mandatory:
            return False
        return len(targets.streams) > 0 and all(queue.is_durable for queue in targets.queues)

    def _is_read(self) -> bool:
        """Read the body, as far as the turn's budget goes. Returns whether all of it is there."""
        budget = self._publisher.vhost.budget
        body = self._reading
        if body is None:
            body = self._reading = self._publisher.vhost.engine.bodies.open(self._message)
        while body.left:
            self._pieces.add(body.read(READ_BYTES))
            budget.left -= READ_BYTES // COPIED_STEP_BYTES
            if budget.is_over():
                return False
        return True

    def _close(self) -> None:
        if self._reading is not None:
            self._reading.close()
        if self._copy is not None:
            self._publisher.vhost.engine.bodies.forget_copy(self._copy)
        elif self._copying is not None:
            self._copying.abandon()

    def _end(self) -> None:
        """End the body, which is kept until `finish` or `abort`."""
        if self._is_ended:
            return
        message = self._message
        engine = self._publisher.vhost.engine
        try:
            message.store_file = self._spool.finish()
        except OSError as error:
            raise engine.journal.disk_full(error, self._spool.size) from error
        message.size = self._spool.size
        engine.bodies.own(message)
        self._is_ended = True

    def finish(self) -> None:
        """Publish the message, once its targets are known."""
        routing = self._routing
        assert routing is not None
        publisher = self._publisher
        vhost = publisher.vhost
        engine = vhost.engine
        message = self._message
        self._end()
        try:
            facts, targets, props = routing.facts, routing.targets, routing.props
            if publisher.transaction is not None:
                publisher.publish_with(self._route, targets, props, self._body, facts, message)
            else:
                publisher.publish_left(routing, self._body, message)
                places = _places(targets)
                publisher.count(self._route, 1, places, int(not places))
            if vhost.firehose.is_on:
                publisher.trace(self._route, targets, props, b"")
        finally:
            self._close()
            engine.bodies.disown(message)
            publisher.note_unconfirmed()

    def abort(self) -> None:
        """Delete the file: it is not published."""
        self._close()
        if self._is_ended:
            self._publisher.vhost.engine.bodies.disown(self._message)
            return
        try:
            self._spool.abort()
        except DiskFullError:
            pass


def _places(targets: Targets) -> int:
    return len(targets.queues) + len(targets.streams)


def targets_of(vhost: VHost, names: Iterable[str]) -> Targets:
    """Return the queues and streams of these names that can be published to."""
    found = Targets()
    for name in names:
        queue = vhost.table.usable(name)
        if isinstance(queue, BrokerStream):
            found.streams.append(queue)
        elif isinstance(queue, BrokerQueue) and not queue.is_crashed:
            found.queues.append(queue)
    return found


def _left_targets(routing: Routing) -> Targets:
    """Return where a message goes, without the streams that have it."""
    targets = routing.targets
    if not routing.copied:
        return targets
    left = Targets()
    left.queues, left.histories = targets.queues, targets.histories
    left.streams = [one for one in targets.streams if one.name not in routing.copied]
    return left


def _stored_header(route: Route, props: bytes, facts: PublishFacts) -> bytes:
    header = route.front + props
    return HEADERS.with_hidden(header, facts.hidden) if facts.hidden else header


def _asked_by(routing: Routing) -> Asked:
    """Return the keys of a message, as exchanges are asked by them."""
    asked = routing.asked
    if asked is None:
        asked = routing.asked = Asked(routing.keys or [routing.route.key], None)
    return asked


def _too_far() -> ChannelError:
    text = f"to find the queues of the message takes more than {ROUTE_STEPS_MAX} steps"
    return ChannelError(RESOURCE_ERROR, text, *PUBLISH)


def _is_current(route: Route, router: Router) -> bool:
    """Return whether a route is right after changes."""
    way = route.way
    if way is not None:
        if not router.is_current(way):
            return False
    else:
        for exchange in route.passed:
            if exchange.changed_at > route.version:
                return False
    route.version = router.version
    return True


def leads_to_durable(route: Route) -> bool:
    """Return whether a message may go to a durable queue; its headers may decide that later."""
    if route.is_per_message or route.is_special:
        return True
    return any(queue.is_durable for queue in route.queues)


# ---- several queues and streams ------------------------------------------------------------------


class Planned:
    """What a transaction publishes as one message, with the queues that get it, in its order: each
    has a plan for it."""

    __slots__ = ("plans", "published")

    def __init__(self, published: Published, plans: list[tuple[BrokerQueue, Plan]]) -> None:
        self.published: Published = published
        self.plans: list[tuple[BrokerQueue, Plan]] = plans

    def entered(self) -> list[tuple[BrokerQueue, Plan, Entry]]:
        """Return where it is after the commit. Queues that were deleted before are left out."""
        found: list[tuple[BrokerQueue, Plan, Entry]] = []
        queues, born = self.published.queues, self.published.born
        at, end = 0, len(born)
        for queue, plan in self.plans:
            if at < end and queues[at] is plan.index:
                found.append((queue, plan, born[at]))
                at += 1
        return found

    def undo(self) -> None:
        """End the plans: it is not published."""
        for queue, plan in self.plans:
            if not queue.is_deleted:
                queue.amq.unplan(plan)


def fan_out(
    vhost: VHost, queues: list[BrokerQueue], streams: list[BrokerStream], header: bytes,
    body: bytes, facts: PublishFacts, spooled: QueuedMessage | None = None,
    copies: SharedBody | None = None, *, may_refuse: bool = True, has_left: bool = False,
) -> tuple[int, bool]:  # fmt: skip
    """Publish to all these. spooled: the body is in the store, and `body` is empty unless it was
    read for streams. copies: the shared body of other queues to which the message was published
    already. may_refuse: False if the queues were asked for room before. has_left: it is decided
    that it is published, and no queue that needs a record is left. Returns the LSN to wait for, and
    whether a queue refused. DiskFullError, OSError: none has it; not raised if `has_left`."""
    share_blame(vhost, header, len(queues) + len(streams))
    if copies is None:
        in_ram = body if spooled is None else b""
        copies = vhost.engine.placement.share_of(in_ram, len(queues))
    with vhost.engine.share(copies):
        return _fan_out(vhost, queues, streams, header, body, facts, spooled, may_refuse, has_left)


def share_blame(vhost: VHost, header: bytes, places: int) -> None:
    """Note that a message of this stored header goes to many places, if it does."""
    if places >= SHARED_PLACES:
        vhost.in_flight.share(header[2 : 2 + header[1]])


def _fan_out(
    vhost: VHost, queues: list[BrokerQueue], streams: list[BrokerStream], header: bytes,
    body: bytes, facts: PublishFacts, spooled: QueuedMessage | None, may_refuse: bool,
    has_left: bool,
) -> tuple[int, bool]:  # fmt: skip
    size = len(body) if spooled is None else spooled.size
    dead: list[tuple[BrokerQueue, bool]] = []
    before_lsn = facts.seen_lsn
    key = facts.key
    if key is not None:
        now_ms = vhost.clock.wall_ms()
        for window in facts.windows:
            if window.has(key, now_ms):  # since it was routed
                return window.lsn, False
        for queue in queues:
            if queue.window is not None and queue.window.has(key, now_ms):
                before_lsn = max(before_lsn, queue.window.lsn)  # which may not be settled yet
        queues = _those_without(queues, key, now_ms)
    shared = queues
    if may_refuse:
        shared = _those_that_take_it(queues, size, facts, dead, is_stored=spooled is not None)
    whole = body
    is_read = bool(body) or facts.large is not None
    if (
        spooled is not None
        and not is_read
        and (streams or (facts.key is not None and not spooled.persistent))
    ):
        whole = whole_body(vhost, spooled)
    sent = _send(
        vhost, shared, streams, header, body, facts, spooled, whole, dead, before_lsn, has_left
    )
    for queue in shared if spooled is not None else ():
        queue.amq.forget_expired()  # a stored message of ttl 0 that nobody waits for
    return sent


def _send(
    vhost: VHost, shared: list[BrokerQueue], streams: list[BrokerStream], header: bytes,
    body: bytes, facts: PublishFacts, spooled: QueuedMessage | None, whole: bytes,
    dead: list[tuple[BrokerQueue, bool]], lsn: int, has_left: bool,
) -> tuple[int, bool]:  # fmt: skip
    """Publish to queues that take the message and to streams, then to those that make a dead letter
    of it. whole: its body, if a stream or a transaction needs it. lsn: that the message waits for
    in any case. Returns as `fan_out`."""
    size = len(body) if spooled is None else spooled.size
    windows: list[KeyWindow] = []
    if facts.key is not None:
        windows = [queue.window for queue in shared if queue.window is not None]
        if not any(is_full for _, is_full in dead):  # else its publisher sends it again
            windows += facts.windows
    logged: list[KeyWindow] = []
    if streams or windows:
        joined, shared = by_durability(shared, facts)
        if joined or streams:
            logged = [window for window in windows if window.is_logged]
            lsn = max(
                lsn, _append_all(vhost, joined, streams, header, whole, facts, logged, spooled)
            )
            has_left = True
    if shared:
        lsn = max(lsn, _publish_shared(vhost, shared, header, body, size, facts, spooled, has_left))
        has_left = True
    for window, until_ms in _sightings(vhost, windows, facts):
        if window not in logged and facts.key is not None:  # a key must not outlive its message
            window.add(facts.key, until_ms, is_logged=False)
    is_refused = False
    for queue, is_full in dead:  # last: its dead letters may go to the queues that had room
        mode = vhost.mode if facts.is_persistent and queue.is_durable else NONE
        priority = min(facts.priority, queue.priorities)
        try:
            if is_full:
                queue.amq.refuse(header, whole, priority, mode, spooled)
                queue.refused += 1
                is_refused = True
            else:
                lsn = max(lsn, queue.amq.publish_dead(header, whole, mode, priority))
                queue.published += 1
        except (DiskFullError, OSError):
            if not has_left:
                raise
            is_refused = True  # its publisher sends it again
        has_left = True
        vhost.dispatch.mark(queue)
    return lsn, is_refused


def _those_that_take_it(
    queues: list[BrokerQueue], size: int, facts: PublishFacts,
    dead: list[tuple[BrokerQueue, bool]], *, is_stored: bool,
) -> list[BrokerQueue]:  # fmt: skip
    """Return the queues that the message enters. The others are added to `dead`, with whether they
    are full; where it is not, the message is for a consumer that waits now, and none does. A stored
    one, which is large, enters before it is dead-lettered: it moves then, and is not read."""
    entered: list[BrokerQueue] = []
    ttl_ms = facts.ttl_ms
    for queue in queues:
        amq = queue.amq
        options = amq.options
        if options.overflow != DROP_HEAD and amq.is_full_for(size):
            dead.append((queue, True))
        elif (ttl_ms == 0 or options.ttl_ms == 0) and amq.dies_at_once(facts.delay_ms):
            if is_stored and amq.dead_letters.route is not None:
                entered.append(queue)
            else:
                dead.append((queue, False))
        else:
            entered.append(queue)
    return entered


def _publish_shared(
    vhost: VHost, queues: list[BrokerQueue], header: bytes, body: bytes, size: int,
    facts: PublishFacts, spooled: QueuedMessage | None, has_left: bool,
) -> int:  # fmt: skip
    """Publish with one record to all durable queues, then to the others. has_left: see `fan_out`.
    Returns the LSN, 0 if none is durable."""
    engine = vhost.engine
    plans: list[tuple[BrokerQueue, Plan]] = []
    done = 0
    lsn = 0
    try:
        for queue in queues:
            plan = plan_of(queue, header, facts)
            plans.append((queue, plan))
        plans.sort(key=_by_kind)
        own_size = 0 if spooled is not None or engine.placement.is_in_store(size, 1) else size
        while done < len(plans):
            is_durable = plans[done][0].is_durable
            mode = vhost.mode if facts.is_persistent and is_durable else NONE
            kinds, end = _kinds(plans, done, own_size, 1 if mode == NONE else KINDS_BYTES)
            targets, own_header, expiry_ms = kinds[0]
            if len(kinds) > 1:
                engine.publish_kinds(kinds, body, mode, spooled)
            elif spooled is not None:
                spooled = engine.publish_placed(targets, own_header, spooled, mode, expiry_ms)
            elif mode == NONE and has_left:
                engine.publish_transient(targets, own_header, body, expiry_ms, has_left=True)
            else:
                engine.publish(targets, own_header, body, mode, expiry_ms)
            has_left = True
            if mode != NONE:
                lsn = engine.log.last_lsn
            done = end
    finally:
        for queue, plan in plans[done:]:
            queue.amq.unplan(plan)
        # After all have it: what a limit pushes out may be for one that was asked for room.
        seqs = [plan.index.next_seq - 1 for _, plan in plans[:done]]
        for i in range(done):
            queue, plan = plans[i]
            queue.amq.planned(plan, seqs[i], size)
            queue.published += 1
            vhost.dispatch.mark(queue)
    return lsn


def _kinds(
    plans: list[tuple[BrokerQueue, Plan]], first: int, own_size: int, bytes_max: int
) -> tuple[list[tuple[list[QueueIndex], bytes, int]], int]:
    """Return what one record brings of plans in order, from the first on: queues that get the
    message with the same header and expiry; and the plan behind them. own_size: of the body, as far
    as each kind has its own. bytes_max: of all kinds but the first."""
    is_durable = plans[first][0].is_durable
    kinds: list[tuple[list[QueueIndex], bytes, int]] = []
    header, expiry_ms = b"", -1
    at = first
    while at < len(plans) and plans[at][0].is_durable == is_durable:
        plan = plans[at][1]
        if plan.expiry_ms != expiry_ms or plan.header != header:
            header, expiry_ms = plan.header, plan.expiry_ms
            if kinds and len(kinds) * (KIND_BYTES + own_size + len(header)) > bytes_max:
                break
            kinds.append(([], header, expiry_ms))
        kinds[-1][0].append(plan.index)
        at += 1
    return kinds, at


def _append_all(
    vhost: VHost, queues: list[BrokerQueue], streams: list[BrokerStream], header: bytes,
    body: bytes, facts: PublishFacts, windows: list[KeyWindow], spooled: QueuedMessage | None,
) -> int:  # fmt: skip
    """Publish with one record to streams and durable queues, and have windows see its key; return
    the LSN. spooled: the body is in the store; `body` is empty if `facts` has it in pieces, or if
    all that need it share that."""
    vhost.dispatch.schedule()
    large = facts.large
    size = len(body) if spooled is None else spooled.size
    if not queues and len(streams) == 1 and not windows:
        if large is not None:
            return streams[0].append_large(header, large, vhost.mode)
        return streams[0].append(header, body, vhost.mode)
    transaction = vhost.engine.begin()
    planned: list[Planned] = []
    try:
        for window, until_ms in _sightings(vhost, windows, facts):
            transaction.see(window, facts.key or b"", until_ms)
        stored = spooled if spooled is not None and spooled.persistent else None
        plan_all(transaction, queues, header, body, facts, planned, stored)
        for stream in streams:
            stream.begin_append(transaction, header, body, large)
        lsn = transaction.commit(vhost.mode)
    except BaseException as error:
        if transaction.is_open:
            transaction.rollback()
        for one in planned:
            one.undo()
        if isinstance(error, TransactionTooLargeError):
            text = f"a message of {size} bytes for {len(streams)} streams: {error}"
            raise ChannelError(RESOURCE_ERROR, text, *PUBLISH) from None
        raise
    for one in planned:
        for queue, plan, entry in one.entered():
            queue.amq.planned(plan, entry.seq, size)
            queue.published += 1
            vhost.dispatch.mark(queue)
    for stream in streams:
        stream.published += 1
    return lsn


def _sightings(
    vhost: VHost, windows: list[KeyWindow], facts: PublishFacts
) -> list[tuple[KeyWindow, int]]:
    """Return each window with the time until which it is to know the key of the message."""
    if not windows:
        return []
    now_ms = vhost.clock.wall_ms()
    for window in windows:
        window.forget_past(now_ms)
    return [(window, window.until_ms(now_ms, facts.key_ttl_ms)) for window in windows]


def _those_without(queues: list[BrokerQueue], key: bytes, now_ms: int) -> list[BrokerQueue]:
    """Return the queues that have not seen the key."""
    return [one for one in queues if one.window is None or not one.window.has(key, now_ms)]


def _check_no_window(targets: Targets, facts: PublishFacts) -> None:
    """Raise ChannelError 406 if a message in a transaction goes where duplicates are dropped:
    whether it is one could only be said at the commit."""
    named = [queue.name for queue in targets.queues if queue.window is not None]
    if named or facts.windows:
        what = f"queue '{named[0]}'" if named else "an exchange"
        raise refused(
            f"{what} drops duplicates, which a transaction (tx.select) cannot: expected no header "
            f"{DUPLICATE_HEADER}, or confirms (confirm.select) instead"
        )


def plan_all(
    transaction: Transaction, queues: list[BrokerQueue], header: bytes, body: bytes,
    facts: PublishFacts, planned: list[Planned], stored: QueuedMessage | None = None,
) -> None:  # fmt: skip
    """Publish to durable queues in a transaction, the body once for all to which it is the same.
    What is planned is added to `planned`, also if this fails: the caller must undo it. stored: its
    body is in the store, and all share it."""
    groups: dict[tuple[bytes, int], list[tuple[BrokerQueue, Plan]]] = {}
    done = 0
    try:
        for queue in queues:
            plan = plan_of(queue, header, facts)
            groups.setdefault((plan.header, plan.expiry_ms), []).append((queue, plan))
        for (shared, expiry_ms), group in groups.items():
            targets = [plan.index for _, plan in group]
            if stored is None:
                published = transaction.publish(targets, shared, body, expiry_ms)
            else:
                published = transaction.publish_stored(targets, shared, stored, expiry_ms)
            planned.append(Planned(published, group))
            done += 1
    except BaseException:
        for group in list(groups.values())[done:]:
            for queue, plan in group:
                queue.amq.unplan(plan)
        raise


def by_durability(
    queues: list[BrokerQueue], facts: PublishFacts
) -> tuple[list[BrokerQueue], list[BrokerQueue]]:
    """Return the queues in which the message outlives a crash, and the others."""
    if not facts.is_persistent:
        return [], list(queues)
    durable: list[BrokerQueue] = []
    others: list[BrokerQueue] = []
    for queue in queues:
        if queue.is_durable:
            durable.append(queue)
        else:
            others.append(queue)
    return durable, others


def whole_body(vhost: VHost, spooled: QueuedMessage) -> bytes:
    """Return a spooled body, read back, for a queue that cannot share it."""
    return vhost.engine.bodies.read(spooled)


def plan_of(queue: BrokerQueue, header: bytes, facts: PublishFacts) -> Plan:
    """Return what the queue would make of the message; `planned` or `unplan` must follow."""
    return queue.amq.plan(
        header, priority=min(facts.priority, queue.priorities), ttl_ms=facts.ttl_ms,
        delay_ms=facts.delay_ms,
    )  # fmt: skip


def _by_kind(planned: tuple[BrokerQueue, Plan]) -> tuple[bool, int, bytes]:
    """Sort key: durable queues first, those to which the message is the same together."""
    queue, plan = planned
    return (not queue.is_durable, plan.expiry_ms, plan.header)


# ---- facts of a message, from the bytes of its properties ----------------------------------------


def refused(text: str) -> ChannelError:
    """Return a 406 on basic.publish."""
    return ChannelError(PRECONDITION_FAILED, text, *PUBLISH)


def expiration_of(props: bytes) -> int:
    """Return the expiration in ms. ChannelError 406 unless it is a whole number in range."""
    given = expiration_at(props) or b""
    if not given.isdigit() or len(given) > 15 or int(given) > EXPIRATION_MS_MAX:
        text = given.decode("utf-8", "replace")
        raise refused(
            f"invalid expiration '{text}': expected a number of ms, 0 to {EXPIRATION_MS_MAX}"
        )
    return int(given)


def check_user(props: bytes, user: str) -> None:
    """Raise ChannelError 406 if the message has the user-id of another user."""
    given = BasicProperties.decode(props).user_id
    if given is not None and given != user:
        raise refused(f"user_id property set to '{given}' but authenticated user was '{user}'")


def delay_of(props: bytes, *, is_exchange: bool) -> int | None:
    """Return the delay in ms that the header x-delay asks for; None: there is none. A negative one
    is 0, as in RabbitMQ's plugin. is_exchange: the exchange is one for delays, so a value that is
    not a number counts as none; otherwise it is refused."""
    given = (BasicProperties.decode(props).headers or {}).get("x-delay")
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given > DELAY_MS_MAX:
        if is_exchange:
            return None
        raise refused(f"invalid header x-delay {given!r}: expected ms, at most {DELAY_MS_MAX}")
    return max(given, 0)


def key_of(props: bytes) -> tuple[bytes | None, int | None]:
    """Return the key by which duplicates are known, and for how many ms the message asks to be;
    None: it has no such header, or asks for nothing."""
    if props.find(_DUPLICATE_NAME) < 0:
        return None, None
    headers = BasicProperties.decode(props).headers or {}
    value, ttl_ms = headers.get(DUPLICATE_HEADER), headers.get(CACHE_TTL)
    if value is None:
        return None, None
    if type(ttl_ms) is not int or ttl_ms < 0 or ttl_ms > MS_MAX:
        ttl_ms = None
    return blake2b(canonical(header_value(value)), digest_size=KEY_BYTES).digest(), ttl_ms


def with_reply_to(props: bytes, reply_to: str) -> bytes:
    """Return the properties with another reply-to."""
    decoded = BasicProperties.decode(props)
    decoded.reply_to = reply_to
    return decoded.encode()


# ---- CC and BCC ----------------------------------------------------------------------------------


class Copies:
    """The keys in CC and BCC, and the properties without BCC."""

    __slots__ = ("bcc", "cc", "props")

    def __init__(self, cc: list[bytes], bcc: list[bytes], props: bytes) -> None:
        self.cc: list[bytes] = cc
        self.bcc: list[bytes] = bcc
        self.props: bytes = props


def has_copies(props: bytes) -> bool:
    """Return whether properties may name further routing keys. Hot: False for nearly every
    message."""
    # `in` would make and forget a TypeError first, which takes longer.
    return props[0] & HEADERS_IN_FIRST_OCTET != 0 and (
        props.find(b"\x02CC") >= 0 or props.find(b"\x03BCC") >= 0
    )


def copies(props: bytes) -> Copies:
    """Return the keys in CC and BCC of valid properties. ChannelError for one that is not an
    array."""
    try:
        raw = RawProperties(props)
    except PropertiesError:
        return Copies([], [], props)
    headers = raw.headers()
    _check(headers, CC)
    _check(headers, BCC)
    cc = routing_keys_in(headers)
    if raw_fields.get(headers, BCC) is None:
        return Copies(cc, [], props)
    bcc = routing_keys_in(headers, BCC)
    return Copies(cc, bcc, raw.changed([entry for entry in headers if entry[0] != BCC]))


def _check(headers: list[RawEntry], name: bytes) -> None:
    value = raw_fields.get(headers, name)
    if value is None or value[:1] == b"A":
        return
    kind = raw_fields.TYPE_NAMES[value[0]]
    raise ChannelError(
        PRECONDITION_FAILED,
        f'invalid message: {{unacceptable_type_in_header,"{name.decode()}",{kind}}}',
        class_id=60,
        method_id=40,
    )
