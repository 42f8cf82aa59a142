"""What the driver asks about classic queues, and what becomes of answers that are lost."""

from typing import Any

import pytest

from penstock.errors import OptionError
from penstock.spark.catalog import MESSAGES_MAX, BrokerCatalog
from penstock.spark.http_link import RefusedError
from penstock.spark.options import parse_source_options
from tests.helpers.tiny_http import Answer, TinyHttp

QUEUE = "/api/leases/%2F/q"
READER = f"{QUEUE}/job%201"
STREAM = "GET /api/streams/%2F/q"
NOT_A_STREAM = Answer(409, {"error": "not_a_stream", "reason": "queue 'q' is classic"})
IS_A_STREAM = Answer(409, {"error": "is_a_stream", "reason": "'q' is a stream"})
AWAY = Answer(503, {"error": "unavailable", "reason": "vhost restarts"})
LOST = Answer(200, b"{}", cut_at=1)


def told(first: int, head: int, ready: int = 0, **more: Any) -> Answer:
    """A lease as the broker describes it; bodies of 100 B."""
    row = {
        "name": "q", "reader": "job 1", "first": first, "head": head, "ready": ready,
        "ready_bytes": ready * 100, "bytes": (head - first) * 100, "since_ms": 0,
        "path": "/l/q", "stream_id": "ab" * 16 if head else "", "last_time_us": 5,
    }  # fmt: skip
    return Answer(200, {**row, **more})


def catalog_for(broker: TinyHttp, reader: str = "job 1", **given: str) -> BrokerCatalog:
    fast = {"subscribe": "q", "fetchOffset.retryIntervalMs": "0", **given}
    options = parse_source_options({"url": broker.url, **fast}, is_streaming=True)
    catalog = BrokerCatalog(options, lambda: 0.0)  # what was asked stays good until is_fresh
    if reader:
        catalog.named(reader)
    return catalog


def asked(broker: TinyHttp) -> list[tuple[str, Any]]:
    return [one[:2] for one in broker.asked]


def test_a_classic_queue_is_found_out_once() -> None:
    answers = {STREAM: [NOT_A_STREAM], f"GET {READER}": [told(3, 7, 10)]}
    with TinyHttp(answers) as broker:
        catalog = catalog_for(broker)
        head = catalog.heads()["q"][0]
        assert (head.first, head.head, head.ready, head.end) == (3, 7, 10, 17)
        assert (head.reader, head.path, head.record_bytes) == ("job 1", "/l/q", 100)
        catalog.heads(is_fresh=True)
        assert asked(broker) == [(STREAM, None), *[(f"GET {READER}", None)] * 2]


def test_a_question_is_good_for_a_moment() -> None:
    with TinyHttp({STREAM: [NOT_A_STREAM], f"GET {READER}": [told(0, 0)]}) as broker:
        catalog = catalog_for(broker)
        for _ in range(50):
            catalog.heads()
        assert len(broker.asked) == 2


def test_a_batch_read_is_refused() -> None:
    told = r"'q', expected a stream: .*availableNow.*box\.browse"
    with TinyHttp({STREAM: [NOT_A_STREAM]}) as broker, pytest.raises(OptionError, match=told):
        catalog_for(broker, reader="").heads()


def test_a_queue_that_was_declared_again_as_a_stream() -> None:
    partition = {
        "partition": 0, "stream_id": "cd", "path": "", "first": 0, "head": 4, "last_time_us": 0,
        "bytes": 5,
    }  # fmt: skip
    answers = {
        STREAM: [NOT_A_STREAM, Answer(200, {"name": "q", "partitions": [partition]})],
        f"GET {READER}": [told(0, 2), IS_A_STREAM],
    }
    with TinyHttp(answers) as broker:
        catalog = catalog_for(broker)
        assert catalog.heads()["q"][0].reader == "job 1"
        head = catalog.heads(is_fresh=True)["q"][0]
        assert (head.reader, head.head) == ("", 4)


def test_one_that_is_not_there_is_a_loss_only_if_it_was_read_before() -> None:
    gone = Answer(404, {"error": "not_found", "reason": "no queue 'q' in vhost '/'"})
    with TinyHttp({STREAM: [gone]}) as broker:
        catalog = catalog_for(broker, failOnDataLoss="false")
        with pytest.raises(OptionError, match=r"given 'q', expected what exists .* no queue 'q'"):
            catalog.heads()
        catalog.known(["q"])
        assert catalog.heads() == {}
        strict = catalog_for(broker)
        strict.known(["q"])
        with pytest.raises(OptionError, match="no queue 'q'"):
            strict.heads()


