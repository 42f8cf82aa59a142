"""Checkpointer: makes a checkpoint beside the traffic, in slices, in the order of rule [5].

    begin     the cut: the open group is closed, the epoch rises; from here on every part keeps its
              state as of this LSN at its first change (O(1), [3]); of each stream its position
    slices    queue by queue: what is only in RAM or log goes to slots and .qs, or, for a small
              queue, into a section of the checkpoint with its bodies in one new store file; at most
              `slice_ms` at a time. `Listing` first lists everything that may have to be written,
              piece by piece (holder.py says what may happen between two pieces); then `Writing`
              writes it, chunk by chunk
    sync      data files, pages, the store and their directories, off the owner's thread; and the
              log must be durable up to the cut, because counts and bitmaps rely on it [4]
    write     checkpoint-<n> and CURRENT (checkpoint.py)
    clean     what no manifest names any more is deleted [6]: segment files, store files, log
              segments, queue directories, the checkpoint before

The slices may leave out only what a *durable* dequeue took since the cut [4]: `limbo` of each queue
has what left RAM meanwhile. A purged entry is written all the same, because its slot will be read
for its references. The checkpoint of a backup is *whole*: it leaves nothing out, because the backup
has no log that says what was dequeued after the cut.

Failure. A checkpoint that runs out of space is given up: nothing names what it wrote, the one
before stays CURRENT, and the log stays; it is tried again when there is space. A failed sync stops
the engine [10].
"""

import contextlib
import errno
from collections.abc import Callable
from typing import Final

from penstock.errors import CorruptionError
from penstock.message import Entry, seq_of
from penstock.storage import checkpoint, streams
from penstock.storage.checkpoint import Head
from penstock.storage.closed_file import sync_closed
from penstock.storage.filesystem import FileSystem
from penstock.storage.holder import unwritten
from penstock.storage.journal import Journal
from penstock.storage.message_store import MessageStore
from penstock.storage.pins import Pins
from penstock.storage.queue_index import QueueIndex, Row, Section
from penstock.storage.staging import staged_files
from penstock.storage.store_file import FileState
from penstock.storage.streams import Stream, StreamSection


class Listing:
    """A queue whose slice has begun: its section, and what may have to be written of it, as the
    pieces of its holder come.

    pieces: of those in line, each descending, and all. owed: by seq, what is owed beside those: see
    holder.py.
    """

    __slots__ = ("below", "is_small", "owed", "pieces", "queue", "section")

    def __init__(self, queue: QueueIndex, section: Section, is_small: bool) -> None:
        self.queue: QueueIndex = queue
        self.section: Section = section
        self.is_small: bool = is_small
        self.below: int = queue.cut_seq
        self.pieces: list[list[Entry]] = []
        self.owed: dict[int, Entry] = {}

    def add(self, piece: list[Entry]) -> None:
        """The next piece. Of a small queue only what counts is kept: there may be transient ones in
        any number."""
        if piece:
            self.below = piece[-1].seq
        some = unwritten(piece, self.queue.cut_seq) if self.is_small else piece
        if some:
            self.pieces.append(some)

    def add_unsettled(self) -> None:
        """Those that are delivered at this moment."""
        for entry in unwritten(self.queue.holder.unsettled(), self.queue.cut_seq):
            self.owed[entry.seq] = entry

    def in_order(self) -> list[list[Entry]]:
        """All of it, descending, each once; and those that were in the section of the checkpoint
        before, with their bodies. Only pieces that reach down to the last of these are touched: as
        a rule the oldest one alone."""
        owed, rows, pieces = self.owed, self.section.rows, self.pieces
        last = max(max(owed, default=-1), max(rows, default=-1))
        some = {seq: Entry(seq, row.message) for seq, row in rows.items()}
        while pieces and pieces[-1][-1].seq <= last:
            some.update([(entry.seq, entry) for entry in pieces.pop() if not entry.on_slot])
        some.update(owed)
        for seq, row in rows.items():
            message = some[seq].message
            if message.body is None:
                message.body = row.message.body
        if some:
            pieces.append(sorted(some.values(), key=seq_of, reverse=True))
        return pieces


