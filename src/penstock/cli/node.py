"""Commands for the running broker: status, stop, checkpoint, backup, users, definitions, why.

`stop` returns when the broker has released the lock of its data directory, so that a script can
use the directory; `await_startup` returns when the broker serves. Both have a --timeout.

**Users.** A password may be an argument, as for rabbitmqctl, but then everybody who can list the
machine's processes can read it. Without it, the command asks for it twice on the terminal, without
showing it; with --stdin it is the first line of stdin.

Permissions are regular expressions, found anywhere in a name: configure (declare, delete), write
(publish, bind to) and read (consume, bind from). "" matches nothing, ".*" everything.

**Definitions.** FILE may be `-`, for stdin or stdout. An exported file holds hashes of passwords,
so only its owner may read it.

**why.** The operation `why` of a vhost finds the causes; `why` prints each as a line. Before them
stands what is wrong with the broker, of which a vhost knows nothing, by the operation `status`; a
vhost that does not serve is asked nothing. Certificates that expire soon come last.

Lists, and other commands that are one operation, are made from its row (rows.py). `serve` is in
serve.py, the tools for a store that is not in use in store.py.
"""

import base64
import json
import random
import sys
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli import output
from penstock.cli.ask import DATA, VHOST, Client, NumberRange, ask, asked, elsewhere, named
from penstock.cli.main import (
    EX_DATAERR,
    EX_NOINPUT,
    EX_NOUSER,
    EX_UNAVAILABLE,
    CommandRefusedError,
    FailedError,
    UnavailableError,
    text_of,
)
from penstock.cli.output import FORMAT, span
from penstock.cli.rows import ONE_VHOST
from penstock.clock import SystemClock, date
from penstock.embedded.waiting import ThreadWaiter
from penstock.errors import CERTIFICATE_ADVICE, PRECONDITION_FAILED, LockedError, OptionError
from penstock.operation_json import to_json
from penstock.operation_table import ALARM
from penstock.options import format_bytes, many, ms_in
from penstock.storage.files.filesystem import OsFileSystem

PAUSE_S: Final = 0.05
PASSWORD_BYTES: Final = 18  # of one that is made; 24 letters
CLOSED: Final = "closed by an operator"
CALL_S: Final = 20.0  # of one call; the socket's own limit is longer


@click.command("status")
@click.option(
    "-p", "--vhost", metavar="NAME", callback=named, help="One vhost instead of the whole broker."
)
@FORMAT
@DATA
def status(vhost: str | None, form: str, data: str) -> None:
    """Show the broker's state, memory and disk use.

    First what is wrong, and what to do. With --format json everything that is known.
    """
    found = ask(data, "status") if vhost is None else ask(data, "vhost_status", vhost)
    if form == "json" or vhost is not None:
        output.pairs(found, form)
        return
    for line in status_lines(found):
        output.sentence(line, 13)


def status_lines(found: dict[str, Any]) -> list[str]:
    """Return what `status` prints of a broker."""
    lines = [
        f"not healthy: {problem}{f' - {do}' if do else ''}"
        for problem, do in zip(found["problems"], found["advice"], strict=True)
    ]
    vhosts = found["vhosts"]
    serving = sum(one["state"] == "running" for one in vhosts)
    tls = found["tls"] or {}
    lines += [f"warning: {text}" for text in tls.get("warnings", ())]
    if not found["problems"]:
        lines.append(f"healthy: {many(serving, 'vhost')} of {len(vhosts)} opened, "
                     f"{many(found['connections'], 'connection')}")  # fmt: skip
    rows = [
        (
            "vhost" if i else "vhosts",
            f"{one['name']}: {one['state']}, {many(one['connections'], 'connection')}, "
            f"{format_bytes(one['counted_bytes'])} of {format_bytes(one['memory_bytes'])}, "
            f"process {format_bytes(one['rss_bytes'])}"
            if one["state"] == "running"
            else f"{one['name']}: {one['state']}, {one['why']}",
        )
        for i, one in enumerate(vhosts)
    ]
    free, limit = found["disk_free_bytes"], found["disk_free_limit_bytes"]
    places = {found["data"], found["log_directory"], found["spill_directory"]}
    rows += [
        (
            "memory",
            f"{format_bytes(found['counted_bytes'])} of {format_bytes(found['memory_bytes'])} "
            "hold messages",
        ),
        (
            "disk",
            f"{format_bytes(free)} free, publishers wait below {format_bytes(limit)}: "
            + ", ".join(sorted(places)),
        ),
        (
            "clients",
            f"{many(found['connections'], 'connection')}, {found['half_open']:,} logging in, "
            f"{found['accepted']:,} since the start",
        ),
        (
            "listens",
            ", ".join(f"{name} {found['host']}:{n}" for name, n in found["listeners"].items()),
        ),
        *(
            ("certificate", f"{one['file']}: until {date(one['expires_ms'])}")
            for one in tls.get("certificates", ())
        ),
        ("version", f"{found['version']} ({found['build']}), up {output.span(found['uptime_s'])}"),
        ("durability", found["durability"]),
    ]
    return lines + [f"{name:<13}{text}" for name, text in rows]


