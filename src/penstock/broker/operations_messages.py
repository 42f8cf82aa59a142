"""Operations on messages: publish, get and settle, peek; and the sessions that hold what was got.

    publish   a batch by one route, confirmed as a whole once the log says so
    get       the next messages of a queue; they are pending, held by the caller's session, until
    settle    acknowledges them, or puts them back: an attempt is not counted then
    peek      looks at ready messages, some at a time, and changes nothing

A session has a name of the caller's choice and ends with the caller's connection to the control
socket (`session_closed`): what it holds then goes back to its place. A get that waits is woken when
a message may be there; if its session has ended by then it takes nothing.

What a queue restart or a deletion made somebody else's is not touched: each held tag is remembered
with the AMQQueue that it was pending in.

Not here: AMQP's own ways of doing this (publish.py, channel.py), checks of arguments.
"""

from collections.abc import Callable
from typing import Final

from penstock.access.permissions import Identity
from penstock.broker.fan_out import fan_out
from penstock.broker.operation_args import OperationArgs, Reply, refused
from penstock.broker.output import Output
from penstock.broker.publish import Publisher
from penstock.broker.refusals import called, not_found
from penstock.broker.served_queue import ServedQueue
from penstock.broker.vhost import VHost
from penstock.codec.properties import PROPERTY_NAMES, BasicProperties, scan
from penstock.errors import (
    NO_ROUTE,
    RESOURCE_ERROR,
    AMQPError,
    ChannelError,
    DiskFullError,
    QueueFullError,
)
from penstock.queues.amq_queue import AMQQueue
from penstock.queues.backing_queue import Delivery

GET_MAX: Final = 1000
PEEK_SLICE: Final = 16
SMALL_BYTES: Final = 256 << 10
BODY_BYTES_MAX: Final = 128 << 20  # as for messages that come by AMQP
REPLY_BYTES: Final = 8 << 20  # of bodies: a reply ends after the one that passes this
WAIT_MS_MAX: Final = 60_000
HELD_MS: Final = 10_000
MANDATORY: Final = 1
FRAME_MAX: Final = 131_072  # of an output that nothing is written to


class OperatorSession:
    """What one caller holds: by queue, the pending tags and the AMQQueue that they are of."""

    def __init__(self) -> None:
        self.is_closed: bool = False
        self.held: dict[str, dict[int, tuple[ServedQueue, AMQQueue]]] = {}


class Operators:
    """Of one vhost: the sessions of its operators, by name."""

    def __init__(self) -> None:
        self.sessions: dict[str, OperatorSession] = {}
        self.jobs: dict[int, object] = {}
        self.last_job: int = 0


def operators(vhost: VHost) -> Operators:
    """What operators of this vhost hold."""
    if vhost.operations is None:
        vhost.operations = Operators()
    known = vhost.operations
    assert isinstance(known, Operators)
    return known


# ---- publish -------------------------------------------------------------------------------------


def publish(vhost: VHost, identity: Identity, args: OperationArgs, reply: Reply) -> None:
    """{published}: how many, all of them as safe as the vhost's durability says. ChannelError: 312
    (no queue gets it), 403, 404, 406, 506 (a queue or the disk is full; {published} of them are
    in)."""
    exchange = args.name("exchange", "")
    key = args.name("routing_key", "")
    given = args.table("properties")
    bodies = args.bodies("bodies")
    args.done()
    for body in bodies:
        if len(body) > BODY_BYTES_MAX:
            raise refused(
                f"message size {len(body)} is larger than configured max size {BODY_BYTES_MAX}"
            )
    if vhost.blocked_reason:
        text = f"publishing is blocked, short of {vhost.blocked_reason}"
        raise ChannelError(RESOURCE_ERROR, text)
    publisher = Publisher(vhost, identity, 0, Output(vhost.dispatch, FRAME_MAX))
    route = publisher.route(_short(exchange) + _short(key) + bytes((MANDATORY,)))
    props = encoded_properties(given)
    facts, targets, props = publisher.facts_of(route, props, scan(props))
    if not targets.queues and not targets.streams:
        place = (
            called("exchange", exchange, vhost.name)
            if exchange
            else called("queue", key, vhost.name)
        )
        raise ChannelError(NO_ROUTE, f"no queue gets it: key '{key}', {place}")
    lsn = 0
    count = 0
    for body in bodies:
        try:
            one, is_refused = fan_out(
                vhost, targets.queues, targets.streams, route.front + props, body, facts
            )
        except DiskFullError as error:
            raise ChannelError(RESOURCE_ERROR, f"{error}; {count} were published") from error
        except QueueFullError as error:
            raise ChannelError(RESOURCE_ERROR, f"{error}; {count} were published") from error
        lsn = max(lsn, one)
        if is_refused:
            raise ChannelError(RESOURCE_ERROR, f"a queue is full; {count} were published")
        count += 1
    answer_when_settled(vhost, lsn, {"published": count}, reply)


