"""Names in addresses, parameters and headers may be any bytes: none of them is a 500."""

import base64
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.control import ControlError
from tests.helpers.http_rig import EVERYTHING, HttpRig, users_facts

pytestmark = pytest.mark.real

NAMES = ("%FF", "%ED%A0%80", "a%00b", "%0A", "%C3", "a%F0%9F%98%80", "q" * 300, "%", "%zz", "..")
ROUTES = (
    ("GET", "/{n}"), ("GET", "/api/{n}"), ("GET", "/api/streams/{v}"), ("GET", "/api/leases/{n}"),
    ("GET", "/api/streams/{v}/{n}"), ("GET", "/api/streams/{v}/{n}/pages"),
    ("GET", "/api/streams/{v}/{n}/offset?time_us={n}"),
    ("GET", "/api/streams/{v}/{n}/offset?{n}=1"),
    ("GET", "/api/streams/{v}/{n}/frames?from={n}"), ("GET", "/api/streams/{v}/{n}/frames?{n}"),
    ("GET", "/api/streams/{v}/{n}/frames?since={n}"), ("GET", "/api/streams/{v}/{n}/frames"),
    ("PUT", "/api/streams/{v}/{n}/readers/{n}"), ("DELETE", "/api/streams/{v}/{n}/readers/{n}"),
    ("GET", "/api/leases/{v}/{n}"), ("GET", "/api/leases/{v}/{n}/{n}"),
    ("POST", "/api/leases/{v}/{n}/{n}"), ("PUT", "/api/leases/{v}/{n}/{n}"),
    ("DELETE", "/api/leases/{v}/{n}/{n}?owner={n}"), ("DELETE", "/api/leases/{v}/{n}/{n}?{n}={n}"),
    ("PUT", "/api/leases/{v}/{n}/{n}/owner"), ("DELETE", "/api/leases/{v}/{n}/{n}/owner?owner={n}"),
    ("GET", "/api/leases/{v}/{n}/{n}/frames"), ("GET", "/api/leases/{v}/{n}/{n}/pages"),
    ("GET", "/api/staging/{n}"), ("POST", "/api/staging/{v}/{n}/1/1/{n}"),
    ("POST", "/api/staging/{v}/{n}/{n}/{n}/a"), ("POST", "/api/staging/{v}/{n}/1/1/a?target={n}"),
    ("PUT", "/api/staging/{v}/{n}/1"), ("DELETE", "/api/staging/{v}/{n}/1?target={n}"),
    ("DELETE", "/api/staging/{v}/{n}?force={n}"), ("DELETE", "/api/staging/{v}/{n}?{n}"),
    ("PUT", "/api/staging/{n}/q/1"),
)  # fmt: skip
BODIES = {
    "readers": b'{"offsets": {"0": 1}}', "owner": b'{"owner": "a", "seconds": 5}',
    "staging": b'{"target": {"queue": "q"}, "tokens": []}',
}  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    rig.users.take(users_facts(guest=EVERYTHING, ann=("", "^a", "^a")))
    yield rig
    rig.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_any_bytes_is_no_500(
    rig: HttpRig, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ControlError(404, "NOT_FOUND - no queue '\udcff'")
    ops = ("describe_stream", "describe_queue", "describe_lease", "commit_batch", "claim_query")
    rig.node.answers |= dict.fromkeys(ops, refused)
    for method, address in ROUTES:
        body = next((made for word, made in BODIES.items() if word in address), b"{}")
        for user in ("guest", "ann"):
            path = address.replace("{v}", "%2F").replace("{n}", name)
            reply = rig.ask(path, method=method, body=body, user=user)
            assert 200 <= reply.status < 500, (method, path, reply.body)
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


@pytest.mark.parametrize("name", [b"\xff", b"\xed\xa0\x80", b"a\0b", b"\n\r\n", b"x" * 5000])
def test_names_and_headers_of_any_bytes_are_no_500(rig: HttpRig, name: bytes) -> None:
    header = "Basic " + base64.b64encode(name + b":" + name).decode()
    reply = rig.ask("/api/overview", user=None, headers={"authorization": header})
    assert reply.status == 401
    for header in ("host", "origin", "authorization", "content-type", "content-length"):
        said = name.replace(b"\n", b"").replace(b"\r", b"").decode("latin-1")
        headers = {header: said.encode("latin-1").decode("utf-8", "replace")}
        reply = rig.ask("/api/leases/%2F/q/r", method="PUT", body=b"{}", headers=headers)
        assert 400 <= reply.status < 500, (header, reply.status)
