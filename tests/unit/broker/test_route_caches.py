"""Cached routes take a bounded part of the vhost's memory, and are counted as what they take."""

import tracemalloc

import pytest

import penstock
from penstock.access.permissions import everything
from penstock.broker.publish import CHANGES_MAX, Publisher, Route
from penstock.broker.usage import CHANNEL_PART, USER_PART, VHOST_PART
from penstock.codec.spec import ChannelClose, ChannelCloseOk, QueueDeclare, QueueDeclareOk
from tests.helpers.broker_rig import BrokerRig, RigClient

MIB = 1 << 20
MEMORY_BYTES = 16 * MIB
KEYS = 600


def publish_to_keys(client: RigClient, channel: int, count: int = KEYS) -> None:
    """Publish to `count` long keys of amq.topic that no other channel has."""
    rest = f".{channel}.{client.handler.identity.name}".ljust(230, "k")
    for number in range(count):
        client.publish(channel, "amq.topic", f"{number}{rest}", b"")
    client.rig.turn()


def rig_with_channels(
    channels: int, users: tuple[str, ...] = ("u",)
) -> tuple[BrokerRig, list[RigClient]]:
    rig = BrokerRig(memory_bytes=MEMORY_BYTES)
    clients = [rig.client(everything(user)) for user in users]
    for client in clients:
        for number in range(1, channels + 1):
            client.open(number)
    return rig, clients


def test_routes_of_one_channel_are_bounded() -> None:
    rig, (client,) = rig_with_channels(1)
    publish_to_keys(client, 1)
    assert 0 < rig.vhost.usage.routes.bytes <= MEMORY_BYTES // CHANNEL_PART


def test_routes_of_one_user_are_bounded_over_all_channels() -> None:
    rig, (client,) = rig_with_channels(20)
    for number in range(1, 21):
        publish_to_keys(client, number, 40)
    held = rig.vhost.usage.routes.bytes
    most = MEMORY_BYTES // USER_PART
    assert most - MEMORY_BYTES // CHANNEL_PART <= held <= most


def test_routes_of_a_vhost_are_bounded_over_all_users() -> None:
    rig, clients = rig_with_channels(10, ("a", "b", "c", "d"))
    for client in clients:
        for number in range(1, 11):
            publish_to_keys(client, number, 40)
    held = rig.vhost.usage.routes.bytes
    most = MEMORY_BYTES // VHOST_PART
    assert most - MEMORY_BYTES // CHANNEL_PART <= held <= most


@pytest.mark.large
def test_a_user_who_fills_caches_empties_own_ones() -> None:
    _, (quiet, greedy) = rig_with_channels(20, ("quiet", "greedy"))
    publish_to_keys(quiet, 1, 50)
    routes = quiet.handler.channels[1].publisher.routes
    for number in range(1, 21):
        publish_to_keys(greedy, number)
    assert quiet.handler.channels[1].publisher.routes == routes
    assert len(routes) == 50


@pytest.mark.large
def test_routes_are_counted_in_the_memory_as_what_they_take() -> None:
    rig, (client,) = rig_with_channels(1)
    rig.vhost.set_memory(1024 * MIB)
    publish_to_keys(client, 1, 1)
    before = rig.vhost.usage.client_bytes
    tracemalloc.start()
    try:
        publish_to_keys(client, 1, 2000)
        rig.turn()
        client.outlet.sent.clear()
        real = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    counted = rig.vhost.usage.client_bytes - before
    assert real * 0.8 <= counted <= real * 2


def test_a_route_to_many_queues_counts_them() -> None:
    rig, (client,) = rig_with_channels(1)
    for number in range(100):
        client.call(1, QueueDeclare(queue=f"q{number}"), QueueDeclareOk)
        rig.vhost.bind_queue(f"q{number}", "amq.fanout", "")
    routes = rig.vhost.usage.routes
    client.publish(1, "amq.topic", "k", b"")
    few = routes.bytes
    client.publish(1, "amq.fanout", "", b"")
    assert routes.bytes - few >= few + 8 * 100


