"""QueueIndex: the order and state of one queue: next seq, live messages, counts, delivered mark.

The idea is RabbitMQ's queue index: position and state of a queue's messages apart from their
bodies, in segments of a fixed number of entries. A segment costs a few dozen bytes in RAM whatever
it holds, and is deleted whole when all of it is dead. There is no journal here, because the vhost's
TransactionLog is the journal of all queues [1]. A slot on disk describes a message. Whether the
message lives is in bitmaps here, which the checkpoint keeps and the log updates.

    QueueIndex    one queue, with an IndexSegment for each segment that has live entries
    IndexSegment  has a bitmap only if it is partly dead: while its live entries are exactly
                  [lo, hi), two numbers are enough, and a queue that is consumed in order never
                  needs more. A backlog of ten million messages takes 2,442 of these objects
    Section       the part of a manifest about one queue, with a SectionRow for each entry of a
                  small queue
    Departed         an entry that left RAM before the checkpoint has written the queue's slice
    Ticks         what all parts of one engine share about checkpoints

The cut of a checkpoint copies nothing. The epoch rises, and the first change of a queue after it
keeps the section of the cut (a shallow copy; segments are copied one by one as they change) [3].
Until the queue's slice is written, entries that leave RAM are kept in `departed`, because the
checkpoint may still have to write them [4].

A live entry is in one of these places:
  * its slot (`queue_segment.py`), which costs no RAM;
  * `section`, for a small queue whose entries are in the checkpoint itself and whose bodies are in
    the MessageStore, so that small queues share one file and one sync;
  * RAM and log only, with the `Holder`, which returns it when a checkpoint asks for it.

**Holder.** The index reports new and removed messages to its holder, which has those in RAM. A
checkpoint asks the holder for what is only in RAM and log, to write it to slots. The VariableQueue
has a holder for its alphas. DictHolder is a dict of seq -> Entry, which every queue has until it
gets another one: recovery collects messages in it while it replays the log.

A queue may have a million such entries, and to list them all takes longer than the owner's thread
may be busy. So a holder lists those that stand in line in pieces, from the newest on
(`candidates`), and a checkpoint decides about each when it writes it (`unwritten`). Anything may
happen between two pieces. A message that is delivered stays in RAM and comes back to its place in
line, so `unsettled`, called before the first piece and after the last, returns those that the
pieces may have missed. A message that leaves RAM is in the queue's `departed`. `materialise` does
all of it in one call.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing
from typing import Final

from penstock.errors import CorruptionError, deleted_error, is_shortage
from penstock.message import Entry, QueuedMessage, seq_of
from penstock.native import mypyc_attr
from penstock.storage.files.data_directory import QUEUE_NAME, text_of
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.index.leases import LeasedSeqs
from penstock.storage.index.queue_segment import Handles, SegmentFiles, Slot
from penstock.storage.log.record import Run, StoreRef


class Ticks:
    """What all parts of one engine share: the epoch of the last cut, the dead segment files that
    the next checkpoint frees, files to sync, and the vhost's name for `.queue_name` files."""

    def __init__(self) -> None:
        self.vhost_name: bytes = b""
        self.epoch: int = 0
        self.dead: list[tuple[int, int]] = []  # (queue, segment)
        self.dirty: dict[str, SegmentFiles] = {}  # written since their last sync began
        self.dirty_names: list[str] = []  # paths of .queue_name files
        self.dirty_directories: dict[str, None] = {}
        self.handles: Handles = Handles()


# A transient message on disk: (seq, id, store file of its body or 0, whether the files of its
# segment contain part of it).
PagedTransient = tuple[int, int, int, int]


class SectionRow:
    """An entry in a checkpoint's section of a small queue: the message without its body.

    body_file: the store file to which the checkpoint wrote the body; 0 if there is none, or if the
    message has its own."""

    __slots__ = ("body_file", "message")

    def __init__(self, message: QueuedMessage, body_file: int) -> None:
        self.message: QueuedMessage = message
        self.body_file: int = body_file


