"""Writes docs/reference/configuration.md from the tables of options.

    python tools/configuration.py            prints the page
    python tools/configuration.py --repair   writes it

tests/unit/test_tables.py compares the page with the tables.
"""

import argparse
import itertools
from pathlib import Path
from typing import Final

from penstock.cli.serve import FLAGS
from penstock.config import LIMITS, QUEUES, STORAGE, settings

PAGE: Final = Path(__file__).parent.parent / "docs" / "reference" / "configuration.md"
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


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repair", action="store_true", help="write the page")
    if parser.parse_args().repair:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
