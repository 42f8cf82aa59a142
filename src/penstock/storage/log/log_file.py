"""The files of the transaction log: their format, and LogReader, which follows the log in them.

An fdatasync into a file whose blocks are written and whose size does not change has no metadata to
write. It is about twice as fast (measured) as one into a growing file, and cannot meet a full disk.
So the log consists of segments that are filled with zeros and used again. Old bytes may follow the
new ones, which is why every checksum is seeded with a salt that each life of a file has of its
own [11]. transaction_log.py prepares and writes the segments.

    wal/<number, 10 digits>.wal    a segment      wal/<number>.new    one being prepared [7]

    Segment     header 64 | chain 64 | groups, each at a multiple of 64 | zeros or older bytes
    header      "PWAL" 4 | version 2 | flags 2 | vhost 8 | number 8 | size 8 | salt 8 | crc 4 |
                zeros 20
    chain       "PCHN" 4 | previous segment 8 | its end 8 | its last LSN 8 | durable LSN 8 | crc 4 |
                zeros 24
    end marker  the same with "PVCH", in the place of the chain
    group       "PGRP" 4 | length of the records 4 | first LSN 8 | durable LSN 8 | count 4 | crc 4 |
                records (record.py) | zeros to a multiple of 64
    seed of all in a segment = crc32(vhost 8 | number 8 | salt 8)

* The *header* is written and synced before the file gets the name of a segment [7]. So a segment
  whose header does not verify is damaged, never torn. Its CRC stays in place in later versions.
* The *chain* is written with the first group. It says where the log before it ends: the end of the
  segment before, or the end that recovery found, and then what follows that end is cut [8].
  Previous segment 0: there is none. A segment without a chain has no records.
* A group's *durable LSN* is what an fdatasync that returned covered when the group was written.
* An *idle header* is a group of no records whose first LSN is the next one; the next group is
  written over it. The *end marker*, in the prepared next segment, says the same once more; its last
  LSN is the durable one. One of them is written after each sync that no group follows, before
  anything of it is confirmed. Without it damage to the last group would pass for a torn tail. It is
  the end marker if there is a next segment, because that is another file.

A torn tail and corruption. Kernels write pages in any order, so after a power cut valid groups may
follow a hole, and the hole may be in what was never confirmed. The same hole in confirmed records
is damage, and a start without those messages would lose them silently. The durable LSN in every
later header makes the difference [11].

Segments are followed from a position (a checkpoint's cut) as long as groups and records verify and
LSNs follow one another. A chain that names exactly the position reached is followed at once; a
segment that no chain leads to is left out. Where reading stops, at LSN x, all that follows is
searched for headers that verify: the rest of the segment at multiples of 64, then all later
segments. If one of them claims a durable LSN of x or more, or if a chain says that the log before
it reached x (a segment is synced to its end before the next is written), then x was on the disk:
CorruptionError, with path, position and the number of records concerned. Otherwise no sync covered
x: it is the torn tail, all after it is ignored, and the number of records cut is reported. After
the death of the process every confirmed record has such a header, because one is written before the
confirm. After a power cut one sync may have none: the header that confirms the last sync reaches
the disk with the next one. Damage to what that last sync wrote looks like a torn tail.

Each file is synced and its cached pages are dropped before it is read [8]: after a failed sync the
pages are clean and yet not on the disk. The reader writes nothing. It needs a window of 1 MiB per
segment, or one record if that is larger.
"""

import struct
from collections.abc import Callable
from typing import Final

from librt.strings import read_i32_be, read_i64_be

from penstock.errors import CorruptionError, SyncFailedError, VersionError
from penstock.fast_crc import crc32
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.log.record import (
    IN_STORE,
    PUBLISH,
    RECORD_HEADER_BYTES,
    Record,
    RecordError,
    is_known,
    refusal,
)

VERSION: Final = 1
ALIGN_BYTES: Final = 64
CHAIN_OFFSET: Final = 64
FIRST_GROUP_OFFSET: Final = 128
GROUP_HEADER_BYTES: Final = 32
NUMBER_DIGITS: Final = 10
SEGMENT_SUFFIX: Final = ".wal"
NEW_SUFFIX: Final = ".new"

