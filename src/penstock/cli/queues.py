"""Queues, exchanges and bindings: the commands that declare, purge and delete them; and leases.

An argument is NAME=VALUE, with the value as JSON (`x-max-length=1000`,
`x-single-active-consumer=true`) or else as text (`x-overflow=reject-publish`). Declaring what
exists with the same properties does nothing; with others it is an error that names the difference.

The release commands end what a Spark query that never comes back left in a broker. A reader of a
classic queue keeps what it has leased until it commits. A query that writes exactly once keeps its
last batch, so that a repeated commit is recognised. The query may be started again at any time, so
only these commands end that state: a released query that starts again from its checkpoint would
read or write messages twice.
"""

import json

import click

from penstock.cli.ask import DATA, VHOST, ask, named

ARGUMENTS = click.option(
    "-a", "--argument", "arguments", multiple=True, metavar="NAME=VALUE", help="May be repeated."
)
TRANSIENT = click.option("--transient", is_flag=True, help="Not kept after a restart.")
AUTO_DELETE = click.option("--auto-delete", is_flag=True, help="Delete after its last use.")
IF_UNUSED = click.option("--if-unused", is_flag=True, help="Only if it is not in use.")


def arguments_of(given: tuple[str, ...]) -> dict[str, object]:
    """Return the arguments as a table. Raises click.UsageError for what is not NAME=VALUE."""
    found: dict[str, object] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.UsageError(f"argument {text!r}: expected NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


@click.command("declare_queue")
@click.argument("queue", callback=named)
@TRANSIENT
@AUTO_DELETE
@ARGUMENTS
@VHOST
@DATA
def declare_queue(
    queue: str, transient: bool, auto_delete: bool, arguments: tuple[str, ...], vhost: str,
    data: str,
) -> None:  # fmt: skip
    """Declare a queue.

    It is durable unless --transient is given.
    """
    ask(
        data, "declare_queue", vhost, queue=queue, durable=not transient, auto_delete=auto_delete,
        arguments=arguments_of(arguments),
    )  # fmt: skip


@click.command("delete_queue")
@click.argument("queue", callback=named)
@IF_UNUSED
@click.option("--if-empty", is_flag=True, help="Only if it has no messages.")
@click.option("--force", is_flag=True, help="Even if readers have leased messages of it.")
@VHOST
@DATA
def delete_queue(
    queue: str, if_unused: bool, if_empty: bool, force: bool, vhost: str, data: str
) -> None:
    """Delete a queue and its messages."""
    found = ask(
        data, "delete_queue", vhost, queue=queue, if_unused=if_unused, if_empty=if_empty,
        force=force,
    )  # fmt: skip
    click.echo(f"queue {queue!r} deleted, with {found['messages']} messages")


@click.command("purge_queue")
@click.argument("queue", callback=named)
@VHOST
@DATA
def purge_queue(queue: str, vhost: str, data: str) -> None:
    """Delete all ready messages of a queue.

    Messages that are delivered and not acknowledged stay.
    """
    found = ask(data, "purge_queue", vhost, queue=queue)
    click.echo(f"{found['messages']} messages purged from queue {queue!r}")


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


@click.command("delete_exchange")
@click.argument("exchange", callback=named)
@IF_UNUSED
@VHOST
@DATA
def delete_exchange(exchange: str, if_unused: bool, vhost: str, data: str) -> None:
    """Delete an exchange.

    Its bindings are deleted too.
    """
    ask(data, "delete_exchange", vhost, exchange=exchange, if_unused=if_unused)


@click.command("bind_queue")
@click.argument("queue", callback=named)
@click.argument("exchange", callback=named)
@click.argument("routing_key", callback=named, default="")
@ARGUMENTS
@VHOST
@DATA
def bind_queue(
    queue: str, exchange: str, routing_key: str, arguments: tuple[str, ...], vhost: str, data: str
) -> None:
    """Bind a queue to an exchange.

    ROUTING_KEY is what the exchange's type compares: a key, a pattern, or nothing.
    """
    ask(
        data, "bind_queue", vhost, queue=queue, exchange=exchange, routing_key=routing_key,
        arguments=arguments_of(arguments),
    )  # fmt: skip


@click.command("unbind_queue")
@click.argument("queue", callback=named)
@click.argument("exchange", callback=named)
@click.argument("routing_key", callback=named, default="")
@ARGUMENTS
@VHOST
@DATA
def unbind_queue(
    queue: str, exchange: str, routing_key: str, arguments: tuple[str, ...], vhost: str, data: str
) -> None:
    """Remove a binding.

    The arguments are those of bind_queue.
    """
    ask(
        data, "unbind_queue", vhost, queue=queue, exchange=exchange, routing_key=routing_key,
        arguments=arguments_of(arguments),
    )  # fmt: skip


@click.command("release_lease")
@click.argument("queue", callback=named)
@click.argument("reader", callback=named)
@VHOST
@DATA
def release_lease(queue: str, reader: str, vhost: str, data: str) -> None:
    """Return a reader's leased messages to their queue.

    They return to their old places, and READER is forgotten.
    """
    found = ask(data, "release_lease", vhost, queue=queue, reader=reader)
    click.echo(
        f"{found['messages']} messages of queue {queue!r} released, reader {reader!r} forgotten"
    )


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
