"""kill -9 of the real broker, again and again, under load: nothing confirmed is ever lost.

Seven clients publish with confirms, commit transactions over four queues, consume, reject and let
messages expire; after a random number of their events the whole process tree is killed, sometimes
once more while it recovers; the ledger judges what is found. 2 cycles in `make test`, 20 in `make
crash`, any number by PENSTOCK_KILLS. One vhost killed alone must not be felt by another.
"""

import os
import random
import signal
from pathlib import Path

import pytest
from pamqp import commands

from tests.conftest import IMAGES_OF_MAKE_CRASH
from tests.crash.live_clients import (
    ALL_QUEUES,
    CLIENTS,
    Client,
    Publisher,
    declare_all,
    drain,
    drain_all,
    session,
)
from tests.crash.live_ledger import Ledger
from tests.helpers.live_broker import LiveBroker, children_of, is_gone, wait_until
from tests.helpers.wire import Ended, Wire

pytestmark = [pytest.mark.crash, pytest.mark.real, pytest.mark.timeout(0)]

SEED = int(os.environ.get("PENSTOCK_SEED", "1"))


@pytest.fixture
def kills(crash_images: int) -> int:
    return int(os.environ.get("PENSTOCK_KILLS", 20 if crash_images >= IMAGES_OF_MAKE_CRASH else 2))


def load(broker: LiveBroker, ledger: Ledger, rng: random.Random, events: int) -> None:
    """All clients at work until they have done `events` things; then everything is killed."""
    clients = [kind(broker, ledger, random.Random(rng.random())) for kind in CLIENTS]
    for client in clients:
        client.start()
    until = ledger.events + events
    wait_until(
        lambda: ledger.events >= until or failures(clients), f"{events} events of clients", 120
    )
    broker.kill()
    for client in clients:
        client.join(60)
        assert not client.is_alive(), f"{type(client).__name__} still waits"
    assert not failures(clients)


def failures(clients: list[Client]) -> list[str]:
    return [
        f"{type(client).__name__}: {client.failure!r}"
        for client in clients
        if client.failure is not None
    ]


def restart(broker: LiveBroker, rng: random.Random) -> None:
    """Started again; in one case of three it is killed while it recovers, first."""
    if rng.random() < 1 / 3:
        broker.launch()
        pid = broker.pid
        wait_until(lambda: children_of(pid), "the vhost's process")
        broker.kill()
    broker.start()


def test_a_killed_broker_keeps_every_promise(
    tmp_path_factory: pytest.TempPathFactory, kills: int
) -> None:
    rng = random.Random(SEED)
    ledger = Ledger()
    directory = tmp_path_factory.mktemp("kills") / "data"
    with LiveBroker(directory, "--memory", "64MiB") as broker:
        declare_all(broker)
        for cycle in range(kills):
            load(broker, ledger, rng, rng.randint(200, 1500))
            restart(broker, rng)
            counts = {queue: len(numbers) for queue, numbers in ledger.confirmed.items()}
            found = drain_all(broker, ledger)
            mistakes = ledger.audit(found)
            assert not mistakes, f"seed {SEED}, cycle {cycle}: {mistakes[:10]}"
            print(f"cycle {cycle}: confirmed {counts}, found {sum(map(len, found.values()))}")
        assert broker.stop() == 0, broker.log_text()
        broker.start()
        with session(broker) as wire:
            for queue in ALL_QUEUES:
                assert drain(wire, queue, lambda data, _: len(data)) == []


def keep_publishing(broker: LiveBroker, vhost: str, publisher: Publisher, ledger: Ledger) -> None:
    """Starts the publisher and waits until it is well under way."""
    publisher.start()
    wait_until(
        lambda: len(ledger.confirmed.get("plain", ())) > 200 or publisher.failure,
        f"confirms of vhost {vhost}",
    )
    assert publisher.failure is None


def pid_of(broker: LiveBroker, vhost: str) -> int:
    """The process of a vhost; 0 while it has none."""
    rows = broker.control("list_vhosts")
    return next(int(row["pid"] or 0) for row in rows if row["name"] == vhost)


def open_again(broker: LiveBroker, vhost: str) -> Wire | None:
    """A client that tries once to come back."""
    wire = Wire(broker)
    try:
        wire.open(vhost)
        wire.channel()
        return wire
    except (Ended, ConnectionError, AssertionError):
        wire.sock.close()
        return None


def test_a_killed_vhost_is_back_and_the_others_never_notice(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    ledgers = {"/": Ledger(), "other": Ledger()}
    with LiveBroker(tmp_path_factory.mktemp("isolation") / "data") as broker:
        broker.control("add_vhost", name="other")
        broker.control(
            "set_permissions", vhost="other", user="guest", configure=".*", write=".*", read=".*"
        )
        publishers = {}
        for vhost, ledger in ledgers.items():
            with session(broker, vhost) as wire:
                wire.declare("plain", durable=True, exclusive=False)
            publishers[vhost] = Publisher(broker, ledger, random.Random(SEED), vhost)
            keep_publishing(broker, vhost, publishers[vhost], ledger)
        for _ in range(2):
            victim = wait_until(lambda: pid_of(broker, "other"), "the vhost's process")
            os.kill(victim, signal.SIGKILL)
            publishers["other"].join(60)
            assert not publishers["other"].is_alive()
            before = len(ledgers["/"].confirmed["plain"])
            wire = wait_until(lambda: open_again(broker, "other"), "the vhost's return")
            wire.sock.close()
            wait_until(lambda n=before: len(ledgers["/"].confirmed["plain"]) > n + 100)  # type: ignore[misc]
            assert publishers["/"].is_alive()
            assert publishers["/"].failure is None
            ledger = ledgers["other"]
            publishers["other"] = Publisher(broker, ledger, random.Random(SEED + 1), "other")
            count = len(ledger.confirmed["plain"])
            publishers["other"].start()
            wait_until(lambda k=ledger, n=count: len(k.confirmed["plain"]) > n + 100)  # type: ignore[misc]
        for vhost, publisher in publishers.items():
            publisher.is_stopping = True
            publisher.join(60)
            assert publisher.failure is None
            ledger = ledgers[vhost]
            with session(broker, vhost) as wire:
                wire.ask(commands.Tx.Select(), commands.Tx.SelectOk)
                found = drain(wire, "plain", lambda d, r, k=ledger: k.see("plain", d, r))  # type: ignore[misc]
            assert ledger.confirmed["plain"] <= set(found)
            assert found == sorted(found)
            assert ledger.mistakes == []
        assert broker.stop() == 0, broker.log_text()


def test_nothing_is_left_of_a_killed_tree(tmp_path: Path) -> None:
    """The lock of the directory goes with the processes: the next start needs no help."""
    broker = LiveBroker(tmp_path / "data")
    for _ in range(2):
        broker.start()
        pids = broker.pids()
        broker.kill()
        assert not [pid for pid in pids if not is_gone(pid)]
