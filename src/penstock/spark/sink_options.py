"""SinkOptions: what `df.write.format("penstock")` and `df.writeStream...` may be told.

    url             amqp://user:password@host:port/vhost      PENSTOCK_URL, AMQP_URL, this host
    queue           name                                      one of the two is needed
    exchange        name
    routing_key     of all rows                               else the column, else ""
    content_type    of all rows                               none
    delivery        at-least-once                             at-least-once
    persistent      true, false                               true
    mandatory       true, false: a row that no queue gets     true
                    fails the task
    timeout         seconds without a confirm, or without     60
                    a connection, after which a task fails
    in_flight       rows of a task that wait for a confirm    4096

A name may be written as routing_key or routingKey; Spark does not tell capitals apart. Rows:

    value         binary or string; never null    the body
    routing_key   string                          where an exchange routes it to; "" for null
    message_id    string                          that property; null: none
    headers       map<string, ...>                that property; null: none

Other columns are not sent, as in Spark's sink for Kafka: who wants them in the body puts them
there, with to_json. An unknown option is an error that suggests the right one.

Not here: pyspark, sockets (sink.py, sink_publisher.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.errors import OptionError

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
NAMES: Final = (
    "url", "queue", "exchange", "routing_key", "content_type", "delivery", "persistent",
    "mandatory", "timeout", "in_flight",
)  # fmt: skip
# What Spark puts among the options itself.
OF_SPARK: Final = frozenset(("checkpointlocation", "path", "queryname", "outputmode"))
IN_FLIGHT_MAX: Final = 1_000_000
TIMEOUT_S_MAX: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """See the head of this module. url: None for what the environment says. exchange "" and
    routing_key the queue's name when a queue is the target."""

    url: str | None
    queue: str | None
    exchange: str
    routing_key: str | None
    content_type: str | None
    is_persistent: bool
    is_mandatory: bool
    timeout_s: float
    in_flight_max: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "SinkOptions":
        """From what Spark hands over. OptionError."""
        known = {name.replace("_", ""): name for name in NAMES}
        values: dict[str, str] = {}
        for name, value in given.items():
            plain = name.lower().replace("_", "")
            if plain in known:
                values[known[plain]] = value
            elif plain not in OF_SPARK:
                raise OptionError(name, value, NAMES)
        queue, exchange = values.get("queue"), values.get("exchange")
        if (queue is None) == (exchange is None):
            told = "neither" if queue is None else f"queue={queue!r} and exchange={exchange!r}"
            raise OptionError("queue", told, "either queue or exchange, for a sink")
        if queue is not None and "routing_key" in values:
            raise OptionError(
                "routing_key", values["routing_key"], "none together with queue: it is its name"
            )
        _delivery(values.get("delivery", AT_LEAST_ONCE))
        return cls(
            url=values.get("url"),
            queue=queue,
            exchange=exchange or "",
            routing_key=values.get("routing_key") if queue is None else queue,
            content_type=values.get("content_type"),
            is_persistent=_flag("persistent", values.get("persistent", "true")),
            is_mandatory=_flag("mandatory", values.get("mandatory", "true")),
            timeout_s=_seconds(values.get("timeout", "60")),
            in_flight_max=_whole(values.get("in_flight", "4096")),
        )

    @property
    def target(self) -> str:
        """For messages: "queue 'q'", "exchange 'x'"."""
        return f"exchange {self.exchange!r}" if self.queue is None else f"queue {self.queue!r}"


def _delivery(given: str) -> None:
    if given == EXACTLY_ONCE:
        raise OptionError(
            "delivery", given, f"{AT_LEAST_ONCE}: exactly once into a broker is not available yet"
        )
    if given != AT_LEAST_ONCE:
        raise OptionError("delivery", given, AT_LEAST_ONCE)


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


def _whole(given: str) -> int:
    if not given.isascii() or not given.isdecimal() or not 1 <= int(given) <= IN_FLIGHT_MAX:
        raise OptionError("in_flight", given, f"a whole number from 1 to {IN_FLIGHT_MAX}")
    return int(given)
