"""Segments of the transaction log: the format of the files, and how one is prepared.

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
from typing import Final

from penstock.errors import CorruptionError, DiskFullError, SyncFailedError, VersionError
from penstock.fast_crc import crc32
from penstock.storage.filesystem import File, FileSystem

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
