"""ProcessLink: one end of a socket between processes of the broker, or a command and the broker.

control has the bytes. News are facts that nobody answers; either side may call operations of the
other, and answers may come in another order than the calls.

The socket never blocks, and the poller of the loop reads it, not asyncio, which would take longer
than the messages of a client's connection. Packets that the socket does not take wait here, in
order, so a process that hangs does not stop the other; senders look at `waiting`, the number of
packets. The link owns a socket or
file that is handed over, and closes it when it was sent, or when the link ends.

A malformed message ends the link. The receiver of a message owns its descriptors, and closes them.
watched_process, watched_vhost and watched_http list the news.

**ControlServer** is the broker's side of the control socket. Each connection is a ProcessLink;
calls are answered as their results are ready, so a slow one does not delay others. A malformed
message ends the connection.

Commands may keep state at a vhost, such as messages that one has taken and not settled yet. The
arguments of such operations name a session. When a connection ends, `on_gone` is called for each
session that it named, so that their messages are requeued.

The socket is made again at each start: the broker holds the lock of the data directory, so no other
process can be listening there.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from penstock.errors import NOT_FOUND, PenstockError
from penstock.operation_json import loads
from penstock.operation_table import DEFAULT_VHOST, SESSION, SESSION_OPERATIONS
from penstock.server import control
from penstock.server.control import (
    ANSWER,
    CALL,
    LONG,
    NEWS,
    PACKET_BYTES,
    ControlError,
    Facts,
    LinkMessage,
    Pieces,
    reachable,
)
from penstock.server.poller import READ, WRITE, PolledSource, Poller
from penstock.server.polling_loop import PollingLoop

PACKETS_PER_READ: Final = 16  # of one message; then other events are handled
PACKETS_PER_WRITE: Final = 16  # as long as the other side takes them as fast
DESCRIPTOR: Final = struct.Struct("i")
DESCRIPTORS_BYTES: Final = socket.CMSG_LEN(4 * DESCRIPTOR.size)  # at most four are handed over
RETRY_S: Final = 0.02
CALL_S: Final = 60.0
BACKLOG: Final = 100
ACCEPT_AGAIN_S: Final = 1.0  # when no descriptor is left
LAST_WORDS_S: Final = 1.0  # for answers when the broker stops
# The kernel is short of something for the moment.
SHORT: Final = frozenset({errno.ENOBUFS, errno.ENOMEM, errno.ETOOMANYREFS})

logger = logging.getLogger(__name__)

Answering = Callable[[str, str | None, bytes], Awaitable[list[bytes]]]
Gone = Callable[[str, str], None]


class LinkAnswer(NamedTuple):
    """The answer to a call. data: the result, JSON. descriptors: that came with it. is_long: a
    program that passes it on need not read it, it is made for whoever called (JsonParts)."""

    data: bytes
    descriptors: list[int]
    is_long: bool


class LinkEndedError(PenstockError):
    """The link ended before a call was answered. why: the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class AskedCall:
    """A call of the other side. vhost: None if it names none. args: JSON. Answer it once."""

    def __init__(self, link: "ProcessLink", message: LinkMessage) -> None:
        self.op, self.vhost = message.called()
        self.args: bytes = message.data
        self._number = message.number
        self._link = link

    def answer(
        self, parts: Sequence[bytes], handed: socket.socket | None = None, *, is_long: bool = False
    ) -> None:
        """Send the result, JSON in parts that follow one another. handed: as of `send`. is_long: as
        of LinkAnswer."""
        head = LONG if is_long else b""
        self._link.write(control.packets(ANSWER, self._number, head, parts), handed)

    def refuse(self, error: BaseException) -> None:
        """Send an error."""
        self._link.write(control.refusal(self._number, error))


def no_calls(asked: AskedCall) -> None:
    """Refuse a call."""
    asked.refuse(ControlError(NOT_FOUND, f"NOT_FOUND - nothing to call here, given {asked.op!r}"))


def _no_news(_facts: Facts, _data: bytes, descriptors: list[int]) -> None:
    """Take no news."""
    for descriptor in descriptors:
        socket.close(descriptor)


