"""What a checkpoint holds of a store: which bodies of each file are alive, and how often.

Reference counts come from checkpoint and log, and from nothing else [1]; so a checkpoint
holds them all, exactly as of its cut. To hold them for ten million bodies it must be terse:
a sealed file's table (id -> place) is on disk already and never changes, so a *state* is one
bit per body in the order of that table, plus counts only where a body is shared.

One state, as bytes (big-endian; lives in the checkpoint, whose checksum covers it)::

    kind 1 | flags 1 | number 4 | lo 4 | hi 4 | count 4 | total bytes 8 | valid bytes 8 | live 4
    kind 1, sealed      [bitmap (count + 7) / 8, unless ALL]            bit i: entry i of the table
    kind 2, unsealed    live x id 8                                     its table is not final
    then                [DENSE: count x extra 1]  [SPARSE: n 4, n x (entry 4 | extra 4)]

    kind 3, own files   kind 1 | flags 1 | next number 4 | base 4 | bitmap bytes 4 | live 4 |
                        live bytes 8 | n 4 | bitmap | n x (number 4 | references 4)

flags: ALL 1 (every entry is alive), DENSE 2, SPARSE 4. lo..hi are the file numbers that the
file answers for. *extra* is references - 1; in the dense form 255 says: look in the sparse
list, which then holds only these. An unsealed state lists its live ids alone, so its count
is that of the live ones.

Measures: *total bytes* are all records of the file, headers of records included and the
file's header not; *valid bytes* those of live bodies. In RAM a body costs one bit here, and
one byte in files that have a shared body.

Failure: bytes that are no state are a ``ValueError`` (the checkpoint's reader adds path and
position). A count that would fall below zero is a ``StorageError``: log and checkpoint
disagree, and a body that is freed too often is worse than a stop.
"""

import struct
from array import array
from collections.abc import Callable
from typing import Final

from penstock.errors import StorageError
from penstock.native import mypyc_attr

OWN_FILE: Final = 0x80000000
"""Set in the file number of an address: the rest is the number of a file of one body."""

RECORD_BYTES: Final = 16
"""Of a record in an append file, before its body."""

KIND_SEALED: Final = 1
KIND_UNSEALED: Final = 2
KIND_OWN: Final = 3

FLAG_ALL: Final = 1
FLAG_DENSE: Final = 2
FLAG_SPARSE: Final = 4

EXTRA_MANY: Final = 255  # this extra and above stand in BodyCounts.many
SPARSE_BYTES: Final = 8

_STATE: Final = struct.Struct(">BBIIIIQQI")
_OWN: Final = struct.Struct(">BBIIIIQI")
_PAIR: Final = struct.Struct(">II")
_U32: Final = struct.Struct(">I")


