"""Output: a table, lines with tabs, CSV, or JSON.

A terminal gets a drawn table: numbers are right-aligned, dates are to the second, a name that is
too wide is cut in the middle, and a sentence goes on in the next line. A pipe gets a line of names
and a line for each row, with fields separated by tabs, for `cut` and `awk`; a tab or line break
within a field is written as \\t or \\n. `--format json` prints one JSON document, `jsonl` one for
each row, in which bytes and names that are not text are {"b64": "..."}. Each row is written as soon
as it is made, except in a drawn table.

Names and bodies come from clients. Unprintable characters in them are written as `\\xNN` (in JSON
as `\\uNNNN`), so that no name can move the cursor or change the terminal. Only a body in a pipe or
file is written unchanged. In CSV a quote is put before a text that a spreadsheet would take for a
formula.
"""

import base64
import csv
import itertools
import json
import re
import shutil  # noqa: TID251 - the width of the terminal
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from penstock import escaping

F = TypeVar("F", bound=Callable[..., Any])
# Not the line feeds of indented JSON.
_NOT_ASCII: Final = re.compile(r"[^\n -~]")
_DATE: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?\+00:00")
FORMULA: Final = ("=", "+", "-", "@")  # the first characters of one
CELLS_MIN: Final = 12  # a column is cut to no fewer
QUIET: Final = "penstock.quiet"
NO_HEADER: Final = "penstock.no_header"


def _format(default: str, help_text: str, *choices: str) -> Callable[[F], F]:
    return click.option(
        "--format", "--formatter", "form", type=click.Choice([default, *choices]), default=default,
        help=help_text,
    )  # fmt: skip


FORMAT = _format("text", "text: a table on a terminal, tab-separated in a pipe.", "json")
ROWS_FORMAT = _format(
    "text", "text: a table on a terminal, tab-separated in a pipe; table is the same.", "table",
    "json", "jsonl", "csv", "tsv", "pretty_table",
)  # fmt: skip


def flagged(*keys: str) -> Any:
    """Return the callback of a flag that notes these keys for the command's output."""

    def note(ctx: click.Context, _param: click.Parameter, given: bool) -> None:
        if given:
            ctx.meta.update(dict.fromkeys(keys, True))

    return note


def _is_noted(key: str) -> bool:
    ctx = click.get_current_context(silent=True)
    return ctx is not None and key in ctx.meta


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def told(text: str) -> None:
    """Print what a command has done, unless it is to be quiet."""
    if not _is_noted(QUIET):
        click.echo(text)


def table(
    names: Sequence[str],
    rows: Iterable[Sequence[object]],
    form: str = "text",
    *,
    is_prose: bool = False,
) -> None:
    """Print a table in this format of ROWS_FORMAT, JSON excepted. No rows: print nothing. is_prose:
    what is too wide for a terminal is wrapped, not cut."""
    if form == "pretty_table" or (form in ("text", "table") and is_terminal()):
        for line in _drawn(names, list(rows), is_boxed=form == "pretty_table", is_prose=is_prose):
            click.echo(line)
        return
    writer = csv.writer(sys.stdout, lineterminator="\n") if form == "csv" else None
    is_first = not _is_noted(NO_HEADER)
    for row in rows:
        for fields in [names, row] if is_first else [row]:
            if writer is None:
                click.echo("\t".join(_flat(field) for field in fields))
            else:
                writer.writerow([_csv_field(field) for field in fields])
        is_first = False