@click.command("health_check")
@click.argument(
    "check", default="all",
    type=click.Choice(["all", "ping", "running", "alarms", "vhosts", "ports", "port"]),
)  # fmt: skip
@click.argument("port", type=int, required=False)
@FORMAT
@DATA
def health_check(check: str, port: int | None, form: str, data: str) -> None:
    """Check that the broker serves; exit code 69 if not.

    It serves if it has started, no vhost is down and no publisher is blocked. Prints `ok`, or each
    problem on a line of stderr. CHECK is one part of that: ping, that it answers; running, that it
    has started; alarms, that no publisher is blocked; vhosts; ports, that clients can connect; port
    PORT, that it listens there.
    """
    if (check == "port") != (port is not None):
        raise click.UsageError("expected a number with `port`, and none with other checks")
    found = ask(data, "status")
    wrong = _wrong(check, port, found)
    if form == "json":
        output.document({"status": "failed", "reasons": wrong} if wrong else {"status": "ok"})
    elif not wrong:
        output.told("ok")
    else:
        for problem in wrong:
            output.say(f"penstock: {problem}", err=True)
    if wrong:
        raise click.exceptions.Exit(EX_UNAVAILABLE)


def _wrong(check: str, port: int | None, found: dict[str, Any]) -> list[str]:
    """Return the problems that a check is about."""
    problems: list[str] = found["problems"]
    kind = {"alarms": "alarm", "vhosts": "vhost"}.get(check)
    if kind is not None:
        return [text for text, one in zip(problems, found["kinds"], strict=True) if one == kind]
    if check == "ping":
        return []
    if check == "running":
        return [] if found["is_ready"] else ["the broker has not started yet"]
    if check == "ports":
        return [
            text
            for name, n in found["listeners"].items()
            if (text := _refused(elsewhere() or found["host"], name, n))
        ]
    if check == "port":
        is_there = port in found["listeners"].values()
        return [] if is_there else [f"the broker does not listen at port {port}"]
    return problems


def _refused(host: str, name: str, port: int) -> str:
    """Return why nobody can connect there, "" if one can."""
    import socket

    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - names, no bind
    try:
        socket.create_connection((address, port), CALL_S).close()
    except OSError as error:
        return f"{name} at {host}:{port} cannot be reached: {error.strerror or error}"
    return ""


@click.command("report")
@DATA
def report(data: str) -> None:
    """Print what somebody needs who is to help: state, configuration, lists.

    As JSON. It has names of users, queues and addresses of clients, and no passwords or messages.
    """
    lists = ("list_vhosts", "list_users", "list_permissions", "list_connections",
             "list_vhost_limits", "list_user_limits")  # fmt: skip
    of_vhost = ("vhost_status", "vhost_totals", "list_queues", "list_exchanges", "list_bindings",
                "list_policies", "list_operator_policies", "list_channels", "list_consumers",
                "list_leases", "list_batches", "list_alerts")  # fmt: skip
    with asked(data) as client:
        found: dict[str, Any] = {"status": client.call("status")}
        found["config"] = client.call("show_config")
        for op in lists:
            found[op.removeprefix("list_")] = client.call(op)
        found["by_vhost"] = {
            one["name"]: {op.removeprefix("list_"): client.call(op, one["name"]) for op in of_vhost}
            for one in found["vhosts"]
            if one["state"] == "running"
        }
    output.document(found)


@click.command("rotate_logs")
def rotate_logs() -> None:
    """Say that there are no log files to rotate.

    The broker writes its log to stderr, which its service manager keeps.
    """
    output.told("nothing to do: the log goes to stderr, and its reader keeps and rotates it")


