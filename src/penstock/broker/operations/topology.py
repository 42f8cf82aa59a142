"""Operations on queues, exchanges and bindings, with the permissions of the AMQP methods.

`declare_queue` may have to wait for the files of a new stream; then it is declared in a later turn,
from the beginning, because much may have changed by then.
"""

from collections.abc import Generator
from typing import Final

from penstock.broker.broker_queue import QueueOrStream
from penstock.broker.dispatch import ARGUMENT_BYTES, LOOK_STEPS
from penstock.broker.operations.call import Call, Functions, Slices
from penstock.broker.permissions import (
    READ,
    WRITE,
    check_exchange_to_declare,
    check_topic,
    one_line,
    queue_to_declare,
)
from penstock.broker.publish import SendingHistory, history_for
from penstock.broker.refusals import not_found
from penstock.broker.topology import EXCHANGE, QUEUE, binding_called
from penstock.errors import COMMAND_INVALID, AMQPConnectionError
from penstock.routing.exchange_types import TYPES, Binding

BINDING_STEPS: Final = 8  # to name one

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
        is_new = not vhost.table.has(name)
        queue, lsn = vhost.declare_queue(
            name, durable=durable, auto_delete=auto_delete, arguments=arguments,
            owner=call.owner, is_reserved_allowed=not given, by=call.identity,
        )  # fmt: skip
        found = {
            "queue": queue.name, "messages": queue.len(), "consumers": queue.consumers.count,
            "is_new": is_new,
        }  # fmt: skip
        call.settled(lsn, found)

    declare()


def _delete_queue(call: Call, *, sends_first: bool = True) -> None:
    args, vhost = call.args, call.vhost
    queue = vhost.table.find_queue(args.text("queue"), call.owner, is_crashed_allowed=True)
    _check_as_seen(call, queue, 0 if queue.is_crashed else queue.depth())

    def again() -> None:
        call.answer_errors(lambda: _delete_queue(call, sends_first=False))

    if sends_first and vhost.table.sends_first(queue, again):
        return
    vhost.delete_queue_then(
        queue, lambda count, lsn: call.settled(lsn, {"messages": count}), call.fail,
        if_unused=args.flag("if_unused"), if_empty=args.flag("if_empty"),
        is_forced=args.flag("force"),
    )  # fmt: skip


def _purge_queue(call: Call) -> None:
    queue = call.vhost.table.find_queue(call.args.text("queue"), call.owner)
    _check_as_seen(call, queue, queue.len())
    count, lsn = call.vhost.purge_queue(queue)
    call.settled(lsn, {"messages": count})


def _check_as_seen(call: Call, queue: QueueOrStream, messages: int) -> None:
    """Raise ChannelError 406 unless the queue is still what the caller has seen."""
    args = call.args
    most = args.whole_or_none("if_messages_at_most")
    generation = args.whole_or_none("if_generation")
    if generation is not None and generation != queue.generation:
        raise args.wrong(
            "if_generation", f"given {generation}, but queue '{queue.name}' was deleted and "
            f"declared again: it has {queue.generation}; look at it again"
        )  # fmt: skip
    if most is not None and messages > most:
        raise args.wrong(
            "if_messages_at_most", f"given {most}, but queue '{queue.name}' has {messages} "
            "messages now; look again, or delete so many from the head (delete_messages)"
        )  # fmt: skip


def _pause_queue(call: Call) -> None:
    _set_paused(call, is_paused=True)


def _resume_queue(call: Call) -> None:
    _set_paused(call, is_paused=False)


def _set_paused(call: Call, *, is_paused: bool) -> None:
    table = call.vhost.table
    queue = table.find_messages(call.args.text("queue"), call.owner, call.args.op)
    was_paused = queue.consumers.is_paused
    call.settled(table.set_paused(queue, is_paused=is_paused), {"was_paused": was_paused})


# ---- exchanges and bindings ----------------------------------------------------------------------


def _declare_exchange(call: Call) -> None:
    args = call.args
    name, arguments = one_line(args.text("exchange")), args.table("arguments")
    check_exchange_to_declare(call.vhost, call.identity, name, arguments)
    is_new, kind = name not in call.vhost.exchanges, args.text("type")
    if is_new and kind not in TYPES:
        text = f"unknown exchange type '{kind}', expected one of {', '.join(TYPES)}"
        raise AMQPConnectionError(COMMAND_INVALID, text)
    lsn = call.vhost.topology.declare_exchange(
        name, kind, durable=args.flag("durable"),
        auto_delete=args.flag("auto_delete"), internal=args.flag("internal"), arguments=arguments,
        by=call.identity,
    )  # fmt: skip
    call.settled(lsn, {"exchange": name, "is_new": is_new})


def _delete_exchange(call: Call) -> None:
    name = call.args.text("exchange")
    call.vhost.topology.check_exchange(name)
    call.vhost.delete_exchange_then(
        name, lambda lsn: call.settled(lsn, {}), call.fail, if_unused=call.args.flag("if_unused")
    )


