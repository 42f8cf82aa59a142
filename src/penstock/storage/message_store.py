"""MessageStore: one copy of each body, for any number of queues.

RabbitMQ's message store keeps a large or widely routed body once and counts the queues that
have it; this is that store, without its index row per body in RAM. A body's *address* is
(file number, id). Two size classes:

    <n>.rdq, <n>.hint     append files, sealed at ``file_bytes_max``: ``append_files.py``
    <bin>/<n>.msg         bodies from ``own_file_from`` on, and spooled ones, one file each:
                          ``file_queue_backing.py``; bit 31 of the file number tells them

RAM per body: one bit, one byte more in files with shared bodies; per file some hundred
bytes. RAM holds disjoint ranges of file numbers, so that combining (``message_store_gc.py``)
can replace files k..m by one that answers for all their numbers, and no address changes.

Counts. A body lives while it has references or its file an *owner*, an unfinished
transaction. ``write`` and ``ref`` count at once, in the step that logs the record which
names the body, so counts always mean: as of the last assigned LSN. A body may be given
references again until its file leaves RAM at a cut; give before you take, in a move.

Invariants
  * Nothing that the current manifest or a record after its cut names is changed or unlinked
    [6]: dead and replaced files leave RAM at a cut, and disk when the checkpoint is CURRENT.
  * A manifest holds the counts exactly as of its cut, though traffic goes on: ``cut`` is
    O(1); from then on the first change to a file keeps a copy of its state; ``capture`` adds
    the states of the files that did not change. Files made after the cut are not in it.
  * Written files are registered as unsynced (``store_sync.py``) before ``write`` returns, so
    a sync op taken later covers every body that a record may name [2].
  * A body answered by ``read`` has the length, id and checksum that were written.

Recovery: ``restore`` with the states of the checkpoint; then ``has`` for the bodies that the
log names, ``ref`` and ``unref`` as it is replayed. The counts come from checkpoint and log
alone, never from the files [1].

Failure: a failed ``write`` is its OSError and changed nothing. Damage is a CorruptionError
with path and position, on read, or collected in ``take_damage`` where one may go on. After a
failed sync nothing is written any more (StoppedError) [10]. A transient store
(``persistent=False``) is the same without syncs; its directory is wiped at start.
"""

from typing import Final

from penstock.errors import CorruptionError, OptionError
from penstock.storage.append_files import AppendFiles
from penstock.storage.file_queue_backing import FileQueueBacking, Spool
from penstock.storage.filesystem import FileSystem
from penstock.storage.queue_backing import Address, QueueBacking
from penstock.storage.store_file import BODY_BYTES_MAX, make_directory
from penstock.storage.store_state import OWN_FILE, FileState, OwnState
from penstock.storage.store_sync import SyncOp, Unsynced
from penstock.storage.stored_body import StoredBody

__all__ = ["OWN_FILE", "FileState", "MessageStore", "Spool"]

FILE_BYTES_MAX: Final = 16 << 20
OWN_FILE_FROM: Final = 4 << 20
CACHE_BYTES: Final = 4 << 20


