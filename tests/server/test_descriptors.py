"""A broker whose processes may open few files: clients are refused, and the vhost goes on."""

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from penstock.server.descriptors import clients_max, default_limits
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.wire import Ended, Wire, open_channel

pytestmark = pytest.mark.real

NOFILE = 176
UNLIMITED = {
    "PENSTOCK_LIMITS_USER_CONNECTIONS": "-1",
    "PENSTOCK_LIMITS_VHOST_CONNECTIONS": "-1",
    "PENSTOCK_STORAGE_WAL_SEGMENT_BYTES_MIN": "65536",
    "PENSTOCK_STORAGE_WAL_SEGMENT_BYTES_MAX": "65536",
}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", environment=UNLIMITED, has_http=True, nofile=NOFILE) as live:
        yield live


def health(broker: LiveBroker) -> Any:
    link = http.client.HTTPConnection(broker.host, broker.http_port or 0, timeout=120)
    with contextlib.closing(link):
        link.request("GET", "/health")
        answer = link.getresponse()
        assert answer.status == 200
        return json.loads(answer.read())


def fill(broker: LiveBroker) -> tuple[list[Wire], tuple[int, str]]:
    """Connections as many as are taken, and what the next one is told."""
    clients: list[Wire] = []
    while True:
        assert len(clients) < NOFILE, "nobody was refused"
        wire = Wire(broker)
        wire.hello()
        wire.log_in()
        wire.agree()
        wire.send(commands.Connection.Open(virtual_host="/"))
        _, answer = wire.receive()
        if isinstance(answer, commands.Connection.Close):
            with contextlib.suppress(Ended):
                wire.send(commands.Connection.CloseOk())
            wire.sock.close()
            return clients, (answer.reply_code or 0, answer.reply_text)
        clients.append(wire)


def publish(wire: Wire, n: int) -> None:
    """Confirmed one by one, and each in another segment of the log."""
    for _ in range(n):
        wire.publish(1, "q", bytes(60_000), properties=b"\x10\0\x02")
        wire.expect(commands.Basic.Ack, 1)


def test_clients_beyond_the_descriptors_are_refused_and_the_vhost_goes_on(
    broker: LiveBroker,
) -> None:
    with open_channel(broker) as publisher:
        publisher.declare("q", durable=True, exclusive=False)
        publisher.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
        publish(publisher, 3)
        clients, (code, text) = fill(broker)
        most = len(clients) + 1
        assert clients_max(NOFILE) - 20 <= most <= clients_max(NOFILE)
        assert code == 506
        assert text.startswith("RESOURCE_ERROR - access to vhost '/' refused for user 'guest': ")
        assert f"its process has {most} connections, and no descriptors for more" in text
        publish(publisher, 20)
        (problem,) = broker.control("status")["problems"]
        assert problem.startswith("vhost '/' takes no more clients: its process has ")
        (row,) = broker.control("list_vhosts")
        assert row["why"].startswith("takes no more clients: ")
        assert row["takes_clients"] is False
        refused = {"status": "clients are refused", "low_on": ["descriptors"]}
        wait_until(lambda: health(broker) == refused, "/health")
        for _ in range(40):  # as clients do that connect again and again
            more, (code, _) = fill(broker)
            clients += more
            assert code == 506
            clients.pop().sock.close()
            publish(publisher, 1)
        for client in clients:
            client.sock.close()
        wait_until(lambda: health(broker) == {"status": "ok"}, "/health")
        (row,) = broker.control("list_vhosts")
        assert (row["restarts"], row["why"]) == (0, "")
        publish(publisher, 1)


def test_the_defaults_of_limits_follow(broker: LiveBroker) -> None:
    limits = default_limits(NOFILE)
    assert (limits.vhost_connections, limits.user_connections) == (clients_max(NOFILE), 63)
    assert default_limits(1 << 20).user_connections == 4096
    assert "limits.user_connections" not in broker.log_text()
    broker.stop()
    broker.environment["PENSTOCK_LIMITS_USER_CONNECTIONS"] = "1000"
    broker.start()
    assert (
        f"limits.user_connections is 1000, but a process may open {NOFILE} files (ulimit -n): a "
        f"vhost takes at most {clients_max(NOFILE)} connections"
    ) in broker.log_text()
