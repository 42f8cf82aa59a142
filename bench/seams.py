"""File systems for measuring: one that counts and times, one that keeps no large bodies.

Both stand in front of the operating system's own, at the seam where the engine meets its files, so
what is counted is what the engine asked for, whatever the kernel makes of it.
"""

import time
from collections import Counter
from collections.abc import Callable

from penstock.storage.files.filesystem import File, FileSystem, Lock, OsFileSystem

Names = list[str]
Completions = list[tuple[int, object]]

LOG, STORE, QUEUE, OTHER = "log", "store", "queue", "other"


def part_of(path: str) -> str:
    """Which part of a vhost directory a path belongs to."""
    if "/wal/" in path:
        return LOG
    if "/msg_store" in path:
        return STORE
    return QUEUE if "/queues/" in path else OTHER


class Counts:
    """What was done since `reset`, by part: bytes written and syncs; time spent in log syncs."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.written: Counter[str] = Counter()
        self.prepared: Counter[str] = Counter()  # zeros of segments made ahead
        self.syncs: Counter[str] = Counter()
        self.sync_wall: list[float] = []  # seconds of each sync of the log
        self.sync_cpu: list[float] = []


class CountingFile(File):
    """A file that counts into `counts`."""

    def __init__(self, inner: File, counts: Counts) -> None:
        self.inner = inner
        self.path = inner.path
        self.counts = counts

    def pread(self, length: int, offset: int) -> bytes:
        return self.inner.pread(length, offset)

    def pwrite(self, data: bytes, offset: int) -> None:
        self.inner.pwrite(data, offset)
        self.counts.written[part_of(self.path)] += len(data)

    def size(self) -> int:
        return self.inner.size()

    def truncate(self, size: int) -> None:
        self.inner.truncate(size)

    def allocate(self, size: int) -> None:
        self.inner.allocate(size)
        self.counts.prepared[part_of(self.path)] += size

    def sync(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        self.inner.sync()
        part = part_of(self.path)
        self.counts.syncs[part] += 1
        if part == LOG:
            self.counts.sync_wall.append(time.perf_counter() - wall)
            self.counts.sync_cpu.append(time.thread_time() - cpu)

    def drop_cache(self) -> None:
        self.inner.drop_cache()

    def close(self) -> None:
        self.inner.close()


class HollowFile(CountingFile):
    """A file of large bodies that is as long as the real one, and has only what is small of it:
    its header. Nothing of it is worth a sync."""

    def pwrite(self, data: bytes, offset: int) -> None:
        if len(data) < 1024:
            self.inner.pwrite(data, offset)
        elif offset + len(data) > self.inner.size():
            self.inner.truncate(offset + len(data))

    def sync(self) -> None:
        pass


class BlankFile(CountingFile):
    """A file that is not there at all; it remembers nothing and is always synced."""

    def __init__(self, path: str, counts: Counts) -> None:
        self.path = path
        self.counts = counts

    def pread(self, length: int, offset: int) -> bytes:
        return bytes(length)

    def pwrite(self, data: bytes, offset: int) -> None:
        pass

    def size(self) -> int:
        return 0

    def truncate(self, size: int) -> None:
        pass

    def allocate(self, size: int) -> None:
        pass

    def sync(self) -> None:
        pass

    def drop_cache(self) -> None:
        pass

    def close(self) -> None:
        pass


class CountingFileSystem(FileSystem):
    """Counts what goes through it. is_hollow: bodies of the store are not really kept, so that a
    measurement of RAM can have more of them than the disk has room for; nothing reads them."""

    def __init__(self, *, is_hollow: bool = False) -> None:
        self.inner = OsFileSystem()
        self.counts = Counts()
        self.is_hollow = is_hollow
        self.on_complete = None

    def open(self, path: str, *, create: bool = False) -> File:
        if self.is_hollow and "/msg_store" in path and ".msg" in path:
            return BlankFile(path, self.counts)
        inner = self.inner.open(path, create=create)
        if self.is_hollow and path.endswith(".rdq"):
            return HollowFile(inner, self.counts)
        return CountingFile(inner, self.counts)

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def exists(self, path: str) -> bool:
        return self.inner.exists(path)

    def is_dir(self, path: str) -> bool:
        return self.inner.is_dir(path)

    def list(self, path: str) -> Names:
        return self.inner.list(path)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def mkdir(self, path: str) -> None:
        self.inner.mkdir(path)

    def rename(self, old: str, new: str) -> None:
        if not (self.is_hollow and ".msg" in old):
            self.inner.rename(old, new)

    def link(self, old: str, new: str) -> None:
        self.inner.link(old, new)

    def unlink(self, path: str) -> None:
        self.inner.unlink(path)

    def rmdir(self, path: str) -> None:
        self.inner.rmdir(path)

    def sync_dir(self, path: str) -> None:
        self.inner.sync_dir(path)

    def free_bytes(self, path: str) -> int:
        return self.inner.free_bytes(path)

    def kind(self, path: str) -> str:
        return self.inner.kind(path)

    def lock(self, path: str) -> Lock:
        return self.inner.lock(path)

    def submit(self, op: Callable[[], object]) -> int:
        return self.inner.submit(op)

    def completed(self, wait: bool) -> Completions:
        return self.inner.completed(wait)

    def close(self) -> None:
        self.inner.close()
