"""Operations on messages: publish, get and settle, peek; and operators' sessions.

    publish   a batch by one route, confirmed as a whole once the log is durable
    route     where such a message would go
    get       the next messages of a queue; they are pending, held by the caller's session, until
    settle    acknowledges them, or puts them back: an attempt is not counted then
    peek      returns ready messages and changes nothing; browse_messages those with such a key,
              header or body, as HTTP shows them
    move_messages  moves ready messages to another queue, or each to where it died, one record each
    delete_messages  deletes some of the ready messages
    get_messages   gets and settles at once, with the words and the answer of RabbitMQ's HTTP API

The caller chooses the session's name. A session ends with the caller's connection to the control
socket (`session_closed`): what it holds then goes back to its place. A get that waits is woken when
a message may be there; if its session has ended by then, it takes nothing.

Each held tag is remembered with the AMQQueue in which it is pending, so that a tag is not settled
in another queue after a restart or a deletion of the first.
"""

import base64
import codecs
from collections.abc import Collection, Generator, Iterator
from functools import partial
from typing import Final

from penstock.broker.broker_queue import BrokerQueue
from penstock.broker.channel import SettleFailed
from penstock.broker.dispatch import ACK, DISCARD, RELEASE, REQUEUE, STEP_BYTES, Reply
from penstock.broker.operations.call import (
    PIECE_BYTES,
    PIECE_STEPS,
    ROW_STEPS,
    Call,
    Functions,
    Slices,
)
from penstock.broker.output import Output
from penstock.broker.permissions import WRITE, check_topic
from penstock.broker.publish import (
    Publisher,
    PublishFacts,
    Route,
    Targets,
    fan_out,
    keep_in_histories,
    kept_of,
)
from penstock.broker.refusals import called, not_found, precondition_failed
from penstock.broker.vhost import VHost
from penstock.codec.properties import PROPERTY_NAMES, BasicProperties, scan
from penstock.errors import (
    NO_ROUTE,
    RESOURCE_ERROR,
    ChannelError,
    CorruptionError,
    DiskFullError,
    QueueFullError,
)
from penstock.fast_crc import pieces_of
from penstock.message import QueuedMessage
from penstock.operation_json import JsonParts, in_seconds, loads, payload
from penstock.operation_table import GET_MAX
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.backing_queue import PART_SHIFT, Delivery
from penstock.queues.dead_letter import SEQ_MASK
from penstock.storage.store.store_file import StoredBody

PEEK_SLICE: Final = 16
BROWSE_SLICE: Final = 64
BEYOND_STEPS: Final = 1024  # beyond a slice: what was read, and is not shown yet, is read again
SCANNED_MAX: Final = 20_000  # messages that one call of browse_messages looks at
MESSAGE_BYTES: Final = 250  # of a peek's answer, for each message besides its header and body
SMALL_BYTES: Final = 256 << 10
BODY_BYTES_MAX: Final = 128 << 20  # as for messages that come by AMQP
REPLY_BYTES: Final = 8 << 20  # a reply ends after the message that passes this
STAYING_MAX: Final = 10_000  # messages that cannot move, of one call
HELD_MS: Final = 10_000
MANDATORY: Final = 1
UTF8_BYTES_MAX: Final = 4  # of a character
SHOWN_BYTES: Final = 255 << 10  # of a piece of a longer body: a multiple of 3, for base64
FRAME_MAX: Final = 131_072  # of an output that nothing is written to
_OF_ACKMODE: Final = {
    "ack_requeue_true": REQUEUE, "reject_requeue_true": REQUEUE, "ack_requeue_false": ACK,
    "reject_requeue_false": DISCARD,
}  # fmt: skip


class OperatorSession:
    """What one caller holds: by queue, the pending tags and the AMQQueue in which they are
    pending."""

    def __init__(self) -> None:
        self.is_closed: bool = False
        self.held: dict[str, dict[int, tuple[BrokerQueue, AMQQueue]]] = {}


class Operators:
    """The sessions and jobs of the operators of one vhost."""

    def __init__(self) -> None:
        self.sessions: dict[str, OperatorSession] = {}
        self.jobs: dict[int, object] = {}
        self.last_job: int = 0


def operators(vhost: VHost) -> Operators:
    """Return the sessions and jobs of this vhost's operators."""
    if vhost.operations is None:
        vhost.operations = Operators()
    known = vhost.operations
    assert isinstance(known, Operators)
    return known


# ---- publish -------------------------------------------------------------------------------------


def _publish(call: Call) -> None:
    """ChannelError: 312 (no queue gets it), 403, 404, 406, 506 (a queue or the disk is full; the
    text says how many were published, if some were)."""
    for body in call.args.bodies("bodies"):
        if len(body) > BODY_BYTES_MAX:
            raise precondition_failed(
                f"message size {len(body)} is larger than configured max size {BODY_BYTES_MAX}"
            )
    _check_publish(call)
    call.in_slices(_published(call))


def _check_publish(call: Call) -> None:
    """Raise ChannelError 403 unless the caller may publish so."""
    exchange = call.args.text("exchange")
    call.check(WRITE, "exchange", exchange)
    check_topic(call.vhost, call.identity, WRITE, exchange, call.args.text("routing_key"))


