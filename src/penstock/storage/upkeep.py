"""Upkeep: the engine's background work: when a checkpoint is due, reaping, combining, disk space.

All of it runs in steps from `tick`, in the owner's thread. A checkpoint is due after 64 MiB of log,
256 MiB of store bytes written or released, 1 M records, or 30 s with a change, whichever is first.
All four bound the log that a recovery has to read. It is due, too, when 1,000 deleted queues or
streams wait for it to delete their directories, because they take RAM until then.

Reaping reads the slots of purged segments for the store references in them, one segment at a time,
once the purge is durable, and logs a RELEASE for each. Combining copies the live bodies out of
store files that are mostly garbage. Transient messages that a purge, or the deletion of their
queue, has taken from disk are read and released in slices of RELEASE_MESSAGES; the files of the
queue stay until then.

Disk space. Publishers are refused below `disk_free_limit`. A checkpoint that meets ENOSPC releases
the reserve and continues; if that is not enough it is given up. It is tried again a second later if
there is more space than there was, else every few seconds, because consumers make it smaller. While
publishers are refused every change makes a checkpoint due that soon, because it frees what
consumers have acknowledged. Publishers are accepted again once there is room for the limit and for
the reserve that the log since the last checkpoint needs. The free space is read once a second, and
when a quarter of the room above the limit has been written. On a small disk, measured by what is
free above the limit, the log between two checkpoints and the reserve are smaller. Where log and
messages are on two disks, all this is about the disk with less free space; the events name it.

Trimming. While messages come and go it pays to keep files for reuse: log segments that are filled
with zeros, a large reserve, the store file and the queue segments that are being written although
nothing in them is alive. In an idle store, or on a full disk, they only take room. So the Trimmer
looks once a second:

    idle     no record was logged for 45 s: what is kept above the sizes below is deleted
    blocked  publishers are refused because the disk is full: the same, and until they are accepted
             the log keeps no segments for reuse
    closing  the same once more, and of the log only the segment in use is left

What is trimmed, and why it is safe:

    log               continues in a segment of the smallest size, with one of twice that prepared,
                      as after a start; the next checkpoint deletes the old ones [6]
    store files       that checkpoint also deletes a dead one that was still appended to
    queue segments    the last one of an empty queue: its seqs continue at the next segment's
                      border, because the numbers and files of a deleted one are never used again
    transient bodies  no checkpoint names them: dead files are deleted at once
    reserve           is cut to what it must be: the log not yet materialised, the manifest, and a
                      segment of the log for a start on a full disk; in an idle store to
                      RESERVE_BYTES at most

What remains is IDLE_LOG_SEGMENTS segments of the smallest size (1 MiB by default), the reserve and
twice SLACK_BYTES: below 16 MiB beside what holds messages. Each step leaves a correct store after a
crash, and may fail without harm when there is no space: it is tried again. At most ROUNDS
checkpoints are made for trimming alone in one idle period. A running backup delays all of it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from penstock.errors import CorruptionError, SyncFailedError, has_no_descriptor, is_shortage
from penstock.options import format_bytes
from penstock.storage.files.durability import OS
from penstock.storage.index.queue_index import PagedTransient, QueueIndex
from penstock.storage.journal import recovery
from penstock.storage.journal.checkpoint import IDLE, SLICES, Checkpointer
from penstock.storage.journal.journal import DESCRIPTORS, Journal, short_of
from penstock.storage.journal.record_types import Release
from penstock.storage.journal.recovery import Recovered
from penstock.storage.log.record import StoreRef
from penstock.storage.parts.batch_engine import BatchEngine
from penstock.storage.store import message_store_gc
from penstock.storage.store.message_store import MessageStore

CHECK_DISK_S: Final = 1.0
LOG_SHARE: Final = 8  # log and reserve may each have this part of the room above the limit
LOOK_SHARE: Final = 4  # the room is read again when this part of it has been written
NEAR_BYTES: Final = 1 << 30  # of room; a quarter of more is not written between two ticks
LOG_SEGMENTS: Final = 8  # of the smallest size: least log between two checkpoints
RELEASE_MESSAGES: Final = 256  # transient ones, in one slice
IDLE_S: Final = 45.0  # without a record: what follows is done before a minute is over
DELETED_MOST: Final = 1000  # queues and streams whose directories a checkpoint has to delete
AGAIN_S: Final = 5.0  # between two checkpoints on a full disk, or two for trimming alone
ROUNDS: Final = 4
IDLE_LOG_SEGMENTS: Final = 6  # of the smallest size; a log of that size is left alone
RESERVE_BYTES: Final = 6 << 20
SLACK_BYTES: Final = 1 << 20  # of dead store files, and of segments of empty queues, that may stay


class Upkeep:
    """One per engine. transient: the store of transient messages."""

    def __init__(
        self, journal: Journal, checkpoints: Checkpointer, batches: BatchEngine,
        transient: MessageStore,
    ) -> None:  # fmt: skip
        self._journal = journal
        self._checkpoints = checkpoints
        self._batches = batches
        self._transient = transient
        self._reserve = journal.reserve
        self._cut_bytes = journal.log.appended_bytes
        self._cut_records = journal.log.appended_records
        self._cut_store_bytes = self._store_bytes()
        self._cut_at = journal.clock.monotonic()
        # The same before the checkpoint in progress, in case it is given up.
        self._before = (self._cut_bytes, self._cut_records, self._cut_store_bytes, self._cut_at)
        # Purges whose transient messages are not all released yet.
        self._releasing: deque[tuple[QueueIndex, Iterator[PagedTransient], dict[int, int]]] = (
            deque()
        )
        self.reasons: dict[str, int] = {}  # how many cuts were made for: time, log, asked, stop
        self.combines: int = 0  # of store files, since the start
        self.combined_bytes: int = 0  # that they copied
        self._is_given_up: bool = False  # the last checkpoint, because the disk was full
        self._given_up_free: int = 0  # bytes that were free then
        self._is_reported: bool = False  # that it was given up, since publishers are refused
        self._disk_at = journal.clock.monotonic()
        self._grow_at: float = 0.0  # when growing the reserve may be tried again
        self._is_growth_reported: bool = False  # that it failed
        self.trimmer = Trimmer(journal, checkpoints, transient, self.begin_checkpoint)
        # Free bytes above the limit, when they were last read.
        self._room: int = max(0, self._free_bytes() - journal.options.disk_free_limit)
        # With so little room `look_at_room` is to be called in each turn, not at ticks alone.
        self.is_near_limit: bool = self._room < NEAR_BYTES
        self._room_at_bytes: int = 0  # `_bytes` then
        self._combining = False
        self._is_reaping_reported: bool = False  # that slots cannot be read
        checkpoints.on_given_up = self.checkpoint_failed
        journal.log.on_full(self.make_room)

    def tick(self, now: float) -> None:
        """Do what is due. now: monotonic time, seconds."""
        journal = self._journal
        checkpoints = self._checkpoints
        journal.cut_waits = False
        if checkpoints.phase == IDLE and self._is_due(now):
            is_late = now - self._cut_at >= journal.options.checkpoint_seconds
            self.begin_checkpoint(reason="time" if is_late else "log")
        if checkpoints.phase == SLICES:
            self.step_checkpoint(now + journal.options.slice_ms / 1000)
        self._batches.place()
        self._reap_segment()
        until = now + journal.options.slice_ms / 1000
        while self._release_some() and journal.clock.monotonic() < until:
            pass
        self.combine()
        self.delete_transient_segments()
        if now - self._disk_at >= CHECK_DISK_S:
            self._disk_at = now
            self.check_disk()
            self.trimmer.look(now, self.needed_bytes)
            journal.state.streams.release_some()
        else:
            self.look_at_room()  # a fast publisher fills a small disk within a second

    def look_at_room(self) -> None:
        """Check the disk if much of the room that there was has been written."""
        if self._journal.blocked:
            return
        if self._bytes() - self._room_at_bytes > self._room // LOOK_SHARE:
            self.check_disk()

    def _bytes(self) -> int:
        """Return the bytes of all that was written since the start."""
        journal = self._journal
        written = self._checkpoints.written_bytes + self._transient.written_bytes
        return journal.log.appended_bytes + self._store_bytes() + written

    @property
    def needed_bytes(self) -> int:
        """What a checkpoint writes at most, and so the least size of the reserve."""
        journal = self._journal
        return journal.log.appended_bytes - self._cut_bytes + self._checkpoints.bytes

    # ---- checkpoints ---------------------------------------------------------------------------

    def _is_due(self, now: float) -> bool:
        log, options = self._journal.log, self._journal.options
        if self._is_given_up or self._journal.blocked:
            return self._is_due_without_space(now)
        state = self._journal.state
        deleted = len(state.deleted) + len(state.streams.deleted)
        is_changed = log.appended_records != self._cut_records
        if not is_changed and not state.ticks.dead and not deleted:
            return False
        # Sooner on a small disk, which contains the log, the reserve for it and the messages; and
        # while there is hardly any room, as soon as anything may be freed.
        least_bytes = LOG_SEGMENTS * options.wal_segment_bytes_min
        room_bytes = max(self._room // LOG_SHARE, least_bytes)
        is_low = self._room < 2 * least_bytes and now - self._cut_at >= AGAIN_S
        return (
            log.appended_bytes - self._cut_bytes >= min(options.checkpoint_log_bytes, room_bytes)
            or log.appended_records - self._cut_records >= options.checkpoint_records
            or self._store_bytes() - self._cut_store_bytes >= options.checkpoint_store_bytes
            or now - self._cut_at >= options.checkpoint_seconds
            or deleted >= DELETED_MOST
            or is_low
        )

    def _is_due_without_space(self, now: float) -> bool:
        """Return whether one is due while publishers are refused: soon after any change, and after
        one was given up, as soon as there is more space."""
        is_changed = self._journal.log.appended_records != self._cut_records
        if not self._is_given_up and not is_changed and not self._journal.state.ticks.dead:
            return False
        if now - self._cut_at >= AGAIN_S:
            return True
        is_time = now - self._cut_at >= CHECK_DISK_S
        return self._is_given_up and is_time and self._free_bytes() > self._given_up_free

    def _free_bytes(self) -> int:
        return self._journal.fullest_disk()[1]

    def _store_bytes(self) -> int:
        store = self._journal.state.store
        return store.written_bytes + store.released_bytes

    def begin_checkpoint(
        self, *, is_clean: bool = False, is_whole: bool = False, reason: str = "asked"
    ) -> None:
        """Make the cut of a checkpoint (see Checkpointer.begin), unless one is in progress, or a
        large commit or an adoption is. reason: for the counts."""
        journal = self._journal
        if self._checkpoints.phase != IDLE:
            return
        if journal.is_committing:
            journal.cut_waits = True
            return
        if journal.state.streams.adopting:
            return  # it would name pages that are not there yet
        self._checkpoints.begin(is_clean=is_clean, is_whole=is_whole)
        reason = "stop" if is_clean else reason
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self._before = (self._cut_bytes, self._cut_records, self._cut_store_bytes, self._cut_at)
        self._is_given_up = False
        self._cut_bytes = journal.log.appended_bytes
        self._cut_records = journal.log.appended_records
        self._cut_store_bytes = self._store_bytes()
        self._cut_at = journal.clock.monotonic()

    def step_checkpoint(self, until: float) -> None:
        """Make a slice. On a full disk release the reserve, and next time give up; without a
        descriptor give up at once."""
        journal = self._journal
        try:
            self._checkpoints.step(until)
        except SyncFailedError as error:
            journal.stop(error)
        except OSError as error:
            if not is_shortage(error):
                journal.stop(error)
            elif has_no_descriptor(error) or not self._reserve.release():
                self._checkpoints.give_up(error)

    def checkpoint_failed(self, error: OSError) -> None:
        """Note that a checkpoint was given up. The next may use the room of the reserve."""
        self._cut_bytes, self._cut_records, self._cut_store_bytes, _ = self._before
        self._is_given_up = True
        self._given_up_free = self._free_bytes()
        if not has_no_descriptor(error):
            self._reserve.release()
        if not self._is_reported or not self._journal.blocked:
            self._is_reported = True
            text = f"a checkpoint was given up, it will be tried again: {error}"
            self._journal.block(text, short_of(error))

    def checkpoint(self, *, is_clean: bool = False) -> bool:
        """Make a whole checkpoint now; False if it was given up twice."""
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
        """Make the last, clean checkpoint, and delete what the next start does not need. If the
        disk is full nothing changes, and the next start reads the log."""
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
            journal.delete_files(paths, [])

    def release(
        self, queue: QueueIndex, paged: Iterator[PagedTransient], attempts: dict[int, int]
    ) -> None:
        """Release what the files of a queue and the store keep for transient messages which a
        purge has taken from it: some at once, the rest in slices. paged: reads them from the
        slots. attempts: by seq; those of the messages are removed."""
        self._journal.state.releasing.append(queue.number)
        self._releasing.append((queue, paged, attempts))
        self._release_some()

    def _release_some(self) -> bool:
        """Release a slice of them. False if there is nothing to do."""
        if not self._releasing:
            return False
        queue, paged, attempts = self._releasing[0]
        n = 0
        for seq, id, file, in_files in islice(paged, RELEASE_MESSAGES):
            n += 1
            if in_files:
                queue.keep_transients(seq // queue.slots, -1)
            if file:
                try:
                    self._transient.unref(file, id)
                except (CorruptionError, OSError) as error:
                    kind = "corruption" if isinstance(error, CorruptionError) else "warning"
                    self._journal.event(kind, f"a purged body stays in the store: {error}")
            attempts.pop(seq, None)
        if n < RELEASE_MESSAGES:
            self._releasing.popleft()
            state = self._journal.state
            state.releasing.remove(queue.number)
            state.bury(queue.number)
        return True

    def reap(self) -> bool:
        """Release the store references of one purged segment, or of a slice of transient messages.
        False if there is nothing to do."""
        return self._release_some() or self._reap_segment()

    def _reap_segment(self) -> bool:
        journal = self._journal
        state = journal.state
        if not state.reaping or state.reap_lsn > journal.log.durable_lsn or journal.is_committing:
            return False
        (number, segment), bits = next(iter(state.reaping.items()))
        refs: list[StoreRef] = []
        queue = state.index_of(number)
        if queue is not None:
            try:
                refs, faults = state.purged_refs(queue, segment, bits)
            except OSError as error:
                self._report_reaping(error)
                return False
            self._is_reaping_reported = False
            for fault in faults:
                journal.event("corruption", f"the references of a purged slot are lost: {fault}")
        journal.commit([Release(number, segment, refs)], OS)
        return True

    def _report_reaping(self, error: OSError) -> None:
        """Report once that purged slots cannot be read; the next tick tries it again."""
        if not self._is_reaping_reported:
            self._is_reaping_reported = True
            self._journal.event("warning", f"purged bodies stay in the store for now: {error}")

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
            if job.finish():
                self.combines += 1
                self.combined_bytes += job.copied_bytes

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
        """Release the reserve and refuse publishers: the log needs a segment and the disk is full.
        Acks, purges and deletes use the room. False if there was no reserve."""
        has_room = self._reserve.release()
        if has_room:
            self._journal.block("the log uses the room of the reserve")
        elif not self._journal.blocked:
            self._journal.block("there is no room for the next segment of the log")
        return has_room

    def check_disk(self) -> None:
        """Refuse publishers below the limit of free space, or accept them again."""
        journal = self._journal
        journal.fs.restore_reserve()
        disk, free = journal.fullest_disk()
        limit = journal.options.disk_free_limit
        self._room = max(0, free - limit)
        self.is_near_limit = self._room < NEAR_BYTES
        self._room_at_bytes = self._bytes()
        want = self.trimmer.reserve_bytes(self.needed_bytes)
        self._reserve.want(want)
        if self._reserve.bytes - want > self._room // LOG_SHARE:
            self.trimmer.trim_reserve(self.needed_bytes)  # a small disk
        if not journal.blocked and free < limit:
            text = f"{format_bytes(free)} are free, the limit is {format_bytes(limit)}"
            journal.block(f"{disk}: {text}: nothing new is stored until there is more")
        elif journal.blocked and free >= limit + self._reserve.missing():
            text = f"{disk}: {format_bytes(free)} are free"
            if journal.short_of == DESCRIPTORS:
                if not self._has_descriptor():
                    return
                text = "files can be opened"
            self._is_reported = False
            journal.unblock(f"{text} again: new messages are stored")
        if not journal.blocked and journal.clock.monotonic() >= self._grow_at:
            growth = self._reserve.take_growth(free - limit)
            if growth is not None:
                journal.submit(growth, self._grown, self._not_grown)

    def _has_descriptor(self) -> bool:
        """Return whether files can be opened, without the reserve."""
        journal = self._journal
        try:
            journal.fs.open(f"{journal.path}/CURRENT").close()
        except OSError as error:
            return not has_no_descriptor(error)
        return journal.fs.restore_reserve()

    def _grown(self, size: object) -> None:
        self._reserve.grown(size)
        if size:
            self._is_growth_reported = False
        else:
            self._grow_at = self._journal.clock.monotonic() + AGAIN_S

    def _not_grown(self, error: BaseException) -> None:
        """Report it, but refuse nobody: there is space, and it is tried again."""
        self._reserve.not_grown()
        self._grow_at = self._journal.clock.monotonic() + AGAIN_S
        if not self._is_growth_reported:
            self._is_growth_reported = True
            self._journal.event("warning", f"the reserve could not be made: {error}")

    def delete_orphans(self, recovered: Recovered) -> None:
        """Delete what a crash left and no checkpoint names, and repair the `.queue_name` files,
        which a power cut may have torn. Called after recovery's checkpoint."""
        journal = self._journal
        files, trees = recovery.orphans(
            journal.fs, journal.state, self._checkpoints.number, recovered.unknown
        )
        if files or trees:
            journal.delete_files(files, trees)
            journal.finish()
        if not recovered.is_clean:
            for queue in journal.state.queues.values():
                if journal.fs.exists(queue.path):
                    self._repair_name(queue)

    def _repair_name(self, queue: QueueIndex) -> None:
        try:
            queue.make_directory()
        except OSError as error:
            self._journal.event("clean", f"{queue.path}/.queue_name could not be repaired: {error}")


