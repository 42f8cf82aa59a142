"""Commands for those who move in from RabbitMQ.

`migrate` copies definitions from the old broker's management API, if it is named, and then moves
the messages of one vhost, queue by queue (client.migrate). It asks the new broker over its control
socket, so it runs on the new broker's machine.
"""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

import click

from penstock.amqp_url import AmqpUrl, without_password
from penstock.cli import output
from penstock.cli.ask import DATA, ask, elsewhere
from penstock.cli.main import EX_UNAVAILABLE, FailedError
from penstock.cli.node import import_text
from penstock.errors import OptionError
from penstock.escaping import unescaped
from penstock.options import many

HTTP_S: Final = 60.0
PROGRESS: Final = 10_000  # messages between two lines
LOCAL: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - names, no bind


@click.command("migrate")
@click.argument("old", metavar="AMQP_URL")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@click.option("--http", metavar="URL", help="The old broker's management API.")
@click.option("--to", "new", metavar="URL", help="The new broker [the one of --data].")
@click.option("--leave-out", is_flag=True, help="Leave out definitions that Penstock has not.")
@DATA
def migrate(
    old: str, queues: tuple[str, ...], http: str | None, new: str | None, leave_out: bool, data: str
) -> None:
    """Move definitions and messages here from another broker.

    AMQP_URL is the old broker with user, password and vhost. With --http its definitions are
    imported first, and all durable queues of the vhost are moved, or those that are named. Without
    it the queues must be named, and must be there at the new broker.

    Each message is acknowledged at the old broker after the new one has confirmed it. If it fails
    or is killed, start it again: nothing is lost, and at most 256 messages of a queue may be at
    both brokers. Definitions of the old broker are never changed. Stop publishers first.
    """
    from penstock.client.connection import connect
    from penstock.client.migrate import move

    source = AmqpUrl.parse(old)
    names = [unescaped(one) for one in queues]
    streams: list[str] = []
    if http is not None:
        text = _definitions(http, source)
        import_text(data, text, None, leave_out=leave_out)
        found, streams = _queues(json.loads(text), source.vhost)
        names = names or found
    if not names and http is None:
        raise click.UsageError("name the queues to move, or the management API with --http")
    target = AmqpUrl.parse(new) if new is not None else _here(data, source)
    rows: list[list[object]] = []
    consumed: list[str] = []
    with connect(source) as from_old, connect(target) as to_new:
        for name in names:
            one = move(from_old, to_new, name, on_progress=_progress(name))
            output.say(f"{name}: {one.moved} messages moved")
            consumed += [name] if one.old_consumers else []
            rows.append(
                [name, one.old_before, one.moved, one.old_after, one.new_before, one.new_after]
            )
    output.table(["queue", "before", "moved", "left", "here before", "here now"], rows)
    for name in streams:
        output.say(f"{name}: a stream, whose records are not moved")
    left = [str(row[0]) for row in rows if row[3]]
    if left:
        raise FailedError(
            EX_UNAVAILABLE,
            f"the old broker has messages left in {', '.join(left)}: it gave no more of them, or "
            "got new ones; stop its publishers and consumers, and start this again",
        )
    if consumed:
        raise FailedError(
            EX_UNAVAILABLE,
            f"consumers of the old broker may hold messages of {', '.join(consumed)}, which were "
            "not moved; stop them, and start this again",
        )


def _progress(name: str) -> Callable[[int], None]:
    """Return what prints a line for each PROGRESS messages of a queue."""
    reported = 0

    def moved(count: int) -> None:
        nonlocal reported
        if count - reported >= PROGRESS:
            reported = count
            output.say(f"{name}: {many(count, 'message')} moved")

    return moved


def _definitions(http: str, source: AmqpUrl) -> str:
    """Return the definitions of a broker by its management API. user and password: of the URL, or
    those of AMQP. Raises OptionError, FailedError."""
    parts = urlsplit(http)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError("--http", without_password(http), "http://user:password@host:port")
    user = source.user if parts.username is None else unquote(parts.username)
    password = source.password if parts.password is None else unquote(parts.password)
    place = urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", "")
    )
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        f"{place}/api/definitions", headers={"Authorization": f"Basic {login}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=HTTP_S) as answer:  # noqa: S310 - as above
            text: str = answer.read().decode()
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise FailedError(
            EX_UNAVAILABLE, f"{place}/api/definitions: {reason}; is this the management API of the "
            f"old broker, and is {user!r} an administrator there?"
        ) from error  # fmt: skip
    return text


def _queues(document: dict[str, Any], vhost: str) -> tuple[list[str], list[str]]:
    """Return the queues of a vhost in definitions, and its streams."""
    rows = [row for row in document.get("queues", []) if row["vhost"] == vhost and row["durable"]]
    streams = [row["name"] for row in rows if _type_of(row) == "stream"]
    return [row["name"] for row in rows if _type_of(row) != "stream"], streams


def _type_of(row: dict[str, Any]) -> object:
    return row.get("arguments", {}).get("x-queue-type", row.get("type"))


def _here(data: str, source: AmqpUrl) -> AmqpUrl:
    """Return the URL of the broker of this data directory, for the user of the old broker."""
    status = ask(data, "status")
    if status["port"] is None:
        where = elsewhere() or f"in {data}"
        raise click.UsageError(f"the broker {where} takes no plain AMQP: name it with --to")
    host = str(status["host"])
    return AmqpUrl(
        elsewhere() or LOCAL.get(host, host),
        int(status["port"]),
        source.user,
        source.password,
        source.vhost,
    )
