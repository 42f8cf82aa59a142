"""Streams of the box on a broker, for threads: the contract, and what only a broker has."""

from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.client
from penstock.client import ConnectionLostError, UnreachableError
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import QueueBind, QueueDeclare
from penstock.errors import AMQPError, ChannelError, UnknownQueueError
from tests.contracts.box import LONG_S, Aside, Opens, until
from tests.contracts.stream import StreamContract, bodies, numbers, offsets
from tests.contracts.stream_life import StreamLifeContract
from tests.helpers.live_broker import LiveBroker
from tests.helpers.remote_boxes import served

pytestmark = pytest.mark.real


class TestStreams(StreamContract):
    pass


class TestLife(StreamLifeContract):
    is_shared = True


# ---- what only a broker has ----------------------------------------------------------------------


@pytest.fixture
def box(opens: Opens) -> Any:
    return opens()


def test_a_directory_goes_to_a_broker_and_back(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "d") as box:
        s = box.stream("s", partitions=2, max_age="7d")
        s.append_many([(b"%d" % i, {"key": str(i), "headers": {"n": i}}) for i in range(10)])
        reader = s.reader("r")
        list(reader.read(max_records=4))
        reader.commit()
    with served(tmp_path / "d") as box:
        s = box.stream("s", partitions=2, max_age="7d")
        assert [(r.key, r.headers) for r in s] == [(str(i), {"n": i}) for i in range(10)]
        reader = s.reader("r")
        assert reader.lag == 6
        s.append(b"10", key="10")
        assert bodies(reader) == numbers(7, 4)
        reader.commit()
        box.queue("q").put(b"a")
    with penstock.open(tmp_path / "d") as box:
        assert (box.streams(), box.queues()) == (["s"], ["q"])
        s = box.stream("s", partitions=2, max_age="7d")
        assert bodies(s) == numbers(11)
        assert s.reader("r").lag == 0


def test_two_boxes_share_their_streams(broker: LiveBroker, box: Any) -> None:
    s = box.stream("s", partitions=2)
    with penstock.open(broker.url) as other:
        same = other.stream("s")
        assert same.partitions == 2
        follower = Aside(lambda: bodies(same.read(follow=True, max_records=20)))
        for body in numbers(20):
            s.append(body, key=body.decode())
        assert sorted(follower.result(), key=int) == numbers(20)
        reader = same.reader("r")
        list(reader)
        reader.commit()
        assert s.reader("r").lag == 0


def test_records_of_other_clients(broker: LiveBroker, box: Any) -> None:
    with penstock.client.connect(broker.url) as connection:
        channel = connection.channel()
        channel.select_confirms()
        arguments: dict[str, object] = {"x-queue-type": "stream", "x-max-age": "7D"}
        channel.ask(QueueDeclare(queue="s", durable=True, arguments=arguments)).result(LONG_S)
        bind = QueueBind(queue="s", exchange="amq.topic", routing_key="eu.#")
        channel.ask(bind).result(LONG_S)
        properties = BasicProperties(headers={"k": [1], "n": 5}, message_id="theirs")
        put = channel.publish("amq.topic", "eu.orders", b"theirs", properties)
        assert put is not None
        assert put.result(LONG_S)
    s = box.stream("s", max_age="7d")
    assert s.append(b"ours", key="k") == 1
    theirs, ours = s.read()
    assert (theirs.body, theirs.exchange, theirs.key) == (b"theirs", "amq.topic", "eu.orders")
    assert (theirs.headers, theirs.properties.message_id) == ({"k": "[1]", "n": 5}, "theirs")
    assert (ours.exchange, ours.key, ours.headers) == ("", "k", {})


def test_a_broker_that_is_killed(broker: LiveBroker, box: Any) -> None:
    s = box.stream("s")
    assert s.append_many(numbers(10)) == list(range(10))
    reader = s.reader("r")
    reading = reader.read(follow=True)
    seen = [next(reading).body for _ in range(4)]
    reader.commit(wait=True)
    broker.kill()
    with pytest.raises(ConnectionLostError):
        seen.extend(record.body for record in reading)
    with pytest.raises(UnreachableError):
        reader.commit()
    broker.start()
    assert seen == numbers(len(seen))
    assert reader.offset == 4
    reader.commit()
    assert bodies(s.reader("r")) == numbers(10 - len(seen), len(seen))
    assert s.append(b"10") == 10
    assert bodies(s) == numbers(11)


def test_a_transaction_that_the_broker_did_not_survive(broker: LiveBroker, box: Any) -> None:
    q, s = box.queue("q"), box.stream("s")
    with pytest.raises(ConnectionLostError), box.transaction():  # noqa: PT012
        q.put(b"a")
        s.append(b"a")
        broker.kill()
    broker.start()
    assert (len(q), len(s)) == (0, 0)
    with box.transaction():
        s.append(b"b")
    assert bodies(s) == [b"b"]


def test_what_the_user_may_not_do(broker: LiveBroker, box: Any) -> None:
    box.stream("mine").append(b"a")
    box.stream("other").append(b"b")
    try:
        broker.control("add_user", name="worker", password="pass", tags=[])
        broker.control(
            "set_permissions", "/", user="worker", configure="^$", write="^$", read="^mine"
        )
        url = broker.url.replace("guest:guest", "worker:pass")
        with penstock.open(url) as limited:
            assert limited.streams() == ["mine"]
            s = limited.stream("mine")
            reader = s.reader("r")
            assert bodies(reader) == [b"a"]
            reader.commit()
            for call in (
                lambda: limited.stream("other"),
                lambda: limited.stream("new"),
                lambda: limited.delete("mine"),
                lambda: s.append(b"c"),
                lambda: s.retain(),
                lambda: s.delete(),
            ):
                with pytest.raises(AMQPError, match=r"^ACCESS_REFUSED - ") as caught:
                    call()
                assert caught.value.code == 403
            assert bodies(s) == [b"a"]
    finally:
        broker.control("delete_user", name="worker")


def test_a_stream_that_somebody_else_deletes(broker: LiveBroker, box: Any) -> None:
    s = box.stream("s")
    s.append(b"a")
    seen: list[bytes] = []
    follower = Aside(lambda: [seen.append(r.body) for r in s.read(follow=True)])
    until(lambda: seen == [b"a"])
    with penstock.open(broker.url) as other:
        other.delete("s")
    for call in (follower.result, lambda: s.append(b"b"), lambda: len(s), lambda: bodies(s)):
        with pytest.raises(UnknownQueueError, match="'s \\(deleted\\)'"):
            call()
    assert offsets(box.stream("s")) == []


def test_more_than_fits_into_one_answer(broker: LiveBroker, box: Any) -> None:
    names = sorted(f"{i:03}" + "ü" * 100 for i in range(250))
    for name in names:
        box.stream(name)
    assert box.streams() == names
    wide = box.stream("wide", partitions=256)
    wide.append_many([(b"%d" % i, {"key": str(i)}) for i in range(1000)])
    assert sorted(bodies(wide), key=int) == numbers(1000)
    for i in range(30):
        wide.reader(f"reader {i:02}")
    assert wide.readers() == [f"reader {i:02}" for i in range(30)]
    assert (len(wide), wide.reader("reader 07").lag) == (1000, 1000)
    with penstock.client.connect(broker.url) as connection:  # which others are told of
        channel = connection.channel()
        with pytest.raises(ChannelError, match=r"CONTENT_TOO_LARGE - an answer of .* bytes does"):
            channel.call("list_streams", {}).result(LONG_S)
        assert channel.is_open
