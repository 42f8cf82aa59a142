"""Identity: the user of a connection in one vhost, and what it may configure, write and read.

A permission is a regular expression that is searched in the name of the exchange or queue, as in
RabbitMQ: `^` and `$` anchor it, ".*" matches everything, and the empty pattern means "^$", which
matches no name. The default exchange has the name "amq.default" here, as in RabbitMQ. Patterns are
matched in time linear in the name, so a little of RabbitMQ's PCRE is missing.

A topic permission is for one topic exchange: the routing keys of publishes to it (write) and of
bindings from it (read) must match too. Without one every key is allowed, with an empty pattern the
empty key. "{username}" and "{vhost}" in it stand for the user's and the vhost's name, literally:
RabbitMQ would match the name as a pattern, so that the user "a.b" could publish as "axb".

An Identity never changes: when permissions change, the connection gets another Identity. So results
can be cached, at most CACHE_NAMES_MAX per verb, and connections of a user share one
(`Identity.shared`). Every method that names a resource checks it, also
for names inside arguments (alternate and dead-letter exchanges).

An administrator writes a pattern, and any user sends a name, so a pattern that backtracks lets one
user delay everybody: "^(a+)+$" takes Python's `re` minutes for 40 letters. RE2 (the package
google-re2) follows all ways at once. Its language is RabbitMQ's (PCRE) without what cannot be
matched like that: references to groups ("\\1"), look-ahead and look-behind, possessive and atomic
groups. Such a pattern is refused when it is set, but for "^(?!amq\\.)", which excludes names by how
they begin: it is matched as two patterns.

Without the package, Python's `re` matches. Then a pattern that may backtrack through more than two
repeats is refused as well: repeats and alternatives within a repeat, and more than two repeats in a
row.

Names are text with surrogates for bytes that are not UTF-8; these are matched as U+FFFD.
"""

import ipaddress
import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Final

from penstock.errors import OptionError

try:
    import re2
except ImportError:
    re2 = None

PATTERN_CHARS_MAX: Final = 1024
SCOPES_CHARS_MAX: Final = 1 << 16  # of a pattern that is made of the scopes of a token
MEMORY_BYTES: Final = 1 << 20  # of a compiled pattern
PATTERNS_MAX: Final = 64  # compiled ones that are kept for the next user of them
REPEATS_MAX: Final = 2  # one after the other, for `re`

EXCLUDING: Final = "^(?!"

_parser: Final[Any] = getattr(re, "_parser")  # noqa: B009 - it has no stubs


class Pattern:
    """One pattern, which is searched anywhere in a name. Raises ValueError if it is malformed,
    cannot be matched in linear time, or is longer than chars_max."""

    def __init__(self, pattern: str, chars_max: int = PATTERN_CHARS_MAX) -> None:
        if len(pattern) > chars_max:
            raise ValueError(f"{len(pattern)} characters, at most {chars_max}")
        self.text: Final = pattern
        excluded, rest = _split(pattern)
        self._excluded: Any = _compiled(f"^(?:{excluded})", re2) if excluded else None
        self._compiled: Any = _compiled(rest, re2)

    def is_in(self, name: str) -> bool:
        """Return whether the pattern is found anywhere in the name."""
        if not name.isascii():
            name = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if self._excluded is not None and self._excluded.search(name) is not None:
            return False
        return self._compiled.search(name) is not None


def _split(pattern: str) -> tuple[str, str]:
    """Return EXCLUDED and ^REST of "^(?!EXCLUDED)REST", the look-ahead that RabbitMQ's own examples
    have ("^(?!amq\\.).*"): names that begin with EXCLUDED do not match. "" and the pattern if it
    has another form, also where an alternative stands beside it."""
    if not pattern.startswith(EXCLUDING) or "\\Q" in pattern:
        return "", pattern
    start = len(EXCLUDING)
    depth, end, is_set, is_escaped = 1, 0, False, False
    for at in range(start, len(pattern)):
        char = pattern[at]
        if is_escaped or char == "\\":
            is_escaped = not is_escaped
        elif is_set:
            # A bracket that is the first of a set belongs to it.
            is_set = char != "]" or pattern[at - 1] == "[" or pattern[at - 2 : at] == "[^"
        elif char == "[":
            is_set = True
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth and not end:
                end = at
        elif char == "|" and end and not depth:
            return "", pattern
    if end == start or not end or pattern[end + 1 : end + 2] in ("*", "+", "?", "{"):
        return "", pattern
    return pattern[start:end], "^" + pattern[end + 1 :]


