"""Ask: the options and the connection that the operators' commands share.

A running broker listens at `control.sock` in its data directory, which only its own user can open;
no other permission is needed. So `--data` names the broker, without user and password. By default
it is the broker that `penstock serve` would run here. If none answers: UnavailableError, exit code
69.

`--url http://user:password@host:15672` names a broker elsewhere instead: its operations are called
over HTTP, with the permissions of that user. What stops a broker or writes files there is not.

The clients are imported when a command runs. Tests pass another one as the context's object:
a callable from data directory to Client. How requests travel: penstock.server.control.
"""

import base64
import difflib
import errno
import json
import math
import os  # noqa: TID251 - the environment, which says where the configuration is
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote, urlsplit

import click

from penstock import escaping
from penstock.cli.main import (
    EX_CONFIG,
    CommandRefusedError,
    FailedError,
    UnavailableError,
    text_of,
)
from penstock.cli.output import NO_HEADER, QUIET, F, flagged
from penstock.errors import ACCESS_REFUSED, OptionError, PenstockError
from penstock.operation_table import NAMES_MAX, NODE, OPERATIONS

if TYPE_CHECKING:
    from http.client import HTTPConnection

FILE: Final = "penstock.toml"
DEFAULT_DATA: Final = "./penstock-data"
HTTP_S: Final = 60.0  # as of the control socket: the broker gives up before
QUICK_S: Final = 0.2  # for names that help, and need not come
LOGIN_FAILED: Final = "Login failed"
TLS_ALERT: Final = "\x15\x03"  # what a port of TLS answers to plain text
NO_TAG: Final = ": Not "  # management, policymaker ... user
# What a broker says of a name that there is none of, and what lists those that there are.
LISTED_BY: Final = {
    "queue": "penstock list_queues", "exchange": "penstock list_exchanges",
    "vhost": "penstock list_vhosts", "user": "penstock list_users",
}  # fmt: skip
UNKNOWN: Final = re.compile(
    "NOT_FOUND - no (queue|exchange|vhost|user) '([^']+)'(?: in vhost '([^']+)')?"
)
# What `penstock why` explains.
UNSERVED: Final = re.compile(r"INTERNAL_ERROR - vhost '(.+?)' is down|publishing is blocked")


def data_of(_ctx: click.Context, _param: click.Parameter | None, given: str | None) -> str:
    """Return the data directory: the given one, that of the configuration file, or the default."""
    if given is not None:
        return given
    path = os.environ.get("PENSTOCK_CONFIG", FILE)
    if path == FILE and not Path(path).exists():
        return DEFAULT_DATA
    import tomllib

    try:
        text = text_of(path, EX_CONFIG)
        try:
            data = tomllib.loads(text).get("data", DEFAULT_DATA)
        except tomllib.TOMLDecodeError:
            from penstock.config import parse_file  # which says what is wrong; it imports much

            data = parse_file(path, text)
        if not isinstance(data, str):
            raise OptionError(f"{path}: data", data, "a directory")
    except OptionError as error:
        raise FailedError(EX_CONFIG, str(error)) from error
    return data


def _note_url(ctx: click.Context, _param: click.Parameter, given: str | None) -> None:
    if given is not None:
        ctx.meta[URL_KEY] = given


URL_KEY: Final = "penstock.url"
URL: Final = click.option(
    "--url", metavar="URL", expose_value=False, callback=_note_url,
    help="Instead, a broker elsewhere: http://user:password@host:15672, or https.",
)  # fmt: skip


def elsewhere() -> str:
    """Return the host of the broker that --url names, "" without --url. Raises OptionError."""
    url: str = click.get_current_context().meta.get(URL_KEY, "")
    return _Http(url).host if url else ""


