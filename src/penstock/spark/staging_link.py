"""StagingLink: what a task and a driver of the sink say to the broker about batches, over HTTP.

    POST   /api/staging/<vhost>/<query>/<batch>/<partition>/<attempt>   chunks of one page -> token
    PUT    /api/staging/<vhost>/<query>/<batch>      target, tokens: publish them, all or nothing
    DELETE /api/staging/<vhost>/<query>/<batch>      drop what is staged, unless it is published

A page is a POST of its own. Its chunks are sent as they are made, so the broker writes while Spark
still computes, and kept until the page's token has come: if the connection breaks before that, the
page is sent again, whole, under another attempt name, for nothing is ever staged twice under one.
So a task holds a page (64 MiB) at most, and a broker that is killed and comes back costs no task.

    no connection, one that breaks, no answer     again
    503, 507 (not there yet; staging is full)     again, for it may pass
    409 of a POST (there is such an attempt)      again, under another name
    409 `batch_conflict` of a PUT                 a BatchConflictError: the broker knows another
                                                  batch, and a retry cannot change that
    any other refusal                             a SinkError with the broker's reason, at once

"Again" goes on until `timeout_s` have passed without success, and then is a SinkError with the last
reason. A commit waits for the batch before it; as long as the broker tells that this gets on (its
reason is another one each time), the time begins anew. A PUT may be said again whatever became of
the first: the broker knows the batch, and answers "already done".

Not here: what a batch is made of (sink.py), frames (staging_frames.py).
"""

import base64
import http.client
import json
import logging
import random
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from penstock.errors import BatchConflictError, PenstockError
from penstock.spark.http_link import LinkError, RefusedError
from penstock.spark.source_options import Place

T = TypeVar("T")

MEDIA_TYPE: Final = "application/x-penstock-frames"
CONFLICT: Final = 409
BATCH_CONFLICT: Final = "batch_conflict"
CONFLICTS_MAX: Final = 8
PASSING: Final = (503, 507)
BACK_OFF_S: Final = 0.2
ABORT_TIMEOUT_S: Final = 5.0
COMMIT_TIMEOUT_S: Final = 65.0  # the broker itself says after 60 s at most that it has to wait

logger = logging.getLogger(__name__)

Token = dict[str, Any]


class SinkError(PenstockError):
    """Rows were not taken: what was to be done where, and why it failed."""


