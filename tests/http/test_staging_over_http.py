"""The exactly-once sink's side of HTTP, with a broker that really runs: staged, committed, killed.

Rows are staged and committed as a sink does; what came out is read over AMQP and as frames. What is
killed, and when, is said by the test; what must hold is always that all rows of a committed batch
are there once, and none of any other.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.chunk_maker import PageMaker
from tests.helpers.chunk_records import records
from tests.helpers.http_caller import HttpCaller, meta, ready_bodies
from tests.helpers.live_broker import LiveBroker, is_gone, memory_bytes, wait_until
from tests.helpers.wire import open_channel

pytest.importorskip("pika")
pytestmark = pytest.mark.real
PATIENT = {"PENSTOCK_VHOST_RESTARTS_MAX": "20"}
STREAM = {"x-queue-type": "stream"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """One for all tests that leave it as they find it; each has queues of its own."""
    data = tmp_path_factory.mktemp("staging") / "data"
    with LiveBroker(data, has_http=True) as live:
        yield live
        assert live.stop() == 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    """One that a test may kill."""
    with LiveBroker(tmp_path / "data", environment=PATIENT, has_http=True) as live:
        yield live


def rows(count: int, key: str, size: int = 20, first: int = 0) -> list[tuple[bytes, bytes]]:
    return [((b"%08d" % n).ljust(size, b"."), meta("", key)) for n in range(first, first + count)]


def declare(broker: LiveBroker, queue: str, arguments: dict[str, Any] | None = None) -> None:
    broker.control("declare_queue", "/", queue=queue, durable=True, arguments=arguments or {})


def in_queue(broker: LiveBroker, queue: str, count: int) -> list[bytes]:
    """The bodies of all messages, once there are so many; they stay where they are."""
    wait_until(
        lambda: next(
            row["messages_ready"] >= count
            for row in broker.control("list_queues", "/")
            if row["name"] == queue
        ),
        f"{count} messages in {queue}",
    )
    return ready_bodies(broker, queue)


def in_stream(caller: HttpCaller, stream: str, count: int) -> list[bytes]:
    """The payloads of a stream, once its head is there."""
    wait_until(
        lambda: caller.json("GET", f"streams/%2F/{stream}")["partitions"][0]["head"] >= count,
        f"the head of {stream} at {count}",
    )
    status, data = caller.ask("GET", f"streams/%2F/{stream}/frames")
    assert status == 200
    return [record.payload for record in records(data)]


def staged_files(broker: LiveBroker) -> list[Path]:
    while True:
        try:
            return [*broker.data.rglob("staging/*/*.page"), *broker.data.rglob("staging/*/*.idx")]
        except FileNotFoundError:  # a directory went meanwhile: look again
            pass


def payloads(*parts: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [payload for part in parts for payload, _ in part]


# --- committed ---


def test_a_queue_gets_a_batch_once(shared: LiveBroker) -> None:
    declare(shared, "out")
    one, two = rows(1500, "out"), rows(700, "out", first=1500)
    with HttpCaller(shared) as caller:
        tokens = [
            caller.stage("to-queue", 0, [one[:800], one[800:]]),
            caller.stage("to-queue", 0, [two], partition=1),
        ]
        told = caller.commit("to-queue", 0, {"queue": "out"}, tokens)
        assert told == {"status": "committed", "batch": 0}
        told = caller.commit("to-queue", 0, {"queue": "out"}, tokens)
        assert told == {"status": "already done", "batch": 0}
        assert in_queue(shared, "out", 2200) == payloads(one, two)
        (row,) = (r for r in caller.json("GET", "staging/%2F") if r["query"] == "to-queue")
        assert (row["batch"], row["rows"]) == (0, 2200)
        assert caller.json("DELETE", "staging/%2F/to-queue?force=true") == {"batch": 0}


@pytest.mark.parametrize(("name", "size"), [("small", 20), ("adopted", 3000)])
def test_a_stream_gets_a_batch_once(shared: LiveBroker, name: str, size: int) -> None:
    declare(shared, name, STREAM)
    parts = [rows(2000, name, size, first=n * 2000) for n in range(3)]
    with HttpCaller(shared) as caller:
        for batch, part in enumerate(parts):
            token = caller.stage(name, batch, [part])
            assert caller.commit(name, batch, {"queue": name}, [token])["status"] == "committed"
        assert in_stream(caller, name, 6000) == payloads(*parts)
        status, data = caller.ask("GET", f"streams/%2F/{name}/frames?from=1990&to=2010")
        assert status == 200
        found = records(data)
        assert [record.offset for record in found] == list(range(1990, 2010))
        assert len({record.time_us for record in found}) <= 2


def test_exchanges_route_by_each_row(shared: LiveBroker) -> None:
    for queue in ("red", "blue"):
        declare(shared, queue)
        shared.control("bind_queue", "/", queue=queue, exchange="amq.direct", routing_key=queue)
    both = [(b"%d" % n, meta("amq.direct", ("red", "blue")[n % 2])) for n in range(500)]
    with HttpCaller(shared) as caller:
        token = caller.stage("routed", 5, [both])
        target = {"exchanges": ["amq.direct"]}
        address = "staging/%2F/routed/5"
        body = {"target": target, "tokens": [token], "mandatory_keys": [["amq.direct", "green"]]}
        status, told = caller.ask("PUT", address, body)
        assert (status, json.loads(told)["error"]) == (409, "unroutable")
        caller.commit("routed", 5, target, [token], mandatory_keys=[["amq.direct", "red"]])
    assert in_queue(shared, "red", 250) == payloads(both[::2])
    assert in_queue(shared, "blue", 250) == payloads(both[1::2])


def test_what_was_aborted_or_never_staged_is_not_committed(shared: LiveBroker) -> None:
    declare(shared, "aborted")
    with HttpCaller(shared) as caller:
        token = caller.stage("abort", 0, [rows(10, "aborted")], attempt="0-0000abcd")
        caller.json("DELETE", "staging/%2F/abort/0")
        wait_until(
            lambda: not [f for f in staged_files(shared) if token["pages"][0]["name"] in str(f)]
        )
        body = {"target": {"queue": "aborted"}, "tokens": [token]}
        status, told = caller.ask("PUT", "staging/%2F/abort/0", body)
        assert status == 400, told
        assert token["pages"][0]["name"] in json.loads(told)["reason"]
        token = caller.stage("abort", 0, [rows(10, "aborted")], attempt="1-00000000")
        token["pages"][0]["page_id"] = "0" * 16
        status, told = caller.ask("PUT", "staging/%2F/abort/0", {**body, "tokens": [token]})
        assert status == 400, told
        body["target"] = {"queue": "nowhere"}
        status, told = caller.ask("PUT", "staging/%2F/abort/0", {**body, "tokens": [token]})
        assert (status, json.loads(told)["error"]) == (404, "not_found")
        assert in_queue(shared, "aborted", 0) == []


def test_a_zombies_rows_are_nobodys(shared: LiveBroker) -> None:
    """A second attempt, of which the driver does not know, before and after the commit."""
    declare(shared, "zombie")
    good = rows(50, "zombie")
    with HttpCaller(shared) as caller:
        caller.stage("zombie", 3, [rows(50, "zombie", first=900)], attempt="1-0000dead")
        token = caller.stage("zombie", 3, [good], attempt="0-00000001")
        caller.commit("zombie", 3, {"queue": "zombie"}, [token])
        late = caller.stage("zombie", 3, [rows(50, "zombie", first=900)], attempt="2-0000dead")
        again = caller.stage("zombie", 3, [good[::-1]], attempt="2-00000001")
        told = caller.commit("zombie", 3, {"queue": "zombie"}, [again])
        assert told["status"] == "already done"
        body = {"target": {"queue": "zombie"}, "tokens": [late]}
        told = caller.json("PUT", "staging/%2F/zombie/3", body, 409)
        assert told["error"] == "batch_conflict"
        assert in_queue(shared, "zombie", 50) == payloads(good)


# --- HTTP itself ---


def read_reply(sock: socket.socket) -> tuple[int, dict[str, Any]]:
    """(status, JSON) of the next answer."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(4096)
        assert piece, data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < size:
        piece = sock.recv(4096)
        assert piece, data
        body += piece
    return int(head.split()[1]), json.loads(body)


