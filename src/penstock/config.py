"""Config: the options of a broker, from penstock.toml, PENSTOCK_* and flags, in one frozen object.

All options are optional. A flag overrides the environment, that the file, the file the default. In
the file the names are those of `DEFAULTS`, and the storage engine's are in a table [storage]; in
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

Values are checked when a Config is made: an OptionError names the value by the place where it was
given. For an unknown name in the file it suggests the right one. The environment is shared with
other programs, so an unknown PENSTOCK_* there is an error only if it is nearly one of these, and
PENSTOCK_PORT=tcp://..., which Kubernetes sets for a service called penstock, is ignored, which
`ignored` reports.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from penstock.access.limits import EXPECTED, LIMIT_MAX, Limits
from penstock.errors import OptionError
from penstock.queues.backing_choice import BackingChoice
from penstock.queues.budget import parse_bytes
from penstock.storage.durability import DISK, NONE, Durability
from penstock.storage.options import StorageOptions

PREFIX: Final = "PENSTOCK_"
STORAGE: Final = "storage"
LIMITS: Final = "limits"
QUEUES: Final = "queues"
TABLES: Final[Mapping[str, type]] = {
    STORAGE: StorageOptions, LIMITS: Limits, QUEUES: BackingChoice,
}  # fmt: skip
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
GUEST_CHOICES: Final = ("loopback", "off")
PERMISSION_CHOICES: Final = ("fix", "refuse", "ignore")
# What Kubernetes puts into the environment of every pod for a service called penstock.
SERVICE_LINK: Final = re.compile(r"(tcp|udp|sctp)://")
STRATEGIES: Final = ("continue", "stop_node")
PORT_MAX: Final = 65535
MEMORY_MIN_BYTES: Final = 1 << 20
STAGING_MIN_BYTES: Final = 1 << 20
SLACK_MIN_BYTES: Final = 64 << 20
HALF_OPEN_MIN_BYTES: Final = 64 << 10
OFF: Final = "off"
SECONDS_MAX: Final = 10 * 366 * 86400.0

# name -> default, as it would be written in the file
DEFAULTS: Final[Mapping[str, object]] = {
    "data": "./penstock-data",
    "host": "127.0.0.1",
    "port": 5672,
    "http_port": 15672,
    "memory": "0.4",
    "durability": "disk",
    "strict": False,
    "log_level": "info",
    "handshake_timeout": 10.0,
    "half_open_max": 1000,
    "half_open_bytes_max": "8MiB",
    "guest": "loopback",
    "data_permissions": "fix",
    "http_hosts": "",
    "http_connections_max": 4096,
    "http_address_connections_max": 1024,
    "http_user_requests_max": 256,
    "vhost_hang": 30.0,
    "vhost_restarts_max": 3,
    "vhost_restart_window": 300.0,
    "vhost_restart_strategy": "continue",
    "vhost_retry": 10.0,
    "vhost_refusal": 600.0,
    "staging_bytes_max": "8GiB",
    "staging_user_bytes_max": "6GiB",
    "staging_timeout_s": 86400.0,
    "lease_alert_s": 3600.0,
    "stream_hold_s_max": 86400.0,
    "stream_hold_bytes_max": "8GiB",
}
# Of the environment, and not settings of a broker.
NOT_SETTINGS: Final = frozenset(
    {"CONFIG", "PURE", "URL", "TEST_URL", "CRASH_IMAGES", "MEASURE_LOOP"}
)


@dataclass(frozen=True, slots=True)
class Config:
    """data: directory. host, port: to listen at; port 0: a free one. http_port: None for none.
    memory_bytes: for all vhosts. mode, storage.interval_ms: of durability. is_strict: maxima of
    queues beyond the budget are refused. half_open_max: clients that may be in the handshake at a
    time; half_open_bytes_max: bytes kept of what they sent. guest: where the user guest may come
    from. data_permissions: what to do about a data directory in which others may write. ignored:
    lines about values that were given and are not used. http_hosts: names under which HTTP may be
    asked; http_*_max: connections of all and of one address, requests of one user. Times in
    seconds: handshake_timeout_s: longest handshake; vhost_hang_s: a vhost that is silent for so
    long is killed; after more than vhost_restarts_max failures within vhost_restart_window_s it is
    down and started again after vhost_retry_s, then after twice as long, or, with the strategy
    "stop_node", the broker stops; a request that ended its process twice is refused for
    vhost_refusal_s. staging_bytes_max: what may be staged in each vhost and not committed,
    staging_user_bytes_max: by one user; staging_timeout_s: age at which that is deleted.
    lease_alert_s: age at which a lease raises an alert. stream_hold_s_max, stream_hold_bytes_max:
    how much more than its limits readers of a stream may ask to keep. queues: the classes that hold
    messages."""

    data: str
    host: str
    port: int
    http_port: int | None
    memory_bytes: int
    mode: int
    is_strict: bool
    log_level: str
    handshake_timeout_s: float
    half_open_max: int
    half_open_bytes_max: int
    guest: str
    data_permissions: str
    ignored: tuple[str, ...]
    http_hosts: tuple[str, ...]
    http_connections_max: int
    http_address_connections_max: int
    http_user_requests_max: int
    vhost_hang_s: float
    vhost_restarts_max: int
    vhost_restart_window_s: float
    vhost_restart_strategy: str
    vhost_retry_s: float
    vhost_refusal_s: float
    staging_bytes_max: int
    staging_timeout_s: float
    lease_alert_s: float
    staging_user_bytes_max: int
    stream_hold_s_max: float
    stream_hold_bytes_max: int
    storage: StorageOptions
    limits: Limits
    queues: BackingChoice


@dataclass(frozen=True, slots=True)
class _Given:
    """A value, and what to call it when it is wrong."""

    value: object
    place: str


def parse_file(path: str, text: str) -> dict[str, object]:
    """Return the table in a penstock.toml. Raises OptionError if it is none, or has an unknown
    name."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(path, _line_of(str(error), text), f"TOML: {error}") from None
    for name in table:
        if name not in DEFAULTS and name not in TABLES:
            known = [*DEFAULTS, *TABLES]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise OptionError(f"{path}: {name}", table[name], f"an option that there is: {hint}")
    for name in TABLES:
        if not isinstance(table.get(name, {}), dict):
            raise OptionError(name, table[name], f"a table [{name}]")
    return table


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
    """Return the Config of a start. Raises OptionError.

    whole_bytes: the memory that fractions are of. limits: the defaults of [limits]. flags: by the
    names of DEFAULTS, None for one that was not given. file: as `parse_file` returns it.
    """
    given = {name: _Given(value, name) for name, value in DEFAULTS.items()}
    tables: dict[str, dict[str, _Given]] = {name: {} for name in TABLES}
    for name, value in file.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                tables[name][key] = _Given(inner, f"{file_path}: {name}.{key}")
        else:
            given[name] = _Given(value, f"{file_path}: {name}")
    ignored = _add_environment(given, tables, environment)
    for name, value in flags.items():
        if value is not None:
            given[name] = _Given(value, "--" + name.replace("_", "-"))
    durability = _durability(given["durability"])
    storage = _storage(tables[STORAGE])
    port, http_port = _whole(given["port"], 0, PORT_MAX), _port_or_off(given["http_port"])
    if port and port == http_port:
        expected = f"another than the port of AMQP, which is {port} too"
        raise OptionError(given["http_port"].place, http_port, expected)
    if durability.interval_ms:
        storage = replace(storage, interval_ms=durability.interval_ms)
    return Config(
        data=_text(given["data"], "a directory"),
        host=_text(given["host"], 'an address to listen at, such as "127.0.0.1" or "0.0.0.0"'),
        port=port,
        http_port=http_port,
        memory_bytes=_memory(given["memory"], whole_bytes),
        mode=durability.mode,
        is_strict=_flag(given["strict"]),
        log_level=_choice(given["log_level"], LOG_LEVELS),
        handshake_timeout_s=_seconds(given["handshake_timeout"]),
        half_open_max=_whole(given["half_open_max"], 1, 1_000_000),
        half_open_bytes_max=_size(given["half_open_bytes_max"], HALF_OPEN_MIN_BYTES),
        guest=_choice(given["guest"], GUEST_CHOICES),
        data_permissions=_choice(given["data_permissions"], PERMISSION_CHOICES),
        ignored=ignored,
        http_hosts=_names(given["http_hosts"]),
        http_connections_max=_whole(given["http_connections_max"], 1, 1_000_000),
        http_address_connections_max=_whole(given["http_address_connections_max"], 1, 1_000_000),
        http_user_requests_max=_whole(given["http_user_requests_max"], 1, 1_000_000),
        vhost_hang_s=_seconds(given["vhost_hang"]),
        vhost_restarts_max=_whole(given["vhost_restarts_max"], 0, 1_000_000),
        vhost_restart_window_s=_seconds(given["vhost_restart_window"]),
        vhost_restart_strategy=_choice(given["vhost_restart_strategy"], STRATEGIES),
        vhost_retry_s=_seconds(given["vhost_retry"]),
        vhost_refusal_s=_seconds(given["vhost_refusal"]),
        staging_bytes_max=_size(given["staging_bytes_max"], STAGING_MIN_BYTES),
        staging_timeout_s=_seconds(given["staging_timeout_s"]),
        lease_alert_s=_seconds(given["lease_alert_s"]),
        staging_user_bytes_max=_size(given["staging_user_bytes_max"], STAGING_MIN_BYTES),
        stream_hold_s_max=_seconds(given["stream_hold_s_max"]),
        stream_hold_bytes_max=_size(given["stream_hold_bytes_max"], 0),
        storage=storage,
        limits=_limits(tables[LIMITS], limits or Limits()),
        queues=_queues(tables[QUEUES]),
    )


