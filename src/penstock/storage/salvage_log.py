"""Reading a damaged log: every record that verifies, also behind one that does not.

Recovery stops at the first bad record and asks whether that may be; salvage has been told to go on.
In each segment groups are looked for at every multiple of 64; in a group with a bad record the next
good one is found by its LSN, which is known. Records are put in order by LSN, and what is missing
between them is told as a gap; so is what is missing behind the last one, where any header says that
more was on the disk.

A segment whose header is damaged has lost its salt, and with it the seed of every checksum in it.
But CRC-32 can be run backwards: from the first group header and its checksum follows the seed, and
it is believed if a record of that group verifies with it.

What a chain says is behind the end of the log before it was cut by a recovery, and was never
confirmed: its LSNs were given again, so those records are left out, as recovery leaves them out.
So is a torn tail: where no header vouches for anything any more, what follows a hole.

RAM: one segment, and all records after the cut. Nothing is written.
"""

import struct
from collections.abc import Callable
from typing import Final

from penstock.errors import StorageError
from penstock.storage import record
from penstock.storage.filesystem import FileSystem
from penstock.storage.log_file import (
    ALIGN_BYTES,
    CHAIN_OFFSET,
    FIRST_GROUP_OFFSET,
    GROUP_HEADER_BYTES,
    SEGMENT_SUFFIX,
    Chain,
    GroupHeader,
    decode_chain,
    decode_group_header,
    decode_segment_header,
    segment_number,
)
from penstock.storage.record import RECORD_HEADER_BYTES, Record
from penstock.storage.record_types import stored_bodies
from penstock.storage.verify import Problem

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_GROUP_FIXED: Final = GROUP_HEADER_BYTES - 4


class FoundRecord:
    """A record, and the file that it was in."""

    __slots__ = ("path", "record")

    def __init__(self, path: str, found: Record) -> None:
        self.path: str = path
        self.record: Record = found


class FoundLog:
    """records: by LSN. claim: the highest LSN that a header says was on the disk, and where."""

    def __init__(self) -> None:
        self.records: list[FoundRecord] = []
        self.claim: int = -1
        self.claim_path: str = ""
        self.claim_position: int = 0


def read_log(fs: FileSystem, directory: str, vhost: int, losses: list[Problem]) -> FoundLog:
    """All records that verify; damage goes to `losses`. OSError."""
    log = FoundLog()
    by_lsn: dict[int, FoundRecord] = {}
    names = fs.list(directory) if fs.is_dir(directory) else []
    for name in sorted(names):
        if not name.endswith(SEGMENT_SUFFIX) or not segment_number(name):
            continue
        path = f"{directory}/{name}"
        segment = _Segment(path, fs.read(path), vhost, segment_number(name))
        records = segment.records()
        losses += segment.losses
        if segment.chain is not None and not segment.chain.is_end_marker:
            # Segments come in the order of their numbers: this one goes on where its chain says.
            for lsn in [lsn for lsn in by_lsn if lsn > segment.chain.prev_lsn]:
                del by_lsn[lsn]
        for found in records:
            by_lsn[found.lsn] = FoundRecord(path, found)
        if segment.claim > log.claim:
            log.claim, log.claim_path = segment.claim, path
            log.claim_position = segment.claim_position
    log.records = [by_lsn[lsn] for lsn in sorted(by_lsn)]
    return log


def cut_torn_tail(log: FoundLog, after_lsn: int, is_there: Callable[[int, int], bool]) -> int:
    """Leave out what recovery would: behind the last LSN that any header vouches for, all from the
    first record on that is missing, or that names a stored body (file, id) that is missing. It was
    never confirmed. Returns how many records were left out."""
    last = after_lsn
    for i, one in enumerate(log.records):
        lsn = one.record.lsn
        if lsn <= after_lsn:
            continue
        is_torn = last >= 0 and lsn != last + 1 and last >= log.claim
        if is_torn or (lsn > log.claim and not _has_bodies(one.record, is_there)):
            left_out = len(log.records) - i
            del log.records[i:]
            return left_out
        last = lsn
    return 0


def _has_bodies(one: Record, is_there: Callable[[int, int], bool]) -> bool:
    """Whether the stored bodies that it publishes are there."""
    try:
        return all(is_there(file, id) for file, id in stored_bodies(one))
    except ValueError:
        return False


def gaps(log: FoundLog, after_lsn: int) -> list[Problem]:
    """The LSNs that are missing above `after_lsn`; -1: nothing is missing before the first."""
    missing: list[Problem] = []
    last = after_lsn
    for one in log.records:
        lsn = one.record.lsn
        if lsn <= after_lsn:
            continue
        if 0 <= last < lsn - 1:
            text = f"records {last + 1} to {lsn - 1}, which belong before this one, are lost"
            missing.append(Problem(one.path, one.record.offset, text))
        last = lsn
    if log.claim > max(last, 0):
        text = f"it says that record {log.claim} was on the disk; all behind {last} are lost"
        missing.append(Problem(log.claim_path, log.claim_position, text))
    return missing


