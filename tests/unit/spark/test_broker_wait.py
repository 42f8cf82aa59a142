"""A broker that is away: source and sink wait for it alike, at the driver and in tasks."""

import socket
import threading
from typing import Any

import pytest

pytest.importorskip("numpy", reason="pages are read by columns with NumPy")

from penstock.spark.access import RangeSource, frames_of
from penstock.spark.catalog import BrokerCatalog
from penstock.spark.http_link import PAUSE_S, BrokerWait, LinkError, RefusedError, kept_link
from penstock.spark.options import Place, SinkOptions, SourceOptions, parse_source_options
from penstock.spark.plan import Range
from tests.helpers.tiny_http import Answer, TinyHttp
from tests.helpers.tiny_pages import Record, page_of

PLACE = Place("http://h")
AWAY = LinkError(PLACE, "Connection refused")
TINY = page_of([Record(i, b"record %d" % i) for i in range(500)])
FRAMES = "GET /api/streams/%2F/s/frames?partition=0&from={}&to=500"
SOURCE = RangeSource(Range("s", 0, 0, 500), "ab" * 16, "/nowhere")


def unready(reason: str = "vhost starts") -> RefusedError:
    return RefusedError(PLACE, "GET", 503, {"reason": reason})


class Outage:
    """A call that fails until a time, and a clock that only sleeping moves."""

    def __init__(self, until_s: float = 0.0, error: Any = AWAY) -> None:
        self.now_s = 1000.0
        self.back_s = 1000.0 + until_s
        self.error = error
        self.calls = 0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, timeout_s: float = 60.0, **given: Any) -> BrokerWait:
        return BrokerWait(timeout_s, sleep=self.sleep, monotonic=self.monotonic, **given)

    def __call__(self) -> str:
        self.calls += 1
        if self.now_s < self.back_s:
            raise self.error
        return "answered"


