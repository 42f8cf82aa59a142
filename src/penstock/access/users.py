"""Users, their passwords, permissions and limits, and the list of vhosts: checking and changing.

Five small tables are held in memory, so reads and checks never touch the disk:

    users        name -> (hash, tags)              permissions  (user, vhost) -> three patterns
    vhosts       name -> (state, meta)             limits       name -> limits, of users and vhosts
    topics       (user, vhost) -> exchange -> two patterns

KnownUsers checks. Users, in the process that owns node.db, also changes: a change is written to
storage.user_store and is on disk when its call returns. Other processes of the broker have
KnownUsers alone and get the tables as `facts`, again after each change, so that they decide without
asking the owner. The hashes never leave the broker.

The first start makes user guest with password guest, an administrator with all permissions on vhost
"/", as RabbitMQ does. permissions.may_come_from allows it from this machine only, or never, by the
option `guest`. A vhost that an operator has stopped stays stopped over restarts of the broker.

**Hashes.** A password is kept as its scrypt hash with 16 random bytes of salt, as text:

    scrypt$<log2 n>$<r>$<p>$<salt, base64>$<hash of 32 bytes, base64>

A hash takes about 50 ms and 16 MiB on purpose. The functions use nothing but their arguments, so
any thread may run them. server.authenticator checks passwords for a loop with many clients.

RabbitMQ's hashes, which definitions bring, are kept as they came, until the user's next login over
AMQP replaces them by scrypt:

    rabbit_password_hashing_sha256$<base64 of 4 bytes of salt + SHA-256(salt + password)>
    rabbit_password_hashing_sha512$<the same with SHA-512>

**Right passwords** are remembered, one of each user, under a hash keyed with a secret of this
process: a client that connects again costs 2 us instead of 50 ms. What is remembered is that the
password fitted *this* hash of the user, so it is forgotten when the password changes or the user is
deleted. An unknown user costs as much time as a wrong password, and comparisons take constant time,
so the time does not reveal which users exist.

Refusals are AMQPErrors, whose codes the control socket passes on: 404 if a user or vhost does not
exist, 406 if it exists already. OptionError: an invalid value.
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from penstock.access.limits import (
    OF_USERS,
    OF_VHOSTS,
    UNDEFINED,
    VHOST_OPTIONS,
    checked_limits,
)
from penstock.access.permissions import (
    ADMINISTRATOR,
    GUEST,
    NOTHING,
    Identity,
    check_pattern,
    expanded,
)
from penstock.clock import date
from penstock.errors import NOT_FOUND, PRECONDITION_FAILED, AMQPError, OptionError
from penstock.options import by_name, check_known, checked
from penstock.storage.files.user_store import CREATING, DELETING, READY, UserStore

SCRYPT_LOG2_N: Final = 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
# The most that a stored hash may use: 1 GiB, some 4 s.
SCRYPT_LOG2_N_MAX: Final = 20
# RabbitMQ's `hashing_algorithm` -> hash, and its size in bytes. MD5 is not accepted.
RABBITMQ_HASHES: Final[Mapping[str, tuple[str, int]]] = {
    "rabbit_password_hashing_sha256": ("sha256", 32),
    "rabbit_password_hashing_sha512": ("sha512", 64),
}
RABBITMQ_SALT_BYTES: Final = 4
NO_PASSWORD: Final = "none"  # noqa: S105 - the hash of a user who cannot log in with a password


def hash_password(password: bytes, *, salt: bytes, log2_n: int = SCRYPT_LOG2_N) -> str:
    """Return the hash as text, for `verify`."""
    hashed = _scrypt(password, salt, log2_n, SCRYPT_R, SCRYPT_P)
    parts = (base64.b64encode(salt).decode(), base64.b64encode(hashed).decode())
    return "$".join(("scrypt", str(log2_n), str(SCRYPT_R), str(SCRYPT_P), *parts))


def verify(password: bytes, hashed: str) -> bool:
    """Return whether it is the password of the hash. False also if `hashed` is malformed."""
    try:
        if is_of_rabbitmq(hashed):
            return _is_rabbitmq_password(password, hashed)
        kind, log2_n, r, p, salt, wanted = hashed.split("$")
        if kind != "scrypt" or not 1 <= int(log2_n) <= SCRYPT_LOG2_N_MAX:
            return False
        given = _scrypt(
            password, base64.b64decode(salt, validate=True), int(log2_n), int(r), int(p)
        )
        return hmac.compare_digest(given, base64.b64decode(wanted, validate=True))
    except (ValueError, binascii.Error):
        return False


def is_of_rabbitmq(hashed: str) -> bool:
    """Return whether it is a hash of RabbitMQ's, which is weaker than scrypt's."""
    return hashed.partition("$")[0] in RABBITMQ_HASHES


def rabbitmq_hash(password_hash: str, algorithm: str) -> str:
    """Return the text for `verify` of a `password_hash` and `hashing_algorithm` of RabbitMQ's
    definitions. An empty password_hash is NO_PASSWORD. Raises OptionError."""
    if not password_hash:
        return NO_PASSWORD
    if algorithm not in RABBITMQ_HASHES:
        known = " or ".join(RABBITMQ_HASHES)
        raise OptionError(
            "hashing_algorithm", algorithm,
            f"{known}; a password with another hash has to be set again, with change_password",
        )  # fmt: skip
    hashed = f"{algorithm}${password_hash}"
    size = RABBITMQ_SALT_BYTES + RABBITMQ_HASHES[algorithm][1]
    try:
        is_right = len(base64.b64decode(password_hash, validate=True)) == size
    except (ValueError, binascii.Error):
        is_right = False
    if not is_right:
        raise OptionError("password_hash", password_hash, f"the base64 of {size} bytes")
    return hashed


def _is_rabbitmq_password(password: bytes, hashed: str) -> bool:
    """Return whether it is the password of RabbitMQ's hash. Takes the time of scrypt, too, so that
    the time does not show which users came from a RabbitMQ."""
    _scrypt(password, b"", SCRYPT_LOG2_N, SCRYPT_R, SCRYPT_P)
    algorithm, _, text = hashed.partition("$")
    stored = base64.b64decode(text, validate=True)
    salt, wanted = stored[:RABBITMQ_SALT_BYTES], stored[RABBITMQ_SALT_BYTES:]
    given = hashlib.new(RABBITMQ_HASHES[algorithm][0], salt + password).digest()
    return hmac.compare_digest(given, wanted)


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
        self._nobody: str = self.new_hash(self._secret)
        self._users: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._vhosts: dict[str, tuple[str, str]] = {}
        self._permissions: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._topics: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
        self._warned: set[tuple[str, str, str]] = set()  # patterns that cannot be matched
        # (user, vhost) -> the rows of the tables from which it was made, and the identity
        self._identities: dict[tuple[str, str], tuple[object, Identity]] = {}

    # --- from one process to another ---

    def facts(self) -> dict[str, Any]:
        """Return the tables as JSON, for `take` in another process of the broker."""
        return {
            "users": [[n, hashed, tags] for n, (hashed, tags) in self._users.items()],
            "vhosts": [[name, state] for name, (state, _) in self._vhosts.items()],
            "permissions": [[*who, *patterns] for who, patterns in self._permissions.items()],
            "topics": [[*who, on] for who, on in self._topics.items()],
        }

    def take(self, facts: dict[str, Any]) -> None:
        """Replace the tables by those of `facts`."""
        self._users = {name: (hashed, tuple(tags)) for name, hashed, tags in facts["users"]}
        self._vhosts = {name: (state, "{}") for name, state in facts["vhosts"]}
        self._permissions = {(u, v): (c, w, r) for u, v, c, w, r in facts["permissions"]}
        self._topics = {
            (u, v): {exchange: (w, r) for exchange, (w, r) in on.items()}
            for u, v, on in facts["topics"]
        }

    # --- passwords and identities ---

    def claim(self, name: str) -> str:
        """Return the hash of the user's password; for an unknown user one that nothing fits."""
        user = self._users.get(name)
        return user[0] if user is not None else self._nobody

    def knows(self, name: str) -> bool:
        """Return whether there is such a user."""
        return name in self._users

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

    def new_hash(self, password: bytes) -> str:
        """Return a hash of a password, with a new salt. Takes 50 ms; any thread may call it."""
        return hash_password(password, salt=self._rng.randbytes(16), log2_n=self._log2_n)

    def renew(self, name: str, claim: str, hashed: str) -> bool:
        """Replace `claim` by another hash of the same password, if it is still the user's; return
        whether it was replaced. Only the process that owns node.db does."""
        return False

    def key(self, name: str, password: bytes) -> bytes:
        """Return a hash of name and password, keyed with a secret of this process."""
        who = name.encode("utf-8", "surrogateescape")
        said = len(who).to_bytes(4, "big") + who + password
        return blake2b(said, key=self._secret).digest()  # hmac.digest takes ten times as long

    def identity(self, user: str, vhost: str) -> Identity | None:
        """Return what a known user may do in a vhost, None if it may not open it."""
        who = user, vhost
        patterns = self._permissions.get(who)
        if patterns is None:
            return None
        own = self._topics.get(who)
        rows = patterns, self._users.get(user), tuple(own.items()) if own else ()
        known = self._identities.get(who)
        if known is not None and known[0] == rows:
            return known[1]
        configure, write, read = (self._usable(user, vhost, pattern) for pattern in patterns)
        topics = {
            exchange: (expanded(one[0], user, vhost), expanded(one[1], user, vhost))
            for exchange, one in rows[2]
        }
        identity = Identity.shared(user, self.tags_of(user), configure, write, read, topics)
        if len(self._identities) > len(self._permissions):  # some were removed
            self._identities.clear()
        self._identities[who] = rows, identity
        return identity

    def tags_of(self, user: str) -> frozenset[str]:
        """Return the tags of a user, none if it is unknown."""
        return frozenset(self._users[user][1] if user in self._users else ())

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

    def state_of(self, vhost: str) -> str | None:
        """Return the state of a vhost as `vhosts` has it, None if there is none."""
        found = self._vhosts.get(vhost)
        return None if found is None else found[0]


