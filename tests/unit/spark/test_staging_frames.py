"""Frames for staging: what is made is decoded again, plainly, and is what was given."""

import itertools
import random
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.page_frames import PageMap
from penstock.spark.staging import FrameMaker
from penstock.storage.pages.page import encode_header
from tests.helpers.chunk_records import Record, records_of_chunk

META = b"\x02\x00\x01q\x10\x00\x02"


def maker(page_bytes: int = 4096, chunk_bytes: int = 1024) -> FrameMaker:
    return FrameMaker(page_bytes, chunk_bytes, itertools.count(7).__next__)


def bodies(*values: bytes) -> "pa.Array":
    return pa.array(values, pa.binary())


def decoded(chunks: list[bytes]) -> list[list[Record]]:
    """The records of each page."""
    pages: dict[int, list[Record]] = {}
    for chunk in chunks:
        records, rest = records_of_chunk(chunk)
        assert rest == b""
        page = pages.setdefault(int(struct.unpack_from("<Q", chunk, 16)[0]), [])
        assert records[0].offset == len(page)
        page += records
    return list(pages.values())


def test_rows_become_frames() -> None:
    made = list(maker().chunks(bodies(b"a", b"", b"ccc"), META))
    assert [(chunk.rows, chunk.has_new_page) for chunk in made] == [(3, True)]
    ((a, b, c),) = decoded([chunk.data for chunk in made])
    assert (a, b, c) == (
        Record(0, 0, b"a", META), Record(1, 0, b"", META), Record(2, 0, b"ccc", META),
    )  # fmt: skip


def test_each_row_may_have_a_header_of_its_own() -> None:
    metas = bodies(b"", b"x" * 300, META)
    ((a, b, c),) = decoded([c.data for c in maker().chunks(bodies(b"a", b"b", b"c"), metas)])
    assert [a.meta, b.meta, c.meta] == [b"", b"x" * 300, META]


def test_pages_and_chunks_end_before_they_are_too_large() -> None:
    rng = random.Random(4)
    values = [rng.randbytes(rng.randrange(0, 700)) for _ in range(300)]
    target = maker()
    made = []
    for at in range(0, 300, 70):  # batches, which go on in the same page
        made += list(target.chunks(bodies(*values[at : at + 70]), META))
    pages = decoded([chunk.data for chunk in made])
    assert [record.payload for page in pages for record in page] == values
    assert len(pages) == sum(chunk.has_new_page for chunk in made) > 10
    sizes = [sum(24 + len(r.payload) + len(META) for r in page) for page in pages]
    assert max(sizes) <= 4096 - 64
    assert all(a + 24 + 700 + len(META) > 4096 - 64 for a in sizes[:-1])
    assert max(len(chunk.data) - 64 - 16 * chunk.rows for chunk in made) <= 1024


def test_a_row_larger_than_a_chunk_has_one_of_its_own() -> None:
    made = list(maker().chunks(bodies(b"a", b"b" * 3000, b"c"), META))
    assert [chunk.rows for chunk in made] == [1, 1, 1]
    ((a, b, c),) = decoded([chunk.data for chunk in made])
    assert (a.payload, b.payload, c.payload) == (b"a", b"b" * 3000, b"c")


def test_a_row_larger_than_a_page_is_an_error() -> None:
    target = maker()
    most = target.row_bytes_max - len(META)
    ((only,),) = decoded([c.data for c in target.chunks(bodies(b"x" * most), META)])
    assert len(only.payload) == most
    with pytest.raises(ValueError, match=r"row 1 of its batch: body and header of 4,009 bytes, "):
        list(target.chunks(bodies(b"a", b"x" * (most + 1)), META))


def test_nothing_is_nothing() -> None:
    assert list(maker().chunks(bodies(), META)) == []


def test_sliced_and_large_arrays_of_arrow() -> None:
    values = pa.array([b"%d" % i for i in range(50)], pa.large_binary()).cast(pa.binary())
    made = list(maker().chunks(values.slice(10, 30), META))
    (page,) = decoded([chunk.data for chunk in made])
    assert [record.payload for record in page] == [b"%d" % i for i in range(10, 40)]


def test_the_pages_are_those_that_readers_map(tmp_path: Path) -> None:
    """Behind a header of the kind that streams have, the frames are a page to a reader."""
    made = list(maker(1 << 20).chunks(bodies(*[b"%d" % i for i in range(200)]), META))
    page = b"".join(chunk.data[64 + 16 * chunk.rows :] for chunk in made)
    path = tmp_path / "p.page"
    path.write_bytes(encode_header(0, 7, 0, 0) + page)
    frames = PageMap(str(path), 0, 200).frames(0, 200)
    assert frames.count == 200
