"""Uploads: staged whole, with a token; or refused, cut off, broken, and then nothing is left."""

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.http import staging_endpoints
from penstock.http.api import Api
from penstock.storage.files.filesystem import OsFile
from penstock.storage.pages.page import (
    INDEX_HEADER_BYTES,
    PAGE_HEADER_BYTES,
    check_index,
    decode_header,
    page_seed,
    scan_frames,
)
from tests.helpers.asgi_client import Reply, ask
from tests.helpers.chunk_maker import PageMaker, sealed
from tests.helpers.http_rig import HttpRig
from tests.helpers.uploads import ADDRESS, RECORDS, files, post

pytestmark = pytest.mark.real


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    yield rig
    rig.close()


def payloads(page: Path) -> list[bytes]:
    """What is in a staged page, which is checked, its index too."""
    data = page.read_bytes()
    header = decode_header(str(page), data[:PAGE_HEADER_BYTES])
    assert (header.base, header.base_time_us, header.number) == (0, 0, 0)
    assert header.is_staged
    seed = page_seed(header.id)
    scan = scan_frames(data[PAGE_HEADER_BYTES:], PAGE_HEADER_BYTES, seed, 0, 0, len(data))
    assert not scan.fault
    assert scan.end == len(data)
    index = page.with_suffix(".idx").read_bytes()
    head = check_index(str(page), index)
    assert (head.id, head.count, head.page_bytes) == (header.id, len(scan.rows), len(data))
    rows = b"".join(scan.rows)
    assert index[INDEX_HEADER_BYTES : INDEX_HEADER_BYTES + len(rows)] == rows
    starts = [(struct.unpack_from("<IIq", row)) for row in scan.rows]
    return [data[start + 24 : start + 24 + size] for start, size, _ in starts]


# --- what is staged ---


def test_pages_are_staged_and_the_token_names_them(rig: HttpRig) -> None:
    one, two = PageMaker(1 << 63), PageMaker(2)
    body = one.chunk(RECORDS[:30]) + one.chunk(RECORDS[30:60]) + two.chunk(RECORDS[60:])
    reply = post(rig, body)
    assert reply.status == 201, reply.body
    token = reply.json()
    pages = token.pop("pages")
    assert token == {
        "query": "query/1", "batch": 7, "partition": 3, "attempt": "0-0123abcd", "rows": 100,
        "bytes": one.position + two.position,
    }  # fmt: skip
    assert [(page["name"], page["page_id"], page["rows"], page["bytes"]) for page in pages] == [
        ("7.3.0-0123abcd.0.page", "8000000000000000", 60, one.position),
        ("7.3.0-0123abcd.1.page", "0000000000000002", 40, two.position),
    ]
    found = [
        payload for page in sorted(rig.directory.rglob("*.page")) for payload in payloads(page)
    ]
    assert found == [payload for payload, _ in RECORDS]
    (name,) = rig.directory.rglob(".query_name")
    assert name.read_bytes() == b"query/1\n"


@pytest.mark.parametrize("size", [1, 7, 64, 1000, 100_000])
def test_a_body_may_come_in_any_pieces(rig: HttpRig, size: int) -> None:
    page = PageMaker(1)
    body = b"".join(page.chunk([record]) for record in RECORDS)
    pieces: list[bytes | None] = [body[at : at + size] for at in range(0, len(body), size)]
    assert post(rig, [*pieces, b""]).status == 201
    (file,) = rig.directory.rglob("*.page")
    assert payloads(file) == [payload for payload, _ in RECORDS]


def test_no_rows_are_no_pages(rig: HttpRig) -> None:
    reply = post(rig, b"")
    assert (reply.status, reply.json()["pages"], reply.json()["rows"]) == (201, [], 0)
    assert not files(rig)


def test_a_large_record_is_a_chunk_of_its_own(rig: HttpRig) -> None:
    page = PageMaker(1)
    large = b"x" * (staging_endpoints.CHUNK_BYTES_MAX + 1)
    body = page.chunk([(b"a", b"")]) + page.chunk([(large, b"m")]) + page.chunk([(b"b", b"")])
    assert post(rig, body).status == 201
    (file,) = rig.directory.rglob("*.page")
    assert payloads(file) == [b"a", large, b"b"]


