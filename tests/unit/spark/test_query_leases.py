"""Classic queues of a query: what a batch leases, what a replay reads, what is acknowledged."""

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.spark.catalog import Catalog
from penstock.spark.offsets import Heads, PartitionHead
from penstock.spark.options import SourceOptions, parse_source_options
from penstock.spark.plan import PartitionPages, table_of_average
from penstock.spark.progress import DataLossError, StreamProgress

BODY_BYTES = 100


@dataclass
class ToyLease:
    """What a reader has: ordinals [committed, next)."""

    id: str
    committed: int = 0
    next: int = 0


@dataclass
class ToyQueue:
    """Messages that are ready, by number, and leases."""

    ready: list[int] = field(default_factory=list)
    leases: dict[str, ToyLease] = field(default_factory=dict)
    messages: dict[tuple[str, int], int] = field(default_factory=dict)  # (reader, ordinal)


class ToyBroker(Catalog):
    """Classic queues, and streams as the test sets them."""

    fresh_s = 0.0

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options, lambda: 0.0)
        self.queues = {"q": ToyQueue()}
        self.streams: Heads = {}
        self.drawn = 0
        self.log: list[Any] = []

    def publish(self, count: int, queue: str = "q") -> None:
        at = self.queues[queue]
        at.ready += range(self.drawn, self.drawn + count)
        self.drawn += count

    def find(self, stream: str, partition: int, time_us: int) -> int:
        return 0

    def pages(self, stream: str, partition: int) -> PartitionPages:
        head = self._found()[stream][partition]
        return table_of_average(head.first, head.head, head.bytes)

    def hold(
        self, reader: str, offsets: dict[str, dict[str, int]], kept: dict[str, dict[str, int]]
    ) -> None:
        self.log.append(("hold", offsets))

    def release(self, reader: str) -> None:
        self.log.append(("release", reader))

    def lease(self, queue: str, head: int, messages: int, size_bytes: int | None) -> PartitionHead:
        self.log.append(("lease", queue, messages, size_bytes))
        at = self.queues[queue]
        most = messages if size_bytes is None else min(messages, max(size_bytes // BODY_BYTES, 1))
        taken, at.ready = at.ready[:most], at.ready[most:]
        if taken:
            lease = at.leases.setdefault(self._reader, ToyLease(f"id{len(self.log)}"))
            for one in taken:
                at.messages[self._reader, lease.next] = one
                lease.next += 1
        self._heads[queue] = {0: self._head(at)}
        return self._heads[queue][0]

    def commit(self, queue: str, offset: int) -> None:
        self.log.append(("commit", queue, offset))
        at = self.queues[queue]
        at.leases[self._reader].committed = offset
        self._heads[queue] = {0: self._head(at)}

    def _head(self, queue: ToyQueue) -> PartitionHead:
        lease = queue.leases.get(self._reader, ToyLease(""))
        ready = len(queue.ready)
        return PartitionHead(
            lease.committed, lease.next, 0, (lease.next - lease.committed) * BODY_BYTES, lease.id,
            "", self._reader, ready, ready * BODY_BYTES,
        )  # fmt: skip

    def _found(self) -> Heads:
        found = {name: dict(of_it) for name, of_it in self.streams.items()}
        return found | {name: {0: self._head(queue)} for name, queue in self.queues.items()}

    def leased(self, kind: str) -> list[Any]:
        return [one[1:] for one in self.log if one[0] == kind]


class Query:
    """A query over it, and what Spark would do with it."""

    def __init__(self, broker: ToyBroker | None = None, ready: int = 0, **given: str) -> None:
        options = {"url": "http://h", "subscribe": "q", "readerId": "job", **given}
        options = {name: value for name, value in options.items() if value}
        self.options = parse_source_options(options, is_streaming=True)
        self.broker = broker or ToyBroker(self.options)
        if ready:
            self.broker.publish(ready)
        self.now_s = 0.0
        self.progress = StreamProgress(self.options, self.broker, lambda: self.now_s)

    def start(self) -> dict[str, Any]:
        return self.progress.initial_offset()

    def batch(self, start: dict[str, Any], *, is_limited: bool = True) -> dict[str, Any]:
        return self.progress.latest_offset(start, is_limited=is_limited)

    def messages(self, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        """What the tasks of a batch would read."""
        found = []
        for source in chain.from_iterable(self.progress.partitions(start, end)):
            queue = self.broker.queues[source.range.stream]
            for ordinal in range(source.range.start, source.range.end):
                assert queue.leases[source.reader].committed <= ordinal
                found.append(queue.messages[source.reader, ordinal])
        return found

    def run(self, start: dict[str, Any], batches: int = 100) -> tuple[list[list[int]], Any]:
        """Batches until there is nothing: their messages, and where it stands."""
        seen = []
        for _ in range(batches):
            end = self.batch(start)
            if end == start:
                break
            seen.append(self.messages(start, end))
            start = end
        return seen, start


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Still:
        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            pass

    monkeypatch.setattr("penstock.spark.progress.threading.Thread", Still)


def ordinal(offset: dict[str, Any], queue: str = "q") -> int:
    return int(offset[queue]["0"])


def test_a_batch_leases_what_it_reads_and_the_next_one_acknowledges_it() -> None:
    query = Query(ready=100, maxOffsetsPerTrigger="40")
    start = query.start()
    assert start == {"q": {"0": 0}}
    first = query.batch(start)
    assert (ordinal(first), first["q"]["reader"]) == (40, "job")
    assert query.messages(start, first) == list(range(40))
    assert query.broker.leased("commit") == []
    second = query.batch(first)
    assert query.broker.leased("commit") == [("q", 40)]
    assert query.messages(first, second) == list(range(40, 80))
    rest, at = query.run(second)
    assert rest == [list(range(80, 100))]
    assert query.broker.leased("commit")[-1] == ("q", 100)
    assert query.batch(at) == at


def test_an_empty_queue_gives_back_what_was_given_and_leases_nothing() -> None:
    query = Query()
    start = query.start()
    assert query.batch(start) == start
    assert query.broker.log == []


def test_a_crash_after_leasing_and_before_spark_wrote_it_down() -> None:
    query = Query(ready=100, maxOffsetsPerTrigger="40")
    start = query.start()
    query.batch(start)
    again = Query(query.broker, maxOffsetsPerTrigger="40")
    assert again.start() == start
    end = again.batch(start)
    assert len(query.broker.leased("lease")) == 1
    assert again.messages(start, end) == list(range(40))


def test_what_is_leased_already_comes_first_and_in_pieces_if_limits_say_so() -> None:
    query = Query(ready=100, maxOffsetsPerTrigger="40")
    query.batch(query.start())
    seen, _ = Query(query.broker, maxOffsetsPerTrigger="25").run(query.start())
    assert [len(one) for one in seen] == [25, 15, 25, 25, 10]
    assert [one for batch in seen for one in batch] == list(range(100))


def test_a_replay_reads_the_same_messages_although_more_came() -> None:
    query = Query(ready=50)
    start = query.start()
    end = query.batch(start)
    before = query.messages(start, end)
    query.broker.publish(500)
    again = Query(query.broker)
    assert again.messages(start, end) == before == list(range(50))
    rest, _ = again.run(end)
    assert rest == [list(range(50, 550))]


def test_a_commit_that_was_lost_is_made_at_the_next_question() -> None:
    query = Query(ready=50)
    end = query.batch(query.start())  # the batch ran; the broker never heard
    query.broker.publish(5)
    again = Query(query.broker)
    later = again.batch(end)
    assert query.broker.leased("commit") == [("q", 50)]
    assert again.messages(end, later) == list(range(50, 55))


def test_spark_commits_too_and_twice_is_once() -> None:
    query = Query(ready=50)
    end = query.batch(query.start())
    query.progress.commit(end)
    query.progress.commit(end)
    query.batch(end)
    assert query.broker.leased("commit") == [("q", 50)]


def test_bytes_limit_what_is_leased() -> None:
    query = Query(ready=100, maxBytesPerTrigger="2500")
    assert ordinal(query.batch(query.start())) == 25
    assert query.broker.leased("lease") == [("q", 25, 2500)]
    assert ordinal(Query(ready=100, maxBytesPerTrigger="1").batch({"q": {"0": 0}})) == 1


def test_once_takes_all_that_is_ready() -> None:
    query = Query(ready=100, maxOffsetsPerTrigger="10")
    assert ordinal(query.batch(query.start(), is_limited=False)) == 100


def test_available_now_takes_as_many_as_were_ready() -> None:
    query = Query(ready=100, maxOffsetsPerTrigger="60", minOffsetsPerTrigger="90")
    query.progress.prepare_for_available_now()
    query.broker.publish(50)
    seen, _ = query.run(query.start())
    assert [len(one) for one in seen] == [60, 40]
    assert query.broker.leased("commit")[-1] == ("q", 100)


def test_available_now_counts_what_was_leased_before() -> None:
    query = Query(ready=100, maxOffsetsPerTrigger="60")
    start = query.start()
    query.batch(start)
    again = Query(query.broker)
    again.progress.prepare_for_available_now()
    query.broker.publish(50)
    seen, _ = again.run(start)
    assert [len(one) for one in seen] == [60, 40]


def test_others_that_were_faster_end_a_run() -> None:
    query = Query(ready=10)
    query.progress.prepare_for_available_now()
    query.broker.queues["q"].ready.clear()
    start = query.start()
    assert query.batch(start) == start

    query = Query(ready=10)
    start = query.start()

    def lease(queue: str, head: int, messages: int, size_bytes: int | None) -> PartitionHead:
        query.broker.queues[queue].ready.clear()
        return ToyBroker.lease(query.broker, queue, head, messages, size_bytes)

    query.broker.lease = lease  # type: ignore[method-assign]
    assert query.batch(start) == start


def test_a_batch_waits_for_its_least_and_leases_nothing_meanwhile() -> None:
    query = Query(ready=10, minOffsetsPerTrigger="50", maxTriggerDelay="30s")
    first = query.batch(query.start())
    query.broker.publish(20)
    query.now_s = 29.0
    assert query.batch(first) == first
    assert len(query.broker.leased("lease")) == 1
    query.broker.publish(30)
    assert ordinal(query.batch(first)) == 60


# ---- whose leases --------------------------------------------------------------------------------


def test_without_a_reader_id_the_checkpoint_names_the_reader_before_anything_is_leased() -> None:
    query = Query(ready=10, readerId="")
    start = query.start()
    pinned = query.batch(start)
    assert pinned != start
    assert ordinal(pinned) == 0
    reader = pinned["q"]["reader"]
    assert reader.startswith("spark-")
    assert query.broker.leased("lease") == []
    assert query.messages(start, pinned) == []
    again = Query(query.broker, readerId="")  # another process, which draws another name
    end = again.batch(pinned)
    assert end["q"]["reader"] == reader
    assert again.messages(pinned, end) == list(range(10))
    replayed = Query(query.broker, readerId="")
    assert replayed.messages(pinned, end) == list(range(10))
    replayed.broker.publish(3)
    last = replayed.batch(end)
    assert replayed.messages(end, last) == [10, 11, 12]


def test_a_run_with_available_now_and_no_reader_id() -> None:
    query = Query(ready=10, readerId="")
    query.progress.prepare_for_available_now()
    seen, at = query.run(query.start())
    assert seen == [[], list(range(10))]
    again = Query(query.broker, ready=4, readerId="")
    again.progress.prepare_for_available_now()
    assert again.run(at)[0] == [[10, 11, 12, 13]]


def test_once_needs_a_reader_id() -> None:
    query = Query(ready=10, readerId="")
    with pytest.raises(OptionError, match=r"readerId: given None, .*trigger\(once=True\)"):
        query.batch(query.start(), is_limited=False)


def test_another_reader_id_than_the_checkpoints_is_refused() -> None:
    query = Query(ready=10)
    end = query.batch(query.start())
    with pytest.raises(OptionError, match="readerId: given 'other', expected 'job'"):
        Query(query.broker, readerId="other").batch(end)
    assert Query(query.broker, readerId="").messages({"q": {"0": 0}}, end) == list(range(10))


def test_two_readers_at_once_share_no_message() -> None:
    one = Query(ready=100, readerId="one", maxOffsetsPerTrigger="30")
    broker = one.broker
    two = Query(None, readerId="two", maxOffsetsPerTrigger="20")
    two.broker = two.progress._catalog = two.progress.leases._catalog = ToyBroker(two.options)
    two.broker.queues = broker.queues
    two.broker.named("two")
    start: list[dict[str, Any]] = [one.start(), two.start()]
    seen: list[list[int]] = [[], []]
    for _ in range(4):
        for which, query in enumerate((one, two)):
            end = query.batch(start[which])
            seen[which] += query.messages(start[which], end)
            start[which] = end
    assert sorted(seen[0] + seen[1]) == list(range(100))
    assert seen[0][:30] == list(range(30))
    assert seen[1][:20] == list(range(30, 50))


# ---- losses --------------------------------------------------------------------------------------


def test_a_lease_that_was_released_is_told_by_name() -> None:
    query = Query(ready=100, maxOffsetsPerTrigger="40")
    start = query.start()
    end = query.batch(start)
    queue = query.broker.queues["q"]
    del queue.leases["job"]
    queue.ready = list(range(100))
    told = "queue 'q', leased by reader 'job': its lease is gone"
    with pytest.raises(DataLossError, match=told):
        query.batch(end)
    with pytest.raises(DataLossError, match=told):
        Query(query.broker).messages(start, end)
    lenient = Query(query.broker, failOnDataLoss="false", maxOffsetsPerTrigger="40")
    assert lenient.messages(start, end) == []
    seen, _ = lenient.run(end)
    assert [one for batch in seen for one in batch] == list(range(100))


def test_a_lease_that_was_begun_again_is_another_one() -> None:
    query = Query(ready=100, maxOffsetsPerTrigger="40")
    end = query.batch(query.start())
    del query.broker.queues["q"].leases["job"]
    Query(query.broker, maxOffsetsPerTrigger="50").batch(query.start())
    assert query.broker.queues["q"].leases["job"].next == 50
    with pytest.raises(DataLossError, match="its lease is gone"):
        Query(query.broker).messages(query.start(), end)


def test_messages_that_were_committed_are_no_replay() -> None:
    query = Query(ready=100, maxOffsetsPerTrigger="40")
    start = query.start()
    end = query.batch(start)
    query.progress.commit(end)
    with pytest.raises(DataLossError, match="messages 0 to 39 were committed"):
        Query(query.broker).messages(start, end)
    assert Query(query.broker, failOnDataLoss="false").messages(start, end) == []


def test_a_queue_that_is_gone() -> None:
    query = Query(ready=10)
    end = query.batch(query.start())
    del query.broker.queues["q"]
    with pytest.raises(
        DataLossError, match="queue 'q', leased by reader 'job': it no longer exists"
    ):
        query.batch(end)
    lenient = Query(query.broker, failOnDataLoss="false")
    assert lenient.batch(end) == end


# ---- streams beside ------------------------------------------------------------------------------


def mixed(ready: int, records: int, **given: str) -> Query:
    query = Query(None, ready, subscribe="q,s", **given)
    query.broker.streams = {"s": {0: PartitionHead(0, records, 0, records * BODY_BYTES, "sid")}}
    return query


def test_a_stream_and_a_queue_share_the_limits() -> None:
    query = mixed(300, 100, maxOffsetsPerTrigger="80", startingOffsets="earliest")
    start = query.start()
    assert (ordinal(start), ordinal(start, "s")) == (0, -2)
    end = query.batch(start)
    assert (ordinal(end), ordinal(end, "s")) == (60, 20)
    assert "reader" not in end["s"]
    assert query.broker.leased("hold") == []
    query.progress.partitions(start, end)
    query.batch(end)
    assert query.broker.leased("hold") == [({"s": {"0": 0}},), ({"s": {"0": 20}},)]
    query = mixed(300, 100, maxBytesPerTrigger="8000", startingOffsets="earliest")
    end = query.batch(query.start())
    assert (ordinal(end), ordinal(end, "s")) == (60, 20)
    assert query.broker.leased("lease") == [("q", 60, 6000)]


def test_a_default_start_is_the_latest_of_a_stream_and_the_earliest_of_a_queue() -> None:
    query = mixed(30, 100)
    start = query.start()
    assert (ordinal(start), ordinal(start, "s")) == (0, -1)
    end = query.batch(start)
    assert (ordinal(end), ordinal(end, "s")) == (30, 100)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: given 'latest'"),
        ({"startingOffsets": '{"q": {"0": 5}}'}, "startingOffsets: given 5"),
        ({"startingOffsets": '{"q": {"0": -1}}'}, "startingOffsets: given"),
        ({"startingTimestamp": "5"}, "startingTimestamp: given 5"),
        ({"startingOffsetsByTimestamp": '{"q": {"0": 7}}'}, "startingOffsetsByTimestamp: given 7"),
    ],
)
def test_a_queue_begins_at_its_first_message(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=f"option {told}.*'q' is a classic queue"):
        Query(None, 5, **given).start()


def test_what_a_stream_is_told_does_not_concern_a_queue() -> None:
    for said in ('{"s": {"0": -1}}', '{"q": {"0": -2}, "s": {"0": -1}}'):
        start = mixed(30, 100, startingOffsets=said).start()
        assert (ordinal(start), ordinal(start, "s")) == (0, -1)


def test_a_reader_that_exists_goes_on_where_it_has_committed() -> None:
    query = Query(ready=50)
    query.progress.commit(query.batch(query.start()))
    query.broker.publish(10)
    again = Query(query.broker)
    start = again.start()
    assert start == {"q": {"0": 50}}
    assert again.messages(start, again.batch(start)) == list(range(50, 60))


def test_the_lag_counts_ready_messages() -> None:
    query = Query(ready=50, maxOffsetsPerTrigger="20")
    end = query.batch(query.start())
    assert (ordinal(end), ordinal(query.progress.report_latest_offset())) == (20, 50)