@mypyc_attr(acyclic=True)
class BodyCounts:
    """References of the bodies of one file, by the place of their entry in its table."""

    __slots__ = ("count", "extra", "live", "live_count", "many", "valid_bytes")

    def __init__(self) -> None:
        self.count: int = 0  # entries, alive or not
        self.live_count: int = 0  # entries with a reference
        self.valid_bytes: int = 0  # of their records
        self.live: bytearray = bytearray()  # bit i & 7 of byte i >> 3: entry i has a reference
        self.extra: bytearray | None = None  # references - 1 of each entry, once one is shared
        self.many: dict[int, int] | None = None  # extras of EXTRA_MANY and more

    def refs(self, i: int) -> int:
        """References of entry ``i``, 0 if it is dead."""
        if not self.live[i >> 3] & (1 << (i & 7)):
            return 0
        extra = self.extra
        if extra is None:
            return 1
        n = extra[i]
        if n == EXTRA_MANY and self.many is not None:
            n = self.many[i]
        return n + 1

    def grow(self) -> int:
        """One more entry, without a reference; its place."""
        i = self.count
        self.count = i + 1
        if not i & 7:
            self.live.append(0)
        if self.extra is not None:
            self.extra.append(0)
        return i

    def ref(self, i: int, record_bytes: int, n: int) -> None:
        """``n`` more references, n >= 1."""
        had = self.refs(i)
        if not had:
            self.live[i >> 3] |= 1 << (i & 7)
            self.live_count += 1
            self.valid_bytes += record_bytes
        if had + n > 1:
            self._set_extra(i, had + n - 1)

    def unref(self, i: int, record_bytes: int, n: int) -> bool:
        """``n`` fewer references, n >= 1; True if none is left."""
        left = self.refs(i) - n
        if left < 0:
            raise StorageError(
                f"entry {i}: {n} references dropped, it had {left + n}; counts and log disagree"
            )
        if self.extra is not None:
            self._set_extra(i, left - 1 if left else 0)
        if left:
            return False
        self.live[i >> 3] &= ~(1 << (i & 7)) & 0xFF
        self.live_count -= 1
        self.valid_bytes -= record_bytes
        return True

    def copy(self) -> "BodyCounts":
        other = BodyCounts()
        other.count = self.count
        other.live_count = self.live_count
        other.valid_bytes = self.valid_bytes
        other.live = bytearray(self.live)
        if self.extra is not None:
            other.extra = bytearray(self.extra)
        if self.many is not None:
            other.many = dict(self.many)
        return other

    def set_size(self, count: int) -> None:
        """``count`` entries, all dead."""
        self.count = count
        self.live_count = 0
        self.valid_bytes = 0
        self.live = bytearray((count + 7) >> 3)
        self.extra = None
        self.many = None

    def permuted(self, order: "array[int]") -> "BodyCounts":
        """The same counts with entry order[i] at place i."""
        other = BodyCounts()
        other.set_size(self.count)
        for i in range(self.count):
            n = self.refs(order[i])
            if n:
                other.live[i >> 3] |= 1 << (i & 7)
                if n > 1:
                    other._set_extra(i, n - 1)
        other.live_count = self.live_count
        other.valid_bytes = self.valid_bytes
        return other

    def _set_extra(self, i: int, n: int) -> None:
        extra = self.extra
        if extra is None:
            if not n:
                return
            extra = bytearray(self.count)
            self.extra = extra
        many = self.many
        if n >= EXTRA_MANY:
            if many is None:
                many = {}
                self.many = many
            many[i] = n
            extra[i] = EXTRA_MANY
            return
        if many is not None and extra[i] == EXTRA_MANY:
            del many[i]
        extra[i] = n


class OwnState:
    """The files of one body each, as of a cut. Bit i of the bitmap is number ``base`` + i."""

    def __init__(self) -> None:
        self.next_number: int = 0
        self.base: int = 0  # a multiple of 8; all numbers below it are dead
        self.live: bytearray = bytearray()
        self.live_count: int = 0
        self.live_bytes: int = 0  # of their bodies
        self.shared: dict[int, int] = {}  # number -> references, where there are two or more

    def refs(self, number: int) -> int:
        """References of the body in own file ``number``, 0 if it is dead."""
        i = number - self.base
        if i < 0 or i >> 3 >= len(self.live) or not self.live[i >> 3] & (1 << (i & 7)):
            return 0
        return self.shared.get(number, 1)

    def set_refs(self, number: int, n: int, body_bytes: int) -> None:
        """Make it ``n`` references; ``number`` must not lie below ``base``."""
        i = number - self.base
        assert i >= 0, "a number below the base is dead for good"
        had = self.refs(number)
        if n and i >> 3 >= len(self.live):
            self.live.extend(bytes((i >> 3) + 1 - len(self.live)))
        if n > 1:
            self.shared[number] = n
        elif had > 1:
            del self.shared[number]
        if n and not had:
            self.live[i >> 3] |= 1 << (i & 7)
            self.live_count += 1
            self.live_bytes += body_bytes
        elif had and not n:
            self.live[i >> 3] &= ~(1 << (i & 7)) & 0xFF
            self.live_count -= 1
            self.live_bytes = max(self.live_bytes - body_bytes, 0)

    def trim(self, floor: int) -> None:
        """Forget the bits of dead numbers below ``floor``, the lowest that may still come alive."""
        dead = 0
        while dead < len(self.live) and not self.live[dead] and self.base + 8 * dead + 8 <= floor:
            dead += 1
        if dead:
            del self.live[:dead]
            self.base += 8 * dead

    def numbers(self) -> list[int]:
        """Numbers with a reference, ascending."""
        found: list[int] = []
        for at in range(len(self.live)):
            byte = self.live[at]
            if byte:
                first = self.base + 8 * at
                found += [first + bit for bit in range(8) if byte & (1 << bit)]
        return found

    def copy(self) -> "OwnState":
        other = OwnState()
        other.next_number = self.next_number
        other.base = self.base
        other.live = bytearray(self.live)
        other.live_count = self.live_count
        other.live_bytes = self.live_bytes
        other.shared = dict(self.shared)
        return other

    def encode(self) -> bytes:
        """The state's bytes, drawn at the head of this module."""
        head = _OWN.pack(
            KIND_OWN, 0, self.next_number, self.base, len(self.live), self.live_count,
            self.live_bytes, len(self.shared),
        )  # fmt: skip
        pairs = [_PAIR.pack(number, n) for number, n in self.shared.items()]
        return b"".join([head, bytes(self.live), *pairs])


