"""When consumers are served before the end of the turn, and that it costs nothing else.

What clients see of it: tests/conformance/test_served_at_once.py.
"""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.codec.spec import BasicConsume, BasicConsumeOk, BasicQos, QueueDeclare, QueueDeclareOk
from penstock.storage.files.durability import DISK
from tests.helpers.broker_rig import BrokerRig, RigClient
from tests.helpers.builds import pure_only
from tests.helpers.vhost_rig import classic


@pytest.fixture
def rig() -> BrokerRig:
    return BrokerRig()


def declared(rig: BrokerRig, **arguments: object) -> RigClient:
    client = rig.client().open()
    client.call(1, QueueDeclare(queue="q", durable=True, arguments=dict(arguments)), QueueDeclareOk)
    return client


def consume(client: RigClient, prefetch: int = 0) -> None:
    client.send(1, BasicQos(prefetch_count=prefetch))
    client.call(1, BasicConsume(queue="q", no_ack=not prefetch), BasicConsumeOk)


def counted(rig: BrokerRig, patch: pytest.MonkeyPatch) -> list[int]:
    """What every call of `serve` returned from now on."""
    amq = classic(rig.vhost.table.usable("q")).amq
    real: Callable[[int], int] = amq.serve
    calls: list[int] = []

    def serve(most: int) -> int:
        calls.append(real(most))
        return calls[-1]

    patch.setattr(amq, "serve", serve)
    return calls


def held_back(rig: BrokerRig, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on no first delivery of the queue may be made, as beyond the settled mark; until
    what is returned is called."""
    queue = classic(rig.vhost.table.usable("q"))
    mark: Any = queue.amq.backing.mark  # type: ignore[attr-defined]
    real = mark.waits_for
    patch.setattr(mark, "waits_for", lambda *_, **__: (1 << 60, DISK))

    def release() -> None:
        patch.setattr(mark, "waits_for", real)
        waiting: Any = rig.vhost.dispatch._waiting
        rig.vhost.dispatch._waiting = type(waiting)((0, DISK, call) for _, _, call in waiting)
        rig.vhost.dispatch.mark(queue)

    return release


@pytest.mark.parametrize(
    ("arguments", "has_consumer", "n"),
    [
        ({}, True, 0),
        ({"x-max-length": 100}, True, 0),
        ({"x-max-length-bytes": 1000, "x-overflow": "reject-publish"}, True, 0),
        ({"x-message-ttl": 1000}, True, 0),
        ({"x-max-length": 1}, False, 0),
        ({"x-max-length": 1, "x-overflow": "reject-publish"}, False, 0),
        ({"x-message-ttl": 0}, False, 0),
        ({"x-max-length": 1}, True, 25),
    ],
)
def test_a_publish_serves_only_when_a_limit_acts_and_somebody_consumes(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object],
    has_consumer: bool, n: int,
) -> None:  # fmt: skip
    client = declared(rig, **arguments)
    if has_consumer:
        consume(client, 60)
    calls = counted(rig, monkeypatch)
    for _ in range(50):
        client.publish(1, "", "q", b"1", delivery_mode=2)
    assert len(calls) == n
    rig.turn()
    assert len(client.bodies()) == (50 if has_consumer else 0)


@pure_only
@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": 1}, {"x-max-length": 1, "x-overflow": "reject-publish"},
        {"x-max-length-bytes": 4, "x-overflow": "reject-publish"}, {"x-message-ttl": 0},
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefetch", [0, 40])
def test_messages_that_are_held_back_for_the_log_are_the_consumers(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object], prefetch: int
) -> None:
    client = declared(rig, **arguments)
    consume(client, prefetch)
    release = held_back(rig, monkeypatch)
    for i in range(30):
        client.publish(1, "", "q", str(i).encode(), delivery_mode=2)
    rig.vhost.turn()
    rig.vhost.tick()
    assert not client.bodies()
    release()
    rig.turn()
    assert client.bodies() == [str(i).encode() for i in range(30)]


@pure_only
def test_beyond_what_they_have_room_for_a_held_queue_is_limited(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = declared(rig, **{"x-max-length": 10})
    consume(client, 20)
    release = held_back(rig, monkeypatch)
    for i in range(50):
        client.publish(1, "", "q", str(i).encode(), delivery_mode=2)
    release()
    rig.turn()
    assert client.bodies() == [str(i).encode() for i in range(20, 40)]
    assert classic(rig.vhost.table.usable("q")).amq.len() == 10


def test_a_burst_is_sent_on_before_the_limit_acts(rig: BrokerRig) -> None:
    """More in one packet than a connection's output holds in a turn."""
    client = declared(rig, **{"x-max-length": 1})
    consume(client)
    for _ in range(40):
        client.publish(1, "", "q", b"x" * 8000)
    rig.turn()
    assert len(client.bodies()) == 40


@pure_only
def test_an_error_of_the_queue_is_the_turns_and_the_publish_is_in(
    rig: BrokerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = declared(rig, **{"x-max-length": 1})
    consume(client, 10)
    queue: Any = rig.vhost.table.usable("q")
    client.publish(1, "", "q", b"1", delivery_mode=2)

    def fails() -> None:
        raise RuntimeError("of the queue")

    monkeypatch.setattr(queue.amq, "fetch", fails)
    client.publish(1, "", "q", b"2", delivery_mode=2)
    assert queue.amq.len() == 2
    rig.turn()
    assert [kind for kind, _ in rig.events if "queue" in kind] == ["queue_restarted"]
    client.publish(1, "", "q", b"3", delivery_mode=2)
    rig.turn()
    assert classic(rig.vhost.table.usable("q")).amq.len() == 1