def records(rows: Iterable[object], form: str) -> None:
    """Print rows as JSON: one list, or a line for each."""
    if form == "jsonl":
        for row in rows:
            click.echo(json_text(row))
        return
    before = "["
    for row in rows:
        click.echo(before + "\n  " + json_text(row), nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def pairs(values: Mapping[str, object], form: str) -> None:
    """Print names and values. Values of a nested dict are printed as name.inner, those of a list of
    dicts as name[its name or number].inner."""
    if form == "json":
        document(values)
        return
    table(["name", "value"], list(_flattened("", values)), is_prose=True)


def document(value: object) -> None:
    """Print one JSON document."""
    click.echo(json_text(value, indent=2))


def json_text(value: object, indent: int | None = None) -> str:
    """Return the value as JSON, with unprintable characters escaped."""
    found = json.dumps(readable(value), indent=indent, ensure_ascii=False, default=str)
    return found if found.isascii() and "\x7f" not in found else _NOT_ASCII.sub(_json_escape, found)


def say(text: str, *, err: bool = False) -> None:
    """Print one line on stdout or stderr, with unprintable characters escaped."""
    click.echo(escaping.one_line(text), err=err)


def sentence(text: str, indent: int = 4) -> None:
    """Print one line, on a terminal as many as it needs there: all but the first are indented."""
    line = escaping.one_line(text)
    width = shutil.get_terminal_size().columns if is_terminal() else 0
    lines = _wrapped(line, width, " " * indent) if width and _cells(line) > width else [line]
    click.echo("\n".join(lines))


def _wrapped(line: str, width: int, indent: str = "") -> list[str]:
    """Return the words of a line in lines of at most so many cells of a terminal."""
    chars = width if line.isascii() else max(width // 2, len(indent) + 1)
    return textwrap.wrap(line, chars, subsequent_indent=indent, break_on_hyphens=False) or [""]


def body(data: bytes) -> None:
    """Print a message's body and a line break: unchanged, or as text on a terminal."""
    if not is_terminal():
        click.echo(data)
        return
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        say(line.replace("\t", "    "))


def text(value: object) -> str:
    """Return a field for people: nothing for None, true and false, JSON for lists and dicts."""
    if isinstance(value, str):
        return value
    value = readable(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False) if value else ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def readable(value: object) -> object:
    """Return the value for JSON: bytes that are UTF-8 as text, other bytes and names as {"b64":
    ...}."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            data = value.encode("utf-8", "surrogateescape")
            return {"b64": base64.b64encode(data).decode("ascii")}
    if isinstance(value, dict):
        return {name: readable(inner) for name, inner in value.items()}
    return [readable(inner) for inner in value] if isinstance(value, list) else value


def _drawn(
    names: Sequence[str], rows: Sequence[Sequence[object]], *, is_boxed: bool, is_prose: bool
) -> list[str]:
    """Return the lines of a drawn table."""
    if not rows:
        return []
    cells = [[_DATE.sub(r"\1Z", escaping.one_line(text(field))) for field in row] for row in rows]
    is_number = [
        all(row[i] is None or type(row[i]) in (int, float) for row in rows)
        for i in range(len(names))
    ]
    widths = [max(_cells(name), *(_cells(row[i]) for row in cells)) for i, name in enumerate(names)]
    gap = 3 if is_boxed else 2
    if is_terminal():
        room = shutil.get_terminal_size().columns - gap * (len(names) - 1) - (4 if is_boxed else 0)
        is_whole = [
            number or any(_DATE.fullmatch(str(row[i])) for row in rows)
            for i, number in enumerate(is_number)
        ]
        _narrow(widths, is_whole, max(room, 1), last=CELLS_MIN * 2 if is_prose else CELLS_MIN)
    lines: list[str] = []
    has_header = not _is_noted(NO_HEADER)
    for number, row in enumerate([list(names), *cells] if has_header else cells):
        is_title = has_header and number == 0
        pieces = [_wrapped(field, widths[i]) if is_prose and _cells(field) > widths[i] else [field]
                  for i, field in enumerate(row)]  # fmt: skip
        for fields in itertools.zip_longest(*pieces, fillvalue=""):
            fits = [fitted(one, widths[i], is_right=is_number[i]) for i, one in enumerate(fields)]
            line = "│ " + " │ ".join(fits) + " │" if is_boxed else "  ".join(fits).rstrip()
            lines.append(click.style(line, bold=True) if is_title and not is_boxed else line)
        if is_title and is_boxed:
            lines.append(_rule(widths, "├┼┤"))
    if is_boxed:
        lines = [_rule(widths, "┌┬┐"), *lines, _rule(widths, "└┴┘")]
    return lines


def _rule(widths: Sequence[int], corners: str) -> str:
    return corners[0] + corners[1].join("─" * (width + 2) for width in widths) + corners[2]


def _narrow(widths: list[int], is_whole: Sequence[bool], room: int, last: int) -> None:
    """Make the widest columns narrower until all fit, if they can, but those that are whole. last:
    the least width of the last one."""
    texts = [i for i, whole in enumerate(is_whole) if not whole]
    for i in texts:
        widths[i] = min(widths[i], room)
    while sum(widths) > room:
        most = [i for i in texts if widths[i] > (last if i == len(widths) - 1 else CELLS_MIN)]
        if not most:
            return
        widths[max(most, key=lambda i: widths[i])] -= 1


def fitted(text: str, width: int, *, is_right: bool = False) -> str:
    """Return the text in so many cells of a terminal: cut in the middle, or filled up."""
    if _cells(text) > width:
        first = _beginning(text, width // 2)
        text = first + "…" + _beginning(text[::-1], width - 1 - _cells(first))[::-1]
    fill = " " * (width - _cells(text))
    return fill + text if is_right else text + fill


def _beginning(text: str, width: int) -> str:
    """Return what of the text fits into so many cells."""
    taken = text[:width]
    while _cells(taken) > width:
        taken = taken[:-1]
    return taken


def _cells(text: str) -> int:
    """Return how many cells of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def _csv_field(field: object) -> str:
    line = escaping.one_line(text(field))
    is_formula = line.startswith(FORMULA) and type(field) not in (int, float)
    return "'" + line if is_formula else line


def _flat(field: object) -> str:
    line = text(field).replace("\t", "\\t").replace("\r", "\\r").replace("\n", "\\n")
    return escaping.one_line(line)


def _json_escape(found: "re.Match[str]") -> str:
    if found[0].isprintable():
        return found[0]
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _flattened(prefix: str, values: Mapping[str, object]) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            rows += _flattened(f"{prefix}{name}.", value)
        elif isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            for i, one in enumerate(value):
                rows += _flattened(f"{prefix}{name}[{one.get('name', i)}].", one)
        else:
            rows.append((prefix + name, value))
    return rows


def span(seconds: float) -> str:
    """Return a time for people, in its two largest units."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((i for i, (n, _) in enumerate(parts) if n), 3)
    return " ".join(f"{n} {unit}" for n, unit in parts[first : first + 2])
