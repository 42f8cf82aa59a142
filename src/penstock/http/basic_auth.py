"""BasicAuth: who asks. AMQP's users with AMQP's passwords, by HTTP's basic authentication.

Passwords are checked by server.authenticator, as those of AMQP: each right one once, the others one
address after the other; guest may come from this machine only, as over AMQP. A request with a wrong
password and one of an unknown user are answered alike, after the same time. Who has not had a turn
within LOGIN_S, because others of the same address give wrong passwords, is answered 429.

What headers say about who asked before (X-Forwarded-For) is not believed: anybody can write that.

Not here: what a user may (each endpoint asks Identity for its own).
"""

import asyncio
import base64
import binascii
import logging
from typing import Final

from penstock.access.known_users import KnownUsers
from penstock.access.permissions import Identity
from penstock.http.http_errors import HttpError, NotAuthorizedError
from penstock.server.authenticator import Authenticator
from penstock.server.log_lines import client_line
from penstock.storage.user_store import READY

LOGIN_S: Final = 10.0

logger = logging.getLogger(__name__)


class BasicAuth:
    """authenticator: who checks passwords."""

    def __init__(self, users: KnownUsers, authenticator: Authenticator) -> None:
        self._users = users
        self._authenticator = authenticator

    async def user(self, header: str | None, peer_host: str) -> str:
        """The name of whoever sent this Authorization header from there. NotAuthorizedError;
        HttpError 429: it would have to wait too long for its turn."""
        name, password = parse(header)
        try:
            async with asyncio.timeout(LOGIN_S):
                why = await self._authenticator.refusal(name, password, peer_host)
        except TimeoutError:
            late = HttpError(429, "too many wrong passwords from this address, try later")
            late.headers["Retry-After"] = "10"
            raise late from None
        if not why:
            return name
        client_line(logger, peer_host, "%s: HTTP login refused: user '%s' - %s",
                    peer_host, name, why)  # fmt: skip
        raise NotAuthorizedError("wrong name or password")

    def identity(self, user: str, vhost: str) -> Identity:
        """What the user may in that vhost. HttpError 404: there is none; 403: not for this user."""
        if self._users.vhosts().get(vhost) != READY:
            raise HttpError(404, f"no vhost '{vhost}'")
        identity = self._users.identity(user, vhost)
        if identity is None:
            raise HttpError(403, f"access to vhost '{vhost}' refused for user '{user}'")
        return identity


def parse(header: str | None) -> tuple[str, bytes]:
    """(name, password) of an Authorization header. NotAuthorizedError: there is none to be had."""
    if header is None:
        raise NotAuthorizedError("name and password are needed (basic authentication)")
    scheme, _, rest = header.partition(" ")
    if scheme.lower() != "basic":
        raise NotAuthorizedError("expected basic authentication")
    try:
        name, colon, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
    except (ValueError, binascii.Error):
        raise NotAuthorizedError("expected base64 of name:password") from None
    if not colon:
        raise NotAuthorizedError("expected base64 of name:password")
    return name.decode("utf-8", "surrogateescape"), password
