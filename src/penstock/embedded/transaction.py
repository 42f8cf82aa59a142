"""BoxTransaction: puts and acknowledgements of one thread or task that happen together, or not.

While a transaction is open, the engine's transaction collects what its owner puts into queues,
appends to streams and acknowledges. The commit is one decision in the log, so after a crash all of
it is there or nothing. Others go on meanwhile, and see nothing of it before the commit is settled.

RAM holds the first MiB of the bodies; the others are in the store, where a rollback or a crash
drops them. A transaction of more than 256 MiB is refused at its commit.

A rollback removes what was put. Messages that the transaction acknowledged are returned as after a
failure, with back-off and counted as an attempt, for their owner has finished with them. Gets,
nacks and rejects are not part of a transaction: they happen at once.

Messages are persistent in a transaction, whatever the durability of box and queue: `none` counts as
`os`.

Everything here is called under the lock of the box. `Driver.caller` says whose transaction it is.
"""

from penstock.embedded.core import Core, QueueState
from penstock.embedded.new_body import NewBody
from penstock.errors import SettledError, StoppedError
from penstock.queues.amq_queue import Plan
from penstock.storage.durability import OS
from penstock.storage.streams import Stream
from penstock.storage.transaction import Published


class BoxTransaction:
    """See the head of this module. mode: the durability of the commit."""

    def __init__(self, core: Core, mode: int) -> None:
        self.core: Core = core
        self.mode: int = max(mode, OS)
        self._transaction = core.engine.begin()
        self._puts: list[tuple[QueueState, Plan, Published]] = []
        self._acks: dict[QueueState, list[int]] = {}
        self._put_counts: dict[QueueState, tuple[int, int]] = {}  # messages, bytes of bodies

    def check(self, core: Core) -> None:
        """Raise StoppedError unless the box still has the core in which the transaction began."""
        if self.core is not core:
            raise StoppedError("a call was interrupted, and the transaction is lost")

    def put(self, state: QueueState, new: NewBody) -> None:
        """Put a message. QueueFullError (what the transaction has put there already counts),
        DiskFullError: it was not put."""
        n, size = self._put_counts.get(state, (0, 0))
        n, size = n + 1, size + len(new.body)
        state.amq.before_publish(size, n)
        plan = state.amq.plan(
            new.header, priority=new.priority, ttl_ms=new.ttl_ms, delay_ms=new.delay_ms
        )
        try:
            published = self._transaction.publish(
                [plan.index], plan.header, new.body, plan.expiry_ms
            )
        except BaseException:
            state.amq.unplan(plan)
            raise
        self._puts.append((state, plan, published))
        self._put_counts[state] = n, size

    def append(self, stream: Stream, header: bytes, body: bytes) -> None:
        """Append a record to a stream; its offset is known when it is committed. DiskFullError."""
        self._transaction.append_stream(stream, header, body)

    def ack(self, state: QueueState, tags: list[int]) -> None:
        """Acknowledge deliveries. SettledError if one is not pending or is in the transaction
        already: then none is acknowledged."""
        taken = self._acks.setdefault(state, [])
        for tag in tags:
            if tag in taken or state.amq.backing.pending(tag) is None:
                raise SettledError(state.name, tag)
        for index, entries in state.amq.backing.entries(tags):
            self._transaction.dequeue(index, entries)
        taken += tags

    def commit(self) -> list[QueueState]:
        """Commit; the commit is settled at the engine's `last_lsn`. Returns the queues that it
        changed. TransactionTooLargeError: it is rolled back. DiskFullError: nothing has changed,
        commit again or roll back."""
        lsn = self._transaction.commit(self.mode)
        for state, tags in self._acks.items():
            if not state.is_deleted:
                state.amq.backing.forget(tags)
        for state, plan, published in self._puts:
            for _, entry in published.entries:
                state.amq.planned(plan, entry.seq, entry.message.size, lsn, self.mode)
        changed = {id(state): state for state in [put[0] for put in self._puts] + [*self._acks]}
        return [state for state in changed.values() if not state.is_deleted]

    def rollback(self) -> list[QueueState]:
        """Roll back. Returns the queues whose messages are returned."""
        if self._transaction.is_open:
            self._transaction.rollback()
        for state, plan, _ in self._puts:
            if not state.is_deleted:
                state.amq.unplan(plan)
        for state, tags in self._acks.items():
            for tag in tags:
                if not state.is_deleted and state.amq.backing.pending(tag) is not None:
                    state.amq.nack(tag, mode=OS)
        return [state for state in self._acks if not state.is_deleted]
