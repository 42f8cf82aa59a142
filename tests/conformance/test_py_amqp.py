"""py-amqp and Kombu, the way Celery uses them: channels, SimpleQueue, priorities, broadcast, pools.

py-amqp offers back only the capabilities that the server names, and Kombu reads the product's name
and version to decide what prefetch means; both are covered by simply working.
"""

import socket
from collections.abc import Iterator

import amqp
import kombu
import pytest
from kombu import pidbox
from kombu.pools import producers

from tests.helpers.live_broker import Broker, wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def connection(broker: Broker) -> Iterator[kombu.Connection]:
    with kombu.Connection(broker.url.replace("amqp://", "pyamqp://"), connect_timeout=60) as made:
        yield made


def connect(broker: Broker, password: str | None = None) -> amqp.Connection:
    return amqp.Connection(
        f"{broker.host}:{broker.port}", userid=broker.user, password=password or broker.password,
        confirm_publish=True,
    )  # fmt: skip


def test_py_amqp_publishes_with_confirms_and_gets(broker: Broker, name: str) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, auto_delete=False)
        data = "x" * 300_000
        channel.basic_publish(amqp.Message(data, delivery_mode=2), routing_key=name)
        found = channel.basic_get(name)
        assert found.body == data
        channel.basic_ack(found.delivery_tag)
        assert channel.basic_get(name) is None
        channel.queue_delete(name)


def test_py_amqp_hears_of_a_bad_password(broker: Broker) -> None:
    with pytest.raises(amqp.exceptions.AccessRefused):
        connect(broker, "wrong").connect()


def test_py_amqp_channels_of_errors(broker: Broker) -> None:
    with connect(broker) as connection:
        with pytest.raises(amqp.NotFound):
            connection.channel().queue_declare("no such queue", passive=True)
        with pytest.raises(amqp.PreconditionFailed):
            connection.channel().exchange_declare("amq.topic", "direct", durable=True)
        assert connection.channel().queue_declare("", exclusive=True).message_count == 0


def test_simple_queue(connection: kombu.Connection, name: str) -> None:
    with connection.SimpleQueue(name) as queue:
        for i in range(20):
            queue.put({"number": i}, compression="zlib" if i % 2 else None)
        assert wait_until(lambda: len(queue) == 20)
        for i in range(20):
            message = queue.get(timeout=120)
            assert message.payload == {"number": i}
            message.ack()
        with pytest.raises(queue.Empty):
            queue.get(block=False)
    connection.default_channel.queue_delete(name)


def test_priorities(connection: kombu.Connection, name: str) -> None:
    queue = kombu.Queue(name, max_priority=10, channel=connection)
    queue.declare()
    producer = connection.Producer()
    for i, priority in enumerate((0, 5, 9, 5)):
        producer.publish(i, routing_key=name, priority=priority)
    wait_until(lambda: queue.queue_declare(passive=True).message_count == 4)
    found = []
    for _ in range(4):
        message = queue.get(no_ack=True)
        assert message is not None
        found.append(message.payload)
    assert found == [2, 1, 3, 0]
    queue.delete()


def test_an_answer_from_each_worker_by_pidbox(connection: kombu.Connection, name: str) -> None:
    """Celery's remote control: a fanout exchange, a queue for each node, an answering queue."""
    namespace = f"p{name}"
    mailbox = pidbox.Mailbox(namespace, type="fanout")(connection)
    with connection.channel() as channel:
        consumers = []
        for number in range(3):
            node = mailbox.Node(f"node{number}", state={}, channel=channel)
            node.handlers["ping"] = lambda state, n=number, **_: n
            consumers.append(node.listen())
        found = mailbox.multi_call("ping", timeout=120, limit=3, channel=channel)
        assert sorted(value for answer in found for value in answer.values()) == [0, 1, 2]
        for consumer in consumers:
            consumer.cancel()


def test_time_to_live_and_expiry_by_kombu(connection: kombu.Connection, name: str) -> None:
    queue = kombu.Queue(
        name, message_ttl=60.0, expires=60.0, max_length=10, channel=connection, durable=True
    )
    queue.declare()
    queue.declare()
    producer = connection.Producer()
    producer.publish("x", routing_key=name, expiration=0.05)
    wait_until(lambda: queue.queue_declare(passive=True).message_count == 0, "expiry")
    queue.delete()


def test_pools_and_failover(broker: Broker, name: str) -> None:
    unused = socket.socket()  # bound and not listened at: nobody else is there either
    unused.bind(("127.0.0.1", 0))
    dead = f"pyamqp://guest:guest@127.0.0.1:{unused.getsockname()[1]}//"
    url = broker.url.replace("amqp://", "pyamqp://")
    with (
        unused,
        kombu.Connection(
            f"{dead};{url}", failover_strategy="round-robin", connect_timeout=60
        ) as connection,
    ):
        connection.ensure_connection(max_retries=3, interval_start=0, interval_step=0)
        queue = kombu.Queue(name, channel=connection.default_channel, exclusive=True)
        queue.declare()
        for i in range(10):
            with producers[connection].acquire(block=True) as producer:
                producer.publish(i, routing_key=name)
        wait_until(lambda: queue.queue_declare(passive=True).message_count == 10)


def test_prefetch_per_consumer_and_channel(connection: kombu.Connection, name: str) -> None:
    with connection.channel() as channel:
        queue = kombu.Queue(name, exclusive=True, channel=channel)
        queue.declare()
        producer = connection.Producer()
        for i in range(10):
            producer.publish(i, routing_key=name)
        held: list[kombu.Message] = []
        consumer = kombu.Consumer(
            channel, [queue], callbacks=[lambda _, message: held.append(message)], prefetch_count=4
        )
        with consumer:
            while len(held) < 4:
                connection.drain_events(timeout=120)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.2)
            held[0].ack()
            connection.drain_events(timeout=120)
            assert [message.payload for message in held] == [0, 1, 2, 3, 4]
