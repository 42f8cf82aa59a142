"""BatchDesk: batches of the exactly-once sink: who waits for whom, and what is swept away.

    commit    waits until the batch before it of the same query is done, looks at the target and at
              the keys that must lead somewhere, and then decides: one record of the log. The answer
              comes when that is durable. A batch that was decided before is answered so, and
              nothing happens; one that is another than what was decided is refused, as is one of
              somebody else's query (batch_claims.py).
    move      from the decision on, also after a restart, until the batch is done (batch_moves.py)
    release   the query is over: its last batch is forgotten

Calls for one query are done one after the other. A commit that waits for longer than WAIT_S for the
batch before it is refused (506), to be tried again; it has changed nothing.

**Sweeping.** Staged files that no decided batch names are deleted when they are older than
staging_timeout_s: of tasks that died, of batches that were never committed. And a query that is
used once ("job-...", of a batch write) is forgotten when its batch is done and as old. With
the first tick, and every hour.

Not here: arguments and permissions (operations_batches.py), the record (penstock.storage).
"""

from collections import deque
from typing import Final

from penstock.access.permissions import Identity, everything
from penstock.broker.batch_claims import (
    BatchCommit,
    QueryClaims,
    check_owner,
    is_repeated,
    owner_of,
)
from penstock.broker.batch_moves import BatchMove
from penstock.broker.batch_target import BatchTarget
from penstock.broker.chores import AGAIN, ASLEEP, DONE, Chore
from penstock.broker.operation_args import Reply, refused
from penstock.broker.vhost import VHost
from penstock.errors import (
    NO_ROUTE,
    RESOURCE_ERROR,
    AMQPError,
    ChannelError,
    CorruptionError,
    PenstockError,
)
from penstock.storage import staging
from penstock.storage.batches import Batch, QueryOwner
from penstock.storage.durability import DISK

Info = dict[str, object]

WAIT_S: Final = 30.0
KEYS_SLICE: Final = 256
SWEEP_S: Final = 3600.0
JOB: Final = "job-"

COMMITTED: Final = "committed"
ALREADY: Final = "already done"


class CommitCall(Chore):
    """A commit that a user asks for."""

    def __init__(
        self, desk: "BatchDesk", asked: BatchCommit, identity: Identity, reply: Reply
    ) -> None:
        self.query: str = asked.query
        self._desk = desk
        self._vhost: VHost = desk.vhost
        self._asked = asked
        self._identity = identity
        self._keys = asked.keys
        self._owner: QueryOwner | None = None
        self._checked: int = 0
        self._is_checking: bool = False
        self._is_checked: bool = False
        self._error: BaseException | None = None
        self._reply = reply
        self.is_over: bool = False

    def step(self) -> int:
        if self.is_over:
            return DONE
        desk, asked = self._desk, self._asked
        last = desk.batch(self.query)
        if last is not None:
            self._take_owner(owner_of(last))
        if is_repeated(last, asked):
            return self._answer(ALREADY, asked.number, desk.decided_lsn(self.query))
        if last is not None and not last.is_done:
            return ASLEEP  # `desk.moved` wakes it
        asked.target.check(self._vhost)
        if self._checked < len(self._keys):
            self._check_keys()
            return AGAIN
        if self._error is not None:
            raise self._error
        if not self._is_checked:
            self._check_pages()
            return ASLEEP
        lsn = desk.decide(asked, self._owner or self._first_owner())
        return self._answer(COMMITTED, asked.number, lsn)

    def _first_owner(self) -> QueryOwner:
        return QueryOwner(self._identity.name, self._first_target())

    def _first_target(self) -> str:
        target = self._asked.target
        return "" if target.is_nowhere else target.text()

    def _take_owner(self, owner: QueryOwner | None) -> None:
        """Whose the query is; None: nobody's yet. ChannelError 403."""
        if owner is not None:
            check_owner(self._identity, owner, self.query, self._vhost.name)
            self._owner = owner if owner.target else owner._replace(target=self._first_target())

    def _check_pages(self) -> None:
        """A worker looks at all of them."""
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
            self._vhost.chores.wake(self)

        def failed(error: BaseException) -> None:
            self._error = error
            self._vhost.chores.wake(self)

        engine.submit(look, done, failed)

    def _check_keys(self) -> None:
        router = self._vhost.router
        some = self._keys[self._checked : self._checked + KEYS_SLICE]
        self._checked += len(some)
        exchanges = self._asked.target.exchanges
        for exchange, key in some:
            if self._asked.target.queue:
                continue  # all of it goes there
            if exchange not in exchanges:
                raise refused(
                    f"commit_batch: mandatory key {key!r} is of exchange '{exchange}', which is "
                    "not among those of the target"
                )
            if not router.depends_on_headers(exchange) and not router.route(exchange, key, None):
                text = f"no queue gets it: key '{key}', exchange '{exchange}'"
                raise ChannelError(NO_ROUTE, f"{text} in vhost '{self._vhost.name}'")

    def too_late(self) -> None:
        """It has waited for long enough."""
        if self.is_over:
            return
        last = self._desk.batch(self.query)
        why = "a commit before it has not ended"
        if last is not None and not last.is_done:
            why = f"batch {last.number} is at page {last.page} of {last.page_count}"
            waits_for = self._desk.waits_for(self.query)
            if waits_for:
                why += f", and waits: {waits_for}"
        text = f"batch {self._asked.number} of query '{self.query}' cannot be committed yet: {why}"
        self._over(ChannelError(RESOURCE_ERROR, text))

    def failed(self, error: Exception) -> None:
        """It ends with this error, and nothing was decided."""
        if isinstance(error, AMQPError):
            self._over(error)
        elif isinstance(error, ValueError | CorruptionError | staging.StagingError):
            self._over(refused(f"commit_batch: {error}"))
        elif isinstance(error, PenstockError | OSError):
            self._over(ChannelError(RESOURCE_ERROR, str(error)))
        else:
            self._vhost.mistake(f"a commit of query {self.query!r}", error)
            self._over(AMQPError(541, f"{type(error).__name__}: {error}"))

    def _answer(self, status: str, batch: int, lsn: int) -> int:
        self._over({"status": status, "batch": batch}, lsn)
        return DONE

    def _over(self, answer: object, lsn: int = 0) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._keys = []
        if lsn:
            self._vhost.when_settled(lsn, DISK, lambda: self._reply(answer))
        else:
            self._reply(answer)
        self._desk.over(self)


