"""Commands for queues, exchanges, bindings, leases and messages.

An argument is NAME=VALUE, with the value as JSON (`x-max-length=1000`,
`x-single-active-consumer=true`) or else as text (`x-overflow=reject-publish`). Declaring what
exists with the same properties does nothing; with others it is an error that names the difference.

The release commands remove what a Spark query left in a broker if it will not run again. A reader
of a classic queue keeps what it has leased until it commits. A query that writes exactly once keeps
its last batch, so that a repeated commit is recognised. The query may be started again at any time,
so only these commands end that state: a released query that starts again from its checkpoint would
read or write messages twice.

**publish** sends one message, or one for each line of stdin, and returns when they are confirmed.
Each request is a batch with one sync: what the pipe has delivered so far, up to 1 MiB. So a fast
producer needs few syncs, and a slow one does not wait for a full batch. The broker has confirmed
what the command counts as published. A message that no queue gets is an error (NO_ROUTE); messages
before it are published.

**get, consume, peek** print bodies, each with a line break: unchanged into a pipe, with
unprintable characters escaped on a terminal; with `--format json` a JSON object for each message,
with all its properties. `peek` changes nothing. `get` and `consume` acknowledge a message after it
was written to stdout; if the reader of stdout exits or the command is killed, the message returns
to its place in the queue. The broker keeps delivered messages for the command's session, which ends
with its connection.

**tail** prints records of a stream:

    penstock tail flights.events                the last ten
    penstock tail flights.events -n 3 -f        the last three, then new ones
    penstock tail flights.events --since 1h     of the last hour; also 30s, 5min, 2d, first, a time
    penstock tail flights.events --since 2026-01-31T08:00 --format json

Each line has time, offset, routing key and body, separated by tabs in a pipe; with `--format json`
it is an object with everything known. A stream with several partitions has offsets such as 3:17.
Reading changes nothing. tail speaks AMQP to the broker of --url, so it works from other machines.
"""

import difflib
import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from penstock import escaping
from penstock.cli import output
from penstock.cli.ask import (
    ARGUMENTS,
    DATA,
    VHOST,
    Client,
    NumberRange,
    arguments_of,
    ask,
    asked,
    named,
)
from penstock.cli.main import EX_TEMPFAIL, CommandRefusedError, FailedError
from penstock.cli.output import FORMAT
from penstock.cli.rows import ASKED_MESSAGES, YES, confirm
from penstock.clock import SystemClock, microseconds
from penstock.errors import OptionError, QueueEmptyError
from penstock.operation_table import MOVE_MAX
from penstock.options import many, ms_in

if TYPE_CHECKING:
    from penstock.client.stream_tail import StreamTail, TailRecord

TRANSIENT = click.option("--transient", is_flag=True, help="Not kept after a restart.")
AUTO_DELETE = click.option("--auto-delete", is_flag=True, help="Delete after its last use.")


@click.command("declare_queue")
@click.argument("queue", callback=named)
@click.option(
    "--type", "kind", type=click.Choice(["classic", "quorum", "stream"]),
    help="Default: classic, or what x-queue-type says.",
)  # fmt: skip
@TRANSIENT
@AUTO_DELETE
@ARGUMENTS
@VHOST
@DATA
def declare_queue(
    queue: str, kind: str | None, transient: bool, auto_delete: bool, arguments: tuple[str, ...],
    vhost: str, data: str,
) -> None:  # fmt: skip
    """Declare a queue.

    It is durable unless --transient is given.
    """
    table = arguments_of(arguments)
    if kind is not None and table.setdefault("x-queue-type", kind) != kind:
        given = table["x-queue-type"]
        raise click.UsageError(f"--type is {kind}, but x-queue-type is {given!r}: give one of them")
    ask(
        data, "declare_queue", vhost, queue=queue, durable=not transient, auto_delete=auto_delete,
        arguments=table,
    )  # fmt: skip
    for name in table:
        if hint := _unknown(name):
            output.say(f"penstock: {hint}", err=True)


def _unknown(name: str) -> str:
    """Return what is said of an argument that is stored and has no meaning, but nearly the name of
    one that has; "" of another."""
    from penstock.broker.arguments import ARGUMENTS  # options of queues: 40 ms

    near = [] if name in ARGUMENTS else difflib.get_close_matches(name, ARGUMENTS, n=1)
    if not near:
        return ""
    return (
        f"argument {name!r} is unknown: it is stored, and does nothing; did you mean {near[0]!r}?"
    )


