"""How a stream starts: made, found alone after a crash, or restored under a vhost's log.

Made. The directory and allMeta, synced with the directories that hold them, before anything else;
then an empty writeMeta. In a vhost the directory is there, and its name is the vhost's to sync.
Until allMeta is there nothing in the directory counts.

Alone. What writeMeta says was forced before it was written, so up to there the pages must be whole.
Behind it there may be more: frames that were forced when writeMeta had not reached the disk,
frames that were only written, a torn one. A page is synced before the next one is begun, so only
the last one can be torn: there every frame that verifies, one behind the other, is taken; the rest
is cut, and told. So nothing forced is lost, and damage is told from a torn tail wherever writeMeta
or a page behind says that the bytes were there: such a page keeps its place and its length, and who
reads the bad record is told. Without a good writeMeta the last page is scanned from its beginning,
and writeMeta is made again.
    Everything that is believed is synced first and read from the disk [8].
    A writeMeta without a page, or of a page below readMeta, is that of a stream whose last page
    retention was taking: it is finished.

Restored. Nothing is scanned: the log says what there is. See `restore`.
"""

import contextlib
import random
from typing import TYPE_CHECKING

from penstock.errors import CorruptionError, NetworkFileSystemError, NotAStoreError, SyncFailedError
from penstock.storage import stream_meta
from penstock.storage.data_directory import not_of_volume, sync_dir
from penstock.storage.filesystem import NETWORK_KINDS, FileSystem, Lock
from penstock.storage.page import PAGE_HEADER_BYTES, page_name
from penstock.storage.page_reading import list_bases
from penstock.storage.page_writer import PageWriter
from penstock.storage.queue_name import QUEUE_NAME
from penstock.storage.stream_meta import (
    ALL_META,
    NEW,
    READ_META,
    READERS,
    WRITE_META,
    AllMeta,
    Head,
    Position,
)
from penstock.storage.stream_retention import unlink_page

if TYPE_CHECKING:
    from penstock.storage.persistent_queue import PersistentQueue

LOCK = "LOCK"


# ---- made --------------------------------------------------------------------------------------


def make_directory(fs: FileSystem, path: str) -> None:
    """The directory, its name durable: also if it was there, for whoever made it may have died
    before. OSError, SyncFailedError."""
    if fs.exists(path) and not fs.is_dir(path):
        raise NotAStoreError(path, "it is a file, expected a directory")
    fs.mkdir(path)
    sync_dir(fs, path.rstrip("/").rpartition("/")[0] or ("/" if path[0] == "/" else "."))


def lock(fs: FileSystem, path: str, create: bool) -> Lock:
    """The lock of a queue that stands alone. LockedError, NotAStoreError, NetworkFileSystemError,
    OSError."""
    make_directory(fs, path)
    if create and not fs.exists(f"{path}/{ALL_META}"):
        _check_free(fs, path)  # before anything is put into it
    kind = fs.kind(path)
    if kind in NETWORK_KINDS:
        raise NetworkFileSystemError(path, kind)
    return fs.lock(f"{path}/{LOCK}")


def open_all(
    fs: FileSystem, path: str, number: int, page_bytes: int, rng: random.Random, create: bool
) -> tuple[AllMeta, bool]:
    """(what the stream is, whether it was made just now)."""
    file = f"{path}/{ALL_META}"
    if fs.exists(file):
        meta = stream_meta.decode_all(file, fs.read(file))
        if meta.number and not number:
            raise NotAStoreError(path, "it is a stream of a vhost, which has its log beside it")
        return meta, False
    if not create:
        raise CorruptionError(file, 0, "it is missing")
    fs.mkdir(path)
    _check_free(fs, path)
    meta = AllMeta(number, rng.getrandbits(128).to_bytes(16, "little"), page_bytes)
    stream_meta.replace_small(fs, path, ALL_META, stream_meta.encode_all(meta))
    return meta, True


def _check_free(fs: FileSystem, path: str) -> None:
    """NotAStoreError: the directory has something that is not of a stream which is being made.
    CorruptionError: what it has is of a stream, and allMeta is not there."""
    names = set(not_of_volume(fs.list(path))) - {LOCK, QUEUE_NAME, ALL_META + NEW, WRITE_META}
    if any(name.endswith((".page", ".idx")) or name == READ_META for name in names):
        raise CorruptionError(f"{path}/{ALL_META}", 0, "it is missing, and the directory has pages")
    if names:
        raise NotAStoreError(path, f"it is not empty and no stream (it has {sorted(names)[0]!r})")


