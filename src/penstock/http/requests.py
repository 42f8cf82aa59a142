"""Requests and answers: what every endpoint has in common.

**Errors** have one form, with the HTTP status that fits:

    {"error": "not_found", "reason": "no stream 'a' in vhost '/'"}

and sometimes more members (`first` and `head` for a range that does not exist), or an `error` of
its own that clients act on: `not_a_stream`. A refusal of the broker has an AMQP reply code;
STATUSES has the HTTP status that means the same.

**Users** are those of AMQP, with the same passwords, by HTTP's basic authentication; a token may be
a bearer's, too. server.backends and authenticator check passwords as for AMQP: each right one once,
the others one address after the other; guest is allowed from this machine only. A wrong password
and an unknown user get the same answer after the same time. A client that waits longer than
LOGIN_S, because others from its address give wrong passwords or a server that is asked does not
answer, gets 429. Headers about earlier hops
(X-Forwarded-For) are ignored, because anybody can write them. Each endpoint asks the Identity what
the user may do. A browser that has logged in with the form of the dashboard sends a cookie instead
(sessions); it is asked for no password by a dialog of its own.

**Names** in an address are percent-encoded, "/" as %2F, and may be any bytes, as in AMQP. Bodies
of JSON: bodies. Bodies that are data: staging_endpoints.

**Long answers.** A long answer holds memory until the client has taken it, so only some are made at
a time, of all users and of one (server.fair_turns); others wait. A client that takes nothing, or
too little, is cut off (SendTime), so no turn is held for ever.
"""

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from itertools import chain
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.access.permissions import Identity
from penstock.access.users import KnownUsers
from penstock.clock import microseconds
from penstock.errors import CONFLICT, NO_ROUTE, PenstockError
from penstock.http.sessions import COOKIE, OWN_HEADER, Sessions
from penstock.operation_json import JsonText, to_json
from penstock.server.backends import Account, Backends, Refused
from penstock.server.control import ControlError
from penstock.server.log_lines import client_line
from penstock.storage.files.user_store import READY

NAMES: Final[Mapping[int, str]] = {
    400: "bad_request",
    401: "not_authorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    410: "gone",
    413: "too_large",
    415: "unsupported_media_type",
    416: "range_not_satisfiable",
    421: "misdirected_request",
    429: "too_many_requests",
    500: "internal_error",
    501: "not_implemented",
    503: "unavailable",
    507: "insufficient_storage",
}
# AMQP reply code -> HTTP status. 541 means a vhost that is down, or has not answered.
STATUSES: Final[Mapping[int, int]] = {
    403: 403,
    404: 404,
    405: 403,
    406: 400,
    502: 400,
    503: 400,
    506: 503,
    530: 404,
    541: 503,
}


LOGIN_S: Final = 10.0
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


USER: Final = "penstock.user"
ACCOUNT: Final = "penstock.account"


logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]
Routes = list[tuple[str, list[str], Endpoint]]  # address below the endpoints' own, methods, what


class HttpError(PenstockError):
    """An answer that is an error. status: of HTTP, one of NAMES. reason: for people. more: further
    members of the answer."""

    def __init__(self, status: int, reason: str, **more: object) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.more = more
        self.headers: dict[str, str] = {}

    def body(self) -> dict[str, object]:
        """Return the body of the answer."""
        return {"error": NAMES.get(self.status, "error"), "reason": self.reason, **self.more}


class NotAuthorizedError(HttpError):
    """401, with the header that makes browsers ask for name and password."""

    def __init__(self, reason: str) -> None:
        super().__init__(401, reason)
        self.headers = {"WWW-Authenticate": 'Basic realm="Penstock", charset="UTF-8"'}


def refused(error: ControlError) -> HttpError:
    """Return the HTTP error for a refusal of the broker."""
    if error.code == NO_ROUTE:
        return HttpError(409, error.text, error="unroutable")
    if error.code == CONFLICT:
        return HttpError(409, error.text, error="batch_conflict")
    return HttpError(STATUSES.get(error.code, 500), error.text)


