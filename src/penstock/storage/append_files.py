"""AppendFiles: the size class of bodies that share files, all but the very large ones.

Owns the ``<n>.rdq`` files of a MessageStore: the one that is appended to (*current*), the
sealed ones, and those that recovery found. Their formats are in ``store_file.py``, reading
them is ``store_tables.py``. What it promises, and what addresses and counts mean, stands at
the head of ``message_store.py``; here is how.

Numbers and ranges. A file answers for the numbers lo..hi; RAM holds them sorted and disjoint,
so a bisection finds the file of an address. New files have the highest number of all; only
``replace`` (of combining) puts a file of a lower range in, and takes all its members out.

The cut. ``cut`` raises the epoch, no more. A file whose epoch is older has not changed since;
the first change copies its state and gives it the new epoch, and a new file is born with it.
So at any time until ``capture``: state at the cut = the copy, if there is one; else the
present state, if the epoch is older; else there was no such file.
    Sealing is no change: the counts are the same, in the order of the final table.

Leaving. A file that was dead at the cut leaves RAM by ``take_dead``, one that was replaced
before the cut too; their paths are the caller's to unlink [6]. Epochs tell "dead at the cut"
from "dead since".

Failure: a write that fails leaves everything as it was, the length of the file included.
"""

from array import array
from bisect import bisect_right

from penstock.errors import CorruptionError, StorageError
from penstock.storage.filesystem import FileSystem
from penstock.storage.store_file import (
    HEADER_BYTES,
    SealedWriter,
    StoreFile,
    create_file,
    encode_header,
    encode_record,
    record_seed,
)
from penstock.storage.store_recovery import load_files
from penstock.storage.store_state import RECORD_BYTES, FileState
from penstock.storage.store_sync import Unsynced, UnsyncedFile
from penstock.storage.store_tables import StoreTables, TableFinder
from penstock.storage.stored_body import StoredBody


