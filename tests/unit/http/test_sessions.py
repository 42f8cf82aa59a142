"""The dashboard's login: a cookie in the place of name and password, and when it ends."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.http import sessions
from penstock.http.api import Api
from tests.helpers.asgi_client import Reply, ask
from tests.helpers.http_rig import EVERYTHING, HttpRig, users_facts

pytestmark = pytest.mark.real

OURS = {"x-penstock": "1", "origin": "http://localhost:15672", "host": "localhost:15672"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    rig.users.take(users_facts(boss=EVERYTHING, ann=EVERYTHING, untagged=EVERYTHING))
    rig.node.answers["purge_queue"] = None
    yield rig
    rig.close()


async def login(
    app: Api, user: str = "boss", password: str | None = None, **how: Any
) -> tuple[Reply, dict[str, str]]:
    """The answer, and the headers that a page then sends."""
    body = json.dumps({"username": user, "password": user if password is None else password})
    reply = await ask(
        app, "/api/login", method="POST", user=None, body=body.encode(), headers=OURS, **how
    )
    return reply, {**OURS, "cookie": reply.headers.get("set-cookie", "").partition(";")[0]}


async def whoami(app: Api, headers: dict[str, str]) -> int:
    return (await ask(app, "/api/whoami", user=None, headers=headers)).status


def test_a_cookie_stands_for_name_and_password(rig: HttpRig) -> None:
    async def scenario(app: Api) -> Reply:
        reply, page = await login(app)
        assert (reply.status, reply.json()) == (200, {"name": "boss", "tags": ["administrator"]})
        value, *rest = reply.headers["set-cookie"].split("; ")
        assert value.startswith("penstock=")
        assert len(value) > 40
        assert rest == ["Path=/", "Max-Age=28800", "HttpOnly", "SameSite=Strict"]
        assert await whoami(app, {"cookie": page["cookie"]}) == 200
        streams = await ask(app, "/api/streams/%2F", user=None, headers=page)
        assert streams.status == 200
        purge = {"address": "/api/queues/%2F/q/contents", "method": "DELETE", "user": None}
        assert (await ask(app, **purge, headers=page)).status == 204
        for change in (
            {"x-penstock": None}, {"origin": None}, {"origin": "http://localhost:8000"},
        ):  # fmt: skip
            headers = {n: v for n, v in {**page, **change}.items() if v is not None}
            refused = await ask(app, **purge, headers=headers)
            assert (refused.status, refused.json()["error"]) == (403, "not_own_page"), change
        assert (await ask(app, "/api/logout", method="POST", user=None, headers=page)).status == 204
        reply = await ask(app, "/api/logout", method="POST", user=None, headers=page)
        assert reply.headers["set-cookie"].startswith("penstock=; Path=/; Max-Age=0")
        assert await whoami(app, page) == 401
        return reply

    rig.run(scenario)


def test_who_may_not_log_in(rig: HttpRig) -> None:
    async def scenario(app: Api) -> Reply:
        wrong = "wrong name or password, or guest from another machine"
        none = (
            "user 'untagged' has none of the tags management, policymaker, monitoring, "
            "administrator: an administrator gives one by 'penstock set_user_tags'"
        )
        for user, password, reason in (
            ("boss", "wrong", wrong), ("nobody", "", wrong), ("untagged", "untagged", none),
        ):  # fmt: skip
            reply, _ = await login(app, user, password)
            assert (reply.status, reply.json()["reason"]) == (401, reason)
            assert not {"www-authenticate", "set-cookie"} & {*reply.headers}
        elsewhere = {**OURS, "origin": "http://localhost:8000"}
        form = {"origin": OURS["origin"], "host": OURS["host"]}  # of HTML, without a script
        for sent in (elsewhere, form):
            for name in ("login", "logout"):
                body = b'{"username": "boss", "password": "boss"}'
                reply = await ask(
                    app, f"/api/{name}", method="POST", user=None, headers=sent, body=body
                )
                assert (reply.status, reply.json()["error"]) == (403, "not_own_page")
        reply = await ask(app, "/api/login", method="POST", user=None, body=b"{}")
        assert (reply.status, reply.json()["error"]) == (400, "bad_request")
        return reply

    rig.run(scenario)


def test_a_page_is_not_asked_by_a_dialog(rig: HttpRig) -> None:
    for headers in ({"x-penstock": "1"}, {"accept": "text/event-stream"}):
        for address in ("/api/whoami", "/api/streams/%2F"):
            reply = rig.ask(address, user=None, headers=headers)
            assert reply.status == 401
            assert reply.json()["error"] == "not_authorized"
            assert "www-authenticate" not in reply.headers


@pytest.mark.parametrize(
    ("what", "facts"),
    [
        ("password", {"ann": "another"}), ("user", {"ann": None}), ("time", {}),
    ],
)  # fmt: skip
def test_a_session_ends(rig: HttpRig, what: str, facts: dict[str, str | None]) -> None:
    async def scenario(app: Api) -> Reply:
        _, boss = await login(app)
        reply, page = await login(app, "ann")
        assert await whoami(app, page) == 200
        changed = rig.users.facts()
        if what == "time":
            rig.clock.advance(sessions.SESSION_S - 1)
            assert await whoami(app, page) == 200
            rig.clock.advance(1)
        elif what == "password":
            changed["users"] = [
                [name, hashed + "x" * (name == "ann"), tags]
                for name, hashed, tags in changed["users"]
            ]
        else:
            changed["users"] = [one for one in changed["users"] if one[0] != "ann"]
        rig.users.take(changed)
        assert await whoami(app, page) == 401
        assert await whoami(app, boss) == (401 if what == "time" else 200)
        return reply

    rig.run(scenario)


def test_a_user_has_a_bounded_number(rig: HttpRig) -> None:
    async def scenario(app: Api) -> Reply:
        reply, other = await login(app, "ann")
        pages = [(await login(app))[1] for _ in range(sessions.OF_USER_MAX + 2)]
        assert [await whoami(app, one) for one in pages] == [401, 401] + [200] * (len(pages) - 2)
        assert await whoami(app, other) == 200
        return reply

    rig.run(scenario)


def test_a_browser_that_speaks_https_gets_a_secure_cookie(rig: HttpRig) -> None:
    async def scenario(app: Api) -> Reply:
        body = b'{"username": "boss", "password": "boss"}'
        headers = {**OURS, "origin": "https://localhost:15672"}  # of a proxy in front
        return await ask(app, "/api/login", method="POST", user=None, body=body, headers=headers)

    assert rig.run(scenario).headers["set-cookie"].endswith("; Secure")