def answer_when_settled(vhost: VHost, lsn: int, answer: object, reply: Reply) -> None:
    """Reply once the LSN is settled in the vhost's mode; 0: at once."""
    if not lsn:
        reply(answer)
        return
    vhost.when_settled(lsn, vhost.mode, lambda: reply(answer))


def encoded_properties(given: dict[str, object]) -> bytes:
    """Flags and list. ChannelError 406 for an unknown name or a value that does not fit."""
    properties = BasicProperties()
    for name, value in given.items():
        if name not in PROPERTY_NAMES:
            expected = ", ".join(PROPERTY_NAMES)
            raise refused(f"publish: unknown property {name!r}, expected one of {expected}")
        if value is None:
            continue
        if name in ("delivery_mode", "priority", "timestamp"):
            is_right = type(value) is int and 0 <= value < (1 << 63 if name == "timestamp" else 256)
        elif name == "headers":
            is_right = isinstance(value, dict)
        else:
            is_right = isinstance(value, str)
        if not is_right:
            raise refused(f"publish: property {name!r}: given {value!r}")
        setattr(properties, name, value)
    try:
        return properties.encode()
    except (ValueError, OverflowError, TypeError) as error:
        raise refused(f"publish: properties that AMQP cannot carry: {error}") from error


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return bytes((len(data),)) + data


# ---- get and settle ------------------------------------------------------------------------------


def get(vhost: VHost, args: OperationArgs, reply: Reply) -> None:
    """{messages}: up to `count` of them, held by the session; none if none came in wait_ms."""
    queue = vhost.find_messages(args.name("queue"), None, "get")
    count = args.whole("count", 1, 1, GET_MAX)
    name = args.text("session")
    wait_ms = args.whole("wait_ms", 0, 0, WAIT_MS_MAX)
    args.done()
    session = operators(vhost).sessions.setdefault(name, OperatorSession())
    queue.serve()
    queue.used_at_ms = vhost.clock.wall_ms()
    _Get(vhost, queue, session, count, reply).begin(wait_ms)


class _Get:
    """One call of get, which may have to wait."""

    def __init__(
        self, vhost: VHost, queue: ServedQueue, session: OperatorSession, count: int, reply: Reply
    ) -> None:
        self._vhost = vhost
        self._queue = queue
        self._session = session
        self._count = count
        self._reply = reply
        self._is_done = False
        self._waits = False

    def begin(self, wait_ms: int) -> None:
        """The first try; what is not there then may come within wait_ms. A message that is there
        and held is waited for in any case: that takes no longer than a sync."""
        self._waits = wait_ms > 0
        if self._try() or self._gives_up():
            return
        wait_s = (wait_ms or HELD_MS) / 1000
        self._vhost.call_at(self._vhost.clock.monotonic() + wait_s, self._too_late)
        self._wait()

    def _gives_up(self) -> bool:
        """Whether there is nothing that this call would wait for; it is answered then."""
        if self._waits or self._queue.amq.held() is not None:
            return False
        self._answer([])
        return True

    def _try(self) -> bool:
        """Whether there is something to answer, which is done then."""
        found = taken(self._vhost, self._queue, self._session, self._count)
        if found:
            self._answer(found)
        return bool(found)

    def _wait(self) -> None:
        held = self._queue.amq.held()
        if held is None:
            self._queue.waiters.append(self._woken)
        else:
            self._vhost.when_settled(held[0], held[1], self._woken)

    def _woken(self) -> None:
        if self._is_done or self._session.is_closed:
            return
        name = self._queue.name
        queue = self._vhost.served(name)  # it may have been restarted, and be another one
        if not isinstance(queue, ServedQueue):
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
        if self._woken in self._queue.waiters:
            self._queue.waiters.remove(self._woken)
        self._reply({"messages": messages})


def taken(
    vhost: VHost, queue: ServedQueue, session: OperatorSession, count: int
) -> list[dict[str, object]]:
    """Up to `count` of the next messages, which the session holds from now on."""
    amq = queue.amq
    found: list[dict[str, object]] = []
    size = 0
    while len(found) < count and size < REPLY_BYTES:
        delivery = amq.fetch()
        if delivery is None:
            if amq.has_more_expired:
                continue
            break
        session.held.setdefault(queue.name, {})[delivery.tag] = (queue, amq)
        found.append(told(vhost, queue, delivery))
        size += delivery.message.size
        if delivery.is_redelivered:
            queue.redelivered += 1
    if found:
        queue.got += len(found)
        vhost.dispatch.mark(queue)
    return found


