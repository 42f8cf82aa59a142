"""Leases: what readers of classic queues have taken and not committed, for log and checkpoint.

A reader that must see the same messages again after any crash (a Spark query) *leases* them. The
messages that a reader has leased of a queue have the ordinals 0, 1, 2 ... in the order of delivery,
over all its leases. So to the reader the queue is like a stream that begins at `committed` and ends
at `next`. A leased message stays in the QueueIndex, but is not ready, and does not expire and is
not dropped or purged. A commit acknowledges all below an ordinal; a release makes all of it ready.

    LEASED      the next messages: runs of (part, seqs), one slice
    COMMITTED   all below `ordinal` is acknowledged (its DEQUEUEs are in the same record)
    RELEASED    all below `ordinal` is ready again, and the rest will be: `is_releasing`. The last
                of these records forgets the reader

In RAM a slice of up to 1,024 messages is one object whose runs stay packed as in the record, 32
bytes each. Mostly that is one run, so a leased message costs a quarter of a byte here and one bit
in LeasedSeqs. There is no object per message.

`floor_s` makes a lease replay exactly the same: the times of a reader's records never decrease, so
a record's time depends on those before it, which may be committed and deleted. So each slice has
the latest time before it.

    Section of a checkpoint (kind LEASE, one per queue and reader):
        queue 4 | id 16 | committed 8 | next 8 | latest time (s) 4 | is releasing 1 |
        name length 2 | slices 4 | name
        slice       ordinal 8 | how many 4 | bytes 8 | time (ms) 8 | floor (s) 4 | runs 4
          run       as in a LEASE record, 32 bytes

LeasedSeqs has a bit for each live entry of a QueueIndex: whether it is leased. It is not part of
the index, because a leased entry lives, counts and has its slot like any other; it is only not
ready. It is derived data, filled from the leases of checkpoint and log. A segment of 4,096 entries
costs 512 bytes and an object; a queue without leases costs one comparison.

No file is opened here. Errors are ValueErrors, which replay turns into CorruptionErrors.
"""

import struct
from bisect import bisect_right
from hashlib import blake2b
from typing import Final

from penstock.native import mypyc_attr
from penstock.storage.log import record
from penstock.storage.log.record import LeaseData, LeaseRun, Run

RUNS_MAX: Final = 256
DIRECTORY: Final = "leases"  # in the vhost's directory: pages for readers (lease_engine.py)

_LEASE: Final = struct.Struct(">I16sQQIBHI")
_SLICE: Final = struct.Struct(">QIQQII")


@mypyc_attr(acyclic=True)
class LeasedSlice:
    """What one LEASED record took, or what is left of it. ordinal: of its first message; n, bytes:
    messages, and bytes of their bodies; time_ms: when it was leased; floor_s: the latest time of a
    message before it; packed: its runs."""

    __slots__ = ("bytes", "floor_s", "n", "ordinal", "packed", "time_ms")

    def __init__(
        self, ordinal: int, n: int, size: int, time_ms: int, floor_s: int, packed: bytes
    ) -> None:
        self.ordinal: int = ordinal
        self.n: int = n
        self.bytes: int = size
        self.time_ms: int = time_ms
        self.floor_s: int = floor_s
        self.packed: bytes = packed

    def runs(self) -> list[LeaseRun]:
        """Return its runs, in the order of delivery."""
        return record.unpack_lease_runs(self.packed)


def ordinal_of(one: LeasedSlice) -> int:
    """Return the key that slices are sorted by."""
    return one.ordinal


