"""Api: the application: which address is answered by what, who may ask, and what errors look like.

    GET  /health                    is the broker well? Without a password
    GET  /api/overview              what this is
         /api/streams/...           stream_endpoints
         /api/leases/...            lease_endpoints
         /api/staging/...           staging_endpoints

Everything below /api must pass `admission` and wants a name and password; a user may have
`user_requests_max` requests under way, and one more is answered 429. Every error has the one form
of http_errors, also an address that is none and a method that an address does not know. Names in
an address are percent-encoded, "/" as %2F; it is taken apart before they are decoded.

What goes wrong here is logged with its traceback and told as a 500, or, when the answer was under
way, by cutting it. Each request is a line of the log at level debug.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

import penstock
from penstock.errors import CorruptionError
from penstock.http.admission import Admission, check_framing
from penstock.http.answers import JsonAnswer, error_answer
from penstock.http.basic_auth import BasicAuth
from penstock.http.http_errors import NAMES, HttpError, refused
from penstock.http.node_link import NodeLink
from penstock.http.requests import USER, Routes
from penstock.server.control import ControlError

API: Final = "/api"
DOWN: Final = "down"
HEALTH_S: Final = 0.25

logger = logging.getLogger(__name__)


class Endpoints(Protocol):
    """What answers below one address."""

    def routes(self) -> Routes:
        """(address below it, methods, what answers)."""


class Api:
    """The ASGI application. endpoints: word behind /api/ -> what is there. requests: how many
    came."""

    def __init__(
        self, node: NodeLink, auth: BasicAuth, endpoints: Mapping[str, Endpoints],
        admission: Admission, user_requests_max: int,
    ) -> None:  # fmt: skip
        self.requests = 0
        self._admission = admission
        self._user_requests_max = user_requests_max
        self._of_user: dict[str, int] = {}  # requests under way
        self._asked: asyncio.Future[Any] | None = None  # how the broker is
        self._asked_until_s = 0.0
        self._node = node
        self._auth = auth
        self._app = Starlette(
            routes=[
                Route("/health", self._health),
                Route(f"{API}/overview", self._overview),
                *(
                    Route(f"{API}/{word}/{address}", endpoint, methods=methods)
                    for word, there in endpoints.items()
                    for address, methods, endpoint in there.routes()
                ),
            ],
            exception_handlers={
                HttpError: _told, ControlError: _told, HTTPException: _told, CorruptionError: _told,
                Exception: _mistake,
            },
        )  # fmt: skip
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.requests += 1
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        path = scope["raw_path"].decode("ascii", "replace")
        scope = {**scope, "path": path, "root_path": ""}
        try:
            await self._answer(scope, receive, watched)
        except Exception as error:
            logger.exception("%s %s failed", scope["method"], path)
            if not status:
                await _mistake(Request(scope), error)(scope, receive, watched)
        logger.debug(
            "%s %s %s: %d", (scope.get("client") or ("?",))[0], scope["method"], path, status
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        peer = request.client.host if request.client is not None else ""
        try:
            check_framing(request.headers)
            if not scope["path"].startswith(API):
                await self._app(scope, receive, send)
                return
            self._admission.check(scope["method"], request.headers)
            user = await self._auth.user(request.headers.get("authorization"), peer)
            if self._of_user.get(user, 0) >= self._user_requests_max:
                raise HttpError(
                    429, f"user '{user}' has {self._user_requests_max} requests under way, which "
                    "is the most (http_user_requests_max)",
                )  # fmt: skip
        except HttpError as error:
            await error_answer(error)(scope, receive, send)
            return
        scope[USER] = user
        self._of_user[user] = self._of_user.get(user, 0) + 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]

    async def _health(self, _request: Request) -> Response:
        """Well: the broker listens and no vhost is down. Publishers that have to wait are a problem
        that a restart does not solve, so they are named and the status stays 200. Names of vhosts
        are not shown: anybody may ask."""
        try:
            found = await self._status()
        except ControlError as error:
            raise HttpError(503, error.text) from error
        down = sum(row["state"] == DOWN for row in found["vhosts"])
        if not found["is_ready"]:
            raise HttpError(503, "it has not started yet")
        if down:
            are = "is" if down == 1 else "are"
            raise HttpError(503, f"{down} of {len(found['vhosts'])} vhosts {are} down")
        rows = found["vhosts"]
        reasons = sorted({str(row["blocked_reason"]) for row in rows if row["blocked_reason"]})
        if reasons or not found["is_healthy"]:
            return JsonAnswer({"status": "publishers wait", "low_on": reasons or ["disk"]})
        return JsonAnswer({"status": "ok"})

    async def _status(self) -> Any:
        """The broker's, at most HEALTH_S old: anybody may ask, and each question costs the
        supervisor some work. Those who ask meanwhile wait for the same answer."""
        now_s = asyncio.get_running_loop().time()
        asked = self._asked
        if asked is None or now_s >= self._asked_until_s:
            asked = self._asked = asyncio.ensure_future(self._node.call("status"))
            self._asked_until_s = now_s + HEALTH_S
            asked.add_done_callback(_seen)
        return await asyncio.shield(asked)

    async def _overview(self, _request: Request) -> Response:
        return JsonAnswer(
            {
                "product_name": "Penstock",
                "product_version": penstock.__version__,
                "node": f"penstock@{socket.gethostname()}",
            }
        )


def _seen(answer: "asyncio.Future[Any]") -> None:
    """Its error is told to whoever waits, if anybody still does."""
    if not answer.cancelled():
        answer.exception()


def _mistake(_request: Request, _error: Exception) -> Response:
    """Whatever it is: it is raised again behind this, and logged."""
    return error_answer(HttpError(500, "a mistake of the broker's, see its log"))


def _told(_request: Request, error: Exception) -> Response:
    """An error of ours or of Starlette's, in our form."""
    if isinstance(error, ControlError):
        error = refused(error)
    elif isinstance(error, CorruptionError):
        logger.error("%s", error)
        error = HttpError(500, f"damaged: {error.reason}")
    elif isinstance(error, HTTPException):
        text = "no such address" if error.status_code == 404 else str(error.detail)
        headers = dict(error.headers or {})
        error = HttpError(error.status_code if error.status_code in NAMES else 400, text)
        error.headers = headers
    assert isinstance(error, HttpError)
    return error_answer(error)
