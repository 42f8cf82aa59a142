"""RemoteDriver: the connection of a box on a broker, and what runs the calls that use it.

A call is a generator as in a directory (`penstock.embedded.sources`): it asks the broker something,
yields a Wait, a future and perhaps a deadline, and goes on when that is done. `run` waits in the
caller's thread; `penstock.aio` waits in a task.

The connection is made when the box is opened. When it was lost, the next call makes another one, in
a thread of its own, so that a loop need not wait for it. Calls that were under way raise
ConnectionLostError and are not repeated: they may have taken effect. After `close` all calls
raise BoxClosedError, also those that are waiting. A forked child may not use the connection of its
parent: two processes would read each other's answers.

What AMQP has no method for is an operation of Penstock's own: `penstock.call` with a name and JSON
(broker/operations_box.py has the other side), each on a channel that nothing else waits on:

    box.queue  box.declare  box.queues  box.delete  box.purge  box.queue_info  box.room
    box.browse  box.read  box.nack  box.release  box.adopt
    box.info  box.sync
    box.append_to  box.appended  box.streams  box.stream_info  find_stream_offset ... (streams)

A refusal with 404 is an UnknownQueueError, as in a directory. Others stay errors of AMQP with the
broker's words.

A transaction (RemoteTransaction) uses tx.* of AMQP, on a channel of its own. What is put is
published there, and is in no queue before tx.commit. A job came on another channel, and AMQP lets
only that one acknowledge it, so box.adopt first makes it a delivery of the transaction's channel.

    put        box.room, with what was put already counted; basic.publish
    ack        box.adopt, basic.ack
    commit     tx.commit: on disk, as one
    rollback   tx.rollback; box.nack for the jobs that were acknowledged, counted as an attempt

If the connection is lost before the commit was answered, it has taken effect whole or not at all.

A BoxLink is one connection of a box and its channels, by what they are for. A new connection gets a
new BoxLink; jobs keep the channel that they came on.

    puts        one, in confirm mode, for all threads: each put has a future of its own
    a getter    one for each queue that is got from: an error there (the queue was deleted) ends
                the channel and the jobs in hand of that queue only, which are gone anyway
    appenders   one for each stream that is appended to, in confirm mode, given to it
    callers     for operations, each used by one call at a time, from a pool
    tx          for transactions, each used by one at a time, from a pool

A message that no queue got is returned before its confirm; its message id says which put it was.
"""

import os
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.amqp_url import AmqpUrl
from penstock.client.connection import ClientChannel, Received, connect
from penstock.client.message import RemoteDelivery, properties_of
from penstock.codec.spec import BasicAck, BasicQos, TxCommit, TxRollback, TxSelect
from penstock.embedded.option_parsing import NewBody
from penstock.embedded.sources import Call
from penstock.embedded.waiting import run_call
from penstock.errors import (
    NOT_FOUND,
    AMQPError,
    BoxClosedError,
    ChannelError,
    ConnectionLostError,
    ForkedError,
    MissingCapabilityError,
    QueueFullError,
    UnknownQueueError,
)
from penstock.queues.queue_options import DROP_HEAD, QueueOptions

CAPABILITY: Final = "penstock.box"


