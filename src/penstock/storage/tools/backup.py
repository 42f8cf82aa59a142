"""Backup: a copy of a running store, exact as of one moment, made beside the traffic.

A checkpoint has all that a store needs to start, except for the log after its cut. So a backup is a
new checkpoint and the files that it names:

    checkpoint        made first, and whole: messages that are dequeued after its cut are written
                      all the same, because the copy has no log (checkpoint.py); nothing is deleted
                      from before its cut until the end (Pins, journal.py)
    sealed .rdq+.hint, own files      never change: hard links, which take no room; copied where
                      the disk has no links, or the backup is on another disk
    pages of streams  sealed: linked, with their index; the active one copied up to the position at
                      the cut, without its index; the head written again, as of the cut
    staged pages      copied, those that decided batches still have to move
    .qi .qs, open .rdq                copied; what was added to them since the cut is not named by
                      the checkpoint, and so is harmless
    checkpoint-<n>    written again, clean and with no log after it
    VERSION           last (`data_directory.py`), after the copy of each vhost was verified

Each file and directory is synced before VERSION is. The copy is the store as of the cut: without
what was published later, and with what was acknowledged later. Damage to a linked file is damage to
both stores, so keep a backup on another disk too.

`step` does a little and returns; the owner calls it between other work, as it does `tick`. A worker
verifies the copy (verify.py). Deleting waits until the end, so the disk needs room for what is
deleted meanwhile.

Failure: any OSError, DiskFullError if the checkpoint has no room, CorruptionError if the copy does
not verify, as a rule because the source is damaged. The source continues, the deletions that waited
are done, the copy stays UNFINISHED and the next backup begins again. After a crash the next start
finds the files that were to be deleted as orphans.
"""

import errno
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Final

from penstock.errors import CorruptionError
from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import FreshDirectory, write_small
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.journal import checkpoint
from penstock.storage.journal.checkpoint import IDLE, SLICES, Manifest
from penstock.storage.journal.recovery import PARTS
from penstock.storage.pages.adoption import is_adopted
from penstock.storage.pages.batches import decode_section
from penstock.storage.pages.staging import query_path, staging_path
from penstock.storage.pages.stream_meta import (
    ALL_META,
    READ_META,
    WRITE_META,
    StreamHead,
    encode_head,
    encode_tail,
)
from penstock.storage.store.store_file import HEADER_BYTES, FileState
from penstock.storage.tools.verify import Report, verify

COPY_BYTES: Final = 1 << 20  # in one step
_NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.ENOTSUP)


