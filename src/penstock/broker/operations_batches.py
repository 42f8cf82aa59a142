"""Operations on batches: what the exactly-once sink has staged is committed, to its target.

    claim_query    query, target                                 {owner}: the user may stage for it
    commit_batch   query, batch, target, pages, mandatory_keys, previous, keep_first
                                                                 {status, batch}
    abort_batch    query, batch                                  {aborted}: false if it was decided
    release_query  query, force                                  {batch}: forgotten, null for none
    list_batches                                                 [row], the last of every query

    target         {"queue": name} or {"exchanges": [names]}, perhaps "dead_letter_to": name; {} or
                   null if there are no pages and rows name their exchanges
    pages          [{name, page_id (16 hex digits), rows, bytes, checksum (16 hex digits)}], as
                   staging answered them; none only together with `previous`
    mandatory_keys [[exchange, routing key]] that must lead to a queue, or null
    previous       number of the batch before, -1 for none, from a sink that reports every batch,
                   also those without rows; null: it does not
    keep_first     true: a batch of this number that was decided counts, whatever rows this one has
    row            query, owner, batch, target, pages, page, frame (what comes next), rows, bytes,
                   is_done, time_us, waits_for (why it cannot go on, "" if it can)

`commit_batch` answers when the decision is durable: "committed", or "already done" if the query's
last batch is this one; 409 if it is another (batch_claims.py). It needs write on the target and on
dead_letter_to. All but `list_batches`, which is for watchers, need to be the query's owner, an
administrator, or to have write on the target of its first batch (batch_claims.py).

Not here: how a batch is decided and swept (batch_desk.py), how it moves (batch_moves.py), how
pages are staged (penstock.http).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.broker.batch_claims import BatchCommit, check_owner
from penstock.broker.batch_desk import CommitCall, batch_desk
from penstock.broker.batch_target import BatchTarget
from penstock.broker.operation_args import OperationArgs, Reply, refused
from penstock.broker.operations_messages import answer_when_settled, error_of
from penstock.errors import RESOURCE_ERROR, ChannelError
from penstock.storage.batches import QueryOwner, StagedPage
from penstock.storage.staged_frames import CHECKSUM_MASK

if TYPE_CHECKING:
    from penstock.broker.operations import Caller

WRITE: Final = "write"
WATCHERS: Final = ("monitoring", "administrator")
QUERY_BYTES_MAX: Final = 255
BATCH_MAX: Final = (1 << 63) - 1
U32_MAX: Final = (1 << 32) - 1
HEX_DIGITS: Final = frozenset("0123456789abcdef")


def claim_query(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{owner}: the query belongs to the caller, who was the first to stage for it, or the caller
    may use it; that is durable. target: {} if it is not known yet."""
    query, told = _query(args), args.table("target")
    args.done()
    target = BatchTarget.of(told) if told else None
    if target is not None:
        _check_target(caller, target)
    owner = QueryOwner(caller.identity.name, "" if target is None else target.text())
    vhost = caller.vhost

    def looked(found: QueryOwner | None) -> None:
        assert found is not None
        _for_owner(caller, query, found, reply, lambda: reply({"owner": found.user}))

    batch_desk(vhost).claims.claim(query, owner, looked, _refuser(caller, reply))