NAME_BYTES_MAX: Final = 255
PARAMETER_CHARS_MAX: Final = 64 << 10
DEFAULT_VHOST: Final = "/"
USER: Final = "user"
VHOST: Final = "vhost"
_LOADED: Final = "loaded_definitions"
_STOPPED_MS: Final = "stopped_ms"  # in a vhost's meta: when an operator stopped it
KINDS: Final[Mapping[str, Mapping[str, str]]] = {USER: OF_USERS, VHOST: OF_VHOSTS}


@dataclass(slots=True)
class Tables:
    """Rows of all tables, as definitions have them: users by name, as (hash, tags); vhosts by name,
    with those of VHOST_OPTIONS that are set; (user, vhost) -> three patterns; (user, vhost,
    exchange) -> two; "user" and "vhost" -> name -> limits; global parameters."""

    users: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    vhosts: dict[str, dict[str, object]] = field(default_factory=dict)
    permissions: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)
    topics: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    limits: dict[str, dict[str, dict[str, int]]] = field(
        default_factory=lambda: {kind: {} for kind in KINDS}
    )
    parameters: dict[str, object] = field(default_factory=dict)


def _do_nothing() -> None:
    """The default of on_change, for a single process."""


class Users(KnownUsers):
    """The users of a broker, over its UserStore. rng, log2_n: as of KnownUsers.

    on_change: called after each change is on disk, to update processes that hold `facts`.
    """

    def __init__(
        self, store: UserStore, *, rng: random.Random, log2_n: int = SCRYPT_LOG2_N
    ) -> None:
        super().__init__(rng=rng, log2_n=log2_n)
        self.on_change: Callable[[], None] = _do_nothing
        self._store = store
        if store.is_new:
            self._make_first()
        self._users = store.users()
        self._vhosts = store.vhosts()
        self._permissions = store.permissions()
        for (user, vhost, exchange), two in store.topic_permissions().items():
            self._topics.setdefault((user, vhost), {})[exchange] = two
        self._limits = {kind: _limits_of(store.limits(kind), kind) for kind in KINDS}
        for (user, vhost), patterns in self._permissions.items():
            for pattern in patterns:  # log those that are refused, at each start
                self._usable(user, vhost, pattern)

    def _make_first(self) -> None:
        with self._store.transaction():
            self._store.begin()
            self._store.put_user("guest", self.new_hash(b"guest"), (ADMINISTRATOR,))
            self._store.put_vhost(DEFAULT_VHOST, CREATING)
            self._store.put_permission("guest", DEFAULT_VHOST, (".*", ".*", ".*"))

    def renew(self, name: str, claim: str, hashed: str) -> bool:
        """Replace `claim` by another hash of the same password, on disk."""
        user = self._users.get(name)
        if user is None or user[0] != claim:
            return False
        self._put_user(name, hashed, user[1])
        return True

    # --- users ---

    def tags(self, name: str) -> tuple[str, ...]:
        """Return the user's tags, in the order in which they were given. Raises AMQPError 404."""
        return self._known(name)[1]

    def list_users(self) -> list[dict[str, Any]]:
        """Return the users, each with `user` and `tags`."""
        return [{"user": name, "tags": list(tags)} for name, (_, tags) in self._users.items()]

    def add_user(self, name: str, password: bytes, tags: Iterable[str] = ()) -> None:
        """Add a user, without permissions. Raises AMQPError 406 if it exists."""
        check_name("user", name)
        if name in self._users:
            raise AMQPError(PRECONDITION_FAILED, f"user '{name}' already exists")
        self._put_user(name, self.new_hash(password), checked_tags(tags))

    def put_user(
        self, name: str, hashed: str, tags: Iterable[str], limits: Mapping[str, object]
    ) -> bool:
        """Add a user, or replace the password and tags of one and set these limits; all of it or
        nothing. hashed: as `new_hash` makes it, or of `rabbitmq_hash`. Returns whether the user is
        new. Raises OptionError."""
        check_name("user", name)
        is_new = name not in self._users
        own = {USER: {name: checked_limits(limits, OF_USERS)}, VHOST: {}}
        self.put(Tables(users={name: (hashed, checked_tags(tags))}, limits=own))
        return is_new

    def init(self, name: str, password: bytes, *, is_forced: bool) -> tuple[bool, bool]:
        """Make an administrator with all permissions on all vhosts, and delete guest: all of it, or
        nothing. One of this name that exists keeps its password, unless is_forced. Returns (whether
        the password was set, whether guest was deleted). Raises OptionError for guest itself."""
        check_name("user", name)
        if name == GUEST:
            raise OptionError("user", name, "another name: everybody knows guest, it is deleted")
        known = self._users.get(name)
        is_set = known is None or is_forced
        hashed = known[0] if known is not None and not is_forced else self.new_hash(password)
        tags = checked_tags((*(known[1] if known is not None else ()), ADMINISTRATOR))
        everything = (".*", ".*", ".*")
        had_guest = GUEST in self._users
        with self._store.transaction():
            self._store.put_user(name, hashed, tags)
            for vhost in self._vhosts:
                self._store.put_permission(name, vhost, everything)
            self._store.delete_user(GUEST)
        self._users[name] = (hashed, tags)
        self._permissions.update({(name, vhost): everything for vhost in self._vhosts})
        self._forget_user(GUEST)
        self.on_change()
        return is_set, had_guest

    def change_password(self, name: str, password: bytes) -> None:
        """Change a password. Raises AMQPError 404."""
        _, tags = self._known(name)
        self._put_user(name, self.new_hash(password), tags)

    def set_user_tags(self, name: str, tags: Iterable[str]) -> None:
        """Replace the user's tags. Raises AMQPError 404, OptionError for white space in a tag."""
        hashed, _ = self._known(name)
        self._put_user(name, hashed, checked_tags(tags))

    def delete_users(self, names: Iterable[str]) -> None:
        """Delete users and all their permissions; all of them or none. Raises AMQPError 404."""
        known = sorted(set(names))
        for name in known:
            self._known(name)
        with self._store.transaction():
            for name in known:
                self._store.delete_user(name)
        for name in known:
            self._forget_user(name)
        self.on_change()

    # --- permissions ---

    def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> bool:
        """Set three patterns. Returns whether the user had none. Raises AMQPError 404 without user
        or vhost, OptionError for a pattern."""
        self._check_known(user, vhost)
        for verb, pattern in (("configure", configure), ("write", write), ("read", read)):
            check_pattern(verb, pattern)
        is_new = (user, vhost) not in self._permissions
        self.put(Tables(permissions={(user, vhost): (configure, write, read)}))
        return is_new

    def clear_permissions(self, user: str, vhost: str) -> bool:
        """Remove the user's access to a vhost. Returns whether there was one. Raises AMQPError
        404."""
        self._check_known(user, vhost)
        self._store.delete_permission(user, vhost)
        was_there = self._permissions.pop((user, vhost), None) is not None
        self.on_change()
        return was_there

    def list_permissions(
        self, *, vhost: str | None = None, user: str | None = None
    ) -> list[dict[str, str]]:
        """Return the permissions of one vhost, of one user, or all: user, vhost, configure, write,
        read."""
        self._check_known(user, vhost)
        return [
            {"user": u, "vhost": v, "configure": c, "write": w, "read": r}
            for (u, v), (c, w, r) in sorted(self._permissions.items())
            if vhost in (None, v) and user in (None, u)
        ]

    def set_topic_permissions(
        self, user: str, vhost: str, exchange: str, write: str, read: str
    ) -> bool:
        """Set the patterns of routing keys with which the user may publish to a topic exchange and
        bind from it; the exchange need not exist. Returns whether there were none for it. Raises
        AMQPError 404 without user or vhost, OptionError for a pattern."""
        self._check_known(user, vhost)
        for verb, pattern in (("write", write), ("read", read)):
            check_pattern(verb, expanded(pattern, user, vhost))
        is_new = exchange not in self._topics.get((user, vhost), {})
        self.put(Tables(topics={(user, vhost, exchange): (write, read)}))
        return is_new

    def clear_topic_permissions(self, user: str, vhost: str, exchange: str | None = None) -> bool:
        """Remove those on one exchange, or on all: every routing key is allowed again. Returns
        whether there were any. Raises AMQPError 404 without user or vhost."""
        self._check_known(user, vhost)
        self._store.delete_topic_permissions(user, vhost, exchange)
        on = self._topics.get((user, vhost), {})
        left = {one: two for one, two in on.items() if exchange not in (None, one)}
        self._topics[(user, vhost)] = left
        if not left:
            del self._topics[(user, vhost)]
        self.on_change()
        return len(left) < len(on)

    def list_topic_permissions(
        self, *, vhost: str | None = None, user: str | None = None
    ) -> list[dict[str, str]]:
        """Return the topic permissions of one vhost, of one user, or all: user, vhost, exchange,
        write, read."""
        self._check_known(user, vhost)
        return [
            {"user": u, "vhost": v, "exchange": exchange, "write": w, "read": r}
            for (u, v), on in sorted(self._topics.items())
            if vhost in (None, v) and user in (None, u)
            for exchange, (w, r) in sorted(on.items())
        ]

    # --- limits ---

    def limits(self, kind: str) -> dict[str, dict[str, int]]:
        """Return the limits that were set: name -> limits. kind: "user" or "vhost"."""
        return {name: dict(own) for name, own in self._limits[kind].items()}

    def set_limits(self, kind: str, name: str, given: Mapping[str, object]) -> None:
        """Set the given limits of a user or vhost; others stay. Raises AMQPError 404, OptionError
        for an unknown limit or a wrong value."""
        self._check_owner(kind, name)
        new = checked_limits(given, KINDS[kind])
        self._put_limits(kind, name, {**self._limits[kind].get(name, {}), **new})

    def clear_limits(self, kind: str, name: str, limit: str = "all") -> None:
        """Reset one limit, or all, to the default. Raises AMQPError 404."""
        self._check_owner(kind, name)
        if limit != "all" and limit not in KINDS[kind]:
            raise OptionError(limit, None, [*KINDS[kind], "all"])
        own = self._limits[kind].get(name, {})
        left = {one: n for one, n in own.items() if limit not in ("all", one)}
        self._put_limits(kind, name, left)

    def _check_owner(self, kind: str, name: str) -> None:
        self._check_known(*((name, None) if kind == USER else (None, name)))

    def _put_limits(self, kind: str, name: str, own: dict[str, int]) -> None:
        self._store.put_limits(kind, name, json.dumps(own, sort_keys=True) if own else "")
        if own:
            self._limits[kind][name] = own
        else:
            self._limits[kind].pop(name, None)

    # --- global parameters ---

    def global_parameters(self) -> dict[str, object]:
        """Return name -> value of what operators have stored about the whole broker."""
        return {name: json.loads(text) for name, text in self._store.parameters().items()}

    def set_global_parameter(self, name: str, value: object) -> bool:
        """Store a value, of which Penstock makes no use, under this name. Returns whether there was
        none. Raises OptionError."""
        check_parameter(name, value)
        is_new = name not in self._store.parameters()
        self._store.put_parameter(name, json.dumps(value, sort_keys=True))
        return is_new

    def clear_global_parameter(self, name: str) -> None:
        """Delete a value. Raises AMQPError 404."""
        if name not in self._store.parameters():
            raise AMQPError(NOT_FOUND, f"no global parameter '{name}'")
        self._store.put_parameter(name, "")

    # --- vhosts ---

    def add_vhost(self, name: str, options: Mapping[str, object] | None = None) -> None:
        """Add a vhost as `creating`; call `vhost_made` when its directory exists. options: of
        VHOST_OPTIONS. Raises AMQPError 406 if the vhost exists, OptionError."""
        check_name("vhost", name)
        if name in self._vhosts:
            raise AMQPError(PRECONDITION_FAILED, f"vhost '{name}' already exists")
        self._put_vhost(name, CREATING, checked_vhost(options or {}))

    def update_vhost(self, name: str, options: Mapping[str, object]) -> None:
        """Change the given ones of VHOST_OPTIONS; others stay. Raises AMQPError 404,
        OptionError."""
        self._put_vhost(name, self._known_vhost(name), checked_vhost(options))

    def vhost_options(self, name: str) -> dict[str, Any]:
        """Return description, tags and default_queue_type of a vhost. Raises AMQPError 404."""
        self._known_vhost(name)
        meta = json.loads(self._vhosts[name][1])
        return {
            "description": meta.get("description", ""),
            "tags": meta.get("tags", []),
            "default_queue_type": meta.get("default_queue_type", UNDEFINED),
        }

    def queue_types(self) -> dict[str, str]:
        """Return the default queue types of the vhosts that have one."""
        found = {name: self.vhost_options(name)["default_queue_type"] for name in self._vhosts}
        return {name: kind for name, kind in found.items() if kind != UNDEFINED}

    def vhost_made(self, name: str) -> None:
        """Make a vhost `ready`: its directory exists. Raises AMQPError 404."""
        if self._known_vhost(name) == CREATING:
            self._put_vhost(name, READY)

    def stop_vhost(self, name: str, now_ms: int) -> None:
        """Note that a vhost is stopped since now_ms, until `start_vhost`. Raises AMQPError 404, and
        406 if it is stopped already."""
        since_ms = self.stopped_ms(name)
        if since_ms is not None:
            raise AMQPError(
                PRECONDITION_FAILED, f"vhost '{name}' is stopped already, since {date(since_ms)}"
            )
        self._put_vhost(name, self._known_vhost(name), {_STOPPED_MS: now_ms})

    def start_vhost(self, name: str) -> bool:
        """End the stop of a vhost. Returns whether it was stopped. Raises AMQPError 404."""
        was_stopped = self.stopped_ms(name) is not None
        if was_stopped:
            self._put_vhost(name, self._known_vhost(name), {_STOPPED_MS: None})
        return was_stopped

    def stopped_ms(self, name: str) -> int | None:
        """Return when an operator stopped it (ms since 1970), None if not. Raises AMQPError 404."""
        self._known_vhost(name)
        since_ms = json.loads(self._vhosts[name][1]).get(_STOPPED_MS)
        return since_ms if isinstance(since_ms, int) else None

    def delete_vhost(self, name: str) -> None:
        """Make a vhost `deleting`; call `vhost_gone` when its directory is removed. Raises
        AMQPError 404."""
        self._known_vhost(name)
        self._put_vhost(name, DELETING)

    def vhost_gone(self, name: str) -> None:
        """Remove a vhost and its permissions: its directory is removed. Raises AMQPError 404."""
        assert self._known_vhost(name) == DELETING, name
        self._store.delete_vhost(name)
        del self._vhosts[name]
        self._permissions = {key: p for key, p in self._permissions.items() if key[1] != name}
        self._topics = {key: on for key, on in self._topics.items() if key[1] != name}
        self._limits[VHOST].pop(name, None)
        self.on_change()

    # --- definitions ---

    def tables(self) -> Tables:
        """Return all rows, of vhosts that are ready."""
        vhosts = {
            name: self._set_options(name)
            for name, (state, _) in self._vhosts.items()
            if state == READY
        }
        return Tables(
            users=dict(self._users),
            vhosts=vhosts,
            permissions={who: p for who, p in self._permissions.items() if who[1] in vhosts},
            topics={who: p for who, p in self._all_topics().items() if who[1] in vhosts},
            limits={kind: self.limits(kind) for kind in KINDS},
            parameters=self.global_parameters(),
        )

    def _set_options(self, vhost: str) -> dict[str, object]:
        """Return those options of a vhost that are set."""
        meta = json.loads(self._vhosts[vhost][1])
        return {one.name: meta[one.name] for one in VHOST_OPTIONS if one.name in meta}

    def _all_topics(self) -> dict[tuple[str, str, str], tuple[str, str]]:
        return {
            (user, vhost, exchange): patterns
            for (user, vhost), on in self._topics.items()
            for exchange, patterns in on.items()
        }

    def unknown_in(self, new: Tables) -> list[str]:
        """Return what is wrong in rows that refer to others, one line each: users and vhosts that
        are neither here nor in them, and vhosts that are being deleted."""
        deleting = {name for name, state in self.vhosts().items() if state == DELETING}
        vhosts = {*self._vhosts, *new.vhosts}
        wrong = [f"vhost '{name}' is being deleted" for name in new.vhosts if name in deleting]
        pairs = {(user, vhost) for user, vhost, _ in new.topics}.union(new.permissions)
        for user, vhost in sorted(pairs):
            what = f"permissions of user '{user}' in vhost '{vhost}'"
            if user not in self._users and user not in new.users:
                wrong.append(f"{what}: no user '{user}'")
            if vhost not in vhosts:
                wrong.append(f"{what}: no vhost '{vhost}'")
        wrong += [f"limits: no vhost '{name}'" for name in new.limits[VHOST] if name not in vhosts]
        return wrong

    def put(self, given: Tables) -> Tables:
        """Add or replace all these rows, or none, and return those that were not there yet. New
        vhosts are `creating`. The caller has made sure that `unknown_in` finds nothing."""
        new = self.changes_in(given)
        vhosts: dict[str, tuple[str, str]] = {}
        for name, options in new.vhosts.items():
            state, meta = self._vhosts.get(name, (CREATING, "{}"))
            vhosts[name] = state, json.dumps({**json.loads(meta), **options}, sort_keys=True)
        with self._store.transaction():
            for name, (hashed, tags) in new.users.items():
                self._store.put_user(name, hashed, tags)
            for name, (state, meta) in vhosts.items():
                self._store.put_vhost(name, state, meta)
            for name, value in new.parameters.items():
                self._store.put_parameter(name, json.dumps(value, sort_keys=True))
            for (user, vhost), patterns in new.permissions.items():
                self._store.put_permission(user, vhost, patterns)
            for (user, vhost, exchange), two in new.topics.items():
                self._store.put_topic_permission(user, vhost, exchange, two)
            for kind, owners in new.limits.items():
                for name, own in owners.items():
                    self._store.put_limits(kind, name, json.dumps(own, sort_keys=True))
        self._users.update(new.users)
        self._vhosts.update(vhosts)
        self._permissions.update(new.permissions)
        for (user, vhost, exchange), two in new.topics.items():
            self._topics.setdefault((user, vhost), {})[exchange] = two
        for kind, owners in new.limits.items():
            self._limits[kind].update(owners)
        self.on_change()
        return new

    def changes_in(self, given: Tables) -> Tables:
        """Return those rows that are not here yet, with limits as they will be."""
        known_parameters = self.global_parameters()
        new = Tables(
            users={n: user for n, user in given.users.items() if self._users.get(n) != user},
            vhosts={
                name: options
                for name, options in given.vhosts.items()
                if name not in self._vhosts
                or options != {one: self._set_options(name).get(one) for one in options}
            },
            permissions={
                who: p for who, p in given.permissions.items() if self._permissions.get(who) != p
            },
            topics=dict(given.topics.items() - self._all_topics().items()),
            parameters={
                name: value
                for name, value in given.parameters.items()
                if name not in known_parameters or known_parameters[name] != value
            },
        )
        for kind, owners in given.limits.items():
            for name, own in owners.items():
                known = self._limits[kind].get(name, {})
                if known != {**known, **own}:
                    new.limits[kind][name] = {**known, **own}
        return new

    def loaded(self) -> str:
        """Return what `set_loaded` has stored; "" at first."""
        return self._store.fact(_LOADED)

    def set_loaded(self, digest: str) -> None:
        """Store the digest of definitions that were loaded at a start."""
        self._store.put_fact(_LOADED, digest)

    # --- inside ---

    def _check_known(self, user: str | None, vhost: str | None) -> None:
        """Raise AMQPError 404 unless user and vhost exist, those that are given."""
        if user is not None:
            self._known(user)
        if vhost is not None:
            self._known_vhost(vhost)

    def _known(self, name: str) -> tuple[str, tuple[str, ...]]:
        user = self._users.get(name)
        if user is None:
            raise AMQPError(NOT_FOUND, f"no user '{name}'")
        return user

    def _forget_user(self, name: str) -> None:
        self._users.pop(name, None)
        self._permissions = {key: p for key, p in self._permissions.items() if key[0] != name}
        self._topics = {key: on for key, on in self._topics.items() if key[0] != name}
        self._limits[USER].pop(name, None)

    def _known_vhost(self, name: str) -> str:
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise AMQPError(NOT_FOUND, f"no vhost '{name}'")
        return vhost[0]

    def _put_user(self, name: str, hashed: str, tags: tuple[str, ...]) -> None:
        self._store.put_user(name, hashed, tags)
        self._users[name] = (hashed, tags)
        self.on_change()

    def _put_vhost(self, name: str, state: str, facts: Mapping[str, object] | None = None) -> None:
        """Store a vhost. facts: changes of its meta, None for entries to remove; others stay."""
        meta = self._vhosts[name][1] if name in self._vhosts else "{}"
        if facts is not None:
            new = {**json.loads(meta), **facts}
            known = {fact: value for fact, value in new.items() if value is not None}
            meta = json.dumps(known, sort_keys=True)
        self._store.put_vhost(name, state, meta)
        self._vhosts[name] = (state, meta)
        self.on_change()


