"""Who asks: users and passwords of AMQP, guest from this machine only, changes at once."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.access.users import verify
from penstock.http.api import Api
from tests.helpers.asgi_client import Reply, ask, basic
from tests.helpers.http_rig import EVERYTHING, HttpRig, users_facts

pytestmark = pytest.mark.real


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    rig.filled("events", 3)
    rig.filled("secret", 3)
    rig.users.take(
        users_facts(guest=EVERYTHING, ann=("", "", "^ev"), bob=("", ".*", ""), élodie=EVERYTHING)
    )
    yield rig
    rig.close()


def told(reply: Reply) -> tuple[int, str]:
    assert set(reply.json()) >= {"error", "reason"}
    return reply.status, reply.json()["error"]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Basic",
        "Basic ",
        "Basic !!!",
        "Basic Z3Vlc3Q=",  # guest
        "Bearer Z3Vlc3Q6Z3Vlc3Q=",
        basic("guest", "wrong"),
        basic("nobody", "nobody"),
        basic("", ""),
    ],
)
def test_no_right_name_and_password_is_401(rig: HttpRig, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    for address in ("/api/streams/%2F/events/frames", "/api/whoami", "/api/nothing"):
        reply = rig.ask(address, user=None, headers=headers)
        if header is None and "streams" not in address:
            assert (reply.status, reply.body) == (401, b"")
        else:
            assert told(reply) == (401, "not_authorized")
        assert reply.headers["www-authenticate"].startswith("Basic realm=")
    assert not rig.node.asked


def test_a_right_one_is_let_in(rig: HttpRig) -> None:
    for user in ("guest", "ann", "élodie"):
        assert rig.ask("/api/whoami", user=user).status == 200
    header = basic("guest", "guest").replace("Basic", "bAsIc")
    assert rig.ask("/api/whoami", user=None, headers={"authorization": header}).status == 200


def test_guest_may_come_from_this_machine_only(rig: HttpRig) -> None:
    for peer, status in (
        ("127.0.0.1", 200), ("127.8.8.8", 200), ("::1", 200), ("::ffff:127.0.0.1", 200),
        ("10.0.0.1", 401), ("::2", 401), ("", 401),
    ):  # fmt: skip
        assert rig.ask("/api/whoami", peer=peer).status == status, peer
    assert rig.ask("/api/whoami", user="ann", peer="10.0.0.1").status == 200
    forwarded = {"x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1"}
    assert rig.ask("/api/whoami", peer="10.0.0.1", headers=forwarded).status == 401


def test_reading_needs_permission_to_read(rig: HttpRig) -> None:
    for stream, user, status in (
        ("events", "ann", 200), ("secret", "ann", 403), ("events", "bob", 403),
        ("nothing", "guest", 404), ("nothing", "ann", 403),
    ):  # fmt: skip
        for below in ("", "/frames", "/offset?time_us=5", "/pages"):
            assert rig.ask(f"/api/streams/%2F/{stream}{below}", user=user).status == status
        if status != 403 and find_spec("pyarrow") is None:
            status = 501
        assert rig.ask(f"/api/streams/%2F/{stream}/arrow", user=user).status == status
    reply = rig.ask("/api/streams/%2F/secret/frames", user="ann")
    assert told(reply) == (403, "forbidden")
    assert (
        "read access to queue 'secret' in vhost '/' refused for user 'ann'"
        in (reply.json()["reason"])
    )
    for method in ("PUT", "DELETE"):
        address = "/api/streams/%2F/secret/readers/r"
        assert rig.ask(address, method=method, user="ann").status == 403
    found = rig.ask("/api/streams/%2F", user="ann").json()
    assert [row["name"] for row in found] == ["events"]
    assert rig.ask("/api/streams/%2F", user="bob").json() == []


def test_a_vhost_that_is_not_ones_own(rig: HttpRig) -> None:
    for vhost, status in (("other", 403), ("new", 404), ("none", 404)):
        for below in ("", "/events", "/events/frames"):
            assert told(rig.ask(f"/api/streams/{vhost}{below}"))[0] == status
    assert "no vhost 'none'" in rig.ask("/api/streams/none").json()["reason"]


def test_a_change_counts_at_once(rig: HttpRig) -> None:
    address = "/api/streams/%2F/events/frames"
    assert rig.ask(address, user="ann").status == 200
    facts = users_facts(guest=EVERYTHING, ann=("", "", ""))
    rig.users.take(facts)
    assert rig.ask(address, user="ann").status == 403
    del facts["permissions"][1]
    rig.users.take(facts)
    assert rig.ask(address, user="ann").status == 403
    facts["users"][1][1] = users_facts(another=EVERYTHING)["users"][0][1]  # ann's new password
    rig.users.take(facts)
    assert rig.ask(address, user="ann").status == 401
    assert rig.ask(address, user="ann", password="another").status == 403
    rig.users.take(users_facts(guest=EVERYTHING))
    assert rig.ask(address, user="ann", password="another").status == 401


def test_a_password_is_hashed_once(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def counting(password: bytes, hashed: str) -> bool:
        asked.append(password)
        return verify(password, hashed)

    monkeypatch.setattr("penstock.server.authenticator.verify", counting)
    for _ in range(3):
        assert rig.ask("/api/whoami").status == 200
    assert len(asked) == 1
    rig.clock.advance(1e6)
    assert rig.ask("/api/whoami").status == 200
    assert len(asked) == 1
    for _ in range(2):
        assert rig.ask("/api/whoami", password="wrong").status == 401
    assert len(asked) == 3
    # Who may not come from there at all costs no hash.
    assert rig.ask("/api/whoami", peer="10.0.0.1").status == 401
    assert len(asked) == 3


def test_who_would_have_to_wait_too_long_is_told_so(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(app: Api) -> Reply:
        for _ in range(3):
            assert (await ask(app, "/api/whoami", password="wrong")).status == 401
        # From here on its clock, which stands still, would have to reach the end of a brake.
        with monkeypatch.context() as patch:
            patch.setattr("penstock.http.requests.LOGIN_S", 0.05)
            reply = await ask(app, "/api/whoami", password="wrong")
        assert told(reply) == (429, "too_many_requests")
        assert "many wrong passwords from this address, or a server" in str(reply.json())
        assert reply.headers["retry-after"] == "10"
        return await ask(app, "/api/whoami", peer="127.0.0.2")

    assert rig.run(scenario).status == 200