class AppendFiles:
    """The append files of one store. Everything belongs to the owner's thread."""

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        vhost: int,
        *,
        unsynced: Unsynced,
        file_bytes_max: int,
        cache_bytes: int,
    ) -> None:
        self.fs: FileSystem = fs
        self.path: str = path
        self.vhost: int = vhost
        self.unsynced: Unsynced = unsynced
        self.tables: StoreTables = StoreTables(fs, path, vhost, unsynced, cache_bytes)
        self.file_bytes_max: int = file_bytes_max
        self.next_file: int = 1  # number of the next file
        self.written_bytes: int = 0  # of bodies, since the start
        self.released_bytes: int = 0  # of bodies that died, since the start
        self.files: list[StoreFile] = []  # by range, disjoint
        self.current: StoreFile | None = None  # appended to
        self._los: list[int] = []  # lo of each
        self._last: StoreFile | None = None  # lately looked up
        self._writing: UnsyncedFile | None = None  # the handle of the current file
        self._seed: int = record_seed(vhost)
        self._epoch: int = 0  # of the last cut
        self._is_cutting: bool = False  # a cut was made and not captured
        self._captured: list[FileState] = []  # of files that changed since
        self._replaced: list[str] = []  # paths of files combined since the last cut
        self._leaving: list[str] = []  # those of take_dead

    # ---- bodies ----------------------------------------------------------------------------

    def write(self, id: int, body: bytes, refs: int) -> int:
        """See ``MessageStore.write``."""
        size = len(body)
        file = self.current
        if file is not None:
            place = file.find(id)
            if place >= 0:
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
            self._touch(file)
        place = file.append(id, size)
        if refs:
            file.counts.ref(place, RECORD_BYTES + size, refs)
        self.written_bytes += size
        return file.number

    def write_sealed(self, items: list[tuple[int, bytes, int]]) -> int:
        """See ``MessageStore.write_sealed``."""
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
            self.written_bytes += len(body)
        writer.hand_over(self.unsynced)
        self.unsynced.mark_directory(self.path)
        self._add(file)
        return number

    def read(self, file: int, id: int) -> bytes:
        """See ``MessageStore.read``."""
        found, _, offset, size = self._find(file, id)
        return self.tables.read(found, id, offset, size)

    def open_body(self, file: int, id: int) -> StoredBody:
        """See ``MessageStore.open_body``."""
        found, _, offset, size = self._find(file, id)
        return self.tables.open_body(found, id, offset, size)

    def size(self, file: int, id: int) -> int:
        """See ``MessageStore.size``."""
        return self._find(file, id)[3]

    def refs(self, file: int, id: int) -> int:
        """See ``MessageStore.refs``."""
        found = self.file_of(file)
        if found is None:
            return 0
        place = self.tables.find(found, id)[0]
        return found.counts.refs(place) if place >= 0 else 0

    def ref(self, file: int, id: int, n: int) -> None:
        """See ``MessageStore.ref``."""
        found, place, _, size = self._find(file, id)
        if self._is_cutting and found.epoch != self._epoch:
            self._touch(found)
        found.counts.ref(place, RECORD_BYTES + size, n)

    def unref(self, file: int, id: int, n: int) -> bool:
        """See ``MessageStore.unref``."""
        found, place, _, size = self._find(file, id)
        if self._is_cutting and found.epoch != self._epoch:
            self._touch(found)
        try:
            is_dead = found.counts.unref(place, RECORD_BYTES + size, n)
        except StorageError as error:
            path = self.tables.rdq_path(found.number)
            raise StorageError(f"{path}: body {id}: {error}") from None
        if is_dead:
            self.released_bytes += size
        return is_dead

    def own(self, file: int, id: int) -> None:
        """See ``MessageStore.own``."""
        self._find(file, id)[0].owned += 1

    def disown(self, file: int, id: int) -> None:
        """See ``MessageStore.disown``."""
        found = self._find(file, id)[0]
        assert found.owned > 0, "disown without own"
        found.owned -= 1

    def file_of(self, number: int) -> StoreFile | None:
        """The file that answers for ``number``."""
        last = self._last
        if last is not None and last.lo <= number <= last.hi:
            return last
        i = bisect_right(self._los, number) - 1
        if i < 0 or self.files[i].hi < number:
            return None
        self._last = self.files[i]
        return self.files[i]

    # ---- checkpoints -----------------------------------------------------------------------

    def cut(self, epoch: int) -> None:
        """See ``MessageStore.cut``."""
        assert epoch > self._epoch, "epochs rise"
        self._epoch = epoch
        self._is_cutting = True
        self._captured = []
        self._leaving += self._replaced
        self._replaced = []

    def capture(self) -> list[FileState]:
        """See ``MessageStore.capture``."""
        for file in self.files:
            if not file.is_sealed and file is not self.current:
                self.tables.seal(file)
        states = self._captured
        states += [self._state(file) for file in self.files if file.epoch != self._epoch]
        self._captured = []
        self._is_cutting = False
        return states

    def state_of(self, number: int) -> FileState:
        """See ``MessageStore.state_of``."""
        found = self.file_of(number)
        if found is None:
            raise StorageError(f"{self.path}: no file answers for number {number}")
        return self._state(found)

    def take_dead(self) -> list[str]:
        """See ``MessageStore.take_dead``."""
        paths, self._leaving = self._leaving, []
        for file in [file for file in self.files if file.is_dead()]:
            # A file of this epoch was alive at the cut, or is younger.
            if file.epoch != self._epoch and file is not self.current:
                self._remove(file)
                paths += self._paths(file)
        return paths

    def retire_current(self) -> None:
        """See ``MessageStore.retire_dead``."""
        file, writing = self.current, self._writing
        if file is not None and writing is not None and file.total_bytes and file.is_dead():
            self.current = None
            self._writing = None
            self.unsynced.finish(writing)

    def drop_dead(self) -> list[str]:
        """See ``MessageStore.drop_dead``."""
        self.retire_current()
        paths, self._replaced, self._leaving = self._replaced + self._leaving, [], []
        for file in [file for file in self.files if file.is_dead() and file is not self.current]:
            self._remove(file)
            paths += self._paths(file)
        return paths

    def dead_bytes(self) -> int:
        """See ``MessageStore.dead_bytes``."""
        file = self.current
        return file.total_bytes if file is not None and file.is_dead() else 0

    def has_dead(self) -> bool:
        """See ``MessageStore.has_dead``."""
        if self._replaced or self._leaving:
            return True
        return any(file.is_dead() and file is not self.current for file in self.files)

    def put_back_dead(self, paths: list[str]) -> None:
        """See ``MessageStore.put_back_dead``."""
        self._leaving += paths

    def restore(self, states: list[FileState], next_file: int) -> list[str]:
        """Begin with the files of a checkpoint and those after it; paths of orphans."""
        assert not self.files, "restore is the first call"
        self.files, self.next_file, orphans = load_files(self.tables, states, next_file)
        self._los = [file.lo for file in self.files]
        return orphans

    # ---- combining (message_store_gc.py) ---------------------------------------------------

    def take_number(self) -> int:
        """A number that no file has or will have."""
        number = self.next_file
        self.next_file = number + 1
        return number

    def replace(self, members: list[StoreFile], file: StoreFile, sources: "array[int]") -> bool:
        """``file`` takes the place of ``members``, neighbours, whose live bodies it holds.

        sources: four numbers for each body of a member: its place in ``file``, the bytes of its
        record, the index of the member, its place there. Counts are the present ones, whatever
        died meanwhile; two members may share a body, whose counts then add up.
        False, and nothing is done, if a body is alive by now that ``file`` does not hold.
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
                self._touch(member)
            self._remove(member)
            self._replaced += self._paths(member)
        self._add(file)
        return True

    # ---- helpers ---------------------------------------------------------------------------

    def close(self) -> None:
        """Close all handles of this class; those that wait for a sync are the registry's."""
        self.tables.close()
        writing = self._writing
        if writing is not None and writing.file is not None:
            writing.file.close()
            writing.file = None

    def _find(self, file: int, id: int) -> tuple[StoreFile, int, int, int]:
        """(file, place of the entry, position of the record, size). Raises CorruptionError."""
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
        """Those that exist: a file that recovery found may have no hint yet, or an old one."""
        hint = self.tables.hint_path(file.number)
        has_hint = file.is_sealed or self.fs.exists(hint)
        return [self.tables.rdq_path(file.number), *([hint] if has_hint else [])]

    def _touch(self, file: StoreFile) -> None:
        """The file is about to change for the first time since the cut: keep its state."""
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
        """A new file to append to. Raises OSError, after which there is none."""
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
        """Write the hint of the current file, after which there is none. Raises OSError."""
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
                handle.truncate(offset)  # so that no scan ever meets what was left of it
            except OSError:
                pass  # it is behind the end; the next record overwrites it
            raise

    def _write_again(self, file: StoreFile, id: int, size: int, refs: int) -> int:
        """The body is in the current file: it came back to RAM and leaves it again."""
        found = self.tables.find(file, id)[2]
        assert found == size, f"body {id} has {size} bytes, and once had {found}"
        if refs:
            self.ref(file.number, id, refs)
        return file.number
