"""`penstock pipeline`: runs, checks, lists and shows pipelines; and `penstock spark` for clusters.

    penstock pipeline check flights.toml         would it run?
    penstock pipeline run flights.toml           until all that exists is read, or until stopped
    penstock pipeline run archive -o stream=flights.events -o into=lake/archive
    penstock pipeline list                       pipelines whose state is below ./state
    penstock pipeline status flights.toml        how far it is, and what is left
    penstock spark py-files penstock.zip         the package, for spark-submit --py-files

At SIGINT or SIGTERM, `run` stops after the current batch, and the next run continues there; a
second Ctrl-C ends it at once, which is safe too. Built-in pipelines (archive, replay, dead-letters,
audit) are run by name.

`list` and `status` read the state directories without Spark. PySpark is imported where it is
needed; if it is not installed, one line says how to install it.

While `run` runs, it shows a bar on a terminal:

    flights  ━━━━━━━━━━━━━━╸━━━━━━━  210,000/336,776 rows  62.1 MiB  lag 126,776  52,113/s  0:00:02

The bar's end is what has been read plus the lag, which is how far the source's latest offset is
ahead. A source that does not report it (files) has a bar without an end. The rate counts from the
end of the first batch, during which Spark starts its workers. In a pipe there is a plain line for a
batch, at most one every two seconds. At the end, `run` prints the totals.

The file format is in penstock.spark.pipeline_file, the job in penstock.spark.pipeline.
"""

import importlib.util
import json
import os  # noqa: TID251 - the environment, which says where the broker is
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import output
from penstock.cli.main import EX_DATAERR, EX_OK, EX_TEMPFAIL, EX_UNAVAILABLE, FailedError
from penstock.cli.output import FORMAT
from penstock.clock import SystemClock
from penstock.errors import MissingPackageError, PenstockError, install_advice
from penstock.options import format_bytes, many

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.progress import Progress

    from penstock.spark.pipeline import Pipeline, PipelineError, Tick
    from penstock.spark.pipeline_check import Finding
    from penstock.spark.pipeline_file import PipelineSpec
    from penstock.spark.pipeline_state import PipelineState, RunFacts

STATE_ROOT: Final = "state"
# Texts of Spark's errors when a worker did not start in time; another run may succeed.
TRY_AGAIN: Final = ("failed to connect back", "timed out", "TimeoutException")
NOTE: Final = "note"
LOG_BYTES: Final = 8 << 20  # of Spark's log; a longer one is truncated at the next start
LOG_SHOWN: Final = 3000  # characters of Spark's log, when Spark does not start
LINE_S: Final = 2.0

URL = click.option("--url", metavar="URL", help="The broker [the file's, PENSTOCK_URL, this host].")
HTTP_URL = click.option(
    "--http-url", metavar="URL", help="The broker's HTTP port [15672 of that host]."
)
MASTER = click.option(
    "--master", metavar="URL", help="A Spark cluster, such as spark://host:7077 [local[*]]."
)
OPTION = click.option(
    "-o", "--option", "options", multiple=True, metavar="NAME=VALUE",
    help="An option of a built-in pipeline; for a file table.key=value, which overrides the file.",
)  # fmt: skip


class SparkMissingError(MissingPackageError):
    """PySpark or pyarrow is not installed."""


@click.group("pipeline")
def pipeline() -> None:
    """Run, check, list and show pipelines from streams to tables."""


@pipeline.command("run")
@click.argument("file", metavar="FILE|NAME")
@OPTION
@URL
@HTTP_URL
@MASTER
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@FORMAT
def run(
    file: str, options: tuple[str, ...], url: str | None, http_url: str | None,
    master: str | None, quiet: bool, form: str,
) -> int:  # fmt: skip
    """Run a pipeline: a file, or a built-in one (archive, replay, dead-letters, audit)."""
    needs_spark()
    given = options_of(options)
    if file == "audit":
        return _audit(given, master, form)
    spec = loaded(file, given, url, http_url)
    is_quiet = quiet or form == "json"
    if not is_quiet:
        source = f"{spec.source.kind} {spec.source.name}"
        click.echo(f"{spec.name}: {source}, {spec.trigger}; starting Spark")
    _check_needs(spec)
    with session(spec, master) as spark:
        from penstock.spark.pipeline import Pipeline

        job = Pipeline(spec, spark)
        with stopping(job), PipelineProgress(spec.name, is_quiet=is_quiet) as progress:
            facts = _run(job, progress, spec)
    if form == "json":
        output.document(vars(facts))
    elif not quiet:
        print_totals(spec, facts)
    return EX_OK


