"""Access: how a task reads the frames of its range, from the store's own files or from the broker.

A task knows the directory of the partition at the broker, and the broker. It maps the pages if that
directory exists *and* is the expected stream: the same path on another machine may be another
store. The id in allMeta must match, and the id in each page's header follows from it. Otherwise the
task asks the broker for the same frames, in chunks of about 1 MiB. Both ways yield verified frames,
which arrow_batches.py turns into columns.

    access=auto       as above
    access=file       the files, or an error that says why not
    access=network    always the broker

Records that retention deleted before they were read raise StreamGapError, which says where to
continue. When a connection breaks, a new one continues after the last whole chunk, and a broker
that is away is waited for (http_link.py). A broker that is away for longer, or whose answers break
for so long without a chunk between them, fails the task, and Spark retries it.

The messages of a lease are read in the same two ways. Its pages are only a copy of what the broker
keeps elsewhere, and it writes them again when it starts: if they are not as expected, the broker is
asked for the rest of the range. Messages that the reader no longer has raise LeaseGoneError.
"""

import http.client
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import CorruptionError, PenstockError, StorageError, StreamGapError
from penstock.page_frames import Frames, PageMap, decode_chunk
from penstock.spark.http_link import (
    LEASES,
    NOT_FOUND,
    RANGE,
    STREAMS,
    BrokerWait,
    HttpLink,
    LinkError,
    RefusedError,
    kept_link,
    reason_of,
)
from penstock.spark.options import SourceOptions
from penstock.spark.plan import Range
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.pages.page import (
    CHUNK_HEADER_BYTES,
    ChunkHead,
    decode_chunk_head,
    page_id,
)
from penstock.storage.pages.stream_meta import ALL_META, decode_all
from penstock.storage.pages.stream_view import StreamView

PAGE: Final = ".page"
CHUNK_BYTES_MAX: Final = 1 << 31

logger = logging.getLogger(__name__)


class AccessError(PenstockError):
    """A task cannot read its records in the way that `access` demands."""


class LeaseGoneError(PenstockError):
    """Messages of a classic queue are no longer leased to the reader.

    first: the ordinal of the next message that is, or the end of the range.
    """

    def __init__(self, wanted: Range, reader: str, first: int, why: str) -> None:
        super().__init__(
            f"queue {wanted.stream!r}, leased by reader {reader!r}: messages {wanted.start} to "
            f"{first - 1} are no longer leased ({why}). With failOnDataLoss=false the query "
            "continues without them"
        )
        self.first = first


@dataclass(frozen=True, slots=True)
class RangeSource:
    """A range to read. stream_id (hex) and path: the stream's id and directory at the broker, "" if
    unknown. reader: whose lease it is, for a classic queue."""

    range: Range
    stream_id: str
    path: str
    reader: str = ""


def frames_of(
    source: RangeSource, options: SourceOptions, wait: BrokerWait | None = None
) -> Iterator[Frames]:
    """Return all records of the range, verified. wait: None for what the options say.

    Raises StreamGapError, LeaseGoneError, CorruptionError, AccessError, RefusedError and LinkError.
    """
    wait = wait or BrokerWait.of(options)
    if source.reader:
        return frames_of_lease(source, options, wait)
    if options.place.path:
        return frames_of_files(source)
    if options.access != "network":
        why = why_not_here(source.path, source.stream_id)
        if why is None:
            return frames_of_files(source)
        if options.access == "file":
            raise AccessError(f"access=file: {why}; access=auto would ask {options.place}")
    return frames_of_broker(source, options, wait)


def frames_of_lease(
    source: RangeSource, options: SourceOptions, wait: BrokerWait
) -> Iterator[Frames]:
    """Return the messages of a lease: from its pages while they are as expected, then from the
    broker."""
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
                logger.info("%s: reading from the broker from %d on: %s", source.path, at, why)
        if options.access == "file":
            raise AccessError(f"access=file: {why}; access=auto would ask {options.place}")
    if at < last:
        rest = RangeSource(source.range._replace(start=at), source.stream_id, "", source.reader)
        yield from frames_of_broker(rest, options, wait)


# ---- files ---------------------------------------------------------------------------------------


