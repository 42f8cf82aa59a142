"""SinkOptions: what `df.write.format("penstock")` and `df.writeStream...` may be told.

    url             amqp://user:password@host:port/vhost,     PENSTOCK_URL, AMQP_URL, this host
                    or http://... as of the source
    httpUrl         the broker's HTTP port                    port 15672 of that host
    queue           name of a queue or stream                 one of the three is needed
    exchange        name; or the column of that name
    routing_key     of all rows                               else the column, else "" or the queue
    content_type    of all rows                               none
    delivery        exactly-once, idempotent, at-least-once   exactly-once
    persistent      true, false                               true
    mandatory       true, false: a row that no queue gets     true
                    fails the batch (at-least-once: the task)
    deadLetterTo    a queue for what a target that was        none: it waits
                    deleted meanwhile does not get
    queryId,        of foreachBatch: whose batch this is,     a batch is a job of its own
    batchId         and which
    failOnDataLoss  true, false: an error if batches of       true; false for df.write
                    this query are missing at the broker
    sameRows        true, false: a batch that is done again   true
                    has the same rows, else it is an error
    timeout         seconds without the broker, after which   60
                    a task or a commit fails
    in_flight       at least once: rows of a task that wait   4096
                    for a confirm

A name may be written as routing_key or routingKey; Spark does not tell capitals apart. The columns
are those of sink_columns.py. An unknown option is an error that suggests the right one.

Not here: pyspark, sockets (sink.py, staging_link.py, sink_publisher.py).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.client.amqp_url import DEFAULT, VARIABLES
from penstock.errors import OptionError
from penstock.spark.source_options import Place, parse_place

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
IDEMPOTENT: Final = "idempotent"
DELIVERIES: Final = (EXACTLY_ONCE, IDEMPOTENT, AT_LEAST_ONCE)
NAMES: Final = (
    "url", "httpUrl", "queue", "exchange", "routing_key", "content_type", "delivery", "persistent",
    "mandatory", "deadLetterTo", "queryId", "batchId", "failOnDataLoss", "sameRows", "timeout",
    "in_flight",
)  # fmt: skip
# What Spark puts among the options itself.
OF_SPARK: Final = frozenset(("checkpointlocation", "path", "queryname", "outputmode"))
# What has no meaning when rows are published one by one.
OF_STAGING: Final = (
    "httpUrl", "deadLetterTo", "queryId", "batchId", "failOnDataLoss", "sameRows",
)  # fmt: skip
IN_FLIGHT_MAX: Final = 1_000_000
TIMEOUT_S_MAX: Final = 86_400.0
BATCH_MAX: Final = (1 << 63) - 1
QUERY_BYTES_MAX: Final = 200  # idempotent adds a partition to it, and a name has 255


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """See the head of this module. url: None for what the environment says. place: where to stage;
    None for at-least-once. queue: None where exchanges are the target; exchange: None where a
    column names it. query_id, batch_id: both or neither. fails_on_loss: None if it was not said.
    """

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
    fails_on_loss: bool | None
    has_same_rows: bool
    timeout_s: float
    in_flight_max: int
    checkpoint: str | None  # the directory of a stream's checkpoint, if it was said as an option

    @classmethod
    def of(cls, given: Mapping[str, str], environment: Mapping[str, str] | None = None) -> (
        "SinkOptions"
    ):  # fmt: skip
        """From what Spark hands over. environment: None for that of the process. OptionError."""
        values, checkpoint = _values(given)
        delivery = values.get("delivery", EXACTLY_ONCE)
        if delivery not in DELIVERIES:
            raise OptionError("delivery", delivery, " or ".join(DELIVERIES))
        is_staged = delivery != AT_LEAST_ONCE
        queue, exchange = values.get("queue"), values.get("exchange")
        if queue is not None and exchange is not None:
            told = f"queue={queue!r} and exchange={exchange!r}"
            raise OptionError("queue", told, "either queue or exchange, for a sink")
        if is_staged:
            place = _place(values, os.environ if environment is None else environment)
        else:
            place = None
            _refuse_of_staging(values)
            if queue is not None and "routing_key" in values:
                expected = "none together with queue: it is its name"
                raise OptionError("routing_key", values["routing_key"], expected)
        query_id, batch_id = _batch(values)
        return cls(
            url=values.get("url"),
            place=place,
            queue=queue,
            exchange=exchange if queue is None else "",
            routing_key=values.get("routing_key", None if is_staged else queue),
            content_type=values.get("content_type"),
            delivery=delivery,
            is_persistent=_flag("persistent", values.get("persistent", "true")),
            is_mandatory=_flag("mandatory", values.get("mandatory", "true")),
            dead_letter_to=values.get("deadLetterTo"),
            query_id=query_id,
            batch_id=batch_id,
            fails_on_loss=(
                _flag("failOnDataLoss", values["failOnDataLoss"])
                if "failOnDataLoss" in values
                else None
            ),
            has_same_rows=_flag("sameRows", values.get("sameRows", "true")),
            timeout_s=_seconds(values.get("timeout", "60")),
            in_flight_max=_whole("in_flight", values.get("in_flight", "4096"), 1, IN_FLIGHT_MAX),
            checkpoint=checkpoint,
        )

    @property
    def is_staged(self) -> bool:
        """Whether rows go to the broker as pages, and not one by one."""
        return self.delivery != AT_LEAST_ONCE

    @property
    def target(self) -> str:
        """For messages: "queue 'q'", "exchange 'x'"."""
        if self.queue is not None:
            return f"queue {self.queue!r}"
        return "the exchanges" if self.exchange is None else f"exchange {self.exchange!r}"


def _values(given: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """Those that are ours, by their names here, and the checkpoint's directory."""
    known = {name.lower().replace("_", ""): name for name in NAMES}
    values: dict[str, str] = {}
    checkpoint = None
    for name, value in given.items():
        plain = name.lower().replace("_", "")
        if plain in known:
            values[known[plain]] = value
        elif plain == "checkpointlocation":
            checkpoint = value
        elif plain not in OF_SPARK:
            raise OptionError(name, value, NAMES)
    return values, checkpoint


