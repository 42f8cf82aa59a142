"""Output: a drawn table, lines with tabs, or JSON.

On a terminal `rich`, which is imported then, draws tables. A pipe gets a line of names and a line
for each row, with fields separated by tabs, for `cut` and `awk`; a tab or line break within a field
is written as \\t or \\n. `--format json` prints one JSON document, in which bytes and names that
are not text are {"b64": "..."}.

Names and bodies come from clients. Unprintable characters in them are written as `\\xNN` (in JSON
as `\\uNNNN`), so that no name can move the cursor or change the terminal. Only a body in a pipe or
file is written unchanged.
"""

import base64
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import click

from penstock import escaping

# Not the line feeds of indented JSON.
_NOT_ASCII: Final = re.compile(r"[^\n -~]")
FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="text: a table on a terminal, tab-separated in a pipe.",
)


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: drawn on a terminal, else as lines with tabs. No rows: print nothing."""
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
    """Print names and values. Values of a nested dict are printed as name.inner, those of a list of
    dicts as name[its name or number].inner."""
    if form == "json":
        document(values)
        return
    table(["name", "value"], list(_flattened("", values)))


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
