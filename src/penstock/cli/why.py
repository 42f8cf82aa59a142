"""`penstock why`: one answer to "why is it blocked, slow, or not consumed".

The operation `why` of a vhost finds the causes; this prints each as a line:

    queue 'orders': 3 messages ready and no consumer, for 2 h 5 min - start one

Before them stands what is wrong with the broker, of which a vhost knows nothing, by the operation
`status`; a vhost that does not serve is asked nothing. Certificates that expire soon come last.
"""

from datetime import datetime
from typing import Any, Final

import click

from penstock.cli import output
from penstock.cli.ask import DATA, VHOST, asked, named
from penstock.cli.output import FORMAT, span
from penstock.clock import SystemClock
from penstock.errors import CERTIFICATE_ADVICE
from penstock.operation_table import ALARM

CONNECTION: Final = " -> "  # is in each name of a connection
DOWN, STOPPED = "down", "stopped"  # states of a vhost

Finding = dict[str, Any]


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
    with asked(data) as client:
        status = client.call("status")
        found, serves = _of_broker(status, vhost)
        if name is None:
            found += client.call("why", vhost) if serves else []
            found += _of_certificates(status)
        elif serves:
            kind = "connection" if CONNECTION in name else "queue"
            found = client.call("why", vhost, **{kind: name})
    if form == "json":
        output.document(found)
    elif not found:
        output.say("nothing is wrong that the broker can see")
    else:
        for one in found:
            output.sentence(line(one, SystemClock().wall_ms()))


def _of_broker(status: dict[str, Any], vhost: str) -> tuple[list[Finding], bool]:
    """Return what is wrong with the broker and whether the vhost serves, and whether it does. Why
    its publishers wait, a vhost says itself, and better."""
    row = next((one for one in status["vhosts"] if one["name"] == vhost), None)
    is_blocked = row is not None and bool(row["blocked_reason"])
    found: list[Finding] = []
    parts = (status[part] for part in ("kinds", "about", "problems", "advice"))
    for kind, about, text, do in zip(*parts, strict=True):
        if about in (None, vhost) and not (kind == ALARM and is_blocked):
            place = "broker" if about is None else f"vhost '{about}'"
            found.append(_finding(place, text.removeprefix(f"{place} "), do))
    if row is not None and row["state"] == STOPPED:
        found.append(_finding(f"vhost '{vhost}'", row["why"], f"penstock start_vhost {vhost}"))
    return found, row is None or row["state"] not in (DOWN, STOPPED)


def _of_certificates(status: dict[str, Any]) -> list[Finding]:
    warnings = (status["tls"] or {}).get("warnings", ())
    return [_finding("broker", text, CERTIFICATE_ADVICE) for text in warnings]


def _finding(about: str, text: str, do: str) -> Finding:
    return {"about": about, "text": text, "do": do, "since": None}


def line(found: dict[str, Any], now_ms: int) -> str:
    """Return a finding as a line."""
    text = f"{found['about']}: {found['text']}"
    if found["since"]:
        since_s = datetime.fromisoformat(found["since"]).timestamp()
        text += f", for {span(max(now_ms / 1000 - since_s, 0))}"
    return f"{text} - {found['do']}" if found["do"] else text
