"""HttpLink: one kept connection to a broker's HTTP process, and what its answers mean.

Calls block, on http.client of the standard library: a task does one thing at a time, and a request
for frames is one long answer. If the broker closed the kept connection before a request had an
answer, the request is sent once more on a new one, unless it is a POST, which could then take
effect twice. Further retries are up to the caller (`retried`).

Paths are below /api/<api>/<vhost>/. The api is "streams" by default, or "leases" or "staging".

A refusal carries JSON {"error", "reason"} and becomes a RefusedError with its status. A connection
that cannot be opened, or that breaks, becomes a LinkError. Both name the broker, without its
password.

Spark reuses and forks its worker processes, so each thread of each process keeps its own link.
"""

import base64
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from penstock.errors import PenstockError
from penstock.spark.options import Place

T = TypeVar("T")

STREAMS: Final = "streams"
LEASES: Final = "leases"
STAGING: Final = "staging"
NOT_FOUND: Final = 404
CONFLICT: Final = 409
RANGE: Final = 416
UNAVAILABLE: Final = 503


class LinkError(PenstockError, ConnectionError):
    """The broker could not be reached, or the connection broke."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


class RefusedError(PenstockError):
    """The broker refused a request. status: of HTTP. answer: the JSON object that it sent."""

    def __init__(self, place: Place, what: str, status: int, answer: Mapping[str, Any]) -> None:
        self.status = status
        self.answer = answer
        super().__init__(f"{place}: {what}: {status}: {answer.get('reason', 'no reason given')}")


class HttpLink:
    """A connection that is opened when it is needed. timeout_s: longest wait for a byte."""

    def __init__(self, place: Place, timeout_s: float) -> None:
        self.place = place
        self._timeout_s = timeout_s
        self._headers = authorization(place)
        self._connection: http.client.HTTPConnection | None = None

    def json(
        self, method: str, parts: tuple[str, ...], query: Mapping[str, object] | None = None,
        body: object = None, api: str = STREAMS,
    ) -> Any:  # fmt: skip
        """Return the JSON answer for /api/<api>/<vhost>/<parts>, or None if it has no body.

        Raises RefusedError and LinkError.
        """
        response = self.open(method, parts, query, body, api)
        try:
            data = response.read()
            return json.loads(data) if data else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise LinkError(self.place, reason_of(error)) from error

    def open(
        self, method: str, parts: tuple[str, ...], query: Mapping[str, object] | None = None,
        body: object = None, api: str = STREAMS,
    ) -> http.client.HTTPResponse:  # fmt: skip
        """Return the same answer unread; the caller must read its body to the end.

        Raises RefusedError and LinkError.
        """
        path = api_path(self.place, api, parts)
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body).encode()
        try:
            response = self._response(method, target, data)
            if response.status < 400:
                return response
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise LinkError(self.place, reason_of(error)) from error
        raise refused(self.place, f"{method} {target}", response.status, raw)

    def close(self) -> None:
        """Disconnect. The next request connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _response(self, method: str, target: str, data: bytes | None) -> http.client.HTTPResponse:
        headers = self._headers
        if data is not None:
            headers = {**headers, "Content-Type": "application/json"}
        is_kept = self._connection is not None
        try:
            connection = self._connected()
            connection.request(method, target, data, headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException):
            self.close()
            if not is_kept or method == "POST":
                raise
        # The connection was kept from an earlier request; the broker may have closed it since.
        connection = self._connected()
        connection.request(method, target, data, headers)
        return connection.getresponse()

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = new_connection(self.place, self._timeout_s)
        return self._connection


_links: dict[tuple[int, int, Place], HttpLink] = {}


def kept_link(place: Place, timeout_s: float) -> HttpLink:
    """Return this thread's link to that place. The first call makes it."""
    key = (os.getpid(), threading.get_ident(), place)
    link = _links.get(key)
    if link is None:
        link = _links[key] = HttpLink(place, timeout_s)
    return link


def retried(call: Callable[[], T], retries: int, interval_s: float) -> T:
    """Return the call's result. Repeats the call while the broker is away, up to `retries` times.

    For calls at Spark's driver, which Spark itself does not repeat.
    """
    for left in range(retries, -1, -1):
        try:
            return call()
        except LinkError:
            if not left:
                raise
        except RefusedError as error:
            if error.status != UNAVAILABLE or not left:
                raise
        time.sleep(interval_s)
    raise AssertionError


# ---- parts of a request, also for requests that are not made with an HttpLink --------------------


def new_connection(place: Place, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection object for that place; it connects when it is first used."""
    parts = urlsplit(place.http_url)
    kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
    if parts.scheme == "https":
        kind = http.client.HTTPSConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout_s)


def authorization(place: Place) -> dict[str, str]:
    """Return the header that logs in."""
    token = base64.b64encode(f"{place.user}:{place.password}".encode()).decode("ascii")
    return {"Authorization": f"Basic {token}"}


def api_path(place: Place, api: str, parts: Sequence[str]) -> str:
    """Return /api/<api>/<vhost>/<parts>, quoted."""
    return "/api/" + "/".join(quote(part, safe="") for part in (api, place.vhost, *parts))


def refused(place: Place, what: str, status: int, raw: bytes) -> RefusedError:
    """Return the error for an answer with a status of 400 or more. what: the request."""
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = {}
    return RefusedError(place, what, status, answer if isinstance(answer, dict) else {})


def reason_of(error: Exception) -> str:
    """Return what a message says of a connection that broke."""
    return str(error) or type(error).__name__
