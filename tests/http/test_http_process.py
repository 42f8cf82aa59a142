"""The HTTP process of a broker that really runs: users, kills, giving up, ports, stops.

What it answers about streams: test_streams_over_http. Everything here is a real process and a real
connection; what is waited for is always a condition.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.asgi_client import basic
from tests.helpers.live_broker import FEW_RESTARTS, HASTY, LiveBroker, is_gone, wait_until
from tests.helpers.wire import open_channel

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One for all tests that leave it as they find it."""
    data = tmp_path_factory.mktemp("shared") / "data"
    with LiveBroker(data, has_http=True) as live:
        yield live
        assert live.stop() == 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    """One that a test may stop and kill."""
    with LiveBroker(tmp_path / "data", environment=FEW_RESTARTS, has_http=True) as live:
        yield live


def get(
    broker: LiveBroker, address: str, user: str = "guest", password: str | None = None
) -> tuple[int, Any]:
    """(status, JSON) of a request on a connection of its own."""
    assert broker.http_port is not None
    with contextlib.closing(
        http.client.HTTPConnection(broker.host, broker.http_port, timeout=120)
    ) as connection:
        header = basic(user, user if password is None else password)
        connection.request("GET", address, headers={"Authorization": header})
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())


def facts(broker: LiveBroker) -> dict[str, Any]:
    found = broker.control("status")["http"]
    assert isinstance(found, dict)
    return found


def test_the_ready_line_names_it_and_status_shows_it(shared: LiveBroker) -> None:
    assert f"  http://localhost:{shared.http_port}/  " in shared.ready_line
    shared.control("await_startup")
    assert get(shared, "/health")[0] == 200
    assert get(shared, "/api/overview")[1]["product_name"] == "Penstock"
    found = facts(shared)
    assert (found["state"], found["port"], found["restarts"]) == ("running", shared.http_port, 0)
    wait_until(lambda: facts(shared)["requests"] >= 2, "the count of requests")


def test_whoever_connects_before_it_runs_waits(broker: LiveBroker) -> None:
    assert get(broker, "/health") == (200, {"status": "ok"})


def test_users_are_those_of_amqp_and_changes_count_at_once(shared: LiveBroker) -> None:
    assert get(shared, "/api/overview", "guest", "wrong")[0] == 401
    assert get(shared, "/api/overview", "eve")[0] == 401
    shared.control("add_user", name="eve", password="eve", tags=["management"])
    assert get(shared, "/api/overview", "eve")[0] == 200
    assert get(shared, "/api/streams/%2F", "eve")[0] == 403
    shared.control("set_permissions", "/", user="eve", configure="", write="", read=".*")
    assert get(shared, "/api/streams/%2F/x", "eve")[0] == 404
    shared.control("clear_permissions", "/", user="eve")
    assert get(shared, "/api/streams/%2F/x", "eve")[0] == 403
    shared.control("change_password", name="eve", password="new")
    assert get(shared, "/api/overview", "eve")[0] == 401
    assert get(shared, "/api/overview", "eve", "new")[0] == 200
    shared.control("delete_user", name="eve")
    assert get(shared, "/api/overview", "eve", "new")[0] == 401
    shared.control("add_vhost", name="a/b")
    assert get(shared, "/api/streams/a%2Fb")[0] == 403
    shared.control("delete_vhost", name="a/b")
    assert get(shared, "/api/streams/a%2Fb")[0] == 404


def test_many_connections_at_once(shared: LiveBroker) -> None:
    assert shared.http_port is not None
    connections = [
        http.client.HTTPConnection(shared.host, shared.http_port, timeout=120) for _ in range(200)
    ]
    headers = {"Authorization": basic("guest", "guest")}
    for _ in range(2):
        for connection in connections:
            connection.request("GET", "/api/overview", headers=headers)
        for connection in connections:
            reply = connection.getresponse()
            assert (reply.status, len(reply.read())) == (200, int(reply.headers["content-length"]))
    for connection in connections:
        connection.close()


def test_bad_http_harms_nobody(shared: LiveBroker) -> None:
    assert shared.http_port is not None
    for data in (
        b"AMQP\0\0\x09\x01", b"\0" * 100, b"GET /\xff HTTP/1.1\r\n\r\n", b"GET / HTTP/9\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", b"\r\n" * 1000,
        b"PUT /api/overview HTTP/1.1\r\ncontent-length: 10\r\n\r\nshort",
        b"GET http://other/health HTTP/1.1\r\n\r\n", b"GET * HTTP/1.1\r\n\r\n",
        b"GET /api/%zz HTTP/1.1\r\n\r\n", b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    ):  # fmt: skip
        with socket.create_connection((shared.host, shared.http_port), timeout=120) as sock:
            try:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(4096):
                    pass
            except TimeoutError:
                raise
            except OSError:  # it has hung up, perhaps before all was said
                pass
    assert get(shared, "/health")[0] == 200
    assert facts(shared)["restarts"] == 0
    assert "Traceback" not in shared.log_text()