MAGIC_SEGMENT: Final = int.from_bytes(b"PWAL", "big")
MAGIC_CHAIN: Final = int.from_bytes(b"PCHN", "big")
MAGIC_END_MARKER: Final = int.from_bytes(b"PVCH", "big")
MAGIC_GROUP: Final = int.from_bytes(b"PGRP", "big")

_SEGMENT: Final = struct.Struct(">IHHQQQQ")
_CHAIN: Final = struct.Struct(">IQQQQ")
_GROUP: Final = struct.Struct(">IIQQI")
_CRC: Final = struct.Struct(">I")
_SEED: Final = struct.Struct(">QQQ")


class Chain:
    """A chain or an end marker: where the log before a segment ends, and what was durable then."""

    __slots__ = ("durable_lsn", "is_end_marker", "prev_end", "prev_lsn", "prev_segment")

    def __init__(
        self, is_end_marker: bool, prev_segment: int, prev_end: int, prev_lsn: int, durable_lsn: int
    ) -> None:
        self.is_end_marker: bool = is_end_marker
        self.prev_segment: int = prev_segment
        self.prev_end: int = prev_end
        self.prev_lsn: int = prev_lsn
        self.durable_lsn: int = durable_lsn


class GroupHeader:
    """A group's header; count 0 is an idle header."""

    __slots__ = ("count", "durable_lsn", "first_lsn", "length")

    def __init__(self, length: int, first_lsn: int, durable_lsn: int, count: int) -> None:
        self.length: int = length
        self.first_lsn: int = first_lsn
        self.durable_lsn: int = durable_lsn
        self.count: int = count


class LogEnd:
    """Where the log ends, as a survey found it.

    segment, offset: of the next group, or of the record that could not be read. last_lsn: of the
    last good record, or the one before the first that was asked for. claim: the highest LSN that
    any header says was durable; only above it may a store body that a record names be missing.
    cut_records: records in the groups after the end. next_number: a segment number above all that
    exist. files: (number, path) of every file of the log; none of them is needed once recovery's
    checkpoint is CURRENT. aside: paths of segments, from the first one asked for on, that do not
    chain.
    """

    __slots__ = (
        "aside", "claim", "cut_records", "files", "last_lsn", "next_number", "offset", "segment",
    )  # fmt: skip

    def __init__(self, segment: int, offset: int, last_lsn: int, claim: int) -> None:
        self.segment: int = segment
        self.offset: int = offset
        self.last_lsn: int = last_lsn
        self.claim: int = claim
        self.cut_records: int = 0
        self.next_number: int = 1
        self.files: list[tuple[int, str]] = []
        self.aside: list[str] = []


# ----------------------------------------------------------------------------------------
# Format


def segment_path(directory: str, number: int) -> str:
    """Return the path of a segment."""
    return f"{directory}/{number:0{NUMBER_DIGITS}d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int:
    """Return the number in a file name of the log, 0 if it is not such a name."""
    digits = name[:NUMBER_DIGITS]
    if name[NUMBER_DIGITS:] in (SEGMENT_SUFFIX, NEW_SUFFIX) and digits.isdecimal():
        return int(digits)
    return 0


def segment_seed(vhost: int, number: int, salt: int) -> int:
    """Return the seed of every checksum in a segment."""
    return crc32(_SEED.pack(vhost, number, salt))


def aligned(offset: int) -> int:
    """Return the next multiple of ALIGN_BYTES."""
    return (offset + ALIGN_BYTES - 1) // ALIGN_BYTES * ALIGN_BYTES


def encode_segment_header(vhost: int, number: int, size: int, salt: int) -> bytes:
    """Encode the 64 bytes at position 0."""
    fixed = _SEGMENT.pack(MAGIC_SEGMENT, VERSION, 0, vhost, number, size, salt)
    return _sealed(fixed, segment_seed(vhost, number, salt), CHAIN_OFFSET)


