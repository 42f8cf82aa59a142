"""Operations: what can be asked of a vhost by name, with arguments and results as JSON has them.

    FUNCTIONS                                name -> function of each operation of a vhost that
                                             penstock.operation_table lists
    call(vhost, channel, op, args, reply)    calls one; reply(result), or reply(AMQPError), now or
                                             later: a change is answered when it is as safe as the
                                             vhost's durability says
    on_penstock_call(channel, method)        the same for the AMQP method penstock.call

Operators call over the control socket; whoever can open that may do everything (channel is None).
An operator may call for a user, with the argument `as_user` (an Identity as a dict, and `from`, the
user's address): then that user's permissions count. The HTTP process does so. Clients call by
penstock.call on a channel, with the permissions of their user.

An unknown operation is a 404 and a wrong argument a 406; both suggest the right name. A failure of
the engine is raised: it ends the vhost.

Bytes are bytes here; operation_json.py turns them into {"b64": ...} for JSON.

A new operation is one row of penstock.operation_table, and its function here.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.access.permissions import Identity
from penstock.broker.asked_rights import RightsUnknown
from penstock.broker.channel import Channel
from penstock.broker.dispatch import STEP_BYTES, Reply
from penstock.broker.operations import (
    box,
    connections,
    exactly_once,
    jobs,
    listings,
    messages,
    metrics,
    pages,
    policies,
    streams,
    topology,
    why,
)
from penstock.broker.operations.call import (
    OVERHEAD_BYTES,
    Call,
    check_caller,
    error_of,
    too_large,
)
from penstock.broker.refusals import precondition_failed
from penstock.broker.vhost import VHost
from penstock.codec.method import Method
from penstock.codec.spec import PenstockCall, PenstockCallError, PenstockCallOk
from penstock.errors import (
    INTERNAL_ERROR,
    RESOURCE_ERROR,
    AMQPError,
    ChannelError,
    PenstockError,
)
from penstock.operation_json import dumps, loads
from penstock.operation_table import AS_USER, AUDITED, Arguments, find
from penstock.storage.files.durability import OS

TEXT_BYTES_MAX: Final = 4000  # of an error's text: the smallest frame has 4096 bytes
USER_CALLS_MAX: Final = 4096  # of one user in a vhost that are not answered yet
USER_ANSWERS_BYTES_MAX: Final = 1 << 20  # of one user, that wait for the answer of an earlier call
ANSWER_BYTES: Final = 200  # that one takes besides its text

FUNCTIONS: Final[dict[str, Callable[[Call], None]]] = {
    name: function
    for module in (
        topology,
        policies,
        messages,
        streams,
        exactly_once,
        jobs,
        listings,
        pages,
        metrics,
        box,
        why,
        connections,
    )
    for name, function in module.FUNCTIONS.items()
}


def call(
    vhost: VHost, channel: Channel | None, op: str, args: dict[str, object], reply: Reply
) -> None:
    """Call an operation; `reply` is called once, from here or later. RightsUnknown: nothing has
    happened, the client's connection must wait."""
    given = args
    try:
        row = find(op, FUNCTIONS)
        user, address = None, ""
        if channel is None and AS_USER in args:
            args = dict(args)
            user, address = _user(op, args.pop(AS_USER))
        check_caller(row, channel, user)
        one = Call(vhost, channel, user, Arguments(op, row.arguments, args), reply, address)
        if op in AUDITED and vhost.on_audit is not None:
            one.reply = _audited(one, reply)
        for verb, kind, argument in row.needs:
            one.check(verb, kind, one.args.text(argument) if argument else "")
        vhost.events.user = one.identity.name
        try:
            FUNCTIONS[op](one)
        finally:
            vhost.events.user = ""
    except RightsUnknown as unknown:
        if channel is not None:
            raise  # its connection waits
        if vhost.rights.send is None:
            reply(unknown)
        else:
            again = partial(call, vhost, None, op, given, reply)
            vhost.rights.when_known(unknown.question, again)
    except Exception as error:
        answer = error_of(error)
        if answer is None or vhost.engine.failed is not None:
            raise
        reply(answer)
        del answer  # else error and frame hold each other, and the frame what was asked


def _audited(one: Call, reply: Reply) -> Reply:
    """Return a reply that notes in the audit log what was done."""
    if one.is_operator:
        user, place = "operator", "control socket"
    else:
        user, place = one.identity.name, one.place

    def replied(result: object) -> None:
        on_audit = one.vhost.on_audit
        if on_audit is not None and not isinstance(result, BaseException):
            on_audit(one.args.op, user, place, one.args.shown())
        reply(result)

    return replied