def name_filter(text: str, *, is_regex: bool) -> Callable[[str], bool]:
    """Return a function that says whether the text, or a match of it, is in a name, in any case.
    ValueError: as Pattern."""
    if is_regex:
        return Pattern(f"(?i){text}").is_in
    wanted = text.casefold()
    return lambda name: wanted in name.casefold()


def has_re2() -> bool:
    """Return whether RE2 is installed."""
    return re2 is not None


@lru_cache(PATTERNS_MAX)
def _compiled(pattern: str, engine: Any) -> Any:
    """Return the pattern as RE2 (engine) compiles it; None: as `re` does."""
    try:
        pattern.encode()
        if engine is None:
            return _backtracking(pattern)
        options = engine.Options()
        options.max_mem = MEMORY_BYTES
        options.log_errors = False
        return engine.compile(pattern, options)
    except (UnicodeEncodeError, OverflowError, RecursionError, re.error) as error:
        raise ValueError(str(error)) from error
    except ValueError:
        raise
    except Exception as error:  # re2.error derives from Exception
        said = error.args[0] if error.args else error
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise ValueError(text) from error


# ---- without RE2 ---------------------------------------------------------------------------------


def _backtracking(pattern: str) -> re.Pattern[str]:
    if _repeats(_parser.parse(pattern)) > REPEATS_MAX:
        raise ValueError(
            f"more than {REPEATS_MAX} repeats in a row; the package google-re2 can match it"
        )
    return re.compile(pattern)


def _repeats(parsed: Any) -> int:
    """Return how many repeats a match may backtrack through; the most of all alternatives."""
    n = 0
    for kind, value in parsed:
        name = str(kind)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            if not _is_fixed(value[2]):
                raise ValueError(
                    "a repeat or an alternative is repeated; the package google-re2 can match it"
                )
            n += 1
        elif name == "SUBPATTERN":
            n += _repeats(value[3])
        elif name == "BRANCH":
            n += max(_repeats(branch) for branch in value[1])
        elif name not in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT"):
            raise ValueError(f"{name} cannot be matched in linear time")
    return n


def _is_fixed(parsed: Any) -> bool:
    """Return whether it matches in one way only."""
    return all(
        str(kind) in ("LITERAL", "NOT_LITERAL", "ANY", "IN", "AT")
        or (str(kind) == "SUBPATTERN" and _is_fixed(value[3]))
        for kind, value in parsed
    )


CACHE_NAMES_MAX: Final = 1024
IDENTITIES_MAX: Final = 64  # that a process keeps for the next connection
ADDRESSES_MAX: Final = 1024  # whose kind is remembered
DEFAULT_EXCHANGE: Final = "amq.default"
NOTHING: Final = "^$"  # the pattern that no name has
ADMINISTRATOR: Final = "administrator"
IMPERSONATOR: Final = "impersonator"  # may publish with the user-id of others, as in RabbitMQ
GUEST: Final = "guest"
INTERNAL: Final = "internal"  # the backend of the users that are kept here
# RabbitMQ's default of `loopback_users`: its password is known to everyone.
LOOPBACK_USERS: Final = (GUEST,)
GUEST_LOOPBACK: Final = "loopback"
GUEST_OFF: Final = "off"


class PatternCache:
    """Matches names against one permission, and caches the results. unnamed: what is matched
    for ""."""

    def __init__(self, pattern: str, unnamed: str = DEFAULT_EXCHANGE) -> None:
        self._unnamed: Final = unnamed
        self._pattern = Pattern(pattern or NOTHING, SCOPES_CHARS_MAX)
        self._known: dict[str, bool] = {}

    def matches(self, name: str) -> bool:
        """Return whether the pattern is found anywhere in the name."""
        known = self._known.get(name)
        if known is None:
            known = self._pattern.is_in(name or self._unnamed)
            if len(self._known) >= CACHE_NAMES_MAX:
                self._known = {}
            self._known[name] = known
        return known


def _has(is_allowed: bool) -> str:
    return "allows" if is_allowed else "does not allow"


