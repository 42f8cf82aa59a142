"""Commands for definitions: what is declared and who may use it, as a document of RabbitMQ's JSON.

FILE may be `-`, for stdin or stdout. An exported file holds hashes of passwords, so only its owner
may read it.
"""

import json
import sys
from pathlib import Path
from typing import Final

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


# As rabbitmqadmin has it.
FILE: Final = click.option("--file", "path", hidden=True)


@click.command("export_definitions")
@click.argument("file", default="-")
@FILE
@ONE_VHOST
@DATA
def export_definitions(file: str, path: str | None, vhost: str | None, data: str) -> None:
    """Export users, permissions, policies, queues, exchanges and bindings as RabbitMQ's JSON.

    Of one vhost, if it is named: then without users and permissions.
    """
    found = ask(data, "export_definitions", vhost)
    text = json.dumps(to_json(found, is_exact=True), indent=1)
    if path is None and file == "-":
        click.echo(text)
        return
    place = Path(path or file)
    place.touch(mode=0o600)
    place.write_text(text + "\n", encoding="utf-8")


@click.command("import_definitions")
@click.argument("file", default="-")
@FILE
@click.option("--leave-out", is_flag=True, help="Leave out what Penstock has not, and list it.")
@click.option("--dry-run", is_flag=True, help="Check and count, and change nothing.")
@ONE_VHOST
@DATA
def import_definitions(
    file: str, path: str | None, leave_out: bool, dry_run: bool, vhost: str | None, data: str
) -> None:
    """Import RabbitMQ's or Penstock's definitions: all, or nothing.

    What is there and equal is skipped, and nothing is deleted. A queue or exchange that is there
    with other properties is left as it is, and listed. If anything is wrong, nothing is imported,
    all that is wrong is listed, and the exit code is 65.
    """
    import_text(data, text_of(path or file), vhost, leave_out=leave_out, dry_run=dry_run)


def import_text(
    data: str, text: str, vhost: str | None, *, leave_out: bool, dry_run: bool = False
) -> None:
    """Import definitions and print what was done. dry_run: only print what would be. Ends the
    command with 65 if they are wrong."""
    flags = {"leave_out": leave_out, "dry_run": dry_run}
    try:
        found = ask(data, "import_definitions", vhost, definitions=text, **flags)
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
    done = "would be imported" if dry_run else "imported"
    click.echo(f"{done}: " + ", ".join(f"{count} {name}" for name, count in found.items()))
