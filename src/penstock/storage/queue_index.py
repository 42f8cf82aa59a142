"""QueueIndex: the order and state of one queue: next seq, what lives, counts, the delivered mark.

The idea is RabbitMQ's queue index: position and state of a queue's messages apart from their
bodies, cut into segments of a fixed number of entries, so that a segment costs a few dozen bytes
in RAM whatever is in it and goes at once when all of it is dead. The journal is different: there is
none here, because the vhost's TransactionLog is the journal of all queues [1]. A slot on disk says
what a message is. That it lives is said here, in bitmaps that the checkpoint keeps and the log
brings up to date.

    QueueIndex    one queue, with an IndexSegment for each segment that has something alive
    IndexSegment  has a bitmap only if it is partly dead: while its persistent entries are all of
                  [lo, hi), two numbers say so, and a queue that is consumed in order never needs
                  more. A backlog of ten million messages is 2,442 such objects
    Section       what a manifest says of one queue, with a Row for each entry of a small queue
    Limbo         an entry that left RAM while a checkpoint has not written the queue's slice yet
    Ticks         what all parts of one engine share about checkpoints

At the cut of a checkpoint nothing is copied: the epoch rises, and the first change of a queue after
it keeps its section as it was (a shallow copy; segments are copied one by one as they change) [3].
Until the queue's slice is written, what leaves RAM is kept in `limbo`, because it may have to be
written all the same [4].

Where a live entry is:
  * on its slot (`queue_segment.py`), costing nothing here;
  * in `section`, for a small queue whose entries stand in the checkpoint itself, with their bodies
    in the MessageStore: so small queues share one file and one sync;
  * only in RAM and log, with the `Holder`, which returns it when a checkpoint asks.
"""

from penstock.message import Entry, Message
from penstock.storage.filesystem import FileSystem
from penstock.storage.holder import DictHolder, Holder
from penstock.storage.leases import LeasedSeqs
from penstock.storage.queue_name import QUEUE_NAME, text_of
from penstock.storage.queue_segment import Handles, SegmentFiles, Slot, queue_seed
from penstock.storage.record import Run


class Ticks:
    """What all parts of one engine share about checkpoints: the epoch of the last cut, and dead
    segment files that wait for the next one; and what the vhost is called, for people."""

    def __init__(self) -> None:
        self.vhost_name: bytes = b""
        self.epoch: int = 0
        self.dead: list[tuple[int, int]] = []  # (queue, segment)
        self.dirty: dict[str, SegmentFiles] = {}  # written since their last sync began
        self.dirty_names: list[str] = []  # paths of .queue_name files
        self.dirty_directories: dict[str, None] = {}
        self.handles: Handles = Handles()


class Row:
    """An entry in a checkpoint's section of a small queue: the message without its body, and the
    store file that has the body on behalf of the section (0: none, or the message's own)."""

    __slots__ = ("body_file", "message")

    def __init__(self, message: Message, body_file: int) -> None:
        self.message: Message = message
        self.body_file: int = body_file


class Limbo:
    """An entry that left RAM after the cut, at `lsn`, and whether a purge took it: only a durable
    dequeue lets a checkpoint leave an entry out [4]."""

    __slots__ = ("entry", "is_purged", "lsn")

    def __init__(self, lsn: int, entry: Entry, is_purged: bool) -> None:
        self.lsn: int = lsn
        self.entry: Entry = entry
        self.is_purged: bool = is_purged


class IndexSegment:
    """Liveness of the persistent entries of one segment. lo, hi: seqs; bitmap: bit rel of byte
    rel >> 3, or None while exactly [lo, hi) is alive. stores: entries placed in the store."""

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
        """All live seqs, ascending."""
        if not self.count:
            return []
        if self.bitmap is None:
            return list(range(self.lo, self.hi))
        return [seq for seq in range(self.lo, self.hi) if self.has(seq, slots)]

    def make_bitmap(self, slots: int) -> bytearray:
        bits = bytearray((slots + 7) >> 3)
        if self.count:
            for seq in range(self.lo, self.hi):
                rel = seq % slots
                bits[rel >> 3] |= 1 << (rel & 7)
        self.bitmap = bits
        return bits


