"""`penstock top`: the broker and the first queues of an order, on a whole screen, each second.

The vhost chooses and sorts the queues, and makes rows of as many as fit (list_rows); totals come
from vhost_totals and metrics. So a second costs the same with ten queues as with many, but for one
number of each by which they are sorted. Rates are the vhost's, of its last 5 s.

What the terminal was set to is set again at the end: also after an error, Ctrl-C and SIGTERM.
"""

import os  # noqa: TID251 - keys, as the terminal sends them
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import click
from rich.console import Console, Group
from rich.text import Text

from penstock import escaping
from penstock.cli import output
from penstock.cli.ask import DATA, VHOST, Client, NumberRange, asked
from penstock.cli.main import CommandRefusedError, UnavailableError
from penstock.cli.node import status_lines
from penstock.clock import SystemClock
from penstock.members import dug
from penstock.options import format_bytes, many

TERMINATED: Final = 128 + signal.SIGTERM  # the exit code
ENDING: Final = {signal.SIGINT, signal.SIGTERM}
LOOK_S: Final = 0.25  # between two looks whether the terminal's size has changed
KEYS_BYTES: Final = 64
AROUND: Final = 7  # lines that are no queues
NAME_CELLS_MIN: Final = 24
BAND_CELLS: Final = 10
IN: Final = "message_stats.publish_details.rate"
OUT: Final = "message_stats.deliver_get_details.rate"
ACKED: Final = "message_stats.ack_details.rate"
# Word of --order -> the column.
ORDERS: Final[Mapping[str, str]] = {
    "messages": "messages", "ready": "messages_ready", "unacked": "messages_unacknowledged",
    "in": IN, "out": OUT, "memory": "memory",
}  # fmt: skip
# States of messages, as the band shows them, and their colours.
STATES: Final = (
    ("alphas", "a", "black on blue"), ("betas", "b", "black on cyan"),
    ("gammas", "g", "black on yellow"), ("delta", "d", "black on magenta"),
)  # fmt: skip
COLUMNS: Final = (
    "name", "vhost", "type", "messages", "messages_ready", "messages_unacknowledged", IN, OUT,
    ACKED, "consumers", "consumer_utilisation", "state", "memory", "penstock.oldest_ready_s",
    *(f"penstock.{name}" for name, _, _ in STATES),
)  # fmt: skip

Row = Mapping[str, Any]


class Field(NamedTuple):
    """A column of the screen. cells: its width. rank: on a narrow screen the highest goes first."""

    title: str
    cells: int
    rank: int
    show: Callable[[Row], str]


class ScreenNumbers(NamedTuple):
    """What the broker has answered. vhosts: (vhost_totals, values of metrics) of each."""

    status: dict[str, Any]
    vhosts: Sequence[tuple[Row, Row]]
    queues: Sequence[Row]
    queue_count: int  # of all

    def total(self, name: str) -> float:
        """Return the sum of a number of vhost_totals, by its name with dots."""
        return sum(_number(totals, name) for totals, _ in self.vhosts)

    def metric(self, name: str) -> float:
        """Return the sum of a number of metrics, by its name with dots."""
        return sum(_number(values, name) for _, values in self.vhosts)


def seen(
    client: Client, vhost: str | None, order: str, is_reversed: bool, rows: int
) -> ScreenNumbers:
    """Ask the broker. vhost: None for all that run. rows: of queues at most."""
    status = client.call("status")
    running = [one["name"] for one in status["vhosts"] if one["state"] == "running"]
    vhosts: list[tuple[Row, Row]] = []
    queues: list[Row] = []
    count = 0
    for name in running if vhost is None else [vhost]:
        page = client.call(
            "list_rows", name, kind="queues", sort=ORDERS[order], reverse=not is_reversed, page=1,
            page_size=rows, columns=list(COLUMNS),
        )  # fmt: skip
        queues += page["items"]
        count += page["total_count"]
        values = client.call("metrics", name)["values"]
        vhosts.append((client.call("vhost_totals", name), values))
    queues.sort(key=lambda row: _number(row, ORDERS[order]), reverse=not is_reversed)
    return ScreenNumbers(status, vhosts, queues[:rows], count)


# ---- one frame -----------------------------------------------------------------------------------


