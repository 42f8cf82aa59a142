"""`penstock tail`: the records of a stream, for a person at a terminal.

    penstock tail flights.events                the last ten
    penstock tail flights.events -n 3 -f        the last three, then what comes
    penstock tail flights.events --since 1h     of the last hour; also 30s, 5min, 2d, first, a time
    penstock tail flights.events --since 2026-01-31T08:00 --format json

A line for each: time, offset, routing key, body; in a pipe with tabs between, with `--format json`
an object with everything that is known. A stream with several partitions has offsets such as 3:17.
Reading changes nothing: a stream is read as often as one likes.

It speaks AMQP to the broker of --url, as any client would, and so works from another machine.

Not here: queues that are not streams (`penstock peek`).
"""

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from penstock import escaping
from penstock.cli import shown
from penstock.cli.main import RefusedError, UnavailableError
from penstock.cli.shown import FORMAT
from penstock.clock import SystemClock
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.client.stream_tail import Start, StreamTail, TailRecord

DEFAULT_COUNT: Final = 10
AGO: Final = re.compile(r"(\d+)(s|min|m|h|d|w)", re.ASCII)
SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
URL = click.option(
    "--url", metavar="URL", help="amqp://user:password@host:port/vhost [PENSTOCK_URL, this host]."
)


def since_us(given: str, now_ms: int) -> int:
    """The time that --since means, in microseconds since 1970. A time without a zone is of this
    machine's. OptionError."""
    ago = AGO.fullmatch(given)
    if ago is not None:
        span = timedelta(seconds=int(ago[1]) * SECONDS[ago[2]])
        return max(0, now_ms * 1000 - span // timedelta(microseconds=1))
    try:
        when = datetime.fromisoformat(given).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise OptionError(
            "--since", given, "first, a span such as 30s, 5min, 1h, 2d, or a time such as "
            "2026-01-31T08:00"
        ) from None  # fmt: skip
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@click.command("tail")
@click.argument("stream")
@click.option("--since", metavar="TIME", help="first, 1h, 30min, 2d, or 2026-01-31T08:00.")
@click.option(
    "-n", "--count", type=click.IntRange(min=1),
    help="So many of the end; with --since so many from there [10].",
)  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@FORMAT
@URL
def tail(
    stream: str, since: str | None, count: int | None, follow: bool, form: str, url: str | None
) -> None:
    """Print the records of a stream, the last ones or those since a time."""
    from penstock.client import UnreachableError, connect
    from penstock.client.stream_tail import First, Last, Since, StreamTail
    from penstock.errors import ChannelError

    start: Start
    if since is None:
        start = Last(count or DEFAULT_COUNT)
    elif since == "first":
        start = First()
    else:
        start = Since(since_us(since, SystemClock().wall_ms()))
    try:
        connection = connect(url)
    except UnreachableError as error:
        raise UnavailableError(f"{error}: is the broker running? --url says which one") from None
    with connection:
        try:
            tailed = StreamTail(connection, stream, start, is_following=follow)
            _print(tailed, form, None if since is None else count)
        except ChannelError as error:
            raise RefusedError(error.code, _hint(error, stream)) from None


def _hint(error: Exception, stream: str) -> str:
    text = str(error)
    if "stream" in text and "NOT_FOUND" not in text:
        return f"{text}; `penstock peek {stream}` shows the messages of a queue"
    return text


def _print(tailed: "StreamTail", form: str, limit: int | None) -> None:
    is_parted = len(tailed.parts) > 1
    is_drawn = form == "text" and shown.is_terminal()
    for count, record in enumerate(tailed.records(), start=1):
        if form == "json":
            click.echo(shown.json_text(json_of(record)))
        else:
            click.echo(line_of(record, is_parted=is_parted, is_drawn=is_drawn))
        if tailed.is_idle:
            sys.stdout.flush()
        if count == limit:
            return


def time_of(record: "TailRecord") -> datetime | None:
    """When it was appended; None if nobody says."""
    if record.time_us is None:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=record.time_us)


def line_of(record: "TailRecord", *, is_parted: bool, is_drawn: bool) -> str:
    """A record as a line; is_drawn: for a terminal, with the time of this machine's zone."""
    offset = f"{record.partition}:{record.offset}" if is_parted else str(record.offset)
    when = time_of(record)
    body, key = escaping.one_line(shown.text(record.body)), escaping.one_line(record.key)
    if not is_drawn:
        stamp = "" if when is None else when.isoformat(timespec="microseconds")
        fields = (stamp, offset, record.key, shown.text(record.body))
        told = (one.replace("\t", "\\t").replace("\n", "\\n") for one in fields)
        return "\t".join(escaping.one_line(one) for one in told)
    stamp = "" if when is None else when.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return "  ".join(
        (
            click.style(stamp, dim=True),
            click.style(f"{offset:>8}", fg="cyan"),
            click.style(key, fg="green"),
            body,
        )
    )


def json_of(record: "TailRecord") -> object:
    """Everything that is known of a record."""
    from penstock.codec.properties import PROPERTY_NAMES

    when = time_of(record)
    properties = record.message.properties
    told: dict[str, object] = {
        "partition": record.partition,
        "offset": record.offset,
        "time": None if when is None else when.isoformat(timespec="microseconds"),
        "exchange": record.message.exchange,
        "routing_key": record.key,
    }
    for name in PROPERTY_NAMES:
        value = getattr(properties, name)
        if name == "headers" and value is not None:
            value = {key: one for key, one in value.items() if not key.startswith("x-stream-")}
        if value:
            told[name] = value
    told["body"] = record.body
    return shown.readable(told)
