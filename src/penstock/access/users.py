"""Users: changes users, permissions, limits and vhosts, and keeps them on disk.

Everything is held in memory and written through to storage.user_store: a change is on disk when its
call returns, and reads never touch the disk. KnownUsers, the base, has the reads and the passwords.

The first start makes user guest with password guest, an administrator with all permissions on vhost
"/", as RabbitMQ does. permissions.may_come_from allows it from this machine only, or never, by the
option `guest`. A vhost that an operator has stopped stays stopped over restarts of the broker.

Refusals are AMQPErrors, whose codes the control socket passes on: 404 no such user or vhost, 406 it
exists already. OptionError: an invalid value.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from penstock.access.known_users import SCRYPT_LOG2_N, KnownUsers, verify
from penstock.access.limits import OF_USERS, OF_VHOSTS, checked_limits
from penstock.access.permissions import ADMINISTRATOR, check_pattern
from penstock.clock import date
from penstock.errors import NOT_FOUND, PRECONDITION_FAILED, AMQPError, OptionError
from penstock.storage.user_store import CREATING, DELETING, READY, UserStore

NAME_BYTES_MAX: Final = 255
DEFAULT_VHOST: Final = "/"
USER: Final = "user"
VHOST: Final = "vhost"
_STOPPED_MS: Final = "stopped_ms"  # in a vhost's meta: when an operator stopped it
KINDS: Final[Mapping[str, Mapping[str, str]]] = {USER: OF_USERS, VHOST: OF_VHOSTS}


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
        self._limits = {kind: _limits_of(store.limits(kind), kind) for kind in KINDS}
        for (user, vhost), patterns in self._permissions.items():
            for pattern in patterns:  # log those that are refused, at each start
                self._usable(user, vhost, pattern)

    def _make_first(self) -> None:
        with self._store.transaction():
            self._store.begin()
            self._store.put_user("guest", self._hash(b"guest"), frozenset({ADMINISTRATOR}))
            self._store.put_vhost(DEFAULT_VHOST, CREATING)
            self._store.put_permission("guest", DEFAULT_VHOST, (".*", ".*", ".*"))

    def authenticate(self, name: str, password: bytes) -> bool:
        """Return whether the password is right. Blocks for 50 ms unless it is remembered."""
        if self.remembers(name, password):
            return True
        claim = self.claim(name)
        if not verify(password, claim):
            return False
        self.remember(name, password, claim)
        return True

    # --- users ---

    def tags(self, name: str) -> frozenset[str]:
        """Return the user's tags. Raises AMQPError 404."""
        return self._known(name)[1]

    def list_users(self) -> list[dict[str, Any]]:
        """Return the users, each with `user` and `tags`."""
        return [{"user": name, "tags": sorted(tags)} for name, (_, tags) in self._users.items()]

    def add_user(self, name: str, password: bytes, tags: Iterable[str] = ()) -> None:
        """Add a user, without permissions. Raises AMQPError 406 if it exists."""
        _check_name("user", name)
        if name in self._users:
            raise AMQPError(PRECONDITION_FAILED, f"user '{name}' already exists")
        self._put_user(name, self._hash(password), _checked_tags(tags))

    def change_password(self, name: str, password: bytes) -> None:
        """Change a password. Raises AMQPError 404."""
        _, tags = self._known(name)
        self._put_user(name, self._hash(password), tags)

    def set_user_tags(self, name: str, tags: Iterable[str]) -> None:
        """Replace the user's tags. Raises AMQPError 404, OptionError for white space in a tag."""
        hashed, _ = self._known(name)
        self._put_user(name, hashed, _checked_tags(tags))

    def delete_user(self, name: str) -> None:
        """Delete a user and its permissions. Raises AMQPError 404."""
        self._known(name)
        self._store.delete_user(name)
        del self._users[name]
        self._permissions = {key: p for key, p in self._permissions.items() if key[0] != name}
        self._limits[USER].pop(name, None)
        self.on_change()

    # --- permissions ---

    def set_permissions(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        """Set three patterns. Raises AMQPError 404 without user or vhost, OptionError for a
        pattern."""
        self._known(user)
        self._known_vhost(vhost)
        for verb, pattern in (("configure", configure), ("write", write), ("read", read)):
            check_pattern(verb, pattern)
        patterns = (configure, write, read)
        self._store.put_permission(user, vhost, patterns)
        self._permissions[(user, vhost)] = patterns
        self.on_change()

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Remove the user's access to a vhost. Raises AMQPError 404."""
        self._known(user)
        self._known_vhost(vhost)
        self._store.delete_permission(user, vhost)
        self._permissions.pop((user, vhost), None)
        self.on_change()

    def list_permissions(
        self, *, vhost: str | None = None, user: str | None = None
    ) -> list[dict[str, str]]:
        """Return the permissions of one vhost, of one user, or all: user, vhost, configure, write,
        read."""
        if vhost is not None:
            self._known_vhost(vhost)
        if user is not None:
            self._known(user)
        return [
            {"user": u, "vhost": v, "configure": c, "write": w, "read": r}
            for (u, v), (c, w, r) in sorted(self._permissions.items())
            if vhost in (None, v) and user in (None, u)
        ]

    # --- limits ---

    def limits(self, kind: str) -> dict[str, dict[str, int]]:
        """Return the limits that were set: name -> limits. kind: "user" or "vhost"."""
        return {name: dict(own) for name, own in self._limits[kind].items()}

    def set_limits(self, kind: str, name: str, given: Mapping[str, object]) -> None:
        """Set the given limits of a user or vhost; others stay. Raises AMQPError 404, OptionError
        for an unknown limit or a wrong value."""
        self._check_known(kind, name)
        new = checked_limits(given, KINDS[kind])
        self._put_limits(kind, name, {**self._limits[kind].get(name, {}), **new})

    def clear_limits(self, kind: str, name: str, limit: str = "all") -> None:
        """Reset one limit, or all, to the default. Raises AMQPError 404."""
        self._check_known(kind, name)
        if limit != "all" and limit not in KINDS[kind]:
            raise OptionError("limit", limit, [*KINDS[kind], "all"])
        own = self._limits[kind].get(name, {})
        left = {one: n for one, n in own.items() if limit not in ("all", one)}
        self._put_limits(kind, name, left)

    def _check_known(self, kind: str, name: str) -> None:
        if kind == USER:
            self._known(name)
        else:
            self._known_vhost(name)

    def _put_limits(self, kind: str, name: str, own: dict[str, int]) -> None:
        self._store.put_limits(kind, name, json.dumps(own, sort_keys=True) if own else "")
        if own:
            self._limits[kind][name] = own
        else:
            self._limits[kind].pop(name, None)

    # --- vhosts ---

    def add_vhost(self, name: str) -> None:
        """Add a vhost as `creating`; call `vhost_made` when its directory exists. Raises AMQPError
        406 if the vhost exists."""
        _check_name("vhost", name)
        if name in self._vhosts:
            raise AMQPError(PRECONDITION_FAILED, f"vhost '{name}' already exists")
        self._put_vhost(name, CREATING)

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
        self._limits[VHOST].pop(name, None)
        self.on_change()

    # --- inside ---

    def _known(self, name: str) -> tuple[str, frozenset[str]]:
        user = self._users.get(name)
        if user is None:
            raise AMQPError(NOT_FOUND, f"no user '{name}'")
        return user

    def _known_vhost(self, name: str) -> str:
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise AMQPError(NOT_FOUND, f"no vhost '{name}'")
        return vhost[0]

    def _put_user(self, name: str, hashed: str, tags: frozenset[str]) -> None:
        self._store.put_user(name, hashed, tags)
        self._users[name] = (hashed, tags)
        self.on_change()

    def _put_vhost(
        self, name: str, state: str, facts: Mapping[str, int | None] | None = None
    ) -> None:
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
