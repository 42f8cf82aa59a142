"""The addresses of /metrics: who may ask, which formats there are, RabbitMQ's names."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import INTERNAL_ERROR
from penstock.http import metrics
from penstock.http.api import Api
from penstock.metric_table import HISTOGRAM, METRICS, RABBITMQ, Metric
from penstock.server.control import ControlError
from tests.helpers.asgi_client import Reply, ask
from tests.helpers.http_rig import EVERYTHING, HttpRig, users_facts
from tests.helpers.prometheus import families


def value_of(row: Metric) -> Any:
    """Some value of this row's form."""
    if row.kind == HISTOGRAM:
        return [1.5, *([1] * (len(row.bounds) + 1))]
    if row.labels[:2] == ("vhost", "process") or row.name == "build_info":
        return [[*(["x"] * len(row.labels)), 1]]
    return dict.fromkeys(("a",), 1) if row.own_labels else 1


TOTALS = {
    "message_stats": dict.fromkeys(
        (
            "publish", "confirm", "return_unroutable", "drop_unroutable", "deliver",
            "deliver_no_ack", "get", "get_no_ack", "get_empty", "deliver_get", "ack", "redeliver",
        ),
        7,
    ),
    "churn_rates": dict.fromkeys(
        (
            "connection_created", "connection_closed", "channel_created", "channel_closed",
            "queue_declared", "queue_created", "queue_deleted",
        ),
        3,
    ),
    "object_totals": dict.fromkeys(
        ("connections", "channels", "exchanges", "queues", "consumers"), 2
    ),
    "recv_oct": 5,
    "send_oct": 6,
    "dead_lettered": {"expired": 1, "rejected": 1, "maxlen": 1, "delivery_limit": 1},
}  # fmt: skip


def node_answer(*vhosts: str) -> Any:
    is_node = [row for row in METRICS if row.labels[:1] != ("vhost",) or "process" in row.labels]
    values = {row.name: value_of(row) for row in is_node}
    about = {
        "name": "penstock@here", "cluster_name": "ops", "uptime_s": 5.0, "memory_bytes": 1 << 30,
        "files_max": 4096,
    }  # fmt: skip
    return {"values": values, "vhosts": list(vhosts), "node": about}


def vhost_answer() -> Any:
    values = {
        row.name: value_of(row)
        for row in METRICS
        if row.labels[:1] == ("vhost",) and "process" not in row.labels
    }
    states = ("alpha", "beta", "gamma", "delta", "unacked", "delayed")
    values["messages"] = dict.fromkeys(states, 10)
    values["message_bytes"] = {"ready": 4, "unacked": 5}
    values["publishers_blocked"] = {"memory": 1, "disk": 0, "descriptors": 0}
    return {"values": values, "totals": TOTALS}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[HttpRig]:
    rig = HttpRig(tmp_path)
    rig.users.take(users_facts(guest=EVERYTHING, watcher=EVERYTHING, boss=EVERYTHING))
    rig.node.answers["node_metrics"] = node_answer("/", "b")
    rig.node.answers["metrics"] = lambda vhost: vhost_answer()
    yield rig
    rig.close()


def lines_of(reply: Reply) -> dict[str, str]:
    """Series -> value."""
    lines = reply.body.decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))  # type: ignore[misc]


def test_every_row_of_both_tables_is_there(rig: HttpRig) -> None:
    reply = rig.ask("/metrics", user="watcher")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    heads = {line.split()[2] for line in reply.body.decode().splitlines() if line[:6] == "# TYPE"}
    assert heads >= {f"penstock_{row.name}" for row in METRICS}
    assert heads >= {f"rabbitmq_{row.name}" for row in RABBITMQ}


def test_what_all_vhosts_have_together(rig: HttpRig) -> None:
    found = lines_of(rig.ask("/metrics", user="watcher"))
    assert found["rabbitmq_queue_messages_ready"] == "80"
    assert found["rabbitmq_connections"] == "4"
    assert found["rabbitmq_connections_opened_total"] == "6"
    assert found["rabbitmq_alarms_memory_used_watermark"] == "1"
    assert found["rabbitmq_alarms_free_disk_space_watermark"] == "0"
    received = 'rabbitmq_global_messages_received_total{protocol="amqp091"}'
    assert found[received] == "14"
    identity = [series for series in found if series.startswith("rabbitmq_identity_info")]
    assert identity == [
        'rabbitmq_identity_info{rabbitmq_node="penstock@here",rabbitmq_cluster="ops",'
        'rabbitmq_cluster_permanent_id="ops",rabbitmq_endpoint="aggregated"}'
    ]