@pipeline.command("check")
@click.argument("file", metavar="FILE|NAME")
@OPTION
@URL
@HTTP_URL
@MASTER
@FORMAT
def check(
    file: str, options: tuple[str, ...], url: str | None, http_url: str | None,
    master: str | None, form: str,
) -> None:  # fmt: skip
    """Check whether a pipeline would run: keys, columns, packages, broker, a sample of its rows.

    Lists all problems at once. Writes nothing, and runs no Python of the pipeline.
    """
    spec = loaded(file, options_of(options), url, http_url)
    found: list[Finding] = []
    if form == "text":
        click.echo(f"ok    file: {spec.place}")
    for finding in _findings(spec, master):
        found.append(finding)
        if form == "text":
            output.say(f"{finding.kind:<5} {finding.text}")
    problems = [finding for finding in found if finding.code]
    if form == "json":
        lines = [{"kind": finding.kind, "text": finding.text} for finding in found]
        output.document({"pipeline": spec.name, "findings": lines})
    if problems:
        count = many(len(problems), "problem")
        raise FailedError(problems[0].code, f"{spec.name}: {count}: it would not run")


@pipeline.command("list")
@click.argument("root", default=STATE_ROOT, metavar="[DIR]")
@FORMAT
def list_(root: str, form: str) -> None:
    """List the pipelines whose state is in DIR or below it [./state]."""
    from penstock.spark.pipeline_state import find_states

    states = find_states(root)
    rows = [summary(state) for state in states]
    if form == "json":
        output.document(rows)
        return
    names = ["name", "state", "outcome", "batch", "rows", "ended"]
    output.table(names, [[row[name] for name in names] for row in rows])
    if not rows:
        _say_none(root)


@pipeline.command("status")
@click.argument("file", metavar="[FILE|DIR]", required=False)
@URL
@FORMAT
def status(file: str | None, url: str | None, form: str) -> None:
    """Show how far a pipeline is: its last batch, its offsets, and how many records are left.

    Without FILE, shows a line for each pipeline in ./state.
    """
    from penstock.spark.pipeline_state import find_states, read_state

    if file is None:
        rows = [{**summary(one), "lag": lag_at(one, url)[0]} for one in find_states(STATE_ROOT)]
        if form == "json":
            output.document(rows)
            return
        names = ["name", "outcome", "batch", "rows", "failed", "lag", "ended"]
        output.table(names, [[row[name] for name in names] for row in rows])
        if not rows:
            _say_none(STATE_ROOT)
        return
    directory = file if Path(file).is_dir() else loaded(file, {}, url, None).state
    state = read_state(directory)
    if state is None:
        raise FileNotFoundError(2, "no pipeline's state is there: it has not run", directory)
    facts: dict[str, object] = dict(summary(state))
    facts["offsets"] = {
        f"{stream}[{part}]": offset
        for one in state.offsets
        for stream, parts in one.items()
        if isinstance(parts, dict)
        for part, offset in parts.items()
        if isinstance(offset, int)
    }
    last = state.facts.get("run", {})
    facts["source"] = " ".join(
        str(state.facts.get("source", {}).get(x, "")) for x in ("kind", "name")
    )
    facts["started"] = time_of(last.get("started_s"))
    facts |= {name: last.get(name) for name in ("batches", "bytes", "sinks", "error")}
    facts["lag"], facts["lag_unknown"] = lag_at(state, url)
    output.pairs(
        {name: value for name, value in facts.items() if value not in (None, "", {})}, form
    )


# ---- parts of run and check ----------------------------------------------------------------------


