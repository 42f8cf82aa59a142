"""`penstock doctor`: whether this machine and this configuration suit a broker, and what to change.

Each row of CHECKS looks at one thing and returns a Verdict:

    ok        as it should be
    advice    the broker works, but more slowly, or loses what you may not expect
    wrong     the broker does not start, or its promises do not hold here

The exit code is 1 if anything is wrong. No broker has to run. One that runs in the data directory
is asked for its configuration and for what is wrong with it, and is not disturbed: of the disk a
file of 4 KiB is written beside the data, synced SYNCS times, and deleted.
"""

import os  # noqa: TID251 - the environment, which penstock.config is handed
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import click

from penstock.cli.ask import asked, data_of
from penstock.cli.main import UnavailableError
from penstock.cli.output import ROWS_FORMAT, records, table
from penstock.cli.serve import CONFIG, configured
from penstock.clock import Clock, SystemClock
from penstock.config import Config, settings
from penstock.errors import CERTIFICATE_ADVICE, OptionError, PenstockError
from penstock.native import build_kind
from penstock.options import format_bytes
from penstock.queues.budget import cpus, machine_memory
from penstock.server.descriptors import raise_limit
from penstock.storage.files.durability import MODE_NAMES, OS
from penstock.storage.files.filesystem import NETWORK_KINDS, FileSystem, OsFileSystem

OK: Final = "ok"
ADVICE: Final = "advice"
WRONG: Final = "wrong"
NAMES: Final = ("check", "state", "found", "advice")

SYNCS: Final = 20
BLOCK_BYTES: Final = 4096
SLOW_SYNC_MS: Final = 10.0
FAST_SYNC_MS: Final = 0.02
IN_MEMORY: Final = ("tmpfs", "ramfs")
FILES_LEAST: Final = 1024
FILES_ADVISED: Final = 65_536
MEMORY_SHARE_MAX: Final = 0.7
SLOW_CLOCKS: Final = ("acpi_pm", "hpet", "jiffies", "pit", "refined-jiffies")
BUILT_MS: Final = 1_767_225_600_000  # 2026-01-01: no clock is right that is before
BACKLOG_ADVISED: Final = 1024
PROBE: Final = ".doctor"


class Verdict(NamedTuple):
    """state: see above. advice: what to change, "" if nothing."""

    state: str
    found: str
    advice: str = ""


class Machine(NamedTuple):
    """What the checks look at. nofile: how many files a process may open."""

    fs: FileSystem
    clock: Clock
    config: Config
    nofile: int

    @property
    def directory(self) -> str:
        """The data directory, or the nearest above it that is there."""
        at = str(Path(self.config.data).absolute())
        while not self.fs.is_dir(at) and at != "/":
            at = str(Path(at).parent)
        return at

    def text(self, path: str) -> str:
        """A file of the kernel, "" if it cannot be read."""
        try:
            return self.fs.read(path).decode("utf-8", "replace").strip()
        except OSError:
            return ""


def file_system(on: Machine) -> Verdict:
    """Whether the data outlives this machine's next start, and locks hold."""
    kind = on.fs.kind(on.directory)
    found = f"{kind}, at {on.directory}"
    if kind in NETWORK_KINDS:
        return Verdict(WRONG, found, "put the data on a local disk: locks and syncs of network "
                       "file systems cannot be relied on")  # fmt: skip
    if kind in IN_MEMORY:
        return Verdict(ADVICE, found, "put the data on a disk: this is lost when the machine stops")
    if kind == "overlay":
        return Verdict(ADVICE, found, "mount a volume for the data: this goes with its container")
    return Verdict(OK, found)


def free_space(on: Machine) -> Verdict:
    """Whether publishes are accepted: below the limit they are not."""
    free, limit = on.fs.free_bytes(on.directory), on.config.storage.disk_free_limit
    found = f"{format_bytes(free)} free, storage.disk_free_limit {format_bytes(limit)}"
    if free <= limit:
        return Verdict(WRONG, found, "free some space: publishes are refused below the limit")
    if free < 2 * limit:
        return Verdict(ADVICE, found, "free some space: at the limit publishes are refused")
    return Verdict(OK, found)


