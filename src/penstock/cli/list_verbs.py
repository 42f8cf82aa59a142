"""The commands `list_...`: what there is in a broker, as rabbitmqctl's users know them.

`penstock list_queues name messages consumers`: the columns that are asked for, in that order; a few
of them without being asked, all of them with `--format json`. A column that there is none of is an
error that suggests the right one. What a broker of another version tells beside these is shown too
when it is asked for, as long as there is a row that has it.

Not here: where the rows come from (penstock.broker, penstock.server).
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import click

from penstock.access.limits import OF_USERS, OF_VHOSTS
from penstock.cli import shown
from penstock.cli.ask import DATA, VHOST, ask, named
from penstock.cli.shown import FORMAT
from penstock.errors import OptionError

# command -> (columns that are shown when none is asked for, the others)
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
        ("pages", "page", "frame", "bytes", "time_us"),
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
    "-p", "--vhost", metavar="NAME", callback=named, help="Of one vhost [of all]."
)


def rows_of(command: str, found: Sequence[Mapping[str, object]], asked: Sequence[str]) -> None:
    """Print these columns of what was found; OptionError for one that there is none of."""
    first, others = COLUMNS[command]
    names = list(asked or first)
    known = {*first, *others}.union(*found)
    for name in names:
        if name not in known:
            columns = [*first, *sorted(known.difference(first))]
            near = difflib.get_close_matches(name, columns, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise OptionError("column", name, f"{hint}one of {', '.join(columns)}")
    shown.table(names, [[row.get(name) for name in names] for row in found])


def _listing(command: str, what: str, *, of_vhost: Decorator | None = None) -> click.Command:
    """The click command of that name; of_vhost: the option for the vhost that is asked."""
    first, others = COLUMNS[command]

    def run(data: str, form: str, columns: tuple[str, ...], **more: Any) -> None:
        found = ask(data, command, more.get("vhost"))
        if form == "json":
            shown.document([{name: row.get(name) for name in columns or row} for row in found])
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
    text = f"{what}\n\nColumns: {words}. Without any: {', '.join(first)}."
    made: click.Command = click.command(command, help=text)(function)
    return made


list_queues = _listing("list_queues", "Queues of a vhost.", of_vhost=VHOST)
list_exchanges = _listing("list_exchanges", "Exchanges of a vhost.", of_vhost=VHOST)
list_bindings = _listing("list_bindings", "Bindings of a vhost.", of_vhost=VHOST)
list_consumers = _listing("list_consumers", "Consumers of a vhost.", of_vhost=VHOST)
list_channels = _listing("list_channels", "Channels of a vhost's connections.", of_vhost=VHOST)
list_alerts = _listing(
    "list_alerts", "Alerts of a vhost: what is on, and the last of what was.", of_vhost=VHOST
)
list_connections = _listing("list_connections", "Connections of all vhosts.")
list_leases = _listing(
    "list_leases", "What readers have leased of the queues of a vhost.", of_vhost=VHOST
)
list_batches = _listing(
    "list_batches", "The last batch that each query has written exactly once.", of_vhost=VHOST
)
list_vhosts = _listing("list_vhosts", "Vhosts, and how they are.")
list_user_limits = _listing("list_user_limits", "Limits of each user; -1 is none.")
list_vhost_limits = _listing("list_vhost_limits", "Limits of each vhost; -1 is none.")
list_users = _listing("list_users", "Users and their tags.")
list_permissions = _listing(
    "list_permissions", "What each user may configure, write and read.", of_vhost=ONE_VHOST
)
