"""LeasePages: what a reader has leased, in the pages of a stream, for whoever serves or maps them.

A lease looks like a stream to its reader, so it is given the files of one: a PersistentQueue whose
offsets are the ordinals and whose first offset is what was committed when the pages were made. All
that reads streams (views, page spans, Arrow columns) reads leases.

    <vhost>/leases/<hash(queue)>.<number>.<hash(reader)>/     allMeta, writeMeta, readMeta,
                                                              <base>.page, <base>.idx

This is derived data and never evidence: nothing of it is synced or in a checkpoint, a start wipes
all of it, and it is made again from the slots when somebody asks. The same bytes come out: a page's
id comes from the lease's id and its first ordinal, times are those of the messages, never
decreasing (`Lease.floor_s`).

A record: payload is the body, meta the header as it is stored, time_us that of the message.

Failure: an OSError leaves pages that are to be thrown away (`delete`), no message is touched.
"""

import contextlib
import random
from typing import Final

from penstock.clock import ManualClock
from penstock.message import Message
from penstock.storage import stream_meta
from penstock.storage.data_directory import hash_name
from penstock.storage.filesystem import FileSystem
from penstock.storage.leases import DIRECTORY, Lease
from penstock.storage.persistent_queue import PersistentQueue
from penstock.storage.stream_meta import AllMeta, Position
from penstock.storage.stream_retention import unlink_page

PAGE_BYTES: Final = 16 << 20
# Never asked: every record brings its time, and the id is the lease's.
_CLOCK: Final = ManualClock()
_RNG: Final = random.Random(0)


def pages_path(vhost_path: str, queue: bytes, number: int, reader: str) -> str:
    """The directory of a lease's pages. queue: its name as people know it; number: of its first
    part."""
    name = reader.encode("utf-8", "surrogateescape")
    return f"{vhost_path}/{DIRECTORY}/{hash_name(queue)}.{number}.{hash_name(name)}"


class LeasePages:
    """The pages of one lease from its `committed` on, empty so far. path: see `pages_path`; what is
    there is thrown away. OSError."""

    def __init__(self, fs: FileSystem, path: str, lease: Lease, page_bytes: int) -> None:
        self._fs = fs
        self.path: str = path
        self.stream_id: bytes = lease.id
        self._is_used: bool = True  # since the last `rest`
        self._has_handles: bool = True
        delete_files(fs, path)
        fs.mkdir(path.rpartition("/")[0])
        fs.mkdir(path)
        first, floor_us = lease.committed, lease.floor_s * 1_000_000
        self._write(stream_meta.READ_META, stream_meta.encode_tail(first))
        meta = AllMeta(lease.queue, lease.id, page_bytes)
        self._write(stream_meta.ALL_META, stream_meta.encode_all(meta))
        self._queue: PersistentQueue = PersistentQueue(
            fs, path, page_bytes=page_bytes, forces=False, number=lease.queue, clock=_CLOCK,
            rng=_RNG, create=False,
        )  # fmt: skip
        self._queue.restore(Position(first, 0, first, floor_us, first))
        self._queue.finish_restore()

    def _write(self, name: str, data: bytes) -> None:
        file = self._fs.open(f"{self.path}/{name}", create=True)
        try:
            file.pwrite(data, 0)
        finally:
            file.close()

    @property
    def next_ordinal(self) -> int:
        """All from the first one up to this is there."""
        return self._queue.next_offset

    @property
    def last_time_us(self) -> int:
        """The time of the last record, microseconds since 1970."""
        return self._queue.last_time_us

    def append(self, message: Message, body: bytes) -> None:
        """The next record; it is in RAM until `publish`. ValueError: no page can take it."""
        self._queue.append(body, message.header, message.time * 1_000_000)

    def publish(self) -> None:
        """Write what was appended, and let readers have it. OSError."""
        queue = self._queue
        self._is_used = self._has_handles = True
        queue.write()
        queue.publish_head(queue.next_offset)
        queue.take_dirty()  # nobody syncs them

    def rest(self) -> None:
        """Called now and then: files that were not used since the last time are closed, until they
        are needed again."""
        if not self._is_used and self._has_handles:
            self._queue.release_handles()
            self._has_handles = False
        self._is_used = False

    def drop_below(self, ordinal: int) -> list[int]:
        """Pages with nothing from this ordinal on are no longer there for readers; their bases, to
        be unlinked. The last page always stays. OSError."""
        pages = self._queue.pages
        bases = pages.bases
        n = 0
        while n + 1 < len(bases) and bases[n + 1] <= ordinal:
            n += 1
        if not n:
            return []
        first = bases[n]
        new = f"{stream_meta.READ_META}{stream_meta.NEW}"
        self._write(new, stream_meta.encode_tail(first))
        self._fs.rename(f"{self.path}/{new}", f"{self.path}/{stream_meta.READ_META}")
        pages.first_base = first
        return pages.take_first(n)

    def unlink(self, bases: list[int]) -> None:
        """Delete these pages' files; may run in any thread. OSError."""
        for base in bases:
            unlink_page(self._fs, self.path, base)

    def close(self) -> None:
        """Close the files; nothing is written."""
        with contextlib.suppress(OSError):
            self._queue.close()

    def delete(self) -> None:
        """Close the files and delete them. OSError."""
        self.close()
        delete_files(self._fs, self.path)


def delete_files(fs: FileSystem, path: str) -> None:
    """Delete a lease's directory, if it is there; a worker may be deleting pages of it too."""
    if fs.exists(path):
        for name in fs.list(path):
            with contextlib.suppress(FileNotFoundError):
                fs.unlink(f"{path}/{name}")
        fs.rmdir(path)