class BatchDesk:
    """Of one vhost, see `batch_desk`. Batches are moved with an operator's permissions; those of
    users were asked when they were committed."""

    def __init__(self, vhost: VHost) -> None:
        self.vhost: VHost = vhost
        self.claims = QueryClaims(vhost)
        self._timeout_s: float = vhost.settings.staging_timeout_s
        self._operator = everything("operator")
        self._lines: dict[str, deque[CommitCall]] = {}
        self._moves: dict[str, BatchMove] = {}
        self._decided: dict[str, int] = {}  # LSNs of decisions of this life
        self._swept_s: float = float("-inf")
        self._claims: dict[str, BatchMove] = {}  # streams that are written into, by name
        self._waiting: list[BatchMove] = []  # for a stream
        rolling = vhost.engine.batches.rolling()
        for batch in sorted(rolling, key=_is_not_begun):  # what holds a head goes first
            self._move(batch.query)
        vhost.on_tick.append(self.tick)

    def batch(self, query: str) -> Batch | None:
        """The last batch of this query that was decided."""
        return self.vhost.engine.batches.batch(query)

    def waits_for(self, query: str) -> str:
        """Why its batch cannot go on; "": it does, or is done."""
        move = self._moves.get(query)
        return "" if move is None else move.waits_for

    # ---- commits -------------------------------------------------------------------------------

    def commit(self, call: CommitCall) -> None:
        """A call; it begins when those before it of that query have ended."""
        line = self._lines.setdefault(call.query, deque())
        line.append(call)
        vhost = self.vhost
        vhost.call_at(vhost.clock.monotonic() + WAIT_S, call.too_late)
        if len(line) == 1:
            vhost.chores.wake(call)

    def over(self, call: CommitCall) -> None:
        """It has ended, in order or not: the next one."""
        line = self._lines[call.query]
        line.remove(call)
        if not line:
            del self._lines[call.query]
        elif not line[0].is_due:
            self.vhost.chores.wake(line[0])

    def decide(self, asked: BatchCommit, owner: QueryOwner) -> int:
        """The decision, of pages that were looked at, for a query of this owner; its LSN.
        ValueError, DiskFullError: nothing was decided."""
        engine = self.vhost.engine
        engine.batches.decide(
            asked.query, asked.number, asked.target.text(), asked.pages, facts=asked.facts(owner),
            is_checked=True,
        )  # fmt: skip
        self.claims.forget(asked.query)
        lsn = self._decided[asked.query] = engine.last_lsn
        self._move(asked.query)
        return lsn

    def decided_lsn(self, query: str) -> int:
        """Of the last decision; 0: it was made before the start, and is durable."""
        return self._decided.get(query, 0)

    # ---- moves ---------------------------------------------------------------------------------

    def _move(self, query: str) -> None:
        move = self._moves.get(query)
        if move is None:  # the one of the batch before may not have noticed yet that it is done
            move = self._moves[query] = BatchMove(self, query, self._operator)
        self.vhost.chores.wake(move)

    def moved(self, move: BatchMove) -> None:
        """Its batch is done, or was forgotten: the next commit may go on."""
        self._moves.pop(move.query, None)
        line = self._lines.get(move.query)
        if line:
            self.vhost.chores.wake(line[0])

    def claim(self, stream: str, move: BatchMove) -> bool:
        """Whether this one may write into the stream; else it is woken when it is free."""
        if self._claims.setdefault(stream, move) is move:
            return True
        if move not in self._waiting:
            self._waiting.append(move)
        return False

    def unclaim(self, move: BatchMove) -> None:
        """It writes into none now."""
        if move in self._claims.values():
            self._claims = {name: one for name, one in self._claims.items() if one is not move}
            waiting, self._waiting = self._waiting, []
            for other in waiting:
                other.wake()

    # ---- the end of a query --------------------------------------------------------------------

    def release(self, query: str, *, is_forced: bool) -> Info:
        """Forget the query: its last batch, and what of it had not reached its target. ChannelError
        406: that is something, and it is not forced."""
        batch = self.batch(query)
        if batch is None:
            self._disown(query)
            return {"batch": None}
        if not batch.is_done and not is_forced:
            raise refused(
                f"batch {batch.number} of query '{query}' is not done (page {batch.page} of "
                f"{batch.page_count}): its other messages would be lost; release it with force"
            )
        self.vhost.engine.batches.forget(query, is_forced=is_forced)
        self._decided.pop(query, None)
        self._disown(query)
        return {"batch": batch.number}

    def _disown(self, query: str) -> None:
        self.claims.forget(query)
        self.vhost.engine.batches.disown(query)

    def abort(self, query: str, batch: int) -> bool:
        """Begin to delete what is staged of a batch; False: it was decided, and stays."""
        return self.vhost.engine.batches.abort(query, batch)

    def tick(self, now_s: float) -> None:
        """Sweep, when it is time."""
        if now_s - self._swept_s >= SWEEP_S:
            self.sweep()

    def sweep(self) -> None:
        """See the head of this module."""
        vhost = self.vhost
        engine = vhost.engine
        self._swept_s = vhost.clock.monotonic()
        self.claims.swept()
        try:
            engine.batches.sweep(self._timeout_s)
            old_us = vhost.clock.wall_us() - int(self._timeout_s * 1_000_000)
            for batch in engine.batches.all():
                if batch.query.startswith(JOB) and batch.is_done and batch.time_us <= old_us:
                    self.release(batch.query, is_forced=False)
        except (PenstockError, OSError) as error:
            if engine.failed is not None:
                raise
            vhost.event("warning", f"staged files could not be swept: {error}")

    # ---- telling -------------------------------------------------------------------------------

    def all(self) -> list[Info]:
        """Of the last batch of every query, by query."""
        return [self._told(one) for one in sorted(self.vhost.engine.batches.all(), key=_query_of)]

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


def batch_desk(vhost: VHost) -> BatchDesk:
    """That of this vhost. Whoever opens a vhost calls this once: batches that were decided before
    go on then. It stands above the vhost, for what it does is to publish."""
    if vhost.batches is None:
        vhost.batches = BatchDesk(vhost)
    desk = vhost.batches
    assert isinstance(desk, BatchDesk)
    return desk


def _query_of(batch: Batch) -> str:
    return batch.query


def _is_not_begun(batch: Batch) -> bool:
    return not batch.holds
