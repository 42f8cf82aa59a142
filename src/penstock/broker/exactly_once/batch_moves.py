"""Batch moves: the messages of a decided batch go from staged pages to its target, between turns.

**Target.** Where the messages of a batch go, as its commit says and as the log keeps it:

    {"queue": "q"}                           every message, to this queue or stream
    {"exchanges": ["x", ""]}                 each to the exchange that it names itself, of these
    + "dead_letter_to": "dead"               a queue or stream for what cannot go there

A queue must be durable and not exclusive. Exchanges must exist and not be internal; "" is the
default exchange, which routes by the names of queues. All of that is checked when the batch is
committed. From then on its messages belong to the target, and what is deleted later makes them
wait, or go to `dead_letter_to`.

**Moves.** From the decision on the messages of a batch belong to its target, but they are still in
staged pages. A BatchMove takes them there: a background task that never runs ahead of the log, and
rests while publishers are blocked.

    page of 4 MiB or more, for a stream                     the stream adopts the page as it is; of
                                                            several partitions the one to which all
                                                            its rows belong, if its name says so
    else     a worker reads and verifies the next 1024 messages or 1 MiB, while those before are
             moved in slices: up to 1024 messages, or what takes a millisecond or two; each is one
             record of the log, with how far the batch has come

So after a crash the move continues where the log says, and neither loses nor repeats a message.
Each query has one move at most: its batches are moved one after the other. A stream shows a batch
as a whole: its head waits until the batch is done, also across a crash. Of several queries one at a
time writes into a stream (StreamClaims), because a head waits for all that have begun.

**Slices.** A frame of a staged page is a message: its meta is the header that a queue stores
(exchange, routing key, properties), its payload the body.

    to one queue       every message, whatever exchange it names
    to exchanges       by the routes at this moment, CC, BCC and headers exchanges included, as a
                       publish (publish.py); one whose exchange the commit did not name is
                       undeliverable
    to a stream        with the batch's time; to its own partition

Messages are persistent where the queue is durable, whatever their delivery mode. Priority,
expiration and delays count from now, as for a publish. No queue refuses a message: if there are too
many, the head is dropped, also where publishes would be rejected. What is undeliverable (its
exchange is gone, or its properties are damaged) goes to the commit's dead_letter_to, with a death
in its headers; without one the whole batch waits (BatchWaitsError). What no queue is bound for goes
there too, or is dropped, as a publish that is not mandatory. Queues that are not durable get their
messages right after the record; a crash between the two would end them anyway.

A run of messages with the same meta that go to one queue is one step.

**A batch that cannot go on** (its target was deleted and no queue for dead letters is named, the
disk is full, a staged page is damaged) loses nothing: it waits, and is tried again every second.
The reason is in `list_batches` (waits_for) and in an event, `batch_waits`, at once and every hour.
"""

import json
from collections.abc import Callable
from typing import Final

from penstock.access.permissions import Identity
from penstock.broker import refusals
from penstock.broker.background_tasks import AGAIN, ASLEEP, DONE, BackgroundTask, Pace, SliceSize
from penstock.broker.broker_queue import BrokerQueue, QueueOrStream
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.output import HEADERS, Output
from penstock.broker.publish import (
    HAS_EXPIRATION,
    HAS_HEADERS,
    HAS_REPLY_TO,
    HAS_USER_ID,
    Planned,
    Publisher,
    PublishFacts,
    Targets,
    delay_of,
    expiration_of,
    fan_out,
    keep_in_histories,
    kept_of,
    plan_all,
    plan_of,
)
from penstock.broker.refusals import precondition_failed
from penstock.broker.vhost import VHost
from penstock.codec.properties import scan
from penstock.counts import ExchangeCounts
from penstock.errors import AMQPError, PenstockError
from penstock.message import SharedBody
from penstock.operation_json import is_name
from penstock.queues.amqp_headers import FORMAT
from penstock.queues.headers import REJECTED, Death, HeaderError
from penstock.queues.queue_options import DROP_HEAD
from penstock.routing.exchange_types import Kept
from penstock.storage.pages.batches import Batch, partition_of_rows
from penstock.storage.pages.page import PageRecord
from penstock.storage.pages.staging import StagedReader, query_path
from penstock.storage.pages.streams import StoredStream
from penstock.storage.parts.transaction import PublishedRun, Transaction