def _user(op: str, facts: object) -> tuple[Identity, str]:
    """Return the user for whom an operator calls, and its address. ChannelError 406."""
    try:
        assert isinstance(facts, dict)
        return Identity.from_facts(facts), str(facts.get("from", ""))
    except (AssertionError, KeyError, TypeError, PenstockError) as error:
        text = "expected name, tags, configure, write and read"
        raise precondition_failed(f"{op}: argument {AS_USER!r}: {text}") from error


# ---- penstock.call -------------------------------------------------------------------------------


def on_penstock_call(channel: Channel, method: PenstockCall) -> None:
    """Call an operation for a client: a method of Penstock's own (class 9000) with its name and its
    arguments as JSON. The answer is JSON too, or a code and a text; 311 if it is larger than a
    frame. An unexpected error is reported as an event with its traceback and answered with 541.

    The answers of a channel are sent in the order of its calls, because they name none: one that is
    ready before that of an earlier call waits for it. If too much of a user waits so, what the
    channel sends waits, too."""
    vhost, user = channel.vhost, channel.identity.name
    answer: list[Method] = []
    channel.calls.append(answer)
    calls = vhost.usage.calls
    if calls.of(user) >= USER_CALLS_MAX:
        text = f"{USER_CALLS_MAX} calls of user '{user}' are not answered yet, no more may be"
        _send(channel, answer, _error(ChannelError(RESOURCE_ERROR, text)))
        return
    calls.add(user, 1)

    def reply(result: object) -> None:
        calls.add(user, -1)
        try:
            found = _answer(channel, None if channel.is_closed else result)
        except Exception as error:  # noqa: BLE001 - it is reported
            found = _error(_internal_error(channel, method, error))
        _send(channel, answer, found)

    try:
        call(vhost, channel, method.op, loads(method.arguments), reply)
    except RightsUnknown:
        calls.add(user, -1)
        channel.calls.pop()
        raise
    except AMQPError as error:
        reply(error)
    except Exception as error:  # noqa: BLE001 - it is reported
        reply(_internal_error(channel, method, error))


def _internal_error(channel: Channel, method: PenstockCall, error: Exception) -> AMQPError:
    """Report an unexpected error as an event and return a 541. Raises it if the engine failed."""
    where = f"connection {channel.handler.name}, operation {method.op!r}"
    channel.vhost.dispatch.internal_error(where, error)
    return AMQPError(INTERNAL_ERROR, f"{type(error).__name__}: {error}")


def _answer(channel: Channel, result: object) -> Method:
    if isinstance(result, AMQPError):
        return _error(result)
    data = dumps(result)
    channel.vhost.budget.left -= len(data) // STEP_BYTES
    frame_max = channel.output.frame_max
    if frame_max and len(data) + OVERHEAD_BYTES > frame_max:
        return _error(too_large(f"{len(data)} bytes", frame_max))
    return PenstockCallOk(result=data)


def _error(error: AMQPError) -> Method:
    text = error.text.encode()
    if len(text) > TEXT_BYTES_MAX:
        text = text[:TEXT_BYTES_MAX].decode("utf-8", "ignore").encode() + b"..."
    return PenstockCallError(code=error.code, text=text)


def _send(channel: Channel, answer: list[Method], method: Method) -> None:
    """Send the answer of a call, and those that waited for it; or keep it until the answers of all
    earlier calls are sent."""
    calls = channel.calls
    waiting, user = channel.vhost.usage.answers, channel.identity.name
    answer.append(method)
    waiting.add(user, _bytes(method))
    while calls and calls[0]:
        first = calls.popleft()[0]
        waiting.add(user, -_bytes(first))
        if not channel.is_closed:
            channel.send(first)
    is_over = bool(calls) and waiting.of(user) > USER_ANSWERS_BYTES_MAX
    if is_over and not channel.is_waiting:
        channel.is_waiting = channel.waits_for_calls = True
    elif channel.waits_for_calls and not is_over:
        channel.waits_for_calls = False
        channel.vhost.dispatch.when_settled(0, OS, lambda: channel.go_on(_nothing))


def _nothing() -> None:
    """Do nothing: the channel goes on with what it kept."""


def _bytes(answer: Method) -> int:
    """Return what an answer takes while it waits."""
    text = answer.result if isinstance(answer, PenstockCallOk) else b""
    return ANSWER_BYTES + len(text)
