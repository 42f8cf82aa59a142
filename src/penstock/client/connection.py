"""ClientConnection and ClientChannel: a connection to a broker of AMQP 0-9-1, for any number of
threads.

    connection = penstock.client.connect("amqp://localhost")
    channel = connection.channel()
    channel.ask(QueueDeclare(queue="q")).result()

`connect` opens the socket, logs in and agrees on limits, in the caller's thread (`greet`). From
then on a thread of the connection reads what arrives (wire.py) and passes it to its channel.
Answers are futures, so that callers wait as they like: a thread for a result, a loop for a
callback. A thread that waits for the result of a ReplyFuture reads meanwhile, instead of the
connection's thread.

The sans-IO machine (protocol.connection) knows which frame may come when. It and the wire are used
under one lock, so frames of a message stay together and methods are sent in the order of their
futures. In AMQP 0-9-1 a channel answers methods in the order in which they were sent, so a channel
keeps a queue of futures, and an answer belongs to the first of it. Some methods come unasked:

    basic.ack, nack      to publishers in confirm mode: up to this tag, or this one alone
    basic.return         of a message that no queue got; in confirm mode its ack follows
    basic.deliver        to a consumer, by its tag
    basic.cancel         the broker ended a consumer: its queue is gone
    channel.close        an error: the channel is closed

`publish` in confirm mode returns a future that is True (the broker has the message, as safe as it
was asked to be) or False (refused). Operations of Penstock's own (`call`) have a queue of futures
of their own: they may take longer than what is asked after them.

A consumer is two callbacks, which the thread that reads calls; they must not wait for anything of
this connection.

A connection ends by `close`, by an error of the broker (AMQPConnectionError) or because it is lost
(ConnectionLostError). Everything that waits then raises that error, and later calls too. To connect
again is the caller's decision.
"""

import functools
import json
import os
import platform
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.amqp_url import AmqpUrl
from penstock.client.publish_window import ManyPublished
from penstock.client.tls import OWN_HINT, TLS_HINT, TlsSocket, tls_reason
from penstock.client.wire import Wire, WireClosedError
from penstock.codec.fields import encode_table
from penstock.codec.frames import PROTOCOL_HEADER
from penstock.codec.method import Method
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicConsume,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicReject,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ConfirmSelect,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    PenstockCall,
    PenstockCallError,
    PenstockCallOk,
)
from penstock.errors import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    NOT_ALLOWED,
    NOT_FOUND,
    REPLY_NAMES,
    SYNTAX_ERROR,
    AMQPConnectionError,
    AMQPError,
    ChannelError,
    ConnectionLostError,
    UnreachableError,
)
from penstock.native import VERSION
from penstock.protocol.connection import (
    CLIENT,
    AckRun,
    Connection,
    Event,
    MessageReceived,
    MethodReceived,
    ProtocolHeaderReceived,
)


class Received:
    """A message from a broker: by basic.deliver, basic.get-ok or basic.return.

    delivery_tag: settles the message on the channel that it came on; 0 for a returned message.
    consumer_tag: "" unless it was delivered to a consumer. reply_code, reply_text: why it was
    returned; 0 and "" for others. The properties are decoded when they are first asked for.
    """

    __slots__ = (
        "_properties", "body", "consumer_tag", "delivery_tag", "exchange", "header",
        "is_redelivered", "reply_code", "reply_text", "routing_key",
    )  # fmt: skip

    def __init__(self, method: Method, header: bytes, body: bytes) -> None:
        assert isinstance(method, BasicDeliver | BasicGetOk | BasicReturn), method
        self.body: bytes = body
        self.header: bytes = header  # the properties, as on the wire
        self.exchange: str = method.exchange
        self.routing_key: str = method.routing_key
        self.delivery_tag: int = 0
        self.consumer_tag: str = ""
        self.is_redelivered: bool = False
        self.reply_code: int = 0
        self.reply_text: str = ""
        if isinstance(method, BasicReturn):
            self.reply_code = method.reply_code
            self.reply_text = method.reply_text
        else:
            self.delivery_tag = method.delivery_tag
            self.is_redelivered = method.redelivered
            if isinstance(method, BasicDeliver):
                self.consumer_tag = method.consumer_tag
        self._properties: BasicProperties | None = None

    @property
    def properties(self) -> BasicProperties:
        """The message's properties: content type, headers and so on."""
        if self._properties is None:
            self._properties = BasicProperties.decode(self.header)
        return self._properties

    @property
    def headers(self) -> dict[str, object]:
        """The table of headers; empty if there is none."""
        return self.properties.headers or {}

    def __repr__(self) -> str:
        place = f"{self.exchange!r} {self.routing_key!r}"
        return f"<Received {self.delivery_tag} of {place}, {len(self.body)} bytes>"


