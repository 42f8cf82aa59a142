"""[queues] of a broker that runs: a queue in SQLite, looked at while it is used."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pamqp import commands

from penstock.queues.backing_choice import DEFAULT
from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import Wire, open_channel

pytestmark = pytest.mark.real

SQLITE = "penstock.queues.sqlite_queue:SqliteQueue"
ALLOWED = {"PENSTOCK_QUEUES_ALLOWED_BACKING_QUEUES": SQLITE}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", environment=ALLOWED) as live:
        yield live


def declare(wire: Wire, name: str, backing: str) -> None:
    wire.declare(name, durable=True, exclusive=False, arguments={"x-backing-queue": backing})


def publish(wire: Wire, name: str, *bodies: bytes) -> None:
    wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
    for body in bodies:
        wire.publish(1, name, body, properties=b"\x10\0\x02")  # delivery_mode=2
        _, answer = wire.receive()
        assert isinstance(answer, commands.Basic.Ack)


def get(wire: Wire, name: str) -> tuple[bytes, int]:
    wire.send(commands.Basic.Get(queue=name), 1)
    _, answer = wire.receive()
    assert isinstance(answer, commands.Basic.GetOk)
    wire.receive()
    _, body = wire.receive()
    return bytes(body.value), answer.delivery_tag


def rows(data: Path) -> list[tuple[str, bytes]]:
    """What anybody can read in the database of the only queue in SQLite."""
    (path,) = data.glob("vhosts/*/queues/*/messages.sqlite")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return database.execute("SELECT state, body FROM messages ORDER BY seq").fetchall()


def test_its_messages_can_be_read_while_it_is_used_and_survive_kills(broker: LiveBroker) -> None:
    with open_channel(broker) as wire:
        declare(wire, "seen", SQLITE)
        publish(wire, "seen", b"one", b"two", b"three")
        assert get(wire, "seen")[0] == b"one"
        assert rows(broker.data) == [("pending", b"one"), ("ready", b"two"), ("ready", b"three")]
    broker.kill()
    broker.start()
    with open_channel(broker) as wire:
        body, tag = get(wire, "seen")
        assert body == b"one"
        wire.send(commands.Basic.Ack(tag), 1)
        assert get(wire, "seen")[0] == b"two"
        assert rows(broker.data) == [("pending", b"two"), ("ready", b"three")]
        wire.ask(commands.Queue.Delete(queue="seen"), commands.Queue.DeleteOk)
    broker.stop()
    assert not list(broker.data.glob("vhosts/*/queues/*/messages.sqlite*"))


def test_a_class_that_is_not_allowed_is_refused(broker: LiveBroker) -> None:
    with open_channel(broker) as wire:
        wire.send(
            commands.Queue.Declare(queue="q", durable=True,
                                   arguments={"x-backing-queue": "os.path:join"}), 1
        )  # fmt: skip
        _, answer = wire.receive()
    assert isinstance(answer, commands.Channel.Close)
    assert answer.reply_code == 406
    assert answer.reply_text == (
        "PRECONDITION_FAILED - invalid arg 'x-backing-queue' for queue 'q' in vhost '/': received "
        f"'os.path:join', expected one that the operator allows: {DEFAULT}, {SQLITE}"
    )


def test_without_the_permission_it_opens_as_any_other_queue(broker: LiveBroker) -> None:
    with open_channel(broker) as wire:
        declare(wire, "seen", SQLITE)
        publish(wire, "seen", b"one")
    broker.stop()
    broker.environment = {"PENSTOCK_CHECK": "0"}
    broker.start()
    with open_channel(broker) as wire:
        assert get(wire, "seen")[0] == b"one"
    assert "option backing_queue: given" in broker.log_text()
    assert not list(broker.data.glob("vhosts/*/queues/*/messages.sqlite"))
