"""HttpLink: one kept connection to a broker's HTTP process, and what its answers mean.

Blocking, on http.client of the standard library: a task does one thing at a time, and a frame
request is one long answer. A connection that the broker closed meanwhile is made anew, once, for a
question that had no answer yet, unless it is a POST, which may do a thing twice; whoever asks
decides about more than that (`retried`).

What is asked for stands below /api/<api>/<vhost>/: api is "streams" if nothing is said, else
"leases" or "staging".

An answer that is a refusal carries JSON {"error", "reason"}, and becomes a RefusedError with its
status; a connection that cannot be had, or that breaks, a LinkError. Both name the broker without
its password.

Workers of Spark are processes that are used again, and forked: a link is kept for each thread of
each process.
"""

import base64
import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from penstock.errors import PenstockError
from penstock.spark.source_options import Place

T = TypeVar("T")

STREAMS: Final = "streams"
LEASES: Final = "leases"
NOT_FOUND: Final = 404
CONFLICT: Final = 409
RANGE: Final = 416
UNAVAILABLE: Final = 503


class LinkError(PenstockError, ConnectionError):
    """The broker could not be reached, or the connection broke."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(f"{place}: {reason}")


class RefusedError(PenstockError):
    """The broker refused: status of HTTP, reason in its words, and what else it told."""

    def __init__(self, place: Place, what: str, status: int, told: Mapping[str, Any]) -> None:
        self.status = status
        self.told = told
        super().__init__(f"{place}: {what}: {status}: {told.get('reason', 'no reason given')}")


class HttpLink:
    """See the head of this module. timeout_s: without a byte from the broker."""

    def __init__(self, place: Place, timeout_s: float) -> None:
        self.place = place
        self._timeout_s = timeout_s
        token = base64.b64encode(f"{place.user}:{place.password}".encode()).decode("ascii")
        self._headers = {"Authorization": f"Basic {token}"}
        self._connection: http.client.HTTPConnection | None = None

    def json(
        self, method: str, parts: tuple[str, ...], query: Mapping[str, object] | None = None,
        body: object = None, api: str = STREAMS,
    ) -> Any:  # fmt: skip
        """The answer of /api/<api>/<vhost>/<parts>; None if it has no body. RefusedError,
        LinkError."""
        response = self.open(method, parts, query, body, api)
        try:
            data = response.read()
            return json.loads(data) if data else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise LinkError(self.place, str(error) or type(error).__name__) from error

    def open(
        self, method: str, parts: tuple[str, ...], query: Mapping[str, object] | None = None,
        body: object = None, api: str = STREAMS,
    ) -> http.client.HTTPResponse:  # fmt: skip
        """The same, its body still to be read to the end. RefusedError, LinkError."""
        names = (api, self.place.vhost, *parts)
        path = "/api/" + "/".join(quote(name, safe="") for name in names)
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body).encode()
        try:
            response = self._asked(method, target, data)
            if response.status < 400:
                return response
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise LinkError(self.place, str(error) or type(error).__name__) from error
        try:
            told = json.loads(raw)
        except ValueError:
            told = {}
        raise RefusedError(
            self.place,
            f"{method} {target}",
            response.status,
            told if isinstance(told, dict) else {},
        )

    def close(self) -> None:
        """Disconnect; the next question connects anew."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _asked(self, method: str, target: str, data: bytes | None) -> http.client.HTTPResponse:
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
        # It was kept from an earlier question, and the broker may have closed it since.
        connection = self._connected()
        connection.request(method, target, data, headers)
        return connection.getresponse()

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            parts = urlsplit(self.place.http_url)
            host = parts.hostname or ""
            if parts.scheme == "https":
                kind: type[http.client.HTTPConnection] = http.client.HTTPSConnection
            else:
                kind = http.client.HTTPConnection
            self._connection = kind(host, parts.port, timeout=self._timeout_s)
        return self._connection


_links: dict[tuple[int, int, Place], HttpLink] = {}


def kept_link(place: Place, timeout_s: float) -> HttpLink:
    """The link of this thread of this process to that place, made at the first call."""
    key = (os.getpid(), threading.get_ident(), place)
    link = _links.get(key)
    if link is None:
        link = _links[key] = HttpLink(place, timeout_s)
    return link


def retried(call: Callable[[], T], retries: int, interval_s: float) -> T:
    """The result of the call, which is made again if the broker is away: Spark does not try what
    runs at its driver a second time."""
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