@click.command("declare_exchange")
@click.argument("exchange", callback=named)
@click.option(
    "--type", "kind", default="direct", show_default=True,
    help="direct, fanout, topic, headers, x-delayed-message.",
)  # fmt: skip
@TRANSIENT
@AUTO_DELETE
@click.option("--internal", is_flag=True, help="Only exchanges can publish to it.")
@ARGUMENTS
@VHOST
@DATA
def declare_exchange(
    exchange: str, kind: str, transient: bool, auto_delete: bool, internal: bool,
    arguments: tuple[str, ...], vhost: str, data: str,
) -> None:  # fmt: skip
    """Declare an exchange.

    It is durable unless --transient is given.
    """
    ask(
        data, "declare_exchange", vhost, exchange=exchange, type=kind, durable=not transient,
        auto_delete=auto_delete, internal=internal, arguments=arguments_of(arguments),
    )  # fmt: skip


@click.command("declare_binding")
@click.argument("source", callback=named)
@click.argument("destination", callback=named)
@click.argument("routing_key", callback=named, default="")
@click.option(
    "--to", "kind", type=click.Choice(["queue", "exchange"]), default="queue", show_default=True,
    help="What DESTINATION is.",
)  # fmt: skip
@ARGUMENTS
@VHOST
@DATA
def declare_binding(
    source: str, destination: str, routing_key: str, kind: str, arguments: tuple[str, ...],
    vhost: str, data: str,
) -> None:  # fmt: skip
    """Bind a queue or an exchange to an exchange.

    SOURCE is the exchange that messages come from. ROUTING_KEY is what its type compares: a key, a
    pattern, or nothing.
    """
    ends = {"queue": destination, "exchange": source}
    if kind == "exchange":
        ends = {"destination": destination, "source": source}
    ask(
        data, f"bind_{kind}", vhost, **ends, routing_key=routing_key,
        arguments=arguments_of(arguments),
    )  # fmt: skip


@click.command("release_query")
@click.argument("query", callback=named)
@click.option(
    "--force", is_flag=True, help="Even if its last batch is not completely in its target."
)
@VHOST
@DATA
def release_query(query: str, force: bool, vhost: str, data: str) -> None:
    """Forget a query that writes exactly once.

    The broker forgets the query's last batch, so the query could commit it once more.
    """
    found = ask(data, "release_query", vhost, query=query, force=force)
    batch = found["batch"]
    if batch is None:
        click.echo(f"query {query!r} is not known")
    else:
        click.echo(f"query {query!r} forgotten, its last batch was {batch}")


BATCH_BYTES: Final = 1 << 20
BATCH_MESSAGES: Final = 100
WAIT_MS: Final = 10_000  # of one request
PROPERTIES: Final = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "type", "user_id", "app_id",
)  # fmt: skip
NUMBERS: Final = ("delivery_mode", "priority", "timestamp")
DEFAULT_COUNT: Final = 10
REQUEUE = click.option(
    "--requeue", is_flag=True, help="Put the messages back instead of acknowledging them."
)
TAIL_URL = click.option(
    "--url",
    metavar="TAIL_URL",
    help="amqp://user:password@host:port/vhost [PENSTOCK_URL, this host].",
)


# ---- publish -------------------------------------------------------------------------------------


@click.command("publish")
@click.argument("key", metavar="KEY", callback=named)
@click.argument("body", required=False)
@click.option(
    "-e",
    "--exchange",
    callback=named,
    metavar="NAME",
    default="",
    help="Exchange; without it KEY is the name of a queue.",
)
@click.option("--file", metavar="FILE", help="Read the body from a file.")
@click.option("--lines", is_flag=True, help="Publish each line of stdin as a message.")
@click.option(
    "-P", "--property", "given", multiple=True, metavar="NAME=VALUE",
    help="Such as content_type=text/plain, priority=5, expiration=60000; may be repeated.",
)  # fmt: skip
@click.option(
    "-H", "--header", "headers", multiple=True, metavar="NAME=VALUE",
    help="The value is JSON or text; may be repeated.",
)  # fmt: skip
@click.option("--transient", is_flag=True, help="Do not keep the message after a restart.")
@FORMAT
@VHOST
@DATA
def publish(
    key: str, body: str | None, exchange: str, file: str | None, lines: bool,
    given: tuple[str, ...], headers: tuple[str, ...], transient: bool, form: str, vhost: str,
    data: str,
) -> None:  # fmt: skip
    """Publish messages, and wait until they are confirmed.

    KEY is the routing key, or without --exchange the name of a queue. The body is BODY, or --file,
    or all of stdin; with --lines each line of stdin is a message.
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


def properties_of(given: tuple[str, ...], headers: tuple[str, ...]) -> dict[str, object]:
    """Return a message's properties from NAME=VALUE. Raises OptionError and click.UsageError."""
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
    """Return the lines of a stream in batches, each of what has arrived, at least one line."""
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


