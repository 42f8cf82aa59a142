"""Options of built-in pipelines, and the TOML that they become.

A built-in pipeline has a table of its options, name -> default (None: there is none), and the names
of those that must be given. An unknown one is an error that suggests the right one.

TOML has no writer in the standard library; what is needed here is text, and a JSON string is a TOML
basic string too.

Not here: what the options mean (archive.py, replay.py).
"""

import json
from collections.abc import Mapping, Sequence

from penstock.errors import OptionError


def options_of(
    given: Mapping[str, str], known: Mapping[str, str | None], needed: Sequence[str]
) -> dict[str, str | None]:
    """The options with their defaults. OptionError: one is unknown, or missing."""
    for name, value in given.items():
        if name not in known:
            raise OptionError(name, value, list(known))
    for name in needed:
        if not given.get(name):
            raise OptionError(name, None, f"a value: -o {name}=...")
    return {**known, **given}


def choice(name: str, given: str | None, choices: Sequence[str]) -> str:
    """One of these. OptionError."""
    if given is None or given not in choices:
        raise OptionError(name, given, f"one of {', '.join(choices)}")
    return given


def whole(given: str | None) -> int | str | None:
    """A number as TOML has it; what is none stays as it is, for the file's own check to tell."""
    return int(given) if given and given.isdecimal() else given


def lake(
    kind: str, into: str | None, columns: Sequence[str], warehouse: str | None
) -> tuple[str, ...]:
    """The [[sink]] of a table or of files, and the [catalog] of Iceberg. OptionError."""
    if warehouse is not None and kind != "iceberg":
        raise OptionError("warehouse", warehouse, "format=iceberg with it")
    sink = table("[[sink]]", {kind: into, "partition_by": list(columns), "gather": False})
    if warehouse is None:
        return (sink,)
    return sink, table("[catalog]", {"warehouse": warehouse})


def table(header: str, values: Mapping[str, object]) -> str:
    """A table of a TOML file; what is None is left out."""
    lines = [f"{name} = {_value(value)}" for name, value in values.items() if value is not None]
    return "\n".join([header, *lines]) + "\n"


def plain(name: str) -> str:
    """A name as that of a pipeline: what else stands in it becomes "-"."""
    letters = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
    return letters.strip("-.") or "unnamed"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
