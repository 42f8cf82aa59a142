"""Api: the ASGI application: its addresses, who may use them, and the form of errors.

    GET  /                          the dashboard, and its files below (dashboard)
         /health                    whether the broker is well; needs no password
         /health/ready              the same, for Kubernetes' readiness
         /health/live               whether this process answers, whatever the broker does
         /metrics                   metrics: needs a password, but not at a port of its own
         /api/streams/...           read_endpoints
         /api/leases/...            read_endpoints
         /api/staging/...           staging_endpoints
         /api/...                   management: the table of endpoint_table, RabbitMQ's HTTP API

A request below /api must pass Admission and needs a name and password, unless its row says that
anybody may ask; a user may have `user_requests_max` requests under way, and one more is answered
429. Errors have the form of requests.HttpError, also for an unknown address or method, and at
management's addresses RabbitMQ's. Names in an address are percent-encoded, "/" as %2F; the address
is split before they are decoded. An unexpected error is logged with its traceback and answered with
500, or cuts the answer that has begun. Each request is a line of the log at level debug.

**Admission** refuses requests before anybody is asked for a password:

    400   both Content-Length and Transfer-Encoding: a proxy in front may have seen another end of
          the body than we do, and the rest would be taken for another client's request
    421   a Host that is not ours: a page in a browser has reached us under a name of its choice
          (DNS rebinding)
    403   an Origin that is not ours, except for reading: a page of another site sends a request
          with the name and password that a browser remembers
    415   a JSON body without its Content-Type (bodies)

Our hosts are localhost and names below it, numeric addresses, this machine's name, the host that
the broker listens at, and those of the option `http_hosts`, where "*" allows any. `/health` is
answered for any Host, because it reveals nothing.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from penstock.counts import UserSums
from penstock.errors import CorruptionError, PenstockError
from penstock.http import management
from penstock.http.dashboard.static_files import DashboardFiles
from penstock.http.management import Found, Management
from penstock.http.metrics import METRICS, MetricsPages, is_metrics
from penstock.http.node_link import NodeLink
from penstock.http.requests import (
    ACCOUNT,
    NAMES,
    SAFE_METHODS,
    USER,
    BasicAuth,
    HttpError,
    JsonAnswer,
    NotAuthorizedError,
    Routes,
    error_answer,
    is_of_page,
    refused,
)
from penstock.operation_table import WATCHERS
from penstock.server.control import ControlError

ANY: Final = "*"
API: Final = "/api"
ROUTE: Final = "penstock.route"
OTHER: Final = "other"  # an address that has no row, of which there may be any number
DOWN: Final = "down"

logger = logging.getLogger(__name__)


class Admission:
    """Checks Host and Origin. hosts: our names besides those that always are."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = frozenset(host.lower().rstrip(".") for host in hosts if host)

    def check(self, method: str, headers: Headers) -> None:
        """Raise HttpError if the request is refused."""
        host = headers.get("host")
        if host is not None and not self.is_ours(host):
            raise HttpError(
                421, f"host {host!r} is unknown: expected localhost, an address or the "
                "machine's name, or set the option http_hosts",
            )  # fmt: skip
        origin = headers.get("origin")
        if origin is not None and method not in SAFE_METHODS and not self._is_our_origin(origin):
            raise HttpError(403, f"requests from pages of {origin!r} may only read")

    def is_ours(self, host: str) -> bool:
        """Return whether the host is ours. host: as in the header, with or without a port."""
        if ANY in self._hosts:
            return True
        name = host_name(host)
        if name == "localhost" or name.endswith(".localhost") or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return False
        return True

    def _is_our_origin(self, origin: str) -> bool:
        scheme, separator, host = origin.partition("://")
        return bool(separator) and scheme in ("http", "https") and self.is_ours(host)


def check_framing(headers: Headers) -> None:
    """Raise HttpError 400 if the end of the body is ambiguous."""
    if "content-length" in headers and "transfer-encoding" in headers:
        error = HttpError(400, "expected Content-Length or Transfer-Encoding, found both")
        error.headers["Connection"] = "close"
        raise error