def _add_environment(
    given: dict[str, _Given], tables: dict[str, dict[str, _Given]], environment: Mapping[str, str]
) -> tuple[str, ...]:
    """Adds what the environment says; returns lines about what in it is ignored."""
    ignored: list[str] = []
    known = {name.upper(): name for name in DEFAULTS}
    of_tables = {
        f"{table}_{one.name}".upper(): (table, one.name)
        for table, options in TABLES.items()
        for one in fields(options)
    }
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable[len(PREFIX) :]
        if name.endswith("PORT") and SERVICE_LINK.match(text):
            ignored.append(
                f"{variable}={text} is ignored: Kubernetes sets it for a service of that name; "
                f"expected a port in {PREFIX}PORT, or enableServiceLinks: false in the pod"
            )
        elif name in known:
            given[known[name]] = _Given(text, variable)
        elif name in of_tables:
            table, key = of_tables[name]
            tables[table][key] = _Given(_number_in(text), variable)
        elif name not in NOT_SETTINGS:
            names = [PREFIX + right for right in (*known, *of_tables)]
            if difflib.get_close_matches(variable, names, n=1, cutoff=0.85):
                raise OptionError(variable, text, names)
    return tuple(ignored)


def _storage(engine: Mapping[str, _Given]) -> StorageOptions:
    try:
        return StorageOptions.of({name: one.value for name, one in engine.items()})
    except OptionError as error:
        if isinstance(error.expected, str) and error.name in engine:
            place = engine[error.name].place
            raise OptionError(place, error.given, error.expected) from None
        raise