class Lease:
    """The messages of one queue that one reader has leased: ordinals [committed, next).

    queue: number of the queue's first part. id: 16 bytes that no other lease of this store has, not
    even a later one of this reader. last_s: the latest time of all its messages ever, seconds since
    1970. is_releasing: it is being released, nothing more is leased or committed.
    """

    def __init__(self, queue: int, reader: str, id: bytes) -> None:
        self.queue: int = queue
        self.reader: str = reader
        self.id: bytes = id
        self.committed: int = 0
        self.next: int = 0
        self.bytes: int = 0
        self.last_s: int = 0
        self.is_releasing: bool = False
        self.slices: list[LeasedSlice] = []
        self.encoded: bytes = b""  # its section, until it changes

    @property
    def count(self) -> int:
        """How many messages are leased and not committed."""
        return self.next - self.committed

    @property
    def since_ms(self) -> int:
        """When the oldest uncommitted message was leased, ms since 1970; 0 without messages."""
        return self.slices[0].time_ms if self.slices else 0

    @property
    def floor_s(self) -> int:
        """The latest time of a message below `committed`."""
        return self.slices[0].floor_s if self.slices else self.last_s

    def slice_of(self, ordinal: int) -> LeasedSlice:
        """Return the slice that has this ordinal, which is leased."""
        return self.slices[bisect_right(self.slices, ordinal, key=ordinal_of) - 1]

    def append(self, found: LeaseData) -> None:
        """Apply a LEASED record."""
        if found.ordinal != self.next or self.is_releasing:
            raise ValueError(
                f"reader {self.reader!r} leases from ordinal {found.ordinal}, it is at {self.next}"
            )
        n = size = 0
        latest = self.last_s
        for _, _, many, run_bytes, _, latest_s in found.runs:
            n += many
            size += run_bytes
            if latest_s > latest:
                latest = latest_s
        if not n:
            raise ValueError("a lease of no message")
        packed = record.pack_lease_runs(found.runs)
        self.slices.append(LeasedSlice(found.ordinal, n, size, found.time_ms, self.last_s, packed))
        self.next += n
        self.bytes += size
        self.last_s = latest
        self.encoded = b""

    def take_below(self, ordinal: int, parted: list[LeaseRun]) -> list[LeaseRun]:
        """Remove all below an ordinal and return its runs. parted: the runs, up to the ordinal, of
        a slice that the ordinal divides."""
        if not self.committed < ordinal <= self.next:
            raise ValueError(
                f"reader {self.reader!r} ends what is below ordinal {ordinal}, it has "
                f"{self.committed} to {self.next}"
            )
        gone: list[LeaseRun] = []
        i = 0
        while i < len(self.slices) and self.slices[i].ordinal + self.slices[i].n <= ordinal:
            gone += self.slices[i].runs()
            self.bytes -= self.slices[i].bytes
            i += 1
        if i < len(self.slices) and self.slices[i].ordinal < ordinal:
            left = part(self.slices[i], ordinal, parted)
            self.bytes -= self.slices[i].bytes - left.bytes
            self.slices[i] = left
            gone += parted
        elif parted:
            raise ValueError(f"ordinal {ordinal} divides no slice, but there are runs of one")
        del self.slices[:i]
        self.committed = ordinal
        self.encoded = b""
        return gone


def part(whole: LeasedSlice, ordinal: int, parted: list[LeaseRun]) -> LeasedSlice:
    """Return what is left of a slice from an ordinal on, without the runs before it."""
    runs = whole.runs()
    n = size = 0
    floor_s = whole.floor_s
    for i in range(len(parted)):
        number, first, many, run_bytes, stores, latest_s = parted[i]
        if i >= len(runs) or runs[i][:2] != (number, first) or many > runs[i][2]:
            raise ValueError(f"queue {number} seq {first}, {many} of them, were not leased so")
        n += many
        size += run_bytes
        floor_s = max(floor_s, latest_s)
        rest = runs[i]
        if many < rest[2]:
            if i != len(parted) - 1:
                raise ValueError("a run is divided that is not the last one")
            runs[i] = (
                number, first + many, rest[2] - many, rest[3] - run_bytes, rest[4] - stores,
                rest[5],
            )  # fmt: skip
            runs = runs[i:]
            break
    else:
        runs = runs[len(parted) :]
    if whole.ordinal + n != ordinal:
        raise ValueError(f"{n} messages from ordinal {whole.ordinal} on do not end at {ordinal}")
    return LeasedSlice(
        ordinal, whole.n - n, whole.bytes - size, whole.time_ms, floor_s,
        record.pack_lease_runs(runs),
    )  # fmt: skip


