"""What can still be read of a damaged store's streams: frames of pages, and records of the log.

A record of a stream is in its page and, for a while, in the log, so either may stand in for the
other. Of the pages everything that verifies at its own place is taken, up to what checkpoint, log
or writeMeta say that there was; where a frame is damaged the index beside the page says where the
next one begins, and without an index the next good frame is looked for byte by byte.

    page, frame verifies          taken
    page damaged, log has it      taken from the log
    neither                       lost, told with the page's file and position

Offsets count from 0 again in the new store, so named readers are moved along: a reader's offset
becomes the number of records taken below it. A stream whose allMeta is lost is taken too, if its
pages' headers say which it is; it gets pages of the default size.

RAM: the log's records of streams; one page at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import CorruptionError
from penstock.storage import record, stream_meta
from penstock.storage.checkpoint import Manifest
from penstock.storage.filesystem import FileSystem
from penstock.storage.page import (
    FRAME_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    PAGE_HEADER_BYTES,
    StreamRecord,
    decode_frames,
    decode_header,
    decode_row,
    page_id,
    page_seed,
)
from penstock.storage.queue_name import queue_name
from penstock.storage.salvage_batches import AdoptedPage
from penstock.storage.streams import PAGE_BYTES, ReaderOffset
from penstock.storage.verify import Problem

SEARCH_BYTES: Final = 1 << 20  # how far behind a damaged frame the next one is looked for


@dataclass(slots=True)
class SalvagedStream:
    """One stream of the damaged store. end: of what it is known to have had; logged: records that
    the log has, by offset."""

    number: int
    name: bytes
    path: str  # "" if it has no directory
    first: int = 0
    end: int = 0
    page_bytes: int = PAGE_BYTES
    stream_id: bytes = b""  # b"": nobody says it
    logged: dict[int, StreamRecord] = field(default_factory=dict)
    adopted: dict[int, AdoptedPage] = field(default_factory=dict)  # by base
    readers: dict[str, ReaderOffset] = field(default_factory=dict)


class SalvagedStreams:
    """The streams of one damaged vhost. Fed by salvage_state.py with checkpoint and log."""

    def __init__(self, fs: FileSystem, path: str, losses: list[Problem]) -> None:
        self.fs = fs
        self.losses = losses
        self.streams: dict[int, SalvagedStream] = {}
        self._deleted: set[int] = set()
        self._directories: dict[int, str] = {}
        parent = path + "/streams"
        for name in fs.list(parent) if fs.is_dir(parent) else []:
            digits = name.rpartition(".")[2]
            if digits.isdecimal():
                self._directories[int(digits)] = f"{parent}/{name}"

    # ---- the state -----------------------------------------------------------------------------

    def add(self, number: int, name: bytes) -> None:
        """A stream that the topology declares; nothing if it is known."""
        if number in self.streams or number in self._deleted:
            return
        path = self._directories.get(number, "")
        name = name or (queue_name(self.fs, path) if path else b"")
        found = SalvagedStream(number, name or f"salvaged-{number}".encode(), path)
        self.streams[number] = found
        if not path:
            return
        for file, read in (
            (stream_meta.ALL_META, self._all), (stream_meta.READ_META, self._tail),
            (stream_meta.WRITE_META, self._head),
        ):  # fmt: skip
            at = f"{path}/{file}"
            if not self.fs.exists(at):
                continue
            try:
                read(found, at, self.fs.read(at))
            except CorruptionError as error:
                self.losses.append(Problem(error.path, error.position, error.reason))

    def _all(self, found: SalvagedStream, at: str, data: bytes) -> None:
        meta = stream_meta.decode_all(at, data)
        if meta.number != found.number:
            raise CorruptionError(at, 12, f"it is of stream {meta.number}, not {found.number}")
        found.page_bytes, found.stream_id = meta.page_bytes, meta.id

    def _tail(self, found: SalvagedStream, at: str, data: bytes) -> None:
        found.first = stream_meta.decode_tail(at, data)

    def _head(self, found: SalvagedStream, at: str, data: bytes) -> None:
        found.end = stream_meta.decode_head(at, data).next_offset

    def add_all(self) -> None:
        """The topology is lost: whatever has a directory, deleted or not."""
        for number in self._directories:
            self.add(number, b"")

    def load(self, manifest: Manifest) -> None:
        """What the checkpoint says of them."""
        for number, section in manifest.streams.items():
            self.add(number, b"")
            found = self.streams[number]
            found.end = max(found.end, section.position.next_offset)
            found.first = max(found.first, section.position.first_offset)
            found.readers = dict(section.readers)
            found.stream_id = section.stream_id

    def delete(self, number: int) -> None:
        """A DELETE_QUEUE."""
        self.streams.pop(number, None)
        self._deleted.add(number)

    def append(self, found: record.StreamData) -> None:
        """Note what a STREAM record holds."""
        if found.stream in self._deleted:
            return
        self.add(found.stream, b"")
        stream = self.streams[found.stream]
        offset = found.offset
        stream.logged[offset] = StreamRecord(offset, found.time_us, found.payload, found.meta)
        stream.end = max(stream.end, offset + 1)

    def adopt(self, page: AdoptedPage) -> None:
        """A staged page became one of a stream."""
        if page.stream in self._deleted:
            return
        self.add(page.stream, b"")
        stream = self.streams[page.stream]
        stream.adopted[page.base] = page
        stream.end = max(stream.end, page.base + page.page.rows)

    def set_reader(self, found: record.ReaderData, flags: int) -> None:
        """Set how far a named reader is, or forget it, as a READER_OFFSET record says."""
        stream = self.streams.get(found.stream)
        if stream is None:
            return
        name = found.reader.decode("utf-8", "replace")
        if flags & record.READER_DELETED:
            stream.readers.pop(name, None)
        else:
            kept = None if found.kept_from == record.NOT_KEPT else found.kept_from
            stream.readers[name] = ReaderOffset(found.offset, kept, found.time_ms)

    # ---- records -------------------------------------------------------------------------------

    def records(self, stream: SalvagedStream) -> Iterator[StreamRecord | Problem]:
        """All records that can be read, by offset, and a Problem for each gap."""
        wanted = stream.first
        end = stream.end or (1 << 63)
        bases = self._bases(stream)
        for i, base in enumerate(bases):
            page_end = min(bases[i + 1], end) if i + 1 < len(bases) else end
            for found in self._page(stream, base, page_end):
                if isinstance(found, StreamRecord) and found.offset >= wanted:
                    yield from self._logged(stream, wanted, found.offset)
                    yield found
                    wanted = found.offset + 1
                elif isinstance(found, Problem):
                    self.losses.append(found)
        if stream.end:
            yield from self._logged(stream, wanted, stream.end)

    def _bases(self, stream: SalvagedStream) -> list[int]:
        names = self.fs.list(stream.path) if stream.path else []
        found = [name.removesuffix(".page") for name in names if name.endswith(".page")]
        staged = {base for base, page in stream.adopted.items() if self.fs.exists(page.path)}
        bases = sorted(staged | {int(stem) for stem in found if stem.isdecimal()})
        return [base for base in bases if base >= stream.first and base < (stream.end or 1 << 63)]

    def _logged(
        self, stream: SalvagedStream, wanted: int, end: int
    ) -> Iterator[StreamRecord | Problem]:
        """Records from `wanted` to `end`, which no page has: from the log, or gaps."""
        lost_from = -1
        for offset in sorted(o for o in stream.logged if wanted <= o < end):
            if offset > wanted:
                yield self._gap(stream, wanted, offset)
            yield stream.logged[offset]
            wanted = offset + 1
        lost_from = wanted
        if lost_from < end:
            yield self._gap(stream, lost_from, end)

    def _gap(self, stream: SalvagedStream, first: int, end: int) -> Problem:
        return Problem(
            stream.path or self._directories.get(stream.number, "streams"), 0,
            f"records {first} to {end - 1} of stream {stream.name!r} are lost",
        )  # fmt: skip

    def _page(
        self, stream: SalvagedStream, base: int, end: int
    ) -> Iterator[StreamRecord | Problem]:
        """What verifies in the page that begins with `base`, below offset `end`."""
        path = f"{stream.path}/{base:020}.page"
        adopted = stream.adopted.get(base)
        if adopted is not None and self.fs.exists(adopted.path):
            path = adopted.path
        data = self.fs.read(path)
        id = page_id(stream.stream_id, base) if stream.stream_id else -1
        time_us: int | None = None  # of all records, if it was staged
        if adopted is not None:
            id, time_us = adopted.page.page_id, adopted.time_us
        else:
            try:
                header = decode_header(path, data)
                is_known = header.is_staged or id in (-1, header.id)
                if (header.base, header.number) != (base, stream.number) or not is_known:
                    text = f"the page is of offset {header.base} of stream {header.number}"
                    raise CorruptionError(path, 0, text)
                id = header.id
                time_us = header.base_time_us if header.is_staged else None
            except CorruptionError as error:
                yield Problem(error.path, error.position, error.reason)
                if id < 0:
                    return
        seed = page_seed(id)
        rows = self._rows(path[:-4] + "idx")
        at, rel = PAGE_HEADER_BYTES, 0
        while base + rel < end and at < len(data):
            out: list[StreamRecord] = []
            stop, _, fault = decode_frames(
                data, at, seed, base, rel, end - base - rel, len(data), out
            )
            for one in out:
                one.time_us = one.time_us if time_us is None else time_us
            yield from out
            rel += len(out)
            at = stop
            if base + rel >= end or at >= len(data):
                return
            yield Problem(path, at, fault or "a frame is cut off")
            at, rel = _next_frame(data, at, seed, base, rel, end, rows)

    def _rows(self, path: str) -> list[int]:
        """Where frames begin, as the index says: hints, each is proved by its frame."""
        data = self.fs.read(path) if self.fs.exists(path) else b""
        places = range(INDEX_HEADER_BYTES, len(data) - INDEX_ROW_BYTES + 1, INDEX_ROW_BYTES)
        return [decode_row(data, at)[0] for at in places]


def _next_frame(
    data: bytes, at: int, seed: int, base: int, rel: int, end: int, rows: list[int]
) -> tuple[int, int]:
    """(position, rel) of the next frame behind a damaged one that verifies; the end if none."""
    for later in range(rel + 1, min(len(rows), end - base)):
        if rows[later] > at and _verifies(data, rows[later], seed, base, later):
            return rows[later], later
    limit = min(len(data) - FRAME_BYTES, at + SEARCH_BYTES)
    for position in range(at + FRAME_BYTES, limit + 1):
        # Without an index nobody knows how many were lost: one is the likeliest by far.
        if base + rel + 1 < end and _verifies(data, position, seed, base, rel + 1):
            return position, rel + 1
    return len(data), rel


def _verifies(data: bytes, at: int, seed: int, base: int, rel: int) -> bool:
    size = int.from_bytes(data[at + 4 : at + 8], "little") + int.from_bytes(
        data[at + 8 : at + 12], "little"
    )
    if at + FRAME_BYTES + size > len(data):
        return False
    out: list[StreamRecord] = []
    decode_frames(data, at, seed, base, rel, 1, len(data), out)
    return bool(out)