def _published(call: Call) -> Slices:
    count = 0
    try:
        for n in _publish_all(call):
            count += n
            if call.vhost.budget.left <= 0:
                yield
    except (ChannelError, DiskFullError, QueueFullError) as error:
        if not count and isinstance(error, ChannelError):
            raise
        code = error.code if isinstance(error, ChannelError) else RESOURCE_ERROR
        raise ChannelError(code, f"{error}; {count} were published") from error
    return {"published": count}


def _publish_all(call: Call) -> Iterator[int]:
    """Publish one body after the other; yield how many bodies are published with a step. Where they
    go is found again after any change of what the vhost routes by."""
    vhost = call.vhost
    publisher = Publisher(vhost, call.identity, 0, Output(vhost.dispatch, FRAME_MAX))
    props = encoded_properties(call.args.table("properties"))
    version = vhost.router.version
    route, header, facts, targets = yield from _route(call, publisher, props)
    is_new = True  # it is used once at least, however often something changes meanwhile
    places = len(targets.queues) + len(targets.streams)
    n = 0  # with this route
    try:
        for body in call.args.bodies("bodies"):
            if vhost.blocked_reason:
                text = f"publishing is blocked, short of {vhost.blocked_reason}"
                raise ChannelError(RESOURCE_ERROR, text)
            if not is_new and (version != vhost.router.version or targets.is_by_chance):
                version = vhost.router.version
                publisher.count(route, n, places * n, 0)
                n = 0
                route, header, facts, targets = yield from _route(call, publisher, props)
                places = len(targets.queues) + len(targets.streams)
            is_new = False
            queues, streams = targets.queues, targets.streams
            if facts.key is None and publisher.is_copied(targets, len(body)):
                large = pieces_of(body)
                for stream in streams:  # a record for each, as of other large messages
                    while not publisher.may_log(len(body)):
                        vhost.budget.left = 0
                        yield 0
                    if not stream.is_deleted:
                        call.lsn = max(call.lsn, stream.append_large(header, large, vhost.mode))
                        vhost.budget.left -= 1 + (len(body) >> 10)
                        yield 0
                streams = []
                queues = [queue for queue in queues if not queue.is_deleted]
            lsn, is_refused = fan_out(vhost, queues, streams, header, body, facts)
            keep_in_histories(targets, kept_of(header, body, facts))
            call.lsn = max(call.lsn, lsn)
            if is_refused:
                raise ChannelError(RESOURCE_ERROR, "a queue is full")
            vhost.budget.left -= 1 + places + (len(body) >> 10)
            n += 1
            yield 1
    finally:
        publisher.count(route, n, places * n, 0)


# A route, the header as stored, what a queue must know, and where the messages go; in slices.
FoundWay = Generator[int, None, tuple[Route, bytes, PublishFacts, Targets]]


def _route(call: Call, publisher: Publisher, props: bytes) -> FoundWay:
    """Return where the messages go. ChannelError 312: nowhere."""
    route, header, facts, targets = yield from _way(call, publisher, props)
    if not targets.queues and not targets.streams:
        publisher.count(route, 1, 0, 1)
        exchange, key = route.exchange, route.key
        what, name = ("exchange", exchange) if exchange else ("queue", key)
        place = called(what, name, call.vhost.name)
        raise ChannelError(NO_ROUTE, f"no queue gets it: key '{key}', {place}")
    return route, header, facts, targets


def _way(call: Call, publisher: Publisher, props: bytes) -> FoundWay:
    """Return what `_route` does, also if no queue gets the messages."""
    exchange, key = call.args.text("exchange"), call.args.text("routing_key")
    raw = _short(exchange) + _short(key) + bytes((MANDATORY,))
    try:
        while (route := publisher.route_in_slices(raw)) is None:
            if publisher.unknown is not None:
                raise publisher.unknown
            yield 0
        routing = publisher.begin_routing(route, props, scan(props))
        while not publisher.finish_routing(routing):
            yield 0
    finally:
        publisher.forget_routes()
    return route, route.front + routing.props, routing.facts, routing.targets


def _where(call: Call) -> None:
    """ChannelError: 403, 404, 406."""
    _check_publish(call)
    call.in_slices(_found_where(call))


def _found_where(call: Call) -> Slices:
    publisher = Publisher(call.vhost, call.identity, 0, Output(call.vhost.dispatch, FRAME_MAX))
    way = _way(call, publisher, encoded_properties(call.args.table("properties")))
    while True:
        try:
            next(way)
        except StopIteration as end:
            targets = end.value[3]
            return {"queues": sorted(one.name for one in (*targets.queues, *targets.streams))}
        yield


