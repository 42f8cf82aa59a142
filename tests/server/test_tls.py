"""AMQP and HTTP over TLS, with real clients against a broker that really runs."""

import os
import signal
import socket
import ssl
import struct
import urllib.request
from pathlib import Path

import pika
import pytest

from penstock.codec.frames import PROTOCOL_HEADER
from tests.helpers.live_broker import LiveBroker, memory_bytes, wait_until
from tests.helpers.tls_files import TlsFiles

# Of 1.2 the process of TLS passes the bytes on, of 1.3 it hands the socket over.
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def own_broker(tmp_path: Path, environment: dict[str, str], *options: str) -> LiveBroker:
    return LiveBroker(tmp_path / "data", *options, environment=environment)


def pika_connection(
    broker: LiveBroker, context: ssl.SSLContext, credentials: object = None
) -> pika.BlockingConnection:
    more = {"credentials": credentials} if credentials else {}
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "localhost", broker.tls_port, ssl_options=pika.SSLOptions(context, "localhost"), **more
        )
    )


def tls_socket(port: int, context: ssl.SSLContext, host: str = "localhost") -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", port))
    try:
        return context.wrap_socket(sock, server_hostname=host, suppress_ragged_eofs=False)
    except BaseException:
        sock.close()
        raise


def greeted(port: int, context: ssl.SSLContext, host: str = "localhost") -> tuple[str, str]:
    """Return the version and cipher of a connection that got connection.start."""
    with tls_socket(port, context, host) as sock:
        sock.sendall(PROTOCOL_HEADER)
        assert sock.recv(1)  # in TLS 1.3 a client hears only here that it was refused
        return str(sock.version()), str(sock.cipher()[0])  # type: ignore[index]


def read_to_the_end(sock: ssl.SSLSocket) -> bytes:
    """Return what comes up to close_notify. Raises SSLEOFError without it."""
    found = b""
    while piece := sock.recv(4096):
        found += piece
    return found


# ---- protocols and ciphers -----------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_tls_1_2_and_1_3_are_spoken(
    tls_broker: LiveBroker, tls_files: TlsFiles, version: ssl.TLSVersion
) -> None:
    context = tls_files.client(version=version)
    assert (
        greeted(tls_broker.tls_port, context)[0]
        == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
    )


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
def test_tls_1_1_is_refused(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    context = tls_files.client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
        tls_socket(tls_broker.tls_port, context)
    wait_until(lambda: "TLS handshake failed: unsupported protocol" in tls_broker.log_text())


def test_a_cipher_that_mozilla_does_not_list_is_refused(
    tls_broker: LiveBroker, tls_files: TlsFiles
) -> None:
    context = tls_files.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES256-SHA384")
    with pytest.raises(ssl.SSLError, match="handshake failure"):
        tls_socket(tls_broker.tls_port, context)
    context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    assert greeted(tls_broker.tls_port, context)[1] == "ECDHE-ECDSA-AES128-GCM-SHA256"


def test_only_tls_1_3_by_an_option(tls_files: TlsFiles, tmp_path: Path) -> None:
    with own_broker(tmp_path, tls_files.environment(version_min="1.3")) as broker:
        context = tls_files.client()
        assert greeted(broker.tls_port, context)[0] == "TLSv1.3"
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match=r"(?i)protocol"):
            tls_socket(broker.tls_port, context)