def test_a_client_that_asks_first_is_told_to_go_on_or_not(shared: LiveBroker) -> None:
    body = PageMaker(77).chunk(rows(10, "q"))
    line = "POST /api/staging/%2F/asks/0/0/0-{}\r\nexpect: 100-continue\r\ncontent-length: {}\r\n"
    line = line.replace("\r\n", " HTTP/1.1\r\n", 1)
    with HttpCaller(shared) as caller, caller.socket(line.format("00000001", len(body))) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 100 ")
        sock.sendall(body)
        status, told = read_reply(sock)
        assert (status, told["rows"]) == (201, 10)
        # The connection goes on.
        who = f"authorization: {caller.headers['Authorization']}\r\n"
        sock.sendall(f"GET /api/overview HTTP/1.1\r\nhost: localhost\r\n{who}\r\n".encode())
        assert read_reply(sock)[0] == 200
    caller.headers["Authorization"] = "Basic Zm9vOmJhcg=="
    with caller.socket(line.format("00000002", len(body))) as sock:
        status, told = read_reply(sock)
        assert (status, told["error"]) == (401, "not_authorized")


def test_a_refused_upload_is_answered_and_the_connection_goes_on(shared: LiveBroker) -> None:
    with HttpCaller(shared) as caller:
        good = PageMaker(78).chunk(rows(10, "q"))
        large = good + b"x" * (8 << 20)
        status, told = caller.ask("POST", "staging/%2F/refused/0/0/0-000000ff", large)
        assert (status, "chunk 1" in json.loads(told)["reason"]) == (400, True)
        assert caller.stage("refused", 0, [rows(3, "q")], attempt="0-00000002")["rows"] == 3
        refused = [f for f in staged_files(shared) if "0.0.0-000000ff" in f.name]
        assert not refused


