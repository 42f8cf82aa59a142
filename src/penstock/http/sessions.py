"""Sessions: who has logged in with the form of the dashboard, and has a cookie.

The cookie is 32 random bytes; only its hash is kept, in the memory of this process. A session ends
after SESSION_S, with a logout, when the user's password has changed or the user is gone, when the
token that it began with expires, and when this process ends. A user has at most OF_USER_MAX, all
together at most ALL_MAX: one more ends the oldest.

The cookie is for scripts of our own pages only: they cannot read it (HttpOnly), and no page of
another site has it sent (SameSite=Strict). But a page at another port of the same machine is of the
same site, so a request that changes something also needs the header X-Penstock, which only a page
of the same origin can send without our permission, and an Origin that is the Host.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

from penstock.access.users import KnownUsers
from penstock.clock import Clock
from penstock.server.backends import Account

COOKIE: Final = "penstock"
OWN_HEADER: Final = "x-penstock"
SESSION_S: Final = 8 * 3600
OF_USER_MAX: Final = 16
ALL_MAX: Final = 4096
TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class _BrowserSession:
    account: Account
    claim: str  # the hash of the user's password when it began
    until_s: float


class Sessions:
    """The sessions, the oldest first."""

    def __init__(self, users: KnownUsers, clock: Clock) -> None:
        self._users = users
        self._clock = clock
        self._by_hash: dict[bytes, _BrowserSession] = {}

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, account: Account) -> str:
        """Return the cookie of a new session."""
        for hashed in [*self._by_hash]:
            self._live(hashed)
        of_user = [key for key, one in self._by_hash.items() if one.account.user == account.user]
        for key in (*of_user[: 1 - OF_USER_MAX], *[*self._by_hash][: 1 - ALL_MAX]):
            self._by_hash.pop(key, None)
        left_s = float(SESSION_S)
        if account.expires_at_s:
            left_s = min(left_s, account.expires_at_s - self._clock.wall_ms() / 1000)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        claim = self._users.claim(account.user)
        until_s = self._clock.monotonic() + left_s
        self._by_hash[_hashed(token)] = _BrowserSession(account, claim, until_s)
        return token

    def account(self, token: str) -> Account | None:
        """Return who has this cookie, None if its session has ended."""
        session = self._live(_hashed(token))
        return session.account if session is not None else None

    def end(self, token: str) -> None:
        """End a session, if there is one."""
        self._by_hash.pop(_hashed(token), None)

    def _live(self, hashed: bytes) -> _BrowserSession | None:
        """Return a session, which is forgotten if it has ended."""
        found = self._by_hash.get(hashed)
        if found is None:
            return None
        has_ended = self._clock.monotonic() >= found.until_s
        if has_ended or self._users.claim(found.account.user) != found.claim:
            del self._by_hash[hashed]
            return None
        return found


def cookie(token: str, *, is_tls: bool, seconds: int = SESSION_S) -> str:
    """Return the header Set-Cookie. seconds: 0 to forget it."""
    secure = "; Secure" if is_tls else ""
    return f"{COOKIE}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
