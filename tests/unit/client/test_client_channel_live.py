"""The plain client against a real broker: Penstock's, or the one that PENSTOCK_TEST_URL names.

Nothing here is Penstock's own: RabbitMQ passes it too.
"""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.client import ClientConnection, Received, connect
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import (
    BasicQos,
    ExchangeDeclare,
    ExchangeDelete,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueUnbind,
    TxCommit,
    TxRollback,
    TxSelect,
)
from penstock.errors import AMQPConnectionError, ChannelError
from tests.helpers.live_broker import Broker, broker_for_tests

pytestmark = pytest.mark.real
WAIT_S = 120.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_for_tests(tmp_path_factory.mktemp("plain") / "data") as live:
        yield live


@pytest.fixture
def connection(broker: Broker) -> Iterator[ClientConnection]:
    with connect(broker.url + "?name=plain") as made:
        yield made


@pytest.fixture
def name(connection: ClientConnection) -> str:
    """A queue that goes with the connection."""
    found = connection.channel().ask(QueueDeclare(exclusive=True)).result(WAIT_S)
    assert isinstance(found, QueueDeclareOk)
    return found.queue


def taken(found: "queue.Queue[Any]") -> Any:
    return found.get(timeout=WAIT_S)


def test_what_a_broker_says_of_itself(connection: ClientConnection) -> None:
    assert connection.capability("publisher_confirms")
    assert connection.capability("basic.nack")
    assert connection.frame_max >= 4096


@pytest.mark.parametrize("size", [0, 1, 131_064, 131_065, 3 << 20])
def test_a_message_there_and_back(connection: ClientConnection, name: str, size: int) -> None:
    channel = connection.channel()
    channel.select_confirms()
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    properties = BasicProperties(
        content_type="a/b", headers={"n": 1, "t": [True, {"x": b"\0"}]}, priority=3,
        correlation_id="c", timestamp=1_700_000_000, delivery_mode=2,
    )  # fmt: skip
    put = channel.publish("", name, body, properties, mandatory=True)
    assert put is not None
    assert put.result(WAIT_S)
    message = channel.get(name).result(WAIT_S)
    assert message is not None
    assert message.body == body
    assert message.properties == properties
    assert (message.exchange, message.routing_key) == ("", name)
    assert not message.is_redelivered
    channel.reject(message.delivery_tag, requeue=True)
    again = channel.get(name).result(WAIT_S)
    assert again is not None
    assert again.is_redelivered
    channel.ack(again.delivery_tag)
    assert channel.get(name).result(WAIT_S) is None


def test_what_nobody_gets_comes_back(connection: ClientConnection) -> None:
    back: queue.Queue[Received] = queue.Queue()
    channel = connection.channel()
    channel.on_return = back.put
    channel.select_confirms()
    put = channel.publish("", "no queue of this name", b"body", mandatory=True)
    assert put is not None
    assert put.result(WAIT_S)
    message = taken(back)
    assert (message.reply_code, message.reply_text, message.body) == (312, "NO_ROUTE", b"body")


def test_consuming_with_a_prefetch(connection: ClientConnection, name: str) -> None:
    channel = connection.channel()
    channel.ask(BasicQos(prefetch_count=2)).result(WAIT_S)
    for i in range(6):
        channel.publish("", name, b"%d" % i)
    came: queue.Queue[Any] = queue.Queue()
    tag, begun = channel.consume(name, came.put, came.put)
    begun.result(WAIT_S)
    seen = []
    for _ in range(6):
        message = taken(came)
        assert message.consumer_tag == tag
        assert came.qsize() <= 1
        seen.append(message.body)
        channel.ack(message.delivery_tag)
    assert seen == [b"%d" % i for i in range(6)]
    channel.cancel(tag).result(WAIT_S)
    channel.publish("", name, b"last")
    message = channel.get(name).result(WAIT_S)
    assert message is not None
    assert message.body == b"last"
    assert came.empty()


