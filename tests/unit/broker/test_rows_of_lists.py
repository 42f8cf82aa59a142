"""Each column that a `list_*` command can print is in the rows that the vhost answers.

test_listings.py and others check what the values mean; here no column may be missing, and none may
be there that `penstock list_* --help` does not name.
"""

from typing import Any

import pytest

from penstock.access.permissions import everything
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
    TxSelect,
    TxSelectOk,
)
from tests.helpers.columns import COLUMNS
from tests.helpers.operation_rig import OperationRig
from tests.helpers.staged_rig import QUERY, StagedRig, plain


@pytest.fixture
def rig() -> OperationRig:
    return OperationRig()


def check_columns(rig: OperationRig, command: str) -> list[dict[str, Any]]:
    """The rows; each has exactly the columns of the command."""
    rows: list[dict[str, Any]] = rig.result(command)
    first, others = COLUMNS[command]
    for row in rows:
        assert sorted(row) == sorted({*first, *others}), command
    assert rows
    return rows


def values(row: dict[str, Any], *names: str) -> list[Any]:
    return [row[name] for name in names]


def test_the_counters_of_a_queue_in_list_queues(rig: OperationRig) -> None:
    arguments = {"x-max-length": 2, "x-alert-count-up": 2, "x-alert-count-down": 1}
    rig.result("declare_queue", queue="q", arguments=arguments)
    rig.put("q", b"1", b"2", b"3")
    (row,) = rig.result("list_queues")
    assert values(row, "maxlen", "rejected", "expired", "delivery_limit") == [1, 0, 0, 0]
    assert values(row, "dead_letters_dropped", "alerts_raised") == [0, "count"]
    assert values(row, "q1", "q2", "q3", "q4", "set_aside", "leased") == [0, 0, 0, 2, 0, 0]
    assert values(row, "disk_reads", "disk_writes") == [0, 0]
    assert values(row, "in_per_s", "out_per_s", "ack_in_per_s", "ack_out_per_s") == [0, 0, 0, 0]
    assert values(row, "mode", "why") == ["default", ""]
    assert row["message_stats"]["publish"] == 3


def test_a_stream_in_list_queues_has_partitions_and_readers(rig: OperationRig) -> None:
    arguments = {"x-queue-type": "stream", "x-partitions": 3}
    rig.result("declare_queue", queue="s", arguments=arguments)
    (row,) = rig.result("list_queues")
    assert values(row, "partitions", "readers") == [3, 0]


def test_list_channels(rig: OperationRig) -> None:
    client = rig.client(everything("ann"))
    client.pump()
    client.open(1)
    client.open(2)
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    client.call(2, TxSelect(), TxSelectOk)
    client.call(2, BasicQos(prefetch_count=3, global_=True), BasicQosOk)
    one, two = check_columns(rig, "list_channels")
    assert values(one, "name", "connection", "number", "vhost", "user", "state") == [
        "c0 (1)", "c0", 1, "/", "ann", "running",
    ]  # fmt: skip
    assert values(one, "confirm", "transactional", "messages_unconfirmed") == [True, False, 0]
    assert values(two, "confirm", "transactional") == [False, True]
    assert values(two, "consumer_count", "messages_unacknowledged") == [0, 0]
    assert values(two, "prefetch_count", "global_prefetch_count") == [0, 3]


def test_list_connections(rig: OperationRig) -> None:
    client = rig.client(everything("ann"))
    client.open(1)
    (row,) = [client.handler.info()]
    first, others = COLUMNS["list_connections"]
    assert sorted(row) == sorted({*first, *others})
    assert values(row, "name", "user", "vhost", "channels", "state") == [
        "c0", "ann", "/", 1, "running",
    ]  # fmt: skip
    for name in ("recv_oct", "send_oct", "frame_max", "channel_max", "timeout", "connected_at"):
        assert isinstance(row[name], int), name
    for name in ("peer_host", "host"):
        assert isinstance(row[name], str), name
    assert {type(row[name]) for name in ("peer_port", "port")} == {int}
    assert isinstance(row["client_properties"], dict)


def test_list_consumers(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    client = rig.client(everything("ann"))
    client.open(1)
    asked = BasicConsume(queue="q", consumer_tag="t", arguments={"x-priority": 7})
    client.call(1, asked, BasicConsumeOk)
    rig.put("q", b"1")
    rig.turn()
    (row,) = check_columns(rig, "list_consumers")
    assert values(row, "connection", "channel", "user", "priority", "delivered", "unacked") == [
        "c0", "c0 (1)", "ann", 7, 1, 1,
    ]  # fmt: skip
    assert values(row, "queue_name", "consumer_tag", "ack_required", "prefetch_count") == [
        "q", "t", True, 0,
    ]  # fmt: skip
    assert values(row, "exclusive", "active", "arguments") == [False, True, {"x-priority": 7}]


def test_list_bindings_and_exchanges(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    (row,) = check_columns(rig, "list_bindings")
    assert values(row, "source_kind", "destination_kind") == ["exchange", "queue"]
    assert values(row, "source_name", "destination_name", "routing_key") == ["", "q", "q"]
    check_columns(rig, "list_exchanges")


def test_list_alerts(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q", arguments={"x-alert-count-up": 2})
    rig.put("q", b"1", b"2", b"3")
    (row,) = check_columns(rig, "list_alerts")
    assert values(row, "queue", "kind", "is_on", "threshold") == ["q", "count_up", True, 2]
    assert row["count"] == 1
    assert row["value"] >= 2
    assert row["first_time"] == row["time"]
    assert "2" in row["text"]


def test_list_leases(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    rig.put("q", b"12", b"34", b"56")
    rig.result("lease_queue", queue="q", reader="r", messages=2)
    (row,) = check_columns(rig, "list_leases")
    assert values(row, "name", "reader", "first", "head", "bytes") == ["q", "r", 0, 2, 4]
    assert values(row, "ready", "ready_bytes", "is_old") == [1, 2, False]
    assert row["since_ms"] > 0
    assert row["path"]
    assert row["stream_id"]
    assert row["last_time_us"] > 0


def test_list_batches() -> None:
    rig = StagedRig()
    rig.result("declare_queue", queue="q")
    rig.committed(0, rig.stage(0, plain("q", b"12", b"34")))
    (row,) = check_columns(rig, "list_batches")
    assert values(row, "query", "batch", "rows", "is_done", "waits_for") == [
        QUERY, 0, 2, True, row["waits_for"],
    ]  # fmt: skip
    assert values(row, "target", "owner", "pages") == [{"queue": "q"}, "operator", 1]
    assert row["bytes"] >= 4
    assert row["time_us"] > 0
    assert {type(row[name]) for name in ("page", "frame")} == {int}
