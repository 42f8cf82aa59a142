"""OneRecord: what is done to several queues at once, in one record of the log.

A queue with priorities is several QueueIndexes, a part for each, and so is one with delays. To the
log they are queues like any others: each has a number and a name of its own. But people see one,
and it must not come back from a crash half declared, half purged or half deleted. A record is what
is atomic in the log, so what is done to all parts is one record: a TX whose operations are those
that each part would have logged by itself. Replay knows them inside a TX already.

Two ways to make one. `declare_queues`, `purge_queues` and `delete_queues` of the engine know all
operations beforehand: they are logged, then applied, as everything is. Whoever has parts that say
only while it is done what is to be logged does that inside

    with engine.one_record(mode) as one:
        for part in parts:
            part.delete_and_terminate(mode)
    engine.wait(one.lsn, mode)

In between, each operation of the kinds DEQUEUE, REQUEUE, MARK, PURGE, DELETE_QUEUE, TOPOLOGY,
STREAM and READER_OFFSET is applied at once and kept for the record, whose LSN is known already: the
next. So nothing else may be appended meanwhile (no publish, move or commit: AssertionError), and no
checkpoint makes its cut. It may be nested: the outermost makes the record, in the strongest mode of
all.

Failure. An exception inside does not undo what was applied, so what there is of the record is
logged. If the log cannot take it, the engine stops: its state is ahead of the log, and only
recovery puts that right, to what was before.
"""

from types import TracebackType
from typing import TYPE_CHECKING

from penstock.storage import record

if TYPE_CHECKING:
    from penstock.storage.engine import StorageEngine


class OneRecord:
    """Made by `StorageEngine.one_record`. lsn: of the record, once the outermost is left; 0 if
    nothing was to be logged."""

    def __init__(self, engine: "StorageEngine", mode: int) -> None:
        self._engine = engine
        self._outer: OneRecord | None = None
        self._was_committing: bool = False
        self.mode: int = mode
        self.lsn: int = 0
        self.ops: list[record.Op] = []

    def __enter__(self) -> "OneRecord":
        engine = self._engine
        engine.check()
        self._outer = engine.gathering
        if self._outer is None:
            engine.gathering = self
            self._was_committing = engine.is_committing
            engine.is_committing = True  # a cut now would be of a state ahead of its log
        else:
            self._outer.mode = max(self._outer.mode, self.mode)
        return self

    def add(self, op: record.Op, mode: int) -> int:
        """One operation more; the LSN that it will have."""
        lsn = self._engine.log.last_lsn + 1
        assert self.lsn in (0, lsn), "something else was appended in the middle of one record"
        self.lsn = lsn
        self.mode = max(self.mode, mode)
        self.ops.append(op)
        return lsn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        engine = self._engine
        if self._outer is not None:
            self.lsn = self._outer.lsn
            return
        engine.gathering = None
        engine.is_committing = self._was_committing
        if not self.ops or engine.failed is not None:
            return
        try:
            lsn = append_ops(engine, self.ops, self.mode)
            assert lsn == self.lsn, "something else was appended in the middle of one record"
        except BaseException as failure:
            engine.stop(failure)
            raise


def append_ops(engine: "StorageEngine", ops: list[record.Op], mode: int) -> int:
    """Log operations as one record: of their own type if it is one, else a TX; returns its LSN.
    Inside `one_record`: they become part of that. ValueError, DiskFullError: nothing happened."""
    if not ops:
        return engine.log.last_lsn
    gathering = engine.gathering
    if gathering is not None:
        lsn = 0
        for op in ops:
            lsn = gathering.add(op, mode)
        return lsn
    if len(ops) == 1:
        op = ops[0]
        return engine.log.append(op.type, op.flags, op.count, op.data, mode)
    return engine.log.append(record.TX, 0, len(ops), record.encode_ops(ops), mode)