UNASKED: Final = (BasicNack, BasicCancel, ChannelFlow, ChannelClose, ChannelCloseOk)
OF_CALLS: Final = (PenstockCallOk, PenstockCallError)


def without_name(text: str, code: int) -> str:
    """Return a broker's text without the name of its reply code, which our errors add
    themselves."""
    return text.removeprefix(f"{REPLY_NAMES.get(code, code)} - ")


def close_error(method: ChannelClose) -> ChannelError:
    """Return the error that the broker closed a channel with."""
    code = method.reply_code
    return ChannelError(
        code, without_name(method.reply_text, code), method.class_id, method.method_id
    )


def call_error(method: PenstockCallError) -> ChannelError:
    """Return the error that an operation ended with; its channel stays open."""
    text = method.text.decode("utf-8", "replace")
    return ChannelError(method.code, without_name(text, method.code))


def is_answer(method: Method) -> bool:
    """Return whether a method answers the oldest one that its channel has sent."""
    return not isinstance(method, UNASKED)


T = TypeVar("T")
OnMessage = Callable[[Received], None]
OnEnd = Callable[[Exception], None]

CALL_OVERHEAD_BYTES: Final = 512  # of a frame with a call, more than enough
HEADER_OVERHEAD_BYTES: Final = 20  # of a frame with properties
NO_PROPERTIES: Final = BasicProperties().encode()


class ReplyFuture(Future[T]):
    """A future of what a connection brings. A thread that waits for it reads the connection
    meanwhile, if no other does."""

    def __init__(self, connection: "ClientConnection") -> None:
        super().__init__()
        self._connection = connection

    def result(self, timeout: float | None = None) -> T:
        """As Future's."""
        if not self.done():
            timeout = self._connection.read_until(self.done, timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As Future's."""
        if not self.done():
            timeout = self._connection.read_until(self.done, timeout)
        return super().exception(timeout)


def settle(future: "Future[Any]", value: object, error: Exception | None = None) -> None:
    """Complete a future, unless it is complete or cancelled."""
    if not future.done() and future.set_running_or_notify_cancel():
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


@functools.lru_cache(maxsize=1024)
def encoded_publish(exchange: str, routing_key: str, mandatory: bool) -> bytes:
    """Return an encoded basic.publish."""
    return BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=mandatory).encode()


