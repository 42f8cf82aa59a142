"""LogReader: follows the log through its segments, and tells a torn tail from corruption.

Why a scan and not "valid up to the first bad record".  Kernels write pages in any order, so after
a power cut valid groups may lie behind a hole, and a hole may lie in what was never confirmed; the
same hole in what *was* confirmed is damage, and to start without those messages would lose them
silently. What tells the two apart is the durable LSN that every later header carries [11].

Segments are followed from a position (a checkpoint's cut) as long as groups and records verify and
LSNs follow one another. A chain that names exactly the position reached is followed at once; a
segment that nothing leads to is set aside. Where reading stops, at LSN x, everything behind is
searched for headers that verify: the rest of the segment at multiples of 64, then all later
segments. If one of them claims a durable LSN of x or more, or if a chain says that the log before
it went as far as x (a segment is synced to its end before the next is written), then x was on the
disk once: CorruptionError, with path and position and how many records that concerns. Otherwise no
sync ever covered x: it is the torn tail, all behind it is ignored, and the number of records cut is
reported. After the death of the process every confirmed record has such a header, because one is
written before the confirm. After a power cut one sync may have none: the header that vouches for
the last sync is on the disk with the next. Damage to what that last sync wrote cannot be told from
a torn tail.

Before any of it is believed each file is synced and its cached pages are dropped [8]: after a
failed sync the pages are clean and yet not on the disk. Nothing is written here. The format is in
log_segment.py. Memory is bounded: a window of 1 MiB per segment, or one record if that is larger.

Segments of the transaction log: the format of the files, and how one is prepared.

Why segments, zero-written and recycled.  An fdatasync into a file whose blocks are written and
whose size does not change has no metadata to write: about twice as fast, measured, as one into a
growing file, and it cannot meet a full disk. Old bytes then lie behind the new ones, which is why
every checksum is seeded with a salt that is drawn anew for each life of the file [11].

    wal/<number, 10 digits>.wal    a segment      wal/<number>.new    one being prepared [7]

    Segment   header 64 | chain 64 | groups, each at a multiple of 64 | zeros or older bytes
    header    "PWAL" 4 | version 2 | flags 2 | vhost 8 | number 8 | size 8 | salt 8 | crc 4 |
              zeros 20
    chain     "PCHN" 4 | previous segment 8 | its end 8 | its last LSN 8 | durable LSN 8 | crc 4 |
              zeros 24
    vouch     the same with "PVCH", in the place of the chain
    group     "PGRP" 4 | length of the records 4 | first LSN 8 | durable LSN 8 | count 4 | crc 4 |
              records (record.py) | zeros to a multiple of 64
    seed of all in a segment = crc32(vhost 8 | number 8 | salt 8)

* The *header* is written and synced before the file gets the name of a segment [7]; so a segment
  whose header does not verify is damaged, never torn. Its CRC stays in place in later versions.
* The *chain* is written with the first group. It says where the log before it ends: the end of the
  segment before, or the end that recovery found, and then what lies behind that end is cut [8].
  Previous segment 0: there is none. A segment without a chain has never been logged to.
* A group's *durable LSN* is what an fdatasync that returned covered when the group was written.
* An *idle header* is a group of no records whose first LSN is the next one; the next group is
  written over it. The *vouch*, in the prepared next segment, says the same once more; its last LSN
  is the durable one. One of them is written after each sync that no group follows, before anything
  of it is confirmed, so that damage to the last group shows: without it, that would pass for a torn
  tail. It is the vouch if there is a next segment, for it is in another file.

Failure.  A segment is prepared whole or not at all: DiskFullError leaves things as they were, any
other failure is a SyncFailedError, which stops the log [10]. How segments are read back, and how a
torn tail is told from corruption, is in log_file.py; what is written when, in transaction_log.py.
"""

import errno
import struct
from collections.abc import Callable
from typing import Final

