"""The sink and a fake broker: what is staged, retried, committed once, and refused with words."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.errors import BatchConflictError, OptionError
from penstock.spark import staging
from penstock.spark.options import SinkOptions
from penstock.spark.sink_columns import SinkColumns
from penstock.spark.staging import (
    FrameMaker,
    SinkError,
    StagedRows,
    Stager,
    StagingLink,
    abort_batch,
    commit_batch,
)
from tests.helpers.fake_staging import Early, FakeStaging

QUERY = "9f/a b"


@pytest.fixture
def broker() -> Iterator[FakeStaging]:
    with FakeStaging() as fake:
        yield fake
        assert fake.problems == []


class Sink:
    """A task or a driver of the sink, whose clock goes on by itself."""

    def __init__(self, broker: FakeStaging, **given: str) -> None:
        told = {"queue": "q", "url": broker.url, "timeout": "30", **given}
        if "exchange" in given:
            del told["queue"]
        self.options = SinkOptions.of(told, {})
        schema = StructType().add("value", BinaryType()).add("routing_key", StringType())
        self.columns = SinkColumns(self.options, schema)
        self.slept = 0.0
        assert self.options.place is not None
        self.link = StagingLink(
            self.options.place, self.options.target, self.options.timeout_s,
            sleep=self._sleep, monotonic=lambda: self.slept,
        )  # fmt: skip

    def _sleep(self, seconds: float) -> None:
        self.slept += seconds

    def stage(
        self, values: Sequence[bytes], batch: int = 0, partition: int = 0, keys: Any = None,
        page_bytes: int = 4096,
    ) -> StagedRows:  # fmt: skip
        """In batches of Arrow of seven rows."""
        stager = Stager(
            self.options, self.columns, QUERY, batch, partition, 1, link=self.link
        )  # fmt: skip
        stager._frames = FrameMaker(page_bytes, 512)
        table = pa.table(
            {"value": pa.array(values, pa.binary()),
             "routing_key": pa.array(keys or [None] * len(values), pa.string())}
        )  # fmt: skip
        return stager.stage(table.to_batches(max_chunksize=7))

    def commit(self, *parts: StagedRows, previous: int | None = None) -> str:
        return commit_batch(self.options, parts, previous=previous, link=self.link)


def some(count: int, size: int = 100) -> list[bytes]:
    rng = random.Random(count)
    return [rng.randbytes(size) for _ in range(count)]


def payloads(broker: FakeStaging) -> list[bytes]:
    return [record.payload for record in broker.published]


def test_rows_are_staged_and_committed(broker: FakeStaging) -> None:
    sink = Sink(broker)
    first, second = sink.stage(some(200)), sink.stage(some(90), partition=1)
    assert (first.rows, second.rows, len(first.tokens)) == (200, 90, 7)
    assert payloads(broker) == []
    assert sink.commit(first, second) == "committed"
    assert payloads(broker) == some(200) + some(90)
    (told,) = broker.commits
    assert told["target"] == {"queue": "q"}
    assert told["mandatory_keys"] is None
    attempts = [parts[-1] for method, parts in broker.asked if method == "POST"]
    assert len(set(attempts)) == len(attempts)
    assert all(attempt.startswith("1-") and len(attempt) == 10 for attempt in attempts)
    assert broker.asked[0][1][:4] == ["/", QUERY, "0", "0"]
    assert set(broker.targets) == {'{"queue": "q"}'}


def test_a_commit_again_is_already_done(broker: FakeStaging) -> None:
    sink = Sink(broker)
    part = sink.stage(some(9))
    assert sink.commit(part) == "committed"
    assert sink.commit(part) == "already done"
    assert sink.commit(sink.stage(some(9))) == "already done"  # a replay: staged anew, not taken
    assert payloads(broker) == some(9)


def test_a_commit_of_other_rows_is_an_error_at_once(broker: FakeStaging) -> None:
    sink = Sink(broker)
    sink.commit(sink.stage(some(9)))
    with pytest.raises(BatchConflictError, match=r"committing batch 0 of query .*: 409: the last"):
        sink.commit(sink.stage(some(8)))
    assert sink.slept == 0
    careless = Sink(broker, sameRows="false")
    assert careless.commit(careless.stage(some(8))) == "already done"
    assert payloads(broker) == some(9)


def test_batches_without_rows_are_reported_by_who_says_the_batch_before(
    broker: FakeStaging,
) -> None:
    for number, given in enumerate(({"queue": "q"}, {"exchange": "x"}, {})):
        sink = Sink(broker, **given)
        if not given:
            sink.options = replace(sink.options, queue=None, exchange=None)
        assert sink.commit(sink.stage([], batch=number), previous=number - 1) == "committed"
    told = [command["target"] for command in broker.commits]
    assert told == [{"queue": "q"}, {"exchanges": ["x"]}, None]
    assert [command["tokens"] for command in broker.commits] == [[]] * 3
    sink = Sink(broker)
    with pytest.raises(BatchConflictError):
        sink.commit(sink.stage(some(3), batch=9), previous=8)
    assert sink.commit(sink.stage(some(3), batch=9)) == "committed"
    assert sink.commit(previous=9) == ""


def test_a_commit_whose_answer_was_lost(broker: FakeStaging) -> None:
    sink = Sink(broker)
    part = sink.stage(some(9))
    broker.faults["PUT"] += ["cut", 503]
    assert sink.commit(part) == "already done"
    assert payloads(broker) == some(9)


def test_batches_of_nothing_ask_nothing(broker: FakeStaging) -> None:
    sink = Sink(broker)
    assert sink.commit(sink.stage([]), sink.stage([], partition=1)) == ""
    assert broker.asked == []


@pytest.mark.parametrize("fault", ["cut", "cut early", 503, 507, 409, Early(503)])
def test_a_page_is_sent_again_under_another_name(broker: FakeStaging, fault: Any) -> None:
    sink = Sink(broker)
    broker.faults["POST"] += [None, fault, fault]
    part = sink.stage(some(200))
    assert sink.commit(part) == "committed"
    assert payloads(broker) == some(200)
    assert len([1 for method, _ in broker.asked if method == "POST"]) == len(part.tokens) + 2
    assert (sink.slept > 0) == (fault != 409)


def test_a_broker_that_stays_away_is_an_error(broker: FakeStaging) -> None:
    sink = Sink(broker)
    part = sink.stage(some(9))
    broker.faults["PUT"] += [503] * 200
    told = (
        r"committing batch 0 of query '9f/a b' to queue 'q': http://127.*: status 503 by the test; "
    )
    with pytest.raises(SinkError, match=told + "tried for 30 s"):
        sink.commit(part)
    assert 30 <= sink.slept < 30.5
    broker.faults["POST"] += ["cut"] * 200
    told = r"staging batch 3, partition 2 of query '9f/a b' for queue 'q': http.*; tried for 30 s"
    with pytest.raises(SinkError, match=told):
        sink.stage(some(9), 3, 2)
    broker.__exit__(None, None, None)
    with pytest.raises(SinkError, match=r"Connection refused; tried for 30 s"):
        sink.stage(some(9), 3, 2)


def test_a_commit_waits_for_a_batch_that_gets_on(broker: FakeStaging) -> None:
    sink = Sink(broker)
    part = sink.stage(some(9))
    for page in range(10):  # 20 times a fifth of a second each, which is below 30 s
        broker.faults["PUT"] += [f"batch 0 is at page {page} of 10"] * 20
    assert sink.commit(part) == "committed"
    assert sink.slept > 30
    broker.faults["PUT"] += ["batch 0 is at page 3 of 10"] * 200
    with pytest.raises(SinkError, match=r"batch 0 is at page 3 of 10; tried for 30 s"):
        sink.commit(part)


@pytest.mark.parametrize("fault", [403, Early(403), 404, 413])
def test_a_refusal_is_told_at_once(broker: FakeStaging, fault: Any) -> None:
    sink = Sink(broker)
    broker.faults["POST"].append(fault)
    status = fault if isinstance(fault, int) else fault.status
    with pytest.raises(SinkError, match=rf"staging batch 0, .*POST .*status {status} by the test$"):
        sink.stage(some(2000))
    broker.faults["PUT"].append(404)
    with pytest.raises(SinkError, match=r"committing batch 0 .* 404: status 404 by the test$"):
        sink.commit(sink.stage(some(1)))
    assert sink.slept == 0


def test_an_attempt_name_that_is_never_free_is_an_error(broker: FakeStaging) -> None:
    sink = Sink(broker)
    broker.faults["POST"] += [409] * 20
    with pytest.raises(SinkError, match="409: status 409 by the test"):
        sink.stage(some(1))


def test_an_abort_is_never_an_error(broker: FakeStaging, caplog: pytest.LogCaptureFixture) -> None:
    sink = Sink(broker)
    part = sink.stage(some(9))
    abort_batch(sink.options, QUERY, 0, link=sink.link)
    assert broker.staged == {}
    broker.faults["DELETE"].append(503)
    abort_batch(sink.options, QUERY, 0, link=sink.link)
    assert "status 503 by the test" in caplog.text
    with pytest.raises(SinkError, match=r"no page 0\.0\.1-"):
        sink.commit(part)


def test_rows_for_exchanges_tell_their_keys(broker: FakeStaging) -> None:
    sink = Sink(broker, exchange="x", deadLetterTo="dead")
    first = sink.stage(some(3), keys=["k", "l", "k"])
    second = sink.stage(some(1), partition=1, keys=["m"])
    sink.commit(first, second)
    (told,) = broker.commits
    assert told["target"] == {"exchanges": ["x"], "dead_letter_to": "dead"}
    assert told["mandatory_keys"] == [["x", "k"], ["x", "l"], ["x", "m"]]
    assert set(broker.targets) == {'{"exchanges": ["x"], "dead_letter_to": "dead"}'}


def test_parts_of_two_batches_are_refused(broker: FakeStaging) -> None:
    sink = Sink(broker)
    with pytest.raises(SinkError, match="parts of 2 batches in one"):
        sink.commit(sink.stage(some(1), 0), sink.stage(some(1), 1))


def test_a_row_that_fits_no_page_is_told(broker: FakeStaging) -> None:
    with pytest.raises(OptionError, match=r"column value: given 'too long', expected row 2 of its"):
        Sink(broker).stage([b"a", b"b", b"x" * 5000])


def test_a_link_of_its_own_is_made(broker: FakeStaging) -> None:
    sink = Sink(broker)
    link = staging.link_of(sink.options)
    assert (link.place, link.timeout_s) == (sink.options.place, 30.0)
    assert commit_batch(sink.options, [sink.stage(some(2))]) == "committed"
