"""Options of the source and of the sink: what a Spark job may say, checked at once and frozen.

**Source.** The names are those of Spark's Kafka integration guide where it has one, with the same
meaning and `stream` for topic. An option of Kafka's that has no equivalent is refused with the
option to use instead, an unknown name with the nearest known one.

    url, httpUrl | path     the broker: http://user:password@host:15672/vhost, or amqp://..., whose
                            host's port 15672 is used then (httpUrl names another one); or the
                            directory of a store, a vhost or a stream, read beside its owner
    vhost                   the vhost, for `path` of a whole store                            "/"

    subscribe | subscribePattern | assign                        streams; by name also classic
                                                                 queues, which are leased
    startingTimestamp | startingOffsetsByTimestamp | startingOffsets   where to begin
    endingTimestamp | endingOffsetsByTimestamp | endingOffsets         where to end, batch only

Of three, the first that is given counts. docs/guides/spark-source.md lists all options with their
defaults. A timestamp is a whole number of milliseconds since 1970, as Kafka's, or an ISO 8601 time,
in UTC without a zone.

**Sink.**

    url             amqp://user:password@host:port/vhost,     PENSTOCK_URL, AMQP_URL, this host
                    or http://... as for the source
    httpUrl         the broker's HTTP port                    port 15672 of that host
    queue           name of a queue or stream                 one of these is required
    exchange        name; or the column of that name
    routing_key     of all rows                               the column, else "" or the queue
    content_type    of all rows                               none
    delivery        exactly-once, idempotent, at-least-once   exactly-once
    persistent      true, false                               true
    mandatory       true, false: a row that no queue gets     true
                    fails the batch (at-least-once: the task)
    deadLetterTo    a queue for rows whose target was         none: the batch waits
                    deleted after the commit
    queryId,        for foreachBatch: the query and the       a batch is a job of its own
    batchId         number of the batch
    failOnDataLoss  true, false: an error if batches of       true
                    this query are missing at the broker
    beginsLate      true, false: with queryId: the first      false
                    batch may have any number
    sameRows        true, false: an error if a repeated       true
                    batch has other rows
    timeout         seconds without the broker, after which   60
                    a task or a commit fails
    in_flight       at-least-once: unconfirmed rows of a      4096
                    task

A sink's name may be written as routing_key or routingKey. Spark ignores case in all names.

This module imports no pyspark.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.amqp_url import DEFAULT, ESCAPED, VARIABLES, AmqpUrl, without_password
from penstock.errors import OptionError

HTTP_PORT: Final = 15672
ACCESS: Final = ("auto", "file", "network")
STRATEGIES: Final = ("error", "latest")
READER_TIMEOUT_S_MAX: Final = 3600
EARLIEST: Final = -2  # as an offset, in Kafka's JSON and in ours
LATEST: Final = -1
# Words for an offset: where a stream may begin, where a batch may begin, where a batch may end. As
# with Kafka's source, a batch has neither a start at the latest offset nor an end at the earliest.
STREAM_STARTS: Final = {"earliest": EARLIEST, "latest": LATEST}
STARTS: Final = {"earliest": EARLIEST}
ENDS: Final = {"latest": LATEST}

SOURCE_NAMES: Final = (
    "url", "httpUrl", "path", "vhost", "subscribe", "subscribePattern", "assign",
    "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp",
    "endingOffsetsByTimestamp", "failOnDataLoss", "includeHeaders", "includeProperties", "columns",
    "minPartitions", "maxRecordsPerPartition", "maxBytesPerPartition", "maxBytesPerTask",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "readerId", "readerTimeout",
    "access", "pushdown", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "timeoutMs",
)  # fmt: skip

# Options of Kafka's source that this one does not have -> what to use instead. Lower case.
KAFKAS: Final = {
    "kafka.bootstrap.servers": "'url' of the broker, or 'path' of its store",
    "kafka.group.id": "'readerId'",
    "groupidprefix": "'readerId'",
    "kafkaconsumer.polltimeoutms": "'timeoutMs'",
    "includetimestamp": "the column 'timestamp', which is always there",
    "topic": "'subscribe' to read; 'topic' belongs to a sink",
}

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BYTES: Final = re.compile(r"(\d+)\s*(|[kmgt])(|b|ib)", re.IGNORECASE)
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the streams are: http_url ("http://host:port") with its user, or path. option: the one
    that names http_url. amqp: host and port of a url with amqp://."""

    http_url: str = ""
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    path: str = ""
    option: str = field(default="url", compare=False, repr=False)
    amqp: tuple[str, int] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        """Return the place without its password, for messages."""
        return self.path or f"{self.http_url} (vhost {self.vhost!r}, as {self.user})"


