"""Recovery: from the files to the state.

    CURRENT -> checkpoint -> stores (tables from hints, an unsealed tail is scanned)
    -> topology, queues -> the log after the cut, surveyed whole, then replayed
    -> (the engine:) a new log segment, ids and seqs beyond all that could exist, a checkpoint,
    and only then what no file names is deleted

Checkpoint and log alone say what lives [1]. Slots and bodies are not read, so the time depends on
the log since the cut and never on the backlog. The log's files and the unsealed store files are
synced and dropped from the page cache before they are trusted [8]: after a failed sync the cache
has bytes that are on no disk.

The survey finds where the log ends, and whether what follows is a torn tail (nothing durable is
missing) or corruption (a later header says otherwise). Then recovery refuses, names file and
offset, and changes nothing [11]. A store body that a record names may be missing only above the
highest durable LSN, where it is a torn tail too, or if a later record removed the message.

Streams continue from the checkpoint's positions: replay writes the frames of the log's records
again, the same bytes in the same places, and cuts what follows the last one. So pages are relied on
only below a checkpoint's position, where they were synced before it was written.

After an unclean stop each queue's next seq is the next segment border above everything seen or
marked, and queue numbers jump [9]; message ids begin with a new start number at every start.

Nothing is logged or deleted here, so `verify` uses the same code on a store that it only reads.
"""

import struct
from collections.abc import Callable
from contextlib import closing
from typing import Final

from penstock.errors import CorruptionError
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.files.options import StorageOptions
from penstock.storage.index import leases
from penstock.storage.index.queue_index import QueueIndex
from penstock.storage.journal import checkpoint
from penstock.storage.journal.checkpoint import Manifest
from penstock.storage.journal.record_types import stored_bodies
from penstock.storage.journal.state import Replay, StorageState
from penstock.storage.log import record
from penstock.storage.log.log_file import LogEnd, LogReader, segment_path
from penstock.storage.pages.batches import decode_section
from penstock.storage.pages.page import page_name
from penstock.storage.store.message_store import MessageStore

QUEUE_NUMBER_JUMP: Final = 1000
PARTS: Final = ("wal", "msg_store_persistent", "msg_store_transient", "queues", "streams")

Event = Callable[[str, str], None]


class Recovered:
    """What a recovery found: the state, the checkpoint, and where the log ended."""

    __slots__ = (
        "cut_records",
        "end",
        "is_clean",
        "log_bytes",
        "manifest",
        "records",
        "state",
        "unknown",
    )

    def __init__(
        self, state: StorageState, manifest: Manifest, end: LogEnd, is_clean: bool, records: int,
        log_bytes: int,
    ) -> None:  # fmt: skip
        self.state: StorageState = state
        self.manifest: Manifest = manifest
        self.end: LogEnd = end
        self.is_clean: bool = is_clean
        self.records: int = records  # replayed
        self.log_bytes: int = log_bytes  # of these
        self.cut_records: int = end.cut_records
        self.unknown: list[str] = []  # files of the store that no checkpoint or record names


def make_directories(fs: FileSystem, path: str) -> None:
    """Make the parts of a vhost directory, durably, and empty the transient store."""
    missing = [part for part in PARTS if not fs.exists(f"{path}/{part}")]
    for part in missing:
        fs.mkdir(f"{path}/{part}")
    if missing:
        fs.sync_dir(path)
    wipe(fs, path + "/msg_store_transient")
    if fs.exists(f"{path}/{leases.DIRECTORY}"):  # pages for readers, made again on demand
        wipe(fs, f"{path}/{leases.DIRECTORY}")


def wipe(fs: FileSystem, path: str) -> None:
    """Delete everything in a directory, with one level of directories."""
    for name in fs.list(path):
        at = f"{path}/{name}"
        if fs.is_dir(at):
            for inner in fs.list(at):
                fs.unlink(f"{at}/{inner}")
            fs.rmdir(at)
        else:
            fs.unlink(at)


