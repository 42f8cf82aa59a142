"""Operations on messages: publish, get, settle, peek, and sessions that end."""

from datetime import UTC, datetime

import pytest

from penstock.access.permissions import Identity
from penstock.operation_json import JsonParts
from penstock.storage.files.durability import DISK
from tests.helpers.operation_rig import OperationRig
from tests.helpers.vhost_rig import classic


@pytest.fixture
def rig() -> OperationRig:
    made = OperationRig()
    made.result("declare_queue", queue="q")
    return made


def got(rig: OperationRig, session: str = "s", **args: object) -> list[bytes]:
    found = rig.result("get", queue="q", session=session, **args)
    return [message["body"] for message in found["messages"]]


def counts(rig: OperationRig) -> tuple[int, int]:
    """Ready and pending messages."""
    amq = classic(rig.vhost.table.find_queue("q")).amq
    return amq.len(), amq.depth() - amq.len()


# ---- publish -------------------------------------------------------------------------------------


def test_publish_is_answered_when_it_is_on_disk(rig: OperationRig) -> None:
    asked = rig.ask("publish", routing_key="q", bodies=["a", b"b"], properties={"delivery_mode": 2})
    assert not asked.has_come
    rig.turn()
    assert asked.result == {"published": 2}
    assert rig.vhost.engine.log.settled(DISK) == rig.vhost.engine.log.last_lsn
    rig.restart()
    assert got(rig, count=5) == [b"a", b"b"]


def test_a_transient_message_needs_no_disk(rig: OperationRig) -> None:
    asked = rig.ask("publish", routing_key="q", bodies=[b"a"])
    assert asked.result == {"published": 1}


def test_publish_by_an_exchange_and_its_properties(rig: OperationRig) -> None:
    rig.result("declare_exchange", exchange="x", type="topic")
    rig.result("bind_queue", queue="q", exchange="x", routing_key="a.*")
    properties = {"headers": {"n": 1, "b": b"\xff"}, "content_type": "text/plain", "priority": 3}
    rig.result("publish", exchange="x", routing_key="a.b", bodies=[b"1"], properties=properties)
    (message,) = rig.result("get", queue="q", session="s")["messages"]
    assert message["exchange"] == "x"
    assert message["routing_key"] == "a.b"
    assert message["properties"] == properties
    assert message["redelivered"] is False


def test_where_a_message_would_go_is_said_and_nothing_is_published(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="eu")
    rig.result("declare_queue", queue="log", arguments={"x-queue-type": "stream"})
    rig.result("declare_exchange", exchange="x", type="topic")
    rig.result("declare_exchange", exchange="by_region", type="headers")
    rig.result("bind_queue", queue="q", exchange="x", routing_key="a.*")
    rig.result("bind_queue", queue="log", exchange="x", routing_key="#")
    rig.result("bind_exchange", source="x", destination="by_region", routing_key="a.#")
    rig.result("bind_queue", queue="eu", exchange="by_region", arguments={"region": "eu"})
    in_eu = {"headers": {"region": "eu"}}
    asked = {"exchange": "x", "routing_key": "a.b"}
    assert rig.result("route", **asked) == {"queues": ["log", "q"]}
    assert rig.result("route", **asked, properties=in_eu) == {"queues": ["eu", "log", "q"]}
    assert rig.result("route", routing_key="q") == {"queues": ["q"]}
    assert rig.result("route", routing_key="none") == {"queues": []}
    assert rig.refusal("route", exchange="none").code == 404
    assert counts(rig) == (0, 0)
    for row in rig.result("list_rows", kind="exchanges"):
        assert row.get("unroutable", 0) == 0


