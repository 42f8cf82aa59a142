"""KnownUsers: users, passwords and permissions in memory, for checking; and how passwords are
hashed.

Three small tables are held in memory, so checking never touches the disk:

    users        name -> (hash, tags)              permissions  (user, vhost) -> three patterns
    vhosts       name -> (state, meta)

The process that owns node.db fills them from there (access.users, which also changes them). Another
process of the broker gets them as `facts`, again after each change, so that it decides as the owner
would without asking it. The hashes never leave the broker.

**Hashes.** A password is kept as its scrypt hash with 16 random bytes of salt, as text:

    scrypt$<log2 n>$<r>$<p>$<salt, base64>$<hash of 32 bytes, base64>

A hash takes about 50 ms and 16 MiB on purpose. The functions use nothing but their arguments, so
any thread may run them. server.authenticator checks passwords for a loop with many clients.

**Right passwords** are remembered, one of each user, under a hash keyed with a secret of this
process: a client that connects again costs 2 us instead of 50 ms. What is remembered is that the
password fitted *this* hash of the user, so it is forgotten when the password changes or the user is
deleted. An unknown user costs as much time as a wrong password, and comparisons take constant time,
so the time does not reveal which users exist.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import random
from typing import Any, Final

from penstock.access.permissions import NOTHING, Identity, check_pattern
from penstock.errors import OptionError

SCRYPT_LOG2_N: Final = 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
# The most that a stored hash may use: 1 GiB, some 4 s.
SCRYPT_LOG2_N_MAX: Final = 20


def hash_password(password: bytes, *, salt: bytes, log2_n: int = SCRYPT_LOG2_N) -> str:
    """Return the hash as text, for `verify`."""
    hashed = _scrypt(password, salt, log2_n, SCRYPT_R, SCRYPT_P)
    parts = (base64.b64encode(salt).decode(), base64.b64encode(hashed).decode())
    return "$".join(("scrypt", str(log2_n), str(SCRYPT_R), str(SCRYPT_P), *parts))


def verify(password: bytes, hashed: str) -> bool:
    """Return whether it is the password of the hash. False also if `hashed` is malformed."""
    try:
        kind, log2_n, r, p, salt, wanted = hashed.split("$")
        if kind != "scrypt" or not 1 <= int(log2_n) <= SCRYPT_LOG2_N_MAX:
            return False
        given = _scrypt(
            password, base64.b64decode(salt, validate=True), int(log2_n), int(r), int(p)
        )
        return hmac.compare_digest(given, base64.b64decode(wanted, validate=True))
    except (ValueError, binascii.Error):
        return False


def _scrypt(password: bytes, salt: bytes, log2_n: int, r: int, p: int) -> bytes:
    memory_bytes = 128 * r * ((1 << log2_n) + p + 2)
    return hashlib.scrypt(
        password, salt=salt, n=1 << log2_n, r=r, p=p, maxmem=memory_bytes, dklen=32
    )


_log = logging.getLogger(__name__)


class KnownUsers:
    """The tables, empty at first.

    rng: makes salts and the secret; random.SystemRandom outside of tests. log2_n: the cost of new
    hashes, 1 to 20; each step doubles it.
    """

    def __init__(self, *, rng: random.Random, log2_n: int = SCRYPT_LOG2_N) -> None:
        self._rng = rng
        self._log2_n = log2_n
        self._secret: bytes = rng.randbytes(32)
        # name -> (keyed hash of name and password, the user's hash that it fitted)
        self._remembered: dict[str, tuple[bytes, str]] = {}
        self._nobody: str = self._hash(self._secret)
        self._users: dict[str, tuple[str, frozenset[str]]] = {}
        self._vhosts: dict[str, tuple[str, str]] = {}
        self._permissions: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._warned: set[tuple[str, str, str]] = set()  # patterns that cannot be matched

    # --- from one process to another ---

    def facts(self) -> dict[str, Any]:
        """Return the tables as JSON, for `take` in another process of the broker."""
        return {
            "users": [[n, hashed, sorted(tags)] for n, (hashed, tags) in self._users.items()],
            "vhosts": [[name, state] for name, (state, _) in self._vhosts.items()],
            "permissions": [[*who, *patterns] for who, patterns in self._permissions.items()],
        }

    def take(self, facts: dict[str, Any]) -> None:
        """Replace the tables by those of `facts`."""
        self._users = {name: (hashed, frozenset(tags)) for name, hashed, tags in facts["users"]}
        self._vhosts = {name: (state, "{}") for name, state in facts["vhosts"]}
        self._permissions = {(u, v): (c, w, r) for u, v, c, w, r in facts["permissions"]}

    # --- who is it ---

    def claim(self, name: str) -> str:
        """Return the hash of the user's password; for an unknown user one that nothing fits."""
        user = self._users.get(name)
        return user[0] if user is not None else self._nobody

    def remembers(self, name: str, password: bytes) -> bool:
        """Return whether this password was right before, for the user's present hash."""
        known = self._remembered.get(name)
        if known is None:
            return False
        key, hashed = known
        if self.claim(name) != hashed:
            del self._remembered[name]
            return False
        return hmac.compare_digest(key, self.key(name, password))

    def remember(self, name: str, password: bytes, claim: str) -> None:
        """Remember a right password: `verify(password, claim)` was true."""
        if len(self._remembered) > len(self._users):  # some were deleted
            self._remembered = {n: k for n, k in self._remembered.items() if n in self._users}
        self._remembered[name] = (self.key(name, password), claim)

    def key(self, name: str, password: bytes) -> bytes:
        """Return a hash of name and password, keyed with a secret of this process."""
        who = name.encode("utf-8", "surrogateescape")
        said = len(who).to_bytes(4, "big") + who + password
        return hmac.digest(self._secret, said, "sha256")

    def identity(self, user: str, vhost: str) -> Identity | None:
        """Return what a known user may do in a vhost, None if it may not open it."""
        patterns = self._permissions.get((user, vhost))
        if patterns is None:
            return None
        configure, write, read = (self._usable(user, vhost, pattern) for pattern in patterns)
        return Identity(user, self._users[user][1], configure, write, read)

    def _usable(self, user: str, vhost: str, pattern: str) -> str:
        """Return the pattern. For one that an older version accepted and that cannot be matched in
        linear time, log a warning and return NOTHING: the user may log in, but the permission
        matches no name."""
        try:
            check_pattern("permissions", pattern)
        except OptionError as error:
            if (user, vhost, pattern) not in self._warned:
                self._warned.add((user, vhost, pattern))
                _log.warning(
                    "permissions of user %r in vhost %r: %s. It matches nothing until"
                    " set_permissions gives another one", user, vhost, error,
                )  # fmt: skip
            return NOTHING
        return pattern

    def vhosts(self) -> dict[str, str]:
        """Return name -> state: user_store.CREATING, READY or DELETING."""
        return {name: state for name, (state, _) in self._vhosts.items()}

    # --- inside ---

    def _hash(self, password: bytes) -> str:
        return hash_password(password, salt=self._rng.randbytes(16), log2_n=self._log2_n)