def load(
    fs: FileSystem, path: str, vhost: int, options: StorageOptions, event: Event, *,
    name: bytes = b"", ram_bytes: int = 0,
) -> Recovered:  # fmt: skip
    """Read checkpoint and log. ram_bytes: replayed messages beyond it are written to their slots
    (0: all stay in RAM and nothing is written). name: of the vhost, for the directories that this
    makes. CorruptionError, VersionError, SyncFailedError."""
    number = checkpoint.current(fs, path)
    if number:
        manifest = checkpoint.read(fs, path, number, vhost)
    else:
        _check_is_fresh(fs, path, vhost)
        manifest = Manifest()
        manifest.head.segment_slots = options.segment_slots
    head = manifest.head
    store = MessageStore(
        fs, path + "/msg_store_persistent", vhost, persistent=True,
        file_bytes_max=options.msg_store_file_size_limit, own_file_from=options.own_file_from,
    )  # fmt: skip
    store.restore(manifest.store, head.next_store_file, head.next_own_file)
    for damage in store.take_damage():
        event("corruption", str(damage))
    for note in store.take_notes():
        event("cut_off", note)
    state = StorageState(fs, path, vhost, head.segment_slots, store)
    state.name_vhost(name)  # before the replay, which may make directories of queues
    _load_state(state, manifest)
    with closing(LogReader(fs, path + "/wal", vhost)) as log:
        if manifest.is_clean:
            end = log.survey(0, 0, head.cut_lsn + 1, None)
        else:
            named: list[tuple[record.Record, int, int]] = []
            end = log.survey(
                head.log_segment, head.log_position, head.cut_lsn + 1,
                lambda found: _collect(named, found), skips_plain=True,
            )  # fmt: skip
            _find_missing_bodies(state, named, end)
        # With a missing body it may still be refused, and then no file may be changed.
        replay = Replay(state, log, ram_bytes=0 if state.missing_bodies else ram_bytes)
        if not manifest.is_clean:
            _replay(log, manifest, end, replay)
        replay.end()
    _check_missing_bodies(state)
    if end.cut_records:
        event("torn_tail", f"{end.cut_records} records after the end of the log were cut")
    return Recovered(state, manifest, end, manifest.is_clean, replay.records, replay.log_bytes)


def begin(found: Recovered) -> None:
    """Set seqs, ids and queue numbers beyond all that can exist [9]."""
    state = found.state
    if not found.is_clean:
        for queue in state.queues.values():
            queue.skip_to_border()
            queue.mark = min(queue.mark, queue.next_seq)
        state.next_queue += QUEUE_NUMBER_JUMP
    found.unknown = state.store.forget_unknown()
    state.factory.open(found.manifest.head.start + 1)


def orphans(
    fs: FileSystem, state: StorageState, number: int, files: list[str]
) -> tuple[list[str], list[str]]:
    """Return the files, and directories of queues, that a crash left and the state does not name;
    they may be deleted once a checkpoint of this state is CURRENT [6]. files: of the store. Of the
    files that stay, those that the queues might write to are made ready for it (take_over)."""
    path = state.path
    keep = {"CURRENT", f"checkpoint-{number}"}
    files += [
        f"{path}/{name}"
        for name in fs.list(path)
        if name.startswith(("checkpoint-", "CURRENT")) and name not in keep
    ]
    known: dict[str, QueueIndex] = {}
    for queue in (*state.queues.values(), *state.dying.values()):
        known[queue.path.rpartition("/")[2]] = queue
    trees = _orphans_of_streams(fs, state, files)
    for directory in fs.list(path + "/queues"):
        at = f"{path}/queues/{directory}"
        found = known.get(directory)
        if found is None:
            trees.append(at)
            continue
        kept: set[int] = set()
        for name in fs.list(at):
            stem, _, ending = name.rpartition(".")
            if ending in ("qi", "qs") and stem.isdigit():
                key = (found.number, int(stem))
                if int(stem) in found.segments:
                    kept.add(int(stem))
                elif key not in state.reaping:
                    files.append(f"{at}/{name}")
        found.take_over(kept)
    return files, trees


def _orphans_of_streams(fs: FileSystem, state: StorageState, files: list[str]) -> list[str]:
    """Return the directories of undeclared streams, and add to `files` what a crash left in the
    others: pages below the first one, a half-made readMeta, indexes without a page."""
    parent = state.streams.path
    if not fs.exists(parent):
        return []
    known = {stream.path for stream in state.streams.by_number.values()}
    for stream in state.streams.by_number.values():
        files += stream.queue.leftovers()
        names = fs.list(stream.path)
        stems = {page_name(base) for base in stream.queue.pages.bases}
        files += [
            f"{stream.path}/{name}"
            for name in names
            if name.endswith(".new") or (name.endswith(".idx") and name[:-4] not in stems)
        ]
    return [at for at in (f"{parent}/{name}" for name in fs.list(parent)) if at not in known]


# ---- helpers -----------------------------------------------------------------------------------


def _check_is_fresh(fs: FileSystem, path: str, vhost: int) -> None:
    """Raise CorruptionError if CURRENT is lost, for this store was used before. A crash in the
    first start may leave the first checkpoint without CURRENT, but no later one."""
    for name in fs.list(path):
        digits = name.removeprefix("checkpoint-")
        if digits != name and digits.isdecimal() and int(digits) > 1:
            raise CorruptionError(path + "/CURRENT", 0, f"it is missing, and {name} exists")
    with closing(LogReader(fs, path + "/wal", vhost)) as log:
        if log.has_records():
            raise CorruptionError(path + "/CURRENT", 0, "it is missing, and the log has records")


