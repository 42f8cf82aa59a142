"""Options of the sink: names in any spelling, right values, and errors that say what is right."""

import pytest

from penstock.errors import OptionError
from penstock.spark.sink_options import SinkOptions


def test_a_queue_is_a_routing_key_of_the_default_exchange() -> None:
    options = SinkOptions.of({"queue": "late"})
    assert (options.exchange, options.routing_key, options.target) == ("", "late", "queue 'late'")
    assert (options.is_persistent, options.is_mandatory) == (True, True)
    assert (options.timeout_s, options.in_flight_max) == (60.0, 4096)


def test_names_are_taken_in_any_spelling() -> None:
    given = {
        "exchange": "x", "routingkey": "k", "contentType": "text/plain", "IN_FLIGHT": "5",
        "timeout": "1.5", "persistent": "False", "mandatory": "FALSE", "checkpointLocation": "/c",
        "delivery": "at-least-once", "url": "amqp://h",
    }  # fmt: skip
    options = SinkOptions.of(given)
    assert (options.exchange, options.routing_key, options.content_type) == ("x", "k", "text/plain")
    assert (options.in_flight_max, options.timeout_s, options.url) == (5, 1.5, "amqp://h")
    assert (options.is_persistent, options.is_mandatory) == (False, False)
    assert options.target == "exchange 'x'"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "either queue or exchange"),
        ({"queue": "a", "exchange": "b"}, "given \"queue='a' and exchange='b'\""),
        ({"queue": "a", "routing_key": "b"}, "option routing_key: given 'b'"),
        ({"queue": "a", "ulr": "x"}, "unknown option 'ulr', did you mean 'url'?"),
        ({"queue": "a", "delivery": "exactly-once"}, "exactly once into a broker is not available"),
        ({"queue": "a", "delivery": "maybe"}, "option delivery: given 'maybe', expected at-least"),
        ({"queue": "a", "timeout": "0"}, "option timeout: given '0'"),
        ({"queue": "a", "timeout": "soon"}, "option timeout: given 'soon'"),
        ({"queue": "a", "in_flight": "0"}, "option in_flight: given '0'"),
        ({"queue": "a", "in_flight": "many"}, "option in_flight: given 'many'"),
        ({"queue": "a", "persistent": "2"}, "option persistent: given '2', expected true or false"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError) as caught:
        SinkOptions.of(given)
    assert told in str(caught.value)