class ClientChannel:
    """A channel of a connection; `connection.channel()` opens it. on_return(message): called with a
    message that was published with `mandatory` and that no queue got."""

    def __init__(self, connection: "ClientConnection", number: int) -> None:
        self.connection = connection
        self.number: int = number
        self.error: Exception | None = None  # why it has ended
        self.has_confirms: bool = False
        self.on_return: OnMessage | None = None
        self._lock = connection.lock
        self._answers: deque[Future[Method | Received]] = deque()
        self._calls: deque[Future[object]] = deque()
        # In the order of their tags; what was published together is at its first tag.
        self._confirms: dict[int, Future[bool] | ManyPublished] = {}
        self._next_tag = 1
        self._consumers: dict[str, tuple[OnMessage, OnEnd]] = {}
        self._next_consumer = 1

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self.error is None

    # ---- asking --------------------------------------------------------------------------------

    def open(self) -> None:
        """Send channel.open; the connection calls this."""
        self.ask(ChannelOpen())

    def ask(self, method: Method) -> "Future[Method | Received]":
        """Send a method and return the future of its answer. Errors of the channel or the
        connection, as ConnectionLostError, complete the future too."""
        future: ReplyFuture[Method | Received] = ReplyFuture(self.connection)
        with self._lock:
            if not self._fails(future):
                self._answers.append(future)
                self._post(self._answers, method)
        return future

    def tell(self, method: Method) -> None:
        """Send a method that has no answer, as basic.ack. Raises the error with which the channel
        has ended."""
        with self._lock:
            if self.error is not None:
                raise self.error
            self.connection.send(self.number, method)

    def call(self, op: str, arguments: dict[str, object]) -> "Future[object]":
        """Make an operation of Penstock's own and return the future of its result, as JSON has it.
        ChannelError in the future: it was refused, and the channel stays open. ValueError: the
        arguments do not fit into a frame."""
        future: ReplyFuture[object] = ReplyFuture(self.connection)
        data = json.dumps(arguments).encode()
        if len(data) > self.connection.frame_max - CALL_OVERHEAD_BYTES:
            raise ValueError(f"arguments of {len(data)} bytes do not fit into a frame")
        with self._lock:
            if not self._fails(future):
                self._calls.append(future)
                self._post(self._calls, PenstockCall(op=op, arguments=data))
        return future

    def _fails(self, future: "Future[Any]") -> bool:
        error = self.error or self.connection.error
        if error is not None:
            settle(future, None, error)
        return error is not None

    def _send(self, method: Method) -> None:
        """Send a method; an error ends the channel, and so its futures."""
        try:
            self.connection.send(self.number, method)
        except (ConnectionLostError, AMQPError) as error:
            self.on_end(error)

    def _post(self, waiting: "deque[Future[Any]]", method: Method) -> None:
        """Send the method that the last future of this queue waits for. If it cannot be encoded (a
        name is too long) the future is removed; if sending was interrupted, part of it may be sent,
        and the connection is ended."""
        try:
            self._send(method)
        except Exception:
            waiting.pop()
            raise
        except BaseException:
            self.connection.abort()
            raise

    # ---- publishing ----------------------------------------------------------------------------

    def select_confirms(self) -> "Future[Method | Received]":
        """Switch the channel to confirm mode: `publish` then returns futures."""
        with self._lock:
            self.has_confirms = True
            return self.ask(ConfirmSelect())

    def _check_fits(self, properties_bytes: int) -> None:
        """Raise ValueError unless such properties fit into a frame: they may not be divided, and
        the broker would close the connection."""
        most = self.connection.frame_max - HEADER_OVERHEAD_BYTES
        if properties_bytes > most:
            raise ValueError(
                f"headers and other properties of {properties_bytes} bytes do not fit into a frame"
                f": at most {most} are allowed; put what is long into the body"
            )

    def publish(
        self, exchange: str, routing_key: str, body: bytes,
        properties: BasicProperties | bytes = NO_PROPERTIES, *, mandatory: bool = False,
    ) -> "Future[bool] | None":  # fmt: skip
        """Publish a message. In confirm mode return a future: True if the broker took it, False if
        it refused it. Never waits: a publisher without confirms calls `connection.wait_for_room`
        now and then. ValueError: the properties do not fit into a frame."""
        header = properties if isinstance(properties, bytes) else properties.encode()
        self._check_fits(len(header))
        method = BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        with self._lock:
            if not self.has_confirms:
                if self.error is not None:
                    raise self.error
                self.connection.send_content(self.number, method, header, body)
                return None
            future: ReplyFuture[bool] = ReplyFuture(self.connection)
            if not self._fails(future):
                send = self.connection.send_content
                self._send_numbered(future, 1, send, self.number, method, header, body)
            return future

    def publish_many(
        self, exchange: str, messages: Sequence[tuple[str, bytes, bytes]], *,
        mandatory: bool = False,
    ) -> ManyPublished:  # fmt: skip
        """Publish at least one message with one write, on a channel in confirm mode, and return
        what their confirms are noted in. messages: of each its routing key, its encoded properties
        and its body. Never waits: the caller limits what is under way. ValueError: properties do
        not fit into a frame."""
        self._check_fits(max([len(header) for _, header, _ in messages]))
        contents = [
            (encoded_publish(exchange, key, mandatory), header, body)
            for key, header, body in messages
        ]
        with self._lock:
            published = ManyPublished(self._next_tag, len(contents), ReplyFuture(self.connection))
            if not self._fails(published.future):
                send = self.connection.send_publishes
                self._send_numbered(published, len(contents), send, self.number, contents)
            return published

    def _send_numbered(
        self, confirm: "Future[bool] | ManyPublished", count: int, send: Callable[..., None],
        *args: object,
    ) -> None:  # fmt: skip
        """Send so many publishes, whose confirms `confirm` waits for, by `send(*args)`. An end of
        the channel or the connection is told by `confirm`; any other error is raised, and nothing
        was sent."""
        tag = self._next_tag
        self._confirms[tag] = confirm
        try:
            send(*args)
            self._next_tag = tag + count
        except (ConnectionLostError, AMQPError) as error:
            self.on_end(error)
        except Exception:
            del self._confirms[tag]
            raise
        except BaseException:
            self.connection.abort()
            raise

    # ---- getting -------------------------------------------------------------------------------

    def get(self, queue: str, *, no_ack: bool = False) -> "Future[Received | None]":
        """Send basic.get and return the future of the next message, None if there is none."""
        found: ReplyFuture[Received | None] = ReplyFuture(self.connection)

        def answered(answer: "Future[Method | Received]") -> None:
            error = answer.exception()
            if error is not None:
                assert isinstance(error, Exception)
                settle(found, None, error)
                return
            message = answer.result()
            settle(found, None if isinstance(message, BasicGetEmpty) else message)

        self.ask(BasicGet(queue=queue, no_ack=no_ack)).add_done_callback(answered)
        return found

    def consume(
        self, queue: str, on_message: OnMessage, on_end: OnEnd, *, no_ack: bool = False,
        exclusive: bool = False, arguments: dict[str, object] | None = None,
    ) -> tuple[str, "Future[Method | Received]"]:  # fmt: skip
        """Begin to consume. Returns the consumer's tag, and a future that is done when the broker
        agrees.

        on_message(message): called with each message. on_end(error): called when the consumer has
        ended because its queue, the channel or the connection has; not after `cancel`. Both are
        called in the thread that reads.
        """
        with self._lock:
            tag = f"penstock-{self.number}-{self._next_consumer}"
            self._next_consumer += 1
            self._consumers[tag] = (on_message, on_end)
            method = BasicConsume(
                queue=queue, consumer_tag=tag, no_ack=no_ack, exclusive=exclusive,
                arguments=arguments or {},
            )  # fmt: skip
            begun = self.ask(method)
        return tag, begun

    def cancel(self, tag: str) -> "Future[Method | Received]":
        """End a consumer. Messages may still come until the future is done."""
        return self.ask(BasicCancel(consumer_tag=tag))

    def forget_consumer(self, tag: str) -> None:
        """Stop calling a consumer's callbacks; messages that still come return to their queue."""
        self._consumers.pop(tag, None)

    # ---- settling ------------------------------------------------------------------------------

    def ack(self, delivery_tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a delivery, or all up to it."""
        self.tell(BasicAck(delivery_tag=delivery_tag, multiple=multiple))

    def reject(self, delivery_tag: int, *, requeue: bool) -> None:
        """Return a delivery to its queue (requeue), or have it dead-lettered or dropped."""
        self.tell(BasicReject(delivery_tag=delivery_tag, requeue=requeue))

    # ---- what arrives, in the thread that reads ------------------------------------------------

    def on_method(self, method: Method) -> None:
        """Handle a method."""
        if isinstance(method, OF_CALLS):
            self._answered_call(method)
        elif is_answer(method):
            if self._answers:
                settle(self._answers.popleft(), method)
        elif isinstance(method, BasicNack):
            self._confirmed(method.delivery_tag, method.multiple, is_taken=False)
        elif isinstance(method, BasicCancel):
            found = self._consumers.pop(method.consumer_tag, None)
            if found is not None:
                text = f"the queue of consumer '{method.consumer_tag}' is gone"
                found[1](ChannelError(NOT_FOUND, text))
        elif isinstance(method, ChannelFlow):
            self._send(ChannelFlowOk(active=method.active))
        elif isinstance(method, ChannelClose):
            self._send(ChannelCloseOk())
            self.on_end(close_error(method))
        elif isinstance(method, ChannelCloseOk):
            self.connection.forget_channel(self)

    def on_acks(self, tags: list[int], multiples: list[bool]) -> None:
        """Handle confirms."""
        for tag, is_multiple in zip(tags, multiples, strict=True):
            self._confirmed(tag, is_multiple, is_taken=True)

    def on_message(self, method: Method, header: bytes, body: bytes) -> None:
        """Handle a message."""
        message = Received(method, header, body)
        if isinstance(method, BasicReturn):
            if self.on_return is not None:
                self.on_return(message)
        elif message.consumer_tag:
            found = self._consumers.get(message.consumer_tag)
            if found is not None:
                found[0](message)
            else:
                self.reject(message.delivery_tag, requeue=True)
        elif self._answers:
            settle(self._answers.popleft(), message)

    def on_end(self, error: Exception) -> None:
        """End the channel: fail all that waits with this error, and free its number."""
        with self._lock:
            self._finish(error)
            self.connection.forget_channel(self)

    def _finish(self, error: Exception) -> None:
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            waiting: list[Future[Any]] = [*self._answers, *self._calls]
            waiting += [
                confirm.future if isinstance(confirm, ManyPublished) else confirm
                for confirm in self._confirms.values()
            ]
            consumers = list(self._consumers.values())
            for some in (self._answers, self._calls, self._confirms, self._consumers):
                some.clear()
        for future in waiting:
            settle(future, None, error)
        for _, ended in consumers:
            ended(error)

    def _answered_call(self, method: Method) -> None:
        if not self._calls:
            return
        future = self._calls.popleft()
        if isinstance(method, PenstockCallOk):
            try:
                settle(future, json.loads(method.result))
            except ValueError as error:
                settle(
                    future, None, ChannelError(SYNTAX_ERROR, f"a result that is not JSON: {error}")
                )
        elif isinstance(method, PenstockCallError):
            settle(future, None, call_error(method))

    def _confirmed(self, tag: int, multiple: bool, *, is_taken: bool) -> None:
        with self._lock:
            if not multiple and isinstance(self._confirms.get(tag), Future):
                tags = [tag]
            else:
                tags = self._answered(tag, multiple=multiple, is_taken=is_taken)
            found = [self._confirms.pop(one) for one in tags]
        for one in found:
            if isinstance(one, ManyPublished):
                settle(one.future, None)
            else:
                settle(one, is_taken)

    def _answered(self, tag: int, *, multiple: bool, is_taken: bool) -> list[int]:
        """Note an answer in what was published together. Returns the first tags of all that is
        answered whole."""
        done: list[int] = []
        for first, one in self._confirms.items():
            if first > tag:
                break
            if isinstance(one, ManyPublished):
                if one.answer(tag, multiple=multiple, is_taken=is_taken):
                    done.append(first)
            elif multiple:
                done.append(first)
        return done

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the channel, without waiting. What is unacknowledged returns to its queues; all
        that waits for an answer fails with a ChannelError."""
        with self._lock:
            if self.error is None:
                self._send(ChannelClose(reply_code=200, reply_text="Goodbye"))
                self._finish(ChannelError(CHANNEL_ERROR, "the channel was closed"))

    def __repr__(self) -> str:
        return f"<ClientChannel {self.number} of {self.connection.url}>"


M = TypeVar("M", bound=Method)

READ_BYTES = 1 << 16

CAPABILITIES = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "exchange_exchange_bindings": True,
    "authentication_failure_close": True,
    "penstock.delivery_count": True,  # jobs say how often they were tried
}


