"""FileQueueBacking: one file per body, for bodies so large that copying them would hurt.

This is the QueueBacking of Qpid's Flow to Disk Design: each message in a file of its own,
the files spread over bins by the low 8 bits of their number, because directories with very
many files are slow or limited. (The design says 512 bins; 8 bits give 256.) Here it is the
size class of the MessageStore for bodies from 4 MiB on and for bodies that are spooled while
their frames arrive, the design's storeHeader and storeChunk: combining never touches them.

    <bin, two hex digits>/<number>.msg
        magic "POWN" 4 | version 2 | flags 2 | vhost 8 | number 4 | id 8 | size 8 |
        crc of the body 4 | crc of the header 4 | body

Big-endian, CRC-32; the body's is seeded with vhost, number, id and size. The header is
written last, when size and checksum are known, so an unfinished file has no valid one.
Files are written once and never changed. Numbers are dense and never used again; in an
*address* they have bit 31 set, which tells them from append files.

RAM: one bit per number, from the lowest that is alive; a dict entry for a body with two or
more references. Sizes and ids are in the files' headers; the last few read are kept.

Dying: a body without references whose file has no owner is dead, but its file goes only
when ``take_dead`` has named it and the next checkpoint is CURRENT [6]. A body that was
spooled and has neither reference nor owner at a cut is garbage as well.

Failure: a full disk is the OSError; the file is deleted, or found and deleted by the next
start. Bytes that do not verify are a CorruptionError with path and position.
"""

import struct
from typing import Final

from penstock.errors import CorruptionError, StorageError, SyncFailedError
from penstock.fast_crc import crc32
from penstock.storage.filesystem import FileSystem
from penstock.storage.queue_backing import Address, QueueBacking
from penstock.storage.store_file import create_file, discard, make_directory
from penstock.storage.store_state import OWN_FILE, OwnState
from penstock.storage.store_sync import Unsynced, UnsyncedFile
from penstock.storage.stored_body import StoredBody

VERSION: Final = 1
MAGIC: Final = b"POWN"
HEADER_BYTES: Final = 44
SPOOL_BYTES: Final = 256 << 10  # RAM of one unfinished body
HEADERS_MAX: Final = 1024  # headers of files that are kept in RAM

_HEADER: Final = struct.Struct(">4sHHQIQQI")
_SEED: Final = struct.Struct(">QIQ")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


class Spool:
    """A body whose end has not come: its bytes go to its file as they arrive."""

    def __init__(self, backing: "FileQueueBacking", number: int, id: int) -> None:
        self.id: int = id
        self.size: int = 0  # bytes of body so far
        self._backing: FileQueueBacking = backing
        self._number: int = number
        self._pieces: list[bytes] = []
        self._waiting: int = 0
        self._crc: int = backing.body_seed(number, id)
        self._written: UnsyncedFile | None = None
        self._is_over: bool = False

    def write(self, chunk: bytes) -> None:
        """The next bytes of the body. Raises OSError, after which only ``abort`` is left."""
        assert not self._is_over, "the spool is finished or aborted"
        self._pieces.append(chunk)
        self._waiting += len(chunk)
        if self._waiting >= SPOOL_BYTES:
            self._flush()

    def finish(self) -> int:
        """The body is whole: the file number of its address. It has no reference yet.

        Give it references (``ref``) or an owner (``own``) before the next cut. Raises OSError,
        after which only ``abort`` is left.
        """
        assert not self._is_over, "the spool is finished or aborted"
        self._flush()
        written = self._written
        assert written is not None, "the flush has made the file"
        assert written.file is not None, "and it is open until it is finished"
        # The size is the checksum's last part, because it is known last.
        crc = crc32(_U64.pack(self.size), self._crc)
        header = self._backing.header(self._number, self.id, self.size, crc)
        written.file.pwrite(header, 0)
        self._is_over = True
        return self._backing.adopt(self._number, self.id, self.size, written)

    def abort(self) -> None:
        """The body will not come: delete what there is. A second call does nothing."""
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


