"""`penstock completion`: the shell completes commands, options, columns and names.

click completes what it knows; here are the names that the broker knows. They are asked for with a
limit of QUICK_S, so that a broker that is busy or away only means that no names are shown.
"""

from collections.abc import Callable
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from penstock.cli.ask import data_of, names_of
from penstock.cli.main import cli
from penstock.operation_table import OPERATIONS

# Arguments and options by their names, and what they name.
KINDS: Final = {
    "queue": "queues", "to": "queues", "exchange": "exchanges", "source": "exchanges",
    "vhost": "vhosts", "user": "users",
}  # fmt: skip
# The argument `name` of commands whose name ends so.
OF_NAME: Final = {"vhost": "vhosts", "metadata": "vhosts", "user": "users", "password": "users"}


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a script with which the shell completes commands and names.

    bash: eval "$(penstock completion bash)" in ~/.bashrc; zsh the same in ~/.zshrc; fish:
    penstock completion fish | source
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    made = found(cli, {}, "penstock", "_PENSTOCK_COMPLETE")
    click.echo(made.source_template % made.source_vars())


def with_names(command: click.Command) -> click.Command:
    """Return the command, whose arguments are completed with names of the broker."""
    name = command.name or ""
    for param in command.params:
        kind = KINDS.get(param.name or "")
        if param.name == "name" and not name.startswith("add_"):
            kind = OF_NAME.get(name.rpartition("_")[2])
        if param.name == "columns" and name in OPERATIONS:
            param.shell_complete = _columns(name)  # type: ignore[method-assign,assignment]
        elif kind is not None and not name.startswith("declare_"):
            param.shell_complete = _names(kind)  # type: ignore[method-assign,assignment]
    return command


def _columns(name: str) -> Callable[[click.Context, str], list[CompletionItem]]:
    columns = OPERATIONS[name].answer

    def complete(_ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(one) for one in columns if one.startswith(incomplete)]

    return complete


def _names(kind: str) -> Callable[[click.Context, str], list[CompletionItem]]:
    def complete(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        data = data_of(ctx, ctx.command.params[0], ctx.params.get("data"))
        with ctx.scope(cleanup=False):
            names = names_of(data, kind, ctx.params.get("vhost") or "/", incomplete)
        return [CompletionItem(one) for one in names]

    return complete
