"""What a request raises stays with that request: the vhost and other clients go on.

Two kinds: names that are no UTF-8 in whatever is asked, in every operation and every method; and
errors that nobody expected, injected wherever an answer or a turn's work is done.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker import operations
from penstock.broker.background_tasks import BackgroundTask
from penstock.broker.operations import FUNCTIONS
from penstock.codec.method import Method
from penstock.codec.spec import (
    BasicCancel,
    BasicConsume,
    BasicGet,
    ChannelClose,
    ChannelOpen,
    ConfirmSelect,
    ConnectionClose,
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    PenstockCall,
    PenstockCallError,
    PenstockCallOk,
    QueueBind,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
)
from penstock.errors import AMQPError, ChannelError, valid_text
from penstock.operation_json import loads
from penstock.operation_table import OPERATIONS
from tests.helpers.builds import pure_only
from tests.helpers.operation_rig import OperationRig

BAD_BYTES = b"q\xff\xfe"
BAD = BAD_BYTES.decode("utf-8", "surrogateescape")


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


def is_served(rig: OperationRig) -> bool:
    """Whether another client is served now."""
    client = rig.client().open()
    declared = client.call(1, QueueDeclare(queue="other", durable=True), QueueDeclareOk)
    client.lose()
    return declared.queue == "other"


def told_mistakes(rig: OperationRig) -> list[str]:
    return [text for kind, text in rig.events if kind == "internal_error"]


# ---- text that is no Unicode ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("plain", "plain"), ("\udc80é", "\ufffdé"), ("a\ud800", "a\ufffd"),
        ("\U0001f600", "\U0001f600"),
    ],
)  # fmt: skip
def test_lone_surrogates_are_replaced(text: str, valid: str) -> None:
    assert valid_text(text) == valid
    assert ChannelError(404, text).text == f"NOT_FOUND - {valid}"


@pytest.mark.parametrize("name", ["\\ud800", "\\udc80", "\\udfff"])
@pytest.mark.parametrize("where", ['{"a": "X"}', '{"X": 1}', '{"a": [{"b": "X"}]}'])
def test_json_with_a_lone_surrogate_is_refused(name: str, where: str) -> None:
    with pytest.raises(AMQPError) as caught:
        loads(where.replace("X", name).encode())
    assert caught.value.code == 502
    caught.value.text.encode()


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert loads(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


NAMES = ("queue", "exchange", "name", "query", "reader", "source", "destination", "type")


def arguments(name: str) -> dict[str, object]:
    """Values for the arguments of all operations."""
    return {
        "queue": name, "reader": name, "messages": 1, "bytes": 1, "offset": 0, "query": name,
        "batch": 1, "target": {"queue": name}, "pages": [], "mandatory_keys": [[name, name]],
        "name": name, "exchange": name, "source": name, "destination": name, "routing_key": name,
        "arguments": {name: name}, "count": 1, "after": None, "n": 1, "tag": 1, "at": 0,
        "channel": 1, "tags": [1], "bodies": [name], "properties": {"type": name}, "type": name,
    }  # fmt: skip


def arguments_of(op: str, name: str) -> dict[str, object]:
    """Those of `arguments` that `op` takes."""
    known = {argument.name for argument in OPERATIONS[op].arguments}
    return {key: value for key, value in arguments(name).items() if key in known}


EVERY_OPERATION = sorted(FUNCTIONS.keys() - {"backup"})


@pytest.mark.parametrize("op", EVERY_OPERATION)
def test_a_name_that_is_no_utf8_in_every_operation(rig: OperationRig, op: str) -> None:
    """On a channel, by JSON; and as an operator asks, where names may be any bytes."""
    given = arguments_of(op, "fine")
    client = rig.client().open()
    for name in (BAD, "\ud800"):
        said = json.loads(json.dumps(given).replace('"fine"', json.dumps(name)))
        client.send(1, PenstockCall(op=op, arguments=json.dumps(said).encode()))
        rig.turn()
        rig.tick(31.0)
        answers = [*client.methods(PenstockCallError), *client.methods(PenstockCallOk)]
        assert len(answers) == 1, (op, name)
        asked = rig.ask(op, None, **said)
        rig.turn()
        rig.tick(31.0)
        (reply,) = asked.replies
        if isinstance(reply, AMQPError):
            reply.text.encode()
            assert reply.code != 541, reply
    assert is_served(rig)


def test_an_error_text_fits_into_a_frame(rig: OperationRig) -> None:
    client = rig.client().open()
    data = json.dumps({"query": "q", "batch": 1, "target": "\u0001" * 15_000, "pages": []}).encode()
    client.send(1, PenstockCall(op="commit_batch", arguments=data))
    data = json.dumps({"queue": "q" * 100_000}).encode()
    client.send(1, PenstockCall(op="o" * 200, arguments=data))
    rig.turn()
    errors = client.methods(PenstockCallError)
    assert len(errors) == 2
    for error in errors:
        assert len(error.text) < 4096 + 16
        error.text.decode()


METHODS: list[tuple[str, Method]] = [
    ("declare", QueueDeclare(queue=BAD, durable=True)),
    ("declare with others", QueueDeclare(queue="known", arguments={BAD: BAD})),
    ("declare with a dead letter exchange",
     QueueDeclare(queue=BAD, arguments={"x-dead-letter-exchange": BAD_BYTES})),
    ("passive declare", QueueDeclare(queue=BAD, passive=True)),
    ("reserved", QueueDeclare(queue="amq." + BAD)),
    ("bind", QueueBind(queue=BAD, exchange="amq.direct", routing_key=BAD)),
    ("bind to", QueueBind(queue="known", exchange=BAD, routing_key=BAD)),
    ("unbind", QueueUnbind(queue="known", exchange=BAD, routing_key=BAD)),
    ("purge", QueuePurge(queue=BAD)),
    ("delete", QueueDelete(queue=BAD)),
    ("exchange declare", ExchangeDeclare(exchange=BAD, type="topic", durable=True)),
    ("exchange of no type", ExchangeDeclare(exchange="x", type=BAD)),
    ("reserved exchange", ExchangeDeclare(exchange="amq." + BAD, type="topic")),
    ("exchange passive", ExchangeDeclare(exchange=BAD, type="topic", passive=True)),
    ("exchange bind", ExchangeBind(destination=BAD, source=BAD, routing_key=BAD)),
    ("exchange unbind", ExchangeUnbind(destination=BAD, source=BAD, routing_key=BAD)),
    ("exchange delete", ExchangeDelete(exchange=BAD)),
    ("consume", BasicConsume(queue=BAD, consumer_tag=BAD)),
    ("consume known", BasicConsume(queue="known", consumer_tag=BAD)),
    ("consume with a priority",
     BasicConsume(queue="known", consumer_tag=BAD, arguments={"x-priority": BAD_BYTES})),
    ("get", BasicGet(queue=BAD)),
    ("cancel", BasicCancel(consumer_tag=BAD)),
    ("call", PenstockCall(op=BAD, arguments=b"")),
    ("box call", PenstockCall(op="box." + BAD, arguments=b"\xff\xfe")),
]  # fmt: skip


@pytest.mark.parametrize(("what", "method"), METHODS, ids=[what for what, _ in METHODS])
def test_a_name_that_is_no_utf8_in_every_method(
    rig: OperationRig, what: str, method: Method
) -> None:
    """Done or refused, twice; whatever is sent to the client it can decode."""
    client = rig.client(consumer_cancel_notify=True).open()
    client.call(1, QueueDeclare(queue="known", durable=True), QueueDeclareOk)
    for number in (1, 2):
        if number not in client.handler.channels:
            client.send(number, ChannelOpen())
        client.send(number, method)
        client.send(number, method)
        rig.turn()
        client.pump()
        for closed in client.methods(ChannelClose):
            assert closed.reply_code in (403, 404, 406), closed.reply_text
            closed.reply_text.encode()
        for ended in client.methods(ConnectionClose):
            assert ended.reply_code in (503, 530), ended.reply_text
            ended.reply_text.encode()
    assert is_served(rig)
    assert not told_mistakes(rig)
    rig.restart()
    assert is_served(rig)


def test_publishes_with_addresses_that_are_no_utf8(rig: OperationRig) -> None:
    """Routed, returned, refused and dead-lettered."""
    client = rig.client().open()
    client.call(
        1, QueueDeclare(queue=BAD, durable=True, arguments={
            "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 1,
        }), QueueDeclareOk,
    )  # fmt: skip
    client.call(1, QueueDeclare(queue="dead", durable=True), QueueDeclareOk)
    client.publish(1, "", BAD, b"1", headers={BAD: 1}, type=BAD)
    client.publish(1, "", BAD, b"2", correlation_id=BAD)
    client.publish(1, "", BAD + "none", b"3", mandatory=True)
    client.send(1, BasicConsume(queue="dead", consumer_tag=BAD))
    rig.turn()
    assert sorted(client.bodies()) == [b"1", b"3"]
    client.publish(1, BAD, BAD, b"4")
    rig.turn()
    (closed,) = client.methods(ChannelClose)
    assert closed.reply_text == "NOT_FOUND - no exchange 'q\ufffd\ufffd' in vhost '/'"
    assert is_served(rig)


# ---- errors that nobody expected -----------------------------------------------------------------


class UnexpectedError(Exception):
    """Raised where nothing expects it."""


def fails(*_: object, **__: object) -> Any:
    raise UnexpectedError("unforeseen \ud800")


def assert_one_mistake(rig: OperationRig, n: int = 1) -> None:
    found = told_mistakes(rig)
    assert len(found) == n, found
    for text in found:
        assert "UnexpectedError" in text
        assert "Traceback" in text


@pure_only
def test_an_operation_that_raises_answers_541_and_its_connection_stays(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.client().open()
    monkeypatch.setattr(rig.vhost, "purge_queue", fails)
    monkeypatch.setattr(rig.vhost.table, "usable", fails)
    client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    for op, field in (("purge_queue", "queue"), ("box.purge", "name")):
        client.send(1, PenstockCall(op=op, arguments=json.dumps({field: "q"}).encode()))
        rig.turn()
        (error,) = client.methods(PenstockCallError)
        assert error.code == 541
        assert b"UnexpectedError" in error.text
    assert_one_mistake(rig, 2)
    assert client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk).queue == "q"


def test_an_answer_that_cannot_be_given_later_ends_nothing_else(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes in a turn, when the log has settled the change."""
    client = rig.client().open()
    asked = b'{"queue": "q", "durable": true}'
    client.send(1, PenstockCall(op="declare_queue", arguments=asked))
    monkeypatch.setattr(operations, "dumps", fails)
    rig.turn()
    (error,) = client.methods(PenstockCallError)
    assert error.code == 541
    assert_one_mistake(rig)
    assert is_served(rig)


