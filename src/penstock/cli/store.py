"""`penstock store`: checks, dumps, salvages, measures and copies a store that is not in use.

Only `path`, which prints where files are, works on stores in use too.

Results go to stdout, everything else to stderr. On a terminal, work that takes longer than a second
shows a bar, and tables are drawn; in a pipe there are plain lines with tabs, and progress only with
-v. `rich` is imported when something is drawn.

Exit codes are those of main.py: 65 when `verify` found a problem or `salvage` lost something. The
work is done in penstock.storage: verify, dump, salvage, stats, backup.
"""

import json
import random
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

import click

from penstock.cli import output
from penstock.cli.ask import DATA, ask, elsewhere, named
from penstock.cli.main import (
    EX_DATAERR,
    EX_NOINPUT,
    EX_OK,
    CommandRefusedError,
    FailedError,
    UnavailableError,
)
from penstock.cli.output import FORMAT, table
from penstock.clock import SystemClock
from penstock.errors import LockedError
from penstock.options import many
from penstock.storage.engine import StorageEngine
from penstock.storage.files import move as moves
from penstock.storage.files.data_directory import (
    DataDirectory,
    PlacedFileSystem,
    check_version,
    directories_of,
    hash_name,
    placed,
    queue_title,
)
from penstock.storage.files.filesystem import FileSystem, OsFileSystem
from penstock.storage.files.options import check_directory
from penstock.storage.files.user_store import vhosts_in
from penstock.storage.tools import backup as backups
from penstock.storage.tools import dump as dumps
from penstock.storage.tools import salvage as salvages
from penstock.storage.tools import stats as figures
from penstock.storage.tools import verify as verifies
from penstock.storage.tools.verify import Progress

BAR_AFTER_S = 1.0
DRAW_EVERY_S = 0.1

DIRECTORY = click.argument("directory", metavar="DIR")
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Print progress in a pipe too.")


@click.group(help="Check, dump, salvage, measure and copy a store that is not in use.")
def store() -> None:
    """The group of commands. Its help is above."""


@store.command()
@DIRECTORY
@VERBOSE
@FORMAT
def verify(directory: str, verbose: bool, form: str) -> int:
    """Check every checksum and reference of a store. Changes nothing.

    DIR is a data directory, or one vhost's. Each problem is printed with file and position; the
    exit code is 65 if there is one.
    """
    with _files() as fs, _progress(verbose) as progress:
        report = verifies.verify(fs, directory, progress=progress)
    if form == "json":
        click.echo(json.dumps(asdict(report), indent=2))
        return EX_OK if report.is_fine else EX_DATAERR
    for problem in report.problems:
        output.say(f"problem: {problem}")
    for note in report.notes:
        output.say(f"note: {note}")
    rows = [[q.vhost, q.name, q.count, q.bytes, q.segments, q.damaged] for q in report.queues]
    table(["vhost", "queue", "messages", "bytes", "segments", "damaged"], rows)
    rows = [[s.vhost, s.name, s.records, s.bytes, s.pages, s.damaged] for s in report.streams]
    table(["vhost", "stream", "records", "bytes", "pages", "damaged"], rows)
    click.echo(
        f"{many(len(report.problems), 'problem')}, {many(len(report.notes), 'note')}; checked "
        f"{many(sum(q.count for q in report.queues), 'message')}, {report.bodies:,} bodies of "
        f"{many(report.body_bytes, 'byte')}, {many(report.store_files, 'store file')}, "
        f"{many(sum(s.records for s in report.streams), 'record')} of streams, "
        f"{many(report.records, 'log record')}"
    )
    return EX_OK if report.is_fine else EX_DATAERR


