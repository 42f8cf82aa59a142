"""The files for Prometheus and Grafana in contrib/, against the table of metrics."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from penstock.metric_table import HISTOGRAM, METRICS, RABBITMQ
from tests.helpers.prometheus import promtool

ROOT = Path(__file__).parent.parent.parent
CONTRIB = ROOT / "contrib"
NAME = re.compile(r"\b(?:penstock|rabbitmq)_\w+")
# What panels of RabbitMQ-Overview (Grafana 10991) read, of its revisions since 2021.
OVERVIEW = (
    "queue_messages_ready", "queue_messages_unacked", "queues", "connections", "channels",
    "channel_consumers", "global_publishers", "global_consumers",
    "global_messages_received_total", "global_messages_received_confirm_total",
    "global_messages_routed_total", "global_messages_confirmed_total",
    "global_messages_unroutable_dropped_total", "global_messages_unroutable_returned_total",
    "global_messages_delivered_total", "global_messages_delivered_consume_auto_ack_total",
    "global_messages_delivered_consume_manual_ack_total",
    "global_messages_delivered_get_auto_ack_total",
    "global_messages_delivered_get_manual_ack_total", "global_messages_redelivered_total",
    "global_messages_acknowledged_total", "global_messages_get_empty_total",
    "channel_messages_published_total", "channel_messages_redelivered_total",
    "channel_messages_delivered_total", "channel_messages_delivered_ack_total",
    "channel_get_total", "channel_get_ack_total", "channel_messages_acked_total",
    "channel_messages_confirmed_total", "channel_messages_unconfirmed",
    "channel_messages_unroutable_returned_total", "channel_messages_unroutable_dropped_total",
    "channel_get_empty_total", "connections_opened_total", "connections_closed_total",
    "channels_opened_total", "channels_closed_total", "queues_declared_total",
    "queues_created_total", "queues_deleted_total", "process_resident_memory_bytes",
    "resident_memory_limit_bytes", "disk_space_available_bytes",
    "disk_space_available_limit_bytes", "process_open_fds", "process_max_fds",
    "process_open_tcp_sockets", "process_max_tcp_sockets", "erlang_uptime_seconds",
)  # fmt: skip


def known() -> set[str]:
    """Every name of a series on /metrics."""
    names = {f"rabbitmq_{row.name}" for row in RABBITMQ}
    names |= {"rabbitmq_identity_info", "rabbitmq_build_info"}
    for row in METRICS:
        ends = ("_bucket", "_sum", "_count") if row.kind == HISTOGRAM else ("",)
        names |= {f"penstock_{row.name}{end}" for end in ends}
    return names


def expressions(value: Any) -> list[str]:
    """Every expression in a dashboard."""
    if isinstance(value, list):
        return [one for inner in value for one in expressions(inner)]
    if isinstance(value, dict):
        own = [value[key] for key in ("expr", "query") if isinstance(value.get(key), str)]
        return own + [one for inner in value.values() for one in expressions(inner)]
    return []


def test_the_dashboard_of_rabbitmq_finds_each_of_its_names() -> None:
    assert {f"rabbitmq_{name}" for name in OVERVIEW} <= known()


@pytest.mark.parametrize("file", ["grafana.json", "alerts.yml"])
def test_every_name_is_one_of_the_table(file: str) -> None:
    text = (CONTRIB / file).read_text(encoding="utf-8")
    assert set(NAME.findall(text)) <= known()


def test_prometheus_understands_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    dashboard = json.loads((CONTRIB / "grafana.json").read_text(encoding="utf-8"))
    found = [one for one in expressions(dashboard["panels"]) if NAME.search(one)]
    assert len(found) > 30
    rules = [
        {"record": f"a:{n}", "expr": one.replace("$__rate_interval", "1m")}
        for n, one in enumerate(found)
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    checked = promtool("check", "rules", str(path))
    assert checked.returncode == 0, checked.stderr


def test_each_alert_happens_when_it_is_to() -> None:
    file = str(ROOT / "tests" / "contrib" / "alerts_test.yml")
    found = promtool("test", "rules", file)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_configuration_is_one_of_prometheus() -> None:
    found = promtool("check", "config", "--syntax-only", str(CONTRIB / "prometheus.yml"))
    assert found.returncode == 0, found.stderr


def test_each_alert_is_in_the_manual() -> None:
    page = (ROOT / "docs" / "guides" / "monitoring.md").read_text(encoding="utf-8")
    alerts = re.findall(r"alert: (\w+)", (CONTRIB / "alerts.yml").read_text(encoding="utf-8"))
    assert [one for one in alerts if f"`{one}`" not in page] == []
