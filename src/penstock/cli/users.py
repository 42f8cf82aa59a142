"""Users, passwords, permissions and limits: the commands that say who may do what.

A password may be an argument, as for rabbitmqctl, but then everybody who can list the machine's
processes can read it. Without it, the command asks for it twice on the terminal, without showing
it; with --stdin it is the first line of stdin.

Permissions are regular expressions, found anywhere in a name: configure (declare, delete), write
(publish, bind to) and read (consume, bind from). "" matches nothing, ".*" everything.

Limits are numbers of a user or of a vhost, with rabbitmqctl's names. penstock.access keeps all of
this.
"""

import json
import sys
from typing import Final

import click

from penstock.cli.ask import DATA, VHOST, ask, named

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
