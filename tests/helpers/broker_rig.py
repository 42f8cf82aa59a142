"""BrokerRig: a vhost and its clients in one thread, on a simulated disk, without sockets.

The vhost's core is the real one; a client is the client role of protocol.Connection with its bytes
handed over directly. Nothing happens by itself: `turn` runs turns until there is nothing to do,
completing what the disk was asked for, so a test sees every step.

    rig = BrokerRig()
    c = rig.client()
    c.open(1)
    c.call(1, QueueDeclare(queue="q", durable=True))      -> QueueDeclareOk
    c.publish(1, "", "q", b"body")
    rig.turn()
    c.take(BasicDeliver) ...
"""

import random
from collections.abc import Callable
from typing import Any, TypeVar

from penstock.access.limits import Limits
from penstock.access.permissions import Identity, everything
from penstock.broker.connection_facts import ConnectionFacts
from penstock.broker.connection_handler import ConnectionHandler
from penstock.broker.exactly_once.batches import batch_manager
from penstock.broker.exactly_once.leases import lease_manager
from penstock.broker.output import Outlet, Piece
from penstock.broker.vhost import VHost, VHostSettings
from penstock.clock import ManualClock
from penstock.codec.fields import encode_table
from penstock.codec.frames import content_frames, method_frame
from penstock.codec.method import Method
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import BasicAck, BasicPublish, ChannelOpen, ChannelOpenOk
from penstock.protocol.connection import (
    CLIENT,
    AckRun,
    Connection,
    Event,
    MessageReceived,
    MethodReceived,
)
from penstock.protocol.states import ConnectionState
from penstock.storage.files.data_directory import DataDirectory
from penstock.storage.files.durability import DISK
from penstock.storage.files.options import StorageOptions
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import awaited_lsn, is_log_awaited
from tests.helpers.tiny_engine import OPTIONS

M = TypeVar("M", bound=Method)
PLACE = "/data"


class ListOutlet(Outlet):
    """Keeps what is sent; a test says whether it is writable."""

    def __init__(self) -> None:
        self.is_writable = True
        self.is_paused = False
        self.is_closed = False
        self.must_close = False
        self.client_first = False
        self.sent: list[bytes] = []

    def send(self, data: Piece) -> None:
        if not self.is_closed:
            self.sent.append(bytes(data))

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def closing(self) -> None:
        self.must_close = True

    def close(self, *, client_first: bool) -> None:
        self.is_closed = True
        self.client_first = client_first


class RigClient:
    """A client's side of one connection. `events`: what came and was not taken yet."""

    def __init__(self, rig: "BrokerRig", identity: Identity, properties: dict[str, Any]) -> None:
        self.rig = rig
        self.outlet = ListOutlet()
        facts = ConnectionFacts(
            name=f"c{len(rig.clients)}", peer_host="127.0.0.1", peer_port=1, host="127.0.0.1",
            port=5672, user=identity.name, vhost=rig.vhost.name,
            client_properties=encode_table(properties),
        )  # fmt: skip
        server = Connection.resumed(facts.frame_max, facts.channel_max)
        self.handler = ConnectionHandler(rig.vhost, server, self.outlet, facts, identity)
        self.protocol = Connection(CLIENT, frame_max=facts.frame_max)
        self.protocol.state = ConnectionState.OPENING
        self.events: list[Event] = []

    # ---- out -----------------------------------------------------------------------------------

    def send(self, channel: int, method: Method) -> None:
        """A method, handled at once; answers come with the next turn."""
        self.handler.receive(self.protocol.send(channel, method))

    def raw(self, data: bytes) -> None:
        """Any bytes."""
        self.handler.receive(data)

    def publish(
        self, channel: int, exchange: str, key: str, body: bytes, *, mandatory: bool = False,
        **properties: Any,
    ) -> None:  # fmt: skip
        """A basic.publish with its content."""
        method = BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory)
        props = BasicProperties(**properties).encode()
        self.raw(
            method_frame(channel, method.encode()) + content_frames(channel, props, body, 131072)
        )

    # ---- in ------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Parse what was sent."""
        sent, self.outlet.sent = self.outlet.sent, []
        for data in sent:
            for event in self.protocol.receive(data):
                self.events += single(event)

    def methods(self, kind: type[M]) -> list[M]:
        """Methods without content of this kind that came; they are taken."""
        self.pump()
        found = [
            e for e in self.events if isinstance(e, MethodReceived) and isinstance(e.method, kind)
        ]
        self.events = [e for e in self.events if e not in found]
        return [e.method for e in found if isinstance(e.method, kind)]

    def messages(self) -> list[MessageReceived]:
        """Messages with content that came; they are taken."""
        self.pump()
        found = [e for e in self.events if isinstance(e, MessageReceived)]
        self.events = [e for e in self.events if e not in found]
        return found

    def bodies(self) -> list[bytes]:
        """The bodies of messages that came."""
        return [message.body for message in self.messages()]

    def call(self, channel: int, method: Method, kind: type[M]) -> M:
        """Send, run turns, and give the answer, which must be of this kind."""
        self.send(channel, method)
        self.rig.turn()
        found = self.methods(kind)
        assert len(found) == 1, (method, found, self.events)
        return found[0]

    def open(self, channel: int = 1) -> "RigClient":
        """channel.open."""
        self.call(channel, ChannelOpen(), ChannelOpenOk)
        return self

    def lose(self) -> None:
        """The transport is gone."""
        self.outlet.is_closed = True
        self.handler.lost()
        self.rig.turn()