@dataclass(frozen=True, slots=True)
class Greeting:
    """The outcome of `greet`: the machine of an open connection, and the limits agreed on."""

    machine: Connection
    server_properties: dict[str, object]
    frame_max: int
    channel_max: int
    heartbeat_s: int


TLS_ALERT: Final = b"\x15"  # the first byte of what TLS answers to plain AMQP


class _Handshake:
    """The methods of channel 0 until the connection is open, one after the other."""

    def __init__(self, sock: socket.socket | TlsSocket, url: AmqpUrl) -> None:
        self._socket = sock
        self._deadline = time.monotonic() + url.connection_timeout_s
        self._methods: list[Method] = []
        self.machine = Connection(CLIENT)

    def send(self, data: bytes) -> None:
        self._limit_time()
        self._socket.sendall(data)

    def send_method(self, method: Method) -> None:
        self.send(self.machine.send(0, method))

    def receive(self) -> Method:
        """Return the next method. AMQPConnectionError if it is connection.close; OSError if the
        connection has ended."""
        while not self._methods:
            self._limit_time()
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the broker closed the connection before it was open")
            if data[:1] == TLS_ALERT:
                raise ConnectionError(TLS_HINT)
            if data.startswith(b"HTTP"):
                raise ConnectionError("that port speaks HTTP, expected AMQP: 5672 unless changed")
            for event in self.machine.receive(data):
                if isinstance(event, MethodReceived):
                    self._methods.append(event.method)
                elif isinstance(event, ProtocolHeaderReceived):
                    raise ConnectionError("the broker uses another version of AMQP")
        method = self._methods.pop(0)
        if isinstance(method, ConnectionClose):
            self.send_method(ConnectionCloseOk())
            code = method.reply_code
            raise AMQPConnectionError(
                code, without_name(method.reply_text, code), method.class_id, method.method_id
            )
        return method

    def _limit_time(self) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the broker took too long to open the connection")
        self._socket.settimeout(left_s)


