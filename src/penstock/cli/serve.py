"""`penstock serve`: runs the broker until it is stopped.

    penstock 0.1.0 (compiled) is ready: amqp://guest:guest@localhost:5672/  http://localhost:15672/
    data ./penstock-data  memory 9.6 GiB  durability disk

It prints one line on stdout when clients can connect, with the actual ports: `--port 0` picks a
free one, `--http-port 0` too, and `--http-port off` means no HTTP. Later events are logged on
stderr. SIGTERM and SIGINT stop the broker in order, exit code 0.

It listens on 127.0.0.1 by default, because every new broker has the well-known user guest with the
password guest. Even where it listens on other addresses (`--host 0.0.0.0`), guest may connect from
this machine only.

The broker's modules are imported when it starts, not for `--help`. Values and where they come from:
penstock.config; the broker: penstock.server.
"""

import difflib
import errno
import importlib.util
import os  # noqa: TID251 - the environment, which penstock.config is handed
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.ask import DATA, ask, elsewhere
from penstock.cli.main import (
    EX_CONFIG,
    EX_USAGE,
    FailedError,
    UnavailableError,
    text_of,
    version_text,
)
from penstock.cli.output import FORMAT, ROWS_FORMAT, document, pairs, records, say, table, told
from penstock.config import Config, Setting, config_of, parse_file, settings
from penstock.config import effective as effective_rows
from penstock.errors import MissingPackageError, OptionError, install_advice
from penstock.escaping import one_line
from penstock.options import format_bytes, many, plain
from penstock.queues.budget import machine_memory
from penstock.storage.files.durability import INTERVAL, MODE_NAMES
from penstock.storage.files.filesystem import OsFileSystem

if TYPE_CHECKING:
    from penstock.server.supervisor import ReadyFacts

FILE: Final = "penstock.toml"
LOCAL: Final = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "")  # noqa: S104 - names, no bind


