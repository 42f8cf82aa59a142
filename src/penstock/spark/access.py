"""Access: how a task gets the frames of its range, from the store's own files or from the broker.

A task is told both ways: the directory of the partition as the broker has it, and the broker. It
maps the pages if that directory is there *and* is that stream (the id in allMeta is the expected
one, and that in the header of each page follows from it): on another machine the same path may be
another store. Else it asks the broker for the same frames, in chunks of about a MiB. Either way
rows and bytes come out, verified, and one code makes the columns (arrow_batches.py).

    access=auto       as just said
    access=file       the files, or a failure that says why not
    access=network    the broker, always

What retention took before it could be read is a StreamGapError that says where to go on. A
connection that breaks is made again, and the range goes on behind the last whole chunk; several
breaks with nothing between them are the task's failure, and Spark's to try again.

The messages of a lease are read in the same two ways. Its pages are only a copy of what the broker
keeps elsewhere, made anew when it starts: where they are not as expected, the broker is asked for
the rest of the range. Messages that the reader does not have any more are a LeaseGoneError.

Not here: what to read (plan.py), what of a loss is an error (source.py).
"""

import http.client
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import CorruptionError, PenstockError, StorageError, StreamGapError
from penstock.page_frames import (
    HEADER_BYTES,
    ChunkHead,
    Frames,
    PageMap,
    decode_chunk,
    decode_chunk_head,
)
from penstock.spark.http_link import (
    LEASES,
    NOT_FOUND,
    RANGE,
    STREAMS,
    UNAVAILABLE,
    HttpLink,
    LinkError,
    RefusedError,
    kept_link,
)
from penstock.spark.plan import Range
from penstock.spark.source_options import SourceOptions
from penstock.storage.filesystem import OsFileSystem
from penstock.storage.page import page_id
from penstock.storage.stream_meta import ALL_META, decode_all
from penstock.storage.stream_view import StreamView

PAGE: Final = ".page"
CHUNK_BYTES_MAX: Final = 1 << 31

logger = logging.getLogger(__name__)


class AccessError(PenstockError):
    """A task cannot get at its records in the way it was told to."""


class LeaseGoneError(PenstockError):
    """Messages of a classic queue that a reader had leased, and has no more.

    first: the ordinal of the next one that it has, or where the range ends.
    """

    def __init__(self, wanted: Range, reader: str, first: int, why: str) -> None:
        super().__init__(
            f"queue {wanted.stream!r}, leased by reader {reader!r}: messages {wanted.start} to "
            f"{first - 1} are not leased any more ({why}). With failOnDataLoss=false a query goes "
            "on without them"
        )
        self.first = first


@dataclass(frozen=True, slots=True)
class Source:
    """Where a range is: the stream's id (hex) and directory at the broker, "" if not known; reader:
    of the lease, if it is one of a classic queue."""

    range: Range
    stream_id: str
    path: str
    reader: str = ""


def frames_of(source: Source, options: SourceOptions) -> Iterator[Frames]:
    """All records of the range, verified. StreamGapError, LeaseGoneError, CorruptionError,
    AccessError, RefusedError, LinkError."""
    if source.reader:
        return frames_of_lease(source, options)
    if options.place.path:
        return frames_of_files(source)
    if options.access != "network":
        why = why_not_here(source.path, source.stream_id)
        if why is None:
            return frames_of_files(source)
        if options.access == "file":
            raise AccessError(f"access=file: {why}; access=auto would ask {options.place}")
    return frames_of_broker(source, options)


def frames_of_lease(source: Source, options: SourceOptions) -> Iterator[Frames]:
    """The messages of a lease; from its pages while they are as expected, else from the broker."""
    at, last = source.range.start, source.range.end
    if options.access != "network":
        why: object = why_not_here(source.path, source.stream_id)
        if why is None:
            try:
                for frames in frames_of_files(source):
                    yield frames
                    at = frames.first_offset + frames.count
                return
            except (StreamGapError, StorageError, OSError) as error:
                why = error
                logger.info("%s: from %d on the broker is asked: %s", source.path, at, why)
        if options.access == "file":
            raise AccessError(f"access=file: {why}; access=auto would ask {options.place}")
    if at < last:
        rest = Source(source.range._replace(start=at), source.stream_id, "", source.reader)
        yield from frames_of_broker(rest, options)


# ---- files ---------------------------------------------------------------------------------------


def why_not_here(directory: str, stream_id: str) -> str | None:
    """Why the stream of that id cannot be read from that directory; None if it can."""
    if not directory:
        return "the broker does not say where its files are"
    path = f"{directory}/{ALL_META}"
    try:
        meta = decode_all(path, Path(path).read_bytes())
    except FileNotFoundError:
        return f"{directory} is not there"
    except OSError as error:
        return f"{path}: {error.strerror}"
    if meta.id.hex() != stream_id:
        return f"{directory} is stream {meta.id.hex()}, expected {stream_id}"
    return None


