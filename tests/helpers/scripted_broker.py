"""ScriptedBroker: the other end of a client's connection, which does what a test tells it.

It listens on a free port of this host. Each connection is greeted and its plain questions (open a
channel, confirm.select, basic.qos ...) are answered by themselves; everything that came stands in
`heard`. What else is to be answered a test scripts: `on(method, reply)`, where reply gets the
channel and the method and returns methods to say; or it says something unasked with `say`.

The protocol machine is Penstock's own, of the server's role; its bytes are checked against another
implementation elsewhere.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock.codec import spec
from penstock.codec.method import Method
from penstock.errors import AMQPConnectionError
from penstock.protocol.connection import (
    SERVER,
    AckRun,
    Connection,
    MethodReceived,
    ProtocolHeaderReceived,
    PublishRun,
)
from tests.helpers.inside import is_channel_open

WAIT_S = 120.0
CAPABILITIES = {"penstock.box": True, "publisher_confirms": True, "basic.nack": True}

Reply = Callable[[int, Any], list[Method]]


def plain_answers() -> dict[type, Reply]:
    """To what has one answer only."""
    pairs: list[tuple[type[Method], Method]] = [
        (spec.ChannelOpen, spec.ChannelOpenOk()),
        (spec.ChannelClose, spec.ChannelCloseOk()),
        (spec.ConfirmSelect, spec.ConfirmSelectOk()),
        (spec.TxSelect, spec.TxSelectOk()),
        (spec.TxCommit, spec.TxCommitOk()),
        (spec.TxRollback, spec.TxRollbackOk()),
        (spec.BasicQos, spec.BasicQosOk()),
        (spec.BasicGet, spec.BasicGetEmpty()),
    ]
    answers: dict[type, Reply] = {}
    for asked, answer in pairs:
        answers[asked] = lambda channel, method, answer=answer: [answer]  # type: ignore[misc]
    answers[spec.BasicConsume] = lambda channel, method: [
        spec.BasicConsumeOk(consumer_tag=method.consumer_tag)
    ]
    answers[spec.BasicCancel] = lambda channel, method: (
        [] if method.nowait else [spec.BasicCancelOk(consumer_tag=method.consumer_tag)]
    )
    return answers


class ScriptedBroker:
    """See the head of this module. Of several connections the last is the one that it talks to."""

    def __init__(self, *, heartbeat_s: int = 0, capabilities: dict[str, object] | None = None):
        self.heartbeat_s = heartbeat_s
        self.capabilities = CAPABILITIES if capabilities is None else capabilities
        self.heard: list[Any] = []  # methods and PublishRuns, as (channel, what)
        self.answers = plain_answers()
        self.greeting_error: AMQPConnectionError | None = None  # instead of connection.tune
        self.is_rude = False  # closes the socket instead of connection.tune
        self.connections = 0
        self.refusals = 0  # of the next connections
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._socket: socket.socket | None = None
        self._machine = Connection(SERVER)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}/"

    # ---- the test's side -----------------------------------------------------------------------

    def on(self, method: type, reply: Reply) -> None:
        """Answer this method so."""
        self.answers[method] = reply

    def say(self, channel: int, *methods: Method) -> None:
        """Say something, asked or not."""
        with self._changed:
            assert self._socket is not None
            for method in methods:
                self._socket.sendall(self._machine.send(channel, method))

    def deliver(self, channel: int, method: Method, body: bytes, header: bytes = b"\0\0") -> None:
        """A message with its content."""
        with self._changed:
            assert self._socket is not None
            self._socket.sendall(self._machine.send_content(channel, method, header, body))

    def raw(self, data: bytes) -> None:
        """Any bytes."""
        with self._changed:
            assert self._socket is not None
            self._socket.sendall(data)

    def drop(self) -> None:
        """End the connection without a word, if the client has not."""
        with self._changed, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)

    def wait(self, kind: type, count: int = 1) -> Any:
        """The last of so many of this kind that came, when they have come."""
        end = time.monotonic() + WAIT_S
        with self._changed:
            while True:
                found = [what for _, what in self.heard if isinstance(what, kind)]
                if len(found) >= count:
                    return found[-1]
                assert self._changed.wait(end - time.monotonic()), f"no {kind.__name__} came"

    def close(self) -> None:
        """Stop listening, and end the connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop()
        self._thread.join(WAIT_S)

    # ---- its thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self.refusals:
                self.refusals -= 1
                sock.close()
                continue
            with self._changed:
                self._socket, self._machine = sock, Connection(SERVER)
                self.connections += 1
            with sock:
                self._converse(sock)

    def _converse(self, sock: socket.socket) -> None:
        while True:
            try:
                data = sock.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            with self._changed:
                is_over = False
                try:
                    for event in self._machine.receive(data):
                        is_over = not self._handle(sock, event) or is_over
                except OSError:  # the client did not wait for the answer
                    is_over = True
                self._changed.notify_all()
            if is_over:
                return

    def _handle(self, sock: socket.socket, event: Any) -> bool:
        """False: the connection is over."""
        if isinstance(event, ProtocolHeaderReceived):
            properties: dict[str, object] = {
                "product": "Scripted",
                "capabilities": self.capabilities,
            }
            start = spec.ConnectionStart(
                version_major=0, version_minor=9, server_properties=properties,
                mechanisms=b"AMQPLAIN PLAIN", locales=b"en_US",
            )  # fmt: skip
            sock.sendall(self._machine.send(0, start))
        elif isinstance(event, MethodReceived):
            self.heard.append((event.channel, event.method))
            if event.channel == 0:
                return self._handle_connection(sock, event.method)
            self._answer(sock, event.channel, event.method)
        elif isinstance(event, AckRun | PublishRun):
            self.heard.append((event.channel, event))
            self._answer(sock, event.channel, event)
        return True

    def _answer(self, sock: socket.socket, channel: int, what: Any) -> None:
        reply = self.answers.get(type(what))
        if is_channel_open(self._machine, channel) or isinstance(what, spec.ChannelClose):
            for method in reply(channel, what) if reply is not None else []:
                sock.sendall(self._machine.send(channel, method))

    def _handle_connection(self, sock: socket.socket, method: Method) -> bool:
        answer: Method | None = None
        if isinstance(method, spec.ConnectionStartOk):
            if self.is_rude:
                return False
            error = self.greeting_error
            if error is not None:
                answer = spec.ConnectionClose(reply_code=error.code, reply_text=error.text)
            else:
                answer = spec.ConnectionTune(
                    channel_max=2047, frame_max=131072, heartbeat=self.heartbeat_s
                )
        elif isinstance(method, spec.ConnectionOpen):
            answer = spec.ConnectionOpenOk()
        elif isinstance(method, spec.ConnectionClose):
            answer = spec.ConnectionCloseOk()
        if answer is not None:
            sock.sendall(self._machine.send(0, answer))
        return not isinstance(method, spec.ConnectionClose | spec.ConnectionCloseOk)
