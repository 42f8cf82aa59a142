"""Identity: who a connection is in one vhost, and what it may configure, write and read.

A permission is a regular expression that is searched in the name of the exchange or queue, as in
RabbitMQ: `^` and `$` anchor it, ".*" is everything, and the empty pattern is taken for "^$", which
is no name at all. The default exchange is asked for by the name "amq.default", as there. Patterns
are matched in linear time (access.patterns), which leaves out a little of RabbitMQ's PCRE.

An Identity never changes. When a user's permissions do, whoever serves the connection is handed
another Identity; so answers can be remembered, at most CACHE_NAMES_MAX per verb.

Passwords are not here (access.users), nor is who asks: each method that names a resource does, also
for names inside arguments (alternate and dead-letter exchanges).
"""

import ipaddress
from typing import Any, Final

from penstock.access.patterns import Pattern
from penstock.errors import OptionError

CACHE_NAMES_MAX: Final = 1024
DEFAULT_EXCHANGE: Final = "amq.default"
NOTHING: Final = "^$"  # the pattern that no name has
ADMINISTRATOR: Final = "administrator"
# RabbitMQ's default of `loopback_users`: its password is known to everyone.
LOOPBACK_USERS: Final = frozenset({"guest"})
GUEST_LOOPBACK: Final = "loopback"
GUEST_OFF: Final = "off"


class PatternCache:
    """One permission: is a name matched? Remembers what it answered."""

    def __init__(self, pattern: str) -> None:
        self._pattern = Pattern(pattern or NOTHING)
        self._known: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        """Is the pattern found anywhere in the name?"""
        known = self._known.get(name)
        if known is None:
            known = self._pattern.is_in(name or DEFAULT_EXCHANGE)
            if len(self._known) >= CACHE_NAMES_MAX:
                self._known = {}
            self._known[name] = known
        return known


class Identity:
    """A user in a vhost. tags: such as "administrator". OptionError: a pattern is no pattern."""

    def __init__(
        self, name: str, tags: frozenset[str], configure: str, write: str, read: str
    ) -> None:
        for verb, pattern in (("configure", configure), ("write", write), ("read", read)):
            check_pattern(verb, pattern)
        self.name: Final = name
        self.tags: Final = tags
        self.configure: Final = configure
        self.write: Final = write
        self.read: Final = read
        self._configure = PatternCache(configure)
        self._write = PatternCache(write)
        self._read = PatternCache(read)

    def may_configure(self, name: str) -> bool:
        """May it make, change and delete an exchange or queue of that name?"""
        return self._configure.matches(name)

    def may_write(self, name: str) -> bool:
        """May it publish to such an exchange, bind such a queue?"""
        return self._write.matches(name)

    def may_read(self, name: str) -> bool:
        """May it consume, get and purge such a queue, bind from such an exchange?"""
        return self._read.matches(name)

    @property
    def is_administrator(self) -> bool:
        """May it do everything, whatever the vhost?"""
        return ADMINISTRATOR in self.tags

    def facts(self) -> dict[str, Any]:
        """All of it as JSON has it, for another process; `from_facts` reads it."""
        return {
            "name": self.name,
            "tags": sorted(self.tags),
            "configure": self.configure,
            "write": self.write,
            "read": self.read,
        }

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> "Identity":
        """What `facts` gave."""
        return cls(
            facts["name"],
            frozenset(facts["tags"]),
            facts["configure"],
            facts["write"],
            facts["read"],
        )


def everything(name: str) -> Identity:
    """An identity that may do all, for those who hold the vhost's files themselves."""
    return Identity(name, frozenset({ADMINISTRATOR}), ".*", ".*", ".*")


def check_pattern(verb: str, pattern: str) -> None:
    """OptionError if `pattern` is no regular expression that access.patterns can match."""
    try:
        Pattern(pattern)
    except ValueError as error:
        expected = f"a regular expression of RE2, docs/users.md ({error})"
        raise OptionError(verb, pattern[:100], expected) from error


def may_come_from(user: str, host: str, guest: str = GUEST_LOOPBACK) -> bool:
    """May this user connect from that address? guest may from this machine only, or, with
    GUEST_OFF, from nowhere."""
    if user not in LOOPBACK_USERS:
        return True
    return guest == GUEST_LOOPBACK and is_loopback(host)


def is_loopback(host: str) -> bool:
    """Is the numeric address one of this machine's own? Also if it is IPv4 written as IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
