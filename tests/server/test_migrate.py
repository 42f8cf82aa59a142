"""Messages move from one broker to another: whole, once, in order, and again after a failure."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pika
import pytest

from penstock.cli.main import main
from penstock.client import migrate as module
from penstock.client.connection import connect
from penstock.client.migrate import MigrateError, move
from penstock.errors import ChannelError
from tests.helpers.live_broker import LiveBroker

PROPERTIES = pika.BasicProperties(
    content_type="text/plain", delivery_mode=2, priority=3, message_id="m", expiration="600000",
    headers={"CC": ["other"], "x-death": [{"count": 2, "queue": "q", "reason": "expired"}]},
)  # fmt: skip


@pytest.fixture
def old(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "old") as broker:
        yield broker


@pytest.fixture
def new(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "new") as broker:
        yield broker


def declare(broker: LiveBroker, **arguments: object) -> None:
    for name in ("jobs", "other"):
        broker.control("declare_queue", "/", queue=name, arguments=arguments)


def fill(broker: LiveBroker, n: int) -> None:
    """n messages in jobs, by way of a topic exchange."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.exchange_declare("work", "topic", durable=True)
        channel.queue_bind("jobs", "work", "job.#")
        channel.confirm_delivery()
        for i in range(n):
            properties = PROPERTIES if i == 0 else pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("work", f"job.{i}", b"%d" % i, properties)


def got(broker: LiveBroker) -> list[tuple[str, bytes, pika.BasicProperties]]:
    found = []
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get("jobs", auto_ack=True)
            if method is None:
                return found
            found.append((method.routing_key, body, properties))


def test_messages_arrive_as_they_were(old: LiveBroker, new: LiveBroker) -> None:
    declare(old)
    declare(new)
    fill(old, 700)
    seen: list[int] = []
    with connect(old.url) as source, connect(new.url) as target:
        moved = move(source, target, "jobs", on_progress=seen.append, idle_s=0.05)
    assert (moved.old_before, moved.new_before, moved.moved) == (700, 0, 700)
    assert (moved.old_after, moved.new_after) == (0, 700)
    assert seen == sorted(seen)
    assert seen[-1] == 700
    found = got(new)
    assert [(key, body) for key, body, _ in found] == [(f"job.{i}", b"%d" % i) for i in range(700)]
    assert found[0][2] == PROPERTIES
    rows = {row["name"]: row["messages"] for row in new.control("list_queues", "/")}
    assert rows == {"jobs": 0, "other": 0}  # not even by CC
    names = {row["name"] for row in new.control("list_exchanges", "/")}
    assert not any(name.startswith(module.PREFIX) for name in names)


def test_what_the_new_broker_refuses_stays_at_the_old_one(old: LiveBroker, new: LiveBroker) -> None:
    declare(old)
    declare(new, **{"x-max-length": 100, "x-overflow": "reject-publish"})
    fill(old, 300)
    with (
        pytest.raises(MigrateError, match="refuses a message; 100 were moved"),
        connect(old.url) as source, connect(new.url) as target,
    ):  # fmt: skip
        move(source, target, "jobs", idle_s=0.05)
    new.control("purge_queue", "/", queue="jobs")
    new.control("delete_queue", "/", queue="jobs")
    new.control("declare_queue", "/", queue="jobs")
    with connect(old.url) as source, connect(new.url) as target:
        assert move(source, target, "jobs", idle_s=0.05).moved == 200
    assert [body for _, body, _ in got(new)] == [b"%d" % i for i in range(100, 300)]


def test_a_kill_loses_nothing(old: LiveBroker, new: LiveBroker) -> None:
    declare(old)
    declare(new)
    fill(old, 1000)
    with connect(old.url) as source, connect(new.url) as target:

        def kill(moved: int) -> None:
            if moved >= 300:
                source.abort()

        with pytest.raises(Exception, match=r"connection|closed|lost"):
            move(source, target, "jobs", on_progress=kill, idle_s=0.05)
    with connect(old.url) as source, connect(new.url) as target:
        move(source, target, "jobs", idle_s=0.05)
    bodies = [int(body) for _, body, _ in got(new)]
    assert set(bodies) == set(range(1000))
    assert len(bodies) <= 1000 + module.IN_FLIGHT


def test_a_stream_and_an_unknown_queue(old: LiveBroker, new: LiveBroker) -> None:
    for broker in (old, new):
        broker.control("declare_queue", "/", queue="s", arguments={"x-queue-type": "stream"})
    old.control("publish", "/", routing_key="s", bodies=["a"])
    with connect(old.url) as source, connect(new.url) as target:
        moved = move(source, target, "s", idle_s=0.01)
        assert (moved.moved, moved.old_after) == (0, 1)
        with pytest.raises(ChannelError, match="no queue 'nowhere'"):
            move(source, target, "nowhere")


class Management(BaseHTTPRequestHandler):
    """The definitions of `old`, to guest."""

    old: LiveBroker

    def do_GET(self) -> None:
        is_right = self.headers["Authorization"] == "Basic Z3Vlc3Q6Z3Vlc3Q="
        self.send_response(200 if self.path == "/api/definitions" and is_right else 401)
        self.end_headers()
        self.wfile.write(json.dumps(self.old.control("export_definitions", "")).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_the_command_moves_definitions_and_messages(
    old: LiveBroker, new: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(old)
    fill(old, 20)
    old.control("declare_queue", "/", queue="s", arguments={"x-queue-type": "stream"})
    Management.old = old
    server = HTTPServer(("127.0.0.1", 0), Management)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        http = f"http://127.0.0.1:{server.server_port}"
        data = ["--data", str(new.data)]
        assert main(["migrate", old.url, "--http", http.replace("//", "//guest:no@"), *data]) == 69
        assert "is 'guest' an administrator there?" in capsys.readouterr().err
        assert main(["migrate", old.url, *data]) == 64
        assert main(["migrate", old.url, "--http", http, *data]) == 0
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    said = capsys.readouterr().out
    assert "jobs: 20 messages moved" in said
    assert "jobs\t20\t20\t0\t0\t20" in said
    assert "s: a stream, whose records are not moved" in said
    assert len(got(new)) == 20
    fill(old, 5)
    assert main(["migrate", old.url, "jobs", "--to", new.url, *data]) == 0
    assert len(got(new)) == 5


def test_what_a_consumer_of_the_old_broker_may_hold_is_named(
    old: LiveBroker, new: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(old)
    declare(new)
    fill(old, 5)
    words = ["migrate", old.url, "jobs", "other", "--to", new.url, "--data", str(new.data)]
    with pika.BlockingConnection(pika.URLParameters(old.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        held: list[bytes] = []
        channel.basic_consume("jobs", lambda *arrived: held.append(arrived[3]))
        while len(held) < 2:
            connection.process_data_events(None)
        assert main(words) == 69
    said = capsys.readouterr()
    assert "jobs\t3\t3\t0\t0\t3" in said.out
    assert "consumers of the old broker may hold messages of jobs, which were not moved" in said.err
    assert main(words) == 0
    assert len(got(new)) == 5