def test_expiration_and_delay_are_honoured(rig: OperationRig) -> None:
    rig.put("q", b"1", expiration="1000")
    rig.put("q", b"2", headers={"x-delay": 5000})
    assert counts(rig) == (1, 0)
    rig.tick(2)
    assert counts(rig) == (0, 0)
    rig.tick(5)
    assert got(rig) == [b"2"]


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        ({"routing_key": "no"}, 312, "no queue gets it: key 'no', queue 'no' in vhost '/'"),
        ({"exchange": "amq.fanout"}, 312, "exchange 'amq.fanout' in vhost '/'"),
        ({"exchange": "none"}, 404, "no exchange 'none' in vhost '/'"),
        ({"properties": {"prio": 5}}, 406, "unknown property 'prio'"),
        ({"properties": {"priority": 256}}, 406, "property 'priority': given 256"),
        ({"properties": {"priority": "5"}}, 406, "property 'priority'"),
        ({"properties": {"headers": 5}}, 406, "property 'headers'"),
        ({"properties": {"type": "x" * 256}}, 406, "AMQP cannot carry"),
        ({"properties": {"headers": {"x": object()}}}, 406, "AMQP cannot carry"),
        ({"properties": {"expiration": "soon"}}, 406, "invalid expiration"),
        ({"bodies": [1]}, 406, "a list of texts or bytes"),
    ],
)
def test_a_publish_that_is_refused(
    rig: OperationRig, args: dict[str, object], code: int, told: str
) -> None:
    error = rig.refusal("publish", **{"routing_key": "q", "bodies": [b"x"], **args})
    assert error.code == code
    assert told in error.text
    assert counts(rig) == (0, 0)


def test_a_full_queue_says_how_many_are_in() -> None:
    rig = OperationRig()
    full = {"x-max-length": 2, "x-overflow": "reject-publish"}
    rig.result("declare_queue", queue="q", arguments=full)
    error = rig.refusal("publish", routing_key="q", bodies=[b"1", b"2", b"3"])
    assert error.code == 506
    assert "2 were published" in error.text


def test_nothing_is_published_while_memory_is_short(rig: OperationRig) -> None:
    rig.vhost.blocked_reason = "memory"
    error = rig.refusal("publish", routing_key="q", bodies=[b"1"])
    assert error.code == 506
    assert "short of memory" in error.text


# ---- get, settle ---------------------------------------------------------------------------------


def test_what_is_got_is_pending_until_it_is_settled(rig: OperationRig) -> None:
    rig.put("q", b"1", b"2", b"3")
    found = rig.result("get", queue="q", session="s", count=2)["messages"]
    assert counts(rig) == (1, 2)
    tags = [message["tag"] for message in found]
    assert rig.result("settle", queue="q", session="s", tags=tags) == {"settled": 2}
    assert counts(rig) == (1, 0)
    assert rig.result("settle", queue="q", session="s", tags=tags) == {"settled": 0}
    rig.restart()
    assert got(rig, count=9) == [b"3"]


def test_what_is_put_back_is_where_it_was_and_was_not_tried(rig: OperationRig) -> None:
    rig.put("q", b"1", b"2")
    (message,) = rig.result("get", queue="q", session="s")["messages"]
    tags = [message["tag"]]
    assert rig.result("settle", queue="q", session="s", tags=tags, requeue=True) == {"settled": 1}
    (again,) = rig.result("get", queue="q", session="s")["messages"]
    assert again["body"] == b"1"
    assert again["redelivered"] is True
    assert "x-delivery-count" not in again["properties"].get("headers", {})


def test_a_session_that_ends_gives_back_what_it_holds(rig: OperationRig) -> None:
    rig.put("q", b"1", b"2", b"3")
    assert got(rig, "a", count=2) == [b"1", b"2"]
    assert got(rig, "b") == [b"3"]
    assert rig.result("session_closed", session="a") == {"released": 2}
    assert counts(rig) == (2, 1)
    assert rig.result("session_closed", session="a") == {"released": 0}
    assert got(rig, "c", count=5) == [b"1", b"2"]


