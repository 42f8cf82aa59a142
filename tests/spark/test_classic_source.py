"""Classic queues as sources, on a live broker: every message once, beside all else that a queue
does. (What is killed: test_classic_kills.py.)"""

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pika
import pytest

pytest.importorskip("pyspark")

import penstock
from penstock.server.control import ControlError
from penstock.spark import LagListener
from tests.helpers.live_broker import LiveBroker, wait_until
from tests.spark import lake_job
from tests.spark.classic_queue import (
    READER,
    Seen,
    ask,
    counts,
    failure,
    fill,
    numbers,
    run,
    started,
    where,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.limits]


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return f"classic.{request.node.name}"


def pika_channel(broker: LiveBroker) -> Any:
    """Without heartbeats: nobody looks at it while Spark works."""
    connection = pika.BlockingConnection(pika.URLParameters(f"{broker.url}?heartbeat=0"))
    return connection.channel()


@pytest.mark.parametrize("access", ["file", "network"])
def test_a_queue_becomes_parquet_and_is_acknowledged(
    spark: "SparkSession", broker: LiveBroker, queue: str, access: str, tmp_path: Path
) -> None:
    fill(broker, queue, numbers(0, 5000))
    options = where(broker, queue, access=access, minPartitions="2")
    lake, state = tmp_path / "lake", tmp_path / "state"
    lake_job.finish(lake_job.start(spark, options, lake, state))
    total = sum(range(5000))
    assert lake_job.lake_facts(spark, lake) == (5000, 5000, total, total)
    assert counts(broker, queue) == (0, 0)
    fill(broker, queue, numbers(5000, 5100))
    lake_job.finish(lake_job.start(spark, options, lake, state))
    total = sum(range(5100))
    assert lake_job.lake_facts(spark, lake) == (5100, 5100, total, total)
    assert counts(broker, queue) == (0, 0)


def test_columns_of_a_message(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    channel = pika_channel(broker)
    channel.exchange_declare("classic.x", "topic")
    channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 5})
    channel.queue_bind(queue, "classic.x", "#")
    for priority in (1, 5):
        properties = pika.BasicProperties(
            message_id=f"m{priority}", headers={"n": priority, "who": "me"}, priority=priority,
            content_type="text/plain",
        )  # fmt: skip
        channel.basic_publish("classic.x", f"key.{priority}", b"%d" % priority, properties)
    channel.connection.close()
    seen: list[Any] = []
    options = where(broker, queue, includeHeaders="true", includeProperties="true")
    run(spark, options, tmp_path / "state", lambda rows, _: seen.extend(rows.collect()))
    first, second = sorted(seen, key=lambda row: row.offset)
    assert (first.queue, first.partition, first.offset, bytes(first.value)) == (queue, 0, 0, b"5")
    assert (first.exchange, first.routing_key, first.message_id) == ("classic.x", "key.5", "m5")
    assert first.headers == {"n": "5", "who": "me"}
    assert first.properties["content_type"] == "text/plain"
    assert (second.offset, bytes(second.value)) == (1, b"1")
    assert counts(broker, queue) == (0, 0)


