"""Backends: who is asked in which order, and keys of tokens that come, go and do not come."""

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.access.http_options import HttpLoginOptions
from penstock.access.permissions import Identity
from penstock.access.tokens import OAuth2Options
from penstock.access.users import Users
from penstock.clock import ManualClock
from penstock.server.authenticator import Authenticator
from penstock.server.backends import (
    ANSWER_BYTES_MAX,
    FETCH_AGAIN_S,
    Backends,
    Form,
    HttpBackend,
    OAuth2Backend,
    Refused,
    ask_http,
    fetch_keys,
    made_backends,
)
from penstock.storage.files.user_store import UserStore
from tests.helpers.token_issuer import NOW_S, TokenIssuer


class World:
    """Users ann (password ann) and guest, an issuer, and backends with these names."""

    def __init__(
        self, *names: str, http: dict[str, str] | None = None, **options: object
    ) -> None:  # fmt: skip
        self.clock = ManualClock()
        self.clock.advance(NOW_S - self.clock.wall_ms() / 1000)
        self.issuer = TokenIssuer()
        self.users = Users(UserStore(":memory:"), rng=random.Random(1), log2_n=1)
        self.users.add_user("ann", b"ann")
        self.executor = ThreadPoolExecutor(1)
        self.authenticator = Authenticator(self.users, self.executor, self.clock)
        given = {"resource_server_id": "rabbit", "jwks_uri": "http://issuer", **options}
        made = made_backends(
            names,
            self.users,
            self.authenticator,
            self.clock,
            OAuth2Options.of(given),
            HttpLoginOptions(user_path="http://accounts", **(http or {})),
        )
        self.fetched = 0
        self.fails = ""
        self.asked: list[tuple[str, dict[str, str | bytes]]] = []
        self.says = "allow administrator"
        for backend in made:
            if isinstance(backend, OAuth2Backend):
                backend._fetch = self.fetch
            if isinstance(backend, HttpBackend):
                backend._ask = self.ask
        self.backends = Backends(made)

    def fetch(self, _options: OAuth2Options, _now_s: object) -> str:
        self.fetched += 1
        if self.fails:
            raise OSError(self.fails)
        return self.issuer.jwks

    def ask(self, _options: HttpLoginOptions, address: str, form: Form, _now_s: object) -> str:
        self.asked.append((address, dict(form)))
        if self.fails:
            raise OSError(self.fails)
        return self.says

    async def why(self, user: str, password: str, host: str = "10.0.0.1") -> str:
        """The refusal, or who has logged in."""
        try:
            account = await self.backends.login(user, password.encode(), host)
        except Refused as error:
            return str(error)
        return f"is {account.user}"


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await test()

    asyncio.run(whole())


def test_one_backend_after_the_other_is_asked() -> None:
    async def test() -> None:
        world = World("oauth2", "internal")
        assert await world.why("ann", "ann") == "is ann"
        assert await world.why("x", world.issuer.token()) == "is ada"
        assert await world.why("ann", "bob") == (
            "oauth2: its password is no token (JWT); internal: invalid credentials"
        )
        alone = World("internal")
        assert await alone.why("ann", "bob") == "invalid credentials"

    run(test)


def test_an_unknown_user_costs_no_hash_unless_all_others_refuse() -> None:
    async def test() -> None:
        world = World("internal", "oauth2")
        for _ in range(30):  # a brake would make the later ones wait
            assert await world.why("x", world.issuer.token()) == "is ada"
        assert world.authenticator.hashes == 0
        assert "invalid credentials" in await world.why("x", "x")
        assert world.authenticator.hashes == 1

    run(test)


def test_users_of_this_machine_come_from_it_with_tokens_too() -> None:
    async def test() -> None:
        world = World("oauth2")
        token = world.issuer.token(sub="guest")
        assert await world.why("x", token) == "it may connect from this machine only"
        assert await world.why("x", token, "127.0.0.1") == "is guest"

    run(test)


def test_a_certificate_that_is_refused_is_noted_as_a_password_is() -> None:
    async def test() -> None:
        world = World("internal")
        noted: list[tuple[str, str, str]] = []
        world.backends.on_refused = lambda *what: noted.append(what)
        assert await world.why("ann", "wrong") == "invalid credentials"
        assert world.backends.certified("ann", "10.0.0.1").user == "ann"
        with pytest.raises(Refused, match="there is no such user"):
            world.backends.certified("zed", "10.0.0.2")
        assert noted == [
            ("ann", "10.0.0.1", "invalid credentials"), ("zed", "10.0.0.2", "there is no such user")
        ]  # fmt: skip

    run(test)


def test_keys_are_fetched_once_for_all_and_kept() -> None:
    async def test() -> None:
        world = World("oauth2")
        token = world.issuer.token()
        assert set(await asyncio.gather(*[world.why("x", token) for _ in range(50)])) == {"is ada"}
        assert world.fetched == 1
        world.clock.advance(299)
        assert await world.why("x", token) == "is ada"
        assert world.fetched == 1

    run(test)