# ---- trimming -----------------------------------------------------------------------------------


class Trimmer:
    """One per engine. is_idle: nothing was logged for IDLE_S. begin_checkpoint: begins one, if
    that is possible."""

    def __init__(
        self, journal: Journal, checkpoints: Checkpointer, transient: MessageStore,
        begin_checkpoint: Callable[[], None],
    ) -> None:  # fmt: skip
        self._journal = journal
        self._checkpoints = checkpoints
        self._transient = transient
        self._begin_checkpoint = begin_checkpoint
        self._lsn: int = journal.log.last_lsn
        self._since_s: float = journal.clock.monotonic()
        self._made_s: float = float("-inf")
        self._rounds: int = 0
        self._is_done: bool = False  # nothing was left to trim, and nothing was logged since
        self.is_idle: bool = False

    def look(self, now_s: float, needed_bytes: int) -> None:
        """Trim if the store is idle or blocked. Called once a second. needed_bytes: of the
        reserve."""
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
        if is_time and not self._is_done and self._rounds < ROUNDS and self._trim_files():
            self._rounds += 1
            self._made_s = now_s
        else:
            self.trim_reserve(needed_bytes)

    def _trim_files(self) -> bool:
        """Do the next step; True if it is a checkpoint."""
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
        """Return the size of the reserve, if a checkpoint needs so many bytes."""
        return min(needed_bytes, RESERVE_BYTES) if self.is_idle else needed_bytes

    def trim_reserve(self, needed_bytes: int) -> None:
        """Cut the reserve to what a checkpoint needs and what a start on a full disk takes before
        its checkpoint: a segment of the log."""
        kept = needed_bytes + self._journal.options.wal_segment_bytes_min
        self._journal.reserve.trim(self.reserve_bytes(kept))

    def _is_busy(self) -> bool:
        journal = self._journal
        return (
            self._checkpoints.phase != IDLE
            or journal.is_committing
            or journal.pins.count > 0
            or journal.log.is_shrinking
        )

    def leave_dead(self, slack_bytes: int = SLACK_BYTES) -> bool:
        """Stop writing to files in which nothing is alive, if they have more than `slack_bytes`.
        Returns whether a checkpoint now, in the same step, would free any room."""
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
        """Delete dead files of the transient store."""
        paths = self._transient.drop_dead()
        if paths:
            self._journal.delete_files(paths, [])

    # ---- closing -------------------------------------------------------------------------------

    def before_close(self) -> None:
        """Prepare the last checkpoint, so that it deletes as much as possible."""
        journal = self._journal
        journal.log.lean(True)
        journal.log.shrink()
        while journal.log.is_shrinking:
            journal.poll(wait=True)
            journal.check()
        self.leave_dead()

    def after_close(self, needed_bytes: int) -> None:
        """Delete the log: the last checkpoint is CURRENT and clean."""
        journal = self._journal
        journal.log.end()
        while journal.log.is_ending:
            journal.poll(wait=True)
        journal.finish()  # the reserve may still be growing, and is trimmed only after that
        self.is_idle = True
        self.trim_reserve(needed_bytes)


def _tail(queue: QueueIndex) -> int:
    """Return the bytes of files that an empty queue with nothing in RAM keeps for its next
    message."""
    if queue.count or queue.is_deleted or not queue.has_files:
        return 0
    if queue.holder.candidates(1 << 60, 1) or queue.holder.unsettled():
        return 0
    return queue.tail_bytes()
