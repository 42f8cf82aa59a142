"""The blocking box on a broker: the contract of all boxes, on a real broker."""

from typing import Any

import pytest

import penstock
import penstock.client
from penstock.client import ConnectionLostError, UnreachableError
from penstock.codec.properties import BasicProperties
from penstock.codec.spec import QueueDeclare
from penstock.errors import (
    AMQPConnectionError,
    AMQPError,
    OptionError,
    SettledError,
    UnknownQueueError,
)
from tests.contracts.box import LONG_S, Aside, Opens, QueueContract, bodies, until
from tests.contracts.box_life import BoxContract
from tests.helpers.live_broker import LiveBroker

pytestmark = pytest.mark.real


class TestQueues(QueueContract):
    pass


class TestBox(BoxContract):
    is_shared = True


# ---- what only a broker has ----------------------------------------------------------------------


@pytest.fixture
def box(opens: Opens) -> Any:
    return opens()


def test_two_boxes_share_their_queues(broker: LiveBroker, box: Any) -> None:
    q = box.queue("q", max_attempts=5)
    with penstock.open(broker.url) as other:
        same = other.queue("q")
        same.put_many([b"a", b"b"])
        job = same.get()
        assert (len(q), q.unacked) == (1, 1)
        other.queue("q", max_attempts=5)
        with pytest.raises(OptionError, match="priorities: given 3, expected 0"):
            box.queue("q", priorities=3)
    until(lambda: len(q) == 2)  # what the other had in hand is back
    with pytest.raises(penstock.BoxClosedError):
        job.ack()
    again = q.get()  # its worker is gone, perhaps because of it: the delivery counts
    assert (again.body, again.is_redelivered, again.attempts) == (b"a", True, 1)


def test_a_box_learns_after_how_many_attempts_a_message_died(broker: LiveBroker, box: Any) -> None:
    dead = box.queue("failed")
    q = box.queue("q", max_attempts=2, dead_letter_to="failed")
    q.put(b"a")
    for _ in range(2):
        q.get(timeout=LONG_S).nack(delay=0)
    job = dead.get(timeout=LONG_S)
    assert [(each.reason, each.attempts) for each in job.deaths] == [("delivery_limit", 2)]
    job.nack(delay=0)
    until(lambda: len(dead) == 1)
    (browsed,) = list(dead)
    assert browsed.deaths == job.deaths


def test_a_queue_that_is_there_is_taken_as_it_is_or_refused(broker: LiveBroker, box: Any) -> None:
    declare = QueueDeclare(queue="theirs", durable=True, arguments={"x-max-length": 9})
    with penstock.client.connect(broker.url) as connection:
        channel = connection.channel()
        channel.ask(declare).result(LONG_S)
        assert bodies(box.queue("theirs")) == []
        box.queue("theirs", max_length=9)
        for options, text in (
            (
                {"max_length": 9, "max_attempts": 5},
                "max_attempts: given 5, expected what the queue 'theirs' was declared with: "
                "x-delivery-limit is not set, not 4",
            ),
            ({"dead_letter_to": "dead"}, "dead_letter_to: .* x-dead-letter-exchange is not set"),
            ({"max_length": None}, "max_length: .* x-max-length is 9"),
            ({"durability": "os"}, "durability: .* x-durability is not set, not os"),
            ({"max_lenght": 5}, "unknown option 'max_lenght', did you mean 'max_length'"),
        ):
            with pytest.raises(OptionError, match=text):
                box.queue("theirs", **options)
        channel.ask(declare).result(LONG_S)  # and so it still is what it was


def test_messages_of_other_clients(broker: LiveBroker, box: Any) -> None:
    q = box.queue("q")
    with penstock.client.connect(broker.url) as connection:
        channel = connection.channel()
        channel.select_confirms()
        properties = BasicProperties(headers={"k": [1, "x"]}, message_id="theirs", timestamp=5)
        put = channel.publish("amq.direct", "q", b"nobody gets it", properties)
        assert put is not None
        assert put.result(LONG_S)
        put = channel.publish("", "q", b"theirs", properties)
        assert put is not None
        assert put.result(LONG_S)
        job = q.get()
        assert (job.body, job.headers, job.time) == (b"theirs", {"k": [1, "x"]}, 5)
        assert job.id > 0
        assert job.properties.message_id == "theirs"
        job.ack()
        q.put(b"ours", headers={"n": 1})
        message = channel.get("q", no_ack=True).result(LONG_S)
        assert message is not None
        assert (message.body, message.headers) == (b"ours", {"n": 1})
        declare = QueueDeclare(queue="theirs", durable=True, arguments={"x-max-priority": 3})
        channel.ask(declare).result(LONG_S)
    theirs = box.queue("theirs")
    theirs.put_many([b"low", (b"high", {"priority": 3})])
    assert bodies(theirs) == [b"high", b"low"]


