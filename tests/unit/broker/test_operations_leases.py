"""Leases by operations: readers of classic queues, beside consumers, purges and deletes."""

import pytest

from penstock.access.permissions import Identity
from penstock.broker.broker_queue import BrokerQueue
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ChannelClose,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from penstock.storage.files.durability import DISK
from tests.helpers.operation_rig import OperationRig

READER = {"queue": "q", "reader": "r"}


@pytest.fixture
def rig() -> OperationRig:
    rig = OperationRig()
    rig.result("declare_queue", queue="q")
    return rig


def numbered(n: int, first: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + n)]


def peeked(rig: OperationRig, queue: str = "q") -> list[bytes]:
    return [m["body"] for m in rig.result("peek", queue=queue, count=1000)["messages"]]


def row(rig: OperationRig, queue: str = "q") -> dict[str, object]:
    (found,) = [row for row in rig.result("list_queues") if row["name"] == queue]
    return dict(found)


def state(rig: OperationRig, reader: str = "r") -> tuple[int, int]:
    found = rig.result("describe_lease", queue="q", reader=reader)
    return found["first"], found["head"]


# ---- leasing, committing, releasing --------------------------------------------------------------


def test_a_lease_is_answered_when_it_is_durable(rig: OperationRig) -> None:
    rig.put("q", *numbered(5))
    asked = rig.ask("lease_queue", **READER, messages=3, bytes=None)
    assert not asked.has_come
    rig.turn()
    found = asked.result
    assert (found["first"], found["head"], found["ready"], found["bytes"]) == (0, 3, 2, 3)
    assert rig.vhost.engine.log.settled(DISK) == rig.vhost.engine.log.last_lsn
    assert found["stream_id"]
    assert found["path"].startswith(rig.vhost.path)
    assert peeked(rig) == [b"3", b"4"]


def test_messages_are_counted_over_all_leases(rig: OperationRig) -> None:
    rig.put("q", *numbered(5))
    assert rig.result("lease_queue", **READER, messages=2)["head"] == 2
    assert rig.result("lease_queue", **READER)["head"] == 5
    found = rig.result("lease_queue", **READER)
    assert (found["head"], found["ready"], found["ready_bytes"]) == (5, 0, 0)


def test_a_limit_in_bytes(rig: OperationRig) -> None:
    rig.put("q", *[b"x" * 10] * 5)
    assert rig.result("lease_queue", **READER, bytes=25)["head"] == 2
    assert rig.result("lease_queue", **READER, bytes=1)["head"] == 3


def test_many_messages_are_leased_in_slices(rig: OperationRig) -> None:
    rig.put("q", *numbered(700))
    assert rig.result("lease_queue", **READER)["head"] == 700
    assert rig.result("commit_lease", **READER, offset=600) == {"first": 600}
    assert rig.result("release_lease", **READER) == {"messages": 100}
    assert peeked(rig) == numbered(100, 600)


def test_a_reader_that_is_not_known(rig: OperationRig) -> None:
    rig.put("q", b"1")
    found = rig.result("describe_lease", **READER)
    assert (found["first"], found["head"], found["ready"], found["stream_id"]) == (0, 0, 1, "")
    assert rig.result("release_lease", **READER) == {"messages": 0}
    assert rig.result("commit_lease", **READER, offset=0) == {"first": 0}
    assert rig.refusal("commit_lease", **READER, offset=1).code == 406
    assert rig.result("list_leases") == []


def test_commit_acknowledges_and_may_be_repeated(rig: OperationRig) -> None:
    rig.put("q", *numbered(5))
    rig.result("lease_queue", **READER)
    assert rig.result("commit_lease", **READER, offset=3) == {"first": 3}
    assert rig.result("commit_lease", **READER, offset=3) == {"first": 3}
    assert rig.result("commit_lease", **READER, offset=1) == {"first": 3}
    error = rig.refusal("commit_lease", **READER, offset=6)
    assert error.code == 406
    assert "it has leased messages below 5" in error.text
    assert state(rig) == (3, 5)
    rig.restart()
    assert state(rig) == (3, 5)
    assert row(rig)["messages"] == 2