class FileQueueBacking(QueueBacking):
    """Own files below one directory. Numbers here are without bit 31; addresses have it."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        vhost: int,
        *,
        persistent: bool = True,
        unsynced: Unsynced | None = None,
    ) -> None:
        """Makes the directory. ``unsynced``: a registry to share, else one of its own.

        Raises NotAStoreError when ``path`` is a file, OSError when it cannot be made.
        """
        make_directory(fs, path)
        self.fs: FileSystem = fs
        self.path: str = path
        self.vhost: int = vhost
        self.unsynced: Unsynced = unsynced or Unsynced(fs, persistent=persistent)
        self.damage: list[CorruptionError] = []
        self.written_bytes: int = 0  # of bodies, since the start
        self.released_bytes: int = 0  # of bodies that died, since the start
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

    # ---- QueueBacking ----------------------------------------------------------------------

    def unload(self, id: int, body: bytes) -> Address:
        return (self.write(id, body, 1), id)

    def load(self, address: Address) -> bytes:
        file, id = address
        if not self.refs(file, id):
            raise CorruptionError(self.file_path(file), 0, f"no body {id} is alive there")
        return self.read(file, id)

    def delete(self, address: Address) -> None:
        self.unref(address[0], address[1], 1)

    # ---- bodies ----------------------------------------------------------------------------

    def write(self, id: int, body: bytes, refs: int) -> int:
        """Write a body into a file of its own; the file number of its address.

        With ``refs`` 0 it must get a reference or an owner before the next cut. Raises OSError.
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
        """Begin a body whose bytes come in pieces. Its number is taken at once, its file is not."""
        self.unsynced.check()
        number = self._state.next_number
        if number >= OWN_FILE:
            raise StorageError(f"{self.path}: all {OWN_FILE} numbers of own files are used")
        self._touch()
        self._state.next_number = number + 1
        self._spooling[number] = True
        return Spool(self, number, id)

    def read(self, file: int, id: int) -> bytes:
        """The body, verified. Raises CorruptionError, also when the file is missing; OSError."""
        path = self.file_path(file)
        try:
            handle = self.fs.open(path)
        except FileNotFoundError:
            raise CorruptionError(path, 0, f"body {id}: the file is missing") from None
        number = file & ~OWN_FILE
        try:
            found, size, crc = self._decode(path, number, handle.pread(HEADER_BYTES, 0))
            if found != id:
                raise CorruptionError(path, 20, f"expected body {id}, found {found}")
            body = handle.pread(size, HEADER_BYTES)
        finally:
            handle.close()
        if len(body) != size:
            at = HEADER_BYTES + len(body)
            raise CorruptionError(path, at, f"body {id} of {size} bytes is cut off")
        seen = crc32(_U64.pack(size), crc32(body, self.body_seed(number, id)))
        if seen != crc:
            raise CorruptionError(path, HEADER_BYTES, f"the checksum of body {id} does not match")
        return body

    def open_body(self, file: int, id: int) -> StoredBody:
        """The body, to be read in pieces. CorruptionError: the file is missing, or its header is
        damaged or another body's; OSError."""
        path = self.file_path(file)
        number = file & ~OWN_FILE
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
        return StoredBody(
            handle, id, HEADER_BYTES, size, crc=self.body_seed(number, id),
            suffix=_U64.pack(size), expected=crc,
        )  # fmt: skip

    def has(self, file: int, id: int) -> bool:
        """Whether the body is there, whole and verified, alive or not."""
        try:
            self.read(file, id)
        except CorruptionError:
            return False
        return True

    def size(self, file: int, id: int) -> int:
        """Bytes of the body. Raises CorruptionError when it is not there."""
        return self._header(file & ~OWN_FILE, id)[1]

    def refs(self, file: int, id: int) -> int:
        """References of the body; 0 when it is dead or never was."""
        return self._state.refs(file & ~OWN_FILE) if file & OWN_FILE else 0

    def ref(self, file: int, id: int, n: int = 1) -> None:
        """``n`` more references. Raises CorruptionError when the body is not there."""
        number = file & ~OWN_FILE
        state = self._state
        if number < state.base:
            raise CorruptionError(self.file_path(file), 0, f"body {id} died before the last cut")
        size = self._header(number, id)[1]
        self._touch()
        state.set_refs(number, state.refs(number) + n, size)
        state.next_number = max(state.next_number, number + 1)

    def unref(self, file: int, id: int, n: int = 1) -> bool:
        """``n`` fewer references; True if the body is dead now. StorageError if it had fewer.

        A damaged header does not keep a body from dying; its size then counts as 0.
        """
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
        """An unfinished transaction has the body: its file stays though nothing refers to it."""
        number = file & ~OWN_FILE
        self._owners[number] = self._owners.get(number, 0) + 1

    def disown(self, file: int, id: int) -> None:
        """The transaction ended. Give the body its references before this, if it gets any."""
        number = file & ~OWN_FILE
        left = self._owners.pop(number, 0) - 1
        assert left >= 0, "disown without own"
        if left:
            self._owners[number] = left
        elif not self._state.refs(number):
            self._candidates.append(number)

    # ---- checkpoints -----------------------------------------------------------------------

    def cut(self) -> None:
        """From now on the state of this instant is kept until it is captured.

        What is dead now is what ``take_dead`` takes, however much dies before it is called.
        """
        self._cut_state = None
        self._is_cutting = True
        candidates = {*self._candidates, *self._untrusted}
        self._candidates = []
        self._untrusted = []
        self._ripe += [number for number in sorted(candidates) if self._is_dead(number)]

    def capture(self) -> OwnState:
        """The state as of the cut."""
        self._is_cutting = False
        state, self._cut_state = self._cut_state, None
        return state or self._state.copy()

    def take_dead(self) -> list[str]:
        """Paths of files whose body was dead at the cut. They are forgotten here; the caller
        unlinks them once the checkpoint is CURRENT [6]."""
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
        """Begin with what a checkpoint held. Files that it does not count are made sure to be
        what the disk holds [8]: synced, and dropped from the page cache. They come alive when
        the log refers to them, or die at the first cut. Numbers go on from ``next_number`` or
        beyond. Raises SyncFailedError, OSError; ``damage`` names missing files.
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
        """Live files in one bin; the others are noted and made sure."""
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
        """Path of the own file ``file``, with or without bit 31."""
        number = file & ~OWN_FILE
        return f"{self.path}/{number & 0xFF:02x}/{number}.msg"

    def body_seed(self, number: int, id: int) -> int:
        """What the checksum of a body starts from."""
        return crc32(_SEED.pack(self.vhost, number, id))

    def header(self, number: int, id: int, size: int, crc: int) -> bytes:
        """The header of an own file."""
        head = _HEADER.pack(MAGIC, VERSION, 0, self.vhost, number, id, size, crc)
        return head + _U32.pack(crc32(head))

    def create(self, number: int) -> UnsyncedFile:
        """The file of ``number``, empty, and its bin. Raises OSError. For a Spool."""
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
        """A spool is finished: the file number of its address."""
        del self._spooling[number]
        self.unsynced.mark(written)
        self.unsynced.finish(written)
        self._keep_header(number, (id, size, 0))
        self._candidates.append(number)
        self.written_bytes += size
        return number | OWN_FILE

    def drop(self, number: int, written: UnsyncedFile | None) -> None:
        """A spool is aborted."""
        self._spooling.pop(number, None)
        if written is not None:
            file = written.file
            assert file is not None, "a spool's file is open until it is finished"
            written.file = None
            discard(self.fs, written.path, file)

    def close(self) -> None:
        """Close handles that wait for a sync."""
        self.unsynced.close()

    # ---- helpers ---------------------------------------------------------------------------

    def _is_dead(self, number: int) -> bool:
        return not self._state.refs(number) and number not in self._owners

    def _touch(self) -> None:
        """Something changes: keep the state of the cut, if there was one."""
        if self._is_cutting and self._cut_state is None:
            self._cut_state = self._state.copy()

    def _header(self, number: int, id: int) -> tuple[int, int, int]:
        """(id, size, crc) of the file, whose body is ``id``. Raises CorruptionError, OSError."""
        header = self._headers.get(number)
        path = self.file_path(number)
        if header is None:
            try:
                handle = self.fs.open(path)
            except FileNotFoundError:
                raise CorruptionError(path, 0, f"body {id}: the file is missing") from None
            try:
                header = self._decode(path, number, handle.pread(HEADER_BYTES, 0))
            finally:
                handle.close()
            self._keep_header(number, header)
        if header[0] != id:
            raise CorruptionError(path, 20, f"expected body {id}, found {header[0]}")
        return header

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
        """(id, size, crc of the body) from the header of own file ``number``."""
        if len(data) < HEADER_BYTES:
            raise CorruptionError(path, len(data), "cut off: the header is not whole")
        if crc32(data[:40]) != _U32.unpack_from(data, 40)[0]:
            raise CorruptionError(path, 0, "the checksum of the header does not match")
        magic, version, _, vhost, found, id, size, crc = _HEADER.unpack_from(data)
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


def _bin_of(name: str) -> int:
    """The bin that a directory is, or -1."""
    if len(name) != 2 or not all(digit in "0123456789abcdef" for digit in name):
        return -1
    return int(name, 16)


def _number_of(name: str) -> int:
    """The number of an own file, or -1."""
    stem, dot, kind = name.partition(".")
    if not dot or kind != "msg" or not stem.isascii() or not stem.isdigit():
        return -1
    return int(stem)
