"""FileQueueBacking keeps bodies that left RAM, one file per body.

It is the class of that name in Qpid's Flow to Disk Design. A body is written, its **address** is
all that stays in RAM, and a read verifies it. An address is (file number, id): u32 and u64. The id
is the message's. A pair is smaller than a path; logs, slots and checkpoints hold it.

FileQueueBacking spreads the files over bins by the low 8 bits of their number, because directories
with very many files are slow or limited. (The design has 512 bins; 8 bits give 256.) The
MessageStore uses it for bodies from 4 MiB on and for bodies that are spooled while their frames
arrive (the design's storeHeader and storeChunk). Combining never touches these files.

    <bin, two hex digits>/<number>.msg
        magic "POWN" 4 | version 2 | flags 2 | vhost 8 | number 4 | id 8 | size 8 |
        crc of the body 4 | crc of the header 4 | body

Big-endian, CRC-32; that of the body is seeded with vhost, number, id and size. The header is
written last, when size and checksum are known, so an unfinished file has no valid header. Files are
written once and never changed. Numbers are dense and never used again; in an *address* they have
bit 31 set, which distinguishes them from append files.

RAM: one bit for each number from the lowest that is alive; a dict entry for a body with two or more
references. Sizes and ids are in the files' headers, of which the last few read are kept.

Deleting: a body without references whose file has no owner is dead, but its file is unlinked only
after ``take_dead`` returned it and the next checkpoint is CURRENT [6]. A spooled body that has
neither reference nor owner at a cut is dead too.

Failure: a full disk is the OSError; the file is deleted, now or by the next start, and the body
stays in RAM. A body that is missing or does not verify is a CorruptionError with path and position.
"""

import struct
from typing import Final

from penstock.errors import CorruptionError, StorageError, SyncFailedError
from penstock.fast_crc import crc32
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.store.store_file import (
    OWN_FILE,
    OwnState,
    StoredBody,
    create_file,
    discard,
    make_directory,
)
from penstock.storage.store.store_sync import Unsynced, UnsyncedFile

VERSION: Final = 1
MAGIC: Final = b"POWN"
HEADER_BYTES: Final = 44
SPOOL_BYTES: Final = 256 << 10  # RAM for one unfinished body
HEADERS_MAX: Final = 1024  # headers that are kept in RAM

HEADER: Final = struct.Struct(">4sHHQIQQI")
_SEED: Final = struct.Struct(">QIQ")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


class Spool:
    """A body that arrives in pieces, which are written to its file."""

    def __init__(self, backing: "FileQueueBacking", number: int, id: int) -> None:
        self.id: int = id
        self.size: int = 0  # bytes of body so far
        self._backing: FileQueueBacking = backing
        self._number: int = number
        self._pieces: list[bytes] = []
        self._waiting: int = 0
        self._crc: int = body_seed(backing.vhost, number, id)
        self._written: UnsyncedFile | None = None
        self._is_over: bool = False

    def write(self, chunk: bytes) -> None:
        """Write the next bytes of the body. Raises OSError; then call ``abort``."""
        assert not self._is_over, "the spool is finished or aborted"
        self._pieces.append(chunk)
        self._waiting += len(chunk)
        if self._waiting >= SPOOL_BYTES:
            self._flush()

    def finish(self) -> int:
        """End the body. Return the file number of its address.

        Give it references (``ref``) or an owner (``own``) before the next cut. Raises OSError; then
        call ``abort``.
        """
        assert not self._is_over, "the spool is finished or aborted"
        self._flush()
        written = self._written
        assert written is not None, "the flush creates the file"
        assert written.file is not None, "it is open until it is finished"
        # The checksum covers the size last, because it is known last.
        crc = crc32(_U64.pack(self.size), self._crc)
        header = self._backing.header(self._number, self.id, self.size, crc)
        written.file.pwrite(header, 0)
        self._is_over = True
        return self._backing.adopt(self._number, self.id, self.size, written)

    def abort(self) -> None:
        """Delete what was written. A second call does nothing."""
        if self._is_over:
            return
        self._is_over = True
        self._pieces = []
        self._backing.drop(self._number, self._written)

    def _flush(self) -> None:
        written = self._written
        if written is None:
            written = self._backing.create(self._number)
            self._written = written
        if self._waiting:
            data = b"".join(self._pieces)
            file = written.file
            assert file is not None
            file.pwrite(data, HEADER_BYTES + self.size)
            self._crc = crc32(data, self._crc)
            self.size += len(data)
            self._pieces = []
            self._waiting = 0