EXPECTED = (
    'expected {"queue": name} or {"exchanges": [names]}, and perhaps "dead_letter_to": name of a '
    "queue"
)


class BatchTarget:
    """The target of a batch. queue: "" if it is exchanges. dead_letter_to: "" for none."""

    __slots__ = ("dead_letter_to", "exchanges", "queue")

    def __init__(self, queue: str, exchanges: tuple[str, ...], dead_letter_to: str) -> None:
        self.queue: str = queue
        self.exchanges: tuple[str, ...] = exchanges
        self.dead_letter_to: str = dead_letter_to

    @classmethod
    def of(cls, given: object) -> "BatchTarget":
        """Return the target of a commit's argument. ChannelError 406."""
        if not isinstance(given, dict):
            raise precondition_failed(f"target: given {given!r}, {EXPECTED}")
        queue, exchanges = given.get("queue", ""), given.get("exchanges", [])
        dead = given.get("dead_letter_to") or ""
        is_right = (
            isinstance(queue, str)
            and is_name(queue)
            and isinstance(exchanges, list)
            and all(isinstance(name, str) and is_name(name) for name in exchanges)
            and isinstance(dead, str)
            and is_name(dead)
            and bool(queue) != bool(exchanges)
            and not set(given).difference(("queue", "exchanges", "dead_letter_to"))
        )
        if not is_right:
            raise precondition_failed(f"target: given {str(given)[:200]}, {EXPECTED}")
        return cls(queue, tuple(sorted(set(exchanges))), dead)

    @classmethod
    def nowhere(cls) -> "BatchTarget":
        """Return the target of a batch without rows, which names no exchange."""
        return cls("", (), "")

    @property
    def is_nowhere(self) -> bool:
        """Return whether it names nothing."""
        return not self.queue and not self.exchanges

    @classmethod
    def from_text(cls, text: str) -> "BatchTarget":
        """Return the target as the log has it. ValueError."""
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError(f"the target of a batch is no object: {text[:100]!r}")
        names = given.get("exchanges", [])
        return cls(
            str(given.get("queue", "")), tuple(str(name) for name in names),
            str(given.get("dead_letter_to") or ""),
        )  # fmt: skip

    def text(self) -> str:
        """Return the target for the log."""
        return json.dumps(self.facts(), separators=(",", ":"), ensure_ascii=True)

    def facts(self) -> dict[str, object]:
        """Return the target for listings."""
        found: dict[str, object] = (
            {"queue": self.queue} if self.queue else {"exchanges": list(self.exchanges)}
        )
        if self.dead_letter_to:
            found["dead_letter_to"] = self.dead_letter_to
        return found

    def called(self) -> str:
        """Return how messages name it: "queue 'q'", "exchanges 'x', 'y'"."""
        if self.queue:
            return f"queue '{self.queue}'"
        if self.is_nowhere:
            return "no target"
        return "exchanges " + ", ".join([f"'{name}'" for name in self.exchanges])

    def is_same_place(self, text: str) -> bool:
        """Return whether the target of a decided batch is the same queue or exchanges; its
        dead_letter_to may differ."""
        try:
            other = BatchTarget.from_text(text)
        except ValueError:
            return False
        return (self.queue, self.exchanges) == (other.queue, other.exchanges)

    def is_writable(self, identity: Identity) -> bool:
        """Return whether the user may write to all of it, and it is something."""
        if self.is_nowhere or identity.asks_resources:
            return False
        names = [name for name in (self.queue, self.dead_letter_to) if name]
        return all(identity.may_write(name) for name in (*names, *self.exchanges)) and all(
            identity.may_write_every_topic(name) for name in self.exchanges
        )

    def check(self, vhost: VHost) -> None:
        """Raise ChannelError 403, 404 or 406 unless everything exists."""
        for name in (self.queue, self.dead_letter_to):
            if name:
                queue = vhost.table.find_queue(name)
                vhost.check_not_audit(name)
                if not is_lasting(queue):
                    kind = "exclusive" if queue.is_exclusive else "not durable"
                    raise refusals.precondition_failed(
                        f"{vhost.table.called(name)} is {kind}: a batch is written exactly once, "
                        "which such a queue cannot keep"
                    )
        for name in self.exchanges:
            what = refusals.called("exchange", name, vhost.name)
            if not vhost.router.has(name):
                raise refusals.not_found(what)
            if vhost.topology.is_internal(name):
                raise refusals.access_refused(f"cannot publish to internal {what}")