class Writing:
    """A queue whose entries are being written to slots, and those that are left, in pieces, the
    next one last. They are looked at and let go of chunk by chunk, because they may be many, and
    the queue may long be done with them."""

    __slots__ = ("pieces", "queue")

    def __init__(self, queue: QueueIndex, pieces: list[list[Entry]]) -> None:
        self.queue: QueueIndex = queue
        self.pieces: list[list[Entry]] = pieces


IDLE: Final = "idle"
SLICES: Final = "slices"
SYNC: Final = "sync"
WRITE: Final = "write"
CLEAN: Final = "clean"
CHUNK: Final = 256  # entries written between two looks at the clock
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
ROW_BYTES: Final = 64  # what an entry of a section is counted for, beside its header


class Small:
    """A small queue of the checkpoint in progress: its section, and the rows that are new."""

    __slots__ = ("fresh", "queue", "section")

    def __init__(self, queue: QueueIndex, section: Section, fresh: list[tuple[int, Row]]) -> None:
        self.queue: QueueIndex = queue
        self.section: Section = section
        self.fresh: list[tuple[int, Row]] = fresh


class Checkpointer:
    """One per engine. `phase` is idle, or what a checkpoint in progress is at.

    number: of the checkpoint that is CURRENT; bytes: of its file; count: how many were made.
    written_bytes: of .qi and .qs files, by all of them. dead_staged: staged pages that go with the
    one in progress. on_given_up(error): called when one was given up for want of space.
    """

    def __init__(self, journal: Journal, transient: MessageStore, pins: Pins, number: int) -> None:
        self._journal = journal
        self._transient = transient
        self._pins = pins
        self.on_given_up: Callable[[OSError], None] = _not_told
        self.written_bytes: int = 0
        self.number: int = number
        self.bytes: int = 0
        self.count: int = 0
        self.phase: str = IDLE
        self._is_clean = False
        self._is_whole = False
        self._reset()

    def _reset(self) -> None:
        self._head = Head()
        self._queues: list[QueueIndex] = []
        self._small: list[Small] = []
        self._small_bytes = 0
        self._listing: Listing | None = None
        self._writing: Writing | None = None
        self._sections: list[bytes] = []  # encoded QUEUE sections
        self._leaving: list[tuple[int, int]] = []  # (store file, id): bodies of rows that got slots
        self._states: list[FileState] | None = None  # of the store, once it is captured
        self._encoded: list[tuple[int, bytes]] = []
        self._reaping: dict[tuple[int, int], bytearray] = {}
        self._dead: list[tuple[int, int]] = []
        self._dead_files: list[str] = []
        self._deleted: list[QueueIndex] = []
        self._streams: list[tuple[int, StreamSection]] = []
        self._leases: list[bytes] = []
        self._batches: list[bytes] = []
        self.dead_staged: list[tuple[str, str]] = []
        self._deleted_streams: list[Stream] = []
        self._data_is_synced = False

    # ---- the cut -------------------------------------------------------------------------------

    def begin(self, *, is_clean: bool = False, is_whole: bool = False) -> None:
        """Make the cut. The caller makes sure that no checkpoint and no large commit is running.
        is_whole: it is complete without the log after its cut, as a backup needs it: messages that
        are dequeued meanwhile are written too."""
        assert self.phase == IDLE
        journal = self._journal
        state, store = journal.state, journal.state.store
        segment, position, lsn = journal.log.position()
        self._reset()
        self._is_clean = is_clean
        self._is_whole = is_whole
        ticks = state.ticks
        ticks.epoch += 1
        store.cut(ticks.epoch)
        self._head = Head(
            lsn, segment, position, state.factory.start, state.next_queue, state.slots,
            store.next_file, store.next_own_file,
        )  # fmt: skip
        self._queues = [q for q in state.queues.values() if q.is_durable]
        self._queues.sort(key=lambda q: q.changed)  # popped from the end: see _is_small
        # As of the cut: a segment that dies after it is named by this checkpoint [6].
        self._dead = [key for key in ticks.dead if not state.names_segment(*key)]
        ticks.dead = []
        self._dead_files = store.take_dead()
        self._deleted, state.deleted = state.deleted, []
        self._streams = state.streams.capture()
        self._leases = state.leases.capture()
        self._batches = state.batches.capture()
        self.dead_staged, state.batches.dead = state.batches.dead, []
        self._deleted_streams, state.streams.deleted = state.streams.deleted, []
        self._reaping = dict(state.reaping)
        self.phase = SLICES

    # ---- slices --------------------------------------------------------------------------------

    def step(self, until: float) -> None:
        """Make slices until this monotonic time (seconds), a chunk at the least.
        OSError of a write: the caller gives the checkpoint up."""
        assert self.phase == SLICES
        clock = self._journal.clock
        while True:
            if self._writing is not None:
                self._write_chunk(self._writing)
            elif self._listing is not None:
                self._list(self._listing)
            elif self._queues:
                self._begin_slice(self._queues.pop())
            else:
                self._finish_slices()
                return
            if clock.monotonic() >= until:
                return

    def _begin_slice(self, queue: QueueIndex) -> None:
        """Begin to list what was alive at the cut, if anything was."""
        section = queue.capture()
        listing = Listing(queue, section, self._is_small(section))
        if section.count:
            self._listing = listing
            listing.add_unsettled()
            self._list(listing)
        else:
            self._slice(listing)

    def _list(self, listing: Listing) -> None:
        """List the next piece. After the last one, decide where they go."""
        queue, n = listing.queue, self._journal.options.slice_entries
        piece = queue.holder.candidates(listing.below, n)
        listing.add(piece)
        if len(piece) < n:
            self._listing = None
            listing.add_unsettled()
            self._slice(listing)

    def _slice(self, listing: Listing) -> None:
        """Decide what the queue's section will be. Entries are taken over from its holder and its
        limbo here, so no later change of the queue concerns this checkpoint."""
        queue, section, owed = listing.queue, listing.section, listing.owed
        durable = self._journal.log.durable_lsn
        for x in queue.limbo or ():
            if self._is_whole or x.is_purged or x.lsn > durable:
                owed[x.entry.seq] = x.entry
        if listing.is_small or not self._load_bodies(queue, section):
            for piece in listing.pieces:
                owed.update([(e.seq, e) for e in unwritten(piece, queue.cut_seq)])
            fresh = [(q, Row(owed[q].message, 0)) for q in sorted(owed) if q not in section.rows]
            self._small.append(Small(queue, section, fresh))
            rows = [*section.rows.values(), *(row for _, row in fresh)]
            self._small_bytes += sum(ROW_BYTES + len(row.message.header) for row in rows)
        else:
            self._leaving += [(r.body_file, r.message.id) for r in section.rows.values()]
            pieces = listing.in_order()
            if pieces:
                self._writing = Writing(queue, pieces)
            rows_before, section.rows = section.rows, {}
            self._sections.append(
                checkpoint.encode_queue(queue.number, section, self._journal.state.slots)
            )
            section.rows = rows_before
        queue.sliced()

    def _is_small(self, section: Section) -> bool:
        """Whether it has few entries and few bytes, and all sections together stay below their
        limit. The queues come latest changed first, so those over the limit are the longest
        unchanged."""
        options = self._journal.options
        return (
            section.count < options.small_queue_entries
            and section.bytes < options.small_queue_bytes
            and self._small_bytes < options.small_queues_bytes_max
        )

    def _load_bodies(self, queue: QueueIndex, section: Section) -> bool:
        """Read bodies that belong into .qs and are only in the store, because their queue was
        small. False if one is damaged: then the queue stays in its section, and a reader of that
        message gets the error."""
        messages = [row.message for row in section.rows.values()]
        for m, row in zip(messages, section.rows.values(), strict=True):
            if m.body is None and not m.store_file:
                try:
                    m.body = self._journal.state.store.read(row.body_file, m.id)
                except CorruptionError as error:
                    self._journal.event("corruption", f"queue {queue.number}: {error}")
                    return False
        return True

    def _write_chunk(self, writing: Writing) -> None:
        """Write the next entries to their slots, but those that paging has put there meanwhile."""
        queue, piece = writing.queue, writing.pieces[-1]
        chunk = piece[-CHUNK:]
        chunk.reverse()
        fresh = unwritten(chunk, queue.cut_seq)
        if fresh:  # may fail for lack of space, and is tried again when there is some
            self.written_bytes += queue.write(fresh)
        del piece[-len(chunk) :]
        if not piece:
            writing.pieces.pop()
            if not writing.pieces:
                self._writing = None
        for entry in fresh:
            entry.on_slot = True
        queue.holder.materialised(fresh)
        for entry in chunk:
            row = queue.section.pop(entry.seq, None)
            if row is not None and row.body_file:
                self._journal.state.store.unref(row.body_file, row.message.id)

    def _finish_slices(self) -> None:
        """After the last queue: put bodies of small queues into one store file, encode the rest."""
        state = self._journal.state
        store = state.store
        state.streams.write()  # at least what the sections say
        if self._states is None:  # what may fail comes first: this may be called again
            self._states = self._store_states()
        bodies: dict[int, tuple[bytes, int]] = {}
        with_body: list[tuple[Small, int, Row]] = []
        for small in self._small:
            for seq, row in small.fresh:
                m = row.message
                if m.size and not m.store_file:
                    assert m.body is not None, "an entry that is only in RAM has its body"
                    bodies[m.id] = (m.body, bodies.get(m.id, (b"", 0))[1] + 1)
                    with_body.append((small, seq, row))
        file = 0
        if bodies:
            file = store.write_sealed([(id, body, n) for id, (body, n) in sorted(bodies.items())])
            self._states.append(store.state_of(file))
        for _, _, row in with_body:
            row.body_file = file
        slots = state.slots
        for small in self._small:
            small.section.rows.update(small.fresh)
            self._sections.append(checkpoint.encode_queue(small.queue.number, small.section, slots))
        self._encoded = [
            (checkpoint.HEAD, self._head.encode()),
            (checkpoint.TOPOLOGY, checkpoint.encode_topology(state.routing.capture())),
            *((checkpoint.QUEUE, data) for data in self._sections),
            *((checkpoint.STORE, s.encode()) for s in self._states),
            (checkpoint.REAPING, checkpoint.encode_reaping(self._reaping)),
            *((checkpoint.STREAM, checkpoint.encode_stream(*s)) for s in self._streams),
            *((checkpoint.LEASE, data) for data in self._leases),
            *((checkpoint.BATCH, data) for data in self._batches),
        ]
        for small in self._small:
            for seq, row in small.fresh:
                if small.queue.is_live(seq):
                    small.queue.section[seq] = row
                elif row.body_file:
                    store.unref(row.body_file, row.message.id)
        self._start_sync()

    def _store_states(self) -> list[FileState]:
        """The store as of the cut, without the references of rows that got slots."""
        states = self._journal.state.store.capture()
        for number, id in self._leaving:
            if number:
                next(s for s in states if s.answers_for(number)).unref(id)
        return states

    # ---- sync, write, clean --------------------------------------------------------------------

    def _start_sync(self) -> None:
        journal = self._journal
        ticks = journal.state.ticks
        files, ticks.dirty = list(ticks.dirty.values()), {}
        names, ticks.dirty_names = ticks.dirty_names, []
        directories, ticks.dirty_directories = list(ticks.dirty_directories), {}
        pages, page_directories = journal.state.streams.take_dirty()
        if self._is_clean:  # so that a reader by path finds all of it
            pages += [f"{s.path}/writeMeta" for s in journal.state.streams.by_number.values()]
        names, directories = names + pages, directories + page_directories
        for file in files:
            file.is_syncing = True
        sync_store = journal.state.store.take_unsynced()

        def op() -> object:
            for file in files:
                file.sync()
            for name in names:
                sync_closed(journal.fs, name)
            for directory in directories:
                journal.fs.sync_dir(directory)
            return sync_store()

        def done(result: object) -> None:
            for file in files:
                file.is_dirty = file.path in ticks.dirty
                file.is_syncing = False
            journal.state.store.synced(result)
            self._data_is_synced = True
            self.advance()

        self.phase = SYNC
        journal.submit(op, done, self._failed_sync)
        journal.log.request_sync()

    def _failed_sync(self, error: BaseException) -> None:
        self._journal.stop(error)

    def advance(self) -> None:
        """Write the checkpoint once data and log are durable [4] [5]; called at each completion."""
        journal = self._journal
        if self.phase != SYNC or not self._data_is_synced or journal.failed is not None:
            return
        if journal.log.durable_lsn < self._head.cut_lsn:
            journal.log.request_sync()
            return
        number = self.number + 1
        data = checkpoint.encode_file(
            journal.state.vhost, number, self._encoded, is_clean=self._is_clean
        )
        self._encoded = []
        self.bytes = len(data)
        self.phase = WRITE
        journal.submit(
            lambda: checkpoint.write(journal.fs, journal.path, number, data),
            lambda _: self._written(number),
            self._failed_write,
        )

    def _failed_write(self, error: BaseException) -> None:
        if isinstance(error, OSError) and error.errno in FULL:
            self.give_up(error)
        else:
            self._journal.stop(error)

    def give_up(self, error: OSError) -> None:
        """Forget this checkpoint for want of space. The next deletes what it would have deleted."""
        state = self._journal.state
        state.ticks.dead += self._dead
        state.deleted += self._deleted
        state.streams.deleted += self._deleted_streams
        state.batches.dead += self.dead_staged
        state.store.put_back_dead(self._dead_files)
        for queue in [*state.queues.values(), *state.dying.values(), *state.deleted]:
            queue.sliced()
        self._reset()
        self.phase = IDLE
        self.on_given_up(error)

    def _written(self, number: int) -> None:
        """CURRENT names the new checkpoint: delete what nothing names any more [6]."""
        journal = self._journal
        if journal.failed is not None:
            return  # either one is right for the next start, and nothing more is touched [10]
        state = journal.state
        old, self.number = self.number, number
        self.count += 1
        paths = [f"{journal.path}/checkpoint-{old}"] if old else []
        for queue_number, segment in self._dead:
            key = (queue_number, segment)
            queue = state.index_of(queue_number)
            if key in state.reaping or key in self._reaping or queue is None:
                continue
            if segment not in queue.segments and segment not in queue.transients:
                queue.forget_files(segment)
                paths += [f"{queue.path}/{segment}.qi", f"{queue.path}/{segment}.qs"]
        paths += self._dead_files
        paths += staged_files(journal.path, self.dead_staged)
        self._transient.cut(state.ticks.epoch)  # nothing names its files: they may go at any time
        paths += self._transient.take_dead()
        self._transient.capture()
        trees = [queue.path for queue in self._deleted]
        for queue in self._deleted:
            queue.close()
        trees += [stream.path for stream in self._deleted_streams]
        for stream in self._deleted_streams:
            streams.close(stream)
        state.streams.checkpointed(self._streams)
        if self._pins.count:
            self._pins.paths += paths
            self._pins.trees += trees
            paths, trees = [], []
        else:
            journal.log.release_before(self._head.log_segment)
        self.phase = CLEAN
        journal.submit(
            lambda: delete(journal.fs, paths, trees), lambda _: self._cleaned(), self._not_cleaned
        )

    def _not_cleaned(self, error: BaseException) -> None:
        self._journal.event("clean", f"a dead file could not be deleted: {error}")
        self._cleaned()

    def _cleaned(self) -> None:
        self._reset()
        self.phase = IDLE


def delete(fs: FileSystem, paths: list[str], trees: list[str]) -> None:
    """Delete files, and directories with the files in them; what is gone already is fine."""
    for path in paths:
        unlink(fs, path)
    for tree in trees:
        if fs.exists(tree):
            for name in fs.list(tree):
                unlink(fs, f"{tree}/{name}")
            fs.rmdir(tree)


def unlink(fs: FileSystem, path: str) -> None:
    """Delete a file if it is there."""
    with contextlib.suppress(FileNotFoundError):
        fs.unlink(path)


def _not_told(_: OSError) -> None:
    pass
