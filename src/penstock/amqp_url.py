"""AmqpUrl: where a broker is, and as whom to log in.

    amqp://user:password@host:5672/vhost?heartbeat=30&connection_timeout=10

The format is that of RabbitMQ's URI specification: every part may be left out, and characters with
a meaning are percent-escaped. Without a path the vhost is "/"; "amqp://host/" names the vhost "",
which no broker has, and means "/" too, as in most clients. Nothing else is guessed: an unknown
parameter or an invalid number is an OptionError.

Without a URL that of the environment variable PENSTOCK_URL is used, then AMQP_URL, then localhost.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import OptionError
from penstock.options import Kind, check_known, seconds, value_of, whole

PORT: Final = 5672
DEFAULT: Final = "amqp://guest:guest@localhost:5672/"
VARIABLES: Final = ("PENSTOCK_URL", "AMQP_URL")
EXPECTED: Final = "amqp://user:password@host:port/vhost"
ESCAPED: Final = "with / in a password as %2F, @ as %40, : as %3A"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/*")
PARAMETERS: Final[Mapping[str, Kind]] = {
    "heartbeat": whole(0, 65535),
    "connection_timeout": seconds(3600),
    "channel_max": whole(0, 65535),
    "frame_max": whole(0, 1 << 31),
    "name": Kind("text", str),
}


@dataclass(frozen=True, slots=True)
class AmqpUrl:
    """The parts of a URL. heartbeat_s: None for what the broker proposes, 0 for none. channel_max,
    frame_max: upper limits, 0 for what the broker allows. name: of the connection, as the broker
    lists it."""

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

    @classmethod
    def parse(cls, text: str) -> "AmqpUrl":
        """Parse a URL. OptionError says what is wrong with it, without the password."""
        if text.startswith("amqps://"):
            raise OptionError("url", without_password(text), "amqp://: this build has no TLS yet")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:  # the error's text may hold a part of the password
            raise OptionError("url", without_password(text), f"{EXPECTED}, {ESCAPED}") from None
        if not text.startswith("amqp://") or parts.fragment:
            raise OptionError("url", without_password(text), EXPECTED)
        values = _parameters(parts.query)
        vhost = unquote(parts.path[1:]) or "/"
        if len(vhost.encode()) > 255:
            raise OptionError("vhost", vhost, "at most 255 bytes")
        return cls(
            host=unquote(parts.hostname or "localhost"),
            port=port or PORT,
            user="guest" if parts.username is None else unquote(parts.username),
            password="guest" if parts.password is None else unquote(parts.password),
            vhost=vhost,
            heartbeat_s=values.get("heartbeat"),
            connection_timeout_s=values.get("connection_timeout", 10.0),
            channel_max=values.get("channel_max", 0),
            frame_max=values.get("frame_max", 0),
            name=values.get("name", ""),
        )

    @classmethod
    def of(cls, given: "str | AmqpUrl | None", environment: Mapping[str, str]) -> "AmqpUrl":
        """Return the given URL, or that of the environment, or that of the broker on this host."""
        if isinstance(given, AmqpUrl):
            return given
        return cls.parse(url_of(environment) if given is None else given)

    def __str__(self) -> str:
        """Return the URL without the password, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        vhost = "" if self.vhost == "/" else self.vhost
        return f"amqp://{self.user}@{host}:{self.port}/{vhost}"


def url_of(environment: Mapping[str, str]) -> str:
    """Return the URL in the environment, or that of the broker on this host."""
    return next((environment[name] for name in VARIABLES if environment.get(name)), DEFAULT)


def without_password(text: str) -> str:
    """Return the text of a URL, right or wrong, with *** for all before its last @."""
    if "@" not in text:
        return text
    scheme = _SCHEME.match(text)
    return f"{scheme[0] if scheme else ''}***@{text.rpartition('@')[2]}"


def _parameters(query: str) -> dict[str, Any]:
    """Return the parameters that are given, checked."""
    values = dict(parse_qsl(query, keep_blank_values=True))
    for name, value in values.items():
        check_known(name, value, PARAMETERS)
    return {name: value_of(PARAMETERS[name], name, value) for name, value in values.items()}
