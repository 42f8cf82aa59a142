"""Cached routes take a bounded part of the vhost's memory, and are counted as what they take."""

import tracemalloc

from penstock.access.permissions import everything
from penstock.broker.route_caches import CHANNEL_PART, USER_PART, VHOST_PART
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


def test_a_user_who_fills_caches_empties_own_ones() -> None:
    _, (quiet, greedy) = rig_with_channels(20, ("quiet", "greedy"))
    publish_to_keys(quiet, 1, 50)
    routes = quiet.handler.channels[1].publisher.routes
    for number in range(1, 21):
        publish_to_keys(greedy, number)
    assert quiet.handler.channels[1].publisher.routes == routes
    assert len(routes) == 50


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


def test_a_change_of_the_topology_empties_the_cache() -> None:
    rig, (client,) = rig_with_channels(1)
    publish_to_keys(client, 1, 5)
    held = rig.vhost.usage.routes.bytes
    client.call(1, QueueDeclare(queue="q"), QueueDeclareOk)
    publish_to_keys(client, 1, 1)
    assert 0 < rig.vhost.usage.routes.bytes < held


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