class Backup:
    """The backup of one running engine into a data directory in the making.

    checkpoint_number: of its checkpoint, 0 until that is made. is_waiting: the next step waits for
    the disk. linked, copied: numbers of files.
    """

    def __init__(self, engine: StorageEngine, fresh: FreshDirectory) -> None:
        self.checkpoint_number: int = 0
        self.is_waiting: bool = True
        self.linked: int = 0
        self.copied: int = 0
        self.copied_bytes: int = 0
        self._engine = engine
        self._fs: FileSystem = engine.fs
        self._fresh = fresh
        self._directories: dict[str, None] = {}  # made or changed in the copy, to be synced
        self._work = self._steps()

    def step(self) -> bool:
        """Do a little; False when this engine's part is done. Raises as the head of this module
        says, and ends then."""
        return next(self._work, False)

    def abandon(self) -> None:
        """End the backup unfinished. The source continues."""
        self._work.close()

    # ---- the work ------------------------------------------------------------------------------

    def _steps(self) -> Generator[bool, None, None]:
        engine = self._engine
        engine.journal.pin_files()
        try:
            yield from self._checkpoint()
            number = self.checkpoint_number
            self.is_waiting = False
            manifest = checkpoint.read(engine.fs, engine.path, number, engine.vhost)
            name = engine.fs.read(engine.path + "/.vhost").removesuffix(b"\n")
            target = self._fresh.vhost(name)
            for part in PARTS:
                self._make(f"{target}/{part}")
            yield from self._copy_queues(manifest, target + "/queues")
            yield from self._copy_store(manifest, target + "/msg_store_persistent")
            yield from self._copy_streams(manifest, target + "/streams")
            yield from self._copy_staged(manifest, target)
            for directory in self._directories:
                self._fs.sync_dir(directory)
                yield True
            self._write_checkpoint(manifest, target)
        finally:
            engine.journal.unpin_files()
        yield from self._verify(target)

    def _checkpoint(self) -> Iterator[bool]:
        """Wait for a checkpoint whose cut is after the pin."""
        engine = self._engine
        while engine.checkpoints.phase != IDLE:
            yield self._slice()
        engine.upkeep.begin_checkpoint(is_whole=True)
        while engine.checkpoints.phase == IDLE:  # a large commit is under way: no cut within it
            yield True
            engine.upkeep.begin_checkpoint(is_whole=True)
        before = engine.checkpoints.count
        while engine.checkpoints.count == before:
            if engine.checkpoints.phase == IDLE:
                raise engine.disk_error(engine.checkpoints.bytes)
            yield self._slice()
        self.checkpoint_number = engine.checkpoints.number

    def _slice(self) -> bool:
        engine = self._engine
        engine.journal.check()
        if engine.checkpoints.phase == SLICES:
            engine.upkeep.step_checkpoint(engine.clock.monotonic() + engine.options.slice_ms / 1000)
        return True

    def _copy_queues(self, manifest: Manifest, target: str) -> Iterator[bool]:
        """Copy slots and .qs of all segments with live entries, or with references to be read."""
        fs = self._fs
        source = self._engine.path + "/queues"
        directories: dict[int, str] = {}
        for name in fs.list(source):
            digits = name.rpartition(".")[2]
            if digits.isdecimal():
                directories[int(digits)] = name
        wanted = [(q, n) for q, s in manifest.queues.items() for n in s.segments]
        wanted += list(manifest.reaping)
        for queue, segment in dict.fromkeys(wanted):
            directory = directories.get(queue)
            if directory is None:
                continue  # a small queue: its entries are in the checkpoint
            inner = f"{target}/{directory}"
            if inner not in self._directories:
                self._make(inner)
                name_bytes = fs.read(f"{source}/{directory}/.queue_name")
                write_small(fs, inner + "/.queue_name", name_bytes)
            for ending in (".qi", ".qs"):
                old = f"{source}/{directory}/{segment}{ending}"
                if fs.exists(old):
                    yield from self._copy(old, f"{inner}/{segment}{ending}", fs.size(old))

    def _copy_store(self, manifest: Manifest, target: str) -> Iterator[bool]:
        fs = self._fs
        source = self._engine.path + "/msg_store_persistent"
        for data in manifest.store:
            state = FileState.decode(data)
            if state.own is not None:
                for number in state.own.numbers():
                    part = f"{number & 0xFF:02x}"
                    self._make(f"{target}/{part}")
                    yield from self._link(source, target, f"{part}/{number}.msg")
            elif state.is_sealed:
                yield from self._link(source, target, f"{state.number}.rdq")
                if fs.exists(f"{source}/{state.number}.hint"):
                    yield from self._link(source, target, f"{state.number}.hint")
            else:
                name = f"{state.number}.rdq"
                length = HEADER_BYTES + state.total_bytes
                yield from self._copy(f"{source}/{name}", f"{target}/{name}", length)

    def _copy_streams(self, manifest: Manifest, target: str) -> Iterator[bool]:
        """Copy or link the pages of each stream, from the first one in the checkpoint."""
        fs = self._fs
        for directory in self._engine.fs.list(self._engine.path + "/streams"):
            digits = directory.rpartition(".")[2]
            section = manifest.streams.get(int(digits)) if digits.isdecimal() else None
            if section is None:
                continue
            source, inner = f"{self._engine.path}/streams/{directory}", f"{target}/{directory}"
            self._make(inner)
            for name in (".queue_name", ALL_META):
                write_small(fs, f"{inner}/{name}", fs.read(f"{source}/{name}"))
            position = section.position
            for name in fs.list(source):
                stem, _, ending = name.partition(".")
                if ending not in ("page", "idx") or not stem.isdecimal():
                    continue
                base = int(stem)
                is_last = base == position.page_base and position.page_bytes > 0
                if position.first_offset <= base < position.page_base or (
                    is_last and is_adopted(fs, f"{source}/{stem}.page")
                ):
                    yield from self._link(source, inner, name)
                elif is_last and ending == "page":
                    length = position.page_bytes
                    yield from self._copy(f"{source}/{name}", f"{inner}/{name}", length)
            p = position
            head = StreamHead(p.next_offset, p.page_base, p.page_bytes, p.last_time_us)
            write_small(fs, f"{inner}/{WRITE_META}", encode_head(head))
            write_small(fs, f"{inner}/{READ_META}", encode_tail(p.first_offset))

    def _copy_staged(self, manifest: Manifest, target: str) -> Iterator[bool]:
        """Copy the pages that batches still have to move. No links: adoption writes into a page."""
        fs = self._fs
        for data in manifest.batches:
            batch = decode_section(data)
            source = query_path(self._engine.path, batch.query)
            inner = query_path(target, batch.query)
            for page in batch.pages[batch.page :]:
                if inner not in self._directories:
                    self._make(staging_path(target))
                    self._make(inner)
                    write_small(fs, inner + "/.query_name", batch.query.encode() + b"\n")
                stem = page.name.removesuffix(".page")
                for name in (page.name, stem + ".idx"):
                    size = fs.size(f"{source}/{name}")
                    yield from self._copy(f"{source}/{name}", f"{inner}/{name}", size)

    def _link(self, source: str, target: str, name: str) -> Iterator[bool]:
        """Link a file that never changes, or copy it."""
        old, new = f"{source}/{name}", f"{target}/{name}"
        try:
            self._fs.link(old, new)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            yield from self._copy(old, new, self._fs.size(old))
            return
        # The checkpoint has synced its content; the name is synced with its directory.
        self.linked += 1
        yield True

    def _copy(self, old: str, new: str, length: int) -> Iterator[bool]:
        """Copy and sync the first `length` bytes of a file."""
        with (
            closing(self._fs.open(old)) as source,
            closing(self._fs.open(new, create=True)) as target,
        ):
            target.truncate(0)
            for at in range(0, length, COPY_BYTES):
                target.pwrite(source.pread(min(COPY_BYTES, length - at), at), at)
                yield True
            target.sync()
        self.copied += 1
        self.copied_bytes += length

    def _verify(self, target: str) -> Iterator[bool]:
        """Verify the copy of this vhost in a worker. CorruptionError names its first problem."""
        fs = self._fs
        found: list[Report] = []
        errors: list[BaseException] = []
        self._engine.journal.submit(lambda: verify(fs, target), _keep(found), errors.append)
        self.is_waiting = True
        while not found and not errors:
            self._engine.journal.check()
            yield True
        self.is_waiting = False
        if errors:
            raise errors[0]
        (report,) = found
        if not report.is_fine:
            problem, n = report.problems[0], len(report.problems)
            others = f" (and {n - 1} others)" if n > 1 else ""
            raise CorruptionError(
                problem.path, problem.position,
                f"the backup does not verify: {problem.text}{others}; the copy is not finished",
            )  # fmt: skip

    def _make(self, path: str) -> None:
        self._fs.mkdir(path)
        self._directories[path] = None
        self._directories[path.rpartition("/")[0]] = None

    def _write_checkpoint(self, manifest: Manifest, target: str) -> None:
        """Write the same checkpoint without a log."""
        head = replace(manifest.head, log_segment=0, log_position=0)
        queues: list[bytes] = []
        for number, section in manifest.queues.items():
            section.mark = min(section.mark, section.next_seq)
            queues.append(checkpoint.encode_queue(number, section, head.segment_slots))
        sections = checkpoint.encode_sections(
            head, manifest.topology, queues, manifest.store, manifest.reaping,
            manifest.streams.items(), manifest.leases, manifest.batches,
            manifest.windows,
        )  # fmt: skip
        # 2 at the least: a first checkpoint without CURRENT would pass for a store never used.
        number = max(manifest.number, 2)
        data = checkpoint.encode_file(self._engine.vhost, number, sections, is_clean=True)
        checkpoint.write(self._fs, target, number, data)


def _keep(found: list[Report]) -> Callable[[object], None]:
    def done(result: object) -> None:
        assert isinstance(result, Report)
        found.append(result)

    return done


def backup(engines: list[StorageEngine], directory: str) -> list[Backup]:
    """Make a whole backup of these engines now; each has a FileSystem of its own, over the same
    disk. `directory` must be free or an unfinished backup (NotAStoreError). Raises as the head
    says."""
    fresh = FreshDirectory(engines[0].fs, directory, "a backup")
    done: list[Backup] = []
    try:
        for engine in engines:
            part = Backup(engine, fresh)
            done.append(part)
            while part.step():
                engine.flush()
                engine.poll(wait=part.is_waiting)
    except BaseException:
        for part in done:
            part.abandon()
        fresh.abandon()
        raise
    fresh.finish()
    return done
