"""Each column that a `list_*` command can print is in the rows that the vhost answers.

test_listings.py and others check what the values mean; here no column may be missing, and none may
be there that `penstock list_* --help` does not name.
"""

from typing import Any

import pytest

from penstock.access.permissions import everything
from penstock.broker.operations.listings import connection_info
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
    TxSelect,
    TxSelectOk,
)
from penstock.native import node_name
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
    assert values(two, "pid", "acks_uncommitted", "messages_uncommitted") == ["c0 (2)", 0, 0]


# What `rabbitmqctl help list_...` of RabbitMQ 3.10.8 names; the first ones it prints by default,
# with the name of a channel for its process.
RABBITMQ_COLUMNS = {
    "list_queues": ("name messages", """arguments auto_delete consumer_capacity
        consumer_utilisation consumers disk_reads disk_writes durable exclusive
        exclusive_consumer_pid exclusive_consumer_tag head_message_timestamp leader members memory
        message_bytes message_bytes_persistent message_bytes_ram message_bytes_ready
        message_bytes_unacknowledged messages_persistent messages_ram messages_ready
        messages_ready_ram messages_unacknowledged messages_unacknowledged_ram online owner_pid pid
        policy slave_pids state synchronised_slave_pids type"""),
    "list_connections": ("user peer_host peer_port state", """auth_mechanism channel_max channels
        client_properties connected_at frame_max host name peer_cert_issuer peer_cert_subject
        peer_cert_validity pid port protocol recv_cnt recv_oct send_cnt send_oct send_pend ssl
        ssl_cipher ssl_hash ssl_key_exchange ssl_protocol timeout vhost"""),
    "list_channels": ("name user consumer_count messages_unacknowledged", """acks_uncommitted
        confirm connection global_prefetch_count messages_uncommitted messages_unconfirmed number
        pid prefetch_count transactional vhost"""),
    "list_consumers": ("""queue_name channel consumer_tag ack_required prefetch_count active
        arguments""", "activity_status channel_pid"),
    "list_exchanges": ("name type", "arguments auto_delete durable internal policy"),
    "list_vhosts": (
        "name state since why", "cluster_state default_queue_type description tags tracing",
    ),
    "list_bindings": ("""source_name source_kind destination_name destination_kind routing_key
        arguments""", ""),
}  # fmt: skip


@pytest.mark.parametrize("command", RABBITMQ_COLUMNS)
def test_a_list_has_the_columns_of_rabbitmq_and_begins_with_the_same(command: str) -> None:
    first, others = RABBITMQ_COLUMNS[command]
    assert COLUMNS[command][0] == tuple(first.split())
    assert set(others.split()) <= set(COLUMNS[command][1])


def test_columns_of_rabbitmq_about_a_queue(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q")
    rig.put("q", b"1", b"22")
    client = rig.client(everything("ann"))
    client.pump()
    client.open(1)
    client.call(1, QueueDeclare(queue="mine", exclusive=True), QueueDeclareOk)
    client.call(1, BasicConsume(queue="mine", consumer_tag="t", exclusive=True), BasicConsumeOk)
    mine, one = rig.result("list_queues")
    assert values(mine, "owner_pid", "exclusive_consumer_pid", "exclusive_consumer_tag") == [
        "c0", "c0 (1)", "t",
    ]  # fmt: skip
    assert values(mine, "consumer_capacity", "consumer_utilisation") == [1.0, 1.0]
    assert (
        values(one, "owner_pid", "exclusive_consumer_pid", "exclusive_consumer_tag") == [None] * 3
    )
    assert values(one, "messages_persistent", "messages_ready_ram") == [2, 2]
    assert values(one, "message_bytes_persistent", "message_bytes_ram") == [3, 3]
    assert values(one, "messages_unacknowledged_ram", "head_message_timestamp") == [0, None]
    assert values(one, "pid", "slave_pids", "synchronised_slave_pids") == [None, [], []]
    assert values(one, "leader", "members", "online") == [None] * 3


def test_a_column_that_only_the_row_of_http_has_can_be_asked_for_alone(rig: OperationRig) -> None:
    rig.result("declare_queue", queue="q", arguments={"x-queue-type": "stream"})
    (row,) = rig.result("list_queues", columns=["name", "members"], sort="members")
    assert row == {"name": "q", "members": [node_name()]}


def test_list_connections(rig: OperationRig) -> None:
    client = rig.client(everything("ann"))
    client.open(1)
    row = connection_info(client.handler.info())
    first, others = COLUMNS["list_connections"]
    assert sorted(row) == sorted({*first, *others})
    assert values(row, "name", "user", "vhost", "channels", "state") == [
        "c0", "ann", "/", 1, "running",
    ]  # fmt: skip
    assert values(row, "pid", "protocol", "auth_mechanism") == ["c0", "AMQP 0-9-1", "PLAIN"]
    assert values(row, "send_pend", "ssl_hash", "ssl_key_exchange") == [0, "", ""]
    for name in ("recv_cnt", "send_cnt"):
        assert isinstance(row[name], int), name
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
    assert values(row, "channel_pid", "activity_status") == ["c0 (1)", "up"]
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