def test_release_gives_messages_back_to_their_places(rig: OperationRig) -> None:
    rig.put("q", *numbered(4))
    rig.result("lease_queue", **READER, messages=3)
    rig.result("commit_lease", **READER, offset=1)
    assert rig.result("release_lease", **READER) == {"messages": 2}
    assert peeked(rig) == [b"1", b"2", b"3"]
    assert state(rig) == (0, 0)
    assert rig.result("list_leases") == []


def test_a_lease_outlives_a_restart(rig: OperationRig) -> None:
    rig.put("q", *numbered(4))
    before = rig.result("lease_queue", **READER, messages=3)
    rig.restart()
    assert row(rig)["messages_ready"] == 1  # told without opening the queue
    after = rig.result("describe_lease", **READER)
    assert {**before, "path": ""} == {**after, "path": ""}
    assert peeked(rig) == [b"3"]


def test_an_empty_queue_has_nothing_to_lease(rig: OperationRig) -> None:
    assert rig.result("lease_queue", **READER)["head"] == 0


# ---- several at once -----------------------------------------------------------------------------


def test_two_that_ask_for_one_reader_get_the_same_answer(rig: OperationRig) -> None:
    rig.put("q", *numbered(4))
    one = rig.ask("lease_queue", **READER, messages=2)
    other = rig.ask("lease_queue", **READER, messages=2)
    rig.turn()
    assert one.result == other.result
    assert one.result["head"] == 2


def test_calls_of_one_reader_are_done_in_order(rig: OperationRig) -> None:
    rig.put("q", *numbered(4))
    leased = rig.ask("lease_queue", **READER)
    committed = rig.ask("commit_lease", **READER, offset=4)
    again = rig.ask("describe_lease", **READER)
    rig.turn()
    assert leased.result["first"] == 0
    assert committed.result == {"first": 4}
    assert again.result["first"] == 4


def test_two_readers_share_a_queue(rig: OperationRig) -> None:
    rig.put("q", *numbered(1000))
    one = rig.ask("lease_queue", queue="q", reader="a")
    other = rig.ask("lease_queue", queue="q", reader="b")
    rig.turn()
    heads = [one.result["head"], other.result["head"]]
    assert sum(heads) == 1000
    assert min(heads) >= 300
    assert [r["reader"] for r in rig.result("list_leases")] == ["a", "b"]


def test_others_have_their_turns_between_slices(rig: OperationRig) -> None:
    rig.put("q", *numbered(900))
    asked = rig.ask("lease_queue", **READER)
    turns = 0
    while not asked.has_come:
        rig.vhost.turn()
        rig.vhost.engine.poll()
        turns += 1
        assert turns < 100
    assert turns > 1


def test_consumers_beside_a_lease(rig: OperationRig) -> None:
    rig.put("q", *numbered(10))
    rig.result("lease_queue", **READER, messages=4)
    c = rig.client().open()
    c.call(1, BasicQos(prefetch_count=100), BasicQosOk)
    c.call(1, BasicConsume(queue="q"), BasicConsumeOk)
    assert c.bodies() == numbered(6, 4)
    found = row(rig)
    assert (found["messages"], found["messages_ready"]) == (10, 0)
    assert (found["messages_unacknowledged"], found["leased"]) == (10, 4)
    rig.result("release_lease", **READER)
    assert c.bodies() == numbered(4)


# ---- counts --------------------------------------------------------------------------------------


def test_leased_messages_count_as_unacknowledged(rig: OperationRig) -> None:
    rig.put("q", *numbered(5))
    rig.result("lease_queue", **READER, messages=2)
    opened = row(rig)
    rig.restart()
    unopened = row(rig)
    for found in (opened, unopened):
        assert (found["messages"], found["messages_ready"]) == (5, 3)
        assert (found["messages_unacknowledged"], found["leased"]) == (2, 2)
        assert (found["message_bytes"], found["message_bytes_ready"]) == (5, 3)
        assert found["message_bytes_unacknowledged"] == 2
    found = rig.result("describe_queue", queue="q")
    assert (found["type"], found["ready"], found["unacknowledged"]) == ("classic", 3, 2)
    assert [lease["reader"] for lease in found["leases"]] == ["r"]