class ProcessLink(PolledSource):
    """One end, on the running loop, a PollingLoop. sock: must not block; the link owns it.

    on_closed(why): called once, when the other side has gone or sends a malformed message; not
    after `close`. on_news(facts, data, descriptors) and on_call(asked): called for each message, in
    order.
    """

    def __init__(
        self,
        sock: socket.socket,
        on_closed: Callable[[str], None],
        on_news: Callable[[Facts, bytes, list[int]], None] = _no_news,
        on_call: Callable[[AskedCall], None] = no_calls,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PollingLoop), "a ProcessLink needs a PollingLoop"
        self._sock = sock
        self._descriptor: int = sock.fileno()
        self._loop: PollingLoop = loop
        self._poller: Poller = loop.poller
        self._on_closed = on_closed
        self._on_news = on_news
        self._on_call = on_call
        self._out: deque[tuple[control.Packet, socket.socket | BinaryIO | None]] = deque()
        self._is_waiting: bool = False
        self._pieces = Pieces()
        self._descriptors: list[int] = []
        self._failure: str = ""  # of sending: the other side does not read any more
        self._calls: dict[int, asyncio.Future[LinkAnswer]] = {}
        self._calls_n: int = 0
        self.is_closed: bool = False
        self._poller.watch(self._descriptor, self, READ)

    @property
    def waiting(self) -> int:
        """Packets that the other side has not taken yet."""
        return len(self._out)

    def send(
        self, facts: Facts, data: bytes = b"", handed: socket.socket | BinaryIO | None = None
    ) -> None:
        """Send news. handed: a socket or file to send with it, which the link closes. After the end
        of the link nothing is sent, and `handed` is closed all the same."""
        self.write(control.news(facts, data), handed)

    async def call(
        self, op: str, vhost: str | None, args: bytes, seconds: float = CALL_S
    ) -> LinkAnswer:
        """Return the answer to a call; the caller owns its descriptors. Raises ControlError if it
        is refused, LinkEndedError, and TimeoutError after `seconds`."""
        if self.is_closed:
            raise LinkEndedError("the link has ended")
        self._calls_n += 1
        number = self._calls_n
        answer: asyncio.Future[LinkAnswer] = self._loop.create_future()
        self._calls[number] = answer
        self.write(control.a_call(number, op, vhost, args))
        try:
            async with asyncio.timeout(seconds):
                return await answer
        finally:
            self._calls.pop(number, None)

    def write(
        self, packets: list[control.Packet], handed: socket.socket | BinaryIO | None = None
    ) -> None:
        """Send the packets of a message. handed: as of `send`."""
        if self.is_closed or self._failure:
            if handed is not None:
                handed.close()
            return
        for packet in packets:
            self._out.append((packet, handed))
            handed = None
        if not self._is_waiting:
            self._write()

    def _write(self) -> None:
        out = self._out
        count = 0
        while out:
            if count == PACKETS_PER_WRITE:
                self._is_waiting = True
                self._poller.watch(self._descriptor, self, READ | WRITE)
                return
            count += 1
            packet, handed = out[0]
            try:
                if handed is None:
                    self._sock.sendmsg(packet)
                else:
                    rights = DESCRIPTOR.pack(handed.fileno())
                    self._sock.sendmsg(packet, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            except (BlockingIOError, InterruptedError):
                self._is_waiting = True
                self._poller.watch(self._descriptor, self, READ | WRITE)
                return
            except OSError as error:
                if error.errno in SHORT:
                    self._is_waiting = True
                    self._poller.watch(self._descriptor, self, READ)
                    self._loop.call_later(RETRY_S, self._again)
                    return
                # It has gone. Its last messages are still to be read, then the end.
                self._is_waiting = True  # do not try again
                self._poller.watch(self._descriptor, self, READ)
                self._drop_output()
                self._failure = f"cannot send: {error.strerror}"
                return
            out.popleft()
            if handed is not None:
                handed.close()
        if self._is_waiting:
            self._is_waiting = False
            self._poller.watch(self._descriptor, self, READ)

    def _drop_output(self) -> None:
        for _, handed in self._out:
            if handed is not None:
                handed.close()
        self._out.clear()

    def _again(self) -> None:
        if not self.is_closed and not self._failure:
            self._write()

    def ready(self, mask: int) -> None:
        try:
            if mask & WRITE and self._is_waiting:
                self._write()
            if mask & ~WRITE:
                self._read()
        except Exception:
            logger.exception("a message between processes failed")

    def _read(self) -> None:
        """Take one message; if more wait, the socket is still readable in the next pass."""
        for _ in range(PACKETS_PER_READ):
            if self.is_closed:
                return
            try:
                # As socket.recv_fds, which is 8 % of what a connection costs here (measured).
                packet, handed, _, _ = self._sock.recvmsg(PACKET_BYTES, DESCRIPTORS_BYTES)
            except ConnectionResetError:
                continue  # it left without reading all; reported once, before its last messages
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._end(f"cannot receive: {error.strerror}")
                return
            for _, _, descriptors in handed:
                self._descriptors += memoryview(descriptors).cast("i").tolist()
            if not packet:
                self._end(self._failure or "closed by the other side")
                return
            try:
                message = self._pieces.add(packet)
                facts = message.facts() if message is not None and message.kind == NEWS else {}
            except ValueError as error:
                self._end(f"malformed message: {error}")
                return
            if message is not None:
                self._take(message, facts)
                return

    def _take(self, message: LinkMessage, facts: Facts) -> None:
        """Report a message."""
        descriptors, self._descriptors = self._descriptors, []
        if message.kind == NEWS:
            self._on_news(facts, message.data, descriptors)
            return
        waiter = self._calls.get(message.number)
        if message.kind == ANSWER and waiter is not None and not waiter.done():
            waiter.set_result(LinkAnswer(message.data, descriptors, message.head == LONG))
            return
        _no_news({}, b"", descriptors)
        if message.kind == CALL:
            self._on_call(AskedCall(self, message))
        elif waiter is not None and not waiter.done():
            waiter.set_exception(message.error())

    def close(self, why: str = "the link was closed") -> None:
        """Close the link; waiting packets are lost, calls fail. Does nothing the second time."""
        if self.is_closed:
            return
        self.is_closed = True
        self._poller.watch(self._descriptor, self, 0)
        self._sock.close()
        self._drop_output()
        _no_news({}, b"", self._descriptors)
        self._descriptors = []
        for waiter in self._calls.values():
            if not waiter.done():
                waiter.set_exception(LinkEndedError(why))

    def _end(self, why: str) -> None:
        if not self.is_closed:
            self.close(why)
            self._on_closed(why)


async def answer(asked: AskedCall, call: Answering) -> None:
    """Answer a call with what `call` returns or raises."""
    try:
        asked.answer(await call(asked.op, asked.vhost, asked.args))
    except (PenstockError, OSError) as error:
        asked.refuse(error)
    except Exception as error:
        logger.exception("operation %s failed", asked.op)
        asked.refuse(error)


class ControlServer:
    """Serves the control socket on the running loop. call(op, vhost or None, args): returns the
    result in parts or raises; both are JSON. on_gone(vhost, session): called when a connection that
    named the session has ended."""

    def __init__(self, path: str, call: Answering, on_gone: Gone) -> None:
        self.path = path
        self._call = call
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = None
        self._links: dict[ProcessLink, set[tuple[str, str]]] = {}  # with the sessions of each
        self._answering: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Make the socket and listen. Raises OSError."""
        place = Path(self.path)
        place.unlink(missing_ok=True)
        sock = self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.setblocking(False)
            with reachable(self.path) as short:
                sock.bind(short)
            place.chmod(0o600)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            raise
        self._listen()

    async def stop(self) -> None:
        """Stop listening. Ends the connections when their calls are answered."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock)
            sock.close()
            Path(self.path).unlink(missing_ok=True)
        if self._answering:  # such as the one that asked for the stop
            await asyncio.wait(self._answering, timeout=LAST_WORDS_S)
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        for link in list(self._links):
            link.close()
            self._ended(link)

    def _listen(self) -> None:
        if self._sock is not None:
            self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        assert self._sock is not None
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError, InterruptedError):
            return
        except OSError as error:
            logger.error("control connections cannot be accepted: %s", error)
            self._loop.remove_reader(self._sock)
            self._loop.call_later(ACCEPT_AGAIN_S, self._listen)
            return
        sock.setblocking(False)

        def closed(why: str) -> None:
            logger.debug("control connection ended: %s", why)
            self._ended(link)

        def called(asked: AskedCall) -> None:
            self._note_session(asked, self._links[link])
            task = self._loop.create_task(answer(asked, self._call))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

        link = ProcessLink(sock, closed, on_call=called)
        self._links[link] = set()

    def _ended(self, link: ProcessLink) -> None:
        for vhost, session in self._links.pop(link):
            self._on_gone(vhost, session)

    def _note_session(self, asked: AskedCall, sessions: set[tuple[str, str]]) -> None:
        """Note the session of a call, now: the connection may end before the call is answered."""
        if asked.op in SESSION_OPERATIONS:
            with contextlib.suppress(PenstockError):  # whoever answers the call refuses it
                session = loads(asked.args, is_exact=True).get(SESSION)
                if isinstance(session, str):
                    sessions.add((asked.vhost or DEFAULT_VHOST, session))