def loaded(
    file: str, given: dict[str, str], url: str | None, http_url: str | None
) -> "PipelineSpec":
    """Return the spec of a file, or of a built-in pipeline. Raises PipelineFileError and
    FileNotFoundError."""
    from penstock.spark.built_in_pipelines import NAMES, built_in
    from penstock.spark.pipeline_file import PipelineFileError, parse_pipeline, with_url

    path = Path(file)
    if file in NAMES and not path.is_file():
        place, text = file, built_in(file, given)
        given = {}
    else:
        try:
            place, text = file, path.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            text = f"{error.strerror}, and not a built-in pipeline ({', '.join(NAMES)})"
            raise FileNotFoundError(error.errno, text, file) from None
        except UnicodeDecodeError as error:
            raise PipelineFileError(file, f"not a text file, UTF-8: {error.reason}") from None
    if url is not None:
        given = {**given, "source.url": url}
    if http_url is not None:
        given = {**given, "source.http_url": http_url}
    return with_url(parse_pipeline(place, text, path.stem, given), os.environ)


def options_of(given: tuple[str, ...]) -> dict[str, str]:
    """Parse options NAME=VALUE. Raises click.UsageError."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"option {text!r}: expected NAME=VALUE")
        found[name] = value
    return found


def needs_spark() -> None:
    """Raise SparkMissingError unless PySpark and pyarrow are installed."""
    for name in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(name) is None:
            raise SparkMissingError(
                f"pipelines run on Spark, and {name} is not installed: {install_advice('spark')}"
            )


def _findings(spec: "PipelineSpec", master: str | None) -> "Iterator[Finding]":
    """Return all findings, those without Spark first."""
    from penstock.spark.pipeline_check import WRONG, Finding, needs

    found = []
    for finding in needs(spec):
        found.append(finding)
        yield finding
    if any(finding.is_for_spark for finding in found):
        yield Finding(NOTE, "columns: not checked, because Spark cannot be started")
        return
    try:
        with session(spec, master) as spark:
            from penstock.spark.pipeline_check import check as checked

            has_source = any(finding.text.startswith("source: ") for finding in found)
            yield from checked(spec, spark, has_source=has_source)
    except PenstockError:
        raise
    except Exception as error:  # noqa: BLE001 - of Spark, py4j or the JVM
        yield Finding(WRONG, f"Spark does not start: {_said(error)}{_log_of(spec)}", EX_UNAVAILABLE)


def _check_needs(spec: "PipelineSpec") -> None:
    """Raise FailedError with all problems, before Spark takes its time to start."""
    from penstock.spark.pipeline_check import needs

    problems = [finding for finding in needs(spec) if finding.code]
    if problems:
        raise FailedError(problems[0].code, "; ".join(finding.text for finding in problems))


def _run(job: "Pipeline", progress: "PipelineProgress", spec: "PipelineSpec") -> "RunFacts":
    from penstock.spark.pipeline import PipelineError

    try:
        return job.run(progress)
    except PipelineError as error:
        raise FailedError(_code_of(error), f"{_said(error)}{_log_of(spec)}") from None


def _code_of(error: "PipelineError") -> int:
    """Return the exit code of a failed run, which is rarely a bug (70)."""
    if error.is_data:
        return EX_DATAERR
    text = str(error)
    return EX_TEMPFAIL if any(words in text for words in TRY_AGAIN) else EX_UNAVAILABLE


def _said(error: Exception) -> str:
    """Return the first line of an error of Spark, which has many."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _log_of(spec: "PipelineSpec") -> str:
    log = spark_log(spec.state)
    return "" if log is None else f" (Spark's log: {log})"


def _audit(given: dict[str, str], master: str | None, form: str) -> int:
    """Run the built-in audit."""
    from penstock.spark.audit import AuditOptions, audit

    options = AuditOptions.of(given)
    with session(None, master) as spark:
        report = audit(spark, options)
    if form == "json":
        output.document(report.as_dict())
    else:
        output.table(["vhost", "kind", "name", "messages", "bytes", "damaged"], report.rows())
        for problem in report.problems:
            output.say(f"problem: {problem}")
        click.echo(report.summary())
    return EX_OK if report.is_fine else EX_DATAERR


# ---- a session, its log and its end --------------------------------------------------------------


@contextmanager
def session(spec: "PipelineSpec | None", master: str | None) -> "Iterator[SparkSession]":
    """Start Spark for the duration of the block."""
    from penstock.spark.spark_session import session as start

    conf = dict(spec.conf) if spec is not None else {}
    master = master or conf.pop("spark.master", None)
    name = "penstock" if spec is None else f"penstock {spec.name}"
    log = None if spec is None else spark_log(spec.state)
    with stderr_into(log):
        spark = start(app_name=name, master=master, conf=conf)
    try:
        yield spark
    finally:
        spark.stop()


