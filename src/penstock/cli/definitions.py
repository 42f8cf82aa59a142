"""Commands for definitions: what is declared and who may use it, as a document of RabbitMQ's JSON.

FILE may be `-`, for stdin or stdout. An exported file holds hashes of passwords, so only its owner
may read it.
"""

import json
import sys
from pathlib import Path

import click

from penstock.cli import output
from penstock.cli.ask import DATA, ask
from penstock.cli.main import EX_DATAERR, CommandRefusedError
from penstock.cli.rows import ONE_VHOST
from penstock.operation_json import to_json

PRECONDITION_FAILED = 406


def text_of(file: str) -> str:
    """Return the text of a file, or of stdin for "-". Raises OSError."""
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


@click.command("export_definitions")
@click.argument("file", default="-")
@ONE_VHOST
@DATA
def export_definitions(file: str, vhost: str | None, data: str) -> None:
    """Export users, permissions, policies, queues, exchanges and bindings as RabbitMQ's JSON.

    Of one vhost, if it is named: then without users and permissions.
    """
    found = ask(data, "export_definitions", vhost)
    text = json.dumps(to_json(found, is_exact=True), indent=1)
    if file == "-":
        click.echo(text)
        return
    path = Path(file)
    path.touch(mode=0o600)
    path.write_text(text + "\n", encoding="utf-8")


@click.command("import_definitions")
@click.argument("file", default="-")
@click.option("--leave-out", is_flag=True, help="Leave out what Penstock has not, and list it.")
@ONE_VHOST
@DATA
def import_definitions(file: str, leave_out: bool, vhost: str | None, data: str) -> None:
    """Import RabbitMQ's or Penstock's definitions: all, or nothing.

    What is there and equal is skipped, and nothing is deleted. A queue or exchange that is there
    with other properties is left as it is, and listed. If anything is wrong, nothing is imported,
    all that is wrong is listed, and the exit code is 65.
    """
    import_text(data, text_of(file), vhost, leave_out=leave_out)


def import_text(data: str, text: str, vhost: str | None, *, leave_out: bool) -> None:
    """Import definitions and print what was done. Ends the command with 65 if they are wrong."""
    try:
        found = ask(data, "import_definitions", vhost, definitions=text, leave_out=leave_out)
    except CommandRefusedError as error:
        if error.code != PRECONDITION_FAILED:
            raise
        lines = str(error).removeprefix("PRECONDITION_FAILED - ").split("\n")
        for line in lines:
            output.say(f"penstock: {line}", err=True)
        raise click.exceptions.Exit(EX_DATAERR) from None
    for name, what in (
        ("differs", "left as it is"), ("left_out", "left out"), ("not_run", "warning"),
    ):  # fmt: skip
        for line in found.pop(name):
            output.say(f"{what}: {line}")
    click.echo("imported: " + ", ".join(f"{count} {name}" for name, count in found.items()))