def test_leasing_and_committing() -> None:
    answers = {
        STREAM: [NOT_A_STREAM],
        f"GET {READER}": [told(0, 0, 50)],
        f"POST {READER}": [told(0, 20, 30)],
        f"PUT {READER}": [Answer(200, {"first": 20})],
    }
    with TinyHttp(answers) as broker:
        catalog = catalog_for(broker)
        catalog.heads()
        assert catalog.lease("q", 0, 20, 5000).head == 20
        assert asked(broker)[2:] == [(f"POST {READER}", {"messages": 20, "bytes": 5000})]
        catalog.commit("q", 20)
        assert asked(broker)[3:] == [(f"PUT {READER}", {"committed": 20})]
        head = catalog.heads()["q"][0]
        assert (head.first, head.head, head.bytes) == (20, 20, 0)


def test_many_messages_are_leased_a_part_at_a_time() -> None:
    more = MESSAGES_MAX
    answers = {
        STREAM: [NOT_A_STREAM],
        f"GET {READER}": [told(0, 0, 3 * more)],
        f"POST {READER}": [told(0, more, 2 * more), told(0, 2 * more, more), told(0, 2 * more)],
    }
    with TinyHttp(answers) as broker:
        catalog = catalog_for(broker)
        catalog.heads()
        assert catalog.lease("q", 0, 5 * more, 1000 * more).head == 2 * more
        posted = [body for address, body in asked(broker) if address.startswith("POST")]
        assert [body["messages"] for body in posted] == [more] * 3
        assert [body["bytes"] for body in posted] == [1000 * more, 900 * more, 800 * more]
        assert catalog.lease("q", 0, 0, None).ready == 3 * more  # nothing is asked for: a look


def test_bytes_end_it() -> None:
    more = MESSAGES_MAX
    answers = {
        STREAM: [NOT_A_STREAM],
        f"GET {READER}": [told(0, 0, 3 * more)],
        f"POST {READER}": [told(0, more, 2 * more)],
    }
    with TinyHttp(answers) as broker:
        catalog = catalog_for(broker)
        catalog.heads()
        assert catalog.lease("q", 0, 3 * more, 100 * more).head == more
        assert len(broker.asked) == 3


@pytest.mark.parametrize("lost", [AWAY, LOST])
def test_a_lost_answer_is_looked_up_before_more_is_leased(lost: Answer) -> None:
    answers = {
        STREAM: [NOT_A_STREAM],
        f"GET {READER}": [told(0, 0, 50), told(0, 20, 30)],
        f"POST {READER}": [lost],
    }
    with TinyHttp(answers) as broker:
        catalog = catalog_for(broker)
        catalog.heads()
        assert catalog.lease("q", 0, 20, None).head == 20
        assert [address for address, _ in asked(broker)[2:]] == [f"POST {READER}", f"GET {READER}"]


def test_a_question_that_never_came_is_asked_again() -> None:
    answers = {
        STREAM: [NOT_A_STREAM],
        f"GET {READER}": [told(0, 0, 50)],
        f"POST {READER}": [AWAY, told(0, 20, 30)],
    }
    with TinyHttp(answers) as broker:
        catalog = catalog_for(broker)
        catalog.heads()
        assert catalog.lease("q", 0, 20, None).head == 20
        posts = [address for address, _ in asked(broker) if address.startswith("POST")]
        assert len(posts) == 2


def test_a_broker_that_is_away_is_asked_again_for_each_question() -> None:
    page = {"base": 0, "records": 9, "bytes": 90}
    answers = {
        STREAM: [AWAY, NOT_A_STREAM],
        f"GET {READER}": [AWAY, LOST, told(0, 9)],
        f"PUT {READER}": [LOST, AWAY, Answer(200, {"first": 9})],
        f"GET {READER}/pages": [AWAY, Answer(200, {"pages": [page]})],
    }  # fmt: skip
    with TinyHttp(answers) as broker:
        catalog = catalog_for(broker)
        assert catalog.heads()["q"][0].head == 9
        assert catalog.pages("q", 0).bytes_before(3) == 30
        catalog.commit("q", 9)
        assert len(broker.asked) == 10


def test_a_broker_that_stays_away_is_an_error() -> None:
    with TinyHttp({STREAM: [NOT_A_STREAM], f"GET {READER}": [AWAY]}) as broker:
        with pytest.raises(RefusedError, match="503: vhost restarts"):
            catalog_for(broker, **{"fetchOffset.numRetries": "2"}).heads()
        assert len(broker.asked) == 4


def test_a_refusal_is_told_at_once() -> None:
    no = Answer(406, {"error": "precondition_failed", "reason": "queue 'q' is not durable"})
    with TinyHttp({STREAM: [NOT_A_STREAM], f"GET {READER}": [no]}) as broker:
        with pytest.raises(RefusedError, match="406: queue 'q' is not durable"):
            catalog_for(broker).heads()
        assert len(broker.asked) == 2
