"""RabbitMQ's names in the text of /metrics: what all vhosts have together.

Its dashboards join each panel with rabbitmq_identity_info, so every answer has that. Deliveries of
streams are counted with those of classic queues.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.http.metrics_text import MetricsText, quoted
from penstock.http.node_pages import RABBITMQ_VERSION
from penstock.metric_table import GAUGE, RABBITMQ
from penstock.native import VERSION

PREFIX: Final = "rabbitmq_"


def info(text: MetricsText, node: Mapping[str, Any], endpoint: str) -> None:
    """Add the two families that name the node and its versions. node: of `node_metrics`. endpoint:
    which text it is, as RabbitMQ 4 says: its dashboards choose one."""
    labels = {
        "build_info": {
            "rabbitmq_version": RABBITMQ_VERSION, "prometheus_plugin_version": VERSION,
            "prometheus_client_version": VERSION, "erlang_version": "",
        },
        "identity_info": {
            "rabbitmq_node": node["name"], "rabbitmq_cluster": node["cluster_name"],
            "rabbitmq_cluster_permanent_id": node["cluster_name"],
            "rabbitmq_endpoint": endpoint,
        },
    }  # fmt: skip
    for name, of in labels.items():
        text.head(PREFIX + name, GAUGE, "RabbitMQ's name for this node and its versions")
        shown = ",".join(f"{label}={quoted(value)}" for label, value in of.items())
        text.sample(PREFIX + name, shown, 1)


def totals(
    text: MetricsText, node: Mapping[str, Any], vhosts: Iterable[Mapping[str, Any]],
    *, is_per_object: bool = False,
) -> None:  # fmt: skip
    """Add the rows of RABBITMQ. node, vhosts: answers of `node_metrics` and `metrics`.
    is_per_object: without those that are sums over queues and channels."""
    found = _sums(node, vhosts)
    for row in RABBITMQ:
        if is_per_object and row.name.startswith(("queue_", "channel_")):
            continue
        name = PREFIX + row.name
        text.head(name, row.kind, row.meaning)
        text.sample(name, row.labels, found[row.source])


def _sums(node: Mapping[str, Any], vhosts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the sources of RABBITMQ."""
    found: dict[str, float] = defaultdict(int)
    for one in vhosts:
        _add_vhost(found, one["values"], one["totals"])
    values, about = node["values"], node["node"]
    found |= {
        "process.open_fds": _sum(values["process_open_fds"]),
        "process.rss": _sum(values["process_resident_memory_bytes"]),
        "process.max_fds": about["files_max"],
        "node.memory_bytes": about["memory_bytes"],
        "node.uptime_s": about["uptime_s"],
        "node.disk_free_bytes": values["disk_free_bytes"],
        "node.disk_free_limit_bytes": values["disk_free_limit_bytes"],
        "node.login_failed": values["handshakes_failed_total"].get("password", 0),
    }
    return found


def _add_vhost(
    found: dict[str, float], values: Mapping[str, Any], totals: Mapping[str, Any]
) -> None:
    for group in ("message_stats", "churn_rates", "object_totals", "dead_lettered"):
        for name, n in totals[group].items():
            found[f"{group}.{name}"] += n
    stats, messages = totals["message_stats"], values["messages"]
    unroutable = stats["drop_unroutable"] + stats["return_unroutable"]
    ready = sum(messages[state] for state in ("alpha", "beta", "gamma", "delta"))
    syncs = values["sync_seconds"]
    for name, n in {
        "message_stats.routed": stats["publish"] - unroutable,
        "message_stats.publish_confirm": stats["confirm"] + values["confirms_pending"],
        "messages.ready": ready,
        "messages.unacked": messages["unacked"],
        "messages.all": ready + messages["unacked"],
        "messages.alpha": messages["alpha"],
        "messages.out": ready - messages["alpha"],
        "message_bytes.ready": values["message_bytes"]["ready"],
        "message_bytes.unacked": values["message_bytes"]["unacked"],
        "publishers": values["publishers"],
        "unconfirmed": values["confirms_pending"],
        "traffic.recv_oct": totals["recv_oct"],
        "traffic.send_oct": totals["send_oct"],
        "log.syncs": sum(syncs[1:]),
        "log.sync_s": syncs[0],
        "log.bytes": values["log_bytes_total"],
        "paging.reads": values["page_in_runs_total"],
        "paging.read_bytes": values["paged_in_bytes_total"],
    }.items():
        found[name] += n
    for reason, is_on in values["publishers_blocked"].items():
        found[f"alarms.{reason}"] = max(found[f"alarms.{reason}"], is_on)


def _sum(rows: list[list[Any]]) -> float:
    return sum(float(row[-1]) for row in rows)