def _agreed(ours: int, theirs: int) -> int:
    """Return the smaller of two limits; 0 is no limit."""
    return min(ours, theirs) if ours and theirs else ours or theirs


def greet(sock: socket.socket | TlsSocket, url: AmqpUrl) -> Greeting:
    """Open an AMQP connection on this socket. AMQPConnectionError; OSError, also after a
    time-out."""
    handshake = _Handshake(sock, url)
    handshake.send(PROTOCOL_HEADER)
    start = _expect(handshake.receive(), ConnectionStart)
    mechanism = "EXTERNAL" if url.is_external else "PLAIN"
    if mechanism.encode() not in start.mechanisms.split():
        text = f"the broker accepts {start.mechanisms.decode()}, not {mechanism}"
        if url.is_external:
            text += f": it knows no user by a certificate of this client ({OWN_HINT})"
        raise AMQPConnectionError(ACCESS_REFUSED, text)
    response = b"\0" + url.user.encode() + b"\0" + url.password.encode()
    if url.is_external:
        response = b""
    start_ok = ConnectionStartOk(
        client_properties=encode_table(_properties(url)), mechanism=mechanism, response=response,
        locale="en_US",
    )  # fmt: skip
    handshake.send_method(start_ok)
    try:
        tune = _expect(handshake.receive(), ConnectionTune)
    except ConnectionError:
        raise AMQPConnectionError(
            ACCESS_REFUSED,
            f"the broker closed the connection: is {url.user!r} with this password allowed?",
        ) from None
    channel_max = _agreed(url.channel_max, tune.channel_max) or 65535
    frame_max = _agreed(url.frame_max, tune.frame_max) or 131072
    heartbeat_s = tune.heartbeat if url.heartbeat_s is None else url.heartbeat_s
    handshake.send_method(
        ConnectionTuneOk(channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat_s)
    )
    handshake.send_method(ConnectionOpen(virtual_host=url.vhost))
    _expect(handshake.receive(), ConnectionOpenOk)
    return Greeting(handshake.machine, start.server_properties, frame_max, channel_max, heartbeat_s)