def encode_chain(
    seed: int,
    prev_segment: int,
    prev_end: int,
    prev_lsn: int,
    durable_lsn: int,
    is_end_marker: bool,
) -> bytes:
    """Encode the 64 bytes at position 64."""
    magic = MAGIC_END_MARKER if is_end_marker else MAGIC_CHAIN
    fixed = _CHAIN.pack(magic, prev_segment, prev_end, prev_lsn, durable_lsn)
    return _sealed(fixed, seed, FIRST_GROUP_OFFSET - CHAIN_OFFSET)


def encode_group_header(
    seed: int, length: int, first_lsn: int, durable_lsn: int, count: int
) -> bytes:
    """Encode the 32 bytes before a group's records."""
    fixed = _GROUP.pack(MAGIC_GROUP, length, first_lsn, durable_lsn, count)
    return fixed + _CRC.pack(crc32(fixed, seed))


def decode_segment_header(data: bytes, path: str, vhost: int, number: int) -> tuple[int, int]:
    """Return (size, seed) of the segment that begins with `data`.

    CorruptionError if it does not verify or has another vhost or number; VersionError.
    """
    if len(data) < FIRST_GROUP_OFFSET:
        raise CorruptionError(path, len(data), "file ends within the segment header")
    magic, version, _, owner, its_number, size, salt = _SEGMENT.unpack_from(data)
    seed = segment_seed(owner, its_number, salt)
    if magic != MAGIC_SEGMENT or not _is_sealed(data, _SEGMENT.size, seed):
        raise CorruptionError(path, 0, "the segment header does not verify")
    if version != VERSION:
        raise VersionError(path, VERSION, version)
    if owner != vhost:
        raise CorruptionError(path, 0, f"a segment of vhost {owner:#x}, expected {vhost:#x}")
    if its_number != number:
        raise CorruptionError(path, 0, f"its header says segment {its_number}, its name {number}")
    return size, seed


def decode_chain(data: bytes, seed: int) -> Chain | None:
    """Decode the chain or end marker at the beginning of `data`; None if none verifies."""
    magic, segment, end, lsn, durable_lsn = _CHAIN.unpack_from(data)
    if magic not in (MAGIC_CHAIN, MAGIC_END_MARKER) or not _is_sealed(data, _CHAIN.size, seed):
        return None
    return Chain(magic == MAGIC_END_MARKER, segment, end, lsn, durable_lsn)


def decode_group_header(data: bytes, offset: int, seed: int) -> GroupHeader | None:
    """Decode the group header at `offset` of `data`; None if none verifies."""
    if len(data) - offset < GROUP_HEADER_BYTES:
        return None
    magic, length, first_lsn, durable_lsn, count = _GROUP.unpack_from(data, offset)
    if magic != MAGIC_GROUP:
        return None
    header = data[offset : offset + GROUP_HEADER_BYTES]
    if not _is_sealed(header, _GROUP.size, seed):
        return None
    return GroupHeader(length, first_lsn, durable_lsn, count)


def _sealed(fixed: bytes, seed: int, size: int) -> bytes:
    return (fixed + _CRC.pack(crc32(fixed, seed))).ljust(size, b"\0")


def _is_sealed(data: bytes, size: int, seed: int) -> bool:
    crc: int = _CRC.unpack_from(data, size)[0]
    return crc == crc32(data[:size], seed)


# ----------------------------------------------------------------------------------------
# Preparing


WINDOW_BYTES: Final = 1 << 20

_GROUP_MAGIC: Final = b"PGRP"
_U32_MASK: Final = 0xFFFFFFFF

OnRecord = Callable[[Record], None]


