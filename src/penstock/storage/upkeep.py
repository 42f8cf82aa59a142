"""Upkeep: the engine's work in the background: when a checkpoint is due, reaping, combining, space.

All of it is steps of the core, taken from `tick`; never a thread of its own. A checkpoint is due
after 64 MiB of log, 256 MiB of store bytes written or released, 1 M records or 30 s of change,
whichever is first, so the log that a recovery has to read is bounded by all four.

Reaping reads the slots of purged segments for the store references in them, one segment at a time,
once the purge is durable, and logs a RELEASE for each. Combining copies what lives in store files
that are mostly garbage.

What is kept for reuse only, and given back when nobody writes or there is no room, is trimmer.py.

Space: below `disk_free_limit` publishers are refused; a checkpoint that meets ENOSPC gives the
reserve back and goes on, and if that does not help is given up. It is tried again a second later if
there is more space than there was, else every few seconds, because consumers make it smaller. While
publishers are refused every change makes a checkpoint due that soon, because it frees what
consumers are done with. Publishers go on once there is room for the limit and for the reserve that
the log since the last checkpoint needs. The disk is looked at once a second, and when a quarter of
the room above the limit has been written. On a small disk, by what is free above the limit, there
is less log between two checkpoints and less reserve than it could have.

Where log and messages are on two disks, all of this is about the one with less free space; the
events name it.
"""

from typing import TYPE_CHECKING, Final

from penstock.errors import SyncFailedError
from penstock.storage import message_store_gc, record, recovery
from penstock.storage.checkpointer import FULL, IDLE, SLICES, delete
from penstock.storage.durability import OS
from penstock.storage.queue_index import QueueIndex
from penstock.storage.record import StoreRef
from penstock.storage.reserve import Reserve
from penstock.storage.trimmer import Trimmer

if TYPE_CHECKING:
    from penstock.storage.engine import StorageEngine

CHECK_DISK_S: Final = 1.0
AGAIN_S: Final = 5.0  # between two checkpoints while publishers are refused
LOG_SHARE: Final = 8  # of the room above the limit, that log and reserve may have each
LOOK_SHARE: Final = 4  # of that room, that may be written before it is looked at again
LOG_SEGMENTS: Final = 8  # of the smallest size: the log between two checkpoints at the least


