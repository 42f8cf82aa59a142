"""What recovery does with the append files of a store: from states and names to StoreFiles.

The checkpoint counts the files that were there at its cut; the log names bodies that came
after it. So a file in the directory is one of

    counted and sealed         its hint is opened, or made again; synced before the manifest was
    counted, not sealed        scanned: up to the counted end all must be there, then a tail
    made after the cut         (number >= next_file, not counted) scanned, all of it a tail
    made by combining since    (its range is not its own number) ignored: what it was made of is
                               still counted and there [6]
    anything else              an orphan: half written, or dead and not yet unlinked

Scanned files are synced and dropped from the page cache first, because after a failed sync
the cache shows what the disk never got [8]. Nothing is ever appended behind a tail that may
be torn: the store seals them where they are, with the next checkpoint. Nothing is written
here, so that a store can be looked at. All bodies are dead until the checkpoint's count or a
log record says otherwise; that is why a torn or stale body does no harm [1].

Failure: a counted file that is missing, or whose table cannot be known any more, is a
CorruptionError; damage to single bodies or hints is collected in ``StoreTables.damage``, and what
looks like damage and is not in ``StoreTables.notes``.
"""

from itertools import pairwise

from penstock.errors import CorruptionError, SyncFailedError, VersionError
from penstock.storage.store_file import HEADER_BYTES, StoreFile, decode_header
from penstock.storage.store_scan import StoreScan
from penstock.storage.store_state import RECORD_BYTES, FileState
from penstock.storage.store_tables import StoreTables


def load_files(
    tables: StoreTables, states: list[FileState], next_file: int
) -> tuple[list[StoreFile], int, list[str]]:
    """(the files that count or may come to count, by range; the next free number; paths of
    orphans). Raises CorruptionError, VersionError, SyncFailedError, OSError."""
    names = tables.fs.list(tables.directory)
    numbers = sorted({number for number, kind in map(split_name, names) if kind})
    there = {number for number, kind in map(split_name, names) if kind == "rdq"}
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
    files.sort(key=_lo)
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
        for name, (number, kind) in zip(names, map(split_name, names), strict=True)
        if kind and (number not in known or kind == "hint.new")
    ]
    return files, highest + 1, orphans


def split_name(name: str) -> tuple[int, str]:
    """(number, "rdq" or "hint" or "hint.new"); (-1, "") for a name that is none of the store's."""
    stem, _, kind = name.partition(".")
    if kind in ("rdq", "hint", "hint.new") and stem.isascii() and stem.isdigit():
        return int(stem), kind
    return -1, ""


def _lo(file: StoreFile) -> int:
    return file.lo


def _load_counted(tables: StoreTables, state: FileState, is_there: bool) -> StoreFile | None:
    """The file of a state, its counts those of the checkpoint."""
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
            _judge_cut(tables, file, length)
        return file
    _scan(tables, file, HEADER_BYTES + state.total_bytes)
    for i in range(state.counts.count):
        place, _, size = tables.find(file, ids[i])
        if place < 0:
            tables.damage.append(CorruptionError(path, 0, f"body {ids[i]} is not there"))
        else:
            file.counts.ref(place, RECORD_BYTES + size, state.counts.refs(i))
    return file


def _judge_cut(tables: StoreTables, file: StoreFile, length: int) -> None:
    """A sealed file ends too early. After a failed sync recovery seals a file with all that the
    kernel shows of it, and a power cut may take bytes that never were on the disk: if no body there
    is alive, nothing is lost, and it is a note."""
    path = tables.rdq_path(file.number)
    end = HEADER_BYTES + file.total_bytes
    try:
        ends = tables.ends(file)
    except CorruptionError:
        ends = []
    beyond = [place for place, stop in enumerate(ends) if stop > length]
    alive = len([place for place in beyond if file.counts.refs(place)])
    if alive or not beyond:
        text = f"cut off: {end} bytes are counted, {alive} bodies that are alive are beyond"
        tables.damage.append(CorruptionError(path, length, text))
        file.is_damaged = True
    else:
        tables.notes.append(f"{path}: cut off at byte {length} of {end}, nothing beyond is alive")


def _load_uncounted(tables: StoreTables, number: int) -> StoreFile | None:
    """A file made after the cut, all dead; None if it has nothing that a record can name."""
    path = tables.rdq_path(number)
    handle = tables.fs.open(path)
    try:
        head = handle.pread(HEADER_BYTES, 0)
    finally:
        handle.close()
    try:
        lo, hi = decode_header(path, head, tables.vhost, number)
    except VersionError:
        raise
    except CorruptionError:
        return None  # its header was not synced, so nothing in it was
    if not lo <= number <= hi:
        return None
    file = StoreFile(number, lo, hi)
    _scan(tables, file, 0)
    return file


def _scan(tables: StoreTables, file: StoreFile, durable_end: int) -> None:
    """Fill the table of ``file`` from its records, as they are on the disk."""
    path = tables.rdq_path(file.number)
    handle = tables.fs.open(path)
    try:
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
    finally:
        handle.close()
    tables.damage += scan.damage
    if scan.damage:
        file.is_damaged = True