def host_name(host: str) -> str:
    """Return the name or address in a Host header, in lower case, without port, brackets, last
    dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    if host.count(":") == 1:
        host = host.partition(":")[0]
    return host.lower().rstrip(".")


class Endpoints(Protocol):
    """The endpoints below one address."""

    def routes(self) -> Routes:
        """Return (address below it, methods, endpoint) of each route."""

    async def metrics(self, vhost: str) -> Mapping[str, Any]:
        """Return what they count of a vhost, by the names of metric_table."""


class Api:
    """The ASGI application. endpoints: word after /api/ -> its endpoints. requests: how many were
    received."""

    def __init__(
        self, node: NodeLink, auth: BasicAuth, endpoints: Mapping[str, Endpoints],
        management: Management, files: DashboardFiles, admission: Admission,
        user_requests_max: int,
    ) -> None:  # fmt: skip
        self.requests = 0
        self._admission = admission
        self._words = frozenset(endpoints)
        self._management = management
        self._files = files
        self._user_requests_max = user_requests_max
        self._of_user = UserSums()  # requests under way
        self._node = node
        self._auth = auth
        self._metrics = MetricsPages(node, list(endpoints.values()))
        self.metrics_port: int | None = None  # where anybody may ask for metrics, and nothing else
        self._app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/health/ready", self._health),
                Route("/health/live", self._live),
                *(
                    Route(f"{API}/{word}/{address}", endpoint, methods=methods)
                    for word, there in endpoints.items()
                    for address, methods, endpoint in there.routes()
                ),
            ],
            exception_handlers={
                Exception: _internal_error,
                **dict.fromkeys(
                    (HttpError, ControlError, HTTPException, CorruptionError), _expected_error
                ),
            },
        )  # fmt: skip
        self._app.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.requests += 1
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        path = scope["raw_path"].decode("ascii", "replace")
        scope = {**scope, "path": path, "root_path": ""}
        start, secret, _ = path.partition("/hash_password/")  # a password follows
        shown = start + secret
        try:
            await self._answer(scope, receive, watched)
        except ClientDisconnect:
            pass  # nobody waits for an answer
        except Exception as error:
            logger.exception("%s %s failed", scope["method"], shown)
            if not status:
                await _internal_error(Request(scope), error)(scope, receive, watched)
        route = scope.get(ROUTE) or self._route(path)
        self._metrics.note(route, status, loop.time() - began_s)
        logger.debug(
            "%s %s %s: %d", (scope.get("client") or ("?",))[0], scope["method"], shown, status
        )

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path, method = scope["path"], scope["method"]
        found: Found | None = None
        try:
            check_framing(request.headers)
            if is_metrics(path) or self._is_metrics_port(scope):
                await (await self._metrics_answer(request, path))(scope, receive, send)
                return
            if path != API and not path.startswith(API + "/"):
                await (self._page(request, path) or self._app)(scope, receive, send)
                return
            self._admission.check(method, request.headers)
            if path in (API, API + "/"):
                await RedirectResponse(f"{API}/index.html", 301)(scope, receive, send)
                return
            below = path.removeprefix(API + "/")
            if below.partition("/")[0] not in self._words:
                found = self._management.find(below, method)
                if found.endpoint is not None:
                    scope[ROUTE] = f"{API}/{found.endpoint.path}"
            if found is not None and found.is_open:
                await (await self._management.answer(found, request))(scope, receive, send)
                return
            await self._log_in(request)
        except (HttpError, ControlError) as error:
            await self._refuse(request, error, found)(scope, receive, send)
            return
        user = scope[USER]
        self._of_user.add(user)
        try:
            if found is None:
                await self._app(scope, receive, send)
                return
            try:
                answer = await self._management.answer(found, request)
            except (HttpError, ControlError) as error:
                answer = self._refuse(request, error, found)
            await answer(scope, receive, send)
        finally:
            self._of_user.add(user, -1)

    def _page(self, request: Request, path: str) -> Response | None:
        """Return a file of the dashboard, None if there is none. Raises HttpError 421."""
        reply = self._files.answer(request, path)
        if reply is not None:
            request.scope[ROUTE] = "/"
            self._admission.check(request.method, request.headers)
        return reply

    def _route(self, path: str) -> str:
        """Return the pattern of an address that is not of the table: there are only a few."""
        word = path.removeprefix(API + "/").partition("/")[0]
        if path != word and word in self._words:
            return f"{API}/{word}"
        return path if path in (METRICS, "/health") else OTHER

    async def _metrics_answer(self, request: Request, path: str) -> Response:
        """Return the answer of metrics. Raises HttpError, ControlError."""
        if not is_metrics(path):
            raise HttpError(404, "no such address: this port has /metrics alone")
        self._admission.check(request.method, request.headers)
        if not self._is_metrics_port(request.scope):
            await self._log_in(request)
            if request.scope[ACCOUNT].tags.isdisjoint(WATCHERS):
                raise HttpError(403, f"{path} needs the tag {' or '.join(WATCHERS)}")
        return await self._metrics.answer(request, path)

    def _is_metrics_port(self, scope: Scope) -> bool:
        """Return whether the request came to the port of metrics."""
        server = scope.get("server") or ("", None)
        return self.metrics_port is not None and server[1] == self.metrics_port

    async def _log_in(self, request: Request) -> None:
        """Note in the scope who asks. Raises HttpError 401, 429."""
        account = await self._auth.of_request(request)
        user = account.user
        if self._of_user.of(user) >= self._user_requests_max:
            raise HttpError(
                429, f"user '{user}' has {self._user_requests_max} requests under way, which is "
                "the most (http_user_requests_max)",
            )  # fmt: skip
        request.scope[USER], request.scope[ACCOUNT] = user, account

    def _refuse(self, request: Request, error: PenstockError, found: Found | None) -> Response:
        """Return the answer for a refusal: in RabbitMQ's form at RabbitMQ's addresses."""
        is_ours = is_of_page(request)
        if is_ours and isinstance(error, NotAuthorizedError):
            error.headers.clear()
        if found is None:
            return _expected_error(request, error)
        if isinstance(error, ControlError):
            error = management.refusal(error)
        assert isinstance(error, HttpError)
        has_password = is_ours or "authorization" in request.headers
        return management.error_answer(error, has_password=has_password)

    async def _live(self, _request: Request) -> Response:
        """Answer 200: a restart of the broker is of no use while this process answers."""
        return JsonAnswer({"status": "ok"})

    async def _health(self, _request: Request) -> Response:
        """Answer 200 if the broker has started and no vhost is down, otherwise 503. Publishers that
        must wait, and clients that are refused because others use all descriptors, are reported
        with 200, because a restart does not help them. Names of vhosts are not shown: anybody may
        ask."""
        try:
            found = await self._node.status()
        except ControlError as error:
            raise HttpError(503, error.text) from error
        down = sum(row["state"] == DOWN for row in found["vhosts"])
        if not found["is_ready"]:
            raise HttpError(503, "the broker has not started yet")
        if down:
            are = "is" if down == 1 else "are"
            raise HttpError(503, f"{down} of {len(found['vhosts'])} vhosts {are} down")
        rows = found["vhosts"]
        reasons = {str(row["blocked_reason"]) for row in rows if row["blocked_reason"]}
        unserved = sorted({str(row["unserved"]) for row in rows if row["unserved"]})
        if unserved:
            raise HttpError(503, f"a vhost does not serve: it {'; another '.join(unserved)}")
        are_refused = not found["takes_clients"] or any(not row["takes_clients"] for row in rows)
        if not reasons and not are_refused:
            if found["is_healthy"]:
                return JsonAnswer({"status": "ok"})
            reasons = {"disk"}
        status = "publishers wait" if reasons else "clients are refused"
        if are_refused:
            reasons.add("descriptors")
        return JsonAnswer({"status": status, "low_on": sorted(reasons)})


def _internal_error(_request: Request, _error: Exception) -> Response:
    """Return the answer for an unexpected error. Starlette raises it again, and it is logged."""
    return error_answer(HttpError(500, "internal error, see the broker's log"))


def _expected_error(_request: Request, error: Exception) -> Response:
    """Return the answer for an expected error, ours or Starlette's."""
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