def parse_place(given: Mapping[str, str]) -> Place:
    """Return the place that `url` with `httpUrl`, or `path` with `vhost` name. Raises
    OptionError."""
    options = lowered(given)
    url, path = options.get("url"), options.get("path")
    if (url is None) == (path is None):
        both = None if url is None else f"{without_password(url)} and path {path}"
        raise OptionError("url", both, "either 'url' of a broker or 'path' of a store")
    if path is not None:
        if "httpurl" in options:
            raise OptionError("httpUrl", options["httpurl"], "'url', not 'path', with it")
        return Place(path=path, vhost=options.get("vhost", "/"))
    assert url is not None
    if "vhost" in options:
        raise OptionError("vhost", options["vhost"], "the vhost at the end of 'url'")
    return _url_place(url, options.get("httpurl"))


def _url_place(url: str, http_url: str | None) -> Place:
    if url.startswith("amqp:"):
        amqp = AmqpUrl.parse(url)
        host = f"[{amqp.host}]" if ":" in amqp.host else amqp.host
        base = _http_base("httpUrl", http_url) if http_url else f"http://{host}:{HTTP_PORT}"
        return Place(
            base, amqp.user, amqp.password, amqp.vhost,
            option="httpUrl" if http_url else "url", amqp=(amqp.host, amqp.port),
        )  # fmt: skip
    base = _http_base("url", url)
    if http_url is not None:
        base = _http_base("httpUrl", http_url)
    parts = urlsplit(url)
    return Place(
        base,
        "guest" if parts.username is None else unquote(parts.username),
        "guest" if parts.password is None else unquote(parts.password),
        unquote(parts.path[1:]) or "/",
        option="url" if http_url is None else "httpUrl",
    )


