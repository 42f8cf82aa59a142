"""What `penstock pipeline run` shows while it goes on: a bar on a terminal, plain lines in a pipe.

    flights  ━━━━━━━━━━━━━━╸━━━━━━━  210,000/336,776 rows  62.1 MiB  lag 126,776  52,113/s  0:00:02

The end of the bar is what has been read plus the lag: how far the source's latest offset is ahead.
A source that does not say (files) gets a bar without an end. A pipeline with an interval has no end
either; its lag is what one looks at.

The rate counts from the end of the first batch, in which Spark still starts its workers.

In a pipe there is a line for each batch, at most one every two seconds. What was done in all is
told at the end in either case, by the command.
"""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli import shown
from penstock.clock import SystemClock
from penstock.queues.budget import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

    from penstock.spark.pipeline import Tick
    from penstock.spark.pipeline_state import RunFacts

LINE_S: Final = 2.0


def lag_of(progress: Any) -> int | None:
    """How many records the latest offsets of a query's sources are ahead of where it is."""
    lag = 0
    for source in (progress or {}).get("sources", []):
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if end is None or latest is None:
            return None
        lag += max(0, count_of(latest) - count_of(end))
    return lag if progress else None


def _offset(value: object) -> object | None:
    """Spark gives them as JSON, or as the text of it."""
    if isinstance(value, str):
        import json

        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value


def count_of(offset: object) -> int:
    """The sum of the offsets of all partitions: {"stream": {"0": 17, "1": 4, "id": "..."}}."""
    if isinstance(offset, dict):
        return sum(count_of(inner) for inner in offset.values())
    return offset if isinstance(offset, int) and not isinstance(offset, bool) else 0


class PipelineProgress:
    """Use as a context manager, and call with each tick. is_drawn: None for whether stdout is a
    terminal; is_quiet: nothing at all."""

    def __init__(
        self, name: str, *, is_drawn: bool | None = None, is_quiet: bool = False,
        monotonic: Callable[[], float] | None = None, echo: Callable[[str], None] = click.echo,
    ) -> None:  # fmt: skip
        self._name = name
        self._is_drawn = shown.is_terminal() if is_drawn is None else is_drawn
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
            self._bar = _bar()
            self._task = self._bar.add_task(
                self._name, total=None, rows="", size="", lag="", rate=""
            )
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, tick: "Tick") -> None:
        """Show it, if there is anything new."""
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
            self._echo(line_of(facts, lag, now - self._started, rate))

    def _rate(self, facts: "RunFacts", now: float) -> float | None:
        """Rows a second since the first batch; None while there is no other."""
        if self._first is None:
            self._first = (now, facts.rows) if facts.batches else None
            return None
        since, rows = self._first
        return (facts.rows - rows) / (now - since) if facts.rows > rows and now > since else None


def line_of(facts: "RunFacts", lag: int | None, seconds: float, rate: float | None) -> str:
    """A plain line. rate: rows a second, None when nobody knows."""
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
    """PySpark's StreamingQueryProgress is a dict, or has one."""
    if progress is None or isinstance(progress, dict):
        return progress
    import json

    found: Mapping[str, Any] = json.loads(progress.json)
    return found


def _bar() -> "Progress":
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