def single(event: Event) -> list[Event]:
    """A run of acks as as many methods."""
    if not isinstance(event, AckRun):
        return [event]
    return [
        MethodReceived(event.channel, BasicAck(delivery_tag=tag, multiple=multiple))
        for tag, multiple in zip(event.tags, event.multiples, strict=True)
    ]


class BrokerRig:
    """See the head of this module."""

    def __init__(
        self, *, mode: int = DISK, memory_bytes: int = 64 << 20,
        fs: FaultyFileSystem | None = None, limits: Limits | None = None,
        storage: StorageOptions = OPTIONS,
    ) -> None:  # fmt: skip
        self.fs = fs or FaultyFileSystem()
        self.clock = ManualClock()
        self.settings = VHostSettings(
            mode=mode, memory_bytes=memory_bytes, storage=storage, limits=limits or Limits()
        )
        self.events: list[tuple[str, str]] = []
        self.clients: list[RigClient] = []
        self.data: DataDirectory | None = None
        self.start()

    def start(self) -> None:
        """Open the vhost, as recovery finds it."""
        self.data = DataDirectory(self.fs, PLACE)
        self.is_due = False
        self.vhost = VHost(
            self.fs, self.data.vhost_path(b"/"), "/", self.settings, clock=self.clock,
            rng=random.Random(1), on_event=lambda kind, text: self.events.append((kind, text)),
        )  # fmt: skip
        self.refused: list[tuple[str, str]] = []
        self.vhost.on_refused = lambda address, text: self.refused.append((address, text))
        lease_manager(self.vhost)
        batch_manager(self.vhost)
        self.vhost.wake = self._wake

    def _wake(self) -> None:
        self.is_due = True

    def client(
        self, identity: Identity | None = None, called: str = "", **capabilities: bool
    ) -> RigClient:
        """One more client, whose connection is open. called: the name that it gives."""
        properties: dict[str, Any] = {"capabilities": capabilities} if capabilities else {}
        if called:
            properties["connection_name"] = called
        client = RigClient(self, identity or everything("guest"), properties)
        self.clients.append(client)
        self.turn()
        client.pump()
        client.events = []
        return client

    def turn(self, n: int = 2000) -> None:
        """Turns, until there is nothing to do and nothing on its way to the disk."""
        for _ in range(n):
            self.is_due = False
            has_more = self.vhost.turn()
            self.vhost.completed()
            is_pending = self.vhost.engine.journal.has_pending
            is_pending = is_pending or is_log_awaited(self.vhost.dispatch)
            is_unsettled = self.vhost.engine.log.settled(DISK) < self._wanted()
            if not (has_more or self.is_due or is_pending or is_unsettled):
                return
        raise AssertionError("it never comes to rest")

    def _wanted(self) -> int:
        """The LSN that somebody waits for."""
        waiting = awaited_lsn(self.vhost.dispatch)
        return waiting

    def tick(self, seconds: float = 0.1) -> None:
        """Time passes."""
        self.clock.advance(seconds)
        self.vhost.tick()
        self.turn()

    def restart(self, prepare: Callable[[], None] | None = None) -> None:
        """An orderly stop and a start. prepare: is called in between."""
        for client in self.clients:
            client.handler.lost()
        self.clients = []
        self.vhost.close()
        assert self.data is not None
        self.data.close()
        if prepare is not None:
            prepare()
        self.start()
