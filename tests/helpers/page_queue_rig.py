"""Small PersistentQueues for tests: one that stands alone, one in a vhost, and what they hold."""

import random
from typing import Any

from penstock.clock import ManualClock
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.pages.page import PageRecord
from penstock.storage.pages.persistent_queue import PersistentQueue

PATH = "/q"


def alone(fs: FileSystem, page_bytes: int = 512, **options: Any) -> PersistentQueue:
    """A queue that forces its own pages; options as of PersistentQueue."""
    options.setdefault("clock", ManualClock())
    options.setdefault("rng", random.Random(1))
    return PersistentQueue(fs, options.pop("path", PATH), page_bytes=page_bytes, **options)


def logged(fs: FileSystem, page_bytes: int = 512, **options: Any) -> PersistentQueue:
    """A queue in a vhost, number 7."""
    return alone(fs, page_bytes, forces=False, number=7, **options)


def fill(queue: PersistentQueue, count: int, size: int = 20, first_us: int = 1000) -> None:
    """Append so many records; the record of offset n is `content(n, size)` and came at
    first_us + n, or alone is forced too."""
    for _ in range(count):
        offset = queue.next_offset
        payload, meta = content(offset, size)
        queue.append(payload, meta, first_us + offset)
    if queue.forces:
        queue.force()
    else:
        queue.publish_head(queue.next_offset)


def content(offset: int, size: int = 20) -> tuple[bytes, bytes]:
    """(payload, meta) of a record that `fill` made."""
    return b"%d-" % offset + b"x" * size, b"m%d" % offset


def offsets(records: list[PageRecord]) -> list[int]:
    return [record.offset for record in records]


def files(fs: Any, path: str = PATH) -> dict[str, bytes]:
    """Every file below `path`, by its name there."""
    names = [name for name in fs.names() if name.startswith(path + "/") and name[-1] != "/"]
    return {name[len(path) + 1 :]: fs.read(name) for name in names}