class FileState:
    """One file of bodies as of a cut, or (``own`` is set) all files of one body each."""

    def __init__(self, number: int, lo: int, hi: int) -> None:
        self.number: int = number
        self.lo: int = lo
        self.hi: int = hi
        self.is_sealed: bool = True
        self.total_bytes: int = 0
        self.counts: BodyCounts = BodyCounts()
        self.ids: array[int] | None = None  # of each entry, if not sealed
        self.own: OwnState | None = None
        # Given by the store: id -> (place in the file's present table, position, size of body).
        self.find: Callable[[int], tuple[int, int, int]] | None = None

    def answers_for(self, file: int) -> bool:
        """Whether an address with file number ``file`` means this file."""
        if self.own is not None:
            return file & OWN_FILE != 0
        return self.lo <= file <= self.hi

    def refs(self, id: int) -> int:
        """References of body ``id`` in this state. Not for own files."""
        place, _ = self._place(id)
        return self.counts.refs(place)

    def ref(self, id: int, n: int = 1) -> None:
        """``n`` more references in this state; the store's own count is another matter.

        For what a checkpoint itself does to the state it writes. Not for own files.
        """
        place, record_bytes = self._place(id)
        self.counts.ref(place, record_bytes, n)

    def unref(self, id: int, n: int = 1) -> bool:
        """``n`` fewer references in this state; True if none is left. See ``ref``."""
        place, record_bytes = self._place(id)
        return self.counts.unref(place, record_bytes, n)

    def _place(self, id: int) -> tuple[int, int]:
        """(place in this state's table, bytes of the record)."""
        find = self.find
        assert find is not None, "a state that was decoded knows no table"
        place, _, size = find(id)
        if place >= 0 and self.ids is not None:
            # The file was not sealed then; its table may be in another order by now.
            place = self.ids.index(id) if id in self.ids else -1
        if place < 0:
            raise StorageError(f"store file {self.number}: it has no body {id}")
        return place, RECORD_BYTES + size

    @staticmethod
    def decode(data: bytes) -> "FileState":
        """The inverse of ``encode``. Raises ValueError saying what is wrong."""
        if data[:1] == bytes([KIND_OWN]):
            state = FileState(OWN_FILE, OWN_FILE, 0xFFFFFFFF)
            state.own = _decode_own(data)
            return state
        return _decode_file(data)

    def encode(self) -> bytes:
        """The state's bytes, drawn at the head of this module."""
        own = self.own
        if own is not None:
            return own.encode()
        ids = self.ids
        if self.is_sealed or ids is None:
            return self._encode(KIND_SEALED, self.counts, b"")
        counts = self.counts
        live: array[int] = array("Q")
        packed = BodyCounts()
        for i in range(counts.count):
            n = counts.refs(i)
            if n:
                live.append(ids[i])
                packed.ref(packed.grow(), 0, n)
        packed.valid_bytes = counts.valid_bytes
        return self._encode(KIND_UNSEALED, packed, struct.pack(f">{len(live)}Q", *live))

    def _encode(self, kind: int, counts: BodyCounts, ids: bytes) -> bytes:
        flags = FLAG_ALL if counts.live_count == counts.count else 0
        parts = [b"", ids]
        if not flags:
            parts.append(bytes(counts.live))
        extra = counts.extra
        if extra is not None:
            shared = counts.count - extra.count(0)
            sparse: dict[int, int] = counts.many or {}
            if shared * SPARSE_BYTES < counts.count:
                sparse = {i: counts.refs(i) - 1 for i in range(counts.count) if extra[i]}
            else:
                flags |= FLAG_DENSE
                parts.append(bytes(extra))
            if sparse:
                flags |= FLAG_SPARSE
                parts.append(_U32.pack(len(sparse)))
                parts += [_PAIR.pack(i, n) for i, n in sparse.items()]
        parts[0] = _STATE.pack(
            kind, flags, self.number, self.lo, self.hi, counts.count,
            self.total_bytes, counts.valid_bytes, counts.live_count,
        )  # fmt: skip
        return b"".join(parts)


