"""`penstock publish`: one message, or one for each line of stdin, and back when they are safe.

Each request to the broker is a batch with one sync for all of it: what a pipe delivered so far, up
to a mebibyte. So a fast producer costs few syncs, and a slow one is not kept waiting for a batch to
fill. What the command counted as published, the broker has confirmed. A message that no queue gets
is an error (NO_ROUTE), and those before it are published.

Not here: messages on their way out (message_verbs.py).

`get`, `consume` and `peek`: messages of a queue on stdout.

A body is printed with a line break behind it: as it is, or on a terminal with what is not printable
escaped; with `--format json` there is a JSON object
per line with everything that is known of the message. `peek` looks, and changes nothing.

`get` and `consume` acknowledge a message only once it has been written to stdout: one whose reader
went away, or whose command was killed, comes back to its place in the queue. The broker keeps what
it has handed out for the command's session, which ends with its connection.

Not here: publishing (publish_verb.py).

`penstock tail`: the records of a stream, for a person at a terminal.

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

import json
import random
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from penstock import escaping
from penstock.cli import output
from penstock.cli.ask import DATA, VHOST, Client, asked, named
from penstock.cli.main import RefusedError, UnavailableError
from penstock.cli.output import FORMAT
from penstock.cli.queues import arguments_of
from penstock.clock import SystemClock
from penstock.errors import OptionError, QueueEmptyError

if TYPE_CHECKING:
    from penstock.client.stream_tail import Start, StreamTail, TailRecord

BATCH_BYTES: Final = 1 << 20
PROPERTIES: Final = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id",
)  # fmt: skip
NUMBERS: Final = ("delivery_mode", "priority", "timestamp")


def properties_of(given: tuple[str, ...], headers: tuple[str, ...]) -> dict[str, object]:
    """A message's properties from NAME=VALUE; OptionError, click.UsageError."""
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise click.UsageError(f"property {text!r}: expected NAME=VALUE")
        if name not in PROPERTIES:
            raise OptionError(name, value, PROPERTIES)
        if name in NUMBERS:
            if not (value.isascii() and value.isdigit()):
                raise OptionError(name, value, "a whole number")
            found[name] = int(value)
        else:
            found[name] = value
    if headers:
        found["headers"] = arguments_of(headers)
    return found


def batches(source: BinaryIO) -> Iterator[list[bytes]]:
    """The lines of a stream, without their ends, in batches: what there is, at least a line."""
    rest: list[bytes] = []
    while data := source.read1(BATCH_BYTES):  # type: ignore[attr-defined]
        *whole, last = data.split(b"\n")
        if whole:
            whole[0] = b"".join([*rest, whole[0]])
            rest = []
            yield whole
        rest.append(last)
    if last := b"".join(rest):
        yield [last]


def _publish_bodies(body: str | None, file: str | None, lines: bool) -> Iterator[list[bytes]]:
    source: Any = sys.stdin.buffer
    if [body is not None, file is not None, lines].count(True) > 1:
        raise click.UsageError("BODY, --file and --lines do not go together")
    if lines:
        return batches(source)
    if body is not None:
        return iter([[body.encode("utf-8", "surrogateescape")]])
    return iter([[source.read() if file is None else Path(file).read_bytes()]])


@click.command("publish")
@click.argument("key", metavar="KEY", callback=named)
@click.argument("body", required=False)
@click.option(
    "-e",
    "--exchange",
    callback=named,
    metavar="NAME",
    default="",
    help="Without it KEY is the name of a queue.",
)
@click.option("--file", metavar="FILE", help="The body is what the file holds.")
@click.option("--lines", is_flag=True, help="A message for each line of stdin.")
@click.option(
    "-P", "--property", "given", multiple=True, metavar="NAME=VALUE",
    help="Such as content_type=text/plain, priority=5, expiration=60000; may be repeated.",
)  # fmt: skip
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE",
    help="The value as JSON if it is some; may be repeated.",
)  # fmt: skip
@click.option("--transient", is_flag=True, help="Not on disk: gone after a restart.")
@FORMAT
@VHOST
@DATA
def publish(
    key: str, body: str | None, exchange: str, file: str | None, lines: bool,
    given: tuple[str, ...], headers: tuple[str, ...], transient: bool, form: str, vhost: str,
    data: str,
) -> None:  # fmt: skip
    """Publish a message with routing key KEY, and return when it is confirmed.

    The body is BODY, or --file, or all of stdin; with --lines each line of stdin is a message.
    """
    properties = properties_of(given, headers)
    properties.setdefault("delivery_mode", 1 if transient else 2)
    count, is_whole = 0, False
    source = _publish_bodies(body, file, lines)
    with asked(data) as client:
        try:
            for bodies in source:
                client.call(
                    "publish", vhost, exchange=exchange, routing_key=key, properties=properties,
                    bodies=bodies,
                )  # fmt: skip
                count += len(bodies)
            is_whole = True
        finally:
            if form == "json":
                click.echo(json.dumps({"published": count}))
            elif count or is_whole:
                click.echo(f"{count} published")


BATCH: Final = 100
WAIT_MS: Final = 10_000  # of one request

REQUEUE = click.option(
    "--requeue", is_flag=True, help="Put the messages back instead of acknowledging them."
)


