"""The command `penstock`: the table of its commands, and how errors become exit codes.

A command's module is imported when the command is used, so that frequent starts (completion,
`--version`, a health check in a loop) import only click and the table of operations. Commands
import `rich` only when they draw.

An error is one line on stderr that begins with `penstock:`, and an exit code after sysexits.h:

     0  done                                   73  creating the store there would not be safe
    64  wrong use: unknown command or option   74  the disk failed, or is full
    65  the data is damaged or too new         75  try again later: another process has it
    66  no such file, queue or store           77  no permission
    67  no such user                           78  the configuration is wrong: file or environment
    69  no broker there, or the port is taken 130  interrupted (Ctrl-C)
    70  a bug in Penstock, with its traceback 141  the reader of stdout has exited (no line then)

Commands and options that people know from rabbitmqctl, rabbitmq-diagnostics and rabbitmqadmin are
understood: ALIASES and GENERAL have those that are not ours, rabbitmqadmin.py arguments key=value.
"""

import difflib
import os  # noqa: TID251 - NO_COLOR, and stdout when its reader has exited
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from penstock import escaping
from penstock.errors import (
    AMQPError,
    BatchConflictError,
    BoxClosedError,
    ConnectionLostError,
    CorruptionError,
    DescriptorsError,
    DiskFullError,
    ForkedError,
    LockedError,
    MissingCapabilityError,
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
    TransactionError,
    TransactionTooLargeError,
    UnknownLeaseError,
    UnknownQueueError,
    UnreachableError,
    VersionError,
)
from penstock.native import VERSION, build_kind
from penstock.operation_table import OPERATIONS

EX_OK: Final = 0
EX_USAGE: Final = 64
EX_DATAERR: Final = 65
EX_NOINPUT: Final = 66
EX_NOUSER: Final = 67
EX_UNAVAILABLE: Final = 69
EX_SOFTWARE: Final = 70
EX_CANTCREAT: Final = 73
EX_IOERR: Final = 74
EX_TEMPFAIL: Final = 75
EX_NOPERM: Final = 77
EX_CONFIG: Final = 78
EX_INTERRUPTED: Final = 130
EX_PIPE: Final = 141


class UnavailableError(PenstockError):
    """No broker serves the directory, the broker went away, or the address is taken."""


class FailedError(PenstockError):
    """A command failed. exit_code: the process's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.exit_code = code


class CommandRefusedError(PenstockError):
    """The broker refused a command. code: AMQP's reply code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


# Error -> exit code. An error that is not listed has the code of its nearest base class.
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
    DescriptorsError: EX_IOERR,
    DiskFullError: EX_IOERR,
    SyncFailedError: EX_IOERR,
    StoppedError: EX_IOERR,
    BoxClosedError: EX_IOERR,
    LockedError: EX_TEMPFAIL,
    QueueEmptyError: EX_TEMPFAIL,
    QueueFullError: EX_TEMPFAIL,
    QueueLeasedError: EX_TEMPFAIL,
    ReaderTakenError: EX_TEMPFAIL,
    SettledError: EX_SOFTWARE,
    ForkedError: EX_SOFTWARE,
    TransactionError: EX_SOFTWARE,
    UnavailableError: EX_UNAVAILABLE,
    UnreachableError: EX_UNAVAILABLE,
    ConnectionLostError: EX_UNAVAILABLE,
    MissingCapabilityError: EX_UNAVAILABLE,
    MissingPackageError: EX_UNAVAILABLE,
    PenstockError: EX_SOFTWARE,
    FileNotFoundError: EX_NOINPUT,
    NotADirectoryError: EX_NOINPUT,
    IsADirectoryError: EX_NOINPUT,
    PermissionError: EX_NOPERM,
    ConnectionError: EX_UNAVAILABLE,
    OSError: EX_IOERR,
}

# Reply code of a broker -> exit code. Any other reply code is a bug: 70.
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