def test_describe_queue_of_a_stream(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    found = rig.result("describe_queue", queue="s")
    assert (found["type"], found["leases"]) == ("stream", [])
    assert rig.refusal("describe_queue", queue="x").code == 404


# ---- what is refused -----------------------------------------------------------------------------


def test_of_what_nothing_is_leased(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    rig.result("declare_queue", queue="t", durable=False)
    told = {"s": "is a stream", "t": "is not durable"}
    for queue, text in told.items():
        error = rig.refusal("lease_queue", queue=queue, reader="r")
        assert error.code == 406
        assert text in error.text
    assert rig.refusal("lease_queue", queue="x", reader="r").code == 404
    assert rig.refusal("lease_queue", queue="q", reader="").code == 406
    assert rig.refusal("lease_queue", **READER, messages=0).code == 406


def test_an_exclusive_queue_is_nobody_elses(rig: OperationRig) -> None:
    c = rig.client().open()
    c.call(1, QueueDeclare(queue="mine", exclusive=True), QueueDeclareOk)
    assert rig.refusal("lease_queue", queue="mine", reader="r").code == 405


def test_who_may_not_read_the_queue(rig: OperationRig) -> None:
    client = rig.client(Identity("ann", frozenset(), "", "", "^mine"))
    channel = client.open().handler.channels[1]
    for op in ("lease_queue", "describe_lease", "release_lease"):
        assert rig.refusal(op, channel, **READER).code == 403
    assert rig.refusal("commit_lease", channel, **READER, offset=0).code == 403
    assert rig.refusal("describe_queue", channel, queue="q").code == 403
    rig.put("q", b"1")
    rig.result("lease_queue", **READER)
    assert rig.result("list_leases", channel) == []


# ---- deleting, purging, expiring -----------------------------------------------------------------


def test_a_purge_leaves_what_is_leased(rig: OperationRig) -> None:
    rig.put("q", *numbered(5))
    rig.result("lease_queue", **READER, messages=2)
    c = rig.client().open()
    assert c.call(1, QueuePurge(queue="q"), QueuePurgeOk).message_count == 3
    rig.result("release_lease", **READER)
    assert peeked(rig) == [b"0", b"1"]


def test_a_leased_queue_is_not_deleted(rig: OperationRig) -> None:
    rig.put("q", *numbered(5))
    rig.result("lease_queue", **READER, messages=2)
    c = rig.client().open()
    c.send(1, QueueDelete(queue="q"))
    rig.turn()
    (closed,) = c.methods(ChannelClose)
    assert closed.reply_code == 406
    assert closed.reply_text == (
        "PRECONDITION_FAILED - queue 'q' in vhost '/' is leased: 2 messages by readers [r]; "
        "commit, release (penstock release), or delete with force"
    )
    assert rig.refusal("delete_queue", queue="q").code == 406
    rig.result("commit_lease", **READER, offset=2)
    c = rig.client().open()
    assert c.call(1, QueueDelete(queue="q"), QueueDeleteOk).message_count == 3


@pytest.mark.parametrize("is_declared_again", [False, True])
def test_deleted_by_force_the_reader_is_told(rig: OperationRig, is_declared_again: bool) -> None:
    rig.put("q", *numbered(5))
    rig.result("lease_queue", **READER, messages=2)
    assert rig.result("delete_queue", queue="q", force=True) == {"messages": 3}
    if is_declared_again:
        rig.result("declare_queue", queue="q")
        assert rig.result("describe_lease", queue="q", reader="other")["head"] == 0
    error = rig.refusal("describe_lease", **READER)
    assert error.code == 404
    assert "it was deleted while reader 'r' had 2 messages leased" in error.text
    rig.restart()
    assert rig.result("list_leases") == []


def test_a_queue_that_was_not_opened_since_the_start_is_not_deleted(rig: OperationRig) -> None:
    rig.put("q", *numbered(2))
    rig.result("lease_queue", **READER)
    rig.restart()
    assert rig.refusal("delete_queue", queue="q").code == 406


def test_a_leased_queue_does_not_expire(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="e", arguments={"x-expires": 1000})
    rig.put("e", b"1")
    rig.result("lease_queue", queue="e", reader="r")
    rig.tick(5)
    assert rig.vhost.table.has("e")
    rig.restart()
    rig.tick(5)
    assert rig.vhost.table.has("e")
    rig.result("commit_lease", queue="e", reader="r", offset=1)
    rig.tick(0.5)
    assert rig.vhost.table.has("e")
    rig.tick(1.5)
    assert not rig.vhost.table.has("e")


def test_an_auto_delete_queue_waits_for_its_leases(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="a", auto_delete=True)
    rig.put("a", b"1", b"2")
    rig.result("lease_queue", queue="a", reader="r", messages=1)
    c = rig.client().open()
    c.call(1, BasicConsume(queue="a", no_ack=True), BasicConsumeOk)
    c.lose()
    assert rig.vhost.table.has("a")
    rig.result("commit_lease", queue="a", reader="r", offset=1)
    assert not rig.vhost.table.has("a")


# ---- alerts, failures ----------------------------------------------------------------------------


def told(rig: OperationRig, kind: str) -> list[str]:
    return [text for k, text in rig.events if k == kind]


def test_an_old_lease_is_told_once_an_hour(rig: OperationRig) -> None:
    rig.put("q", b"1")
    assert not rig.result("lease_queue", **READER)["is_old"]
    rig.tick(3000)
    assert told(rig, "lease_old") == []
    rig.tick(700)
    (text,) = told(rig, "lease_old")
    assert "queue 'q' in vhost '/': reader 'r' has 1 messages leased" in text
    assert rig.result("list_leases")[0]["is_old"]
    rig.tick(600)
    assert len(told(rig, "lease_old")) == 1
    rig.tick(3600)
    assert len(told(rig, "lease_old")) == 2
    rig.result("commit_lease", **READER, offset=1)
    rig.tick(3700)
    assert len(told(rig, "lease_old")) == 2
    assert not rig.result("list_leases")[0]["is_old"]


def test_a_mistake_in_the_queue_is_answered(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put("q", b"1")
    queue = rig.vhost.table.usable("q")
    assert isinstance(queue, BrokerQueue)

    def broken(*_args: object) -> None:
        raise KeyError("broken")

    monkeypatch.setattr(queue.amq, "lease", broken)
    error = rig.refusal("lease_queue", **READER)
    assert error.code == 541
    assert rig.result("lease_queue", **READER)["head"] == 1  # the queue was restarted


def test_a_queue_that_is_restarted_keeps_its_leases(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put("q", *numbered(4))
    before = rig.result("lease_queue", **READER, messages=2)
    queue = rig.vhost.table.usable("q")
    assert isinstance(queue, BrokerQueue)
    rig.vhost.restarts.failed(queue, KeyError("broken"))
    assert rig.vhost.table.usable("q") is not queue
    assert rig.result("describe_lease", **READER) == before
    assert rig.result("lease_queue", **READER)["head"] == 4
    status = rig.result("vhost_status")
    assert (status["readers"], status["messages_leased"]) == (1, 4)
    assert rig.result("release_lease", **READER) == {"messages": 4}
    assert peeked(rig) == numbered(4)


def test_a_release_that_a_crash_interrupted_goes_on(rig: OperationRig) -> None:
    rig.put("q", *numbered(700))
    rig.result("lease_queue", **READER)
    asked = rig.ask("release_lease", **READER)
    rig.vhost.background.run()  # a few slices; nobody is answered
    rig.vhost.engine.sync()
    assert not asked.has_come
    rig.fs = rig.fs.crash("kept")
    rig.start()
    rig.turn()
    assert rig.result("list_leases") == []
    assert row(rig)["messages_ready"] == 700