class LeaseTable:
    """All leases of a vhost, by the number of the queue's first part and by reader. runs_max: how
    many runs one record of a commit or a release handles."""

    def __init__(self) -> None:
        self.by_queue: dict[int, dict[str, Lease]] = {}
        self.runs_max: int = RUNS_MAX

    def of(self, queue: int) -> dict[str, Lease]:
        """Return the leases of a queue, by reader; not to be changed."""
        return self.by_queue.get(queue, {})

    def apply(self, found: LeaseData, flags: int, lsn: int) -> tuple[list[LeaseRun], bool]:
        """Apply a LEASE record. Return runs, and True if they are leased now, False if they no
        longer are."""
        reader = found.reader.decode("utf-8", "surrogateescape")
        leases = self.by_queue.setdefault(found.queue, {})
        lease = leases.get(reader)
        if flags == record.LEASED:
            if lease is None:
                lease = Lease(found.queue, reader, lease_id(found, lsn))
                leases[reader] = lease
            lease.append(found)
            return found.runs, True
        if flags not in (record.COMMITTED, record.RELEASED):
            raise ValueError(f"a LEASE with flags {flags:#04x}")
        if lease is None:
            raise ValueError(f"reader {reader!r} has no lease of queue {found.queue}")
        gone: list[LeaseRun] = []
        if found.ordinal > lease.committed or found.ordinal < lease.next:
            gone = lease.take_below(found.ordinal, found.runs)
        if flags == record.RELEASED:
            lease.is_releasing = True
            if lease.committed == lease.next:
                del leases[reader]
        if not leases:
            del self.by_queue[found.queue]
        return gone, False

    def runs_of(self, number: int) -> list[Run]:
        """Return the leased runs of one part of a queue, which a purge keeps."""
        found: list[Run] = []
        own = self.by_queue.get(number)  # None: another part than the first
        for leases in self.by_queue.values() if own is None else [own]:
            for lease in leases.values():
                for one in lease.slices:
                    found += [
                        (first, n, size, stores)
                        for of_part, first, n, size, stores, _ in one.runs()
                        if of_part == number
                    ]
        return found

    def delete(self, queue: int) -> list[LeaseRun]:
        """Delete the leases of a deleted queue; return their runs."""
        leases = self.by_queue.pop(queue, {})
        return [run for lease in leases.values() for one in lease.slices for run in one.runs()]

    # ---- checkpoints ---------------------------------------------------------------------------

    def capture(self) -> list[bytes]:
        """Return a section for each lease as of now. Unchanged sections are reused."""
        return [encode(lease) for leases in self.by_queue.values() for lease in leases.values()]

    def restore(self, data: bytes) -> Lease:
        """Add a lease from a checkpoint and return it."""
        lease = decode(data)
        leases = self.by_queue.setdefault(lease.queue, {})
        if lease.reader in leases:
            raise ValueError(f"reader {lease.reader!r} has two leases of queue {lease.queue}")
        leases[lease.reader] = lease
        return lease


def lease_id(found: LeaseData, lsn: int) -> bytes:
    """Return the id of a lease that begins with this record; it is the same in every replay."""
    data = struct.pack(">IQQ", found.queue, lsn, found.time_ms) + found.reader
    return blake2b(data, digest_size=16).digest()


def encode(lease: Lease) -> bytes:
    """Return the section of a lease."""
    if lease.encoded:
        return lease.encoded
    name = lease.reader.encode("utf-8", "surrogateescape")
    parts = [
        _LEASE.pack(
            lease.queue, lease.id, lease.committed, lease.next, lease.last_s, lease.is_releasing,
            len(name), len(lease.slices),
        ),
        name,
    ]  # fmt: skip
    for one in lease.slices:
        runs = len(one.packed) // record.LEASE_RUN_BYTES
        parts.append(_SLICE.pack(one.ordinal, one.n, one.bytes, one.time_ms, one.floor_s, runs))
        parts.append(one.packed)
    lease.encoded = b"".join(parts)
    return lease.encoded


