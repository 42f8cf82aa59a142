"""Addresses and answers: what is none is an error in one form; ranges; cuts; health."""

import asyncio
import io
import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.http import pages, ranges, requests
from penstock.http.api import Api
from penstock.http.ranges import StreamPages
from penstock.server.control import ControlError
from tests.helpers.asgi_client import Reply, ask
from tests.helpers.chunk_records import chunk_sizes, records
from tests.helpers.http_rig import HttpRig

pytestmark = pytest.mark.real
FRAMES = "/api/streams/%2F/events/frames"
WELL = {
    "is_ready": True, "is_healthy": True, "takes_clients": True,
    "vhosts": [
        {"state": "running", "blocked_reason": None, "takes_clients": True, "unserved": None},
        {"state": "stopped", "blocked_reason": None, "takes_clients": True, "unserved": None},
    ],
}  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    """With a stream "events" of 300 records in several pages."""
    rig = HttpRig(tmp_path)
    rig.filled("events", 300)
    yield rig
    rig.close()


def offsets(reply: Reply) -> list[int]:
    assert reply.status == 200, reply.body
    assert not reply.is_cut
    return [record.offset for record in records(reply.body)]


# --- addresses ---


@pytest.mark.parametrize(
    "address",
    [
        "/", "/x", "/api/streams", "/api/streams/", "/healthz",
        "/api/streams/%2F/events/", "/api/streams/%2F/events/x", "/api/streams///events",
        "/api/streams/%2F/events/frames/0", "//api/overview", "/API/overview",
        "/api/streams/%2F%2Fevents", "/api/streams/%2F/events/readers/",
    ],
)  # fmt: skip
def test_an_unknown_address_is_404(rig: HttpRig, address: str) -> None:
    reply = rig.ask(address)
    assert (reply.status, reply.json()["error"]) == (404, "not_found")
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_another_method_is_405(rig: HttpRig, method: str) -> None:
    reply = rig.ask(FRAMES, method=method)
    assert (reply.status, reply.json()["error"]) == (405, "method_not_allowed")
    assert "GET" in reply.headers["allow"]


def test_names_are_decoded_only_when_the_address_is_taken_apart(rig: HttpRig) -> None:
    rig.node.answers["describe_stream"] = {}
    rig.ask("/api/streams/%2F/a%2Fb%20c%25%C3%A9")
    rig.ask("/api/streams/%2F/%FF")
    assert [args["queue"] for _, _, args in rig.node.asked] == ["a/b c%é", "\udcff"]


def test_health_needs_no_password_and_tells_no_names(rig: HttpRig) -> None:
    rig.node.answers["status"] = WELL
    reply = rig.ask("/health", user=None)
    assert (reply.status, reply.json()) == (200, {"status": "ok"})
    rig.node.answers["status"] = {"is_ready": True, "vhosts": [{"state": "down", "name": "v"}]}
    reply = rig.ask("/health", user=None)
    assert (reply.status, reply.json()["reason"]) == (503, "1 of 1 vhosts is down")
    rig.node.answers["status"] = {**WELL, "is_ready": False}
    assert rig.ask("/health", user=None).status == 503
    rig.node.answers["status"] = ControlError(541, "INTERNAL_ERROR - x")
    assert rig.ask("/health", user=None).json()["error"] == "unavailable"


def test_ready_and_live(rig: HttpRig) -> None:
    rig.node.answers["status"] = WELL
    assert rig.ask("/health/ready", user=None).json() == {"status": "ok"}
    rig.node.answers["status"] = {**WELL, "is_ready": False}
    assert rig.ask("/health/ready", user=None).status == 503
    assert rig.ask("/health/live", user=None).json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("code", "status"), [(403, 403), (404, 404), (406, 400), (541, 503), (999, 500)]
)
def test_what_the_broker_refuses(rig: HttpRig, code: int, status: int) -> None:
    rig.node.answers["describe_stream"] = ControlError(code, "why")
    for address in (FRAMES, "/api/streams/%2F/events"):
        reply = rig.ask(address)
        assert (reply.status, reply.json()["reason"]) == (status, "why")