def test_one_session_does_not_settle_what_another_holds(rig: OperationRig) -> None:
    rig.put("q", b"1")
    (message,) = rig.result("get", queue="q", session="a")["messages"]
    args = {"queue": "q", "tags": [message["tag"]]}
    assert rig.result("settle", session="b", **args) == {"settled": 0}
    assert rig.result("settle", session="a", **args) == {"settled": 1}


def test_what_is_held_of_a_queue_that_was_deleted_is_gone(rig: OperationRig) -> None:
    rig.put("q", b"1")
    (message,) = rig.result("get", queue="q", session="s")["messages"]
    rig.result("delete_queue", queue="q")
    rig.result("declare_queue", queue="q")
    rig.put("q", b"2")
    assert got(rig, "other") == [b"2"]
    tags = [message["tag"]]
    assert rig.result("settle", queue="q", session="s", tags=tags) == {"settled": 0}
    assert counts(rig) == (0, 1)


def test_a_get_without_a_wait_answers_at_once(rig: OperationRig) -> None:
    assert rig.ask("get", queue="q", session="s").result == {"messages": []}


def test_a_get_that_waits_has_what_comes(rig: OperationRig) -> None:
    asked = rig.ask("get", queue="q", session="s", wait_ms=5000, count=5)
    rig.turn()
    assert not asked.has_come
    rig.put("q", b"1")
    rig.turn()
    assert [message["body"] for message in asked.result["messages"]] == [b"1"]
    rig.tick(10)
    assert len(asked.replies) == 1


def test_a_get_waits_no_longer_than_it_said(rig: OperationRig) -> None:
    asked = rig.ask("get", queue="q", session="s", wait_ms=5000)
    rig.tick(4.9)
    assert not asked.has_come
    rig.tick(0.2)
    assert asked.result == {"messages": []}
    assert not rig.vhost.table.find_queue("q").waiters
    rig.put("q", b"1")
    assert counts(rig) == (1, 0)


def test_of_two_that_wait_one_has_it(rig: OperationRig) -> None:
    first = rig.ask("get", queue="q", session="a", wait_ms=5000)
    second = rig.ask("get", queue="q", session="b", wait_ms=5000)
    rig.put("q", b"1")
    rig.turn()
    assert [first.has_come, second.has_come] == [True, False]
    rig.put("q", b"2")
    rig.turn()
    assert second.result["messages"][0]["body"] == b"2"


def test_a_get_whose_session_has_ended_takes_nothing(rig: OperationRig) -> None:
    asked = rig.ask("get", queue="q", session="s", wait_ms=5000)
    rig.result("session_closed", session="s")
    rig.put("q", b"1")
    rig.turn()
    assert not asked.has_come
    assert counts(rig) == (1, 0)


def test_a_get_that_waits_hears_that_the_queue_is_gone(rig: OperationRig) -> None:
    asked = rig.ask("get", queue="q", session="s", wait_ms=5000)
    rig.result("delete_queue", queue="q")
    (error,) = asked.replies
    assert error.code == 404


def test_a_get_waits_for_a_message_that_is_held(rig: OperationRig) -> None:
    """A message beyond the settled delivered mark comes when that is settled."""
    rig.put("q", *[b"%d" % n for n in range(600)])
    seen: list[bytes] = []
    for _ in range(50):
        asked = rig.ask("get", queue="q", session="s", wait_ms=5000, count=50)
        rig.turn()
        seen += [message["body"] for message in asked.result["messages"]]
        if len(seen) == 600:
            break
    assert seen == [b"%d" % n for n in range(600)]


def test_a_reply_ends_after_some_bytes(rig: OperationRig) -> None:
    rig.put("q", *[bytes(3 << 20)] * 5)
    assert len(got(rig, count=5)) == 3


# ---- peek ----------------------------------------------------------------------------------------


