"""SASL mechanisms: parse the response in connection.start-ok into user and password.

    PLAIN      authorization identity | 0 | user | 0 | password
    AMQPLAIN   a field table without its length: LOGIN and PASSWORD
    EXTERNAL   the user of the transport, the name in a certificate; the response may repeat it

A malformed response raises AMQPConnectionError, with the codes and texts of RabbitMQ. Passwords are
checked by server.authenticator.
"""

from typing import Final

from penstock.codec.fields import check_table, raw_entry
from penstock.codec.spec import ConnectionStartOk
from penstock.errors import ACCESS_REFUSED, SYNTAX_ERROR, AMQPConnectionError

_CLASS_ID: Final = ConnectionStartOk.CLASS_ID
_METHOD_ID: Final = ConnectionStartOk.METHOD_ID


def plain(response: bytes) -> tuple[str, str]:
    """Return (user, password) of PLAIN. Ignores the authorization identity, as RabbitMQ does."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        text = (
            "PLAIN authentication: the response is not of the form <id> NUL <user> NUL <password>"
        )
        raise AMQPConnectionError(ACCESS_REFUSED, text, _CLASS_ID, _METHOD_ID)
    return _text(parts[1]), _text(parts[2])


def amqplain(response: bytes) -> tuple[str, str]:
    """Return (user, password) of AMQPLAIN."""
    table = len(response).to_bytes(4, "big") + response
    check_table(table, 0, len(table))
    values = []
    for name in (b"LOGIN", b"PASSWORD"):
        raw = raw_entry(table, name)
        if raw is None or raw[:1] not in (b"S", b"x"):
            text = "AMQPLAIN authentication: LOGIN or PASSWORD is missing, or is not a string"
            raise AMQPConnectionError(SYNTAX_ERROR, text, _CLASS_ID, _METHOD_ID)
        values.append(_text(raw[5:]))
    return values[0], values[1]


def plain_response(user: str, password: str) -> bytes:
    """Return what a client sends for PLAIN. Raises ValueError for a NUL in either."""
    if "\0" in user or "\0" in password:
        raise ValueError("a user name or password with a NUL byte cannot be sent by PLAIN")
    return b"\0".join((b"", user.encode(), password.encode()))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
