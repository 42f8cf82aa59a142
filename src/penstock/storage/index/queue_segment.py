"""The two files of a QueueIndex segment: slots (.qi) and small bodies in queue order (.qs).

RabbitMQ's queue index keeps the order and state of a queue apart from its bodies, in segments of a
fixed number of entries, so that the place of an entry is arithmetic and a dead segment is deleted
whole. Here a slot is only data: checkpoint and log alone decide whether its message lives [1]. So a
slot may be torn, stale or written twice without harm, and paging needs no order with the log.

    <n>.qi   header, 64 B
             magic "PSQI" 4 | version 2 | flags 2 | vhost 8 | queue 4 | segment 4 | slots 4 | crc 4
             then slots of 32 B, that of a seq at 64 + (seq mod slots) x 32:
             flags 1 | header length 1 | crc 4 | size 4 | id 8 | expiry (ms) 6 | where 4 |
             time (s) 4
    <n>.qs   header as above with magic "PSQS", then entries in queue order:
             length of what follows this prefix 4 | crc 4 | header length 4 |
             [store file 4, if IN_STORE] | header | [body, unless IN_STORE]

flags: USED 1 (zeros are not a slot), IN_STORE 2 (the body is in the MessageStore), HAS_ENTRY 4
(there is an entry in .qs: a header, a body, or both), HAS_EXPIRY 8. `where` is the position of the
entry in .qs if there is one, else the store file. A header length of 255 in the slot means 255 or
more: the entry has the exact length. Big-endian.

Every checksum is seeded with vhost, queue number and seq, so a slot or entry never verifies at
another place, or in a file of another queue or store. A failed check is a CorruptionError with path
and position; nothing damaged is returned.
"""

import struct
from typing import Final

from librt.strings import BytesWriter, write_i32_be

from penstock.errors import CorruptionError, SyncFailedError
from penstock.fast_crc import crc32
from penstock.message import Entry, QueuedMessage
from penstock.native import mypyc_attr
from penstock.storage.files.filesystem import File, FileSystem, sync_closed

VERSION: Final = 1
HEADER_BYTES: Final = 64
QI_HEADER: Final = 1
QS_HEADER: Final = 2
SLOT_BYTES: Final = 32
PREFIX_BYTES: Final = 12
MAGIC_QI: Final = b"PSQI"
MAGIC_QS: Final = b"PSQS"
USED: Final = 1
IN_STORE: Final = 2
HAS_ENTRY: Final = 4
HAS_EXPIRY: Final = 8
LONG_HEADER: Final = 255
READ_BYTES: Final = 256 << 10  # bodies are read in runs of at most this
WRITE_BYTES: Final = 256 << 10

HEADER: Final = struct.Struct(">4sHHQIII")
_SLOT: Final = struct.Struct(">BBIIQHIII")
PREFIX: Final = struct.Struct(">III")
_U32: Final = struct.Struct(">I")
_pack_u32: Final = _U32.pack


@mypyc_attr(acyclic=True)
class Slot:
    """One decoded slot: what it says of a message, without header and body."""

    __slots__ = ("expiry_ms", "flags", "header_len", "id", "seq", "size", "time", "where")

    def __init__(
        self, seq: int, flags: int, header_len: int, size: int, id: int, expiry_ms: int,
        where: int, time: int,
    ) -> None:  # fmt: skip
        self.seq: int = seq
        self.flags: int = flags
        self.header_len: int = header_len
        self.size: int = size
        self.id: int = id
        self.expiry_ms: int = expiry_ms
        self.where: int = where
        self.time: int = time


def queue_seed(vhost: int, queue: int) -> int:
    """Return the seed of all checksums of one queue."""
    return crc32(struct.pack(">QI", vhost, queue))


def encode_header(magic: bytes, vhost: int, queue: int, segment: int, slots: int) -> bytes:
    """Return the header of a segment's file. magic: MAGIC_QI or MAGIC_QS."""
    data = HEADER.pack(magic, VERSION, 0, vhost, queue, segment, slots)
    return (data + _U32.pack(crc32(data))).ljust(HEADER_BYTES, b"\0")


