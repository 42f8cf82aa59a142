"""The library, asyncio, the commands and Spark's HTTP over TLS, and what their errors say."""

import asyncio
import socket
from pathlib import Path

import pytest

import penstock
import penstock.aio
from penstock.cli.main import main
from penstock.client import connect
from penstock.errors import AMQPConnectionError, OptionError, UnreachableError
from penstock.spark.http_link import HttpLink, LinkError
from penstock.spark.options import SinkOptions, parse_place
from tests.helpers.live_broker import LiveBroker
from tests.helpers.tls_files import TlsFiles


def url(broker: LiveBroker, query: str = "", host: str = "localhost") -> str:
    return f"amqps://guest:guest@{host}:{broker.tls_port}/{query}"


def test_a_box_over_tls(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    body = bytes(range(256)) * (16 << 10)
    with penstock.open(url(tls_broker), cacerts=str(tls_files.path("ca.pem"))) as box:
        queue = box.queue("box")
        queue.put_many([body, b"", b"small"] * 4)
        got = [queue.get(timeout=30) for _ in range(12)]
        assert [job.body for job in got] == [body, b"", b"small"] * 4
        for job in got:
            job.ack()


def test_a_box_for_asyncio_over_tls(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    async def use() -> bytes:
        async with penstock.aio.open(url(tls_broker), cacerts=str(tls_files.path("ca.pem"))) as box:
            queue = await box.queue("aio")
            await queue.put(b"x" * 1_000_000)
            job = await queue.get(timeout=30)
            await job.ack()
            return bytes(job.body)

    assert asyncio.run(use()) == b"x" * 1_000_000


def test_a_client_logs_in_with_its_certificate(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    trust = f"?cacertfile={tls_files.path('ca.pem')}&auth_mechanism=external"
    own = f"&certfile={tls_files.path('client.pem')}&keyfile={tls_files.path('client.key')}"
    with connect(url(tls_broker, trust + own)) as connection:
        assert connection.is_open
        row = tls_broker.control("list_connections")[0]
        assert (row["user"], row["peer_cert_subject"]) == ("guest", "CN=guest")
    with pytest.raises(AMQPConnectionError, match=r"not EXTERNAL.*give this client's certificate"):
        connect(url(tls_broker, trust))


def test_commands_over_tls(
    tls_broker: LiveBroker, tls_files: TlsFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = url(tls_broker, f"?cacertfile={tls_files.path('ca.pem')}")
    with penstock.open(whole) as box:
        box.stream("lines").append(b"one")
    assert main(["tail", "lines", "--url", whole, "--since", "first", "-n", "1"]) == 0
    assert "one" in capsys.readouterr().out
    https = f"https://guest:guest@localhost:{tls_broker.https_port}"
    assert main(["--url", f"{https}/?cacertfile={tls_files.path('ca.pem')}", "status"]) == 0
    assert "listens" in capsys.readouterr().out
    assert main(["--url", https, "status"]) == 69
    said = capsys.readouterr().err
    assert "its certificate is of an authority that is not trusted here" in said
    assert "?cacertfile=" in said


def test_https_of_spark(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    ca = str(tls_files.path("ca.pem"))
    port = tls_broker.https_port
    with penstock.open(url(tls_broker), cacerts=ca) as box:
        box.stream("events").append(b"one")
    http = f"https://guest:guest@localhost:{port}/"
    for options in (
        {"url": http, "cacerts": ca},
        {"url": f"{http}?cacertfile={ca}"},
        {"url": url(tls_broker), "httpUrl": f"https://localhost:{port}", "cacerts": ca},
    ):
        link = HttpLink(parse_place(options), 30)
        assert link.json("GET", ("events",))["partitions"]
        link.close()
    sink = SinkOptions.of({"url": url(tls_broker), "cacerts": ca, "queue": "q"})
    assert sink.place is not None
    assert sink.place.http_url == "https://localhost:15671"
    assert sink.place.tls.cacerts == ca
    with pytest.raises(LinkError, match="name that authority's PEM file as cacerts"):
        HttpLink(parse_place({"url": http}), 30).json("GET", ("events",))
    with pytest.raises(OptionError, match="amqps:// or https:// with it"):
        parse_place({"url": "amqp://localhost/", "cacerts": ca})


def test_certificates_as_options_of_spark(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    options = {
        "url": f"https://guest:guest@localhost:{tls_broker.https_port}/", "verify": "false",
        "certfile": str(tls_files.path("client.pem")), "keyfile": str(tls_files.path("client.key")),
    }  # fmt: skip
    link = HttpLink(parse_place(options), 30)
    assert link.json("GET", ()) is not None
    link.close()
    sink = SinkOptions.of(
        {**options, "url": url(tls_broker), "queue": "q", "delivery": "at-least-once"}
    )
    connect(sink.broker({})).close()


# ---- errors --------------------------------------------------------------------------------------


def refusal(place: str) -> str:
    with pytest.raises(UnreachableError) as caught:
        connect(place)
    return str(caught.value)


def test_an_authority_that_is_not_trusted(tls_broker: LiveBroker) -> None:
    assert "not trusted here: name that authority's PEM file as cacerts" in refusal(url(tls_broker))
    connect(url(tls_broker, "?verify=verify_none")).close()


def test_a_wrong_host(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    trust = f"?cacertfile={tls_files.path('ca.pem')}"
    text = refusal(url(tls_broker, f"{trust}&server_name_indication=b.example"))
    assert "not valid for 'b.example': use a host name of the certificate" in text


def test_tls_at_a_plain_port_and_the_reverse(tls_broker: LiveBroker) -> None:
    text = refusal(f"amqps://localhost:{tls_broker.port}/")
    assert "nothing speaks TLS at that port" in text
    text = refusal(f"amqp://localhost:{tls_broker.tls_port}/")
    assert "that port speaks TLS: use amqps://" in text


def test_an_expired_certificate_of_the_broker(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "certificates")
    files.issue("old", "broker", "localhost", days=(-9, -2))
    environment = files.environment(cert=files.path("old.pem"), key=files.path("old.key"))
    with LiveBroker(tmp_path / "data", environment=environment) as broker:
        assert "has expired at" in broker.log_text()
        text = refusal(url(broker, f"?cacertfile={files.path('ca.pem')}"))
        assert "its certificate has expired: the broker needs a new one" in text


def test_a_broker_that_wants_a_certificate(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "certificates")
    environment = files.environment(
        ca=files.path("ca.pem"), verify_peer="true", fail_if_no_peer_cert="true"
    )
    with LiveBroker(tmp_path / "data", environment=environment) as broker:
        text = refusal(url(broker, f"?cacertfile={files.path('ca.pem')}"))
        assert "give this client's certificate with certfile and keyfile" in text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("cacertfile=/missing.pem", "cacerts: given '/missing.pem'.*No such file"),
        ("certfile=/missing.pem", "certfile: given '/missing.pem, no keyfile'.*No such file"),
        ("keyfile=/missing.pem", "keyfile: .*the certificate of this key, too"),
    ],
)
def test_files_that_are_wrong(tls_broker: LiveBroker, query: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        connect(url(tls_broker, f"?{query}"))


def test_a_port_that_hangs_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        with pytest.raises(UnreachableError, match=r"too long|timed out"):
            connect(f"amqps://localhost:{server.getsockname()[1]}/?connection_timeout=0.2")