def spark_log(state: str) -> Path | None:
    """Return where Spark's own log goes, or None for stderr, if the state directory is remote."""
    from penstock.spark.pipeline_state import is_remote

    if is_remote(state):
        return None
    Path(state).mkdir(parents=True, exist_ok=True)
    return Path(state) / "spark.log"


@contextmanager
def stderr_into(log: Path | None) -> Iterator[None]:
    """Send the stderr of processes that the block starts into a file for as long as they live: the
    JVM prints more than a person wants to read. If the block fails, print the log's end."""
    if log is None:
        yield
        return
    size = log.stat().st_size if log.exists() else 0
    truncating, size = (os.O_TRUNC, 0) if size > LOG_BYTES else (0, size)
    kept, fresh = (
        os.dup(2),
        os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | truncating, 0o644),
    )
    try:
        os.dup2(fresh, 2)
        yield
    except Exception:
        os.dup2(kept, 2)
        text = log.read_bytes()[size:].decode(errors="replace")
        click.echo(text[-LOG_SHOWN:], err=True)
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(fresh)


@contextmanager
def stopping(job: "Pipeline") -> Iterator[None]:
    """Make SIGINT and SIGTERM ask the job to stop. A second signal ends it at once."""
    asked: list[int] = []

    def on_signal(number: int, _frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        click.echo("stopping after this batch; press again to stop at once", err=True)
        job.ask_stop()

    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- what list, status and run print -------------------------------------------------------------


def print_totals(spec: "PipelineSpec", facts: "RunFacts") -> None:
    """Print what a run has done."""
    rows: list[list[object]] = [["read", f"{spec.source.kind} {spec.source.name}", facts.rows]]
    rows += [["wrote", title, count] for title, count in facts.sinks.items()]
    if facts.failed:
        where = f"queue {spec.dead_letter}" if spec.dead_letter else "dropped"
        rows.append(["failed", where, facts.failed])
    output.table(["", "where", "rows"], rows)
    seconds = (facts.ended_s or facts.started_s) - facts.started_s
    click.echo(f"{spec.name}: {facts.outcome}, {many(facts.batches, 'batch')} in {seconds:.1f} s")


def summary(state: "PipelineState") -> dict[str, object]:
    """Return a row of `list`."""
    last = state.facts.get("run", {})
    ended = last.get("ended_s")
    outcome = last.get("outcome", "")
    if state.is_running:
        outcome = "running"
    elif outcome == "running":
        outcome = "killed"
    return {
        "name": state.name,
        "state": state.directory,
        "outcome": outcome,
        "batch": state.committed,
        "rows": last.get("rows"),
        "failed": last.get("failed"),
        "ended": time_of(ended),
    }


def time_of(seconds: float | None) -> str | None:
    """Return a time in UTC, to the second."""
    return (
        None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat("T", "seconds")
    )


def lag_at(state: "PipelineState", url: str | None) -> tuple[int | None, str | None]:
    """Return how many records are left, or None and why that is not known."""
    source = state.facts.get("source", {})
    if source.get("kind") != "queue" or not state.offsets:
        return None, None
    from penstock.spark.pipeline_state import broker_at, left_of

    done = sum(count_of(one) for one in state.offsets)
    try:
        with broker_at(url or source.get("url")) as connection:
            return left_of(connection, str(source["name"]), state.name, done), None
    except (PenstockError, OSError) as error:
        return None, str(error)


def _say_none(root: str) -> None:
    click.echo(f"no pipeline has its state in {root} or below it", err=True)


# ---- the progress of a run -----------------------------------------------------------------------


class PipelineProgress:
    """A context manager that shows the ticks it is called with. is_drawn: None for whether stdout
    is a terminal. is_quiet: show nothing."""

    def __init__(
        self, name: str, *, is_drawn: bool | None = None, is_quiet: bool = False,
        monotonic: Callable[[], float] | None = None, echo: Callable[[str], None] = click.echo,
    ) -> None:  # fmt: skip
        self._name = name
        self._is_drawn = output.is_terminal() if is_drawn is None else is_drawn
        self._is_quiet = is_quiet
        self._monotonic = monotonic or SystemClock().monotonic
        self._echo = echo
        self._started = self._monotonic()
        self._line_due = 0.0
        self._batches = 0
        self._first: tuple[float, int] | None = None  # when a batch was seen done, and rows then
        self._bar: Progress | None = None
        self._task: Any = None

    def __enter__(self) -> "PipelineProgress":
        if self._is_drawn and not self._is_quiet:
            self._bar = _new_bar()
            self._task = self._bar.add_task(
                self._name, total=None, rows="", size="", lag="", rate=""
            )
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, tick: "Tick") -> None:
        """Show a tick, if it has anything new."""
        facts = tick.facts
        if self._is_quiet:
            return
        lag = lag_of(_as_dict(tick.progress))
        if lag is not None:
            lag = max(0, lag - (facts.rows - tick.progress_rows))
        now = self._monotonic()
        rate = self._rate(facts, now)
        if self._bar is not None:
            total = None if lag is None or not facts.batches else facts.rows + lag
            fields = _fields(facts, lag, rate)
            whole = "" if total is None else f"/{total:,}"
            fields["rows"] = f"{facts.rows:,}{whole} rows"
            self._bar.update(self._task, completed=facts.rows, total=total, **fields)
        elif facts.batches > self._batches and now >= self._line_due:
            self._batches = facts.batches
            self._line_due = now + LINE_S
            self._echo(progress_line(facts, lag, now - self._started, rate))

    def _rate(self, facts: "RunFacts", now: float) -> float | None:
        """Return rows per second since the first batch, or None before a second one."""
        if self._first is None:
            self._first = (now, facts.rows) if facts.batches else None
            return None
        since, rows = self._first
        return (facts.rows - rows) / (now - since) if facts.rows > rows and now > since else None


