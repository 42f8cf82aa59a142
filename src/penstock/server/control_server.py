"""ControlServer: the broker's side of the control socket.

Each connection is a ProcessLink; calls are answered as their results are ready, so a slow one does
not delay others. A malformed message ends the connection.

Commands may keep state at a vhost, such as messages that one has taken and not settled yet. The
arguments of such operations name a session. When a connection ends, `on_gone` is called for each
session that it named, so that their messages are requeued.

The socket is made again at each start: the broker holds the lock of the data directory, so no other
process can be listening there.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.operation_json import loads
from penstock.operation_table import DEFAULT_VHOST, SESSION, SESSION_OPERATIONS
from penstock.server.control import reachable
from penstock.server.process_link import AskedCall, ProcessLink

BACKLOG: Final = 100
ACCEPT_AGAIN_S: Final = 1.0  # when no descriptor is left
LAST_WORDS_S: Final = 1.0  # for answers when the broker stops

logger = logging.getLogger(__name__)

Call = Callable[[str, str | None, bytes], Awaitable[list[bytes]]]
Gone = Callable[[str, str], None]


async def answer(asked: AskedCall, call: Call) -> None:
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

    def __init__(self, path: str, call: Call, on_gone: Gone) -> None:
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