def disk(on: Machine) -> Verdict:
    """How long a sync takes, which each group of confirms waits for."""
    path = f"{on.directory}/{PROBE}-{os.getpid()}"
    times: list[float] = []
    try:
        file = on.fs.open(path, create=True)
        try:
            for n in range(SYNCS):
                began_s = on.clock.monotonic()
                file.pwrite(bytes(BLOCK_BYTES), n * BLOCK_BYTES)
                file.sync()
                times.append((on.clock.monotonic() - began_s) * 1000)
        finally:
            file.close()
            on.fs.unlink(path)
    except OSError as error:
        return Verdict(WRONG, f"{on.directory}: {error.strerror or error}",
                       "give the broker's user a directory that it can write")  # fmt: skip
    median = statistics.median(times)
    found = f"a sync takes {median:.2f} ms, {max(times):.2f} ms at most of {SYNCS}"
    if on.config.mode == OS:
        return Verdict(OK, f"{found}; durability {MODE_NAMES[OS]} does not wait for it")
    if median > SLOW_SYNC_MS:
        return Verdict(ADVICE, found, "each confirm waits for one: use a disk that is faster, or "
                       "durability interval=MS")  # fmt: skip
    if median < FAST_SYNC_MS:
        return Verdict(ADVICE, found, "no disk is so fast: make sure that what is synced survives "
                       "a power cut")  # fmt: skip
    return Verdict(OK, found)


def open_files(on: Machine) -> Verdict:
    """How many clients and files there may be."""
    found = f"{on.nofile:,} for each process"
    if on.nofile < FILES_LEAST:
        return Verdict(WRONG, found, f"raise the limit of open files: ulimit -n {FILES_ADVISED}")
    if on.nofile < FILES_ADVISED:
        advice = f"for many clients: ulimit -n {FILES_ADVISED}, LimitNOFILE= of systemd"
        return Verdict(ADVICE, found, advice)
    return Verdict(OK, found)


def memory(on: Machine) -> Verdict:
    """Whether the messages' share leaves room for what else the processes need."""
    whole, source = machine_memory(on.fs)
    own = on.config.memory_bytes
    found = f"memory {format_bytes(own)} of {format_bytes(whole)} ({source})"
    if own > whole:
        return Verdict(WRONG, found, "lower memory: the kernel would kill the broker")
    if own > whole * MEMORY_SHARE_MAX:
        return Verdict(ADVICE, found, "lower memory, or raise the group's limit: processes, "
                       "connections and the page cache need some, too")  # fmt: skip
    return Verdict(OK, found)


def processors(on: Machine) -> Verdict:
    """How many of them a group may use."""
    allowed = cpus(on.fs)
    if allowed is None:
        return Verdict(OK, f"no limit of the group, {os.cpu_count()} there")
    found = f"the group may use {allowed:g}"
    if allowed < 1:
        advice = "raise cpu.max: below 1 the broker stands still in each period, and clients wait"
        return Verdict(ADVICE, found, advice)
    return Verdict(OK, found)