def _place(values: Mapping[str, str], environment: Mapping[str, str]) -> Place:
    """Where to stage: as of the source, and if no url is given as of a client."""
    url = values.get("url")
    if url is None:
        url = next((environment[name] for name in VARIABLES if environment.get(name)), DEFAULT)
    told = {"url": url}
    if "httpUrl" in values:
        told["httpUrl"] = values["httpUrl"]
    return parse_place(told)


def _refuse_of_staging(values: Mapping[str, str]) -> None:
    for name in OF_STAGING:
        if name in values:
            expected = f"none with delivery={AT_LEAST_ONCE}"
            raise OptionError(name, values[name], expected)
    if values.get("url", "").startswith("http"):
        told = values["url"].partition("://")[0] + "://..."
        raise OptionError("url", told, f"amqp://..., with delivery={AT_LEAST_ONCE}")


def _batch(values: Mapping[str, str]) -> tuple[str | None, int | None]:
    query, batch = values.get("queryId"), values.get("batchId")
    if query is None and batch is None:
        return None, None
    if query is None or batch is None:
        name = "queryId" if query is None else "batchId"
        raise OptionError(name, None, "queryId and batchId, both or neither")
    if not 0 < len(query.encode()) <= QUERY_BYTES_MAX:
        raise OptionError("queryId", query, f"a name of 1 to {QUERY_BYTES_MAX} bytes")
    return query, _whole("batchId", batch, 0, BATCH_MAX)


def _flag(name: str, given: str) -> bool:
    value = {"true": True, "false": False}.get(given.lower())
    if value is None:
        raise OptionError(name, given, "true or false")
    return value


def _seconds(given: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= TIMEOUT_S_MAX:
        raise OptionError("timeout", given, "seconds, above 0 and up to a day")
    return seconds


def _whole(name: str, given: str, least: int, most: int) -> int:
    if not given.isascii() or not given.isdecimal() or not least <= int(given) <= most:
        raise OptionError(name, given, f"a whole number from {least} to {most}")
    return int(given)
