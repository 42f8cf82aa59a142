"""Operations of exactly-once: a sink commits batches to their target, a reader leases messages.

**Batches.** The sink commits what it has staged.

    target         {"queue": name} or {"exchanges": [names]}, perhaps "dead_letter_to": name; {} or
                   null if there are no pages and rows name their exchanges
    pages          [{name, page_id (16 hex digits), rows, bytes, checksum (16 hex digits)}], as
                   staging answered them; empty only together with `previous`
    mandatory_keys [[exchange, routing key]] that must lead to a queue, or null
    previous       number of the batch before, -1 for none, from a sink that reports every batch,
                   also those without rows; null: the sink does not report them
    keep_first     true: accept a batch of this number that was decided, whatever rows this one has
    begins_late    true: with `previous`, accept any number for a query without a batch

There may be many pages and keys. The HTTP process passes both as bytes (storage.batches), which are
unpacked in slices between turns; other programs pass them as lists, too.

`list_batches` returns the last batch of every query that the caller may use, of all of them for one
with the tag monitoring or administrator: query, owner, batch, target, pages, page,
frame (what is moved next), rows, bytes, is_done, time_us, waits_for (why it cannot go on, "" if it
can).

`commit_batch` answers when all rows can be read: "committed", or "already done" if the query's last
batch is this one; 409 if it is another; 506 if that takes too long (batches.py). It needs write
permission on the target and on dead_letter_to. The others but `list_batches` are for the query's
owner, administrators, and users who may write to the target of its first batch.

**Leases.** A reader takes messages of a classic queue, then commits or releases them. A lease is
described by name, reader, first (all below is committed), head (after the last that is leased),
ready and ready_bytes (of the queue), bytes (of what is leased), since_ms (when the oldest
uncommitted one was leased), is_old, path, stream_id and last_time_us; numbers are 0 for a reader
that is not known. The description comes when the pages of the lease exist as far as `head`: after
a restart they are written again first.

`owner` is the token of a program that owns the reader while it runs (exactly_once/leases.py), or
null. A call is refused with 405 while another program owns the reader; an operator's without a
token is not. Who may read the queue may lease of it, commit and release.
"""

from collections.abc import Callable
from typing import Final

from penstock.broker import refusals
from penstock.broker.arguments import type_of
from penstock.broker.broker_queue import BrokerQueue, QueueOrStream
from penstock.broker.broker_stream import BrokerStream
from penstock.broker.exactly_once.batch_moves import BatchTarget
from penstock.broker.exactly_once.batches import (
    BatchCommit,
    CommitRequest,
    batch_manager,
    check_owner,
)
from penstock.broker.exactly_once.leases import (
    CommitLease,
    DescribeLease,
    LeaseMessages,
    ReleaseLease,
    lease_manager,
)
from penstock.broker.operations.call import Call, Functions, Rows, Slices, add_rows, listed
from penstock.broker.permissions import WRITE
from penstock.errors import RESOURCE_ERROR, ChannelError
from penstock.operation_json import JsonParts
from penstock.operation_table import U63_MAX, WATCHERS
from penstock.storage.pages.batches import QueryOwner, StagedPage
from penstock.storage.pages.staging import CHECKSUM_MASK

U32_MAX: Final = (1 << 32) - 1
HEX_DIGITS: Final = frozenset("0123456789abcdef")


def _claim_query(call: Call) -> None:
    query, given = call.args.text("query"), call.args.table("target")
    target = BatchTarget.of(given) if given else None
    if target is not None:
        _check_target(call, target)
    owner = QueryOwner(call.identity.name, "" if target is None else target.text())

    def found_owner(found: QueryOwner | None) -> None:
        assert found is not None
        _for_owner(call, query, found, lambda: call.reply(_claimed(call, found, target)))

    batch_manager(call.vhost).claims.claim(query, owner, found_owner, _refuser(call))


def _check_batch_target(call: Call) -> None:
    target = BatchTarget.of(call.args.table("target"))
    _check_target(call, target)
    target.check(call.vhost)
    call.reply({"target": target.facts()})


def _claimed(call: Call, owner: QueryOwner, target: BatchTarget | None) -> dict[str, object]:
    queue = call.vhost.table.find(target.queue) if target is not None and target.queue else None
    partitions = len(queue.parts) if isinstance(queue, BrokerStream) else 1
    return {"owner": owner.user, "partitions": partitions}


def _commit_batch(call: Call) -> None:
    query, batch = call.args.text("query"), call.args.whole("batch")
    given = [_page(call, one) for one in call.args.objects("pages")]
    goal = call.args.table("target")
    packed = call.args.packed("pages")
    has_pages = bool(given or packed)
    target = BatchTarget.of(goal) if has_pages or goal else BatchTarget.nowhere()
    keys = call.args.pairs("mandatory_keys")
    previous = call.args.whole_or_none("previous")
    is_first_kept, begins_late = call.args.flag("keep_first"), call.args.flag("begins_late")
    if previous is not None and not -1 <= previous < batch:
        raise call.args.wrong("previous", f"given {previous}, expected -1 to {batch - 1}")
    _check_target(call, target)
    pages = [page for page, _ in given]
    asked = BatchCommit(
        query, batch, target, pages, sum([page.rows for page in pages]),
        sum([checksum for _, checksum in given]) & CHECKSUM_MASK, keys, previous, is_first_kept,
        begins_late,
    )  # fmt: skip
    manager = batch_manager(call.vhost)
    known = manager.claims.known(query)
    if known is not None:
        check_owner(call.identity, known, query, call.vhost.name)
    packed_keys = call.args.packed("mandatory_keys")
    manager.commit(CommitRequest(manager, asked, call.identity, call.reply, packed, packed_keys))