def test_peek_looks_at_all_in_pieces_and_changes_nothing(rig: OperationRig) -> None:
    bodies = [b"%d" % n for n in range(50)]
    rig.put("q", *bodies)
    seen: list[bytes] = []
    after = None
    while True:
        found = rig.result("peek", queue="q", count=20, after=after)
        if not found["messages"]:
            break
        seen += [message["body"] for message in found["messages"]]
        after = found["after"]
    assert seen == bodies
    assert counts(rig) == (50, 0)


def test_peek_stops_after_some_bytes_and_goes_on_there(rig: OperationRig) -> None:
    rig.put("q", *[bytes(3 << 20)] * 5)
    first = rig.result("peek", queue="q", count=9)
    rest = rig.result("peek", queue="q", count=9, after=first["after"])
    assert [len(found["messages"]) for found in (first, rest)] == [3, 2]


def test_a_body_above_the_maximum(rig: OperationRig) -> None:
    error = rig.refusal("publish", routing_key="q", bodies=[bytes((128 << 20) + 1)])
    assert error.code == 406
    assert "larger than configured max size" in error.text


def test_peek_of_nothing(rig: OperationRig) -> None:
    assert rig.result("peek", queue="q", count=20) == {"messages": [], "after": None}


# ---- over a channel ------------------------------------------------------------------------------


def test_get_is_not_for_clients_but_peek_and_publish_are(rig: OperationRig) -> None:
    client = rig.client(Identity("ann", frozenset(), "", ".*", "^q$"))
    client.pump()
    client.open()
    channel = client.handler.channels[1]
    assert rig.refusal("get", channel, queue="q", session="s").code == 403
    assert rig.result("publish", channel, routing_key="q", bodies=["x"]) == {"published": 1}
    assert len(rig.result("peek", channel, queue="q")["messages"]) == 1
    assert rig.refusal("peek", channel, queue="other").code == 403


# ---- get and settle at once ----------------------------------------------------------------------


def taken(rig: OperationRig, **args: object) -> list[tuple[object, ...]]:
    return [
        (row["payload"], row["message_count"], row["redelivered"])
        for row in rig.result("get_messages", queue="q", **args)
    ]


def test_a_message_as_rabbitmq_shows_it(rig: OperationRig) -> None:
    died = {"x-death": [{"time": datetime(2026, 11, 27, tzinfo=UTC), "count": 1}]}
    rig.put("q", b"text", headers=died, timestamp=1_795_373_666, message_id="m1")
    assert rig.result("get_messages", queue="q") == [
        {
            "payload_bytes": 4, "redelivered": False, "exchange": "", "routing_key": "q",
            "message_count": 0,
            "properties": {
                "delivery_mode": 2, "timestamp": 1_795_373_666, "message_id": "m1",
                "headers": {"x-death": [{"time": 1_795_737_600, "count": 1}]},
            },
            "payload": "text", "payload_encoding": "string",
        }
    ]  # fmt: skip


@pytest.mark.parametrize("ackmode", ["ack_requeue_true", "reject_requeue_true"])
def test_messages_that_are_requeued_stay_as_redelivered(rig: OperationRig, ackmode: str) -> None:
    rig.put("q", b"1", b"2", b"3")
    assert taken(rig, count=2, ackmode=ackmode) == [("1", 2, False), ("2", 1, False)]
    assert counts(rig) == (3, 0)
    assert taken(rig, count=5) == [("1", 2, True), ("2", 1, True), ("3", 0, False)]


def test_messages_that_are_acknowledged_are_gone(rig: OperationRig) -> None:
    rig.put("q", b"1", b"2")
    assert taken(rig, ackmode="ack_requeue_false") == [("1", 1, False)]
    assert counts(rig) == (1, 0)
    rig.restart()
    assert taken(rig, count=10, ackmode="ack_requeue_false") == [("2", 0, False)]
    assert taken(rig) == []