@store.command()
@click.argument("path", metavar="PATH")
def dump(path: str) -> None:
    """Print a file of a store, or all files below a directory, a line for each entry.

    Entries that fail their checksum are marked DAMAGED. Takes no lock: for a store in use it prints
    what is on disk at the moment.
    """
    with _files() as fs:
        if not placed(fs, path).exists(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        for line in dumps.dump_tree(placed(fs, path), path):
            output.say(line)


@store.command()
@DIRECTORY
@click.argument("into", metavar="INTO")
@click.option(
    "--vhost", "vhosts", multiple=True, metavar="NAME",
    help="A name that a vhost without its file .vhost may have. May be repeated.",
)  # fmt: skip
@VERBOSE
@FORMAT
def salvage(directory: str, into: str, vhosts: tuple[str, ...], verbose: bool, form: str) -> int:
    """Write everything that can be read of a damaged store into a new one.

    DIR is not changed. INTO must not exist, or be empty. Losses are printed with file and position;
    the exit code is 65 if there are any.
    """
    known = (*vhosts, *vhosts_in(f"{directory}/node.db"))
    names = [name.encode("utf-8", "surrogateescape") for name in known]
    with _files() as fs, _progress(verbose) as progress:
        report = salvages.salvage(
            fs, directory, into, clock=SystemClock(), rng=random.SystemRandom(),
            progress=progress, names=names,
        )  # fmt: skip
    if form == "json":
        click.echo(json.dumps(asdict(report), indent=2))
        return EX_DATAERR if report.losses else EX_OK
    for loss in report.losses:
        output.say(f"lost: {loss}")
    for note in report.notes:
        output.say(f"note: {note}")
    rows = [[q.vhost, q.name, q.taken, q.bytes, q.lost] for q in report.queues]
    table(["vhost", "queue", "taken", "bytes", "lost"], rows)
    rows = [[s.vhost, s.name, s.taken, s.bytes] for s in report.streams]
    table(["vhost", "stream", "taken", "bytes"], rows)
    click.echo(
        f"{into} has {many(report.taken, 'message')}; {report.lost:,} could not be read, "
        f"{many(len(report.losses), 'loss')} in all"
    )
    return EX_DATAERR if report.losses else EX_OK


@store.command()
@DIRECTORY
@FORMAT
def stats(directory: str, form: str) -> None:
    """Print sizes of files, messages of each queue, garbage, log to replay, and RAM needed."""
    with _files() as fs:
        found = figures.stats(fs, directory)
    if form == "json":
        click.echo(json.dumps(asdict(found), indent=2))
        return
    table(
        ["files", "number", "bytes"],
        [[kind, number, size] for kind, (number, size) in sorted(found.files.items())],
    )
    rows = [[q.vhost, q.name, q.count, q.bytes, q.segments, q.rows] for q in found.queues]
    table(["vhost", "queue", "messages", "bytes", "segments", "rows"], rows)
    rows = [[s.vhost, s.name, s.first, s.next, s.bytes, s.readers] for s in found.streams]
    table(["vhost", "stream", "first offset", "next offset", "bytes", "readers"], rows)
    table(
        ["figure", "value"],
        [
            ["vhosts", found.vhosts],
            ["vhosts stopped in order", found.clean_vhosts],
            ["messages", found.messages],
            ["stored bodies", found.store_bodies],
            ["live bytes of the store", found.store_live_bytes],
            ["dead bytes of the store", found.store_dead_bytes],
            ["log records since the checkpoint", found.log_records],
            ["RAM of the engine, about, bytes", found.ram_bytes],
        ],
    )


@store.command()
@DIRECTORY
@click.argument("into", metavar="TO")
def backup(directory: str, into: str) -> None:
    """Copy a store that is not in use into a new data directory.

    DIR is opened as at a start, so a torn log is recovered there first. On one disk, files that
    never change are hard-linked and take no space. TO must not exist, be empty, or be an unfinished
    backup.
    """
    with _files() as fs:
        data = DataDirectory(fs, directory, create=False)
        engines: list[StorageEngine] = []
        try:
            for name in data.vhost_names():
                engine = StorageEngine(
                    OsFileSystem(workers=0), data.vhost_path(name), name, clock=SystemClock(),
                    rng=random.SystemRandom(),
                )  # fmt: skip
                engines.append(engine)
            parts = backups.backup(engines, into)
        finally:
            for engine in engines:
                engine.close()
                engine.fs.close()
            data.close()
    linked = sum(part.linked for part in parts)
    copied = sum(part.copied for part in parts)
    size = sum(part.copied_bytes for part in parts)
    click.echo(
        f"{into}: {many(len(parts), 'vhost')}, {many(linked, 'file')} linked, {copied:,} copied "
        f"({many(size, 'byte')})"
    )


@store.command("move")
@DIRECTORY
@click.option("--log-directory", metavar="TO", help="Where the log is to be; DIR: in DIR again.")
@click.option(
    "--spill-directory", metavar="TO",
    help="Where messages that leave RAM are to be; DIR: in DIR again.",
)  # fmt: skip
@VERBOSE
def move(
    directory: str, log_directory: str | None, spill_directory: str | None, verbose: bool
) -> None:
    """Move the log of a store, or what leaves RAM, to another disk and back. Nobody may use it.

    Each TO must be empty, or not exist while its parent does. All is copied and synced before the
    store goes on there, so an interrupted move does no harm: give the same command again. Without
    any TO what an interrupted move has left is deleted.
    """
    log = str(Path(log_directory).absolute()) if log_directory else ""
    spill = str(Path(spill_directory).absolute()) if spill_directory else ""
    check_directory("log_directory", log)
    check_directory("spill_directory", spill)
    with _files() as fs, _progress(verbose) as progress:
        moved = moves.move(
            fs, directory, log_directory=log, spill_directory=spill, progress=progress
        )
    for note in moved.notes:
        output.say(f"note: {note}")
    for kind, root in moved.roots.items():
        output.say(f"{root}: has the {kind} files of {directory} now")
    click.echo(f"{many(moved.files, 'file')} moved ({many(moved.bytes, 'byte')})")


@store.command("path")
@click.argument("vhost", callback=named)
@click.argument("queue", required=False, callback=named)
@FORMAT
@DATA
def path_of(vhost: str, queue: str | None, form: str, data: str) -> None:
    """Print the directory of a VHOST, or those of a QUEUE or stream in it: one for each part.

    A vhost has up to two more directories, in the log and spill directories.

    Works on a store in use, too. Exit code 66: there is none; a queue has files of its own once it
    holds more than a few messages.
    """
    if elsewhere():
        raise click.UsageError("run it on the broker's machine, without --url")
    with _files() as fs:
        check_version(fs, data)
        place = f"{Path(data).absolute()}/vhosts/{hash_name(_bytes(vhost))}"
        if not fs.is_dir(place):
            raise FailedError(EX_NOINPUT, f"no vhost '{vhost}' in {data}")
        at = placed(fs, data)
        paths = [place, *_others_of(at, place)]
        if queue is not None:
            paths = [at.place(path) for path in directories_of(at, place, _bytes(queue))]
        if not paths and queue is not None and not _is_known(fs, data, place, vhost, queue):
            raise FailedError(EX_NOINPUT, f"no queue '{queue}' in vhost '{vhost}'")
    if form == "json":
        of = {"vhost": vhost} if queue is None else {"vhost": vhost, "queue": queue}
        output.document({**of, "paths": paths})
        return
    if not paths:
        text = f"queue '{queue}' has no files of its own: its messages are in those of {place}"
        raise FailedError(EX_NOINPUT, text)
    for path in paths:
        output.say(path)


# ---- helpers -------------------------------------------------------------------------------------


@contextmanager
def _files() -> Iterator[OsFileSystem]:
    with closing(OsFileSystem(workers=0)) as fs:
        yield fs


def _others_of(fs: FileSystem, path: str) -> list[str]:
    """Return the other directories of the vhost at `path`."""
    if not isinstance(fs, PlacedFileSystem):
        return []
    return [f"{root}/{path.rpartition('/')[2]}" for root in fs.roots.values()]


def _bytes(name: str) -> bytes:
    """Return a name as the storage has it."""
    return name.encode("utf-8", "surrogateescape")


def _is_known(fs: OsFileSystem, data: str, path: str, vhost: str, queue: str) -> bool:
    """Return whether the vhost has a queue of this name, as its broker says, or else as on disk;
    True if the store is open and its owner cannot be asked."""
    try:
        return any(row["name"] == queue for row in ask(data, "list_queues", vhost))
    except (UnavailableError, CommandRefusedError):
        pass
    try:
        found = figures.stats(fs, path)
    except LockedError:
        return True
    title = queue_title(_bytes(queue))
    names = [one.name for one in found.queues] + [one.name for one in found.streams]
    return any(name == title or name.startswith(f"{title} (part ") for name in names)


def _has_terminal() -> bool:
    return sys.stderr.isatty()


@contextmanager
def _progress(verbose: bool) -> Iterator[Progress | None]:
    """Show progress: on a terminal a bar, if the work takes longer than a second; lines with -v."""
    if not _has_terminal():
        yield _lines() if verbose else None
        return
    with closing(_Bar()) as bar:
        yield bar.update


def _lines() -> Progress:
    printed: dict[str, int] = {}

    def tell(what: str, done: int, total: int) -> None:
        tenth = done * 10 // total if total else 10
        if printed.get(what) != tenth:
            printed[what] = tenth
            click.echo(f"{what}: {done} of {total}", err=True)

    return tell


class _Bar:
    """A bar of rich on stderr, drawn once the work has taken longer than BAR_AFTER_S."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._begun = self._clock.monotonic()
        self._next = 0.0
        self._tasks: dict[str, int] = {}
        self._drawn: object = None

    def update(self, what: str, done: int, total: int) -> None:
        now = self._clock.monotonic()
        if now - self._begun < BAR_AFTER_S or (now < self._next and done < total):
            return
        self._next = now + DRAW_EVERY_S
        from rich.console import Console
        from rich.progress import Progress as RichProgress
        from rich.progress import TaskID

        if self._drawn is None:
            self._drawn = RichProgress(
                console=Console(stderr=True), transient=True, auto_refresh=False
            )
            self._drawn.start()
        bar = self._drawn
        assert isinstance(bar, RichProgress)
        if what not in self._tasks:
            self._tasks[what] = bar.add_task(what)
        bar.update(TaskID(self._tasks[what]), completed=done, total=max(total, 1))
        bar.refresh()

    def close(self) -> None:
        if self._drawn is not None:
            from rich.progress import Progress as RichProgress

            assert isinstance(self._drawn, RichProgress)
            self._drawn.stop()