def is_lasting(queue: QueueOrStream) -> bool:
    """Return whether the queue exists after a restart."""
    return queue.is_durable and not queue.is_exclusive


FRAME_MAX: Final = 131_072  # of an output that nothing is written to
# Facts of the publisher's connection, which a batch has not.
NOT_ASKED: Final = (HAS_USER_ID | HAS_REPLY_TO) << 16
NO_PROPERTIES: Final = b"\0\0"


class BatchWaitsError(PenstockError):
    """A batch cannot continue now; it is tried again."""


class BatchRoute:
    """Where messages with one header go, and with which properties. targets: with what keeps them
    (histories), and whether each goes elsewhere (is_by_chance). counts: of its exchange."""

    __slots__ = ("counts", "durable", "facts", "header", "others", "streams", "targets")

    def __init__(self, header: bytes, facts: PublishFacts, counts: ExchangeCounts) -> None:
        self.header: bytes = header
        self.facts: PublishFacts = facts
        self.counts: ExchangeCounts = counts
        self.durable: list[BrokerQueue] = []
        self.others: list[BrokerQueue] = []
        self.streams: list[BrokerStream] = []
        self.targets: Targets = Targets()

    @property
    def places(self) -> int:
        """Return how many queues and streams there are."""
        return len(self.durable) + len(self.others) + len(self.streams)

    def add(self, queue: QueueOrStream) -> None:
        """Add a queue or stream."""
        if isinstance(queue, BrokerStream):
            self.streams.append(queue)
        elif isinstance(queue, BrokerQueue):
            (self.durable if queue.is_durable else self.others).append(queue)