def test_messages_that_are_rejected_are_dead_letters(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    rig.result("declare_queue", queue="with-dead", arguments=arguments)
    rig.put("with-dead", b"1")
    rig.result("get_messages", queue="with-dead", ackmode="reject_requeue_false")
    (row,) = rig.result("get_messages", queue="dead")
    assert row["properties"]["headers"]["x-first-death-reason"] == "rejected"


@pytest.mark.parametrize(
    ("body", "args", "payload", "encoding"),
    [
        (b"abc", {"encoding": "base64"}, "YWJj", "base64"),
        (b"\xff\x00", {}, "/wA=", "base64"),
        (b"a\0b", {}, "YQBi", "base64"),
        (b"abcdef", {"truncate": 2}, "ab", "string"),
        ("aé".encode(), {"truncate": 2}, "a", "string"),  # not half of a character
        ("aé".encode()[:2], {}, "YcM=", "base64"),  # half of one was sent
        (b"abc", {"truncate": 0}, "", "string"),
        (b"abc", {"truncate": 3}, "abc", "string"),
    ],
)
def test_payloads(
    rig: OperationRig, body: bytes, args: dict[str, object], payload: str, encoding: str
) -> None:
    rig.put("q", body)
    (row,) = rig.result("get_messages", queue="q", **args)
    assert (row["payload"], row["payload_encoding"]) == (payload, encoding)
    assert row["payload_bytes"] == len(body)


def test_a_get_that_settles_needs_read(rig: OperationRig) -> None:
    client = rig.client(Identity("ann", frozenset(), "", ".*", "^no$"))
    client.pump()
    client.open()
    error = rig.refusal("get_messages", client.handler.channels[1], queue="q")
    assert error.code == 403
    assert rig.refusal("get_messages", queue="q", ackmode="none").code == 406
    assert rig.refusal("get_messages", queue="none").code == 404


def test_a_get_that_settles_waits_for_what_is_held(rig: OperationRig) -> None:
    rig.put("q", *[b"%d" % n for n in range(600)])
    seen: list[object] = []
    while len(seen) < 600:
        found = taken(rig, count=50, ackmode="ack_requeue_false")
        assert found
        seen += [payload for payload, _, _ in found]
    assert seen == [str(n) for n in range(600)]


@pytest.mark.parametrize("ackmode", ["ack_requeue_false", "reject_requeue_false"])
@pytest.mark.parametrize("bodies", [[bytes(150_000)], [b"\xff" * 60_000] * 2, [b"\1" * 30_000]])
def test_what_does_not_fit_into_the_answer_to_a_client_stays_in_its_queue(
    rig: OperationRig, ackmode: str, bodies: list[bytes]
) -> None:
    """Bytes that are no text take more in the answer, as base64, and so do control characters."""
    channel = rig.client().open(1).handler.channels[1]
    rig.put("q", *bodies)
    args = {"queue": "q", "count": 2, "ackmode": ackmode}
    assert rig.refusal("get_messages", channel, **args).code == 311
    assert [one["body"] for one in rig.result("peek", queue="q", count=9)["messages"]] == bodies
    assert len(rig.result("get_messages", channel, truncate=100, **args)) == len(bodies)
    assert not rig.result("peek", queue="q")["messages"]


def test_the_text_that_is_measured_is_the_answer(rig: OperationRig) -> None:
    rig.put("q", b"1")
    asked = rig.ask("get_messages", rig.client().open(1).handler.channels[1], queue="q", count=1)
    rig.turn()
    assert isinstance(asked.replies[0], JsonParts), "it is not encoded again"
    assert [one["payload"] for one in asked.result] == ["1"]


def test_what_is_browsed_fits_if_its_bodies_are_cut(rig: OperationRig) -> None:
    channel = rig.client().open(1).handler.channels[1]
    rig.put("q", bytes(150_000))
    assert rig.refusal("browse_messages", channel, queue="q").code == 311
    found = rig.result("browse_messages", channel, queue="q", truncate=10)["messages"]
    assert [one["payload_bytes"] for one in found] == [150_000]
