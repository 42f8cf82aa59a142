"""BatchSlices: the messages of one slice of a batch, into one transaction, wherever each is to go.

A frame of a staged page is a message: its meta is the header that a queue stores (exchange, routing
key, properties), its payload the body. A slice of them is one record of the log, with how far the
batch has come; so after a crash it is there, or is made again.

    to one queue       every message, whatever exchange it names
    to exchanges       by the routes at this moment, CC, BCC and headers exchanges included, as a
                       publish goes (publish.py); one whose exchange the commit did not name is
                       undeliverable
    to a stream        with the batch's time; to its own partition

All of it is persistent where the queue is durable, whatever delivery mode a message has. Priority,
expiration and delays count from now, as for a publish. No queue refuses: what does not fit pushes
out the head, also where publishes would be rejected. What is undeliverable (its exchange is gone,
or its properties are damaged) goes to the commit's dead_letter_to, with a death in its headers;
without one the whole batch waits (BatchWaitsError). What no queue is bound for goes there too, or
nowhere, as a publish that is not mandatory.

A run of messages that are alike but for their bodies, and go to one queue, is one step.

Queues that are not durable get theirs right after the record; a crash between ends them anyway.

Not here: how large a slice is, and when (batch_moves.py).
"""

from typing import TYPE_CHECKING, Final

from penstock.broker.batch_target import BatchTarget, is_lasting
from penstock.broker.deliver import HEADERS
from penstock.broker.fan_out import Planned, fan_out, plan_all, plan_of
from penstock.broker.output import Output
from penstock.broker.publish import (
    HAS_EXPIRATION,
    HAS_HEADERS,
    HAS_REPLY_TO,
    HAS_USER_ID,
    Publisher,
)
from penstock.broker.publish_facts import Facts, delay_of, expiration_of
from penstock.broker.served_queue import Served, ServedQueue
from penstock.broker.served_stream import ServedStream, StreamAppend
from penstock.codec.properties import scan
from penstock.errors import AMQPError, PenstockError
from penstock.queues.amqp_headers import FORMAT
from penstock.queues.headers import REJECTED, Death, HeaderError
from penstock.queues.queue_options import DROP_HEAD
from penstock.shared_body import SharedBody
from penstock.storage.sharing import Sharing
from penstock.storage.transaction import PublishedRun, Transaction

if TYPE_CHECKING:
    from penstock.access.permissions import Identity
    from penstock.broker.vhost import VHost

FRAME_MAX: Final = 131_072  # of an output that nothing is written to
# Facts of the publisher's connection, which a batch has not.
NOT_ASKED: Final = (HAS_USER_ID | HAS_REPLY_TO) << 16
NO_PROPERTIES: Final = b"\0\0"


class BatchWaitsError(PenstockError):
    """A batch cannot go on for now; it is tried again."""


class Way:
    """Where messages with one header go, and as what."""

    __slots__ = ("durable", "facts", "header", "others", "streams")

    def __init__(self, header: bytes, facts: Facts) -> None:
        self.header: bytes = header
        self.facts: Facts = facts
        self.durable: list[ServedQueue] = []
        self.others: list[ServedQueue] = []
        self.streams: list[ServedStream] = []

    def add(self, queue: Served) -> None:
        """Also to this one."""
        if isinstance(queue, ServedStream):
            self.streams.append(queue)
        elif isinstance(queue, ServedQueue):
            (self.durable if queue.is_durable else self.others).append(queue)


class BatchSlice:
    """One transaction of a batch."""

    def __init__(self, slices: "BatchSlices", transaction: Transaction) -> None:
        self._slices = slices
        self._vhost = slices.vhost
        self.transaction: Transaction = transaction
        self._planned: list[Planned] = []
        self._appends: list[StreamAppend] = []
        self._later: list[tuple[Way, bytes, SharedBody | None]] = []
        self.bytes: int = 0
        self.dropped: int = 0

    def put_run(self, meta: bytes, bodies: list[bytes]) -> None:
        """Messages that have this meta: one step, if all that they do is to enter one queue.
        BatchWaitsError: none of them is in the slice. DiskFullError: not all are."""
        way = self._slices.way(meta)
        if len(bodies) == 1 or not self._put_as_one(way, bodies):
            for body in bodies:
                self._put(way, body)
        for body in bodies:
            self.bytes += len(body) + len(meta)

    def _put_as_one(self, way: Way, bodies: list[bytes]) -> bool:
        """As one step; False if they must go one by one."""
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
            self._planned.append((queue, plan, run))
        return run is not None

    def _put(self, way: Way, body: bytes) -> None:
        engine = self._vhost.engine
        shared = engine.share_of(body, len(way.durable) + len(way.others))
        with Sharing(engine, shared, completes=False):
            self._put_durable(way, body)
        for stream in way.streams:
            self._appends.append(stream.begin_append(self.transaction, way.header, body))
        if way.others:
            self._later.append((way, body, shared))

    def _put_durable(self, way: Way, body: bytes) -> None:
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
            self._planned.append((queue, plan, published))
        elif way.durable:
            plan_all(self.transaction, way.durable, way.header, body, way.facts, self._planned)
        elif not way.streams and not way.others:
            self.dropped += 1

    def commit(self) -> int:
        """Make it happen; the LSN. DiskFullError: nothing happened, and it is rolled back."""
        vhost = self._vhost
        mode = vhost.mode
        try:
            lsn = self.transaction.commit(mode)
        except BaseException:
            self.rollback()
            raise
        touched: dict[ServedQueue, None] = {}
        held: set[int] = set()  # queue numbers: what is behind a message that is held waits too
        for queue, plan, published in self._planned:
            number = plan.index.number
            until = 0 if number in held else lsn
            if isinstance(published, PublishedRun) and published.first_seq >= 0:
                run = published.messages
                queue.amq.planned_run(plan, published.first_seq, run, until, mode)
                queue.published += len(run)
            for index, entry in published.entries:
                if index is plan.index:
                    queue.amq.planned(plan, entry.seq, entry.message.size, until, mode)
                    queue.published += 1
            held.add(number)
            touched[queue] = None
        for append in self._appends:
            append.done()
        for way, body, shared in self._later:
            others = [queue for queue in way.others if not queue.is_deleted]
            fan_out(vhost, others, [], way.header, body, way.facts, None, shared)
        for queue in touched:
            if queue.amq.options.overflow != DROP_HEAD:
                queue.amq.after_dead_letters()
            vhost.dispatch.mark(queue)
        return lsn

    def rollback(self) -> None:
        """Nothing of it happens."""
        if self.transaction.is_open:
            self.transaction.rollback()
        for queue, plan, _ in self._planned:
            if not queue.is_deleted:
                queue.amq.unplan(plan)
        self._planned = []


