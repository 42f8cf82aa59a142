"""Combining: fewer, fuller store files, while the store is in use.

RabbitMQ's message store compacts two neighbours in place, through a temporary file; a crash
in between leaves both to be sorted out. Here nothing is changed in place: the live bodies of
neighbours k..m are copied into a *new* sealed file that answers for the numbers k..m, so no
address changes, and the old files stay on disk until no manifest names them [6]::

    choose(store) -> [k..m]          rules below; nothing happens yet
    job = Combine(store, files)      takes a number and a copy of the live bits
    job.run()                        anywhere: copies, writes the hint, syncs file, hint, directory
    job.finish()                     owner: the new file takes their place, with present counts
    job.abandon()                    owner, instead of finish, when run raised

Why each step may be interrupted. Until ``finish`` the new file is a name that nothing knows,
and recovery knows it by its header for one: its range is not its own number. After ``finish``
RAM uses it, while the current manifest still names the old files, which are still there; the
next cut takes their paths. A manifest written later names the new file, which was synced
before ``finish``. ``run`` reads only sealed files, which never change; what dies while it
copies is dead in the new file too, for ``finish`` takes the counts of that moment.

Rules. A file is *eligible* when it is sealed, has no body of an unfinished transaction, is
undamaged and not being combined. Then the first that holds, of

  1. all files together exceed twice ``file_bytes_max`` and more than half of it is garbage:
     the first run of at least two eligible neighbours that together are more than half
     garbage and whose live bodies fit into one file;
  2. a single file of which less than 20 % is alive;
  3. a run of at least 16 neighbours, each below 1/16 of ``file_bytes_max``. This one is about
     the number of files, not about garbage: each checkpoint writes one for its small queues.

Files without any live body are not counted (they leave at the next cut), but may lie in a
run, for their numbers lie in its range.

Failure: a record that does not verify while it is copied is a CorruptionError from ``run``;
the files are left as they are, for ``store salvage``, and not chosen again. A failed sync is
a SyncFailedError and stops the store [10]; a full disk is the OSError, and the new file goes.
"""

import struct
from array import array
from typing import Final

from penstock.errors import CorruptionError, SyncFailedError
from penstock.storage.append_files import AppendFiles
from penstock.storage.filesystem import File
from penstock.storage.message_store import MessageStore
from penstock.storage.store_file import (
    ENTRY_BYTES,
    HEADER_BYTES,
    SealedWriter,
    StoreFile,
    decode_header,
    record_fault,
    record_seed,
)
from penstock.storage.store_state import RECORD_BYTES
from penstock.storage.store_tables import read_table

LIVE_SHARE_MIN: Final = 0.2  # below it a file is combined even alone
SMALL_FILES_MIN: Final = 16
RUN_FILES_MAX: Final = 64  # bounds the tables that are in RAM at once
READ_BYTES: Final = 256 << 10

_ENTRY: Final = struct.Struct(">QII")


def choose(store: MessageStore) -> list[int]:
    """Numbers of neighbouring files to combine now, by the rules above; [] for none."""
    files = store.append_files
    limit = store.file_bytes_max
    counted = [file for file in files.files if not file.is_dead() or file is files.current]
    total = sum([file.total_bytes for file in counted])
    garbage = total - sum([file.counts.valid_bytes for file in counted])
    run: list[StoreFile] = []
    if total > 2 * limit and 2 * garbage > total:
        run = _garbage_run(files, limit)
    if not run:
        run = _sparse_file(files)
    if not run:
        run = _small_run(files, limit)
    return [file.number for file in run]


