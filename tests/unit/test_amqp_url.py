"""AmqpUrl: what each part means, what is left out, what is refused."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.amqp_url import AmqpUrl, TlsTrust
from penstock.errors import OptionError


def test_every_part() -> None:
    url = AmqpUrl.parse(
        "amqp://us%40er:p%2Fw@host.example:5673/a%2Fb"
        "?heartbeat=30&connection_timeout=2.5&channel_max=10&frame_max=8192&name=worker"
    )
    assert url == AmqpUrl(
        host="host.example", port=5673, user="us@er", password="p/w", vhost="a/b", heartbeat_s=30,
        connection_timeout_s=2.5, channel_max=10, frame_max=8192, name="worker",
    )  # fmt: skip
    assert str(url) == "amqp://us@er@host.example:5673/a/b"
    assert "p/w" not in str(url)


def test_the_parameters_of_tls_are_those_of_rabbitmq() -> None:
    assert AmqpUrl.parse("amqps://host/") == AmqpUrl(host="host", port=5671, tls=TlsTrust())
    url = AmqpUrl.parse(
        "amqps://host:1/?cacertfile=ca.pem&certfile=c.pem&keyfile=c.key&verify=verify_none"
        "&server_name_indication=a.example&auth_mechanism=external"
    )
    assert url.tls == TlsTrust("ca.pem", "c.pem", "c.key", verify=False, server_name="a.example")
    assert url.is_external
    assert str(url) == "amqps://guest@host:1/"
    assert url.with_tls(cacerts="b.pem", verify=None).tls == TlsTrust(
        "b.pem", "c.pem", "c.key", verify=False, server_name="a.example"
    )


@pytest.mark.parametrize("text", ["amqp://", "amqp://localhost", "amqp://localhost/"])
def test_what_is_left_out(text: str) -> None:
    assert AmqpUrl.parse(text) == AmqpUrl()


def test_an_address_of_version_6() -> None:
    url = AmqpUrl.parse("amqp://[::1]:1/")
    assert (url.host, url.port) == ("::1", 1)
    assert str(url) == "amqp://guest@[::1]:1/"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("amqp://host/?cacertfile=ca.pem", "cacertfile: given 'ca.pem', expected amqps://"),
        ("amqps://host/?verify=no", "verify: given 'no', expected verify_peer or verify_none"),
        ("amqps://host/?cacert=a", "did you mean 'cacertfile'"),
        ("http://host/", "expected amqp://user:password@host:port/vhost"),
        ("amqp://host:port/", "expected amqp://user:password@host:port/vhost"),
        ("amqp://host/?heartbeat=often", "heartbeat: given 'often', expected a whole number"),
        ("amqp://host/?heartbeat=65536", "from 0 to 65535"),
        ("amqp://host/?connection_timeout=0", "connection_timeout: given '0', expected seconds"),
        ("amqp://host/?hartbeat=5", "unknown option 'hartbeat', did you mean 'heartbeat'"),
        ("amqp://host/" + "x" * 256, "at most 255 bytes"),
    ],
)
def test_what_is_wrong_is_told(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        AmqpUrl.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "amqp://user:secret@host:port/",
        "amqp://user:se/secret@host/",  # what stands before the slash is taken for a port
        "amqp://user:secret@cret@host:port/",
        "ampq://user:secret@host/",
        "amqp:/user:secret@host/",
        "amqp:user:secret@host/",
        "user:secret@host/",
        "amqps://user:secret@host:port/",
        "amqp://user:secret@[::1/",
        "amqp://user:secret@host/?hartbeat=5",
    ],
)
def test_a_password_is_not_told(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        AmqpUrl.parse(text)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_repr_does_not_show_the_password() -> None:
    url = AmqpUrl.parse("amqp://user:secret@host/")
    assert "secret" not in repr(url)
    assert "user='user'" in repr(url)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ampq://guest:secret@host/", "did you mean amqp:// ?"),
        ("AMQP://guest:secret@host/", "did you mean amqp:// ?"),
        ("amqp:/guest:secret@host/", "did you mean amqp:// ?"),
        ("http://guest:secret@host/", "expected a directory, or amqp://user:password@host"),
    ],
)
@pytest.mark.parametrize("opens", [penstock.open, penstock.aio.open])
def test_a_url_with_a_mistake_is_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: Callable[[str], object], text: str,
    said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=re.escape(said)) as caught:
        opens(text)
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_environment() -> None:
    penstock, other = "amqp://penstock/", "amqp://other/"
    assert AmqpUrl.of(None, {"PENSTOCK_URL": penstock, "AMQP_URL": other}).host == "penstock"
    assert AmqpUrl.of(None, {"PENSTOCK_URL": "", "AMQP_URL": other}).host == "other"
    assert AmqpUrl.of(None, {}) == AmqpUrl()
    assert AmqpUrl.of("amqp://given/", {"PENSTOCK_URL": penstock}).host == "given"
    assert AmqpUrl.of(AmqpUrl(host="made"), {"AMQP_URL": other}).host == "made"