def told(vhost: VHost, queue: ServedQueue, delivery: Delivery) -> dict[str, object]:
    """A message as operators get it; its body as bytes."""
    message = delivery.message
    address, props = vhost.headers.parts(message.header, queue.name)
    if delivery.attempts:
        props = vhost.headers.delivered_props(props, delivery.attempts)
    cut = 1 + address[0]
    properties = BasicProperties.decode(props)
    values = {name: getattr(properties, name) for name in PROPERTY_NAMES}
    return {
        "tag": delivery.tag,
        "exchange": address[1:cut].decode("utf-8", "surrogateescape"),
        "routing_key": address[cut + 1 :].decode("utf-8", "surrogateescape"),
        "redelivered": delivery.is_redelivered,
        "properties": {name: value for name, value in values.items() if value is not None},
        "body": message.body if message.body is not None else b"",
    }


def settle(vhost: VHost, args: OperationArgs, reply: Reply) -> None:
    """{settled}: how many of the tags the session still held; they are acknowledged, or with
    `requeue` back at their places."""
    name = args.name("queue")
    session = operators(vhost).sessions.get(args.text("session"))
    tags = args.numbers("tags")
    is_back = args.flag("requeue")
    args.done()
    held = {} if session is None else session.held.get(name, {})
    reply({"settled": _settle(vhost, held, tags, is_back=is_back)})


def session_closed(vhost: VHost, args: OperationArgs, reply: Reply) -> None:
    """What the session holds goes back. Unknown ones are no error: they held nothing."""
    session = operators(vhost).sessions.pop(args.text("session"), None)
    args.done()
    count = 0
    if session is not None:
        session.is_closed = True
        for held in session.held.values():
            count += _settle(vhost, held, list(held), is_back=True)
    reply({"released": count})


def _settle(
    vhost: VHost, held: dict[int, tuple[ServedQueue, AMQQueue]], tags: list[int], *, is_back: bool
) -> int:
    count = 0
    by_queue: dict[ServedQueue, list[int]] = {}
    for tag in tags:
        known = held.pop(tag, None)
        if known is None:
            continue
        queue, amq = known
        if not queue.is_deleted and not queue.is_crashed and queue.amq is amq:
            by_queue.setdefault(queue, []).append(tag)
    for queue, mine in by_queue.items():
        if is_back:
            count += queue.amq.release(mine)
        else:
            settled = queue.amq.ack(mine)
            queue.acked += settled
            count += settled
        vhost.dispatch.mark(queue)
    return count


# ---- peek ----------------------------------------------------------------------------------------


def peek(vhost: VHost, owner: object | None, args: OperationArgs, reply: Reply) -> None:
    """{messages, after}: ready messages behind the tag `after`, and the last one's tag."""
    queue = vhost.find_messages(args.name("queue"), owner, "peek")
    count = args.whole("count", 1, 1, GET_MAX)
    after = args.whole_or_none("after")
    args.done()
    found: list[dict[str, object]] = []
    size = 0
    step = 1
    while len(found) < count and size < REPLY_BYTES:
        deliveries = queue.amq.browse(after, min(count - len(found), step))
        for delivery in deliveries:
            found.append(told(vhost, queue, delivery))
            size += delivery.message.size
            after = delivery.tag
        step = PEEK_SLICE if size < len(found) * SMALL_BYTES else 1  # all bodies are in RAM at once
        if not deliveries:
            break
    reply({"messages": found, "after": after})


def answer_errors(vhost: VHost, do: Callable[[], None], reply: Reply) -> None:
    """The rest of an operation that had to wait: an error of it is the answer."""
    try:
        do()
    except Exception as error:  # noqa: BLE001 - it is answered or raised
        answer_error(vhost, error, reply)


def answer_error(vhost: VHost, error: Exception, reply: Reply) -> None:
    """Answer with the AMQP error that it stands for; one that stands for none, or that comes of a
    failed engine, is raised."""
    told = error_of(error)
    if told is None or vhost.engine.failed is not None:
        raise error
    reply(told)


def error_of(error: Exception) -> AMQPError | None:
    """The AMQP error that an error of a queue stands for; None if it is none of these."""
    if isinstance(error, AMQPError):
        return error
    if isinstance(error, DiskFullError | QueueFullError):
        return ChannelError(RESOURCE_ERROR, str(error))
    return None
