"""Users: who there is, whether a password is right, which vhosts there are and who may what there.

Everything is held in memory and written through to storage.user_store: a change is on disk when
its call returns, and asking never touches the disk.

A password is kept as scrypt's hash of it with 16 random bytes of salt, as text:

    scrypt$<log2 n>$<r>$<p>$<salt, base64>$<hash of 32 bytes, base64>

which takes about 50 ms and 16 MiB on purpose. So `verify`, which knows nothing but its arguments,
may be run in another thread, and a success is remembered for REMEMBER_S under a hash keyed with a
secret of this process: a client that comes back soon costs 2 us. An unknown user costs as much time
as a wrong password, and all comparisons take the same time whatever is compared, so that nobody
learns from the time who there is. The way in from the loop of a server:

    if not users.remembers(name, password):
        claim = users.claim(name)
        is_right = await in_executor(verify, password, claim)     # users is not touched there
        if is_right: users.remember(name, password, claim)

The first start makes user guest, password guest, administrator with all permissions on vhost "/",
as RabbitMQ does; permissions.may_come_from lets it in from this machine only.

Refusals are AMQPErrors, which the control socket passes on with their codes: 404 no such user or
vhost, 406 it is there already, 403 it may not be deleted; OptionError: a value makes no sense.
"""

import base64
import binascii
import hashlib
import hmac
import random
from collections.abc import Iterable
from typing import Any, Final

from penstock.access.permissions import ADMINISTRATOR, Identity, check_pattern
from penstock.clock import Clock
from penstock.errors import AMQPError, OptionError
from penstock.storage.user_store import CREATING, DELETING, READY, UserStore

REMEMBER_S: Final = 60.0
REMEMBERED_MAX: Final = 4096
NAME_BYTES_MAX: Final = 255
SCRYPT_LOG2_N: Final = 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
# Of what a file may ask for: 1 GiB, some 4 s.
SCRYPT_LOG2_N_MAX: Final = 20
DEFAULT_VHOST: Final = "/"


