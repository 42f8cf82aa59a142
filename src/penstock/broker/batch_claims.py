"""Batch claims: whose a query of the exactly-once sink is, and whether a commit was done already.

**Owners.** A query belongs to the user who staged or committed for it first, with the target of
that. Only this user, users who may write to that target, and administrators stage, commit, abort
and release for it; others get a 403, and nothing changes. Before the first batch is decided the
owner stands in a file beside the staged pages (staging.py), afterwards in the record of the last
batch. A batch that a version without owners decided belongs to whoever may write to its target.

**Repeated commits.** Spark commits a batch again when it does not know what became of the first
commit. That is answered "already done" if the batch is the same: its number is that of the query's
last batch, its target is, and so are the number and the checksum of its rows; partitions, order and
attempts may differ. Everything else is a ChannelError 409 (`CONFLICT`), and nothing is written:

    same number, other rows or target    two jobs share a queryId; a checkpoint was deleted, copied
    a smaller number                     the same, or a checkpoint was restored from an older copy
    a number behind a gap                batches of a sink that reports each one (`previous`) are
                                         missing: the broker was restored from an older backup
    a number far ahead                   no query of Spark's

A batch that a version without checksums decided is compared by number and target only.

Not here: waiting and deciding (batch_desk.py), the format of the record (penstock.storage.batches).
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.access.permissions import Identity
from penstock.broker.batch_target import BatchTarget
from penstock.broker.operation_args import refused
from penstock.broker.refusals import access_refused
from penstock.errors import CONFLICT, ChannelError
from penstock.storage import staging
from penstock.storage.batches import Batch, BatchFacts, QueryOwner, StagedPage

if TYPE_CHECKING:
    from penstock.broker.vhost import VHost

JUMP_MAX: Final = 1 << 20
FIRST_NUMBER_MAX: Final = 1 << 40
REMEMBERED_MAX: Final = 1000

Looked = Callable[[QueryOwner | None], None]
Failed = Callable[[BaseException], None]


class BatchCommit(NamedTuple):
    """What a commit asks for. rows, checksum: of all pages. keys: (exchange, routing key) that must
    lead to a queue. previous: the number of the batch before, if the sink reports each batch, also
    those without rows; -1: there is none; None: it does not. is_first_kept: a batch with this
    number that was decided counts, whatever rows this one has."""

    query: str
    number: int
    target: BatchTarget
    pages: list[StagedPage]
    rows: int
    checksum: int
    keys: list[tuple[str, str]]
    previous: int | None = None
    is_first_kept: bool = False

    def facts(self, owner: QueryOwner) -> BatchFacts:
        """For its decision."""
        return BatchFacts(owner, self.rows, self.checksum, self.previous is not None)


# ---- owners --------------------------------------------------------------------------------------


def owner_of(batch: Batch) -> QueryOwner:
    """Whose query this is the last batch of."""
    return QueryOwner("", batch.target) if batch.facts is None else batch.facts.owner


def may_use(identity: Identity, owner: QueryOwner) -> bool:
    """Whether the user may stage, commit, abort and release for a query of this owner."""
    if identity.is_administrator or (owner.user and identity.name == owner.user):
        return True
    if not owner.target:
        return False
    try:
        return BatchTarget.from_text(owner.target).is_writable(identity)
    except ValueError:
        return False


def check_owner(identity: Identity, owner: QueryOwner, query: str, vhost: str) -> None:
    """ChannelError 403 unless `may_use`."""
    if not may_use(identity, owner):
        whose = f"belongs to user '{owner.user}'" if owner.user else "writes to another target"
        raise access_refused(
            f"query '{query}' in vhost '{vhost}' {whose}: user '{identity.name}' needs write "
            "permission on its target, or another queryId"
        )


class QueryClaims:
    """The owners of a vhost's queries; one per BatchDesk."""

    def __init__(self, vhost: "VHost") -> None:
        self._vhost: VHost = vhost
        self._staged: dict[str, QueryOwner] = {}  # of queries without a batch

    def known(self, query: str) -> QueryOwner | None:
        """The owner, if no file must be read to know it."""
        batch = self._vhost.engine.batches.batch(query)
        return self._staged.get(query) if batch is None else owner_of(batch)

    def look(self, query: str, looked: Looked, failed: Failed) -> None:
        """Have the file of staged pages read, in a worker; looked(None): nobody has staged."""
        engine = self._vhost.engine
        fs, path = engine.fs, engine.path

        def done(found: object) -> None:
            assert found is None or isinstance(found, QueryOwner)
            looked(found)

        engine.submit(lambda: staging.read_owner(fs, path, query), done, failed)

    def claim(self, query: str, owner: QueryOwner, looked: Looked, failed: Failed) -> None:
        """Have the query belong to this owner if it belongs to nobody; looked: told whose it is,
        durably."""
        known = self.known(query)
        if known is not None:
            looked(known)
            return
        engine = self._vhost.engine
        fs, path = engine.fs, engine.path

        def done(found: object) -> None:
            assert isinstance(found, QueryOwner)
            if len(self._staged) >= REMEMBERED_MAX:
                self._staged.clear()
            self._staged[query] = found
            looked(found)

        engine.submit(lambda: staging.claim(fs, path, query, owner), done, failed)

    def forget(self, query: str) -> None:
        """It is over."""
        self._staged.pop(query, None)

    def swept(self) -> None:
        """Files went."""
        self._staged.clear()