# ---- alone -------------------------------------------------------------------------------------


def start_alone(queue: "PersistentQueue") -> None:
    """Find everything that was forced, cut the rest."""
    fs, path = queue.fs, queue.path
    sync_dir(fs, path)  # names that are seen here may be on no disk yet
    if fs.exists(f"{path}/{READERS}"):
        sync_dir(fs, f"{path}/{READERS}")
    queue.readers = stream_meta.load_readers(fs, path)
    known = None if queue.is_new else _known_head(queue)
    was_lost = known is None
    bases = list_bases(fs, path)
    if known is not None and not known.page_bytes and known.next_offset > queue.pages.first_base:
        queue.pages.first_base = known.next_offset  # retention was about to take all of it
        _replace_tail(queue)
    first = queue.pages.first_base
    if known is not None and known.page_base < first and known.next_offset <= first:
        known = Head(first, first, 0, known.last_time_us)  # it had come further than this head
    for base in bases:
        if base < first:
            unlink_page(fs, path, base)
    bases = [base for base in bases if base >= first]
    if known is not None and known.page_bytes and known.page_base not in bases:
        page = f"{path}/{page_name(known.page_base)}.page"
        raise CorruptionError(page, 0, f"the page is missing, the head is {known.next_offset}")
    if bases and bases[0] != first:
        bases.insert(0, first)  # missing: who reads it is told
    if known is not None and not known.page_bytes:
        known = Head(first, first, 0, known.last_time_us)  # nothing of these was ever forced
        queue.last_time_us = known.last_time_us
    _take_pages(queue, bases, known)
    if not queue.is_new and was_lost:
        queue.event("healed", f"{path}/{WRITE_META}: made again from the pages")
    queue.pages.heal_all()
    writer = queue.writer
    if writer is None:
        queue.publish(Head(queue.next_offset, first, 0, queue.last_time_us), True)
        sync_dir(fs, path)
        return
    queue.publish(Head(queue.next_offset, writer.base, writer.written, queue.last_time_us), True)


def _replace_tail(queue: "PersistentQueue") -> None:
    """Let readMeta say which the first page is, for good. SyncFailedError, OSError."""
    tail = stream_meta.encode_tail(queue.pages.first_base)
    stream_meta.replace_small(queue.fs, queue.path, READ_META, tail)


def _known_head(queue: "PersistentQueue") -> Head | None:
    """What writeMeta says, if it can be read."""
    path = f"{queue.path}/{WRITE_META}"
    with contextlib.suppress(FileNotFoundError, CorruptionError):
        _believe(queue.fs, path)
        return stream_meta.decode_head(path, queue.fs.read(path))
    return None


def _believe(fs: FileSystem, path: str) -> None:
    """Sync a file and drop it from the cache, which may show what is on no disk [8]."""
    file = fs.open(path)
    try:
        try:
            file.sync()
        except OSError as error:
            raise SyncFailedError(path, error) from error
        file.drop_cache()
    finally:
        file.close()


def _take_pages(queue: "PersistentQueue", bases: list[int], known: Head | None) -> None:
    """Find the page that was written last, and the last frame in it; what is behind that goes.

    A page is synced to its end before anything of the next one is written. So pages before one that
    has a good header are complete, whatever they look like now, and only the last can be torn.
    """
    fs, path = queue.fs, queue.path
    taken = list(bases)
    writer: PageWriter | None = None
    fault = ""
    while taken and writer is None and (known is None or taken[-1] >= known.page_base):
        base = taken[-1]
        page = f"{path}/{page_name(base)}.page"
        found = PageWriter(fs, path, queue.stream_id, queue.number, base)
        try:
            if known is not None and known.page_bytes and base == known.page_base:
                _believe(fs, page)
                found.resume(known.page_bytes, known.next_offset - base, known.last_time_us)
                writer = found
            elif fs.exists(page):
                _believe(fs, page)
                found.resume(PAGE_HEADER_BYTES, 0, 0)
                writer = found
        except CorruptionError:
            # Nothing of a page behind the head was forced; without a head, nothing that is zeros.
            if known is not None and known.page_bytes and base == known.page_base:
                raise
            if known is None and fs.read(page).strip(b"\0"):
                raise
        if writer is not None:
            fault = writer.extend(writer.open_page().size())
        if writer is None or not writer.count:
            writer = None
            found.close()
            taken.pop()
            queue.event("cut", f"{page}: it has no record")
            unlink_page(fs, path, base)
    if writer is not None:
        _cut(queue, writer, fault)
        queue.next_offset = writer.base + writer.count
        queue.last_time_us = writer.last_time_us
        queue.pages.set_bases(taken[:-1])
        queue.take_writer(writer)
    elif taken:
        raise CorruptionError(
            f"{path}/{page_name(taken[-1])}.page", 0, "no page can be gone on with"
        )
    else:
        queue.next_offset = queue.pages.first_base
    sync_dir(fs, path)


