"""Operations on leases: a reader takes messages of a classic queue, then commits or releases them.

A lease is described by name, reader, first (all below is committed), head (after the last that is
leased), ready and ready_bytes (of the queue), bytes (of what is leased), since_ms (when the oldest
uncommitted one was leased), is_old, path, stream_id and last_time_us; numbers are 0 for a reader
that is not known. The description comes when the pages of the lease exist as far as `head`: after
a restart they are written again first.

`owner` is the token of a program that owns the reader while it runs (leases.py), or null. A call
is refused with 405 while another program owns the reader; an operator's without a token is not.

Who may read the queue may lease of it, commit and release.
"""

from typing import Final

from penstock.broker.arguments import type_of
from penstock.broker.broker_queue import BrokerQueue, QueueOrStream
from penstock.broker.exactly_once.leases import (
    CommitLease,
    DescribeLease,
    LeaseMessages,
    ReleaseLease,
    lease_manager,
)
from penstock.broker.operations.call import Call, Functions, Rows, Slices, add_rows, listed
from penstock.operation_json import JsonParts
from penstock.operation_table import U63_MAX


def _lease_queue(call: Call) -> None:
    messages, size = call.args.whole_or_none("messages"), call.args.whole_or_none("bytes")
    queue, reader = _owned_reader(call)
    leases = lease_manager(call.vhost)
    leases.request(
        LeaseMessages(
            leases, queue, reader, call.reply, U63_MAX if messages is None else messages,
            U63_MAX if size is None else size,
        )
    )  # fmt: skip


def _describe_lease(call: Call) -> None:
    leases = lease_manager(call.vhost)
    queue, reader = call.args.text("queue"), call.args.text("reader")
    leases.request(DescribeLease(leases, queue, reader, call.reply))


def _commit_lease(call: Call) -> None:
    queue, reader = _owned_reader(call)
    leases = lease_manager(call.vhost)
    leases.request(CommitLease(leases, queue, reader, call.reply, call.args.whole("offset")))


def _release_lease(call: Call) -> None:
    queue, reader = _owned_reader(call)
    leases = lease_manager(call.vhost)
    leases.request(ReleaseLease(leases, queue, reader, call.reply))


def _owned_reader(call: Call) -> tuple[str, str]:
    """Return queue and reader. ChannelError 405: another program owns the reader."""
    key = call.args.text("queue"), call.args.text("reader")
    owner = call.args.text_or_none("owner")
    if owner is not None or not call.is_operator:
        lease_manager(call.vhost).owners.check(key, owner or "")
    return key


def _own_lease(call: Call) -> None:
    args = call.args
    key = args.text("queue"), args.text("reader")
    seconds = float(args.whole("seconds"))
    owners = lease_manager(call.vhost).owners
    user, token = call.identity.name, args.text("owner")
    call.reply(owners.own(key, user, token, seconds, is_held=args.flag("is_held")))


def _disown_lease(call: Call) -> None:
    args = call.args
    key = args.text("queue"), args.text("reader")
    call.reply({"disowned": lease_manager(call.vhost).owners.disown(key, args.text("owner"))})


def _leases(call: Call) -> Rows:
    leases = lease_manager(call.vhost)
    for name in leases.queues():
        if call.may_read(name):
            yield from leases.of(name)
        yield None


def _describe_queue(call: Call) -> None:
    queue = call.vhost.table.find_queue(call.args.text("queue"))
    call.in_slices(_described(call, queue))


def _described(call: Call, queue: QueueOrStream) -> Slices:
    facts: dict[str, object] = {
        "name": queue.name, "type": "stream", "durable": queue.is_durable, "ready": queue.len(),
        "unacknowledged": 0, "bytes": 0,
    }  # fmt: skip
    facts |= call.vhost.policies.of(queue.name, type_of(queue.arguments)).names()
    leases: Rows = iter(())
    if isinstance(queue, BrokerQueue):
        facts["type"] = "classic"
        facts["unacknowledged"] = queue.amq.depth() - queue.len()
        facts["bytes"] = queue.amq.body_bytes()
        if queue.is_durable:
            leases = lease_manager(call.vhost).of_queue(queue)
    found = JsonParts(is_exact=call.is_operator)
    found.begin(b"{")
    for key, value in facts.items():
        found.add(value, key)
    yield from add_rows(call, found, leases, "leases")
    found.end(b"}")
    return found


FUNCTIONS: Final[Functions] = {
    "lease_queue": _lease_queue,
    "describe_lease": _describe_lease,
    "commit_lease": _commit_lease,
    "release_lease": _release_lease,
    "own_lease": _own_lease,
    "disown_lease": _disown_lease,
    "list_leases": lambda call: call.in_slices(listed(call, _leases(call))),
    "describe_queue": _describe_queue,
}