class BoxLink:
    """A connection of a box and its channels: see the head of this module. on_event(kind, text):
    called with "blocked" and "unblocked", in the thread that reads."""

    def __init__(self, url: AmqpUrl, on_event: Callable[[str, str], None]) -> None:
        self._on_event = on_event
        self._lock = threading.Lock()  # never held while the connection is called
        self._unblocked: Future[None] | None = None
        self.connection = connect(url, on_blocked=self._blocked)
        try:
            if not self.connection.capability(CAPABILITY):
                product = str(self.connection.server_properties.get("product", "an AMQP broker"))
                raise MissingCapabilityError(str(url), product)
            self.returned: set[str] = set()  # message ids of puts that no queue got
            self._puts: ClientChannel | None = None
            self._getters: dict[str, ClientChannel] = {}
            self._appenders: dict[str, tuple[ClientChannel, Future[object]]] = {}
            self._callers: list[ClientChannel] = []
            self._tx: list[ClientChannel] = []
            self.connection.ended.add_done_callback(lambda _: self._end_blocking())
        except BaseException:
            self.connection.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self.connection.is_open

    # ---- channels ------------------------------------------------------------------------------

    def puts(self) -> ClientChannel:
        """Return the channel for puts."""
        with self.connection.lock:
            channel = self._puts
            if channel is None or not channel.is_open:
                channel = self._puts = self.connection.channel()
                channel.on_return = self._returned
                channel.select_confirms()
            return channel

    def getter(self, queue: str) -> ClientChannel:
        """Return the channel for getting from a queue; each of its consumers may have one
        message."""
        with self.connection.lock:
            channel = self._getters.get(queue)
            if channel is None or not channel.is_open:
                channel = self._getters[queue] = self.connection.channel()
                channel.ask(BasicQos(prefetch_count=1))
            return channel

    def appender(self, stream: str) -> "tuple[ClientChannel, Future[object]]":
        """Return the channel for appending to a stream, and a future: what is published on the
        channel goes to the stream once that is done, and not before."""
        with self.connection.lock:
            found = self._appenders.get(stream)
            if found is None or not found[0].is_open:
                channel = self.connection.channel()
                channel.select_confirms()
                given = channel.call("box.append_to", {"name": stream})
                found = self._appenders[stream] = channel, given
            return found

    def forget_appender(self, stream: str) -> None:
        """Close the channel of a stream that is gone, or may not be appended to."""
        with self.connection.lock:
            found = self._appenders.pop(stream, None)
        if found is not None:
            found[0].close()

    def take_caller(self) -> ClientChannel:
        """Return a channel for one operation, to be given back with `give_caller`."""
        return self._take(self._callers) or self.connection.channel()

    def give_caller(self, channel: ClientChannel) -> None:
        """Give a channel back after the answer to its operation."""
        self._give(self._callers, channel)

    def take_tx(self) -> ClientChannel:
        """Return a channel for one transaction, to be given back with `give_tx`."""
        channel = self._take(self._tx)
        if channel is None:
            channel = self.connection.channel()
            channel.on_return = self._returned
            channel.ask(TxSelect())
        return channel

    def give_tx(self, channel: ClientChannel) -> None:
        """Give a channel back after the end of its transaction."""
        self._give(self._tx, channel)

    def _take(self, pool: list[ClientChannel]) -> ClientChannel | None:
        with self._lock:
            while pool:
                channel = pool.pop()
                if channel.is_open:
                    return channel
        return None

    def _give(self, pool: list[ClientChannel], channel: ClientChannel) -> None:
        with self._lock:
            if channel.is_open:
                pool.append(channel)

    # ---- what the broker sends unasked ---------------------------------------------------------

    def _returned(self, message: Received) -> None:
        self.returned.add(message.properties.message_id or "")

    def were_returned(self, message_ids: list[str]) -> bool:
        """Return whether no queue got one of these messages. Ask once, after their confirms."""
        if not self.returned:  # as nearly always
            return False
        found = self.returned.intersection(message_ids)
        self.returned -= found
        return bool(found)

    def was_returned(self, message_id: str) -> bool:
        """Return whether no queue got this message. Ask once, after its confirm."""
        return self.were_returned([message_id])

    def unblocked(self) -> "Future[None] | None":
        """Return a future that is done when the broker takes messages again; None if it does
        now."""
        with self._lock:
            return self._unblocked

    def _blocked(self, reason: str) -> None:
        with self._lock:
            future, self._unblocked = self._unblocked, None
            if reason:
                self._unblocked = future or Future()
        if not reason and future is not None:
            future.set_result(None)
        self._on_event("blocked" if reason else "unblocked", reason or "the broker takes messages")

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def _end_blocking(self) -> None:
        with self._lock:
            future, self._unblocked = self._unblocked, None
        if future is not None:
            future.set_result(None)


T = TypeVar("T")

NAMES_AT_ONCE: Final = 200  # 255 bytes each, escaped, still fit into a frame


@dataclass(slots=True, eq=False)
class Wait:
    """What a call waits for: a future, until the deadline (of time.monotonic(); None: no limit)."""

    future: "Future[Any]"
    deadline: float | None = None

    def seconds_left(self) -> float | None:
        """Return the seconds until the deadline, at least 0; None if there is none."""
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.0)


def answer(future: "Future[T]") -> Call[T]:
    """Wait for a future and return its result."""
    if not future.done():
        yield Wait(future)
    return future.result()


@dataclass(frozen=True, slots=True)
class Full:
    """Why a queue has no room: which limit, what it would be, what is allowed. overflow: whether
    there may be room later ("reject-publish") or the message is dead-lettered already."""

    limit: str
    given: int
    allowed: int
    overflow: str


@dataclass(slots=True, eq=False)
class RemoteState:
    """A queue as this box knows it. options: those of the last time it was opened here. mode: its
    own durability, None for the box's."""

    name: str
    options: QueueOptions
    mode: int | None = None
    is_deleted: bool = False

    def check(self) -> None:
        """Raise UnknownQueueError if the queue was deleted."""
        if self.is_deleted:
            raise UnknownQueueError(f"{self.name} (deleted)")

    def error_of(self, error: AMQPError) -> Exception:
        """Return what the library raises for an error of AMQP on this queue."""
        if error.code != NOT_FOUND:
            return error
        return UnknownQueueError(f"{self.name} (deleted)")


