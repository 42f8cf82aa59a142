"""Shown: how results reach the user: a drawn table, lines with tabs, or JSON.

On a terminal tables are drawn by `rich`, which is imported then and not before; in a pipe there is
a line of names and a line for each row, fields separated by tabs, so that `cut` and `awk` can work
on them; a tab or line break within a field is written as \\t or \\n there. With `--format json` it
is one JSON document, and bytes that are no text are {"b64": "..."}.

Not here: asking for what is shown (ask.py), the bars of long work (store.py).
"""

import base64
import json
import sys
from collections.abc import Mapping, Sequence

import click

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
        drawn.add_row(*(Text(text(field)) for field in row))
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
    click.echo(json.dumps(readable(value), indent=2, ensure_ascii=False))


def text(value: object) -> str:
    """A field as people read it: nothing for None, true and false, JSON for what is composed."""
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
    """As JSON can say it: bytes that are UTF-8 are the text, others {"b64": ...}."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, dict):
        return {name: readable(inner) for name, inner in value.items()}
    return [readable(inner) for inner in value] if isinstance(value, list) else value


def _flat(field: object) -> str:
    return text(field).replace("\t", "\\t").replace("\r", "\\r").replace("\n", "\\n")


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
