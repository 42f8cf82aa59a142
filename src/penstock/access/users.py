"""Users: who there is, which vhosts there are and who may what there; and changing all that.

Everything is held in memory and written through to storage.user_store: a change is on disk when
its call returns, and asking never touches the disk. Asking, and how passwords are checked without
holding up a loop: access.known_users, which this is one of; how they are kept: access.passwords.

The first start makes user guest, password guest, administrator with all permissions on vhost "/",
as RabbitMQ does; permissions.may_come_from lets it in from this machine only, or, by the option
`guest`, never.

That an operator has stopped a vhost is such a change: it stays stopped, whoever starts the broker,
until an operator starts it.

Refusals are AMQPErrors, which the control socket passes on with their codes: 404 no such user or
vhost, 406 it is there already, 403 it may not be deleted; OptionError: a value makes no sense.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from penstock.access.known_users import SCRYPT_LOG2_N, KnownUsers, verify
from penstock.access.limits import OF_USERS, OF_VHOSTS, checked_limits
from penstock.access.permissions import ADMINISTRATOR, check_pattern
from penstock.clock import date
from penstock.errors import AMQPError, OptionError
from penstock.storage.user_store import CREATING, DELETING, READY, UserStore

NAME_BYTES_MAX: Final = 255
DEFAULT_VHOST: Final = "/"
USER: Final = "user"
VHOST: Final = "vhost"
_STOPPED_MS: Final = "stopped_ms"  # in a vhost's meta: since when an operator has it stopped
KINDS: Final[Mapping[str, Mapping[str, str]]] = {USER: OF_USERS, VHOST: OF_VHOSTS}


def _nobody_asks() -> None:
    """Of Users that only one process knows of."""


class Users(KnownUsers):
    """The users of a broker, over its UserStore. rng, log2_n: as of KnownUsers.

    on_change: called after each change, when it is on disk, to tell those who hold `facts`.
    """

    def __init__(
        self, store: UserStore, *, rng: random.Random, log2_n: int = SCRYPT_LOG2_N
    ) -> None:
        super().__init__(rng=rng, log2_n=log2_n)
        self.on_change: Callable[[], None] = _nobody_asks
        self._store = store
        if store.is_new:
            self._make_first()
        self._users = store.users()
        self._vhosts = store.vhosts()
        self._permissions = store.permissions()
        self._limits = {kind: _limits_of(store.limits(kind), kind) for kind in KINDS}
        for (user, vhost), patterns in self._permissions.items():
            for pattern in patterns:  # those that are refused are in the log at each start
                self._usable(user, vhost, pattern)

    def _make_first(self) -> None:
        with self._store.transaction():
            self._store.begin()
            self._store.put_user("guest", self._hash(b"guest"), frozenset({ADMINISTRATOR}))
            self._store.put_vhost(DEFAULT_VHOST, CREATING)
            self._store.put_permission("guest", DEFAULT_VHOST, (".*", ".*", ".*"))

    def authenticate(self, name: str, password: bytes) -> bool:
        """Is it right? Takes 50 ms unless it is remembered: not for a loop."""
        if self.remembers(name, password):
            return True
        claim = self.claim(name)
        if not verify(password, claim):
            return False
        self.remember(name, password, claim)
        return True

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
        self._limits[USER].pop(name, None)
        self.on_change()

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
        self.on_change()

    def clear_permissions(self, user: str, vhost: str) -> None:
        """The user may not open that vhost any more. AMQPError 404."""
        self._known(user)
        self._known_vhost(vhost)
        self._store.delete_permission(user, vhost)
        self._permissions.pop((user, vhost), None)
        self.on_change()

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

    # --- limits ---

    def limits(self, kind: str) -> dict[str, dict[str, int]]:
        """The limits that were set: name -> limits. kind: "user" or "vhost"."""
        return {name: dict(own) for name, own in self._limits[kind].items()}

    def set_limits(self, kind: str, name: str, given: Mapping[str, object]) -> None:
        """These limits for a user or vhost, and others as they were. AMQPError 404. OptionError: an
        unknown limit, or no number."""
        self._check_known(kind, name)
        new = checked_limits(given, KINDS[kind])
        self._put_limits(kind, name, {**self._limits[kind].get(name, {}), **new})

    def clear_limits(self, kind: str, name: str, limit: str = "all") -> None:
        """This limit, or all of them, as the server has it by default. AMQPError 404."""
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
        """It is `creating`: make its directory, then `vhost_made`. AMQPError 406: it is there."""
        _check_name("vhost", name)
        if name in self._vhosts:
            raise AMQPError(406, f"vhost '{name}' already exists")
        self._put_vhost(name, CREATING)

    def vhost_made(self, name: str) -> None:
        """Its directory is there: it is `ready`. AMQPError 404."""
        if self._known_vhost(name) == CREATING:
            self._put_vhost(name, READY)

    def stop_vhost(self, name: str, now_ms: int) -> None:
        """It is stopped, since `now_ms`, until `start_vhost`. AMQPError 404; 406: it is so."""
        since_ms = self.stopped_ms(name)
        if since_ms is not None:
            raise AMQPError(406, f"vhost '{name}' is stopped already, since {date(since_ms)}")
        self._put_vhost(name, self._known_vhost(name), {_STOPPED_MS: now_ms})

    def start_vhost(self, name: str) -> bool:
        """It is stopped no more; whether it was. AMQPError 404."""
        was_stopped = self.stopped_ms(name) is not None
        if was_stopped:
            self._put_vhost(name, self._known_vhost(name), {_STOPPED_MS: None})
        return was_stopped

    def stopped_ms(self, name: str) -> int | None:
        """When an operator has stopped it, by `wall_ms`; None: none has. AMQPError 404."""
        self._known_vhost(name)
        since_ms = json.loads(self._vhosts[name][1]).get(_STOPPED_MS)
        return since_ms if isinstance(since_ms, int) else None

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
        self._limits[VHOST].pop(name, None)
        self.on_change()

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
        self.on_change()

    def _put_vhost(
        self, name: str, state: str, facts: Mapping[str, int | None] | None = None
    ) -> None:
        """facts: what changes in its meta, None for what goes; the rest stays as it is."""
        meta = self._vhosts[name][1] if name in self._vhosts else "{}"
        if facts is not None:
            new = {**json.loads(meta), **facts}
            known = {fact: value for fact, value in new.items() if value is not None}
            meta = json.dumps(known, sort_keys=True)
        self._store.put_vhost(name, state, meta)
        self._vhosts[name] = (state, meta)
        self.on_change()


def _limits_of(stored: Mapping[str, str], kind: str) -> dict[str, dict[str, int]]:
    """What was stored; limits that a later version has set and this one does not know are left
    out."""
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
