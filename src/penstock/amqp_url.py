"""AmqpUrl: where a broker is, and as whom to log in.

    amqp://user:password@host:5672/vhost?heartbeat=30&connection_timeout=10
    amqps://user:password@host:5671/vhost?cacertfile=ca.pem&certfile=c.pem&keyfile=c.key

The format is that of RabbitMQ's URI specification: every part may be left out, and characters with
a meaning are percent-escaped. Without a path the vhost is "/"; "amqp://host/" names the vhost "",
which no broker has, and means "/" too, as in most clients. Nothing else is guessed: an unknown
parameter or an invalid number is an OptionError. amqps is AMQP over TLS; its parameters are
RabbitMQ's, and `verify=verify_none` leaves the broker's certificate unchecked.

Without a URL that of the environment variable PENSTOCK_URL is used, then AMQP_URL, then localhost.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import OptionError
from penstock.options import Kind, check_known, choice, seconds, text, value_of, whole

PORT: Final = 5672
TLS_PORT: Final = 5671
SCHEMES: Final = ("amqp://", "amqps://")
DEFAULT: Final = "amqp://guest:guest@localhost:5672/"
VARIABLES: Final = ("PENSTOCK_URL", "AMQP_URL")
EXPECTED: Final = "amqp://user:password@host:port/vhost"
ESCAPED: Final = "with / in a password as %2F, @ as %40, : as %3A"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/*")
LIKE_A_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
VERIFY_NONE: Final = "verify_none"
EXTERNAL: Final = "external"
TLS_PARAMETERS: Final[Mapping[str, Kind]] = {
    "cacertfile": text("a PEM file"),
    "certfile": text("a PEM file"),
    "keyfile": text("a PEM file"),
    "verify": choice("verify_peer", VERIFY_NONE),
    "server_name_indication": text("a host name"),
    "auth_mechanism": choice("plain", EXTERNAL),
}
PARAMETERS: Final[Mapping[str, Kind]] = {
    "heartbeat": whole(0, 65535),
    "connection_timeout": seconds(3600),
    "channel_max": whole(0, 65535),
    "frame_max": whole(0, 1 << 31),
    "name": Kind("text", str),
    **TLS_PARAMETERS,
}


@dataclass(frozen=True, slots=True)
class TlsTrust:
    """Whom a client over TLS trusts, and who it is. cacerts: PEM file of authorities, "" for the
    system's. certfile, keyfile: of the client, "" for none. verify: whether the broker's
    certificate is checked. server_name: in its certificate, "" for the host of the URL."""

    cacerts: str = ""
    certfile: str = ""
    keyfile: str = ""
    verify: bool = True
    server_name: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "TlsTrust":
        """Return that of the checked parameters of a URL."""
        return cls(
            values.get("cacertfile", ""), values.get("certfile", ""), values.get("keyfile", ""),
            values.get("verify") != VERIFY_NONE, values.get("server_name_indication", ""),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AmqpUrl:
    """The parts of a URL. heartbeat_s: None for what the broker proposes, 0 for none. channel_max,
    frame_max: upper limits, 0 for what the broker allows. name: of the connection, as the broker
    lists it. tls: None for plain AMQP. is_external: log in as the user of the certificate."""

    host: str = "localhost"
    port: int = PORT
    user: str = "guest"
    password: str = field(default="guest", repr=False)  # every broker's, for its own host only
    vhost: str = "/"
    heartbeat_s: int | None = None
    connection_timeout_s: float = 10.0
    channel_max: int = 0
    frame_max: int = 0
    name: str = ""
    tls: TlsTrust | None = None
    is_external: bool = False

    @classmethod
    def parse(cls, text: str) -> "AmqpUrl":
        """Parse a URL. OptionError says what is wrong with it, without the password."""
        is_tls = text.startswith("amqps://")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:  # the error's text may hold a part of the password
            raise OptionError("url", without_password(text), f"{EXPECTED}, {ESCAPED}") from None
        if not text.startswith(SCHEMES) or parts.fragment:
            raise OptionError("url", without_password(text), EXPECTED)
        values = parameters(parts.query)
        for name in TLS_PARAMETERS if not is_tls else ():
            if name in values:
                raise OptionError(name, values[name], "amqps:// with it")
        vhost = unquote(parts.path[1:]) or "/"
        if len(vhost.encode()) > 255:
            raise OptionError("vhost", vhost, "at most 255 bytes")
        return cls(
            host=unquote(parts.hostname or "localhost"),
            port=port or (TLS_PORT if is_tls else PORT),
            user="guest" if parts.username is None else unquote(parts.username),
            password="guest" if parts.password is None else unquote(parts.password),
            vhost=vhost,
            heartbeat_s=values.get("heartbeat"),
            connection_timeout_s=values.get("connection_timeout", 10.0),
            channel_max=values.get("channel_max", 0),
            frame_max=values.get("frame_max", 0),
            name=values.get("name", ""),
            tls=TlsTrust.of(values) if is_tls else None,
            is_external=values.get("auth_mechanism") == EXTERNAL,
        )

    @classmethod
    def of(cls, given: "str | AmqpUrl | None", environment: Mapping[str, str]) -> "AmqpUrl":
        """Return the given URL, or that of the environment, or that of the broker on this host."""
        if isinstance(given, AmqpUrl):
            return given
        return cls.parse(url_of(environment) if given is None else given)

    def with_tls(self, **given: Any) -> "AmqpUrl":
        """Return this URL with fields of TlsTrust that are given, not None. Raises OptionError for
        one of plain AMQP."""
        found = {name: value for name, value in given.items() if value is not None}
        for name, value in found.items():
            if self.tls is None:
                raise OptionError(name, value, f"amqps:// with it, not {self}")
        return replace(self, tls=replace(self.tls, **found)) if self.tls is not None else self

    def __str__(self) -> str:
        """Return the URL without the password, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        vhost = "" if self.vhost == "/" else self.vhost
        scheme = "amqp" if self.tls is None else "amqps"
        return f"{scheme}://{self.user}@{host}:{self.port}/{vhost}"


def url_of(environment: Mapping[str, str]) -> str:
    """Return the URL in the environment, or that of the broker on this host."""
    return next((environment[name] for name in VARIABLES if environment.get(name)), DEFAULT)


def without_password(text: str) -> str:
    """Return the text of a URL, right or wrong, with *** for all before its last @."""
    if "@" not in text:
        return text
    scheme = _SCHEME.match(text)
    return f"{scheme[0] if scheme else ''}***@{text.rpartition('@')[2]}"


def parameters(query: str) -> dict[str, Any]:
    """Return the parameters of a URL, checked. Raises OptionError."""
    values = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in values.items():
        check_known(name, value, PARAMETERS)
    return {name: value_of(PARAMETERS[name], name, value) for name, value in values.items()}


def is_url(path: object) -> bool:
    """Return whether this is the URL of a broker. OptionError if it is another URL, or a broker's
    with a mistake in it, so that it is not used as a directory; the password is not shown."""
    if not isinstance(path, str):
        return False
    if path.startswith(SCHEMES):
        return True
    scheme = LIKE_A_URL.match(path)
    if scheme is not None:
        near = difflib.get_close_matches(scheme[1].lower(), ["amqp", "amqps"], n=1)
        hint = f", did you mean {near[0]}:// ?" if near else ""
        expected = f"a directory, or amqp://user:password@host:port/vhost{hint}"
        raise OptionError("path", without_password(path), expected)
    return False
