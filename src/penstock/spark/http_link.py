"""HttpLink: one kept connection to a broker's HTTP process, and what its answers mean.

Calls block, on http.client of the standard library: a task does one thing at a time, and a request
for frames is one long answer. If the broker closed the kept connection before a request had an
answer, the request is sent once more on a new one, unless it is a POST, which could then take
effect twice. Further retries are up to the caller.

**A broker that is away**, because it is started again, say, is waited for, by source and sink, at
the driver (whose calls Spark does not repeat) and in tasks: BrokerWait.

Paths are below /api/<api>/<vhost>/. The api is "streams" by default, or "leases" or "staging".

A refusal carries JSON {"error", "reason"} and becomes a RefusedError with its status. A connection
that cannot be opened, or that breaks, becomes a LinkError. Both name the broker, without its
password.

Spark reuses and forks its worker processes, so each thread of each process keeps its own link.
"""

import base64
import http.client
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from penstock.client.tls import http_connection, tls_reason
from penstock.errors import PenstockError
from penstock.spark.options import Place, SourceOptions

T = TypeVar("T")

STREAMS: Final = "streams"
LEASES: Final = "leases"
STAGING: Final = "staging"
NOT_FOUND: Final = 404
NOT_ALLOWED: Final = 405
CONFLICT: Final = 409
RANGE: Final = 416
UNAVAILABLE: Final = 503
PASSING: Final = (UNAVAILABLE, 507)  # not ready; staging is full
PAUSE_S: Final = 0.2
SAY_S: Final = 10.0
START_S: Final = 3.0
PROBE_S: Final = 2.0
NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")

logger = logging.getLogger(__name__)


class LinkError(PenstockError, ConnectionError):
    """The broker could not be reached, or the connection broke."""

    def __init__(self, place: Place, reason: str) -> None:
        self.place = place
        self.reason = reason
        super().__init__(f"{place}: {reason}")

    @property
    def is_lasting(self) -> bool:
        """Whether the port speaks another protocol than HTTP, or not the right TLS."""
        cause = self.__cause__
        if isinstance(cause, http.client.RemoteDisconnected):
            return False  # closed without an answer, as by a broker that is stopped
        return isinstance(cause, http.client.BadStatusLine | ssl.SSLCertVerificationError) or (
            isinstance(cause, ssl.SSLError) and cause.reason in NOT_TLS
        )

    def is_wrong_address(self) -> bool:
        """Return whether the address looks wrong, if the broker has never answered there: its host
        is unknown, or AMQP answers at the port of the url and HTTP does not."""
        cause = self.__cause__
        if isinstance(cause, socket.gaierror):
            return cause.errno == socket.EAI_NONAME
        return isinstance(cause, ConnectionRefusedError) and is_amqp_open(self.place)


class RefusedError(PenstockError):
    """The broker refused a request. status: of HTTP. answer: the JSON object that it sent."""

    def __init__(self, place: Place, what: str, status: int, answer: Mapping[str, Any]) -> None:
        self.place = place
        self.status = status
        self.answer = answer
        super().__init__(f"{place}: {what}: {status}: {answer.get('reason', 'no reason given')}")


class HttpLink:
    """A connection that is opened when it is needed, and closed with the last reference to this.
    timeout_s: longest wait for a byte."""

    def __init__(self, place: Place, timeout_s: float) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self.place = place
        self._timeout_s = timeout_s
        self._headers = authorization(place)

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

    def __del__(self) -> None:
        self.close()

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


class _Links(threading.local):
    """A thread's links, closed when it ends: a driver that runs for months starts many threads."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, Place], HttpLink] = {}  # by process: one that forks shares none


_links = _Links()


def kept_link(place: Place, timeout_s: float) -> HttpLink:
    """Return this thread's link to that place. The first call makes it."""
    key = (os.getpid(), place)
    link = _links.known.get(key)
    if link is None:
        link = _links.known[key] = HttpLink(place, timeout_s)
    return link