def _http_base(name: str, text: str) -> str:
    """Return http://host:port of a URL."""
    expected = "http://user:password@host:15672/vhost or amqp://user:password@host/vhost"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # its text may contain a part of the password
        raise OptionError(name, without_password(text), f"{expected}, {ESCAPED}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError(name, without_password(text), expected)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or HTTP_PORT}"


# ---- the source ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    """Where to begin or to end: one offset (EARLIEST, LATEST) or time for all partitions, or one
    for each. ids: ids of the streams that the offsets belong to. is_default: no option was given.
    """

    offset: int | None = None
    time_us: int | None = None
    offsets: dict[str, dict[int, int]] | None = None
    times_us: dict[str, dict[int, int]] | None = None
    ids: dict[str, str] = field(default_factory=dict)
    is_default: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of a reader. None: no limit, or not given."""

    place: Place
    starting: Bound
    ending: Bound
    subscribe: tuple[str, ...] = ()
    subscribe_pattern: str | None = None
    assign: dict[str, tuple[int, ...]] | None = None
    is_strict_time: bool = True  # a starting time after the last record is an error
    fail_on_data_loss: bool = True
    include_headers: bool = False
    include_properties: bool = False
    columns: tuple[str, ...] = ()
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_bytes_per_partition: int = 256 << 20
    max_bytes_per_task: int | None = None
    max_offsets_per_trigger: int | None = None
    max_bytes_per_trigger: int = 512 << 20
    lease_bytes_per_trigger: int = field(default=256 << 20, compare=False)  # of classic queues
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_s: float = 900.0
    reader_id: str | None = None
    reader_timeout_s: int = 15
    access: str = "auto"
    has_pushdown: bool = False
    retries: int | None = None
    retry_interval_s: float = 0.2
    timeout_s: float = 60.0


def parse_source_options(given: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Parse the options of a reader. Raises OptionError, which names the wrong one."""
    options = lowered(given)
    _refuse_kafkas(options)
    _refuse_unknown(options)
    ending = [
        name for name in SOURCE_NAMES if name.startswith("ending") and name.lower() in options
    ]
    if is_streaming and ending:
        raise OptionError(ending[0], options[ending[0].lower()], "none: a stream has no end")
    subscribe, pattern, assign = _streams(options)
    place = parse_place(options)
    if not place.path and (subscribe, pattern, assign) == ((), None, None):
        raise OptionError("subscribe", None, "'subscribe', 'subscribePattern' or 'assign'")
    retries = _whole(options, "fetchOffset.numRetries", 0)
    interval_ms = _whole(options, "fetchOffset.retryIntervalMs", 0)
    default = LATEST if is_streaming else EARLIEST
    return SourceOptions(
        place=place,
        starting=_bound(options, "starting", default, STREAM_STARTS if is_streaming else STARTS),
        ending=_bound(options, "ending", LATEST, ENDS),
        subscribe=subscribe,
        subscribe_pattern=pattern,
        assign=assign,
        is_strict_time=_one_of(options, "startingOffsetsByTimestampStrategy", STRATEGIES)
        == "error",
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        include_headers=_flag(options, "includeHeaders", False),
        include_properties=_flag(options, "includeProperties", False),
        columns=_names(options, "columns"),
        min_partitions=_whole(options, "minPartitions"),
        max_records_per_partition=_whole(options, "maxRecordsPerPartition"),
        max_bytes_per_partition=_bytes(options, "maxBytesPerPartition", 256 << 20),
        max_bytes_per_task=_bytes_if_given(options, "maxBytesPerTask"),
        max_offsets_per_trigger=_whole(options, "maxOffsetsPerTrigger"),
        max_bytes_per_trigger=_bytes(options, "maxBytesPerTrigger", 512 << 20),
        lease_bytes_per_trigger=_bytes(options, "maxBytesPerTrigger", 256 << 20),
        min_offsets_per_trigger=_whole(options, "minOffsetsPerTrigger"),
        max_trigger_delay_s=_seconds(options, "maxTriggerDelay", 900.0),
        reader_id=_reader_id(options),
        reader_timeout_s=_reader_timeout(options),
        access=_one_of(options, "access", ACCESS),
        has_pushdown=_flag(options, "pushdown", False),
        retries=retries,
        retry_interval_s=(200 if interval_ms is None else interval_ms) / 1000,
        timeout_s=(_whole(options, "timeoutMs") or 60_000) / 1000,
    )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    """Raise OptionError for the first unknown name, with the nearest known one."""
    known = {name.lower() for name in SOURCE_NAMES}
    for name, value in options.items():
        if name not in known:
            raise OptionError(name, value, SOURCE_NAMES)


def _refuse_kafkas(options: Mapping[str, str]) -> None:
    for name, value in options.items():
        if name in KAFKAS:
            raise OptionError(name, value, f"{KAFKAS[name]}: '{name}' is an option of Kafka's")
        if name.startswith("kafka."):
            expected = "no option of Kafka's clients: see docs/guides/spark-source.md"
            raise OptionError(name, value, expected)


# ---- which streams, and from where to where ------------------------------------------------------


def _streams(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...], str | None, dict[str, tuple[int, ...]] | None]:
    three = ("subscribe", "subscribePattern", "assign")
    given = [name for name in three if name.lower() in options]
    if len(given) > 1:
        raise OptionError(given[1], options[given[1].lower()], f"none with {given[0]!r}")
    pattern = options.get("subscribepattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            expected = f"a regular expression ({error})"
            raise OptionError("subscribePattern", pattern, expected) from None
    subscribe = _names(options, "subscribe")
    if "subscribe" in options and not subscribe:
        raise OptionError(
            "subscribe", options["subscribe"], "names of streams, with commas between"
        )
    return subscribe, pattern, _assigned(options)


def _assigned(options: Mapping[str, str]) -> dict[str, tuple[int, ...]] | None:
    text = options.get("assign")
    if text is None:
        return None
    expected = 'JSON such as {"stream": [0, 1]}'
    found = _json("assign", text, expected)
    assign: dict[str, tuple[int, ...]] = {}
    for name, partitions in found.items():
        if not isinstance(partitions, list) or not partitions:
            raise OptionError("assign", text, expected)
        if not all(isinstance(one, int) and one >= 0 for one in partitions):
            raise OptionError("assign", text, expected)
        assign[name] = tuple(sorted(set(partitions)))
    if not assign:
        raise OptionError("assign", text, expected)
    return assign


def _bound(options: Mapping[str, str], which: str, default: int, words: Mapping[str, int]) -> Bound:
    """Parse the three options for a start or an end: one time for all, else times, else offsets.
    words: that may be given instead of an offset."""
    name = f"{which}Timestamp"
    if name.lower() in options:
        return Bound(time_us=_time_us(name, options[name.lower()]))
    name = f"{which}OffsetsByTimestamp"
    if name.lower() in options:
        return Bound(times_us=_times(name, options[name.lower()]))
    name = f"{which}Offsets"
    text = options.get(name.lower())
    if text is None:
        return Bound(offset=default, is_default=True)
    offset = words.get(text.lower())
    if offset is not None:
        return Bound(offset=offset)
    numbers = " and ".join([f"{mark} for the {word}" for word, mark in words.items()])
    expected = f'{", ".join(words)} or JSON such as {{"stream": {{"0": 23}}}}, with {numbers}'
    if words is STARTS:
        expected += "; a batch has no records from the latest offset on"
    return _offsets(name, text, expected, frozenset(words.values()))


def _offsets(name: str, text: str, expected: str, marks: frozenset[int]) -> Bound:
    """Parse offsets by partition. marks: the negative ones that may be given."""
    found = _json(name, text, expected)
    offsets: dict[str, dict[int, int]] = {}
    ids: dict[str, str] = {}
    for stream, partitions in found.items():
        if not isinstance(partitions, dict):
            raise OptionError(name, text, expected)
        offsets[stream] = {}
        for key, offset in partitions.items():
            if key == "id" and isinstance(offset, str):
                ids[stream] = offset
                continue
            if key == "reader":  # of a classic queue, in an offset that a query reported
                continue
            is_whole = isinstance(offset, int) and not isinstance(offset, bool)
            if not key.isdecimal() or not is_whole or (offset < 0 and offset not in marks):
                raise OptionError(name, {stream: {key: offset}}, expected)
            offsets[stream][int(key)] = offset
    return Bound(offsets=offsets, ids=ids)


def _times(name: str, text: str) -> dict[str, dict[int, int]]:
    expected = 'JSON such as {"stream": {"0": 1357016400000, "1": "2013-01-01T05:00:00Z"}}'
    times: dict[str, dict[int, int]] = {}
    for stream, partitions in _json(name, text, expected).items():
        if not isinstance(partitions, dict):
            raise OptionError(name, text, expected)
        times[stream] = {}
        for key, value in partitions.items():
            if not key.isdecimal():
                raise OptionError(name, text, expected)
            times[stream][int(key)] = _time_us(name, str(value))
    return times


def _json(name: str, text: str, expected: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(name, text, f"{expected} ({error})") from None
    if not isinstance(found, dict):
        raise OptionError(name, text, expected)
    return found


def _time_us(name: str, text: str) -> int:
    """Return microseconds since 1970 for milliseconds or an ISO time."""
    text = text.strip()
    if text.isdecimal():
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = "milliseconds since 1970, or a time such as 2013-01-01T05:00:00Z"
        raise OptionError(name, text, expected) from None
    return microseconds(moment)


def microseconds(moment: datetime) -> int:
    """Return microseconds since 1970 of a time, which is in UTC if it has no zone."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


# ---- the sink ------------------------------------------------------------------------------------

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
IDEMPOTENT: Final = "idempotent"
DELIVERIES: Final = (EXACTLY_ONCE, IDEMPOTENT, AT_LEAST_ONCE)
SINK_NAMES: Final = (
    "url", "httpUrl", "queue", "exchange", "routing_key", "content_type", "delivery", "persistent",
    "mandatory", "deadLetterTo", "queryId", "batchId", "failOnDataLoss", "beginsLate", "sameRows",
    "timeout", "in_flight",
)  # fmt: skip
# Options that Spark itself adds.
OF_SPARK: Final = frozenset(("checkpointlocation", "path", "queryname", "outputmode"))
# Options without a meaning for rows that are published one by one.
OF_STAGING: Final = (
    "httpUrl", "deadLetterTo", "queryId", "batchId", "failOnDataLoss", "beginsLate", "sameRows",
)  # fmt: skip
IN_FLIGHT_MAX: Final = 1_000_000
TIMEOUT_S_MAX: Final = 86_400.0
BATCH_MAX: Final = (1 << 63) - 1
QUERY_BYTES_MAX: Final = 200  # idempotent adds a partition to it, and a name has 255


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a writer. url: None for what the environment says. place: where to stage, None for
    at-least-once. queue: None if exchanges are the target; exchange: None if a column names it.
    query_id, batch_id: both or neither. fails_on_loss: whether missing batches are an error.
    begins_late: the query may begin with any batch."""

    url: str | None
    place: Place | None
    queue: str | None
    exchange: str | None
    routing_key: str | None
    content_type: str | None
    delivery: str
    is_persistent: bool
    is_mandatory: bool
    dead_letter_to: str | None
    query_id: str | None
    batch_id: int | None
    fails_on_loss: bool
    begins_late: bool
    has_same_rows: bool
    timeout_s: float
    in_flight_max: int
    checkpoint: str | None  # the directory of a stream's checkpoint, if given as an option

    @classmethod
    def of(cls, given: Mapping[str, str], environment: Mapping[str, str] | None = None) -> (
        "SinkOptions"
    ):  # fmt: skip
        """Parse what Spark passes. environment: None for the process's. Raises OptionError."""
        values, checkpoint = _values(given)
        delivery = values.get("delivery", EXACTLY_ONCE)
        if delivery not in DELIVERIES:
            raise OptionError("delivery", delivery, " or ".join(DELIVERIES))
        is_staged = delivery != AT_LEAST_ONCE
        queue, exchange = values.get("queue"), values.get("exchange")
        if queue is not None and exchange is not None:
            both = f"queue={queue!r} and exchange={exchange!r}"
            raise OptionError("queue", both, "either queue or exchange, for a sink")
        if is_staged:
            place = _sink_place(values, os.environ if environment is None else environment)
        else:
            place = None
            _refuse_of_staging(values)
            if queue is not None and "routing_key" in values:
                expected = "none with queue, whose name it is"
                raise OptionError("routing_key", values["routing_key"], expected)
        query_id, batch_id = _batch(values)
        if query_id is None and "beginsLate" in values:
            raise OptionError("beginsLate", values["beginsLate"], "none without queryId")
        return cls(
            url=values.get("url"),
            place=place,
            queue=queue,
            exchange=exchange if queue is None else "",
            routing_key=values.get("routing_key", None if is_staged else queue),
            content_type=values.get("content_type"),
            delivery=delivery,
            is_persistent=_is_true("persistent", values.get("persistent", "true")),
            is_mandatory=_is_true("mandatory", values.get("mandatory", "true")),
            dead_letter_to=values.get("deadLetterTo"),
            query_id=query_id,
            batch_id=batch_id,
            fails_on_loss=_is_true("failOnDataLoss", values.get("failOnDataLoss", "true")),
            begins_late=_is_true("beginsLate", values.get("beginsLate", "false")),
            has_same_rows=_is_true("sameRows", values.get("sameRows", "true")),
            timeout_s=_timeout_s(values.get("timeout", "60")),
            in_flight_max=_whole_between(
                "in_flight", values.get("in_flight", "4096"), 1, IN_FLIGHT_MAX
            ),
            checkpoint=checkpoint,
        )

    @property
    def is_staged(self) -> bool:
        """Return whether rows go to the broker as pages, not one by one."""
        return self.delivery != AT_LEAST_ONCE

    @property
    def target(self) -> str:
        """Return the target for messages: "queue 'q'", "exchange 'x'"."""
        if self.queue is not None:
            return f"queue {self.queue!r}"
        return "the exchanges" if self.exchange is None else f"exchange {self.exchange!r}"


def _values(given: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Return the sink's options by their names in SINK_NAMES, and the checkpoint's directory."""
    known = {name.lower().replace("_", ""): name for name in SINK_NAMES}
    values: dict[str, str] = {}
    checkpoint = None
    for name, value in given.items():
        plain = name.lower().replace("_", "")
        if plain in known:
            values[known[plain]] = value
        elif plain == "checkpointlocation":
            checkpoint = value
        elif plain not in OF_SPARK:
            raise OptionError(name, value, SINK_NAMES)
    return values, checkpoint


def _sink_place(values: Mapping[str, str], environment: Mapping[str, str]) -> Place:
    """Return where to stage: as for the source, and without a url as for a client."""
    url = values.get("url")
    if url is None:
        url = next((environment[name] for name in VARIABLES if environment.get(name)), DEFAULT)
    named = {"url": url}
    if "httpUrl" in values:
        named["httpUrl"] = values["httpUrl"]
    return parse_place(named)


def _refuse_of_staging(values: Mapping[str, str]) -> None:
    for name in OF_STAGING:
        if name in values:
            expected = f"none with delivery={AT_LEAST_ONCE}"
            raise OptionError(name, values[name], expected)
    if values.get("url", "").startswith("http"):
        url = values["url"].partition("://")[0] + "://..."
        raise OptionError("url", url, f"amqp://..., with delivery={AT_LEAST_ONCE}")


def _batch(values: Mapping[str, str]) -> tuple[str | None, int | None]:
    query, batch = values.get("queryId"), values.get("batchId")
    if query is None and batch is None:
        return None, None
    if query is None or batch is None:
        name = "queryId" if query is None else "batchId"
        raise OptionError(name, None, "queryId and batchId, both or neither")
    if not 0 < len(query.encode()) <= QUERY_BYTES_MAX:
        raise OptionError("queryId", query, f"a name of 1 to {QUERY_BYTES_MAX} bytes")
    return query, _whole_between("batchId", batch, 0, BATCH_MAX)


# ---- values --------------------------------------------------------------------------------------


def lowered(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options with their names in lower case, as Spark may pass them."""
    return {name.lower(): value for name, value in given.items()}


def _names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    text = options.get(name.lower(), "")
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    return default if text is None else _is_true(name, text)


def _whole(options: Mapping[str, str], name: str, least: int = 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise OptionError(name, text, f"a whole number, at least {least}")
    return int(text)


def _bytes_if_given(options: Mapping[str, str], name: str) -> int | None:
    return _bytes(options, name, 0, least=0) if name.lower() in options else None


def _bytes(options: Mapping[str, str], name: str, default: int, least: int = 1) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    found = _BYTES.fullmatch(text.strip())
    count = -1
    if found is not None:
        count = int(found[1]) << (10 * " kmgt".index(found[2].lower() or " "))
    if count < least:
        raise OptionError(name, text, f"a number of bytes from {least} on, such as 64m or 1 GiB")
    return count


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name.lower())
    if text is None:
        return default
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise OptionError(name, text, "a time such as 500ms, 30s, 15m, 1h")
    return float(found[1]) * _SECONDS[found[2].lower()]


def _reader_timeout(options: Mapping[str, str]) -> int:
    seconds = _seconds(options, "readerTimeout", 15.0)
    if not 1 <= seconds <= READER_TIMEOUT_S_MAX:
        raise OptionError("readerTimeout", options["readertimeout"], "a time from 1s to 1h")
    return int(seconds)


def _one_of(options: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    text = options.get(name.lower(), words[0])
    if text.lower() not in words:
        raise OptionError(name, text, " or ".join(words))
    return text.lower()


def _reader_id(options: Mapping[str, str]) -> str | None:
    text = options.get("readerid")
    if text is not None and not 0 < len(text.encode()) <= 255:
        raise OptionError("readerId", text, "a name of 1 to 255 bytes")
    return text


def _is_true(name: str, given: str) -> bool:
    value = {"true": True, "false": False}.get(given.lower())
    if value is None:
        raise OptionError(name, given, "true or false")
    return value


def _timeout_s(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= TIMEOUT_S_MAX:
        raise OptionError("timeout", given, "seconds, above 0 and up to a day")
    return seconds


def _whole_between(name: str, given: str, least: int, most: int) -> int:
    if not given.isascii() or not given.isdecimal() or not least <= int(given) <= most:
        raise OptionError(name, given, f"a whole number from {least} to {most}")
    return int(given)
