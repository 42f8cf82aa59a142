"""Frames of a range: from files, from a broker, and what is done when either fails."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="pages are read by columns with NumPy")

from penstock.errors import CorruptionError, StreamGapError
from penstock.page_frames import PageMap
from penstock.spark.access import (
    AccessError,
    LeaseGoneError,
    RangeSource,
    frames_of,
    why_not_here,
)
from penstock.spark.http_link import LinkError, RefusedError
from penstock.spark.options import parse_source_options
from penstock.spark.plan import Range
from tests.helpers.tiny_http import Answer, TinyHttp
from tests.helpers.tiny_pages import Record, page_of
from tests.helpers.tiny_streams import open_stream, stream_id_hex, write_stream

PAYLOADS = [b"record %d" % i for i in range(500)]
THREE = {"fetchOffset.numRetries": "3"}
FRAMES = "GET /api/streams/%2F/s/frames?partition=0&from={}&to={}"


def source_of(
    path: Path, first: int = 0, last: int = 500, stream_id: str | None = None
) -> RangeSource:
    return RangeSource(Range("s", 0, first, last), stream_id or stream_id_hex(path), str(path))


def read(source: RangeSource, **given: str) -> list[tuple[int, bytes]]:
    """(offset, payload) of all records."""
    fast = {"subscribe": "s", "fetchOffset.retryIntervalMs": "0", **given}
    options = parse_source_options(fast, is_streaming=True)
    found = []
    for frames in frames_of(source, options):
        view = memoryview(frames.data)
        for index, row in enumerate(frames.rows):
            at = int(row["start"]) - frames.data_start + 24
            payload = bytes(view[at : at + int(row["size"])])
            found.append((frames.first_offset + index, payload))
    return found


EXPECTED = list(enumerate(PAYLOADS))


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "s"
    write_stream(path, PAYLOADS)
    assert len(list(path.glob("*.page"))) > 3
    return path


@pytest.mark.parametrize(("first", "last"), [(0, 500), (0, 1), (499, 500), (100, 400), (7, 7)])
def test_a_range_of_files(stream: Path, first: int, last: int) -> None:
    found = read(source_of(stream, first, last), path=str(stream))
    assert found == EXPECTED[first:last]


def test_records_are_read_while_more_are_appended(stream: Path) -> None:
    owner = open_stream(stream)
    owner.append(b"settled", b"")
    owner.force()
    owner.append(b"not settled", b"")
    owner.write()
    found = read(source_of(stream, 400, 501), path=str(stream))
    assert found == [*EXPECTED[400:], (500, b"settled")]
    with pytest.raises(CorruptionError, match="the stream ends at 501, expected records up to 502"):
        read(source_of(stream, 400, 502), path=str(stream))
    owner.close()


def test_a_page_that_retention_took_is_a_gap(stream: Path) -> None:
    bases = sorted(int(page.stem) for page in stream.glob("*.page"))
    (stream / f"{0:020}.page").unlink()
    with pytest.raises(StreamGapError) as caught:
        read(source_of(stream), path=str(stream))
    assert (caught.value.asked, caught.value.first) == (0, bases[1])
    assert read(source_of(stream, bases[1]), path=str(stream)) == EXPECTED[bases[1] :]


def test_damage_names_the_file(stream: Path) -> None:
    page = sorted(stream.glob("*.page"))[1]
    raw = bytearray(page.read_bytes())
    raw[200] ^= 1
    page.write_bytes(raw)
    with pytest.raises(CorruptionError, match=page.name):
        read(source_of(stream), path=str(stream))


def test_a_page_of_another_stream_is_refused(stream: Path, tmp_path: Path) -> None:
    write_stream(tmp_path / "other", PAYLOADS, seed=2)
    for ending in ("page", "idx"):
        other = tmp_path / "other" / f"{0:020}.{ending}"
        (stream / other.name).write_bytes(other.read_bytes())
    with pytest.raises(CorruptionError, match="a page of another stream"):
        read(source_of(stream), path=str(stream))


def test_why_files_are_not_used(stream: Path, tmp_path: Path) -> None:
    assert why_not_here(str(stream), stream_id_hex(stream)) is None
    assert "does not say where" in str(why_not_here("", "00"))
    assert "does not exist" in str(why_not_here(str(tmp_path / "none"), "00"))
    assert "is stream" in str(why_not_here(str(stream), "ff" * 16))


# ---- the broker ----------------------------------------------------------------------------------

TINY = page_of([Record(i, payload) for i, payload in enumerate(PAYLOADS)])
NOWHERE = RangeSource(Range("s", 0, 0, 500), "ab" * 16, "/nowhere")


def test_a_range_of_a_broker() -> None:
    body = TINY.chunk(0, 200) + TINY.chunk(200, 500)
    with TinyHttp({FRAMES.format(0, 500): [Answer(200, body)]}) as broker:
        assert read(NOWHERE, url=broker.url) == EXPECTED
        assert read(NOWHERE, url=broker.url, access="network") == EXPECTED
        assert len(broker.asked) == 2


def test_files_are_used_where_they_are_that_stream(stream: Path) -> None:
    with TinyHttp({}) as broker:
        assert read(source_of(stream), url=broker.url) == EXPECTED
        assert read(source_of(stream), url=broker.url, access="file") == EXPECTED
        assert broker.asked == []
        with pytest.raises(AccessError, match="access=file: /nowhere does not exist"):
            read(NOWHERE, url=broker.url, access="file")
        with pytest.raises(RefusedError, match="404"):
            read(source_of(stream), url=broker.url, access="network")


def test_another_stream_at_the_same_path_is_not_read(stream: Path) -> None:
    source = source_of(stream, stream_id="ab" * 16)
    body = TINY.chunk(0, 500)
    with TinyHttp({FRAMES.format(0, 500): [Answer(200, body)]}) as broker:
        assert read(source, url=broker.url) == EXPECTED
        assert len(broker.asked) == 1


@pytest.mark.parametrize("cut_at", [0, 1, 63, 64, 5000])
def test_a_connection_that_breaks_goes_on_behind_the_last_whole_chunk(cut_at: int) -> None:
    first = TINY.chunk(0, 200)
    body = first + TINY.chunk(200, 500)
    answers = {
        FRAMES.format(0, 500): [Answer(200, body, cut_at=len(first) + cut_at)],
        FRAMES.format(200, 500): [Answer(200, TINY.chunk(200, 500))],
    }
    with TinyHttp(answers) as broker:
        assert read(NOWHERE, url=broker.url) == EXPECTED
        assert len(broker.asked) == 2


def test_an_answer_that_ends_early_goes_on() -> None:
    answers = {
        FRAMES.format(0, 500): [Answer(200, TINY.chunk(0, 200))],
        FRAMES.format(200, 500): [Answer(200, TINY.chunk(200, 500))],
    }
    with TinyHttp(answers) as broker:
        assert read(NOWHERE, url=broker.url) == EXPECTED


def test_a_broker_that_only_breaks_fails_the_task() -> None:
    with TinyHttp({FRAMES.format(0, 500): [Answer(200, TINY.chunk(0, 500), cut_at=10)]}) as broker:
        with pytest.raises(LinkError):
            read(NOWHERE, url=broker.url, **THREE)
        assert len(broker.asked) == 4


def test_a_gap_that_the_broker_tells() -> None:
    told = {
        "error": "range",
        "reason": "records 0 to 500 were asked for",
        "first": 120,
        "head": 500,
    }
    with TinyHttp({FRAMES.format(0, 500): [Answer(416, told)]}) as broker:
        with pytest.raises(StreamGapError) as caught:
            read(NOWHERE, url=broker.url)
        assert (caught.value.queue, caught.value.asked, caught.value.first) == ("s", 0, 120)
    answers = {FRAMES.format(0, 500): [Answer(416, {**told, "first": 0})]}
    with TinyHttp(answers) as broker, pytest.raises(RefusedError, match="416"):
        read(NOWHERE, url=broker.url)


def test_damage_on_the_way_is_found() -> None:
    raw = bytearray(TINY.chunk(0, 500))
    raw[-5] ^= 1
    answers = {FRAMES.format(0, 500): [Answer(200, bytes(raw))]}
    wrong = "the CRC of the chunk at offset 0 is wrong"
    with TinyHttp(answers) as broker, pytest.raises(CorruptionError, match=wrong):
        read(NOWHERE, url=broker.url)


def test_a_chunk_that_was_not_asked_for_is_refused() -> None:
    answers = {FRAMES.format(0, 500): [Answer(200, TINY.chunk(5, 500))]}
    with TinyHttp(answers) as broker, pytest.raises(CorruptionError, match="expected 0"):
        read(NOWHERE, url=broker.url)


def test_a_task_that_stops_early_leaves_no_half_answer_behind() -> None:
    body = TINY.chunk(0, 200) + TINY.chunk(200, 500)
    options = parse_source_options({"url": "http://x", "subscribe": "s"}, is_streaming=True)
    with TinyHttp({FRAMES.format(0, 500): [Answer(200, body)]}) as broker:
        fast = {"url": broker.url, "subscribe": "s"}
        options = parse_source_options(fast, is_streaming=True)
        frames = frames_of(NOWHERE, options)
        assert next(frames).count == 200
        frames.close()  # type: ignore[attr-defined]
        assert read(NOWHERE, url=broker.url) == EXPECTED


def test_a_vhost_that_restarts_is_asked_again() -> None:
    away = Answer(503, {"error": "unavailable", "reason": "vhost restarts"})
    whole = Answer(200, TINY.chunk(0, 500))
    with TinyHttp({FRAMES.format(0, 500): [away, away, whole]}) as broker:
        assert read(NOWHERE, url=broker.url) == EXPECTED
    with TinyHttp({FRAMES.format(0, 500): [away]}) as broker:
        with pytest.raises(RefusedError, match="503"):
            read(NOWHERE, url=broker.url, **THREE)
        assert len(broker.asked) == 4


# ---- leases --------------------------------------------------------------------------------------

LEASE = "GET /api/leases/%2F/s/job/frames?from={}&to={}"
LEASED = replace(NOWHERE, reader="job")


def test_messages_of_a_lease_are_asked_for_where_its_pages_are_not() -> None:
    with TinyHttp({LEASE.format(0, 500): [Answer(200, TINY.chunk(0, 500))]}) as broker:
        assert read(LEASED, url=broker.url) == EXPECTED
        with pytest.raises(AccessError, match="access=file: /nowhere does not exist"):
            read(LEASED, url=broker.url, access="file")


def test_pages_of_a_lease_are_mapped_where_they_are(stream: Path) -> None:
    source = replace(source_of(stream), reader="job")
    with TinyHttp({}) as broker:
        assert read(source, url=broker.url) == EXPECTED
        assert read(source, url=broker.url, access="file") == EXPECTED
        with pytest.raises(LeaseGoneError):
            read(source, url=broker.url, access="network")


def test_pages_that_are_made_anew_are_left_for_the_broker(stream: Path) -> None:
    """They end before what was planned; or a page is gone, or is not what it was."""
    source = replace(source_of(stream, 100, 520), reader="job")
    longer = [*PAYLOADS, *(b"more" for _ in range(20))]
    tiny = page_of([Record(i, payload) for i, payload in enumerate(longer)])
    with TinyHttp({LEASE.format(100, 520): [Answer(200, tiny.chunk(100, 520))]}) as broker:
        assert read(source, url=broker.url) == list(enumerate(longer))[100:]
        with pytest.raises(AccessError, match="the stream ends at 500"):
            read(source, url=broker.url, access="file")
    pages = sorted(stream.glob("*.page"))
    base = int(pages[1].stem)
    answers = {LEASE.format(base, 500): [Answer(200, TINY.chunk(base, 500))]}
    source = replace(source_of(stream), reader="job")
    raw = pages[1].read_bytes()
    pages[1].write_bytes(raw[:200] + b"x" + raw[201:])
    with TinyHttp(answers) as broker:
        assert read(source, url=broker.url) == EXPECTED
    pages[1].write_bytes(raw)
    pages[2].unlink()  # the page before it ends nowhere now
    with TinyHttp(answers) as broker:
        assert read(source, url=broker.url) == EXPECTED


@pytest.mark.parametrize(
    ("status", "told", "first"),
    [
        (404, {"reason": "no reader 'job' of queue 's'"}, 500),
        (416, {"reason": "there are 120 to 500", "first": 120, "head": 500}, 120),
        (416, {"reason": "there are 0 to 40", "first": 0, "head": 40}, 500),
    ],
)
def test_a_lease_that_is_gone(status: int, told: dict[str, Any], first: int) -> None:
    with TinyHttp({LEASE.format(0, 500): [Answer(status, told)]}) as broker:
        with pytest.raises(LeaseGoneError, match="queue 's', leased by reader 'job'") as caught:
            read(LEASED, url=broker.url)
        assert caught.value.first == first
        assert str(told["reason"]) in str(caught.value)


def test_what_a_lease_lacks_is_passed_over_if_the_query_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("pyspark")
    from penstock.spark.source import batches

    answers = {
        LEASE.format(0, 500): [Answer(416, {"reason": "committed", "first": 120, "head": 500})],
        LEASE.format(120, 500): [Answer(200, TINY.chunk(120, 300)), Answer(404, {})],
        LEASE.format(300, 500): [Answer(404, {"reason": "no such reader"})],
    }
    with TinyHttp(answers) as broker:
        given = {"url": broker.url, "subscribe": "s", "failOnDataLoss": "false"}
        fast = {"fetchOffset.retryIntervalMs": "0"}
        options = parse_source_options({**given, **fast}, is_streaming=True)
        found = [n for batch in batches(LEASED, options, ["offset"]) for n in batch["offset"]]
    assert [n.as_py() for n in found] == list(range(120, 300))
    assert "messages 0 to 119 are no longer leased (committed)" in caplog.text
    assert "messages 300 to 499 are no longer leased (no such reader)" in caplog.text


def test_pages_of_the_engine_are_what_the_columns_read(stream: Path) -> None:
    """The engine's own sealed pages, indexes and active page, without a fallback."""
    pages = sorted(stream.glob("*.page"))
    bases = [int(page.stem) for page in pages]
    for page, base, end in zip(pages, bases, [*bases[1:], 500], strict=True):
        mapped = PageMap(str(page), base, end - base)
        assert mapped.frames(base, end).count == end - base
        if end != 500:
            assert mapped._index is not None, f"{page.name} is not read as sealed"
