"""Commands for the running broker: status, start and stop, vhosts, users and limits, lists.

`stop` returns when the broker has released the lock of its data directory, so that a script can
use the directory; `await_startup` returns when the broker serves. Both have a --timeout.

**Users.** A password may be an argument, as for rabbitmqctl, but then everybody who can list the
machine's processes can read it. Without it, the command asks for it twice on the terminal, without
showing it; with --stdin it is the first line of stdin.

Permissions are regular expressions, found anywhere in a name: configure (declare, delete), write
(publish, bind to) and read (consume, bind from). "" matches nothing, ".*" everything.

Limits are numbers of a user or of a vhost, with rabbitmqctl's names.

**Lists.** `penstock list_queues name messages consumers` prints these columns in this order;
without columns a few, with `--format json` all. An unknown column is an error that suggests the
nearest one. Columns of a broker of another version are printed when they are asked for and a row
has them.

`serve` is in serve.py, the tools for a store that is not in use in store.py.
"""

import difflib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from penstock.access.limits import OF_USERS, OF_VHOSTS
from penstock.cli import output
from penstock.cli.ask import DATA, VHOST, Client, ask, asked, named
from penstock.cli.main import EX_UNAVAILABLE, VERBS, CommandRefusedError, UnavailableError
from penstock.cli.output import FORMAT
from penstock.clock import SystemClock
from penstock.embedded.waiting import ThreadWaiter
from penstock.errors import LockedError, OptionError
from penstock.storage.files.filesystem import OsFileSystem

PAUSE_S: Final = 0.05
CALL_S: Final = 20.0  # of one call; the socket's own limit is longer


@click.command("status")
@click.option(
    "-p", "--vhost", metavar="NAME", callback=named, help="One vhost instead of the whole broker."
)
@FORMAT
@DATA
def status(vhost: str | None, form: str, data: str) -> None:
    """Show the broker's state, memory and disk use.

    `is_healthy` is false while a vhost is down or publishers are blocked; `problems` says why.
    """
    found = ask(data, "status") if vhost is None else ask(data, "vhost_status", vhost)
    output.pairs(found, form)


@click.command("health_check")
@DATA
def health_check(data: str) -> None:
    """Check that the broker serves; exit code 69 if not.

    It serves if it has started, no vhost is down and no publisher is blocked. Prints `ok`, or each
    problem on a line of stderr.
    """
    found = ask(data, "status")
    if found["is_healthy"]:
        click.echo("ok")
        return
    for problem in found["problems"]:
        output.say(f"penstock: {problem}", err=True)
    raise click.exceptions.Exit(EX_UNAVAILABLE)


@click.command("add_vhost")
@click.argument("name", callback=named)
@DATA
def add_vhost(name: str, data: str) -> None:
    """Add a vhost.

    It has its own queues, exchanges and permissions, process and directory.
    """
    ask(data, "add_vhost", name=name)


@click.command("delete_vhost")
@click.argument("name", callback=named)
@DATA
def delete_vhost(name: str, data: str) -> None:
    """Delete a vhost and everything in it.

    Its queues, messages and permissions are deleted.
    """
    ask(data, "delete_vhost", name=name)


@click.command("restart_vhost")
@click.argument("name", callback=named)
@DATA
def restart_vhost(name: str, data: str) -> None:
    """Start a vhost that is down, or restart one.

    Clears its failures, and the requests that are refused because they ended its process. Returns
    when it serves. Exit code 69: it is down again; the message says why.
    """
    ask(data, "restart_vhost", name=name)


@click.command("stop_vhost")
@click.argument("name", callback=named)
@DATA
def stop_vhost(name: str, data: str) -> None:
    """Stop one vhost until start_vhost.

    Closes its connections, makes a checkpoint and ends its process; other vhosts continue. It stays
    stopped when the broker restarts. Returns when its process has ended. Exit code 64: it is
    stopped already.
    """
    ask(data, "stop_vhost", name=name)


@click.command("start_vhost")
@click.argument("name", callback=named)
@DATA
def start_vhost(name: str, data: str) -> None:
    """Start a vhost that is stopped or down.

    Also starts one that nobody has opened yet. Clears its failures, and the requests that are
    refused because they ended its process. Returns when it serves. Exit code 64: it runs already;
    69: it cannot start, and the message says why.
    """
    ask(data, "start_vhost", name=name)