def test_two_queries_and_a_consumer_share_no_message(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    fill(broker, queue, numbers(0, 6000))
    consumed: list[int] = []
    channel = pika_channel(broker)
    # Each of the three has something before any of them goes on.
    all_have = threading.Barrier(3)

    def wait_for_others(batch: int) -> None:
        if batch == 0:
            all_have.wait(240)

    def consume() -> None:
        for method, _, body in channel.consume(queue, inactivity_timeout=0.5):
            if method is None and consumed:
                break
            if method is None:
                continue
            consumed.append(int(body))
            channel.basic_ack(method.delivery_tag)
            if len(consumed) == 1:
                all_have.wait(240)
            if len(consumed) == 1000:
                break
        channel.connection.close()

    one, two = Seen(wait_for_others), Seen(wait_for_others)
    beside = threading.Thread(target=consume)
    queries = [
        started(
            spark, where(broker, queue, readerId=name, maxOffsetsPerTrigger="700"),
            tmp_path / name, seen,
        )
        for name, seen in (("one", one), ("two", two))
    ]  # fmt: skip
    channel.basic_qos(prefetch_count=1000)
    beside.start()
    for query in queries:
        lake_job.finish(query)
    beside.join()
    # What the consumer had been sent and did not take is ready again.
    wait_until(lambda: counts(broker, queue)[1] == 0, "what the consumer left")
    run(spark, where(broker, queue, readerId="one"), tmp_path / "one", one)
    assert sorted(one.numbers + two.numbers + consumed) == list(range(6000))
    assert one.numbers
    assert two.numbers
    assert consumed
    assert counts(broker, queue) == (0, 0)


def test_a_query_that_is_started_again_does_not_wait_for_its_own_reader(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    """Spark ends the process of its reader with SIGTERM, which nothing handled: the reader was
    taken until readerTimeout had passed."""
    options, seen = where(broker, queue, readerTimeout="1h"), Seen()
    for first in (0, 100):
        fill(broker, queue, numbers(first, first + 100))
        run(spark, options, tmp_path / "state", seen)
    assert seen.numbers == list(range(200))


def test_a_second_query_with_the_reader_of_one_that_runs_fails_at_its_start(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    """Both read the same messages before: rows came twice, and one query failed later."""
    fill(broker, queue, numbers(0, 900))
    options = where(broker, queue, maxOffsetsPerTrigger="300", readerTimeout="3s")
    has_begun, may_go_on = threading.Event(), threading.Event()

    def hold(batch: int) -> None:
        has_begun.set()
        assert may_go_on.wait(240)

    first, second = Seen(hold), Seen()
    query = started(spark, options, tmp_path / "one", first)
    try:
        assert has_begun.wait(240)
        told = failure(spark, options, tmp_path / "two", second)
    finally:
        may_go_on.set()
    assert "ReaderTakenError" in told
    assert f"of queue '{queue}' belongs to another running query" in told
    lake_job.finish(query)
    assert second.numbers == []
    assert first.numbers == list(range(900))
    fill(broker, queue, numbers(900, 1000))
    run(spark, options, tmp_path / "two", second)  # the first has ended
    assert second.numbers == list(range(900, 1000))
    assert counts(broker, queue) == (0, 0)


def test_a_query_that_lost_its_reader_is_fenced(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    """It was cut off for longer than readerTimeout, and another program took over."""
    fill(broker, queue, numbers(0, 600))
    options = where(broker, queue, maxOffsetsPerTrigger="300", readerTimeout="300s")
    who = {"queue": queue, "reader": READER}

    def own() -> bool:
        try:
            found = broker.control("own_lease", "/", owner="x", seconds=60, is_held=True, **who)
        except ControlError:  # it starts
            return False
        return bool(found["is_owner"])

    def take_over(batch: int) -> None:
        owners = broker.control("own_lease", "/", owner="x", seconds=60, is_held=False, **who)
        assert not owners["is_owner"]
        os.kill(vhost_pid(broker), signal.SIGKILL)  # owners are in its RAM; ours says is_held first
        wait_until(own, "another owner")

    told = failure(spark, options, tmp_path / "state", Seen(take_over))
    assert "ReaderTakenError" in told
    assert broker.control("disown_lease", "/", owner="x", **who) == {"disowned": True}
    assert counts(broker, queue) == (300, 300)
    seen = Seen()
    run(spark, {**options, "readerTimeout": "1s"}, tmp_path / "state", seen)
    assert seen.numbers == list(range(300, 600))  # Spark had noted the batch before as done
    assert counts(broker, queue) == (0, 0)


def vhost_pid(broker: LiveBroker) -> int:
    (row,) = broker.control("list_vhosts")
    return int(row["pid"])


def test_what_is_leased_is_neither_expired_nor_dropped_nor_purged(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    channel = pika_channel(broker)
    arguments = {"x-message-ttl": 1500, "x-max-length": 50}
    channel.queue_declare(queue, durable=True, arguments=arguments)
    leased = 0
    while leased < 30:  # again if some have expired before
        for body in numbers(0, 40):
            channel.basic_publish("", queue, body)
        channel.queue_declare(queue, durable=True, passive=True)
        leased = ask(broker, "POST", queue, {"messages": 30 - leased, "bytes": None})["head"]
    assert leased == 30
    for body in numbers(40, 140):
        channel.basic_publish("", queue, body)
    wait_until(lambda: counts(broker, queue) == (0, 30), "the end of what is not leased")
    channel.basic_publish("", queue, b"999")
    channel.queue_purge(queue)
    channel.connection.close()
    seen = Seen()
    run(spark, where(broker, queue), tmp_path / "state", seen)
    assert len(seen.numbers) == 30
    assert set(seen.numbers) <= set(range(40))
    assert counts(broker, queue) == (0, 0)


def test_a_dead_letter_queue_is_a_source(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    dead = f"{queue}.dead"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    channel = pika_channel(broker)
    channel.queue_declare(dead, durable=True)
    channel.queue_declare(queue, durable=True, arguments=arguments)
    for body in numbers(0, 20):
        channel.basic_publish("", queue, body)
    for _ in range(20):
        method, _, _ = channel.basic_get(queue)
        channel.basic_reject(method.delivery_tag, requeue=False)
    wait_until(lambda: counts(broker, dead)[0] == 20, "dead letters")
    channel.connection.close()
    seen: list[Any] = []
    options = where(broker, dead, includeHeaders="true")
    run(spark, options, tmp_path / "state", lambda rows, _: seen.extend(rows.collect()))
    assert sorted(int(row.value) for row in seen) == list(range(20))
    assert {row.headers["x-first-death-reason"] for row in seen} == {"rejected"}
    assert counts(broker, dead) == (0, 0)


def test_a_stream_and_a_queue_in_one_query_that_has_no_reader_id(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    stream = f"{queue}.stream"
    with penstock.open(broker.url) as box:
        box.stream(stream).append_many(numbers(0, 300))
    fill(broker, queue, numbers(300, 600))
    options = where(broker, f"{queue},{stream}", startingOffsets="earliest")
    del options["readerId"]
    seen, lag = Seen(), LagListener()
    spark.streams.addListener(lag)
    try:
        for count in (600, 700):
            run(spark, {**options, "maxOffsetsPerTrigger": "400"}, tmp_path / "state", seen)
            assert sorted(seen.numbers) == list(range(count))
            assert counts(broker, queue) == (0, 0)
            fill(broker, queue, numbers(600, 700))
        spark._jsc.sc().listenerBus().waitUntilEmpty(30_000)
    finally:
        spark.streams.removeListener(lag)
    (last,) = lag.lags.values()
    assert last.partitions == {(queue, 0): 0, (stream, 0): 0}
    (lease,) = broker.control("describe_queue", "/", queue=queue)["leases"]
    assert lease["reader"].startswith("spark-")
    assert (lease["first"], lease["head"]) == (400, 400)


def test_a_failed_batch_is_run_again_with_the_same_messages(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    fill(broker, queue, numbers(0, 100))
    options = where(broker, queue, maxOffsetsPerTrigger="60", minPartitions="3")

    def fail(batch: int) -> None:
        if batch == 1:
            fill(broker, queue, numbers(100, 130))
            raise RuntimeError("the sink failed")

    failed, seen = Seen(fail), Seen()
    assert "the sink failed" in failure(spark, options, tmp_path / "state", failed)
    assert counts(broker, queue) == (30, 40)
    run(spark, options, tmp_path / "state", seen)
    assert failed.batches == [list(range(60)), list(range(60, 100))]
    assert seen.batches == [list(range(60, 100)), list(range(100, 130))]
    assert counts(broker, queue) == (0, 0)


def test_what_is_refused(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    fill(broker, queue, numbers(0, 10))
    with pytest.raises(Exception, match=r"classic queue delivers each message once.*availableNow"):
        spark.read.format("penstock").options(**where(broker, queue)).load().collect()
    options = where(broker, queue, startingOffsets="latest")
    told = failure(spark, options, tmp_path / "state", Seen())
    assert f"expected earliest: '{queue}' is a classic queue" in told
    assert counts(broker, queue) == (10, 0)
    channel = pika_channel(broker)
    channel.queue_declare(f"{queue}.brief", durable=False)
    channel.connection.close()
    options = where(broker, f"{queue},{queue}.brief")
    told = failure(spark, options, tmp_path / "brief", Seen())
    assert f"queue '{queue}.brief' in vhost '/' is not durable" in told
    assert counts(broker, queue) == (10, 0)


def test_a_lease_that_was_released_is_told_and_passed_over_only_if_the_query_says_so(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    fill(broker, queue, numbers(0, 100))
    options = where(broker, queue, maxOffsetsPerTrigger="60")
    released = False

    def release(batch: int) -> None:
        nonlocal released
        if not released:
            released = True
            assert counts(broker, queue) == (40, 60)
            who = {"queue": queue, "reader": READER}
            assert broker.control("release_lease", "/", **who) == {"messages": 60}
            raise RuntimeError("the sink failed")

    seen = Seen(release)
    state = tmp_path / "state"
    assert "the sink failed" in failure(spark, options, state, seen)
    wait_until(lambda: counts(broker, queue) == (100, 0), "the release")
    told = failure(spark, options, state, seen)
    assert f"queue '{queue}', leased by reader '{READER}'" in told
    assert counts(broker, queue) == (100, 0)
    run(spark, {**options, "failOnDataLoss": "false"}, state, seen)
    assert seen.batches == [list(range(60)), [], list(range(60)), list(range(60, 100))]
    assert counts(broker, queue) == (0, 0)


def test_a_queue_that_was_deleted_by_force_is_told(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    fill(broker, queue, numbers(0, 100))
    channel = pika_channel(broker)

    def delete(batch: int) -> None:
        broker.control("delete_queue", "/", queue=queue, force=True)

    options = where(broker, queue, maxOffsetsPerTrigger="60")
    ask(broker, "POST", queue, {"messages": 60, "bytes": None})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="is leased"):
        channel.queue_delete(queue)
    channel.connection.close()
    told = failure(spark, options, tmp_path / "state", Seen(delete))
    assert queue in told
    assert "404" in told


def test_a_commit_that_the_broker_never_heard_of(
    spark: "SparkSession", broker: LiveBroker, queue: str, tmp_path: Path
) -> None:
    """Spark has noted the last batch as done, and nobody could say so to the broker."""
    fill(broker, queue, numbers(0, 100))
    options, seen = where(broker, queue), Seen()
    run(spark, options, tmp_path / "state", seen)
    assert counts(broker, queue) == (0, 0)
    fill(broker, queue, numbers(100, 200))

    def stop(batch: int) -> None:
        broker.stop()

    seen = Seen(stop)
    fast = {"fetchOffset.numRetries": "0"}
    assert "Connection refused" in failure(spark, {**options, **fast}, tmp_path / "state", seen)
    broker.start()
    assert counts(broker, queue) == (0, 100)
    run(spark, options, tmp_path / "state", seen)
    assert seen.numbers == list(range(100, 200))
    assert counts(broker, queue) == (0, 0)