def _cut(queue: "PersistentQueue", writer: PageWriter, fault: str) -> None:
    """Cut what is behind the last good frame, for good."""
    page = writer.open_page()
    size = page.size()
    if size > writer.written:
        text = f"{size - writer.written} bytes cut at byte {writer.written}: {fault}"
        queue.event("cut", f"{page.path}: {text}")
        page.truncate(writer.written)
    writer.begin_index()
    try:
        writer.sync()
    except OSError as error:
        raise SyncFailedError(writer.stem, error) from error


# ---- restored ----------------------------------------------------------------------------------


def restore(queue: "PersistentQueue", position: Position) -> None:
    """The state as of a checkpoint, which had synced the pages up to there. Writes nothing.

    Retention may have taken that very page since: then it is passed over, and the records that the
    log has of it are counted and not written, until the first page begins that readMeta names.
    """
    fs, path = queue.fs, queue.path
    if queue.is_new and position.next_offset:
        raise CorruptionError(f"{path}/{ALL_META}", 0, "it is missing, and the stream has records")
    queue.is_restoring = True
    queue.next_offset = position.next_offset
    queue.last_time_us = position.last_time_us
    first = queue.pages.first_base
    if not position.page_bytes:
        if position.next_offset > first:  # retention had decided to take all that there was
            queue.pages.first_base = position.next_offset
            queue.is_tail_due = True
        return
    bases = [base for base in list_bases(fs, path) if first <= base < position.page_base]
    if first < position.page_base and (not bases or bases[0] != first):
        raise CorruptionError(f"{path}/{page_name(first)}.page", 0, "the page is missing")
    queue.pages.set_bases(bases)
    writer = PageWriter(fs, path, queue.stream_id, queue.number, position.page_base)
    count = position.next_offset - position.page_base
    if position.page_base < first:
        writer.pass_over(position.page_bytes, count, position.last_time_us)
    else:
        page = f"{writer.stem}.page"
        if fs.exists(page):
            _believe(fs, page)
        writer.resume(position.page_bytes, count, position.last_time_us)
    queue.take_writer(writer)


def finish_restore(queue: "PersistentQueue", held_at: int) -> None:
    """The log has no more: write it all, publish the head, cut what is beyond it. held_at: the
    head's offset, if it is to wait there; -1: at the end."""
    fs, path = queue.fs, queue.path
    if queue.is_tail_due:
        _replace_tail(queue)
        queue.is_tail_due = False
    queue.write()
    first = queue.pages.first_base
    writer = queue.writer
    if writer is not None and writer.base < first:
        queue.writer = writer = None
    if queue.next_offset < first:
        # Everything that the log has was deleted; what came after it was lost with the log. Those
        # offsets were seen by readers, and are not used again.
        queue.event("lost", f"{path}: the log ends at {queue.next_offset}, go on at {first}")
        queue.next_offset = first
    if writer is None:
        head = Head(queue.next_offset, queue.next_offset, 0, queue.last_time_us)
    else:
        head = Head(queue.next_offset, writer.base, writer.written, queue.last_time_us)
    if queue.pages.bases and first <= held_at < queue.next_offset:
        queue.publish_at(held_at)
    else:
        queue.publish(head, False)
    known = set(queue.pages.bases)
    for base in list_bases(fs, path):
        if base not in known and base >= first:
            unlink_page(fs, path, base)
    if writer is not None:
        page = writer.open_page()
        if page.size() > writer.written:
            page.truncate(writer.written)
        writer.begin_index()
        queue.dirty[page.path] = None
        queue.dirty[f"{writer.stem}.idx"] = None
    if fs.exists(f"{path}/{READ_META}"):
        queue.dirty[f"{path}/{READ_META}"] = None
    queue.dirty_directories[path] = None
    queue.is_restoring = False


def leftovers(fs: FileSystem, path: str, first: int) -> list[str]:
    """Files of pages below the first one."""
    found: list[str] = []
    for name in fs.list(path):
        stem, _, ending = name.rpartition(".")
        if ending in ("page", "idx") and len(stem) == 20 and stem.isdecimal() and int(stem) < first:
            found.append(f"{path}/{name}")
    return found
