"""A large message is leased, and shown, in slices: whole and verified, or not at all."""

import base64
from typing import Any

import pytest

from penstock.broker import background_tasks
from penstock.operation_json import JsonParts, dumps, payload
from penstock.storage.pages.stream_view import StreamView
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import Asked, OperationRig
from tests.helpers.reads import Reads, counted_reads
from tests.unit.broker.test_large_bodies import body_of, open_bodies, own_files
from tests.unit.broker.test_turns import TickingClock

pytestmark = pure_only  # a constant is replaced
MIB = 1 << 20
LARGE = body_of(16)
TURN_BYTES = 4 * MIB
READER = {"queue": "q", "reader": "r"}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return counted_reads(monkeypatch)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> OperationRig:
    monkeypatch.setattr(background_tasks, "STEPS_MAX", 1)
    rig = OperationRig()
    rig.result("declare_queue", queue="q", durable=True)
    return rig


def publish(rig: OperationRig, *bodies: bytes, persistent: bool = True) -> None:
    client = rig.client().open()
    for body in bodies:
        client.publish(1, "", "q", body, delivery_mode=2 if persistent else 1)
    rig.turn()
    client.lose()


def after_each_turn(rig: OperationRig, reads: Reads, asked: Asked) -> int:
    """Turns until there is an answer, each of which reads no more than TURN_BYTES."""
    for n in range(300):
        assert reads.take() <= TURN_BYTES
        if asked.has_come:
            return n
        rig.vhost.turn()
        rig.vhost.completed()
    raise AssertionError("it is never answered")


def leased(rig: OperationRig, found: dict[str, Any]) -> list[bytes]:
    view = StreamView(rig.fs, found["path"])
    assert view.head().next_offset == found["head"]
    return [bytes(one.payload) for one in view.read(found["first"], 100, 1 << 30)]


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("mode", ["default", "lazy", "restarted", "sqlite", "priorities"])
def test_a_large_message_is_leased_in_slices(
    rig: OperationRig, reads: Reads, *, persistent: bool, mode: str
) -> None:
    if mode in ("sqlite", "priorities", "lazy"):
        given = {"sqlite": {"x-backing": "sqlite"}, "priorities": {"x-max-priority": 3}}
        rig.result("delete_queue", queue="q")
        arguments = given.get(mode, {"x-queue-mode": "lazy"})
        rig.result("declare_queue", queue="q", durable=True, arguments=arguments)
    bodies = [b"first", LARGE, b"between", LARGE[::-1], b"last"]
    publish(rig, *bodies, persistent=persistent)
    if mode == "restarted" and persistent:
        rig.restart()
    reads.take()
    asked = rig.ask("lease_queue", **READER)
    assert after_each_turn(rig, reads, asked) > 16
    assert leased(rig, asked.result) == bodies
    assert asked.result["bytes"] == sum(map(len, bodies))
    rig.restart()  # the pages are made again, in slices too
    reads.take()
    asked = rig.ask("describe_lease", **READER)
    assert after_each_turn(rig, reads, asked) > 16
    assert leased(rig, asked.result) == bodies
    assert rig.result("commit_lease", **READER, offset=5) == {"first": 5}
    rig.restart()
    assert own_files(rig) == open_bodies(rig) == []


@pytest.mark.parametrize("persistent", [True, False])
def test_one_that_is_damaged_is_set_aside(rig: OperationRig, *, persistent: bool) -> None:
    publish(rig, LARGE, b"next", persistent=persistent)
    (path,) = own_files(rig)
    rig.fs.damage_flip(path, 5 * MIB)
    found = rig.result("lease_queue", **READER)
    assert leased(rig, found) == [b"next"]
    assert open_bodies(rig) == []


