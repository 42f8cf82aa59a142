"""Options of the source and of the sink: what a Spark job may say, checked at once and frozen.

SOURCE_OPTIONS and SINK_OPTIONS list them; the tables of docs/guides are made from the rows. Names
of the source are those of Spark's Kafka integration guide where it has one, with the same meaning
and `stream` for topic. An option of Kafka's that has no equivalent is refused with the option to
use instead, an unknown name with the nearest known one.

Spark ignores case in all names, and here underscores count as little: routing_key is routingKey.
Sizes are Spark's: "64m", "1 GiB", powers of 1024 with any unit. A timestamp is a whole number of
milliseconds since 1970, as Kafka's, or an ISO 8601 time, in UTC without a zone.

This module imports no pyspark.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.amqp_url import (
    ESCAPED,
    SCHEMES,
    AmqpUrl,
    TlsTrust,
    parameters,
    url_of,
    without_password,
)
from penstock.clock import microseconds
from penstock.errors import OptionError
from penstock.options import (
    BYTES_MAX,
    SECONDS_MAX,
    Kind,
    Option,
    WrongValueError,
    by_name,
    check_known,
    choice,
    flag,
    ms_in,
    names,
    seconds,
    unparsed,
    values_of,
    whole,
)

HTTP_PORT: Final = 15672
HTTPS_PORT: Final = 15671
SYSTEM: Final = TlsTrust()
PORTS: Final = {"http": HTTP_PORT, "https": HTTPS_PORT}
ACCESS: Final = ("auto", "file", "network")
READER_TIMEOUT_S_MAX: Final = 3600
EARLIEST: Final = -2  # as an offset, in Kafka's JSON and in ours
LATEST: Final = -1
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
IDEMPOTENT: Final = "idempotent"
DELIVERIES: Final = (EXACTLY_ONCE, IDEMPOTENT, AT_LEAST_ONCE)
IN_FLIGHT_MAX: Final = 1_000_000
TIMEOUT_S_MAX: Final = 86_400.0
BATCH_MAX: Final = (1 << 63) - 1
QUERY_BYTES_MAX: Final = 200  # idempotent adds a partition to it, and a name has 255

# Options of Kafka's source that this one does not have -> what to use instead. Lower case.
KAFKAS: Final = {
    "kafka.bootstrap.servers": "'url' of the broker, or 'path' of its store",
    "kafka.group.id": "'readerId'",
    "groupidprefix": "'readerId'",
    "kafkaconsumer.polltimeoutms": "'timeoutMs'",
    "includetimestamp": "the column 'timestamp', which is always there",
    "topic": "'subscribe' to read; 'topic' belongs to a sink",
}

_PARTITION: Final = re.compile(r"[0-9]{1,9}")
_BYTES: Final = re.compile(r"(\d{1,18})\s*(|[kmgt])(|b|ib)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the streams are: http_url ("http://host:port") with its user, or path. option: the one
    that names http_url. amqp: host and port of a url with amqp:// or amqps://. tls: for https."""

    http_url: str = ""
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    path: str = ""
    option: str = field(default="url", compare=False, repr=False)
    amqp: tuple[str, int] | None = field(default=None, compare=False, repr=False)
    tls: TlsTrust = SYSTEM

    def __str__(self) -> str:
        """Return the place without its password, for messages."""
        return self.path or f"{self.http_url} (vhost {self.vhost!r}, as {self.user})"


def parse_place(given: Mapping[str, str]) -> Place:
    """Return the place that `url` with `httpUrl`, or `path` with `vhost` name. Raises
    OptionError."""
    options = spelled(given, SOURCE_OPTIONS)
    url, path = options.get("url"), options.get("path")
    if (url is None) == (path is None):
        both = None if url is None else f"{without_password(url)} and path {path}"
        raise OptionError("url", both, "either 'url' of a broker or 'path' of a store")
    if path is not None:
        if "httpUrl" in options:
            raise OptionError("httpUrl", options["httpUrl"], "'url', not 'path', with it")
        return Place(path=path, vhost=options.get("vhost", "/"))
    assert url is not None
    if "vhost" in options:
        raise OptionError("vhost", options["vhost"], "the vhost at the end of 'url'")
    place = _url_place(url, options.get("httpUrl"))
    return replace(place, tls=_trust(place.tls, options, place.http_url.startswith("https:")))


