"""pika, blocking: how queues come and go, and how errors show.

Exclusive, auto-delete and expiring queues; purge, delete and declaring again; which errors close
the channel, and which the connection. All of it holds on RabbitMQ 3.10, too.
"""

from collections.abc import Callable

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError

from tests.conformance.pika_calls import QueueTarget, drain, get, settle
from tests.helpers.live_broker import wait_until

pytestmark = pytest.mark.real


# --- queues and their ends ---


def test_an_exclusive_queue_goes_with_its_connection(
    connect: Callable[[], BlockingConnection], name: str
) -> None:
    owner, other = connect(), connect().channel()
    owner.channel().queue_declare(name, exclusive=True)
    owner.close()
    other.queue_declare(name, exclusive=True)


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    channel: BlockingChannel, name: str
) -> None:
    channel.queue_declare(name, auto_delete=True)
    tags = [QueueTarget(channel, name).tag for _ in range(2)]
    channel.basic_cancel(tags[0])
    channel.queue_declare(name, passive=True)
    channel.basic_cancel(tags[1])
    with pytest.raises(ChannelClosedByBroker) as told:
        channel.queue_declare(name, passive=True)
    assert told.value.reply_code == 404


def test_an_unused_queue_expires(connect: Callable[[], BlockingConnection], name: str) -> None:
    connection = connect()
    connection.channel().queue_declare(name, arguments={"x-expires": 200})

    def is_gone() -> bool:
        # A passive declare would be a use; a consumer of another queue with this name is not asked.
        channel = connection.channel()
        try:
            channel.queue_bind(name, "amq.direct", "k")
        except ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        channel.close()
        return False

    wait_until(is_gone, "expiry")


def test_purge_and_delete_tell_how_many(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    for _ in range(7):
        channel.basic_publish("", name, b"x")
    get(channel, name)
    settle(channel)
    assert channel.queue_purge(name).method.message_count == 6
    for _ in range(3):
        channel.basic_publish("", name, b"x")
    settle(channel)
    assert channel.queue_delete(name).method.message_count == 3


def test_a_queue_declared_again_is_the_same(channel: BlockingChannel, name: str) -> None:
    arguments = {"x-max-priority": 5, "x-message-ttl": 60_000}
    channel.queue_declare(name, durable=True, arguments=arguments)
    channel.basic_publish("", name, b"x")
    settle(channel)
    again = channel.queue_declare(name, durable=True, arguments=arguments)
    assert (again.method.queue, again.method.message_count) == (name, 1)
    channel.queue_delete(name)


# --- errors, as pika shows them ---


def test_a_closed_channel_leaves_the_connection(connection: BlockingConnection) -> None:
    with pytest.raises(ChannelClosedByBroker) as told:
        connection.channel().queue_declare("no such queue", passive=True)
    assert (told.value.reply_code, told.value.reply_text) == (
        404, "NOT_FOUND - no queue 'no such queue' in vhost '/'",
    )  # fmt: skip
    connection.channel().queue_declare("", exclusive=True)


def test_an_unknown_exchange_type_closes_the_connection(
    channel: BlockingChannel, name: str
) -> None:
    with pytest.raises(ConnectionClosedByBroker) as told:
        channel.exchange_declare(name, "no such type")
    assert told.value.reply_code == 503


def test_a_full_queue_that_rejects_nacks(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(
        name, exclusive=True, arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
    )
    channel.confirm_delivery()
    channel.basic_publish("", name, b"0")
    channel.basic_publish("", name, b"1")
    with pytest.raises(NackError):
        channel.basic_publish("", name, b"2")
    assert drain(channel, name, 2) == [b"0", b"1"]
