"""ConnectionHandler: one client's connection, between the transport and its channels.

    receive(bytes)   protocol.Connection parses; runs of publishes and acks and single methods go to
                     their channel; what it sends is gathered in the Output
    flush()          the end of the turn: all of it goes to the Outlet
    writable(bool)   the transport took it, or is full: channels may deliver, or not
    blocked(reason)  memory or disk are short: a connection that publishes is not read
    lost()           the transport is gone: channels end, exclusive queues are deleted

It is made when the supervisor has handed over the socket: connection.open was read, and the first
thing that is sent is connection.open-ok.

**Errors.** A ChannelError closes its channel, an AMQPConnectionError the connection; both with the
ids of the method that was being handled, and both are lines of the log (`on_refused`). What
precedes an error in the same bytes is handled first. A full disk in a method that needs it is 506
on the channel. Errors of the engine are raised: the vhost's process ends and is started again. Any
other error is unexpected: it is an event with its traceback, with 541 to the client, and other
clients are not affected. The same holds for answers in a later turn (`failed`).

**Slices.** What one read of the client asks for is handled as far as the budget of a slice goes
(dispatch.py). The rest is kept in `_held`, in order, and everything after it on this connection;
the client is not read, and a background task goes on with it, a slice at a time. A slice also ends
when the output is full, and the next begins when the client has taken that: so answers are built
one at a time, for a client that reads them.

**Blocked.** Publishes that arrive while the vhost is short of memory or disk are kept there too,
with everything after them on this connection, until that is over; the client gets
connection.blocked if it supports that. A client that only consumes is not affected.

**Large bodies** are sent by a background task of the connection, a piece whenever the transport
takes more, so no other client waits for a file to be read. What a slow client has not taken is not
read, and takes no RAM. A body that cannot be read, or is damaged, ends the connection (541) before
the content is complete, because there is no other way to notify the client; its message stays.

**Bounds.** A channel that waits for the disk keeps its events; beyond a thousand of them, or 4 MiB,
the client is not read. What is kept, unfinished bodies and unacked deliveries are counted for the
vhost (`account`). A message that has begun and makes no progress for a minute ends the connection:
it holds memory that others wait for. A user's channels and publish rate have limits (usage.py); a
user that publishes too fast is read later.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from penstock.access.permissions import Identity
from penstock.broker.asked_rights import RightsUnknown
from penstock.broker.background_tasks import AGAIN, ASLEEP, BackgroundTask
from penstock.broker.channel import (
    Channel,
    ChannelOwner,
    Delivered,
    SettleFailed,
    give_back_how,
)
from penstock.broker.channel_methods import (
    BASIC_METHODS,
    PURGE,
    TOPOLOGY_METHODS,
    audited_method,
)
from penstock.broker.connection_facts import (
    ConnectionFacts,
    capabilities,
    client_of,
    shown,
    tls_columns,
)
from penstock.broker.dispatch import (
    ARGUMENT_BYTES,
    CALL_STEPS,
    LOOK_STEPS,
    METHOD_STEPS,
    SHORT_STEPS,
    SlicedWork,
    TurnBudget,
)
from penstock.broker.in_flight import MESSAGES, signature
from penstock.broker.operations import on_penstock_call
from penstock.broker.output import Outlet, Output, Piece
from penstock.broker.publish import SpooledPublish
from penstock.broker.vhost import VHost
from penstock.codec.method import Method
from penstock.codec.spec import (
    METHODS,
    BasicCancel,
    BasicNack,
    BasicReject,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpenOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    PenstockCall,
)
from penstock.errors import (
    COMMAND_INVALID,
    CONNECTION_FORCED,
    INTERNAL_ERROR,
    RESOURCE_ERROR,
    AMQPConnectionError,
    AMQPError,
    ChannelError,
    CorruptionError,
    DiskFullError,
)
from penstock.protocol.connection import (
    AckRun,
    ChannelFault,
    Connection,
    Event,
    MethodReceived,
    PublishBegan,
    PublishEnded,
    PublishPart,
    PublishRun,
)

# Of waiting channels' events: beyond one of them the client is not read.
BACKLOG_MAX: Final = 1000
BACKLOG_BYTES_MAX: Final = 4 << 20
EVENT_BYTES: Final = 300  # one event, one argument or one acknowledgement, about
TEXT_BYTES_MAX: Final = 255
UNACKED_GRAIN: Final = 8  # deliveries of a channel: a change by fewer is counted later
LOST: Final = ("", 0, "the socket was closed without connection.close")
LOGGED_CHARS_MAX: Final = 1000  # of an error's text


class RestOfRun(Event):
    """What is left of a run: those from `at` on. bytes: of RAM, about."""

    def __init__(self, run: PublishRun | AckRun, at: int, size: int) -> None:
        self.channel: int = run.channel
        self.run: PublishRun | AckRun = run
        self.at: int = at
        self.bytes: int = size


class RestOfWork(Event):
    """Work for a channel that goes on. method: which began it; its errors have its ids."""

    def __init__(self, channel: int, work: SlicedWork, method: Method | None) -> None:
        self.channel: int = channel
        self.work: SlicedWork = work
        self.method: Method | None = method


class RestOfInput(Event):
    """What was received and is not parsed yet. It is the last event that is held."""

    def __init__(self, size: int) -> None:
        self.bytes: int = size


class BadFrame(Event):
    """A mistake of the client for which the connection ends, after all that came before it."""

    def __init__(self, error: AMQPConnectionError) -> None:
        self.error: AMQPConnectionError = error


class ConnectionHandler(ChannelOwner):
    """One client's connection. is_closing: connection.close was sent and is not answered yet.
    is_closed: nothing more is sent; the transport is closed when what was sent is out."""

    def __init__(
        self, vhost: VHost, connection: Connection, outlet: Outlet, facts: ConnectionFacts,
        identity: Identity,
    ) -> None:  # fmt: skip
        self.vhost: VHost = vhost
        self.connection: Connection = connection
        self.outlet: Outlet = outlet
        self.facts = facts
        self.identity = identity
        # Called with the client's new secret, and answered with `renewed`; None: any is accepted.
        self.on_new_secret: Callable[[ConnectionHandler, bytes], None] | None = None
        self.name = facts.name
        self.channels = {}
        self.is_open_to_output = outlet.is_writable
        self.has_unacked_room = identity.name not in vhost.usage.full
        self.has_output_room = identity.name not in vhost.usage.stuffed
        self.is_closing: bool = False
        self.is_closed: bool = False
        self.is_ended_by_server = False
        self.has_published: bool = False
        self.received_bytes: int = 0
        self.received_pieces: int = 0
        self.sent_bytes: int = 0
        self.sent_pieces: int = 0
        self.output: Output = Output(vhost.dispatch, facts.frame_max)
        self.output.sender = self
        self._cancels: list[tuple[Channel, BasicCancel]] | None = None
        # Kept for later slices, or while the vhost is short of something. The first may be a rest.
        self._held: deque[Event] = deque()
        self._held_bytes: int = 0
        self._rests: int = 0  # what the event that was handled last has left, in front
        self._is_short: bool = False  # the rest waits for memory or disk
        self._method: Method | None = None  # which is being handled
        self._budget: TurnBudget = vhost.budget
        self._later: HeldEvents = HeldEvents(self)
        self._in_flight_name: bytes = signature(facts.user, MESSAGES)
        self._backlog: int = 0
        self._backlog_bytes: int = 0
        self._must_end: bool = False  # connection.close has come, and waits for the backlog
        self._returning: Channel | None = None  # whose requeues go back at the end of their run
        self._said_goodbye: bool = False  # the client, with connection.close
        self._end: tuple[str, int, str] = LOST  # who ended it, with which code and text
        self._is_paused: bool = False
        self._is_lost: bool = False
        self._told_blocked: bool = False
        self._counted_bytes: int = 0
        self._large_bytes: int = 0  # of large bodies that are being sent
        self._unfinished_bytes: int = 0
        self._is_throttled: bool = False
        self._sending: SendingBodies = SendingBodies(self)
        self._may_send_piece: bool = False  # the transport takes more: one piece, if not others
        # Channel -> (what was unfinished, since when), as of the last look.
        self._stalled: dict[int, tuple[int, float]] = {}
        connection.room = vhost.body_room
        self._capabilities: frozenset[str] = capabilities(facts.client_properties)
        self._note_begin()
        self._say(0, ConnectionOpenOk())

    def _note_begin(self) -> None:
        vhost = self.vhost
        vhost.usage.connections += 1
        vhost.counts.connection_created += 1
        vhost.handlers.add(self)
        vhost.events.connection(self.facts, is_new=True)

    def hold_cancels(self) -> None:
        if self._cancels is None:
            self._cancels = []

    def cancel(self, channel: Channel, method: BasicCancel) -> None:
        if self._cancels is None:
            channel.send(method)
        else:
            self._cancels.append((channel, method))

    def send_cancels(self) -> None:
        cancels, self._cancels = self._cancels, None
        for channel, method in cancels or ():
            if not channel.is_closed:
                channel.send(method)

    # ---- what the transport does ---------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Handle bytes from the client. Raises errors of the engine."""
        if self.is_closed:
            return
        self.received_bytes += len(data)
        self.received_pieces += 1
        self.vhost.counts.received_bytes += len(data)
        connection = self.connection
        if not self._held:
            self._budget.begin()
            self._rests = 0
        connection.steps_max = self._read_steps()
        try:
            events = connection.receive(data)
        except AMQPConnectionError as error:
            self._handle_all(connection.events_before_error)
            if self._held and not self._is_short:
                self._keep_held(BadFrame(error))
            else:
                self.fail(error)
        else:
            self._handle_all(events)
        self.account()

    def writable(self, is_writable: bool) -> None:
        """Note that the transport takes more, or does not."""
        if is_writable != self.is_open_to_output and not self.is_closed:
            self.is_open_to_output = is_writable
            if is_writable and self.output.lanes:
                self._may_send_piece = True
                self.vhost.background.wake(self._sending)
            if is_writable and self._held and not self._is_short:
                self.vhost.background.wake(self._later)
            for channel in self.channels.values():
                channel.update()

    def lost(self) -> None:
        """Note that the transport is gone: end the channels."""
        if self._is_lost:
            return
        self._is_lost = self.is_closed = True
        self._note_end()
        self._budget.begin()
        self._drop_held()
        self.connection.forget_unfinished()
        self.vhost.usage.connections -= 1
        self.vhost.counts.connection_closed += 1
        self._end_channels()
        self.vhost.handlers.discard(self)
        self.vhost.events.connection(self.facts, is_new=False)
        self.account()
        # Cycles: only a full collection would free them, and there is none in a busy process.
        self.output.sender = self._later.handler = self._sending.handler = None
        self._returning = None
        self.on_new_secret = None

    def _note_end(self) -> None:
        by, code, text = self._end
        facts = self.facts
        self.vhost.counts.closed_connections.append(
            {
                "name": self.name,
                "user": facts.user,
                "vhost": facts.vhost,
                "connected_at": facts.connected_at_ms,
                "closed_at": self.vhost.clock.wall_ms(),
                "closed_by": by,
                "code": code,
                "text": text,
            }
        )

    def flush(self) -> None:
        pieces = self.output.take()
        if self._is_lost or not pieces:
            return
        try:
            for piece in pieces:
                self._send(piece)
        except Exception as error:  # noqa: BLE001 - it is reported
            # The client misses bytes now: nothing more can be said to it.
            self._internal_error(error)
            self.is_closed = True
            self.is_closing = False
            self._end_channels()
        if self.is_closed and not self.is_closing:
            self.outlet.close(client_first=self._said_goodbye)
        else:
            self._count_unacked()
            self.writable(self.outlet.is_writable)
            if self.output.lanes:
                self.vhost.background.wake(self._sending)
                self.account()

    def _send(self, piece: Piece) -> None:
        self.sent_bytes += len(piece)
        self.sent_pieces += 1
        self.vhost.counts.sent_bytes += len(piece)
        self.outlet.send(piece)

    def send_piece(self) -> int:
        """Send the next piece of a large body, if the transport takes more: a step of a background
        task."""
        output = self.output
        if output.has_frames():  # the body's own header frame may be among them
            self.flush()
        if self._is_lost or self.is_closed or self.is_closing or not output.lanes:
            return ASLEEP
        # Small messages of other channels must not keep the transport full for ever.
        if not self.outlet.is_writable and not self._may_send_piece:
            return ASLEEP
        self._may_send_piece = False
        try:
            freed, parts = output.next_frames()
        except (CorruptionError, OSError) as error:
            self._body_failed(error)
            return ASLEEP
        for part in parts:
            self._send(part)
        if freed >= 0:
            self.account()
            self._look_at_reading()
            channel = self.channels.get(freed)
            if channel is not None:
                channel.body_sent()
        self.writable(self.outlet.is_writable)
        return AGAIN

    def _body_failed(self, error: Exception) -> None:
        """End the connection: the client has a part of a body whose rest cannot be read. The client
        is not to blame."""
        if self.vhost.engine.failed is not None:
            raise error
        self.vhost.event(
            "corruption", f"connection {self.name} ends, a body is unreadable: {error}"
        )
        self.is_ended_by_server = True
        text = "the body of a message cannot be read; it is left in its queue"
        self.fail(AMQPConnectionError(INTERNAL_ERROR, text))
        self.account()

    def sending_failed(self, error: Exception) -> None:
        """End the connection after an unexpected error of a step: the client misses bytes."""
        self._internal_error(error)
        self.is_ended_by_server = True
        self.fail(AMQPConnectionError(INTERNAL_ERROR, f"{type(error).__name__}: {error}"))

    def on_output_full(self) -> None:
        if self.vhost.dispatch.is_serving:  # a limit would take what the client is there for
            self.flush()
        else:
            self.writable(False)

    def set_identity(self, identity: Identity) -> None:
        """Check publishes and consumers again after the user's permissions changed."""
        asks = self.identity
        if asks.asks_from:
            identity = identity.asking(
                asks.asks_from, resources=asks.asks_resources, topics=asks.asks_topics
            )
        self.identity = identity
        for channel in self.channels.values():
            channel.check_rights()

    def forget_asked_routes(self) -> None:
        if self.identity.asks_from:
            for channel in self.channels.values():
                channel.publisher.forget_routes()

    def renewed(self, identity: Identity) -> None:
        """Answer the client's new secret, which was accepted."""
        self.set_identity(identity)
        self._say(0, ConnectionUpdateSecretOk())

    def has_capability(self, name: str) -> bool:
        return name in self._capabilities

    # ---- what the vhost does -------------------------------------------------------------------

    def blocked(self, reason: str) -> None:
        """Note that the vhost is short of `reason` ("memory", "disk" ...), or, "", no longer."""
        if reason:
            if self.has_published:
                self._tell_blocked()
            return
        if self._told_blocked:
            self._told_blocked = False
            self._say(0, ConnectionUnblocked())
        self._go_on_held()

    def _tell_blocked(self) -> None:
        if not self._told_blocked and self.has_capability("connection.blocked"):
            self._told_blocked = True
            text = f"low on {self.vhost.blocked_reason}: {self.vhost.blocked_cause()}"
            self._say(0, ConnectionBlocked(reason=short(text.removesuffix(": "))))

    def shutdown(self, code: int = CONNECTION_FORCED, text: str = "broker forced") -> None:
        self.is_ended_by_server = True
        self.fail(AMQPConnectionError(code, text))

    def account(self) -> None:
        """Report to the vhost how much RAM the connection takes beyond its queues."""
        now = 0 if self._is_lost else self.connection.unfinished_bytes
        if now != self._unfinished_bytes:
            self.vhost.unfinished_bytes += now - self._unfinished_bytes
            self._unfinished_bytes = now
        if not self._is_lost:
            now += self._held_bytes + self._backlog_bytes
        change = now - self._counted_bytes
        self._counted_bytes = now
        if change:
            self.vhost.add_other(change)
        large = self.output.large_bytes() if self.output.lanes and not self._is_lost else 0
        if large != self._large_bytes:
            change, self._large_bytes = large - self._large_bytes, large
            self.vhost.add_output(self.identity.name, change)
        self._count_unacked()

    def _count_unacked(self) -> None:
        change = 0
        for channel in self.channels.values():
            now, before = channel.unacked.count, channel.counted_unacked
            if now != before and (not now or abs(now - before) >= UNACKED_GRAIN):
                change += channel.count_bytes()
        if change:
            self.vhost.count_unacked(self.identity.name, change)

    def look_at_room(self, user: str) -> None:
        if user == self.identity.name:
            self.has_unacked_room = user not in self.vhost.usage.full
            self.has_output_room = user not in self.vhost.usage.stuffed
            for channel in self.channels.values():
                channel.update()

    def held(self) -> tuple[int, str]:
        return (
            self.connection.unfinished_bytes,
            f"connection {self.name} of user '{self.facts.user}'",
        )

    def free_memory(self, reason: str) -> None:
        self.fail(AMQPConnectionError(RESOURCE_ERROR, reason))
        self.account()

    def check_stalled(self, now_s: float, most_s: float) -> None:
        is_read = not self._is_paused and self.is_open_to_output
        unfinished = self.connection.unfinished() if is_read and not self.is_closed else {}
        before, self._stalled = self._stalled, {}
        for number, left in unfinished.items():
            mark = left if number else self.received_bytes
            old = before.get(number)
            since_s = now_s if old is None or old[0] != mark else old[1]
            self._stalled[number] = (mark, since_s)
            if now_s - since_s > most_s:
                where = f"the message on channel {number}" if number else "a frame"
                text = f"{where} has begun and made no progress for {most_s:g} s"
                self.vhost.event("warning", f"connection {self.name} ends: {text}")
                self.free_memory(text)
                return

    def check_timeouts(self, now_s: float) -> None:
        for channel in list(self.channels.values()):
            channel.check_timeouts(now_s)

    # ---- events --------------------------------------------------------------------------------

    def _handle_all(self, events: list[Event]) -> None:
        """Handle what was read of the client: a slice of it, the rest is held."""
        held = self._held
        for event in events:
            if self.is_closed:
                break
            if held:
                self._keep_held(event)
            elif self.is_closing:
                self._handle_closing(event)
            elif self._may_begin(event):
                self._guarded(event)
            else:
                self._keep_held(event)
        self._end_slice()

    def handle_held(self) -> int:
        """Handle a slice of what is held: a step of a background task."""
        if self._is_short or self._is_lost:
            return ASLEEP
        if self.output.is_full():
            self.flush()
        if not self.is_open_to_output:
            return ASLEEP
        held = self._held
        in_flight = self.vhost.in_flight
        self._budget.begin_later()
        self._keep_input()
        in_flight.begin_read(self._in_flight_name)
        while held and not self.is_closed:
            event = held[0]
            is_free = self.is_closing and not isinstance(event, RestOfInput)
            if not is_free and not self._may_begin(event):
                break
            held.popleft()
            self._held_bytes -= event_bytes(event)
            if isinstance(event, RestOfInput):
                self._parse_rest()
                continue
            if self.is_closing:
                self._handle_closing(event)
                continue
            self._rests = 0
            self._guarded(event)
            if self._rests:
                break
        self._end_slice()
        in_flight.end_read()
        self.account()
        return AGAIN if held and not self._is_short else ASLEEP

    def _end_slice(self) -> None:
        self._keep_input()
        self._give_back()
        if self._held and not self._is_short:
            self.vhost.background.wake(self._later)
        self._look_at_reading()

    def _may_begin(self, event: Event) -> bool:
        """Return whether the event may be handled in this slice. What can be cut looks itself."""
        if isinstance(event, RestOfInput):
            return self._budget.may_begin(LOOK_STEPS)
        if not isinstance(event, MethodReceived):
            return True
        if self.output.is_full():
            return False
        return self._budget.may_begin(steps_of(event))

    def _read_steps(self) -> int:
        """Return how many steps of frames may be parsed now, Connection.steps_max."""
        left = self._budget.left
        return left << 1 if left > 0 else SHORT_STEPS

    def _parse_rest(self) -> None:
        """Parse more of what was received, and hold its events. Nothing else is held."""
        connection = self.connection
        connection.steps_max = self._read_steps()
        self._budget.left -= LOOK_STEPS
        try:
            events = connection.go_on()
        except AMQPConnectionError as error:
            events = [*connection.events_before_error, BadFrame(error)]
        for event in events:
            self._keep_held(event)
        self._keep_input()

    def _keep_input(self) -> None:
        """Hold what is not parsed yet, behind everything else."""
        if not self.connection.has_more or self.is_closed:
            return
        held = self._held
        if not held or not isinstance(held[-1], RestOfInput):
            self._keep_held(RestOfInput(self.connection.tail_bytes))

    def _keep_held(self, event: Event) -> None:
        """Keep an event behind those that are held."""
        self._held.append(event)
        self._held_bytes += event_bytes(event)

    def _keep_rest(self, rest: Event) -> None:
        """Keep what is left of the event that is handled, before those that are held."""
        self._rests += 1
        self._held.appendleft(rest)
        self._held_bytes += event_bytes(rest)

    def _keep_behind_rests(self, event: Event) -> None:
        """Keep an event that could not begin, because something before it left a rest."""
        self._held.insert(self._rests, event)
        self._held_bytes += event_bytes(event)
        self._rests += 1

    def _drop_held(self) -> None:
        for event in self._held:
            if isinstance(event, RestOfWork):
                event.work.abandon()
        self._held.clear()
        self._held_bytes = 0

    def do_in_slices(self, channel: Channel, work: SlicedWork) -> None:
        self._do(RestOfWork(channel.number, work, self._method))

    def _do(self, event: RestOfWork) -> None:
        work = event.work
        if event.channel not in self.channels:
            work.abandon()
            return
        try:
            is_done = work.step()
        except BaseException:
            if self.vhost.engine.failed is None:
                work.abandon()
            raise
        if not is_done:
            self._keep_rest(event)

    def _give_back(self) -> None:
        """Put back together what a run of basic.reject and basic.nack requeued."""
        channel, self._returning = self._returning, None
        if channel is None:
            return
        try:
            work = channel.give_back()
            if work is not None:
                self._do(RestOfWork(channel.number, work, None))
        except Exception as error:  # noqa: BLE001 - it is answered or reported
            self.failed(channel, error)

    def _guarded(self, event: Event) -> None:
        """Handle an event; an error ends its channel or the connection."""
        try:
            if self._returning is not None and not goes_on_returning(event, self._returning):
                self._give_back()
                if self._rests:
                    self._keep_behind_rests(event)
                    return
            self._handle(event)
        except RightsUnknown as unknown:
            if self.vhost.rights.send is None:
                self._went_wrong(getattr(event, "channel", 0), unknown, event)
                return
            self._keep_rest(event)
            self._wait_for_rights(unknown)
        except Exception as error:  # noqa: BLE001 - it is answered or reported
            self._went_wrong(getattr(event, "channel", 0), error, event)

    def _wait_if_unknown(self, channel: Channel) -> None:
        """Hold everything if what the publisher needs is not known, or not ready, yet."""
        publisher = channel.publisher
        unknown, publisher.unknown = publisher.unknown, None
        if unknown is not None:
            self._wait_for_rights(unknown)
        if publisher.is_awaiting_log:
            publisher.is_awaiting_log = False
            self.vhost.engine.when_ready(self._go_on_held)
            self._is_short = True

    def _wait_for_rights(self, unknown: RightsUnknown) -> None:
        """Hold everything until a server has said what the user may do."""
        self.vhost.rights.when_known(unknown.question, self._go_on_held)
        self._is_short = True

    def _go_on_held(self) -> None:
        if self._is_short:
            self._is_short = False
            self.vhost.background.wake(self._later)

    def failed(self, channel: Channel, error: Exception) -> None:
        self._went_wrong(channel.number, error, None)

    def _went_wrong(self, number: int, error: Exception, event: Event | None) -> None:
        """Close the channel or the connection for an error. Raises it if the engine has failed.
        event: what was being handled; None: a later answer."""
        refusal: AMQPError
        if isinstance(error, ChannelError | AMQPConnectionError):
            refusal = error
        elif isinstance(error, DiskFullError):
            refusal = ChannelError(RESOURCE_ERROR, f"the disk is full: {error}")
        else:
            self._internal_error(error)
            refusal = AMQPConnectionError(INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        if event is not None:
            refusal = with_ids(refusal, event)
        if isinstance(refusal, ChannelError):
            self.close_channel(number, refusal)
        else:
            self.fail(refusal)

    def _internal_error(self, error: Exception) -> None:
        """Report an unexpected error. Raises it if the engine has failed."""
        if self.vhost.engine.failed is not None:
            raise error
        self.vhost.dispatch.internal_error(f"connection {self.name}", error)

    def _handle(self, event: Event) -> None:
        if isinstance(event, PublishRun):
            channel = self._ready(event.channel, event)
            if channel is not None:
                self._publish(channel, event, 0)
        elif isinstance(event, AckRun):
            channel = self._ready(event.channel, event)
            if channel is not None:
                self._acknowledge(channel, event, 0)
        elif isinstance(event, MethodReceived):
            self._budget.left -= steps_of(event)
            self._method = event.method
            if event.channel:
                self._on_channel_method(event)
            else:
                self._on_connection_method(event.method)
        elif isinstance(event, PublishBegan | PublishPart | PublishEnded):
            channel = self._ready(event.channel, event)
            if channel is not None:
                self._on_spooled(channel, event)
        else:
            self._handle_rest(event)

    def _handle_rest(self, event: Event) -> None:
        """Handle what is left of an event, or a mistake of the client."""
        if isinstance(event, RestOfRun):
            channel = self._ready(event.channel, event)
            if channel is not None and isinstance(event.run, AckRun):
                self._acknowledge(channel, event.run, event.at)
            elif channel is not None and isinstance(event.run, PublishRun):
                self._publish(channel, event.run, event.at, event.bytes)
        elif isinstance(event, RestOfWork):
            self._method = event.method
            self._do(event)
            channel = self.channels.get(event.channel)
            if channel is not None and channel.returning:
                self._returning = channel
        elif isinstance(event, BadFrame) or (
            isinstance(event, ChannelFault) and event.channel in self.channels
        ):
            raise event.error

    def _ready(self, number: int, event: Event) -> Channel | None:
        """Return the channel that handles the event now. None: the channel waits, and the event is
        kept; or an earlier event in the same bytes has closed it with an error."""
        channel = self.channels.get(number)
        if channel is not None and channel.is_waiting:
            self._keep(channel, event)
            return None
        return channel

    def _publish(self, channel: Channel, run: PublishRun, at: int, size: int = 0) -> None:
        """Publish those from `at` on. size: bytes of what is left of the run; 0: not known yet."""
        self.has_published = True
        if self.vhost.blocked_reason:
            self._hold(RestOfRun(run, at, size or event_bytes(run)))
            return
        done = channel.publisher.run(run.routes, run.headers, run.bodies, at)
        if self.vhost.limits.has_publish_rates:
            self._count_published(done - at)
        if done < len(run.routes):
            rest = RestOfRun(run, done, size or event_bytes(run))
            if channel.publisher.is_sliced:
                self._keep_rest(rest)
                self._wait_if_unknown(channel)
            else:
                self._hold(rest)

    def _acknowledge(self, channel: Channel, run: AckRun, at: int) -> None:
        """Handle acknowledgements from number `at` on."""
        done = channel.ack_run(run.tags, run.multiples, at)
        if done < len(run.tags):
            self._keep_rest(RestOfRun(run, done, event_bytes(run)))

    def _count_published(self, count: int) -> None:
        """Stop reading for a while from a user who publishes faster than the limit allows."""
        vhost = self.vhost
        if self._is_throttled or not vhost.limits.has_publish_rates:
            return
        now_s = vhost.clock.monotonic()
        delay_s = vhost.usage.delay_s(self.facts.user, count, now_s)
        if delay_s > 0.0:
            self._is_throttled = True
            self._look_at_reading()
            vhost.timers.call_at(now_s + delay_s, self._unthrottle)

    def _unthrottle(self) -> None:
        self._is_throttled = False
        self._look_at_reading()

    def _hold(self, event: Event) -> None:
        """Keep the event until there is memory or disk again."""
        self._keep_rest(event)
        self._is_short = True
        self._tell_blocked()
        self.vhost.update_alarms()

    def _on_spooled(self, channel: Channel, event: Event) -> None:
        """Handle a part of a large body. A body begins only when there is room, and then
        continues."""
        if isinstance(event, PublishBegan):
            self.has_published = True
            if self.vhost.blocked_reason:
                self._hold(event)
                return
            route = channel.publisher.route_in_slices(event.route)
            if route is None:
                self._keep_rest(event)
                self._wait_if_unknown(channel)
            else:
                channel.spooled = SpooledPublish(channel.publisher, route, event.header)
            return
        spooled = channel.spooled
        assert spooled is not None, "its beginning came before"
        if isinstance(event, PublishPart):
            spooled.write(event.data)
            return
        if not spooled.find_targets():
            self._keep_rest(event)
            self._wait_if_unknown(channel)
            return
        channel.spooled = None
        spooled.finish()
        self._count_published(1)

    def _on_channel_method(self, event: MethodReceived) -> None:
        number, method = event.channel, event.method
        if isinstance(method, ChannelOpen):
            self._open_channel(number)
            return
        if isinstance(method, ChannelCloseOk):
            return
        channel = self.channels.get(number)
        if channel is None:
            if isinstance(method, ChannelClose):  # it crossed with ours
                self._say(number, ChannelCloseOk())
            return
        must_wait = channel.is_committing or channel.backlog or not isinstance(method, ChannelClose)
        if channel.is_waiting and must_wait:
            self._keep(channel, event)
        elif isinstance(method, ChannelClose):
            self._drop_channel(number)
            self._say(number, ChannelCloseOk())
        elif isinstance(method, PenstockCall):
            in_flight = self.vhost.in_flight
            in_flight.begin(self.identity.name, method.op)
            try:
                on_penstock_call(channel, method)
            finally:
                in_flight.end()
        else:
            handler = BASIC_METHODS.get(method.INDEX)
            if handler is not None:
                handler(channel, method)
                if channel.returning:
                    self._returning = channel
            else:
                self._on_topology_method(channel, method)

    def _on_topology_method(self, channel: Channel, method: Method) -> None:
        handler = TOPOLOGY_METHODS.get(method.INDEX)
        if handler is None:
            raise AMQPConnectionError(COMMAND_INVALID, "unimplemented method")
        router = self.vhost.router
        before = router.version, router.binding_count
        in_flight = self.vhost.in_flight
        in_flight.begin(self.identity.name, method.NAME)
        events = self.vhost.events
        events.user = self.identity.name
        try:
            handler(channel, method)
        finally:
            events.user = ""
            in_flight.end()
        on_audit = self.vhost.on_audit
        if on_audit is not None:
            audited = audited_method(channel, method)
            # A purge changes no route; a stream is declared when its files exist.
            is_changed = before != (router.version, router.binding_count)
            if is_changed or audited[0] == PURGE or channel.is_waiting:
                on_audit(audited[0], self.identity.name, client_of(self.name), audited[1])

    def _open_channel(self, number: int) -> None:
        self.vhost.usage.channel_opened(self.identity)
        self.vhost.counts.channel_created += 1
        self.channels[number] = Channel(self, self.vhost, number, self.output)
        self.vhost.events.channel(self.name, number, self.identity.name, is_new=True)
        self._say(number, ChannelOpenOk())

    def _on_connection_method(self, method: Method) -> None:
        if isinstance(method, ConnectionClose):
            if method.reply_code:
                self._end = "client", method.reply_code, method.reply_text
            if self._is_busy():  # what came before is handled first
                self._must_end = True
                return
            self._end_channels()
            self._say(0, ConnectionCloseOk())
            self.is_closed = self._said_goodbye = True
        elif isinstance(method, ConnectionUpdateSecret):
            if self.on_new_secret is not None:
                self.on_new_secret(self, method.new_secret)
            else:  # a password was checked at the login, and counts until it is closed
                self._say(0, ConnectionUpdateSecretOk())
        else:
            raise AMQPConnectionError(COMMAND_INVALID, f"unexpected {method.NAME}")

    def _handle_closing(self, event: Event) -> None:
        """Wait for close-ok after connection.close was sent; ignore everything else."""
        if isinstance(event, MethodReceived):
            if isinstance(event.method, ConnectionClose):  # `flush` sends the answer, and closes
                self._say(0, ConnectionCloseOk())
                self.is_closing = False
                self.is_closed = True
            elif isinstance(event.method, ConnectionCloseOk):
                self.is_closing = False
                self.is_closed = True
                self.outlet.close(client_first=False)

    # ---- waiting channels, and reading ---------------------------------------------------------

    def _keep(self, channel: Channel, event: Event) -> None:
        channel.backlog.append(event)
        self._backlog += 1
        self._backlog_bytes += event_bytes(event)

    def go_on(self, channel: Channel) -> None:
        """See ChannelOwner. What the channel kept comes before all that is held for it."""
        backlog = channel.backlog
        was_kept = len(backlog) > 0
        if was_kept:
            self._budget.begin()
            self._rests = 0
        while backlog and not channel.is_waiting and not channel.is_closed:
            event = backlog.popleft()
            assert isinstance(event, Event), "nothing else is kept"
            self._backlog -= 1
            self._backlog_bytes -= event_bytes(event)
            if self._may_begin(event):
                self._guarded(event)
            else:
                self._keep_rest(event)
            if self._rests:
                self._hold_backlog(channel)
                break
        if was_kept:
            self.account()
        if self._must_end and not self.is_closing and not self._is_busy():
            self._must_end = False
            self._keep_held(MethodReceived(0, ConnectionClose()))
        self._end_slice()

    def _is_busy(self) -> bool:
        """Return whether channels wait with what must be done before the connection ends."""
        if self._backlog:
            return True
        return any(channel.is_committing for channel in self.channels.values())

    def _hold_backlog(self, channel: Channel) -> None:
        """Hold what a channel has kept, behind what the event before it has left."""
        held = self._held
        rests = [held.popleft() for _ in range(min(self._rests, len(held)))]
        backlog = channel.backlog
        while backlog:
            event = backlog.pop()
            assert isinstance(event, Event), "nothing else is kept"
            size = event_bytes(event)
            self._backlog -= 1
            self._backlog_bytes -= size
            held.appendleft(event)
            self._held_bytes += size
        held.extendleft(reversed(rests))

    def _look_at_reading(self) -> None:
        is_behind = self._backlog > BACKLOG_MAX or self._backlog_bytes > BACKLOG_BYTES_MAX
        if self.output.lanes and self.output.waiting_bytes() > BACKLOG_BYTES_MAX:
            is_behind = True
        pause = bool(self._held) or is_behind or self._is_throttled
        if pause != self._is_paused:
            self._is_paused = pause
            if pause:
                self.outlet.pause()
            elif not self.is_closed:
                self.outlet.resume()

    # ---- ends ----------------------------------------------------------------------------------

    def close_channel(self, number: int, error: AMQPError) -> None:
        """End a channel with an error."""
        self._log_refusal(number, error)
        channel = self.channels.get(number)
        backlog = list(channel.backlog) if channel is not None else []
        self._drop_channel(number)
        self._say(
            number,
            ChannelClose(
                reply_code=error.code, reply_text=short(error.text), class_id=error.class_id,
                method_id=error.method_id,
            ),
        )  # fmt: skip
        if backlog and is_close(backlog[-1]):  # it crosses with ours
            self._say(number, ChannelCloseOk())

    def fail(self, error: AMQPError) -> None:
        """End the connection with an error."""
        if self.is_closing or self.is_closed:
            return
        if error.code != CONNECTION_FORCED:
            self._log_refusal(0, error)
        self._end = "server", error.code, short(error.text)
        self._end_channels()
        if self._held and is_goodbye(self._held[-1]):
            self._must_end = True
        self._drop_held()
        self._say(
            0,
            ConnectionClose(
                reply_code=error.code, reply_text=short(error.text), class_id=error.class_id,
                method_id=error.method_id,
            ),
        )  # fmt: skip
        self.is_closing = True
        if self._must_end:  # it crosses with ours
            self._must_end = False
            self._say(0, ConnectionCloseOk())
        if self.connection.has_more:  # the client's close-ok comes behind it
            self._is_short = False
            self.vhost.background.wake(self._later)
        self._look_at_reading()
        self.outlet.closing()

    def _log_refusal(self, number: int, error: AMQPError) -> None:
        """Write a line of the log, with what RabbitMQ has in its own: who, where, which method,
        why."""
        facts = self.facts
        kind = METHODS.get(error.class_id << 16 | error.method_id)
        what = f"{kind.NAME}: " if kind is not None else ""
        where = f"channel {number}" if number else "the connection"
        self.vhost.on_refused(
            facts.peer_host,
            f"error on connection {self.name} (vhost '{facts.vhost}', user '{facts.user}'), "
            f"{where} is closed: {what}{error.text[:LOGGED_CHARS_MAX]}",
        )

    def _drop_channel(self, number: int) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            self.vhost.usage.channel_closed(self.identity.name)
            self.vhost.counts.channel_closed += 1
            self.vhost.events.channel(self.name, number, self.identity.name, is_new=False)
            self._backlog -= len(channel.backlog)
            for event in channel.backlog:
                assert isinstance(event, Event), "nothing else is kept"
                self._backlog_bytes -= event_bytes(event)
            channel.close()
            change = channel.count_bytes()
            if change:
                self.vhost.count_unacked(self.identity.name, change)

    def _end_channels(self) -> None:
        for number in list(self.channels):
            self._drop_channel(number)
        given = [Delivered(source, tag, None) for source, tag in self.output.abandon()]
        if given:
            SettleFailed(self.vhost, given, give_back_how(self)).finish_later()
        self.vhost.table.owner_gone(self)

    def _say(self, number: int, method: Method) -> None:
        """Send a method that the protocol's state machine must see."""
        self.output.writer(number).write(self.connection.send(number, method))

    def octets(self) -> dict[str, int]:
        return {"recv_oct": self.received_bytes, "send_oct": self.sent_bytes}

    def pieces(self) -> tuple[int, int]:
        return self.received_pieces, self.sent_pieces

    def changed_channels(self, now_s: float) -> list[tuple[str, dict[str, int]]]:
        found: list[tuple[str, dict[str, int]]] = []
        for number, channel in self.channels.items():
            stats = channel.changed_stats(now_s)
            if stats is not None:
                found.append((f"{self.name} ({number})", stats))
        return found

    def info(self) -> dict[str, Any]:
        facts = self.facts
        state = "running"
        if self._told_blocked or self._is_short:
            state = "blocked"
        elif not (self.is_open_to_output and self.has_output_room and self.has_unacked_room):
            state = "flow"
        return {
            "name": facts.name,
            "user": facts.user,
            "vhost": facts.vhost,
            "peer_host": facts.peer_host,
            "peer_port": facts.peer_port,
            "host": facts.host,
            "port": facts.port,
            "channels": len(self.channels),
            "state": "closing" if self.is_closing else state,
            "frame_max": facts.frame_max,
            "channel_max": facts.channel_max,
            "timeout": facts.heartbeat_s,
            "connected_at": facts.connected_at_ms,
            "recv_oct": self.received_bytes,
            "recv_cnt": self.received_pieces,
            "send_oct": self.sent_bytes,
            "send_cnt": self.sent_pieces,
            "send_pend": 0,
            "protocol": "AMQP 0-9-1",
            "auth_mechanism": facts.auth_mechanism,
            "client_properties": shown(facts.client_properties),
            "ssl": facts.tls is not None,
            **tls_columns(facts.tls or {}),
        }


def goes_on_returning(event: Event, channel: Channel) -> bool:
    """Return whether an event belongs to the run of requeues that a channel has begun."""
    return (
        isinstance(event, MethodReceived)
        and event.channel == channel.number
        and isinstance(event.method, BasicReject | BasicNack)
    )


class ConnectionTask(BackgroundTask):
    """A task of a connection. handler: the connection; None: it is lost."""

    def __init__(self, handler: ConnectionHandler) -> None:
        self.handler: ConnectionHandler | None = handler

    def failed(self, error: Exception) -> None:
        if self.handler is not None:
            self.handler.sending_failed(error)


class SendingBodies(ConnectionTask):
    """Sends the large bodies of a connection, a piece at a time."""

    def step(self) -> int:
        return ASLEEP if self.handler is None else self.handler.send_piece()


class HeldEvents(ConnectionTask):
    """Handles what a connection holds, a slice at a time."""

    def step(self) -> int:
        return ASLEEP if self.handler is None else self.handler.handle_held()


def steps_of(event: MethodReceived) -> int:
    """Return about how many steps a method takes, without what it takes itself. LOOK_STEPS at
    most."""
    method = event.method
    if isinstance(method, PenstockCall):
        return CALL_STEPS
    if method.INDEX in TOPOLOGY_METHODS:
        return LOOK_STEPS
    return min(METHOD_STEPS + event.bytes // ARGUMENT_BYTES, LOOK_STEPS)


def is_close(event: object) -> bool:
    """Return whether the event is a channel.close."""
    return isinstance(event, MethodReceived) and isinstance(event.method, ChannelClose)


def is_goodbye(event: Event) -> bool:
    """Return whether the event is a connection.close."""
    return isinstance(event, MethodReceived) and isinstance(event.method, ConnectionClose)


def event_bytes(event: Event) -> int:
    """Return about how many bytes of RAM an event that is kept takes."""
    if isinstance(event, RestOfRun | RestOfInput):
        return event.bytes
    if isinstance(event, PublishRun):
        n = EVENT_BYTES * len(event.bodies)
        for body in event.bodies:
            n += len(body)
        return n
    if isinstance(event, AckRun):
        return EVENT_BYTES * len(event.tags)
    if isinstance(event, PublishPart):
        return EVENT_BYTES + len(event.data)
    if isinstance(event, MethodReceived):
        arguments = getattr(event.method, "arguments", None)
        return EVENT_BYTES * (1 + (len(arguments) if isinstance(arguments, dict | bytes) else 0))
    return EVENT_BYTES


def with_ids(error: AMQPError, event: Event) -> AMQPError:
    """Return the error, with the ids of the method that was handled if it has none."""
    if not error.class_id:
        if isinstance(event, MethodReceived | RestOfWork):
            method = event.method
            if method is not None:
                error.class_id, error.method_id = method.CLASS_ID, method.METHOD_ID
        elif isinstance(event, AckRun) or (
            isinstance(event, RestOfRun) and isinstance(event.run, AckRun)
        ):
            error.class_id, error.method_id = 60, 80
        elif not isinstance(event, ChannelFault | BadFrame):
            error.class_id, error.method_id = 60, 40
    return error


def short(text: str) -> str:
    """Return the text cut to the length of a short string."""
    data = text.encode()
    if len(data) <= TEXT_BYTES_MAX:
        return text
    return data[: TEXT_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."