def lag_of(progress: Any) -> int | None:
    """Return how many records the sources' latest offsets are ahead of a query, or None."""
    lag = 0
    for source in (progress or {}).get("sources", []):
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if end is None or latest is None:
            return None
        lag += max(0, count_of(latest) - count_of(end))
    return lag if progress else None


def _offset(value: object) -> object | None:
    """Return an offset from JSON or from its text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value


def count_of(offset: object) -> int:
    """Return the sum of all partitions' offsets: {"stream": {"0": 17, "1": 4, "id": "..."}}."""
    if isinstance(offset, dict):
        return sum(count_of(inner) for inner in offset.values())
    return offset if isinstance(offset, int) and not isinstance(offset, bool) else 0


def progress_line(facts: "RunFacts", lag: int | None, seconds: float, rate: float | None) -> str:
    """Return a plain line. rate: rows per second, None if unknown."""
    fields = _fields(facts, lag, rate)
    parts = [f"batch {facts.batches}: {facts.rows:,} rows", fields["size"], fields["lag"]]
    if facts.failed:
        parts.append(f"{facts.failed:,} failed")
    parts.append(fields["rate"])
    return f"{seconds:6.1f} s  " + ", ".join(part for part in parts if part)


def _fields(facts: "RunFacts", lag: int | None, rate: float | None) -> dict[str, Any]:
    return {
        "size": format_bytes(facts.bytes) if facts.bytes else "",
        "lag": "" if lag is None else f"lag {lag:,}",
        "rate": "" if rate is None else f"{rate:,.0f}/s",
    }


def _as_dict(progress: Any) -> Mapping[str, Any] | None:
    """Return PySpark's StreamingQueryProgress as a dict."""
    if progress is None or isinstance(progress, dict):
        return progress
    found: Mapping[str, Any] = json.loads(progress.json)
    return found


def _new_bar() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rows]}"),
        TextColumn("{task.fields[size]}"),
        TextColumn("{task.fields[lag]}"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(),
    )


# ---- penstock spark ------------------------------------------------------------------------------


@click.group("spark")
def spark() -> None:
    """Prepare Spark clusters: the package as a zip for --py-files."""


@spark.command("py-files")
@click.argument("path", metavar="OUT.zip", type=click.Path(dir_okay=False))
def py_files(path: str) -> None:
    """Write the package as a zip of plain Python, for spark-submit --py-files.

    It is for executors without penstock. The driver needs penstock installed, and its job must call
    penstock.spark.register(spark).
    """
    from penstock.spark.spark_session import write_py_files

    count = write_py_files(path)
    click.echo(f"{path}: {many(count, 'module')}")
