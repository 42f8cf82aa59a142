"""Writes what the documentation lists from the tables of options.

    python tools/configuration.py            prints docs/reference/configuration.md
    python tools/configuration.py --repair   writes it, docs/reference/operations.md and metrics.md,
                                             and the tables in the pages of TABLES

tests/unit/test_tables.py compares the pages with the tables.
"""

import argparse
import itertools
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Final

from penstock.broker.arguments import ARGUMENTS
from penstock.broker.policies import KEYS
from penstock.cli.rabbitmq_conf import KEYS as RABBITMQ_KEYS
from penstock.cli.rabbitmq_conf import WHY
from penstock.cli.serve import FLAGS
from penstock.config import AUTH_HTTP, AUTH_OAUTH2, LIMITS, QUEUES, STORAGE, TLS, settings
from penstock.embedded.option_parsing import QUEUE_KEYWORDS, STREAM_KEYWORDS
from penstock.http.api_pages import reference
from penstock.http.endpoint_table import ENDPOINTS
from penstock.metric_table import AGE, FAMILIES, GAUGE, METRICS, RABBITMQ
from penstock.operation_table import OPERATIONS, Operation
from penstock.options import Option
from penstock.queues.queue_options import QueueOptions
from penstock.queues.stream_options import StreamOptions
from penstock.spark import pipeline_file
from penstock.spark.built_in_pipelines import ARCHIVE_OPTIONS, DEAD_LETTERS_OPTIONS, REPLAY_OPTIONS
from penstock.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, SinkOptions, SourceOptions

DOCS: Final = Path(__file__).parent.parent / "docs"
PAGE: Final = DOCS / "reference" / "configuration.md"
OPERATIONS_PAGE: Final = DOCS / "reference" / "operations.md"
METRICS_PAGE: Final = DOCS / "reference" / "metrics.md"
HEAD: Final = """\
# Configuration of a broker

Each value can be set in three places; a flag overrides the environment, the environment overrides
the file. The file is `--config`, else `PENSTOCK_CONFIG`, else `penstock.toml` in the working
directory if it exists. An unknown name in it is an error that suggests the right one. `penstock
config explain KEY` says on the command line what is said here.

A running broker takes new values of what is called *live* below: at SIGHUP it reads the file again,
and its log says what has changed, and by name what needs a restart; if anything in the file is
wrong, nothing is changed. `penstock config set KEY VALUE` changes one until the next start or
SIGHUP. `penstock config show` says what each is and where that is from, `--effective` of the broker
that runs.

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
    TLS: "In a table `[tls]`: certificates and ports, see [TLS](../guides/tls.md).",
    AUTH_HTTP: """\