# ---- get, consume, peek --------------------------------------------------------------------------


@click.command("peek")
@click.argument("queue", callback=named)
@click.option("-n", "--count", type=click.IntRange(min=1), default=10, show_default=True)
@FORMAT
@VHOST
@DATA
def peek(queue: str, count: int, form: str, vhost: str, data: str) -> None:
    """Print the next messages of a queue without taking them."""
    after: object = None
    with asked(data) as client:
        while count > 0:
            found = client.call(
                "peek", vhost, queue=queue, count=min(count, BATCH_MESSAGES), after=after
            )
            show(found["messages"], form)
            after = found["after"]
            count -= len(found["messages"])
            if len(found["messages"]) == 0:
                return


@click.command("get")
@click.argument("queue", callback=named)
@click.option("-n", "--count", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--wait", "wait_s", type=NumberRange(min=0), default=0.0, metavar="SECONDS",
    help="Wait up to that long for the first message.",
)  # fmt: skip
@REQUEUE
@FORMAT
@VHOST
@DATA
def get(
    queue: str, count: int, wait_s: float, requeue: bool, form: str, vhost: str, data: str
) -> None:
    """Print the next messages, and acknowledge them.

    Exit code 75 if there was none.
    """
    with asked(data) as client:
        session = _Session(client, vhost, queue)
        found = session.get(min(count, BATCH_MESSAGES), round(wait_s * 1000))
        if not found:
            raise QueueEmptyError(queue, wait_s)
        held: list[int] = []
        while found:
            show(found, form)
            tags = [message["tag"] for message in found]
            count -= len(found)
            if requeue:  # at the end, or they would be delivered again
                held += tags
            else:
                session.settle(tags)
            found = session.get(min(count, BATCH_MESSAGES), 0) if count else []
        if held:
            session.settle(held, requeue=True)


@click.command("consume")
@click.argument("queue", callback=named)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after that many messages.")
@FORMAT
@VHOST
@DATA
def consume(queue: str, count: int | None, form: str, vhost: str, data: str) -> None:
    """Print messages as they arrive, and acknowledge them.

    Each is acknowledged once it is printed. Ends after --count messages, or with Ctrl-C.
    """
    with asked(data) as client:
        session = _Session(client, vhost, queue)
        left = count
        while left is None or left > 0:
            found = session.get(
                BATCH_MESSAGES if left is None else min(left, BATCH_MESSAGES), WAIT_MS
            )
            if not found:
                continue
            show(found, form)
            session.settle([message["tag"] for message in found])
            if left is not None:
                left -= len(found)


def show(messages: list[dict[str, Any]], form: str) -> None:
    """Write messages to stdout, and flush it."""
    for message in messages:
        if form == "json":
            facts = {name: value for name, value in message.items() if name != "tag"}
            click.echo(output.json_text(facts))
        else:
            body = message["body"]
            output.body(body if isinstance(body, bytes) else str(body).encode())
    sys.stdout.flush()


class _Session:
    """The messages that a queue has delivered to one command."""

    def __init__(self, client: Client, vhost: str, queue: str) -> None:
        self._client = client
        self._vhost = vhost
        self._queue = queue
        self._name = f"cli-{random.SystemRandom().getrandbits(64):016x}"

    def get(self, count: int, wait_ms: int) -> list[dict[str, Any]]:
        """Return the next messages. They belong to the session until they are settled."""
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
        """Acknowledge the messages, or requeue them."""
        self._client.call(
            "settle", self._vhost, session=self._name, queue=self._queue, tags=tags,
            requeue=requeue,
        )  # fmt: skip


# ---- tail ----------------------------------------------------------------------------------------


