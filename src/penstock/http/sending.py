"""How long answers are sent: whose turn it is, how long a client may take, and in which pieces.

A long answer holds memory until the client has taken it, so only some are made at a time, of all
users and of one (server.fair_turns); others wait. A client that takes nothing, or too little, is
cut off (SendTime), so no turn is held for ever.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

STALL_S: Final = 60.0
PACE: Final = 16 << 10  # bytes in a second
PIECE_BYTES: Final = 256 << 10

logger = logging.getLogger(__name__)


class SendTime:
    """How long a client takes for its answer: STALL_S at a time, and on average what PACE gives it
    for what it has taken."""

    def __init__(self) -> None:
        self._spare_s = STALL_S

    def left_s(self) -> float:
        """Return how long the client may take for the next step. Raises TimeoutError if it has no
        time left."""
        if self._spare_s <= 0:
            raise TimeoutError
        return self._spare_s

    def took(self, seconds: float, size: int) -> None:
        """Note that the client has taken `size` bytes."""
        # What a fast client has saved does not count for longer than a step.
        self._spare_s = min(self._spare_s - seconds + size / PACE, STALL_S)

    def why(self) -> str:
        """Return why the answer is cut."""
        if self._spare_s < STALL_S:
            return f"the client takes too little, less than {PACE} bytes/s"
        return f"the client takes nothing for {STALL_S:g} s"


class PiecesAnswer(Response):
    """An answer of many bytes, which are sent in pieces as the client takes them. what: names the
    request in the log. ended: called at the end, in any case."""

    def __init__(
        self, data: bytes, status: int, headers: Mapping[str, str], what: str,
        ended: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(None, status, headers)
        self.headers["content-length"] = str(len(data))
        self._data = data
        self._what = what
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {
            "type": "http.response.start", "status": self.status_code, "headers": self.raw_headers
        }  # fmt: skip
        loop, time = asyncio.get_running_loop(), SendTime()
        data = b"" if scope["method"] == "HEAD" else self._data
        try:
            await send(head)
            for at in range(0, max(len(data), 1), PIECE_BYTES):
                piece = data[at : at + PIECE_BYTES]
                began_s = loop.time()
                async with asyncio.timeout(time.left_s()):
                    await send(
                        {
                            "type": "http.response.body", "body": piece,
                            "more_body": at + PIECE_BYTES < len(data),
                        }
                    )  # fmt: skip
                time.took(loop.time() - began_s, len(piece))
        except TimeoutError:
            logger.warning("%s: cut, %s", self._what, time.why())
        finally:
            self._ended()