class LogSegment:
    """A segment open for reading, its header verified. `chain` is None where none verifies."""

    __slots__ = (
        "chain", "file", "number", "path", "reason", "seed", "size", "window", "window_start",
    )  # fmt: skip

    def __init__(self, number: int, path: str, file: File, vhost: int) -> None:
        self.number: int = number
        self.path: str = path
        self.file: File = file
        head = file.pread(FIRST_GROUP_OFFSET, 0)
        size, seed = decode_segment_header(head, path, vhost, number)
        if file.size() < size:
            raise CorruptionError(path, file.size(), f"file ends, its header says {size}")
        self.size: int = size
        self.seed: int = seed
        self.chain: Chain | None = decode_chain(head[CHAIN_OFFSET:], seed)
        if self.chain is None:  # it may have been read wrongly once
            self.chain = decode_chain(file.pread(FIRST_GROUP_OFFSET, 0)[CHAIN_OFFSET:], seed)
        self.window: bytes = b""
        self.window_start: int = 0
        self.reason: str = ""  # why record_at returned None

    def at(self, offset: int, length: int) -> int:
        """Read `length` bytes of the file from `offset` on into `window`, if they are not in it.
        Returns their index there. CorruptionError if the file ends before."""
        index = offset - self.window_start
        if index < 0 or index + length > len(self.window):
            self.window = self.file.pread(max(length, WINDOW_BYTES), offset)
            self.window_start = offset
            if len(self.window) < length:
                end = offset + len(self.window)
                raise CorruptionError(self.path, end, f"file ends, its header says {self.size}")
            index = 0
        return index

    def group_at(self, offset: int) -> GroupHeader | None:
        """Return the group header at `offset`; None if none verifies."""
        if offset + GROUP_HEADER_BYTES > self.size:
            return None
        index = self.at(offset, GROUP_HEADER_BYTES)
        return decode_group_header(self.window, index, self.seed)

    def next_group(self, offset: int) -> int:
        """Return the position of the first group header that verifies, at `offset` (aligned) or
        after it, or -1. Records and damage between are skipped: so headers after a bad record are
        found [11]."""
        while offset + ALIGN_BYTES <= self.size:
            index = self.at(offset, ALIGN_BYTES)
            found = self.window.find(_GROUP_MAGIC, index)
            if found < 0:
                # Only aligned positions count, so no header is missed at the window's edge.
                offset = (self.window_start + len(self.window)) // ALIGN_BYTES * ALIGN_BYTES
                continue
            position = self.window_start + found
            if position % ALIGN_BYTES == 0 and self.group_at(position) is not None:
                return position
            offset = (position // ALIGN_BYTES + 1) * ALIGN_BYTES
        return -1

    def record_at(self, offset: int, end: int) -> Record | None:
        """Return the record at `offset`, which ends at `end` at the latest; None if none verifies,
        and `reason` is set. CorruptionError for a record of an unknown type that verifies."""
        checked = self.checked_at(offset, end)
        return self.record_of(checked, offset) if checked else None

    def checked_at(self, offset: int, end: int, *, is_again: bool = False) -> bytes:
        """Return the same record as bytes, from its LSN on; empty if none verifies. It is read
        again before that: a read may be wrong once."""
        if end - offset < RECORD_HEADER_BYTES:
            self.reason = "no room for a record header"
            return b""
        index = self.at(offset, RECORD_HEADER_BYTES)
        # Number by number, as record_writer.py: a struct is half of the cost of a survey.
        length: int = read_i32_be(self.window, index)
        length &= _U32_MASK
        if length < RECORD_HEADER_BYTES or offset + length > end:
            self.reason = f"a record of {length} bytes where {end - offset} are left"
            return b"" if is_again else self.read_again(offset, end)
        index = self.at(offset, length)
        crc: int = read_i32_be(self.window, index + 4)
        checked = self.window[index + 8 : index + length]
        if crc32(checked, self.seed) != crc & _U32_MASK:
            self.reason = "the record does not verify"
            return b"" if is_again else self.read_again(offset, end)
        if not is_known(checked[8]):
            raise CorruptionError(self.path, offset, refusal(checked[8]))
        return checked

    def read_again(self, offset: int, end: int) -> bytes:
        """Do what `checked_at` does, with what is read from the file now."""
        self.window = b""
        return self.checked_at(offset, end, is_again=True)

    def record_of(self, checked: bytes, offset: int) -> Record:
        """Return the record that `checked_at` has found at `offset`."""
        count = checked[10] << 8 | checked[11]
        data = checked[RECORD_HEADER_BYTES - 8 :]
        return Record(_lsn_of(checked), checked[8], checked[9], count, data, self.number, offset)


def _lsn_of(checked: bytes) -> int:
    lsn: int = read_i64_be(checked, 0)
    return lsn if lsn >= 0 else lsn + (1 << 64)


class _Walk:
    """The position of a reader. reason: why it stopped. next: the segment after this one."""

    __slots__ = (
        "claim", "group_offset", "next", "next_lsn", "offset", "reason", "segment",
    )  # fmt: skip

    def __init__(self, segment: LogSegment, offset: int, next_lsn: int) -> None:
        self.segment: LogSegment = segment
        self.offset: int = offset  # of the next group, or of the record not read
        self.group_offset: int = offset  # of the group in which that is
        self.next_lsn: int = next_lsn
        self.claim: int = next_lsn - 1  # what precedes the position is in a checkpoint
        self.next: LogSegment | None = None
        self.reason: str = ""


class _Rest:
    """What headers after the log's end say: the highest durable LSN, where that is, and how many
    records there are."""

    __slots__ = ("claim", "first_lsn", "offset", "path", "records")

    def __init__(self) -> None:
        self.claim: int = -1
        self.path: str = ""
        self.offset: int = 0
        self.records: int = 0

    def add(self, claim: int, path: str, offset: int) -> None:
        if claim > self.claim:
            self.claim, self.path, self.offset = claim, path, offset

    def scan(self, segment: LogSegment, offset: int, next_lsn: int) -> None:
        """Count every group header that verifies from `offset` on."""
        offset = segment.next_group(offset)
        while offset >= 0:
            group = segment.group_at(offset)
            assert group is not None
            self.add(group.durable_lsn, segment.path, offset)
            upper = group.first_lsn + group.count
            self.records += max(0, upper - max(group.first_lsn, next_lsn))
            offset = segment.next_group(offset + ALIGN_BYTES)


class LogReader:
    """Reads the log in `directory` of the vhost with that number. Writes nothing, but syncs.

    trust_cache: neither sync nor drop pages, for tools that read a store whose owner may be
    running; never for recovery [8].
    """

    def __init__(
        self, fs: FileSystem, directory: str, vhost: int, *, trust_cache: bool = False
    ) -> None:
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.vhost: int = vhost
        self.trust_cache: bool = trust_cache
        self.segments: dict[int, LogSegment] = {}  # open, by number

    def survey(
        self,
        first_segment: int,
        first_offset: int,
        first_lsn: int,
        on_record: OnRecord | None = None,
        *,
        skips_plain: bool = False,
    ) -> LogEnd:
        """Find the end of the log that begins, with record `first_lsn`, at that position.

        first_segment 0: there is no log, whatever files the directory has. on_record: called for
        each record, before it is known whether the log is whole; a RecordError that it raises
        becomes a CorruptionError. skips_plain: not for a PUBLISH that has its body. Raises
        CorruptionError, VersionError, and SyncFailedError for a file that cannot be synced.
        """
        files = self._files()
        end = LogEnd(first_segment, first_offset, first_lsn - 1, first_lsn - 1)
        visited: set[int] = set()
        if first_segment:
            self._open_from(first_segment, files)
            walk = self._walk(
                first_segment, first_offset, first_lsn, -1, on_record, visited, skips_plain
            )
            rest = self._search_rest(walk)
            end = LogEnd(walk.segment.number, walk.offset, walk.next_lsn - 1, walk.claim)
            end.claim = max(walk.claim, rest.claim)
            end.cut_records = rest.records
        end.files = files
        for number, path in files:
            end.next_number = max(end.next_number, number + 1)
            if number >= max(first_segment, 1) and number not in visited:
                end.aside.append(path)
        return end

    def records(
        self,
        first_segment: int,
        first_offset: int,
        first_lsn: int,
        last_lsn: int,
        on_record: OnRecord,
    ) -> None:
        """Call `on_record` for the records up to `last_lsn`, which a survey has found."""
        if not first_segment or last_lsn < first_lsn:
            return
        self._open_from(first_segment, self._files())
        walk = self._walk(first_segment, first_offset, first_lsn, last_lsn, on_record, set())
        if walk.next_lsn <= last_lsn:
            reason = f"record {walk.next_lsn} cannot be read any more: {walk.reason}"
            raise CorruptionError(walk.segment.path, walk.offset, reason)

    def read_record(self, number: int, offset: int) -> Record:
        """Return the record at the position that a Record has. CorruptionError if it cannot be
        read."""
        segment = self._open(number)
        record = segment.record_at(offset, segment.size)
        if record is None:
            raise CorruptionError(segment.path, offset, segment.reason)
        return record

    def has_records(self) -> bool:
        """Return whether any segment was written to: its chain, or a group, verifies."""
        for number, path in self._files():
            if path.endswith(SEGMENT_SUFFIX):
                segment = self._open(number)
                is_chained = segment.chain is not None and not segment.chain.is_end_marker
                if is_chained or segment.group_at(FIRST_GROUP_OFFSET) is not None:
                    return True
        return False

    def close(self) -> None:
        """Close all files."""
        for segment in self.segments.values():
            segment.file.close()
        self.segments.clear()

    # ---- Files --------------------------------------------------------------------------

    def _files(self) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        if self.fs.is_dir(self.directory):
            for name in self.fs.list(self.directory):
                number = segment_number(name)
                if number:
                    found.append((number, f"{self.directory}/{name}"))
        return found

    def _open_from(self, first: int, files: list[tuple[int, str]]) -> None:
        """Open all segments from `first` on, to be read from the disk [8]."""
        for number, path in files:
            if number >= first and path.endswith(SEGMENT_SUFFIX):
                self._open(number)
        if first not in self.segments:
            path = segment_path(self.directory, first)
            raise CorruptionError(path, 0, "the segment is missing")

    def _open(self, number: int) -> LogSegment:
        segment = self.segments.get(number)
        if segment is not None:
            return segment
        path = segment_path(self.directory, number)
        try:
            file = self.fs.open(path)
        except FileNotFoundError as error:
            raise CorruptionError(path, 0, "the segment is missing") from error
        try:
            if not self.trust_cache:
                try:
                    file.sync()
                except OSError as error:
                    raise SyncFailedError(path, error) from error
                file.drop_cache()
            segment = LogSegment(number, path, file, self.vhost)
        except BaseException:
            file.close()
            raise
        self.segments[number] = segment
        return segment

    # ---- Following groups ---------------------------------------------------------------

    def _walk(
        self,
        number: int,
        offset: int,
        first_lsn: int,
        last_lsn: int,
        on_record: OnRecord | None,
        visited: set[int],
        skips_plain: bool = False,
    ) -> _Walk:
        """Follow the log until it ends, or past record `last_lsn` if that is not -1."""
        segment = self.segments[number]
        if not FIRST_GROUP_OFFSET <= offset <= segment.size or offset % ALIGN_BYTES:
            reason = f"no place for a group, in a segment of {segment.size} bytes"
            raise CorruptionError(segment.path, offset, reason)
        walk = _Walk(segment, offset, first_lsn)
        walk.next = self._successor(number)
        visited.add(number)
        while last_lsn < 0 or walk.next_lsn <= last_lsn:
            after = walk.next
            if after is not None and _names(after.chain, walk):
                assert after.chain is not None
                walk.claim = max(walk.claim, after.chain.prev_lsn)
                walk.segment.window = b""
                walk.segment = after
                walk.offset = walk.group_offset = FIRST_GROUP_OFFSET
                walk.next = self._successor(after.number)
                visited.add(after.number)
            elif not _read_group(walk, last_lsn, on_record, skips_plain):
                break
        return walk

    def _successor(self, number: int) -> LogSegment | None:
        """Return the segment whose chain says that it follows this one, wherever this one ends."""
        for other in sorted(self.segments):
            chain = self.segments[other].chain
            if chain is not None and not chain.is_end_marker and chain.prev_segment == number:
                return self.segments[other]
        return None

    def _search_rest(self, walk: _Walk) -> _Rest:
        """Return what follows the log's end, if that is a torn tail; else CorruptionError [11]."""
        rest = _Rest()
        rest.scan(walk.segment, walk.group_offset, walk.next_lsn)
        path, offset, reason = walk.segment.path, walk.offset, walk.reason
        for number in sorted(self.segments):
            if number <= walk.segment.number:
                continue
            segment = self.segments[number]
            if segment.chain is not None:
                claim = max(segment.chain.prev_lsn, segment.chain.durable_lsn)
                rest.add(claim, segment.path, CHAIN_OFFSET)
                missing = segment.chain.prev_segment
                if missing > walk.segment.number and missing not in self.segments:
                    path, offset = segment_path(self.directory, missing), 0
                    reason = "the segment is missing"
            first = segment.group_at(FIRST_GROUP_OFFSET)
            if first is not None and first.first_lsn == walk.next_lsn and first.count:
                path, offset = segment.path, CHAIN_OFFSET
                reason = "the chain to the segment before does not verify"
            rest.scan(segment, FIRST_GROUP_OFFSET, walk.next_lsn)
        if rest.claim >= walk.next_lsn:
            reason = (
                f"record {walk.next_lsn} cannot be read ({reason}), but {rest.path} says at byte"
                f" {rest.offset} that record {rest.claim} was on the disk:"
                f" {rest.claim - walk.next_lsn + 1} records are damaged or cannot be reached"
            )
            raise CorruptionError(path, offset, reason)
        return rest


def _names(chain: Chain | None, walk: _Walk) -> bool:
    """Return whether the chain names exactly the position reached.

    Recovery may have cut after a group's header, before its first record, because that record's
    body was missing: this is the same position as the group's.
    """
    if chain is None or chain.prev_lsn != walk.next_lsn - 1:
        return False
    if chain.prev_end == walk.offset:
        return True
    return walk.offset == walk.group_offset and chain.prev_end == walk.offset + GROUP_HEADER_BYTES


def _read_group(walk: _Walk, last_lsn: int, on_record: OnRecord | None, skips_plain: bool) -> bool:
    """Read the group at the position. False, with a reason, where the log stops."""
    segment = walk.segment
    offset = walk.offset
    group = _group_of(walk) if offset == walk.group_offset else None
    if group is None:
        walk.reason = walk.reason or "no group header that verifies"
        return False
    if group.first_lsn != walk.next_lsn:
        walk.reason = f"a group of record {group.first_lsn}, expected {walk.next_lsn}"
        return False
    walk.claim = max(walk.claim, group.durable_lsn)
    if group.count == 0:
        walk.reason = "an idle header"
        return False
    end = offset + GROUP_HEADER_BYTES + group.length
    if end > segment.size:
        walk.reason = f"a group up to byte {end} in a segment of {segment.size}"
        return False
    position = offset + GROUP_HEADER_BYTES
    for _ in range(group.count):
        walk.offset = position
        checked = segment.checked_at(position, end)
        lsn = _lsn_of(checked) if checked else -1
        if checked and lsn != walk.next_lsn:  # it was read elsewhere, perhaps
            checked = segment.read_again(position, end)
            lsn = _lsn_of(checked) if checked else -1
        if not checked:
            walk.reason = segment.reason
            return False
        if lsn != walk.next_lsn:
            walk.reason = f"record {lsn}, expected {walk.next_lsn}"
            return False
        is_plain = checked[8] == PUBLISH and not checked[9] & IN_STORE
        if on_record is not None and not (skips_plain and is_plain):
            _hand_over(segment.record_of(checked, position), segment.path, on_record)
        position += 8 + len(checked)
        walk.next_lsn += 1
        walk.offset = position
        if lsn == last_lsn or (walk.next is not None and _names(walk.next.chain, walk)):
            return True
    walk.offset = walk.group_offset = aligned(end)
    return True


def _group_of(walk: _Walk) -> GroupHeader | None:
    """Return the header of the group at the position, None if none verifies. It is read again
    before that, or if it is another group's: a read may be wrong once."""
    segment = walk.segment
    group = segment.group_at(walk.offset)
    if group is None or group.first_lsn != walk.next_lsn:
        segment.window = b""
        group = segment.group_at(walk.offset)
    return group


def _hand_over(record: Record, path: str, on_record: OnRecord) -> None:
    try:
        on_record(record)
    except RecordError as error:
        reason = f"record {record.lsn} verifies but makes no sense: {error}"
        raise CorruptionError(path, record.offset, reason) from error