@click.command("tail")
@click.argument("stream")
@click.option("--since", metavar="TIME", help="first, 1h, 30min, 2d, or 2026-01-31T08:00.")
@click.option(
    "-n", "--count", type=click.IntRange(min=1),
    help="How many of the last records; with --since, from there [10].",
)  # fmt: skip
@click.option("-f", "--follow", is_flag=True, help="Wait for new records, until Ctrl-C.")
@FORMAT
@TAIL_URL
def tail(
    stream: str, since: str | None, count: int | None, follow: bool, form: str, url: str | None
) -> None:
    """Print the records of a stream.

    The last ones, or those since a time.
    """
    from penstock.client import connect
    from penstock.client.stream_tail import StreamTail
    from penstock.errors import ChannelError

    last = (count or DEFAULT_COUNT) if since is None else None
    from_us = 0 if since in (None, "first") else since_us(since, SystemClock().wall_ms())
    with connect(url) as connection:
        try:
            tailed = StreamTail(
                connection, stream, last=last, since_us=from_us, is_following=follow
            )
            _tail_print(tailed, form, None if since is None else count)
        except ChannelError as error:
            raise CommandRefusedError(error.code, _tail_hint(error, stream)) from None


def since_us(given: str, now_ms: int) -> int:
    """Return the time that --since means, in microseconds since 1970. A time without a zone is
    local. Raises OptionError."""
    ago_ms = ms_in(given) if given[-1:].isalpha() else -1  # digits alone are a date
    if ago_ms >= 0:
        return max(0, now_ms * 1000 - round(ago_ms * 1000))
    try:
        return microseconds(datetime.fromisoformat(given).astimezone(UTC))
    except (ValueError, OverflowError, OSError):
        raise OptionError(
            "--since", given, "first, a span such as 30s, 5min, 1h, 2d, or a time such as "
            "2026-01-31T08:00"
        ) from None  # fmt: skip


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