def _properties(url: AmqpUrl) -> dict[str, object]:
    properties: dict[str, object] = {
        "product": "Penstock client",
        "version": VERSION,
        "platform": f"Python {platform.python_version()}",
        "capabilities": CAPABILITIES,
    }
    if url.name:
        properties["connection_name"] = url.name
    return properties


def _expect(method: Method, kind: type[M]) -> M:
    if not isinstance(method, kind):
        raise AMQPConnectionError(COMMAND_INVALID, f"expected {kind.NAME}, not {method.NAME}")
    return method


CLOSE_S: Final = 5.0  # how long to wait for the broker's close-ok

OnBlocked = Callable[[str], None]


def connect(
    url: str | AmqpUrl | None = None, *, on_blocked: OnBlocked | None = None
) -> "ClientConnection":
    """Connect to the broker of this URL; without one, to that of PENSTOCK_URL, AMQP_URL or this
    host.

    on_blocked(reason): called when the broker takes no messages for now, and with "" when it does
    again; in the thread that reads, which must not wait for anything of this connection.

    Raises UnreachableError, OptionError for the URL, or AMQPConnectionError with the broker's
    words, as for a wrong password (403) or an unknown vhost (530).
    """
    where = AmqpUrl.of(url, os.environ)
    try:
        plain = socket.create_connection((where.host, where.port), where.connection_timeout_s)
    except OSError as error:
        raise UnreachableError(str(where), str(error)) from None
    sock: socket.socket | TlsSocket = plain
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if where.tls is not None:
            sock = TlsSocket(plain, where.host, where.tls)
        greeting = greet(sock, where)
    except AMQPError as error:
        sock.close()
        if error.code == ACCESS_REFUSED:
            error.add_note(
                f"are the user {where.user!r} and the password right? guest may connect from the "
                "broker's machine only"
            )
        raise
    except OSError as error:  # a time-out is one
        sock.close()
        if isinstance(error, ssl.SSLError):
            raise UnreachableError(str(where), tls_reason(error), is_of_tls=True) from None
        raise UnreachableError(str(where), str(error) or type(error).__name__) from None
    except BaseException:
        sock.close()
        raise
    return ClientConnection(where, sock, greeting, on_blocked)