class Departed:
    """An entry that left RAM after the cut, at `lsn`. is_purged: by a purge; only a durable dequeue
    allows a checkpoint to omit an entry [4]."""

    __slots__ = ("entry", "is_purged", "lsn")

    def __init__(self, lsn: int, entry: Entry, is_purged: bool) -> None:
        self.lsn: int = lsn
        self.entry: Entry = entry
        self.is_purged: bool = is_purged


class IndexSegment:
    """The live persistent entries of one segment. lo, hi: seqs. bitmap: bit rel & 7 of byte
    rel >> 3, or None while exactly [lo, hi) is alive. stores: entries with a body in the store."""

    __slots__ = ("bitmap", "bytes", "count", "epoch", "expiry_ms", "hi", "lo", "number", "stores")

    def __init__(self, number: int, lo: int, hi: int, epoch: int) -> None:
        self.number: int = number
        self.lo: int = lo
        self.hi: int = hi
        self.epoch: int = epoch
        self.count: int = 0
        self.bytes: int = 0
        self.stores: int = 0
        self.expiry_ms: int = 0
        self.bitmap: bytearray | None = None

    def copy(self, epoch: int) -> "IndexSegment":
        other = IndexSegment(self.number, self.lo, self.hi, epoch)
        other.count = self.count
        other.bytes = self.bytes
        other.stores = self.stores
        other.expiry_ms = self.expiry_ms
        if self.bitmap is not None:
            other.bitmap = bytearray(self.bitmap)
        return other

    def has(self, seq: int, slots: int) -> bool:
        if not self.lo <= seq < self.hi:
            return False
        if self.bitmap is None:
            return True
        rel = seq % slots
        return self.bitmap[rel >> 3] >> (rel & 7) & 1 == 1

    def seqs(self, slots: int) -> list[int]:
        """Return all live seqs, ascending."""
        if not self.count:
            return []
        if self.bitmap is None:
            return list(range(self.lo, self.hi))
        return [seq for seq in range(self.lo, self.hi) if self.has(seq, slots)]

    def make_bitmap(self, slots: int) -> bytearray:
        bits = bytearray((slots + 7) >> 3)
        if self.count:
            _set_bits(bits, self.lo % slots, self.hi - self.lo)
        self.bitmap = bits
        return bits


def _set_bits(bits: bytearray, start: int, n: int) -> None:
    for rel in range(start, start + n):
        bits[rel >> 3] |= 1 << (rel & 7)


class Section:
    """What a manifest holds of one queue, as of the cut."""

    __slots__ = ("attempts", "bytes", "count", "mark", "next_seq", "rows", "segments")

    def __init__(
        self,
        next_seq: int,
        mark: int,
        count: int,
        body_bytes: int,
        segments: dict[int, IndexSegment],
        rows: dict[int, SectionRow],
        attempts: dict[int, int],
    ) -> None:
        self.next_seq: int = next_seq
        self.mark: int = mark
        self.count: int = count
        self.bytes: int = body_bytes
        self.segments: dict[int, IndexSegment] = segments
        self.rows: dict[int, SectionRow] = rows
        self.attempts: dict[int, int] = attempts


