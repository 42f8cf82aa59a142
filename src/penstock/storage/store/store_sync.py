"""Unsynced: the files and directories of a store that were written since they were last synced.

Rule [2] requires every store body to be synced before the log bytes that name it are written, and
rule [5] requires all of them synced before a manifest counts them. So each write marks its file,
each new name marks its directory, and one *sync op* makes everything durable that is marked when it
is taken:

    mark ... mark   take() -> op   (op() -> g, in a worker)   synced(g)
                                mark again: the file stays unsynced after synced(g)

A mark is a counter: the op does not cover what was written after ``take``, although the kernel may
have written it. Files are synced before the directories that name them. The order between files
does not matter, because nothing names a body before the whole op has returned.

Handles: a file is synced through the handle that wrote it, because a write error is reported to the
handles that were open when it happened. A finished file (sealed, or of one body) stays open until
its sync, at most ``HANDLES_MAX`` of them; further files are closed and opened again by the op. A
handle is closed only when no op for it is in flight.

Where no descriptor is left to open a file or a directory with, nothing was tried and nothing is
lost, so the op tries it again: an operation that was submitted waits for a descriptor in `open`
(filesystem.py), and here it has ``TRIES`` of these times. Nothing is confirmed meanwhile.

Failure, rule [10]: a failed sync is final. The op raises ``SyncFailedError`` and keeps it in
``Unsynced.failed``; from then on ``take`` and all writers raise ``StoppedError``, and nothing is
marked clean again. A file that does not exist when the op opens it was deleted by its owner, which
is not a failure.

The ``Unsynced`` of a transient store has ``persistent=False``: it marks nothing, is always clean
and closes finished files at once.

Threads: call everything from the owner's thread, except a SyncOp, which touches only its own files.
"""

from typing import Final

from penstock.errors import StoppedError, SyncFailedError, has_no_descriptor
from penstock.storage.files.filesystem import File, FileSystem, sync_closed

HANDLES_MAX: Final = 64
TRIES: Final = 20


class UnsyncedFile:
    """A file being written, from its first byte to the sync after its last."""

    def __init__(self, path: str, file: File) -> None:
        self.path: str = path
        self.file: File | None = file  # None: finished, and closed to free the handle
        self.mark: int = 0  # counts writes
        self.is_listed: bool = False  # written since it was last synced
        self.is_finished: bool = False  # nothing more will be written
        self.in_flight: int = 0  # ops taken, without synced()


class SyncOp:
    """One sync, made by ``take``. Call it once, in any thread. Only the registry uses its
    fields."""

    def __init__(self, fs: FileSystem, registry: "Unsynced", generation: int) -> None:
        self.fs: FileSystem = fs
        self.generation: int = generation
        self.registry: Unsynced = registry
        self.files: list[tuple[UnsyncedFile, int]] = []
        self.directories: list[tuple[str, int]] = []
        self.is_done: bool = False

    def __call__(self) -> int:
        """Sync everything listed. Return the generation, for ``synced``. Raises SyncFailedError,
        which stops the store."""
        for unsynced, _ in self.files:
            self._sync(unsynced.path, unsynced)
        for path, _ in self.directories:
            self._sync(path, None)
        self.is_done = True
        return self.generation

    def _sync(self, path: str, unsynced: UnsyncedFile | None) -> None:
        """Sync one file, or a directory."""
        tries = TRIES
        while True:
            tries -= 1
            try:
                file = unsynced.file if unsynced is not None else None
                if file is not None:
                    file.sync()
                elif unsynced is not None:
                    sync_closed(self.fs, path)
                else:
                    self.fs.sync_dir(path)
                return
            except OSError as error:
                if tries > 0 and has_no_descriptor(error):
                    continue
                failure = SyncFailedError(path, error)
                self.registry.failed = failure
                raise failure from error


class Unsynced:
    """The registry of one store."""

    def __init__(self, fs: FileSystem, *, persistent: bool) -> None:
        self.fs: FileSystem = fs
        self.persistent: bool = persistent
        self.failed: SyncFailedError | None = None
        self._files: list[UnsyncedFile] = []
        self._directories: dict[str, int] = {}
        self._marks: int = 0  # the last mark of a directory; no mark is used twice
        self._generation: int = 0
        self._ops: dict[int, SyncOp] = {}  # taken, without synced()
        self._handles: int = 0  # finished files that stay open until their sync

    def check(self) -> None:
        """Raise StoppedError after a failed sync."""
        if self.failed is not None:
            raise StoppedError(str(self.failed))

    def mark(self, unsynced: UnsyncedFile) -> None:
        """Note that the file was written."""
        if not self.persistent:
            return
        unsynced.mark += 1
        if not unsynced.is_listed:
            unsynced.is_listed = True
            self._files.append(unsynced)

    def mark_directory(self, path: str) -> None:
        """Note that a name in the directory was created or changed."""
        if self.persistent:
            self._marks += 1
            self._directories[path] = self._marks

    def finish(self, unsynced: UnsyncedFile) -> None:
        """Close the file once it is synced: nothing more will be written to it."""
        unsynced.is_finished = True
        is_clean = not unsynced.is_listed
        if not unsynced.in_flight and (is_clean or self._handles >= HANDLES_MAX):
            self._close(unsynced)
        else:
            self._handles += 1

    def has_any(self) -> bool:
        """Return whether anything was written since the last sync."""
        return bool(self._files) or bool(self._directories)

    def take(self) -> SyncOp:
        """Return an op that makes everything marked up to now durable and returns its generation.

        Raises StoppedError after a failed sync.
        """
        self.check()
        self._generation += 1
        op = SyncOp(self.fs, self, self._generation)
        for unsynced in self._files:
            unsynced.in_flight += 1
            op.files.append((unsynced, unsynced.mark))
        for path, mark in self._directories.items():
            op.directories.append((path, mark))
        self._ops[op.generation] = op
        return op

    def synced(self, generation: int) -> None:
        """Mark clean what the op of ``generation`` covered, after it returned without error."""
        op = self._ops.pop(generation)
        assert op.is_done, "the op has not run to its end"
        for unsynced, mark in op.files:
            unsynced.in_flight -= 1
            if unsynced.mark == mark and unsynced.is_listed:
                unsynced.is_listed = False
            if unsynced.is_finished and not unsynced.is_listed and not unsynced.in_flight:
                if unsynced.file is not None:
                    self._handles -= 1
                self._close(unsynced)
        self._files = [unsynced for unsynced in self._files if unsynced.is_listed]
        for path, mark in op.directories:
            if self._directories.get(path) == mark:
                del self._directories[path]

    def close(self) -> None:
        """Close every handle, synced or not. No op may be in flight."""
        for unsynced in self._files:
            self._close(unsynced)

    def _close(self, unsynced: UnsyncedFile) -> None:
        file = unsynced.file
        if file is not None:
            unsynced.file = None
            file.close()