def test_a_consumer_whose_queue_goes(connection: ClientConnection) -> None:
    channel = connection.channel()
    declared: Any = channel.ask(QueueDeclare(exclusive=True)).result(WAIT_S)
    came: queue.Queue[Any] = queue.Queue()
    channel.consume(declared.queue, came.put, came.put)[1].result(WAIT_S)
    connection.channel().ask(QueueDelete(queue=declared.queue)).result(WAIT_S)
    assert isinstance(taken(came), ChannelError)
    assert channel.is_open


def test_exchanges_and_bindings(connection: ClientConnection, name: str) -> None:
    channel = connection.channel()
    exchange = f"x-of-{name}"
    channel.ask(ExchangeDeclare(exchange=exchange, type="topic")).result(WAIT_S)
    try:
        bind = {"queue": name, "exchange": exchange, "routing_key": "a.*"}
        channel.ask(QueueBind(**bind)).result(WAIT_S)  # type: ignore[arg-type]
        channel.publish(exchange, "a.b", b"bound")
        channel.ask(QueueUnbind(**bind)).result(WAIT_S)  # type: ignore[arg-type]
        channel.publish(exchange, "a.b", b"not bound")
        message = channel.get(name, no_ack=True).result(WAIT_S)
        assert message is not None
        assert (message.body, message.routing_key) == (b"bound", "a.b")
        assert channel.get(name).result(WAIT_S) is None
    finally:
        channel.ask(ExchangeDelete(exchange=exchange)).result(WAIT_S)


def test_transactions(connection: ClientConnection, name: str) -> None:
    channel = connection.channel()
    channel.ask(TxSelect()).result(WAIT_S)
    channel.publish("", name, b"undone")
    channel.ask(TxRollback()).result(WAIT_S)
    channel.publish("", name, b"done")
    assert connection.channel().get(name).result(WAIT_S) is None
    channel.ask(TxCommit()).result(WAIT_S)
    message = channel.get(name).result(WAIT_S)
    assert message is not None
    assert message.body == b"done"


def test_errors_of_a_channel(connection: ClientConnection) -> None:
    channel, other = connection.channel(), connection.channel()
    asked = channel.ask(QueueDeclare(queue="no such queue", passive=True))
    with pytest.raises(ChannelError, match="NOT_FOUND - no queue 'no such queue' in vhost '/'"):
        asked.result(WAIT_S)
    assert not channel.is_open
    other.ack(77)
    with pytest.raises(ChannelError, match="PRECONDITION_FAILED - unknown delivery tag 77"):
        other.ask(BasicQos()).result(WAIT_S)
    assert connection.channel().ask(BasicQos()).result(WAIT_S) is not None


def test_an_error_of_the_connection(broker: Broker) -> None:
    connection = connect(broker.url)
    asked = connection.channel().ask(ExchangeDeclare(exchange="x", type="no such type"))
    with pytest.raises(AMQPConnectionError, match="COMMAND_INVALID - ") as caught:
        asked.result(WAIT_S)
    assert caught.value.code == 503
    connection.close()


def test_who_may_not(broker: Broker) -> None:
    with pytest.raises(AMQPConnectionError) as caught:
        connect(broker.url.replace(f":{broker.password}@", ":wrong@"))
    assert caught.value.code == 403
    with pytest.raises(AMQPConnectionError) as caught:
        connect(broker.url_of("no such vhost"))
    assert caught.value.code == 530


def test_many_threads_on_one_channel(connection: ClientConnection, name: str) -> None:
    channel = connection.channel()
    channel.select_confirms()

    def work(number: int) -> int:
        for i in range(50):
            put = channel.publish("", name, b"%d.%d" % (number, i))
            assert put is not None
            assert put.result(WAIT_S)
            message = channel.get(name).result(WAIT_S)
            assert message is not None
            channel.ack(message.delivery_tag)
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))
    assert channel.get(name).result(WAIT_S) is None