def unwind(data: bytes, crc: int) -> int:
    """The seed with which crc32(data, seed) is `crc`."""
    register = crc ^ 0xFFFFFFFF
    for byte in reversed(data):
        entry = _BY_TOP[register >> 24]
        register = ((register ^ _TABLE[entry]) << 8 & 0xFFFFFFFF) | (entry ^ byte)
    return register ^ 0xFFFFFFFF


def _table() -> list[int]:
    table: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ 0xEDB88320 if byte & 1 else byte >> 1
        table.append(byte)
    return table


_TABLE: Final = _table()
_BY_TOP: Final = {value >> 24: i for i, value in enumerate(_TABLE)}


class _Segment:
    """One segment, whole in RAM."""

    def __init__(self, path: str, data: bytes, vhost: int, number: int) -> None:
        self.path = path
        self.losses: list[Problem] = []
        self.chain: Chain | None = None
        self.claim = -1
        self.claim_position = CHAIN_OFFSET
        self._data = data
        self._number = number
        self._seed = self._find_seed(vhost)
        if self._seed >= 0 and len(data) >= FIRST_GROUP_OFFSET:
            self.chain = decode_chain(data[CHAIN_OFFSET:], self._seed)
            if self.chain is not None:
                self.claim = max(self.chain.prev_lsn, self.chain.durable_lsn)

    def _find_seed(self, vhost: int) -> int:
        """The seed of the checksums, or -1."""
        try:
            return decode_segment_header(self._data, self.path, vhost, self._number)[1]
        except StorageError as error:
            reason = str(getattr(error, "reason", error))
        self._lose(0, reason)
        fixed = self._data[FIRST_GROUP_OFFSET : FIRST_GROUP_OFFSET + _GROUP_FIXED]
        crc = self._data[FIRST_GROUP_OFFSET + _GROUP_FIXED :][:4]
        if fixed[:4] == b"PGRP" and len(crc) == 4:
            seed = unwind(fixed, _U32.unpack(crc)[0])
            first = FIRST_GROUP_OFFSET + GROUP_HEADER_BYTES
            length = int.from_bytes(self._data[first : first + 4], "big")
            if record.verifies(self._data[first : first + length], seed):
                return seed
        self._lose(FIRST_GROUP_OFFSET, "without its header no record in it can be told")
        return -1

    def _lose(self, position: int, text: str) -> None:
        self.losses.append(Problem(self.path, position, text))

    def records(self) -> list[Record]:
        """Every record that verifies, in the order of the file."""
        found: list[Record] = []
        data, seed = self._data, self._seed
        at = data.find(b"PGRP", FIRST_GROUP_OFFSET) if seed >= 0 else -1
        end = FIRST_GROUP_OFFSET  # of the last group
        while at >= 0:
            group = decode_group_header(data, at, seed) if at % ALIGN_BYTES == 0 else None
            if group is None or at < end:
                at = data.find(b"PGRP", at + 1)
                continue
            if group.durable_lsn > self.claim:
                self.claim, self.claim_position = group.durable_lsn, at
            start = at + GROUP_HEADER_BYTES
            end = start + group.length
            self._read_group(group, start, min(end, len(data)), found)
            at = data.find(b"PGRP", at + GROUP_HEADER_BYTES)
        return found

    def _read_group(self, group: GroupHeader, start: int, end: int, found: list[Record]) -> None:
        position = start
        upper = group.first_lsn + group.count
        for lsn in range(group.first_lsn, upper):
            if position < 0:
                position = self._next_record(lsn, start, end)
                if position < 0:
                    continue
            one = self._record_at(position, end)
            if one is None or one.lsn != lsn:
                self._lose(position, f"record {lsn} cannot be read")
                position = -1
                continue
            found.append(one)
            position += RECORD_HEADER_BYTES + len(one.data)

    def _record_at(self, position: int, end: int) -> Record | None:
        if end - position < RECORD_HEADER_BYTES:
            return None
        length = int.from_bytes(self._data[position : position + 4], "big")
        if not RECORD_HEADER_BYTES <= length <= end - position:
            return None
        try:
            whole = self._data[position : position + length]
            return record.decode(whole, self._seed, self._number, position)
        except record.RecordError:
            return None

    def _next_record(self, lsn: int, start: int, end: int) -> int:
        """Where record `lsn` is, by the LSN that it must hold, or -1."""
        wanted = _U64.pack(lsn)
        at = self._data.find(wanted, start + 8, end)
        while at >= 0:
            one = self._record_at(at - 8, end)
            if one is not None and one.lsn == lsn:
                return at - 8
            at = self._data.find(wanted, at + 1, end)
        return -1