def frame(found: ScreenNumbers, order: str, width: int, *, shows_vhost: bool = False) -> list[Text]:
    """Return the lines of what was seen, for so many cells."""
    problems = len(found.status["problems"])
    first = Text(escaping.one_line(status_lines(found.status)[0]))
    first.stylize("bold red" if problems else "bold green")
    if problems > 1:
        first.append(f"; {problems - 1} more: penstock status")
    lines = [first, *(Text(line) for line in _totals(found))]
    room = width - 1
    fields = [one for one in FIELDS if one.rank == 0]
    for one in sorted(FIELDS, key=lambda one: one.rank):
        if one.rank and _cells([*fields, one]) + NAME_CELLS_MIN <= room:
            fields.append(one)
    fields.sort(key=FIELDS.index)
    name_cells = max(room - _cells(fields), NAME_CELLS_MIN)
    count = f"{many(found.queue_count, 'queue')}, by {order}"
    titles = "".join(" " + output.fitted(one.title, one.cells, is_right=True) for one in fields)
    lines += [Text(count), Text(output.fitted("name", name_cells) + titles, style="reverse")]
    for row in found.queues:
        name = f"{row['vhost']} {row['name']}" if shows_vhost else row["name"]
        line = Text(output.fitted(escaping.one_line(name), name_cells))
        for one in fields:
            line.append(" ")
            shown = output.fitted(one.show(row), one.cells, is_right=True)
            line.append_text(_coloured(shown) if one is BAND else Text(shown))
        lines.append(line)
    return lines


def _totals(found: ScreenNumbers) -> Iterator[str]:
    yield (
        f"{_rate(found.total(IN))}/s published, {_rate(found.total(OUT))}/s delivered, "
        f"{_rate(found.total(ACKED))}/s acked; "
        f"{found.total('queue_totals.messages_ready'):,.0f} ready, "
        f"{found.total('queue_totals.messages_unacknowledged'):,.0f} unacked; "
        f"{found.total('object_totals.connections'):,.0f} connections"
    )
    counted, budget, as_alphas = (
        format_bytes(round(found.metric(name)))
        for name in ("memory_counted_bytes", "memory_budget_bytes", "backlog_as_alphas_bytes")
    )
    yield (
        f"memory {counted} of {budget}; disk {format_bytes(found.status['disk_free_bytes'])} free; "
        f"the whole backlog in RAM: {as_alphas}"
    )
    names = ("alpha", "beta", "gamma", "delta", "unacked", "delayed")
    yield ", ".join(f"{name} {found.metric(f'messages.{name}'):,.0f}" for name in names)


def _cells(fields: Sequence[Field]) -> int:
    return sum(one.cells + 1 for one in fields)


def _coloured(band: str) -> Text:
    found = Text(band)
    for _, letter, style in STATES:
        found.highlight_words([letter], style)
    return found


def _band(row: Row) -> str:
    """Return BAND_CELLS letters, as many of each state as its share, and one at least."""
    counts = [_number(row, f"penstock.{name}") for name, _, _ in STATES]
    there = [i for i, count in enumerate(counts) if count]
    if not there:
        return ""
    room = BAND_CELLS - len(there)
    cells = [int(room * count / sum(counts)) + (count > 0) for count in counts]
    cells[max(there, key=lambda i: counts[i])] += BAND_CELLS - sum(cells)
    return "".join(letter * count for (_, letter, _), count in zip(STATES, cells, strict=True))


def _blocks(row: Row) -> str:
    """Return why messages of the queue do not leave it, "" if they do."""
    if row["state"] != "running":
        return str(row["state"])
    if not row["messages_ready"] or row["type"] == "stream":
        return ""
    if not row["consumers"]:
        return "no consumer"
    return "at prefetch" if row["consumer_utilisation"] == 0 else ""


def _number(row: Row, name: str) -> float:
    """Return the number of this name with dots, 0 if there is none."""
    value = dug(row, name)
    return value if isinstance(value, int | float) else 0


def _count(name: str) -> Callable[[Row], str]:
    def show(row: Row) -> str:
        number = _number(row, name)
        return f"{number:,.0f}" if number < 1e8 else f"{number / 1e6:,.0f} M"

    return show


def _rate(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:.2f} M"
    return f"{number:.1f}" if 0 < number < 10 else f"{number:,.0f}"


def _per_s(name: str) -> Callable[[Row], str]:
    return lambda row: _rate(_number(row, name))


def _oldest(row: Row) -> str:
    seconds = row.get("penstock", {}).get("oldest_ready_s")
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


BAND: Final = Field("a b g d", BAND_CELLS, 2, _band)
FIELDS: Final = (
    Field("type", 7, 7, lambda row: str(row["type"])),
    Field("ready", 10, 0, _count("messages_ready")),
    Field("unacked", 10, 1, _count("messages_unacknowledged")),
    Field("in/s", 7, 1, _per_s(IN)),
    Field("out/s", 7, 1, _per_s(OUT)),
    Field("acked/s", 7, 5, _per_s(ACKED)),
    Field("consumers", 9, 4, _count("consumers")),
    Field("memory", 10, 3, lambda row: format_bytes(round(_number(row, "memory")))),
    Field("oldest", 7, 6, _oldest),
    BAND,
    Field("blocks", 11, 2, _blocks),
)


# ---- the screen ----------------------------------------------------------------------------------


