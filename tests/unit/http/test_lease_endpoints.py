"""Leases: asked of the vhost, read from files; what is a stream and what is none; who may."""

import io
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from penstock.access.permissions import Identity
from penstock.http.requests import HttpError
from penstock.server.control import ControlError
from tests.helpers.asgi_client import Reply
from tests.helpers.chunk_records import records
from tests.helpers.http_rig import HttpRig, users_facts

pytestmark = pytest.mark.real
LEASE = "/api/leases/%2F/q%2F1/spark%201"
NO_STREAM = ControlError(406, "PRECONDITION_FAILED - queue 'q/1' in vhost '/' is no stream")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    """A queue "q/1", of which "spark 1" has leased 300; a stream "events"."""
    rig = HttpRig(tmp_path)
    rig.filled("events", 10)
    leased = rig.filled("leased", 300)
    lease = {
        "name": "q/1", "reader": "spark 1", "first": 0, "head": 300, "ready": 7, "bytes": 30_000,
        "since_ms": 5, "path": leased.path, "stream_id": leased.stream_id.hex(),
        "last_time_us": 1299,
    }  # fmt: skip

    def describe_queue(_vhost: str | None, queue: str) -> Any:
        if queue == "q/1":
            return {"name": queue, "type": "classic", "ready": 7, "leases": [lease]}
        if queue == "events":
            return {"name": queue, "type": "stream"}
        return ControlError(404, f"NOT_FOUND - no queue '{queue}'")

    def of_lease(_vhost: str | None, queue: str, reader: str, **_: object) -> Any:
        if queue == "events":
            return ControlError(406, "PRECONDITION_FAILED - it is a stream")
        if queue != "q/1":
            return ControlError(404, f"NOT_FOUND - no queue '{queue}'")
        if reader != "spark 1":
            return {**lease, "reader": reader, "head": 0, "path": "", "stream_id": ""}
        return lease

    described = rig.node.answers["describe_stream"]

    def describe_stream(vhost: str | None, queue: str, **_: object) -> Any:
        return NO_STREAM if queue == "q/1" else described(vhost, queue)

    def list_leases(_vhost: str | None, as_user: dict[str, Any]) -> Any:
        return [lease] if Identity.from_facts(as_user).may_read("q/1") else []

    rig.node.answers |= {
        "describe_queue": describe_queue, "describe_lease": of_lease, "lease_queue": of_lease,
        "commit_lease": {"first": 7}, "release_lease": {"messages": 3}, "list_leases": list_leases,
        "describe_stream": describe_stream, "set_stream_reader": NO_STREAM,
        "delete_stream_reader": NO_STREAM,
    }  # fmt: skip
    yield rig
    rig.close()


def offsets(reply: Reply) -> list[int]:
    assert reply.status == 200, reply.body
    assert not reply.is_cut
    return [record.offset for record in records(reply.body)]


# --- what the vhost answers ---


def test_what_is_asked_of_the_vhost(rig: HttpRig) -> None:
    who = {"queue": "q/1", "reader": "spark 1"}
    assert rig.ask(LEASE).json()["head"] == 300
    for body, messages, size in (
        (b"{}", None, None),
        (b'{"messages": 5, "bytes": null}', 5, None),
        (b'{"messages": null, "bytes": 6}', None, 6),
    ):
        assert rig.ask(LEASE, method="POST", body=body).json()["head"] == 300
        op, vhost, args = rig.node.asked[-1]
        user = args.pop("as_user")
        assert user["name"] == "guest", "it counts among the readers with leases of this user"
        given = {**who, "messages": messages, "bytes": size, "owner": ""}
        assert (op, vhost, args) == ("lease_queue", "/", given)
    reply = rig.ask(LEASE, method="PUT", body=b'{"committed": 7}')
    assert (reply.status, reply.json()) == (200, {"first": 7})
    assert rig.node.asked[-1] == ("commit_lease", "/", {**who, "offset": 7, "owner": ""})
    assert rig.ask(LEASE, method="DELETE").json() == {"messages": 3}
    assert rig.node.asked[-1] == ("release_lease", "/", {**who, "owner": ""})
    assert rig.ask("/api/leases/%2F/q%2F1").json()["leases"][0]["head"] == 300


