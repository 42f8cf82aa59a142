"""The source's options: Kafka's names and meanings, and what is said of a wrong one."""

from pathlib import Path

import pytest

from penstock.errors import OptionError
from penstock.spark.options import (
    EARLIEST,
    LATEST,
    SOURCE_OPTIONS,
    Bound,
    Place,
    SourceOptions,
    parse_place,
    parse_source_options,
)

OPTIONS = [option.name for option in SOURCE_OPTIONS]

URL = {"url": "http://u:p%40ss@example.org:1234/my%2Fvhost"}


def parsed(is_streaming: bool = True, /, **given: str) -> SourceOptions:
    options = {name.replace("__", "."): value for name, value in given.items()}
    return parse_source_options({**URL, "subscribe": "s", **options}, is_streaming=is_streaming)


def refused(is_streaming: bool = True, /, **given: str) -> str:
    with pytest.raises(OptionError) as caught:
        parsed(is_streaming, **given)
    return str(caught.value)


def test_what_is_said_when_nothing_is() -> None:
    found = parsed()
    assert found.place == Place("http://example.org:1234", "u", "p@ss", "my/vhost")
    assert found.subscribe == ("s",)
    assert (found.starting, found.ending) == (Bound(offset=LATEST), Bound(offset=LATEST))
    assert parsed(False).starting == Bound(offset=EARLIEST)
    assert (found.fail_on_data_loss, found.include_headers, found.access) == (True, False, "auto")
    assert (found.max_bytes_per_trigger, found.max_bytes_per_partition) == (512 << 20, 256 << 20)
    assert (found.max_offsets_per_trigger, found.min_offsets_per_trigger) == (None, None)
    assert (found.retries, found.retry_interval_s, found.timeout_s) == (None, 0.2, 60.0)


def test_spaces_around_a_number_do_not_count() -> None:
    assert parsed(minPartitions=" 5 ").min_partitions == 5


def test_options_count_in_any_case() -> None:
    found = parse_source_options(
        {"URL": "http://h", "SUBSCRIBE": "a, b,a", "MaxOffsetsPerTrigger": "7"}, is_streaming=True
    )
    assert (found.subscribe, found.max_offsets_per_trigger) == (("a", "b"), 7)
    lower = {name.lower() for name in OPTIONS}
    assert len(lower) == len(OPTIONS)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://host", Place("http://host:15672")),
        ("https://host:443/", Place("https://host:443")),
        ("http://[::1]:80", Place("http://[::1]:80")),
        ("amqp://u:p@host:5673/v", Place("http://host:15672", "u", "p", "v")),
        ("amqp://host", Place("http://host:15672")),
    ],
)
def test_places(url: str, place: Place) -> None:
    assert parse_place({"url": url}) == place


def test_the_http_address_beside_an_amqp_url() -> None:
    given = {"url": "amqp://u:p@a/v", "httpUrl": "http://b:99"}
    assert parse_place(given) == Place("http://b:99", "u", "p", "v")
    assert parse_place({"path": "/d", "vhost": "x"}) == Place(path="/d", vhost="x")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "either 'url' of a broker or 'path' of a store"),
        ({"url": "http://a", "path": "b"}, "either 'url' of a broker or 'path' of a store"),
        ({"url": "ftp://u:secret@a"}, r"given 'ftp://\*\*\*@a', expected http://user"),
        ({"url": "http://a:port"}, "expected http://user"),
        ({"url": "http://a", "vhost": "v"}, "the vhost at the end of 'url'"),
        ({"path": "a", "httpUrl": "http://b"}, "'url', not 'path', with it"),
    ],
)
def test_places_that_are_none(given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text) as caught:
        parse_place(given)
    assert "secret" not in str(caught.value)


def test_a_place_is_shown_without_its_password() -> None:
    place = parse_place(URL)
    assert "p@ss" not in str(place) + repr(place)


