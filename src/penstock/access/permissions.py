"""Identity: the user of a connection in one vhost, and what it may configure, write and read.

A permission is a regular expression that is searched in the name of the exchange or queue, as in
RabbitMQ: `^` and `$` anchor it, ".*" matches everything, and the empty pattern means "^$", which
matches no name. The default exchange has the name "amq.default" here, as in RabbitMQ. Patterns are
matched in linear time (access.patterns), so a little of RabbitMQ's PCRE is missing.

An Identity never changes: when permissions change, the connection gets another Identity. So results
can be cached, at most CACHE_NAMES_MAX per verb. Every method that names a resource checks it, also
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
    """Matches names against one permission, and caches the results."""

    def __init__(self, pattern: str) -> None:
        self._pattern = Pattern(pattern or NOTHING)
        self._known: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        """Return whether the pattern is found anywhere in the name."""
        known = self._known.get(name)
        if known is None:
            known = self._pattern.is_in(name or DEFAULT_EXCHANGE)
            if len(self._known) >= CACHE_NAMES_MAX:
                self._known = {}
            self._known[name] = known
        return known


class Identity:
    """A user in a vhost. tags: such as "administrator". Raises OptionError for a bad pattern."""

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
        """Return whether it may make, change and delete an exchange or queue of this name."""
        return self._configure.matches(name)

    def may_write(self, name: str) -> bool:
        """Return whether it may publish to an exchange of this name, and bind such a queue."""
        return self._write.matches(name)

    def may_read(self, name: str) -> bool:
        """Return whether it may consume, get and purge such a queue, and bind from such an
        exchange."""
        return self._read.matches(name)

    @property
    def is_administrator(self) -> bool:
        """Whether it may do everything in all vhosts."""
        return ADMINISTRATOR in self.tags

    def facts(self) -> dict[str, Any]:
        """Return the identity as JSON, for `from_facts` in another process."""
        return {
            "name": self.name,
            "tags": sorted(self.tags),
            "configure": self.configure,
            "write": self.write,
            "read": self.read,
        }

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> "Identity":
        """Return the identity of `facts`."""
        return cls(
            facts["name"],
            frozenset(facts["tags"]),
            facts["configure"],
            facts["write"],
            facts["read"],
        )


def everything(name: str) -> Identity:
    """Return an identity that may do everything, for programs that own the vhost's files."""
    return Identity(name, frozenset({ADMINISTRATOR}), ".*", ".*", ".*")


def check_pattern(verb: str, pattern: str) -> None:
    """Raise OptionError if access.patterns cannot match the pattern."""
    try:
        Pattern(pattern)
    except ValueError as error:
        expected = f"a regular expression of RE2, docs/guides/users.md ({error})"
        raise OptionError(verb, pattern[:100], expected) from error


def may_come_from(user: str, host: str, guest: str = GUEST_LOOPBACK) -> bool:
    """Return whether the user may connect from this address. guest may connect only from this
    machine, or, with GUEST_OFF, from nowhere."""
    if user not in LOOPBACK_USERS:
        return True
    return guest == GUEST_LOOPBACK and is_loopback(host)


def is_loopback(host: str) -> bool:
    """Return whether the numeric address is a loopback address, also as IPv4 written as IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