class Users:
    """The users of a broker, over its UserStore.

    rng: of salts and the secret: random.SystemRandom where it matters. log2_n: the cost of new
    hashes, 1 to 20; each step doubles it.
    """

    def __init__(
        self, store: UserStore, *, clock: Clock, rng: random.Random, log2_n: int = SCRYPT_LOG2_N
    ) -> None:
        self._store = store
        self._clock = clock
        self._rng = rng
        self._log2_n = log2_n
        self._secret: bytes = rng.randbytes(32)
        # keyed hash of name and password -> (the user's hash then, forgotten at)
        self._remembered: dict[bytes, tuple[str, float]] = {}
        self._nobody: str = self._hash(self._secret)
        if store.is_new:
            self._make_first()
        self._users = store.users()
        self._vhosts = store.vhosts()
        self._permissions = store.permissions()

    def _make_first(self) -> None:
        with self._store.transaction():
            self._store.begin()
            self._store.put_user("guest", self._hash(b"guest"), frozenset({ADMINISTRATOR}))
            self._store.put_vhost(DEFAULT_VHOST, CREATING)
            self._store.put_permission("guest", DEFAULT_VHOST, (".*", ".*", ".*"))

    # --- who is it ---

    def claim(self, name: str) -> str:
        """The text to `verify` a password against. For an unknown user one that nothing fits."""
        user = self._users.get(name)
        return user[0] if user is not None else self._nobody

    def remembers(self, name: str, password: bytes) -> bool:
        """Was this name and password right within the last REMEMBER_S, and is it still?"""
        key = self._key(name, password)
        known = self._remembered.get(key)
        if known is None:
            return False
        hashed, until = known
        if self._clock.monotonic() >= until or self.claim(name) != hashed:
            del self._remembered[key]
            return False
        return True

    def remember(self, name: str, password: bytes, claim: str) -> None:
        """`verify(password, claim)` was true."""
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        until = self._clock.monotonic() + REMEMBER_S
        self._remembered[self._key(name, password)] = (claim, until)

    def authenticate(self, name: str, password: bytes) -> bool:
        """Is it right? Takes 50 ms if it was not asked lately; see above for how not to wait."""
        if self.remembers(name, password):
            return True
        claim = self.claim(name)
        if not verify(password, claim):
            return False
        self.remember(name, password, claim)
        return True

    def identity(self, user: str, vhost: str) -> Identity | None:
        """What a known user may in a vhost; None if it may not even open it."""
        patterns = self._permissions.get((user, vhost))
        if patterns is None:
            return None
        return Identity(user, self._users[user][1], *patterns)

    # --- users ---

    def tags(self, name: str) -> frozenset[str]:
        """The user's tags. AMQPError 404."""
        return self._known(name)[1]

    def list_users(self) -> list[dict[str, Any]]:
        """Each: user, tags."""
        return [{"user": name, "tags": sorted(tags)} for name, (_, tags) in self._users.items()]

    def add_user(self, name: str, password: bytes, tags: Iterable[str] = ()) -> None:
        """A new user, without permissions. AMQPError 406: it is there."""
        _check_name("user", name)
        if name in self._users:
            raise AMQPError(406, f"user '{name}' already exists")
        self._put_user(name, self._hash(password), _checked_tags(tags))

    def change_password(self, name: str, password: bytes) -> None:
        """AMQPError 404."""
        _, tags = self._known(name)
        self._put_user(name, self._hash(password), tags)

    def set_user_tags(self, name: str, tags: Iterable[str]) -> None:
        """Instead of those it had. AMQPError 404; OptionError: white space in a tag."""
        hashed, _ = self._known(name)
        self._put_user(name, hashed, _checked_tags(tags))

    def delete_user(self, name: str) -> None:
        """With its permissions. AMQPError 404."""
        self._known(name)
        self._store.delete_user(name)
        del self._users[name]
        self._permissions = {key: p for key, p in self._permissions.items() if key[0] != name}

    # --- permissions ---

    def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """AMQPError 404: no such user or vhost. OptionError: no regular expression."""
        self._known(user)
        self._known_vhost(vhost)
        for verb, pattern in (("configure", configure), ("write", write), ("read", read)):
            check_pattern(verb, pattern)
        patterns = (configure, write, read)
        self._store.put_permission(user, vhost, patterns)
        self._permissions[(user, vhost)] = patterns

    def clear_permissions(self, user: str, vhost: str) -> None:
        """The user may not open that vhost any more. AMQPError 404."""
        self._known(user)
        self._known_vhost(vhost)
        self._store.delete_permission(user, vhost)
        self._permissions.pop((user, vhost), None)

    def list_permissions(
        self, *, vhost: str | None = None, user: str | None = None
    ) -> list[dict[str, str]]:
        """Each: user, vhost, configure, write, read. Of one vhost, of one user, or all."""
        if vhost is not None:
            self._known_vhost(vhost)
        if user is not None:
            self._known(user)
        return [
            {"user": u, "vhost": v, "configure": c, "write": w, "read": r}
            for (u, v), (c, w, r) in sorted(self._permissions.items())
            if vhost in (None, v) and user in (None, u)
        ]

    # --- vhosts ---

    def vhosts(self) -> dict[str, str]:
        """name -> state: user_store.CREATING, READY or DELETING."""
        return {name: state for name, (state, _) in self._vhosts.items()}

    def add_vhost(self, name: str) -> None:
        """It is `creating`: make its directory, then `vhost_made`. AMQPError 406: it is there."""
        _check_name("vhost", name)
        if name in self._vhosts:
            raise AMQPError(406, f"vhost '{name}' already exists")
        self._put_vhost(name, CREATING)

    def vhost_made(self, name: str) -> None:
        """Its directory is there: it is `ready`. AMQPError 404."""
        if self._known_vhost(name) == CREATING:
            self._put_vhost(name, READY)

    def delete_vhost(self, name: str) -> None:
        """It is `deleting`: remove its directory, then `vhost_gone`. AMQPError 404."""
        self._known_vhost(name)
        self._put_vhost(name, DELETING)

    def vhost_gone(self, name: str) -> None:
        """Its directory is no more: it is forgotten, with all permissions in it. AMQPError 404."""
        assert self._known_vhost(name) == DELETING, name
        self._store.delete_vhost(name)
        del self._vhosts[name]
        self._permissions = {key: p for key, p in self._permissions.items() if key[1] != name}

    # --- inside ---

    def _known(self, name: str) -> tuple[str, frozenset[str]]:
        user = self._users.get(name)
        if user is None:
            raise AMQPError(404, f"no user '{name}'")
        return user

    def _known_vhost(self, name: str) -> str:
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise AMQPError(404, f"no vhost '{name}'")
        return vhost[0]

    def _put_user(self, name: str, hashed: str, tags: frozenset[str]) -> None:
        self._store.put_user(name, hashed, tags)
        self._users[name] = (hashed, tags)

    def _put_vhost(self, name: str, state: str) -> None:
        meta = self._vhosts[name][1] if name in self._vhosts else "{}"
        self._store.put_vhost(name, state, meta)
        self._vhosts[name] = (state, meta)

    def _hash(self, password: bytes) -> str:
        return hash_password(password, salt=self._rng.randbytes(16), log2_n=self._log2_n)

    def _key(self, name: str, password: bytes) -> bytes:
        who = name.encode("utf-8", "surrogateescape")
        said = len(who).to_bytes(4, "big") + who + password
        return hmac.digest(self._secret, said, "sha256")


def hash_password(password: bytes, *, salt: bytes, log2_n: int = SCRYPT_LOG2_N) -> str:
    """The text that `verify` takes; as drawn above."""
    hashed = _scrypt(password, salt, log2_n, SCRYPT_R, SCRYPT_P)
    parts = (base64.b64encode(salt).decode(), base64.b64encode(hashed).decode())
    return "$".join(("scrypt", str(log2_n), str(SCRYPT_R), str(SCRYPT_P), *parts))


def verify(password: bytes, hashed: str) -> bool:
    """Is it the password of that hash? False too if `hashed` is no text of `hash_password`.

    Uses nothing but its arguments, so any thread may run it."""
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


def _check_name(kind: str, name: str) -> None:
    size_bytes = len(name.encode("utf-8", "surrogateescape"))
    if not 1 <= size_bytes <= NAME_BYTES_MAX:
        raise OptionError(kind, name, f"a name of 1 to {NAME_BYTES_MAX} bytes")
    if not name.isprintable():
        raise OptionError(kind, name, "a name of printable characters")


def _checked_tags(tags: Iterable[str]) -> frozenset[str]:
    checked = frozenset(tags)
    for tag in checked:
        if tag.split() != [tag] or not tag.isprintable():
            raise OptionError("tags", tag, "printable tags without white space")
    return checked
