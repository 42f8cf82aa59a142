"""ClientConnection: a connection to a broker of AMQP 0-9-1, for any number of threads.

`connect` opens the socket, says who we are and agrees on limits, in the caller's thread; from then
on a thread of the connection's own reads what comes (wire.py) and gives it to the channel that it
is for. What is asked is answered with futures, so that callers wait as they like: a thread for a
result, a loop for a callback.

    connection = penstock.client.connect("amqp://localhost")
    channel = connection.channel()
    channel.ask(QueueDeclare(queue="q")).result()

The sans-IO machine (protocol.connection) knows which frame may come when; it and the wire are used
under one lock, so frames of a message stay together and methods are sent in the order of their
futures.

The end comes in three ways: `close`, an error that the broker gives (AMQPConnectionError), a lost
connection (ConnectionLostError). Whatever is waiting then gets that error, and later calls too.

Not here: what channels do (client_channel.py), connecting again (link.py).
"""

import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Final

from penstock.client.amqp_url import AmqpUrl
from penstock.client.client_channel import ClientChannel
from penstock.client.client_errors import ConnectionLostError, UnreachableError
from penstock.client.greeting import Greeting, greet
from penstock.client.replies import without_name
from penstock.client.wire import Wire, WireClosedError
from penstock.codec.method import Method
from penstock.codec.spec import (
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionUnblocked,
)
from penstock.errors import AMQPConnectionError, AMQPError
from penstock.protocol.connection import Connection
from penstock.protocol.events import AckRun, Event, MessageReceived, MethodReceived

CLOSE_S: Final = 5.0  # how long to wait for the broker's close-ok

OnBlocked = Callable[[str], None]


def connect(
    url: str | AmqpUrl | None = None, *, on_blocked: OnBlocked | None = None
) -> "ClientConnection":
    """A connection to the broker of this URL; without one, of PENSTOCK_URL, AMQP_URL or this host.

    on_blocked(reason): the broker takes no messages for now; with "": it does again. It is called
    in the connection's thread, and must not wait for anything of this connection.

    UnreachableError; OptionError for the URL; AMQPConnectionError with the broker's words, as
    for a wrong password (403) or an unknown vhost (530).
    """
    where = AmqpUrl.of(url, os.environ)
    try:
        sock = socket.create_connection((where.host, where.port), where.connection_timeout_s)
    except OSError as error:
        raise UnreachableError(str(where), str(error)) from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = greet(sock, where)
    except AMQPError:
        sock.close()
        raise
    except OSError as error:  # a time-out is one
        sock.close()
        raise UnreachableError(str(where), str(error) or type(error).__name__) from None
    except BaseException:
        sock.close()
        raise
    return ClientConnection(where, sock, greeting, on_blocked)


class ClientConnection:
    """See the head of this module; made by `connect`. server_properties: what the broker said of
    itself. frame_max, channel_max: as agreed."""

    def __init__(
        self, url: AmqpUrl, sock: socket.socket, greeting: Greeting, on_blocked: OnBlocked | None
    ) -> None:
        self.url: AmqpUrl = url
        self.server_properties: dict[str, object] = greeting.server_properties
        self.frame_max: int = greeting.frame_max
        self.channel_max: int = greeting.channel_max
        self.heartbeat_s: int = greeting.heartbeat_s
        self.pid: int = os.getpid()
        self.lock = threading.RLock()
        self.error: Exception | None = None  # why it is no more
        self.blocked_reason: str = ""
        self._on_blocked = on_blocked
        self._told: list[str] = []  # reasons that `on_blocked` is to be told
        self._machine: Connection = greeting.machine
        self._channels: dict[int, ClientChannel] = {}
        self._free: deque[int] = deque()
        self._next_number = 1
        self._is_closing = False
        self._close_ok: Future[None] = Future()
        self.ended: Future[None] = Future()  # done when it is no more
        self._wire = Wire(
            sock, self._received, self._ended, heartbeat_s=greeting.heartbeat_s,
            name=f"penstock client of {url.host}:{url.port}",
        )  # fmt: skip
        self._wire.start()

    # ---- channels ------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self.error is None and not self._is_closing

    def capability(self, name: str) -> bool:
        """Whether the broker says that it can do this, as "basic.nack"."""
        capabilities = self.server_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(name) is True

    def channel(self) -> ClientChannel:
        """A new channel. It waits for nothing: what is asked of it comes after its opening."""
        with self.lock:
            self.check()
            if self._free:
                number = self._free.popleft()
            elif self._next_number <= self.channel_max:
                number, self._next_number = self._next_number, self._next_number + 1
            else:
                raise AMQPConnectionError(
                    530, f"all {self.channel_max} channels of the connection are in use"
                )
            channel = ClientChannel(self, number)
            self._channels[number] = channel
            channel.open()
            return channel

    def forget_channel(self, channel: ClientChannel) -> None:
        """It is closed on both sides: its number may be used again."""
        with self.lock:
            if self._channels.get(channel.number) is channel:
                del self._channels[channel.number]
                self._free.append(channel.number)

    # ---- sending -------------------------------------------------------------------------------

    def check(self) -> None:
        """The error that it ended with, if it did."""
        if self.error is not None:
            raise self.error
        if self._is_closing:
            raise ConnectionLostError(str(self.url), "it was closed")

    def send(self, channel: int, method: Method) -> None:
        """A method without content. Never waits. The error of the connection."""
        with self.lock:
            self.check()
            self._put(self._machine.send(channel, method))

    def send_content(self, channel: int, method: Method, header: bytes, body: bytes) -> None:
        """A method with its content; header: property flags and list."""
        with self.lock:
            self.check()
            self._put(self._machine.send_content(channel, method, header, body))

    def _put(self, data: bytes) -> None:
        try:
            self._wire.send(data)
        except WireClosedError as error:
            lost = ConnectionLostError(str(self.url), str(error))
            self.error = self.error or lost  # nothing else can be sent, whatever the machine says
            raise lost from None

    def wait_for_room(self) -> None:
        """While more than 1 MiB waits to be sent, because the broker does not read it."""
        self._wire.wait_for_room()

    # ---- the thread of the wire ----------------------------------------------------------------

    def _received(self, data: bytes) -> None:
        machine = self._machine
        with self.lock:  # until the last event: what the machine knows, the channels know too
            try:
                events: list[Event] = machine.receive(data)
            except AMQPConnectionError:
                for event in machine.events_before_error:
                    self._dispatch(event)
                raise
            for event in events:
                self._dispatch(event)
            told, self._told = self._told, []
        if self._on_blocked is not None:  # without the lock, for it is somebody else's code
            for reason in told:
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
        self._told.append(reason)

    def _ended(self, reason: str) -> None:
        """Nothing more will come: whoever waits is told."""
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
        """Say goodbye and close; what was sent before is done by then. Again: nothing."""
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
        if not self._wire.is_own_thread:
            try:
                self._close_ok.result(CLOSE_S)
            except TimeoutError:
                pass
        self._wire.end("it was closed", CLOSE_S)

    def abort(self) -> None:
        """Close at once, without a word: the broker takes it for a lost connection."""
        self._wire.abort("it was aborted")

    def __enter__(self) -> "ClientConnection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ClientConnection {self.url}>"