def test_everything_is_synced_before_the_answer(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real_file, real_dir = OsFile.sync, rig.fs.sync_dir

    def sync(file: OsFile) -> None:
        done.append(Path(file.path).name)
        real_file(file)

    def sync_dir(path: str) -> None:
        done.append("in " + Path(path).name)
        real_dir(path)

    monkeypatch.setattr(OsFile, "sync", sync)
    monkeypatch.setattr(rig.fs, "sync_dir", sync_dir)
    body = PageMaker(1).chunk(RECORDS) + PageMaker(2).chunk(RECORDS)
    assert post(rig, body).status == 201
    stems = ["7.3.0-0123abcd.0", "7.3.0-0123abcd.1"]
    ends = [f"{stem}{ending}" for stem in stems for ending in (".page", ".idx")]
    (query,) = (path.parent.name for path in rig.directory.rglob(".query_name"))
    assert [name for name in done if name.startswith("7")] == ends
    assert done[-1] == f"in {query}"
    assert "in staging" in done


def test_an_attempt_is_staged_once(rig: HttpRig) -> None:
    assert post(rig, PageMaker(1).chunk(RECORDS)).status == 201
    before = {file: file.read_bytes() for file in files(rig)}
    reply = post(rig, PageMaker(2).chunk(RECORDS[:3]))
    assert (reply.status, reply.json()["error"]) == (409, "attempt_exists")
    assert {file: file.read_bytes() for file in files(rig)} == before
    assert post(rig, PageMaker(1).chunk(RECORDS), ADDRESS[:-1] + "e").status == 201


def test_two_uploads_of_one_attempt_at_once(rig: HttpRig) -> None:
    body = PageMaker(1).chunk(RECORDS)

    async def scenario(app: Api) -> Reply:
        replies = await asyncio.gather(
            *(ask(app, ADDRESS, method="POST", body=[body[:90], body[90:]]) for _ in range(2))
        )
        assert sorted(reply.status for reply in replies) == [201, 409]
        return replies[0]

    rig.run(scenario)
    assert len(files(rig)) == 2


# --- what is refused, and leaves nothing ---


def broken(**header: int) -> bytes:
    return PageMaker(1).chunk(RECORDS[:3], **header)


def changed(at: int) -> bytes:
    """A chunk in which a byte is other than it was when its frames were made, itself verifying."""
    whole = PageMaker(1).chunk(RECORDS[:3])
    body = bytearray(whole[64:])
    body[at] ^= 1
    return sealed(1, 0, 64, bytes(body[:48]), bytes(body[48:]))


def second(**other: int) -> bytes:
    page = PageMaker(1)
    return page.chunk(RECORDS[:3]) + page.chunk(RECORDS[3:5], **other)


def again() -> bytes:
    one, two = PageMaker(1), PageMaker(2)
    return one.chunk(RECORDS[:3]) + two.chunk(RECORDS[:3]) + one.chunk(RECORDS[3:5])


BAD: dict[str, tuple[bytes, int, str]] = {
    "other bytes": (b"AMQP" * 30, 400, "chunk 0: expected b'PNSTFRMS' version 1"),
    "json": (b'{"rows": 1}', 400, "the body ends after 11 bytes of its header, expected 64"),
    "version": (broken(version=2), 400, "version 1"),
    "zeros": (broken(zeros=1), 400, "zeros"),
    "base": (broken(base=5), 400, "base offset 5, expected 0"),
    "no records": (PageMaker(1).chunk([]), 400, "0 records"),
    "count": (broken(count=4), 400, "4 records with 48 bytes of rows"),
    "checksum": (broken(crc=5), 400, "its checksum is wrong"),
    "cut header": (broken()[:63], 400, "ends after 63 bytes of its header"),
    "cut body": (broken()[:-1], 400, "expected"),
    "first": (broken(first=1), 400, "begins with record 1 at byte 64 of its page, expected"),
    "start": (broken(start=65), 400, "at byte 65 of its page, expected record 0 at byte 64"),
    "gap": (second(first=4), 400, "chunk 1: it begins with record 4"),
    "page again": (again(), 400, "chunk 2: page 0000000000000001 has ended"),
    "payload": (changed(48 + 24), 400, "byte 64 of the page: the frame does not verify"),
    "row start": (changed(16), 400, "its rows differ"),
    "row size": (changed(4), 400, "its rows differ"),
    "row time": (changed(8), 400, "its rows differ"),
    "time": (PageMaker(1).chunk(RECORDS[:3], time_us=9), 400, "a record has a time"),
    "flags": (PageMaker(1).chunk(RECORDS[:3], flags=1), 400, "flags 0x1, expected 0"),
    "large": (broken(data_bytes=(4 << 20) + 1), 413, "expected at most 4194304"),
    "large alone": (
        PageMaker(1).chunk(RECORDS[:1], data_bytes=(64 << 20) + 1), 413, "at most 67108864",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_told_and_nothing_is_left(rig: HttpRig, name: str) -> None:
    bad, status, told = BAD[name]
    reply = post(rig, bad)
    assert reply.status == status, reply.body
    assert told in reply.json()["reason"]
    good = PageMaker(9).chunk(RECORDS)
    assert post(rig, good + bad).status == status
    assert not files(rig)
    # The same attempt may be made again: nothing was staged of it.
    assert post(rig, good).status == 201


def test_a_page_has_at_most_so_many_bytes(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_endpoints, "STAGED_PAGE_BYTES_MAX", 1000)
    page = PageMaker(1)
    reply = post(rig, page.chunk(RECORDS[:10]) + page.chunk(RECORDS[10:40]))
    assert (reply.status, reply.json()["error"]) == (413, "too_large")
    assert "expected at most 1000" in reply.json()["reason"]
    assert not files(rig)


@pytest.mark.parametrize("sent", [0, 10, 64, 70, 3000, 1 << 30])
def test_a_client_that_leaves_leaves_nothing(rig: HttpRig, sent: int) -> None:
    body = PageMaker(1).chunk(RECORDS) + PageMaker(2).chunk(RECORDS)
    post(rig, [body[:sent], None])
    assert not files(rig)
