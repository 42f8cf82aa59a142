"""HTTP connections on which nothing is asked, and requests made for somebody else to misread.

With few places, so that few sockets fill them: whoever asks is served, and /health always.
"""

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from tests.helpers.asgi_client import basic
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real

PLACES = 40
LIMITS = {
    "PENSTOCK_HTTP_CONNECTIONS_MAX": str(PLACES),
    "PENSTOCK_HTTP_ADDRESS_CONNECTIONS_MAX": str(PLACES - 10),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    data = tmp_path_factory.mktemp("idle") / "data"
    with LiveBroker(data, environment=LIMITS, has_http=True) as live:
        live.control("await_startup")
        yield live
        assert live.stop() == 0, live.log_text()


def connected(broker: LiveBroker, data: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    """A client at that address that has sent these bytes."""
    assert broker.http_port is not None
    place = (broker.host, broker.http_port)
    sock = socket.create_connection(place, timeout=120, source_address=(source, 0))
    sock.sendall(data)
    return sock


def request(line: str, *headers: str, host: str = "localhost") -> bytes:
    """A request of guest's."""
    lines = (f"{line} HTTP/1.1", f"Host: {host}", f"Authorization: {basic('guest', 'guest')}")
    return "\r\n".join((*lines, *headers, "", "")).encode()


def answer(sock: socket.socket) -> tuple[int, bytes]:
    """(status, body) of a short answer."""
    with contextlib.closing(sock), sock.makefile("rb") as stream:
        status = int(stream.readline().split()[1])
        size = 0
        while (header := stream.readline()) != b"\r\n":
            if header.lower().startswith(b"content-length:"):
                size = int(header.split(b":")[1])
        return status, stream.read(size)


def test_idle_sockets_do_not_keep_others_out(broker: LiveBroker) -> None:
    idle = [
        connected(broker, b"GET /health HT" if n % 2 else b"", f"127.0.0.{1 + n % 5}")
        for n in range(4 * PLACES)
    ]
    for source in ("127.0.0.1", "127.0.0.9"):
        assert answer(connected(broker, request("GET /health"), source))[0] == 200
        assert answer(connected(broker, request("GET /api/overview"), source))[0] == 200
    for sock in idle:
        sock.close()


def test_a_body_that_never_comes_does_not_keep_others_out(broker: LiveBroker) -> None:
    body = ("Content-Length: 1000", "Content-Type: application/json")
    waiting = [
        connected(broker, request("POST /api/leases/%2F/q/r", *body), f"127.0.0.{1 + n % 5}")
        for n in range(2 * PLACES)
    ]
    assert answer(connected(broker, request("GET /health")))[0] == 200
    for sock in waiting:
        sock.close()


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (421, request("GET /api/overview", host="evil.test")),
        (200, request("GET /health", host="evil.test")),
        (403, request("DELETE /api/staging/%2F/q", "Origin: http://evil.test")),
        (415, request("POST /api/leases/%2F/q/r", "Content-Length: 2") + b"{}"),
        (
            415,
            request("PUT /api/staging/%2F/q/1", "Content-Length: 2", "Content-Type: text/plain")
            + b"{}",
        ),
        (
            400,
            request("GET /api/overview", "Content-Length: 5", "Transfer-Encoding: chunked")
            + b"0\r\n\r\n" + request("GET /api/overview"),
        ),
    ],
)  # fmt: skip
def test_requests_that_are_not_answered(broker: LiveBroker, status: int, data: bytes) -> None:
    found, body = answer(connected(broker, data))
    assert (found, bool(json.loads(body))) == (status, True)


def test_a_head_has_at_most_16_kib(broker: LiveBroker) -> None:
    head = request("GET /api/overview", "X: " + "x" * 40_000)
    assert answer(connected(broker, head))[0] == 400


def test_nothing_is_read_behind_a_request_with_two_ends(broker: LiveBroker) -> None:
    two = request("GET /api/overview", "Content-Length: 5", "Transfer-Encoding: chunked")
    sock = connected(broker, two + b"0\r\n\r\n" + request("GET /api/overview"))
    with contextlib.closing(sock):
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := sock.recv(65536):
                data += piece
    assert data.count(b"HTTP/1.1 ") == 1