def _limits(given: Mapping[str, _Given], defaults: Limits) -> Limits:
    names = [one.name for one in fields(Limits)]
    values: dict[str, Any] = {}
    for name, one in given.items():
        if name not in names:
            raise OptionError(name, one.value, names)
        if name.endswith("_s"):
            values[name] = _seconds(one)
        elif name.endswith("_bytes"):
            values[name] = _size(one, SLACK_MIN_BYTES)
        elif type(one.value) is not int or not -1 <= one.value <= LIMIT_MAX:
            raise OptionError(one.place, one.value, EXPECTED)
        else:
            values[name] = one.value
    return replace(defaults, **values)


def _queues(given: Mapping[str, _Given]) -> BackingChoice:
    names = [one.name for one in fields(BackingChoice)]
    values: dict[str, Any] = {}
    for name, one in given.items():
        if name not in names:
            raise OptionError(name, one.value, names)
        if name == "backing_queue":
            values[name] = one.value
        else:
            values[name] = _names(one)
    try:
        return BackingChoice(**values)
    except OptionError as error:
        raise OptionError(given[error.name].place, error.given, error.expected) from None


# ---- one value each ------------------------------------------------------------------------------


def _number_in(text: str) -> object:
    """Return the number in a text; the text itself if it is none."""
    kinds: tuple[Callable[[str], object], ...] = (int, float)
    for kind in kinds:
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _text(given: _Given, expected: str) -> str:
    if not isinstance(given.value, str) or not given.value or "\0" in given.value:
        raise OptionError(given.place, given.value, expected)
    return given.value