def _bind_queue(call: Call) -> None:
    args = call.args
    _check_key(call, args.text("exchange"))
    before = call.vhost.router.binding_count
    lsn = call.vhost.bind_queue(
        args.text("queue"), args.text("exchange"), args.text("routing_key"),
        args.table("arguments"), call.owner, call.identity,
    )  # fmt: skip
    _answer_bound(call, before, lsn, args.text("exchange"), QUEUE, args.text("queue"))


def _answer_bound(
    call: Call, bindings: int, lsn: int, source: str, kind: str, destination: str
) -> None:
    """Answer a bind, once what the exchange has kept is sent to a new binding."""
    answer = _bound(call, source, kind, destination)
    sending = history_for(call.vhost, bindings, source, kind, destination)
    if sending is None:
        call.settled(lsn, answer)
    else:
        call.lsn = lsn
        call.in_slices(_sent(sending, answer))


def _sent(sending: SendingHistory, answer: dict[str, object]) -> Slices:
    """Send a history, also if the caller has left, and return the answer."""
    try:
        while not sending.step():
            yield
    except GeneratorExit:
        sending.abandon()
        raise
    return answer


def _unbind_queue(call: Call) -> None:
    args = call.args
    _check_key(call, args.text("exchange"))
    lsn = call.vhost.unbind_queue(
        args.text("queue"), args.text("exchange"), args.text("routing_key"),
        args.table("arguments"), call.owner,
    )  # fmt: skip
    call.settled(lsn, {})


def _bind_exchange(call: Call) -> None:
    between = _between_exchanges(call)
    before = call.vhost.router.binding_count
    lsn = call.vhost.topology.bind_exchange(*between, call.identity)
    _answer_bound(call, before, lsn, between[1], EXCHANGE, between[0])


def _unbind_exchange(call: Call) -> None:
    call.settled(call.vhost.topology.unbind_exchange(*_between_exchanges(call)), {})


def _bound(call: Call, source: str, kind: str, destination: str) -> dict[str, object]:
    key, arguments = call.args.text("routing_key"), call.args.table("arguments")
    return {"properties_key": Binding(source, kind, destination, key, arguments).properties_key}


def _delete_binding(call: Call) -> None:
    args = call.args
    source, destination = args.text("source"), args.text("destination")
    kind = QUEUE if args.text("destination_type") == "queue" else EXCHANGE
    call.check(WRITE, args.text("destination_type"), destination)
    call.check(READ, "exchange", source)
    bound = call.vhost.router.bindings_to(kind, destination)
    search = _search(call, [binding for binding in bound if binding.source == source])
    try:
        next(search)
    except StopIteration as end:  # in the call itself, which may wait for permissions
        call.settled(_unbound(call, end.value), {})
    else:
        call.in_slices(_searched(call, search))


Search = Generator[None, None, Binding | None]


def _search(call: Call, bound: list[Binding]) -> Search:
    """Return the binding that is named, None if none of them is."""
    wanted, budget = call.args.text("properties_key"), call.vhost.budget
    found: Binding | None = None
    steps = 0
    for binding in bound:
        one = binding_called([binding], wanted)
        found = one or found
        if one is not None and one.properties_key == wanted:
            break
        steps += BINDING_STEPS + len(binding.encoded) // ARGUMENT_BYTES
        if steps >= LOOK_STEPS:
            budget.left -= steps
            steps = 0
            yield
    return found


def _searched(call: Call, search: Search) -> Slices:
    call.lsn = _unbound(call, (yield from search))
    return {}


def _unbound(call: Call, one: Binding | None) -> int:
    """Remove the binding that was found, and return the LSN. ChannelError 403, 404."""
    args, vhost = call.args, call.vhost
    source, destination = args.text("source"), args.text("destination")
    if one is None:
        what = f"'{source}' to {args.text('destination_type')} '{destination}'"
        wanted = args.text("properties_key")
        raise not_found(f"binding {wanted!r} of exchange {what} in vhost '{vhost.name}'")
    check_topic(vhost, call.identity, READ, source, one.key)
    if one.kind == QUEUE:
        return vhost.unbind_queue(destination, source, one.key, one.arguments, call.owner)
    return vhost.topology.unbind_exchange(destination, source, one.key, one.arguments)


def _check_key(call: Call, source: str) -> None:
    key = call.args.text("routing_key")
    check_topic(call.vhost, call.identity, READ, source, key)


def _between_exchanges(call: Call) -> tuple[str, str, str, dict[str, object]]:
    args = call.args
    _check_key(call, args.text("source"))
    return (
        args.text("destination"), args.text("source"), args.text("routing_key"),
        args.table("arguments"),
    )  # fmt: skip


FUNCTIONS: Final[Functions] = {
    "declare_queue": _declare_queue,
    "delete_queue": _delete_queue,
    "purge_queue": _purge_queue,
    "pause_queue": _pause_queue,
    "resume_queue": _resume_queue,
    "declare_exchange": _declare_exchange,
    "delete_exchange": _delete_exchange,
    "bind_queue": _bind_queue,
    "unbind_queue": _unbind_queue,
    "bind_exchange": _bind_exchange,
    "unbind_exchange": _unbind_exchange,
    "delete_binding": _delete_binding,
}