@pure_only
def test_a_method_whose_answer_fails_later_ends_its_connection_alone(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.client().open()
    client.send(1, QueueDeclare(queue="q", durable=True))
    monkeypatch.setattr(client.handler.channels[1], "send", fails)
    rig.turn()
    (closed,) = client.methods(ConnectionClose)
    assert closed.reply_code == 541
    assert_one_mistake(rig)
    assert is_served(rig)


@pure_only
def test_a_get_that_is_refused_later_closes_its_channel(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """basic.get of a message that is held waits for the log, and fetches in a turn."""
    client = rig.client().open()
    client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    queue: Any = rig.vhost.table.usable("q")
    monkeypatch.setattr(queue.amq, "held", lambda: (rig.vhost.engine.log.last_lsn, rig.vhost.mode))
    client.send(1, BasicGet(queue="q"))

    def refused(**_: object) -> None:
        raise ChannelError(406, "not any more")

    monkeypatch.setattr(queue.amq, "fetch", refused)
    rig.turn()
    (closed,) = client.methods(ChannelClose)
    assert (closed.reply_code, closed.reply_text) == (406, "PRECONDITION_FAILED - not any more")
    assert is_served(rig)


@pure_only
def test_confirms_that_fail_end_their_connection_alone(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.client().open()
    client.send(1, ConfirmSelect())
    client.call(1, QueueDeclare(queue="q", durable=True), QueueDeclareOk)
    client.publish(1, "", "q", b"1", delivery_mode=2)
    confirms: Any = client.handler.channels[1].publisher.confirms
    monkeypatch.setattr(confirms, "settle", fails)
    rig.turn()
    (closed,) = client.methods(ConnectionClose)
    assert closed.reply_code == 541
    assert_one_mistake(rig)
    assert is_served(rig)


def test_output_that_fails_ends_its_connection_alone(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = rig.client().open()
    client.send(1, QueueDeclare(queue="q", durable=True))
    monkeypatch.setattr(client.outlet, "send", fails)
    rig.turn()
    assert client.outlet.is_closed
    assert_one_mistake(rig)
    assert is_served(rig)


class Failing(BackgroundTask):
    def step(self) -> int:
        return int(fails())

    def failed(self, error: Exception) -> None:
        raise error


def test_a_chore_that_fails_even_to_fail(rig: OperationRig) -> None:
    rig.vhost.background.wake(Failing())
    rig.turn()
    assert_one_mistake(rig)
    assert is_served(rig)


class FailingDict(dict[str, Any]):
    """A dict whose values cannot be listed."""

    def values(self) -> Any:
        fails()


PARTS: list[tuple[str, Callable[[OperationRig, pytest.MonkeyPatch], None]]] = [
    ("a call that waited", lambda rig, patch: rig.vhost.timers.call_at(0.0, fails)),
    ("streams", lambda rig, patch: patch.setattr(rig.vhost.streams, "_limited", FailingDict())),
    ("leases and batches", lambda rig, patch: patch.setattr(rig.vhost, "on_tick", [fails])),
    ("an answer", lambda rig, patch: rig.vhost.dispatch.when_settled(0, rig.vhost.mode, fails)),
]


@pytest.mark.parametrize(("what", "break_"), PARTS, ids=[what for what, _ in PARTS])
def test_what_fails_in_a_tick_or_turn(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch, what: str,
    break_: Callable[[OperationRig, pytest.MonkeyPatch], None],
) -> None:  # fmt: skip
    break_(rig, monkeypatch)
    rig.tick()
    assert_one_mistake(rig)
    assert is_served(rig)


@pure_only
def test_a_queue_that_cannot_be_deleted_when_it_expires(
    rig: OperationRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others go; this one is tried again after its time."""
    client = rig.client().open()
    for name in ("a", "b"):
        client.call(1, QueueDeclare(queue=name, arguments={"x-expires": 1000}), QueueDeclareOk)
    real = rig.vhost.table.delete

    def fails_for_a(queue: Any, **how: Any) -> tuple[int, int]:
        if queue.name == "a":
            fails()
        return real(queue, **how)

    monkeypatch.setattr(rig.vhost.table, "delete", fails_for_a)
    rig.tick(1.1)
    assert_one_mistake(rig)
    assert sorted(rig.vhost.queues) == ["a"]
    monkeypatch.setattr(rig.vhost.table, "delete", real)
    rig.tick(1.1)
    assert not rig.vhost.queues


def test_a_failure_of_the_engine_still_ends_the_vhost(rig: OperationRig) -> None:
    """[10]: nothing catches it on its way up."""
    client = rig.client().open()

    def stop() -> None:
        rig.vhost.engine.journal.stop(UnexpectedError("the disk"))
        fails()

    rig.vhost.dispatch.when_settled(0, rig.vhost.mode, stop)
    with pytest.raises(UnexpectedError):
        rig.vhost.turn()
    assert client.handler.vhost.engine.failed is not None