class Identity:
    """A user in a vhost. tags: such as "administrator". topics: exchange -> the patterns of routing
    keys that it may write and read, expanded. on_keys: instead, patterns of "EXCHANGE\\nKEY" that
    it may write and read, for every topic exchange. source: which backend has decided.
    expires_at_s: when it ends (seconds since 1970), 0 if never. asks_resources, asks_topics: what
    it may do by its patterns a server must allow, too (broker.asked_rights); asks_from: the
    client's address, for that server. Raises OptionError for a bad pattern."""

    def __init__(
        self, name: str, tags: frozenset[str], configure: str, write: str, read: str,
        topics: Mapping[str, tuple[str, str]] | None = None, *,
        on_keys: tuple[str, str] | None = None, source: str = INTERNAL, expires_at_s: float = 0,
        asks_from: str = "", asks_resources: bool = False, asks_topics: bool = False,
    ) -> None:  # fmt: skip
        for verb, pattern in (("configure", configure), ("write", write), ("read", read)):
            check_pattern(verb, pattern, SCOPES_CHARS_MAX)
        self.name: Final = name
        self.tags: Final = tags
        self.configure: Final = configure
        self.write: Final = write
        self.read: Final = read
        self._configure = PatternCache(configure)
        self._write = PatternCache(write)
        self._read = PatternCache(read)
        self.topics: Final = topics or {}
        self.on_keys: Final = on_keys
        self.source: Final = source
        self.expires_at_s: Final = expires_at_s
        self.asks_from: Final = asks_from
        self.asks_resources: Final = asks_resources
        self.asks_topics: Final = asks_topics
        self._text = b""
        self._on_keys = None if on_keys is None else [PatternCache(one) for one in on_keys]
        self._topics: dict[str, tuple[PatternCache, PatternCache]] = {
            exchange: (PatternCache(one[0], ""), PatternCache(one[1], ""))
            for exchange, one in self.topics.items()
        }

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

    def may_write_topic(self, exchange: str, key: str) -> bool:
        """Return whether it may publish with this routing key to this topic exchange."""
        if self._on_keys is not None:
            return self._on_keys[0].matches(f"{exchange}\n{key}")
        own = self._topics.get(exchange)
        return own is None or own[0].matches(key)

    def may_write_every_topic(self, exchange: str) -> bool:
        """Return whether it may publish with every routing key, if it may write to the exchange."""
        own = self.topics.get(exchange)
        return (
            self.on_keys is None
            and not (self.asks_resources or self.asks_topics)
            and (own is None or own[0] == ".*")
        )

    def may_read_topic(self, exchange: str, key: str) -> bool:
        """Return whether it may bind with this routing key from this topic exchange."""
        if self._on_keys is not None:
            return self._on_keys[1].matches(f"{exchange}\n{key}")
        own = self._topics.get(exchange)
        return own is None or own[1].matches(key)

    def verdict(self, verb: str, name: str, key: str | None) -> tuple[bool, str]:
        """Return whether it may configure, write or read (verb) a name, and why. key: a routing
        key, if the name is that of a topic exchange."""
        may, pattern = {
            "configure": (self.may_configure, self.configure),
            "write": (self.may_write, self.write),
            "read": (self.may_read, self.read),
        }[verb]
        is_allowed = may(name)
        why = f"{verb} is '{pattern}', which {_has(is_allowed)} '{name}'"
        if not is_allowed or key is None or verb == "configure":
            return is_allowed, why
        patterns = self.on_keys or self.topics.get(name)
        if patterns is None:
            return is_allowed, why
        may_topic = self.may_write_topic if verb == "write" else self.may_read_topic
        is_allowed = may_topic(name, key)
        pattern = patterns[0] if verb == "write" else patterns[1]
        where = f"{verb} at '{name}' is for routing keys '{pattern}'"
        if self.on_keys is not None:
            where = f"{verb} of topics is for 'EXCHANGE\\nKEY' '{pattern}'"
        return is_allowed, f"{where}, which {_has(is_allowed)} '{key}'"

    @property
    def has_topics(self) -> bool:
        """Whether routing keys are checked at all."""
        return bool(self.topics) or self.on_keys is not None

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
            "topics": self.topics,
            "on_keys": self.on_keys,
            "source": self.source,
            "expires_at_s": self.expires_at_s,
            "asks_from": self.asks_from,
            "asks_resources": self.asks_resources,
            "asks_topics": self.asks_topics,
        }

    @property
    def text(self) -> bytes:
        """Return the facts as text, for `from_text` in another process."""
        if not self._text:
            self._text = json.dumps(self.facts()).encode()
        return self._text

    def asking(self, host: str, *, resources: bool, topics: bool) -> "Identity":
        """Return the same identity, of a client from this address, with what is asked."""
        facts = {"asks_from": host, "asks_resources": resources, "asks_topics": topics}
        return Identity.from_facts({**self.facts(), **facts})

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> "Identity":
        """Return the identity of `facts`."""
        return cls.shared(
            facts["name"],
            frozenset(facts["tags"]),
            facts["configure"],
            facts["write"],
            facts["read"],
            {exchange: (write, read) for exchange, (write, read) in facts["topics"].items()},
            on_keys=tuple(facts["on_keys"]) if facts["on_keys"] is not None else None,
            source=facts["source"],
            expires_at_s=facts["expires_at_s"],
            asks_from=facts["asks_from"],
            asks_resources=facts["asks_resources"],
            asks_topics=facts["asks_topics"],
        )

    @classmethod
    def from_text(cls, text: bytes) -> "Identity":
        """Return the identity of `text`."""
        return _of_text(text)

    @classmethod
    def shared(
        cls, name: str, tags: frozenset[str], configure: str, write: str, read: str,
        topics: Mapping[str, tuple[str, str]], *, on_keys: tuple[str, str] | None = None,
        source: str = INTERNAL, expires_at_s: float = 0, asks_from: str = "",
        asks_resources: bool = False, asks_topics: bool = False,
    ) -> "Identity":  # fmt: skip
        """Return an Identity like this; mostly one that another connection has, with the names that
        it has matched."""
        return _shared(
            name, tags, configure, write, read, tuple(topics.items()), on_keys, source,
            expires_at_s, asks_from, asks_resources, asks_topics,
        )  # fmt: skip