class RemoteTransaction:
    """What a thread or task puts and acknowledges as one: see the head of this module.

    mode: the durability of all that is put. channel: the channel of the transaction.
    """

    def __init__(self, driver: "RemoteDriver", link: BoxLink, mode: int) -> None:
        self.mode: int = mode
        self._driver = driver
        self._link = link
        self.channel = link.take_tx()
        self._acked: list[RemoteDelivery] = []
        self._put: dict[str, tuple[int, int]] = {}  # name -> messages, bytes
        self._ids: dict[str, str] = {}  # message id -> queue

    def put(self, state: RemoteState, new: NewBody | bytes) -> Call[None]:
        """Put one message. QueueFullError, UnknownQueueError."""
        name = state.name
        body = new if isinstance(new, bytes) else new.body
        count, size = self._put.get(name, (0, 0))
        is_limited = state.options.overflow != DROP_HEAD
        if is_limited or not count:
            asked = (size + len(body), count + 1) if is_limited else (0, 0)
            full = yield from self._driver.room_of(state, *asked)
            if full is not None:
                raise QueueFullError(name, full.limit, full.given, full.allowed)
        message_id = self._driver.message_id()
        header = properties_of(new, self.mode, message_id, int(time.time()))
        self.channel.publish("", name, body, header, mandatory=True)
        self._put[name] = (count + 1, size + len(body))
        self._ids[message_id] = name

    def ack(self, jobs: list[RemoteDelivery]) -> Call[None]:
        """Acknowledge deliveries with the commit."""
        for channel in {job.used_channel for job in jobs}:
            own = [job for job in jobs if job.channel is channel]
            if channel is not self.channel:
                tags = [job.tag for job in own]
                call = self.channel.call("box.adopt", {"channel": channel.number, "tags": tags})
                found = yield from answer(call)
                assert isinstance(found, list)
                for job, tag in zip(own, found, strict=True):
                    job.channel, job.tag = self.channel, tag
            for job in own:
                self.channel.tell(BasicAck(delivery_tag=job.tag))
                self._acked.append(job)

    def commit(self) -> Call[None]:
        """Commit. QueueFullError: others have filled a queue since the put, and nothing was done.
        UnknownQueueError: a queue that was put into is gone."""
        try:
            yield from answer(self.channel.ask(TxCommit()))
        except ChannelError as error:
            raise self._refused(error) from None
        lost = [name for one, name in self._ids.items() if self._link.was_returned(one)]
        self._link.give_tx(self.channel)
        if lost:
            raise UnknownQueueError(lost[0])

    def _refused(self, error: ChannelError) -> Exception:
        """Return what the library raises for an error of the commit."""
        numbers = QueueFullError.numbers_in(error.text)
        for name in self._put:
            if numbers is not None and f"queue {name!r} is full" in error.text:
                return QueueFullError(name, *numbers)
        return error

    def rollback(self) -> Call[None]:
        """Roll back. If the connection is lost, that alone undoes the transaction."""
        try:
            yield from answer(self.channel.ask(TxRollback()))
            for job in self._acked:
                call = self.channel.call("box.nack", {"tag": job.tag, "delay_ms": None})
                yield from answer(call)
            self._link.give_tx(self.channel)
        except (ConnectionLostError, AMQPError):
            self.channel.close()