def frames_of_files(source: Source) -> Iterator[Frames]:
    """From the pages, mapped one at a time."""
    why = why_not_here(source.path, source.stream_id)
    if why is not None:
        raise AccessError(why)
    stream, partition, first, last = source.range
    view = StreamView(OsFileSystem(), source.path)
    head = view.head()  # before the pages are listed, so that all below it are among them
    view.close()
    bases = sorted(int(file.stem) for file in Path(source.path).glob(f"*{PAGE}"))
    bases = [base for base in bases if base <= head.page_base]
    if last > head.next_offset:
        reason = f"records up to {last} were planned, it ends at {head.next_offset}"
        raise CorruptionError(source.path, 0, reason)
    for base, end in zip(bases, [*bases[1:], head.next_offset], strict=True):
        if end <= first or base >= last:
            continue
        if base > first:
            raise StreamGapError(stream, partition, first, base)
        path = f"{source.path}/{base:020}{PAGE}"
        try:
            limit = head.page_bytes if base == head.page_base else None
            page = PageMap(path, base, end - base, limit)
        except FileNotFoundError:
            raise StreamGapError(stream, partition, first, min(end, last)) from None
        is_own = page.is_staged or page.page_id == page_id(bytes.fromhex(source.stream_id), base)
        if not is_own:
            raise CorruptionError(path, 16, f"a page of another stream than {source.path}")
        yield page.frames(first, min(last, end))
        page.close()
        first = min(last, end)
    if first < last:
        raise StreamGapError(stream, partition, first, last)


# ---- the broker ----------------------------------------------------------------------------------


def frames_of_broker(source: Source, options: SourceOptions) -> Iterator[Frames]:
    """From the broker, chunk by chunk."""
    at = source.range.start
    failures = 0
    while at < source.range.end:
        try:
            for frames in _answer(source.range._replace(start=at), source.reader, options):
                yield frames
                at += frames.count
                failures = 0
            if at < source.range.end:
                raise LinkError(options.place, f"the answer ended before offset {at}")
        except (LinkError, RefusedError) as error:
            if isinstance(error, RefusedError) and error.status != UNAVAILABLE:
                raise
            failures += 1
            if failures > options.retries:
                raise
            time.sleep(options.retry_interval_s)


def _opened(
    link: HttpLink, wanted: Range, reader: str, size: Mapping[str, int]
) -> http.client.HTTPResponse:
    """The answer that has the frames. StreamGapError, LeaseGoneError, RefusedError, LinkError."""
    stream, partition, first, last = wanted
    try:
        if reader:
            return link.open("GET", (stream, reader, "frames"), size, api=LEASES)
        return link.open("GET", (stream, "frames"), {"partition": partition, **size}, api=STREAMS)
    except RefusedError as error:
        there = error.told.get("first")
        next_one = -1
        if error.status == RANGE and isinstance(there, int) and there > first:
            next_one = min(there, last)
        if reader and error.status in (RANGE, NOT_FOUND):
            why = str(error.told.get("reason", error.status))
            raise LeaseGoneError(wanted, reader, last if next_one < 0 else next_one, why) from None
        if next_one >= 0:
            raise StreamGapError(stream, partition, first, next_one) from None
        raise


def _answer(wanted: Range, reader: str, options: SourceOptions) -> Iterator[Frames]:
    """The chunks of one answer; LinkError where it breaks."""
    stream, partition, first, last = wanted
    link = kept_link(options.place, options.timeout_s)
    response = _opened(link, wanted, reader, {"from": first, "to": last})
    name = f"{options.place}: {stream}: partition {partition}"
    is_whole = False
    try:
        while first < last:
            head = _head(link, response, name)
            if head is None:
                break
            if head.first_offset != first or not head.count or head.body_bytes > CHUNK_BYTES_MAX:
                reason = f"a chunk of {head.count} records from offset {head.first_offset}"
                raise CorruptionError(name, head.data_start, f"{reason}, expected {first}")
            yield decode_chunk(head, _exactly(link, response, head.body_bytes), name)
            first += head.count
        is_whole = not response.read(1)
    except (OSError, http.client.HTTPException) as error:
        raise LinkError(options.place, str(error) or type(error).__name__) from error
    finally:
        if not is_whole:  # what is left of the answer would be taken for the next one's
            link.close()


def _head(link: HttpLink, response: http.client.HTTPResponse, name: str) -> ChunkHead | None:
    """The next chunk's header; None at the end of the answer."""
    raw = response.read(1)
    if not raw:
        return None
    return decode_chunk_head(raw + bytes(_exactly(link, response, HEADER_BYTES - 1)), name)


def _exactly(link: HttpLink, response: http.client.HTTPResponse, n: int) -> bytearray:
    """So many bytes of the answer."""
    data = bytearray(n)
    view = memoryview(data)
    at = 0
    while at < n:
        got = response.readinto(view[at:])
        if not got:
            raise LinkError(link.place, f"the answer ended {n - at} bytes before a chunk did")
        at += got
    return data
