"""What a PersistentQueue does when a staged page becomes its next page (adoption.py).

The page that was written so far is full, whatever its size; the adopted one stands behind it as the
last page, takes no record, and the next record begins a new one. Its records have their offsets at
once. Its files follow: until they are there nothing of it counts as written, so that neither the
head nor the sealing of pages behind it passes it. Restored by a log whose page retention has taken
since, it stands for where its records ended, as any other page does.
"""

from typing import TYPE_CHECKING

from penstock.storage.page_writer import PageWriter

if TYPE_CHECKING:
    from penstock.storage.persistent_queue import PersistentQueue


def adopt(
    queue: "PersistentQueue", page_id: int, count: int, size: int, time_us: int
) -> PageWriter:  # fmt: skip
    """The next page is one with this id, of so many records and bytes, all of that time, which is
    not before that of the last record. Its files are to be placed by who asked."""
    writer = queue.writer
    if writer is not None:
        assert writer.count, "a page of a vhost's stream has a record"
        queue.set_aside(writer)
    page = PageWriter(queue.fs, queue.path, queue.stream_id, queue.number, queue.next_offset)
    page.adopt(page_id, size, count, time_us)
    if page.base >= queue.pages.first_base:
        page.await_files()
    queue.take_writer(page)
    queue.last_time_us = time_us
    queue.next_offset += count
    return page


def pages_for_find(queue: "PersistentQueue") -> tuple[int, int]:
    """(how many pages may be read, the offset behind them): those before one that has no files."""
    pages = queue.pages
    for page in queue.unsealed():
        if not page.is_placed:
            return pages.bases.index(page.base), page.base
    return len(pages), queue.next_offset