In a table `[auth_http]`: of the backend `http`, a [server that checks
passwords and rights](../guides/logins.md#passwords-and-rights-that-a-server-checks).""",
    AUTH_OAUTH2: """\
In a table `[auth_oauth2]`: of the backend `oauth2`, which takes [tokens](../guides/logins.md).""",
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
            live = " *Live.*" if one.option.is_live else ""
            cells = (
                f"`{name}`{flag}", f"`{one.variable}`", one.option.kind.words, default,
                one.option.meaning + live,
            )  # fmt: skip
            parts.append("| " + " | ".join(cells) + " |\n")
    return "".join(parts)


def table(options: Iterable[Option], program: type | None = None) -> list[str]:
    """Return rows. program: the class whose fields have the defaults that the rows do not have."""
    defaults = {one.name: one.default for one in fields(program)} if program else {}
    rows = []
    for one in options:
        default = one.default
        if default is None:
            value = defaults.get(one.target, MISSING)
            default = "" if value in (None, (), MISSING) else f"`{one.kind.shown(value)}`"
        rows.append(f"| `{one.name}` | {one.kind.words} | {default} | {one.meaning} |\n")
    return rows


def arguments() -> list[str]:
    """Return the rows of x-arguments."""
    return [
        f"| `{one.name}` | {', '.join(one.applies)} | {one.kind.words} | {one.meaning} |\n"
        for one in ARGUMENTS.values()
    ]


def policy_keys() -> list[str]:
    """Return the rows of keys of policies."""
    return [
        f"| `{key}` | {', '.join(one.applies) or 'all'} | {one.kind.words} | {one.policy} | "
        f"{_in_guides(one.meaning)} |\n"
        for key, one in KEYS.items()
    ]


def rabbitmq_keys() -> list[str]:
    """Return the rows of keys of rabbitmq.conf that become an option."""
    return [f"| `{key}` | `{one.option}` |\n" for key, one in RABBITMQ_KEYS.items()]


def rabbitmq_reasons() -> list[str]:
    """Return the rows of keys of rabbitmq.conf that become nothing."""
    return [f"| `{key}` | {why} |\n" for key, why in WHY.items()]


def _in_guides(meaning: str) -> str:
    """Return a meaning with links of docs/reference as links of docs/guides."""
    return meaning.replace("](#", "](../reference/ttl-and-limits.md#").replace("](../guides/", "](")


# Page -> the names of a table in it, and what makes its rows.
TABLES: Final[dict[Path, dict[str, Callable[[], list[str]]]]] = {
    DOCS / "reference" / "ttl-and-limits.md": {
        "| argument | types | values | meaning |": arguments
    },
    DOCS / "guides" / "policies.md": {
        "| key | types | values | of argument and policy | meaning |": policy_keys
    },
    DOCS / "guides" / "moving-from-rabbitmq.md": {
        "| rabbitmq.conf | penstock.toml |": rabbitmq_keys,
        "| rabbitmq.conf | Why it has no meaning here |": rabbitmq_reasons,
    },
    DOCS / "reference" / "http.md": {
        "| method | address | for users with the tag | |": lambda: reference(ENDPOINTS)
    },
    DOCS / "start" / "library.md": {
        "| option of a queue | values | default | |": lambda: table(QUEUE_KEYWORDS, QueueOptions)
    },
    DOCS / "guides" / "streams.md": {
        "| option of a stream | values | default | |": lambda: table(STREAM_KEYWORDS, StreamOptions)
    },
    DOCS / "guides" / "spark-source.md": {
        "| option | values | default | |": lambda: table(SOURCE_OPTIONS, SourceOptions)
    },
    DOCS / "guides" / "sinks.md": {
        "| option | values | default | |": lambda: table(SINK_OPTIONS, SinkOptions)
    },
    DOCS / "guides" / "pipelines.md": {
        "| `[pipeline]` | values | default | |": lambda: table(
            pipeline_file.PIPELINE_KEYS, pipeline_file.PipelineSpec
        ),
        "| `[source]` | values | default | |": lambda: table(
            pipeline_file.SOURCE_KEYS, pipeline_file.SourceSpec
        ),
        "| `[transform]` | values | default | |": lambda: table(
            pipeline_file.TRANSFORM_KEYS, pipeline_file.TransformSpec
        ),
        "| `[[sink]]`, one or more | values | default | |": lambda: table(
            pipeline_file.SINK_KEYS, pipeline_file.SinkSpec
        ),
        "| option of `archive` | values | default | |": lambda: table(ARCHIVE_OPTIONS),
        "| option of `replay` | values | default | |": lambda: table(REPLAY_OPTIONS),
        "| option of `dead-letters` | values | default | |": lambda: table(DEAD_LETTERS_OPTIONS),
    },
}


def with_tables(path: Path) -> str:
    """Return a page of TABLES with the rows of its tables made anew."""
    lines = iter([*path.read_text(encoding="utf-8").splitlines(keepends=True), "\n"])
    made: list[str] = []
    left = dict(TABLES[path])
    for line in lines:
        made.append(line)
        rows = left.pop(line.strip(), None)
        if rows is not None:
            made += [next(lines), *rows()]
            made.append(next(itertools.dropwhile(lambda one: one.startswith("|"), lines)))
    assert not left, f"{path.name} has no table {[*left]}"
    return "".join(made[:-1])


OPERATIONS_HEAD: Final = """\
# Operations

What can be asked of a broker by name. The commands of [`penstock`](cli.md) call them over the
control socket, which only the user that runs the broker can open; that user may call all. An AMQP
client calls those of its vhost by the method `penstock.call` (class 9000) with the name, and the
arguments as a JSON object, and gets JSON; it needs the permission in the last column. The answers
to a channel come in the order of its calls. The [HTTP API](http.md) calls them for its users.

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


METRICS_HEAD: Final = """\
# Metrics

What `/metrics` shows: [monitoring](../guides/monitoring.md) says where. Names begin with
`penstock_`, those that are RabbitMQ's with `rabbitmq_`. Seconds and bytes; a counter begins with 0
when its process starts. Nothing on `/metrics` has the name of a queue, a connection or a consumer,
so the number of series does not grow with them; the last table has what each queue has.

This page is made from the source: `python tools/configuration.py --repair`.
"""


def metrics_page() -> str:
    """Return the page of metrics."""
    parts = [METRICS_HEAD]
    for group, rows in itertools.groupby(METRICS, lambda row: row.group):
        parts.append(f"\n## {group}\n\n| Name | Type | Labels | |\n{'| --- ' * 4}|\n")
        for row in rows:
            labels = ", ".join(f"`{label}`" for label in row.labels)
            meaning = row.meaning
            if row.bounds:
                meaning += f"; up to {', '.join(f'{bound:g}' for bound in row.bounds)}"
            parts.append(f"| `{row.name}` | {row.kind} | {labels} | {meaning} |\n")
    parts.append(
        "\n## By RabbitMQ's names\n\nOf all vhosts together. Deliveries of streams are counted "
        "with those of classic queues. The descriptors and the RAM are those of all processes.\n\n"
        f"| Name | Type | Labels | |\n{'| --- ' * 4}|\n"
    )
    for one in RABBITMQ:
        labels = f"`{one.labels}`" if one.labels else ""
        parts.append(f"| `{one.name}` | {one.kind} | {labels} | {one.meaning} |\n")
    parts.append(
        "\n## Of each object\n\nOn `/metrics/detailed?family=FAMILY` they begin with "
        "`rabbitmq_detailed_`, or `penstock_detailed_` where the family is ours; on "
        "`/metrics/per-object` without `detailed_`.\n\n"
        f"| Family | Name | Type | Labels | |\n{'| --- ' * 5}|\n"
    )
    for family in FAMILIES.values():
        labels = ", ".join(f"`{label}`" for label in ("vhost", *family.labels))
        name = f"`{family.name}`{' (ours)' if family.is_ours else ''}"
        for column, kind, meaning in family.columns:
            kind = GAUGE if kind == AGE else kind
            parts.append(f"| {name} | `{column}` | {kind} | {labels} | {meaning} |\n")
    return "".join(parts)


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repair", action="store_true", help="write the pages")
    if parser.parse_args().repair:
        PAGE.write_text(page(), encoding="utf-8")
        OPERATIONS_PAGE.write_text(operations_page(), encoding="utf-8")
        METRICS_PAGE.write_text(metrics_page(), encoding="utf-8")
        for path in TABLES:
            path.write_text(with_tables(path), encoding="utf-8")
    else:
        print(page(), end="")


if __name__ == "__main__":
    main()