class QueueIndex:
    """One queue's index. count, bytes: of live persistent messages and their bodies."""

    def __init__(
        self, fs: FileSystem, path: str, name: bytes, vhost: int, number: int, slots: int,
        ticks: Ticks, is_durable: bool,
    ) -> None:  # fmt: skip
        self.fs = fs
        self.path: str = path
        self.name: bytes = name
        self.vhost: int = vhost
        self.number: int = number
        self.slots: int = slots
        self.ticks: Ticks = ticks
        self.is_durable: bool = is_durable
        self.is_deleted: bool = False
        self.has_directory: bool = False  # at `path`, since this start or before
        self.holder: Holder = DictHolder()
        self.next_seq: int = 0
        self.mark: int = 0
        self.count: int = 0
        self.bytes: int = 0
        self.segments: dict[int, IndexSegment] = {}
        self.section: dict[int, SectionRow] = {}
        self.attempts: dict[int, int] = {}
        self.leased: LeasedSeqs = LeasedSeqs(slots)  # live entries that are leased, not ready
        self.epoch: int = ticks.epoch
        self.changed: int = ticks.epoch  # epoch of the last change
        self.captured: Section | None = None
        # Not None: a checkpoint has yet to write the slice.
        self.departed: list[Departed] | None = None
        self.cut_seq: int = 0  # next seq at that cut
        # Segment -> transient messages with bodies or slots in its files, which keep the files.
        self.transients: dict[int, int] = {}
        self._empty_tail: int = -1  # next seq's segment, if its transients are all gone
        self._tail: IndexSegment | None = None
        self._files: dict[int, SegmentFiles] = {}
        # SegmentFiles.headers of those that were closed; None: the directory is not made yet.
        self._headers: dict[int, int] | None = None

    # ---- changes -------------------------------------------------------------------------------

    def take_seq(self) -> int:
        """Take the next seq for a transient message. It has no bit, because it is in RAM alone."""
        if self.changed != self.ticks.epoch:
            self._touch()
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def publish(self, size: int, in_store: bool, expiry_ms: int) -> int:
        """Add a persistent message of `size` bytes. Return its seq."""
        seq = self.next_seq
        self.enqueue(seq, size, in_store, expiry_ms)
        return seq

    def add(self, seq: int, message: QueuedMessage, is_held: bool = True) -> Entry | None:
        """Add a persistent message. The caller counts references. Return its entry, or None if the
        seq is below the next one: it was applied already. is_held: keep the message in RAM, with
        the holder; False if it is on its slot alone."""
        if not self.enqueue(seq, message.size, message.store_file != 0, message.expiry_ms):
            return None
        entry = Entry(seq, message)
        if is_held:
            self.holder.add(entry)
        return entry

    def enqueue(self, seq: int, size: int, in_store: bool, expiry_ms: int) -> bool:
        """Make seq live. Return False, and change nothing, if it was applied already."""
        if self.changed != self.ticks.epoch:
            self._touch()
        if seq < self.next_seq:
            return False
        self.next_seq = seq + 1
        segment = self._tail
        if segment is None or seq // self.slots != segment.number or segment.epoch != self.epoch:
            segment = self._tail_segment(seq)
        if not segment.count and segment.bitmap is None:
            segment.lo = seq
        elif seq != segment.hi and segment.bitmap is None:
            segment.make_bitmap(self.slots)
        segment.hi = seq + 1
        bits = segment.bitmap
        if bits is not None:
            rel = seq % self.slots
            bits[rel >> 3] |= 1 << (rel & 7)
        segment.count += 1
        segment.bytes += size
        if in_store:
            segment.stores += 1
        if expiry_ms > segment.expiry_ms:
            segment.expiry_ms = expiry_ms
        self.count += 1
        self.bytes += size
        return True

    def dequeue(self, run: Run) -> None:
        """Make the live entries of a run dead. The run is of one segment."""
        if self.changed != self.ticks.epoch:
            self._touch()
        first, n, size, stores = run
        segment = self.segments[first // self.slots]
        if segment.epoch != self.epoch:
            segment = self._own(segment)
        if segment.bitmap is None:
            if first == segment.lo:
                segment.lo = first + n
            else:
                segment.make_bitmap(self.slots)
        bits = segment.bitmap
        if bits is not None:
            for seq in range(first, first + n):
                rel = seq % self.slots
                bits[rel >> 3] &= 0xFF ^ (1 << (rel & 7))
        segment.count -= n
        segment.bytes -= size
        segment.stores -= stores
        self.count -= n
        self.bytes -= size
        if self.attempts:
            for seq in range(first, first + n):
                self.attempts.pop(seq, None)
        if not segment.count:
            self._drop_if_dead(segment)

    def is_live_run(self, run: Run) -> bool:
        """Return whether every entry of the run is alive."""
        first, n, _, _ = run
        segment = self.segments.get(first // self.slots)
        if segment is None or first < segment.lo or first + n > segment.hi:
            return False
        if segment.bitmap is None:
            return True
        return all(segment.has(seq, self.slots) for seq in range(first, first + n))

    def purge(self, upper: int, kept: list[Run]) -> dict[int, bytearray]:
        """Make all entries below `upper` dead except the runs kept. upper: the next seq or a border
        of segments. Return segment -> bitmap of what died, for segments with bodies in the
        store."""
        if self.changed != self.ticks.epoch:
            self._touch()
        runs: dict[int, list[Run]] = {}
        for run in kept:
            runs.setdefault(run[0] // self.slots, []).append(run)
        dead: dict[int, bytearray] = {}
        for number in sorted(n for n in self.segments if n * self.slots < upper):
            segment = self._own(self.segments[number])
            keep = runs.get(number, [])
            if not keep and not segment.stores:  # the common case: no list of the dead
                self.count -= segment.count
                self.bytes -= segment.bytes
                segment.bitmap = None
                segment.lo = segment.hi
                segment.count = segment.bytes = 0
                self._drop_if_dead(segment)
                continue
            before = segment.bitmap or segment.make_bitmap(self.slots)
            bits = bytearray(len(before))
            for first, n, _, _ in keep:
                _set_bits(bits, first % self.slots, n)
            stores = sum(run[3] for run in keep)
            if segment.stores > stores:
                dead[number] = bytearray(b & ~k & 0xFF for b, k in zip(before, bits, strict=True))
            count = sum(run[1] for run in keep)
            size = sum(run[2] for run in keep)
            self.count -= segment.count - count
            self.bytes -= segment.bytes - size
            segment.bitmap = bits
            segment.count, segment.bytes, segment.stores = count, size, stores
            if not count:
                self._drop_if_dead(segment)
        if self.attempts:
            stay = {seq for first, n, _, _ in kept for seq in range(first, first + n)}
            self.attempts = {s: n for s, n in self.attempts.items() if s >= upper or s in stay}
        return dead

    def runs(self, entries: list[Entry]) -> list[Run]:
        """Return ascending entries as runs within one segment each. Raises ValueError if a seq
        comes twice or before a lower one."""
        runs: list[Run] = []
        slots = self.slots
        first = n = size = stores = 0
        for entry in entries:
            seq = entry.seq
            if n and seq < first + n:
                raise ValueError(f"seq {seq} comes after seq {first + n - 1}: they must ascend")
            if n and (seq != first + n or seq % slots == 0):
                runs.append((first, n, size, stores))
                n = size = stores = 0
            if not n:
                first = seq
            n += 1
            size += entry.message.size
            if entry.message.store_file:
                stores += 1
        if n:
            runs.append((first, n, size, stores))
        return runs

    def kept_runs(self, entries: Iterable[Entry]) -> list[Run]:
        """Return the same as `runs`. A list is made of the entries of one segment alone, because
        there may be a million."""
        runs: list[Run] = []
        some: list[Entry] = []
        for entry in entries:
            if some and entry.seq // self.slots != some[0].seq // self.slots:
                runs += self.runs(some)
                some = []
            some.append(entry)
        return runs + self.runs(some)

    def set_attempts(self, seq: int, attempts: int) -> None:
        """Set how often a live message was delivered and came back. Ignores a dead one."""
        if self.changed != self.ticks.epoch:
            self._touch()
        if self.is_live(seq):
            self.attempts[seq] = attempts

    def set_mark(self, mark: int) -> None:
        """Raise the mark: everything below it may have been delivered."""
        if self.changed != self.ticks.epoch:
            self._touch()
        if mark > self.mark:
            self.mark = mark

    def lower_mark(self, mark: int) -> None:
        """Set the mark exactly, at an orderly stop before its checkpoint."""
        if self.changed != self.ticks.epoch:
            self._touch()
        self.mark = mark

    def skip_to_border(self) -> None:
        """Go on at the next border of a segment, beyond all seqs that a crash may have left on the
        disk [9]."""
        top = max(self.next_seq, self.mark)
        self.skip_to(-(-top // self.slots) * self.slots)

    def skip_to(self, seq: int) -> None:
        """Raise the next seq after an unclean stop: lower ones are not given again [9]."""
        if self.changed != self.ticks.epoch:
            self._touch()
        if seq > self.next_seq:
            self.next_seq = seq
            tail = self._tail
            self._tail = None
            if tail is not None and not tail.count:
                self._drop_if_dead(tail)

    @property
    def has_files(self) -> bool:
        """Return whether any segment's files were used since the start."""
        return len(self._files) > 0

    def tail_bytes(self) -> int:
        """Return the bytes of the files of next seq's segment if the queue is empty; they stay for
        the next message. 0 if there are none, or anything is alive."""
        number = self.next_seq // self.slots
        if self.count or any(self.transients.values()) or number not in self._files:
            return 0
        path = f"{self.path}/{number}"
        size = 0
        for name in (path + ".qi", path + ".qs"):
            if self.fs.exists(name):
                size += self.fs.size(name)
        return size

    def leave_tail(self) -> None:
        """Continue in the next segment, so that the next checkpoint frees the files of this one.
        Nothing is logged: after a crash without that checkpoint the queue continues where it was,
        and no seq was given in between."""
        assert not self.count, "an empty queue"
        self.skip_to((self.next_seq // self.slots + 1) * self.slots)
        self._sweep_tail()

    def _tail_segment(self, seq: int) -> IndexSegment:
        old = self._tail
        number = seq // self.slots
        segment = self.segments.get(number)
        if segment is None:
            segment = IndexSegment(number, seq, seq, self.epoch)
            self.segments[number] = segment
        elif segment.epoch != self.epoch:
            segment = self._own(segment)
        self._tail = segment
        if old is not None and old.number != number and not old.count:
            self._drop_if_dead(old)
        return segment

    def _own(self, segment: IndexSegment) -> IndexSegment:
        if segment.epoch == self.epoch:
            return segment
        copy = segment.copy(self.epoch)
        self.segments[segment.number] = copy
        if self._tail is segment:
            self._tail = copy
        return copy

    def _drop_if_dead(self, segment: IndexSegment) -> None:
        if self.is_deleted or segment.number != self.next_seq // self.slots:
            self.segments.pop(segment.number, None)
            if self._tail is segment:
                self._tail = None
            self.ticks.dead.append((self.number, segment.number))
        else:
            self._tail = segment  # also one from before a restart

    def asks_for_dead(self) -> bool:
        """Return whether a purge must collect the entries in RAM that die: some bodies are in the
        store, or a checkpoint in progress has yet to write slots (even if nothing has changed)."""
        is_in_checkpoint = self.departed is not None or self.epoch != self.ticks.epoch
        return is_in_checkpoint or any(s.stores for s in self.segments.values())

    # ---- what a checkpoint sees ----------------------------------------------------------------

    def capture(self) -> Section:
        """Return the section as of the last cut; made at the first change after it or here."""
        if self.epoch != self.ticks.epoch:
            self.captured = Section(
                self.next_seq, self.mark, self.count, self.bytes, self.segments.copy(),
                self.section.copy(), self.attempts.copy(),
            )  # fmt: skip
            self.epoch = self.ticks.epoch
            self.cut_seq = self.next_seq
            self.departed = []
        assert self.captured is not None
        return self.captured

    def _touch(self) -> None:
        self._sweep_tail()
        if self.epoch != self.ticks.epoch:
            self.capture()
        self.changed = self.epoch

    def sliced(self) -> None:
        """Drop what was kept for the checkpoint: it has written this queue."""
        self.captured = None
        self.departed = None

    # ---- looking -------------------------------------------------------------------------------

    def is_live(self, seq: int) -> bool:
        segment = self.segments.get(seq // self.slots)
        return segment is not None and segment.has(seq, self.slots)

    def read(self, seqs: list[int]) -> list[QueuedMessage]:
        """Return the messages of live entries in the section or on slots, ascending, of one
        segment. The body is None if it is in the store. Raises CorruptionError."""
        if self.section:
            on_slot = [seq for seq in seqs if seq not in self.section]
            messages = dict(zip(on_slot, self._read_slots(on_slot), strict=True))
            return [
                self.section[seq].message.copy() if seq in self.section else messages[seq]
                for seq in seqs
            ]
        return self._read_slots(seqs)

    def time_of(self, seq: int) -> int:
        """Return when a live message came, in seconds since 1970, as its section or its slot says;
        0 if its slot is not written, or damaged."""
        row = self.section.get(seq)
        if row is not None:
            return row.message.time
        try:
            return self.files(seq // self.slots).slots([seq])[0].time
        except CorruptionError:
            return 0

    def forget_body(self, seq: int) -> None:
        """Keep the message of an entry in the section without its body: it leaves RAM. Others may
        hold the same QueuedMessage, so the section gets one of its own."""
        row = self.section[seq]
        if row.message.size and row.message.body is not None:
            message = row.message.copy()
            message.body = None
            row.message = message

    def _read_slots(self, seqs: list[int]) -> list[QueuedMessage]:
        return self.files(seqs[0] // self.slots).messages(seqs) if seqs else []

    def live_between(self, start: int, stop: int) -> list[int]:
        """Return the live persistent seqs from start to stop - 1, ascending, of one segment."""
        segment = self.segments.get(start // self.slots)
        if segment is None or not segment.count:
            return []
        start, stop = max(start, segment.lo), min(stop, segment.hi)
        if segment.bitmap is None:
            return list(range(start, stop))
        return [seq for seq in range(start, stop) if segment.has(seq, self.slots)]

    def ready_between(self, start: int, stop: int) -> list[int]:
        """Return the same as live_between without leased entries."""
        if not self.leased.count:
            return self.live_between(start, stop)
        number = start // self.slots
        leased = self.leased.in_segment(number)
        segment = self.segments.get(number)
        if leased and segment is not None and segment.count == leased:
            return []
        return self.leased.without(self.live_between(start, stop))

    def first_ready(self) -> int:
        """Return the first live persistent seq that is not leased, or -1."""
        for number in sorted(self.segments):
            found = self.ready_between(number * self.slots, (number + 1) * self.slots)
            if found:
                return found[0]
        return -1

    # ---- files ---------------------------------------------------------------------------------

    def files(self, number: int) -> SegmentFiles:
        """Return the files of a segment. At most four synced segments of a queue stay open."""
        files = self._files.get(number)
        if files is None:
            if len(self._files) >= 4:
                for old in [n for n, f in self._files.items() if not f.is_dirty][:1]:
                    headers = self._files[old].headers
                    self.forget_files(old)
                    if headers and self._headers is not None:
                        self._headers[old] = headers
            path = f"{self.path}/{number}"
            files = SegmentFiles(
                self.fs, path, self.vhost, self.number, number, self.slots, self.ticks.handles
            )
            if self._headers is not None:
                files.headers = self._headers.pop(number, 0)
            self._files[number] = files
        return files

    def take_over(self, numbers: set[int]) -> None:
        """See to it that no write syncs a file from before this start. numbers: of live segments
        with files. The next seq is of a segment without files; those of entries in the section,
        which a checkpoint may write to their slots, are synced and checked now. Its directory
        exists. SyncFailedError."""
        self.has_directory = True
        if self.next_seq // self.slots in numbers:
            self.skip_to((self.next_seq // self.slots + 1) * self.slots)
        for number in {seq // self.slots for seq in self.section} & numbers:
            try:
                self._writing(number).take_over()
            except OSError as error:  # such as a full disk: the write tries it again
                if not is_shortage(error):
                    raise

    def make_directory(self) -> None:
        """Create the directory and its `.queue_name`, or correct that. Needs a sync."""
        self.has_directory = True
        self.fs.mkdir(self.path)
        stub, text = f"{self.path}/{QUEUE_NAME}", text_of(self.ticks.vhost_name, self.name)
        if not self.fs.exists(stub) or self.fs.read(stub) != text:  # torn, disk full, or old
            with closing(self.fs.open(stub, create=True)) as file:
                file.pwrite(text, 0)
                file.truncate(len(text))
        if self._headers is None:
            self._headers = {}
        if self.is_durable:
            self.ticks.dirty_names.append(stub)  # a process before, killed, may not have synced it
            self.ticks.dirty_directories[self.path] = None
            self.ticks.dirty_directories[self.path.rpartition("/")[0]] = None

    def write(self, entries: list[Entry], places: list[int] | None = None) -> int:
        """Write entries, ascending, to slots and .qs. Return the bytes written. Needs a sync.
        places: takes the position of each in .qs, 0 for one without an entry there."""
        written = start = 0
        while start < len(entries):
            number = entries[start].seq // self.slots
            end = (number + 1) * self.slots
            stop = len(entries)
            if entries[stop - 1].seq >= end:
                stop = start + 1
                while entries[stop].seq < end:
                    stop += 1
            files = self._writing(number)
            written += files.write(entries[start:stop])
            files.is_dirty = self.is_durable
            if places is not None:
                places += files.places
            start = stop
        return written

    def write_bodies(self, entries: list[Entry]) -> list[int]:
        """Write entries of one segment, ascending, to .qs alone. Return their positions (0:
        none)."""
        files = self._writing(entries[0].seq // self.slots)
        places = files.write_bodies(entries)
        files.is_dirty = self.is_durable
        return places

    def write_slots(self, slots: list[Slot]) -> int:
        """Write slots of one segment, ascending, whose entries `write_bodies` wrote."""
        files = self._writing(slots[0].seq // self.slots)
        written = files.write_slots(slots)
        files.is_dirty = self.is_durable
        return written

    def _writing(self, number: int) -> SegmentFiles:
        """Return the files of a segment for writing. Those of a queue that is not durable are never
        synced, because no checkpoint names them."""
        if self._headers is None:
            self.make_directory()
        files = self.files(number)
        if self.is_durable and files.path not in self.ticks.dirty:
            self.ticks.dirty[files.path] = files
            self.ticks.dirty_directories[self.path] = None
        return files

    def keep_transients(self, number: int, n: int) -> None:
        """Add n to the transient messages in the files of this segment. The files are freed with
        the last one, unless persistent messages need them."""
        self._sweep_tail()
        left = self.transients.get(number, 0) + n
        self.transients[number] = left
        if left:
            return
        if number == self.next_seq // self.slots:
            self._empty_tail = number  # the next message may be written to it
        else:
            self._drop_transients(number)

    def _sweep_tail(self) -> None:
        """Free the files of a tail without transient messages once the queue has moved on."""
        number = self._empty_tail
        if number >= 0 and number != self.next_seq // self.slots:
            self._empty_tail = -1
            if self.transients.get(number) == 0:
                self._drop_transients(number)

    def _drop_transients(self, number: int) -> None:
        del self.transients[number]
        if number not in self.segments:
            self.ticks.dead.append((self.number, number))

    def forget_files(self, number: int) -> None:
        """Close the handles of a segment that is clean or about to be deleted."""
        if self._headers is not None:
            self._headers.pop(number, None)
        files = self._files.pop(number, None)
        if files is not None:
            files.close()
            self.ticks.handles.forget(files)

    def close(self) -> None:
        for number in list(self._files):
            self.forget_files(number)


def store_refs(entries: list[Entry]) -> list[StoreRef]:
    """Return (id, store file, bytes) of every entry whose body is placed in the store."""
    messages = [entry.message for entry in entries]
    return [(m.id, m.store_file, m.size) for m in messages if m.store_file]


def check_targets(queues: list[QueueIndex]) -> None:
    """Raise an error for what must not be logged: no queue, one twice, a deleted or transient one.
    UnknownQueueError, ValueError."""
    for queue in queues:
        if queue.is_deleted:
            raise deleted_error(queue.name)
        if not queue.is_durable:
            raise ValueError(f"queue {queue.number} is transient, the message is persistent")
    if len(queues) != 1 and len({queue.number for queue in queues}) != max(len(queues), 1):
        raise ValueError("a message goes to one queue at least, and to each queue once")


# ---- what has the messages that are in RAM ------------------------------------------------------


ALL: Final = 1 << 60


def unwritten(entries: Iterable[Entry], below: int) -> list[Entry]:
    """Return those that need a slot: persistent, with a seq < below, and on none yet."""
    return [e for e in entries if not e.on_slot and e.seq < below and e.message.persistent]


@mypyc_attr(allow_interpreted_subclasses=True)
class Holder(ABC):
    """The messages of one queue that are in RAM."""

    @abstractmethod
    def add(self, entry: Entry) -> None:
        """Add a new entry, persistent or transient, with the highest seq so far and on no slot."""

    @abstractmethod
    def drop(self, first: int, n: int) -> None:
        """Remove the persistent entries with seqs first to first + n - 1, as far as they are in
        RAM."""

    def wants_drops(self) -> bool:
        """Return whether `drop` does anything."""
        return True

    @abstractmethod
    def get(self, seq: int) -> Entry | None:
        """Return the entry, None if it is not in RAM."""

    @abstractmethod
    def candidates(self, below: int, n: int) -> list[Entry]:
        """Return the next n entries in line with seq < below, descending, or fewer if that is all,
        in a new list. Every live persistent one that is not on its slot is among them, and perhaps
        others."""

    @abstractmethod
    def unsettled(self) -> list[Entry]:
        """As `candidates`, in any order: entries that are not in line because they are delivered
        and not settled."""

    def materialise(self, below: int) -> list[Entry]:
        """Return every live persistent entry in RAM with seq < below that is not on its slot,
        ascending, in a new list."""
        found = unwritten(self.unsettled(), below)
        found += unwritten(self.candidates(below, ALL), below)
        found.sort(key=seq_of)
        return found

    @abstractmethod
    def materialised(self, entries: list[Entry]) -> None:
        """Note that these are on their slots now (on_slot is set): their bodies may leave RAM."""


@mypyc_attr(allow_interpreted_subclasses=True)
class DictHolder(Holder):
    """A dict of seq -> Entry of persistent messages; transient ones are ignored. keeps: entries
    stay in RAM when they are on their slots."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.entries: dict[int, Entry] = {}
        self._keeps = keeps

    def add(self, entry: Entry) -> None:
        if entry.message.persistent:
            self.entries[entry.seq] = entry

    def drop(self, first: int, n: int) -> None:
        for seq in range(first, first + n):
            self.entries.pop(seq, None)

    def get(self, seq: int) -> Entry | None:
        return self.entries.get(seq)

    def pop(self, seq: int) -> Entry | None:
        """Remove and return the entry, None if it is not in RAM."""
        return self.entries.pop(seq, None)

    def materialise(self, below: int) -> list[Entry]:
        found = unwritten(self.entries.values(), below)
        found.sort(key=seq_of)
        return found

    def candidates(self, below: int, n: int) -> list[Entry]:
        """Return all at once: a dict has no order."""
        found = unwritten(self.entries.values(), below)
        found.sort(key=seq_of, reverse=True)
        return found

    def unsettled(self) -> list[Entry]:
        """Return nothing: no message is delivered from a dict."""
        return []

    def materialised(self, entries: list[Entry]) -> None:
        if self._keeps:
            return
        if len(entries) * 2 > len(self.entries):  # most of them, and mostly all
            self.entries = {seq: one for seq, one in self.entries.items() if not one.on_slot}
            return
        for entry in entries:
            self.entries.pop(entry.seq, None)
