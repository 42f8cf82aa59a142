"""StreamPages: what a directory of pages holds: its head, times, and the records of a range.

The directory is a partition's of a stream, or that of what a reader has leased: pages with a head
both. They are read beside their owner, as any reader may who has them (storage.stream_view).

A range must be there when it is asked for: from below the first record, or to beyond the head, is a
416 that says what there is (`first`, `head`). Retention may take pages while they are read; what is
open stays readable, the rest ends the answer, and the reader's next request is told.

Not here: where the directories are (places).
"""

import errno
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from penstock.http.byte_cache import ByteCache
from penstock.http.http_errors import HttpError
from penstock.http.page_spans import Span, open_page
from penstock.http.range_query import RangeQuery
from penstock.storage.filesystem import FileSystem
from penstock.storage.page_table import list_bases
from penstock.storage.stream_meta import Head
from penstock.storage.stream_view import StreamView

CACHE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """Records [first, last) of the partition at `path`, as of one moment: they are below `head`."""

    path: str
    stream_id: bytes
    head: Head
    first: int
    last: int


class StreamPages:
    """Any thread may call."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._cache = ByteCache(CACHE_BYTES)

    def range(self, path: str, query: RangeQuery) -> Range:
        """What a query asks for. HttpError 400, 416; NotAStoreError: the stream is no more;
        CorruptionError, OSError."""
        if query.first is not None and query.last is not None and query.last < query.first:
            text = f"parameter 'to' is {query.last}, below 'from', which is {query.first}"
            raise HttpError(400, text)
        with closing(StreamView(self._fs, path)) as view:
            head, there = view.head(), view.first_offset()
            first = query.first
            if first is None:
                first = there
                if query.since_us is not None:
                    first = min(view.find(query.since_us), head.next_offset)
        last = max(head.next_offset if query.last is None else query.last, first)
        if first < there or first > head.next_offset or last > head.next_offset:
            raise _missing(f"records {first} to {last}", there, head)
        if query.limit is not None:
            last = min(last, first + query.limit)
        return Range(path, view.stream_id, head, first, last)

    def find(self, path: str, time_us: int) -> dict[str, int]:
        """offset: of the first record that came then or later; first; head. Errors as `range`."""
        with closing(StreamView(self._fs, path)) as view:
            head, there = view.head(), view.first_offset()
            found = min(view.find(time_us), head.next_offset)
        return {"offset": found, "first": there, "head": head.next_offset}

    def table(self, path: str) -> dict[str, object]:
        """The pages that have something below the head, the oldest first. Errors as `range`."""
        with closing(StreamView(self._fs, path)) as view:
            pages = [
                {
                    "base": page.base, "records": page.count, "bytes": page.bytes,
                    "first_time_us": page.first_time_us, "last_time_us": page.last_time_us,
                    "is_sealed": page.is_sealed,
                }
                for page in view.pages()
            ]  # fmt: skip
        return {"pages": pages}

    def missing(self, wanted: Range) -> HttpError:
        """A 416: retention has taken what was asked for."""
        with closing(StreamView(self._fs, wanted.path)) as view:
            what = f"records {wanted.first} to {wanted.last}"
            return _missing(what, view.first_offset(), view.head())

    def spans(self, wanted: Range) -> Iterator[Span]:
        """The records of a range, verified. CorruptionError; FileNotFoundError: retention was
        there first; OSError."""
        first, last, head = wanted.first, wanted.last, wanted.head
        if first >= last:
            return
        bases = list_bases(self._fs, wanted.path)
        for number in range(max(bisect_right(bases, first) - 1, 0), len(bases)):
            base = bases[number]
            end = bases[number + 1] if number + 1 < len(bases) else last
            if base > first or first >= last:
                break
            limit = head.page_bytes if base == head.page_base else None
            page = open_page(self._fs, wanted.path, wanted.stream_id, base, limit, self._cache)
            with closing(page):
                yield from page.spans(first - base, min(last, end) - base)
            first = min(last, end)
        if first < last:
            reason = f"no page with offset {first}"
            raise FileNotFoundError(errno.ENOENT, reason, wanted.path)


def _missing(what: str, first: int, head: Head) -> HttpError:
    text = f"{what} were asked for, there are {first} to {head.next_offset}"
    return HttpError(416, text, first=first, head=head.next_offset)
