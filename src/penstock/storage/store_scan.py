"""Reading a store file from its records alone, when there is no hint to trust.

Needed for the file that was being written when the process ended, for those made after the
checkpoint's cut, and for a hint that is missing or damaged. A record has no marker in front:
it is known by its checksum, so a scan is a chain, each record's length leading to the next.

Up to ``durable_end`` (what a checkpoint counted, and therefore synced) every byte was once
right, and it is a record's end. A record there that does not verify is *damage*: it is
reported, and keeps an entry in the table, under the id that it claims if that fits between
its neighbours, so that the places of all others stay what they were; reading it fails its
checksum. If even its length is damaged, the scan looks on, byte by byte, for the next record
that verifies. Behind ``durable_end`` the first bad record is the torn tail and ends the scan:
what log records name behind it is not there, and recovery judges that by the log [11].

RAM: one window of 1 MiB (or one record, if larger) and 16 bytes per record. No byte is
written here. Failures to read are OSErrors.
"""

from typing import Final

from penstock.errors import CorruptionError
from penstock.fast_crc import crc32
from penstock.storage.filesystem import File
from penstock.storage.store_file import (
    BODY_BYTES_MAX,
    HEADER_BYTES,
    StoreFile,
    record_fault,
    record_seed,
)
from penstock.storage.store_state import RECORD_BYTES

WINDOW_BYTES: Final = 1 << 20
SEARCH_BYTES_MAX: Final = 1 << 28  # checksummed in search of a record behind a damaged length


class StoreScan:
    """One scan of one file. Fill a StoreFile with ``run``; ``damage`` is what it met."""

    def __init__(self, file: File, vhost: int, durable_end: int) -> None:
        """``durable_end``: position up to which every record was synced, 0 for none."""
        self.file: File = file
        self.durable_end: int = durable_end
        self.damage: list[CorruptionError] = []
        self._seed: int = record_seed(vhost)
        self._end: int = file.size()
        self._window: bytes = b""
        self._window_at: int = 0
        self._searched: int = 0

    def run(self, into: StoreFile, limit: int = 0) -> None:
        """Append an entry to ``into`` for each record, up to position ``limit`` (0: the end)."""
        if limit:
            self._end = min(self._end, limit)
        at = HEADER_BYTES
        while at < self._end or at < self.durable_end:
            size = self._verified(at, self._end)
            if size >= 0:
                into.append(int.from_bytes(self._view(at + 4, 8), "big"), size)
            elif at >= self.durable_end:
                return
            else:
                size = self._next(at) - at - RECORD_BYTES
                self._append_damaged(into, at, size)
            at += RECORD_BYTES + size

    def _append_damaged(self, into: StoreFile, at: int, size: int) -> None:
        """An entry for the damaged record at ``at``: its place counts, its id is a guess."""
        head = self._view(at, RECORD_BYTES)
        id = int.from_bytes(head[4:12], "big")
        last = into.ids[-1] if len(into.ids) else -1
        following = at + RECORD_BYTES + size
        limit = 1 << 64
        if self._verified(following, self._end) >= 0:
            limit = int.from_bytes(self._view(following + 4, 8), "big")
        if last + 1 < limit and not last < id < limit:
            id = last + 1  # ids ascend here, and the one in the file is damaged
        while into.find(id) >= 0:
            id = (id + 1) & 0xFFFFFFFFFFFFFFFF
        fault = record_fault(self._seed, self._view(at, RECORD_BYTES + size), id)
        self.damage.append(
            CorruptionError(self.file.path, at, f"{fault or 'damaged'}; {size} bytes of body")
        )
        into.append(id, size)

    def _next(self, at: int) -> int:
        """Where the record behind the damaged one at ``at`` begins: at most ``durable_end``."""
        end = self.durable_end
        length = int.from_bytes(self._view(at, 4), "big")
        following = at + RECORD_BYTES + length
        if following == end or (following < end and self._verified(following, end) >= 0):
            return following
        here = at + RECORD_BYTES
        while here < end and self._searched < SEARCH_BYTES_MAX:
            # The first byte of a record is 0, for its length is below 16 MiB.
            here = self._zero(here, end)
            if here < end and self._verified(here, end) >= 0:
                return here
            here += 1
        return max(end, at + RECORD_BYTES)

    def _zero(self, at: int, end: int) -> int:
        """Position of the first zero byte from ``at`` on, or ``end``."""
        while at < end:
            self._view(at, 1)
            found = self._window.find(b"\0", at - self._window_at)
            if found >= 0:
                return min(self._window_at + found, end)
            if not self._window:
                return end
            at = self._window_at + len(self._window)
        return end

    def _verified(self, at: int, end: int) -> int:
        """Size of the body of the record at ``at`` if it verifies and ends by ``end``, else -1."""
        if at + RECORD_BYTES > end:
            return -1
        head = self._view(at, RECORD_BYTES)
        if len(head) < RECORD_BYTES:
            return -1
        length = int.from_bytes(head[:4], "big")
        if length > BODY_BYTES_MAX or at + RECORD_BYTES + length > end:
            return -1
        body = self._view(at + RECORD_BYTES, length)
        self._searched += length if at < self.durable_end else 0
        crc = crc32(body, crc32(head[:12], self._seed))
        return length if crc == int.from_bytes(head[12:], "big") and len(body) == length else -1

    def _view(self, at: int, length: int) -> bytes:
        """Bytes at ``at``, fewer where the file ends, from the window or a new one."""
        start = at - self._window_at
        if start < 0 or start + length > len(self._window):
            self._window = self.file.pread(max(length, WINDOW_BYTES), at)
            self._window_at = at
            start = 0
        return self._window[start : start + length]
