"""Leases and batches on a broker that really runs, beside clients of AMQP.

What Spark does comes over the control socket here, as the HTTP process asks it; its pages are
staged as that does it.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.storage.files.data_directory import hash_name
from penstock.storage.files.filesystem import OsFileSystem
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.helpers.staged_rig import Stager, plain

pika = pytest.importorskip("pika")
pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One for all tests; each has queues of its own."""
    data = tmp_path_factory.mktemp("spark") / "data"
    with LiveBroker(data) as live:
        yield live
        assert live.stop() == 0


@contextlib.contextmanager
def channel_of(broker: LiveBroker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    try:
        yield connection.channel()
    finally:
        connection.close()


def ask(broker: LiveBroker, op: str, **args: object) -> Any:
    from penstock.server.control import ControlClient

    with ControlClient(str(broker.data)) as client:
        return client.call(op, "/", **args)


def fill(channel: Any, queue: str, n: int) -> list[bytes]:
    bodies = [b"%d" % i for i in range(n)]
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
    return bodies


def test_consumers_beside_a_readers_lease(broker: LiveBroker) -> None:
    with channel_of(broker) as channel:
        bodies = fill(channel, "beside", 30)
        reader = {"queue": "beside", "reader": "r"}
        assert ask(broker, "lease_queue", **reader, messages=10)["head"] == 10
        got = []
        for method, _, body in channel.consume("beside", auto_ack=False, inactivity_timeout=60):
            got.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(got) == 20:
                break
        channel.cancel()
        assert got == bodies[10:]
        assert ask(broker, "commit_lease", **reader, offset=4) == {"first": 4}
        assert ask(broker, "release_lease", **reader) == {"messages": 6}
        found = [channel.basic_get("beside", auto_ack=True)[2] for _ in range(7)]
        assert found == [*bodies[4:10], None]


def test_purge_and_delete(broker: LiveBroker, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(broker.data)
    with channel_of(broker) as channel:
        fill(channel, "held", 9)
        ask(broker, "lease_queue", queue="held", reader="r", messages=4)
        assert channel.queue_purge("held").method.message_count == 5
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            channel.queue_delete("held")
        assert caught.value.reply_code == 406
        assert "is leased: 4 messages by readers [r]" in caught.value.reply_text
    assert main(["list", "leases", "name", "reader", "head", "--data", data]) == 0
    assert "held\tr\t4\n" in capsys.readouterr().out
    assert main(["delete", "queue", "held", "--data", data]) == 64
    assert "delete with force" in capsys.readouterr().err
    assert main(["release", "lease", "held", "r", "--data", data]) == 0
    assert "4 messages of queue 'held' released" in capsys.readouterr().out
    ask(broker, "lease_queue", queue="held", reader="r", messages=4)
    assert main(["delete", "queue", "held", "--force", "--data", data]) == 0


def test_a_batch_arrives_whatever_dies(broker: LiveBroker) -> None:
    stager = Stager(OsFileSystem(1), f"{broker.data}/vhosts/{hash_name(b'/')}")
    with channel_of(broker) as channel:
        channel.queue_declare("batch", durable=True)
    bodies = [b"%d" % i for i in range(20_000)]
    now_us = time.time_ns() // 1000
    tokens = stager.stage(0, plain("batch", *bodies), query="x", time_us=now_us)
    args = {"query": "x", "batch": 0, "target": {"queue": "batch"}, "pages": tokens}
    assert ask(broker, "commit_batch", **args) == {"status": "committed", "batch": 0}
    broker.kill()
    broker.start()

    def is_done() -> bool:
        return bool(ask(broker, "list_batches")[0]["is_done"])

    wait_until(is_done, "the end of the batch")
    assert ask(broker, "commit_batch", **args)["status"] == "already done"
    with channel_of(broker) as channel:
        asked = channel.queue_declare("batch", passive=True)
        assert asked.method.message_count == len(bodies)
        found = []
        for _, _, body in channel.consume("batch", auto_ack=True, inactivity_timeout=60):
            found.append(body)
            if len(found) == len(bodies):
                break
        channel.cancel()
    assert found == bodies
    assert main(["release", "query", "x", "--data", str(broker.data)]) == 0
    assert ask(broker, "list_batches") == []