class BatchSlice:
    """One transaction of a batch."""

    def __init__(self, slices: "BatchRouter", transaction: Transaction) -> None:
        self._slices = slices
        self._vhost = slices.vhost
        self.transaction: Transaction = transaction
        self._planned: list[Planned] = []
        self._appends: list[BrokerStream] = []
        self._later: list[tuple[BatchRoute, bytes, SharedBody | None]] = []
        self._kept: list[tuple[Targets, Kept]] = []
        self._published: dict[ExchangeCounts, ExchangeCounts] = {}  # exchanges -> what it adds
        self.bytes: int = 0
        self.dropped: int = 0

    def put_run(self, meta: bytes, bodies: list[bytes]) -> int:
        """Add messages that have this meta; one step, if all they do is to enter one queue. Returns
        how many were added: fewer than all if the slice is full. BatchWaitsError: none of them is
        in the slice. DiskFullError: not all are."""
        way = self._slices.route(meta)
        is_plain = not (way.targets.histories or way.targets.is_by_chance)
        n = 0
        if len(bodies) > 1 and is_plain and self._put_as_one(way, bodies):
            n = len(bodies)
        while n < len(bodies):
            if n and way.targets.is_by_chance:
                way = self._slices.route(meta)
            self._put(way, bodies[n])
            n += 1
            self._vhost.budget.left -= PLACE_STEPS * way.places
            if self.is_full:
                break
        for body in bodies[:n]:
            self.bytes += len(body) + len(meta)
        places = way.places
        counts = self._published.setdefault(way.counts, ExchangeCounts())
        counts.add(n, places * n, 0 if places else n)
        return n

    @property
    def is_full(self) -> bool:
        """Return whether to find the queues of its messages, and to put them there, has taken so
        long that the slice is to end."""
        return self._vhost.budget.left < -FILL_STEPS

    def _put_as_one(self, way: BatchRoute, bodies: list[bytes]) -> bool:
        """Add them as one step; return False if they must go one by one."""
        if len(way.durable) != 1 or way.streams or way.others:
            return False
        queue = way.durable[0]
        plan = plan_of(queue, way.header, way.facts)
        run: PublishedRun | None = None
        try:
            run = self.transaction.publish_run(plan.index, plan.header, bodies, plan.expiry_ms)
        finally:
            if run is None:
                queue.amq.unplan(plan)
        if run is not None:
            self._planned.append(Planned(run, [(queue, plan)]))
        return run is not None

    def _put(self, way: BatchRoute, body: bytes) -> None:
        engine = self._vhost.engine
        if way.targets.histories:
            self._kept.append((way.targets, kept_of(way.header, body, way.facts)))
        shared = engine.placement.share_of(body, len(way.durable) + len(way.others))
        with engine.share(shared, completes=False):
            self._put_durable(way, body)
        for stream in way.streams:
            stream.begin_append(self.transaction, way.header, body)
            self._appends.append(stream)
        if way.others:
            self._later.append((way, body, shared))

    def _put_durable(self, way: BatchRoute, body: bytes) -> None:
        if len(way.durable) == 1:
            queue = way.durable[0]
            plan = plan_of(queue, way.header, way.facts)
            try:
                published = self.transaction.publish(
                    [plan.index], plan.header, body, plan.expiry_ms
                )
            except BaseException:
                queue.amq.unplan(plan)
                raise
            self._planned.append(Planned(published, [(queue, plan)]))
        elif way.durable:
            plan_all(self.transaction, way.durable, way.header, body, way.facts, self._planned)
        elif not way.streams and not way.others:
            self.dropped += 1

    def commit(self) -> int:
        """Commit the slice; return the LSN. DiskFullError: it is rolled back."""
        vhost = self._vhost
        mode = vhost.mode
        try:
            lsn = self.transaction.commit(mode)
        except BaseException:
            self.rollback()
            raise
        vhost.counts.messages.drop_unroutable += self.dropped
        for exchange, own in self._published.items():
            exchange.add(own.publish_in, own.publish_out, own.unroutable)
            vhost.counts.messages.publish += own.publish_in
        touched: dict[BrokerQueue, None] = {}
        held: set[int] = set()  # queue numbers: what is behind a message that is held waits too
        for one in self._planned:
            published = one.published
            if isinstance(published, PublishedRun) and published.first_seq >= 0:
                run = published.messages
                queue, plan = one.plans[0]
                until = 0 if plan.index.number in held else lsn
                queue.amq.planned_run(plan, published.first_seq, run, until, mode)
                queue.published += len(run)
                held.add(plan.index.number)
                touched[queue] = None
            for queue, plan, entry in one.entered():
                until = 0 if plan.index.number in held else lsn
                queue.amq.planned(plan, entry.seq, entry.message.size, until, mode)
                queue.published += 1
                held.add(plan.index.number)
                touched[queue] = None
        for stream in self._appends:
            stream.published += 1
        for way, body, shared in self._later:
            others = [queue for queue in way.others if not queue.is_deleted]
            fan_out(vhost, others, [], way.header, body, way.facts, None, shared, has_left=True)
        for targets, kept in self._kept:
            keep_in_histories(targets, kept)
        for queue in touched:
            if queue.amq.options.overflow != DROP_HEAD:
                queue.amq.after_batch()
            vhost.dispatch.mark(queue)
        return lsn

    def rollback(self) -> None:
        """Undo the slice."""
        if self.transaction.is_open:
            self.transaction.rollback()
        for one in self._planned:
            one.undo()
        self._planned = []