def test_a_new_key_is_fetched_but_not_for_everybody_who_names_one() -> None:
    async def test() -> None:
        world = World("oauth2")
        before = world.issuer.token()
        assert await world.why("x", before) == "is ada"
        world.issuer.rotate()
        world.clock.advance(FETCH_AGAIN_S)
        assert await world.why("x", world.issuer.token()) == "is ada"
        assert world.fetched == 2
        other = TokenIssuer()
        for _ in range(20):
            assert "unknown key" in await world.why("x", other.token())
        assert "unknown key" in await world.why("x", before)  # the issuer has withdrawn it
        assert world.fetched == 2

    run(test)


def test_a_key_that_was_withdrawn_meanwhile_is_refused_after_its_time() -> None:
    async def test() -> None:
        world = World("oauth2")
        before = world.issuer.token(exp=None)
        assert await world.why("x", before) == "is ada"
        world.issuer.rotate()
        world.clock.advance(300)
        found = await asyncio.gather(*[world.why("x", before) for _ in range(3)])
        assert all("unknown key" in why for why in found)
        assert world.fetched == 2

    run(test)


def test_an_issuer_that_hangs_delays_only_the_first_after_the_keys_time() -> None:
    async def test() -> None:
        world = World("oauth2")
        token = world.issuer.token(exp=None)
        assert await world.why("x", token) == "is ada"
        world.fails = "gone"
        world.clock.advance(300)
        assert await world.why("x", token) == "is ada"
        world.clock.advance(FETCH_AGAIN_S)
        may_go = threading.Event()

        def hang(_options: OAuth2Options, _now_s: object) -> str:
            may_go.wait()
            return world.issuer.jwks

        backend = world.backends._backends[0]
        backend._fetch = hang  # type: ignore[attr-defined]
        assert await world.why("x", token) == "is ada"
        fetching = backend._fetching  # type: ignore[attr-defined]
        may_go.set()
        await fetching

    run(test)


