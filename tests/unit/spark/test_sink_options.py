"""Options of the sink: names in any spelling, right values, and errors that say what is right."""

import pytest

from penstock.errors import OptionError
from penstock.spark.options import SinkOptions

AMQP = {"delivery": "at-least-once"}


def test_exactly_once_is_the_default_and_goes_to_the_http_port() -> None:
    options = SinkOptions.of({"queue": "late", "url": "amqp://me:pw@host:5673/v"}, {})
    assert options.place is not None
    assert (options.delivery, options.is_staged) == ("exactly-once", True)
    assert (options.place.http_url, options.place.vhost) == ("http://host:15672", "v")
    assert (options.place.user, options.place.password) == ("me", "pw")
    assert (options.queue, options.routing_key, options.target) == ("late", None, "queue 'late'")
    assert (options.is_persistent, options.is_mandatory, options.timeout_s) == (True, True, 60.0)


@pytest.mark.parametrize(
    ("given", "environment", "http_url"),
    [
        ({}, {}, "http://localhost:15672"),
        ({}, {"AMQP_URL": "amqp://a"}, "http://a:15672"),
        ({}, {"AMQP_URL": "amqp://a", "PENSTOCK_URL": "amqp://b"}, "http://b:15672"),
        ({"url": "http://c:80/v"}, {"AMQP_URL": "amqp://a"}, "http://c:80"),
        ({"url": "amqp://c", "httpUrl": "http://d:81"}, {}, "http://d:81"),
        ({"http_url": "https://d"}, {}, "https://d:15671"),
    ],
)
def test_where_to_stage(given: dict[str, str], environment: dict[str, str], http_url: str) -> None:
    options = SinkOptions.of({"queue": "q", **given}, environment)
    assert options.place is not None
    assert options.place.http_url == http_url


def test_a_queue_is_a_routing_key_of_the_default_exchange() -> None:
    options = SinkOptions.of({"queue": "late", **AMQP})
    assert (options.exchange, options.routing_key, options.target) == ("", "late", "queue 'late'")
    assert (options.place, options.is_staged, options.in_flight_max) == (None, False, 4096)


def test_names_are_taken_in_any_spelling() -> None:
    given = {
        "exchange": "x", "routingkey": "k", "contentType": "text/plain", "IN_FLIGHT": "5",
        "timeout": "1.5", "persistent": "False", "mandatory": "FALSE", "checkpointLocation": "/c",
        "dead_letter_to": "d", "query_id": "a", "BATCHID": "7", "delivery": "idempotent",
        "failondataloss": "False", "same_rows": "false", "beginslate": "true",
    }  # fmt: skip
    options = SinkOptions.of(given, {})
    assert (options.exchange, options.routing_key, options.content_type) == ("x", "k", "text/plain")
    assert (options.in_flight_max, options.timeout_s, options.delivery) == (5, 1.5, "idempotent")
    assert (options.is_persistent, options.is_mandatory, options.checkpoint) == (False, False, "/c")
    assert (options.dead_letter_to, options.query_id, options.batch_id) == ("d", "a", 7)
    assert options.target == "exchange 'x'"
    assert (options.fails_on_loss, options.has_same_rows) == (False, False)
    assert options.begins_late


def test_a_batch_that_is_done_again_has_the_same_rows_unless_it_is_said() -> None:
    options = SinkOptions.of({"queue": "q"}, {})
    assert (options.fails_on_loss, options.has_same_rows) == (True, True)
    assert not options.begins_late
    with pytest.raises(OptionError, match="failOnDataLoss: given 'true', expected none with"):
        SinkOptions.of({"queue": "q", "failOnDataLoss": "true", **AMQP})


def test_an_exchange_may_be_left_to_a_column() -> None:
    options = SinkOptions.of({}, {})
    assert (options.queue, options.exchange, options.target) == (None, None, "the exchanges")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"queue": "a", "exchange": "b"}, "given \"queue='a' and exchange='b'\""),
        ({"queue": "a", "routing_key": "b", **AMQP}, "option routing_key: given 'b'"),
        ({"queue": "a", "ulr": "x"}, "unknown option 'ulr', did you mean 'url'?"),
        ({"queue": "a", "delivery": "maybe"}, "given 'maybe', expected exactly-once or idempotent"),
        ({"queue": "a", "timeout": "0"}, "option timeout: given '0'"),
        ({"queue": "a", "timeout": "soon"}, "option timeout: given 'soon'"),
        ({"queue": "a", "in_flight": "0"}, "option in_flight: given '0'"),
        ({"queue": "a", "in_flight": "many"}, "option in_flight: given 'many'"),
        ({"queue": "a", "persistent": "2"}, "option persistent: given '2', expected true or false"),
        ({"queue": "a", "beginsLate": "true"}, "beginsLate: given 'true', expected none without q"),
        ({"queue": "a", "queryId": "x"}, "batchId: given None, expected queryId and batchId"),
        ({"queue": "a", "batchId": "1"}, "option queryId: given None"),
        ({"queue": "a", "queryId": "", "batchId": "1"}, "option queryId: given ''"),
        ({"queue": "a", "queryId": "x", "batchId": "-1"}, "option batchId: given '-1'"),
        ({"queue": "a", "queryId": "x", "batchId": "1", **AMQP}, "none with delivery=at-least-on"),
        ({"queue": "a", "httpUrl": "http://x", **AMQP}, "option httpUrl: given 'http://x'"),
        ({"queue": "a", "url": "http://u:secret@x", **AMQP}, "option url: given 'http://...', exp"),
        ({"queue": "a", "url": "ftp://u:secret@x"}, "option url: given 'ftp://***@x'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        SinkOptions.of(given, {})
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)
