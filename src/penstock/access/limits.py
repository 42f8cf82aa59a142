"""Limits: how much one user and one vhost may use; the defaults, and what operators have set.

Two tables list the limits, of a user and of a vhost, by the names that `set_user_limits` and
`set_vhost_limits` take (RabbitMQ's, where it has the limit), each with the field of `Limits` that
holds its default. A number below 0 means no limit, 0 allows nothing.

`Limits` has the defaults, from [limits] in penstock.toml (LIMIT_OPTIONS). `LimitTable` adds what
operators have set for single users and vhosts; each process has one and gets the changes.
broker.usage and the supervisor count and refuse.

VHOST_OPTIONS is what else operators say about a vhost, with RabbitMQ's names. The type of a queue
that is declared without one goes to the vhosts' processes with the limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import OptionError
from penstock.options import (
    Kind,
    Option,
    WrongValueError,
    check_known,
    choice,
    names,
    seconds,
    size,
    whole,
)

MAX_CONNECTIONS: Final = "max-connections"
MAX_CHANNELS: Final = "max-channels"
MAX_PUBLISH_RATE: Final = "max-publish-rate"
MAX_QUEUES: Final = "max-queues"
MAX_EXCHANGES: Final = "max-exchanges"
MAX_BINDINGS: Final = "max-bindings"

LIMIT_MAX: Final = 1_000_000_000
EXPECTED: Final = f"a whole number up to {LIMIT_MAX}, or -1 for no limit"


@dataclass(frozen=True, slots=True)
class Limits:
    """The defaults; -1 means no limit. LIMIT_OPTIONS says what each is. A broker's own defaults of
    user_connections and vhost_connections are smaller if its processes may open few files
    (server.descriptors)."""

    user_connections: int = 4096
    user_channels: int = 32_768
    user_publish_rate: int = -1
    vhost_connections: int = -1
    vhost_queues: int = 100_000
    vhost_exchanges: int = 100_000
    vhost_bindings: int = 1_000_000
    channel_consumers: int = 32_768
    user_exchange_bindings: int = 1000
    stalled_body_s: float = 60.0
    rss_slack_bytes: int = 96 << 20


_LIMIT: Final = whole(-1, LIMIT_MAX, EXPECTED)
SLACK_MIN_BYTES: Final = 64 << 20  # an interpreter without messages takes 40 MiB
LIMIT_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "user_connections", _LIMIT,
        "connections of one user, in all vhosts; the default is less where "
        "[descriptors](../guides/vhosts.md#descriptors) are few", is_live=True,
    ),
    Option("user_channels", _LIMIT, "channels of one user in each vhost", is_live=True),
    Option(
        "user_publish_rate", _LIMIT, "messages a second of one user in each vhost", is_live=True
    ),
    Option(
        "vhost_connections", _LIMIT,
        "connections of a vhost; by default as many as there are "
        "[descriptors](../guides/vhosts.md#descriptors) for", is_live=True,
    ),
    Option("vhost_queues", _LIMIT, "queues of a vhost", is_live=True),
    Option("vhost_exchanges", _LIMIT, "exchanges of a vhost", is_live=True),
    Option("vhost_bindings", _LIMIT, "bindings of a vhost", is_live=True),
    Option("channel_consumers", _LIMIT, "consumers of one channel", is_live=True),
    Option(
        "user_exchange_bindings", _LIMIT,
        "bindings of one user from exchange to exchange, in each vhost", is_live=True,
    ),
    Option(
        "stalled_body_s", seconds(),
        "seconds for which a message that has begun may make no progress",
    ),
    Option(
        "rss_slack_bytes", size(SLACK_MIN_BYTES),
        "RAM of a vhost's process beyond its share of the memory, before publishers wait",
    ),
)  # fmt: skip
# name -> field of Limits
OF_USERS: Final[Mapping[str, str]] = {
    MAX_CONNECTIONS: "user_connections",
    MAX_CHANNELS: "user_channels",
    MAX_PUBLISH_RATE: "user_publish_rate",
}
OF_VHOSTS: Final[Mapping[str, str]] = {
    MAX_CONNECTIONS: "vhost_connections",
    MAX_QUEUES: "vhost_queues",
    MAX_EXCHANGES: "vhost_exchanges",
    MAX_BINDINGS: "vhost_bindings",
}


UNDEFINED: Final = "undefined"


def _description() -> Kind:
    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > DESCRIPTION_CHARS_MAX or "\0" in value:
            raise WrongValueError(f"a text of at most {DESCRIPTION_CHARS_MAX} characters")
        return value

    return Kind("text", check)


DESCRIPTION_CHARS_MAX: Final = 1024
VHOST_OPTIONS: Final[tuple[Option, ...]] = (
    Option("description", _description(), "what the vhost is for", default=""),
    Option("tags", names('tags with commas between them, as "a,b"'), "its tags", default=""),
    Option(
        "default_queue_type", choice("classic", "quorum", "stream", UNDEFINED),
        "the type of durable queues that are declared without one", default=UNDEFINED,
    ),
)  # fmt: skip


def checked_limits(given: Mapping[str, object], names: Mapping[str, str]) -> dict[str, int]:
    """Return the given limits. Raises OptionError for an unknown name or a wrong value."""
    found: dict[str, int] = {}
    for name, value in given.items():
        check_known(name, value, names)
        if type(value) is not int or not -LIMIT_MAX <= value <= LIMIT_MAX:
            raise OptionError(name, value, EXPECTED)
        found[name] = value
    return found


class LimitTable:
    """The defaults, and the limits set for single vhosts and users: name -> limits. queue_types:
    vhost -> its default queue type, if it has one."""

    def __init__(self, defaults: Limits) -> None:
        self.defaults: Limits = defaults
        self.vhosts: dict[str, dict[str, int]] = {}
        self.users: dict[str, dict[str, int]] = {}
        self.queue_types: dict[str, str] = {}
        self.has_publish_rates: bool = defaults.user_publish_rate >= 0

    def set_defaults(self, defaults: Limits) -> None:
        """Replace what is meant where an operator has set nothing."""
        self.defaults = defaults
        self.set(self.vhosts, self.users, self.queue_types)

    def set(
        self, vhosts: dict[str, dict[str, int]], users: dict[str, dict[str, int]],
        queue_types: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Replace the limits that operators have set, and the default queue types of vhosts."""
        self.vhosts, self.users, self.queue_types = vhosts, users, queue_types or {}
        self.has_publish_rates = self.defaults.user_publish_rate >= 0 or any(
            MAX_PUBLISH_RATE in own for own in users.values()
        )

    def facts(self) -> dict[str, object]:
        """Return the arguments of `set` as JSON."""
        return {"vhosts": self.vhosts, "users": self.users, "queue_types": self.queue_types}

    def of_user(self, user: str, name: str) -> int:
        """Return the user's limit of this name; below 0 there is none."""
        own = self.users.get(user)
        if own is not None and name in own:
            return own[name]
        return int(getattr(self.defaults, OF_USERS[name]))

    def of_vhost(self, vhost: str, name: str) -> int:
        """Return the vhost's limit of this name; below 0 there is none."""
        own = self.vhosts.get(vhost)
        if own is not None and name in own:
            return own[name]
        return int(getattr(self.defaults, OF_VHOSTS[name]))