def _check_target(call: Call, target: BatchTarget) -> None:
    """Raise ChannelError 403 unless the caller may write to all of the target."""
    for queue in (target.queue, target.dead_letter_to):
        if queue:
            call.check(WRITE, "queue", queue)
    for exchange in target.exchanges:
        call.check(WRITE, "exchange", exchange)
        if not call.identity.may_write_every_topic(exchange):
            raise refusals.access_refused(
                f"batches to exchange '{exchange}' in vhost '{call.vhost.name}' refused for user "
                f"'{call.identity.name}': its topic permissions do not allow every routing key"
            )


def _for_owner(
    call: Call, query: str, owner: QueryOwner, work: Callable[[], None]
) -> None:  # fmt: skip
    """Call `work`, which replies, if the query is the caller's; else reply with a 403. It runs in a
    turn or at a worker's end, so errors are answers and never raised."""
    try:
        check_owner(call.identity, owner, query, call.vhost.name)
        work()
    except Exception as error:  # noqa: BLE001 - it is answered or raised
        call.fail(error)
    call.vhost.dispatch.schedule()


def _refuser(call: Call) -> Callable[[BaseException], None]:
    def failed(error: BaseException) -> None:
        call.reply(ChannelError(RESOURCE_ERROR, f"the owner of the query cannot be read: {error}"))
        call.vhost.dispatch.schedule()

    return failed


def _with_owner(
    call: Call, query: str, work: Callable[[], None], nobody: dict[str, object]
) -> None:  # fmt: skip
    """Call `work` if the query is the caller's, now or once its owner was read from disk. nobody:
    the answer if nobody has staged for it and the caller is not an administrator."""
    claims = batch_manager(call.vhost).claims

    def found_owner(found: QueryOwner | None) -> None:
        if found is not None or call.identity.is_administrator:
            _for_owner(call, query, found or QueryOwner("", ""), work)
        else:
            call.reply(nobody)
            call.vhost.dispatch.schedule()

    known = claims.known(query)
    if known is not None:
        found_owner(known)
    else:
        claims.read_owner(query, found_owner, _refuser(call))


def _page(call: Call, given: dict[str, object]) -> tuple[StagedPage, int]:
    """Return a page and the checksum of its rows. ChannelError 406."""
    match given:
        case {
            "name": str(name), "page_id": str(id), "rows": int(rows), "bytes": int(size),
            "checksum": str(checksum),
        }:  # fmt: skip
            is_right = _is_hex(id) and _is_hex(checksum) and int(checksum, 16) <= CHECKSUM_MASK
            if is_right and 0 < rows <= U32_MAX and 0 < size <= U32_MAX:
                return StagedPage(name, int(id, 16), rows, size), int(checksum, 16)
    raise call.args.wrong(
        "pages",
        f"given {str(given)[:200]}, expected name, page_id (16 hex digits), rows, bytes and "
        "checksum (16 hex digits), as staging answered them",
    )


def _is_hex(text: str) -> bool:
    return len(text) == 16 and HEX_DIGITS.issuperset(text)


def _abort_batch(call: Call) -> None:
    query, batch = call.args.text("query"), call.args.whole("batch")
    manager = batch_manager(call.vhost)
    _with_owner(call, query, lambda: call.reply({"aborted": manager.abort(query, batch)}),
        {"aborted": False},
    )  # fmt: skip


def _release_query(call: Call) -> None:
    query, is_forced = call.args.text("query"), call.args.flag("force")

    def release() -> None:
        found = batch_manager(call.vhost).release(query, is_forced=is_forced)
        lsn = 0 if found["batch"] is None else call.vhost.engine.log.last_lsn
        call.settled(lsn, found)

    _with_owner(call, query, release, {"batch": None})


def _list_batches(call: Call) -> None:
    sees_all = call.is_operator or call.identity.tags.intersection(WATCHERS)
    user = None if sees_all else call.identity
    call.in_slices(listed(call, batch_manager(call.vhost).all(user)))


# ---- leases --------------------------------------------------------------------------------------


def _lease_queue(call: Call) -> None:
    messages, size = call.args.whole_or_none("messages"), call.args.whole_or_none("bytes")
    queue, reader = _owned_reader(call)
    leases = lease_manager(call.vhost)
    leases.readers.admit((queue, reader), call.identity.name)
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
    "claim_query": _claim_query,
    "check_target": _check_batch_target,
    "commit_batch": _commit_batch,
    "abort_batch": _abort_batch,
    "release_query": _release_query,
    "list_batches": _list_batches,
    "lease_queue": _lease_queue,
    "describe_lease": _describe_lease,
    "commit_lease": _commit_lease,
    "release_lease": _release_lease,
    "own_lease": _own_lease,
    "disown_lease": _disown_lease,
    "list_leases": lambda call: call.in_slices(listed(call, _leases(call))),
    "describe_queue": _describe_queue,
}
