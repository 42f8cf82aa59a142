"""The operation `metrics`: what a vhost counts for /metrics."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.access.permissions import Identity
from penstock.broker.operations.metrics import OBJECTS, QUEUES
from penstock.codec.spec import (
    BasicConsume,
    BasicConsumeOk,
    BasicNack,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
)
from penstock.metric_table import FAMILIES, HISTOGRAM, METRICS
from tests.helpers.operation_rig import OperationRig

ROWS = {row.name: row for row in METRICS}


def test_every_value_has_a_row_and_its_form() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", durable=True)
    rig.put("a", b"1")
    rig.turn()
    found = rig.result("metrics")["values"]
    assert set(found) <= set(ROWS)
    for name, value in found.items():
        row = ROWS[name]
        if row.kind == HISTOGRAM:
            assert len(value) == len(row.bounds) + 2, name
        else:
            assert isinstance(value, dict) == bool(row.own_labels), name
    own = [row for row in METRICS if row.labels == ("vhost",) and row.group != "HTTP"]
    missing = {row.name for row in own if row.name not in found}
    assert missing == {"loop_turn_seconds", "loop_delay_seconds"}, "they are of a process"


def test_messages_by_state_are_those_of_the_last_round() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", durable=True)
    for _ in range(3):
        rig.put("a", b"body")
    rig.tick(3.0)
    found = rig.result("metrics")["values"]
    assert found["messages"]["alpha"] == 3
    assert found["message_bytes"]["ready"] == 12
    assert found["backlog_as_alphas_bytes"] > 12
    assert found["oldest_ready_seconds"] == 3
    rig.result("purge_queue", queue="a")
    rig.tick(3.0)
    assert rig.result("metrics")["values"]["oldest_ready_seconds"] == 0


def test_messages_of_a_queue_that_nobody_has_opened_are_in_delta() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", durable=True)
    for _ in range(3):
        rig.put("a", b"body")
    rig.turn()
    rig.restart()
    assert rig.result("metrics")["values"]["messages"]["delta"] == 3


def test_records_of_the_log_by_their_kinds() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", durable=True)
    before = rig.result("metrics")["values"]["log_records_total"]
    for _ in range(3):
        rig.put("a", b"body")
    rig.turn()
    rig.result("purge_queue", queue="a")
    after = rig.result("metrics")["values"]["log_records_total"]
    assert after["publish"] - before["publish"] == 3
    assert after["purge"] - before.get("purge", 0) == 1
    assert sum(after.values()) == rig.vhost.engine.log.appended_records


def test_each_sync_and_checkpoint_is_measured() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", durable=True)
    for n in range(3):
        rig.put("a", b"%d" % n)
        rig.turn()
    rig.vhost.engine.checkpoint()
    found = rig.result("metrics")["values"]
    engine = rig.vhost.engine
    assert sum(found["sync_seconds"][1:]) == engine.log.syncs
    durable = engine.log.appended_records - found["log_lag_lsn"]
    assert found["log_group_records"][0] == durable
    assert found["checkpoints_total"]["asked"] == engine.checkpoints.count
    assert sum(found["checkpoint_seconds"][1:]) == engine.checkpoints.count
    assert found["log_live_bytes"] == 0


def test_what_is_paged_out_and_read_back_is_counted() -> None:
    rig = OperationRig()
    limit = {"x-queue-max-memory-bytes": 100_000}
    rig.result("declare_queue", queue="a", durable=True, arguments=limit)
    for n in range(400):
        rig.put("a", b"%04d" % n + b"x" * 1000)
        rig.turn()
    found = rig.result("metrics")["values"]
    assert found["paged_out_total"]["gamma"] > 200
    assert found["paged_out_bytes_total"] == 1004 * found["paged_out_total"]["gamma"]
    client = rig.client().open()
    client.call(1, BasicConsume(queue="a", consumer_tag="t", no_ack=True), BasicConsumeOk)
    rig.turn()
    assert len(client.bodies()) == 400
    found = rig.result("metrics")["values"]
    # What was delivered and not yet acknowledged may leave RAM too, and is not read again.
    assert 200 < found["paged_in_total"] <= found["paged_out_total"]["gamma"]
    assert found["paged_in_bytes_total"] == 1004 * found["paged_in_total"]
    assert sum(found["page_in_seconds"][1:]) == found["page_in_runs_total"] > 0


def test_a_confirm_is_measured_once_for_each_turn() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", durable=True)
    client = rig.client().open()
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    for _ in range(5):
        client.publish(1, "", "a", b"x")
    rig.turn()
    total, *counts = rig.result("metrics")["values"]["confirm_seconds"]
    assert sum(counts) == 1
    assert total >= 0


def test_dead_letters_are_counted_by_reason_and_survive_their_queue() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", arguments={"x-max-length": 1})
    rig.put("a", b"1")
    rig.put("a", b"2")
    rig.turn()
    rig.result("delete_queue", queue="a")
    found = rig.result("metrics")["values"]
    assert found["dead_lettered_total"]["maxlen"] == 1


def test_only_watchers_may_ask() -> None:
    rig = OperationRig()
    client = rig.client(Identity("ann", frozenset({"management"}), "", "", "")).open()
    assert rig.refusal("metrics", client.handler.channels[1]).code == 403


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/d/wal/0000000001.wal", "log"), ("/d/queues/x/7.qi", "index"), ("/d/s/1.rdq", "store"),
        ("/d/streams/a/0.page", "page"), ("/d/checkpoint-4", "checkpoint"), ("a row", "other"),
    ],
)  # fmt: skip
def test_damage_is_counted_by_the_kind_of_its_file(file: str, kind: str) -> None:
    rig = OperationRig()
    rig.vhost.event("corruption", f"queue 'a': {file}: at byte 7: what was never written")
    assert rig.result("metrics")["values"]["checksum_failures_total"] == {kind: 1}


def test_the_time_for_which_publishers_wait_is_counted_by_reason() -> None:
    rig = OperationRig()
    rig.vhost.monitor.is_alarmed = True
    rig.vhost.update_alarms()
    rig.clock.advance(5.0)
    found = rig.result("metrics")["values"]
    assert found["publishers_blocked"]["memory"] == 1
    assert found["publishers_blocked"]["disk"] == 0
    assert found["blocked_seconds_total"]["memory"] == 5.0
    rig.vhost.monitor.is_alarmed = False
    rig.vhost.update_alarms()
    rig.clock.advance(5.0)
    assert rig.result("metrics")["values"]["blocked_seconds_total"] == {"memory": 5.0}


def rows_of(rig: OperationRig, family: str) -> list[list[object]]:
    found = rig.result("object_metrics", families=[family, "no_such_family"])
    assert set(found) == {family, "stamp", "now_s", "is_part", "gone"}
    return [list(row) for some in found[family] for row in some]


def test_each_family_has_a_row_with_a_number_for_each_column() -> None:
    rig = OperationRig()
    assert {*QUEUES, *OBJECTS} == set(FAMILIES)
    assert set(QUEUES) == {name for name, family in FAMILIES.items() if family.is_of_queues}
    rig.result("declare_queue", queue="a", durable=True)
    stream = {"x-queue-type": "stream"}
    rig.result("declare_queue", queue="s", durable=True, arguments=stream)
    rig.put("a", b"12345")
    rig.turn()
    rig.result("lease_queue", queue="a", reader="r")
    rig.result("set_stream_reader", queue="s", reader="r", offsets={"0": 0})
    rig.client().open()
    for name, family in FAMILIES.items():
        rows = rows_of(rig, name)
        assert rows, name
        assert {len(row) for row in rows} == {len(family.labels) + len(family.columns)}, name
    assert rows_of(rig, "queue_coarse_metrics") == [["a", 0, 1, 1], ["s", 0, 0, 0]]
    assert rows_of(rig, "readers") == [["s", "r", 0, 0]]
    assert rows_of(rig, "leases")[0][:3] == ["a", "r", 1]


def test_a_queue_that_nobody_has_opened_has_its_lengths() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", durable=True)
    rig.put("a", b"1")
    rig.turn()
    rig.restart()
    assert rows_of(rig, "queue_coarse_metrics") == [["a", 1, 0, 1]]
    assert rows_of(rig, "queue_metrics") == [["a", 0, 1, 0]]


def test_many_queues_are_returned_in_slices() -> None:
    rig = OperationRig()
    for n in range(150):
        rig.result("declare_queue", queue=f"q{n:03}")
    asked = rig.ask("object_metrics", families=["queue_consumer_count"])
    rig.turn()
    found = asked.result["queue_consumer_count"]
    assert [len(some) for some in found] == [64, 64, 22]


def values(rig: OperationRig) -> dict[str, Any]:
    found: dict[str, Any] = rig.result("metrics")["values"]
    return found


def test_what_comes_back_and_what_is_beyond_a_length_is_counted() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", arguments={"x-max-length": 2})
    for body in (b"1", b"2", b"3"):
        rig.put("a", body)
    rig.turn()
    assert values(rig)["messages_dropped_total"] == 1
    client = rig.client().open()
    client.call(1, BasicConsume(queue="a", consumer_tag="t"), BasicConsumeOk)
    rig.turn()
    client.send(1, BasicNack(delivery_tag=1, multiple=False, requeue=False))
    assert values(rig)["messages_requeued_total"] == 0
    client.send(1, BasicNack(delivery_tag=2, multiple=False, requeue=True))
    rig.turn()
    found = values(rig)
    assert found["messages_requeued_total"] == 1
    assert found["messages_dropped_total"] == 1


def test_what_a_stream_gets_and_gives_is_counted() -> None:
    rig = OperationRig()
    stream = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 4096}
    rig.result("declare_queue", queue="s", durable=True, arguments=stream)
    for _ in range(20):
        rig.put("s", b"x" * 1000)
    rig.turn()
    found = values(rig)
    assert found["stream_bytes_total"] > 20_000
    client = rig.client().open()
    client.call(1, BasicQos(prefetch_count=100), BasicQosOk)
    start = {"x-stream-offset": "first"}
    client.call(1, BasicConsume(queue="s", consumer_tag="t", arguments=start), BasicConsumeOk)
    rig.turn()
    found = values(rig)
    assert found["stream_read_records_total"] == {"amqp": 20}
    assert found["stream_read_bytes_total"] == {"amqp": 20_000}
    assert found["stream_retained_away_total"] == 0
    broker_stream = rig.vhost.streams.all()[0]
    broker_stream.options = replace(broker_stream.options, max_records=1)
    rig.vhost.engine.sync()
    rig.turn()
    assert broker_stream.retain() > 0
    rig.turn()
    assert values(rig)["stream_retained_away_total"] == broker_stream.parts[0].first_offset > 0


def test_commits_and_releases_of_leases_are_counted() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a", durable=True)
    for _ in range(3):
        rig.put("a", b"x")
    rig.turn()
    rig.result("lease_queue", queue="a", reader="r")
    rig.result("commit_lease", queue="a", reader="r", offset=1)
    rig.result("release_lease", queue="a", reader="r")
    found = values(rig)
    assert found["lease_commits_total"] == 1
    assert found["leases_released_total"] == 2


def test_ages_of_a_queue() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a")
    rig.put("a", b"1", b"2")
    rig.turn()
    rig.clock.advance(40.0)
    client = rig.client().open()
    client.call(1, BasicQos(prefetch_count=1), BasicQosOk)
    client.call(1, BasicConsume(queue="a", consumer_tag="t"), BasicConsumeOk)
    rig.turn()
    rig.tick(1.0)
    rig.clock.advance(20.0)
    ((name, since_s, unacked_since_s, slowest_s),) = rows_of(rig, "queue_age")
    assert isinstance(since_s, int)
    assert isinstance(unacked_since_s, float)
    now_s = rig.clock.wall_ms() / 1000
    assert (name, int(now_s) - since_s, slowest_s) == ("a", 61, 0.0)
    assert now_s - unacked_since_s == pytest.approx(20, abs=1.0)
    total, *counts = values(rig)["queue_wait_seconds"]
    assert (total, sum(counts)) == (40.0, 1)


def test_how_old_is_what_a_reader_has_not_read() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="s", durable=True, arguments={"x-queue-type": "stream"})
    rig.put("s", b"1")
    rig.turn()
    rig.clock.advance(100.0)
    rig.put("s", b"2")
    rig.turn()
    rig.clock.advance(7.0)
    rig.result("set_stream_reader", queue="s", reader="quick", offsets={"0": 1})
    assert values(rig)["reader_lag_max_seconds"] == pytest.approx(7)
    rig.result("set_stream_reader", queue="s", reader="slow", offsets={"0": 0})
    found = values(rig)
    assert found["reader_lag_max_seconds"] == pytest.approx(107)
    assert found["reader_lag_max_records"] == 2
    rows = {row[1]: row[2:] for row in rows_of(rig, "readers")}
    assert rows == {"quick": [1, pytest.approx(7)], "slow": [2, pytest.approx(107)]}


def test_what_each_channel_and_connection_did() -> None:
    rig = OperationRig()
    rig.result("declare_queue", queue="a")
    client = rig.client().open()
    client.call(1, ConfirmSelect(), ConfirmSelectOk)
    client.publish(1, "", "a", b"x")
    client.publish(1, "", "nowhere", b"x")
    rig.turn()
    client.call(1, BasicConsume(queue="a", consumer_tag="t"), BasicConsumeOk)
    rig.turn()
    name = client.handler.name
    assert [f"{name} (1)", 2, 2, 0, 1] in rows_of(rig, "channel_exchange_metrics")
    assert [f"{name} (1)", 1, 0, 0, 0, 0, 0, 0] in rows_of(rig, "channel_queue_metrics")
    assert [f"{name} (1)", 1, 1, 0, 0, 0, 0, 0] in rows_of(rig, "channel_metrics")
    received, sent = client.handler.received_bytes, client.handler.sent_bytes
    assert [name, received, sent] in rows_of(rig, "connection_coarse_metrics")
    assert name in [row[0] for row in rows_of(rig, "connection_metrics")]


def test_after_the_first_answer_only_queues_that_have_changed_come() -> None:
    rig = OperationRig()
    for name in ("a", "b", "c"):
        rig.result("declare_queue", queue=name)
    rig.result("declare_queue", queue="s", arguments={"x-queue-type": "stream"})
    rig.tick()

    def asked(since: str) -> tuple[list[str], dict[str, Any]]:
        found = rig.result("object_metrics", families=["queue_coarse_metrics"], since=since)
        return sorted(row[0] for some in found["queue_coarse_metrics"] for row in some), found

    names, first = asked("")
    assert (names, first["is_part"], first["gone"]) == (["a", "b", "c", "s"], False, [])
    rig.put("b", b"1")
    rig.result("delete_queue", queue="c")
    names, second = asked(first["stamp"])
    assert (names, second["is_part"], second["gone"]) == (["b", "s"], True, ["c"])
    rig.clock.advance(1.0)
    rig.restart()
    for since in (second["stamp"], "x:1", "1", ":"):
        names, again = asked(since)
        assert not again["is_part"], since
