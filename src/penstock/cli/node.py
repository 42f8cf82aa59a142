"""The running broker, its vhosts and its data: status, start, stop, checkpoints, backups.

`stop` returns when the broker has released the lock of its data directory, so that a script can
use the directory; `await_startup` returns when the broker serves. Both have a --timeout.

`serve` is in serve.py, the tools for a store that is not in use in store.py.
"""

from pathlib import Path
from typing import Any, Final

import click

from penstock.cli import output
from penstock.cli.ask import DATA, VHOST, Client, ask, asked, named
from penstock.cli.main import EX_UNAVAILABLE, RefusedError, UnavailableError
from penstock.cli.output import FORMAT
from penstock.clock import SystemClock
from penstock.embedded.waiting import ThreadWaiter
from penstock.errors import LockedError
from penstock.storage.filesystem import OsFileSystem

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
        except RefusedError as error:
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