@pytest.mark.parametrize("persistent", [True, False])
def test_one_that_others_take_meanwhile_is_not_leased(
    rig: OperationRig, *, persistent: bool
) -> None:
    publish(rig, LARGE, b"next", persistent=persistent)
    asked = rig.ask("lease_queue", **READER, messages=1)
    for _ in range(5):
        rig.vhost.turn()
    (one,) = rig.result("get_messages", queue="q", count=1, truncate=1, ackmode="ack_requeue_false")
    assert one["payload_bytes"] == len(LARGE)
    rig.turn()
    assert leased(rig, asked.result) == [b"next"]
    assert open_bodies(rig) == []
    rig.result("commit_lease", **READER, offset=1)
    rig.restart()
    assert own_files(rig) == []


def test_a_message_that_is_damaged_after_the_lease_is_reported(rig: OperationRig) -> None:
    publish(rig, LARGE)
    rig.result("lease_queue", **READER)
    (path,) = own_files(rig)
    rig.restart()
    rig.fs.damage_flip(path, 5 * MIB)
    for _ in range(2):
        assert "body" in rig.refusal("describe_lease", **READER).text
    assert open_bodies(rig) == []
    assert rig.result("release_lease", **READER) == {"messages": 1}


TEXT = ('Bytes, \u00e4\u20ac\U0001f600 and "\\\n\1. ' * 400_000).encode()


@pytest.mark.parametrize("op", ["get_messages", "browse_messages", "peek"])
@pytest.mark.parametrize(
    "body",
    [LARGE, TEXT, TEXT + b"\xe2\x82", TEXT[:-9] + b"\xff", b"x" * (8 * MIB), b"\0" + TEXT],
    ids=["binary", "text", "cut", "late", "ascii", "NUL"],
)
@pytest.mark.parametrize("truncate", [None, 3 * MIB + 1, 3 * MIB + 2])
def test_a_large_message_is_shown_in_slices(
    rig: OperationRig, reads: Reads, op: str, body: bytes, truncate: int | None
) -> None:
    publish(rig, b"small", body)
    rig.vhost.budget.clock = TickingClock()
    reads.take()
    given: dict[str, Any] = {"queue": "q", "count": 9}
    if op != "peek":
        given |= {"truncate": truncate, "encoding": "auto"}
    if op == "get_messages":
        given["ackmode"] = "ack_requeue_true"
    asked = rig.ask(op, **given)
    n = after_each_turn(rig, reads, asked)
    assert n > (len(body) if truncate is None or op == "peek" else truncate) // TURN_BYTES // 2
    (reply,) = asked.replies
    assert isinstance(reply, JsonParts)
    text = b"".join(reply.take())
    if op == "peek":
        assert b'"body":{"b64":"' + base64.b64encode(body) + b'"}}]' in text
    else:
        assert dumps(payload(body, truncate, "auto"))[1:-1] in text
        assert text.count(b'"payload_bytes":') == 2
    asked.replies[0] = None
    assert open_bodies(rig) == []


@pytest.mark.parametrize("op", ["get_messages", "browse_messages", "peek"])
def test_a_large_message_that_is_damaged_is_not_shown(rig: OperationRig, op: str) -> None:
    publish(rig, LARGE, b"next")
    (path,) = own_files(rig)
    rig.fs.damage_flip(path, 5 * MIB)
    given = {"ackmode": "ack_requeue_true"} if op == "get_messages" else {}
    found = rig.result(op, queue="q", count=9, **given)
    found = found if op == "get_messages" else found["messages"]
    assert [one.get("payload", one.get("body")) for one in found] in ([b"next"], ["next"])
    assert open_bodies(rig) == []


def test_the_queue_of_a_large_message_is_deleted_while_it_is_shown(rig: OperationRig) -> None:
    publish(rig, LARGE)
    rig.vhost.budget.clock = TickingClock()
    asked = rig.ask("get_messages", queue="q", count=1, ackmode="ack_requeue_false")
    rig.vhost.turn()
    assert not asked.has_come
    rig.result("delete_queue", queue="q")
    rig.turn()
    assert asked.has_come
    assert open_bodies(rig) == []
