"""The command `penstock`: the table of command groups, and how errors become exit codes.

Why so.  A group's module is imported when one of its commands is asked for, and not before: what
starts often (completion, `--version`, a health check in a loop) pays for click alone. `rich` is
imported by the commands that draw something, and only when they write to a terminal.

What the user did wrong, or what the disk holds, is told in one line on stderr that begins with
`penstock:`, and in the exit code, after sysexits.h:

     0  done                                   70  a mistake of ours, with its traceback
    64  wrong use: unknown command or option   73  it would not be safe to create the store there
    65  the data is damaged or too new         74  the disk failed, or is full
    66  no such file, queue or store           75  try again later: another process has it
    69  no broker there, or the port is taken  77  no permission
   130  interrupted (Ctrl-C)

Not here.  What the commands do: the other modules of this package.
"""

import difflib
import os  # noqa: TID251 - the descriptor of stdout, when its reader has gone
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import click

import penstock
from penstock import escaping
from penstock.errors import (
    AMQPError,
    BatchConflictError,
    CorruptionError,
    DiskFullError,
    ForkedError,
    LockedError,
    MissingPackageError,
    NetworkFileSystemError,
    NotAStoreError,
    NotLeasableError,
    OptionError,
    PathNotFreeError,
    PenstockError,
    QueueEmptyError,
    QueueFullError,
    QueueLeasedError,
    ReaderTakenError,
    SettledError,
    StoppedError,
    StreamGapError,
    SyncFailedError,
    TransactionTooLargeError,
    UnknownLeaseError,
    UnknownQueueError,
    VersionError,
)

EX_OK: Final = 0
EX_USAGE: Final = 64
EX_DATAERR: Final = 65
EX_NOINPUT: Final = 66
EX_UNAVAILABLE: Final = 69
EX_SOFTWARE: Final = 70
EX_CANTCREAT: Final = 73
EX_IOERR: Final = 74
EX_TEMPFAIL: Final = 75
EX_NOPERM: Final = 77
EX_INTERRUPTED: Final = 130


class UnavailableError(PenstockError):
    """No broker serves the directory, it went away, or the address to serve at is taken."""


class FailedError(PenstockError):
    """A command did not do what it was asked to. code: the exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = code


class RefusedError(PenstockError):
    """The broker refused a command. code: AMQP's reply code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


# An error that is not named here has the code of its nearest base class.
EXIT_CODES: Final[Mapping[type[BaseException], int]] = {
    OptionError: EX_USAGE,
    TransactionTooLargeError: EX_USAGE,
    BatchConflictError: EX_DATAERR,
    CorruptionError: EX_DATAERR,
    StreamGapError: EX_DATAERR,
    VersionError: EX_DATAERR,
    NotAStoreError: EX_NOINPUT,
    PathNotFreeError: EX_NOINPUT,
    UnknownQueueError: EX_NOINPUT,
    UnknownLeaseError: EX_NOINPUT,
    NotLeasableError: EX_USAGE,
    NetworkFileSystemError: EX_CANTCREAT,
    DiskFullError: EX_IOERR,
    SyncFailedError: EX_IOERR,
    StoppedError: EX_IOERR,
    LockedError: EX_TEMPFAIL,
    QueueEmptyError: EX_TEMPFAIL,
    QueueFullError: EX_TEMPFAIL,
    QueueLeasedError: EX_TEMPFAIL,
    ReaderTakenError: EX_TEMPFAIL,
    SettledError: EX_SOFTWARE,
    ForkedError: EX_SOFTWARE,
    UnavailableError: EX_UNAVAILABLE,
    MissingPackageError: EX_UNAVAILABLE,
    PenstockError: EX_SOFTWARE,
    FileNotFoundError: EX_NOINPUT,
    NotADirectoryError: EX_NOINPUT,
    IsADirectoryError: EX_NOINPUT,
    PermissionError: EX_NOPERM,
    OSError: EX_IOERR,
}

# What a broker refuses, by its reply code; any other is a mistake of somebody's: 70.
REPLY_EXIT_CODES: Final[Mapping[int, int]] = {
    312: EX_NOINPUT,  # NO_ROUTE
    320: EX_UNAVAILABLE,  # CONNECTION_FORCED
    402: EX_NOINPUT,
    403: EX_NOPERM,
    404: EX_NOINPUT,
    405: EX_TEMPFAIL,  # RESOURCE_LOCKED
    406: EX_USAGE,  # PRECONDITION_FAILED
    502: EX_USAGE,
    503: EX_USAGE,
    506: EX_TEMPFAIL,  # RESOURCE_ERROR: full
    530: EX_NOINPUT,  # NOT_ALLOWED: no such vhost
    540: EX_USAGE,
    541: EX_UNAVAILABLE,
}