from penstock.errors import CorruptionError, DiskFullError, SyncFailedError, VersionError
from penstock.fast_crc import crc32
from penstock.storage.filesystem import File, FileSystem
from penstock.storage.record import (
    RECORD_HEADER_BYTES,
    Record,
    RecordError,
    decode_header,
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
MAGIC_VOUCH: Final = int.from_bytes(b"PVCH", "big")
MAGIC_GROUP: Final = int.from_bytes(b"PGRP", "big")

_SEGMENT: Final = struct.Struct(">IHHQQQQ")
_CHAIN: Final = struct.Struct(">IQQQQ")
_GROUP: Final = struct.Struct(">IIQQI")
_CRC: Final = struct.Struct(">I")
_SEED: Final = struct.Struct(">QQQ")


class Chain:
    """A chain or a vouch: where the log before this segment ends, and what was durable then."""

    __slots__ = ("durable_lsn", "is_vouch", "prev_end", "prev_lsn", "prev_segment")

    def __init__(
        self, is_vouch: bool, prev_segment: int, prev_end: int, prev_lsn: int, durable_lsn: int
    ) -> None:
        self.is_vouch: bool = is_vouch
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


class Segment:
    """A segment open for appending. `end` is where the next group goes, written or not yet.

    prev_*: what its chain will say.
    """

    __slots__ = (
        "end", "file", "number", "path", "prev_end", "prev_lsn", "prev_segment", "seed", "size",
    )  # fmt: skip

    def __init__(self, number: int, path: str, size: int, seed: int, file: File) -> None:
        self.number: int = number
        self.path: str = path
        self.size: int = size
        self.seed: int = seed
        self.file: File = file
        self.end: int = FIRST_GROUP_OFFSET
        self.prev_segment: int = 0
        self.prev_end: int = 0
        self.prev_lsn: int = 0


class LogEnd:
    """Where the log ends, as a survey found it.

    segment, offset: where the next group would go, or the record that could not be read.
    last_lsn: of the last good record; when there is none, that before the first one asked for.
    claim: the highest LSN that any header says was durable: only above it may a store body that
    a record names be missing. cut_records: how many records the groups behind the end speak of.
    next_number: a segment number above all that exist. files: (number, path) of every file of
    the log; none of them is needed once recovery's checkpoint is CURRENT. aside: those of them,
    among the segments from the first one asked for on, that do not chain.
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
    """Path of a segment."""
    return f"{directory}/{number:0{NUMBER_DIGITS}d}{SEGMENT_SUFFIX}"


def segment_number(name: str) -> int:
    """The number that a file name of the log says; 0 if it is no such name."""
    digits = name[:NUMBER_DIGITS]
    if name[NUMBER_DIGITS:] in (SEGMENT_SUFFIX, NEW_SUFFIX) and digits.isdecimal():
        return int(digits)
    return 0


def segment_seed(vhost: int, number: int, salt: int) -> int:
    """The seed of every checksum in a segment."""
    return crc32(_SEED.pack(vhost, number, salt))


def aligned(offset: int) -> int:
    """The next multiple of ALIGN_BYTES."""
    return (offset + ALIGN_BYTES - 1) // ALIGN_BYTES * ALIGN_BYTES


def encode_segment_header(vhost: int, number: int, size: int, salt: int) -> bytes:
    """The 64 bytes at 0."""
    fixed = _SEGMENT.pack(MAGIC_SEGMENT, VERSION, 0, vhost, number, size, salt)
    return _sealed(fixed, segment_seed(vhost, number, salt), CHAIN_OFFSET)


def encode_chain(
    seed: int, prev_segment: int, prev_end: int, prev_lsn: int, durable_lsn: int, is_vouch: bool
) -> bytes:
    """The 64 bytes at 64."""
    magic = MAGIC_VOUCH if is_vouch else MAGIC_CHAIN
    fixed = _CHAIN.pack(magic, prev_segment, prev_end, prev_lsn, durable_lsn)
    return _sealed(fixed, seed, FIRST_GROUP_OFFSET - CHAIN_OFFSET)


def encode_group_header(
    seed: int, length: int, first_lsn: int, durable_lsn: int, count: int
) -> bytes:
    """The 32 bytes before a group's records."""
    fixed = _GROUP.pack(MAGIC_GROUP, length, first_lsn, durable_lsn, count)
    return fixed + _CRC.pack(crc32(fixed, seed))


def decode_segment_header(data: bytes, path: str, vhost: int, number: int) -> tuple[int, int]:
    """(size, seed) of the segment that begins with `data`.

    CorruptionError if it does not verify or is another vhost's or number's; VersionError.
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
    """The chain or vouch at the beginning of `data`, or None if there is none that verifies."""
    magic, segment, end, lsn, durable_lsn = _CHAIN.unpack_from(data)
    if magic not in (MAGIC_CHAIN, MAGIC_VOUCH) or not _is_sealed(data, _CHAIN.size, seed):
        return None
    return Chain(magic == MAGIC_VOUCH, segment, end, lsn, durable_lsn)


def decode_group_header(data: bytes, offset: int, seed: int) -> GroupHeader | None:
    """The group header at `offset` of `data`, or None if there is none that verifies."""
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


def prepare(
    fs: FileSystem,
    directory: str,
    vhost: int,
    number: int,
    size: int,
    salt: int,
    recycled: str | None,
) -> Segment:
    """Make a segment of at least `size` bytes, durable in content and name [7], and open it.

    recycled: path of a file of the log that nothing needs any more, which becomes the segment;
    its old bytes stay. A failure leaves no segment. DiskFullError when there is no room;
    SyncFailedError for every other failure, because a log that cannot be written has failed [10].
    """
    size = aligned(size)
    path = segment_path(directory, number)
    new = path.removesuffix(SEGMENT_SUFFIX) + NEW_SUFFIX
    file: File | None = None
    try:
        if recycled is not None:
            fs.rename(recycled, new)
        file = fs.open(new, create=True)
        if recycled is not None and file.size() >= size:
            size = file.size() // ALIGN_BYTES * ALIGN_BYTES
        else:
            file.allocate(size)
        # The chain's place is cleared too: not for the CRC's sake, but for whoever reads a dump.
        header = encode_segment_header(vhost, number, size, salt)
        file.pwrite(header.ljust(FIRST_GROUP_OFFSET, b"\0"), 0)
    except OSError as error:
        _discard(fs, file, new)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(fs.place(new), _free_bytes(fs, directory), size) from error
        raise SyncFailedError(new, error) from error
    try:
        file.sync()
        fs.rename(new, path)
        fs.sync_dir(directory)
    except OSError as error:
        file.close()
        raise SyncFailedError(path, error) from error
    file.path = path
    return Segment(number, path, size, segment_seed(vhost, number, salt), file)


def _discard(fs: FileSystem, file: File | None, path: str) -> None:
    """Give back the room of a file that could not be prepared, as far as the disk lets us."""
    try:
        if file is not None:
            file.close()
        fs.unlink(path)
    except OSError:
        pass


def _free_bytes(fs: FileSystem, path: str) -> int:
    try:
        return fs.free_bytes(path)
    except OSError:
        return 0


WINDOW_BYTES: Final = 1 << 20

_GROUP_MAGIC: Final = b"PGRP"

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
        self.window: bytes = b""
        self.window_start: int = 0
        self.reason: str = ""  # why record_at found none

    def at(self, offset: int, length: int) -> int:
        """Index into `window` from where `length` bytes of the file, from `offset` on, stand.

        CorruptionError if the file ends before.
        """
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
        """The group header at `offset`, or None if there is none that verifies."""
        if offset + GROUP_HEADER_BYTES > self.size:
            return None
        index = self.at(offset, GROUP_HEADER_BYTES)
        return decode_group_header(self.window, index, self.seed)

    def next_group(self, offset: int) -> int:
        """Position of the first group header that verifies at `offset` (aligned) or behind, or -1.

        Whatever lies between, records or damage, is passed over: this is how headers behind a
        bad record are found [11].
        """
        while offset + ALIGN_BYTES <= self.size:
            index = self.at(offset, ALIGN_BYTES)
            found = self.window.find(_GROUP_MAGIC, index)
            if found < 0:
                # Only aligned places count, so no header is missed across the window's edge.
                offset = (self.window_start + len(self.window)) // ALIGN_BYTES * ALIGN_BYTES
                continue
            position = self.window_start + found
            if position % ALIGN_BYTES == 0 and self.group_at(position) is not None:
                return position
            offset = (position // ALIGN_BYTES + 1) * ALIGN_BYTES
        return -1

    def record_at(self, offset: int, end: int) -> Record | None:
        """The record at `offset`, which ends at `end` at the latest; or None, and `reason`.

        CorruptionError for a record that verifies and is of a type that is not known.
        """
        if end - offset < RECORD_HEADER_BYTES:
            self.reason = "no room for a record header"
            return None
        index = self.at(offset, RECORD_HEADER_BYTES)
        length, crc, lsn, kind, flags, count = decode_header(self.window, index)
        if length < RECORD_HEADER_BYTES or offset + length > end:
            self.reason = f"a record of {length} bytes where {end - offset} are left"
            return None
        index = self.at(offset, length)
        checked = self.window[index + 8 : index + length]
        if crc32(checked, self.seed) != crc:
            self.reason = "the record does not verify"
            return None
        if not is_known(kind):
            raise CorruptionError(self.path, offset, refusal(kind))
        data = checked[RECORD_HEADER_BYTES - 8 :]
        return Record(lsn, kind, flags, count, data, self.number, offset)


class _Walk:
    """How far a reader has come. `reason` says why it stopped; `next` chains to this segment."""

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


class _Behind:
    """What headers behind the end say: the highest durable LSN, where, and how many records."""

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
        """Take in every group header that verifies from `offset` on."""
        offset = segment.next_group(offset)
        while offset >= 0:
            group = segment.group_at(offset)
            assert group is not None
            self.add(group.durable_lsn, segment.path, offset)
            upper = group.first_lsn + group.count
            self.records += max(0, upper - max(group.first_lsn, next_lsn))
            offset = segment.next_group(offset + ALIGN_BYTES)


class LogReader:
    """Reads the log in `directory` of the vhost with that id. Writes nothing, but syncs.

    trust_cache: leave out the sync and the dropping of pages, for tools that look at a store
    whose owner may be running; never for recovery [8].
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
    ) -> LogEnd:
        """Find where the log ends that begins, with record `first_lsn`, at that position.

        first_segment 0: there is no log, whatever lies in the directory. `on_record` is called
        for each record as it passes, before it is known whether the log is whole; a RecordError
        that it raises becomes a CorruptionError. Raises CorruptionError, VersionError, and
        SyncFailedError for a file that cannot be synced.
        """
        files = self._files()
        end = LogEnd(first_segment, first_offset, first_lsn - 1, first_lsn - 1)
        visited: set[int] = set()
        if first_segment:
            self._open_from(first_segment, files)
            walk = self._walk(first_segment, first_offset, first_lsn, -1, on_record, visited)
            behind = self._search_behind(walk)
            end = LogEnd(walk.segment.number, walk.offset, walk.next_lsn - 1, walk.claim)
            end.claim = max(walk.claim, behind.claim)
            end.cut_records = behind.records
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
        """Hand over the records up to `last_lsn`, which a survey has found to be there."""
        if not first_segment or last_lsn < first_lsn:
            return
        self._open_from(first_segment, self._files())
        walk = self._walk(first_segment, first_offset, first_lsn, last_lsn, on_record, set())
        if walk.next_lsn <= last_lsn:
            reason = f"record {walk.next_lsn} was there and is not: {walk.reason}"
            raise CorruptionError(walk.segment.path, walk.offset, reason)

    def read_record(self, number: int, offset: int) -> Record:
        """The record at a place that a Record has named. CorruptionError if it is not there."""
        segment = self._open(number)
        record = segment.record_at(offset, segment.size)
        if record is None:
            raise CorruptionError(segment.path, offset, segment.reason)
        return record

    def has_records(self) -> bool:
        """Whether any segment was ever written to: its chain, or a group, verifies."""
        for number, path in self._files():
            if path.endswith(SEGMENT_SUFFIX):
                segment = self._open(number)
                is_chained = segment.chain is not None and not segment.chain.is_vouch
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
        """Open all segments from `first` on, from the disk itself [8]."""
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
            elif not _read_group(walk, last_lsn, on_record):
                break
        return walk

    def _successor(self, number: int) -> LogSegment | None:
        """The segment whose chain says that it follows this one, wherever this one ends."""
        for other in sorted(self.segments):
            chain = self.segments[other].chain
            if chain is not None and not chain.is_vouch and chain.prev_segment == number:
                return self.segments[other]
        return None

    def _search_behind(self, walk: _Walk) -> _Behind:
        """Corruption or torn tail? [11] CorruptionError, or what lies behind the end."""
        behind = _Behind()
        behind.scan(walk.segment, walk.group_offset, walk.next_lsn)
        path, offset, reason = walk.segment.path, walk.offset, walk.reason
        for number in sorted(self.segments):
            if number <= walk.segment.number:
                continue
            segment = self.segments[number]
            if segment.chain is not None:
                claim = max(segment.chain.prev_lsn, segment.chain.durable_lsn)
                behind.add(claim, segment.path, CHAIN_OFFSET)
                missing = segment.chain.prev_segment
                if missing > walk.segment.number and missing not in self.segments:
                    path, offset = segment_path(self.directory, missing), 0
                    reason = "the segment is missing"
            first = segment.group_at(FIRST_GROUP_OFFSET)
            if first is not None and first.first_lsn == walk.next_lsn and first.count:
                path, offset = segment.path, CHAIN_OFFSET
                reason = "the chain to the segment before does not verify"
            behind.scan(segment, FIRST_GROUP_OFFSET, walk.next_lsn)
        if behind.claim >= walk.next_lsn:
            reason = (
                f"record {walk.next_lsn} cannot be read ({reason}), but {behind.path} says at byte"
                f" {behind.offset} that record {behind.claim} was on the disk:"
                f" {behind.claim - walk.next_lsn + 1} records are damaged or cannot be reached"
            )
            raise CorruptionError(path, offset, reason)
        return behind