# --- failures ---


def test_killed_it_is_back_and_the_broker_has_gone_on(broker: LiveBroker) -> None:
    broker.control("await_startup")
    with open_channel(broker) as wire:
        wire.declare("q")
        pid = facts(broker)["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_gone(pid), "its end")
        # The port is the supervisor's: a request meanwhile is answered by the next process.
        assert get(broker, "/health") == (200, {"status": "ok"})
        found = facts(broker)
        assert found["pid"] != pid
        assert found["restarts"] == 1
        wire.declare("q2")


def test_hung_it_is_replaced(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", environment=HASTY, has_http=True) as broker:

        def pid_that_serves() -> int:
            found = facts(broker)
            return int(found["pid"]) if found["state"] == "running" else 0

        def is_healthy() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return get(broker, "/health")[0] == 200
            return False

        pid = wait_until(pid_that_serves, "it to run")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: facts(broker)["pid"] not in (pid, None), "another process")
        assert is_gone(pid)
        wait_until(is_healthy, "its answer")
        assert "http is killed: it did not answer for" in broker.log_text()


def test_failing_too_often_it_stays_down_alone(broker: LiveBroker) -> None:
    for restarts in range(3):
        wait_until(lambda: facts(broker)["state"] == "running", "it to run")
        assert facts(broker)["restarts"] == restarts
        pid = facts(broker)["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: facts(broker)["pid"] != pid, "its end")  # type: ignore[misc]
    wait_until(lambda: facts(broker)["state"] == "down", "it to be down")
    assert "was killed (SIGKILL)" in facts(broker)["error"]
    with pytest.raises(ConnectionRefusedError):
        get(broker, "/health")
    with open_channel(broker) as wire:
        wire.declare("q")
    assert broker.stop() == 0


def test_it_ends_with_the_supervisor(broker: LiveBroker) -> None:
    broker.control("await_startup")
    pid = facts(broker)["pid"]
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid), "the end of the http process")
    broker.kill()
    broker.start()
    assert get(broker, "/health")[0] == 200


def test_sigterm_to_it_alone_is_one_more_life(broker: LiveBroker) -> None:
    broker.control("await_startup")
    pid = facts(broker)["pid"]
    os.kill(pid, signal.SIGTERM)
    wait_until(lambda: facts(broker)["pid"] not in (pid, None), "another process")
    assert get(broker, "/health")[0] == 200


def test_idle_connections_do_not_hold_up_a_stop(broker: LiveBroker) -> None:
    assert broker.http_port is not None
    with socket.create_connection((broker.host, broker.http_port)) as silent:
        connection = http.client.HTTPConnection(broker.host, broker.http_port)
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        assert broker.stop() == 0  # they might be kept for longer than that may take
        assert silent.recv(1) == b""
        connection.close()


# --- ports ---


def serve(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-m", "penstock", "serve", *words], capture_output=True, text=True,
        timeout=60, cwd=cwd, check=False, env=environment,
    )  # fmt: skip


def test_a_port_that_is_taken_is_told_and_nothing_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve("--port", "0", "--http-port", str(port), "--data", "d", cwd=tmp_path)
        assert done.returncode == 69
        (line,) = done.stderr.splitlines()
        assert f"127.0.0.1:{port} is taken by another process" in line
        assert "--http-port 0 for a free one, or --http-port off" in line
        assert not (tmp_path / "d" / "vhosts").exists()
    done = serve("--port", "0", "--http-port", "http", cwd=tmp_path)
    assert done.returncode == 64
    assert "a whole number from 0 to 65535, or off" in done.stderr


def test_off_there_is_none(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data") as broker:
        assert "http" not in broker.ready_line
        assert broker.control("status")["http"] is None
        broker.control("await_startup")
        assert len(broker.pids()) == 3  # with the vhost and the template


def test_it_listens_where_amqp_does(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", "--host", "localhost", has_http=True) as broker:
        assert broker.http_port is not None
        for _, _, _, _, place in set(socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)):
            with socket.create_connection((str(place[0]), broker.http_port), timeout=120) as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