@click.command("close_connection")
@click.argument("name", callback=named)
@click.argument("reason", default=CLOSED)
@click.option("--channel", type=click.IntRange(1, 65535), help="Close only this channel of it.")
@DATA
def close_connection(name: str, reason: str, channel: int | None, data: str) -> None:
    """Close a connection, or one of its channels.

    NAME is as in list_connections. The client gets 320 CONNECTION_FORCED with REASON, of a channel
    406 PRECONDITION_FAILED. What is unacknowledged there goes back to its queues.
    """
    if not _close(data, reason, channel, name=name):
        raise FailedError(EX_NOINPUT, f"no connection '{name}': see penstock list_connections")


@click.command("close_all_connections")
@click.argument("reason", default=CLOSED)
@click.option("-p", "--vhost", metavar="NAME", callback=named, help="Only those of this vhost.")
@click.option("--user", callback=named, help="Only those of this user.")
@click.option("--older-than", metavar="TIME", help="Only those open for longer, such as 1h.")
@DATA
def close_all_connections(
    reason: str, vhost: str | None, user: str | None, older_than: str | None, data: str
) -> None:
    """Close connections: of a user, of a vhost, or all.

    Each client gets 320 CONNECTION_FORCED with REASON.
    """
    if older_than is None:
        closed = _close(data, reason, vhost=vhost, user=user)
    else:
        closed = _close_old(data, reason, older_than, vhost=vhost, user=user)
    for kind, name, code in (("vhost", vhost, EX_NOINPUT), ("user", user, EX_NOUSER)):
        if name is None or closed:
            continue
        listing = f"list_{kind}s"
        if all(row["name"] != name for row in ask(data, listing)):
            raise FailedError(code, f"no {kind} '{name}': see penstock {listing}")
    output.told(f"{many(closed, 'connection')} closed")


def _close_old(data: str, reason: str, age: str, **wanted: str | None) -> int:
    """Close connections with these columns that have been open for longer; return how many. Raises
    OptionError."""
    age_ms = ms_in(age)
    if age_ms < 0:
        raise OptionError("--older-than", age, "a time such as 30s or 1h")
    given = {name: value for name, value in wanted.items() if value is not None}
    closed = 0
    with asked(data) as client:
        latest_ms = client.call("status")["now_ms"] - age_ms
        for row in client.call("list_connections"):
            if row["connected_at"] < latest_ms and all(row[name] == given[name] for name in given):
                with suppress(CommandRefusedError):  # it has ended meanwhile
                    args = {"reason": reason, "name": row["name"]}
                    closed += int(client.call("close_connections", row["vhost"], **args)["closed"])
    return closed


def _close(data: str, reason: str, channel: int | None = None, **wanted: str | None) -> int:
    """Close connections with these columns in list_connections, or this channel of them; return how
    many."""
    given = {name: value for name, value in wanted.items() if value is not None}
    with asked(data) as client:
        rows = client.call("list_connections")
        vhosts = {row["vhost"] for row in rows if all(row[name] == given[name] for name in given)}
        given.pop("vhost", None)
        more = {} if channel is None else {"channel": channel}
        closed = 0
        for vhost in sorted(vhosts):
            found = client.call("close_connections", vhost, reason=reason, **given, **more)
            closed += int(found["closed"])
    return closed


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
        f"{into}: {many(found['linked'], 'file')} linked, {found['copied']:,} copied "
        f"({many(found['copied_bytes'], 'byte')})"
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
    "--timeout", "timeout_s", type=NumberRange(min=0), default=60.0, show_default=True,
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
                text = str(error).removeprefix("INTERNAL_ERROR - ")
                why = "; see: penstock status" if text.startswith("not ready") else f": {text}"
                raise UnavailableError(f"not ready after {timeout_s:g} s{why}") from None
        else:
            return
        ThreadWaiter().sleep(PAUSE_S)


@click.command("stop")
@click.option(
    "--timeout", "timeout_s", type=NumberRange(min=0), default=60.0, show_default=True,
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
    with closing(OsFileSystem(0)) as fs:
        while True:
            try:
                fs.lock(f"{data.rstrip('/')}/LOCK").release()
            except LockedError:
                if clock.monotonic() >= deadline:
                    raise
            else:
                return
            ThreadWaiter().sleep(PAUSE_S)


STDIN = click.option(
    "--stdin", "from_stdin", is_flag=True,
    help="Read the password from a line of stdin, as without PASSWORD if that is no terminal.",
)  # fmt: skip


def _password(given: str | None, from_stdin: bool, *, is_new: bool = True) -> str:
    if from_stdin and given is not None:
        raise click.UsageError("a password as argument and --stdin do not go together")
    if given is None and (from_stdin or not sys.stdin.isatty()):
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError:
            raise click.UsageError("stdin is not a text, UTF-8, expected the password") from None
        if not line:
            raise click.UsageError("stdin is empty, expected the password")
        given = line.rstrip("\r\n")
    elif given is None:
        asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=is_new, err=True)
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