def test_a_closed_channel_holds_no_routes() -> None:
    rig, (client,) = rig_with_channels(2)
    publish_to_keys(client, 1, 5)
    publish_to_keys(client, 2, 5)
    client.call(1, ChannelClose(), ChannelCloseOk)
    assert rig.vhost.usage.routes.bytes > 0
    client.lose()
    assert rig.vhost.usage.routes.bytes == 0


def test_many_changes_of_the_topology_empty_the_cache() -> None:
    """It may name queues that are gone."""
    rig, (client,) = rig_with_channels(1)
    publish_to_keys(client, 1, 5)
    held = rig.vhost.usage.routes.bytes
    for number in range(CHANGES_MAX + 1):
        client.call(1, QueueDeclare(queue=f"q{number}"), QueueDeclareOk)
    publish_to_keys(client, 1, 1)
    assert 0 < rig.vhost.usage.routes.bytes < held


def test_a_change_costs_only_the_routes_that_it_concerns(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, (client,) = rig_with_channels(1)
    vhost = rig.vhost
    for name in ("a", "b"):
        vhost.declare_queue(name)
    vhost.bind_queue("a", "amq.topic", "a")
    vhost.bind_queue("b", "amq.direct", "b")
    resolved: list[bytes] = []
    publisher = client.handler.channels[1].publisher
    resolve = Publisher.resolve

    def noted(self: Publisher, raw: bytes) -> Route:
        resolved.append(raw)
        return resolve(self, raw)

    if penstock.build_kind() == "pure":  # compiled code calls its own methods directly
        monkeypatch.setattr(Publisher, "resolve", noted)
    places = (("amq.topic", "a"), ("amq.direct", "b"), ("", "a"))

    def publish() -> int:
        resolved.clear()
        for exchange, key in places:
            client.publish(1, exchange, key, b"")
        rig.turn()
        return len(resolved)

    def depths() -> list[int]:
        return [vhost.table.served[name].len() for name in ("a", "b")]

    first = publish()
    assert publish() == 0
    vhost.bind_queue("b", "amq.topic", "other.#")
    assert publish() == min(first, 1)
    vhost.bind_queue("b", "amq.headers", "", {"n": 1})
    assert publish() == 0
    assert depths() == [8, 4]
    held = vhost.usage.routes.bytes
    vhost.bind_queue("b", "amq.topic", "a")
    publish()
    assert depths() == [10, 6]
    assert vhost.usage.routes.bytes == held + 8, "it counts what replaced it, no more"
    vhost.delete_queue(vhost.table.served["a"])
    publish()
    assert vhost.table.served["b"].len() == 8
    assert len(publisher.routes) == 3


def test_what_is_kept_behind_headers_exchanges_is_counted() -> None:
    rig, (client,) = rig_with_channels(1)
    vhost = rig.vhost
    for name in ("f", "g"):
        vhost.topology.declare_exchange(name, "fanout")
        vhost.topology.bind_exchange(name, "amq.headers", "", {"n": name})
        for number in range(50):
            vhost.declare_queue(f"{name}{number}")
            vhost.bind_queue(f"{name}{number}", name, "")
    counted = []
    for headers in ({}, {"n": "f"}, {"n": "g"}, {"n": "g"}):
        client.publish(1, "amq.headers", "", b"", headers=headers)
        rig.turn()
        counted.append(vhost.usage.routes.bytes)
    assert counted[0] < counted[1] < counted[2] == counted[3]
    assert vhost.table.served["g7"].len() == 2
    client.call(1, ChannelClose(), ChannelCloseOk)
    assert vhost.usage.routes.bytes == 0


def test_caches_are_emptied_before_the_process_takes_so_much_that_publishers_wait() -> None:
    rig, (client,) = rig_with_channels(1)
    trims: list[int] = []
    resident = [0]
    rig.vhost.watch_rss(lambda: resident[0], lambda: trims.append(1))
    publish_to_keys(client, 1, 5)
    resident[0] = 2 * 1024 * MIB
    while not trims:
        rig.vhost.clock.advance(1.0)
        rig.vhost.tick()
    assert rig.vhost.usage.routes.bytes == 0
    assert rig.vhost.blocked_reason == ""
    publish_to_keys(client, 1, 5)  # which goes on
    assert rig.vhost.usage.routes.bytes > 0
