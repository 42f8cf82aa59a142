"""`penstock why`: one answer to "why is it blocked, slow, or not consumed".

The operation `why` of the broker finds the causes; this prints each as a line:

    queue 'orders': 3 messages ready and no consumer, for 2 h 5 min - start one
"""

from datetime import datetime
from typing import Any, Final

import click

from penstock.cli import output
from penstock.cli.ask import DATA, VHOST, ask, named
from penstock.cli.output import FORMAT, span
from penstock.clock import SystemClock

CONNECTION: Final = " -> "  # is in each name of a connection


@click.command("why")
@click.argument("name", required=False, callback=named)
@FORMAT
@VHOST
@DATA
def why(name: str | None, form: str, vhost: str, data: str) -> None:
    """Say why publishers wait, a queue does not drain, or a connection stands.

    NAME is a queue, or a connection as list_connections shows it; without NAME the whole vhost. The
    first cause comes first, each with what ends it.
    """
    if name is None:
        found = ask(data, "why", vhost)
    elif CONNECTION in name:
        found = ask(data, "why", vhost, connection=name)
    else:
        found = ask(data, "why", vhost, queue=name)
    if form == "json":
        output.document(found)
    elif not found:
        output.say("nothing is wrong that the broker can see")
    else:
        for one in found:
            output.sentence(line(one, SystemClock().wall_ms()))


def line(found: dict[str, Any], now_ms: int) -> str:
    """Return a finding as a line."""
    text = f"{found['about']}: {found['text']}"
    if found["since"]:
        since_s = datetime.fromisoformat(found["since"]).timestamp()
        text += f", for {span(max(now_ms / 1000 - since_s, 0))}"
    return f"{text} - {found['do']}" if found["do"] else text
