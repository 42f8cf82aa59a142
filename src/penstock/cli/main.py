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
   130  interrupted (Ctrl-C)                   77  no permission

Not here.  What the commands do: the other modules of this package.
"""

import difflib
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import click

import penstock
from penstock.errors import (
    CorruptionError,
    DiskFullError,
    ForkedError,
    LockedError,
    NetworkFileSystemError,
    NotAStoreError,
    OptionError,
    PenstockError,
    QueueEmptyError,
    QueueFullError,
    SettledError,
    StoppedError,
    SyncFailedError,
    TransactionTooLargeError,
    UnknownQueueError,
    VersionError,
)

EX_OK: Final = 0
EX_USAGE: Final = 64
EX_DATAERR: Final = 65
EX_NOINPUT: Final = 66
EX_SOFTWARE: Final = 70
EX_CANTCREAT: Final = 73
EX_IOERR: Final = 74
EX_TEMPFAIL: Final = 75
EX_NOPERM: Final = 77
EX_INTERRUPTED: Final = 130

# An error that is not named here has the code of its nearest base class.
EXIT_CODES: Final[Mapping[type[BaseException], int]] = {
    OptionError: EX_USAGE,
    TransactionTooLargeError: EX_USAGE,
    CorruptionError: EX_DATAERR,
    VersionError: EX_DATAERR,
    NotAStoreError: EX_NOINPUT,
    UnknownQueueError: EX_NOINPUT,
    NetworkFileSystemError: EX_CANTCREAT,
    DiskFullError: EX_IOERR,
    SyncFailedError: EX_IOERR,
    StoppedError: EX_IOERR,
    LockedError: EX_TEMPFAIL,
    QueueEmptyError: EX_TEMPFAIL,
    QueueFullError: EX_TEMPFAIL,
    SettledError: EX_SOFTWARE,
    ForkedError: EX_SOFTWARE,
    PenstockError: EX_SOFTWARE,
    FileNotFoundError: EX_NOINPUT,
    NotADirectoryError: EX_NOINPUT,
    IsADirectoryError: EX_NOINPUT,
    PermissionError: EX_NOPERM,
    OSError: EX_IOERR,
}

# Command group -> where its click command is. Nothing of it is imported before it is used.
GROUPS: Final[Mapping[str, str]] = {
    "store": "penstock.cli.store:store",
}

# What `penstock --help` says of each group, so that it need not be imported for that.
GROUP_HELP: Final[Mapping[str, str]] = {
    "store": "Verify, dump, salvage and measure a store that is not in use.",
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
        """As click does, with the nearest name when there is none of that name."""
        name = args[0]
        if not name.startswith("-") and name not in GROUPS and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, GROUPS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, without importing any of the groups."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(GROUP_HELP.items()))


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
    """The exit code of an error, by its class or the nearest base class in EXIT_CODES."""
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind]
    return EX_SOFTWARE


def one_line(error: BaseException) -> str:
    """What to tell the user: one line, whatever the error's text holds."""
    if isinstance(error, OSError) and error.strerror:
        path = f"{error.filename}: " if error.filename is not None else ""
        return f"penstock: {path}{error.strerror}"
    return "penstock: " + (" ".join(str(error).split()) or type(error).__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `arguments`: those of the process when None.

    An error that is not Penstock's, click's or the operating system's is a mistake in the program:
    its traceback is what a report of it needs.
    """
    try:
        result = cli.main(args=arguments, prog_name="penstock", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return EX_USAGE
    except click.ClickException as error:
        error.show()
        return EX_NOINPUT if isinstance(error, click.FileError) else error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("penstock: interrupted", err=True)
        return EX_INTERRUPTED
    except (PenstockError, OSError) as error:
        click.echo(one_line(error), err=True)
        return exit_code(error)
    except Exception:  # noqa: BLE001 - the last resort; sysexits has a code for it
        click.echo(traceback.format_exc(), err=True)
        return EX_SOFTWARE
    return result if isinstance(result, int) else EX_OK