def test_a_user_needs_a_tag(rig: HttpRig) -> None:
    assert rig.ask("/metrics", user=None).status == 401
    assert rig.ask("/metrics", user="guest").status == 403
    assert rig.ask("/metrics", user="boss").status == 200


def test_an_unknown_registry(rig: HttpRig) -> None:
    reply = rig.ask("/metrics/nope", user="watcher")
    assert (reply.status, reply.body) == (404, b"Unknown Registry")
    assert rig.ask("/metrics", user="watcher", method="DELETE").status == 405


def test_another_prefix(rig: HttpRig) -> None:
    found = lines_of(rig.ask("/metrics?prefix=mq", user="watcher"))
    assert 'mq_log_bytes_total{vhost="/"}' in found
    assert not [series for series in found if series.startswith("penstock_")]
    reply = rig.ask("/metrics?prefix=1-2", user="watcher")
    assert reply.status == 400
    assert "prefix: given '1-2', expected" in reply.json()["reason"]


def test_openmetrics_and_gzip_if_they_are_asked_for(rig: HttpRig) -> None:
    headers = {"accept": "application/openmetrics-text; version=1.0.0", "accept-encoding": "gzip"}
    reply = rig.ask("/metrics", user="watcher", headers=headers)
    assert reply.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert reply.headers["content-encoding"] == "gzip"
    text = gzip.decompress(reply.body).decode()
    assert text.endswith("# EOF\n")
    assert "# TYPE penstock_log_bytes counter\n" in text


def test_a_vhost_that_does_not_answer_leaves_its_rows_out(rig: HttpRig) -> None:
    down = ControlError(INTERNAL_ERROR, "INTERNAL_ERROR - vhost 'b' is down")
    rig.node.answers["metrics"] = lambda vhost: down if vhost == "b" else vhost_answer()
    found = lines_of(rig.ask("/metrics", user="watcher"))
    assert 'penstock_log_bytes_total{vhost="/"}' in found
    assert 'penstock_log_bytes_total{vhost="b"}' not in found


def test_at_a_port_of_its_own_nobody_needs_a_password_and_nothing_else_is_there(
    rig: HttpRig,
) -> None:
    async def scenario(app: Api) -> Reply:
        app.metrics_port = 15672  # that of the rig's requests
        assert (await ask(app, "/api/whoami")).status == 404
        assert (await ask(app, "/health", user=None)).status == 404
        return await ask(app, "/metrics", user=None)

    assert rig.run(scenario).status == 200


def test_what_is_read_and_staged_over_http_is_counted(rig: HttpRig) -> None:
    rig.filled("s", 10)
    rig.staging_bytes_max = 5_000
    staged = Path(rig.vhost_path("/")) / "staging" / "0"
    staged.mkdir(parents=True)
    (staged / "1.page").write_bytes(b"x" * 10_000)

    async def scenario(app: Api) -> Reply:
        found = await ask(app, "/api/streams/%2F/s/frames?from=2&to=9")
        assert found.status == 200
        assert (await ask(app, "/api/streams/%2F/s/frames?from=2", method="HEAD")).status == 200
        return await ask(app, "/metrics", user="watcher")

    found = lines_of(rig.run(scenario))
    assert found['penstock_stream_read_records_total{vhost="/",by="http"}'] == "7"
    assert int(found['penstock_stream_read_bytes_total{vhost="/",by="http"}']) > 700
    assert found['penstock_stream_read_records_total{vhost="/",by="arrow"}'] == "0"
    assert found['penstock_stream_read_records_total{vhost="/",by="a"}'] == "1"
    assert found['penstock_staging_bytes{vhost="/"}'] == "10000"
    assert found['penstock_staging_limit_bytes{vhost="/"}'] == "5000"
    assert found['penstock_staging_bytes{vhost="b"}'] == "0"


OBJECTS = {
    "queue_coarse_metrics": [[["a", 1, 2, 3]], [['b"', 4, 5, 9]]],
    "queue_consumer_count": [[["a", 7]]],
    "queue_metrics": [[["a", 7, 8, 9]]],
    "readers": [[["s", "r", 5, 1.5]]],
}