def test_a_program_owns_its_reader(rig: HttpRig) -> None:
    who = {"queue": "q/1", "reader": "spark 1", "owner": "abc"}
    told = {"is_owner": True, "renewals": 1, "expires_s": 15.0}
    rig.node.answers |= {"own_lease": told, "disown_lease": {"disowned": True}}
    body = b'{"owner": "abc", "seconds": 15}'
    assert rig.ask(f"{LEASE}/owner", method="PUT", body=body).json() == told
    op, vhost, args = rig.node.asked[-1]
    user = args.pop("as_user")
    assert user["name"] == "guest", "it counts among the readers that this user owns"
    assert (op, vhost, args) == ("own_lease", "/", {**who, "seconds": 15, "is_held": False})
    found = rig.ask(f"{LEASE}/owner?owner=abc", method="DELETE").json()
    assert (found, rig.node.asked[-1]) == ({"disowned": True}, ("disown_lease", "/", who))
    rig.ask(LEASE, method="POST", body=b'{"owner": "abc"}')
    assert rig.node.asked[-1][2]["owner"] == "abc"
    rig.ask(LEASE, method="PUT", body=b'{"committed": 7, "owner": "abc"}')
    assert rig.node.asked[-1] == ("commit_lease", "/", {**who, "offset": 7})
    rig.ask(f"{LEASE}?owner=abc", method="DELETE")
    assert rig.node.asked[-1] == ("release_lease", "/", who)
    rig.node.answers["commit_lease"] = ControlError(405, "RESOURCE_LOCKED - another program")
    reply = rig.ask(LEASE, method="PUT", body=b'{"committed": 7}')
    assert (reply.status, reply.json()["error"]) == (409, "reader_taken")


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"owner": "", "seconds": 5}', b'{"owner": 5, "seconds": 5}', b'{"owner": "a"}',
     b'{"owner": "a", "seconds": 0}', b'{"owner": "a", "seconds": 4000}',
     b'{"owner": "a", "seconds": 5, "is_held": 1}', b'{"owner": "a", "seconds": 5, "x": 1}',
     b'{"owner": "' + b"x" * 256 + b'", "seconds": 5}'],
)  # fmt: skip
def test_who_is_no_owner(rig: HttpRig, body: bytes) -> None:
    assert rig.ask(f"{LEASE}/owner", method="PUT", body=body).status == 400
    assert rig.ask(f"{LEASE}/owner", method="DELETE").status == 400
    assert not rig.node.asked


@pytest.mark.parametrize(
    ("method", "body", "told"),
    [
        ("POST", b"", "expected JSON"),
        ("POST", b'{"messages": 0}', "given 0"),
        ("POST", b'{"messages": true}', "given True"),
        ("POST", b'{"bytes": "1MiB"}', "given '1MiB'"),
        ("POST", b'{"message": 5}', "unknown: 'message'"),
        ("PUT", b"{}", '{"committed": ordinal}'),
        ("PUT", b'{"committed": -1}', '{"committed": ordinal}'),
        ("PUT", b'{"committed": 1.5}', '{"committed": ordinal}'),
        ("PUT", b'{"committed": 1, "x": 2}', '{"committed": ordinal}'),
    ],
)
def test_bad_bodies(rig: HttpRig, method: str, body: bytes, told: str) -> None:
    reply = rig.ask(LEASE, method=method, body=body)
    assert reply.status == 400
    assert told in reply.json()["reason"]
    assert not rig.node.asked


def test_leasing_is_not_asked_twice(rig: HttpRig) -> None:
    asked: list[str] = []

    async def once(op: str, vhost: str | None = None, /, **_: object) -> Any:
        asked.append(op)
        raise HttpError(503, "its process has ended")

    rig.node.call_once = once  # type: ignore[method-assign]
    assert rig.ask(LEASE, method="POST", body=b"{}").status == 503
    assert asked == ["lease_queue"]
    assert not rig.node.asked


# --- a stream is no queue, and a queue no stream ---


@pytest.mark.parametrize(
    ("method", "below"),
    [("GET", ""), ("GET", "/r"), ("POST", "/r"), ("GET", "/r/frames"), ("GET", "/r/pages")],
)
def test_a_stream_is_told(rig: HttpRig, method: str, below: str) -> None:
    reply = rig.ask(f"/api/leases/%2F/events{below}", method=method, body=b"{}")
    assert (reply.status, reply.json()["error"]) == (409, "is_a_stream")
    assert "'events'" in reply.json()["reason"]


@pytest.mark.parametrize(
    ("method", "below", "body"),
    [
        ("GET", "", b""), ("GET", "/frames", b""), ("GET", "/pages", b""),
        ("GET", "/offset?time_us=5", b""), ("PUT", "/readers/r", b'{"offsets": {"0": 1}}'),
        ("DELETE", "/readers/r", b""),
    ],
)  # fmt: skip
def test_a_queue_is_told(rig: HttpRig, method: str, below: str, body: bytes) -> None:
    reply = rig.ask(f"/api/streams/%2F/q%2F1{below}", method=method, body=body)
    assert (reply.status, reply.json()["error"]) == (409, "not_a_stream")
    assert "its type is classic" in reply.json()["reason"]


def test_what_is_refused_for_another_reason_is_told_as_it_is(rig: HttpRig) -> None:
    rig.node.answers["lease_queue"] = ControlError(406, "PRECONDITION_FAILED - it is exclusive")
    reply = rig.ask(LEASE, method="POST", body=b"{}")
    assert (reply.status, reply.json()["reason"]) == (400, "PRECONDITION_FAILED - it is exclusive")
    for address in ("/api/leases/%2F/none", "/api/leases/%2F/none/r", "/api/streams/%2F/none"):
        reply = rig.ask(address)
        assert (reply.status, reply.json()["error"]) == (404, "not_found")


