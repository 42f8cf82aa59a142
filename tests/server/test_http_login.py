"""A server that decides who may open which vhost and what is done there, at a broker: over AMQP and
over HTTP."""

import base64
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pika
import pytest
from pamqp import commands
from pika.exceptions import ChannelClosedByBroker

from tests.helpers.live_broker import Broker, LiveBroker, wait_until
from tests.helpers.token_issuer import TokenIssuer
from tests.helpers.wire import Wire


@pytest.fixture
def server() -> Iterator[TokenIssuer]:
    """Allows all, at first."""
    server = TokenIssuer()
    server.answer = "allow"
    yield server
    server.close()


def seen(broker: LiveBroker) -> list[str]:
    """The vhosts that ada sees over HTTP."""
    secret = base64.b64encode(b"ada:of the server").decode()
    address = f"http://{broker.host}:{broker.http_port}/api/vhosts"
    asked = urllib.request.Request(address, headers={"Authorization": f"Basic {secret}"})
    with urllib.request.urlopen(asked) as answer:
        return [row["name"] for row in json.load(answer)]


def test_the_server_decides_on_vhosts(tmp_path: Path, server: TokenIssuer) -> None:
    vhosts = TokenIssuer()
    vhosts.answer = "allow"
    options = {
        "PENSTOCK_AUTH_BACKENDS": "http",
        "PENSTOCK_AUTH_HTTP_USER_PATH": server.serve(),
        "PENSTOCK_AUTH_HTTP_VHOST_PATH": vhosts.serve(),
        "PENSTOCK_AUTH_HTTP_CACHE_S": "0.001",
    }
    with LiveBroker(tmp_path / "data", environment=options, has_http=True) as broker:
        broker.control("add_user", name="ada", password="own", tags=["management"])
        broker.control("set_permissions", "/", user="ada", configure=".*", write=".*", read=".*")
        wire = Wire(Broker(broker.host, broker.port, "ada", "of the server")).open()
        form = parse_qs(vhosts.forms[-1])
        assert form == {
            "username": ["ada"], "vhost": ["/"], "ip": ["127.0.0.1"], "tags": ["management"]
        }  # fmt: skip
        assert seen(broker) == ["/"]
        vhosts.answer = "deny"
        assert seen(broker) == []
        refused = Wire(Broker(broker.host, broker.port, "ada", "of the server"))
        refused.hello()
        refused.log_in(None, None)
        refused.agree()
        refused.send(commands.Connection.Open("/"))
        close = refused.expect(commands.Connection.Close)
        assert (close.reply_code, close.reply_text) == (
            530, "NOT_ALLOWED - access to vhost '/' refused for user 'ada'",
        )  # fmt: skip
        refused.sock.close()
        wire.sock.close()
        assert "may not open vhost '/' - the server denies it" in broker.log.read_text()
    vhosts.close()


def test_the_server_decides_on_queues_and_a_slow_one_delays_nobody_else(
    tmp_path: Path, server: TokenIssuer
) -> None:
    resources = TokenIssuer()
    resources.answer = "allow"
    options = {
        "PENSTOCK_AUTH_BACKENDS": "http, internal",
        "PENSTOCK_AUTH_HTTP_USER_PATH": server.serve(),
        "PENSTOCK_AUTH_HTTP_RESOURCE_PATH": resources.serve(),
        "PENSTOCK_AUTH_HTTP_TIMEOUT_S": "3600",
    }
    with LiveBroker(tmp_path / "data", environment=options, has_http=True) as broker:
        for name in ("ada", "ben"):
            broker.control("add_user", name=name, password="own", tags=["management"])
            broker.control("set_permissions", "/", user=name, configure=".*", write=".*", read=".*")
        ada = pika.BlockingConnection(pika.URLParameters(url_of(broker, "ada", "own")))
        channel = ada.channel()
        channel.queue_declare("q")
        assert parse_qs(resources.forms[-1]) == {
            "username": ["ada"], "vhost": ["/"], "resource": ["queue"], "name": ["q"],
            "permission": ["configure"], "ip": ["127.0.0.1"], "tags": ["management"],
        }  # fmt: skip
        asked = resources.asked
        channel.queue_declare("q")
        assert resources.asked == asked  # the answer is remembered
        resources.answer = "deny"
        with pytest.raises(ChannelClosedByBroker, match="read access to queue 'q'"):
            channel.queue_purge("q")
        resources.answer = "allow"
        resources.may_answer.clear()
        slow = Wire(Broker(broker.host, broker.port, "ben", "own")).open()
        slow.channel()
        slow.send(commands.Queue.Declare(queue="slow"), 1)
        wait_until(lambda: resources.asked == asked + 2)
        ada.channel().queue_declare("q", passive=True)  # others go on
        assert broker.control("list_queues", "/") != []
        resources.may_answer.set()
        slow.expect(commands.Queue.DeclareOk, 1)
        slow.sock.close()
        ada.close()
        secret = base64.b64encode(b"ada:own").decode()
        request = urllib.request.Request(
            f"http://{broker.host}:{broker.http_port}/api/streams/%2F/s",
            headers={"Authorization": f"Basic {secret}"},
        )
        with pytest.raises(urllib.error.HTTPError, match="403"):  # pages are read without a vhost
            urllib.request.urlopen(request)
        assert "may not read queue 'q' in vhost '/' - the server denies it" in broker.log_text()
    resources.close()