class Screen:
    """What is on the screen, and what keys have chosen. vhost: None for all. size: columns and
    lines."""

    def __init__(
        self, client: Client, vhost: str | None, order: str, size: tuple[int, int]
    ) -> None:
        self._client = client
        self._vhost = vhost
        self.order = order
        self.is_reversed = False
        self.is_paused = False
        self.size = size
        self.trouble = ""  # why there are no new numbers
        self.found = self._seen()

    def refresh(self) -> None:
        """Ask the broker again; `trouble` says why it has not answered."""
        try:
            self.found, self.trouble = self._seen(), ""
        except UnavailableError:
            self.trouble = "no broker there, waiting for it; these are its last numbers"
        except CommandRefusedError as error:
            self.trouble = f"no new numbers: {error}"

    def press(self, key: str) -> bool:
        """Do what a key means. Return whether the broker is to be asked."""
        if key == " ":
            self.is_paused = not self.is_paused
            return not self.is_paused
        if key == "r":
            self.is_reversed = not self.is_reversed
        elif key == "s":
            orders = list(ORDERS)
            self.order = orders[(orders.index(self.order) + 1) % len(orders)]
        return key in "rs"

    def lines(self, *, has_keys: bool = True) -> list[Text]:
        """Return the lines, as many as fit."""
        width, height = self.size
        order = f"{self.order}, the least first" if self.is_reversed else self.order
        found = frame(self.found, order, width, shows_vhost=self._vhost is None)
        if self.trouble:
            found[0] = Text(escaping.one_line(self.trouble), "bold red")
        if has_keys:
            keys = "q quits, s order, r reverse, space pauses" + (" (paused)" * self.is_paused)
            found = [*found[: height - 1], Text(keys, "dim")]
        for line in found:
            line.no_wrap, line.overflow = True, "ellipsis"
        return found

    def _seen(self) -> ScreenNumbers:
        rows = max(self.size[1] - AROUND, 1)
        return seen(self._client, self._vhost, self.order, self.is_reversed, rows)


def run(screen: Screen, console: Console, delay_s: float) -> None:
    """Show the screen until somebody presses q."""
    from rich.live import Live  # threads and progress, which --once does without

    clock = SystemClock()
    with _keyboard() as keys, Live(
        Group(*screen.lines()), console=console, screen=True, auto_refresh=False
    ) as live:  # fmt: skip
        due_s = clock.monotonic() + delay_s
        live.refresh()
        while True:
            left_s = LOOK_S if screen.is_paused else due_s - clock.monotonic()
            with _interruptible():
                pressed = keys(min(max(left_s, 0.0), LOOK_S))
            if "q" in pressed:
                return
            is_asked = False
            for key in pressed:
                is_asked |= screen.press(key)
            size = (console.width, console.height)
            is_due = not screen.is_paused and clock.monotonic() >= due_s
            if size != screen.size or is_asked or is_due:
                screen.size = size
                with _interruptible():
                    screen.refresh()
                due_s = clock.monotonic() + delay_s
            elif not pressed:
                continue
            live.update(Group(*screen.lines()), refresh=True)


@contextmanager
def _keyboard() -> Iterator[Callable[[float], str]]:
    """Give a function that waits some seconds for keys, and returns them: "q" at the end of input.
    Meanwhile keys are not shown, and signals wait for `_interruptible`. Ctrl-Z does nothing."""

    def keys(seconds: float) -> str:
        if not select.select([stdin], [], [], seconds)[0]:
            return ""
        return os.read(stdin, KEYS_BYTES).decode("ascii", "replace") or "q"

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    handler = signal.signal(signal.SIGTERM, _terminated)
    try:
        tty.setcbreak(stdin)
        now = termios.tcgetattr(stdin)
        now[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(stdin, termios.TCSANOW, now)
        yield keys
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the command: nowhere else, so that no drawing is cut short."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)


def _terminated(_number: int, _frame: object) -> None:
    raise click.exceptions.Exit(TERMINATED)


@click.command("top")
@VHOST
@click.option("--all", "is_all", is_flag=True, help="All vhosts that run.")
@click.option(
    "-d", "--delay", "delay_s", type=NumberRange(0.1), default=1.0, show_default=True,
    metavar="SECONDS", help="Between two looks.",
)  # fmt: skip
@click.option(
    "--order", type=click.Choice(list(ORDERS)), default="messages", show_default=True,
    help="Which queues come first.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Print once and exit, as without a terminal.")
@DATA
def top(vhost: str, is_all: bool, delay_s: float, order: str, once: bool, data: str) -> None:
    """Show the broker and its largest queues, again each second.

    Keys: q quits, s takes the next order, r reverses it, space pauses.
    """
    console = Console(highlight=False)
    with asked(data) as client:
        size = (console.width, console.height)
        screen = Screen(client, None if is_all else vhost, order, size)
        if once or not (output.is_terminal() and sys.stdin.isatty()):
            console.print(*screen.lines(has_keys=False), sep="\n")
        else:
            run(screen, console, delay_s)