# --- what is read from the files ---


def test_a_lease_is_read_as_a_stream_is(rig: HttpRig) -> None:
    assert offsets(rig.ask(f"{LEASE}/frames")) == list(range(300))
    reply = rig.ask(f"{LEASE}/frames?from=17&to=120")
    assert offsets(reply) == list(range(17, 120))
    assert (reply.headers["x-penstock-first"], reply.headers["x-penstock-last"]) == ("17", "120")
    assert records(reply.body)[0].payload.startswith(b"00000017")
    assert offsets(rig.ask(f"{LEASE}/frames?from=5&limit=2")) == [5, 6]
    pages = rig.ask(f"{LEASE}/pages").json()["pages"]
    assert sum(page["records"] for page in pages) == 300
    assert rig.ask(f"{LEASE}/pages?partition=0").status == 400
    # Where the files are is asked once a second.
    assert [op for op, _, _ in rig.node.asked].count("describe_lease") == 1
    reply = rig.ask(f"{LEASE}/frames?to=301")
    assert (reply.status, reply.json()["head"]) == (416, 300)
    assert rig.ask(f"{LEASE}/frames?partition=0").status == 400


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_arrow(rig: HttpRig) -> None:
    import pyarrow as pa

    reply = rig.ask(f"{LEASE}/arrow?from=5&to=7&columns=queue,partition,offset")
    table = pa.ipc.open_stream(io.BytesIO(reply.body)).read_all()
    assert table["offset"].to_pylist() == [5, 6]
    assert table["queue"].to_pylist() == ["q/1", "q/1"]
    assert table["partition"].to_pylist() == [0, 0]


def test_a_reader_that_has_nothing(rig: HttpRig) -> None:
    has_arrow = find_spec("pyarrow") is not None
    for below in ("frames", "pages", *(["arrow"] if has_arrow else [])):
        reply = rig.ask(f"/api/leases/%2F/q%2F1/nobody/{below}")
        assert reply.status == 404
        assert reply.json()["reason"] == "reader 'nobody' has nothing leased of queue 'q/1'"


def test_pages_that_a_restart_wiped_are_asked_for_again(rig: HttpRig) -> None:
    (queue,) = rig.streams["leased"]
    kept = rig.directory / "kept"
    shutil.copytree(queue.path, kept)
    real = rig.node.answers["describe_lease"]

    def rebuilding(vhost: str | None, **args: Any) -> Any:
        if not Path(queue.path).exists():
            shutil.copytree(kept, queue.path)
        return real(vhost, **args)

    rig.node.answers["describe_lease"] = rebuilding
    assert offsets(rig.ask(f"{LEASE}/frames?from=290")) == list(range(290, 300))
    shutil.rmtree(queue.path)
    assert offsets(rig.ask(f"{LEASE}/frames?from=290")) == list(range(290, 300))


def test_a_head_that_is_behind_is_asked_for_again(rig: HttpRig) -> None:
    """The pages are made again just now: known, but not whole."""
    (queue,) = rig.streams["leased"]
    real = rig.node.answers["describe_lease"]
    asked = 0

    def whole(vhost: str | None, **args: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked > 1:
            queue.append(b"new", b"", 2000)
            queue.force()
        return real(vhost, **args)

    rig.node.answers["describe_lease"] = whole
    assert offsets(rig.ask(f"{LEASE}/frames?from=299")) == [299]
    assert offsets(rig.ask(f"{LEASE}/frames?from=299&to=301")) == [299, 300]
    assert asked == 2
    # What the vhost has said just now is believed.
    rig.clock.advance(1.0)
    assert rig.ask(f"{LEASE}/frames?from=299&to=303").status == 416
    assert asked == 3


# --- who may ---


def test_who_may(rig: HttpRig) -> None:
    rig.users.take(users_facts(reader=("", "", "^q/1$"), other=(".*", ".*", "^x$")))
    asks: list[tuple[str, str, bytes]] = [
        ("GET", "", b""), ("GET", "/spark%201", b""), ("POST", "/spark%201", b"{}"),
        ("PUT", "/spark%201", b'{"committed": 1}'), ("DELETE", "/spark%201", b""),
        ("GET", "/spark%201/frames", b""), ("GET", "/spark%201/pages", b""),
    ]  # fmt: skip
    for method, below, body in asks:
        address = "/api/leases/%2F/q%2F1" + below
        assert rig.ask(address, method=method, body=body, user=None).status == 401
        assert rig.ask(address, method=method, body=body, user="other").status == 403
        assert rig.ask(address, method=method, body=body, user="reader").status == 200
    assert len(rig.ask("/api/leases/%2F", user="reader").json()) == 1
    assert rig.ask("/api/leases/%2F", user="other").json() == []
    assert rig.ask("/api/leases/other", user="reader").status == 403
