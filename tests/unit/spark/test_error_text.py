"""What Spark shows of an error: its reason first, as an option that is given and expected."""

import http.client
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import OptionError, PenstockError
from penstock.spark import http_link
from penstock.spark.error_text import HIDDEN, SIMPLIFIED, explained, reason_first, reasons_first
from penstock.spark.http_link import BrokerWait, LinkError, RefusedError
from penstock.spark.options import parse_place

PLACE = parse_place({"url": "http://ann:secret@host:5672/"})
AMQP = parse_place({"url": "amqp://ann:secret@127.0.0.1:5672/"})


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test sets is undone."""
    monkeypatch.setenv(HIDDEN, "")
    monkeypatch.setenv(SIMPLIFIED, "")


@reason_first
def fails(error: Exception) -> None:
    raise error


def shown(error: Exception) -> str:
    """What Spark's worker writes: pyspark.util.handle_worker_exception."""
    try:
        fails(error)
    except Exception as caught:
        if os.environ[HIDDEN]:
            return "".join(traceback.format_exception_only(type(caught), caught))
        text = traceback.TracebackException(type(caught), caught, sys.exc_info()[2], compact=True)
        return "".join(text.format())
    raise AssertionError("no error")


@pytest.mark.parametrize(
    "error",
    [
        OptionError("queue", "q", "a queue"),
        LinkError(PLACE, "Connection refused"),
        RefusedError(PLACE, "GET /x", 404, {"reason": "no queue 'q'"}),
    ],
)
@pytest.mark.parametrize("is_simplified", [True, False])
def test_the_reason_is_the_first_line(
    error: PenstockError, is_simplified: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIMPLIFIED, "1" if is_simplified else "")
    error.add_note("do this")
    lines = shown(error).splitlines()
    kind = type(error)
    assert lines[0] == f"{kind.__module__}.{kind.__name__}: {error}"
    assert lines[1] == "do this"
    assert ("Traceback (most recent call last):" in lines) is not is_simplified


def test_a_bug_keeps_its_traceback() -> None:
    assert shown(KeyError("x")).startswith("Traceback")
    assert os.environ[HIDDEN] == ""


def test_the_reason_of_an_error_between_items() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OptionError("queue", "q", "a queue")

    found = reasons_first(items())
    assert next(found) == 1
    with pytest.raises(OptionError) as caught:
        next(found)
    assert str(caught.value.__cause__) == str(caught.value)


def link_error(place: Any, cause: Exception) -> LinkError:
    error = LinkError(place, str(cause))
    error.__cause__ = cause
    return error


def told(error: Any) -> str:
    return str(explained(error, "subscribe", "s", "read permission"))


def test_an_http_address_that_speaks_something_else() -> None:
    amqp = link_error(PLACE, http.client.BadStatusLine("AMQP\x00\x00\x09\x01"))
    assert amqp.is_lasting
    text = told(amqp)
    assert text.startswith("option url: given 'http://host:5672', expected url=amqp://user:")
    assert "httpUrl=http://host:15672" in text
    assert text.endswith("this port speaks AMQP")
    assert told(link_error(PLACE, http.client.BadStatusLine("SSH-2.0"))).endswith("speaks no HTTP")
    gone = link_error(PLACE, http.client.RemoteDisconnected("closed"))
    assert not gone.is_lasting
    assert explained(gone, "subscribe", "s", "") is gone


def test_an_amqp_url_whose_http_port_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = link_error(AMQP, ConnectionRefusedError(111, "Connection refused"))
    monkeypatch.setattr("penstock.spark.error_text.is_amqp_open", lambda place: False)
    assert explained(refused, "subscribe", "s", "") is refused, "the whole broker is away"
    monkeypatch.setattr("penstock.spark.error_text.is_amqp_open", lambda place: True)
    text = told(refused)
    assert text.startswith("option httpUrl: given None, expected httpUrl=http://127.0.0.1:port")
    assert "AMQP answers at port 5672" in text


BAD_LOGIN = {"error": "not_authorized", "reason": "wrong name or password"}
NO_RIGHT = {"error": "forbidden", "reason": "refused"}
NO_QUEUE = {"error": "not_found", "reason": "NOT_FOUND - no queue 's'"}
NO_VHOST = {"error": "not_found", "reason": "no vhost 'x'"}


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (401, BAD_LOGIN, "option url: given \"user 'ann'\", expected name and password"),
        (403, NO_RIGHT, "option subscribe: given 's', expected read permission for user 'ann'"),
        (404, NO_QUEUE, "option subscribe: given 's', expected what exists at"),
        (404, NO_VHOST, "option url: given \"vhost '/'\""),
        (404, {}, "option url: given 'http://host:5672', expected the HTTP port of a Penstock"),
    ],
)
def test_a_refusal_names_its_option(status: int, answer: dict[str, str], expected: str) -> None:
    text = told(RefusedError(PLACE, "GET /x", status, answer))
    assert text.startswith(expected)
    assert "secret" not in text


class Waiting:
    """A BrokerWait whose clock goes on by itself. calls: how often it was tried."""

    def __init__(self, error: LinkError, *, is_start: bool) -> None:
        self.now = 0.0
        self.calls = 0
        self._error = error
        self.wait = BrokerWait(60, is_start=is_start, sleep=self._sleep, monotonic=lambda: self.now)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self) -> float:
        """How many seconds it waits."""

        def call() -> None:
            self.calls += 1
            raise self._error

        with pytest.raises(LinkError):
            self.wait.retry(call)
        return self.now


def test_only_what_may_pass_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong address is an error soon when a query starts, and waited for later."""
    monkeypatch.setattr(http_link, "is_amqp_open", lambda place: place is AMQP)
    lasting = link_error(PLACE, http.client.BadStatusLine("AMQP"))
    unknown = link_error(PLACE, socket.gaierror(socket.EAI_NONAME, "Name not known"))
    no_http = link_error(AMQP, ConnectionRefusedError(111, "refused"))
    away = link_error(PLACE, ConnectionRefusedError(111, "refused"))
    assert Waiting(lasting, is_start=False).run() == 0
    for error in (unknown, no_http):
        assert Waiting(error, is_start=True).run() == pytest.approx(3, abs=0.3)
        assert Waiting(error, is_start=False).run() == pytest.approx(60, abs=0.3)
    assert Waiting(away, is_start=True).run() == pytest.approx(60, abs=0.3)