def test_a_mistake_of_ours_is_500_and_logged(
    rig: HttpRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.node.answers["describe_stream"] = ZeroDivisionError("ours")
    reply = rig.ask("/api/streams/%2F/events")
    assert (reply.status, reply.json()["error"]) == (500, "internal_error")
    assert "ours" not in reply.json()["reason"]
    assert caplog.records[-1].exc_info is not None


def test_requests_are_logged_at_debug(rig: HttpRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="penstock.http")
    rig.ask("/api/x")
    assert "127.0.0.1 GET /api/x: 404" in caplog.text
    assert "guest" not in caplog.text


# --- what the vhost does ---


def test_a_stream_is_described_as_the_vhost_says(rig: HttpRig) -> None:
    found = rig.ask("/api/streams/%2F/events").json()
    assert found["name"] == "events"
    assert found["partitions"][0]["head"] == 300
    assert rig.ask("/api/streams/%2F").json() == [found]


def test_offsets_of_readers(rig: HttpRig) -> None:
    rig.node.answers |= {"set_stream_reader": {}, "delete_stream_reader": {}}
    address = "/api/streams/%2F/events/readers/a%20b"
    body = b'{"offsets": {"0": 7}, "kept_from": {"0": 5}}'
    assert rig.ask(address, method="PUT", body=body).status == 204
    body = b'{"offsets": {"0": 7}, "wait": true}'
    assert rig.ask(address, method="PUT", body=body).status == 204
    assert rig.ask(address, method="DELETE").status == 204
    reader = {"queue": "events", "reader": "a b"}
    users = [args.pop("as_user")["name"] for _, _, args in rig.node.asked[:2]]
    assert users == ["guest", "guest"], "its memory counts for this user"
    assert rig.node.asked == [
        ("set_stream_reader", "/", {**reader, "offsets": {"0": 7}, "kept_from": {"0": 5}}),
        ("set_stream_reader", "/", {**reader, "offsets": {"0": 7}, "wait": True}),
        ("delete_stream_reader", "/", reader),
    ]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"", 400, "expected JSON"),
        (b"[]", 400, "JSON object"),
        (b"{}", 400, '{"offsets"'),
        (b'{"offsets": {"0": 7}, "kept": {}}', 400, "kept_from and wait may be missing"),
        (b'{"offsets": 7}', 400, "offsets: expected an object"),
        (b'{"offsets": {"a": 7}}', 400, "offsets: expected an object"),
        (b'{"offsets": {"0": -7}}', 400, "offsets: expected an object"),
        (b'{"offsets": {"0": true}}', 400, "offsets: expected an object"),
        (b'{"offsets": {"0": 7}, "kept_from": []}', 400, "kept_from: expected"),
        (b"[" * 60_000, 400, "expected JSON"),
        (b" " * (64 << 10) + b"{}", 413, "more than 65536 bytes"),
    ],
)
def test_no_offsets(rig: HttpRig, body: bytes, status: int, told: str) -> None:
    reply = rig.ask("/api/streams/%2F/events/readers/r", method="PUT", body=body)
    assert reply.status == status
    assert told in reply.json()["reason"]
    assert not rig.node.asked


def test_pages_and_what_is_in_them(rig: HttpRig) -> None:
    pages = rig.ask("/api/streams/%2F/events/pages?partition=0").json()["pages"]
    assert len(pages) > 2
    assert sum(page["records"] for page in pages) == 300
    ends = [page["base"] + page["records"] for page in pages]
    assert [page["base"] for page in pages] == [0, *ends[:-1]]
    assert [page["is_sealed"] for page in pages[:-1]] == [True] * (len(pages) - 1)
    assert all(page["first_time_us"] <= page["last_time_us"] for page in pages)
    assert all(page["bytes"] > 0 for page in pages)
    assert rig.ask("/api/streams/%2F/events/pages?partition=7").status == 404
    assert rig.ask("/api/streams/%2F/events/pages?wrong=7").status == 400


# --- ranges ---