@lru_cache(IDENTITIES_MAX)
def _of_text(text: bytes) -> Identity:
    return Identity.from_facts(json.loads(text))


@lru_cache(IDENTITIES_MAX)
def _shared(
    name: str, tags: frozenset[str], configure: str, write: str, read: str,
    topics: tuple[tuple[str, tuple[str, str]], ...], on_keys: tuple[str, str] | None,
    source: str, expires_at_s: float, asks_from: str, asks_resources: bool, asks_topics: bool,
) -> Identity:  # fmt: skip
    return Identity(
        name, tags, configure, write, read, dict(topics), on_keys=on_keys, source=source,
        expires_at_s=expires_at_s, asks_from=asks_from, asks_resources=asks_resources,
        asks_topics=asks_topics,
    )  # fmt: skip


def everything(name: str) -> Identity:
    """Return an identity that may do everything, for programs that own the vhost's files."""
    return Identity(name, frozenset({ADMINISTRATOR}), ".*", ".*", ".*")


def expanded(pattern: str, user: str, vhost: str) -> str:
    """Return the pattern of a topic permission with the names in it. An empty one stays empty."""
    for variable, name in (("{username}", user), ("{vhost}", vhost)):
        pattern = pattern.replace(variable, re.escape(name))
    return pattern


def check_pattern(verb: str, pattern: str, chars_max: int = PATTERN_CHARS_MAX) -> None:
    """Raise OptionError if access.patterns cannot match the pattern."""
    try:
        Pattern(pattern, chars_max)
    except ValueError as error:
        expected = f"a regular expression of RE2, docs/guides/users.md ({error})"
        raise OptionError(verb, pattern[:100], expected) from error


def why_not_from(
    user: str, host: str, guest: str = GUEST_LOOPBACK,
    loopback_users: Collection[str] = LOOPBACK_USERS,
) -> str:  # fmt: skip
    """Return why the user may not connect from this address, "" if it may. loopback_users: may
    connect only from this machine. guest: with GUEST_OFF, guest may from nowhere."""
    if user == GUEST and guest == GUEST_OFF:
        return "guest is off"
    if user in loopback_users and not is_loopback(host):
        return "it may connect from this machine only"
    return ""


@lru_cache(ADDRESSES_MAX)
def is_loopback(host: str) -> bool:
    """Return whether the numeric address is a loopback address, also as IPv4 written as IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