class StagingLink:
    """See the head of this module. target: what it is for, in messages. sleep, monotonic: of
    `time`, but for tests."""

    def __init__(
        self, place: Place, target: str, timeout_s: float, *,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.place = place
        self.target = target
        self.timeout_s = timeout_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._failing_since: float | None = None
        self._last_reason = ""
        token = base64.b64encode(f"{place.user}:{place.password}".encode()).decode("ascii")
        self._headers = {"Authorization": f"Basic {token}"}

    def commit(
        self, query: str, batch: int, target: Mapping[str, Any] | None, tokens: Sequence[Token],
        mandatory_keys: Sequence[tuple[str, str]] | None, *, previous: int | None = None,
        is_first_kept: bool = False,
    ) -> str:  # fmt: skip
        """Publish what the tokens say: "committed", or "already done". previous: the number of the
        batch before, of a sink that reports them all. is_first_kept: a batch of this number that
        was decided counts, whatever its rows. SinkError, BatchConflictError."""
        body: dict[str, Any] = {
            "target": target, "tokens": list(tokens), "mandatory_keys": mandatory_keys,
        }  # fmt: skip
        if previous is not None:
            body["previous"] = previous
        if is_first_kept:
            body["keep_first"] = True
        what = f"committing batch {batch} of query {query!r} to {self.target}"
        wait_s = max(self.timeout_s, COMMIT_TIMEOUT_S)
        answer = self.again(what, lambda: self._asked("PUT", (query, str(batch)), body, wait_s))
        return str(answer["status"])

    def abort(self, query: str, batch: int) -> None:
        """Drop what is staged of a batch, if it can be had at once: the broker drops it by itself
        after a day."""
        try:
            self._asked("DELETE", (query, str(batch)), None, min(self.timeout_s, ABORT_TIMEOUT_S))
        except (LinkError, RefusedError) as error:
            logger.warning("dropping batch %d of query %s: %s", batch, query, error)

    def again(self, what: str, call: Callable[[], T]) -> T:
        """The call's result, which is made again while that may help. SinkError."""
        while True:
            try:
                found = call()
            except (LinkError, RefusedError) as error:
                self.may_go_on(what, error)
            else:
                self.succeeded()
                return found

    def succeeded(self) -> None:
        """What was failing is not any more."""
        self._failing_since = None

    def may_go_on(self, what: str, error: LinkError | RefusedError) -> None:
        """Wait a little after a failure. SinkError, BatchConflictError: it is one to give up at."""
        if isinstance(error, RefusedError) and error.told.get("error") == BATCH_CONFLICT:
            raise BatchConflictError(f"{what}: {error}") from None
        if isinstance(error, RefusedError) and error.status not in PASSING:
            raise SinkError(f"{what}: {error}") from None
        now = self._monotonic()
        reason = str(error) if isinstance(error, RefusedError) else self._last_reason
        if self._failing_since is None or reason != self._last_reason:
            self._failing_since = now
        self._last_reason = reason
        if now - self._failing_since >= self.timeout_s:
            raise SinkError(f"{what}: {error}; tried for {self.timeout_s:g} s") from None
        self._sleep(BACK_OFF_S)

    def address(self, parts: Sequence[str]) -> str:
        """/api/staging/<vhost>/<parts>."""
        return "/api/staging/" + "/".join(
            quote(part, safe="") for part in (self.place.vhost, *parts)
        )

    def connection(self, timeout_s: float | None = None) -> http.client.HTTPConnection:
        """A new one, not connected yet."""
        parts = urlsplit(self.place.http_url)
        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        if parts.scheme == "https":
            kind = http.client.HTTPSConnection
        return kind(parts.hostname or "", parts.port, timeout=timeout_s or self.timeout_s)

    def headers(self, **more: str) -> dict[str, str]:
        """Who asks, and more."""
        return {**self._headers, **{name.replace("_", "-"): text for name, text in more.items()}}

    def answer(self, what: str, response: http.client.HTTPResponse) -> Any:
        """Of a request. RefusedError; OSError, HTTPException: it did not come whole."""
        raw = response.read()
        try:
            told = json.loads(raw) if raw else {}
        except ValueError:
            told = {}
        if response.status >= 400:
            told = told if isinstance(told, dict) else {}
            raise RefusedError(self.place, what, response.status, told)
        return told

    def _asked(
        self, method: str, parts: Sequence[str], body: object, timeout_s: float | None = None
    ) -> Any:
        """One question on a connection of its own. RefusedError, LinkError."""
        target = self.address(parts)
        data = None if body is None else json.dumps(body).encode()
        connection = self.connection(timeout_s)
        try:
            headers = self.headers(Content_Type="application/json")
            connection.request(method, target, data, headers)
            return self.answer(f"{method} {target}", connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            raise LinkError(self.place, words_of(error)) from error
        finally:
            connection.close()


class PageUpload:
    """One page of a task on its way. key: query, batch, partition, number of Spark's attempt.
    target: where the rows shall go, so that the broker can refuse at once who may not write there.
    """

    def __init__(
        self, link: StagingLink, key: tuple[str, int, int, int], target: Mapping[str, str],
        rng: random.Random,
    ) -> None:  # fmt: skip
        self._link = link
        self._key = key
        self._target = target
        self._rng = rng
        self._chunks: list[bytes] = []
        self._connection: http.client.HTTPConnection | None = None
        self._address = ""
        self._conflicts = 0
        query, batch, partition, _ = key
        self._what = (
            f"staging batch {batch}, partition {partition} of query {query!r} for {link.target}"
        )

    def send(self, chunk: bytes) -> None:
        """The next chunk; what was sent before is sent again if the connection is a new one.
        SinkError."""
        self._chunks.append(chunk)
        while True:
            try:
                if self._connection is not None:
                    self._put(chunk)
                else:
                    self._begin()
                return
            except (LinkError, RefusedError) as error:
                self._failed(error)

    def finish(self) -> Token:
        """The broker's token: the page is on its disk. SinkError."""
        while True:
            try:
                if self._connection is None:
                    self._begin()
                token: Token = self._end()
            except (LinkError, RefusedError) as error:
                self._failed(error)
                continue
            self._link.succeeded()
            return token

    def close(self) -> None:
        """Let go of it; the broker forgets a page that has no end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _failed(self, error: LinkError | RefusedError) -> None:
        self.close()
        is_name = isinstance(error, RefusedError) and error.status == CONFLICT
        if is_name and self._conflicts < CONFLICTS_MAX:
            self._conflicts += 1
            return
        self._link.may_go_on(self._what, error)

    def _begin(self) -> None:
        """A new attempt, with all chunks so far."""
        query, batch, partition, number = self._key
        attempt = f"{number}-{self._rng.getrandbits(32):08x}"
        self._address = self._link.address((query, str(batch), str(partition), attempt))
        self._connection = connection = self._link.connection()
        try:
            connection.putrequest("POST", f"{self._address}?{urlencode(self._target)}")
            headers = self._link.headers(Content_Type=MEDIA_TYPE, Transfer_Encoding="chunked")
            for name, text in headers.items():
                connection.putheader(name, text)
            connection.endheaders()
        except (OSError, http.client.HTTPException) as error:
            raise LinkError(self._link.place, words_of(error)) from error
        for chunk in self._chunks:
            self._put(chunk)

    def _put(self, chunk: bytes) -> None:
        """As a chunk of HTTP's. A broker that answers before the end has refused."""
        assert self._connection is not None
        try:
            if self._has_answer():
                self._told(None)
            self._connection.send(b"%x\r\n" % len(chunk))
            self._connection.send(chunk)
            self._connection.send(b"\r\n")
        except (OSError, http.client.HTTPException) as error:
            self._told(error)

    def _has_answer(self) -> bool:
        """Whether something has come. With TLS there is always something, so nobody looks."""
        assert self._connection is not None
        if isinstance(self._connection, http.client.HTTPSConnection):
            return False
        return bool(select.select([self._connection.sock], [], [], 0)[0])

    def _told(self, error: Exception | None) -> None:
        """What the broker said to a request that it did not let come to its end."""
        assert self._connection is not None
        try:
            self._answer()
        except (OSError, http.client.HTTPException) as second:
            raise LinkError(self._link.place, words_of(error or second)) from second
        raise LinkError(self._link.place, "it answered before the end of the page")

    def _end(self) -> Token:
        assert self._connection is not None
        try:
            self._connection.send(b"0\r\n\r\n")
            token: Token = self._answer()
        except (OSError, http.client.HTTPException) as error:
            raise LinkError(self._link.place, words_of(error)) from error
        self.close()
        return token

    def _answer(self) -> Token:
        assert self._connection is not None
        response = self._connection.getresponse()
        token: Token = self._link.answer(f"POST {self._address}", response)
        return token


def words_of(error: Exception) -> str:
    """What a broken connection is told as."""
    return str(error) or type(error).__name__