@pytest.mark.parametrize("error", [AWAY, unready(), RefusedError(PLACE, "GET", 507, {})])
def test_a_restart_is_waited_for_and_the_log_says_so(
    error: Any, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage(34.9, error)
    assert outage.wait().retry(outage) == "answered"
    assert outage.calls == pytest.approx(34.9 / PAUSE_S, abs=3)
    told = [record.getMessage() for record in caplog.records]
    plan = f"{error}; waiting for the broker for up to 60 s"
    assert told[0] == plan
    assert [line.removeprefix(plan) for line in told[1:-1]] == [
        ", 10 s so far", ", 20 s so far", ", 30 s so far",
    ]  # fmt: skip
    assert told[-1].startswith("the broker answers again, after 3")


def test_one_that_stays_away_is_an_error_after_that_time() -> None:
    outage = Outage(1e9)
    with pytest.raises(LinkError, match="Connection refused"):
        outage.wait(7.0).retry(outage)
    assert 7.0 <= outage.now_s - 1000.0 < 7.0 + 2 * PAUSE_S


def test_a_refusal_that_cannot_pass_is_an_error_at_once(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(1.0, RefusedError(PLACE, "GET", 404, {}))
    with pytest.raises(RefusedError, match="404"):
        outage.wait().retry(outage)
    assert (outage.calls, caplog.records) == (1, [])


def test_attempts_count_if_their_number_is_given(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(1e9)
    with pytest.raises(LinkError):
        outage.wait(0.5, retries=3, pause_s=1.0).retry(outage)
    assert (outage.calls, outage.now_s) == (4, 1003.0)
    assert "attempt 1 of 4" in caplog.text
    outage = Outage(1e9)
    with pytest.raises(LinkError):
        outage.wait(retries=0).retry(outage)
    assert outage.calls == 1


def test_a_success_ends_a_series_of_failures() -> None:
    outage = Outage()
    wait = outage.wait(10.0)
    for _ in range(5):
        while outage.now_s < outage.back_s:
            assert wait.waited(AWAY)
        wait.succeeded()
        outage.back_s += 8.0
    assert outage.now_s > 1030.0


def test_a_broker_that_gets_on_is_waited_for_longer() -> None:
    outage = Outage()
    wait = outage.wait(10.0)
    for step in range(5):
        for _ in range(int(4.0 / PAUSE_S)):
            assert wait.waited(unready(f"batch 0 is at page {step}"))
            assert wait.waited(AWAY)  # in between it does not answer at all
    assert outage.now_s > 1039.0


def test_source_and_sink_wait_equally_long() -> None:
    source = parse_source_options({"url": "http://h", "subscribe": "s"}, is_streaming=True)
    sink = SinkOptions.of({"url": "http://h", "queue": "q"}, {})
    assert source.timeout_s == sink.timeout_s == 60.0
    assert (source.retry_interval_s, source.retries) == (PAUSE_S, None)


# ---- the source ----------------------------------------------------------------------------------


def options_for(broker: TinyHttp, **given: str) -> SourceOptions:
    return parse_source_options({"url": broker.url, "subscribe": "s", **given}, is_streaming=True)


def described(head: int) -> dict[str, Any]:
    row = {
        "partition": 0, "first": 0, "head": head, "last_time_us": 0, "bytes": 10 * head,
        "stream_id": "ab" * 16,
    }  # fmt: skip
    return {"name": "s", "partitions": [row]}


def test_the_driver_waits_for_a_broker_that_is_started_again() -> None:
    """Ten seconds of "starts" and broken answers; each answer is one question of the driver."""
    outage = Outage()
    away = Answer(503, {"error": "unavailable", "reason": "vhost starts"})
    broken = Answer(200, b"{}", cut_at=1)
    answers = [away, broken] * 25 + [Answer(200, described(3))]
    with TinyHttp({"GET /api/streams/%2F/s": answers}) as broker:
        catalog = BrokerCatalog(options_for(broker), outage.monotonic, outage.sleep)
        assert catalog.heads()["s"][0].head == 3
        assert len(broker.asked) >= 51
    assert outage.now_s - 1000.0 == pytest.approx(10.0)


def test_a_query_that_stops_does_not_wait() -> None:
    outage = Outage()
    away = Answer(503, {"error": "unavailable", "reason": "vhost starts"})
    answers = {
        "GET /api/streams/%2F/s": [Answer(200, described(3))],
        "DELETE /api/streams/%2F/s/readers/r": [away],
        "PUT /api/leases/%2F/s/r/owner": [Answer(200, {"is_owner": True})],
    }
    with TinyHttp(answers) as broker:
        catalog = BrokerCatalog(options_for(broker), outage.monotonic, outage.sleep)
        catalog.heads()
        with pytest.raises(RefusedError, match="vhost starts"):
            catalog.release("r")
        catalog.named("r")
        catalog.own("s")
        broker.answers = {}
        catalog.disown()
    assert [address.split()[0] for address, _, _ in broker.asked].count("DELETE") == 2
    assert outage.now_s == 1000.0


def test_a_task_waits_for_a_broker_that_is_started_again() -> None:
    """It goes on after the last whole chunk, each time."""
    outage = Outage()
    away = Answer(503, {"error": "unavailable", "reason": "vhost starts"})
    first, rest = TINY.chunk(0, 200), TINY.chunk(200, 500)
    answers = {
        FRAMES.format(0): [away] * 50 + [Answer(200, first + rest, cut_at=len(first) + 70)],
        FRAMES.format(200): [away] * 50 + [Answer(200, rest)],
    }
    with TinyHttp(answers) as broker:
        options = options_for(broker)
        wait = BrokerWait.of(options, outage.sleep, outage.monotonic)
        found = [frames.count for frames in frames_of(SOURCE, options, wait)]
    assert sum(found) == 500
    assert outage.now_s - 1000.0 == pytest.approx(20.2)


def test_a_task_whose_broker_stays_away_fails() -> None:
    outage = Outage()
    away = Answer(503, {"error": "unavailable", "reason": "vhost starts"})
    with TinyHttp({FRAMES.format(0): [away]}) as broker:
        options = options_for(broker, timeoutMs="5000", **{"fetchOffset.retryIntervalMs": "500"})
        wait = BrokerWait.of(options, outage.sleep, outage.monotonic)
        with pytest.raises(RefusedError, match="503"):
            list(frames_of(SOURCE, options, wait))
        assert len(broker.asked) == 11
    assert outage.now_s == 1005.0


def test_a_driver_whose_broker_stays_away_fails() -> None:
    outage = Outage()
    away = Answer(503, {"error": "unavailable", "reason": "vhost starts"})
    with TinyHttp({"GET /api/streams/%2F/s": [away]}) as broker:
        options = options_for(broker, **{"fetchOffset.numRetries": "7"})
        with pytest.raises(RefusedError, match="503"):
            BrokerCatalog(options, outage.monotonic, outage.sleep).heads()
        assert len(broker.asked) == 8


def test_a_thread_that_ends_takes_its_connections_with_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = Place(f"http://127.0.0.1:{server.getsockname()[1]}")

        def ask() -> None:
            kept_link(place, 60.0).json("GET", ("s",))
            kept_link(place, 60.0).json("GET", ("s",))

        thread = threading.Thread(target=ask)
        thread.start()
        connection, _ = server.accept()
        with connection:
            for _ in range(2):
                assert connection.recv(1 << 16).startswith(b"GET ")
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            thread.join()
            assert connection.recv(1) == b""