def text_of(path: str, code: int = EX_DATAERR) -> str:
    """Return the text of a file, "-" for stdin. Raises OSError, and FailedError with this exit code
    for what is no text."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        name = "stdin" if path == "-" else path
        text = f"{name}: not a text file, UTF-8: {error.reason} at byte {error.start}"
        raise FailedError(code, text) from None


NO_USER: Final = "NOT_FOUND - no user '"


class Verb(NamedTuple):
    """A command: the module of this package that defines it by its name, and its line of help.
    "rows": it is made from its row of the table of operations."""

    module: str
    help: str


# Commands that call operations in a way of their own, by the module that defines them. Their lines
# of help are those of the operations.
OWN: Final[Mapping[str, tuple[str, ...]]] = {
    "node": (
        "add_user", "authenticate_user", "await_startup", "backup", "change_password",
        "checkpoint", "export_definitions", "import_definitions", "init", "status", "stop",
    ),
    "queues": ("declare_exchange", "declare_queue", "get", "peek", "publish", "release_query"),
}  # fmt: skip

# Every command of `penstock`. A command's own help begins with the same line.
VERBS: Final[Mapping[str, Verb]] = {
    **{row.name: Verb("rows", row.help) for row in OPERATIONS.values() if row.is_command},
    **{
        name: Verb(module, OPERATIONS[name].help) for module, names in OWN.items() for name in names
    },
    "config_explain": Verb("serve", "Explain an option of the broker; without KEY, list all."),
    "config_check": Verb("serve", "Check the configuration of a broker."),
    "config_set": Verb("serve", OPERATIONS["set_config"].help),
    "config_show": Verb("serve", "Show the options of a broker, and where each value is from."),
    "config_migrate": Verb("rabbitmq_conf", "Make a penstock.toml of a rabbitmq.conf."),
    "migrate": Verb("rabbitmq", "Move definitions and messages here from another broker."),
    "serve": Verb("serve", "Run the broker."),
    "why": Verb("node", "Say why publishers wait, a queue does not drain, or a connection stands."),
    "perf": Verb("perf", "Publish and consume, and print rates and latencies."),
    "doctor": Verb(
        "doctor",
        "Check whether this machine and the configuration suit a broker, and say what to change.",
    ),
    "health_check": Verb("node", "Check that the broker serves; exit code 69 if not."),
    "close_all_connections": Verb("node", "Close connections: of a user, of a vhost, or all."),
    "close_connection": Verb("node", "Close a connection, or one of its channels."),
    "report": Verb(
        "node", "Print what somebody needs who is to help: state, configuration, lists."
    ),
    "rotate_logs": Verb("node", "Say that there are no log files to rotate."),
    "completion": Verb(
        "completion", "Print a script with which the shell completes commands and names."
    ),
    "consume": Verb("queues", "Print messages as they arrive, and acknowledge them."),
    "declare_binding": Verb("queues", "Bind a queue or an exchange to an exchange."),
    "move": Verb("queues", "Move messages of a queue to the end of another one."),
    "delete_messages": Verb("queues", "Delete the next messages of a queue, or those that match."),
    "replay": Verb("queues", "Move dead letters back, each to the queue in which it died last."),
    "tail": Verb("queues", "Print the records of a stream."),
    "pipeline": Verb("pipelines", "Run, check, list and show pipelines from streams to tables."),
    "spark": Verb("pipelines", "Prepare Spark clusters: the package as a zip for --py-files."),
    "top": Verb("top", "Show the broker and its largest queues, again each second."),
    "tls_self_signed": Verb(
        "tls", "Make an authority, and certificates of a broker and a client, to try TLS."
    ),
    "store": Verb("store", "Check, dump, salvage, measure and copy a store that is not in use."),
}


# The commands by what they are about, as `--help` lists them.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "The broker": (
        "serve", "status", "top", "why", "health_check", "doctor", "await_startup", "stop", "init",
        "completion",
        "list_alerts", "log_tail", "report", "rotate_logs",
        "list_global_parameters", "set_global_parameter", "clear_global_parameter",
    ),
    "Configuration": (
        "config_show", "config_check", "config_explain", "config_set", "config_migrate",
        "tls_self_signed",
    ),
    "Vhosts": (
        "list_vhosts", "add_vhost", "update_vhost_metadata", "delete_vhost", "start_vhost",
        "stop_vhost", "restart_vhost", "list_vhost_limits", "set_vhost_limits",
        "clear_vhost_limits", "trace_on", "trace_off",
    ),
    "Users and permissions": (
        "list_users", "add_user", "change_password", "authenticate_user", "set_user_tags",
        "delete_user", "list_permissions", "list_user_permissions", "set_permissions",
        "clear_permissions", "list_topic_permissions", "list_user_topic_permissions",
        "set_topic_permissions", "clear_topic_permissions",
        "list_user_limits", "set_user_limits", "clear_user_limits",
    ),
    "Connections": (
        "list_connections", "list_channels", "list_consumers", "close_connection",
        "close_all_connections",
    ),
    "Queues, exchanges and bindings": (
        "list_queues", "declare_queue", "purge_queue", "delete_queue", "pause_queue",
        "resume_queue", "list_exchanges", "declare_exchange", "delete_exchange", "list_bindings",
        "declare_binding", "bind_queue", "unbind_queue",
    ),
    "Messages": (
        "publish", "get", "peek", "consume", "move", "replay", "delete_messages", "tail",
        "perf",
    ),
    "Policies and parameters": (
        "list_policies", "set_policy", "clear_policy", "list_operator_policies",
        "set_operator_policy", "clear_operator_policy", "list_parameters", "set_parameter",
        "clear_parameter",
    ),
    "Definitions and moving": ("export_definitions", "import_definitions", "migrate"),
    "Spark": (
        "list_leases", "release_lease", "list_batches", "release_query", "pipeline", "spark",
    ),
    "Storage": ("checkpoint", "backup", "store"),
}  # fmt: skip

# What others call a command, and the words that it is here. An empty command is `--help`.
ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "check_alarms": ("health_check", "alarms"),
    "check_local_alarms": ("health_check", "alarms"),
    "check_port_connectivity": ("health_check", "ports"),
    "check_port_listener": ("health_check", "port"),
    "check_running": ("health_check", "running"),
    "check_virtual_hosts": ("health_check", "vhosts"),
    "close_connections": ("close_all_connections",),
    "close_all_user_connections": ("close_all_connections", "--user"),
    "declare_permission": ("set_permissions",),
    "declare_policy": ("set_policy",),
    "declare_user": ("add_user",),
    "declare_vhost": ("add_vhost",),
    "definitions_export": ("export_definitions",),
    "definitions_import": ("import_definitions",),
    "delete_permission": ("clear_permissions",),
    "delete_policy": ("clear_policy",),
    "environment": ("config_show", "--effective"),
    "export": ("export_definitions",),
    "health_check_local_alarms": ("health_check", "alarms"),
    "health_check_port_listener": ("health_check", "port"),
    "health_check_virtual_hosts": ("health_check", "vhosts"),
    "import": ("import_definitions",),
    "is_running": ("health_check", "running"),
    "ping": ("health_check", "ping"),
    "set_disk_free_limit": ("config_set", "storage.disk_free_limit"),
    "set_log_level": ("config_set", "log_level"),
    "set_memory": ("config_set", "memory"),
    "set_vm_memory_high_watermark": ("config_set", "memory"),
    "set_vm_memory_high_watermark_absolute": ("config_set", "memory"),
}

# Options of commands that may stand before the command, and whether they have a value.
GENERAL: Final[Mapping[str, bool]] = {
    "-q": False, "--quiet": False, "-s": False, "--silent": False, "-p": True, "--vhost": True,
    "--format": True, "--formatter": True, "--data": True, "--url": True,
    "--no-table-headers": False,
}  # fmt: skip


class LazyGroup(click.Group):
    """The group of all commands in VERBS."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table, sorted."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of that name, or None if there is none."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        module = import_module(f"penstock.cli.{verb.module}")
        command = module.command(cmd_name) if verb.module == "rows" else getattr(module, cmd_name)
        assert isinstance(command, click.Command), f"{cmd_name} in {verb.module} is not a command"
        if ctx.resilient_parsing:
            from penstock.cli.completion import with_names

            return with_names(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing the commands."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=VERBS[name].help)
            for name in sorted(VERBS)
            if name.startswith(incomplete.replace("-", "_"))
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. Options of GENERAL may stand before the command; `help list queues`
        is `list queues --help`."""
        words = [*args]
        moved: list[str] = []
        while words and (option := words[0].partition("=")[0]) in GENERAL:
            count = 2 if GENERAL[option] and "=" not in words[0] else 1
            moved += words[:count]
            del words[:count]
        if words and words[0] == "help":
            words = [*words[1:], "--help"]
        if moved and words and not words[0].startswith("-"):
            name, *rest = _joined(words)
            words = [name, *moved, *rest]
        return super().parse_args(ctx, words)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as click does, with suggestions for an unknown name. `list queues` and
        `list-queues` mean `list_queues`."""
        args = _joined(args)
        name = args[0]
        if not name.startswith("-") and name not in VERBS and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {name!r}.{_hint(args)}", ctx)
        if any("=" in word for word in args[1:]):
            from penstock.cli.rabbitmqadmin import without_keys

            args = [name, *without_keys(name, args[1:])]
        _, command, rest = found = super().resolve_command(ctx, args)
        known = [] if command is None else [name for one in command.params for name in one.opts]
        if "--url" in rest and "--url" not in known and not isinstance(command, click.Group):
            text = f"{name} asks no broker over HTTP: run it on the broker's machine, without --url"
            raise click.UsageError(text, ctx)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list for `--help` without importing the commands."""
        grouped = {name for names in GROUPS.values() for name in names}
        others = tuple(sorted(VERBS.keys() - grouped))
        for group, names in (*GROUPS.items(), ("Others", others)):
            rows = [(name, VERBS[name].help) for name in names if name in VERBS]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


def _joined(args: list[str]) -> list[str]:
    """Return the arguments with a command of two words, or with hyphens, as one name, and one of
    ALIASES as ours."""
    for count in (2, 1):
        name = "_".join(args[:count]).replace("-", "_")
        if name in VERBS:
            return [name, *args[count:]]
        if name in ALIASES:
            return [*ALIASES[name], *args[count:]]
    return args


def _hint(args: list[str]) -> str:
    """Suggest commands: those that begin with the word, or the nearest one."""
    family = [name.replace("_", " ") for name in sorted(VERBS) if name.startswith(f"{args[0]}_")]
    if len(args) == 1 and family:
        return f" There are: {', '.join(family)}."
    for given in ("_".join(args[:2]), args[0]):
        near = difflib.get_close_matches(given, VERBS, n=1)
        if near:
            return f" Did you mean {near[0]!r}?"
    return ""


def version_text() -> str:
    """Return the version, such as "0.1.0 (compiled)"."""
    return f"{VERSION} ({build_kind()})"


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
@click.option(
    "--url", metavar="URL", expose_value=False,
    help="Ask a broker elsewhere over HTTP: http://user:password@host:15672, or https.",
)  # fmt: skip
@click.pass_context
def cli(ctx: click.Context) -> None:
    """A durable message broker in Python."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def exit_code(error: BaseException) -> int:
    """Return the exit code of an error, by its class or by the broker's reply code."""
    if isinstance(error, AMQPError | CommandRefusedError):
        if NO_USER in str(error):
            return EX_NOUSER
        return REPLY_EXIT_CODES.get(error.code, EX_SOFTWARE)
    if isinstance(error, FailedError):
        return error.exit_code
    for kind in type(error).__mro__:
        if kind in EXIT_CODES:
            return EXIT_CODES[kind]
    return EX_SOFTWARE


def _missing_directory(error: OSError) -> str:
    """Return which directory is missing if a file cannot be made or found without it, else ""."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return ""
    directory = Path(error.filename).parent
    return "" if directory.exists() else f": there is no directory {directory}"


def one_line(error: BaseException) -> str:
    """Return the error as one line for the user."""
    if isinstance(error, OSError) and error.strerror:
        path = f"{error.filename}: " if error.filename is not None else ""
        return escaping.one_line(f"penstock: {path}{error.strerror}{_missing_directory(error)}")
    texts = [str(error) or type(error).__name__, *getattr(error, "__notes__", ())]
    if isinstance(error, UnreachableError) and not error.is_of_tls:
        texts[0] += ": is the broker running? --url sets the broker"
    *first, last = texts
    text = "; ".join([*(one.rstrip(".") for one in first), last])
    return "penstock: " + escaping.one_line(" ".join(text.split()))


def main(arguments: Sequence[str] | None = None, obj: object = None) -> int:
    """Run one command and return its exit code. arguments: by default the process's. obj: the click
    context's object, see ask.py.

    An error that is not Penstock's, click's or the operating system's is a bug: its traceback is
    printed.
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
    except SystemExit:  # click's, when the reader of stdout has exited, as `head` does
        return EX_PIPE
    except BrokenPipeError:  # the same, at the end
        # Discard the buffer; otherwise Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EX_PIPE
    except (PenstockError, OSError) as error:
        click.echo(one_line(error), err=True)
        return exit_code(error)
    except Exception:  # noqa: BLE001 - the last resort; sysexits has a code for it
        click.echo(traceback.format_exc(), err=True)
        return EX_SOFTWARE
    return result if isinstance(result, int) else EX_OK
