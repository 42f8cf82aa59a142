"""What the main job shows while it goes on: a picture of the queue on a terminal, lines in a pipe.

The picture is the one that the words come from: messages enter at the right and leave at the left,
and a queue that is longer than its memory has its head in RAM, the rest on disk.

    alpha   wholly in RAM, in q4 and q1          gamma   as beta, and its place in the queue too
    beta    a row of 32 bytes, in q3 and q2;     delta   nothing of it is in RAM
            its body is on disk

Not here: what is measured and what must hold (flights.py).
"""

import sys
import time
from collections import deque
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

MIB = 1 << 20
LINE_S = 2.0  # between two plain lines
RATE_S = 2.0  # that a rate is taken over
WIDTH_MAX = 60
TEXT_WIDTH = 48  # of what stands beside the bars
RSS_SHOWN = 64 * MIB
NOTES_MAX = 9
SPARKS = " ▁▂▃▄▅▆▇█"
STATES = (
    ("alphas", "alpha", "█", "green", "in RAM"),
    ("betas", "beta", "▓", "yellow", "row in RAM, body on disk"),
    ("gammas", "gamma", "▒", "magenta", "row in RAM, all on disk"),
    ("delta", "delta", "░", "blue", "on disk only"),
)
PARTS = (
    ("q4", "█", "green"),
    ("q3", "▒", "magenta"),
    ("delta", "░", "blue"),
    ("q2", "▒", "magenta"),
    ("q1", "█", "green"),
)

Status = dict[str, float]  # what the owner tells now and then: numbers by name


class View:
    """Shows statuses and notes; to be entered. console: where, None for stdout."""

    def __init__(self, rows: int, memory_bytes: int, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._rows = rows
        self._memory_bytes = memory_bytes
        self._started = time.perf_counter()
        self._recent: deque[tuple[float, Status]] = deque()  # of the last RATE_S
        self._depths: list[float] = []
        self._depth_max = 1.0
        self._rss_max: float = RSS_SHOWN
        self._width = max(20, min(WIDTH_MAX, self._console.width - TEXT_WIDTH))
        self._notes: deque[str] = deque(maxlen=NOTES_MAX)
        self._line_due = 0.0
        self._live: Live | None = None

    def __enter__(self) -> "View":
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Something has happened."""
        line = f"{self._seconds():5.1f} s  {text}"
        self._notes.append(line)
        if self._live is None:
            self._print(line)

    def show(self, status: Status) -> None:
        """The owner's latest status."""
        now = self._seconds()
        self._recent.append((now, status))
        while now - self._recent[0][0] > RATE_S:
            self._recent.popleft()
        self._depths.append(status["len"])
        self._depth_max = max(self._depth_max, status["len"])
        self._rss_max = max(self._rss_max, status["rss_bytes"])
        if self._live is not None:
            self._live.update(self._picture(status), refresh=True)
        elif now >= self._line_due:
            self._line_due = now + LINE_S
            self._print(self._line(now, status))

    # ---- lines ---------------------------------------------------------------------------------

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)

    def _line(self, now: float, status: Status) -> str:
        states = ", ".join(f"{name} {status[key]:,}" for key, name, _, _, _ in STATES)
        counted, rss = status["ram_bytes"] / MIB, status["rss_bytes"] / MIB
        return (
            f"{now:5.1f} s  put {status['put']:,}, processed {status['processed']:,}, "
            f"depth {status['len'] + status['pending']:,} ({states}), "
            f"counted {counted:.1f} MiB, RSS {rss:.0f} MiB, "
            f"{self._rate('put'):,.0f} in/s, {self._rate('processed'):,.0f} out/s"
        )

    # ---- the picture ---------------------------------------------------------------------------

    def _picture(self, status: Status) -> RenderableType:
        bars = Table.grid(padding=(0, 2))
        for key in ("put", "processed"):
            text = f"{status[key]:>9,} of {self._rows:,}  {self._rate(key):>7,.0f}/s"
            bars.add_row(key, self._bar(status[key], self._rows, "cyan"), text)
        text = f"{status['ram_bytes'] / MIB:>9.2f} of {self._memory_bytes / MIB:.2f} MiB"
        bars.add_row("counted", self._bar(status["ram_bytes"], self._memory_bytes, "green"), text)
        text = f"{status['rss_bytes'] / MIB:>9.0f} MiB, the whole process"
        bars.add_row("RSS", self._bar(status["rss_bytes"], self._rss_max, "white"), text)
        bars.add_row("queue", self._queue(status), f"{status['len']:>9,} ready")
        bars.add_row("", Text("^ out" + "in ^".rjust(self._width - 5), "dim"), "")
        for key, name, block, colour, meaning in STATES:
            bars.add_row("", Text(f"{block} {name:<6}{status[key]:>9,}", colour), meaning.rjust(26))
        hands = f"{status['pending']:,} in hand, {status['delayed']:,} to be retried"
        bars.add_row("", Text(hands), "")
        bars.add_row("over time", self._sparks(), f"{self._depth_max:>9,} at most")
        return Group(bars, Text("\n".join(self._notes)))

    def _queue(self, status: Status) -> Text:
        """The head at the left, and as wide as the longest that it was."""
        found = Text()
        for key, block, colour in PARTS:
            if status[key]:
                n = max(1, round(self._width * status[key] / self._depth_max))
                found.append(block * n, colour)
        found.truncate(self._width, pad=True)
        return found

    def _sparks(self) -> Text:
        """Depth since the start."""
        n = len(self._depths)
        step = max(1, -(-n // self._width))
        parts = [max(self._depths[i : i + step]) for i in range(0, n, step)]
        found = "".join(SPARKS[round((len(SPARKS) - 1) * d / self._depth_max)] for d in parts)
        return Text(found.ljust(self._width), "blue")

    # ---- figures -------------------------------------------------------------------------------

    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def _rate(self, key: str) -> float:
        """Per second, of late."""
        (then, first), (now, last) = self._recent[0], self._recent[-1]
        return max(last[key] - first[key], 0) / (now - then) if now > then else 0.0

    def _bar(self, value: float, whole: float, colour: str) -> Text:
        n = min(self._width, round(self._width * value / whole))
        found = Text("━" * n, colour)
        return found.append("━" * (self._width - n), "grey23")