def objects(rig: HttpRig) -> None:
    """Have each vhost answer with what is asked for."""
    about = {"stamp": "1:1", "now_s": 1000.0, "is_part": False, "gone": []}
    rig.node.answers["object_metrics"] = lambda vhost, families, since: {
        **about, **{name: OBJECTS.get(name, []) for name in families}
    }  # fmt: skip


def test_detailed_has_the_families_that_are_asked_for(rig: HttpRig) -> None:
    objects(rig)
    address = "/metrics/detailed?family=queue_coarse_metrics&family=no_such&family=readers"
    found = lines_of(rig.ask(address + "&vhost=b", user="watcher"))
    assert {name: value for name, value in found.items() if "info" not in name} == {
        'rabbitmq_detailed_queue_messages_ready{vhost="b",queue="a"}': "1",
        'rabbitmq_detailed_queue_messages_ready{vhost="b",queue="b\\""}': "4",
        'rabbitmq_detailed_queue_messages_unacked{vhost="b",queue="a"}': "2",
        'rabbitmq_detailed_queue_messages_unacked{vhost="b",queue="b\\""}': "5",
        'rabbitmq_detailed_queue_messages{vhost="b",queue="a"}': "3",
        'rabbitmq_detailed_queue_messages{vhost="b",queue="b\\""}': "9",
        'penstock_detailed_reader_lag_records{vhost="b",stream="s",reader="r"}': "5",
        'penstock_detailed_reader_lag_seconds{vhost="b",stream="s",reader="r"}': "1.5",
    }


def test_detailed_without_a_family_has_only_who_answers(rig: HttpRig) -> None:
    found = lines_of(rig.ask("/metrics/detailed", user="watcher"))
    assert all("_info{" in name for name in found)
    assert len(found) == 2


def test_a_column_of_two_families_is_there_once(rig: HttpRig) -> None:
    objects(rig)
    address = "/metrics/detailed?family=queue_metrics&family=queue_consumer_count"
    text = rig.ask(address, user="watcher").body.decode()
    assert text.count("# TYPE rabbitmq_detailed_queue_consumers gauge") == 1
    families(text)


def test_requests_are_counted_by_the_pattern_of_their_address(rig: HttpRig) -> None:
    async def scenario(app: Api) -> Reply:
        await ask(app, "/api/whoami")
        await ask(app, "/api/queues/%2F/secret-name")
        await ask(app, "/no/such/secret-name", user=None)
        return await ask(app, "/metrics", user="watcher")

    reply = rig.run(scenario)
    found = lines_of(reply)
    assert found['penstock_http_requests_total{route="/api/whoami",status="200"}'] == "1"
    assert found['penstock_http_requests_total{route="other",status="404"}'] == "1"
    of_queue = [one for one in found if 'route="/api/queues/{vhost}/{queue}"' in one]
    assert len(of_queue) == 1
    assert b"secret-name" not in reply.body
    assert found["penstock_http_request_seconds_count"] == "3"


def test_per_object_has_queues_instead_of_their_sums(rig: HttpRig) -> None:
    objects(rig)
    text = rig.ask("/metrics/per-object", user="watcher").body.decode()
    families(text)
    assert 'rabbitmq_queue_messages_ready{vhost="/",queue="a"} 1' in text
    assert "\nrabbitmq_queue_messages_ready " not in text
    assert "\nrabbitmq_connections " in text
    assert 'penstock_reader_lag_records{vhost="/",stream="s",reader="r"} 5' in text


def test_a_long_text_is_sent_in_pieces(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    objects(rig)
    whole = rig.ask("/metrics/per-object", user="watcher").body
    monkeypatch.setattr(metrics, "PIECE_BYTES", 1000)
    reply = rig.ask("/metrics/per-object", user="watcher")
    assert len(reply.pieces) > 2
    assert int(reply.headers["content-length"]) == len(reply.body)
    families(reply.body.decode())
    assert names_of(reply.body) == names_of(whole)
    head = rig.ask("/metrics/per-object", method="HEAD", user="watcher")
    assert head.body == b""


def names_of(text: bytes) -> list[str]:
    return [line.partition(" ")[0] for line in text.decode().splitlines() if line[0] != "#"]
