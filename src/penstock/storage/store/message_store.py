"""MessageStore: stores each body once, however many queues hold its message.

RabbitMQ's message store keeps a large or widely routed body once and counts the queues that hold
it. This store does the same without RabbitMQ's index row in RAM for each body. The *address* of a
body is (file number, id). There are two classes of size:

    <n>.rdq, <n>.hint     append files, sealed at ``file_bytes_max`` (formats: ``store_file.py``)
    <bin>/<n>.msg         one file for each body of at least ``own_file_from`` bytes, and for each
                          body that was spooled: ``file_queue_backing.py``. Bit 31 of the file
                          number is set in their addresses.

RAM: one bit for each body, and one byte in files that have a shared body; some hundred bytes for
each file. Each append file answers for a range lo..hi of file numbers. RAM holds these ranges
sorted and disjoint, so a bisection finds the file of an address. New files have the highest
number. ``message_store_gc.py`` replaces files k..m by one file that answers for all their numbers,
so addresses do not change.

Tables. A sealed file's table (id -> place) is its hint. RAM holds only the first id of each block
of 256 entries, 8 bytes for each block, and reads them when the file is first asked for a body. A
lookup is a bisection in RAM, one pread of a block, and a bisection in the block. The blocks used
last are cached (``cache_bytes``), and so are the handles of the files read last (``HANDLES_MAX``).

Counts. A body stays while it has references or its file has an *owner*, an unfinished transaction.
``write`` and ``ref`` count in the same step that logs the record which names the body, so the
counts are always those of the last assigned LSN. A body may get references again until its file
leaves RAM at a cut. To move a reference, add the new one before you remove the old one.

The cut. ``cut`` raises the epoch and does nothing else. A file with an older epoch has not changed
since the cut. The first change of a file copies its state and sets the new epoch; a new file starts
with the new epoch. So until ``capture``, a file's state at the cut is the copy if there is one,
else the present state if its epoch is older; else the file did not exist. Sealing is not a change:
the counts stay the same, in the order of the final table.

Recovery. ``restore`` takes the states of the checkpoint. Then ``has`` is asked for the bodies that
the log names, and the replay calls ``ref`` and ``unref``. Counts come from checkpoint and log
alone, never from the files [1]. A file in the directory is one of

    counted and sealed         its hint is opened, or made again; it was synced before the manifest
    counted, not sealed        scanned: everything up to the counted end must be there; then a tail
    made after the cut         (number >= next_file, not counted) scanned; all of it is a tail
    made by combining since    (its range is not its own number) ignored: the files that it replaces
                               are still counted and still there [6]
    anything else              an orphan: unfinished, or dead and not unlinked yet

Files that are scanned are synced and dropped from the page cache first, because after a failed sync
the cache shows bytes that the disk does not have [8]. Nothing is appended to a file whose tail may
be torn: the next checkpoint seals it. Recovery writes nothing, so a store can be inspected. A body
is dead until the checkpoint or a log record counts it, so a torn or old body does no harm [1].

Invariants
  * Nothing that the current manifest, or a record after its cut, names is changed or unlinked [6].
    Dead and replaced files leave RAM at a cut, and the disk when the checkpoint is CURRENT.
  * A manifest holds the counts exactly as of its cut, although traffic goes on. * Written files are
  registered as unsynced (``store_sync.py``) before ``write`` returns, so a later
    sync op covers every body that a record may name [2].
  * ``read`` returns a body only if its length, id and checksum are those that were written. Headers
    are verified when a file is opened, blocks of a hint when they are read. A file in the place of
    another fails at its header, a misdirected block at its checksum.

Failure: a failed ``write`` raises its OSError and changes nothing, the length of the file included.
Damage is a CorruptionError with path and position; where work can go on it is collected for
``take_damage``. If a hint does not verify, a scan of its file gives the table, which stays in RAM
until the store seals the file again; if the scan finds another number of entries, the places of
entries are not certain, and that is a CorruptionError. After a failed sync the store writes nothing
more (StoppedError) [10]. A transient store (``persistent=False``) works the same without syncs; its
directory is emptied at start.
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from typing import Final

from penstock.errors import (
    CorruptionError,
    OptionError,
    StorageError,
    SyncFailedError,
    VersionError,
)
from penstock.message import QueuedMessage
from penstock.storage.files.filesystem import File, FileSystem
from penstock.storage.store.file_queue_backing import SPOOL_BYTES, FileQueueBacking, Spool
from penstock.storage.store.store_file import (
    BLOCK_BYTES,
    BLOCK_ENTRIES,
    BODY_BYTES_MAX,
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    HINT_HEADER_BYTES,
    INDEX_BLOCK,
    OWN_FILE,
    RECORD_BYTES,
    FileState,
    OwnState,
    SealedWriter,
    StoredBody,
    StoreFile,
    StoreRecord,
    StoreScan,
    begin_record,
    block_count,
    block_offset,
    create_file,
    decode_header,
    decode_hint_header,
    encode_header,
    encode_hint,
    encode_record,
    find_entry,
    hint_bytes,
    make_directory,
    record_fault,
    record_seed,
    verified_block,
    write_hint,
)
from penstock.storage.store.store_sync import SyncOp, Unsynced, UnsyncedFile

FILE_BYTES_MAX: Final = 16 << 20
OWN_FILE_FROM: Final = 4 << 20
CACHE_BYTES: Final = 4 << 20
HANDLES_MAX: Final = 64


Place = tuple[int, int, int]
"""(place in the table, position of the record, bytes of the body); the place is -1 for none."""


class MessageStore:
    """The bodies of one vhost. Call everything from the owner's thread, except a SyncOp.

    files: the append files, by range. current: the one that is appended to. next_file: the number
    of the next append file.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        vhost: int,
        *,
        persistent: bool,
        file_bytes_max: int = FILE_BYTES_MAX,
        own_file_from: int = OWN_FILE_FROM,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Create the directory ``path``; ``restore`` loads files that are in it.

        file_bytes_max: an append file is sealed before it grows above this (below 4 GiB).
        own_file_from: a body of this many bytes gets a file of its own (at most 16 MiB).
        cache_bytes: RAM for tables of sealed files. Raises NotAStoreError, OptionError, OSError.
        """
        if not 0 < own_file_from <= BODY_BYTES_MAX + 1:
            raise OptionError("own_file_from", own_file_from, f"1..{BODY_BYTES_MAX + 1}")
        if not 0 < file_bytes_max < 1 << 32:
            raise OptionError("file_bytes_max", file_bytes_max, f"1..{(1 << 32) - 1}")
        make_directory(fs, path)
        self.fs: FileSystem = fs
        self.path: str = path
        self.vhost: int = vhost
        self.persistent: bool = persistent
        self.file_bytes_max: int = file_bytes_max
        self.own_file_from: int = own_file_from
        self.unsynced: Unsynced = Unsynced(fs, persistent=persistent)
        self.tables: StoreTables = StoreTables(fs, path, vhost, self.unsynced, cache_bytes)
        self.own_files: FileQueueBacking = FileQueueBacking(
            fs, path, vhost, persistent=persistent, unsynced=self.unsynced
        )
        self.files: list[StoreFile] = []
        self.current: StoreFile | None = None
        self.next_file: int = 1
        self._los: list[int] = []  # lo of each file
        self._last: StoreFile | None = None  # the file that was looked up last
        self._writing: UnsyncedFile | None = None  # the handle of the current file
        self._seed: int = record_seed(vhost)
        self._epoch: int = 0  # of the last cut
        self._is_cutting: bool = False  # between a cut and its capture
        self._captured: list[FileState] = []  # states of files that changed since the cut
        self._replaced: list[str] = []  # paths of files that were combined since the last cut
        self._leaving: list[str] = []  # paths for take_dead
        self._written_bytes: int = 0  # of bodies in append files, since the start
        self._released_bytes: int = 0
        self._orphans: list[str] = []  # paths that restore found and that belong to nothing
        # Bodies that could not be read to their end, since the start: id -> what and where.
        self._unreadable: dict[int, str] = {}

    # ---- bodies ----------------------------------------------------------------------------

    def write(self, id: int, body: bytes, refs: int) -> int:
        """Write a body with ``refs`` references. Return the file number of its address.

        With 0 references the body is removed at the next cut unless it gets a reference or an owner
        before. A body that is in the current file already is not written again. Raises OSError
        (nothing changed), StoppedError after a failed sync.
        """
        if self.unsynced.failed is not None:
            self.unsynced.check()
        size = len(body)
        if size >= self.own_file_from:
            return self.own_files.write(id, body, refs)
        file = self.current
        if file is not None:
            if file.find(id) >= 0:
                return self._write_again(file, id, size, refs)
            end = HEADER_BYTES + file.total_bytes
            if end + RECORD_BYTES + size > self.file_bytes_max and file.total_bytes:
                self._seal_current(file)
                file = None
        if file is None:
            file = self._open_current()
        writing = self._writing
        assert writing is not None, "a current file is open"
        self._append(writing, HEADER_BYTES + file.total_bytes, encode_record(self._seed, id, body))
        self.unsynced.mark(writing)
        if self._is_cutting and file.epoch != self._epoch:
            self._keep_state(file)
        place = file.append(id, size)
        if refs:
            file.counts.ref(place, RECORD_BYTES + size, refs)
        self._written_bytes += size
        return file.number

    def write_sealed(self, items: list[tuple[int, bytes, int]]) -> int:
        """Write one new sealed file with these (id, body, references). Return its number.

        A checkpoint puts the bodies of its sections there. ``capture`` does not include this file,
        because it is made after the cut; ``state_of`` does. Raises OSError, and leaves no file.
        """
        self.unsynced.check()
        assert items, "a file of no bodies"
        number = self.take_number()
        writer = SealedWriter(self.fs, self.path, self.vhost, number, number, number)
        ordered = sorted(items)
        try:
            for id, body, _ in ordered:
                writer.add(id, body)
            file = writer.finish()
        except OSError:
            writer.abandon()
            raise
        for place, (_, body, refs) in enumerate(ordered):
            if refs:
                file.counts.ref(place, RECORD_BYTES + len(body), refs)
            self._written_bytes += len(body)
        writer.hand_over(self.unsynced)
        self.unsynced.mark_directory(self.path)
        self._add(file)
        return number

    def spool(self, id: int) -> Spool:
        """Begin a body that arrives in pieces: ``write`` each piece, then ``finish`` or ``abort``.

        ``finish`` returns the file number; the body then needs a reference or an owner.
        """
        return self.own_files.spool(id)

    def read(self, file: int, id: int) -> bytes:
        """Return the body, alive or not, while its file is there.

        Raises CorruptionError if it is missing or does not verify; OSError.
        """
        if file & OWN_FILE:
            return self.own_files.read(file, id)
        found, _, offset, size = self._find(file, id)
        return self.tables.read(found, id, offset, size)

    def open_body(self, file: int, id: int) -> StoredBody:
        """Return the body, alive or not, for reading in pieces. It can be read to its end even if
        its file is combined or deleted. The caller closes it.

        Raises CorruptionError if the body is missing, its header does not verify, or an earlier
        read of it failed; OSError.
        """
        why = self._unreadable.get(id)
        if why is not None:
            raise CorruptionError(self.file_path(file), 0, f"body {id} was not readable: {why}")
        if file & OWN_FILE:
            body = self.own_files.open_body(file, id)
        else:
            found, _, offset, size = self._find(file, id)
            body = self.tables.open_body(found, id, offset, size)
        body.faults = self._unreadable
        return body

    def record_of(self, file: int, id: int) -> StoreRecord | None:
        """Return where `read_records` finds the body, in any thread; None for a body that has a
        file of its own. The file may be combined with others and deleted meanwhile: then the body
        is not found there any more. Raises CorruptionError if it is missing; OSError."""
        if file & OWN_FILE:
            return None
        found, _, offset, size = self._find(file, id)
        path = self.tables.rdq_path(found.number)
        header = encode_header(self.vhost, found.number, found.lo, found.hi)
        return StoreRecord(path, header, offset, id, size, self._seed)

    def has(self, file: int, id: int) -> bool:
        """Return whether the body is there, whole and verified, alive or not."""
        try:
            self.read(file, id)
        except CorruptionError:
            return False
        return True

    def refs(self, file: int, id: int) -> int:
        """Return the references of the body; 0 if it is dead or missing."""
        if file & OWN_FILE:
            return self.own_files.refs(file, id)
        found = self.file_of(file)
        if found is None:
            return 0
        place = self.tables.find(found, id)[0]
        return found.counts.refs(place) if place >= 0 else 0

    def ref(self, file: int, id: int, n: int = 1) -> None:
        """Add ``n`` references. Raises CorruptionError if the body is missing."""
        if file & OWN_FILE:
            self.own_files.ref(file, id, n)
            return
        found, place, _, size = self._find(file, id)
        if self._is_cutting and found.epoch != self._epoch:
            self._keep_state(found)
        found.counts.ref(place, RECORD_BYTES + size, n)

    def unref(self, file: int, id: int, n: int = 1) -> bool:
        """Remove ``n`` references. Return True if the body is dead now.

        Raises CorruptionError if it is missing, StorageError if it had fewer.
        """
        if file & OWN_FILE:
            return self.own_files.unref(file, id, n)
        found, place, _, size = self._find(file, id)
        if self._is_cutting and found.epoch != self._epoch:
            self._keep_state(found)
        try:
            is_dead = found.counts.unref(place, RECORD_BYTES + size, n)
        except StorageError as error:
            path = self.tables.rdq_path(found.number)
            raise StorageError(f"{path}: body {id}: {error}") from None
        if is_dead:
            self._released_bytes += size
        return is_dead

    def own(self, file: int, id: int) -> None:
        """Give the body to an unfinished transaction: its file is neither combined nor deleted,
        although nothing refers to it. Each ``own`` needs a ``disown``."""
        if file & OWN_FILE:
            self.own_files.own(file, id)
        else:
            self._find(file, id)[0].owned += 1

    def disown(self, file: int, id: int) -> None:
        """End the ownership of a transaction. A commit adds the references before."""
        if file & OWN_FILE:
            self.own_files.disown(file, id)
            return
        found = self._find(file, id)[0]
        assert found.owned > 0, "disown without own"
        found.owned -= 1

    def file_path(self, file: int) -> str:
        """Return the path of the file that answers for number ``file``, or would."""
        if file & OWN_FILE:
            return self.own_files.file_path(file)
        found = self.file_of(file)
        return self.tables.rdq_path(file if found is None else found.number)

    def file_of(self, number: int) -> StoreFile | None:
        """Return the append file that answers for ``number``."""
        last = self._last
        if last is not None and last.lo <= number <= last.hi:
            return last
        i = bisect_right(self._los, number) - 1
        if i < 0 or self.files[i].hi < number:
            return None
        self._last = self.files[i]
        return self.files[i]

    # ---- sync ------------------------------------------------------------------------------

    def has_unsynced(self) -> bool:
        """Return whether anything was written since the last sync; False for a transient store."""
        return self.unsynced.has_any()

    def take_unsynced(self) -> SyncOp:
        """Return an op that makes everything written so far durable, names included. Call it in any
        thread, also beside other ops, then call ``synced`` with its result. It raises
        SyncFailedError, which stops the store [10]."""
        return self.unsynced.take()

    def synced(self, result: object) -> None:
        """Note the result of an op. What was written after the op was taken stays unsynced."""
        assert isinstance(result, int), "a sync op returns its generation"
        self.unsynced.synced(result)

    # ---- checkpoints -----------------------------------------------------------------------

    def cut(self, epoch: int) -> None:
        """Mark the instant of a checkpoint. ``epoch`` is higher than at the cut before."""
        assert epoch > self._epoch, "epochs rise"
        self._epoch = epoch
        self._is_cutting = True
        self._captured = []
        self._leaving += self._replaced
        self._replaced = []
        self.own_files.cut()

    def take_dead(self) -> list[str]:
        """Remove from RAM the files that held nothing at the cut or were replaced before it. Return
        their paths; the caller unlinks them once the checkpoint is CURRENT [6]."""
        paths, self._leaving = self._leaving, []
        for file in [file for file in self.files if file.is_dead()]:
            # A file of this epoch was alive at the cut, or is younger.
            if file.epoch != self._epoch and file is not self.current:
                self._remove(file)
                paths += self._paths(file)
        return paths + self.own_files.take_dead()

    def retire_dead(self) -> None:
        """If no body of the current file is alive, stop appending to it, so that the next cut
        removes it; the next body begins another file. For a caller that needs the room."""
        file, writing = self.current, self._writing
        if file is not None and writing is not None and file.total_bytes and file.is_dead():
            self.current = None
            self._writing = None
            self.unsynced.finish(writing)

    def dead_bytes(self) -> int:
        """Return the bytes of the current file if no body in it is alive, else 0."""
        file = self.current
        return file.total_bytes if file is not None and file.is_dead() else 0

    def has_dead(self) -> bool:
        """Return whether a checkpoint would free append files."""
        if self._replaced or self._leaving:
            return True
        return any(file.is_dead() and file is not self.current for file in self.files)

    def drop_dead(self) -> list[str]:
        """Remove from RAM all files of a transient store that hold nothing, the current file
        included. Return their paths, to be unlinked at once: no manifest names them."""
        assert not self.persistent, "[6]"
        self.retire_dead()
        self.own_files.cut()
        paths, self._replaced, self._leaving = self._replaced + self._leaving, [], []
        for file in [file for file in self.files if file.is_dead() and file is not self.current]:
            self._remove(file)
            paths += self._paths(file)
        paths += self.own_files.take_dead()
        self.own_files.capture()
        return paths

    def put_back_dead(self, paths: list[str]) -> None:
        """Let the next ``take_dead`` return these paths again: the checkpoint was given up."""
        self._leaving += paths

    def capture(self) -> list[FileState]:
        """Return the states of all files as of the cut, that of the own files last. Once per cut.

        Seals files that recovery found unsealed, so take a sync op after this call and finish it
        before you write the manifest. Raises OSError; the call may then be repeated.
        """
        for file in self.files:
            if not file.is_sealed and file is not self.current:
                self.tables.seal(file)
        states = self._captured
        states += [self._state(file) for file in self.files if file.epoch != self._epoch]
        self._captured = []
        self._is_cutting = False
        own = FileState(OWN_FILE, OWN_FILE, 0xFFFFFFFF)
        own.own = self.own_files.capture()
        states.append(own)
        return states

    def state_of(self, file: int) -> FileState:
        """Return the present state of the append file that answers for number ``file``."""
        found = self.file_of(file)
        if found is None:
            raise StorageError(f"{self.path}: no file answers for number {file}")
        return self._state(found)

    # ---- recovery --------------------------------------------------------------------------

    def restore(self, states: list[bytes], next_file: int, next_own_file: int) -> None:
        """Load what a checkpoint held; the replay of the log follows.

        states: of ``FileState.encode``. next_file, next_own_file: as of the cut. Files that the
        checkpoint does not count are synced and read again from the disk [8]. Writes nothing.
        Raises CorruptionError, VersionError, SyncFailedError, OSError.
        """
        assert not self.files, "restore is the first call"
        try:
            decoded = [FileState.decode(data) for data in states]
        except ValueError as error:
            raise CorruptionError(self.path, 0, f"states in the checkpoint: {error}") from error
        own = OwnState()
        for state in decoded:
            if state.own is not None:
                own = state.own
        self.files, self.next_file, self._orphans = _load_files(self.tables, decoded, next_file)
        self._los = [file.lo for file in self.files]
        self.own_files.restore(own, next_own_file)
        self.unsynced.mark_directory(self.path)

    def forget_unknown(self) -> list[str]:
        """Return the paths that ``restore`` found and that belong to nothing: leftovers of a crash.
        Unlink them when the checkpoint that ends recovery is CURRENT. Files that lose their last
        reference in the replay are returned by ``take_dead``."""
        paths, self._orphans = self._orphans, []
        return paths

    def take_damage(self) -> list[CorruptionError]:
        """Return the damage found since the last call that stopped nothing."""
        found = self.tables.damage + self.own_files.damage
        self.tables.damage = []
        self.own_files.damage = []
        return found

    def take_notes(self) -> list[str]:
        """Return what was found since the last call and is not damage."""
        found = self.tables.notes
        self.tables.notes = []
        return found

    # ---- measures --------------------------------------------------------------------------

    @property
    def next_own_file(self) -> int:
        """Number, without bit 31, of the next own file."""
        return self.own_files.next_number

    @property
    def live_bytes(self) -> int:
        """Bytes of records and own bodies that have a reference."""
        return sum([file.counts.valid_bytes for file in self.files]) + self.own_files.live_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all records, dead ones included, and of own bodies that are alive."""
        return sum([file.total_bytes for file in self.files]) + self.own_files.live_bytes

    @property
    def live_count(self) -> int:
        """Bodies that have a reference."""
        return sum([file.counts.live_count for file in self.files]) + self.own_files.live_count

    @property
    def written_bytes(self) -> int:
        """Bytes of bodies written since the start."""
        return self._written_bytes + self.own_files.written_bytes

    @property
    def released_bytes(self) -> int:
        """Bytes of bodies that died since the start."""
        return self._released_bytes + self.own_files.released_bytes

    def close(self) -> None:
        """Close all handles without syncing. No sync op may be in flight."""
        self.tables.close()
        writing = self._writing
        if writing is not None and writing.file is not None:
            writing.file.close()
            writing.file = None
        self.unsynced.close()

    # ---- combining (message_store_gc.py) ---------------------------------------------------

    def take_number(self) -> int:
        """Return a number that no file has or will have."""
        number = self.next_file
        self.next_file = number + 1
        return number

    def replace(self, members: list[StoreFile], file: StoreFile, sources: "array[int]") -> bool:
        """Put ``file`` in the place of ``members``, neighbours whose live bodies it holds.

        sources: four numbers for each body of a member: its place in ``file``, the bytes of its
        record, the index of the member, its place there. The new counts are the present ones,
        whatever died meanwhile; if two members hold one body, its counts add up.
        Returns False and changes nothing if a body is alive by now that ``file`` does not hold.
        """
        counts = file.counts
        alive = 0
        for at in range(0, len(sources), 4):
            refs = members[sources[at + 2]].counts.refs(sources[at + 3])
            if refs:
                alive += 1
                counts.ref(sources[at], sources[at + 1], refs)
        if alive != sum([member.counts.live_count for member in members]):
            counts.set_size(counts.count)
            return False
        for member in members:
            if self._is_cutting and member.epoch != self._epoch:
                self._keep_state(member)
            self._remove(member)
            self._replaced += self._paths(member)
        self._add(file)
        return True

    # ---- helpers ---------------------------------------------------------------------------

    def _find(self, file: int, id: int) -> tuple[StoreFile, int, int, int]:
        """Return (file, place of the entry, position of the record, bytes of the body). Raises
        CorruptionError."""
        found = self.file_of(file)
        if found is None:
            path = self.tables.rdq_path(file)
            raise CorruptionError(path, 0, f"body {id}: no file has this number")
        place, offset, size = self.tables.find(found, id)
        if place < 0:
            path = self.tables.rdq_path(found.number)
            raise CorruptionError(path, 0, f"body {id} of file {file} is not in it")
        return found, place, offset, size

    def _paths(self, file: StoreFile) -> list[str]:
        """Return the file's paths that exist: one that recovery found may have no hint yet."""
        hint = self.tables.hint_path(file.number)
        has_hint = file.is_sealed or self.fs.exists(hint)
        return [self.tables.rdq_path(file.number), *([hint] if has_hint else [])]

    def _keep_state(self, file: StoreFile) -> None:
        """Keep the state of a file that is about to change for the first time since the cut."""
        self._captured.append(self._state(file))
        file.epoch = self._epoch

    def _state(self, file: StoreFile) -> FileState:
        state = file.state()
        state.find = TableFinder(self.tables, file).find
        return state

    def _add(self, file: StoreFile) -> None:
        file.epoch = self._epoch
        i = bisect_right(self._los, file.lo)
        self._los.insert(i, file.lo)
        self.files.insert(i, file)

    def _remove(self, file: StoreFile) -> None:
        i = bisect_right(self._los, file.lo) - 1
        assert self.files[i] is file, "ranges are disjoint"
        del self._los[i]
        del self.files[i]
        self._last = None
        self.tables.forget(file.number)

    def _open_current(self) -> StoreFile:
        """Create a new current file. Raises OSError, after which there is none."""
        number = self.next_file
        path = self.tables.rdq_path(number)
        handle = create_file(self.fs, path, encode_header(self.vhost, number, number, number))
        self.next_file = number + 1
        writing = UnsyncedFile(path, handle)
        self.unsynced.mark(writing)
        self.unsynced.mark_directory(self.path)
        self._writing = writing
        file = StoreFile(number, number, number)
        self.current = file
        self._add(file)
        return file

    def _seal_current(self, file: StoreFile) -> None:
        """Write the hint of the current file; then there is no current file. Raises OSError."""
        self.tables.seal(file)
        writing = self._writing
        assert writing is not None, "a current file is open"
        self.current = None
        self._writing = None
        self.unsynced.finish(writing)

    def _append(self, writing: UnsyncedFile, offset: int, record: bytes) -> None:
        handle = writing.file
        assert handle is not None, "a file that is written is open"
        try:
            handle.pwrite(record, offset)
        except OSError:
            try:
                handle.truncate(offset)  # so that no scan finds part of the record
            except OSError:
                pass  # it is after the end; the next record overwrites it
            raise

    def _write_again(self, file: StoreFile, id: int, size: int, refs: int) -> int:
        """Count a body that is in the current file: it came back to RAM and leaves it again."""
        found = self.tables.find(file, id)[2]
        assert found == size, f"body {id} has {size} bytes, and once had {found}"
        if refs:
            self.ref(file.number, id, refs)
        return file.number