def _decode_file(data: bytes) -> FileState:
    if len(data) < _STATE.size or data[0] not in (KIND_SEALED, KIND_UNSEALED):
        raise ValueError(f"no file state: {len(data)} bytes, beginning {data[:1]!r}")
    kind, flags, number, lo, hi, count, total, valid, live_count = _STATE.unpack_from(data)
    state = FileState(number, lo, hi)
    state.total_bytes = total
    counts = state.counts
    counts.set_size(count)
    counts.live_count = live_count
    counts.valid_bytes = valid
    at = _STATE.size
    if kind == KIND_UNSEALED:
        state.is_sealed = False
        ids: array[int] = array("Q", struct.unpack(f">{count}Q", _take(data, at, 8 * count)))
        state.ids = ids
        at += 8 * count
    if flags & FLAG_ALL:
        counts.live = bytearray(b"\xff" * (count >> 3))
        if count & 7:
            counts.live.append((1 << (count & 7)) - 1)
    else:
        counts.live = bytearray(_take(data, at, (count + 7) >> 3))
        at += (count + 7) >> 3
    at = _decode_extras(data, at, flags, counts)
    alive = int.from_bytes(counts.live, "big").bit_count()
    if at != len(data) or alive != live_count or not lo <= hi:
        raise ValueError(
            f"state of store file {number}: {alive} of {live_count} bodies, {lo}..{hi}"
        )
    return state


def _decode_extras(data: bytes, at: int, flags: int, counts: BodyCounts) -> int:
    """Reads the DENSE and SPARSE parts; the position behind them."""
    if flags & FLAG_DENSE:
        counts.extra = bytearray(_take(data, at, counts.count))
        at += counts.count
    if flags & FLAG_SPARSE:
        (pairs,) = _U32.unpack(_take(data, at, 4))
        at += 4
        for start in range(at, at + 8 * pairs, 8):
            i, n = _PAIR.unpack(_take(data, start, 8))
            if i >= counts.count:
                raise ValueError(f"extra of entry {i}, the file has {counts.count}")
            if n >= EXTRA_MANY and counts.many is None:
                counts.many = {}
            counts._set_extra(i, n)
        at += 8 * pairs
    return at


def _decode_own(data: bytes) -> OwnState:
    if len(data) < _OWN.size or data[0] != KIND_OWN:
        raise ValueError(f"no state of own files: {len(data)} bytes, beginning {data[:1]!r}")
    state = OwnState()
    _, _, state.next_number, state.base, length, state.live_count, state.live_bytes, pairs = (
        _OWN.unpack_from(data)
    )
    state.live = bytearray(_take(data, _OWN.size, length))
    at = _OWN.size + length
    for start in range(at, at + 8 * pairs, 8):
        number, n = _PAIR.unpack(_take(data, start, 8))
        state.shared[number] = n
    alive = int.from_bytes(state.live, "big").bit_count()
    if at + 8 * pairs != len(data) or alive != state.live_count or state.base & 7:
        raise ValueError(f"state of own files: {alive} of {state.live_count} bodies")
    return state


def _take(data: bytes, at: int, length: int) -> bytes:
    piece = data[at : at + length]
    if len(piece) != length:
        raise ValueError(f"cut off: {len(data)} bytes, {at + length} wanted")
    return piece
