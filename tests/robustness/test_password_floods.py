"""Floods of wrong passwords, and many right ones at once.

One address guesses as fast as it can: who logs in from another address, or with a password that was
right before, is served. Two hundred clients that come back at once after a start are all served.
How many hashes that takes is counted in tests/unit/server/test_authenticator.py.
"""

import contextlib
import socket
from collections.abc import Iterator

import pytest

from penstock.codec.frames import PROTOCOL_HEADER, method_frame
from penstock.codec.spec import ConnectionStartOk, ConnectionTune, decode_method
from tests.helpers.asgi_client import basic
from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import Wire

pytestmark = pytest.mark.real

WRONG = 837
CLIENTS = 200
LOGIN_LIMIT_S = 10  # the default of handshake_timeout


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    data = tmp_path_factory.mktemp("floods") / "data"
    with LiveBroker(data, has_http=True) as live:
        live.control("add_user", name="ann", password="ann")
        live.control("add_user", name="bob", password="bob")
        live.control("set_permissions", "/", user="ann", configure=".*", write=".*", read=".*")
        for name in ("ann", "bob"):
            live.control("set_user_tags", name=name, tags=["management"])
        yield live
        assert live.stop() == 0, live.log_text()


def asked(broker: LiveBroker, user: str, password: str, source: str) -> socket.socket:
    """A client at that address that has sent name and password and waits for the answer."""
    place = (broker.host, broker.port)
    sock = socket.create_connection(place, timeout=LOGIN_LIMIT_S, source_address=(source, 0))
    start_ok = ConnectionStartOk(response=f"\0{user}\0{password}".encode())
    sock.sendall(PROTOCOL_HEADER + method_frame(0, start_ok.encode()))
    return sock


def is_let_in(sock: socket.socket) -> bool:
    """Whether the broker goes on with connection.tune; TimeoutError: it says nothing."""
    with contextlib.closing(sock), sock.makefile("rb") as stream:
        for _ in range(2):
            head = stream.read(7)
            if len(head) < 7:
                return False
            payload = stream.read(int.from_bytes(head[3:], "big") + 1)[:-1]
        return isinstance(decode_method(payload), ConnectionTune)


def test_two_hundred_clients_come_back_at_once(broker: LiveBroker) -> None:
    broker.restart()
    socks = [asked(broker, "ann", "ann", "127.0.0.1") for _ in range(CLIENTS)]
    assert [is_let_in(sock) for sock in socks] == [True] * CLIENTS


@pytest.mark.parametrize("names", ["one", "many"])
def test_a_flood_of_wrong_passwords(broker: LiveBroker, names: str) -> None:
    broker.restart()
    assert is_let_in(asked(broker, "guest", "guest", "127.0.0.1"))
    flood = [
        asked(broker, "ann" if names == "one" else f"n{n}", f"wrong {n}", "127.0.0.1")
        for n in range(WRONG)
    ]
    # From another address, with the name that is being guessed, and not remembered.
    assert is_let_in(asked(broker, "ann", "ann", "127.0.0.2"))
    # From the same one, remembered.
    assert is_let_in(asked(broker, "guest", "guest", "127.0.0.1"))
    # From the same one, for the first time, with a name that is not guessed there.
    broker.control("change_password", name="bob", password="bob")
    assert is_let_in(asked(broker, "bob", "bob", "127.0.0.1"))
    assert not is_let_in(asked(broker, "ann", "wrong", "127.0.0.3"))
    for sock in flood:
        sock.close()
    assert "login refused: user" in broker.log_text()


def test_a_flood_of_wrong_passwords_over_http(broker: LiveBroker) -> None:
    assert broker.http_port is not None
    broker.restart()

    def ask(user: str, password: str, source: str) -> socket.socket:
        assert broker.http_port is not None
        place = (broker.host, broker.http_port)
        sock = socket.create_connection(place, timeout=LOGIN_LIMIT_S, source_address=(source, 0))
        lines = (
            "GET /api/overview HTTP/1.1", "Host: localhost",
            f"Authorization: {basic(user, password)}", "", "",
        )  # fmt: skip
        sock.sendall("\r\n".join(lines).encode())
        return sock

    def status(sock: socket.socket) -> int:
        with contextlib.closing(sock):
            return int(sock.recv(65536).split()[1])

    assert status(ask("guest", "guest", "127.0.0.1")) == 200
    flood = [ask("ann", f"wrong {n}", "127.0.0.1") for n in range(100)]
    assert status(ask("ann", "ann", "127.0.0.2")) == 200
    names = [ask(f"n{n}", "wrong", "127.0.0.1") for n in range(100)]
    assert status(ask("bob", "bob", "127.0.0.1")) == 200
    for sock in names:
        sock.close()
    assert status(ask("guest", "guest", "127.0.0.1")) == 200
    assert status(ask("ann", "wrong", "127.0.0.3")) == 401
    for sock in flood:
        sock.close()


def test_the_rest_goes_on(broker: LiveBroker) -> None:
    with Wire(broker) as wire:
        wire.open()
        wire.channel()
        wire.declare()
