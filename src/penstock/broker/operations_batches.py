"""Operations on batches: what the exactly-once sink has staged is committed, to its target.

    commit_batch   query, batch, target, pages, mandatory_keys   {status, batch}
    abort_batch    query, batch                                  {aborted}: false if it was decided
    release_query  query, force                                  {batch}: forgotten, null for none
    list_batches                                                 [row], the last of every query

    target         {"queue": name} or {"exchanges": [names]}, perhaps "dead_letter_to": name
    pages          [{name, page_id (16 hex digits), rows, bytes}], as staging answered them
    mandatory_keys [[exchange, routing key]] that must lead to a queue, or null
    row            query, batch, target, pages, page, frame (what comes next), rows, bytes, is_done,
                   time_us, waits_for (why it cannot go on, "" if it can)

`commit_batch` answers when the decision is durable: "committed", or "already done" for a batch that
is not newer than the last one of the query. It needs write on the target and on dead_letter_to;
what else is here is for administrators, for a query belongs to nobody.

Not here: how a batch is decided and swept (batch_desk.py), how it moves (batch_moves.py), how
pages are staged (penstock.http).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.batch_desk import CommitCall, batch_desk
from penstock.broker.batch_target import BatchTarget
from penstock.broker.operation_args import OperationArgs, Reply, refused
from penstock.storage.batches import StagedPage

if TYPE_CHECKING:
    from penstock.broker.operations import Caller

WRITE: Final = "write"
ADMINISTRATORS: Final = ("administrator",)
WATCHERS: Final = ("monitoring", "administrator")
QUERY_BYTES_MAX: Final = 255
BATCH_MAX: Final = (1 << 63) - 1
U32_MAX: Final = (1 << 32) - 1
HEX_DIGITS: Final = frozenset("0123456789abcdef")


def commit_batch(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{status, batch}."""
    query, batch = _query(args), args.whole("batch", None, 0, BATCH_MAX)
    target = BatchTarget.of(args.table("target"))
    pages = [_page(args, one) for one in args.objects("pages")]
    keys = args.pairs("mandatory_keys")
    args.done()
    for queue in (target.queue, target.dead_letter_to):
        if queue:
            caller.check(WRITE, "queue", queue)
    for exchange in target.exchanges:
        caller.check(WRITE, "exchange", exchange)
    desk = batch_desk(caller.vhost)
    desk.commit(CommitCall(desk, query, batch, target, pages, keys, reply))


def _query(args: OperationArgs) -> str:
    query = args.text("query")
    if not 0 < len(query.encode("utf-8", "replace")) <= QUERY_BYTES_MAX or "\0" in query:
        raise refused(f"{args.op}: argument 'query': expected 1 to {QUERY_BYTES_MAX} bytes")
    return query


def _page(args: OperationArgs, given: dict[str, object]) -> StagedPage:
    match given:
        case {"name": str(name), "page_id": str(id), "rows": int(rows), "bytes": int(size)}:
            is_right = len(id) == 16 and HEX_DIGITS.issuperset(id)
            if is_right and 0 < rows <= U32_MAX and 0 < size <= U32_MAX:
                return StagedPage(name, int(id, 16), rows, size)
    raise refused(
        f"{args.op}: argument 'pages': given {str(given)[:200]}, expected name, page_id (16 hex "
        "digits), rows and bytes, as staging answered them"
    )


def abort_batch(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{aborted}."""
    caller.check_tags(args.op, ADMINISTRATORS)
    query, batch = _query(args), args.whole("batch", None, 0, BATCH_MAX)
    args.done()
    reply({"aborted": batch_desk(caller.vhost).abort(query, batch)})


def release_query(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{batch}."""
    caller.check_tags(args.op, ADMINISTRATORS)
    query, is_forced = _query(args), args.flag("force")
    args.done()
    vhost = caller.vhost
    found = batch_desk(vhost).release(query, is_forced=is_forced)
    vhost.dispatch.be_due()
    if found["batch"] is None:
        reply(found)
    else:
        vhost.when_settled(vhost.engine.last_lsn, vhost.mode, lambda: reply(found))


def list_batches(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """[row]."""
    caller.check_tags(args.op, WATCHERS)
    args.done()
    reply(batch_desk(caller.vhost).all())


OPERATIONS: Final[dict[str, Callable[["Caller", OperationArgs, Reply], None]]] = {
    "commit_batch": commit_batch,
    "abort_batch": abort_batch,
    "release_query": release_query,
    "list_batches": list_batches,
}
