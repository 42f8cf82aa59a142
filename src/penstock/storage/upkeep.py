"""Upkeep: the engine's background work: when a checkpoint is due, reaping, combining, space.

All of it is steps of the core, taken from `tick`, never a thread of its own. A checkpoint is due
after 64 MiB of log, 256 MiB of store bytes written or released, 1 M records or 30 s of change,
whichever is first, so the log that a recovery has to read is bounded by all four.

Reaping reads the slots of purged segments for the store references in them, one segment at a time,
once the purge is durable, and logs a RELEASE for each. Combining copies the live bodies out of
store files that are mostly garbage. trimmer.py gives back what is kept for reuse only, when nobody
writes or there is no room.

Space. Below `disk_free_limit` publishers are refused. A checkpoint that meets ENOSPC gives the
reserve back and goes on; if that does not help it is given up. It is tried again a second later if
there is more space than there was, else every few seconds, because consumers make it smaller. While
publishers are refused every change makes a checkpoint due that soon, because it frees what
consumers have acknowledged. Publishers go on once there is room for the limit and for the reserve
that the log since the last checkpoint needs. The free space is read once a second, and when a
quarter of the room above the limit has been written. On a small disk, by what is free above the
limit, there is less log between two checkpoints and less reserve than there could be.

Where log and messages are on two disks, all of this is about the one with less free space; the
events name it.

Trimmer: gives back room on the disk that the engine keeps for reuse.

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

Together IDLE_LOG_SEGMENTS segments of the smallest size (1 MiB by default), the reserve and twice
SLACK_BYTES: below 16 MiB beside what holds messages. The first publishes after it find what those
of a new store find.

Each step leaves a correct store after a crash, and may fail for want of space without harm: it is
tried again. At most ROUNDS checkpoints are made for this alone in one idle period. A backup that
copies delays all of it.
"""

from collections.abc import Callable
from typing import Final

from penstock.errors import SyncFailedError
from penstock.storage import message_store_gc, recovery
from penstock.storage.batch_engine import BatchEngine
from penstock.storage.checkpoint import FULL, IDLE, SLICES, Checkpointer, delete
from penstock.storage.durability import OS
from penstock.storage.journal import Journal, Pins, Reserve
from penstock.storage.message_store import MessageStore
from penstock.storage.queue_index import QueueIndex
from penstock.storage.record import StoreRef
from penstock.storage.record_types import Release
from penstock.storage.recovery import Recovered

IDLE_S: Final = 60.0  # without a record
AGAIN_S: Final = 5.0  # between two checkpoints that are made for this
ROUNDS: Final = 4
IDLE_LOG_SEGMENTS: Final = 6  # of the smallest size; a log of that size is left alone
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
        if journal.log.disk_bytes > IDLE_LOG_SEGMENTS * journal.options.wal_segment_bytes_min:
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


CHECK_DISK_S: Final = 1.0
LOG_SHARE: Final = 8  # of the room above the limit, that log and reserve may have each
LOOK_SHARE: Final = 4  # of that room, that may be written before it is looked at again
LOG_SEGMENTS: Final = 8  # of the smallest size: the log between two checkpoints at the least


