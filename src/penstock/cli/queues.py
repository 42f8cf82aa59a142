"""Queues, exchanges and bindings: the commands that make, empty and delete them.

An argument is written NAME=VALUE, the value as JSON if it is some (`x-max-length=1000`,
`x-single-active-consumer=true`), else as text (`x-overflow=reject-publish`). What exists already as
it is asked for is left alone; what exists otherwise is an error that says what differs.

Not here: messages (message_verbs.py, publish_verb.py), what arguments mean (penstock.broker).

Release: the commands that end what a Spark query has left in a broker, when it never comes back.

A reader of a classic queue holds what it has leased until it commits, for as long as it takes; and
of a query that writes exactly once the last batch is remembered, so that a commit that is repeated
is known. Both belong to a query that may be started again at any time, so nothing ends them but
these commands: a query that was released and starts again from its checkpoint would see messages
twice, or write them twice.

Not here: listing what there is (list_verbs.py), what it means (penstock.broker).
"""

import json

import click

from penstock.cli.ask import DATA, VHOST, ask, named

ARGUMENTS = click.option(
    "-a", "--argument", "arguments", multiple=True, metavar="NAME=VALUE", help="May be repeated."
)
TRANSIENT = click.option("--transient", is_flag=True, help="Gone after a restart.")
AUTO_DELETE = click.option("--auto-delete", is_flag=True, help="Goes with the last that used it.")
IF_UNUSED = click.option("--if-unused", is_flag=True, help="Only if nobody uses it.")


def arguments_of(given: tuple[str, ...]) -> dict[str, object]:
    """The table of NAME=VALUE; click.UsageError for what is none."""
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
    """Declare a queue, durable unless told otherwise."""
    ask(
        data, "declare_queue", vhost, queue=queue, durable=not transient, auto_delete=auto_delete,
        arguments=arguments_of(arguments),
    )  # fmt: skip


@click.command("delete_queue")
@click.argument("queue", callback=named)
@IF_UNUSED
@click.option("--if-empty", is_flag=True, help="Only if it has no messages.")
@click.option("--force", is_flag=True, help="Also if readers have messages of it leased.")
@VHOST
@DATA
def delete_queue(
    queue: str, if_unused: bool, if_empty: bool, force: bool, vhost: str, data: str
) -> None:
    """Delete a queue with all that it holds."""
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
    """Delete all messages of a queue that are ready; those in somebody's hands stay."""
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
@click.option("--internal", is_flag=True, help="Only other exchanges publish to it.")
@ARGUMENTS
@VHOST
@DATA
def declare_exchange(
    exchange: str, kind: str, transient: bool, auto_delete: bool, internal: bool,
    arguments: tuple[str, ...], vhost: str, data: str,
) -> None:  # fmt: skip
    """Declare an exchange, durable unless told otherwise."""
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
    """Delete an exchange with its bindings."""
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
    """Bind QUEUE to EXCHANGE by a routing key, or by what the exchange's type takes for one."""
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
    """Take a binding away; the same words as for bind_queue."""
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
    """Give the messages that READER has leased of QUEUE back to it, at their old places."""
    found = ask(data, "release_lease", vhost, queue=queue, reader=reader)
    click.echo(
        f"{found['messages']} messages of queue {queue!r} released, reader {reader!r} forgotten"
    )


@click.command("release_query")
@click.argument("query", callback=named)
@click.option("--force", is_flag=True, help="Also if its last batch is not all in its target.")
@VHOST
@DATA
def release_query(query: str, force: bool, vhost: str, data: str) -> None:
    """Forget QUERY: its last batch, which it might commit once more."""
    found = ask(data, "release_query", vhost, query=query, force=force)
    batch = found["batch"]
    if batch is None:
        click.echo(f"query {query!r} is not known")
    else:
        click.echo(f"query {query!r} forgotten, its last batch was {batch}")