def _limits_of(stored: Mapping[str, str], kind: str) -> dict[str, dict[str, int]]:
    """Return the stored limits, without those of a later version that are unknown here."""
    found: dict[str, dict[str, int]] = {}
    for name, text in stored.items():
        own = json.loads(text)
        found[name] = checked_limits(
            {n: v for n, v in own.items() if n in KINDS[kind]}, KINDS[kind]
        )
    return found


def check_parameter(name: str, value: object) -> None:
    """Raise OptionError unless it can be a global parameter."""
    check_name("name", name)
    size = len(json.dumps(value))
    if size > PARAMETER_CHARS_MAX:
        expected = f"at most {PARAMETER_CHARS_MAX} characters of JSON"
        raise OptionError(name, f"{size} characters", expected)


def checked_vhost(given: Mapping[str, object]) -> dict[str, object]:
    """Return these of VHOST_OPTIONS as a vhost's meta has them. Raises OptionError."""
    rows = by_name(VHOST_OPTIONS)
    found: dict[str, object] = {}
    for name, value in given.items():
        check_known(name, value, rows)
        checked_value = checked(rows[name].kind, name, value)
        found[name] = list(checked_value) if name == "tags" else checked_value
    return found


def check_name(kind: str, name: str) -> None:
    """Raise OptionError unless it can be the name of a user or vhost (kind)."""
    size_bytes = len(name.encode("utf-8", "surrogateescape"))
    if not 1 <= size_bytes <= NAME_BYTES_MAX:
        raise OptionError(kind, name, f"a name of 1 to {NAME_BYTES_MAX} bytes")
    if not name.isprintable():
        raise OptionError(kind, name, "a name of printable characters")


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags as they are stored: each once, in their order, which is RabbitMQ's. Raises
    OptionError for white space in one."""
    checked = tuple(dict.fromkeys(tags))
    for tag in checked:
        if tag.split() != [tag] or not tag.isprintable():
            raise OptionError("tags", tag, "printable tags without white space")
    return checked