def commit_batch(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{status, batch}."""
    query, batch = _query(args), args.whole("batch", None, 0, BATCH_MAX)
    told = [_page(args, one) for one in args.objects("pages")]
    goal = args.table("target")
    target = BatchTarget.of(goal) if told or goal else BatchTarget.nowhere()
    keys = args.pairs("mandatory_keys")
    previous = args.whole_or_none("previous")
    is_first_kept = args.flag("keep_first")
    args.done()
    if previous is not None and not -1 <= previous < batch:
        raise refused(
            f"{args.op}: argument 'previous': given {previous}, expected -1 to {batch - 1}"
        )
    _check_target(caller, target)
    pages = [page for page, _ in told]
    asked = BatchCommit(
        query, batch, target, pages, sum([page.rows for page in pages]),
        sum([checksum for _, checksum in told]) & CHECKSUM_MASK, keys, previous, is_first_kept,
    )  # fmt: skip
    desk = batch_desk(caller.vhost)
    known = desk.claims.known(query)
    if known is not None:
        check_owner(caller.identity, known, query, caller.vhost.name)
    desk.commit(CommitCall(desk, asked, caller.identity, reply))


def _check_target(caller: "Caller", target: BatchTarget) -> None:
    """ChannelError 403 unless the caller may write to all of it."""
    for queue in (target.queue, target.dead_letter_to):
        if queue:
            caller.check(WRITE, "queue", queue)
    for exchange in target.exchanges:
        caller.check(WRITE, "exchange", exchange)


def _for_owner(
    caller: "Caller", query: str, owner: QueryOwner, reply: Reply, work: Callable[[], None]
) -> None:  # fmt: skip
    """Do the work, which replies, if the query is the caller's; else reply with a 403. Called from
    a turn or from a worker's end, so what is wrong is an answer, and never raised."""
    vhost = caller.vhost
    try:
        check_owner(caller.identity, owner, query, vhost.name)
        work()
    except Exception as error:
        told = error_of(error)
        if told is None or vhost.engine.failed is not None:
            raise
        reply(told)
    vhost.dispatch.be_due()


def _refuser(caller: "Caller", reply: Reply) -> Callable[[BaseException], None]:
    def failed(error: BaseException) -> None:
        reply(ChannelError(RESOURCE_ERROR, f"the owner of the query cannot be read: {error}"))
        caller.vhost.dispatch.be_due()

    return failed


def _look(
    caller: "Caller", query: str, reply: Reply, work: Callable[[], None], nobody: dict[str, object]
) -> None:  # fmt: skip
    """Do the work if the query is the caller's, now or later; nobody: the answer if nobody has
    staged for it and the caller is no administrator."""
    claims = batch_desk(caller.vhost).claims

    def looked(found: QueryOwner | None) -> None:
        if found is not None or caller.identity.is_administrator:
            _for_owner(caller, query, found or QueryOwner("", ""), reply, work)
        else:
            reply(nobody)
            caller.vhost.dispatch.be_due()

    known = claims.known(query)
    if known is not None:
        looked(known)
    else:
        claims.look(query, looked, _refuser(caller, reply))


def _query(args: OperationArgs) -> str:
    query = args.text("query")
    try:
        is_right = 0 < len(query.encode()) <= QUERY_BYTES_MAX and "\0" not in query
    except UnicodeEncodeError:
        is_right = False
    if not is_right:
        expected = f"expected 1 to {QUERY_BYTES_MAX} bytes of UTF-8"
        raise refused(f"{args.op}: argument 'query': {expected}")
    return query


def _page(args: OperationArgs, given: dict[str, object]) -> tuple[StagedPage, int]:
    """A page and the checksum of its rows."""
    match given:
        case {
            "name": str(name), "page_id": str(id), "rows": int(rows), "bytes": int(size),
            "checksum": str(checksum),
        }:  # fmt: skip
            is_right = _is_hex(id) and _is_hex(checksum) and int(checksum, 16) <= CHECKSUM_MASK
            if is_right and 0 < rows <= U32_MAX and 0 < size <= U32_MAX:
                return StagedPage(name, int(id, 16), rows, size), int(checksum, 16)
    raise refused(
        f"{args.op}: argument 'pages': given {str(given)[:200]}, expected name, page_id (16 hex "
        "digits), rows, bytes and checksum (16 hex digits), as staging answered them"
    )


def _is_hex(text: str) -> bool:
    return len(text) == 16 and HEX_DIGITS.issuperset(text)


def abort_batch(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{aborted}."""
    query, batch = _query(args), args.whole("batch", None, 0, BATCH_MAX)
    args.done()
    desk = batch_desk(caller.vhost)
    _look(
        caller, query, reply, lambda: reply({"aborted": desk.abort(query, batch)}),
        {"aborted": False},
    )  # fmt: skip


def release_query(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """{batch}."""
    query, is_forced = _query(args), args.flag("force")
    args.done()
    vhost = caller.vhost

    def release() -> None:
        found = batch_desk(vhost).release(query, is_forced=is_forced)
        lsn = 0 if found["batch"] is None else vhost.engine.last_lsn
        answer_when_settled(vhost, lsn, found, reply)

    _look(caller, query, reply, release, {"batch": None})


def list_batches(caller: "Caller", args: OperationArgs, reply: Reply) -> None:
    """[row]."""
    caller.check_tags(args.op, WATCHERS)
    args.done()
    reply(batch_desk(caller.vhost).all())


OPERATIONS: Final[dict[str, Callable[["Caller", OperationArgs, Reply], None]]] = {
    "claim_query": claim_query,
    "commit_batch": commit_batch,
    "abort_batch": abort_batch,
    "release_query": release_query,
    "list_batches": list_batches,
}
