"""Writes what the documentation lists from the tables of options.

    python tools/configuration.py            prints docs/reference/configuration.md
    python tools/configuration.py --repair   writes it, docs/reference/operations.md, and the table
                                             of x-arguments in docs/reference/ttl-and-limits.md

tests/unit/test_tables.py compares the pages with the tables.
"""

import argparse
import itertools
from pathlib import Path
from typing import Final

from penstock.broker.arguments import ARGUMENTS
from penstock.cli.serve import FLAGS
from penstock.config import LIMITS, QUEUES, STORAGE, settings
from penstock.operation_table import OPERATIONS, Operation

REFERENCE: Final = Path(__file__).parent.parent / "docs" / "reference"
PAGE: Final = REFERENCE / "configuration.md"
ARGUMENTS_PAGE: Final = REFERENCE / "ttl-and-limits.md"
OPERATIONS_PAGE: Final = REFERENCE / "operations.md"
HEAD: Final = """\
# Configuration of a broker

Each value can be set in three places; a flag overrides the environment, the environment overrides
the file. The file is `--config`, else `PENSTOCK_CONFIG`, else `penstock.toml` in the working
directory if it exists. An unknown name in it is an error that suggests the right one. `penstock
config explain KEY` says on the command line what is said here.

Values such as `PENSTOCK_PORT=tcp://10.0.0.1:5672`, which Kubernetes sets in every pod for a service
called penstock, are ignored, with a line in the log.

This page is made from the source: `python tools/configuration.py --repair`.
"""
ABOUT: Final = {
    "": "Those with a flag are flags of [`penstock serve`](cli.md#penstock-serve), too.",
    STORAGE: """\
Of the storage engine: in the file in a table `[storage]`. [`penstock.open`](../start/library.md)
takes them as keywords.""",
    LIMITS: """\
Of users and vhosts: in a table `[limits]`; -1 is no limit. `penstock set_user_limits` and
`set_vhost_limits` set those of one [user](../guides/users.md) or [vhost](../guides/vhosts.md). What
happens beyond one: [security](../guides/security.md#what-one-user-can-cost-the-others-limits).""",
    QUEUES: "In a table `[queues]`: the classes that hold messages.",
}
NAMES: Final = """\
| Name | Environment | Values | Default | |
| --- | --- | --- | --- | --- |
"""

ARGUMENT_NAMES: Final = "| argument | types | values | meaning |\n|---|---|---|---|\n"


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for table, rows in itertools.groupby(settings(), lambda one: one.table):
        parts.append(f"\n## {f'[{table}]' if table else 'The broker'}\n\n{ABOUT[table]}\n\n")
        parts.append(
            "| Name | Environment | Values | Default | |\n| --- | --- | --- | --- | --- |\n"
        )
        for one in rows:
            name = one.option.name
            flag = f", `--{name.replace('_', '-')}`" if not table and name in FLAGS else ""
            default = f"`{one.default}`" if one.default else ""
            cells = (
                f"`{name}`{flag}", f"`{one.variable}`", one.option.kind.words, default,
                one.option.meaning,
            )  # fmt: skip
            parts.append("| " + " | ".join(cells) + " |\n")
    return "".join(parts)


def with_arguments(text: str) -> str:
    """Return the page of arguments with the rows of its last table made anew."""
    head, names, _ = text.partition(ARGUMENT_NAMES)
    assert names, f"{ARGUMENTS_PAGE.name} has no table that begins with {ARGUMENT_NAMES!r}"
    rows = [
        f"| `{one.name}` | {', '.join(one.applies)} | {one.kind.words} | {one.meaning} |\n"
        for one in ARGUMENTS.values()
    ]
    return head + names + "".join(rows)


OPERATIONS_HEAD: Final = """\
# Operations

What can be asked of a broker by name. The commands of [`penstock`](cli.md) call them over the
control socket, which only the user that runs the broker can open; that user may call all. An AMQP
client calls those of its vhost by the method `penstock.call` (class 9000) with the name, and the
arguments as a JSON object, and gets JSON; it needs the permission in the last column. The [HTTP
API](http.md) calls them for its users.

Bytes are `{"b64": "..."}`, times ISO 8601. An unknown name is a 404 and a wrong argument a 406;
both suggest the right one.

This page is made from the source: `python tools/configuration.py --repair`.
"""


def operations_page() -> str:
    """Return the page of operations."""
    parts = [OPERATIONS_HEAD]
    for of, rows in itertools.groupby(sorted(OPERATIONS.values(), key=_part), _part):
        parts.append(f"\n## {of}\n\n| Name | Arguments | Answer | | Who |\n{'| --- ' * 5}|\n")
        for row in rows:
            arguments = "<br>".join(
                f"`{one.name}`: {one.kind.words}"
                f"{f' [{one.default}]' if one.default not in (None, 'null') else ''}: {one.meaning}"
                for one in row.arguments
            )
            answer = ", ".join(f"`{name}`" for name in row.answer)
            text = f"{row.help} {row.more}".strip()
            cells = (f"`{row.name}`", arguments, answer, text, row.permission)
            parts.append("| " + " | ".join(cells) + " |\n")
    return "".join(parts)


def _part(row: Operation) -> str:
    return "Of a vhost's clients" if row.name.startswith("box.") else f"Of {row.of.split(',')[0]}"


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repair", action="store_true", help="write the pages")
    if parser.parse_args().repair:
        PAGE.write_text(page(), encoding="utf-8")
        OPERATIONS_PAGE.write_text(operations_page(), encoding="utf-8")
        text = ARGUMENTS_PAGE.read_text(encoding="utf-8")
        ARGUMENTS_PAGE.write_text(with_arguments(text), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
