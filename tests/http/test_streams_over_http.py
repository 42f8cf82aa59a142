"""Streams of a broker that really runs, read over HTTP: what AMQP published, whatever happens.

Clients publish with confirms; readers are plain HTTP connections. Page ranges are decoded by the
tests' own decoder, so that both sides of the format were written twice.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.asgi_client import basic
from tests.helpers.chunk_records import records, records_of_chunk
from tests.helpers.live_broker import LiveBroker, memory_bytes, wait_until

pika = pytest.importorskip("pika")
pytestmark = pytest.mark.real

SMALL_PAGES = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 65536}
HEADERS = {"Authorization": basic("guest", "guest")}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One for all tests; each has streams of its own."""
    data = tmp_path_factory.mktemp("streams") / "data"
    with LiveBroker(data, "--durability", "os", "--memory", "64MiB", has_http=True) as live:
        yield live
        assert live.stop() == 0


def publish(
    broker: LiveBroker, stream: str, bodies: list[bytes], arguments: dict[str, Any] | None = None
) -> None:
    """To a stream that is declared so; all confirmed on return."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        channel.queue_declare(stream, durable=True, arguments=SMALL_PAGES | (arguments or {}))
        channel.confirm_delivery()
        properties = pika.BasicProperties(message_id="m", headers={"h": 1})
        for body in bodies:
            channel.basic_publish("", stream, body, properties)


def connection(broker: LiveBroker) -> http.client.HTTPConnection:
    assert broker.http_port is not None
    return http.client.HTTPConnection(broker.host, broker.http_port, timeout=120)


def request(
    broker: LiveBroker, address: str, method: str = "GET", body: object = None
) -> tuple[int, bytes]:
    with contextlib.closing(connection(broker)) as asked:
        text = None if body is None else json.dumps(body)
        headers = HEADERS if text is None else HEADERS | {"Content-Type": "application/json"}
        asked.request(method, f"/api/streams/%2F/{address}", text, headers)
        reply = asked.getresponse()
        return reply.status, reply.read()


def bodies_of(count: int) -> list[bytes]:
    return [b"%06d" % n * 20 for n in range(count)]


def described(broker: LiveBroker, stream: str) -> Any:
    status, body = request(broker, stream)
    assert status == 200, body
    return json.loads(body)


def test_what_was_published_is_read_as_it_was(broker: LiveBroker) -> None:
    sent = bodies_of(2000)
    publish(broker, "plain", sent)
    told = described(broker, "plain")
    assert told["partitions"][0]["head"] == 2000
    assert Path(told["partitions"][0]["path"]).is_absolute()
    status, body = request(broker, "plain/frames")
    assert status == 200
    found = records(body)
    assert [record.payload for record in found] == sent
    assert [record.offset for record in found] == list(range(2000))
    times = [record.time_us for record in found]
    assert times == sorted(times)
    status, body = request(broker, f"plain/offset?time_us={times[777]}")
    assert json.loads(body)["offset"] == times.index(times[777])
    status, body = request(broker, f"plain/frames?since={times[777]}")
    assert records(body)[0].time_us == times[777]
    with contextlib.closing(connection(broker)) as asked:
        asked.request("GET", "/api/streams/%2F", headers=HEADERS)
        assert told in json.loads(asked.getresponse().read())


def test_records_are_shown_as_json(broker: LiveBroker) -> None:
    publish(broker, "shown", [b"first", b"\x00\xff", b"x" * 100])
    status, body = request(broker, "shown/records")
    assert status == 200, body
    found = json.loads(body)
    assert (found["first"], found["head"]) == (0, 3)
    first = dict(found["records"][0])
    assert first.pop("time_us") > 1_700_000_000_000_000
    assert first == {
        "offset": 0, "exchange": "", "routing_key": "shown", "redelivered": False,
        "properties": {"headers": {"h": 1}, "message_id": "m"}, "payload_bytes": 5,
        "payload": "first", "payload_encoding": "string",
    }  # fmt: skip
    assert found["records"][1]["payload_encoding"] == "base64"
    status, body = request(broker, "shown/records?from=2&count=5&truncate=10")
    ((row,)) = json.loads(body)["records"]
    assert (row["offset"], row["payload"], row["payload_bytes"]) == (2, "x" * 10, 100)
    assert json.loads(request(broker, "shown/records?from=3")[1])["records"] == []
    assert request(broker, "shown/records?count=5000")[0] == 400
    assert request(broker, "shown/records?partition=1")[0] == 404


def test_a_queue_is_no_stream(broker: LiveBroker) -> None:
    broker.control("declare_queue", "/", queue="classic", durable=True)
    status, body = request(broker, "classic/frames")
    assert (status, json.loads(body)["error"]) == (409, "not_a_stream")
    broker.control("delete_queue", "/", queue="classic")


def test_partitions_together_hold_everything_once(broker: LiveBroker) -> None:
    publish(broker, "parts", bodies_of(10), {"x-partitions": 3})
    found = []
    for n in range(3):
        found += [
            record.payload for record in records(request(broker, f"parts/frames?partition={n}")[1])
        ]
    assert sorted(found) == bodies_of(10)
    assert request(broker, "parts/frames?partition=3")[0] == 404


def test_a_readers_offsets_are_kept(broker: LiveBroker) -> None:
    publish(broker, "read", bodies_of(10))
    body = {"offsets": {"0": 7}, "kept_from": {"0": 5}, "wait": True}
    assert request(broker, "read/readers/spark%2F1", "PUT", body) == (204, b"")
    reader = described(broker, "read")["readers"]["spark/1"]
    assert (reader["offsets"], reader["kept_from"]) == ({"0": 7}, {"0": 5})
    assert request(broker, "read/readers/spark%2F1", "DELETE")[0] == 204
    assert described(broker, "read")["readers"] == {}
    assert request(broker, "read/readers/r", "PUT", {"offsets": {"9": 7}})[0] == 400


def test_a_deleted_stream_is_gone_and_a_new_one_is_another(broker: LiveBroker) -> None:
    publish(broker, "again", [b"old"])
    assert request(broker, "again/frames")[0] == 200
    broker.control("delete_queue", "/", queue="again")
    publish(broker, "again", [b"new", b"newer"])

    def is_new() -> bool:
        status, body = request(broker, "again/frames")
        return status == 200 and [r.payload for r in records(body)] == [b"new", b"newer"]

    wait_until(is_new, "the new stream")
    broker.control("delete_queue", "/", queue="again")
    wait_until(lambda: request(broker, "again/frames")[0] == 404, "the end of the stream")


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_arrow_over_a_real_connection(broker: LiveBroker) -> None:
    import pyarrow as pa

    sent = bodies_of(1000)
    publish(broker, "columns", sent)
    with contextlib.closing(connection(broker)) as asked:
        asked.request("GET", "/api/streams/%2F/columns/arrow", headers=HEADERS)
        table = pa.ipc.open_stream(asked.getresponse()).read_all()
    assert table["value"].to_pylist() == sent
    assert table["offset"].to_pylist() == list(range(1000))
    assert set(table["message_id"].to_pylist()) == {"m"}
    assert set(table["routing_key"].to_pylist()) == {"columns"}


# --- while things go wrong ---


def test_a_damaged_byte_is_never_sent(broker: LiveBroker) -> None:
    publish(broker, "harmed", bodies_of(3000))
    (part,) = described(broker, "harmed")["partitions"]
    pages = sorted(Path(part["path"]).glob("*.page"))
    assert len(pages) > 3
    page = pages[2]
    data = bytearray(page.read_bytes())
    data[len(data) // 2] ^= 4
    page.write_bytes(data)
    with contextlib.closing(connection(broker)) as asked:
        asked.request("GET", "/api/streams/%2F/harmed/frames", headers=HEADERS)
        reply = asked.getresponse()
        with pytest.raises(http.client.IncompleteRead) as cut:
            reply.read()
    found = records(cut.value.partial)
    assert [record.payload for record in found] == bodies_of(3000)[: int(page.stem)]
    assert str(page) in broker.log_text()
    status, body = request(broker, f"harmed/frames?from={int(page.stem)}")
    assert status == 500
    assert b"damaged" in body
    behind = int(pages[3].stem)
    assert len(records(request(broker, f"harmed/frames?from={behind}")[1])) == 3000 - behind


def test_a_kill_meanwhile_is_a_cut_and_the_next_request_goes_on(broker: LiveBroker) -> None:
    sent = [b"%06d" % n * 20_000 for n in range(300)]  # 36 MB, more than all buffers between
    publish(broker, "killed", sent, {"x-stream-max-segment-size-bytes": 16 << 20})
    with contextlib.closing(connection(broker)) as asked:
        asked.request("GET", "/api/streams/%2F/killed/frames", headers=HEADERS)
        reply = asked.getresponse()
        data = reply.read(1 << 20)
        os.kill(broker.control("status")["http"]["pid"], signal.SIGKILL)
        with contextlib.suppress(http.client.IncompleteRead, ConnectionResetError):
            while piece := reply.read(1 << 20):
                data += piece
            raise AssertionError("the answer looks whole")
    whole = []
    with contextlib.suppress(Exception):  # the last chunk has no end
        while True:
            found, data = records_of_chunk(data)
            whole += found
    status, body = request(broker, f"killed/frames?from={len(whole)}")
    assert status == 200
    whole += records(body)
    assert [record.payload for record in whole] == sent


def test_a_vhost_that_is_killed_meanwhile(broker: LiveBroker) -> None:
    publish(broker, "survives", bodies_of(500))
    rows = broker.control("list_vhosts")
    os.kill(rows[0]["pid"], signal.SIGKILL)
    status, body = request(broker, "survives/frames")
    assert status == 200
    assert len(records(body)) == 500
    assert described(broker, "survives")["partitions"][0]["head"] == 500


def test_retention_beside_readers(broker: LiveBroker) -> None:
    """Each answer is right to its last byte, or says that it is not whole, or what there is."""
    limits = {"x-max-length-bytes": 200_000}
    publish(broker, "short", bodies_of(500), limits)
    stop = threading.Event()

    def feed() -> None:
        while not stop.is_set():
            publish(broker, "short", bodies_of(500), limits)
            broker.control("checkpoint", "/")  # pages that it begins in stay
            broker.control("retain_stream", "/", queue="short")

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        first = 0
        while first < 600:
            first = described(broker, "short")["partitions"][0]["first"]
            try:
                status, body = request(broker, f"short/frames?from={first}")
            except http.client.IncompleteRead as cut:
                status, body = 200, cut.partial
            if status == 200:
                for place, record in enumerate(records(body)):
                    assert record.offset == first + place
                    assert record.payload == bodies_of(500)[record.offset % 500]
            else:
                assert status == 416
                assert json.loads(body)["first"] > first
    finally:
        stop.set()
        feeder.join()
    status, body = request(broker, "short/frames?from=0")
    assert (status, json.loads(body)["error"]) == (416, "range_not_satisfiable")
    first, head = json.loads(body)["first"], json.loads(body)["head"]
    assert first >= 600
    status = 416
    while status != 200:  # the vhost retains by itself, too, also beneath an answer
        first = described(broker, "short")["partitions"][0]["first"]
        with contextlib.suppress(http.client.IncompleteRead):
            status, body = request(broker, f"short/frames?from={first}&to={head}")
            assert status in (200, 416)
    assert len(records(body)) == head - first


def test_memory_stays_small_with_slow_and_many_readers(broker: LiveBroker) -> None:
    publish(
        broker, "big", [os.urandom(200_000) for _ in range(300)],
        {"x-stream-max-segment-size-bytes": 16 << 20},
    )  # fmt: skip
    pid = broker.control("status")["http"]["pid"]
    assert broker.http_port is not None
    line = "GET /api/streams/%2F/big/frames HTTP/1.1\r\nhost: localhost\r\nauthorization: "
    line += HEADERS["Authorization"] + "\r\n\r\n"
    slow = []
    for _ in range(20):
        sock = socket.create_connection((broker.host, broker.http_port))
        sock.sendall(line.encode())
        slow.append(sock)
    for sock in slow:
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
    assert len(records(request(broker, "big/frames")[1])) == 300
    assert memory_bytes(pid, "VmHWM") < 250 << 20
    for sock in slow:
        sock.close()
    with contextlib.closing(connection(broker)) as asked:  # all places are free again
        for _ in range(40):
            asked.request("GET", "/api/streams/%2F/big/frames?limit=1", headers=HEADERS)
            assert len(records(asked.getresponse().read())) == 1


def test_a_stop_does_not_wait_for_who_takes_nothing(tmp_path: Path) -> None:
    with LiveBroker(tmp_path / "data", "--durability", "os", has_http=True) as broker:
        publish(broker, "big", [os.urandom(200_000) for _ in range(100)])
        asked = connection(broker)
        asked.request("GET", "/api/streams/%2F/big/frames", headers=HEADERS)
        reply = asked.getresponse()
        assert reply.read(64).startswith(b"PNSTFRMS")
        assert broker.stop() == 0  # an answer that nobody takes has longer than that may take
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            reply.read()
        asked.close()
        assert "Traceback" not in broker.log_text()