def _whole(given: _Given, low: int, high: int) -> int:
    value = _number_in(given.value) if isinstance(given.value, str) else given.value
    if type(value) is not int or not low <= value <= high:
        raise OptionError(given.place, given.value, f"a whole number from {low} to {high}")
    return value


def _port_or_off(given: _Given) -> int | None:
    if given.value == OFF:
        return None
    try:
        return _whole(given, 0, PORT_MAX)
    except OptionError as error:
        expected = f"{error.expected}, or {OFF}"
        raise OptionError(given.place, given.value, expected) from None


def _seconds(given: _Given) -> float:
    value = _number_in(given.value) if isinstance(given.value, str) else given.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(given.place, given.value, "seconds, above 0")
    if not 0 < value <= SECONDS_MAX:
        raise OptionError(given.place, given.value, "seconds, above 0")
    return float(value)


def _flag(given: _Given) -> bool:
    value = given.value
    if isinstance(value, str):
        value = {"true": True, "1": True, "false": False, "0": False}.get(value.lower())
    if not isinstance(value, bool):
        raise OptionError(given.place, given.value, "true or false")
    return value


def _names(given: _Given) -> tuple[str, ...]:
    """Return a list of names, from a list or a text with commas."""
    value = given.value
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise OptionError(given.place, value, 'names with commas between them, as "a.net, b.net"')
    return tuple(name.strip() for name in names if name.strip())


def _choice(given: _Given, choices: tuple[str, ...]) -> str:
    if not isinstance(given.value, str) or given.value not in choices:
        raise OptionError(given.place, given.value, "one of " + ", ".join(choices))
    return given.value


def _memory(given: _Given, whole_bytes: int) -> int:
    if not isinstance(given.value, str | int | float):
        raise OptionError(given.place, given.value, 'a size as "64MiB", or a fraction as "0.4"')
    number = parse_bytes(given.place, given.value, whole_bytes)
    if number < MEMORY_MIN_BYTES:
        raise OptionError(given.place, given.value, "at least 1MiB")
    return number


def _size(given: _Given, low: int) -> int:
    """Return a number of bytes, from a number or a text such as "8GiB"."""
    expected = f'a size such as "8GiB", at least {low} bytes'
    value = given.value
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise OptionError(given.place, value, expected)
    number = value if isinstance(value, int) else parse_bytes(given.place, value, 0)
    if number < low:
        raise OptionError(given.place, value, expected)
    return number


def _durability(given: _Given) -> Durability:
    expected = "disk, interval=<ms> or os"
    if not isinstance(given.value, str):
        raise OptionError(given.place, given.value, expected)
    try:
        durability = Durability.parse(given.value)
    except OptionError:
        raise OptionError(given.place, given.value, expected) from None
    if durability.mode == NONE:
        raise OptionError(given.place, given.value, expected)
    assert durability.mode <= DISK
    return durability