def _load_state(state: StorageState, manifest: Manifest) -> None:
    for data in manifest.topology:
        state.apply_topology(data)
    for number, section in manifest.queues.items():
        queue = state.queues.get(number)
        if queue is None:
            raise CorruptionError(
                f"{state.path}/checkpoint-{manifest.number}", 0,
                f"it has a section of queue {number}, and no such queue in its topology",
            )  # fmt: skip
        queue.next_seq, queue.mark = section.next_seq, section.mark
        queue.count, queue.bytes = section.count, section.bytes
        queue.segments, queue.section = section.segments, section.rows
        queue.attempts = section.attempts
    _load_streams(state, manifest)
    state.next_queue = max(state.next_queue, manifest.head.next_queue)
    state.reaping = manifest.reaping
    _load_leases(state, manifest)
    _load_batches(state, manifest)
    _load_windows(state, manifest)
    if any(number not in state.queues for number, _ in state.reaping):
        _load_dying(state)


def _load_streams(state: StorageState, manifest: Manifest) -> None:
    where = f"{state.path}/checkpoint-{manifest.number}"
    for number, section in manifest.streams.items():
        if number not in state.streams.by_number:
            text = f"it has a section of stream {number}, and no such stream in its topology"
            raise CorruptionError(where, 0, text)
        state.streams.restore(number, section, where)
    for number in state.streams.by_number:
        if number not in manifest.streams:
            text = f"it has stream {number} in its topology, and no section of it"
            raise CorruptionError(where, 0, text)


def _load_leases(state: StorageState, manifest: Manifest) -> None:
    try:
        for data in manifest.leases:
            lease = state.leases.restore(data)
            if lease.queue not in state.queues:
                raise ValueError(f"a lease of queue {lease.queue}, and no such queue")
            for one in lease.slices:
                for number, first, n, size, _, _ in one.runs():
                    queue = state.queues.get(number)
                    if queue is None:
                        raise ValueError(f"a lease of what is in queue {number}, and no such queue")
                    queue.leased.add(first, n, size)
    except (ValueError, struct.error) as error:
        where = f"{state.path}/checkpoint-{manifest.number}"
        raise CorruptionError(where, 0, str(error)) from error


def _load_batches(state: StorageState, manifest: Manifest) -> None:
    for data in manifest.batches:
        try:
            batch = decode_section(data)
        except (ValueError, struct.error) as error:
            where = f"{state.path}/checkpoint-{manifest.number}"
            raise CorruptionError(where, 0, f"a batch: {error}") from error
        state.batches.by_query[batch.query] = batch
        if not batch.is_done:
            state.streams.hold(batch)


def _load_windows(state: StorageState, manifest: Manifest) -> None:
    for data in manifest.windows:
        try:
            state.windows.restore(data)
        except (ValueError, struct.error) as error:
            where = f"{state.path}/checkpoint-{manifest.number}"
            raise CorruptionError(where, 0, str(error)) from error


def _load_dying(state: StorageState) -> None:
    """Find deleted queues whose slots must still be read, by their directories."""
    for directory in state.fs.list(state.path + "/queues"):
        digits = directory.rpartition(".")[2]
        number = int(digits) if digits.isdigit() else 0
        if number not in state.queues and any(n == number for n, _ in state.reaping):
            queue = state.add_queue(b"", number)
            queue.path = f"{state.path}/queues/{directory}"
            queue.is_deleted = True
            state.dying[number] = state.queues.pop(number)


def _collect(named: list[tuple[record.Record, int, int]], found: record.Record) -> None:
    """Add the store bodies that a record names when it publishes to `named`."""
    for file, id in stored_bodies(found):
        named.append((found, file, id))


def _find_missing_bodies(
    state: StorageState, named: list[tuple[record.Record, int, int]], end: LogEnd
) -> None:
    """Find missing bodies. Above the highest durable LSN one ends the log. Below it a later record
    must have removed the message, which the replay shows."""
    for found, file, id in named:
        if state.store.has(file, id) or state.store.has(file, id):  # a read may be wrong once
            continue
        if found.lsn > end.claim:
            end.cut_records += end.last_lsn - found.lsn + 1
            end.last_lsn = found.lsn - 1
            end.segment, end.offset = found.segment, found.offset
            return
        state.missing_bodies[file, id] = 0


def _check_missing_bodies(state: StorageState) -> None:
    for (file, id), refs in state.missing_bodies.items():
        if refs > 0:
            raise CorruptionError(
                state.store.file_path(file), 0,
                f"the body of message {id:#x} is missing, and the log says that it was durable",
            )  # fmt: skip


def _replay(log: LogReader, manifest: Manifest, end: LogEnd, replay: Replay) -> None:
    head = manifest.head

    def apply(found: record.Record) -> None:
        try:
            replay.apply(found)
        except (ValueError, KeyError) as error:
            raise CorruptionError(
                segment_path(log.directory, found.segment), found.offset,
                f"record {found.lsn} cannot be applied: {error}",
            ) from error  # fmt: skip

    log.records(head.log_segment, head.log_position, head.cut_lsn + 1, end.last_lsn, apply)
    if not replay.decided:
        return
    try:
        replay.roll_forward()
    except (ValueError, KeyError) as error:
        text = f"a transaction that is decided cannot be applied: {error}"
        raise CorruptionError(segment_path(log.directory, end.segment), end.offset, text) from error
