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

import errno
import os  # noqa: TID251 - the environment, which penstock.config is handed
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.main import UnavailableError, version_text
from penstock.config import LOG_LEVELS, Config, config_of, parse_file
from penstock.errors import OptionError
from penstock.escaping import one_line
from penstock.queues.budget import format_bytes, machine_memory
from penstock.storage.durability import INTERVAL, MODE_NAMES
from penstock.storage.filesystem import OsFileSystem

if TYPE_CHECKING:
    from penstock.server.serve_settings import ReadyFacts

FILE: Final = "penstock.toml"
LOCAL: Final = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "")  # noqa: S104 - names, no bind


@click.command("serve")
@click.option("--data", metavar="DIR", help="Data directory, created if missing [./penstock-data].")
@click.option("--host", metavar="ADDR", help="Address to listen on [127.0.0.1]; 0.0.0.0: all.")
@click.option("--port", type=int, metavar="N", help="Port [5672]; 0: a free one.")
@click.option(
    "--http-port", metavar="N",
    help="Port of the HTTP API [15672]; 0: a free one; off: no HTTP.",
)  # fmt: skip
@click.option(
    "--memory", metavar="SIZE",
    help="RAM for the queues, such as 64MiB, or a fraction of the machine's [0.4].",
)  # fmt: skip
@click.option(
    "--durability", metavar="MODE",
    help="What a confirm means: disk (synced), interval=MS (written, synced so often), os "
    "(written) [disk].",
)  # fmt: skip
@click.option("--config", metavar="FILE", help="[./penstock.toml, if it is there]")
@click.option("--log-level", metavar="L", help=f"{', '.join(LOG_LEVELS)} [info].")
def serve(
    data: str | None, host: str | None, port: int | None, http_port: str | None,
    memory: str | None, durability: str | None, config: str | None, log_level: str | None,
) -> None:  # fmt: skip
    """Run the broker.

    Without options it serves amqp://guest:guest@localhost:5672/ from ./penstock-data.

    penstock.toml and PENSTOCK_DATA, PENSTOCK_PORT ... can set the same values; an option overrides
    them.
    """
    flags = {
        "data": data, "host": host, "port": port, "http_port": http_port, "memory": memory,
        "durability": durability, "log_level": log_level,
    }  # fmt: skip
    run(configured(flags, config, dict(os.environ), str(Path.cwd())))


def configured(
    flags: Mapping[str, object], path: str | None, environment: Mapping[str, str], directory: str
) -> Config:
    """Return the Config of these flags, this environment, and the file that is named or in the
    directory."""
    path = path or environment.get("PENSTOCK_CONFIG")
    file: dict[str, object] = {}
    if path is None and (Path(directory) / FILE).exists():
        path = str(Path(directory) / FILE)
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise OptionError(path, error.reason, "a text file, UTF-8") from None
        file = parse_file(path, text)
    fs = OsFileSystem(0)
    try:
        whole_bytes = machine_memory(fs)[0]
    finally:
        fs.close()
    from penstock.server.descriptors import default_limits, raise_limit

    return config_of(
        whole_bytes=whole_bytes, limits=default_limits(raise_limit()), flags=flags,
        environment=environment, file=file, file_path=path or FILE,
    )  # fmt: skip


def run(config: Config) -> None:
    """Serve until stopped. Raises UnavailableError if the address is taken or not of this
    machine."""
    from penstock.server.serve_settings import ServeSettings
    from penstock.server.supervisor import serve as serve_until_stopped

    settings = ServeSettings(
        data=config.data,
        host=config.host,
        port=config.port,
        http_port=config.http_port,
        memory_bytes=config.memory_bytes,
        mode=config.mode,
        is_strict=config.is_strict,
        log_level=config.log_level,
        storage=config.storage,
        queues=config.queues,
        handshake_timeout_s=config.handshake_timeout_s,
        half_open_max=config.half_open_max,
        half_open_bytes_max=config.half_open_bytes_max,
        guest=config.guest,
        data_permissions=config.data_permissions,
        notes=config.ignored,
        http_hosts=config.http_hosts,
        http_connections_max=config.http_connections_max,
        http_address_connections_max=config.http_address_connections_max,
        http_user_requests_max=config.http_user_requests_max,
        vhost_hang_s=config.vhost_hang_s,
        vhost_restarts_max=config.vhost_restarts_max,
        vhost_restart_window_s=config.vhost_restart_window_s,
        vhost_restart_strategy=config.vhost_restart_strategy,
        vhost_retry_s=config.vhost_retry_s,
        vhost_refusal_s=config.vhost_refusal_s,
        staging_bytes_max=config.staging_bytes_max,
        staging_timeout_s=config.staging_timeout_s,
        lease_alert_s=config.lease_alert_s,
        staging_user_bytes_max=config.staging_user_bytes_max,
        stream_hold_s_max=config.stream_hold_s_max,
        stream_hold_bytes_max=config.stream_hold_bytes_max,
        limits=config.limits,
    )
    try:
        serve_until_stopped(settings, lambda facts: click.echo(ready_line(config, facts)))
    except OSError as error:
        raise explained(config, error) from error


def explained(config: Config, error: OSError) -> Exception:
    """Return the error of listening with advice; any other error unchanged."""
    port, option, otherwise = config.port, "--port", ""
    if config.http_port is not None and error.filename == f"{config.host}:{config.http_port}":
        port, option, otherwise = config.http_port, "--http-port", ", or --http-port off"
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
    http = f"http://{host}:{facts.http_port}/  " if facts.http_port is not None else ""
    state = "is ready"
    if facts.problems:
        state = f"listens, but {one_line('; '.join(facts.problems))}"
    return (
        f"penstock {version_text()} {state}: amqp://guest:guest@{host}:{facts.port}/  {http}"
        f"data {config.data}  memory {format_bytes(config.memory_bytes)}  durability {durability}"
    )
