"""Journal: logs operations, applies them to the state, and stops the engine if that fails.

Every change of a vhost's storage has three steps, always in this order:

    append   the operations become one record of the log. If that fails, nothing has happened
    apply    each operation changes the StorageState, by the code that replay runs (record_types.py)
    stop     if `apply` fails the log is ahead of RAM: only recovery can continue from there [10]

`commit` does all three. Three hot paths of the engine (publishing, acknowledging, appending to a
stream) use the log's own encoders instead and then the same functions of the state.

The parts of the engine take a Journal and not the engine. It also says whether changes are possible
at all: `failed` after an error that stops the engine, `blocked` while the disk is full (publishers
are refused, everything else continues), and `is_closed`. It runs slow work in other threads
(`submit`), takes the completions, and deletes files.

Atomic groups. A queue with priorities consists of several QueueIndexes, one for each part, and so
does a queue with delays. To users they are one queue, which must not come back from a crash half
declared, half purged or half deleted. So what is done to all parts is one record: a TX of the
operations that each part would log by itself. If all operations are known, `commit` takes them as
one list. A caller whose parts find their operations only while they run uses

    with journal.one_record(mode) as one:
        for part in parts:
            part.delete_and_terminate(mode)
    engine.wait(one.lsn, mode)

Inside, each operation is applied at once and kept for the record. The record's LSN is the next one,
so nothing else may be appended meanwhile (a publish, move or transaction is an AssertionError), and
no checkpoint makes its cut. Groups nest: the outermost makes the record, in the strongest mode of
all. An exception inside does not undo what was applied, so the record is logged all the same. If
the log cannot take the record, the engine stops. So that a full disk does not stop it, the first
operation of a group makes sure of room for a record of the usual size (`ensure_room`):
DiskFullError then, and nothing has happened.
"""

import contextlib
from collections.abc import Callable
from contextlib import closing
from typing import Final

from penstock.clock import Clock
from penstock.errors import (
    DescriptorsError,
    DiskFullError,
    StoppedError,
    has_no_descriptor,
    is_shortage,
)
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.files.options import StorageOptions
from penstock.storage.journal.record_types import (
    AppliedRecord,
    LogOperation,
    TxPartsCommit,
    TxSlice,
)
from penstock.storage.journal.state import StorageState
from penstock.storage.log import record
from penstock.storage.log.transaction_log import TransactionLog

READY_BYTES: Final = 1 << 20  # a smaller record waits no longer than others
GROUP_BYTES: Final = 128 << 10  # of the record of an atomic group
BESIDE_BYTES: Final = 1 << 20  # of a record beside its bodies, at most


