"""Trimmer: gives back room on the disk that the engine keeps for reuse.

While messages come and go it pays to keep files: log segments that are zero-written already, a
reserve as large as it ever was, the store file and the queue segments that are being written,
though nothing in them is alive. They only matter to a store that is left alone, or whose disk is
full. So this is looked at once a second, and nothing of it costs a message anything:

    idle     for a minute no record was logged: what is kept above the sizes below goes
    blocked  publishers are refused for want of space: the same, and the log keeps no segments for
             reuse until they go on
    closing  the same once more, and of the log only the segment in use is left

What goes, and how it stays safe:

    log               goes on in a segment of the smallest size, with one of twice that ahead, as
                      after a start; the old ones go with the next checkpoint [6]
    store files       a dead one that is still appended to is taken by that checkpoint too
    queue segments    the last one of an *empty* queue: its seqs go on at the next segment's border,
                      because the numbers and files of one that goes are never used again
    transient bodies  no checkpoint names them: dead files go at once
    reserve           is cut to what it has to be: the log not yet materialised plus the manifest,
                      and a segment of the log for a start on a full disk; of an idle store to
                      RESERVE_BYTES at most

Together LOG_SEGMENTS segments of the smallest size (1 MiB by default), the reserve and twice
SLACK_BYTES: below 16 MiB beside what holds messages. The first publishes after it find what those
of a new store find.

Each step leaves a correct store after a crash, and may fail for want of space without harm: it is
tried again. At most ROUNDS checkpoints are made for this alone in one idle period. A backup that
copies delays all of it.
"""

from collections.abc import Callable
from typing import Final

from penstock.storage.checkpointer import IDLE, Checkpointer, delete
from penstock.storage.journal import Journal
from penstock.storage.message_store import MessageStore
from penstock.storage.pins import Pins
from penstock.storage.queue_index import QueueIndex
from penstock.storage.reserve import Reserve

IDLE_S: Final = 60.0  # without a record
AGAIN_S: Final = 5.0  # between two checkpoints that are made for this
ROUNDS: Final = 4
LOG_SEGMENTS: Final = 6  # of the smallest size; a log of that size is left alone
RESERVE_BYTES: Final = 6 << 20
SLACK_BYTES: Final = 1 << 20  # of dead store files, and of segments of empty queues, that may stay


class Trimmer:
    """One per engine. is_idle: nothing was logged for a minute. begin_checkpoint: begins one, if
    that is possible."""

    def __init__(
        self, journal: Journal, checkpoints: Checkpointer, transient: MessageStore,
        reserve: Reserve, pins: Pins, begin_checkpoint: Callable[[], None],
    ) -> None:  # fmt: skip
        self._journal = journal
        self._checkpoints = checkpoints
        self._transient = transient
        self._reserve = reserve
        self._pins = pins
        self._begin_checkpoint = begin_checkpoint
        self._lsn: int = journal.log.last_lsn
        self._since_s: float = journal.clock.monotonic()
        self._made_s: float = float("-inf")
        self._rounds: int = 0
        self._is_done: bool = False  # there was nothing left to give back, and nothing came since
        self.is_idle: bool = False

    def look(self, now_s: float, needed_bytes: int) -> None:
        """Once a second. needed_bytes: what the reserve has to be."""
        journal = self._journal
        if journal.log.last_lsn != self._lsn:
            self._lsn = journal.log.last_lsn
            self._since_s = now_s
            self._rounds = 0
            self._is_done = False
        self.is_idle = now_s - self._since_s >= IDLE_S
        journal.log.lean(self.is_idle or journal.blocked)
        if not self.is_idle and not journal.blocked:
            return
        if self._is_busy():
            return
        self.drop_transient()
        is_time = now_s - self._made_s >= AGAIN_S
        if journal.blocked and is_time:
            self._rounds = 0
            self._is_done = False
        if self._is_done and journal.state.store.has_dead():  # files were combined meanwhile
            self._is_done = False
        if is_time and not self._is_done and self._rounds < ROUNDS and self._give_back():
            self._rounds += 1
            self._made_s = now_s
        else:
            self.trim_reserve(needed_bytes)

    def _give_back(self) -> bool:
        """The next step; True if it is a checkpoint."""
        journal = self._journal
        if journal.log.disk_bytes > LOG_SEGMENTS * journal.options.wal_segment_bytes_min:
            journal.log.shrink()
        if journal.log.is_shrinking:
            return False
        if not self.leave_dead():
            self._is_done = True
            return False
        self._begin_checkpoint()
        return True

    def reserve_bytes(self, needed_bytes: int) -> int:
        """What the reserve is to be, if it has to be as large as that."""
        return min(needed_bytes, RESERVE_BYTES) if self.is_idle else needed_bytes

    def trim_reserve(self, needed_bytes: int) -> None:
        """Give back what the reserve has beyond what it has to be and what a start on a full disk
        takes before its checkpoint: a segment of the log."""
        kept = needed_bytes + self._journal.options.wal_segment_bytes_min
        self._reserve.trim(self.reserve_bytes(kept))

    def _is_busy(self) -> bool:
        journal = self._journal
        return (
            self._checkpoints.phase != IDLE
            or journal.is_committing
            or self._pins.count > 0
            or journal.log.is_shrinking
        )

    def leave_dead(self, slack_bytes: int = SLACK_BYTES) -> bool:
        """Let go of dead files that are still written to, if they have more than so many bytes;
        whether a checkpoint now, in the same step, would give any room back."""
        journal = self._journal
        store = journal.state.store
        tails = [(queue, size) for queue in journal.state.queues.values() if (size := _tail(queue))]
        if sum([size for _, size in tails]) > slack_bytes:
            for queue, _ in tails:
                queue.leave_tail()
        if store.dead_bytes() > slack_bytes:
            store.retire_dead()
        return journal.log.has_old or store.has_dead() or bool(journal.state.ticks.dead)

    def drop_transient(self) -> None:
        """Dead files of the transient store go."""
        journal = self._journal
        paths = self._transient.drop_dead()
        if paths:
            journal.submit(lambda: delete(journal.fs, paths, []), _nothing, self._not_deleted)

    def _not_deleted(self, error: BaseException) -> None:
        self._journal.event("clean", f"a dead file could not be deleted: {error}")

    # ---- closing -------------------------------------------------------------------------------

    def before_close(self) -> None:
        """Before the last checkpoint: so that it lets go of as much as there is."""
        journal = self._journal
        journal.log.lean(True)
        journal.log.shrink()
        while journal.log.is_shrinking:
            journal.poll(wait=True)
            journal.check()
        self.leave_dead()

    def after_close(self, needed_bytes: int) -> None:
        """The last checkpoint is CURRENT, and clean: no log is needed any more."""
        journal = self._journal
        journal.log.end()
        while journal.log.is_ending:
            journal.poll(wait=True)
        self.is_idle = True
        self.trim_reserve(needed_bytes)


def _tail(queue: QueueIndex) -> int:
    """Bytes of files that an empty queue with nothing in RAM keeps for its next message."""
    if queue.count or queue.is_deleted or not queue.has_files:
        return 0
    if queue.holder.candidates(1 << 60, 1) or queue.holder.unsettled():
        return 0
    return queue.tail_bytes()


def _nothing(_: object) -> None:
    pass
