"""Operations: what can be asked of a vhost by name, with arguments and results as JSON has them.

Two ask. Operators, over the control socket: whoever can open that may do everything (channel is
None). And clients, by the method penstock.call on a channel, with the permissions of their user:
what AMQP has a method for needs the same permissions here; listings need the tag monitoring, or
administrator. What writes files or takes messages by hand (backup, checkpoint, get, settle) is for
operators alone.

    call(vhost, channel, op, args, reply)      reply(result), or reply(AMQPError); perhaps later:
                                               a change is answered when it is as safe as the
                                               vhost's durability says

What is asked wrongly is told what was expected: an unknown operation (404) or argument (406)
suggests the right name. A failure of the engine is nobody's answer: it goes up, and ends the vhost.

An operator may ask for a user, with the argument `as_user` (an Identity's facts): then that user's
permissions count. The HTTP process does it for operations whose permissions are found out here.

Bytes are bytes here; {"b64": ...} is for whoever carries them.

Not here: operations on messages, streams, leases and batches, and long ones
(operations_messages.py, operations_streams.py, operations_leases.py, operations_batches.py,
operations_upkeep.py), those of the remote box ("box.", operations_box.py), of users and vhosts
(penstock.server).
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Final

from penstock.access.permissions import Identity, everything
from penstock.broker import operations_batches as batches
from penstock.broker import operations_leases as leases
from penstock.broker import operations_lists as lists
from penstock.broker import operations_messages as messages
from penstock.broker import operations_streams as streams
from penstock.broker import operations_upkeep as upkeep
from penstock.broker import vhost_info
from penstock.broker.channel import Channel
from penstock.broker.channel_access import (
    CONFIGURE,
    READ,
    WRITE,
    check,
    check_exchange_to_declare,
    queue_to_declare,
)
from penstock.broker.operation_args import OperationArgs, Reply, refused
from penstock.broker.operations_messages import (
    answer_error,
    answer_errors,
    answer_when_settled,
    error_of,
)
from penstock.broker.refusals import access_refused
from penstock.broker.vhost import VHost
from penstock.errors import NOT_FOUND, ChannelError, PenstockError

BOX: Final = "box."
OPERATOR: Final = everything("operator")
AS_USER: Final = "as_user"


class Caller:
    """Who asks: a client's channel, or an operator (None). user: whom an operator asks for, with
    that user's permissions."""

    def __init__(self, vhost: VHost, channel: Channel | None, user: Identity | None = None) -> None:
        self.vhost: VHost = vhost
        self.identity: Identity = user or (OPERATOR if channel is None else channel.identity)
        self.is_operator: bool = channel is None and user is None
        self.owner: object | None = None if channel is None else channel.handler

    def check(self, verb: str, kind: str, name: str) -> None:
        """ChannelError 403 unless the user may do this to that queue or exchange."""
        check(self.vhost, self.identity, verb, kind, name)

    def check_tags(self, op: str, tags: tuple[str, ...]) -> None:
        """ChannelError 403 unless the user has one of these tags."""
        if not self.is_operator and not self.identity.tags.intersection(tags):
            raise access_refused(
                f"operation '{op}' refused for user '{self.identity.name}': it needs the tag "
                + " or ".join(tags)
            )


Operation = Callable[[Caller, OperationArgs, Reply], None]