def is_entry(seed: int, seq: int, entry: bytes) -> bool:
    """Return whether a whole entry of .qs, with its prefix, verifies for `seq`."""
    expected: int = _U32.unpack_from(entry, 4)[0]
    return crc32(entry[8:], _seed(seed, seq)) == expected


def _seed(seed: int, seq: int) -> int:
    return seed ^ (seq & 0xFFFFFFFF) ^ (seq >> 32)


def _i32(n: int) -> int:
    """Return a u32 as the i32 with the same bits."""
    return n if n < 0x80000000 else n - 0x100000000


def put_slot(
    out: BytesWriter, fields: BytesWriter, seed: int, seq: int, message: QueuedMessage, flags: int,
    where: int, header_len: int,
) -> None:  # fmt: skip
    """Write the 32 bytes of a slot to `out`. flags: without USED and HAS_EXPIRY, which are added
    here. fields: a buffer to work with; its content does not matter."""
    flags |= USED
    expiry = message.expiry_ms
    if expiry:
        flags |= HAS_EXPIRY
    length = header_len if header_len < LONG_HEADER else LONG_HEADER
    id = message.id
    fields.truncate(0)
    fields.append(flags)
    fields.append(length)
    write_i32_be(fields, 0)
    write_i32_be(fields, _i32(message.size))
    write_i32_be(fields, _i32(id >> 32))
    write_i32_be(fields, _i32(id & 0xFFFFFFFF))
    fields.append(expiry >> 40)
    fields.append(expiry >> 32 & 0xFF)
    write_i32_be(fields, _i32(expiry & 0xFFFFFFFF))
    write_i32_be(fields, _i32(where))
    write_i32_be(fields, _i32(message.time))
    checked = fields.getvalue()
    out.append(flags)
    out.append(length)
    write_i32_be(out, _i32(crc32(checked, _seed(seed, seq))))
    out.write(checked[6:])


def decode_slot(seed: int, seq: int, data: bytes, at: int) -> Slot | None:
    """Return the slot at `at` in data, or None if it does not verify for this seq."""
    if len(data) < at + SLOT_BYTES:
        return None
    flags, length, crc, size, id, high, low, where, time = _SLOT.unpack_from(data, at)
    if not flags & USED:
        return None
    zeroed = data[at : at + 2] + b"\0\0\0\0" + data[at + 6 : at + SLOT_BYTES]
    if crc32(zeroed, _seed(seed, seq)) != crc:
        return None
    return Slot(seq, flags, length, size, id, high << 32 | low, where, time)


def _body_of(message: QueuedMessage) -> bytes:
    body = message.body
    assert body is not None, "a body must be in RAM to be written to .qs"
    return body


def _in_store(message: QueuedMessage) -> bytes:
    """Return what the checksum covers in an entry whose body is in the store."""
    header = message.header
    return b"%b%b%b" % (_pack_u32(len(header)), _pack_u32(message.store_file), header)


class Handles:
    """Keeps at most `limit` segments of a vhost's queues open, those used last; fewer while `fs`
    is short of descriptors."""

    def __init__(self, limit: int = 128) -> None:
        self.fs: FileSystem | None = None
        self._limit: int = limit
        self._open: dict[SegmentFiles, None] = {}

    def used(self, files: "SegmentFiles") -> None:
        """Note that these files are about to be used; close others beyond the limit."""
        used = self._open
        used.pop(files, None)
        used[files] = None
        is_short = self.fs is not None and self.fs.is_short
        if len(used) > (1 if is_short else self._limit):
            for old in used:
                if not old.is_syncing and old is not files:
                    break
            else:
                return
            del used[old]
            old.close()

    def forget(self, files: "SegmentFiles") -> None:
        """Forget files that were closed and will not be used again."""
        self._open.pop(files, None)


