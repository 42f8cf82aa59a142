"""Combining: copies the live bodies of several store files into one, while the store is in use.

RabbitMQ's message store compacts two neighbours in place through a temporary file, and a crash
between the steps leaves both to be repaired. Here nothing changes in place. The live bodies of
neighbours k..m are copied into a *new* sealed file that answers for the numbers k..m, so addresses
do not change, and the old files stay on disk until no manifest names them [6]::

    choose(store) -> [k..m]      applies the rules below and changes nothing
    job = Combine(store, files)  takes a number and copies the live bits
    job.run()                    in any thread: copies, writes the hint, syncs files and directory
    job.finish()                 owner: the new file replaces them, with the present counts
    job.abandon()                owner, instead of finish, if run raised

Interruptions. Before ``finish`` nothing names the new file, and recovery ignores it because its
range is not its own number. After ``finish`` RAM uses it, while the current manifest still names
the old files, which are still there; the next cut takes their paths. A later manifest names the new
file, which was synced before ``finish``. ``run`` reads only sealed files, which never change. A
body that dies during the copy is dead in the new file too, because ``finish`` takes the counts of
that moment.

Rules. A file is *eligible* if it is sealed, undamaged, not being combined, and has no body of an
unfinished transaction. The first rule that holds decides:

  1. all files together exceed twice ``file_bytes_max`` and more than half of that is garbage:
     the first run of at least two eligible neighbours that together are more than half garbage
     and whose live bodies fit into one file;
  2. a single file of which less than 20 % is alive;
  3. a run of at least 16 neighbours, each below 1/16 of ``file_bytes_max``. This one limits the
     number of files, not the garbage: each checkpoint writes a file for its small queues.

Files without live bodies do not count, because they leave at the next cut, but they may lie in a
run, because their numbers are in its range.

Failure: a record that does not verify during the copy is a CorruptionError from ``run``; the files
stay as they are, for ``store salvage``, and are not chosen again. A failed sync is a
SyncFailedError and stops the store [10]. A full disk is the OSError, and the new file is deleted.
"""

from array import array
from contextlib import closing
from typing import Final

from penstock.errors import CorruptionError, SyncFailedError
from penstock.storage.files.filesystem import File
from penstock.storage.store.message_store import MessageStore, read_table
from penstock.storage.store.store_file import (
    ENTRY,
    ENTRY_BYTES,
    HEADER_BYTES,
    RECORD_BYTES,
    SealedWriter,
    StoreFile,
    decode_header,
    record_fault,
    record_seed,
)

LIVE_SHARE_MIN: Final = 0.2  # a file with less than this share alive is combined on its own
SMALL_FILES_MIN: Final = 16
RUN_FILES_MAX: Final = 64  # bounds the tables that are in RAM at once
READ_BYTES: Final = 256 << 10


def choose(store: MessageStore) -> list[int]:
    """Return the numbers of neighbouring files to combine now, by the rules above; [] for none."""
    limit = store.file_bytes_max
    counted = [file for file in store.files if not file.is_dead() or file is store.current]
    total = sum([file.total_bytes for file in counted])
    garbage = total - sum([file.counts.valid_bytes for file in counted])
    run: list[StoreFile] = []
    if total > 2 * limit and 2 * garbage > total:
        run = _garbage_run(store, limit)
    if not run:
        run = _sparse_file(store)
    if not run:
        run = _small_run(store, limit)
    return [file.number for file in run]