class Upkeep:
    """One per engine. transient: the store of transient messages."""

    def __init__(
        self, journal: Journal, checkpoints: Checkpointer, batches: BatchEngine,
        transient: MessageStore, reserve: Reserve, pins: Pins,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._checkpoints = checkpoints
        self._batches = batches
        self._transient = transient
        self.reserve = reserve
        self._cut_bytes = journal.log.appended_bytes
        self._cut_records = journal.log.appended_records
        self._cut_store_bytes = self._store_bytes()
        self._cut_at = journal.clock.monotonic()
        # As they were before the checkpoint in progress, for one that is given up.
        self._before = (self._cut_bytes, self._cut_records, self._cut_store_bytes, self._cut_at)
        self._is_owed: bool = False  # the last checkpoint was given up for want of space
        self._owed_free: int = 0  # what was free then
        self._is_told: bool = False  # that one was given up, since publishers are refused
        self._disk_at = journal.clock.monotonic()
        self._grow_at: float = 0.0  # when the reserve may be tried to be made again
        self._is_reserve_told: bool = False  # that it could not be
        self.trimmer = Trimmer(
            journal, checkpoints, transient, reserve, pins, self.begin_checkpoint
        )
        # Bytes of the disk above the limit, when it was looked at.
        self._room: int = max(0, self._free_bytes() - journal.options.disk_free_limit)
        self._looked_bytes: int = 0  # what had been written then
        self._combining = False
        checkpoints.on_given_up = self.checkpoint_failed
        journal.log.on_full(self.make_room)

    def tick(self, now: float) -> None:
        """See the head of this module."""
        journal = self._journal
        checkpoints = self._checkpoints
        if checkpoints.phase == IDLE and self._is_due(now):
            self.begin_checkpoint()
        if checkpoints.phase == SLICES:
            self.step_checkpoint(now + journal.options.slice_ms / 1000)
        self._batches.place()
        self.reap()
        self.combine()
        self.delete_transient_segments()
        if now - self._disk_at >= CHECK_DISK_S:
            self._disk_at = now
            self.check_disk()
            self.trimmer.look(now, self.needed_bytes)
            journal.state.streams.release_some()
        elif not journal.blocked and self._bytes() - self._looked_bytes > self._room // LOOK_SHARE:
            self.check_disk()  # a fast publisher fills a small disk within a second

    def _bytes(self) -> int:
        """Bytes of all that was written; the number only grows."""
        journal = self._journal
        written = self._checkpoints.written_bytes + self._transient.written_bytes
        return journal.log.appended_bytes + self._store_bytes() + written

    @property
    def needed_bytes(self) -> int:
        """What a checkpoint has to write at most, and so what the reserve has to be."""
        journal = self._journal
        return journal.log.appended_bytes - self._cut_bytes + self._checkpoints.bytes

    # ---- checkpoints ---------------------------------------------------------------------------

    def _is_due(self, now: float) -> bool:
        log, options = self._journal.log, self._journal.options
        if self._is_owed or self._journal.blocked:
            return self._is_due_without_space(now)
        if log.appended_records == self._cut_records and not self._journal.state.ticks.dead:
            return False
        # On a small disk sooner: until then it holds the log, the reserve for it and the messages;
        # and while there is hardly any room as soon as anything may be given back.
        least_bytes = LOG_SEGMENTS * options.wal_segment_bytes_min
        room_bytes = max(self._room // LOG_SHARE, least_bytes)
        is_low = self._room < 2 * least_bytes and now - self._cut_at >= AGAIN_S
        return (
            log.appended_bytes - self._cut_bytes >= min(options.checkpoint_log_bytes, room_bytes)
            or log.appended_records - self._cut_records >= options.checkpoint_records
            or self._store_bytes() - self._cut_store_bytes >= options.checkpoint_store_bytes
            or now - self._cut_at >= options.checkpoint_seconds
            or is_low
        )

    def _is_due_without_space(self, now: float) -> bool:
        """While publishers are refused a checkpoint is due soon after any change; one that was
        given up, as soon as there is more space."""
        is_changed = self._journal.log.appended_records != self._cut_records
        if not self._is_owed and not is_changed and not self._journal.state.ticks.dead:
            return False
        if now - self._cut_at >= AGAIN_S:
            return True
        is_time = now - self._cut_at >= CHECK_DISK_S
        return self._is_owed and is_time and self._free_bytes() > self._owed_free

    def _free_bytes(self) -> int:
        return self._journal.fullest_disk()[1]

    def _store_bytes(self) -> int:
        store = self._journal.state.store
        return store.written_bytes + store.released_bytes

    def begin_checkpoint(self, *, is_clean: bool = False, is_whole: bool = False) -> None:
        """The cut of a checkpoint (see Checkpointer.begin), if none is in progress, and no large
        commit or adoption is under way."""
        journal = self._journal
        if self._checkpoints.phase != IDLE or journal.is_committing:
            return
        if journal.state.streams.adopting:
            return  # it would name pages that are not there yet
        self._checkpoints.begin(is_clean=is_clean, is_whole=is_whole)
        self._before = (self._cut_bytes, self._cut_records, self._cut_store_bytes, self._cut_at)
        self._is_owed = False
        self._cut_bytes = journal.log.appended_bytes
        self._cut_records = journal.log.appended_records
        self._cut_store_bytes = self._store_bytes()
        self._cut_at = journal.clock.monotonic()

    def step_checkpoint(self, until: float) -> None:
        """Make a slice. Without space the reserve is given back, then the checkpoint given up."""
        journal = self._journal
        try:
            self._checkpoints.step(until)
        except SyncFailedError as error:
            journal.stop(error)
        except OSError as error:
            if error.errno not in FULL:
                journal.stop(error)
            elif not self.reserve.release():
                self._checkpoints.give_up(error)

    def checkpoint_failed(self, error: OSError) -> None:
        """Note that a checkpoint was given up for want of space. The next may use the reserve."""
        self._cut_bytes, self._cut_records, self._cut_store_bytes, _ = self._before
        self._is_owed = True
        self._owed_free = self._free_bytes()
        self.reserve.release()
        if not self._is_told or not self._journal.blocked:
            self._is_told = True
            self._journal.block(f"a checkpoint was given up, it will be tried again: {error}")

    def checkpoint(self, *, is_clean: bool = False) -> bool:
        """Make a whole checkpoint, now; False if it was given up twice for want of space."""
        checkpoints = self._checkpoints
        self._drive()
        if not self._batches.finish_adoptions():
            return False
        for _ in range(2):
            before = checkpoints.count
            self.begin_checkpoint(is_clean=is_clean)
            self._drive()
            if checkpoints.count > before:
                return True
        return False

    def close(self) -> None:
        """Make the last, clean checkpoint, and delete what the next start does not need. Without
        space for it all stays as it is: the next start reads the log."""
        self._drive()
        self.trimmer.before_close()
        if self.checkpoint(is_clean=True):
            self.trimmer.after_close(self._checkpoints.bytes)
        self._journal.finish()

    def _drive(self) -> None:
        while self._checkpoints.phase != IDLE:
            if self._checkpoints.phase == SLICES:
                self.step_checkpoint(float("inf"))
                self._journal.check()
            else:
                self._journal.push()

    # ---- reaping and combining -----------------------------------------------------------------

    def delete_transient_segments(self) -> None:
        """Delete dead segment files of queues that are not durable: no checkpoint names them."""
        journal = self._journal
        state = journal.state
        paths: list[str] = []
        left: list[tuple[int, int]] = []
        for number, segment in state.ticks.dead:
            queue = state.queues.get(number)
            if queue is None or queue.is_durable:
                left.append((number, segment))
            elif not state.names_segment(number, segment):
                queue.forget_files(segment)
                paths += [f"{queue.path}/{segment}.qi", f"{queue.path}/{segment}.qs"]
        if paths:
            state.ticks.dead = left
            journal.submit(lambda: delete(journal.fs, paths, []), _nothing, self._not_deleted)

    def reap(self) -> bool:
        """Release the references of one purged segment. False if there is nothing to do yet."""
        journal = self._journal
        state = journal.state
        if not state.reaping or state.reap_lsn > journal.log.durable_lsn or journal.is_committing:
            return False
        (number, segment), bits = next(iter(state.reaping.items()))
        refs: list[StoreRef] = []
        queue = state.index_of(number)
        if queue is not None:
            refs, faults = state.purged_refs(queue, segment, bits)
            for fault in faults:
                journal.event("corruption", f"the references of a purged slot are lost: {fault}")
        journal.commit([Release(number, segment, refs)], OS)
        return True

    def combine(self) -> bool:
        """Begin to combine store files that are mostly garbage; False if there are none."""
        journal = self._journal
        if self._combining:
            return False
        files = message_store_gc.choose(journal.state.store)
        if not files:
            return False
        job = message_store_gc.Combine(journal.state.store, files)

        def done(_: object) -> None:
            self._combining = False
            job.finish()

        def failed(error: BaseException) -> None:
            self._combining = False
            job.abandon()
            if isinstance(error, SyncFailedError):
                journal.stop(error)
            else:
                journal.event("combine", f"store files could not be combined: {error}")

        self._combining = True
        journal.submit(job.run, done, failed)
        return True

    # ---- space ---------------------------------------------------------------------------------

    def make_room(self) -> bool:
        """The log needs a segment and the disk is full: publishers wait; acks, purges and deletes
        go on with the room of the reserve. False if there is no reserve."""
        has_room = self.reserve.release()
        if has_room:
            self._journal.block("the log goes on in the room of the reserve")
        elif not self._journal.blocked:
            self._journal.block("there is no room for the next segment of the log")
        return has_room

    def check_disk(self) -> None:
        """Refuse publishers below the limit of free space, until there is enough again."""
        journal = self._journal
        disk, free = journal.fullest_disk()
        limit = journal.options.disk_free_limit
        self._room = max(0, free - limit)
        self._looked_bytes = self._bytes()
        want = self.trimmer.reserve_bytes(self.needed_bytes)
        self.reserve.want(want)
        if self.reserve.bytes - want > self._room // LOG_SHARE:
            self.trimmer.trim_reserve(self.needed_bytes)  # a small disk
        if not journal.blocked and free < limit:
            text = f"{disk}: {free} bytes are free, the limit is {limit}: publishers are refused"
            journal.block(text)
        elif journal.blocked and free >= limit + self.reserve.missing():
            self._is_told = False
            journal.unblock(f"{disk}: {free} bytes are free again: publishers go on")
        if not journal.blocked and journal.clock.monotonic() >= self._grow_at:
            growth = self.reserve.take_growth(free - limit)
            if growth is not None:
                journal.submit(growth, self._grown, self._not_grown)

    def _grown(self, size: object) -> None:
        self.reserve.grown(size)
        if size:
            self._is_reserve_told = False
        else:
            self._grow_at = self._journal.clock.monotonic() + AGAIN_S

    def _not_grown(self, error: BaseException) -> None:
        """Report it, but refuse nobody: there is space enough, and it is tried again."""
        self.reserve.not_grown()
        self._grow_at = self._journal.clock.monotonic() + AGAIN_S
        if not self._is_reserve_told:
            self._is_reserve_told = True
            self._journal.event("warning", f"the reserve could not be made: {error}")

    def delete_orphans(self, recovered: Recovered) -> None:
        """After recovery's checkpoint: delete what a crash left and nothing knows, and mend the
        queues' names for people, which a power cut may have torn."""
        journal = self._journal
        files, trees = recovery.orphans(
            journal.fs, journal.state, self._checkpoints.number, recovered.unknown
        )
        if files or trees:
            journal.submit(lambda: delete(journal.fs, files, trees), _nothing, self._not_deleted)
            journal.finish()
        if not recovered.is_clean:
            for queue in journal.state.queues.values():
                if journal.fs.exists(queue.path):
                    self._mend_name(queue)

    def _mend_name(self, queue: QueueIndex) -> None:
        try:
            queue.make_directory()
        except OSError as error:
            self._journal.event("clean", f"{queue.path}/.queue_name could not be mended: {error}")

    def _not_deleted(self, error: BaseException) -> None:
        self._journal.event("clean", f"an orphan could not be deleted: {error}")
