"""Listings of who is connected to a vhost, its channels and its consumers, and of what it told:
its alerts; as plain dicts.

Field names are those of RabbitMQ's listings. What is listed is what there is at this moment; each
list is made in one go, between two turns.

Not here: queues, exchanges, bindings (vhost_info.py), connections (connection_handler.py, asked by
the server's process, which also knows those that are still being handed over).
"""

from penstock.broker.channel import Channel, ChannelOwner
from penstock.broker.consumers import Consumer
from penstock.broker.served_queue import Served
from penstock.broker.vhost import VHost

Info = dict[str, object]


def list_channels(vhost: VHost) -> list[Info]:
    """Of all channels, by connection and number."""
    found: list[Info] = []
    for owner in vhost.handlers:
        assert isinstance(owner, ChannelOwner)
        found += [channel_info(vhost, channel) for channel in owner.channels.values()]
    return sorted(found, key=lambda row: (str(row["connection"]), str(row["number"]).zfill(5)))


def channel_info(vhost: VHost, channel: Channel) -> Info:
    """Of one channel."""
    name = f"{channel.handler.name} ({channel.number})"
    return {"name": name, "user": channel.identity.name, "vhost": vhost.name, **channel.info()}


def list_alerts(vhost: VHost) -> list[Info]:
    """What is on, and the last of what was, the oldest first."""
    return vhost.alerts.list.rows()


def list_consumers(vhost: VHost) -> list[Info]:
    """Of all consumers, by queue."""
    return [
        consumer_info(vhost, queue, consumer)
        for _, queue in sorted(vhost.table.served.items())
        for consumer in queue.consumers.all()
    ]


def consumer_info(vhost: VHost, queue: Served, consumer: Consumer) -> Info:
    """Of one consumer. active: it is given messages: always, but for a single active consumer."""
    consumers = queue.consumers
    channel = consumer.channel
    found: Info = {
        "queue_name": queue.name,
        "vhost": vhost.name,
        "consumer_tag": consumer.tag,
        "ack_required": not consumer.no_ack,
        "prefetch_count": consumer.prefetch,
        "exclusive": consumer.is_exclusive,
        "priority": consumer.priority,
        "active": not consumers.is_single_active or consumers.active is consumer,
        "unacked": consumer.unacked,
        "delivered": consumer.delivered,
        "arguments": consumer.arguments,
    }
    if isinstance(channel, Channel):
        found["connection"] = channel.handler.name
        found["channel"] = f"{channel.handler.name} ({channel.number})"
        found["user"] = channel.identity.name
    return found
