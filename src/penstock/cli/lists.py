"""The commands `list_...`: what there is in a broker, as rabbitmqctl's users know them.

`penstock list_queues name messages consumers` prints these columns in this order; without columns
a few, with `--format json` all. An unknown column is an error that suggests the nearest one.
Columns of a broker of another version are printed when they are asked for and a row has them.

The rows come from penstock.broker and penstock.server.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import click

from penstock.access.limits import OF_USERS, OF_VHOSTS
from penstock.cli import output
from penstock.cli.ask import DATA, VHOST, ask, named
from penstock.cli.main import VERBS
from penstock.cli.output import FORMAT
from penstock.errors import OptionError

# command -> (default columns, other columns)
COLUMNS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "list_queues": (
        ("name", "messages", "consumers"),
        (
            "messages_ready", "messages_unacknowledged", "leased", "message_bytes", "memory",
            "memory_alphas", "memory_rows", "memory_elsewhere", "memory_target", "memory_max",
            "memory_min", "memory_share", "memory_duration", "paged_by", "messages_ram",
            "messages_paged_out", "ack_in_per_s", "ack_out_per_s",
            "durable", "exclusive", "auto_delete", "arguments", "state", "type", "alphas", "betas",
            "gammas", "delta", "delayed", "message_bytes_ready", "message_bytes_unacknowledged",
            "mode", "message_stats", "idle_since", "disk_reads", "disk_writes", "in_per_s",
            "out_per_s", "rejected", "expired", "maxlen", "delivery_limit", "dead_letters_dropped",
            "alerts_raised", "why", "is_flowed", "q1", "q2", "q3", "q4", "set_aside", "partitions",
            "readers", "vhost",
        ),
    ),
    "list_exchanges": (
        ("name", "type"), ("durable", "auto_delete", "internal", "arguments", "vhost"),
    ),
    "list_bindings": (
        ("source_name", "destination_name", "destination_kind", "routing_key", "arguments"),
        ("source_kind", "vhost"),
    ),
    "list_consumers": (
        ("queue_name", "channel", "consumer_tag", "ack_required", "prefetch_count"),
        (
            "connection", "user", "exclusive", "active", "priority", "arguments", "unacked",
            "delivered", "vhost",
        ),
    ),
    "list_channels": (
        ("name", "user", "consumer_count", "messages_unacknowledged"),
        (
            "connection", "number", "vhost", "prefetch_count", "global_prefetch_count", "confirm",
            "transactional", "messages_unconfirmed", "state",
        ),
    ),
    "list_connections": (
        ("name", "user", "vhost", "state", "channels"),
        (
            "peer_host", "peer_port", "host", "port", "client_properties", "connected_at",
            "frame_max", "channel_max", "timeout", "recv_oct", "send_oct",
        ),
    ),
    "list_alerts": (
        ("time", "queue", "kind", "is_on", "text"),
        ("first_time", "count", "value", "threshold", "vhost"),
    ),
    "list_leases": (
        ("name", "reader", "first", "head", "bytes", "is_old"),
        ("ready", "ready_bytes", "since_ms", "path", "stream_id", "last_time_us"),
    ),
    "list_batches": (
        ("query", "batch", "target", "rows", "is_done", "waits_for"),
        ("owner", "pages", "page", "frame", "bytes", "time_us"),
    ),
    "list_vhosts": (
        ("name", "state", "since", "why"),
        (
            "pid", "error", "retry_in_s", "blocked_reason", "refused", "restarts", "memory_bytes",
            "counted_bytes", "connections", "depth_bytes", "rss_bytes",
            "returned_bytes",
        ),
    ),
    "list_users": (("name", "tags"), ()),
    "list_user_limits": (("user", *OF_USERS), ()),
    "list_vhost_limits": (("vhost", *OF_VHOSTS), ()),
    "list_permissions": (("user", "vhost", "configure", "write", "read"), ()),
}  # fmt: skip


Decorator: TypeAlias = Callable[[Any], Any]
ONE_VHOST: Final = click.option(
    "-p", "--vhost", metavar="NAME", callback=named, help="One vhost [all]."
)


def rows_of(command: str, found: Sequence[Mapping[str, object]], asked: Sequence[str]) -> None:
    """Print these columns of the rows. Raises OptionError for an unknown column."""
    first, others = COLUMNS[command]
    names = list(asked or first)
    known = {*first, *others}.union(*found)
    for name in names:
        if name not in known:
            columns = [*first, *sorted(known.difference(first))]
            near = difflib.get_close_matches(name, columns, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError("column", name, f"{hint}one of {', '.join(columns)}")
    output.table(names, [[row.get(name) for name in names] for row in found])


def _listing(command: str, *, of_vhost: Decorator | None = None) -> click.Command:
    """Return the click command of that name. of_vhost: its option for the vhost."""
    first, others = COLUMNS[command]

    def run(data: str, form: str, columns: tuple[str, ...], **more: Any) -> None:
        found = ask(data, command, more.get("vhost"))
        if form == "json":
            output.document([{name: row.get(name) for name in columns or row} for row in found])
        else:
            rows_of(command, found, columns)

    columns = click.argument("columns", nargs=-1, metavar="[COLUMN]...")
    words = ", ".join((*first, *others))
    decorators: list[Callable[[Any], Any]] = [DATA, FORMAT, columns]
    if of_vhost is not None:
        decorators.append(of_vhost)
    function: Any = run
    for decorate in decorators:
        function = decorate(function)
    text = f"{VERBS[command].help}\n\nColumns: {words}. By default: {', '.join(first)}."
    made: click.Command = click.command(command, help=text)(function)
    return made


list_alerts = _listing("list_alerts", of_vhost=VHOST)
list_batches = _listing("list_batches", of_vhost=VHOST)
list_bindings = _listing("list_bindings", of_vhost=VHOST)
list_channels = _listing("list_channels", of_vhost=VHOST)
list_connections = _listing("list_connections")
list_consumers = _listing("list_consumers", of_vhost=VHOST)
list_exchanges = _listing("list_exchanges", of_vhost=VHOST)
list_leases = _listing("list_leases", of_vhost=VHOST)
list_permissions = _listing("list_permissions", of_vhost=ONE_VHOST)
list_queues = _listing("list_queues", of_vhost=VHOST)
list_user_limits = _listing("list_user_limits")
list_users = _listing("list_users")
list_vhost_limits = _listing("list_vhost_limits")
list_vhosts = _listing("list_vhosts")