@click.command("checkpoint")
@VHOST
@DATA
def checkpoint(vhost: str, data: str) -> None:
    """Make a checkpoint of a vhost now.

    Returns when it is on disk.
    """
    with asked(data) as client:
        _finish(client, vhost, client.call("checkpoint", vhost))


@click.command("backup")
@click.argument("into", metavar="TO")
@VHOST
@DATA
def backup(into: str, vhost: str, data: str) -> None:
    """Copy a vhost in use into a new data directory.

    TO gets the vhost as of one instant, while the broker continues. Files that never change are
    hard-linked if possible.
    """
    with asked(data) as client:
        begun = client.call("backup", vhost, path=str(Path(into).absolute()))
        found = _finish(client, vhost, begun)
    click.echo(
        f"{into}: {found['linked']} files linked, {found['copied']} copied "
        f"({found['copied_bytes']} bytes)"
    )


def _finish(client: Client, vhost: str, begun: dict[str, Any]) -> dict[str, Any]:
    """Wait for a long operation and return its result."""
    while True:
        found: dict[str, Any] = client.call(
            "job", vhost, job=begun["job"], wait_ms=round(CALL_S * 1000)
        )
        if found["is_done"]:
            result: dict[str, Any] = found["result"]
            return result


@click.command("await_startup")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), default=60.0, show_default=True,
    metavar="SECONDS", help="Give up after that, with exit code 69.",
)  # fmt: skip
@DATA
def await_startup(timeout_s: float, data: str) -> None:
    """Wait until the broker is ready.

    It is ready when all its vhosts serve.
    """
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    while True:
        left_s = max(deadline - clock.monotonic(), 0.0)
        try:
            ask(data, "await_startup", timeout_s=min(left_s, CALL_S))
        except UnavailableError:
            if clock.monotonic() >= deadline:
                raise
        except CommandRefusedError as error:
            if clock.monotonic() >= deadline:
                raise UnavailableError(f"not ready after {timeout_s:g} s: {error}") from None
        else:
            return
        ThreadWaiter().sleep(PAUSE_S)


@click.command("stop")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), default=60.0, show_default=True,
    metavar="SECONDS", help="Stop waiting after that, with exit code 75.",
)  # fmt: skip
@DATA
def stop(timeout_s: float, data: str) -> None:
    """Stop the broker in order.

    Closes connections, makes a checkpoint, closes the files, and returns when the broker has left
    its data directory. Exit code 75 if that takes longer than --timeout; the broker is then still
    stopping.
    """
    ask(data, "stop")
    clock = SystemClock()
    deadline = clock.monotonic() + timeout_s
    fs = OsFileSystem(0)
    try:
        while True:
            try:
                fs.lock(f"{data.rstrip('/')}/LOCK").release()
            except LockedError:
                if clock.monotonic() >= deadline:
                    raise
            else:
                return
            ThreadWaiter().sleep(PAUSE_S)
    finally:
        fs.close()


EXAMPLE: Final = '{"max-connections": 10}'
STDIN = click.option(
    "--stdin", "from_stdin", is_flag=True, help="Read the password from a line of stdin."
)


def _password(given: str | None, from_stdin: bool) -> str:
    if from_stdin:
        if given is not None:
            raise click.UsageError("a password as argument and --stdin do not go together")
        line = sys.stdin.readline()
        if not line:
            raise click.UsageError("stdin is empty, expected the password")
        given = line.rstrip("\r\n")
    elif given is None:
        asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        given = asked
    if not given:
        raise click.UsageError("the password is empty")
    return given


@click.command("add_user")
@click.argument("name", callback=named)
@click.argument("password", required=False)
@click.option("--tag", "tags", multiple=True, help="Such as administrator; may be repeated.")
@STDIN
@DATA
def add_user(
    name: str, password: str | None, tags: tuple[str, ...], from_stdin: bool, data: str
) -> None:
    """Add a user.

    The user has no permissions yet: see set_permissions.
    """
    ask(data, "add_user", name=name, password=_password(password, from_stdin), tags=list(tags))


@click.command("delete_user")
@click.argument("name", callback=named)
@DATA
def delete_user(name: str, data: str) -> None:
    """Delete a user.

    The user's connections are closed.
    """
    ask(data, "delete_user", name=name)


@click.command("change_password")
@click.argument("name", callback=named)
@click.argument("password", required=False)
@STDIN
@DATA
def change_password(name: str, password: str | None, from_stdin: bool, data: str) -> None:
    """Change a user's password.

    Open connections stay open.
    """
    ask(data, "change_password", name=name, password=_password(password, from_stdin))


