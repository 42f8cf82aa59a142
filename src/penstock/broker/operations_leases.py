"""Operations on leases: messages of classic queues, taken by a reader until it commits them.

    lease_queue      queue, reader, messages, bytes, owner
                                                      description, after leasing up to so many more
    describe_lease   queue, reader                    description; one that is not known: all 0
    commit_lease     queue, reader, offset, owner     {first}: all below is acknowledged
    release_lease    queue, reader, owner             {messages}: ready again, the reader forgotten
    own_lease        queue, reader, owner, seconds, is_held
                                                      {is_owner, renewals, expires_s}
    disown_lease     queue, reader, owner             {disowned}: whether it was the owner
    list_leases                                       [description], of what the caller may read
    describe_queue   queue                            name, type, counts, leases: [description]

    description      name, reader, first (committed), head (behind the last that is leased), ready,
                     ready_bytes, bytes (of what is leased), since_ms, is_old, path, stream_id,
                     last_time_us

`messages` and `bytes` may be null, for no limit; more than were ready at the beginning are never
leased. Who may read the queue may lease of it, commit and release. A description of a reader comes
when the pages of its lease are there, as far as `head`: after a restart they are made again first.

`owner` is the token of a program that owns the reader while it runs (lease_owners.py), or null:
then the call is refused (405) while another program owns it, but for an operator's.

`describe_queue` is for streams too, so that whoever has a name knows what to ask.

Not here: the doing (lease_calls.py), waiting for each other (lease_desk.py), owners
(lease_owners.py).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.lease_calls import Commit, Describe, Lease, Release
from penstock.broker.operation_args import OperationArgs, Reply, refused
from penstock.broker.served_queue import ServedQueue
from penstock.broker.stream_arguments import READER_BYTES_MAX, is_reader

if TYPE_CHECKING:
    from penstock.broker.operations import Caller

READ: Final = "read"
OWNER_S_MAX: Final = 3600
U63_MAX: Final = (1 << 63) - 1


def _asked(caller: "Caller", args: OperationArgs) -> tuple[str, str]:
    """The names of queue and reader; ChannelError 403, 406."""
    queue = args.name("queue")
    reader = args.text("reader")
    if not is_reader(reader):
        raise refused(f"{args.op}: argument 'reader': expected 1 to {READER_BYTES_MAX} bytes")
    caller.check(READ, "queue", queue)
    return queue, reader


def lease_queue(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """description."""
    queue, reader = _asked(caller, args)
    messages, size = _limit(args, "messages"), _limit(args, "bytes")
    _check_owner(caller, args, queue, reader)
    args.done()
    desk = caller.vhost.leases
    desk.ask(Lease(desk, queue, reader, reply, messages, size))


def _limit(args: OperationArgs, name: str) -> int:
    given = args.whole_or_none(name)
    if given is None:
        return U63_MAX
    if not 0 < given <= U63_MAX:
        raise refused(f"{args.op}: argument {name!r}: given {given}, expected 1 or more, or null")
    return given


def describe_lease(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """description."""
    queue, reader = _asked(caller, args)
    args.done()
    desk = caller.vhost.leases
    desk.ask(Describe(desk, queue, reader, reply))


def commit_lease(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{first}."""
    queue, reader = _asked(caller, args)
    offset = args.whole("offset", None, 0, U63_MAX)
    _check_owner(caller, args, queue, reader)
    args.done()
    desk = caller.vhost.leases
    desk.ask(Commit(desk, queue, reader, reply, offset))


def release_lease(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{messages}."""
    queue, reader = _asked(caller, args)
    _check_owner(caller, args, queue, reader)
    args.done()
    desk = caller.vhost.leases
    desk.ask(Release(desk, queue, reader, reply))


def _check_owner(caller: "Caller", args: OperationArgs, queue: str, reader: str) -> None:
    """ChannelError 405: another program owns the reader."""
    owner = args.name_or_none("owner")
    if owner is not None or not caller.is_operator:
        caller.vhost.leases.owners.check((queue, reader), owner or "")


def own_lease(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{is_owner, renewals, expires_s}."""
    queue, reader = _asked(caller, args)
    owner = _owner(args)
    seconds = args.whole("seconds", None, 1, OWNER_S_MAX)
    is_held = args.flag("is_held")
    args.done()
    owners = caller.vhost.leases.owners
    reply(owners.own((queue, reader), owner, float(seconds), is_held=is_held))


def disown_lease(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{disowned}."""
    queue, reader = _asked(caller, args)
    owner = _owner(args)
    args.done()
    reply({"disowned": caller.vhost.leases.owners.disown((queue, reader), owner)})


def _owner(args: OperationArgs) -> str:
    owner = args.name("owner")
    if not owner:
        raise refused(f"{args.op}: argument 'owner': expected 1 to 255 bytes")
    return owner


def list_leases(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """[description], by queue and reader."""
    args.done()
    reply(
        [
            row
            for row in caller.vhost.leases.all()
            if caller.is_operator or caller.identity.may_read(str(row["name"]))
        ]
    )


def describe_queue(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{name, type, durable, ready, unacknowledged, bytes, leases}; bytes: of what is ready."""
    name = args.name("queue")
    args.done()
    caller.check(READ, "queue", name)
    queue = caller.vhost.find_queue(name)
    found: dict[str, object] = {
        "name": name, "type": "stream", "durable": queue.is_durable, "ready": queue.len(),
        "unacknowledged": 0, "bytes": 0, "leases": [],
    }  # fmt: skip
    if isinstance(queue, ServedQueue):
        found["type"] = "classic"
        found["unacknowledged"] = queue.amq.depth() - queue.len()
        found["bytes"] = queue.amq.body_bytes()
        if queue.is_durable:
            found["leases"] = caller.vhost.leases.of_queue(queue)
    reply(found)


OPERATIONS: Final[dict[str, Callable[["Caller", OperationArgs, Reply], None]]] = {
    "lease_queue": lease_queue,
    "describe_lease": describe_lease,
    "commit_lease": commit_lease,
    "release_lease": release_lease,
    "own_lease": own_lease,
    "disown_lease": disown_lease,
    "list_leases": list_leases,
    "describe_queue": describe_queue,
}
