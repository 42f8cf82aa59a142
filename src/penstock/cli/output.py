"""Shown: how results reach the user: a drawn table, lines with tabs, or JSON.

On a terminal tables are drawn by `rich`, which is imported then and not before; in a pipe there is
a line of names and a line for each row, fields separated by tabs, so that `cut` and `awk` can work
on them; a tab or line break within a field is written as \t or \n there. With `--format json` it
is one JSON document, and bytes and names that are no text are {"b64": "..."}.

Names and bodies come from clients. What is not printable in them is written as `\xNN` (in JSON as
`\uNNNN`), so that nobody's name can move the cursor or change the terminal. Only a body that goes
into a pipe or file is written as it is.

Not here: asking for what is shown (ask.py), the bars of long work (store.py).
"""

import base64
import click
import json
import re
import sys
from collections.abc import Mapping
from collections.abc import Sequence
from penstock import escaping
from typing import Final

# A line feed is between the parts of JSON that is indented.
_NOT_ASCII: Final = re.compile(r"[^\n -~]")
FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="text: a table on a terminal, tab-separated in a pipe.",
)


def is_terminal() -> bool:
    """Whether stdout is one."""
    return sys.stdout.isatty()


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A drawn table on a terminal, else lines of fields separated by tabs. No rows: nothing."""
    if not rows:
        return
    if not is_terminal():
        for row in (names, *rows):
            click.echo("\t".join(_flat(field) for field in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None)
    for i, name in enumerate(names):
        is_number = all(isinstance(row[i], int) for row in rows)
        drawn.add_column(name, justify="right" if is_number else "left")
    for row in rows:
        drawn.add_row(*(Text(escaping.one_line(text(field))) for field in row))
    Console().print(drawn)


def pairs(values: Mapping[str, object], form: str) -> None:
    """A dict: names and values; what is a dict within is told as name.inner, a list of dicts as
    name[its name or number].inner."""
    if form == "json":
        document(values)
        return
    table(["name", "value"], list(_flattened("", values)))


def document(value: object) -> None:
    """One JSON document."""
    click.echo(json_text(value, indent=2))


def json_text(value: object, indent: int | None = None) -> str:
    """The value as JSON, with what is not printable escaped."""
    told = json.dumps(readable(value), indent=indent, ensure_ascii=False, default=str)
    return told if told.isascii() and "\x7f" not in told else _NOT_ASCII.sub(_json_escape, told)


def say(text: str, *, err: bool = False) -> None:
    """One line, on stdout or stderr, whatever names it holds."""
    click.echo(escaping.one_line(text), err=err)


def body(data: bytes) -> None:
    """A message's body and a line break: as it is, or on a terminal as text."""
    if not is_terminal():
        click.echo(data)
        return
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        say(line.replace("\t", "    "))


def text(value: object) -> str:
    """A field as people read it: nothing for None, true and false, JSON for what is composed."""
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
    """As JSON can say it: bytes that are UTF-8 are the text, others {"b64": ...}, and so is a name
    that is no UTF-8."""
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


def _flat(field: object) -> str:
    told = text(field).replace("\t", "\\t").replace("\r", "\\r").replace("\n", "\\n")
    return escaping.one_line(told)


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
