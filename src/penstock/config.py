"""Config: the options of a broker, from penstock.toml, PENSTOCK_* and flags, in one frozen object.

All options are optional. A flag overrides the environment, that the file, the file the default. In
the file the names are those of `OPTIONS`, and the storage engine's are in a table [storage]; in
the environment they are in capitals after PENSTOCK_, the engine's after PENSTOCK_STORAGE_; a flag
is the name with hyphens.

    port = 5672                     PENSTOCK_PORT=5672                      --port 5672
    memory = "64MiB"                PENSTOCK_MEMORY=64MiB                   --memory 64MiB
    [storage]
    checkpoint_seconds = 10         PENSTOCK_STORAGE_CHECKPOINT_SECONDS=10
    [limits]
    user_channels = 1000            PENSTOCK_LIMITS_USER_CHANNELS=1000
    [queues]
    backing_queue = "a.b:C"         PENSTOCK_QUEUES_BACKING_QUEUE=a.b:C
    [tls]
    cert = "server.pem"             PENSTOCK_TLS_CERT=server.pem

The tables of options are `OPTIONS` here, STORAGE_OPTIONS (penstock.storage.files.options),
LIMIT_OPTIONS (penstock.access.limits), QUEUE_OPTIONS (penstock.queues.backing_choice) and
TLS_OPTIONS (penstock.access.tls_options). A row has the name, the values, the meaning and, unless
the field of Config has it, the default; `penstock config explain` and
docs/reference/configuration.md are made from them. A new option is a row and a field of Config.

Values are checked when a Config is made: an OptionError names the value by the place where it was
given. For an unknown name in the file it suggests the right one. The environment is shared with
other programs, so an unknown PENSTOCK_* there is an error only if it is nearly one of these, and
PENSTOCK_PORT=tcp://..., which Kubernetes sets for a service called penstock, is ignored, which
`notes` reports.
"""

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from penstock.access.http_options import (
    HTTP,
    HTTP_LOGIN_OPTIONS,
    HttpLoginOptions,
    check_http_options,
)
from penstock.access.limits import LIMIT_OPTIONS, Limits
from penstock.access.permissions import GUEST_LOOPBACK, GUEST_OFF, INTERNAL, LOOPBACK_USERS
from penstock.access.tls_options import PORT_MAX, TLS_OPTIONS, TlsOptions
from penstock.access.tokens import OAUTH2, OAUTH2_OPTIONS, OAuth2Options, check_options
from penstock.errors import OptionError
from penstock.operation_table import LEVELS
from penstock.options import (
    Kind,
    Option,
    WrongValueError,
    by_name,
    choice,
    flag,
    format_bytes,
    names,
    or_word,
    parse_bytes,
    seconds,
    size,
    some_of,
    text,
    unparsed,
    value_of,
    whole,
)
from penstock.queues.backing_choice import QUEUE_OPTIONS, BackingChoice
from penstock.storage.files.durability import DISK, MODE_NAMES, NONE, Durability
from penstock.storage.files.options import STORAGE_OPTIONS, StorageOptions