def clock(on: Machine) -> Verdict:
    """Whether the time is likely, and cheap to read."""
    source = on.text("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if on.clock.wall_ms() < BUILT_MS:
        return Verdict(WRONG, "it is before 2026", "set the clock: certificates, tokens and "
                       "timestamps go by it")  # fmt: skip
    if source in SLOW_CLOCKS:
        return Verdict(ADVICE, f"source {source}", "use tsc or the clock of the hypervisor: this "
                       "one takes a microsecond to read")  # fmt: skip
    return Verdict(OK, f"source {source or 'unknown'}")


def backlog(on: Machine) -> Verdict:
    """How many clients may connect at once."""
    found = on.text("/proc/sys/net/core/somaxconn")
    if found.isdecimal() and int(found) < BACKLOG_ADVISED:
        advice = (
            f"for many clients that connect at once: sysctl net.core.somaxconn={BACKLOG_ADVISED}"
        )
        return Verdict(ADVICE, f"net.core.somaxconn is {found}", advice)
    return Verdict(OK, f"net.core.somaxconn is {found or 'unknown'}")


def certificates(on: Machine) -> Verdict:
    """Whether TLS starts, and for how long it works."""
    if not on.config.tls.is_on:
        return Verdict(OK, "TLS is off")
    try:
        from penstock.server.certificates import Certificates  # OpenSSL

        facts = Certificates(on.config.tls, on.fs).facts
    except OptionError as error:
        return Verdict(WRONG, str(error), "correct the file; docs/guides/tls.md")
    soon = [text for one in facts if (text := one.warning(on.clock.wall_ms()))]
    if soon:
        return Verdict(ADVICE, "; ".join(soon), CERTIFICATE_ADVICE)
    return Verdict(OK, f"{len(facts)} right")


def build(_on: Machine) -> Verdict:
    """Whether the hot modules are compiled."""
    if build_kind() == "compiled":
        return Verdict(OK, "compiled")
    advice = "install with a C compiler and Python's headers there: several times faster"
    return Verdict(ADVICE, build_kind(), advice)


CHECKS: Final[dict[str, Callable[[Machine], Verdict]]] = {
    "file system": file_system,
    "free space": free_space,
    "disk": disk,
    "open files": open_files,
    "memory": memory,
    "processors": processors,
    "clock": clock,
    "backlog": backlog,
    "certificates": certificates,
    "build": build,
}


@click.command("doctor")
@click.option("--data", metavar="DIR", help="The data directory, instead of the configured one.")
@CONFIG
@ROWS_FORMAT
def doctor(data: str | None, config: str | None, form: str) -> None:
    """Check whether this machine and the configuration suit a broker, and say what to change.

    The configuration is that of the broker that runs in the data directory; without one, or with
    --config, that of `penstock serve` here. Exit code 1 if anything is wrong.
    """
    fs = OsFileSystem(0)
    try:
        rows = examined(fs, SystemClock(), data, config)
    finally:
        fs.close()
    if form in ("json", "jsonl"):
        records(rows, form)
    else:
        table(NAMES, [[row[name] for name in NAMES] for row in rows], form, is_prose=True)
    if any(row["state"] == WRONG for row in rows):
        raise click.exceptions.Exit(1)


def examined(
    fs: FileSystem, clock: Clock, data: str | None, config: str | None
) -> list[dict[str, object]]:
    """Return a row for each check. If the configuration is wrong, only that is known."""
    rows = []
    flags = {} if data is None else {"data": data}
    try:
        known = None if config else _of_running(data)
        if known is None:
            found = configured(flags, config, dict(os.environ), str(Path.cwd()))
        else:
            rows = [_row("broker", known.health)]
            found = configured({"data": known.data}, os.devnull, known.options, str(Path.cwd()))
    except PenstockError as error:
        advice = "correct it; `penstock config explain` lists all options"
        return [*rows, _row("configuration", Verdict(WRONG, str(error), advice))]
    machine = Machine(fs, clock, found, raise_limit())
    rows.append(_row("configuration", Verdict(OK, "right")))
    return rows + [_row(name, check(machine)) for name, check in CHECKS.items()]


class _Running(NamedTuple):
    """What a running broker says. options: by the names of variables of the environment."""

    data: str
    options: dict[str, str]
    health: Verdict


def _of_running(data: str | None) -> _Running | None:
    """Return what the broker in the data directory says, None if none answers."""
    data = data_of(click.get_current_context(), None, data or os.environ.get("PENSTOCK_DATA"))
    try:
        with asked(data) as client:
            options, status = client.call("show_config"), client.call("status")
    except (UnavailableError, PermissionError):
        return None
    variables = {one.key: one.variable for one in settings()}
    return _Running(
        status["data"],
        {
            variables[one["option"]]: one["value"]
            for one in options
            if one["value"] != one["default"] and one["option"] in variables
        },
        Verdict(WRONG, "; ".join(status["problems"]), "; ".join(filter(None, status["advice"])))
        if status["problems"]
        else Verdict(OK, f"serves {status['data']}, and is healthy"),
    )


def _row(name: str, finding: Verdict) -> dict[str, object]:
    return {"check": name, **finding._asdict()}
