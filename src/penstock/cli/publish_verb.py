"""`penstock publish`: one message, or one for each line of stdin, and back when they are safe.

Each request to the broker is a batch with one sync for all of it: what a pipe delivered so far, up
to a mebibyte. So a fast producer costs few syncs, and a slow one is not kept waiting for a batch to
fill. What the command counted as published, the broker has confirmed. A message that no queue gets
is an error (NO_ROUTE), and those before it are published.

Not here: messages on their way out (message_verbs.py).
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from penstock.cli.ask import DATA, VHOST, asked, named
from penstock.cli.queue_verbs import arguments_of
from penstock.cli.shown import FORMAT
from penstock.errors import OptionError

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


def _bodies(body: str | None, file: str | None, lines: bool) -> Iterator[list[bytes]]:
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
    source = _bodies(body, file, lines)
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
