"""Errors that close the channel and leave the connection: 403, 404, 405, 406, texts as RabbitMQ's.

Each case is what a client asks and the code and text it hears; after it the same connection opens
another channel. Returns (312) stand here too: they are the one reply code that closes nothing.

311 CONTENT_TOO_LARGE, 313 NO_CONSUMERS and 402 INVALID_PATH are in the specification, but neither
RabbitMQ 3 nor Penstock has a reason to send them: a body beyond the limit is 406, `immediate` is
540, and any vhost that is not there is 530.
"""

import re
from collections.abc import Callable

import pytest
from pamqp import base, body, commands, header

from tests.helpers.live_broker import Broker
from tests.helpers.wire import content_header, open_channel

pytestmark = pytest.mark.real

Basic, Exchange, Queue, Tx = commands.Basic, commands.Exchange, commands.Queue, commands.Tx


def properties(**values: object) -> bytes:
    """Flags and list of basic properties."""
    return header.ContentHeader(0, 0, Basic.Properties(**values)).marshal()[12:]  # type: ignore[arg-type]


# name -> (what is asked, code, text as a regular expression); {q} is a queue that exists, exclusive
# to the connection, {d} a name that does not exist
ASKED: dict[str, tuple[Callable[[str], base.Frame], int, str]] = {
    "declare of the default exchange": (
        lambda _: Exchange.Declare(exchange="", exchange_type="direct"),
        403, "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "delete of the default exchange": (
        lambda _: Exchange.Delete(exchange=""),
        403, "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "binding to the default exchange": (
        lambda q: Queue.Bind(queue=q, exchange="", routing_key="k"),
        403, "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "unbinding from the default exchange": (
        lambda q: Queue.Unbind(queue=q, exchange="", routing_key=q),
        403, "ACCESS_REFUSED - operation not permitted on the default exchange",
    ),
    "a reserved exchange name": (
        lambda _: Exchange.Declare(exchange="amq.mine", exchange_type="direct"),
        403, r"ACCESS_REFUSED - exchange name 'amq\.mine' contains reserved prefix 'amq\.\*'",
    ),
    "delete of a predeclared exchange": (
        lambda _: Exchange.Delete(exchange="amq.direct"), 403, "ACCESS_REFUSED - .*amq.direct.*",
    ),
    "a reserved queue name": (
        lambda _: Queue.Declare(queue="amq.mine"),
        403, r"ACCESS_REFUSED - queue name 'amq\.mine' contains reserved prefix 'amq\.\*'",
    ),
    "a passive declare of no queue": (
        lambda _: Queue.Declare(queue="nothing", passive=True),
        404, "NOT_FOUND - no queue 'nothing' in vhost '/'",
    ),
    "a passive declare of no exchange": (
        lambda _: Exchange.Declare(exchange="nothing", exchange_type="direct", passive=True),
        404, "NOT_FOUND - no exchange 'nothing' in vhost '/'",
    ),
    "get of no queue": (
        lambda _: Basic.Get(queue="nothing"), 404, "NOT_FOUND - no queue 'nothing' in vhost '/'",
    ),
    "consume of no queue": (
        lambda _: Basic.Consume(queue="nothing"),
        404, "NOT_FOUND - no queue 'nothing' in vhost '/'",
    ),
    "purge of no queue": (
        lambda _: Queue.Purge(queue="nothing"), 404, "NOT_FOUND - no queue 'nothing' in vhost '/'",
    ),
    "binding of no queue": (
        lambda _: Queue.Bind(queue="nothing", exchange="amq.direct", routing_key="k"),
        404, "NOT_FOUND - no queue 'nothing' in vhost '/'",
    ),
    "binding to no exchange": (
        lambda q: Queue.Bind(queue=q, exchange="nothing", routing_key="k"),
        404, "NOT_FOUND - no exchange 'nothing' in vhost '/'",
    ),
    "binding of an exchange to none": (
        lambda _: Exchange.Bind(destination="amq.direct", source="nothing", routing_key="k"),
        404, "NOT_FOUND - no exchange 'nothing' in vhost '/'",
    ),
    "redeclare with another auto-delete": (
        lambda q: Queue.Declare(queue=q, exclusive=True, auto_delete=True),
        406, "PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue '.*' in vhost '/': "
        "received 'true' but current is 'false'",
    ),
    "redeclare with another argument": (
        lambda q: Queue.Declare(queue=q, exclusive=True, arguments={"x-max-length": 5}),
        406, "PRECONDITION_FAILED - inequivalent arg 'x-max-length' for queue '.*' in vhost '/': "
        "received the value '5' of type '.*' but current is none",
    ),
    "redeclare of an exchange with another type": (
        lambda _: Exchange.Declare(exchange="amq.topic", exchange_type="direct", durable=True),
        406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.topic' in vhost '/': "
        "received 'direct' but current is 'topic'",
    ),
    "a negative time to live": (
        lambda _: Queue.Declare(queue="bad", arguments={"x-message-ttl": -1}),
        406, "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'bad' in vhost '/': .*",
    ),
    "a time to live that is no number": (
        lambda _: Queue.Declare(queue="bad", arguments={"x-message-ttl": "soon"}),
        406, "PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'bad' in vhost '/': .*",
    ),
    "an expiry of nothing": (
        lambda _: Queue.Declare(queue="bad", arguments={"x-expires": 0}),
        406, "PRECONDITION_FAILED - invalid arg 'x-expires' for queue 'bad' in vhost '/': .*",
    ),
    "an unknown overflow": (
        lambda _: Queue.Declare(queue="bad", arguments={"x-overflow": "explode"}),
        406, "PRECONDITION_FAILED - invalid arg 'x-overflow' for queue 'bad' in vhost '/': .*",
    ),
    "a dead-letter key without an exchange": (
        lambda _: Queue.Declare(queue="bad", arguments={"x-dead-letter-routing-key": "k"}),
        406, "PRECONDITION_FAILED - invalid arg 'x-dead-letter-routing-key' for queue 'bad' .*",
    ),
    "more priorities than there are": (
        lambda _: Queue.Declare(queue="bad", arguments={"x-max-priority": 256}),
        406, "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'bad' .*",
    ),
    "delete of a queue that is not empty": (
        lambda q: Queue.Delete(queue=q, if_empty=True),
        406, "PRECONDITION_FAILED - queue '.*' in vhost '/' not empty",
    ),
    "an unknown delivery tag": (
        lambda _: Basic.Ack(99), 406, "PRECONDITION_FAILED - unknown delivery tag 99",
    ),
    "a nack of an unknown delivery tag": (
        lambda _: Basic.Nack(99), 406, "PRECONDITION_FAILED - unknown delivery tag 99",
    ),
    "a reject of an unknown delivery tag": (
        lambda _: Basic.Reject(99), 406, "PRECONDITION_FAILED - unknown delivery tag 99",
    ),
    "tx.commit without tx.select": (
        lambda _: Tx.Commit(), 406, "PRECONDITION_FAILED - channel is not transactional",
    ),
    "tx.rollback without tx.select": (
        lambda _: Tx.Rollback(), 406, "PRECONDITION_FAILED - channel is not transactional",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_what_closes_the_channel(broker: Broker, case: str, name: str) -> None:
    method, code, text = ASKED[case]
    with open_channel(broker) as wire:
        queue = wire.declare(name)
        wire.publish(1, queue)
        wire.ask(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
        asked = method(queue)
        wire.send(asked, 1)
        close = wire.expect(commands.Channel.Close, 1)
        assert close.reply_code == code, close.reply_text
        assert re.fullmatch(text, close.reply_text), close.reply_text
        assert (close.class_id or 0) << 16 | (close.method_id or 0) == asked.index
        wire.send(commands.Channel.CloseOk(), 1)
        wire.channel(1)
        wire.declare(queue)


def test_a_server_named_queue_can_only_be_declared_again_passively(broker: Broker) -> None:
    with open_channel(broker) as wire:
        queue = wire.declare()
        assert queue.startswith("amq.gen-")
        wire.ask(Queue.Declare(queue=queue, passive=True), Queue.DeclareOk)
        wire.send(Queue.Declare(queue=queue, exclusive=True), 1)
        text = f"ACCESS_REFUSED - queue name '{queue}' contains reserved prefix 'amq.*'"
        assert wire.channel_closed() == (403, text)


def test_a_queue_of_another_connection_is_locked(broker: Broker, name: str) -> None:
    with open_channel(broker) as owner, open_channel(broker) as other:
        queue = owner.declare(name)
        text = (
            f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost "
            "'/'. It could be originally declared on another connection or the exclusive property "
            "value does not match that of the original declaration."
        )
        asked: list[base.Frame] = [
            Queue.Declare(queue=queue, exclusive=True),
            Queue.Declare(queue=queue, passive=True),
            Basic.Get(queue=queue),
            Basic.Consume(queue=queue),
            Queue.Bind(queue=queue, exchange="amq.direct", routing_key="k"),
            Queue.Purge(queue=queue),
            Queue.Delete(queue=queue),
        ]
        for method in asked:
            other.send(method, 1)
            assert other.channel_closed() == (405, text), method.name
            other.channel(1)


def test_redeclare_with_another_durability_or_exclusivity(broker: Broker, name: str) -> None:
    with open_channel(broker) as wire:
        wire.declare(name, exclusive=False)
        wire.send(Queue.Declare(queue=name, durable=True), 1)
        assert wire.channel_closed() == (
            406,
            f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{name}' in vhost '/': "
            "received 'true' but current is 'false'",
        )
        wire.channel(1)
        wire.send(Queue.Declare(queue=name, exclusive=True), 1)
        assert wire.channel_closed()[0] == 405
        wire.channel(1)
        wire.ask(Queue.Delete(queue=name), Queue.DeleteOk)


def test_an_exclusive_queue_is_never_durable(broker: Broker, name: str) -> None:
    with open_channel(broker) as wire:
        wire.declare(name)
        wire.declare(name, durable=True)


def test_an_exclusive_consumer_keeps_others_out(broker: Broker) -> None:
    with open_channel(broker) as wire:
        queue = wire.declare()
        wire.ask(Basic.Consume(queue=queue, exclusive=True), Basic.ConsumeOk)
        wire.send(Basic.Consume(queue=queue), 1)
        code, text = wire.channel_closed()
        assert code == 403
        assert text == f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"


def test_an_exclusive_consumer_cannot_join_others(broker: Broker) -> None:
    with open_channel(broker) as wire:
        queue = wire.declare()
        wire.ask(Basic.Consume(queue=queue), Basic.ConsumeOk)
        wire.send(Basic.Consume(queue=queue, exclusive=True), 1)
        code, text = wire.channel_closed()
        assert code == 403
        assert text == f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"


def test_delete_if_unused_of_what_is_used(broker: Broker, name: str) -> None:
    with open_channel(broker) as wire:
        queue = wire.declare()
        wire.ask(Basic.Consume(queue=queue), Basic.ConsumeOk)
        wire.send(Queue.Delete(queue=queue, if_unused=True), 1)
        code, text = wire.channel_closed()
        assert (code, text) == (406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use")
        wire.channel(1)
        wire.ask(Exchange.Declare(exchange=name, exchange_type="fanout"), Exchange.DeclareOk)
        wire.ask(Queue.Bind(queue=queue, exchange=name, routing_key=""), Queue.BindOk)
        wire.send(Exchange.Delete(exchange=name, if_unused=True), 1)
        code, text = wire.channel_closed()
        assert (code, text) == (406, f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use")
        wire.channel(1)
        wire.ask(Exchange.Delete(exchange=name), Exchange.DeleteOk)


def test_the_answer_to_delete_comes_before_the_cancel(broker: Broker) -> None:
    """py-amqp takes a cancel that comes first for an error of the delete."""
    with open_channel(broker) as wire:
        queue = wire.declare()
        tag = wire.ask(Basic.Consume(queue=queue), Basic.ConsumeOk).consumer_tag
        wire.ask(Queue.Delete(queue=queue), Queue.DeleteOk)
        assert wire.expect(Basic.Cancel, 1).consumer_tag == tag


def test_what_is_not_there_can_be_deleted_and_unbound(broker: Broker) -> None:
    with open_channel(broker) as wire:
        queue = wire.declare()
        gone = wire.ask(Queue.Delete(queue="nothing"), Queue.DeleteOk)
        assert gone.message_count == 0
        wire.ask(Exchange.Delete(exchange="nothing"), Exchange.DeleteOk)
        wire.ask(Queue.Unbind(queue=queue, exchange="amq.direct", routing_key="k"), Queue.UnbindOk)


@pytest.mark.parametrize(
    ("values", "exchange", "code", "text"),
    [
        ({}, "nothing", 404, "NOT_FOUND - no exchange 'nothing' in vhost '/'"),
        (
            {"expiration": "soon"}, "", 406,
            "PRECONDITION_FAILED - invalid expiration 'soon': .*",
        ),
        ({"expiration": "-1"}, "", 406, "PRECONDITION_FAILED - invalid expiration '-1': .*"),
        (
            {"user_id": "somebody"}, "", 406,
            "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was "
            "'guest'",
        ),
    ],
)  # fmt: skip
def test_publishes_that_close_the_channel(
    broker: Broker, values: dict[str, str], exchange: str, code: int, text: str
) -> None:
    with open_channel(broker) as wire:
        wire.publish(1, "k", exchange=exchange, properties=properties(**values))
        found = wire.channel_closed()
        assert found[0] == code
        assert re.fullmatch(text, found[1]), found[1]


def test_publishing_to_an_internal_exchange_is_refused(broker: Broker, name: str) -> None:
    with open_channel(broker) as wire:
        declare = Exchange.Declare(exchange=name, exchange_type="fanout", internal=True)
        wire.ask(declare, Exchange.DeclareOk)
        wire.publish(1, "k", exchange=name)
        assert wire.channel_closed() == (
            403,
            f"ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '/'",
        )
        wire.channel(1)
        wire.ask(Exchange.Delete(exchange=name), Exchange.DeleteOk)


@pytest.mark.penstock_only
def test_a_body_beyond_the_limit_is_refused_at_its_header(broker: Broker) -> None:
    with open_channel(broker) as wire:
        wire.send(Basic.Publish(routing_key="k"), 1)
        wire.send_raw(content_header(1, 1 << 40))
        code, text = wire.channel_closed()
        assert code == 406
        assert re.fullmatch(
            r"PRECONDITION_FAILED - message size 1099511627776 is larger than configured max size "
            r"\d+", text,
        )  # fmt: skip


def test_a_channel_is_one_kind_of_safe(broker: Broker) -> None:
    with open_channel(broker) as wire:
        wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.send(Tx.Select(), 1)
        text = "PRECONDITION_FAILED - cannot switch from confirm to tx mode"
        assert wire.channel_closed() == (406, text)
        wire.channel(1)
        wire.ask(Tx.Select(), Tx.SelectOk)
        wire.send(commands.Confirm.Select(), 1)
        text = "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
        assert wire.channel_closed() == (406, text)


def test_after_the_error_nothing_is_answered_until_close_ok(broker: Broker) -> None:
    with open_channel(broker) as wire:
        wire.send(Basic.Get(queue="nothing"), 1)
        wire.expect(commands.Channel.Close, 1)
        wire.send(Queue.Declare(exclusive=True), 1)
        wire.publish(1, "nothing", mandatory=True)
        wire.send(commands.Channel.CloseOk(), 1)
        wire.channel(1)


def test_closes_of_both_sides_may_meet(broker: Broker) -> None:
    """The client closes what the broker has just closed: it is answered all the same."""
    with open_channel(broker) as wire:
        wire.send(Basic.Get(queue="nothing"), 1)
        wire.expect(commands.Channel.Close, 1)
        wire.ask(commands.Channel.Close(200, "bye", 0, 0), commands.Channel.CloseOk)


def test_what_the_closed_channel_held_is_back_in_the_queue(broker: Broker) -> None:
    with open_channel(broker) as wire:
        queue = wire.declare()
        wire.publish(1, queue, b"one")
        assert not wire.ask(Basic.Get(queue=queue), Basic.GetOk).redelivered
        wire.expect(header.ContentHeader, 1)
        wire.expect(body.ContentBody, 1)
        wire.send(Basic.Ack(99), 1)
        wire.channel_closed()
        wire.channel(1)
        assert wire.ask(Basic.Get(queue=queue), Basic.GetOk).redelivered


# --- returns ---


def test_an_unroutable_message_comes_back_whole_before_its_confirm(broker: Broker) -> None:
    with open_channel(broker) as wire:
        wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
        sent = properties(content_type="text/plain", headers={"n": 1}, delivery_mode=2)
        wire.publish(1, "nowhere", b"body", mandatory=True, properties=sent)
        back = wire.expect(Basic.Return, 1)
        assert (back.reply_code, back.reply_text) == (312, "NO_ROUTE")
        assert (back.exchange, back.routing_key) == ("", "nowhere")
        head = wire.expect(header.ContentHeader, 1)
        assert head.properties is not None
        assert head.properties.content_type == "text/plain"
        assert head.properties.headers == {"n": 1}
        assert wire.expect(body.ContentBody, 1).value == b"body"
        assert wire.expect(Basic.Ack, 1).delivery_tag == 1


def test_an_empty_body_comes_back_without_a_body_frame(broker: Broker) -> None:
    with open_channel(broker) as wire:
        wire.publish(1, "nowhere", b"", mandatory=True)
        wire.expect(Basic.Return, 1)
        assert wire.expect(header.ContentHeader, 1).body_size == 0
        wire.declare()


def test_without_mandatory_it_is_dropped_and_confirmed(broker: Broker) -> None:
    with open_channel(broker) as wire:
        wire.ask(commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "nowhere")
        assert wire.expect(Basic.Ack, 1).delivery_tag == 1
