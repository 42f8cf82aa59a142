"""What the main job shows while a client works: a bar on a terminal, else a line now and then.

    publish  ━━━━━━━━━━━━━╸━━━━━━  210,000/336,783  18,204/s  broker RSS 97 MiB  0:00:11

Not here: what the pipeline shows; that is `penstock pipeline run` itself.
"""

import sys
import time
from types import TracebackType

from flights_broker import Watcher
from flights_proof import MIB
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINE_S = 3.0


class LakeView:
    """Use as a context manager. whole: how many messages there will be, at least."""

    def __init__(self, title: str, whole: int, watcher: Watcher, show_s: float) -> None:
        self._title = title
        self._whole = whole
        self._watcher = watcher
        self._show_s = show_s
        self._started = time.perf_counter()
        self._due = 0.0
        self._bar: Progress | None = None

    def __enter__(self) -> "LakeView":
        if sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"), TextColumn("{task.fields[rss]}"),
                TimeElapsedColumn(), console=Console(),
            )  # fmt: skip
            self._task = self._bar.add_task(self._title, total=self._whole, rate="", rss="")
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

    def show(self, done: int) -> None:
        """So many are done."""
        now = time.perf_counter()
        if now < self._due:
            return
        self._due = now + (self._show_s if self._bar is not None else LINE_S)
        self._draw(done, now)

    def end(self, done: int) -> None:
        """All are done."""
        self._draw(done, time.perf_counter())

    def _draw(self, done: int, now: float) -> None:
        rate = f"{done / max(now - self._started, 0.001):,.0f}/s"
        rss = f"broker RSS {self._watcher.status.rss_bytes / MIB:.0f} MiB"
        if self._bar is not None:
            total = max(self._whole, done)
            self._bar.update(self._task, completed=done, total=total, rate=rate, rss=rss)
        else:
            seconds = now - self._started
            line = f"{seconds:6.1f} s  {self._title}: {done:,} of {self._whole:,}, {rate}, {rss}"
            print(line, flush=True)