def url_of(broker: Broker, user: str, password: str) -> str:
    """The address of the broker for this user."""
    return Broker(broker.host, broker.port, user, password).url


def test_the_tester_of_permissions_asks_the_server(tmp_path: Path, server: TokenIssuer) -> None:
    vhosts, resources = TokenIssuer(), TokenIssuer()
    vhosts.answer = resources.answer = "allow"
    options = {
        "PENSTOCK_AUTH_BACKENDS": "http, internal",
        "PENSTOCK_AUTH_HTTP_USER_PATH": server.serve(),
        "PENSTOCK_AUTH_HTTP_VHOST_PATH": vhosts.serve(),
        "PENSTOCK_AUTH_HTTP_RESOURCE_PATH": resources.serve(),
        "PENSTOCK_AUTH_HTTP_TOPIC_PATH": resources.serve(),
        "PENSTOCK_AUTH_HTTP_CACHE_S": "0.001",
    }
    with contextlib.ExitStack() as stack:
        stack.callback(vhosts.close)
        stack.callback(resources.close)
        broker = stack.enter_context(LiveBroker(tmp_path / "data", environment=options))
        broker.control("add_user", name="ada", password="own")
        broker.control("set_permissions", "/", user="ada", configure="", write="^t", read=".*")

        def tested(verb: str, name: str, **more: str) -> tuple[bool, str]:
            found = broker.control("check_permission", user="ada", verb=verb, name=name, **more)
            return found["is_allowed"], found["why"]

        assert tested("read", "q") == (
            True, "read is '.*', which allows 'q'; the server of auth_http allows it, too",
        )  # fmt: skip
        form = parse_qs(resources.forms[-1])
        assert (form["resource"], form["permission"]) == (["queue"], ["read"])
        assert tested("write", "topics", routing_key="a.b")[0]
        assert parse_qs(resources.forms[-2])["resource"] == ["exchange"]
        assert parse_qs(resources.forms[-1])["routing_key"] == ["a.b"]
        asked = resources.asked
        assert tested("configure", "q") == (False, "configure is '', which does not allow 'q'")
        assert resources.asked == asked  # as at a login: what is denied here is not asked
        resources.answer = "deny"
        assert tested("read", "q", resource="exchange") == (
            False, "read is '.*', which allows 'q'; read of exchange 'q': the server denies it",
        )  # fmt: skip
        resources.answer = "?"
        is_allowed, why = tested("read", "q")
        assert not is_allowed
        assert why.endswith("the server answers '?', expected allow or deny")
        vhosts.answer = "deny"
        assert tested("read", "q") == (
            False, "the server of auth_http does not let user 'ada' open vhost '/'",
        )  # fmt: skip
        server.answer = "deny"  # the password of ada is checked here now, and so are its rights
        assert tested("read", "q", password="own") == (True, "read is '.*', which allows 'q'")
        is_allowed, why = tested("read", "q", password="wrong")
        assert not is_allowed
        assert "a login of user 'ada' is refused" in why