# Command -> where its click command is. Nothing of it is imported before it is used.
GROUPS: Final[Mapping[str, str]] = {
    "add_user": "penstock.cli.users:add_user",
    "add_vhost": "penstock.cli.node:add_vhost",
    "await_startup": "penstock.cli.node:await_startup",
    "backup": "penstock.cli.node:backup",
    "bind_queue": "penstock.cli.queues:bind_queue",
    "change_password": "penstock.cli.users:change_password",
    "checkpoint": "penstock.cli.node:checkpoint",
    "clear_permissions": "penstock.cli.users:clear_permissions",
    "clear_user_limits": "penstock.cli.users:clear_user_limits",
    "clear_vhost_limits": "penstock.cli.users:clear_vhost_limits",
    "consume": "penstock.cli.messages:consume",
    "declare_exchange": "penstock.cli.queues:declare_exchange",
    "declare_queue": "penstock.cli.queues:declare_queue",
    "delete_exchange": "penstock.cli.queues:delete_exchange",
    "delete_queue": "penstock.cli.queues:delete_queue",
    "delete_user": "penstock.cli.users:delete_user",
    "delete_vhost": "penstock.cli.node:delete_vhost",
    "get": "penstock.cli.messages:get",
    "health_check": "penstock.cli.node:health_check",
    "list_alerts": "penstock.cli.lists:list_alerts",
    "list_batches": "penstock.cli.lists:list_batches",
    "list_bindings": "penstock.cli.lists:list_bindings",
    "list_channels": "penstock.cli.lists:list_channels",
    "list_connections": "penstock.cli.lists:list_connections",
    "list_consumers": "penstock.cli.lists:list_consumers",
    "list_exchanges": "penstock.cli.lists:list_exchanges",
    "list_leases": "penstock.cli.lists:list_leases",
    "list_permissions": "penstock.cli.lists:list_permissions",
    "list_queues": "penstock.cli.lists:list_queues",
    "list_user_limits": "penstock.cli.lists:list_user_limits",
    "list_users": "penstock.cli.lists:list_users",
    "list_vhost_limits": "penstock.cli.lists:list_vhost_limits",
    "list_vhosts": "penstock.cli.lists:list_vhosts",
    "peek": "penstock.cli.messages:peek",
    "pipeline": "penstock.cli.pipelines:pipeline",
    "publish": "penstock.cli.messages:publish",
    "purge_queue": "penstock.cli.queues:purge_queue",
    "release_lease": "penstock.cli.queues:release_lease",
    "release_query": "penstock.cli.queues:release_query",
    "restart_vhost": "penstock.cli.node:restart_vhost",
    "serve": "penstock.cli.serve:serve",
    "set_permissions": "penstock.cli.users:set_permissions",
    "set_user_limits": "penstock.cli.users:set_user_limits",
    "set_user_tags": "penstock.cli.users:set_user_tags",
    "set_vhost_limits": "penstock.cli.users:set_vhost_limits",
    "spark": "penstock.cli.pipelines:spark",
    "start_vhost": "penstock.cli.node:start_vhost",
    "status": "penstock.cli.node:status",
    "stop": "penstock.cli.node:stop",
    "stop_vhost": "penstock.cli.node:stop_vhost",
    "store": "penstock.cli.store:store",
    "tail": "penstock.cli.messages:tail",
    "unbind_queue": "penstock.cli.queues:unbind_queue",
}

# What `penstock --help` says of each, so that it need not be imported for that.
GROUP_HELP: Final[Mapping[str, str]] = {
    "add_user": "Add a user.",
    "add_vhost": "Add a vhost.",
    "await_startup": "Wait until the broker is ready.",
    "backup": "Copy a vhost, in use, into a new data directory.",
    "bind_queue": "Bind a queue to an exchange.",
    "change_password": "Change a user's password.",
    "checkpoint": "Make a checkpoint now.",
    "clear_user_limits": "Give a user the server's default limits again.",
    "clear_vhost_limits": "Give a vhost the server's default limits again.",
    "clear_permissions": "Take a user's permissions on a vhost away.",
    "consume": "Print messages as they come, and acknowledge them.",
    "declare_exchange": "Declare an exchange.",
    "declare_queue": "Declare a queue.",
    "delete_exchange": "Delete an exchange.",
    "delete_queue": "Delete a queue with all that it holds.",
    "delete_user": "Delete a user.",
    "delete_vhost": "Delete a vhost with all that it holds.",
    "get": "Print the next message, and acknowledge it.",
    "health_check": "Whether the broker serves; exit code 69 and the problems if not.",
    "list_alerts": "Alerts of a vhost.",
    "list_batches": "Batches that were written exactly once.",
    "list_bindings": "Bindings of a vhost.",
    "list_channels": "Channels of a vhost's connections.",
    "list_connections": "Connections of all vhosts.",
    "list_consumers": "Consumers of a vhost.",
    "list_exchanges": "Exchanges of a vhost.",
    "list_leases": "What readers have leased of queues.",
    "list_permissions": "Who may do what.",
    "list_queues": "Queues of a vhost.",
    "list_user_limits": "Limits of users.",
    "list_users": "Users and their tags.",
    "list_vhost_limits": "Limits of vhosts.",
    "list_vhosts": "Vhosts and their state.",
    "peek": "Print messages and leave them where they are.",
    "pipeline": "Run, check, list and show pipelines from streams into tables and queues.",
    "publish": "Publish messages, and wait until they are safe.",
    "purge_queue": "Delete all ready messages of a queue.",
    "release_lease": "Give a reader's messages back to their queue.",
    "release_query": "Forget a query that wrote exactly once.",
    "restart_vhost": "Start a vhost that is down, or start one again.",
    "serve": "Run the broker.",
    "set_permissions": "What a user may configure, write and read in a vhost.",
    "set_user_limits": "Limit a user's connections, channels and publish rate.",
    "set_user_tags": "Set a user's tags.",
    "set_vhost_limits": "Limit a vhost's connections, queues, exchanges and bindings.",
    "spark": "What a Spark cluster wants: the package as a zip for --py-files.",
    "start_vhost": "Start a vhost that was stopped, or is down.",
    "status": "What the broker is doing.",
    "stop": "Stop the broker in order.",
    "stop_vhost": "Stop one vhost, until start_vhost.",
    "store": "Verify, dump, salvage and measure a store that is not in use; where what lies.",
    "tail": "Print the records of a stream.",
    "unbind_queue": "Take a binding away.",
}


