import asyncio

import pytest
from starlette.datastructures import Headers

from penstock.http.api import Admission, Api, host_name
from penstock.http.requests import HttpError
from penstock.server.control import ControlError
from tests.helpers.asgi_client import Reply, ask
from tests.helpers.http_rig import HttpRig


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("localhost", True), ("LocalHost.:15672", True), ("a.localhost", True),
        ("127.0.0.1:15672", True), ("10.1.2.3", True), ("[::1]:15672", True),
        ("[fe80::1%25a]", True),
        ("::1", True), ("broker.test", True), ("BROKER.test:1", True), ("machine", True),
        ("evil.test", False), ("localhost.evil.test", False), ("127.0.0.1.evil.test", False),
        ("", False), ("broker.test.evil.test", False), ("xbroker.test", False),
    ],
)  # fmt: skip
def test_hosts_that_are_ours(host: str, is_ours: bool) -> None:
    assert Admission(["machine", "Broker.Test.", ""]).is_ours(host) is is_ours
    assert Admission(["*"]).is_ours(host)


def test_a_host_is_taken_out_of_its_header() -> None:
    assert [host_name(h) for h in ("A.b:1", "[::1]:2", "::1", "a.")] == ["a.b", "::1", "::1", "a"]


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 0),
        ("GET", {"host": "evil.test"}, 421),
        ("GET", {"host": "localhost", "origin": "http://evil.test"}, 0),
        ("POST", {"host": "localhost", "origin": "http://evil.test"}, 403),
        ("DELETE", {"host": "localhost", "origin": "null"}, 403),
        ("POST", {"host": "localhost", "origin": "http://localhost:8080"}, 0),
        ("POST", {"host": "localhost", "origin": "https://broker.test"}, 0),
        ("POST", {"host": "localhost", "origin": "file://localhost"}, 403),
    ],
)
def test_what_is_answered(method: str, headers: dict[str, str], status: int) -> None:
    found = 0
    try:
        Admission(["broker.test"]).check(method, Headers(headers))
    except HttpError as error:
        found = error.status
    assert found == status


def test_the_application_asks_it_before_it_asks_for_a_password(tmp_path: object) -> None:
    rig = HttpRig(tmp_path)  # type: ignore[arg-type]
    try:
        for address, headers, status in (
            ("/api/overview", {"host": "evil.test"}, 421),
            ("/api/overview", {"content-length": "1", "transfer-encoding": "chunked"}, 400),
            ("/health", {"content-length": "1", "transfer-encoding": "chunked"}, 400),
        ):
            reply = rig.ask(address, user=None, headers=headers)
            assert reply.status == status, address
            assert set(reply.json()) == {"error", "reason"}
        rig.node.answers["status"] = ControlError(541, "it has not started")
        assert rig.ask("/health", user=None, headers={"host": "evil.test"}).status == 503
    finally:
        rig.close()


def test_one_user_has_so_many_requests_at_once(tmp_path: object) -> None:
    """http_user_requests_max: a request that has ended no longer counts."""
    rig = HttpRig(tmp_path)  # type: ignore[arg-type]

    async def one_turn_later(*_: object, **__: object) -> list[object]:
        await asyncio.sleep(0)
        return []

    rig.node.call = one_turn_later  # type: ignore[method-assign,assignment]
    try:
        rig.user_requests_max = 1

        async def twice(app: Api) -> Reply:
            await ask(app, "/api/streams/%2F")
            return await ask(app, "/api/streams/%2F")

        assert rig.run(twice).status == 200

        async def two_at_once(app: Api) -> Reply:
            first, second = await asyncio.gather(
                ask(app, "/api/streams/%2F"), ask(app, "/api/streams/%2F")
            )
            assert first.status == 200
            return second

        refused = rig.run(two_at_once)
        assert refused.status == 429
        assert "1 requests under way" in refused.json()["reason"]
    finally:
        rig.threads.shutdown()