@click.command("set_user_tags")
@click.argument("name", callback=named)
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@DATA
def set_user_tags(name: str, tags: tuple[str, ...], data: str) -> None:
    """Set a user's tags.

    They replace all earlier tags.
    """
    ask(data, "set_user_tags", name=name, tags=list(tags))


@click.command("set_permissions")
@click.argument("user", callback=named)
@click.argument("configure")
@click.argument("write")
@click.argument("read")
@VHOST
@DATA
def set_permissions(
    user: str, configure: str, write: str, read: str, vhost: str, data: str
) -> None:
    """Set what a user may configure, write and read in a vhost.

    CONFIGURE, WRITE and READ are regular expressions of names. They apply at once, to open
    connections too.
    """
    ask(data, "set_permissions", vhost, user=user, configure=configure, write=write, read=read)


@click.command("clear_permissions")
@click.argument("user", callback=named)
@VHOST
@DATA
def clear_permissions(user: str, vhost: str, data: str) -> None:
    """Remove a user's permissions on a vhost.

    The user can no longer open connections to it.
    """
    ask(data, "clear_permissions", vhost, user=user)


LIMITS = click.argument("limits", metavar="JSON", callback=lambda _c, _p, text: _table(text))


def _table(text: str) -> dict[str, object]:
    """Parse limits as rabbitmqctl takes them: a JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.UsageError(f"given {text!r}, expected a JSON object: '{EXAMPLE}'")
    return found


@click.command("set_user_limits")
@click.argument("user")
@LIMITS
@DATA
def set_user_limits(user: str, limits: dict[str, object], data: str) -> None:
    """Set limits of a user.

    The argument is JSON: '{"max-connections": 10, "max-channels": 100}'. -1 means no limit. Other
    limits keep their values.
    """
    ask(data, "set_user_limits", user=user, limits=limits)


@click.command("clear_user_limits")
@click.argument("user")
@click.argument("limit", default="all")
@DATA
def clear_user_limits(user: str, limit: str, data: str) -> None:
    """Restore the server's default limits of a user.

    LIMIT is one limit; without it all limits are restored.
    """
    ask(data, "clear_user_limits", user=user, limit=limit)


@click.command("set_vhost_limits")
@LIMITS
@VHOST
@DATA
def set_vhost_limits(limits: dict[str, object], vhost: str, data: str) -> None:
    """Set limits of a vhost.

    The argument is JSON: '{"max-connections": 100, "max-queues": 1000}'. -1 means no limit. Other
    limits keep their values.
    """
    ask(data, "set_vhost_limits", vhost, limits=limits)


@click.command("clear_vhost_limits")
@click.argument("limit", default="all")
@VHOST
@DATA
def clear_vhost_limits(limit: str, vhost: str, data: str) -> None:
    """Restore the server's default limits of a vhost.

    LIMIT is one limit; without it all limits are restored.
    """
    ask(data, "clear_vhost_limits", vhost, limit=limit)


# command -> (default columns, other columns)
COLUMNS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "list_queues": (
        ("name", "messages", "consumers"),
        (
            "messages_ready", "messages_unacknowledged", "leased", "message_bytes", "memory",
            "memory_alphas", "memory_rows", "memory_elsewhere", "memory_target", "memory_max",
            "memory_min", "memory_share", "memory_duration", "paged_by", "messages_ram",
            "messages_paged_out", "ack_in_per_s", "ack_out_per_s",
            "durable", "exclusive", "auto_delete", "arguments", "state", "type", "alphas", "betas",
            "gammas", "delta", "delayed", "message_bytes_ready", "message_bytes_unacknowledged",
            "mode", "message_stats", "idle_since", "disk_reads", "disk_writes", "in_per_s",
            "out_per_s", "rejected", "expired", "maxlen", "delivery_limit", "dead_letters_dropped",
            "dead_letter_cycles", "alerts_raised", "why", "is_flowed", "q1", "q2", "q3", "q4",
            "set_aside", "partitions", "readers", "vhost",
        ),
    ),
    "list_exchanges": (
        ("name", "type"), ("durable", "auto_delete", "internal", "arguments", "vhost"),
    ),
    "list_bindings": (
        ("source_name", "destination_name", "destination_kind", "routing_key", "arguments"),
        ("source_kind", "vhost"),
    ),
    "list_consumers": (
        ("queue_name", "channel", "consumer_tag", "ack_required", "prefetch_count"),
        (
            "connection", "user", "exclusive", "active", "priority", "arguments", "unacked",
            "delivered", "vhost",
        ),
    ),
    "list_channels": (
        ("name", "user", "consumer_count", "messages_unacknowledged"),
        (
            "connection", "number", "vhost", "prefetch_count", "global_prefetch_count", "confirm",
            "transactional", "messages_unconfirmed", "state",
        ),
    ),
    "list_connections": (
        ("name", "user", "vhost", "state", "channels"),
        (
            "peer_host", "peer_port", "host", "port", "client_properties", "connected_at",
            "frame_max", "channel_max", "timeout", "recv_oct", "send_oct",
        ),
    ),
    "list_alerts": (
        ("time", "queue", "kind", "is_on", "text"),
        ("first_time", "count", "value", "threshold", "vhost"),
    ),
    "list_leases": (
        ("name", "reader", "first", "head", "bytes", "is_old"),
        ("ready", "ready_bytes", "since_ms", "path", "stream_id", "last_time_us"),
    ),
    "list_batches": (
        ("query", "batch", "target", "rows", "is_done", "waits_for"),
        ("owner", "pages", "page", "frame", "bytes", "time_us"),
    ),
    "list_vhosts": (
        ("name", "state", "since", "why"),
        (
            "pid", "error", "retry_in_s", "blocked_reason", "refused", "restarts", "memory_bytes",
            "counted_bytes", "connections", "depth_bytes", "rss_bytes",
            "returned_bytes", "takes_clients", "unserved",
        ),
    ),
    "list_users": (("name", "tags"), ()),
    "list_user_limits": (("user", *OF_USERS), ()),
    "list_vhost_limits": (("vhost", *OF_VHOSTS), ()),
    "list_permissions": (("user", "vhost", "configure", "write", "read"), ()),
}  # fmt: skip


Decorator: TypeAlias = Callable[[Any], Any]
ONE_VHOST: Final = click.option(
    "-p", "--vhost", metavar="NAME", callback=named, help="One vhost [all]."
)


def rows_of(command: str, found: Sequence[Mapping[str, object]], asked: Sequence[str]) -> None:
    """Print these columns of the rows. Raises OptionError for an unknown column."""
    first, others = COLUMNS[command]
    names = list(asked or first)
    known = {*first, *others}.union(*found)
    for name in names:
        if name not in known:
            columns = [*first, *sorted(known.difference(first))]
            near = difflib.get_close_matches(name, columns, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError("column", name, f"{hint}one of {', '.join(columns)}")
    output.table(names, [[row.get(name) for name in names] for row in found])


def _listing(command: str, *, of_vhost: Decorator | None = None) -> click.Command:
    """Return the click command of that name. of_vhost: its option for the vhost."""
    first, others = COLUMNS[command]

    def run(data: str, form: str, columns: tuple[str, ...], **more: Any) -> None:
        found = ask(data, command, more.get("vhost"))
        if form == "json":
            output.document([{name: row.get(name) for name in columns or row} for row in found])
        else:
            rows_of(command, found, columns)

    columns = click.argument("columns", nargs=-1, metavar="[COLUMN]...")
    words = ", ".join((*first, *others))
    decorators: list[Callable[[Any], Any]] = [DATA, FORMAT, columns]
    if of_vhost is not None:
        decorators.append(of_vhost)
    function: Any = run
    for decorate in decorators:
        function = decorate(function)
    text = f"{VERBS[command].help}\n\nColumns: {words}. By default: {', '.join(first)}."
    made: click.Command = click.command(command, help=text)(function)
    return made


list_alerts = _listing("list_alerts", of_vhost=VHOST)
list_batches = _listing("list_batches", of_vhost=VHOST)
list_bindings = _listing("list_bindings", of_vhost=VHOST)
list_channels = _listing("list_channels", of_vhost=VHOST)
list_connections = _listing("list_connections")
list_consumers = _listing("list_consumers", of_vhost=VHOST)
list_exchanges = _listing("list_exchanges", of_vhost=VHOST)
list_leases = _listing("list_leases", of_vhost=VHOST)
list_permissions = _listing("list_permissions", of_vhost=ONE_VHOST)
list_queues = _listing("list_queues", of_vhost=VHOST)
list_user_limits = _listing("list_user_limits")
list_users = _listing("list_users")
list_vhost_limits = _listing("list_vhost_limits")
list_vhosts = _listing("list_vhosts")