def test_permissions(shared: LiveBroker) -> None:
    for user, three in {"in": ("", "", ".*"), "out": ("", "^mine$", ""), "none": None}.items():
        shared.control("add_user", name=user, password=user)
        if three is not None:
            configure, write, read = three
            shared.control(
                "set_permissions", "/", user=user, configure=configure, write=write, read=read
            )
    declare(shared, "mine")
    declare(shared, "theirs")
    body = PageMaker(79).chunk(rows(10, "mine"))
    at = "staging/%2F/may/0/0/0-0000000"

    def status(user: str, method: str, address: str, body: object = None) -> int:
        with HttpCaller(shared, user) as caller:
            return caller.ask(method, address, body)[0]

    assert [status(user, "POST", at + "1", body) for user in ("in", "none", "who")] == [
        403,
        403,
        401,
    ]
    assert status("out", "POST", at + "2?target=theirs", body) == 403
    assert status("out", "POST", at + "3?target=mine", body) == 201
    commit = {"target": {"queue": "theirs"}, "tokens": []}
    assert status("out", "PUT", "staging/%2F/may/0", commit) == 403
    commit = {"target": {"exchanges": ["amq.direct"]}, "tokens": []}
    assert status("out", "PUT", "staging/%2F/may/0", commit) == 403
    assert status("in", "DELETE", "staging/%2F/may/0") == 403
    assert status("out", "DELETE", "staging/%2F/may/0") == 200
    with HttpCaller(shared, "out") as caller:
        token = caller.stage("may", 1, [rows(5, "mine")])
        caller.commit("may", 1, {"queue": "mine"}, [token])
        assert in_queue(shared, "mine", 5) == payloads(rows(5, "mine"))
        assert {row["query"] for row in caller.json("GET", "staging/%2F")} == {"may"}
        assert caller.ask("DELETE", "staging/%2F/may?force=true")[0] == 200


# --- killed ---


def http_pid(broker: LiveBroker) -> int:
    broker.control("await_startup")
    return int(broker.control("status")["http"]["pid"])


def vhost_pid(broker: LiveBroker) -> int:
    (row,) = broker.control("list_vhosts")
    return int(row["pid"])


def test_http_killed_in_an_upload(broker: LiveBroker) -> None:
    """What was answered holds; what was not is gone, and is sent again under another name."""
    pid = http_pid(broker)
    declare(broker, "out")
    one, two = rows(3000, "out"), rows(3000, "out", first=3000)
    head = "POST /api/staging/%2F/k/0/1/0-00000001 HTTP/1.1\r\ntransfer-encoding: chunked\r\n"
    with HttpCaller(broker) as caller:
        token = caller.stage("k", 0, [one])
        with caller.socket(head) as sock:
            page = PageMaker(5)
            for at in (0, 1000):
                chunk = page.chunk(two[at : at + 1000])
                sock.sendall(b"%x\r\n" % len(chunk) + chunk + b"\r\n")
            wait_until(lambda: [f for f in staged_files(broker) if f.name.startswith("0.1.")])
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: is_gone(pid), "its end")
            with contextlib.suppress(ConnectionError):
                assert sock.recv(4096) == b""
    with HttpCaller(broker) as caller:
        again = caller.stage("k", 0, [two], partition=1, attempt="1-00000002")
        caller.commit("k", 0, {"queue": "out"}, [token, again])
    assert in_queue(broker, "out", 6000) == payloads(one, two)


def test_a_client_that_is_killed_leaves_nothing(broker: LiveBroker) -> None:
    broker.control("await_startup")
    head = "POST /api/staging/%2F/k/0/1/0-00000001 HTTP/1.1\r\ncontent-length: 10000000\r\n"
    with HttpCaller(broker) as caller, caller.socket(head) as sock:
        sock.sendall(PageMaker(5).chunk(rows(3000, "q")) + b"x")
        wait_until(lambda: staged_files(broker), "files")
    wait_until(lambda: not staged_files(broker), "no files")