class ClientConnection:
    """A connection to a broker; `connect` makes it. server_properties: what the broker says about
    itself. frame_max, channel_max: the limits agreed on."""

    def __init__(
        self,
        url: AmqpUrl,
        sock: socket.socket | TlsSocket,
        greeting: Greeting,
        on_blocked: OnBlocked | None,
    ) -> None:
        self.url: AmqpUrl = url
        self.server_properties: dict[str, object] = greeting.server_properties
        self.frame_max: int = greeting.frame_max
        self.channel_max: int = greeting.channel_max
        self.heartbeat_s: int = greeting.heartbeat_s
        self.pid: int = os.getpid()
        self.lock = threading.RLock()
        self.error: Exception | None = None  # why it has ended
        self.blocked_reason: str = ""
        self._on_blocked = on_blocked
        self._reasons: list[str] = []  # with which `on_blocked` is to be called
        self._machine: Connection = greeting.machine
        self._channels: dict[int, ClientChannel] = {}
        self._free: deque[int] = deque()
        self._next_number = 1
        self._is_closing = False
        self._close_ok: Future[None] = Future()
        self.ended: Future[None] = Future()  # done when the connection has ended
        self._wire = Wire(
            sock, self._received, self._ended, heartbeat_s=greeting.heartbeat_s,
            name=f"penstock client of {url.host}:{url.port}",
        )  # fmt: skip
        self._wire.start()

    # ---- channels ------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self.error is None and not self._is_closing

    def capability(self, name: str) -> bool:
        """Return whether the broker has this capability, as "basic.nack"."""
        capabilities = self.server_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True

    def channel(self) -> ClientChannel:
        """Open a channel and return it, without waiting: what is sent on it comes after its
        opening."""
        with self.lock:
            self.check()
            if self._free:
                number = self._free.popleft()
            elif self._next_number <= self.channel_max:
                number, self._next_number = self._next_number, self._next_number + 1
            else:
                raise AMQPConnectionError(
                    NOT_ALLOWED, f"all {self.channel_max} channels of the connection are in use"
                )
            channel = ClientChannel(self, number)
            self._channels[number] = channel
            channel.open()
            return channel

    def forget_channel(self, channel: ClientChannel) -> None:
        """Free the number of a channel that is closed on both sides."""
        with self.lock:
            if self._channels.get(channel.number) is channel:
                del self._channels[channel.number]
                self._free.append(channel.number)

    # ---- sending -------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the error with which the connection has ended, if it has."""
        if self.error is not None:
            raise self.error
        if self._is_closing:
            raise ConnectionLostError(str(self.url), "it was closed")

    def send(self, channel: int, method: Method) -> None:
        """Send a method without content. Never waits. Raises the error of a connection that has
        ended."""
        with self.lock:
            self.check()
            self._put(self._machine.send(channel, method))

    def send_content(self, channel: int, method: Method, header: bytes, body: bytes) -> None:
        """Send a method with its content. header: the encoded properties, flags and list."""
        with self.lock:
            self.check()
            self._put(self._machine.send_content(channel, method, header, body))

    def send_publishes(self, channel: int, contents: list[tuple[bytes, bytes, bytes]]) -> None:
        """Send many basic.publish with one write. contents: as `Connection.send_publishes`."""
        with self.lock:
            self.check()
            self._put(self._machine.send_publishes(channel, contents))

    def _put(self, data: bytes) -> None:
        try:
            self._wire.send(data)
        except WireClosedError as error:
            lost = ConnectionLostError(str(self.url), str(error))
            self.error = self.error or lost  # nothing else can be sent, whatever the machine says
            raise lost from None

    def wait_for_room(self) -> None:
        """Wait while more than 1 MiB is to be sent, because the broker does not read it."""
        self._wire.wait_for_room()

    def read_until(self, is_done: Callable[[], bool], timeout_s: float | None) -> float | None:
        """Read in this thread until `is_done()`, unless another does: see Wire.read_until."""
        return self._wire.read_until(is_done, timeout_s)

    # ---- what the wire brings ------------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        machine = self._machine
        with self.lock:  # until the last event, so that machine and channels stay in step
            try:
                events: list[Event] = machine.receive(data)
            except AMQPConnectionError:
                for event in machine.events_before_error:
                    self._dispatch(event)
                raise
            for event in events:
                self._dispatch(event)
            reasons, self._reasons = self._reasons, []
        if self._on_blocked is not None:  # without the lock, for this is the user's code
            for reason in reasons:
                self._on_blocked(reason)

    def _dispatch(self, event: Event) -> None:
        if isinstance(event, MethodReceived):
            if event.channel == 0:
                self._connection_method(event.method)
                return
            channel = self._channels.get(event.channel)
            if channel is not None:
                channel.on_method(event.method)
        elif isinstance(event, MessageReceived):
            channel = self._channels.get(event.channel)
            if channel is not None:
                channel.on_message(event.method, event.header, event.body)
        elif isinstance(event, AckRun):
            channel = self._channels.get(event.channel)
            if channel is not None:
                channel.on_acks(event.tags, event.multiples)

    def _connection_method(self, method: Method) -> None:
        if isinstance(method, ConnectionClose):
            code, text = method.reply_code, method.reply_text
            error = AMQPConnectionError(
                code, without_name(text, code), method.class_id, method.method_id
            )
            with self.lock:
                self.error = self.error or error
                self._put(self._machine.send(0, ConnectionCloseOk()))
            self._wire.end(str(error), 0)
        elif isinstance(method, ConnectionCloseOk):
            self._close_ok.set_result(None)
        elif isinstance(method, ConnectionBlocked):
            self._blocked(method.reason or "the broker is short of memory or disk")
        elif isinstance(method, ConnectionUnblocked):
            self._blocked("")

    def _blocked(self, reason: str) -> None:
        self.blocked_reason = reason
        self._reasons.append(reason)

    def _ended(self, reason: str) -> None:
        """End all channels: nothing more will come."""
        with self.lock:
            if self.error is None:
                why = "it was closed" if self._is_closing else reason
                self.error = ConnectionLostError(str(self.url), why)
            channels = list(self._channels.values())
            self._channels.clear()
        for channel in channels:
            channel.on_end(self.error)
        if not self._close_ok.done():
            self._close_ok.set_result(None)
        if not self.ended.done():
            self.ended.set_result(None)

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connection in order, after all that was sent before. A second time does
        nothing."""
        if self.pid != os.getpid():
            self._wire.drop()
            return
        with self.lock:
            if self._is_closing or self.error is not None:
                return
            self._is_closing = True
            method = ConnectionClose(reply_code=200, reply_text="Goodbye")
            try:
                self._put(self._machine.send(0, method))
            except ConnectionLostError:
                pass
        if not self._wire.is_reader:
            try:
                self._close_ok.result(CLOSE_S)
            except TimeoutError:
                pass
        self._wire.end("it was closed", CLOSE_S)

    def abort(self) -> None:
        """Close the socket at once, without connection.close: to the broker the connection is
        lost."""
        self._wire.abort("it was aborted")

    def __enter__(self) -> "ClientConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ClientConnection {self.url}>"