def decode(data: bytes) -> Lease:
    """Return the lease of a section. ValueError, struct.error."""
    queue, id, committed, next_, last_s, releasing, length, slices = _LEASE.unpack_from(data)
    at = _LEASE.size + length
    lease = Lease(queue, data[_LEASE.size : at].decode("utf-8", "surrogateescape"), id)
    lease.committed = lease.next = committed
    lease.last_s = last_s
    lease.is_releasing = bool(releasing)
    for _ in range(slices):
        ordinal, n, size, time_ms, floor_s, runs = _SLICE.unpack_from(data, at)
        at += _SLICE.size
        end = at + runs * record.LEASE_RUN_BYTES
        if ordinal != lease.next or end > len(data):
            raise ValueError(f"reader {lease.reader!r} has no slice at ordinal {lease.next}")
        one = LeasedSlice(ordinal, n, size, time_ms, floor_s, data[at:end])
        if sum([run[2] for run in one.runs()]) != n:
            raise ValueError(f"the slice at ordinal {ordinal} has not {n} messages")
        at = end
        lease.slices.append(one)
        lease.next += n
        lease.bytes += size
    if lease.next != next_ or at != len(data):
        raise ValueError(f"the lease ends at ordinal {lease.next}, not {next_}")
    return lease


@mypyc_attr(acyclic=True)
class LeasedSegment:
    """The leased seqs of one segment: a bitmap like that of IndexSegment, and how many bits are
    set."""

    __slots__ = ("bits", "count")

    def __init__(self, bits: bytearray) -> None:
        self.bits: bytearray = bits
        self.count: int = 0


class LeasedSeqs:
    """The leased seqs of one queue. count: leased messages; bytes: of their bodies."""

    def __init__(self, slots: int) -> None:
        self.count: int = 0
        self.bytes: int = 0
        self._slots: int = slots
        self._segments: dict[int, LeasedSegment] = {}

    def add(self, first: int, n: int, size: int) -> None:
        """Mark a run of one segment as leased. ValueError: some of it is leased already."""
        number = first // self._slots
        segment = self._segments.get(number)
        if segment is None:
            segment = LeasedSegment(bytearray((self._slots + 7) >> 3))
            self._segments[number] = segment
        bits = segment.bits
        rel = first - number * self._slots
        if n < 1 or rel + n > self._slots:
            raise ValueError(f"a leased run of seqs {first} to {first + n - 1} crosses a segment")
        start, stop = rel >> 3, (rel + n + 7) >> 3
        mask = ((1 << n) - 1) << (rel & 7)
        old = int.from_bytes(bits[start:stop], "little")
        twice = old & mask
        if twice:
            at = start * 8 + (twice & -twice).bit_length() - 1
            raise ValueError(f"seq {number * self._slots + at} is leased already")
        bits[start:stop] = (old | mask).to_bytes(stop - start, "little")
        segment.count += n
        self.count += n
        self.bytes += size

    def remove(self, first: int, n: int, size: int) -> None:
        """Mark a run of one segment as not leased. ValueError: it was not leased."""
        number = first // self._slots
        segment = self._segments.get(number)
        if segment is None or segment.count < n:
            raise ValueError(f"seqs {first} to {first + n - 1} are not leased")
        segment.count -= n
        self.count -= n
        self.bytes -= size
        if not segment.count:
            del self._segments[number]
            return
        bits = segment.bits
        rel = first - number * self._slots
        start, stop = rel >> 3, (rel + n + 7) >> 3
        mask = ((1 << n) - 1) << (rel & 7)
        old = int.from_bytes(bits[start:stop], "little")
        bits[start:stop] = (old & ~mask).to_bytes(stop - start, "little")

    def has(self, seq: int) -> bool:
        """Return whether this seq is leased."""
        segment = self._segments.get(seq // self._slots)
        if segment is None:
            return False
        rel = seq % self._slots
        return segment.bits[rel >> 3] >> (rel & 7) & 1 == 1

    def in_segment(self, number: int) -> int:
        """Return how many seqs of a segment are leased."""
        segment = self._segments.get(number)
        return 0 if segment is None else segment.count

    def without(self, seqs: list[int]) -> list[int]:
        """Return those of these seqs, which are of one segment, that are not leased."""
        segment = self._segments.get(seqs[0] // self._slots) if seqs else None
        if segment is None:
            return seqs
        bits = segment.bits
        base = seqs[0] // self._slots * self._slots
        return [s for s in seqs if not bits[(s - base) >> 3] >> ((s - base) & 7) & 1]