# Options that are flags, too: of what else can be set, file and environment are enough.
FLAGS: Final = ("data", "host", "port", "http_port", "memory", "durability", "log_level")


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of FLAGS to a command, with the meaning and default of the table of options."""
    rows = {one.option.name: one for one in settings() if not one.table}
    for name in reversed(FLAGS):
        row = rows[name]
        help_text = f"{plain(row.option.meaning)} [{row.default}]"
        command = click.option("--" + name.replace("_", "-"), metavar="VALUE", help=help_text)(
            command
        )
    return command


@click.command("serve")
@with_flags
@click.option("--config", metavar="FILE", help="the file of options [./penstock.toml, if there]")
def serve(config: str | None, **flags: str | None) -> None:
    """Run the broker.

    Without options it serves amqp://guest:guest@localhost:5672/ from ./penstock-data.

    penstock.toml and PENSTOCK_DATA, PENSTOCK_PORT ... can set the same values; an option overrides
    them. `penstock config explain` lists all that can be set.
    """
    given = (flags, config, dict(os.environ), str(Path.cwd()))
    run(configured(*given), lambda: configured(*given))


@click.command("config_explain")
@click.argument("key", required=False)
@FORMAT
def config_explain(key: str | None, form: str) -> None:
    """Explain an option of the broker; without KEY, list all.

    KEY is the name in penstock.toml, with its table: port, storage.disk_free_limit.
    """
    rows = {one.key: one for one in settings()}
    if key is None:
        names = ("option", "default", "meaning")
        if form == "json":
            document([explanation(one) for one in rows.values()])
        else:
            lines = [(n, one.default, plain(one.option.meaning)) for n, one in rows.items()]
            table(names, lines, is_prose=True)
        return
    by_variable = {one.variable: one for one in rows.values()}
    found = rows.get(key.replace("-", "_")) or by_variable.get(key)
    if found is None:
        near = difflib.get_close_matches(key, rows, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`penstock config explain` lists all"
        raise FailedError(EX_USAGE, f"unknown option {key!r}: {hint}")
    pairs(explanation(found), form)


CONFIG = click.option("--config", metavar="FILE", help="The file of options [./penstock.toml].")


@click.command("config_show")
@click.option("--effective", is_flag=True, help="Of the broker that runs.")
@CONFIG
@ROWS_FORMAT
@DATA
def config_show(effective: bool, config: str | None, form: str, data: str) -> None:
    """Show the options of a broker, and where each value is from.

    As `penstock serve` would have them here; with --effective or --url as the broker that runs has
    them.
    """
    if effective or elsewhere():
        rows = ask(data, "show_config")
    else:
        rows = effective_rows(configured({}, config, dict(os.environ), str(Path.cwd())))
    if form in ("json", "jsonl"):
        records(rows, form)
    else:
        names = ("option", "value", "origin")
        table(names, [[row[name] for name in names] for row in rows], form)


@click.command("config_check")
@click.argument("file", required=False)
def config_check(file: str | None) -> None:
    """Check the configuration of a broker.

    A file and the environment, and whether both fit together.

    Without FILE that of `penstock serve` here. Exit code 78: it is wrong.
    """
    config = configured({}, file, dict(os.environ), str(Path.cwd()))
    for note in config.notes:
        say(f"note: {note}")
    given = sum(row["origin"] != "default" for row in effective_rows(config))
    told(f"the configuration is right, and sets {many(given, 'option')}")


@click.command("config_set")
@click.argument("key")
@click.argument("value")
@DATA
def config_set(key: str, value: str, data: str) -> None:
    """Change an option of a running broker, until its next start.

    KEY is one that `penstock config explain KEY` calls live. To keep it, set it in penstock.toml
    and send SIGHUP.
    """
    found = ask(data, "set_config", key=key.replace("-", "_"), value=value)
    told(f"{key} is {found['value']} now, until the next start")


def explanation(one: Setting) -> dict[str, object]:
    """Return what there is to say about one option, for people or as JSON."""
    is_flag = not one.table and one.option.name in FLAGS
    return {
        "option": one.key,
        "meaning": plain(one.option.meaning),
        "values": plain(one.option.kind.words),
        "default": one.default,
        "file": f"[{one.table}] {one.option.name}" if one.table else one.option.name,
        "environment": one.variable,
        "flag": "--" + one.option.name.replace("_", "-") if is_flag else None,
        "live": one.option.is_live,
        "since": one.option.since,
    }


def configured(
    flags: Mapping[str, object], path: str | None, environment: Mapping[str, str], directory: str
) -> Config:
    """Return the Config of these flags, this environment, and the file that is named or in the
    directory. Raises OptionError for a wrong flag, FailedError with EX_CONFIG for the others."""
    try:
        return _configured(flags, path, environment, directory)
    except OptionError as error:
        if error.name.startswith("--"):
            raise
        raise FailedError(EX_CONFIG, str(error)) from error


def _configured(
    flags: Mapping[str, object], path: str | None, environment: Mapping[str, str], directory: str
) -> Config:
    path = path or environment.get("PENSTOCK_CONFIG")
    file: dict[str, object] = {}
    if path is None and (Path(directory) / FILE).exists():
        path = str(Path(directory) / FILE)
    if path is not None:
        file = parse_file(path, text_of(path, EX_CONFIG))
    with closing(OsFileSystem(0)) as fs:
        whole_bytes = machine_memory(fs)[0]
    from penstock.server.descriptors import default_limits, raise_limit

    return config_of(
        whole_bytes=whole_bytes, limits=default_limits(raise_limit()), flags=flags,
        environment=environment, file=file, file_path=path or "",
    )  # fmt: skip


def run(config: Config, reread: Callable[[], Config]) -> None:
    """Serve until stopped. reread: called at SIGHUP. Raises UnavailableError if the address is
    taken or not of this machine, MissingPackageError if the packages of the server are missing."""
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise MissingPackageError(
                f"the broker needs the package {name}, which is not installed: "
                f"{install_advice('server')}"
            )
    from penstock.server.supervisor import serve as serve_until_stopped

    try:
        serve_until_stopped(config, lambda facts: click.echo(ready_line(config, facts)), reread)
    except OSError as error:
        raise explained(config, error) from error


def explained(config: Config, error: OSError) -> Exception:
    """Return the error of listening with advice; any other error unchanged."""
    tls = config.tls
    listeners = (
        (config.port, "--port", ""), (config.http_port, "--http-port", ", or --http-port off"),
        (config.prometheus_port, "prometheus_port", ', or prometheus_port = "off"'),
        (tls.port, "tls.port", ""), (tls.http_port, "tls.http_port", ', or tls.http_port = "off"'),
    )  # fmt: skip
    found = [one for one in listeners if error.filename == f"{config.host}:{one[0]}"]
    port, option, otherwise = found[0] if found else listeners[0]
    port = port or 0
    place = f"{config.host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return UnavailableError(
            f"{place} is taken by another process: stop it, choose another {option}, or "
            f"{option} 0 for a free one{otherwise}"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UnavailableError(f"{place} is not an address of this machine: choose another --host")
    if error.errno in (errno.EACCES, errno.EPERM) and 0 < port < 1024:
        return PermissionError(
            error.errno, f"ports below 1024 need privileges; choose another {option}", place
        )
    return error


def ready_line(config: Config, facts: "ReadyFacts") -> str:
    """Return the line that is printed when clients can connect."""
    host = "localhost" if facts.host in LOCAL else facts.host
    host = f"[{host}]" if ":" in host else host
    durability = MODE_NAMES[config.mode]
    if config.mode == INTERVAL:
        durability += f"={config.storage.interval_ms}"
    user = "guest:guest@" if facts.has_guest else ""
    places = [
        f"{start}{host}:{port}/"
        for start, port in (
            (f"amqp://{user}", facts.port), (f"amqps://{user}", facts.tls_port),
            ("http://", facts.http_port), ("https://", facts.https_port),
        )
        if port is not None
    ]  # fmt: skip
    state = "is ready"
    if facts.problems:
        state = f"listens, but {one_line('; '.join(facts.problems))}"
    return (
        f"penstock {version_text()} {state}: {'  '.join(places)}  "
        f"data {config.data}  memory {format_bytes(config.memory_bytes)}  durability {durability}"
    )
