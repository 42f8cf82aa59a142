"""pause_queue: consumers, gets and leases take nothing until resume_queue, also after a restart."""

import pytest

from penstock.access.permissions import everything
from penstock.codec.spec import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetEmpty,
    BasicQos,
    BasicQosOk,
)
from tests.helpers.broker_rig import RigClient
from tests.helpers.operation_rig import OperationRig


@pytest.fixture
def rig() -> OperationRig:
    rig = OperationRig()
    rig.result("declare_queue", queue="q")
    return rig


def client(rig: OperationRig) -> RigClient:
    return rig.client(everything("ann")).open(1)


def consume(c: RigClient, queue: str, tag: str, **arguments: object) -> None:
    asked = BasicConsume(queue=queue, consumer_tag=tag, arguments=arguments)
    c.call(1, asked, BasicConsumeOk)


def pause(rig: OperationRig, queue: str = "q") -> None:
    assert rig.result("pause_queue", queue=queue) == {"was_paused": False}


def resume(rig: OperationRig, queue: str = "q") -> None:
    assert rig.result("resume_queue", queue=queue) == {"was_paused": True}


def tags(rig: OperationRig, c: RigClient) -> list[str]:
    rig.turn()
    return [str(vars(one.method)["consumer_tag"]) for one in c.messages()]


def state(rig: OperationRig) -> tuple[object, object]:
    (row,) = rig.result("list_queues", columns=["state", "messages_ready"])
    return row["state"], row["messages_ready"]


def test_consumers_get_nothing_until_the_queue_is_resumed(rig: OperationRig) -> None:
    c = client(rig)
    consume(c, "q", "a")
    pause(rig)
    rig.put("q", b"1", b"2", b"3")
    assert tags(rig, c) == []
    consume(c, "q", "b")  # nor one that comes now
    assert tags(rig, c) == []
    c.call(1, BasicCancel(consumer_tag="a"), BasicCancelOk)
    consume(c, "q", "c", **{"x-priority": 5})
    assert tags(rig, c) == []
    assert state(rig) == ("paused", 3)
    assert rig.result("pause_queue", queue="q") == {"was_paused": True}
    resume(rig)
    assert tags(rig, c) == ["c", "c", "c"]
    assert rig.result("resume_queue", queue="q") == {"was_paused": False}
    assert state(rig) == ("running", 0)


def test_consumers_that_were_full_are_asked_again(rig: OperationRig) -> None:
    c = client(rig)
    c.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    consume(c, "q", "a")
    consume(c, "q", "b")
    rig.put("q", b"1", b"2", b"3", b"4", b"5")
    assert sorted(tags(rig, c)) == ["a", "b"]
    pause(rig)
    c.send(1, BasicAck(delivery_tag=2, multiple=True))
    assert tags(rig, c) == []
    resume(rig)
    assert sorted(tags(rig, c)) == ["a", "b"]
    c.send(1, BasicAck(delivery_tag=4, multiple=True))
    assert len(tags(rig, c)) == 1


def test_a_single_active_consumer_waits_too(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="s", arguments={"x-single-active-consumer": True})
    c = client(rig)
    consume(c, "s", "a")
    consume(c, "s", "b")
    pause(rig, "s")
    rig.put("s", b"1")
    assert tags(rig, c) == []
    c.call(1, BasicCancel(consumer_tag="a"), BasicCancelOk)
    assert tags(rig, c) == []
    resume(rig, "s")
    assert tags(rig, c) == ["b"]


def test_the_others_of_a_shared_prefetch_go_on(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="other")
    c = client(rig)
    c.call(1, BasicQos(prefetch_count=2, global_=True), BasicQosOk)
    consume(c, "q", "paused")
    consume(c, "other", "a")
    pause(rig)
    rig.put("q", b"1", b"2", b"3")
    rig.put("other", b"1", b"2", b"3")
    assert tags(rig, c) == ["a", "a"]
    c.send(1, BasicAck(delivery_tag=2, multiple=True))
    assert tags(rig, c) == ["a"]
    resume(rig)
    assert tags(rig, c) == ["paused"]


def test_neither_get_nor_a_lease_takes_anything_but_an_operator_sees_it(rig: OperationRig) -> None:
    rig.put("q", b"1")
    c = client(rig)
    pause(rig)
    c.call(1, BasicGet(queue="q"), BasicGetEmpty)
    assert rig.result("lease_queue", queue="q", reader="r")["head"] == 0
    assert rig.result("get_messages", queue="q")[0]["payload"] == "1"
    resume(rig)
    assert rig.result("lease_queue", queue="q", reader="r")["head"] == 1


def test_a_message_for_whoever_waits_expires(rig: OperationRig) -> None:
    """Of ttl 0: nobody of a paused queue waits."""
    c = client(rig)
    consume(c, "q", "a")
    pause(rig)
    rig.put("q", b"1", expiration="0")
    resume(rig)
    assert tags(rig, c) == []


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}])
def test_a_durable_queue_stays_paused_after_a_restart(arguments: dict[str, object]) -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="q", arguments=arguments)
    rig.put("q", b"1")
    pause(rig)
    rig.restart()
    assert state(rig) == ("paused", 1)
    (found,) = rig.result("why")
    assert found["text"] == "its delivery is paused, 1 message ready"
    c = client(rig)
    consume(c, "q", "a")
    assert tags(rig, c) == []
    rig.vhost.restarts.failed(rig.vhost.queues["q"], RuntimeError("a bug"))
    rig.turn()
    assert state(rig) == ("paused", 1)
    resume(rig)
    rig.restart()
    assert state(rig) == ("running", 1)
    assert rig.result("declare_queue", queue="q", arguments=arguments)["is_new"] is False


def test_a_new_queue_of_that_name_is_not_paused(rig: OperationRig) -> None:
    pause(rig)
    rig.result("delete_queue", queue="q")
    rig.result("declare_queue", queue="q")
    assert state(rig) == ("running", 0)
    rig.restart()
    assert state(rig) == ("running", 0)


def test_why_names_what_is_worst_first(rig: OperationRig) -> None:
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    rig.result("declare_queue", queue="full", arguments=limits)
    for name in ("q", "full"):
        rig.put(name, b"1")
    rig.result("declare_queue", queue="waiting")
    rig.put("waiting", b"1", b"2")
    pause(rig)
    texts = [f"{one['about']}: {one['text']}" for one in rig.result("why")]
    assert texts == [
        "queue 'full': publishers are refused: it is as long as its limit allows (max-length)",
        "queue 'q': its delivery is paused, 1 message ready",
        "queue 'waiting': 2 messages and no consumer",
        "queue 'full': 1 message and no consumer",
    ]
    (found,) = rig.result("why", queue="q")
    assert found["do"] == "resume it: penstock resume_queue"


def test_what_cannot_be_paused(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="log", arguments={"x-queue-type": "stream"})
    assert rig.refusal("pause_queue", queue="log").code == 540
    assert rig.refusal("pause_queue", queue="none").code == 404