class JsonAnswer(Response):
    """The result of an operation, as JSON. A JsonText, which may be long, is sent as it is."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        if isinstance(content, JsonText):
            return content.text
        return json.dumps(to_json(content), separators=(",", ":")).encode()


def error_answer(error: HttpError) -> Response:
    """Return the answer for an error."""
    return JsonAnswer(error.body(), error.status, error.headers)


class BasicAuth:
    """Checks who sends a request. backends: check the passwords. sessions: those of browsers.
    succeeded, failed: logins."""

    def __init__(self, users: KnownUsers, backends: Backends, sessions: Sessions) -> None:
        self.sessions: Final = sessions
        self._users = users
        self._backends = backends
        self.succeeded = 0
        self.failed = 0

    async def of_request(self, request: Request) -> Account:
        """Return the account of who sends a request: that of its cookie if the session lasts, or
        of its Authorization header. Raises HttpError 401, 403, 429."""
        token = request.cookies.get(COOKIE)
        account = self.sessions.account(token) if token else None
        if account is None:
            name, password = parse(request.headers.get("authorization"))
            return await self.account(name, password, host_of(request))
        if request.method not in SAFE_METHODS:
            check_is_own(request)
        await account.ask(self._users.vhosts())
        return account

    async def account(self, name: str, password: bytes, peer_host: str) -> Account:
        """Return the account of a user from this host. Raises NotAuthorizedError, and HttpError
        429 if checking the password would take too long."""
        known = self._backends.remembered(name, password, peer_host)
        if known is not None:
            await known.ask(self._users.vhosts())
            self.succeeded += 1
            return known
        try:
            async with asyncio.timeout(LOGIN_S):
                account = await self._backends.login(name, password, peer_host)
                await account.ask(self._users.vhosts())
                self.succeeded += 1
                return account
        except Refused as error:
            why = error
            self.failed += 1
        except TimeoutError:
            late = HttpError(
                429, f"the login has taken more than {LOGIN_S:g} s: there were many wrong "
                "passwords from this address, or a server of auth_http or auth_oauth2 does not "
                "answer; try later",
            )  # fmt: skip
            late.headers["Retry-After"] = "10"
            raise late from None
        client_line(logger, peer_host, "%s: HTTP login refused: user '%s' - %s",
                    peer_host, name, why)  # fmt: skip
        raise NotAuthorizedError("wrong name or password, or guest from another machine")

    def identity(self, account: Account, vhost: str) -> Identity:
        """Return what the account may do in the vhost. Raises HttpError 404 if there is no such
        vhost, 403 if the user may not use it."""
        if self._users.vhosts().get(vhost) != READY:
            raise HttpError(404, f"no vhost '{vhost}'")
        identity = account.identity(vhost)
        if identity is None:
            raise HttpError(403, f"access to vhost '{vhost}' refused for user '{account.user}'")
        return identity


def host_of(request: Request) -> str:
    """Return the address of who sends a request, "" if it is not known."""
    return request.client.host if request.client is not None else ""


def is_of_page(request: Request) -> bool:
    """Return whether a page of ours sends the request, or reads events: it shows a form when the
    answer is 401, not the browser's dialog."""
    headers = request.headers
    return OWN_HEADER in headers or "text/event-stream" in headers.get("accept", "")


def check_is_own(request: Request) -> None:
    """Raise HttpError 403 unless a page of this origin sends the request."""
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    if OWN_HEADER not in request.headers or origin.partition("://")[2].lower() != host.lower():
        raise HttpError(
            403, "a browser's login, logout and change with a cookie need the header X-Penstock: 1 "
            f"and the Origin of this host, {host!r:.80}, given {origin!r:.80}: a proxy must not "
            "change Host; programs use basic authentication", error="not_own_page",
        )  # fmt: skip


def parse(header: str | None) -> tuple[str, bytes]:
    """Return (name, password) of an Authorization header; a bearer token has no name.
    Raises NotAuthorizedError."""
    if header is None:
        raise NotAuthorizedError("name and password are needed (basic authentication)")
    scheme, _, rest = header.partition(" ")
    if scheme.lower() == "bearer":
        return "", rest.strip().encode()
    if scheme.lower() != "basic":
        raise NotAuthorizedError("expected basic authentication")
    try:
        name, colon, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
    except (ValueError, binascii.Error):
        raise NotAuthorizedError("expected base64 of name:password") from None
    if not colon:
        raise NotAuthorizedError("expected base64 of name:password")
    return name.decode("utf-8", "surrogateescape"), password


