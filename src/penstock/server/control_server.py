"""ControlServer: the broker's side of the control socket.

It reads lines, calls an operation for each request, and writes the replies as they are ready; a
slow request does not delay others. A malformed request, or one with half of a surrogate pair in a
text, is answered with 502, and the connection goes on; a line that is too long ends it. control.py
has the protocol; arguments and results pass as JSON.

Commands may keep state at a vhost, such as messages that one has taken and not settled yet. Such a
request has a "session" in its args. When a connection ends, `on_gone` is called for each session
that it named, so that their messages are requeued.

The socket is made again at each start: the broker holds the lock of the data directory, so no other
process can be listening there.
"""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from penstock.errors import INTERNAL_ERROR, SYNTAX_ERROR, AMQPError, PenstockError
from penstock.operation_json import JsonText, check_names
from penstock.server.control import LINE_BYTES_MAX, ControlError, line, reachable

DEFAULT_VHOST: Final = "/"

logger = logging.getLogger(__name__)

Call = Callable[[str, str | None, dict[str, object]], Awaitable[object]]
Gone = Callable[[str, str], None]


def error_reply(number: object, error: BaseException) -> dict[str, object]:
    """Return the reply for an error."""
    if isinstance(error, AMQPError | ControlError):
        code, text = error.code, error.text
    else:
        code, text = INTERNAL_ERROR, f"{type(error).__name__}: {error}"
    return {"id": number, "error": {"code": code, "text": text}}


class ControlServer:
    """Serves the control socket on the running loop. call(op, vhost or None, args): returns the
    result or raises, both as JSON. on_gone(vhost, session): called when a connection that named the
    session has ended."""

    def __init__(self, path: str, call: Call, on_gone: Gone) -> None:
        self.path = path
        self._call = call
        self._on_gone = on_gone
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Make the socket and listen. Raises OSError."""
        place = Path(self.path)
        place.unlink(missing_ok=True)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reachable(self.path) as short:
                sock.bind(short)
            place.chmod(0o600)
            self._server = await asyncio.start_unix_server(
                self._connected, sock=sock, limit=LINE_BYTES_MAX
            )
        except BaseException:
            sock.close()
            raise

    async def stop(self) -> None:
        """Stop listening. Ends the connections when their requests are answered."""
        if self._server is not None:
            self._server.close()
            Path(self.path).unlink(missing_ok=True)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        answering: set[asyncio.Task[None]] = set()
        sessions: set[tuple[str, str]] = set()
        try:
            while data := await reader.readline():
                answer = asyncio.create_task(self._answer(data, writer, sessions))
                answering.add(answer)
                answer.add_done_callback(answering.discard)
        except (OSError, ValueError) as error:
            logger.warning("control connection ended: %s", error)
        except asyncio.CancelledError:
            # The broker stops; the request that asked for it gets its answer.
            if answering:
                await asyncio.wait(answering, timeout=1.0)
        finally:
            for vhost, session in sessions:
                self._on_gone(vhost, session)
            writer.close()
            self._serving.discard(task)
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(
        self, data: bytes, writer: asyncio.StreamWriter, sessions: set[tuple[str, str]]
    ) -> None:
        number: object = None
        try:
            number, op, vhost, args = _request(data)
            if b"\\u" in data:
                _check_texts([op, vhost, args])
            session = args.get("session")
            if isinstance(session, str):
                sessions.add((vhost or DEFAULT_VHOST, session))
            result = await self._call(op, vhost, args)
            if isinstance(result, JsonText):  # it is long, and goes as it is
                writer.writelines((b'{"id":', json.dumps(number).encode(), b',"result":'))
                writer.writelines((result.text, b"}\n"))
                with contextlib.suppress(OSError):
                    await writer.drain()
                return
            reply: dict[str, object] = {"id": number, "result": result}
        except (PenstockError, OSError) as error:
            reply = error_reply(number, error)
        except Exception as error:
            logger.exception("control request failed")
            reply = error_reply(number, error)
        writer.write(line(reply))
        with contextlib.suppress(OSError):
            await writer.drain()


def _request(data: bytes) -> tuple[object, str, str | None, dict[str, object]]:
    """Return (id, op, vhost, args) of a line. Raises ControlError 502."""
    try:
        request = json.loads(data)
        args = request.get("args") or {}
        op, vhost = request["op"], request.get("vhost")
        if isinstance(op, str) and isinstance(args, dict) and isinstance(vhost, str | None):
            return request.get("id"), op, vhost, args
    except (ValueError, KeyError, AttributeError, RecursionError):
        pass
    raise ControlError(SYNTAX_ERROR, 'expected one JSON object {"id", "op", "vhost", "args"}')


def _check_texts(request: list[object]) -> None:
    """Raise ControlError 502 for a text that no name, file or log line can have."""
    try:
        check_names(request)
    except ValueError as error:
        raise ControlError(SYNTAX_ERROR, f"SYNTAX_ERROR - {error}") from None