def test_stopped_in_an_upload_nothing_is_left(broker: LiveBroker) -> None:
    broker.control("await_startup")
    head = "POST /api/staging/%2F/k/0/1/0-00000001 HTTP/1.1\r\ncontent-length: 10000000\r\n"
    with HttpCaller(broker) as caller, caller.socket(head) as sock:
        sock.sendall(PageMaker(5).chunk(rows(3000, "q")) + b"x")
        wait_until(lambda: staged_files(broker), "files")
        assert broker.stop() == 0
    assert not staged_files(broker)


@pytest.mark.parametrize("target", ["queue", "stream"])
@pytest.mark.parametrize("what", ["vhost", "broker"])
def test_killed_between_staging_and_commit_and_behind_it(
    broker: LiveBroker, what: str, target: str
) -> None:
    broker.control("await_startup")
    declare(broker, "out", STREAM if target == "stream" else {})
    count = 4000 if target == "stream" else 800  # what a stream adopts is large
    parts = [rows(count, "out", 1200, first=n * count) for n in range(2)]

    def kill() -> None:
        if what == "vhost":
            os.kill(vhost_pid(broker), signal.SIGKILL)
        else:
            broker.kill()
            broker.start()

    with HttpCaller(broker) as caller:
        tokens = [caller.stage("k", 9, [part], partition=n) for n, part in enumerate(parts)]
    kill()
    with HttpCaller(broker) as caller:
        assert caller.commit("k", 9, {"queue": "out"}, tokens)["status"] == "committed"
    kill()
    with HttpCaller(broker) as caller:
        assert caller.commit("k", 9, {"queue": "out"}, tokens)["status"] == "already done"
        if target == "stream":
            assert in_stream(caller, "out", 2 * count) == payloads(*parts)
        else:
            assert in_queue(broker, "out", 2 * count) == payloads(*parts)


@pytest.mark.parametrize("what", ["vhost", "http"])
def test_commits_over_kills(broker: LiveBroker, what: str) -> None:
    """The vhost, or the HTTP process, is killed while batches are committed over the link between
    them; every commit is said again until it is answered, as a sink does."""
    broker.control("await_startup")
    declare(broker, "out")
    sent = []
    for batch in range(6):
        part = rows(500, "out", first=batch * 500)
        sent.append(part)
        with HttpCaller(broker) as caller:
            token = caller.stage("k", batch, [part])
        body = {"target": {"queue": "out"}, "tokens": [token]}
        pid = vhost_pid(broker) if what == "vhost" else http_pid(broker)
        killing = threading.Thread(target=os.kill, args=(pid, signal.SIGKILL))
        if batch in (1, 3, 4):
            killing.start()
        deadline = time.monotonic() + 60
        while committed(broker, f"staging/%2F/k/{batch}", body) != 200:
            assert time.monotonic() < deadline
        if batch in (1, 3, 4):
            killing.join()
    assert in_queue(broker, "out", 3000) == payloads(*sent)


def committed(broker: LiveBroker, address: str, body: dict[str, object]) -> int:
    """The status of a commit on a connection of its own; 0 if the connection breaks."""
    try:
        with HttpCaller(broker) as caller:
            return caller.ask("PUT", address, body)[0]
    except (OSError, http.client.HTTPException):
        return 0


def test_a_commit_does_not_pass_the_supervisor(broker: LiveBroker) -> None:
    """The HTTP process asks the vhost's: stopped, the supervisor keeps nobody waiting."""
    broker.control("await_startup")
    declare(broker, "out")
    part = rows(10, "out")
    with HttpCaller(broker) as caller:
        token = caller.stage("k", 0, [part])
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            assert caller.commit("k", 0, {"queue": "out"}, [token])["status"] == "committed"
        finally:
            os.kill(broker.pid, signal.SIGCONT)
    assert in_queue(broker, "out", 10) == payloads(part)


def test_staging_has_a_limit_and_takes_no_memory(tmp_path: Path) -> None:
    limit = {"PENSTOCK_STAGING_BYTES_MAX": "30MiB"}
    with LiveBroker(tmp_path / "data", environment=limit, has_http=True) as broker:
        broker.control("await_startup")
        part = rows(2000, "q", 1200)
        with HttpCaller(broker) as caller:
            caller.stage("full", 0, [part], partition=0)
            pid = http_pid(broker)
            first = memory_bytes(pid, "VmRSS")
            for n in range(1, 12):
                caller.stage("full", 0, [part], partition=n)
            chunk = PageMaker(1).chunk(part)
            status, told = caller.ask("POST", "staging/%2F/full/0/12/0-00000000", chunk)
            assert (status, json.loads(told)["error"]) == (507, "staging_full")
            assert memory_bytes(pid, "VmHWM") < first + (40 << 20)
        with open_channel(broker) as wire:
            wire.declare("q")