class MessageStore(QueueBacking):
    """The bodies of one vhost. Everything belongs to the owner's thread but a SyncOp's call."""

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
        """Makes the directory ``path``; files in it wait for ``restore``.

        file_bytes_max: a file is sealed before it would grow beyond (below 4 GiB).
        own_file_from: bodies of this many bytes get a file of their own (at most 16 MiB).
        cache_bytes: of tables of sealed files. Raises NotAStoreError, OptionError, OSError.
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
        self.append_files: AppendFiles = AppendFiles(
            fs,
            path,
            vhost,
            unsynced=self.unsynced,
            file_bytes_max=file_bytes_max,
            cache_bytes=cache_bytes,
        )
        self.own_files: FileQueueBacking = FileQueueBacking(
            fs, path, vhost, persistent=persistent, unsynced=self.unsynced
        )
        self._orphans: list[str] = []  # paths found by restore that belong to nothing
        # Bodies that could not be read to their end, since the start: id -> what and where.
        self._unreadable: dict[int, str] = {}

    # ---- bodies ----------------------------------------------------------------------------

    def write(self, id: int, body: bytes, refs: int) -> int:
        """Write a body with ``refs`` references; the file number of its address.

        With 0 it must get a reference or an owner before the next cut, or it is gone. An id
        that is in the current file already is not written twice. Raises OSError (nothing
        changed), StoppedError after a failed sync.
        """
        if self.unsynced.failed is not None:
            self.unsynced.check()
        if len(body) >= self.own_file_from:
            return self.own_files.write(id, body, refs)
        return self.append_files.write(id, body, refs)

    def write_sealed(self, items: list[tuple[int, bytes, int]]) -> int:
        """One new sealed file with just these (id, body, references); its number.

        For the bodies of a checkpoint's sections. ``capture`` does not hold it, for it is made
        after the cut; ``state_of`` does. Raises OSError, after which there is no such file.
        """
        self.unsynced.check()
        return self.append_files.write_sealed(items)

    def spool(self, id: int) -> Spool:
        """Begin a body that comes in pieces: ``write`` each, then ``finish`` or ``abort``.

        ``finish`` answers the file number; the body then needs a reference or an owner.
        """
        return self.own_files.spool(id)

    def read(self, file: int, id: int) -> bytes:
        """The body, alive or not, as long as its file is there.

        Raises CorruptionError when it is not there or does not verify, OSError.
        """
        if file & OWN_FILE:
            return self.own_files.read(file, id)
        return self.append_files.read(file, id)

    def open_body(self, file: int, id: int) -> StoredBody:
        """The body, alive or not, to be read in pieces; it can be read to its end whatever becomes
        of the file. The caller closes it.

        Raises CorruptionError when it is not there, or its header does not verify, or somebody
        found that it cannot be read; OSError.
        """
        why = self._unreadable.get(id)
        if why is not None:
            raise CorruptionError(self.file_path(file), 0, f"body {id} was not readable: {why}")
        if file & OWN_FILE:
            body = self.own_files.open_body(file, id)
        else:
            body = self.append_files.open_body(file, id)
        body.faults = self._unreadable
        return body

    def has(self, file: int, id: int) -> bool:
        """Whether the body is there, whole and verified, alive or not."""
        try:
            self.read(file, id)
        except CorruptionError:
            return False
        return True

    def size(self, file: int, id: int) -> int:
        """Bytes of the body. Raises CorruptionError when it is not there."""
        if file & OWN_FILE:
            return self.own_files.size(file, id)
        return self.append_files.size(file, id)

    def refs(self, file: int, id: int) -> int:
        """References of the body; 0 when it is dead or not there."""
        if file & OWN_FILE:
            return self.own_files.refs(file, id)
        return self.append_files.refs(file, id)

    def ref(self, file: int, id: int, n: int = 1) -> None:
        """``n`` more references. Raises CorruptionError when the body is not there."""
        if file & OWN_FILE:
            self.own_files.ref(file, id, n)
        else:
            self.append_files.ref(file, id, n)

    def unref(self, file: int, id: int, n: int = 1) -> bool:
        """``n`` fewer references; True if the body is dead now.

        Raises CorruptionError when it is not there, StorageError when it had fewer.
        """
        if file & OWN_FILE:
            return self.own_files.unref(file, id, n)
        return self.append_files.unref(file, id, n)

    def own(self, file: int, id: int) -> None:
        """An unfinished transaction has the body: its file is neither combined nor deleted,
        though nothing refers to it. Each ``own`` needs its ``disown``."""
        if file & OWN_FILE:
            self.own_files.own(file, id)
        else:
            self.append_files.own(file, id)

    def disown(self, file: int, id: int) -> None:
        """The transaction ended. A commit gives the references first."""
        if file & OWN_FILE:
            self.own_files.disown(file, id)
        else:
            self.append_files.disown(file, id)

    def file_path(self, file: int) -> str:
        """Path of the file that answers for number ``file``, or would."""
        if file & OWN_FILE:
            return self.own_files.file_path(file)
        found = self.append_files.file_of(file)
        return self.append_files.tables.rdq_path(file if found is None else found.number)

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

    # ---- sync ------------------------------------------------------------------------------

    def has_unsynced(self) -> bool:
        """Whether anything was written since it was last synced. Never, if transient."""
        return self.unsynced.has_any()

    def take_unsynced(self) -> SyncOp:
        """An op that makes durable all that is written by now, names included. It may be called
        in any thread, beside others; ``synced(what it returned)`` is then due. It raises
        SyncFailedError, and then the store has stopped [10]."""
        return self.unsynced.take()

    def synced(self, result: object) -> None:
        """An op has returned ``result``. What was written since it was taken stays unsynced."""
        assert isinstance(result, int), "a sync op returns its generation"
        self.unsynced.synced(result)

    def sync_now(self) -> None:
        """Take, run and report a sync op here. Raises SyncFailedError."""
        self.unsynced.synced(self.unsynced.take()())

    # ---- checkpoints -----------------------------------------------------------------------

    def cut(self, epoch: int) -> None:
        """The instant of a checkpoint; ``epoch`` is higher than at the cut before."""
        self.append_files.cut(epoch)
        self.own_files.cut()

    def take_dead(self) -> list[str]:
        """After ``cut``: paths of files that held nothing then, or were replaced before. They
        leave RAM here; the caller unlinks them once the checkpoint is CURRENT [6]."""
        return self.append_files.take_dead() + self.own_files.take_dead()

    def retire_dead(self) -> None:
        """If nothing in the file that is appended to is alive, the next cut takes it as well: the
        next body begins another. For whoever needs its room more than the time of making one."""
        self.append_files.retire_current()

    def dead_bytes(self) -> int:
        """Bytes of the file that is appended to, if nothing in it is alive."""
        return self.append_files.dead_bytes()

    def has_dead(self) -> bool:
        """Whether a checkpoint would let go of append files."""
        return self.append_files.has_dead()

    def drop_dead(self) -> list[str]:
        """Of a transient store, which no manifest names: paths of all files that hold nothing now,
        the one that is appended to included. They are forgotten here and may go at once."""
        assert not self.persistent, "[6]"
        self.own_files.cut()
        paths = self.append_files.drop_dead() + self.own_files.take_dead()
        self.own_files.capture()
        return paths

    def put_back_dead(self, paths: list[str]) -> None:
        """The checkpoint was given up: the next ``take_dead`` has these paths again."""
        self.append_files.put_back_dead(paths)

    def capture(self) -> list[FileState]:
        """The states of all files as of the cut, that of the own files last. Once per cut.

        Seals what recovery found unsealed, so a sync op must be taken after it and be done
        before the manifest is written. Raises OSError, after which it may be tried again.
        """
        states = self.append_files.capture()
        own = FileState(OWN_FILE, OWN_FILE, 0xFFFFFFFF)
        own.own = self.own_files.capture()
        states.append(own)
        return states

    def state_of(self, file: int) -> FileState:
        """The present state of the append file that answers for number ``file``."""
        return self.append_files.state_of(file)

    # ---- recovery --------------------------------------------------------------------------

    def restore(self, states: list[bytes], next_file: int, next_own_file: int) -> None:
        """Begin with what a checkpoint held; the replay of the log follows.

        states: of ``FileState.encode``. next_file, next_own_file: as they were at the cut.
        Files that the checkpoint does not count are made sure to be what the disk holds [8].
        Nothing is written. Raises CorruptionError, VersionError, SyncFailedError, OSError.
        """
        try:
            decoded = [FileState.decode(data) for data in states]
        except ValueError as error:
            raise CorruptionError(self.path, 0, f"states in the checkpoint: {error}") from error
        own = OwnState()
        for state in decoded:
            if state.own is not None:
                own = state.own
        self._orphans = self.append_files.restore(decoded, next_file)
        self.own_files.restore(own, next_own_file)
        self.unsynced.mark_directory(self.path)

    def forget_unknown(self) -> list[str]:
        """Paths that ``restore`` found and that belong to nothing: leftovers of a crash, to be
        unlinked when the checkpoint that ends recovery is CURRENT. What only the replay left
        without a reference goes the way of all dead files (``take_dead``)."""
        paths, self._orphans = self._orphans, []
        return paths

    def take_damage(self) -> list[CorruptionError]:
        """What was found damaged since the last call and did not stop anything."""
        tables = self.append_files.tables
        found = tables.damage + self.own_files.damage
        tables.damage = []
        self.own_files.damage = []
        return found

    def take_notes(self) -> list[str]:
        """What was found and is no damage, since the last call."""
        found = self.append_files.tables.notes
        self.append_files.tables.notes = []
        return found

    @property
    def faults(self) -> list[str]:
        """The same as text, not taken."""
        return [str(error) for error in self.append_files.tables.damage + self.own_files.damage]

    # ---- measures --------------------------------------------------------------------------

    @property
    def next_file(self) -> int:
        """Number of the next append file."""
        return self.append_files.next_file

    @property
    def next_own_file(self) -> int:
        """Number, without bit 31, of the next own file."""
        return self.own_files.next_number

    @property
    def live_bytes(self) -> int:
        """Bytes of records and of own bodies that have a reference."""
        files = self.append_files.files
        return sum([file.counts.valid_bytes for file in files]) + self.own_files.live_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of all records, dead ones included, and of own bodies that are alive."""
        files = self.append_files.files
        return sum([file.total_bytes for file in files]) + self.own_files.live_bytes

    @property
    def live_count(self) -> int:
        """Bodies that have a reference."""
        files = self.append_files.files
        return sum([file.counts.live_count for file in files]) + self.own_files.live_count

    @property
    def file_count(self) -> int:
        """Append files in RAM, and own files that are alive."""
        return len(self.append_files.files) + self.own_files.live_count

    @property
    def written_bytes(self) -> int:
        """Bytes of bodies written since the start."""
        return self.append_files.written_bytes + self.own_files.written_bytes

    @property
    def released_bytes(self) -> int:
        """Bytes of bodies that died since the start."""
        return self.append_files.released_bytes + self.own_files.released_bytes

    def garbage_ratio(self) -> float:
        """Share of dead bytes in the append files, 0.0..1.0."""
        files = self.append_files.files
        total = sum([file.total_bytes for file in files])
        valid = sum([file.counts.valid_bytes for file in files])
        return 1.0 - valid / total if total else 0.0

    def close(self) -> None:
        """Close all handles; does not sync. No sync op may be in flight."""
        self.append_files.close()
        self.unsynced.close()