def record_line(record: "TailRecord", *, is_parted: bool, is_drawn: bool) -> str:
    """Return a record as a line. is_drawn: for a terminal, with local time."""
    offset = f"{record.partition}:{record.offset}" if is_parted else str(record.offset)
    when = record.time
    body, key = escaping.one_line(output.text(record.body)), escaping.one_line(record.key)
    if not is_drawn:
        stamp = "" if when is None else when.isoformat(timespec="microseconds")
        fields = (stamp, offset, record.key, output.text(record.body))
        escaped = (one.replace("\t", "\\t").replace("\n", "\\n") for one in fields)
        return "\t".join(escaping.one_line(one) for one in escaped)
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
    """Return everything known of a record."""
    from penstock.codec.properties import PROPERTY_NAMES

    when = record.time
    properties = record.message.properties
    facts: dict[str, object] = {
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
            facts[name] = value
    facts["body"] = record.body
    return output.readable(facts)


# ---- move, replay, delete_messages ---------------------------------------------------------------

MOVE_STEP: Final = 10_000  # messages of one operation

MOVE_COUNT = click.option(
    "-n", "--count", type=click.IntRange(min=1), help="At most that many [all that are ready now]."
)
RATE = click.option("--rate", type=NumberRange(min=0.001), metavar="N", help="At most N a second.")
MATCH = click.option(
    "--match", multiple=True, metavar="WHAT=TEXT",
    help="Only those with this in key, body or header=NAME:VALUE, tag=NUMBER, or older=1h; may be "
    "repeated.",
)  # fmt: skip
DRY_RUN = click.option("--dry-run", is_flag=True, help="Say what would move, and change nothing.")


@click.command("move")
@click.argument("queue", metavar="FROM", callback=named)
@click.argument("to", metavar="TO", callback=named)
@MOVE_COUNT
@MATCH
@RATE
@DRY_RUN
@VHOST
@DATA
def move(
    queue: str, to: str, count: int | None, match: tuple[str, ...], rate: float | None,
    dry_run: bool, vhost: str, data: str,
) -> None:  # fmt: skip
    """Move messages of a queue to the end of another one.

    Those that are ready now, in their order, each in one step: whatever crashes, it is in one of
    the queues, once. Exit code 75: TO is full, and the rest stays.
    """
    _move(data, vhost, queue, to, count, rate, matched(match), is_dry=dry_run)


@click.command("replay")
@click.argument("queue", metavar="DEAD_QUEUE", callback=named)
@MOVE_COUNT
@MATCH
@RATE
@DRY_RUN
@VHOST
@DATA
def replay(
    queue: str, count: int | None, match: tuple[str, ...], rate: float | None, dry_run: bool,
    vhost: str, data: str,
) -> None:  # fmt: skip
    """Move dead letters back, each to the queue in which it died last.

    As `move` does. Exit code 75: some stay, because their queue is full or is not there, or they
    are no dead letters.
    """
    _move(data, vhost, queue, None, count, rate, matched(match), is_dry=dry_run)


@click.command("delete_messages")
@click.argument("queue", metavar="QUEUE", callback=named)
@MOVE_COUNT
@MATCH
@click.option("--dry-run", is_flag=True, help="Say how many would be deleted, and change nothing.")
@YES
@VHOST
@DATA
def delete_messages(
    queue: str, count: int | None, match: tuple[str, ...], dry_run: bool, yes: bool, vhost: str,
    data: str,
) -> None:  # fmt: skip
    """Delete the next messages of a queue, or those that match.

    In their order; the others keep their places, and no dead letters are made. Without a count
    and a match it deletes all that are ready now, as `purge_queue` does. Exit code 75: more may
    match behind 10,000 that do not.
    """
    args = {"queue": queue, **({} if count is None else {"count": count}), **matched(match)}
    with asked(data) as client:
        found = client.call("delete_messages", vhost, dry_run=True, **args)
        n = found["deleted"]
        if n and not dry_run:
            if not yes:
                confirm("delete_messages", f"{n:,} messages of queue {queue!r}",
                        needs_yes=n > ASKED_MESSAGES)  # fmt: skip
            found = client.call("delete_messages", vhost, **{**args, "count": n})
    verb = "would be deleted" if dry_run else "deleted"
    n = found["deleted"]
    output.told(escaping.one_line(f"{many(n, 'message')} of queue {queue!r} {verb}"))
    if found["stays"]:
        raise FailedError(EX_TEMPFAIL, f"{found['stays']:,} or more messages stay: {found['why']}")


def matched(given: tuple[str, ...]) -> dict[str, object]:
    """Return key, body, headers and tags as move_messages has them. Raises OptionError."""
    found: dict[str, object] = {}
    headers: dict[str, object] = {}
    tags: list[int] = []
    for text in given:
        what, equals, value = text.partition("=")
        if what == "header" and value:
            name, colon, wanted = value.partition(":")
            headers[name] = wanted if colon else None
        elif what in ("key", "body") and equals:
            found[what] = value
        elif what == "tag" and value.isascii() and value.isdigit():
            tags.append(int(value))
        elif what == "older" and ms_in(value) >= 1000:
            found["older"] = round(ms_in(value) / 1000)
        else:
            forms = "key=TEXT, body=TEXT, header=NAME:VALUE, header=NAME"
            expected = f"{forms}, tag=NUMBER or older=TIME"
            raise OptionError("--match", text, expected)
    some = {"headers": headers, "tags": tags}
    return found | {name: value for name, value in some.items() if value}


def _move(
    data: str, vhost: str, queue: str, to: str | None, count: int | None, rate: float | None,
    match: dict[str, object], *, is_dry: bool,
) -> None:  # fmt: skip
    """Move messages in steps of one operation each, and say how many went where."""
    from penstock.embedded.waiting import ThreadWaiter

    by_queue: dict[str, int] = {}
    tags = match.get("tags", [])
    assert isinstance(tags, list)
    step = MOVE_MAX if is_dry else MOVE_STEP if rate is None else max(1, round(rate))
    found: dict[str, Any] = {"moved": 1}
    with asked(data) as client:
        left = count or len(tags) or client.call("describe_queue", vhost, queue=queue)["ready"]
        if not left and to is not None:  # there may be no such queue, either
            client.call("move_messages", vhost, queue=queue, to=to, count=1, dry_run=True)
        while left > 0 and found["moved"]:
            found = client.call(
                "move_messages", vhost, queue=queue, to=to, count=min(step, left), dry_run=is_dry,
                **match,
            )  # fmt: skip
            for name, n in found["by_queue"].items():
                by_queue[name] = by_queue.get(name, 0) + n
            left -= found["moved"]
            if is_dry:
                break
            if rate is not None and left > 0:
                ThreadWaiter().sleep(found["moved"] / rate)
    verb = "would move" if is_dry else "moved"
    for name, n in by_queue.items():
        output.told(escaping.one_line(f"{many(n, 'message')} {verb} to queue {name!r}"))
    if not by_queue:
        output.told(f"no message {verb}")
    if found.get("stays"):
        text = f"{found['stays']:,} or more messages stay in queue {queue!r}: {found['why']}"
        raise FailedError(EX_TEMPFAIL, text)
