"""Tokens at a broker: logins, what they allow, new secrets, and the end of a token."""

import json
import time
import urllib.request
from collections.abc import Iterator

import pytest
from pamqp import commands

from penstock.server.control import ControlError
from tests.helpers.live_broker import Broker, LiveBroker
from tests.helpers.token_issuer import TokenIssuer
from tests.helpers.wire import Wire

ISSUER = TokenIssuer()
Connection, Queue = commands.Connection, commands.Queue
SCOPES = ("rabbit.configure:*/ada-*", "rabbit.write:*/*", "rabbit.read:*/*")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    options = {
        "PENSTOCK_AUTH_BACKENDS": "oauth2, internal",
        "PENSTOCK_AUTH_OAUTH2_RESOURCE_SERVER_ID": "rabbit",
        "PENSTOCK_AUTH_OAUTH2_SIGNING_KEYS": ISSUER.jwks,
    }
    path = tmp_path_factory.mktemp("tokens") / "data"
    with LiveBroker(path, environment=options, has_http=True) as broker:
        broker.control("add_user", name="ada", password="own")
        broker.control("set_permissions", "/", user="ada", configure="", write="", read="")
        yield broker


def token(*scopes: str, **claims: object) -> str:
    return ISSUER.token(*scopes, **{"exp": int(time.time()) + 3600, **claims})


def opened(broker: LiveBroker, secret: str) -> Wire:
    wire = Wire(Broker(broker.host, broker.port, "anything", secret)).open()
    wire.channel()
    return wire


def declared(wire: Wire, name: str) -> None:
    wire.send(Queue.Declare(queue=name), 1)
    wire.expect(Queue.DeclareOk, 1)


def refused(broker: LiveBroker, secret: str) -> tuple[int, str]:
    """Code of the refusal of a login, and what the log says."""
    before = len(broker.log.read_text())
    wire = Wire(Broker(broker.host, broker.port, "anything", secret))
    wire.hello()
    wire.log_in(None, None)
    close = wire.expect(Connection.Close)
    wire.sock.close()
    return close.reply_code, broker.log.read_text()[before:]


def test_a_token_opens_and_its_scopes_decide(broker: LiveBroker) -> None:
    wire = opened(broker, token(*SCOPES))
    declared(wire, "ada-1")
    wire.send(Queue.Declare(queue="bob-1"), 1)
    assert wire.channel_closed() == (
        403,
        "ACCESS_REFUSED - configure access to queue 'bob-1' in vhost '/' refused for user 'ada'",
    )  # fmt: skip
    # What operators set for a user of this name does not touch it.
    broker.control("set_permissions", "/", user="ada", configure="", write="", read="^x")
    broker.control("clear_permissions", "/", user="ada")
    wire.channel(2)
    wire.send(Queue.Declare(queue="ada-2"), 2)
    wire.expect(Queue.DeclareOk, 2)
    wire.sock.close()


def test_what_is_refused_is_a_403_and_a_sentence_in_the_log(broker: LiveBroker) -> None:
    now_s = int(time.time())
    for secret, text in (
        (token(*SCOPES, exp=now_s - 60), "oauth2: its token expired 6"),
        (token(*SCOPES, aud="x"), "oauth2: its token is for ['x'], expected 'rabbit'"),
        (TokenIssuer().token(*SCOPES), "oauth2: its token is signed with the unknown key"),
        ("e30.e30.e30", "oauth2: its token is signed with None, expected RS256"),
    ):
        code, log = refused(broker, secret)
        assert code == 403
        assert text in log
        assert secret not in log


def test_scopes_for_another_vhost_are_no_access(broker: LiveBroker) -> None:
    wire = Wire(Broker(broker.host, broker.port, "x", token("rabbit.read:other/*")))
    wire.hello()
    wire.log_in(None, None)
    wire.agree()
    wire.send(Connection.Open("/"))
    close = wire.expect(Connection.Close)
    assert (close.reply_code, close.reply_text) == (
        530, "NOT_ALLOWED - access to vhost '/' refused for user 'ada'",
    )  # fmt: skip
    wire.sock.close()


def test_a_new_secret_renews_what_it_allows(broker: LiveBroker) -> None:
    wire = opened(broker, token(*SCOPES))
    more = token(*SCOPES, "rabbit.configure:*/new-*")
    wire.send(Connection.UpdateSecret(new_secret=more, reason="expires"))
    wire.expect(Connection.UpdateSecretOk)
    declared(wire, "new-1")
    for wrong in (token(*SCOPES, sub="bob"), token(*SCOPES, exp=1), "own"):
        one = opened(broker, token(*SCOPES))
        one.send(Connection.UpdateSecret(new_secret=wrong, reason="expires"))
        close = one.expect(Connection.Close)
        assert close.reply_code == 530
        assert close.reply_text.endswith("New secret was refused by one of the backends")
        one.sock.close()
    declared(wire, "new-1")
    wire.sock.close()


def test_a_connection_ends_with_its_token(broker: LiveBroker) -> None:
    kept = opened(broker, token(*SCOPES))
    for wait_s in (2, 10, 60):  # a loaded machine may need longer to log in
        end_s = int(time.time()) + wait_s
        wire = Wire(Broker(broker.host, broker.port, "x", token(*SCOPES, exp=end_s)))
        wire.hello()
        wire.log_in(None, None)
        found = wire.receive()[1]
        if isinstance(found, Connection.Tune):
            break
    wire.send(Connection.TuneOk(2047, 131072, 0))
    wire.send(Connection.Open("/"))
    wire.expect(Connection.OpenOk)
    wire.sock.settimeout(wait_s + 60)
    close = wire.expect(Connection.Close)
    assert time.time() >= end_s
    assert (close.reply_code, close.reply_text) == (
        320, "CONNECTION_FORCED - the credentials of user 'ada' have expired",
    )  # fmt: skip
    wire.sock.close()
    declared(kept, "ada-kept")
    kept.sock.close()


def test_http_takes_a_token_as_a_bearers_and_as_a_password(broker: LiveBroker) -> None:
    def status(header: str) -> object:
        address = f"http://127.0.0.1:{broker.http_port}/api/streams/%2F"
        asked = urllib.request.Request(address, headers={"Authorization": header})
        with urllib.request.urlopen(asked) as answer:
            return json.load(answer)

    assert status(f"Bearer {token(*SCOPES)}") == []
    with pytest.raises(urllib.error.HTTPError, match="401"):
        status(f"Bearer {token(*SCOPES, exp=1)}")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        status(f"Bearer {token('rabbit.read:other/*')}")


def test_the_tester_of_permissions_reads_a_token(broker: LiveBroker) -> None:
    def tested(verb: str, name: str, **more: str) -> dict[str, object]:
        secret = token(*SCOPES, "rabbit.write:*/topics/a.*")
        return broker.control(
            "check_permission", user="anything", verb=verb, name=name, password=secret, **more
        )

    assert tested("configure", "ada-1")["is_allowed"]
    assert not tested("configure", "bob-1")["is_allowed"]
    assert tested("write", "topics", routing_key="a.b")["is_allowed"]
    expired = broker.control(
        "check_permission", user="anything", verb="read", name="q",
        password=token(*SCOPES, exp=1),
    )  # fmt: skip
    assert not expired["is_allowed"]
    assert "oauth2: " in expired["why"]
    with pytest.raises(ControlError, match="is in its token: give it as `password`"):
        broker.control("check_permission", user="nobody", verb="read", name="q")