def why_not_here(directory: str, stream_id: str) -> str | None:
    """Return why the stream with that id cannot be read from that directory, or None if it can."""
    if not directory:
        return "the broker does not say where its files are stored"
    path = f"{directory}/{ALL_META}"
    try:
        meta = decode_all(path, Path(path).read_bytes())
    except FileNotFoundError:
        return f"{directory} does not exist"
    except OSError as error:
        return f"{path}: {error.strerror}"
    if meta.id.hex() != stream_id:
        return f"{directory} is stream {meta.id.hex()}, expected {stream_id}"
    return None


def frames_of_files(source: RangeSource) -> Iterator[Frames]:
    """Return the frames from the pages, mapped one at a time."""
    why = why_not_here(source.path, source.stream_id)
    if why is not None:
        raise AccessError(why)
    stream, partition, first, last = source.range
    view = StreamView(OsFileSystem(), source.path)
    head = view.head()  # before the pages are listed, so that the list has all below it
    view.close()
    bases = sorted(int(file.stem) for file in Path(source.path).glob(f"*{PAGE}"))
    bases = [base for base in bases if base <= head.page_base]
    if last > head.next_offset:
        reason = f"the stream ends at {head.next_offset}, expected records up to {last}"
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


def frames_of_broker(
    source: RangeSource, options: SourceOptions, wait: BrokerWait
) -> Iterator[Frames]:
    """Return the frames from the broker, chunk by chunk."""
    at = source.range.start
    while at < source.range.end:
        try:
            for frames in _answer(source.range._replace(start=at), source.reader, options):
                yield frames
                at += frames.count
                wait.succeeded()
            if at < source.range.end:
                raise LinkError(options.place, f"the answer ended before offset {at}")
        except (LinkError, RefusedError) as error:
            if not wait.waited(error):
                raise


def _opened(
    link: HttpLink, wanted: Range, reader: str, size: Mapping[str, int]
) -> http.client.HTTPResponse:
    """Return the answer with the frames. Raises StreamGapError, LeaseGoneError, RefusedError,
    LinkError."""
    stream, partition, first, last = wanted
    try:
        if reader:
            return link.open("GET", (stream, reader, "frames"), size, api=LEASES)
        return link.open("GET", (stream, "frames"), {"partition": partition, **size}, api=STREAMS)
    except RefusedError as error:
        there = error.answer.get("first")
        next_first = -1
        if error.status == RANGE and isinstance(there, int) and there > first:
            next_first = min(there, last)
        if reader and error.status in (RANGE, NOT_FOUND):
            why = str(error.answer.get("reason", error.status))
            found = last if next_first < 0 else next_first
            raise LeaseGoneError(wanted, reader, found, why) from None
        if next_first >= 0:
            raise StreamGapError(stream, partition, first, next_first) from None
        raise


def _answer(wanted: Range, reader: str, options: SourceOptions) -> Iterator[Frames]:
    """Return the chunks of one answer. Raises LinkError where it breaks."""
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
            size = head.rows_bytes + head.data_bytes
            if head.first_offset != first or not head.record_count or size > CHUNK_BYTES_MAX:
                reason = f"a chunk of {head.record_count} records from offset {head.first_offset}"
                raise CorruptionError(name, head.data_start, f"{reason}, expected {first}")
            yield decode_chunk(head, _exactly(link, response, size), name)
            first += head.record_count
        is_whole = not response.read(1)
    except (OSError, http.client.HTTPException) as error:
        raise LinkError(options.place, reason_of(error)) from error
    finally:
        if not is_whole:  # the rest of this answer would be read as the next one
            link.close()


def _head(link: HttpLink, response: http.client.HTTPResponse, name: str) -> ChunkHead | None:
    """Return the next chunk's header, or None at the end of the answer."""
    raw = response.read(1)
    if not raw:
        return None
    rest = bytes(_exactly(link, response, CHUNK_HEADER_BYTES - 1))
    return decode_chunk_head(name, raw + rest)


def _exactly(link: HttpLink, response: http.client.HTTPResponse, n: int) -> bytearray:
    """Return the next n bytes of the answer. Raises LinkError if there are fewer."""
    data = bytearray(n)
    view = memoryview(data)
    at = 0
    while at < n:
        got = response.readinto(view[at:])
        if not got:
            raise LinkError(link.place, f"the answer ended {n - at} bytes before a chunk did")
        at += got
    return data