def name_in(request: Request, part: str) -> str:
    """Return a part of the address, decoded."""
    return unquote_to_bytes(request.path_params[part]).decode("utf-8", "surrogateescape")


def identity_in(request: Request, auth: BasicAuth) -> tuple[str, Identity]:
    """Return (vhost of the address, what the user may do there). Raises HttpError 403, 404."""
    vhost = name_in(request, "vhost")
    return vhost, auth.identity(request.scope[ACCOUNT], vhost)


def readable(request: Request, auth: BasicAuth, part: str) -> tuple[str, str]:
    """Return (vhost, queue) of the address if the user may read the queue, which is its part
    `part`. Raises HttpError 403, 404."""
    vhost, identity = identity_in(request, auth)
    queue = name_in(request, part)
    if not identity.may_read(queue):
        raise no_access("read", "queue", queue, vhost, identity)
    check_asks_nobody(identity)
    return vhost, queue


def check_asks_nobody(identity: Identity) -> None:
    """Raise HttpError 403 if a server of auth_http decides what this user may do: it is asked by
    vhosts alone."""
    if identity.asks_resources or identity.asks_topics:
        raise HttpError(
            403, f"streams, leases and batches over HTTP are refused for user '{identity.name}': "
            "resource_path or topic_path of auth_http decides about it, expected a user of another "
            "backend",
        )  # fmt: skip


def no_access(verb: str, kind: str, name: str, vhost: str, identity: Identity) -> HttpError:
    """Return the 403, with the text that the broker uses."""
    return HttpError(
        403, f"{verb} access to {kind} '{name or 'amq.default'}' in vhost '{vhost}' refused for "
        f"user '{identity.name}'",
    )  # fmt: skip


def given(params: QueryParams, names: tuple[str, ...]) -> dict[str, str]:
    """Return the parameters. Raises HttpError 400 for one that is not in `names`, or given
    twice."""
    found: dict[str, str] = {}
    for name, value in params.multi_items():
        if name not in names:
            raise HttpError(400, f"unknown parameter {name!r}, expected {', '.join(names)}")
        if name in found:
            raise HttpError(400, f"parameter {name!r} was given twice")
        found[name] = value
    return found


def whole(query: Mapping[str, str], name: str, most: int) -> int | None:
    """Return a number of the query, None if it is not given. Raises HttpError 400."""
    text = query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > most:
        raise HttpError(
            400, f"parameter {name!r}: given {text!r}, expected a whole number from 0 to {most}"
        )
    return int(text)


def time_us(name: str, text: str) -> int:
    """Return a time of the query in microseconds since 1970. Raises HttpError 400."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 18:
        return int(text)
    try:
        return microseconds(datetime.fromisoformat(text))
    except ValueError:
        raise HttpError(
            400, f"parameter {name!r}: given {text!r}, expected a time such as "
            "2026-11-21T20:00:00Z (a + in it as %2B), or microseconds since 1970",
        ) from None  # fmt: skip


# ---- long answers --------------------------------------------------------------------------------


STALL_S: Final = 60.0
PACE: Final = 16 << 10  # bytes in a second
PIECE_BYTES: Final = 256 << 10


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
    """An answer of many bytes, which are sent in pieces as the client takes them. size: bytes of
    all pieces. what: names the request in the log. ended: called at the end, in any case."""

    def __init__(
        self, pieces: Iterable[bytes], size: int, status: int, headers: Mapping[str, str],
        what: str, ended: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(None, status, headers)
        self.headers["content-length"] = str(size)
        self._pieces = pieces
        self._what = what
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {
            "type": "http.response.start", "status": self.status_code, "headers": self.raw_headers
        }  # fmt: skip
        pieces = self._pieces if scope["method"] != "HEAD" else ()
        loop, time = asyncio.get_running_loop(), SendTime()
        try:
            await send(head)
            for piece in chain(pieces, (None,)):
                body = {"body": b"" if piece is None else piece, "more_body": piece is not None}
                began_s = loop.time()
                async with asyncio.timeout(time.left_s()):
                    await send({"type": "http.response.body", **body})
                time.took(loop.time() - began_s, len(piece or b""))
        except TimeoutError:
            logger.warning("%s: cut, %s", self._what, time.why())
        finally:
            self._ended()
