"""Options of the Spark source and sink: whatever text is given to one of them is taken, or is an
OptionError that names the option, what was given and what is expected."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OptionError
from penstock.options import Option
from penstock.spark.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    SinkOptions,
    parse_source_options,
)

URL = "http://h"
LONG = "9" * 5000  # more digits than Python makes a number of
NO_URL = ("amqp://h:port", "amqps://h:port", "http://h:99999", "http://", "ftp://h", "h:5672", "")
NO_JSON = ("", "s", "[]", "{", '{"s": 1}', "[" * 100_000)
NO_OFFSETS = (
    *NO_JSON, "first", '{"s": {"x": 1}}', '{"s": {"0": -3}}', '{"s": {"0": true}}',
    f'{{"s": {{"{LONG}": 1}}}}',
)  # fmt: skip
NO_TIME = ("", "soon", "-1", "1.5", LONG, "2013-13-01")
NO_TIMES = (
    *NO_JSON, '{"s": {"x": 1}}', '{"s": {"0": "soon"}}', f'{{"s": {{"0": "{LONG}"}}}}',
    f'{{"s": {{"{LONG}": 1}}}}',
)  # fmt: skip
NO_COUNT = ("", "0", "-1", "1.5", "many", LONG)
NO_TRUTH = ("", "yes", "2", "none")
NO_BYTES = ("", "-1", "64 megs", "1.5.5m", LONG)
NO_DURATION = ("", "soon", "-1s", "5 years", f"{LONG}h")
NO_NAME = ("", "n" * 256)
# All values of these are wrong without TLS.
WRONG_OF_TLS: dict[str, tuple[str, ...]] = {
    "cacerts": ("ca.pem",), "certfile": ("c.pem",), "keyfile": ("c.key",), "verify": NO_TRUTH,
}  # fmt: skip
WRONG_OF_SOURCE: dict[str, tuple[str, ...]] = {
    "url": NO_URL,
    "httpUrl": ("amqp://h", *NO_URL[2:]),
    "subscribe": ("", ",", " , "),
    "subscribePattern": ("(", "*", "a{99999999999999999999}", "(" * 10_000),
    "assign": (*NO_JSON, "{}", '{"s": []}', '{"s": [-1]}', '{"s": [true]}', '{"s": ["0"]}'),
    "startingTimestamp": NO_TIME,
    "startingOffsetsByTimestamp": NO_TIMES,
    "startingOffsets": NO_OFFSETS,
    "startingOffsetsByTimestampStrategy": ("", "earliest"),
    "endingTimestamp": NO_TIME,
    "endingOffsetsByTimestamp": NO_TIMES,
    "endingOffsets": (*NO_OFFSETS, "earliest"),
    "maxOffsetsPerTrigger": NO_COUNT,
    "maxBytesPerTrigger": ("0", *NO_BYTES),
    "minOffsetsPerTrigger": NO_COUNT,
    "maxTriggerDelay": NO_DURATION,
    "minPartitions": NO_COUNT,
    "maxBytesPerPartition": ("0", *NO_BYTES),
    "maxBytesPerTask": NO_BYTES,
    "maxRecordsPerPartition": NO_COUNT,
    "failOnDataLoss": NO_TRUTH,
    "includeHeaders": NO_TRUTH,
    "includeProperties": NO_TRUTH,
    "readerId": NO_NAME,
    "readerTimeout": (*NO_DURATION, "999ms", "3601s"),
    "access": ("", "both"),
    "pushdown": NO_TRUTH,
    "fetchOffset.retryIntervalMs": ("", "-1", "1.5", "1s", LONG),
    "fetchOffset.numRetries": ("", "-1", "1.5", "many", LONG),
    "timeoutMs": ("", "0", "-1", "1s", LONG),
    **WRONG_OF_TLS,
}
# Any text is a name of something; the catalog and the broker know whether it exists.
TEXTS_OF_SOURCE = ("path", "vhost", "columns")
WRONG_OF_SINK: dict[str, tuple[str, ...]] = {
    "url": NO_URL[:-1],
    "httpUrl": ("amqp://h", *NO_URL[2:-1]),
    "delivery": ("", "twice"),
    "persistent": NO_TRUTH,
    "mandatory": NO_TRUTH,
    "queryId": ("", "q" * 256),
    "batchId": ("", "-1", "1.5", "many", LONG),
    "failOnDataLoss": NO_TRUTH,
    "beginsLate": NO_TRUTH,
    "sameRows": NO_TRUTH,
    "timeout": ("", "-1", "soon", "nan", "inf", LONG),
    "in_flight": NO_COUNT,
    **WRONG_OF_TLS,
}
TEXTS_OF_SINK = ("queue", "exchange", "routing_key", "content_type", "deadLetterTo")


def read(name: str, text: str, *, is_streaming: bool) -> None:
    others = {} if name in ("subscribe", "subscribePattern", "assign") else {"subscribe": "s"}
    if name != "path":
        others["url"] = "amqp://h" if name == "httpUrl" else URL
    parse_source_options({**others, name: text}, is_streaming=is_streaming)


def write(name: str, text: str) -> None:
    others = {"url": URL} if name in ("queue", "exchange") else {"url": URL, "queue": "q"}
    if name in ("queryId", "batchId", "beginsLate"):
        others |= {"queryId": "q", "batchId": "1"}
    SinkOptions.of({**others, name: text}, {})


def blamed(call: Callable[[], None]) -> str | None:
    """Return which option is wrong, None if none is."""
    try:
        call()
    except OptionError as error:
        return error.name
    return None


def check_told(error: OptionError, name: str) -> None:
    assert error.name == name
    assert f"option {name}: given " in str(error)
    assert ", expected " in str(error)


def test_no_option_is_left_out() -> None:
    assert {option.name for option in SOURCE_OPTIONS} == {*WRONG_OF_SOURCE, *TEXTS_OF_SOURCE}
    assert {option.name for option in SINK_OPTIONS} == {*WRONG_OF_SINK, *TEXTS_OF_SINK}


@pytest.mark.parametrize("name", WRONG_OF_SOURCE)
def test_wrong_values_of_the_source(name: str) -> None:
    for text in WRONG_OF_SOURCE[name]:
        with pytest.raises(OptionError) as caught:
            read(name, text, is_streaming=False)
        check_told(caught.value, name)


@pytest.mark.parametrize("name", WRONG_OF_SINK)
def test_wrong_values_of_the_sink(name: str) -> None:
    for text in WRONG_OF_SINK[name]:
        with pytest.raises(OptionError) as caught:
            write(name, text)
        check_told(caught.value, name)


TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from([*WRONG_OF_SOURCE.values(), *WRONG_OF_SINK.values()]).flatmap(st.sampled_from),
    st.integers().map(str),
    st.floats().map(str),
)


@given(st.sampled_from(SOURCE_OPTIONS), TEXTS, st.booleans())
def test_any_text_is_taken_or_told_by_the_source(
    option: Option, text: str, is_streaming: bool
) -> None:
    name = option.name
    found = blamed(lambda: read(name, text, is_streaming=is_streaming))
    assert found in (None, name)


@given(st.sampled_from(SINK_OPTIONS), TEXTS)
def test_any_text_is_taken_or_told_by_the_sink(option: Option, text: str) -> None:
    name = option.name
    others = {"delivery": ("url",)}.get(name, ())
    assert blamed(lambda: write(name, text)) in (None, name, *others)


@given(st.text(min_size=1, max_size=12))
def test_an_unknown_name_is_told(name: str) -> None:
    for options, take in (
        (SOURCE_OPTIONS, lambda: read(name, "x", is_streaming=True)),
        (SINK_OPTIONS, lambda: write(name, "x")),
    ):
        known = {option.name.lower().replace("_", "") for option in options}
        if name.lower().replace("_", "") not in {*known, "path"}:
            with pytest.raises(OptionError):
                take()