@click.command("peek")
@click.argument("queue", callback=named)
@click.option("-n", "--count", type=click.IntRange(min=1), default=10, show_default=True)
@FORMAT
@VHOST
@DATA
def peek(queue: str, count: int, form: str, vhost: str, data: str) -> None:
    """Print the next messages of a queue; they stay where they are."""
    after: object = None
    with asked(data) as client:
        while count > 0:
            found = client.call("peek", vhost, queue=queue, count=min(count, BATCH), after=after)
            show(found["messages"], form)
            after = found["after"]
            count -= len(found["messages"])
            if len(found["messages"]) == 0:
                return


@click.command("get")
@click.argument("queue", callback=named)
@click.option("-n", "--count", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS",
    help="Wait so long for the first message.",
)  # fmt: skip
@REQUEUE
@FORMAT
@VHOST
@DATA
def get(
    queue: str, count: int, wait_s: float, requeue: bool, form: str, vhost: str, data: str
) -> None:
    """Print the next messages of a queue, and acknowledge them.

    Exit code 75 if there was none.
    """
    with asked(data) as client:
        session = _Session(client, vhost, queue)
        found = session.get(min(count, BATCH), round(wait_s * 1000))
        if not found:
            raise QueueEmptyError(queue, wait_s)
        held: list[int] = []
        while found:
            show(found, form)
            tags = [message["tag"] for message in found]
            count -= len(found)
            if requeue:  # at the end, or they would come again
                held += tags
            else:
                session.settle(tags)
            found = session.get(min(count, BATCH), 0) if count else []
        if held:
            session.settle(held, requeue=True)


@click.command("consume")
@click.argument("queue", callback=named)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after so many.")
@FORMAT
@VHOST
@DATA
def consume(queue: str, count: int | None, form: str, vhost: str, data: str) -> None:
    """Print messages as they come, and acknowledge each once it is printed.

    Ends after --count messages, or with Ctrl-C.
    """
    with asked(data) as client:
        session = _Session(client, vhost, queue)
        left = count
        while left is None or left > 0:
            found = session.get(BATCH if left is None else min(left, BATCH), WAIT_MS)
            if not found:
                continue
            show(found, form)
            session.settle([message["tag"] for message in found])
            if left is not None:
                left -= len(found)


def show(messages: list[dict[str, Any]], form: str) -> None:
    """Write them to stdout, all the way."""
    for message in messages:
        if form == "json":
            told = {name: value for name, value in message.items() if name != "tag"}
            click.echo(output.json_text(told))
        else:
            body = message["body"]
            output.body(body if isinstance(body, bytes) else str(body).encode())
    sys.stdout.flush()


class _Session:
    """What one command has been handed by one queue."""

    def __init__(self, client: Client, vhost: str, queue: str) -> None:
        self._client = client
        self._vhost = vhost
        self._queue = queue
        self._name = f"cli-{random.SystemRandom().getrandbits(64):016x}"

    def get(self, count: int, wait_ms: int) -> list[dict[str, Any]]:
        """The next messages; they are the session's until they are settled."""
        while True:
            found = self._client.call(
                "get", self._vhost, queue=self._queue, count=count, session=self._name,
                wait_ms=min(wait_ms, WAIT_MS),
            )  # fmt: skip
            messages: list[dict[str, Any]] = found["messages"]
            wait_ms -= WAIT_MS
            if messages or wait_ms <= 0:
                return messages

    def settle(self, tags: list[int], *, requeue: bool = False) -> None:
        """Acknowledge them, or put them back."""
        self._client.call(
            "settle", self._vhost, session=self._name, queue=self._queue, tags=tags,
            requeue=requeue,
        )  # fmt: skip


DEFAULT_COUNT: Final = 10
AGO: Final = re.compile(r"(\d+)(s|min|m|h|d|w)", re.ASCII)
SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
TAIL_URL = click.option(
    "--url",
    metavar="TAIL_URL",
    help="amqp://user:password@host:port/vhost [PENSTOCK_URL, this host].",
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
@TAIL_URL
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
            _tail_print(tailed, form, None if since is None else count)
        except ChannelError as error:
            raise RefusedError(error.code, _tail_hint(error, stream)) from None


def _tail_hint(error: Exception, stream: str) -> str:
    text = str(error)
    if "stream" in text and "NOT_FOUND" not in text:
        return f"{text}; `penstock peek {stream}` shows the messages of a queue"
    return text


def _tail_print(tailed: "StreamTail", form: str, limit: int | None) -> None:
    is_parted = len(tailed.parts) > 1
    is_drawn = form == "text" and output.is_terminal()
    for count, record in enumerate(tailed.records(), start=1):
        if form == "json":
            click.echo(output.json_text(record_json(record)))
        else:
            click.echo(record_line(record, is_parted=is_parted, is_drawn=is_drawn))
        if tailed.is_idle:
            sys.stdout.flush()
        if count == limit:
            return


def record_time(record: "TailRecord") -> datetime | None:
    """When it was appended; None if nobody says."""
    if record.time_us is None:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=record.time_us)


def record_line(record: "TailRecord", *, is_parted: bool, is_drawn: bool) -> str:
    """A record as a line; is_drawn: for a terminal, with the time of this machine's zone."""
    offset = f"{record.partition}:{record.offset}" if is_parted else str(record.offset)
    when = record_time(record)
    body, key = escaping.one_line(output.text(record.body)), escaping.one_line(record.key)
    if not is_drawn:
        stamp = "" if when is None else when.isoformat(timespec="microseconds")
        fields = (stamp, offset, record.key, output.text(record.body))
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


def record_json(record: "TailRecord") -> object:
    """Everything that is known of a record."""
    from penstock.codec.properties import PROPERTY_NAMES

    when = record_time(record)
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
    return output.readable(told)