def test_streams_are_named_once_and_in_one_way() -> None:
    found = parse_source_options({**URL, "assign": '{"s": [1, 0, 1]}'}, is_streaming=True)
    assert found.assign == {"s": (0, 1)}
    found = parse_source_options({**URL, "subscribePattern": "s.*"}, is_streaming=True)
    assert found.subscribe_pattern == "s.*"
    assert "none with 'subscribe'" in refused(assign='{"s": [0]}')
    assert "a regular expression" in _refused({"subscribePattern": "("})
    for wrong in ('{"s": []}', '{"s": 1}', "[]", "{", '{"s": ["0"]}', "{}"):
        assert 'JSON such as {"stream": [0, 1]}' in _refused({"assign": wrong})
    assert "'subscribe', 'subscribePattern' or 'assign'" in _refused({})
    assert "names of streams" in _refused({"subscribe": " , "})


def _refused(given: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        parse_source_options({**URL, **given}, is_streaming=True)
    return str(caught.value)


def test_a_store_with_one_stream_needs_no_name() -> None:
    assert parse_source_options({"path": "d"}, is_streaming=False).subscribe == ()


def test_starting_offsets() -> None:
    assert parsed(startingOffsets="Earliest").starting == Bound(offset=EARLIEST)
    assert parsed(startingOffsets="latest").starting == Bound(offset=LATEST)
    found = parsed(startingOffsets='{"s": {"0": 23, "1": -1, "2": -2, "id": "ab"}}').starting
    assert (found.offsets, found.ids) == ({"s": {0: 23, 1: -1, 2: -2}}, {"s": "ab"})
    for wrong in (
        "newest",
        '{"s": 1}',
        '{"s": {"a": 1}}',
        '{"s": {"0": -3}}',
        '{"s": {"0": true}}',
    ):
        assert "earliest, latest or JSON such as" in refused(startingOffsets=wrong)


def test_a_batch_does_not_begin_at_the_latest_offset() -> None:
    """As Kafka's source: such a batch has no records, so the option is a mistake."""
    assert parsed(False, startingOffsets="earliest").starting == Bound(offset=EARLIEST)
    assert parsed(False, startingOffsets='{"s": {"0": -2}}').starting.offsets == {"s": {0: -2}}
    for wrong in ("latest", '{"s": {"0": 4, "1": -1}}'):
        told = refused(False, startingOffsets=wrong)
        assert "earliest or JSON such as" in told
        assert "a batch has no records from the latest offset on" in told


def test_ending_offsets_are_of_batches_only() -> None:
    assert parsed(False, endingOffsets="latest").ending == Bound(offset=LATEST)
    assert parsed(False, endingOffsets='{"s": {"0": 5}}').ending.offsets == {"s": {0: 5}}
    assert "latest or JSON" in refused(False, endingOffsets="Earliest")
    assert "latest or JSON" in refused(False, endingOffsets='{"s": {"0": -2}}')
    assert "a stream has no end" in refused(endingTimestamp="5")


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1357016400000", 1357016400000_000),
        ("2013-01-01T05:00:00Z", 1357016400000_000),
        ("2013-01-01 06:00:00+01:00", 1357016400000_000),
        ("2013-01-01T05:00:00.000001", 1357016400000_001),
    ],
)
def test_times(text: str, time_us: int) -> None:
    assert parsed(startingTimestamp=text).starting == Bound(time_us=time_us)
    by_partition = parsed(startingOffsetsByTimestamp=f'{{"s": {{"0": "{text}"}}}}').starting
    assert by_partition == Bound(times_us={"s": {0: time_us}})
    assert parsed(False, endingTimestamp=text).ending == Bound(time_us=time_us)