@pytest.mark.parametrize("size", [40_000, 70_000, 3 << 20])
def test_looking_at_messages_that_are_large(box: Any, size: int) -> None:
    q = box.queue("q")
    large = bytes(range(251)) * (size // 251)
    q.put_many([b"small", (large, {"headers": {"n": 1}}), b"small too", large])
    assert bodies(q) == [b"small", large, b"small too", large]
    assert [message.headers for message in q] == [{}, {"n": 1}, {}, {}]
    q.get().ack()
    assert q.peek().body == large
    assert len(q) == 3


def test_more_queues_than_fit_into_one_answer(box: Any) -> None:
    names = sorted(f"{i:04}" + "ü" * 60 for i in range(250))
    for name in names:
        box.queue(name)
    assert box.queues() == names
    for name in names:
        box.delete(name)


def test_a_broker_that_is_killed(broker: LiveBroker, box: Any) -> None:
    q = box.queue("q")
    q.put_many([b"a", b"b"])
    job = q.get()
    getter = Aside(box.queue("empty").get)
    until(lambda: box.queue("empty").info()["takers"] == 1)
    broker.kill()
    with pytest.raises(ConnectionLostError):
        getter.result()
    with pytest.raises(UnreachableError):
        q.put(b"c")
    broker.start()
    with pytest.raises(SettledError):
        job.ack()
    q.put(b"c")
    assert bodies(q) == [b"a", b"b", b"c"]


def test_a_transaction_that_the_broker_did_not_survive(broker: LiveBroker, box: Any) -> None:
    a, b = box.queue("a"), box.queue("b")
    a.put(b"work")
    with pytest.raises(ConnectionLostError), box.transaction():  # noqa: PT012
        job = a.get()
        b.put(b"result")
        job.ack()
        broker.kill()
    broker.start()
    assert (bodies(a), bodies(b)) == ([b"work"], [])
    with box.transaction():
        b.put(b"result")
    assert bodies(b) == [b"result"]


def test_what_the_user_may_not_do(broker: LiveBroker, box: Any) -> None:
    box.queue("mine-jobs").put(b"a")
    box.queue("other").put(b"b")
    try:
        broker.control("add_user", name="worker", password="pass", tags=[])
        broker.control(
            "set_permissions", "/", user="worker", configure="^mine-", write="^$", read="^mine-"
        )
        url = broker.url.replace("guest:guest", "worker:pass")
        with penstock.open(url) as limited:
            assert limited.queues() == ["mine-jobs"]
            q = limited.queue("mine-jobs")
            with q.get() as job:
                assert job.body == b"a"
            for call in (
                lambda: limited.queue("other"),
                lambda: limited.queue("new"),
                lambda: limited.delete("other"),
                lambda: q.put(b"c"),
                lambda: limited.checkpoint(),
                lambda: limited.backup("/tmp/none"),
            ):
                with pytest.raises(AMQPError, match=r"^ACCESS_REFUSED - ") as caught:
                    call()
                assert caught.value.code == 403
            assert q.empty()
        with pytest.raises(AMQPConnectionError, match=r"^ACCESS_REFUSED - "):
            penstock.open(url.replace("pass", "word"))
        with pytest.raises(AMQPConnectionError, match=r"^NOT_ALLOWED - ") as refused:
            penstock.open(broker.url_of("nowhere"))
        assert refused.value.code == 530
    finally:
        broker.control("delete_user", name="worker")


def test_a_queue_that_somebody_else_deletes(broker: LiveBroker, box: Any) -> None:
    q = box.queue("q", durability="none")
    q.put(b"a")
    job = q.get()
    getter = Aside(q.get)
    until(lambda: q.info()["takers"] == 1)
    with penstock.open(broker.url) as other:
        other.delete("q")
    for call in (getter.result, lambda: q.put(b"b"), lambda: len(q), q.get, q.peek):
        with pytest.raises(UnknownQueueError, match="'q \\(deleted\\)'"):
            call()
    with pytest.raises(SettledError):
        job.ack()
    assert box.queue("q").empty()
