"""`penstock config migrate`: a penstock.toml from a rabbitmq.conf.

KEYS has the keys that mean something here: what a value becomes. WHY has those that do not, with
the reason, and the first pattern that fits a key counts. A line that is in neither is named, too.
advanced.config, which is a program's data in Erlang, is not read.

The file that is made is checked as `penstock serve` checks it. What has no meaning here stands in
it as comments, with the number of the line. Passwords are left out of them.
"""

import json
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import click

from penstock.access.http_options import HTTP
from penstock.access.permissions import INTERNAL
from penstock.access.tokens import ALGORITHMS, OAUTH2, has_tokens, jwk_of
from penstock.cli.main import text_of
from penstock.config import TABLES, config_of, parse_file, settings
from penstock.errors import OptionError, install_advice
from penstock.escaping import one_line
from penstock.options import WrongValueError, value_of
from penstock.queues.budget import machine_memory
from penstock.storage.files.filesystem import OsFileSystem

Values = dict[str, Any]
ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - where RabbitMQ listens by default
BACKENDS: Final = (INTERNAL, OAUTH2, HTTP)
CACHE: Final = "cache"  # RabbitMQ's backend that remembers answers of another
UNITS: Final[Mapping[str, int]] = {
    "": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
    "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
LEVELS: Final[Mapping[str, str]] = {
    "debug": "debug", "info": "info", "notice": "info", "warning": "warning", "error": "error",
    "critical": "error", "alert": "error", "emergency": "error", "none": "error",
}  # fmt: skip
# A line. A value in quotes may have "#", which begins a comment elsewhere.
SETTING: Final = re.compile(
    r"\s*(?P<key>[^#=]*[^#=\s])\s*=\s*(?:'(?P<quoted>[^']*)'|(?P<plain>[^#]*?))\s*(?:#.*)?"
)
SECRET: Final = ("pass", "secret", "erlang_cookie")


class _Left(Exception):
    """A line that becomes nothing here. The text is the reason."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a key of rabbitmq.conf becomes.

    option: in penstock.toml, for the page. read: gets key and value; returns options, of which
    lists and tables are added to those of other lines. Raises WrongValueError, _Left.
    is_fallback: a value that another key gives counts.
    """

    option: str
    read: Callable[[str, str], Values]
    is_fallback: bool = False


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


def _to(option: str, convert: Callable[[str], object] = str, *, is_fallback: bool = False) -> Key:
    return Key(option, lambda _, value: {option: convert(value)}, is_fallback)


def _listener(option: str) -> Key:
    """Return what reads an address to listen at: `5672`, `127.0.0.1:5672`, `:::5672` or `none`."""

    def read(_: str, value: str) -> Values:
        if value == "none":
            return {option: "off"}
        if value.startswith(("unix:", "local:")):
            raise _Left("clients connect by TCP only")
        host, _, port = value.rpartition(":")
        return {"host": host.strip("[]") or ALL_ADDRESSES, option: _whole(port)}

    return Key(option, read)


def _level(value: str) -> str:
    if value not in LEVELS:
        raise WrongValueError(f"one of {', '.join(LEVELS)}")
    return LEVELS[value]


def _seconds(value: str) -> float:
    """Return the seconds of a number of milliseconds."""
    number = _whole(value) / 1000
    return int(number) if number == int(number) else number


def _timeout(value: str) -> object:
    return "off" if value == "undefined" else _seconds(value)


def _version_min(value: str) -> str:
    return {"tlsv1.3": "1.3"}.get(value, "1.2")


def _no_loopback(value: str) -> list[str]:
    if value != "none":
        raise WrongValueError("none; users are listed as loopback_users.NAME = true")
    return []


def _loopback_user(key: str, value: str) -> Values:
    return {"loopback_users": {key.removeprefix("loopback_users."): _flag(value)}}


def _cipher(value: str) -> list[str]:
    if value.startswith("TLS_"):
        raise _Left("those of TLS 1.3 are OpenSSL's; tls.ciphers has those of TLS 1.2")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(value)
    except ssl.SSLError:
        raise _Left("OpenSSL has no such cipher here") from None
    return [value]


def _proxies(value: str) -> list[str]:
    return ["0.0.0.0/0", "::/0"] if _flag(value) else []


def _backend(value: str) -> list[str]:
    found = value.removeprefix("rabbit_auth_backend_")
    if found not in (*BACKENDS, CACHE):
        raise _Left(f"auth_backends has {', '.join(BACKENDS)}")
    return [found]


def _cached(_: str, value: str) -> Values:
    return {CACHE: _backend(value)}


def _algorithm(value: str) -> list[str]:
    if value not in ALGORITHMS:
        raise _Left(f"signatures are those of public keys: {', '.join(ALGORITHMS)}")
    return [value]


def _alias(key: str, value: str) -> Values:
    """Read `.NAME = SCOPES`, or one of `.NUMBER.alias = NAME` and `.NUMBER.scope = SCOPES`."""
    name = key.removeprefix("auth_oauth2.scope_aliases.")
    number, _, part = name.rpartition(".")
    if number.isdigit() and part in ("alias", "scope"):
        return {part: {number: value}}
    return {"auth_oauth2.scope_aliases": {name: value}}


def _signing_key(key: str, path: str) -> Values:
    """Read `.ID = FILE`, a public key as PEM."""
    if not has_tokens():
        raise _Left(f"pyjwt reads it: {install_advice(OAUTH2)}")
    try:
        found = jwk_of(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise _Left(f"write the key as a JWKS into auth_oauth2.signing_keys: {error}") from None
    name = key.removeprefix("auth_oauth2.signing_keys.")
    return {"auth_oauth2.signing_keys": [{"kid": name, **found}]}


KEYS: Final[Mapping[str, Key]] = {
    "listeners.tcp": _listener("port"),
    "listeners.tcp.*": _listener("port"),
    "listeners.ssl": _listener("tls.port"),
    "listeners.ssl.*": _listener("tls.port"),
    "management.tcp.port": _to("http_port", _whole),
    "management.listener.port": _to("http_port", _whole),
    "management.ssl.port": _to("tls.http_port", _whole),
    "management.ssl.certfile": _to("tls.cert", is_fallback=True),
    "management.ssl.keyfile": _to("tls.key", is_fallback=True),
    "management.ssl.cacertfile": _to("tls.ca", is_fallback=True),
    "prometheus.tcp.port": _to("prometheus_port", _whole),
    "ssl_options.certfile": _to("tls.cert"),
    "ssl_options.keyfile": _to("tls.key"),
    "ssl_options.cacertfile": _to("tls.ca"),
    "ssl_options.verify": _to("tls.verify_peer", lambda value: value == "verify_peer"),
    "ssl_options.fail_if_no_peer_cert": _to("tls.fail_if_no_peer_cert", _flag),
    "ssl_options.versions.*": _to("tls.version_min", _version_min),
    "ssl_options.ciphers.*": _to("tls.ciphers", _cipher),
    "ssl_cert_login_from": _to("tls.login_from"),
    "ssl_cert_login_san_type": _to("tls.login_san_type"),
    "proxy_protocol": _to("proxy_protocol_from", _proxies),
    "vm_memory_high_watermark.relative": _to("memory"),
    "vm_memory_high_watermark.absolute": _to("memory", _bytes, is_fallback=True),
    "disk_free_limit.absolute": _to("storage.disk_free_limit", _bytes),
    "queue_index_embed_msgs_below": _to("storage.queue_index_embed_msgs_below", _bytes),
    "consumer_max_per_channel": _to("limits.channel_consumers", _whole),
    "log.default.level": _to("log_level", _level),
    "log.console.level": _to("log_level", _level),
    "log.file.level": _to("log_level", _level),
    "handshake_timeout": _to("handshake_timeout", _seconds),
    "consumer_timeout": _to("consumer_timeout_s", _timeout),
    "loopback_users": _to("loopback_users", _no_loopback),
    "loopback_users.*": Key("loopback_users", _loopback_user),
    "load_definitions": _to("load_definitions"),
    "management.load_definitions": _to("load_definitions"),
    "definitions.local.path": _to("load_definitions"),
    "auth_backends.[0-9]": _to("auth_backends", _backend),
    "auth_backends.[0-9].authn": _to("auth_backends", _backend),
    "auth_cache.cached_backend": Key("auth_backends", _cached),
    "auth_cache.cache_ttl": _to("auth_http.cache_s", _seconds),
    "auth_oauth2.resource_server_id": _to("auth_oauth2.resource_server_id"),
    "auth_oauth2.jwks_ur[il]": _to("auth_oauth2.jwks_uri"),
    "auth_oauth2.https.cacertfile": _to("auth_oauth2.cacertfile"),
    "auth_oauth2.signing_keys.*": Key("auth_oauth2.signing_keys", _signing_key),
    "auth_oauth2.algorithms.*": _to("auth_oauth2.algorithms", _algorithm),
    "auth_oauth2.scope_prefix": _to("auth_oauth2.scope_prefix"),
    "auth_oauth2.scope_aliases.*": Key("auth_oauth2.scope_aliases", _alias),
    "auth_oauth2.additional_scopes_key": _to("auth_oauth2.additional_scopes_key", str.split),
    "auth_oauth2.preferred_username_claims*": _to(
        "auth_oauth2.preferred_username_claims", lambda value: [value]
    ),
    "auth_oauth2.verify_aud": _to("auth_oauth2.verify_aud", _flag),
    "auth_http.user_path": _to("auth_http.user_path"),
    "auth_http.vhost_path": _to("auth_http.vhost_path"),
    "auth_http.resource_path": _to("auth_http.resource_path"),
    "auth_http.topic_path": _to("auth_http.topic_path"),
    "auth_http.http_method": _to("auth_http.http_method"),
    "auth_http.ssl_options.cacertfile": _to("auth_http.cacertfile"),
    "auth_http.request_timeout": _to("auth_http.timeout_s", _seconds),
}
_NODE: Final = "there is one node"
_PLUGIN: Final = "there is no such plugin"
_SOCKETS: Final = "sockets are set by the broker"
_ERLANG: Final = "there is no Erlang"
_RAFT: Final = "queues are not replicated; the table [storage] has what can be set"
_STORAGE: Final = "the table [storage] has what can be set"
_TRANSPORT: Final = "TLS is OpenSSL's; the table [tls] has what can be set"
# key -> why it has no meaning here
WHY: Final[Mapping[str, str]] = {
    "default_user*": "the first start makes guest; penstock init --user NAME makes an "
    "administrator in its place",
    "default_pass*": "the first start makes guest; penstock init --password-file FILE gives a "
    "password",
    "default_vhost": "the first start makes the vhost /; penstock add_vhost makes others",
    "default_permissions.*": "penstock set_permissions sets them",
    "default_queue_type": "penstock add_vhost --default-queue-type gives each vhost its own",
    "default_limits.vhosts.*": "penstock set_vhost_limits sets them for a vhost that exists",
    "default_policies.operator.*": "penstock set_operator_policy sets one in a vhost that exists",
    "disk_free_limit.relative": "give bytes, in storage.disk_free_limit",
    "vm_memory_high_watermark_paging_ratio": "messages leave RAM by queue, see memory",
    "vm_memory_calculation_strategy": "messages are counted, and RSS is watched",
    "total_memory_available_override_value": "give bytes, in memory",
    "consumer_disconnected_timeout": _NODE,
    "heartbeat": "the broker proposes 60 s, and clients may choose another",
    "frame_max": "the broker proposes 131072",
    "initial_frame_max": "the handshake has frames of 4096 bytes, or 8192 with a token",
    "channel_max": "the broker proposes 2047; limits.user_channels limits a user",
    "max_channels_per_connection": "the broker proposes 2047; limits.user_channels limits a user",
    "channel_max_per_node": "limits.user_channels limits a user",
    "connection_max": "limits.vhost_connections and limits.user_connections limit connections",
    "max_connections": "limits.vhost_connections and limits.user_connections limit connections",
    "session_max_per_connection": "there is no AMQP 1.0",
    "link_max_per_session": "there is no AMQP 1.0",
    "vhost_max": "only administrators add vhosts",
    "max_message_size": "a message may take a part of its vhost's memory",
    "definitions.*": "load_definitions names a file; one that was loaded is skipped",
    "cluster_queue_limit": "limits.vhost_queues limits the queues of a vhost",
    "cluster_exchange_limit": "limits.vhost_exchanges limits the exchanges of a vhost",
    "cluster_*": _NODE,
    "node_tags.*": _NODE,
    "queue_master_locator": _NODE,
    "queue_leader_locator": _NODE,
    "mirroring_*": _NODE,
    "quorum_queue.property_equivalence.*": "x-queue-type is compared, as other arguments are",
    "quorum_*": _RAFT,
    "raft.*": _RAFT,
    "metadata_store.*": _NODE,
    "net_ticktime": _NODE,
    "distribution.*": _NODE,
    "classic_queue.*": "there is one version of classic queues",
    "deprecated_features.*": "what is deprecated there and served here is always served",
    "msg_store_*": _STORAGE,
    "queue_index_*": _STORAGE,
    "lazy_queue_*": "messages leave RAM by queue, see memory",
    "tcp_listen_options.*": _SOCKETS,
    "socket_writer.*": _SOCKETS,
    "num_acceptors.*": "one process accepts connections",
    "reverse_dns_lookups": "addresses are shown as they are",
    "background_gc_*": _ERLANG,
    "sysmon_handler.*": _ERLANG,
    "product.*": "the broker calls itself Penstock",
    "motd_file": "nothing is printed at a start",
    "channel_interceptor.*": _PLUGIN,
    "message_interceptors.*": "messages are not changed",
    "password_hashing_module": "passwords are kept as scrypt hashes",
    "credential_validator.*": "passwords of any length are accepted",
    "anonymous_login_*": "everybody logs in",
    "auth_backends.*.authz": "the backend that accepts a login decides on its rights",
    "auth_oauth2.issuer": "give auth_oauth2.jwks_uri, as "
    "ISSUER/.well-known/openid-configuration names it",
    "auth_oauth2.require_exp": "a token without exp does not expire",
    "auth_oauth2.default_key": "a token without kid is checked with the only key there is",
    "auth_oauth2.https.*": "the issuer's certificate is always checked",
    "auth_oauth2.resource_servers.*": "there is one auth_oauth2.resource_server_id",
    "auth_oauth2.oauth_providers.*": "there is one auth_oauth2.jwks_uri",
    "auth_oauth2.*": "the table [auth_oauth2] has what can be set",
    "auth_http.connection_timeout": "auth_http.timeout_s is for the whole answer",
    "auth_http.ssl_options.*": "the server's certificate is always checked",
    "auth_http.*": "the table [auth_http] has what can be set",
    "auth_cache.*": "only answers of http are remembered",
    "auth_ldap.*": "there is no LDAP",
    "auth_mechanisms.*": "PLAIN and AMQPLAIN, and EXTERNAL with certificates",
    "ssl_handshake_timeout": "handshake_timeout is for both handshakes together",
    "ssl_cert_login_san_index": "the first alternative name of its type is taken",
    "ssl_options.password": "tls.key is a file without a password",
    "ssl_options.*": _TRANSPORT,
    "log.*.level": "log_level is for all of the log",
    "log.exchange*": "penstock log_tail has the last lines; the log is no exchange",
    "log.*": "the log goes to stderr, which systemd or a shell writes to a file",
    "http_dispatch.*": "requests over HTTP are not logged; audit_log has what they change",
    "management.http_log_dir": "requests over HTTP are not logged; audit_log has what they change",
    "management.ssl.*": "HTTPS has what [tls] says of AMQP",
    "management.tcp.ip": "HTTP is served at host, as AMQP is",
    "management.tcp.*": "the times and sizes of HTTP are fixed",
    "management.http.*": "the times and sizes of HTTP are fixed",
    "management.path_prefix": "the dashboard is served at /; a proxy can add a prefix",
    "management.oauth_*": "the dashboard asks for a user and a password",
    "management.*": "the dashboard and the HTTP API have no such setting",
    "prometheus.*": "metrics are served at http_port and prometheus_port, as they are",
    "collect_statistics*": "counts are always kept",
    "mqtt.*": _PLUGIN,
    "stomp.*": _PLUGIN,
    "amqp1_0.*": "there is no AMQP 1.0",
    "stream.*": "streams are served over AMQP; there is no stream protocol",
    "web_*": _PLUGIN,
    "shovel.*": _PLUGIN,
    "federation.*": _PLUGIN,
    "trust_store.*": _PLUGIN,
    "tracing.*": _PLUGIN,
}
# option -> a comment beside its line
BESIDE: Final[Mapping[str, str]] = {
    "proxy_protocol_from": "name only the networks of your proxies: others could give any address",
    "auth_http.user_path": "users, their tags and permissions are those of this broker",
}
# ports that RabbitMQ opens only if it is told to
_TLS_PORTS: Final = ("tls.port", "tls.http_port")


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
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        setting = SETTING.fullmatch(line)
        if setting is None:
            raise OptionError(f"line {number}", line.strip(), "KEY = VALUE")
        yield _Line(number, setting["key"], setting["quoted"] or setting["plain"] or "")


def converted(text: str) -> str:
    """Return the penstock.toml of a rabbitmq.conf. Raises OptionError for a line that is none, or
    whose value is wrong in RabbitMQ, too."""
    found: Values = {}
    fallbacks: Values = {}
    left: list[str] = []
    for line in {line.key: line for line in _lines(text)}.values():
        try:
            key, new = _read(line)
            if line.key.startswith("listeners."):
                _check_listener(found, new)
        except _Left as error:
            value = "***" if any(word in line.key for word in SECRET) else line.value
            left.append(f"line {line.number}: {line.key} = {value}: {error}")
            continue
        for option, value in new.items():
            _add(fallbacks if key.is_fallback else found, option, value)
    made = _toml(_whole_options(fallbacks | found), left)
    _check(made)
    return made


def _read(line: _Line) -> tuple[Key, Values]:
    """Return what a line becomes. Raises _Left, OptionError."""
    key = next((KEYS[key] for key in KEYS if fnmatchcase(line.key, key)), None)
    if key is None:
        why = next((WHY[key] for key in WHY if fnmatchcase(line.key, key)), "it is not known here")
        raise _Left(why)
    if "$(" in line.value or line.value.startswith("encrypted:"):
        raise _Left("write the value itself, not a variable or an encrypted value")
    place = f"line {line.number}: {line.key}"
    try:
        new = key.read(line.key, line.value)
    except WrongValueError as error:
        raise OptionError(place, line.value, error.expected) from None
    options = {one.key: one.option for one in settings()}
    for option, value in new.items():
        if option in options and not isinstance(value, list | dict):
            value_of(options[option].kind, place, value)
    return key, new


def _check_listener(found: Values, new: Values) -> None:
    """Raise _Left if the broker listens elsewhere already."""
    for option, value in new.items():
        if found.get(option, value) != value:
            raise _Left("the broker listens at one address, host, and one port of each kind")


def _add(found: Values, option: str, value: Any) -> None:
    """Add what a line became to what the lines before it became."""
    before = found.get(option)
    if isinstance(before, list) and isinstance(value, list):
        before += [one for one in value if one not in before]
    elif isinstance(before, dict) and isinstance(value, dict):
        before |= value
    elif option == "tls.version_min":
        found[option] = min(before or value, value)
    else:
        found[option] = value


def _whole_options(given: Values) -> Values:
    """Return the options of all lines: what several lines became together, as penstock.toml has
    it."""
    found: Values = {"host": ALL_ADDRESSES, **given}
    users = found.get("loopback_users")
    if isinstance(users, dict):
        known = {"guest": True, **users}
        found["loopback_users"] = [name for name, is_loopback in known.items() if is_loopback]
    aliases = found.pop("alias", {})
    scopes = found.pop("scope", {})
    numbered = {name: scopes[number] for number, name in aliases.items() if number in scopes}
    if numbered:
        found["auth_oauth2.scope_aliases"] = found.get("auth_oauth2.scope_aliases", {}) | numbered
    cached = found.pop(CACHE, [INTERNAL])
    if "auth_backends" in found:
        backends = found["auth_backends"]
        backends += cached if CACHE in backends else []
        found["auth_backends"] = [one for one in dict.fromkeys(backends) if one != CACHE]
    if "tls.ciphers" in found:
        found["tls.ciphers"] = ":".join(found["tls.ciphers"])
    if "auth_oauth2.signing_keys" in found:
        keys = json.dumps({"keys": found["auth_oauth2.signing_keys"]})
        found["auth_oauth2.signing_keys"] = keys
    if "auth_oauth2.preferred_username_claims" in found:
        found["auth_oauth2.preferred_username_claims"] += ["sub", "client_id"]
    if "tls.cert" in found:
        found = {**dict.fromkeys(_TLS_PORTS, "off"), **found}
    return found


def _toml(found: Values, left: list[str]) -> str:
    """Return the text of the file."""
    lines = ["# Made from a rabbitmq.conf. Its advanced.config is not read."]
    lines += [_option(key, value) for key, value in found.items() if "." not in key]
    for table in TABLES:
        own = [key for key in found if key.startswith(f"{table}.")]
        if own:
            lines += ["", f"[{table}]", *(_option(key, found[key]) for key in own)]
    if left:
        lines += ["", "# These lines of rabbitmq.conf have no meaning here, and why:"]
        lines += [f"# {one_line(one)}" for one in left]
    return "\n".join(lines) + "\n"


def _option(key: str, value: object) -> str:
    beside = f"  # {BESIDE[key]}" if value and key in BESIDE else ""
    return f"{key.rpartition('.')[2]} = {_value(value)}{beside}"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(key)} = {_value(one)}" for key, one in value.items()) + "}"
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
    text = converted(text_of(file))
    if to == "-":
        click.echo(text, nl=False)
        return
    with Path(to).open("x", encoding="utf-8") as made:
        made.write(text)
    click.echo(f"{to}: {text.count(chr(10) + '# line ')} lines have no meaning here")