class LazyGroup(click.Group):
    """A group whose commands stand in a table, name -> "module:attribute"."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names in the table, sorted."""
        return sorted(GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name; None if the table has none."""
        place = GROUPS.get(cmd_name)
        if place is None:
            return None
        module, attribute = place.split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{place} is no click command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with names that are like it when there is none of that name. `list queues`
        and `list-queues` are `list_queues`."""
        args = _joined(args)
        name = args[0]
        if not name.startswith("-") and name not in GROUPS and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{_hint(args)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, without importing any of the groups."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(GROUP_HELP.items()))


def _joined(args: list[str]) -> list[str]:
    """The arguments with a command of two words, or with hyphens, as the one name that it has."""
    first = args[0].replace("-", "_")
    if first in GROUPS:
        return [first, *args[1:]]
    both = f"{first}_{args[1]}".replace("-", "_") if len(args) > 1 else first
    return [both, *args[2:]] if both in GROUPS else args


def _hint(args: list[str]) -> str:
    """What may have been meant: of two words the nearest command, of one those that begin so."""
    family = [name.replace("_", " ") for name in sorted(GROUPS) if name.startswith(f"{args[0]}_")]
    if len(args) == 1 and family:
        return f" There are: {', '.join(family)}."
    for given in ("_".join(args[:2]), args[0]):
        near = difflib.get_close_matches(given, GROUPS, n=1)
        if near:
            return f" Did you mean {near[0]!r}?"
    return ""


def version_text() -> str:
    """Such as "0.1.0 (compiled)"."""
    return f"{penstock.__version__} ({penstock.build_kind()})"


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(f"penstock {version_text()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    no_args_is_help=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and whether it is compiled or pure, and exit.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A durable message broker in Python."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def exit_code(error: BaseException) -> int:
    """The exit code of an error, by its class or the nearest base class in EXIT_CODES; what a
    broker said has one by its reply code."""
    if isinstance(error, AMQPError | RefusedError):
        return REPLY_EXIT_CODES.get(error.code, EX_SOFTWARE)
    if isinstance(error, FailedError):
        return error.exit_code
    if isinstance(error, ConnectionError):  # our own errors are PenstockErrors, too
        return EX_UNAVAILABLE
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind]
    return EX_SOFTWARE


def one_line(error: BaseException) -> str:
    """What to tell the user: one line, whatever the error's text holds."""
    if isinstance(error, OSError) and error.strerror:
        path = f"{error.filename}: " if error.filename is not None else ""
        return escaping.one_line(f"penstock: {path}{error.strerror}")
    texts = [str(error) or type(error).__name__, *getattr(error, "__notes__", ())]
    return "penstock: " + escaping.one_line(" ".join("; ".join(texts).split()))


def main(arguments: Sequence[str] | None = None, obj: object = None) -> int:
    """Run one command and return its exit code. `arguments`: those of the process when None; `obj`:
    the click context's object, see `ask`.

    An error that is not Penstock's, click's or the operating system's is a mistake in the program:
    its traceback is what a report of it needs.
    """
    try:
        result = cli.main(args=arguments, prog_name="penstock", standalone_mode=False, obj=obj)
        sys.stdout.flush()
    except click.UsageError as error:
        error.show()
        return EX_USAGE
    except click.ClickException as error:
        error.show()
        return EX_NOINPUT if isinstance(error, click.FileError) else error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("penstock: interrupted", err=True)
        return EX_INTERRUPTED
    except SystemExit:  # click's, when whoever read what we print has gone, as `head` does
        return EX_IOERR
    except BrokenPipeError:  # the same, at the very end
        # What is left in the buffer goes nowhere, and not into a complaint at the very end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EX_IOERR
    except (PenstockError, OSError) as error:
        click.echo(one_line(error), err=True)
        return exit_code(error)
    except Exception:  # noqa: BLE001 - the last resort; sysexits has a code for it
        click.echo(traceback.format_exc(), err=True)
        return EX_SOFTWARE
    return result if isinstance(result, int) else EX_OK
