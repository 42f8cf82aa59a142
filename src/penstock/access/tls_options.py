"""The options of TLS, [tls] in penstock.toml, and who a client with a certificate is.

TLS is on when there is a certificate. The ciphers are Mozilla's intermediate ones for TLS 1.2
(https://ssl-config.mozilla.org, guideline 5.7); those of TLS 1.3 are OpenSSL's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.errors import OptionError
from penstock.options import Option, choice, flag, names, or_word, text, whole

PORT_MAX: Final = 65535
INTERMEDIATE: Final = (
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
    "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305"
)
DISTINGUISHED_NAME: Final = "distinguished_name"
COMMON_NAME: Final = "common_name"
ALTERNATIVE_NAME: Final = "subject_alternative_name"
# Of the alternative names, by OpenSSL's words.
ALTERNATIVES: Final = {"dns": "DNS", "email": "email", "uri": "URI", "ip": "IP Address"}


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS_OPTIONS says what each is. port, http_port: None for off. OptionError: two contradict
    each other."""

    cert: str = ""
    key: str = ""
    port: int | None = 5671
    http_port: int | None = 15671
    ca: str = ""
    verify_peer: bool = False
    fail_if_no_peer_cert: bool = False
    more_certs: tuple[str, ...] = ()
    version_min: str = "1.2"
    ciphers: str = INTERMEDIATE
    login_from: str = DISTINGUISHED_NAME
    login_san_type: str = "dns"

    def __post_init__(self) -> None:
        if self.cert and not self.key:
            raise OptionError("cert", self.cert, "its private key, too: tls.key")
        if not self.cert and (self.key or self.more_certs or self.ca or self.verify_peer):
            raise OptionError(
                "key", self.key, "a certificate, too: tls.cert; without it TLS is off"
            )
        if self.verify_peer and not self.ca:
            expected = "tls.ca, the authorities that clients' certificates are of"
            raise OptionError("verify_peer", True, expected)
        if self.fail_if_no_peer_cert and not self.verify_peer:
            expected = "tls.verify_peer = true, too: without it no client is asked for one"
            raise OptionError("fail_if_no_peer_cert", True, expected)

    @property
    def is_on(self) -> bool:
        """Whether there is a certificate."""
        return bool(self.cert)


_PORT: Final = or_word(whole(0, PORT_MAX), "off")
TLS_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "cert", text("a PEM file"),
        "the broker's certificate and those between it and the authority, PEM; "
        "with it [TLS](../guides/tls.md) is on",
    ),
    Option("key", text("a PEM file"), "its private key, PEM, not encrypted"),
    Option("port", _PORT, "the port of AMQP over TLS; 0: a free one; `off`: none"),
    Option("http_port", _PORT, "the port of HTTPS; 0: a free one; `off`: none"),
    Option(
        "ca", text("a PEM file"),
        "authorities that clients' certificates are of, PEM; their lists of revoked certificates "
        "may be in it, too",
    ),
    Option("verify_peer", flag(), "ask clients for a certificate, and refuse a wrong one"),
    Option("fail_if_no_peer_cert", flag(), "refuse a client that has none, too"),
    Option(
        "more_certs", names(),
        "certificates for other host names, chosen by the name that the client asks for: PEM files "
        "that hold a certificate and its key",
    ),
    Option("version_min", choice("1.2", "1.3"), "the oldest version of TLS"),
    Option(
        "ciphers", text("ciphers in OpenSSL's words"),
        "ciphers of TLS 1.2 in OpenSSL's words; by default Mozilla's intermediate ones",
    ),
    Option(
        "login_from", choice(DISTINGUISHED_NAME, COMMON_NAME, ALTERNATIVE_NAME),
        "what of a client's certificate is the user's name, for EXTERNAL",
    ),
    Option(
        "login_san_type", choice(*ALTERNATIVES),
        "which alternative name, if it is one; the first of that type",
    ),
)  # fmt: skip

Certificate = Mapping[str, Any]  # as ssl.SSLSocket.getpeercert() returns it

# Attributes of names by OpenSSL's long names: RFC 4514, and what else RabbitMQ shortens.
_SHORT: Final = {
    "commonName": "CN", "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST",
    "organizationName": "O", "organizationalUnitName": "OU", "streetAddress": "STREET",
    "domainComponent": "DC", "userId": "UID", "surname": "SN", "serialNumber": "SERIALNUMBER",
    "title": "TITLE", "givenName": "GIVENNAME", "initials": "INITIALS", "name": "NAME",
    "pseudonym": "PSEUDONYM", "dnQualifier": "DNQUALIFIER", "emailAddress": "EMAIL",
    "generationQualifier": "GENERATIONQUALIFIER",
}  # fmt: skip


def distinguished_name(name: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """Return a name as RFC 4514 writes it, the most specific part first, as RabbitMQ does."""
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in part)
        for part in reversed(name)
    )


def _escaped(value: str) -> str:
    text = "".join(f"\\{c}" if c in ',+"\\<>;' else c for c in value)
    if text[:1] in ("#", " "):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if len(text) > 1 and text.endswith(" ") else text


def user_of(certificate: Certificate, options: TlsOptions) -> str:
    """Return the user's name that a verified certificate is for; "" if it has no such name."""
    if options.login_from == DISTINGUISHED_NAME:
        return distinguished_name(certificate.get("subject", ()))
    if options.login_from == COMMON_NAME:
        found = [v for part in certificate.get("subject", ()) for k, v in part if k == "commonName"]
        return ",".join(found)
    kind = ALTERNATIVES[options.login_san_type]
    return next((v for k, v in certificate.get("subjectAltName", ()) if k == kind), "")
