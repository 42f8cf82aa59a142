"""Release: the commands that end what a Spark query has left in a broker, when it never comes back.

A reader of a classic queue holds what it has leased until it commits, for as long as it takes; and
of a query that writes exactly once the last batch is remembered, so that a commit that is repeated
is known. Both belong to a query that may be started again at any time, so nothing ends them but
these commands: a query that was released and starts again from its checkpoint would see messages
twice, or write them twice.

Not here: listing what there is (list_verbs.py), what it means (penstock.broker).
"""

import click

from penstock.cli.ask import DATA, VHOST, ask, named


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
