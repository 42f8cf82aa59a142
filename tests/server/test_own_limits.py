"""A broker that is started with less memory than its queues may have of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import open_channel

pytestmark = pytest.mark.real

MIB = 1 << 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "data", "--memory", "128MiB") as live:
        with open_channel(live) as wire:
            for name, most in (("first", 20 * MIB), ("second", 60 * MIB)):
                wire.declare(
                    name, durable=True, exclusive=False,
                    arguments={"x-queue-max-memory-bytes": most},
                )  # fmt: skip
            wire.declare("free", durable=True, exclusive=False)
        live.stop()
        live.options = ("--memory", "64MiB")
        yield live


def test_it_says_so_and_serves(broker: LiveBroker) -> None:
    broker.start()
    assert (
        "the queues' own memory limits come to 80 MiB, 125 % of it: 64 MiB; " in broker.log_text()
    )
    assert "'second' 60 MiB, 'first' 20 MiB" in broker.log_text()
    with open_channel(broker) as wire:
        for name in ("first", "second", "free"):
            wire.ask(commands.Queue.Declare(queue=name, passive=True), commands.Queue.DeclareOk)


def test_a_strict_one_keeps_the_queue_down_that_is_too_much(broker: LiveBroker) -> None:
    broker.environment["PENSTOCK_STRICT"] = "true"
    broker.start()
    rows = {row["name"]: row for row in broker.control("list_queues", "/")}
    assert rows["second"]["state"] == "down"
    assert rows["second"]["why"].startswith(
        "its own memory limit is 60 MiB, expected at most the 4"
    )
    assert {rows[name]["state"] for name in ("first", "free")} == {"running"}
    with open_channel(broker) as wire:
        for name in ("first", "free"):
            wire.ask(commands.Queue.Declare(queue=name, passive=True), commands.Queue.DeclareOk)
        wire.send(commands.Queue.Declare(queue="second", passive=True), 1)
        closed = wire.expect(commands.Channel.Close, 1)
        assert closed.reply_code == 404
        assert "has crashed and failed to restart" in closed.reply_text
    broker.stop()
    broker.options = ("--memory", "128MiB")
    broker.start()
    with open_channel(broker) as wire:
        wire.ask(commands.Queue.Declare(queue="second", passive=True), commands.Queue.DeclareOk)