PREFIX: Final = "PENSTOCK_"
STORAGE: Final = "storage"
LIMITS: Final = "limits"
QUEUES: Final = "queues"
TLS: Final = "tls"
AUTH_OAUTH2: Final = "auth_oauth2"
AUTH_HTTP: Final = "auth_http"
BACKENDS: Final = (INTERNAL, OAUTH2, HTTP)
TABLES: Final[Mapping[str, tuple[Option, ...]]] = {
    STORAGE: STORAGE_OPTIONS, LIMITS: LIMIT_OPTIONS, QUEUES: QUEUE_OPTIONS, TLS: TLS_OPTIONS,
    AUTH_OAUTH2: OAUTH2_OPTIONS, AUTH_HTTP: HTTP_LOGIN_OPTIONS,
}  # fmt: skip
FIX: Final = "fix"
REFUSE: Final = "refuse"
IGNORE: Final = "ignore"
CONTINUE: Final = "continue"
STOP_NODE: Final = "stop_node"
# What Kubernetes puts into the environment of every pod for a service called penstock.
SERVICE_LINK: Final = re.compile(r"(tcp|udp|sctp)://")
MEMORY_MIN_BYTES: Final = 1 << 20
MANY: Final = 1_000_000
GIB: Final = 1 << 30
PASSWORD: Final = re.compile("//[^/@]*:[^/@]*@")
# Of the environment, and not settings of a broker.
NOT_SETTINGS: Final = frozenset(
    {"CONFIG", "PURE", "URL", "TEST_URL", "CRASH_IMAGES", "MEASURE_LOOP"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a broker is started with: times in seconds, sizes in bytes.

    `OPTIONS` says what the fields mean that a user can set. mode: of durability. notes: lines for
    the log about values that were given and are not used. origins: of an option's key: where it
    was given. The last fields cannot be set by users; tests use shorter times.
    """

    data: str = "./penstock-data"
    host: str = "127.0.0.1"
    port: int | None = 5672
    http_port: int | None = 15672
    prometheus_port: int | None = None
    memory_bytes: int = GIB
    mode: int = DISK
    log_level: str = "info"
    is_strict: bool = False
    handshake_timeout_s: float = 10.0
    half_open_max: int = 1000
    half_open_bytes_max: int = 8 << 20
    guest: str = GUEST_LOOPBACK
    loopback_users: tuple[str, ...] = LOOPBACK_USERS
    load_definitions: str = ""
    auth_backends: tuple[str, ...] = (INTERNAL,)
    audit_log: str = ""
    audit_log_bytes: int = 64 << 20
    audit_vhost: str = ""
    data_permissions: str = FIX
    http_hosts: tuple[str, ...] = ()
    http_connections_max: int = 4096
    http_address_connections_max: int = 1024
    http_user_requests_max: int = 256
    proxy_protocol_from: tuple[str, ...] = ()
    http_proxy_protocol_from: tuple[str, ...] = ()
    vhost_hang_s: float = 30.0
    vhost_restarts_max: int = 3
    vhost_restart_window_s: float = 300.0
    vhost_restart_strategy: str = CONTINUE
    vhost_retry_s: float = 10.0
    vhost_refusal_s: float = 600.0
    staging_bytes_max: int = 8 * GIB
    staging_user_bytes_max: int = 6 * GIB
    staging_timeout_s: float = 86_400.0
    lease_alert_s: float = 3600.0
    consumer_timeout_s: float | None = 1800.0  # as RabbitMQ's
    consumer_timeout_closes: bool = False
    stream_hold_s_max: float = 86_400.0
    stream_hold_bytes_max: int = 8 * GIB
    storage: StorageOptions = field(default_factory=StorageOptions)
    limits: Limits = field(default_factory=Limits)
    queues: BackingChoice = field(default_factory=BackingChoice)
    tls: TlsOptions = field(default_factory=TlsOptions)
    auth_oauth2: OAuth2Options = field(default_factory=OAuth2Options)
    auth_http: HttpLoginOptions = field(default_factory=HttpLoginOptions)
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    silent_close_s: float = 1.0  # before a client is dropped that was refused without an answer
    nofile: int = 1 << 20  # files and sockets that a process may open (server.descriptors)
    vhost_start_s: float = 600.0  # a recovery may take so long
    open_s: float = 30.0  # for which a client waits for its vhost to start
    ping_s: float = 2.5  # between two pings; the memory is divided again as often
    stop_s: float = 60.0  # an orderly stop of a vhost, its checkpoint included

    @property
    def is_audited(self) -> bool:
        """Return whether somebody wants entries of the audit."""
        return bool(self.audit_log or self.audit_vhost)

    def live_settings(self) -> dict[str, object]:
        """Return what processes that run take of changed settings, as JSON."""
        return {
            "log_level": self.log_level,
            "disk_free_limit": self.storage.disk_free_limit,
            "limits": asdict(self.limits),
        }

    def vhost_settings(self, memory_bytes: int) -> dict[str, object]:
        """Return the settings of a vhost's process with this memory, as JSON."""
        names = (
            "mode", "is_strict", "is_audited", "audit_vhost", "log_level", "staging_timeout_s",
            "lease_alert_s", "consumer_timeout_s", "consumer_timeout_closes", "stream_hold_s_max",
            "stream_hold_bytes_max",
        )  # fmt: skip
        return {
            **{name: getattr(self, name) for name in names},
            **{table: asdict(getattr(self, table)) for table in (STORAGE, LIMITS, QUEUES)},
            "memory_bytes": memory_bytes,
            "has_tls": self.tls.is_on,
        }


# ---- the table -----------------------------------------------------------------------------------


def _share() -> Kind:
    """Memory: a size or a fraction, which `config_of` takes of the machine's."""

    def check(value: object) -> object:
        if not isinstance(value, str | int | float):
            raise WrongValueError('a size such as "64MiB", or a fraction such as "0.4"')
        return value

    return Kind("size, or a fraction of the machine's", check, shown=format_bytes)


def _durability() -> Kind:
    """What a confirm means; the Durability of a text."""
    expected = "disk, interval=<ms> or os"

    def check(value: object) -> Durability:
        try:
            durability = Durability.parse(value) if isinstance(value, str) else Durability(NONE)
        except OptionError:
            raise WrongValueError(expected) from None
        if durability.mode == NONE:
            raise WrongValueError(expected)
        return durability

    return Kind("`disk`, `interval=MS`, `os`", check, unparsed, MODE_NAMES.__getitem__)


def _networks() -> Kind:
    """Addresses and networks."""
    inner = names()
    expected = 'networks with commas between them, as "10.0.0.0/8, 192.0.2.7"'

    def check(value: object) -> tuple[str, ...]:
        try:
            return tuple(str(ipaddress.ip_network(one)) for one in inner.check(value))
        except ValueError:  # a WrongValueError is one
            raise WrongValueError(expected) from None

    return replace(inner, words="networks with commas between them", check=check)


_PORT: Final = whole(0, PORT_MAX)
OPTIONS: Final[tuple[Option, ...]] = (
    Option("data", text("a directory"), "the data directory, made if it is missing"),
    Option(
        "host",
        text('an address to listen at, such as "127.0.0.1" or "0.0.0.0"'),
        "the address to listen at; `0.0.0.0`: all",
    ),
    Option(
        "port", or_word(_PORT, "off"),
        "the port of AMQP; 0: a free one; `off`: AMQP over [TLS](../guides/tls.md) only",
    ),
    Option(
        "http_port", or_word(_PORT, "off"), "the port of HTTP; 0: a free one; `off`: no HTTP"
    ),
    Option(
        "prometheus_port", or_word(_PORT, "off"),
        "the port of [metrics](../guides/monitoring.md) without a password, RabbitMQ's is 15692; "
        "0: a free one; `off`: none", default="off",
    ),
    Option(
        "memory", _share(),
        "RAM for the queues of all vhosts: `64MiB`, or a fraction of what the machine or its "
        "control group has",
        field="memory_bytes", default="0.4", is_live=True,
    ),
    Option(
        "durability", _durability(),
        "what a confirm means, see [durability](../how-it-works/durability.md): synced (`disk`); "
        "written, and synced every MS milliseconds (`interval=MS`); written (`os`)",
        field="mode", default="disk",
    ),
    Option(
        "log_level", choice(*LEVELS), "the least important lines that are logged", is_live=True
    ),
    Option(
        "strict", flag(),
        "refuse queues whose own memory limits exceed the budget, [at a declare and at a start]"
        "(../how-it-works/memory.md#limits)",
        field="is_strict",
    ),
    Option(
        "handshake_timeout", seconds(), "seconds that a client has until `connection.open`",
        field="handshake_timeout_s",
    ),
    Option(
        "half_open_max", whole(1, MANY),
        "clients that have not got so far; beyond it, the address with most of them loses one",
    ),
    Option("half_open_bytes_max", size(64 << 10), "bytes kept of what all of these have sent"),
    Option(
        "guest", choice(GUEST_LOOPBACK, GUEST_OFF),
        "where the user guest may connect from: this machine (`loopback`), or nowhere (`off`)",
    ),
    Option(
        "loopback_users", names('names of users with commas between them, as "guest, ann"'),
        "users who may connect from this machine only, as in RabbitMQ; empty: nobody",
    ),
    Option(
        "load_definitions", text("a file of definitions"),
        "a file of [definitions](../guides/definitions.md#at-the-start) that is imported before "
        "clients can connect; a file that was loaded before is skipped",
        default="none",
    ),
    Option(
        "auth_backends", some_of(BACKENDS, ", each once"),
        "[who decides on logins](../guides/logins.md), in this order: `internal`, the users of "
        "this broker; `oauth2`, an issuer of tokens; `http`, a server that checks passwords",
    ),
    Option(
        "audit_log", text("a file"),
        "a file of JSON lines: [who has changed what](../guides/users.md#audit), and who could not "
        "log in",
        default="none",
    ),
    Option(
        "audit_log_bytes", size(64 << 10),
        "bytes of that file; then it becomes FILE.1, in place of the one before; also how many "
        "bytes the stream `amq.penstock.audit` keeps",
    ),
    Option(
        "audit_vhost", text("a vhost"),
        "the vhost where the stream `amq.penstock.audit` gets the same "
        "[entries](../guides/users.md#audit)",
        default="none",
    ),
    Option(
        "data_permissions", choice(FIX, REFUSE, IGNORE),
        "if users other than its owner may read the data directory or write into it: set its mode "
        "to 0700 (`fix`), do not start if they may write (`refuse`), or log a line (`ignore`)",
    ),
    Option(
        "http_hosts", names(),
        "host names accepted over HTTP besides localhost, addresses and the machine's name: "
        '`"a.net, b.net"`, or `"*"`',
    ),
    Option(
        "http_connections_max", whole(1, MANY),
        "HTTP connections; beyond it the longest idle one is closed",
    ),
    Option("http_address_connections_max", whole(1, MANY), "HTTP connections of one address"),
    Option("http_user_requests_max", whole(1, MANY), "HTTP requests of one user in progress"),
    Option(
        "proxy_protocol_from", _networks(),
        "networks of proxies, whose AMQP connections begin with a header of "
        "[the PROXY protocol](../guides/tls.md#behind-a-proxy)",
    ),
    Option("http_proxy_protocol_from", _networks(), "the same for HTTP and HTTPS connections"),
    Option(
        "vhost_hang", seconds(),
        "seconds without an answer after which a vhost's process is killed, or that of HTTP",
        field="vhost_hang_s", is_live=True,
    ),
    Option(
        "vhost_restarts_max", whole(0, MANY),
        "failures of a vhost within the window; with one more it is "
        "[down](../guides/vhosts.md#when-a-vhost-fails)", is_live=True,
    ),
    Option(
        "vhost_restart_window", seconds(), "seconds of that window",
        field="vhost_restart_window_s", is_live=True,
    ),
    Option(
        "vhost_restart_strategy", choice(CONTINUE, STOP_NODE),
        "`stop_node`: the broker stops when a vhost is down", is_live=True,
    ),
    Option(
        "vhost_retry", seconds(),
        "seconds until a vhost that is down is started again; doubled after each failure, up to "
        "300",
        field="vhost_retry_s", is_live=True,
    ),
    Option(
        "vhost_refusal", seconds(),
        "seconds for which a request that ended a vhost's process twice is refused",
        field="vhost_refusal_s", is_live=True,
    ),
    Option(
        "staging_bytes_max", size(1 << 20),
        "bytes that Spark may have staged and not committed, in each vhost",
    ),
    Option(
        "staging_user_bytes_max", size(1 << 20),
        "the same for one user in each vhost; the owner of a query counts",
    ),
    Option(
        "staging_timeout_s", seconds(), "seconds after which staged rows of no batch are deleted"
    ),
    Option(
        "lease_alert_s", seconds(),
        "seconds after which an uncommitted lease raises the alert `lease_old`",
    ),
    Option(
        "consumer_timeout_s", or_word(seconds(), "off"),
        "seconds after which an unacknowledged delivery "
        "[goes back](../guides/confirms.md#consumer-timeout), if neither queue nor consumer has a "
        "time of its own",
    ),
    Option(
        "consumer_timeout_closes", flag(),
        "it closes the channel then, as in RabbitMQ before 4.3",
    ),
    Option(
        "stream_hold_s_max", seconds(),
        "how many seconds longer than its limits [readers of a stream]"
        "(../guides/streams.md#retention) may ask to keep records",
    ),
    Option("stream_hold_bytes_max", size(0), "and how many bytes more, in each partition"),
)  # fmt: skip
_BY_NAME: Final = by_name(OPTIONS)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of one of the tables. table: "" for OPTIONS. default: as users write it."""

    table: str
    option: Option
    default: str

    @property
    def key(self) -> str:
        """Return the name with its table: "storage.slice_ms"."""
        return f"{self.table}.{self.option.name}" if self.table else self.option.name

    @property
    def variable(self) -> str:
        """Return the variable of the environment: "PENSTOCK_STORAGE_SLICE_MS"."""
        return PREFIX + self.key.replace(".", "_").upper()


def settings() -> Iterator[Setting]:
    """Yield all options, those without a table first."""
    own = Config()
    rows = [("", OPTIONS, own), *((name, TABLES[name], getattr(own, name)) for name in TABLES)]
    for table, options, defaults in rows:
        for option in options:
            default = option.default
            if default is None:
                default = option.kind.shown(getattr(defaults, option.target))
            yield Setting(table, option, default)


def effective(config: Config) -> list[dict[str, object]]:
    """Return each option with its value as users write it, where it is from, its default, and
    whether a running broker takes a new value. Passwords in addresses are left out."""
    own = Config()
    rows: list[dict[str, object]] = []
    for one in settings():
        value = value_in(config, one)
        is_default = value == value_in(own, one) and one.key not in config.origins
        shown = one.default if is_default else one.option.kind.shown(value)
        rows.append({
            "option": one.key, "value": PASSWORD.sub("//***@", shown),
            "origin": config.origins.get(one.key, "default"), "default": one.default,
            "is_live": one.option.is_live,
        })  # fmt: skip
    return rows


def value_in(config: Config, one: Setting) -> Any:
    """Return the value of an option."""
    return getattr(getattr(config, one.table) if one.table else config, one.option.target)


def with_changes(now: Config, wanted: Config) -> tuple[Config, list[str], list[str]]:
    """Return the settings of a running broker with those of `wanted` that it can take, the keys of
    these, and the keys of the others that differ."""
    live: list[str] = []
    others: list[str] = []
    found = now
    for one in settings():
        value = value_in(wanted, one)
        if value == value_in(now, one):
            continue
        if not one.option.is_live:
            others.append(one.key)
            continue
        live.append(one.key)
        found = _with(found, one, value)
    return replace(found, origins=wanted.origins), live, others


def with_value(now: Config, key: str, given: str, whole_bytes: int, origin: str) -> Config:
    """Return the settings with another value of a live option. whole_bytes: as of `config_of`.
    Raises OptionError."""
    known = {one.key: one for one in settings()}
    if key not in known:
        raise OptionError(key, given, tuple(known))
    one = known[key]
    if not one.option.is_live:
        text = "an option that changes while the broker runs: set it in penstock.toml, and restart"
        raise OptionError(key, given, text)
    if key == "memory":
        value: Any = _memory(given, whole_bytes)
    else:
        value = value_of(one.option.kind, key, given)
    return replace(_with(now, one, value), origins={**now.origins, key: origin})


def _with(config: Config, one: Setting, value: Any) -> Config:
    changed: dict[str, Any] = {one.option.target: value}
    if one.table:
        changed = {one.table: replace(getattr(config, one.table), **changed)}
    return replace(config, **changed)


# ---- from file, environment and flags ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Given:
    """A value, and what to call it when it is wrong."""

    value: object
    place: str


def parse_file(path: str, text: str) -> dict[str, object]:
    """Return the table in a penstock.toml. Raises OptionError if it is none."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(path, _line_of(str(error), text), f"TOML: {error}") from None


def _check_names(place: str, table: Mapping[str, object], known: list[str]) -> None:
    """Raise OptionError for an unknown name. place: what the error calls the table."""
    for name, value in table.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise OptionError(place + name, value, f"an option that there is: {hint}")


def _line_of(error: str, text: str) -> str:
    """Return the line of a file that an error of tomllib is about, "(at line 3, column 5)"."""
    found = re.search(r"line (\d+)", error)
    lines = text.splitlines()
    number = int(found[1]) if found else len(lines)
    return lines[number - 1] if 0 < number <= len(lines) else ""


def config_of(
    *,
    whole_bytes: int,
    limits: Limits | None = None,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Mapping[str, object],
    file_path: str = "penstock.toml",
) -> Config:
    """Return the Config of a start. Raises OptionError, which names where the value was given.

    whole_bytes: the memory that fractions are of. limits: the defaults of [limits]. flags: by the
    names of OPTIONS, None for one that was not given. file: as `parse_file` returns it. file_path:
    what errors call it; "" if there is none.
    """
    before = f"{file_path}: " if file_path else ""
    given: dict[str, _Given] = {}  # by the keys of the options
    _check_names(before, file, [*_BY_NAME, *TABLES])
    for name, value in file.items():
        rows = {name: value}
        if name in TABLES:
            if not isinstance(value, Mapping):
                raise OptionError(before + name, value, f"a table [{name}]")
            _check_names(f"{before}{name}.", value, [one.name for one in TABLES[name]])
            rows = {f"{name}.{key}": inner for key, inner in value.items()}
        given |= {key: _Given(one, before + key) for key, one in rows.items()}
    notes = _add_environment(given, environment)
    for name, value in flags.items():
        if value is not None:
            given[name] = _Given(value, "--" + name.replace("_", "-"))
    try:
        config = _checked(given, whole_bytes, limits or Limits())
    except OptionError as error:
        place = given[error.name].place if error.name in given else before + error.name
        raise OptionError(place, error.given, error.expected) from None
    origins = {key: one.place.rpartition(": ")[0] or one.place for key, one in given.items()}
    return replace(config, notes=notes, origins=origins)


def _checked(given: Mapping[str, _Given], whole_bytes: int, limits: Limits) -> Config:
    """Return the Config of these values by the keys of the options. Raises OptionError, whose name
    is the key, also of an option that was not given and is needed."""
    values: dict[str, dict[str, Any]] = {table: {} for table in ("", *TABLES)}
    for one in settings():
        if one.key in given:
            value = value_of(one.option.kind, one.key, given[one.key].value)
            values[one.table][one.option.target] = value
    own = values[""]
    memory = given["memory"].value if "memory" in given else _BY_NAME["memory"].default
    own["memory_bytes"] = _memory(memory, whole_bytes)
    durability = own.pop("mode", Durability(DISK))
    if durability.interval_ms:
        values[STORAGE]["interval_ms"] = durability.interval_ms
    defaults = Config(mode=durability.mode, limits=limits)
    for table in TABLES:
        try:
            own[table] = replace(getattr(defaults, table), **values[table])
        except OptionError as error:  # options that contradict each other
            raise OptionError(f"{table}.{error.name}", error.given, error.expected) from None
    config = replace(defaults, **own)
    if OAUTH2 in config.auth_backends:
        check_options(config.auth_oauth2)
    if HTTP in config.auth_backends:
        check_http_options(config.auth_http)
    _check_ports(config, given)
    return config


def _check_ports(config: Config, given: Collection[str]) -> None:
    """Raise OptionError if two listeners have one port, or AMQP has none. given: keys."""
    tls = config.tls
    ports = [
        ("port", "AMQP", config.port),
        ("http_port", "HTTP", config.http_port),
        ("prometheus_port", "metrics", config.prometheus_port),
    ]
    if tls.is_on:
        ports += [
            ("tls.port", "AMQP over TLS", tls.port),
            ("tls.http_port", "HTTPS", tls.http_port),
        ]
    taken: dict[int, tuple[str, str]] = {}
    for key, what, port in ports:
        if not port:
            continue
        if port in taken:
            mine, other = (key, what), taken[port]
            if key not in given:  # it has its default
                mine, other = other, mine
            expected = f"another than the port of {other[1]}, which is {port} too"
            raise OptionError(mine[0], port, expected)
        taken[port] = (key, what)
    if config.port is None and (not tls.is_on or tls.port is None):
        expected = "a port, or a certificate and a port of TLS (tls.cert, tls.port)"
        raise OptionError("port", "off", expected)


def _memory(given: object, whole_bytes: int) -> int:
    assert isinstance(given, str | int | float)
    number = parse_bytes("memory", given, whole_bytes)
    if number < MEMORY_MIN_BYTES:
        raise OptionError("memory", given, "at least 1MiB")
    return number


def _add_environment(given: dict[str, _Given], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Add what the environment says, by the keys of the options; return lines about what in it is
    ignored."""
    ignored: list[str] = []
    known = {one.variable: one.key for one in settings()}
    for variable, value in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable[len(PREFIX) :]
        if name.endswith("PORT") and SERVICE_LINK.match(value):
            ignored.append(
                f"{variable}={value} is ignored: Kubernetes sets it for a service of that name; "
                f"expected a port in {PREFIX}PORT, or enableServiceLinks: false in the pod"
            )
        elif variable in known:
            given[known[variable]] = _Given(value, variable)
        elif name not in NOT_SETTINGS and difflib.get_close_matches(variable, known, 1, 0.85):
            raise OptionError(variable, value, list(known))
    return tuple(ignored)