# ---- repeated commits ----------------------------------------------------------------------------


def is_repeated(last: Batch | None, asked: BatchCommit) -> bool:
    """Whether the commit is of the query's last batch, which is decided. False: it is to be
    decided. ChannelError 406: it cannot be; 409: the batch is another one, see this module's head.
    """
    if last is not None and asked.number == last.number:
        _check_same(last, asked)
        return True
    if last is not None and asked.number < last.number:
        raise _conflict(
            f"{_said(asked)} is older than the last one, {_told(last)}, and whether its rows were "
            "written is not known any more. Either two jobs use this queryId, or the job's "
            "checkpoint was deleted, or restored from an older copy.",
            asked.query,
        )
    _check_gap(last, asked)
    if not asked.pages and asked.previous is None:
        raise refused(f"commit_batch: {_said(asked)} has no pages")
    return False


def _check_same(last: Batch, asked: BatchCommit) -> None:
    """ChannelError 409 unless it is the same batch."""
    is_same = asked.target.is_same_place(last.target)
    if is_same and last.facts is not None and not asked.is_first_kept:
        is_same = (last.facts.rows, last.facts.checksum) == (asked.rows, asked.checksum)
    if not is_same:
        raise _conflict(
            f"{_said(asked)} is not the batch of this number that was decided, {_told(last)}. "
            "Either two jobs use this queryId, or the job's checkpoint was deleted, copied or "
            "restored from an older copy, or its rows come out differently when it does a batch "
            "again.",
            asked.query,
        )


def _check_gap(last: Batch | None, asked: BatchCommit) -> None:
    """ChannelError 409 if batches before this one are missing, 406 if it is too far ahead."""
    known = -1 if last is None else last.number
    most = FIRST_NUMBER_MAX if last is None else last.number + JUMP_MAX
    if asked.number > most:
        raise refused(
            f"commit_batch: batch {asked.number} of query '{asked.query}': the last one is "
            f"{known}, expected a number up to {most}"
        )
    is_gapless = last is None or (last.facts is not None and last.facts.is_gapless)
    if asked.previous is None or asked.previous == known or not is_gapless:
        return
    there = "no batch of this query" if last is None else f"{_told(last)}, and none after it"
    missing = f"batch {known + 1} is" if known + 1 == asked.previous else (
        f"batches {known + 1} to {asked.previous} are"
    )  # fmt: skip
    raise ChannelError(
        CONFLICT,
        f"{_said(asked)} follows batch {asked.previous}, but this broker knows {there}: {missing} "
        "missing here. Either the broker was restored from a backup that is older than the job's "
        "checkpoint, or the query was released. Nothing was written. Start the job with a new "
        "checkpoint to write them again, or once with the option failOnDataLoss=false to go on "
        "without them",
    )


def _conflict(text: str, query: str) -> ChannelError:
    return ChannelError(
        CONFLICT,
        f"{text} Nothing was written. Give the job a queryId of its own (a stream: a new "
        f"checkpoint), or, if the other job is over: penstock release_query '{query}'",
    )


def _said(asked: BatchCommit) -> str:
    return (
        f"batch {asked.number} of query '{asked.query}' ({asked.rows} rows with checksum "
        f"{asked.checksum:016x} for {asked.target.called()})"
    )


def _told(last: Batch) -> str:
    """Of the batch that was decided."""
    at = datetime.fromtimestamp(last.time_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    try:
        target = BatchTarget.from_text(last.target).called()
    except ValueError:
        target = last.target
    rows, checksum = last.rows, "an unknown checksum"
    if last.facts is not None:
        rows, checksum = last.facts.rows, f"checksum {last.facts.checksum:016x}"
    return f"batch {last.number} of {at} ({rows} rows with {checksum} for {target})"
