"""BasicAuth: who asks. AMQP's users with AMQP's passwords, by HTTP's basic authentication.

Passwords are checked in a thread, since that takes 50 ms on purpose, and a right one is remembered
for a minute (access.known_users); guest may come from this machine only, as over AMQP. A request
with a wrong password and one of an unknown user are answered alike, after the same time.

What headers say about who asked before (X-Forwarded-For) is not believed: anybody can write that.

Not here: what a user may (each endpoint asks Identity for its own).
"""

import asyncio
import base64
import binascii
import logging
from concurrent.futures import Executor

from penstock.access.known_users import KnownUsers
from penstock.access.passwords import verify
from penstock.access.permissions import Identity, may_come_from
from penstock.http.http_errors import HttpError, NotAuthorizedError
from penstock.storage.user_store import READY

logger = logging.getLogger(__name__)


class BasicAuth:
    """hashing: where passwords are checked."""

    def __init__(self, users: KnownUsers, hashing: Executor) -> None:
        self._users = users
        self._hashing = hashing

    async def user(self, header: str | None, peer_host: str) -> str:
        """The name of whoever sent this Authorization header from there. NotAuthorizedError."""
        name, password = parse(header)
        if may_come_from(name, peer_host):
            if await self._is_right(name, password):
                return name
            logger.warning("%s: user %r refused: wrong name or password", peer_host, name)
        else:
            logger.warning("%s: user %r refused: it may come from this machine only",
                           peer_host, name)  # fmt: skip
        raise NotAuthorizedError("wrong name or password")

    async def _is_right(self, name: str, password: bytes) -> bool:
        users = self._users
        if users.remembers(name, password):
            return True
        claim = users.claim(name)
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._hashing, verify, password, claim):
            return False
        users.remember(name, password, claim)
        return True

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