class BrokerWait:
    """Waits for a broker that is away.

    A connection that cannot be opened, one that breaks, an answer that does not come, 503 and 507
    may pass. After each of them the call is made again after `pause_s` seconds, until there was no
    success for `timeout_s` seconds, or, if `retries` is given, until it failed so many times more.
    While the broker reports progress (the reason of its refusals changes), the time starts again.

    A port that speaks another protocol is an error at once. So is, when a query starts (is_start)
    and after START_S seconds, an address that looks wrong: a broker that is being started may
    answer there by then.

    The log says that it waits at once and every SAY_S seconds, and when the broker has answered.
    sleep, monotonic: those of `time`, except in tests.
    """

    def __init__(
        self, timeout_s: float, *, pause_s: float = PAUSE_S, retries: int | None = None,
        is_start: bool = False, sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._timeout_s = timeout_s
        self._is_start = is_start
        self._pause_s = pause_s
        self._retries = retries
        self._sleep = sleep
        self._monotonic = monotonic
        self._failures = 0  # in a row
        self._began_s = 0.0  # the first of them
        self._changed_s = 0.0  # the first of them, or the last progress
        self._said_s = 0.0
        self._last_reason = ""

    @classmethod
    def of(
        cls, options: SourceOptions, sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic, *, is_start: bool = False,
    ) -> "BrokerWait":  # fmt: skip
        """Return one that waits as the options of a source say."""
        return cls(
            options.timeout_s, pause_s=options.retry_interval_s, retries=options.retries,
            is_start=is_start, sleep=sleep, monotonic=monotonic,
        )  # fmt: skip

    def retry(self, call: Callable[[], T]) -> T:
        """Return the call's result, repeating the call while the broker is away. Raises LinkError
        and RefusedError."""
        while True:
            try:
                found = call()
            except (LinkError, RefusedError) as error:
                if not self.waited(error):
                    raise
            else:
                self.succeeded()
                return found

    def waited(self, error: LinkError | RefusedError) -> bool:
        """Wait a little after a failure; return whether to try again."""
        if isinstance(error, RefusedError) and error.status not in PASSING:
            return False
        if isinstance(error, LinkError) and error.is_lasting:
            return False
        now = self._monotonic()
        reason = str(error) if isinstance(error, RefusedError) else self._last_reason
        if not self._failures:
            self._began_s = now
        if not self._failures or reason != self._last_reason:
            self._changed_s = now
        self._last_reason = reason
        self._failures += 1
        if self._is_over(now) or (
            self._is_start
            and now - self._began_s >= START_S
            and isinstance(error, LinkError)
            and error.is_wrong_address()
        ):
            return False
        if self._failures == 1 or now - self._said_s >= SAY_S:
            self._said_s = now
            logger.warning("%s; %s", error, self._plan(now))
        self._sleep(self._pause_s)
        return True

    def succeeded(self) -> None:
        """End a series of failures, if there is one."""
        if self._failures:
            away_s = self._monotonic() - self._began_s
            logger.warning("the broker answers again, after %.1f s", away_s)
        self._failures = 0

    def _is_over(self, now: float) -> bool:
        if self._retries is not None:
            return self._failures > self._retries
        return now - self._changed_s >= self._timeout_s

    def _plan(self, now: float) -> str:
        """Return in words how long it goes on."""
        if self._retries is not None:
            return f"attempt {self._failures} of {self._retries + 1}"
        waited = f", {now - self._began_s:.0f} s so far" if self._failures > 1 else ""
        return f"waiting for the broker for up to {self._timeout_s:g} s{waited}"


# ---- parts of a request, also for requests that are not made with an HttpLink --------------------


def new_connection(place: Place, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection object for that place; it connects when it is first used."""
    parts = urlsplit(place.http_url)
    trust = place.tls if parts.scheme == "https" else None
    return http_connection(parts.hostname or "", parts.port, trust, timeout_s)


def is_amqp_open(place: Place) -> bool:
    """Return whether something listens at the AMQP port of an amqp:// url. False for other urls."""
    if place.amqp is None:
        return False
    try:
        socket.create_connection(place.amqp, PROBE_S).close()
    except OSError:
        return False
    return True


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
    if isinstance(error, ssl.SSLError):
        return tls_reason(error)
    return str(error) or type(error).__name__