class FileQueueBacking:
    """One file per body, below one directory. Numbers are without bit 31; addresses have it.

    damage: what ``restore`` found. written_bytes, released_bytes: of bodies written and of bodies
    that died, since the start.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        vhost: int,
        *,
        persistent: bool = True,
        unsynced: Unsynced | None = None,
    ) -> None:
        """Create the directory. unsynced: a registry to share; None for its own.

        Raises NotAStoreError if ``path`` is a file, OSError.
        """
        make_directory(fs, path)
        self.fs: FileSystem = fs
        self.path: str = path
        self.vhost: int = vhost
        self.unsynced: Unsynced = unsynced or Unsynced(fs, persistent=persistent)
        self.damage: list[CorruptionError] = []
        self.written_bytes: int = 0
        self.released_bytes: int = 0
        self._state: OwnState = OwnState()
        self._cut_state: OwnState | None = None  # as of the cut, once changed since
        self._is_cutting: bool = False  # a cut was made and not captured
        self._owners: dict[int, int] = {}
        self._spooling: dict[int, bool] = {}
        self._candidates: list[int] = []  # numbers that may be dead, since the last cut
        self._ripe: list[int] = []  # numbers that were dead at the last cut
        self._untrusted: list[int] = []  # found at load, counted by no checkpoint
        self._headers: dict[int, tuple[int, int, int]] = {}  # number -> id, size, crc
        self._bins: dict[int, bool] = {}  # bins that exist

    # ---- bodies ----------------------------------------------------------------------------

    def write(self, id: int, body: bytes, refs: int) -> int:
        """Write a body. Return the file number of its address.

        With ``refs`` 0 it needs a reference or an owner before the next cut. Raises OSError.
        """
        spool = self.spool(id)
        try:
            spool.write(body)
            file = spool.finish()
        except OSError:
            spool.abort()
            raise
        if refs:
            self.ref(file, id, refs)
        return file

    def spool(self, id: int) -> Spool:
        """Begin a body that arrives in pieces. Takes its number; the file is created later."""
        self.unsynced.check()
        number = self._state.next_number
        if number >= OWN_FILE:
            raise StorageError(f"{self.path}: all {OWN_FILE} numbers of own files are used")
        self._touch()
        self._state.next_number = number + 1
        self._spooling[number] = True
        return Spool(self, number, id)

    def read(self, file: int, id: int) -> bytes:
        """Return the body. Raises CorruptionError, also for a missing file; OSError."""
        path, number = self.file_path(file), file & ~OWN_FILE
        handle, size, crc = self._open(number, id)
        try:
            body = handle.pread(size, HEADER_BYTES)
        finally:
            handle.close()
        if len(body) != size:
            at = HEADER_BYTES + len(body)
            raise CorruptionError(path, at, f"body {id} of {size} bytes is cut off")
        if body_crc(self.vhost, number, id, body) != crc:
            raise CorruptionError(path, HEADER_BYTES, f"the checksum of body {id} does not match")
        return body

    def open_body(self, file: int, id: int) -> StoredBody:
        """Return the body for reading in pieces. Raises CorruptionError if the file is missing or
        its header is damaged or of another body; OSError."""
        number = file & ~OWN_FILE
        handle, size, crc = self._open(number, id)
        return StoredBody(
            handle, id, HEADER_BYTES, size, crc=body_seed(self.vhost, number, id),
            suffix=_U64.pack(size), expected=crc,
        )  # fmt: skip

    def refs(self, file: int, id: int) -> int:
        """Return the references of the body; 0 if it is dead or never existed."""
        return self._state.refs(file & ~OWN_FILE) if file & OWN_FILE else 0

    def ref(self, file: int, id: int, n: int = 1) -> None:
        """Add ``n`` references. Raises CorruptionError if the body is missing."""
        number = file & ~OWN_FILE
        state = self._state
        if number < state.base:
            raise CorruptionError(self.file_path(file), 0, f"body {id} died before the last cut")
        size = self._header(number, id)[1]
        self._touch()
        state.set_refs(number, state.refs(number) + n, size)
        state.next_number = max(state.next_number, number + 1)

    def unref(self, file: int, id: int, n: int = 1) -> bool:
        """Remove ``n`` references. Return True if the body is dead now. Raises StorageError if it
        had fewer. If the header is damaged, the size counts as 0."""
        number = file & ~OWN_FILE
        left = self._state.refs(number) - n
        if left < 0:
            raise StorageError(
                f"{self.file_path(file)}: {n} references dropped, it had {left + n}; "
                "counts and log disagree"
            )
        size = self._size_or_zero(number, id)
        self._touch()
        self._state.set_refs(number, left, size)
        if left:
            return False
        self.released_bytes += size
        self._candidates.append(number)
        return True

    def own(self, file: int, id: int) -> None:
        """Give the body to an unfinished transaction: its file stays without references."""
        number = file & ~OWN_FILE
        self._owners[number] = self._owners.get(number, 0) + 1

    def disown(self, file: int, id: int) -> None:
        """End the ownership of a transaction. A commit adds the references before."""
        number = file & ~OWN_FILE
        left = self._owners.pop(number, 0) - 1
        assert left >= 0, "disown without own"
        if left:
            self._owners[number] = left
        elif not self._state.refs(number):
            self._candidates.append(number)

    # ---- checkpoints -----------------------------------------------------------------------

    def cut(self) -> None:
        """Keep the state of this instant until it is captured. ``take_dead`` returns the files that
        are dead now, not those that die later."""
        self._cut_state = None
        self._is_cutting = True
        candidates = {*self._candidates, *self._untrusted}
        self._candidates = []
        self._untrusted = []
        self._ripe += [number for number in sorted(candidates) if self._is_dead(number)]

    def capture(self) -> OwnState:
        """Return the state as of the cut."""
        self._is_cutting = False
        state, self._cut_state = self._cut_state, None
        return state or self._state.copy()

    def take_dead(self) -> list[str]:
        """Forget files whose body was dead at the cut. Return their paths; the caller unlinks them
        once the checkpoint is CURRENT [6]."""
        paths: list[str] = []
        for number in self._ripe:
            if self._is_dead(number):
                self._headers.pop(number, None)
                paths.append(self.file_path(number))
        self._ripe = []
        floor = min([self._state.next_number, *self._owners, *self._spooling, *self._candidates])
        self._state.trim(floor)
        return paths

    @property
    def live_bytes(self) -> int:
        """Bytes of bodies that have a reference."""
        return self._state.live_bytes

    @property
    def live_count(self) -> int:
        """Bodies that have a reference."""
        return self._state.live_count

    @property
    def next_number(self) -> int:
        """The number that the next own file gets."""
        return self._state.next_number

    # ---- recovery --------------------------------------------------------------------------

    def restore(self, state: OwnState, next_number: int) -> None:
        """Load what a checkpoint held. Files that it does not count are synced and dropped from the
        page cache [8]; the log may refer to them, else the first cut removes them. Numbers continue
        at ``next_number`` or above. Missing files are added to ``damage``. Raises SyncFailedError,
        OSError.
        """
        self._state = state.copy()
        self._state.next_number = max(state.next_number, next_number)
        found = 0
        for name in self.fs.list(self.path):
            at = _bin_of(name)
            if at >= 0 and self.fs.is_dir(f"{self.path}/{name}"):
                self._bins[at] = True
                found += self._restore_bin(at)
        self.unsynced.mark_directory(self.path)
        if found < self._state.live_count:
            for number in self._state.numbers():
                path = self.file_path(number)
                if not self.fs.exists(path):
                    self.damage.append(CorruptionError(path, 0, "the file of a body is missing"))

    def _restore_bin(self, at: int) -> int:
        """Return the number of live files in one bin; sync and note the others."""
        found = 0
        directory = f"{self.path}/{at:02x}"
        for name in self.fs.list(directory):
            number = _number_of(name)
            if number < 0 or number & 0xFF != at:
                continue
            if self._state.refs(number):
                found += 1
                continue
            self._untrusted.append(number)
            self._state.next_number = max(self._state.next_number, number + 1)
            self.unsynced.mark_directory(directory)
            path = f"{directory}/{name}"
            handle = self.fs.open(path)
            try:
                handle.sync()
                handle.drop_cache()
            except OSError as error:
                raise SyncFailedError(path, error) from error
            finally:
                handle.close()
        return found

    # ---- files -----------------------------------------------------------------------------

    def file_path(self, file: int) -> str:
        """Return the path of file ``file``, a number with or without bit 31."""
        number = file & ~OWN_FILE
        return f"{self.path}/{number & 0xFF:02x}/{number}.msg"

    def header(self, number: int, id: int, size: int, crc: int) -> bytes:
        """Return the header of a file."""
        head = HEADER.pack(MAGIC, VERSION, 0, self.vhost, number, id, size, crc)
        return head + _U32.pack(crc32(head))

    def create(self, number: int) -> UnsyncedFile:
        """Create the empty file of ``number``, and its bin. Raises OSError. For a Spool."""
        self.unsynced.check()
        at = number & 0xFF
        directory = f"{self.path}/{at:02x}"
        if at not in self._bins:
            self.fs.mkdir(directory)
            self.unsynced.mark_directory(self.path)
            self._bins[at] = True
        path = self.file_path(number)
        file = create_file(self.fs, path, b"")
        self.unsynced.mark_directory(directory)
        return UnsyncedFile(path, file)

    def adopt(self, number: int, id: int, size: int, written: UnsyncedFile) -> int:
        """Take the file of a finished Spool. Return the file number of its address."""
        del self._spooling[number]
        self.unsynced.mark(written)
        self.unsynced.finish(written)
        self._keep_header(number, (id, size, 0))
        self._candidates.append(number)
        self.written_bytes += size
        return number | OWN_FILE

    def drop(self, number: int, written: UnsyncedFile | None) -> None:
        """Delete the file of an aborted Spool."""
        self._spooling.pop(number, None)
        if written is not None:
            file = written.file
            assert file is not None, "the file of a Spool is open until it is finished"
            written.file = None
            discard(self.fs, written.path, file)

    def close(self) -> None:
        """Close the handles of unsynced files."""
        self.unsynced.close()

    # ---- helpers ---------------------------------------------------------------------------

    def _is_dead(self, number: int) -> bool:
        return not self._state.refs(number) and number not in self._owners

    def _touch(self) -> None:
        """Keep the state of the cut, before a change."""
        if self._is_cutting and self._cut_state is None:
            self._cut_state = self._state.copy()

    def _header(self, number: int, id: int) -> tuple[int, int, int]:
        """Return (id, size, crc) of the file of body ``id``. Raises CorruptionError, OSError."""
        header = self._headers.get(number)
        if header is None:
            handle, size, crc = self._open(number, id)
            handle.close()
            header = (id, size, crc)
            self._keep_header(number, header)
        if header[0] != id:
            path = self.file_path(number)
            raise CorruptionError(path, 20, f"expected body {id}, found {header[0]}")
        return header

    def _open(self, number: int, id: int) -> tuple[File, int, int]:
        """Open the file of body ``id``. Return the handle, the body's size and its checksum. Raises
        CorruptionError if the file is missing or its header is damaged or of another body; OSError.
        """
        path = self.file_path(number)
        try:
            handle = self.fs.open(path)
        except FileNotFoundError:
            raise CorruptionError(path, 0, f"body {id}: the file is missing") from None
        try:
            found, size, crc = self._decode(path, number, handle.pread(HEADER_BYTES, 0))
            if found != id:
                raise CorruptionError(path, 20, f"expected body {id}, found {found}")
        except BaseException:
            handle.close()
            raise
        return handle, size, crc

    def _size_or_zero(self, number: int, id: int) -> int:
        try:
            return self._header(number, id)[1]
        except (CorruptionError, OSError):
            return 0

    def _keep_header(self, number: int, header: tuple[int, int, int]) -> None:
        if len(self._headers) >= HEADERS_MAX:
            del self._headers[next(iter(self._headers))]
        self._headers[number] = header

    def _decode(self, path: str, number: int, data: bytes) -> tuple[int, int, int]:
        """Return (id, size, crc of the body) from the header of file ``number``."""
        if len(data) < HEADER_BYTES:
            raise CorruptionError(path, len(data), "cut off: the header is not whole")
        if crc32(data[:40]) != _U32.unpack_from(data, 40)[0]:
            raise CorruptionError(path, 0, "the checksum of the header does not match")
        magic, version, _, vhost, found, id, size, crc = HEADER.unpack_from(data)
        if magic != MAGIC or version != VERSION:
            raise CorruptionError(
                path, 0, f"expected {MAGIC!r} {VERSION}, found {magic!r} {version}"
            )
        if vhost != self.vhost or found != number:
            raise CorruptionError(
                path, 8, f"expected file {number} of vhost {self.vhost:016x}, "
                f"found file {found} of vhost {vhost:016x}"
            )  # fmt: skip
        return (id, size, crc)


def body_seed(vhost: int, number: int, id: int) -> int:
    """Return the seed of a body's checksum."""
    return crc32(_SEED.pack(vhost, number, id))


def body_crc(vhost: int, number: int, id: int, body: bytes) -> int:
    """Return the checksum of a body, as in its file's header."""
    return crc32(_U64.pack(len(body)), crc32(body, body_seed(vhost, number, id)))


def _bin_of(name: str) -> int:
    """Return the number of a bin's directory, or -1."""
    if len(name) != 2 or not all(digit in "0123456789abcdef" for digit in name):
        return -1
    return int(name, 16)


def _number_of(name: str) -> int:
    """Return the number of a body's file, or -1."""
    stem, dot, kind = name.partition(".")
    if not dot or kind != "msg" or not stem.isascii() or not stem.isdigit():
        return -1
    return int(stem)