def test_a_client_refuses_a_name_that_the_certificate_has_not(
    tls_broker: LiveBroker, tls_files: TlsFiles
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        tls_socket(tls_broker.tls_port, tls_files.client(), "other.example")


def test_what_speaks_no_tls_is_logged_and_dropped(tls_broker: LiveBroker) -> None:
    with socket.create_connection(("127.0.0.1", tls_broker.tls_port)) as sock:
        sock.sendall(PROTOCOL_HEADER)
        assert sock.recv(64) == bytes.fromhex("15030100020246")  # TLS's "protocol version"
        assert sock.recv(64) == b""
    wait_until(lambda: "no TLS: it began with b'AMQP" in tls_broker.log_text())


# ---- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_64_mib_go_both_ways(
    tls_broker: LiveBroker, tls_files: TlsFiles, version: ssl.TLSVersion
) -> None:
    body = os.urandom(1 << 20) * 64
    connection = pika_connection(tls_broker, tls_files.client(version=version))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("large", durable=True)
    channel.basic_publish("", "large", body)
    assert channel.basic_get("large", auto_ack=True)[2] == body
    channel.queue_delete("large")
    connection.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reader_that_is_slow_gets_all_and_the_pump_keeps_little(
    tls_broker: LiveBroker, tls_files: TlsFiles, version: ssl.TLSVersion
) -> None:
    pid = tls_broker.control("status")["tls"]["pid"]
    publisher = pika_connection(tls_broker, tls_files.client(version=version)).channel()
    publisher.confirm_delivery()
    publisher.queue_declare("slow", durable=True)
    body = os.urandom(1 << 20)
    for _ in range(64):
        publisher.basic_publish("", "slow", body)
    before = memory_bytes(pid, "VmRSS")
    reader = pika_connection(tls_broker, tls_files.client(version=version)).channel()
    consumed = reader.consume("slow", auto_ack=True)
    next(consumed)  # now nothing is read until the next one is asked for
    publisher.basic_publish("", "slow", body)
    assert memory_bytes(pid, "VmRSS") - before < 8 << 20
    for _ in range(64):
        assert next(consumed)[2] == body
    publisher.queue_delete("slow")
    reader.connection.close()
    publisher.connection.close()


def test_facts_of_tls_stand_in_list_connections(
    tls_broker: LiveBroker, tls_files: TlsFiles
) -> None:
    connection = pika_connection(tls_broker, tls_files.client("client"))
    plain = pika.BlockingConnection(pika.URLParameters(tls_broker.url))
    rows = {row["ssl"]: row for row in tls_broker.control("list_connections")}
    row = rows[True]
    assert (row["ssl_protocol"], row["peer_cert_subject"]) == ("tlsv1.3", "CN=guest")
    assert row["ssl_cipher"].startswith("TLS_")
    assert row["peer_cert_issuer"].startswith("CN=Penstock")
    assert row["peer_cert_validity"].count(" GMT") == 2
    sock = connection._impl._transport._sock  # type: ignore[attr-defined]
    assert (row["peer_port"], row["port"]) == (sock.getsockname()[1], tls_broker.tls_port)
    assert (rows[False]["ssl_protocol"], rows[False]["peer_cert_subject"]) == ("", "")
    connection.close()
    plain.close()


