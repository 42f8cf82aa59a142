"""`penstock config migrate`: a penstock.toml from a rabbitmq.conf.

KEYS has the keys that mean something here: what a value becomes. WHY has those that do not, with
the reason, and the first pattern that fits a key counts. A line that is in neither is named, too.
advanced.config, which is a program's data in Erlang, is not read.

The file that is made is checked as `penstock serve` checks it. What has no meaning here stands in
it as comments, with the number of the line. Passwords are left out of them.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import click

from penstock.config import TABLES, config_of, parse_file, settings
from penstock.errors import OptionError
from penstock.escaping import one_line
from penstock.options import WrongValueError, value_of
from penstock.queues.budget import machine_memory
from penstock.storage.files.filesystem import OsFileSystem

Values = dict[str, object]
UNITS: Final[Mapping[str, int]] = {
    "": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
LEVELS: Final[Mapping[str, str]] = {
    "debug": "debug", "info": "info", "notice": "info", "warning": "warning", "error": "error",
    "critical": "error", "alert": "error", "emergency": "error", "none": "error",
}  # fmt: skip
SECRET: Final = ("pass", "secret", "erlang_cookie")


def _bytes(value: str) -> int:
    """Return the bytes of a size as RabbitMQ writes it: 2GB are 2 * 10**9, 2GiB 2 * 2**30."""
    digits = value.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = UNITS.get(value[len(digits) :].strip().lower())
    if unit is None or not digits.isdigit():
        raise WrongValueError("a size such as 2GB")
    return int(digits) * unit


def _whole(value: str) -> int:
    if not value.isdigit():
        raise WrongValueError("a whole number")
    return int(value)


def _flag(value: str) -> bool:
    if value not in ("true", "false", "on", "off"):
        raise WrongValueError("true or false")
    return value in ("true", "on")


def _to(key: str, convert: Callable[[str], object] = str) -> Callable[[str], Values]:
    return lambda value: {key: convert(value)}


def _listener(port_key: str) -> Callable[[str], Values]:
    """Return what reads an address to listen at: `5672`, `127.0.0.1:5672`, `:::5672` or `none`."""

    def read(value: str) -> Values:
        if value == "none":
            return {port_key: "off"}
        host, _, port = value.rpartition(":")
        found: Values = {port_key: _whole(port)}
        if host:
            found["host"] = host.strip("[]")
        return found

    return read


def _level(value: str) -> str:
    if value not in LEVELS:
        raise WrongValueError(f"one of {', '.join(LEVELS)}")
    return LEVELS[value]


def _milliseconds(value: str) -> float:
    number = _whole(value) / 1000
    return int(number) if number == int(number) else number


def _timeout(value: str) -> object:
    return "off" if value == "undefined" else _milliseconds(value)


def _version_min(value: str) -> str:
    return {"tlsv1.3": "1.3"}.get(value, "1.2")


def _loopback(value: str) -> Values:
    if value == "none":
        return {"loopback_users": []}
    raise WrongValueError("none; users are listed as loopback_users.NAME = true")


# key of rabbitmq.conf -> what its value becomes: options of penstock.toml
KEYS: Final[Mapping[str, Callable[[str], Values]]] = {
    "listeners.tcp": _listener("port"),
    "listeners.tcp.*": _listener("port"),
    "listeners.ssl": _listener("tls.port"),
    "listeners.ssl.*": _listener("tls.port"),
    "management.tcp.port": _to("http_port", _whole),
    "management.listener.port": _to("http_port", _whole),
    "prometheus.tcp.port": _to("prometheus_port", _whole),
    "management.ssl.port": _to("tls.http_port", _whole),
    "ssl_options.certfile": _to("tls.cert"),
    "ssl_options.keyfile": _to("tls.key"),
    "ssl_options.cacertfile": _to("tls.ca"),
    "ssl_options.verify": lambda value: {"tls.verify_peer": value == "verify_peer"},
    "ssl_options.fail_if_no_peer_cert": _to("tls.fail_if_no_peer_cert", _flag),
    "ssl_options.versions.*": _to("tls.version_min", _version_min),
    "ssl_cert_login_from": _to("tls.login_from"),
    "ssl_cert_login_san_type": _to("tls.login_san_type"),
    "vm_memory_high_watermark.relative": _to("memory"),
    "vm_memory_high_watermark.absolute": _to("memory", _bytes),
    "disk_free_limit.absolute": _to("storage.disk_free_limit", _bytes),
    "log.*level": _to("log_level", _level),
    "handshake_timeout": _to("handshake_timeout", _milliseconds),
    "consumer_timeout": _to("consumer_timeout_s", _timeout),
    "loopback_users": _loopback,
    "load_definitions": _to("load_definitions"),
    "management.load_definitions": _to("load_definitions"),
    "definitions.local.path": _to("load_definitions"),
    "auth_oauth2.resource_server_id": _to("auth_oauth2.resource_server_id"),
    "auth_oauth2.jwks_ur[il]": _to("auth_oauth2.jwks_uri"),
    "auth_oauth2.https.cacertfile": _to("auth_oauth2.cacertfile"),
    "auth_oauth2.scope_prefix": _to("auth_oauth2.scope_prefix"),
    "auth_oauth2.additional_scopes_key": _to("auth_oauth2.additional_scopes_key"),
    "auth_oauth2.verify_aud": _to("auth_oauth2.verify_aud", _flag),
    "auth_http.user_path": _to("auth_http.user_path"),
    "auth_http.vhost_path": _to("auth_http.vhost_path"),
    "auth_http.resource_path": _to("auth_http.resource_path"),
    "auth_http.topic_path": _to("auth_http.topic_path"),
    "auth_http.http_method": _to("auth_http.http_method"),
}
# value of auth_backends.NUMBER -> a backend
BACKENDS: Final[Mapping[str, str]] = {
    "internal": "internal",
    "rabbit_auth_backend_internal": "internal",
    "oauth2": "oauth2",
    "rabbit_auth_backend_oauth2": "oauth2",
}
_NODE: Final = "there is one node"
_PLUGIN: Final = "there is no such plugin"
# key -> why it has no meaning here
WHY: Final[Mapping[str, str]] = {
    "loopback_users.*": "named one by one, in loopback_users",
    "default_user*": "the first start makes guest; add_user and set_permissions make others",
    "default_pass*": "the first start makes guest; change_password changes it",
    "default_vhost": "the first start makes the vhost /; add_vhost makes others",
    "default_permissions.*": "set_permissions sets them",
    "default_queue_type": "add_vhost gives each vhost its default type",
    "disk_free_limit.relative": "give bytes, in storage.disk_free_limit",
    "vm_memory_high_watermark_paging_ratio": "messages leave RAM by queue, see memory",
    "vm_memory_calculation_strategy": "messages are counted, and RSS is watched",
    "total_memory_available_override_value": "give bytes, in memory",
    "heartbeat": "the broker proposes 60 s, and clients may choose another",
    "frame_max": "the broker proposes 131072",
    "channel_max": "the broker proposes 2047; limits.user_channels limits a user",
    "connection_max": "limits.vhost_connections and limits.user_connections limit connections",
    "max_message_size": "a message may take a part of its vhost's memory",
    "definitions.*": "load_definitions names a file; one that was loaded is skipped",
    "cluster_*": _NODE,
    "queue_master_locator": _NODE,
    "queue_leader_locator": _NODE,
    "mirroring_*": _NODE,
    "quorum_*": _NODE,
    "raft.*": _NODE,
    "net_ticktime": _NODE,
    "distribution.*": _NODE,
    "classic_queue.*": "there is one version of classic queues",
    "msg_store_*": "the table [storage] has what can be set",
    "queue_index_*": "the table [storage] has what can be set",
    "lazy_queue_*": "messages leave RAM by queue, see memory",
    "tcp_listen_options.*": "sockets are set by the broker",
    "num_acceptors.*": "one process accepts connections",
    "socket_writer.*": "sockets are set by the broker",
    "auth_backends.*": "auth_backends has internal, oauth2 and http",
    "auth_oauth2.*": "see the table [auth_oauth2] for what can be set",
    "auth_http.*": "see the table [auth_http] for what can be set",
    "auth_ldap.*": "there is no LDAP",
    "auth_mechanisms.*": "PLAIN and AMQPLAIN, and EXTERNAL with certificates",
    "ssl_options.*": "see the table [tls] for what can be set",
    "log.*": "the log goes to stderr; log_level is its level",
    "management.*": "HTTP is served at http_port; see http.md for what can be set",
    "prometheus.*": "metrics are served at http_port and prometheus_port",
    "collect_statistics*": "counts are always kept",
    "mqtt.*": _PLUGIN,
    "stomp.*": _PLUGIN,
    "stream.*": "streams are served over AMQP; there is no stream protocol",
    "web_*": _PLUGIN,
    "shovel.*": _PLUGIN,
    "federation.*": _PLUGIN,
    "proxy_protocol": "see configuration.md for what there is",
}


@dataclass(frozen=True, slots=True)
class _Line:
    """A setting. number: of its line, from 1."""

    number: int
    key: str
    value: str


def _lines(text: str) -> Iterator[_Line]:
    """Yield the settings of a rabbitmq.conf. Raises OptionError."""
    if text.lstrip().startswith("["):
        raise OptionError("FILE", text.lstrip()[:40], "a rabbitmq.conf of lines KEY = VALUE; a "
                          "file of Erlang terms, such as advanced.config, is not read")  # fmt: skip
    for number, line in enumerate(text.splitlines(), 1):
        setting = line.partition("#")[0].strip()
        if not setting:
            continue
        key, equals, value = setting.partition("=")
        if not equals:
            raise OptionError(f"line {number}", setting, "KEY = VALUE")
        yield _Line(number, key.strip(), value.strip().strip("'"))


def converted(text: str) -> str:
    """Return the penstock.toml of a rabbitmq.conf. Raises OptionError for a line that is none, or
    whose value is wrong in RabbitMQ, too."""
    options = {one.key: one.option for one in settings()}
    found: Values = {"host": "0.0.0.0"}  # noqa: S104 - where RabbitMQ listens by default
    hosts: set[object] = set()
    users: dict[str, bool] = {}
    backends: list[str] = []
    left: list[str] = []
    for line in _lines(text):
        if line.key.startswith("loopback_users."):
            users[line.key.partition(".")[2]] = _flag(line.value)
            continue
        if line.key.startswith("auth_backends.") and line.value in BACKENDS:
            backends.append(BACKENDS[line.value])
            continue
        convert = next((KEYS[key] for key in KEYS if fnmatchcase(line.key, key)), None)
        if convert is None or "$(" in line.value or line.value.startswith("encrypted:"):
            left.append(_left(line, known=convert is not None))
            continue
        try:
            new = convert(line.value)
        except WrongValueError as error:
            place = f"line {line.number}: {line.key}"
            raise OptionError(place, line.value, error.expected) from None
        for key, value in new.items():
            value_of(options[key].kind, f"line {line.number}: {line.key}", value)
        if len(hosts | {new.get("host")}) > 1 and line.key.startswith("listeners."):
            left.append(f"line {line.number}: {line.key} = {line.value}: one address, in host")
            continue
        hosts |= {new["host"]} if "host" in new else set()
        if "tls.version_min" in new and found.get("tls.version_min") == "1.2":
            continue  # of several versions the oldest
        found.update(new)
    if users:
        known = {"guest": True, **users}
        found["loopback_users"] = [name for name, is_loopback in known.items() if is_loopback]
    if backends:
        found["auth_backends"] = list(dict.fromkeys(backends))
    made = _toml(found, left)
    _check(made)
    return made


def _left(line: _Line, *, known: bool) -> str:
    """Return the comment for a line that has no meaning here."""
    why = next((WHY[key] for key in WHY if fnmatchcase(line.key, key)), "it is not known here")
    if known:
        why = "write the value itself, not a variable or an encrypted value"
    value = "***" if any(word in line.key for word in SECRET) else line.value
    return f"line {line.number}: {line.key} = {value}: {why}"


def _toml(found: Values, left: list[str]) -> str:
    """Return the text of the file."""
    lines = ["# Made from a rabbitmq.conf. Its advanced.config is not read."]
    lines += [f"{key} = {_value(value)}" for key, value in found.items() if "." not in key]
    for table in TABLES:
        own = [key for key in found if key.startswith(f"{table}.")]
        if own:
            lines += ["", f"[{table}]"]
            lines += [f"{key.partition('.')[2]} = {_value(found[key])}" for key in own]
    if left:
        lines += ["", "# These lines of rabbitmq.conf have no meaning here, and why:"]
        lines += [f"# {one_line(one)}" for one in left]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _check(text: str) -> None:
    """Raise OptionError unless `penstock serve` accepts the file."""
    with closing(OsFileSystem(0)) as fs:
        whole_bytes = machine_memory(fs)[0]
    parsed: dict[str, Any] = parse_file("penstock.toml", text)
    config_of(whole_bytes=whole_bytes, flags={}, environment={}, file=parsed)


@click.command("config_migrate")
@click.argument("file")
@click.argument("to", default="-")
def config_migrate(file: str, to: str) -> None:
    """Make a penstock.toml of a rabbitmq.conf.

    TO is the new file, which must not exist; without it the text goes to stdout. Lines that have no
    meaning here stand in it as comments, with the reason.
    """
    text = converted(Path(file).read_text(encoding="utf-8"))
    if to == "-":
        click.echo(text, nl=False)
        return
    with Path(to).open("x", encoding="utf-8") as made:
        made.write(text)
    click.echo(f"{to}: {text.count(chr(10) + '# line ')} lines have no meaning here")
