"""Streams in directories, as a store has them: what tests of readers by path read."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.clock import SystemClock
from penstock.storage.files.data_directory import hash_name
from penstock.storage.files.filesystem import OsFileSystem
from penstock.storage.pages.persistent_queue import PersistentQueue
from penstock.storage.pages.stream_view import StreamView

PAGE_BYTES = 4096


def open_stream(path: Path, *, page_bytes: int = PAGE_BYTES, seed: int = 1) -> PersistentQueue:
    """A stream that stands alone, made when missing."""
    return PersistentQueue(
        OsFileSystem(), str(path), page_bytes=page_bytes, clock=SystemClock(),
        rng=random.Random(f"{path.name}{seed}"),
    )  # fmt: skip


def write_stream(
    path: Path, payloads: Iterable[bytes], *, metas: Sequence[bytes] = (b"",), first_us: int = 1000,
    page_bytes: int = PAGE_BYTES, seed: int = 1,
) -> None:  # fmt: skip
    """Append records, a millisecond apart, and close."""
    stream = open_stream(path, page_bytes=page_bytes, seed=seed)
    for index, payload in enumerate(payloads):
        offset = stream.next_offset
        stream.append(payload, metas[index % len(metas)], first_us + offset * 1000)
        if index % 1000 == 999:
            stream.write()
    stream.force()
    stream.close()


def retain(path: Path, records: int) -> int:
    """Have retention take all but about so many records. Returns the first offset that is left."""
    stream = open_stream(path)
    stream.retain(max_records=records, now_us=0)
    first = stream.first_offset
    stream.close()
    return first


def in_vhost(vhost: Path, name: bytes, number: int) -> Path:
    """The directory of a stream in a vhost, with the name in it, made."""
    path = vhost / "streams" / f"{hash_name(name)}.{number}"
    path.mkdir(parents=True, exist_ok=True)
    (path / ".queue_name").write_bytes(name)
    return path


def stream_id_hex(path: Path) -> str:
    """The id of the stream in a directory, as a broker tells it."""
    return StreamView(OsFileSystem(), str(path)).stream_id.hex()