def test_https_answers_and_knows_its_client(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    url = f"https://localhost:{tls_broker.https_port}/health"
    with urllib.request.urlopen(url, context=tls_files.client()) as answer:
        assert answer.status == 200


# ---- who the client is ---------------------------------------------------------------------------


def test_external_logs_in_by_the_common_name(tls_broker: LiveBroker, tls_files: TlsFiles) -> None:
    external = pika.credentials.ExternalCredentials()
    connection = pika_connection(tls_broker, tls_files.client("client"), external)
    assert [row["user"] for row in tls_broker.control("list_connections")] == ["guest"]
    connection.close()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        # Not offered without a certificate.
        pika_connection(tls_broker, tls_files.client(), external)
    tls_files.issue("unknown", "nobody-knows")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika_connection(tls_broker, tls_files.client("unknown"), external)
    wait_until(lambda: "user 'nobody-knows' - there is no such user" in tls_broker.log_text())


def test_a_certificate_that_has_expired_or_is_of_another_authority_is_refused(
    tls_broker: LiveBroker, tls_files: TlsFiles, tmp_path: Path
) -> None:
    tls_files.issue("expired", "guest", days=(-10, -1))
    with pytest.raises((ssl.SSLError, ConnectionError), match="expired"):
        greeted(tls_broker.tls_port, tls_files.client("expired"))
    wait_until(lambda: "certificate has expired" in tls_broker.log_text())
    other = TlsFiles(tmp_path / "other")
    context = tls_files.client()
    context.load_cert_chain(other.path("client.pem"), other.path("client.key"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        greeted(tls_broker.tls_port, context)


def test_without_a_certificate_where_one_is_needed(tls_files: TlsFiles, tmp_path: Path) -> None:
    environment = tls_files.environment(
        ca=tls_files.path("ca.pem"), verify_peer="true", fail_if_no_peer_cert="true"
    )
    with own_broker(tmp_path, environment) as broker:
        assert greeted(broker.tls_port, tls_files.client("client"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            greeted(broker.tls_port, tls_files.client())
        wait_until(lambda: "peer did not return a certificate" in broker.log_text())


# ---- reload --------------------------------------------------------------------------------------


def test_a_certificate_is_revoked_by_a_reload(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "certificates")
    environment = files.environment(ca=files.path("ca.pem"), verify_peer="true")
    with own_broker(tmp_path, environment) as broker:
        before = pika_connection(broker, files.client("client"))
        files.revoke("client")
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: "were read again" in broker.log_text())
        with pytest.raises((ssl.SSLError, ConnectionError), match="revoked"):
            greeted(broker.tls_port, files.client("client"))
        files.issue("second", "guest")
        assert greeted(broker.tls_port, files.client("second"))
        before.channel()  # what was open stays open
        before.close()


def test_new_files_are_taken_and_broken_ones_are_not(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "certificates")
    with own_broker(tmp_path, files.environment()) as broker:
        files.replace("server", "broker", "localhost", "new.example")
        wait_until(lambda: "were read again" in broker.log_text())
        assert greeted(broker.tls_port, files.client(), "new.example")
        files.path("server.key").write_bytes(b"broken")
        wait_until(lambda: "the certificates are not replaced" in broker.log_text())
        assert greeted(broker.tls_port, files.client(), "new.example")


def test_the_certificate_is_that_of_the_name_that_is_asked_for(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "certificates")
    for name in ("a.example", "*.b.example"):
        files.issue("more", name)
        text = files.path("more.pem").read_bytes() + files.path("more.key").read_bytes()
        files.path(f"{name[-9:]}.both").write_bytes(text)
    more = ",".join(str(files.path(f"{name}.both")) for name in ("a.example", "b.example"))
    with own_broker(tmp_path, files.environment(more_certs=more)) as broker:
        for host in ("localhost", "a.example", "x.b.example"):
            assert greeted(broker.tls_port, files.client(), host)
        with pytest.raises(ssl.SSLCertVerificationError):
            greeted(broker.tls_port, files.client(), "c.example")


def test_a_certificate_that_expires_soon_is_reported(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "certificates")
    files.issue("soon", "broker", "localhost", days=(-1, 7))
    environment = files.environment(cert=files.path("soon.pem"), key=files.path("soon.key"))
    with own_broker(tmp_path, environment) as broker:
        assert "soon.pem expires in" in broker.log_text()
        status = wait_until(lambda: broker.control("status")["tls"]["warnings"])
        assert "soon.pem expires in" in status[0]


# ---- clients that misbehave ----------------------------------------------------------------------


def test_half_open_handshakes_are_bounded_and_delay_nobody(
    tls_files: TlsFiles, tmp_path: Path
) -> None:
    environment = tls_files.environment() | {"PENSTOCK_HALF_OPEN_MAX": "20"}
    with own_broker(tmp_path, environment) as broker:
        silent = [socket.create_connection(("127.0.0.1", broker.tls_port)) for _ in range(60)]
        for sock in silent:
            sock.sendall(b"\x16\x03\x01")  # the beginning of a record
        assert greeted(broker.tls_port, tls_files.client())
        # The last client took the place of one.
        wait_until(lambda: broker.control("status")["tls"]["half_open"] == 19)
        for sock in silent:
            sock.close()
        wait_until(lambda: broker.control("status")["tls"]["half_open"] == 0)


def test_handshakes_end_by_their_time(tls_files: TlsFiles, tmp_path: Path) -> None:
    environment = tls_files.environment() | {"PENSTOCK_HANDSHAKE_TIMEOUT": "0.2"}
    with own_broker(tmp_path, environment) as broker:
        with socket.create_connection(("127.0.0.1", broker.tls_port)) as sock:
            assert sock.recv(1) == b""
        assert "handshake timeout" in broker.log_text()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_client_that_leaves_in_the_middle_of_a_message(
    tls_broker: LiveBroker, tls_files: TlsFiles, is_reset: bool, version: ssl.TLSVersion
) -> None:
    wait_until(lambda: tls_broker.control("status")["connections"] == 0)
    connection = pika_connection(tls_broker, tls_files.client(version=version))
    connection.channel()
    sock = connection._impl._transport._sock  # type: ignore[attr-defined]
    sock.sendall(b"\x03\0\x01\0\0\x10\0" + b"x" * 100)  # a part of a frame
    if is_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(sock.detach())  # without close_notify
    connection._impl.ioloop.close()  # type: ignore[attr-defined]
    wait_until(lambda: tls_broker.control("status")["connections"] == 0)
    wait_until(lambda: tls_broker.control("status")["tls"]["connections"] == 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_wrong_bytes_end_one_connection_only(
    tls_broker: LiveBroker, tls_files: TlsFiles, version: ssl.TLSVersion
) -> None:
    other = pika_connection(tls_broker, tls_files.client())
    with tls_socket(tls_broker.tls_port, tls_files.client(version=version)) as sock:
        sock.sendall(PROTOCOL_HEADER)
        assert sock.recv(1)
        with socket.socket(fileno=os.dup(sock.fileno())) as raw:
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
        with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
            read_to_the_end(sock)
    connection = pika_connection(tls_broker, tls_files.client(version=version))
    tls = connection._impl._transport._sock  # type: ignore[attr-defined]
    with socket.socket(fileno=os.dup(tls.fileno())) as raw:
        raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(pika.exceptions.AMQPError):
        connection.channel()
    assert other.channel().is_open
    other.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_close_notify_is_answered_with_the_last_words(
    tls_broker: LiveBroker, tls_files: TlsFiles, version: ssl.TLSVersion
) -> None:
    """A wrong protocol header is answered with ours, then close_notify and the end of file."""
    with tls_socket(tls_broker.tls_port, tls_files.client(version=version)) as sock:
        sock.sendall(b"HTTP/1.1")
        assert read_to_the_end(sock) == PROTOCOL_HEADER


@pytest.mark.parametrize("size", [10, 40])
def test_a_client_that_sends_all_at_once(
    tls_broker: LiveBroker, tls_files: TlsFiles, size: int
) -> None:
    """The last message of its handshake and its first data come in one piece, and in pieces that
    end within a record."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = tls_files.client().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", tls_broker.tls_port)) as sock:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(65536))
        tls.write(PROTOCOL_HEADER[:3])
        tls.write(PROTOCOL_HEADER[3:])
        data = outgoing.read()
        sock.sendall(data[:-size])
        sock.sendall(data[-size:])
        found = b""
        while not found:
            incoming.write(sock.recv(65536))
            try:
                found = tls.read(65536)
            except ssl.SSLWantReadError:
                pass
        assert found.startswith(b"\1\0\0")


# ---- processes -----------------------------------------------------------------------------------


def test_the_process_of_tls_starts_again_and_others_go_on(
    tls_files: TlsFiles, tmp_path: Path
) -> None:
    with own_broker(tmp_path, tls_files.environment()) as broker:
        plain = pika.BlockingConnection(pika.URLParameters(broker.url))
        passed_on, handed_over = (
            pika_connection(broker, tls_files.client(version=version)) for version in VERSIONS
        )
        wait_until(lambda: broker.control("status")["tls"]["connections"] == 1)
        os.kill(broker.control("status")["tls"]["pid"], signal.SIGKILL)
        wait_until(lambda: broker.control("status")["tls"]["restarts"] == 1)
        with pytest.raises(pika.exceptions.AMQPError):
            passed_on.channel()
        wait_until(lambda: broker.control("status")["connections"] == 2)
        assert handed_over.channel().is_open
        handed_over.close()
        assert greeted(broker.tls_port, tls_files.client())
        assert plain.channel().is_open
        plain.close()
        assert broker.stop() == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stop_reaches_clients_of_tls(
    tls_files: TlsFiles, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    with own_broker(tmp_path, tls_files.environment()) as broker:
        connection = pika_connection(broker, tls_files.client(version=version))
        assert broker.process is not None
        broker.process.terminate()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="shutdown"):
            wait_until(lambda: connection.process_data_events(1))
        assert broker.process.wait(60) == 0


def test_plain_listeners_may_be_off(tls_files: TlsFiles, tmp_path: Path) -> None:
    environment = tls_files.environment()
    with own_broker(tmp_path, environment, "--port", "off", "--http-port", "off") as broker:
        assert " amqp://" not in broker.ready_line
        assert greeted(broker.tls_port, tls_files.client())
        assert broker.control("status")["port"] is None
        url = f"https://localhost:{broker.https_port}/health"
        broker.control("await_startup")
        with urllib.request.urlopen(url, context=tls_files.client()) as answer:
            assert answer.status == 200


# ---- the PROXY protocol --------------------------------------------------------------------------


def test_a_proxy_says_whom_it_connects_for(tls_files: TlsFiles, tmp_path: Path) -> None:
    """With proxy_protocol_from, its header is read before anything else."""
    environment = tls_files.environment() | {"PENSTOCK_PROXY_PROTOCOL_FROM": "127.0.0.0/8"}
    with own_broker(tmp_path, environment) as broker:
        header = b"PROXY TCP4 192.0.2.7 192.0.2.9 40000 5671\r\n"
        for port, context in ((broker.port, None), (broker.tls_port, tls_files.client())):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(header)
            if context is not None:
                sock = context.wrap_socket(sock, server_hostname="localhost")
            sock.sendall(b"AMQP\1\0\0\0")
            assert sock.recv(64) == PROTOCOL_HEADER
            sock.close()
            text = "connection 192.0.2.7:40000 -> 192.0.2.9:5671 dropped: not AMQP 0-9-1"
            wait_until(lambda text=text: text in broker.log_text())
        for port in (broker.port, broker.tls_port):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert sock.recv(64) == b""
        wait_until(lambda: broker.log_text().count("no PROXY header: it began with b'GET /") == 2)


def http_status(sock: socket.socket) -> int:
    """Send a request of guest, and return the status of the answer."""
    sock.sendall(
        b"GET /api/streams/%2F HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
    )
    answer = b""
    while piece := sock.recv(4096):
        answer += piece
    return int(answer.split()[1]) if answer else 0


def test_a_proxy_of_http_says_whom_it_connects_for(tls_files: TlsFiles, tmp_path: Path) -> None:
    """With http_proxy_protocol_from. guest may log in from this machine only."""
    environment = tls_files.environment() | {"PENSTOCK_HTTP_PROXY_PROTOCOL_FROM": "127.0.0.1"}
    with LiveBroker(tmp_path / "data", environment=environment, has_http=True) as broker:
        broker.control("await_startup")
        for host, status in (("127.0.0.7", 200), ("192.0.2.7", 401)):
            header = f"PROXY TCP4 {host} 192.0.2.9 40000 15672\r\n".encode()
            for port, context in (
                (broker.http_port, None),
                (broker.https_port, tls_files.client()),
            ):
                sock = socket.create_connection(("127.0.0.1", port))
                sock.sendall(header)
                if context is not None:
                    sock = context.wrap_socket(sock, server_hostname="localhost")
                assert http_status(sock) == status, (host, port)
                sock.close()
        for port in (broker.http_port, broker.https_port):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                assert http_status(sock) == 0
        wait_until(lambda: broker.log_text().count("no PROXY header: it began with b'GET /") == 2)
        # Others have no header, and AMQP has an option of its own.
        with socket.create_connection(
            ("127.0.0.1", broker.http_port), source_address=("127.0.0.2", 0)
        ) as sock:
            assert http_status(sock) == 200
        assert greeted(broker.tls_port, tls_files.client())