class SegmentFiles:
    """The .qi and .qs of one segment: writes runs of entries, reads slots and entries.

    path: without its ending. The first write creates the files.
    """

    def __init__(
        self, fs: FileSystem, path: str, vhost: int, queue: int, segment: int, slots: int,
        handles: "Handles",
    ) -> None:  # fmt: skip
        self.path: str = path
        self.segment: int = segment
        self.places: list[int] = []  # positions in .qs of the entries last written; 0 for none
        self.is_dirty: bool = False  # written since it was last synced
        self.is_syncing: bool = False  # a sync of it is running: its handles stay open
        self._handles: Handles = handles
        self._fs = fs
        self._vhost = vhost
        self._queue = queue
        self._slots = slots
        self._seed: int = queue_seed(vhost, queue)
        self._qi: File | None = None
        self._qs: File | None = None
        self._qs_end: int = 0
        # Which files have a header that this start wrote or checked: QI_HEADER, QS_HEADER.
        self.headers: int = 0

    # ---- writing -----------------------------------------------------------------------------

    def write(self, entries: list[Entry]) -> int:
        """Write entries, ascending and none twice, to .qs, and their slots. Return the bytes
        written.

        They need a sync. Raises OSError; nothing names the new bytes, so they do no harm. Raises
        SyncFailedError if a file from before this start could not be synced.
        """
        self._handles.used(self)
        qi = self._open_for_write(".qi", MAGIC_QI)
        self.is_dirty = True
        places, written = self._write_entries(entries)
        self.places = places
        slots, fields = BytesWriter(), BytesWriter()
        first = following = entries[0].seq
        for i in range(len(entries)):
            entry = entries[i]
            seq, message = entry.seq, entry.message
            if seq != following:
                written += self._write_slots(qi, first, slots)
                first = seq
            following = seq + 1
            flags = IN_STORE if message.store_file else 0
            where = places[i]
            if where:
                flags |= HAS_ENTRY
            else:
                where = message.store_file
            put_slot(slots, fields, self._seed, seq, message, flags, where, len(message.header))
        return written + self._write_slots(qi, first, slots)

    def write_bodies(self, entries: list[Entry]) -> list[int]:
        """Write entries, ascending, to .qs alone. Return their positions, 0 for one that needs no
        entry. For transient messages; `write_slots` may write their slots later."""
        self._handles.used(self)
        self.is_dirty = True
        return self._write_entries(entries)[0]

    def write_slots(self, slots: list[Slot]) -> int:
        """Write slots, ascending, of entries that are in .qs. Return the bytes written."""
        self._handles.used(self)
        qi = self._open_for_write(".qi", MAGIC_QI)
        self.is_dirty = True
        written = 0
        run, fields = BytesWriter(), BytesWriter()
        first = following = slots[0].seq
        for slot in slots:
            if slot.seq != following:
                written += self._write_slots(qi, first, run)
                first = slot.seq
            following = slot.seq + 1
            message = QueuedMessage(slot.id, b"", None, slot.size, slot.time, slot.expiry_ms)
            put_slot(
                run, fields, self._seed, slot.seq, message, slot.flags & HAS_ENTRY, slot.where,
                slot.header_len,
            )  # fmt: skip
        return written + self._write_slots(qi, first, run)

    def _write_entries(self, entries: list[Entry]) -> tuple[list[int], int]:
        """Write the .qs entries that are needed. Return positions (0: none) and bytes written."""
        qs: File | None = None  # None until it is needed; then it has a good header
        places: list[int] = []
        out = BytesWriter()
        header, prefix = b"", b"\0\0\0\0"  # of the last entry; the next one mostly has the same
        at = start = 0
        written = 0
        for held in entries:
            message = held.message
            if not message.header and (message.store_file or not message.size):
                places.append(0)
                continue
            if qs is None:
                qs = self._open_for_write(".qs", MAGIC_QS)
                at = start = self._qs_end
            if message.header != header:
                header = message.header
                prefix = _pack_u32(len(header)) + header
            checked = _in_store(message) if message.store_file else prefix + _body_of(message)
            size = len(checked)  # of all that the checksum covers
            write_i32_be(out, size - 4)
            write_i32_be(out, _i32(crc32(checked, _seed(self._seed, held.seq))))
            out.write(checked)
            places.append(at)
            at += 8 + size
            if at - start >= WRITE_BYTES:
                qs.pwrite(out.getvalue(), start)
                written += at - start
                out.truncate(0)
                start = self._qs_end = at
        if at > start and qs is not None:
            qs.pwrite(out.getvalue(), start)
            written += at - start
            self._qs_end = at
        return places, written

    def _write_slots(self, qi: File, first: int, slots: BytesWriter) -> int:
        data = slots.getvalue()
        slots.truncate(0)
        qi.pwrite(data, HEADER_BYTES + first % self._slots * SLOT_BYTES)
        return len(data)

    def take_over(self) -> None:
        """Sync and check the files that there are, from before this start: no write has to."""
        self._handles.used(self)
        for ending, magic in ((".qi", MAGIC_QI), (".qs", MAGIC_QS)):
            if self._fs.exists(self.path + ending):
                self._open_for_write(ending, magic)

    def _open_for_write(self, ending: str, magic: bytes) -> File:
        is_qi = ending == ".qi"
        file = self._qi if is_qi else self._qs
        if file is None:
            file = self._fs.open(self.path + ending, create=True)
            if is_qi:
                self._qi = file
            else:
                self._qs = file
        header = QI_HEADER if is_qi else QS_HEADER
        if not self.headers & header:
            self._make_header(file, self._header(magic))
            self.headers |= header
        if not is_qi and not self._qs_end:
            self._qs_end = max(file.size(), HEADER_BYTES)
        return file

    def _make_header(self, file: File, header: bytes) -> None:
        """Write the header if it is missing or torn; called once in a start for each file. A file
        from before this start is synced and read from the disk, because after a failed sync the
        cache shows bytes that are not on the disk [8]. A good header is not written again, because
        a checkpoint may name what follows it [6]."""
        if file.size():
            try:
                file.sync()
            except OSError as error:
                raise SyncFailedError(file.path, error) from error
            file.drop_cache()
            if file.pread(HEADER_BYTES, 0) == header:
                return
        file.pwrite(header, 0)

    def _header(self, magic: bytes) -> bytes:
        return encode_header(magic, self._vhost, self._queue, self.segment, self._slots)

    # ---- reading -----------------------------------------------------------------------------

    def _reading(self, ending: str) -> File:
        self._handles.used(self)
        is_qi = ending == ".qi"
        file = self._qi if is_qi else self._qs
        if file is not None:
            return file
        path = self.path + ending
        try:
            file = self._fs.open(path)
        except FileNotFoundError:
            raise CorruptionError(path, 0, "the file is missing") from None
        try:
            check_header(
                path, file.pread(HEADER_BYTES, 0), self._header(MAGIC_QI if is_qi else MAGIC_QS)
            )
        except CorruptionError:
            file.close()
            raise
        if is_qi:
            self._qi = file
        else:
            self._qs = file
            self._qs_end = max(file.size(), HEADER_BYTES)
        return file

    def slots(self, seqs: list[int]) -> list[Slot]:
        """Return the slots of these seqs, ascending. Raises CorruptionError if one is damaged."""
        rel = seqs[0] % self._slots
        count = seqs[-1] % self._slots - rel + 1
        data = self._reading(".qi").pread(count * SLOT_BYTES, HEADER_BYTES + rel * SLOT_BYTES)
        first = seqs[0]
        found: list[Slot] = []
        for seq in seqs:
            slot = decode_slot(self._seed, seq, data, (seq - first) * SLOT_BYTES)
            if slot is None:
                raise CorruptionError(
                    self.path + ".qi",
                    HEADER_BYTES + seq % self._slots * SLOT_BYTES,
                    f"the slot of seq {seq} of queue {self._queue} does not verify",
                )
            found.append(slot)
        return found

    def messages(self, seqs: list[int]) -> list[QueuedMessage]:
        """Return the messages of these seqs, ascending; the body is None if it is in the
        MessageStore.

        Neighbouring entries are read in runs of at most 256 KiB. Raises CorruptionError.
        """
        return self.entries_of(self.slots(seqs))

    def entries_of(self, slots: list[Slot]) -> list[QueuedMessage]:
        """Return the messages of these slots, like `messages`."""
        result: list[QueuedMessage] = []
        run = b""
        run_at = 0
        for i, slot in enumerate(slots):
            if not slot.flags & HAS_ENTRY:
                store = slot.where if slot.flags & IN_STORE else 0
                if slot.header_len or (slot.size and not store):
                    raise self._bad_entry(slot, "has no known position")
                body = None if store else b""
                result.append(
                    QueuedMessage(slot.id, b"", body, slot.size, slot.time, slot.expiry_ms, store)
                )
                continue
            need = self._need(slot)
            at = slot.where - run_at
            if at < 0 or at + need > len(run):
                want = need
                for later in slots[i + 1 :]:
                    if not later.flags & HAS_ENTRY:
                        continue
                    end = later.where - slot.where + self._need(later)
                    if later.where < slot.where or end > READ_BYTES or end > want + READ_BYTES // 8:
                        break
                    want = max(want, end)
                run = self._reading(".qs").pread(want, slot.where)
                run_at = slot.where
                at = 0
            result.append(self.parse(slot, run, at))
        return result

    def _need(self, slot: Slot) -> int:
        need = PREFIX_BYTES + slot.header_len
        return need + (4 if slot.flags & IN_STORE else slot.size)

    def parse(self, slot: Slot, run: bytes, at: int) -> QueuedMessage:
        """Return the message of a slot whose entry begins at `at` in `run`. Raises
        CorruptionError."""
        start = at + PREFIX_BYTES
        if len(run) < start:
            raise self._bad_entry(slot, "is cut off")
        length, crc, header_len = PREFIX.unpack_from(run, at)
        fixed = 4 if slot.flags & IN_STORE else slot.size
        if length != fixed + header_len or min(header_len, LONG_HEADER) != slot.header_len:
            raise self._bad_entry(slot, "has a wrong length")
        checked = run[at + 8 : start + length]  # the header's length, and all after it
        if len(checked) < 4 + length:
            checked = self._reading(".qs").pread(4 + length, slot.where + 8)
        if crc32(checked, _seed(self._seed, slot.seq)) != crc:
            raise self._bad_entry(slot, f"of queue {self._queue} is damaged")
        data = checked[4:]
        if slot.flags & IN_STORE:
            store: int = _U32.unpack_from(data)[0]
            return QueuedMessage(
                slot.id, data[4:], None, slot.size, slot.time, slot.expiry_ms, store
            )
        return QueuedMessage(
            slot.id, data[:header_len], data[header_len:], slot.size, slot.time, slot.expiry_ms
        )

    def _bad_entry(self, slot: Slot, what: str) -> CorruptionError:
        return CorruptionError(self.path + ".qs", slot.where, f"the entry of seq {slot.seq} {what}")

    # ---- life --------------------------------------------------------------------------------

    def sync(self) -> None:
        """Sync both files (fdatasync); a worker may call it while `is_syncing` is set. A file that
        was closed to free its handle is opened again (see closed_file.py). Raises OSError."""
        self._sync(self._qs, ".qs")
        self._sync(self._qi, ".qi")

    def _sync(self, file: File | None, ending: str) -> None:
        if file is not None:
            file.sync()
        else:
            sync_closed(self._fs, self.path + ending)

    def close(self) -> None:
        """Close the handles. The next use opens them again."""
        for file in (self._qi, self._qs):
            if file is not None:
                file.close()
        self._qi = self._qs = None
        self._qs_end = 0


def check_header(path: str, found: bytes, expected: bytes) -> None:
    """Raise CorruptionError with the field of a segment header that is not as expected."""
    if found == expected:
        return
    if len(found) < HEADER_BYTES:
        raise CorruptionError(path, len(found), "the segment's header is cut off")
    names = ("magic", "version", "flags", "vhost", "queue", "segment", "slots")
    for name, is_, must in zip(
        names, HEADER.unpack_from(found), HEADER.unpack_from(expected), strict=True
    ):
        if is_ != must:
            raise CorruptionError(path, 0, f"the header's {name} is {is_!r}, expected {must!r}")
    raise CorruptionError(path, 0, "the header's checksum does not verify")