class BatchRouter:
    """Routes the messages of one batch to its target. streams: those that got messages of it."""

    def __init__(self, vhost: VHost, target: BatchTarget, operator: Identity) -> None:
        self.vhost: VHost = vhost
        self._target = target
        self._publisher = Publisher(vhost, operator, 0, Output(vhost.dispatch, FRAME_MAX))
        self._publisher.knows_duplicates = False  # each row comes once anyway
        self._counts: ExchangeCounts = vhost.exchanges[""].counts  # of what names no exchange
        self._meta: bytes | None = None
        self._way: BatchRoute | None = None
        self.streams: dict[BrokerStream, None] = {}

    def close(self) -> None:
        """Forget the routes: the batch is done."""
        self._publisher.forget_routes()

    def begin(self) -> BatchSlice:
        """Begin a slice. Routes are looked up again, because much may have been deleted since the
        last one."""
        self._meta = None
        self._way = None
        return BatchSlice(self, self.vhost.engine.begin())

    def goal(self) -> QueueOrStream | None:
        """Return the target's queue or stream, or that for dead letters if it is gone; None for
        exchanges. BatchWaitsError: there is none."""
        target = self._target
        if not target.queue:
            return None
        found = self._usable(target.queue)
        if found is None and target.dead_letter_to:
            found = self._dead()
        if found is None:
            what = self.vhost.table.called(target.queue)
            raise BatchWaitsError(f"its target, {what}, {self._missing(target.queue)}")
        return found

    def _usable(self, name: str) -> QueueOrStream | None:
        queue = self.vhost.table.usable(name)
        return None if queue is None or not is_lasting(queue) else queue

    def _missing(self, name: str) -> str:
        found = self.vhost.table.find(name)
        if found is None:
            return "does not exist any more"
        return "has crashed" if found.is_crashed else "is not durable"

    def _dead(self) -> QueueOrStream:
        name = self._target.dead_letter_to
        found = self._usable(name)
        if found is None:
            what = self.vhost.table.called(name)
            raise BatchWaitsError(f"the queue for its dead letters, {what}, {self._missing(name)}")
        return found

    # ---- the way of a message ------------------------------------------------------------------

    def route(self, meta: bytes) -> BatchRoute:
        """Return the route of a message with this header. BatchWaitsError."""
        way = self._way
        if way is None or meta != self._meta or way.targets.is_by_chance:
            way = self._way = self._find(meta)
            self._meta = meta
            for stream in way.streams:
                self.streams[stream] = None
        return way

    def _find(self, meta: bytes) -> BatchRoute:
        try:
            way = self._to_target(meta)
        except (AMQPError, HeaderError, IndexError) as error:
            text = error.text if isinstance(error, AMQPError) else str(error)
            return self._undeliverable(meta, text)
        if not way.durable and not way.streams and not way.others and self._target.dead_letter_to:
            return self._dead_letter_route(meta)
        return way

    def _to_target(self, meta: bytes) -> BatchRoute:
        address, props = self.vhost.headers.parts(meta) if meta else (b"", NO_PROPERTIES)
        info = scan(props) & ~NOT_ASKED
        if self._target.queue:
            queue = self._usable(self._target.queue)
            if queue is None:
                return self._undeliverable(meta, f"there is no queue '{self._target.queue}'")
            way = BatchRoute(meta, facts_alone(props, info), self._counts)
            way.add(queue)
            return way
        route = self._publisher.route(address + b"\0")
        if route.exchange not in self._target.exchanges:
            what = f"exchange '{route.exchange}'"
            return self._undeliverable(meta, f"{what} is not among those of the commit")
        facts, targets, props = self._publisher.facts_of(route, props, info)
        header = route.front + props
        if facts.hidden:
            header = HEADERS.with_hidden(header, facts.hidden)
        way = BatchRoute(header, facts, route.counts)
        way.targets = targets
        for queue in (*targets.queues, *targets.streams):
            way.add(queue)
        return way

    def _undeliverable(self, meta: bytes, why: str) -> BatchRoute:
        if not self._target.dead_letter_to:
            raise BatchWaitsError(f"a message cannot be delivered: {why}")
        return self._dead_letter_route(meta)

    def _dead_letter_route(self, meta: bytes) -> BatchRoute:
        """Return a route to the queue for dead letters."""
        target = self._target
        queue = self._dead()
        headers = self.vhost.headers
        key = target.dead_letter_to.encode("utf-8", "surrogateescape")
        died_in = target.queue or "staging"
        death = Death(died_in, REJECTED, self.vhost.clock.wall_ms(), 0)
        try:
            header = headers.readdressed(headers.with_death(meta, death), b"", key)
            props = headers.parts(header)[1]
            scan(props)
        except (AMQPError, HeaderError, IndexError):
            header = bytes((FORMAT, 0, len(key))) + key + NO_PROPERTIES
            header = headers.with_death(header, death)
        facts = PublishFacts()
        facts.is_persistent = True
        facts.priority = headers.priority(header)
        way = BatchRoute(header, facts, self._counts)
        way.add(queue)
        return way


