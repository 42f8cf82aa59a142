"""Staged pages and batches for tests: staged as the HTTP process does it, on any file system."""

import zlib
from collections.abc import Callable, Sequence
from contextlib import closing

from penstock.storage.engine import StorageEngine
from penstock.storage.files.data_directory import sync_dir
from penstock.storage.files.durability import DISK
from penstock.storage.files.filesystem import FileSystem
from penstock.storage.pages.adoption import Adoption
from penstock.storage.pages.batches import StagedPage
from penstock.storage.pages.page import (
    PAGE_HEADER_BYTES,
    PageRecord,
    pack_row,
    page_seed,
)
from penstock.storage.pages.page_writer import PageWriter
from penstock.storage.pages.staging import (
    StagedPageWriter,
    StagedReader,
    query_directory,
    query_path,
    staging_path,
)
from penstock.storage.pages.streams import StoredStream
from tests.helpers.inside import encode_frame

TARGET = '{"queue": "s"}'
STAGED_US = 5_000_000
Row = tuple[bytes, bytes]  # payload, meta


def rows_of(first: int, count: int, size: int = 8) -> list[Row]:
    """Rows that say which they are."""
    return [
        (f"row{n}.".encode().ljust(size, b"."), f"m{n}".encode())
        for n in range(first, first + count)
    ]


def frames_of(
    rows: Sequence[Row], page_id: int, *, rel: int = 0, start: int = PAGE_HEADER_BYTES
) -> tuple[bytes, bytes]:
    """(rows of the index, frames) of these rows, the first one being record `rel` of its page."""
    index, frames = [], []
    for payload, meta in rows:
        frame = encode_frame(page_seed(page_id), rel, 0, payload, meta)
        index.append(pack_row(start, len(payload), 0))
        frames.append(frame)
        start += len(frame)
        rel += 1
    return b"".join(index), b"".join(frames)


def stage(
    fs: FileSystem, path: str, query: str, batch: int, rows: Sequence[Row], *, partition: int = 0,
    attempt: str = "0-00000001", k: int = 0, chunk: int = 1 << 30, time_us: int = STAGED_US,
    is_synced: bool = True,
) -> StagedPage:  # fmt: skip
    """One staged page of these rows in the vhost directory `path`, its name durable."""
    directory = query_directory(fs, staging_path(path), query)
    stem = f"{batch}.{partition}.{attempt}.{k}"
    page_id = zlib.crc32(f"{query}/{stem}".encode()) << 32 | 7
    writer = StagedPageWriter(fs, directory, stem, page_id, time_us)
    for at in range(0, len(rows), chunk):
        piece = rows[at : at + chunk]
        index, frames = frames_of(piece, page_id, rel=at, start=writer.position)
        writer.append(index, frames)
    page = writer.seal()
    if is_synced:
        writer.sync()
        sync_dir(fs, directory)
    writer.close()
    return page


def read_batch(
    engine: StorageEngine, query: str, max_records: int, max_bytes: int
) -> list[PageRecord]:
    """What comes next of a query's batch, verified, of one page: up to so many, one at least.
    CorruptionError."""
    batch = engine.batches.batch(query)
    assert batch is not None
    path = f"{query_path(engine.path, query)}/{batch.current.name}"
    with closing(StagedReader(engine.fs, path, batch.current)) as reader:
        return reader.read(batch.frame, max_records, max_bytes)


def step_into_stream(
    engine: StorageEngine, query: str, streams: list[StoredStream],
    pick: Callable[[PageRecord], StoredStream] | None = None,
) -> bool:  # fmt: skip
    """Go on with a batch for a stream, or for its partitions, which `pick` chooses: adopt a page,
    or append a slice. False: it is done."""
    batches = engine.batches
    batch = batches.batch(query)
    assert batch is not None
    if len(streams) == 1 and batches.can_adopt(query):
        batches.adopt(query, streams[0])
        return not batch.is_done
    records = read_batch(engine, query, 1024, 1 << 20)
    transaction = engine.begin()
    transaction.progress(query, batch.page, batch.frame + len(records))
    for found in records:
        stream = streams[0] if pick is None else pick(found)
        transaction.append_stream(stream, found.meta, found.payload)
    transaction.commit(DISK)
    return not batch.is_done


def roll(engine: StorageEngine, query: str, stream: bytes = b"s") -> None:
    """Roll a query's batch forward into a stream to its end."""
    while step_into_stream(engine, query, [engine.streams.get(stream)]):
        engine.flush()
    engine.batches.finish_adoptions()
    engine.sync()


def read_all(engine: StorageEngine, stream: bytes = b"s") -> list[tuple[int, int, bytes, bytes]]:
    """(offset, time, payload, meta) of all below a stream's head."""
    queue = engine.streams.get(stream).queue
    found = []
    offset = queue.first_offset
    while offset < queue.head_offset:
        records = queue.read(offset, 1000, 1 << 20)
        found += [(r.offset, r.time_us, r.payload, r.meta) for r in records]
        offset = records[-1].offset + 1
    return found


def adopt_page(
    fs: FileSystem, directory: str, rows: Sequence[Row], *, base: int, number: int = 0,
    time_us: int = STAGED_US,
) -> str:  # fmt: skip
    """A page of these rows in a stream's directory, staged beside it and adopted; its path."""
    vhost = directory.rpartition("/")[0]
    page = stage(fs, vhost, "q", base, rows)
    writer = PageWriter(fs, directory, b"\0" * 16, number, base)
    writer.adopt(page.page_id, page.bytes, page.rows, time_us)
    Adoption(fs, f"{query_path(vhost, 'q')}/{page.name}", page, writer).run()
    return writer.stem + ".page"