class Combine:
    """One combining. The owner makes and ends it; ``run`` may be called once, in any thread."""

    def __init__(self, store: MessageStore, numbers: list[int]) -> None:
        """numbers: what ``choose`` returned in the same step."""
        self.store: MessageStore = store
        self.persistent: bool = store.persistent
        self.members: list[StoreFile] = [file for file in store.files if file.number in numbers]
        assert len(self.members) == len(numbers), "chosen in the same step"
        self.live: list[bytes] = []  # live bits of each member, as they are now
        for file in self.members:
            assert _is_eligible(self.store, file), "chosen in the same step"
            self.live.append(bytes(file.counts.live))
            file.is_combining = True
        self.number: int = self.store.take_number()
        self.copied_bytes: int = 0
        self._writer: SealedWriter | None = None
        self._file: StoreFile | None = None
        # Of each copied body: place in the new file, record bytes, its member's index, place there.
        self._sources: array[int] = array("I")

    def run(self) -> None:
        """Copy the live bodies. Raises CorruptionError, SyncFailedError, OSError."""
        store = self.store
        self._writer = SealedWriter(
            store.fs, store.path, store.vhost, self.number, self.members[0].lo, self.members[-1].hi
        )
        records: dict[int, int] = {}  # id -> which record of the new file it is
        for index, member in enumerate(self.members):
            self._copy_member(self._writer, index, member, records)
        self._file = self._writer.finish()
        self._sort_sources(self._writer.order)
        self.copied_bytes = self._writer.total_bytes
        if self.persistent:
            try:
                self._writer.sync()
                store.fs.sync_dir(store.path)
            except OSError as error:
                raise SyncFailedError(self._writer.path, error) from error

    def finish(self) -> bool:
        """Put the new file in the place of the old ones. Return False, and delete the new file, if
        a body that was dead when the copy began has references or an owner again."""
        assert self._writer is not None, "finish follows run"
        assert self._file is not None, "finish follows run"
        self._end()
        for member in self.members:
            if member.owned:
                self._writer.abandon()
                return False
        if not self.store.replace(self.members, self._file, self._sources):
            self._writer.abandon()
            return False
        self._writer.close()
        return True

    def abandon(self) -> None:
        """Keep the old files and delete the new one: ``run`` raised, or will not be called."""
        self._end()
        if self._writer is not None:
            self._writer.abandon()

    def _end(self) -> None:
        for member in self.members:
            member.is_combining = False

    def _copy_member(
        self,
        writer: SealedWriter,
        index: int,
        member: StoreFile,
        records: dict[int, int],
    ) -> None:
        """Copy the live records of one member, in the order of the file."""
        live = self.live[index]
        if not any(live):
            return
        store = self.store
        path = f"{store.path}/{member.number}.rdq"
        entries: list[tuple[int, int, int, int]] = []  # offset, size, id, place
        try:
            hint = f"{store.path}/{member.number}.hint"
            table = read_table(store.fs, hint, store.vhost, member.number)
            for place in range(len(table) // ENTRY_BYTES):
                if live[place >> 3] & (1 << (place & 7)):
                    id, offset, size = ENTRY.unpack_from(table, place * ENTRY_BYTES)
                    entries.append((offset, size, id, place))
            entries.sort()
            with closing(store.fs.open(path)) as handle:
                decode_header(path, handle.pread(HEADER_BYTES, 0), store.vhost, member.number)
                reader = _RunReader(handle, record_seed(store.vhost))
                for offset, size, id, place in entries:
                    # A body that was unloaded into two files becomes one copy with the references
                    # of both.
                    if id not in records:
                        writer.add_record(id, size, reader.record(offset, size, id))
                        records[id] = len(records)
                    self._sources.extend((records[id], RECORD_BYTES + size, index, place))
        except CorruptionError:
            member.is_damaged = True
            raise
        except FileNotFoundError as error:
            member.is_damaged = True
            raise CorruptionError(str(error.filename), 0, "missing") from error

    def _sort_sources(self, order: "array[int] | None") -> None:
        """Replace records of the new file by their places in its table, which is sorted by id."""
        if order is None:
            return
        place_of = array("I", order)
        for place in range(len(order)):
            place_of[order[place]] = place
        for at in range(0, len(self._sources), 4):
            self._sources[at] = place_of[self._sources[at]]


class _RunReader:
    """Reads records of a file in ascending order, through a window."""

    def __init__(self, handle: File, seed: int) -> None:
        self._handle: File = handle
        self._seed: int = seed
        self._window: bytes = b""
        self._at: int = 0

    def record(self, offset: int, size: int, id: int) -> bytes:
        """Return the record at ``offset``. Raises CorruptionError, OSError."""
        length = RECORD_BYTES + size
        start = offset - self._at
        if start < 0 or start + length > len(self._window):
            self._window = self._handle.pread(max(length, READ_BYTES), offset)
            self._at = offset
            start = 0
        record = self._window[start : start + length]
        fault = record_fault(self._seed, record, id)
        if fault:
            raise CorruptionError(self._handle.path, offset, fault)
        return record


# ---- choosing ----------------------------------------------------------------------------------


def _is_eligible(store: MessageStore, file: StoreFile) -> bool:
    return (
        file.is_sealed
        and file is not store.current
        and not file.owned
        and not file.is_combining
        and not file.is_damaged
    )


def _garbage_run(store: MessageStore, limit: int) -> list[StoreFile]:
    """Return the first run that rule 1 allows, as long as possible."""
    everything = store.files
    for start in range(len(everything)):
        total = 0
        valid = 0
        with_bodies = 0
        end = 0
        for at in range(start, min(start + RUN_FILES_MAX, len(everything))):
            file = everything[at]
            if not _is_eligible(store, file) or valid + file.counts.valid_bytes > limit:
                break
            if file.counts.live_count:
                total += file.total_bytes
                valid += file.counts.valid_bytes
                with_bodies += 1
                if with_bodies >= 2 and 2 * (total - valid) > total:
                    end = at + 1
            elif at == start:
                break  # begins with a live one
        if end:
            return everything[start:end]
    return []


def _sparse_file(store: MessageStore) -> list[StoreFile]:
    """Return the first file that rule 2 allows."""
    for file in store.files:
        is_sparse = file.counts.valid_bytes < LIVE_SHARE_MIN * file.total_bytes
        if is_sparse and file.counts.live_count > 0 and _is_eligible(store, file):
            return [file]
    return []


def _small_run(store: MessageStore, limit: int) -> list[StoreFile]:
    """Return the first run of small files that rule 3 allows."""
    run: list[StoreFile] = []
    with_bodies = 0
    for file in store.files:
        is_small = file.total_bytes * SMALL_FILES_MIN < limit
        if not (is_small and _is_eligible(store, file)) or len(run) >= RUN_FILES_MAX:
            if with_bodies >= SMALL_FILES_MIN:
                return run
            run = []
            with_bodies = 0
            if not (is_small and _is_eligible(store, file)):
                continue
        if file.counts.live_count or run:
            run.append(file)
            with_bodies += 1 if file.counts.live_count else 0
    return run if with_bodies >= SMALL_FILES_MIN else []
