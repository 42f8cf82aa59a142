"""Each column and field of what the broker itself answers, by the names that users see.

`status` and the lists that no vhost answers: vhosts, users, permissions and limits. Whether a value
is right in each case is tested elsewhere; here no name may be missing.
"""

import json
from collections.abc import Iterator

import pytest

from penstock.cli.main import main
from penstock.native import node_name
from penstock.operation_table import OPERATIONS
from tests.helpers.columns import COLUMNS
from tests.helpers.live_broker import LiveBroker
from tests.helpers.wire import open_channel


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path_factory.mktemp("rows") / "data") as broker:
        broker.control("set_topic_permissions", user="guest", exchange="x", write="w", read="r")
        broker.control("set_global_parameter", name="cluster_name", value="ops-lab")
        yield broker


def test_status_has_every_field(broker: LiveBroker) -> None:
    found = broker.control("status")
    expected = {
        "product": "Penstock", "durability": "disk", "host": broker.host, "port": broker.port,
        "data": str(broker.data), "log_directory": str(broker.data),
        "spill_directory": str(broker.data), "is_ready": True, "is_healthy": True, "problems": [],
        "kinds": [], "about": [], "advice": [],
        "half_open": 0, "http": None, "tls": None, "takes_clients": True,
        "listeners": {"amqp": broker.port},
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    others = {
        "version", "build", "now_ms", "uptime_s", "memory_bytes", "counted_bytes",
        "disk_free_bytes", "disk_free_limit_bytes", "connections", "accepted", "vhosts",
    }  # fmt: skip
    assert sorted(found) == sorted({*expected, *others})
    assert found["uptime_s"] >= 0
    assert found["accepted"] >= 0


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (
            "list_vhosts",
            [
                "name", "state", "since", "why", "pid", "error", "retry_in_s", "blocked_reason",
                "refused", "restarts", "memory_bytes", "counted_bytes", "connections",
                "depth_bytes", "rss_bytes", "returned_bytes", "takes_clients", "unserved",
                "description", "tags", "default_queue_type", "tracing", "cluster_state",
            ],
        ),
        ("list_global_parameters", ["name", "value"]),
        ("log_tail", ["time", "level", "process", "vhost", "text", "number"]),
        ("list_users", ["name", "tags"]),
        ("list_permissions", ["user", "vhost", "configure", "write", "read"]),
        ("list_topic_permissions", ["user", "vhost", "exchange", "write", "read"]),
        ("list_user_limits", ["user", "max-connections", "max-channels", "max-publish-rate"]),
        (
            "list_vhost_limits",
            ["vhost", "max-connections", "max-queues", "max-exchanges", "max-bindings"],
        ),
    ],
)  # fmt: skip
def test_each_list_has_its_columns(broker: LiveBroker, command: str, names: list[str]) -> None:
    rows = broker.control(command)
    first, others = COLUMNS[command]
    assert rows
    for row in rows:
        assert sorted(row) == sorted(names) == sorted({*first, *others})


def test_a_vhost_says_whether_its_firehose_is_on(broker: LiveBroker) -> None:
    def said() -> tuple[object, object]:
        (row,) = broker.control("list_vhosts")
        return row["tracing"], row["cluster_state"]

    state = {node_name(): "running"}
    assert said() == (False, state)
    broker.control("trace_on", "/")
    assert said() == (True, state)
    broker.control("restart_vhost", name="/")  # as in RabbitMQ, it is off after a restart
    assert said() == (False, state)
    broker.control("trace_on", "/")
    broker.control("trace_off", "/")
    assert said() == (False, state)


def test_permissions_of_a_user_have_their_columns(broker: LiveBroker) -> None:
    expected = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    assert broker.control("list_user_permissions", user="guest") == [expected]
    first, others = COLUMNS["list_user_permissions"]
    assert sorted(expected) == sorted({*first, *others})


def test_a_password_is_checked_as_at_a_login(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(broker.data)]
    assert main(["authenticate_user", "guest", "guest", *data]) == 0
    assert capsys.readouterr().out == "user 'guest' is authenticated\n"
    assert main(["authenticate_user", "guest", "wrong", *data]) == 77
    assert "login of user 'guest' is refused" in capsys.readouterr().err
    assert main(["delete_user", "nobody", *data]) == 67
    assert "no user 'nobody'" in capsys.readouterr().err


def test_topic_permissions_of_a_user_have_their_columns(broker: LiveBroker) -> None:
    expected = {"user": "guest", "vhost": "/", "exchange": "x", "write": "w", "read": "r"}
    assert broker.control("list_user_topic_permissions", user="guest") == [expected]
    first, others = COLUMNS["list_user_topic_permissions"]
    assert sorted(expected) == sorted({*first, *others})


def test_the_node_is_described_with_its_processes(broker: LiveBroker) -> None:
    found = broker.control("describe_node")
    assert sorted(found) == sorted(OPERATIONS["describe_node"].answer)
    supervisor, vhost = found["processes"]
    assert (supervisor["process"], supervisor["pid"]) == ("supervisor", found["os_pid"])
    assert (vhost["process"], vhost["vhost"], vhost["state"]) == ("vhost", "/", "running")
    for one in (supervisor, vhost):
        assert one["rss_bytes"] > 1 << 20
        assert one["cpu_s"] >= 0
        assert one["open_files"] > 3
    assert found["logins"]["failed"] == 0


def test_a_report_of_a_broker_that_runs(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.control("declare_queue", "/", queue="jobs")
    assert main(["report", "--data", str(broker.data)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["by_vhost"]["/"]["queues"]] == ["jobs"]
    assert found["users"][0]["name"] == "guest"
    assert not any(word in json.dumps(found) for word in ("password_hash", "scrypt"))
    assert main(["status", "--data", str(broker.data)]) == 0
    assert capsys.readouterr().out.startswith("healthy: 1 vhost of 1 opened, 0 connections\n")
    assert main(["health_check", "ports", "--data", str(broker.data)]) == 0


def test_a_connection_is_closed_with_a_reason(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(broker.data)]
    with open_channel(broker) as wire:
        (row,) = broker.control("list_connections")
        assert main(["close_connection", row["name"], "go home", *data]) == 0
        code, text = wire.closed()[:2]
    assert (code, text) == (320, "CONNECTION_FORCED - go home")
    assert main(["close_connection", row["name"], *data]) == 66
    assert "list_connections" in capsys.readouterr().err


def test_the_log_has_lines_of_a_process_that_has_ended(
    broker: LiveBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    before = broker.control("log_tail", number=1)[0]["number"]
    broker.control("declare_queue", "/", queue="full", arguments={"x-max-length": 1})
    broker.control("restart_vhost", name="/")
    rows = broker.control("log_tail", number=1000, after=before)
    assert {row["process"] for row in rows} == {"supervisor", "vhost"}
    assert {row["vhost"] for row in rows} == {None, "/"}
    assert [row["number"] for row in rows] == sorted(row["number"] for row in rows)
    assert any("serves, process" in row["text"] for row in rows)
    assert main(["log_tail", "--number", "1", "text", "--data", str(broker.data)]) == 0
    assert rows[-1]["text"] in capsys.readouterr().out
