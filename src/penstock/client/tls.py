"""TLS of clients: the context that a URL asks for, connections with it, and errors in words.

The broker's certificate is checked against the system's authorities, or those of `cacerts`, and
against the host name of the URL.
"""

import socket
import ssl
import threading
from typing import TYPE_CHECKING, Final

from penstock.amqp_url import TlsTrust
from penstock.errors import OptionError

if TYPE_CHECKING:
    from http.client import HTTPConnection

PLAIN_HINT: Final = "nothing speaks TLS at that port: use the port of TLS, or a URL without the s"
TLS_HINT: Final = "that port speaks TLS: use amqps:// or https://"
OWN_HINT: Final = "give this client's certificate with certfile and keyfile"
# Reasons of OpenSSL: what they mean and what to do.
REASONS: Final = {
    "WRONG_VERSION_NUMBER": PLAIN_HINT,
    "RECORD_LAYER_FAILURE": PLAIN_HINT,
    "UNEXPECTED_EOF_WHILE_READING": "it closed in the middle of TLS: does that port speak TLS?",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": f"the broker wants a certificate: {OWN_HINT}",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the broker has no cipher that this client has, or wants a "
    f"certificate: {OWN_HINT}",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not know the authority of this client's "
    "certificate: see tls.ca there",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this client's certificate has expired: renew it",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "this client's certificate is revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the broker refuses this client's certificate: its log says why",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the broker does not speak that version of TLS",
    "UNSUPPORTED_PROTOCOL": "the broker speaks an older version of TLS than 1.2 only",
}
EXPIRED: Final = 10
NOT_YET_VALID: Final = 9
NO_ISSUER: Final = (2, 18, 19, 20, 21)
WRONG_HOST: Final = (62, 64)


def client_context(trust: TlsTrust) -> ssl.SSLContext:
    """Return the context of a client. Raises OptionError if a file is wrong."""
    try:
        context = ssl.create_default_context(cafile=trust.cacerts or None)
    except (OSError, ValueError) as error:
        expected = f"a PEM file with certificates of authorities ({_words(error)})"
        raise OptionError("cacerts", trust.cacerts, expected) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not trust.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if trust.certfile:
        try:
            context.load_cert_chain(trust.certfile, trust.keyfile or None, password=_no_password)
        except (OSError, ValueError) as error:
            given = f"{trust.certfile}, {trust.keyfile or 'no keyfile'}"
            expected = f"PEM files of a certificate and its key, not encrypted ({_words(error)})"
            raise OptionError("certfile", given, expected) from None
    elif trust.keyfile:
        raise OptionError("keyfile", trust.keyfile, "the certificate of this key, too: certfile")
    return context


def http_connection(
    host: str, port: int | None, trust: TlsTrust | None, timeout_s: float
) -> "HTTPConnection":
    """Return a connection for HTTP, or for HTTPS with this trust; it connects when it is first
    used."""
    from http.client import HTTPConnection, HTTPSConnection  # AMQP needs none of it

    if trust is None:
        return HTTPConnection(host, port, timeout=timeout_s)
    return HTTPSConnection(host, port, timeout=timeout_s, context=client_context(trust))


def _no_password() -> str:
    """Return no password for an encrypted key: without this OpenSSL would ask on the terminal."""
    return ""


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "no PEM").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)


def tls_reason(error: ssl.SSLError) -> str:
    """Return what is wrong with a TLS connection, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = error.verify_code
        if code == EXPIRED:
            return "its certificate has expired: the broker needs a new one"
        if code == NOT_YET_VALID:
            return "its certificate is not valid yet: are the clocks right?"
        if code in NO_ISSUER:
            return (
                "its certificate is of an authority that is not trusted here: name that "
                "authority's PEM file as cacerts, in a URL with ?cacertfile= "
                f"({error.verify_message})"
            )
        if code in WRONG_HOST:
            return (
                f"{error.verify_message.strip('. ')}: use a host name of the certificate, in the "
                "URL or as server_name_indication"
            )
        return f"its certificate is refused: {error.verify_message}"
    return REASONS.get(error.reason or "", str(error))


class TlsSocket:
    """A connection over TLS with the calls of a socket that Wire needs, for two threads: one may
    send while the other receives. sock: connected. Raises ssl.SSLError and OSError."""

    def __init__(self, sock: socket.socket, host: str, trust: TlsTrust) -> None:
        context = client_context(trust)
        self._sock = context.wrap_socket(sock, server_hostname=trust.server_name or host)
        self._lock = threading.Lock()  # OpenSSL's state is for one thread at a time

    def settimeout(self, seconds: float | None) -> None:
        self._sock.settimeout(seconds)

    def setblocking(self, is_blocking: bool) -> None:
        self._sock.setblocking(is_blocking)

    def fileno(self) -> int:
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        socket.socket.shutdown(self._sock, how)  # SSLSocket's would read on without TLS

    def close(self) -> None:
        self._sock.close()

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(data)

    def send(self, data: bytes | memoryview) -> int:
        """Send a part. Raises BlockingIOError if the socket takes nothing now."""
        with self._lock:
            try:
                return self._sock.send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None

    def recv(self, size: int) -> bytes:
        """Return what came, b"" at the end; a little more than `size` if it is decrypted already,
        because a selector does not see that. Raises BlockingIOError if nothing came."""
        with self._lock:
            try:
                data = self._sock.recv(size)
                while n := self._sock.pending():
                    data += self._sock.recv(n)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise BlockingIOError from None
            except ssl.SSLEOFError:
                return b""
            return data
