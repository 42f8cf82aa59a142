"""`get`, `consume` and `peek`: messages of a queue on stdout.

A body is printed with a line break behind it: as it is, or on a terminal with what is not printable
escaped; with `--format json` there is a JSON object
per line with everything that is known of the message. `peek` looks, and changes nothing.

`get` and `consume` acknowledge a message only once it has been written to stdout: one whose reader
went away, or whose command was killed, comes back to its place in the queue. The broker keeps what
it has handed out for the command's session, which ends with its connection.

Not here: publishing (publish_verb.py).
"""

import random
import sys
from typing import Any, Final

import click

from penstock.cli import shown
from penstock.cli.ask import DATA, VHOST, Client, asked, named
from penstock.cli.shown import FORMAT
from penstock.errors import QueueEmptyError

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
            click.echo(shown.json_text(told))
        else:
            body = message["body"]
            shown.body(body if isinstance(body, bytes) else str(body).encode())
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