def test_an_issuer_that_fails_leaves_its_keys(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        world = World("oauth2")
        world.fails = "no route"
        token = world.issuer.token(exp=None)
        assert "unknown key" in await world.why("x", token)
        world.fails = ""
        world.clock.advance(FETCH_AGAIN_S)
        assert await world.why("x", token) == "is ada"
        world.fails = "gone"
        world.clock.advance(1000)
        assert await world.why("x", token) == "is ada"
        await asyncio.sleep(0)
        while world.backends._backends[0]._fetching is not None:  # type: ignore[attr-defined]
            await asyncio.sleep(0)

    with caplog.at_level(logging.WARNING):
        run(test)
    none, kept = caplog.messages
    assert none.endswith("from http://issuer: no route; there are none from before")
    assert kept.endswith("from http://issuer: gone; those from before are used")


def test_an_issuer_that_does_not_answer_delays_nobody_else() -> None:
    async def test() -> None:
        world = World("oauth2", "internal")
        may_go = threading.Event()

        def hang(_options: OAuth2Options, _now_s: object) -> str:
            may_go.wait()
            return world.issuer.jwks

        world.backends._backends[0]._fetch = hang  # type: ignore[attr-defined]
        waiting = asyncio.create_task(world.why("x", world.issuer.token()))
        assert await world.why("ann", "ann") == "is ann"
        assert not waiting.done()
        may_go.set()
        assert await waiting == "is ada"

    run(test)


def test_keys_of_the_configuration_need_no_issuer() -> None:
    async def test() -> None:
        issuer = TokenIssuer()
        world = World("oauth2", jwks_uri="", signing_keys=issuer.jwks)
        assert await world.why("x", issuer.token()) == "is ada"
        assert "unknown key" in await world.why("x", world.issuer.token())
        assert world.fetched == 0

    run(test)


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    issuer = TokenIssuer()
    yield issuer
    issuer.close()


def test_what_the_issuer_answers_is_limited(issuer: TokenIssuer) -> None:
    options = OAuth2Options(jwks_uri=issuer.serve())
    assert fetch_keys(options, lambda: 0.0) == issuer.jwks
    issuer.answer = " " * (ANSWER_BYTES_MAX + 1)
    with pytest.raises(ValueError, match="more than"):
        fetch_keys(options, lambda: 0.0)
    times = iter((0.0, 6.0))
    with pytest.raises(TimeoutError, match="no whole answer in 5 s"):
        fetch_keys(options, lambda: next(times))


def test_a_server_checks_passwords_of_users_that_are_kept_here(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        world = World("http")
        assert await world.why("nobody", "x") == "there is no such user"
        assert world.asked == []
        for _ in range(2):  # remembered
            assert await world.why("ann", "of the server") == "is ann"
        form = {"username": "ann", "password": b"of the server"}
        assert world.asked == [("http://accounts", form)]
        world.says = "deny"
        assert await world.why("ann", "other") == "the server denies it"
        world.clock.advance(15)
        assert await world.why("ann", "of the server") == "the server denies it"
        for world.says in ("", "allowed", "<html>"):
            assert "expected allow or deny" in await world.why("ann", "x")
        world.fails = "no route"
        for _ in range(3):
            assert await world.why("ann", "x") == "http://accounts does not answer: no route"

    run(test)
    assert caplog.messages == ["logins cannot be checked at http://accounts: no route"]


def test_a_flood_from_one_address_leaves_threads_for_others() -> None:
    async def test() -> None:
        world = World("http")
        held = threading.Event()
        (backend,) = world.backends._backends
        assert isinstance(backend, HttpBackend)

        def ask(_options: HttpLoginOptions, _address: str, form: Form, _now_s: object) -> str:
            if form["password"] == b"bad":
                held.wait()
                return "deny"
            return "allow"

        backend._ask = ask
        flood = [asyncio.create_task(world.why("ann", "bad", "10.0.0.9")) for _ in range(50)]
        try:
            assert await world.why("ann", "good", "10.0.0.2") == "is ann"
        finally:
            held.set()
        assert set(await asyncio.gather(*flood)) == {"the server denies it"}

    run(test)


def test_a_server_checks_which_vhosts_are_opened(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        world = World("http", http={"vhost_path": "http://vhosts"})
        for vhost in ("a", "b", "none"):
            world.users.add_vhost(vhost)
        for vhost in ("a", "b"):
            world.users.set_permissions("ann", vhost, ".*", ".*", ".*")
        account = await world.backends.login("ann", b"x", "10.0.0.1")
        assert account.identity("a") is None  # not asked about
        world.asked.clear()
        await account.ask(["a", "none"])
        assert world.asked == [
            ("http://vhosts", {"username": "ann", "vhost": "a", "ip": "10.0.0.1", "tags": ""})
        ]
        identity = account.identity("a")
        assert identity is not None
        assert identity.may_write("x")
        assert account.identity("b") is account.identity("none") is None
        # Remembered, but not a refusal, nor for another address.
        again = await world.backends.login("ann", b"x", "10.0.0.1")
        world.says = "deny"
        for _ in range(2):
            await again.ask(["a", "b"])
        assert again.identity("a") is not None
        assert again.identity("b") is None
        assert len(world.asked) == 3
        await again.ask(["a"])
        world.clock.advance(15)
        await again.ask(["a"])
        assert again.identity("a") is None
        world.says = "allow"
        other = await world.backends.login("ann", b"x", "10.0.0.2")
        world.fails = "no route"
        await other.ask(["a"])
        assert other.identity("a") is None

    run(test)
    assert "may not open vhost 'b' - the server denies it" in caplog.text
    assert "logins cannot be checked at http://vhosts: no route" in caplog.text


def test_a_server_is_asked_about_resources_and_topics(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        paths = {"resource_path": "http://resources", "topic_path": "http://topics"}
        world = World("http", http=paths)
        world.users.add_vhost("a")
        world.users.set_permissions("ann", "a", ".*", ".*", "^mine")
        account = await world.backends.login("ann", b"x", "10.0.0.1")
        await account.ask(["a"])
        identity = account.identity("a")
        assert identity is not None
        assert (identity.asks_from, identity.asks_resources, identity.asks_topics) == (
            "10.0.0.1", True, True,
        )  # fmt: skip
        assert not identity.may_read("others")  # the permissions here are the most there is
        assert not identity.may_write_every_topic("x")
        assert Identity.from_facts(identity.facts()).facts() == identity.facts()
        world.asked.clear()
        http = world.backends.http
        assert http is not None
        assert await http.may("a", ("ann", "10.0.0.1", "write", "exchange", "x", ""))
        assert await http.may("a", ("ann", "10.0.0.1", "write", "topic", "x", "k.1"))
        form = {"username": "ann", "vhost": "a", "name": "x", "permission": "write",
                "ip": "10.0.0.1", "tags": ""}  # fmt: skip
        assert world.asked == [
            ("http://resources", {**form, "resource": "exchange"}),
            ("http://topics", {**form, "resource": "topic", "routing_key": "k.1"}),
        ]
        question = ("ann", "10.0.0.1", "read", "queue", "q", "")
        for world.says in ("deny", "", "<html>allow</html>", "allowed"):
            assert not await http.may("a", question)
        world.fails = "no route"
        assert not await http.may("a", question)
        assert http.rights_valid_s == 4 * 5.0

    run(test)
    assert "user 'ann' may not read queue 'q' in vhost 'a' - the server denies it" in caplog.text


@pytest.mark.parametrize("method", ["get", "post"])
def test_the_server_gets_user_and_password(issuer: TokenIssuer, method: str) -> None:
    options = HttpLoginOptions(http_method=method)
    issuer.answer = "allow"
    form: Form = {"username": "a&b", "password": b"p\xff="}
    assert ask_http(options, issuer.serve(), form, lambda: 0.0) == "allow"
    assert issuer.forms == ["username=a%26b&password=p%FF%3D"]