class Journal:
    """One per engine.

    failed: why nothing can be changed any more, or None. blocked: publishers are refused because
    the disk is full, or no file can be opened; short_of: which, "disk" or "descriptors", "" while
    they are accepted. committing: the number of transactions with undecided records in the
    log, and of open atomic groups; while there is one no checkpoint may make its cut. cut_waits:
    one was to be made at the last tick. gathering: the open atomic group.
    on_event(kind, text): takes events for people, see StorageEngine.
    """

    def __init__(
        self, fs: FileSystem, path: str, clock: Clock, options: StorageOptions, state: StorageState,
        log: TransactionLog, on_event: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self.fs: FileSystem = fs
        self.path: str = path
        self.clock: Clock = clock
        self.options: StorageOptions = options
        self.state: StorageState = state
        self.log: TransactionLog = log
        self.reserve: Reserve = Reserve(fs, path)
        self.pins: Pins = Pins()
        self.failed: BaseException | None = None
        self.is_closed: bool = False
        self.blocked: bool = False
        self.short_of: str = ""
        self.committing: int = 0
        self.cut_waits: bool = False
        self.gathering: OneRecord | None = None
        self._event = on_event
        self._ops: dict[int, tuple[Callable[[object], None], Callable[[BaseException], None]]] = {}
        self._is_preparing_ahead: bool = False
        self._on_turn: Callable[[], None] = _nothing
        self._on_settled: Callable[[], None] = _nothing
        self._on_progress: Callable[[], None] = _nothing
        self._waiting: list[Callable[[], None]] = []  # see `when_ready`
        self._progress: int = 0  # of the log when the last of them began to wait

    def call_back(
        self, *, on_turn: Callable[[], None], on_settled: Callable[[], None],
        on_progress: Callable[[], None],
    ) -> None:  # fmt: skip
        """Set what is called at the end of a turn, when more of the log is settled, and whenever
        something has completed."""
        self._on_turn = on_turn
        self._on_settled = on_settled
        self._on_progress = on_progress

    # ---- changes -------------------------------------------------------------------------------

    def commit(
        self, operations: list[LogOperation], mode: int, *, names_store: bool = False
    ) -> int:
        """Log operations as one record and apply them. Returns its LSN, or that of the last record
        if there are no operations. names_store: one of several publishes a body that is in the
        store. ValueError, DiskFullError: nothing happened. An error of `apply` stops the engine."""
        lsn = self.append(operations, mode, names_store=names_store)
        self.apply(operations, lsn, mode)
        return lsn

    def commit_transaction(
        self, operations: list[LogOperation], mode: int, *, names_store: bool
    ) -> int:
        """As `commit`, but always a TX, also of one operation or none: a transaction has an LSN of
        its own, which is settled in its own mode."""
        assert self.gathering is None, "a transaction is a record of its own"
        ops = [operation.encode() for operation in operations]
        lsn = self._append_list(ops, mode, names_store)
        self.apply(operations, lsn, mode)
        return lsn

    def append(
        self, operations: list[LogOperation], mode: int, *, names_store: bool = False
    ) -> int:
        """Log operations as one record, for a caller that applies them itself: one operation as its
        own type, several as a TX. Inside `one_record` they become part of its record. Returns the
        LSN. ValueError, DiskFullError: nothing happened."""
        if not operations:
            return self.log.last_lsn
        ops = [operation.encode() for operation in operations]
        gathering = self.gathering
        if gathering is not None:
            return gathering.add(ops, mode)
        return self.append_ops(ops, mode, names_store)

    def append_ops(self, ops: list[record.Op], mode: int, names_store: bool = False) -> int:
        """Log encoded operations, one at least, as `append` does."""
        if len(ops) > 1:
            return self._append_list(ops, mode, names_store)
        op = ops[0]
        if op.tail:
            return self._append_pieces(op.type, op.count, [op.data, *op.tail], mode, names_store)
        try:
            return self.log.append(op.type, op.flags, op.count, op.data, mode, names_store)
        except DiskFullError as error:
            raise self.full(error) from error

    def _append_list(self, ops: list[record.Op], mode: int, names_store: bool) -> int:
        if any(op.tail for op in ops) and not any(op.type == record.TX for op in ops):
            pieces = record.tx_pieces(ops)
            return self._append_pieces(record.TX, len(ops), pieces, mode, names_store)
        count, data = _encode_list(ops)
        try:
            return self.log.append(record.TX, 0, count, data, mode, names_store)
        except DiskFullError as error:
            raise self.full(error) from error

    def _append_pieces(
        self, kind: int, count: int, pieces: list[bytes], mode: int, names_store: bool
    ) -> int:
        """Log a record whose data is in pieces, some of them large."""
        try:
            return self.log.append_pieces(kind, count, pieces, mode, names_store)
        except DiskFullError as error:
            raise self.full(error) from error

    def apply(
        self, operations: list[LogOperation], lsn: int, mode: int,
        first_seqs: dict[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Apply operations that are in the log. first_seqs: see AppliedRecord. Any error stops the
        engine. Waits afterwards while the log is full (StoppedError)."""
        at = AppliedRecord(lsn, mode, {} if first_seqs is None else first_seqs)
        state = self.state
        try:
            for operation in operations:
                operation.apply(state, at)
            state.end_record(lsn)
        except BaseException as error:
            self.stop(error)  # the log is ahead of RAM: only recovery can continue
            raise
        if self.gathering is None and self.log.is_full:
            self.wait_for_room()

    @property
    def is_committing(self) -> bool:
        """Whether the log is ahead of the state, or undecided: no checkpoint may make its cut."""
        return self.committing > 0

    def write_parts(
        self, operations: list[LogOperation], mode: int, number: int, *, names_store: bool
    ) -> int:
        """Log operations of a transaction that `decide` or `end_parts` will follow, as TX_PARTs.
        Their places are ordinals. number: of the transaction, 0 for a new one. Returns its number.
        DiskFullError: some of them may be in the log."""
        assert self.gathering is None, "a transaction is a record of its own"
        part: list[record.Op] = []
        size = 0
        for i, operation in enumerate(operations):
            op = operation.encode()
            part.append(op)
            size += op.size
            is_full = size >= self.options.tx_part_bytes or len(part) == record.COUNT_MAX
            if is_full or i == len(operations) - 1:
                lsn = self._write_part(part, mode, number, names_store)
                number = number or lsn
                part, size = [], 0
        return number

    def write_part(
        self, operations: list[LogOperation], mode: int, number: int, *, names_store: bool
    ) -> int:
        """Log operations of a transaction, whose parts take effect one by one, as one TX_PART.
        Their places are ordinals within it. number: of the transaction, 0 for a new one, whose
        number is the LSN of its first part. Returns the LSN. DiskFullError: nothing happened."""
        assert self.gathering is None, "a transaction is a record of its own"
        ops = [operation.encode() for operation in operations]
        return self._write_part(ops, mode, number, names_store)

    def _write_part(self, ops: list[record.Op], mode: int, number: int, names_store: bool) -> int:
        lsn = self.log.last_lsn + 1
        pieces = record.tx_part_pieces(number or lsn, ops)
        self._append_pieces(record.TX_PART, len(ops), pieces, mode, names_store)
        if not number:
            self.committing += 1
        if self.log.is_full:
            self.wait_for_room()
        return lsn

    def apply_part(
        self, operations: list[LogOperation], mode: int, number: int, part_lsn: int,
        first_seqs: dict[int, int],
    ) -> int:  # fmt: skip
        """Log a TX_SLICE for one part of a transaction, and apply the part. The first one decides:
        all parts must follow, and then `end_parts`. first_seqs: queue or stream -> seq or offset of
        its first message in the part. Returns the LSN. DiskFullError: nothing happened."""
        found = TxSlice(number, part_lsn, list(first_seqs.items()))
        lsn = self.append_ops([found.encode()], mode)
        self.apply(operations, lsn, mode, first_seqs)
        return lsn

    def decide(
        self, operations: list[LogOperation], mode: int, number: int, first_seqs: dict[int, int]
    ) -> int:
        """Log the TX_COMMIT for all operations of a transaction, which are in the log, and apply
        them. first_seqs: queue or stream -> its first seq or offset. Returns the LSN.
        DiskFullError: nothing happened; `end_parts` must follow."""
        lsn = self.append_ops([TxPartsCommit(number, list(first_seqs.items())).encode()], mode)
        self.committing -= 1
        self.apply(operations, lsn, mode, first_seqs)
        return lsn

    def end_parts(self) -> None:
        """End a transaction whose parts are in the log: all of them have taken effect, or none ever
        will."""
        self.committing -= 1

    def commit_parts(
        self, operations: list[LogOperation], mode: int, first_seqs: dict[int, int], *,
        names_store: bool,
    ) -> int:  # fmt: skip
        """As `commit`, for more than fits into one record: TX_PARTs, then a TX_COMMIT, which
        decides. The operations have ordinals for seqs and offsets; first_seqs: queue or stream ->
        its first seq or offset. No checkpoint makes its cut in between."""
        before = self.committing
        try:
            number = self.write_parts(operations, mode, 0, names_store=names_store)
            return self.decide(operations, mode, number, first_seqs)
        finally:
            self.committing = before

    def one_record(self, mode: int) -> "OneRecord":
        """Return an atomic group, for a `with`; see the head of this module."""
        return OneRecord(self, mode)

    def ensure_room(self) -> None:
        """Make sure of room for a record of an atomic group. DiskFullError: nothing happened."""
        try:
            self.log.ensure_room(GROUP_BYTES)
        except DiskFullError as error:
            raise self.full(error) from error

    # ---- what is possible ----------------------------------------------------------------------

    def check(self) -> None:
        """Raise StoppedError if nothing can be changed any more."""
        if self.failed is not None:
            raise StoppedError(str(self.failed)) from self.failed
        if self.is_closed:
            raise StoppedError("the engine is closed")

    def check_publish(self) -> None:
        """Raise StoppedError, or DiskFullError if publishers are refused."""
        self.check()
        if self.blocked:
            if self.short_of == DESCRIPTORS:
                raise DescriptorsError(self.path)
            raise self.disk_error(self.options.disk_free_limit)

    def stop(self, error: BaseException) -> None:
        """Stop for good: nothing is confirmed after this, and only the first error counts [10]."""
        if self.failed is None:
            self.failed = error
            self.log.poison(error)
            self.event("stopped", str(error))

    def disk_full(self, error: OSError, needed: int) -> Exception:
        """Return what to raise for an OSError of a write of `needed` bytes: a DiskFullError, and
        publishers are refused, if the disk is full or there is no descriptor; else the same
        error."""
        if not is_shortage(error):
            return error
        if has_no_descriptor(error):
            return self.full(DescriptorsError(str(error.filename or self.path)))
        return self.full(self.disk_error(needed))

    def fullest_disk(self) -> tuple[str, int]:
        """Return a directory on the store's disk with the least free space, and the free bytes."""
        return fullest_disk(self.fs, self.path)

    def disk_error(self, needed: int) -> DiskFullError:
        """Return the error for a write of `needed` bytes that one of the disks has no room for."""
        return DiskFullError(*self.fullest_disk(), needed)

    def full(self, error: DiskFullError) -> DiskFullError:
        """Refuse publishers because of this error, and return it."""
        if not self.blocked:
            self.block(str(error), short_of(error))
        return error

    def block(self, text: str = "", short_of: str = "disk") -> None:
        """Refuse publishers until upkeep finds space, or descriptors. Only this call sends the
        event `disk_full`. Owners block their clients at that event, until the event `disk_free`."""
        was_blocked, self.blocked = self.blocked, True
        self.short_of = short_of
        if text or not was_blocked:
            self.event("disk_full", text or "there is no space")

    def unblock(self, text: str) -> None:
        """Accept publishes again."""
        self.blocked = False
        self.short_of = ""
        self.event("disk_free", text)

    def event(self, kind: str, text: str) -> None:
        """Report an event for people."""
        self._event(kind, text)

    # ---- turns and completions -----------------------------------------------------------------

    def flush(self) -> None:
        """End a turn: write what was appended, and start a sync if one is wanted. SyncFailedError,
        StoppedError."""
        self.check()
        self._flush_log()
        streams = self.state.streams
        if streams.dirty or streams.waiting:  # as in few turns
            self._on_turn()

    def request_sync(self) -> None:
        """Begin to make everything appended so far durable. SyncFailedError, StoppedError."""
        try:
            self.log.request_sync()
        finally:
            self.after_log()

    def _flush_log(self) -> None:
        try:
            self.log.flush()
        finally:
            self.after_log()

    def wait(self, lsn: int, mode: int) -> None:
        """Wait until `settled(mode) >= lsn`; `disk` syncs weaker records too. StoppedError,
        SyncFailedError: it will never be."""
        self.check()
        try:
            self.log.wait(lsn, mode, self._complete_other)
        finally:
            self.after_log()
        self._on_turn()
        self._on_progress()

    def tick(self) -> None:
        """Do the regular work of the log, and take what has completed. The caller checks first that
        the engine is not stopped."""
        if not self._is_preparing_ahead:  # not at the start, which it would delay
            self._is_preparing_ahead = True
            self.log.prepare_ahead()
        try:
            self.log.tick()
        finally:
            self.after_log()
        self._on_turn()
        self.poll()

    def poll(self, *, wait: bool = False) -> None:
        """Take what the file system has completed; wait=True: at least one thing, if any is due."""
        for token, result in self.fs.completed(wait):
            self.complete(token, result)

    def push(self) -> None:
        """Write what was appended, and wait for one completion. StoppedError, SyncFailedError."""
        self._flush_log()
        self.poll(wait=True)
        self.check()

    def complete(self, token: int, result: object) -> None:
        """Take the end of a submitted operation: its result, or the exception that it raised."""
        if self.log.complete(token, result):
            self.after_log()
            self._on_settled()
        else:
            self._complete_other(token, result)
        self._on_progress()

    def _complete_other(self, token: int, result: object) -> None:
        done, failed = self._ops.pop(token)
        if self.failed is not None:
            return  # nothing continues after a failure [10]
        if isinstance(result, BaseException):
            failed(result)
        else:
            done(result)

    def submit(
        self,
        op: Callable[[], object],
        done: Callable[[object], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Run `op` in another thread, then done(result) or failed(error) in this one."""
        self._ops[self.fs.submit(op)] = (done, failed)

    def delete_files(
        self, paths: list[str], trees: list[str], done: Callable[[], None] | None = None
    ) -> None:
        """Delete files, and directories with the files in them, in another thread; then call
        `done`. A failure is an event: the files only take room."""
        fs = self.fs

        def deleted(_: object) -> None:
            if done is not None:
                done()

        def failed(error: BaseException) -> None:
            self.event("clean", f"a dead file could not be deleted: {error}")
            deleted(None)

        self.submit(lambda: delete(fs, paths, trees), deleted, failed)

    def pin_files(self) -> None:
        """Begin a backup: what checkpoints would delete stays until its `unpin_files`."""
        self.pins.count += 1

    def unpin_files(self) -> None:
        """End a backup. After the last one, delete what waited for it."""
        self.pins.count -= 1
        if self.pins.count or self.failed is not None or self.is_closed:
            return
        paths, trees = self.pins.take()
        if paths or trees:
            self.delete_files(paths, trees)

    @property
    def has_pending(self) -> bool:
        """Whether submitted work, other than the log's, is not complete yet."""
        return bool(self._ops)

    def finish(self) -> None:
        """Wait for all submitted work but the log's."""
        while self._ops:
            self.poll(wait=True)

    def wait_for_room(self) -> None:
        """Write and wait until at most one group is in RAM. StoppedError, SyncFailedError."""
        self._flush_log()
        while self.log.is_full:
            self.check()
            self.poll(wait=True)
            self._flush_log()
        self._on_turn()  # what it had to wait for is no longer in RAM

    def is_ready(self, size: int) -> bool:
        """Return whether a record with so many bytes of bodies can be logged without waiting for
        the disk. If not, what it needs is prepared; `when_ready` says when it is worth asking
        again."""
        return size < READY_BYTES or self.log.make_ready(size + BESIDE_BYTES)

    def when_ready(self, wake: Callable[[], None]) -> None:
        """Call `wake` once more of the log is written, or prepared. It must not call the engine."""
        self._waiting.append(wake)
        self._progress = self.log.progress

    def after_log(self) -> None:
        """Stop if the log has failed. Called after any call that may write the log."""
        if self.log.failed is not None and self.failed is None:
            self.stop(self.log.failed)
        if self._waiting and self.log.progress != self._progress:
            waiting, self._waiting = self._waiting, []
            for wake in waiting:
                wake()


class OneRecord:
    """An atomic group; see the head of this module. lsn: the record's, once the outermost group has
    ended; 0 if there was nothing to log."""

    def __init__(self, journal: Journal, mode: int) -> None:
        self._journal = journal
        self._outer: OneRecord | None = None
        self.mode: int = mode
        self.lsn: int = 0
        self.ops: list[record.Op] = []

    def __enter__(self) -> "OneRecord":
        journal = self._journal
        journal.check()
        self._outer = journal.gathering
        if self._outer is None:
            journal.gathering = self
            journal.committing += 1  # a cut now would be of a state ahead of its log
        else:
            self._outer.mode = max(self._outer.mode, self.mode)
        return self

    def add(self, ops: list[record.Op], mode: int) -> int:
        """Keep operations for the record. Returns the LSN that it will have. DiskFullError: they
        are the first, and the log has no room."""
        if not self.ops:
            self._journal.ensure_room()
        lsn = self._journal.log.last_lsn + 1
        assert self.lsn in (0, lsn), "something else was appended in the middle of one record"
        self.lsn = lsn
        self.mode = max(self.mode, mode)
        self.ops += ops
        return lsn

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        journal = self._journal
        if self._outer is not None:
            self.lsn = self._outer.lsn
            return
        journal.gathering = None
        journal.committing -= 1
        if not self.ops or journal.failed is not None:
            return
        try:
            lsn = journal.append_ops(self.ops, self.mode)
            assert lsn == self.lsn, "something else was appended in the middle of one record"
        except BaseException as failure:
            journal.stop(failure)
            raise


def _encode_list(ops: list[record.Op]) -> tuple[int, bytes]:
    """Return count and data of a TX of these operations. A TX among them adds its own list."""
    if not any(op.type == record.TX for op in ops):
        return len(ops), record.encode_ops(ops)
    parts = [op.data if op.type == record.TX else record.encode_ops([op]) for op in ops]
    return sum([op.count if op.type == record.TX else 1 for op in ops]), b"".join(parts)


# ---- space and files ----------------------------------------------------------------------------


DISK_SPACE: Final = "disk"
DESCRIPTORS: Final = "descriptors"


def short_of(error: BaseException) -> str:
    """Return what is lacking, of a shortage: DISK_SPACE or DESCRIPTORS."""
    return DESCRIPTORS if has_no_descriptor(error) else DISK_SPACE


def fullest_disk(fs: FileSystem, path: str) -> tuple[str, int]:
    """Return a directory on the disk with the least free space of those that the store at `path`
    uses, and the bytes that are free there."""
    free, disk = min([(fs.free_bytes(disk), disk) for disk in fs.disks(path)])
    return disk, free


RESERVE_STEP_BYTES: Final = 4096
RESERVE_NAMES: Final = ("reserve", "spill_reserve")


class Reserve:
    """A file of zeros that keeps room on the disk for the work that frees room.

    Acks, purges and deletes free space only after a checkpoint, which needs space first. So the
    file is at least as large as the log that is not materialised yet and the last manifest. When a
    checkpoint meets a full disk, the file is truncated and the checkpoint continues. Publishers are
    refused until the file can be made again.

    It is the file `reserve` of a vhost's directory. If log and messages are on two disks there is
    a `spill_reserve` of the same size on the second, because a checkpoint writes to both. The files
    grow by doubling where there is room, so that they are written rarely; only `trim` shrinks them.
    bytes: the size of each.
    """

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._paths = [f"{path}/{name}" for name in RESERVE_NAMES[: len(fs.disks(path))]]
        self._want = 0
        self._is_growing = False
        self.bytes: int = self._found_bytes()
        self._even_out()

    def _even_out(self) -> None:
        """Truncate the larger of two files, which a crash may leave."""
        if any(self._fs.exists(path) and self._fs.size(path) > self.bytes for path in self._paths):
            self._cut(self.bytes)

    def _found_bytes(self) -> int:
        fs = self._fs
        return min([fs.size(path) if fs.exists(path) else 0 for path in self._paths])

    def want(self, size: int) -> None:
        """Set the bytes that each file should have at least."""
        self._want = -(-size // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES

    def take_growth(self, available: int) -> Callable[[], object] | None:
        """Return the operation that makes the files as large as wanted. None if they are, if they
        are growing, or if it takes more than `available` bytes."""
        if self._is_growing or self.bytes >= self._want:
            return None
        size = max(self._want, 2 * self.bytes)
        if available < size - self.bytes:
            size = self._want
        if available < size - self.bytes:
            return None
        self._is_growing = True

        def op() -> object:
            is_made = True
            for path in self._paths:
                file = self._fs.open(path, create=True)
                try:
                    file.allocate(size)
                except OSError:
                    file.truncate(0)
                    is_made = False
                finally:
                    file.close()
            if not is_made:
                self._cut(0)
            return size if is_made else 0

        return op

    def _cut(self, size: int) -> None:
        """Truncate the files to `size` bytes if they are larger."""
        for path in self._paths:
            with closing(self._fs.open(path, create=True)) as file:
                if file.size() > size:
                    file.truncate(size)

    def grown(self, size: object) -> None:
        """Take the operation's result: the size of the files now, 0 if there was no room."""
        assert isinstance(size, int)
        self._is_growing = False
        self.bytes = size

    def not_grown(self) -> None:
        """Note that the operation failed; the files may have any size."""
        self._is_growing = False
        try:
            self.bytes = self._found_bytes()
        except OSError:
            pass  # the size that was known stays

    def trim(self, size: int) -> None:
        """Truncate the files to `size` bytes, unless they are growing. An OSError changes
        nothing."""
        size = -(-size // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES
        if self._is_growing or self.bytes <= size:
            return
        try:
            self._cut(size)
        except OSError:
            return
        self.bytes = size

    def missing(self) -> int:
        """Return the bytes by which it is smaller than it should be."""
        return max(0, self._want - self.bytes)

    def release(self) -> bool:
        """Free the room. False if there is none, the files are growing, or there is no descriptor
        to open them with."""
        if not self.bytes or self._is_growing:
            return False
        try:
            self._cut(0)
        except OSError as error:
            if not has_no_descriptor(error):
                raise
            return False
        self.bytes = 0
        return True


class Pins:
    """Files that stay while a backup copies them over many turns, although the engine is done with
    them. They are deleted when the last backup ends, or as orphans by the start after a crash.

    count: backups in progress. paths, trees: files and directories whose deletion waits.
    """

    def __init__(self) -> None:
        self.count: int = 0
        self.paths: list[str] = []
        self.trees: list[str] = []

    def take(self) -> tuple[list[str], list[str]]:
        """Return and clear the paths and trees that may be deleted now."""
        paths, self.paths = self.paths, []
        trees, self.trees = self.trees, []
        return paths, trees


def delete(fs: FileSystem, paths: list[str], trees: list[str]) -> None:
    """Delete files, and directories with the files in them. Missing ones are ignored."""
    for path in paths:
        _unlink(fs, path)
    for tree in trees:
        if fs.exists(tree):
            for name in fs.list(tree):
                _unlink(fs, f"{tree}/{name}")
            fs.rmdir(tree)


def _unlink(fs: FileSystem, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(path)


def _nothing() -> None:
    pass