def DATA(function: F) -> F:
    """Add the options of every command that asks a broker."""
    for option in (
        URL,
        click.option(
            "-s", "--silent", is_flag=True, expose_value=False, callback=flagged(QUIET, NO_HEADER),
            help="As --quiet, and without names of columns.",
        ),
        click.option(
            "-q", "--quiet", is_flag=True, expose_value=False, callback=flagged(QUIET),
            help="Do not say what was done.",
        ),
        click.option(
            "--data", metavar="DIR", envvar="PENSTOCK_DATA", callback=data_of,
            help="Data directory of the broker [that of ./penstock.toml, or ./penstock-data].",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def named(_ctx: click.Context, _param: click.Parameter, given: str | None) -> str | None:
    """Return a name in which `\\xNN` stands for a byte."""
    return given if given is None or "\\" not in given else escaping.unescaped(given)


VHOST = click.option(
    "-p",
    "--vhost",
    metavar="NAME",
    callback=named,
    default="/",
    show_default=True,
    help="The vhost.",
)
ARGUMENTS = click.option(
    "-a", "--argument", "arguments", multiple=True, metavar="NAME=VALUE", help="May be repeated."
)


class NumberRange(click.FloatRange):
    """A number within a range, as click has it, but neither nan, which is within every range, nor
    infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail with what is wrong with it."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number of that range.", param, ctx)
        return number


def arguments_of(given: tuple[str, ...]) -> dict[str, object]:
    """Return the arguments as a table. Raises click.UsageError for what is not NAME=VALUE."""
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"argument {text!r}: expected NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


class Client(Protocol):
    """A connection to a broker's control socket."""

    def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        """Return the result of an operation, with bytes decoded. Raises CommandRefusedError and
        UnavailableError."""

    def close(self) -> None:
        """Close the connection."""


Connect = Callable[[str], Client]


@contextmanager
def asked(data: str) -> Iterator[Client]:
    """Connect to the broker of this directory, for several operations."""
    client = _connect(data)
    try:
        yield client
    except CommandRefusedError as error:
        hint = _hint(data, str(error))
        if not hint:
            raise
        raise CommandRefusedError(error.code, f"{error}; {hint}") from error
    finally:
        client.close()


def _connect(data: str, timeout_s: float | None = None) -> Client:
    context = click.get_current_context()
    if URL_KEY in context.meta:
        return _Http(context.meta[URL_KEY], timeout_s)
    connect: Connect | None = context.find_root().obj
    return _Socket(data, timeout_s) if connect is None else connect(data)


def names_of(data: str, kind: str, vhost: str, prefix: str) -> list[str]:
    """Return some names of vhosts, users, queues or exchanges with this beginning, sorted; none if
    the broker does not answer within QUICK_S."""
    client = _connect(data, QUICK_S)
    try:
        if kind in ("vhosts", "users"):
            rows = client.call(f"list_{kind}") or []
            found = sorted(row["name"] for row in rows if row["name"].startswith(prefix))
        else:
            found = client.call("names", vhost, kind=kind, prefix=prefix, limit=NAMES_MAX) or []
    except (PenstockError, OSError):
        return []
    finally:
        client.close()
    return [escaping.escaped(name) for name in found[:NAMES_MAX]]


def _hint(data: str, error: str) -> str:
    """Return the name that was probably meant where there is none of a name, or what lists those
    that there are, or what says why a vhost does not serve; "" for another error."""
    unserved = UNSERVED.search(error)
    if unserved is not None:
        return f"see: penstock why{_of_vhost(unserved[1])}"
    unknown = UNKNOWN.search(error)
    if unknown is None:
        return ""
    kind, name, vhost = unknown.groups()
    known = names_of(data, f"{kind}s", vhost or "/", name[:1])
    for near in difflib.get_close_matches(name, known, n=1):
        return f"did you mean {near!r}?"
    return f"see: {LISTED_BY[kind]}{_of_vhost(vhost)}"


def _of_vhost(vhost: str | None) -> str:
    return "" if vhost in (None, "/") else f" -p {shlex.quote(vhost)}"


def ask(data: str, op: str, vhost: str | None = None, /, **args: object) -> Any:
    """Return the result of one operation, on a connection of its own."""
    with asked(data) as client:
        return client.call(op, vhost, **args)


class _Socket:
    """The client of a control socket. It connects at the first call."""

    def __init__(self, data: str, timeout_s: float | None = None) -> None:
        from penstock.server.control import TIMEOUT_S, ControlClient

        self._data = data
        self._client = ControlClient(data, timeout_s=timeout_s or TIMEOUT_S)

    def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        from penstock.server.control import ControlError, NoServerError

        try:
            return self._client.call(op, vhost, **args)
        except ControlError as error:
            raise CommandRefusedError(error.code, error.text) from error
        except NoServerError as error:
            if error.errno in {errno.EACCES, errno.EPERM}:
                text = "only the user that runs the broker may use its control socket"
                raise PermissionError(errno.EACCES, text, self._data) from error
            if error.errno == errno.EPROTOTYPE:
                raise UnavailableError(
                    f"the broker in {self._data} is of an older release, which other commands "
                    "speak to: use its own `penstock`, or stop it with SIGTERM"
                ) from error
            raise UnavailableError(
                f"no broker answers in {self._data} ({error.reason}): is `penstock serve --data "
                f"{self._data}` running? --data sets the broker"
            ) from error

    def close(self) -> None:
        self._client.close()


class _Http:
    """The client of a broker's HTTP process: http://user:password@host:15672, or https with
    parameters such as ?cacertfile=ca.pem, as of amqps. It connects at the first call."""

    def __init__(self, url: str, timeout_s: float | None = None) -> None:
        from penstock.amqp_url import ESCAPED, AmqpUrl, without_password

        expected = "http://user:password@host:15672, or https://"
        if not url.startswith(("http://", "https://")):
            raise OptionError("--url", without_password(url), expected)
        try:
            self._place = AmqpUrl.parse("amqp" + url.removeprefix("http"))
        except OptionError as error:
            if error.name != "url":
                raise
            text = f"{expected}, {ESCAPED}"
            raise OptionError("--url", without_password(url), text) from None
        self._port = urlsplit(url).port or (15672 if self._place.tls is None else 15671)
        self._timeout_s = timeout_s or HTTP_S
        self._connection: HTTPConnection | None = None

    def call(self, op: str, vhost: str | None = None, /, **args: object) -> Any:
        import ssl
        from http.client import BadStatusLine, HTTPException

        from penstock.client.tls import tls_reason
        from penstock.operation_json import dumps, read

        row = OPERATIONS[op]
        if not row.is_over_http:
            name = click.get_current_context().info_name or op
            raise click.UsageError(
                f"{name} is not available over HTTP: run this command on the broker's machine, "
                "without --url"
            )
        query = "" if vhost is None or row.of == NODE else f"?vhost={quote(vhost, safe='')}"
        path = f"/api/penstock/operations/{op}{query}"
        try:
            connection = self._connected()
            connection.request("POST", path, dumps(args, is_exact=True), self._headers())
            reply = connection.getresponse()
            data = reply.read()
        except (OSError, HTTPException) as error:
            self.close()
            if isinstance(error, ssl.SSLError):
                text = f"no connection to {self._where} over TLS: {tls_reason(error)}"
                raise UnavailableError(text) from error
            if isinstance(error, BadStatusLine) and str(error).startswith(TLS_ALERT):
                text = f"{self._where} speaks TLS: give --url https://"
                raise UnavailableError(text) from error
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise UnavailableError(
                f"no broker answers at {self._where} ({reason}): is it running, with HTTP at this "
                "port (--http-port)?"
            ) from error
        if reply.status == 200:
            return read(data)
        try:
            said = json.loads(data) if data else {}
            code, reason = said.get("code"), str(said.get("reason", said.get("error", "")))
        except (ValueError, AttributeError):
            code, reason = None, ""
        if code is None and reply.status == 404:
            raise UnavailableError(f"{self._where} is no broker of Penstock that knows {path}")
        if code is None and reply.status in (401, 403):
            code = ACCESS_REFUSED
            reason = f"user '{self._place.user}': {reason or LOGIN_FAILED}"
            if reason.endswith(LOGIN_FAILED):
                reason += ": wrong name or password, or guest from another machine"
            elif NO_TAG in reason:
                reason += ", a tag is missing: 'penstock set_user_tags' gives it"
        if code is None:
            raise UnavailableError(f"{self._where} answers {reply.status}: {reason}")
        raise CommandRefusedError(code, reason)

    @property
    def host(self) -> str:
        """Return the host of the URL."""
        return self._place.host

    @property
    def _where(self) -> str:
        return f"{self.host}:{self._port}"

    def _headers(self) -> dict[str, str]:
        login = f"{self._place.user}:{self._place.password}".encode()
        return {
            "Authorization": "Basic " + base64.b64encode(login).decode(),
            "Content-Type": "application/json",
        }

    def _connected(self) -> "HTTPConnection":
        from penstock.client.tls import http_connection

        if self._connection is None:
            place = self._place
            self._connection = http_connection(place.host, self._port, place.tls, self._timeout_s)
        return self._connection

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
