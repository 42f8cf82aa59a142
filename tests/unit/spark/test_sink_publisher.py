"""RowPublisher: all confirmed or an error, and what is sent again on a new connection."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.codec import spec
from penstock.codec.properties import BasicProperties
from penstock.errors import AMQPConnectionError
from penstock.protocol.connection import PublishRun
from penstock.spark import sink
from penstock.spark.options import SinkOptions
from penstock.spark.sink import PublishError, RowPublisher
from tests.helpers.live_broker import wait_until
from tests.helpers.scripted_broker import ScriptedBroker

PLAIN = BasicProperties().encode()
AMQP = {"delivery": "at-least-once"}


class Confirming:
    """Confirms what is published on each channel, as far as `upto` allows."""

    def __init__(self, broker: ScriptedBroker, upto: int = 1 << 30) -> None:
        self.broker = broker
        self.upto = upto
        self.bodies: list[bytes] = []
        self._tags = 0
        self._connection = 0
        broker.on(PublishRun, self._published)

    def _published(self, channel: int, run: Any) -> list[Any]:
        if self.broker.connections != self._connection:
            self._connection, self._tags = self.broker.connections, 0
        self.bodies += [bytes(body) for body in run.bodies]
        before, self._tags = self._tags, self._tags + len(run.bodies)
        upto = min(self._tags, self.upto)
        return [spec.BasicAck(delivery_tag=upto, multiple=True)] if upto > before else []


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker()
    yield broker
    while sink._connections:
        sink._connections.popitem()[1].close()
    broker.close()


def publisher(broker: ScriptedBroker, **given: str) -> RowPublisher:
    options = SinkOptions.of({**AMQP, "queue": "q", "url": broker.url, "timeout": "60", **given})
    return RowPublisher(options, sleep=lambda seconds: None)


def give_up_soon(target: RowPublisher) -> None:
    """From now on: so far nothing that is slow was to be taken for silence."""
    target._options = replace(target._options, timeout_s=0.2)


def publish(target: RowPublisher, *bodies: bytes) -> None:
    for body in bodies:
        target.publish("", "q", body, PLAIN)
    target.flush()


def test_it_ends_when_all_is_confirmed(broker: ScriptedBroker) -> None:
    confirming = Confirming(broker)
    target = publisher(broker)
    publish(target, b"a", b"b", b"c")
    target.finish()
    assert (target.confirmed, confirming.bodies) == (3, [b"a", b"b", b"c"])


def test_a_connection_is_kept_for_the_next_task(broker: ScriptedBroker) -> None:
    Confirming(broker)
    for _ in range(3):
        target = publisher(broker)
        publish(target, b"a")
        target.finish()
    assert broker.connections == 1
    sink._connections.popitem()[1].close()
    again = publisher(broker)
    publish(again, b"a")
    again.finish()
    assert broker.connections == 2


def test_no_more_than_allowed_are_ahead_of_their_confirms(broker: ScriptedBroker) -> None:
    confirming = Confirming(broker, upto=5)
    target = publisher(broker, in_flight="3")
    publish(target, *[b"%d" % i for i in range(8)])
    give_up_soon(target)
    with pytest.raises(PublishError, match=r"no confirm in 0.2 s; 5 rows of this task are confirm"):
        publish(target, b"8")
    wait_until(lambda: len(confirming.bodies) == 8, "all but the last row")


def test_what_was_not_confirmed_is_sent_again(broker: ScriptedBroker) -> None:
    confirming = Confirming(broker, upto=2)
    target = publisher(broker)
    publish(target, b"a", b"b", b"c", b"d")
    broker.wait(PublishRun)
    confirms = target._waiting[0].confirms
    wait_until(lambda: confirms.unanswered() == [2, 3], "the first two confirms")
    confirming.upto = 1 << 30
    broker.refusals = 2
    broker.drop()
    target.finish()
    assert target.confirmed == 4
    assert confirming.bodies == [b"a", b"b", b"c", b"d", b"c", b"d"]
    assert broker.connections == 2


def test_a_broker_that_goes_away_for_good_is_an_error(broker: ScriptedBroker) -> None:
    times = iter([0.0, 10.0, 70.0, 150.0])
    Confirming(broker, upto=1)
    options = SinkOptions.of({**AMQP, "queue": "q", "url": broker.url, "timeout": "60"})
    target = RowPublisher(options, sleep=lambda seconds: None, monotonic=lambda: next(times))
    publish(target, b"a", b"b")
    broker.wait(PublishRun)
    broker.refusals = 100
    broker.drop()
    with pytest.raises(PublishError, match=r"publishing to queue 'q' at amqp://guest@127.0.0.1:"):
        target.finish()


def test_many_rows_share_a_write(broker: ScriptedBroker) -> None:
    confirming = Confirming(broker)
    target = publisher(broker)
    rows = [b"%d" % i for i in range(1000)]
    writes: list[int] = []
    channel = target._opened()
    send = channel.connection.send_publishes

    def counted(number: int, contents: list[tuple[bytes, bytes, bytes]]) -> None:
        writes.append(len(contents))
        send(number, contents)

    channel.connection.send_publishes = counted  # type: ignore[method-assign]
    for row in rows:
        target.publish("", "q", row, PLAIN)
    target.finish()
    assert (target.confirmed, confirming.bodies) == (1000, rows)
    assert writes == [250] * 4


def test_a_write_has_the_rows_of_one_exchange_in_their_order(broker: ScriptedBroker) -> None:
    confirming = Confirming(broker)
    options = {**AMQP, "url": broker.url, "exchange": "x"}
    target = RowPublisher(SinkOptions.of(options))
    for index, exchange in enumerate("xxyxyy"):
        target.publish(exchange, "q", b"%d" % index, PLAIN)
    target.finish()
    runs = [what for _, what in broker.heard if isinstance(what, PublishRun)]
    found = [route[1:2] for run in runs for route in run.routes]  # behind its length
    assert found == [b"x", b"x", b"y", b"x", b"y", b"y"]
    assert confirming.bodies == [b"%d" % i for i in range(6)]


def test_what_is_confirmed_of_a_write_is_told_when_the_rest_is_refused(
    broker: ScriptedBroker,
) -> None:
    def answers(channel: int, run: Any) -> list[Any]:
        acks = [spec.BasicAck(delivery_tag=2, multiple=True), spec.BasicNack(delivery_tag=3)]
        return [*acks, spec.BasicAck(delivery_tag=4)]

    broker.on(PublishRun, answers)
    target = publisher(broker)
    publish(target, b"a", b"b", b"c", b"d")
    with pytest.raises(PublishError, match=r"refused it .basic.nack.; 3 rows of this task are"):
        target.finish()


def test_a_refused_row_is_an_error(broker: ScriptedBroker) -> None:
    broker.on(PublishRun, lambda channel, run: [spec.BasicNack(delivery_tag=1)])
    target = publisher(broker)
    publish(target, b"a")
    with pytest.raises(PublishError, match="the broker refused it"):
        target.finish()


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ({"queue": "q"}, "queue 'q' at .*: the queue does not exist: declare it first"),
        ({"exchange": "x"}, "no queue got the row with routing key 'q' .NO_ROUTE"),
    ],
)
def test_a_returned_row_is_an_error(
    broker: ScriptedBroker, target: dict[str, str], told: str
) -> None:
    def returned(channel: int, run: Any) -> list[Any]:
        method = spec.BasicReturn(
            reply_code=312, reply_text="NO_ROUTE", exchange="x", routing_key="q"
        )
        assert broker._socket is not None
        broker._socket.sendall(broker._machine.send_content(channel, method, b"\0\0", b"a"))
        return [spec.BasicAck(delivery_tag=1)]

    broker.on(PublishRun, returned)
    made = RowPublisher(SinkOptions.of({**AMQP, **target, "url": broker.url}))
    publish(made, b"a")
    with pytest.raises(PublishError, match=told):
        made.finish()


def test_what_the_broker_says_is_told_at_once(broker: ScriptedBroker) -> None:
    broker.greeting_error = AMQPConnectionError(403, "not you")
    with pytest.raises(PublishError, match="ACCESS_REFUSED - not you"):
        publish(publisher(broker), b"a")


def test_a_blocked_broker_says_why(broker: ScriptedBroker) -> None:
    def blocked(channel: int, run: Any) -> list[Any]:
        assert broker._socket is not None
        method = spec.ConnectionBlocked(reason="low on disk")
        broker._socket.sendall(broker._machine.send(0, method))
        return []

    broker.on(PublishRun, blocked)
    target = publisher(broker)
    publish(target, b"a")
    assert target._channel is not None
    connection = target._channel.connection
    wait_until(lambda: connection.blocked_reason, "why")
    give_up_soon(target)
    with pytest.raises(PublishError, match=r"the broker blocks publishers, low on disk"):
        target.finish()
