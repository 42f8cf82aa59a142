"""Batches of the exactly-once sink: whose a query is, commits, and sweeping.

    commit    waits until the batch before it of the same query is done, checks the target and the
              keys that must lead to a queue, and then decides: one record of the log
    move      from the decision on, also after a restart, until the batch is done (batch_moves.py)
    answer    when the decision is durable and all of it can be read: the last record of the move is
              settled, and the heads of its streams have moved over it. So whoever reads after the
              commit sees all rows
    release   the query is over: its last batch is forgotten

Commits of one query are done one after the other. A commit without an answer after WAIT_S is
refused (506) with how far the batch before it, or its own, has come. It is to be tried again: if it
was not decided, it has changed nothing; if it was, the same commit waits for its move again, and
its answer is "already done".

**Owners.** A query belongs to the user who staged or committed for it first, with the target of
that. Only this user, users who may write to that target, and administrators may stage, commit,
abort and release for it; others get a 403, and nothing changes. Before the first batch is decided
the owner is in a file beside the staged pages (staging.py), afterwards in the record of the last
batch. A batch that a version without owners decided belongs to every user who may write to its
target.

**Repeated commits.** Spark commits a batch again when it does not know the outcome of the first
commit. The answer is "already done" if the batch is the same: its number is that of the query's
last batch, and target, number of rows and checksum are equal; partitions, order and attempts may
differ. Everything else is a ChannelError 409 (`CONFLICT`), and nothing is written:

    same number, other rows or target    two jobs share a queryId; a checkpoint was deleted, copied
    a smaller number                     the same, or a checkpoint was restored from an older copy
    a number after a gap                 batches of a sink that reports each one (`previous`) are
                                         missing: the broker was restored from an older backup. A
                                         query that nobody knows may begin late (`begins_late`)
    a number far ahead                   not a query of Spark's

A batch that a version without checksums decided is compared by number and target only.

**Sweeping.** Staged files that no decided batch names are deleted when they are older than
staging_timeout_s: files of tasks that died, of batches that were never committed. A query that is
used once ("job-...", of a batch write) is forgotten when its batch is done and as old. This happens
with the first tick, and every hour.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import takewhile
from typing import Final, NamedTuple

from penstock.access.permissions import Identity, everything
from penstock.broker.background_tasks import AGAIN, ASLEEP, DONE, BackgroundTask
from penstock.broker.dispatch import Reply
from penstock.broker.exactly_once.batch_moves import BatchMove, BatchTarget, StreamClaims
from penstock.broker.refusals import access_refused, precondition_failed
from penstock.broker.vhost import VHost
from penstock.counts import LONG_S, Histogram
from penstock.errors import (
    CONFLICT,
    INTERNAL_ERROR,
    NO_ROUTE,
    RESOURCE_ERROR,
    AMQPError,
    ChannelError,
    CorruptionError,
    PenstockError,
)
from penstock.options import format_bytes
from penstock.routing.exchange_types import Asked
from penstock.routing.router import Way
from penstock.storage.files.durability import DISK
from penstock.storage.pages import staging
from penstock.storage.pages.batches import (
    Batch,
    BatchFacts,
    QueryOwner,
    StagedPage,
    unpack_keys,
    unpack_pages,
)
from penstock.storage.pages.streams import StoredStream

JUMP_MAX: Final = 1 << 20
FIRST_NUMBER_MAX: Final = 1 << 40
REMEMBERED_MAX: Final = 1000
QUERIES_MAX: Final = 20_000  # of a vhost, with a batch
USER_QUERIES_MAX: Final = 5_000  # of one owner
CLAIMS_MAX: Final = 20_000  # of one user between two sweeps
RELEASED_MAX: Final = 20  # queries of a batch write, by one tick
USER_WAITING_BYTES_MAX: Final = 16 << 20  # of commits that wait, unless there is one alone
REQUEST_BYTES: Final = 3000  # of a commit
PAGE_BYTES: Final = 300  # of a page in it, unpacked
KEY_BYTES: Final = 200
PACKED_FACTOR: Final = 5

Looked = Callable[[QueryOwner | None], None]
Failed = Callable[[BaseException], None]


class BatchCommit(NamedTuple):
    """What a commit asks for. rows, checksum: of all pages. keys: (exchange, routing key) that must
    lead to a queue. previous: the number of the batch before, if the sink reports each batch, also
    those without rows; -1: there is none; None: the sink does not report them. is_first_kept:
    accept a batch with this number that was decided, whatever rows this one has. begins_late: the
    query may begin here with a number above 0."""

    query: str
    number: int
    target: BatchTarget
    pages: list[StagedPage]
    rows: int
    checksum: int
    keys: list[tuple[str, str]]
    previous: int | None = None
    is_first_kept: bool = False
    begins_late: bool = False

    def facts(self, owner: QueryOwner) -> BatchFacts:
        """Return the facts for its decision."""
        return BatchFacts(owner, self.rows, self.checksum, self.previous is not None)


# ---- owners --------------------------------------------------------------------------------------


def owner_of(batch: Batch) -> QueryOwner:
    """Return the owner of the query of which this is the last batch."""
    return QueryOwner("", batch.target) if batch.facts is None else batch.facts.owner


def may_use(identity: Identity, owner: QueryOwner) -> bool:
    """Return whether the user may stage, commit, abort and release for a query of this owner."""
    if identity.is_administrator or (owner.user and identity.name == owner.user):
        return True
    if not owner.target:
        return False
    try:
        return BatchTarget.from_text(owner.target).is_writable(identity)
    except ValueError:
        return False


def check_owner(identity: Identity, owner: QueryOwner, query: str, vhost: str) -> None:
    """Raise ChannelError 403 unless `may_use`."""
    if not may_use(identity, owner):
        whose = f"belongs to user '{owner.user}'" if owner.user else "writes to another target"
        raise access_refused(
            f"query '{query}' in vhost '{vhost}' {whose}: user '{identity.name}' needs write "
            "permission on its target, or another queryId"
        )


class QueryClaims:
    """The owners of a vhost's queries; one per BatchManager."""

    def __init__(self, vhost: VHost) -> None:
        self._vhost: VHost = vhost
        self._staged: dict[str, QueryOwner] = {}  # of queries without a batch
        self._claims: Counter[str] = Counter()  # by user, since the last sweep

    def known(self, query: str) -> QueryOwner | None:
        """Return the owner, if no file must be read to know it."""
        batch = self._vhost.engine.batches.batch(query)
        return self._staged.get(query) if batch is None else owner_of(batch)

    def read_owner(self, query: str, looked: Looked, failed: Failed) -> None:
        """Read the file of the owner in a worker; call looked(owner), None if nobody has staged."""
        engine = self._vhost.engine
        fs, path = engine.fs, engine.path

        def done(found: object) -> None:
            assert found is None or isinstance(found, QueryOwner)
            looked(found)

        engine.journal.submit(lambda: staging.read_owner(fs, path, query), done, failed)

    def claim(self, query: str, owner: QueryOwner, looked: Looked, failed: Failed) -> None:
        """Make the owner own the query if nobody does; call looked with the owner, durably.
        ChannelError 506: this user has claimed too many."""
        known = self.known(query)
        if known is not None:
            looked(known)
            return
        if self._claims[owner.user] >= CLAIMS_MAX:
            raise ChannelError(
                RESOURCE_ERROR,
                f"user '{owner.user}' has claimed {CLAIMS_MAX} queries within an hour, which is "
                "the most: use one queryId again and again",
            )
        self._claims[owner.user] += 1
        engine = self._vhost.engine
        fs, path = engine.fs, engine.path

        def done(found: object) -> None:
            assert isinstance(found, QueryOwner)
            if len(self._staged) >= REMEMBERED_MAX:
                self._staged.clear()
            self._staged[query] = found
            looked(found)

        engine.journal.submit(lambda: staging.claim(fs, path, query, owner), done, failed)

    def forget(self, query: str) -> None:
        """Forget a query that is over."""
        self._staged.pop(query, None)

    def swept(self) -> None:
        """Forget all, after files were deleted."""
        self._staged.clear()
        self._claims.clear()


