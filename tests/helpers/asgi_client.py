"""A client of an ASGI application in this process: no socket, no server, every step in its hands.

`ask` runs one request to its end and returns what was answered. A body that the application did not
finish is `is_cut`. `leaves_after`: the client is gone once so many pieces of the body have come. A
`body` may be a list of pieces: they come one by one, and behind a None among them the client is
gone.
"""

import asyncio
import base64
import json
from dataclasses import dataclass
from typing import Any

Messages = list[dict[str, Any]]
NOTICED_TURNS = 10  # of the loop: until whoever waits for the client to leave knows that it has


@dataclass
class Reply:
    """status 0: nothing was answered. pieces: of the body."""

    status: int
    headers: dict[str, str]
    pieces: list[bytes]
    is_cut: bool

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def json(self) -> Any:
        return json.loads(self.body)


def basic(user: str, password: str) -> str:
    """The Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def ask(
    app: Any,
    address: str,
    *,
    method: str = "GET",
    user: str | None = "guest",
    password: str | None = None,
    headers: dict[str, str] | None = None,
    body: bytes | list[bytes | None] = b"",
    peer: str = "127.0.0.1",
    leaves_after: int | None = None,
) -> Reply:
    """One request. password: the user's name, if it is not said."""
    sent = dict(headers or {})
    if user is not None:
        sent.setdefault("authorization", basic(user, user if password is None else password))
    if method in ("POST", "PUT"):
        sent.setdefault("content-type", "application/json")
    path, _, query = address.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": method, "scheme": "http", "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "root_path": "", "client": (peer, 1234),
        "server": ("127.0.0.1", 15672),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }  # fmt: skip
    gone = asyncio.Event()
    given = _messages(body)
    reply = Reply(0, {}, [], True)

    async def receive() -> dict[str, Any]:
        if given:
            await asyncio.sleep(0)
            return given.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {n.decode(): v.decode() for n, v in message["headers"]}
            return
        if message.get("body"):
            reply.pieces.append(message["body"])
        if not message.get("more_body", False):
            reply.is_cut = False
        if leaves_after is not None and len(reply.pieces) >= leaves_after:
            gone.set()
            for _ in range(NOTICED_TURNS):
                await asyncio.sleep(0)

    await app(scope, receive, send)
    return reply


def _messages(body: bytes | list[bytes | None]) -> Messages:
    """What is received, the last first."""
    pieces = [body] if isinstance(body, bytes) else body
    messages: Messages = []
    for number, piece in enumerate(pieces):
        if piece is None:
            messages.append({"type": "http.disconnect"})
            break
        has_more = number + 1 < len(pieces)
        messages.append({"type": "http.request", "body": piece, "more_body": has_more})
    return messages[::-1]
