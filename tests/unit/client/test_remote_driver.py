"""RemoteDriver: connections that are lost and made again, seen through the box, and forks."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock.client import ConnectionLostError, UnreachableError
from penstock.codec import spec
from penstock.errors import (
    ForkedError,
    MissingCapabilityError,
    OptionError,
    PenstockError,
    SettledError,
    UnknownQueueError,
)
from penstock.protocol.connection import PublishRun
from tests.contracts.box import Aside, until
from tests.helpers.scripted_broker import ScriptedBroker


def operation(_: int, method: Any) -> list[Any]:
    """What the box asks for when it opens a queue."""
    name = json.loads(method.arguments).get("name", "")
    results: dict[str, Any] = {
        "box.queue": {"exists": True, "arguments": {}, "whole_bytes": 1 << 20},
        "box.queues": ["q"],
        "box.queue_info": {"ready": 0, "unacked": 0, "delayed": 0, "info": {"name": name}},
        "box.room": None,
        "box.release": None,
    }
    return [spec.PenstockCallOk(result=json.dumps(results[method.op]).encode())]


@pytest.fixture
def broker(scripted: ScriptedBroker) -> ScriptedBroker:
    scripted.on(spec.PenstockCall, operation)
    return scripted


@pytest.fixture
def box(broker: ScriptedBroker) -> Iterator[Any]:
    with penstock.open(broker.url) as made:
        yield made


def put_is_under_way(broker: ScriptedBroker, put: Aside, count: int = 1) -> None:
    broker.wait(PublishRun, count)
    assert put.is_running


def test_a_put_that_was_not_confirmed_says_so(broker: ScriptedBroker, box: Any) -> None:
    q = box.queue("q")
    put = Aside(lambda: q.put(b"body"))
    put_is_under_way(broker, put)
    broker.drop()
    with pytest.raises(ConnectionLostError, match=r"the connection to amqp://guest@.* was lost"):
        put.result()
    # The next call connects again.
    broker.on(PublishRun, lambda channel, run: [spec.BasicAck(delivery_tag=1)])
    q.put(b"body")
    assert broker.connections == 2


def test_a_get_that_waits_ends_with_its_connection(broker: ScriptedBroker, box: Any) -> None:
    q = box.queue("q")
    get = Aside(q.get)
    asked = broker.wait(spec.BasicConsume)
    assert asked.arguments == {"x-consumer-timeout": 0}  # a job may take longer than 30 minutes
    broker.drop()
    with pytest.raises(ConnectionLostError):
        get.result()
    assert box.queues() == ["q"]


def test_a_job_of_a_lost_connection_is_settled(broker: ScriptedBroker, box: Any) -> None:
    q = box.queue("q")
    broker.on(spec.BasicGet, lambda channel, method: [])
    get = Aside(q.get)
    broker.wait(spec.BasicGet)
    channel = next(channel for channel, what in broker.heard if isinstance(what, spec.BasicGet))
    broker.deliver(channel, spec.BasicGetOk(delivery_tag=1, routing_key="q"), b"body")
    job = get.result()
    broker.drop()
    until(lambda: not job._delivery.channel.is_open)
    for settle in (job.ack, job.nack, job.reject):
        job.is_settled = False
        with pytest.raises(SettledError, match="not pending any more"):
            settle()


def released(broker: ScriptedBroker) -> list[dict[str, Any]]:
    calls = [what for _, what in broker.heard if isinstance(what, spec.PenstockCall)]
    return [json.loads(call.arguments) for call in calls if call.op == "box.release"]


def test_a_get_that_is_interrupted_gives_back_what_comes(broker: ScriptedBroker, box: Any) -> None:
    source = box.queue("q")._source
    broker.on(spec.BasicGet, lambda channel, method: [])
    call = source.get(block=True, timeout_s=None)
    next(call)
    broker.wait(spec.BasicGet)
    call.close()
    channel = next(channel for channel, what in broker.heard if isinstance(what, spec.BasicGet))
    broker.deliver(channel, spec.BasicGetOk(delivery_tag=7, routing_key="q"), b"body")
    until(lambda: released(broker) == [{"tag": 7}])


def test_a_get_many_that_is_interrupted_gives_all_back(broker: ScriptedBroker, box: Any) -> None:
    driver = box._driver
    source = box.queue("q")._source
    broker.on(spec.BasicGet, lambda channel, method: [])
    call = source.get_many(3, timeout_s=None)
    waited = next(call)
    broker.wait(spec.BasicGet)
    channel = next(channel for channel, what in broker.heard if isinstance(what, spec.BasicGet))
    for tag in (1, 2):
        broker.deliver(channel, spec.BasicGetOk(delivery_tag=tag, routing_key="q"), b"body")
        driver.wait(waited)
        waited = next(call)
    call.close()
    broker.deliver(channel, spec.BasicGetOk(delivery_tag=3, routing_key="q"), b"body")
    until(lambda: released(broker) == [{"tag": 1}, {"tag": 2}, {"tag": 3}])


def test_a_get_many_of_a_queue_that_is_deleted_meanwhile(broker: ScriptedBroker, box: Any) -> None:
    source = box.queue("q")._source
    gone = spec.ChannelClose(reply_code=404, reply_text="NOT_FOUND - no queue 'q'")
    heard: list[object] = []

    def answer(channel: int, method: object) -> list[Any]:
        heard.append(method)
        if len(heard) == 1:
            broker.deliver(channel, spec.BasicGetOk(delivery_tag=1, routing_key="q"), b"body")
            return []
        return [gone] if len(heard) == 2 else []

    broker.on(spec.BasicGet, answer)
    with pytest.raises(UnknownQueueError, match="q"):
        box._driver.run(source.get_many(3, timeout_s=None))


def test_a_wait_that_is_interrupted_gives_back_what_comes(broker: ScriptedBroker, box: Any) -> None:
    driver = box._driver
    source = box.queue("q")._source
    broker.on(spec.BasicConsume, lambda channel, method: [])
    call = source.get(block=True, timeout_s=None)
    driver.wait(next(call))  # for basic.get-empty
    begun = next(call)
    tag = broker.wait(spec.BasicConsume).consumer_tag
    channel = next(n for n, what in broker.heard if isinstance(what, spec.BasicConsume))
    broker.say(channel, spec.BasicConsumeOk(consumer_tag=tag))
    driver.wait(begun)
    next(call)  # for a message
    broker.on(spec.BasicCancel, lambda channel, method: [])
    call.close()
    assert broker.wait(spec.BasicCancel).consumer_tag == tag
    broker.deliver(channel, spec.BasicDeliver(consumer_tag=tag, delivery_tag=8), b"body")
    broker.say(channel, spec.BasicCancelOk(consumer_tag=tag))
    until(lambda: released(broker) == [{"tag": 8}])


def test_a_broker_that_is_away_for_a_while(broker: ScriptedBroker, box: Any) -> None:
    broker.refusals = 1
    broker.drop()
    until(lambda: not box._driver._link.is_open)
    with pytest.raises(UnreachableError):
        box.queues()
    assert box.queues() == ["q"]
    assert broker.connections == 2


def test_many_threads_make_one_new_connection(broker: ScriptedBroker, box: Any) -> None:
    broker.drop()
    until(lambda: not box._driver._link.is_open)
    calls = [Aside(box.queues) for _ in range(8)]
    assert [call.result() for call in calls] == [["q"]] * 8
    assert broker.connections == 2


def test_while_the_broker_takes_nothing_puts_wait(broker: ScriptedBroker) -> None:
    told: list[tuple[str, str]] = []
    with penstock.open(broker.url, on_event=lambda *event: told.append(event)) as box:
        q = box.queue("q")
        broker.on(PublishRun, lambda channel, run: [spec.BasicAck(delivery_tag=1)])
        broker.say(0, spec.ConnectionBlocked(reason="low on memory"))
        until(lambda: ("blocked", "low on memory") in told)
        put = Aside(lambda: q.put(b"body"))
        assert len(q) == 0  # everything else goes on
        assert put.is_running
        broker.say(0, spec.ConnectionUnblocked())
        put.result()
        assert [kind for kind, _ in told] == ["connected", "blocked", "unblocked"]


def test_a_put_that_waits_for_the_broker_ends_with_the_box(broker: ScriptedBroker) -> None:
    box: Any = penstock.open(broker.url)
    q = box.queue("q")
    broker.say(0, spec.ConnectionBlocked(reason="low on memory"))
    until(lambda: box._driver._link.unblocked() is not None)
    put = Aside(lambda: q.put(b"body"))
    box.close()
    with pytest.raises(penstock.BoxClosedError):
        put.result()


def test_a_broker_that_refuses_without_a_reason(broker: ScriptedBroker, box: Any) -> None:
    count = 0

    def refuse(_: int, run: Any) -> list[Any]:
        nonlocal count
        count += len(run.bodies)
        return [spec.BasicNack(delivery_tag=count)]

    broker.on(PublishRun, refuse)
    with pytest.raises(PenstockError, match="the broker refused a message"):
        box.queue("q").put(b"body")


def test_what_an_operation_is_told_is_raised(broker: ScriptedBroker, box: Any) -> None:
    error = spec.PenstockCallError(code=403, text=b"ACCESS_REFUSED - not you")
    broker.on(spec.PenstockCall, lambda channel, method: [error])
    with pytest.raises(penstock.PenstockError, match=r"^ACCESS_REFUSED - not you$"):
        box.queue("q")


def test_another_broker_holds_no_box() -> None:
    broker = ScriptedBroker(capabilities={"basic.nack": True})
    try:
        with pytest.raises(MissingCapabilityError, match=r"is Scripted.*penstock\.client\.connect"):
            penstock.open(broker.url)
    finally:
        broker.close()


def test_options_of_a_directory_are_refused() -> None:
    for name in ("memory", "strict", "on_alert", "disk_free_limit"):
        options: dict[str, Any] = {name: 1}
        with pytest.raises(OptionError, match="on a broker it is the broker's own setting"):
            penstock.open("amqp://localhost", **options)
    with pytest.raises(OptionError, match="durability: given 'fast'"):
        penstock.open("amqp://localhost", durability="fast")
    with pytest.raises(OptionError, match="verify: given False, expected amqps://"):
        penstock.open("amqp://localhost", verify=False)


@pytest.mark.real
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_told(box: Any) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            box.queues()
        except ForkedError:
            os.write(write, b"told")
        box.close()
        os._exit(0)
    os.close(write)
    assert os.read(read, 4) == b"told"
    os.close(read)
    os.waitpid(child, 0)
    assert box.queues() == ["q"]


def test_an_event_that_fails_harms_nobody(broker: ScriptedBroker) -> None:
    def fail(kind: str, text: str) -> None:
        raise SystemExit(kind)

    with penstock.open(broker.url, on_event=fail) as box:
        broker.say(0, spec.ConnectionBlocked(reason="x"))
        broker.say(0, spec.ConnectionUnblocked())
        assert box.queues() == ["q"]