def encoded_properties(given: dict[str, object]) -> bytes:
    """Flags and list. ChannelError 406 for an unknown name or a value that does not fit."""
    properties = BasicProperties()
    for name, value in given.items():
        if name not in PROPERTY_NAMES:
            expected = ", ".join(PROPERTY_NAMES)
            raise precondition_failed(
                f"publish: unknown property {name!r}, expected one of {expected}"
            )
        if value is None:
            continue
        if name in ("delivery_mode", "priority", "timestamp"):
            is_right = type(value) is int and 0 <= value < (1 << 63 if name == "timestamp" else 256)
        elif name == "headers":
            is_right = isinstance(value, dict)
        else:
            is_right = isinstance(value, str)
        if not is_right:
            raise precondition_failed(f"publish: property {name!r}: given {value!r}")
        setattr(properties, name, value)
    try:
        return properties.encode()
    except (ValueError, OverflowError, TypeError) as error:
        raise precondition_failed(f"publish: properties that AMQP cannot carry: {error}") from error


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return bytes((len(data),)) + data


# ---- get and settle ------------------------------------------------------------------------------


def _get(call: Call) -> None:
    vhost = call.vhost
    queue = vhost.table.find_messages(call.args.text("queue"), None, "get")
    count = call.args.whole("count")
    wait_ms = call.args.whole("wait_ms")
    name = call.args.text("session")
    session = operators(vhost).sessions.setdefault(name, OperatorSession())
    queue.serve()
    queue.used_at_s = call.vhost.clock.monotonic()
    _Get(vhost, queue, session, count, call.reply).begin(wait_ms)


class _Get:
    """One call of get, which may have to wait."""

    def __init__(
        self, vhost: VHost, queue: BrokerQueue, session: OperatorSession, count: int, reply: Reply
    ) -> None:
        self._vhost = vhost
        self._queue = queue
        self._session = session
        self._count = count
        self._reply = reply
        self._is_done = False
        self._waits = False

    def begin(self, wait_ms: int) -> None:
        """Try at once, and wait for up to wait_ms if there is nothing. A message that is there and
        held is waited for in any case: that takes no longer than a sync."""
        self._waits = wait_ms > 0
        if self._try() or self._gives_up():
            return
        wait_s = (wait_ms or HELD_MS) / 1000
        self._vhost.timers.call_at(self._vhost.clock.monotonic() + wait_s, self._too_late)
        self._wait()

    def _gives_up(self) -> bool:
        """Reply with nothing and return True if there is nothing that this call would wait for."""
        if self._waits or self._queue.amq.held() is not None:
            return False
        self._answer([])
        return True

    def _try(self) -> bool:
        """Reply if there are messages; return whether it did."""
        found = _take(self._vhost, self._queue, self._session, self._count)
        if found:
            self._answer(found)
        return bool(found)

    def _wait(self) -> None:
        held = self._queue.amq.held()
        if held is None:
            self._queue.waiters.append(self._woken)
        else:
            self._vhost.dispatch.when_settled(held[0], held[1], self._woken)

    def _woken(self) -> None:
        if self._is_done or self._session.is_closed:
            return
        name = self._queue.name
        queue = self._vhost.table.usable(name)  # it may have been restarted, and be another one
        if not isinstance(queue, BrokerQueue):
            self._is_done = True
            self._reply(not_found(called("queue", name, self._vhost.name)))
            return
        self._queue = queue
        if not self._try() and not self._gives_up():
            self._wait()

    def _too_late(self) -> None:
        if not self._is_done:
            self._answer([])

    def _answer(self, messages: list[dict[str, object]]) -> None:
        self._is_done = True
        if not messages:
            self._queue.counts.get_empty += 1
            self._vhost.counts.messages.get_empty += 1
        if self._woken in self._queue.waiters:
            self._queue.waiters.remove(self._woken)
        self._reply({"messages": messages})


def _take(
    vhost: VHost, queue: BrokerQueue, session: OperatorSession, count: int
) -> list[dict[str, object]]:
    """Return up to `count` of the next messages; the session holds them now."""
    amq = queue.amq
    found: list[dict[str, object]] = []
    size = again = 0
    while len(found) < count and size < REPLY_BYTES:
        delivery = amq.fetch()
        if delivery is None:
            if amq.has_more_expired:
                continue
            break
        session.held.setdefault(queue.name, {})[delivery.tag] = (queue, amq)
        found.append(_message(vhost, queue, delivery))
        size += delivery.message.size
        again += delivery.is_redelivered
    if found:
        for counts in (queue.counts, vhost.counts.messages):
            counts.got(len(found), again, no_ack=False)
        vhost.dispatch.mark(queue)
    return found


def _message(
    vhost: VHost, queue: BrokerQueue, delivery: Delivery, *, has_count: bool = True
) -> dict[str, object]:
    """Return a message as operators get it; its body is bytes."""
    message = delivery.message
    address, props = vhost.headers.parts(message.header, queue.name)
    if delivery.attempts and has_count:
        props = vhost.headers.delivered_props(props, delivery.attempts)
    cut = 1 + address[0]
    return {
        "tag": delivery.tag,
        "exchange": address[1:cut].decode("utf-8", "surrogateescape"),
        "routing_key": address[cut + 1 :].decode("utf-8", "surrogateescape"),
        "redelivered": delivery.is_redelivered,
        "properties": BasicProperties.decode(props).given(),
        "body": message.body if message.body is not None else b"",  # a large one may not be read
    }


def _settle_messages(call: Call) -> None:
    args = call.args
    session = operators(call.vhost).sessions.get(args.text("session"))
    held = {} if session is None else session.held.get(args.text("queue"), {})
    how = RELEASE if args.flag("requeue") else ACK
    call.reply({"settled": _settle(call.vhost, held, args.numbers("tags"), how)})