class RemoteDriver:
    """See the head of this module.

    path: the URL, without the password. mode: the durability of puts that name none. on_event(kind,
    text): "blocked", "unblocked", "connected"; called in another thread.
    """

    def __init__(self, url: AmqpUrl, mode: int, on_event: Callable[[str, str], None]) -> None:
        self.path: str = str(url)
        self.mode: int = mode
        self.closed: Future[None] = Future()
        self.states: dict[str, RemoteState] = {}
        self.transactions: dict[object, RemoteTransaction] = {}  # by their owners
        self._url = url
        self._on_event = on_event
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._link: BoxLink | None = None
        self._connecting: Future[BoxLink] | None = None
        self._last_id = secrets.randbits(63)

    # ---- who calls -----------------------------------------------------------------------------

    def caller(self) -> object:
        """Return who is calling, this thread: the owner of its transaction."""
        return threading.get_ident()

    def transaction(self) -> RemoteTransaction | None:
        """Return the caller's transaction, None if it has none."""
        return self.transactions.get(self.caller()) if self.transactions else None

    def message_id(self) -> str:
        """Return a new message id, 16 hexadecimal digits."""
        return self.message_ids(1)[0]

    def message_ids(self, n: int) -> list[str]:
        """Return n new message ids."""
        with self._lock:
            first = self._last_id + 1
            if first + n > 1 << 63:
                first = 1
            self._last_id = first + n - 1
        return [f"{number:016x}" for number in range(first, first + n)]

    # ---- the connection ------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self.closed.done()

    def check(self) -> None:
        """Raise BoxClosedError or ForkedError if the box cannot be used."""
        if self._pid != os.getpid():
            raise ForkedError(self.path, self._pid, os.getpid())
        if self.closed.done():
            raise BoxClosedError(self.path)

    def linked(self) -> Call[BoxLink]:
        """Return the connection; connect again if it was lost. UnreachableError,
        AMQPConnectionError, MissingCapabilityError: that failed; the next call tries again."""
        self.check()
        with self._lock:
            link = self._link
            if link is not None and link.is_open:
                return link
            future = self._connecting
            if future is None:
                future = self._connecting = Future()
                name = f"penstock connecting to {self._url.host}"
                threading.Thread(
                    target=self._connect, args=(future,), name=name, daemon=True
                ).start()
        yield Wait(future)
        return future.result()

    def link_now(self) -> BoxLink | None:
        """Return the connection if there is one, None if a call would have to wait for it."""
        link = self._link
        return link if link is not None and link.is_open else None

    def _connect(self, future: "Future[BoxLink]") -> None:
        link: BoxLink | None = None
        error: Exception | None = None
        try:
            link = BoxLink(self._url, self._on_event)
        except Exception as found:  # noqa: BLE001  # the calls that wait for the connection raise it
            error = found
        with self._lock:
            self._connecting = None
            self._link = link
            is_closed = self.closed.done()
        if link is not None and is_closed:
            link.close()
            error = BoxClosedError(self.path)
        if error is not None or link is None:
            future.set_exception(error)
            return
        self._on_event("connected", self.path)
        future.set_result(link)

    def close(self) -> None:
        """End the connection; calls that wait raise BoxClosedError. A second time does nothing."""
        if self._pid != os.getpid():
            return
        with self._lock:
            if self.closed.done():
                return
            self.closed.set_result(None)
            link = self._link
        if link is not None:
            link.close()

    # ---- operations ----------------------------------------------------------------------------

    def operate(self, op: str, arguments: dict[str, object]) -> Call[Any]:
        """Make an operation and return its result, as JSON has it. ChannelError: it was refused."""
        link = yield from self.linked()
        channel = link.take_caller()
        try:
            future = channel.call(op, arguments)
        except ValueError:
            link.give_caller(channel)
            raise
        try:
            yield Wait(future)
        except BaseException:
            future.add_done_callback(lambda _: link.give_caller(channel))
            raise
        link.give_caller(channel)
        return future.result()

    def names(self, op: str) -> Call[list[str]]:
        """Return all names of an operation that returns some at a time, as box.queues."""
        found: list[str] = []
        while True:
            arguments: dict[str, object] = {"after": found[-1] if found else "", "n": NAMES_AT_ONCE}
            some = yield from self.operate(op, arguments)
            found += some
            if len(some) < NAMES_AT_ONCE:
                return found

    def operate_on(self, state: RemoteState, op: str, **arguments: object) -> Call[Any]:
        """Make an operation on a queue. UnknownQueueError."""
        state.check()
        try:
            return (yield from self.operate(op, {"name": state.name, **arguments}))
        except ChannelError as error:
            raise state.error_of(error) from None

    def room_of(self, state: RemoteState, size_bytes: int, count: int) -> Call[Full | None]:
        """Ask whether a queue has room for `size_bytes` in `count` messages: None, or why not."""
        found = yield from self.operate_on(state, "box.room", bytes=size_bytes, count=count)
        return None if found is None else Full(**found)

    def delete(self, name: str) -> Call[None]:
        """Delete a queue or a stream with all that it holds. UnknownQueueError."""
        try:
            yield from self.operate("box.delete", {"name": name})
        except ChannelError as error:
            raise (UnknownQueueError(name) if error.code == NOT_FOUND else error) from None
        state = self.states.pop(name, None)
        if state is not None:
            state.is_deleted = True

    # ---- running -------------------------------------------------------------------------------

    def run(self, call: Call[T]) -> T:
        """Run a call in this thread and return its result."""
        try:
            return run_call(call, self.wait)
        except (ConnectionLostError, AMQPError):
            self.check()
            raise

    def wait(self, wait: Wait) -> None:
        """Wait in this thread until the future is done or its deadline has passed."""
        try:
            wait.future.exception(wait.seconds_left())
        except (TimeoutError, CancelledError):
            pass