def test_frames_of_any_range(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SPAN_BYTES", 1000)
    assert offsets(rig.ask(FRAMES)) == list(range(300))
    for first in range(0, 301, 23):
        for last in range(first, 301, 31):
            assert offsets(rig.ask(f"{FRAMES}?from={first}&to={last}")) == list(range(first, last))
    assert offsets(rig.ask(f"{FRAMES}?from=100&limit=7")) == list(range(100, 107))
    assert offsets(rig.ask(f"{FRAMES}?to=7&limit=100")) == list(range(7))
    assert offsets(rig.ask(f"{FRAMES}?limit=0")) == []
    reply = rig.ask(f"{FRAMES}?from=5&to=9")
    assert reply.headers["content-type"] == "application/x-penstock-frames"
    assert (reply.headers["x-penstock-first"], reply.headers["x-penstock-last"]) == ("5", "9")
    assert "content-length" not in reply.headers


def test_records_since_a_time(rig: HttpRig) -> None:
    assert offsets(rig.ask(f"{FRAMES}?since=1290")) == list(range(290, 300))
    assert offsets(rig.ask(f"{FRAMES}?since=1970-01-01T00:00:00.001290Z"))[0] == 290
    assert offsets(rig.ask(f"{FRAMES}?since=0&limit=2")) == [0, 1]
    assert offsets(rig.ask(f"{FRAMES}?since=999999")) == []
    assert offsets(rig.ask(f"{FRAMES}?since=1290&to=5")) == []
    for time, offset in ((0, 0), (1290, 290), (99999, 300)):
        reply = rig.ask(f"/api/streams/%2F/events/offset?time_us={time}")
        assert reply.json() == {"offset": offset, "first": 0, "head": 300}
    assert rig.ask("/api/streams/%2F/events/offset").status == 400


def test_chunks_are_of_about_the_same_size_and_of_one_page(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SPAN_BYTES", 1024)
    monkeypatch.setattr(pages, "BLOCK_BYTES", 1 << 20)
    reply = rig.ask(FRAMES)
    sizes = chunk_sizes(reply.body)
    assert len(sizes) > 5
    assert max(sizes) <= 4096
    assert len(reply.pieces) == len(sizes)


def test_a_range_that_is_not_there_is_416_and_says_what_is(rig: HttpRig) -> None:
    for query in ("to=301", "from=301", "from=301&to=301", "from=5&to=1000000"):
        reply = rig.ask(f"{FRAMES}?{query}")
        assert (reply.status, reply.json()["error"]) == (416, "range_not_satisfiable")
        assert (reply.json()["first"], reply.json()["head"]) == (0, 300)
    assert rig.ask(f"{FRAMES}?from=9&to=8").status == 400
    rig.streams["events"][0].retain(max_records=100, now_us=10_000)
    first = rig.streams["events"][0].first_offset
    assert first > 0
    assert rig.ask(f"{FRAMES}?from={first - 1}").json()["first"] == first
    assert offsets(rig.ask(FRAMES)) == list(range(first, 300))
    assert offsets(rig.ask(f"{FRAMES}?since=0")) == list(range(first, 300))


def test_what_is_behind_the_head_is_not_there_yet(rig: HttpRig) -> None:
    queue = rig.streams["events"][0]
    queue.append(b"new", b"", 2000)
    queue.write()
    assert offsets(rig.ask(f"{FRAMES}?from=295")) == list(range(295, 300))
    assert rig.ask(f"{FRAMES}?to=301").status == 416
    queue.force()
    assert offsets(rig.ask(f"{FRAMES}?from=295")) == list(range(295, 301))


def test_partitions(rig: HttpRig) -> None:
    rig.stream("parts", partitions=3)
    for n, queue in enumerate(rig.streams["parts"]):
        queue.append(b"%d" % n, b"", 1)
        queue.force()
    for n in range(3):
        reply = rig.ask(f"/api/streams/%2F/parts/frames?partition={n}")
        assert [record.payload for record in records(reply.body)] == [b"%d" % n]
    reply = rig.ask("/api/streams/%2F/parts/frames?partition=3")
    assert reply.status == 404
    assert "has no partition 3" in reply.json()["reason"]


def test_an_empty_stream(rig: HttpRig) -> None:
    rig.stream("empty")
    assert offsets(rig.ask("/api/streams/%2F/empty/frames")) == []
    reply = rig.ask("/api/streams/%2F/empty/offset?time_us=5")
    assert reply.json() == {"offset": 0, "first": 0, "head": 0}
    assert rig.ask("/api/streams/%2F/empty/frames?from=0&to=1").status == 416


def test_where_a_stream_is_is_asked_once_a_second_and_again_when_it_is_wrong(
    rig: HttpRig, tmp_path: Path
) -> None:
    for _ in range(3):
        rig.ask(FRAMES)
    assert len(rig.node.asked) == 1
    rig.clock.advance(1.0)
    rig.ask(FRAMES)
    assert len(rig.node.asked) == 2
    (queue,) = rig.streams["events"]
    Path(queue.path).rename(tmp_path / "moved")
    reply = rig.ask(FRAMES)
    assert (reply.status, reply.json()["reason"]) == (404, "stream 'events' has gone")
    queue.path, before = str(tmp_path / "moved"), queue.path
    assert offsets(rig.ask(FRAMES)) == list(range(300))
    queue.path = before
    (tmp_path / "moved").rename(before)


def test_head_answers_headers_only(rig: HttpRig) -> None:
    reply = rig.ask(FRAMES, method="HEAD")
    assert (reply.status, reply.pieces, reply.is_cut) == (200, [], False)
    assert reply.headers["x-penstock-last"] == "300"


# --- answers that are cut ---


def first_page(rig: HttpRig, n: int = 0) -> Path:
    return sorted(Path(rig.streams["events"][0].path).glob("*.page"))[n]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_damage_in_the_first_page_is_an_error_and_behind_it_a_cut(
    rig: HttpRig, caplog: pytest.LogCaptureFixture
) -> None:
    flip(first_page(rig, 1))
    reply = rig.ask(FRAMES)
    assert (reply.status, reply.is_cut) == (200, True)
    found = [record.offset for record in records(reply.body)]
    assert found == list(range(len(found)))
    assert len(found) > 0
    assert str(first_page(rig, 1)) in caplog.text
    assert "Traceback" not in caplog.text
    reply = rig.ask(f"{FRAMES}?from={len(found)}")
    assert (reply.status, reply.json()["error"]) == (500, "internal_error")
    assert "damaged" in reply.json()["reason"]
    # What is not damaged can be read.
    assert offsets(rig.ask(f"{FRAMES}?to={len(found)}")) == found
    assert offsets(rig.ask(f"{FRAMES}?from=290")) == list(range(290, 300))


def test_a_page_that_retention_takes_meanwhile_is_a_cut(rig: HttpRig) -> None:
    async def scenario(app: Api) -> Reply:
        reply = await ask(app, FRAMES, leaves_after=None)
        return reply

    queue = rig.streams["events"][0]
    real = rig.pages.spans

    def retained(wanted: Any) -> Any:
        for n, span in enumerate(real(wanted)):
            yield span
            if n == 0:
                for file in sorted(Path(queue.path).glob("*.page"))[1:-1]:
                    file.unlink()

    rig.pages.spans = retained  # type: ignore[method-assign]
    reply = rig.run(scenario)
    assert (reply.status, reply.is_cut) == (200, True)
    found = [record.offset for record in records(reply.body)]
    assert found == list(range(len(found)))


def test_a_client_that_leaves_ends_the_work(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    real = rig.pages.spans

    def watched(wanted: Any) -> Any:
        done = 0
        try:
            for span in real(wanted):
                done += 1
                yield span
        finally:
            ended.append(done)

    rig.pages.spans = watched  # type: ignore[method-assign]
    monkeypatch.setattr(pages, "SPAN_BYTES", 500)
    reply = rig.ask(FRAMES, leaves_after=1)
    assert len(reply.pieces) == 1
    assert ended
    assert ended[0] <= 3


def test_a_client_that_takes_nothing_is_cut(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(requests, "STALL_S", 0.01)

    async def scenario(app: Api) -> Reply:
        async def stalled(scope: Any, receive: Any, send: Any) -> None:
            async def slow(message: Any) -> None:
                if message["type"] == "http.response.body":
                    await asyncio.Event().wait()
                await send(message)

            await app(scope, receive, slow)

        return await ask(stalled, FRAMES)

    reply = rig.run(scenario)
    assert (reply.status, reply.pieces, reply.is_cut) == (200, [], True)
    assert "takes nothing" in caplog.text


def test_only_so_many_long_answers_at_a_time(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "ANSWERS_MAX", 2)

    async def scenario(app: Api) -> Reply:
        for address in (f"{FRAMES}?to=999", f"{FRAMES}?columns=x", f"{FRAMES}?partition=9"):
            for _ in range(3):  # none of the refused keeps a place
                assert (await ask(app, address)).status >= 400
        replies = await asyncio.gather(*(ask(app, FRAMES) for _ in range(10)))
        for reply in replies:
            assert len(records(reply.body)) == 300
        return replies[0]

    rig.run(scenario)


# --- Arrow ---


def test_without_pyarrow_it_is_501(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.http.ranges.NEEDED", ("no_such_package",))
    reply = rig.ask("/api/streams/%2F/events/arrow")
    assert (reply.status, reply.json()["error"]) == (501, "not_implemented")
    assert "no_such_package" in reply.json()["reason"]


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_arrow(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    monkeypatch.setattr(pages, "SPAN_BYTES", 1000)

    def table(query: str) -> Any:
        reply = rig.ask(f"/api/streams/%2F/events/arrow?{query}")
        assert not reply.is_cut, reply.body
        assert reply.headers["content-type"] == "application/vnd.apache.arrow.stream"
        return pa.ipc.open_stream(io.BytesIO(reply.body)).read_all()

    whole = table("")
    assert whole["offset"].to_pylist() == list(range(300))
    assert whole["value"][7].as_py() == b"00000007".ljust(100, b"x")
    assert whole["queue"][0].as_py() == "events"
    assert table("from=5&to=7&columns=value,offset").column_names == ["value", "offset"]
    assert table("from=5&to=5").num_rows == 0
    assert table("since=1290").num_rows == 10
    reply = rig.ask("/api/streams/%2F/events/arrow?columns=offset,vlaue")
    assert reply.status == 400
    assert "'vlaue' is unknown or twice, known are queue, partition" in reply.json()["reason"]
    flip(first_page(rig, 1))
    rig.pages = StreamPages(rig.fs)
    reply = rig.ask("/api/streams/%2F/events/arrow")
    assert reply.is_cut
    assert pa.ipc.open_stream(io.BytesIO(reply.body)).read_all().num_rows < 300