def _names(chain: Chain | None, walk: _Walk) -> bool:
    """Whether the chain names exactly the position reached.

    Recovery may have cut before the first record of a group, behind its header, because that
    record's body was missing: this is the same position as the group's.
    """
    if chain is None or chain.prev_lsn != walk.next_lsn - 1:
        return False
    if chain.prev_end == walk.offset:
        return True
    return walk.offset == walk.group_offset and chain.prev_end == walk.offset + GROUP_HEADER_BYTES


def _read_group(walk: _Walk, last_lsn: int, on_record: OnRecord | None) -> bool:
    """Read the group at the position; False, with a reason, where the log stops."""
    segment = walk.segment
    offset = walk.offset
    group = segment.group_at(offset) if offset == walk.group_offset else None
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
        record = segment.record_at(position, end)
        if record is None:
            walk.reason = segment.reason
            return False
        if record.lsn != walk.next_lsn:
            walk.reason = f"record {record.lsn}, expected {walk.next_lsn}"
            return False
        if on_record is not None:
            _hand_over(record, segment.path, on_record)
        position += RECORD_HEADER_BYTES + len(record.data)
        walk.next_lsn += 1
        walk.offset = position
        if record.lsn == last_lsn or (walk.next is not None and _names(walk.next.chain, walk)):
            return True
    walk.offset = walk.group_offset = aligned(end)
    return True


def _hand_over(record: Record, path: str, on_record: OnRecord) -> None:
    try:
        on_record(record)
    except RecordError as error:
        reason = f"record {record.lsn} verifies but makes no sense: {error}"
        raise CorruptionError(path, record.offset, reason) from error
