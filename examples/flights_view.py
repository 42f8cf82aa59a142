"""What the main job shows while it goes on: a picture of the queues on a terminal, lines in a pipe.

Messages enter a queue at the right and leave it at the left, and a queue that is longer than its
memory has its head in RAM, the rest on disk.

    alpha   wholly in RAM                        gamma   as beta, and its place in the queue too
    beta    a row of 32 bytes in RAM;            delta   nothing of it is in RAM
            its body is on disk

Not here: what is measured (flights_broker.py) and what must hold (flights_proof.py).
"""

import sys
import time
from collections import deque
from dataclasses import dataclass, field
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
NOTES_MAX = 6  # so that all of it fits 24 lines
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


@dataclass
class Status:
    """One look at everything. queues: what the broker's `list_queues` says, by name."""

    confirmed: int = 0
    consumed: int = 0
    counted_bytes: int = 0  # by the broker, in RAM
    rss_bytes: int = 0  # of all its processes
    queues: dict[str, dict[str, int]] = field(default_factory=dict)

    def sum(self, key: str) -> int:
        """Over all queues."""
        return sum(queue.get(key, 0) for queue in self.queues.values())


class View:
    """Shows statuses and notes; to be entered. to_publish, to_consume: how many messages there
    will be. console: where, None for stdout."""

    def __init__(
        self, to_publish: int, to_consume: int, memory_bytes: int, console: Console | None = None
    ) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._whole = {"confirmed": to_publish, "consumed": to_consume}
        self._memory_bytes = memory_bytes
        self._started = time.perf_counter()
        self._recent: deque[tuple[float, Status]] = deque()  # of the last RATE_S
        self._depths: list[int] = []
        self._depth_max = 1  # of all queues together
        self._longest = 1  # of one
        self._rss_max = memory_bytes
        self._width = max(20, min(WIDTH_MAX, self._console.width - TEXT_WIDTH))
        self._notes: deque[str] = deque(maxlen=NOTES_MAX)
        self._flowed: set[str] = set()  # queues
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
        """The latest status."""
        now = self._seconds()
        self._recent.append((now, status))
        while now - self._recent[0][0] > RATE_S:
            self._recent.popleft()
        self._note_flows(status)
        depth = status.sum("messages")
        self._depths.append(depth)
        self._depth_max = max(self._depth_max, depth)
        self._longest = max(self._longest, *(q["messages"] for q in status.queues.values()), 1)
        self._rss_max = max(self._rss_max, status.rss_bytes)
        if self._live is not None:
            self._live.update(self._picture(status), refresh=True)
        elif now >= self._line_due:
            self._line_due = now + LINE_S
            self._print(self._line(now, status))

    def _note_flows(self, status: Status) -> None:
        """A queue has more than its memory since the last look, or all of it is back."""
        for name, queue in status.queues.items():
            is_flowed = queue.get("is_flowed", 0) > 0
            if is_flowed == (name in self._flowed):
                continue
            if is_flowed:
                self._flowed.add(name)
                self.note(f"{name} flows to disk, with {queue['messages']:,} messages")
            else:
                self._flowed.discard(name)
                self.note(f"{name} has recovered: all of its {queue['messages']:,} are in RAM")

    # ---- lines ---------------------------------------------------------------------------------

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, markup=False)

    def _line(self, now: float, status: Status) -> str:
        queues = ", ".join(f"{name} {q['messages']:,}" for name, q in status.queues.items())
        counted, rss = status.counted_bytes / MIB, status.rss_bytes / MIB
        return (
            f"{now:5.1f} s  {self._rate('confirmed'):,.0f} in/s, {self._rate('consumed'):,.0f} "
            f"out/s; {queues}; counted {counted:.1f} MiB, RSS {rss:.0f} MiB"
        )

    # ---- the picture ---------------------------------------------------------------------------

    def _picture(self, status: Status) -> RenderableType:
        bars = Table.grid(padding=(0, 2))
        for key, whole in self._whole.items():
            value = getattr(status, key)
            text = f"{value:>9,} of {whole:,}  {self._rate(key):>7,.0f}/s"
            bars.add_row(key, self._bar(value, whole, "cyan"), text)
        text = f"{status.counted_bytes / MIB:>9.2f} of {self._memory_bytes / MIB:.0f} MiB"
        bars.add_row("counted", self._bar(status.counted_bytes, self._memory_bytes, "green"), text)
        text = f"{status.rss_bytes / MIB:>9.0f} MiB, all its processes"
        bars.add_row("RSS", self._bar(status.rss_bytes, self._rss_max, "white"), text)
        for name, queue in status.queues.items():
            hands = f", {queue['messages_unacknowledged']:,} in hand"
            text = f"{queue['messages_ready']:>9,} ready{hands}"
            bars.add_row(name, self._queue(queue), text)
        bars.add_row("", Text("^ out" + "in ^".rjust(self._width - 5), "dim"), "")
        for key, name, block, colour, meaning in STATES:
            total = Text(f"{block} {name:<6}{status.sum(key):>9,}", colour)
            bars.add_row("", total, " " * 10 + meaning)
        bars.add_row("over time", self._sparks(), f"{self._depth_max:>9,} at most")
        return Group(bars, Text("\n".join(self._notes)))

    def _queue(self, queue: dict[str, int]) -> Text:
        """The head at the left; as wide as the longest queue that there was."""
        found = Text()
        for key, block, colour in PARTS:
            if queue.get(key):
                n = max(1, round(self._width * queue[key] / self._longest))
                found.append(block * n, colour)
        found.truncate(self._width, pad=True)
        return found

    def _sparks(self) -> Text:
        """All queues together, since the start."""
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
        more = int(getattr(last, key)) - int(getattr(first, key))
        return max(more, 0) / (now - then) if now > then else 0.0

    def _bar(self, value: float, whole: float, colour: str) -> Text:
        n = min(self._width, round(self._width * value / whole))
        found = Text("━" * n, colour)
        return found.append("━" * (self._width - n), "grey23")