@click.command("init")
@click.option("--user", "name", default="admin", show_default=True, callback=named)
@click.option(
    "--password-file",
    "password_file",
    type=click.Path(dir_okay=False),
    help="The password is its first line.",
)
@STDIN
@DATA
def init(name: str, password_file: str | None, from_stdin: bool, data: str) -> None:
    """Make a first administrator and delete guest.

    The user has all permissions on all vhosts. Without a password one is made and printed, this
    once. A second time nothing changes, but for a password that is given. The broker may run or
    not; a data directory that is missing is made.
    """
    given = None
    if password_file is not None:
        if from_stdin:
            raise click.UsageError("--password-file and --stdin do not go together")
        given = _first_line(password_file)
    elif from_stdin:
        given = _password(None, from_stdin)
    made = base64.urlsafe_b64encode(random.SystemRandom().randbytes(PASSWORD_BYTES)).decode()
    password = given or made
    args: dict[str, Any] = {"name": name, "password": password, "force": given is not None}
    try:
        done = ask(data, "init", **args)
    except UnavailableError:
        done = _init_alone(data, **args)
    if done["password_set"] and given is None:
        click.echo(f"user {name!r} with the password {password}")
    elif done["password_set"]:
        click.echo(f"user {name!r} with the given password")
    else:
        click.echo(f"user {name!r} is there already, with the password that it has")
    if done["guest_deleted"]:
        click.echo("user 'guest' is deleted")


def _first_line(path: str) -> str:
    lines = text_of(path).splitlines()
    if not lines or not lines[0]:
        raise click.UsageError(f"{path}: the first line is empty, expected the password")
    return lines[0]


def _init_alone(data: str, name: str, password: str, force: bool) -> dict[str, bool]:
    """Do it without a broker."""
    from penstock.access.users import Users
    from penstock.server.vhost_directories import USERS_FILE
    from penstock.storage.files.data_directory import DataDirectory
    from penstock.storage.files.user_store import UserStore

    with (
        closing(OsFileSystem(0)) as fs,
        closing(DataDirectory(fs, str(Path(data).absolute()))) as directory,
        closing(UserStore(f"{directory.path}/{USERS_FILE}")) as store,
    ):
        users = Users(store, rng=random.SystemRandom())
        is_set, had_guest = users.init(name, password.encode(), is_forced=force)
    return {"password_set": is_set, "guest_deleted": had_guest}


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


@click.command("authenticate_user")
@click.argument("name", callback=named)
@click.argument("password", required=False)
@STDIN
@DATA
def authenticate_user(name: str, password: str | None, from_stdin: bool, data: str) -> None:
    """Check a user's password.

    As at a login from this machine. Exit code 77: it is refused.
    """
    given = _password(password, from_stdin, is_new=False)
    ask(data, "authenticate_user", name=name, password=given)
    output.told(f"user {name!r} is authenticated")


# ---- definitions ---------------------------------------------------------------------------------


# As rabbitmqadmin has it.
FILE: Final = click.option("--file", "path", hidden=True)


@click.command("export_definitions")
@click.argument("file", default="-")
@FILE
@ONE_VHOST
@DATA
def export_definitions(file: str, path: str | None, vhost: str | None, data: str) -> None:
    """Export users, permissions, policies, queues, exchanges and bindings as RabbitMQ's JSON.

    Of one vhost, if it is named: then without users and permissions.
    """
    found = ask(data, "export_definitions", vhost)
    text = json.dumps(to_json(found, is_exact=True), indent=1)
    if path is None and file == "-":
        click.echo(text)
        return
    place = Path(path or file)
    place.touch(mode=0o600)
    place.write_text(text + "\n", encoding="utf-8")