def _session_closed(call: Call) -> None:
    session = operators(call.vhost).sessions.pop(call.args.text("session"), None)
    count = 0
    if session is not None:
        session.is_closed = True
        for held in session.held.values():
            count += _settle(call.vhost, held, list(held), RELEASE)
    call.reply({"released": count})


def _settle(
    vhost: VHost, held: dict[int, tuple[BrokerQueue, AMQQueue]], tags: list[int], how: int
) -> int:
    """Settle those that are still pending in their queues; return how many. how: ACK or RELEASE."""
    count = 0
    by_queue: dict[BrokerQueue, list[int]] = {}
    for tag in tags:
        known = held.pop(tag, None)
        if known is None:
            continue
        queue, amq = known
        if _is_served(queue, amq):
            by_queue.setdefault(queue, []).append(tag)
    for queue, mine in by_queue.items():
        count += _settle_in(vhost, queue, mine, how)
    return count


def _settle_in(vhost: VHost, queue: BrokerQueue, tags: list[int], how: int) -> int:
    """Settle pending messages of a queue, those that are requeued or discarded as far as the turn's
    budget goes. What cannot be settled now is settled later. Return how many it was."""
    try:
        if how == RELEASE:
            count = queue.amq.release(tags)
        elif how == ACK:
            count = queue.amq.ack(tags)
            queue.counts.ack += count
            vhost.counts.messages.ack += count
        else:
            count = queue.settle_failed(tags, how, vhost.budget)
    except Exception as error:  # noqa: BLE001 - it is reported, or raised
        SettleFailed(vhost, [], how).failed(queue, tags, error)
        count = len(tags)
    vhost.dispatch.mark(queue)
    return count


# ---- get and settle at once ----------------------------------------------------------------------


def _get_messages(call: Call) -> None:
    vhost = call.vhost
    queue = vhost.table.find_messages(call.args.text("queue"), call.owner, "get")
    queue.serve()
    queue.used_at_s = vhost.clock.monotonic()

    held = queue.amq.held()
    if held is None:
        call.in_slices(_got(call, queue))
    else:  # it may have been restarted then, and be another one
        find = partial(vhost.table.find_messages, queue.name, call.owner, "get")
        call.in_slices_after(held, lambda: _got(call, find()))


def _got(call: Call, queue: BrokerQueue) -> Slices:
    """Take the next messages, return them as RabbitMQ shows them, and settle them. Only their text
    is kept: a header takes many times its bytes when it is decoded. AMQPError 311: they do not fit
    into an answer, and return to their places."""
    vhost, budget, amq = call.vhost, call.vhost.budget, queue.amq
    most = min(call.args.whole("count"), GET_MAX)
    found = JsonParts(is_exact=call.is_operator)
    found.begin(b"[")
    tags: list[int] = []
    size = again = 0
    is_damaged = False
    how = RELEASE
    try:
        while len(tags) < most and size < REPLY_BYTES and _is_served(queue, amq):
            delivery = amq.fetch(in_pieces=not is_damaged)  # read whole, it is set aside
            is_damaged = False
            if delivery is None:
                if not amq.has_more_expired:
                    break
                yield
                continue
            tags.append(delivery.tag)
            message = _message(vhost, queue, delivery, has_count=queue.is_quorum)
            call.check_room(found.bytes + _shown_bytes(call, delivery.message.size))
            more: dict[str, object] = {"message_count": queue.len()}
            try:
                yield from _add_shown(call, found, message, delivery, more)
            except CorruptionError:
                tag = tags.pop()
                if _is_served(queue, amq):
                    amq.release([tag])
                is_damaged = True
                continue
            again += delivery.is_redelivered
            call.check_room(found.bytes + 1)
            size += _bytes_of(delivery)
            budget.left -= ROW_STEPS + _bytes_of(delivery) // STEP_BYTES
            if budget.left <= 0:
                yield
        for counts in (queue.counts, vhost.counts.messages):
            counts.got(len(tags), again, no_ack=False)
            counts.get_empty += not tags
        how = _OF_ACKMODE[call.args.text("ackmode")]
        while tags and how != ACK and _is_served(queue, amq):
            del tags[: _settle_in(vhost, queue, tags, how)]
            if budget.left <= 0:
                yield
    finally:
        if _is_served(queue, amq):
            _settle_in(vhost, queue, tags, ACK if how == ACK else RELEASE)
    found.end(b"]")
    return found


def _is_served(queue: BrokerQueue, amq: AMQQueue) -> bool:
    """Return whether this is still the life of the queue that it was."""
    return not queue.is_deleted and not queue.is_crashed and queue.amq is amq


def _bytes_of(delivery: Delivery) -> int:
    """Return the bytes of a message, with its header."""
    return delivery.message.size + len(delivery.message.header)


def _shown_bytes(call: Call, size: int) -> int:
    """Return how many bytes of a body of this size are shown."""
    truncate = call.args.whole_or_none("truncate")
    return size if truncate is None else min(size, truncate)


