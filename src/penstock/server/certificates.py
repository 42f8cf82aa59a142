"""Certificates: the broker's certificates as Python's ssl has them, and their reload.

`Certificates` reads the files of [tls] and makes contexts of them. `context` is that of the next
handshake; it asks for the certificate of the host name that the client wants (SNI): that of
`more_certs` which has the name, also by a wildcard, else `cert`.

A reload makes everything again from the files, so what was taken out of `ca`, or put into a list of
revoked certificates there, counts for the next handshake; connections that are open stay open.
If a file is wrong, the reload raises OptionError and nothing changes.

No session is resumed across a reload, because the keys of tickets belong to a context. A resumed
session keeps the client's certificate that was checked when the session began.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.access.tls_options import TlsOptions, distinguished_name, user_of
from penstock.clock import date
from penstock.errors import OptionError
from penstock.storage.files.filesystem import FileSystem

EXPIRES_SOON_MS: Final = 30 * 86_400_000
ALPN_HTTP: Final = ("http/1.1",)
VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
# OpenSSL's words for a key of another certificate: of the same kind, of another kind.
WRONG_KEY: Final = ("KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
REVOKED: Final = b"BEGIN X509 CRL"


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """Facts of one certificate of the broker. names: its host names and addresses."""

    file: str
    names: tuple[str, ...]
    expires_ms: int

    def warning(self, now_ms: int) -> str:
        """Return a warning if it has expired, or will within 30 days; else ""."""
        if now_ms >= self.expires_ms:
            return f"the certificate {self.file} has expired at {date(self.expires_ms)}"
        if now_ms >= self.expires_ms - EXPIRES_SOON_MS:
            hours = (self.expires_ms - now_ms) // 3_600_000
            left = f"{hours // 24} days" if hours >= 48 else f"{hours} hours"
            return f"the certificate {self.file} expires in {left}, at {date(self.expires_ms)}"
        return ""


class Certificates:
    """The certificates of the options. context: for the next handshake. facts: of each certificate.
    keylog: a path to which OpenSSL writes the secrets of handshakes, "" for none. Raises
    OptionError if a file is missing or wrong."""

    context: ssl.SSLContext
    facts: tuple[CertificateFacts, ...]

    def __init__(self, options: TlsOptions, fs: FileSystem, keylog: str = "") -> None:
        self._options = options
        self._keylog = keylog
        self._fs = fs
        self._read: tuple[bytes, ...] = ()
        self.reload()

    def has_changed(self) -> bool:
        """Return whether a file has other contents than at the last reload, or cannot be read."""
        try:
            return self._contents() != self._read
        except OptionError:
            return True

    def reload(self) -> None:
        """Make everything again from the files. Raises OptionError, and keeps what was there."""
        options = self._options
        contents = self._contents()
        # A wrong file is reported once: what was read counts as seen, whether it is right or not.
        self._read = contents
        main, facts = self._made("tls.cert", options.cert, "tls.key", options.key)
        others: dict[str, ssl.SSLContext] = {}
        found = [facts]
        for path in options.more_certs:
            context, facts = self._made("tls.more_certs", path, "tls.more_certs", path)
            found.append(facts)
            for name in facts.names:
                others.setdefault(name.lower(), context)

        def choose(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
            context = others.get(name.lower()) if name else None
            if context is None and name:
                context = others.get(f"*.{name.lower().partition('.')[2]}")
            if context is not None:
                tls.context = context

        if others:
            main.sni_callback = choose
        self.context, self.facts = main, tuple(found)

    def _contents(self) -> tuple[bytes, ...]:
        options = self._options
        files = [("tls.cert", options.cert), ("tls.key", options.key)]
        files += [("tls.more_certs", path) for path in options.more_certs]
        if options.ca:
            files.append(("tls.ca", options.ca))
        contents = []
        for place, path in files:
            try:
                contents.append(self._fs.read(path))
            except OSError as error:
                raise OptionError(place, path, f"a PEM file ({error.strerror})") from None
        return tuple(contents)

    def _made(
        self, cert_place: str, cert: str, key_place: str, key: str
    ) -> tuple[ssl.SSLContext, CertificateFacts]:
        options = self._options
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = VERSIONS[options.version_min]
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(list(ALPN_HTTP))
        if self._keylog:
            context.keylog_filename = self._keylog
        try:
            context.set_ciphers(options.ciphers)
        except ssl.SSLError:
            raise OptionError("tls.ciphers", options.ciphers, "ciphers that OpenSSL has") from None
        facts = _facts(cert_place, cert)
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except ssl.SSLError as error:
            expected = "a PEM file with a private key that is not encrypted"
            if error.reason in WRONG_KEY:
                expected = f"the private key that belongs to {cert}"
            raise OptionError(key_place, key, expected) from None
        except (OSError, ValueError) as error:
            raise OptionError(key_place, key, f"a private key ({error})") from None
        if options.verify_peer:
            self._verify(context)
        return context, facts

    def _verify(self, context: ssl.SSLContext) -> None:
        options = self._options
        try:
            context.load_verify_locations(options.ca)
        except OSError:
            expected = "a PEM file with the certificates of authorities"
            raise OptionError("tls.ca", options.ca, expected) from None
        if REVOKED in self._read[-1]:
            context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        is_needed = options.fail_if_no_peer_cert
        context.verify_mode = ssl.CERT_REQUIRED if is_needed else ssl.CERT_OPTIONAL


def _no_password() -> str:
    """Return no password for an encrypted key: without this OpenSSL would ask on the terminal."""
    return ""


def _facts(place: str, path: str) -> CertificateFacts:
    """Return the facts of the first certificate in a file."""
    try:
        # The only way of the standard library to read a certificate that is not a peer's.
        found = ssl._ssl._test_decode_cert(path)  # type: ignore[attr-defined]
    except OSError:
        raise OptionError(place, path, "a PEM file with a certificate") from None
    names = tuple(name for kind, name in found.get("subjectAltName", ()))
    expires_ms = int(ssl.cert_time_to_seconds(found["notAfter"]) * 1000)
    return CertificateFacts(path, names, expires_ms)


def tls_facts(tls: ssl.SSLObject, options: TlsOptions) -> dict[str, Any]:
    """Return the facts of a connection after its handshake: version, cipher, and of a verified
    certificate its subject, issuer, validity and user ("": no such name)."""
    cipher = tls.cipher()
    peer: Mapping[str, Any] | None = tls.getpeercert()
    facts: dict[str, Any] = {
        "version": (tls.version() or "").lower(),
        "cipher": cipher[0] if cipher else "",
    }
    if peer:
        facts["subject"] = distinguished_name(peer.get("subject", ()))
        facts["issuer"] = distinguished_name(peer.get("issuer", ()))
        facts["validity"] = f"{peer['notBefore']} - {peer['notAfter']}"
        facts["user"] = user_of(peer, options)
    return facts
