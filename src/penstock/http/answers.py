"""Answers of HTTP that are more than a small text: long ones, made in threads, that can be cut.

A long body is an iterator whose steps read files, so each step runs in a thread, one ahead of what
is being sent: two steps' worth of bytes is all that an answer holds, however slow the client. Its
first step is made before the status is sent, so that what can be told as an error is.

Behind that only cutting is left. The body has no length but HTTP's chunks, and their end is not
sent: the client sees that it has not got everything, and never takes half an answer for a whole.
The same is done to a client that takes nothing for STALL_S. A client that leaves ends the work.
"""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.broker.operation_json import to_json
from penstock.errors import PenstockError
from penstock.http.http_errors import HttpError

STALL_S: Final = 60.0

logger = logging.getLogger(__name__)


class JsonAnswer(Response):
    """Anything that the control socket can say, as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(to_json(content), separators=(",", ":")).encode()


def error_answer(error: HttpError) -> Response:
    """What the client is told of an error."""
    return JsonAnswer(error.body(), error.status, error.headers)


class LongAnswer(Response):
    """`body`: its steps; closed at the end, whatever end. first: what its first step gave, None if
    it had none. what: of the request, for the log. places: how many long answers there are at a
    time; one of them is held, and given back at the end."""

    def __init__(
        self,
        body: Iterator[bytes],
        first: bytes | None,
        media_type: str,
        what: str,
        executor: Executor,
        places: asyncio.Semaphore,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(None, media_type=media_type, headers=dict(headers))
        del self.headers["content-length"]
        self._body = body
        self._first = first
        self._what = what
        self._executor = executor
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
            else:
                await self._send_all(send, gone)
        finally:
            gone.cancel()
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, _close, self._body)
            self._places.release()

    async def _send_all(self, send: Send, gone: asyncio.Task[None]) -> None:
        loop = asyncio.get_running_loop()
        data = self._first
        ahead: asyncio.Future[bytes | None] | None = None
        try:
            while data is not None and not gone.done():
                ahead = loop.run_in_executor(self._executor, next, self._body, None)
                async with asyncio.timeout(STALL_S):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                data = await ahead
                ahead = None
        except TimeoutError:
            logger.warning("%s: cut, the client takes nothing for %g s", self._what, STALL_S)
            return
        except (PenstockError, OSError) as error:
            logger.error("%s: cut: %s", self._what, error)
            return
        finally:
            if ahead is not None:
                await asyncio.wait([ahead])
                ahead.exception()
        if data is None:
            await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    """Until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _close(body: Iterator[bytes]) -> None:
    close = getattr(body, "close", None)
    if close is not None:
        close()