class Combine:
    """One combining. Made and ended by the owner; ``run`` may be called anywhere, once."""

    def __init__(self, store: MessageStore, numbers: list[int]) -> None:
        """numbers: what ``choose`` has answered, in the same step."""
        self.files: AppendFiles = store.append_files
        self.persistent: bool = store.persistent
        self.members: list[StoreFile] = [
            file for file in self.files.files if file.number in numbers
        ]
        assert len(self.members) == len(numbers), "chosen in the same step"
        self.live: list[bytes] = []  # live bits of each member, as they are now
        for file in self.members:
            assert _is_eligible(self.files, file), "chosen in the same step"
            self.live.append(bytes(file.counts.live))
            file.is_combining = True
        self.number: int = self.files.take_number()
        self.copied_bytes: int = 0
        self._writer: SealedWriter | None = None
        self._file: StoreFile | None = None
        # Of each copied body: place in the new file, record bytes, its member's index, place there.
        self._sources: array[int] = array("I")

    def run(self) -> None:
        """Copy the live bodies. Raises CorruptionError, SyncFailedError, OSError."""
        files = self.files
        self._writer = SealedWriter(
            files.fs, files.path, files.vhost, self.number, self.members[0].lo, self.members[-1].hi
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
                files.fs.sync_dir(files.path)
            except OSError as error:
                raise SyncFailedError(self._writer.path, error) from error

    def finish(self) -> bool:
        """The new file takes the place of the old ones. False if it may not, because a body
        was given references again that was dead when the copy began: then it is abandoned."""
        assert self._writer is not None, "finish follows run"
        assert self._file is not None, "finish follows run"
        self._end()
        for member in self.members:
            if member.owned:
                self._writer.abandon()
                return False
        if not self.files.replace(self.members, self._file, self._sources):
            self._writer.abandon()
            return False
        self._writer.close()
        return True

    def abandon(self) -> None:
        """``run`` has raised, or is not to be run: the old files go on, the new one is deleted."""
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
        """The live records of one member, in the order in which they lie, into the new file."""
        live = self.live[index]
        if not any(live):
            return
        files = self.files
        path = f"{files.path}/{member.number}.rdq"
        entries: list[tuple[int, int, int, int]] = []  # offset, size, id, place
        try:
            hint = f"{files.path}/{member.number}.hint"
            table = read_table(files.fs, hint, files.vhost, member.number)
            for place in range(len(table) // ENTRY_BYTES):
                if live[place >> 3] & (1 << (place & 7)):
                    id, offset, size = _ENTRY.unpack_from(table, place * ENTRY_BYTES)
                    entries.append((offset, size, id, place))
            entries.sort()
            handle = files.fs.open(path)
            try:
                decode_header(path, handle.pread(HEADER_BYTES, 0), files.vhost, member.number)
                reader = _RunReader(handle, record_seed(files.vhost))
                for offset, size, id, place in entries:
                    # A body that was unloaded twice, into two files, becomes one copy with the
                    # references of both.
                    if id not in records:
                        writer.add_record(id, size, reader.record(offset, size, id))
                        records[id] = len(records)
                    self._sources.extend((records[id], RECORD_BYTES + size, index, place))
            finally:
                handle.close()
        except CorruptionError:
            member.is_damaged = True
            raise
        except FileNotFoundError as error:
            member.is_damaged = True
            raise CorruptionError(str(error.filename), 0, "missing") from error

    def _sort_sources(self, order: "array[int] | None") -> None:
        """Which record of the new file -> which place in its table, sorted by id."""
        if order is None:
            return
        place_of = array("I", order)
        for place in range(len(order)):
            place_of[order[place]] = place
        for at in range(0, len(self._sources), 4):
            self._sources[at] = place_of[self._sources[at]]


class _RunReader:
    """Reads ascending records of a file through a window."""

    def __init__(self, handle: File, seed: int) -> None:
        self._handle: File = handle
        self._seed: int = seed
        self._window: bytes = b""
        self._at: int = 0

    def record(self, offset: int, size: int, id: int) -> bytes:
        """The record at ``offset``, verified. Raises CorruptionError, OSError."""
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


def _is_eligible(files: AppendFiles, file: StoreFile) -> bool:
    return (
        file.is_sealed
        and file is not files.current
        and not file.owned
        and not file.is_combining
        and not file.is_damaged
    )


def _garbage_run(files: AppendFiles, limit: int) -> list[StoreFile]:
    """Rule 1: from each file on, the longest run that holds."""
    everything = files.files
    for start in range(len(everything)):
        total = 0
        valid = 0
        with_bodies = 0
        end = 0
        for at in range(start, min(start + RUN_FILES_MAX, len(everything))):
            file = everything[at]
            if not _is_eligible(files, file) or valid + file.counts.valid_bytes > limit:
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


def _sparse_file(files: AppendFiles) -> list[StoreFile]:
    """Rule 2."""
    for file in files.files:
        is_sparse = file.counts.valid_bytes < LIVE_SHARE_MIN * file.total_bytes
        if is_sparse and file.counts.live_count > 0 and _is_eligible(files, file):
            return [file]
    return []


def _small_run(files: AppendFiles, limit: int) -> list[StoreFile]:
    """Rule 3: the first run of small files that is long enough."""
    run: list[StoreFile] = []
    with_bodies = 0
    for file in files.files:
        is_small = file.total_bytes * SMALL_FILES_MIN < limit
        if not (is_small and _is_eligible(files, file)) or len(run) >= RUN_FILES_MAX:
            if with_bodies >= SMALL_FILES_MIN:
                return run
            run = []
            with_bodies = 0
            if not (is_small and _is_eligible(files, file)):
                continue
        if file.counts.live_count or run:
            run.append(file)
            with_bodies += 1 if file.counts.live_count else 0
    return run if with_bodies >= SMALL_FILES_MIN else []
