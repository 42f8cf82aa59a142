"""SASL mechanisms: the response in connection.start-ok, as user and password.

    PLAIN      authorization identity | 0 | user | 0 | password
    AMQPLAIN   a field table without its length: LOGIN and PASSWORD
    EXTERNAL   who the transport says it is, a certificate's name; the response may name the user

A response that is not of its mechanism's form is an AMQPConnectionError; whether the password is
right is not known here. RabbitMQ's order of texts: a wrong form is refused as a wrong password is.
"""

from typing import Final

from penstock.codec.fields import check_table, raw_entry
from penstock.codec.spec import ACCESS_REFUSED, SYNTAX_ERROR, ConnectionStartOk
from penstock.errors import AMQPConnectionError

_CLASS_ID: Final = ConnectionStartOk.CLASS_ID
_METHOD_ID: Final = ConnectionStartOk.METHOD_ID


def plain(response: bytes) -> tuple[str, str]:
    """PLAIN: (user, password). The authorization identity is not used, as in RabbitMQ."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        text = (
            "PLAIN authentication: the response is not of the form <id> NUL <user> NUL <password>"
        )
        raise AMQPConnectionError(ACCESS_REFUSED, text, _CLASS_ID, _METHOD_ID)
    return _text(parts[1]), _text(parts[2])


def amqplain(response: bytes) -> tuple[str, str]:
    """AMQPLAIN: (user, password)."""
    table = len(response).to_bytes(4, "big") + response
    check_table(table, 0, len(table))
    values = []
    for name in (b"LOGIN", b"PASSWORD"):
        raw = raw_entry(table, name)
        if raw is None or raw[:1] not in (b"S", b"x"):
            text = "AMQPLAIN authentication: LOGIN or PASSWORD is missing, or is no string"
            raise AMQPConnectionError(SYNTAX_ERROR, text, _CLASS_ID, _METHOD_ID)
        values.append(_text(raw[5:]))
    return values[0], values[1]


def external(response: bytes, transport_user: str | None) -> str:
    """EXTERNAL: the user that the transport vouches for.

    transport_user: None if it vouches for nobody. A response, if any, must name the same user.
    """
    if transport_user is None or response not in (b"", transport_user.encode()):
        text = "EXTERNAL authentication: the transport does not vouch for that user"
        raise AMQPConnectionError(ACCESS_REFUSED, text, _CLASS_ID, _METHOD_ID)
    return transport_user


def plain_response(user: str, password: str) -> bytes:
    """What a client sends for PLAIN. Neither may have a NUL in it."""
    if "\0" in user or "\0" in password:
        raise ValueError("PLAIN cannot carry a NUL in a user's name or password")
    return b"\0".join((b"", user.encode(), password.encode()))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