def facts_alone(props: bytes, info: int) -> PublishFacts:
    """Return what a queue must know of a message. ChannelError 406."""
    facts = PublishFacts()
    facts.set_plain(info)
    flags = info >> 16
    if flags & HAS_EXPIRATION:
        facts.ttl_ms = expiration_of(props)
    if flags & HAS_HEADERS and b"\x07x-delay" in props:
        facts.delay_ms = delay_of(props, is_exchange=False)
    return facts


READ_RECORDS: Final = 1024
READ_BYTES: Final = 1 << 20
SLICE_MESSAGES: Final = 1024
PLACE_STEPS: Final = 4  # of a message in one queue
FILL_STEPS: Final = 1 << 11  # of one slice, besides the last message: some milliseconds
RETRY_S: Final = 1.0
REPEAT_S: Final = 3600.0  # between two events that say the same


class PageReading:
    """Reads ahead in one staged page. Wakes the move when there are records, or an error."""

    def __init__(self, move: "BatchMove", batch: Batch) -> None:
        self.key: tuple[int, int] = batch.number, batch.page
        self._move = move
        self._engine = move.vhost.engine
        self._page = batch.current
        path = f"{query_path(self._engine.path, batch.query)}/{self._page.name}"
        self._reader = StagedReader(self._engine.fs, path, self._page)
        self._next: int = batch.frame  # to be read
        self._ahead: list[PageRecord] = []
        self._error: BaseException | None = None
        self._is_reading: bool = False
        self._is_over: bool = False
        self.records: list[PageRecord] = []
        self.at: int = 0  # of records, those below are moved

    def has_some(self) -> bool:
        """Return whether there are records to move; otherwise they are being read. CorruptionError,
        OSError: they could not be read; the next call reads them again."""
        if self.at >= len(self.records):
            self.records, self.at, self._ahead = self._ahead, 0, []
            self._read()
        if self._error is not None and not self.records:
            error, self._error = self._error, None
            raise error
        return bool(self.records)

    def _read(self) -> None:
        if self._is_reading or self._ahead or self._error is not None:
            return
        if self._next >= self._page.rows:
            return
        self._is_reading = True
        reader, first = self._reader, self._next
        self._engine.journal.submit(
            lambda: reader.read(first, READ_RECORDS, READ_BYTES), self._done, self._failed
        )

    def _done(self, result: object) -> None:
        assert isinstance(result, list)
        self._is_reading = False
        if self._is_over:
            self._reader.close()
            return
        self._ahead = result
        self._next += len(result)
        self._move.wake()

    def _failed(self, error: BaseException) -> None:
        self._is_reading = False
        if self._is_over:
            self._reader.close()
            return
        self._error = error
        self._move.wake()

    def close(self) -> None:
        """Stop reading."""
        self._is_over = True
        if not self._is_reading:
            self._reader.close()