def _trust(tls: TlsTrust, options: Mapping[str, str], is_tls: bool) -> TlsTrust:
    """Return what the URL says with the options of TLS that are given."""
    given = {name: options[name] for name in TRUST if name in options}
    for name, value in given.items():
        if not is_tls:
            raise OptionError(name, value, "amqps:// or https:// with it")
    return replace(tls, **values_of(_TRUST, given))


def _url_place(url: str, http_url: str | None) -> Place:
    option = "url" if http_url is None else "httpUrl"
    if url.startswith(SCHEMES):
        amqp = AmqpUrl.parse(url)
        host = f"[{amqp.host}]" if ":" in amqp.host else amqp.host
        base = f"http://{host}:{HTTP_PORT}" if amqp.tls is None else f"https://{host}:{HTTPS_PORT}"
        if http_url is not None:
            base = _http_base(option, http_url)
        return Place(
            base, amqp.user, amqp.password, amqp.vhost, option=option,
            amqp=(amqp.host, amqp.port), tls=amqp.tls or SYSTEM,
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
        option=option,
        tls=TlsTrust.of(parameters(parts.query)),
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
    return f"{parts.scheme}://{host}:{port or PORTS[parts.scheme]}"


# ---- kinds of values -----------------------------------------------------------------------------


def _kind(words: str, check: Callable[[str], Any], shown: Callable[[Any], str] = str) -> Kind:
    """What a text stands for. check: returns that, raises WrongValueError."""
    return Kind(words, lambda value: check(str(value)), unparsed, shown)


def _word(*words: str) -> Kind:
    return replace(choice(*words, expected=" or ".join(words)), parse=str.lower)


def _strategy() -> Kind:
    kind = _word("error", "latest")
    return replace(
        kind,
        check=lambda value: kind.check(value) == "error",
        shown=lambda is_strict: "error" if is_strict else "latest",
    )


def _whole(low: int) -> Kind:
    kind = whole(low, BYTES_MAX, f"a whole number, at least {low}")
    return replace(kind, parse=lambda text: kind.parse(text.strip()))


def _milliseconds(low: int) -> Kind:
    kind = _whole(low)
    return replace(
        kind, check=lambda value: kind.check(value) / 1000, shown=lambda one: f"{one * 1000:g}"
    )


def _bytes(low: int) -> Kind:
    def check(text: str) -> int:
        found = _BYTES.fullmatch(text.strip())
        count = (
            -1 if found is None else int(found[1]) << 10 * " kmgt".index(found[2].lower() or " ")
        )
        if count < low:
            raise WrongValueError(f"a number of bytes from {low} on, such as 64m or 1 GiB")
        return count

    return _kind("size", check, lambda count: f"{count >> 20}m")


def _time(expected: str, low: float = 0, high: float = SECONDS_MAX) -> Kind:
    def check(text: str) -> float:
        found = ms_in(text.lower()) / 1000
        if not text.strip()[-1:].isalpha() or not low <= found <= high:
            raise WrongValueError(expected)
        return found

    return _kind("time, such as `30s`", check, lambda value: f"{value:g}s")


def _name(most: int) -> Kind:
    def check(text: str) -> str:
        if not 0 < len(text.encode()) <= most:
            raise WrongValueError(f"a name of 1 to {most} bytes")
        return text

    return _kind("name", check)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise WrongValueError(f"a regular expression ({error})") from None
    return text


def _streams(text: str) -> tuple[str, ...]:
    expected = "names of streams, with commas between"
    found: tuple[str, ...] = names(expected).check(text)
    if not found:
        raise WrongValueError(expected)
    return found


def _json(text: str, expected: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongValueError(f"{expected} ({error})") from None
    if not isinstance(found, dict):
        raise WrongValueError(expected)
    return found


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    expected = 'JSON such as {"stream": [0, 1]}'
    found = _json(text, expected)
    for partitions in found.values():
        if not isinstance(partitions, list) or not partitions:
            raise WrongValueError(expected)
        if not all(type(one) is int and one >= 0 for one in partitions):
            raise WrongValueError(expected)
    if not found:
        raise WrongValueError(expected)
    return {name: tuple(sorted(set(partitions))) for name, partitions in found.items()}


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


def _offsets(words: Mapping[str, int], more: str = "") -> Kind:
    """A word for an offset, or offsets by partition, in which only the numbers of the words are
    negative. more: what errors say besides."""
    numbers = " and ".join(f"{mark} for the {word}" for word, mark in words.items())
    expected = f'{", ".join(words)} or JSON such as {{"stream": {{"0": 23}}}}, with {numbers}{more}'

    def check(text: str) -> Bound:
        if text.lower() in words:
            return Bound(offset=words[text.lower()])
        offsets: dict[str, dict[int, int]] = {}
        ids: dict[str, str] = {}
        for stream, partitions in _json(text, expected).items():
            if not isinstance(partitions, dict):
                raise WrongValueError(expected)
            offsets[stream] = {}
            for key, offset in partitions.items():
                if key == "id" and isinstance(offset, str):
                    ids[stream] = offset
                elif key != "reader":  # of a classic queue, in an offset that a query reported
                    is_whole = type(offset) is int and (offset >= 0 or offset in words.values())
                    if not _PARTITION.fullmatch(key) or not is_whole:
                        raise WrongValueError(expected, ({stream: {key: offset}},))
                    offsets[stream][int(key)] = offset
        return Bound(offsets=offsets, ids=ids)

    shown = ", ".join(f"`{word}`" for word in words)
    return _kind(f'{shown}, `{{"stream": {{"0": 23}}}}`', check)


def _time_us(text: str) -> int:
    """Return microseconds since 1970 for milliseconds or an ISO time."""
    text = text.strip()
    try:
        if text.isdecimal():
            return int(text) * 1000
        return microseconds(datetime.fromisoformat(text))
    except ValueError:
        expected = "milliseconds since 1970, or a time such as 2013-01-01T05:00:00Z"
        raise WrongValueError(expected, (text,)) from None


def _times(text: str) -> Bound:
    expected = 'JSON such as {"stream": {"0": 1357016400000, "1": "2013-01-01T05:00:00Z"}}'
    found = _json(text, expected)
    for partitions in found.values():
        if not isinstance(partitions, dict) or not all(map(_PARTITION.fullmatch, partitions)):
            raise WrongValueError(expected)
    return Bound(
        times_us={
            stream: {int(key): _time_us(str(value)) for key, value in partitions.items()}
            for stream, partitions in found.items()
        }
    )


# ---- the source ----------------------------------------------------------------------------------

_TEXT: Final = _kind("text", str)
_TRUTH: Final = replace(flag(), parse=lambda text: {"true": True, "false": False}.get(text.lower()))
_MOMENT: Final = _kind(
    "milliseconds since 1970, or `2013-01-01T05:00:00Z`", lambda text: Bound(time_us=_time_us(text))
)
_MOMENTS: Final = _kind('`{"stream": {"0": 1357016400000}}`', _times)
_BATCH: Final = ("batch",)
_TLS_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "cacerts", _TEXT, "of `amqps://` and `https://`: a PEM file of the authorities to trust"
    ),
    Option("certfile", _TEXT, "of the same: a PEM file with a certificate of this client"),
    Option("keyfile", _TEXT, "and its key, if it is not in that file"),
    Option(
        "verify",
        flag(),
        "of the same: `false` leaves the broker's certificate unchecked",
        default="`true`",
    ),
)
TRUST: Final = tuple(one.name for one in _TLS_OPTIONS)
_TRUST: Final = by_name(_TLS_OPTIONS)
SOURCE_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "url", _TEXT,
        "`http://user:password@host:15672/vhost`, or the `amqp://` URL; then port 15672 of its "
        "host is used",
    ),
    Option("httpUrl", _TEXT, "the HTTP address, if it differs"),
    *_TLS_OPTIONS,
    Option(
        "path", _TEXT,
        "instead of `url`: a store, a vhost or box in it, or one stream, read beside its owner",
    ),
    Option("vhost", _TEXT, "with the `path` of a whole store", default="`/`"),
    Option(
        "subscribe", _kind("names with commas between them", _streams),
        "one or more streams or [classic queues](classic-queue-sources.md): `a,b`. Optional with a "
        "`path` that has only one stream",
    ),
    Option(
        "subscribePattern", _kind("regular expression", _pattern),
        "for whole names; new streams are read too. Streams only: a classic queue must be named",
    ),
    Option("assign", _kind('`{"stream": [0, 2]}`', _assigned), "these partitions"),
    Option(
        "startingTimestamp", _MOMENT,
        "begin at the first record of that time or later; of the three options that say where to "
        "begin, the first in this table counts",
        field="starting", default="",
    ),
    Option(
        "startingOffsetsByTimestamp", _MOMENTS, "the same by partition",
        field="starting", default="",
    ),
    Option(
        "startingOffsets", _offsets({"earliest": EARLIEST, "latest": LATEST}),
        "-2 is the earliest, -1 the latest. A batch cannot begin at the latest. For new queries "
        "only: a restart continues at the checkpoint. For a classic queue always `earliest`",
        field="starting", default="`latest`, in batch `earliest`",
    ),
    Option(
        "startingOffsetsByTimestampStrategy", _strategy(), "what to do if no record is as late",
        field="is_strict_time",
    ),
    Option(
        "endingTimestamp", _MOMENT, "the record of that time is not read, nor a later one",
        field="ending", default="", applies=_BATCH,
    ),
    Option(
        "endingOffsetsByTimestamp", _MOMENTS, "the same by partition",
        field="ending", default="", applies=_BATCH,
    ),
    Option(
        "endingOffsets", _offsets({"latest": LATEST}),
        "the record of that offset is not read. Not `earliest`",
        field="ending", default="`latest`", applies=_BATCH,
    ),
    Option(
        "maxOffsetsPerTrigger", _whole(1),
        "maximum number of records of a batch, divided among partitions in proportion to what each "
        "has",
    ),
    Option(
        "maxBytesPerTrigger", _bytes(1),
        "maximum bytes of pages of a batch; for classic queues by default `256m` of bodies",
    ),
    Option("minOffsetsPerTrigger", _whole(1), "a batch waits for so many records"),
    Option(
        "maxTriggerDelay", _time("a time such as 500ms, 30s, 15m, 1h"), "but not longer",
        field="max_trigger_delay_s",
    ),
    Option("minPartitions", _whole(1), "minimum number of tasks"),
    Option(
        "maxBytesPerPartition", _bytes(1),
        "maximum bytes of a task; ranges end at a page boundary if one is near",
    ),
    Option(
        "maxBytesPerTask", _bytes(0),
        "small ranges share a task until it has about so many bytes; without it until it has 4,096 "
        "records; `0`: each partition of each stream has tasks of its own",
    ),
    Option("maxRecordsPerPartition", _whole(1), "maximum number of records of a task"),
    Option(
        "failOnDataLoss", _TRUTH,
        "`false`: missing records are a warning, and the query continues with the rest",
    ),
    Option("includeHeaders", _TRUTH, "with the column `headers`"),
    Option("includeProperties", _TRUTH, "with the column `properties`"),
    Option("columns", names(), "which columns, in which order", default="all but those two"),
    Option(
        "readerId", _name(255),
        "the query's name at the broker, see below; for a classic queue, the reader to whom its "
        "messages are leased",
        default="a random one",
    ),
    Option(
        "readerTimeout", _time("a time from 1s to 1h", 1, READER_TIMEOUT_S_MAX),
        "for classic queues: how long a query that was killed keeps its `readerId`, from 1s to 1h",
        field="reader_timeout_s",
    ),
    Option(
        "access", _word(*ACCESS),
        "`file`: map the pages or fail; `network`: always read over HTTP",
    ),
    Option(
        "pushdown", _TRUTH,
        "batch: filters on `offset` and `timestamp` limit what is read. Needs "
        "`spark.sql.python.filterPushdown.enabled=true`, which `session()` sets",
        field="has_pushdown",
    ),
    Option(
        "fetchOffset.retryIntervalMs", _milliseconds(0),
        "pause between attempts while the broker is [away](#a-broker-that-is-away)",
        field="retry_interval_s",
    ),
    Option(
        "fetchOffset.numRetries", _whole(0), "give up after so many more attempts instead",
        field="retries", default="by `timeoutMs`",
    ),
    Option(
        "timeoutMs", _milliseconds(1),
        "how long to wait for the broker: for a byte of it, and while it is away",
        field="timeout_s",
    ),
)  # fmt: skip
_SOURCE: Final = by_name(SOURCE_OPTIONS)
# As with Kafka's source, a batch neither begins at the latest offset nor ends at the earliest.
_SOURCE_OF_BATCH: Final = {
    **_SOURCE,
    "startingOffsets": replace(
        _SOURCE["startingOffsets"],
        kind=_offsets({"earliest": EARLIEST}, "; a batch has no records from the latest offset on"),
    ),
}
_OF_PLACE: Final = ("url", "httpUrl", "path", "vhost", *TRUST)


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
    reader_timeout_s: float = 15.0
    access: str = "auto"
    has_pushdown: bool = False
    retries: int | None = None
    retry_interval_s: float = 0.2
    timeout_s: float = 60.0