def _add_shown(
    call: Call, found: JsonParts, message: dict[str, object], delivery: Delivery,
    more: dict[str, object],
) -> Generator[None, None, None]:  # fmt: skip
    """Add a message as RabbitMQ's HTTP API has it, by the arguments truncate and encoding, and then
    `more`. What is shown of a large body is read in slices. CorruptionError: it is damaged, and
    nothing was added."""
    size, encoding = delivery.message.size, call.args.text("encoding")
    shown: dict[str, object] = {
        "payload_bytes": size, "redelivered": message["redelivered"],
        "exchange": message["exchange"], "routing_key": message["routing_key"],
        "properties": in_seconds(message["properties"]),
    }  # fmt: skip
    n = _shown_bytes(call, size)
    if n <= SHOWN_BYTES:
        body = _PiecesShown(call, delivery.message, n + UTF8_BYTES_MAX).whole()
        truncate = call.args.whole_or_none("truncate")
        found.add({**shown, **payload(body, truncate, encoding), **more})
        return
    row = JsonParts(is_exact=call.is_operator)
    row.begin(b"{")
    for key, value in shown.items():
        row.add(value, key)
    is_text = encoding == "auto" and (yield from _is_text(call, delivery.message, n))
    row.begin(b'"', "payload")
    yield from _add_body(call, row, delivery.message, n, is_text=is_text)
    row.end(b'"')
    row.add("string" if is_text else "base64", "payload_encoding")
    for key, value in more.items():
        row.add(value, key)
    row.end(b"}")
    found.add_parts(row)


def _is_text(call: Call, message: QueuedMessage, n: int) -> Generator[None, None, bool]:
    """Return what `payload` says of the first n bytes of a body: whether they are shown as text."""
    pieces = _PiecesShown(call, message, n)
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while piece := pieces.read():
            if b"\0" in piece:
                return False
            decoder.decode(piece)
            if call.vhost.budget.left <= 0:
                yield
        decoder.decode(b"", n == message.size)
    except UnicodeDecodeError:
        return False
    finally:
        pieces.close()
    return True


def _add_body(
    call: Call, row: JsonParts, message: QueuedMessage, n: int, *, is_text: bool
) -> Generator[None, None, None]:
    """Add the first n bytes of a body to a text that was begun: as they are, or in base64."""
    pieces = _PiecesShown(call, message, n)
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while piece := pieces.read():
            row.add_text(decoder.decode(piece) if is_text else base64.b64encode(piece).decode())
            if call.vhost.budget.left <= 0:
                yield
    finally:
        pieces.close()


class _PiecesShown:
    """The first n bytes of a body, from RAM or the store, which is read as far as they go.
    CorruptionError: it is damaged."""

    def __init__(self, call: Call, message: QueuedMessage, n: int) -> None:
        self._budget = call.vhost.budget
        self._body: bytes = message.body or b""
        self._at: int = 0
        self._end: int = min(n, message.size)
        self._stored: StoredBody | None = None
        if message.body is None:
            self._stored = call.vhost.engine.bodies.open(message)

    def whole(self) -> bytes:
        """Return all of them, and close it."""
        if self._stored is None:
            return self._body[: self._end]
        try:
            return self._stored.read(self._end)
        finally:
            self.close()

    def read(self) -> bytes:
        """Return the next ones, b"" after the last, and subtract their steps from the budget."""
        at, self._at = self._at, min(self._at + SHOWN_BYTES, self._end)
        self._budget.left -= PIECE_STEPS
        if self._stored is None:
            return self._body[at : self._at]
        return self._stored.read(self._at - at)

    def close(self) -> None:
        """Close the file of the store."""
        if self._stored is not None:
            self._stored.close()


# ---- peek ----------------------------------------------------------------------------------------


def _peek(call: Call) -> None:
    vhost = call.vhost
    queue = vhost.table.find_messages(call.args.text("queue"), call.owner, "peek")
    call.in_slices(_peeked(call, queue))