# ---- tables: from (file, id) to a record ---------------------------------------------------------


class StoreTables:
    """Reads the append files of one store, in the owner's thread. It never writes but in ``seal``.

    damage, notes: what was found; the store takes them.
    """

    def __init__(
        self, fs: FileSystem, directory: str, vhost: int, unsynced: Unsynced, cache_bytes: int
    ) -> None:
        self.fs: FileSystem = fs
        self.directory: str = directory
        self.vhost: int = vhost
        self.unsynced: Unsynced = unsynced
        self.damage: list[CorruptionError] = []
        self.notes: list[str] = []
        self._seed: int = record_seed(vhost)
        self._blocks_max: int = max(cache_bytes // BLOCK_BYTES, 1)
        self._blocks: dict[int, bytes] = {}  # file number << 32 | block; the latest used last
        self._rdqs: dict[int, File] = {}  # by file number; the latest used last
        self._hints: dict[int, File] = {}

    def rdq_path(self, number: int) -> str:
        return f"{self.directory}/{number}.rdq"

    def hint_path(self, number: int) -> str:
        return f"{self.directory}/{number}.hint"

    def find(self, file: StoreFile, id: int) -> Place:
        """Return where body ``id`` is in ``file``. Raises CorruptionError, OSError."""
        if file.is_sealed:
            try:
                return self._find_sealed(file, id)
            except (CorruptionError, FileNotFoundError) as error:
                self.rescan(file, str(error))
        i = file.find(id)
        if i < 0:
            return (-1, 0, 0)
        _, offset, size = ENTRY.unpack_from(file.entries, i * ENTRY_BYTES)
        return (i, offset, size)

    def read(self, file: StoreFile, id: int, offset: int, size: int) -> bytes:
        """Return the body of the record at ``offset``. Raises CorruptionError, OSError."""
        handle = self._rdqs.get(file.number)
        if handle is None:
            handle = self._open_rdq(file)
        record = handle.pread(RECORD_BYTES + size, offset)
        fault = record_fault(self._seed, record, id)
        if fault:
            raise CorruptionError(handle.path, offset, fault)
        return record[RECORD_BYTES:]

    def open_body(self, file: StoreFile, id: int, offset: int, size: int) -> StoredBody:
        """Return the body of the record at ``offset`` for reading in pieces, with its own handle.
        Raises CorruptionError if the file is missing or a header is damaged; OSError."""
        path = self.rdq_path(file.number)
        try:
            handle = self.fs.open(path)
        except FileNotFoundError:
            raise CorruptionError(path, 0, "the store file is missing") from None
        try:
            self._check_rdq(file, path, handle.pread(HEADER_BYTES, 0))
            head = handle.pread(RECORD_BYTES, offset)
            fault, crc, expected = begin_record(self._seed, head, id, size)
            if fault:
                raise CorruptionError(path, offset, fault)
        except BaseException:
            handle.close()
            raise
        return StoredBody(
            handle, id, offset + RECORD_BYTES, size, crc=crc, suffix=b"", expected=expected
        )

    def ends(self, file: StoreFile) -> list[int]:
        """Return where the record of each entry ends. Raises CorruptionError."""
        table = bytes(file.entries)
        if file.is_sealed:
            path = self.hint_path(file.number)
            table = read_table(self.fs, path, self.vhost, file.number)
        return [offset + RECORD_BYTES + size for _, offset, size in ENTRY.iter_unpack(table)]

    def check_hint(self, file: StoreFile) -> None:
        """Check that the hint's header is that of ``file``; if it is not, scan the file."""
        path = self.hint_path(file.number)
        try:
            length = self.fs.size(path)
            with closing(self.fs.open(path)) as handle:
                head = handle.pread(HINT_HEADER_BYTES, 0)
            self._check_hint(file, path, head, length)
        except (CorruptionError, FileNotFoundError) as error:
            self.rescan(file, str(error))

    def rescan(self, file: StoreFile, reason: str) -> None:
        """Take the table of a sealed file from a scan, because its hint is lost.

        Raises CorruptionError if the scan does not find the entries that were sealed.
        """
        path = self.rdq_path(file.number)
        self.forget(file.number)
        self.damage.append(CorruptionError(self.hint_path(file.number), 0, f"hint lost: {reason}"))
        scanned = StoreFile(file.number, file.lo, file.hi)
        end = HEADER_BYTES + file.total_bytes
        with closing(self.fs.open(path)) as handle:
            head = handle.pread(HEADER_BYTES, 0)
            self._check_rdq(file, path, head)
            scan = StoreScan(handle, self.vhost, end)
            scan.run(scanned, end)
        self.damage += scan.damage
        if scan.damage:
            file.is_damaged = True
        if scanned.counts.count != file.counts.count:
            raise CorruptionError(
                path, HEADER_BYTES, f"its hint is damaged, and a scan finds "
                f"{scanned.counts.count} of {file.counts.count} records"
            )  # fmt: skip
        file.unseal(scanned)

    def seal(self, file: StoreFile) -> None:
        """Write the hint of ``file``, to be synced later, and drop the table from RAM.

        Raises OSError; then nothing has changed.
        """
        table, order = file.sorted_table()
        hint = encode_hint(self.vhost, file.number, file.lo, file.hi, table, file.total_bytes)
        written = write_hint(self.fs, self.hint_path(file.number), hint)
        self.unsynced.mark(written)
        self.unsynced.finish(written)
        self.unsynced.mark_directory(self.directory)
        file.seal(order)

    def forget(self, number: int) -> None:
        """Drop what is cached of a file."""
        for handles in (self._rdqs, self._hints):
            handle = handles.pop(number, None)
            if handle is not None:
                handle.close()
        for key in [key for key in self._blocks if key >> 32 == number]:
            del self._blocks[key]

    def close(self) -> None:
        for handles in (self._rdqs, self._hints):
            for handle in handles.values():
                handle.close()
            handles.clear()
        self._blocks.clear()

    # ---- the hint --------------------------------------------------------------------------

    def _find_sealed(self, file: StoreFile, id: int) -> Place:
        first_ids = file.first_ids
        if first_ids is None:
            first_ids = self._read_first_ids(file)
            file.first_ids = first_ids
        number = bisect_right(first_ids, id) - 1
        if number < 0:
            return (-1, 0, 0)
        block = self._block(file, number)
        at = find_entry(block, id)
        if at < 0:
            return (-1, 0, 0)
        _, offset, size = ENTRY.unpack_from(block, at)
        return (number * BLOCK_ENTRIES + at // ENTRY_BYTES, offset, size)

    def _block(self, file: StoreFile, number: int) -> bytes:
        """Return the entries of block ``number``, from the cache or the disk."""
        key = file.number << 32 | number
        block = self._blocks.pop(key, None)
        if block is None:
            offset = block_offset(number)
            length = min(file.counts.count - number * BLOCK_ENTRIES, BLOCK_ENTRIES) * ENTRY_BYTES
            block = self._read_checked(file, number, offset, length)
            if len(self._blocks) >= self._blocks_max:
                del self._blocks[next(iter(self._blocks))]
        self._blocks[key] = block
        return block

    def _read_first_ids(self, file: StoreFile) -> "array[int]":
        count = file.counts.count
        blocks = block_count(count)
        offset = hint_bytes(count) - 4 - 8 * blocks
        data = self._read_checked(file, INDEX_BLOCK, offset, 8 * blocks)
        return array("Q", struct.unpack(f">{blocks}Q", data))

    def _read_checked(self, file: StoreFile, block: int, offset: int, length: int) -> bytes:
        handle = self._hints.pop(file.number, None)
        if handle is None:
            handle = self._open_hint(file)
        self._hints[file.number] = handle
        piece = verified_block(
            handle.pread(length + 4, offset), length, self.vhost, file.number, block
        )
        if piece is None:
            raise CorruptionError(handle.path, offset, f"block {block} of the hint does not verify")
        return piece

    def _open_hint(self, file: StoreFile) -> File:
        self._make_room(self._hints)
        handle = self.fs.open(self.hint_path(file.number))
        try:
            head = handle.pread(HINT_HEADER_BYTES, 0)
            self._check_hint(file, handle.path, head, handle.size())
        except CorruptionError:
            handle.close()
            raise
        return handle

    def _check_hint(self, file: StoreFile, path: str, head: bytes, length: int) -> None:
        found = decode_hint_header(path, head, self.vhost, file.number)
        want = (file.lo, file.hi, file.counts.count, file.total_bytes)
        if found != want:
            raise CorruptionError(
                path, 20, f"expected range, entries and bytes {want}, found {found}"
            )
        if length != hint_bytes(file.counts.count):
            raise CorruptionError(
                path, length, f"expected {hint_bytes(file.counts.count)} bytes, found {length}"
            )

    # ---- the file --------------------------------------------------------------------------

    def _open_rdq(self, file: StoreFile) -> File:
        path = self.rdq_path(file.number)
        self._make_room(self._rdqs)
        try:
            handle = self.fs.open(path)
        except FileNotFoundError:
            raise CorruptionError(path, 0, "the store file is missing") from None
        try:
            self._check_rdq(file, path, handle.pread(HEADER_BYTES, 0))
        except CorruptionError:
            handle.close()
            raise
        self._rdqs[file.number] = handle
        return handle

    def _check_rdq(self, file: StoreFile, path: str, head: bytes) -> None:
        found = decode_header(path, head, self.vhost, file.number)
        if found != (file.lo, file.hi):
            raise CorruptionError(
                path, 20, f"expected files {file.lo}..{file.hi}, found {found[0]}..{found[1]}"
            )

    def _make_room(self, handles: dict[int, File]) -> None:
        if len(handles) >= HANDLES_MAX or (self.fs.is_short and handles):
            oldest = next(iter(handles))
            handles.pop(oldest).close()


class TableFinder:
    """``StoreTables.find`` for one file, for a state that outlives changes of the store."""

    def __init__(self, tables: StoreTables, file: StoreFile) -> None:
        self.tables: StoreTables = tables
        self.file: StoreFile = file

    def find(self, id: int) -> Place:
        return self.tables.find(self.file, id)


def read_table(fs: FileSystem, path: str, vhost: int, number: int) -> bytes:
    """Return all entries of the hint at ``path``. Raises CorruptionError, OSError.

    Uses no cache and no shared handle: combining calls it in a worker.
    """
    data = fs.read(path)
    _, _, count, _ = decode_hint_header(path, data, vhost, number)
    pieces: list[bytes] = []
    for block in range(block_count(count)):
        start = block_offset(block)
        length = min(count - block * BLOCK_ENTRIES, BLOCK_ENTRIES) * ENTRY_BYTES
        piece = verified_block(data[start : start + length + 4], length, vhost, number, block)
        if piece is None:
            raise CorruptionError(path, start, f"block {block} of the hint does not verify")
        pieces.append(piece)
    return b"".join(pieces)


# ---- recovery: from states and names to StoreFiles -----------------------------------------------


def _load_files(
    tables: StoreTables, states: list[FileState], next_file: int
) -> tuple[list[StoreFile], int, list[str]]:
    """Return (files that count or that the log may count, by range; the next free number; paths of
    orphans). Raises CorruptionError, VersionError, SyncFailedError, OSError."""
    found = [(name, *_split_name(name)) for name in tables.fs.list(tables.directory)]
    numbers = sorted({number for _, number, kind in found if kind})
    there = {number for _, number, kind in found if kind == "rdq"}
    files: list[StoreFile] = []
    for state in states:
        if state.own is None:
            file = _load_counted(tables, state, state.number in there)
            if file is not None:
                files.append(file)
    counted = {state.number for state in states}
    for number in numbers:
        if number >= next_file and number in there and number not in counted:
            file = _load_uncounted(tables, number)
            if file is not None:
                files.append(file)
    files.sort(key=lambda file: file.lo)
    for before, after in pairwise(files):
        if before.hi >= after.lo:
            raise CorruptionError(
                tables.rdq_path(after.number), 20,
                f"it answers for {after.lo}.., and file {before.number} for ..{before.hi}",
            )  # fmt: skip
    highest = max([next_file - 1, *numbers, *(state.hi for state in states if state.own is None)])
    known = {file.number for file in files}
    orphans = [
        f"{tables.directory}/{name}"
        for name, number, kind in found
        if kind and (number not in known or kind == "hint.new")
    ]
    return files, highest + 1, orphans


def _split_name(name: str) -> tuple[int, str]:
    """Return (number, "rdq" or "hint" or "hint.new"); (-1, "") for a name of another kind."""
    stem, _, kind = name.partition(".")
    if kind in ("rdq", "hint", "hint.new") and stem.isascii() and stem.isdigit():
        return int(stem), kind
    return -1, ""


def _load_counted(tables: StoreTables, state: FileState, is_there: bool) -> StoreFile | None:
    """Return the file of a state, with the counts of the checkpoint."""
    path = tables.rdq_path(state.number)
    if not is_there:
        if not state.counts.live_count:
            return None
        raise CorruptionError(
            path, 0, f"missing; the checkpoint counts {state.counts.live_count} bodies in it"
        )
    file = StoreFile(state.number, state.lo, state.hi)
    ids = state.ids
    if ids is None:
        file.forget_table()
        file.total_bytes = state.total_bytes
        file.counts = state.counts.copy()
        end = HEADER_BYTES + file.total_bytes
        length = tables.fs.size(path)
        tables.check_hint(file)
        if length < end:
            _note_cut_off(tables, file, length)
        return file
    _scan_file(tables, file, HEADER_BYTES + state.total_bytes)
    for i in range(state.counts.count):
        place, _, size = tables.find(file, ids[i])
        if place < 0:
            tables.damage.append(CorruptionError(path, 0, f"body {ids[i]} is not there"))
        else:
            file.counts.ref(place, RECORD_BYTES + size, state.counts.refs(i))
    return file


def _note_cut_off(tables: StoreTables, file: StoreFile, length: int) -> None:
    """Note that a sealed file ends too early. After a failed sync, recovery seals a file with all
    bytes that the kernel shows, and a power cut may remove those that never reached the disk. If no
    body there is alive, nothing is lost and it is a note; else it is damage."""
    path = tables.rdq_path(file.number)
    end = HEADER_BYTES + file.total_bytes
    try:
        ends = tables.ends(file)
    except CorruptionError:
        ends = []
    beyond = [place for place, stop in enumerate(ends) if stop > length]
    alive = len([place for place in beyond if file.counts.refs(place)])
    if alive or not beyond:
        text = f"cut off: expected {end} bytes; {alive} bodies that are alive are after the end"
        tables.damage.append(CorruptionError(path, length, text))
        file.is_damaged = True
    else:
        tables.notes.append(f"{path}: cut off at byte {length} of {end}; nothing after it is alive")


def _load_uncounted(tables: StoreTables, number: int) -> StoreFile | None:
    """Return a file made after the cut, all dead; None if no record can name a body of it."""
    path = tables.rdq_path(number)
    with closing(tables.fs.open(path)) as handle:
        found = _range_of(tables, handle, number)
        if found is None:  # it may have been read wrongly once
            found = _range_of(tables, handle, number)
    if found is None:
        return None  # its header was not synced, so nothing in it was
    lo, hi = found
    if not lo <= number <= hi:
        return None
    file = StoreFile(number, lo, hi)
    _scan_file(tables, file, 0)
    return file


def _range_of(tables: StoreTables, handle: File, number: int) -> tuple[int, int] | None:
    """Return (lo, hi) from the header of a file; None if that does not verify. VersionError."""
    try:
        return decode_header(handle.path, handle.pread(HEADER_BYTES, 0), tables.vhost, number)
    except VersionError:
        raise
    except CorruptionError:
        return None


def _scan_file(tables: StoreTables, file: StoreFile, durable_end: int) -> None:
    """Fill the table of ``file`` from its records on the disk, not from the page cache."""
    path = tables.rdq_path(file.number)
    with closing(tables.fs.open(path)) as handle:
        try:
            handle.sync()
            handle.drop_cache()
        except OSError as error:
            raise SyncFailedError(path, error) from error
        head = handle.pread(HEADER_BYTES, 0)
        if durable_end:
            decode_header(path, head, tables.vhost, file.number)
        scan = StoreScan(handle, tables.vhost, durable_end)
        scan.run(file)
    tables.damage += scan.damage
    if scan.damage:
        file.is_damaged = True


# ---- both stores of an engine --------------------------------------------------------------------


class CopyingBody:
    """The copying of a body to the other store. copy: a message with the body there, once `step`
    has returned True; the caller publishes or owns it in the same step."""

    def __init__(self, stores: "BodyStores", message: QueuedMessage) -> None:
        self.copy: QueuedMessage = message.copy()
        self.copy.persistent = not message.persistent
        self._disk_full: Callable[[OSError, int], Exception] = stores.disk_full
        self._from: StoredBody = stores.open(message)
        self._to: Spool = stores.spool(self.copy)

    def step(self, size: int) -> bool:
        """Copy about so many bytes; return whether that is all. DiskFullError, CorruptionError,
        OSError: there is no copy."""
        try:
            while size > 0 and self._from.left:
                piece = self._from.read(SPOOL_BYTES)
                self._to.write(piece)
                size -= len(piece)
            if self._from.left:
                return False
            self.copy.store_file = self._to.finish()
        except OSError as error:
            self.abandon()
            raise self._disk_full(error, self.copy.size) from error
        except BaseException:
            self.abandon()
            raise
        self._from.close()
        return True

    def abandon(self) -> None:
        """Delete what was copied. A second call does nothing."""
        self._to.abort()
        self._from.close()


class BodyStores:
    """The bodies of messages that are in a store: of persistent ones in one, of transient ones in
    another. disk_full(error, bytes): returns what to raise for a failed write."""

    def __init__(
        self, persistent: MessageStore, transient: MessageStore,
        disk_full: Callable[[OSError, int], Exception],
    ) -> None:  # fmt: skip
        self._persistent: MessageStore = persistent
        self._transient: MessageStore = transient
        self.disk_full: Callable[[OSError, int], Exception] = disk_full
        self._copies: dict[int, QueuedMessage] = {}  # by id: made before they are needed

    def of(self, message: QueuedMessage) -> MessageStore:
        """Return the store for the body of a message, if it is in one."""
        return self._persistent if message.persistent else self._transient

    def open(self, message: QueuedMessage) -> StoredBody:
        """Open a body, to be read in pieces even if the message is deleted meanwhile. The caller
        closes it. CorruptionError, OSError."""
        return self.of(message).open_body(message.store_file, message.id)

    def read(self, message: QueuedMessage) -> bytes:
        """Read a body. CorruptionError."""
        return self.of(message).read(message.store_file, message.id)

    def spool(self, message: QueuedMessage) -> Spool:
        """Begin to write the body of a new message, piece by piece."""
        return self.of(message).spool(message.id)

    def write(self, message: QueuedMessage, body: bytes) -> None:
        """Write a body, without a reference, for a message that `publish_spooled` publishes next.
        OSError."""
        message.store_file = self.of(message).write(message.id, body, 0)

    def own(self, message: QueuedMessage) -> None:
        """Keep a spooled body although it has no reference yet. `disown` must follow."""
        self.of(message).own(message.store_file, message.id)

    def disown(self, message: QueuedMessage) -> None:
        """End `own`: a body without a reference is deleted."""
        self.of(message).disown(message.store_file, message.id)

    def release(self, message: QueuedMessage) -> None:
        """Release one queue's reference to a transient message."""
        if message.store_file:
            self._transient.unref(message.store_file, message.id)

    def placed(self, message: QueuedMessage, *, is_persistent: bool) -> QueuedMessage:
        """Return the message, if its body is in that store; else its copy there (`keep_copy`), or
        one that is made now. The caller publishes it in the same step. DiskFullError,
        CorruptionError: there is no copy."""
        if message.persistent == is_persistent:
            return message
        known = self._copies.get(message.id)
        if known is not None and known.persistent == is_persistent:
            return known
        copying = CopyingBody(self, message)
        copying.step(message.size)
        return copying.copy

    def keep_copy(self, copy: QueuedMessage) -> None:
        """Have `placed` return this copy of the message with its id. `forget_copy` must follow."""
        self.own(copy)
        self._copies[copy.id] = copy

    def forget_copy(self, copy: QueuedMessage) -> None:
        """End `keep_copy`: a copy that was not published is deleted."""
        del self._copies[copy.id]
        self.disown(copy)