def call(
    vhost: VHost, channel: Channel | None, op: str, args: dict[str, object], reply: Reply
) -> None:
    """Do it; `reply` is called once, from here or later."""
    if op.startswith(BOX):
        from penstock.broker import operations_box  # those who have a box need it, operators not

        operations_box.call(vhost, channel, op, args, reply)
        return
    try:
        operation = OPERATIONS.get(op)
        if operation is None:
            near = difflib.get_close_matches(op, OPERATIONS, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ChannelError(NOT_FOUND, f"no operation {op!r}{hint}")
        user = None
        if channel is None and AS_USER in args:
            args = dict(args)
            user = _user(op, args.pop(AS_USER))
        operation(Caller(vhost, channel, user), OperationArgs(op, args), reply)
    except Exception as error:
        told = error_of(error)
        if told is None or vhost.engine.failed is not None:
            raise
        reply(told)


def _user(op: str, facts: object) -> Identity:
    """Whom an operator asks for."""
    try:
        assert isinstance(facts, dict)
        return Identity.from_facts(facts)
    except (AssertionError, KeyError, TypeError, PenstockError) as error:
        text = "expected name, tags, configure, write and read"
        raise refused(f"{op}: argument {AS_USER!r}: {text}") from error


# ---- queues --------------------------------------------------------------------------------------


def _declare_queue(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    """{queue, messages, consumers}."""
    given = args.name("queue")
    durable = args.flag("durable", True)
    auto_delete = args.flag("auto_delete")
    arguments = args.field_table("arguments")
    args.done()
    vhost = caller.vhost

    def declare() -> None:
        name = queue_to_declare(vhost, caller.identity, given, arguments)
        if vhost.prepare_queue(
            name, durable=durable, auto_delete=auto_delete, arguments=arguments,
            again=lambda: answer_errors(vhost, declare, reply),
            failed=lambda error: answer_error(vhost, error, reply),
        ):  # fmt: skip
            return
        queue, lsn = vhost.declare_queue(
            name, durable=durable, auto_delete=auto_delete, arguments=arguments,
            owner=caller.owner, is_reserved_allowed=not given,
        )  # fmt: skip
        found = {
            "queue": queue.name, "messages": queue.len(), "consumers": queue.consumers.count,
        }  # fmt: skip
        answer_when_settled(vhost, lsn, found, reply)

    declare()


def _delete_queue(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    """{messages}: how many were ready. force: also if readers have messages of it leased. 404 if
    there is none: whoever deletes by hand wants to know."""
    name = args.name("queue")
    if_unused, if_empty = args.flag("if_unused"), args.flag("if_empty")
    is_forced = args.flag("force")
    args.done()
    caller.check(CONFIGURE, "queue", name)
    vhost = caller.vhost
    queue = vhost.find_queue(name, caller.owner, is_crashed_allowed=True)
    count, lsn = vhost.delete_queue(
        queue, if_unused=if_unused, if_empty=if_empty, is_forced=is_forced
    )
    answer_when_settled(vhost, lsn, {"messages": count}, reply)


def _purge_queue(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    """{messages}: how many were ready."""
    name = args.name("queue")
    args.done()
    caller.check(READ, "queue", name)
    queue = caller.vhost.find_queue(name, caller.owner)
    count, lsn = caller.vhost.purge_queue(queue)
    answer_when_settled(caller.vhost, lsn, {"messages": count}, reply)


# ---- exchanges and bindings ----------------------------------------------------------------------


def _declare_exchange(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    name = args.name("exchange")
    kind = args.name("type", "direct")
    durable, auto_delete = args.flag("durable", True), args.flag("auto_delete")
    internal = args.flag("internal")
    arguments = args.field_table("arguments")
    args.done()
    check_exchange_to_declare(caller.vhost, caller.identity, name, arguments)
    lsn = caller.vhost.declare_exchange(
        name, kind, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
    )
    answer_when_settled(caller.vhost, lsn, {"exchange": name}, reply)


def _delete_exchange(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    """404 if there is none."""
    name = args.name("exchange")
    if_unused = args.flag("if_unused")
    args.done()
    caller.check(CONFIGURE, "exchange", name)
    caller.vhost.check_exchange(name)
    lsn = caller.vhost.delete_exchange(name, if_unused=if_unused)
    answer_when_settled(caller.vhost, lsn, {}, reply)


class _Binding:
    """What the operations on bindings are given, permissions checked. kind: what is bound."""

    def __init__(self, caller: Caller, args: OperationArgs, kind: str) -> None:
        self.target: str = args.name(kind)
        self.source: str = args.name("exchange" if kind == "queue" else "source")
        self.key: str = args.name("routing_key", "")
        self.arguments: dict[str, object] = args.field_table("arguments")
        args.done()
        caller.check(WRITE, "queue" if kind == "queue" else "exchange", self.target)
        caller.check(READ, "exchange", self.source)


def _bind_queue(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    one = _Binding(caller, args, "queue")
    lsn = caller.vhost.bind_queue(one.target, one.source, one.key, one.arguments, caller.owner)
    answer_when_settled(caller.vhost, lsn, {}, reply)


def _unbind_queue(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    one = _Binding(caller, args, "queue")
    lsn = caller.vhost.unbind_queue(one.target, one.source, one.key, one.arguments, caller.owner)
    answer_when_settled(caller.vhost, lsn, {}, reply)


def _bind_exchange(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    one = _Binding(caller, args, "destination")
    lsn = caller.vhost.bind_exchange(one.target, one.source, one.key, one.arguments)
    answer_when_settled(caller.vhost, lsn, {}, reply)


def _unbind_exchange(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    one = _Binding(caller, args, "destination")
    lsn = caller.vhost.unbind_exchange(one.target, one.source, one.key, one.arguments)
    answer_when_settled(caller.vhost, lsn, {}, reply)


# ---- messages ------------------------------------------------------------------------------------


def _publish(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    messages.publish(caller.vhost, caller.identity, args, reply)


def _peek(caller: Caller, args: OperationArgs, reply: Reply) -> None:
    caller.check(READ, "queue", args.name("queue"))
    messages.peek(caller.vhost, caller.owner, args, reply)


def _for_operators(operation: Callable[[VHost, OperationArgs, Reply], None]) -> Operation:
    """Something that writes files, or takes messages without a consumer: only over the control
    socket. No tag is enough, because whoever has the password of an administrator is not therefore
    somebody on this machine."""

    def checked(caller: Caller, args: OperationArgs, reply: Reply) -> None:
        if not caller.is_operator:
            raise access_refused(
                f"operation '{args.op}' refused for user '{caller.identity.name}': it is done over "
                "the broker's control socket alone, by the command penstock"
            )
        operation(caller.vhost, args, reply)

    return checked


def _with_tags(
    operation: Callable[[VHost, OperationArgs, Reply], None], tags: tuple[str, ...]
) -> Operation:
    """Something that operators do, and users with one of these tags."""

    def checked(caller: Caller, args: OperationArgs, reply: Reply) -> None:
        caller.check_tags(args.op, tags)
        operation(caller.vhost, args, reply)

    return checked


def _listing(rows: Callable[[VHost], object]) -> Operation:
    def listed(vhost: VHost, args: OperationArgs, reply: Reply) -> None:
        args.done()
        reply(rows(vhost))

    return _with_tags(listed, ("monitoring", "administrator"))


OPERATIONS: Final[Mapping[str, Operation]] = {
    "declare_queue": _declare_queue,
    "delete_queue": _delete_queue,
    "purge_queue": _purge_queue,
    "declare_exchange": _declare_exchange,
    "delete_exchange": _delete_exchange,
    "bind_queue": _bind_queue,
    "unbind_queue": _unbind_queue,
    "bind_exchange": _bind_exchange,
    "unbind_exchange": _unbind_exchange,
    "publish": _publish,
    "peek": _peek,
    "get": _for_operators(messages.get),
    "settle": _for_operators(messages.settle),
    "session_closed": _for_operators(messages.session_closed),
    "checkpoint": _for_operators(upkeep.checkpoint),
    "backup": _for_operators(upkeep.backup),
    "job": _for_operators(upkeep.wait_for_job),
    "vhost_status": _listing(vhost_info.status),
    "list_queues": _listing(vhost_info.list_queues),
    "list_exchanges": _listing(vhost_info.list_exchanges),
    "list_bindings": _listing(vhost_info.list_bindings),
    "list_consumers": _listing(lists.list_consumers),
    "list_channels": _listing(lists.list_channels),
    "list_alerts": _listing(lists.list_alerts),
    **streams.OPERATIONS,
    **leases.OPERATIONS,
    **batches.OPERATIONS,
}
