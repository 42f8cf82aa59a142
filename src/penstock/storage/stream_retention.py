"""Retention: which pages of a stream go, and how they are deleted.

Space comes back by whole pages, from the oldest on. A page that takes no more records goes

    max_age_s     when its last record is older than that
    max_bytes     while all pages together have more bytes than that
    max_records   while the pages behind it have that many records or more

and never one that has a record at or behind what must be kept: the page of the head (what is not
settled may not be lost, and the head must lead somewhere). What a named reader still needs is a
`Hold`: it keeps pages that would go, but only within a bound of age and of bytes. So whoever may
read a stream, and holds it on purpose or by mistake, cannot fill the disk.

So at least `max_records` stay, and at most one page more; and at most `max_bytes` stay, but for the
page that is written.

That last page goes by its age alone: once everything is settled and its newest record is older than
max_age_s, all of an idle stream is gone. The next record then begins a page, although there was
room in the one before. A replay of the log could not tell where that was, but for readMeta: the
page that it names begins where it says, and those before it are not written again. Should a crash
come before readMeta is durable, then nothing of it has happened: the page is there, and takes what
the log has behind it. And should a checkpoint that has no page any more be durable before readMeta
is, then a start lets readMeta follow (stream_start.py).

Deleting is in this order, so that a crash in it leaves nothing half true:
readMeta names the first page that stays, durably; then the others are unlinked, which needs no
sync: a start deletes what it finds below readMeta.
"""

import contextlib
from typing import NamedTuple

from penstock.storage import stream_meta
from penstock.storage.filesystem import FileSystem
from penstock.storage.page import page_name
from penstock.storage.page_reading import PageTable
from penstock.storage.page_writer import PageWriter


class Limits(NamedTuple):
    """What a stream may keep; None: no limit."""

    max_age_s: float | None = None
    max_bytes: int | None = None
    max_records: int | None = None


class Hold(NamedTuple):
    """What a reader asks to keep: all from `offset` on. max_age_s: a record that the limits do not
    keep goes all the same when it is that much older than `max_age_s` of the limits (or than now,
    without one). max_bytes: of pages that only holds keep. None: no bound."""

    offset: int
    max_age_s: float | None = None
    max_bytes: int | None = None


class Retention:
    """Pages that are to be deleted. bases: theirs; pages: how many; first_base: of the first that
    stays."""

    def __init__(self, fs: FileSystem, path: str, bases: list[int], first_base: int) -> None:
        self.fs = fs
        self.path = path
        self.bases = bases
        self.pages = len(bases)
        self.first_base = first_base

    @property
    def paths(self) -> list[str]:
        """The files that go."""
        stems = [f"{self.path}/{page_name(base)}" for base in self.bases]
        return [stem + ending for stem in stems for ending in (".page", ".idx")]

    def run(self, unlink: bool = True) -> None:
        """Move readMeta for good, then delete them; not with unlink=False, if somebody copies them.
        SyncFailedError, OSError: some are still there, and go at the next start."""
        tail = stream_meta.encode_tail(self.first_base)
        stream_meta.replace_small(self.fs, self.path, stream_meta.READ_META, tail)
        for base in self.bases if unlink else ():
            unlink_page(self.fs, self.path, base)


def unlink_page(fs: FileSystem, path: str, base: int) -> None:
    """Delete a page's files; what is gone is fine. OSError."""
    for ending in (".page", ".idx"):
        with contextlib.suppress(FileNotFoundError):
            fs.unlink(f"{path}/{page_name(base)}{ending}")


def choose(
    pages: PageTable, limits: Limits, now_us: int, keep_from: int, next_offset: int,
    active_bytes: int, hold: Hold | None = None,
) -> int:  # fmt: skip
    """How many of the first pages go. OSError."""
    count = _beyond(pages, limits, now_us, keep_from, next_offset, active_bytes)
    if hold is None:
        return count
    bases = pages.bases
    is_held = [bases[i + 1] > hold.offset for i in range(count)]
    if True not in is_held:
        return count
    first = is_held.index(True)
    infos = [pages.info(base) for base in bases[first:count]]
    left = sum([info.bytes for info in infos])
    oldest_us = 0
    if hold.max_age_s is not None:
        oldest_us = now_us - round((hold.max_age_s + (limits.max_age_s or 0)) * 1_000_000)
    for info in infos:
        if info.last_time_us >= oldest_us and (hold.max_bytes is None or left <= hold.max_bytes):
            break
        left -= info.bytes
        first += 1
    return first


def takes_last(writer: PageWriter, limits: Limits, now_us: int, hold: Hold | None) -> bool:
    """Whether the last page goes as well, when all before it do and all of it is settled."""
    age_s = limits.max_age_s
    if age_s is None or not writer.count or writer.written_count < writer.count:
        return False
    age_us = now_us - writer.last_time_us
    if age_us <= round(age_s * 1_000_000):
        return False
    if hold is None or hold.offset >= writer.base + writer.count:
        return True
    if hold.max_age_s is not None and age_us > round((hold.max_age_s + age_s) * 1_000_000):
        return True
    return hold.max_bytes is not None and writer.position > hold.max_bytes


def _beyond(
    pages: PageTable, limits: Limits, now_us: int, keep_from: int, next_offset: int,
    active_bytes: int,
) -> int:  # fmt: skip
    """How many of the first pages the limits do not keep."""
    bases = pages.bases
    age, most, records = limits
    if age is None and most is None and records is None:
        return 0
    total = pages.bytes_before_last() + active_bytes if most is not None else 0
    count = 0
    while count < len(bases) - 1:
        base, end = bases[count], bases[count + 1]
        if end > keep_from:
            break
        goes = records is not None and next_offset - end >= records
        goes = goes or (most is not None and total > most)
        if not goes and age is not None:
            goes = pages.info(base).last_time_us < now_us - round(age * 1_000_000)
        if not goes:
            break
        if most is not None:
            total -= pages.info(base).bytes
        count += 1
    return count
