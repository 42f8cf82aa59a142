"""Operations on queues, exchanges and bindings, with the permissions of the AMQP methods.

`declare_queue` may have to wait for the files of a new stream; then it is declared in a later turn,
from the beginning, because much may have changed by then.
"""

from typing import Final

from penstock.broker.operations.arguments import Argument, field_table, flag, short_text
from penstock.broker.operations.call import Call, Operation
from penstock.broker.permissions import (
    CONFIGURE,
    READ,
    WRITE,
    check_exchange_to_declare,
    one_line,
    queue_to_declare,
)

QUEUE: Final = short_text("queue")
ARGUMENTS: Final = field_table("arguments")


# ---- queues --------------------------------------------------------------------------------------


def _declare_queue(call: Call) -> None:
    args, vhost = call.args, call.vhost
    # One that AMQP can delete, too. Deleting takes any name, also one of earlier versions.
    given, arguments = one_line(args.text("queue")), args.table("arguments")
    durable, auto_delete = args.flag("durable"), args.flag("auto_delete")

    def declare() -> None:
        name = queue_to_declare(vhost, call.identity, given, arguments)
        if vhost.prepare_queue(
            name, durable=durable, auto_delete=auto_delete, arguments=arguments,
            again=lambda: call.answer_errors(declare), failed=call.fail, by=call.identity,
        ):  # fmt: skip
            return
        queue, lsn = vhost.declare_queue(
            name, durable=durable, auto_delete=auto_delete, arguments=arguments,
            owner=call.owner, is_reserved_allowed=not given, by=call.identity,
        )  # fmt: skip
        found = {
            "queue": queue.name, "messages": queue.len(), "consumers": queue.consumers.count,
        }  # fmt: skip
        call.settled(lsn, found)

    declare()


def _delete_queue(call: Call) -> None:
    args, vhost = call.args, call.vhost
    queue = vhost.table.find_queue(args.text("queue"), call.owner, is_crashed_allowed=True)
    count, lsn = vhost.delete_queue(
        queue, if_unused=args.flag("if_unused"), if_empty=args.flag("if_empty"),
        is_forced=args.flag("force"),
    )  # fmt: skip
    call.settled(lsn, {"messages": count})


def _purge_queue(call: Call) -> None:
    queue = call.vhost.table.find_queue(call.args.text("queue"), call.owner)
    count, lsn = call.vhost.purge_queue(queue)
    call.settled(lsn, {"messages": count})


# ---- exchanges and bindings ----------------------------------------------------------------------


def _declare_exchange(call: Call) -> None:
    args = call.args
    name, arguments = one_line(args.text("exchange")), args.table("arguments")
    check_exchange_to_declare(call.vhost, call.identity, name, arguments)
    lsn = call.vhost.topology.declare_exchange(
        name, args.text("type"), durable=args.flag("durable"),
        auto_delete=args.flag("auto_delete"), internal=args.flag("internal"), arguments=arguments,
        by=call.identity,
    )  # fmt: skip
    call.settled(lsn, {"exchange": name})


def _delete_exchange(call: Call) -> None:
    name = call.args.text("exchange")
    topology = call.vhost.topology
    topology.check_exchange(name)
    call.settled(topology.delete_exchange(name, if_unused=call.args.flag("if_unused")), {})


def _bind_queue(call: Call) -> None:
    args = call.args
    lsn = call.vhost.bind_queue(
        args.text("queue"), args.text("exchange"), args.text("routing_key"),
        args.table("arguments"), call.owner, call.identity,
    )  # fmt: skip
    call.settled(lsn, {})


def _unbind_queue(call: Call) -> None:
    args = call.args
    lsn = call.vhost.unbind_queue(
        args.text("queue"), args.text("exchange"), args.text("routing_key"),
        args.table("arguments"), call.owner,
    )  # fmt: skip
    call.settled(lsn, {})


def _bind_exchange(call: Call) -> None:
    between = _between_exchanges(call)
    call.settled(call.vhost.topology.bind_exchange(*between, call.identity), {})


def _unbind_exchange(call: Call) -> None:
    call.settled(call.vhost.topology.unbind_exchange(*_between_exchanges(call)), {})


def _between_exchanges(call: Call) -> tuple[str, str, str, dict[str, object]]:
    args = call.args
    return (
        args.text("destination"), args.text("source"), args.text("routing_key"),
        args.table("arguments"),
    )  # fmt: skip


KEY: Final = short_text("routing_key", "")
TO_QUEUE: Final[tuple[Argument, ...]] = (QUEUE, short_text("exchange"), KEY, ARGUMENTS)
TO_EXCHANGE: Final[tuple[Argument, ...]] = (
    short_text("destination"), short_text("source"), KEY, ARGUMENTS,
)  # fmt: skip
BIND_QUEUE: Final = ((WRITE, "queue", "queue"), (READ, "exchange", "exchange"))
BIND_EXCHANGE: Final = ((WRITE, "exchange", "destination"), (READ, "exchange", "source"))

OPERATIONS: Final = (
    Operation(
        "declare_queue", _declare_queue,
        'Declare a queue or stream; "" lets the server name it: {queue, messages, consumers}.',
        (QUEUE, flag("durable", True), flag("auto_delete"), ARGUMENTS),
        needs_text="configure on the queue; read on it and write on its dead letter exchange, if "
        "it names one",
    ),
    Operation(
        "delete_queue", _delete_queue,
        "Delete a queue or stream: {messages}, how many were ready. force: also while readers "
        "have messages of it leased.",
        (QUEUE, flag("if_unused"), flag("if_empty"), flag("force")),
        ((CONFIGURE, "queue", "queue"),),
    ),
    Operation(
        "purge_queue", _purge_queue, "Delete all ready messages of a queue: {messages}, how many.",
        (QUEUE,), ((READ, "queue", "queue"),),
    ),
    Operation(
        "declare_exchange", _declare_exchange, "Declare an exchange: {exchange}.",
        (
            short_text("exchange"), short_text("type", "direct"), flag("durable", True),
            flag("auto_delete"), flag("internal"), ARGUMENTS,
        ),
        needs_text="configure on the exchange; read on it and write on its alternate exchange, if "
        "it names one",
    ),
    Operation(
        "delete_exchange", _delete_exchange, "Delete an exchange with its bindings.",
        (short_text("exchange"), flag("if_unused")), ((CONFIGURE, "exchange", "exchange"),),
    ),
    Operation("bind_queue", _bind_queue, "Bind a queue to an exchange.", TO_QUEUE, BIND_QUEUE),
    Operation(
        "unbind_queue", _unbind_queue, "Delete a binding of a queue, if it exists.",
        TO_QUEUE, BIND_QUEUE,
    ),
    Operation(
        "bind_exchange", _bind_exchange, "Bind an exchange to the exchange `source`.",
        TO_EXCHANGE, BIND_EXCHANGE,
    ),
    Operation(
        "unbind_exchange", _unbind_exchange, "Delete a binding between exchanges, if it exists.",
        TO_EXCHANGE, BIND_EXCHANGE,
    ),
)  # fmt: skip