def _peeked(call: Call, queue: BrokerQueue) -> Slices:
    """Return what fits into one answer, the first message at least. ChannelError 311: not even
    that."""
    vhost = call.vhost
    count = call.args.whole("count")
    after = call.args.whole_or_none("after")
    found = JsonParts(is_exact=call.is_operator)
    found.begin(b"{")
    found.begin(b"[", "messages")
    n = size = answer_bytes = 0
    step = 1
    is_more = True
    while is_more and n < count and size < REPLY_BYTES:
        if queue.is_deleted or queue.is_crashed:
            break
        deliveries = queue.amq.browse(after, min(count - n, step), in_pieces=True)
        is_more = bool(deliveries)
        for delivery in deliveries:
            message = delivery.message
            one_bytes = message.size * 4 // 3 + len(message.header) + MESSAGE_BYTES
            answer_bytes += one_bytes
            vhost.budget.left -= ROW_STEPS + one_bytes // STEP_BYTES
            if n and 0 < call.room_bytes < answer_bytes:
                is_more = False
                break
            call.check_room(message.size * 4 // 3)
            after = delivery.tag
            try:
                yield from _add_peeked(call, found, queue, delivery)
            except CorruptionError:
                continue
            n += 1
            size += _bytes_of(delivery)
            if vhost.budget.left < -BEYOND_STEPS:
                break
        step = PEEK_SLICE if size < n * SMALL_BYTES else 1  # all bodies are in RAM at once
        yield
    found.end(b"]")
    found.add(after, "after")
    found.end(b"}")
    return found


def _add_peeked(
    call: Call, found: JsonParts, queue: BrokerQueue, delivery: Delivery
) -> Generator[None, None, None]:
    """Add a message as operators get it, a large body in slices. CorruptionError: it is damaged,
    and nothing was added."""
    message = _message(call.vhost, queue, delivery)
    if delivery.message.size <= SHOWN_BYTES:
        found.add(message)
        return
    row = JsonParts(is_exact=call.is_operator)
    row.begin(b"{")
    del message["body"]
    for key, value in message.items():
        row.add(value, key)
    row.begin(b"{", "body")
    row.begin(b'"', "b64")
    yield from _add_body(call, row, delivery.message, delivery.message.size, is_text=False)
    row.end(b'"')
    row.end(b"}")
    row.end(b"}")
    found.add_parts(row)


# ---- browse --------------------------------------------------------------------------------------


def _browse_messages(call: Call) -> None:
    queue = call.vhost.table.find_messages(call.args.text("queue"), call.owner, "browse_messages")
    call.in_slices(_browsed(call, queue))


def _browsed(call: Call, queue: BrokerQueue) -> Slices:
    """Return the messages that are wanted among the next SCANNED_MAX after a tag."""
    args, budget = call.args, call.vhost.budget
    count, skip, after = args.whole("count"), args.whole("skip"), args.whole_or_none("after")
    match = _Match(call, queue)
    first: int | None = None
    if after is None:
        first, after = yield from _begin(call, queue)
    found = JsonParts(is_exact=call.is_operator)
    found.begin(b"{")
    found.begin(b"[", "messages")
    n = size = scanned = 0
    is_end = False
    step = 1
    while n < count and size < REPLY_BYTES and scanned < SCANNED_MAX and not is_end:
        if queue.is_deleted or queue.is_crashed:
            break
        deliveries = queue.amq.browse(after, step, in_pieces=True)
        is_end = not deliveries
        step = BROWSE_SLICE
        for delivery in deliveries:
            message = delivery.message
            if _bytes_of(delivery) > SMALL_BYTES // BROWSE_SLICE:
                step = 1  # all of them are in RAM at once
            budget.left -= match.steps(delivery)
            after = delivery.tag
            scanned += 1
            one = yield from match.looked_at(delivery)
            if one is None or skip:
                skip -= one is not None
                if budget.left < -BEYOND_STEPS:
                    break
                continue
            facts: dict[str, object] = {
                "tag": delivery.tag, "time": message.time, "attempts": delivery.attempts,
                "state": queue.amq.backing.state_of(delivery.tag),
            }  # fmt: skip
            call.check_room(found.bytes + _shown_bytes(call, message.size))
            try:
                yield from _add_shown(call, found, one, delivery, facts)
            except CorruptionError:
                continue
            call.check_room(found.bytes)
            n += 1
            size += _bytes_of(delivery)
            if n >= count or budget.left < -BEYOND_STEPS:
                break
        yield
    found.end(b"]")
    for key, value in (
        ("first", first), ("after", after), ("scanned", scanned), ("is_end", is_end)
    ):  # fmt: skip
        found.add(value, key)
    found.end(b"}")
    return found


def _begin(call: Call, queue: BrokerQueue) -> Generator[None, None, tuple[int, int | None]]:
    """Return how many messages are before the one with which a call begins, and the last one's tag,
    None for none. By `from`, `last`, or `since`: found by halves, as messages come in the order
    of their times. ChannelError 406: `since` of a queue with priorities."""
    args, backing = call.args, queue.amq.backing
    ready, last, since_s = backing.len(), args.whole("last"), args.whole("since")
    if not since_s:
        n = min(last, ready) if last else max(0, ready - args.whole("from"))
        return ready - n, backing.before_last(n)
    if queue.priorities:
        raise args.wrong("since", "expected a queue without priorities, which order before times")
    low, high = 0, ready  # so many messages from the end are that new, or are not
    while low < high:
        n = (low + high + 1) // 2
        one = backing.browse(backing.before_last(n), 1, in_pieces=True)
        if one and one[0].message.time < since_s:
            high = n - 1
        else:
            low = n
        yield
    return max(0, backing.len() - low), backing.before_last(low)


class _Match:
    """Finds the messages that a call means: by key, headers, body, age and tags. tags: none for
    all."""

    def __init__(self, call: Call, queue: BrokerQueue, tags: Collection[int] = ()) -> None:
        self._vhost = call.vhost
        self._queue = queue
        self.part = call.args.text("body").encode()
        self._key = call.args.text("key")
        self._headers = call.args.table("headers")
        self._tags = frozenset(tags)
        older_s = call.args.whole("older")
        self._before_s = call.vhost.engine.time_s - older_s if older_s else 0
        has_text = self.part or self._key or self._headers
        self.are_all: bool = not (has_text or older_s or tags)

    def steps(self, delivery: Delivery) -> int:
        """Return what it costs of a turn's budget to look at a message, and to move it."""
        return (4 if self.are_all else ROW_STEPS) + _bytes_of(delivery) // STEP_BYTES

    def looked_at(self, delivery: Delivery) -> Generator[None, None, dict[str, object] | None]:
        """Return the message as operators get it, None if it is not meant. A large body is searched
        in slices."""
        if self._tags and delivery.tag not in self._tags:
            return None
        body = delivery.message.body
        if body is not None and self.part not in body:
            return None
        if body is None and self.part and not (yield from self._is_in_large(delivery)):
            return None
        if self._before_s and self._came_s(delivery) > self._before_s:
            return None
        one = _message(self._vhost, self._queue, delivery)
        is_meant = self._key in str(one["routing_key"]) and _has_headers(one, self._headers)
        return one if is_meant else None

    def _is_in_large(self, delivery: Delivery) -> Generator[None, None, bool]:
        """Return whether the part is in a body that is in the store; not in one that is damaged."""
        before = b""
        stored: StoredBody | None = None
        try:
            stored = self._vhost.engine.bodies.open(delivery.message)
            while data := stored.read(PIECE_BYTES):
                if self.part in before + data:
                    return True
                before = (before + data)[1 - len(self.part) :] if len(self.part) > 1 else b""
                self._vhost.budget.left -= PIECE_STEPS
                if self._vhost.budget.left <= 0:
                    yield
        except CorruptionError:
            return False
        finally:
            if stored is not None:
                stored.close()
        return False

    def _came_s(self, delivery: Delivery) -> int:
        """Return when a message came, in seconds since 1970."""
        if delivery.message.time:
            return delivery.message.time
        index = self._queue.amq.backing.index(delivery.tag >> PART_SHIFT)
        return index.time_of(delivery.tag & SEQ_MASK)  # its row had no room for it


def _has_headers(message: dict[str, object], wanted: dict[str, object]) -> bool:
    """Return whether a message has these headers with these values, as text. None: any value."""
    properties = message["properties"]
    headers = properties.get("headers") if isinstance(properties, dict) else None
    if not wanted:
        return True
    return isinstance(headers, dict) and all(
        name in headers and (value is None or str(headers[name]) == str(value))
        for name, value in wanted.items()
    )


# ---- move ----------------------------------------------------------------------------------------


def _move_messages(call: Call) -> None:
    vhost, args = call.vhost, call.args
    queue = vhost.table.find_messages(args.text("queue"), None, "move_messages")
    to = args.text_or_none("to")
    if to is not None and vhost.table.find_messages(to, None, "move_messages") is queue:
        raise args.wrong("to", f"given {to!r}, expected another queue than it comes from")
    _take_out(call, queue, _Moved(call, queue, to))


def _delete_messages(call: Call) -> None:
    queue = call.vhost.table.find_messages(call.args.text("queue"), call.owner, "delete_messages")
    _take_out(call, queue, _Deleted(call, queue))


def _take_out(call: Call, queue: BrokerQueue, found: "_Deleted") -> None:
    """Take messages out as `found` does, when what is being written is there, as get does; or
    only count them."""
    if call.args.flag("dry_run"):
        call.in_slices(_would_take(call, queue, found))
        return
    queue.serve()
    queue.used_at_s = call.vhost.clock.monotonic()

    held = queue.amq.held()
    if held is None:
        call.in_slices(_taken(call, queue, found))
    else:
        call.in_slices_after(held, lambda: _taken(call, queue, found))


class _Deleted:
    """Takes messages out of a queue, and answers. stays: how many stay; why: the last's reason."""

    def __init__(self, call: Call, queue: BrokerQueue) -> None:
        self._call = call
        self._queue = queue
        self._deleted = 0
        self.stays: int = 0
        self.why: str = ""

    def take(self, delivery: Delivery, *, is_dry: bool) -> bool:
        """Take one message that is meant out of the queue. Return whether it goes."""
        if not is_dry:
            engine = self._call.vhost.engine
            before = engine.log.last_lsn
            self._queue.amq.ack([delivery.tag], self._call.vhost.mode)
            if engine.log.last_lsn != before:
                self._call.lsn = engine.log.last_lsn
        self._deleted += 1
        return True

    def ends(self) -> bool:
        """Return whether a message that stays ends it."""
        return False

    def end(self, staying: int) -> None:
        """Note that what is behind so many messages that stay was not looked at."""
        if staying >= STAYING_MAX and not self.why:
            self.stays = staying
            self.why = f"{staying} do not match, what is behind them was not looked at"

    def answer(self) -> dict[str, object]:
        """Return the answer."""
        return {"deleted": self._deleted, "stays": self.stays, "why": self.why}


class _Moved(_Deleted):
    """Moves messages to the queue `to`, None: each to where it died."""

    def __init__(self, call: Call, queue: BrokerQueue, to: str | None) -> None:
        super().__init__(call, queue)
        self._to = to
        self._by_queue: dict[str, int] = {}

    def take(self, delivery: Delivery, *, is_dry: bool) -> bool:
        """Move one message that is meant, unless there is no room or no queue for it."""
        call, queue = self._call, self._queue
        name, target, why = _target(call, queue, delivery, self._to)
        if target is None:
            self.stays += 1
            self.why = why
            return False
        if not is_dry:
            lsn = queue.amq.move(delivery.tag, target.amq, call.vhost.mode)
            call.lsn = max(call.lsn, lsn)
        self._by_queue[name] = self._by_queue.get(name, 0) + 1
        return True

    def ends(self) -> bool:
        """It is full, for the others too."""
        return self._to is not None

    def answer(self) -> dict[str, object]:
        """Return the answer."""
        moved = sum(self._by_queue.values())
        return {"moved": moved, "by_queue": self._by_queue, "stays": self.stays, "why": self.why}


def _taken(call: Call, queue: BrokerQueue, found: _Deleted) -> Slices:
    """Take out so many of those that were ready in the beginning and match. Those that stay return
    to their places; after STAYING_MAX of them it ends."""
    amq = queue.amq
    tags = call.args.numbers("tags")
    match = _Match(call, queue, tags)
    staying: list[int] = []
    left = _wanted(call, tags)
    seen = amq.len()
    try:
        while min(left, seen) > 0 and len(staying) < STAYING_MAX and _is_served(queue, amq):
            delivery = amq.fetch(in_pieces=True)
            if delivery is None:
                if not amq.has_more_expired:
                    break
                yield
                continue
            seen -= 1
            staying.append(delivery.tag)
            if match.are_all or (yield from match.looked_at(delivery)) is not None:
                if not _is_served(queue, amq):
                    break
                if found.take(delivery, is_dry=False):
                    staying.pop()
                    left -= 1
                elif found.ends():
                    break
            call.vhost.budget.left -= match.steps(delivery)
            if call.vhost.budget.left <= 0:
                yield
        found.end(len(staying))
    finally:
        if _is_served(queue, amq):
            call.vhost.queue_set.touch(queue)  # an alert may be over
            if staying:
                try:
                    amq.release(staying)
                except Exception as error:  # noqa: BLE001 - it is reported, or raised
                    SettleFailed(call.vhost, [], RELEASE).failed(queue, staying, error)
                call.vhost.dispatch.mark(queue)
    return found.answer()


def _wanted(call: Call, tags: list[int]) -> int:
    """Return how many messages are to go at most."""
    count = call.args.whole("count")
    return min(count, len(set(tags))) if tags else count


def _would_take(call: Call, queue: BrokerQueue, found: _Deleted) -> Slices:
    """Count what `_taken` would take now, and change nothing."""
    tags = call.args.numbers("tags")
    match = _Match(call, queue, tags)
    staying = 0
    left = _wanted(call, tags)
    after: int | None = None
    while left > 0 and staying < STAYING_MAX and not queue.is_deleted and not queue.is_crashed:
        deliveries = queue.amq.browse(after, PEEK_SLICE, in_pieces=True)
        if not deliveries:
            break
        for delivery in deliveries:
            if left <= 0 or staying >= STAYING_MAX:
                break
            after = delivery.tag
            call.vhost.budget.left -= match.steps(delivery)
            if match.are_all or (yield from match.looked_at(delivery)) is not None:
                left -= found.take(delivery, is_dry=True)
            else:
                staying += 1
            if call.vhost.budget.left < -BEYOND_STEPS:
                break
        yield
    found.end(staying)
    return found.answer()


def _target(
    call: Call, queue: BrokerQueue, delivery: Delivery, to: str | None
) -> tuple[str, BrokerQueue | None, str]:
    """Return the name of the queue that a message goes to, the queue, and why there is none."""
    vhost = call.vhost
    if to is None:
        deaths = vhost.headers.deaths(delivery.message.header)
        if not deaths:
            return "", None, "a message did not die in any queue: it has no x-death"
        to = deaths[0].queue
    target = vhost.table.usable(to)
    if target is queue:
        return to, None, f"a message died in queue '{to}' itself"
    if not isinstance(target, BrokerQueue) or target.is_exclusive:
        return to, None, f"there is no queue '{to}' for a message that died there"
    if target.amq.refuses(delivery.message.size):
        return to, None, f"queue '{to}' is full"
    return to, target, ""


def _trace_on(call: Call) -> None:
    call.vhost.set_tracing(is_on=True)
    call.settled(0, {})


def _trace_off(call: Call) -> None:
    call.vhost.set_tracing(is_on=False)
    call.settled(0, {})


def _publish_events(call: Call) -> None:
    for line in call.args.texts("lines"):
        one = loads(line.encode())
        headers, now_ms = one["headers"], one["time_ms"]
        assert isinstance(headers, dict)
        assert isinstance(now_ms, int)
        call.vhost.events.publish(str(one["event"]), headers, now_ms)
    call.settled(0, {})


FUNCTIONS: Final[Functions] = {
    "publish_events": _publish_events,
    "trace_on": _trace_on,
    "trace_off": _trace_off,
    "publish": _publish,
    "route": _where,
    "peek": _peek,
    "browse_messages": _browse_messages,
    "move_messages": _move_messages,
    "delete_messages": _delete_messages,
    "get": _get,
    "get_messages": _get_messages,
    "settle": _settle_messages,
    "session_closed": _session_closed,
}
