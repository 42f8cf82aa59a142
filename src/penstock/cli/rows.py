"""Commands that are made from the table of operations: a row with `is_command` is one.

A required argument of the operation, or one with a text as its default, is an argument of the
command; a flag is an option, and so is what the row says is one; a table of AMQP is `-a
NAME=VALUE`; what else may be left out is not for the command line. A list of names is the rest of
the command line, another table is JSON. `-p` names the vhost where the operation is about one.

**Lists.** `penstock list_queues name messages consumers` prints these columns in this order;
without columns a few, with `--format json` or `jsonl` all. An unknown column is an error that
suggests the nearest one. Columns of a broker of another version are printed when they are asked for
and a row has them. What rabbitmqctl's lists take and has no meaning here is accepted.
"""

import difflib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

from penstock.cli import output
from penstock.cli.ask import ARGUMENTS, DATA, VHOST, Client, arguments_of, ask, asked, named
from penstock.cli.main import EX_INTERRUPTED, CommandRefusedError, FailedError
from penstock.cli.output import NO_HEADER, ROWS_FORMAT
from penstock.errors import OptionError
from penstock.members import sort_key
from penstock.operation_table import (
    ANY,
    FIELD_TABLE,
    NODE,
    NODE_VHOSTS,
    OPERATIONS,
    TABLE,
    TEXTS,
    Argument,
    Operation,
)

# Options of rabbitmqctl's lists, and the types of their values.
WITHOUT_MEANING: Final[tuple[tuple[tuple[str, ...], type | None], ...]] = (
    (("--online",), None), (("--offline",), None), (("--local",), None),
    (("-t", "--timeout"), float),
)  # fmt: skip
NO_TABLE_HEADERS: Final = click.option(
    "--no-table-headers", is_flag=True, expose_value=False, callback=output.flagged(NO_HEADER),
    help="Leave out the names of columns.",
)  # fmt: skip
CHOOSING: Final = (
    click.option(
        "--filter", "pattern", metavar="REGEX", help="Only rows with this in the first column."
    ),
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="The first N rows."),
    click.option(
        "--sort", metavar="COLUMN", help="By this column; -COLUMN: the highest first."
    ),
)  # fmt: skip
YES: Final = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
SENTENCES: Final = ("text", "why")  # columns
DESTRUCTIVE: Final = ("delete_queue", "delete_vhost", "purge_queue")
ASKED_MESSAGES: Final = 10_000  # without a terminal, --yes is needed to purge more
WRONG_FILTER: Final = re.compile("argument 'name': given .*, expected (.*)")  # as a vhost says it
ONE_VHOST: Final = click.option(
    "-p", "--vhost", metavar="NAME", callback=named, help="One vhost [all]."
)


def command(name: str) -> click.Command:
    """Return the click command of a row."""
    row = OPERATIONS[name]
    text = f"{row.help}\n\n{row.more}"
    if row.shown:
        first, columns = ", ".join(row.shown), ", ".join(row.answer)
        text = f"{row.help}\n\nColumns: {columns}. By default: {first}."
    function = _with_arguments(row, _list_of(row) if row.shown else _change_of(row))
    if row.of != NODE:
        function = (ONE_VHOST if row.of == NODE_VHOSTS else VHOST)(function)
    made: click.Command = click.command(name, help=text)(DATA(function))
    return made


def _list_of(row: Operation) -> Any:
    """Return the function of a list, with its own options."""

    def run(
        data: str, form: str, columns: tuple[str, ...], vhost: str | None = None, **given: Any
    ) -> None:
        chosen = Chosen(given.pop("sort"), given.pop("limit"), given.pop("pattern"))
        is_chosen_there = any(one.name == "sort" for one in row.arguments)
        if is_chosen_there:
            shown = columns if form in ("json", "jsonl") else columns or row.shown
            given |= chosen.arguments(shown)
        try:
            found = ask(data, row.name, vhost, **_given(given))
        except CommandRefusedError as error:
            expected = WRONG_FILTER.search(str(error)) if chosen.pattern is not None else None
            if expected is None:
                raise
            raise OptionError("--filter", chosen.pattern, expected[1]) from error
        rows_of(row, chosen.of(found, row, is_done=is_chosen_there), columns, form)

    function = click.argument("columns", nargs=-1, metavar="[COLUMN]...")(run)
    for option in CHOOSING:
        function = option(function)
    for names, kind in WITHOUT_MEANING:
        function = click.option(
            *names, is_flag=kind is None, type=kind, expose_value=False, hidden=True
        )(function)
    return ROWS_FORMAT(NO_TABLE_HEADERS(function))


class Chosen(NamedTuple):
    """Which rows of a list are wanted: sorted by a column, with "-" before it the highest first; so
    many; those with a match of the pattern in the first column, in any case. A vhost chooses its
    rows itself, of which it may have many; those of the node are chosen here."""

    sort: str | None
    limit: int | None
    pattern: str | None

    def arguments(self, shown: Sequence[str]) -> dict[str, Any]:
        """Return the arguments of an operation that chooses. shown: the columns that are printed,
        none for all."""
        sort = self.sort or ""
        column = sort.removeprefix("-")
        wanted = {*shown, column} - {""} if shown else ()
        asked = {
            "name": self.pattern, "sort": column or None, "reverse": (sort != column) or None,
            "limit": self.limit, "columns": sorted(wanted) or None,
        }  # fmt: skip
        return {name: value for name, value in asked.items() if value is not None}

    def of(
        self, rows: list[dict[str, Any]], row: Operation, *, is_done: bool
    ) -> list[dict[str, Any]]:
        """Return these rows. is_done: they are these already. Raises OptionError."""
        if self.sort:
            _check_columns(row, rows, [self.sort.removeprefix("-")])
        if is_done:
            return rows
        if self.pattern is not None:
            try:
                is_in = re.compile(self.pattern, re.IGNORECASE).search
            except re.error as error:
                text = f"a regular expression ({error})"
                raise OptionError("--filter", self.pattern, text) from None
            rows = [one for one in rows if is_in(str(one.get(row.shown[0]) or ""))]
        if self.sort:
            column = self.sort.removeprefix("-")
            rows = sorted(
                rows, key=lambda one: sort_key(one.get(column)), reverse=self.sort != column
            )
        return rows[: self.limit]