class Section:
    """What the manifest says of one queue, as of the cut."""

    __slots__ = ("attempts", "bytes", "count", "mark", "next_seq", "rows", "segments")

    def __init__(
        self,
        next_seq: int,
        mark: int,
        count: int,
        body_bytes: int,
        segments: dict[int, IndexSegment],
        rows: dict[int, Row],
        attempts: dict[int, int],
    ) -> None:
        self.next_seq: int = next_seq
        self.mark: int = mark
        self.count: int = count
        self.bytes: int = body_bytes
        self.segments: dict[int, IndexSegment] = segments
        self.rows: dict[int, Row] = rows
        self.attempts: dict[int, int] = attempts


class QueueIndex:
    """One queue's index. `count` and `bytes`: live persistent messages and their bodies' bytes."""

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
        self.holder: Holder = DictHolder()
        self.seed: int = queue_seed(vhost, number)
        self.next_seq: int = 0
        self.mark: int = 0
        self.count: int = 0
        self.bytes: int = 0
        self.segments: dict[int, IndexSegment] = {}
        self.section: dict[int, Row] = {}
        self.attempts: dict[int, int] = {}
        self.leased: LeasedSeqs = LeasedSeqs(slots)  # of what lives: a reader's, not ready
        self.epoch: int = ticks.epoch
        self.changed: int = ticks.epoch  # of the last change: the longest unchanged get files
        self.captured: Section | None = None
        self.limbo: list[Limbo] | None = None  # not None: a checkpoint still owes us our slice
        self.cut_seq: int = 0  # next seq at that cut
        # Per segment, transient messages whose bodies or slots are in its files: they keep it.
        self.transients: dict[int, int] = {}
        self._empty_tail: int = -1  # the segment of next seq, if its transient ones are all gone
        self._tail: IndexSegment | None = None
        self._has_directory: bool = False
        self._files: dict[int, SegmentFiles] = {}

    # ---- changes -------------------------------------------------------------------------------

    def take_seq(self) -> int:
        """The next seq, for a transient message: it lives in RAM alone, so no bit stands for it."""
        if self.changed != self.ticks.epoch:
            self._touch()
        seq = self.next_seq
        self.next_seq = seq + 1
        return seq

    def publish(self, size: int, in_store: bool, expiry_ms: int) -> int:
        """A persistent message of `size` bytes takes the next seq and lives."""
        seq = self.next_seq
        self.enqueue(seq, size, in_store, expiry_ms)
        return seq

    def add(self, seq: int, message: Message, is_held: bool = True) -> Entry | None:
        """A persistent message lives here from now on, and the holder has it in RAM; is_held=False:
        it is on its slot, and only there. The caller counts references. None: the seq is below the
        next one, it was applied already."""
        if not self.enqueue(seq, message.size, message.store_file != 0, message.expiry_ms):
            return None
        entry = Entry(seq, message)
        if is_held:
            self.holder.add(entry)
        return entry

    def enqueue(self, seq: int, size: int, in_store: bool, expiry_ms: int) -> bool:
        """Entry seq lives. False (and no change) if it is below the next seq: applied already."""
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
        """The live entries of a run, which is of one segment, are dead."""
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
        """Whether every entry of the run is alive."""
        first, n, _, _ = run
        segment = self.segments.get(first // self.slots)
        if segment is None or first < segment.lo or first + n > segment.hi:
            return False
        if segment.bitmap is None:
            return True
        return all(segment.has(seq, self.slots) for seq in range(first, first + n))

    def purge(self, upper: int, kept: list[Run]) -> dict[int, bytearray]:
        """All below `upper` is dead but the runs kept; upper is the next seq or a border. Returns,
        of each segment that had entries in the store, the bitmap of what died in it."""
        if self.changed != self.ticks.epoch:
            self._touch()
        runs: dict[int, list[Run]] = {}
        for run in kept:
            runs.setdefault(run[0] // self.slots, []).append(run)
        dead: dict[int, bytearray] = {}
        for number in sorted(n for n in self.segments if n * self.slots < upper):
            segment = self._own(self.segments[number])
            keep = runs.get(number, [])
            if not keep and not segment.stores:  # most are so: nobody asks what was alive in it
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
                for seq in range(first, first + n):
                    rel = seq % self.slots
                    bits[rel >> 3] |= 1 << (rel & 7)
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
        """The entries, ascending, as runs that cross no segment's border. ValueError if a seq comes
        twice or before a lower one."""
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

    def set_attempts(self, seq: int, attempts: int) -> None:
        """How often a live message has been delivered and came back; anything dead is ignored."""
        if self.changed != self.ticks.epoch:
            self._touch()
        if self.is_live(seq):
            self.attempts[seq] = attempts

    def set_mark(self, mark: int) -> None:
        """Everything below mark may have been delivered; it only rises."""
        if self.changed != self.ticks.epoch:
            self._touch()
        if mark > self.mark:
            self.mark = mark

    def lower_mark(self, mark: int) -> None:
        """At an orderly stop, before its checkpoint: exactly this was delivered."""
        if self.changed != self.ticks.epoch:
            self._touch()
        self.mark = mark

    def skip_to(self, seq: int) -> None:
        """After an unclean stop no seq below this is given again [9]."""
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
        """Whether any segment's files were used since the start."""
        return len(self._files) > 0

    def tail_bytes(self) -> int:
        """Bytes of the files of the segment of next seq, if the queue is empty: they stay, for the
        next message may be written to them. 0 if there are none, or anything is alive."""
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
        """Go on in the next segment, so that the files of this one, in which nothing is alive, go
        with the next checkpoint. Nothing is logged: after a crash without that checkpoint the
        queue goes on where it was, and no seq was given in between."""
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
            self._tail = segment  # also one of before a restart: it goes when the queue moves on

    def asks_for_dead(self) -> bool:
        """Whether it must be known which entries in RAM die: some bodies are in the store, or a
        checkpoint in progress owes them their slots (also if nothing has changed since its cut)."""
        is_owed = self.limbo is not None or self.epoch != self.ticks.epoch
        return is_owed or any(s.stores for s in self.segments.values())

    # ---- what a checkpoint sees ----------------------------------------------------------------

    def capture(self) -> Section:
        """The section as of the last cut; made at the first change after it, or when asked."""
        if self.epoch != self.ticks.epoch:
            self.captured = Section(
                self.next_seq, self.mark, self.count, self.bytes, self.segments.copy(),
                self.section.copy(), self.attempts.copy(),
            )  # fmt: skip
            self.epoch = self.ticks.epoch
            self.cut_seq = self.next_seq
            self.limbo = []
        assert self.captured is not None
        return self.captured

    def _touch(self) -> None:
        self._sweep_tail()
        if self.epoch != self.ticks.epoch:
            self.capture()
        self.changed = self.epoch

    def sliced(self) -> None:
        """The checkpoint has done with this queue."""
        self.captured = None
        self.limbo = None

    # ---- looking -------------------------------------------------------------------------------

    def is_live(self, seq: int) -> bool:
        segment = self.segments.get(seq // self.slots)
        return segment is not None and segment.has(seq, self.slots)

    def next_live(self, seq: int) -> int:
        """The first live persistent seq at or above this one, or -1."""
        number = seq // self.slots
        segment = self.segments.get(number)
        if segment is not None and segment.count:
            for at in range(max(seq, segment.lo), segment.hi):
                if segment.has(at, self.slots):
                    return at
        later = [n for n, s in self.segments.items() if n > number and s.count]
        return self.next_live(self.segments[min(later)].lo) if later else -1

    def live_seqs(self) -> list[int]:
        """All live persistent seqs, ascending (for verify, small queues and tests)."""
        return [q for n in sorted(self.segments) for q in self.segments[n].seqs(self.slots)]

    def read(self, seqs: list[int]) -> list[Message]:
        """Messages of live entries that are in the section or on slots, ascending, of one segment.
        A body in the store, or on behalf of the section there, stays None (see `section`).
        CorruptionError names file and position of what does not verify."""
        if self.section:
            on_slot = [seq for seq in seqs if seq not in self.section]
            messages = dict(zip(on_slot, self._read_slots(on_slot), strict=True))
            return [
                self.section[seq].message.copy() if seq in self.section else messages[seq]
                for seq in seqs
            ]
        return self._read_slots(seqs)

    def _read_slots(self, seqs: list[int]) -> list[Message]:
        return self.files(seqs[0] // self.slots).messages(seqs) if seqs else []

    def live_between(self, start: int, stop: int) -> list[int]:
        """Live persistent seqs from start to stop - 1, which are of one segment, ascending."""
        segment = self.segments.get(start // self.slots)
        if segment is None or not segment.count:
            return []
        start, stop = max(start, segment.lo), min(stop, segment.hi)
        if segment.bitmap is None:
            return list(range(start, stop))
        return [seq for seq in range(start, stop) if segment.has(seq, self.slots)]

    def ready_between(self, start: int, stop: int) -> list[int]:
        """As live_between, without what is leased."""
        if not self.leased.count:
            return self.live_between(start, stop)
        number = start // self.slots
        leased = self.leased.in_segment(number)
        segment = self.segments.get(number)
        if leased and segment is not None and segment.count == leased:
            return []
        return self.leased.without(self.live_between(start, stop))

    def first_ready(self) -> int:
        """The first live persistent seq that is not leased, or -1."""
        for number in sorted(self.segments):
            found = self.ready_between(number * self.slots, (number + 1) * self.slots)
            if found:
                return found[0]
        return -1

    # ---- files ---------------------------------------------------------------------------------

    def files(self, number: int) -> SegmentFiles:
        """The files of a segment; at most four segments of a queue stay open unless unsynced."""
        files = self._files.get(number)
        if files is None:
            if len(self._files) >= 4:
                for old in [n for n, f in self._files.items() if not f.is_dirty][:1]:
                    self.forget_files(old)
            path = f"{self.path}/{number}"
            files = SegmentFiles(
                self.fs, path, self.vhost, self.number, number, self.slots, self.ticks.handles
            )
            self._files[number] = files
        return files

    def make_directory(self) -> None:
        """The directory, and the name in it for people, as it should be. Needs a sync."""
        self.fs.mkdir(self.path)
        stub, text = f"{self.path}/{QUEUE_NAME}", text_of(self.ticks.vhost_name, self.name)
        if not self.fs.exists(stub) or self.fs.read(stub) != text:  # torn, disk full, or old
            file = self.fs.open(stub, create=True)
            try:
                file.pwrite(text, 0)
                file.truncate(len(text))
            finally:
                file.close()
        self._has_directory = True
        if self.is_durable:
            self.ticks.dirty_names.append(stub)  # a run before, killed, may not have synced it
            self.ticks.dirty_directories[self.path] = None
            self.ticks.dirty_directories[self.path.rpartition("/")[0]] = None

    def write(self, entries: list[Entry], places: list[int] | None = None) -> int:
        """Write entries, ascending, to slots and .qs; returns bytes written. Needs a sync.
        places: gets the position of each in .qs, 0 for one that has nothing there."""
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
        """Write entries of one segment, ascending, to .qs alone; their positions (0: none)."""
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
        """The files of a segment that is about to be written. Those of a queue that is not durable
        are never synced: no checkpoint names them, and they may go at any time."""
        if not self._has_directory:
            self.make_directory()
        files = self.files(number)
        if self.is_durable and files.path not in self.ticks.dirty:
            self.ticks.dirty[files.path] = files
            self.ticks.dirty_directories[self.path] = None
        return files

    def keep_transients(self, number: int, n: int) -> None:
        """n transient messages more are in the files of this segment; less, if negative. With the
        last one the files may go, unless persistent ones need them."""
        self._sweep_tail()
        left = self.transients.get(number, 0) + n
        self.transients[number] = left
        if left:
            return
        if number == self.next_seq // self.slots:
            self._empty_tail = number  # the next message may be written to it: it stays for now
        else:
            self._drop_transients(number)

    def _sweep_tail(self) -> None:
        """The files of a tail without transient messages may go once the queue has moved on."""
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
        """Close the handles of a segment, which is clean or about to be deleted."""
        files = self._files.pop(number, None)
        if files is not None:
            files.close()
            self.ticks.handles.forget(files)

    def close(self) -> None:
        for number in list(self._files):
            self.forget_files(number)