# ---- repeated commits ----------------------------------------------------------------------------


def is_repeated(last: Batch | None, asked: BatchCommit) -> bool:
    """Return whether the commit is of the query's last batch, which is decided; False: it is to be
    decided. ChannelError 406: it cannot be; 409: the batch is another one, see the head of this
    module."""
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
        raise precondition_failed(f"commit_batch: {_said(asked)} has no pages")
    return False


def _check_same(last: Batch, asked: BatchCommit) -> None:
    """Raise ChannelError 409 unless it is the same batch."""
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
    """Raise ChannelError 409 if batches before this one are missing, 406 if it is too far ahead."""
    known = -1 if last is None else last.number
    most = FIRST_NUMBER_MAX if last is None else last.number + JUMP_MAX
    if asked.number > most:
        raise precondition_failed(
            f"commit_batch: batch {asked.number} of query '{asked.query}': the last one is "
            f"{known}, expected a number up to {most}"
        )
    is_gapless = last is None or (last.facts is not None and last.facts.is_gapless)
    if asked.previous is None or asked.previous == known or not is_gapless:
        return
    if last is None and asked.begins_late:
        return
    there = "no batch of this query" if last is None else f"{_told(last)}, and none after it"
    missing = f"batch {known + 1} is" if known + 1 == asked.previous else (
        f"batches {known + 1} to {asked.previous} are"
    )  # fmt: skip
    late = ""
    if last is None:
        late = ", or with beginsLate=true if its queryId is newer than its checkpoint"
    raise ChannelError(
        CONFLICT,
        f"{_said(asked)} follows batch {asked.previous}, but this broker knows {there}: {missing} "
        "missing here. Either the broker was restored from a backup that is older than the job's "
        "checkpoint, or the query was released, or a program with foreachBatch did not write them. "
        "Nothing was written. Start the job with a new checkpoint to write them again, or once "
        "with the option failOnDataLoss=false to go on without them; always with it if the program "
        f"leaves out batches{late}",
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
    """Return in words which batch was decided."""
    at = datetime.fromtimestamp(last.time_us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    try:
        target = BatchTarget.from_text(last.target).called()
    except ValueError:
        target = last.target
    rows, checksum = last.rows, "an unknown checksum"
    if last.facts is not None:
        rows, checksum = last.facts.rows, f"checksum {last.facts.checksum:016x}"
    return f"batch {last.number} of {at} ({rows} rows with {checksum} for {target})"


Info = dict[str, object]

WAIT_S: Final = 30.0
KEYS_SLICE: Final = 256
KEYS_STEPS: Final = 1024  # of their ways: a millisecond or two
PAGES_SLICE: Final = 1024
SWEEP_S: Final = 3600.0
JOB: Final = "job-"

COMMITTED: Final = "committed"
ALREADY: Final = "already done"


class CommitRequest(BackgroundTask):
    """A commit that a user asks for. pages, keys: further ones, packed (storage.batches); they are
    unpacked when its turn has come."""

    def __init__(
        self, manager: "BatchManager", asked: BatchCommit, identity: Identity, reply: Reply,
        pages: bytes = b"", keys: bytes = b"",
    ) -> None:  # fmt: skip
        self.query: str = asked.query
        self._manager = manager
        self._vhost: VHost = manager.vhost
        self._asked = asked
        self._identity = identity
        self._pages = pages
        self._pages_at: int = 0
        self._keys = keys
        self._keys_at: int = 0
        self._owner: QueryOwner | None = None
        self._checked: int = 0
        self._unchecked: deque[tuple[str, str]] = deque()  # keys that are unpacked
        self._exchanges: frozenset[str] = frozenset(asked.target.exchanges)
        self._way: Way | None = None  # of the first of them, if it is long
        self._routed: Asked = Asked([], None)
        self._is_checking: bool = False
        self._is_checked: bool = False
        self._error: BaseException | None = None
        self._status: str = ""  # once it is decided
        self._reply = reply
        self._began_s: float = manager.vhost.clock.monotonic()
        self.is_over: bool = False
        self.user: str = identity.name
        size = PAGE_BYTES * len(asked.pages) + KEY_BYTES * len(asked.keys)
        # About how many bytes of RAM it takes until it is over.
        self.bytes: int = REQUEST_BYTES + size + PACKED_FACTOR * (len(pages) + len(keys))

    @property
    def ends_s(self) -> float:
        """When it has waited for too long, by the monotonic clock."""
        return self._began_s + WAIT_S

    def step(self) -> int:
        if self.is_over:
            return DONE
        if self._status:
            return self._arrive()
        if self._pages_at < len(self._pages):
            self._unpack()
            return AGAIN
        manager, asked = self._manager, self._asked
        last = manager.batch(self.query)
        if last is not None:
            self._take_owner(owner_of(last))
        if is_repeated(last, asked):
            self._status = ALREADY
            manager.repeated += 1
            return self._arrive()
        if last is not None and not last.is_done:
            return ASLEEP  # BatchManager._moved wakes it
        asked.target.check(self._vhost)
        if self._has_keys():
            self._check_keys()
            return AGAIN
        if self._error is not None:
            raise self._error
        if not self._is_checked:
            self._check_pages()
            return ASLEEP
        manager.decide(asked, self._owner or self._first_owner())
        self._status = COMMITTED
        return self._arrive()

    def _arrive(self) -> int:
        """Answer if all of the batch has arrived; otherwise BatchManager wakes it."""
        manager, number = self._manager, self._asked.number
        if not manager.has_arrived(self.query, number):
            return ASLEEP
        answer = {"status": self._status, "batch": number}
        dispatch, reply = self._vhost.dispatch, self._reply
        last, mode = self._vhost.engine.log.last_lsn, self._vhost.mode
        self._over(None)

        def settled() -> None:
            manager.seconds.record(self._vhost.clock.monotonic() - self._began_s)
            reply(answer)

        def decided() -> None:
            dispatch.when_settled(last, mode, settled)

        dispatch.when_settled(manager.decided_lsn(self.query), DISK, decided)
        return DONE

    def _first_owner(self) -> QueryOwner:
        return QueryOwner(self._identity.name, self._first_target())

    def _first_target(self) -> str:
        target = self._asked.target
        return "" if target.is_nowhere else target.text()

    def _take_owner(self, owner: QueryOwner | None) -> None:
        """Set the owner of the query; None: nobody yet. ChannelError 403."""
        if owner is not None:
            check_owner(self._identity, owner, self.query, self._vhost.name)
            self._owner = owner if owner.target else owner._replace(target=self._first_target())

    def _unpack(self) -> None:
        """Unpack some of the pages."""
        asked = self._asked
        some, checksum, self._pages_at = unpack_pages(self._pages, self._pages_at, PAGES_SLICE)
        asked.pages.extend(some)
        rows = asked.rows + sum([page.rows for page in some])
        checksum = (asked.checksum + checksum) & staging.CHECKSUM_MASK
        self._asked = asked._replace(rows=rows, checksum=checksum)

    def _check_pages(self) -> None:
        """Have a worker check all pages."""
        if self._is_checking:
            return
        self._is_checking = True
        engine = self._vhost.engine
        fs, path, asked = engine.fs, engine.path, self._asked

        def look() -> object:
            owner = staging.read_owner(fs, path, asked.query)
            staging.check_pages(fs, path, asked.query, asked.number, asked.pages)
            return owner

        def done(found: object) -> None:
            assert found is None or isinstance(found, QueryOwner)
            self._is_checked = True
            try:
                if self._owner is None:
                    self._take_owner(found)
            except ChannelError as error:
                self._error = error
            self._vhost.background.wake(self)

        def failed(error: BaseException) -> None:
            self._error = error
            self._vhost.background.wake(self)

        engine.journal.submit(look, done, failed)

    def _has_keys(self) -> bool:
        """Return whether keys are left that must lead to a queue."""
        is_packed = self._keys_at < len(self._keys)
        return bool(self._unchecked) or self._checked < len(self._asked.keys) or is_packed

    def _check_keys(self) -> None:
        """Check some of the keys that must lead to a queue: KEYS_STEPS of their ways."""
        unchecked = self._unchecked
        if not unchecked:
            some = self._asked.keys[self._checked : self._checked + KEYS_SLICE]
            self._checked += len(some)
            if not some:
                some, self._keys_at = unpack_keys(self._keys, self._keys_at, KEYS_SLICE)
            if self._asked.target.queue:
                return  # all of it goes there
            unchecked.extend(some)
        routed = self._routed
        routed.steps = KEYS_STEPS
        while unchecked and routed.steps > 0:
            exchange, key = unchecked[0]
            way = self._way
            if way is None:
                if exchange not in self._exchanges:
                    raise precondition_failed(
                        f"commit_batch: mandatory key {key!r} is of exchange '{exchange}', which "
                        "is not among those of the target"
                    )
                way = self._way = Way(self._vhost.router, exchange)
                routed.keys = [key]
            if not way.advance(routed):
                return
            if not way.per_message and not way.queues:
                text = f"no queue gets it: key '{key}', exchange '{exchange}'"
                raise ChannelError(NO_ROUTE, f"{text} in vhost '{self._vhost.name}'")
            self._way = None
            unchecked.popleft()

    def too_late(self) -> None:
        """Refuse the commit: it has waited for too long."""
        if self.is_over:
            return
        last = self._manager.batch(self.query)
        why = "a commit before it has not ended"
        if last is not None and not last.is_done:
            why = f"batch {last.number} is at page {last.page} of {last.page_count}"
            if last.frame:
                why += f", row {last.frame}"
            waits_for = self._manager.waits_for(self.query)
            if waits_for:
                why += f", and waits: {waits_for}"
        elif self._status:
            why = "its rows are there, and wait for the disk or for another batch of their stream"
        state = "is decided, and cannot be read yet" if self._status else "cannot be committed yet"
        text = f"batch {self._asked.number} of query '{self.query}' {state}: {why}"
        self._over(ChannelError(RESOURCE_ERROR, text))

    def failed(self, error: Exception) -> None:
        """End the commit with this error."""
        if isinstance(error, AMQPError):
            self._over(error)
        elif isinstance(error, ValueError | CorruptionError | staging.StagingError):
            self._over(precondition_failed(f"commit_batch: {error}"))
        elif isinstance(error, PenstockError | OSError):
            self._over(ChannelError(RESOURCE_ERROR, str(error)))
        else:
            self._vhost.dispatch.internal_error(f"a commit of query {self.query!r}", error)
            self._over(AMQPError(INTERNAL_ERROR, f"{type(error).__name__}: {error}"))

    def _over(self, error: AMQPError | None) -> None:
        if self.is_over:
            return
        self.is_over = True
        if error is not None:
            self._reply(error)
        self._manager.over(self)


class BatchManager:
    """The batches of one vhost, see `batch_manager`. Batches are moved with an operator's
    permissions; those of users were checked at the commit."""

    def __init__(self, vhost: VHost) -> None:
        self.vhost: VHost = vhost
        self.claims = QueryClaims(vhost)
        # Since the start: batches that were decided, and their rows; commits of a batch that had
        # been; the seconds from each commit to its answer.
        self.committed: int = 0
        self.rows: int = 0
        self.repeated: int = 0
        self.expired: int = 0  # staged pages that were deleted
        self.seconds: Histogram = Histogram(LONG_S)
        self._timeout_s: float = vhost.settings.staging_timeout_s
        self._operator = everything("operator")
        self._lines: dict[str, deque[CommitRequest]] = {}
        self._moves: dict[str, BatchMove] = {}
        self._waiting: dict[CommitRequest, None] = {}  # commits that are not over, the oldest first
        self._waiting_bytes: Counter[str] = Counter()  # of these, by user
        self._is_watching: bool = False
        self._decided: dict[str, int] = {}  # LSNs of decisions of this life
        self._owned: Counter[str] = Counter()  # queries with a batch, by the owner's name
        self._queries: int = 0  # with a batch
        for batch in vhost.engine.batches.all():
            self._count(owner_of(batch), 1)
        self._over: deque[str] = deque()  # queries of batch writes that a sweep has found
        self._ends: dict[
            str, dict[StoredStream, int]
        ] = {}  # by query: ends that heads have not reached
        self._swept_s: float = float("-inf")
        self._stream_claims = StreamClaims()
        rolling = vhost.engine.batches.rolling()
        for batch in sorted(rolling, key=_is_not_begun):  # what holds a head goes first
            self._move(batch.query)
        vhost.streams.on_head = self._heads_moved
        vhost.on_tick.append(self.tick)

    def batch(self, query: str) -> Batch | None:
        """Return the last batch of this query that was decided."""
        return self.vhost.engine.batches.batch(query)

    def waits_for(self, query: str) -> str:
        """Return why its batch cannot continue; "" if it does, or is done."""
        move = self._moves.get(query)
        return "" if move is None else move.waits_for

    def waiting(self) -> int:
        """Return how many batches cannot continue."""
        return sum(1 for move in self._moves.values() if move.waits_for)

    # ---- commits -------------------------------------------------------------------------------

    def commit(self, call: CommitRequest) -> None:
        """Queue a commit; it begins when those before it of that query have ended. ChannelError
        506: too much of this user waits."""
        held = self._waiting_bytes[call.user]
        if held and held + call.bytes > USER_WAITING_BYTES_MAX:
            raise ChannelError(
                RESOURCE_ERROR,
                f"commits of user '{call.user}' that wait take {format_bytes(held)}, at most "
                f"{format_bytes(USER_WAITING_BYTES_MAX)} are allowed: try again",
            )
        self._waiting_bytes[call.user] += call.bytes
        self._waiting[call] = None
        self._watch()
        line = self._lines.setdefault(call.query, deque())
        line.append(call)
        if len(line) == 1:
            self.vhost.background.wake(call)

    def _watch(self) -> None:
        """Have `_too_late` called when the first commit has waited for too long: one timer for all,
        as anybody may ask for many that are over at once."""
        if self._waiting and not self._is_watching:
            self._is_watching = True
            first = next(iter(self._waiting))
            self.vhost.timers.call_at(first.ends_s, self._too_late)

    def _too_late(self) -> None:
        self._is_watching = False
        now_s = self.vhost.clock.monotonic()
        late = list(takewhile(lambda call: call.ends_s <= now_s, self._waiting))
        for call in late:
            call.too_late()
        self._watch()

    def over(self, call: CommitRequest) -> None:
        """Begin the next commit after this one has ended, in order or not."""
        del self._waiting[call]
        self._waiting_bytes[call.user] -= call.bytes
        if not self._waiting_bytes[call.user]:
            del self._waiting_bytes[call.user]
        line = self._lines[call.query]
        line.remove(call)
        if not line:
            del self._lines[call.query]
        elif not line[0].is_due:
            self.vhost.background.wake(line[0])

    def decide(self, asked: BatchCommit, owner: QueryOwner) -> None:
        """Decide a batch whose pages were checked, for a query of this owner. ValueError,
        DiskFullError: nothing was decided. ChannelError 506: there are too many queries."""
        engine = self.vhost.engine
        is_new = self.batch(asked.query) is None
        if is_new:
            self._check_room(owner.user)
        engine.batches.decide(
            asked.query, asked.number, asked.target.text(), asked.pages, facts=asked.facts(owner),
            is_checked=True,
        )  # fmt: skip
        if is_new:
            self._count(owner, 1)
        self.committed += 1
        self.rows += sum(page.rows for page in asked.pages)
        self.claims.forget(asked.query)
        self._decided[asked.query] = engine.log.last_lsn
        self._move(asked.query)

    def _check_room(self, user: str) -> None:
        """Raise ChannelError 506 if this user may not have another query, whose last batch is kept
        in RAM until it is released."""
        count = self._owned[user]
        if count >= USER_QUERIES_MAX:
            raise ChannelError(
                RESOURCE_ERROR,
                f"user '{user}' has {count} queries, at most {USER_QUERIES_MAX} are allowed: "
                "penstock release_query those that are over",
            )
        if self._queries >= QUERIES_MAX:
            text = f"there are {QUERIES_MAX} queries, no more may be: penstock release_query"
            raise ChannelError(RESOURCE_ERROR, text)

    def _count(self, owner: QueryOwner, change: int) -> None:
        self._queries += change
        self._owned[owner.user] += change
        if not self._owned[owner.user]:
            del self._owned[owner.user]

    def has_arrived(self, query: str, number: int) -> bool:
        """Return whether all rows of this batch, which is decided, can be read once what is logged
        now is settled; also if the query is over, or has a later batch."""
        batch = self.batch(query)
        if batch is None or batch.number != number:
            return True
        return query not in self._moves and query not in self._ends

    def decided_lsn(self, query: str) -> int:
        """Return the LSN of the last decision; 0: it was made before the start, and is durable."""
        return self._decided.get(query, 0)

    # ---- moves ---------------------------------------------------------------------------------

    def _move(self, query: str) -> None:
        move = self._moves.get(query)
        if move is None:  # the one of the batch before may not have noticed yet that it is done
            move = self._moves[query] = BatchMove(
                self.vhost, query, self._operator, self._stream_claims, self._moved
            )
        self.vhost.background.wake(move)

    def _moved(self, move: BatchMove) -> None:
        """Continue with the commits of the query: the batch is done, or was forgotten."""
        query = move.query
        self._moves.pop(query, None)
        self._ends.pop(query, None)
        if move.ends:
            self._ends[query] = move.ends
            self._heads_moved()
        self._wake(query)

    def _heads_moved(self) -> None:
        """Continue with the commits whose batches the heads of their streams have reached."""
        for query, ends in list(self._ends.items()):
            if all(_has_reached(part, end) for part, end in ends.items()):
                del self._ends[query]
                self._wake(query)

    def _wake(self, query: str) -> None:
        line = self._lines.get(query)
        if line:
            self.vhost.background.wake(line[0])

    # ---- the end of a query --------------------------------------------------------------------

    def release(self, query: str, *, is_forced: bool) -> Info:
        """Forget the query: its last batch, and what of it had not reached its target. ChannelError
        406: that is something, and it is not forced."""
        batch = self.batch(query)
        if batch is None:
            self._disown(query)
            return {"batch": None}
        if not batch.is_done and not is_forced:
            raise precondition_failed(
                f"batch {batch.number} of query '{query}' is not done (page {batch.page} of "
                f"{batch.page_count}): its other messages would be lost; release it with force"
            )
        self.vhost.engine.batches.forget(query, is_forced=is_forced)
        self._count(owner_of(batch), -1)
        self._decided.pop(query, None)
        self._ends.pop(query, None)
        move = self._moves.pop(query, None)
        if move is not None:
            move.end()
        self._wake(query)
        self._disown(query)
        return {"batch": batch.number}

    def _disown(self, query: str) -> None:
        self.claims.forget(query)
        self.vhost.engine.batches.disown(query)

    def abort(self, query: str, batch: int) -> bool:
        """Begin to delete what is staged of a batch; return False if it was decided, and stays."""
        return self.vhost.engine.batches.abort(query, batch)

    def tick(self, now_s: float) -> None:
        """Sweep, when it is time."""
        if self._ends:
            self._heads_moved()  # of streams that were deleted
        if now_s - self._swept_s >= SWEEP_S:
            self.sweep()
        elif self._over:
            self._guarded(self._release_some)

    def _expired(self, paths: list[str]) -> None:
        self.expired += len(paths)

    def sweep(self) -> None:
        """Delete old staged files and forget old queries, see the head of this module."""
        self._swept_s = self.vhost.clock.monotonic()
        self.claims.swept()
        self._guarded(self._sweep)

    def _sweep(self) -> None:
        self.vhost.engine.batches.sweep(self._timeout_s, self._expired)
        all_batches = self.vhost.engine.batches.all()
        self._over = deque(batch.query for batch in all_batches if self._is_over(batch))
        self._release_some()

    def _is_over(self, batch: Batch) -> bool:
        """Return whether it is the batch of a batch write that was done long ago."""
        old_us = self.vhost.clock.wall_us() - int(self._timeout_s * 1_000_000)
        return batch.query.startswith(JOB) and batch.is_done and batch.time_us <= old_us

    def _release_some(self) -> None:
        """Forget some of the queries that are over; each is a record of the log."""
        for _ in range(min(RELEASED_MAX, len(self._over))):
            batch = self.batch(self._over.popleft())
            if batch is not None and self._is_over(batch):
                self.release(batch.query, is_forced=False)

    def _guarded(self, do: Callable[[], None]) -> None:
        """Do a part of a sweep; report its error."""
        try:
            do()
        except (PenstockError, OSError) as error:
            if self.vhost.engine.failed is not None:
                raise
            self._over.clear()
            self.vhost.event("warning", f"staged files could not be swept: {error}")

    # ---- telling -------------------------------------------------------------------------------

    def all(self, user: Identity | None = None) -> Iterator[Info]:
        """Yield the last batch of every query, by query; only of those that the user may use."""
        for one in sorted(self.vhost.engine.batches.all(), key=_query_of):
            if user is None or may_use(user, owner_of(one)):
                yield self._told(one)

    def _told(self, batch: Batch) -> Info:
        try:
            target: object = BatchTarget.from_text(batch.target).facts()
        except ValueError:
            target = batch.target
        return {
            "query": batch.query,
            "owner": owner_of(batch).user,
            "batch": batch.number,
            "target": target,
            "pages": batch.page_count,
            "page": batch.page,
            "frame": batch.frame,
            "rows": batch.rows,
            "bytes": batch.bytes,
            "is_done": batch.is_done,
            "time_us": batch.time_us,
            "waits_for": self.waits_for(batch.query),
        }


def batch_manager(vhost: VHost) -> BatchManager:
    """Return the BatchManager of this vhost. Whoever opens a vhost calls this once: batches that
    were decided before continue then. It is above the vhost, because it publishes."""
    if vhost.batches is None:
        vhost.batches = BatchManager(vhost)
    manager = vhost.batches
    assert isinstance(manager, BatchManager)
    return manager


def _has_reached(part: StoredStream, end: int) -> bool:
    return part.is_deleted or part.head_offset >= end


def _query_of(batch: Batch) -> str:
    return batch.query


def _is_not_begun(batch: Batch) -> bool:
    return not batch.holds