class StreamClaims:
    """Which move writes into which stream: one at a time."""

    def __init__(self) -> None:
        self._claims: dict[str, BatchMove] = {}  # by the stream's name
        self._waiting: list[BatchMove] = []

    def claim(self, stream: str, move: "BatchMove") -> bool:
        """Return whether the move may write into the stream; if not, it is woken later."""
        if self._claims.setdefault(stream, move) is move:
            return True
        if move not in self._waiting:
            self._waiting.append(move)
        return False

    def release(self, move: "BatchMove") -> None:
        """Release the stream that the move has claimed, if any, and wake the moves that wait."""
        if move in self._claims.values():
            self._claims = {name: one for name, one in self._claims.items() if one is not move}
            waiting, self._waiting = self._waiting, []
            for other in waiting:
                other.wake()


class BatchMove(BackgroundTask):
    """Moves the batch of one query that is not done. waits_for: why it cannot continue. ends: when
    it is done, where the partitions of its streams end; it can be read when their heads are there.
    """

    def __init__(
        self, vhost: VHost, query: str, operator: Identity, claims: StreamClaims,
        on_moved: Callable[["BatchMove"], None],
    ) -> None:  # fmt: skip
        self.query: str = query
        self.vhost: VHost = vhost
        self.waits_for: str = ""
        self._claims = claims
        self._on_moved = on_moved
        self._operator = operator
        self._pace = Pace(self.vhost.dispatch, self.vhost.mode)
        self._size = SliceSize(self.vhost.clock, SLICE_MESSAGES)
        self._slices: BatchRouter | None = None
        self._number: int = -1
        self._reading: PageReading | None = None
        self.ends: dict[StoredStream, int] = {}
        self._dropped: int = 0
        self._told: str = ""
        self._told_s: float = 0.0
        self._is_retrying: bool = False
        self._is_over: bool = False

    def wake(self) -> None:
        """Continue."""
        self.vhost.background.wake(self)

    def end(self) -> None:
        """Stop: the query is released. A new batch of this name is another's."""
        self._is_over = True
        self._begin(None)

    def step(self) -> int:
        if self._is_over:
            return DONE
        batch = self.vhost.engine.batches.batch(self.query)
        if batch is None or batch.is_done:
            self._begin(None)
            self._on_moved(self)
            return DONE
        try:
            return self._go_on(batch)
        except (PenstockError, OSError) as error:
            if self.vhost.engine.failed is not None:
                raise
            return self._wait(str(error))

    def failed(self, error: Exception) -> None:
        """Report an unexpected error, and try again later."""
        self.vhost.dispatch.internal_error(f"the batch of query {self.query!r}", error)
        self._wait(f"{type(error).__name__}: {error}")

    # ---- a slice -------------------------------------------------------------------------------

    def _go_on(self, batch: Batch) -> int:
        slices = self._slices
        if slices is None or self._number != batch.number:
            slices = self._begin(batch)
        assert slices is not None, "there is a batch"
        goal = slices.goal()
        if isinstance(goal, BrokerStream):
            slices.streams[goal] = None
            if not self._claims.claim(goal.name, self):
                return ASLEEP  # woken when the other one is done
        if self._pace.is_ahead(self.wake):
            return ASLEEP
        vhost = self.vhost
        if vhost.blocked_reason:
            raise BatchWaitsError(f"publishing is blocked, short of {vhost.blocked_reason}")
        if isinstance(goal, BrokerStream) and self._has_adopted(goal, batch):
            return AGAIN
        reading = self._reading
        if reading is None or reading.key != (batch.number, batch.page):
            reading = self._open(batch)
        if not reading.has_some():
            return ASLEEP
        self._move(slices, reading, batch)
        return AGAIN

    def _has_adopted(self, stream: BrokerStream, batch: Batch) -> bool:
        """Make the next page one of the stream's, if it is large and of one partition; return
        whether it was."""
        engine = self.vhost.engine
        if not engine.batches.can_adopt(self.query):
            return False
        part = partition_of_rows(batch.current.name, len(stream.parts))
        if part < 0:
            return False
        rows = batch.current.rows
        engine.batches.adopt(self.query, stream.parts[part])
        stream.published += rows
        self.vhost.counts.messages.publish += rows
        self._went_on(engine.log.last_lsn, 0)
        return True

    def _begin(self, batch: Batch | None) -> BatchRouter | None:
        """Begin another batch, or none."""
        if self._dropped:
            self.vhost.event(
                "batch_unroutable",
                f"{self._dropped} messages of batch {self._number} of query {self.query!r} went to "
                "no queue: nothing is bound for them",
            )
        self._dropped = 0
        self._claims.release(self)
        if self._reading is not None:
            self._reading.close()
            self._reading = None
        if self._slices is not None:
            streams = self._slices.streams
            self.ends = {part: part.next_offset for stream in streams for part in stream.parts}
            self._slices.close()
        if batch is None:
            self._slices = None
        else:
            target = BatchTarget.from_text(batch.target)
            self._slices = slices = BatchRouter(self.vhost, target, self._operator)
            for number in batch.holds:  # of slices before a restart
                stream = self.vhost.streams.by_number.get(number)
                if stream is not None:
                    slices.streams[stream] = None
            self._number = batch.number
        return self._slices

    def _open(self, batch: Batch) -> PageReading:
        if self._reading is not None:
            self._reading.close()
        self._reading = PageReading(self, batch)
        return self._reading

    def _move(self, slices: BatchRouter, reading: PageReading, batch: Batch) -> None:
        """Move the next messages, as one record."""
        self.vhost.budget.begin_later()
        part = slices.begin()
        try:
            n = self._fill(part, reading)
            part.transaction.progress(self.query, batch.page, batch.frame + n)
        except BaseException:
            part.rollback()
            raise
        lsn = part.commit()
        self._size.end()
        reading.at += n
        self._dropped += part.dropped
        self._went_on(lsn, part.bytes)

    def _fill(self, part: BatchSlice, reading: PageReading) -> int:
        """Add messages to the slice, in runs with the same meta; return how many. One that must
        wait ends the slice, unless it is the first."""
        records, first = reading.records, reading.at
        end = min(first + self._size.begin(), len(records))
        at = first
        while at < end:
            meta = records[at].meta
            bodies: list[bytes] = []
            behind = at
            while behind < end and records[behind].meta == meta:
                bodies.append(records[behind].payload)
                behind += 1
            try:
                at += part.put_run(meta, bodies)
            except BatchWaitsError:
                if at == first:
                    raise
                break
            if part.is_full:
                break
        return at - first

    def _went_on(self, lsn: int, size: int) -> None:
        self._pace.logged(lsn, size)
        self._told = ""
        if self.waits_for:
            self.waits_for = ""
            text = f"batch {self._number} of query {self.query!r} goes on"
            self.vhost.event("batch_goes_on", text, part=self.query)

    # ---- waiting -------------------------------------------------------------------------------

    def _wait(self, why: str) -> int:
        now_s = self.vhost.clock.monotonic()
        batch = self.vhost.engine.batches.batch(self.query)
        if batch is not None:
            if why != self._told or now_s - self._told_s >= REPEAT_S:
                self._told, self._told_s = why, now_s
                text = f"batch {batch.number} of query {self.query!r} cannot go on: {why}"
                self.vhost.event("batch_waits", text, part=self.query)
            if not batch.holds:
                self._claims.release(self)
        self.waits_for = why
        if not self._is_retrying:
            self._is_retrying = True
            self.vhost.timers.call_at(now_s + RETRY_S, self._try_again)
        return ASLEEP

    def _try_again(self) -> None:
        self._is_retrying = False
        self.wake()