def _change_of(row: Operation) -> Any:
    """Return the function of an operation that is not a list."""

    def run(data: str, vhost: str | None = None, yes: bool = True, **given: Any) -> None:
        args = _given(given)
        if "arguments" in args:
            args["arguments"] = arguments_of(given["arguments"])
        with asked(data) as client:
            if not yes:
                _confirm(client, row.name, vhost, args)
            found = client.call(row.name, vhost, **args)
        if row.said:
            output.told(row.said.format(**{**args, **found}))

    return YES(run) if row.name in DESTRUCTIVE else run


def _confirm(client: Client, op: str, vhost: str | None, args: Mapping[str, Any]) -> None:
    """Ask on a terminal whether to delete that much; without one, refuse to delete a vhost, or more
    than so many messages. Raises FailedError for no, click.UsageError if it cannot ask."""
    if op == "delete_queue" and not sys.stdin.isatty():
        return
    if op == "delete_vhost":
        what = f"vhost {args['name']!r} with all its queues and messages"
        count = 0
    else:
        found = client.call("describe_queue", vhost, queue=args["queue"])
        count = found["ready"] + (found["unacknowledged"] if op == "delete_queue" else 0)
        queue = f"queue {args['queue']!r}"
        what = (
            f"{count:,} messages of {queue}"
            if op == "purge_queue"
            else f"{queue} with {count:,} messages"
        )
    confirm(op, what, needs_yes=op == "delete_vhost" or count > ASKED_MESSAGES)


def confirm(command: str, what: str, *, needs_yes: bool) -> None:
    """Ask on a terminal whether to delete it; without one, refuse what needs --yes. Raises
    FailedError for no, click.UsageError if it cannot ask."""
    if sys.stdin.isatty():
        if not click.confirm(f"Delete {what}?", err=True):
            raise FailedError(EX_INTERRUPTED, "nothing is deleted")
    elif needs_yes:
        raise click.UsageError(
            f"{command} would delete {what}: give --yes, there is no terminal to ask"
        )


def _given(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call that were given."""
    return {
        name: list(one) if type(one) is tuple else one
        for name, one in given.items()
        if one is not None
    }


def _with_arguments(row: Operation, function: Any) -> Any:
    """Return the function with the arguments of its row, before those that it has. Of a list only
    what must be given and what the row says is an option: the others are for other callers."""
    for argument in reversed(row.arguments):
        decorate = _decorator(argument)
        is_wanted = not row.shown or argument.is_required or argument.is_option
        if decorate is not None and is_wanted:
            function = decorate(function)
    return function


def _decorator(argument: Argument) -> Callable[[Any], Any] | None:
    """Return how click takes an argument, None if the command line has no place for it."""
    name, value, words = argument.name, argument.value, argument.kind.words
    if isinstance(value, bool):
        text = argument.meaning[0].upper() + argument.meaning[1:] + "."
        return click.option("--" + name.replace("_", "-"), is_flag=True, help=text)
    if argument.is_option:
        return click.option(
            "--" + name.replace("_", "-"), type=int if type(value) is int else str, default=value,
            show_default=value is not None, metavar=name.upper(),
            help=argument.meaning[0].upper() + argument.meaning[1:] + ".",
        )  # fmt: skip
    if words == FIELD_TABLE:
        return ARGUMENTS
    if words == TABLE:
        return click.argument(
            name, metavar="JSON", callback=lambda _c, _p, text: _table(argument, text)
        )
    if words == ANY:
        return click.argument(name, callback=lambda _c, _p, text: _json(text))
    if words == TEXTS:
        return click.argument(name, nargs=-1, metavar=f"[{name.removesuffix('s').upper()}]...")
    if argument.is_required:
        return click.argument(name, callback=named)
    return click.argument(name, callback=named, default=value) if isinstance(value, str) else None


def _json(text: str) -> Any:
    """Parse any JSON. Raises UsageError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"given {text!r}, expected JSON, such as 5 or '\"a\"'") from error


def _table(argument: Argument, text: str) -> dict[str, object]:
    """Parse an object as rabbitmqctl takes it, as JSON. Raises UsageError."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.UsageError(f"given {text!r}, expected JSON, {argument.meaning}")
    return found


def rows_of(
    row: Operation, found: Sequence[Mapping[str, object]], asked: Sequence[str], form: str
) -> None:
    """Print these columns of the rows. Raises OptionError for an unknown column."""
    names = list(asked or row.shown)
    _check_columns(row, found, names)
    if form in ("json", "jsonl"):
        output.records(({name: one.get(name) for name in asked or one} for one in found), form)
    else:
        rows = ([one.get(name) for name in names] for one in found)
        output.table(names, rows, form, is_prose=names[-1] in SENTENCES)


def _check_columns(
    row: Operation, found: Sequence[Mapping[str, object]], names: Sequence[str]
) -> None:
    """Raise OptionError for an unknown column."""
    known = {*row.answer}.union(*found)
    for name in names:
        if name not in known:
            columns = [*row.shown, *sorted(known.difference(row.shown))]
            near = difflib.get_close_matches(name, columns, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise OptionError("column", name, f"one of {', '.join(columns)}{hint}")