@click.command("import_definitions")
@click.argument("file", default="-")
@FILE
@click.option("--leave-out", is_flag=True, help="Leave out what Penstock has not, and list it.")
@click.option("--dry-run", is_flag=True, help="Check and count, and change nothing.")
@ONE_VHOST
@DATA
def import_definitions(
    file: str, path: str | None, leave_out: bool, dry_run: bool, vhost: str | None, data: str
) -> None:
    """Import RabbitMQ's or Penstock's definitions: all, or nothing.

    What is there and equal is skipped, and nothing is deleted. A queue or exchange that is there
    with other properties is left as it is, and listed. If anything is wrong, nothing is imported,
    all that is wrong is listed, and the exit code is 65.
    """
    import_text(data, text_of(path or file), vhost, leave_out=leave_out, dry_run=dry_run)


def import_text(
    data: str, text: str, vhost: str | None, *, leave_out: bool, dry_run: bool = False
) -> None:
    """Import definitions and print what was done. dry_run: only print what would be. Ends the
    command with 65 if they are wrong."""
    flags = {"leave_out": leave_out, "dry_run": dry_run}
    try:
        found = ask(data, "import_definitions", vhost, definitions=text, **flags)
    except CommandRefusedError as error:
        if error.code != PRECONDITION_FAILED:
            raise
        lines = str(error).removeprefix("PRECONDITION_FAILED - ").split("\n")
        for line in lines:
            output.say(f"penstock: {line}", err=True)
        raise click.exceptions.Exit(EX_DATAERR) from None
    for name, what in (
        ("differs", "left as it is"), ("left_out", "left out"), ("not_run", "warning"),
    ):  # fmt: skip
        for line in found.pop(name):
            output.say(f"{what}: {line}")
    done = "would be imported" if dry_run else "imported"
    click.echo(f"{done}: " + ", ".join(f"{count:,} {name}" for name, count in found.items()))


# ---- why -----------------------------------------------------------------------------------------


CONNECTION: Final = " -> "  # is in each name of a connection
DOWN, STOPPED = "down", "stopped"  # states of a vhost

Finding = dict[str, Any]


@click.command("why")
@click.argument("name", required=False, callback=named)
@FORMAT
@VHOST
@DATA
def why(name: str | None, form: str, vhost: str, data: str) -> None:
    """Say why publishers wait, a queue does not drain, or a connection stands.

    NAME is a queue, or a connection as list_connections shows it; without NAME the whole vhost. The
    first cause comes first, each with what ends it.
    """
    with asked(data) as client:
        status = client.call("status")
        found, serves = _of_broker(status, vhost)
        if name is None:
            found += client.call("why", vhost) if serves else []
            found += _of_certificates(status)
        elif serves:
            kind = "connection" if CONNECTION in name else "queue"
            found = client.call("why", vhost, **{kind: name})
    if form == "json":
        output.document(found)
    elif not found:
        output.say("nothing is wrong that the broker can see")
    else:
        for one in found:
            output.sentence(line(one, SystemClock().wall_ms()))


def _of_broker(status: dict[str, Any], vhost: str) -> tuple[list[Finding], bool]:
    """Return what is wrong with the broker and whether the vhost serves, and whether it does. Why
    its publishers wait, a vhost says itself, and better."""
    row = next((one for one in status["vhosts"] if one["name"] == vhost), None)
    is_blocked = row is not None and bool(row["blocked_reason"])
    found: list[Finding] = []
    parts = (status[part] for part in ("kinds", "about", "problems", "advice"))
    for kind, about, text, do in zip(*parts, strict=True):
        if about in (None, vhost) and not (kind == ALARM and is_blocked):
            place = "broker" if about is None else f"vhost '{about}'"
            found.append(_finding(place, text.removeprefix(f"{place} "), do))
    if row is not None and row["state"] == STOPPED:
        found.append(_finding(f"vhost '{vhost}'", row["why"], f"penstock start_vhost {vhost}"))
    return found, row is None or row["state"] not in (DOWN, STOPPED)


def _of_certificates(status: dict[str, Any]) -> list[Finding]:
    warnings = (status["tls"] or {}).get("warnings", ())
    return [_finding("broker", text, CERTIFICATE_ADVICE) for text in warnings]


def _finding(about: str, text: str, do: str) -> Finding:
    return {"about": about, "text": text, "do": do, "since": None}


def line(found: dict[str, Any], now_ms: int) -> str:
    """Return a finding as a line."""
    text = f"{found['about']}: {found['text']}"
    if found["since"]:
        since_s = datetime.fromisoformat(found["since"]).timestamp()
        text += f", for {span(max(now_ms / 1000 - since_s, 0))}"
    return f"{text} - {found['do']}" if found["do"] else text