def test_a_time_for_all_wins_over_times_and_those_over_offsets() -> None:
    times = '{"s": {"0": 7}}'
    three = parsed(
        startingTimestamp="5", startingOffsetsByTimestamp=times, startingOffsets="latest"
    )
    assert three.starting == Bound(time_us=5000)
    two = parsed(startingOffsetsByTimestamp=times, startingOffsets="latest")
    assert two.starting == Bound(times_us={"s": {0: 7000}})
    assert "milliseconds since 1970" in refused(startingTimestamp="yesterday")
    assert parsed(startingOffsetsByTimestampStrategy="latest").is_strict_time is False
    assert "error or latest" in refused(startingOffsetsByTimestampStrategy="none")


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("64m", 64 << 20), ("2 GiB", 2 << 30), ("3kb", 3 << 10), ("5B", 5), ("1T", 1 << 40)],
)
def test_bytes(text: str, count: int) -> None:
    assert parsed(maxBytesPerTrigger=text).max_bytes_per_trigger == count


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30), ("15m", 900), ("2 h", 7200), ("1.5min", 90)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parsed(maxTriggerDelay=text).max_trigger_delay_s == seconds


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("maxOffsetsPerTrigger", "0", "a whole number, at least 1"),
        ("minOffsetsPerTrigger", "-1", "a whole number, at least 1"),
        ("minPartitions", "many", "a whole number, at least 1"),
        ("maxRecordsPerPartition", "1.5", "a whole number, at least 1"),
        ("maxBytesPerTrigger", "0", "a number of bytes from 1 on"),
        ("maxBytesPerPartition", "64 megs", "a number of bytes from 1 on"),
        ("maxBytesPerTask", "-1", "a number of bytes from 0 on"),
        ("maxTriggerDelay", "soon", "a time such as 500ms"),
        ("failOnDataLoss", "yes", "true or false"),
        ("includeHeaders", "1", "true or false"),
        ("pushdown", "on", "true or false"),
        ("access", "both", "auto or file or network"),
        ("readerId", "", "a name of 1 to 255 bytes"),
        ("fetchOffset__numRetries", "-1", "a whole number, at least 0"),
    ],
)
def test_values_that_are_wrong(name: str, wrong: str, expected: str) -> None:
    text = refused(**{name: wrong})
    assert name.replace("__", ".") in text
    assert f"given {wrong!r}, expected {expected}" in text


def test_an_unknown_option_is_refused_with_the_right_one() -> None:
    assert "did you mean 'maxOffsetsPerTrigger'?" in refused(maxOffsetsPerTriger="5")
    assert "did you mean 'maxOffsetsPerTrigger'?" in refused(maxoffsetspertriger="5")
    assert refused(quux="5").startswith("unknown option 'quux', known are ")


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("kafka.bootstrap.servers", "'url' of the broker"),
        ("kafka.group.id", "'readerId'"),
        ("groupIdPrefix", "'readerId'"),
        ("kafkaConsumer.pollTimeoutMs", "'timeoutMs'"),
        ("kafka.security.protocol", "no option of Kafka's clients"),
        ("topic", "'subscribe' to read"),
        ("includeTimestamp", "the column 'timestamp'"),
    ],
)
def test_options_of_kafka_alone_say_what_to_use(name: str, instead: str) -> None:
    assert instead in _refused({"subscribe": "s", name.lower(): "x"})


# The table of options for a source in Spark's Kafka integration guide.
KAFKAS_TABLE = (
    "assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "endingOffsets", "failOnDataLoss", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs", "maxOffsetsPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition", "groupIdPrefix",
    "kafka.group.id", "includeHeaders", "startingOffsetsByTimestampStrategy",
)  # fmt: skip


@pytest.mark.parametrize("name", KAFKAS_TABLE)
def test_each_option_of_kafkas_guide_is_ours_or_says_what_to_use(name: str) -> None:
    if name not in OPTIONS:
        text = _refused({"subscribe": "s", name: "x"})
        assert "expected '" in text
        assert name.lower() in text


def test_each_option_stands_in_the_guide() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "spark-source.md").read_text()
    assert not [name for name in OPTIONS if f"`{name}`" not in guide]


def test_the_defaults_in_the_guide_are_true() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "spark-source.md").read_text()
    rows = {
        row.split("|")[1].strip(): row.split("|")[3].strip()
        for row in guide.splitlines()
        if row.startswith("| `")
    }
    plain = {**URL, "subscribe": "s"}
    said = {name: rows[f"`{name}`"].strip("`") for name in (
        "startingOffsetsByTimestampStrategy", "maxBytesPerTrigger", "maxBytesPerPartition",
        "failOnDataLoss", "access", "pushdown", "timeoutMs",
    )}  # fmt: skip
    assert parse_source_options({**plain, **said}, is_streaming=True) == parsed()


def test_a_long_value_is_cut_in_the_error() -> None:
    text = refused(maxBytesPerTrigger="x" * 100_000)
    assert text.startswith("option maxBytesPerTrigger: given 'xxx")
    assert "..., expected" in text
    assert len(text) < 400
    with pytest.raises(OptionError) as caught:
        parse_source_options({"path": "/x", "y" * 100_000: "1"}, is_streaming=False)
    assert len(str(caught.value)) < 600