class Upkeep:
    """One per engine."""

    def __init__(self, engine: "StorageEngine") -> None:
        self._engine = engine
        self.reserve = Reserve(engine.fs, engine.path)
        self._cut_bytes = engine.log.appended_bytes
        self._cut_records = engine.log.appended_records
        self._cut_store_bytes = self._store_bytes()
        self._cut_at = engine.clock.monotonic()
        # As they were before the checkpoint in progress, for one that is given up.
        self._before = (self._cut_bytes, self._cut_records, self._cut_store_bytes, self._cut_at)
        self._is_owed: bool = False  # the last checkpoint was given up for want of space
        self._owed_free: int = 0  # what was free then
        self._is_told: bool = False  # that one was given up, since publishers are refused
        self._disk_at = engine.clock.monotonic()
        self._grow_at: float = 0.0  # when the reserve may be tried to be made again
        self._is_reserve_told: bool = False  # that it could not be
        self.trimmer = Trimmer(engine, self.reserve)
        # Bytes of the disk above the limit, when it was looked at.
        self._room: int = max(0, self._free_bytes() - engine.options.disk_free_limit)
        self._looked_bytes: int = 0  # what had been written then
        self._combining = False
        engine.log.on_full(self.make_room)

    def tick(self, now: float) -> None:
        """See the head of this module."""
        engine = self._engine
        checkpoints = engine.checkpoints
        if checkpoints.phase == IDLE and self._is_due(now):
            self.begin_checkpoint()
        if checkpoints.phase == SLICES:
            self.step_checkpoint(now + engine.options.slice_ms / 1000)
        engine.batches.place()
        self.reap()
        self.combine()
        self.delete_transient_segments()
        if now - self._disk_at >= CHECK_DISK_S:
            self._disk_at = now
            self.check_disk()
            self.trimmer.look(now, self.needed_bytes)
            engine.state.streams.release_some()
        elif not engine.blocked and self._bytes() - self._looked_bytes > self._room // LOOK_SHARE:
            self.check_disk()  # a fast publisher fills a small disk within a second

    def _bytes(self) -> int:
        """Of all that was written; it only grows."""
        engine = self._engine
        transient = engine.transient.written_bytes
        return engine.log.appended_bytes + self._store_bytes() + engine.written_bytes + transient

    @property
    def needed_bytes(self) -> int:
        """What a checkpoint has to write at most, and so what the reserve has to be."""
        engine = self._engine
        return engine.log.appended_bytes - self._cut_bytes + engine.checkpoints.bytes

    # ---- checkpoints ---------------------------------------------------------------------------

    def _is_due(self, now: float) -> bool:
        log, options = self._engine.log, self._engine.options
        if self._is_owed or self._engine.blocked:
            return self._is_due_without_space(now)
        if log.appended_records == self._cut_records and not self._engine.state.ticks.dead:
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
        """While publishers are refused: soon, if something has changed; and one that was given up,
        as soon as there is more space."""
        is_changed = self._engine.log.appended_records != self._cut_records
        if not self._is_owed and not is_changed and not self._engine.state.ticks.dead:
            return False
        if now - self._cut_at >= AGAIN_S:
            return True
        is_time = now - self._cut_at >= CHECK_DISK_S
        return self._is_owed and is_time and self._free_bytes() > self._owed_free

    def _free_bytes(self) -> int:
        return self._engine.fullest_disk()[1]

    def _store_bytes(self) -> int:
        store = self._engine.state.store
        return store.written_bytes + store.released_bytes

    def begin_checkpoint(self, *, is_clean: bool = False, is_whole: bool = False) -> None:
        """The cut of a checkpoint (see Checkpointer.begin), if none is in progress, and no large
        commit or adoption is under way."""
        engine = self._engine
        if engine.checkpoints.phase != IDLE or engine.is_committing:
            return
        if engine.state.streams.adopting:
            return  # it would name pages that are not there yet
        engine.checkpoints.begin(is_clean=is_clean, is_whole=is_whole)
        self._before = (self._cut_bytes, self._cut_records, self._cut_store_bytes, self._cut_at)
        self._is_owed = False
        self._cut_bytes = engine.log.appended_bytes
        self._cut_records = engine.log.appended_records
        self._cut_store_bytes = self._store_bytes()
        self._cut_at = engine.clock.monotonic()

    def step_checkpoint(self, until: float) -> None:
        """A slice of it. Out of space: the reserve is given back, then the checkpoint given up."""
        engine = self._engine
        try:
            engine.checkpoints.step(until)
        except SyncFailedError as error:
            engine.stop(error)
        except OSError as error:
            if error.errno not in FULL:
                engine.stop(error)
            elif not self.reserve.release():
                engine.checkpoints.give_up(error)

    def checkpoint_failed(self, error: OSError) -> None:
        """A checkpoint was given up for want of space; the next may use what the reserve had."""
        self._cut_bytes, self._cut_records, self._cut_store_bytes, _ = self._before
        self._is_owed = True
        self._owed_free = self._free_bytes()
        self.reserve.release()
        if not self._is_told or not self._engine.blocked:
            self._is_told = True
            self._engine.block(f"a checkpoint was given up, it will be tried again: {error}")

    def checkpoint(self, *, is_clean: bool = False) -> bool:
        """A whole checkpoint, now; False if it was given up twice for want of space."""
        checkpoints = self._engine.checkpoints
        self._drive()
        if not self._engine.batches.finish_adoptions():
            return False
        for _ in range(2):
            before = checkpoints.count
            self.begin_checkpoint(is_clean=is_clean)
            self._drive()
            if checkpoints.count > before:
                return True
        return False

    def close(self) -> None:
        """The last checkpoint, clean, and what is not needed until the next start goes. Without
        space for it all stays as it is: the next start reads the log."""
        self._drive()
        self.trimmer.before_close()
        if self.checkpoint(is_clean=True):
            self.trimmer.after_close(self._engine.checkpoints.bytes)
        self.finish()

    def _drive(self) -> None:
        engine = self._engine
        while engine.checkpoints.phase != IDLE:
            if engine.checkpoints.phase == SLICES:
                self.step_checkpoint(float("inf"))
            else:
                engine.log.flush()
                engine.after_log()
                engine.poll(wait=True)
            engine.check()

    # ---- reaping and combining -----------------------------------------------------------------

    def delete_transient_segments(self) -> None:
        """Dead segment files of queues that are not durable go now: no checkpoint names them."""
        engine = self._engine
        state = engine.state
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
            engine.submit(lambda: delete(engine.fs, paths, []), _nothing, self._not_deleted)

    def reap(self) -> bool:
        """Release the references of one purged segment. False if there is nothing to do yet."""
        engine = self._engine
        state = engine.state
        if not state.reaping or state.reap_lsn > engine.log.durable_lsn or engine.is_committing:
            return False
        (number, segment), bits = next(iter(state.reaping.items()))
        refs: list[StoreRef] = []
        queue = state.index_of(number)
        if queue is not None:
            refs, faults = state.purged_refs(queue, segment, bits)
            for fault in faults:
                engine.event("corruption", f"the references of a purged slot are lost: {fault}")
        data = record.release_data(number, segment)
        engine.log.append(record.RELEASE, 0, 0, data, OS)
        state.apply_release(number, segment, refs)
        return True

    def combine(self) -> bool:
        """Begin to combine store files that are mostly garbage; False if there are none."""
        engine = self._engine
        if self._combining:
            return False
        files = message_store_gc.choose(engine.state.store)
        if not files:
            return False
        job = message_store_gc.Combine(engine.state.store, files)

        def done(_: object) -> None:
            self._combining = False
            job.finish()

        def failed(error: BaseException) -> None:
            self._combining = False
            job.abandon()
            if isinstance(error, SyncFailedError):
                engine.stop(error)
            else:
                engine.event("combine", f"store files could not be combined: {error}")

        self._combining = True
        engine.submit(job.run, done, failed)
        return True

    # ---- space ---------------------------------------------------------------------------------

    def make_room(self) -> bool:
        """The log needs a segment now and the disk is full: publishers wait, acks, purges and
        deletes go on with what the reserve had. False if there is no reserve."""
        has_room = self.reserve.release()
        if has_room:
            self._engine.block("the log goes on in the room of the reserve")
        elif not self._engine.blocked:
            self._engine.block("there is no room for the next segment of the log")
        return has_room

    def check_disk(self) -> None:
        """Refuse publishers below the limit of free space, until there is enough again."""
        engine = self._engine
        disk, free = engine.fullest_disk()
        limit = engine.options.disk_free_limit
        self._room = max(0, free - limit)
        self._looked_bytes = self._bytes()
        want = self.trimmer.reserve_bytes(self.needed_bytes)
        self.reserve.want(want)
        if self.reserve.bytes - want > self._room // LOG_SHARE:
            self.trimmer.trim_reserve(self.needed_bytes)  # a small disk
        if not engine.blocked and free < limit:
            text = f"{disk}: {free} bytes are free, the limit is {limit}: publishers are refused"
            engine.block(text)
        elif engine.blocked and free >= limit + self.reserve.missing():
            engine.blocked = False
            self._is_told = False
            engine.event("disk_free", f"{disk}: {free} bytes are free again: publishers go on")
        if not engine.blocked and engine.clock.monotonic() >= self._grow_at:
            growth = self.reserve.take_growth(free - limit)
            if growth is not None:
                engine.submit(growth, self._grown, self._not_grown)

    def _grown(self, size: object) -> None:
        self.reserve.grown(size)
        if size:
            self._is_reserve_told = False
        else:
            self._grow_at = self._engine.clock.monotonic() + AGAIN_S

    def _not_grown(self, error: BaseException) -> None:
        """No alarm, for there is space enough: publishers go on, and it is tried again."""
        self.reserve.not_grown()
        self._grow_at = self._engine.clock.monotonic() + AGAIN_S
        if not self._is_reserve_told:
            self._is_reserve_told = True
            self._engine.event("warning", f"the reserve could not be made: {error}")

    def delete_orphans(self) -> None:
        """After recovery's checkpoint: delete what a crash left and nothing knows, and mend the
        queues' names for people, which a power cut may have torn."""
        engine = self._engine
        files, trees = recovery.orphans(
            engine.fs, engine.state, engine.checkpoints.number, engine.recovered.unknown
        )
        if files or trees:
            engine.submit(lambda: delete(engine.fs, files, trees), _nothing, self._not_deleted)
            self.finish()
        if not engine.recovered.is_clean:
            for queue in engine.state.queues.values():
                if engine.fs.exists(queue.path):
                    self._mend_name(queue)

    def _mend_name(self, queue: QueueIndex) -> None:
        try:
            queue.make_directory()
        except OSError as error:
            self._engine.event("clean", f"{queue.path}/.queue_name could not be mended: {error}")

    def finish(self) -> None:
        """Wait for everything that is under way."""
        engine = self._engine
        while engine.has_pending:
            engine.poll(wait=True)

    def _not_deleted(self, error: BaseException) -> None:
        self._engine.event("clean", f"an orphan could not be deleted: {error}")


def _nothing(_: object) -> None:
    pass