def parse_source_options(given: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Parse the options of a reader. Raises OptionError, which names the wrong one."""
    texts = spelled(given, SOURCE_OPTIONS)
    for name, text in texts.items():
        _refuse_kafkas(name, text)
        check_known(name, text, _SOURCE)
        if is_streaming and _SOURCE[name].applies:
            raise OptionError(name, text, "none: a stream has no end")
    streams = [name for name in ("subscribe", "subscribePattern", "assign") if name in texts]
    if len(streams) > 1:
        raise OptionError(streams[1], texts[streams[1]], f"none with {streams[0]!r}")
    # Of the options for one bound the first row counts, which is therefore the last to be set.
    rows = [option.name for option in reversed(SOURCE_OPTIONS) if option.name in texts]
    values = values_of(
        _SOURCE if is_streaming else _SOURCE_OF_BATCH,
        {name: texts[name] for name in rows if name not in _OF_PLACE},
    )
    place = parse_place(texts)
    if not place.path and not streams:
        raise OptionError("subscribe", None, "'subscribe', 'subscribePattern' or 'assign'")
    values.setdefault("starting", Bound(LATEST if is_streaming else EARLIEST, is_default=True))
    values.setdefault("ending", Bound(LATEST, is_default=True))
    if "max_bytes_per_trigger" in values:
        values["lease_bytes_per_trigger"] = values["max_bytes_per_trigger"]
    return SourceOptions(place=place, **values)


def _refuse_kafkas(name: str, value: str) -> None:
    if name in KAFKAS:
        raise OptionError(name, value, f"{KAFKAS[name]}: '{name}' is an option of Kafka's")
    if name.startswith("kafka."):
        expected = "no option of Kafka's clients: see docs/guides/spark-source.md"
        raise OptionError(name, value, expected)


def spelled(given: Mapping[str, str], options: Iterable[Option]) -> dict[str, str]:
    """Return the given options under the names of their rows; unknown ones in lower case."""
    known = {_folded(option.name): option.name for option in options}
    return {known.get(_folded(name), name.lower()): value for name, value in given.items()}


def _folded(name: str) -> str:
    return name.lower().replace("_", "")


# ---- the sink ------------------------------------------------------------------------------------

_STAGED: Final = (EXACTLY_ONCE, IDEMPOTENT)
SINK_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "url", _TEXT,
        "`amqp://user:password@host:port/vhost`, or `http://...` as for the source",
        default="`PENSTOCK_URL`, `AMQP_URL`, this host",
    ),
    Option(
        "httpUrl", _TEXT, "the broker's HTTP address, if it differs",
        default="port 15672 of that host", applies=_STAGED,
    ),
    *_TLS_OPTIONS,
    Option("queue", _TEXT, "the target, a queue or a stream"),
    Option("exchange", _TEXT, "or this one", default="the column `exchange`"),
    Option(
        "routing_key", _TEXT, "for all rows", default='the column, else `""`, or the queue\'s name'
    ),
    Option("content_type", _TEXT, "for all rows"),
    Option("delivery", _word(*DELIVERIES), "see below"),
    Option(
        "persistent", _TRUTH,
        "whether classic queues keep the messages over a restart; a `delivery_mode` among the "
        "properties overrides it",
        field="is_persistent",
    ),
    Option(
        "mandatory", _TRUTH,
        "a row that no queue takes fails the batch, and nothing of it is published; at least once: "
        "it fails the task",
        field="is_mandatory",
    ),
    Option(
        "deadLetterTo", _TEXT, "the queue for rows whose target is deleted while they are moved",
        default="none: the batch waits", applies=_STAGED,
    ),
    Option(
        "queryId", _name(QUERY_BYTES_MAX), "for `df.write` in `foreachBatch`: the query",
        default="a job of its own", applies=_STAGED,
    ),
    Option("batchId", whole(0, BATCH_MAX), "and the batch", applies=_STAGED),
    Option(
        "failOnDataLoss", _TRUTH,
        "fail if batches of this query [are missing]"
        "(../how-it-works/exactly-once.md#another-batch-with-that-number) at the broker; `false` "
        "in `foreachBatch` if not every batch is written",
        field="fails_on_loss", applies=_STAGED,
    ),
    Option(
        "beginsLate", _TRUTH,
        "with `queryId`: the query's first batch at this broker may have any number",
        applies=_STAGED,
    ),
    Option(
        "sameRows", _TRUTH,
        "a repeated batch must have the same rows; `false`: the first decision counts",
        field="has_same_rows", applies=_STAGED,
    ),
    Option(
        "timeout", seconds(TIMEOUT_S_MAX),
        "how many seconds to wait for a broker that does not answer",
        field="timeout_s",
    ),
    Option(
        "in_flight", whole(1, IN_FLIGHT_MAX),
        "at least once: how many rows of a task may wait for their confirms",
        field="in_flight_max",
    ),
)  # fmt: skip
_SINK: Final = by_name(SINK_OPTIONS)
# Options that Spark itself adds.
_CHECKPOINT: Final = "checkpointlocation"
OF_SPARK: Final = frozenset((_CHECKPOINT, "path", "queryname", "outputmode"))


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a writer. url: None for what the environment says. place: where to stage, None for
    at-least-once. queue: None if exchanges are the target; exchange: None if a column names it.
    query_id, batch_id: both or neither. fails_on_loss: whether missing batches are an error.
    begins_late: the query may begin with any batch. trust: options of TLS that are given."""

    url: str | None = None
    trust: tuple[tuple[str, Any], ...] = ()
    place: Place | None = None
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    content_type: str | None = None
    delivery: str = EXACTLY_ONCE
    is_persistent: bool = True
    is_mandatory: bool = True
    dead_letter_to: str | None = None
    query_id: str | None = None
    batch_id: int | None = None
    fails_on_loss: bool = True
    begins_late: bool = False
    has_same_rows: bool = True
    timeout_s: float = 60.0
    in_flight_max: int = 4096
    checkpoint: str | None = None  # the directory of a stream's checkpoint, if given as an option

    @classmethod
    def of(cls, given: Mapping[str, str], environment: Mapping[str, str] | None = None) -> (
        "SinkOptions"
    ):  # fmt: skip
        """Parse what Spark passes. environment: None for the process's. Raises OptionError."""
        texts = spelled(given, SINK_OPTIONS)
        of_spark = {name: texts.pop(name) for name in OF_SPARK & texts.keys()}
        for name, text in texts.items():
            check_known(name, text, _SINK)
        values = values_of(_SINK, texts)
        delivery = values.get("delivery", EXACTLY_ONCE)
        if "queue" in values and "exchange" in values:
            both = f"queue={values['queue']!r} and exchange={values['exchange']!r}"
            raise OptionError("queue", both, "either queue or exchange, for a sink")
        for name, text in texts.items():
            if _SINK[name].applies and delivery not in _SINK[name].applies:
                raise OptionError(name, text, f"none with delivery={delivery}")
        http_url = values.pop("http_url", None)
        values["trust"] = tuple((name, values.pop(name)) for name in TRUST if name in values)
        if "queue" in values:
            values["exchange"] = ""
        if delivery == AT_LEAST_ONCE:
            _refuse_of_staging(texts)
            if "queue" in values:
                values["routing_key"] = values["queue"]
        else:
            of_process = os.environ if environment is None else environment
            trust = {name: texts[name] for name in TRUST if name in texts}
            values["place"] = _sink_place(values.get("url"), http_url, trust, of_process)
        if ("query_id" in values) != ("batch_id" in values):
            name = "batchId" if "query_id" in values else "queryId"
            raise OptionError(name, None, "queryId and batchId, both or neither")
        if "query_id" not in values and "beginsLate" in texts:
            raise OptionError("beginsLate", texts["beginsLate"], "none without queryId")
        return cls(**values, checkpoint=of_spark.get(_CHECKPOINT))

    def broker(self, environment: Mapping[str, str]) -> AmqpUrl:
        """Return the broker of a writer at least once. Raises OptionError."""
        return AmqpUrl.of(self.url, environment).with_tls(**dict(self.trust))

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


def _sink_place(
    url: str | None, http_url: str | None, trust: Mapping[str, str], environment: Mapping[str, str]
) -> Place:
    """Return where to stage: as for the source, and without a url as for a client."""
    url = url_of(environment) if url is None else url
    given = {"url": url, **trust}
    return parse_place(given if http_url is None else {**given, "httpUrl": http_url})


def _refuse_of_staging(texts: Mapping[str, str]) -> None:
    if "queue" in texts and "routing_key" in texts:
        raise OptionError("routing_key", texts["routing_key"], "none with queue, whose name it is")
    if texts.get("url", "").startswith("http"):
        url = texts["url"].partition("://")[0] + "://..."
        raise OptionError("url", url, f"amqp://..., with delivery={AT_LEAST_ONCE}")
