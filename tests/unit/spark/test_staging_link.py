"""The sink and a fake broker: what is staged, retried, committed once, and refused with words."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StringType, StructType

from penstock.errors import BatchConflictError, OptionError
from penstock.queues.stream_options import partition_of
from penstock.spark import staging
from penstock.spark.http_link import RefusedError
from penstock.spark.options import SinkOptions
from penstock.spark.sink_columns import SinkColumns
from penstock.spark.staging import (
    SinkError,
    StagedRows,
    StagedSizes,
    Stager,
    StagingLink,
    abort_batch,
    check_sink,
    commit_batch,
)
from tests.helpers.chunk_records import Record
from tests.helpers.fake_staging import Early, FakeStaging

QUERY = "9f/a b"
SIZES = StagedSizes(page=4096, chunk=512)
GROUPED = StagedSizes(page=4096, chunk=512, held=6000, adopted_min=1000, grouped_min=2000)


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
        sizes: StagedSizes = SIZES,
    ) -> StagedRows:  # fmt: skip
        """In batches of Arrow of seven rows."""
        stager = Stager(
            self.options, self.columns, QUERY, batch, partition, 1, link=self.link, sizes=sizes
        )  # fmt: skip
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
    for number, told in enumerate(({"queue": "q"}, {"exchange": "x"}, {})):
        sink = Sink(broker, **told)
        if not told:
            sink.options = replace(sink.options, queue=None, exchange=None)
        assert sink.commit(sink.stage([], batch=number), previous=number - 1) == "committed"
    targets = [command["target"] for command in broker.commits]
    assert targets == [{"queue": "q"}, {"exchanges": ["x"]}, None]
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


def pages_of(broker: FakeStaging, part: StagedRows) -> list[tuple[str, list[Record]]]:
    """(the end of its attempt's name, records) of each page, in the order of the tokens."""
    staged = broker.staged.get((part.query, part.batch), {})
    return [
        (token["attempt"].partition("_")[2], staged[page["name"]])
        for token in part.tokens
        for page in token["pages"]
    ]


def short_key(meta: bytes) -> bytes:
    """The routing key in a stored header."""
    at = 2 + meta[1]
    return meta[at + 1 : at + 1 + meta[at]]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 900)), max_size=150), st.integers(1, 6),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_pages_have_the_rows_of_one_partition(rows: list[tuple[int, int]], partitions: int) -> None:
    """Or say nothing of it; no row is lost, and each partition has them in their order."""
    values = [b"%d." % i + b"x" * size for i, (_, size) in enumerate(rows)]
    keys = [None if key == 9 else f"k{key}" for key, _ in rows]
    with FakeStaging() as broker:
        broker.partitions = partitions
        part = Sink(broker).stage(values, keys=keys, sizes=GROUPED)
        found = pages_of(broker, part)
        assert broker.problems == []
    assert part.rows == len(values)
    wanted: dict[int, list[bytes]] = {}
    for value, key in zip(values, keys, strict=True):
        number = partition_of((key or "q").encode(), partitions)
        wanted.setdefault(number, []).append(value)
    sent: dict[int, list[bytes]] = {}
    for name, records in found:
        numbers = [partition_of(short_key(record.meta), partitions) for record in records]
        if name:
            assert {f"{number}of{partitions}" for number in numbers} == {name}
        for number, record in zip(numbers, records, strict=True):
            sent.setdefault(number, []).append(record.payload)
    assert sent == wanted


def test_large_groups_are_pages_and_small_ones_share_one(broker: FakeStaging) -> None:
    broker.partitions = 4
    key = {partition_of(b"k%d" % n, 4): f"k{n}" for n in range(50)}
    numbers = [0] * 40 + [1] + [2] * 20 + [3] + [0] * 20
    keys = [key[number] for number in numbers]
    part = Sink(broker).stage(some(82), keys=keys, sizes=replace(GROUPED, page=1 << 16))
    names = [(name, len(records)) for name, records in pages_of(broker, part)]
    assert names[-1] == ("", 2)
    assert ("2of4", 20) in names
    assert sum(count for name, count in names if name == "0of4") == 60
    claims = [parts for method, parts in broker.asked if method == "POST" and len(parts) == 2]
    assert claims == [["/", QUERY]]
    assert set(broker.targets) == {'{"queue": "q"}'}


def test_rows_of_one_key_are_of_one_partition(broker: FakeStaging) -> None:
    broker.partitions = 2
    sink = Sink(broker, routingKey="k")
    name = f"{partition_of(b'k', 2)}of2"
    part = sink.stage(some(100), keys=["other"] * 100, sizes=GROUPED)
    assert {found for found, _ in pages_of(broker, part)} == {name}
    assert sink.commit(part) == "committed"
    assert payloads(broker) == some(100)  # in their order: nothing was grouped


def test_few_rows_are_not_grouped(broker: FakeStaging) -> None:
    broker.partitions = 2
    part = Sink(broker).stage(some(15), keys=["a", "b", "c"] * 5, sizes=GROUPED)
    ((name, records),) = pages_of(broker, part)
    assert (name, [record.payload for record in records]) == ("", some(15))
    assert all(len(parts) == 5 for _, parts in broker.asked)


def test_a_broker_that_adopts_no_partitions(broker: FakeStaging) -> None:
    """Of an older version: it refuses the question."""
    broker.faults["POST"].append(405)
    part = Sink(broker).stage(some(100), keys=["a", "b"] * 50, sizes=GROUPED)
    assert {name for name, _ in pages_of(broker, part)} == {""}
    broker.faults["POST"].append(403)
    with pytest.raises(SinkError, match=r"asking for the partitions of queue 'q': .* 403"):
        Sink(broker).stage(some(100), sizes=GROUPED)


def test_a_row_of_a_group_that_fits_no_page_is_told(broker: FakeStaging) -> None:
    broker.partitions = 2
    with pytest.raises(OptionError, match=r"given 'too long', expected row 3 of its batch"):
        Sink(broker).stage([*some(38), b"x" * 5000], keys=["a"] * 39, sizes=GROUPED)


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


class RefusingLink:
    """A link to a broker that refuses the check of a target."""

    def __init__(self, sink: Sink, reason: str) -> None:
        self._sink = sink
        self._reason = reason

    def check(self, _target: object) -> None:
        place = self._sink.options.place
        assert place is not None
        raise RefusedError(place, "check", 404, {"error": "not found", "reason": self._reason})


@pytest.mark.parametrize("reason", ["NOT_FOUND - no queue 'q' in vhost '/'", "no vhost '/'"])
def test_a_repeated_batch_is_not_refused_for_a_target_that_is_gone(
    broker: FakeStaging, reason: str
) -> None:
    """The batch may be done already, which its commit says. Whoever names none needs a target."""
    sink = Sink(broker)
    with pytest.raises(OptionError):
        check_sink(sink.options, link=RefusingLink(sink, reason))  # type: ignore[arg-type]
    named = Sink(broker, queryId="a", batchId="1")
    if "queue" in reason:
        check_sink(named.options, link=RefusingLink(named, reason))  # type: ignore[arg-type]
    else:
        with pytest.raises(OptionError, match="url"):
            check_sink(named.options, link=RefusingLink(named, reason))  # type: ignore[arg-type]