class BatchSlices:
    """Of one batch that goes to a target."""

    def __init__(self, vhost: "VHost", target: BatchTarget, operator: "Identity") -> None:
        self.vhost: VHost = vhost
        self._target = target
        self._publisher = Publisher(vhost, operator, 0, Output(vhost.dispatch, FRAME_MAX))
        self._meta: bytes | None = None
        self._way: Way | None = None

    def begin(self) -> BatchSlice:
        """A slice. What was looked up for the last one is looked up again: much may be deleted in
        between."""
        self._meta = None
        self._way = None
        return BatchSlice(self, self.vhost.engine.begin())

    def goal(self) -> Served | None:
        """The target's queue or stream, or that for dead letters if it is gone; None: exchanges.
        BatchWaitsError: there is nowhere to go."""
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

    def _usable(self, name: str) -> Served | None:
        queue = self.vhost.served(name)
        return None if queue is None or not is_lasting(queue) else queue

    def _missing(self, name: str) -> str:
        found = self.vhost.table.find(name)
        if found is None:
            return "does not exist any more"
        return "has crashed" if found.is_crashed else "is not durable"

    def _dead(self) -> Served:
        name = self._target.dead_letter_to
        found = self._usable(name)
        if found is None:
            what = self.vhost.table.called(name)
            raise BatchWaitsError(f"the queue for its dead letters, {what}, {self._missing(name)}")
        return found

    # ---- the way of a message ------------------------------------------------------------------

    def way(self, meta: bytes) -> Way:
        """Where a message with this header goes. BatchWaitsError."""
        way = self._way
        if way is None or meta != self._meta:
            way = self._way = self._find(meta)
            self._meta = meta
        return way

    def _find(self, meta: bytes) -> Way:
        try:
            way = self._to_target(meta)
        except (AMQPError, HeaderError, IndexError) as error:
            text = error.text if isinstance(error, AMQPError) else str(error)
            return self._undeliverable(meta, text)
        if not way.durable and not way.streams and not way.others and self._target.dead_letter_to:
            return self._buried(meta)
        return way

    def _to_target(self, meta: bytes) -> Way:
        address, props = self.vhost.headers.parts(meta) if meta else (b"", NO_PROPERTIES)
        info = scan(props) & ~NOT_ASKED
        if self._target.queue:
            queue = self._usable(self._target.queue)
            if queue is None:
                return self._undeliverable(meta, f"there is no queue '{self._target.queue}'")
            way = Way(meta, facts_alone(props, info))
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
        way = Way(header, facts)
        for queue in (*targets.queues, *targets.streams):
            way.add(queue)
        return way

    def _undeliverable(self, meta: bytes, why: str) -> Way:
        if not self._target.dead_letter_to:
            raise BatchWaitsError(f"a message cannot be delivered: {why}")
        return self._buried(meta)

    def _buried(self, meta: bytes) -> Way:
        """To the queue for dead letters."""
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
        facts = Facts()
        facts.is_persistent = True
        facts.priority = headers.priority(header)
        way = Way(header, facts)
        way.add(queue)
        return way


def facts_alone(props: bytes, info: int) -> Facts:
    """What a queue must know of a message. ChannelError 406."""
    facts = Facts()
    facts.set_plain(info)
    flags = info >> 16
    if flags & HAS_EXPIRATION:
        facts.ttl_ms = expiration_of(props)
    if flags & HAS_HEADERS and b"\x07x-delay" in props:
        facts.delay_ms = delay_of(props, is_exchange=False)
    return facts
