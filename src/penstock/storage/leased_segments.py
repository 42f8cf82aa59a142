"""LeasedSeqs: which live entries of a QueueIndex are leased: a bit each, in segments.

Beside the index, not in it: an entry that is leased lives, counts and has its slot like any other;
it is only not ready. So whoever asks what is ready asks here as well, and mostly there is nothing
and the answer costs one comparison. Derived data: a checkpoint and the log have the leases
(leases.py), and this is filled from them.

A segment of 4,096 costs 512 bytes and an object.
"""

from penstock.native import mypyc_attr


@mypyc_attr(acyclic=True)
class LeasedSegment:
    """The leased seqs of one segment: a bitmap as of IndexSegment, and how many bits are set."""

    __slots__ = ("bits", "count")

    def __init__(self, bits: bytearray) -> None:
        self.bits: bytearray = bits
        self.count: int = 0


class LeasedSeqs:
    """Of one queue. count: leased messages; bytes: of their bodies."""

    def __init__(self, slots: int) -> None:
        self.count: int = 0
        self.bytes: int = 0
        self._slots: int = slots
        self._segments: dict[int, LeasedSegment] = {}

    def add(self, first: int, n: int, size: int) -> None:
        """A run of one segment is leased. ValueError: some of it is so already."""
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
        """A run of one segment is not leased any more. ValueError: it was not."""
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
        """Whether this seq is leased."""
        segment = self._segments.get(seq // self._slots)
        if segment is None:
            return False
        rel = seq % self._slots
        return segment.bits[rel >> 3] >> (rel & 7) & 1 == 1

    def in_segment(self, number: int) -> int:
        """How many of a segment are leased."""
        segment = self._segments.get(number)
        return 0 if segment is None else segment.count

    def without(self, seqs: list[int]) -> list[int]:
        """Those of these seqs, which are of one segment, that are not leased."""
        segment = self._segments.get(seqs[0] // self._slots) if seqs else None
        if segment is None:
            return seqs
        bits = segment.bits
        base = seqs[0] // self._slots * self._slots
        return [s for s in seqs if not bits[(s - base) >> 3] >> ((s - base) & 7) & 1]
